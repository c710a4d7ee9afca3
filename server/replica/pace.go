package replica

import (
	"context"
	"sync"
	"time"
)

const (
	paceBegin = 128 << 20 // bytes a second
	paceMin   = 8 << 20
	paceMax   = 4 << 30
	paceBurst = 4 << 20
	// paceFactor: a catch-up goes slower while commits take so many times as long as without one.
	paceFactor = 1.4
	// paceSlack is what commits may take longer whatever they took before.
	paceSlack = 200 * time.Microsecond
)

// pace is how fast slaves that catch up are given what they lack, all together: as fast as it goes while the master's commits take about
// as long as they do without. It is raised by a part in sixteen and lowered by a quarter, at most once in 20 ms.
type pace struct {
	now func() time.Time

	mu struct {
		sync.Mutex
		rate  float64       // bytes a second
		free  time.Time     // when what was given out is paid for
		busy  time.Time     // when something was given out last
		alone time.Duration // how long commits take while nothing catches up: an average, 0 is not known
		with  time.Duration // and while something does
		moved time.Time     // when rate was changed last
		last  time.Time     // when a commit ended last
	}
}

func newPace(now func() time.Time) *pace {
	p := &pace{now: now}
	p.mu.rate = paceBegin
	return p
}

// committed tells how long a commit took.
func (p *pace) committed(took time.Duration, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := &p.mu
	m.last = now
	if now.Sub(m.busy) > 100*time.Millisecond {
		m.alone = average(m.alone, took, 64)
		m.with = 0
		return
	}
	m.with = average(m.with, took, 8)
	if now.Sub(m.moved) < 20*time.Millisecond {
		return
	}
	m.moved = now
	if m.alone > 0 && m.with > paceSlack+time.Duration(paceFactor*float64(m.alone)) {
		m.rate = max(paceMin, m.rate*3/4)
	} else {
		m.rate = min(paceMax, m.rate*17/16)
	}
}

func average(avg, d time.Duration, n time.Duration) time.Duration {
	if avg == 0 {
		return d
	}
	return avg + (d-avg)/n
}

// wait waits until n bytes may be given out.
func (p *pace) wait(ctx context.Context, n int) error {
	now := p.now()
	p.mu.Lock()
	m := &p.mu
	m.busy = now
	if now.Sub(m.last) > 100*time.Millisecond { // nobody is there to be held up
		m.free = now
		p.mu.Unlock()
		return nil
	}
	burst := now.Add(-time.Duration(paceBurst / m.rate * float64(time.Second)))
	if m.free.Before(burst) {
		m.free = burst
	}
	m.free = m.free.Add(time.Duration(float64(n) / m.rate * float64(time.Second)))
	d := m.free.Sub(now)
	p.mu.Unlock()
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
