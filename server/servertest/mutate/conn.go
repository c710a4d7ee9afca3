package mutate

import (
	"io"
	"net"
	"sync"
	"time"
)

// Conn is the connection of a peer that says something, hears the answers, and then is gone. One at a time serves it; the next input uses it again.
type Conn struct {
	net.Conn        // nil
	Last     func() // is called when all is said, before the peer is gone; nil: nothing is
	in       []byte
	pieces   []byte
	mu       sync.Mutex
	out      []byte
	closed   bool
}

// Say makes it another connection, on which the peer says in, which is kept until then: in pieces of these lengths less one, and what is left when they
// are used up at once.
func (c *Conn) Say(in, pieces []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.in, c.pieces, c.out, c.closed = in, pieces, c.out[:0], false
}

// Heard is what the peer was told, until Say.
func (c *Conn) Heard() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out
}

func (c *Conn) Read(b []byte) (int, error) {
	if len(c.in) == 0 {
		if c.Last != nil {
			c.Last()
		}
		return 0, io.EOF
	}
	n := min(len(b), len(c.in))
	if len(c.pieces) > 0 {
		n = min(n, 1+int(c.pieces[0]))
		c.pieces = c.pieces[1:]
	}
	copy(b, c.in[:n])
	c.in = c.in[n:]
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, net.ErrClosed
	}
	return n, nil
}

func (c *Conn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, net.ErrClosed
	}
	c.out = append(c.out, b...)
	return len(b), nil
}

func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	return nil
}

func (c *Conn) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (c *Conn) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (c *Conn) SetDeadline(time.Time) error      { return nil }
func (c *Conn) SetReadDeadline(time.Time) error  { return nil }
func (c *Conn) SetWriteDeadline(time.Time) error { return nil }
