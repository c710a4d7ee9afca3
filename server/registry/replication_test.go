package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/server/term"
	"github.com/jmqio/jmq/wire"
)

// copyOf is a broker of a test, as it says in heartbeats what it has.
type copyOf struct {
	*Follower
	down, failed atomic.Bool
	mu           sync.Mutex
	status       *wire.ReplicaStatus
}

// say changes what the broker says from its next heartbeat on.
func (c *copyOf) say(change func(*wire.ReplicaStatus)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := proto.Clone(c.status).(*wire.ReplicaStatus)
	change(s)
	c.status = s
}

func (c *copyOf) said() *wire.ReplicaStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status
}

func (c *copyOf) member(name string) term.Member {
	return term.Member{Broker: name, Boot: c.status.Boot, Store: c.status.Store}
}

// replica starts a broker of broker group "g" that has store STORE-NAME in boot BOOT-NAME.
func (c *cluster) replica(name string, slave bool) *copyOf {
	r := &copyOf{status: &wire.ReplicaStatus{Store: "store-" + name, Boot: "boot-" + name, Role: "waiting"}}
	r.Follower = c.follower(name, func(o *FollowerOptions) {
		self := o.Self
		o.Self = func() *wire.HeartbeatRequest {
			h := self()
			r.mu.Lock()
			defer r.mu.Unlock()
			h.BrokerGroup, h.Slave, h.Replica = "g", slave, r.status
			if r.failed.Load() {
				h.State = "failed"
			}
			return h
		}
	})
	return r
}

// rest lets nodes and brokers speak for a while.
func rest(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// askRow is a compare-and-set by a node itself.
func askRow(n *Node, a term.Ask) (term.Row, bool, error) {
	b, err := json.Marshal(a)
	if err != nil {
		panic(err)
	}
	r, err := n.ChangeReplication(context.Background(), &wire.ChangeReplicationRequest{BrokerGroup: "g", Ask: b})
	if err != nil {
		return term.Row{}, false, err
	}
	var row term.Row
	if err := json.Unmarshal(r.Row, &row); err != nil {
		panic(err)
	}
	return row, r.Changed, nil
}

func (c *cluster) row(t *testing.T) term.Row {
	t.Helper()
	r := c.stores[0].View().Replication("g")
	if r == nil {
		t.Fatal("broker group g has no row")
	}
	return term.Row(*r)
}

// routeOf is the brokers of broker group g as a topic's route has them: the master is marked.
func routeOf(t *testing.T, f *Feed) string {
	t.Helper()
	r, err := f.Route(context.Background(), &wire.RouteRequest{Topic: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("%d", r.Partitions[0].State)
	for _, b := range r.BrokerGroups[0].Brokers {
		text += " " + b.Broker
		if !b.Slave {
			text += "*"
		}
		if b.Away {
			text += "-"
		}
	}
	return text
}

// TestFirstMaster shows that the first broker that is not configured as slave becomes master of term 1, by one of two nodes only, that
// whoever comes later does not, and that routes have the master first.
func TestFirstMaster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2)
		defer c.close()
		a := c.replica("a", true)
		defer a.Close()
		rest(2 * time.Second)
		if c.stores[0].View().Replication("g") != nil {
			t.Fatal("one that is configured as slave became master")
		}
		c.write(map[meta.Key]meta.Spec{topicKey("orders"): &meta.Topic{Partitions: 2, BrokerGroups: []string{"g"}, Durability: meta.DurabilityReplicated}})
		b := c.replica("b", false)
		defer b.Close()
		rest(2 * time.Second)
		d := c.replica("d", false)
		defer d.Close()
		rest(2 * time.Second)
		row := c.row(t)
		if row.Term != 1 || row.Master != b.member("b") || row.Change != 1 || row.Generation != 1 {
			t.Fatalf("%+v", row)
		}
		for i, f := range []*Feed{c.nodes[0].Feed, c.nodes[1].Feed, a.Feed} {
			if got := routeOf(t, f); got != "0 b* a d" {
				t.Fatalf("%d: route %s", i, got)
			}
		}
		entries, _, err := c.stores[0].Audit(t.Context(), meta.AuditQuery{Key: rowKey("g")})
		if err != nil || len(entries) != 1 || entries[0].By.Name != "registry" || entries[0].Change != meta.ChangeCreated {
			t.Fatalf("%v %+v", err, entries)
		}
	})
}

// TestCompareAndSet shows that only the named master's question about the row as it is changes it, that each one that does raises the count,
// and that one which does not is answered with the row: late ones, repeated ones, those of others, and one of a node that has read less.
func TestCompareAndSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2)
		defer c.close()
		a, b := c.replica("a", false), c.replica("b", true)
		defer a.Close()
		defer b.Close()
		rest(2 * time.Second)
		with, without := []term.Member{b.member("b")}, []term.Member(nil)
		one := term.Ask{Master: a.member("a"), Term: 1, Change: 1, Set: with}
		row, changed, err := askRow(c.nodes[0], one)
		if err != nil || !changed || row.Change != 2 || !slices.Equal(row.Set, with) {
			t.Fatalf("%+v %v %v", row, changed, err)
		}
		// The same again comes late, and from the other node: it changes nothing, and is told what is.
		for _, n := range c.nodes {
			if row, changed, err := askRow(n, one); err != nil || changed || row.Change != 2 {
				t.Fatalf("late: %+v %v %v", row, changed, err)
			}
		}
		// Another one, that changes nothing else, raises the count too: what was sent before it is settled.
		if row, changed, err := askRow(c.nodes[1], term.Ask{Master: a.member("a"), Term: 1, Change: 2, Set: with}); err != nil || !changed || row.Change != 3 {
			t.Fatalf("%+v %v %v", row, changed, err)
		}
		if row, changed, err := askRow(c.nodes[0], term.Ask{Master: a.member("a"), Term: 1, Change: 2, Set: without}); err != nil || changed || row.Change != 3 || len(row.Set) != 1 {
			t.Fatalf("reordered: %+v %v %v", row, changed, err)
		}
		if row, changed, err := askRow(c.nodes[0], term.Ask{Master: b.member("b"), Term: 1, Change: 3, Set: without}); err != nil || changed || len(row.Set) != 1 {
			t.Fatalf("of another broker: %+v %v %v", row, changed, err)
		}
		// A master knows more than a node has read: that node says so rather than what was.
		if _, _, err := askRow(c.nodes[0], term.Ask{Master: a.member("a"), Term: 1, Change: 9, Set: without}); wire.CodeOf(err) != wire.CodeMetadataAway {
			t.Fatal(err)
		}
		c.stores[0].Fail(errors.New("cable"))
		if _, _, err := askRow(c.nodes[0], term.Ask{Master: a.member("a"), Term: 1, Change: 3, Set: without}); wire.CodeOf(err) != wire.CodeMetadataAway {
			t.Fatal(err)
		}
		c.stores[0].Fail(nil)
		if row := c.row(t); row.Change != 3 || len(row.Set) != 1 {
			t.Fatalf("%+v", row)
		}
		// A certificate is of one broker.
		other := wire.WithPeer(t.Context(), &wire.Peer{Principal: wire.Principal{Kind: wire.PrincipalNode, Name: "b"}})
		question, _ := json.Marshal(term.Ask{Master: a.member("a"), Term: 1, Change: 3})
		if _, err := c.nodes[0].ChangeReplication(other, &wire.ChangeReplicationRequest{BrokerGroup: "g", Ask: question}); wire.CodeOf(err) != wire.CodeForbidden {
			t.Fatal(err)
		}
		// By the connection that a broker has anyway.
		r, err := a.ChangeRow(t.Context(), &wire.ChangeReplicationRequest{BrokerGroup: "g", Ask: question})
		if err != nil || !r.Changed {
			t.Fatalf("%v %v", r, err)
		}
		// Which is not for its clients: who may not ask the registry may not ask it through a broker.
		for _, asker := range []wire.Principal{{Kind: wire.PrincipalApp, Name: "app"}, {Kind: wire.PrincipalUser, Name: "admin"}, {Kind: wire.PrincipalNode, Name: "b"}} {
			question, _ := json.Marshal(term.Ask{Master: a.member("a"), Term: 1, Change: 4, Set: without})
			_, err := wire.Registry(a.Follower).ChangeReplication(wire.WithPeer(t.Context(), &wire.Peer{Principal: asker}), &wire.ChangeReplicationRequest{BrokerGroup: "g", Ask: question})
			if row := c.row(t); wire.CodeOf(err) != wire.CodeRoleElsewhere || row.Change != 4 {
				t.Fatalf("%v: %v, row %+v", asker, err, row)
			}
		}
	})
}

// unanswered is a store whose next commit is made and not answered.
type unanswered struct {
	*meta.Memory
	next atomic.Bool
}

func (u *unanswered) Update(ctx context.Context, c meta.Change) (*meta.Snapshot, error) {
	s, err := u.Memory.Update(ctx, c)
	if u.next.CompareAndSwap(true, false) && err == nil {
		return nil, wire.Errorf(wire.CodeUnknown, "the connection was lost")
	}
	return s, err
}

// TestLostAnswer shows that a compare-and-set whose answer was lost is told as unknown, and that the same question again changes nothing and is told what the first one did.
func TestLostAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1)
		defer c.close()
		a := c.replica("a", false)
		defer a.Close()
		rest(2 * time.Second)
		store := &unanswered{Memory: c.stores[0].Another()}
		n, err := NewNode(NodeOptions{Store: store, Self: func() *wire.HeartbeatRequest {
			return &wire.HeartbeatRequest{Node: "registry-x", Boot: "x", Roles: []string{RoleRegistry}}
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		rest(time.Second)
		set := []term.Member{{Broker: "s", Boot: "b", Store: "s"}}
		one := term.Ask{Master: a.member("a"), Term: 1, Change: 1, Set: set}
		store.next.Store(true)
		if _, _, err := askRow(n, one); wire.CodeOf(err) != wire.CodeUnknown {
			t.Fatal(err)
		}
		if row, changed, err := askRow(n, one); err != nil || changed || row.Change != 2 || !slices.Equal(row.Set, set) {
			t.Fatalf("%+v %v %v", row, changed, err)
		}
	})
}

// TestRacing shows that of two nodes over one database each compare-and-set of one row is carried out once, whichever is asked.
func TestRacing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2)
		defer c.close()
		a := c.replica("a", false)
		defer a.Close()
		rest(2 * time.Second)
		m := a.member("a")
		for round := range 20 {
			was := c.row(t)
			var won int
			var mu sync.Mutex
			var all sync.WaitGroup
			for i := range 4 {
				all.Go(func() {
					set := []term.Member{{Broker: fmt.Sprint("s", i), Boot: "b", Store: "s"}}
					row, changed, err := askRow(c.nodes[i%2], term.Ask{Master: m, Term: 1, Change: was.Change, Set: set})
					if err != nil || row.Change != was.Change+1 || changed != slices.Equal(row.Set, set) {
						t.Errorf("round %d: %+v %v %v", round, row, changed, err)
					}
					mu.Lock()
					defer mu.Unlock()
					if changed {
						won++
					}
				})
			}
			all.Wait()
			if won != 1 {
				t.Fatalf("round %d: %d of 4 changed the row", round, won)
			}
		}
	})
}
