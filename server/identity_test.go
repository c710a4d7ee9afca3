package server

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/wire"
)

// TestOpenPort shows which ports may be reached from other machines: one where everybody must say who he is, or where the operator says
// that everybody may do everything.
func TestOpenPort(t *testing.T) {
	ca := func(c *Config) {
		c.Node.TLS = TLSConfig{CertFile: "/cert", KeyFile: "/key", ClientCAFile: "/ca"}
	}
	auth := func(c *Config) { c.Node.Auth.Required = true }
	wirePort := func(c *Config) { c.Node.Wire.Listen = "0.0.0.0:0" }
	adminPort := func(c *Config) { c.Node.Admin.Listen = "[::]:0" }
	insecure := func(c *Config) { c.Node.Auth.InsecureWithoutAuthentication = true }
	https := func(c *Config) { c.Node.Admin.TLS = true }
	registry := func(c *Config) { c.Roles, c.Node.Advertise = Roles, []string{"node:50088"} }
	nowhere := func(c *Config) { c.Node.Advertise = nil }
	for name, test := range map[string]struct {
		with []func(*Config)
		key  string // that is refused; "": none
	}{
		"loopback":                            {nil, ""},
		"wire port":                           {[]func(*Config){wirePort}, "node.wire.listen"},
		"wire port with authentication":       {[]func(*Config){wirePort, auth, registry}, ""},
		"wire port that nobody can be told":   {[]func(*Config){wirePort, auth, registry, nowhere}, "node.advertise"},
		"wire port told as any":               {[]func(*Config){wirePort, auth, registry, func(c *Config) { c.Node.Advertise = []string{"[::]:50088"} }}, "node.advertise"},
		"wire port with client certificates":  {[]func(*Config){wirePort, ca, registry}, ""},
		"wire port on purpose":                {[]func(*Config){wirePort, insecure}, ""},
		"admin port":                          {[]func(*Config){adminPort}, "node.admin.listen"},
		"admin port with authentication":      {[]func(*Config){adminPort, auth, registry}, "node.admin.listen"},
		"admin port by HTTPS":                 {[]func(*Config){adminPort, auth, registry, https, func(c *Config) { ca(c); c.Node.TLS.ClientCAFile = "" }}, "node.admin.listen"},
		"admin port with client certificates": {[]func(*Config){adminPort, registry, https, ca}, ""},
		"admin port on purpose":               {[]func(*Config){adminPort, insecure}, ""},
		"both":                                {[]func(*Config){wirePort, auth, registry, insecure}, "node.auth.insecureWithoutAuthentication"},
		"authentication without a registry":   {[]func(*Config){auth}, "node.auth.required"},
		"HTTPS without a certificate":         {[]func(*Config){https}, "node.tls.certFile"},
	} {
		c := testConfig(t)
		c.Roles = []Role{RoleBroker}
		for _, f := range test.with {
			f(&c)
		}
		err := c.Validate()
		e, _ := errors.AsType[*KeyError](err)
		switch {
		case test.key == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case test.key != "" && (e == nil || !strings.Contains(err.Error(), test.key+": ")):
			t.Errorf("%s: %v, want that %s is refused", name, err, test.key)
		}
	}
	c := testConfig(t)
	wirePort(&c)
	insecure(&c)
	s, _ := run(t, c) // it does start
	if !strings.HasPrefix(s.WireAddress(), "0.0.0.0:") && !strings.HasPrefix(s.WireAddress(), "[::]:") {
		t.Errorf("it listens on %s", s.WireAddress())
	}
}

// TestAdminCaller shows who is served at the admin port: callers of this machine, and others by a certificate of a node or of a user who may
// see everything; nobody else, and nobody's certificate once he is disabled.
func TestAdminCaller(t *testing.T) {
	c := testConfig(t)
	c.Roles = []Role{RoleRegistry}
	store := meta.NewMemory(nil)
	c.Metadata = store
	s, _ := run(t, c)
	spec := func(u *meta.User) []byte {
		b, err := meta.EncodeSpec(u)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	user := func(name string, u *meta.User) {
		t.Helper()
		_, err := s.Registry().ApplyObjects(t.Context(), &wire.ApplyObjectsRequest{Writes: []*wire.ObjectWrite{{
			Object: &wire.Object{Kind: string(meta.KindUser), Name: name, Spec: spec(u)}, Any: true,
		}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	user("viewer", &meta.User{Role: meta.RoleViewer})
	user("plain", &meta.User{Role: meta.RoleUser})
	user("gone", &meta.User{Role: meta.RoleAdmin, Disabled: true})
	awaitVersion(t, s, uint64(store.View().Version))
	served := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	for _, test := range []struct {
		from, identity string // "": no certificate
		want           int
	}{
		{"127.0.0.1:5", "", 200}, {"[::1]:5", "", 200},
		{"10.0.0.1:5", "", 401}, {"nonsense", "", 401},
		{"10.0.0.1:5", "jmq://user/viewer", 200}, {"10.0.0.1:5", "jmq://node/b1", 200},
		{"10.0.0.1:5", "jmq://user/plain", 403}, {"10.0.0.1:5", "jmq://user/gone", 403}, {"10.0.0.1:5", "jmq://user/nobody", 403},
		{"10.0.0.1:5", "jmq://app/default/shop", 403}, {"10.0.0.1:5", "https://example.com", 403},
	} {
		r := &http.Request{RemoteAddr: test.from}
		if test.identity != "" {
			u, err := url.Parse(test.identity)
			if err != nil {
				t.Fatal(err)
			}
			leaf := &x509.Certificate{URIs: []*url.URL{u}, NotAfter: time.Now().Add(time.Hour)}
			r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}, VerifiedChains: [][]*x509.Certificate{{leaf}}}
		}
		w := &recorder{header: http.Header{}}
		s.knownCaller(served).ServeHTTP(w, r)
		if w.code != test.want {
			t.Errorf("from %s with %q: %d, want %d", test.from, test.identity, w.code, test.want)
		}
	}
}

// TestSameTopicInTwoNamespaces shows that metrics tell topics of two namespaces apart.
func TestSameTopicInTwoNamespaces(t *testing.T) {
	c := testConfig(t)
	c.Roles = Roles
	s, _ := run(t, c)
	var writes []*wire.ObjectWrite
	for _, o := range []struct {
		key  meta.Key
		spec meta.Spec
	}{
		{meta.Key{Kind: meta.KindNamespace, Name: "test"}, &meta.Namespace{}},
		{meta.Key{Kind: meta.KindTopic, Namespace: "test", Name: "orders"}, &meta.Topic{Partitions: 1, BrokerGroups: []string{"default"}}},
		{meta.Key{Kind: meta.KindTopic, Namespace: "default", Name: "orders"}, &meta.Topic{Partitions: 1, BrokerGroups: []string{"default"}}},
	} {
		b, err := meta.EncodeSpec(o.spec)
		if err != nil {
			t.Fatal(err)
		}
		writes = append(writes, &wire.ObjectWrite{Object: &wire.Object{Kind: string(o.key.Kind), Namespace: o.key.Namespace, Name: o.key.Name, Spec: b}, Create: true})
	}
	r, err := s.Registry().ApplyObjects(t.Context(), &wire.ApplyObjectsRequest{Writes: writes})
	if err != nil {
		t.Fatal(err)
	}
	awaitVersion(t, s, r.Version)
	status, metrics := get(t, s, "/metrics")
	for _, want := range []string{`jmq_topic_partitions{topic="orders"} 1`, `jmq_topic_partitions{topic="test:orders"} 1`} {
		if status != 200 || !strings.Contains(metrics, want) {
			t.Errorf("/metrics (%d) has no %s: %.300s", status, want, metrics)
		}
	}
}

// awaitVersion waits until a version of the metadata is in force.
func awaitVersion(t *testing.T, s *Server, version uint64) {
	t.Helper()
	md := s.metadata.Load()
	answered := make(chan error, 1)
	r := &wire.WatchObjectsRequest{Generation: uint64(md.known.Load().Generation), Version: version - 1, WaitMs: 30_000}
	md.registry().WatchObjects(t.Context(), r, func(_ *wire.WatchObjectsResponse, err error) { answered <- err })
	if err := receive(t, answered); err != nil {
		t.Fatal(err)
	}
}

// A node does not start with a credential that others may read.
func TestOpenCredentialFile(t *testing.T) {
	c := testConfig(t)
	c.Node.Registry.Addresses = []string{"127.0.0.1:1"}
	c.Node.Registry.CredentialFile = filepath.Join(t.TempDir(), "node.credential")
	if err := os.WriteFile(c.Node.Registry.CredentialFile, []byte("id: a\nsecret: b\n"), 0o640); err != nil {
		t.Fatal(err)
	}
	err := fails(t, c)
	if start, ok := errors.AsType[*StartError](err); !ok || !strings.Contains(start.Next, "chmod 600") {
		t.Errorf("%v, want that the file's mode is refused", err)
	}
}
