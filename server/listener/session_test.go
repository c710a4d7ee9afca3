package listener

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/jmqio/jmq/server/servertest/mutate"
	"github.com/jmqio/jmq/wire"
)

func newLogger(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

// TestPanic shows that a panic ends its request only: unknown where something may have been stored, internal elsewhere; also
// when the request is answered later all the same.
func TestPanic(t *testing.T) {
	var late atomic.Pointer[func(*wire.ProduceResponse, error)]
	var calls atomic.Int64
	b := &fakeBroker{
		produce: func(_ context.Context, r *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) {
			switch calls.Add(1) {
			case 1:
				late.Store(&done)
				panic("produce")
			case 2:
				(*late.Load())(&wire.ProduceResponse{FirstIndex: 1000}, nil)
				done(&wire.ProduceResponse{FirstIndex: 2}, nil)
				done(&wire.ProduceResponse{FirstIndex: 3}, nil)
			case 3:
				done(&wire.ProduceResponse{FirstIndex: 4}, nil)
				panic("after the answer")
			default:
				done(&wire.ProduceResponse{FirstIndex: 5}, nil)
			}
		},
		route: func(context.Context, *wire.RouteRequest) (*wire.RouteResponse, error) { panic("route") },
	}
	l := start(t, b, wire.HandlerOptions{}, Options{})
	c := dial(t, l, "c")
	call := func() (uint64, error) {
		f, err := c.Call(context.Background(), wire.CommandProduce, produceHeader("orders"), nil)
		var r wire.ProduceResponse
		wire.ParseProduceResponse(&r, f.Header)
		return r.FirstIndex, err
	}
	_, err := call()
	wantCode(t, err, wire.CodeUnknown)
	for i, want := range []uint64{2, 4, 5} {
		if got, err := call(); err != nil || got != want {
			t.Fatalf("call %d: index %d, %v; want %d", i, got, err, want)
		}
	}
	wantCode(t, c.CallMessage(context.Background(), wire.CommandRoute, &wire.RouteRequest{Topic: "t"}, &wire.RouteResponse{}), wire.CodeInternal)
	if _, err := call(); err != nil {
		t.Fatal(err)
	}
	if m := l.Metrics(); m.Panics != 3 || m.Twice != 2 || m.InFlight != 0 {
		t.Fatalf("metrics: %+v", m)
	}
}

// TestPanicInHook shows that a hook that panics costs its connection, not the process.
func TestPanicInHook(t *testing.T) {
	l := start(t, &fakeBroker{}, wire.HandlerOptions{OnOpen: func(p *wire.Peer) error {
		if p.ClientID == "bad" {
			panic("hook")
		}
		return nil
	}}, Options{})
	good := dial(t, l, "good")
	bad := serve(t, dialRaw(t, l))
	if _, err := bad.Hello(context.Background(), &wire.HelloRequest{ClientId: "bad"}); err == nil {
		t.Fatal("hello was answered")
	}
	if err := produce(good); err != nil {
		t.Fatal(err)
	}
}

// TestNoAnswerStuck answers requests from every kind of goroutine, in random order: the reader, a committer that calls
// Flush after some, timers that flush nothing. Every answer must arrive though only a few requests are in flight on each
// connection, and no later one comes before they are answered that could carry a stuck answer along.
func TestNoAnswerStuck(t *testing.T) {
	r := newRand(t)
	var mu sync.Mutex
	random := func(n int) int { mu.Lock(); defer mu.Unlock(); return r.IntN(n) }
	commits := make(chan func(), 1024)
	var flusher Flusher
	var committer sync.WaitGroup
	committer.Go(func() {
		for done := range commits {
			done()
			for range random(4) {
				select {
				case done, ok := <-commits:
					if ok {
						done()
					}
				default:
				}
			}
			flusher.Flush()
		}
	})
	b := &fakeBroker{produce: func(_ context.Context, _ *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) {
		answer := func() { done(&wire.ProduceResponse{}, nil) }
		switch random(4) {
		case 0:
			answer()
		case 1:
			commits <- answer
		case 2:
			time.AfterFunc(time.Duration(random(1000))*time.Microsecond, answer)
		case 3:
			go answer()
		}
	}}
	l := start(t, b, wire.HandlerOptions{}, Options{Flusher: &flusher})
	var clients sync.WaitGroup
	for i := range 16 {
		c := dial(t, l, fmt.Sprint("c", i))
		clients.Go(func() {
			for j := range 100 {
				burst := 1 + random(6)
				answers := make(chan error, burst)
				for range burst {
					if _, err := c.Start(wire.CommandProduce, produceHeader("orders"), nil, func(_ wire.Frame, err error) { answers <- err }); err != nil {
						t.Error(err)
						return
					}
				}
				c.Flush()
				late := time.After(10 * time.Second)
				for k := range burst {
					select {
					case err := <-answers:
						if err != nil {
							t.Error(err)
							return
						}
					case <-late:
						t.Errorf("client %d burst %d: %d of %d answers are stuck", i, j, burst-k, burst)
						return
					}
				}
			}
		})
	}
	clients.Wait()
	close(commits)
	committer.Wait()
}

// TestMarkWhileFlushing queues an answer just as a Flush of its session ends: it must be flushed again.
func TestMarkWhileFlushing(t *testing.T) {
	var f Flusher
	defer f.stop()
	again := make(chan struct{})
	flushes := 0
	m := new(marked)
	m.flush = func() {
		if flushes++; flushes == 1 {
			f.mark(m)
		} else {
			close(again)
		}
	}
	f.mark(m)
	f.Flush()
	select {
	case <-again:
	case <-time.After(10 * time.Second):
		t.Fatal("the second answer is stuck")
	}
}

// TestAnswerOutsideCommit shows how soon an answer that nobody flushes is written.
func TestAnswerOutsideCommit(t *testing.T) {
	answers := make(chan func(), 1)
	b := &fakeBroker{fetch: func(_ context.Context, _ *wire.FetchRequest, done func(*wire.FetchResponse, error)) {
		answers <- func() { done(&wire.FetchResponse{}, nil) }
	}}
	l := start(t, b, wire.HandlerOptions{}, Options{})
	c := dial(t, l, "c")
	best := time.Hour
	for range 20 {
		got := make(chan struct{})
		if _, err := c.Start(wire.CommandFetch, wire.AppendFetchRequest(nil, &wire.FetchRequest{Topic: "t", Group: "g"}), nil, func(wire.Frame, error) { close(got) }); err != nil {
			t.Fatal(err)
		}
		c.Flush()
		answer := <-answers
		begin := time.Now()
		answer()
		<-got
		best = min(best, time.Since(begin))
	}
	if best > 20*time.Millisecond {
		t.Fatalf("the quickest of 20 took %v", best)
	}
}

// TestStalledClient shows that a client that does not read holds up neither the committer nor another client, and that no
// more is fetched for it.
func TestStalledClient(t *testing.T) {
	answer := make([]byte, 1<<20)
	var fetches atomic.Int64
	b := &fakeBroker{fetch: func(_ context.Context, _ *wire.FetchRequest, done func(*wire.FetchResponse, error)) {
		fetches.Add(1)
		done(&wire.FetchResponse{Lease: 1, Batches: answer}, nil)
	}}
	l := start(t, b, wire.HandlerOptions{QueueBytesMax: 16 << 20}, Options{})
	good := dial(t, l, "good")
	stalled := dialRaw(t, l)
	stalled.(*net.TCPConn).SetReadBuffer(4 << 10)
	hello := wire.AppendFrame(nil, wire.Frame{Kind: wire.KindRequest, Command: wire.CommandHello, Request: 1, Header: []byte{8, 1, 16, 1, 34, 1, 'x'}})
	stalled.Write(hello)
	for i := range 200 {
		stalled.Write(wire.AppendFrame(nil, wire.Frame{Kind: wire.KindRequest, Command: wire.CommandFetch, Request: uint64(i + 2), Header: wire.AppendFetchRequest(nil, &wire.FetchRequest{Topic: "t", Group: "g"})}))
	}
	// A quarter of the queue's bound stops the fetches: after 4 answers and what the sockets take, far from 200.
	for fetches.Load() < 4 {
		runtime.Gosched()
	}
	for range 300 {
		if err := produce(good); err != nil {
			t.Fatal(err)
		}
		l.o.Flusher.Flush()
		// A fetch is begun with at most a quarter waiting, and adds one answer.
		if m := l.Metrics(); m.QueueBytes > 4<<20+1<<20+1000 || m.Connections != 2 {
			t.Fatalf("metrics: %+v", m)
		}
	}
	if n := fetches.Load(); n > 40 {
		t.Fatalf("%d fetches for a client that does not read", n)
	}
}

// TestBuffersHalfFrames opens many connections that send a part of a large frame each: what they hold stays within the
// budget, those that it does not reach are answered busy, others are served meanwhile, and after their end it is free.
func TestBuffersHalfFrames(t *testing.T) {
	const budget = 16 << 20
	l := start(t, &fakeBroker{}, wire.HandlerOptions{}, Options{BufferBytesMax: budget})
	good := dial(t, l, "good")
	check := func() wire.BuffersMetrics {
		m := l.Metrics().Buffers
		if m.Bytes > budget {
			t.Fatalf("%d bytes are lent of %d", m.Bytes, budget)
		}
		return m
	}
	hello := wire.AppendFrame(nil, wire.Frame{Kind: wire.KindRequest, Command: wire.CommandHello, Request: 1, Header: []byte{8, 1, 16, 1, 34, 1, 'x'}})
	frame := wire.AppendFrame(nil, wire.Frame{Kind: wire.KindRequest, Command: wire.CommandProduce, Request: 2, Header: produceHeader("orders"), Payload: make([]byte, 4<<20)})
	const conns = 40
	var busy atomic.Int64
	var all []net.Conn
	var readers sync.WaitGroup
	for range conns {
		nc := dialRaw(t, l)
		all = append(all, nc)
		readers.Go(func() {
			c := wire.NewConn(readOnly{nc}, wire.ConnOptions{Handler: func(*wire.Conn, wire.Frame) {}})
			if _, err := c.Start(wire.CommandHello, nil, nil, func(wire.Frame, error) {}); err != nil {
				t.Error(err)
			}
			if _, err := c.Start(wire.CommandProduce, nil, nil, func(_ wire.Frame, err error) {
				if wire.CodeOf(err) == wire.CodeBusy {
					busy.Add(1)
				}
			}); err != nil {
				t.Error(err)
			}
			c.Serve()
		})
		if _, err := nc.Write(append(hello[:len(hello):len(hello)], frame[:1200<<10]...)); err != nil {
			t.Fatal(err)
		}
		check()
		if err := produce(good); err != nil {
			t.Fatal(err)
		}
	}
	// 2 MiB each, and for a moment as much again while one grows: 7 or 8 have their part, all others an answer.
	for begin := time.Now(); busy.Load() < conns-8; runtime.Gosched() {
		if check(); time.Since(begin) > 10*time.Second {
			t.Fatalf("%d of %d were answered busy", busy.Load(), conns)
		}
	}
	if m := check(); m.FramesRefused < conns-8 || m.Bytes < budget/2 {
		t.Fatalf("metrics: %+v", m)
	}
	if err := produce(good); err != nil {
		t.Fatal(err)
	}
	for _, nc := range all {
		nc.Close()
	}
	readers.Wait()
	wantGiven(t, l)
	if _, err := good.Call(context.Background(), wire.CommandProduce, produceHeader("orders"), make([]byte, 4<<20)); err != nil {
		t.Fatalf("a large request after their end: %v", err)
	}
}

// readOnly is a connection to which someone else writes.
type readOnly struct{ net.Conn }

func (readOnly) Write(b []byte) (int, error) { return len(b), nil }

// TestBuffersUnreadAnswers has many clients ask for large answers and not read them: what waits stays within the budget,
// those that need more are ended, and while it is nearly used up others get small answers.
func TestBuffersUnreadAnswers(t *testing.T) {
	const budget = 16 << 20
	answer := make([]byte, 4<<20)
	b := &fakeBroker{fetch: func(_ context.Context, r *wire.FetchRequest, done func(*wire.FetchResponse, error)) {
		done(&wire.FetchResponse{Lease: 1, Batches: answer[:r.BytesMax]}, nil)
	}}
	l := start(t, b, wire.HandlerOptions{}, Options{BufferBytesMax: budget})
	good := dial(t, l, "good")
	hello := wire.AppendFrame(nil, wire.Frame{Kind: wire.KindRequest, Command: wire.CommandHello, Request: 1, Header: []byte{8, 1, 16, 1, 34, 1, 'x'}})
	fetch := wire.AppendFetchRequest(nil, &wire.FetchRequest{Topic: "t", Group: "g", BytesMax: 1500 << 10})
	for i := range 20 {
		nc := dialRaw(t, l)
		nc.(*net.TCPConn).SetReadBuffer(4 << 10)
		requests := hello
		for i := range 200 { // also the small answers are more than the budget
			requests = wire.AppendFrame(requests[:len(requests):len(requests)], wire.Frame{Kind: wire.KindRequest, Command: wire.CommandFetch, Request: uint64(i + 2), Header: fetch})
		}
		if _, err := nc.Write(requests); err != nil {
			t.Fatal(err)
		}
		if m := l.Metrics().Buffers; m.Bytes > budget {
			t.Fatalf("%d bytes are lent of %d", m.Bytes, budget)
		}
		f, err := good.Call(context.Background(), wire.CommandPing, nil, nil)
		if err != nil {
			t.Fatalf("%d: %v, %v", i, f, err)
		}
	}
	for begin := time.Now(); l.Metrics().Buffers.QueuesRefused == 0; runtime.Gosched() {
		if time.Since(begin) > 10*time.Second {
			t.Fatalf("nobody was ended: %+v", l.Metrics())
		}
	}
	for m := l.Metrics(); m.Errors[wire.CodeBusy] == 0; m = l.Metrics() {
		if m.Buffers.Bytes > budget {
			t.Fatalf("%d bytes are lent of %d", m.Buffers.Bytes, budget)
		}
		runtime.Gosched()
	}
	if err := produce(good); err != nil {
		t.Fatal(err)
	}
}

// TestBuffersTightFetch shows that fetches go on, with small answers, while others hold nearly all of the memory.
func TestBuffersTightFetch(t *testing.T) {
	answer := make([]byte, 4<<20)
	b := &fakeBroker{fetch: func(_ context.Context, r *wire.FetchRequest, done func(*wire.FetchResponse, error)) {
		done(&wire.FetchResponse{Lease: 1, Batches: answer[:r.BytesMax]}, nil)
	}}
	l := start(t, b, wire.HandlerOptions{}, Options{BufferBytesMax: 5 << 20})
	good := dial(t, l, "good")
	fetch := func() int {
		t.Helper()
		f, err := good.Call(context.Background(), wire.CommandFetch, wire.AppendFetchRequest(nil, &wire.FetchRequest{Topic: "t", Group: "g", BytesMax: 1 << 20}), nil)
		if err != nil {
			t.Fatal(err)
		}
		return len(f.Payload)
	}
	if got := fetch(); got != 1<<20 {
		t.Fatalf("fetched %d bytes, want %d", got, 1<<20)
	}
	hello := wire.AppendFrame(nil, wire.Frame{Kind: wire.KindRequest, Command: wire.CommandHello, Request: 1, Header: []byte{8, 1, 16, 1, 34, 1, 'x'}})
	frame := wire.AppendFrame(hello, wire.Frame{Kind: wire.KindRequest, Command: wire.CommandProduce, Request: 2, Header: produceHeader("orders"), Payload: make([]byte, 4<<20)})
	for i := range 2 { // 2 MiB each
		if _, err := dialRaw(t, l).Write(frame[:1200<<10]); err != nil {
			t.Fatal(err)
		}
		for l.Metrics().Buffers.Bytes != int64(i+1)*2<<20 {
			runtime.Gosched()
		}
	}
	if got := fetch(); got != 32<<10 {
		t.Fatalf("fetched %d bytes, want %d", got, 32<<10)
	}
}

// TestInFlightBound shows that a session is read no further than its bounds, and goes on when answers went out.
func TestInFlightBound(t *testing.T) {
	var mu sync.Mutex
	var held []func(*wire.ProduceResponse, error)
	arrived := make(chan struct{}, 100)
	b := &fakeBroker{produce: func(_ context.Context, _ *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) {
		mu.Lock()
		held = append(held, done)
		mu.Unlock()
		arrived <- struct{}{}
	}}
	for _, c := range []struct {
		name    string
		o       wire.HandlerOptions
		payload int
	}{
		{"requests", wire.HandlerOptions{RequestsMax: 3}, 10},
		{"bytes", wire.HandlerOptions{RequestBytesMax: 3500}, 1000},
	} {
		t.Run(c.name, func(t *testing.T) {
			held = nil
			l := start(t, b, c.o, Options{})
			conn := dial(t, l, "c")
			beside := dial(t, l, "beside")
			answers := make(chan error, 10)
			for range 10 {
				if _, err := conn.Start(wire.CommandProduce, produceHeader("orders"), make([]byte, c.payload), func(_ wire.Frame, err error) { answers <- err }); err != nil {
					t.Fatal(err)
				}
			}
			conn.Flush()
			for range 3 {
				<-arrived
			}
			for range 50 { // the other session is served meanwhile
				if err := beside.CallMessage(context.Background(), wire.CommandPing, &wire.PingRequest{}, &wire.PingResponse{}); err != nil {
					t.Fatal(err)
				}
			}
			if n := len(arrived); n != 0 {
				t.Fatalf("%d more than 3 requests are in flight", n)
			}
			for i := range 10 {
				mu.Lock()
				done := held[i]
				mu.Unlock()
				done(&wire.ProduceResponse{}, nil)
				if err := <-answers; err != nil {
					t.Fatal(err)
				}
				if i+3 < 10 {
					<-arrived
				}
			}
		})
	}
}

// committingBroker answers what was produced in Commit only, as a store does that starts no commit by itself.
type committingBroker struct {
	*fakeBroker
	mu      sync.Mutex
	queued  []func(*wire.ProduceResponse, error)
	commits int
	batched bool // every peer said so
	asked   chan struct{}
}

func (b *committingBroker) Commit() {
	b.mu.Lock()
	queued := b.queued
	b.queued = nil
	b.commits++
	b.mu.Unlock()
	for _, done := range queued {
		done(&wire.ProduceResponse{}, nil)
	}
	b.asked <- struct{}{}
}

// TestCommit shows that what a session stored is committed once for all frames of a read, and also when the reader
// waits for room among its requests, and when the connection ends.
func TestCommit(t *testing.T) {
	b := &committingBroker{fakeBroker: new(fakeBroker), batched: true, asked: make(chan struct{}, 100)}
	b.produce = func(ctx context.Context, _ *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.queued = append(b.queued, done)
		b.batched = b.batched && wire.PeerFrom(ctx).Batched
	}
	l := start(t, b, wire.HandlerOptions{RequestsMax: 4}, Options{})
	conn := dial(t, l, "c")
	send := func(n int) {
		answers := make(chan error, n)
		for range n {
			if _, err := conn.Start(wire.CommandProduce, produceHeader("orders"), []byte("x"), func(_ wire.Frame, err error) { answers <- err }); err != nil {
				t.Fatal(err)
			}
		}
		conn.Flush()
		for range n {
			if err := <-answers; err != nil {
				t.Fatal(err)
			}
		}
	}
	send(3)
	if b.commits != 1 || !b.batched {
		t.Fatalf("3 frames of one read were committed %d times, batched %v; want once, batched", b.commits, b.batched)
	}
	send(10) // more than may be in flight: it hangs unless the reader commits before it waits
	for len(b.asked) > 0 {
		<-b.asked
	}

	// A frame and then half of one: the read ends with the connection.
	raw := dialRaw(t, l)
	end := serve(t, raw)
	if _, err := end.Hello(context.Background(), &wire.HelloRequest{ClientId: "ends"}); err != nil {
		t.Fatal(err)
	}
	if _, err := end.Start(wire.CommandProduce, produceHeader("orders"), []byte("x"), func(wire.Frame, error) {}); err != nil {
		t.Fatal(err)
	}
	end.Flush()
	end.Close(nil)
	<-b.asked
}

// TestColdBound shows that commands that block take a bounded number of goroutines, and hold up neither produce nor ping.
func TestColdBound(t *testing.T) {
	var running, most atomic.Int64
	release := make(chan struct{})
	b := &fakeBroker{route: func(ctx context.Context, _ *wire.RouteRequest) (*wire.RouteResponse, error) {
		n := running.Add(1)
		defer running.Add(-1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		select {
		case <-release:
			return &wire.RouteResponse{}, nil
		case <-ctx.Done():
			return nil, wire.Errorf(wire.CodeStopping, "%v", ctx.Err())
		}
	}}
	l := start(t, b, wire.HandlerOptions{ColdMax: 3}, Options{})
	c := dial(t, l, "c")
	var calls sync.WaitGroup
	for range 20 {
		calls.Go(func() {
			if err := c.CallMessage(context.Background(), wire.CommandRoute, &wire.RouteRequest{Topic: "t"}, &wire.RouteResponse{}); err != nil {
				t.Error(err)
			}
		})
	}
	for running.Load() < 3 {
		runtime.Gosched()
	}
	for range 20 {
		if err := produce(c); err != nil {
			t.Fatal(err)
		}
	}
	close(release)
	calls.Wait()
	if got := most.Load(); got != 3 {
		t.Fatalf("%d at the same time, want 3", got)
	}
	// A session whose cold command hangs ends all the same, through its context.
	release = nil
	hung := dial(t, l, "hung")
	if _, err := hung.Start(wire.CommandRoute, []byte{10, 1, 't'}, nil, func(wire.Frame, error) {}); err != nil {
		t.Fatal(err)
	}
	hung.Flush()
	for running.Load() == 0 {
		runtime.Gosched()
	}
	hung.Close(nil)
	for running.Load() > 0 {
		runtime.Gosched()
	}
}

// TestDrain shows an orderly end: what runs is answered, a parked fetch is ended, a new request is told to go elsewhere,
// and only then the connection ends, with the reason.
func TestDrain(t *testing.T) {
	held := make(chan func(*wire.ProduceResponse, error), 1)
	parked := make(chan struct{}, 1)
	b := &fakeBroker{
		produce: func(_ context.Context, _ *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) { held <- done },
		fetch: func(ctx context.Context, _ *wire.FetchRequest, done func(*wire.FetchResponse, error)) {
			context.AfterFunc(ctx, func() { done(&wire.FetchResponse{}, nil) })
			parked <- struct{}{}
		},
	}
	nl, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l, err := New(Options{Listener: nl, Handler: wire.NewHandler(wire.Services{Broker: b, Admin: b}, wire.HandlerOptions{Broker: "b1"})})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- l.Serve() }()
	c := dial(t, l, "c")
	results := make(chan error, 2)
	start := func(command wire.Command, header []byte) {
		t.Helper()
		if _, err := c.Start(command, header, nil, func(_ wire.Frame, err error) { results <- err }); err != nil {
			t.Fatal(err)
		}
		c.Flush()
	}
	start(wire.CommandProduce, produceHeader("orders"))
	start(wire.CommandFetch, wire.AppendFetchRequest(nil, &wire.FetchRequest{Topic: "t", Group: "g"}))
	done := <-held
	<-parked
	closed := make(chan error, 1)
	go func() { closed <- l.Close(context.Background()) }()
	for { // until draining has begun
		err := c.CallMessage(context.Background(), wire.CommandRoute, &wire.RouteRequest{Topic: "t"}, &wire.RouteResponse{})
		if err != nil {
			wantCode(t, err, wire.CodeStopping)
			break
		}
	}
	if _, err := c.Call(context.Background(), wire.CommandAck, wire.AppendAckRequest(nil, &wire.AckRequest{Topic: "t", Group: "g"}), nil); err != nil {
		t.Fatalf("ack while draining: %v", err)
	}
	select {
	case err := <-results:
		t.Fatalf("answered while the produce runs: %v", err)
	default:
	}
	done(&wire.ProduceResponse{}, nil)
	for range 2 {
		if err := <-results; err != nil {
			t.Fatal(err)
		}
	}
	<-c.Closed()
	wantCode(t, c.Err(), wire.CodeStopping)
	if err := errors.Join(<-closed, <-served); err != nil {
		t.Fatal(err)
	}
	if _, err := net.Dial("tcp", l.Addr().String()); err == nil {
		t.Fatal("still listening")
	}
}

// TestCloseBounded shows that Close ends with its context though a request is never answered.
func TestCloseBounded(t *testing.T) {
	b := &fakeBroker{produce: func(context.Context, *wire.ProduceRequest, func(*wire.ProduceResponse, error)) {}}
	nl, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l, err := New(Options{Listener: nl, Handler: wire.NewHandler(wire.Services{Broker: b, Admin: b}, wire.HandlerOptions{})})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- l.Serve() }()
	c := dial(t, l, "c")
	result := make(chan error, 1)
	if _, err := c.Start(wire.CommandProduce, produceHeader("orders"), nil, func(_ wire.Frame, err error) { result <- err }); err != nil {
		t.Fatal(err)
	}
	if err := c.Written(context.Background()); err != nil {
		t.Fatal(err)
	}
	for l.Metrics().InFlight == 0 {
		runtime.Gosched()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	if err := errors.Join(l.Close(ctx), <-served); err != nil {
		t.Fatal(err)
	}
	wantCode(t, <-result, wire.CodeUnknown)
}

// FuzzSession feeds bytes to a session after its hello; whatever they are, another session works on.
func FuzzSession(f *testing.F) {
	ping := wire.AppendFrame(nil, wire.Frame{Kind: wire.KindRequest, Command: wire.CommandPing, Request: 1})
	seeds := [][]byte{
		ping,
		wire.AppendFrame(ping, wire.Frame{Kind: wire.KindRequest, Command: wire.CommandProduce, Request: 2, Header: produceHeader("orders"), Payload: []byte("x")}),
		wire.AppendFrame(nil, wire.Frame{Kind: wire.KindRequest, Command: wire.CommandRoute, Request: 3, Header: []byte{10, 1, 't'}}),
		[]byte("GET / HTTP/1.1\r\n\r\n"),
		[]byte(strings.Repeat("\x00", 40)),
	}
	handler := wire.NewHandler(wire.Services{Broker: &fakeBroker{}}, wire.HandlerOptions{})
	hello := wire.AppendFrame(nil, wire.Frame{Kind: wire.KindRequest, Command: wire.CommandHello, Request: 1, Header: []byte{8, 1, 16, 1, 34, 1, 'x'}})
	serve, said := server(), []byte(nil)
	mutate.Fuzz(f, mutate.Decoder{Seeds: seeds, Slowness: 10, Check: func(t testing.TB, b []byte) bool {
		said = append(append(said[:0], hello...), b...)
		_, err := serve(handler, said)
		if n := handler.Panics(); n != 0 {
			t.Fatal("a request panicked")
		}
		return err == io.EOF
	}})
}

// server serves sessions one after the other to a peer that waits for answers before it is gone, but not for ever.
func server() func(h *wire.Handler, said []byte) (*wire.Session, error) {
	conn, buffers := new(mutate.Conn), new(wire.Buffers)
	return func(h *wire.Handler, said []byte) (*wire.Session, error) {
		conn.Say(said, nil)
		s := h.NewSession(conn, wire.SessionOptions{Buffers: buffers})
		conn.Last = func() {
			for range 100 {
				if s.InFlight() == 0 {
					break
				}
				runtime.Gosched()
			}
		}
		return s, s.Serve()
	}
}

// FuzzUnknown throws bytes at a session that has to know who the peer is, before the hello and after it: nothing panics, nobody is
// let in, and no service is called.
func FuzzUnknown(f *testing.F) {
	frame := func(command wire.Command, m proto.Message) []byte {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		return wire.AppendFrame(nil, wire.Frame{Kind: wire.KindRequest, Command: command, Request: 1, Header: b})
	}
	hello := frame(wire.CommandHello, &wire.HelloRequest{VersionMin: 1, VersionMax: 1, ClientId: "x", Credential: "c1"})
	first := frame(wire.CommandAuthenticate, &wire.AuthenticateRequest{Mechanism: wire.MechanismSCRAM, Data: []byte("n,,n=c1,r=abc")})
	last := frame(wire.CommandAuthenticate, &wire.AuthenticateRequest{Mechanism: wire.MechanismSCRAM, Data: []byte("c=biws,r=abc,p=AAAA")})
	f.Add(hello, first, last)
	f.Add(hello, last, first)
	f.Add(first, hello, last)
	f.Add(hello, frame(wire.CommandRoute, &wire.RouteRequest{Topic: "t"}), first)
	f.Add([]byte{22, 3, 1, 2, 0, 1}, hello, first)
	handler := wire.NewHandler(wire.Services{}, wire.HandlerOptions{
		Authenticator: newKeeper(f), OnOpen: func(*wire.Peer) error { panic("let in") },
	})
	serve := server()
	check := func(t testing.TB, said []byte) bool {
		s, err := serve(handler, said)
		if s.Peer() != nil || handler.Panics() != 0 {
			t.Fatalf("let in: %v, %d panics", s.Peer(), handler.Panics())
		}
		return err == io.EOF
	}
	seeds := [][]byte{slices.Concat(hello, first, last), slices.Concat(hello, first), hello, slices.Concat(hello, frame(wire.CommandPing, &wire.PingRequest{}), first)}
	mutate.Run(f, mutate.Decoder{Seeds: seeds, Slowness: 10, Check: check})
	f.Fuzz(func(t *testing.T, a, b, c []byte) {
		check(t, slices.Concat(a, b, c))
		if m := handler.Metrics(); m.Authenticated != 0 {
			t.Fatalf("counted %+v", m)
		}
	})
}

// BenchmarkProduce is round trips of a produce request through a whole session over two loopback connections: the fake
// broker hands each to a committer, which answers all that came and calls Flush.
func BenchmarkProduce(b *testing.B) {
	for _, callers := range []int{1, 8, 64, 256} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			type answer func(*wire.ProduceResponse, error)
			answers := make(chan answer, 1024)
			var flusher Flusher
			broker := &fakeBroker{produce: func(_ context.Context, _ *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) {
				answers <- done
			}}
			stopped := make(chan struct{})
			go func() {
				defer close(stopped)
				r := &wire.ProduceResponse{FirstIndex: 1 << 40, StoredNs: 1 << 60}
				for done := range answers {
					done(r, nil)
					for more := true; more; {
						select {
						case done, ok := <-answers:
							if more = ok; ok {
								done(r, nil)
							}
						default:
							more = false
						}
					}
					flusher.Flush()
				}
			}()
			l := start(b, broker, wire.HandlerOptions{}, Options{Flusher: &flusher})
			conns := [2]*wire.Conn{dial(b, l, "a"), dial(b, l, "b")}
			header, payload := produceHeader("orders"), make([]byte, 1200)
			var left atomic.Int64
			left.Store(int64(b.N))
			var wg sync.WaitGroup
			b.ReportAllocs()
			b.ResetTimer()
			for g := range callers {
				c := conns[g%len(conns)]
				ready := make(chan error, 1)
				done := func(_ wire.Frame, err error) { ready <- err }
				wg.Go(func() {
					for left.Add(-1) >= 0 {
						if _, err := c.Start(wire.CommandProduce, header, payload, done); err != nil {
							b.Error(err)
							return
						}
						c.FlushShared()
						if err := <-ready; err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "trips/s")
			close(answers)
			<-stopped
		})
	}
}
