package client

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	breakerFailures = 3                     // in a row, which open it
	breakerMin      = 50 * time.Millisecond // open for so long at first, half as long again each time that a trial fails
	breakerMax      = 15 * time.Second      // so what is good again is used within that time
	breakerTrial    = 3 * time.Second       // within which the outcome of a trial is there
	breakerSoon     = 5 * time.Second       // for so long one that says when to come again is tried as it says
)

// breaker says whether sends that have a choice should go to a broker group. It opens when several in a row fail, or one has no
// answer and its connection is silent too. An open one lets one send through now and then (half-open): the outcome decides. One
// that is silent gets no send before it answered a ping. Sends without a choice do not ask; their outcomes count.
type breaker struct {
	open     atomic.Bool // all that the way of a send to a good broker group looks at
	failures atomic.Int32

	mu struct {
		sync.Mutex
		until  time.Time // open: no trial before
		since  time.Time // it was opened, or there was news of the broker group
		trial  time.Time // until then one is under way
		pause  time.Duration
		silent bool // no trial before it answered
	}
}

func (b *breaker) closed() bool { return !b.open.Load() }

// allow says whether a send may go there. Of an open one it is the trial.
func (b *breaker) allow() bool {
	if b.closed() {
		return true
	}
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.silent || now.Before(b.mu.until) || now.Before(b.mu.trial) {
		return false
	}
	b.mu.trial = now.Add(breakerTrial)
	return true
}

// succeeded notes a send that was stored. It returns whether that closed it.
func (b *breaker) succeeded() bool {
	if b.failures.Load() != 0 {
		b.failures.Store(0)
	}
	if b.closed() {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.pause, b.mu.silent, b.mu.trial = 0, false, time.Time{}
	return b.open.Swap(false)
}

// failed notes one that was not. stalled: there was no answer, to nothing. soon, if not 0: its broker says that it takes sends in a moment, and is to be
// tried again after that time. It returns whether that opened it.
func (b *breaker) failed(stalled bool, soon time.Duration) bool {
	n := b.failures.Add(1)
	if b.closed() && n < breakerFailures && !stalled {
		return false
	}
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	opened := !b.open.Swap(true)
	switch {
	case opened:
		b.mu.pause, b.mu.since = max(b.mu.pause, breakerMin), now
	case b.mu.trial.IsZero(): // it was under way before
		b.mu.silent = b.mu.silent || stalled
		return false
	case soon > 0 && now.Sub(b.mu.since) < breakerSoon:
	default:
		b.mu.pause = min(b.mu.pause+b.mu.pause/2, breakerMax)
	}
	pause := b.mu.pause
	if soon > 0 && now.Sub(b.mu.since) < breakerSoon {
		pause = min(pause, soon)
	}
	b.mu.until, b.mu.trial = now.Add(pause), time.Time{}
	b.mu.silent = b.mu.silent || stalled
	return opened
}

// answers notes that the broker is not silent any more.
func (b *breaker) answers() {
	if b.closed() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.silent = false
}

// back allows a trial at once: a connection was made, the route says that the broker is back, or that another one is the master.
func (b *breaker) back() {
	if b.closed() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.silent, b.mu.until, b.mu.trial, b.mu.pause, b.mu.since = false, time.Time{}, time.Time{}, breakerMin, time.Now()
}
