package dispatch

import (
	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/wire"
)

// Ack takes what a member says about its leases, and appends a code for each item to codes. What has to be journalled is
// kept for TakeEnds: nothing for an item that is refused, repeated or released. The codes may be told once the batch of
// ends with the number ticket is committed, since CodeOK and CodeAlreadyEnded say that something is; 0: at once.
// partitions is how many the topic has.
func (d *Dispatcher) Ack(key Queue, partitions int, c Client, member uint32, items []wire.AckRange, codes []wire.Code) (_ []wire.Code, ticket uint64, _ error) {
	if err := d.load(key, partitions); err != nil {
		return codes, 0, err
	}
	var out fetchList
	durable := false
	d.mu.Lock()
	defer d.unlock(&out)
	q := d.mu.queues[key]
	if q == nil {
		return codes, 0, ErrNoGroup
	}
	m := d.findMember(c, q, member)
	for i := range items {
		code := wire.CodePartitionNotFound
		if int(items[i].Partition) < q.loaded {
			code = d.ack(q.partitions[items[i].Partition], m, &items[i], &out)
		}
		durable = durable || code == wire.CodeAlreadyEnded || code == wire.CodeOK && items[i].Outcome != wire.Released
		codes = append(codes, code)
	}
	if durable {
		ticket = d.ticket()
	}
	return codes, ticket, nil
}

// ticket is the number of the batch that everything which has ended is in, at the latest.
func (d *Dispatcher) ticket() uint64 {
	if len(d.mu.ends) > 0 {
		return d.mu.taken + 1
	}
	return d.mu.taken
}

func (d *Dispatcher) ack(p *partition, m *member, item *wire.AckRange, out *fetchList) wire.Code {
	r := offset.Range{From: index.Index(item.From), To: index.Index(item.To)}
	if r.Len() == 0 {
		return wire.CodeOutOfRange
	}
	at, ok := findLease(p.leases, item.Lease)
	if !ok { // r may lie beyond the end here: another broker of the broker group had more when it gave the lease
		if p.progress.Count(r) == r.Len() {
			return wire.CodeAlreadyEnded
		}
		return d.missing(item.Lease)
	}
	l := p.leases[at]
	switch {
	case l.member != m:
		return wire.CodeLeaseForeign
	case !l.Contains(r):
		return wire.CodeOutOfRange
	}
	parallel := p.queue.policy.Parallel
	first := p.progress.GapIn(r)
	if first.Len() == 0 {
		return wire.CodeAlreadyEnded
	}
	if parallel && len(l.released) > 0 && item.Outcome != wire.Released {
		for gap := first; gap.Len() > 0; gap = p.progress.GapIn(offset.Range{From: gap.To, To: r.To}) {
			if l.released.Count(gap) > 0 {
				return wire.CodeLeaseExpired // it may be with another by now
			}
		}
	}
	// What had ended before is not said again.
	left := l.left
	for gap := first; gap.Len() > 0; gap = p.progress.GapIn(offset.Range{From: gap.To, To: r.To}) {
		if item.Outcome != wire.Released {
			d.mu.ends = append(d.mu.ends, p.ends(gap, item.Outcome))
			l.left -= gap.Len() - l.released.Count(gap)
			continue
		}
		for open := l.released.Gap(gap); open.Len() > 0; open = l.released.Gap(offset.Range{From: open.To, To: gap.To}) {
			l.left -= open.Len()
			if parallel {
				p.back.Add(open)
			}
		}
	}
	if item.Outcome == wire.Released {
		l.released.Add(r)
	} else {
		p.progress.Add(r)
	}
	p.flight(m, int64(l.left)-int64(left))
	d.lessLeft(l, out)
	return wire.CodeOK
}

// lessLeft ends l if it has nothing left, and lets others have what became free or fits in now.
func (d *Dispatcher) lessLeft(l *lease, out *fetchList) {
	p := l.partition
	switch {
	case l.left > 0:
		d.changed(p, out)
	case p.progress.Count(l.Range) < l.Len():
		d.endLease(l, EndedReleased, out)
	default:
		d.endLease(l, EndedAcked, out)
	}
}

func (p *partition) ends(r offset.Range, outcome wire.Outcome) offset.End {
	return offset.End{Group: p.queue.key.Group, Topic: p.queue.key.Topic, Partition: p.number, Generation: p.generation, Outcome: outcome, Range: r}
}

// Skip ends the messages of r, up to the committed end, whoever has them: they cannot be given to anyone. It returns how many had
// not ended before, and the number of the batch of ends that has them, as Ack does; 0 if the queue or partition is not known.
func (d *Dispatcher) Skip(key Queue, partition uint16, r offset.Range, outcome wire.Outcome) (messages, ticket uint64) {
	var out fetchList
	d.mu.Lock()
	defer d.unlock(&out)
	q := d.mu.queues[key]
	if q == nil || int(partition) >= q.loaded {
		return 0, 0
	}
	p := q.partitions[partition]
	p.pause = 0
	r.To = min(r.To, p.end)
	messages, _ = d.over(p, r, outcome, &out)
	return messages, d.ticket()
}

// over ends the messages of r, whoever has them. It returns how many had not ended before, and how many of them a member had.
func (d *Dispatcher) over(p *partition, r offset.Range, outcome wire.Outcome, out *fetchList) (messages, leased uint64) {
	for gap := p.progress.GapIn(r); gap.Len() > 0; gap = p.progress.GapIn(offset.Range{From: gap.To, To: r.To}) {
		d.mu.ends = append(d.mu.ends, p.ends(gap, outcome))
		messages += gap.Len()
		for _, l := range p.leases {
			part := offset.Range{From: max(gap.From, l.From), To: min(gap.To, l.To)}
			if n := part.Len() - l.released.Count(part); n > 0 {
				l.left -= n
				leased += n
				p.flight(l.member, -int64(n))
			}
		}
	}
	p.progress.Add(r)
	p.back.Remove(r)
	for i := 0; i < len(p.leases); {
		if l := p.leases[i]; l.left == 0 {
			d.endLease(l, EndedAcked, out)
			i = 0 // the list is another one, and may have grown
		} else {
			i++
		}
	}
	d.changed(p, out)
	return messages, leased
}

// TakeEnds moves all ends that wait for the disk to the end of ends, and returns the number of their batch, from 1 on
// without a gap; 0 if there are none.
func (d *Dispatcher) TakeEnds(ends []offset.End) ([]offset.End, uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.mu.ends) == 0 {
		return ends, 0
	}
	ends = append(ends, d.mu.ends...)
	d.mu.ends = d.mu.ends[:0]
	d.mu.taken++
	return ends, d.mu.taken
}

// PutBack returns ends that TakeEnds gave and that were not written: they are in the next batch.
func (d *Dispatcher) PutBack(ends []offset.End) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.ends = append(d.mu.ends, ends...)
}

// expiriesMax bounds the ranges of expiries that wait to be journalled; beyond it one is counted in memory only.
const expiriesMax = 1 << 15

func (d *Dispatcher) keepExpiry(e offset.Expiry) {
	if d.mu.expired += len(e.Ranges); d.mu.expired > expiriesMax {
		d.mu.expired -= len(e.Ranges)
		return
	}
	if n := len(d.mu.expiries); n > 0 {
		last := &d.mu.expiries[n-1]
		if last.Group == e.Group && last.Topic == e.Topic && last.Partition == e.Partition && last.Generation == e.Generation && last.Count == e.Count {
			for _, r := range e.Ranges {
				last.Ranges.Add(r)
			}
			return
		}
	}
	d.mu.expiries = append(d.mu.expiries, e)
}

// TakeExpiries returns what is to be journalled of leases that ran out, nil if nothing. Nobody waits for it, and what a crash takes
// is a count.
func (d *Dispatcher) TakeExpiries() []offset.Expiry {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.mu.expiries
	d.mu.expiries, d.mu.expired = nil, 0
	return e
}

// PutBackExpiries returns what TakeExpiries gave and that was not written.
func (d *Dispatcher) PutBackExpiries(expiries []offset.Expiry) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range expiries {
		d.keepExpiry(e)
	}
}
