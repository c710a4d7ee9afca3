package registry

import (
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
//	+-------------+-------------+------------+------------+----------+------+---------+
//	| "jmqmeta\n" | version u32 | crc32c u32 | length u64 | size u16 | node | objects |
//	+-------------+-------------+------------+------------+----------+------+---------+
//
// length counts what follows it, and the checksum covers length and that. node, of size bytes, is whose cache it is. objects is a
// WatchObjectsResponse with everything; its since is the version up to which deletions are not known.
const (
	cacheMagic    = "jmqmeta\n"
	cacheVersion  = 1
	cacheHead     = len(cacheMagic) + 4 + 4 + 8
	cacheBytesMax = 1 << 30
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encodeCache returns the file's bytes.
func encodeCache(node string, s *meta.Snapshot) ([]byte, error) {
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
	b, err := proto.MarshalOptions{}.MarshalAppend(b, m)
	if err != nil {
		return nil, err
	}
	binary.LittleEndian.PutUint64(b[16:], uint64(len(b)-cacheHead))
	binary.LittleEndian.PutUint32(b[12:], crc32.Checksum(b[16:], castagnoli))
	return b, nil
}

// decodeCache reads what encodeCache wrote.
func decodeCache(node string, b []byte) (*meta.Snapshot, error) {
	if len(b) < cacheHead || string(b[:8]) != cacheMagic {
		return nil, errors.New("it is no cache of metadata")
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != cacheVersion {
		return nil, fmt.Errorf("it has version %d, this program reads %d", v, cacheVersion)
	}
	if length := binary.LittleEndian.Uint64(b[16:]); length != uint64(len(b)-cacheHead) {
		return nil, fmt.Errorf("it is cut: %d of %d bytes are there", len(b)-cacheHead, length)
	}
	if crc32.Checksum(b[16:], castagnoli) != binary.LittleEndian.Uint32(b[12:]) {
		return nil, errors.New("its checksum is wrong")
	}
	rest := b[cacheHead:]
	if len(rest) < 2 || len(rest)-2 < int(binary.LittleEndian.Uint16(rest)) {
		return nil, errors.New("it ends in the node's name")
	}
	size := int(binary.LittleEndian.Uint16(rest))
	if name := string(rest[2:][:size]); name != node {
		return nil, fmt.Errorf("it is of node %q, not of %q", name, node)
	}
	m := new(wire.WatchObjectsResponse)
	if err := proto.Unmarshal(rest[2+size:], m); err != nil {
		return nil, err
	}
	objects, err := readObjects(m.Objects)
	if err != nil {
		return nil, err
	}
	if m.Generation == 0 {
		return nil, errors.New("it has no generation")
	}
	return meta.NewSnapshot(meta.Generation(m.Generation), meta.Version(m.Version), meta.Version(m.Since), objects), nil
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
func readCache(name, node string) (*meta.Snapshot, error) {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() > cacheBytesMax {
		return nil, fmt.Errorf("it has %d bytes, at most %d are possible", info.Size(), cacheBytesMax)
	}
	b := make([]byte, info.Size())
	if _, err := io.ReadFull(f, b); err != nil {
		return nil, err
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
