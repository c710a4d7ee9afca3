package wire

import (
	"context"
	"crypto/rand"
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

	"google.golang.org/protobuf/proto"
)

// HandlerOptions are the options of a Handler.
type HandlerOptions struct {
	Broker      string // name of this node, for the hello
	BrokerGroup string
	// Epoch is asked for each hello: that in which this node writes now, 0 while it does not. Nil: 0.
	Epoch    func() uint64
	Features uint64 // bits that this node understands
	// KeepAlive is how often a client that has nothing to say pings. Default: 10 s.
	KeepAlive time.Duration
	// HelloTimeout is when a new connection is closed that has not said by then who it is: TLS, hello and authentication in all.
	// The last second of it (or half, of less than 2 s) is for telling it so. Default: 5 s.
	HelloTimeout time.Duration
	// Authenticator knows who may come. Nil: everybody may, and is PrincipalLocal.
	Authenticator Authenticator
	// UserRole returns the role of a user, which he is told. Default: none.
	UserRole func(name string) string
	// RequestsMax and RequestBytesMax bound the requests of a session that are not answered yet, and the bytes of their
	// frames; at the bound the session is not read. Default: 4096 and 16 MiB (or one frame).
	RequestsMax, RequestBytesMax int
	// QueueBytesMax bounds the answers of a session that wait to be written; at a quarter of it no fetch is begun, at the
	// bound the session is closed. Default: 64 MiB.
	QueueBytesMax int
	// ColdMax bounds a session's goroutines for commands that may block; more of them wait. Default: 4.
	ColdMax int
	// Logger is never used for what a peer may cause at will. Default: nothing is logged.
	Logger *slog.Logger
	// Roles are those that this node runs, for the hello.
	Roles []string
	// Elsewhere returns addresses of nodes that run a role, as far as this node knows; at most 16 are told. It is called for
	// each hello and each request that is not for this node, by many sessions at once, and must not block. Default: none.
	Elsewhere func(role string) []string
	// OnOpen is called when it is known who the peer of a session is, before any request. An error refuses it, and ends the
	// connection. OnClose is called for each session whose OnOpen returned nil, when it has ended and none of its requests
	// runs any more (answers may still be given, and are dropped).
	OnOpen  func(*Peer) error
	OnClose func(*Peer)
}

func (o HandlerOptions) withDefaults() HandlerOptions {
	setDefault(&o.KeepAlive, 10*time.Second)
	setDefault(&o.HelloTimeout, 5*time.Second)
	setDefault(&o.RequestsMax, 4096)
	setDefault(&o.RequestBytesMax, 16<<20)
	setDefault(&o.QueueBytesMax, 64<<20)
	setDefault(&o.ColdMax, 4)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Epoch == nil {
		o.Epoch = func() uint64 { return 0 }
	}
	if o.UserRole == nil {
		o.UserRole = func(string) string { return "" }
	}
	if o.Elsewhere == nil {
		o.Elsewhere = func(string) []string { return nil }
	}
	if o.OnOpen == nil {
		o.OnOpen = func(*Peer) error { return nil }
	}
	if o.OnClose == nil {
		o.OnClose = func(*Peer) {}
	}
	return o
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Services are what a node answers. Each may be nil: its commands are then answered with CodeRoleElsewhere.
type Services struct {
	Broker      Broker
	Admin       Admin
	Registry    Registry
	Replication Replication
}

// has says whether a service is there.
func (s Services) has(what service) bool {
	switch what {
	case ofBroker:
		return s.Broker != nil
	case ofAdmin:
		return s.Admin != nil
	case ofRegistry:
		return s.Registry != nil
	case ofReplication:
		return s.Replication != nil
	}
	return true
}

// Handler turns Services into what serves a connection: frame -> call -> frame. It has no goroutines of its own.
type Handler struct {
	services  Services
	committer Committer // nil: the broker starts commits by itself
	o         HandlerOptions

	unknownKey [32]byte // makes verifiers of credentials that are not known

	authenticated, authFailed, expelled atomic.Uint64

	panics   atomic.Uint64
	twice    atomic.Uint64
	requests [countedCommands]atomic.Uint64
	errors   [countedCodes]atomic.Uint64
}

// tightFetchBytes bounds a fetch while the memory of all connections is nearly used up: the answer goes into a buffer of the
// usual size, of which there are always more, unless the batches are large.
const tightFetchBytes = readBytes / 2

const (
	countedCommands = 128 // larger numbers are counted as 0
	countedCodes    = 128
)

// NewHandler returns a handler that serves s.
func NewHandler(s Services, o HandlerOptions) *Handler {
	committer, _ := s.Broker.(Committer)
	h := &Handler{services: s, committer: committer, o: o.withDefaults()}
	rand.Read(h.unknownKey[:]) // never fails
	return h
}

// elsewhere is the answer to a command of a role that this node does not run.
func (h *Handler) elsewhere(command Command, role string) *CodeError {
	e := Errorf(CodeRoleElsewhere, "%v is for a node with the role %s, which %s does not run", command, role, h.o.Broker)
	e.Nodes = h.o.Elsewhere(role)
	return e
}

// KeepAlive is what the hello tells clients.
func (h *Handler) KeepAlive() time.Duration { return h.o.KeepAlive }

// Authenticates says whether peers have to say who they are.
func (h *Handler) Authenticates() bool { return h.o.Authenticator != nil }

// HandlerMetrics counts since the start.
type HandlerMetrics struct {
	Requests map[Command]uint64 // 0: commands that are not known
	Errors   map[Code]uint64    // answers with a code, and connections ended by one
	Panics   uint64
	Twice    uint64 // answers given a second time, and dropped: a defect of the broker

	Authenticated         uint64 // peers that proved who they are, by secret or certificate
	AuthenticationsFailed uint64 // that did not
	Expelled              uint64 // sessions ended because their peer's identity was not good any more
}

// Metrics returns the counts until now.
func (h *Handler) Metrics() HandlerMetrics {
	m := HandlerMetrics{Requests: map[Command]uint64{}, Errors: map[Code]uint64{}, Panics: h.panics.Load(), Twice: h.twice.Load(),
		Authenticated: h.authenticated.Load(), AuthenticationsFailed: h.authFailed.Load(), Expelled: h.expelled.Load()}
	for i := range h.requests {
		if n := h.requests[i].Load(); n > 0 {
			m.Requests[Command(i)] = n
		}
	}
	for i := range h.errors {
		if n := h.errors[i].Load(); n > 0 {
			m.Errors[Code(i)] = n
		}
	}
	return m
}

// Panics is that of Metrics.
func (h *Handler) Panics() uint64 { return h.panics.Load() }

func (h *Handler) countError(c Code) {
	if c < countedCodes {
		h.errors[c].Add(1)
	}
}

// SessionOptions are what differs per connection or listener.
type SessionOptions struct {
	// OnQueued as in ConnOptions, with the session: it sees to s.Conn().Flush() soon. Nil: every answer is flushed at once.
	OnQueued func(s *Session)
	Buffers  *Buffers // nil: the session's own
	// OnOpen is called when it is known who the peer is, after HandlerOptions.OnOpen let it in. Nil: nothing is.
	OnOpen func()
}

// Session is one connection at a server, from its hello to its end.
//
// Produce, Fetch, Ack and the watches run on the goroutine that reads, in the order of their frames, and answer when they
// like. The other commands may block, and run on up to ColdMax goroutines of the session. A panic in a request is answered, logged and
// counted; the rest of the session goes on.
type Session struct {
	h         *Handler
	o         SessionOptions
	conn      *Conn
	ctx       context.Context // ends with the session; carries the peer after the hello
	cancel    context.CancelFunc
	names     Names
	greeted   *Peer       // of the hello, until the peer is let in; of the reading goroutine
	handshake *handshake  // the peer has to authenticate itself; of the reading goroutine
	ready     bool        // the peer was let in; of the reading goroutine
	stored    bool        // something was stored since the last commit was asked for; of the reading goroutine
	late      *time.Timer // ends the session when it is not known who the peer is
	peer      atomic.Pointer[Peer]
	ending    atomic.Pointer[CodeError] // why parked requests are ended; nil: they are not
	begun     time.Time
	cold      sync.WaitGroup

	mu struct {
		sync.Mutex
		free     *call
		requests int // not answered yet
		bytes    int // of their frames
		parked   int // those of the requests that may wait for something to come: fetches and watches
		watches  int // those of the parked that are watches; <= watchesMax
		queue    []coldRequest
		workers  int
		refusing *CodeError    // the answer to what comes now; nil: all is welcome
		changed  chan struct{} // closed when requests or bytes went down; nil: nobody waits
	}
}

type coldRequest struct {
	call *call
	run  coldRun
}

// NewSession returns a session on nc, which belongs to it. Serve must be called.
func (h *Handler) NewSession(nc net.Conn, o SessionOptions) *Session {
	s := &Session{h: h, o: o, begun: time.Now()}
	if s.o.OnOpen == nil {
		s.o.OnOpen = func() {}
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.conn = NewConn(nc, ConnOptions{
		Handler: s.handle, OnQueued: s.queued, OnBatchEnd: func(*Conn) { s.batchEnd() },
		FrameBytesMax: HelloBytesMax, QueueBytesMax: h.o.QueueBytesMax, Buffers: o.Buffers, Logger: h.o.Logger,
	})
	return s
}

// batchEnd is called when all frames of one read were handled, and before and after the reading goroutine waits: what was
// stored is committed, what was answered is written.
func (s *Session) batchEnd() {
	if s.stored {
		s.stored = false
		s.h.committer.Commit()
	}
	s.conn.Flush()
}

// queued passes on that an answer waits.
func (s *Session) queued(c *Conn) {
	if s.o.OnQueued != nil {
		s.o.OnQueued(s)
	} else {
		c.Flush()
	}
}

// Conn is the session's connection.
func (s *Session) Conn() *Conn { return s.conn }

// Peer is who said hello; nil before.
func (s *Session) Peer() *Peer { return s.peer.Load() }

// Begun is when the connection was accepted.
func (s *Session) Begun() time.Time { return s.begun }

// InFlight is how many requests are not answered yet.
func (s *Session) InFlight() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.requests
}

// Serve serves the connection until it ends, and returns why. When it returns nothing of the session runs.
func (s *Session) Serve() error {
	within := max(s.h.o.HelloTimeout-lingerTime, s.h.o.HelloTimeout/2)
	s.late = time.AfterFunc(within, func() {
		err := Errorf(CodeHelloFirst, "no hello, or no authentication, within %v", within)
		s.conn.ReplyError(0, CommandHello, err)
		s.conn.Shut(err)
	})
	err := s.encrypt()
	if err == nil {
		err = s.conn.Serve()
	} else {
		s.conn.Close(err)
	}
	s.batchEnd()
	s.late.Stop()
	if e, ok := asCodeError(err); ok {
		s.h.countError(e.Code)
	}
	s.cancel()
	s.cold.Wait()
	if p := s.peer.Load(); p != nil { // stored when OnOpen returned nil
		s.h.o.OnClose(p)
	}
	return err
}

// encrypt does the handshake of TLS, which late ends.
func (s *Session) encrypt() error {
	if t, ok := s.conn.nc.(*tls.Conn); ok {
		if err := t.Handshake(); err != nil {
			return &EncryptError{s.conn.RemoteAddr(), err}
		}
	}
	return nil
}

// EncryptError says that TLS with a peer did not come about.
type EncryptError struct {
	Peer net.Addr
	Err  error
}

func (e *EncryptError) Error() string { return fmt.Sprintf("TLS with %v: %v", e.Peer, e.Err) }
func (e *EncryptError) Unwrap() error { return e.Err }

// Drain ends the session in order: new requests are refused with CodeStopping, save acks; those that run are waited for;
// then parked fetches and watches are ended; then the connection. When ctx ends, it is closed as it is. It returns when Serve can.
func (s *Session) Drain(ctx context.Context) {
	stopping := Errorf(CodeStopping, "%s stops", s.h.o.Broker)
	s.refuseNew(stopping)
	if s.peer.Load() == nil {
		s.conn.Close(stopping) // nothing was promised to it
		return
	}
	err := s.await(ctx, func() bool { return s.mu.requests == s.mu.parked })
	s.ending.CompareAndSwap(nil, stopping)
	s.cancel()
	s.end(ctx, err, stopping)
}

// Expel ends the session because its peer's identity is not good any more: new requests are refused, parked ones are answered with
// CodeUnauthenticated, and the rest has expelTime to be answered. Only the first call does anything. It returns when Serve can.
func (s *Session) Expel() {
	why := Errorf(CodeUnauthenticated, "the credential expired or was revoked, or its owner is gone")
	if !s.ending.CompareAndSwap(nil, why) {
		return
	}
	s.h.expelled.Add(1)
	s.refuseNew(why)
	s.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), expelTime)
	defer cancel()
	s.end(ctx, nil, why)
}

const expelTime = time.Second

// Alive says whether the peer's identity, if it was let in, is still good.
func (s *Session) Alive() bool {
	p := s.peer.Load()
	return p == nil || s.h.o.Authenticator == nil || s.h.o.Authenticator.Alive(p.Principal) == nil
}

func (s *Session) refuseNew(why *CodeError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.refusing = why
}

// end waits until all is answered, unless err says that it cannot be, and ends the connection.
func (s *Session) end(ctx context.Context, err error, why *CodeError) {
	if err == nil {
		err = s.await(ctx, func() bool { return s.mu.requests == 0 })
	}
	if err == nil {
		s.conn.ReplyError(0, 0, why)
		err = s.conn.Written(ctx)
	}
	if err != nil {
		s.conn.Close(why)
		return
	}
	s.conn.Shut(why)
}

// await waits until good, which is called under s.mu, or until ctx or the connection ends.
func (s *Session) await(ctx context.Context, good func() bool) error {
	for {
		s.mu.Lock()
		if good() {
			s.mu.Unlock()
			return nil
		}
		if s.mu.changed == nil {
			s.mu.changed = make(chan struct{})
		}
		changed := s.mu.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-s.conn.Closed():
			return s.conn.Err()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// call is one request that is not answered yet. Calls are used again.
type call struct {
	s        *Session
	next     *call // in the free list
	request  uint64
	command  Command
	bytes    int
	watch    bool // it is counted in watches
	answered atomic.Bool
	scratch  [64]byte

	produce      ProduceRequest
	fetch        FetchRequest
	ack          AckRequest
	produceReply func(*ProduceResponse, error) // the methods below, bound once
	fetchReply   func(*FetchResponse, error)
	ackReply     func(*AckResponse, error)
}

// begin returns a call for f, after waiting for room among the requests in flight; an error is the answer instead. Both nil: the
// connection has ended.
func (s *Session) begin(f Frame) (*call, *CodeError) {
	bytes := frameHeadBytes + len(f.Header) + len(f.Payload)
	room := func() bool {
		return s.mu.requests == 0 || s.mu.requests < s.h.o.RequestsMax && s.mu.bytes+bytes <= s.h.o.RequestBytesMax
	}
	s.mu.Lock()
	if !room() {
		s.mu.Unlock()
		s.batchEnd() // nobody else might, while we wait
		if s.await(context.Background(), room) != nil {
			return nil, nil
		}
		s.mu.Lock()
	}
	if why := s.mu.refusing; why != nil && (f.Command != CommandAck || why.Code != CodeStopping) {
		s.mu.Unlock()
		return nil, why
	}
	c := s.mu.free
	if c != nil {
		s.mu.free, c.next = c.next, nil
	} else {
		c = &call{s: s}
		c.produceReply, c.fetchReply, c.ackReply = c.replyProduce, c.replyFetch, c.replyAck
	}
	s.mu.requests++
	s.mu.bytes += bytes
	if parks(f.Command) {
		s.mu.parked++
	}
	s.mu.Unlock()
	c.request, c.command, c.bytes, c.watch = f.Request, f.Command, bytes, false
	c.answered.Store(false)
	return c, nil
}

// claim is true for the first answer of a call.
func (c *call) claim() bool {
	if c.answered.CompareAndSwap(false, true) {
		return true
	}
	c.s.h.twice.Add(1)
	return false
}

// end counts the call as answered. again: nobody has it any more, it may be used for another request.
func (c *call) end(again bool) {
	s := c.s
	c.produce = ProduceRequest{}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.requests--
	s.mu.bytes -= c.bytes
	if parks(c.command) {
		s.mu.parked--
	}
	if c.watch {
		s.mu.watches--
	}
	if again {
		c.next, s.mu.free = s.mu.free, c
	}
	if s.mu.changed != nil {
		close(s.mu.changed)
		s.mu.changed = nil
	}
}

// parks says that a command may wait for something to come.
func parks(c Command) bool {
	return c == CommandFetch || c == CommandWatchRoutes || c == CommandWatchObjects || c == CommandPull
}

// fail answers a call with an error.
func (c *call) fail(err error, again bool) {
	if ending := c.s.ending.Load(); ending != nil && parks(c.command) {
		err = ending // a parked request has changed nothing, and its service knows only that its ctx ended
	}
	if e, ok := errors.AsType[*CodeError](err); ok && e.Code == CodeRoleElsewhere && len(e.Nodes) == 0 {
		// Of a service that holds a copy of the metadata, or follows it: the registry has what was asked for.
		told := *e
		told.Nodes = c.s.h.o.Elsewhere(RoleRegistry)
		err = &told
	}
	c.s.h.countError(CodeOf(err))
	c.s.conn.ReplyError(c.request, c.command, err)
	c.end(again)
}

func (c *call) replyProduce(r *ProduceResponse, err error) {
	if !c.claim() {
		return
	}
	if err != nil {
		c.fail(err, true)
		return
	}
	c.s.conn.Reply(c.request, c.command, AppendProduceResponse(c.scratch[:0], r))
	c.end(true)
}

func (c *call) replyFetch(r *FetchResponse, err error) {
	if !c.claim() {
		return
	}
	if err == nil && r.Lease == 0 && r.Gap == 0 {
		if ending := c.s.ending.Load(); ending != nil && ending.Code == CodeUnauthenticated {
			err = ending // nothing came, but not because nothing is there
		}
	}
	if err != nil {
		c.fail(err, true)
		return
	}
	c.s.conn.Reply(c.request, c.command, AppendFetchResponse(c.scratch[:0], r), r.Batches)
	c.end(true)
}

func (c *call) replyAck(r *AckResponse, err error) {
	if !c.claim() {
		return
	}
	if err != nil {
		c.fail(err, true)
		return
	}
	c.s.conn.Reply(c.request, c.command, AppendAckResponse(c.scratch[:0], r))
	c.end(true)
}

// handle handles one frame, on the reading goroutine.
func (s *Session) handle(c *Conn, f Frame) {
	if f.Kind != KindRequest {
		s.refuse(f, Errorf(CodeMalformed, "a %v of a client", f.Kind))
		return
	}
	if f.Command < countedCommands {
		s.h.requests[f.Command].Add(1)
	} else {
		s.h.requests[0].Add(1)
	}
	if !s.ready {
		begin := s.hello
		if s.handshake != nil {
			begin = s.authenticate
		}
		if err := begin(f); err != nil {
			s.refuse(f, err)
		}
		return
	}
	switch f.Command {
	case CommandPing:
		s.replyMessage(f.Request, f.Command, &PingResponse{TimeMs: time.Now().UnixMilli()})
		return
	case CommandWhoAmI:
		s.replyMessage(f.Request, f.Command, s.whoAmI())
		return
	}
	if f.Command == CommandFetch && c.QueueBytes() > s.h.o.QueueBytesMax/4 {
		// The peer reads too slowly for what it asks: we read no more from it before it has its answers.
		s.batchEnd()
		if c.Written(s.ctx) != nil {
			return
		}
	}
	call, err := s.begin(f)
	if call == nil {
		if err != nil {
			s.h.countError(err.Code)
			c.ReplyError(f.Request, f.Command, err)
		}
		return
	}
	defer s.rescue(call)
	if err := s.run(call, f); err != nil && call.claim() {
		call.fail(err, true)
	}
}

// rescue answers a request that panicked. Its call may still be in someone's hands, and is not used again.
func (s *Session) rescue(c *call) {
	v := recover()
	if v == nil {
		return
	}
	s.h.panics.Add(1)
	s.h.o.Logger.Error("a request panicked", "command", c.command, "peer", s.conn.RemoteAddr(), "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
	if !c.answered.CompareAndSwap(false, true) {
		return
	}
	switch c.command {
	case CommandProduce, CommandAck, CommandSubscribe, CommandCreateTopic, CommandAlterTopic, CommandDeleteTopic,
		CommandSeekGroup, CommandAlterGroup, CommandRemoveGroup, CommandHeartbeat, CommandApplyObjects,
		CommandCreateCredential, CommandNewGeneration, CommandChangeReplication, CommandBrokerGroup, CommandMergeSide, CommandResend:
		// How far it came is not known, and CodeInternal promises that nothing was stored.
		c.fail(Errorf(CodeUnknown, "the broker failed while it worked on the request"), false)
	default:
		c.fail(Errorf(CodeInternal, "the broker failed while it worked on the request"), false)
	}
}

// refuse answers f with err and ends the connection.
func (s *Session) refuse(f Frame, err error) {
	s.conn.ReplyError(f.Request, f.Command, err)
	s.conn.Shut(err)
}

// hello takes the first frame.
func (s *Session) hello(f Frame) error {
	if f.Command != CommandHello {
		return Errorf(CodeHelloFirst, "%v before the hello", f.Command)
	}
	var r HelloRequest
	if err := proto.Unmarshal(f.Header, &r); err != nil {
		return errHeader
	}
	if r.VersionMin > r.VersionMax || r.VersionMin > FrameVersion || r.VersionMax < FrameVersion {
		return Errorf(CodeUnsupportedVersion, "the client speaks versions %d to %d, the broker %d", r.VersionMin, r.VersionMax, FrameVersion)
	}
	if r.ClientId == "" {
		return Errorf(CodeInvalid, "client id is empty")
	}
	if err := checkToken("client id", r.ClientId); err != nil {
		return err
	}
	if err := checkToken("sdk", r.Sdk); err != nil {
		return err
	}
	if r.App != "" {
		if err := CheckApp(r.App); err != nil {
			return err
		}
	}
	if err := checkText("credential", r.Credential, NameBytesMax); err != nil {
		return err
	}
	s.greeted = &Peer{ClientID: r.ClientId, App: r.App, SDK: r.Sdk, Addr: s.conn.RemoteAddr().String(), Batched: s.h.committer != nil}
	var who Principal
	known := s.h.o.Authenticator == nil
	if !known && r.Credential == "" {
		var err error
		if who, known, err = s.certified(); err != nil {
			return err
		}
		if known {
			s.h.authenticated.Add(1)
		}
	}
	if known {
		if err := s.open(who); err != nil {
			return err
		}
	} else {
		s.handshake = new(handshake)
	}
	registry := s.h.o.Elsewhere(RoleRegistry)
	s.replyMessage(f.Request, f.Command, &HelloResponse{
		Version: FrameVersion, Features: r.Features & s.h.o.Features, Broker: s.h.o.Broker, BrokerGroup: s.h.o.BrokerGroup,
		Epoch: s.h.o.Epoch(), FrameBytesMax: FrameBytesMax, KeepaliveMs: uint32(min(s.h.o.KeepAlive.Milliseconds(), math.MaxUint32)),
		Authenticate: !known, Roles: s.h.o.Roles, Registry: registry[:min(len(registry), errorNodesMax)],
	})
	return nil
}

// run begins a request. An error returned is its answer, and nothing was begun.
func (s *Session) run(c *call, f Frame) error {
	switch f.Command {
	case CommandProduce:
		if s.h.services.Broker == nil {
			break
		}
		if err := ParseProduceRequest(&c.produce, f.Header); err != nil {
			return err
		}
		c.produce.Batch = f.Payload
		s.stored = s.h.committer != nil
		s.h.services.Broker.Produce(s.ctx, &c.produce, c.produceReply)
		return nil
	case CommandFetch:
		if s.h.services.Broker == nil {
			break
		}
		if err := ParseFetchRequest(&c.fetch, f.Header, &s.names); err != nil {
			return err
		}
		c.fetch.BytesMax = min(c.fetch.BytesMax, FetchBytesMax)
		if s.conn.o.Buffers.tight() {
			c.fetch.BytesMax = min(c.fetch.BytesMax, tightFetchBytes)
		}
		s.h.services.Broker.Fetch(s.ctx, &c.fetch, c.fetchReply)
		return nil
	case CommandAck:
		if s.h.services.Broker == nil {
			break
		}
		if err := ParseAckRequest(&c.ack, f.Header, &s.names); err != nil {
			return err
		}
		s.h.services.Broker.Ack(s.ctx, &c.ack, c.ackReply)
		return nil
	case CommandHello:
		return Errorf(CodeInvalid, "hello was said already")
	case CommandAuthenticate:
		return Errorf(CodeInvalid, "nothing is to be authenticated")
	}
	what, ok := commandServices[f.Command]
	if !ok {
		return Errorf(CodeUnknownCommand, "%v", f.Command)
	}
	if !s.h.services.has(what) {
		return s.h.elsewhere(f.Command, what.role())
	}
	switch f.Command {
	case CommandWatchRoutes:
		return watch(s, c, f, checkWatchRoutes, s.h.services.Registry.WatchRoutes)
	case CommandWatchObjects:
		return watch(s, c, f, checkWatchObjects, s.h.services.Registry.WatchObjects)
	case CommandPull:
		return s.pull(c, f)
	}
	return s.startCold(c, f, coldCommands[f.Command])
}

// startCold reads and judges a request, and has it run on one of the session's goroutines.
func (s *Session) startCold(c *call, f Frame, row coldCommand) error {
	run, err := row(s.h, f.Header, f.Payload)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.queue = append(s.mu.queue, coldRequest{c, run})
	if s.mu.workers < s.h.o.ColdMax {
		s.mu.workers++
		s.cold.Add(1)
		go s.work()
	}
	return nil
}

// work is a goroutine that takes cold requests until there are none.
func (s *Session) work() {
	defer s.cold.Done()
	for {
		s.mu.Lock()
		if len(s.mu.queue) == 0 {
			s.mu.workers--
			s.mu.queue = nil
			s.mu.Unlock()
			return
		}
		r := s.mu.queue[0]
		s.mu.queue = s.mu.queue[1:]
		s.mu.Unlock()
		s.runCold(r)
		s.conn.Flush()
	}
}

func (s *Session) runCold(r coldRequest) {
	defer s.rescue(r.call)
	var m proto.Message
	var payload []byte
	err := s.ctx.Err() // who asked may be gone, and thousands of its requests still here: nothing is done for it
	if err != nil {
		err = Errorf(CodeTimeout, "the connection ended before the request was begun")
	} else {
		m, payload, err = r.run(s.ctx)
	}
	if !r.call.claim() {
		return
	}
	if err != nil {
		r.call.fail(err, true)
		return
	}
	s.replyMessage(r.call.request, r.call.command, m, payload)
	r.call.end(true)
}

// replyMessage answers with a generated message.
func (s *Session) replyMessage(request uint64, command Command, m proto.Message, payload ...[]byte) {
	b, err := proto.Marshal(m)
	if err != nil { // a string that is not UTF-8
		err = Errorf(CodeInternal, "the answer cannot be encoded: %v", err)
		s.h.countError(CodeInternal)
		s.conn.ReplyError(request, command, err)
		return
	}
	s.conn.Reply(request, command, b, payload...)
}
