package journal

import (
	"fmt"
	"io"
	"sync/atomic"

	"github.com/jmqio/jmq/server/planted"
)

const readAheadBytes = 256 << 10 // of a Reader

// cut is a cut of the end that happened: readers beyond it have lost their place. There are few.
type cut struct {
	to     Position
	before *cut // nil: it was the first
}

// ReadAt reads the record at pos, which must be where one begins. It returns buf, grown if need be, whose bytes the
// record's payload points into. len(buf) is read at first, so give it the record's length (RecordBytes) when it is known;
// with less than a header's 4 KiB are read. Errors: ErrTrimmed, ErrBeyond, ErrClosed, *LostError if pos lies in a hole, *CorruptError, the
// file system's.
func (j *Journal) ReadAt(pos Position, buf []byte) (Record, []byte, error) {
	seg, limit, err := j.locate(pos)
	if err != nil {
		return Record{}, buf, err
	}
	f, err := seg.acquire(j.fs)
	if err != nil {
		return Record{}, buf, err
	}
	defer seg.release()
	room := int64(limit - pos)
	n := len(buf)
	if n < recordHeaderBytes {
		n = 4096
	}
	n = int(min(int64(n), room))
	if n < recordHeaderBytes {
		return Record{}, buf, j.damaged(seg, pos, "no record")
	}
	buf = grow(buf, n)
	off := seg.offset(pos)
	if err := readFull(f, buf, off); err != nil {
		return Record{}, buf, j.unread(seg, pos, err)
	}
	length, reason := recordLength(buf, pos, room)
	if reason != "" {
		return Record{}, buf, j.damaged(seg, pos, reason)
	}
	if length > n {
		buf = grow(buf, length)
		if err := readFull(f, buf[n:], off+int64(n)); err != nil {
			return Record{}, buf, j.unread(seg, pos, err)
		}
	}
	r, reason := decodeRecord(buf[:length], seg.seed)
	if planted.Bug("journal: damaged record is read") {
		r, reason = fields(buf[:length]), ""
	}
	if reason != "" {
		return Record{}, buf, j.damaged(seg, pos, reason)
	}
	if r.Kind == KindLost {
		return Record{}, buf, j.lost(r)
	}
	return r, buf, nil
}

func grow(b []byte, n int) []byte {
	if cap(b) >= n {
		return b[:n]
	}
	next := make([]byte, n)
	copy(next, b)
	return next
}

// readFull reads len(b) bytes; what is beyond the file reads as zeroes. What the disk cannot read it is asked for once more.
func readFull(f io.ReaderAt, b []byte, off int64) error {
	n, err := f.ReadAt(b, off)
	if isUnreadable(err) {
		n, err = f.ReadAt(b, off)
	}
	if err == io.EOF {
		clear(b[n:])
		return nil
	}
	return err
}

// locate finds the segment of pos and the readable end in it.
func (j *Journal) locate(pos Position) (*segment, Position, error) {
	// In this order: a segment is in the list before anything in it is committed.
	return j.locateBelow(pos, j.Committed())
}

// locateBelow is locate for an end that was read before.
func (j *Journal) locateBelow(pos, end Position) (*segment, Position, error) {
	l := *j.list.Load()
	if len(l) == 0 {
		if !j.gone.Load() && pos >= j.opts.Begin {
			return nil, 0, ErrBeyond // nothing was copied yet
		}
		return nil, 0, ErrClosed // else an open journal has a segment, from its first epoch record on
	}
	i := l.find(pos)
	if i < 0 {
		return nil, 0, ErrTrimmed
	}
	limit := min(l.end(i, end), end, l[i].limit())
	if pos >= limit {
		return nil, 0, ErrBeyond
	}
	return l[i], limit, nil
}

// damaged is what to say of a record that cannot be read: it may have been cut meanwhile.
func (j *Journal) damaged(seg *segment, pos Position, reason string) error {
	if pos >= j.Committed() {
		return ErrBeyond
	}
	if h, ok := findHole(j.holeList(), pos); ok && h.From < pos {
		return &LostError{h.From, h.To} // what is there now begins at another place
	}
	return &CorruptError{File: seg.path, Position: pos, Offset: seg.offset(pos), Reason: reason}
}

// unread is what to say when the file cannot be read at pos.
func (j *Journal) unread(seg *segment, pos Position, err error) error {
	if isUnreadable(err) {
		return j.damaged(seg, pos, reasonUnreadable+": "+err.Error())
	}
	return fmt.Errorf("read %s: %w", seg.path, err)
}

// lost is what to say of r, which is of KindLost.
func (j *Journal) lost(r Record) error {
	if h, ok := findHole(j.holeList(), r.Position); ok {
		return &LostError{h.From, h.To}
	}
	return &LostError{r.Position, r.End()}
}

// Reader reads records one after the other. It is for one goroutine at a time.
type Reader struct {
	j      *Journal
	pos    Position
	cut    *cut
	seg    *segment // held; nil between segments
	limit  Position // up to which window may hold bytes; they were committed when it was filled
	window window
	closed atomic.Bool
}

// NewReader returns a reader whose first record is the one at from.
func (j *Journal) NewReader(from Position) *Reader {
	return &Reader{j: j, pos: from, cut: j.cut.Load(), window: window{size: readAheadBytes}}
}

// Position is where the next record is, or will be.
func (r *Reader) Position() Position { return r.pos }

// Next returns the next record; its payload is valid until the next call. io.EOF is the committed end: call again when
// more was committed. ErrTrimmed if the record was trimmed, ErrBeyond if it was cut away, ErrClosed, the file system's.
// A hole is records of KindLost; *LostError if the position lies inside of one: go on at its To. *CorruptError is new damage; after
// Heal the reader goes on.
func (r *Reader) Next() (Record, error) {
	if r.closed.Load() {
		return Record{}, ErrClosed
	}
	if c := r.j.cut.Load(); c != r.cut {
		for missed := c; missed != r.cut; missed = missed.before {
			if r.pos > missed.to {
				return Record{}, ErrBeyond
			}
		}
		r.cut = c
		r.leave()
	}
	if r.seg == nil || r.pos >= r.limit {
		if err := r.enter(); err != nil {
			return Record{}, err
		}
		if r.j.cut.Load() != r.cut { // what was found may be from after it
			r.leave()
			return r.Next()
		}
	}
	rec, reason, err := r.window.record(r.seg, r.pos, r.limit)
	if err != nil {
		return Record{}, err
	}
	if reason != "" {
		r.window.drop() // it may be healed meanwhile
		return Record{}, r.j.damaged(r.seg, r.pos, reason)
	}
	r.pos = rec.End()
	return rec, nil
}

// enter finds the segment of r.pos, holds it, and learns how far it can be read.
func (r *Reader) enter() error {
	seg, limit, err := r.j.locate(r.pos)
	if err == ErrBeyond {
		if r.pos > r.j.Committed() {
			return ErrBeyond
		}
		return io.EOF
	}
	if err != nil {
		return err
	}
	if seg != r.seg {
		r.leave()
		f, err := seg.acquire(r.j.fs)
		if err != nil {
			return err
		}
		r.seg, r.window.file = seg, f
	}
	r.limit = limit
	return nil
}

func (r *Reader) leave() {
	if r.seg != nil {
		r.seg.release()
		r.seg, r.window.file = nil, nil
	}
	r.window.buf = r.window.buf[:0]
	r.limit = 0
}

// Close releases what the reader holds.
func (r *Reader) Close() error {
	if r.closed.Swap(true) {
		return ErrClosed
	}
	r.leave()
	return nil
}
