package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A footer is what the store wrote behind a sealed segment's capacity, once it had read all of it. The journal does not look into it.
//
//	 0  magic     "JMQFOOT\x00"
//	 8  version   u32   1
//	12  length    u32   of the blob
//	16  base      u64   of the segment: a footer of the file's former life has another
//	24  blob crc  u32   crc32c over the blob
//	28  crc32c    u32   over [0, 28)
//	32  blob
const (
	footerMagic       = "JMQFOOT\x00"
	footerVersion     = 1
	footerHeaderBytes = 32
	footerBytesMax    = 64 << 20
)

// ErrNoFooter: the segment has none, or it is damaged; it can be written again.
var ErrNoFooter = errors.New("journal: segment has no footer")

func (s *segment) footerOffset() int64 { return headerBlockBytes + s.capacity }

// readFooterHeader returns the blob's length and checksum; ok is false if there is no footer at off.
func readFooterHeader(f io.ReaderAt, off int64, base Position) (length, crc uint32, ok bool, err error) {
	var h [footerHeaderBytes]byte
	if err := readFull(f, h[:], off); err != nil {
		if isUnreadable(err) {
			err = nil
		}
		return 0, 0, false, err
	}
	le := binary.LittleEndian
	if string(h[:8]) != footerMagic || le.Uint32(h[8:]) != footerVersion || le.Uint64(h[16:]) != uint64(base) ||
		le.Uint32(h[28:]) != crc32.Checksum(h[:28], crcTable) || le.Uint32(h[12:]) > footerBytesMax {
		return 0, 0, false, nil
	}
	return le.Uint32(h[12:]), le.Uint32(h[24:]), true, nil
}

// dropFooter overwrites the footer that the file may have: the segment is cut, and goes on with other records. The caller syncs the file, which
// is open for writing.
func (s *segment) dropFooter() error {
	info, err := s.mu.file.Stat()
	if err != nil {
		return fmt.Errorf("stat %s: %w", s.path, err)
	}
	s.footer.Store(false)
	if info.Size() < s.footerOffset()+footerHeaderBytes {
		return nil
	}
	return writeAt(s.mu.file, zeroes[:footerHeaderBytes], s.footerOffset())
}

func hasFooter(fsys vfs.FS, s *segment) (bool, error) {
	f, err := fsys.Open(s.path)
	if err != nil {
		return false, fmt.Errorf("open %s: %w", s.path, err)
	}
	defer f.Close()
	_, _, ok, err := readFooterHeader(f, s.footerOffset(), s.base)
	if err != nil {
		return false, fmt.Errorf("read %s: %w", s.path, err)
	}
	return ok, nil
}

// findCapacity is the capacity of a segment file whose header is gone: up to its footer, or the file's end. Files are made in
// multiples of 4096 bytes.
func findCapacity(fsys vfs.FS, path string, size int64) (int64, error) {
	capacity := (size - headerBlockBytes) &^ 7
	base, ok := parseSegmentName(fsys.PathBase(path))
	if !ok || capacity < 0 {
		return max(capacity, 0), nil
	}
	f, err := fsys.Open(path)
	if err != nil {
		return 0, fmt.Errorf("open %s: %w", path, err)
	}
	defer f.Close()
	for off := (size - 1) &^ 4095; off > headerBlockBytes && off >= size-footerBytesMax-footerHeaderBytes; off -= 4096 {
		_, _, ok, err := readFooterHeader(f, off, base)
		if err != nil {
			return 0, fmt.Errorf("read %s: %w", path, err)
		}
		if ok {
			return off - headerBlockBytes, nil
		}
	}
	return capacity, nil
}

// sealed finds the segment that begins at base, which must not be the last one, and where its records end.
func (j *Journal) sealed(base Position) (*segment, Position, error) {
	l := *j.list.Load()
	i := l.find(base)
	switch {
	case len(l) == 0:
		return nil, 0, ErrClosed
	case i < 0:
		return nil, 0, ErrTrimmed
	case l[i].base != base:
		return nil, 0, fmt.Errorf("journal: no segment begins at position %d", base)
	case i+1 == len(l) || l[i+1].base > j.Committed():
		return nil, 0, fmt.Errorf("%w: segment %d is not sealed", ErrBeyond, base)
	}
	return l[i], l[i+1].base, nil
}

// WriteFooter writes blob as the footer of the sealed segment that begins at base, durably; one that is there is replaced. After a
// crash meanwhile there may be none. Errors: ErrTrimmed, ErrBeyond if the segment is not sealed, ErrClosed, the file
// system's; none stops the journal.
func (j *Journal) WriteFooter(base Position, blob []byte) error {
	if len(blob) > footerBytesMax {
		return ErrTooLarge
	}
	j.trimMu.Lock()
	defer j.trimMu.Unlock()
	s, _, err := j.sealed(base)
	if err != nil {
		return err
	}
	b := make([]byte, footerHeaderBytes, footerHeaderBytes+len(blob))
	copy(b, footerMagic)
	le := binary.LittleEndian
	le.PutUint32(b[8:], footerVersion)
	le.PutUint32(b[12:], uint32(len(blob)))
	le.PutUint64(b[16:], uint64(base))
	le.PutUint32(b[24:], crc32.Checksum(blob, crcTable))
	le.PutUint32(b[28:], crc32.Checksum(b[:28], crcTable))
	b = append(b, blob...)
	f, err := j.fs.OpenReadWrite(s.path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return fmt.Errorf("open segment %s: %w", s.path, err)
	}
	defer f.Close()
	if err := writeAt(f, b, s.footerOffset()); err != nil {
		return fmt.Errorf("write footer of %s: %w", s.path, err)
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("sync footer of %s: %w", s.path, err)
	}
	s.size.Store(max(s.size.Load(), s.footerOffset()+int64(len(b))))
	s.footer.Store(true)
	return nil
}

// ReadFooter returns the footer of the segment that begins at base. Errors: ErrNoFooter, ErrTrimmed, ErrBeyond, ErrClosed, the file system's.
func (j *Journal) ReadFooter(base Position) ([]byte, error) {
	s, _, err := j.sealed(base)
	if err != nil {
		return nil, err
	}
	f, err := s.acquire(j.fs)
	if err != nil {
		return nil, err
	}
	defer s.release()
	length, crc, ok, err := readFooterHeader(f, s.footerOffset(), base)
	if err != nil {
		return nil, fmt.Errorf("read footer of %s: %w", s.path, err)
	}
	if !ok {
		s.footer.Store(false)
		return nil, ErrNoFooter
	}
	if s.footerOffset()+footerHeaderBytes+int64(length) > s.size.Load() { // before memory is taken for it
		s.footer.Store(false)
		return nil, fmt.Errorf("%w: that of %s is cut", ErrNoFooter, s.path)
	}
	blob := make([]byte, length)
	if err := readFull(f, blob, s.footerOffset()+footerHeaderBytes); err != nil && !isUnreadable(err) {
		return nil, fmt.Errorf("read footer of %s: %w", s.path, err)
	}
	if crc32.Checksum(blob, crcTable) != crc {
		s.footer.Store(false)
		return nil, fmt.Errorf("%w: that of %s is damaged", ErrNoFooter, s.path)
	}
	return blob, nil
}

// SegmentInfo is one segment.
type SegmentInfo struct {
	Base, End Position
	FileBytes int64
	Created   int64 // when it was begun, unix nanoseconds; 0 is not known
	Sealed    bool  // what comes next goes to a later one, and all of it is committed
	Footer    bool
}

// Segments returns the segments, by position.
func (j *Journal) Segments() []SegmentInfo {
	committed := j.Committed() // first: a segment is in the list before anything in it is committed
	l := *j.list.Load()
	out := make([]SegmentInfo, len(l))
	for i, s := range l {
		out[i] = SegmentInfo{
			Base: s.base, End: max(s.base, min(l.end(i, committed), committed)), FileBytes: s.size.Load(), Created: s.created,
			Sealed: i+1 < len(l) && l[i+1].base <= committed, Footer: s.footer.Load(),
		}
	}
	return out
}

// FolderBytes is what the journal's folder takes on the disk.
type FolderBytes struct {
	Segments, Spares, Reserve int64
	Damaged                   int64 // what was set aside of damage,
	Diverged                  int64 // and by CutTo
}

// Total is the sum.
func (b FolderBytes) Total() int64 { return b.Segments + b.Spares + b.Reserve + b.Damaged + b.Diverged }

// Bytes returns what the folder takes, without reading it. A spare that is being filled is not counted.
func (j *Journal) Bytes() FolderBytes {
	var b FolderBytes
	j.mu.Lock()
	for _, s := range j.mu.spares {
		b.Spares += s.size
	}
	b.Reserve = j.mu.reserve.size
	l := *j.list.Load()
	j.mu.Unlock()
	for _, s := range l {
		b.Segments += s.size.Load()
	}
	for _, h := range j.holeList() {
		b.Damaged += h.size
	}
	for _, a := range j.SetAside() {
		b.Diverged += a.Bytes
	}
	return b
}

// Scrub reads all records of the segment that begins at base and gives them to each, in order; payloads are valid during the call.
// pace is called before so many bytes are read, and may wait; its error ends Scrub, and so does each's. Errors: *CorruptError (Heal, then
// again), ErrTrimmed, ErrBeyond if the segment is not sealed, ErrClosed, the file system's.
func (j *Journal) Scrub(base Position, pace func(bytes int) error, each func(Record) error) error {
	s, end, err := j.sealed(base)
	if err != nil {
		return err
	}
	f, err := s.acquire(j.fs)
	if err != nil {
		return err
	}
	defer s.release()
	w := window{file: f, size: readAheadBytes}
	paced := base
	for pos := base; pos < end; {
		if pos >= paced {
			n := min(Position(readAheadBytes), end-pos)
			if err := pace(int(n)); err != nil {
				return err
			}
			paced = pos + n
			j.mu.Lock()
			j.mu.metrics.ScrubbedBytes += int64(n)
			j.mu.Unlock()
		}
		r, reason, err := w.record(s, pos, end)
		if err != nil {
			return err
		}
		if reason != "" {
			return j.damaged(s, pos, reason)
		}
		if err := each(r); err != nil {
			return err
		}
		pos = r.End()
	}
	return nil
}
