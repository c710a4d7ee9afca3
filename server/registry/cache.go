package registry

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/proto"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/wire"
)

// The cache is one file, little-endian:
//
//	+-------------+-------------+------------+------------+------+------------+------------+---------+
//	| "jmqmeta\n" | version u32 | crc32c u32 | length u64 | node | former u16 | u64 each.. | objects |
//	+-------------+-------------+------------+------------+------+------------+------------+---------+
//
// length counts what follows it, and the checksum covers length and that. node is a u16 and so many bytes: whose cache it is. former are generations
// that were left, none of which is taken again. objects is a WatchObjectsResponse with everything; since is the version up to which deletions are not known.
const (
	cacheMagic    = "jmqmeta\n"
	cacheVersion  = 1
	cacheHead     = len(cacheMagic) + 4 + 4 + 8
	cacheBytesMax = 1 << 30
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// cached is what a cache holds.
type cached struct {
	snapshot *meta.Snapshot
	former   []meta.Generation
}

// encodeCache returns the file's bytes.
func encodeCache(node string, c cached) ([]byte, error) {
	s := c.snapshot
	m := &wire.WatchObjectsResponse{Generation: uint64(s.Generation), Version: uint64(s.Version), Since: uint64(s.Floor())}
	for _, k := range meta.Kinds {
		for o := range s.All(k) {
			w, err := meta.ToWire(o)
			if err != nil {
				return nil, err
			}
			m.Objects = append(m.Objects, w)
		}
	}
	changed, ok := s.Since(s.Floor())
	for _, o := range changed {
		if ok && o.Spec == nil {
			w, err := meta.ToWire(o)
			if err != nil {
				return nil, err
			}
			m.Objects = append(m.Objects, w)
		}
	}
	b := make([]byte, cacheHead, cacheHead+64+proto.Size(m))
	copy(b, cacheMagic)
	binary.LittleEndian.PutUint32(b[8:], cacheVersion)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(node)))
	b = append(b, node...)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(c.former)))
	for _, g := range c.former {
		b = binary.LittleEndian.AppendUint64(b, uint64(g))
	}
	b, err := proto.MarshalOptions{}.MarshalAppend(b, m)
	if err != nil {
		return nil, err
	}
	binary.LittleEndian.PutUint64(b[16:], uint64(len(b)-cacheHead))
	binary.LittleEndian.PutUint32(b[12:], crc32.Checksum(b[16:], castagnoli))
	return b, nil
}

// decodeCache reads what encodeCache wrote.
func decodeCache(node string, b []byte) (cached, error) {
	if len(b) < cacheHead || string(b[:8]) != cacheMagic {
		return cached{}, errors.New("it is no cache of metadata")
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != cacheVersion {
		return cached{}, fmt.Errorf("it has version %d, this program reads %d", v, cacheVersion)
	}
	if length := binary.LittleEndian.Uint64(b[16:]); length != uint64(len(b)-cacheHead) {
		return cached{}, fmt.Errorf("it is cut: %d of %d bytes are there", len(b)-cacheHead, length)
	}
	if crc32.Checksum(b[16:], castagnoli) != binary.LittleEndian.Uint32(b[12:]) {
		return cached{}, errors.New("its checksum is wrong")
	}
	r := bytes.NewReader(b[cacheHead:])
	var c cached
	var n uint16
	if err := binary.Read(r, binary.LittleEndian, &n); err != nil {
		return cached{}, err
	}
	name := make([]byte, n)
	if _, err := io.ReadFull(r, name); err != nil {
		return cached{}, err
	}
	if string(name) != node {
		return cached{}, fmt.Errorf("it is of node %q, not of %q", name, node)
	}
	if err := binary.Read(r, binary.LittleEndian, &n); err != nil {
		return cached{}, err
	}
	if int(n)*8 > r.Len() {
		return cached{}, io.ErrUnexpectedEOF
	}
	c.former = make([]meta.Generation, n)
	if err := binary.Read(r, binary.LittleEndian, c.former); err != nil {
		return cached{}, err
	}
	m := new(wire.WatchObjectsResponse)
	if err := proto.Unmarshal(b[len(b)-r.Len():], m); err != nil {
		return cached{}, err
	}
	objects, err := readObjects(m.Objects)
	if err != nil {
		return cached{}, err
	}
	if m.Generation == 0 {
		return cached{}, errors.New("it has no generation")
	}
	c.snapshot = meta.NewSnapshot(meta.Generation(m.Generation), meta.Version(m.Version), meta.Version(m.Since), objects)
	return c, nil
}

// readObjects reads objects of the wire. Kinds that are not known here are of a newer version, and left out.
func readObjects(list []*wire.Object) ([]*meta.Object, error) {
	objects := make([]*meta.Object, 0, len(list))
	for _, w := range list {
		if meta.NewSpec(meta.Kind(w.GetKind())) == nil {
			continue
		}
		o, err := meta.FromWire(w)
		if err != nil {
			return nil, err
		}
		objects = append(objects, o)
	}
	return objects, nil
}

// readCache reads a cache file; without one there is no error and no snapshot.
func readCache(name, node string) (cached, error) {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return cached{}, nil
	}
	if err != nil {
		return cached{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return cached{}, err
	}
	if info.Size() > cacheBytesMax {
		return cached{}, fmt.Errorf("it has %d bytes, at most %d are possible", info.Size(), cacheBytesMax)
	}
	b := make([]byte, info.Size())
	if _, err := io.ReadFull(f, b); err != nil {
		return cached{}, err
	}
	return decodeCache(node, b)
}

// cacheFile is what a cache is written with; tests make it fail.
type cacheFile interface {
	io.Writer
	Sync() error
	Close() error
}

func createCache(name string) (cacheFile, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	if err := f.Chmod(0o600); err != nil { // it may have been there
		f.Close()
		return nil, err
	}
	return f, nil
}

// writeCache puts b in the place of the file, whole or not at all.
func writeCache(create func(string) (cacheFile, error), name string, b []byte) (err error) {
	temporary := name + ".tmp"
	f, err := create(temporary)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(temporary) // else it is written over the next time
		}
	}()
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	if err := os.Rename(temporary, name); err != nil {
		return err
	}
	folder, err := os.Open(filepath.Dir(name))
	if err != nil {
		return err
	}
	defer folder.Close()
	return folder.Sync()
}
