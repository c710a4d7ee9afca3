package journal

import (
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/planted"
)

// A leader is an appending goroutine that commits by itself, which saves a hop to the committer. It pays only while
// groups are small: a leader does not read its connection meanwhile.
const (
	leadGroupMax  = 4 // appends in each of the last two commits
	leadRoundsMax = 4 // commits in a row by one leader
)

// group is what is committed in one go: records in buf, the first at position from. Two of them take turns, so that in
// the steady state nothing is allocated.
type group struct {
	from    Position
	buf     []byte
	appends []queued
	rolls   []roll
}

type queued struct {
	append *Append // nil for the journal's own no-op
	end    int     // in buf
}

// roll is where in buf the next segment begins. Invariant: it is the begin of an append.
type roll struct {
	at    int
	spare spare
}

func (g *group) reset() {
	g.buf = g.buf[:0]
	clear(g.appends)
	g.appends = g.appends[:0]
	clear(g.rolls)
	g.rolls = g.rolls[:0]
}

// TryLead starts a commit of what is queued: in the calling goroutine if no commit is running and the last groups were
// small, which it reports, else by the committer. Call it after Append, when nothing more is to be appended at once.
// It must not be called under a lock that BeforeCommit, Done or AfterCommit want.
func (j *Journal) TryLead() bool {
	j.mu.Lock()
	m := &j.mu
	if m.committing || m.closing || len(m.gathering.appends) == 0 {
		j.mu.Unlock()
		return false // a running commit takes what is queued when it is done
	}
	if !j.smallGroupsLocked() {
		j.mu.Unlock()
		j.wakeCommitter()
		return false
	}
	m.committing = true
	m.metrics.Led++
	j.mu.Unlock()
	j.lead(leadRoundsMax)
	return true
}

func (j *Journal) smallGroupsLocked() bool {
	return j.lastGroups[0] <= leadGroupMax && j.lastGroups[1] <= leadGroupMax
}

// Kick starts a commit by the committer if none is running, else one more after the running one; BeforeCommit is asked
// even if nothing is queued. A commit of nothing writes nothing. Kick never blocks. In a journal that
// follows it does nothing.
func (j *Journal) Kick() {
	j.mu.Lock()
	if j.mu.following {
		j.mu.Unlock()
		return
	}
	j.mu.kicked = true
	running := j.mu.committing
	j.mu.Unlock()
	if !running {
		j.wakeCommitter()
	}
}

func (j *Journal) wakeCommitter() {
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

// committer is the goroutine that commits when no leader does.
func (j *Journal) committer() {
	defer j.wg.Done()
	for {
		select {
		case <-j.wake:
		case <-j.stop:
			return
		}
		j.mu.Lock()
		if j.mu.committing {
			j.mu.Unlock()
			continue // who commits takes what is queued too
		}
		j.mu.committing = true
		j.mu.Unlock()
		j.lead(0)
	}
}

// lead commits until nothing is left, and gives the right to commit back. roundsMax > 0 makes the caller a leader: it
// hands over to the committer after so many rounds, or when groups are no longer small.
func (j *Journal) lead(roundsMax int) {
	for rounds := 1; ; rounds++ {
		j.commit(commitUsual)
		j.mu.Lock()
		// Under one lock with giving the right back: whoever appends in between relies on us.
		more := j.moreLocked()
		handOver := more && roundsMax > 0 && (rounds >= roundsMax || !j.smallGroupsLocked())
		// Close waits for the right to commit, and does the rest itself.
		if !more || handOver || j.mu.closing {
			j.mu.committing = false
			j.mu.quiet.Broadcast()
			j.mu.Unlock()
			if handOver {
				j.wakeCommitter()
			}
			return
		}
		j.mu.Unlock()
	}
}

// moreLocked reports whether another commit has something to do.
func (j *Journal) moreLocked() bool {
	return len(j.mu.gathering.appends) > 0 || j.mu.kicked || j.mu.noopDue
}

// commitMode says what a commit leaves out.
type commitMode int

const (
	commitUsual commitMode = iota
	commitQuiet            // the hooks: while cutting
	commitOwn              // and it does not wait for the Replica: the journal's own records, while opening, beginning to lead and closing
)

// commit takes the gathering group and commits it. The caller has the right to commit.
func (j *Journal) commit(mode commitMode) {
	quiet := mode != commitUsual
	if !quiet {
		j.mu.Lock()
		j.mu.kicked = false
		j.mu.Unlock()
		if j.opts.BeforeCommit != nil {
			j.opts.BeforeCommit()
		}
	}

	j.mu.Lock()
	noop := false
	if j.mu.noopDue {
		j.mu.noopDue = false
		noop = len(j.mu.gathering.appends) == 0 && j.mu.err == nil && j.placeNoopLocked()
	}
	padding := 0
	if !quiet && !noop && j.mu.err == nil {
		padding = j.padLocked()
	}
	j.mu.gathering, j.writing = j.writing, j.mu.gathering
	err := j.mu.err
	j.mu.Unlock()

	g := j.writing
	replica := j.replica.Load()
	begin, first := 0, 0
	var cause error // of a failure in this commit, for what was not written
	if err != nil {
		cause = err
	}
	for first < len(g.appends) && cause == nil {
		if len(g.rolls) > 0 && g.rolls[0].at == begin {
			s := g.rolls[0].spare
			g.rolls = g.rolls[:copy(g.rolls, g.rolls[1:])]
			if err := j.roll(s, g.from+Position(begin)); err != nil {
				cause = j.fail(err)
				break
			}
		}
		last := first
		for last+1 < len(g.appends) && g.appends[last+1].end-begin <= j.opts.CommitBytesMax &&
			(len(g.rolls) == 0 || g.appends[last].end < g.rolls[0].at) {
			last++
		}
		end := g.appends[last].end
		records, took, err := j.write(g.buf[begin:end], g.from+Position(begin))
		if err != nil {
			cause = j.fail(err)
			unknown := fmt.Errorf("%w: %w", ErrUnknown, err)
			if planted.Bug("journal: failed sync said to be no write") {
				unknown = cause
			}
			j.complete(g.appends[first:last+1], unknown)
			first = last + 1
			break
		}
		to := g.from + Position(end)
		j.synced.Store(uint64(to))
		if replica != nil && mode != commitOwn {
			if err := (*replica).Wait(to); err != nil {
				cause = j.Fence(err)
				j.complete(g.appends[first:last+1], fmt.Errorf("%w: %w", ErrUnknown, cause))
				first = last + 1
				break
			}
			j.markShort(g.appends[first:last+1], g.from, (*replica).Copied())
		}
		if replica == nil || mode != commitOwn {
			j.committed.Store(uint64(to))
		}

		appends := last + 1 - first
		j.mu.Lock()
		if replica != nil {
			j.boundLocked(to, mode != commitOwn)
		}
		m := &j.mu.metrics
		j.mu.queueBytes -= end - begin
		j.mu.queueLen -= appends
		if padding > 0 && last+1 == len(g.appends) {
			m.PaddedBytes += int64(padding)
			appends--
		}
		m.Commits++
		m.Syncs++
		m.SyncTime += took
		m.Appends += int64(appends)
		m.Records += int64(records)
		m.Bytes += int64(end - begin)
		m.PageBytes += pageBytes(j.current.offset(g.from+Position(begin)), end-begin)
		j.lastGroups[0], j.lastGroups[1] = j.lastGroups[1], appends
		j.lastCommit = time.Now()
		if noop {
			m.Noops++
			m.Appends--
		}
		j.unproven = !noop
		if j.unproven && !j.mu.closing && !quiet {
			j.armIdleLocked(j.opts.IdleAfter)
		}
		j.roomLocked()
		j.mu.Unlock()

		j.complete(g.appends[first:last+1], nil)
		if j.opts.AfterCommit != nil && !quiet {
			j.opts.AfterCommit()
		}
		first, begin = last+1, end
	}
	if cause != nil {
		rest := g.appends[first:]
		j.complete(rest, cause)
		j.mu.Lock()
		j.mu.queueBytes, j.mu.queueLen = len(j.mu.gathering.buf), len(j.mu.gathering.appends)
		j.mu.Unlock()
		for _, r := range g.rolls {
			_ = r.spare.file.Close()
		}
	}
	g.reset()
}

// complete calls Done of each.
func (j *Journal) complete(appends []queued, err error) {
	for i := range appends {
		a := appends[i].append
		appends[i].append = nil
		if a != nil && a.Done != nil {
			a.Done(a, err)
		}
	}
}

// write writes and syncs b at pos.
func (j *Journal) write(b []byte, pos Position) (records int, took time.Duration, err error) {
	durable := j.Synced()
	records = seal(b, pos, durable, j.seed)
	if r := j.replica.Load(); r != nil {
		(*r).Written(pos, b)
	}
	s := j.current
	off := s.offset(pos)
	if end := pos + Position(len(b)); pos < s.base || end > s.limit() || durable != pos {
		panic(fmt.Sprintf("journal: commit of [%d, %d) with durable end %d into segment [%d, %d)", pos, end, durable, s.base, s.limit()))
	}
	start := time.Now()
	err = writeAt(s.mu.file, b, off)
	if err == nil {
		j.written.Store(uint64(pos) + uint64(len(b)))
		if len(b) > RecordBytes(0) || !planted.Bug("journal: epoch used before it is synced") {
			err = syncWritten(s.mu.file, b, off)
		}
	}
	if err != nil {
		return 0, 0, fmt.Errorf("commit [%d, %d) to %s: %w", pos, pos+Position(len(b)), s.path, err)
	}
	return records, time.Since(start), nil
}

// writeSync writes b at off and syncs.
func writeSync(f vfs.File, b []byte, off int64) error {
	if err := writeAt(f, b, off); err != nil {
		return err
	}
	return syncWritten(f, b, off)
}

// syncWritten syncs f, in which b was written at off. This is the one place that decides what EINTR of a sync means.
//
// fdatasync does not say what an interrupted call did. The kernel may have found a failed write-back meanwhile, have
// marked its error as reported to us and its pages as clean, and still return EINTR; a second sync alone would then
// succeed over lost blocks. So the bytes are written again, which makes the pages dirty again, and then synced: what a
// sync after that covers does not depend on the interrupted one. Everything before b in the file was synced by calls
// that succeeded. After a few interrupted tries it is a failed sync like any other.
func syncWritten(f vfs.File, b []byte, off int64) error {
	const tries = 10
	for try := 1; ; try++ {
		if planted.Bug("journal: small commit not synced") && off > 0 && len(b) < 400 {
			return nil
		}
		err := f.SyncData()
		if err == nil {
			return nil
		}
		if !errors.Is(err, syscall.EINTR) || try == tries {
			return fmt.Errorf("sync: %w", err)
		}
		if err := writeAt(f, b, off); err != nil {
			return err
		}
	}
}

func writeAt(f vfs.File, b []byte, off int64) error {
	n, err := f.WriteAt(b, off)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	if err != nil {
		return fmt.Errorf("write %d bytes at %d: %w", len(b), off, err)
	}
	return nil
}

// syncDir makes names durable. An interrupted one is called again: names are in the file system's own journal, whose
// failure is not reported once and forgotten, but fails every later sync too.
func syncDir(dir vfs.File) error {
	const tries = 10
	for try := 1; ; try++ {
		err := dir.Sync()
		if err == nil {
			return nil
		}
		if !errors.Is(err, syscall.EINTR) || try == tries {
			return fmt.Errorf("sync folder: %w", err)
		}
	}
}

// roll makes s the current segment, with its first record at base. Header, sync, name, sync of the name; only then
// records. The header says what of the journal was synced: everything below base, but in a journal that follows, whose Sync comes later. There
// only the new file's header and the folder are synced here, not what was written before.
func (j *Journal) roll(s spare, base Position) error {
	h := header{flags: s.flags, store: j.opts.StoreID, base: base, previous: noPrevious, durable: j.Synced(), capacity: s.capacity,
		created: j.opts.Now().UnixNano()}
	var replaced *segment
	if j.current != nil && j.current.base == base { // empty, and too small for the next record, as a crash of one that follows can leave it
		replaced = j.current
		h.previous = replaced.previous
	} else if j.current != nil {
		h.previous = j.current.base
	}
	path := j.fs.PathJoin(j.opts.Dir, segmentName(base))
	err := writeHeader(s.file, &h)
	if err == nil {
		err = j.fs.Rename(s.path, path)
	}
	if err == nil && !planted.Bug("journal: directory not synced") {
		err = syncDir(j.dir)
	}
	if err != nil {
		_ = s.file.Close()
		return fmt.Errorf("begin segment %s: %w", path, err)
	}
	j.current = newSegment(h, path, s.file)
	j.current.size.Store(s.size)
	if s.flags&flagReserve != 0 {
		j.opts.Logger.Warn("journal goes on in its reserve, for control records only", "position", uint64(base), "bytes", s.capacity)
	}
	j.mu.Lock()
	old := *j.list.Load()
	if replaced != nil {
		old = old[:len(old)-1]
	}
	l := append(old[:len(old):len(old)], j.current)
	j.list.Store(&l)
	j.mu.metrics.Rolls++
	j.mu.Unlock()
	if replaced != nil {
		replaced.release()
	}
	if j.replica.Load() != nil {
		j.noteEnds()
	}
	return nil
}

// fail stops the journal for good.
func (j *Journal) fail(cause error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.failLocked(cause)
}

// Fence stops the journal for good, for a reason that is not its disk's: another one leads. Appends that wait, and all later ones, get
// ErrFenced, with cause: nothing of them was written. It returns why the journal has stopped.
func (j *Journal) Fence(cause error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.mu.err == nil {
		j.mu.err = fmt.Errorf("%w: %w", ErrFenced, cause)
		j.opts.Logger.Debug("journal stopped, for another one leads", "position", uint64(j.Synced()), "err", cause)
		j.roomLocked()
	}
	return j.mu.err
}

// Fail stops the journal for good, as a failed write or sync does, for a cause that somebody else has found. It returns why the journal has stopped.
func (j *Journal) Fail(cause error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.failLocked(cause)
}

func (j *Journal) failLocked(cause error) error {
	if j.mu.err == nil {
		j.mu.err = fmt.Errorf("%w: %w", ErrFailed, cause)
		j.opts.Logger.Error("journal stopped", "position", uint64(j.Synced()), "err", cause)
		j.roomLocked()
	}
	return j.mu.err
}

// placeNoopLocked appends a no-op. If there is no room for it in the segment it is left out: the next segment's header
// will carry the durable end.
func (j *Journal) placeNoopLocked() bool {
	m := &j.mu
	if m.next+recordHeaderBytes > m.limit {
		return false
	}
	m.gathering.from = m.next
	j.placeOwnLocked(nil)
	return true
}

// placeOwnLocked appends a no-op, for which there is room.
func (j *Journal) placeOwnLocked(payload []byte) {
	m := &j.mu
	g := m.gathering
	begin := len(g.buf)
	g.buf = appendRecord(g.buf, &Record{Kind: KindNoop, Epoch: Epoch(j.epoch.Load()), Position: m.next, Stored: j.opts.Now().UnixNano(), Payload: payload})
	g.appends = append(g.appends, queued{end: len(g.buf)})
	m.next += Position(len(g.buf) - begin)
	m.queueBytes += len(g.buf) - begin
	m.queueLen++
}

const (
	page = 4096 // what a disk is given to write, at the least
	// padShare: a commit may be one part in so many longer, so that the next one begins on a page of its own.
	padShare = 24
	padFrom  = 4 * page // smaller commits seldom end where that is enough
)

// pageBytes is how many bytes of whole pages n bytes at off lie in.
func pageBytes(off int64, n int) int64 {
	return (off+int64(n)+page-1)&^(page-1) - off&^(page-1)
}

// padLocked ends what was gathered at the end of a page, with a no-op of the right length if that is short for it, and returns its
// length. Else the next commit writes the last page again: at 32 messages of 1 KiB a commit, one page in ten. There it costs 2 % of a
// segment and saves 4 % of what the disk is given; twice that share would save 1.5 % more and cost 2 % more, and without a bound a
// commit of one small record would take a page.
func (j *Journal) padLocked() int {
	m := &j.mu
	g := m.gathering
	if len(g.appends) == 0 || m.reserved { // the reserve is for what frees the disk
		return 0
	}
	base, begin := Position(0), 0 // of the segment that it ends in, and what of the group is in that
	if n := len(g.rolls); n > 0 {
		begin = g.rolls[n-1].at
		base = g.from + Position(begin)
	} else {
		base = j.current.base // for all that came before is committed
	}
	n := int(-(headerBlockBytes + m.next - base) & (page - 1))
	size := min(len(g.buf)-begin, j.opts.CommitBytesMax)
	if n < recordHeaderBytes || size < padFrom || n*padShare > size || m.next+Position(n+j.leaveLocked(KindMessages)) > m.limit {
		return 0
	}
	j.placeOwnLocked(zeroes[:n-recordHeaderBytes])
	return n
}

func (j *Journal) armIdleLocked(d time.Duration) {
	if !j.mu.idle {
		j.mu.idle = true
		j.idleTimer.Reset(d)
	}
}

// idleFired asks for a no-op if nothing was committed for a while. The timer is not set back by each commit: it looks
// at the time of the last one when it fires.
func (j *Journal) idleFired() {
	j.mu.Lock()
	j.mu.idle = false
	if j.mu.closing || j.mu.err != nil {
		j.mu.Unlock()
		return
	}
	if wait := j.opts.IdleAfter - time.Since(j.lastCommit); wait > 0 {
		j.armIdleLocked(wait)
		j.mu.Unlock()
		return
	}
	if j.mu.committing {
		j.armIdleLocked(j.opts.IdleAfter)
		j.mu.Unlock()
		return
	}
	j.mu.noopDue = true
	j.mu.Unlock()
	j.wakeCommitter()
}
