package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jmqio/jmq/wire"
	"google.golang.org/protobuf/proto"
)

// testCache is the route cache of a client with the app a, and what is logged.
func testCache(folder string, addrs ...string) (*routeCache, *bytes.Buffer) {
	var log bytes.Buffer
	o := &options{app: "a", routeCache: folder, logger: slog.New(slog.NewTextHandler(&log, nil))}
	return newRouteCache(o, addrs), &log
}

// smallCache returns what a cache may have, and its bytes.
func smallCache(t *testing.T, scope cacheScope) (*wire.WatchRoutesResponse, []byte) {
	t.Helper()
	want := &wire.WatchRoutesResponse{Generation: 3, MetadataVersion: 9, Registry: []string{"r1:1"}}
	v := &wire.TopicView{Topic: "orders", Group: "g", Version: 77, Route: routeTo(1, "bg1"), Consumer: &wire.ConsumerSettings{Concurrency: new(uint32(4))}}
	view, err := proto.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	b, err := encodeRoutes(scope, want, [][]byte{view})
	if err != nil {
		t.Fatal(err)
	}
	want.Views = []*wire.TopicView{v}
	return want, b
}

// What was written is read; with any bit another one, anything missing or more, or for another client it is refused.
func TestRouteCacheBytes(t *testing.T) {
	scope := cacheScope{1, 2, 3}
	want, b := smallCache(t, scope)
	if got, err := decodeRoutes(scope, b); err != nil || !proto.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	for n := range b {
		if got, err := decodeRoutes(scope, b[:n]); err == nil {
			t.Errorf("the first %d of %d bytes are %v", n, len(b), got)
		}
	}
	for bit := range 8 * len(b) {
		b[bit/8] ^= 1 << (bit % 8)
		if got, err := decodeRoutes(scope, b); err == nil {
			t.Errorf("with bit %d another one it is %v", bit, got)
		}
		b[bit/8] ^= 1 << (bit % 8)
	}
	if _, err := decodeRoutes(scope, append(bytes.Clone(b), 0)); err == nil {
		t.Error("a byte more is taken")
	}
	if _, err := decodeRoutes(cacheScope{1, 2, 4}, b); err == nil || !strings.Contains(err.Error(), "another app") {
		t.Errorf("of another client: %v", err)
	}
	none, err := encodeRoutes(scope, &wire.WatchRoutesResponse{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := decodeRoutes(scope, none); err == nil {
		t.Error("no generation is taken")
	}
	// What does not fit is left out.
	big := make([]byte, cacheBytesMax/3)
	if b, err := encodeRoutes(scope, want, [][]byte{big, big, big, big}); err != nil || len(b) > cacheBytesMax || len(b) < 2*len(big) {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

// Files have a name for each app, credential and set of addresses. One that others may have written, or that is none, is told
// and not looked at; that there is none is nothing to tell.
func TestRouteCacheLoad(t *testing.T) {
	folder := t.TempDir()
	c, log := testCache(folder, "h:1", "h:2")
	if same, _ := testCache(folder, "h:2", "h:1"); same.name != c.name {
		t.Error("the order of addresses makes another file")
	}
	who := func() (wire.Credentials, error) { return wire.Credentials{ID: "a"}, nil }
	for _, o := range []*options{{app: "b"}, {}, {credentials: who}} {
		if o.routeCache = folder; newRouteCache(o, []string{"h:1", "h:2"}).name == c.name {
			t.Errorf("another identity has the same file: %+v", o)
		}
	}
	if other, _ := testCache(folder, "h:1"); other.name == c.name {
		t.Error("other addresses have the same file")
	}
	if c.load() != nil || log.Len() > 0 {
		t.Errorf("no file: %v", log)
	}
	want, b := smallCache(t, c.scope)
	for mode, good := range map[os.FileMode]bool{0o600: true, 0o400: true, 0o640: false, 0o620: false, 0o604: false, 0o602: false, 0o666: false} {
		log.Reset()
		os.Remove(c.path())
		if err := errors.Join(os.WriteFile(c.path(), b, 0o600), os.Chmod(c.path(), mode)); err != nil {
			t.Fatal(err)
		}
		if got := c.load(); (got != nil) != good || good && !proto.Equal(got, want) || (log.Len() == 0) != good {
			t.Errorf("mode %#o: %v, %v", mode, got, log)
		}
	}
	for what, make := range map[string]func() error{
		"cut":             func() error { return os.WriteFile(c.path(), b[:len(b)-1], 0o600) },
		"empty":           func() error { return os.WriteFile(c.path(), nil, 0o600) },
		"much too large":  func() error { return errors.Join(os.WriteFile(c.path(), b, 0o600), os.Truncate(c.path(), 1<<40)) },
		"a folder":        func() error { return os.Mkdir(c.path(), 0o700) },
		"a pipe":          func() error { return syscall.Mkfifo(c.path(), 0o600) },
		"a symbolic link": func() error { return os.Symlink(filepath.Join(folder, "elsewhere"), c.path()) },
	} {
		log.Reset()
		if err := errors.Join(os.Remove(c.path()), make()); err != nil {
			t.Fatal(what, err)
		}
		if got := c.load(); got != nil || !strings.Contains(log.String(), "WARN") {
			t.Errorf("%s: %v, %v", what, got, log)
		}
	}
}

// fullFile fails at one step.
type fullFile struct {
	cacheFile
	write, sync error
}

func (f *fullFile) Write(b []byte) (int, error) {
	if f.write != nil {
		n, _ := f.cacheFile.Write(b[:len(b)/2])
		return n, f.write
	}
	return f.cacheFile.Write(b)
}

func (f *fullFile) Sync() error {
	if f.sync != nil {
		return f.sync
	}
	return f.cacheFile.Sync()
}

// A disk that fails is told once, the file before stays, and nothing else; when it is well again the file is written, with mode 0600 and
// in place of whatever is there. What a process left that died is removed once it is old.
func TestRouteCacheWrite(t *testing.T) {
	top := t.TempDir()
	folder := filepath.Join(top, "a", "b")
	c, log := testCache(folder, "h:1")
	_, b := smallCache(t, c.scope)
	c.content = func() ([]byte, error) { return b, nil }
	files := func() (names []string) {
		list, err := os.ReadDir(folder)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range list {
			names = append(names, f.Name())
		}
		return names
	}
	c.write()
	if got := files(); len(got) != 1 || got[0] != c.name || c.load() == nil || log.Len() > 0 {
		t.Fatalf("%v, %v", got, log)
	}
	good, first := c.create, b
	b = []byte("another one")
	for _, f := range []fullFile{{write: syscall.ENOSPC}, {sync: syscall.EIO}} {
		c.create = func(folder, pattern string) (cacheFile, error) {
			f := f
			var err error
			f.cacheFile, err = good(folder, pattern)
			return &f, err
		}
		c.write()
	}
	c.create = func(string, string) (cacheFile, error) { return nil, syscall.EACCES }
	c.write()
	now, err := os.ReadFile(c.path())
	if got := files(); len(got) != 1 || err != nil || !bytes.Equal(now, first) || strings.Count(log.String(), "WARN") != 1 {
		t.Errorf("on a disk that fails: %v, %v, %v", got, err, log)
	}
	c.create = good
	left := filepath.Join(folder, c.name+".1.tmp")
	young := filepath.Join(folder, c.name+".2.tmp")
	old := time.Now().Add(-2 * cacheLeft)
	if err := errors.Join(os.WriteFile(left, nil, 0o600), os.WriteFile(young, nil, 0o600), os.Chtimes(left, old, old), os.Chmod(c.path(), 0o666)); err != nil {
		t.Fatal(err)
	}
	c.write()
	now, err = os.ReadFile(c.path())
	info, _ := os.Stat(c.path())
	if got := files(); len(got) != 2 || got[1] != filepath.Base(young) || err != nil || string(now) != "another one" || info.Mode() != 0o600 {
		t.Errorf("well again: %v, %q, %v, %v", got, now, info.Mode(), err)
	}

	// A folder that cannot be.
	log.Reset()
	c.folder = filepath.Join(c.path(), "below-a-file")
	c.write()
	c.write()
	if strings.Count(log.String(), "WARN") != 1 {
		t.Errorf("a folder that cannot be: %v", log)
	}
}

// Processes that share a file, and write it at the same time, never leave one that cannot be read.
func TestRouteCacheShared(t *testing.T) {
	folder := t.TempDir()
	var writers sync.WaitGroup
	stop := make(chan struct{})
	for i := range 3 {
		c, log := testCache(folder, "h:1")
		_, b := smallCache(t, c.scope)
		c.content = func() ([]byte, error) { return b, nil }
		c.write()
		writers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					c.write()
				}
				if log.Len() > 0 {
					t.Errorf("writer %d: %v", i, log)
					return
				}
			}
		})
	}
	c, log := testCache(folder, "h:1")
	for range 200 {
		if c.load() == nil {
			t.Errorf("not read: %v", log)
			break
		}
	}
	close(stop)
	writers.Wait()
}

// knows makes a broker of the fake cluster one that holds metadata, as brokers with a registry do.
func (c *fakeCluster) knows(name string) {
	c.servers[name+":1"].h = wire.NewHandler(wire.Services{Broker: c.brokers[name], Admin: c.brokers[name], Registry: &fakeRegistry{fakeMetadata: c.meta}},
		wire.HandlerOptions{Broker: name, BrokerGroup: name, Roles: []string{"broker"}})
}

func (c *fakeCluster) registryDown() {
	for _, addr := range strings.Split(registryNodes, ",") {
		c.servers[addr].kill(true)
	}
}

// remember has a client that saw orders fill the cache in folder.
func (c *fakeCluster) remember(folder string) {
	c.t.Helper()
	cl, err := Dial(context.Background(), registryNodes, WithDialer(c.dial), WithApp("app"), WithRouteCache(folder))
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := producer(c.t, cl).Send(context.Background(), &Message{}); err != nil {
		c.t.Fatal(err)
	}
	if err := consumer(c.t, cl).Subscribe(context.Background()); err != nil {
		c.t.Fatal(err)
	}
	if err := cl.Close(context.Background()); err != nil {
		c.t.Fatal(err)
	}
}

// A client starts from its cache when no registry node is there, and from nothing else; what brokers know better is believed, what is older is
// not; and the registry nodes are found again.
func TestRouteCacheStart(t *testing.T) {
	inBubble(t, 2, 1, func(t *testing.T, c *fakeCluster) {
		ctx, folder := context.Background(), t.TempDir()
		c.knows("bg1")
		c.knows("bg2")
		c.put(1, "bg1")
		c.remember(folder)
		c.registryDown()
		generation := func(n uint64) {
			c.meta.mu.Lock()
			defer c.meta.mu.Unlock()
			c.meta.mu.generation = n
		}
		generation(0) // what brokers have is of a database of before
		c.put(1, "bg2")
		if _, err := Dial(ctx, registryNodes, WithDialer(c.dial), WithApp("app")); !errors.Is(err, ErrDisconnected) {
			t.Errorf("without a cache: %v", err)
		}
		if _, err := Dial(ctx, registryNodes, WithDialer(c.dial), WithApp("other"), WithRouteCache(folder)); !errors.Is(err, ErrDisconnected) {
			t.Errorf("with the cache of another app: %v", err)
		}
		cl := c.connect(registryNodes, WithRouteCache(folder))
		p, k := producer(t, cl), consumer(t, cl, Start(FromBeginning))
		send := func(what, want string) {
			t.Helper()
			if r, err := p.Send(ctx, &Message{}); err != nil || r.BrokerGroup != want {
				t.Errorf("%s: %+v, %v, want at %s", what, r, err, want)
			}
		}
		send("from the cache", "bg1")
		time.Sleep(10 * time.Second)
		send("nobody knows as much", "bg1")
		if ds, err := k.Fetch(ctx, 10); err != nil || len(ds) == 0 {
			t.Errorf("fetch: %v, %v", ds, err)
		}
		second := c.connect(registryNodes, WithRouteCache(folder))
		if r, err := producer(t, second).Send(ctx, &Message{}); err != nil || r.BrokerGroup != "bg1" {
			t.Errorf("another client: %+v, %v", r, err)
		}
		generation(1)
		time.Sleep(5 * time.Second)
		send("a broker knows better", "bg2")
		// It was told newer things since: what the cache has of its group is not looked at any more.
		if err := consumer(t, second).Subscribe(ctx); err != nil {
			t.Error(err)
		}
		if v := second.subscription("orders", "app").view.Load(); len(v.pools) != 1 || v.pools[0].name != "bg2" {
			t.Errorf("the group is sought at %d broker groups, %+v", len(v.pools), v.pools[0])
		}

		for _, addr := range strings.Split(registryNodes, ",") {
			c.servers[addr].up()
		}
		time.Sleep(5 * time.Second)
		if l := cl.cluster.home.ready(); l == nil {
			t.Error("there is no connection to the addresses of Dial, which answer again")
		}
		c.put(1, "bg1")
		time.Sleep(time.Second)
		send("registry nodes are back", "bg1")
	})
}

// What the cache refuses is asked: a pause, or a missing right, may be over. And what a node refuses no cache grants.
func TestRouteCacheRefusals(t *testing.T) {
	inBubble(t, 1, 1, func(t *testing.T, c *fakeCluster) {
		ctx, folder := context.Background(), t.TempDir()
		c.knows("bg1")
		c.put(1, "bg1")
		c.remember(folder)
		cache, _ := testCache(folder)
		cache.name = onlyFile(t, folder)
		b, err := os.ReadFile(cache.path())
		if err != nil {
			t.Fatal(err)
		}
		r, err := decodeRoutes(cacheScope(b[cacheHead:]), b)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range r.Views {
			if v.Group == "" {
				v.Producer = &wire.ProducerSettings{Paused: new(true)}
			} else {
				v.Code = uint32(wire.CodeForbidden)
			}
		}
		if b, err = encodeRoutes(cacheScope(b[cacheHead:]), r, nil); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(cache.path(), b, 0o600); err != nil {
			t.Fatal(err)
		}
		c.registryDown()
		cl := c.connect(registryNodes, WithRouteCache(folder))
		if _, err := producer(t, cl).Send(ctx, &Message{}); err != nil {
			t.Error(err)
		}
		if err := consumer(t, cl).Subscribe(ctx); err != nil {
			t.Error(err)
		}
		asks := startAsking(t, newFakeIdentities(t, "c1", "sesame"), false)
		dial := func(ctx context.Context, addr string) (net.Conn, error) {
			if addr == "r1:1" {
				return asks.dial(ctx, addr)
			}
			return c.dial(ctx, addr)
		}
		before := c.dials("bg1:1")
		if _, err := Dial(ctx, registryNodes, WithDialer(dial), WithApp("app"), WithRouteCache(folder)); !errors.Is(err, ErrUnauthenticated) || c.dials("bg1:1") > before {
			t.Errorf("refused: %v, and %d brokers were tried", err, c.dials("bg1:1")-before)
		}
	})
}

func onlyFile(t *testing.T, folder string) string {
	t.Helper()
	list, err := os.ReadDir(folder)
	if err != nil || len(list) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	return list[0].Name()
}

// Addresses that do not answer at all hold up a start from the cache for a second, and changes that come all the time are
// written once a second.
func TestRouteCacheTimes(t *testing.T) {
	inBubble(t, 2, 1, func(t *testing.T, c *fakeCluster) {
		ctx, folder := context.Background(), t.TempDir()
		c.knows("bg1")
		c.put(1, "bg1")
		c.remember(folder)
		silent := func(ctx context.Context, addr string) (net.Conn, error) {
			if strings.HasPrefix(addr, "r") {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return c.dial(ctx, addr)
		}
		begun := time.Now()
		cl := c.connect(registryNodes, WithRouteCache(folder), WithDialer(silent))
		if d := time.Since(begun); d != startPatience {
			t.Errorf("started after %v", d)
		}
		var writes atomic.Int32
		create := cl.metadata.cache.create
		cl.metadata.cache.create = func(folder, pattern string) (cacheFile, error) {
			writes.Add(1)
			return create(folder, pattern)
		}
		if _, err := producer(t, cl).Send(ctx, &Message{}); err != nil {
			t.Fatal(err)
		}
		for i := range 100 {
			c.put(1, fmt.Sprint("bg", 1+i%2))
			time.Sleep(100 * time.Millisecond)
		}
		if n := writes.Load(); n < 5 || n > 12 {
			t.Errorf("written %d times in 10 s", n)
		}
	})
}
