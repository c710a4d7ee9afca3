package client

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jmqio/jmq/wire"
)

// fakeBroker is a broker in memory with the rules that a client can see: dense indexes per partition, one lease per group
// and partition, long polls. What a test wants to go wrong it does in the hooks.
type fakeBroker struct {
	wire.Admin // what no test calls

	name      string // of its broker group; empty: bg1
	leaseTime time.Duration

	mu struct {
		sync.Mutex
		topics  map[string][]*fakePartition
		groups  map[string]map[uint32]*fakeGroup // group + "@" + topic -> partition
		parked  []*fakeFetch
		leases  uint64
		batches []fakeBatch // in the order stored
		acks    int         // requests
		peers   map[string]int
		gaps    []fakeGap
		policy  *wire.GroupPolicy // of the last Subscribe
		extends int               // requests
		id      uint64            // of every topic
		hints   int               // requests with the right one
		again   int               // batches that were sent again, and known
	}
	// onProduce, if set, is called first and without the lock; an answer other than nil is given instead of storing.
	onProduce   func(r *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) (handled bool)
	onAck       func(r *wire.AckRequest) error
	onSubscribe func() error
	onFetch     func(r *wire.FetchRequest) error
	// refuses is what every request is answered; nil: nothing.
	refuses atomic.Pointer[wire.CodeError]
	idle    atomic.Bool // fetches are answered that it stops
	// repeats: a batch that it has is not stored again, as at a broker.
	repeats bool
	fetches atomic.Int64
}

// fetchesSeen counts the fetches that were no leaving.
func (b *fakeBroker) fetchesSeen() int64 { return b.fetches.Load() }

// refuse answers all requests with err from now on, those that wait too; nil ends that.
func (b *fakeBroker) refuse(err *wire.CodeError) {
	b.refuses.Store(err)
	if err == nil {
		return
	}
	b.mu.Lock()
	parked := b.mu.parked
	b.mu.parked = nil
	for _, f := range parked {
		f.over = true
		f.timer.Stop()
	}
	b.mu.Unlock()
	for _, f := range parked {
		f.done(nil, err)
	}
}

// follow makes b hold what its master holds: its messages, and where groups stand. Its leases have the top bit.
func (b *fakeBroker) follow(master *fakeBroker) {
	master.mu.Lock()
	defer master.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.topics, b.mu.groups = map[string][]*fakePartition{}, map[string]map[uint32]*fakeGroup{}
	for name, ps := range master.mu.topics {
		for _, p := range ps {
			b.mu.topics[name] = append(b.mu.topics[name], &fakePartition{slices.Clone(p.batches), p.end})
		}
	}
	b.take(master)
	b.mu.batches = slices.Clone(master.mu.batches)
	b.mu.leases = max(b.mu.leases, 1<<63)
}

// take takes where groups stand at o, and their leases. Both locks are held.
func (b *fakeBroker) take(o *fakeBroker) {
	for name, gs := range o.mu.groups {
		b.mu.groups[name] = map[uint32]*fakeGroup{}
		for i, g := range gs {
			b.mu.groups[name][i] = &fakeGroup{g.offset, maps.Clone(g.ended), nil, maps.Clone(g.ranOut)}
		}
	}
}

// merge makes b, a master that is back, take the acks and living leases of the slave that served, which serves no more.
func (b *fakeBroker) merge(slave *fakeBroker, err *wire.CodeError) {
	slave.refuse(err)
	slave.mu.Lock()
	defer slave.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.take(slave)
	for name, gs := range slave.mu.groups {
		for i, g := range gs {
			b.mu.groups[name][i].lease = g.lease
			g.lease = nil
		}
	}
}

type fakeBatch struct {
	topic     string
	partition uint16
	producer  [16]byte
	sequence  uint64
	first     uint64
	stored    int64
	messages  []wire.Message
}

// fakeGap is a range that cannot be read.
type fakeGap struct {
	partition uint16
	from, to  uint64
}

type fakePartition struct {
	batches []wire.Batch
	end     uint64
}

type fakeGroup struct {
	offset uint64 // all below is ended
	ended  map[uint64]bool
	lease  *fakeLease
	ranOut map[uint64]uint32 // leases of a message that ran out
}

type fakeLease struct {
	number   uint64
	client   string
	member   uint32
	from, to uint64
	over     map[uint64]bool // ended or released
	until    time.Time
}

type fakeFetch struct {
	ctx    context.Context
	r      wire.FetchRequest
	client string
	done   func(*wire.FetchResponse, error)
	timer  *time.Timer
	over   bool
}

func newFakeBroker() *fakeBroker {
	b := &fakeBroker{leaseTime: time.Minute}
	b.mu.id = 1
	b.mu.topics = map[string][]*fakePartition{}
	b.mu.groups = map[string]map[uint32]*fakeGroup{}
	b.mu.peers = map[string]int{}
	return b
}

func (b *fakeBroker) topic(name string, partitions int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.mu.topics[name]) < partitions {
		b.mu.topics[name] = append(b.mu.topics[name], &fakePartition{})
	}
}

func (b *fakeBroker) Produce(ctx context.Context, r *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) {
	if err := b.refuses.Load(); err != nil {
		done(nil, err)
		return
	}
	if b.onProduce != nil && b.onProduce(r, done) {
		return
	}
	done(b.store(r))
}

func (b *fakeBroker) store(r *wire.ProduceRequest) (*wire.ProduceResponse, error) {
	batch, err := wire.ParseBatch(slices.Clone(r.Batch))
	if err != nil {
		return nil, err
	}
	if err := batch.Verify(); err != nil {
		return nil, err
	}
	b.mu.Lock()
	ps := b.mu.topics[r.Topic]
	if ps == nil {
		b.mu.Unlock()
		return nil, wire.Errorf(wire.CodeTopicNotFound, "topic %q", r.Topic)
	}
	if int(r.Partition) >= len(ps) {
		b.mu.Unlock()
		return nil, wire.Errorf(wire.CodePartitionNotFound, "partition %d", r.Partition)
	}
	p := ps[r.Partition]
	out := &wire.ProduceResponse{FirstIndex: p.end, StoredNs: time.Now().UnixNano()}
	if i := slices.IndexFunc(b.mu.batches, func(f fakeBatch) bool {
		return f.topic == r.Topic && f.partition == r.Partition && f.producer == batch.Producer() && f.sequence == batch.Sequence()
	}); b.repeats && i >= 0 && batch.Producer() != [16]byte{} {
		out.FirstIndex, out.StoredNs = b.mu.batches[i].first, b.mu.batches[i].stored
		b.mu.again++
		b.mu.Unlock()
		return out, nil
	}
	if v := uint64(len(ps)); r.RouteVersion != v || r.TopicID != b.mu.id {
		out.RouteVersion, out.TopicID = v, b.mu.id
	} else {
		b.mu.hints++
	}
	batch.SetBroker(wire.BrokerFields{Partition: r.Partition, FirstIndex: p.end, StoredNs: out.StoredNs})
	p.batches = append(p.batches, batch)
	p.end += uint64(batch.Count())
	f := fakeBatch{topic: strings.Clone(r.Topic), partition: r.Partition, producer: batch.Producer(), sequence: batch.Sequence(), first: out.FirstIndex, stored: out.StoredNs}
	var codec wire.Codec
	raw, err := codec.Messages(batch, nil)
	if err != nil {
		b.mu.Unlock()
		return nil, err
	}
	for it := wire.IterateMessages(batch, raw); it.Next(); {
		f.messages = append(f.messages, it.View.Message())
	}
	b.mu.batches = append(b.mu.batches, f)
	ready := b.serveParked()
	b.mu.Unlock()
	for _, run := range ready {
		run()
	}
	return out, nil
}

// serveParked gives leases to those that wait. b.mu is held; what it returns is run without.
func (b *fakeBroker) serveParked() (ready []func()) {
	for _, f := range b.mu.parked {
		if f.over {
			continue
		}
		if out := b.lease(f.client, &f.r); out != nil {
			f.over = true
			f.timer.Stop()
			ready = append(ready, func() { f.done(out, nil) })
		}
	}
	b.mu.parked = slices.DeleteFunc(b.mu.parked, func(f *fakeFetch) bool { return f.over })
	return ready
}

func (b *fakeBroker) group(topic, group string, p uint32) *fakeGroup {
	gs := b.mu.groups[group+"@"+topic]
	if gs == nil {
		return nil
	}
	if gs[p] == nil {
		gs[p] = &fakeGroup{ended: map[uint64]bool{}}
	}
	return gs[p]
}

// lease returns nil when there is nothing. b.mu is held.
func (b *fakeBroker) lease(client string, r *wire.FetchRequest) *wire.FetchResponse {
	for i, p := range b.mu.topics[r.Topic] {
		if len(r.Partitions) > 0 && !slices.Contains(r.Partitions, uint32(i)) {
			continue
		}
		g := b.group(r.Topic, r.Group, uint32(i))
		if l := g.lease; l != nil && time.Now().After(l.until) {
			for n := l.from; n < l.to; n++ {
				if !l.over[n] {
					if g.ranOut == nil {
						g.ranOut = map[uint64]uint32{}
					}
					g.ranOut[n]++
				}
			}
			g.lease = nil
		}
		if g.lease != nil || g.offset == p.end {
			continue
		}
		gapAt := func(index uint64) int {
			return slices.IndexFunc(b.mu.gaps, func(gap fakeGap) bool { return gap.partition == uint16(i) && gap.from == index })
		}
		if k := gapAt(g.offset); k >= 0 {
			gap := b.mu.gaps[k]
			g.offset = gap.to
			return &wire.FetchResponse{Partition: gap.partition, From: gap.from, To: gap.to, Gap: wire.GapDamaged}
		}
		to := g.offset
		for to < p.end && to-g.offset < uint64(r.MessagesMax) && !g.ended[to] && gapAt(to) < 0 {
			to++
		}
		b.mu.leases++
		g.lease = &fakeLease{b.mu.leases, client, r.Member, g.offset, to, map[uint64]bool{}, time.Now().Add(b.leaseTime)}
		out := &wire.FetchResponse{Lease: b.mu.leases, Partition: uint16(i), From: g.offset, To: to, LeaseMs: uint32(b.leaseTime.Milliseconds()), Epoch: 1, Attempt: 1 + g.ranOut[g.offset]}
		for _, batch := range p.batches {
			if batch.FirstIndex() < to && batch.FirstIndex()+uint64(batch.Count()) > g.offset {
				out.Batches = append(out.Batches, batch...)
			}
		}
		return out
	}
	return nil
}

// reconcile ends what a member has and does not name. b.mu is held; what it returns is run without.
func (b *fakeBroker) reconcile(client string, r *wire.FetchRequest) (ready []func()) {
	for _, f := range b.mu.parked {
		if !f.over && f.client == client && f.r.Member == r.Member && f.r.Topic == r.Topic && f.r.Group == r.Group {
			f.over = true
			f.timer.Stop()
			ready = append(ready, func() { f.done(nil, wire.Errorf(wire.CodeTimeout, "replaced")) })
		}
	}
	for _, g := range b.mu.groups[r.Group+"@"+r.Topic] {
		if l := g.lease; l != nil && l.client == client && l.member == r.Member && !slices.Contains(r.Held, l.number) {
			g.lease = nil
		}
	}
	return append(ready, b.serveParked()...)
}

func (b *fakeBroker) Fetch(ctx context.Context, r *wire.FetchRequest, done func(*wire.FetchResponse, error)) {
	if !r.Leave {
		b.fetches.Add(1)
	}
	if err := b.refuses.Load(); err != nil {
		done(nil, err)
		return
	}
	if b.idle.Load() {
		done(nil, wire.Errorf(wire.CodeStopping, "it stops"))
		return
	}
	if b.onFetch != nil {
		if err := b.onFetch(r); err != nil {
			done(nil, err)
			return
		}
	}
	client := wire.PeerFrom(ctx).ClientID
	b.mu.Lock()
	if b.mu.groups[r.Group+"@"+r.Topic] == nil {
		b.mu.Unlock()
		done(nil, wire.Errorf(wire.CodeGroupNotFound, "group %q", r.Group))
		return
	}
	if r.Reconcile {
		for _, run := range b.reconcile(client, r) {
			defer run()
		}
	}
	if r.Leave {
		b.mu.Unlock()
		done(&wire.FetchResponse{}, nil)
		return
	}
	if out := b.lease(client, r); out != nil || r.WaitMs == 0 {
		b.mu.Unlock()
		if out == nil {
			out = &wire.FetchResponse{}
		}
		done(out, nil)
		return
	}
	f := &fakeFetch{ctx: ctx, r: *r, client: client, done: done}
	f.r.Partitions = slices.Clone(r.Partitions)
	f.timer = time.AfterFunc(time.Duration(r.WaitMs)*time.Millisecond, func() {
		b.mu.Lock()
		over := f.over
		f.over = true
		b.mu.Unlock()
		if !over {
			done(&wire.FetchResponse{}, nil)
		}
	})
	b.mu.parked = append(b.mu.parked, f)
	b.mu.Unlock()
}

func (b *fakeBroker) Ack(ctx context.Context, r *wire.AckRequest, done func(*wire.AckResponse, error)) {
	if err := b.refuses.Load(); err != nil {
		done(nil, err)
		return
	}
	if b.onAck != nil {
		if err := b.onAck(r); err != nil {
			done(nil, err)
			return
		}
	}
	client := wire.PeerFrom(ctx).ClientID
	b.mu.Lock()
	b.mu.acks++
	out := &wire.AckResponse{}
	for _, i := range r.Items {
		out.Codes = append(out.Codes, b.ack(client, r, i))
	}
	ready := b.serveParked()
	b.mu.Unlock()
	done(out, nil)
	for _, run := range ready {
		run()
	}
}

func (b *fakeBroker) ack(client string, r *wire.AckRequest, i wire.AckRange) wire.Code {
	g := b.group(r.Topic, r.Group, uint32(i.Partition))
	if g == nil {
		return wire.CodeGroupNotFound
	}
	all := true
	for n := i.From; n < i.To; n++ {
		all = all && (n < g.offset || g.ended[n])
	}
	l := g.lease
	switch {
	case all:
		return wire.CodeAlreadyEnded
	case l == nil || l.number != i.Lease:
		if i.Lease <= b.mu.leases {
			return wire.CodeLeaseExpired
		}
		return wire.CodeLeaseUnknown
	case time.Now().After(l.until):
		return wire.CodeLeaseExpired
	case l.client != client || l.member != r.Member:
		return wire.CodeLeaseForeign
	case i.From < l.from || i.To > l.to:
		return wire.CodeOutOfRange
	}
	for n := i.From; n < i.To; n++ {
		l.over[n] = true
		if i.Outcome != wire.Released {
			g.ended[n] = true
		}
	}
	for g.ended[g.offset] {
		delete(g.ended, g.offset)
		g.offset++
	}
	if uint64(len(l.over)) == l.to-l.from {
		g.lease = nil
	}
	return wire.CodeOK
}

func (b *fakeBroker) Subscribe(ctx context.Context, r *wire.SubscribeRequest) (*wire.SubscribeResponse, error) {
	if err := b.refuses.Load(); err != nil {
		return nil, err
	}
	if b.onSubscribe != nil {
		if err := b.onSubscribe(); err != nil {
			return nil, err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	ps := b.mu.topics[r.Topic]
	if ps == nil {
		return nil, wire.Errorf(wire.CodeTopicNotFound, "topic %q", r.Topic)
	}
	b.mu.policy = r.Policy
	k := r.Group + "@" + r.Topic
	created := b.mu.groups[k] == nil
	if created {
		b.mu.groups[k] = map[uint32]*fakeGroup{}
		if r.Start == wire.StartEnd {
			for i, p := range ps {
				b.mu.groups[k][uint32(i)] = &fakeGroup{offset: p.end, ended: map[uint64]bool{}}
			}
		}
	}
	return &wire.SubscribeResponse{Partitions: uint32(len(ps)), LeaseMs: uint32(b.leaseTime.Milliseconds()), Created: created}, nil
}

func (b *fakeBroker) Route(ctx context.Context, r *wire.RouteRequest) (*wire.RouteResponse, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	ps := b.mu.topics[r.Topic]
	if ps == nil {
		return nil, wire.Errorf(wire.CodeTopicNotFound, "topic %q", r.Topic)
	}
	out := &wire.RouteResponse{Version: uint64(len(ps)), TopicId: b.mu.id}
	for i := range ps {
		out.Partitions = append(out.Partitions, &wire.PartitionRoute{Partition: uint32(i), BrokerGroup: cmp.Or(b.name, "bg1")})
	}
	return out, nil
}

func (b *fakeBroker) CreateTopic(ctx context.Context, r *wire.CreateTopicRequest) (*wire.CreateTopicResponse, error) {
	b.topic(r.Topic, int(r.Partitions))
	return &wire.CreateTopicResponse{Topic: &wire.Topic{Name: r.Topic, Partitions: r.Partitions}}, nil
}

func (b *fakeBroker) ListTopics(ctx context.Context, r *wire.ListTopicsRequest) (*wire.ListTopicsResponse, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := &wire.ListTopicsResponse{}
	for name, ps := range b.mu.topics {
		out.Topics = append(out.Topics, &wire.Topic{Name: name, Partitions: uint32(len(ps))})
	}
	return out, nil
}

func (b *fakeBroker) GroupLag(ctx context.Context, r *wire.GroupLagRequest) (*wire.GroupLagResponse, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := &wire.GroupLagResponse{}
	for i, p := range b.mu.topics[r.Topic] {
		g := b.group(r.Topic, r.Group, uint32(i))
		out.Partitions = append(out.Partitions, &wire.GroupPartition{Group: r.Group, Partition: uint32(i), End: p.end, AckOffset: g.offset, Lag: p.end - g.offset - uint64(len(g.ended))})
	}
	return out, nil
}

// stored returns all messages of a partition, in order.
func (b *fakeBroker) stored(partition uint16) []wire.Message {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []wire.Message
	for _, f := range b.mu.batches {
		if f.partition == partition {
			all = append(all, f.messages...)
		}
	}
	return all
}

func (b *fakeBroker) batches() []fakeBatch {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.mu.batches)
}

// fakeServer serves a broker to connections: made by dial, or accepted from a listener.
type fakeServer struct {
	h       *wire.Handler
	network func() (client, server net.Conn, err error)

	mu struct {
		sync.Mutex
		down     bool
		thawed   chan struct{} // not nil: the process is stopped until it is closed
		sessions map[*wire.Session]bool
	}
	ran sync.WaitGroup
}

// newFakeServer serves over net.Pipe, or over TCP on loopback.
func newFakeServer(b *fakeBroker, tcp bool) *fakeServer {
	s := &fakeServer{h: wire.NewHandler(wire.Services{Broker: b, Admin: b}, wire.HandlerOptions{Broker: "fake", BrokerGroup: "bg1"})}
	s.mu.sessions = map[*wire.Session]bool{}
	s.network = func() (net.Conn, net.Conn, error) {
		client, server := net.Pipe()
		return client, &frozenConn{Conn: server, s: s, closed: make(chan struct{})}, nil
	}
	if tcp {
		s.network = tcpPair
	}
	return s
}

func tcpPair() (client, server net.Conn, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	if client, err = net.Dial("tcp", l.Addr().String()); err != nil {
		return nil, nil, err
	}
	server, err = l.Accept()
	return client, server, err
}

var errDown = errors.New("connection refused")

func (s *fakeServer) dial(ctx context.Context, addr string) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.down {
		return nil, errDown
	}
	client, server, err := s.network()
	if err != nil {
		return nil, err
	}
	session := s.h.NewSession(server, wire.SessionOptions{})
	s.mu.sessions[session] = true
	s.ran.Go(func() {
		session.Serve()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.mu.sessions, session)
	})
	return client, nil
}

// frozenConn is the end of a connection in a process that may be stopped, as by SIGSTOP.
type frozenConn struct {
	net.Conn
	s      *fakeServer
	once   sync.Once
	closed chan struct{}
}

// wait waits while the process is stopped.
func (c *frozenConn) wait() {
	c.s.mu.Lock()
	thawed := c.s.mu.thawed
	c.s.mu.Unlock()
	if thawed != nil {
		select {
		case <-thawed:
		case <-c.closed:
		}
	}
}

func (c *frozenConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.wait()
	return n, err
}

func (c *frozenConn) Write(b []byte) (int, error) {
	c.wait()
	return c.Conn.Write(b)
}

func (c *frozenConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// freeze stops the process; thaw lets it go on.
func (s *fakeServer) freeze() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.thawed = make(chan struct{})
}

func (s *fakeServer) thaw() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.thawed != nil {
		close(s.mu.thawed)
		s.mu.thawed = nil
	}
}

// kill ends all connections as the death of the process does.
func (s *fakeServer) kill(down bool) {
	s.mu.Lock()
	s.mu.down = down
	var all []*wire.Session
	for session := range s.mu.sessions {
		all = append(all, session)
	}
	s.mu.Unlock()
	for _, session := range all {
		session.Conn().Close(nil)
	}
}

func (s *fakeServer) up() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.down = false
}

func (s *fakeServer) close() {
	s.thaw()
	s.kill(true)
	s.ran.Wait()
}

// start serves b and dials it. Both end with the test.
func start(t testing.TB, b *fakeBroker, tcp bool, opts ...Option) (*Client, *fakeServer) {
	t.Helper()
	s := newFakeServer(b, tcp)
	c, err := Dial(context.Background(), "fake:1", append([]Option{WithDialer(s.dial), WithApp("app")}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := c.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
		s.close()
	})
	return c, s
}

func (b *fakeBroker) Extend(ctx context.Context, r *wire.ExtendRequest) (*wire.ExtendResponse, error) {
	if err := b.refuses.Load(); err != nil {
		return nil, err
	}
	client := wire.PeerFrom(ctx).ClientID
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.extends++
	d := time.Duration(r.ExtendMs) * time.Millisecond
	if d == 0 {
		d = b.leaseTime
	}
	out := &wire.ExtendResponse{LeaseMs: uint32(d.Milliseconds())}
	for _, name := range r.Leases {
		code := wire.CodeOK
		switch l := b.group(r.Topic, r.Group, name.Partition).lease; {
		case l == nil || l.number != name.Lease || time.Now().After(l.until):
			code = wire.CodeLeaseExpired
		case l.client != client || l.member != r.Member:
			code = wire.CodeLeaseForeign
		case l.until.Before(time.Now().Add(d)):
			l.until = time.Now().Add(d)
		}
		out.Codes = append(out.Codes, uint32(code))
	}
	return out, nil
}
