package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmqio/jmq/wire"
	"google.golang.org/protobuf/proto"
)

// pool is the connections to some addresses: of the master of one broker group, whoever that is, of a slave, of one node of another
// role, or those given to Dial. They are made when they are first needed, and again when they are lost; a pool that nobody needs any
// more is put to sleep, and wakes with the next use. So whoever has a pool may use it at any time.
//
// Each connection is a slot with one goroutine, which connects, reads until the connection ends, and connects again, after a
// pause that doubles up to 2 s. The Cluster owns these goroutines; its close waits for them.
type pool struct {
	c     *Cluster
	name  string // of the broker group; empty: any node
	slots []slot
	turn  atomic.Uint32
	// wanted is how many connections there shall be; 0: it sleeps.
	wanted atomic.Int32
	users  atomic.Int32 // loops and members with leases: while there are any it does not sleep
	idle   time.Time    // since when the sweep finds it unused; zero: it is used. The sweep's

	breaker breaker                 // of sends
	of      *pool                   // of a slave: its broker group, which is the master's; nil: it is none
	slaves  atomic.Pointer[[]*pool] // of a broker group, in the order in which they serve; nil: none
	away    atomic.Bool             // the route says that nobody hears it
	reading reading

	mu struct {
		sync.Mutex
		again   chan struct{}   // closed when those that pause shall connect at once; renewed
		told    []string        // where the master is, as a route said last
		led     time.Time       // when a broker said last that it is elsewhere
		awake   context.Context // ends when it is put to sleep
		sleep   context.CancelFunc
		addrs   []string
		addr    int   // which is tried next
		failure error // of the last attempt to connect
		running int   // slots with a goroutine
		linked  int   // slots with a connection; linked <= running
	}
}

// slot holds one connection while it is good.
type slot struct {
	link    atomic.Pointer[link]
	running bool // pool.mu
}

// link is one connection after its hello.
type link struct {
	*wire.Conn
	pool        *pool // whose it is
	addr        string
	moved       chan struct{} // closed when the master is elsewhere: what is under way is waited for
	leave       sync.Once     // closes moved
	stalled     atomic.Bool   // it is silent though something is asked
	pinging     atomic.Bool
	brokerGroup string
	noMetadata  atomic.Bool  // it says that it holds none
	stale       atomic.Bool  // it says that others may hold newer
	avoid       atomic.Int64 // not asked for metadata before, unix time in nanoseconds
}

func (c *Cluster) newPool(name string, addrs []string, conns int) *pool {
	p := &pool{c: c, name: name, slots: make([]slot, conns)}
	p.mu.addrs, p.mu.again = addrs, make(chan struct{})
	if len(addrs) > 1 {
		p.mu.addr = rand.N(len(addrs)) // clients spread over them
	}
	return p
}

// wake makes n connections be wanted at least. first, if not nil, gets the result of the first round over all addresses of
// each slot that is started.
func (p *pool) wake(n int, first chan<- error) (started int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.c.ctx.Err() != nil {
		return 0
	}
	if p.wanted.Load() == 0 {
		p.mu.awake, p.mu.sleep = context.WithCancel(p.c.ctx)
		p.mu.failure = nil
	}
	if p.wanted.Load() < int32(n) {
		p.wanted.Store(int32(n))
	}
	return p.startSlots(n, first)
}

// startSlots gives n slots a goroutine. p.mu is held.
func (p *pool) startSlots(n int, first chan<- error) (started int) {
	for i := range p.slots {
		if s := &p.slots[i]; p.mu.running < n && !s.running {
			s.running = true
			p.mu.running++
			started++
			p.c.ran.Add(1)
			go p.serve(p.mu.awake, s, first)
		}
	}
	return started
}

// rest puts the pool to sleep.
func (p *pool) rest(why error) {
	p.mu.Lock()
	if p.wanted.Swap(0) > 0 {
		p.mu.sleep()
	}
	p.mu.Unlock()
	for i := range p.slots {
		if l := p.slots[i].link.Load(); l != nil {
			l.Close(why)
		}
	}
}

// tell says where its nodes are by a route. One that says the same again does not undo what the brokers themselves said since.
func (p *pool) tell(addrs []string) {
	p.mu.Lock()
	same := slices.Equal(p.mu.told, addrs)
	p.mu.told = addrs
	p.mu.Unlock()
	if !same {
		p.lead(addrs)
	}
}

// lead says where its nodes are from now on: a broker group has another master. What is under way at the one before is waited for,
// everything else goes to the new one.
func (p *pool) lead(addrs []string) {
	p.mu.Lock()
	if slices.Equal(p.mu.addrs, addrs) {
		p.mu.Unlock()
		return
	}
	p.mu.addrs, p.mu.addr = slices.Clone(addrs), 0
	for i := range p.slots {
		if l := p.slots[i].link.Load(); l != nil && !slices.Contains(addrs, l.addr) {
			l.leave.Do(func() { close(l.moved) })
		}
	}
	p.mu.Unlock()
	p.reconnect()
}

// followEvery is how often answers may move a broker group: brokers of which none is the master yet may name each other.
const followEvery = 100 * time.Millisecond

// follow notes that the broker at l is not the master, and who is, as it says. Where it does not know who is, what the route says is tried, unless it
// will know soon.
func (p *pool) follow(e *wire.CodeError, l *link) {
	nodes := e.Nodes
	if p.name == "" || len(nodes) == 0 && e.RetryAfter > 0 {
		return
	}
	now := time.Now()
	p.mu.Lock()
	stale := l.pool == p && !slices.Contains(p.mu.addrs, l.addr) || now.Sub(p.mu.led) < followEvery
	if !stale {
		p.mu.led = now
	}
	p.mu.Unlock()
	switch {
	case stale:
	case len(nodes) == 0 || slices.Contains(nodes, l.addr):
		p.unlead()
	default:
		p.lead(nodes)
	}
}

// unlead goes back to what the route said where the brokers themselves sent it, since nobody is there.
func (p *pool) unlead() {
	p.mu.Lock()
	told, now := p.mu.told, p.mu.addrs
	p.mu.Unlock()
	if told != nil && !slices.Equal(told, now) {
		p.lead(told)
	}
}

// reconnect ends the pauses of those that could not connect, and lets sends try.
func (p *pool) reconnect() {
	p.mu.Lock()
	close(p.mu.again)
	p.mu.again = make(chan struct{})
	p.mu.Unlock()
	p.breaker.back()
	p.reading.again()
}

// setSlaves says who serves consumers while the master is away, in that order.
func (p *pool) setSlaves(slaves []*pool) {
	if old := p.slaves.Load(); old == nil && len(slaves) == 0 || old != nil && slices.Equal(*old, slaves) {
		return
	}
	if len(slaves) == 0 {
		p.slaves.Store(nil)
		return
	}
	p.slaves.Store(&slaves)
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.mu.again)
	p.mu.again = make(chan struct{})
}

// setAway notes what the route says of the master.
func (p *pool) setAway(away bool) {
	if p.away.Swap(away) && !away {
		p.reconnect()
	}
}

// serve is a slot's goroutine.
func (p *pool) serve(awake context.Context, s *slot, first chan<- error) {
	defer p.c.ran.Done()
	defer p.left(s)
	pause := reconnectMin
	told := false // of this outage
	for round := 0; awake.Err() == nil; round++ {
		l, err := p.connect(awake)
		if round == 0 {
			for range p.addresses() - 1 {
				if err == nil || awake.Err() != nil || p.surplus() {
					break
				}
				var e error
				if l, e = p.connect(awake); e == nil || silent(err) { // that a node refused says more than that others are away
					err = e
				}
			}
			if err != nil && first != nil {
				first <- err
			}
		}
		if err != nil {
			if p.surplus() {
				return
			}
			if !told {
				told = true
				p.c.o.logger.Warn("no connection, trying on", "brokerGroup", p.name, "err", err)
			}
			p.unlead()
			p.c.changed() // whoever waits may look elsewhere
			if codeOf(err) == wire.CodeUnauthenticated {
				pause = max(pause, refusedMin)
				p.sleep(awake, pause)
				pause = min(2*pause, refusedMax)
				continue
			}
			p.sleep(awake, pause)
			pause = min(2*pause, reconnectMax)
			continue
		}
		pause, told = reconnectMin, false
		if !p.link(awake, s, l) {
			l.Close(nil)
			<-l.Closed()
			return
		}
		p.c.o.logger.Info("connected", "broker", l.addr, "brokerGroup", l.brokerGroup)
		if round == 0 && first != nil {
			first <- nil // not before the link stands: whoever was waiting calls at once
		}
		p.c.changed()
		if p.c.connected != nil {
			p.c.connected(l)
		}
		if awake.Err() != nil { // rest may have looked before the link stood there
			l.Close(nil)
		}
		p.breaker.back()
		p.reading.again()
		gone := p.watch(l)
		s.link.Store(nil)
		p.mu.Lock()
		p.mu.linked--
		p.mu.Unlock()
		switch {
		case !gone:
			p.c.o.logger.Info("the master is another broker", "brokerGroup", l.brokerGroup, "before", l.addr)
			p.c.ran.Add(1)
			go l.retire(p.c)
		case awake.Err() == nil:
			p.setFailure(l.Err())
			p.c.o.logger.Warn("connection lost", "broker", l.addr, "err", l.Err())
		}
		p.c.changed()
	}
}

// watch waits for the end of l; false: it is to be left. Where slaves could be asked instead it also looks whether l is silent.
func (p *pool) watch(l *link) (gone bool) {
	var look *time.Ticker
	read, silent := l.BytesRead(), 0
	for {
		p.mu.Lock()
		again := p.mu.again
		p.mu.Unlock()
		var due <-chan time.Time
		if p.slaves.Load() != nil {
			if look == nil {
				look = time.NewTicker(lookEvery)
				defer look.Stop()
			}
			due, again = look.C, nil
		}
		select {
		case <-l.Closed():
			return true
		case <-l.moved:
			return false
		case <-again: // it may have slaves now
			continue
		case <-due:
		}
		if now := l.BytesRead(); now != read || l.Handling() || p.users.Load() == 0 {
			read, silent = now, 0
			if l.stalled.Swap(false) {
				p.c.changed()
			}
			continue
		}
		l.ping(nil)
		if silent++; silent > silentLooks && !l.stalled.Swap(true) {
			p.c.o.logger.Warn("the broker is silent", "broker", l.addr, "brokerGroup", l.brokerGroup)
			p.c.changed()
		}
	}
}

// A consumer's master with slaves is pinged when nothing came from it between two looks, and taken as silent after silentLooks of them
// without an answer.
const (
	lookEvery   = 500 * time.Millisecond
	silentLooks = 3
)

// ping sends one, unless one has no answer yet. answered may be nil.
func (l *link) ping(answered func()) {
	if l.pinging.Swap(true) {
		return
	}
	if _, err := l.Start(wire.CommandPing, nil, nil, func(_ wire.Frame, err error) {
		l.pinging.Store(false)
		if err == nil && answered != nil {
			answered()
		}
	}); err == nil {
		l.Flush()
	}
}

// retireTime is how long a master before may take for what is under way.
const retireTime = 3 * time.Second

// retire closes l when what is under way has its answers. The Cluster waits for it.
func (l *link) retire(c *Cluster) {
	defer c.ran.Done()
	over := time.NewTimer(retireTime)
	defer over.Stop()
	look := time.NewTicker(retireTime / 60)
	defer look.Stop()
	for l.Stats().Pending > 0 {
		select {
		case <-look.C:
			continue
		case <-over.C:
		case <-l.Closed():
		case <-c.ctx.Done():
		}
		break
	}
	l.Close(wire.Errorf(wire.CodeDisconnected, "%s is not the master any more", l.addr))
}

// silent says of the error of a connection that no node answered, or one that ends, or that does not know yet whom it may let in.
func silent(err error) bool {
	code := codeOf(err)
	return code == wire.CodeDisconnected || code == wire.CodeTimeout || code == wire.CodeStopping || code == wire.CodeMetadataAway
}

// surplus says that there are connections enough without a slot that has none.
func (p *pool) surplus() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.linked >= int(p.wanted.Load())
}

// link makes l the slot's connection; false: it is not wanted.
func (p *pool) link(awake context.Context, s *slot, l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if awake.Err() != nil || p.mu.linked >= int(p.wanted.Load()) || !slices.Contains(p.mu.addrs, l.addr) {
		return false
	}
	p.mu.linked++
	s.link.Store(l)
	return true
}

// left notes the end of a slot's goroutine. Who woke the pool meanwhile found it still running.
func (p *pool) left(s *slot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.running = false
	p.mu.running--
	if n := int(p.wanted.Load()); p.mu.linked < n && p.mu.running < n && p.c.ctx.Err() == nil {
		p.startSlots(n, nil)
	}
}

func (p *pool) addresses() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.mu.addrs)
}

// failed says that it could not connect since it was woken.
func (p *pool) failed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.failure != nil
}

func (p *pool) setFailure(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.failure = err
}

// sleep waits between half of d and d, so that the clients of a broker do not come back all at once; less when there is news of it.
func (p *pool) sleep(ctx context.Context, d time.Duration) {
	p.mu.Lock()
	again := p.mu.again
	p.mu.Unlock()
	t := time.NewTimer(d/2 + rand.N(d/2))
	defer t.Stop()
	select {
	case <-t.C:
	case <-again:
	case <-ctx.Done():
	}
}

// connect tries the next address: the connection is read by a goroutine of its own from here on.
func (p *pool) connect(awake context.Context) (*link, error) {
	p.mu.Lock()
	addr := p.mu.addrs[p.mu.addr%len(p.mu.addrs)]
	p.mu.addr++
	p.mu.Unlock()
	l, err := p.connectTo(awake, addr)
	if err != nil {
		p.setFailure(err)
		return nil, newError(opDial, "", -1, addr, err)
	}
	return l, nil
}

func (p *pool) connectTo(awake context.Context, addr string) (*link, error) {
	o := p.c.o
	ctx, cancel := context.WithTimeout(awake, o.dialTimeout)
	defer cancel()
	var who wire.Credentials
	if o.credentials != nil {
		var err error
		if who, err = o.credentials(); err != nil {
			return nil, wire.Errorf(wire.CodeUnauthenticated, "%v", err)
		}
	}
	nc, err := o.dial(ctx, addr)
	if err == nil && o.tls != nil {
		nc, err = o.encrypt(ctx, nc, addr)
	}
	if err != nil {
		return nil, wire.Errorf(wire.CodeDisconnected, "%v", err)
	}
	l := &link{Conn: wire.NewConn(nc, wire.ConnOptions{Buffers: &p.c.buffers, Logger: o.logger}), pool: p, addr: addr, moved: make(chan struct{})}
	p.c.ran.Add(1)
	go func() {
		defer p.c.ran.Done()
		l.Serve() // why it ended is l.Err's to say
	}()
	hello, err := l.Hello(ctx, &wire.HelloRequest{ClientId: p.c.clientID, App: o.app, Sdk: sdkName, Credential: who.ID})
	if err == nil {
		err = o.authenticate(ctx, l, who, hello)
	}
	if err == nil && p.name != "" && hello.BrokerGroup != p.name {
		err = wire.Errorf(wire.CodeDisconnected, "%s is of broker group %q, not %q", addr, hello.BrokerGroup, p.name)
	}
	if err != nil {
		if ctx.Err() != nil {
			err = wire.Errorf(wire.CodeTimeout, "no answer to the hello within %v", o.dialTimeout)
		}
		l.Close(err)
		return nil, err
	}
	l.brokerGroup = hello.BrokerGroup
	if hello.KeepaliveMs > 0 {
		l.KeepAlive(time.Duration(hello.KeepaliveMs) * time.Millisecond)
	}
	p.c.addRegistry(hello.Registry)
	return l, nil
}

// pick returns the good connection of the slot that n falls on, or of another one; nil when there is none now. It is for
// messages: all connections are wanted.
func (p *pool) pick(n uint32) *link {
	k := uint32(len(p.slots))
	if p.wanted.Load() < int32(k) {
		p.wake(int(k), nil)
	}
	for i := range k {
		if l := p.slots[(n+i)%k].link.Load(); l != nil {
			return l
		}
	}
	return nil
}

// next is pick in turn.
func (p *pool) next() *link { return p.pick(p.turn.Add(1)) }

// any returns a good connection; nil when there is none now. For that one is enough.
func (p *pool) any() *link {
	if p.wanted.Load() == 0 {
		p.wake(1, nil)
	}
	return p.ready()
}

// ready is any, which wakes nobody.
func (p *pool) ready() *link {
	for i := range p.slots {
		if l := p.slots[i].link.Load(); l != nil {
			return l
		}
	}
	return nil
}

// none says why there is no connection.
func (p *pool) none() error {
	if p.c.ctx.Err() != nil {
		return wire.Errorf(wire.CodeClosed, "the client was closed")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if e, ok := errors.AsType[*wire.CodeError](p.mu.failure); ok && (e.Code == wire.CodeDisconnected || e.Code == wire.CodeUnauthenticated) {
		return e
	}
	if p.mu.failure != nil {
		return wire.Errorf(wire.CodeDisconnected, "%v", p.mu.failure)
	}
	return wire.Errorf(wire.CodeDisconnected, "not connected yet")
}

// await is pick, waiting for a connection until ctx or the cluster ends.
func (p *pool) await(ctx context.Context, n uint32) (*link, error) {
	return p.awaitLink(ctx, func() *link { return p.pick(n) })
}

func (p *pool) awaitLink(ctx context.Context, get func() *link) (*link, error) {
	for {
		up := p.c.watchLinks()
		if l := get(); l != nil {
			return l, nil
		}
		if err := p.none(); codeOf(err) == wire.CodeUnauthenticated {
			return nil, err // waiting does not make another credential
		}
		select {
		case <-up:
		case <-ctx.Done():
			return nil, p.none()
		case <-p.c.ctx.Done():
			return nil, p.none()
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
func (p *pool) call(ctx context.Context, op, topic string, again repeat, command wire.Command, request, response proto.Message) error {
	turn := 0 // slaves that did not serve
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		l, err := p.awaitLink(ctx, func() *link {
			if p.of != nil || command == wire.CommandExtend {
				return p.giver(0, turn)
			}
			return p.any()
		})
		if err != nil {
			return newError(op, topic, -1, "", err)
		}
		err = callOnce(ctx, l, command, request, response)
		if err == nil {
			return nil
		}
		if l.pool.of != nil {
			turn++
		}
		p = p.elsewhere(l, err)
		e := newError(op, topic, -1, l.addr, err)
		if again == repeatUnsent && (e.Code == wire.CodeUnknown || e.Code == wire.CodeTimeout) {
			e.Outcome = Unknown
			return e
		}
		// Waiting makes no group and no partition: only a send asks again how many there are.
		useful := wire.Traits[e.Code].Retry != wire.RetryNever && e.Code != wire.CodeGroupNotFound && e.Code != wire.CodePartitionNotFound
		if ctx.Err() != nil || !useful || !p.c.pause(ctx, max(pause, e.RetryAfter)) {
			return e
		}
	}
}

func callOnce(ctx context.Context, l *link, command wire.Command, request, response proto.Message) error {
	try, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := l.CallMessage(try, command, request, response)
	if err != nil && try.Err() != nil && ctx.Err() == nil {
		return wire.Errorf(wire.CodeTimeout, "no answer within %v", callTimeout)
	}
	return err
}

// one sends a cold request once, as soon as there is a connection.
func (p *pool) one(ctx context.Context, command wire.Command, request, response proto.Message) error {
	l := p.any()
	if l == nil {
		wait, cancel := context.WithTimeout(ctx, min(p.c.o.dialTimeout, callTimeout))
		defer cancel()
		var err error
		if l, err = p.awaitLink(wait, p.any); err != nil {
			return err
		}
	}
	err := l.CallMessage(ctx, command, request, response)
	p.elsewhere(l, err)
	return err
}

// remoteCall is one Produce, Fetch or Ack under way that a ctx may end.
type remoteCall struct {
	ended atomic.Bool // by answer or ctx: the first
	stop  func() bool
}

// remote starts a hot request. finish is called exactly once: with the answer, or an error. When ctx ends first, that is
// code, and late gets what comes afterwards.
func (p *pool) remote(ctx context.Context, code wire.Code, command wire.Command, header, payload []byte, finish, late func(*link, wire.Frame, error)) {
	l := p.next()
	if l == nil {
		finish(nil, wire.Frame{}, p.none())
		return
	}
	l.remote(ctx, code, command, header, payload, finish, late)
}

func (l *link) remote(ctx context.Context, code wire.Code, command wire.Command, header, payload []byte, finish, late func(*link, wire.Frame, error)) {
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
