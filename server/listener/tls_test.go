package listener

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jmqio/jmq/wire"
)

// authority signs certificates.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pem  []byte
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Unix(0, 0), NotAfter: time.Now().Add(1000 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return &authority{key, c, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

// issue returns a certificate for 127.0.0.1 and uri, and its key.
func (a *authority) issue(t testing.TB, until time.Time, uri string) (cert, key []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Unix(0, 0), NotAfter: until,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if uri != "" {
		u, err := url.Parse(uri)
		if err != nil {
			t.Fatal(err)
		}
		c.URIs = []*url.URL{u}
	}
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, &k.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	kd, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: kd})
}

// files writes files into a folder and returns their paths.
func files(t testing.TB, dir string, contents map[string][]byte) {
	t.Helper()
	for name, b := range contents {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// server writes what a node needs, good until then, and says where it is.
func (a *authority) server(t testing.TB, dir string, until time.Time) CertificateOptions {
	t.Helper()
	cert, key := a.issue(t, until, "")
	files(t, dir, map[string][]byte{"cert.pem": cert, "key.pem": key, "ca.pem": a.pem})
	return CertificateOptions{CertFile: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem"), ClientCAFile: filepath.Join(dir, "ca.pem")}
}

// certificates opens what the options say until the test ends.
func certificates(t testing.TB, o CertificateOptions) *Certificates {
	t.Helper()
	c, err := OpenCertificates(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// client returns what a client with a certificate for uri, or none, connects with.
func (a *authority) client(t testing.TB, uri string) *tls.Config {
	t.Helper()
	dir := t.TempDir()
	files(t, dir, map[string][]byte{"ca.pem": a.pem})
	certFile, keyFile := "", ""
	if uri != "" {
		cert, key := a.issue(t, time.Now().Add(time.Hour), uri)
		files(t, dir, map[string][]byte{"cert.pem": cert, "key.pem": key})
		certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	}
	c, err := wire.ClientTLS(filepath.Join(dir, "ca.pem"), certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	c.ServerName = "127.0.0.1"
	return c
}

func dialTLS(t testing.TB, l *Listener, c *tls.Config) *wire.Conn {
	t.Helper()
	return serve(t, tls.Client(dialRaw(t, l), c))
}

// TestTLS shows who a peer is over TLS: by its certificate, by its secret where it names a credential, or nobody.
func TestTLS(t *testing.T) {
	a, other := newAuthority(t), newAuthority(t)
	k := newKeeper(t)
	certs := certificates(t, a.server(t, t.TempDir(), time.Now().Add(time.Hour)))
	l := start(t, &fakeBroker{}, wire.HandlerOptions{Authenticator: k}, Options{TLS: certs.Config})
	hello := func(c *tls.Config, r *wire.HelloRequest) (*wire.Conn, *wire.HelloResponse, error) {
		r.ClientId = "c"
		w := dialTLS(t, l, c)
		answer, err := w.Hello(t.Context(), r)
		return w, answer, err
	}
	who := func(c *wire.Conn) *wire.Identity {
		t.Helper()
		r := new(wire.WhoAmIResponse)
		if err := c.CallMessage(t.Context(), wire.CommandWhoAmI, &wire.WhoAmIRequest{}, r); err != nil {
			t.Fatal(err)
		}
		return r.Identity
	}
	c, r, err := hello(a.client(t, "jmq://app/shop/pay"), &wire.HelloRequest{})
	if err != nil || r.Authenticate {
		t.Fatalf("with a certificate: %v, %v", r, err)
	}
	if i := who(c); i.Kind != "app" || i.Name != "pay" || i.Namespace != "shop" || i.Credential != "" || i.ExpiresNs == 0 {
		t.Errorf("by a certificate: %v", i)
	}
	if err := produce(c); err != nil {
		t.Error(err)
	}
	c, r, err = hello(a.client(t, "jmq://app/shop/pay"), &wire.HelloRequest{Credential: "c1"})
	if err != nil || !r.Authenticate {
		t.Fatalf("with both: %v, %v", r, err)
	}
	if _, err := c.Authenticate(t.Context(), k.secret); err != nil || who(c).Credential != "c1" {
		t.Errorf("by a secret: %v", err)
	}
	c, r, err = hello(a.client(t, ""), &wire.HelloRequest{})
	if err != nil || !r.Authenticate {
		t.Fatalf("with nothing: %v, %v", r, err)
	}
	wantCode(t, produce(c), wire.CodeUnauthenticated)
	if _, _, err = hello(a.client(t, "https://x/y"), &wire.HelloRequest{}); wire.CodeOf(err) != wire.CodeUnauthenticated {
		t.Errorf("with a certificate of nobody: %v", err)
	}
	// TLS 1.3 tells a client that its certificate is not taken when it reads.
	foreign := other.client(t, "jmq://user/admin")
	foreign.RootCAs = a.client(t, "").RootCAs
	if _, _, err = hello(foreign, &wire.HelloRequest{}); err == nil {
		t.Error("a certificate of another authority was taken")
	}
	old := a.client(t, "")
	old.MinVersion, old.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	if _, _, err = hello(old, &wire.HelloRequest{}); err == nil {
		t.Error("TLS 1.1 was taken")
	}
	if _, _, err = hello(other.client(t, ""), &wire.HelloRequest{}); err == nil {
		t.Error("a client took a server of another authority")
	}
	// Large frames go through both ways.
	c, _, err = hello(a.client(t, "jmq://node/b1"), &wire.HelloRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Call(t.Context(), wire.CommandProduce, produceHeader("orders"), make([]byte, wire.BatchBytesMax)); err != nil {
		t.Error(err)
	}
	for l.Metrics().TLSErrors < 3 {
		time.Sleep(time.Millisecond) // the server's side of the failures above ends by itself
	}
}

// TestTLSRequired shows that clients without a certificate can be refused.
func TestTLSRequired(t *testing.T) {
	a := newAuthority(t)
	o := a.server(t, t.TempDir(), time.Now().Add(time.Hour))
	o.RequireClientCertificate = true
	l := start(t, &fakeBroker{}, wire.HandlerOptions{Authenticator: newKeeper(t)}, Options{TLS: certificates(t, o).Config})
	if _, err := dialTLS(t, l, a.client(t, "")).Hello(t.Context(), &wire.HelloRequest{ClientId: "c"}); err == nil {
		t.Error("one without was let in")
	}
	if _, err := dialTLS(t, l, a.client(t, "jmq://node/b1")).Hello(t.Context(), &wire.HelloRequest{ClientId: "c"}); err != nil {
		t.Error(err)
	}
	o.ClientCAFile = ""
	if _, err := OpenCertificates(o); err == nil {
		t.Error("no authorities, and certificates required")
	}
}

// TestTLSGarbage shows that what is not TLS, or never ends, costs its connection only, within 5 s.
func TestTLSGarbage(t *testing.T) {
	a := newAuthority(t)
	certs := certificates(t, a.server(t, t.TempDir(), time.Now().Add(time.Hour)))
	config := certs.Config()
	good := a.client(t, "jmq://node/b1")
	synctest.Test(t, func(t *testing.T) {
		pl := newPipeListener()
		l := start(t, &fakeBroker{}, wire.HandlerOptions{Authenticator: newKeeper(t)}, Options{Listener: pl, TLS: func() *tls.Config { return config }})
		begin := time.Now()
		for name, b := range map[string][]byte{
			"nothing": nil, "HTTP": []byte("GET / HTTP/1.1\r\n\r\n"), "jmq": wire.AppendFrame(nil, wire.Frame{Kind: wire.KindRequest, Command: wire.CommandHello}),
			"a record without an end":    {22, 3, 1, 0x40, 0},
			"a handshake without an end": append([]byte{22, 3, 1, 0x3f, 0xff, 1, 0, 0xff, 0xff}, make([]byte, 0x3ffb)...),
			"endless":                    bytes.Repeat(append([]byte{22, 3, 1, 0x20, 0, 1, 0, 0xff, 0xff}, make([]byte, 0x1ffc)...), 100),
		} {
			nc := pl.dial()
			go func() { nc.Write(b) }()
			_, err := io.Copy(io.Discard, nc)
			if took := time.Since(begin); took > 5*time.Second {
				t.Errorf("%s: closed after %v, %v", name, took, err)
			}
			nc.Close()
			begin = time.Now()
		}
		synctest.Wait()
		if m := l.Metrics(); m.HalfOpen != 0 || m.Connections != 0 || m.TLSErrors != 6 {
			t.Errorf("left: %+v", m)
		}
		c := serve(t, tls.Client(pl.dial(), good))
		if _, err := c.Hello(t.Context(), &wire.HelloRequest{ClientId: "c"}); err != nil {
			t.Error(err)
		}
	})
}

// TestCertificates shows that changed files are in force for the next connection, that bad ones leave those before, once logged,
// and that a half changed pair is such a case.
func TestCertificates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, dir := newAuthority(t), t.TempDir()
		var log lockedBuffer
		o := a.server(t, dir, time.Now().Add(100*24*time.Hour))
		o.Logger = newLogger(&log)
		c := certificates(t, o)
		serial := func() *big.Int { return c.Config().Certificates[0].Leaf.SerialNumber }
		first := serial()
		time.Sleep(time.Minute)
		if m := c.Metrics(); log.String() != "" || m.Reloads != 1 || m.Errors != 0 || !m.Expires.Equal(c.Config().Certificates[0].Leaf.NotAfter) {
			t.Errorf("nothing changed, and %+v\n%s", m, log.String())
		}
		cert, key := a.issue(t, time.Now().Add(20*24*time.Hour), "")
		files(t, dir, map[string][]byte{"cert.pem": cert})
		time.Sleep(time.Minute)
		if m := c.Metrics(); serial().Cmp(first) != 0 || m.Errors != 1 || strings.Count(log.String(), "cannot be used") != 1 {
			t.Errorf("half of a pair: %+v\n%s", m, log.String())
		}
		if err := c.Reload(); err == nil {
			t.Error("no error of files that cannot be used")
		}
		files(t, dir, map[string][]byte{"key.pem": key})
		time.Sleep(reloadEvery + time.Second)
		if m := c.Metrics(); serial().Cmp(first) == 0 || m.Reloads != 2 || time.Until(m.Expires) > 20*24*time.Hour {
			t.Errorf("both: %+v\n%s", m, log.String())
		}
		if s := log.String(); strings.Count(s, "are in force") != 1 || strings.Count(s, "ends soon") != 1 || strings.Contains(s, "PRIVATE KEY") {
			t.Error(s)
		}
		second := serial()
		for _, bad := range []map[string][]byte{{"cert.pem": nil}, {"cert.pem": []byte("x")}, {"ca.pem": []byte("y")}, {"cert.pem": make([]byte, pemBytesMax+1)}} {
			files(t, dir, bad)
			if err := c.Reload(); err == nil {
				t.Errorf("%v was taken", bad)
			}
		}
		if err := os.Remove(filepath.Join(dir, "key.pem")); err != nil {
			t.Fatal(err)
		}
		if err := c.Reload(); err == nil || serial().Cmp(second) != 0 {
			t.Error(err)
		}
		files(t, dir, map[string][]byte{"cert.pem": cert, "key.pem": key, "ca.pem": a.pem})
		if err := c.Reload(); err != nil {
			t.Error(err)
		}
		if _, err := OpenCertificates(CertificateOptions{CertFile: "nowhere", KeyFile: "nowhere"}); err == nil {
			t.Error("files that are not there were taken")
		}
	})
}

// TestClientTLS shows which files a client cannot connect with.
func TestClientTLS(t *testing.T) {
	a, dir := newAuthority(t), t.TempDir()
	cert, key := a.issue(t, time.Now().Add(time.Hour), "")
	files(t, dir, map[string][]byte{"ca.pem": a.pem, "cert.pem": cert, "key.pem": key, "bad.pem": []byte("x")})
	in := func(name string) string { return filepath.Join(dir, name) }
	for _, row := range []struct {
		ca, cert, key string
		ok            bool
	}{
		{"", "", "", true}, {in("ca.pem"), "", "", true}, {"", in("cert.pem"), in("key.pem"), true},
		{in("bad.pem"), "", "", false}, {in("none.pem"), "", "", false}, {"", in("cert.pem"), "", false}, {"", in("bad.pem"), in("key.pem"), false},
	} {
		if c, err := wire.ClientTLS(row.ca, row.cert, row.key); (err == nil) != row.ok || err == nil && c.MinVersion != tls.VersionTLS12 {
			t.Errorf("%+v: %v", row, err)
		}
	}
}
