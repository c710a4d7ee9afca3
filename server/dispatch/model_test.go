package dispatch

import (
	"cmp"
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
	at  time.Time // when it was told
}

func (f *modelFetch) Granted(*Fetch) {
	f.at = time.Now()
	close(f.got)
}

// model knows of each message how it ended, how many of its leases ran out, and who may have it.
type model struct {
	r       *rapid.T
	s       *fakeSource
	d       *Dispatcher
	q       Queue
	failure error

	ended  [modelPartitions][modelMessages]bool
	count  [modelPartitions][modelMessages]uint32 // of its leases that ran out
	given  [modelPartitions][modelMessages]bool   // since the queue was loaded
	base   [modelPartitions]index.Index           // where the last move put the group
	ends   [modelPartitions]index.Index
	paused bool
	conns  [modelClients]int
	parked []*modelFetch
	leases []*modelLease // ever given
	rounds uint64
}

type modelLease struct {
	Lease
	client   Client
	member   uint32
	until    time.Time
	released offset.Ranges
	lasts    bool
}

const modelPartitions, modelClients, modelMessages = 3, 3, 30

func (m *model) fail(format string, args ...any) {
	if m.failure == nil {
		m.failure = fmt.Errorf(format, args...)
	}
}

func modelClient(i int) Client { return Client{ID: fmt.Sprint("c", i)} }

// open calls f for the messages of l that its member still owes.
func (m *model) open(l *modelLease, f func(i index.Index)) {
	for i := l.From; i < l.To; i++ {
		if !m.ended[l.Partition][i] && !l.released.Contains(i) {
			f(i)
		}
	}
}

// holder returns the lease that message i is in, or nil. An exclusive partition is with its lease as a whole.
func (m *model) holder(p uint16, i index.Index) (h *modelLease) {
	for _, l := range m.leases {
		if !l.lasts || l.Partition != p {
			continue
		}
		if !m.s.policy.Parallel {
			return l
		}
		m.open(l, func(k index.Index) {
			if k == i {
				h = l
			}
		})
	}
	return h
}

// inFlight returns how many messages of p are with the member, or with all.
func (m *model) inFlight(p uint16, who *memberName) (n uint64) {
	for _, l := range m.leases {
		if l.lasts && l.Partition == p && (who == nil || l.client == who.Client && l.member == who.member) {
			m.open(l, func(index.Index) { n++ })
		}
	}
	return n
}

// free reports whether a partition has something that nobody has.
func (m *model) free(p uint16) bool {
	for i := range m.ends[p] {
		if !m.ended[p][i] && m.holder(p, i) == nil {
			return true
		}
	}
	return false
}

type memberName struct {
	Client
	member uint32
}

// active returns the members that hold or wait.
func (m *model) active() map[memberName]bool {
	all := map[memberName]bool{}
	for _, l := range m.leases {
		if l.lasts {
			all[memberName{l.client, l.member}] = true
		}
	}
	for _, f := range m.parked {
		all[memberName{f.Client, f.Member}] = true
	}
	return all
}

// granted judges a lease that was just given. alone: nothing else happened since the step before, so that all is known.
func (m *model) granted(f *modelFetch, alone bool) {
	l := &modelLease{Lease: f.Lease, client: f.Client, member: f.Member, until: time.Now().Add(time.Minute)}
	if !f.at.IsZero() {
		l.until = f.at.Add(time.Minute)
	}
	p := l.Partition
	if l.Len() == 0 || l.To > m.ends[p] || l.Generation != 1+m.s.moves || l.Len() > uint64(f.Max) {
		m.fail("%v of generation %d was given of partition %d, which ends at %d with %d; %d were asked for", l.Range, l.Generation, p, m.ends[p], 1+m.s.moves, f.Max)
		return
	}
	if m.paused && alone {
		m.fail("%v of partition %d was given while the topic is paused", l.Range, p)
	}
	for i := l.From; i < l.To; i++ {
		switch h := m.holder(p, i); {
		case m.ended[p][i]:
			m.fail("%v of partition %d was given, %d had ended", l.Range, p, i)
		case h != nil:
			m.fail("%v of partition %d was given, %v has %d", l.Range, p, h, i)
		case l.Attempt != m.count[p][i]+1:
			m.fail("%v of partition %d was given as attempt %d, %d leases of %d ran out", l.Range, p, l.Attempt, m.count[p][i], i)
		}
	}
	if l.Attempt > 1 && l.Len() > 1 {
		m.fail("%v of partition %d was given whole, a lease of it had run out", l.Range, p)
	}
	switch {
	case !m.s.policy.Parallel:
		for i := range l.From {
			if !m.ended[p][i] {
				m.fail("%v of partition %d was given before %d", l.Range, p, i)
			}
		}
	case alone:
		for i := range m.ends[p] {
			free := !m.ended[p][i] && m.holder(p, i) == nil && (i < l.From || i >= l.To)
			if free && (l.Attempt == 1 && m.count[p][i] > 0 || l.Attempt == 1 && !m.given[p][l.From] && m.given[p][i]) {
				m.fail("%v of partition %d was given before %d, of which %d leases ran out", l.Range, p, i, m.count[p][i])
			}
		}
	}
	for i := l.From; i < l.To; i++ {
		m.given[p][i] = true
	}
	l.lasts = true
	m.leases = append(m.leases, l)
}

// settle lets everything that was set off happen, and compares. ranOut: leases that end now ran out. kept: the members that are
// there all the time, had: what each had in flight.
func (m *model) settle(ranOut bool, before map[memberName]bool, had map[memberName][modelPartitions]uint64) {
	synctest.Wait()
	m.over(ranOut)
	var got, kept []*modelFetch
	for _, f := range m.parked {
		select {
		case <-f.got:
			if f.Err == nil {
				got = append(got, f)
			}
		default:
			kept = append(kept, f)
		}
	}
	m.parked = kept
	slices.SortFunc(got, func(a, b *modelFetch) int { return cmp.Compare(a.Lease.ID, b.Lease.ID) })
	for _, f := range got {
		m.granted(f, false)
		m.over(ranOut)
	}
	if err := m.d.invariants(); err != nil {
		m.fail("%w", err)
	}
	after := m.active()
	window := uint64(m.s.policy.Window)
	for _, f := range m.parked {
		for p := range uint16(modelPartitions) {
			n, own := m.inFlight(p, nil), m.inFlight(p, &memberName{f.Client, f.Member})
			room := n == 0 || m.s.policy.Parallel && n < window && (len(after) == 1 || own < max(window/2, 1))
			m.d.mu.Lock()
			unread := m.d.mu.queues[m.q].partitions[p].paused
			m.d.mu.Unlock()
			if accepts := len(f.Only) == 0 || f.Only[0] == p; accepts && room && !m.paused && !unread && m.free(p) {
				m.fail("a fetch of %v#%d waits for partition %d, %d are in flight, %d with it", f.Client, f.Member, p, n, own)
			}
		}
	}
	if !m.s.policy.Parallel || before == nil {
		return
	}
	for p := range uint16(modelPartitions) {
		all := uint64(0)
		for who := range after {
			n := m.inFlight(p, &who)
			all += n
			for other := range after {
				if other != who && before[other] && n > max(window/2, 1, had[who][p]) {
					m.fail("%d of partition %d are with %v, which is more than half of %d, and %v is there", n, p, who, window, other)
				}
			}
		}
		before := uint64(0)
		for _, n := range had {
			before += n[p]
		}
		if all > max(window, before) {
			m.fail("%d of partition %d are in flight, the window is %d", all, p, window)
		}
	}
}

// over notes which leases are over.
func (m *model) over(ranOut bool) {
	for _, l := range m.leases {
		lasts := m.d.find(m.q, l.Partition, l.ID) != nil
		if !l.lasts || lasts {
			continue
		}
		l.lasts = false
		if ranOut {
			m.open(l, func(i index.Index) { m.count[l.Partition][i]++ })
		}
	}
}

// TestModel does random calls and lets time pass, with either policy, and compares with a model: no message that ended is
// given, none is with two members, the attempt is right and later ones come alone, order or what comes first is kept, windows
// and their halves hold, leases last as long as they should, a code tells what is true, and at the end everything can be
// consumed, once.
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

func runModel(r *rapid.T) error {
	s := &fakeSource{ends: map[uint16]index.Index{}, progress: map[offset.GroupID]map[uint16]offset.Progress{1: {}}}
	d := New(Options{Source: s, WaitersMax: 5, ClientWaitersMax: 4, AckTimeout: time.Minute})
	defer d.Close()
	defer d.Stop(errors.New("over"))
	m := &model{r: r, s: s, d: d, q: Queue{Group: 1, Topic: topic}, rounds: 1}
	s.policy = offset.Policy{Parallel: rapid.Bool().Draw(r, "parallel"), Window: uint32(rapid.IntRange(1, 8).Draw(r, "window"))}
	steps := rapid.IntRange(1, 60).Draw(r, "steps")
	for range steps {
		before, had := m.active(), map[memberName][modelPartitions]uint64{}
		for who := range before {
			var n [modelPartitions]uint64
			for p := range n {
				n[p] = m.inFlight(uint16(p), &who)
			}
			had[who] = n
		}
		op := rapid.SampledFrom([]string{"commit", "fetch", "fetch", "fetch", "ack", "ack", "ack", "wait", "connect", "cancel", "giveback", "reconcile",
			"shrink", "move", "policy", "forget", "skip", "extend", "extend", "pause", "revoke"}).Draw(r, "op")
		m.step(op)
		m.settle(op == "wait", before, had)
		if m.failure != nil {
			return m.failure
		}
	}
	m.finish()
	return m.failure
}

func (m *model) step(op string) {
	r, d, q, s := m.r, m.d, m.q, m.s
	c := rapid.IntRange(0, modelClients-1).Draw(r, "client")
	p := uint16(rapid.IntRange(0, modelPartitions-1).Draw(r, "partition"))
	var last *modelLease
	if n := len(m.leases); n > 0 {
		last = m.leases[max(0, n-1-rapid.IntRange(0, 4).Draw(r, "which"))]
	}
	switch op {
	case "commit":
		m.ends[p] = min(modelMessages, m.ends[p]+index.Index(rapid.IntRange(1, 6).Draw(r, "messages")))
		s.commit(d, p, m.ends[p])
	case "fetch":
		f := &modelFetch{got: make(chan struct{})}
		f.Fetch = Fetch{Queue: q, Partitions: modelPartitions, Client: modelClient(c), Member: uint32(rapid.IntRange(0, 1).Draw(r, "member")), Max: uint32(rapid.IntRange(1, 5).Draw(r, "max")),
			Wait: time.Duration(rapid.IntRange(0, 20).Draw(r, "wait")) * time.Second, Waiter: f}
		if rapid.Bool().Draw(r, "only") {
			f.Only = []uint16{p}
		}
		own := 0
		for _, g := range m.parked {
			if g.Client == f.Client {
				own++
			}
		}
		switch err := d.Park(&f.Fetch); err {
		case nil:
			m.granted(f, true)
		case ErrParked:
			m.parked = append(m.parked, f)
		case ErrBusy:
			if len(m.parked) < 5 && own < 4 {
				m.fail("busy with %d parked, %d of its own", len(m.parked), own)
			}
		default:
			m.fail("fetch: %w", err)
		}
	case "ack":
		if last != nil {
			m.ack(last)
		}
	case "wait":
		m.wait(time.Duration(rapid.IntRange(1, 40).Draw(r, "seconds")) * time.Second)
	case "connect":
		if m.conns[c] == 0 || rapid.Bool().Draw(r, "attach") {
			m.conns[c]++
			d.Attach(modelClient(c))
		} else {
			m.conns[c]--
			d.Detach(modelClient(c))
		}
	case "cancel":
		if len(m.parked) > 0 {
			d.Cancel(&m.parked[0].Fetch)
		}
	case "reconcile":
		m.reconcile(c)
	case "giveback":
		if last != nil {
			d.GiveBack(q, &last.Lease, time.Duration(rapid.IntRange(0, 3).Draw(r, "pause"))*time.Second)
		}
	case "shrink": // as is done with a lease that was just given
		if last != nil && last.lasts && last.Len() > 1 {
			to := last.From + index.Index(rapid.IntRange(1, int(last.Len())).Draw(r, "to"))
			for i := to; i < last.To; i++ {
				if last.released.Contains(i) || m.ended[last.Partition][i] {
					return
				}
			}
			left := false
			m.open(last, func(i index.Index) { left = left || i < to })
			if left {
				d.Shrink(q, &last.Lease, to)
			}
		}
	case "move", "forget":
		s.mu.Lock()
		if op == "move" {
			s.moves++
		}
		for p := range uint16(modelPartitions) {
			var at offset.Progress
			if op == "move" {
				m.base[p] = index.Index(rapid.IntRange(0, int(m.ends[p])).Draw(r, "to"))
				at.Ack = m.base[p]
				m.count[p], m.ended[p] = [modelMessages]uint32{}, [modelMessages]bool{}
			}
			for i := range index.Index(modelMessages) {
				switch {
				case m.ended[p][i] || i < at.Ack:
					m.ended[p][i] = true
					at.Add(offset.Range{From: i, To: i + 1})
				case m.count[p][i] > 0:
					at.Expire(offset.Range{From: i, To: i + 1}, m.count[p][i])
				}
				m.given[p][i] = false
			}
			s.progress[1][p] = at
		}
		s.mu.Unlock()
		switch {
		case op == "forget" && rapid.Bool().Draw(r, "topic"):
			d.ForgetTopic(topic)
			m.paused = false
		case op == "forget":
			d.Forget(q)
		default:
			d.Reload(q)
		}
		m.noneLasts(op)
		for _, f := range m.parked {
			if op == "forget" {
				if <-f.got; f.Err != ErrNoGroup {
					m.fail("a fetch that waited for a queue that was forgotten got %v", f.Err)
				}
			}
		}
	case "policy":
		s.mu.Lock()
		was := s.policy
		s.policy = offset.Policy{Parallel: rapid.Bool().Draw(r, "parallel"), Window: uint32(rapid.IntRange(1, 8).Draw(r, "window"))}
		turned := s.policy.Parallel != was.Parallel && d.Use(q).LastFetch != (time.Time{})
		s.mu.Unlock()
		d.Reload(q)
		if turned {
			m.noneLasts(op)
		}
	case "skip":
		from := index.Index(rapid.IntRange(0, modelMessages).Draw(r, "from"))
		to := from + index.Index(rapid.IntRange(0, 6).Draw(r, "length"))
		if d.Use(q).LastFetch.IsZero() { // not loaded
			return
		}
		want := uint64(0)
		for i := from; i < min(to, m.ends[p]); i++ {
			if !m.ended[p][i] {
				m.ended[p][i] = true
				want++
			}
		}
		if n, _ := d.Skip(q, p, offset.Range{From: from, To: to}, wire.Skipped); n != want {
			m.fail("%d messages were skipped, want %d", n, want)
		}
	case "extend":
		if last == nil {
			return
		}
		by := time.Duration(rapid.IntRange(0, 150).Draw(r, "by")) * time.Second
		member := last.member + uint32(rapid.IntRange(0, 3).Draw(r, "other")/3)
		want := wire.CodeOK
		switch {
		case !last.lasts:
			want = wire.CodeLeaseExpired
		case member != last.member:
			want = wire.CodeLeaseForeign
		}
		if codes := d.Extend(q, last.client, member, []LeaseName{{last.Partition, last.ID}}, by, nil); len(codes) != 1 || codes[0] != want {
			m.fail("extend: %v, want %v", codes, want)
		}
		if until := time.Now().Add(by); want == wire.CodeOK && until.After(last.until) {
			last.until = until
		}
	case "pause":
		m.paused = !m.paused
		d.SetPaused(topic, m.paused)
	case "revoke":
		why, leases := errors.New("revoked"), rapid.Bool().Draw(r, "leases")
		d.Revoke(q, modelClient(c), why, leases)
		synctest.Wait()
		kept := m.parked[:0]
		for _, f := range m.parked {
			if f.Client != modelClient(c) {
				kept = append(kept, f)
				continue
			}
			select {
			case <-f.got:
				if f.Err != why {
					m.fail("a fetch that waited for a client whose right ended got %v", f.Err)
				}
			default:
				m.fail("a fetch of %v waits on after its right ended", f.Client)
			}
		}
		m.parked = kept
		for _, l := range m.leases {
			if leases && l.client == modelClient(c) && d.find(q, l.Partition, l.ID) != nil {
				m.fail("lease %v of partition %d lasts after the right of %v ended", l.Range, l.Partition, l.client)
			}
		}
	}
}

func (m *model) noneLasts(op string) {
	for _, l := range m.leases {
		// Those given by the call itself are not among them yet.
		if m.d.find(m.q, l.Partition, l.ID) != nil {
			m.fail("lease %v of partition %d lasts after %s", l.Range, l.Partition, op)
		}
	}
}

func (m *model) ack(l *modelLease) {
	r := m.r
	p := l.Partition
	from := l.From + index.Index(rapid.IntRange(0, int(l.Len())-1).Draw(r, "from"))
	to := from + index.Index(rapid.IntRange(1, int(l.To-from)).Draw(r, "length"))
	item := wire.AckRange{Partition: p, Lease: l.ID, From: uint64(from), To: uint64(to), Outcome: rapid.SampledFrom([]wire.Outcome{wire.Acked, wire.Acked, wire.Released}).Draw(r, "outcome")}
	all, released := true, false
	for i := from; i < to; i++ {
		all = all && m.ended[p][i]
		released = released || l.released.Contains(i) && !m.ended[p][i]
	}
	want := wire.CodeOK
	switch {
	case all:
		want = wire.CodeAlreadyEnded
	case !l.lasts, m.s.policy.Parallel && released && item.Outcome != wire.Released:
		want = wire.CodeLeaseExpired
	}
	codes, _, err := m.d.Ack(m.q, modelPartitions, l.client, l.member, []wire.AckRange{item}, nil)
	if err != nil || codes[0] != want {
		m.fail("ack of [%d,%d) of partition %d: %v %v, want %v", from, to, p, codes, err, want)
		return
	}
	if want != wire.CodeOK {
		return
	}
	if item.Outcome == wire.Released {
		l.released.Add(offset.Range{From: from, To: to})
		return
	}
	for i := from; i < to; i++ {
		m.ended[p][i] = true
	}
}

// wait lets time pass; leases end when it is theirs to, or after their client was gone.
func (m *model) wait(t time.Duration) {
	time.Sleep(t)
	synctest.Wait()
	for _, l := range m.leases {
		if !l.lasts {
			continue
		}
		lasts := m.d.find(m.q, l.Partition, l.ID) != nil
		client := int(l.client.ID[1] - '0')
		if over := !time.Now().Before(l.until); lasts && over || !lasts && !over && m.conns[client] > 0 {
			m.fail("lease %d of %v lasts: %v, until %v, now is %v", l.ID, l.client, lasts, l.until, time.Now())
		}
	}
}

// reconcile: a member that says what it has keeps no more than that, waits for nothing else, and its older fetches get nothing.
func (m *model) reconcile(c int) {
	r, d, q := m.r, m.d, m.q
	m.rounds++
	f := &modelFetch{got: make(chan struct{})}
	f.Fetch = Fetch{Queue: q, Partitions: modelPartitions, Client: modelClient(c), Member: uint32(rapid.IntRange(0, 1).Draw(r, "member")), Max: 3, Waiter: f, Round: m.rounds, Reconcile: true}
	var had []*modelLease
	for _, l := range m.leases {
		if l.client == f.Client && l.member == f.Member && l.lasts {
			had = append(had, l)
		}
	}
	if len(had) > 0 && rapid.Bool().Draw(r, "keep") {
		f.Held = []uint64{had[len(had)-1].ID, 1}
	}
	held := f.Held
	ask := d.Leave
	if rapid.Bool().Draw(r, "take") {
		ask = d.Take
	}
	switch err := ask(&f.Fetch); err {
	case nil:
		m.over(false)
		m.parkedOver(f)
		m.granted(f, false)
	case ErrNone:
	default:
		m.fail("reconcile: %w", err)
	}
	for _, l := range had {
		if (d.find(q, l.Partition, l.ID) != nil) != slices.Contains(held, l.ID) {
			m.fail("lease %d of partition %d lasts: %v, held are %v", l.ID, l.Partition, d.find(q, l.Partition, l.ID) != nil, held)
		}
	}
	synctest.Wait()
	for _, g := range m.parked {
		if g.Client != f.Client || g.Member != f.Member {
			continue
		}
		select {
		case <-g.got:
		default:
			m.fail("a fetch of %v#%d waits on after its reconcile", g.Client, g.Member)
		}
	}
	late := &modelFetch{}
	late.Fetch = Fetch{Queue: q, Partitions: modelPartitions, Client: f.Client, Member: f.Member, Max: 1, Waiter: late, Round: m.rounds - 1, Reconcile: true}
	if m.conns[c] > 0 {
		if err := d.Take(&late.Fetch); err != ErrReplaced {
			m.fail("a fetch that comes late: %v", err)
		}
	}
}

// parkedOver judges the parked fetches that were given something before f was.
func (m *model) parkedOver(f *modelFetch) {
	var got, kept []*modelFetch
	for _, g := range m.parked {
		select {
		case <-g.got:
			switch {
			case g.Err == nil && g.Lease.ID < f.Lease.ID:
				got = append(got, g)
			case g.Err == nil:
				kept = append(kept, g)
			}
		default:
			kept = append(kept, g)
		}
	}
	m.parked = kept
	slices.SortFunc(got, func(a, b *modelFetch) int { return cmp.Compare(a.Lease.ID, b.Lease.ID) })
	for _, g := range got {
		m.granted(g, false)
	}
}

// finish: in the end nobody holds anything, and one member gets all that is left.
func (m *model) finish() {
	d, q := m.d, m.q
	d.SetPaused(topic, false)
	m.paused = false
	for _, f := range m.parked {
		d.Cancel(&f.Fetch)
	}
	m.settle(false, nil, nil)
	time.Sleep(5 * time.Minute)
	m.settle(true, nil, nil)
	m.expiries()
	for m.failure == nil {
		f := &modelFetch{}
		f.Fetch = Fetch{Queue: q, Partitions: modelPartitions, Client: modelClient(0), Max: 4, Waiter: f}
		if err := d.Take(&f.Fetch); err != nil {
			break
		}
		m.granted(f, true)
		for i := f.Lease.From; i < f.Lease.To; i++ {
			m.ended[f.Lease.Partition][i] = true
		}
		d.Ack(q, modelPartitions, modelClient(0), 0, []wire.AckRange{{Partition: f.Lease.Partition, Lease: f.Lease.ID, From: uint64(f.Lease.From), To: uint64(f.Lease.To), Outcome: wire.Acked}}, nil)
		m.over(false)
	}
	all, _ := d.TakeEnds(nil)
	for p := range uint16(modelPartitions) {
		journal := offset.Ranges{}
		for _, e := range all {
			if e.Partition == p && e.Generation == 1+m.s.moves && journal.Add(e.Range) != e.Range.Len() {
				m.fail("partition %d: %v is in the ends twice", p, e.Range)
			}
		}
		if journal.Len() != uint64(m.ends[p]-m.base[p]) {
			m.fail("partition %d: %v ended of [%d,%d)", p, journal, m.base[p], m.ends[p])
		}
	}
	if err := d.invariants(); err != nil {
		m.fail("%w", err)
	}
}

// expiries compares what is to be journalled of leases that ran out.
func (m *model) expiries() {
	var got [modelPartitions][modelMessages]uint32
	for _, e := range m.d.TakeExpiries() {
		for _, r := range e.Ranges {
			for i := r.From; i < r.To && e.Generation == 1+m.s.moves; i++ {
				got[e.Partition][i] = max(got[e.Partition][i], e.Count)
			}
		}
	}
	for p := range got {
		for i, n := range got[p] {
			if !m.ended[p][i] && n != m.count[p][i] {
				m.fail("partition %d: %d leases of %d ran out, %d are to be journalled", p, m.count[p][i], i, n)
			}
		}
	}
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

// BenchmarkHoles fetches and acks, one by one, what is left of a partition of which every second message of 200,000 was acked.
func BenchmarkHoles(b *testing.B) {
	const holes = 100_000
	var at offset.Progress
	for i := range index.Index(holes) {
		at.Add(offset.Range{From: 2*i + 1, To: 2*i + 2})
	}
	for name, policy := range map[string]offset.Policy{"exclusive": {}, "parallel": {Parallel: true}} {
		b.Run(name, func(b *testing.B) {
			s := &fakeSource{ends: map[uint16]index.Index{0: 2 * holes}, progress: map[offset.GroupID]map[uint16]offset.Progress{1: {0: at}}, policy: policy}
			d := New(Options{Source: s})
			defer d.Close()
			q := Queue{Group: 1, Topic: topic}
			items := make([]wire.AckRange, 1)
			var codes []wire.Code
			b.ReportAllocs()
			for b.Loop() {
				f := Fetch{Queue: q, Partitions: 1, Client: Client{ID: "a"}, Max: 10, Waiter: noWaiter{}}
				if d.Take(&f) != nil { // all is done
					d.Forget(q)
					d.mu.ends = d.mu.ends[:0]
					continue
				}
				items[0] = wire.AckRange{Lease: f.Lease.ID, From: uint64(f.Lease.From), To: uint64(f.Lease.To), Outcome: wire.Acked}
				if codes, _, _ = d.Ack(q, 1, f.Client, 0, items, codes[:0]); codes[0] != wire.CodeOK {
					b.Fatal(codes)
				}
			}
		})
	}
}

// BenchmarkParallel is a member that holds a whole window in leases of one message, and fetches and acks: the oldest, the newest.
func BenchmarkParallel(b *testing.B) {
	for _, name := range []string{"oldest", "newest"} {
		b.Run(name, func(b *testing.B) {
			s := &fakeSource{ends: map[uint16]index.Index{0: 1 << 40}, policy: offset.Policy{Parallel: true}}
			d := New(Options{Source: s})
			defer d.Close()
			q := Queue{Group: 1, Topic: topic}
			var leases []Lease
			take := func() {
				f := Fetch{Queue: q, Partitions: 1, Client: Client{ID: "a"}, Max: 1, Waiter: noWaiter{}}
				if err := d.Take(&f); err != nil {
					b.Fatal(err)
				}
				leases = append(leases, f.Lease)
			}
			for range offset.WindowDefault {
				take()
			}
			items := make([]wire.AckRange, 1)
			var codes []wire.Code
			b.ReportAllocs()
			for b.Loop() {
				l := leases[0]
				if name == "newest" {
					l = leases[len(leases)-1]
					leases = leases[:len(leases)-1]
				} else {
					leases = leases[1:]
				}
				items[0] = wire.AckRange{Lease: l.ID, From: uint64(l.From), To: uint64(l.To), Outcome: wire.Acked}
				codes, _, _ = d.Ack(q, 1, Client{ID: "a"}, 0, items, codes[:0])
				d.mu.ends = d.mu.ends[:0]
				take()
			}
		})
	}
}

type noWaiter struct{}

func (noWaiter) Granted(*Fetch) {}
