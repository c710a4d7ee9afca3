package dispatch

import (
	"time"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/offset"
)

// unreadPauseFirst is what is kept from a partition that could not be read once: the repair of damage takes some milliseconds.
const unreadPauseFirst = 50 * time.Millisecond

// partition is one partition of a queue. Guarded by Dispatcher.mu.
//
// Messages below next were given before, or are given first; each is in one of these:
//
//	[progress.Ack, next) = ended, with a lease that did not release it, or in back
//
// With an exclusive policy what a lease released comes back at its end, with a parallel one at once. Messages at or above
// next have ended or are fresh.
type partition struct {
	queue      *queue
	number     uint16
	loaded     bool
	paused     bool            // it could not be read: nothing is given until its alarm goes off
	pause      time.Duration   // the last such pause; 0: it was read since
	progress   offset.Progress // with acks that are not committed yet
	generation uint32
	end        index.Index // committed
	next       index.Index
	back       offset.Ranges
	leases     []*lease // by id
	shares     []share  // of its leases, by member
	inFlight   uint64   // messages, the sum of shares
	alarm      alarm    // the pause's
}

// share is the messages of a partition in flight with one member, at least one.
type share struct {
	member *member
	n      uint64
}

// reset puts p where the group stands by what is committed. It has no lease.
func (p *partition) reset(progress offset.Progress, generation uint32) {
	p.progress, p.generation, p.loaded = progress, generation, true
	p.next, p.back = progress.Ack, nil
	// What is counted comes before what was never given, wherever it lies.
	if n := len(progress.Expired); n > 0 {
		p.next = max(p.next, min(progress.Expired[n-1].To, p.end))
		for gap := p.progress.GapIn(offset.Range{From: progress.Ack, To: p.next}); gap.Len() > 0; gap = p.progress.GapIn(offset.Range{From: gap.To, To: p.next}) {
			p.back.Add(gap)
		}
	}
}

// fresh returns the first run that was never given.
func (p *partition) fresh() offset.Range {
	if p.next >= p.end {
		return offset.Range{From: p.end, To: p.end}
	}
	return p.progress.GapIn(offset.Range{From: p.next, To: p.end})
}

// isReady reports whether p has something to give to anyone.
func (p *partition) isReady() bool {
	return p.loaded && !p.paused && !p.queue.paused && p.inFlight < p.queue.inFlightMax() && (len(p.back) > 0 || p.fresh().Len() > 0)
}

// room returns how many messages of p may yet be given to m; nil is a member that neither holds nor waits.
func (p *partition) room(m *member) uint64 {
	q := p.queue
	most := q.inFlightMax()
	if p.inFlight >= most {
		return 0
	}
	room, others := most-p.inFlight, q.members
	if m != nil {
		others--
	}
	if !q.policy.Parallel {
		return ^uint64(0)
	}
	if others == 0 {
		return room
	}
	half, has := max(most/2, 1), p.has(m)
	if has >= half {
		return 0
	}
	return min(room, half-has)
}

// has returns how many messages of p are in flight with m.
func (p *partition) has(m *member) uint64 {
	for i := range p.shares {
		if p.shares[i].member == m {
			return p.shares[i].n
		}
	}
	return 0
}

// flight adds n to what is in flight with m.
func (p *partition) flight(m *member, n int64) {
	if n == 0 {
		return
	}
	p.inFlight += uint64(n)
	for i := range p.shares {
		s := &p.shares[i]
		if s.member != m {
			continue
		}
		if s.n += uint64(n); s.n == 0 {
			last := len(p.shares) - 1
			p.shares[i], p.shares[last] = p.shares[last], share{}
			p.shares = p.shares[:last]
		}
		return
	}
	p.shares = append(p.shares, share{m, uint64(n)})
}

// run returns what is given next, and how many leases of each of its messages ran out. A message of which one ran out comes
// alone. An exclusive partition gives the first; a parallel one what is counted first, then what came back.
func (p *partition) run() (offset.Range, uint32) {
	fresh := p.fresh()
	if len(p.back) == 0 {
		return p.alike(fresh)
	}
	if p.queue.policy.Parallel {
		for _, e := range p.progress.Expired {
			if r := p.back.Overlap(e.Range); r.Len() > 0 {
				return offset.Range{From: r.From, To: r.From + 1}, e.Count
			}
		}
	}
	run := p.back[0]
	if run.To == fresh.From {
		run.To = fresh.To
	}
	return p.alike(run)
}

// alike cuts a run to messages of which equally many leases ran out.
func (p *partition) alike(run offset.Range) (offset.Range, uint32) {
	count, to := p.progress.Expired.At(run.From)
	if count > 0 {
		to = run.From + 1
	}
	run.To = min(run.To, to)
	return run, count
}

// mark notes whether p is ready in its queue's bits.
func (p *partition) mark() bool {
	word, bit := &p.queue.ready[p.number/64], uint64(1)<<(p.number%64)
	if p.isReady() {
		*word |= bit
		return true
	}
	*word &^= bit
	return false
}

// changed looks whether p has something to give, and gives it to fetches that wait. Fetches that got a lease are put on
// out, to be called without the lock.
func (d *Dispatcher) changed(p *partition, out *fetchList) {
	q := p.queue
	for p.mark() && d.mu.stopped == nil && !d.mu.held {
		f := q.pick(p)
		if f == nil {
			return
		}
		d.unpark(q, f)
		d.grant(p, f)
		out.push(f)
	}
}

// expire ends the pause of p.
func (p *partition) expire(d *Dispatcher, out *fetchList) {
	p.paused = false
	d.changed(p, out)
}
