package client

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/jmqio/jmq/wire"
)

// run is one Run of a consumer. At each broker group of the topic it has as many loops as messages may be handled at a time: each
// has a fetch that waits there. What they bring is handled by turns, of which there are as many as the concurrency says. Loops
// are started and ended as the route and the settings change; the goroutine of Run owns them.
type run struct {
	c        *Consumer
	h        Handler
	handling context.Context
	turns    *turns
	loops    map[loopKey]context.CancelFunc
	ran      sync.WaitGroup
	errs     chan error // one element: the first of a loop that cannot go on
}

type loopKey struct {
	pool *pool
	n    int
}

// serve runs until ctx ends or going on cannot help.
func (r *run) serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer r.ran.Wait()
	defer cancel()
	if _, err := r.c.sub.known(ctx); err != nil {
		return err
	}
	var last consumerSettings
	for {
		changed := r.c.sub.changed()
		v := r.c.sub.view.Load()
		if v.err != nil {
			return v.err
		}
		s := r.c.settings(v)
		if s != last {
			if last.batch > 0 {
				r.c.pauses.again()
			}
			last = s
			r.c.pauses.overrides(s.paused)
			r.turns.resize(s.concurrency)
		}
		r.adjust(ctx, v.pools, s.concurrency)
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		case err := <-r.errs:
			return err
		}
	}
}

// adjust starts the loops that are missing, and ends those that are too many: each after the message that it handles.
func (r *run) adjust(ctx context.Context, pools []*pool, concurrency int) {
	for key, end := range r.loops {
		if key.n >= concurrency || !slices.Contains(pools, key.pool) {
			end()
			delete(r.loops, key)
		}
	}
	for _, p := range pools {
		for n := range concurrency {
			key := loopKey{p, n}
			if r.loops[key] != nil {
				continue
			}
			of, end := context.WithCancel(ctx)
			r.loops[key] = end
			p.users.Add(1)
			r.ran.Go(func() {
				defer p.users.Add(-1)
				defer end()
				if err := newLoop(r, p).run(of, r.handling); err != nil {
					select {
					case r.errs <- err:
					default:
					}
				}
			})
		}
	}
}

// turns are the rights to handle messages. Whoever fetched waits for one, first come, first served, so that no broker group is
// kept waiting by the others; but not for long: then it gives back what it has, for others of the group.
type turns struct {
	mu struct {
		sync.Mutex
		limit, taken int
		queue        []chan struct{} // who wait; each has one element of room
		changed      chan struct{}   // closed when a turn becomes free; renewed
	}
}

// turnWait is how long a lease waits for its turn.
const turnWait = time.Second

func newTurns(n int) *turns {
	t := new(turns)
	t.mu.limit, t.mu.changed = n, make(chan struct{})
	return t
}

// free waits until there is one: what would be fetched now is handled soon. false: ctx ended.
func (t *turns) free(ctx context.Context) bool {
	for {
		t.mu.Lock()
		free, changed := t.mu.taken < t.mu.limit, t.mu.changed
		t.mu.Unlock()
		if free {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// take takes one, waiting for at most d.
func (t *turns) take(ctx context.Context, d time.Duration) bool {
	t.mu.Lock()
	if t.mu.taken < t.mu.limit {
		t.mu.taken++
		t.mu.Unlock()
		return true
	}
	turn := make(chan struct{}, 1)
	t.mu.queue = append(t.mu.queue, turn)
	t.mu.Unlock()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-turn:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(t.mu.queue, turn); i >= 0 {
		t.mu.queue = slices.Delete(t.mu.queue, i, i+1)
		return false
	}
	return true // it came at the same time
}

func (t *turns) put() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.taken--
	t.give()
}

func (t *turns) resize(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.limit = n
	t.give()
}

// give gives what is free to those that wait. t.mu is held.
func (t *turns) give() {
	n := 0
	for ; n < len(t.mu.queue) && t.mu.taken < t.mu.limit; n++ {
		t.mu.taken++
		t.mu.queue[n] <- struct{}{}
	}
	t.mu.queue = slices.Delete(t.mu.queue, 0, n)
	if t.mu.taken < t.mu.limit {
		close(t.mu.changed)
		t.mu.changed = make(chan struct{})
	}
}

// Run receives messages and gives them to the handler, Concurrency at a time, those of one partition one after the other.
// What was handled is acknowledged in the background. Connections and brokers that come back are used again, broker groups
// that the topic is given meanwhile too.
//
// It returns nil when ctx has ended: the handlers that run are waited for, their messages acknowledged, the others given
// back. It returns an error when going on cannot help, for example when there is no such topic, and ErrClosed when the
// client is closed.
func (c *Consumer) Run(ctx context.Context, h Handler) error {
	if h == nil {
		return newError(opFetch, c.topic, -1, "", wire.Errorf(wire.CodeInvalid, "the handler is nil"))
	}
	if !c.c.runs.enter() {
		return errClosed(opFetch, c.topic)
	}
	defer c.c.runs.leave()
	stopping, cancel := c.c.until(ctx)
	defer cancel()
	handling, stopHandling := context.WithCancel(context.WithoutCancel(ctx))
	defer stopHandling()
	late := make(chan *time.Timer, 1)
	stopLate := context.AfterFunc(stopping, func() { late <- time.AfterFunc(c.o.stopTimeout, stopHandling) })
	defer func() {
		if !stopLate() {
			(<-late).Stop()
		}
	}()

	r := &run{c: c, h: h, handling: handling, turns: newTurns(c.o.concurrency), loops: map[loopKey]context.CancelFunc{}, errs: make(chan error, 1)}
	err := r.serve(stopping)
	switch {
	case err != nil && stopping.Err() == nil:
		return c.stopped(opFetch, err)
	case ctx.Err() == nil:
		return c.stopped(opFetch, nil)
	}
	return nil
}
