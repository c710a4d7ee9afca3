package dispatch

import (
	"cmp"
	"slices"
	"time"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/planted"
	"github.com/jmqio/jmq/wire"
)

// Lease is a range of one partition, a member's alone until it ends.
type Lease struct {
	ID         uint64
	Partition  uint16
	Generation uint32
	offset.Range
	For time.Duration // how long it lasts from when it was given
}

// Why says how a lease ended.
type Why uint8

const (
	EndedAcked    Why = iota // each message was acked
	EndedReleased            // each message was acked or given back, at least one given back
	EndedTimeout             // its time was over
	EndedGone                // its client was gone for longer than the grace
	EndedUnread              // it was never delivered: the read failed, or the fetch had ended meanwhile
	EndedLost                // its member does not have it: the answer did not arrive
	whys
)

func (w Why) String() string {
	return [...]string{"acked", "released", "timeout", "gone", "unread", "lost"}[w]
}

// partition is one partition of a queue. Guarded by Dispatcher.mu.
type partition struct {
	queue      *queue
	number     uint16
	loaded     bool
	paused     bool            // nothing is given until its alarm goes off
	progress   offset.Progress // with acks that are not committed yet
	generation uint32
	end        index.Index // committed

	lease    uint64 // id of the lease; 0: none, and then the fields below mean nothing
	leased   offset.Range
	member   *member
	released offset.Ranges // of leased

	alarm alarm // the lease's end, or the pause's
}

func (p *partition) isReady() bool {
	return p.loaded && p.lease == 0 && !p.paused && p.progress.Ack < p.end
}

// left returns how many messages of the lease were neither acked nor released.
func (p *partition) left() uint64 {
	n := p.leased.Len() - p.progress.Count(p.leased)
	for _, r := range p.released {
		n -= r.Len() - p.progress.Count(r)
	}
	return n
}

// grant leases p's first run to f's member.
func (d *Dispatcher) grant(p *partition, f *Fetch) {
	run := p.progress.Gap(p.end)
	if planted.Bug("dispatch: lease from the end of what waits") && run.Len() > uint64(f.Max) {
		run.From = run.To - index.Index(f.Max)
	}
	run.To = min(run.To, run.From+index.Index(f.Max))
	if run.Len() == 0 || p.lease != 0 {
		panic("dispatch: a lease of nothing or a second one") // isReady was asked
	}
	m := d.member(f.Client, p.queue, f.Member)
	d.mu.leases++
	p.lease = d.boot | d.mu.leases&(1<<leaseNumberBits-1)
	p.leased, p.member, p.released = run, m, p.released[:0]
	m.leases = append(m.leases, p)
	until := d.now() + d.o.AckTimeout
	if planted.Bug("dispatch: lease ends early") {
		until -= d.o.AckTimeout * 9 / 10
	}
	d.set(&p.alarm, p, until)
	p.queue.ready[p.number/64] &^= 1 << (p.number % 64)
	p.queue.next = int(p.number) + 1
	d.mu.metrics.Leases++
	d.mu.metrics.Leased++
	f.Lease = Lease{ID: p.lease, Partition: p.number, Generation: p.generation, Range: run, For: d.o.AckTimeout}
	f.Err = nil
}

// endLease ends p's lease; what it leaves may be given again at once.
func (d *Dispatcher) endLease(p *partition, why Why, out *fetchList) {
	m := p.member
	if why == EndedTimeout || why == EndedGone {
		d.mu.ended = append(d.mu.ended, ended{why, p.queue.key, p.number, p.leased, m.client.key.ID, m.key.number})
	}
	if why == EndedGone && planted.Bug("dispatch: lease of the gone forgotten") {
		p.progress.Add(p.leased)
	}
	p.lease, p.member = 0, nil
	i := slices.Index(m.leases, p)
	m.leases = slices.Delete(m.leases, i, i+1)
	d.unset(&p.alarm)
	d.settle(m)
	d.mu.metrics.Leased--
	d.mu.metrics.Ended[why]++
	d.changed(p, out)
}

// ended is a lease that ran out, for the log.
type ended struct {
	why       Why
	queue     Queue
	partition uint16
	lease     offset.Range
	client    string
	member    uint32
}

// expire ends the lease or the pause of p: its time is over.
func (p *partition) expire(d *Dispatcher, out *fetchList) {
	if p.paused {
		p.paused = false
		d.changed(p, out)
		return
	}
	d.endLease(p, EndedTimeout, out)
}

// find returns the partition of q if it still has the lease.
func (d *Dispatcher) find(key Queue, l *Lease) *partition {
	q := d.mu.queues[key]
	if q == nil || int(l.Partition) >= len(q.partitions) {
		return nil
	}
	if p := q.partitions[l.Partition]; p.lease == l.ID {
		return p
	}
	return nil
}

// Shrink cuts a lease that was just given to what is delivered of it, [From, to): at least one message.
func (d *Dispatcher) Shrink(q Queue, l *Lease, to index.Index) {
	if to <= l.From || to > l.To {
		panic("dispatch: a lease cannot be shrunk to nothing or widened")
	}
	l.To = to
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.find(q, l); p != nil {
		p.leased.To = to
	}
}

// GiveBack ends a lease that was given and not delivered. If pause is not 0 its partition gives nothing for so long: it
// could not be read, and others shall not wait for it.
func (d *Dispatcher) GiveBack(q Queue, l *Lease, pause time.Duration) {
	var out fetchList
	d.mu.Lock()
	if p := d.find(q, l); p != nil {
		p.paused = pause > 0
		d.endLease(p, EndedUnread, &out)
		if p.paused {
			d.set(&p.alarm, p, d.now()+pause)
		}
	}
	d.mu.Unlock()
	out.call()
}

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
	q := d.mu.queues[key]
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
		ticket = d.mu.taken
		if len(d.mu.ends) > 0 {
			ticket++
		}
	}
	d.mu.Unlock()
	out.call()
	return codes, ticket, nil
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

func (d *Dispatcher) ack(p *partition, m *member, item *wire.AckRange, out *fetchList) wire.Code {
	r := offset.Range{From: index.Index(item.From), To: index.Index(item.To)}
	switch {
	case r.Len() == 0 || r.To > p.end:
		return wire.CodeOutOfRange
	case p.lease == 0 || p.lease != item.Lease:
		switch number := item.Lease &^ (bootMask << leaseNumberBits); {
		case p.progress.Count(r) == r.Len():
			return wire.CodeAlreadyEnded
		case item.Lease&(bootMask<<leaseNumberBits) == d.boot && 0 < number && number <= d.mu.leases:
			return wire.CodeLeaseExpired
		}
		return wire.CodeLeaseUnknown
	case p.member != m:
		return wire.CodeLeaseForeign
	case !p.leased.Contains(r):
		return wire.CodeOutOfRange
	}
	had := p.progress.Count(r)
	if item.Outcome == wire.Released {
		if had == r.Len() {
			return wire.CodeAlreadyEnded
		}
		p.released.Add(r)
	} else {
		if had == r.Len() {
			return wire.CodeAlreadyEnded
		}
		// What had ended before is not said again.
		for gap := p.progress.GapIn(r); gap.Len() > 0; gap = p.progress.GapIn(offset.Range{From: gap.To, To: r.To}) {
			d.mu.ends = append(d.mu.ends, offset.End{Group: p.queue.key.Group, Topic: p.queue.key.Topic, Partition: p.number, Generation: p.generation, Outcome: item.Outcome, Range: gap})
		}
		p.progress.Add(r)
	}
	if p.left() == 0 {
		why := EndedAcked
		if p.progress.Count(p.leased) < p.leased.Len() {
			why = EndedReleased
		}
		d.endLease(p, why, out)
	}
	return wire.CodeOK
}

// Held is a lease as others see it.
type Held struct {
	Partition uint16
	Left      uint64 // messages neither acked nor released
	Client    string
	Member    uint32
}

// Held returns the leases of a queue, by partition.
func (d *Dispatcher) Held(key Queue) []Held {
	d.mu.Lock()
	defer d.mu.Unlock()
	q := d.mu.queues[key]
	if q == nil {
		return nil
	}
	var held []Held
	for _, p := range q.partitions {
		if p.lease != 0 {
			held = append(held, Held{p.number, p.left(), p.member.client.key.ID, p.member.key.number})
		}
	}
	return held
}

func sortPartitions(s []*partition) {
	slices.SortFunc(s, func(a, b *partition) int {
		return cmp.Or(
			cmp.Compare(a.queue.key.Topic.ID, b.queue.key.Topic.ID),
			cmp.Compare(a.queue.key.Group, b.queue.key.Group),
			cmp.Compare(a.number, b.number))
	})
}

// Metrics of a Dispatcher.
type Metrics struct {
	Leases  uint64       // given
	Leased  int          // held now
	Ended   [whys]uint64 // by Why
	Waiting int          // parked fetches
	Refused uint64       // fetches refused since too many are parked
}

// Metrics returns them.
func (d *Dispatcher) Metrics() Metrics {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.mu.metrics
	m.Waiting = d.mu.waiting
	return m
}
