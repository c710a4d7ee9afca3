package index

import (
	"bytes"
	"container/list"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	// Version is the format of the files.
	Version = 1

	headerBytes     = 4096 // so that chunks do not share a block with the header
	headerUsedBytes = 64
)

var magic = [8]byte{'J', 'M', 'Q', 'I', 'N', 'D', 'X', 0}

// header is what a file says of itself: see FORMAT.md.
type header struct {
	Version uint32
	StoreID [16]byte
	Key     Key
	Base    Index // index of the first entry's place
}

func (h *header) encode() []byte {
	b := make([]byte, headerBytes)
	copy(b, magic[:])
	binary.LittleEndian.PutUint32(b[8:], h.Version)
	copy(b[16:], h.StoreID[:])
	binary.LittleEndian.PutUint64(b[32:], h.Key.Topic)
	binary.LittleEndian.PutUint32(b[40:], h.Key.Incarnation)
	binary.LittleEndian.PutUint16(b[44:], h.Key.Partition)
	binary.LittleEndian.PutUint64(b[48:], uint64(h.Base))
	binary.LittleEndian.PutUint32(b[60:], crc32.Checksum(b[:60], castagnoli))
	return b
}

// decodeHeader decodes the first bytes of a file. The text is empty, or says what is wrong.
func decodeHeader(b []byte) (h header, wrong string) {
	if len(b) < headerUsedBytes {
		return h, fmt.Sprintf("file has %d bytes, which is less than a header", len(b))
	}
	b = b[:headerUsedBytes]
	if bytes.Equal(b, make([]byte, headerUsedBytes)) {
		return h, "header is all zero"
	}
	if !bytes.Equal(b[:8], magic[:]) {
		return h, "not an index file"
	}
	if crc32.Checksum(b[:60], castagnoli) != binary.LittleEndian.Uint32(b[60:]) {
		return h, "checksum of the header is wrong"
	}
	h.Version = binary.LittleEndian.Uint32(b[8:])
	copy(h.StoreID[:], b[16:])
	h.Key.Topic = binary.LittleEndian.Uint64(b[32:])
	h.Key.Incarnation = binary.LittleEndian.Uint32(b[40:])
	h.Key.Partition = binary.LittleEndian.Uint16(b[44:])
	h.Base = Index(binary.LittleEndian.Uint64(b[48:]))
	return h, ""
}

// fileName names a partition's file; all have the same length, so that a listing is in order.
func fileName(k Key) string {
	return fmt.Sprintf("%016x-%08x-%05d.index", k.Topic, k.Incarnation, k.Partition)
}

func offsetOf(i Index) int64 { return headerBytes + int64(i)*EntryBytes }

// files are the open ones, for reading only, by last use.
type files struct {
	fs      vfs.FS
	dir     string
	storeID [16]byte
	max     int

	mu struct {
		sync.Mutex
		open   map[Key]*list.Element // of *file
		used   *list.List            // front: last used
		closed bool
	}
}

// file is one open file. It is closed when it is dropped and nobody reads it.
type file struct {
	vfs.File
	key     Key
	readers int  // guarded by files.mu
	dropped bool // guarded by files.mu
}

func (s *files) init() {
	s.mu.open = map[Key]*list.Element{}
	s.mu.used = list.New()
}

func (s *files) path(k Key) string { return s.fs.PathJoin(s.dir, fileName(k)) }

// acquire opens the file of k, or finds it open. The caller releases it.
func (s *files) acquire(k Key) (*file, error) {
	s.mu.Lock()
	if s.mu.closed {
		s.mu.Unlock()
		return nil, ErrClosed
	}
	if el, ok := s.mu.open[k]; ok {
		f := el.Value.(*file)
		f.readers++
		s.mu.used.MoveToFront(el)
		s.mu.Unlock()
		return f, nil
	}
	s.mu.Unlock()

	vf, err := s.open(k)
	if err != nil {
		return nil, err
	}
	f := &file{File: vf, key: k, readers: 1}

	var closing []*file
	s.mu.Lock()
	if s.mu.closed {
		s.mu.Unlock()
		vf.Close()
		return nil, ErrClosed
	}
	if el, ok := s.mu.open[k]; ok { // another reader was quicker
		closing = append(closing, f)
		f = el.Value.(*file)
		f.readers++
		s.mu.used.MoveToFront(el)
	} else {
		s.mu.open[k] = s.mu.used.PushFront(f)
		for s.mu.used.Len() > s.max {
			if old := s.dropLocked(s.mu.used.Back()); old != nil {
				closing = append(closing, old)
			}
		}
	}
	s.mu.Unlock()
	for _, c := range closing {
		c.Close() // it was only read
	}
	return f, nil
}

// open opens a file and checks its header.
func (s *files) open(k Key) (vfs.File, error) {
	path := s.path(k)
	f, err := s.fs.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &DamageError{Key: k, File: path, Reason: "file is missing"}
	} else if err != nil {
		return nil, fmt.Errorf("index: open file of partition %v: %w", k, err)
	}
	var b [headerUsedBytes]byte
	n, err := f.ReadAt(b[:], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		f.Close()
		return nil, fmt.Errorf("index: read header of %s: %w", path, err)
	}
	h, wrong := decodeHeader(b[:n])
	switch {
	case wrong != "":
	case h.Version > Version:
		f.Close()
		return nil, fmt.Errorf("%w: %s has version %d, this program reads up to %d", ErrVersion, path, h.Version, Version)
	case h.StoreID != s.storeID:
		wrong = fmt.Sprintf("file of another store (%x)", h.StoreID)
	case h.Key != k:
		wrong = fmt.Sprintf("file of another partition (%v)", h.Key)
	case h.Base != 0:
		wrong = fmt.Sprintf("file begins at index %d", h.Base)
	}
	if wrong != "" {
		f.Close()
		return nil, &DamageError{Key: k, File: path, Reason: wrong}
	}
	return f, nil
}

func (s *files) release(f *file) {
	s.mu.Lock()
	f.readers--
	last := f.dropped && f.readers == 0
	s.mu.Unlock()
	if last {
		f.Close()
	}
}

// drop forgets the file of k, because another takes its place.
func (s *files) drop(k Key) {
	s.mu.Lock()
	var f *file
	if el, ok := s.mu.open[k]; ok {
		f = s.dropLocked(el)
	}
	s.mu.Unlock()
	if f != nil {
		f.Close()
	}
}

// dropLocked takes a file off the list and returns it when nobody reads it, for the caller to close.
func (s *files) dropLocked(el *list.Element) *file {
	f := el.Value.(*file)
	s.mu.used.Remove(el)
	delete(s.mu.open, f.key)
	f.dropped = true
	if f.readers == 0 {
		return f
	}
	return nil
}

func (s *files) closeAll() {
	s.mu.Lock()
	s.mu.closed = true
	var closing []*file
	for s.mu.used.Len() > 0 {
		if f := s.dropLocked(s.mu.used.Front()); f != nil {
			closing = append(closing, f)
		}
	}
	s.mu.Unlock()
	for _, f := range closing {
		f.Close()
	}
}

func (s *files) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.used.Len()
}
