package client

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/jmqio/jmq/wire"
)

const (
	// masterAgain is how long a master that does not serve is not asked again while a slave may.
	masterAgain = 500 * time.Millisecond
	// slaveWait bounds a fetch that waits at a slave: then the master is looked at again.
	slaveWait = time.Second
	// masterPatience bounds a Subscribe at a master whose slaves may know the group.
	masterPatience = time.Second
)

// reading is what consumers know of who serves a broker group.
type reading struct {
	refused atomic.Int64 // the master is not asked before, unix time in nanoseconds
}

// again has the master be asked.
func (r *reading) again() { r.refused.Store(0) }

// source is whom to ask for messages of the broker group: the master, or while it is away or does not serve one of its slaves, in
// the order of the route. turn counts the slaves that did not serve.
func (p *pool) source(turn int) *pool {
	slaves := p.slaves.Load()
	if slaves == nil || p.serves() {
		return p
	}
	return (*slaves)[turn%len(*slaves)]
}

// serves says that the master is there, or may be soon.
func (p *pool) serves() bool {
	if time.Now().UnixNano() < p.reading.refused.Load() {
		return false
	}
	if p.pick(0) == nil {
		return !p.failed() && !p.away.Load()
	}
	for i := range p.slots {
		if l := p.slots[i].link.Load(); l != nil && !l.stalled.Load() {
			return true
		}
	}
	return false
}

// round says that all slaves were asked as often as that; without slaves always.
func (p *pool) round(turn int) bool {
	slaves := p.slaves.Load()
	return slaves == nil || turn%len(*slaves) == 0
}

// missed notes that src, the master or a slave, did not give messages, and why. It returns whether another one may: then the error
// is not the end of anything.
func (p *pool) missed(src *pool, l *link, err error) bool {
	code := codeOf(err)
	e, _ := errors.AsType[*wire.CodeError](err)
	if src != p {
		if code == wire.CodeNotMaster && l != nil && e != nil && p.ready() == nil {
			p.follow(e, l)
		}
		return true
	}
	if code == wire.CodeNotMaster && l != nil && e != nil {
		p.follow(e, l)
	}
	if p.slaves.Load() == nil || wire.Traits[code].Retry != wire.RetryElsewhere {
		return false
	}
	p.reading.refused.Store(time.Now().Add(masterAgain).UnixNano())
	return true
}

// giver is a connection to who gave a lease: the slave that p is, or where that cannot be reached the master, which may have got its
// leases; or the master, or while a slave serves that one, which gives the messages anew: so nobody waits for the end of the lease.
func (p *pool) giver(n uint32, turn int) *link {
	if p.of == nil {
		return p.source(turn).pick(n)
	}
	if l := p.pick(n); l != nil || !p.failed() {
		return l
	}
	return p.of.pick(n)
}

// elsewhere is where a lease is honoured that the broker at l was asked about and, not being the one that serves, does not know: a
// slave hands its leases over to the master.
func (p *pool) elsewhere(l *link, err error) *pool {
	e, _ := errors.AsType[*wire.CodeError](err)
	if e == nil || e.Code != wire.CodeNotMaster {
		return p
	}
	if l.pool.of != nil {
		return l.pool.of
	}
	l.pool.follow(e, l)
	return p
}

// subscribedAt makes sure that the group is there before its master is asked for messages. Where slaves could be asked it does not
// wait for long. A slave knows the groups that there are, and makes none.
func (c *Consumer) subscribedAt(ctx context.Context, p, src *pool) error {
	if src != p || c.subscribing.of(p).done.Load() {
		return nil
	}
	if p.slaves.Load() == nil {
		return c.subscribeAt(ctx, p)
	}
	short, cancel := context.WithTimeout(ctx, masterPatience)
	defer cancel()
	return c.subscribeAt(short, p)
}
