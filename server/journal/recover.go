package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/planted"
)

const (
	scanBytes   = 1 << 20 // read at once
	sectorBytes = 512     // the least that a disk fails to read
)

// scanner reads segments in order and judges what it finds: Open, Heal, Verify, Dump and Repair share it.
//
// It reads records from start up to the first place without one, the end. Then it looks for proof that there should
// be one: each record says how far its writer had synced when it was written (back), and so does each segment's header
// (durable). If anything valid after the end, in whatever segment, says that the writer had synced beyond the end, the
// end is damage and not a torn tail. A valid record is one whose checksum and position are right, and whose epoch is not
// lower than that of the last record before the end: what an older epoch left behind proves nothing, because the
// tail was cut before the epoch began. What the disk cannot read is damage too: a kill or a power loss does not do that.
//
// Damage reaches up to the next valid record, or the segment's end. It is healed, when heal is set, and read as the
// records of KindLost that it then is; else it is told to damage, and the scan goes on behind it.
type scanner struct {
	fs       vfs.FS
	list     segments
	holes    []hole // known
	start    Position
	cut      *Position // a Truncate to here was under way: what is beyond is as good as gone
	synced   Position  // the ends file proves that everything below was synced; 0 if there is none
	epoch    Epoch     // at first the epoch of the last record below start, 0 if not known
	unknown  Epoch     // for lost records of which no epoch around is known
	record   func(Record) error
	progress func(done, total int64)
	// heal overwrites a range of damage; known is what was set aside before.
	heal   func(seg *segment, h Hole, known bool, epoch Epoch, reason string) error
	damage func(*CorruptError, Hole)

	window window

	// The result.
	at       int      // segment that the end is in
	end      Position // after the last record
	last     Epoch    // of the last record before end; 0 if there is none
	proven   Position // start <= proven <= end: synced by whoever wrote it
	leftover Position // end of what a torn tail has left after end, in its segment; end if there is none
	short    bool     // the file of that segment is shorter than it should be

	healed      Position // from where a range was healed last
	healedSome  bool
	done, total int64
}

func (s *scanner) corrupt(seg *segment, pos Position, format string, args ...any) *CorruptError {
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
	if s.cut != nil {
		s.synced = min(s.synced, *s.cut)
	}
	if s.synced > top.limit() {
		return s.corrupt(top, top.limit(), "the journal ends before position %d, below which the ends file says that everything was synced", s.synced)
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
	if err := s.startInHole(); err != nil {
		return err
	}
	if err := s.records(); err != nil {
		return err
	}
	s.proven = max(s.proven, min(s.synced, s.end))
	if s.end == s.start && s.start > begin && s.epoch != 0 {
		// Nothing follows start: see that something leads up to it.
		if err := s.before(); err != nil {
			return err
		}
		s.last = s.epoch
	}
	return nil
}

// startInHole goes on behind the hole that start lies in, if what was lost there was not lost yet when start was noted: no record
// of KindLost need begin there. Whoever listens is told of what is lost from start on.
func (s *scanner) startInHole() error {
	h, ok := findHole(s.holes, s.start)
	seg := s.list[s.at]
	if !ok || h.From == s.start || h.To > s.list.end(s.at, seg.limit()) || h.To-s.start < recordHeaderBytes {
		return nil
	}
	f, err := s.file(seg)
	if err != nil {
		return err
	}
	s.window.file = f
	s.window.drop()
	if _, reason, err := s.window.record(seg, s.start, seg.limit()); err != nil || reason == "" {
		return err
	}
	s.end, s.proven = h.To, h.To
	if s.at+1 < len(s.list) && s.list[s.at+1].base == h.To {
		s.at++
	}
	if s.record == nil {
		return nil
	}
	return lostRecords(Hole{s.start, h.To}, s.last, 0, s.record)
}

// before reads the segment below start, to learn the epoch there and to see that the records lead to start.
func (s *scanner) before() error {
	at := s.at
	defer func() { s.at = at }()
	for i := s.at; i >= 0; i-- {
		seg := s.list[i]
		if seg.base == s.start {
			continue
		}
		f, err := s.file(seg)
		if err != nil {
			return err
		}
		s.at = i
		limit := min(s.start, s.list.end(i, s.start))
		if h, ok := findHole(s.holes, s.start); ok && h.From < s.start {
			limit = min(h.To, s.list.end(i, h.To)) // where a record of KindLost ends
		}
		s.epoch, err = s.walk(f, seg, limit)
		return err
	}
	return nil
}

// walk reads seg from its begin up to limit, below which everything was on disk, and returns the last epoch. s.at is seg's place.
func (s *scanner) walk(f vfs.File, seg *segment, limit Position) (last Epoch, err error) {
	s.window = window{file: f, buf: s.window.buf[:0], size: scanBytes}
	for pos := seg.base; pos < limit; {
		r, reason, err := s.window.record(seg, pos, min(seg.limit(), s.list.end(s.at, seg.limit())))
		if err != nil {
			return last, err
		}
		if reason == "" && r.Epoch < last {
			reason = fmt.Sprintf("epoch %v after %v", r.Epoch, last)
		}
		if reason == "" && r.End() > limit {
			return last, s.corrupt(seg, pos, "the record here ends at %d, but one was said to end at %d", r.End(), limit)
		}
		if reason == "" {
			last, pos = r.Epoch, r.End()
			continue
		}
		tail, err := s.after(seg, pos, limit, last, limit)
		if err != nil {
			return last, err
		}
		h, known := s.hole(pos, limit, &tail)
		if h.From == h.To { // it can be read after all
			s.window.drop()
			continue
		}
		if limit == s.start && s.at+1 == len(s.list) && !known && tail.leftover == pos && tail.unreadable == 0 {
			return last, s.corrupt(seg, pos, "the journal ends here, but everything below %d was synced", s.start)
		}
		if pos, err = s.damaged(seg, h, known, last, &tail, reason+fmt.Sprintf(", but everything below %d was on disk", limit)); err != nil {
			return last, err
		}
	}
	return last, nil
}

// records reads from start up to the journal's end.
func (s *scanner) records() error {
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
			return err
		}
		s.window.file = f
		s.window.drop()
		var reason string
		for {
			r, why, err := s.window.record(seg, s.end, limit)
			if err != nil {
				return err
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
					return err
				}
			}
			s.last = r.Epoch
			s.proven = max(s.proven, r.Durable)
			s.end = r.End()
			s.advance(int64(s.end - r.Position))
		}
		if s.end == seg.limit() && s.end < next { // only who changes nothing goes on behind a segment that is missing
			what := s.corrupt(seg, s.end, "a segment is missing before %d", next)
			if s.heal != nil {
				return what
			}
			if s.damage != nil {
				s.damage(what, Hole{s.end, next})
			}
			s.end = next
		}
		if next == 0 || s.end != next {
			done, err := s.judge(seg, limit, reason)
			if done || err != nil {
				return err
			}
			if s.end != next || next == 0 {
				continue
			}
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

// judge tells damage from a torn tail, at which the journal ends: then it is done. It reads everything after the end, which is one
// segment as a rule, unless it comes to proof.
func (s *scanner) judge(seg *segment, limit Position, reason string) (done bool, err error) {
	tail, err := s.after(seg, s.end, limit, s.last, s.end)
	if err != nil {
		return false, err
	}
	h, known := s.hole(s.end, limit, &tail)
	if tail.found && h.From == h.To { // it can be read after all
		s.window.drop()
		return false, nil
	}
	proof := ""
	switch {
	case s.cut != nil && s.end < *s.cut:
		proof = fmt.Sprintf("a cut proves that everything below %d was synced", *s.cut)
	case s.cut != nil:
		s.proven = s.end
	case tail.proof.Durable > s.end:
		proof = fmt.Sprintf("the record at %d proves that everything below %d was synced", tail.proof.Position, tail.proof.Durable)
	case known:
		proof = fmt.Sprintf("everything below %d was set aside before", h.To)
	case s.synced > s.end:
		proof = fmt.Sprintf("the ends file proves that everything below %d was synced", s.synced)
		h.To = min(h.To, s.synced) // what lies between that and the next record is a torn tail
	case strings.HasPrefix(reason, reasonUnreadable):
		proof = "a torn tail can be read"
	default:
		for i, later := range s.list[s.at+1:] {
			if later.durable > s.end {
				proof = fmt.Sprintf("the header of %s proves that everything below %d was synced", later.path, later.durable)
				break
			}
			more, err := s.after(later, later.base, s.list.end(s.at+1+i, later.limit()), s.last, s.end)
			if err != nil {
				return false, err
			}
			if more.proof.Durable > s.end {
				proof = fmt.Sprintf("the record at %d proves that everything below %d was synced", more.proof.Position, more.proof.Durable)
				break
			}
		}
	}
	if proof != "" && !planted.Bug("journal: cut at damage in the middle") {
		s.end, err = s.damaged(seg, h, known, s.last, &tail, reason+", but "+proof)
		return false, err
	}
	s.leftover = tail.leftover
	f, err := s.file(seg)
	if err != nil {
		return false, err
	}
	info, err := f.Stat()
	if err != nil {
		return false, fmt.Errorf("stat %s: %w", seg.path, err)
	}
	s.short = info.Size() < seg.offset(seg.limit())
	if s.progress != nil {
		s.progress(s.total, s.total)
	}
	return true, nil
}

// hole is the range of damage at pos: up to the first valid record, or as far as it was set aside before. Where nothing is
// behind it that can be read, damage that is only unreadable goes up to the end of the record that cannot be read.
func (s *scanner) hole(pos, limit Position, tail *tail) (h Hole, known bool) {
	if h, ok := findHole(s.holes, pos); ok && h.To <= limit {
		return Hole{pos, h.To}, true
	}
	h = Hole{pos, limit}
	if tail.found {
		h.To = tail.first.Position
	} else if tail.unreadable > pos && s.at+1 == len(s.list) {
		h.To = min(limit, max(tail.unreadable, pos+recordHeaderBytes))
	}
	return h, false
}

// damaged heals h, or tells of it, and returns where to read on.
func (s *scanner) damaged(seg *segment, h Hole, known bool, last Epoch, tail *tail, reason string) (Position, error) {
	what := s.corrupt(seg, h.From, "%s", reason)
	if s.heal == nil {
		if s.damage != nil {
			s.damage(what, h)
		}
		return h.To, nil
	}
	if s.healedSome && s.healed == h.From || h.To-h.From < recordHeaderBytes {
		return h.From, what // it was healed, and cannot be read still; or it has no room for a record, so no record began here
	}
	s.healed, s.healedSome = h.From, true
	epoch := last
	if epoch == 0 && tail.found {
		epoch = tail.first.Epoch
	}
	if epoch == 0 {
		limit := s.list.end(s.at, seg.limit())
		next, err := s.after(seg, h.To, limit, 0, limit)
		if err != nil {
			return h.From, err
		}
		epoch = next.first.Epoch
	}
	for i := s.at + 1; epoch == 0 && i < len(s.list); i++ {
		r, ok, err := firstRecord(s.fs, s.list[i])
		if err != nil {
			return h.From, err
		}
		if ok {
			epoch = r.Epoch
		}
	}
	if epoch == 0 {
		epoch = s.unknown
	}
	if err := s.heal(seg, h, known, epoch, reason); err != nil {
		return h.From, err
	}
	s.window.drop()
	return h.From, nil
}

// tail is what lies after a place without a record.
type tail struct {
	first      Record // the first valid one; payloads are not kept
	found      bool
	proof      Record   // the first valid one that proves more than was asked; its Durable is 0 if there is none
	leftover   Position // end of what a record was, or may have been: of bytes that are not zero, if the file had no life before
	unreadable Position // end of the first range that the disk cannot read; 0 if there is none
}

// after looks at [from, limit) of seg for valid records whose epoch is at least least, up to one that proves something beyond
// durable; without one it reads all. A record can begin at any multiple of 8, because the length of the one before it may be
// what is damaged. Whatever the bytes are, only those are decoded that hold their own position: a recycled segment is full
// of records of its former life.
func (s *scanner) after(seg *segment, from, limit Position, least Epoch, durable Position) (t tail, err error) {
	f, err := s.file(seg)
	if err != nil {
		return t, err
	}
	t.leftover = from
	w := window{file: f, size: scanBytes}
	candidates := window{file: f}
	if end, ok, err := misplaced(&candidates, seg, from, limit); err != nil {
		return t, err
	} else if ok {
		t.leftover = end
	}
	begin, end := seg.offset(from), seg.offset(limit)
	for off := begin; off < end; {
		n := int(min(zeroCompareBytes-off%zeroCompareBytes, end-off))
		block, err := w.bytes(off, int(min(int64(n+recordHeaderBytes), end-off)), end) // a header may go beyond the block
		if isUnreadable(err) && n > sectorBytes-int(off%sectorBytes) {                 // how much of it cannot be read
			n = sectorBytes - int(off%sectorBytes)
			block, err = w.bytes(off, n, end)
		}
		if isUnreadable(err) {
			to := seg.base + Position(off-headerBlockBytes) + Position(n)
			if t.unreadable == 0 || t.unreadable == to-Position(n) {
				t.unreadable = to
			}
			block, err = zeroes[:n], nil
		}
		if err != nil {
			return t, fmt.Errorf("read %s at %d: %w", seg.path, off, err)
		}
		s.advance(int64(n))
		if allZero(block) {
			off += int64(n)
			continue
		}
		pos := seg.base + Position(off-headerBlockBytes)
		for i := 0; i < n; i, pos = i+8, pos+8 {
			if seg.flags&flagRecycled == 0 && binary.LittleEndian.Uint64(block[i:]) != 0 {
				t.leftover = max(t.leftover, pos+8)
			}
			if i+recordHeaderBytes > len(block) || Position(binary.LittleEndian.Uint64(block[i+atPosition:])) != pos {
				continue
			}
			t.leftover = max(t.leftover, pos+recordHeaderBytes)
			length, reason := recordLength(block[i:], pos, int64(limit-pos))
			if reason != "" {
				continue
			}
			t.leftover = max(t.leftover, pos+Position(align8(length)))
			r, reason, err := candidates.record(seg, pos, limit)
			if err != nil {
				return t, err
			}
			if reason != "" || r.Epoch < least {
				continue
			}
			r.Payload = nil
			if !t.found {
				t.first, t.found = r, true
			}
			if s.cut == nil && r.Durable > durable {
				t.proof = r
				return t, nil
			}
			if durable >= limit { // who asks needs no proof
				return t, nil
			}
		}
		off += int64(n)
	}
	return t, nil
}

// misplaced reports whether a record lies at pos of which only the position is wrong, and where it ends. In a recycled segment a record
// with another position belongs to its former life, so the checksum has to tell.
func misplaced(w *window, seg *segment, pos, limit Position) (end Position, ok bool, err error) {
	room := int64(limit - pos)
	if room < recordHeaderBytes {
		return 0, false, nil
	}
	var h [recordHeaderBytes]byte
	b, err := w.bytes(seg.offset(pos), len(h), seg.offset(limit))
	if err == nil {
		copy(h[:], b)
		binary.LittleEndian.PutUint64(h[atPosition:], uint64(pos))
		length, reason := recordLength(h[:], pos, room)
		if reason != "" {
			return 0, false, nil
		}
		if b, err = w.bytes(seg.offset(pos), length, seg.offset(limit)); err == nil {
			copy(b, h[:])
			_, reason = decodeRecord(b[:length], seg.seed)
			w.drop() // it was changed
			return pos + Position(align8(length)), reason == "", nil
		}
	}
	if isUnreadable(err) {
		err = nil
	}
	return 0, false, err
}

// firstRecord finds the first valid record in seg.
func firstRecord(fsys vfs.FS, seg *segment) (r Record, ok bool, err error) {
	f, err := fsys.Open(seg.path)
	if err != nil {
		return r, false, fmt.Errorf("open segment %s: %w", seg.path, err)
	}
	defer f.Close()
	w := window{file: f}
	if r, reason, err := w.record(seg, seg.base, seg.limit()); err != nil || reason == "" {
		r.Payload = nil
		return r, err == nil, err
	}
	own := newSegment(seg.header, seg.path, f)
	s := scanner{fs: fsys}
	t, err := s.after(own, seg.base, seg.limit(), 0, seg.limit())
	return t.first, t.found, err
}

// recover reads the folder and brings it into the state from which the journal goes on. It returns the last record's epoch.
//
// What is kept but not proven is written again and synced: a process before this one may have had a failed sync after
// which the pages look clean. What is cut is zeroed, last segments first. Damage is set aside before it is overwritten. A crash
// at any moment of it leaves the same records before the end, the same ones rewritten, and less behind it: recovery has
// the same result again.
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
	j.asides.Store(&found.asides)
	l := found.segments
	var end Position
	if len(l) == 0 {
		if o.Start > o.Begin || found.endsKnown && found.ends.Synced > o.Begin {
			return 0, &CorruptError{File: j.fs.PathJoin(o.Dir, segmentName(o.Start)), Position: o.Start,
				Reason: fmt.Sprintf("no segment is there, but everything below %d was synced", max(o.Start, found.ends.Synced))}
		}
		end = o.Begin
		j.mu.limit, j.mu.mark = end, end
		j.committed.Store(uint64(end))
	} else {
		j.list.Store(&l)
		if found.cut != nil { // the holes that it cuts are none of what is written there next
			if found.holes, err = removeHoles(j.fs, o.Dir, found.holes, *found.cut, noPrevious); err != nil {
				return 0, err
			}
		}
		if found.holes, err = removeHoles(j.fs, o.Dir, found.holes, 0, l[0].base); err != nil {
			return 0, err
		}
		j.holes.Store(&found.holes)
		if err := removeMended(j.fs, o.Dir, l[0].base); err != nil {
			return 0, err
		}
		if err := j.repairHeaders(found.damaged); err != nil {
			return 0, err
		}
		s := scanner{fs: j.fs, list: l, holes: found.holes, start: o.Start, cut: found.cut, synced: found.ends.Synced, epoch: o.StartEpoch, unknown: o.StartEpoch,
			progress: o.Progress}
		committed, known := max(o.Start, l[0].base), max(o.Start, found.ends.Committed)
		if found.cut != nil {
			known = min(known, *found.cut)
		}
		var started epochs
		s.record = func(r Record) error {
			started.add(r)
			if o.Follow && r.End() > known {
				j.addBoundLocked(r.End()) // nobody else has the journal yet
				return nil
			}
			committed = r.End()
			if o.Recovered == nil {
				return nil
			}
			return o.Recovered(r)
		}
		s.heal = func(seg *segment, h Hole, known bool, epoch Epoch, reason string) error {
			if err := seg.openForWriting(j.fs); err != nil {
				return err
			}
			if err := j.heal(seg.mu.file, seg, h, known, epoch, reason); err != nil {
				return err
			}
			s.window.file = seg.mu.file
			s.holes = j.holeList()
			return nil
		}
		if err := s.run(); err != nil {
			return 0, err
		}
		if s.last.Term() > o.Term && !o.Follow {
			return 0, fmt.Errorf("%w: %d, opened with term %d", ErrTerm, s.last.Term(), o.Term)
		}
		if l, err = j.repair(&s); err != nil {
			return 0, err
		}
		j.list.Store(&l)
		j.current = l[len(l)-1]
		last, end = s.last, s.end
		j.committed.Store(uint64(committed))
		if err := j.recoverHistory(l, s.start, s.epoch, started); err != nil {
			return 0, err
		}
		if n := len(j.mu.history); last == 0 && n > 0 { // all that is left has no record: one that follows was trimmed, and lost what was not synced
			last = j.mu.history[n-1].Epoch
		}
		j.setLimitLocked(j.current)
		if j.current.flags&flagReserve != 0 && found.reserve == nil && o.ReserveBytes > 0 {
			j.mu.reserved, j.mu.reservedFrom = true, j.current.base
		}
	}
	j.mu.next = end
	j.synced.Store(uint64(end))
	j.written.Store(uint64(end))
	j.epoch.Store(uint64(last))
	if !o.Follow {
		j.committed.Store(uint64(end))
	}
	if o.Follow || found.endsKnown {
		if j.ends, err = openEnds(j.fs, o.Dir, o.StoreID, found.ends, found.endsNumber, found.endsKnown); err != nil {
			return 0, err
		}
		if o.Follow || found.mark {
			if err := j.writeEnds(); err != nil {
				return 0, err
			}
		}
	}
	if found.mark {
		if err := j.removeCutMark(); err != nil {
			return 0, err
		}
	}
	if err := j.adopt(found); err != nil {
		return 0, err
	}
	// Names that the process before this one gave may not be on disk yet, and what is appended now must not get lost with them.
	if err := syncDir(j.dir); err != nil {
		return 0, err
	}
	return last, nil
}

// repairHeaders writes headers again that are damaged.
func (j *Journal) repairHeaders(damaged []headerDamage) error {
	for _, d := range damaged {
		if err := d.segment.openForWriting(j.fs); err != nil {
			return err
		}
		if err := writeHeader(d.segment.mu.file, &d.segment.header); err != nil {
			return fmt.Errorf("repair header of %s: %w", d.segment.path, err)
		}
		j.mu.metrics.HeadersRepaired++
		j.opts.Logger.Error("journal segment's header is repaired", "file", d.segment.path, "position", uint64(d.segment.base), "reason", d.reason)
	}
	return nil
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
		j.mu.metrics.TornBytes += int64(s.leftover - s.end)
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
		if i == s.at && s.cut != nil {
			if err := seg.dropFooter(); err != nil {
				return nil, err
			}
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

// adopt takes over the reserve and the spares that are there, full ones and one smaller, and removes the other files.
func (j *Journal) adopt(found folder) error {
	remove := found.filling
	full, small := max(1, j.opts.RecycleMax), 1
	for _, s := range found.spares {
		var n int
		if _, err := fmt.Sscanf(j.fs.PathBase(s.path), spareNameFormat, &n); err == nil {
			j.mu.spareCount = max(j.mu.spareCount, n)
		}
		left := &small
		if s.capacity+headerBlockBytes == j.opts.SegmentBytesMax {
			left = &full
		}
		fits := s.capacity >= segmentBytesFloor-headerBlockBytes && s.capacity%8 == 0 && s.capacity+headerBlockBytes <= j.opts.SegmentBytesMax
		if *left <= 0 || !fits {
			remove = append(remove, s.path)
			continue
		}
		f, err := j.fs.OpenReadWrite(s.path, vfs.WriteCategoryUnspecified)
		if err != nil {
			return fmt.Errorf("open spare %s: %w", s.path, err)
		}
		*left--
		s.file = f
		j.mu.spares = append(j.mu.spares, s)
	}
	if r := found.reserve; r != nil {
		if r.size == j.opts.ReserveBytes {
			f, err := j.fs.OpenReadWrite(r.path, vfs.WriteCategoryUnspecified)
			if err != nil {
				return fmt.Errorf("open reserve %s: %w", r.path, err)
			}
			r.file = f
			j.mu.reserve = *r
		} else {
			remove = append(remove, r.path)
		}
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
	if err := fsys.MkdirAll(dir, 0o700); err != nil {
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
