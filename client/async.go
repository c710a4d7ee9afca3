package client

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/jmqio/jmq/wire"
	"github.com/oklog/ulid/v2"
)

// asyncWidth is how many batches of asynchronous messages without order key are in flight at most, unless MergeAfter says
// otherwise: what is sent meanwhile is gathered for the next ones. Measured with BenchmarkAsync and a broker that syncs.
const asyncWidth = 4

// SendAsync is Send without the waiting: done is called once with what Send would return, also when the client is closed.
// Messages of one order key are stored in the order of the calls. Those of one partition that are sent while earlier ones are
// under way go together in one batch; an idle producer sends at once.
//
// What is known at once (a value that may not be, ErrClosed, ErrBusy, the end of ctx) is told to done before SendAsync returns.
// Everything else is told on a goroutine of the client: one call after the other, those of one order key in order. done may
// send, but while it runs no other callback does, and it must not call Flush or Close.
//
// The buffer is bounded (Buffer): when it is full SendAsync waits for room, or refuses (BusyWhenFull). It may wait for the
// topic's route too, when that is not known yet. ctx bounds both and nothing else. A message that has not been sent within
// Timeout is not sent any more; one under way then gets a third of it more. The message may be used again when SendAsync
// has returned.
func (p *Producer) SendAsync(ctx context.Context, m *Message, done func(Receipt, error)) {
	if done == nil {
		done = func(Receipt, error) {}
	}
	if receipt, err := p.async.send(ctx, m, done); err != nil {
		done(receipt, err)
	}
}

// SendOneway sends without saying what became of it: the message is tried as others are, but whether it was stored is not
// told, and a message that was not is lost. An error is about what is known at once: a value that may not be, ErrClosed,
// ErrBusy, the end of ctx. It shares buffer and batches with SendAsync.
func (p *Producer) SendOneway(ctx context.Context, m *Message) error {
	_, err := p.async.send(ctx, m, nil)
	return err
}

// Flush waits until all that was given to this producer's SendAsync and SendOneway before has its outcome, and the callbacks
// have returned. It returns ctx's error when that ends first.
func (p *Producer) Flush(ctx context.Context) error {
	for _, e := range p.async.seal() {
		select {
		case <-e.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// asyncProducer bounds the sends of a producer for which nobody waits.
type asyncProducer struct {
	p *Producer

	mu struct {
		sync.Mutex
		messages, bytes int           // that have no outcome
		waiters         []*roomWaiter // first come, first served
		epoch           *sendEpoch    // of what is sent now
		sealed          []*sendEpoch  // that have not ended, oldest first
	}
}

// sendEpoch counts the sends between two Flushes.
type sendEpoch struct {
	messages int
	sealed   bool
	done     chan struct{} // closed when it is sealed and has no messages
}

type roomWaiter struct {
	size  int
	ready chan *sendEpoch // one element: it has its room
}

func (a *asyncProducer) init(p *Producer) {
	a.p = p
	a.mu.epoch = &sendEpoch{done: make(chan struct{})}
}

// send accepts m, or says why not.
func (a *asyncProducer) send(ctx context.Context, m *Message, done func(Receipt, error)) (Receipt, error) {
	p := a.p
	now := time.Now()
	receipt := Receipt{Topic: p.topic.name}
	refuse := func(err error) (Receipt, error) { return receipt, p.failed(-1, "", 0, err) }
	id, err := p.id(m, now)
	if err != nil {
		return refuse(err)
	}
	receipt.MessageID = id.String()
	if err := ctx.Err(); err != nil {
		return refuse(err)
	}
	if !p.c.sends.enter() {
		return refuse(wire.Errorf(wire.CodeClosed, "the client was closed"))
	}
	w := p.c.pending(p.o) // until the route says otherwise
	m.encode(&w.one[0], id, now.UnixNano())
	w.msgs, w.size, w.fixed = w.one[:], m.size(), m.Partition != nil
	giveUp := func(err error) (Receipt, error) {
		p.c.putPending(w)
		p.c.sends.leave()
		return refuse(err)
	}
	if err := w.one[0].Check(); err != nil {
		return giveUp(err)
	}
	rt, err := p.route(ctx, nil, now.Add(p.o.timeout))
	if err != nil {
		return giveUp(err)
	}
	w.o = rt.options(p.o)
	l, width, err := p.lane(m, rt)
	if err != nil {
		return giveUp(err)
	}
	if width == 0 {
		width = asyncWidth
	}
	size := w.size
	epoch, waited, err := a.enter(ctx, size)
	if err != nil {
		return giveUp(err)
	}
	if waited {
		now = time.Now()
	}
	w.async, w.done, w.epoch, w.until = a, done, epoch, now.Add(w.o.timeout)
	l.send(w, width, w.until, rt)
	return receipt, nil
}

// enter takes room for one message, and waits for it if there is none.
func (a *asyncProducer) enter(ctx context.Context, size int) (e *sendEpoch, waited bool, err error) {
	a.mu.Lock()
	if len(a.mu.waiters) == 0 && a.fits(size) {
		defer a.mu.Unlock()
		return a.take(size), false, nil
	}
	if a.p.o.refuse {
		defer a.mu.Unlock()
		return nil, false, wire.Errorf(wire.CodeBusy, "%d messages of %d bytes have no outcome yet", a.mu.messages, a.mu.bytes)
	}
	w := &roomWaiter{size, make(chan *sendEpoch, 1)}
	a.mu.waiters = append(a.mu.waiters, w)
	a.mu.Unlock()
	select {
	case e := <-w.ready:
		return e, true, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-a.p.c.stopping.Done():
		err = wire.Errorf(wire.CodeClosed, "the client was closed")
	}
	a.mu.Lock()
	if i := slices.Index(a.mu.waiters, w); i >= 0 {
		a.mu.waiters = slices.Delete(a.mu.waiters, i, i+1)
		a.admit() // those behind may be smaller
		a.mu.Unlock()
		return nil, true, err
	}
	a.mu.Unlock()
	a.leave(<-w.ready, size) // it came too late
	return nil, true, err
}

// fits says whether there is room. a.mu is held.
func (a *asyncProducer) fits(size int) bool {
	return a.mu.messages == 0 || a.mu.messages < a.p.o.bufferMessages && a.mu.bytes+size <= a.p.o.bufferBytes
}

// take takes room. a.mu is held.
func (a *asyncProducer) take(size int) *sendEpoch {
	a.mu.messages++
	a.mu.bytes += size
	a.mu.epoch.messages++
	return a.mu.epoch
}

// leave gives the room of one message back.
func (a *asyncProducer) leave(e *sendEpoch, size int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.messages--
	a.mu.bytes -= size
	e.messages--
	a.end(e)
	// Those that wait come in together when a quarter is free: one by one, each message would cost two turns of goroutines.
	if len(a.mu.waiters) > 0 && a.mu.messages <= a.p.o.bufferMessages*3/4 && a.mu.bytes <= a.p.o.bufferBytes/4*3 {
		a.admit()
	}
}

// admit lets in those that wait and fit. a.mu is held.
func (a *asyncProducer) admit() {
	n := 0
	for ; n < len(a.mu.waiters) && a.fits(a.mu.waiters[n].size); n++ {
		w := a.mu.waiters[n]
		w.ready <- a.take(w.size)
	}
	a.mu.waiters = slices.Delete(a.mu.waiters, 0, n)
}

// seal begins an epoch, and returns those that have not ended.
func (a *asyncProducer) seal() []*sendEpoch {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.mu.epoch
	if e.messages > 0 {
		e.sealed = true
		a.mu.sealed = append(a.mu.sealed, e)
		a.mu.epoch = &sendEpoch{done: make(chan struct{})}
	}
	return slices.Clone(a.mu.sealed)
}

// end ends e if it is over. a.mu is held.
func (a *asyncProducer) end(e *sendEpoch) {
	if e.sealed && e.messages == 0 {
		close(e.done)
		a.mu.sealed = slices.DeleteFunc(a.mu.sealed, func(s *sendEpoch) bool { return s == e })
	}
}

// finished are asynchronous sends with their outcome. One goroutine of the client calls their callbacks; it is there while
// there are any. Bounded by the producers' buffers.
type finished struct {
	sync.Mutex
	queue, spare []*pending
	running      bool
	idle         chan struct{} // closed when the goroutine ends; nil: nobody waits
}

// finish hands p, which has its result, to the goroutine of callbacks.
func (c *Client) finish(p *pending) {
	f := &c.finished
	f.Lock()
	f.queue = append(f.queue, p)
	start := !f.running
	f.running = true
	f.Unlock()
	if start {
		go c.callBack()
	}
	c.sends.leave()
}

func (c *Client) callBack() {
	f := &c.finished
	for {
		f.Lock()
		batch := f.queue
		f.queue, f.spare = f.spare, nil
		if len(batch) == 0 {
			f.running = false
			if f.idle != nil {
				close(f.idle)
				f.idle = nil
			}
			f.Unlock()
			return
		}
		f.Unlock()
		for _, p := range batch {
			c.called(p)
		}
		clear(batch)
		f.Lock()
		f.spare = batch[:0]
		f.Unlock()
	}
}

// called tells p's callback, and makes room.
func (c *Client) called(p *pending) {
	a, e, size, r := p.async, p.epoch, p.size, p.result
	if r.err != nil && codeOf(r.err) == wire.CodePartitionNotFound {
		a.p.topic.route.Store(nil) // the topic may have other partitions by now
	}
	if done := p.done; done != nil {
		receipt := Receipt{Topic: a.p.topic.name, MessageID: ulid.ULID(p.one[0].ID).String(), Attempts: r.attempts, Unknown: r.unknown}
		if r.err == nil {
			receipt.BrokerGroup, receipt.Partition, receipt.Index, receipt.StoredAt = r.brokerGroup, r.partition, r.first, time.Unix(0, r.stored)
			done(receipt, nil)
		} else {
			partition := int(r.partition)
			if r.attempts == 0 {
				partition = -1
			}
			err := newError(opSend, a.p.topic.name, partition, r.broker, r.err)
			err.Outcome, err.Attempts = r.outcome, r.attempts
			done(receipt, err)
		}
	}
	c.putPending(p)
	a.leave(e, size)
}

// wait waits until all callbacks have returned.
func (f *finished) wait(ctx context.Context) error {
	f.Lock()
	if !f.running {
		f.Unlock()
		return nil
	}
	if f.idle == nil {
		f.idle = make(chan struct{})
	}
	idle := f.idle
	f.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return errors.Join(errors.New("a callback has not returned"), ctx.Err())
	}
}
