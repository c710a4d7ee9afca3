package dispatch

import (
	"slices"
	"time"

	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/planted"
)

// What happened at another broker of the broker group while this one was away: messages that were acked there (Merge), leases that last
// (Ship there, TakeIn here). Until it is known what happened Hold lets nothing be given.

// Hold lets nothing be given until Release: fetches wait. Acks are taken.
func (d *Dispatcher) Hold() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.held = true
}

// Release ends Hold: fetches that wait are given what there is.
func (d *Dispatcher) Release() {
	var out fetchList
	d.mu.Lock()
	defer d.unlock(&out)
	d.mu.held = false
	for _, q := range d.mu.queues {
		d.match(q, &out)
	}
}

// Restart forgets all queues and ends Stop. Lease ids begin anew, if they begin at random.
func (d *Dispatcher) Restart() {
	var out fetchList
	d.mu.Lock()
	defer d.unlock(&out)
	queues := make([]*queue, 0, len(d.mu.queues))
	for _, q := range d.mu.queues {
		queues = append(queues, q)
	}
	for _, q := range queues {
		d.forget(q, &out)
	}
	d.mu.ends, d.mu.expiries, d.mu.expired = d.mu.ends[:0], nil, 0
	d.mu.stopped = nil
	if d.o.Elsewhere {
		d.mu.first = d.o.firstID()
		d.mu.leases = d.mu.first
	}
}

// Merge ends the messages of e, which ended elsewhere, whoever has them here. It returns how many had not ended before, how many of them
// a member has, and the number of the batch of ends that has them, as Ack does. known is false if e is of another generation than the
// group is in, or of a partition that is not there.
func (d *Dispatcher) Merge(key Queue, partitions int, e *offset.End) (messages, leased, ticket uint64, known bool, err error) {
	if err := d.load(key, partitions); err != nil {
		return 0, 0, 0, false, err
	}
	var out fetchList
	d.mu.Lock()
	defer d.unlock(&out)
	p := d.of(key, e.Partition, e.Generation)
	if p == nil {
		return 0, 0, 0, false, nil
	}
	messages, leased = d.over(p, e.Range, e.Outcome, &out)
	return messages, leased, d.ticket(), true, nil
}

// MergeExpiry counts leases that ran out elsewhere; false as Merge.
func (d *Dispatcher) MergeExpiry(key Queue, partitions int, e *offset.Expiry) (known bool, err error) {
	if err := d.load(key, partitions); err != nil {
		return false, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.of(key, e.Partition, e.Generation)
	if p == nil {
		return false, nil
	}
	for _, r := range e.Ranges {
		p.progress.Expire(r, e.Count)
	}
	d.keepExpiry(*e)
	return true, nil
}

// eachOpen calls each with the runs of r that neither ended nor were released.
func (p *partition) eachOpen(r offset.Range, released offset.Ranges, each func(offset.Range)) {
	for gap := p.progress.GapIn(r); gap.Len() > 0; gap = p.progress.GapIn(offset.Range{From: gap.To, To: r.To}) {
		for run := released.Gap(gap); run.Len() > 0; run = released.Gap(offset.Range{From: run.To, To: gap.To}) {
			each(run)
		}
	}
}

// of returns a partition that is known and in that generation; nil if it is not.
func (d *Dispatcher) of(key Queue, partition uint16, generation uint32) *partition {
	q := d.mu.queues[key]
	if q == nil || int(partition) >= q.loaded || q.partitions[partition].generation != generation {
		return nil
	}
	return q.partitions[partition]
}

// Shipped is a lease that lasts, for another broker.
type Shipped struct {
	Queue      Queue
	Client     Client
	Member     uint32
	Partition  uint16
	Generation uint32
	ID         uint64
	offset.Range
	Released offset.Ranges // of Range
	Attempt  uint32
	Left     time.Duration // how long it lasts yet
}

// Ship returns all leases that last.
func (d *Dispatcher) Ship() []Shipped {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.now()
	var all []*lease
	for _, q := range d.mu.queues {
		for _, p := range q.partitions {
			all = append(all, p.leases...)
		}
	}
	sortLeases(all)
	shipped := make([]Shipped, len(all))
	for i, l := range all {
		shipped[i] = Shipped{
			Queue: l.partition.queue.key, Client: l.member.client.key, Member: l.member.key.number, Partition: l.partition.number,
			Generation: l.partition.generation, ID: l.id, Range: l.Range, Released: slices.Clone(l.released), Attempt: l.count + 1,
			Left: max(l.until-now, 0),
		}
	}
	return shipped
}

// TakeIn honours a lease that another broker gave: its member may ack it, and until it ends nobody else gets what is left of it. Doing it
// again changes nothing. false: it cannot be honoured, for its messages are with another member, its group was moved, or too many last.
// A client that is not attached loses it when its time is over.
func (d *Dispatcher) TakeIn(s *Shipped, partitions int) (bool, error) {
	if err := d.load(s.Queue, partitions); err != nil {
		return false, err
	}
	var out fetchList
	d.mu.Lock()
	defer d.unlock(&out)
	p := d.of(s.Queue, s.Partition, s.Generation)
	if p == nil || d.mu.stopped != nil || s.ID&elsewhereBit == 0 || s.Len() == 0 || s.To > p.end || s.Attempt == 0 {
		return false, nil
	}
	if at, ok := findLease(p.leases, s.ID); ok {
		l := p.leases[at]
		return l.Range == s.Range && l.member == d.findMember(s.Client, p.queue, s.Member), nil
	}
	var released, open offset.Ranges
	for _, r := range s.Released {
		released.Add(offset.Range{From: max(r.From, s.From), To: min(r.To, s.To)})
	}
	p.eachOpen(s.Range, released, func(r offset.Range) { open.Add(r) })
	if len(open) == 0 {
		return true, nil // all of it has ended, or is free
	}
	parallel, elsewhere := p.queue.policy.Parallel, false
	for _, l := range p.leases {
		p.eachOpen(l.Range, l.released, func(r offset.Range) { elsewhere = elsewhere || !parallel || open.Count(r) > 0 })
	}
	if elsewhere || d.mu.metrics.Leased >= d.o.LeasesMax {
		return false, nil
	}
	if planted.Bug("dispatch: lease of a slave not kept") {
		return true, nil
	}
	// What lies between was given elsewhere, and is free; so is what this lease's member gave back, with a parallel policy.
	if p.next < s.To {
		p.eachOpen(offset.Range{From: p.next, To: s.To}, nil, func(r offset.Range) { p.back.Add(r) })
		p.next = s.To
	}
	if parallel {
		for _, r := range open {
			p.back.Remove(r)
		}
	} else {
		p.back.Remove(s.Range)
	}
	left := open.Len()
	m, l := d.member(s.Client, p.queue, s.Member), d.newLease()
	l.id, l.partition, l.member, l.Range, l.left, l.count = s.ID, p, m, s.Range, left, s.Attempt-1
	l.released = append(l.released[:0], released...)
	m.leases, p.leases = addLease(m.leases, l), addLease(p.leases, l)
	p.flight(m, int64(left))
	l.until = d.now() + s.Left
	d.set(&l.alarm, l, l.until)
	d.mu.metrics.Leases++
	d.mu.metrics.Leased++
	d.changed(p, &out)
	return true, nil
}
