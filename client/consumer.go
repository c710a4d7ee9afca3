package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmqio/jmq/server/planted"
	"github.com/jmqio/jmq/wire"
)

// Consumer receives a topic's messages for a group. Any number of consumers, in any number of processes, share the
// group's messages: the broker leases each partition to one at a time, unless the group is Parallel. It has no state to be
// closed.
type Consumer struct {
	c           *Client
	topic       string
	o           *consumerOptions
	sub         *subscription
	subscribing subscribing
	pauses      pauses

	turn atomic.Uint32 // of Fetches, among broker groups

	// The members of Fetches: each Fetch under way has one of its own at each broker group that it asks.
	fetchers struct {
		sync.Mutex
		all  map[uint32]*member
		idle []*member
	}
}

// Consumer returns a consumer of the topic. Nothing is asked of the broker yet.
func (c *Client) Consumer(topic string, opts ...ConsumerOption) (*Consumer, error) {
	o, err := newConsumerOptions(c.o.app, opts)
	if err = errors.Join(wire.CheckTopic(topic), err); err != nil {
		return nil, fmt.Errorf("consumer: %w", err)
	}
	if c.stopping.Err() != nil {
		return nil, errClosed("consumer", topic)
	}
	k := &Consumer{c: c, topic: topic, o: o, sub: c.subscription(topic, o.group)}
	k.subscribing.decided = make(chan struct{}, 1)
	k.subscribing.decided <- struct{}{}
	k.pauses.changed = make(chan struct{})
	return k, nil
}

// Fetch leases up to n messages, all of one partition and in order, and waits for one if there is none (Wait). An empty
// result without an error means that none came; an error, that the broker could not be asked, for as long as the wait and
// not much longer. Each delivery wants its Ack before its lease ends; until then its
// partition gives nothing to others. What comes too late, or is not acknowledged when the client is closed, is given back.
//
// With several broker groups they are asked in turn, beginning with another one each time. When none has a message, a fetch
// waits at each of them: the first that brings messages ends the others, and what they are given at the same moment is given back
// at once, so that nothing is kept from others of the group.
func (c *Consumer) Fetch(ctx context.Context, n int, opts ...FetchOption) ([]*Delivery, error) {
	if !c.c.runs.enter() {
		return nil, errClosed(opFetch, c.topic)
	}
	defer c.c.runs.leave()
	ctx, cancel := c.c.until(ctx)
	defer cancel()
	begun := time.Now()
	ready, cancelReady := context.WithDeadline(ctx, begun.Add(callTimeout))
	defer cancelReady()
	o := &fetchOptions{wait: c.settings(c.sub.view.Load()).wait}
	if err := errors.Join(between("Fetch: n", n, 1, wire.BatchMessagesMax), apply(o, opts)); err != nil {
		return nil, newError(opFetch, c.topic, -1, "", wire.Errorf(wire.CodeInvalid, "%v", err))
	}
	v, err := c.sub.known(ready)
	if err != nil {
		return nil, c.stopped(opFetch, err)
	}
	c.pauses.overrides(c.settings(v).paused)
	pools := v.pools
	if len(pools) == 1 {
		return c.fetchAt(ctx, pools[0], n, o.partitions, begun.Add(o.wait))
	}
	first := int(c.turn.Add(1))
	var failed []error
	for i := range pools {
		p := pools[(first+i)%len(pools)]
		if p.pick(0) == nil && p.failed() && p.slaves.Load() == nil {
			failed = append(failed, newError(opFetch, c.topic, -1, "", p.none()))
			continue
		}
		short, cancel := context.WithTimeout(ctx, time.Second) // one that hangs does not keep the others
		ds, err := c.fetchAt(short, p, n, o.partitions, time.Now())
		cancel()
		if len(ds) > 0 {
			return ds, nil
		}
		if err != nil {
			if ctx.Err() != nil {
				return nil, c.stopped(opFetch, err)
			}
			failed = append(failed, err)
		}
	}
	if len(failed) == len(pools) && !time.Now().Before(begun.Add(o.wait)) {
		return nil, failed[0]
	}
	return c.fetchAll(ctx, pools, n, o.partitions, begun.Add(o.wait))
}

// fetchAll has a fetch wait at each of pools until deadline. The first that brings messages ends the others.
func (c *Consumer) fetchAll(ctx context.Context, pools []*pool, n int, partitions []uint32, deadline time.Time) ([]*Delivery, error) {
	if !time.Now().Before(deadline) {
		return nil, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		ds  []*Delivery
		err error
	}
	results := make(chan result, len(pools))
	for _, p := range pools {
		go func() { // waited for below
			ds, err := c.fetchAt(ctx, p, n, partitions, deadline)
			results <- result{ds, err}
		}()
	}
	var got []*Delivery
	var failed []error
	for range pools {
		r := <-results
		switch {
		case len(r.ds) > 0 && got == nil:
			got = r.ds
			cancel()
		case len(r.ds) > 0: // at the same moment
			give, done := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
			c.end(give, opRelease, wire.Released, r.ds) // what does not get there is given back with the next connection
			done()
		case r.err != nil:
			failed = append(failed, r.err)
		}
	}
	if got == nil && len(failed) == len(pools) {
		return nil, failed[0]
	}
	return got, nil
}

// fetchAt is Fetch at one broker group: at its master, or while that is away at a slave.
func (c *Consumer) fetchAt(ctx context.Context, p *pool, n int, partitions []uint32, deadline time.Time) ([]*Delivery, error) {
	p.users.Add(1)
	defer p.users.Add(-1)
	r := wire.FetchRequest{Topic: c.topic, Group: c.o.group, MessagesMax: uint32(n), BytesMax: uint32(c.o.batchBytes), Partitions: partitions}
	begun := time.Now()
	// A broker that has failed, or does not answer, holds nobody up for much longer than was wished.
	ready, cancelReady := context.WithDeadline(ctx, latest(deadline, begun.Add(callTimeout)))
	defer cancelReady()
	answered, cancelAnswered := context.WithDeadline(ctx, latest(deadline, begun).Add(callTimeout))
	defer cancelAnswered()
	turn := 0 // slaves that did not serve
	for pause := retryMin; ; pause = min(2*pause, retryMax) {
		src := p.source(turn)
		if err := c.subscribedAt(ready, p, src); err != nil {
			if p.slaves.Load() != nil && ready.Err() == nil && p.missed(p, nil, err) {
				continue
			}
			return nil, c.stopped(opFetch, err)
		}
		paused, changed := c.pauses.state()
		if paused {
			switch err := c.awaitResume(ctx, changed, deadline); {
			case err != nil:
				return nil, c.stopped(opFetch, newError(opFetch, c.topic, -1, "", err))
			case time.Now().Before(deadline):
				continue
			}
			return nil, nil
		}
		r.WaitMs = waitMs(time.Until(deadline))
		if src != p {
			r.WaitMs = min(r.WaitMs, uint32(slaveWait.Milliseconds()))
		}
		ds, out, l, err := c.ask(answered, src, &r, changed)
		if err == errPaused {
			continue
		}
		if err != nil && answered.Err() != nil && ctx.Err() == nil {
			err = wire.Errorf(wire.CodeTimeout, "no answer within %v of the wait", callTimeout)
		}
		if err == nil {
			if out.Lease == 0 && out.Gap != 0 {
				c.gap(out, l)
				continue
			}
			if out.Lease == 0 && src != p && time.Now().Before(deadline) {
				pause = retryMin
				continue
			}
			return ds, nil
		}
		if out != nil { // it came, and cannot be read
			return nil, newError(opFetch, c.topic, int(out.Partition), l.addr, err)
		}
		missed := p.missed(src, l, err)
		if src != p {
			err = wire.Errorf(wire.CodeDisconnected, "the master of broker group %q is away, and its slave does not serve: %v", p.name, err)
		}
		e := newError(opFetch, c.topic, -1, addrOf(l), err)
		left := time.Until(deadline)
		if missed && left > 0 {
			if src != p {
				turn++
			}
			if p.round(turn) && src != p || p.source(turn) == src {
				c.c.cluster.pause(ctx, min(pause, left))
			}
			if ctx.Err() == nil {
				continue
			}
		}
		if e.Code == wire.CodeGroupNotFound {
			c.subscribing.of(p).done.Store(false)
		}
		hopeless := wire.Traits[e.Code].Retry == wire.RetryNever && !c.lags(err, begun)
		if hopeless || left <= 0 || !c.c.cluster.pause(ctx, min(max(pause, e.RetryAfter), left)) {
			e.Outcome = Failed
			return nil, c.stopped(opFetch, e)
		}
	}
}

// ask asks one broker once, under a member of this Fetch. out with an error: what came cannot be read.
func (c *Consumer) ask(ctx context.Context, src *pool, r *wire.FetchRequest, paused <-chan struct{}) ([]*Delivery, *wire.FetchResponse, *link, error) {
	m := c.takeMember(src)
	defer c.putMember(m)
	out, l, err := m.fetch(ctx, r, paused, nil)
	if err != nil || out.Lease == 0 {
		return nil, out, l, err
	}
	ds, err := c.deliveries(out, m, l, m.term(out))
	if err != nil {
		m.disown(out.Lease, false)
	}
	return ds, out, l, err
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// awaitResume waits until the consumer is resumed, deadline is there or ctx ends, whose error it returns.
func (c *Consumer) awaitResume(ctx context.Context, changed <-chan struct{}, deadline time.Time) error {
	t := time.NewTimer(time.Until(deadline))
	defer t.Stop()
	for {
		views := c.sub.changed()
		c.pauses.overrides(c.settings(c.sub.view.Load()).paused)
		select {
		case <-changed:
		case <-t.C:
		case <-ctx.Done():
		case <-views: // the registry may end the pause
			continue
		}
		return ctx.Err()
	}
}

// Gap is a range of messages [From, To) that the group will never get: the broker has moved it over them.
type Gap struct {
	Topic, Group string
	BrokerGroup  string
	Partition    uint16
	From, To     uint64
	Reason       GapReason
}

// gap tells of a gap.
func (c *Consumer) gap(r *wire.FetchResponse, l *link) {
	if c.o.onGap != nil {
		c.o.onGap(Gap{c.topic, c.o.group, l.brokerGroup, r.Partition, r.From, r.To, r.Gap})
		return
	}
	c.c.o.logger.Warn("messages will never come", "topic", c.topic, "group", c.o.group, "brokerGroup", l.brokerGroup, "partition", r.Partition, "index", r.From, "to", r.To, "reason", r.Gap)
}

// Seek moves where the consumer's group stands on the topic: SeekGroup. Other members see it at their next fetch; messages that
// are being handled may come again, and their acks are refused.
func (c *Consumer) Seek(ctx context.Context, s Seek) ([]PartitionSeek, error) {
	if err := c.Subscribe(ctx); err != nil {
		return nil, err
	}
	return c.c.SeekGroup(ctx, c.topic, c.o.group, s)
}

// Lag returns where the consumer's group stands: GroupLag.
func (c *Consumer) Lag(ctx context.Context) ([]PartitionLag, error) {
	return c.c.GroupLag(ctx, c.topic, c.o.group)
}

// stopped turns the error of a call that the client's Close ended into ErrClosed.
func (c *Consumer) stopped(op string, err error) error {
	if c.c.stopping.Err() != nil {
		return errClosed(op, c.topic)
	}
	return err
}

// until is ctx, which also ends when Close begins.
func (c *Client) until(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(c.stopping, cancel)
	return ctx, func() { stop(); cancel() }
}

func waitMs(d time.Duration) uint32 {
	if d <= 0 {
		return 0
	}
	return uint32((d + time.Millisecond - 1).Milliseconds())
}

func addrOf(l *link) string {
	if l == nil {
		return ""
	}
	return l.addr
}

func (c *Consumer) ackRequest(member uint32) *wire.AckRequest {
	return &wire.AckRequest{Topic: c.topic, Group: c.o.group, Member: member}
}

// takeMember returns a member for a Fetch at p, one in doubt first, so that the doubt ends.
func (c *Consumer) takeMember(p *pool) *member {
	f := &c.fetchers
	f.Lock()
	defer f.Unlock()
	found := -1
	for i, m := range f.idle {
		if m.pool == p && (found < 0 || m.inDoubt()) {
			if found = i; m.inDoubt() {
				break
			}
		}
	}
	if found < 0 {
		m := c.c.newMember(c, p)
		if f.all == nil {
			f.all = map[uint32]*member{}
		}
		f.all[m.number] = m
		return m
	}
	m, n := f.idle[found], len(f.idle)
	f.idle[found] = f.idle[n-1]
	f.idle = f.idle[:n-1]
	m.setUsed(true)
	return m
}

func (c *Consumer) putMember(m *member) {
	m.rest()
	c.fetchers.Lock()
	defer c.fetchers.Unlock()
	c.fetchers.idle = append(c.fetchers.idle, m)
}

// Ack acknowledges deliveries of this consumer together; see Delivery.Ack. Where several fail, the errors are joined.
func (c *Consumer) Ack(ctx context.Context, ds ...*Delivery) error {
	return c.end(ctx, opAck, wire.Acked, ds)
}

// end ends the leases of deliveries, and repeats what may be repeated until ctx ends or the lease is over.
func (c *Consumer) end(ctx context.Context, op string, outcome wire.Outcome, ds []*Delivery) error {
	for _, d := range ds {
		if d == nil || d.consumer != c {
			return newError(op, c.topic, -1, "", wire.Errorf(wire.CodeInvalid, "a delivery of another consumer, or of none"))
		}
	}
	var errs []error
	for _, group := range endRanges(ds, outcome) {
		errs = append(errs, c.endAll(ctx, op, group))
	}
	return errors.Join(errs...)
}

// endGroup is what one request can end.
type endGroup struct {
	pool     *pool
	member   uint32
	items    []wire.AckRange
	deadline time.Time
}

const endItemsMax = 500

// endRanges merges deliveries into ranges: those that follow each other become one.
func endRanges(ds []*Delivery, outcome wire.Outcome) []endGroup {
	var groups []endGroup
	at := map[uint32]int{}
	for _, d := range ds {
		k, ok := at[d.Member]
		if !ok || len(groups[k].items) >= endItemsMax {
			k = len(groups)
			at[d.Member] = k
			groups = append(groups, endGroup{pool: d.pool, member: d.Member})
		}
		g := &groups[k]
		if end := d.term.end(); end.After(g.deadline) {
			g.deadline = end
		}
		if n := len(g.items); n > 0 {
			if i := &g.items[n-1]; i.Lease == d.Lease && i.Partition == d.partition && i.To == d.Index {
				i.To++
				continue
			}
		}
		g.items = append(g.items, wire.AckRange{Partition: d.partition, Lease: d.Lease, From: d.Index, To: d.Index + 1, Outcome: outcome})
	}
	return groups
}

func (c *Consumer) endAll(ctx context.Context, op string, g endGroup) error {
	r := c.ackRequest(g.member)
	r.Items = g.items
	unknown := false
	turn := 0 // slaves that did not serve
	for pause := retryMin; ; pause = min(2*pause, retryMax) {
		l, err := g.pool.awaitLink(ctx, func() *link { return g.pool.giver(g.member, turn) })
		if err != nil {
			c.ended(&g, nil)
			return c.endError(op, g.items, nil, err, unknown)
		}
		var out wire.AckResponse
		f, err := l.Call(ctx, wire.CommandAck, wire.AppendAckRequest(nil, r), nil)
		if err == nil {
			if err = parseAcks(&out, f.Header, len(r.Items)); err == nil {
				if !slices.Contains(out.Codes, wire.CodeNotMaster) || time.Now().After(g.deadline) || ctx.Err() != nil {
					c.ended(&g, out.Codes)
					return c.endCodes(op, l, g.items, out.Codes, unknown)
				}
				unknown = true // some may have ended
				err = wire.Errorf(wire.CodeNotMaster, "some of the leases")
			}
		}
		if l.pool.of != nil {
			turn++
		}
		g.pool = g.pool.elsewhere(l, err)
		code := codeOf(err)
		// A broker that cannot write an ack for lack of space has taken it all the same, and writes it when it can.
		unknown = unknown || code == wire.CodeUnknown || code == wire.CodeNoSpace || ctx.Err() != nil
		if ctx.Err() != nil || wire.Traits[code].Retry == wire.RetryNever || time.Now().After(g.deadline) || !c.c.cluster.pause(ctx, pause) {
			c.ended(&g, nil)
			return c.endError(op, g.items, l, err, unknown)
		}
	}
}

// ended tells the member what became of its leases; codes nil: that is not known.
func (c *Consumer) ended(g *endGroup, codes []wire.Code) {
	c.fetchers.Lock()
	m := c.fetchers.all[g.member]
	c.fetchers.Unlock()
	if m == nil {
		return
	}
	for i := range g.items {
		switch it := &g.items[i]; {
		case codes != nil:
			m.told(it, codes[i])
		case it.Outcome == wire.Released:
			m.ended(it.Lease, it.From, it.To, true) // it is not wanted back, whether that arrived or not
		}
	}
	c.c.track(m)
	m.settle(m.pool.pick(m.number))
}

func (c *Consumer) endError(op string, items []wire.AckRange, l *link, err error, unknown bool) error {
	e := newError(op, c.topic, int(items[0].Partition), addrOf(l), err)
	e.Outcome = Failed
	if unknown {
		e.Outcome = Unknown
	}
	return e
}

// endCodes makes errors of codes. After an attempt that may have arrived, "ended already" is what that one did.
func (c *Consumer) endCodes(op string, l *link, items []wire.AckRange, codes []wire.Code, unknown bool) error {
	var errs []error
	for i, code := range codes {
		if code == wire.CodeOK || unknown && code == wire.CodeAlreadyEnded || code == wire.CodeLeaseExpired && planted.Bug("client: late ack said to be ok") {
			continue
		}
		it := &items[i]
		errs = append(errs, newError(op, c.topic, int(it.Partition), l.addr, wire.Errorf(code, "[%d, %d) of lease %d", it.From, it.To, it.Lease)))
	}
	return errors.Join(errs...)
}

// Handler handles one message. nil acknowledges it. An error, or a panic, gives it back after a pause, with what follows it
// in its lease, so that the order is kept: it comes again, to this or another consumer of the group.
//
// ctx has the values of Run's context, but goes on after that has ended, for StopTimeout; it ends with the lease, and
// context.Cause is ErrLeaseExpired then. A handler that needs longer than the ack timeout asks for it with Delivery.Extend, or
// its consumer does (ExtendLeases).
type Handler func(ctx context.Context, d *Delivery) error
