package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jmqio/jmq/server/planted"
	"github.com/jmqio/jmq/wire"
	"github.com/oklog/ulid/v2"
)

// Producer sends to one topic. It has no state of its own to be closed, and any number of goroutines may use it.
type Producer struct {
	c     *Client
	topic *topic
	o     *producerOptions
	async asyncProducer
}

// Producer returns a producer for the topic. Nothing is asked of the broker yet.
func (c *Client) Producer(topic string, opts ...ProducerOption) (*Producer, error) {
	o, err := newProducerOptions(opts)
	if err = errors.Join(wire.CheckTopic(topic), err); err != nil {
		return nil, fmt.Errorf("producer: %w", err)
	}
	if c.stopping.Err() != nil {
		return nil, errClosed("producer", topic)
	}
	p := &Producer{c: c, topic: c.topic(topic), o: o}
	p.async.init(p)
	return p, nil
}

// Send stores one message and returns where. It tries again, with the same id, until the message is stored, an answer says
// that trying again cannot help, or the time is over (Timeout, ctx).
//
// There are three outcomes. nil: the message is stored, on disk. An error that is ErrFailed: it is not and never will be.
// An error that is ErrUnknown: it may be; send it again with Message.ID set to the receipt's MessageID.
//
// Messages with the same order key are stored in the order of the calls: of one goroutine, or of several that agree on
// one. The partition is KeyPartition. Messages without go to the partitions in turn.
func (p *Producer) Send(ctx context.Context, m *Message) (Receipt, error) {
	now := time.Now()
	id, err := p.id(m, now)
	receipt := Receipt{Topic: p.topic.name}
	if err != nil {
		return receipt, p.failed(-1, "", 0, err)
	}
	receipt.MessageID = id.String()
	if err := ctx.Err(); err != nil {
		return receipt, p.failed(-1, "", 0, err)
	}
	deadline := now.Add(p.o.timeout)
	rt, err := p.route(ctx, nil, deadline)
	if err != nil {
		return receipt, p.failed(-1, "", 0, err)
	}
	o := rt.options(p.o)
	deadline = now.Add(o.timeout)
	for {
		r, err := p.sendOne(ctx, m, id, now.UnixNano(), o, deadline, rt)
		receipt.Attempts += r.attempts
		if receipt.Unknown += r.unknown; r.unknown < 0 {
			receipt.Unknown = -1
		}
		if err == nil {
			receipt.BrokerGroup, receipt.Partition, receipt.Index, receipt.StoredAt = r.brokerGroup, r.partition, r.first, time.Unix(0, r.stored)
			return receipt, nil
		}
		if receipt.Unknown != 0 {
			err.Outcome = Unknown
		}
		err.Attempts = receipt.Attempts
		if err.Code != wire.CodePartitionNotFound || !time.Now().Before(deadline) || ctx.Err() != nil {
			return receipt, err
		}
		// The topic may have other partitions by now.
		newer, routeErr := p.route(ctx, rt, deadline)
		if routeErr != nil || newer.same(rt) {
			return receipt, err
		}
		rt = newer
	}
}

func (p *Producer) sendOne(ctx context.Context, m *Message, id ulid.ULID, born int64, o *producerOptions, deadline time.Time, rt *route) (sendResult, *Error) {
	l, width, err := p.lane(m, rt)
	if err != nil {
		return sendResult{}, p.failed(-1, "", 0, err)
	}
	if !p.c.sends.enter() {
		return sendResult{}, p.failed(-1, "", 0, wire.Errorf(wire.CodeClosed, "the client was closed"))
	}
	defer p.c.sends.leave()
	w := p.c.pending(o)
	m.encode(&w.one[0], id, born)
	w.msgs, w.size, w.fixed = w.one[:], m.size(), m.Partition != nil
	queued := l.send(w, width, deadline, rt)
	return p.await(ctx, l, w, queued)
}

// SendBatch stores messages. Those of one partition are stored whole or not at all, in order; messages without order key
// and partition go to one partition together. Without an error everything is stored. Otherwise the error is a *BatchError
// which has the outcome of each message, and the receipts of those that are stored are good.
func (p *Producer) SendBatch(ctx context.Context, msgs []*Message) ([]Receipt, error) {
	if len(msgs) == 0 {
		return nil, nil
	}
	now := time.Now()
	receipts := make([]Receipt, len(msgs))
	errs := make([]error, len(msgs))
	encoded := make([]wire.Message, len(msgs))
	refuse := func(err error) ([]Receipt, error) {
		for i := range errs {
			if errs[i] == nil {
				errs[i] = p.failed(-1, "", 0, err)
			}
		}
		return receipts, &BatchError{errs}
	}
	for i, m := range msgs {
		receipts[i].Topic = p.topic.name
		id, err := p.id(m, now)
		if err != nil {
			errs[i] = p.failed(-1, "", 0, err)
			continue
		}
		receipts[i].MessageID = id.String()
		m.encode(&encoded[i], id, now.UnixNano())
	}
	if err := ctx.Err(); err != nil {
		return refuse(err)
	}
	if !p.c.sends.enter() {
		return refuse(wire.Errorf(wire.CodeClosed, "the client was closed"))
	}
	defer p.c.sends.leave()
	deadline := now.Add(p.o.timeout)
	rt, err := p.route(ctx, nil, deadline)
	if err != nil {
		return refuse(err)
	}
	o := rt.options(p.o)
	deadline = now.Add(o.timeout)
	parts := p.parts(msgs, errs, rt)
	for i := range parts {
		part := &parts[i]
		w := p.c.pending(o)
		for _, k := range part.members {
			w.msgs = append(w.msgs, encoded[k])
			w.size += msgs[k].size()
			w.fixed = w.fixed || msgs[k].Partition != nil
		}
		part.pending = w
		part.queued = part.lane.send(w, part.width, deadline, rt)
	}
	bad := slices.ContainsFunc(errs, func(err error) bool { return err != nil })
	for _, part := range parts {
		r, err := p.await(ctx, part.lane, part.pending, part.queued)
		for n, k := range part.members {
			receipts[k].Attempts, receipts[k].Unknown = r.attempts, r.unknown
			if err != nil {
				errs[k], bad = err, true
				continue
			}
			receipts[k].BrokerGroup, receipts[k].Partition, receipts[k].Index, receipts[k].StoredAt = r.brokerGroup, r.partition, r.first+uint64(n), time.Unix(0, r.stored)
		}
		if err != nil && err.Code == wire.CodePartitionNotFound {
			p.topic.route.CompareAndSwap(rt, nil)
		}
	}
	if bad {
		return receipts, &BatchError{errs}
	}
	return receipts, nil
}

// batchPart is what of a SendBatch goes one way.
type batchPart struct {
	lane    *lane
	width   int
	members []int
	pending *pending
	queued  bool
}

// parts sorts messages by lane, each in order. Messages that have none get their error.
func (p *Producer) parts(msgs []*Message, errs []error, rt *route) []batchPart {
	var parts []batchPart
	at := map[*lane]int{}
	for i, m := range msgs {
		if errs[i] != nil {
			continue
		}
		l, width, err := p.lane(m, rt)
		if err != nil {
			errs[i] = p.failed(-1, "", 0, err)
			continue
		}
		k, ok := at[l]
		if !ok {
			k = len(parts)
			at[l] = k
			parts = append(parts, batchPart{lane: l, width: width})
		}
		parts[k].members = append(parts[k].members, i)
	}
	return parts
}

func (p *Producer) id(m *Message, now time.Time) (ulid.ULID, error) {
	if m == nil {
		return ulid.ULID{}, wire.Errorf(wire.CodeInvalid, "the message is nil")
	}
	if m.ID == "" {
		return p.c.ids.next(now), nil
	}
	id, err := ulid.ParseStrict(m.ID)
	if err != nil {
		return id, wire.Errorf(wire.CodeInvalid, "message id %q: %v", m.ID, err)
	}
	return id, nil
}

// route returns the route, a newer one than old.
func (p *Producer) route(ctx context.Context, old *route, deadline time.Time) (*route, error) {
	if r := p.topic.route.Load(); r != nil && r != old {
		return r, r.err
	}
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	return p.topic.routed(ctx, old)
}

// lane says by which lane m goes, and how wide that is.
func (p *Producer) lane(m *Message, rt *route) (*lane, int, error) {
	switch {
	case m.Partition != nil:
		l := rt.find(m.BrokerGroup, *m.Partition)
		if l == nil {
			return nil, 0, wire.Errorf(wire.CodePartitionNotFound, "topic %q has no partition %s: it has %d", p.topic.name, location(m.BrokerGroup, *m.Partition), len(rt.partitions))
		}
		return l, 1, nil
	case m.OrderKey != "":
		if planted.Bug("client: two batches of an order key under way") {
			return rt.keyed[keyPlace(m.OrderKey, len(rt.keyed))], 2, nil
		}
		return rt.keyed[keyPlace(m.OrderKey, len(rt.keyed))], 1, nil
	}
	return &p.topic.free, p.o.mergeAfter, nil
}

// await waits for the result of w, which is gone afterwards.
func (p *Producer) await(ctx context.Context, l *lane, w *pending, queued bool) (sendResult, *Error) {
	r, own, err := l.wait(ctx, w, queued)
	if own {
		p.c.putPending(w)
		err = r.err
	}
	if err == nil {
		return r, nil
	}
	e := newError(opSend, p.topic.name, int(r.partition), r.broker, err)
	if !own && r.outcome == Failed {
		e.Partition = -1
	}
	e.Outcome, e.Attempts = r.outcome, r.attempts
	return r, e
}

// failed is the error of a send that nothing was sent of.
func (p *Producer) failed(partition int, broker string, attempts int, err error) *Error {
	e := newError(opSend, p.topic.name, partition, broker, err)
	if e.Op != opSend { // of the route
		e = &Error{Code: e.Code, Op: opSend, Topic: p.topic.name, Partition: partition, Broker: e.Broker, RetryAfter: e.RetryAfter, Err: e}
	}
	e.Outcome = Failed
	return e
}
