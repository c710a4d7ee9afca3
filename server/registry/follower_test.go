package registry

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/server/servertest/mutate"
	"github.com/jmqio/jmq/wire"
)

// old is a store whose snapshots do not know deletions up to floor any more, and that may be held back: then it shows what was, as one
// with an old connection to the database does.
type old struct {
	*meta.Memory
	floor atomic.Uint64
	held  atomic.Pointer[meta.Snapshot]
}

func (o *old) floored(s *meta.Snapshot) *meta.Snapshot {
	floor := meta.Version(o.floor.Load())
	if floor == 0 || floor <= s.Floor() {
		return s
	}
	floor = min(floor, s.Version)
	var objects []*meta.Object
	for _, k := range meta.Kinds {
		objects = append(objects, s.List(k)...)
	}
	gone, ok := s.Since(floor)
	if !ok {
		panic("the floor is below the floor")
	}
	for _, x := range gone {
		if x.Spec == nil {
			objects = append(objects, x)
		}
	}
	return meta.NewSnapshot(s.Generation, s.Version, floor, objects)
}

func (o *old) View() *meta.Snapshot {
	if s := o.held.Load(); s != nil {
		return s
	}
	return o.floored(o.Memory.View())
}

func (o *old) Watch(ctx context.Context, after *meta.Snapshot) (*meta.Snapshot, error) {
	for {
		s, err := o.Memory.Watch(ctx, after)
		if err != nil {
			return nil, err
		}
		if o.held.Load() == nil {
			return o.floored(s), nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// model changes metadata at random.
type model struct {
	t     testing.TB
	rnd   *rand.Rand
	store meta.Store
	n     int
}

func (m *model) change() {
	specs := map[meta.Key]meta.Spec{}
	for range 1 + m.rnd.IntN(4) {
		m.n++
		name := fmt.Sprint("t", m.rnd.IntN(20))
		switch k := topicKey(name); {
		case m.store.View().Get(k) != nil && m.rnd.IntN(3) == 0:
			specs[k] = nil
		default:
			specs[k] = &meta.Topic{Partitions: 1, BrokerGroups: []string{"group-a"}, Description: fmt.Sprint(m.n)}
		}
	}
	write(m.t, m.store, specs)
}

// TestFollowerEndsEqual shows that whatever happens to a follower (changes, connections that end in the middle of pages, deletions
// that are forgotten, new generations, nodes that are silent, down, or behind, restarts of its own from its cache) it ends with what the
// database holds, and never goes back.
func TestFollowerEndsEqual(t *testing.T) {
	rnd := newRand(t)
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 0)
		defer c.close()
		first := meta.NewMemory(nil)
		stores := []*old{{Memory: first}, {Memory: first.Another()}}
		c.nodes = make([]*Node, 2)
		c.stores = []*meta.Memory{first, first}
		start := func(i int) {
			n, err := NewNode(NodeOptions{Store: stores[i], Self: func() *wire.HeartbeatRequest {
				return &wire.HeartbeatRequest{Node: fmt.Sprint("registry-", i), Boot: "x", Roles: []string{RoleRegistry}, Addresses: []string{registryAddress(i)}}
			}})
			if err != nil {
				t.Fatal(err)
			}
			n.pageBytes = 200
			c.nodes[i] = n
			c.hosts.up(registryAddress(i), wire.NewHandler(wire.Services{Admin: n, Registry: n}, wire.HandlerOptions{Broker: "r"}))
		}
		start(0)
		start(1)
		write(t, first, map[meta.Key]meta.Spec{groupKey("group-a"): &meta.BrokerGroup{}})
		m := &model{t: t, rnd: rnd, store: first}
		var seen *meta.Snapshot
		options := func(o *FollowerOptions) {
			o.CacheFile = filepath.Join(t.TempDir(), "meta")
			o.OnSnapshot = func(s *meta.Snapshot) {
				if seen != nil && (s.Generation < seen.Generation || s.Generation == seen.Generation && s.Version < seen.Version) {
					t.Errorf("generation %d version %d after generation %d version %d", s.Generation, s.Version, seen.Generation, seen.Version)
				}
				seen = s
			}
		}
		cache := filepath.Join(t.TempDir(), "meta")
		restart := func() *Follower {
			return c.follower("a", func(o *FollowerOptions) { options(o); o.CacheFile = cache })
		}
		f := restart()
		for range 300 {
			i := rnd.IntN(2)
			switch rnd.IntN(14) {
			case 0:
				c.hosts.cut(registryAddress(i))
			case 1:
				c.hosts.mute(registryAddress(i), rnd.IntN(2) == 0)
			case 2:
				stores[i].floor.Store(uint64(first.View().Version))
			case 3:
				if _, err := first.NewGeneration(t.Context(), meta.Actor{Name: "local"}, "a test"); err != nil {
					t.Fatal(err)
				}
				stores[0].floor.Store(0)
				stores[1].floor.Store(0)
			case 4:
				if c.nodes[i] == nil {
					start(i)
				} else {
					c.stop(i)
				}
			case 5:
				if err := f.Close(); err != nil {
					t.Fatal(err)
				}
				f = restart()
			case 6:
				if stores[i].held.Load() == nil {
					stores[i].held.Store(stores[i].View())
				} else {
					stores[i].held.Store(nil)
				}
			default:
				m.change()
			}
			time.Sleep(time.Duration(rnd.IntN(300)) * time.Millisecond)
		}
		for i := range stores {
			stores[i].held.Store(nil)
			c.hosts.mute(registryAddress(i), false)
			if c.nodes[i] == nil {
				start(i)
			}
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if d := differ(f.Snapshot(), first.View()); d != "" {
			t.Errorf("the follower and the database differ: %s; %+v", d, f.Metrics())
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		kept, err := readCache(cache, "a")
		if err != nil {
			t.Fatal(err)
		}
		if d := differ(kept, first.View()); d != "" {
			t.Errorf("the cache and the database differ: %s", d)
		}
	})
}

// TestStaleNode shows that a node which is held back neither turns a follower back nor keeps it from what is new.
func TestStaleNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2)
		defer c.close()
		f := c.follower("a", nil)
		defer f.Close()
		time.Sleep(time.Second)
		c.stores[0].Fail(errors.New("an old connection"))
		c.write2(1, map[meta.Key]meta.Spec{topicKey("orders"): &meta.Topic{Partitions: 1, BrokerGroups: []string{"group-a"}}})
		time.Sleep(10 * time.Second)
		synctest.Wait()
		version := f.Snapshot().Version
		if d := differ(f.Snapshot(), c.stores[1].View()); d != "" {
			t.Fatal(d)
		}
		c.stop(1) // now it has only the one that is behind
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if f.Snapshot().Version != version || f.Snapshot().Topic(meta.NamespaceDefault, "orders") == nil {
			t.Fatalf("version %d, was %d", f.Snapshot().Version, version)
		}
	})
}

func (c *cluster) write2(store int, specs map[meta.Key]meta.Spec) {
	c.t.Helper()
	write(c.t, c.stores[store], specs)
}

// TestEveryOrder kills and starts registry nodes and a broker in every order: the broker ends connected, with the newest, and registered.
func TestEveryOrder(t *testing.T) {
	for _, order := range orders([]int{0, 1, 2}) {
		for _, back := range orders([]int{0, 1, 2}) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, 2)
				defer c.close()
				cache := filepath.Join(t.TempDir(), "meta")
				var f *Follower
				do := func(i int) {
					switch {
					case i == 2 && f != nil:
						f.Close()
						f = nil
					case i == 2:
						f = c.follower("a", func(o *FollowerOptions) { o.CacheFile = cache })
					case c.nodes[i] != nil:
						c.stop(i)
					default:
						c.start(i)
					}
				}
				do(2)
				time.Sleep(2 * time.Second)
				write(t, c.stores[0], map[meta.Key]meta.Spec{topicKey("orders"): &meta.Topic{Partitions: 1, BrokerGroups: []string{"group-a"}}})
				time.Sleep(2 * time.Second)
				for _, i := range order {
					do(i)
					time.Sleep(3 * time.Second)
				}
				for _, i := range back {
					do(i)
					time.Sleep(time.Second)
					if f != nil && f.Snapshot().Topic(meta.NamespaceDefault, "orders") == nil {
						t.Fatalf("%v, %v: the topic is not known at a start from the cache", order, back)
					}
				}
				time.Sleep(5 * time.Second)
				synctest.Wait()
				if d := differ(f.Snapshot(), c.stores[0].View()); d != "" || !f.Connected() || awayOf(f.Snapshot()) != "" {
					t.Errorf("%v, %v: %s, connected %v, away %q", order, back, d, f.Connected(), awayOf(f.Snapshot()))
				}
				f.Close()
			})
		}
	}
}

func orders(of []int) (all [][]int) {
	if len(of) == 1 {
		return [][]int{of}
	}
	for i, first := range of {
		for _, rest := range orders(slices.Delete(slices.Clone(of), i, i+1)) {
			all = append(all, append([]int{first}, rest...))
		}
	}
	return all
}

// TestSlowApply shows that a broker which takes 20 s to apply a snapshot lives meanwhile, and then gets only the newest.
func TestSlowApply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1)
		defer c.close()
		slow := atomic.Bool{}
		var applied []meta.Version
		f := c.follower("a", func(o *FollowerOptions) {
			o.OnSnapshot = func(s *meta.Snapshot) {
				applied = append(applied, s.Version)
				if slow.Load() {
					time.Sleep(20 * time.Second)
				}
			}
		})
		defer f.Close()
		time.Sleep(time.Second)
		synctest.Wait()
		slow.Store(true)
		before := len(applied)
		for range 5 {
			write(t, c.stores[0], map[meta.Key]meta.Spec{topicKey(fmt.Sprintf("t%d", time.Now().UnixNano())): &meta.Topic{Partitions: 1, BrokerGroups: []string{"group-a"}}})
			time.Sleep(time.Second)
		}
		time.Sleep(12 * time.Second)
		synctest.Wait()
		if away := awayOf(c.stores[0].View()); away != "" {
			t.Fatalf("away: %s", away)
		}
		slow.Store(false)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if n := len(applied) - before; n != 2 || applied[len(applied)-1] != c.stores[0].View().Version {
			t.Fatalf("applied %v, the newest is %d", applied[before:], c.stores[0].View().Version)
		}
	})
}

// cacheOf returns a cache file's bytes, and what it holds.
func cacheOf(t testing.TB) ([]byte, *meta.Snapshot) {
	t.Helper()
	store := meta.NewMemory(nil)
	write(t, store, map[meta.Key]meta.Spec{groupKey("g"): &meta.BrokerGroup{}, topicKey("orders"): &meta.Topic{Partitions: 1, BrokerGroups: []string{"g"}},
		topicKey("gone"): &meta.Topic{Partitions: 1, BrokerGroups: []string{"g"}}})
	s := write(t, store, map[meta.Key]meta.Spec{topicKey("gone"): nil})
	b, err := encodeCache("a", s)
	if err != nil {
		t.Fatal(err)
	}
	return b, s
}

// TestCache shows that a cache is read as it was written, that one which is cut anywhere or in which any bit is flipped is refused, and one of
// another node too.
func TestCache(t *testing.T) {
	b, s := cacheOf(t)
	c, err := decodeCache("a", b)
	if err != nil {
		t.Fatal(err)
	}
	if d := differ(c, s); d != "" {
		t.Fatal(d)
	}
	gone, ok := c.Since(s.Version - 1)
	if !ok || len(gone) != 1 || gone[0].Spec != nil {
		t.Fatalf("deleted: %v, %v", gone, ok)
	}
	if _, err := decodeCache("b", b); err == nil {
		t.Error("the cache of another node is taken")
	}
	for n := range b {
		if _, err := decodeCache("a", b[:n]); err == nil {
			t.Fatalf("the first %d of %d bytes are taken", n, len(b))
		}
	}
	for i := range len(b) * 8 {
		b[i/8] ^= 1 << (i % 8)
		if _, err := decodeCache("a", b); err == nil {
			t.Fatalf("bit %d flipped: it is taken", i)
		}
		b[i/8] ^= 1 << (i % 8)
	}
}

// FuzzCache shows that no bytes crash the reader or make it take much memory.
func FuzzCache(f *testing.F) {
	good, _ := cacheOf(f)
	seal := func(b []byte) {
		if len(b) >= cacheHead {
			binary.LittleEndian.PutUint64(b[16:], uint64(len(b)-cacheHead))
			binary.LittleEndian.PutUint32(b[12:], crc32.Checksum(b[16:], castagnoli))
		}
	}
	mutate.Fuzz(f, mutate.Decoder{Seeds: [][]byte{good, []byte(cacheMagic)}, Seal: seal, Slowness: 20, AllocMost: 4 << 20, Check: func(t testing.TB, b []byte) bool {
		s, err := decodeCache("a", b)
		if err != nil {
			return false
		}
		again, err := encodeCache("a", s)
		if err != nil {
			t.Fatalf("cannot be written again: %v", err)
		}
		if got, err := decodeCache("a", again); err != nil || got.Version != s.Version || got.Generation != s.Generation {
			t.Fatalf("read again: %v", err)
		}
		return true
	}})
}

// fullDisk is a cache file on which one call fails.
type fullDisk struct {
	cacheFile
	fail string
}

func (f fullDisk) Write(b []byte) (int, error) {
	if f.fail == "write" {
		f.cacheFile.Write(b[:len(b)/2])
		return len(b) / 2, syscall.ENOSPC
	}
	return f.cacheFile.Write(b)
}

func (f fullDisk) Sync() error {
	if f.fail == "sync" {
		return syscall.EIO
	}
	return f.cacheFile.Sync()
}

// TestCacheFaults shows that a follower goes on when its cache is damaged or cannot be written, that the cache is then as it was, that it is
// written when that is possible again, and that nobody else can read it.
func TestCacheFaults(t *testing.T) {
	for _, fail := range []string{"create", "write", "sync", "folder"} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, 1)
			defer c.close()
			file := filepath.Join(t.TempDir(), "meta")
			if fail == "folder" {
				file = filepath.Join(t.TempDir(), "none", "meta")
			} else if err := os.WriteFile(file, []byte("damaged"), 0o644); err != nil {
				t.Fatal(err)
			}
			var failing sync.Map
			failing.Store("now", fail)
			f := c.follower("a", func(o *FollowerOptions) {
				o.CacheFile = file
				o.create = func(name string) (cacheFile, error) {
					fail, _ := failing.Load("now")
					if fail == "create" {
						return nil, syscall.EACCES
					}
					x, err := createCache(name)
					if err != nil {
						return nil, err
					}
					return fullDisk{x, fail.(string)}, nil
				}
			})
			time.Sleep(5 * time.Second)
			synctest.Wait()
			if m := f.Metrics(); m.CacheFailures == 0 || m.CacheWrites != 0 || f.Snapshot() == nil {
				t.Fatalf("%s: %+v", fail, m)
			}
			if b, err := os.ReadFile(file); fail != "folder" && (err != nil || string(b) != "damaged") {
				t.Fatalf("%s: the cache is %q, %v", fail, b, err)
			}
			failing.Store("now", "")
			if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
				t.Fatal(err)
			}
			time.Sleep(cacheRetry + time.Second)
			synctest.Wait()
			kept, err := readCache(file, "a")
			if err != nil {
				t.Fatalf("%s: %v", fail, err)
			}
			if d := differ(kept, f.Snapshot()); d != "" {
				t.Fatalf("%s: %s", fail, d)
			}
			if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
				t.Fatalf("%s: mode %v, %v", fail, info.Mode(), err)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			entries, err := os.ReadDir(filepath.Dir(file))
			if err != nil || len(entries) != 1 {
				t.Fatalf("%s: %v, %v", fail, entries, err)
			}
		})
	}
}

// TestCacheIsRare shows that many changes make one write of the cache a second.
func TestCacheIsRare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1)
		defer c.close()
		f := c.follower("a", func(o *FollowerOptions) { o.CacheFile = filepath.Join(t.TempDir(), "meta") })
		defer f.Close()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		before := f.Metrics().CacheWrites
		for i := range 100 {
			write(t, c.stores[0], map[meta.Key]meta.Spec{topicKey("t"): &meta.Topic{Partitions: 1, BrokerGroups: []string{"group-a"}, Description: fmt.Sprint(i)}})
			time.Sleep(100 * time.Millisecond)
		}
		synctest.Wait()
		if n := f.Metrics().CacheWrites - before; n < 5 || n > 11 {
			t.Fatalf("%d writes in 10 s", n)
		}
	})
}

// knows is an authenticator that knows one credential, of a node.
type knows struct {
	wire.Authenticator
	id string
	v  wire.Verifier
}

func (k knows) Verifier(id string) (wire.Verifier, wire.Principal, bool) {
	return k.v, wire.Principal{Kind: wire.PrincipalNode, Name: "nodes", Credential: k.id}, id == k.id
}

func (k knows) Alive(wire.Principal) error { return nil }

// TestImpostor shows that a follower with a credential takes nothing from who listens at a registry's address and does not ask for it, or asks and does not know it:
// everybody's rights are in what it is told.
func TestImpostor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1)
		defer c.close()
		good, err := wire.NewVerifier("secret")
		if err != nil {
			t.Fatal(err)
		}
		bad := good
		bad.ServerKey = make([]byte, len(good.ServerKey))
		serve := func(a wire.Authenticator) {
			c.hosts.down(registryAddress(0))
			c.hosts.up(registryAddress(0), wire.NewHandler(wire.Services{Registry: c.nodes[0]}, wire.HandlerOptions{Authenticator: a}))
		}
		serve(nil)
		f := c.follower("a", func(o *FollowerOptions) {
			o.Credentials = func() (wire.Credentials, error) { return wire.Credentials{ID: "id", Secret: "secret"}, nil }
		})
		defer f.Close()
		for name, a := range map[string]wire.Authenticator{"asks nothing": nil, "knows half": knows{id: "id", v: bad}} {
			serve(a)
			time.Sleep(30 * time.Second)
			if s := f.Snapshot(); s != nil {
				t.Errorf("an impostor that %s was believed: version %d", name, s.Version)
			}
		}
		c.write(map[meta.Key]meta.Spec{{Kind: meta.KindCredential, Name: "id"}: &meta.Credential{OwnerKind: meta.OwnerNode, Owner: "nodes",
			Salt: good.Salt, Iterations: good.Iterations, StoredKey: good.StoredKey, ServerKey: good.ServerKey}})
		serve(knows{id: "id", v: good})
		time.Sleep(30 * time.Second)
		if f.Snapshot() == nil {
			t.Error("the registry is not believed")
		}
	})
}
