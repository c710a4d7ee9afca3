package servertest

import (
	"context"
	"errors"
	"net"
	"sync"

	"github.com/jmqio/jmq/client"
)

// Links are the connections between the nodes of a cluster, and those of clients to nodes. They can be cut between two nodes, one way too, and a
// node can stand still or be gone, as its process would.
type Links struct {
	network *Network // nil: TCP

	mu struct {
		sync.Mutex
		changed *sync.Cond
		names   map[string]string // of nodes, by address
		cut     map[[2]string]bool
		paused  map[string]bool
		gone    map[string]bool
		conns   map[*linked]struct{}
	}
}

func newLinks(n *Network) *Links {
	l := &Links{network: n}
	l.mu.changed = sync.NewCond(&l.mu)
	l.mu.names, l.mu.cut, l.mu.paused, l.mu.gone, l.mu.conns = map[string]string{}, map[[2]string]bool{}, map[string]bool{}, map[string]bool{}, map[*linked]struct{}{}
	return l
}

// linked is one end of a connection: self's. What is sent over a link that is cut waits until it is whole again: it is not lost, as in TCP.
type linked struct {
	net.Conn
	l          *Links
	self, peer string // peer "": a client, or not known at this end
	closed     bool   // l.mu
}

var errGone = errors.New("servertest: the node is gone")

func (l *Links) wrap(self, peer string, c net.Conn) (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.gone[self] || l.mu.gone[peer] {
		_ = c.Close()
		return nil, errGone
	}
	n := &linked{Conn: c, l: l, self: self, peer: peer}
	l.mu.conns[n] = struct{}{}
	return n, nil
}

// stands says whether nothing goes from one node to the other now. l.mu is held.
func (l *Links) stands(from, to string) bool {
	return l.mu.paused[from] || l.mu.paused[to] || l.mu.cut[[2]string{from, to}]
}

// pass waits until something may go from one node to the other.
func (c *linked) pass(from, to string) error {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	for !c.closed && c.l.stands(from, to) {
		c.l.mu.changed.Wait()
	}
	if c.closed {
		return net.ErrClosed
	}
	return nil
}

func (c *linked) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		if e := c.pass(c.peer, c.self); e != nil {
			return 0, e
		}
	}
	return n, err
}

func (c *linked) Write(b []byte) (int, error) {
	if err := c.pass(c.self, c.peer); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

func (c *linked) Close() error {
	c.l.mu.Lock()
	c.closed = true
	delete(c.l.mu.conns, c)
	c.l.mu.changed.Broadcast()
	c.l.mu.Unlock()
	return c.Conn.Close()
}

// dialer is server.Config.Dial of a node.
func (l *Links) dialer(self string) func(func(context.Context, string) (net.Conn, error)) func(context.Context, string) (net.Conn, error) {
	return func(dial func(context.Context, string) (net.Conn, error)) func(context.Context, string) (net.Conn, error) {
		if l.network != nil {
			dial = l.network.Dial
		}
		return func(ctx context.Context, address string) (net.Conn, error) {
			l.mu.Lock()
			peer := l.mu.names[address]
			end := context.AfterFunc(ctx, func() {
				l.mu.Lock()
				defer l.mu.Unlock()
				l.mu.changed.Broadcast()
			})
			for ctx.Err() == nil && !l.mu.gone[self] && !l.mu.gone[peer] && (l.stands(self, peer) || l.stands(peer, self)) {
				l.mu.changed.Wait()
			}
			gone := l.mu.gone[self] || l.mu.gone[peer]
			l.mu.Unlock()
			end()
			if gone {
				return nil, errGone
			}
			c, err := dial(ctx, address)
			if err != nil {
				return nil, err
			}
			return l.wrap(self, peer, c)
		}
	}
}

// Client lets a client's connections be cut as those of a node called name.
func (l *Links) Client(name string) client.Option {
	dial := l.dialer(name)(func(ctx context.Context, address string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", address)
	})
	return client.WithDialer(dial)
}

// listens is server.Config.Listen of a node.
func (l *Links) listens(self string) func(func(string) (net.Listener, error)) func(string) (net.Listener, error) {
	return func(listen func(string) (net.Listener, error)) func(string) (net.Listener, error) {
		if l.network != nil {
			listen = l.network.Listen
		}
		return func(address string) (net.Listener, error) {
			n, err := listen(address)
			if err != nil {
				return nil, err
			}
			return &linkedListener{n, l, self}, nil
		}
	}
}

type linkedListener struct {
	net.Listener
	l    *Links
	self string
}

func (n *linkedListener) Accept() (net.Conn, error) {
	for {
		c, err := n.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if w, err := n.l.wrap(n.self, "", c); err == nil {
			return w, nil
		}
	}
}

// change changes what stands, and tells who waits.
func (l *Links) change(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
	l.mu.changed.Broadcast()
}

// Cut stops what goes from one node to another; both ways with two calls.
func (l *Links) Cut(from, to string) {
	l.change(func() { l.mu.cut[[2]string{from, to}] = true })
}

// Part stops everything between two nodes.
func (l *Links) Part(a, b string) {
	l.Cut(a, b)
	l.Cut(b, a)
}

// Heal ends all cuts.
func (l *Links) Heal() { l.change(func() { clear(l.mu.cut) }) }

// Pause has a node stand still as far as anybody can see: what it says and what it is told waits. Resume ends it.
func (l *Links) Pause(node string) { l.change(func() { l.mu.paused[node] = true }) }

// Resume ends Pause.
func (l *Links) Resume(node string) { l.change(func() { delete(l.mu.paused, node) }) }

// vanish ends all connections of a node at once, and those that are made, until come.
func (l *Links) vanish(node string) {
	var conns []net.Conn
	l.change(func() {
		l.mu.gone[node] = true
		for c := range l.mu.conns {
			if c.self == node || c.peer == node {
				c.closed = true
				conns = append(conns, c.Conn)
				delete(l.mu.conns, c)
			}
		}
	})
	for _, c := range conns {
		_ = c.Close()
	}
}

// Reset ends the connections between two nodes, those of a node with itself being all that it has. They can be made again.
func (l *Links) Reset(a, b string) {
	var conns []*linked
	l.change(func() {
		for c := range l.mu.conns {
			if c.self == a && (c.peer == b || a == b) || c.self == b && c.peer == a {
				conns = append(conns, c)
			}
		}
	})
	for _, c := range conns {
		_ = c.Close()
	}
}

func (l *Links) come(node string) { l.change(func() { delete(l.mu.gone, node) }) }

func (l *Links) name(address, node string) { l.change(func() { l.mu.names[address] = node }) }
