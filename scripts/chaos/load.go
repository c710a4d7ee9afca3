package main

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/server/servertest/check"
	"github.com/jmqio/jmq/wire"
)

const (
	normal     = "orders" // a topic of the default durability
	replicated = "pairs"  // a topic whose messages are on two machines before they are ok
	app        = "chaos"  // sends, and consumes as a group of its own name

	partitions  = 4 // of a topic at each broker group
	ackTimeout  = 4 * time.Second
	answerSlack = ackTimeout / 3 // a lease is noted as no longer than it is
	headerSeq   = "seq"
)

var topics = []string{normal, replicated}

func now() int64 { return time.Now().UnixNano() }

func hash(body []byte) string { return fmt.Sprintf("%d-%08x", len(body), crc32.ChecksumIEEE(body)) }

func seqOf(h client.Headers) uint64 {
	v, _ := h.Get(headerSeq)
	n, _ := strconv.ParseUint(v, 10, 64) // 0: without order
	return n
}

// excused says whether err is one that faults may cause.
func excused(err error) bool {
	if e, ok := errors.AsType[*client.Error](err); ok && e.Code == wire.CodeUnknown {
		return true // of a fetch too, which has no outcome
	}
	return slices.ContainsFunc([]error{
		client.ErrDisconnected, client.ErrStopping, client.ErrTimeout, client.ErrBusy, client.ErrBroken, client.ErrDiskFull, client.ErrNotMaster, client.ErrNotReplicated,
		client.ErrReadOnly, client.ErrRoleElsewhere, client.ErrMetadataAway, context.DeadlineExceeded, context.Canceled,
	}, func(known error) bool { return errors.Is(err, known) })
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

// partition counts those of all broker groups through.
func (t *trial) partition(brokerGroup string, p uint16) uint16 {
	return p + partitions*uint16(slices.Index(t.groups, brokerGroup))
}

// producer sends one message after the other; with keys, each has its place among those of the producer.
type producer struct {
	t     *trial
	p     *client.Producer
	rng   *rand.Rand
	topic string
	proc  string
	keys  int // order keys that it uses; 0: none, and its messages have no order
	seq   uint64
}

func (p *producer) message() *client.Message {
	p.seq++
	size := 10 + p.rng.IntN(300)
	if p.rng.IntN(10) == 0 {
		size = 5_000 + p.rng.IntN(5_000) // some blocks of the disk
	}
	m := &client.Message{Body: append(fmt.Appendf(nil, "%s %d ", p.proc, p.seq), make([]byte, size)...)}
	if p.keys > 0 {
		m.OrderKey = p.proc + "-" + strconv.Itoa(p.rng.IntN(p.keys))
		m.Headers = client.Headers{{Key: headerSeq, Value: strconv.FormatUint(p.seq, 10)}}
	}
	return m
}

// run sends until ctx ends.
func (p *producer) run(ctx context.Context) {
	for ctx.Err() == nil {
		m := p.message()
		for {
			e := check.Event{Op: check.OpSend, Proc: p.proc, Topic: p.topic, Key: m.OrderKey, Seq: seqOf(m.Headers), Hash: hash(m.Body), Call: now(), Result: check.OK}
			r, err := p.p.Send(context.Background(), m)
			e.ID, e.Unknown, e.Return = r.MessageID, r.Unknown, now()
			switch {
			case err == nil:
				e.Partition, e.Index = p.t.partition(r.BrokerGroup, r.Partition), r.Index
				p.t.oks[p.topic].Add(1)
			case errors.Is(err, client.ErrUnknown):
				e.Result, e.Reason = check.Unknown, err.Error()
			default:
				e.Result, e.Reason = check.Failed, err.Error()
				if !excused(err) {
					p.t.problem("%s: send: %v", p.proc, err)
				}
			}
			if e.ID != "" { // else it was not begun
				p.t.event(e)
			}
			if e.Result == check.Failed {
				pause(ctx, 20*time.Millisecond)
			}
			if e.Result != check.Unknown || p.rng.IntN(4) == 0 || ctx.Err() != nil {
				break
			}
			m.ID = r.MessageID
		}
		pause(ctx, time.Duration(2+p.rng.IntN(10))*time.Millisecond)
	}
}

// consumer fetches and acks.
type consumer struct {
	t     *trial
	k     *client.Consumer
	topic string
	proc  string
}

func (t *trial) consumer(topic, proc string) (*consumer, error) {
	cl, err := t.dial(proc)
	if err != nil {
		return nil, err
	}
	c := &consumer{t: t, topic: topic, proc: proc}
	c.k, err = cl.Consumer(topic, client.Group(app), client.Start(client.FromBeginning), client.PollWait(200*time.Millisecond), client.OnGap(func(g client.Gap) {
		t.event(check.Event{
			Op: check.OpGap, Proc: proc, Topic: g.Topic, Group: g.Group, Partition: t.partition(g.BrokerGroup, g.Partition), Index: g.From, To: g.To, Reason: g.Reason.String(), Call: now(),
		})
	}))
	return c, err
}

// run consumes until ctx ends.
func (c *consumer) run(ctx context.Context) {
	for ctx.Err() == nil {
		ds, err := c.k.Fetch(ctx, 50, client.Wait(200*time.Millisecond))
		if err != nil {
			if ctx.Err() == nil {
				if !excused(err) {
					c.t.problem("%s: fetch: %v", c.proc, err)
				}
				pause(ctx, 20*time.Millisecond)
			}
			continue
		}
		if len(ds) == 0 {
			continue
		}
		granted := time.Now().Add(-answerSlack)
		for _, d := range ds {
			c.t.event(check.Event{
				Op: check.OpRecv, Proc: c.proc, Topic: d.Topic, Group: d.Group, Partition: c.t.partition(d.BrokerGroup, *d.Partition), Key: d.OrderKey, ID: d.ID, Seq: seqOf(d.Headers),
				Index: d.Index, Epoch: d.Epoch, Lease: d.Lease, Member: d.Member, Hash: hash(d.Body), Call: now(),
				Granted: granted.UnixNano(), Deadline: granted.Add(ackTimeout).UnixNano(),
			})
		}
		c.t.got[c.topic].Add(int64(len(ds)))
		c.ack(ds)
	}
}

// ack acks a range of one lease.
func (c *consumer) ack(ds []*client.Delivery) {
	d := ds[0]
	e := check.Event{
		Op: check.OpAck, Proc: c.proc, Topic: d.Topic, Group: d.Group, Partition: c.t.partition(d.BrokerGroup, *d.Partition), Index: d.Index, To: ds[len(ds)-1].Index + 1,
		Lease: d.Lease, Member: d.Member, Call: now(),
	}
	c.t.event(e) // begun: the history may be judged before it returns
	ctx, cancel := context.WithTimeout(context.Background(), ackTimeout)
	defer cancel()
	err := c.k.Ack(ctx, ds...)
	e.Return, e.Result = now(), check.OK
	switch {
	case err == nil:
	case errors.Is(err, client.ErrLeaseExpired), errors.Is(err, client.ErrLeaseForeign), errors.Is(err, client.ErrAlreadyEnded):
		e.Result, e.Reason = check.Failed, err.Error()
	default:
		// That the lease is not known says only that the broker restarted, maybe after it had this ack.
		e.Result, e.Reason = check.Unknown, err.Error()
		if !errors.Is(err, client.ErrLeaseUnknown) && !excused(err) {
			c.t.problem("%s: ack: %v", c.proc, err)
		}
	}
	c.t.event(e)
}
