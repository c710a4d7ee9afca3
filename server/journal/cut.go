package journal

import (
	"errors"
	"fmt"
	"io/fs"
)

// Truncate cuts everything from to on, durably, and starts a new epoch there, whose record is on disk when it returns:
// what an old epoch left beyond a cut can then never be taken for a record again. to must be where a record begins, or the
// end. Queued appends are committed before; Append says ErrBusy meanwhile. Readers at or below to go on, others get ErrBeyond.
//
// Errors: ErrTrimmed, ErrBeyond, *CorruptError if to is not the begin of a record (nothing was changed), ErrClosed; any other
// has stopped the journal.
func (j *Journal) Truncate(to Position) error {
	j.trimMu.Lock()
	defer j.trimMu.Unlock()
	j.mu.Lock()
	for j.mu.committing {
		j.mu.quiet.Wait()
	}
	if j.mu.closing || j.mu.err != nil {
		err := j.mu.err
		j.mu.Unlock()
		if err == nil {
			err = ErrClosed
		}
		return err
	}
	j.mu.committing = true
	j.mu.cutting = true
	j.mu.Unlock()
	for j.commit(true) {
	}
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
	// Readers first: what is cut must not be seen any more.
	number := int64(1)
	if c := j.cut.Load(); c != nil {
		number = c.number + 1
	}
	end := j.Synced()
	j.mu.Lock()
	l := *j.list.Load()
	at := l.find(to)
	kept := l[: at+1 : at+1]
	j.synced.Store(uint64(to))
	j.list.Store(&kept)
	j.cut.Store(&cut{number: number, to: to})
	j.current = l[at]
	j.mu.next = to
	j.mu.limit = j.current.limit()
	j.mu.mark = j.current.base + Position(j.current.capacity/2)
	j.mu.marked = false
	j.mu.Unlock()

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
	if err := j.current.mu.file.SyncData(); err != nil {
		return j.fail(fmt.Errorf("sync segment %s: %w", j.current.path, err))
	}
	e := j.Epoch()
	if err := j.startEpoch(MakeEpoch(e.Term(), e.Start()+1)); err != nil {
		return j.fail(err)
	}
	return nil
}

// checkBoundary reads the segment of pos from its begin, to see that a record begins or the journal ends there.
func (j *Journal) checkBoundary(pos Position) error {
	l := *j.list.Load()
	i := l.find(pos)
	if i < 0 {
		return ErrTrimmed
	}
	if pos > j.Synced() {
		return ErrBeyond
	}
	r := j.NewReader(l[i].base)
	defer r.Close()
	for r.Position() < pos {
		if _, err := r.Next(); err != nil {
			return err
		}
	}
	if r.Position() != pos {
		return &CorruptError{File: l[i].path, Position: pos, Offset: l[i].offset(pos), Reason: "no record begins here"}
	}
	return nil
}

// Trim removes the segments that end at or below before; the current one always stays. Readers in one read on to its
// end. An error leaves the journal working; what was not removed is there again at the next Open, and is tried again by the
// next Trim.
func (j *Journal) Trim(before Position) error {
	j.trimMu.Lock()
	defer j.trimMu.Unlock()
	for {
		l := *j.list.Load()
		if len(l) < 2 || l[1].base > before {
			return nil
		}
		if j.Err() != nil {
			return j.Err()
		}
		// First to last, each for good before the next, so that no crash leaves a gap.
		if err := j.fs.Remove(l[0].path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("trim segment: %w", err)
		}
		if err := syncDir(j.dir); err != nil {
			return fmt.Errorf("trim segment %s: %w", l[0].path, err)
		}
		j.mu.Lock()
		now := *j.list.Load()
		rest := append(segments{}, now[1:]...)
		j.list.Store(&rest)
		j.mu.Unlock()
		l[0].release()
	}
}
