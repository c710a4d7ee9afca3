package journal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A segment file is a header block of 4096 bytes and records; zeroes follow the last one. The header:
//
//	 0  magic     "JMQJRNL\x00"
//	 8  version   u32   1
//	12  reserved  u32   0
//	16  store     [16]  store id
//	32  base      u64   position of the first record; also the file's name
//	40  previous  u64   base of the segment before it; ^0 for the first ever
//	48  durable   u64   durable end that the writing store had proven when it made this the current segment
//	56  capacity  u64   bytes for records: file size - 4096
//	64  created   i64   unix nanoseconds
//	72  crc32c    u32   over [0, 72)
//
// previous lets a missing segment be seen without reading records; durable proves what was synced, as back does in a record.
const (
	FormatVersion = 1

	headerBlockBytes   = 4096
	headerBytes        = 76
	segmentBytesFloor  = 64 << 10
	segmentSuffix      = ".journal"
	sparePrefix        = "spare-"
	fillingSuffix      = ".filling"
	noPrevious         = ^Position(0)
	zeroCompareBytes   = 4096
	segmentNameDigits  = 20
	storeIDBytes       = 16
	headerAtCRC        = 72
	headerAtVersion    = 8
	headerMagic        = "JMQJRNL\x00"
	spareNameFormat    = sparePrefix + "%06d" + segmentSuffix
	fillingNameFormat  = sparePrefix + "%06d" + fillingSuffix
	segmentNameFormat  = "%020d" + segmentSuffix
	headerReasonDamage = "segment header is damaged"
)

// VersionError: a file was written by a newer format than this program knows.
type VersionError struct {
	File             string
	Found, Supported uint32
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("journal: %s has format version %d, this program knows up to %d", e.File, e.Found, e.Supported)
}

// ForeignError: a segment belongs to another store.
type ForeignError struct {
	File        string
	Found, Want [storeIDBytes]byte
}

func (e *ForeignError) Error() string {
	return fmt.Sprintf("journal: %s belongs to store %x, this is store %x", e.File, e.Found, e.Want)
}

type header struct {
	store    [storeIDBytes]byte
	base     Position
	previous Position
	durable  Position
	capacity int64
	created  int64
}

// encode fills the header block b.
func (h *header) encode(b []byte) {
	clear(b)
	copy(b, headerMagic)
	le := binary.LittleEndian
	le.PutUint32(b[headerAtVersion:], FormatVersion)
	copy(b[16:], h.store[:])
	le.PutUint64(b[32:], uint64(h.base))
	le.PutUint64(b[40:], uint64(h.previous))
	le.PutUint64(b[48:], uint64(h.durable))
	le.PutUint64(b[56:], uint64(h.capacity))
	le.PutUint64(b[64:], uint64(h.created))
	le.PutUint32(b[headerAtCRC:], crc32.Checksum(b[:headerAtCRC], crcTable))
}

var errHeader = errors.New("no segment header")

// decodeHeader returns errHeader if b has no header, a VersionError if it has a newer one.
func decodeHeader(b []byte) (h header, err error) {
	le := binary.LittleEndian
	if len(b) < headerBytes || string(b[:8]) != headerMagic {
		return h, errHeader
	}
	if v := le.Uint32(b[headerAtVersion:]); v > FormatVersion {
		return h, &VersionError{Found: v, Supported: FormatVersion}
	}
	if le.Uint32(b[headerAtCRC:]) != crc32.Checksum(b[:headerAtCRC], crcTable) || le.Uint32(b[headerAtVersion:]) != FormatVersion {
		return h, errHeader
	}
	copy(h.store[:], b[16:])
	h.base = Position(le.Uint64(b[32:]))
	h.previous = Position(le.Uint64(b[40:]))
	h.durable = Position(le.Uint64(b[48:]))
	h.capacity = int64(le.Uint64(b[56:]))
	h.created = int64(le.Uint64(b[64:]))
	if h.capacity <= 0 || h.capacity%8 != 0 || h.durable > h.base {
		return header{}, errHeader
	}
	return h, nil
}

func segmentName(base Position) string { return fmt.Sprintf(segmentNameFormat, uint64(base)) }

// parseSegmentName returns false for anything but 20 digits and the suffix.
func parseSegmentName(name string) (Position, bool) {
	digits, ok := strings.CutSuffix(name, segmentSuffix)
	if !ok || len(digits) != segmentNameDigits {
		return 0, false
	}
	var n uint64
	for _, c := range []byte(digits) {
		if c < '0' || c > '9' || n > (^uint64(0)-uint64(c-'0'))/10 {
			return 0, false
		}
		n = n*10 + uint64(c-'0')
	}
	return Position(n), true
}

// segment is one file of the journal.
//
// Its file is open while it is needed: the current segment's always, others' from the first read on. refs counts the
// journal's list (1) and each reader; at 0 the file is closed, so that a trimmed segment can be read to the end by
// whoever holds it.
type segment struct {
	header
	path string
	refs atomic.Int64
	mu   struct {
		sync.Mutex
		file     vfs.File   // nil until needed; replaced only by who has the right to commit
		writable bool       // file was opened for writing too
		retired  []vfs.File // earlier files, which readers may still use
	}
}

func newSegment(h header, path string, f vfs.File) *segment {
	s := &segment{header: h, path: path}
	s.refs.Store(1)
	s.mu.file, s.mu.writable = f, f != nil
	return s
}

// limit is the position after the last byte that the segment can hold.
func (s *segment) limit() Position { return s.base + Position(s.capacity) }

func (s *segment) offset(pos Position) int64 { return headerBlockBytes + int64(pos-s.base) }

// acquire returns the file, to be given back with release. ErrTrimmed if the segment is gone.
func (s *segment) acquire(fsys vfs.FS) (vfs.File, error) {
	for {
		n := s.refs.Load()
		if n == 0 {
			return nil, ErrTrimmed
		}
		if s.refs.CompareAndSwap(n, n+1) {
			break
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.file == nil {
		f, err := fsys.Open(s.path)
		if err != nil {
			s.refs.Add(-1) // if it was the last, there is no file to close
			if errors.Is(err, fs.ErrNotExist) {
				return nil, ErrTrimmed
			}
			return nil, fmt.Errorf("open segment %s: %w", s.path, err)
		}
		s.mu.file = f
	}
	return s.mu.file, nil
}

func (s *segment) release() {
	if s.refs.Add(-1) > 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.file != nil {
		_ = s.mu.file.Close() // what is not synced by now is of no use
		s.mu.file = nil
	}
	for _, f := range s.mu.retired {
		_ = f.Close()
	}
	s.mu.retired = nil
}

// openForWriting sees to it that mu.file can be written. The caller has the right to commit.
func (s *segment) openForWriting(fsys vfs.FS) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.writable {
		return nil
	}
	f, err := fsys.OpenReadWrite(s.path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return fmt.Errorf("open segment %s: %w", s.path, err)
	}
	if s.mu.file != nil {
		s.mu.retired = append(s.mu.retired, s.mu.file)
	}
	s.mu.file, s.mu.writable = f, true
	return nil
}

// segments is an immutable list, by base.
type segments []*segment

// find returns the index of the segment that pos is in, -1 if it is before the first.
func (l segments) find(pos Position) int {
	i, found := slices.BinarySearchFunc(l, pos, func(s *segment, p Position) int {
		switch {
		case s.base < p:
			return -1
		case s.base > p:
			return 1
		}
		return 0
	})
	if found {
		return i
	}
	return i - 1
}

// end is the position after the last record of segment i, given the journal's end.
func (l segments) end(i int, end Position) Position {
	if i+1 < len(l) {
		return l[i+1].base
	}
	return end
}

// spare is a file of zeroes, synced, that can become a segment.
type spare struct {
	path     string
	capacity int64
	file     vfs.File
}

// folder is what list found in a journal's directory.
type folder struct {
	segments segments  // files closed
	spares   []spare   // files closed
	filling  []string  // paths of files whose zero-filling was not finished
	cut      *Position // where a Truncate was under way; nil if none was
	mark     bool      // the file that says so is there, if maybe not whole
}

// list reads the names and headers in dir; it changes nothing. A file whose valid header has another base than its name
// says is a spare. Every other doubt is an error:
//   - a segment's name on a file without a valid header (empty, zeroes, short, damaged): a name is given only after the
//     header was synced, so something was lost;
//   - a valid record at the base that a spare's header names: a segment that somebody renamed.
//
// want is nil if any store will do, as long as all segments agree.
func list(fsys vfs.FS, dir string, want *[storeIDBytes]byte) (folder, error) {
	var found folder
	names, err := fsys.List(dir)
	if err != nil {
		return found, fmt.Errorf("list journal %s: %w", dir, err)
	}
	slices.Sort(names)
	for _, name := range names {
		path := fsys.PathJoin(dir, name)
		if strings.HasPrefix(name, sparePrefix) && strings.HasSuffix(name, fillingSuffix) {
			found.filling = append(found.filling, path)
			continue
		}
		if name == cutName {
			found.mark = true
			if found.cut, err = readCutMark(fsys, path, want); err != nil {
				return found, err
			}
			continue
		}
		if !strings.HasSuffix(name, segmentSuffix) {
			continue // not ours
		}
		base, named := parseSegmentName(name)
		h, size, err := readHeader(fsys, path)
		var version *VersionError
		switch {
		case errors.As(err, &version):
			version.File = path
			return found, version
		case errors.Is(err, errHeader):
			if named {
				return found, &CorruptError{File: path, Position: base, Reason: headerReasonDamage + fmt.Sprintf(" (the file has %d bytes)", size)}
			}
			if strings.HasPrefix(name, sparePrefix) {
				found.spares = append(found.spares, spare{path: path, capacity: size - headerBlockBytes})
			}
			continue
		case err != nil:
			return found, err
		}
		if named && h.base == base {
			if want == nil {
				want = &h.store
			}
			if h.store != *want {
				return found, &ForeignError{File: path, Found: h.store, Want: *want}
			}
			found.segments = append(found.segments, newSegment(h, path, nil))
			continue
		}
		if misnamed, err := holdsRecord(fsys, path, h); err != nil {
			return found, err
		} else if misnamed {
			return found, &CorruptError{File: path, Position: h.base, Offset: headerBlockBytes,
				Reason: "holds records, but is not named " + segmentName(h.base) + " as its header says"}
		}
		found.spares = append(found.spares, spare{path: path, capacity: size - headerBlockBytes})
	}
	return found, nil
}

// chain checks that no segment is missing between the first and the last.
func (l segments) chain(fsys vfs.FS, dir string) error {
	for i := 1; i < len(l); i++ {
		if l[i].previous != l[i-1].base {
			return &CorruptError{File: fsys.PathJoin(dir, segmentName(l[i].previous)), Position: l[i].previous,
				Reason: fmt.Sprintf("segment is missing: %s follows it, but the one before that in the folder is %s",
					segmentName(l[i].base), segmentName(l[i-1].base))}
		}
	}
	return nil
}

func readHeader(fsys vfs.FS, path string) (h header, size int64, err error) {
	f, err := fsys.Open(path)
	if err != nil {
		return h, 0, fmt.Errorf("open %s: %w", path, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return h, 0, fmt.Errorf("stat %s: %w", path, err)
	}
	var b [headerBytes]byte
	n, err := f.ReadAt(b[:], 0)
	if err != nil && err != io.EOF {
		return h, 0, fmt.Errorf("read %s: %w", path, err)
	}
	h, err = decodeHeader(b[:n])
	return h, info.Size(), err
}

// holdsRecord reports whether the file has a record at its header's base.
func holdsRecord(fsys vfs.FS, path string, h header) (bool, error) {
	f, err := fsys.Open(path)
	if err != nil {
		return false, fmt.Errorf("open %s: %w", path, err)
	}
	defer f.Close()
	w := window{file: f}
	_, reason, err := w.record(newSegment(h, path, nil), h.base, h.base+Position(h.capacity))
	return reason == "" && err == nil, err
}

// window reads a file through a buffer. What is beyond the file's end reads as zeroes.
type window struct {
	file vfs.File
	buf  []byte
	from int64 // offset of buf[0]
	size int   // least to read at once; 0 is 4096
}

// bytes returns n bytes at off, reading ahead up to offset limit. They are valid until the next call.
func (w *window) bytes(off int64, n int, limit int64) ([]byte, error) {
	if off >= w.from && off+int64(n) <= w.from+int64(len(w.buf)) {
		return w.buf[off-w.from:][:n], nil
	}
	want := max(n, w.size, 4096)
	want = max(n, int(min(int64(want), limit-off)))
	if cap(w.buf) < want {
		w.buf = make([]byte, want)
	}
	w.buf = w.buf[:want]
	w.from = off
	got, err := w.file.ReadAt(w.buf, off)
	if err != nil && err != io.EOF {
		w.buf = w.buf[:0]
		return nil, err
	}
	clear(w.buf[got:])
	return w.buf[:n], nil
}

// record reads the record at pos, which must end at or below limit. Payload is valid until the next call.
func (w *window) record(s *segment, pos, limit Position) (r Record, reason string, err error) {
	room := int64(limit - pos)
	if room < recordHeaderBytes {
		return r, "no record", nil
	}
	off, end := s.offset(pos), s.offset(limit)
	h, err := w.bytes(off, recordHeaderBytes, end)
	if err != nil {
		return r, "", fmt.Errorf("read %s at %d: %w", s.path, off, err)
	}
	length, reason := recordLength(h, pos, room)
	if reason != "" {
		return r, reason, nil
	}
	b, err := w.bytes(off, length, end)
	if err != nil {
		return r, "", fmt.Errorf("read %s at %d: %w", s.path, off, err)
	}
	r, reason = decodeRecord(b)
	return r, reason, nil
}

func allZero(b []byte) bool {
	for len(b) > len(zeroes) {
		if !bytes.Equal(b[:len(zeroes)], zeroes[:]) {
			return false
		}
		b = b[len(zeroes):]
	}
	return bytes.Equal(b, zeroes[:len(b)])
}
