package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/planted"
)

const scanBytes = 1 << 20 // read at once

// scanner reads segments in order and judges what it finds. It changes nothing: Open and Verify share it.
//
// It reads records from start up to the first place without one, the end. Then it looks for proof that there should
// be one: each record says how far its writer had synced when it was written (back), and so does each segment's header
// (durable). If anything valid after the end, in whatever segment, says that the writer had synced beyond the end, the
// end is damage and not a torn tail. A valid record is one whose checksum and position are right, and whose epoch is not
// lower than that of the last record before the end: what an older epoch left behind proves nothing, because the
// tail was cut before the epoch began.
type scanner struct {
	fs       vfs.FS
	list     segments
	start    Position
	cut      *Position // a Truncate to here was under way: what is beyond is as good as gone
	epoch    Epoch     // at first the epoch of the last record below start, 0 if not known
	record   func(Record) error
	progress func(done, total int64)

	window window

	// The result.
	at       int      // segment that the end is in
	end      Position // after the last record
	last     Epoch    // of the last record before end; 0 if there is none
	proven   Position // start <= proven <= end: synced by whoever wrote it
	leftover Position // end of the last byte after end, in its segment, that is not zero; end if there is none
	short    bool     // the file of that segment is shorter than it should be

	done, total int64
}

func (s *scanner) corrupt(seg *segment, pos Position, format string, args ...any) error {
	return &CorruptError{File: seg.path, Position: pos, Offset: seg.offset(pos), Reason: fmt.Sprintf(format, args...)}
}

func (s *scanner) file(seg *segment) (vfs.File, error) {
	seg.mu.Lock()
	defer seg.mu.Unlock()
	if seg.mu.file != nil {
		return seg.mu.file, nil
	}
	f, err := s.fs.Open(seg.path)
	if err != nil {
		return nil, fmt.Errorf("open segment %s: %w", seg.path, err)
	}
	seg.mu.file = f
	return f, nil
}

// run scans. s.list is not empty.
func (s *scanner) run() error {
	begin, top := s.list[0].base, s.list[len(s.list)-1]
	if s.start == 0 {
		s.start = begin
	}
	switch {
	case s.start < begin:
		return fmt.Errorf("%w: recovery from %d, but the first segment is %s", ErrTrimmed, s.start, s.list[0].path)
	case s.start > top.limit():
		return s.corrupt(top, top.limit(), "the journal ends before position %d, below which everything was synced", s.start)
	}
	if s.cut != nil && s.start > *s.cut {
		return s.corrupt(s.list[max(s.list.find(*s.cut), 0)], *s.cut, "the journal was cut here, but everything below %d was synced", s.start)
	}
	s.at = s.list.find(s.start)
	s.end, s.proven = s.start, s.start
	s.total = int64(top.limit() - s.start)
	s.window.size = scanBytes
	if s.epoch == 0 && s.start > begin {
		if err := s.before(); err != nil {
			return err
		}
	}
	s.last = s.epoch
	reason, err := s.records()
	if err != nil {
		return err
	}
	if s.end == s.start && s.start > begin && s.epoch != 0 {
		// Nothing follows start: see that something leads up to it.
		if err := s.before(); err != nil {
			return err
		}
		s.last = s.epoch
	}
	return s.judge(reason)
}

// before reads the segment below start, to learn the epoch there and to see that the records lead to start.
func (s *scanner) before() error {
	for i := s.at; i >= 0; i-- {
		seg := s.list[i]
		if seg.base == s.start {
			continue
		}
		f, err := s.file(seg)
		if err != nil {
			return err
		}
		s.window.file, s.window.buf = f, s.window.buf[:0]
		limit := min(s.start, s.list.end(i, s.start))
		var epoch Epoch
		for pos := seg.base; pos < limit; {
			r, reason, err := s.window.record(seg, pos, limit)
			if err != nil {
				return err
			}
			if reason == "" && r.Epoch < epoch {
				reason = fmt.Sprintf("epoch %v after %v", r.Epoch, epoch)
			}
			if reason != "" {
				return s.corrupt(seg, pos, "%s, but everything below %d was synced", reason, s.start)
			}
			epoch, pos = r.Epoch, r.End()
		}
		s.epoch = epoch
		return nil
	}
	return nil
}

// records reads from start up to the first place without a record and says why there is none.
func (s *scanner) records() (reason string, err error) {
	for {
		seg := s.list[s.at]
		limit := seg.limit()
		next := Position(0)
		if s.at+1 < len(s.list) {
			next = s.list[s.at+1].base
			limit = min(limit, next)
		}
		if s.cut != nil {
			limit = min(limit, max(*s.cut, s.end))
		}
		f, err := s.file(seg)
		if err != nil {
			return "", err
		}
		s.window.file, s.window.buf = f, s.window.buf[:0]
		for {
			r, why, err := s.window.record(seg, s.end, limit)
			if err != nil {
				return "", err
			}
			if why == "" && r.Epoch < s.last {
				why = fmt.Sprintf("epoch %v after %v", r.Epoch, s.last)
			}
			if why != "" {
				reason = why
				break
			}
			if s.record != nil {
				if err := s.record(r); err != nil {
					return "", err
				}
			}
			s.last = r.Epoch
			s.proven = max(s.proven, r.Durable)
			s.end = r.End()
			s.advance(int64(s.end - r.Position))
		}
		if next == 0 || s.end != next {
			return reason, nil
		}
		s.proven = max(s.proven, s.list[s.at+1].durable)
		s.at++
	}
}

func (s *scanner) advance(n int64) {
	before := s.done
	s.done += n
	if s.progress != nil && before/scanBytes != s.done/scanBytes {
		s.progress(s.done, s.total)
	}
}

// judge tells damage from a torn tail. It reads everything after the end, which is one segment as a rule.
func (s *scanner) judge(reason string) error {
	seg := s.list[s.at]
	damage := func(proof string, durable Position) error {
		return s.corrupt(seg, s.end, "%s, but %s proves that everything below %d was synced", reason, proof, durable)
	}
	if s.cut != nil {
		if s.end < *s.cut {
			return damage("a cut", *s.cut)
		}
		s.proven = s.end
	} else {
		for _, later := range s.list[s.at+1:] {
			if later.durable > s.end {
				return damage("the header of "+later.path, later.durable)
			}
		}
	}
	s.leftover = s.end
	for i := s.at; i < len(s.list) && (i == s.at || s.cut == nil); i++ {
		from := max(s.end, s.list[i].base)
		proof, leftover, err := s.after(s.list[i], from)
		if err != nil {
			return err
		}
		if s.cut == nil && proof.Durable > s.end {
			return damage(fmt.Sprintf("the record at %d", proof.Position), proof.Durable)
		}
		if i == s.at {
			s.leftover = leftover
		}
	}
	info, err := seg.mu.file.Stat()
	if err != nil {
		return fmt.Errorf("stat %s: %w", seg.path, err)
	}
	s.short = info.Size() < seg.offset(seg.limit())
	if s.progress != nil {
		s.progress(s.total, s.total)
	}
	return nil
}

// after looks at [from, limit) of seg for a record that proves something beyond s.end, and for the last byte that is
// not zero. A record can begin at any multiple of 8, because the length of the one before it may be what is damaged.
//
// A producer could put the bytes of such a record into a message, if it guessed its position; that makes a torn tail
// look like damage, and Open refuse: the safe side.
func (s *scanner) after(seg *segment, from Position) (proof Record, leftover Position, err error) {
	f, err := s.file(seg)
	if err != nil {
		return proof, 0, err
	}
	leftover = from
	w := window{file: f, size: scanBytes}
	candidates := window{file: f}
	end := seg.offset(seg.limit())
	for off := seg.offset(from); off < end; {
		n := int(min(zeroCompareBytes, end-off))
		block, err := w.bytes(off, n, end)
		if err != nil {
			return proof, 0, fmt.Errorf("read %s at %d: %w", seg.path, off, err)
		}
		if allZero(block) {
			off += int64(n)
			s.advance(int64(n))
			continue
		}
		for i := 0; i < n; i += 8 {
			at := off + int64(i)
			if allZero(block[i:min(i+8, n)]) {
				continue
			}
			pos := seg.base + Position(at-headerBlockBytes)
			leftover = pos + 8
			if length := binary.LittleEndian.Uint32(block[i:]); length < recordHeaderBytes || length > RecordBytesMax {
				continue
			}
			r, reason, err := candidates.record(seg, pos, seg.limit())
			if err != nil {
				return proof, 0, err
			}
			if s.cut == nil && reason == "" && r.Epoch >= s.last && r.Durable > s.end {
				r.Payload = nil
				return r, leftover, nil
			}
		}
		off += int64(n)
		s.advance(int64(n))
	}
	return proof, leftover, nil
}

// recover reads the folder and brings it into the state from which the journal goes on. It returns the last record's epoch.
//
// What is kept but not proven is written again and synced: a process before this one may have had a failed sync after
// which the pages look clean. What is cut is zeroed, last segments first. A crash at any moment of it leaves the same
// records before the end, the same ones rewritten, and less behind it: recovery has the same result again.
func (j *Journal) recover() (last Epoch, err error) {
	o := &j.opts
	j.list.Store(&segments{})
	if err := makeDir(j.fs, o.Dir); err != nil {
		return 0, err
	}
	if j.dir, err = j.fs.OpenDir(o.Dir); err != nil {
		return 0, fmt.Errorf("open journal folder: %w", err)
	}
	found, err := list(j.fs, o.Dir, &o.StoreID)
	if err != nil {
		return 0, err
	}
	if err := found.segments.chain(j.fs, o.Dir); err != nil {
		return 0, err
	}
	l := found.segments
	var end Position
	if len(l) == 0 {
		if o.Start > 0 {
			return 0, &CorruptError{File: j.fs.PathJoin(o.Dir, segmentName(o.Start)), Position: o.Start,
				Reason: fmt.Sprintf("no segment is there, but everything below %d was synced", o.Start)}
		}
	} else {
		j.list.Store(&l)
		s := scanner{fs: j.fs, list: l, start: o.Start, cut: found.cut, epoch: o.StartEpoch, record: o.Recovered, progress: o.Progress}
		if err := s.run(); err != nil {
			return 0, err
		}
		if s.last.Term() > o.Term {
			return 0, fmt.Errorf("%w: %d, opened with term %d", ErrTerm, s.last.Term(), o.Term)
		}
		if l, err = j.repair(&s); err != nil {
			return 0, err
		}
		j.list.Store(&l)
		j.current = l[len(l)-1]
		last, end = s.last, s.end
		j.mu.limit = j.current.limit()
		j.mu.mark = j.current.base + Position(j.current.capacity/2)
	}
	if found.mark {
		if err := j.removeCutMark(); err != nil {
			return 0, err
		}
	}
	j.mu.next = end
	j.synced.Store(uint64(end))
	if err := j.adopt(found); err != nil {
		return 0, err
	}
	// Names that the process before this one gave may not be on disk yet, and what is appended now must not get lost with them.
	if err := syncDir(j.dir); err != nil {
		return 0, err
	}
	return last, nil
}

// repair cuts and rewrites as the scanner found, and returns the segments that are left.
func (j *Journal) repair(s *scanner) (segments, error) {
	l := s.list
	first := l.find(s.proven)
	for i := min(first, s.at); i <= s.at; i++ {
		seg := l[i]
		if err := seg.openForWriting(j.fs); err != nil {
			return nil, err
		}
	}
	if s.leftover > s.end || s.at+1 < len(l) {
		j.opts.Logger.Warn("journal's torn tail is cut", "position", uint64(s.end), "bytes", int64(s.leftover-s.end), "segments", len(l)-1-s.at)
	}
	l, err := j.dropAfter(l, s.at)
	if err != nil {
		return nil, err
	}
	for i := first; i <= s.at; i++ {
		seg := l[i]
		from, to := max(s.proven, seg.base), l.end(i, s.end)
		if planted.Bug("journal: kept without rewriting") {
			from = to
		}
		if err := rewrite(seg, from, to); err != nil {
			return nil, err
		}
		zeroTo := s.leftover
		if i < s.at {
			zeroTo = to
		} else if s.short || s.cut != nil {
			// Of a cut also what looks like zeroes already: it may have been written by a process whose sync failed.
			zeroTo = seg.limit()
		}
		if err := zero(seg, to, zeroTo); err != nil {
			return nil, err
		}
		// Not writeSync: an interrupted sync fails Open, which can be tried again.
		if err := seg.mu.file.Sync(); err != nil {
			return nil, fmt.Errorf("sync segment %s: %w", seg.path, err)
		}
	}
	return l, nil
}

// dropAfter removes the segments after l[at], from the last backwards, each for good before the next, so that no crash leaves a gap.
func (j *Journal) dropAfter(l segments, at int) (segments, error) {
	for i := len(l) - 1; i > at; i-- {
		if err := j.fs.Remove(l[i].path); err != nil {
			return nil, fmt.Errorf("remove segment: %w", err)
		}
		if err := syncDir(j.dir); err != nil {
			return nil, err
		}
		l[i].release()
	}
	return l[: at+1 : at+1], nil
}

// rewrite writes [from, to) of seg again with the bytes that are there.
func rewrite(seg *segment, from, to Position) error {
	buf := make([]byte, min(int64(to-from), scanBytes))
	for from < to {
		b := buf[:min(int64(len(buf)), int64(to-from))]
		if err := readFull(seg.mu.file, b, seg.offset(from)); err != nil {
			return fmt.Errorf("read segment %s: %w", seg.path, err)
		}
		if err := writeAt(seg.mu.file, b, seg.offset(from)); err != nil {
			return fmt.Errorf("rewrite segment %s: %w", seg.path, err)
		}
		from += Position(len(b))
	}
	return nil
}

// zero fills [from, to) of seg with zeroes.
func zero(seg *segment, from, to Position) error {
	for from < to {
		b := zeroes[:min(int64(len(zeroes)), int64(to-from))]
		if err := writeAt(seg.mu.file, b, seg.offset(from)); err != nil {
			return fmt.Errorf("zero segment %s: %w", seg.path, err)
		}
		from += Position(len(b))
	}
	return nil
}

// adopt takes over the spares that are there, one full and one smaller, and removes the other files.
func (j *Journal) adopt(found folder) error {
	remove := found.filling
	var full, small bool
	for _, s := range found.spares {
		var n int
		_, isSegment := parseSegmentName(j.fs.PathBase(s.path))
		if _, err := fmt.Sscanf(j.fs.PathBase(s.path), spareNameFormat, &n); err == nil {
			j.mu.spareCount = max(j.mu.spareCount, n)
		}
		want := &small
		if s.capacity+headerBlockBytes == j.opts.SegmentBytesMax {
			want = &full
		}
		// One under a segment's name could be in the way of a segment to come.
		fits := s.capacity >= segmentBytesFloor-headerBlockBytes && s.capacity%8 == 0 && s.capacity+headerBlockBytes <= j.opts.SegmentBytesMax
		if *want || isSegment || !fits {
			remove = append(remove, s.path)
			continue
		}
		f, err := j.fs.OpenReadWrite(s.path, vfs.WriteCategoryUnspecified)
		if err != nil {
			return fmt.Errorf("open spare %s: %w", s.path, err)
		}
		*want = true
		s.file = f
		j.mu.spares = append(j.mu.spares, s)
	}
	for _, path := range remove {
		if err := j.fs.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove spare: %w", err)
		}
	}
	return nil
}

// makeDir makes dir and what is missing above it, durably. A process before this one may have made them and been killed
// before it synced their names, so all of them are synced, whether they were there or not. Above the parent that is an attempt: a
// folder that was there before us may be one that we cannot open, and then it is not of our making either.
func makeDir(fsys vfs.FS, dir string) error {
	if err := fsys.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make journal folder: %w", err)
	}
	for parent := fsys.PathDir(dir); ; parent = fsys.PathDir(parent) {
		d, err := fsys.OpenDir(parent)
		if err == nil {
			err = syncDir(d)
			_ = d.Close()
		}
		if err != nil && parent == fsys.PathDir(dir) {
			return fmt.Errorf("make journal folder %s: %w", dir, err)
		}
		if up := fsys.PathDir(parent); up == parent || up == "." {
			return nil
		}
	}
}
