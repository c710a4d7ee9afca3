package wire

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// pair returns both ends of a TCP connection on loopback, or of a pipe.
func pair(t testing.TB, tcp bool) (client, server net.Conn) {
	t.Helper()
	if !tcp {
		return net.Pipe()
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err = net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return client, server
}

// serve runs c.Serve until the test ends; then nothing of what it lent is missing (unless others have it still, and their
// end shows it).
func serve(t testing.TB, c *Conn) *Conn {
	done := make(chan struct{})
	go func() { c.Serve(); close(done) }()
	shared := c.o.Buffers.BytesMax > 0
	t.Cleanup(func() {
		c.Close(nil)
		<-done
		if !shared {
			wantGiven(t, c.o.Buffers)
		}
	})
	return c
}

// wantGiven waits until all that p lent was given back: a Flush in another goroutine may just be about to.
func wantGiven(t testing.TB, p *Buffers) {
	t.Helper()
	for begin := time.Now(); p.Metrics().Bytes != 0; runtime.Gosched() {
		if time.Since(begin) > 10*time.Second {
			t.Fatalf("%d bytes were lent and not given back", p.Metrics().Bytes)
		}
	}
}

func echo(c *Conn, f Frame) { c.Reply(f.Request, f.Command, f.Header, f.Payload) }

func eachNet(t *testing.T, f func(t *testing.T, tcp bool)) {
	t.Run("tcp", func(t *testing.T) { f(t, true) })
	t.Run("pipe", func(t *testing.T) { f(t, false) })
}

// TestConnCalls sends requests of all sizes from many goroutines at once over one connection and compares the echo.
func TestConnCalls(t *testing.T) {
	eachNet(t, func(t *testing.T, tcp bool) {
		cn, sn := pair(t, tcp)
		client := serve(t, NewConn(cn, ConnOptions{}))
		server := serve(t, NewConn(sn, ConnOptions{Handler: echo, FrameBytesMax: FrameBytesMax}))
		var wg sync.WaitGroup
		seed := newRand(t).Uint64()
		for g := range 16 {
			r := rand.New(rand.NewPCG(seed, uint64(g)))
			wg.Go(func() {
				for i := range 60 {
					n := r.IntN(3000)
					if i%20 == 7 {
						n = r.IntN(1 << 19)
					}
					payload := bytes.Repeat([]byte{byte(g), byte(i)}, n/2)
					header := fmt.Appendf(nil, "header %d %d", g, i)
					f, err := client.Call(context.Background(), CommandProduce, header, payload)
					if err != nil || f.Command != CommandProduce || !bytes.Equal(f.Header, header) || !bytes.Equal(f.Payload, payload) {
						t.Errorf("echo %d %d of %d bytes differs: %d bytes, %v", g, i, n, len(f.Payload), err)
						return
					}
				}
			})
		}
		wg.Wait()
		f, err := client.Call(context.Background(), CommandProduce, nil, make([]byte, FrameBytesMax-frameHeadBytes))
		if err != nil || len(f.Payload) != FrameBytesMax-frameHeadBytes {
			t.Fatalf("largest frame: %d bytes, %v", len(f.Payload), err)
		}
		_, err = client.Call(context.Background(), CommandProduce, nil, make([]byte, FrameBytesMax-frameHeadBytes+1))
		wantCode(t, err, CodeTooLarge)
		for _, c := range []*Conn{client, server} {
			if err := c.Written(context.Background()); err != nil { // a pipe's reader may be ahead of its writer
				t.Fatal(err)
			}
			if s := c.Stats(); s.FramesRead != 16*60+1 || s.FramesWritten != 16*60+1 || s.QueueBytes != 0 || s.Pending != 0 {
				t.Errorf("stats: %+v", s)
			}
		}
	})
}

// TestConnErrors shows that an error frame becomes a *CodeError with all that it carries.
func TestConnErrors(t *testing.T) {
	eachNet(t, func(t *testing.T, tcp bool) {
		cn, sn := pair(t, tcp)
		client := serve(t, NewConn(cn, ConnOptions{}))
		serve(t, NewConn(sn, ConnOptions{Handler: func(c *Conn, f Frame) {
			c.ReplyError(f.Request, f.Command, &CodeError{Code: CodeBusy, Message: "for a moment", RetryAfter: 40 * time.Millisecond})
		}}))
		_, err := client.Call(context.Background(), CommandProduce, nil, nil)
		want := &CodeError{Code: CodeBusy, Message: "for a moment", RetryAfter: 40 * time.Millisecond}
		if e, ok := errors.AsType[*CodeError](err); !ok || !reflect.DeepEqual(e, want) {
			t.Fatalf("got %#v, want %#v", err, want)
		}
	})
}

// TestConnEnds shows what callers learn when the peer goes: unknown for what was sent, disconnected for what was not.
func TestConnEnds(t *testing.T) {
	eachNet(t, func(t *testing.T, tcp bool) {
		cn, sn := pair(t, tcp)
		got := make(chan struct{})
		client := NewConn(cn, ConnOptions{})
		server := NewConn(sn, ConnOptions{Handler: func(c *Conn, f Frame) { close(got) }})
		serve(t, client)
		serve(t, server)
		results := make(chan error, 3)
		done := func(_ Frame, err error) { results <- err }
		if _, err := client.Start(CommandProduce, []byte("sent"), nil, done); err != nil {
			t.Fatal(err)
		}
		client.Flush()
		<-got
		if err := client.Written(context.Background()); err != nil {
			t.Fatal(err)
		}
		if _, err := client.Start(CommandProduce, []byte("not sent"), nil, done); err != nil {
			t.Fatal(err)
		}
		server.Close(nil)
		codes := map[Code]int{}
		codes[CodeOf(<-results)]++
		codes[CodeOf(<-results)]++
		if codes[CodeUnknown] != 1 || codes[CodeDisconnected] != 1 {
			t.Fatalf("got %v", codes)
		}
		<-client.Closed()
		_, err := client.Start(CommandProduce, nil, nil, done)
		wantCode(t, err, CodeDisconnected)
	})
}

// TestConnEndsWhileWriting shows that a request that is being written when the connection ends is unknown: how much of it
// the peer has cannot be told.
func TestConnEndsWhileWriting(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	c := serve(t, NewConn(far, ConnOptions{}))
	results := make(chan error, 2)
	for _, command := range []Command{CommandProduce, CommandFetch} {
		if _, err := c.Start(command, nil, nil, func(_ Frame, err error) { results <- err }); err != nil {
			t.Fatal(err)
		}
		c.Flush() // the first is with the writer, and nobody reads
	}
	c.Close(nil)
	codes := map[Code]int{CodeOf(<-results): 1}
	codes[CodeOf(<-results)]++
	if codes[CodeUnknown] != 1 || codes[CodeDisconnected] != 1 {
		t.Fatalf("got %v", codes)
	}
}

// lateConn is a pipe's end at which the news of a peer that hung up comes before what the peer said: reading and writing take their
// time. To be used with fake time.
type lateConn struct{ net.Conn }

func (c lateConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	time.Sleep(2 * time.Millisecond)
	return n, err
}

func (c lateConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	time.Sleep(time.Millisecond)
	return n, err
}

// TestConnSaidBeforeEnd shows that an answer wins over a write that fails because the peer hung up after it: of a request written whole,
// of one too large to be read, and of another one that was still to be written; and that what the peer did not answer ends as ever.
func TestConnSaidBeforeEnd(t *testing.T) {
	for name, size := range map[string]int{"small": 10, "too large": 2 * writeChunkBytes} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cn, sn := net.Pipe()
				client := serve(t, NewConn(lateConn{cn}, ConnOptions{}))
				serve(t, NewConn(sn, ConnOptions{FrameBytesMax: HelloBytesMax, Handler: func(c *Conn, f Frame) {
					err := Errorf(CodeTooLarge, "refused")
					c.ReplyError(f.Request, f.Command, err)
					c.Shut(err)
				}}))
				results := make(chan error, 2)
				for range 2 {
					if _, err := client.Start(CommandProduce, nil, make([]byte, size), func(_ Frame, err error) { results <- err }); err != nil {
						t.Fatal(err)
					}
					client.Flush() // the second one waits for the writer
				}
				wantCode(t, <-results, CodeTooLarge)
				if err := <-results; CodeOf(err) != CodeUnknown && CodeOf(err) != CodeDisconnected {
					t.Errorf("the second ends with %v", err)
				}
				<-client.Closed()
			})
		})
	}
}

// TestConnCancel shows that a call ends with its context, that its late answer disturbs nobody, and that Cancel tells who
// was first.
func TestConnCancel(t *testing.T) {
	cn, sn := pair(t, true)
	client := serve(t, NewConn(cn, ConnOptions{}))
	held := make(chan uint64, 1)
	serve(t, NewConn(sn, ConnOptions{Handler: func(c *Conn, f Frame) {
		if f.Command == CommandFetch {
			held <- f.Request
			return
		}
		select {
		case request := <-held:
			c.Reply(request, CommandFetch, []byte("late"))
		default:
		}
		echo(c, f)
	}}))
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(5*time.Millisecond, cancel)
	if _, err := client.Call(ctx, CommandFetch, nil, nil); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	if _, err := client.Call(ctx, CommandFetch, nil, nil); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	for range 3 {
		if f, err := client.Call(context.Background(), CommandProduce, []byte("x"), nil); err != nil || string(f.Header) != "x" {
			t.Fatalf("got %q, %v", f.Header, err)
		}
	}
	if n := client.Stats().Pending; n != 0 {
		t.Fatalf("%d pending", n)
	}
	answered := make(chan struct{})
	request, _ := client.Start(CommandProduce, nil, nil, func(Frame, error) { close(answered) })
	client.Flush()
	<-answered
	if client.Cancel(request) {
		t.Fatal("an answered request was cancelled")
	}
}

// TestConnQueueFull shows both reactions to a peer that does not read: the requester is told busy, the answerer hangs up.
func TestConnQueueFull(t *testing.T) {
	cn, sn := pair(t, true)
	defer sn.Close()
	client := NewConn(cn, ConnOptions{QueueBytesMax: 8 << 20})
	serve(t, client)
	var busy error
	answers := atomic.Int64{}
	started := int64(0)
	for busy == nil && started < 100 {
		_, busy = client.Start(CommandProduce, nil, make([]byte, 1<<20), func(Frame, error) { answers.Add(1) })
		client.Flush()
		if busy == nil {
			started++
		}
	}
	wantCode(t, busy, CodeBusy)
	client.Close(nil)
	if answers.Load() != started {
		t.Fatalf("%d answers of %d", answers.Load(), started)
	}

	cn, sn = pair(t, true)
	defer cn.Close()
	server := NewConn(sn, ConnOptions{Handler: echo, QueueBytesMax: 8 << 20})
	serve(t, server)
	for i := 0; i < 100 && server.Err() == nil; i++ {
		server.Reply(uint64(i), CommandFetch, nil, make([]byte, 1<<20))
		server.Flush()
	}
	wantCode(t, server.Err(), CodeBusy)
}

// TestConnSlowReader shows that a peer that reads slowly gets everything, and one that stops is dropped after WriteTimeout.
func TestConnSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cn, sn := net.Pipe()
		server := NewConn(sn, ConnOptions{Handler: echo, WriteTimeout: 3 * time.Second})
		served := make(chan error, 1)
		go func() { served <- server.Serve() }()
		begin := time.Now()
		payload := bytes.Repeat([]byte("slow"), 200)
		for i := range 4 {
			server.Reply(uint64(i), CommandFetch, nil, payload)
		}
		server.Flush()
		b := make([]byte, 4*(frameHeadBytes+len(payload)))
		for i := range b[:len(b)-1] { // one byte at a time, 1 s each for the first few
			if i < 10 {
				time.Sleep(time.Second)
			}
			if _, err := io.ReadFull(cn, b[i:i+1]); err != nil {
				t.Errorf("byte %d: %v", i, err)
				break
			}
		}
		synctest.Wait()
		if err := <-served; CodeOf(err) != CodeBusy {
			t.Errorf("got %v", err)
		}
		if got := time.Since(begin); got < 13*time.Second || got > 16*time.Second {
			t.Errorf("ended after %v", got)
		}
		cn.Close()
	})
}

// TestConnMemory shows that a length does not take memory by being claimed: a frame of 4 MiB that comes in small pieces
// grows the buffer with what came, and an idle connection holds none.
func TestConnMemory(t *testing.T) {
	cn, sn := pair(t, true)
	defer cn.Close()
	handled := make(chan int, 1)
	server := NewConn(sn, ConnOptions{Handler: func(c *Conn, f Frame) { handled <- len(f.Payload) }})
	type state struct {
		read uint64
		kept int
	}
	idles := make(chan state, 64)
	idle := server.raw.idle
	server.raw.idle = func() {
		idle()
		idles <- state{server.bytesRead.Load(), cap(server.in.buf)}
	}
	wait := func(read int) int { // until the server read so much and went idle
		for {
			if s := <-idles; s.read == uint64(read) {
				return s.kept
			}
		}
	}
	serve(t, server)
	frame := AppendFrame(nil, Frame{Kind: KindRequest, Payload: make([]byte, 4<<20)})
	sent := 0
	for _, piece := range []int{21, 1000, 100_000, 1 << 20} {
		if _, err := cn.Write(frame[sent : sent+piece]); err != nil {
			t.Fatal(err)
		}
		sent += piece
		if got, most := wait(sent), max(2*sent, readBytes); got > most || (sent <= keepBytesMax && got > sent) {
			t.Fatalf("%d bytes came, buffer of %d", sent, got)
		}
	}
	if _, err := cn.Write(frame[sent:]); err != nil {
		t.Fatal(err)
	}
	if got := <-handled; got != 4<<20 {
		t.Fatalf("payload of %d bytes", got)
	}
	if got := wait(len(frame)); got != 0 {
		t.Fatalf("idle with a buffer of %d", got)
	}
}

// TestBuffers shows the accounting: only slices over 64 KiB count, by what they take, and what is not left is refused.
func TestBuffers(t *testing.T) {
	p := &Buffers{BytesMax: 1 << 20}
	want := func(bytes int64) {
		t.Helper()
		if got := p.Metrics().Bytes; got != bytes {
			t.Fatalf("%d bytes are lent, want %d", got, bytes)
		}
	}
	usual := p.take(readBytes)
	want(0)
	a := p.take(readBytes + 1)
	want(2 * readBytes)
	b := p.extend(append(p.take(300<<10), make([]byte, 512<<10)...), 1)
	if b != nil || p.take(1<<20) != nil {
		t.Fatal("more was lent than there is")
	}
	want(2*readBytes + 512<<10)
	if p.tight() {
		t.Fatal("tight at 640 KiB of 1 MiB")
	}
	c := p.take(256 << 10)
	if !p.tight() {
		t.Fatal("not tight at 896 KiB of 1 MiB")
	}
	p.give(c)
	p.give(a)
	p.give(make([]byte, 512<<10)) // in the place of the one that extend could not move
	p.give(usual)
	want(0)
	huge := new(Buffers).take(bufferBytesMin<<bufferClasses + 1)
	if huge == nil {
		t.Fatal("refused without a bound")
	}
}

// TestConnBuffersUsedUp shows what a connection gets when others hold the memory: a large request is answered busy and
// skipped, small ones before and after it are served, an answer that needs more ends its connection; and when the others
// end, large requests are served again.
func TestConnBuffersUsedUp(t *testing.T) {
	eachNet(t, func(t *testing.T, tcp bool) {
		p := &Buffers{BytesMax: 4 << 20}
		t.Cleanup(func() { wantGiven(t, p) })
		open := func() (net.Conn, *Conn) {
			cn, sn := pair(t, tcp)
			return cn, serve(t, NewConn(sn, ConnOptions{Handler: echo, FrameBytesMax: FrameBytesMax, Buffers: p}))
		}
		hn, _ := open()
		defer hn.Close()
		half := AppendFrame(nil, Frame{Kind: KindRequest, Payload: make([]byte, 4<<20)})[:1200<<10]
		if _, err := hn.Write(half); err != nil {
			t.Fatal(err)
		}
		for p.Metrics().Bytes != 2<<20 {
			runtime.Gosched()
		}
		cn, server := open()
		client := serve(t, NewConn(cn, ConnOptions{}))
		call := func(size int) error {
			f, err := client.Call(context.Background(), CommandProduce, nil, bytes.Repeat([]byte("x"), size))
			if err == nil && len(f.Payload) != size {
				t.Fatalf("echo of %d bytes, want %d", len(f.Payload), size)
			}
			return err
		}
		small := make(chan error, 1)
		if _, err := client.Start(CommandProduce, []byte("before"), nil, func(_ Frame, err error) { small <- err }); err != nil {
			t.Fatal(err)
		}
		err := call(3 << 20)
		wantCode(t, err, CodeBusy)
		if e, ok := errors.AsType[*CodeError](err); !ok || e.RetryAfter == 0 || !strings.Contains(e.Message, "4194304 bytes") {
			t.Fatalf("got %#v", err)
		}
		if err := errors.Join(<-small, call(1000), call(60<<10)); err != nil {
			t.Fatal(err)
		}
		if m := p.Metrics(); m.FramesRefused != 1 || m.QueuesRefused != 0 || m.Bytes < 2<<20 || m.Bytes > 4<<20 {
			t.Fatalf("metrics: %+v", m)
		}

		server.Reply(1000, CommandFetch, nil, make([]byte, 3<<20))
		<-server.Closed()
		wantCode(t, server.Err(), CodeBusy)
		if m := p.Metrics(); m.QueuesRefused != 1 {
			t.Fatalf("metrics: %+v", m)
		}

		hn.Close()
		wantGiven(t, p)
		cn, _ = open()
		client = serve(t, NewConn(cn, ConnOptions{}))
		if err := call(900 << 10); err != nil {
			t.Fatal(err)
		}
	})
}

// TestConnBuffersLearnt shows that a connection that learnt to begin with a large buffer goes on with the usual one when
// there is no memory.
func TestConnBuffersLearnt(t *testing.T) {
	p := &Buffers{BytesMax: 8 << 20}
	cn, sn := pair(t, true)
	serve(t, NewConn(sn, ConnOptions{Handler: echo, FrameBytesMax: FrameBytesMax, Buffers: p}))
	client := serve(t, NewConn(cn, ConnOptions{}))
	call := func(size int) error {
		_, err := client.Call(context.Background(), CommandProduce, nil, make([]byte, size))
		return err
	}
	if err := call(900 << 10); err != nil {
		t.Fatal(err)
	}
	wantGiven(t, p)
	others := p.take(7 << 20)
	if err := errors.Join(call(1000), call(60<<10)); err != nil {
		t.Fatal(err)
	}
	wantCode(t, call(900<<10), CodeBusy)
	p.give(others)
	if err := call(900 << 10); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { wantGiven(t, p) })
}

func cpu() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkConn is round trips of 1 KiB over two loopback connections, both ends in this process.
func BenchmarkConn(b *testing.B) {
	for _, callers := range []int{1, 8, 64} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			var conns [2]*Conn
			for i := range conns {
				cn, sn := pair(b, true)
				conns[i] = serve(b, NewConn(cn, ConnOptions{}))
				serve(b, NewConn(sn, ConnOptions{Handler: func(c *Conn, f Frame) { c.Reply(f.Request, f.Command, f.Header) }}))
			}
			payload := make([]byte, 1024)
			var left atomic.Int64
			left.Store(int64(b.N))
			var wg sync.WaitGroup
			b.ReportAllocs()
			b.ResetTimer()
			used := cpu()
			for g := range callers {
				c := conns[g%len(conns)]
				wg.Go(func() {
					for left.Add(-1) >= 0 {
						if _, err := c.Call(context.Background(), CommandProduce, nil, payload); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "trips/s")
			b.ReportMetric(float64((cpu()-used).Microseconds())/float64(b.N), "cpu-us/trip")
		})
	}
}
