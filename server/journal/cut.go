package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Truncate cuts everything from to on, durably, and starts a new epoch there, whose record is on disk when it returns:
// what an old epoch left beyond a cut can then never be taken for a record again. to must be where a record begins, or the
// end. Queued appends are committed before; Append says ErrBusy meanwhile. Readers at or below to go on, others get ErrBeyond.
//
// Errors: ErrTrimmed, ErrBeyond, *CorruptError if to is not the begin of a record (nothing was changed), ErrClosed, ErrFollows; any other
// has stopped the journal. It is for a journal alone: what a slave may hold cannot be cut (ErrFollows too).
func (j *Journal) Truncate(to Position) error {
	j.trimMu.Lock()
	defer j.trimMu.Unlock()
	j.mu.Lock()
	if j.mu.following || j.replica.Load() != nil {
		j.mu.Unlock()
		return ErrFollows
	}
	if err := j.ownLocked(); err != nil {
		j.mu.Unlock()
		return err
	}
	j.mu.cutting = true
	j.mu.Unlock()
	j.commit(commitQuiet) // nothing more can be queued
	err := j.truncate(to)
	j.mu.Lock()
	j.mu.cutting = false
	j.roomLocked()
	j.mu.Unlock()
	j.disown()
	return err
}

func (j *Journal) truncate(to Position) error {
	if err := j.Err(); err != nil && !errors.Is(err, ErrClosed) {
		return err
	}
	if err := j.checkBoundary(to); err != nil {
		return err
	}
	if err := j.cutEnd(to); err != nil {
		return err
	}
	e := j.Epoch()
	if err := j.startEpoch(MakeEpoch(e.Term(), e.Start()+1), 0); err != nil {
		return j.fail(err)
	}
	return nil
}

// cutEnd cuts everything from to on, durably; a record begins there, or the journal ends, and everything below is synced. The caller
// has the right to commit. Any error has stopped the journal.
func (j *Journal) cutEnd(to Position) error {
	// Readers first: what is cut must not be seen any more.
	end := j.Written()
	j.mu.Lock()
	l := *j.list.Load()
	at := l.find(to)
	kept := l[: at+1 : at+1]
	j.committed.Store(min(j.committed.Load(), uint64(to)))
	j.synced.Store(uint64(to))
	j.written.Store(uint64(to))
	j.list.Store(&kept)
	j.cut.Store(&cut{to: to, before: j.cut.Load()})
	j.current = l[at]
	j.mu.next = to
	j.setLimitLocked(j.current)
	j.mu.reserved = j.mu.reserved && j.current.base >= j.mu.reservedFrom
	history := below(j.mu.history, to)
	known := len(history) == len(j.mu.history)
	j.mu.Unlock()

	if err := j.writeCutMark(to); err != nil {
		return j.fail(err)
	}
	holes, err := removeHoles(j.fs, j.opts.Dir, j.holeList(), to, noPrevious)
	if err != nil {
		return j.fail(err)
	}
	j.holes.Store(&holes)
	if err := j.current.openForWriting(j.fs); err != nil {
		return j.fail(err)
	}
	cutEnd := l.end(at, end)
	if _, err := j.dropAfter(l, at); err != nil {
		return j.fail(err)
	}
	if err := zero(j.current, to, cutEnd); err != nil {
		return j.fail(err)
	}
	if err := j.current.dropFooter(); err != nil {
		return j.fail(err)
	}
	if err := j.current.mu.file.SyncData(); err != nil {
		return j.fail(fmt.Errorf("sync segment %s: %w", j.current.path, err))
	}
	if !known {
		j.setHistory(history)
	}
	if err := j.writeEnds(); err != nil {
		return j.fail(err)
	}
	if err := j.removeCutMark(); err != nil {
		return j.fail(err)
	}
	return nil
}

// The cut mark is a file that says, from before the first byte is cut until all of it is gone for good, where the cut is.
// Without it a crash could leave a cut record before one that is still whole, which proves that the other was on disk:
// that looks like damage. With it recovery goes on with the cut.
//
//	 0  magic     "JMQJCUT\x00"
//	 8  version   u32   1
//	12  reserved  u32   0
//	16  store     [16]  store id
//	32  position  u64
//	40  crc32c    u32   over [0, 40)
const (
	cutName      = "cut.mark"
	cutMagic     = "JMQJCUT\x00"
	cutVersion   = 1
	cutMarkBytes = 44
	cutAtCRC     = 40
)

func (j *Journal) writeCutMark(to Position) error {
	var b [cutMarkBytes]byte
	copy(b[:], cutMagic)
	le := binary.LittleEndian
	le.PutUint32(b[8:], cutVersion)
	copy(b[16:], j.opts.StoreID[:])
	le.PutUint64(b[32:], uint64(to))
	le.PutUint32(b[cutAtCRC:], crc32.Checksum(b[:cutAtCRC], crcTable))
	path := j.fs.PathJoin(j.opts.Dir, cutName)
	f, err := j.fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return fmt.Errorf("mark cut: %w", err)
	}
	err = writeAt(f, b[:], 0)
	if err == nil {
		err = f.Sync()
	}
	_ = f.Close()
	if err == nil {
		err = syncDir(j.dir)
	}
	if err != nil {
		return fmt.Errorf("mark cut: %w", err)
	}
	return nil
}

// removeCutMark removes the mark for good: before anything is appended, for a mark that came back would cut that.
func (j *Journal) removeCutMark() error {
	if err := j.fs.Remove(j.fs.PathJoin(j.opts.Dir, cutName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove mark of a cut: %w", err)
	}
	return syncDir(j.dir)
}

// readCutMark returns where the cut is; nil if the mark is not whole, which means that nothing was cut yet.
func readCutMark(fsys vfs.FS, path string, store *[storeIDBytes]byte) (*Position, error) {
	f, err := fsys.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	defer f.Close()
	var b [cutMarkBytes]byte
	if err := readFull(f, b[:], 0); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	le := binary.LittleEndian
	if string(b[:8]) != cutMagic {
		return nil, nil
	}
	if v := le.Uint32(b[8:]); v > cutVersion {
		return nil, &VersionError{File: path, Found: v, Supported: cutVersion}
	}
	if le.Uint32(b[cutAtCRC:]) != crc32.Checksum(b[:cutAtCRC], crcTable) {
		return nil, nil
	}
	var found [storeIDBytes]byte
	copy(found[:], b[16:])
	if store != nil && found != *store {
		return nil, &ForeignError{File: path, Found: found, Want: *store}
	}
	pos := Position(le.Uint64(b[32:]))
	return &pos, nil
}

// checkBoundary reads the segment of pos from its begin, to see that a record begins or the journal ends there.
func (j *Journal) checkBoundary(pos Position) error {
	l := *j.list.Load()
	i := l.find(pos)
	if i < 0 {
		return ErrTrimmed
	}
	end := j.Written()
	if pos > end {
		return ErrBeyond
	}
	f, err := l[i].acquire(j.fs)
	if err != nil {
		return err
	}
	defer l[i].release()
	w := window{file: f, size: readAheadBytes}
	at, limit := l[i].base, min(l.end(i, end), l[i].limit())
	for at < pos {
		r, reason, err := w.record(l[i], at, limit)
		if err != nil {
			return err
		}
		if reason != "" {
			return &CorruptError{File: l[i].path, Position: at, Offset: l[i].offset(at), Reason: reason}
		}
		at = r.End()
	}
	if at != pos {
		return &CorruptError{File: l[i].path, Position: pos, Offset: l[i].offset(pos), Reason: "no record begins here"}
	}
	return nil
}

// Trim removes the segments that end at or below before; the current one always stays. Those of full size that no reader holds
// become spares, up to Options.RecycleMax, unless the reserve is missing: then their space is wanted for that. Readers in one
// that is removed read on to its end. An error leaves the journal working; what was not removed is there again at the next
// Open, and is tried again by the next Trim.
func (j *Journal) Trim(before Position) error {
	j.trimMu.Lock()
	defer j.trimMu.Unlock()
	before = min(before, j.Committed())
	for {
		l := *j.list.Load()
		if len(l) < 2 || l[1].base > before {
			break
		}
		if j.Err() != nil {
			return j.Err()
		}
		// First to last, each for good before the next, so that no crash leaves a gap.
		if err := j.trimSegment(l[0]); err != nil {
			return err
		}
	}
	begin := j.Begin()
	if holes := j.holeList(); len(holes) > 0 && holes[0].From < begin {
		rest, err := removeHoles(j.fs, j.opts.Dir, holes, 0, begin)
		if err != nil {
			return err
		}
		j.holes.Store(&rest)
	}
	return nil
}

// GiveRoom removes the segments that are prepared for later, or when there are none the reserve, for the moment when what certainly
// frees the disk needs some of it; they are made again when there is room. False: it has nothing to give, or the next start could not do
// without the reserve.
func (j *Journal) GiveRoom() (bool, error) {
	j.mu.Lock()
	given := j.mu.spares
	j.mu.spares = nil
	// Without the reserve the next start needs what is left of the last segment.
	if len(given) == 0 && j.mu.reserve.file != nil && int64(j.mu.limit-j.mu.next) >= leaveForNoops {
		given = []spare{j.mu.reserve}
		j.mu.reserve = spare{}
	}
	j.mu.Unlock()
	var errs []error
	for _, s := range given {
		_ = s.file.Close() // nothing in it is of use
		if err := j.fs.Remove(s.path); err != nil {
			errs = append(errs, fmt.Errorf("give room: %w", err)) // if it stays, Open takes it
		}
	}
	return len(given) > 0, errors.Join(errs...)
}

// trimSegment takes the first segment away.
func (j *Journal) trimSegment(s *segment) error {
	recycle := j.recycles(s) && s.refs.CompareAndSwap(1, 0) // from here on it cannot be acquired
	path := s.path
	var err error
	if recycle {
		_, path = j.nextSpareNames()
		err = j.fs.Rename(s.path, path)
	} else if err = j.fs.Remove(s.path); errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err == nil {
		err = syncDir(j.dir)
	}
	if err != nil {
		if recycle {
			s.path = path // unless the rename was what failed
			if _, statErr := j.fs.Stat(path); errors.Is(statErr, fs.ErrNotExist) {
				s.path = j.fs.PathJoin(j.opts.Dir, segmentName(s.base))
			}
			s.refs.Store(1)
		}
		return fmt.Errorf("trim segment %s: %w", segmentName(s.base), err)
	}
	j.mu.Lock()
	now := *j.list.Load()
	rest := append(segments{}, now[1:]...)
	j.list.Store(&rest)
	j.mu.Unlock()
	if !recycle {
		s.release()
		return nil
	}
	s.closeFiles()
	f, err := j.fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return fmt.Errorf("open spare %s: %w", path, err) // Open takes it
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.mu.metrics.Recycled++
	j.addSpareLocked(spare{path: path, capacity: s.capacity, size: s.size.Load(), flags: flagRecycled, file: f})
	return nil
}

// recycles reports whether s is to become a spare when it is trimmed.
func (j *Journal) recycles(s *segment) bool {
	if s.capacity+headerBlockBytes != j.opts.SegmentBytesMax || s.size.Load() < j.opts.SegmentBytesMax {
		return false
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.mu.err != nil || j.reserveMissingLocked() {
		return false
	}
	full := 0
	for _, s := range j.mu.spares {
		if s.capacity+headerBlockBytes == j.opts.SegmentBytesMax {
			full++
		}
	}
	return full < j.opts.RecycleMax
}
