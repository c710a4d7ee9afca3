package replica_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/replica"
	"github.com/jmqio/jmq/server/replica/replicatest"
	"github.com/jmqio/jmq/server/term"
)

// TestTakeBack: the master loses power with pushed records that it had not synced: they are at the slave, of its own last epoch, so it takes
// them back before it begins a new one.
func TestTakeBack(t *testing.T) {
	inGroup(t, func(t *testing.T, g *replicatest.Group) {
		a := pair(t, g, "b")
		send(t, a, "1", true)
		a.Disk.Slow(time.Hour) // what comes now is written and pushed, and never synced
		b, end := g.Nodes["b"], a.Master.Journal.End()
		go func() { _, _, _ = a.Send([]byte("2"), false) }()
		g.Await(func() bool { return b.Slave.Written() > end }, "the slave has it")
		end = b.Slave.Written()
		left := a.Disk.Crash(0, rand.New(rand.NewPCG(1, 1)))
		g.Net.Down("a")
		a.Stop()
		a.Replace(left)
		must(t, a.StartMaster(t.Context()))
		if got := a.Master.Committed(); got <= end {
			t.Errorf("the master has %d, the slave had %d", got, end)
		}
		list, _ := messages(t, a.Master)
		if fmt.Sprint(list) != "[1 2]" {
			t.Errorf("the master has %q", list)
		}
		caughtUp(g, a, b)
		equal(t, a.Master, b.Slave)
	}, "a", "b")
}

// TestCutWhileBehind: a slave is cut off while its records wait for the pace of catch-ups, when it has no request waiting but the one that they are
// for: keep-alives do not take that, and it catches up when it is back.
func TestCutWhileBehind(t *testing.T) {
	inGroup(t, func(t *testing.T, g *replicatest.Group) {
		a, b := pair(t, g, "b"), g.Nodes["b"]
		b.Stop()
		send(t, a, "1", false)
		a.Master.HoldCatchUps(time.Now().Add(2 * time.Second))
		must(t, b.StartSlave(t.Context()))
		begin := b.Slave.Written()
		g.Await(func() bool { return !b.Slave.Heard().IsZero() }, "the slave hears the master: %v", b.Slave.Status())
		g.Net.Cut("b", "a")
		time.Sleep(time.Second)
		if b.Slave.Written() != begin {
			t.Error("it was not held")
		}
		time.Sleep(time.Second)
		g.Net.Mend("b", "a")
		caughtUp(g, a, b)
		equal(t, a.Master, b.Slave)
	}, "a", "b")
}

// TestDiverged: the old master comes back, after another one was promoted, with a tail that nobody else has: it is set aside, listed and
// cut, and it follows.
func TestDiverged(t *testing.T) {
	inGroup(t, func(t *testing.T, g *replicatest.Group) {
		a, b := pair(t, g, "b"), g.Nodes["b"]
		send(t, a, "1", true)
		caughtUp(g, a, b)
		g.Net.Partition("a", "b")
		end := a.Master.Journal.Written()
		go func() { _, _, _ = a.Send([]byte("only here"), false) }()
		g.Await(func() bool { return a.Master.Journal.Written() > end }, "the master has it")
		a.Kill()
		b.Stop()
		g.Net.Heal("a", "b")
		must(t, b.StartMaster(t.Context()))
		send(t, b, "2", false)
		must(t, a.StartSlave(t.Context()))
		g.Await(func() bool { return b.InSync("a") }, "a follows: %v %v", b.Master.Status(), a.Slave.Status())
		send(t, b, "3", true)
		caughtUp(g, b, a)
		equal(t, b.Master, a.Slave)
		if list, _ := messages(t, a.Slave); fmt.Sprint(list) != "[1 2 3]" {
			t.Errorf("it has %q", list)
		}
		if n := len(a.Slave.SetAside()); n != 1 {
			t.Errorf("%d tails are set aside", n)
		}
	}, "a", "b")
}

// TestRefuse: a slave does not cut below what it knows to be committed; only for a master that was promoted by force, and then it
// must be opened anew.
func TestRefuse(t *testing.T) {
	inGroup(t, func(t *testing.T, g *replicatest.Group) {
		a, b := pair(t, g, "b"), g.Nodes["b"]
		send(t, a, "1", true)
		caughtUp(g, a, b)
		image := a.Disk.Image()
		send(t, a, "2", true)
		caughtUp(g, a, b)
		a.Stop()
		a.Restore(image)          // an old image of the disk
		g.Net.Partition("a", "b") // else it would take back what it lost
		must(t, a.StartMaster(t.Context()))
		g.Net.Heal("a", "b")
		g.Await(func() bool { return b.Slave.Status().Refused }, "the slave refuses: %v", b.Slave.Status())
		if list, _ := messages(t, b.Slave); fmt.Sprint(list) != "[1 2]" {
			t.Errorf("it has %q", list)
		}
		a.Stop()
		row, err := g.Registry.Change(func(r term.Row) (term.Row, error) {
			r.Term, r.Forced, r.Change = r.Term+1, true, r.Change+1
			return r, nil
		})
		must(t, err)
		must(t, a.Lead(t.Context(), row))
		<-b.Slave.MustReopen()
		if why := b.Slave.Why(); why != replica.WhyCut {
			t.Errorf("it must be opened anew since %s", why)
		}
		b.Stop()
		must(t, b.StartSlave(t.Context()))
		g.Await(func() bool { return a.InSync("b") }, "b is in sync: %v", a.Master.Status())
		send(t, a, "3", true)
		caughtUp(g, a, b)
		equal(t, a.Master, b.Slave)
		if n := len(b.Slave.SetAside()); n != 1 {
			t.Errorf("%d tails are set aside", n)
		}
	}, "a", "b")
}

// TestWrittenBeforeAck: what a slave has not written it has not acked: a replicated send that it was pushed is not known to be on two machines.
func TestWrittenBeforeAck(t *testing.T) {
	inGroup(t, func(t *testing.T, g *replicatest.Group) {
		a, b := pair(t, g, "b"), g.Nodes["b"]
		send(t, a, "1", true)
		b.Disk.SlowWrites(5 * time.Second)
		if _, short, err := a.Send([]byte("2"), true); err != nil || !short {
			t.Errorf("a replicated send that the slave did not write: %v, short %v", err, short)
		}
	}, "a", "b")
}

// TestSlaveSyncFails: a slave whose sync failed cannot go on, and is another boot: nobody counts on what it acked.
func TestSlaveSyncFails(t *testing.T) {
	inGroup(t, func(t *testing.T, g *replicatest.Group) {
		a, b := pair(t, g, "b"), g.Nodes["b"]
		boot := b.Node().Self.Boot
		b.Disk.FailSyncs(true)
		send(t, a, "1", false)
		<-b.Slave.MustReopen()
		if why := b.Slave.Why(); why != replica.WhyFailed {
			t.Errorf("it must be opened anew since %s", why)
		}
		send(t, a, "2", false)
		b.PowerLoss(0, rand.New(rand.NewPCG(1, 1)))
		must(t, b.StartSlave(t.Context()))
		if now := b.Node().Self.Boot; now == boot {
			t.Error("it is the same boot still")
		}
		g.Await(func() bool { return a.InSync("b") }, "b is in sync: %v", a.Master.Status())
		caughtUp(g, a, b)
		equal(t, a.Master, b.Slave)
	}, "a", "b")
}

// TestSwappedSlave: the slave comes back with an empty disk: it takes everything again, and counts only then.
func TestSwappedSlave(t *testing.T) {
	inGroup(t, func(t *testing.T, g *replicatest.Group) {
		a, b := pair(t, g, "b"), g.Nodes["b"]
		for i := range 50 {
			send(t, a, fmt.Sprint(i), true)
		}
		b.Stop()
		b.SwapDisk()
		must(t, b.StartSlave(t.Context()))
		g.Await(func() bool { return !a.InSync("b") || b.Slave.Written() == a.Master.Written() }, "the disk that was is forgotten")
		g.Await(func() bool { return a.InSync("b") }, "b is in sync: %v", a.Master.Status())
		send(t, a, "more", true)
		caughtUp(g, a, b)
		equal(t, a.Master, b.Slave)
		if list, _ := messages(t, b.Slave); len(list) != 51 {
			t.Errorf("it has %d messages", len(list))
		}
	}, "a", "b")
}

// bytesSeed is a Seed of some bytes.
type bytesSeed struct {
	*bytes.Reader
	position, begin journal.Position
	closed          *int
}

func (s bytesSeed) Position() journal.Position { return s.position }
func (s bytesSeed) Begin() journal.Position    { return s.begin }
func (s bytesSeed) Close() error               { *s.closed++; return nil }

// TestFullCopy: the master has trimmed what an empty slave would need, so that takes a full copy: what the tables say, and the journal from there
// on, although the connection breaks on the way, and then follows.
func TestFullCopy(t *testing.T) {
	inGroup(t, func(t *testing.T, g *replicatest.Group) {
		closed := 0
		a, b := g.Nodes["a"], g.Nodes["b"]
		tables := bytes.Repeat([]byte("tables "), 500_000)
		a.Seed = func(context.Context) (replica.Seed, error) {
			return bytesSeed{bytes.NewReader(tables), a.Master.Committed(), a.Master.Begin(), &closed}, nil
		}
		must(t, a.StartMaster(t.Context()))
		payload := string(bytes.Repeat([]byte("x"), 10_000))
		for n := 0; a.Master.Begin() == 0; n++ { // how large segments are depends on when they were prepared
			if n == 20 {
				t.Fatal("nothing was trimmed")
			}
			for range 200 {
				send(t, a, payload, false)
			}
			must(t, a.Master.Trim(a.Master.Committed()/2))
		}
		must(t, b.StartSlave(t.Context()))
		<-b.Slave.MustReopen()
		if why := b.Slave.Why(); why != replica.WhyCopy {
			t.Fatalf("it must be opened anew since %s", why)
		}
		b.Stop()
		b.SwapDisk()
		node := b.Node()
		var got []byte
		breaks := 0
		cleared := 0
		err := replica.FullCopy(t.Context(), node, replica.CopyOptions{
			Clear: func() error { cleared++; got = nil; return nil },
			Seed: func(b []byte, offset, size int64) error {
				got = append(got, b...)
				if breaks == 0 {
					breaks++
					g.Net.Break("a", "b") // the seed is asked for anew
				}
				return nil
			},
			Plant: func(position, begin journal.Position) (journal.Options, error) {
				if !bytes.Equal(got, tables) || begin != a.Master.Begin() || position > a.Master.Committed() {
					t.Errorf("planted at %d, %d bytes of %d, journal from %d", position, len(got), len(tables), begin)
				}
				return b.JournalOptions(), nil
			},
			Progress: func(done, total int64) {
				if a.InSync("b") {
					t.Error("a copy that is not whole counts as in sync")
				}
				if done > total/2 && breaks == 1 {
					breaks++
					g.Net.Break("a", "b") // the journal goes on
				}
			},
		})
		must(t, err)
		if breaks != 2 {
			t.Errorf("%d breaks", breaks)
		}
		must(t, b.StartSlave(t.Context()))
		g.Await(func() bool { return a.InSync("b") }, "b is in sync: %v", a.Master.Status())
		send(t, a, "more", true)
		caughtUp(g, a, b)
		_, m := messages(t, a.Master)
		_, s := messages(t, b.Slave)
		if !bytes.HasSuffix(m, s) || b.Slave.Begin() != a.Master.Begin() {
			t.Error("the copy is another one")
		}
		if closed != cleared {
			t.Errorf("%d seeds were closed of %d", closed, cleared)
		}
	}, "a", "b")
}

// TestCatchUpSyncs: a slave that catches up does not leave what it writes to one large sync, for which all others on its disk would wait.
func TestCatchUpSyncs(t *testing.T) {
	inGroup(t, func(t *testing.T, g *replicatest.Group) {
		g.Timing.SyncEvery = time.Hour
		a, b := g.Nodes["a"], g.Nodes["b"]
		must(t, a.StartMaster(t.Context()))
		payload := string(bytes.Repeat([]byte("x"), 10_000))
		for range 800 {
			send(t, a, payload, false)
		}
		end := a.Master.Committed()
		must(t, b.StartSlave(t.Context()))
		g.Await(func() bool { return b.Slave.End() >= end/2 }, "b has half of it: %v", b.Slave.Status())
		g.Await(func() bool { return b.Slave.Synced() > 0 }, "and has synced some of it: %v", b.Slave.Status())
		caughtUp(g, a, b)
	}, "a", "b")
}

// TestCheck: the comparison finds what differs, and both sides mend what the disk damaged from each other.
func TestCheck(t *testing.T) {
	inGroup(t, func(t *testing.T, g *replicatest.Group) {
		a, b := pair(t, g, "b"), g.Nodes["b"]
		for i := range 200 {
			send(t, a, fmt.Sprint("message ", i), true)
		}
		caughtUp(g, a, b)
		c, err := b.Slave.Compare(t.Context())
		must(t, err)
		if len(c.Differences) != 0 || c.To != b.Slave.Committed() || c.From != 0 {
			t.Errorf("two good copies: %+v", c)
		}
		_, want := messages(t, a.Master)
		for _, n := range []*replicatest.Node{a, b} {
			l := n.Journal()
			_, all := messages(t, l)
			if !bytes.Equal(all, want) {
				t.Fatalf("%s has another journal:\n%s\nit was\n%s", n.Name, all, want)
			}
			n.Damage(l.Begin(), 5000)
			at := journal.Position(0)
			r := l.NewReader(0)
			for {
				rec, err := r.Next()
				if c, ok := errors.AsType[*journal.CorruptError](err); ok {
					at = c.Position
					break
				}
				must(t, err)
				_ = rec
			}
			_ = r.Close()
			hole, err := l.Heal(at)
			must(t, err)
			if n == a {
				must(t, a.Master.Repair(t.Context(), hole.From, hole.To))
			} else {
				g.Await(func() bool { return len(l.Holes()) == 0 }, "the slave mends by itself")
			}
			if _, all := messages(t, l); !bytes.Equal(all, want) {
				t.Errorf("%s is not as it was", n.Name)
			}
		}
	}, "a", "b")
}

// TestAuto: on an auto broker group the registry holds the set: a slave that left is waited for until the registry has confirmed it, and a
// master that opens waits for those that the registry may hold.
func TestAuto(t *testing.T) {
	inGroup(t, func(t *testing.T, g *replicatest.Group) {
		g.Auto = true
		a, b := pair(t, g, "b"), g.Nodes["b"]
		send(t, a, "1", true)
		g.Await(func() bool { row, _ := g.Registry.Row(); _, ok := row.Member("b"); return ok }, "the registry holds b")
		g.Registry.Away(true)
		g.Net.Partition("a", "b")
		result := make(chan error, 1)
		go func() {
			_, _, err := a.Send([]byte("2"), false)
			result <- err
		}()
		time.Sleep(5 * time.Second)
		select {
		case err := <-result:
			t.Fatalf("a send with a set that the registry has not confirmed ended: %v", err)
		default:
		}
		g.Registry.Away(false)
		if err := <-result; err != nil {
			t.Errorf("the send when the registry was back: %v", err)
		}
		if row, _ := g.Registry.Row(); len(row.Set) != 0 {
			t.Errorf("the registry holds %v", row.Set)
		}
		g.Net.Heal("a", "b")
		g.Await(func() bool { row, _ := g.Registry.Row(); _, ok := row.Member("b"); return ok }, "the registry holds b again")
		send(t, a, "3", true)
		caughtUp(g, a, b)

		// The master starts again while b is away, and the registry holds b: it waits.
		b.Stop()
		a.Kill()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		g.Registry.Away(true)
		err := a.StartMaster(ctx)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a master opened without the slave of its set: %v", err)
		}
		a.Kill()
		must(t, b.StartSlave(t.Context()))
		must(t, a.StartMaster(t.Context()))
		list, _ := messages(t, a.Master)
		if fmt.Sprint(list) != "[1 2 3]" {
			t.Errorf("it has %q", list)
		}
		g.Registry.Away(false)
	}, "a", "b")
}

// TestHandOver: the master hands over to its slave while sends go on: none is lost, none is ok at two masters, and the other one has all.
func TestHandOver(t *testing.T) {
	inGroup(t, func(t *testing.T, g *replicatest.Group) {
		a, b := pair(t, g, "b"), g.Nodes["b"]
		ok := make(chan int, 1)
		go func() {
			n := 0
			for {
				if _, _, err := a.Send([]byte(fmt.Sprint(n)), false); err != nil {
					if !errors.Is(err, replica.ErrNotMaster) {
						t.Errorf("send: %v", err)
					}
					ok <- n
					return
				}
				n++
				time.Sleep(time.Millisecond)
			}
		}()
		time.Sleep(time.Second)
		began := time.Now()
		row, err := a.Master.HandOver(t.Context(), "b")
		must(t, err)
		if row.Master.Broker != "b" {
			t.Errorf("the row names %v", row.Master)
		}
		if took := time.Since(began); took > 200*time.Millisecond {
			t.Errorf("handing over took %v", took)
		}
		n := <-ok
		<-b.Slave.MustReopen()
		if why := b.Slave.Why(); why != replica.WhyNamed {
			t.Errorf("it must be opened anew since %s", why)
		}
		a.Stop()
		b.Stop()
		must(t, b.Lead(t.Context(), row))
		must(t, a.StartSlave(t.Context()))
		if list, _ := messages(t, b.Master); len(list) != n {
			t.Errorf("%d messages of %d are there", len(list), n)
		}
		g.Await(func() bool { return b.InSync("a") }, "a is in sync: %v", b.Master.Status())
		if n := len(a.Slave.SetAside()); n != 0 {
			t.Errorf("%d tails are set aside", n)
		}

		// A slave that is not there cannot be handed over to, and sends go on.
		if _, err := b.Master.HandOver(timeout(t, time.Second), "c"); !errors.Is(err, replica.ErrHandOver) {
			t.Errorf("handing over to nobody: %v", err)
		}
		send(t, b, "more", true)
	}, "a", "b", "c")
}

func timeout(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
