package servertest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/server"
	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/server/replica/replicatest"
	"github.com/jmqio/jmq/wire"
)

// ClusterOptions says what StartCluster starts.
type ClusterOptions struct {
	Registries   int // nodes r1, r2, ... over one database. Default: 1
	BrokerGroups int // bg1, bg2, ... of a broker each: b1, b2, .... Default: 1; below 0: none
	// Slaves each broker group has beside: b1s1, b1s2, ... of bg1. With any the nodes are joined by Links.
	Slaves int
	Auto   bool // broker groups promote a slave by themselves
	// Memory keeps what brokers store in file systems in memory, which a Kill or a PowerLoss can take at any moment.
	Memory bool
	// DSN is the database. Empty: a SQLite file.
	DSN string
	// Store gives each registry node its metadata in place of a database. nil: the database.
	Store func(registry int) meta.Store
	// Network joins the nodes, which must have slaves then. nil: TCP.
	Network *Network
	Auth    bool // everybody must say who he is
	TLS     bool // connections are encrypted
	// Each changes the configuration of a node. nil: nothing.
	Each Option
}

// Cluster is registry nodes and brokers in this process.
type Cluster struct {
	Registries []*Server
	Brokers    []*Server       // the first of each broker group
	Groups     []*ReplicaGroup // the same with their slaves
	Authority  *Authority      // with TLS
	Links      *Links          // between the nodes; nil without Slaves

	t testing.TB
	o ClusterOptions
}

// StartCluster returns a cluster that serves, ended with the test.
func StartCluster(t testing.TB, o ClusterOptions) *Cluster {
	t.Helper()
	o.Registries = max(o.Registries, 1)
	if o.BrokerGroups == 0 {
		o.BrokerGroups = 1
	}
	c := &Cluster{t: t, o: o}
	if o.TLS {
		c.Authority = NewAuthority(t)
	}
	if o.Slaves > 0 {
		c.Links = newLinks(o.Network)
	}
	file := filepath.Join(t.TempDir(), "metadata.db")
	for i := range o.Registries {
		c.Registries = append(c.Registries, Start(t, c.node(fmt.Sprintf("r%d", i+1), server.RoleRegistry), func(s *server.Config) {
			if o.Auth { // by which it asks brokers
				s.Node.Registry.CredentialFile = filepath.Join(t.TempDir(), "credential")
			}
			switch {
			case o.Store != nil:
				s.Metadata = o.Store(i)
			case o.DSN != "":
				s.Registry.DSN, s.Registry.Insecure = o.DSN, true
			default:
				s.Registry.File = file
			}
		}))
	}
	for _, r := range c.Registries {
		if o.Auth { // read for each connection
			c.writeCredential(r.config.Node.Registry.CredentialFile, meta.OwnerNode, r.Name())
		}
		c.linked(r)
	}
	for range max(o.BrokerGroups, 0) {
		c.AddBroker()
		for range o.Slaves {
			c.AddSlave(len(c.Groups))
		}
	}
	return c
}

// AddBroker starts a broker of a broker group of its own.
func (c *Cluster) AddBroker(options ...Option) *Server {
	c.t.Helper()
	g := &ReplicaGroup{Name: fmt.Sprintf("bg%d", len(c.Groups)+1), c: c}
	if c.o.Auto {
		c.Apply(Object{Key(meta.KindBrokerGroup, g.Name), &meta.BrokerGroup{Mode: meta.BrokerGroupAuto}})
	}
	b := c.startBroker(g, fmt.Sprintf("b%d", len(c.Brokers)+1), options)
	c.Brokers, c.Groups = append(c.Brokers, b), append(c.Groups, g)
	return b
}

// AddSlave starts one more broker of broker group n, the first being 1.
func (c *Cluster) AddSlave(n int, options ...Option) *Server {
	c.t.Helper()
	g := c.Groups[n-1]
	return c.startBroker(g, fmt.Sprintf("b%ds%d", n, len(g.Brokers)), append([]Option{func(s *server.Config) { s.Broker.Slave = true }}, options...))
}

func (c *Cluster) startBroker(g *ReplicaGroup, name string, options []Option) *Server {
	c.t.Helper()
	b := c.startNode(g, name, options)
	g.Brokers = append(g.Brokers, b)
	return b
}

// StartTwin starts a broker with a disk of its own that has the name of s, a slave of broker group n. It is none of the group's Brokers.
func (c *Cluster) StartTwin(n int, s *Server) *Server {
	c.t.Helper()
	return c.startNode(c.Groups[n-1], s.Name()+"-twin", []Option{func(twin *server.Config) { twin.Broker.Slave, twin.Node.Name = true, s.Name() }})
}

func (c *Cluster) startNode(g *ReplicaGroup, name string, options []Option) *Server {
	c.t.Helper()
	b := Start(c.t, append([]Option{c.node(name, server.RoleBroker), func(s *server.Config) {
		s.Broker.BrokerGroup = g.Name
		s.Node.Registry.Addresses = Addresses(c.Registries)
		if c.o.Auth {
			s.Node.Registry.CredentialFile = c.CredentialFile(meta.OwnerNode, name)
		}
		if c.Authority != nil {
			s.Node.Registry.CAFile = c.Authority.CAFile
		}
		if c.o.Memory {
			s.FS, s.Machine = replicatest.NewDisk(), "machine 1"
		}
	}}, options...)...)
	c.linked(b)
	return b
}

// linked tells the links where a node listens.
func (c *Cluster) linked(s *Server) {
	if c.Links != nil {
		c.Links.name(s.Address(), s.Name())
	}
}

// node is what every node of the cluster has.
func (c *Cluster) node(name string, role server.Role) Option {
	return func(s *server.Config) {
		s.Node.Name = name
		s.Roles = []server.Role{role}
		s.Node.Auth.Required = c.o.Auth
		if c.Authority != nil {
			s.Node.TLS.CertFile, s.Node.TLS.KeyFile = c.Authority.Issue(c.t, name, "")
		}
		if c.Links != nil {
			s.Dial, s.Listen = c.Links.dialer(name), c.Links.listens(name)
		}
		if c.o.Each != nil {
			c.o.Each(s)
		}
	}
}

// Addresses are where nodes listen.
func Addresses(nodes []*Server) []string {
	var list []string
	for _, n := range nodes {
		list = append(list, n.Address())
	}
	return list
}

// BrokerAddresses are those of all brokers, for Dial.
func (c *Cluster) BrokerAddresses() string { return strings.Join(Addresses(c.Brokers), ",") }

// Dial connects a client to addresses, closed when the test ends; by TLS if the cluster has it.
func (c *Cluster) Dial(addresses string, options ...client.Option) *client.Client {
	c.t.Helper()
	cl, err := c.TryDial(addresses, options...)
	if err != nil {
		c.t.Fatal(err)
	}
	return cl
}

// TryDial is Dial of which the test sees the error.
func (c *Cluster) TryDial(addresses string, options ...client.Option) (*client.Client, error) {
	if c.Authority != nil {
		options = append([]client.Option{client.WithTLSFiles(c.Authority.CAFile, "", "")}, options...)
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	cl, err := client.Dial(ctx, addresses, options...)
	if err == nil {
		c.t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_ = cl.Close(ctx) // what it did not wait for is of no matter any more
		})
	}
	return cl, err
}

// Object is one of ApplyObjects; without a Spec it is deleted.
type Object struct {
	Key  meta.Key
	Spec meta.Spec
}

// Apply changes the metadata at a registry node, in one change, whatever is there, or fails the test. It returns the version that has it.
func Apply(t testing.TB, at *Server, objects ...Object) uint64 {
	t.Helper()
	r := &wire.ApplyObjectsRequest{Reason: "test"}
	for _, o := range objects {
		w := &wire.ObjectWrite{Object: &wire.Object{Kind: string(o.Key.Kind), Namespace: o.Key.Namespace, Name: o.Key.Name}, Any: true}
		if o.Spec != nil {
			spec, err := meta.EncodeSpec(o.Spec)
			if err != nil {
				t.Fatal(err)
			}
			w.Object.Spec = spec
		}
		r.Writes = append(r.Writes, w)
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	response, err := at.get().Registry().ApplyObjects(ctx, r)
	if err != nil {
		t.Fatalf("servertest: apply: %v", err)
	}
	return response.Version
}

// Apply is Apply at the first registry node, and waits until it is in force at all brokers.
func (c *Cluster) Apply(objects ...Object) {
	c.t.Helper()
	version := Apply(c.t, c.Registries[0], objects...)
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	var all []*Server
	for _, g := range c.Groups {
		all = append(all, g.Brokers...)
	}
	for _, b := range all {
		// Answered as soon as the broker has something newer than the version before.
		r := &wire.WatchObjectsRequest{Generation: c.generation(ctx), Version: version - 1, WaitMs: 30_000}
		answered := make(chan error, 1)
		b.Registry().WatchObjects(ctx, r, func(_ *wire.WatchObjectsResponse, err error) { answered <- err })
		if err := <-answered; err != nil {
			c.t.Fatalf("servertest: version %d is not in force at %s: %v", version, b.config.Node.Name, err)
		}
	}
}

func (c *Cluster) generation(ctx context.Context) uint64 {
	c.t.Helper()
	r, err := c.Registries[0].Registry().ListObjects(ctx, &wire.ListObjectsRequest{Limit: 1})
	if err != nil {
		c.t.Fatal(err)
	}
	return r.Generation
}

// CreateCredential makes one at the first registry node.
func (c *Cluster) CreateCredential(ownerKind, owner string) wire.Credentials {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	r, err := c.Registries[0].get().Registry().CreateCredential(ctx, &wire.CreateCredentialRequest{OwnerKind: ownerKind, Owner: owner, Reason: "test"})
	if err != nil {
		c.t.Fatalf("servertest: credential of %s %s: %v", ownerKind, owner, err)
	}
	return wire.Credentials{ID: r.Id, Secret: wire.Secret(r.Secret)}
}

// CredentialFile makes a credential, and the file by which a node or a client shows it.
func (c *Cluster) CredentialFile(ownerKind, owner string) string {
	c.t.Helper()
	name := filepath.Join(c.t.TempDir(), "credential")
	c.writeCredential(name, ownerKind, owner)
	return name
}

func (c *Cluster) writeCredential(name, ownerKind, owner string) {
	c.t.Helper()
	who := c.CreateCredential(ownerKind, owner)
	if err := os.WriteFile(name, []byte("id: "+who.ID+"\nsecret: "+string(who.Secret)+"\n"), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

// Key names an object of the default namespace, or of none.
func Key(kind meta.Kind, name string) meta.Key {
	k := meta.Key{Kind: kind, Name: name}
	if kind.Namespaced() {
		k.Namespace = meta.NamespaceDefault
	}
	return k
}

// Authority signs certificates for 127.0.0.1.
type Authority struct {
	CAFile string
	dir    string
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
}

// NewAuthority makes an authority in a temporary folder.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{dir: t.TempDir()}
	a.CAFile = filepath.Join(a.dir, "ca.pem")
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.cert, a.key = a.sign(t, template, a.CAFile, "")
	return a
}

// Issue writes a certificate for 127.0.0.1 that is good for a day, and its key, to files named name, in place of those that are there.
// identity is its URI, as jmq://node/b1; empty: none.
func (a *Authority) Issue(t testing.TB, name, identity string) (certFile, keyFile string) {
	t.Helper()
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, KeyUsage: x509.KeyUsageDigitalSignature,
	}
	if identity != "" {
		u, err := url.Parse(identity)
		if err != nil {
			t.Fatal(err)
		}
		template.URIs = []*url.URL{u}
	}
	certFile, keyFile = filepath.Join(a.dir, name+".pem"), filepath.Join(a.dir, name+".key")
	a.sign(t, template, certFile, keyFile)
	return certFile, keyFile
}

// sign makes a key and a certificate of it, by the authority or, for its own, by itself.
func (a *Authority) sign(t testing.TB, template *x509.Certificate, certFile, keyFile string) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	fatal := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	fatal(err)
	template.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62))
	fatal(err)
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	parent, by := a.cert, a.key
	if parent == nil {
		parent, by = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, by)
	fatal(err)
	fatal(os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	if keyFile != "" {
		secret, err := x509.MarshalPKCS8PrivateKey(key)
		fatal(err)
		fatal(os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600))
	}
	cert, err := x509.ParseCertificate(der)
	fatal(err)
	return cert, key
}
