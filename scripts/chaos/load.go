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

	"github.com/oklog/ulid/v2"

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

// partitionOf counts those of all broker groups through.
func partitionOf(groups []string, brokerGroup string, p uint16) uint16 {
	return p + partitions*uint16(slices.Index(groups, brokerGroup))
}

func (t *trial) partition(brokerGroup string, p uint16) uint16 {
	return partitionOf(t.groups, brokerGroup, p)
}

// witness is told what clients do and see. It is safe for concurrent use.
type witness interface {
	event(events ...check.Event)
	problem(format string, args ...any)
}

// producer sends one message after the other; with keys, each has its place among those of the producer.
type producer struct {
	witness
	groups []string
	p      *client.Producer
	rng    *rand.Rand
	topic  string
	proc   string
	keys   int // order keys that it uses; 0: none, and its messages have no order
	seq    uint64
	// mortal: its process may be killed, so that it tells of a send before it is begun.
	mortal bool
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
		if p.mortal {
			m.ID = ulid.Make().String()
		}
		for {
			e := check.Event{Op: check.OpSend, Proc: p.proc, Topic: p.topic, Key: m.OrderKey, Seq: seqOf(m.Headers), Hash: hash(m.Body), Call: now()}
			if p.mortal {
				e.ID, e.Unknown = m.ID, -1 // how often it is tried nobody will know
				p.event(e)
			}
			r, err := p.p.Send(context.Background(), m)
			e.ID, e.Unknown, e.Return, e.Result = r.MessageID, r.Unknown, now(), check.OK
			switch {
			case err == nil:
				e.Partition, e.Index = partitionOf(p.groups, r.BrokerGroup, r.Partition), r.Index
			case errors.Is(err, client.ErrUnknown):
				e.Result, e.Reason = check.Unknown, err.Error()
			default:
				e.Result, e.Reason = check.Failed, err.Error()
				if !excused(err) {
					p.problem("%s: send: %v", p.proc, err)
				}
			}
			if p.mortal {
				e.ID = m.ID // also when the SDK did not begin
			}
			if e.ID != "" { // else it was not begun
				p.event(e)
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
	witness
	groups []string
	k      *client.Consumer
	topic  string
	proc   string
	work   time.Duration // what is given takes up to so long; 0: no time
}

func newConsumer(w witness, cl *client.Client, groups []string, topic, proc string) (*consumer, error) {
	c := &consumer{witness: w, groups: groups, topic: topic, proc: proc}
	var err error
	c.k, err = cl.Consumer(topic, client.Group(app), client.Start(client.FromBeginning), client.PollWait(200*time.Millisecond), client.OnGap(func(g client.Gap) {
		w.event(check.Event{
			Op: check.OpGap, Proc: proc, Topic: g.Topic, Group: g.Group, Partition: partitionOf(groups, g.BrokerGroup, g.Partition), Index: g.From, To: g.To, Reason: g.Reason.String(), Call: now(),
		})
	}))
	return c, err
}

// run consumes until ctx ends.
func (c *consumer) run(ctx context.Context) {
	for ctx.Err() == nil {
		granted := time.Now().Add(-answerSlack) // or later: the process may be paused before it looks at the clock again
		ds, err := c.k.Fetch(ctx, 50, client.Wait(200*time.Millisecond))
		if err != nil {
			if ctx.Err() == nil {
				if !excused(err) {
					c.problem("%s: fetch: %v", c.proc, err)
				}
				pause(ctx, 20*time.Millisecond)
			}
			continue
		}
		if len(ds) == 0 {
			continue
		}
		var events []check.Event
		for _, d := range ds {
			events = append(events, check.Event{
				Op: check.OpRecv, Proc: c.proc, Topic: d.Topic, Group: d.Group, Partition: partitionOf(c.groups, d.BrokerGroup, *d.Partition), Key: d.OrderKey, ID: d.ID, Seq: seqOf(d.Headers),
				Index: d.Index, Epoch: d.Epoch, Lease: d.Lease, Member: d.Member, Hash: hash(d.Body), Call: now(),
				Granted: granted.UnixNano(), Deadline: granted.Add(ackTimeout).UnixNano(),
			})
		}
		c.event(events...)
		if c.work > 0 {
			pause(ctx, rand.N(c.work))
		}
		c.ack(ds)
	}
}

// ack acks a range of one lease.
func (c *consumer) ack(ds []*client.Delivery) {
	d := ds[0]
	e := check.Event{
		Op: check.OpAck, Proc: c.proc, Topic: d.Topic, Group: d.Group, Partition: partitionOf(c.groups, d.BrokerGroup, *d.Partition), Index: d.Index, To: ds[len(ds)-1].Index + 1,
		Lease: d.Lease, Member: d.Member, Call: now(),
	}
	c.event(e) // begun: the history may be judged before it returns
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
			c.problem("%s: ack: %v", c.proc, err)
		}
	}
	c.event(e)
}
