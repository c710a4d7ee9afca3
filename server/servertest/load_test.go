package servertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/server/servertest/check"
	"github.com/jmqio/jmq/wire"
)

// headerSeq carries a message's place among those of its producer.
const headerSeq = "seq"

func now() int64 { return time.Now().UnixNano() }

func hash(body []byte) string { return fmt.Sprintf("%d-%08x", len(body), crc32.ChecksumIEEE(body)) }

func seqOf(h client.Headers) uint64 {
	v, _ := h.Get(headerSeq)
	n, _ := strconv.ParseUint(v, 10, 64) // 0: without order
	return n
}

// patience is what a producer does with errors.
type patience struct {
	timeout time.Duration // of a send
	hurry   int           // one in so many sends is given up after a moment; 0: none
	repeat  bool          // sends of unknown outcome are repeated with the same id, as a rule
}

// producer sends one message after the other.
type producer struct {
	c     *campaign
	p     *client.Producer
	rng   *rand.Rand
	proc  string
	topic string
	keys  int // order keys that it uses; 0: none, and its messages have no order
	patience
	small bool // messages
	seq   uint64
}

func (c *campaign) producer(cl *client.Client, proc string, keys int, p patience, options ...client.ProducerOption) *producer {
	return c.producerOf(topicName, cl, proc, keys, p, options...)
}

func (c *campaign) producerOf(topic string, cl *client.Client, proc string, keys int, p patience, options ...client.ProducerOption) *producer {
	k, err := cl.Producer(topic, append(options, client.Timeout(p.timeout))...)
	if err != nil {
		c.t.Fatal(err)
	}
	return &producer{c: c, p: k, rng: c.fork(), proc: proc, topic: topic, keys: keys, patience: p}
}

// message makes the next one. Most are small; some fill several blocks of the disk.
func (p *producer) message() *client.Message {
	size := 10 + p.rng.IntN(400)
	switch {
	case p.small:
		size = 10 + p.rng.IntN(40)
	case p.rng.IntN(6) == 0:
		size = 6_000 + p.rng.IntN(12_000)
	}
	body := fmt.Appendf(nil, "%s %d ", p.proc, p.seq)
	body = append(body, bytes.Repeat([]byte{byte('a' + p.rng.IntN(26))}, size)...)
	m := &client.Message{Body: body}
	if p.keys > 0 {
		p.seq++
		m.OrderKey = p.proc + "-" + strconv.Itoa(p.rng.IntN(p.keys))
		m.Headers = client.Headers{{Key: headerSeq, Value: strconv.FormatUint(p.seq, 10)}}
	}
	return m
}

func (p *producer) sent(m *client.Message) check.Event {
	return check.Event{Op: check.OpSend, Proc: p.proc, Topic: p.topic, Key: m.OrderKey, Seq: seqOf(m.Headers), Hash: hash(m.Body), Call: now()}
}

// note completes and writes the event of a send.
func (p *producer) note(e check.Event, r client.Receipt, err error) check.Result {
	e.ID, e.Unknown, e.Return, e.Result = r.MessageID, r.Unknown, now(), check.OK
	switch {
	case err == nil:
		e.Partition, e.Index = r.Partition, r.Index
		p.c.acknowledged.Add(1)
	case errors.Is(err, client.ErrUnknown):
		e.Result = check.Unknown
	default:
		e.Result = check.Failed
		if !p.c.excused(err) {
			p.c.problem("%s: send: %v", p.proc, err)
		}
	}
	if err != nil {
		e.Reason = err.Error()
	}
	if errors.Is(err, client.ErrDiskFull) {
		p.c.full.Add(1)
	}
	p.c.event(e)
	return e.Result
}

// run sends until ctx ends.
func (p *producer) run(ctx context.Context) {
	for ctx.Err() == nil {
		m := p.message()
		for {
			sending, cancel := context.WithCancel(context.Background())
			if p.hurry > 0 && p.rng.IntN(p.hurry) == 0 {
				cancel()
				sending, cancel = context.WithTimeout(context.Background(), time.Duration(p.rng.IntN(3000))*time.Microsecond)
			}
			e := p.sent(m)
			r, err := p.p.Send(sending, m)
			cancel()
			result := p.note(e, r, err)
			if result != check.Unknown || !p.repeat || p.rng.IntN(4) == 0 || ctx.Err() != nil {
				break
			}
			m.ID = r.MessageID
		}
		pause(ctx, time.Duration(p.rng.IntN(1500))*time.Microsecond)
	}
}

// runBatches sends several at once.
func (p *producer) runBatches(ctx context.Context) {
	for ctx.Err() == nil {
		most := 20
		if p.small {
			most = 300
		}
		msgs := make([]*client.Message, 1+p.rng.IntN(most))
		events := make([]check.Event, len(msgs))
		for i := range msgs {
			msgs[i] = p.message()
		}
		for i := range msgs {
			events[i] = p.sent(msgs[i])
		}
		receipts, err := p.p.SendBatch(context.Background(), msgs)
		var each *client.BatchError
		if err != nil && !errors.As(err, &each) {
			p.c.problem("%s: send batch: %v", p.proc, err)
			return
		}
		for i := range msgs {
			var err error
			if each != nil {
				err = each.Errors[i]
			}
			p.note(events[i], receipts[i], err)
		}
		pause(ctx, time.Duration(p.rng.IntN(20))*time.Millisecond)
	}
}

// runAsync sends without waiting: several messages of an order key are under way.
func (p *producer) runAsync(ctx context.Context) {
	for ctx.Err() == nil {
		for range 1 + p.rng.IntN(6) {
			m := p.message()
			e := p.sent(m)
			p.p.SendAsync(context.Background(), m, func(r client.Receipt, err error) { p.note(e, r, err) })
		}
		pause(ctx, time.Duration(p.rng.IntN(20))*time.Millisecond)
	}
	flushing, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if err := p.p.Flush(flushing); err != nil {
		p.c.problem("%s: flush: %v", p.proc, err)
	}
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// excused reports whether err is one that a broker which goes, comes or fails may cause.
func (c *campaign) excused(err error) bool {
	if e, ok := errors.AsType[*client.Error](err); ok && e.Code == wire.CodeUnknown {
		return true // of a fetch too, which has no outcome
	}
	for _, known := range []error{
		client.ErrDisconnected, client.ErrStopping, client.ErrTimeout, client.ErrBusy, client.ErrBroken, client.ErrDiskFull, context.DeadlineExceeded,
		context.Canceled,
	} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

// member is one consumer process: it has a client of its own, and dies with it.
type member struct {
	c        *campaign
	rng      *rand.Rand // not for handlers of Run that run at the same time: see draw
	proc     string
	line     *line
	client   *client.Client
	consumer *client.Consumer
	gone     chan struct{} // closed by die

	mu struct {
		sync.Mutex
		dead bool
	}
}

// slot keeps one member of a group going: when it has died the next one takes its place.
func (c *campaign) slot(ctx context.Context, group string, n int, consume func(*member, context.Context)) {
	for life := 0; ctx.Err() == nil; life++ {
		m := &member{c: c, rng: c.fork(), proc: fmt.Sprintf("%s-%d.%d", group, n, life), line: c.network.line(), gone: make(chan struct{})}
		if err := m.start(ctx, group); err != nil {
			if ctx.Err() == nil && !c.excused(err) {
				c.problem("%s: %v", m.proc, err)
			}
			m.line.hangUp()
			continue
		}
		// Nobody waits for a broker that does not come back.
		kept := context.AfterFunc(c.aborted, func() { closeNow(m.client) })
		consume(m, ctx)
		m.stop()
		kept()
	}
}

func (m *member) start(ctx context.Context, group string) error {
	var err error
	m.client, err = client.Dial(ctx, "127.0.0.1:1", client.WithApp(group), client.WithDialer(m.line.dial), client.WithConns(1+m.rng.IntN(2)))
	if err != nil {
		return err
	}
	m.consumer, err = m.client.Consumer(topicName, client.Start(client.FromBeginning), client.PollWait(pollWait), client.Concurrency(2),
		client.Batch(1+m.rng.IntN(m.most())), client.AckAfter(5*time.Millisecond), client.Backoff(5*time.Millisecond, 20*time.Millisecond), client.StopTimeout(ackTimeout),
		client.OnGap(m.gap))
	return err
}

// gap notes that messages will never come.
func (m *member) gap(g client.Gap) {
	m.c.event(check.Event{
		Op: check.OpGap, Proc: m.proc, Topic: g.Topic, Group: g.Group, Partition: g.Partition, Index: g.From, To: g.To, Reason: g.Reason.String(), Call: now(),
	})
}

// most is how many messages it takes at once, at most.
func (m *member) most() int {
	if m.c.bulk {
		return 300
	}
	return 20
}

// stop closes the client: in order, unless it is dead.
func (m *member) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if m.isDead() {
		cancel()
	}
	if err := m.client.Close(ctx); err != nil && !m.isDead() {
		m.c.problem("%s: close: %v", m.proc, err)
	}
	m.line.hangUp()
}

// die ends the process at once: nothing that it had under way goes out any more.
func (m *member) die() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.dead {
		return
	}
	m.mu.dead = true
	m.c.event(check.Event{Op: check.OpDie, Proc: m.proc, Call: now()})
	m.line.hangUp()
	close(m.gone)
}

// blink loses the member's connections. It does not know what becomes of its leases.
func (m *member) blink() {
	m.c.event(check.Event{Op: check.OpDie, Proc: m.proc, Reason: "lost its connections", Call: now()})
	m.line.cut()
}

func (m *member) isDead() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.dead
}

// draw is rng for handlers: true once in n, and never when the campaign has calmed down.
func (m *member) draw(n int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.c.calm.Load() && m.rng.IntN(n) == 0
}

// answerSlack is how long a lease may be on its way from the broker. Histories rest on it: a lease is not noted as longer than
// it is.
const answerSlack = ackTimeout * 2 / 5

// received notes a delivery, before anything is done with it; false if the member is dead. came is when its lease came.
func (m *member) received(d *client.Delivery, came time.Time) bool {
	return m.receivedUntil(d, came, time.Time{})
}

// receivedUntil is received of a lease that was extended; not later than it is.
func (m *member) receivedUntil(d *client.Delivery, came, until time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.dead {
		return false
	}
	granted := came.Add(-answerSlack) // at the broker then, or later
	deadline := granted.Add(ackTimeout)
	if until.After(deadline) {
		deadline = until
	}
	m.c.received.Add(1)
	m.c.event(check.Event{
		Op: check.OpRecv, Proc: m.proc, Topic: d.Topic, Group: d.Group, Partition: *d.Partition, Key: d.OrderKey, ID: d.ID, Seq: seqOf(d.Headers),
		Index: d.Index, Epoch: d.Epoch, Lease: d.Lease, Member: d.Member, Hash: hash(d.Body), Call: now(),
		Granted: granted.UnixNano(), Deadline: deadline.UnixNano(),
	})
	return true
}

// about is an event about a delivery's lease.
func (m *member) about(op check.Op, d *client.Delivery, to uint64) check.Event {
	return check.Event{Op: op, Proc: m.proc, Topic: d.Topic, Group: d.Group, Partition: *d.Partition, Index: d.Index, To: to, Lease: d.Lease, Member: d.Member, Call: now()}
}

// fetch consumes by Fetch and Ack, until ctx ends or it dies.
func (m *member) fetch(ctx context.Context) {
	for ctx.Err() == nil && !m.isDead() {
		ds, err := m.consumer.Fetch(ctx, 1+m.rng.IntN(m.most()), client.Wait(pollWait))
		if err != nil {
			if ctx.Err() == nil && !m.c.excused(err) {
				m.c.problem("%s: fetch: %v", m.proc, err)
				pause(ctx, 10*time.Millisecond)
			}
			continue
		}
		if len(ds) > 0 {
			came := time.Now()
			m.received(ds[0], came)
			m.handle(ctx, ds, came)
		}
	}
}

// handle does with a lease what consumers do, good and bad.
func (m *member) handle(ctx context.Context, ds []*client.Delivery, came time.Time) {
	some := 1 + m.rng.IntN(len(ds))
	switch {
	case m.draw(30): // dies over it
		m.receivedAll(ds[1:some], came)
		m.die()
	case m.draw(80): // is slower than its lease
		m.receivedAll(ds[1:some], came)
		pause(ctx, ackTimeout*5/4)
		m.ack(ds[:some])
	case m.draw(60): // asks for more time, and needs it
		until := time.Now().Add(2 * ackTimeout)
		if err := ds[0].Extend(ctx, 2*ackTimeout); err != nil {
			return
		}
		for _, d := range ds[1:] {
			m.receivedUntil(d, came, until)
		}
		pause(ctx, ackTimeout*5/4)
		m.ack(ds)
	case m.draw(25): // gives it all back
		m.receivedAll(ds[1:some], came)
		m.release(ds)
	case len(ds) <= 20 && m.draw(2): // one by one, as the handlers end, and some not at all
		m.receivedAll(ds[1:], came)
		var back []*client.Delivery
		for _, i := range m.rng.Perm(len(ds)) {
			if m.draw(8) {
				back = append(back, ds[i])
				continue
			}
			m.ack(ds[i : i+1])
			if m.draw(10) {
				pause(ctx, time.Duration(m.rng.IntN(20))*time.Millisecond)
			}
		}
		m.release(back)
	default:
		m.receivedAll(ds[1:], came)
		switch {
		case m.draw(20): // takes its time, but not too much
			pause(ctx, ackTimeout/4)
		case m.draw(20):
			m.blink()
			pause(ctx, time.Duration(m.rng.IntN(100))*time.Millisecond)
		}
		m.ack(ds)
	}
}

func (m *member) receivedAll(ds []*client.Delivery, came time.Time) {
	for _, d := range ds {
		m.received(d, came)
	}
}

// ack acks a range.
func (m *member) ack(ds []*client.Delivery) {
	e := m.about(check.OpAck, ds[0], ds[len(ds)-1].Index+1)
	ctx, cancel := context.WithTimeout(context.Background(), ackTimeout)
	defer cancel()
	err := m.consumer.Ack(ctx, ds...)
	e.Return, e.Result = now(), check.OK
	switch {
	case err == nil:
	case errors.Is(err, client.ErrLeaseExpired), errors.Is(err, client.ErrLeaseForeign), errors.Is(err, client.ErrAlreadyEnded):
		e.Result, e.Reason = check.Failed, err.Error()
	default:
		// That the lease is not known says only that the broker restarted, maybe after it had this ack.
		e.Result, e.Reason = check.Unknown, err.Error()
		if !errors.Is(err, client.ErrLeaseUnknown) && !m.c.excused(err) && !m.isDead() {
			m.c.problem("%s: ack: %v", m.proc, err)
		}
	}
	m.c.event(e)
}

func (m *member) release(ds []*client.Delivery) {
	for _, d := range ds {
		m.c.event(m.about(check.OpRelease, d, d.Index+1))
	}
	ctx, cancel := context.WithTimeout(context.Background(), ackTimeout)
	defer cancel()
	for _, d := range ds {
		if d.Release(ctx) != nil {
			return // the leases end by themselves
		}
	}
}

var errNotNow = errors.New("not now")

// receive consumes by Run, until ctx ends or it dies.
func (m *member) receive(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-m.gone: // nobody waits for what a dead process still wanted to say
			closeNow(m.client)
		case <-ctx.Done():
		}
	}()
	err := m.consumer.Run(ctx, func(_ context.Context, d *client.Delivery) error {
		const told = ackTimeout - min(ackTimeout/20, time.Second) // how long the SDK says that a lease lasts
		if !m.received(d, d.Deadline.Add(-told)) {
			return errNotNow
		}
		switch {
		case m.draw(150):
			m.die()
			return errNotNow
		case m.draw(100):
			m.c.event(m.about(check.OpRelease, d, d.Index+1))
			return errNotNow
		case m.draw(50):
			pause(ctx, 5*time.Millisecond)
		case m.draw(200):
			m.blink()
		}
		m.c.event(m.about(check.OpAck, d, d.Index+1)) // how it ends is the SDK's own
		return nil
	})
	if err != nil && !m.isDead() {
		m.c.problem("%s: run: %v", m.proc, err)
	}
}
