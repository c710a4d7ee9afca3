// Package listener owns the sockets of a node: it accepts connections, encrypts them (Certificates), bounds them, serves each with a
// wire.Session, drops the silent ones and those whose identity is not good any more, and sees to it that answers get written
// (Flusher).
//
// Goroutines, all of them the Listener's, and Close waits for them: one that accepts (Serve's caller), one that looks for
// silent clients, one that looks for identities that ended if there are any, and one a connection; a session starts more of its own
// only while it needs them, and one that is expelled has one for that.
package listener

import (
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmqio/jmq/server/planted"
	"github.com/jmqio/jmq/wire"
)

// Options are the options of a Listener.
type Options struct {
	// Listener is where connections come from; it belongs to the Listener. Its address must be on loopback, unless the Handler
	// authenticates peers.
	Listener net.Listener
	// Handler serves the connections.
	Handler *wire.Handler
	// InsecureWithoutAuthentication lets everybody who reaches the address do everything.
	InsecureWithoutAuthentication bool
	// TLS returns the configuration of a new connection (Certificates.Config). Nil: connections are not encrypted.
	TLS func() *tls.Config
	// HalfOpenMax bounds the connections of which it is not known yet who the peer is. At the bound nobody is accepted until one
	// of them gets on; the oldest is closed when it has had halfOpenTime. Default: 2,000.
	HalfOpenMax int
	// Flusher is shared with the store (its AfterCommit). Default: one of its own.
	Flusher *Flusher
	// ConnectionsMax bounds the open connections; more are answered CodeTooMany and closed. Default: 10,000.
	ConnectionsMax int
	// BufferBytesMax bounds what all connections together hold in buffers of more than 64 KiB: large frames half read, and
	// answers that wait to be written (wire.Buffers). Beside it each has at most 64 KiB to read to and twice as much to
	// write from. Default: 512 MiB.
	BufferBytesMax int64
	// Logger gets state changes: when accepting fails and works again, and defects. Default: nothing is logged.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.Flusher == nil {
		o.Flusher = new(Flusher)
	}
	if o.ConnectionsMax == 0 {
		o.ConnectionsMax = 10_000
	}
	if o.HalfOpenMax == 0 {
		o.HalfOpenMax = 2_000
	}
	if o.BufferBytesMax == 0 {
		o.BufferBytesMax = 512 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// NotLoopbackError refuses an address that others than this machine could reach, where peers need not say who they are.
type NotLoopbackError struct{ Addr string }

func (e *NotLoopbackError) Error() string {
	return fmt.Sprintf("%s can be reached from other machines, and peers are not authenticated: listen on 127.0.0.1 or [::1], have them authenticated (node.auth.required), or accept that everybody may do everything (node.auth.insecureWithoutAuthentication)", e.Addr)
}

// Listen opens a TCP listener on addr, a loopback address.
func Listen(addr string) (net.Listener, error) { return listen(addr, checkLoopback) }

// ListenAnywhere opens a TCP listener on any address. New takes it only if peers are authenticated, or need not be.
func ListenAnywhere(addr string) (net.Listener, error) {
	return listen(addr, func(net.Addr) error { return nil })
}

func listen(addr string, check func(net.Addr) error) (net.Listener, error) {
	tcp, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	if err := check(tcp); err != nil { // before the port is open
		return nil, err
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	return l, nil
}

func checkLoopback(a net.Addr) error {
	if tcp, ok := a.(*net.TCPAddr); ok && !tcp.IP.IsLoopback() {
		return &NotLoopbackError{a.String()}
	}
	return nil
}

const (
	acceptPauseMin = 5 * time.Millisecond
	acceptPauseMax = time.Second
	refuseTime     = time.Second // for one connection too many to be told so
	refusalsMax    = 64          // told at the same time; more are just closed

	halfOpenTime = time.Second // that a connection has in any case to say who it is
	// tlsBytesMax bounds what a peer may send that is not known: a client hello, a chain of certificates, hello, authentication.
	tlsBytesMax  = 40 << 10
	recheckEvery = time.Second // for identities that end at a time
)

// Listener serves the connections of one net.Listener.
type Listener struct {
	o       Options
	buffers wire.Buffers
	closing chan struct{}
	running sync.WaitGroup // sessions, refusals and the one that looks for silent clients

	accepted, refused, acceptErrors, silent, panics, evicted, tlsErrors atomic.Uint64
	refusing                                                            atomic.Int64

	mu struct {
		sync.Mutex
		closed   bool
		sessions map[*session]struct{}
		halfOpen list.List      // of *session, the oldest first: those of which the peer is not known. <= HalfOpenMax
		room     chan struct{}  // closed when halfOpen became shorter; nil: nobody waits
		past     wire.ConnStats // sums of the sessions that ended
	}
}

// session is a connection as the listener sees it.
type session struct {
	*wire.Session
	marked   marked
	halfOpen *list.Element // in mu.halfOpen; nil: the peer is known. Of mu

	// Of the one that looks for silent clients.
	read  uint64 // bytes read when it looked last
	quiet int    // times in a row that it found nothing new
}

// New returns a Listener; an error is a *NotLoopbackError. Serve must be called.
func New(o Options) (*Listener, error) {
	if !o.Handler.Authenticates() && !o.InsecureWithoutAuthentication {
		if err := checkLoopback(o.Listener.Addr()); err != nil {
			return nil, err
		}
	}
	l := &Listener{o: o.withDefaults(), closing: make(chan struct{})}
	l.buffers.BytesMax = l.o.BufferBytesMax
	l.mu.sessions = make(map[*session]struct{})
	l.running.Go(l.watchSilence)
	if o.Handler.Authenticates() {
		l.running.Go(l.watchIdentities)
	}
	return l, nil
}

// Addr is where it listens.
func (l *Listener) Addr() net.Addr { return l.o.Listener.Addr() }

// Serve accepts until Close, and returns nil then. Errors of accepting (no file descriptor is left, a connection was gone
// before it was accepted) end nothing: they are tried again, after a pause that grows to a second. Only when the
// net.Listener was closed by someone else does Serve return an error.
func (l *Listener) Serve() error {
	var pause time.Duration
	for {
		nc, err := l.o.Listener.Accept()
		if err == nil {
			if pause > 0 {
				l.o.Logger.Info("accepting connections again", "addr", l.Addr())
			}
			pause = 0
			l.accepted.Add(1)
			l.makeRoom()
			l.open(nc)
			continue
		}
		select {
		case <-l.closing:
			return nil
		default:
		}
		if errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("accept on %v: %w", l.Addr(), err)
		}
		l.acceptErrors.Add(1)
		if pause == 0 {
			l.o.Logger.Warn("connections cannot be accepted", "addr", l.Addr(), "err", err)
		}
		pause = min(max(2*pause, acceptPauseMin), acceptPauseMax)
		select {
		case <-time.After(pause):
		case <-l.closing:
			return nil
		}
	}
}

// open starts a session, or a refusal.
func (l *Listener) open(nc net.Conn) {
	l.mu.Lock()
	if l.mu.closed {
		l.mu.Unlock()
		nc.Close() // nothing was promised to it
		return
	}
	l.running.Add(1) // under the lock, so that Close waits for it
	if len(l.mu.sessions) >= l.o.ConnectionsMax {
		l.mu.Unlock()
		l.refused.Add(1)
		go l.refuse(nc)
		return
	}
	s := new(session)
	var bound *boundConn
	if l.o.TLS != nil {
		bound = &boundConn{Conn: nc}
		bound.left.Store(tlsBytesMax)
		nc = tls.Server(bound, l.o.TLS())
	}
	s.Session = l.o.Handler.NewSession(nc, wire.SessionOptions{
		Buffers: &l.buffers, OnQueued: func(*wire.Session) { l.o.Flusher.mark(&s.marked) },
		OnOpen: func() {
			if bound != nil {
				bound.left.Store(math.MaxInt64)
			}
			l.known(s)
		},
	})
	s.marked.flush = s.Conn().Flush
	l.mu.sessions[s] = struct{}{}
	s.halfOpen = l.mu.halfOpen.PushBack(s)
	l.mu.Unlock()
	go l.serve(s)
}

// known takes a session out of those of which the peer is not known.
func (l *Listener) known(s *session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.halfOpen == nil {
		return
	}
	l.mu.halfOpen.Remove(s.halfOpen)
	s.halfOpen = nil
	if l.mu.room != nil {
		close(l.mu.room)
		l.mu.room = nil
	}
}

// makeRoom waits while too many connections are half open. When thousands of clients connect at once none is thrown out for that:
// the others wait in the kernel's queue. Whoever opens connections and says nothing loses them after halfOpenTime.
func (l *Listener) makeRoom() {
	for {
		l.mu.Lock()
		if l.mu.halfOpen.Len() < l.o.HalfOpenMax || l.mu.closed {
			l.mu.Unlock()
			return
		}
		oldest := l.mu.halfOpen.Front().Value.(*session)
		wait := halfOpenTime - time.Since(oldest.Begun())
		if wait > 0 {
			if l.mu.room == nil {
				l.mu.room = make(chan struct{})
			}
			room := l.mu.room
			l.mu.Unlock()
			timer := time.NewTimer(wait)
			select {
			case <-room:
			case <-timer.C:
			case <-l.closing:
			}
			timer.Stop()
			continue
		}
		l.mu.Unlock()
		l.evicted.Add(1)
		oldest.Conn().Close(wire.Errorf(wire.CodeTooMany, "%d connections are open that have not said whose they are", l.o.HalfOpenMax))
		l.known(oldest)
	}
}

// boundConn ends a connection of which too much was read. It is under TLS, which keeps what it has not understood yet.
type boundConn struct {
	net.Conn
	left atomic.Int64
}

func (c *boundConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.left.Load() != math.MaxInt64 && c.left.Add(-int64(n)) < 0 {
		return 0, fmt.Errorf("more than %d bytes of a peer that is not known", tlsBytesMax)
	}
	return n, err
}

// refuse tells one connection too many so, if it can be done without keeping many of them.
func (l *Listener) refuse(nc net.Conn) {
	defer l.running.Done()
	defer nc.Close()
	defer l.refusing.Add(-1)
	if l.refusing.Add(1) > refusalsMax || l.o.TLS != nil /* the client would not understand */ || nc.SetDeadline(time.Now().Add(refuseTime)) != nil {
		return
	}
	err := wire.Errorf(wire.CodeTooMany, "%d connections are open", l.o.ConnectionsMax)
	frame := wire.AppendFrame(nil, wire.Frame{Kind: wire.KindError, Command: wire.CommandHello, Header: wire.AppendError(nil, err)})
	if _, err := nc.Write(frame); err != nil {
		return
	}
	if half, ok := nc.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		// Closing with the hello unread would throw the answer away. A client closes when it has read it.
		var b [512]byte
		for range 8 {
			if _, err := nc.Read(b[:]); err != nil {
				return
			}
		}
	}
}

// serve is a session's goroutine.
func (l *Listener) serve(s *session) {
	defer l.running.Done()
	if planted.Bug("listener: session leaves a goroutine") {
		go func() { select {} }()
	}
	defer func() {
		// Requests have their own recover; this is for what is left, such as a hook that panics.
		if v := recover(); v != nil {
			l.panics.Add(1)
			l.o.Logger.Error("a session panicked", "peer", s.Conn().RemoteAddr(), "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			s.Conn().Close(wire.Errorf(wire.CodeInternal, "panic: %v", v))
		}
		l.known(s)
		stats := s.Conn().Stats()
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.mu.sessions, s)
		addStats(&l.mu.past, stats)
	}()
	err := s.Serve() // why it ended is counted by the handler; what a peer can cause is not logged
	if _, ok := errors.AsType[*wire.EncryptError](err); ok {
		l.tlsErrors.Add(1)
	}
}

func addStats(sum *wire.ConnStats, s wire.ConnStats) {
	sum.FramesRead += s.FramesRead
	sum.BytesRead += s.BytesRead
	sum.FramesWritten += s.FramesWritten
	sum.BytesWritten += s.BytesWritten
}

// list returns the open sessions.
func (l *Listener) list() []*session {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]*session, 0, len(l.mu.sessions))
	for s := range l.mu.sessions {
		all = append(all, s)
	}
	return all
}

// watchSilence closes sessions from which nothing came for three times the keep-alive: their clients are gone, or would
// have pinged. Those that have not said hello have a deadline of their own.
func (l *Listener) watchSilence() {
	every := l.o.Handler.KeepAlive()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-l.closing:
			return
		}
		for _, s := range l.list() {
			read := s.Conn().BytesRead()
			if s.quiet++; read != s.read || s.Conn().Handling() {
				s.read, s.quiet = read, 0
			}
			if s.quiet >= 3 && s.Peer() != nil {
				l.silent.Add(1)
				s.Conn().Close(wire.Errorf(wire.CodeTimeout, "nothing came for %v", 3*every))
			}
		}
	}
}

// watchIdentities looks for identities that ended by time.
func (l *Listener) watchIdentities() {
	tick := time.NewTicker(recheckEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			l.Recheck()
		case <-l.closing:
			return
		}
	}
}

// Recheck ends the sessions whose peers' identities are not good any more (wire.Session.Expel). It is called after each change of
// metadata, and does not wait for the sessions.
func (l *Listener) Recheck() {
	for _, s := range l.list() {
		if s.Alive() {
			continue
		}
		l.mu.Lock()
		if _, open := l.mu.sessions[s]; open { // Close waits for its goroutine still, and so for this one
			l.running.Go(s.Expel)
		}
		l.mu.Unlock()
	}
}

// Close stops accepting, drains every session (wire.Session.Drain) until ctx ends, closes what is left, and waits for all
// goroutines.
func (l *Listener) Close(ctx context.Context) error {
	l.mu.Lock()
	first := !l.mu.closed
	l.mu.closed = true
	l.mu.Unlock()
	var err error
	if first {
		close(l.closing)
		err = l.o.Listener.Close()
	}
	stop := context.AfterFunc(ctx, func() {
		for _, s := range l.list() {
			s.Conn().Close(wire.Errorf(wire.CodeStopping, "the broker is being stopped"))
		}
	})
	defer stop()
	var draining sync.WaitGroup
	for _, s := range l.list() {
		draining.Go(func() { s.Drain(ctx) })
	}
	draining.Wait()
	l.running.Wait()
	l.o.Flusher.stop()
	return err
}

// SessionInfo is an open connection.
type SessionInfo struct {
	Addr     string
	Peer     *wire.Peer // nil: no hello yet
	Begun    time.Time
	InFlight int // requests not answered yet
	Stats    wire.ConnStats
}

// Sessions returns the open connections.
func (l *Listener) Sessions() []SessionInfo {
	var all []SessionInfo
	for _, s := range l.list() {
		all = append(all, SessionInfo{s.Conn().RemoteAddr().String(), s.Peer(), s.Begun(), s.InFlight(), s.Conn().Stats()})
	}
	return all
}

// Metrics counts since the start.
type Metrics struct {
	Connections  int    // open
	Accepted     uint64 // among them those refused
	Refused      uint64 // one too many
	Silent       uint64 // closed because nothing came
	AcceptErrors uint64
	HalfOpen     int    // open, of which it is not known who the peer is
	Evicted      uint64 // closed because too many were half open
	TLSErrors    uint64 // connections whose encryption could not be agreed on
	InFlight     int
	QueueBytes   int // answers that wait to be written
	Buffers      wire.BuffersMetrics

	FramesRead, BytesRead       uint64
	FramesWritten, BytesWritten uint64

	Requests map[wire.Command]uint64
	Errors   map[wire.Code]uint64
	Panics   uint64
	Twice    uint64 // answers given twice

	Authenticated, AuthenticationsFailed, Expelled uint64 // as wire.HandlerMetrics
}

// Metrics returns the counts until now.
func (l *Listener) Metrics() Metrics {
	h := l.o.Handler.Metrics()
	m := Metrics{
		Accepted: l.accepted.Load(), Refused: l.refused.Load(), Silent: l.silent.Load(), AcceptErrors: l.acceptErrors.Load(),
		Buffers: l.buffers.Metrics(), Requests: h.Requests, Errors: h.Errors, Panics: h.Panics + l.panics.Load(), Twice: h.Twice,
		Evicted: l.evicted.Load(), TLSErrors: l.tlsErrors.Load(),
		Authenticated: h.Authenticated, AuthenticationsFailed: h.AuthenticationsFailed, Expelled: h.Expelled,
	}
	if m.Refused > 0 {
		m.Errors[wire.CodeTooMany] += m.Refused
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	sum := l.mu.past
	m.Connections = len(l.mu.sessions)
	m.HalfOpen = l.mu.halfOpen.Len()
	for s := range l.mu.sessions {
		stats := s.Conn().Stats()
		addStats(&sum, stats)
		m.QueueBytes += stats.QueueBytes
		m.InFlight += s.InFlight()
	}
	m.FramesRead, m.BytesRead, m.FramesWritten, m.BytesWritten = sum.FramesRead, sum.BytesRead, sum.FramesWritten, sum.BytesWritten
	return m
}
