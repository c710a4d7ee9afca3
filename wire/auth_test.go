package wire

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/jmqio/jmq/server/servertest/mutate"
)

// known is an Authenticator of a few credentials.
type known struct {
	mu    sync.Mutex
	kept  map[string]Verifier
	whose map[string]Principal
	dead  map[string]bool // credentials that are not good any more

	unsure atomic.Bool // what it does not know may be known elsewhere
}

// newKnown keeps one credential, c1 of the app pay in the namespace shop, and returns its secret.
func newKnown(t testing.TB) (*known, Credentials) {
	t.Helper()
	k := &known{kept: map[string]Verifier{}, whose: map[string]Principal{}, dead: map[string]bool{}}
	return k, k.add(t, "c1", Principal{Kind: PrincipalApp, Name: "pay", Namespace: "shop"})
}

func (k *known) add(t testing.TB, id string, p Principal) Credentials {
	t.Helper()
	secret := Secret("secret of " + id)
	v, err := NewVerifier(secret)
	if err != nil {
		t.Fatal(err)
	}
	p.Credential = id
	k.mu.Lock()
	defer k.mu.Unlock()
	k.kept[id], k.whose[id] = v, p
	return Credentials{id, secret}
}

func (k *known) Verifier(id string) (Verifier, Principal, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	v, ok := k.kept[id]
	return v, k.whose[id], ok
}

func (k *known) Certificate(leaf *x509.Certificate) (Principal, error) {
	return CertificatePrincipal(leaf)
}

func (k *known) revoke(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.dead[id] = true
}

func (k *known) Alive(p Principal) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.dead[p.Credential] || p.ExpiresNs != 0 && time.Now().UnixNano() >= p.ExpiresNs {
		return Errorf(CodeUnauthenticated, "%s is not good any more", p.Credential)
	}
	return nil
}

func (k *known) Sure() bool {
	return !k.unsure.Load()
}

func (k *known) Namespace(name string) (uint32, bool) {
	return 7, name == "shop"
}

// open begins a session with h. A pipe tells its end's death to who writes, before what was written is read: tests that look for
// a last word use TCP.
func open(t testing.TB, h *Handler, tcp bool) (*Conn, *Session) {
	t.Helper()
	client, server := pair(t, tcp)
	s := h.NewSession(server, SessionOptions{})
	done := make(chan struct{})
	go func() { s.Serve(); close(done) }()
	c := serve(t, NewConn(client, ConnOptions{}))
	t.Cleanup(func() { s.Conn().Close(nil); c.Close(nil); <-done })
	return c, s
}

// greet opens and says hello.
func greet(t testing.TB, h *Handler) (*Conn, *Session) { return greetOn(t, h, true) }

func greetOn(t testing.TB, h *Handler, tcp bool) (*Conn, *Session) {
	t.Helper()
	c, s := open(t, h, tcp)
	r, err := c.Hello(context.Background(), &HelloRequest{ClientId: "c", App: "liar", Credential: "c1"})
	if err != nil {
		t.Fatal(err)
	}
	if !r.Authenticate {
		t.Fatal("nobody has to be authenticated")
	}
	return c, s
}

// TestAuthenticate shows what a session knows of a peer that proved who it is, and what that is told.
func TestAuthenticate(t *testing.T) {
	k, who := newKnown(t)
	admin := k.add(t, "u1", Principal{Kind: PrincipalUser, Name: "ann", ExpiresNs: time.Now().Add(time.Hour).UnixNano()})
	lost := k.add(t, "c2", Principal{Kind: PrincipalApp, Name: "pay", Namespace: "gone"})
	var opened, closed []*Peer
	var mu sync.Mutex
	h := NewHandler(Services{Broker: every{}, Admin: every{}, Registry: every{}}, HandlerOptions{
		Authenticator: k, UserRole: func(name string) string { return "role of " + name },
		OnOpen: func(p *Peer) error {
			mu.Lock()
			defer mu.Unlock()
			opened = append(opened, p)
			return nil
		},
		OnClose: func(p *Peer) { mu.Lock(); defer mu.Unlock(); closed = append(closed, p) },
	})
	c, s := greet(t, h)
	if s.Peer() != nil {
		t.Error("the peer is known before it proved it")
	}
	identity, err := c.Authenticate(context.Background(), who)
	if err != nil {
		t.Fatal(err)
	}
	if identity.Kind != "app" || identity.Name != "pay" || identity.Namespace != "shop" || identity.Credential != "c1" {
		t.Errorf("got %v", identity)
	}
	if p := s.Peer(); p.App != "pay" || p.Namespace != 7 || p.Principal != k.whose["c1"] || p.ClientID != "c" {
		t.Errorf("the peer is %+v", p)
	}
	if _, err := c.Call(context.Background(), CommandRoute, goodHeader(CommandRoute), make([]byte, 2*HelloBytesMax)); err != nil {
		t.Errorf("a large frame afterwards: %v", err)
	}
	_, err = c.Call(context.Background(), CommandAuthenticate, nil, nil)
	wantCode(t, err, CodeInvalid)

	c, s = greet(t, h)
	identity, err = c.Authenticate(context.Background(), admin)
	if err != nil {
		t.Fatal(err)
	}
	if identity.Kind != "user" || identity.Role != "role of ann" || identity.ExpiresNs == 0 || s.Peer().App != "" || s.Peer().Namespace != 0 {
		t.Errorf("got %v of %+v", identity, s.Peer())
	}

	c, s = greet(t, h)
	_, err = c.Authenticate(context.Background(), lost)
	wantCode(t, err, CodeUnauthenticated)
	if s.Peer() != nil {
		t.Error("an app of an unknown namespace was let in")
	}

	k.revoke("c1") // after the verifier was looked up, in the tightest case
	c, s = greet(t, h)
	_, err = c.Authenticate(context.Background(), who)
	wantCode(t, err, CodeUnauthenticated)
	<-c.Closed()
	<-s.Conn().Closed()
	if m := h.Metrics(); m.Authenticated != 2 || m.AuthenticationsFailed != 2 {
		t.Errorf("counted %+v", m)
	}
	s.cold.Wait()
	mu.Lock()
	defer mu.Unlock()
	if len(opened) != 3 {
		t.Errorf("%d were let in", len(opened))
	}
}

// TestOpenRefused shows that an OnOpen that refuses is told to the client, and not followed by OnClose.
func TestOpenRefused(t *testing.T) {
	k, who := newKnown(t)
	h := NewHandler(Services{}, HandlerOptions{
		Authenticator: k,
		OnOpen:        func(*Peer) error { e := Errorf(CodeLimited, "8 connections"); e.RetryAfter = time.Second; return e },
		OnClose:       func(*Peer) { t.Error("closed") },
	})
	c, s := greet(t, h)
	_, err := c.Authenticate(context.Background(), who)
	if e, _ := asCodeError(err); e == nil || e.Code != CodeLimited || e.RetryAfter != time.Second {
		t.Fatalf("got %v", err)
	}
	<-s.Conn().Closed()
	if s.Peer() != nil {
		t.Error("it was let in")
	}
}

// record is a connection that keeps what was written.
type record struct {
	net.Conn
	mu  sync.Mutex
	out bytes.Buffer
}

func (r *record) Write(b []byte) (int, error) {
	r.mu.Lock()
	r.out.Write(b)
	r.mu.Unlock()
	return r.Conn.Write(b)
}

// ask sends raw frames over a new connection, one after the other's answer, and returns the answers.
func ask(t *testing.T, h *Handler, frames ...[]byte) []Frame {
	t.Helper()
	client, server := net.Pipe()
	s := h.NewSession(server, SessionOptions{})
	done := make(chan struct{})
	go func() { s.Serve(); close(done) }()
	defer func() { client.Close(); <-done }()
	var answers []Frame
	var got []byte
	for _, f := range frames {
		if _, err := client.Write(f); err != nil {
			break
		}
		for {
			a, size, e := ParseFrame(got, ReplyBytesMax)
			if e != nil {
				t.Fatal(e)
			}
			if size > 0 && size <= len(got) {
				a.Header = bytes.Clone(a.Header)
				answers, got = append(answers, a), got[size:]
				break
			}
			b := make([]byte, 4096)
			n, err := client.Read(b)
			if err != nil {
				return answers
			}
			got = append(got, b[:n]...)
		}
	}
	return answers
}

// frames cuts what was recorded into frames.
func frames(t *testing.T, b []byte) (all [][]byte) {
	t.Helper()
	for len(b) > 0 {
		_, size, e := ParseFrame(b, ReplyBytesMax)
		if e != nil || size == 0 || size > len(b) {
			t.Fatalf("%d bytes are no frame: %v", len(b), e)
		}
		all, b = append(all, b[:size]), b[size:]
	}
	return all
}

// TestReplay shows that what a client sent to be let in lets nobody else in.
func TestReplay(t *testing.T) {
	k, who := newKnown(t)
	h := NewHandler(Services{}, HandlerOptions{Authenticator: k})
	client, server := net.Pipe()
	s := h.NewSession(server, SessionOptions{})
	done := make(chan struct{})
	go func() { s.Serve(); close(done) }()
	kept := &record{Conn: client}
	c := serve(t, NewConn(kept, ConnOptions{}))
	if _, err := c.Hello(context.Background(), &HelloRequest{ClientId: "c", Credential: who.ID}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Authenticate(context.Background(), who); err != nil {
		t.Fatal(err)
	}
	c.Close(nil)
	<-done
	sent := frames(t, kept.out.Bytes())
	if len(sent) != 3 {
		t.Fatalf("%d frames let a client in", len(sent))
	}
	if bytes.Contains(kept.out.Bytes(), []byte(string(who.Secret))) {
		t.Fatal("the secret was sent")
	}
	answers := ask(t, h, sent...)
	if len(answers) != 3 || answers[2].Kind != KindError || ParseError(answers[2].Header).Code != CodeUnauthenticated {
		t.Fatalf("the answers are %v", answers)
	}
}

// TestAuthenticateUniform shows that an unknown credential, a wrong secret and one without a verifier cannot be told apart: the same
// steps, the same answers, and the salt of each name stays.
func TestAuthenticateUniform(t *testing.T) {
	k, who := newKnown(t)
	k.kept["broken"] = Verifier{Iterations: 4096}
	h := NewHandler(Services{}, HandlerOptions{Authenticator: k})
	var errs []string
	for i, bad := range []Credentials{{who.ID, "wrong"}, {"nobody", "wrong"}, {"nobody", who.Secret}, {"broken", ""}, {"", "x"}, {strings.Repeat("n", 255), "x"}, {"a,=b", "x"}} {
		for _, want := range []Code{CodeUnauthenticated, CodeMetadataAway} {
			k.unsure.Store(want == CodeMetadataAway) // it says so instead while it may be the one that does not know
			c, _ := greet(t, h)
			_, err := c.Authenticate(context.Background(), bad)
			wantCode(t, err, want)
			errs = append(errs, err.Error())
			<-c.Closed() // one try a connection
			if errs[len(errs)-1] != errs[(len(errs)-1)%2] {
				t.Errorf("%d can be told apart: %q", i, errs)
			}
		}
	}
	k.unsure.Store(false)
	first := func(id string) (salt string, fields int) {
		hs := new(handshake)
		b, err := proto.Marshal(&AuthenticateRequest{Mechanism: MechanismSCRAM, Data: []byte("n,,n=" + id + ",r=abc")})
		if err != nil {
			t.Fatal(err)
		}
		say, done, err := h.step(hs, b)
		if err != nil || done {
			t.Fatal(say, done, err)
		}
		parts := strings.Split(say, ",")
		if !strings.HasPrefix(parts[0], "r=abc") || len(parts[0]) < 30 || !strings.HasPrefix(parts[1], "s=") || parts[2] != "i=4096" {
			t.Errorf("the server says %q", say)
		}
		return parts[1], len(say)
	}
	salt, size := first("c1")
	for _, id := range []string{"c1", "nobody", "nobodyelse"} {
		a, sizeA := first(id)
		b, _ := first(id)
		if a != b || sizeA != size || (a == salt) != (id == "c1") {
			t.Errorf("%s: salts %s and %s, %d bytes; of c1 %s, %d bytes", id, a, b, sizeA, salt, size)
		}
	}
}

// TestBeforeAuthentication shows what a peer may do that is not known yet.
func TestBeforeAuthentication(t *testing.T) {
	k, _ := newKnown(t)
	h := NewHandler(Services{every{}, every{}, every{}, every{}}, HandlerOptions{Authenticator: k, OnOpen: func(*Peer) error { t.Error("let in"); return nil }})
	for command := range Command(countedCommands) {
		if command == CommandAuthenticate || command == CommandPing {
			continue
		}
		c, _ := greet(t, h)
		_, err := c.Call(context.Background(), command, goodHeader(command), nil)
		wantCode(t, err, CodeUnauthenticated)
		<-c.Closed()
		c, _ = open(t, h, true)
		if command == CommandHello {
			continue
		}
		_, err = c.Call(context.Background(), command, goodHeader(command), nil)
		wantCode(t, err, CodeHelloFirst)
	}
	c, _ := greet(t, h)
	if err := c.CallMessage(context.Background(), CommandPing, &PingRequest{}, &PingResponse{}); err != nil {
		t.Fatal(err)
	}
	_, err := c.Call(context.Background(), CommandAuthenticate, make([]byte, HelloBytesMax), nil)
	wantCode(t, err, CodeTooLarge)
	<-c.Closed()
	for _, bad := range []struct {
		r    *AuthenticateRequest
		want Code
	}{
		{&AuthenticateRequest{Mechanism: "PLAIN", Data: []byte("\x00c1\x00secret")}, CodeInvalid},
		{&AuthenticateRequest{Mechanism: MechanismSCRAM}, CodeUnauthenticated},
		{&AuthenticateRequest{Mechanism: MechanismSCRAM, Data: []byte("n,a=admin,n=c1,r=abc")}, CodeUnauthenticated},
		{&AuthenticateRequest{Mechanism: MechanismSCRAM, Data: []byte("p=tls-unique,,n=c1,r=abc")}, CodeUnauthenticated},
	} {
		c, _ := greet(t, h)
		err := c.CallMessage(context.Background(), CommandAuthenticate, bad.r, &AuthenticateResponse{})
		if CodeOf(err) != bad.want {
			t.Errorf("%v: %v", bad.r, err)
		}
		<-c.Closed()
	}
}

// TestAuthenticateTime shows that 5 s are all that hello and authentication get.
func TestAuthenticateTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, _ := newKnown(t)
		h := NewHandler(Services{}, HandlerOptions{Authenticator: k})
		begin := time.Now()
		c, s := greetOn(t, h, false)
		for c.Err() == nil {
			time.Sleep(500 * time.Millisecond)
			if err := c.CallMessage(context.Background(), CommandPing, &PingRequest{}, &PingResponse{}); err != nil {
				break
			}
		}
		<-s.Conn().Closed()
		<-c.Closed()
		wantCode(t, c.Err(), CodeHelloFirst)
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("closed after %v", took)
		}
		// One that does not read is not waited for any longer.
		client, server := net.Pipe()
		defer client.Close()
		begin = time.Now()
		h.NewSession(server, SessionOptions{}).Serve()
		if took := time.Since(begin); took != 5*time.Second {
			t.Errorf("closed after %v", took)
		}
	})
}

// TestFalseServer shows that a client finds out a server that does not know its verifier, and does no work without bound for it.
func TestFalseServer(t *testing.T) {
	_, who := newKnown(t)
	for name, lie := range map[string]func(say string, step int) string{
		"no signature":    func(say string, step int) string { return []string{"r=%s%s,s=c2FsdHNhbHQ=,i=4096", "v="}[step] },
		"another's":       func(say string, step int) string { return []string{"r=%s%s,s=c2FsdHNhbHQ=,i=4096", "v=AAAA"}[step] },
		"done too early":  func(say string, step int) string { return "" },
		"many iterations": func(say string, step int) string { return "r=%s%s,s=c2FsdHNhbHQ=,i=2000000000" },
		"few iterations":  func(say string, step int) string { return "r=%s%s,s=c2FsdHNhbHQ=,i=1" },
		"its own nonce":   func(say string, step int) string { return "r=xyz,s=c2FsdHNhbHQ=,i=4096" },
		"an error": func(say string, step int) string {
			return []string{"r=%s%s,s=c2FsdHNhbHQ=,i=4096", "e=other-error"}[step]
		},
	} {
		client, server := net.Pipe()
		step := 0
		srv := serve(t, NewConn(server, ConnOptions{Handler: func(c *Conn, f Frame) {
			var r AuthenticateRequest
			if err := proto.Unmarshal(f.Header, &r); err != nil {
				t.Error(err)
			}
			say := lie(string(r.Data), step)
			if strings.Contains(say, "%s") {
				_, nonce, _ := strings.Cut(string(r.Data), ",r=")
				say = fmt.Sprintf(say, nonce, "more")
			}
			step++
			b, err := proto.Marshal(&AuthenticateResponse{Data: []byte(say), Done: true, Identity: &Identity{Kind: "user"}})
			if err != nil {
				t.Error(err)
			}
			c.Reply(f.Request, f.Command, b)
		}}))
		c := serve(t, NewConn(client, ConnOptions{}))
		begin := time.Now()
		identity, err := c.Authenticate(context.Background(), who)
		if CodeOf(err) != CodeUnauthenticated || identity != nil {
			t.Errorf("%s: %v, %v", name, identity, err)
		}
		if strings.Contains(err.Error(), string(who.Secret)) {
			t.Errorf("%s: the secret is in %v", name, err)
		}
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("%s: found out after %v", name, took)
		}
		c.Close(nil)
		srv.Close(nil)
	}
}

// TestSecretNotPrinted shows it for the ways in which text is usually printed.
func TestSecretNotPrinted(t *testing.T) {
	c := Credentials{"id", "planted-secret"}
	var b bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d", "%T %v"} {
		fmt.Fprintf(&b, verb, c.Secret)
		fmt.Fprintf(&b, verb, c)
		fmt.Fprintf(&b, verb, &c)
	}
	fmt.Fprintln(&b, errors.New(fmt.Sprint(c)))
	if err := json.NewEncoder(io.MultiWriter(&b)).Encode(c); err != nil {
		t.Fatal(err)
	}
	slog.New(slog.NewTextHandler(&b, nil)).Info("x", "c", c, "s", c.Secret)
	slog.New(slog.NewJSONHandler(&b, nil)).Info("x", "c", c, "s", c.Secret)
	if s := b.String(); strings.Contains(s, "planted") || strings.Contains(s, fmt.Sprintf("%x", "planted")) {
		t.Errorf("it is in %s", s)
	}
}

// TestCertificatePrincipal shows which certificates are an identity.
func TestCertificatePrincipal(t *testing.T) {
	until := time.Unix(1_900_000_000, 0)
	for uris, want := range map[string]Principal{
		"jmq://app/shop/pay":                      {Kind: PrincipalApp, Namespace: "shop", Name: "pay", ExpiresNs: until.UnixNano()},
		"jmq://user/ann":                          {Kind: PrincipalUser, Name: "ann", ExpiresNs: until.UnixNano()},
		"spiffe://a/b jmq://node/b1":              {Kind: PrincipalNode, Name: "b1", ExpiresNs: until.UnixNano()},
		"":                                        {},
		"https://app/shop/pay":                    {},
		"jmq://app/pay":                           {},
		"jmq://app/shop/pay/":                     {},
		"jmq://app//pay":                          {},
		"jmq://user/ann/x":                        {},
		"jmq://user/":                             {},
		"jmq://local/x":                           {},
		"jmq://user/a%2fb":                        {},
		"jmq://x@user/ann":                        {},
		"jmq://user/ann?x=1":                      {},
		"jmq://user/ann#x":                        {},
		"jmq:user/ann":                            {},
		"jmq://user/ann jmq://user/bob":           {},
		"jmq://user/ann jmq://node/b1":            {},
		"jmq://user/" + strings.Repeat("n", 1000): {},
	} {
		leaf := &x509.Certificate{NotAfter: until}
		for _, text := range strings.Fields(uris) {
			u, err := url.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			leaf.URIs = append(leaf.URIs, u)
		}
		got, err := CertificatePrincipal(leaf)
		if got != want && want != (Principal{}) || (err == nil) != (want != Principal{}) {
			t.Errorf("%s: %+v, %v", uris, got, err)
		}
		if err != nil {
			wantCode(t, err, CodeUnauthenticated)
		}
	}
}

// TestNewVerifier shows that a verifier has a salt of its own.
func TestNewVerifier(t *testing.T) {
	a, errA := NewVerifier("s")
	b, errB := NewVerifier("s")
	if errA != nil || errB != nil || len(a.Salt) != 16 || a.Iterations != 4096 || len(a.StoredKey) != 32 || len(a.ServerKey) != 32 {
		t.Fatalf("%+v, %v, %v", a, errA, errB)
	}
	if bytes.Equal(a.Salt, b.Salt) || bytes.Equal(a.StoredKey, b.StoredKey) {
		t.Error("two verifiers of a secret are the same")
	}
	if _, err := NewVerifier(""); CodeOf(err) != CodeInvalid {
		t.Error(err)
	}
}

// FuzzAuthenticate shows that nobody is let in by whatever two messages, and that the client is not by whatever a server says.
func FuzzAuthenticate(f *testing.F) {
	k, _ := newKnown(f)
	h := NewHandler(Services{}, HandlerOptions{Authenticator: k})
	request := func(data string) []byte {
		b, err := proto.Marshal(&AuthenticateRequest{Mechanism: MechanismSCRAM, Data: []byte(data)})
		if err != nil {
			f.Fatal(err)
		}
		return b
	}
	f.Add(request("n,,n=c1,r=abc"), request("c=biws,r=abc,p=AAAA"))
	f.Add(request("n,,n=nobody,r="), request("c=,r=,p="))
	f.Add(request("y,a=x,n==2C,r=abc,m=1"), []byte{})
	f.Add([]byte("\x12\x03i=9"), []byte("r=abc,s=AAAA,i=99999999999"))
	check := func(t testing.TB, first, second []byte) bool {
		hs := new(handshake)
		steps := 0
		for _, m := range [][]byte{first, second, second} {
			say, done, err := h.step(hs, m)
			if done {
				t.Fatalf("let in by %q, %q", first, second)
			}
			if err != nil {
				if _, ok := asCodeError(err); !ok || say != "" {
					t.Fatalf("%q, %v", say, err)
				}
				break
			}
			steps++
		}
		if err := checkServerFirst(second); err == nil && bytes.Contains(second, []byte(",i=100001,")) {
			t.Fatalf("%q was let through", second)
		}
		return steps > 0
	}
	pair := func(first, second []byte) []byte { return slices.Concat([]byte{byte(len(first))}, first, second) }
	mutate.Run(f, mutate.Decoder{
		Seeds: [][]byte{
			pair(request("n,,n=c1,r=abc"), request("c=biws,r=abc,p=AAAA")), pair(request("n,,n=nobody,r=abcdefgh"), []byte("r=abc,s=AAAA,i=4096")),
		},
		Slowness: 4,
		Check: func(t testing.TB, b []byte) bool {
			if len(b) == 0 {
				return false
			}
			n := min(int(b[0]), len(b)-1)
			return check(t, b[1:1+n], b[1+n:])
		},
	})
	f.Fuzz(func(t *testing.T, first, second []byte) { check(t, first, second) })
}

// FuzzError shows that what was read of an error can be written and read again.
func FuzzError(f *testing.F) {
	elsewhere := Errorf(CodeRoleElsewhere, "a role")
	elsewhere.Nodes = []string{"a:1", "b:2"}
	limited := Errorf(CodeLimited, "slow down")
	limited.RetryAfter = time.Second
	seeds := [][]byte{AppendError(nil, elsewhere), AppendError(nil, limited), {0x22, 0x05, 'a'}}
	mutate.Fuzz(f, mutate.Decoder{Seeds: seeds, Check: func(t testing.TB, b []byte) bool {
		e := ParseError(b)
		if e == nil || e.Code == CodeOK || len(e.Nodes) > errorNodesMax {
			t.Fatalf("%+v", e)
		}
		for _, n := range e.Nodes {
			if len(n) > NameBytesMax {
				t.Fatalf("a node of %d bytes", len(n))
			}
		}
		again := ParseError(AppendError(nil, e))
		if again.Code != e.Code || again.RetryAfter != e.RetryAfter || len(again.Nodes) != len(e.Nodes) {
			t.Fatalf("%+v, again %+v", e, again)
		}
		return e.Code != CodeMalformed
	}})
}
