// Package replicatest is what tests of replication share: a network in memory between named nodes, whose links can be cut, one way
// too, slowed and broken, and over which nodes speak the real protocol (wire.Handler, wire.Conn).
package replicatest

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmqio/jmq/server/replica"
	"github.com/jmqio/jmq/wire"
)

// Net is the network. What is sent over a cut link waits, as in a TCP connection whose packets are lost, until the link is mended or
// the connection is closed. Its goroutines end with their connections; Close ends those, and waits.
type Net struct {
	wg sync.WaitGroup

	mu struct {
		sync.Mutex
		handlers map[string]*wire.Handler // of the nodes that are up
		links    map[[2]string]*link      // one way each
		conns    map[*pair]bool
		closed   bool
	}
}

// link is one way between two nodes.
type link struct {
	delay  time.Duration
	mended chan struct{} // not nil: the link is cut until it is closed
}

// pair is one connection.
type pair struct {
	from, to string
	ends     [4]net.Conn
	closed   chan struct{}
	once     sync.Once
}

func (p *pair) close() {
	p.once.Do(func() {
		close(p.closed)
		for _, c := range p.ends {
			c.Close()
		}
	})
}

// NewNet returns a network without nodes.
func NewNet() *Net {
	n := new(Net)
	n.mu.handlers, n.mu.links, n.mu.conns = map[string]*wire.Handler{}, map[[2]string]*link{}, map[*pair]bool{}
	return n
}

// Up lets others connect to a node, and ends what they had with one of that name before.
func (n *Net) Up(name string, s wire.Services) {
	n.Down(name)
	h := wire.NewHandler(s, wire.HandlerOptions{Broker: name})
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.handlers[name] = h
}

// Panics is how many requests have panicked at a node that is up.
func (n *Net) Panics(name string) uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.handlers[name].Panics()
}

// Handler is what serves connections to a node that is up.
func (n *Net) Handler(name string) *wire.Handler {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.handlers[name]
}

// Down ends a node's connections, and lets no others begin to it.
func (n *Net) Down(name string) {
	n.mu.Lock()
	delete(n.mu.handlers, name)
	n.mu.Unlock()
	n.drop(func(p *pair) bool { return p.from == name || p.to == name })
}

// Break ends the connections between two nodes; new ones can be made.
func (n *Net) Break(a, b string) {
	n.drop(func(p *pair) bool { return p.from == a && p.to == b || p.from == b && p.to == a })
}

func (n *Net) drop(which func(*pair) bool) {
	n.mu.Lock()
	var list []*pair
	for p := range n.mu.conns {
		if which(p) {
			list = append(list, p)
		}
	}
	n.mu.Unlock()
	for _, p := range list {
		p.close()
	}
}

// Close ends all connections and waits for all goroutines.
func (n *Net) Close() {
	n.mu.Lock()
	n.mu.closed = true
	n.mu.Unlock()
	n.drop(func(*pair) bool { return true })
	n.wg.Wait()
}

func (n *Net) link(from, to string) *link {
	l := n.mu.links[[2]string{from, to}]
	if l == nil {
		l = new(link)
		n.mu.links[[2]string{from, to}] = l
	}
	return l
}

// Cut lets nothing through from one node to another, one way, until Mend.
func (n *Net) Cut(from, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if l := n.link(from, to); l.mended == nil {
		l.mended = make(chan struct{})
	}
}

// Mend undoes Cut: what waits is let through.
func (n *Net) Mend(from, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if l := n.link(from, to); l.mended != nil {
		close(l.mended)
		l.mended = nil
	}
}

// Partition cuts both ways between two nodes, Heal mends them.
func (n *Net) Partition(a, b string) { n.Cut(a, b); n.Cut(b, a) }
func (n *Net) Heal(a, b string)      { n.Mend(a, b); n.Mend(b, a) }

// Delay makes what is sent from one node to another arrive so much later.
func (n *Net) Delay(from, to string, d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.link(from, to).delay = d
}

// await waits until the link lets through.
func (n *Net) await(p *pair, from, to string) bool {
	for {
		n.mu.Lock()
		mended := n.link(from, to).mended
		n.mu.Unlock()
		if mended == nil {
			return true
		}
		select {
		case <-mended:
		case <-p.closed:
			return false
		}
	}
}

type parcel struct {
	b   []byte
	due time.Time
}

// pump carries bytes one way.
func (n *Net) pump(p *pair, from, to string, in, out net.Conn) {
	parcels := make(chan parcel, 256)
	n.wg.Add(2)
	go func() {
		defer n.wg.Done()
		defer close(parcels)
		buf := make([]byte, 256<<10)
		for {
			m, err := in.Read(buf)
			if m > 0 {
				n.mu.Lock()
				due := time.Now().Add(n.link(from, to).delay)
				n.mu.Unlock()
				select {
				case parcels <- parcel{append([]byte(nil), buf[:m]...), due}:
				case <-p.closed:
					return
				}
			}
			if err != nil {
				return
			}
		}
	}()
	go func() {
		defer n.wg.Done()
		defer p.close()
		for {
			var one parcel
			var ok bool
			select {
			case one, ok = <-parcels:
			case <-p.closed:
				return
			}
			if !ok {
				return
			}
			if wait := time.Until(one.due); wait > 0 {
				t := time.NewTimer(wait)
				select {
				case <-t.C:
				case <-p.closed:
					t.Stop()
					return
				}
			}
			if !n.await(p, from, to) {
				return
			}
			if _, err := out.Write(one.b); err != nil {
				return
			}
		}
	}()
}

// Dial connects one node with another. It does not see cut links: what is said over them waits.
func (n *Net) Dial(from, to string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	h := n.mu.handlers[to]
	if h == nil || n.mu.closed {
		return nil, fmt.Errorf("%s: no node %s is up", from, to)
	}
	p := &pair{from: from, to: to, closed: make(chan struct{})}
	p.ends[0], p.ends[1] = net.Pipe()
	p.ends[2], p.ends[3] = net.Pipe()
	n.mu.conns[p] = true
	n.pump(p, from, to, p.ends[1], p.ends[2])
	n.pump(p, to, from, p.ends[2], p.ends[1])
	n.wg.Add(1)
	go func() {
		defer n.wg.Done()
		_ = h.NewSession(p.ends[3], wire.SessionOptions{}).Serve() // how it ended is the dialler's matter
		p.close()
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.mu.conns, p)
	}()
	return p.ends[0], nil
}

// Peer asks node to in the name of node from. It connects when it is used and not connected.
func (n *Net) Peer(from, to string) replica.Peer {
	p := &peer{net: n, from: from, to: to, making: make(chan struct{}, 1)}
	p.ctx, p.stop = context.WithCancel(context.Background())
	p.Remote = replica.Remote{Do: p.do, Start: p.Call}
	return p
}

// DialTCP is a Peer over TCP.
func DialTCP(from, address string) replica.Peer {
	p := &peer{net: NewNet(), from: from, to: address, making: make(chan struct{}, 1), tcp: true}
	p.ctx, p.stop = context.WithCancel(context.Background())
	p.Remote = replica.Remote{Do: p.do, Start: p.Call}
	return p
}

type peer struct {
	replica.Remote
	net      *Net
	tcp      bool
	from, to string
	ctx      context.Context // ends with Close
	stop     context.CancelFunc

	making chan struct{} // one element: the right to make a connection
	conn   atomic.Pointer[wire.Conn]
}

// connect returns the connection, which may be made anew.
func (p *peer) connect(ctx context.Context) (*wire.Conn, error) {
	select {
	case p.making <- struct{}{}:
		defer func() { <-p.making }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if p.ctx.Err() != nil {
		return nil, wire.Errorf(wire.CodeClosed, "the peer was closed")
	}
	if c := p.conn.Load(); c != nil && c.Err() == nil {
		return c, nil
	}
	dial := func() (net.Conn, error) { return p.net.Dial(p.from, p.to) }
	if p.tcp {
		dial = func() (net.Conn, error) { return net.DialTimeout("tcp", p.to, time.Second) }
	}
	nc, err := dial()
	if err != nil {
		return nil, wire.Errorf(wire.CodeDisconnected, "%v", err)
	}
	c := wire.NewConn(nc, wire.ConnOptions{})
	p.net.wg.Add(1)
	go func() {
		defer p.net.wg.Done()
		_ = c.Serve() // requests under way hear why
	}()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.ctx, cancel)()
	if _, err := c.Hello(ctx, &wire.HelloRequest{ClientId: p.from, Sdk: "test"}); err != nil {
		c.Close(nil)
		return nil, err
	}
	p.conn.Store(c)
	if p.ctx.Err() != nil {
		c.Close(nil)
	}
	return c, nil
}

func (p *peer) do(ctx context.Context, command wire.Command, header, payload []byte) (wire.Frame, error) {
	c, err := p.connect(ctx)
	if err != nil {
		return wire.Frame{}, err
	}
	return c.Call(ctx, command, header, payload)
}

// Call uses the connection that is there: Do makes one.
func (p *peer) Call(_ context.Context, command wire.Command, header []byte, done func(wire.Frame, error)) {
	c := p.conn.Load()
	if c == nil {
		done(wire.Frame{}, wire.Errorf(wire.CodeDisconnected, "%s is not connected with %s", p.from, p.to))
		return
	}
	if _, err := c.Start(command, header, nil, done); err != nil {
		done(wire.Frame{}, err)
		return
	}
	c.Flush()
}

func (p *peer) Close() error {
	p.stop()
	if c := p.conn.Load(); c != nil {
		c.Close(nil)
	}
	return nil
}

// Ask sends any header and waits for the answer.
func (p *peer) Ask(ctx context.Context, command wire.Command, header []byte) (wire.Frame, error) {
	return p.do(ctx, command, header, nil)
}
