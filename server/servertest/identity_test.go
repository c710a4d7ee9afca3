package servertest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/server"
	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/wire"
)

const revokedWithin = 5 * time.Second // what the documents promise

// secured is a cluster in which app shop may use topic orders, and app other nothing.
func secured(t *testing.T, o ClusterOptions) *Cluster {
	t.Helper()
	o.Auth = true
	c := StartCluster(t, o)
	c.Apply(
		Object{Key(meta.KindTopic, "orders"), &meta.Topic{Partitions: 1, BrokerGroups: []string{"bg1"}}},
		Object{Key(meta.KindTopic, "secret"), &meta.Topic{Partitions: 1, BrokerGroups: []string{"bg1"}}},
		Object{Key(meta.KindApp, "shop"), &meta.App{}},
		Object{Key(meta.KindApp, "other"), &meta.App{}},
		Object{Key(meta.KindProducer, "orders/shop"), &meta.Producer{}},
		Object{Key(meta.KindConsumer, "orders/shop"), &meta.Consumer{}},
	)
	return c
}

// as dials the brokers with a credential, at once: it can be used when it has been answered.
func (c *Cluster) as(who wire.Credentials) *client.Client {
	c.t.Helper()
	return c.Dial(c.BrokerAddresses(), client.WithCredentials(who.ID, who.Secret))
}

// TestRights lets an app do what it was granted, and refuses everything else with one clear code: unknown people, wrong secrets, names with
// SQL in them, other apps' topics and groups.
func TestRights(t *testing.T) {
	t.Parallel()
	c := secured(t, ClusterOptions{})
	shop, other := c.CreateCredential(meta.OwnerApp, "shop"), c.CreateCredential(meta.OwnerApp, "other")
	f := startFlow(t, c.as(shop), c.as(shop), "orders", "shop")
	f.goesOn("an app with rights", 20)
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()

	for name, who := range map[string]wire.Credentials{
		"a wrong secret":        {ID: shop.ID, Secret: other.Secret},
		"nobody":                {ID: "nobody", Secret: "x"},
		"a name with SQL":       {ID: "' OR 1=1; DROP TABLE object; --", Secret: "x"},
		"a name of other signs": {ID: "a,r=b=c\x00%00", Secret: "x"},
	} {
		for _, at := range []*Server{c.Registries[0], c.Brokers[0]} {
			short, end := context.WithTimeout(ctx, 2*time.Second)
			cl, err := client.Dial(short, at.Address(), client.WithCredentials(who.ID, who.Secret))
			end()
			if err == nil {
				_ = cl.Close(ctx)
			}
			if !errors.Is(err, client.ErrUnauthenticated) {
				t.Errorf("%s at %s: %v", name, at.config.Node.Name, err)
			}
		}
	}
	if _, err := client.Dial(ctx, c.BrokerAddresses()); !errors.Is(err, client.ErrUnauthenticated) {
		t.Errorf("who says nothing: %v", err)
	}

	for name, test := range map[string]struct {
		who          wire.Credentials
		topic, group string
		want         error
	}{
		"another app's topic":   {shop, "secret", "shop", client.ErrForbidden},
		"another app's group":   {shop, "orders", "other", client.ErrForbidden},
		"an app without rights": {other, "orders", "other", client.ErrForbidden},
	} {
		cl := c.as(test.who)
		if test.topic != "orders" || test.group != "other" || test.who == other { // shop may send to orders
			p, err := cl.Producer(test.topic, client.Timeout(5*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := p.Send(ctx, &client.Message{Body: []byte("x")}); !errors.Is(err, test.want) || !errors.Is(err, client.ErrFailed) {
				t.Errorf("%s: send: %v", name, err)
			}
		}
		k, err := cl.Consumer(test.topic, client.Group(test.group))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := k.Fetch(ctx, 1, client.Wait(0)); !errors.Is(err, test.want) {
			t.Errorf("%s: fetch: %v", name, err)
		}
	}
	// An app is no administrator.
	at := c.Dial(c.Registries[0].Address(), client.WithCredentials(shop.ID, shop.Secret))
	if err := at.CreateTopic(ctx, "mine", 1); !errors.Is(err, client.ErrForbidden) {
		t.Errorf("an app makes a topic: %v", err)
	}
	if _, err := at.Cluster().CreateCredential(ctx, &wire.CreateCredentialRequest{OwnerKind: meta.OwnerNode, Owner: "b9"}); wire.CodeOf(err) != wire.CodeForbidden {
		t.Errorf("an app makes a node's credential: %v", err)
	}
	if _, err := at.Cluster().Heartbeat(ctx, &wire.HeartbeatRequest{Node: "b1", Boot: "x", Roles: []string{"broker"}, BrokerGroup: "bg1"}); wire.CodeOf(err) != wire.CodeForbidden {
		t.Errorf("an app says that it is a broker: %v", err)
	}
	watched := make(chan error, 1)
	at.Cluster().WatchObjects(ctx, &wire.WatchObjectsRequest{}, func(_ *wire.WatchObjectsResponse, err error) { watched <- err })
	if err := <-watched; wire.CodeOf(err) != wire.CodeForbidden {
		t.Errorf("an app is given all metadata: %v", err)
	}
	f.goesOn("the app with rights, after all that", 20)
	f.settle()
}

// TestRevoked takes an identity or a right away while a fetch is parked at the broker and a connection is open: both end soon, and nothing
// is given, taken or let in any more; also while the registry is gone, and after the broker started again from its copy.
func TestRevoked(t *testing.T) {
	for _, how := range []string{"credential revoked", "credential deleted", "credential expired", "app disabled", "right to consume revoked"} {
		t.Run(how, func(t *testing.T) {
			c := secured(t, ClusterOptions{})
			who := c.CreateCredential(meta.OwnerApp, "shop")
			conn := c.parked(who)
			begun := time.Now()
			want := wire.CodeUnauthenticated
			key := Key(meta.KindCredential, who.ID)
			credential := &meta.Credential{OwnerKind: meta.OwnerApp, Owner: "shop", Namespace: meta.NamespaceDefault}
			switch how {
			case "credential revoked":
				credential.Revoked = true
				Apply(t, c.Registries[0], Object{key, credential})
			case "credential deleted":
				Apply(t, c.Registries[0], Object{key, nil})
			case "credential expired":
				credential.Expires = time.Now().Add(time.Second)
				begun = credential.Expires
				Apply(t, c.Registries[0], Object{key, credential})
			case "app disabled":
				Apply(t, c.Registries[0], Object{Key(meta.KindApp, "shop"), &meta.App{Disabled: true}})
			case "right to consume revoked":
				Apply(t, c.Registries[0], Object{Key(meta.KindConsumer, "orders/shop"), nil})
				want = wire.CodeForbidden
			}
			select {
			case err := <-conn.fetched:
				if wire.CodeOf(err) != want {
					t.Errorf("the parked fetch ended with %v, want %v", err, want)
				}
			case <-time.After(within):
				t.Fatal("the parked fetch goes on")
			}
			took := time.Since(begun)
			if want == wire.CodeUnauthenticated {
				select {
				case <-conn.closed:
				case <-time.After(within):
					t.Fatal("the connection stays open")
				}
			}
			t.Logf("the parked fetch ended %v after the change", took.Round(time.Millisecond))
			if took > revokedWithin {
				t.Errorf("it took %v", took)
			}
			// An outage gives nothing back, nor does a start from what the broker keeps.
			refused := func(when string, want ...wire.Code) {
				t.Helper()
				ctx, cancel := context.WithTimeout(context.Background(), within)
				defer cancel()
				err := c.fetchOnce(ctx, who)
				for !slices.Contains(want, wire.CodeMetadataAway) && wire.CodeOf(err) == wire.CodeMetadataAway && ctx.Err() == nil {
					err = c.fetchOnce(ctx, who) // what is new is not in force in all parts yet
				}
				if !slices.Contains(want, wire.CodeOf(err)) {
					t.Errorf("%s: a fetch is answered with %v, want %v", when, err, want)
				}
			}
			refused("now", want)
			c.Registries[0].Stop()
			refused("without a registry", want, wire.CodeMetadataAway)
			c.Brokers[0].Restart()
			refused("after a restart without a registry", wire.CodeMetadataAway)
		})
	}
}

// TestNotKnownYet starts a broker again without a registry, from a copy that is older than a credential, a topic and a right: what it does not know it
// does not refuse for good. A send waits, and is stored when the broker has heard the registry.
func TestNotKnownYet(t *testing.T) {
	t.Parallel()
	c := secured(t, ClusterOptions{})
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	shop := c.CreateCredential(meta.OwnerApp, "shop")
	cl := c.as(shop)
	c.Brokers[0].Stop()
	who := c.CreateCredential(meta.OwnerApp, "shop")
	Apply(t, c.Registries[0], Object{Key(meta.KindTopic, "later"), &meta.Topic{Partitions: 1, BrokerGroups: []string{"bg1"}}},
		Object{Key(meta.KindProducer, "later/shop"), &meta.Producer{}}, Object{Key(meta.KindProducer, "secret/shop"), &meta.Producer{}})
	c.Registries[0].Stop()
	c.Brokers[0].StartAgain()

	if _, _, err := c.connect(ctx, c.Brokers[0], who); wire.CodeOf(err) != wire.CodeMetadataAway {
		t.Errorf("a credential that it does not know: %v", err)
	}
	conn, served, err := c.connect(ctx, c.Brokers[0], shop)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { conn.Close(nil); <-served }()
	batch, err := wire.AppendBatch(nil, [16]byte{}, 0, []wire.Message{{Body: []byte("x")}})
	if err != nil {
		t.Fatal(err)
	}
	for what, topic := range map[string]string{"a topic": "later", "a right": "secret"} {
		if _, err := conn.Call(ctx, wire.CommandProduce, wire.AppendProduceRequest(nil, &wire.ProduceRequest{Topic: topic, TimeoutMs: 1000}), batch); wire.CodeOf(err) != wire.CodeMetadataAway {
			t.Errorf("%s that it does not know: %v", what, err)
		}
		r := &wire.WatchRoutesRequest{Topics: []*wire.WatchedTopic{{Topic: topic}}}
		if err := conn.CallMessage(ctx, wire.CommandWatchRoutes, r, new(wire.WatchRoutesResponse)); wire.CodeOf(err) != wire.CodeMetadataAway {
			t.Errorf("the route of %s that it does not know: %v", what, err)
		}
		if err := conn.CallMessage(ctx, wire.CommandRoute, &wire.RouteRequest{Topic: topic}, new(wire.RouteResponse)); wire.CodeOf(err) != wire.CodeMetadataAway {
			t.Errorf("the route of %s that it does not know: %v", what, err)
		}
	}
	sent := make(chan error, 2)
	for _, topic := range []string{"later", "secret"} {
		p, err := cl.Producer(topic, client.Timeout(within))
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			_, err := p.Send(ctx, &client.Message{Body: []byte("x")})
			sent <- err
		}()
	}
	c.Registries[0].StartAgain()
	for range 2 {
		if err := <-sent; err != nil {
			t.Error(err)
		}
	}
	if conn, served, err := c.connect(ctx, c.Brokers[0], who); err != nil {
		t.Errorf("the credential when the registry is heard: %v", err)
	} else {
		conn.Close(nil)
		<-served
	}
}

// parked is a connection with a fetch that waits at the first broker.
type parked struct {
	fetched chan error
	closed  chan struct{}
}

func (c *Cluster) parked(who wire.Credentials) parked {
	c.t.Helper()
	c.Apply(Object{Key(meta.KindNamespace, meta.NamespaceDefault), &meta.Namespace{Description: "seen"}})
	p := parked{fetched: make(chan error, 1), closed: make(chan struct{})}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	conn, served, err := c.connect(ctx, c.Brokers[0], who)
	if err != nil {
		c.t.Fatal(err)
	}
	go func() { <-served; close(p.closed) }()
	c.t.Cleanup(func() { conn.Close(nil); <-p.closed })
	if err := conn.CallMessage(ctx, wire.CommandSubscribe, &wire.SubscribeRequest{Topic: "orders", Group: "shop"}, new(wire.SubscribeResponse)); err != nil {
		c.t.Fatal(err)
	}
	header := wire.AppendFetchRequest(nil, &wire.FetchRequest{Topic: "orders", Group: "shop", WaitMs: 30_000, MessagesMax: 1, BytesMax: 1 << 20})
	if _, err := conn.Start(wire.CommandFetch, header, nil, func(_ wire.Frame, err error) { p.fetched <- err }); err != nil {
		c.t.Fatal(err)
	}
	conn.Flush()
	// Requests of a connection are begun in order: the answer to this one says that the fetch waits.
	if err := conn.CallMessage(ctx, wire.CommandPing, &wire.PingRequest{}, new(wire.PingResponse)); err != nil {
		c.t.Fatal(err)
	}
	return p
}

// connect proves to a node who the peer is.
func (c *Cluster) connect(ctx context.Context, at *Server, who wire.Credentials) (*wire.Conn, <-chan error, error) {
	nc, err := net.Dial("tcp", at.Address())
	if err != nil {
		return nil, nil, err
	}
	conn := wire.NewConn(nc, wire.ConnOptions{})
	served := make(chan error, 1)
	go func() { served <- conn.Serve(); close(served) }()
	if _, err = conn.Hello(ctx, &wire.HelloRequest{ClientId: "test"}); err == nil {
		_, err = conn.Authenticate(ctx, who)
	}
	if err != nil {
		conn.Close(nil)
		<-served
	}
	return conn, served, err
}

// fetchOnce is a whole client's life.
func (c *Cluster) fetchOnce(ctx context.Context, who wire.Credentials) error {
	conn, served, err := c.connect(ctx, c.Brokers[0], who)
	if err != nil {
		return err
	}
	defer func() { conn.Close(nil); <-served }()
	header := wire.AppendFetchRequest(nil, &wire.FetchRequest{Topic: "orders", Group: "shop", MessagesMax: 1, BytesMax: 1 << 20})
	_, err = conn.Call(ctx, wire.CommandFetch, header, nil)
	return err
}

// TestTLS has all connections encrypted: clients, brokers to the registry, a node that shows a certificate in place of a credential, and the
// admin port. Certificates are exchanged while messages flow, and what cannot be used is told and changes nothing.
func TestTLS(t *testing.T) {
	t.Parallel()
	authority := NewAuthority(t)
	c := &Cluster{t: t, Authority: authority}
	options := func(name string, roles ...server.Role) Option {
		return func(s *server.Config) {
			s.Node.Name, s.Roles = name, roles
			s.Node.TLS.CertFile, s.Node.TLS.KeyFile = authority.Issue(t, name, "jmq://node/"+name)
			s.Node.TLS.ClientCAFile = authority.CAFile
			s.Node.Admin.TLS = true
		}
	}
	r := Start(t, options("r1", server.RoleRegistry))
	b := Start(t, options("b1", server.RoleBroker), func(s *server.Config) {
		s.Node.Registry.Addresses = []string{r.Address()}
		s.Node.Registry.CAFile, s.Node.Registry.CertFile, s.Node.Registry.KeyFile = authority.CAFile, s.Node.TLS.CertFile, s.Node.TLS.KeyFile
	})
	c.Registries, c.Brokers = []*Server{r}, []*Server{b}
	c.Apply(
		Object{Key(meta.KindTopic, "orders"), &meta.Topic{Partitions: 1, BrokerGroups: []string{"default"}}},
		Object{Key(meta.KindApp, "shop"), &meta.App{}},
		Object{Key(meta.KindProducer, "orders/shop"), &meta.Producer{}},
		Object{Key(meta.KindConsumer, "orders/shop"), &meta.Consumer{}},
		Object{Key(meta.KindUser, "watch"), &meta.User{Role: meta.RoleViewer}},
	)
	cert, key := authority.Issue(t, "shop", "jmq://app/default/shop")
	// The broker hears of the app a moment after the registry has it.
	for until := time.Now().Add(within); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		early, err := client.Dial(t.Context(), b.Address(), client.WithTLSFiles(authority.CAFile, cert, key))
		if err == nil {
			_ = early.Close(t.Context())
			break
		}
	}
	shop := c.Dial(b.Address(), client.WithTLSFiles(authority.CAFile, cert, key))
	early, err := shop.Consumer("orders", client.Group("shop"))
	if err != nil {
		t.Fatal(err)
	}
	var refused error
	for stop := time.Now().Add(within); time.Now().Before(stop); time.Sleep(20 * time.Millisecond) { // and makes the topic a moment later
		if refused = early.Subscribe(t.Context()); refused == nil {
			break
		}
	}
	if refused != nil {
		t.Fatal(refused)
	}
	f := startFlow(t, shop, shop, "orders", "shop")
	f.goesOn("by TLS, an app known by its certificate", 20)

	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	cert, key = authority.Issue(t, "nobody", "jmq://app/default/nobody")
	for name, option := range map[string]client.Option{
		"an app that is not there": client.WithTLSFiles(authority.CAFile, cert, key),
		"no certificate":           client.WithTLSFiles(authority.CAFile, "", ""),
	} {
		short, end := context.WithTimeout(ctx, 2*time.Second)
		if _, err := client.Dial(short, b.Address(), option); !errors.Is(err, client.ErrUnauthenticated) {
			t.Errorf("%s: %v", name, err)
		}
		end()
	}
	plain, end := context.WithTimeout(ctx, time.Second)
	if _, err := client.Dial(plain, b.Address()); err == nil {
		t.Error("a connection that is not encrypted is served")
	}
	end()

	before := expiry(t, c, b)
	authority.Issue(t, "b1", "jmq://node/b1")
	if err := b.Reload(); err != nil {
		t.Error(err)
	}
	if after := expiry(t, c, b); after < before || time.Until(time.Unix(int64(after), 0)) < 23*time.Hour {
		t.Errorf("after the exchange the certificate ends at %v, before at %v", after, before)
	}
	f.goesOn("after the exchange", 20)
	if err := os.WriteFile(b.config.Node.TLS.KeyFile, []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := b.Reload(); err == nil || !strings.Contains(err.Error(), "stay in force") {
		t.Errorf("a key that is none: %v", err)
	}
	f.goesOn("with a key on disk that is none", 20)
	f.settle()
}

// expiry reads by HTTPS when the node's certificate ends.
func expiry(t *testing.T, c *Cluster, s *Server) float64 {
	t.Helper()
	pem, err := os.ReadFile(c.Authority.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	h := http.Client{Timeout: within, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true}}
	r, err := h.Get("https://" + s.AdminAddress() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	const name = "\njmq_tls_certificate_expiry_timestamp_seconds "
	_, rest, ok := strings.Cut(string(b), name)
	line, _, _ := strings.Cut(rest, "\n")
	v, err := strconv.ParseFloat(line, 64)
	if !ok || err != nil {
		t.Fatal(fmt.Errorf("no%sin /metrics: %w", name, err))
	}
	return v
}
