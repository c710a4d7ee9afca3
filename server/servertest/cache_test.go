package servertest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/wire"
)

// TestClientCache stops all registry nodes: a client that has their addresses alone starts from its cache, and sends and receives at all
// broker groups, also after these have started anew; without a cache, or with one that is damaged, it says that nobody answers. The
// cache grants nothing: a right that was taken meanwhile is missed at the brokers. When the registry nodes are back it asks them again.
func TestClientCache(t *testing.T) {
	t.Parallel()
	c := StartCluster(t, ClusterOptions{Registries: 2, BrokerGroups: 2, Auth: true})
	c.Apply(
		Object{Key(meta.KindTopic, "orders"), &meta.Topic{Partitions: 2, BrokerGroups: []string{"bg1", "bg2"}}},
		Object{Key(meta.KindApp, "shop"), &meta.App{}},
		Object{Key(meta.KindApp, "thief"), &meta.App{}},
		Object{Key(meta.KindProducer, "orders/shop"), &meta.Producer{}},
		Object{Key(meta.KindConsumer, "orders/shop"), &meta.Consumer{}},
		Object{Key(meta.KindProducer, "orders/thief"), &meta.Producer{}},
	)
	registries := strings.Join(Addresses(c.Registries), ",")
	folder := filepath.Join(t.TempDir(), "routes")
	as := func(app string) []client.Option {
		who := c.CreateCredential(meta.OwnerApp, app)
		return []client.Option{client.WithApp(app), client.WithCredentials(who.ID, who.Secret), client.WithRouteCache(folder)}
	}
	shop, thief := as("shop"), as("thief")
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	send := func(cl *client.Client, timeout time.Duration) error {
		p, err := cl.Producer("orders", client.Timeout(timeout))
		if err == nil {
			_, err = p.Send(ctx, &client.Message{Body: []byte("x")})
		}
		return err
	}
	// Each is a process: it ends before the registry nodes do.
	for _, options := range [][]client.Option{shop, thief} {
		cl, err := client.Dial(ctx, registries, options...)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(send(cl, 15*time.Second), cl.Close(ctx)); err != nil {
			t.Fatal(err)
		}
	}
	c.Apply(Object{Key(meta.KindProducer, "orders/thief"), nil})
	for _, r := range c.Registries {
		r.Stop()
	}

	if _, err := c.TryDial(registries, shop[:2]...); !errors.Is(err, client.ErrDisconnected) {
		t.Errorf("without a cache: %v", err)
	}
	both := func(cl *client.Client, what, group string) {
		t.Helper()
		f := startFlow(t, cl, cl, "orders", group)
		f.await(what, within, func() bool { return f.mu.sent["bg1"] >= 10 && f.mu.sent["bg2"] >= 10 })
		f.settle()
		if n, err := f.failures(); n > 0 {
			t.Errorf("%s: %d sends failed, the last with %v", what, n, err)
		}
	}
	both(c.Dial(registries, shop...), "from the cache", "shop")
	for _, b := range c.Brokers {
		b.Restart() // from its copy
	}
	cl := c.Dial(registries, shop...)
	both(cl, "from the cache, at brokers that started from theirs", "shop.again")
	// It is not refused for good while the registry, which may have given it back, is not heard.
	if err := send(c.Dial(registries, thief...), time.Second); err == nil || wire.CodeOf(err) != wire.CodeMetadataAway && wire.CodeOf(err) != wire.CodeForbidden || !strings.Contains(err.Error(), "forbidden") {
		t.Errorf("a right that was taken: %v", err)
	}

	files, err := filepath.Glob(filepath.Join(folder, "*"))
	if err != nil || len(files) != 2 {
		t.Fatalf("the folder has %v, %v", files, err)
	}
	for _, r := range c.Registries {
		r.StartAgain()
	}
	for home := false; !home; { // it answers for itself once it has a connection to one of them
		o, err := cl.Cluster().ListObjects(ctx, &wire.ListObjectsRequest{Kind: string(meta.KindTopic)})
		if home = err == nil; home && len(o.Objects) == 0 {
			t.Errorf("a registry node lists no topic: %v", o)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("the registry nodes are not found again: %v", err)
		}
	}
	if err := send(cl, 15*time.Second); err != nil {
		t.Error(err)
	}

	for _, r := range c.Registries {
		r.Stop()
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		b[len(b)/2] ^= 4
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.TryDial(registries, shop...); !errors.Is(err, client.ErrDisconnected) {
		t.Errorf("with a damaged cache: %v", err)
	}
}
