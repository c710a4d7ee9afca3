package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/dustin/go-humanize"
	"google.golang.org/protobuf/proto"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/server/meta/sqlstore"
	"github.com/jmqio/jmq/server/registry"
	"github.com/jmqio/jmq/wire"
)

// What metadata costs: rights and limits on the way of each message, and a registry node with many objects and clients.

// fillMetadata makes the metadata of a node that is not running yet, in its folder.
func fillMetadata(ctx context.Context, folder string, objects []*meta.Object) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	store, err := sqlstore.Open(ctx, sqlstore.Options{Location: sqlstore.Location{File: filepath.Join(folder, "metadata.db")}})
	if err != nil {
		return err
	}
	for some := range slices.Chunk(objects, meta.WritesMax) {
		c := meta.Change{By: meta.Actor{Name: "local"}, Reason: "benchmark"}
		for _, o := range some {
			c.Writes = append(c.Writes, meta.Write{Key: o.Key, Spec: o.Spec, Expect: meta.Expect{Any: true}})
		}
		if _, err := store.Update(ctx, c); err != nil {
			return errors.Join(err, store.Close())
		}
	}
	return store.Close()
}

func object(kind meta.Kind, name string, spec meta.Spec) *meta.Object {
	o := &meta.Object{Key: meta.Key{Kind: kind, Name: name}, Spec: spec}
	if kind.Namespaced() {
		o.Namespace = meta.NamespaceDefault
	}
	return o
}

// identity: what authentication, rights and limits cost for each message: an app that is known by its credential, with limits on itself, its
// namespace, the topic and its right, to a broker on which everybody may do everything.
func (f *full) identity(ctx context.Context) error {
	const row, partitions = "identity", "8"
	open, err := f.startServer(ctx, "open")
	if err != nil {
		return err
	}
	defer open.drop()
	ruled, err := newServer(f.binary, f.data, "ruled", "--node.auth.required")
	if err != nil {
		return err
	}
	ruled.roles = []string{"registry", "broker"}
	far := meta.Limit{MessagesPerSecond: 1e9, BytesPerSecond: 1e12, Connections: 1e6}
	v, err := wire.NewVerifier("benchmark")
	if err != nil {
		return err
	}
	err = fillMetadata(ctx, ruled.dir, []*meta.Object{
		object(meta.KindNamespace, meta.NamespaceDefault, &meta.Namespace{Limit: far}),
		object(meta.KindBrokerGroup, "default", &meta.BrokerGroup{}),
		object(meta.KindTopic, "bench", &meta.Topic{Partitions: 8, BrokerGroups: []string{"default"}, Limit: far}),
		object(meta.KindApp, "bench", &meta.App{Limit: far}),
		object(meta.KindProducer, "bench/bench", &meta.Producer{Limit: far}),
		object(meta.KindCredential, "bench", &meta.Credential{
			OwnerKind: meta.OwnerApp, Owner: "bench", Namespace: meta.NamespaceDefault, Salt: v.Salt, Iterations: v.Iterations, StoredKey: v.StoredKey, ServerKey: v.ServerKey,
		}),
	})
	if err != nil {
		return err
	}
	credential := filepath.Join(f.data, "credential")
	if err := os.WriteFile(credential, []byte("id: bench\nsecret: benchmark\n"), 0o600); err != nil {
		return err
	}
	if _, err := ruled.start(ctx); err != nil {
		return err
	}
	defer ruled.drop()
	for _, load := range []struct {
		name  string
		flags []string
	}{{"64x1", nil}, {"8x100", []string{"--producers", "8", "--batch", "100"}}} {
		var ofOpen, ofRuled cost
		flags := f.timed(append(load.flags, "--partitions", partitions)...)
		l, err := f.pairs(load.name+" of an app with rights and four limits, to without metadata", f.size.pairs,
			f.rate(ctx, open, &ofOpen, "produce", flags...),
			f.rate(ctx, ruled, &ofRuled, "produce", append(slices.Clone(flags), "--credential-file", credential)...))
		if err != nil {
			return err
		}
		l.Row = row
		f.add(l.atLeast(0.98))
		f.addCost(row, "the same, broker CPU us a message", ofRuled, ofOpen)
		last := &f.lines[len(f.lines)-1]
		*last = last.atMost(1.02)
	}
	return nil
}

// registry: a node with the metadata of a large site: how soon it serves, how soon another node has all of it, what a change costs, and
// what clients cost that wait.
func (f *full) registry(ctx context.Context) error {
	const row = "registry"
	size := f.size.metadata
	var objects []*meta.Object
	objects = append(objects, object(meta.KindBrokerGroup, "default", &meta.BrokerGroup{}))
	for i := range size.topics {
		objects = append(objects, object(meta.KindTopic, fmt.Sprintf("topic-%05d", i), &meta.Topic{Partitions: 8, BrokerGroups: []string{"default"}, Description: "orders of one kind"}))
	}
	for i := range size.apps {
		objects = append(objects, object(meta.KindApp, fmt.Sprintf("app-%05d", i), &meta.App{Description: "a service"}))
	}
	for i := range size.subscriptions {
		name := fmt.Sprintf("topic-%05d/app-%05d", i%size.topics, (i+i/size.topics)%size.apps)
		if i%2 == 0 {
			objects = append(objects, object(meta.KindProducer, name, &meta.Producer{Timeout: meta.Duration(3 * time.Second)}))
		} else {
			objects = append(objects, object(meta.KindConsumer, name, &meta.Consumer{Concurrency: 8, AckTimeout: meta.Duration(time.Minute)}))
		}
	}
	what := fmt.Sprintf("%s topics, %s apps, %s subscriptions", humanize.Comma(int64(size.topics)), humanize.Comma(int64(size.apps)), humanize.Comma(int64(size.subscriptions)))
	for _, encrypted := range []bool{false, true} {
		name, flags := "registry", []string{"--node.listener.connectionsMax", "50000"}
		var trust *tls.Config
		if encrypted {
			cert, key, c, err := selfSigned(f.data)
			if err != nil {
				return err
			}
			name, trust = "registry-tls", c
			flags = append(flags, "--node.tls.certFile", cert, "--node.tls.keyFile", key)
		}
		s, err := newServer(f.binary, f.data, name, flags...)
		if err != nil {
			return err
		}
		s.roles = []string{"registry"}
		f.step("metadata of " + what)
		if err := fillMetadata(ctx, s.dir, objects); err != nil {
			return err
		}
		took, err := s.start(ctx)
		if err != nil {
			return err
		}
		defer s.drop()
		if !encrypted {
			f.add(newLine(row, what+": a node serves after", "s", []float64{took.Seconds()}))
			now, peak, err := s.rss()
			if err != nil {
				return err
			}
			f.add(newLine(row, "its resident memory", "MiB", []float64{float64(now) / (1 << 20)}))
			f.add(newLine(row, "the same, at most", "MiB", []float64{float64(peak) / (1 << 20)}))
			if err := f.load(row, s); err != nil {
				return err
			}
		}
		if err := f.idle(ctx, row, s, trust); err != nil {
			return err
		}
		s.drop()
	}
	return nil
}

// load measures how soon a node that knows nothing has all of it, how large that is, and how large a change.
func (f *full) load(row string, s *server) error {
	var counted countedConns
	follow := func() (*registry.Follower, time.Duration, error) {
		begin := time.Now()
		fl, err := registry.NewFollower(registry.FollowerOptions{
			Addresses: []string{s.wire}, Dial: counted.dial,
			Self: func() *wire.HeartbeatRequest { return &wire.HeartbeatRequest{Node: "bench", Boot: "bench"} },
		})
		if err == nil {
			<-fl.Ready()
		}
		return fl, time.Since(begin), err
	}
	var took []float64
	for range 5 {
		fl, d, err := follow()
		if err != nil {
			return err
		}
		took = append(took, d.Seconds())
		if err := fl.Close(); err != nil {
			return err
		}
	}
	f.add(newLine(row, "another node has all of it after", "s", took).atMost(1))
	f.add(newLine(row, "that is on the wire", "MiB", []float64{float64(counted.take()) / 5 / (1 << 20)}))
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	fl, _, err := follow()
	if err != nil {
		return err
	}
	defer fl.Close()
	runtime.GC()
	runtime.ReadMemStats(&after)
	f.add(newLine(row, "and in its memory", "MiB", []float64{(float64(after.HeapAlloc) - float64(before.HeapAlloc)) / (1 << 20)}))

	c, err := dialIdle(s.wire, nil)
	if err != nil {
		return err
	}
	defer c.close()
	var bytes, soon []float64
	for i := range 20 {
		spec, err := meta.EncodeSpec(&meta.Consumer{Concurrency: i + 1, AckTimeout: meta.Duration(time.Minute)})
		if err != nil {
			return err
		}
		known := fl.Snapshot()
		counted.take()
		told := make(chan error, 1)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		fl.WatchObjects(ctx, &wire.WatchObjectsRequest{Generation: uint64(known.Generation), Version: uint64(known.Version), WaitMs: 10_000}, func(_ *wire.WatchObjectsResponse, err error) { told <- err })
		begin := time.Now()
		err = c.conn.CallMessage(ctx, wire.CommandApplyObjects, &wire.ApplyObjectsRequest{Writes: []*wire.ObjectWrite{{
			Object: &wire.Object{Kind: string(meta.KindConsumer), Namespace: meta.NamespaceDefault, Name: "topic-00001/app-00001", Spec: spec}, Any: true,
		}}}, new(wire.ApplyObjectsResponse))
		if err == nil {
			err = <-told
		}
		cancel()
		if err != nil {
			return err
		}
		soon = append(soon, float64(time.Since(begin).Microseconds())/1000)
		bytes = append(bytes, float64(counted.take())) // with a heartbeat's answer, if one came
	}
	f.add(newLine(row, "a change of one subscription, from asked to known by the other node", "ms", soon))
	f.add(newLine(row, "bytes of it to the other node", "B", bytes))
	return nil
}

// idle measures what clients cost that watch a topic each.
func (f *full) idle(ctx context.Context, row string, s *server, trust *tls.Config) error {
	n := f.size.metadata.clients
	before, _, err := s.rss()
	if err != nil {
		return err
	}
	f.step(fmt.Sprintf("%s clients connect", humanize.Comma(int64(n))))
	clients := make([]*idleClient, n)
	defer func() {
		for _, c := range clients {
			if c != nil {
				c.close()
			}
		}
	}()
	var group sync.WaitGroup
	errs := make([]error, 32)
	for w := range errs {
		group.Go(func() {
			for i := w; i < n && errs[w] == nil && ctx.Err() == nil; i += len(errs) {
				if clients[i], errs[w] = dialIdle(s.wire, trust); errs[w] == nil {
					errs[w] = clients[i].watch(fmt.Sprintf("topic-%05d", i%f.size.metadata.topics))
				}
			}
		})
	}
	group.Wait()
	if err := errors.Join(append(errs, ctx.Err())...); err != nil {
		return err
	}
	f.step("clients wait")
	select {
	case <-time.After(f.size.metadata.rest): // so that what connecting took is given back
	case <-ctx.Done():
		return ctx.Err()
	}
	now, _, err := s.rss()
	if err != nil {
		return err
	}
	l := newLine(row, fmt.Sprintf("%s clients that wait for changes, each", humanize.Comma(int64(n))), "KiB", []float64{float64(now-before) / float64(n) / 1024})
	if trust != nil {
		l.What += ", with TLS"
	} else {
		l = l.atMost(12)
	}
	f.add(l)
	return nil
}

// idleClient is a connection that waits.
type idleClient struct {
	conn   *wire.Conn
	served chan struct{}
}

func dialIdle(address string, trust *tls.Config) (*idleClient, error) {
	var nc net.Conn
	var err error
	if trust != nil {
		nc, err = (&tls.Dialer{Config: trust}).Dial("tcp", address)
	} else {
		nc, err = net.Dial("tcp", address)
	}
	if err != nil {
		return nil, err
	}
	c := &idleClient{wire.NewConn(nc, wire.ConnOptions{}), make(chan struct{})}
	go func() { // ends with close
		_ = c.conn.Serve() // why it ended is seen by calls
		close(c.served)
	}()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := c.conn.Hello(ctx, &wire.HelloRequest{ClientId: "bench"}); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// watch asks for a topic twice: the second request waits at the server.
func (c *idleClient) watch(topic string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var first wire.WatchRoutesResponse
	r := &wire.WatchRoutesRequest{Topics: []*wire.WatchedTopic{{Topic: topic}}}
	if err := c.conn.CallMessage(ctx, wire.CommandWatchRoutes, r, &first); err != nil {
		return err
	}
	if len(first.Views) != 1 {
		return fmt.Errorf("topic %s: %d views", topic, len(first.Views))
	}
	r.WaitMs, r.Generation, r.MetadataVersion, r.Topics[0].Version = 60_000, first.Generation, first.MetadataVersion, first.Views[0].Version
	header, err := proto.Marshal(r)
	if err != nil {
		return err
	}
	if _, err := c.conn.Start(wire.CommandWatchRoutes, header, nil, func(wire.Frame, error) {}); err != nil {
		return err
	}
	c.conn.Flush()
	return nil
}

func (c *idleClient) close() {
	c.conn.Close(nil)
	<-c.served
}

// countedConns counts what is read.
type countedConns struct {
	mu   sync.Mutex
	read int64
}

func (c *countedConns) dial(ctx context.Context, address string) (net.Conn, error) {
	nc, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return &countedConn{nc, c}, nil
}

// take returns what was read since the last call.
func (c *countedConns) take() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.read
	c.read = 0
	return n
}

type countedConn struct {
	net.Conn
	all *countedConns
}

func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.all.mu.Lock()
	c.all.read += int64(n)
	c.all.mu.Unlock()
	return n, err
}

// selfSigned makes a certificate for 127.0.0.1.
func selfSigned(folder string) (certFile, keyFile string, trust *tls.Config, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return "", "", nil, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return "", "", nil, err
	}
	certFile, keyFile = filepath.Join(folder, "bench.pem"), filepath.Join(folder, "bench.key")
	pair := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := os.WriteFile(certFile, pair, 0o600); err != nil {
		return "", "", nil, err
	}
	if err := os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600); err != nil {
		return "", "", nil, err
	}
	trust = &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	trust.RootCAs.AppendCertsFromPEM(pair)
	return certFile, keyFile, trust, nil
}
