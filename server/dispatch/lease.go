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
	Attempt    uint32 // 1 and the leases of these messages that ran out before
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
	EndedReset               // the group was moved, altered or removed, or the topic deleted
	EndedRevoked             // its client may not consume there any more
	whys
)

func (w Why) String() string {
	return [...]string{"acked", "released", "timeout", "gone", "unread", "lost", "reset", "revoked"}[w]
}

// ranOut reports whether the member had the messages and neither acked nor released them: that is counted.
func (w Why) ranOut() bool { return w == EndedTimeout || w == EndedGone }

// lease is a Lease that lasts. Guarded by Dispatcher.mu.
//
//	left = messages of Range neither ended nor released > 0
type lease struct {
	id        uint64
	partition *partition
	member    *member
	offset.Range
	left     uint64
	released offset.Ranges // of Range
	count    uint32        // leases of each of its messages that ran out before
	until    time.Duration // when it ends, since Dispatcher.start
	alarm    alarm
}

const (
	spareMax    = 1024 // members and leases that are kept to be used again
	releasedMax = 64   // and the room for ranges of each lease
	listMoveMax = 64   // a longer list of leases gives the room of the first up
)

func (d *Dispatcher) newLease() *lease {
	if n := len(d.mu.spareLeases); n > 0 {
		l := d.mu.spareLeases[n-1]
		d.mu.spareLeases = d.mu.spareLeases[:n-1]
		return l
	}
	return &lease{}
}

// The lists of leases ascend by id: a new one has the highest but for those that were taken in, which lie behind.
func addLease(list []*lease, l *lease) []*lease {
	if n := len(list); n == 0 || list[n-1].id < l.id {
		return append(list, l)
	}
	i, _ := findLease(list, l.id)
	return slices.Insert(list, i, l)
}

func findLease(list []*lease, id uint64) (int, bool) {
	return slices.BinarySearchFunc(list, id, func(l *lease, id uint64) int { return cmp.Compare(l.id, id) })
}

func dropLease(list []*lease, id uint64) []*lease {
	i, ok := findLease(list, id)
	if !ok {
		panic("dispatch: a lease is not in a list that it belongs to")
	}
	if i == 0 && len(list) > listMoveMax {
		list[0] = nil
		return list[1:] // most leases end in order
	}
	return slices.Delete(list, i, i+1)
}

// grant leases p's next run to f's member.
func (d *Dispatcher) grant(p *partition, f *Fetch) {
	m := d.member(f.Client, p.queue, f.Member)
	run, count := p.run()
	if planted.Bug("dispatch: lease from the end of what waits") && run.Len() > uint64(f.Max) {
		p.back.Add(run)
		run.From = run.To - index.Index(f.Max)
	}
	run.To = min(run.To, run.From+index.Index(min(uint64(f.Max), p.room(m))))
	if run.Len() == 0 {
		panic("dispatch: a lease of nothing") // isReady and room were asked
	}
	p.back.Remove(run)
	p.next = max(p.next, run.To)

	d.mu.leases++
	l := d.newLease()
	l.id = d.mu.leases
	l.partition, l.member, l.Range, l.left, l.released, l.count = p, m, run, run.Len(), l.released[:0], count
	m.leases = addLease(m.leases, l)
	p.leases = addLease(p.leases, l)
	p.flight(m, int64(l.left))
	lasts := f.For
	if lasts == 0 {
		lasts = d.o.AckTimeout
	}
	l.until = d.now() + lasts
	if planted.Bug("dispatch: lease ends early") {
		l.until -= lasts * 9 / 10
	}
	d.set(&l.alarm, l, l.until)
	p.mark()
	p.queue.next = int(p.number) + 1
	d.mu.metrics.Leases++
	d.mu.metrics.Leased++
	f.Lease = Lease{ID: l.id, Partition: p.number, Generation: p.generation, Attempt: count + 1, Range: run, For: lasts}
	f.Err = nil
}

// endLease ends l; what it leaves may be given again at once. l is not to be used afterwards.
func (d *Dispatcher) endLease(l *lease, why Why, out *fetchList) {
	p, m := l.partition, l.member
	if why != EndedUnread {
		p.pause = 0
	}
	if why.ranOut() {
		d.report(l, why)
	}
	p.leases = dropLease(p.leases, l.id)
	m.leases = dropLease(m.leases, l.id)
	p.flight(m, -int64(l.left))
	d.unset(&l.alarm)
	if l.left > 0 && why.ranOut() {
		d.runOut(l)
	}
	if why == EndedGone && planted.Bug("dispatch: lease of the gone forgotten") {
		p.progress.Add(l.Range)
	}
	if l.left > 0 || len(l.released) > 0 {
		for gap := p.progress.GapIn(l.Range); gap.Len() > 0; gap = p.progress.GapIn(offset.Range{From: gap.To, To: l.To}) {
			if !p.queue.policy.Parallel {
				p.back.Add(gap)
				continue
			}
			// What was released is back, or given again.
			for open := l.released.Gap(gap); open.Len() > 0; open = l.released.Gap(offset.Range{From: open.To, To: gap.To}) {
				p.back.Add(open)
			}
		}
	}
	l.partition, l.member, l.left = nil, nil, 0
	if cap(l.released) > releasedMax {
		l.released = nil
	}
	if len(d.mu.spareLeases) < spareMax {
		d.mu.spareLeases = append(d.mu.spareLeases, l)
	}
	d.settle(m)
	d.mu.metrics.Leased--
	d.mu.metrics.Ended[why]++
	d.changed(p, out)
}

// runOut counts that the messages which l leaves were not acked in time.
func (d *Dispatcher) runOut(l *lease) {
	p := l.partition
	e := offset.Expiry{Group: p.queue.key.Group, Topic: p.queue.key.Topic, Partition: p.number, Generation: p.generation, Count: l.count + 1}
	// Beyond its bound neither the table nor this would keep them.
	for gap := p.progress.GapIn(l.Range); gap.Len() > 0 && len(e.Ranges) < offset.ExpiriesMax; gap = p.progress.GapIn(offset.Range{From: gap.To, To: l.To}) {
		for open := l.released.Gap(gap); open.Len() > 0 && len(e.Ranges) < offset.ExpiriesMax; open = l.released.Gap(offset.Range{From: open.To, To: gap.To}) {
			e.Ranges.Add(open)
		}
	}
	for _, r := range e.Ranges {
		p.progress.Expire(r, e.Count)
	}
	d.keepExpiry(e)
}

// ended is leases that ran out together, for the log.
type ended struct {
	why       Why
	queue     Queue
	partition uint16
	lease     offset.Range // with several: from the first to the last
	leases    int
	client    string
	member    uint32
}

func (d *Dispatcher) report(l *lease, why Why) {
	p := l.partition
	e := ended{why, p.queue.key, p.number, l.Range, 1, l.member.client.key.ID, l.member.key.number}
	if n := len(d.mu.ended); n > 0 {
		last := &d.mu.ended[n-1]
		same := *last
		same.lease, same.leases = e.lease, 1
		if same == e {
			last.lease = offset.Range{From: min(last.lease.From, l.From), To: max(last.lease.To, l.To)}
			last.leases++
			return
		}
	}
	d.mu.ended = append(d.mu.ended, e)
}

// expire ends the lease: its time is over.
func (l *lease) expire(d *Dispatcher, out *fetchList) { d.endLease(l, EndedTimeout, out) }

// find returns the lease if it lasts.
func (d *Dispatcher) find(key Queue, partition uint16, id uint64) *lease {
	q := d.mu.queues[key]
	if q == nil || int(partition) >= len(q.partitions) {
		return nil
	}
	p := q.partitions[partition]
	if i, ok := findLease(p.leases, id); ok {
		return p.leases[i]
	}
	return nil
}

// Shrink cuts a lease that was just given to what is delivered of it, [From, to): at least one message.
func (d *Dispatcher) Shrink(q Queue, l *Lease, to index.Index) {
	if to <= l.From || to > l.To {
		panic("dispatch: a lease cannot be shrunk to nothing or widened")
	}
	l.To = to
	var out fetchList
	d.mu.Lock()
	defer d.unlock(&out)
	held := d.find(q, l.Partition, l.ID)
	if held == nil || held.To <= to {
		return
	}
	p, rest := held.partition, offset.Range{From: to, To: held.To}
	held.To = to
	for gap := p.progress.GapIn(rest); gap.Len() > 0; gap = p.progress.GapIn(offset.Range{From: gap.To, To: rest.To}) {
		p.back.Add(gap)
		held.left -= gap.Len()
		p.flight(held.member, -int64(gap.Len()))
	}
	if held.left == 0 { // all that is left of it was skipped meanwhile
		d.endLease(held, EndedAcked, &out)
		return
	}
	d.changed(p, &out)
}

// GiveBack ends a lease that was given and not delivered. If pauseMost is not 0 its partition could not be read, and others
// shall not wait for it: it gives nothing for the pause that is returned, which is short at first, since what is damaged is
// repaired at once, and doubles up to pauseMost while nothing of the partition can be read.
func (d *Dispatcher) GiveBack(q Queue, l *Lease, pauseMost time.Duration) (pause time.Duration) {
	var out fetchList
	d.mu.Lock()
	defer d.unlock(&out)
	held := d.find(q, l.Partition, l.ID)
	if held == nil {
		return pauseMost
	}
	p := held.partition
	if pauseMost > 0 {
		pause = min(max(2*p.pause, unreadPauseFirst), pauseMost)
		p.paused, p.pause = true, pause
		d.set(&p.alarm, p, d.now()+pause)
	}
	d.endLease(held, EndedUnread, &out)
	return pause
}

// LeaseName names a lease to be extended.
type LeaseName struct {
	Partition uint16
	ID        uint64
}

// Extend makes leases of a member last until at least d from now on, and appends a code for each to codes.
func (d *Dispatcher) Extend(key Queue, c Client, member uint32, leases []LeaseName, by time.Duration, codes []wire.Code) []wire.Code {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.findMember(c, d.mu.queues[key], member)
	until := d.now() + by
	for _, name := range leases {
		l := d.find(key, name.Partition, name.ID)
		switch {
		case l == nil:
			codes = append(codes, d.missing(name.ID))
			continue
		case l.member != m:
			codes = append(codes, wire.CodeLeaseForeign)
			continue
		}
		if until > l.until && !planted.Bug("dispatch: extended lease ends in its old time") {
			l.until = until
			d.set(&l.alarm, l, until)
		}
		codes = append(codes, wire.CodeOK)
	}
	return codes
}

// missing says what became of a lease that is not there.
func (d *Dispatcher) missing(id uint64) wire.Code {
	if d.mu.first < id && id <= d.mu.leases {
		return wire.CodeLeaseExpired
	}
	if d.mu.held && id&elsewhereBit != 0 {
		return wire.CodeNotMaster // a slave's, which may not have been taken in yet: it is asked again
	}
	return wire.CodeLeaseUnknown
}

// Held is a lease as others see it.
type Held struct {
	Partition uint16
	offset.Range
	Left    uint64 // messages neither acked nor released
	Attempt uint32
	Client  string
	Member  uint32
}

// Held returns the leases of a queue, by partition, then in the order in which they were given; those that were taken in come last.
func (d *Dispatcher) Held(key Queue) []Held {
	d.mu.Lock()
	defer d.mu.Unlock()
	q := d.mu.queues[key]
	if q == nil {
		return nil
	}
	var held []Held
	for _, p := range q.partitions {
		for _, l := range p.leases {
			held = append(held, Held{p.number, l.Range, l.left, l.count + 1, l.member.client.key.ID, l.member.key.number})
		}
	}
	return held
}

func sortLeases(s []*lease) {
	slices.SortFunc(s, func(a, b *lease) int {
		p, o := a.partition, b.partition
		return cmp.Or(
			cmp.Compare(p.queue.key.Topic.ID, o.queue.key.Topic.ID),
			cmp.Compare(p.queue.key.Group, o.queue.key.Group),
			cmp.Compare(p.number, o.number),
			cmp.Compare(a.id, b.id))
	})
}
