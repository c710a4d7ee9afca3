package client

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
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
	at      *pool // the broker group
	turn    int   // slaves that did not serve
	members map[*pool]*member
	m       *member // of the broker that is asked
	backoff time.Duration
	timer   *time.Timer // sends what was handled while a handler runs on

	mu struct {
		sync.Mutex
		lease    uint64
		handled  wire.AckRange // not yet on its way; empty: nothing
		by       *member       // of handled
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
	m       *member // who has the lease
	to      *pool   // who gave it, or has it now
	unknown bool    // an attempt may have arrived
}

func newLoop(r *run, at *pool) *loop {
	l := &loop{c: r.c, h: r.h, turns: r.turns, at: at, members: map[*pool]*member{}, backoff: r.c.o.backoffMin}
	l.ask(at)
	return l
}

// ask makes src be asked from now on. What the member before has it keeps, and its acks go to the broker that gave it.
func (l *loop) ask(src *pool) {
	if l.m != nil {
		if l.m.pool == src {
			return
		}
		l.m.rest()
		l.logger().Info("messages come from another broker", "topic", l.c.topic, "group", l.c.o.group, "brokerGroup", l.at.name, "slave", src.of != nil)
	}
	l.m = l.members[src]
	if l.m == nil {
		l.m = l.c.c.newMember(l.c, src)
		l.members[src] = l.m
	}
	l.m.setUsed(true)
}

func (l *loop) logger() *slog.Logger { return l.c.c.o.logger }

// run goes on until ctx ends (nil) or an error says that it is no use.
func (l *loop) run(ctx, handling context.Context) error {
	defer l.settle()
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
		src := l.at.source(l.turn)
		var out *wire.FetchResponse
		var link *link
		err := l.c.subscribedAt(ctx, l.at, src)
		if err == nil {
			l.ask(src)
			l.pumpOthers()
			s := l.c.settings(l.c.sub.view.Load())
			r.MessagesMax, r.WaitMs = uint32(s.batch), waitMs(s.wait)
			if src != l.at {
				r.WaitMs = min(r.WaitMs, uint32(slaveWait.Milliseconds()))
			}
			out, link, err = l.m.fetch(ctx, &r, changed, l.resend)
		} else if ctx.Err() == nil && l.at.slaves.Load() == nil {
			return err
		}
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
		if l.at.missed(src, link, err) {
			if src != l.at {
				l.turn++
			}
			if l.at.round(l.turn) && src != l.at || l.at.source(l.turn) == src {
				l.c.c.cluster.pause(ctx, pause)
				pause = min(2*pause, retryMax)
			}
			continue
		}
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
	l.start(ackItem{AckRange: wire.AckRange{Partition: r.Partition, Lease: r.Lease, From: r.From, To: r.To, Outcome: wire.Released}, term: l.m.term(r), m: l.m, to: l.m.pool})
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
	l.start(ackItem{AckRange: left, term: term, m: l.m, to: l.m.pool})
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
		l.mu.by, l.mu.since = l.m, time.Now()
		if !last {
			l.arm(l.m, d.term)
		}
	}
	h.To = d.Index + 1
	l.mu.Unlock()
}

// arm sets the timer. l.mu is held.
func (l *loop) arm(m *member, t *term) {
	if l.timer != nil {
		l.timer.Stop()
	}
	l.timer = time.AfterFunc(l.c.o.ackAfter, func() {
		l.flush(t)
		if link := m.pool.pick(m.number); link != nil {
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
		l.mu.failed = append(l.mu.failed, ackItem{AckRange: l.mu.handled, term: t, m: l.mu.by, to: l.mu.by.pool})
		l.mu.handled, l.mu.by = wire.AckRange{}, nil
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

// resend starts the queued acks that link's broker is to have.
func (l *loop) resend(link *link) {
	l.mu.Lock()
	if len(l.mu.failed) == 0 {
		l.mu.Unlock()
		return
	}
	var items, rest []ackItem
	for _, i := range l.mu.failed {
		if i.to == link.pool {
			items = append(items, i)
		} else {
			rest = append(rest, i)
		}
	}
	l.mu.failed = rest
	var parts [][]ackItem // a request has one member
	for len(items) > 0 {
		n := 1
		for n < len(items) && items[n].m == items[0].m {
			n++
		}
		parts = append(parts, items[:n:n])
		items = items[n:]
	}
	l.mu.inFlight += len(parts)
	l.mu.Unlock()
	for _, part := range parts {
		r := l.c.ackRequest(part[0].m.number)
		for _, i := range part {
			r.Items = append(r.Items, i.AckRange)
		}
		if _, err := link.Start(wire.CommandAck, wire.AppendAckRequest(nil, r), nil, func(f wire.Frame, err error) {
			var out wire.AckResponse
			if err == nil {
				err = parseAcks(&out, f.Header, len(part))
			}
			l.acked(link, part, out.Codes, err)
		}); err != nil {
			l.acked(link, part, nil, err)
		}
	}
}

// pumpOthers sends the queued acks that other brokers are to have than the one that is asked.
func (l *loop) pumpOthers() {
	l.pumpTo(func(p *pool) bool { return p != l.m.pool })
}

// pumpTo sends the queued acks of brokers for which want is true, as far as these can be reached.
func (l *loop) pumpTo(want func(*pool) bool) {
	l.mu.Lock()
	var to []*pool
	for k := range l.mu.failed {
		i := &l.mu.failed[k]
		if want(i.to) && i.term.over() {
			continue // below
		}
		if want(i.to) {
			if link := i.to.giver(i.m.number, l.turn); link != nil {
				i.to = link.pool
			}
			if !slices.Contains(to, i.to) {
				to = append(to, i.to)
			}
		}
	}
	l.mu.failed = slices.DeleteFunc(l.mu.failed, func(i ackItem) bool { return want(i.to) && i.term.over() })
	l.mu.Unlock()
	for _, p := range to {
		if link := p.pick(0); link != nil {
			l.pump(link)
		}
	}
}

// acked takes the answer of an ack, on the connection's reading goroutine or where it is closed.
func (l *loop) acked(link *link, items []ackItem, codes []wire.Code, err error) {
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
		case code == wire.CodeNotMaster && !i.term.over():
			i.to = i.to.elsewhere(link, cmp.Or(err, error(wire.Errorf(code, "the lease"))))
			l.mu.failed = append(l.mu.failed, i)
		case code == wire.CodeOK, code == wire.CodeAlreadyEnded:
			i.m.told(&i.AckRange, code)
		case err != nil && wire.Traits[code].Retry != wire.RetryNever && !i.term.over():
			l.mu.failed = append(l.mu.failed, i)
		default:
			if i.Lease == l.mu.lease {
				l.mu.lost = true
			}
			i.m.disown(i.Lease, code == wire.CodeLeaseExpired || code == wire.CodeLeaseUnknown)
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
	for _, m := range l.members {
		m.retire(ctx)
	}
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
			l.pumpTo(func(*pool) bool { return true })
			if !l.c.c.cluster.pause(ctx, pause) {
				return
			}
		default:
			return
		}
	}
}
