package client

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jmqio/jmq/wire"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// The route cache is one file, little-endian:
//
//	+------------+-------------+------------+------------+-----------+-------+
//	| "jmqroute" | version u32 | crc32c u32 | length u64 | scope 32B | views |
//	+------------+-------------+------------+------------+-----------+-------+
//
// length counts what follows it, and the checksum covers length and that. scope says whose it is. views is a WatchRoutesResponse.
const (
	cacheMagic    = "jmqroute"
	cacheVersion  = 1
	cacheHead     = len(cacheMagic) + 4 + 4 + 8
	cacheBytesMax = 8 << 20     // of a file; views that do not fit are left out: brokers answer for them
	cacheEvery    = time.Second // it is written at most so often
	cacheLeft     = time.Hour   // after which a file under way is of a process that died
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// cacheScope is a digest of who the client is and where it dials.
type cacheScope [sha256.Size]byte

// routeCache keeps on disk what a client was told. Its goroutine, which close waits for, writes when that changes. Several
// processes may have the same file: it is replaced, never altered, and each writes one of its own before.
type routeCache struct {
	folder, name string // name: of the file in it
	scope        cacheScope
	logger       *slog.Logger
	create       func(folder, pattern string) (cacheFile, error)
	content      func() ([]byte, error) // the file's bytes as they are now; nil: there is nothing to keep
	dirty        chan struct{}          // one element: something changed
	ran          sync.WaitGroup
	failed       bool // the last write; it was told. The writer's
}

// cacheFile is what a cache is written with; tests make it fail.
type cacheFile interface {
	io.WriteCloser
	Name() string
	Sync() error
}

// newRouteCache returns the cache of a client that dials addrs; nil: it has none.
func newRouteCache(o *options, addrs []string) *routeCache {
	if o.routeCache == "" {
		return nil
	}
	who := "app " + o.app
	if o.app == "" && o.credentials != nil {
		if c, err := o.credentials(); err == nil { // else no connection is made either
			who = "credential " + c.ID
		}
	}
	addrs = slices.Sorted(slices.Values(addrs))
	c := &routeCache{folder: o.routeCache, logger: o.logger, dirty: make(chan struct{}, 1)}
	c.scope = sha256.Sum256([]byte(who + "\x00" + strings.Join(addrs, ",")))
	c.name = fmt.Sprintf("routes-%x.jmq", c.scope[:8])
	c.create = func(folder, pattern string) (cacheFile, error) { return os.CreateTemp(folder, pattern) } // mode 0600
	return c
}

// path is the file.
func (c *routeCache) path() string { return filepath.Join(c.folder, c.name) }

// load returns what the file has; nil: nothing of use.
func (c *routeCache) load() *wire.WatchRoutesResponse {
	if c == nil {
		return nil
	}
	b, err := readPrivate(c.path())
	var kept *wire.WatchRoutesResponse
	if err == nil {
		kept, err = decodeRoutes(c.scope, b)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.logger.Warn("the route cache is of no use, and not looked at", "file", c.path(), "err", err)
	}
	return kept
}

// readPrivate reads a file that nobody else may have written.
func readPrivate(name string) ([]byte, error) {
	info, err := os.Lstat(name)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errors.New("it is no regular file")
	case info.Mode().Perm()&0o077 != 0: // who writes there says where messages go
		return nil, fmt.Errorf("it is open to others (mode %#o): chmod 600", info.Mode().Perm())
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, cacheBytesMax+1))
	if err == nil && len(b) > cacheBytesMax {
		err = fmt.Errorf("it has more than %d bytes", cacheBytesMax)
	}
	return b, err
}

// encodeRoutes returns a file's bytes. views are TopicViews, in addition to those of head.
func encodeRoutes(scope cacheScope, head *wire.WatchRoutesResponse, views [][]byte) ([]byte, error) {
	b := make([]byte, cacheHead, 4<<10)
	copy(b, cacheMagic)
	binary.LittleEndian.PutUint32(b[8:], cacheVersion)
	b, err := proto.MarshalOptions{}.MarshalAppend(append(b, scope[:]...), head)
	if err != nil {
		return nil, err
	}
	field := head.ProtoReflect().Descriptor().Fields().ByName("views").Number()
	for _, v := range views {
		if len(b)+len(v)+16 <= cacheBytesMax {
			b = protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), v)
		}
	}
	binary.LittleEndian.PutUint64(b[16:], uint64(len(b)-cacheHead))
	binary.LittleEndian.PutUint32(b[12:], crc32.Checksum(b[16:], castagnoli))
	return b, nil
}

// decodeRoutes reads what encodeRoutes wrote.
func decodeRoutes(scope cacheScope, b []byte) (*wire.WatchRoutesResponse, error) {
	if len(b) < cacheHead || string(b[:8]) != cacheMagic {
		return nil, errors.New("it is no route cache")
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != cacheVersion {
		return nil, fmt.Errorf("it has version %d, this program reads %d", v, cacheVersion)
	}
	rest := b[cacheHead:]
	if length := binary.LittleEndian.Uint64(b[16:]); length != uint64(len(rest)) {
		return nil, fmt.Errorf("it has %d bytes where it should have %d", len(rest), length)
	}
	if crc32.Checksum(b[16:], castagnoli) != binary.LittleEndian.Uint32(b[12:]) {
		return nil, errors.New("its checksum is wrong")
	}
	if len(rest) < len(scope) || cacheScope(rest[:len(scope)]) != scope {
		return nil, errors.New("it is of another app or credential, or of other addresses")
	}
	r := new(wire.WatchRoutesResponse)
	if err := proto.Unmarshal(rest[len(scope):], r); err != nil {
		return nil, err
	}
	if r.Generation == 0 {
		return nil, errors.New("it has no generation")
	}
	return r, nil
}

// begin starts the goroutine, which ends with ctx.
func (c *routeCache) begin(ctx context.Context, content func() ([]byte, error)) {
	if c == nil {
		return
	}
	c.content = content
	c.ran.Go(func() {
		for {
			select {
			case <-c.dirty:
			case <-ctx.Done():
				return
			}
			c.write()
			t := time.NewTimer(cacheEvery)
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
				return
			}
		}
	})
}

// changed has the file written, soon.
func (c *routeCache) changed() {
	if c == nil {
		return
	}
	select {
	case c.dirty <- struct{}{}:
	default:
	}
}

// close writes the file for the last time. The context of begin has ended.
func (c *routeCache) close() {
	if c == nil || c.content == nil {
		return
	}
	c.ran.Wait()
	c.write()
}

// write replaces the file. What fails is told once, and tried again with the next change: nothing else depends on it.
func (c *routeCache) write() {
	b, err := c.content()
	if err == nil && b != nil {
		err = c.replace(b)
	}
	if err != nil && !c.failed {
		c.logger.Warn("the route cache cannot be written", "file", c.path(), "err", err)
	}
	c.failed = err != nil
}

// replace puts b in the place of the file, whole or not at all.
func (c *routeCache) replace(b []byte) (err error) {
	if err := os.MkdirAll(c.folder, 0o700); err != nil {
		return err
	}
	c.clean()
	f, err := c.create(c.folder, c.name+".*.tmp")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name()) // else clean does it later
		}
	}()
	if _, err = f.Write(b); err == nil {
		err = f.Sync()
	}
	if err = cmp.Or(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), c.path()); err != nil {
		return err
	}
	folder, err := os.Open(c.folder)
	if err != nil {
		return err
	}
	defer folder.Close()
	return folder.Sync()
}

// clean removes what processes left that died while they wrote.
func (c *routeCache) clean() {
	left, _ := filepath.Glob(filepath.Join(c.folder, c.name+".*.tmp")) // a folder whose name is a pattern is not cleaned
	for _, name := range left {
		if info, err := os.Lstat(name); err == nil && time.Since(info.ModTime()) > cacheLeft {
			os.Remove(name) // else the next time
		}
	}
}

// keep returns v as the route cache has it; nil: it names no broker, or there is no cache.
func (m *metadata) keep(v *wire.TopicView) []byte {
	if m.cache == nil || !slices.ContainsFunc(v.Route.GetBrokerGroups(), func(g *wire.BrokerGroupRoute) bool {
		return slices.ContainsFunc(g.Brokers, func(b *wire.BrokerRoute) bool { return len(b.Addresses) > 0 })
	}) {
		return nil
	}
	b, err := proto.Marshal(v)
	if err != nil {
		return nil
	}
	return b
}

// content is what the route cache shall have: what is known, and what it had that nobody asked for yet.
func (m *metadata) content() ([]byte, error) {
	head := &wire.WatchRoutesResponse{Registry: m.c.cluster.registryAddrs()}
	var views [][]byte
	m.mu.Lock()
	head.Generation, head.MetadataVersion = m.mu.generation, m.mu.version
	for _, w := range m.mu.watches {
		if w.kept != nil {
			views = append(views, w.kept)
		}
	}
	for _, v := range m.mu.cached {
		views = append(views, m.keep(v))
	}
	m.mu.Unlock()
	if len(views) == 0 {
		return nil, nil // so that a client that asked for nothing leaves what another one needs
	}
	return encodeRoutes(m.cache.scope, head, views)
}

// resume begins with what a cache had. Nothing is known yet.
func (m *metadata) resume(r *wire.WatchRoutesResponse) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.generation, m.mu.version = r.Generation, r.MetadataVersion
	m.mu.cached = map[watchKey]*wire.TopicView{}
	for _, v := range r.Views {
		if m.keep(v) != nil {
			m.mu.cached[watchKey{v.Topic, v.Group}] = v
		}
	}
}

// remembered returns what the cache says of a topic, once; nil: nothing, or others know better. What it may not be used for is asked:
// that may be over by now.
func (m *metadata) remembered(key watchKey) *wire.TopicView {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := m.mu.cached[key]
	if v == nil || v.Code != 0 || v.Producer.GetPaused() || m.c.cluster.home.ready() != nil {
		return nil
	}
	delete(m.mu.cached, key)
	return v
}

// spare returns the pools of the nodes that a cache names.
func (c *Cluster) spare(r *wire.WatchRoutesResponse) (pools []*pool) {
	add := func(p *pool) {
		if p != c.home && !slices.Contains(pools, p) {
			pools = append(pools, p)
		}
	}
	for _, v := range r.Views {
		for _, p := range c.locate(v.Route, c.home).pools {
			add(p)
		}
	}
	c.addRegistry(r.Registry)
	for _, addr := range r.Registry {
		add(c.node(addr))
	}
	return pools
}
