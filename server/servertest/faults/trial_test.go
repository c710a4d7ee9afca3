// Package faults holds the tests of broker groups under faults: a whole cluster in one process, with disks in memory that lose what was not
// synced and links that can be cut, producers and consumers that use it through the SDK, and schedules of faults. The history that they saw is
// judged by server/servertest/check, and so are the brokers' disks in the end.
package faults

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/server"
	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/server/servertest"
	"github.com/jmqio/jmq/server/servertest/check"
	"github.com/jmqio/jmq/wire"
)

const (
	normal     = "orders" // a topic of the default durability
	replicated = "pairs"  // a topic whose messages are on two machines before they are ok
	group      = "shop"

	ackTimeout  = 3 * time.Second
	answerSlack = ackTimeout / 3 // a lease is noted as no longer than it is
	recoverMost = 30 * time.Second
	headerSeq   = "seq"
)

var topics = []string{normal, replicated}

// trial is a cluster of one broker group under load.
type trial struct {
	*servertest.Cluster
	t        testing.TB
	g        *servertest.ReplicaGroup
	slaves   int
	database *meta.Memory
	rng      *rand.Rand

	sending, consuming context.Context
	stopSending, stop  context.CancelFunc
	senders, working   sync.WaitGroup

	oks, got map[string]*atomic.Int64 // by topic

	mu struct {
		sync.Mutex
		events   []check.Event
		problems []string
	}
	down map[*servertest.Server]bool // nodes that are stopped; of the goroutine that carries out the schedule
}

// shape of a trial's cluster.
type shape struct {
	auto   bool
	slaves int
	// oneFolder: the folder is the same at all brokers, each on its own disk in memory, so that disks can be exchanged. What brokers know of the
	// registry is kept on the real disk and is one file then: not while the registry is away.
	oneFolder bool
}

func newTrial(t testing.TB, s shape, seed uint64) *trial {
	x := &trial{t: t, slaves: s.slaves, database: meta.NewMemory(nil), rng: rand.New(rand.NewPCG(seed, 21)), down: map[*servertest.Server]bool{}}
	folder := t.TempDir()
	x.oks, x.got = map[string]*atomic.Int64{}, map[string]*atomic.Int64{}
	x.Cluster = servertest.StartCluster(t, servertest.ClusterOptions{
		Slaves: s.slaves, Auto: s.auto, Memory: true, Store: func(int) meta.Store { return x.database },
		Each: func(c *server.Config) {
			c.Broker.Replication.JoinAfter = 200 * time.Millisecond
			c.Broker.Dispatch.AckTimeout, c.Broker.Dispatch.DisconnectGrace = ackTimeout, 100*time.Millisecond
			if s.oneFolder {
				c.Broker.Data = folder
			}
			c.Node.StopTimeout = 500 * time.Millisecond
		},
	})
	x.g = x.Groups[0]
	x.Apply(
		servertest.Object{Key: servertest.Key(meta.KindTopic, normal), Spec: &meta.Topic{Partitions: 2, BrokerGroups: []string{x.g.Name}}},
		servertest.Object{Key: servertest.Key(meta.KindTopic, replicated), Spec: &meta.Topic{Partitions: 1, BrokerGroups: []string{x.g.Name}, Durability: meta.DurabilityReplicated}},
	)
	x.g.Master()
	x.g.InSync(s.slaves)
	x.consuming, x.stop = context.WithCancel(context.Background())
	x.sending, x.stopSending = context.WithCancel(x.consuming)
	t.Cleanup(x.end)
	for _, topic := range topics {
		x.oks[topic], x.got[topic] = &atomic.Int64{}, &atomic.Int64{}
	}
	for _, topic := range topics {
		for i := range 2 {
			p := x.producer(topic, fmt.Sprintf("%s-%d", topic, i), i*2)
			x.senders.Go(func() { p.run(x.sending) })
		}
		k := x.consumer(topic, topic+"-consumer")
		if err := k.k.Subscribe(x.consuming); err != nil {
			t.Fatal(err)
		}
		x.working.Go(func() { k.run(x.consuming) })
	}
	x.working.Go(func() { x.masters(x.consuming) })
	return x
}

// end stops all load.
func (x *trial) end() {
	x.Links.Heal()
	for _, b := range x.g.Brokers {
		x.Links.Resume(b.Name())
	}
	x.stopSending()
	x.senders.Wait()
	x.stop()
	x.working.Wait()
}

func (x *trial) client(name string) *client.Client {
	return x.Dial(x.Registries[0].Address()+","+strings.Join(servertest.Addresses(x.g.Brokers), ","), client.WithApp(name), x.Links.Client("clients"))
}

func now() int64 { return time.Now().UnixNano() }

func hash(body []byte) string { return fmt.Sprintf("%d-%08x", len(body), crc32.ChecksumIEEE(body)) }

func seqOf(h client.Headers) uint64 {
	v, _ := h.Get(headerSeq)
	n, _ := strconv.ParseUint(v, 10, 64) // 0: without order
	return n
}

func (x *trial) event(events ...check.Event) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.mu.events = append(x.mu.events, events...)
}

func (x *trial) problem(format string, args ...any) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.mu.problems = append(x.mu.problems, fmt.Sprintf(format, args...))
}

// excused says whether err is one that faults may cause.
func excused(err error) bool {
	if e, ok := errors.AsType[*client.Error](err); ok && e.Code == wire.CodeUnknown {
		return true // of a fetch too, which has no outcome
	}
	for _, known := range []error{
		client.ErrDisconnected, client.ErrStopping, client.ErrTimeout, client.ErrBusy, client.ErrBroken, client.ErrNotMaster, client.ErrNotReplicated,
		client.ErrReadOnly, client.ErrRoleElsewhere, client.ErrMetadataAway, context.DeadlineExceeded, context.Canceled,
	} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

// producer sends one message after the other; each has its place among those of the producer.
type producer struct {
	x     *trial
	p     *client.Producer
	rng   *rand.Rand
	topic string
	proc  string
	keys  int // order keys that it uses; 0: none, and its messages have no order
	seq   uint64
}

func (x *trial) producer(topic, proc string, keys int) *producer {
	p, err := x.client(proc).Producer(topic, client.Timeout(2*time.Second))
	if err != nil {
		x.t.Fatal(err)
	}
	return &producer{x: x, p: p, rng: rand.New(rand.NewPCG(x.rng.Uint64(), 22)), topic: topic, proc: proc, keys: keys}
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

func (p *producer) run(ctx context.Context) {
	for ctx.Err() == nil {
		m := p.message()
		for {
			e := check.Event{Op: check.OpSend, Proc: p.proc, Topic: p.topic, Key: m.OrderKey, Seq: seqOf(m.Headers), Hash: hash(m.Body), Call: now(), Result: check.OK}
			r, err := p.p.Send(context.Background(), m)
			e.ID, e.Unknown, e.Return = r.MessageID, r.Unknown, now()
			switch {
			case err == nil:
				e.Partition, e.Index = r.Partition, r.Index
				p.x.oks[p.topic].Add(1)
			case errors.Is(err, client.ErrUnknown):
				e.Result, e.Reason = check.Unknown, err.Error()
			default:
				e.Result, e.Reason = check.Failed, err.Error()
				if !excused(err) {
					p.x.problem("%s: send: %v", p.proc, err)
				}
			}
			p.x.event(e)
			if e.Result != check.Unknown || p.rng.IntN(4) == 0 || ctx.Err() != nil {
				break
			}
			m.ID = r.MessageID
		}
		pause(ctx, time.Duration(5+p.rng.IntN(15))*time.Millisecond)
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

// consumer fetches and acks.
type consumer struct {
	x     *trial
	k     *client.Consumer
	topic string
	proc  string
}

func (x *trial) consumer(topic, proc string) *consumer {
	c := &consumer{x: x, topic: topic, proc: proc}
	k, err := x.client(proc).Consumer(topic, client.Group(group), client.Start(client.FromBeginning), client.PollWait(200*time.Millisecond), client.OnGap(func(g client.Gap) {
		x.event(check.Event{Op: check.OpGap, Proc: proc, Topic: g.Topic, Group: g.Group, Partition: g.Partition, Index: g.From, To: g.To, Reason: g.Reason.String(), Call: now()})
	}))
	if err != nil {
		x.t.Fatal(err)
	}
	c.k = k
	return c
}

func (c *consumer) run(ctx context.Context) {
	for ctx.Err() == nil {
		ds, err := c.k.Fetch(ctx, 50, client.Wait(200*time.Millisecond))
		if err != nil {
			if ctx.Err() == nil {
				if !excused(err) {
					c.x.problem("%s: fetch: %v", c.proc, err)
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
			c.x.event(check.Event{
				Op: check.OpRecv, Proc: c.proc, Topic: d.Topic, Group: d.Group, Partition: *d.Partition, Key: d.OrderKey, ID: d.ID, Seq: seqOf(d.Headers), Index: d.Index,
				Epoch: d.Epoch, Lease: d.Lease, Member: d.Member, Hash: hash(d.Body), Call: now(), Granted: granted.UnixNano(), Deadline: granted.Add(ackTimeout).UnixNano(),
			})
		}
		c.x.got[c.topic].Add(int64(len(ds)))
		c.ack(ds)
	}
}

func (c *consumer) ack(ds []*client.Delivery) {
	d := ds[0]
	e := check.Event{Op: check.OpAck, Proc: c.proc, Topic: d.Topic, Group: d.Group, Partition: *d.Partition, Index: d.Index, To: ds[len(ds)-1].Index + 1, Lease: d.Lease,
		Member: d.Member, Call: now(), Result: check.OK}
	ctx, cancel := context.WithTimeout(context.Background(), ackTimeout)
	defer cancel()
	err := c.k.Ack(ctx, ds...)
	e.Return = now()
	switch {
	case err == nil:
	case errors.Is(err, client.ErrLeaseExpired), errors.Is(err, client.ErrLeaseForeign), errors.Is(err, client.ErrAlreadyEnded):
		e.Result, e.Reason = check.Failed, err.Error()
	default:
		e.Result, e.Reason = check.Unknown, err.Error()
		if !errors.Is(err, client.ErrLeaseUnknown) && !excused(err) {
			c.x.problem("%s: ack: %v", c.proc, err)
		}
	}
	c.x.event(e)
}

// await waits until good, or fails the test.
func (x *trial) await(what string, most time.Duration, good func() bool) {
	x.t.Helper()
	late := time.NewTimer(most)
	defer late.Stop()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for !good() {
		select {
		case <-look.C:
		case <-late.C:
			x.mu.Lock()
			last := x.mu.events[max(0, len(x.mu.events)-8):]
			x.mu.Unlock()
			x.t.Fatalf("not within %v: %s; brokers %v\nlast events %+v", most, what, x.g.Status(), last)
		}
	}
}

// goesOn waits until n more sends to each topic were ok, and so many messages came.
func (x *trial) goesOn(what string, n int64, topics ...string) {
	x.t.Helper()
	was, had := map[string]int64{}, map[string]int64{}
	for _, topic := range topics {
		was[topic], had[topic] = x.oks[topic].Load(), x.got[topic].Load()
	}
	x.await(what, recoverMost, func() bool {
		for _, topic := range topics {
			if x.oks[topic].Load() < was[topic]+n || x.got[topic].Load() < had[topic]+n {
				return false
			}
		}
		return true
	})
}
