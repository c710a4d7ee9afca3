package listener

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/jmqio/jmq/wire"
)

// watching is a Registry whose watches of routes wait until their session ends.
type watching struct {
	wire.Registry
	mu     sync.Mutex
	parked []func(*wire.WatchRoutesResponse, error)
}

func (w *watching) WatchRoutes(ctx context.Context, _ *wire.WatchRoutesRequest, done func(*wire.WatchRoutesResponse, error)) {
	context.AfterFunc(ctx, func() { done(nil, ctx.Err()) })
	w.mu.Lock()
	defer w.mu.Unlock()
	w.parked = append(w.parked, done)
}

func (w *watching) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.parked)
}

// TestIdleMemory shows what an idle connection costs: heap and stacks of 2,000 of them after a hello and a send, each with a parked
// watch of two topics. The clients' ends, bare sockets in this process, are counted too.
func TestIdleMemory(t *testing.T) {
	per := idleMemory(t, 2000, nil, func(nc net.Conn) net.Conn { return nc })
	t.Logf("%d bytes an idle connection with a parked watch", per)
	most := int64(12 << 10)
	if raceEnabled { // what the detector adds differs from run to run
		most = 16 << 10
	}
	if per > most {
		t.Errorf("%d bytes an idle connection, at most %d are allowed", per, most)
	}
}

// TestIdleMemoryTLS is TestIdleMemory over TLS. Here both ends' TLS is counted.
func TestIdleMemoryTLS(t *testing.T) {
	a := newAuthority(t)
	certs := certificates(t, a.server(t, t.TempDir(), time.Now().Add(time.Hour)))
	config := a.client(t, "")
	per := idleMemory(t, 200, certs.Config, func(nc net.Conn) net.Conn { return tls.Client(nc, config) })
	t.Logf("%d bytes an idle connection with a parked watch, both ends of TLS", per)
	if per > 96<<10 {
		t.Errorf("%d bytes", per)
	}
}

// idleMemory returns the bytes that each of conns connections takes.
func idleMemory(t *testing.T, conns int, config func() *tls.Config, client func(net.Conn) net.Conn) int64 {
	nl, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := new(watching)
	l, err := New(Options{Listener: nl, TLS: config, Handler: wire.NewHandler(wire.Services{Broker: &fakeBroker{}, Registry: w}, wire.HandlerOptions{})})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- l.Serve() }()
	var all []net.Conn
	defer func() {
		for _, nc := range all {
			nc.Close()
		}
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	watch, err := proto.Marshal(&wire.WatchRoutesRequest{WaitMs: 60_000, Generation: 1, Topics: []*wire.WatchedTopic{
		{Topic: "orders.created", Version: 12}, {Topic: "orders.paid", Group: "pay.vip", Version: 13},
	}})
	if err != nil {
		t.Fatal(err)
	}
	hello := []byte{8, 1, 16, 1, 34, 1, 'x'}
	b := wire.AppendFrame(nil, wire.Frame{Kind: wire.KindRequest, Command: wire.CommandHello, Request: 1, Header: hello})
	b = wire.AppendFrame(b, wire.Frame{Kind: wire.KindRequest, Command: wire.CommandProduce, Request: 2, Header: produceHeader("orders"), Payload: make([]byte, 1024)})
	b = wire.AppendFrame(b, wire.Frame{Kind: wire.KindRequest, Command: wire.CommandWatchRoutes, Request: 3, Header: watch})
	open := func(n int) {
		for range n {
			nc, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			nc = client(nc)
			all = append(all, nc)
			if _, err := nc.Write(b); err != nil {
				t.Fatal(err)
			}
			// The answers of the hello and of the send.
			if _, err := io.ReadFull(nc, make([]byte, 40)); err != nil {
				t.Fatal(err)
			}
		}
		for w.count() < len(all) {
			runtime.Gosched()
		}
	}
	inUse := func() int64 {
		for range 4 {
			runtime.GC()
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapInuse + m.StackInuse)
	}
	open(10)
	before := inUse()
	open(conns)
	return (inUse() - before) / int64(conns)
}
