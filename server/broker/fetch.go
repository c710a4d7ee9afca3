package broker

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jmqio/jmq/server/dispatch"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/wire"
)

// fetchCall is one Fetch under way.
type fetchCall struct {
	dispatch.Fetch
	b        *Broker
	ctx      context.Context
	done     func(*wire.FetchResponse, error)
	topic    string
	group    string
	peer     *wire.Peer
	grant    *grant
	bytesMax int
	at       time.Time       // it came, or was given something after it waited
	until    time.Time       // of the wait
	stop     func() bool     // of the watch over ctx, while parked
	unread   *wire.CodeError // a partition could not be read
	next     *fetchCall      // in readers
}

// Fetch implements wire.Broker.
func (b *Broker) Fetch(ctx context.Context, r *wire.FetchRequest, done func(*wire.FetchResponse, error)) {
	if s := b.slave; s != nil {
		if !s.enter() {
			done(nil, b.refuse(b.outside()))
			return
		}
		defer s.leave()
	}
	c, err := b.fetchCall(ctx, r, done)
	if err != nil {
		err = coded(err)
		b.metrics.refused(err)
		done(nil, err)
		return
	}
	if r.Leave {
		c.leave()
	} else {
		c.take()
	}
}

func (b *Broker) fetchCall(ctx context.Context, r *wire.FetchRequest, done func(*wire.FetchResponse, error)) (*fetchCall, error) {
	if err := b.check(); err != nil {
		return nil, err
	}
	who := wire.PeerFrom(ctx)
	t, q, err := b.queue(who.Namespace, r.Topic, r.Group)
	if err != nil {
		return nil, b.absent(who, r.Topic, r.Group, err)
	}
	g, err := b.granted(who, &t, q, r.Group)
	if err != nil {
		return nil, err
	}
	if g.paused != nil && !r.Leave {
		b.metrics.denied(g.paused)
		return nil, g.paused
	}
	if len(r.Partitions) > onlyMax {
		return nil, wire.Errorf(wire.CodeTooLarge, "%d partitions are named, at most %d can be", len(r.Partitions), onlyMax)
	}
	if len(r.Held) > wire.FetchHeldMax {
		return nil, wire.Errorf(wire.CodeTooLarge, "%d leases are named as held, at most %d can be", len(r.Held), wire.FetchHeldMax)
	}
	c := &fetchCall{b: b, ctx: ctx, done: done, topic: t.Name, group: r.Group, peer: who, grant: g}
	c.Queue, c.Partitions, c.Client, c.Member = q, int(t.Partitions), clientOf(who), r.Member
	c.Reconcile, c.Held, c.Round = r.Reconcile, r.Held, r.Round // Held is looked at before this call returns only
	for _, p := range r.Partitions {
		if p >= t.Partitions {
			return nil, noPartition(&t, p)
		}
		c.Only = append(c.Only, uint16(p))
	}
	c.Max = min(orDefault(r.MessagesMax, messagesDefault), wire.BatchMessagesMax)
	c.bytesMax = int(min(orDefault(r.BytesMax, bytesDefault), wire.BatchBytesMax))
	c.For = g.lasts
	if g.batch > 0 {
		c.Max = min(c.Max, g.batch)
	}
	if !r.Leave {
		c.at = time.Now()
		if c.Max, c.bytesMax, err = b.most(g, c.at, c.Max, c.bytesMax); err != nil {
			return nil, err
		}
	}
	if r.WaitMs > 0 && !r.Leave {
		c.until = c.at.Add(min(time.Duration(r.WaitMs)*time.Millisecond, waitMax))
	}
	c.Waiter = c
	return c, nil
}

func orDefault(v, zero uint32) uint32 {
	if v == 0 {
		return zero
	}
	return v
}

// leave answers a member that wants nothing.
func (c *fetchCall) leave() {
	if err := c.b.dispatch.Leave(&c.Fetch); !errors.Is(err, dispatch.ErrNone) {
		c.answer(nil, err)
		return
	}
	c.nothing()
}

// take leases something and answers, or parks, or answers that there is nothing.
func (c *fetchCall) take() {
	b := c.b
	for {
		switch err := b.dispatch.Take(&c.Fetch); {
		case err == nil:
			if c.deliver() {
				return
			}
			continue // that partition is paused now
		case !errors.Is(err, dispatch.ErrNone):
			c.answer(nil, err)
			return
		}
		wait := time.Duration(0)
		if !c.until.IsZero() {
			wait = time.Until(c.until)
		}
		if wait <= 0 {
			c.nothing()
			return
		}
		c.Wait = wait
		if c.ctx.Done() != nil {
			c.stop = context.AfterFunc(c.ctx, func() { b.dispatch.Cancel(&c.Fetch) })
		}
		peer, g := c.peer, c.grant
		err := b.dispatch.Park(&c.Fetch)
		if errors.Is(err, dispatch.ErrParked) { // c is not ours any more
			b.watch.begin()
			b.grantedStill(peer, g) // metadata that came meanwhile has not seen it wait: this ends it
			return
		}
		c.unwatch()
		if err != nil {
			c.answer(nil, err)
			return
		}
		if c.deliver() {
			return
		}
	}
}

func (c *fetchCall) unwatch() {
	if c.stop != nil {
		c.stop()
		c.stop = nil
	}
}

// Granted implements dispatch.Waiter. This may be the journal's committer: a reader goes on.
func (c *fetchCall) Granted(*dispatch.Fetch) {
	if s := c.b.slave; s != nil {
		s.stay() // until resume: StopServing waits for it, and knows what became of the lease
	}
	c.b.readers.push(c)
}

// resume goes on with a fetch that was parked.
func (c *fetchCall) resume() {
	if s := c.b.slave; s != nil {
		defer s.leave()
	}
	c.unwatch()
	switch {
	case c.Err == nil:
		if c.grant.limits[0] != nil {
			c.at = time.Now()
		}
		if !c.deliver() {
			c.take()
		}
	case errors.Is(c.Err, dispatch.ErrNone):
		c.nothing()
	case wire.CodeOf(coded(c.Err)) == wire.CodeTimeout:
		c.done(nil, coded(c.Err)) // its client gave it up, as every consumer that ends does: nothing was refused
	default:
		c.answer(nil, c.Err)
	}
}

// deliver reads what was leased and answers. It returns false when that could not be read: its partition is left alone
// for a while, and the fetch can try another.
func (c *fetchCall) deliver() bool {
	b := c.b
	if err := c.ctx.Err(); err != nil {
		b.dispatch.GiveBack(c.Queue, &c.Lease, 0)
		c.answer(nil, err)
		return true
	}
	if err := b.grantedStill(c.peer, c.grant); err != nil {
		b.dispatch.GiveBack(c.Queue, &c.Lease, 0)
		c.answer(nil, err)
		return true
	}
	l := &c.Lease
	buf, _ := b.buffers.Get().(*[]byte)
	if buf == nil {
		buf = new([]byte)
	}
	defer b.buffers.Put(buf)
	p := store.Partition{Topic: store.TopicID(c.Queue.Topic.ID), Incarnation: c.Queue.Topic.Incarnation, Partition: l.Partition}
	out, next, err := b.store.Read(p, l.From, l.To, c.bytesMax, (*buf)[:0])
	if err == nil && next <= l.From {
		err = errors.New("broker: a leased message is not there")
	}
	if gap, why := gapOf(b.store, p, err); why != 0 && gap.To > l.From && (b.slave == nil || why != wire.GapDamaged) { // what is damaged here the master may have
		return c.skip(gap, why)
	}
	if errors.Is(err, store.ErrNoPartition) { // deleted since the lease was given
		b.dispatch.GiveBack(c.Queue, l, 0)
		c.answer(nil, err)
		return true
	}
	if err != nil {
		pause := b.dispatch.GiveBack(c.Queue, l, readPause)
		b.metrics.readErrors.Add(1)
		b.o.Logger.Error("a partition cannot be read, and is left alone for a while", "topic", c.topic, "partition", l.Partition, "index", l.From, "pause", pause, "err", err)
		c.unread = wire.Errorf(wire.CodeBusy, "partition %d cannot be read now", l.Partition)
		c.unread.RetryAfter = pause
		return false
	}
	*buf = out
	if to := min(next, l.To); to < l.To {
		b.dispatch.Shrink(c.Queue, l, to)
	}
	b.charge(c.grant, c.at, l.Len(), len(out))
	b.metrics.delivered(l.Len(), len(out))
	c.answer(&wire.FetchResponse{
		Lease: l.ID, Partition: l.Partition, From: uint64(l.From), To: uint64(l.To), LeaseMs: uint32(l.For.Milliseconds()),
		Epoch: uint64(b.store.Epoch()), Attempt: l.Attempt, Batches: out,
	}, nil)
	return true
}

// skip moves the group over messages that will never come, and tells the member. It returns false when another fetch met them
// first, and this one can try again.
func (c *fetchCall) skip(gap store.GapError, why wire.GapReason) bool {
	b, from, partition := c.b, c.Lease.From, c.Lease.Partition
	n, _ := b.dispatch.Skip(c.Queue, partition, offset.Range{From: gap.From, To: gap.To}, wire.Skipped)
	b.dispatch.GiveBack(c.Queue, &c.Lease, 0)
	if n == 0 {
		return false
	}
	b.kickAcks() // the ends are journalled by the next commit, and nobody else may ask for one
	b.metrics.skipped(why, n)
	b.o.Logger.Warn("a group was moved over messages that will never come", "topic", c.topic, "group", c.group, "partition", partition,
		"index", from, "to", gap.To, "messages", n, "why", why)
	c.answer(&wire.FetchResponse{Partition: partition, From: uint64(from), To: uint64(gap.To), Gap: why}, nil)
	return true
}

// nothing answers a fetch for which nothing came.
func (c *fetchCall) nothing() {
	if c.unread != nil {
		c.answer(nil, c.unread)
		return
	}
	c.answer(&wire.FetchResponse{}, nil)
}

func (c *fetchCall) answer(r *wire.FetchResponse, err error) {
	if err != nil {
		err = coded(c.b.gone(c.Queue, c.Client.Namespace, c.topic, c.group, err))
		c.b.metrics.refused(err)
	}
	c.done(r, err)
}

// gone says what an error of dispatch or of the store means, that knows no name: the topic or the group may have gone since they
// were looked up. Then dispatch forgets what it may have read for them meanwhile.
func (b *Broker) gone(q dispatch.Queue, namespace uint32, topic, group string, err error) error {
	if !errors.Is(err, dispatch.ErrNoGroup) && !errors.Is(err, store.ErrNoPartition) {
		return err
	}
	if t, ok := b.store.Topic(namespace, topic); !ok || topicKey(&t) != q.Topic {
		b.dispatch.Forget(q)
		return wire.Errorf(wire.CodeTopicNotFound, "topic %q was deleted", topic)
	}
	if !b.offsets().Has(q.Group, q.Topic) {
		b.dispatch.Forget(q)
		return wire.Errorf(wire.CodeGroupNotFound, "group %q was removed from topic %q", group, topic)
	}
	return err
}

// readers answer fetches that were parked. The Broker owns their goroutines.
type readers struct {
	mu struct {
		sync.Mutex
		head, tail *fetchCall
		closed     bool
	}
	wake sync.Cond
	all  sync.WaitGroup
}

func (r *readers) start(b *Broker, n int) {
	r.wake.L = &r.mu
	for range n {
		r.all.Go(func() { r.run(b) })
	}
}

// push never blocks. What is in the queue is bounded by the number of fetches that may park.
func (r *readers) push(c *fetchCall) {
	r.mu.Lock()
	c.next = nil
	if r.mu.tail != nil {
		r.mu.tail.next = c
	} else {
		r.mu.head = c
	}
	r.mu.tail = c
	r.mu.Unlock()
	r.wake.Signal()
}

// pop returns nil when there is nothing and the readers are closed, or wait is false.
func (r *readers) pop(wait bool) *fetchCall {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.mu.head == nil {
		if r.mu.closed || !wait {
			return nil
		}
		r.wake.Wait()
	}
	c := r.mu.head
	if r.mu.head = c.next; r.mu.head == nil {
		r.mu.tail = nil
	}
	c.next = nil
	return c
}

const answersPerFlush = 16

func (r *readers) run(b *Broker) {
	for c := r.pop(true); c != nil; c = r.pop(true) {
		for n := 0; c != nil; n++ {
			c.resume()
			if n == answersPerFlush {
				break
			}
			c = r.pop(false)
		}
		b.o.Flush()
	}
}

// close answers what is in the queue, and ends the goroutines.
func (r *readers) close() {
	r.mu.Lock()
	r.mu.closed = true
	r.mu.Unlock()
	r.wake.Broadcast()
	r.all.Wait()
}
