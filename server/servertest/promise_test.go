package servertest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/wire"
)

// The tests of this file hold times that are promised. They run beside no other test of the package, brokers store in memory, and what the machine
// itself stood still meanwhile is taken off.

// stalls is when this process got no time from its machine.
type stalls struct {
	mu  sync.Mutex
	all [][2]time.Time // one after the other
}

// watchStalls looks from now on, until the test ends, with one goroutine: one for each processor would take off nearly all of the time of a machine
// that has much to do.
func watchStalls(t testing.TB) *stalls {
	const nap, least = 2 * time.Millisecond, 8 * time.Millisecond
	s := &stalls{}
	var watching sync.WaitGroup
	stop := make(chan struct{})
	watching.Go(func() {
		for {
			due := time.Now().Add(nap)
			select {
			case <-stop:
				return
			case <-time.After(nap):
			}
			if now := time.Now(); now.Sub(due) > least {
				s.mu.Lock()
				s.all = append(s.all, [2]time.Time{due, now})
				s.mu.Unlock()
			}
		}
	})
	t.Cleanup(func() {
		close(stop)
		watching.Wait()
	})
	return s
}

// net returns how long it was from one moment to another, without what the machine stood still.
func (s *stalls) net(from, to time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	took := to.Sub(from)
	for _, x := range s.all {
		a, b := x[0], x[1]
		if a.Before(from) {
			a = from
		}
		if b.After(to) {
			b = to
		}
		took -= max(b.Sub(a), 0)
	}
	return took
}

// sum returns how long the machine stood still in all.
func (s *stalls) sum() (all time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.all {
		all += x[1].Sub(x[0])
	}
	return all
}

// TestStallsTakenOff: of what the machine stood still that counts which is within.
func TestStallsTakenOff(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(100, int64(ms)*1e6) }
	s := &stalls{all: [][2]time.Time{{at(10), at(20)}, {at(20), at(40)}, {at(90), at(120)}}}
	for _, x := range []struct{ from, to, want int }{{0, 100, 60}, {0, 9, 9}, {25, 35, 0}, {35, 95, 50}, {200, 300, 100}} {
		if got := s.net(at(x.from), at(x.to)); got != time.Duration(x.want)*time.Millisecond {
			t.Errorf("from %d to %d: %v, want %d ms", x.from, x.to, got, x.want)
		}
	}
	if got := s.sum(); got != 60*time.Millisecond {
		t.Errorf("in all %v", got)
	}
}

// sends is many producers that send all the while.
type sends struct {
	mu      sync.Mutex
	ok      int
	slowest time.Duration // net of stalls
	raw     time.Duration // the slowest by the clock
	bad     []string      // sends that failed or are unknown
	stop    context.Context
	halt    context.CancelFunc
	done    sync.WaitGroup
}

func sendByMany(t testing.TB, cl *client.Client, st *stalls, topic string, producers int) *sends {
	t.Helper()
	p, err := cl.Producer(topic)
	if err != nil {
		t.Fatal(err)
	}
	s := &sends{}
	s.stop, s.halt = context.WithCancel(context.Background())
	t.Cleanup(s.finish)
	for range producers {
		s.done.Go(func() {
			for {
				select {
				case <-s.stop.Done():
					return
				case <-time.After(20 * time.Millisecond):
				}
				begun := time.Now()
				r, err := p.Send(context.Background(), &client.Message{Body: []byte("x")})
				end := time.Now()
				took := st.net(begun, end)
				s.mu.Lock()
				s.raw = max(s.raw, end.Sub(begun))
				s.slowest = max(s.slowest, took)
				if err == nil {
					s.ok++
				}
				if err != nil {
					s.bad = append(s.bad, fmt.Sprintf("%+v after %v: %v", r, took, err))
				}
				s.mu.Unlock()
			}
		})
	}
	return s
}

// goesOn waits until so many more sends were ok.
func (s *sends) goesOn(t *testing.T, n int) {
	t.Helper()
	count := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.ok
	}
	want := count() + n
	until(t, fmt.Sprintf("%d more sends are ok", n), func() bool { return count() >= want })
}

// forget forgets how long sends took until now.
func (s *sends) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slowest, s.raw = 0, 0
}

// finish ends all.
func (s *sends) finish() {
	s.halt()
	s.done.Wait()
}

// end ends all, and holds them to a limit.
func (s *sends) end(t testing.TB, st *stalls, limit time.Duration) {
	t.Helper()
	s.finish()
	t.Logf("%d sends ok, the slowest took %v, by the clock %v; the machine stood still for %v", s.ok, s.slowest, s.raw, st.sum())
	if len(s.bad) > 0 {
		t.Errorf("%d sends were not good: %v", len(s.bad), s.bad[0])
	}
	if s.slowest >= limit {
		t.Errorf("the slowest send took %v, %v are promised", s.slowest, limit)
	}
}

// TestPromiseOfMasters: with three broker groups, one master is killed, or stands still: no send fails, the slowest takes under 500 ms, or 1.5 s, and what
// the dead one had not given out is read at its slave within 3 s.
func TestPromiseOfMasters(t *testing.T) {
	for _, paused := range []bool{false, true} {
		t.Run(fmt.Sprintf("paused=%v", paused), func(t *testing.T) {
			st := watchStalls(t)
			c := StartCluster(t, ClusterOptions{BrokerGroups: 3, Slaves: 1, Memory: true, Each: fast})
			names := []string{"bg1", "bg2", "bg3"}
			for _, g := range c.Groups {
				g.InSync(1)
			}
			c.Apply(
				Object{Key(meta.KindTopic, "orders"), &meta.Topic{Partitions: 2, BrokerGroups: names}},
				Object{Key(meta.KindTopic, "backlog"), &meta.Topic{Partitions: 2, BrokerGroups: names[1:2]}},
			)
			ctx, cancel := context.WithTimeout(context.Background(), within)
			defer cancel()
			g, cl := c.Groups[1], c.Dial(c.BrokerAddresses())
			k, err := cl.Consumer("backlog", client.Group("check"), client.Start(client.FromBeginning))
			if err != nil {
				t.Fatal(err)
			}
			if err := k.Subscribe(ctx); err != nil {
				t.Fatal(err)
			}
			const backlog = 100
			for i := range backlog {
				if err := send(t, cl, "backlog", fmt.Sprint(i)); err != nil {
					t.Fatal(err)
				}
			}
			had := map[string]bool{}
			take := func() {
				t.Helper()
				ds, err := k.Fetch(ctx, 10)
				if err != nil {
					t.Fatalf("%d of %d were had: %v", len(had), backlog, err)
				}
				for _, d := range ds {
					had[d.ID] = true
				}
				if err := k.Ack(ctx, ds...); err != nil {
					t.Fatal(err)
				}
			}
			take() // the group stands at the master, and is connected
			g.SameEnds()
			s := sendByMany(t, cl, st, "orders", 12)
			s.goesOn(t, 200)
			s.forget()
			begun, limit := time.Now(), 500*time.Millisecond
			if paused {
				limit = 1500 * time.Millisecond
				c.Links.Pause(g.Brokers[0].Name())
			} else {
				c.Kill(g.Brokers[0])
			}
			for len(had) < backlog {
				take()
			}
			took := st.net(begun, time.Now())
			t.Logf("the backlog was read %v after it", took)
			if took > 3*time.Second && !paused {
				t.Errorf("the backlog was read after %v", took)
			}
			s.goesOn(t, 200)
			s.end(t, st, limit)
			c.Links.Resume(g.Brokers[0].Name())
		})
	}
}

// TestPromiseOfSlave: the only slave stands still under 64 producers: no normal send fails or ends unknown, and the slowest takes under 1.5 s.
func TestPromiseOfSlave(t *testing.T) {
	st := watchStalls(t)
	c, g, cl := replicated(t, ClusterOptions{})
	s := sendByMany(t, cl, st, "orders", 64)
	s.goesOn(t, 500)
	s.forget()
	c.Links.Pause(g.Brokers[1].Name())
	g.InSync(0)
	s.goesOn(t, 500)
	c.Links.Resume(g.Brokers[1].Name())
	g.InSync(1)
	s.goesOn(t, 500)
	s.end(t, st, 1500*time.Millisecond)
	g.SameEnds()
}

// TestPromiseOfTransfer: a planned transfer has no send fail, and the pause is under 500 ms.
func TestPromiseOfTransfer(t *testing.T) {
	st := watchStalls(t)
	_, g, cl := replicated(t, ClusterOptions{})
	old, next := g.Brokers[0].Name(), g.Brokers[1].Name()
	s := sendByMany(t, cl, st, "orders", 16)
	s.goesOn(t, 200)
	s.forget()
	g.Await("the registry takes the transfer", func(map[string]*wire.ReplicaStatus) bool { // its heartbeats tell of the slave
		_, err := g.Do(&wire.BrokerGroupRequest{Action: "transfer", Broker: next})
		if err != nil && wire.CodeOf(err) != wire.CodeInUse {
			t.Fatal(err)
		}
		return err == nil
	})
	g.Await("the slave is master, the master its slave", func(all map[string]*wire.ReplicaStatus) bool {
		return all[next].GetRole() == "master" && all[old].GetRole() == "slave"
	})
	s.goesOn(t, 200)
	g.InSync(1)
	s.end(t, st, 500*time.Millisecond)
	received(t, cl, "orders", s.ok)
}

// TestPromiseOfPromotion: on an auto broker group a new master takes sends within 5 s of the death of the old one.
func TestPromiseOfPromotion(t *testing.T) {
	st := watchStalls(t)
	c, g, cl := replicated(t, ClusterOptions{Auto: true})
	if err := send(t, cl, "orders", "before"); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	c.Kill(g.Brokers[0])
	until(t, "a send is ok", func() bool { return send(t, cl, "orders", "after") == nil })
	took := st.net(begun, time.Now())
	t.Logf("a send was ok after %v; the machine stood still for %v", took, st.sum())
	if took > 5*time.Second {
		t.Errorf("a new master took a send after %v", took)
	}
	if m := g.Master(); m != g.Brokers[1] {
		t.Errorf("%s is master", m.Name())
	}
}
