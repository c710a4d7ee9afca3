package listener

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/jmqio/jmq/wire"
)

var seedFlag = flag.Int64("seed", 0, "seed of random tests; 0: by time")

func TestMain(m *testing.M) {
	flag.Parse()
	goleak.VerifyTestMain(m)
}

func newRand(t testing.TB) *rand.Rand {
	seed := *seedFlag
	if seed == 0 {
		seed = time.Now().UnixNano()
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("-seed %d", seed)
		}
	})
	return rand.New(rand.NewPCG(uint64(seed), 0))
}

// fakeBroker answers at once, unless a function is set.
type broker interface {
	wire.Broker
	wire.Admin
}

type fakeBroker struct {
	wire.Admin
	produce func(ctx context.Context, r *wire.ProduceRequest, done func(*wire.ProduceResponse, error))
	fetch   func(ctx context.Context, r *wire.FetchRequest, done func(*wire.FetchResponse, error))
	route   func(ctx context.Context, r *wire.RouteRequest) (*wire.RouteResponse, error)
}

func (b *fakeBroker) Produce(ctx context.Context, r *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) {
	if b.produce != nil {
		b.produce(ctx, r, done)
		return
	}
	done(&wire.ProduceResponse{FirstIndex: uint64(len(r.Batch))}, nil)
}

func (b *fakeBroker) Fetch(ctx context.Context, r *wire.FetchRequest, done func(*wire.FetchResponse, error)) {
	if b.fetch != nil {
		b.fetch(ctx, r, done)
		return
	}
	done(&wire.FetchResponse{}, nil)
}

func (b *fakeBroker) Ack(ctx context.Context, r *wire.AckRequest, done func(*wire.AckResponse, error)) {
	done(&wire.AckResponse{Codes: make([]wire.Code, len(r.Items))}, nil)
}

func (b *fakeBroker) Subscribe(context.Context, *wire.SubscribeRequest) (*wire.SubscribeResponse, error) {
	return &wire.SubscribeResponse{Partitions: 1}, nil
}

func (b *fakeBroker) Route(ctx context.Context, r *wire.RouteRequest) (*wire.RouteResponse, error) {
	if b.route != nil {
		return b.route(ctx, r)
	}
	return &wire.RouteResponse{Version: 7}, nil
}

// pipeListener accepts ends of net.Pipe, for tests with fake time.
type pipeListener struct {
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case nc := <-l.conns:
		return nc, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}
func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "pipe"} }
func (l *pipeListener) dial() net.Conn {
	client, server := net.Pipe()
	l.conns <- server
	return client
}

// start runs a listener on loopback (nl nil) or nl until the test ends.
func start(t testing.TB, b broker, ho wire.HandlerOptions, o Options) *Listener {
	t.Helper()
	if o.Listener == nil {
		nl, err := Listen("127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		o.Listener = nl
	}
	ho.Broker = "b1"
	o.Handler = wire.NewHandler(wire.Services{Broker: b, Admin: b}, ho)
	l, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- l.Serve() }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
		if n := len(l.Sessions()); n != 0 {
			t.Errorf("%d sessions after Close", n)
		}
		wantGiven(t, l)
	})
	return l
}

// wantGiven waits until no large buffer is lent: a Flush in another goroutine may just be about to give one back.
func wantGiven(t testing.TB, l *Listener) {
	t.Helper()
	for begin := time.Now(); l.Metrics().Buffers.Bytes != 0; runtime.Gosched() {
		if time.Since(begin) > 10*time.Second {
			t.Errorf("%d bytes of buffers were lent and not given back", l.Metrics().Buffers.Bytes)
			return
		}
	}
}

func dialRaw(t testing.TB, l *Listener) net.Conn {
	t.Helper()
	nc, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	return nc
}

func serve(t testing.TB, nc net.Conn) *wire.Conn {
	c := wire.NewConn(nc, wire.ConnOptions{})
	done := make(chan struct{})
	go func() { c.Serve(); close(done) }()
	t.Cleanup(func() { c.Close(nil); <-done })
	return c
}

// dial connects and says hello.
func dial(t testing.TB, l *Listener, id string) *wire.Conn {
	t.Helper()
	c := serve(t, dialRaw(t, l))
	if _, err := c.Hello(context.Background(), &wire.HelloRequest{ClientId: id}); err != nil {
		t.Fatal(err)
	}
	return c
}

func produceHeader(topic string) []byte {
	return wire.AppendProduceRequest(nil, &wire.ProduceRequest{Topic: topic})
}

func produce(c *wire.Conn) error {
	_, err := c.Call(context.Background(), wire.CommandProduce, produceHeader("orders"), []byte("batch"))
	return err
}

func wantCode(t testing.TB, err error, want wire.Code) {
	t.Helper()
	if got := wire.CodeOf(err); got != want {
		t.Fatalf("got %v (%v), want %v", got, err, want)
	}
}

// TestSession shows each command's way through a session, and the hooks.
func TestSession(t *testing.T) {
	var opened, closed atomic.Pointer[wire.Peer]
	gone := make(chan struct{})
	l := start(t, &fakeBroker{}, wire.HandlerOptions{
		OnOpen:  func(p *wire.Peer) error { opened.Store(p); return nil },
		OnClose: func(p *wire.Peer) { closed.Store(p); close(gone) },
	}, Options{})
	c := serve(t, dialRaw(t, l))
	r, err := c.Hello(context.Background(), &wire.HelloRequest{ClientId: "c-1", App: "shop", Sdk: "test/1"})
	if err != nil {
		t.Fatal(err)
	}
	if r.Broker != "b1" || r.FrameBytesMax != wire.FrameBytesMax || r.KeepaliveMs != 10_000 {
		t.Fatalf("hello: %v", r)
	}
	if p := opened.Load(); p == nil || p.ClientID != "c-1" || p.App != "shop" || p.SDK != "test/1" || p.Addr == "" {
		t.Fatalf("peer: %+v", p)
	}
	ctx := context.Background()
	f, err := c.Call(ctx, wire.CommandProduce, produceHeader("orders"), []byte("batch"))
	if err != nil {
		t.Fatal(err)
	}
	var pr wire.ProduceResponse
	if err := wire.ParseProduceResponse(&pr, f.Header); err != nil || pr.FirstIndex != 5 {
		t.Fatalf("produce: %+v, %v", pr, err)
	}
	if _, err = c.Call(ctx, wire.CommandFetch, wire.AppendFetchRequest(nil, &wire.FetchRequest{Topic: "orders", Group: "pay"}), nil); err != nil {
		t.Fatal(err)
	}
	f, err = c.Call(ctx, wire.CommandAck, wire.AppendAckRequest(nil, &wire.AckRequest{Topic: "orders", Group: "pay", Items: make([]wire.AckRange, 3)}), nil)
	if err != nil {
		t.Fatal(err)
	}
	var ar wire.AckResponse
	if err := wire.ParseAckResponse(&ar, f.Header); err != nil || len(ar.Codes) != 3 {
		t.Fatalf("ack: %+v, %v", ar, err)
	}
	var route wire.RouteResponse
	if err := c.CallMessage(ctx, wire.CommandRoute, &wire.RouteRequest{Topic: "orders"}, &route); err != nil || route.Version != 7 {
		t.Fatalf("route: %v, %v", &route, err)
	}
	var ping wire.PingResponse
	if err := c.CallMessage(ctx, wire.CommandPing, &wire.PingRequest{}, &ping); err != nil || ping.TimeMs == 0 {
		t.Fatalf("ping: %v, %v", &ping, err)
	}
	_, err = c.Call(ctx, 60, nil, nil)
	wantCode(t, err, wire.CodeUnknownCommand)
	_, err = c.Call(ctx, 60_000, nil, nil)
	wantCode(t, err, wire.CodeUnknownCommand)
	_, err = c.Hello(ctx, &wire.HelloRequest{ClientId: "c-2"})
	wantCode(t, err, wire.CodeInvalid)
	for _, name := range []string{"", "a/b", "..", "a\x00", strings.Repeat("n", 256)} {
		_, err = c.Call(ctx, wire.CommandProduce, produceHeader(name), nil)
		wantCode(t, err, wire.CodeInvalid)
		if name != "" {
			wantCode(t, c.CallMessage(ctx, wire.CommandRoute, &wire.RouteRequest{Topic: name}, &route), wire.CodeInvalid)
		}
	}
	s := l.Sessions()
	if len(s) != 1 || s[0].Peer.ClientID != "c-1" || s[0].InFlight != 0 {
		t.Fatalf("sessions: %+v", s)
	}
	m := l.Metrics()
	if m.Connections != 1 || m.Requests[wire.CommandProduce] != 6 || m.Requests[0] != 1 || m.Errors[wire.CodeInvalid] != 10 || m.Errors[wire.CodeUnknownCommand] != 2 || m.FramesRead != m.FramesWritten {
		t.Fatalf("metrics: %+v", m)
	}
	c.Close(nil)
	<-gone
	if closed.Load() != opened.Load() {
		t.Fatal("another peer left than came")
	}
}

// TestHelloRefused shows each hello that is refused: a typed answer, then the end.
func TestHelloRefused(t *testing.T) {
	l := start(t, &fakeBroker{}, wire.HandlerOptions{OnOpen: func(*wire.Peer) error { t.Error("let in"); return nil }}, Options{})
	hello := func(r *wire.HelloRequest) func(c *wire.Conn) error {
		return func(c *wire.Conn) error {
			return c.CallMessage(context.Background(), wire.CommandHello, r, &wire.HelloResponse{})
		}
	}
	for _, c := range []struct {
		name string
		call func(c *wire.Conn) error
		code wire.Code
	}{
		{"another command first", produce, wire.CodeHelloFirst},
		{"too new", hello(&wire.HelloRequest{VersionMin: 2, VersionMax: 3, ClientId: "c"}), wire.CodeUnsupportedVersion},
		{"no version", hello(&wire.HelloRequest{ClientId: "c"}), wire.CodeUnsupportedVersion},
		{"versions crossed", hello(&wire.HelloRequest{VersionMin: 2, VersionMax: 1, ClientId: "c"}), wire.CodeUnsupportedVersion},
		{"no client id", hello(&wire.HelloRequest{VersionMin: 1, VersionMax: 1}), wire.CodeInvalid},
		{"client id with blank", hello(&wire.HelloRequest{VersionMin: 1, VersionMax: 1, ClientId: "a b"}), wire.CodeInvalid},
		{"client id too long", hello(&wire.HelloRequest{VersionMin: 1, VersionMax: 1, ClientId: strings.Repeat("c", 256)}), wire.CodeInvalid},
		{"app with dot", hello(&wire.HelloRequest{VersionMin: 1, VersionMax: 1, ClientId: "c", App: "a.b"}), wire.CodeInvalid},
		{"hello too large", hello(&wire.HelloRequest{VersionMin: 1, VersionMax: 1, ClientId: strings.Repeat("c", 5000)}), wire.CodeTooLarge},
		{"no protobuf", func(c *wire.Conn) error {
			_, err := c.Call(context.Background(), wire.CommandHello, []byte{0xff}, nil)
			return err
		}, wire.CodeMalformed},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn := serve(t, dialRaw(t, l))
			wantCode(t, c.call(conn), c.code)
			<-conn.Closed()
		})
	}
}

// TestBadBytes sends what is not the protocol, before and after a hello. Each is answered with an error frame where a
// frame could be read, and closed; a client beside them works on, and nothing is left behind.
func TestBadBytes(t *testing.T) {
	l := start(t, &fakeBroker{}, wire.HandlerOptions{}, Options{})
	good := dial(t, l, "good")
	le := binary.LittleEndian
	frame := wire.AppendFrame(nil, wire.Frame{Kind: wire.KindRequest, Command: wire.CommandPing, Request: 9, Header: []byte{}})
	spoil := func(f func(b []byte)) []byte {
		b := bytes.Clone(frame)
		f(b)
		return b
	}
	r := newRand(t)
	noise := make([]byte, 3000)
	for i := range noise {
		noise[i] = byte(r.Uint32())
	}
	noise[3] = 0xff // a length that no jmq client writes
	tlsHello := append([]byte{0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3}, noise[:500]...)
	kind5 := spoil(func(b []byte) { b[5] = 5 })
	for _, c := range []struct {
		name   string
		bytes  []byte
		before wire.Code // the code of the answer without a hello
		after  wire.Code // and with; CodeOK: none
		drops  bool      // the sender stops in the middle
	}{
		{"random bytes", noise, wire.CodeMalformed, wire.CodeMalformed, false},
		{"HTTP", []byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"), wire.CodeMalformed, wire.CodeMalformed, false},
		{"TLS", tlsHello, wire.CodeUnsupportedVersion, wire.CodeUnsupportedVersion, false},
		{"length 0", make([]byte, 30), wire.CodeMalformed, wire.CodeMalformed, false},
		{"length 15", spoil(func(b []byte) { le.PutUint32(b, 15) }), wire.CodeMalformed, wire.CodeMalformed, false},
		{"length 2^31", spoil(func(b []byte) { le.PutUint32(b, 1<<31) }), wire.CodeMalformed, wire.CodeMalformed, false},
		{"length -1", spoil(func(b []byte) { le.PutUint32(b, 1<<32-1) }), wire.CodeMalformed, wire.CodeMalformed, false},
		{"length 2^63", []byte{0, 0, 0, 0, 0, 0, 0, 0x80}, wire.CodeMalformed, wire.CodeMalformed, false},
		{"header longer than frame", spoil(func(b []byte) { le.PutUint32(b[16:], 1) }), wire.CodeMalformed, wire.CodeMalformed, false},
		{"header -1", spoil(func(b []byte) { le.PutUint32(b[16:], 1<<32-1) }), wire.CodeMalformed, wire.CodeMalformed, false},
		{"version 0", spoil(func(b []byte) { b[4] = 0 }), wire.CodeUnsupportedVersion, wire.CodeUnsupportedVersion, false},
		{"version 2", spoil(func(b []byte) { b[4] = 2 }), wire.CodeUnsupportedVersion, wire.CodeUnsupportedVersion, false},
		{"kind 0", spoil(func(b []byte) { b[5] = 0 }), wire.CodeMalformed, wire.CodeMalformed, false},
		{"kind 5", kind5, wire.CodeMalformed, wire.CodeMalformed, false},
		{"push", spoil(func(b []byte) { b[5] = 3 }), wire.CodeMalformed, wire.CodeMalformed, false},
		{"frame cut off", frame[:10], wire.CodeOK, wire.CodeOK, true},
		{"nothing", nil, wire.CodeOK, wire.CodeOK, true},
	} {
		for _, hello := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/hello=%v", c.name, hello), func(t *testing.T) {
				nc := dialRaw(t, l)
				var b []byte
				if hello {
					// Version 1, client id "x".
					b = wire.AppendFrame(b, wire.Frame{Kind: wire.KindRequest, Command: wire.CommandHello, Request: 1, Header: []byte{8, 1, 16, 1, 34, 1, 'x'}})
				}
				if _, err := nc.Write(append(b, c.bytes...)); err != nil {
					t.Fatal(err)
				}
				if c.drops {
					nc.(*net.TCPConn).CloseWrite()
				}
				nc.SetReadDeadline(time.Now().Add(10 * time.Second))
				got, err := io.ReadAll(nc)
				if err != nil {
					t.Fatalf("not closed in order: %v", err)
				}
				want := c.before
				if hello {
					f, size, e := wire.ParseFrame(got, wire.HelloBytesMax)
					if e != nil || f.Kind != wire.KindResponse {
						t.Fatalf("hello answered with %+v %v", f, e)
					}
					got = got[size:]
					want = c.after
				}
				if want == wire.CodeOK {
					if len(got) != 0 {
						t.Fatalf("answered with %q", got)
					}
					return
				}
				f, size, e := wire.ParseFrame(got, wire.HelloBytesMax)
				if e != nil || size != len(got) || f.Kind != wire.KindError {
					t.Fatalf("answered with %q", got)
				}
				wantCode(t, wire.ParseError(f.Header), want)
				if err := produce(good); err != nil {
					t.Fatalf("the client beside it: %v", err)
				}
			})
		}
	}
	good.Close(nil)
}

// TestLargeFrames shows the largest request, and that one larger is refused without ending the connection, before it was
// read whole.
func TestLargeFrames(t *testing.T) {
	l := start(t, &fakeBroker{}, wire.HandlerOptions{}, Options{})
	c := dial(t, l, "large")
	header := produceHeader("orders")
	if _, err := c.Call(context.Background(), wire.CommandProduce, header, make([]byte, wire.FrameBytesMax-20-len(header))); err != nil {
		t.Fatal(err)
	}
	nc := dialRaw(t, l)
	b := wire.AppendFrame(nil, wire.Frame{Kind: wire.KindRequest, Command: wire.CommandHello, Request: 1, Header: []byte{8, 1, 16, 1, 34, 1, 'x'}})
	b = wire.AppendFrame(b, wire.Frame{Kind: wire.KindRequest, Command: wire.CommandProduce, Request: 2, Header: header, Payload: make([]byte, wire.FrameBytesMax-20-len(header)+1)})
	last := len(b)
	b = wire.AppendFrame(b, wire.Frame{Kind: wire.KindRequest, Command: wire.CommandProduce, Request: 3, Header: header})
	read := func() wire.Frame {
		t.Helper()
		var head [20]byte
		if _, err := io.ReadFull(nc, head[:]); err != nil {
			t.Fatal(err)
		}
		_, size, _ := wire.ParseFrame(head[:], wire.FrameBytesMax)
		rest := make([]byte, size-20)
		if _, err := io.ReadFull(nc, rest); err != nil {
			t.Fatal(err)
		}
		f, _, _ := wire.ParseFrame(append(head[:], rest...), wire.FrameBytesMax)
		return f
	}
	if _, err := nc.Write(b[:last-1000]); err != nil {
		t.Fatal(err)
	}
	f := read()
	if f.Request != 1 || f.Kind != wire.KindResponse {
		t.Fatalf("hello: %+v", f)
	}
	f = read()
	if f.Request != 2 || f.Kind != wire.KindError {
		t.Fatalf("too large: %+v", f)
	}
	wantCode(t, wire.ParseError(f.Header), wire.CodeTooLarge)
	if _, err := nc.Write(b[last-1000:]); err != nil {
		t.Fatal(err)
	}
	if f := read(); f.Request != 3 || f.Kind != wire.KindResponse {
		t.Fatalf("after it: %+v", f)
	}
}

// TestHelloTimeout shows that a connection that says nothing, or half a hello in drops, is told so after 4 s, and closed.
func TestHelloTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pl := newPipeListener()
		start(t, &fakeBroker{}, wire.HandlerOptions{}, Options{Listener: pl})
		begin := time.Now()
		silent, slow := pl.dial(), pl.dial()
		hello := wire.AppendFrame(nil, wire.Frame{Kind: wire.KindRequest, Command: wire.CommandHello, Request: 1, Header: make([]byte, 100)})
		var drops sync.WaitGroup
		defer drops.Wait()
		drops.Go(func() {
			for _, b := range hello {
				if _, err := slow.Write([]byte{b}); err != nil {
					break
				}
				time.Sleep(time.Second)
			}
		})
		type end struct {
			b    []byte
			err  error
			took time.Duration
		}
		ends := make(chan end, 2)
		for _, nc := range []net.Conn{silent, slow} {
			go func() { // both must read at once: a pipe's writer waits for its reader
				b, err := io.ReadAll(nc)
				ends <- end{b, err, time.Since(begin)}
			}()
		}
		for range 2 {
			e := <-ends
			f, _, _ := wire.ParseFrame(e.b, wire.HelloBytesMax)
			if e.err != nil || e.took != 4*time.Second || f.Kind != wire.KindError || wire.ParseError(f.Header).Code != wire.CodeHelloFirst {
				t.Errorf("closed after %v: %q %v", e.took, e.b, e.err)
			}
		}
		silent.Close()
		slow.Close()
	})
}

// TestSilence shows that a client that pings stays, one that is silent for three keep-alives goes, and that a client sees
// a silent broker the same way.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pl := newPipeListener()
		l := start(t, &fakeBroker{}, wire.HandlerOptions{}, Options{Listener: pl})
		lively, mute := serve(t, pl.dial()), serve(t, pl.dial())
		for i, c := range []*wire.Conn{lively, mute} {
			r, err := c.Hello(context.Background(), &wire.HelloRequest{ClientId: fmt.Sprint(i)})
			if err != nil {
				t.Fatal(err)
			}
			if c == lively {
				c.KeepAlive(time.Duration(r.KeepaliveMs) * time.Millisecond)
			}
		}
		begin := time.Now()
		<-mute.Closed()
		if took := time.Since(begin); took < 30*time.Second || took > 40*time.Second {
			t.Errorf("closed after %v", took)
		}
		time.Sleep(5 * time.Minute)
		if err := lively.Err(); err != nil {
			t.Error(err)
		}
		if m := l.Metrics(); m.Silent != 1 || m.Connections != 1 {
			t.Errorf("metrics: %+v", m)
		}

		nc, broker := net.Pipe()
		go io.Copy(io.Discard, broker)
		c := serve(t, nc)
		c.KeepAlive(10 * time.Second)
		begin = time.Now()
		<-c.Closed()
		if took := time.Since(begin); took < 30*time.Second || took > 40*time.Second || wire.CodeOf(c.Err()) != wire.CodeDisconnected {
			t.Errorf("client closed after %v: %v", took, c.Err())
		}
		broker.Close()
	})
}

// TestSilenceWhileBusy shows that a client is not blamed for silence while the broker works on its request and so does not
// read.
func TestSilenceWhileBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pl := newPipeListener()
		b := &fakeBroker{produce: func(_ context.Context, _ *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) {
			time.Sleep(time.Minute)
			done(&wire.ProduceResponse{}, nil)
		}}
		start(t, b, wire.HandlerOptions{}, Options{Listener: pl})
		c := serve(t, pl.dial())
		if _, err := c.Hello(context.Background(), &wire.HelloRequest{ClientId: "c"}); err != nil {
			t.Fatal(err)
		}
		if err := produce(c); err != nil {
			t.Error(err)
		}
	})
}

// TestConnectionsMax shows that one connection too many is told so, also through Hello, and that there is room again
// afterwards.
func TestConnectionsMax(t *testing.T) {
	l := start(t, &fakeBroker{}, wire.HandlerOptions{}, Options{ConnectionsMax: 2})
	first := dial(t, l, "1")
	dial(t, l, "2")
	c := serve(t, dialRaw(t, l))
	_, err := c.Hello(context.Background(), &wire.HelloRequest{ClientId: "3"})
	wantCode(t, err, wire.CodeTooMany)
	if m := l.Metrics(); m.Refused != 1 || m.Accepted != 3 || m.Errors[wire.CodeTooMany] != 1 {
		t.Fatalf("metrics: %+v", m)
	}
	first.Close(nil)
	for len(l.Sessions()) > 1 {
		runtime.Gosched()
	}
	dial(t, l, "4")
}

// TestLoopbackOnly shows which addresses are refused, with one line.
func TestLoopbackOnly(t *testing.T) {
	for _, addr := range []string{"0.0.0.0:0", ":0", "[::]:0", "192.0.2.1:0"} {
		_, err := Listen(addr)
		if e := (*NotLoopbackError)(nil); !errors.As(err, &e) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", addr, err)
		}
	}
	open, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if _, err := New(Options{Listener: open, Handler: wire.NewHandler(wire.Services{}, wire.HandlerOptions{})}); err == nil {
		t.Error("a listener on all addresses was taken")
	}
	if _, err := Listen("127.0.0.1:70000"); err == nil {
		t.Error("port 70000 was taken")
	}
}

// failingListener fails some times before each connection, as when no descriptor is left.
type failingListener struct {
	net.Listener
	fails atomic.Int64
}

func (l *failingListener) Accept() (net.Conn, error) {
	if l.fails.Add(-1) >= 0 {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: syscall.EMFILE}
	}
	return l.Listener.Accept()
}

// TestAcceptErrors shows that accepting goes on after errors.
func TestAcceptErrors(t *testing.T) {
	nl, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	fl := &failingListener{Listener: nl}
	fl.fails.Store(4)
	var log bytes.Buffer
	l := start(t, &fakeBroker{}, wire.HandlerOptions{}, Options{Listener: fl, Logger: newLogger(&log)})
	if err := produce(dial(t, l, "c")); err != nil {
		t.Fatal(err)
	}
	if n := l.Metrics().AcceptErrors; n != 4 {
		t.Fatalf("%d errors counted", n)
	}
	if got := strings.Count(log.String(), "\n"); got != 2 {
		t.Fatalf("logged %d lines:\n%s", got, log.String())
	}
}

func (b *fakeBroker) Extend(context.Context, *wire.ExtendRequest) (*wire.ExtendResponse, error) {
	return nil, wire.Errorf(wire.CodeUnknownCommand, "extend")
}
