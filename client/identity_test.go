package client

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jmqio/jmq/wire"
)

// fakeIdentities knows one credential.
type fakeIdentities struct {
	sync.Mutex
	id      string
	v       wire.Verifier
	revoked bool
	unsure  bool // what it does not know may be known elsewhere
}

func newFakeIdentities(t *testing.T, id string, secret wire.Secret) *fakeIdentities {
	v, err := wire.NewVerifier(secret)
	if err != nil {
		t.Fatal(err)
	}
	return &fakeIdentities{id: id, v: v}
}

func (f *fakeIdentities) Verifier(id string) (wire.Verifier, wire.Principal, bool) {
	f.Lock()
	defer f.Unlock()
	return f.v, wire.Principal{Kind: wire.PrincipalApp, Name: "app", Credential: id}, id == f.id && !f.revoked
}

func (f *fakeIdentities) Certificate(leaf *x509.Certificate) (wire.Principal, error) {
	if leaf.Subject.CommonName != "app" {
		return wire.Principal{}, wire.Errorf(wire.CodeUnauthenticated, "unknown")
	}
	return wire.Principal{Kind: wire.PrincipalApp, Name: "app"}, nil
}

func (f *fakeIdentities) Alive(wire.Principal) error { return nil }

func (f *fakeIdentities) Namespace(string) (uint32, bool) { return 0, true }

func (f *fakeIdentities) Sure() bool {
	f.Lock()
	defer f.Unlock()
	return !f.unsure
}

func (f *fakeIdentities) revoke(yes bool) {
	f.Lock()
	defer f.Unlock()
	f.revoked = yes
}

func startAsking(t *testing.T, f *fakeIdentities, tcp bool) *fakeServer {
	b := newFakeBroker()
	b.topic("orders", 1)
	s := newFakeServer(b, tcp)
	s.h = wire.NewHandler(wire.Services{Broker: b, Admin: b}, wire.HandlerOptions{Broker: "fake", BrokerGroup: "bg1", Authenticator: f})
	t.Cleanup(s.close)
	return s
}

// Who does not say who it is, or not truly, is told so by Dial; the secret is in no error and no log.
func TestCredentials(t *testing.T) {
	s := startAsking(t, newFakeIdentities(t, "c1", "sesame"), true)
	for _, opts := range [][]Option{{}, {WithCredentials("c1", "wrong-secret")}, {WithCredentials("c2", "sesame")}} {
		var log strings.Builder
		_, err := Dial(context.Background(), "x", append(opts, WithDialer(s.dial), WithLogger(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))))...)
		if !errors.Is(err, ErrUnauthenticated) {
			t.Errorf("%d options: %v", len(opts), err)
		}
		if text := log.String() + err.Error(); strings.Contains(text, "sesame") || strings.Contains(text, "wrong-secret") {
			t.Errorf("a secret is told: %s", text)
		}
	}
	c, err := Dial(context.Background(), "x", WithDialer(s.dial), WithCredentials("c1", "sesame"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := producer(t, c).Send(context.Background(), &Message{}); err != nil {
		t.Error(err)
	}
	if err := c.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

// A broker that starts again and does not know yet whom it may let in: a send waits until it does, and is not refused.
func TestUnsure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		f := newFakeIdentities(t, "c1", "sesame")
		s := startAsking(t, f, false)
		c, err := Dial(ctx, "x", WithCredentials("c1", "sesame"), WithConns(1), WithDialer(s.dial))
		if err != nil {
			t.Fatal(err)
		}
		p := producer(t, c)
		if _, err := p.Send(ctx, &Message{}); err != nil {
			t.Fatal(err)
		}
		know := func(yes bool) {
			f.Lock()
			defer f.Unlock()
			f.revoked, f.unsure = !yes, !yes
		}
		know(false)
		s.kill(false)
		time.Sleep(100 * time.Millisecond)
		if _, err := Dial(ctx, "x", WithCredentials("c1", "sesame"), WithConns(1), WithDialer(s.dial)); !errors.Is(err, ErrMetadataAway) {
			t.Errorf("a new client is told %v", err)
		}
		time.AfterFunc(time.Second, func() { know(true) })
		if _, err := p.Send(ctx, &Message{}); err != nil {
			t.Error(err)
		}
		if err := c.Close(ctx); err != nil {
			t.Error(err)
		}
	})
}

// A credential that is revoked: sends fail at once and say why, consumers go on for a while, the broker is asked seldom; with another
// secret in the file all goes on.
func TestRevoked(t *testing.T) {
	file := filepath.Join(t.TempDir(), "credentials")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("id: c1\nsecret: sesame\n")
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		f := newFakeIdentities(t, "c1", "sesame")
		s := startAsking(t, f, false)
		var mu sync.Mutex
		dials := 0
		c, err := Dial(ctx, "x", WithCredentialsFile(file), WithApp("app"), WithConns(1), WithDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			mu.Lock()
			defer mu.Unlock()
			dials++
			return s.dial(ctx, addr)
		}))
		if err != nil {
			t.Fatal(err)
		}
		p, k := producer(t, c), consumer(t, c)
		got := make(chan string, 10)
		run := func() chan error {
			ran := make(chan error, 1)
			go func() { ran <- k.Run(ctx, func(_ context.Context, d *Delivery) error { got <- d.ID; return nil }) }()
			return ran
		}
		ran := run()
		synctest.Wait()
		if _, err := p.Send(ctx, &Message{}); err != nil {
			t.Fatal(err)
		}
		<-got
		f.revoke(true)
		s.kill(false)
		time.Sleep(100 * time.Millisecond)
		begun := time.Now()
		_, err = p.Send(ctx, &Message{})
		checkOutcome(t, err, false, ErrUnauthenticated)
		if time.Since(begun) > 100*time.Millisecond {
			t.Errorf("told after %v", time.Since(begun))
		}
		// It comes back within the consumer's patience.
		time.Sleep(10 * time.Second)
		mu.Lock()
		if dials > 12 {
			t.Errorf("%d connections tried", dials)
		}
		mu.Unlock()
		write("id: c3\nsecret: other\n")
		f.Lock()
		f.id = "c3"
		f.v, _ = wire.NewVerifier("other")
		f.revoked = false
		f.Unlock()
		time.Sleep(refusedMax)
		r, err := p.Send(ctx, &Message{})
		if err != nil {
			t.Fatal(err)
		}
		if id := <-got; id != r.MessageID {
			t.Errorf("got %s", id)
		}
		// And not.
		f.revoke(true)
		s.kill(false)
		begun = time.Now()
		if err := <-ran; !errors.Is(err, ErrUnauthenticated) || time.Since(begun) < refusedTime {
			t.Errorf("run: %v after %v", err, time.Since(begun))
		}
		if err := c.Close(ctx); err != nil {
			t.Error(err)
		}
	})
}

// The file says what is wrong, and where, but never what it holds.
func TestReadCredentials(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c")
	for text, want := range map[string]string{
		"id: a\nsecret: b\n":                   "",
		"# ours\n\nsecret: \"b\"\r\nid:   'a'": "",
		"id: a":                                "no secret",
		"":                                     "no id",
		"hunter2":                              "line 1 is not key: value",
		"id: a\nhunter2: b":                    "line 2: a key",
		"id: a\nid: hunter2\nsecret: b":        "line 2: a key",
		"id: a\nsecret:":                       "line 2 is not",
		"id: a\nsecret: " + strings.Repeat("x", 5000): "more than 4096 bytes",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := ReadCredentials(file)
		switch {
		case want == "":
			if err != nil || c.ID != "a" || c.Secret != "b" {
				t.Errorf("%q: %s, %v", text, c.ID, err)
			}
		case err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), file) || strings.Contains(err.Error(), "hunter2"):
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if err := os.WriteFile(file, []byte("id: a\nsecret: b\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	o, err := newOptions([]Option{WithCredentialsFile(file)})
	if err != nil || len(o.warnings) != 1 || !strings.Contains(o.warnings[0], "chmod 600") {
		t.Errorf("%v, %v", err, o.warnings)
	}
	if _, err := newOptions([]Option{WithCredentialsFile(file + "x")}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// Connections are encrypted, the server's name is that of the address, and a certificate of the client is an identity.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	ca, server := certificates(t, dir)
	s := newFakeServer(newFakeBroker(), true)
	defer s.close()
	s.h = wire.NewHandler(wire.Services{Broker: newFakeBroker()}, wire.HandlerOptions{Authenticator: newFakeIdentities(t, "c1", "sesame")})
	plain := s.network
	s.network = func() (net.Conn, net.Conn, error) {
		c, n, err := plain()
		if err != nil {
			return nil, nil, err
		}
		return c, tls.Server(n, &tls.Config{Certificates: []tls.Certificate{server}, ClientCAs: ca, ClientAuth: tls.VerifyClientCertIfGiven}), nil
	}
	dial := func(addr string, opts ...Option) error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		c, err := Dial(ctx, addr, append(opts, WithDialer(s.dial), WithConns(1))...)
		if err == nil {
			err = c.Close(context.Background())
		}
		return err
	}
	caFile, cert, key := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "app.pem"), filepath.Join(dir, "app.key")
	if err := dial("broker.example:1", WithTLSFiles(caFile, cert, key)); err != nil {
		t.Errorf("by certificate: %v", err)
	}
	if err := dial("broker.example:1", WithTLSFiles(caFile, "", ""), WithCredentials("c1", "sesame")); err != nil {
		t.Errorf("by secret: %v", err)
	}
	if err := dial("broker.example:1", WithTLS(&tls.Config{RootCAs: ca})); !errors.Is(err, ErrUnauthenticated) {
		t.Errorf("nobody: %v", err)
	}
	if err := dial("other.example:1", WithTLSFiles(caFile, cert, key)); !errors.Is(err, ErrDisconnected) || !strings.Contains(err.Error(), "other.example") {
		t.Errorf("another name: %v", err)
	}
	if err := dial("broker.example:1", WithTLS(new(tls.Config))); !errors.Is(err, ErrDisconnected) {
		t.Errorf("an authority that is not known: %v", err)
	}
	if err := dial("x", WithTLSFiles(caFile, cert, caFile)); err == nil {
		t.Error("a key that is none")
	}
}

// certificates makes an authority, a server broker.example and a client app; those of the client are in files.
func certificates(t *testing.T, dir string) (*x509.CertPool, tls.Certificate) {
	t.Helper()
	key := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	caKey := key()
	caCert := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	sign := func(c *x509.Certificate, k *ecdsa.PrivateKey) []byte {
		der, err := x509.CreateCertificate(rand.Reader, c, caCert, &k.PublicKey, caKey)
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	write := func(name, kind string, der []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	caDER := sign(caCert, caKey)
	write("ca.pem", "CERTIFICATE", caDER)
	pool := x509.NewCertPool()
	parsed, err := x509.ParseCertificate(caDER)
	if err != nil {
		t.Fatal(err)
	}
	pool.AddCert(parsed)
	serverKey := key()
	server := sign(&x509.Certificate{SerialNumber: big.NewInt(2), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"broker.example"}}, serverKey)
	appKey := key()
	write("app.pem", "CERTIFICATE", sign(&x509.Certificate{SerialNumber: big.NewInt(3), Subject: pkix.Name{CommonName: "app"}, NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, appKey))
	der, err := x509.MarshalECPrivateKey(appKey)
	if err != nil {
		t.Fatal(err)
	}
	write("app.key", "EC PRIVATE KEY", der)
	return pool, tls.Certificate{Certificate: [][]byte{server}, PrivateKey: serverKey}
}
