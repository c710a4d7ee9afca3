package journal

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
)

const (
	// unsyncedBytesMax is how much of what was copied may be not synced yet; then CopyRecords syncs. A record's distance to the synced end
	// has 32 bits.
	unsyncedBytesMax = 512 << 20
)

var boundsMax = 1 << 20 // an even number; then every other one is forgotten. Lower in a test

// copying is what CopyRecords needs while it runs, kept for the next one.
type copying struct {
	ends   []Position // of the records
	rolls  []roll
	epochs []EpochStart
	begun  Position // where a call began that has copied only up to Written, for lack of a segment; noPrevious if none has
}

// CopyRecords writes b, whole records of another journal of this broker group from position from on, which must be the end of this
// one: they are read by ReadRaw at once, by readers when they are committed, and are on disk after the next Sync. store is the id that their
// checksums begin with. b is changed: it gets the checksums of this store.
//
// Errors: ErrNotCopied (nothing was written, b is as it was); ErrBusy or ErrNoSpace if a segment is missing: WaitRoom, then call it again with
// the same, of which the begin may be copied already; ErrLeads, ErrClosed, ErrFailed; any other has stopped the journal.
func (j *Journal) CopyRecords(from Position, b []byte, store [16]byte) error {
	if len(b) == 0 {
		return nil
	}
	if int64(j.Written()-j.Synced())+int64(len(b)) > unsyncedBytesMax {
		if err := j.Sync(); err != nil {
			return err
		}
	}
	if err := j.ownFollowing(); err != nil {
		return err
	}
	defer j.disown()
	c := &j.copied
	begun := from
	if done := j.Written() - from; from < j.Written() && from == c.begun && done < Position(len(b)) {
		from, b = from+done, b[done:]
	}
	c.begun = noPrevious
	if err := j.checkCopy(from, b, crcSeed(store)); err != nil {
		return err
	}
	missing := j.placeCopy(from)
	if len(c.ends) == 0 {
		c.begun = begun
		return missing
	}
	b = b[:c.ends[len(c.ends)-1]-from]
	for _, s := range c.epochs {
		j.noteEpoch(s)
	}
	for begin := 0; begin < len(b); {
		if len(c.rolls) > 0 && c.rolls[0].at == begin {
			s := c.rolls[0].spare
			c.rolls = c.rolls[:copy(c.rolls, c.rolls[1:])]
			if err := j.roll(s, from+Position(begin)); err != nil {
				for _, r := range c.rolls {
					_ = r.spare.file.Close()
				}
				return j.fail(err)
			}
		}
		end := len(b)
		if len(c.rolls) > 0 {
			end = c.rolls[0].at
		}
		pos := from + Position(begin)
		seal(b[begin:end], pos, min(j.Synced(), pos), j.seed)
		if err := writeAt(j.current.mu.file, b[begin:end], j.current.offset(pos)); err != nil {
			return j.fail(fmt.Errorf("copy [%d, %d) to %s: %w", pos, from+Position(end), j.current.path, err))
		}
		begin = end
	}
	end := from + Position(len(b))
	j.mu.Lock()
	m := &j.mu
	m.next = end
	if m.limit != j.current.limit() {
		j.setLimitLocked(j.current)
		j.wakePreparer()
	}
	if m.next >= m.mark && !m.marked {
		m.marked = true
		j.wakePreparer()
	}
	for _, e := range c.ends {
		j.addBoundLocked(e)
	}
	m.metrics.Records += int64(len(c.ends))
	m.metrics.Bytes += int64(len(b))
	m.metrics.CopiedBytes += int64(len(b))
	j.mu.Unlock()
	if n := len(c.epochs); n > 0 {
		j.epoch.Store(uint64(c.epochs[n-1].Epoch))
	}
	j.written.Store(uint64(end))
	if missing != nil {
		c.begun = begun
	}
	return missing
}

// checkCopy looks at what is to be copied, and leaves in j.copied where records end and epochs begin.
func (j *Journal) checkCopy(from Position, b []byte, seed uint32) error {
	c := &j.copied
	c.ends, c.rolls, c.epochs = c.ends[:0], c.rolls[:0], c.epochs[:0]
	refuse := func(pos Position, format string, args ...any) error {
		return fmt.Errorf("%w: at position %d: %s", ErrNotCopied, pos, fmt.Sprintf(format, args...))
	}
	if next := j.Written(); from != next {
		return refuse(from, "the journal ends at %d", next)
	}
	if from+Position(len(b)) < from || from+Position(len(b)) > 1<<63-1 {
		return refuse(from, "no position can be so high")
	}
	last := j.Epoch()
	for off := 0; off < len(b); {
		pos := from + Position(off)
		if len(b)-off < recordHeaderBytes {
			return refuse(pos, "%d bytes are no record", len(b)-off)
		}
		length, reason := recordLength(b[off:], pos, int64(len(b)-off))
		if reason != "" {
			return refuse(pos, "%s", reason)
		}
		r, reason := decodeRecord(b[off:off+length], seed)
		switch {
		case reason != "":
			return refuse(pos, "%s", reason)
		case r.Epoch < last:
			return refuse(pos, "epoch %v after %v", r.Epoch, last)
		case r.Epoch == 0:
			return refuse(pos, "no epoch")
		case r.Epoch > last:
			c.epochs = append(c.epochs, EpochStart{r.Epoch, pos, r.Kind == KindEpoch && r.Flags&epochForced != 0})
		}
		last = r.Epoch
		clear(b[off+length : off+align8(length)])
		off += align8(length)
		c.ends = append(c.ends, from+Position(off))
	}
	return nil
}

// placeCopy finds the segments for what checkCopy has found. Without one it leaves in j.copied what can be copied before, and says why.
func (j *Journal) placeCopy(from Position) error {
	c := &j.copied
	j.mu.Lock()
	defer j.mu.Unlock()
	m := &j.mu
	limit, pos := m.limit, from
	for i, end := range c.ends {
		if size := int64(end - pos); end+Position(j.leaveLocked(KindMessages)) > limit {
			s, ok := j.takeSpareLocked(size)
			if !ok {
				c.ends = c.ends[:i]
				c.epochs = below(c.epochs, pos)
				m.need = max(m.need, size)
				j.wakePreparer()
				if m.prepareErr != nil {
					return m.prepareErr
				}
				m.metrics.Busy++
				return ErrBusy
			}
			c.rolls = append(c.rolls, roll{at: int(pos - from), spare: s})
			limit = pos + Position(s.capacity)
		}
		pos = end
	}
	m.need = 0
	return nil
}

// ownFollowing takes the right to commit of a journal that follows.
func (j *Journal) ownFollowing() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.ownLocked(); err != nil {
		return err
	}
	if !j.mu.following {
		j.mu.committing = false
		j.mu.quiet.Broadcast()
		return ErrLeads
	}
	return nil
}

// Sync makes durable what was copied before it was called. Copying goes on meanwhile. A journal that leads does that with each
// commit: then Sync does nothing. Any error has stopped the journal.
func (j *Journal) Sync() error {
	j.syncMu.Lock()
	defer j.syncMu.Unlock()
	j.mu.Lock()
	err, following, closing := j.mu.err, j.mu.following, j.mu.closing
	j.mu.Unlock()
	switch {
	case err != nil:
		return err
	case closing:
		return ErrClosed
	case !following:
		return nil
	}
	return j.syncCopied()
}

// syncCopied is Sync, under syncMu: nothing is cut meanwhile.
func (j *Journal) syncCopied() error {
	if err := j.stopped(); err != nil {
		return err
	}
	from, to := j.Synced(), j.Written()
	if from < to {
		l := *j.list.Load()
		for i := max(l.find(from), 0); i < len(l) && l[i].base < to; i++ {
			if err := j.syncSegment(l[i], max(from, l[i].base), min(to, l.end(i, to))); err != nil {
				return j.fail(err)
			}
		}
		j.synced.Store(uint64(to))
	}
	if err := j.writeEnds(); err != nil {
		return j.fail(err)
	}
	return nil
}

// stopped is why the journal has stopped.
func (j *Journal) stopped() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.mu.err
}

// syncSegment syncs [from, to) of seg. An interrupted sync is repeated with its writes, as in syncWritten.
func (j *Journal) syncSegment(seg *segment, from, to Position) error {
	f, err := seg.acquire(j.fs)
	if errors.Is(err, ErrTrimmed) {
		return nil
	}
	if err != nil {
		return err
	}
	defer seg.release()
	const tries = 10
	for try := 1; from < to; try++ {
		err := f.SyncData()
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EINTR) || try == tries {
			return fmt.Errorf("sync segment %s: %w", seg.path, err)
		}
		if err := rewrite(seg, from, to); err != nil {
			return err
		}
	}
	return nil
}

// SetCommitted says up to where what is here is known to be committed: readers see it then, and OnCommitted is told. More than is here
// counts as all that is; in the middle of a record, as its begin. It never takes back. One at a time.
func (j *Journal) SetCommitted(p Position) {
	j.mu.Lock()
	m := &j.mu
	if !m.following {
		p = min(p, j.Synced())
	}
	n, _ := slices.BinarySearch(m.bounds, p+1)
	if n == 0 {
		j.mu.Unlock()
		return
	}
	to := m.bounds[n-1]
	m.bounds = slices.Delete(m.bounds, 0, n)
	more := to > j.Committed()
	if more {
		j.committed.Store(uint64(to))
	}
	j.mu.Unlock()
	if more && j.opts.OnCommitted != nil {
		j.opts.OnCommitted(to)
	}
}

// addBoundLocked notes where a record ends that is not committed yet.
func (j *Journal) addBoundLocked(p Position) {
	m := &j.mu
	if len(m.bounds) >= boundsMax {
		for i := 1; i < len(m.bounds); i += 2 {
			m.bounds[i/2] = m.bounds[i]
		}
		m.bounds = m.bounds[:len(m.bounds)/2]
	}
	m.bounds = append(m.bounds, p)
}

// boundLocked notes that a commit of a leading journal ends at p, and whether it is committed with all before.
func (j *Journal) boundLocked(p Position, committed bool) {
	if committed {
		j.mu.bounds = j.mu.bounds[:0]
		return
	}
	j.addBoundLocked(p)
}

// ReadRaw reads whole records from position from on into buf, as they are written, also those that are not committed, and returns how many
// bytes they have: 0 at the end. Their checksums are right. It may read fewer than there are. Errors: ErrTooLarge if the first record is larger than
// buf, ErrTrimmed, ErrBeyond, ErrClosed, *CorruptError, the file system's.
func (j *Journal) ReadRaw(from Position, buf []byte) (n int, err error) {
	end := j.Written()
	if from == end {
		return 0, nil
	}
	seg, limit, err := j.locateBelow(from, end)
	if err != nil {
		return 0, err
	}
	f, err := seg.acquire(j.fs)
	if err != nil {
		return 0, err
	}
	defer seg.release()
	corrupt := func(pos Position, reason string) error {
		if pos >= j.Written() {
			return ErrBeyond // it was cut meanwhile
		}
		return &CorruptError{File: seg.path, Position: pos, Offset: seg.offset(pos), Reason: reason}
	}
	buf = buf[:min(int64(len(buf)), int64(limit-from))]
	if err := readFull(f, buf, seg.offset(from)); isUnreadable(err) {
		return 0, corrupt(from, reasonUnreadable+": "+err.Error())
	} else if err != nil {
		return 0, fmt.Errorf("read %s: %w", seg.path, err)
	}
	for n < len(buf) {
		pos := from + Position(n)
		if len(buf)-n < recordHeaderBytes {
			break
		}
		length, reason := recordLength(buf[n:], pos, int64(limit-pos))
		if reason == "" && n+align8(length) > len(buf) {
			break
		}
		if reason == "" {
			_, reason = decodeRecord(buf[n:n+length], seg.seed)
		}
		if reason != "" {
			if n > 0 {
				break // the next call says it
			}
			return 0, corrupt(pos, reason)
		}
		n += align8(length)
	}
	if n == 0 {
		return 0, fmt.Errorf("%w: the record at %d does not fit into %d bytes", ErrTooLarge, from, len(buf))
	}
	return n, nil
}
