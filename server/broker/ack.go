package broker

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jmqio/jmq/server/dispatch"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/planted"
	"github.com/jmqio/jmq/wire"
)

// outcomes says what an ack may say now; the others wait for the part of jmq that is named.
var outcomes = map[wire.Outcome]string{
	wire.Retried:  "a retry manager, which this broker does not have yet",
	wire.Rejected: "a retry manager, which this broker does not have yet",
	wire.Expired:  "the broker itself: messages expire by its policy",
}

// Ack implements wire.Broker.
func (b *Broker) Ack(ctx context.Context, r *wire.AckRequest, done func(*wire.AckResponse, error)) {
	if s := b.slave; s != nil {
		if !s.enter() {
			done(nil, b.refuse(b.outside()))
			return
		}
		defer s.leave()
	}
	c := b.acks.call(done)
	ticket, err := b.ack(ctx, r, c)
	if err != nil {
		b.acks.put(c)
		err = coded(err)
		b.metrics.refused(err)
		done(nil, err)
		return
	}
	b.acks.wait(c, ticket)
}

func (b *Broker) ack(ctx context.Context, r *wire.AckRequest, c *ackCall) (ticket uint64, err error) {
	if err := b.check(); err != nil {
		return 0, err
	}
	if len(r.Items) > itemsMax {
		return 0, wire.Errorf(wire.CodeTooLarge, "%d items, at most %d can be acked at once", len(r.Items), itemsMax)
	}
	who := wire.PeerFrom(ctx)
	t, q, err := b.queue(who.Namespace, r.Topic, r.Group)
	if err != nil {
		return 0, b.absent(who, r.Topic, r.Group, err)
	}
	if _, err := b.granted(who, &t, q, r.Group); err != nil {
		return 0, err
	}
	for i := range r.Items {
		if o := r.Items[i].Outcome; o > wire.Expired {
			return 0, wire.Errorf(wire.CodeInvalid, "item %d has outcome %d, which is none", i, o)
		} else if needs := outcomes[o]; o > wire.Acked && needs != "" {
			return 0, wire.Errorf(wire.CodeInvalid, "item %d has outcome %d, which needs %s", i, o, needs)
		}
	}
	c.response.Codes, ticket, err = b.dispatch.Ack(q, int(t.Partitions), clientOf(who), r.Member, r.Items, c.response.Codes[:0])
	if err != nil {
		return 0, b.gone(q, who.Namespace, r.Topic, r.Group, err)
	}
	b.metrics.acked(r.Items, c.response.Codes)
	return ticket, nil
}

const (
	extendMax    = 12 * time.Hour
	extendLeases = 1000
)

// Extend implements wire.Broker.
func (b *Broker) Extend(ctx context.Context, r *wire.ExtendRequest) (*wire.ExtendResponse, error) {
	if s := b.slave; s != nil {
		if !s.enter() {
			return nil, b.refuse(b.outside())
		}
		defer s.leave()
	}
	response, err := b.extend(ctx, r)
	if err != nil {
		return nil, b.refuse(err)
	}
	return response, nil
}

func (b *Broker) extend(ctx context.Context, r *wire.ExtendRequest) (*wire.ExtendResponse, error) {
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
	if len(r.Leases) > extendLeases {
		return nil, wire.Errorf(wire.CodeTooLarge, "%d leases, at most %d can be extended at once", len(r.Leases), extendLeases)
	}
	by := time.Duration(r.ExtendMs) * time.Millisecond
	if by == 0 {
		by = b.ackTimeout(g)
	}
	if by > extendMax {
		return nil, wire.Errorf(wire.CodeInvalid, "%v more, at most %v are possible", by, extendMax)
	}
	leases := make([]dispatch.LeaseName, len(r.Leases))
	for i, l := range r.Leases {
		if l.GetPartition() >= t.Partitions {
			return nil, noPartition(&t, l.GetPartition())
		}
		leases[i] = dispatch.LeaseName{Partition: uint16(l.Partition), ID: l.Lease}
	}
	response := &wire.ExtendResponse{LeaseMs: uint32(by.Milliseconds())}
	for _, code := range b.dispatch.Extend(q, clientOf(who), r.Member, leases, by, nil) {
		response.Codes = append(response.Codes, uint32(code))
	}
	return response, nil
}

// ackTimeout is how long leases of g last.
func (b *Broker) ackTimeout(g *grant) time.Duration {
	if g.lasts > 0 {
		return g.lasts
	}
	return b.dispatch.AckTimeout()
}

// ackCall is an Ack that waits for the disk.
type ackCall struct {
	done     func(*wire.AckResponse, error)
	ticket   uint64 // the batch of ends whose commit answers it
	response wire.AckResponse
}

// acks are the acks under way, and the batches of ends on their way to the disk.
type acks struct {
	b    *Broker
	pool sync.Pool // *ackCall
	mu   struct {
		sync.Mutex
		calls     []*ackCall // ascending by ticket but for a few
		committed uint64     // every batch up to it
		open      int        // calls that are not answered yet
		spare     []*endBatch
		idle      sync.Cond // open became 0
	}
}

// endBatch is the ends of one record.
type endBatch struct {
	acks    *acks
	number  uint64
	ends    []offset.End
	payload []byte
	done    func(error) // onCommit, bound once
	out     []*ackCall
}

func (a *acks) init(b *Broker) {
	a.b = b
	a.mu.idle.L = &a.mu
}

func (a *acks) call(done func(*wire.AckResponse, error)) *ackCall {
	c, _ := a.pool.Get().(*ackCall)
	if c == nil {
		c = &ackCall{}
	}
	c.done = done
	return c
}

func (a *acks) put(c *ackCall) {
	c.done = nil
	a.pool.Put(c)
}

// wait answers c when the batch of ends named by ticket is committed.
func (a *acks) wait(c *ackCall, ticket uint64) {
	a.mu.Lock()
	if ticket <= a.mu.committed || planted.Bug("broker: ack answered before its commit") {
		a.mu.Unlock()
		c.done(&c.response, nil)
		a.put(c)
		return
	}
	c.ticket = ticket
	a.mu.calls = append(a.mu.calls, c)
	a.mu.open++
	a.mu.Unlock()
	a.b.watch.begin()
	a.b.kickAcks()
}

// Gather is the store's: all ends that were acked since the last commit become one record, and all leases that ran out.
func (b *Broker) Gather(add func(kind journal.Kind, payload []byte, done func(error))) {
	if b.slave != nil {
		return // the side file has them
	}
	b.gatherEnds(add)
	if expiries := b.dispatch.TakeExpiries(); len(expiries) > 0 {
		add(journal.KindLeaseExpiry, offset.AppendExpiries(nil, expiries), func(err error) {
			if err == nil {
				return
			}
			b.failedBy(err)
			if b.state.Load() != stateFailed {
				b.dispatch.PutBackExpiries(expiries)
			}
		})
	}
}

func (b *Broker) gatherEnds(add func(kind journal.Kind, payload []byte, done func(error))) {
	e := b.acks.batch()
	e.ends, e.number = b.dispatch.TakeEnds(e.ends[:0])
	if e.number == 0 {
		b.acks.putBatch(e)
		return
	}
	e.ends = offset.MergeEnds(e.ends)
	e.payload = offset.AppendEnds(e.payload[:0], e.ends)
	add(journal.KindEnd, e.payload, e.done)
}

func (a *acks) batch() *endBatch {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := len(a.mu.spare); n > 0 {
		e := a.mu.spare[n-1]
		a.mu.spare = a.mu.spare[:n-1]
		return e
	}
	e := &endBatch{acks: a}
	e.done = e.onCommit
	return e
}

func (a *acks) putBatch(e *endBatch) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.spare = append(a.mu.spare, e)
}

// onCommit answers the acks of this batch. Batches commit in the order of their numbers.
func (e *endBatch) onCommit(err error) {
	a := e.acks
	if err != nil {
		// What is in memory has these ends already. After a failed write that may never be on disk, and nothing is served from
		// memory any more. When nothing was written the next batch takes them along; whoever asks again is answered by that.
		a.b.failedBy(err)
		if a.b.state.Load() != stateFailed {
			a.b.dispatch.PutBack(e.ends)
		}
		if errors.Is(err, journal.ErrBusy) {
			// The calls wait on, for a commit that is tried soon.
			a.b.watch.sooner(busyRetry)
			a.putBatch(e)
			return
		}
	}
	a.mu.Lock()
	e.out = a.takeLocked(e.out[:0], e.number)
	if err == nil {
		a.mu.committed = e.number
	}
	a.mu.Unlock()
	a.answer(e.out, err)
	clear(e.out)
	a.putBatch(e)
}

// takeLocked moves the calls up to a ticket to out.
func (a *acks) takeLocked(out []*ackCall, ticket uint64) []*ackCall {
	kept := a.mu.calls[:0]
	for _, c := range a.mu.calls {
		if c.ticket <= ticket {
			out = append(out, c)
		} else {
			kept = append(kept, c)
		}
	}
	clear(a.mu.calls[len(kept):])
	a.mu.calls = kept
	return out
}

func (a *acks) answer(calls []*ackCall, err error) {
	if err != nil {
		err = coded(err)
	}
	for _, c := range calls {
		if err != nil {
			a.b.metrics.refused(err)
			c.done(nil, err)
		} else {
			c.done(&c.response, nil)
		}
		a.put(c)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.open -= len(calls); a.mu.open == 0 {
		a.mu.idle.Broadcast()
	}
}

// waiting reports whether calls wait.
func (a *acks) waiting() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.mu.calls) > 0
}

// fail answers the calls that wait: the store has stopped.
func (a *acks) fail() {
	a.mu.Lock()
	out := a.takeLocked(nil, ^uint64(0))
	a.mu.Unlock()
	if len(out) > 0 {
		a.answer(out, wire.Errorf(wire.CodeUnknown, failedText))
		a.b.o.Flush()
	}
}

// close waits until all calls are answered. It is the store that answers calls which come yet.
func (a *acks) close() {
	a.mu.Lock()
	if a.mu.open > 0 {
		a.mu.Unlock()
		a.b.kickAcks()
		a.mu.Lock()
	}
	for a.mu.open > 0 {
		a.mu.idle.Wait()
	}
	a.mu.Unlock()
}
