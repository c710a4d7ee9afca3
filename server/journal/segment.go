package journal

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A segment file is a header block of 4096 bytes and records; behind the last one are zeroes, or what the file held in its former
// life; a sealed one may have a footer (footer.go) after its capacity. The block holds the header twice, each copy followed by zeroes:
//
//	 0  magic     "JMQJRNL\x00"
//	 8  version   u32   2
//	12  flags     u32   1: the file had a former life; 2: it was the reserve
//	16  store     [16]  store id
//	32  base      u64   position of the first record; also the file's name
//	40  previous  u64   base of the segment before it; ^0 for the first ever
//	48  durable   u64   durable end that the writing store had proven when it made this the current segment
//	56  capacity  u64   bytes for records
//	64  created   i64   unix nanoseconds
//	72  crc32c    u32   over [0, 72)
//
// previous lets a missing segment be seen without reading records; durable proves what was synced, as back does in a record.
const (
	FormatVersion = 2

	headerBlockBytes   = 4096
	headerCopyBytes    = 2048
	headerBytes        = 76
	segmentSuffix      = ".journal"
	sparePrefix        = "spare-"
	fillingSuffix      = ".filling"
	noPrevious         = ^Position(0)
	zeroCompareBytes   = 4096
	segmentNameDigits  = 20
	storeIDBytes       = 16
	headerAtVersion    = 8
	headerAtCRC        = 72
	headerMagic        = "JMQJRNL\x00"
	spareNameFormat    = sparePrefix + "%06d" + segmentSuffix
	fillingNameFormat  = sparePrefix + "%06d" + fillingSuffix
	segmentNameFormat  = "%020d" + segmentSuffix
	reserveName        = "reserve" + segmentSuffix
	reserveFillingName = "reserve" + fillingSuffix
	headerReasonDamage = "segment header is damaged"

	flagRecycled = 1
	flagReserve  = 2
)

var segmentBytesFloor int64 = 64 << 10 // lower in a test that damages every byte

// VersionError: a file was written in another format than this program knows.
type VersionError struct {
	File             string
	Found, Supported uint32
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("journal: %s has format version %d, this program knows %d", e.File, e.Found, e.Supported)
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
	flags    uint32
	store    [storeIDBytes]byte
	base     Position
	previous Position
	durable  Position
	capacity int64
	created  int64
}

// encode fills the header block b: both copies.
func (h *header) encode(b []byte) {
	clear(b)
	copy(b, headerMagic)
	le := binary.LittleEndian
	le.PutUint32(b[headerAtVersion:], FormatVersion)
	le.PutUint32(b[12:], h.flags)
	copy(b[16:], h.store[:])
	le.PutUint64(b[32:], uint64(h.base))
	le.PutUint64(b[40:], uint64(h.previous))
	le.PutUint64(b[48:], uint64(h.durable))
	le.PutUint64(b[56:], uint64(h.capacity))
	le.PutUint64(b[64:], uint64(h.created))
	le.PutUint32(b[headerAtCRC:], crc32.Checksum(b[:headerAtCRC], crcTable))
	copy(b[headerCopyBytes:], b[:headerBytes])
}

// errHeader: what was read is no header. errHeaderCopy: one copy is none, the other is whole.
var (
	errHeader     = errors.New("no segment header")
	errHeaderCopy = errors.New("one copy of the segment header is damaged")
)

// decodeHeader returns the header of a block: errHeader if it has none, with errHeaderCopy the copy that is whole, a VersionError if
// both copies are of one other version. Where both are whole and differ, which a torn write of a spare's leaves, the
// first counts.
func decodeHeader(b []byte) (h header, err error) {
	var block [headerBlockBytes]byte
	copy(block[:], b)
	one, two := block[:headerCopyBytes], block[headerCopyBytes:]
	h, ok := decodeHeaderCopy(one)
	if other, otherOK := decodeHeaderCopy(two); ok && otherOK {
		return h, nil
	} else if ok {
		return h, errHeaderCopy
	} else if otherOK {
		return other, errHeaderCopy
	}
	v := binary.LittleEndian.Uint32(one[headerAtVersion:])
	if string(one[:8]) == headerMagic && v != FormatVersion && v != 0 && (v == 1 && allZero(two) || // which had one copy
		string(two[:8]) == headerMagic && v == binary.LittleEndian.Uint32(two[headerAtVersion:])) {
		return h, &VersionError{Found: v, Supported: FormatVersion}
	}
	return h, errHeader
}

func decodeHeaderCopy(b []byte) (h header, ok bool) {
	le := binary.LittleEndian
	if string(b[:8]) != headerMagic || le.Uint32(b[headerAtVersion:]) != FormatVersion ||
		le.Uint32(b[headerAtCRC:]) != crc32.Checksum(b[:headerAtCRC], crcTable) || !allZero(b[headerBytes:]) {
		return h, false
	}
	h.flags = le.Uint32(b[12:])
	copy(h.store[:], b[16:])
	h.base = Position(le.Uint64(b[32:]))
	h.previous = Position(le.Uint64(b[40:]))
	h.durable = Position(le.Uint64(b[48:]))
	h.capacity = int64(le.Uint64(b[56:]))
	h.created = int64(le.Uint64(b[64:]))
	if h.capacity <= 0 || h.capacity%8 != 0 || h.durable > h.base {
		return header{}, false
	}
	return h, true
}

func segmentName(base Position) string { return fmt.Sprintf(segmentNameFormat, uint64(base)) }

// parseSegmentName returns false for anything but 20 digits, of a position that a record can have, and the suffix.
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
	return Position(n), n%8 == 0 && n <= math.MaxInt64
}

// segment is one file of the journal.
//
// Its file is open while it is needed: the current segment's always, others' from the first read on. refs counts the
// journal's list (1) and each reader; at 0 the file is closed, so that a trimmed segment can be read to the end by
// whoever holds it.
type segment struct {
	header
	path   string
	seed   uint32       // of its records' checksums
	size   atomic.Int64 // of the file
	footer atomic.Bool  // there is one
	refs   atomic.Int64
	mu     struct {
		sync.Mutex
		file     vfs.File   // nil until needed; replaced only by who has the right to commit
		writable bool       // file was opened for writing too
		retired  []vfs.File // earlier files, which readers may still use
	}
}

func newSegment(h header, path string, f vfs.File) *segment {
	s := &segment{header: h, path: path, seed: crcSeed(h.store)}
	s.size.Store(headerBlockBytes + h.capacity)
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
	if s.refs.Add(-1) == 0 {
		s.closeFiles()
	}
}

func (s *segment) closeFiles() {
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

// spare is a file that can become a segment: zeroes, synced, or a segment that was trimmed.
type spare struct {
	path     string
	capacity int64
	size     int64
	flags    uint32
	file     vfs.File
}

// folder is what list found in a journal's directory.
type folder struct {
	segments   segments       // files closed
	damaged    []headerDamage // of segments
	spares     []spare        // files closed
	reserve    *spare         // nil if there is none
	filling    []string       // paths of files that were not finished, or are not wanted
	cut        *Position      // where a Truncate was under way; nil if none was
	mark       bool           // the file that says so is there, if maybe not whole
	holes      []hole         // that damage has left, by position
	ends       Ends           // what the ends file says, if endsKnown
	asides     []Aside
	endsKnown  bool
	endsNumber uint64
	hopeless   *CorruptError // the last segment, which has neither a header nor a record; it is not in segments
}

// proven is what the ends file says was synced, for who goes on where segments are missing at the end: then 0.
func (found *folder) proven() Position {
	if n := len(found.segments); n == 0 || found.ends.Synced > found.segments[n-1].limit() {
		return 0
	}
	return found.ends.Synced
}

// headerDamage is a segment whose header block is to be written again.
type headerDamage struct {
	segment *segment
	reason  string
}

// found is a file with a segment's name.
type foundSegment struct {
	path string
	base Position
	size int64
	h    header // good if ok
	ok   bool
	why  string // not "": the block is to be written again
}

// list is read, but a last segment of which nothing is known is an error.
func list(fsys vfs.FS, dir string, want *[storeIDBytes]byte) (folder, error) {
	found, err := read(fsys, dir, want)
	if err == nil && found.hopeless != nil {
		err = found.hopeless
	}
	return found, err
}

// read reads the names and headers in dir; it changes nothing. A file with a segment's name is a segment, whatever its
// header: the name is given only after the header was synced. A header that cannot be read is made anew from the name, the
// file's size and the segments around it; but where the last one has neither a header nor a record it is not known what it held.
// Every other doubt is an error:
//   - a valid record at the base that another name's header says: a segment that somebody renamed.
//
// want is nil if any store will do, as long as all segments agree.
func read(fsys vfs.FS, dir string, want *[storeIDBytes]byte) (folder, error) {
	var found folder
	names, err := fsys.List(dir)
	if err != nil {
		return found, fmt.Errorf("list journal %s: %w", dir, err)
	}
	slices.Sort(names)
	var segs []foundSegment
	type formerLife struct { // spares with a header of their own
		spare
		h header
	}
	var former []formerLife
	for _, name := range names {
		path := fsys.PathJoin(dir, name)
		if name == reserveFillingName || strings.HasPrefix(name, sparePrefix) && strings.HasSuffix(name, fillingSuffix) {
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
		if name == endsName {
			if found.ends, found.endsNumber, found.endsKnown, err = readEnds(fsys, dir, want); err != nil {
				return found, err
			}
			continue
		}
		if name == divergedDir {
			if found.asides, found.filling, err = listAsides(fsys, path, found.filling); err != nil {
				return found, err
			}
			continue
		}
		if name == epochsNewName {
			found.filling = append(found.filling, path)
			continue
		}
		if name == damagedDir {
			if found.holes, found.filling, err = listHoles(fsys, path, found.filling); err != nil {
				return found, err
			}
			continue
		}
		base, named := parseSegmentName(name)
		if !named && name != reserveName && !(strings.HasPrefix(name, sparePrefix) && strings.HasSuffix(name, segmentSuffix)) {
			continue // not ours
		}
		h, size, err := readHeader(fsys, path)
		var version *VersionError
		if errors.As(err, &version) {
			version.File = path
			return found, version
		}
		ok := err == nil || errors.Is(err, errHeaderCopy)
		if !ok && !errors.Is(err, errHeader) {
			return found, err
		}
		if ok && !named && slices.Contains(names, segmentName(h.base)) {
			found.filling = append(found.filling, path) // another name of that segment: a crash in the middle of its renaming
			continue
		}
		if ok && !(named && h.base == base) && (named || h.base >= firstBase(names)) {
			if misnamed, err := holdsRecord(fsys, path, h); err != nil {
				return found, err
			} else if misnamed {
				return found, &CorruptError{File: path, Position: h.base, Offset: headerBlockBytes,
					Reason: "holds records, but is not named " + segmentName(h.base) + " as its header says: rename it, or move it away if it belongs to another store"}
			}
		}
		switch {
		case named:
			f := foundSegment{path: path, base: base, size: size, h: h, ok: ok && h.base == base}
			switch {
			case !f.ok:
				f.why = headerReasonDamage + fmt.Sprintf(" (the file has %d bytes)", size)
			case err != nil:
				f.why = "a copy of the segment header is damaged"
			}
			if f.ok {
				if want == nil {
					want = &h.store
				}
				if h.store != *want {
					return found, &ForeignError{File: path, Found: h.store, Want: *want}
				}
			}
			segs = append(segs, f)
		case name == reserveName:
			found.reserve = &spare{path: path, capacity: size - headerBlockBytes, size: size, flags: flagReserve}
		case ok:
			former = append(former, formerLife{spare{path: path, capacity: h.capacity, size: size, flags: flagRecycled}, h})
		default:
			found.spares = append(found.spares, spare{path: path, capacity: size - headerBlockBytes, size: size})
		}
	}
	for _, f := range former {
		if f.size < headerBlockBytes+f.capacity {
			f.capacity = f.size - headerBlockBytes
		}
		found.spares = append(found.spares, f.spare)
	}
	for i := range segs {
		err := found.add(fsys, segs, i, want)
		if i+1 == len(segs) && errors.As(err, &found.hopeless) {
			break
		}
		if err != nil {
			return found, err
		}
	}
	return found, nil
}

// firstBase is the base of the first segment among the names, which are sorted; 0 if there is none.
func firstBase(names []string) Position {
	for _, name := range names {
		if base, ok := parseSegmentName(name); ok {
			return base
		}
	}
	return 0
}

// add takes file i as a segment, with a header made anew if its own is damaged.
func (found *folder) add(fsys vfs.FS, segs []foundSegment, i int, want *[storeIDBytes]byte) error {
	f := &segs[i]
	if !f.ok {
		refuse := &CorruptError{File: f.path, Position: f.base, Reason: f.why}
		if want == nil {
			return refuse
		}
		f.h = header{store: *want, base: f.base, previous: noPrevious, durable: f.base, flags: flagRecycled}
		if i > 0 {
			f.h.previous, f.h.created = segs[i-1].base, segs[i-1].h.created
		} else if i+1 < len(segs) {
			f.h.created = segs[i+1].h.created
		}
		capacity, err := findCapacity(fsys, f.path, f.size)
		if err != nil {
			return err
		}
		f.h.capacity = capacity
		if i+1 < len(segs) {
			f.h.capacity = max(capacity, int64(segs[i+1].base-f.base))
		} else if capacity < recordHeaderBytes {
			return refuse
		} else if _, ok, err := firstRecord(fsys, newSegment(f.h, f.path, nil)); err != nil || !ok {
			return cmp.Or[error](err, refuse)
		}
	}
	s := newSegment(f.h, f.path, nil)
	s.size.Store(f.size)
	if f.size > headerBlockBytes+f.h.capacity && i+1 < len(segs) {
		has, err := hasFooter(fsys, s)
		if err != nil {
			return err
		}
		s.footer.Store(has)
	}
	found.segments = append(found.segments, s)
	if f.why != "" {
		found.damaged = append(found.damaged, headerDamage{s, f.why})
	}
	return nil
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
	b := make([]byte, headerBlockBytes)
	n, err := f.ReadAt(b, 0)
	if isUnreadable(err) {
		n, err = f.ReadAt(b, 0)
	}
	if err != nil && err != io.EOF && !isUnreadable(err) {
		return h, 0, fmt.Errorf("read %s: %w", path, err)
	}
	h, err = decodeHeader(b[:n])
	return h, info.Size(), err
}

// writeHeader writes the header block of s again, synced.
func writeHeader(f vfs.File, h *header) error {
	block := make([]byte, headerBlockBytes)
	h.encode(block)
	return writeSync(f, block, 0)
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

// isUnreadable says that the disk could not give bytes back. Where that stays so it is damage of these bytes.
func isUnreadable(err error) bool {
	return errors.Is(err, syscall.EIO) || errors.Is(err, syscall.EBADMSG)
}

// window reads a file through a buffer. What is beyond the file's end reads as zeroes.
type window struct {
	file vfs.File
	buf  []byte
	from int64 // offset of buf[0]
	size int   // least to read at once; 0 is 4096
}

// drop forgets what was read: it may have changed.
func (w *window) drop() { w.buf = w.buf[:0] }

// bytes returns n bytes at off, reading ahead up to offset limit. They are valid until the next call. What the disk cannot read it is
// asked for once more, without what is around it.
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
	if isUnreadable(err) {
		w.buf = w.buf[:n]
		got, err = w.file.ReadAt(w.buf, off)
	}
	if err != nil && err != io.EOF {
		w.drop()
		return nil, err
	}
	clear(w.buf[got:])
	return w.buf[:n], nil
}

// record reads the record at pos, which must end at or below limit. Payload is valid until the next call. What the disk cannot
// read is no record.
func (w *window) record(s *segment, pos, limit Position) (r Record, reason string, err error) {
	room := int64(limit - pos)
	if room < recordHeaderBytes {
		return r, "no record", nil
	}
	off, end := s.offset(pos), s.offset(limit)
	failed := func(err error) (Record, string, error) {
		if isUnreadable(err) {
			return r, fmt.Sprintf("%s: %v", reasonUnreadable, err), nil
		}
		return r, "", fmt.Errorf("read %s at %d: %w", s.path, off, err)
	}
	h, err := w.bytes(off, recordHeaderBytes, end)
	if err != nil {
		return failed(err)
	}
	length, reason := recordLength(h, pos, room)
	if reason != "" {
		return r, reason, nil
	}
	b, err := w.bytes(off, length, end)
	if err != nil {
		return failed(err)
	}
	r, reason = decodeRecord(b, s.seed)
	return r, reason, nil
}

const reasonUnreadable = "cannot be read"

func allZero(b []byte) bool {
	for len(b) > len(zeroes) {
		if !bytes.Equal(b[:len(zeroes)], zeroes[:]) {
			return false
		}
		b = b[len(zeroes):]
	}
	return bytes.Equal(b, zeroes[:len(b)])
}
