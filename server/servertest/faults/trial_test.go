// Package faults holds the tests of broker groups under faults: a whole cluster in one process, with disks in memory that lose what was not
// synced and links that can be cut, producers and consumers that use it through the SDK, and schedules of faults. The history that they saw is
// judged by server/servertest/check, and so are the brokers' disks in the end.
package faults

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/server"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/server/servertest"
	"github.com/jmqio/jmq/server/servertest/check"
	"github.com/jmqio/jmq/wire"
)

const (
	normal     = "orders" // a topic of the default durability
	replicated = "pairs"  // a topic whose messages are on two machines before they are ok
	moving     = "bells"  // a topic whose order keys move to another broker group while theirs is away
	group      = "shop"

	partitions = 2 // that a topic has in a broker group at most

	ackTimeout  = 3 * time.Second
	answerSlack = ackTimeout / 3 // a lease is noted as no longer than it is
	recoverMost = 30 * time.Second
	headerSeq   = "seq"

	// In simulated time:
	quietPause = 10 * time.Minute // of a producer or consumer at most, while it is quiet
	keptFor    = 3 * time.Hour
	keptBytes  = 128 << 10 // of one of the topics
)

var topics = []string{normal, replicated}

// trial is a cluster under load.
type trial struct {
	*servertest.Cluster
	shape
	t        testing.TB
	g        *servertest.ReplicaGroup // the first
	topics   []string
	groups   []string       // of consumers
	database *meta.Memory   // of the first registry node
	others   []*meta.Memory // the same one, as the others reach it
	stalled  time.Duration  // the machine, as await saw; of the test's goroutine
	rng      *rand.Rand
	clocks   map[string]*atomic.Int64 // of nodes: how far they are wrong
	strict   atomic.Bool              // only one broker group is ill: what may go to others must be ok
	sure     atomic.Bool              // nothing is ill at all: every send must be ok
	busy     atomic.Bool              // the load is as much as the clients can do; else they make pauses
	quiet    atomic.Bool              // nothing will happen for long: clients come now and then, nodes look rarely
	clients  map[string]*client.Client

	sending, consuming context.Context
	stopSending, stop  context.CancelFunc
	senders, working   sync.WaitGroup

	oks, got map[string]*atomic.Int64 // by topic

	mu struct {
		sync.Mutex
		events   []check.Event
		problems []string
		stirred  chan struct{} // closed when it is quiet no more
	}
	trimmed journal.Position            // where the journals begin that all copies of a broker group have in common, the highest
	down    map[*servertest.Server]bool // nodes that are stopped; of the goroutine that carries out the schedule
}

// shape of a trial's cluster.
type shape struct {
	auto   bool
	slaves int
	// oneFolder: the folder is the same at all brokers, each on its own disk in memory, so that disks can be exchanged. What brokers know of the
	// registry is kept on the real disk and is one file then: not while the registry is away.
	oneFolder bool
	// network: in memory, for a trial in simulated time. There are several broker groups then, two registry nodes, and more of everything.
	network      *servertest.Network
	brokerGroups int // there
}

func newTrial(t testing.TB, s shape, seed uint64) *trial {
	x := &trial{t: t, shape: s, database: meta.NewMemory(nil), rng: rand.New(rand.NewPCG(seed, 21)), down: map[*servertest.Server]bool{}}
	folder := t.TempDir()
	x.oks, x.got, x.clocks = map[string]*atomic.Int64{}, map[string]*atomic.Int64{}, map[string]*atomic.Int64{}
	x.topics, x.groups = topics, []string{group}
	registries, brokerGroups := 1, 1
	x.clients, x.mu.stirred = map[string]*client.Client{}, make(chan struct{})
	x.busy.Store(true)
	if s.network != nil {
		registries, brokerGroups = 2, s.brokerGroups
		x.topics, x.groups = append(x.topics[:2:2], moving), append(x.groups, group+".audit")
		x.busy.Store(false)
	}
	x.Cluster = servertest.StartCluster(t, servertest.ClusterOptions{
		Registries: registries, BrokerGroups: brokerGroups, Slaves: s.slaves, Auto: s.auto, Memory: true, Store: x.store, Network: s.network,
		Each: func(c *server.Config) {
			wrong := &atomic.Int64{}
			x.clocks[c.Node.Name] = wrong
			c.Now = func() time.Time { return time.Now().Add(time.Duration(wrong.Load())) }
			c.Broker.Replication.JoinAfter = 200 * time.Millisecond
			c.Broker.Dispatch.AckTimeout, c.Broker.Dispatch.DisconnectGrace = ackTimeout, 100*time.Millisecond
			if s.oneFolder {
				c.Broker.Data = folder
			}
			c.Node.StopTimeout = 500 * time.Millisecond
			if s.network != nil { // what goes by in days, and little of it
				c.Every = x.every
				c.Broker.Journal.SegmentBytesMax, c.Broker.Store.CheckpointBytes = 64<<10, 256<<10
				c.Broker.Retention.Age, c.Broker.Retention.Every = keptFor, time.Minute
			}
		},
	})
	x.g = x.Groups[0]
	var all []string
	for _, g := range x.Groups {
		all = append(all, g.Name)
	}
	for _, topic := range x.topics {
		spec := &meta.Topic{Partitions: partitions, BrokerGroups: all}
		switch topic {
		case replicated:
			spec.Partitions, spec.Durability = 1, meta.DurabilityReplicated
		case moving:
			spec.OrderKeyAway, spec.RetentionBytes = meta.OrderKeyMove, keptBytes
		}
		x.Apply(servertest.Object{Key: servertest.Key(meta.KindTopic, topic), Spec: spec})
	}
	x.well()
	x.consuming, x.stop = context.WithCancel(context.Background())
	x.sending, x.stopSending = context.WithCancel(x.consuming)
	t.Cleanup(x.end)
	for _, topic := range x.topics {
		x.oks[topic] = &atomic.Int64{}
		for _, g := range x.groups {
			x.got[topic+" "+g] = &atomic.Int64{}
		}
	}
	for _, topic := range x.topics {
		for i := range 2 {
			p := x.producer(topic, fmt.Sprintf("%s-%d", topic, i), i*2)
			x.senders.Go(func() { p.run(x.sending) })
		}
		for _, g := range x.groups {
			k := x.consumer(topic, g, topic+"-"+strings.ReplaceAll(g, ".", "-"))
			if err := k.k.Subscribe(x.consuming); err != nil {
				t.Fatal(err)
			}
			x.working.Go(func() { k.run(x.consuming) })
		}
	}
	x.working.Go(func() { x.masters(x.consuming) })
	return x
}

// store of a registry node.
func (x *trial) store(registry int) meta.Store {
	if registry == 0 {
		return x.database
	}
	x.others = append(x.others, x.database.Another())
	return x.others[len(x.others)-1]
}

// every is what nodes wait between two looks that are d apart: while it is quiet much longer, but not so long that anybody is taken as away.
func (x *trial) every(d time.Duration) time.Duration {
	if x.quiet.Load() {
		return max(d, min(10*d, 2*time.Second))
	}
	return d
}

// calm says that nothing will happen for long, or ends that.
func (x *trial) calm(is bool) {
	if x.quiet.Swap(is) && !is {
		x.mu.Lock()
		defer x.mu.Unlock()
		close(x.mu.stirred)
		x.mu.stirred = make(chan struct{})
	}
}

// rest waits for d, or until it is quiet no more, or ctx ends.
func (x *trial) rest(ctx context.Context, d time.Duration) {
	x.mu.Lock()
	stirred := x.mu.stirred
	x.mu.Unlock()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-stirred:
	case <-ctx.Done():
	}
}

// end stops all load.
func (x *trial) end() {
	x.Links.Heal()
	for _, s := range x.nodes() {
		x.Links.Resume(s.Name())
	}
	x.stopSending()
	x.senders.Wait()
	x.stop()
	x.working.Wait()
}

// brokers are all of them.
func (x *trial) brokers() []*servertest.Server {
	var all []*servertest.Server
	for _, g := range x.Groups {
		all = append(all, g.Brokers...)
	}
	return all
}

// nodes are all of them, the registry's first.
func (x *trial) nodes() []*servertest.Server {
	return append(slices.Clone(x.Registries), x.brokers()...)
}

// partition counts those of all broker groups through.
func (x *trial) partition(brokerGroup string, p uint16) uint16 {
	i := slices.IndexFunc(x.Groups, func(g *servertest.ReplicaGroup) bool { return g.Name == brokerGroup })
	return p + partitions*uint16(max(i, 0))
}

// client returns one of its own, or in simulated time, where they are what costs most, the one of that role.
func (x *trial) client(name, role string) *client.Client {
	if x.network == nil {
		return x.dial(name)
	}
	if x.clients[role] == nil {
		x.clients[role] = x.dial(role)
	}
	return x.clients[role]
}

func (x *trial) dial(name string) *client.Client {
	return x.Dial(strings.Join(servertest.Addresses(x.nodes()), ","), client.WithApp(name), x.Links.Client("clients"))
}

func now() int64 { return time.Now().UnixNano() }

func hash(body []byte) string { return fmt.Sprintf("%d-%08x", len(body), crc32.ChecksumIEEE(body)) }

func seqOf(h client.Headers) uint64 {
	v, _ := h.Get(headerSeq)
	n, _ := strconv.ParseUint(v, 10, 64) // 0: without order
	return n
}

// ordered is the order key of a message, by which its order is promised; "": by none.
func ordered(topic, key string) string {
	if topic == moving {
		return ""
	}
	return key
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
	p, err := x.client(proc, "producers").Producer(topic, client.Timeout(2*time.Second))
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
	}
	if p.keys > 0 && p.topic != moving {
		m.Headers = client.Headers{{Key: headerSeq, Value: strconv.FormatUint(p.seq, 10)}}
	}
	return m
}

func (p *producer) run(ctx context.Context) {
	for ctx.Err() == nil {
		m := p.message()
		for {
			e := check.Event{Op: check.OpSend, Proc: p.proc, Topic: p.topic, Key: ordered(p.topic, m.OrderKey), Seq: seqOf(m.Headers), Hash: hash(m.Body), Call: now(), Result: check.OK}
			sure := p.x.sure.Load()
			r, err := p.p.Send(context.Background(), m)
			e.ID, e.Unknown, e.Return = r.MessageID, r.Unknown, now()
			switch {
			case err == nil:
				e.Partition, e.Index = p.x.partition(r.BrokerGroup, r.Partition), r.Index
				p.x.oks[p.topic].Add(1)
			case errors.Is(err, client.ErrUnknown):
				e.Result, e.Reason = check.Unknown, err.Error()
			default:
				e.Result, e.Reason = check.Failed, err.Error()
				if !excused(err) || p.x.strict.Load() && (p.keys == 0 || p.topic == moving) {
					p.x.problem("%s: send: %v", p.proc, err)
				}
			}
			if sure && e.Result != check.OK && p.x.sure.Load() {
				p.x.problem("%s: send while nothing is ill: %v", p.proc, err)
			}
			if e.ID != "" { // else it was not begun
				p.x.event(e)
			}
			if e.Result != check.Unknown || p.rng.IntN(4) == 0 || ctx.Err() != nil {
				break
			}
			m.ID = r.MessageID
		}
		most := 20 * time.Millisecond
		switch {
		case p.x.network == nil:
		case p.x.quiet.Load():
			p.x.rest(ctx, time.Duration(p.rng.Int64N(int64(quietPause))))
			continue
		case p.x.busy.Load():
			most = 100 * time.Millisecond
		default:
			most = 2 * time.Second
		}
		pause(ctx, most/4+time.Duration(p.rng.Int64N(int64(most*3/4))))
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
	x    *trial
	k    *client.Consumer
	got  *atomic.Int64
	wait time.Duration
	rng  *rand.Rand
	proc string
}

func (x *trial) consumer(topic, group, proc string) *consumer {
	c := &consumer{x: x, got: x.got[topic+" "+group], wait: 200 * time.Millisecond, rng: rand.New(rand.NewPCG(x.rng.Uint64(), 23)), proc: proc}
	if x.network != nil {
		c.wait = 5 * time.Second
	}
	k, err := x.client(proc, "consumers").Consumer(topic, client.Group(group), client.Start(client.FromBeginning), client.PollWait(c.wait), client.OnGap(func(g client.Gap) {
		x.event(check.Event{Op: check.OpGap, Proc: proc, Topic: g.Topic, Group: g.Group, Partition: x.partition(g.BrokerGroup, g.Partition), Index: g.From, To: g.To, Reason: g.Reason.String(), Call: now()})
	}))
	if err != nil {
		x.t.Fatal(err)
	}
	c.k = k
	return c
}

func (c *consumer) run(ctx context.Context) {
	for ctx.Err() == nil {
		wait := c.wait
		if c.x.quiet.Load() {
			c.x.rest(ctx, time.Duration(c.rng.Int64N(int64(quietPause))))
			wait = 200 * time.Millisecond
		}
		ds, err := c.k.Fetch(ctx, 50, client.Wait(wait))
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
				Op: check.OpRecv, Proc: c.proc, Topic: d.Topic, Group: d.Group, Partition: c.x.partition(d.BrokerGroup, *d.Partition), Key: ordered(d.Topic, d.OrderKey), ID: d.ID, Seq: seqOf(d.Headers), Index: d.Index,
				Epoch: d.Epoch, Lease: d.Lease, Member: d.Member, Hash: hash(d.Body), Call: now(), Granted: granted.UnixNano(), Deadline: granted.Add(ackTimeout).UnixNano(),
			})
		}
		c.got.Add(int64(len(ds)))
		c.ack(ds)
	}
}

func (c *consumer) ack(ds []*client.Delivery) {
	d := ds[0]
	e := check.Event{Op: check.OpAck, Proc: c.proc, Topic: d.Topic, Group: d.Group, Partition: c.x.partition(d.BrokerGroup, *d.Partition), Index: d.Index, To: ds[len(ds)-1].Index + 1, Lease: d.Lease,
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

// status is what all brokers say of themselves.
func (x *trial) status() map[string]*wire.ReplicaStatus {
	all := map[string]*wire.ReplicaStatus{}
	for _, g := range x.Groups {
		maps.Copy(all, g.Status())
	}
	return all
}

// well waits until every broker group has a master that serves, and all slaves in sync.
func (x *trial) well() {
	x.t.Helper()
	for _, g := range x.Groups {
		g.Master()
		g.InSync(x.slaves)
	}
}

// await waits until good, or fails the test. What the machine let this goroutine wait beyond its naps is taken off, and noted in stalled.
func (x *trial) await(what string, most time.Duration, good func() bool) {
	x.t.Helper()
	const nap, least = 5 * time.Millisecond, 10 * time.Millisecond
	begun, before := time.Now(), x.stalled
	for !good() {
		due := time.Now().Add(nap)
		time.Sleep(nap)
		if over := time.Since(due); over > least {
			x.stalled += over
		}
		if time.Since(begun)-(x.stalled-before) < most {
			continue
		}
		x.mu.Lock()
		last := x.mu.events[max(0, len(x.mu.events)-8):]
		x.mu.Unlock()
		x.t.Fatalf("not within %v, the machine having stood still for %v more: %s; brokers %v\nlast events %+v", most, x.stalled-before, what, x.status(), last)
	}
}

// goesOn waits until n more sends to each topic were ok, and so many messages came.
func (x *trial) goesOn(what string, n int64, topics ...string) {
	x.t.Helper()
	var watched []*atomic.Int64
	var enough []int64
	watch := func(a *atomic.Int64) { watched, enough = append(watched, a), append(enough, a.Load()+n) }
	for _, topic := range topics {
		watch(x.oks[topic])
		for _, g := range x.groups {
			watch(x.got[topic+" "+g])
		}
	}
	x.await(what, recoverMost, func() bool {
		for i, a := range watched {
			if a.Load() < enough[i] {
				return false
			}
		}
		return true
	})
}
