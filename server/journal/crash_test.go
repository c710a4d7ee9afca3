package journal

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/journal/journaltest"
)

// bounds are what a recovered journal may hold: messages [first, n) with least <= n <= most.
type bounds struct{ first, least, most uint64 }

// check opens what a crash left and holds it against what was sent.
func (b bounds) check(disk vfs.FS) error {
	j, m, err := reopen(testOptions(disk))
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer j.Close()
	if m.some && m.first > b.first || m.next < b.least || m.next > b.most {
		return fmt.Errorf("recovered messages [%d, %d), want [<=%d, %d..%d)", m.first, m.next, b.first, b.least, b.most)
	}
	epoch := Epoch(0)
	for _, r := range m.records {
		if r.Epoch < epoch {
			return fmt.Errorf("epoch %v at %d after %v", r.Epoch, r.Position, epoch)
		}
		epoch = r.Epoch
	}
	if j.Epoch() <= epoch {
		return fmt.Errorf("opened with epoch %v, the journal had %v", j.Epoch(), epoch)
	}
	again, err := readAll(j, j.Begin())
	if err != nil {
		return fmt.Errorf("read: %w", err)
	}
	if again.next != m.next || len(again.records) != len(m.records)+1 {
		return fmt.Errorf("read messages up to %d in %d records, recovery showed %d in %d", again.next, len(again.records), m.next, len(m.records))
	}
	return nil
}

// crashes checks what a crash after each operation leaves: nothing, half and all of what is not synced. Of some it also
// crashes the recovery, after each of its operations.
type crashes struct {
	t      *testing.T
	fs     *journaltest.FS
	rng    *rand.Rand
	every  int // checks after every so many operations
	nested int // crashes every so many recoveries
	eager  bool
	bounds func() bounds // read before the clone is made

	ops, checked int
}

func (c *crashes) after(op journaltest.Op) {
	c.ops++
	if c.ops%c.every != 0 || c.t.Failed() {
		return
	}
	b := c.bounds()
	for _, percent := range []int{0, 50, 100} {
		disk := c.fs.Crash(percent, c.rng)
		c.checked++
		if c.checked%c.nested == 0 {
			c.recoverAndCrash(op, percent, b, disk.CrashClone(vfs.CrashCloneCfg{}))
		}
		// What was acknowledged later can be in the clone too.
		b.most = max(b.most, c.bounds().most)
		if err := b.check(disk); err != nil {
			c.t.Errorf("crash with %d %% of the unsynced after operation %d, %v: %v", percent, c.ops, op, err)
			return
		}
	}
}

func (c *crashes) recoverAndCrash(op journaltest.Op, percent int, b bounds, disk *vfs.MemFS) {
	inner := journaltest.New(disk)
	if c.eager {
		inner.EagerDirs()
	}
	steps := 0
	inner.SetAfter(func(step journaltest.Op) {
		steps++
		if c.t.Failed() {
			return
		}
		for _, p := range []int{0, 50, 100} {
			if err := b.check(inner.Crash(p, c.rng)); err != nil {
				c.t.Errorf("crash (%d %%) after operation %d, %v, then crash (%d %%) of the recovery after %d, %v: %v",
					percent, c.ops, op, p, steps, step, err)
				return
			}
		}
	})
	j, err := Open(testOptions(inner))
	if err != nil {
		c.t.Errorf("recovery: %v", err)
		return
	}
	inner.SetAfter(nil)
	_ = j.Close()
}

func eachDirs(t *testing.T, run func(t *testing.T, eager bool)) {
	t.Run("lazy", func(t *testing.T) { run(t, false) })
	t.Run("eager", func(t *testing.T) { run(t, true) })
}

func newCrashes(t *testing.T, eager bool) (*crashes, *sender) {
	c := &crashes{t: t, fs: journaltest.New(nil), rng: newRand(t), every: 1, nested: 23, eager: eager}
	if eager {
		c.fs.EagerDirs()
	}
	if raceEnabled {
		c.every, c.nested = 19, 37
	}
	s := &sender{}
	c.bounds = func() bounds { return bounds{least: s.acked.Load(), most: s.begun.Load()} }
	c.fs.SetAfter(c.after)
	return c, s
}

// TestCrashAfterEachOperation: whatever the moment of the crash, what was acknowledged is recovered, and nothing that was
// not sent, and in order. Sends single and several appends a commit, of sizes up to several blocks, over several
// segments and three lives of the journal.
func TestCrashAfterEachOperation(t *testing.T) {
	eachDirs(t, func(t *testing.T, eager bool) {
		for range campaign() {
			c, s := newCrashes(t, eager)
			sizes := rand.New(rand.NewPCG(c.rng.Uint64(), 2))
			size := func() int { return 8 + sizes.IntN(100) + sizes.IntN(2)*sizes.IntN(7000) }
			for life := range 3 {
				j, m, err := reopen(testOptions(c.fs))
				if err != nil {
					t.Fatal(err)
				}
				if m.next != s.next {
					t.Fatalf("life %d: recovered messages up to %d, want %d", life, m.next, s.next)
				}
				s.j = j
				for i := range 22 {
					switch i % 4 {
					case 0, 1:
						s.mustSend(t, size())
					case 2:
						s.mustSend(t, size(), size(), 8)
					case 3:
						var waits []<-chan error
						for range 4 {
							done, err := s.queue(size(), size())
							if err != nil {
								t.Fatal(err)
							}
							waits = append(waits, done)
						}
						j.Kick()
						for _, done := range waits {
							if err := <-done; err != nil {
								t.Fatal(err)
							}
						}
					}
				}
				mustClose(t, j)
			}
			t.Logf("%d operations, %d crashes, %d messages", c.ops, c.checked, s.next)
		}
	})
}

// TestKillThenPowerLoss kills the process at each operation, which leaves everything as readers saw it but not all of it
// on disk; the next process on the same files acknowledges more, and then power is lost. What the first or the second had
// acknowledged is there: what the second built on was on disk before it answered.
func TestKillThenPowerLoss(t *testing.T) {
	eachDirs(t, func(t *testing.T, eager bool) {
		step := 1
		if raceEnabled {
			step = 9
		}
		for k := 1; ; k += step {
			fs := journaltest.New(nil)
			if eager {
				fs.EagerDirs()
			}
			changes, killed := 0, false
			fs.SetBefore(func(op journaltest.Op) journaltest.Fault {
				if op.Changes() {
					changes++
				}
				if killed = changes > k; killed {
					return journaltest.Fault{Err: syscall.EIO}
				}
				return journaltest.Fault{}
			})
			s := &sender{}
			if j, err := Open(testOptions(fs)); err == nil {
				s.j = j
				for i := range 12 {
					if s.send(100+3000*i) != nil {
						break
					}
				}
				_ = j.Close()
			}
			over := !killed
			fs.SetBefore(nil)
			j, m, err := reopen(testOptions(fs))
			if err != nil {
				t.Fatalf("killed after %d changes: open: %v", k, err)
			}
			if m.next < s.acked.Load() {
				t.Fatalf("killed after %d changes: recovered %d messages, %d were acknowledged", k, m.next, s.acked.Load())
			}
			s.j, s.next = j, m.next
			for range 3 {
				s.mustSend(t, 3000)
			}
			disk := fs.Crash(0, nil)
			mustClose(t, j)
			if err := (bounds{least: s.next, most: s.next}).check(disk); err != nil {
				t.Fatalf("killed after %d changes, then power loss: %v\n%s", k, err, dump(fs))
			}
			if over {
				break
			}
		}
	})
}

// TestCrashInTruncate: before Truncate returns, what is beyond the cut is there or not, but always as a prefix; after it, it
// is gone for good, and never comes back behind what is appended next.
func TestCrashInTruncate(t *testing.T) {
	eachDirs(t, func(t *testing.T, eager bool) {
		c, s := newCrashes(t, eager)
		var least, most atomic.Uint64 // read by the hook, on any goroutine
		c.bounds = func() bounds { return bounds{least: least.Load(), most: most.Load()} }
		c.fs.SetAfter(nil)
		j := mustOpen(t, testOptions(c.fs))
		s.j = j
		var at []Position
		for range 60 {
			at = append(at, j.End())
			s.mustSend(t, 4000)
		}
		if got := len(*j.list.Load()); got < 4 {
			t.Fatalf("%d segments, want several", got)
		}
		for _, n := range []uint64{55, 20, 8, 8} {
			least.Store(n)
			most.Store(s.next)
			c.fs.SetAfter(c.after)
			to := at[n]
			if n == s.next {
				to = j.End()
			}
			if err := j.Truncate(to); err != nil {
				t.Fatal(err)
			}
			s.next = n
			most.Store(n)
			at = at[:n]
			for range 3 {
				most.Add(1)
				at = append(at, j.End())
				s.mustSend(t, 3000)
				least.Add(1)
			}
			c.fs.SetAfter(nil)
		}
		mustClose(t, j)
		t.Logf("%d operations, %d crashes", c.ops, c.checked)
	})
}

// TestCrashInTrim: a crash leaves no gap, and nothing that was to be kept is gone.
func TestCrashInTrim(t *testing.T) {
	eachDirs(t, func(t *testing.T, eager bool) {
		c, s := newCrashes(t, eager)
		c.fs.SetAfter(nil)
		j := mustOpen(t, testOptions(c.fs))
		s.j = j
		for range 90 {
			s.mustSend(t, 4000)
		}
		var first atomic.Uint64
		c.bounds = func() bounds { return bounds{first: first.Load(), least: s.next, most: s.next} }
		c.fs.SetAfter(c.after)
		for _, i := range []int{1, 3} {
			before := (*j.list.Load())[i].base
			m, err := readAll(j, before)
			if err != nil {
				t.Fatal(err)
			}
			first.Store(m.first) // the last that may be the first
			if err := j.Trim(before); err != nil {
				t.Fatal(err)
			}
			if j.Begin() != before {
				t.Fatalf("begin %d after Trim(%d)", j.Begin(), before)
			}
		}
		c.fs.SetAfter(nil)
		mustClose(t, j)
	})
}
