package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

const (
	readBytes       = 64 << 10 // a busy connection's read buffer, before large frames; larger ones Buffers counts
	idleReadBytes   = 4 << 10  // where reading needs a buffer to wait with (TLS, pipes)
	keepBytesMax    = 2 << 10  // of a frame half read, that an idle connection keeps
	flushRoundsMax  = 4        // writes by one Flush before the writer goroutine goes on
	writeChunkBytes = 256 << 10
	lingerTime      = time.Second // for the peer to read why it is refused

	buffersRetryAfter = 500 * time.Millisecond // for others to give memory back
)

// ConnOptions are the options of a Conn.
type ConnOptions struct {
	// Handler gets each request and push, on Serve's goroutine, in the order read. Nil: they are a violation of the protocol.
	Handler func(c *Conn, f Frame)
	// OnBatchEnd is called on Serve's goroutine when all frames of one read were handled. Nil: Flush.
	OnBatchEnd func(c *Conn)
	// OnQueued is called by Reply and ReplyError when they queued the first bytes since the last write was begun: whoever
	// sets it sees to a Flush soon. Nil: the caller of Reply does. It is called without a lock and must not block.
	OnQueued func(c *Conn)
	// FrameBytesMax bounds a frame read. Default: ReplyBytesMax, what a client has to take.
	FrameBytesMax int
	// QueueBytesMax bounds what waits to be written. Over it Start returns CodeBusy, and Reply, whose answer nobody could
	// wait for, ends the connection: the peer does not read. Default: 64 MiB.
	QueueBytesMax int
	// WriteTimeout ends the connection when the peer takes nothing of what waits for so long. The last time it took
	// something is known to within another WriteTimeout. Default: 30 s.
	WriteTimeout time.Duration
	// Buffers is where memory comes from. When it has no more, Start returns CodeBusy, an answer ends the connection as over
	// QueueBytesMax, and a request too large to be read without more is answered CodeBusy and skipped (what is no request
	// ends the connection). Nil: the connection's own, without a bound.
	Buffers *Buffers
	// Logger gets, at level debug, why the connection ended. Nil: nothing is logged.
	Logger *slog.Logger
}

func (o ConnOptions) withDefaults() ConnOptions {
	if o.OnBatchEnd == nil {
		o.OnBatchEnd = (*Conn).Flush
	}
	if o.FrameBytesMax == 0 {
		o.FrameBytesMax = ReplyBytesMax
	}
	if o.QueueBytesMax == 0 {
		o.QueueBytesMax = 64 << 20
	}
	if o.WriteTimeout == 0 {
		o.WriteTimeout = 30 * time.Second
	}
	if o.Buffers == nil {
		o.Buffers = new(Buffers)
	}
	return o
}

// Conn is a connection on which both sides may have many requests in flight. It has one goroutine, the one that calls
// Serve; a second one, the writer, runs only while the socket does not take what is to be written (or cannot be written
// to without waiting: TLS, pipes), and Serve's end waits for it.
//
// Writing: Start, Reply and ReplyError copy a frame into the queue. Flush writes the queue in the calling goroutine as far
// as the socket takes it. Only one goroutine writes at a time; who calls Flush meanwhile leaves at once, and the one that
// writes looks again before it stops, so what was queued before a Flush is always written. A peer that does not read
// therefore holds nobody up: its bytes wait for its own writer, bounded by QueueBytesMax and WriteTimeout.
//
// Reading: frames are handled in the read buffer. A plain socket lends its buffer from Buffers only while it has bytes, so
// that an idle connection costs its goroutine and little else; a frame half read is kept in as much memory as it has
// bytes, at most doubled, whatever length it claims.
type Conn struct {
	nc  net.Conn
	o   ConnOptions
	raw *rawConn // nil: nc is not a plain socket

	in            input // Serve's
	frameBytesMax atomic.Int64
	framesRead    atomic.Uint64
	bytesRead     atomic.Uint64
	handling      atomic.Bool // frames that were read are handled just now
	stopped       atomic.Bool // no more frames are handled

	closed  chan struct{}
	writers sync.WaitGroup // the writer goroutine
	waiters sync.Pool      // of *waiter, for Call

	mu struct {
		sync.Mutex
		queue      []byte // what waits, lent from Buffers; nil when empty
		queueHint  int    // size of the last queue taken
		queued     uint64 // bytes ever queued
		taken      uint64 // bytes ever taken out of queue to be written. written <= taken <= queued
		written    uint64 // bytes that the socket took for certain
		framesOut  uint64
		writing    bool          // one goroutine writes, and will look at queue again
		idle       chan struct{} // closed when nothing waits any more; nil: nobody asked
		cause      error         // of the end; not nil: closed
		failed     error         // of a write: no more is written, and Serve reads what the peer said before it closes
		shut       error         // Shut was called
		pending    map[uint64]pendingCall
		lastNumber uint64
		keepAlive  *time.Timer // nil: KeepAlive was not called
	}
}

type pendingCall struct {
	command Command
	end     uint64 // where the request ends in the bytes ever queued
	done    func(Frame, error)
}

// NewConn returns a Conn on nc, which belongs to it from now on. Serve must be called for anything to be read.
func NewConn(nc net.Conn, o ConnOptions) *Conn {
	c := &Conn{nc: nc, o: o.withDefaults(), closed: make(chan struct{})}
	c.frameBytesMax.Store(int64(c.o.FrameBytesMax))
	c.raw = newRawConn(nc, c.readRoom, c.readIdle)
	return c
}

// SetFrameBytesMax bounds the frames read after the one that is handled now.
func (c *Conn) SetFrameBytesMax(n int) { c.frameBytesMax.Store(int64(n)) }

// RemoteAddr is the peer's address.
func (c *Conn) RemoteAddr() net.Addr { return c.nc.RemoteAddr() }

// Closed is closed when the connection ended.
func (c *Conn) Closed() <-chan struct{} { return c.closed }

// Err says why the connection ended; nil before.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.cause
}

// ConnStats counts what went over a connection, and what waits.
type ConnStats struct {
	FramesRead, BytesRead       uint64
	FramesWritten, BytesWritten uint64 // frames: queued
	QueueBytes                  int    // to be written
	Pending                     int    // requests without an answer
}

// BytesRead is how much came until now.
func (c *Conn) BytesRead() uint64 { return c.bytesRead.Load() }

// Handling says that frames which were read are handled now, so that nothing is read: the peer may not be blamed for
// silence.
func (c *Conn) Handling() bool { return c.handling.Load() }

// Stats returns the counts until now.
func (c *Conn) Stats() ConnStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return ConnStats{
		FramesRead: c.framesRead.Load(), BytesRead: c.bytesRead.Load(),
		FramesWritten: c.mu.framesOut, BytesWritten: c.mu.written,
		QueueBytes: int(c.mu.queued - c.mu.written), Pending: len(c.mu.pending),
	}
}

// QueueBytes is how much waits to be written.
func (c *Conn) QueueBytes() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return int(c.mu.queued - c.mu.written)
}

// queueFrame appends a frame; not ok: there is no memory for it. c.mu is held. first says that nothing waited before.
func (c *Conn) queueFrame(kind FrameKind, command Command, request uint64, header []byte, payload ...[]byte) (first, ok bool) {
	size := frameHeadBytes + len(header)
	payloadBytes := 0
	for _, p := range payload {
		payloadBytes += len(p)
	}
	size += payloadBytes
	q := c.mu.queue
	first = len(q) == 0
	if q == nil {
		q = c.o.Buffers.take(max(size, c.mu.queueHint))
	} else {
		q = c.o.Buffers.extend(q, size)
	}
	if q == nil {
		c.o.Buffers.queuesRefused.Add(1)
		return false, false
	}
	q = appendFrameHead(q, kind, command, request, len(header), payloadBytes)
	q = append(q, header...)
	for _, p := range payload {
		q = append(q, p...)
	}
	c.mu.queue = q
	c.mu.queued += uint64(size)
	c.mu.framesOut++
	return first, true
}

// Start queues a request; Flush or FlushShared sends it. done is called exactly once, unless Cancel takes the request back
// first: on Serve's goroutine with the answer, whose slices are valid only meanwhile, or with the *CodeError of an error
// frame; or, when the connection ends, on the goroutine that ends it, with CodeDisconnected if the request certainly was
// not sent whole, and CodeUnknown if it may have been. done must not block. An error returned means that nothing was queued
// and done is never called: CodeBusy (QueueBytesMax), CodeTooLarge, CodeDisconnected. When the server ends the connection
// with an error, a hello gets that error.
func (c *Conn) Start(command Command, header, payload []byte, done func(Frame, error)) (request uint64, err error) {
	size := frameHeadBytes + len(header) + len(payload)
	if size > FrameBytesMax {
		return 0, Errorf(CodeTooLarge, "request of %d bytes, at most %d are allowed", size, FrameBytesMax)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if cause := c.ended(); cause != nil {
		if e, ok := asCodeError(cause); ok && command == CommandHello {
			return 0, e
		}
		return 0, Errorf(CodeDisconnected, "%v: %v", c.nc.RemoteAddr(), cause)
	}
	if waits := c.mu.queued - c.mu.written; waits > 0 && waits+uint64(size) > uint64(c.o.QueueBytesMax) {
		return 0, Errorf(CodeBusy, "%d bytes wait to be sent to %v", waits, c.nc.RemoteAddr())
	}
	if _, ok := c.queueFrame(KindRequest, command, c.mu.lastNumber+1, header, payload); !ok {
		return 0, errBuffers(c.o.Buffers)
	}
	c.mu.lastNumber++
	request = c.mu.lastNumber
	if c.mu.pending == nil {
		c.mu.pending = make(map[uint64]pendingCall)
	}
	c.mu.pending[request] = pendingCall{command, c.mu.queued, done}
	return request, nil
}

// ended says why nothing more can be queued. c.mu is held.
func (c *Conn) ended() error {
	if cause := c.broken(); cause != nil {
		return cause
	}
	return c.mu.shut
}

// broken says why nothing more can be written. c.mu is held.
func (c *Conn) broken() error {
	if c.mu.cause != nil {
		return c.mu.cause
	}
	return c.mu.failed
}

// Cancel takes a request back: true means that its done was not called and never will be. The peer does not hear of it,
// and its answer is dropped.
func (c *Conn) Cancel(request uint64) bool {
	_, ok := c.takePending(request)
	return ok
}

func (c *Conn) takePending(request uint64) (pendingCall, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.mu.pending[request]
	if ok {
		delete(c.mu.pending, request)
	}
	return p, ok
}

// waiter is one Call that waits.
type waiter struct {
	ready chan struct{} // one element: the result is there
	frame Frame
	err   error
	done  func(Frame, error) // bound once
}

func (w *waiter) finish(f Frame, err error) {
	w.frame, w.err = f, err
	if n := len(f.Header) + len(f.Payload); n > 0 {
		b := make([]byte, 0, n)
		b = append(append(b, f.Header...), f.Payload...)
		h := len(f.Header)
		w.frame.Header, w.frame.Payload = b[:h:h], b[h:]
	}
	w.ready <- struct{}{}
}

// Call sends a request and waits for its answer, whose slices are the caller's. Errors: *CodeError as Start and its done
// say, or ctx.Err(), after which the request may have been carried out (unless ctx had ended before the call).
func (c *Conn) Call(ctx context.Context, command Command, header, payload []byte) (Frame, error) {
	if err := ctx.Err(); err != nil {
		return Frame{}, err
	}
	w, _ := c.waiters.Get().(*waiter)
	if w == nil {
		w = &waiter{ready: make(chan struct{}, 1)}
		w.done = w.finish
	}
	request, err := c.Start(command, header, payload, w.done)
	if err != nil {
		c.waiters.Put(w)
		return Frame{}, err
	}
	c.FlushShared()
	select {
	case <-w.ready:
	case <-ctx.Done():
		if c.Cancel(request) {
			c.waiters.Put(w)
			return Frame{}, ctx.Err()
		}
		<-w.ready // finish runs or ran
	}
	f, err := w.frame, w.err
	w.frame, w.err = Frame{}, nil
	c.waiters.Put(w)
	return f, err
}

// Reply queues the answer of a request. After the connection's end it does nothing.
func (c *Conn) Reply(request uint64, command Command, header []byte, payload ...[]byte) {
	c.answer(KindResponse, request, command, header, payload...)
}

// ReplyError queues an error as the answer of a request; with request 0 it says why the connection is going to end.
func (c *Conn) ReplyError(request uint64, command Command, err error) {
	var b [128]byte
	c.answer(KindError, request, command, AppendError(b[:0], err))
}

func (c *Conn) answer(kind FrameKind, request uint64, command Command, header []byte, payload ...[]byte) {
	size := frameHeadBytes + len(header)
	for _, p := range payload {
		size += len(p)
	}
	if size > ReplyBytesMax {
		c.ReplyError(request, command, Errorf(CodeInternal, "answer of %d bytes, at most %d are allowed", size, ReplyBytesMax))
		return
	}
	c.mu.Lock()
	if c.broken() != nil {
		c.mu.Unlock()
		return
	}
	if waits := c.mu.queued - c.mu.written; waits+uint64(size) > uint64(c.o.QueueBytesMax) && waits > 0 {
		c.mu.Unlock()
		c.Close(Errorf(CodeBusy, "%v does not read: %d bytes wait for it", c.nc.RemoteAddr(), waits))
		return
	}
	first, ok := c.queueFrame(kind, command, request, header, payload...)
	waits := c.mu.queued - c.mu.written
	c.mu.Unlock()
	if !ok {
		c.Close(Errorf(CodeBusy, "no memory for an answer of %d bytes to %v, for which %d bytes wait: %s",
			size, c.nc.RemoteAddr(), waits, errBuffers(c.o.Buffers).Message))
		return
	}
	if first && c.o.OnQueued != nil {
		c.o.OnQueued(c)
	}
}

// Flush writes what is queued, without waiting: what the socket does not take is left to the writer goroutine.
func (c *Conn) Flush() { c.flush(false) }

// FlushShared is Flush for many goroutines that share a connection: while other requests are in flight it lets the
// goroutines that are about to queue theirs do so first, so that one write takes all. Measured with BenchmarkConn: at 64
// callers a third of the CPU of Flush and two to four times its round trips; at one, the same.
func (c *Conn) FlushShared() { c.flush(true) }

func (c *Conn) flush(shared bool) {
	c.mu.Lock()
	if c.mu.writing || len(c.mu.queue) == 0 || c.broken() != nil {
		c.mu.Unlock()
		return
	}
	c.mu.writing = true
	if shared && len(c.mu.pending) > 1 {
		c.mu.Unlock()
		runtime.Gosched()
		c.mu.Lock()
	}
	for round := 0; len(c.mu.queue) > 0 && c.mu.cause == nil; round++ {
		b := c.takeQueue()
		if c.raw == nil || round == flushRoundsMax {
			c.startWriter(b, 0)
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		n, err := c.raw.Write(b)
		c.mu.Lock()
		c.mu.written += uint64(n)
		if err != nil {
			c.mu.Unlock()
			c.o.Buffers.give(b)
			c.writeFailed(err)
			return
		}
		if n < len(b) {
			c.startWriter(b, n)
			c.mu.Unlock()
			return
		}
		c.o.Buffers.give(b)
	}
	c.stopWriting()
	c.mu.Unlock()
}

// takeQueue takes what waits, to be written by the caller. c.mu is held.
func (c *Conn) takeQueue() []byte {
	b := c.mu.queue
	c.mu.queue = nil
	c.mu.queueHint = min(len(b), readBytes)
	c.mu.taken = c.mu.queued
	return b
}

// stopWriting ends the caller's turn. c.mu is held.
func (c *Conn) stopWriting() {
	c.mu.writing = false
	if c.mu.idle != nil {
		close(c.mu.idle)
		c.mu.idle = nil
	}
}

// startWriter hands b[from:], and the turn, to the writer goroutine. c.mu is held.
func (c *Conn) startWriter(b []byte, from int) {
	if c.mu.cause != nil { // nobody waits for writers that come now
		c.o.Buffers.give(b)
		c.stopWriting()
		return
	}
	c.writers.Add(1)
	go c.write(b, from)
}

// write is the writer goroutine: it ends when nothing waits.
func (c *Conn) write(b []byte, from int) {
	defer c.writers.Done()
	for {
		for from < len(b) {
			err := c.nc.SetWriteDeadline(time.Now().Add(c.o.WriteTimeout))
			n := 0
			if err == nil {
				n, err = c.nc.Write(b[from:min(from+writeChunkBytes, len(b))])
			}
			if n > 0 && errors.Is(err, os.ErrDeadlineExceeded) {
				err = nil // slow, but it takes something
			}
			from += n
			c.mu.Lock()
			c.mu.written += uint64(n)
			if err != nil {
				c.mu.Unlock()
				c.o.Buffers.give(b)
				c.writeFailed(err)
				return
			}
			c.mu.Unlock()
		}
		c.o.Buffers.give(b)
		c.mu.Lock()
		if len(c.mu.queue) == 0 || c.mu.cause != nil {
			// Cleared while the turn is ours, or the next Flush could run into an old deadline. An error means that the connection
			// is closed (of a pipe: by the peer, who may have answered what was written), which reading shows.
			c.nc.SetWriteDeadline(time.Time{})
			c.stopWriting()
			c.mu.Unlock()
			return
		}
		b, from = c.takeQueue(), 0
		c.mu.Unlock()
	}
}

// writeFailed ends the writer's turn, which failed with err, and the connection. A peer that hangs up has often said why: it answers a
// request with an error and closes, while we still write. So while requests wait for an answer Serve first reads what came, for
// lingerTime at most.
func (c *Conn) writeFailed(err error) {
	away := !errors.Is(err, os.ErrDeadlineExceeded)
	if !away {
		err = Errorf(CodeBusy, "%v takes nothing for %v", c.nc.RemoteAddr(), c.o.WriteTimeout)
	}
	err = fmt.Errorf("write to %v: %w", c.nc.RemoteAddr(), err)
	c.mu.Lock()
	c.stopWriting()
	if away && len(c.mu.pending) > 0 && c.mu.shut == nil && c.broken() == nil {
		c.mu.failed = err
		c.nc.SetReadDeadline(time.Now().Add(lingerTime)) // an error means that it is closed: reading ends
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	c.Close(err)
}

// Written waits until all that was queued before has been written.
func (c *Conn) Written(ctx context.Context) error {
	for {
		c.Flush()
		c.mu.Lock()
		if err := c.broken(); err != nil {
			c.mu.Unlock()
			return err
		}
		if !c.mu.writing && len(c.mu.queue) == 0 {
			c.mu.Unlock()
			return nil
		}
		if c.mu.idle == nil {
			c.mu.idle = make(chan struct{})
		}
		idle := c.mu.idle
		c.mu.Unlock()
		select {
		case <-idle:
		case <-c.closed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Close ends the connection at once; what was not written is lost, and every request without an answer is answered with
// CodeDisconnected or CodeUnknown before Close returns. err says why; nil: it was wished here. The first Close counts.
func (c *Conn) Close(err error) {
	if err == nil {
		err = net.ErrClosed
	}
	c.stopped.Store(true)
	c.mu.Lock()
	if c.mu.cause != nil {
		c.mu.Unlock()
		return
	}
	c.mu.cause = err
	if c.mu.keepAlive != nil {
		c.mu.keepAlive.Stop()
	}
	sent := c.mu.written
	if c.mu.writing {
		sent = c.mu.taken // how much of it the socket took is not known yet
	}
	pending := c.mu.pending
	c.mu.pending = nil
	queue := c.mu.queue
	c.mu.queue = nil
	c.mu.Unlock()
	c.o.Buffers.give(queue)
	close(c.closed)
	if c.o.Logger != nil {
		c.o.Logger.Debug("a connection ended", "peer", c.nc.RemoteAddr(), "err", err)
	}
	c.nc.Close() // of a connection that is given up: there is nothing to do about an error
	for _, p := range pending {
		switch e, ok := asCodeError(err); {
		case ok && p.command == CommandHello: // the server said why it does not want us
			p.done(Frame{}, e)
		case p.end > sent:
			p.done(Frame{}, Errorf(CodeDisconnected, "%v: %v", c.nc.RemoteAddr(), err))
		default:
			p.done(Frame{}, Errorf(CodeUnknown, "%v: the connection ended before the answer: %v", c.nc.RemoteAddr(), err))
		}
	}
}

// Shut makes Serve stop reading, write what is queued, give the peer a moment to read it, and Close with err. Frames that
// were read already and not handled yet are dropped. It does not wait.
func (c *Conn) Shut(err error) {
	if err == nil {
		err = net.ErrClosed
	}
	c.mu.Lock()
	if c.mu.shut != nil || c.mu.cause != nil {
		c.mu.Unlock()
		return
	}
	c.mu.shut = err
	c.mu.Unlock()
	c.stopped.Store(true)
	c.nc.SetReadDeadline(time.Unix(1, 0)) // wakes Serve; an error means that the connection is closed, which does too
}

// Serve reads until the connection ends, and returns why: io.EOF when the peer closed it between frames, a *CodeError when
// what came was not the protocol, or what was given to Shut or Close. It closes the connection and waits for its
// goroutine.
func (c *Conn) Serve() error {
	defer func() { c.in.drop(c.o.Buffers) }() // also when a hook panics
	err := c.serve()
	c.mu.Lock()
	shut, failed := c.mu.shut, c.mu.failed
	c.mu.Unlock()
	refused, ok := errors.AsType[*refusal](err)
	switch {
	case ok:
		err = refused.err
		c.ReplyError(refused.request, refused.command, err)
		c.linger()
	case shut != nil:
		err = shut
		c.linger()
	case failed != nil:
		if _, said := asCodeError(err); !said {
			err = failed // which came before the end of what could be read
		}
	}
	c.Close(err)
	c.writers.Wait()
	if ok || shut != nil {
		return err // whatever else went wrong on the way out
	}
	return c.Err()
}

// refusal ends a connection whose bytes are not the protocol's.
type refusal struct {
	request uint64
	command Command
	err     *CodeError
}

func (r *refusal) Error() string { return r.err.Error() }

// linger writes what is queued and lets the peer read it: closing a socket with unread bytes would throw it away.
func (c *Conn) linger() {
	deadline := time.Now().Add(lingerTime)
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	if c.Written(ctx) != nil {
		return
	}
	half, ok := c.nc.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil || c.nc.SetReadDeadline(deadline) != nil {
		return
	}
	b := c.o.Buffers.take(bufferBytesMin)
	defer c.o.Buffers.give(b)
	for dropped := 0; dropped < writeChunkBytes; {
		n, err := c.nc.Read(b[:cap(b)])
		if err != nil {
			return
		}
		dropped += n
	}
}

func (c *Conn) serve() error {
	for {
		err := c.fill()
		if err != nil && err != errNoRoom {
			return err
		}
		c.handling.Store(true)
		if err == errNoRoom {
			err = c.refuseLarge()
		} else {
			err = c.handle()
		}
		c.o.OnBatchEnd(c)
		c.handling.Store(false)
		if err != nil {
			return err
		}
		if c.stopped.Load() {
			return net.ErrClosed
		}
	}
}

// handle handles the frames that were read whole.
func (c *Conn) handle() error {
	in := &c.in
	for {
		in.dropSkipped()
		bytesMax := int(c.frameBytesMax.Load())
		f, size, e := ParseFrame(in.bytes(), bytesMax)
		in.need = size
		if e != nil && e.Code == CodeTooLarge && f.Kind == KindRequest && c.o.Handler != nil && bytesMax > HelloBytesMax {
			// Of someone who said hello: the other requests of this connection need not suffer.
			c.ReplyError(f.Request, f.Command, e)
			in.skip = size
			continue
		}
		if e != nil {
			return &refusal{f.Request, f.Command, e}
		}
		if size == 0 || size > in.end-in.start || c.stopped.Load() {
			break
		}
		in.start += size
		c.framesRead.Add(1)
		if err := c.dispatch(f); err != nil {
			return err
		}
	}
	in.settle()
	return nil
}

// errNoRoom says that the frame half read fills the read buffer, and that there is no memory for a larger one.
var errNoRoom = errors.New("the connections' buffers are used up")

// errBuffers says that the budget is used up.
func errBuffers(p *Buffers) *CodeError {
	e := Errorf(CodeBusy, "the %d bytes for large frames and waiting answers of all connections are used up", p.BytesMax)
	e.RetryAfter = buffersRetryAfter
	return e
}

// refuseLarge gives up the frame that is half read, and with it its memory: whoever waited for memory would hold what
// others wait for. The other requests of the connection go on.
func (c *Conn) refuseLarge() error {
	in := &c.in
	f, size, e := ParseFrame(in.bytes(), int(c.frameBytesMax.Load())) // good: handle judged it
	if e == nil {
		e = errBuffers(c.o.Buffers)
	}
	c.o.Buffers.framesRefused.Add(1)
	if f.Kind != KindRequest || c.o.Handler == nil {
		return &refusal{f.Request, f.Command, e}
	}
	c.ReplyError(f.Request, f.Command, e)
	in.skip = size
	in.dropSkipped()
	in.drop(c.o.Buffers)
	return nil
}

func (c *Conn) dispatch(f Frame) error {
	switch f.Kind {
	case KindResponse, KindError:
		var err error
		if f.Kind == KindError {
			e := ParseError(f.Header)
			if f.Request == 0 {
				return e
			}
			err = e
		}
		if p, ok := c.takePending(f.Request); ok {
			p.done(f, err)
		}
	default:
		if c.o.Handler == nil {
			return &refusal{f.Request, f.Command, Errorf(CodeMalformed, "unexpected %v", f.Kind)}
		}
		c.o.Handler(c, f)
	}
	return nil
}

// fill reads once.
func (c *Conn) fill() error {
	var n int
	var err error
	if c.raw != nil {
		n, err = c.raw.Read()
	} else {
		if c.in.start == c.in.end && len(c.in.buf) > readBytes {
			c.in.idle(c.o.Buffers) // it may wait for long, and does so with no more than usual
			c.in.large = readBytes
		}
		room := c.in.room(c.o.Buffers, idleReadBytes)
		if room == nil {
			return errNoRoom
		}
		n, err = c.nc.Read(room)
		if n > 0 {
			err = nil // it comes again
		}
		if n == len(room) {
			c.in.large = max(c.in.large, readBytes)
		}
	}
	if err != nil {
		if err == errNoRoom {
			return err
		}
		if err == io.EOF && c.in.end > c.in.start {
			return fmt.Errorf("read from %v: %w", c.nc.RemoteAddr(), io.ErrUnexpectedEOF)
		}
		if err == io.EOF {
			return err
		}
		return fmt.Errorf("read from %v: %w", c.nc.RemoteAddr(), err)
	}
	c.bytesRead.Add(uint64(n))
	c.in.end += n
	return nil
}

func (c *Conn) readRoom() []byte {
	usual := readBytes
	if c.frameBytesMax.Load() <= bufferBytesMin {
		usual = bufferBytesMin // of a peer that is not known: see HelloBytesMax
	}
	return c.in.room(c.o.Buffers, usual)
}
func (c *Conn) readIdle() { c.in.idle(c.o.Buffers) }

// input is the read buffer: [start, end) of buf was read and not handled yet.
type input struct {
	buf        []byte
	start, end int
	need       int // size of the frame at start; 0: not known
	skip       int // bytes of a refused frame that are still to be dropped
	large      int // size to begin with, learnt from large frames; 0: the caller's
	quiet      int // reads in a row that would have done with half of large
}

func (in *input) bytes() []byte { return in.buf[in.start:in.end] }

// room returns where to read to; nil when the buffer is full and there is no memory for a larger one. The buffer grows only
// when it is full, so it is at most twice what came, or what large frames before needed.
func (in *input) room(p *Buffers, usual int) []byte {
	have := in.end - in.start
	switch {
	case in.buf == nil:
		if in.buf = p.take(max(usual, in.large)); in.buf == nil {
			in.large = 0
			in.buf = p.take(usual)
		}
		in.buf = in.buf[:cap(in.buf)]
	case in.start > 0 && (in.end == len(in.buf) || in.start+in.need > len(in.buf)):
		copy(in.buf, in.bytes())
		in.start, in.end = 0, have
	}
	if in.end == len(in.buf) {
		b := p.take(max(2*len(in.buf), usual, in.large))
		if b == nil {
			in.large = 0
			if b = p.take(max(2*len(in.buf), usual)); b == nil {
				return nil
			}
		}
		b = b[:cap(b)]
		copy(b, in.bytes())
		p.give(in.buf)
		in.buf, in.start, in.end = b, 0, have
		in.large = max(in.large, len(b))
		in.quiet = 0
	}
	return in.buf[in.end:]
}

// settle looks back at a read whose frames were handled.
func (in *input) settle() {
	if in.large > readBytes && in.end <= in.large/2 {
		if in.quiet++; in.quiet == 32 {
			in.large, in.quiet = in.large/2, 0
		}
	} else {
		in.quiet = 0
	}
	if in.start == in.end {
		in.start, in.end, in.need = 0, 0, 0
	}
}

// idle gives the buffer back while nothing comes, but for the little of a frame half read.
func (in *input) idle(p *Buffers) {
	have := in.end - in.start
	if have > keepBytesMax || len(in.buf) <= keepBytesMax {
		return
	}
	var kept []byte
	if have > 0 {
		kept = append(kept, in.bytes()...)
		kept = kept[:have:have]
	}
	p.give(in.buf)
	in.buf, in.start, in.end = kept, 0, have
}

// dropSkipped drops what came of a refused frame.
func (in *input) dropSkipped() {
	n := min(in.skip, in.end-in.start)
	in.start += n
	in.skip -= n
}

// drop gives the buffer back with what is in it.
func (in *input) drop(p *Buffers) {
	p.give(in.buf)
	*in = input{skip: in.skip}
}
