package dispatch

import (
	"errors"
	"fmt"
	"math/bits"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/wire"
)

// invariants checks what the comments promise.
func (d *Dispatcher) invariants() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	alarms, waiting, leased := map[*alarm]bool{}, 0, 0
	clients := map[*client]int{} // parked
	for _, q := range d.mu.queues {
		members := map[*member][2]int{} // leases, parked
		counted := 0
		for i, p := range q.partitions {
			ready := q.ready[i/64]>>(i%64)&1 == 1
			if ready != p.isReady() {
				return fmt.Errorf("partition %d: ready bit %v, is %v", i, ready, p.isReady())
			}
			for f := q.parked.head; f != nil; f = f.next {
				if ready && f.accepts(p.number) && p.room(f.member) > 0 {
					return fmt.Errorf("partition %d is ready while a fetch of %v waits", i, f.Client)
				}
			}
			shares, inFlight := map[*member]uint64{}, uint64(0)
			below := offset.Ranges{}
			for k, l := range p.leases {
				leased++
				n := members[l.member]
				n[0]++
				members[l.member] = n
				alarms[&l.alarm] = true
				open := offset.Ranges{}
				for gap := p.progress.GapIn(l.Range); gap.Len() > 0; gap = p.progress.GapIn(offset.Range{From: gap.To, To: l.To}) {
					for r := l.released.Gap(gap); r.Len() > 0; r = l.released.Gap(offset.Range{From: r.To, To: gap.To}) {
						open.Add(r)
					}
					if !q.policy.Parallel {
						below.Add(gap)
					}
				}
				for _, r := range open {
					if n := below.Add(r); q.policy.Parallel && n != r.Len() {
						return fmt.Errorf("partition %d: %v is in two leases", i, r)
					}
				}
				if l.left == 0 || l.left != open.Len() || l.To > p.end || l.To > p.next || l.partition != p || k > 0 && l.id <= p.leases[k-1].id {
					return fmt.Errorf("partition %d: lease %d of %v with %d left, open %v, end %d, next %d", i, l.id, l.Range, l.left, open, p.end, p.next)
				}
				shares[l.member] += l.left
				inFlight += l.left
			}
			if len(shares) != len(p.shares) || inFlight != p.inFlight {
				return fmt.Errorf("partition %d: %d are in flight, counted %d; with %d members, counted %d", i, inFlight, p.inFlight, len(shares), len(p.shares))
			}
			for _, s := range p.shares {
				if shares[s.member] != s.n {
					return fmt.Errorf("partition %d: %d are in flight with a member, counted %d", i, shares[s.member], s.n)
				}
			}
			for _, r := range p.back {
				if below.Add(r) != r.Len() || p.progress.Count(r) > 0 {
					return fmt.Errorf("partition %d: %v is back, and in a lease or ended: %v", i, r, p.progress)
				}
			}
			if all := (offset.Range{From: p.progress.Ack, To: p.next}); p.loaded && below.Len()+p.progress.Count(all) != all.Len() {
				return fmt.Errorf("partition %d: below %d lie %v and %v", i, p.next, below, p.progress)
			}
			if !q.policy.Parallel && len(p.leases) > 1 {
				return fmt.Errorf("partition %d: %d leases", i, len(p.leases))
			}
			if p.paused {
				alarms[&p.alarm] = true
			}
		}
		for f := q.parked.head; f != nil; f = f.next {
			waiting++
			alarms[&f.alarm] = true
			n := members[f.member]
			n[1]++
			members[f.member] = n
			clients[f.member.client]++
			if f.named == nil {
				counted--
			}
		}
		if counted += q.parkedAny; counted != 0 {
			return fmt.Errorf("%d too many are counted as waiting for any partition", counted)
		}
		for p, n := range q.parkedFor {
			for f := q.parked.head; f != nil; f = f.next {
				if f.named != nil && f.accepts(uint16(p)) {
					n--
				}
			}
			if n != 0 {
				return fmt.Errorf("%d too many are counted as waiting for partition %d", n, p)
			}
		}
		if len(members) != q.members {
			return fmt.Errorf("%d members, counted %d", len(members), q.members)
		}
		for m, n := range members {
			if len(m.leases) != n[0] || len(m.parked) != n[1] || m.client.members[m.key] != m || d.mu.clients[m.client.key] != m.client {
				return fmt.Errorf("member %v#%d has %d leases and %d parked, counts %v", m.client.key, m.key.number, len(m.leases), len(m.parked), n)
			}
		}
	}
	if waiting != d.mu.waiting || leased != d.mu.metrics.Leased {
		return fmt.Errorf("%d wait, %d counted; %d leased, %d counted", waiting, d.mu.waiting, leased, d.mu.metrics.Leased)
	}
	for _, c := range d.mu.clients {
		if c.parked != clients[c] {
			return fmt.Errorf("client %v has %d parked, counts %d", c.key, clients[c], c.parked)
		}
		if c.conns == 0 && (len(c.members) == 0 || c.reconciled != nil) {
			return fmt.Errorf("client %v is kept for nothing, or its rounds are: %v", c.key, c.reconciled)
		}
		if c.gone.place > 0 {
			alarms[&c.gone] = true
		}
		for _, m := range c.members {
			if !m.active() {
				return fmt.Errorf("member %v#%d is kept for nothing", c.key, m.key.number)
			}
		}
	}
	h := d.mu.alarms.heap
	if len(h) != len(alarms) {
		return fmt.Errorf("%d alarms are set, want %d", len(h), len(alarms))
	}
	for i, a := range h {
		if !alarms[a] || a.place != i+1 || i > 0 && d.mu.alarms.less(i, (i-1)/2) {
			return fmt.Errorf("alarm %d of the heap is out of place", i)
		}
	}
	return nil
}

// modelFetch notes what a fetch got.
type modelFetch struct {
	Fetch
	got chan struct{}
}

func (f *modelFetch) Granted(*Fetch) { close(f.got) }

// TestModel does random calls and lets time pass, and compares with a model that knows of each message how it ended and
// who may have it: no message that ended is given, none is with two members, the first that did not end is given first,
// a code tells what is true, and at the end everything can be consumed.
func TestModel(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		var failure error
		var stopped any // rapid ends a run by a panic when there is nothing left to draw, which must not cross the bubble
		synctest.Test(t, func(*testing.T) {
			defer func() {
				if stopped = recover(); stopped != nil && fmt.Sprintf("%T", stopped) != "rapid.invalidData" {
					failure, stopped = fmt.Errorf("panic: %v\n%s", stopped, debug.Stack()), nil
				}
			}()
			failure = runModel(r)
		})
		if stopped != nil {
			panic(stopped)
		}
		if failure != nil {
			r.Fatal(failure)
		}
	})
}

func runModel(r *rapid.T) (failure error) {
	const partitions, clients, n = 3, 3, 30
	s := &fakeSource{ends: map[uint16]index.Index{}, progress: map[offset.GroupID]map[uint16]offset.Progress{}}
	d := New(Options{Source: s, WaitersMax: 5, ClientWaitersMax: 4, AckTimeout: time.Minute})
	defer d.Close()
	defer d.Stop(errors.New("over"))
	q := Queue{Group: 1, Topic: topic}
	type lease struct {
		Lease
		client Client
		member uint32
	}
	var (
		ended   [partitions][n]bool
		ends    [partitions]index.Index
		conns   [clients]int
		parked  []*modelFetch
		leases  []lease // ever given
		journal offset.Ranges
		rounds  uint64 = 1
	)
	client := func(i int) Client { return Client{ID: fmt.Sprint("c", i)} }
	granted := func(f *modelFetch) {
		l := f.Lease
		for i := l.From; i < l.To; i++ {
			if ended[l.Partition][i] || i >= ends[l.Partition] {
				failure = fmt.Errorf("%v of partition %d was given, %d had ended or is not there", l.Range, l.Partition, i)
			}
		}
		for i := range l.From {
			if !ended[l.Partition][i] {
				failure = fmt.Errorf("%v of partition %d was given before %d", l.Range, l.Partition, i)
			}
		}
		for _, h := range d.Held(q) {
			// It may have ended by now, and another's begun.
			if h.Partition == l.Partition && d.find(q, l.Partition, l.ID) != nil && (h.Client != f.Client.ID || h.Member != f.Member) {
				failure = fmt.Errorf("partition %d was given to %v#%d, %v#%d holds it", l.Partition, f.Client, f.Member, h.Client, h.Member)
			}
		}
		leases = append(leases, lease{l, f.Client, f.Member})
	}
	settle := func() {
		synctest.Wait()
		kept := parked[:0]
		for _, f := range parked {
			select {
			case <-f.got:
				if f.Err == nil {
					granted(f)
				}
			default:
				kept = append(kept, f)
			}
		}
		parked = kept
		if err := d.invariants(); err != nil && failure == nil {
			failure = err
		}
	}
	steps := rapid.IntRange(1, 60).Draw(r, "steps")
	for range steps {
		c := rapid.IntRange(0, clients-1).Draw(r, "client")
		p := uint16(rapid.IntRange(0, partitions-1).Draw(r, "partition"))
		switch op := rapid.SampledFrom([]string{"commit", "fetch", "fetch", "ack", "ack", "ack", "wait", "connect", "cancel", "giveback", "reconcile"}).Draw(r, "op"); op {
		case "commit":
			ends[p] = min(n, ends[p]+index.Index(rapid.IntRange(1, 6).Draw(r, "messages")))
			s.commit(d, p, ends[p])
		case "fetch":
			f := &modelFetch{got: make(chan struct{})}
			f.Fetch = Fetch{Queue: q, Partitions: partitions, Client: client(c), Member: uint32(rapid.IntRange(0, 1).Draw(r, "member")), Max: uint32(rapid.IntRange(1, 5).Draw(r, "max")),
				Wait: time.Duration(rapid.IntRange(0, 20).Draw(r, "wait")) * time.Second, Waiter: f}
			if rapid.Bool().Draw(r, "only") {
				f.Only = []uint16{p}
			}
			switch err := d.Park(&f.Fetch); err {
			case nil:
				granted(f)
			case ErrParked:
				parked = append(parked, f)
			case ErrBusy:
				own := 0
				for _, g := range parked {
					if g.Client == f.Client {
						own++
					}
				}
				if len(parked) < 5 && own < 4 {
					return fmt.Errorf("busy with %d parked, %d of its own", len(parked), own)
				}
			default:
				return err
			}
		case "ack":
			if len(leases) == 0 {
				continue
			}
			l := leases[max(0, len(leases)-1-rapid.IntRange(0, 4).Draw(r, "which"))]
			from := l.From + index.Index(rapid.IntRange(0, int(l.Len())-1).Draw(r, "from"))
			to := from + index.Index(rapid.IntRange(1, int(l.To-from)).Draw(r, "length"))
			item := wire.AckRange{Partition: l.Partition, Lease: l.ID, From: uint64(from), To: uint64(to), Outcome: rapid.SampledFrom([]wire.Outcome{wire.Acked, wire.Acked, wire.Released}).Draw(r, "outcome")}
			held := false
			for _, h := range d.Held(q) {
				held = held || h.Partition == l.Partition && d.find(q, l.Partition, l.ID) != nil
			}
			all := true
			for i := from; i < to; i++ {
				all = all && ended[l.Partition][i]
			}
			codes, _, err := d.Ack(q, partitions, l.client, l.member, []wire.AckRange{item}, nil)
			if err != nil {
				return err
			}
			want := wire.CodeOK
			if all {
				want = wire.CodeAlreadyEnded
			} else if !held {
				want = wire.CodeLeaseExpired
			}
			if codes[0] != want {
				return fmt.Errorf("ack of [%d,%d) of partition %d: %v, want %v", from, to, l.Partition, codes[0], want)
			}
			if codes[0] == wire.CodeOK && item.Outcome == wire.Acked {
				for i := from; i < to; i++ {
					ended[l.Partition][i] = true
				}
			}
		case "wait":
			time.Sleep(time.Duration(rapid.IntRange(1, 40).Draw(r, "seconds")) * time.Second)
		case "connect":
			if conns[c] == 0 || rapid.Bool().Draw(r, "attach") {
				conns[c]++
				d.Attach(client(c))
			} else {
				conns[c]--
				d.Detach(client(c))
			}
		case "cancel":
			if len(parked) > 0 {
				d.Cancel(&parked[0].Fetch)
			}
		case "reconcile":
			// A member that says what it has keeps no more than that, waits for nothing else, and its older fetches get nothing.
			rounds++
			f := &modelFetch{got: make(chan struct{})}
			f.Fetch = Fetch{Queue: q, Partitions: partitions, Client: client(c), Member: uint32(rapid.IntRange(0, 1).Draw(r, "member")), Max: 3, Waiter: f, Round: rounds, Reconcile: true}
			var had []uint64
			for _, l := range leases {
				if l.client == f.Client && l.member == f.Member && d.find(q, l.Partition, l.ID) != nil {
					had = append(had, l.ID)
				}
			}
			if len(had) > 0 && rapid.Bool().Draw(r, "keep") {
				f.Held = []uint64{1, had[len(had)-1]}
			}
			held := f.Held
			ask := d.Leave
			if rapid.Bool().Draw(r, "take") {
				ask = d.Take
			}
			switch err := ask(&f.Fetch); err {
			case nil:
				granted(f)
			case ErrNone:
			default:
				return fmt.Errorf("reconcile: %w", err)
			}
			for _, id := range had {
				for _, l := range leases {
					if l.ID == id && (d.find(q, l.Partition, l.ID) != nil) != slices.Contains(held, id) {
						return fmt.Errorf("lease %d of partition %d lasts: %v, held are %v", id, l.Partition, d.find(q, l.Partition, l.ID) != nil, held)
					}
				}
			}
			synctest.Wait()
			for _, g := range parked {
				if g.Client != f.Client || g.Member != f.Member {
					continue
				}
				select {
				case <-g.got:
				default:
					return fmt.Errorf("a fetch of %v#%d waits on after its reconcile", g.Client, g.Member)
				}
			}
			late := &modelFetch{}
			late.Fetch = Fetch{Queue: q, Partitions: partitions, Client: f.Client, Member: f.Member, Max: 1, Waiter: late, Round: rounds - 1, Reconcile: true}
			if conns[c] > 0 {
				if err := d.Take(&late.Fetch); err != ErrReplaced {
					return fmt.Errorf("a fetch that comes late: %v", err)
				}
			}
		case "giveback":
			if len(leases) > 0 {
				d.GiveBack(q, &leases[len(leases)-1].Lease, time.Duration(rapid.IntRange(0, 3).Draw(r, "pause"))*time.Second)
			}
		}
		if settle(); failure != nil {
			return failure
		}
	}
	// In the end nobody holds anything, and one member gets all that is left.
	for _, f := range parked {
		d.Cancel(&f.Fetch)
	}
	time.Sleep(2 * time.Minute)
	settle()
	for failure == nil {
		f := &modelFetch{}
		f.Fetch = Fetch{Queue: q, Partitions: partitions, Client: client(0), Max: 4, Waiter: f}
		if err := d.Take(&f.Fetch); err != nil {
			break
		}
		granted(f)
		for i := f.Lease.From; i < f.Lease.To; i++ {
			ended[f.Lease.Partition][i] = true
		}
		d.Ack(q, partitions, client(0), 0, []wire.AckRange{{Partition: f.Lease.Partition, Lease: f.Lease.ID, From: uint64(f.Lease.From), To: uint64(f.Lease.To), Outcome: wire.Acked}}, nil)
	}
	all, _ := d.TakeEnds(nil)
	for p := range uint16(partitions) {
		journal = journal[:0]
		for _, e := range all {
			if e.Partition == p && journal.Add(e.Range) != e.Range.Len() {
				failure = fmt.Errorf("partition %d: %v is in the ends twice", p, e.Range)
			}
		}
		if journal.Len() != uint64(ends[p]) {
			failure = fmt.Errorf("partition %d: %v ended of %d", p, journal, ends[p])
		}
	}
	if err := d.invariants(); failure == nil {
		failure = err
	}
	return failure
}

// TestConcurrent lets goroutines commit, fetch, ack, cancel, come and go at once; each message is acked once, by the member
// that has it.
func TestConcurrent(t *testing.T) {
	const partitions, n, members = 4, 2000, 6
	s := &fakeSource{ends: map[uint16]index.Index{}}
	d := New(Options{Source: s})
	q := Queue{Group: 1, Topic: topic}
	var left sync.WaitGroup
	left.Add(partitions * n)
	var all sync.WaitGroup
	for p := range uint16(partitions) {
		all.Go(func() {
			for end := index.Index(1); end <= n; end++ {
				s.commit(d, p, end)
			}
		})
	}
	over := make(chan struct{})
	go func() { left.Wait(); close(over) }()
	var seen [partitions]struct {
		sync.Mutex
		offset.Ranges
	}
	for m := range members {
		all.Go(func() {
			c := Client{ID: fmt.Sprint(m % 2)}
			d.Attach(c)
			defer d.Detach(c)
			for k := 0; ; k++ {
				f := &modelFetch{got: make(chan struct{})}
				f.Fetch = Fetch{Queue: q, Partitions: partitions, Client: c, Member: uint32(m), Max: 7, Wait: time.Minute, Waiter: f}
				switch err := d.Park(&f.Fetch); err {
				case nil:
				case ErrParked:
					if k%5 == 0 {
						d.Cancel(&f.Fetch)
					}
					select {
					case <-f.got:
					case <-over:
						d.Cancel(&f.Fetch)
						<-f.got
						return
					}
					if f.Err != nil {
						continue
					}
				default:
					t.Error(err)
					return
				}
				l := &f.Lease
				if l.Len() > 1 && k%3 == 0 {
					d.Shrink(q, l, l.From+1)
				}
				if k%7 == 0 {
					d.GiveBack(q, l, 0)
					continue
				}
				seen[l.Partition].Lock()
				if seen[l.Partition].Add(l.Range) != l.Len() {
					t.Errorf("%v of partition %d was given before", l.Range, l.Partition)
				}
				seen[l.Partition].Unlock()
				codes, _, err := d.Ack(q, partitions, c, uint32(m), []wire.AckRange{{Partition: l.Partition, Lease: l.ID, From: uint64(l.From), To: uint64(l.To), Outcome: wire.Acked}}, nil)
				if err != nil || codes[0] != wire.CodeOK {
					t.Errorf("ack of %v: %v, %v", l, codes, err)
				}
				left.Add(-int(l.Len()))
			}
		})
	}
	all.Wait()
	d.Stop(errors.New("over"))
	if err := d.invariants(); err != nil {
		t.Error(err)
	}
	d.Close()
}

// TestChooseRound shows that the search for a ready partition goes round over the words of the bit set.
func TestChooseRound(t *testing.T) {
	s := &fakeSource{ends: map[uint16]index.Index{}}
	d := New(Options{Source: s})
	defer d.Close()
	want := []uint16{3, 63, 64, 130, 199}
	for _, p := range want {
		s.ends[p] = 1000
	}
	q := Queue{Group: 1, Topic: topic}
	for round := range 3 {
		for _, p := range want {
			f := &Fetch{Queue: q, Partitions: 200, Max: 1}
			if err := d.Take(f); err != nil || f.Lease.Partition != p {
				t.Fatalf("round %d: partition %d, %v, want %d", round, f.Lease.Partition, err, p)
			}
			d.GiveBack(q, &f.Lease, 0)
		}
	}
	if got := bits.OnesCount64(d.mu.queues[q].ready[0]); got != 2 {
		t.Errorf("%d bits in the first word, want 2", got)
	}
}

// BenchmarkLease is a fetch, its ack and the commit that wakes the next fetch.
func BenchmarkLease(b *testing.B) {
	s := &fakeSource{ends: map[uint16]index.Index{}}
	d := New(Options{Source: s})
	defer d.Close()
	q := Queue{Group: 1, Topic: topic}
	f := &Fetch{Queue: q, Partitions: 8, Client: Client{ID: "a"}, Max: 10, Wait: time.Minute, Waiter: noWaiter{}}
	d.Attach(f.Client)
	var codes []wire.Code
	items := make([]wire.AckRange, 1)
	end := index.Index(0)
	b.ReportAllocs()
	for b.Loop() {
		d.Park(f)
		end++
		d.Commit(store.Partition{Topic: store.TopicID(topic.ID), Incarnation: topic.Incarnation}, end)
		items[0] = wire.AckRange{Lease: f.Lease.ID, From: uint64(f.Lease.From), To: uint64(f.Lease.To), Outcome: wire.Acked}
		codes, _, _ = d.Ack(q, 8, f.Client, 0, items, codes[:0])
		if end%64 == 0 {
			d.mu.ends = d.mu.ends[:0]
		}
	}
}

type noWaiter struct{}

func (noWaiter) Granted(*Fetch) {}
