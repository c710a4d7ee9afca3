package client

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/jmqio/jmq/wire"
)

// settleTimeout bounds how long a loop that stops waits for the answers of its acks.
const settleTimeout = 5 * time.Second

// loop is one member of Run: it fetches a lease, handles its messages one after the other, acknowledges, and fetches
// again. Acks are not waited for: they go before the next fetch, on the same connection, so that the broker has ended the
// lease when it reads the fetch.
type loop struct {
	c       *Consumer
	h       Handler
	turns   *turns
	m       *member
	backoff time.Duration
	timer   *time.Timer // sends what was handled while a handler runs on

	mu struct {
		sync.Mutex
		lease    uint64
		handled  wire.AckRange // not yet on its way; empty: nothing
		since    time.Time     // when the first of handled was handled
		lost     bool          // the lease is not ours any more
		failed   []ackItem     // could not be sent, or may not have arrived
		inFlight int
		idle     chan struct{} // closed when inFlight becomes 0; nil: nobody waits
	}
}

// ackItem is a range with its lease's term, after which an ack is of no use.
type ackItem struct {
	wire.AckRange
	term    *term
	unknown bool // an attempt may have arrived
}

func newLoop(r *run, at *pool) *loop {
	return &loop{c: r.c, h: r.h, turns: r.turns, m: r.c.c.newMember(r.c, at), backoff: r.c.o.backoffMin}
}

func (l *loop) logger() *slog.Logger { return l.c.c.o.logger }

// run goes on until ctx ends (nil) or an error says that it is no use.
func (l *loop) run(ctx, handling context.Context) error {
	defer l.settle()
	if err := l.c.subscribeAt(ctx, l.m.pool); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	r := wire.FetchRequest{Topic: l.c.topic, Group: l.c.o.group, BytesMax: uint32(l.c.o.batchBytes)}
	pause := retryMin
	var since time.Time // when what may be a lag began; zero: there is none
	for ctx.Err() == nil {
		paused, changed := l.c.pauses.state()
		if paused {
			l.pause(ctx, changed)
			continue
		}
		if !l.turns.free(ctx) {
			break
		}
		s := l.c.settings(l.c.sub.view.Load())
		r.MessagesMax, r.WaitMs = uint32(s.batch), waitMs(s.wait)
		out, link, err := l.m.fetch(ctx, &r, changed, l.resend)
		if err == errPaused {
			continue
		}
		if err == nil {
			pause, since = retryMin, time.Time{}
			if out.Lease == 0 && out.Gap != 0 {
				l.c.gap(out, link)
			}
			if out.Lease == 0 {
				continue
			}
			if !l.turns.take(ctx, min(turnWait, time.Duration(out.LeaseMs)*time.Millisecond/4)) {
				l.giveBack(link, out)
				continue
			}
			err = l.handle(ctx, handling, link, out)
			l.turns.put()
			if err == nil {
				continue
			}
		}
		if ctx.Err() != nil {
			break
		}
		e := newError(opFetch, l.c.topic, -1, addrOf(link), err)
		e.Outcome = Failed
		if since.IsZero() {
			since = time.Now()
		}
		switch {
		case e.Code == wire.CodeGroupNotFound:
			l.c.subscribing.of(l.m.pool).done.Store(false)
			if err := l.c.subscribeAt(ctx, l.m.pool); err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return err
			}
		case l.c.lags(err, since), e.Code == wire.CodeUnauthenticated && time.Since(since) < refusedTime:
			pause = max(pause, retryMax)
		case wire.Traits[e.Code].Retry == wire.RetryNever:
			return e
		}
		// The pause ends earlier when a connection comes up.
		l.await(ctx, max(pause, e.RetryAfter), link)
		pause = min(2*pause, time.Second)
	}
	return nil
}

// refusedTime is how long a loop goes on while a broker does not take the client's credentials: it may have started from older
// metadata than we have.
const refusedTime = 30 * time.Second

// giveBack gives a lease back that came to no turn.
func (l *loop) giveBack(link *link, r *wire.FetchResponse) {
	l.start(ackItem{AckRange: wire.AckRange{Partition: r.Partition, Lease: r.Lease, From: r.From, To: r.To, Outcome: wire.Released}, term: l.m.term(r)})
	l.pump(link)
}

// await waits for d, but only until there is a connection if that was the matter.
func (l *loop) await(ctx context.Context, d time.Duration, had *link) {
	if had == nil {
		if _, err := l.m.pool.await(ctx, l.m.number); codeOf(err) != wire.CodeUnauthenticated {
			return
		}
	}
	l.c.c.cluster.pause(ctx, d)
}

// handle handles the messages of a lease. An error means that they could not be read.
func (l *loop) handle(ctx, handling context.Context, link *link, r *wire.FetchResponse) error {
	term := l.m.term(r)
	ds, err := l.c.deliveries(r, l.m, link, term)
	if err != nil {
		l.m.disown(r.Lease, false)
		l.logger().Error("what was fetched cannot be read", "topic", l.c.topic, "partition", r.Partition, "index", r.From, "err", err)
		return err
	}
	handling, cancel := context.WithCancelCause(handling)
	defer cancel(nil)
	defer term.watch(func() { cancel(ErrLeaseExpired) })()
	var keeper *keeper
	if l.c.o.extend > 0 {
		keeper = l.keep(r, term)
		defer keeper.stop()
	}
	l.mu.Lock()
	l.mu.lease, l.mu.lost = r.Lease, false
	l.mu.Unlock()
	left := wire.AckRange{Partition: r.Partition, Lease: r.Lease, From: r.From, To: r.To, Outcome: wire.Released}
	for _, d := range ds {
		if ctx.Err() != nil || l.isLost() || term.over() || l.c.Paused() {
			break
		}
		if keeper != nil {
			keeper.begin()
		}
		if err = l.call(handling, d); err != nil {
			break
		}
		left.From = d.Index + 1
		l.backoff = l.c.o.backoffMin
		l.add(d, left.From == left.To)
	}
	l.flush(term)
	if left.From == left.To || l.isLost() {
		return nil
	}
	if err != nil {
		l.logger().Warn("handler failed", "topic", l.c.topic, "group", l.c.o.group, "partition", r.Partition, "index", left.From, "err", err, "pause", l.backoff)
		l.pump(link)
		l.c.c.cluster.pause(ctx, min(l.backoff, time.Until(term.end())))
		l.backoff = min(2*l.backoff, l.c.o.backoffMax)
	}
	l.start(ackItem{AckRange: left, term: term})
	l.pump(link)
	return nil
}

// call runs the handler; a panic is an error.
func (l *loop) call(ctx context.Context, d *Delivery) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("handler panicked: %v", v)
			l.logger().Error("handler panicked", "topic", d.Topic, "group", l.c.o.group, "partition", d.partition, "index", d.Index, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
		}
	}()
	return l.h(ctx, d)
}

func (l *loop) isLost() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.lost
}

// add counts d as handled. The ack goes with those that follow, unless they take long.
func (l *loop) add(d *Delivery, last bool) {
	l.mu.Lock()
	h := &l.mu.handled
	if h.To == 0 {
		*h = wire.AckRange{Partition: d.partition, Lease: d.Lease, From: d.Index, To: d.Index, Outcome: wire.Acked}
		l.mu.since = time.Now()
		if !last {
			l.arm(d.term)
		}
	}
	h.To = d.Index + 1
	l.mu.Unlock()
}

// arm sets the timer. l.mu is held.
func (l *loop) arm(t *term) {
	if l.timer != nil {
		l.timer.Stop()
	}
	l.timer = time.AfterFunc(l.c.o.ackAfter, func() {
		l.flush(t)
		if link := l.m.pool.pick(l.m.number); link != nil {
			l.pump(link)
		}
	})
}

// flush queues the ack of what was handled.
func (l *loop) flush(t *term) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	if l.mu.handled.To != 0 {
		l.mu.failed = append(l.mu.failed, ackItem{AckRange: l.mu.handled, term: t})
		l.mu.handled = wire.AckRange{}
	}
}

// start queues an item.
func (l *loop) start(i ackItem) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.failed = append(l.mu.failed, i)
}

// pump sends what is queued, now.
func (l *loop) pump(link *link) {
	l.resend(link)
	link.Flush()
}

// resend starts all queued acks on link.
func (l *loop) resend(link *link) {
	l.mu.Lock()
	items := l.mu.failed
	l.mu.failed = nil
	if len(items) > 0 {
		l.mu.inFlight++
	}
	l.mu.Unlock()
	if len(items) == 0 {
		return
	}
	r := l.c.ackRequest(l.m.number)
	for _, i := range items {
		r.Items = append(r.Items, i.AckRange)
	}
	if _, err := link.Start(wire.CommandAck, wire.AppendAckRequest(nil, r), nil, func(f wire.Frame, err error) {
		var out wire.AckResponse
		if err == nil {
			err = parseAcks(&out, f.Header, len(items))
		}
		l.acked(items, out.Codes, err)
	}); err != nil {
		l.acked(items, nil, err)
	}
}

// acked takes the answer of an ack, on the connection's reading goroutine or where it is closed.
func (l *loop) acked(items []ackItem, codes []wire.Code, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.inFlight--; l.mu.inFlight == 0 && l.mu.idle != nil {
		close(l.mu.idle)
		l.mu.idle = nil
	}
	for k, i := range items {
		code := codeOf(err)
		if err == nil {
			code = codes[k]
		}
		i.unknown = i.unknown || code == wire.CodeUnknown
		switch {
		case code == wire.CodeOK, code == wire.CodeAlreadyEnded:
			l.m.told(&i.AckRange, code)
		case err != nil && wire.Traits[code].Retry != wire.RetryNever && !i.term.over():
			l.mu.failed = append(l.mu.failed, i)
		default:
			if i.Lease == l.mu.lease {
				l.mu.lost = true
			}
			l.m.disown(i.Lease, code == wire.CodeLeaseExpired || code == wire.CodeLeaseUnknown)
			if i.Outcome == wire.Acked {
				l.logger().Warn("ack was refused: the messages come again", "topic", l.c.topic, "group", l.c.o.group, "partition", i.Partition, "index", i.From, "to", i.To, "code", code)
			}
		}
	}
}

// settle sends what is left and waits for the answers, and leaves: at the end of a loop.
func (l *loop) settle() {
	ctx, cancel := context.WithTimeout(l.c.c.cluster.ctx, settleTimeout)
	defer cancel()
	l.drain(ctx)
	l.m.retire(ctx)
}

// drain sends what is left and waits for the answers, until ctx ends.
func (l *loop) drain(ctx context.Context) {
	for pause := retryMin; ; pause = min(2*pause, retryMax) {
		l.mu.Lock()
		queued, inFlight := len(l.mu.failed), l.mu.inFlight
		var idle chan struct{}
		if inFlight > 0 {
			if l.mu.idle == nil {
				l.mu.idle = make(chan struct{})
			}
			idle = l.mu.idle
		}
		l.mu.Unlock()
		switch {
		case inFlight > 0:
			select {
			case <-idle:
			case <-ctx.Done():
				return
			}
		case queued > 0:
			link, err := l.m.pool.await(ctx, l.m.number)
			if err != nil {
				return
			}
			l.pump(link)
			if !l.c.c.cluster.pause(ctx, pause) {
				return
			}
		default:
			return
		}
	}
}
