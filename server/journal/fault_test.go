package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/journal/journaltest"
)

// faultLife runs one life of a journal and keeps what its callers were told: it opens, sends, and closes, and goes on
// whatever fails, as callers do.
type faultLife struct {
	s       sender
	sent    map[uint64]string // outcome by message
	invalid error             // an outcome that no caller may see
}

func (l *faultLife) run(o Options) {
	j, m, err := reopen(o)
	if err != nil {
		return
	}
	l.s.j = j
	l.s.next = max(l.s.next, m.next)
	for i := range 10 {
		n, ends := l.s.next, 1+i%3
		sizes := make([]int, ends)
		for k := range sizes {
			sizes[k] = 200 + 5000*(i%4)
		}
		err := l.s.send(sizes...)
		outcome := "ok"
		switch {
		case err == nil:
		case errors.Is(err, ErrUnknown) && l.s.next > n:
			outcome = "unknown"
		case errors.Is(err, ErrFailed), errors.Is(err, ErrNoSpace):
			outcome = "failed"
		default:
			l.invalid = fmt.Errorf("send: %w", err)
		}
		if l.s.next > n || outcome == "failed" {
			for k := range uint64(ends) {
				l.sent[n+k] = outcome
			}
		}
		if outcome == "ok" && j.Err() != nil {
			l.invalid = fmt.Errorf("send is ok, but the journal had stopped: %w", j.Err())
		}
		// A message of unknown outcome may or may not be there: the numbers could have a gap, so that is all for this life.
		if outcome == "unknown" {
			break
		}
	}
	_ = j.Close()
}

// check: what is ok is there, what failed is not, and what was never sent is not.
func (l *faultLife) check(m messages) error {
	for n := m.first; n < m.next; n++ {
		if l.sent[n] == "failed" || l.sent[n] == "" {
			return fmt.Errorf("message %d is there, its send was %q", n, l.sent[n])
		}
	}
	for n, outcome := range l.sent {
		if outcome == "ok" && n >= m.next {
			return fmt.Errorf("message %d was acknowledged, recovered are [%d, %d)", n, m.first, m.next)
		}
	}
	return nil
}

type faultKind struct {
	name  string
	calls []journaltest.Call // nil: all
	fault journaltest.Fault
}

var faultKinds = []faultKind{
	{"before", nil, journaltest.Fault{Err: syscall.EIO}},
	{"after", nil, journaltest.Fault{Err: syscall.EIO, After: true}},
	{"no space", []journaltest.Call{journaltest.Write, journaltest.Create, journaltest.Rename}, journaltest.Fault{Err: syscall.ENOSPC}},
	{"interrupted", []journaltest.Call{journaltest.Sync, journaltest.SyncData, journaltest.SyncDir}, journaltest.Fault{Err: syscall.EINTR}},
	{"interrupted, blocks lost", []journaltest.Call{journaltest.SyncData}, journaltest.Fault{Err: syscall.EINTR, LoseBlocks: true}},
	{"blocks lost", []journaltest.Call{journaltest.Sync, journaltest.SyncData}, journaltest.Fault{Err: syscall.EIO, LoseBlocks: true}},
	{"short", []journaltest.Call{journaltest.Write}, journaltest.Fault{Err: syscall.EIO, Short: 100}},
	{"short without error", []journaltest.Call{journaltest.Write}, journaltest.Fault{Short: 100}},
	{"short, a block", []journaltest.Call{journaltest.Write}, journaltest.Fault{Err: syscall.ENOSPC, Short: 4096}},
}

// TestFaultAtEachCall injects one fault at each call of a life, of each kind. Callers are told the truth; the process
// after it, on the same files, finds a sound journal; and so does the one after a power loss that follows at once,
// which is what "rewrite what is kept" is for.
func TestFaultAtEachCall(t *testing.T) {
	total := 0
	for _, kind := range faultKinds {
		t.Run(kind.name, func(t *testing.T) {
			injected := 0
			from, step := sample(t, 13)
			for k := 1 + from; ; k += step {
				fs := journaltest.New(nil)
				l := &faultLife{sent: map[uint64]string{}}
				l.run(testOptions(fs)) // so that the faulty life has something to recover
				if l.invalid != nil {
					t.Fatal(l.invalid)
				}
				if injected == 0 && l.s.next < 15 {
					t.Fatalf("only %d messages were sent", l.s.next)
				}
				// A tail that was not closed, so that there is something to rewrite.
				disk := fs.Crash(100, newRandQuiet(uint64(k)))
				fs = journaltest.New(disk)

				var mu sync.Mutex
				calls, hit := 0, journaltest.Op{}
				fs.SetBefore(func(op journaltest.Op) journaltest.Fault {
					mu.Lock()
					defer mu.Unlock()
					if kind.calls != nil && !slices.Contains(kind.calls, op.Call) {
						return journaltest.Fault{}
					}
					if calls++; calls == k {
						hit = op
						return kind.fault
					}
					return journaltest.Fault{}
				})
				l.run(testOptions(fs))
				fs.SetBefore(nil)
				if hit.N == 0 {
					break
				}
				injected++
				fail := func(when string, err error) {
					t.Fatalf("call %d, %v: %s: %v\n%s", k, hit, when, err, dump(fs))
				}
				if l.invalid != nil {
					fail("outcome", l.invalid)
				}
				// Power loss right after the fault.
				for _, percent := range []int{0, 50} {
					j, m, err := reopen(testOptions(fs.Crash(percent, newRandQuiet(uint64(k)))))
					if err != nil {
						fail("open after power loss", err)
					}
					_ = j.Close()
					if err := l.check(m); err != nil {
						fail("power loss", err)
					}
				}
				// The next process, and power loss while it serves: all that it has shown stays.
				j, m, err := reopen(testOptions(fs))
				if err != nil {
					fail("open", err)
				}
				if err := l.check(m); err != nil {
					fail("next life", err)
				}
				after, shown, err := reopen(testOptions(fs.Crash(0, nil)))
				if err != nil {
					fail("open after power loss in the next life", err)
				}
				if shown.next != m.next {
					fail("power loss in the next life", fmt.Errorf("messages up to %d are left, it had shown %d", shown.next, m.next))
				}
				_ = after.Close()
				_ = j.Close()
			}
			if injected < 2 && step == 1 {
				t.Errorf("only %d faults were injected", injected)
			}
			t.Logf("%d faults", injected)
			total += injected
		})
	}
	if total < 5 && !t.Failed() {
		t.Errorf("only %d faults were injected in all", total)
	}
}

// TestFaultInTruncateAndTrim injects one fault at each call of a Truncate, and of a Trim. A cut that returned nil is there
// for good. One that failed has stopped the journal, unless nothing was changed; the next life shows some prefix that is not
// shorter than the cut, and keeps it over a power loss. A Trim that failed leaves the journal working and can be tried again.
func TestFaultInTruncateAndTrim(t *testing.T) {
	for _, kind := range faultKinds {
		t.Run(kind.name, func(t *testing.T) {
			from, step := sample(t, 5)
			for k := 1 + from; ; k += step {
				fs := journaltest.New(nil)
				s := sender{j: mustOpen(t, testOptions(fs))}
				var at []Position
				for range 40 {
					at = append(at, s.j.End())
					s.mustSend(t, 4000)
				}
				var calls atomic.Int64
				hit := false
				fs.SetBefore(func(op journaltest.Op) journaltest.Fault {
					// What the preparer does meanwhile is not of interest.
					if strings.Contains(op.Path, sparePrefix) || kind.calls != nil && !slices.Contains(kind.calls, op.Call) {
						return journaltest.Fault{}
					}
					if calls.Add(1) == int64(k) {
						hit = true
						return kind.fault
					}
					return journaltest.Fault{}
				})
				trimErr := s.j.Trim((*s.j.list.Load())[1].base)
				if err := s.j.Err(); err != nil {
					t.Fatalf("call %d: Trim has stopped the journal: %v", k, err)
				}
				cutErr := s.j.Truncate(at[25])
				fs.SetBefore(nil)
				stopped := s.j.Err()
				if trimErr != nil {
					if err := s.j.Trim((*s.j.list.Load())[1].base); err != nil {
						t.Fatalf("call %d: Trim again: %v", k, err)
					}
				}
				if cutErr == nil && stopped != nil || cutErr != nil && stopped == nil && s.j.End() != at[39]+4040 {
					t.Fatalf("call %d: cut: %v, but Err is %v and the end %d", k, cutErr, stopped, s.j.End())
				}
				_ = s.j.Close()
				least, most := uint64(25), uint64(40)
				if cutErr == nil {
					most = 25
				}
				j, m, err := reopen(testOptions(fs))
				if err != nil || m.next < least || m.next > most || m.first > 25 {
					t.Fatalf("call %d: cut: %v; next life: messages [%d, %d), %v; want up to [%d, %d]\n%s", k, cutErr, m.first, m.next, err, least, most, dump(fs))
				}
				lost, shown, err := reopen(testOptions(fs.Crash(0, nil)))
				if err != nil || shown.next != m.next {
					t.Fatalf("call %d: cut: %v; after power loss: messages up to %d, %v; had shown %d\n%s", k, cutErr, shown.next, err, m.next, dump(fs))
				}
				_ = lost.Close()
				_ = j.Close()
				if !hit {
					if k == 1 {
						t.Error("no fault was injected")
					}
					break
				}
			}
		})
	}
}

func dump(fs *journaltest.FS) string {
	var b bytes.Buffer
	for _, op := range fs.TakeOps() {
		fmt.Fprintln(&b, op)
	}
	return b.String()
}

// TestInterruptedSync: a sync that was interrupted, and lost what it should have synced, is made good by writing again:
// the append is acknowledged and survives a power loss.
func TestInterruptedSync(t *testing.T) {
	fs := journaltest.New(nil)
	s := sender{j: mustOpen(t, testOptions(fs))}
	s.mustSend(t, 5000)
	fs.TakeOps()
	left := 3
	fs.SetBefore(func(op journaltest.Op) journaltest.Fault {
		if op.Call == journaltest.SyncData && left > 0 {
			left--
			return journaltest.Fault{Err: syscall.EINTR, LoseBlocks: true}
		}
		return journaltest.Fault{}
	})
	s.mustSend(t, 6000)
	fs.SetBefore(nil)
	writes := 0
	for _, op := range fs.TakeOps() {
		if op.Call == journaltest.Write && !op.Zeroes {
			writes++
		}
	}
	if writes != 4 {
		t.Errorf("written %d times, want 4", writes)
	}
	disk := fs.Crash(0, nil)
	mustClose(t, s.j)
	if err := (bounds{least: 2, most: 2}).check(disk); err != nil {
		t.Error(err)
	}
}

// TestFailedSync: the group in the sync gets ErrUnknown, what waits behind it ErrFailed, and from then on all get ErrFailed;
// readers do not see the group; Close says so and writes nothing.
func TestFailedSync(t *testing.T) {
	fs := journaltest.New(nil)
	j := mustOpen(t, testOptions(fs))
	s := sender{j: j}
	s.mustSend(t, 100)
	synced := j.Synced()
	var waiting <-chan error
	fs.SetBefore(func(op journaltest.Op) journaltest.Fault {
		if op.Call != journaltest.SyncData {
			return journaltest.Fault{}
		}
		if waiting == nil {
			var err error
			if waiting, err = s.queue(100); err != nil {
				t.Error(err)
			}
		}
		return journaltest.Fault{Err: syscall.EIO, After: true}
	})
	if err := s.send(100); !errors.Is(err, ErrUnknown) || !errors.Is(err, syscall.EIO) {
		t.Errorf("in the sync: %v, want ErrUnknown and EIO", err)
	}
	fs.SetBefore(nil)
	if err := <-waiting; !errors.Is(err, ErrFailed) || errors.Is(err, ErrUnknown) {
		t.Errorf("waiting: %v, want ErrFailed", err)
	}
	if err := s.send(100); !errors.Is(err, ErrFailed) {
		t.Errorf("after: %v, want ErrFailed", err)
	}
	if err := j.WaitRoom(t.Context()); !errors.Is(err, ErrFailed) {
		t.Errorf("WaitRoom: %v, want ErrFailed", err)
	}
	if err := j.Err(); !errors.Is(err, ErrFailed) || !errors.Is(err, syscall.EIO) {
		t.Errorf("Err: %v, want ErrFailed and EIO", err)
	}
	if j.Synced() != synced {
		t.Errorf("synced end moved from %d to %d", synced, j.Synced())
	}
	if m, err := readAll(j, 0); err != nil || m.next != 1 {
		t.Errorf("readers see messages up to %d (%v), want 1", m.next, err)
	}
	fs.TakeOps()
	if err := j.Close(); !errors.Is(err, ErrFailed) {
		t.Errorf("Close: %v, want ErrFailed", err)
	}
	for _, op := range fs.TakeOps() {
		if op.Call == journaltest.Write && !op.Zeroes {
			t.Errorf("written after the failure: %v", op)
		}
	}
}

// TestNoSpace: without space for a segment appends are refused before anything is written, for as long as it lasts; what
// fits in the segment at hand goes on; when there is space it works again by itself.
func TestNoSpace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := journaltest.New(nil)
		j := mustOpen(t, testOptions(fs))
		synctest.Wait() // the spare is there
		fs.SetLimit(fs.Used() + 1000)
		s := sender{j: j}
		var err error
		for err == nil {
			err = s.send(5000)
		}
		if !errors.Is(err, ErrNoSpace) || !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("append: %v, want ErrNoSpace and ENOSPC", err)
		}
		if s.next < 20 || len(*j.list.Load()) != 2 {
			t.Errorf("%d messages in %d segments, want both segments full", s.next, len(*j.list.Load()))
		}
		if j.Err() != nil {
			t.Errorf("Err: %v, want nil", j.Err())
		}
		if err := j.WaitRoom(t.Context()); !errors.Is(err, ErrNoSpace) {
			t.Errorf("WaitRoom: %v, want ErrNoSpace", err)
		}
		s.mustSend(t, 8) // fits in what is left of the segment
		time.Sleep(10 * time.Second)
		if err := s.send(5000); !errors.Is(err, ErrNoSpace) {
			t.Errorf("later: %v, want ErrNoSpace", err)
		}
		fs.SetLimit(0)
		time.Sleep(2 * time.Second)
		s.mustSend(t, 5000)
		mustClose(t, j)
		names, _ := fs.List(testDir)
		for _, name := range names {
			if name[len(name)-1] == 'g' {
				t.Errorf("%s was left behind", name)
			}
		}
		if err := (bounds{least: s.next, most: s.next}).check(fs.Crash(0, nil)); err != nil {
			t.Error(err)
		}
	})
}

// TestNoSpaceAtOpen: a journal that cannot be opened for lack of space can be when there is some.
func TestNoSpaceAtOpen(t *testing.T) {
	fs := journaltest.New(nil)
	fs.SetLimit(10000)
	if _, err := Open(testOptions(fs)); !errors.Is(err, ErrNoSpace) {
		t.Fatalf("open: %v, want ErrNoSpace", err)
	}
	fs.SetLimit(0)
	s := sender{j: mustOpen(t, testOptions(fs))}
	s.mustSend(t, 10)
	mustClose(t, s.j)
}

// TestWaitRoomEnds: a context ends the waiting, and so does Close.
func TestWaitRoomEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := testOptions(vfs.NewCrashableMem())
		o.QueueLenMax = 1
		j := mustOpen(t, o)
		s := sender{j: j}
		done, err := s.queue(10)
		if err != nil {
			t.Fatal(err)
		}
		if err := j.Append(&Append{Entries: []Entry{{Kind: KindMessages}}}); !errors.Is(err, ErrBusy) {
			t.Errorf("append to a full queue: %v, want ErrBusy", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := j.WaitRoom(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("WaitRoom: %v, want the deadline's error", err)
		}
		waited := make(chan error)
		go func() { waited <- j.WaitRoom(t.Context()) }()
		synctest.Wait()
		mustClose(t, j)
		if err := <-waited; !errors.Is(err, ErrClosed) {
			t.Errorf("WaitRoom: %v, want ErrClosed", err)
		}
		if err := <-done; err != nil {
			t.Errorf("queued before Close: %v", err)
		}
	})
}
