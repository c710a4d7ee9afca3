package broker

import (
	"sync"
	"time"
)

// watch looks every failurePoll, while an ack or a fetch waits, whether it can still be answered: a store that failed in a
// commit which held nothing of ours tells nobody.
type watch struct {
	b  *Broker
	mu struct {
		sync.Mutex
		timer  *time.Timer
		on     bool // the timer is set, or look has begun and not asked yet who waits
		closed bool
	}
	ran sync.WaitGroup // look
}

// begin is called after somebody began to wait.
func (w *watch) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.on || w.mu.closed {
		return
	}
	w.mu.on = true
	w.ran.Add(1)
	w.mu.timer = time.AfterFunc(failurePoll, w.look)
}

// sooner lets it look within d.
func (w *watch) sooner(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.on && w.mu.timer.Stop() {
		w.mu.timer.Reset(d)
	}
}

func (w *watch) look() {
	defer w.ran.Done()
	w.mu.Lock()
	w.mu.on = false
	w.mu.Unlock()
	if err := w.b.store.Err(); err != nil {
		w.b.fail(err)
		w.b.acks.fail()
		return
	}
	acks := w.b.acks.waiting()
	if acks || w.b.dispatch.Metrics().Waiting > 0 {
		w.begin()
	}
	if acks {
		w.b.kickAcks()
	}
}

func (w *watch) close() {
	w.mu.Lock()
	w.mu.closed = true
	stopped := w.mu.on && w.mu.timer.Stop()
	w.mu.Unlock()
	if stopped {
		w.ran.Done()
	}
	w.ran.Wait()
}
