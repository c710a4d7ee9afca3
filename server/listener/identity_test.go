package listener

import (
	"bytes"
	"context"
	"crypto/x509"
	"net"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jmqio/jmq/wire"
)

// lockedBuffer is a log that is read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// keeper is an Authenticator that knows credentials c1 and c2 of the app pay in the namespace shop, with one secret.
type keeper struct {
	verifier wire.Verifier
	secret   wire.Credentials

	mu      sync.Mutex
	revoked map[string]bool
	expires int64
}

func newKeeper(t testing.TB) *keeper {
	t.Helper()
	k := &keeper{secret: wire.Credentials{ID: "c1", Secret: "secret"}, revoked: map[string]bool{}}
	var err error
	if k.verifier, err = wire.NewVerifier(k.secret.Secret); err != nil {
		t.Fatal(err)
	}
	return k
}

func (k *keeper) Verifier(id string) (wire.Verifier, wire.Principal, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := wire.Principal{Kind: wire.PrincipalApp, Name: "pay", Namespace: "shop", Credential: id, ExpiresNs: k.expires}
	return k.verifier, p, (id == "c1" || id == "c2") && !k.revoked[id]
}

func (k *keeper) Certificate(leaf *x509.Certificate) (wire.Principal, error) {
	return wire.CertificatePrincipal(leaf)
}

func (k *keeper) Alive(p wire.Principal) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.revoked[p.Credential] || p.ExpiresNs != 0 && time.Now().UnixNano() >= p.ExpiresNs {
		return wire.Errorf(wire.CodeUnauthenticated, "gone")
	}
	return nil
}

func (k *keeper) Sure() bool { return true }

func (k *keeper) Namespace(name string) (uint32, bool) { return 7, name == "shop" }

func (k *keeper) revoke(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.revoked[id] = true
}

// login connects as the owner of a credential.
func login(t testing.TB, nc net.Conn, k *keeper, credential string) *wire.Conn {
	t.Helper()
	c := serve(t, nc)
	if _, err := c.Hello(context.Background(), &wire.HelloRequest{ClientId: "c", Credential: credential}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Authenticate(context.Background(), wire.Credentials{ID: credential, Secret: k.secret.Secret}); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestRecheck shows what becomes of a session whose credential was revoked: what waits is answered so, a send under way gets its own
// answer, new requests are refused, the connection ends with the reason; and of another session of the same app: nothing.
func TestRecheck(t *testing.T) {
	k := newKeeper(t)
	held := make(chan func(*wire.ProduceResponse, error), 1)
	parked := make(chan struct{}, 4)
	b := &fakeBroker{
		produce: func(_ context.Context, _ *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) { held <- done },
		fetch: func(ctx context.Context, r *wire.FetchRequest, done func(*wire.FetchResponse, error)) {
			context.AfterFunc(ctx, func() {
				if r.Member == 1 { // both ways in which a fetch can end whose ctx did
					done(nil, ctx.Err())
				} else {
					done(&wire.FetchResponse{}, nil)
				}
			})
			parked <- struct{}{}
		},
	}
	l := start(t, b, wire.HandlerOptions{Authenticator: k}, Options{})
	c, other := login(t, dialRaw(t, l), k, "c1"), login(t, dialRaw(t, l), k, "c2")
	results := make(chan error, 3)
	begin := func(c *wire.Conn, command wire.Command, header []byte) {
		t.Helper()
		if _, err := c.Start(command, header, []byte("x"), func(_ wire.Frame, err error) { results <- err }); err != nil {
			t.Fatal(err)
		}
		c.Flush()
	}
	for member := range uint32(2) {
		begin(c, wire.CommandFetch, wire.AppendFetchRequest(nil, &wire.FetchRequest{Topic: "t", Group: "g", Member: member}))
		<-parked
	}
	begin(other, wire.CommandFetch, wire.AppendFetchRequest(nil, &wire.FetchRequest{Topic: "t", Group: "g"}))
	<-parked
	sent := make(chan error, 1)
	if _, err := c.Start(wire.CommandProduce, produceHeader("orders"), []byte("x"), func(_ wire.Frame, err error) { sent <- err }); err != nil {
		t.Fatal(err)
	}
	c.Flush()
	done := <-held
	l.Recheck()
	if n := l.Metrics().Expelled; n != 0 {
		t.Fatalf("%d were expelled, and nothing had changed", n)
	}
	k.revoke("c1")
	l.Recheck()
	l.Recheck() // again, while it runs
	for range 2 {
		wantCode(t, <-results, wire.CodeUnauthenticated)
	}
	wantCode(t, c.CallMessage(context.Background(), wire.CommandRoute, &wire.RouteRequest{Topic: "t"}, &wire.RouteResponse{}), wire.CodeUnauthenticated)
	_, err := c.Call(context.Background(), wire.CommandAck, wire.AppendAckRequest(nil, &wire.AckRequest{Topic: "t", Group: "g"}), nil)
	wantCode(t, err, wire.CodeUnauthenticated)
	done(&wire.ProduceResponse{}, nil)
	if err := <-sent; err != nil {
		t.Errorf("the send under way: %v", err)
	}
	<-c.Closed()
	wantCode(t, c.Err(), wire.CodeUnauthenticated)
	if n := l.Metrics().Expelled; n != 1 {
		t.Errorf("%d were expelled", n)
	}
	if err := other.CallMessage(context.Background(), wire.CommandRoute, &wire.RouteRequest{Topic: "t"}, &wire.RouteResponse{}); err != nil {
		t.Errorf("the other session: %v", err)
	}
	select {
	case err := <-results:
		t.Errorf("the other session's fetch ended: %v", err)
	default:
	}
}

// TestExpiry shows that a session ends when its credential does, and that one whose requests do not end ends too.
func TestExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeper(t)
		k.expires = time.Now().Add(time.Minute).UnixNano()
		b := &fakeBroker{fetch: func(context.Context, *wire.FetchRequest, func(*wire.FetchResponse, error)) {}} // never answered
		pl := newPipeListener()
		l := start(t, b, wire.HandlerOptions{Authenticator: k}, Options{Listener: pl})
		c, stuck := login(t, pl.dial(), k, "c1"), login(t, pl.dial(), k, "c2")
		begin := time.Now()
		c.KeepAlive(5 * time.Second)
		stuck.KeepAlive(5 * time.Second)
		if _, err := stuck.Start(wire.CommandFetch, wire.AppendFetchRequest(nil, &wire.FetchRequest{Topic: "t", Group: "g"}), nil, func(wire.Frame, error) {}); err != nil {
			t.Fatal(err)
		}
		stuck.Flush()
		<-c.Closed()
		if took := time.Since(begin); took < time.Minute || took > time.Minute+2*time.Second {
			t.Errorf("ended after %v", took)
		}
		<-stuck.Closed()
		if took := time.Since(begin); took > time.Minute+5*time.Second {
			t.Errorf("the stuck one ended after %v", took)
		}
		if n := l.Metrics().Expelled; n != 2 {
			t.Errorf("%d were expelled", n)
		}
	})
}

// TestHalfOpen shows that connections that say nothing are bounded, in number and in memory, that the oldest make room, and that
// those who say who they are get in meanwhile, and go on as before if they were in.
func TestHalfOpen(t *testing.T) {
	const connections, bound = 250, 100
	k := newKeeper(t)
	l := start(t, &fakeBroker{}, wire.HandlerOptions{Authenticator: k}, Options{HalfOpenMax: bound})
	in := login(t, dialRaw(t, l), k, "c1")
	before := heap()
	partial := wire.AppendFrame(nil, wire.Frame{Kind: wire.KindRequest, Command: wire.CommandHello, Header: make([]byte, 4000)})[:4000]
	attack := make(chan []net.Conn)
	go func() {
		var all []net.Conn
		defer func() { attack <- all }()
		for range connections {
			nc, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Error(err)
				return
			}
			all = append(all, nc)
			nc.Write(partial) // an error: it was closed already
		}
	}()
	for l.Metrics().HalfOpen < bound {
		runtime.Gosched()
	}
	worst := time.Duration(0)
	for range 200 {
		begin := time.Now()
		if err := produce(in); err != nil {
			t.Fatal(err)
		}
		worst = max(worst, time.Since(begin))
	}
	if each := (heap() - before) / bound; each > 64<<10 {
		t.Errorf("%d bytes each", each)
	} else {
		t.Logf("%d bytes each, a send took %v at most", each, worst)
	}
	begin := time.Now()
	login(t, dialRaw(t, l), k, "c2")
	t.Logf("somebody new waited %v", time.Since(begin))
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("somebody new waited %v", took)
	}
	for _, nc := range <-attack {
		nc.Close()
	}
	if m := l.Metrics(); m.HalfOpen > bound || m.Evicted == 0 {
		t.Errorf("counted %+v", m)
	}
}

// heap is what the heap and the stacks hold.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// TestAnywhere shows that an address that others can reach needs authentication, or a loud word.
func TestAnywhere(t *testing.T) {
	for name, row := range map[string]struct {
		h        wire.HandlerOptions
		insecure bool
		ok       bool
	}{
		"nothing": {}, "authentication": {h: wire.HandlerOptions{Authenticator: newKeeper(t)}, ok: true}, "a loud word": {insecure: true, ok: true},
	} {
		nl, err := ListenAnywhere("0.0.0.0:0")
		if err != nil {
			t.Fatal(err)
		}
		l, err := New(Options{Listener: nl, Handler: wire.NewHandler(wire.Services{}, row.h), InsecureWithoutAuthentication: row.insecure})
		if (err == nil) != row.ok {
			t.Errorf("with %s: %v", name, err)
		}
		if err != nil {
			nl.Close()
			continue
		}
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
