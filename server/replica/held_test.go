package replica_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/replica"
	"github.com/jmqio/jmq/server/replica/replicatest"
	"github.com/jmqio/jmq/wire"
)

// TestPromiseOfState: a term that was promised while no log was open, or while one was opened, is kept by a slave that runs: it writes and acks
// nothing of a lower one, and the master hears of it.
func TestPromiseOfState(t *testing.T) {
	inGroup(t, func(t *testing.T, g *replicatest.Group) {
		a, b := pair(t, g, "b"), g.Nodes["b"]
		send(t, a, "1", true)
		before := b.Slave.Written()
		must(t, b.Node().State.Update(func(s *replica.State) { s.Seen += 3 }))
		if _, _, err := a.Send([]byte("2"), false); err == nil {
			t.Error("it was acked in a lower term than was promised")
		}
		if now := b.Slave.Written(); now != before {
			t.Errorf("%d bytes were written in a lower term than was promised", now-before)
		}
		g.Await(a.Master.Stopped, "the master hears of the term: %v", a.Master.Status())
	}, "a", "b")
}

// TestHandOverEnds: a master that is closed while it is not known whether the registry named another one does not wait for the registry, and
// takes nothing any more.
func TestHandOverEnds(t *testing.T) {
	inGroup(t, func(t *testing.T, g *replicatest.Group) {
		a := pair(t, g, "b")
		send(t, a, "1", true)
		g.Registry.Away(true)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		began := time.Now()
		if _, err := a.Master.HandOver(ctx, "b"); err == nil {
			t.Error("it was handed over without a registry")
		}
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("it took %v", took)
		}
		if err := a.Master.Append(&journal.Append{}); !errors.Is(err, replica.ErrNotMaster) {
			t.Errorf("append: %v", err)
		}
	}, "a", "b")
}

// asked keeps what masters are told by who follows.
type asked struct {
	replica.Peer
	follows *[]*wire.FollowRequest
}

func (a asked) Follow(ctx context.Context, r *wire.FollowRequest) (*wire.FollowResponse, error) {
	*a.follows = append(*a.follows, r)
	return a.Peer.Follow(ctx, r)
}

// TestFullCopyTellsSide: who takes a full copy and has served reads says so from its first word on: consuming at the master waits for that.
func TestFullCopyTellsSide(t *testing.T) {
	inGroup(t, func(t *testing.T, g *replicatest.Group) {
		a, b := g.Nodes["a"], g.Nodes["b"]
		must(t, a.StartMaster(t.Context()))
		n := b.Node()
		var follows []*wire.FollowRequest
		dial := n.Dial
		n.Dial = func(broker string, addresses []string) replica.Peer { return asked{dial(broker, addresses), &follows} }
		n.Side = func() (acks, served bool) { return true, true }
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // the master gives no seed
		defer cancel()
		_ = replica.FullCopy(ctx, n, replica.CopyOptions{Clear: func() error { return nil }})
		if len(follows) == 0 {
			t.Fatal("it did not come")
		}
		for _, r := range follows {
			if !r.Side || !r.Served {
				t.Errorf("it came with %v", r)
			}
		}
	}, "a", "b")
}

// TestMasterBegin: a slave is told where its master's journal begins together with what was committed when that was trimmed, or more, however far it is
// behind; and a master that has just opened does not say it before it knows how far the one who trimmed had committed.
func TestMasterBegin(t *testing.T) {
	inGroup(t, func(t *testing.T, g *replicatest.Group) {
		g.Auto = true
		a, b, c := g.Nodes["a"], g.Nodes["b"], g.Nodes["c"]
		type told struct{ begin, committed journal.Position }
		var last atomic.Pointer[told] // that b was told
		b.MasterBegin = func(begin, committed journal.Position) { last.Store(&told{begin, committed}) }
		pair(t, g, "b", "c")
		var trimmed, begin journal.Position
		for n := 0; begin == 0; n++ { // how large segments are depends on when they were prepared
			if n == 20 {
				t.Fatal("nothing was trimmed")
			}
			for range 200 {
				send(t, a, strings.Repeat("x", 1000), true)
			}
			trimmed = a.Master.Committed()
			must(t, a.Master.Trim(trimmed))
			begin = a.Master.Begin()
		}
		check := func() {
			t.Helper()
			g.Await(func() bool { return last.Load() != nil }, "b hears where the journal of a begins")
			if is := last.Load(); is.begin != begin || is.committed < trimmed {
				t.Errorf("b was told %+v; the journal was trimmed to %d, and committed up to %d then", *is, begin, trimmed)
			}
		}
		check()
		before := a.Master.Epoch()
		c.Kill()
		a.Kill()
		b.Kill()
		last.Store(nil)
		must(t, b.StartSlave(t.Context()))
		opened := make(chan error)
		go func() { opened <- a.StartMaster(t.Context()) }()
		g.Await(func() bool { _, epoch, ok := b.Slave.Session(); return ok && epoch > before }, "b follows")
		time.Sleep(500 * time.Millisecond) // a waits for c, and says that it lives meanwhile
		if is := last.Load(); is != nil {
			t.Errorf("b was told %+v by a master that may not know all that is committed", *is)
		}
		must(t, c.StartSlave(t.Context()))
		must(t, <-opened)
		check()
	}, "a", "b", "c")
}
