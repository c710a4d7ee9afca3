package registry

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/server/term"
	"github.com/jmqio/jmq/wire"
)

func epoch(term, start uint64) uint64 { return term<<32 | start }

// trio starts brokers a, b and d of broker group g, of which a is master of term 1 in epoch 1.1, and b, d follow it up to position 1000.
func trio(t *testing.T, c *cluster, mode string) (a, b, d *copyOf) {
	t.Helper()
	c.write(map[meta.Key]meta.Spec{groupKey("g"): &meta.BrokerGroup{Mode: mode}})
	c.write(map[meta.Key]meta.Spec{topicKey("orders"): &meta.Topic{Partitions: 2, BrokerGroups: []string{"g"}}})
	a = c.replica("a", false)
	rest(2 * time.Second)
	b, d = c.replica("b", true), c.replica("d", true)
	for _, r := range []*copyOf{a, b, d} {
		r.say(func(s *wire.ReplicaStatus) {
			s.Role, s.Epoch, s.SeenTerm, s.End, s.Committed = "slave", epoch(1, 1), 1, 1000, 900
		})
	}
	a.say(func(s *wire.ReplicaStatus) {
		s.Role = "master"
		s.Slaves = []*wire.SlaveStatus{{Broker: "b", InSync: true, Acked: 1000, State: "in-sync"}, {Broker: "d", InSync: true, Acked: 1000, State: "in-sync"}}
	})
	rest(2 * time.Second)
	c.meet = func(address string, r *wire.MeetRequest) (*wire.MeetResponse, error) {
		x := map[string]*copyOf{"a:50088": a, "b:50088": b, "d:50088": d}[address]
		if x.down.Load() {
			return nil, errors.New("connection refused")
		}
		x.say(func(s *wire.ReplicaStatus) {
			if s.SeenTerm < r.Term {
				s.SeenTerm, s.Role = r.Term, "waiting"
			}
		})
		return &wire.MeetResponse{Status: x.said()}, nil
	}
	return a, b, d
}

// set has a's set be these.
func (c *cluster) set(t *testing.T, n *Node, master term.Member, members ...term.Member) {
	t.Helper()
	row := c.row(t)
	if now, changed, err := askRow(n, term.Ask{Master: master, Term: row.Term, Change: row.Change, Set: members}); err != nil || !changed {
		t.Fatalf("%+v %v", now, err)
	}
}

// die ends a broker without a word.
func (c *copyOf) die() {
	c.down.Store(true)
	c.Close()
}

func (c *cluster) operate(t *testing.T, r *wire.BrokerGroupRequest) *wire.BrokerGroupResponse {
	t.Helper()
	r.BrokerGroup = "g"
	answer, err := c.nodes[0].BrokerGroup(t.Context(), r)
	if err != nil {
		t.Fatalf("%v: %v", r, err)
	}
	return answer
}

func conditionOf(t *testing.T, n *Node) string {
	t.Helper()
	r, err := n.BrokerGroup(t.Context(), &wire.BrokerGroupRequest{Action: "status", BrokerGroup: "g"})
	if err != nil || len(r.Groups) != 1 {
		t.Fatalf("%v %v", r, err)
	}
	return r.Groups[0].Condition
}

// TestPromotion shows that the most complete member of an auto broker group's set is promoted 3 s after its master fell silent and not before,
// with its boot and store, in a term that is higher than any that was met, by one of two nodes, and that a fixed one waits.
func TestPromotion(t *testing.T) {
	for _, mode := range []string{meta.BrokerGroupAuto, meta.BrokerGroupFixed} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, 2)
			defer c.close()
			a, b, d := trio(t, c, mode)
			defer b.Close()
			defer d.Close()
			c.set(t, c.nodes[1], a.member("a"), b.member("b"), d.member("d"))
			d.say(func(s *wire.ReplicaStatus) { s.End, s.SeenTerm = 1200, 4 })
			rest(500 * time.Millisecond)
			a.die()
			rest(2500 * time.Millisecond)
			if row := c.row(t); row.Master.Broker != "a" {
				t.Fatalf("%s after 2.5 s: %+v", mode, row)
			}
			rest(1500 * time.Millisecond)
			row := c.row(t)
			if mode == meta.BrokerGroupFixed {
				if row.Master.Broker != "a" || row.Term != 1 {
					t.Fatalf("%+v", row)
				}
				rest(6 * time.Second)
				if got := routeOf(t, c.nodes[0].Feed); got != "0 a*- b d" {
					t.Fatal(got) // the last broker group stays
				}
				if got := conditionOf(t, c.nodes[0]); !strings.HasPrefix(got, "no-master: broker a, its master, is away, since ") {
					t.Fatal(got)
				}
				return
			}
			if row.Term != 5 || row.Master != d.member("d") || row.Forced || !slices.Equal(row.Set, []term.Member{b.member("b")}) {
				t.Fatalf("%+v", row)
			}
			d.say(func(s *wire.ReplicaStatus) {
				s.Role, s.Epoch, s.SeenTerm = "master", epoch(5, 1), 5
				s.Slaves = []*wire.SlaveStatus{{Broker: "b", State: "catching-up", LagBytes: 7}}
			})
			rest(2 * time.Second)
			if got := routeOf(t, c.nodes[1].Feed); got != "0 d* a b" {
				t.Fatal(got)
			}
			if got, _, _ := strings.Cut(conditionOf(t, c.nodes[0]), ", since"); got != "degraded: 0 of 2 slaves in sync; broker a is away, broker b is catching-up, 7 bytes behind" {
				t.Fatal(got)
			}
			// The old master's questions are of a term that is over.
			if now, changed, err := askRow(c.nodes[0], term.Ask{Master: a.member("a"), Term: 1, Change: row.Change}); err != nil || changed || now.Term != 5 {
				t.Fatalf("%+v %v %v", now, changed, err)
			}
			entries, _, err := c.stores[0].Audit(t.Context(), meta.AuditQuery{Key: rowKey("g"), Limit: 1})
			if err != nil || entries[0].By.Name != "registry" || entries[0].Reason != "its master a is silent for 3s" {
				t.Fatalf("%v %+v", err, entries)
			}
		})
	}
}

// TestNoPromotion shows who is not promoted: nobody while the database is away, however long the master is silent; no member that is of another boot or
// store than it had when it joined, that ends below what is known to be committed, or that refuses; and nobody who is no member.
func TestNoPromotion(t *testing.T) {
	for name, x := range map[string]func(c *cluster, b *copyOf){
		"database": func(c *cluster, b *copyOf) {
			for _, s := range c.stores {
				s.Fail(errors.New("cable"))
			}
		},
		"boot":    func(c *cluster, b *copyOf) { b.say(func(s *wire.ReplicaStatus) { s.Boot = "another" }) },
		"store":   func(c *cluster, b *copyOf) { b.say(func(s *wire.ReplicaStatus) { s.Store = "another" }) },
		"short":   func(c *cluster, b *copyOf) { b.say(func(s *wire.ReplicaStatus) { s.End = 899 }) },
		"refused": func(c *cluster, b *copyOf) { b.say(func(s *wire.ReplicaStatus) { s.Refused = true }) },
		"away":    func(c *cluster, b *copyOf) { b.die() },
		"nobody":  func(c *cluster, b *copyOf) {},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, 2)
			defer c.close()
			a, b, d := trio(t, c, meta.BrokerGroupAuto)
			defer d.Close()
			defer b.Close()
			if name != "nobody" {
				c.set(t, c.nodes[0], a.member("a"), b.member("b"))
			}
			x(c, b)
			rest(2 * time.Second)
			a.die()
			rest(8 * time.Second)
			for _, s := range c.stores {
				s.Fail(nil)
			}
			if name == "database" { // silence begins when it is there again
				rest(2 * time.Second)
			}
			row := c.row(t)
			if row.Master.Broker != "a" || row.Term != 1 {
				t.Fatalf("%s: %+v", name, row)
			}
			if want := map[string]int{"boot": 0, "store": 0, "nobody": 0}; len(row.Set) != 1 {
				if _, ok := want[name]; !ok {
					t.Fatalf("%s: %+v", name, row)
				}
			} else if _, ok := want[name]; ok {
				t.Fatalf("%s stays in the set: %+v", name, row)
			}
			if name == "database" {
				rest(4 * time.Second)
				if row := c.row(t); row.Master.Broker != "b" {
					t.Fatalf("%+v", row)
				}
			}
		})
	}
}

// TestFailedMaster shows that an auto master whose journal failed, and one that lives but is no master for 10 s, are followed by another.
func TestFailedMaster(t *testing.T) {
	for _, failed := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, 1)
			defer c.close()
			a, b, d := trio(t, c, meta.BrokerGroupAuto)
			defer a.Close()
			defer b.Close()
			defer d.Close()
			c.set(t, c.nodes[0], a.member("a"), b.member("b"))
			wait := 8 * time.Second
			if a.failed.Store(failed); failed {
				wait = 2 * time.Second
			} else {
				a.say(func(s *wire.ReplicaStatus) { s.Role, s.Why = "waiting", "its store is new" })
				rest(wait)
				if got, _, _ := strings.Cut(conditionOf(t, c.nodes[0]), ", since"); got != "waiting: broker a, its master, does not serve yet: its store is new" {
					t.Fatal(got)
				}
				if row := c.row(t); row.Master.Broker != "a" {
					t.Fatalf("%+v", row)
				}
				wait = 4 * time.Second
			}
			rest(wait)
			if row := c.row(t); row.Master.Broker != "b" || row.Term != 2 {
				t.Fatalf("%v: %+v", failed, row)
			}
		})
	}
}

// TestOldHeartbeat shows that a heartbeat of a boot before, which comes late, takes nobody out of the set, and promotes nobody.
func TestOldHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2)
		defer c.close()
		a, b, d := trio(t, c, meta.BrokerGroupAuto)
		defer a.Close()
		defer d.Close()
		old := proto.Clone(b.o.Self()).(*wire.HeartbeatRequest)
		b.Close()
		b = c.replica("b", true)
		defer b.Close()
		b.say(func(s *wire.ReplicaStatus) {
			s.Boot, s.Role, s.Epoch, s.SeenTerm, s.End, s.Committed = "boot-b2", "slave", epoch(1, 1), 1, 1000, 900
		})
		rest(2 * time.Second)
		c.set(t, c.nodes[0], a.member("a"), b.member("b"))
		for range 5 {
			for _, n := range c.nodes {
				if _, err := n.Heartbeat(t.Context(), old); err == nil {
					t.Fatal("the old boot is heard")
				}
			}
			rest(2 * time.Second)
		}
		if row := c.row(t); row.Master.Broker != "a" || !slices.Equal(row.Set, []term.Member{b.member("b")}) {
			t.Fatalf("%+v", row)
		}
	})
}

// TestHigherTerm shows that a master of a higher term than the row's is entered, and that a named master which met one gets a higher one, after a while.
func TestHigherTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2)
		defer c.close()
		a, b, d := trio(t, c, meta.BrokerGroupFixed)
		defer a.Close()
		defer b.Close()
		defer d.Close()
		a.say(func(s *wire.ReplicaStatus) { s.Role, s.SeenTerm = "waiting", 3 })
		rest(3 * time.Second)
		if row := c.row(t); row.Term != 1 {
			t.Fatalf("%+v", row)
		}
		rest(5 * time.Second)
		if row := c.row(t); row.Term != 4 || row.Master != a.member("a") || row.Forced {
			t.Fatalf("%+v", row)
		}
		d.say(func(s *wire.ReplicaStatus) { s.Role, s.Epoch, s.SeenTerm = "master", epoch(9, 2), 9 })
		rest(2 * time.Second)
		if row := c.row(t); row.Term != 9 || row.Master != d.member("d") || len(row.Set) != 0 {
			t.Fatalf("%+v", row)
		}
	})
}

// TestNewGeneration shows that after a new generation nothing of a broker group is answered or granted until all of its brokers have reported in it,
// or an operator says who is gone, and that the master of the highest term, or else the most complete broker, is named then.
func TestNewGeneration(t *testing.T) {
	for _, gone := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, 2)
			defer c.close()
			a, b, d := trio(t, c, meta.BrokerGroupAuto)
			defer a.Close()
			defer d.Close()
			c.set(t, c.nodes[0], a.member("a"), b.member("b"), d.member("d"))
			b.die()
			a.say(func(s *wire.ReplicaStatus) { s.Role, s.SeenTerm = "waiting", 2 }) // a promotion that is lost with the database
			if _, err := c.nodes[0].NewGeneration(t.Context(), &wire.NewGenerationRequest{Reason: "restored"}); err != nil {
				t.Fatal(err)
			}
			rest(12 * time.Second)
			row := c.row(t)
			if row.Term != 1 || row.Generation != 1 {
				t.Fatalf("%+v", row)
			}
			if _, _, err := askRow(c.nodes[0], term.Ask{Master: a.member("a"), Term: 1, Change: row.Change}); wire.CodeOf(err) != wire.CodeMetadataAway {
				t.Fatal(err)
			}
			if got := conditionOf(t, c.nodes[1]); !strings.HasPrefix(got, "waiting: the metadata is of a new generation, and of its brokers have not reported: b, since ") {
				t.Fatal(got)
			}
			d.say(func(s *wire.ReplicaStatus) { s.End = 1100 })
			rest(2 * time.Second)
			if gone {
				if _, err := c.nodes[0].BrokerGroup(t.Context(), &wire.BrokerGroupRequest{BrokerGroup: "g", Action: "promote"}); wire.CodeOf(err) != wire.CodeInUse || !strings.Contains(err.Error(), "--off b") {
					t.Fatal(err)
				}
				if r := c.operate(t, &wire.BrokerGroupRequest{Action: "promote", Off: []string{"b"}, Force: true, Reason: "b burned"}); !r.Done || len(r.Lost) != 1 || !strings.HasPrefix(r.Lost[0], "broker b is off") {
					t.Fatal(r)
				}
			} else {
				b = c.replica("b", true)
				defer b.Close()
				b.say(func(s *wire.ReplicaStatus) { s.Role, s.Epoch, s.SeenTerm, s.End = "slave", epoch(1, 1), 1, 1000 })
				rest(2 * time.Second)
			}
			if row = c.row(t); row.Generation != 2 || row.Term != 3 || row.Master != d.member("d") || len(row.Set) != 0 {
				t.Fatalf("%v: %+v", gone, row)
			}
		})
	}
}

// TestLostRow shows that a row that was lost is made anew by a master that lives, by the only broker after a while, and else by an operator only: the broker that has
// most may not be there yet.
func TestLostRow(t *testing.T) {
	for _, how := range []string{"master", "operator", "alone"} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, 2)
			defer c.close()
			a, b, d := trio(t, c, meta.BrokerGroupAuto)
			defer a.Close()
			defer b.Close()
			defer d.Close()
			if how != "master" {
				a.say(func(s *wire.ReplicaStatus) { s.Role, s.End = "waiting", 1010 })
			}
			lost := map[meta.Key]meta.Spec{rowKey("g"): nil}
			if how == "alone" {
				b.die()
				d.die()
				rest(time.Second)
				lost[brokerKey("b")], lost[brokerKey("d")] = nil, nil
			}
			rest(time.Second)
			c.write(lost)
			rest(20 * time.Second)
			r := c.stores[0].View().Replication("g")
			if how == "master" {
				if r == nil || r.Term != 1 || r.Master != a.member("a") {
					t.Fatalf("%+v", r)
				}
				return
			}
			if r != nil {
				t.Fatalf("%s: %+v", how, r)
			}
			if got := conditionOf(t, c.nodes[0]); !strings.Contains(got, "jmq broker-group promote g names the one that has most") {
				t.Fatal(got)
			}
			if how == "operator" {
				rest(20 * time.Second)
				c.operate(t, &wire.BrokerGroupRequest{Action: "promote"})
			}
			rest(20 * time.Second)
			if row := c.row(t); row.Term != 2 || row.Master != a.member("a") {
				t.Fatalf("%s: %+v", how, row)
			}
		})
	}
}

// TestForce shows a promotion by an operator: it says what may be lost and does nothing without force, it needs everybody's promise or the word that he is off,
// and the row that it writes is forced and above all promises.
func TestForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2)
		defer c.close()
		a, b, d := trio(t, c, meta.BrokerGroupFixed)
		defer a.Close()
		defer b.Close()
		defer d.Close()
		a.say(func(s *wire.ReplicaStatus) {
			s.End, s.Committed = 1500, 1300
			s.Slaves = []*wire.SlaveStatus{{Broker: "b", InSync: true, LagBytes: 3, LagMs: 12}}
		})
		b.say(func(s *wire.ReplicaStatus) { s.End = 1200 })
		rest(2 * time.Second)
		row := c.row(t)
		c.count = func(address string, from, to uint64) (Counted, error) {
			if address != "a:50088" || from != 1200 || to != 1500 {
				t.Errorf("counted at %s from %d to %d", address, from, to)
			}
			return Counted{Messages: 7, First: 1e9, Last: 3e9}, nil
		}
		want := "broker a has 300 bytes more than broker b, positions 1200 to 1500; that is 7 messages, stored from 1970-01-01T00:00:01.000Z to 1970-01-01T00:00:03.000Z; it knows some of that to be committed, so it was acknowledged; 0s ago it said that broker b is in sync, 3 bytes and 12ms behind"
		for _, dry := range []bool{true, false} {
			if r := c.operate(t, &wire.BrokerGroupRequest{Action: "promote", DryRun: dry}); r.Done || len(r.Lost) != 1 || r.Lost[0] != want {
				t.Fatalf("%v: %q", r.Done, r.Lost)
			}
		}
		if a.said().SeenTerm != 1 || c.row(t).Change != row.Change {
			t.Fatal("it was not only asked")
		}
		// Those that refuse are not taken by themselves: one must be named.
		for _, x := range []*copyOf{b, d} {
			x.say(func(s *wire.ReplicaStatus) { s.Refused = true })
		}
		rest(2 * time.Second)
		if _, err := c.nodes[0].BrokerGroup(t.Context(), &wire.BrokerGroupRequest{BrokerGroup: "g", Action: "promote"}); wire.CodeOf(err) != wire.CodeInUse || !strings.Contains(err.Error(), "b, d would not follow its master a:") || !strings.Contains(err.Error(), "promote g --to b --dry-run") {
			t.Fatal(err)
		}
		for _, x := range []*copyOf{b, d} {
			x.say(func(s *wire.ReplicaStatus) { s.Refused = false })
		}
		rest(2 * time.Second)
		a.down.Store(true)
		if _, err := c.nodes[0].BrokerGroup(t.Context(), &wire.BrokerGroupRequest{BrokerGroup: "g", Action: "promote", Force: true}); wire.CodeOf(err) != wire.CodeInUse || !strings.Contains(err.Error(), "broker a (connection refused)") {
			t.Fatal(err)
		}
		for _, r := range []*wire.BrokerGroupRequest{{Broker: "x"}, {Off: []string{"y"}}, {Broker: "b", Off: []string{"b"}}, {Broker: "a"}} {
			if r.BrokerGroup, r.Action = "g", "promote"; true {
				if _, err := c.nodes[0].BrokerGroup(t.Context(), r); err == nil {
					t.Fatalf("%v", r)
				}
			}
		}
		viewer := wire.WithPeer(t.Context(), &wire.Peer{Principal: wire.Principal{Kind: wire.PrincipalNode, Name: "b"}})
		if _, err := c.nodes[0].BrokerGroup(viewer, &wire.BrokerGroupRequest{BrokerGroup: "g", Action: "promote"}); wire.CodeOf(err) != wire.CodeForbidden {
			t.Fatal(err)
		}
		d.say(func(s *wire.ReplicaStatus) { s.SeenTerm = 6 })
		// While it is under way its master asks for another set: that row is read, and what was asked is void.
		meet := c.meet
		c.meet = func(address string, r *wire.MeetRequest) (*wire.MeetResponse, error) {
			if r.Term != 0 && address == "d:50088" {
				c.set(t, c.nodes[1], a.member("a"), d.member("d"))
			}
			return meet(address, r)
		}
		r := c.operate(t, &wire.BrokerGroupRequest{Action: "promote", Broker: "b", Off: []string{"a"}, Force: true, Reason: "a burned"})
		if !r.Done || len(r.Lost) != 2 || !strings.HasPrefix(r.Lost[0], "messages were acknowledged up to position 1300") || !strings.HasPrefix(r.Lost[1], "broker a is off: what it has that broker b has not is not known; 0s ago it said that its journal ends at position 1500, committed up to 1300: broker b ends at 1200, 300 bytes before that") {
			t.Fatal(r)
		}
		if row = c.row(t); row.Term != 8 || row.Master != b.member("b") || !row.Forced || len(row.Set) != 0 {
			t.Fatalf("%+v", row)
		}
		if d.said().SeenTerm != 7 {
			t.Fatalf("%v", d.said())
		}
		entries, _, err := c.stores[0].Audit(t.Context(), meta.AuditQuery{Key: rowKey("g"), Limit: 1})
		if err != nil || entries[0].By.Name != "local" || entries[0].Reason != "a burned" {
			t.Fatalf("%v %+v", err, entries)
		}
	})
}

// TestUnfenced shows that a promotion which meets a message between its two looks, or a broker that falls silent, ends with the master that there was named anew,
// in a term above the one that all have promised: they would wait for it else. A broker that lives is not removed.
func TestUnfenced(t *testing.T) {
	for _, silent := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, 2)
			defer c.close()
			a, b, d := trio(t, c, meta.BrokerGroupFixed)
			defer a.Close()
			defer b.Close()
			defer d.Close()
			meet := c.meet
			c.meet = func(address string, r *wire.MeetRequest) (*wire.MeetResponse, error) {
				if r.Term != 0 && address == "a:50088" {
					a.say(func(s *wire.ReplicaStatus) { s.End = 1010 })
				}
				if r.Term != 0 && address == "d:50088" && silent {
					return nil, errors.New("connection refused")
				}
				return meet(address, r)
			}
			r, err := c.nodes[0].BrokerGroup(t.Context(), &wire.BrokerGroupRequest{BrokerGroup: "g", Action: "promote", Broker: "b"})
			switch {
			case silent && (wire.CodeOf(err) != wire.CodeInUse || !strings.Contains(err.Error(), "Nothing was promoted")):
				t.Fatal(err)
			case !silent && (err != nil || r.Done || len(r.Lost) != 1 || !strings.Contains(r.Lost[0], "broker a has 10 bytes more than broker b")):
				t.Fatalf("%v, %v", r, err)
			}
			if row, promised := c.row(t), a.said().SeenTerm; row.Master != a.member("a") || promised != 2 || row.Term <= promised || row.Forced {
				t.Errorf("a promised term %d, and the row is %+v", promised, row)
			}
			if _, err := apply(c.nodes[0], t.Context(), &wire.ApplyObjectsRequest{Writes: []*wire.ObjectWrite{{Object: object(meta.Key{Kind: meta.KindBroker, Name: "b"}, ""), Any: true}}}); wire.CodeOf(err) != wire.CodeInUse {
				t.Errorf("a broker that lives is removed: %v", err)
			}
		})
	}
}

// TestPromoteOrTransfer shows that of a promotion and a transfer at once one is refused, and says why: a promotion while a living master hands over; a
// transfer that comes between the looks of a promotion, which all have promised by then; and a promotion whose broker group was handed over in between.
func TestPromoteOrTransfer(t *testing.T) {
	for _, when := range []string{"before", "between", "done between"} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, 2)
			defer c.close()
			a, b, d := trio(t, c, meta.BrokerGroupFixed)
			defer a.Close()
			defer b.Close()
			defer d.Close()
			a.say(func(s *wire.ReplicaStatus) {
				s.Slaves = []*wire.SlaveStatus{{Broker: "b", InSync: true}, {Broker: "d", InSync: true}}
			})
			rest(2 * time.Second)
			transferred := make(chan error, 1)
			transfer := func() {
				go func() {
					_, err := c.nodes[1].BrokerGroup(t.Context(), &wire.BrokerGroupRequest{BrokerGroup: "g", Action: "transfer", Broker: "b"})
					transferred <- err
				}()
				time.Sleep(300 * time.Millisecond)
			}
			meet := c.meet
			var begun atomic.Bool
			c.meet = func(address string, r *wire.MeetRequest) (*wire.MeetResponse, error) {
				if r.Term != 0 && when != "before" && address == "a:50088" && !begun.Swap(true) {
					transfer()
					row := c.row(t)
					if when == "done between" {
						if _, changed, err := askRow(c.nodes[1], term.Ask{Master: a.member("a"), Term: 1, Change: row.Change, Set: []term.Member{b.member("b"), d.member("d")}, To: "b"}); err != nil || !changed {
							t.Errorf("%v %v", changed, err)
						}
					}
				}
				return meet(address, r)
			}
			if when == "before" {
				transfer()
			}
			r, err := c.nodes[0].BrokerGroup(t.Context(), &wire.BrokerGroupRequest{BrokerGroup: "g", Action: "promote", Broker: "d", Force: true})
			other := <-transferred
			row := c.row(t)
			switch when {
			case "before":
				if wire.CodeOf(err) != wire.CodeConflict || !strings.Contains(err.Error(), "broker a, the master of broker group g, is just handing over to broker b") || other != nil || row.Term != 1 || a.said().SeenTerm != 1 {
					t.Errorf("%v, %v, %+v", err, other, row)
				}
			case "between":
				if err != nil || !r.Done || wire.CodeOf(other) != wire.CodeConflict || !strings.Contains(other.Error(), "broker d was named master of term 3 meanwhile, by a promotion") || row.Master.Broker != "d" || row.Transfer != "" {
					t.Errorf("%v, %v, %+v", err, other, row)
				}
			case "done between":
				if wire.CodeOf(err) != wire.CodeConflict || !strings.Contains(err.Error(), "nothing was promoted: broker b was named master of term") || other != nil || row.Master.Broker != "b" || row.Term < a.said().SeenTerm {
					t.Errorf("%v, %v, %+v", err, other, row)
				}
			}
		})
	}
}

// TestTold shows that what a master says to be committed is remembered: while no registry node runs, by its last heartbeat; from when it says it no more, by the
// row. A broker group that lacks it is given no master, and what was asked for names what is lost, until an operator says so.
func TestTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2)
		defer c.close()
		a, b, d := trio(t, c, meta.BrokerGroupFixed)
		defer a.Close()
		defer b.Close()
		defer d.Close()
		a.say(func(s *wire.ReplicaStatus) { s.End, s.Committed = 1500, 1400 })
		rest(2 * time.Second)
		if now, committed := a.Told(); now != 1 || committed != 1400 {
			t.Errorf("a was told %d in term %d", committed, now)
		}
		if row := c.row(t); row.Committed != 0 {
			t.Errorf("the row is written while its master says what it has: %+v", row)
		}
		c.stop(0)
		c.stop(1)
		// Its disk comes back as an older image; the others lost theirs.
		a.say(func(s *wire.ReplicaStatus) { s.Role, s.End, s.Committed, s.Slaves = "waiting", 700, 650, nil })
		for _, x := range []*copyOf{b, d} {
			x.say(func(s *wire.ReplicaStatus) {
				s.Store, s.Epoch, s.End, s.Committed, s.SeenTerm, s.Fresh = s.Store+"'", 0, 0, 0, 0, true
			})
		}
		rest(10 * time.Second)
		c.start(0)
		c.start(1)
		rest(5 * time.Second)
		if now, committed := a.Told(); now != 1 || committed != 1400 {
			t.Errorf("a was told %d in term %d", committed, now)
		}
		row := c.row(t)
		if row.Committed != 1400 {
			t.Errorf("the row is %+v", row)
		}
		if is := conditionOf(t, c.nodes[1]); !strings.HasPrefix(is, "waiting: broker a, its master, lacks messages that were acknowledged") || !strings.Contains(is, "jmq broker-group promote g --to a ") {
			t.Error(is)
		}
		other := a.member("a")
		other.Store = "another"
		if now, _, err := askRow(c.nodes[0], term.Ask{Master: other, Term: row.Term, Change: row.Change, Copied: true, End: 1399}); wire.CodeOf(err) != wire.CodeInvalid || !strings.Contains(err.Error(), "1400 is committed") {
			t.Errorf("%+v, %v", now, err)
		}
		want := []string{"messages were acknowledged up to position 1400, as their master said, and broker a ends at 700: no broker that answers has the rest"}
		if r := c.operate(t, &wire.BrokerGroupRequest{Action: "promote"}); r.Done || !slices.Equal(r.Lost, want) {
			t.Errorf("%v %q", r.Done, r.Lost)
		}
		if r := c.operate(t, &wire.BrokerGroupRequest{Action: "promote", Force: true}); !r.Done || !slices.Equal(r.Lost, want) {
			t.Errorf("%v %q", r.Done, r.Lost)
		}
		if row := c.row(t); row.Master != a.member("a") || !row.Forced || row.Committed != 0 {
			t.Errorf("the row is %+v", row)
		}
		rest(2 * time.Second)
		if now, committed := a.Told(); now != c.row(t).Term || committed != 0 {
			t.Errorf("a was told %d in term %d", committed, now)
		}
	})
}

// TestCondition shows what status says while a master is silent and not away yet; of a slave in step that will join, and of one whose disk is full; and, at every
// registry node, of two processes with one name: where both are, as long as the second one goes on.
func TestCondition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2)
		defer c.close()
		a, b, d := trio(t, c, meta.BrokerGroupFixed)
		defer b.Close()
		defer d.Close()
		condition := func(want string) {
			t.Helper()
			for i, n := range c.nodes {
				if got, _, _ := strings.Cut(conditionOf(t, n), ", since"); got != want {
					t.Fatalf("node %d: %q, want %q", i, got, want)
				}
			}
		}
		condition("ok")
		a.say(func(s *wire.ReplicaStatus) {
			s.Slaves = []*wire.SlaveStatus{{Broker: "b", State: "catching-up", JoinMs: 3001}, {Broker: "d", InSync: true}}
		})
		rest(2 * time.Second)
		condition("degraded: 1 of 2 slaves in sync; broker b joins in 4s")
		a.say(func(s *wire.ReplicaStatus) {
			s.Slaves = []*wire.SlaveStatus{{Broker: "b", InSync: true}, {Broker: "d", State: "away", LagBytes: 70}}
		})
		d.say(func(s *wire.ReplicaStatus) { s.NoRoom = "no space left on device" })
		rest(2 * time.Second)
		condition("degraded: 1 of 2 slaves in sync; broker d: no space left on device")
		a.say(func(s *wire.ReplicaStatus) {
			s.Slaves = []*wire.SlaveStatus{{Broker: "b", InSync: true}, {Broker: "d", InSync: true}}
		})
		d.say(func(s *wire.ReplicaStatus) { s.NoRoom = "" })
		rest(2 * time.Second)
		condition("ok")

		twin := func(times int) {
			t.Helper()
			for range times {
				_, err := c.nodes[1].Heartbeat(t.Context(), &wire.HeartbeatRequest{Node: "b", Boot: "twin", Roles: []string{RoleBroker}, BrokerGroup: "g", Addresses: []string{"elsewhere:1"}})
				wantCode(t, err, wire.CodeConflict)
				rest(500 * time.Millisecond)
			}
		}
		twin(1) // as a late one of a process that ended
		rest(time.Second)
		condition("ok")
		twin(8)
		condition("ok: two processes run as broker b, at b:50088 and at elsewhere:1: stop one, or give it a name of its own (node.name)")
		rest(5 * time.Second)
		condition("ok")

		// While its master starts nobody is told to promote by force, as long as a broker has what was acknowledged.
		was := a.said()
		a.say(func(s *wire.ReplicaStatus) {
			s.Role, s.End, s.Committed, s.Slaves, s.Why = "waiting", 0, 0, nil, "it starts"
		})
		rest(2 * time.Second)
		condition("waiting: broker a, its master, does not serve yet: it starts")
		a.say(func(s *wire.ReplicaStatus) {
			s.Role, s.End, s.Committed, s.Slaves, s.Why = was.Role, was.End, was.Committed, was.Slaves, ""
		})
		rest(2 * time.Second)
		condition("ok")

		a.die()
		rest(2600 * time.Millisecond)
		for _, n := range c.nodes {
			if got := conditionOf(t, n); !strings.HasPrefix(got, "silent: broker a, its master, was not heard for ") {
				t.Fatal(got)
			}
		}
		rest(2 * time.Second)
		condition("no-master: broker a, its master, is away")
	})
}

// TestTransfer shows a planned transfer: to a slave in sync only; the row asks for it, the master hands over, and the one who asked is answered then; and one that
// does not come about is given up.
func TestTransfer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2)
		defer c.close()
		a, b, d := trio(t, c, meta.BrokerGroupFixed)
		defer a.Close()
		defer b.Close()
		defer d.Close()
		a.say(func(s *wire.ReplicaStatus) {
			s.Slaves = []*wire.SlaveStatus{{Broker: "b", InSync: true, LagBytes: 9}, {Broker: "d", State: "away", LagBytes: 70}}
		})
		rest(2 * time.Second)
		if _, err := c.nodes[0].BrokerGroup(t.Context(), &wire.BrokerGroupRequest{BrokerGroup: "g", Action: "transfer", Broker: "d"}); wire.CodeOf(err) != wire.CodeInUse || !strings.Contains(err.Error(), "it is away, 70 bytes behind") {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			r, err := c.nodes[0].BrokerGroup(t.Context(), &wire.BrokerGroupRequest{BrokerGroup: "g", Action: "transfer"})
			if err == nil && !r.Done {
				err = errors.New("not done")
			}
			done <- err
		}()
		rest(2 * time.Second)
		row := c.row(t)
		if row.Transfer != "b" || row.Master.Broker != "a" {
			t.Fatalf("%+v", row)
		}
		if _, changed, err := askRow(c.nodes[1], term.Ask{Master: a.member("a"), Term: 1, Change: row.Change, Set: []term.Member{b.member("b")}, To: "b"}); err != nil || !changed {
			t.Fatal(err)
		}
		rest(2 * time.Second)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if row = c.row(t); row.Master != b.member("b") || row.Transfer != "" || row.Term != 2 {
			t.Fatalf("%+v", row)
		}
		b.say(func(s *wire.ReplicaStatus) {
			s.Role, s.Epoch, s.SeenTerm = "master", epoch(2, 1), 2
			s.Slaves = []*wire.SlaveStatus{{Broker: "a", InSync: true}}
		})
		rest(2 * time.Second)
		if r, err := c.nodes[1].BrokerGroup(t.Context(), &wire.BrokerGroupRequest{BrokerGroup: "g", Action: "transfer", Broker: "a"}); err != nil || r.Done {
			t.Fatalf("%v %v", r, err)
		}
		if row = c.row(t); row.Transfer != "a" {
			t.Fatalf("%+v", row)
		}
		rest(30 * time.Second)
		if row = c.row(t); row.Master.Broker != "b" || row.Transfer != "" || row.Term != 2 {
			t.Fatalf("%+v", row)
		}
	})
}

// TestDrain shows that a drained broker group takes no messages, that it says what is left, that a topic leaves it only when nothing of it is, and that it becomes
// active again.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2)
		defer c.close()
		a, b, d := trio(t, c, meta.BrokerGroupFixed)
		defer a.Close()
		defer b.Close()
		defer d.Close()
		if _, err := c.nodes[0].BrokerGroup(t.Context(), &wire.BrokerGroupRequest{BrokerGroup: "g", Action: "drain"}); wire.CodeOf(err) != wire.CodeInUse || !strings.Contains(err.Error(), "topic orders") {
			t.Fatal(err)
		}
		other := c.follower("other", nil)
		defer other.Close()
		rest(2 * time.Second)
		c.write(map[meta.Key]meta.Spec{topicKey("orders"): &meta.Topic{Partitions: 2, BrokerGroups: []string{"g", "group-other"}}})
		leave := func() error {
			_, err := c.nodes[0].ApplyObjects(t.Context(), &wire.ApplyObjectsRequest{Writes: []*wire.ObjectWrite{{Any: true, Object: &wire.Object{
				Kind: "topic", Namespace: "default", Name: "orders", Spec: []byte(`{"partitions":2,"brokerGroups":["group-other"]}`),
			}}}})
			return err
		}
		left := []*wire.GroupSummary{{Topic: "orders", Group: "pay", Lag: 12}, {Topic: "orders", Group: "pay", Lag: 5, Namespace: 3}}
		c.groups = func(address string) (*wire.ListGroupsResponse, error) {
			if address != "a:50088" {
				return nil, fmt.Errorf("%s is asked", address)
			}
			return &wire.ListGroupsResponse{Groups: left}, nil
		}
		if err := leave(); wire.CodeOf(err) != wire.CodeInUse || !strings.Contains(err.Error(), "jmq broker-group drain g first") {
			t.Fatal(err)
		}
		r := c.operate(t, &wire.BrokerGroupRequest{Action: "drain"})
		if fmt.Sprint(r.Left) != "[topic orders: group pay has not consumed 12 messages topic orders (namespace number 3): group pay has not consumed 5 messages]" || r.Done || r.Groups[0].State != "draining" {
			t.Fatal(r)
		}
		if got := fmt.Sprint(states(t, c.nodes[0].Feed, "orders")); got != "map[g:2 group-other:0]" {
			t.Fatal(got)
		}
		if err := leave(); wire.CodeOf(err) != wire.CodeInUse || !strings.Contains(err.Error(), "group pay has not consumed 12 of its messages there") {
			t.Fatal(err)
		}
		if r := c.operate(t, &wire.BrokerGroupRequest{Action: "activate"}); !r.Done || r.Groups[0].State != "active" {
			t.Fatal(r)
		}
		c.operate(t, &wire.BrokerGroupRequest{Action: "drain"})
		left = left[1:] // of another namespace
		if err := leave(); err != nil {
			t.Fatal(err)
		}
		left = nil
		if r := c.operate(t, &wire.BrokerGroupRequest{Action: "drain"}); !r.Done || len(r.Left) != 0 {
			t.Fatal(r)
		}
	})
}

// TestMode shows that a broker group becomes auto only while its master serves, in a new term with an empty set, and that an answer about the old one counts no more.
func TestMode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1)
		defer c.close()
		a, b, d := trio(t, c, meta.BrokerGroupFixed)
		defer b.Close()
		defer d.Close()
		c.set(t, c.nodes[0], a.member("a"), b.member("b"))
		row := c.row(t)
		become := func(mode string) error {
			_, err := c.nodes[0].ApplyObjects(wire.WithPeer(t.Context(), &wire.Peer{}), &wire.ApplyObjectsRequest{Writes: []*wire.ObjectWrite{{Any: true, Object: &wire.Object{
				Kind: "broker-group", Name: "g", Spec: []byte(`{"mode":"` + mode + `"}`),
			}}}})
			return err
		}
		a.say(func(s *wire.ReplicaStatus) { s.Role = "waiting" })
		rest(2 * time.Second)
		if err := become("auto"); wire.CodeOf(err) != wire.CodeInUse {
			t.Fatal(err)
		}
		a.say(func(s *wire.ReplicaStatus) { s.Role = "master" })
		rest(2 * time.Second)
		if err := become("auto"); err != nil {
			t.Fatal(err)
		}
		if now := c.row(t); now.Term != 2 || now.Master != row.Master || len(now.Set) != 0 || c.stores[0].View().BrokerGroup("g").Mode != "auto" {
			t.Fatalf("%+v", now)
		}
		if now, changed, err := askRow(c.nodes[0], term.Ask{Master: a.member("a"), Term: 1, Change: row.Change, Set: row.Set}); err != nil || changed || now.Term != 2 {
			t.Fatalf("%+v %v %v", now, changed, err)
		}
		a.die()
		rest(6 * time.Second)
		if now := c.row(t); now.Term != 2 {
			t.Fatalf("%+v", now)
		}
		if err := become("fixed"); err != nil {
			t.Fatal(err)
		}
	})
}
