package journal

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	fillChunkBytes = 1 << 20         // the zero-filling syncs after so many, so that its sync never keeps a commit waiting for long
	fillRest       = 3               // and rests for so many times as long as that took
	prepareRetry   = 1 * time.Second // after a failed preparation
)

func (j *Journal) wakePreparer() {
	select {
	case j.prepare <- struct{}{}:
	default:
	}
}

// fitsLocked reports whether an ordinary append of n bytes finds a segment.
func (j *Journal) fitsLocked(n int64) bool {
	if !j.mu.reserved && int64(j.mu.limit-j.mu.next) >= n+int64(j.leaveLocked(KindMessages)) {
		return true
	}
	for _, s := range j.mu.spares {
		if s.capacity >= n {
			return true
		}
	}
	return false
}

// takeSpareLocked takes the largest spare, if it holds n bytes; the small one stays for the moment when nothing else is ready.
func (j *Journal) takeSpareLocked(n int64) (spare, bool) {
	best := -1
	for i, s := range j.mu.spares {
		if s.capacity >= n && (best < 0 || s.capacity > j.mu.spares[best].capacity) {
			best = i
		}
	}
	if best < 0 {
		return spare{}, false
	}
	s := j.mu.spares[best]
	j.mu.spares = append(j.mu.spares[:best], j.mu.spares[best+1:]...)
	return s, true
}

// takeReserveLocked takes the reserve for a control append of n bytes, if no other segment could be made.
func (j *Journal) takeReserveLocked(n int64) (spare, bool) {
	m := &j.mu
	if m.prepareErr == nil || m.reserve.file == nil || m.reserve.capacity < n {
		return spare{}, false
	}
	s := m.reserve
	m.reserve = spare{}
	if !m.reserved {
		m.reserved, m.reservedFrom = true, m.next
	}
	return s, true
}

// reserveMissingLocked reports whether the reserve is to be made.
func (j *Journal) reserveMissingLocked() bool {
	return j.opts.ReserveBytes > 0 && j.mu.reserve.file == nil
}

// setLimitLocked makes s the segment that the next append goes to.
func (j *Journal) setLimitLocked(s *segment) {
	j.mu.limit = s.limit()
	j.mu.mark = s.base + Position(s.capacity/2)
	j.mu.marked = false
}

// urgentLocked returns the file size of the segment that is needed at once, 0 if none is: an append was refused, or half of
// the last segment is used and there is no spare. It is small, so that it is soon there; while small ones follow each
// other each is twice as large as the one before, because a roll costs a few syncs.
func (j *Journal) urgentLocked() int64 {
	m := &j.mu
	if m.need > 0 && !j.fitsLocked(m.need) {
		size := (m.need + headerBlockBytes + 4095) &^ 4095
		return max(size, j.smallLocked())
	}
	if len(m.spares) == 0 && (m.next >= m.mark || m.reserved) {
		return j.smallLocked()
	}
	return 0
}

func (j *Journal) smallLocked() int64 {
	last := int64(2*(j.mu.limit-j.mu.mark)) + headerBlockBytes
	if last >= j.opts.SegmentBytesMax {
		return j.opts.SegmentBytesFirst
	}
	return max(min(2*last, j.opts.SegmentBytesMax/4)&^4095, j.opts.SegmentBytesFirst)
}

// fullLocked returns the file size of a full segment if no spare is one, else 0.
func (j *Journal) fullLocked() int64 {
	for _, s := range j.mu.spares {
		if s.capacity+headerBlockBytes >= j.opts.SegmentBytesMax {
			return 0
		}
	}
	return j.opts.SegmentBytesMax
}

// preparer is the goroutine that keeps the reserve and one full spare ready, and makes a small segment when one is needed before.
// A failure is not the journal's: nothing of a spare is in use. It tries again after prepareRetry; meanwhile appends that
// need a segment get ErrNoSpace, but for control appends, which take the reserve. Once that is used it comes first: ordinary
// appends go on when it is there again and they have a segment, so that there is always one for what frees the disk.
func (j *Journal) preparer() {
	defer j.wg.Done()
	fullFailed, told := false, false
	for {
		j.mu.Lock()
		if j.mu.err != nil { // nothing more is written to that disk
			j.mu.Unlock()
			<-j.stop
			return
		}
		size, urgent := j.urgentLocked(), true
		reserve := j.reserveMissingLocked() && (j.mu.reserved || size == 0 && !fullFailed)
		if reserve {
			urgent = j.mu.reserved
		} else if size == 0 && !fullFailed {
			size, urgent = j.fullLocked(), false
		}
		j.mu.Unlock()
		failed := false
		if size > 0 || reserve {
			var err error
			if reserve {
				size = j.opts.ReserveBytes
				err = j.prepareReserve(urgent)
			} else {
				err = j.prepareSpare(size, urgent)
			}
			switch {
			case errors.Is(err, errStopped):
				return
			case err != nil && urgent:
				failed = true
			case err != nil:
				fullFailed = true
				if !told {
					j.opts.Logger.Warn("next journal segment not prepared", "bytes", size, "err", err)
				}
				told = true
			case !urgent && !reserve && told:
				j.opts.Logger.Info("next journal segment prepared again")
				told = false
			}
			if !failed {
				continue
			}
		}
		// After a failure nothing but time makes another try worthwhile.
		var retry <-chan time.Time
		var timer *time.Timer
		if failed || fullFailed {
			timer = time.NewTimer(prepareRetry)
			retry = timer.C
		}
		wake := j.prepare
		if failed {
			wake = nil
		}
		select {
		case <-wake:
		case <-retry:
			fullFailed = false
		case <-j.stop:
			if timer != nil {
				timer.Stop()
			}
			return
		}
		if timer != nil {
			timer.Stop()
		}
	}
}

var errStopped = errors.New("stopped")

// prepareReserve makes the reserve. Its failure is one of preparing a segment, if ordinary appends wait for it.
func (j *Journal) prepareReserve(urgent bool) error {
	s, err := j.makeFile(j.fs.PathJoin(j.opts.Dir, reserveFillingName), j.fs.PathJoin(j.opts.Dir, reserveName), j.opts.ReserveBytes, urgent)
	if errors.Is(err, errStopped) {
		return err
	}
	s.flags = flagReserve
	j.mu.Lock()
	defer j.mu.Unlock()
	if err == nil {
		j.mu.reserve = s
		if len(j.mu.spares) > 0 {
			j.mu.reserved = false
			j.roomLocked()
		}
		return nil
	}
	j.mu.metrics.PrepareFailed++
	if urgent {
		j.mu.prepareErr = fmt.Errorf("%w: %w", ErrNoSpace, err)
		j.roomLocked()
	}
	return err
}

// prepareSpare makes one spare and tells those who wait for it, or for its failure if it was urgent.
func (j *Journal) prepareSpare(size int64, urgent bool) error {
	s, err := j.makeSpare(size, urgent)
	if errors.Is(err, errStopped) {
		return err
	}
	j.mu.Lock()
	m := &j.mu
	failedBefore := m.prepareErr != nil
	switch {
	case err == nil:
		m.metrics.Prepared++
		j.addSpareLocked(s)
	case urgent:
		m.metrics.PrepareFailed++
		m.prepareErr = fmt.Errorf("%w: %w", ErrNoSpace, err)
		if !failedBefore {
			j.askAgainLocked() // the reserve may be used now
		}
		j.roomLocked()
	default:
		m.metrics.PrepareFailed++
	}
	j.mu.Unlock()
	switch {
	case err == nil && failedBefore:
		j.opts.Logger.Info("journal segments can be prepared again")
	case err != nil && urgent && !failedBefore:
		j.opts.Logger.Warn("no journal segment could be prepared", "bytes", size, "err", err)
	}
	return err
}

// addSpareLocked adds a spare; appends that waited for one go on.
func (j *Journal) addSpareLocked(s spare) {
	m := &j.mu
	m.spares = append(m.spares, s)
	m.prepareErr = nil
	m.reserved = false
	if m.need > 0 && j.fitsLocked(m.need) {
		m.need = 0
	}
	j.askAgainLocked()
	j.roomLocked()
}

// askAgainLocked starts a commit if what BeforeCommit wanted to add was refused for lack of a segment.
func (j *Journal) askAgainLocked() {
	if j.mu.askAgain {
		j.mu.askAgain, j.mu.kicked = false, true
		j.wakeCommitter()
	}
}

// makeSpare makes a spare of size zeroes. While it fills a full one it makes a small one when that is needed.
func (j *Journal) makeSpare(size int64, urgent bool) (s spare, err error) {
	filling, path := j.nextSpareNames()
	return j.makeFile(filling, path, size, urgent)
}

func (j *Journal) nextSpareNames() (filling, path string) {
	j.mu.Lock()
	j.mu.spareCount++
	n := j.mu.spareCount
	j.mu.Unlock()
	return j.fs.PathJoin(j.opts.Dir, fmt.Sprintf(fillingNameFormat, n)), j.fs.PathJoin(j.opts.Dir, fmt.Sprintf(spareNameFormat, n))
}

// makeFile makes a file of size zeroes, synced, and gives it its name when it is whole. The name itself needs no sync: what is lost is
// only made again.
func (j *Journal) makeFile(filling, path string, size int64, urgent bool) (s spare, err error) {
	f, err := j.fs.Create(filling, vfs.WriteCategoryUnspecified)
	if err != nil {
		return s, fmt.Errorf("prepare segment: %w", err)
	}
	if j.follows() {
		err = j.allocate(f, size, urgent)
	} else {
		err = j.fill(f, size, urgent)
	}
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = j.fs.Rename(filling, path)
	}
	if err != nil {
		_ = f.Close()
		_ = j.fs.Remove(filling) // if it stays, Open removes it
		return s, fmt.Errorf("prepare segment %s: %w", filling, err)
	}
	return spare{path: path, capacity: size - headerBlockBytes, size: size, file: f}, nil
}

func (j *Journal) follows() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.mu.following
}

// allocate has the file system give f its blocks, and writes none but the last page. A journal that follows syncs now and then, so that
// zeroes, which make syncs cheap, would cost it and its disk more than they save: writing everything twice. What it has of such segments when it
// leads is synced as blocks are that were never written.
func (j *Journal) allocate(f vfs.File, size int64, urgent bool) error {
	switch err := f.Preallocate(0, size); {
	case errors.Is(err, errors.ErrUnsupported), errors.Is(err, syscall.EINVAL): // not by this file system
		return j.fill(f, size, urgent)
	case err != nil:
		return fmt.Errorf("allocate %d bytes: %w", size, err)
	}
	return writeAt(f, zeroes[:page], size-page)
}

// fill writes and syncs size zeroes in chunks, so that none of its syncs keeps a commit waiting for long, and rests between
// them: the disk is the commits'. It does not rest when the current segment would be full before.
func (j *Journal) fill(f vfs.File, size int64, urgent bool) error {
	for off := int64(0); off < size; {
		began := time.Now()
		for end := min(off+fillChunkBytes, size); off < end; {
			n := min(int64(len(zeroes)), end-off)
			if err := writeAt(f, zeroes[:n], off); err != nil {
				return err
			}
			off += n
			j.mu.Lock()
			j.mu.metrics.FilledBytes += n
			j.mu.Unlock()
		}
		select {
		case <-j.stop:
			return errStopped
		default:
		}
		if urgent || off == size {
			continue
		}
		if err := f.SyncData(); err != nil {
			return err
		}
		j.mu.Lock()
		small := int64(0)
		if j.mu.prepareErr == nil {
			small = j.urgentLocked()
		}
		room := j.roomShareLocked()
		j.mu.Unlock()
		if small > 0 {
			if err := j.prepareSpare(small, true); errors.Is(err, errStopped) {
				return err
			}
			continue
		}
		if room > float64(size-off)/float64(size) {
			if err := j.pause(fillRest * time.Since(began)); err != nil {
				return err
			}
		}
	}
	return nil
}

// roomShareLocked is which part of the last segment is free.
func (j *Journal) roomShareLocked() float64 {
	half := j.mu.limit - j.mu.mark
	if half == 0 {
		return 0
	}
	return float64(j.mu.limit-j.mu.next) / float64(2*half)
}

// pause waits for d, or until a segment is needed.
func (j *Journal) pause(d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-j.prepare:
	case <-j.stop:
		return errStopped
	}
	return nil
}
