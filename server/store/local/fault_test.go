package local

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/journal/journaltest"
	"github.com/jmqio/jmq/server/store"
)

// every thins the campaigns out: with -race a clone costs ten times as much. 1 is all of it.
var every = flag.Int("every", 0, "check every so many operations; 0: 1 without -race, 37 with it")

func stride() int {
	switch {
	case *every > 0:
		return *every
	case raceEnabled:
		return 37
	}
	return 1
}

// counter is a table that counts KindEnd records, which are numbered: 0, 1, 2, ... must come in order, though some may be
// missing that were refused.
type counter struct {
	next atomic.Uint32 // after the highest number seen
	seen atomic.Uint32
}

func (c *counter) Name() string { return "counter" }

func (c *counter) Apply(r journal.Record) error {
	if r.Kind != journal.KindEnd {
		return nil
	}
	n := binary.LittleEndian.Uint32(r.Payload)
	if n < c.next.Load() {
		return fmt.Errorf("number %d after %d", n, c.next.Load())
	}
	c.next.Store(n + 1)
	c.seen.Add(1)
	return nil
}

func (c *counter) Snapshot(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, c.next.Load())
	return binary.LittleEndian.AppendUint32(b, c.seen.Load())
}

func (c *counter) Restore(b []byte) error {
	c.next.Store(0)
	c.seen.Store(0)
	if len(b) == 8 {
		c.next.Store(binary.LittleEndian.Uint32(b))
		c.seen.Store(binary.LittleEndian.Uint32(b[4:]))
	} else if len(b) != 0 {
		return errors.New("counter: cut")
	}
	return nil
}

// outcome of one append.
type outcome int32

const (
	pendingSend outcome = iota
	ok
	failed
	unknown
)

// history is what a workload did: per partition the sends in order, and the end records. It is read by crash hooks while
// the workload runs, so all is atomic and of fixed size.
type history struct {
	topic atomic.Pointer[store.Topic]
	sends [2][128]atomic.Int32 // outcome; body is its number
	sent  [2]atomic.Int32
	ends  atomic.Int32 // end records asked for
	ended atomic.Int32 // end records answered ok
	// checkpoint is the position of one that was said to be written.
	checkpoint atomic.Uint64
}

// bounds is a history at one moment.
type bounds struct {
	topic *store.Topic
	sends [2][]outcome
	ends  int32
	ended int32

	checkpoint journal.Position
}

func (h *history) bounds() bounds {
	b := bounds{topic: h.topic.Load(), ended: h.ended.Load(), checkpoint: journal.Position(h.checkpoint.Load())}
	for p := range h.sends {
		n := h.sent[p].Load()
		for i := range n {
			b.sends[p] = append(b.sends[p], outcome(h.sends[p][i].Load()))
		}
	}
	b.ends = h.ends.Load()
	return b
}

func classify(err error) outcome {
	switch {
	case err == nil:
		return ok
	case errors.Is(err, journal.ErrUnknown):
		return unknown
	}
	return failed
}

// work is a small workload on one folder. It goes on after errors as far as it can.
type work struct {
	t    testing.TB
	h    *history
	o    Options
	s    *Store
	held chan func(error) // an end record that waits for Gather, which a commit may call when the send has been refused
	open int
}

func newWork(t testing.TB, fs vfs.FS) *work {
	w := &work{t: t, h: &history{}, o: options(fs), held: make(chan func(error), 1)}
	w.o.SegmentBytesMax = 64 << 10
	w.o.Gather = w.gather
	return w
}

func (w *work) gather(add func(journal.Kind, []byte, func(error))) {
	select {
	case done := <-w.held:
		n := w.h.ends.Add(1) - 1
		add(journal.KindEnd, binary.LittleEndian.AppendUint32(nil, uint32(n)), func(err error) {
			if err == nil {
				w.h.ended.Add(1)
			}
			done(err)
		})
	default:
	}
}

// reopen closes and opens the store; false when it does not open.
func (w *work) reopen() bool {
	if w.s != nil {
		w.s.Close()
		w.s = nil
	}
	w.o.Tables = []store.Table{&counter{}}
	s, err := Open(w.o)
	if err != nil {
		if strings.Contains(err.Error(), "\n") && !errors.Is(err, journaltest.ErrInjected) {
			w.t.Errorf("open: more than one line: %v", err)
		}
		return false
	}
	w.s = s
	w.open++
	return true
}

func (w *work) send(p int) {
	if w.s == nil {
		return
	}
	topic := w.h.topic.Load()
	if topic == nil {
		return
	}
	n := w.h.sent[p].Load()
	w.h.sent[p].Add(1)
	r := appendWait(w.s, partitionOfTopic(*topic, p), batchOf(w.t, fmt.Sprint(n)))
	w.h.sends[p][n].Store(int32(classify(r.err)))
}

func (w *work) end() {
	if w.s == nil || w.s.Err() != nil || w.h.topic.Load() == nil {
		return
	}
	c := make(chan error, 1)
	w.held <- func(err error) { c <- err }
	w.send(0) // its commit takes the end record along
	if w.s.Err() == nil {
		<-c
	}
	select {
	case <-w.held:
	default:
	}
}

func (w *work) run() {
	defer func() {
		if w.s != nil {
			w.s.Close()
		}
	}()
	for round := range 4 {
		if again := w.reopen(); !again && !w.reopen() {
			return
		}
		if t, err := w.s.CreateTopic(context.Background(), store.Topic{Name: "orders", Partitions: 2}, ""); err == nil || errors.Is(err, store.ErrTopicExists) {
			w.h.topic.Store(&t)
		}
		for i := range 6 {
			w.send(i % 2)
			if i == 3 && round%2 == 0 {
				if err := w.s.Checkpoint(); err == nil {
					w.h.checkpoint.Store(uint64(w.s.Metrics().Checkpoint))
				}
			}
		}
		w.end()
		if round == 1 {
			for range 40 { // a whole chunk in two rounds, so that index files are made and grow
				w.send(1)
			}
		}
		if w.s == nil {
			return
		}
	}
}

// verify opens what is left in fs and holds it against before and after (the history as it was, and as it may have become, when
// the crash came), then goes on working on it.
func verify(t testing.TB, fs vfs.FS, before, after bounds) error {
	table := &counter{}
	o := options(fs)
	o.SegmentBytesMax = 64 << 10
	o.Tables = []store.Table{table}
	s, err := Open(o)
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer s.Close()
	if at := s.Metrics().Checkpoint; at < before.checkpoint {
		return fmt.Errorf("checkpoint of position %d, that of %d was written", at, before.checkpoint)
	}
	if n := table.seen.Load(); int32(n) < before.ended || int32(n) > after.ends {
		return fmt.Errorf("%d end records, %d were answered, %d asked for", n, before.ended, after.ends)
	}
	topic, there := s.Topic(0, "orders")
	if before.topic != nil && (!there || topic != *before.topic) {
		return fmt.Errorf("topic %+v is %+v, %v", *before.topic, topic, there)
	}
	if !there {
		return nil
	}
	for p := range before.sends {
		pt := partitionOfTopic(topic, p)
		first, end, err := s.Bounds(pt)
		if err != nil || first != 0 {
			return fmt.Errorf("bounds: %d, %v", first, err)
		}
		got := map[string]bool{}
		var list []string
		last := -1
		if end > 0 {
			list, _ = bodies(t, s, pt, 0, end)
		}
		if len(list) != int(end) {
			return fmt.Errorf("partition %d: %d messages, the end is %d", p, len(list), end)
		}
		for _, b := range list {
			var n int
			if _, err := fmt.Sscan(b, &n); err != nil || n <= last || n >= len(after.sends[p]) {
				return fmt.Errorf("partition %d: %q after %d, %d were sent", p, b, last, len(after.sends[p]))
			}
			last = n
			got[b] = true
			if after.sends[p][n] == failed {
				return fmt.Errorf("partition %d: %d was said to have failed, and is there", p, n)
			}
		}
		for n, o := range before.sends[p] {
			if o == ok && !got[fmt.Sprint(n)] {
				return fmt.Errorf("partition %d: %d was answered ok, and is lost: %v", p, n, list)
			}
		}
		r := appendWait(s, pt, batchOf(t, "after"))
		if r.err != nil || r.first != end {
			return fmt.Errorf("partition %d: append: %+v, want index %d", p, r, end)
		}
	}
	return s.Close()
}

// TestCrash loses power after each file operation of a workload, with nothing, half and all of what was not synced on the
// disk, and directory changes that need their sync or do not. What was answered is there, what failed is not, and the
// store works.
func TestCrash(t *testing.T) {
	r := random(t)
	for _, eager := range []bool{false, true} {
		t.Run(fmt.Sprintf("eager=%v", eager), func(t *testing.T) {
			fs := journaltest.New(nil)
			if eager {
				fs.EagerDirs()
			}
			w := newWork(t, fs)
			rng := rand.New(rand.NewPCG(uint64(r.Int63()), 1))
			ops, checked := r.Intn(stride()), 0
			fs.SetAfter(func(op journaltest.Op) {
				ops++
				if ops%stride() != 0 || t.Failed() {
					return
				}
				for _, percent := range []int{0, 50, 100} {
					before := w.h.bounds()
					clone := fs.Crash(percent, rng)
					checked++
					if err := verify(t, clone, before, w.h.bounds()); err != nil {
						t.Errorf("crash with %d %% of the unsynced after operation %d, %v: %v", percent, ops, op, err)
						return
					}
				}
			})
			w.run()
			fs.SetAfter(nil)
			if w.open != 4 || w.h.sent[1].Load() < 50 {
				t.Fatalf("the workload did not run: %d openings", w.open)
			}
			t.Logf("%d operations, %d crashes", ops, checked)
		})
	}
}

// TestFaultAtEveryCall fails each call once: before its effect, after it, with half a write, with a sync that loses its
// blocks. Then the power is lost. Nothing that was answered is lost, and what was said to have failed is not there.
func TestFaultAtEveryCall(t *testing.T) {
	r := random(t)
	for mode, fault := range map[string]func(op journaltest.Op) journaltest.Fault{
		"before": func(journaltest.Op) journaltest.Fault { return journaltest.Fault{Err: journaltest.ErrInjected} },
		"after": func(journaltest.Op) journaltest.Fault {
			return journaltest.Fault{Err: journaltest.ErrInjected, After: true}
		},
		"short": func(op journaltest.Op) journaltest.Fault {
			if op.Call != journaltest.Write {
				return journaltest.Fault{}
			}
			return journaltest.Fault{Err: journaltest.ErrInjected, Short: op.Len / 2}
		},
		"lost sync": func(op journaltest.Op) journaltest.Fault {
			if op.Call != journaltest.Sync && op.Call != journaltest.SyncData {
				return journaltest.Fault{}
			}
			return journaltest.Fault{Err: journaltest.ErrInjected, LoseBlocks: true}
		},
	} {
		t.Run(mode, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(uint64(r.Int63()), 2))
			step := 1
			if stride() > 1 {
				step = stride()
			}
			hits, stops := 0, 0
			for k := 1 + r.Intn(step); ; k += step {
				fs := journaltest.New(nil)
				calls, hit := 0, false
				fs.SetBefore(func(op journaltest.Op) journaltest.Fault {
					f := fault(op)
					if f.Err != nil {
						calls++
					}
					if f.Err == nil || calls != k {
						return journaltest.Fault{}
					}
					hit = true
					return f
				})
				w := newWork(t, fs)
				w.run()
				fs.SetBefore(nil)
				if !hit {
					break
				}
				hits++
				if w.open < 4 {
					stops++
				}
				b := w.h.bounds()
				for _, percent := range []int{0, 50} {
					if err := verify(t, fs.Crash(percent, rng), b, b); err != nil {
						t.Fatalf("fault at call %d, then a crash with %d %% of the unsynced: %v", k, percent, err)
					}
				}
				if err := verify(t, fs, b, b); err != nil && mode != "lost sync" {
					t.Fatalf("fault at call %d, then opened again: %v", k, err)
				}
			}
			t.Logf("%d faults, %d ended the workload early", hits, stops)
			if hits < 30/step {
				t.Fatalf("only %d calls were hit", hits)
			}
		})
	}
}
