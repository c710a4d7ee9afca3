package replica_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/replica"
	"github.com/jmqio/jmq/server/replica/replicatest"
	"github.com/jmqio/jmq/wire"
)

var (
	seed = flag.Uint64("seed", 0, "seed of random tests; 0: by the clock")
	logs = flag.Bool("logs", false, "print the brokers' logs")
)

// random returns a source whose seed is printed.
func random(t *testing.T) *rand.Rand {
	s := *seed
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("-seed %d", s)
	return rand.New(rand.NewPCG(s, 0))
}

// inGroup runs a test with a broker group, under synctest's clock.
func inGroup(t *testing.T, do func(t *testing.T, g *replicatest.Group), names ...string) {
	synctest.Test(t, func(t *testing.T) {
		g := replicatest.NewGroup(t, names...)
		if *logs {
			g.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
		}
		defer g.Close()
		do(t, g)
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// pair starts a as master and the others as slaves, and waits until they are in sync.
func pair(t *testing.T, g *replicatest.Group, slaves ...string) *replicatest.Node {
	t.Helper()
	a := g.Nodes["a"]
	must(t, a.StartMaster(t.Context()))
	for _, name := range slaves {
		must(t, g.Nodes[name].StartSlave(t.Context()))
	}
	for _, name := range slaves {
		g.Await(func() bool { return a.InSync(name) }, "%s is in sync: %v", name, a.Master.Status())
	}
	return a
}

// send sends one message, which must be ok, and says how long that took.
func send(t *testing.T, n *replicatest.Node, payload string, replicated bool) time.Duration {
	t.Helper()
	began := time.Now()
	if _, short, err := n.Send([]byte(payload), replicated); err != nil || short {
		t.Fatalf("send: %v, short %v", err, short)
	}
	return time.Since(began)
}

type log interface {
	NewReader(journal.Position) *journal.Reader
	Begin() journal.Position
	Committed() journal.Position
}

// messages are the committed ones of a log, in order, and all committed records as bytes that do not depend on the store.
func messages(t *testing.T, l log) (list []string, all []byte) {
	t.Helper()
	r := l.NewReader(l.Begin())
	defer r.Close()
	for end := l.Committed(); r.Position() < end; {
		rec, err := r.Next()
		if err != nil {
			t.Fatalf("read at %d of %d: %v", r.Position(), end, err)
		}
		all = fmt.Appendf(all, "%d %d %v %d %d %x\n", rec.Position, rec.Kind, rec.Epoch, rec.Flags, rec.Stored, rec.Payload)
		if rec.Kind == journal.KindMessages {
			list = append(list, string(rec.Payload))
		}
	}
	return list, all
}

// equal says that what slave has committed is what master has, up to there.
func equal(t *testing.T, master, slave log) {
	t.Helper()
	_, m := messages(t, master)
	_, s := messages(t, slave)
	if !bytes.HasPrefix(m, s) {
		t.Fatalf("slave's records are not the master's:\n%s\nmaster:\n%s", s, m)
	}
}

// caughtUp waits until a slave knows all to be committed that its master has, and that writes nothing more by itself: the no-op that follows its last
// commit is among it.
func caughtUp(g *replicatest.Group, m, s *replicatest.Node) {
	g.T.Helper()
	var end journal.Position
	var since time.Time
	g.Await(func() bool {
		if e := m.Master.Journal.End(); e != end {
			end, since = e, time.Now()
		}
		return time.Since(since) > 2*idleAfter && m.Master.Committed() == end && s.Slave.Committed() == end
	}, "%s has caught up: %v, %v", s.Name, m.Master.Status(), s.Slave.Status())
}

const idleAfter = 50 * time.Millisecond // journal.Options.IdleAfter's default

// TestInStep: what is sent at the master is at both slaves, byte for byte but for what is each store's own, and committed there too.
func TestInStep(t *testing.T) {
	inGroup(t, func(t *testing.T, g *replicatest.Group) {
		a := pair(t, g, "b", "c")
		for i := range 100 {
			send(t, a, fmt.Sprint("message ", i), i%3 == 0)
		}
		for _, name := range []string{"b", "c"} {
			s := g.Nodes[name]
			caughtUp(g, a, s)
			equal(t, a.Master, s.Slave)
			if list, _ := messages(t, s.Slave); len(list) != 100 || list[99] != "message 99" {
				t.Errorf("%s has %q", name, list)
			}
			if heard := s.Slave.Heard(); time.Since(heard) > 200*time.Millisecond {
				t.Errorf("%s heard its master %v ago", name, time.Since(heard))
			}
			if err := s.Slave.Append(&journal.Append{}); !errors.Is(err, replica.ErrNotMaster) {
				t.Errorf("append at a slave: %v", err)
			}
		}
	}, "a", "b", "c")
}

// TestParallel: the master's sync and the slave's answer go on at once; the slave's sync holds nobody up.
func TestParallel(t *testing.T) {
	inGroup(t, func(t *testing.T, g *replicatest.Group) {
		a := pair(t, g, "b")
		send(t, a, "warm", false)
		a.Disk.Slow(100 * time.Millisecond)
		g.Net.Delay("a", "b", 50*time.Millisecond)
		g.Net.Delay("b", "a", 50*time.Millisecond)
		for range 5 {
			if took := send(t, a, "x", true); took < 100*time.Millisecond || took > 150*time.Millisecond {
				t.Errorf("a send took %v with a sync of 100 ms and an answer after 100 ms", took)
			}
			time.Sleep(300 * time.Millisecond)
		}
		a.Disk.Slow(0)
		g.Net.Delay("a", "b", 0)
		g.Net.Delay("b", "a", 0)
		send(t, a, "x", true)
		g.Nodes["b"].Disk.Slow(5 * time.Second)
		for range 50 {
			if took := send(t, a, "x", true); took > 10*time.Millisecond {
				t.Errorf("a send took %v while the slave's sync takes 5 s", took)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if !a.InSync("b") {
			t.Error("a slave with a slow sync left the set")
		}
		if st := g.Nodes["b"].Slave.Status(); st.SyncDelayMs < 500 {
			t.Errorf("the slave's sync delay is %d ms", st.SyncDelayMs)
		}
		g.Nodes["b"].Disk.Slow(0)
	}, "a", "b")
}

// TestDegrade: the only slave falls silent: sends wait 800 ms and go on with one copy; a replicated one is refused before anything is
// written. It comes back, and two copies are awaited again.
func TestDegrade(t *testing.T) {
	inGroup(t, func(t *testing.T, g *replicatest.Group) {
		a := pair(t, g, "b")
		send(t, a, "1", true)
		g.Net.Partition("a", "b")
		if took := send(t, a, "2", false); took < 700*time.Millisecond || took > time.Second {
			t.Errorf("the send that found the slave silent took %v", took)
		}
		if took := send(t, a, "3", false); took > 50*time.Millisecond {
			t.Errorf("a send with one copy took %v", took)
		}
		end := a.Master.End()
		if _, _, err := a.Send([]byte("4"), true); !errors.Is(err, journal.ErrNotReplicated) {
			t.Errorf("a replicated send without a slave: %v", err)
		}
		if now := a.Master.End(); now != end {
			t.Errorf("the refused send wrote %d bytes", now-end)
		}
		if why := a.Master.Status().Why; why == "" {
			t.Error("the master does not say that it is degraded")
		}
		time.Sleep(5 * time.Second)
		g.Net.Heal("a", "b")
		g.Await(func() bool { return a.InSync("b") }, "b is in sync again: %v", a.Master.Status())
		send(t, a, "5", true)
		caughtUp(g, a, g.Nodes["b"])
		equal(t, a.Master, g.Nodes["b"].Slave)
	}, "a", "b")
}

// TestShort: the slave is lost between a replicated append and its ack: it is committed here, and its sender is told that it is not known to
// be on two machines.
func TestShort(t *testing.T) {
	inGroup(t, func(t *testing.T, g *replicatest.Group) {
		a := pair(t, g, "b")
		send(t, a, "1", true)
		g.Net.Partition("a", "b")
		_, short, err := a.Send([]byte("2"), true)
		if err != nil || !short {
			t.Errorf("a replicated send whose slave was lost: %v, short %v", err, short)
		}
		g.Net.Heal("a", "b")
	}, "a", "b")
}

// TestFence: a master is fenced by who asks it to promise a higher term; what it then takes is refused, and what was under way is
// unknown.
func TestFence(t *testing.T) {
	inGroup(t, func(t *testing.T, g *replicatest.Group) {
		a := pair(t, g, "b")
		send(t, a, "1", true)
		g.Net.Partition("a", "b")
		result := make(chan error, 1)
		go func() {
			_, _, err := a.Send([]byte("2"), false)
			result <- err
		}()
		time.Sleep(100 * time.Millisecond)
		met, err := g.Net.Peer("c", "a").Meet(context.Background(), meet(g, 7))
		must(t, err)
		if met.Status.SeenTerm != 7 {
			t.Errorf("it promised term %d", met.Status.SeenTerm)
		}
		if err := <-result; !errors.Is(err, journal.ErrUnknown) {
			t.Errorf("the send under way: %v", err)
		}
		if _, _, err := a.Send([]byte("3"), false); !errors.Is(err, replica.ErrNotMaster) {
			t.Errorf("a send after the fence: %v", err)
		}
		select {
		case <-a.Master.Fenced():
		default:
			t.Error("Fenced is not closed")
		}
		if err := a.Master.Err(); !errors.Is(err, journal.ErrFenced) {
			t.Errorf("the journal: %v", err)
		}
	}, "a", "b")
}

// TestObserver: who reads the committed records waits for the next one, sees nothing that is not committed, and counts as no slave.
func TestObserver(t *testing.T) {
	inGroup(t, func(t *testing.T, g *replicatest.Group) {
		a := pair(t, g, "b")
		send(t, a, "1", true)
		peer := g.Net.Peer("archive", "a")
		defer peer.Close()
		read := func(from uint64, wait uint32) (*wire.ReadLogResponse, []byte, time.Duration) {
			began := time.Now()
			m, b, err := peer.ReadLog(t.Context(), &wire.ReadLogRequest{From: from, Committed: true, WaitMs: wait, Observer: "archive"})
			must(t, err)
			return m, b, time.Since(began)
		}
		m, b, _ := read(0, 1000)
		if m.From != 0 || uint64(len(b)) != m.Committed {
			t.Fatalf("it reads %d bytes from %d, %d are committed", len(b), m.From, m.Committed)
		}
		time.Sleep(time.Second) // a no-op follows
		_, b, _ = read(0, 0)
		from := uint64(len(b))
		time.AfterFunc(300*time.Millisecond, func() { _, _, _ = a.Send([]byte("2"), true) })
		if m, b, took := read(from, 5000); m.From != from || len(b) == 0 || took > 400*time.Millisecond {
			t.Errorf("it reads %d bytes from %d after %v", len(b), m.From, took)
		}
		time.Sleep(time.Second)
		_, b, _ = read(0, 0)
		from = uint64(len(b))
		g.Net.Partition("a", "b")
		go func() { _, _, _ = a.Send([]byte("3"), false) }()
		if _, b, took := read(from, 500); len(b) != 0 || took < 500*time.Millisecond {
			t.Errorf("it reads %d bytes that are not committed, after %v", len(b), took)
		}
		if n := len(a.Master.Status().Slaves); n != 1 {
			t.Errorf("%d slaves are counted", n)
		}
		g.Net.Heal("a", "b")
		time.Sleep(time.Second)
		// The slave answers too, and so do wishes that cannot be.
		slave := g.Net.Peer("archive", "b")
		defer slave.Close()
		if m, b, err := slave.ReadLog(t.Context(), &wire.ReadLogRequest{Committed: true}); err != nil || uint64(len(b)) != m.Committed {
			t.Errorf("at the slave: %d bytes, %v, %v", len(b), m, err)
		}
		if _, _, err := peer.ReadLog(t.Context(), &wire.ReadLogRequest{From: 1 << 40}); code(err) != wire.CodeInvalid {
			t.Errorf("beyond the end: %v", err)
		}
		if _, _, err := peer.ReadLog(t.Context(), &wire.ReadLogRequest{From: 4}); err == nil {
			t.Error("a position where no record begins is read")
		}
	}, "a", "b")
}
