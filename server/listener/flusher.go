package listener

import (
	"sync"
	"sync/atomic"
	"time"
)

// flushAfter is how long an answer waits at most before its flush is tried, whoever gave it.
const flushAfter = time.Millisecond

// Flusher sees to it that answers are written: few writes for many answers, and no answer left behind. The zero value is
// ready. One is shared by the listeners of a broker and the store, whose AfterCommit hook is Flush.
//
// Answers are given by three kinds of goroutines, and only queue (wire.Conn.Reply):
//   - a session's reader, for what can be answered at once: it flushes its own session after each read;
//   - the committer, for everything that waited for the disk: it calls Flush after all answers of a commit, so that each
//     connection gets one write a commit;
//   - others, such as timers that end a long poll: nobody flushes after them.
//
// So each session whose queue was empty is marked when it gets an answer, and the first mark starts a timer of flushAfter.
// When the timer fires and no Flush came meanwhile, it flushes what is marked. If one came, all that was marked when the
// timer started is written; for what was marked since, it starts again. So an answer waits for 2 flushAfter at most (and
// the timer's own lateness), without a commit; under load the timer fires a thousand times a second and finds nothing to
// do. Tried before: waking a goroutine at each mark, which costs a wake-up a commit.
type Flusher struct {
	mu struct {
		sync.Mutex
		marked  []*marked
		spare   []*marked
		flushes uint64 // calls that took marked
		timer   *time.Timer
		armed   bool
		seen    uint64 // flushes when the timer was started
	}
}

// marked is a session as the Flusher sees it.
type marked struct {
	flush func()      // writes what is queued, without waiting
	on    atomic.Bool // it is in the list
}

// mark is called after an answer was queued in m where none waited.
func (f *Flusher) mark(m *marked) {
	if !m.on.CompareAndSwap(false, true) {
		return // it is in the list, or a Flush that took it from there has not begun to write it
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.marked = append(f.mu.marked, m)
	if !f.mu.armed {
		f.arm()
	}
}

// arm starts the timer. f.mu is held.
func (f *Flusher) arm() {
	f.mu.armed = true
	f.mu.seen = f.mu.flushes
	if f.mu.timer == nil {
		f.mu.timer = time.AfterFunc(flushAfter, f.fire)
	} else {
		f.mu.timer.Reset(flushAfter)
	}
}

func (f *Flusher) fire() {
	f.mu.Lock()
	switch {
	case len(f.mu.marked) == 0:
		f.mu.armed = false
		f.mu.Unlock()
	case f.mu.flushes != f.mu.seen:
		f.arm()
		f.mu.Unlock()
	default:
		f.mu.armed = false
		f.mu.Unlock()
		f.Flush()
	}
}

// Flush writes what is queued in all marked sessions, without waiting for any of them.
func (f *Flusher) Flush() {
	f.mu.Lock()
	if len(f.mu.marked) == 0 {
		f.mu.Unlock()
		return
	}
	list := f.mu.marked
	f.mu.marked, f.mu.spare = f.mu.spare, nil
	f.mu.flushes++
	f.mu.Unlock()
	for i, m := range list {
		// First the mark, then the write: an answer that comes in between marks the session again.
		m.on.Store(false)
		m.flush()
		list[i] = nil
	}
	f.mu.Lock()
	f.mu.spare = list[:0]
	f.mu.Unlock()
}

// stop lets no timer run on; what is marked later starts it again.
func (f *Flusher) stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.timer != nil && f.mu.timer.Stop() {
		f.mu.armed = false
	}
}
