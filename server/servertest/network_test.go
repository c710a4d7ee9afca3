package servertest

import (
	"context"
	"errors"
	"net"
	"sync"
)

// network is the way from the clients to the broker. It knows where the broker is now; clients that dial while it is away
// wait, so that they are back as soon as it is.
type network struct {
	mu struct {
		sync.Mutex
		address string        // "": the broker is away
		up      chan struct{} // closed when it is back; renewed when it goes
		lines   map[*line]bool
	}
}

// line is one client process's end of the network.
type line struct {
	network *network
	gone    chan struct{} // closed by hangUp

	mu struct {
		sync.Mutex
		conns map[net.Conn]bool
		gone  bool
	}
}

var errLineGone = errors.New("the process is gone")

func newNetwork() *network {
	n := &network{}
	n.mu.up = make(chan struct{})
	n.mu.lines = map[*line]bool{}
	return n
}

// set says where the broker is; "": nowhere.
func (n *network) set(address string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	was := n.mu.address
	n.mu.address = address
	switch {
	case was == "" && address != "":
		close(n.mu.up)
	case was != "" && address == "":
		n.mu.up = make(chan struct{})
	}
}

// cut closes all connections.
func (n *network) cut() {
	n.mu.Lock()
	lines := make([]*line, 0, len(n.mu.lines))
	for l := range n.mu.lines {
		lines = append(lines, l)
	}
	n.mu.Unlock()
	for _, l := range lines {
		l.cut()
	}
}

func (n *network) line() *line {
	l := &line{network: n, gone: make(chan struct{})}
	l.mu.conns = map[net.Conn]bool{}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.lines[l] = true
	return l
}

// dial is for client.WithDialer.
func (l *line) dial(ctx context.Context, _ string) (net.Conn, error) {
	for {
		l.network.mu.Lock()
		address, up := l.network.mu.address, l.network.mu.up
		l.network.mu.Unlock()
		if address != "" {
			return l.connect(ctx, address)
		}
		select {
		case <-up:
		case <-l.gone:
			return nil, errLineGone
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (l *line) connect(ctx context.Context, address string) (net.Conn, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.gone {
		nc.Close()
		return nil, errLineGone
	}
	c := &lineConn{Conn: nc, line: l}
	l.mu.conns[c] = true
	return c, nil
}

// cut closes the line's connections.
func (l *line) cut() {
	l.mu.Lock()
	conns := l.mu.conns
	l.mu.conns = map[net.Conn]bool{}
	l.mu.Unlock()
	for c := range conns {
		c.Close()
	}
}

// hangUp closes the line's connections, for good: nothing goes out any more.
func (l *line) hangUp() {
	l.mu.Lock()
	was := l.mu.gone
	l.mu.gone = true
	l.mu.Unlock()
	if was {
		return
	}
	close(l.gone)
	l.cut()
	l.network.mu.Lock()
	defer l.network.mu.Unlock()
	delete(l.network.mu.lines, l)
}

type lineConn struct {
	net.Conn
	line *line
}

func (c *lineConn) Close() error {
	c.line.mu.Lock()
	delete(c.line.mu.conns, c)
	c.line.mu.Unlock()
	return c.Conn.Close()
}
