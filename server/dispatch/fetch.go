package dispatch

import (
	"math/bits"
	"slices"
	"time"
)

// Fetch is one member's wish for a lease. The caller owns it; while it is parked it is the Dispatcher's.
type Fetch struct {
	Queue      Queue
	Partitions int // how many the topic has
	Client     Client
	Member     uint32
	Max        uint32        // messages, at least 1
	For        time.Duration // how long a lease lasts; 0: Options.AckTimeout
	Only       []uint16      // these partitions; empty: any
	Wait       time.Duration // of a parked one
	Waiter     Waiter        // of a parked one

	// Reconcile: before anything is given, the member's parked fetches end with ErrReplaced, and its leases but Held end. Done
	// once: it is false afterwards.
	Reconcile bool
	Held      []uint64 // not looked at later
	Round     uint64   // counts the member's fetches: one older than the last that reconciled is ErrReplaced. 0: not counted

	Lease Lease // with Err == nil
	Err   error // why a parked one ended without: ErrNone after Wait, ErrCancelled, ErrReplaced, or what Stop was given

	cancelled  bool
	parked     bool
	named      []uint64 // of a parked one: a bit for each partition of Only
	next, prev *Fetch
	member     *member
	alarm      alarm
}

// Waiter is told, without a lock, that its parked fetch ended. It must not block: it runs in the journal's committer too.
type Waiter interface{ Granted(f *Fetch) }

// accepts is asked of parked fetches, for each of them at a commit.
func (f *Fetch) accepts(p uint16) bool {
	return f.named == nil || int(p/64) < len(f.named) && f.named[p/64]&(1<<(p%64)) != 0
}

// bitsOf returns a set of partitions as a bit for each; nil for an empty one.
func bitsOf(partitions []uint16) []uint64 {
	if len(partitions) == 0 {
		return nil
	}
	set := make([]uint64, slices.Max(partitions)/64+1)
	for _, p := range partitions {
		set[p/64] |= 1 << (p % 64)
	}
	return set
}

// fetchList is a list in order of arrival, by the fetches' own links.
type fetchList struct{ head, tail *Fetch }

func (l *fetchList) push(f *Fetch) {
	f.next, f.prev = nil, l.tail
	if l.tail != nil {
		l.tail.next = f
	} else {
		l.head = f
	}
	l.tail = f
}

func (l *fetchList) remove(f *Fetch) {
	if f.prev != nil {
		f.prev.next = f.next
	} else {
		l.head = f.next
	}
	if f.next != nil {
		f.next.prev = f.prev
	} else {
		l.tail = f.prev
	}
	f.next, f.prev = nil, nil
}

// call tells each that it ended. No lock may be held.
func (l *fetchList) call() {
	for f := l.head; f != nil; {
		next := f.next // f is its caller's again from here on
		f.next, f.prev = nil, nil
		f.Waiter.Granted(f)
		f = next
	}
}

// Take leases the next range, or returns ErrNone.
func (d *Dispatcher) Take(f *Fetch) error { return d.fetch(f, take) }

// Park leases the next range, or parks the fetch and returns ErrParked: then its Waiter is told once, maybe before Park
// returns.
func (d *Dispatcher) Park(f *Fetch) error { return d.fetch(f, park) }

// Leave reconciles, if f asks for it, and gives nothing: it returns ErrNone at best.
func (d *Dispatcher) Leave(f *Fetch) error { return d.fetch(f, leave) }

type fetchMode uint8

const (
	take fetchMode = iota
	park
	leave
)

func (d *Dispatcher) fetch(f *Fetch, mode fetchMode) error {
	if f.Max == 0 {
		panic("dispatch: a fetch of no message")
	}
	if err := d.load(f.Queue, f.Partitions); err != nil {
		return err
	}
	var out fetchList
	d.mu.Lock()
	defer d.unlock(&out)
	return d.serve(f, mode, &out)
}

func (d *Dispatcher) serve(f *Fetch, mode fetchMode, out *fetchList) error {
	q := d.mu.queues[f.Queue]
	switch {
	case q == nil:
		return ErrNoGroup
	case d.mu.stopped != nil:
		return d.mu.stopped
	case f.cancelled:
		return ErrCancelled
	case d.stale(q, f):
		return ErrReplaced
	}
	if f.Reconcile {
		m := d.member(f.Client, q, f.Member)
		m.asks = true
		defer func() { m.asks = false; d.settle(m) }()
		d.reconcile(q, f, m, out)
		f.Reconcile, f.Held = false, nil
	}
	if mode == leave {
		return ErrNone
	}
	q.fetched = d.now()
	if d.mu.metrics.Leased >= d.o.LeasesMax {
		d.mu.metrics.Refused++
		return ErrFull
	}
	if !d.mu.held {
		if p := q.choose(f, d.findMember(f.Client, q, f.Member)); p != nil {
			d.grant(p, f)
			return nil
		}
	}
	if mode == take {
		return ErrNone
	}
	if c := d.mu.clients[f.Client]; d.mu.waiting >= d.o.WaitersMax || c != nil && c.parked >= d.o.ClientWaitersMax {
		d.mu.metrics.Refused++
		return ErrBusy
	}
	d.park(q, f)
	return ErrParked
}

func (d *Dispatcher) park(q *queue, f *Fetch) {
	f.parked = true
	f.named = bitsOf(f.Only)
	f.member = d.member(f.Client, q, f.Member)
	f.member.parked = append(f.member.parked, f)
	f.member.client.parked++
	q.parked.push(f)
	q.count(f, 1)
	d.mu.waiting++
	d.set(&f.alarm, f, d.now()+f.Wait)
}

// count adds n to what q counts of its parked fetches for the partitions that f accepts.
func (q *queue) count(f *Fetch, n int) {
	if f.named == nil {
		q.parkedAny += n
		return
	}
	for w, word := range f.named {
		for ; word != 0; word &= word - 1 {
			p := w*64 + bits.TrailingZeros64(word)
			for p >= len(q.parkedFor) {
				q.parkedFor = append(q.parkedFor, 0)
			}
			q.parkedFor[p] += n
		}
	}
}

// Cancel ends f if it is parked, and lets it not park any more.
func (d *Dispatcher) Cancel(f *Fetch) {
	var out fetchList
	d.mu.Lock()
	defer d.unlock(&out)
	f.cancelled = true
	if f.parked {
		d.settle(d.unpark(f.member.key.queue, f))
		f.Err = ErrCancelled
		out.push(f)
	}
}

// expire ends f: it waited long enough.
func (f *Fetch) expire(d *Dispatcher, out *fetchList) {
	d.settle(d.unpark(f.member.key.queue, f))
	f.Err = ErrNone
	out.push(f)
}

// unpark takes f out of q and returns its member, which gets a lease at once or is to be settled.
func (d *Dispatcher) unpark(q *queue, f *Fetch) *member {
	q.parked.remove(f)
	q.count(f, -1)
	d.unset(&f.alarm)
	d.mu.waiting--
	m := f.member
	f.parked, f.member, f.named = false, nil, nil
	i := slices.Index(m.parked, f)
	m.parked = slices.Delete(m.parked, i, i+1)
	m.client.parked--
	return m
}

// pick returns the parked fetch that gets p: of those that accept it and may have more of it the first whose member has the
// least (leases; with a parallel policy messages of p). So nobody gets more than a fair share while one who has less waits, and
// equals are served as they came. It is asked at each commit: fetches that wait for something else must not cost anything.
func (q *queue) pick(p *partition) *Fetch {
	if q.parkedAny == 0 && (int(p.number) >= len(q.parkedFor) || q.parkedFor[p.number] == 0) {
		return nil
	}
	var best *Fetch
	least := ^uint64(0)
	for f := q.parked.head; f != nil && least > 0; f = f.next {
		if !f.accepts(p.number) {
			continue
		}
		has := uint64(len(f.member.leases))
		if q.policy.Parallel {
			has = p.has(f.member)
		}
		if has < least && p.room(f.member) > 0 {
			best, least = f, has
		}
	}
	return best
}

// choose returns a ready partition that f of member m accepts and may have more of, going round behind the one given last; nil if
// there is none.
func (q *queue) choose(f *Fetch, m *member) *partition {
	if len(f.Only) > 0 {
		var best *partition
		for _, n := range f.Only {
			if int(n) >= q.loaded || q.ready[n/64]&(1<<(n%64)) == 0 {
				continue
			}
			if p := q.partitions[n]; (best == nil || q.distance(p) < q.distance(best)) && p.room(m) > 0 {
				best = p
			}
		}
		return best
	}
	if len(q.ready) == 0 {
		return nil
	}
	start := q.next
	if start >= len(q.partitions) {
		start = 0
	}
	// The word that holds start is looked at twice: from start on first, below it last.
	for i, w := 0, start/64; i <= len(q.ready); i, w = i+1, (w+1)%len(q.ready) {
		word := q.ready[w]
		switch i {
		case 0:
			word &= ^uint64(0) << (start % 64)
		case len(q.ready):
			word &= 1<<(start%64) - 1
		}
		for ; word != 0; word &= word - 1 {
			if p := q.partitions[w*64+bits.TrailingZeros64(word)]; p.room(m) > 0 {
				return p
			}
		}
	}
	return nil
}

// distance is how far p lies behind where the search starts.
func (q *queue) distance(p *partition) int {
	n := len(q.partitions)
	return (int(p.number) - q.next%n + n) % n
}
