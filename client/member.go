package client

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/jmqio/jmq/wire"
)

// member is one name under which the broker holds leases for this client: that of a loop of Run, or of Fetches of a Consumer
// that follow each other.
//
// What the broker holds for it and what it has differ when a fetch has an outcome that is not known: the connection or the
// caller's time ended before the answer came, or that could not be read. Nobody else would get those messages before the
// lease ends by itself. So the member is in doubt: its next fetch reconciles (wire.FetchRequest), and what it does not have
// ends at the broker. One that is not used any more leaves, which is the same without a fetch: at once, and when there is
// no connection, as soon as one comes up.
type member struct {
	c      *Consumer
	pool   *pool // where it leases: a broker group, which is its master, or a slave
	number uint32

	mu struct {
		sync.Mutex
		round  uint64 // of the last fetch or leave
		doubt  bool
		used   bool              // by a loop or a Fetch, whose next fetch sees to its doubt
		moved  bool              // the slave it is at has handed its leases over to the master
		leases map[uint64]*lease // received, and not ended as far as is known here
	}
}

// lease is what of one has not ended, as far as is known here. Where that is wrong it is said to be held though it has
// ended, which does no harm.
type lease struct {
	from, to uint64
	term     *term
	over     [(wire.BatchMessagesMax + 63) / 64]uint64 // a bit for each message that was acked or given back
	left     uint64                                    // messages without
	doubt    bool                                      // what gave some of it back may not have arrived
}

func (c *Client) newMember(k *Consumer, at *pool) *member {
	m := &member{c: k, pool: at, number: c.members.Add(1)}
	m.mu.used = true
	return m
}

// fetchCall is one fetch that is waited for, used again by its client.
type fetchCall struct {
	member *member
	link   *link
	out    *wire.FetchResponse
	err    error
	state  atomic.Int32 // as a pending's
	ready  chan struct{}
	done   func(wire.Frame, error) // answered, bound once
	header []byte
}

// fetch asks once and waits for the answer, whose batches are the caller's; or until paused, with errPaused. before is called
// with the connection first: what it starts there reaches the broker before the fetch.
func (m *member) fetch(ctx context.Context, r *wire.FetchRequest, paused <-chan struct{}, before func(*link)) (*wire.FetchResponse, *link, error) {
	c := m.c.c
	l := m.pool.pick(m.number)
	if l == nil {
		return nil, nil, m.pool.none()
	}
	if err := ctx.Err(); err != nil {
		return nil, l, err
	}
	f, _ := c.fetches.Get().(*fetchCall)
	if f == nil {
		f = &fetchCall{ready: make(chan struct{}, 1)}
		f.done = f.answered
	}
	f.member, f.link = m, l
	f.state.Store(pendingWaits)
	m.begin(r)
	f.header = wire.AppendFetchRequest(f.header[:0], r)
	if before != nil {
		before(l)
	}
	if _, err := l.Start(wire.CommandFetch, f.header, nil, f.done); err != nil {
		f.put()
		return nil, l, err
	}
	l.FlushShared()
	ended := m.wait(ctx, f, paused)
	if ended != nil {
		// It is not taken back: a lease may be on its way, and is given back when it comes.
		if f.state.CompareAndSwap(pendingWaits, pendingAbandoned) {
			m.answered(r, nil, ended)
			return nil, l, ended
		}
		<-f.ready
	}
	out, err := f.out, f.err
	f.put()
	m.answered(r, out, err)
	return out, l, err
}

// wait waits for the answer; an error: something else came first. A master with slaves that falls silent is not waited for.
func (m *member) wait(ctx context.Context, f *fetchCall, paused <-chan struct{}) error {
	for {
		var links <-chan struct{}
		if m.pool.slaves.Load() != nil {
			links = m.c.c.cluster.watchLinks()
			if f.link.stalled.Load() {
				return wire.Errorf(wire.CodeTimeout, "%s is silent", f.link.addr)
			}
		}
		select {
		case <-f.ready:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-paused:
			return errPaused
		case <-links:
		}
	}
}

func (f *fetchCall) put() {
	c := f.member.c.c
	f.member, f.link, f.out, f.err = nil, nil, nil, nil
	c.fetches.Put(f)
}

// answered runs on the connection's reading goroutine, or where the connection is closed.
func (f *fetchCall) answered(frame wire.Frame, err error) {
	var out *wire.FetchResponse
	if err == nil {
		out = new(wire.FetchResponse)
		err = wire.ParseFetchResponse(out, frame.Header)
	}
	if f.state.Load() == pendingWaits {
		if err == nil {
			out.Batches = slices.Clone(frame.Payload)
		}
		f.out, f.err = out, err
		if f.state.CompareAndSwap(pendingWaits, pendingResolved) {
			f.ready <- struct{}{}
			return
		}
	}
	if err == nil {
		giveBack(f.link, f.member.c.ackRequest(f.member.number), out)
	}
	f.put()
}

// begin fills in what of a fetch is the member's.
func (m *member) begin(r *wire.FetchRequest) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.round++
	r.Member, r.Round = m.number, m.mu.round
	r.Reconcile, r.Held = false, r.Held[:0]
	if !m.mu.doubt && !r.Leave {
		return
	}
	m.expire()
	if len(m.mu.leases) > wire.FetchHeldMax {
		return // it cannot name all that it has: then nothing ends before some of that has
	}
	r.Reconcile = true
	for number := range m.mu.leases {
		r.Held = append(r.Held, number)
	}
	slices.Sort(r.Held)
}

// answered takes the outcome of a fetch or leave.
func (m *member) answered(r *wire.FetchRequest, out *wire.FetchResponse, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case err != nil:
		code := codeOf(err)
		m.mu.doubt = m.mu.doubt || doubtful(code)
		if r.Leave && (code == wire.CodeTopicNotFound || code == wire.CodeGroupNotFound) {
			m.mu.doubt = false // where there is no group there is no lease
		}
	case r.Round != m.mu.round: // overtaken by a leave, or a leave by a fetch
	default:
		m.mu.doubt = m.mu.doubt && !r.Reconcile
		if out.Lease != 0 {
			if m.mu.leases == nil {
				m.mu.leases = map[uint64]*lease{}
			}
			m.mu.leases[out.Lease] = &lease{from: out.From, to: out.To, term: newTerm(out.LeaseMs), left: out.To - out.From}
		}
	}
}

// term returns that of a lease that has just come.
func (m *member) term(r *wire.FetchResponse) *term {
	m.mu.Lock()
	defer m.mu.Unlock()
	if l := m.mu.leases[r.Lease]; l != nil {
		return l.term
	}
	return newTerm(r.LeaseMs)
}

// doubtful reports whether a lease may have been given all the same when a fetch ends with that code.
func doubtful(c wire.Code) bool {
	switch c {
	case wire.CodeUnknown, wire.CodeTimeout, wire.CodeInternal, wire.CodeMalformed:
		return true
	}
	return false
}

// expire forgets leases whose time is over. m.mu is held.
func (m *member) expire() {
	for number, l := range m.mu.leases {
		if l.term.over() {
			delete(m.mu.leases, number)
		}
	}
}

// ended notes that [from, to) of a lease was acked or given back; lost, that the broker may not have heard of that.
func (m *member) ended(number, from, to uint64, lost bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.mu.leases[number]
	if l == nil {
		return
	}
	l.doubt = l.doubt || lost
	for i := max(from, l.from); i < min(to, l.to); i++ {
		word, bit := &l.over[(i-l.from)/64], uint64(1)<<((i-l.from)%64)
		if *word&bit == 0 {
			*word |= bit
			l.left--
		}
	}
	if l.left == 0 {
		delete(m.mu.leases, number)
		m.mu.doubt = m.mu.doubt || l.doubt
	}
}

// disown notes that nobody here has the lease any more; over, that it has ended at the broker too.
func (m *member) disown(number uint64, over bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.mu.leases[number]; ok {
		delete(m.mu.leases, number)
		m.mu.doubt = m.mu.doubt || !over
	}
}

// told takes the code of an ack.
func (m *member) told(i *wire.AckRange, code wire.Code) {
	switch code {
	case wire.CodeOK, wire.CodeAlreadyEnded:
		m.ended(i.Lease, i.From, i.To, false)
	case wire.CodeLeaseExpired, wire.CodeLeaseUnknown:
		m.disown(i.Lease, true)
	}
}

func (m *member) inDoubt() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.doubt
}

func (m *member) isMoved() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.moved
}

func (m *member) setUsed(used bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.used = used
}

// retire ends the use of a loop's member: what it still has nobody will handle. It leaves, and waits for the answer until
// ctx ends, or not at all where there is no connection.
func (m *member) retire(ctx context.Context) {
	m.mu.Lock()
	m.mu.used = false
	m.mu.doubt = m.mu.doubt || len(m.mu.leases) > 0
	m.mu.leases = nil
	doubt := m.mu.doubt
	m.mu.Unlock()
	if !doubt {
		return
	}
	c := m.c.c
	c.track(m)
	answered := make(chan struct{})
	if m.leave(m.pool.pick(m.number), func() { close(answered) }) {
		select {
		case <-answered:
		case <-ctx.Done():
		}
	}
}

// rest ends a use for now: a member in doubt leaves, without waiting.
func (m *member) rest() {
	m.setUsed(false)
	m.c.c.track(m)
	m.settle(m.pool.pick(m.number))
}

// settle leaves over l if the member is in doubt and nobody uses it.
func (m *member) settle(l *link) {
	m.mu.Lock()
	due := m.mu.doubt && !m.mu.used
	m.mu.Unlock()
	if due {
		m.leave(l, func() {})
	}
}

// leave tells the broker that the member waits for nothing, and what it has. It returns false when that cannot be sent, and
// calls done later when not. While there is no answer the doubt stays.
func (m *member) leave(l *link, done func()) bool {
	if l == nil {
		return false
	}
	r := &wire.FetchRequest{Topic: m.c.topic, Group: m.c.o.group, Leave: true}
	m.begin(r)
	if _, err := l.Start(wire.CommandFetch, wire.AppendFetchRequest(nil, r), nil, func(f wire.Frame, err error) {
		var out wire.FetchResponse
		if err == nil {
			err = wire.ParseFetchResponse(&out, f.Header)
		}
		m.answered(r, &out, err)
		m.c.c.track(m)
		if codeOf(err) == wire.CodeNotMaster && l.pool.of != nil {
			m.mu.Lock()
			m.mu.moved = true
			m.mu.Unlock()
			if m.leave(l.pool.of.pick(m.number), done) {
				return
			}
		}
		done()
	}); err != nil {
		return false
	}
	l.Flush()
	return true
}

// open are the members that no loop uses and that have, or may have, leases: Close and new connections look after them. Its
// lock may be held when a member's is taken.
type open struct {
	sync.Mutex
	members map[*member]struct{}
	sweepAt int // so many are looked through for those whose leases have run out
}

const sweepMin = 64

// track notes what became of a member.
func (c *Client) track(m *member) {
	c.open.Lock()
	defer c.open.Unlock()
	if !m.has() {
		delete(c.open.members, m)
		return
	}
	if c.open.members == nil {
		c.open.members, c.open.sweepAt = map[*member]struct{}{}, sweepMin
	}
	c.open.members[m] = struct{}{}
	if len(c.open.members) >= c.open.sweepAt {
		for o := range c.open.members {
			if !o.has() {
				delete(c.open.members, o)
			}
		}
		c.open.sweepAt = max(2*len(c.open.members), sweepMin)
	}
}

// has reports whether the member has leases, or may have.
func (m *member) has() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expire()
	return m.mu.doubt || len(m.mu.leases) > 0
}

func (c *Client) tracked() []*member {
	c.open.Lock()
	defer c.open.Unlock()
	all := make([]*member, 0, len(c.open.members))
	for m := range c.open.members {
		all = append(all, m)
	}
	return all
}

// connected is called when a connection came up.
func (c *Client) connected(l *link) {
	for _, m := range c.tracked() {
		if m.pool == l.pool || m.pool.of == l.pool && m.isMoved() {
			m.settle(l)
		}
	}
}

// giveAllBack gives back what was fetched and not acknowledged, at the end of the client.
func (c *Client) giveAllBack(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	var retiring sync.WaitGroup
	for _, m := range c.tracked() {
		retiring.Go(func() { m.retire(ctx) })
	}
	retiring.Wait()
}
