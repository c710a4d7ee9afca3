package servertest

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// Network is TCP in memory, for a cluster under testing/synctest: whoever waits for it is blocked as synctest means it. It has no goroutines; what
// is sent arrives in its order, a moment later.
type Network struct {
	mu struct {
		sync.Mutex
		rand      *rand.Rand
		listeners map[string]*memoryListener
		port      int
		more      time.Duration
	}
}

// NewNetwork returns a network without nodes, whose delays are of seed.
func NewNetwork(seed uint64) *Network {
	n := &Network{}
	n.mu.rand, n.mu.listeners, n.mu.port = rand.New(rand.NewPCG(seed, 30)), map[string]*memoryListener{}, 20_000
	return n
}

// Listen opens an address.
func (n *Network) Listen(address string) (net.Listener, error) {
	at, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if at.Port == 0 {
		n.mu.port++
		at.Port = n.mu.port
	}
	if n.mu.listeners[at.String()] != nil {
		return nil, &net.OpError{Op: "listen", Net: "tcp", Addr: at, Err: os.NewSyscallError("bind", syscall.EADDRINUSE)}
	}
	l := &memoryListener{n: n, at: at, accept: make(chan net.Conn, 128), closed: make(chan struct{})}
	n.mu.listeners[at.String()] = l
	return l, nil
}

// Dial connects to an address.
func (n *Network) Dial(ctx context.Context, address string) (net.Conn, error) {
	n.mu.Lock()
	l := n.mu.listeners[address]
	n.mu.port++
	from := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: n.mu.port}
	n.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("dial %s: %w", address, syscall.ECONNREFUSED)
	}
	a, b := newStream(n), newStream(n)
	select {
	case l.accept <- &memoryConn{in: a, out: b, local: l.at, remote: from}:
		return &memoryConn{in: b, out: a, local: from, remote: l.at}, nil
	case <-l.closed:
		return nil, fmt.Errorf("dial %s: %w", address, syscall.ECONNREFUSED)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// delay of what is sent now.
func (n *Network) delay() time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return time.Duration(200+n.mu.rand.IntN(800))*time.Microsecond + n.mu.more
}

// Delay makes all that is sent arrive so much later.
func (n *Network) Delay(d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.more = d
}

type memoryListener struct {
	n      *Network
	at     *net.TCPAddr
	accept chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *memoryListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.accept:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *memoryListener) Addr() net.Addr { return l.at }

func (l *memoryListener) Close() error {
	l.once.Do(func() {
		l.n.mu.Lock()
		delete(l.n.mu.listeners, l.at.String())
		l.n.mu.Unlock()
		close(l.closed)
		for {
			select {
			case c := <-l.accept:
				_ = c.Close()
			default:
				return
			}
		}
	})
	return nil
}

// streamMost is how many bytes are under way one way, as in a socket's buffers; more wait.
const streamMost = 256 << 10

// stream is one way of a connection.
type stream struct {
	n  *Network
	mu struct {
		sync.Mutex
		readable        *sync.Cond
		writable        *sync.Cond
		parcels         []parcel
		bytes           int
		eof             bool // no more is written
		reset           bool // nobody reads
		last            time.Time
		readBy, writeBy deadline
	}
}

// parcel is what one write sent.
type parcel struct {
	b   []byte
	due time.Time
}

// deadline of reads or writes; of a stream's mu.
type deadline struct {
	at    time.Time
	timer *time.Timer
}

func newStream(n *Network) *stream {
	s := &stream{n: n}
	s.mu.readable, s.mu.writable = sync.NewCond(&s.mu), sync.NewCond(&s.mu)
	return s
}

// wait until changed is told, or the deadline is there: only who waits has a timer for it. s.mu is held.
func (s *stream) wait(changed *sync.Cond, d *deadline) {
	if !d.at.IsZero() && d.timer == nil {
		d.timer = time.AfterFunc(time.Until(d.at), func() { s.change(func() {}) })
	}
	changed.Wait()
}

// set a deadline. s.mu is not held.
func (s *stream) set(d *deadline, t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d.at = t
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	if d == &s.mu.readBy {
		s.mu.readable.Broadcast()
	} else {
		s.mu.writable.Broadcast()
	}
}

func (d *deadline) passed() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

func (s *stream) write(b []byte) (int, error) {
	delay := s.n.delay()
	s.mu.Lock()
	defer s.mu.Unlock()
	wrote := 0
	for len(b) > 0 {
		switch {
		case s.mu.eof:
			return wrote, net.ErrClosed
		case s.mu.reset:
			return wrote, syscall.EPIPE
		case s.mu.writeBy.passed():
			return wrote, os.ErrDeadlineExceeded
		case s.mu.bytes >= streamMost:
			s.wait(s.mu.writable, &s.mu.writeBy)
			continue
		}
		part := b[:min(len(b), streamMost-s.mu.bytes)]
		due := time.Now().Add(delay)
		if due.Before(s.mu.last) {
			due = s.mu.last
		}
		s.mu.last = due
		s.mu.parcels = append(s.mu.parcels, parcel{append([]byte(nil), part...), due})
		s.mu.bytes += len(part)
		s.mu.readable.Broadcast()
		wrote += len(part)
		b = b[len(part):]
	}
	return wrote, nil
}

func (s *stream) read(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if s.mu.reset {
			return 0, net.ErrClosed
		}
		if s.mu.readBy.passed() {
			return 0, os.ErrDeadlineExceeded
		}
		if len(s.mu.parcels) > 0 {
			wait := time.Until(s.mu.parcels[0].due)
			if wait <= 0 {
				break
			}
			s.mu.Unlock()
			time.Sleep(wait)
			s.mu.Lock()
			continue
		}
		if s.mu.eof {
			return 0, io.EOF
		}
		s.wait(s.mu.readable, &s.mu.readBy)
	}
	n := 0
	for n < len(b) && len(s.mu.parcels) > 0 && time.Until(s.mu.parcels[0].due) <= 0 {
		p := &s.mu.parcels[0]
		k := copy(b[n:], p.b)
		n += k
		if p.b = p.b[k:]; len(p.b) == 0 {
			s.mu.parcels = s.mu.parcels[1:]
		}
	}
	s.mu.bytes -= n
	s.mu.writable.Broadcast()
	return n, nil
}

func (s *stream) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	s.mu.readable.Broadcast()
	s.mu.writable.Broadcast()
}

type memoryConn struct {
	in, out       *stream
	local, remote net.Addr
}

func (c *memoryConn) Read(b []byte) (int, error)  { return c.in.read(b) }
func (c *memoryConn) Write(b []byte) (int, error) { return c.out.write(b) }

func (c *memoryConn) Close() error {
	c.out.change(func() { c.out.mu.eof = true })
	c.in.change(func() { c.in.mu.reset = true })
	return c.SetDeadline(time.Time{})
}

func (c *memoryConn) LocalAddr() net.Addr  { return c.local }
func (c *memoryConn) RemoteAddr() net.Addr { return c.remote }

func (c *memoryConn) SetDeadline(t time.Time) error {
	_ = c.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}

func (c *memoryConn) SetReadDeadline(t time.Time) error  { c.in.set(&c.in.mu.readBy, t); return nil }
func (c *memoryConn) SetWriteDeadline(t time.Time) error { c.out.set(&c.out.mu.writeBy, t); return nil }
