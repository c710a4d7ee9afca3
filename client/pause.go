package client

import (
	"context"
	"sync"

	"github.com/jmqio/jmq/wire"
)

// pauses is whether a consumer is paused.
type pauses struct {
	sync.Mutex
	paused   bool          // by Pause
	override bool          // by the registry
	changed  chan struct{} // closed when one of them, or another setting, changes; renewed
}

func (p *pauses) set(paused bool) {
	p.Lock()
	defer p.Unlock()
	if p.paused != paused {
		p.paused = paused
		p.poke()
	}
}

// overrides takes what the registry says.
func (p *pauses) overrides(paused bool) {
	p.Lock()
	defer p.Unlock()
	if p.override != paused {
		p.override = paused
		p.poke()
	}
}

// again ends fetches that wait: they are begun with other settings.
func (p *pauses) again() {
	p.Lock()
	defer p.Unlock()
	p.poke()
}

// poke tells of a change. p is locked.
func (p *pauses) poke() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// state also returns what is closed when it changes.
func (p *pauses) state() (paused bool, changed <-chan struct{}) {
	p.Lock()
	defer p.Unlock()
	return p.paused || p.override, p.changed
}

// errPaused ends a fetch that waits when its consumer is paused.
var errPaused = wire.Errorf(wire.CodeTimeout, "the consumer was paused")

// Pause makes the consumer fetch nothing more, until Resume. Handlers that run finish, and what they handled is acknowledged;
// what was fetched with it and not handled yet is given back at once, so that others of the group go on with it. Messages
// does the same. A Fetch finds nothing meanwhile: it waits for Resume as for messages. What Fetch has returned is the caller's.
func (c *Consumer) Pause() { c.pauses.set(true) }

// Resume ends a Pause.
func (c *Consumer) Resume() { c.pauses.set(false) }

// Paused says whether the consumer is paused, by Pause or by the registry. (An operator's pause of the topic is PauseConsume.)
func (c *Consumer) Paused() bool {
	paused, _ := c.pauses.state()
	return paused
}

// pause waits until the consumer goes on or ctx ends, with nothing left at the broker.
func (l *loop) pause(ctx context.Context, changed <-chan struct{}) {
	drain, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	l.drain(drain)
	l.m.rest()
	select {
	case <-changed:
	case <-ctx.Done():
	}
	l.m.setUsed(true)
}
