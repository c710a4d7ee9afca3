package registry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/wire"
)

// states returns the state of each broker group of a topic, as a local peer of a node is told.
func states(t *testing.T, f *Feed, topic string) map[string]uint32 {
	t.Helper()
	r, err := f.Route(context.Background(), &wire.RouteRequest{Topic: topic})
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]uint32{}
	for _, p := range r.Partitions {
		m[p.BrokerGroup] = p.State
	}
	return m
}

func awayOf(s *meta.Snapshot) string {
	text := ""
	for _, o := range s.List(meta.KindBroker) {
		if o.Spec.(*meta.Broker).Away {
			text += o.Name + " "
		}
	}
	return text
}

// brokers starts followers a, b, c and makes topic orders on their broker groups.
func brokers(t *testing.T, c *cluster) map[string]*Follower {
	t.Helper()
	all := map[string]*Follower{}
	for _, name := range []string{"a", "b", "c"} {
		all[name] = c.follower(name, nil)
	}
	time.Sleep(2 * time.Second)
	synctest.Wait()
	if n := c.stores[0].View().Len(meta.KindBroker); n != 3 {
		t.Fatalf("%d brokers registered, not 3", n)
	}
	c.write(map[meta.Key]meta.Spec{topicKey("orders"): &meta.Topic{Partitions: 2, BrokerGroups: []string{"group-a", "group-b", "group-c"}}})
	synctest.Wait()
	return all
}

// TestSilence shows that a silent broker is away after 8 s and not before, that all nodes then say so, that the last broker group stays in the
// route, and that a broker which comes back is back at once.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		defer c.close()
		all := brokers(t, c)
		all["a"].Close()
		time.Sleep(7 * time.Second)
		synctest.Wait()
		if away := awayOf(c.stores[0].View()); away != "" {
			t.Fatalf("away after 7 s: %s", away)
		}
		time.Sleep(2500 * time.Millisecond)
		synctest.Wait()
		for i, n := range c.nodes {
			if got := fmt.Sprint(states(t, n.Feed, "orders")); got != "map[group-a:4 group-b:0 group-c:0]" {
				t.Fatalf("node %d after 9.5 s: %s", i, got)
			}
			status, err := n.statuses("group-a")
			if err != nil {
				t.Fatal(err)
			}
			if silent := status[0].Brokers[0].SilentMs; silent < 8000 || silent > 10000 {
				t.Errorf("node %d says that broker a is silent for %d ms, of 9.5 s", i, silent)
			}
		}
		if got := fmt.Sprint(states(t, all["b"].Feed, "orders")); got != "map[group-a:4 group-b:0 group-c:0]" {
			t.Fatalf("broker b after 9.5 s: %s", got)
		}

		all["b"].Close()
		all["c"].Close()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if away := awayOf(c.stores[0].View()); away != "a b c " {
			t.Fatalf("away at last: %q", away)
		}
		if got := fmt.Sprint(states(t, c.nodes[1].Feed, "orders")); got != "map[group-a:0 group-b:0 group-c:0]" {
			t.Fatalf("without a living broker group: %s", got)
		}

		b := c.follower("b", nil)
		defer b.Close()
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		if got := fmt.Sprint(states(t, c.nodes[2].Feed, "orders")); got != "map[group-a:4 group-b:0 group-c:4]" {
			t.Fatalf("b is back: %s", got)
		}
		if got := c.stores[0].View().Broker("b"); got.Away || got.Registered.IsZero() {
			t.Fatalf("broker b: %+v", got)
		}
	})
}

// TestSilentForAWhile shows that a broker which lost its connections for 20 s is away and then back, without registering anew.
func TestSilentForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2)
		defer c.close()
		var cut atomic.Bool
		a := c.follower("a", func(o *FollowerOptions) {
			dial := o.Dial
			o.Dial = func(ctx context.Context, address string) (net.Conn, error) {
				if cut.Load() {
					return nil, errors.New("cut")
				}
				return dial(ctx, address)
			}
		})
		defer a.Close()
		time.Sleep(time.Second)
		synctest.Wait()
		registered := *c.stores[0].View().Broker("a")
		cut.Store(true)
		c.hosts.cut(registryAddress(0))
		c.hosts.cut(registryAddress(1))
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if away := awayOf(c.stores[0].View()); away != "a " {
			t.Fatalf("away: %q", away)
		}
		if a.Connected() || a.Metrics().Silence < 18*time.Second {
			t.Fatalf("connected %v, silent for %v", a.Connected(), a.Metrics().Silence)
		}
		cut.Store(false)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if got := *c.stores[0].View().Broker("a"); got.Away || !got.Registered.Equal(registered.Registered) || got.Boot != registered.Boot {
			t.Fatalf("%+v, was %+v", got, registered)
		}
	})
}

// TestDatabaseAway shows that nobody leaves the routes while the database is away for a minute, nor when it is back, and that a broker which
// ended meanwhile is away 8 s later.
func TestDatabaseAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		defer c.close()
		all := brokers(t, c)
		defer all["b"].Close()
		defer all["c"].Close()
		for _, s := range c.stores {
			s.Fail(errors.New("the database is away"))
		}
		time.Sleep(30 * time.Second)
		all["a"].Close()
		time.Sleep(30 * time.Second)
		synctest.Wait()
		for i, n := range c.nodes {
			if got := fmt.Sprint(states(t, n.Feed, "orders")); got != "map[group-a:0 group-b:0 group-c:0]" {
				t.Fatalf("node %d while the database is away: %s", i, got)
			}
			if m := n.Metrics(); m.Database || m.BeatsFailed == 0 {
				t.Fatalf("node %d: %+v", i, m)
			}
		}
		if all["b"].Metrics().Stored {
			t.Fatal("b is told that its heartbeats are stored")
		}
		for i, s := range c.stores { // one after the other, so that the first sees the others silent
			time.Sleep(time.Duration(i) * time.Second)
			s.Fail(nil)
		}
		for i := range 20 {
			time.Sleep(500 * time.Millisecond)
			synctest.Wait()
			if away := awayOf(c.stores[0].View()); away != "" && (away != "a " || i < 8) { // 3 s passed before
				t.Fatalf("away when the database is back: %s", away)
			}
		}
		if away := awayOf(c.stores[0].View()); away != "a " {
			t.Fatalf("away 13 s after: %q", away)
		}
	})
}

// TestOneDatabaseAway shows that brokers leave a node which cannot reach the database before the other judges them away.
func TestOneDatabaseAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2)
		defer c.close()
		all := brokers(t, c)
		for _, f := range all {
			defer f.Close()
		}
		c.stores[0].Fail(errors.New("the database is away"))
		for range 40 {
			time.Sleep(time.Second)
			synctest.Wait()
			if away := awayOf(c.stores[1].View()); away != "" {
				t.Fatalf("away: %s", away)
			}
		}
		if n := c.hosts.sessions(registryAddress(0)); n != 0 {
			t.Fatalf("%d brokers are at the node without a database", n)
		}
		for name, f := range all {
			if !f.Metrics().Stored {
				t.Fatalf("%s: %+v", name, f.Metrics())
			}
		}
	})
}

// TestClockJumps shows that no wall clock decides who is away.
func TestClockJumps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2)
		defer c.close()
		all := brokers(t, c)
		for _, f := range all {
			defer f.Close()
		}
		for _, years := range []int{10, -10} {
			c.now = func() time.Time { return time.Now().AddDate(years, 0, 0) }
			time.Sleep(15 * time.Second)
			synctest.Wait()
			if away := awayOf(c.stores[0].View()); away != "" {
				t.Fatalf("%d years: away: %s", years, away)
			}
		}
	})
}

// TestPausedJudge shows that what a judge sleeps through is not the silence of others: one whose beats come 30 s apart judges nobody by one of them.
func TestPausedJudge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1)
		defer c.close()
		n := c.nodes[0]
		if err := n.hear(&wire.HeartbeatRequest{Node: "a", Boot: "x", Roles: []string{RoleBroker}, BrokerGroup: "g", Addresses: []string{"a:1"}}, ""); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		n.mu.Lock()
		n.mu.beaten = n.mu.beaten.Add(-30 * time.Second) // as if nothing had run for so long
		n.mu.Unlock()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if away := awayOf(c.stores[0].View()); away != "" {
			t.Fatalf("away: %s", away)
		}
		time.Sleep(8 * time.Second)
		synctest.Wait()
		if away := awayOf(c.stores[0].View()); away != "a " {
			t.Fatalf("away: %q", away)
		}
	})
}

// TestTwoOfOneName shows that the older of two brokers with one name is told so.
func TestTwoOfOneName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1)
		defer c.close()
		beat := func(boot string) error {
			_, err := c.nodes[0].Heartbeat(context.Background(), &wire.HeartbeatRequest{Node: "a", Boot: boot, Roles: []string{RoleBroker}, BrokerGroup: "g", Addresses: []string{"a:1"}})
			return err
		}
		for _, b := range []struct {
			boot string
			want wire.Code
		}{{"one", wire.CodeOK}, {"two", wire.CodeOK}, {"one", wire.CodeConflict}, {"two", wire.CodeOK}, {"three", wire.CodeOK}, {"two", wire.CodeConflict}} {
			wantCode(t, beat(b.boot), b.want)
			synctest.Wait()
		}
		time.Sleep(10 * time.Second)
		wantCode(t, beat("two"), wire.CodeOK)
	})
}

// TestBadHeartbeats shows that a heartbeat which could not be registered is refused at once.
func TestBadHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1)
		defer c.close()
		good := func() *wire.HeartbeatRequest {
			return &wire.HeartbeatRequest{Node: "a", Boot: "x", Roles: []string{RoleBroker}, BrokerGroup: "g", Addresses: []string{"a:1"}}
		}
		for name, spoil := range map[string]func(*wire.HeartbeatRequest){
			"name": func(r *wire.HeartbeatRequest) { r.Node = "a'; drop table object" }, "boot": func(r *wire.HeartbeatRequest) { r.Boot = "" },
			"group": func(r *wire.HeartbeatRequest) { r.BrokerGroup = "" }, "addresses": func(r *wire.HeartbeatRequest) { r.Addresses = nil },
			"address": func(r *wire.HeartbeatRequest) { r.Addresses = []string{"nowhere"} }, "labels": func(r *wire.HeartbeatRequest) { r.Labels = []string{"="} },
		} {
			r := good()
			spoil(r)
			if _, err := c.nodes[0].Heartbeat(context.Background(), r); wire.CodeOf(err) != wire.CodeInvalid {
				t.Errorf("%s: %v", name, err)
			}
		}
		r := good()
		r.Version = string(make([]byte, infoMax))
		_, err := c.nodes[0].Heartbeat(context.Background(), r)
		wantCode(t, err, wire.CodeTooLarge)
		app := wire.WithPeer(context.Background(), &wire.Peer{Principal: wire.Principal{Kind: wire.PrincipalApp, Name: "shop"}})
		if _, err := c.nodes[0].Heartbeat(app, good()); err == nil {
			t.Error("an app beats as a node")
		}
		b := wire.WithPeer(context.Background(), &wire.Peer{Principal: wire.Principal{Kind: wire.PrincipalNode, Name: "b"}})
		_, err = c.nodes[0].Heartbeat(b, good())
		wantCode(t, err, wire.CodeForbidden) // by its certificate it is another node
		if n := c.stores[0].View().Len(meta.KindBroker); n != 0 {
			t.Errorf("%d brokers are registered", n)
		}
	})
}

// TestOneName shows that a broker takes the name of one that lives only at its address, as after a restart, and elsewhere once that one is silent.
func TestOneName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2)
		defer c.close()
		beat := func(node int, boot, address string) error {
			t.Helper()
			_, err := c.nodes[node].Heartbeat(context.Background(), &wire.HeartbeatRequest{Node: "a", Boot: boot, Roles: []string{RoleBroker}, BrokerGroup: "g", Addresses: []string{address}})
			time.Sleep(500 * time.Millisecond)
			synctest.Wait()
			return err
		}
		for i := range 8 {
			if err := beat(0, "first", "a:1"); err != nil {
				t.Fatal(err)
			}
			if i < 2 {
				continue // the other node hears of it through the database
			}
			wantCode(t, beat(1, "second", "b:1"), wire.CodeConflict)
		}
		if b := c.stores[1].View().Broker("a"); b.Boot != "first" {
			t.Fatalf("%+v has the name", b)
		}
		if err := beat(1, "restarted", "a:1"); err != nil {
			t.Fatalf("at its own address: %v", err)
		}
		wantCode(t, beat(1, "second", "b:1"), wire.CodeConflict)
		time.Sleep(3 * time.Second)
		if err := beat(1, "second", "b:1"); err != nil || c.stores[0].View().Broker("a").Boot != "second" {
			t.Fatalf("after 3 s of silence: %v, %+v", err, c.stores[0].View().Broker("a"))
		}
	})
}

// TestOlderDatabase shows that registry nodes which start on an older copy of the database, and cannot know it, take no change while a broker knows
// better: versions would be given twice. Nothing that was taken from anybody comes back at the broker. With a new generation it is taken as it is.
func TestOlderDatabase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1)
		defer c.close()
		c.write(map[meta.Key]meta.Spec{appKey("shop"): &meta.App{}})
		copied := c.stores[0].View()
		f := c.follower("a", nil)
		defer f.Close()
		time.Sleep(2 * time.Second)
		c.write(map[meta.Key]meta.Spec{appKey("shop"): &meta.App{Disabled: true}})
		time.Sleep(2 * time.Second)
		seen := f.Snapshot().Version

		c.stop(0)
		older := meta.NewMemory(nil)
		for older.View().Version < copied.Version { // another history, which ends before
			write(t, older, map[meta.Key]meta.Spec{appKey("shop"): &meta.App{Description: fmt.Sprint(older.View().Version)}})
		}
		c.stores[0] = older
		c.start(0)
		time.Sleep(10 * time.Second)
		for range 3 {
			_, err := c.nodes[0].ApplyObjects(context.Background(), one(&wire.ObjectWrite{Object: object(appKey("new"), `{}`), Any: true}))
			wantCode(t, err, wire.CodeMetadataAway)
			_, err = c.nodes[0].CreateTopic(context.Background(), &wire.CreateTopicRequest{Topic: "new", Partitions: 1})
			wantCode(t, err, wire.CodeMetadataAway)
		}
		if r, err := c.nodes[0].ListNodes(context.Background(), &wire.ListNodesRequest{}); err != nil || !strings.Contains(r.Database, "it went back") {
			t.Errorf("the state of the database is %q, %v", r.GetDatabase(), err)
		}
		if s := f.Snapshot(); s.Version != seen || !s.App(meta.NamespaceDefault, "shop").Disabled {
			t.Errorf("the broker has version %d, %+v", s.Version, s.App(meta.NamespaceDefault, "shop"))
		}
		if _, err := c.nodes[0].NewGeneration(context.Background(), &wire.NewGenerationRequest{Reason: "restored"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if _, err := c.nodes[0].ApplyObjects(context.Background(), one(&wire.ObjectWrite{Object: object(appKey("new"), `{}`), Any: true})); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if r, err := c.nodes[0].ListNodes(context.Background(), &wire.ListNodesRequest{}); err != nil || r.Database != "ok" {
			t.Errorf("with a new generation the state of the database is %q, %v", r.GetDatabase(), err)
		}
		if s := f.Snapshot(); s.App(meta.NamespaceDefault, "new") == nil || s.App(meta.NamespaceDefault, "shop").Disabled {
			t.Errorf("the broker has not what the new generation says: version %d", s.Version)
		}
	})
}
