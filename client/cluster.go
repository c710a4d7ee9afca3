package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmqio/jmq/wire"
	"google.golang.org/protobuf/proto"
)

const sdkName = "jmq-go/0.1"

const (
	reconnectMin = 20 * time.Millisecond
	reconnectMax = 2 * time.Second
	refusedMin   = time.Second // when the credentials are not taken
	refusedMax   = 15 * time.Second
	callTimeout  = 5 * time.Second // of one attempt of a call that is no send, fetch or ack
)

// Cluster is a broker at a distance: it implements wire.Broker and wire.Admin over a few connections. It does not repeat
// what failed: that is the business of producers and consumers, who know what may be repeated.
//
// Each connection is a slot with one goroutine, which connects, reads until the connection ends, and connects again,
// after a pause that doubles up to 2 s. The Cluster owns these goroutines; close waits for them.
type Cluster struct {
	o        *options
	addrs    []string
	clientID string
	buffers  wire.Buffers // of all connections

	connected func(*link) // is told of each connection that came up; must not block; nil: nobody

	slots  []slot
	turn   atomic.Uint32
	ctx    context.Context // ends with the cluster
	cancel context.CancelFunc
	ran    sync.WaitGroup

	mu struct {
		sync.Mutex
		up      chan struct{} // closed when a connection comes up; renewed
		failure error         // of the last attempt to connect
		addr    int           // which of addrs is tried next
	}
}

var (
	_ wire.Broker = (*Cluster)(nil)
	_ wire.Admin  = (*Cluster)(nil)
)

// slot holds one connection while it is good.
type slot struct{ link atomic.Pointer[link] }

// link is one connection after its hello.
type link struct {
	*wire.Conn
	addr        string
	brokerGroup string
}

func newCluster(o *options, addrs []string, clientID string) *Cluster {
	c := &Cluster{o: o, addrs: addrs, clientID: clientID, slots: make([]slot, o.conns)}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.mu.up = make(chan struct{})
	return c
}

// start connects, and returns when one connection is good. Each slot goes on by itself afterwards.
func (c *Cluster) start(ctx context.Context) error {
	first := make(chan error, len(c.slots))
	for i := range c.slots {
		c.ran.Add(1)
		go c.serve(&c.slots[i], first)
	}
	var errs []error
	for range c.slots {
		select {
		case err := <-first:
			if err == nil {
				return nil
			}
			errs = append(errs, err)
		case <-ctx.Done():
			errs = append(errs, ctx.Err())
			return newError(opDial, "", -1, "", errors.Join(errs...))
		}
	}
	return errs[0]
}

// close ends all connections and waits for their goroutines. Requests without an answer are answered before it returns.
func (c *Cluster) close() {
	c.cancel()
	for i := range c.slots {
		if l := c.slots[i].link.Load(); l != nil {
			l.Close(wire.Errorf(wire.CodeClosed, "the client was closed"))
		}
	}
	c.ran.Wait()
}

// serve is a slot's goroutine. first gets the result of the first round over all addresses.
func (c *Cluster) serve(s *slot, first chan<- error) {
	defer c.ran.Done()
	pause := reconnectMin
	told := false // of this outage
	for round := 0; c.ctx.Err() == nil; round++ {
		l, err := c.connect()
		if round == 0 {
			for range len(c.addrs) - 1 {
				if err == nil || c.ctx.Err() != nil {
					break
				}
				l, err = c.connect()
			}
			if err != nil {
				first <- err
			}
		}
		if err != nil {
			if !told {
				told = true
				c.o.logger.Warn("no connection to the broker, trying on", "err", err)
			}
			if codeOf(err) == wire.CodeUnauthenticated {
				pause = max(pause, refusedMin)
				c.sleep(pause)
				pause = min(2*pause, refusedMax)
				continue
			}
			c.sleep(pause)
			pause = min(2*pause, reconnectMax)
			continue
		}
		pause, told = reconnectMin, false
		c.o.logger.Info("connected", "broker", l.addr, "brokerGroup", l.brokerGroup)
		s.link.Store(l)
		if round == 0 {
			first <- nil // not before the link stands: whoever was waiting calls at once
		}
		c.mu.Lock()
		close(c.mu.up)
		c.mu.up = make(chan struct{})
		c.mu.Unlock()
		if c.connected != nil {
			c.connected(l)
		}
		if c.ctx.Err() != nil { // close may have looked before the link stood there
			l.Close(nil)
		}
		<-l.Closed()
		s.link.Store(nil)
		if c.ctx.Err() == nil {
			c.setFailure(l.Err())
			c.o.logger.Warn("connection lost", "broker", l.addr, "err", l.Err())
		}
	}
}

func (c *Cluster) setFailure(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.failure = err
}

// sleep waits between half of d and d, so that the clients of a broker do not come back all at once.
func (c *Cluster) sleep(d time.Duration) {
	t := time.NewTimer(d/2 + rand.N(d/2))
	defer t.Stop()
	select {
	case <-t.C:
	case <-c.ctx.Done():
	}
}

// connect tries the next address: the connection is read by a goroutine of its own from here on.
func (c *Cluster) connect() (*link, error) {
	c.mu.Lock()
	addr := c.addrs[c.mu.addr%len(c.addrs)]
	c.mu.addr++
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(c.ctx, c.o.dialTimeout)
	defer cancel()
	var who wire.Credentials
	if c.o.credentials != nil {
		var err error
		if who, err = c.o.credentials(); err != nil {
			err = wire.Errorf(wire.CodeUnauthenticated, "%v", err)
			c.setFailure(err)
			return nil, newError(opDial, "", -1, addr, err)
		}
	}
	nc, err := c.o.dial(ctx, addr)
	if err == nil && c.o.tls != nil {
		nc, err = c.o.encrypt(ctx, nc, addr)
	}
	if err != nil {
		err = wire.Errorf(wire.CodeDisconnected, "%v", err)
		c.setFailure(err)
		return nil, newError(opDial, "", -1, addr, err)
	}
	l := &link{Conn: wire.NewConn(nc, wire.ConnOptions{Buffers: &c.buffers, Logger: c.o.logger}), addr: addr}
	c.ran.Add(1)
	go func() {
		defer c.ran.Done()
		l.Serve() // why it ended is l.Err's to say
	}()
	hello, err := l.Hello(ctx, &wire.HelloRequest{ClientId: c.clientID, App: c.o.app, Sdk: sdkName, Credential: who.ID})
	if err == nil {
		err = c.o.authenticate(ctx, l, who, hello)
	}
	if err != nil {
		if ctx.Err() != nil {
			err = wire.Errorf(wire.CodeTimeout, "no answer to the hello within %v", c.o.dialTimeout)
		}
		l.Close(err)
		c.setFailure(err)
		return nil, newError(opDial, "", -1, addr, err)
	}
	l.brokerGroup = hello.BrokerGroup
	if hello.KeepaliveMs > 0 {
		l.KeepAlive(time.Duration(hello.KeepaliveMs) * time.Millisecond)
	}
	return l, nil
}

// pick returns the good connection of the slot that n falls on, or of another one; nil when there is none now.
func (c *Cluster) pick(n uint32) *link {
	k := uint32(len(c.slots))
	for i := range k {
		if l := c.slots[(n+i)%k].link.Load(); l != nil {
			return l
		}
	}
	return nil
}

// next is pick in turn.
func (c *Cluster) next() *link { return c.pick(c.turn.Add(1)) }

// none says why there is no connection.
func (c *Cluster) none() error {
	if c.ctx.Err() != nil {
		return wire.Errorf(wire.CodeClosed, "the client was closed")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := errors.AsType[*wire.CodeError](c.mu.failure); ok && (e.Code == wire.CodeDisconnected || e.Code == wire.CodeUnauthenticated) {
		return e
	}
	if c.mu.failure != nil {
		return wire.Errorf(wire.CodeDisconnected, "%v", c.mu.failure)
	}
	return wire.Errorf(wire.CodeDisconnected, "not connected yet")
}

// await returns a connection, waiting for one until ctx or the cluster ends.
func (c *Cluster) await(ctx context.Context, n uint32) (*link, error) {
	for {
		c.mu.Lock()
		up := c.mu.up
		c.mu.Unlock()
		if l := c.pick(n); l != nil {
			return l, nil
		}
		select {
		case <-up:
		case <-ctx.Done():
			return nil, c.none()
		case <-c.ctx.Done():
			return nil, c.none()
		}
	}
}

// repeat says when a cold request may be sent again.
type repeat uint8

const (
	repeatAlways repeat = iota // it may be carried out any number of times
	repeatUnsent               // only when it certainly was not carried out
)

// call sends a cold request and repeats it as wire.Traits and again say, until ctx ends.
func (c *Cluster) call(ctx context.Context, op, topic string, again repeat, command wire.Command, request, response proto.Message) error {
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		l, err := c.await(ctx, c.turn.Add(1))
		if err != nil {
			return newError(op, topic, -1, "", err)
		}
		err = c.callOnce(ctx, l, command, request, response)
		if err == nil {
			return nil
		}
		e := newError(op, topic, -1, l.addr, err)
		if again == repeatUnsent && (e.Code == wire.CodeUnknown || e.Code == wire.CodeTimeout) {
			e.Outcome = Unknown
			return e
		}
		// Waiting makes no group and no partition: only a send asks again how many there are.
		useful := wire.Traits[e.Code].Retry != wire.RetryNever && e.Code != wire.CodeGroupNotFound && e.Code != wire.CodePartitionNotFound
		if ctx.Err() != nil || !useful || !c.pause(ctx, max(pause, e.RetryAfter)) {
			return e
		}
	}
}

func (c *Cluster) callOnce(ctx context.Context, l *link, command wire.Command, request, response proto.Message) error {
	try, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := l.CallMessage(try, command, request, response)
	if err != nil && try.Err() != nil && ctx.Err() == nil {
		return wire.Errorf(wire.CodeTimeout, "no answer within %v", callTimeout)
	}
	return err
}

// pause waits for d; false when ctx or the cluster ended.
func (c *Cluster) pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
	case <-c.ctx.Done():
	}
	return false
}

// one sends a cold request once.
func (c *Cluster) one(ctx context.Context, command wire.Command, request, response proto.Message) error {
	l := c.next()
	if l == nil {
		return c.none()
	}
	return l.CallMessage(ctx, command, request, response)
}

// Subscribe implements wire.Broker.
func (c *Cluster) Subscribe(ctx context.Context, r *wire.SubscribeRequest) (*wire.SubscribeResponse, error) {
	return called(new(wire.SubscribeResponse), func(out *wire.SubscribeResponse) error { return c.one(ctx, wire.CommandSubscribe, r, out) })
}

// Route implements wire.Broker.
func (c *Cluster) Route(ctx context.Context, r *wire.RouteRequest) (*wire.RouteResponse, error) {
	return called(new(wire.RouteResponse), func(out *wire.RouteResponse) error { return c.one(ctx, wire.CommandRoute, r, out) })
}

// Extend implements wire.Broker.
func (c *Cluster) Extend(ctx context.Context, r *wire.ExtendRequest) (*wire.ExtendResponse, error) {
	return called(new(wire.ExtendResponse), func(out *wire.ExtendResponse) error { return c.one(ctx, wire.CommandExtend, r, out) })
}

// CreateTopic implements wire.Admin.
func (c *Cluster) CreateTopic(ctx context.Context, r *wire.CreateTopicRequest) (*wire.CreateTopicResponse, error) {
	return called(new(wire.CreateTopicResponse), func(out *wire.CreateTopicResponse) error { return c.one(ctx, wire.CommandCreateTopic, r, out) })
}

// AlterTopic implements wire.Admin.
func (c *Cluster) AlterTopic(ctx context.Context, r *wire.AlterTopicRequest) (*wire.AlterTopicResponse, error) {
	return called(new(wire.AlterTopicResponse), func(out *wire.AlterTopicResponse) error { return c.one(ctx, wire.CommandAlterTopic, r, out) })
}

// DeleteTopic implements wire.Admin.
func (c *Cluster) DeleteTopic(ctx context.Context, r *wire.DeleteTopicRequest) (*wire.DeleteTopicResponse, error) {
	return called(new(wire.DeleteTopicResponse), func(out *wire.DeleteTopicResponse) error { return c.one(ctx, wire.CommandDeleteTopic, r, out) })
}

// DescribeTopic implements wire.Admin.
func (c *Cluster) DescribeTopic(ctx context.Context, r *wire.DescribeTopicRequest) (*wire.DescribeTopicResponse, error) {
	return called(new(wire.DescribeTopicResponse), func(out *wire.DescribeTopicResponse) error { return c.one(ctx, wire.CommandDescribeTopic, r, out) })
}

// ListTopics implements wire.Admin.
func (c *Cluster) ListTopics(ctx context.Context, r *wire.ListTopicsRequest) (*wire.ListTopicsResponse, error) {
	return called(new(wire.ListTopicsResponse), func(out *wire.ListTopicsResponse) error { return c.one(ctx, wire.CommandListTopics, r, out) })
}

// GroupLag implements wire.Admin.
func (c *Cluster) GroupLag(ctx context.Context, r *wire.GroupLagRequest) (*wire.GroupLagResponse, error) {
	return called(new(wire.GroupLagResponse), func(out *wire.GroupLagResponse) error { return c.one(ctx, wire.CommandGroupLag, r, out) })
}

// ListGroups implements wire.Admin.
func (c *Cluster) ListGroups(ctx context.Context, r *wire.ListGroupsRequest) (*wire.ListGroupsResponse, error) {
	return called(new(wire.ListGroupsResponse), func(out *wire.ListGroupsResponse) error { return c.one(ctx, wire.CommandListGroups, r, out) })
}

// SeekGroup implements wire.Admin.
func (c *Cluster) SeekGroup(ctx context.Context, r *wire.SeekGroupRequest) (*wire.SeekGroupResponse, error) {
	return called(new(wire.SeekGroupResponse), func(out *wire.SeekGroupResponse) error { return c.one(ctx, wire.CommandSeekGroup, r, out) })
}

// AlterGroup implements wire.Admin.
func (c *Cluster) AlterGroup(ctx context.Context, r *wire.AlterGroupRequest) (*wire.AlterGroupResponse, error) {
	return called(new(wire.AlterGroupResponse), func(out *wire.AlterGroupResponse) error { return c.one(ctx, wire.CommandAlterGroup, r, out) })
}

// RemoveGroup implements wire.Admin.
func (c *Cluster) RemoveGroup(ctx context.Context, r *wire.RemoveGroupRequest) (*wire.RemoveGroupResponse, error) {
	return called(new(wire.RemoveGroupResponse), func(out *wire.RemoveGroupResponse) error { return c.one(ctx, wire.CommandRemoveGroup, r, out) })
}

// Peek implements wire.Admin.
func (c *Cluster) Peek(ctx context.Context, r *wire.PeekRequest) (*wire.PeekResponse, error) {
	return called(new(wire.PeekResponse), func(out *wire.PeekResponse) error { return c.one(ctx, wire.CommandPeek, r, out) })
}

// StoreUsage implements wire.Admin.
func (c *Cluster) StoreUsage(ctx context.Context, r *wire.StoreUsageRequest) (*wire.StoreUsageResponse, error) {
	return called(new(wire.StoreUsageResponse), func(out *wire.StoreUsageResponse) error { return c.one(ctx, wire.CommandStoreUsage, r, out) })
}

func called[M any](out M, call func(M) error) (M, error) {
	if err := call(out); err != nil {
		var none M
		return none, err
	}
	return out, nil
}

// remoteCall is one Produce, Fetch or Ack under way that a ctx may end.
type remoteCall struct {
	ended atomic.Bool // by answer or ctx: the first
	stop  func() bool
}

// remote starts a hot request. finish is called exactly once: with the answer, or an error. When ctx ends first, that is
// code, and late gets what comes afterwards.
func (c *Cluster) remote(ctx context.Context, code wire.Code, command wire.Command, header, payload []byte, finish, late func(*link, wire.Frame, error)) {
	l := c.next()
	if l == nil {
		finish(nil, wire.Frame{}, c.none())
		return
	}
	if err := ctx.Err(); err != nil {
		finish(l, wire.Frame{}, wire.Errorf(wire.CodeTimeout, "%v", err))
		return
	}
	r := &remoteCall{stop: func() bool { return true }}
	if ctx.Done() != nil {
		r.stop = context.AfterFunc(ctx, func() {
			if r.ended.CompareAndSwap(false, true) {
				finish(l, wire.Frame{}, wire.Errorf(code, "%v before the answer of %s", ctx.Err(), l.addr))
			}
		})
	}
	_, err := l.Start(command, header, payload, func(f wire.Frame, err error) {
		if r.ended.CompareAndSwap(false, true) {
			r.stop()
			finish(l, f, err)
		} else {
			late(l, f, err)
		}
	})
	if err != nil {
		if r.ended.CompareAndSwap(false, true) {
			r.stop()
			finish(l, wire.Frame{}, err)
		}
		return
	}
	l.FlushShared()
}

func ignoreLate(*link, wire.Frame, error) {}

// Produce implements wire.Broker.
func (c *Cluster) Produce(ctx context.Context, r *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) {
	c.remote(ctx, wire.CodeUnknown, wire.CommandProduce, wire.AppendProduceRequest(nil, r), r.Batch, func(_ *link, f wire.Frame, err error) {
		var out wire.ProduceResponse
		if err == nil {
			err = wire.ParseProduceResponse(&out, f.Header)
		}
		answer(&out, err, done)
	}, ignoreLate)
}

// Fetch implements wire.Broker. A lease that comes after ctx has ended is given back.
func (c *Cluster) Fetch(ctx context.Context, r *wire.FetchRequest, done func(*wire.FetchResponse, error)) {
	give := &wire.AckRequest{Topic: r.Topic, Group: r.Group, Member: r.Member}
	c.remote(ctx, wire.CodeTimeout, wire.CommandFetch, wire.AppendFetchRequest(nil, r), nil, func(_ *link, f wire.Frame, err error) {
		var out wire.FetchResponse
		if err == nil {
			err = wire.ParseFetchResponse(&out, f.Header)
			out.Batches = f.Payload
		}
		answer(&out, err, done)
	}, func(l *link, f wire.Frame, err error) {
		var out wire.FetchResponse
		if err == nil && wire.ParseFetchResponse(&out, f.Header) == nil {
			giveBack(l, give, &out)
		}
	})
}

// giveBack releases a lease that nobody waits for any more. It may run on the connection's reading goroutine.
func giveBack(l *link, r *wire.AckRequest, lease *wire.FetchResponse) {
	if lease.Lease == 0 {
		return
	}
	r.Items = []wire.AckRange{{Partition: lease.Partition, Lease: lease.Lease, From: lease.From, To: lease.To, Outcome: wire.Released}}
	// If it does not get there, the lease ends by itself.
	if _, err := l.Start(wire.CommandAck, wire.AppendAckRequest(nil, r), nil, func(wire.Frame, error) {}); err == nil {
		l.Flush()
	}
}

// Ack implements wire.Broker.
func (c *Cluster) Ack(ctx context.Context, r *wire.AckRequest, done func(*wire.AckResponse, error)) {
	c.remote(ctx, wire.CodeUnknown, wire.CommandAck, wire.AppendAckRequest(nil, r), nil, func(_ *link, f wire.Frame, err error) {
		var out wire.AckResponse
		if err == nil {
			err = parseAcks(&out, f.Header, len(r.Items))
		}
		answer(&out, err, done)
	}, ignoreLate)
}

func parseAcks(out *wire.AckResponse, header []byte, items int) error {
	if err := wire.ParseAckResponse(out, header); err != nil {
		return err
	}
	if len(out.Codes) != items {
		return wire.Errorf(wire.CodeMalformed, "%d codes for %d acks", len(out.Codes), items)
	}
	return nil
}

func answer[M any](out *M, err error, done func(*M, error)) {
	if err != nil {
		done(nil, err)
		return
	}
	done(out, nil)
}
