// Package journal owns the one append-only log of a store: segments of records in a folder. Records are opaque; the
// journal knows positions, epochs and what is on disk.
//
// What it promises:
//   - An append whose Done got nil survives any kill and power loss, with everything before it. Records survive as a
//     prefix: never a later one without an earlier one.
//   - Readers see only what is committed: what is synced, and what the Replica, where there is one, has waited for.
//   - One write and one sync serve every append that was waiting (group commit); Done is called in the order of positions.
//   - A failed write or sync stops the journal for good (ErrFailed); nothing pretends that a later sync covers it.
//   - A torn tail is cut at Open. Damage below what was proven to be on disk is never cut: it is set aside and leaves a hole, behind
//     which everything is read. A reader that comes upon new damage gets a CorruptError, and Heal makes it a hole.
//   - When the disk is full, control appends go on in a reserve.
//   - A journal that follows (Options.Follow) copies another one's records; what was synced of them survives, and what survives is
//     a prefix of what was copied. Lead makes it one that appends.
//
// Files, one folder, nothing else of ours in it (FORMAT.md has the bytes):
//
//	00000000000000000000.journal   segment with the records from position 0 on
//	00000000000004190208.journal   the next one: its name is the position after the last record of the one before
//	spare-000003.journal           the next segment: zeroes, synced, or a segment that was trimmed
//	spare-000004.filling           a spare that is being filled; removed at Open
//	reserve.journal                a segment for control records, for when no other can be made
//	damaged/FROM-TO.bad            what a hole's bytes were
//	cut.mark                       a cut of the end is under way; Open finishes it
//	epochs                         where epochs begin
//	ends                           what is synced and committed of a journal that follows, or has followed
//	diverged/FROM-TO-EPOCH.journal what CutTo cut
//
// Segments are as long as they will ever be from the first record on: they are filled with zeroes before, because
// syncing a block that was written before costs half to three quarters of the time. When a prepared one of full size is
// not ready, a small one is made.
//
// The way of an append: Append copies it into the gathering group, under one lock, and gives it its position. TryLead
// or Kick starts a commit, by the caller or by the committer goroutine: the gathering group is taken, its checksums
// are filled, one WriteAt, one SyncData, then Done of each, then AfterCommit. What is appended meanwhile is the next group.
//
// Goroutines, owned by the Journal and waited for by Close: the committer (commit.go) and the preparer (prepare.go).
package journal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/planted"
)

// Position is a byte of the journal: 0 is the first ever written. Segments hold consecutive ranges of positions.
type Position uint64

// Epoch is (term, start), compared as one number: the term comes from the registry, start is raised each time the
// journal is opened for writing.
type Epoch uint64

// MakeEpoch is the epoch of a term and a start.
func MakeEpoch(term, start uint32) Epoch { return Epoch(term)<<32 | Epoch(start) }
func (e Epoch) Term() uint32             { return uint32(e >> 32) }
func (e Epoch) Start() uint32            { return uint32(e) }
func (e Epoch) String() string           { return fmt.Sprintf("%d.%d", e.Term(), e.Start()) }

// Record is one record as read. Payload is valid as the reader that returned it says.
type Record struct {
	Kind     Kind
	Flags    uint8
	Epoch    Epoch
	Position Position
	Durable  Position // durable end of the writer's store when it wrote the record
	Stored   int64    // unix nanoseconds
	Payload  []byte
}

// Entry is one record to append. Payload is copied before Append returns.
type Entry struct {
	Kind    Kind
	Flags   uint8
	Payload []byte
	// Position is set by Append.
	Position Position
}

// Append is some entries that are committed together: all of them survive or none is answered. The caller owns it
// again when Done was called.
type Append struct {
	Entries []Entry
	// Stored is the stored time written into every record; set by the caller, unix nanoseconds.
	Stored int64
	// Urgent lets the append in although the queue is full: for the few that BeforeCommit adds, which would otherwise
	// starve under load.
	Urgent bool
	// Control lets the append in when ordinary ones get ErrNoSpace, as long as the reserve has room: for records that free
	// the disk (acks, resets, ends) or that the journal cannot do without. It is refused only when the reserve is full too.
	Control bool
	// Replicated refuses the append with ErrNotReplicated when the Replica is not in sync, or there is none.
	Replicated bool
	// Short is set before Done of a Replicated append that is committed, while no other replica was found to have it: readers see it, but it is
	// on one machine only.
	Short bool
	// Done is called exactly once after Append accepted it, in the order of positions over the whole journal, from the
	// goroutine that commits, and must not block; it may call any method but Truncate and Close. err is nil when the
	// entries are committed and can be read. Else the journal has stopped, and err wraps ErrUnknown if they were being
	// written, synced or copied, ErrFailed or ErrFenced if they were still waiting and nothing of them was written.
	Done func(a *Append, err error)
}

var (
	// ErrBusy: the queue of appends that wait for the next commit is full, or the next segment is being prepared; nothing
	// was written. WaitRoom waits until it is worth trying again.
	ErrBusy = errors.New("journal: too much waits for the disk")
	// ErrTooLarge: the append can never be taken; nothing was written.
	ErrTooLarge = errors.New("journal: append is too large")
	// ErrClosed: nothing was written.
	ErrClosed = errors.New("journal: closed")
	// ErrFailed: a write or sync failed earlier; nothing was written, and nothing will be until the store is opened again.
	ErrFailed = errors.New("journal: stopped after a failed write or sync")
	// ErrUnknown: the entries were or may have been written, whether they survive is not known.
	ErrUnknown = errors.New("journal: outcome not known")
	// ErrNoSpace: no segment can be prepared, as a rule for lack of space; nothing was written, the journal goes on by itself when
	// one can be.
	ErrNoSpace = errors.New("journal: no segment can be prepared")
	// ErrTrimmed: the position is below the journal's begin.
	ErrTrimmed = errors.New("journal: position was trimmed")
	// ErrBeyond: the position is at or beyond the readable end.
	ErrBeyond = errors.New("journal: position is beyond the end")
	// ErrTerm: the journal holds records of a higher term than the one it was to be opened with.
	ErrTerm = errors.New("journal: holds records of a higher term")
	// ErrFollows: the journal follows another one and takes no appends; nothing was written.
	ErrFollows = errors.New("journal: follows another one")
	// ErrLeads: the journal appends, so it copies nothing.
	ErrLeads = errors.New("journal: follows nobody")
	// ErrNotCopied: what is to be copied is not the records that come next, or is damaged; nothing was written.
	ErrNotCopied = errors.New("journal: not what is to be copied next")
	// ErrNotReplicated: no other replica is in sync, so a Replicated append is refused; nothing was written.
	ErrNotReplicated = errors.New("journal: no other replica is in sync")
	// ErrFenced: the Replica, or who called Fence, has stopped the journal; nothing was written.
	ErrFenced = errors.New("journal: stopped, it leads no more")
)

// CorruptError says where damage was found below what the store had proven to be on disk.
type CorruptError struct {
	File     string
	Position Position
	Offset   int64 // in the file
	Reason   string
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("journal: %s is damaged at position %d (byte %d of the file): %s", e.File, e.Position, e.Offset, e.Reason)
}

// Options of Open.
type Options struct {
	FS  vfs.FS // nil is the disk
	Dir string // made if it is not there

	// StoreID is written into each segment; segments of another store are refused.
	StoreID [16]byte

	// SegmentBytesMax is the size of a segment file, header block included: a multiple of 4096, at least 64 KiB. 0 is 256 MiB.
	SegmentBytesMax int64
	// SegmentBytesFirst is the size of a segment that is made on the spot, because a prepared one is not ready. 0 is 4 MiB; at
	// most SegmentBytesMax.
	SegmentBytesFirst int64
	// ReserveBytes is the size of the segment that is kept for control appends when no other can be made. 0 is 4 MiB, below 0 is none; at
	// most SegmentBytesMax.
	ReserveBytes int64
	// RecycleMax is up to how many spares Trim keeps segments of full size as; the others are removed. 0 is 2, below 0 none.
	RecycleMax int
	// CommitBytesMax is how many bytes one write and sync takes, except for a single larger append. 0 is 4 MiB.
	CommitBytesMax int
	// QueueBytesMax is how many bytes may wait or be in the running commit before Append says ErrBusy; also the largest
	// append. 0 is 32 MiB. The journal's buffers grow to twice that.
	QueueBytesMax int
	// QueueLenMax is the same in appends. 0 is 65536.
	QueueLenMax int
	// IdleAfter is how long after a commit without another one a no-op is written, which proves the commit to be durable.
	// 0 is 50 ms.
	IdleAfter time.Duration

	// Start is where recovery begins to read: a position that the caller has proof for (a checkpoint). Everything below it
	// was synced. 0 is the journal's begin.
	Start Position
	// StartEpoch is the epoch of the last record below Start. 0 is not known: then it is read from the journal, which
	// costs reading up to one segment.
	StartEpoch Epoch
	// Term is the term of the epoch that Open starts.
	Term uint32

	// Follow opens a journal that copies another one: it starts no epoch and takes no appends until it Leads.
	Follow bool
	// Begin is where a journal that follows begins when its folder is empty. A multiple of 8.
	Begin Position
	// OnCommitted is called by SetCommitted when more is committed, with how much. It must not block.
	OnCommitted func(Position)

	Now    func() time.Time // stored times of the journal's own records; nil is time.Now
	Logger *slog.Logger     // nil discards

	// BeforeCommit is called at the start of each commit, on the goroutine that commits and without a lock. It may Append. After
	// ErrBusy for lack of a segment it is called again when there is one, or the reserve may be used.
	BeforeCommit func()
	// AfterCommit is called after all Done calls of a commit, on the same goroutine, without a lock.
	AfterCommit func()

	// Recovered is called by Open for each record from Start on that is kept, in order, also for no-ops and epochs.
	// Payload is valid during the call. An error ends Open. What Open then cuts was not shown to it, and with Follow what is not
	// known to be committed, by Start or by the ends file.
	Recovered func(Record) error
	// Progress is called by Open now and then with the bytes of journal read and to be read.
	Progress func(done, total int64)
}

func (o Options) withDefaults() Options {
	def := func(p *int64, v int64) {
		if *p == 0 {
			*p = v
		}
	}
	defInt := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	if o.FS == nil {
		o.FS = vfs.Default
	}
	def(&o.SegmentBytesMax, 256<<20)
	def(&o.SegmentBytesFirst, 4<<20)
	o.SegmentBytesFirst = min(o.SegmentBytesFirst, o.SegmentBytesMax)
	def(&o.ReserveBytes, 4<<20)
	o.ReserveBytes = min(o.ReserveBytes, o.SegmentBytesMax)
	defInt(&o.RecycleMax, 2)
	defInt(&o.CommitBytesMax, 4<<20)
	defInt(&o.QueueBytesMax, 32<<20)
	defInt(&o.QueueLenMax, 65536)
	if o.IdleAfter == 0 {
		o.IdleAfter = 50 * time.Millisecond
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

func (o Options) validate() error {
	switch {
	case o.Dir == "":
		return errors.New("journal: no folder is given")
	case o.SegmentBytesMax < segmentBytesFloor || o.SegmentBytesMax%4096 != 0:
		return fmt.Errorf("journal: segmentBytesMax %d is not a multiple of 4096 from %d up", o.SegmentBytesMax, segmentBytesFloor)
	case o.SegmentBytesFirst < segmentBytesFloor || o.SegmentBytesFirst%4096 != 0:
		return fmt.Errorf("journal: segmentBytesFirst %d is not a multiple of 4096 from %d up", o.SegmentBytesFirst, segmentBytesFloor)
	case o.ReserveBytes > 0 && (o.ReserveBytes < segmentBytesFloor || o.ReserveBytes%4096 != 0):
		return fmt.Errorf("journal: reserveBytes %d is not a multiple of 4096 from %d up", o.ReserveBytes, segmentBytesFloor)
	case o.CommitBytesMax < 0 || o.CommitBytesMax > 1<<30:
		return fmt.Errorf("journal: commitBytesMax %d is not within [1, 1 GiB]", o.CommitBytesMax)
	case o.QueueBytesMax < 0 || o.QueueBytesMax > 1<<30:
		return fmt.Errorf("journal: queueBytesMax %d is not within [1, 1 GiB]", o.QueueBytesMax)
	case o.QueueLenMax < 0:
		return fmt.Errorf("journal: queueLenMax %d is negative", o.QueueLenMax)
	case o.Begin > math.MaxInt64 || o.Begin%8 != 0 || o.Begin > 0 && !o.Follow:
		return fmt.Errorf("journal: begin %d is not where a journal that follows can begin", o.Begin)
	case o.IdleAfter < 0:
		return fmt.Errorf("journal: idleAfter %v is negative", o.IdleAfter)
	}
	return nil
}

// Journal is an open journal. Its methods are safe for concurrent use, unless they say otherwise.
type Journal struct {
	opts Options
	fs   vfs.FS
	dir  vfs.File // for syncing names
	seed uint32   // of records' checksums

	opened bool // set before anyone else has the journal

	// Leading: committed <= synced <= written <= mu.next. Following: synced <= written = mu.next, and committed <= written, for
	// what is committed is on enough disks, not on this one. Alone: committed = synced.
	synced    atomic.Uint64 // end of what is on disk
	written   atomic.Uint64 // end of what was written: what ReadRaw sees
	committed atomic.Uint64 // what readers see
	gone      atomic.Bool   // its files are closed
	replica   atomic.Pointer[Replica]
	ends      *endsFile // nil if there is none
	asides    atomic.Pointer[[]Aside]

	epoch atomic.Uint64            // of what is appended; following: of the last record
	list  atomic.Pointer[segments] // changed under mu
	cut   atomic.Pointer[cut]      // the last one of the end; nil if there was none
	holes atomic.Pointer[[]hole]   // changed by Open and under trimMu

	mu struct {
		sync.Mutex

		err     error // why the journal takes no more; nil while it does
		closing bool  // Close was called
		closed  bool  // its last commit is done

		// committing is the right to commit: whoever set it owns writing, current and the fields of the commit section below.
		committing bool
		kicked     bool // a commit was asked for even if nothing is queued
		noopDue    bool // the journal was idle for long enough
		idle       bool // the idle timer runs
		cutting    bool // Truncate or Lead runs: only its own record is let in
		following  bool

		history []EpochStart
		// bounds are ends of records between committed and written, by position; not all of them, so SetCommitted may commit less than it is told.
		bounds []Position

		gathering *group
		next      Position // position of the next append = gathering.from + len(gathering.buf)
		limit     Position // end of the segment that next is in
		mark      Position // half of that segment; when next passes it, the preparer is asked to look
		marked    bool     // it was
		spares    []spare
		reserve   spare // its file is nil while there is none
		// reserved: from reservedFrom on the journal goes on in the reserve, and ordinary appends are refused. Only while nothing
		// else could be prepared.
		reserved     bool
		reservedFrom Position

		queueBytes, queueLen int // gathering and writing

		need       int64 // bytes of the last append for which no segment was there; 0 if none
		askAgain   bool  // an urgent append was refused for that
		prepareErr error // why the last preparation failed; wraps ErrNoSpace
		spareCount int   // number of the last spare's name

		room  chan struct{} // closed when there may be room; nil if nobody waits
		quiet *sync.Cond    // signalled when committing becomes false

		metrics Metrics
	}

	// Owned by who set mu.committing.
	writing  *group
	current  *segment
	unproven bool // something was committed since the last no-op

	// Written by the committing goroutine under mu.
	lastCommit time.Time
	lastGroups [2]int // appends in the last two commits

	idleTimer *time.Timer
	wake      chan struct{} // of the committer
	prepare   chan struct{} // of the preparer
	stop      chan struct{}
	wg        sync.WaitGroup

	trimMu sync.Mutex // one Trim, Truncate, CutTo, Heal, Mend, Restore or WriteFooter at a time; before syncMu
	syncMu sync.Mutex // one Sync at a time, and no cut meanwhile; before the right to commit and mu
	copied copying    // of CopyRecords, which has the right to commit

	lookedAt time.Time // under trimMu: of the folder when Restore last found all files there
}

// Open recovers the journal in opts.Dir, or makes one, and starts a new epoch (opts.Term, one start higher than the
// last): its record is on disk when Open returns. Only one Journal may be open on a folder; the caller sees to that.
//
// Errors: *CorruptError, *VersionError, *ForeignError, ErrTerm, ErrNoSpace, what the file system or Recovered said. Open
// can be tried again after any of them; it leaves the folder in a state from which recovery has the same result.
func Open(opts Options) (*Journal, error) {
	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}
	j := &Journal{
		opts:    opts,
		fs:      opts.FS,
		seed:    crcSeed(opts.StoreID),
		wake:    make(chan struct{}, 1),
		prepare: make(chan struct{}, 1),
		stop:    make(chan struct{}),
		writing: &group{},
		copied:  copying{begun: noPrevious},
	}
	j.mu.gathering = &group{}
	j.mu.quiet = sync.NewCond(&j.mu)
	last, err := j.recover()
	if err != nil {
		j.closeFiles()
		if errors.Is(err, syscall.EROFS) {
			err = fmt.Errorf("journal: %s lies on a read-only file system: %w", opts.Dir, err)
		}
		return nil, err
	}
	j.opened = true
	j.idleTimer = time.AfterFunc(time.Hour, j.idleFired)
	j.idleTimer.Stop()
	j.mu.following = opts.Follow
	j.wg.Add(2)
	go j.committer()
	go j.preparer()
	if opts.Follow {
		return j, nil
	}
	j.mu.committing = true
	err = j.startEpoch(MakeEpoch(opts.Term, last.Start()+1), 0)
	if err != nil {
		j.mu.Lock()
		j.mu.err = err // so that Close writes nothing more
		j.mu.Unlock()
		j.opts.BeforeCommit, j.opts.AfterCommit = nil, nil
	}
	j.disown()
	if err != nil {
		_ = j.Close()
		return nil, err
	}
	return j, nil
}

// startEpoch writes the record of a new epoch and waits until it is on disk. The caller has the right to commit, and
// nothing is queued nor can be.
func (j *Journal) startEpoch(e Epoch, flags uint8) error {
	j.noteEpoch(EpochStart{e, j.End(), flags&epochForced != 0})
	j.epoch.Store(uint64(e))
	var outcome error
	a := Append{
		Entries: []Entry{{Kind: KindEpoch, Flags: flags}},
		Stored:  j.opts.Now().UnixNano(),
		Urgent:  true,
		Control: true,
		Done:    func(_ *Append, err error) { outcome = err },
	}
	for {
		err := j.enqueue(&a, true)
		if err == nil {
			break
		}
		if !errors.Is(err, ErrBusy) {
			return err
		}
		if err := j.WaitRoom(context.Background()); err != nil && !errors.Is(err, ErrNoSpace) { // now the reserve may be used
			return err
		}
	}
	j.commit(commitOwn)
	return outcome
}

// ownLocked waits for the right to commit and takes it, unless the journal has stopped or is being closed: Close keeps the right.
func (j *Journal) ownLocked() error {
	for j.mu.committing && !j.mu.closing {
		j.mu.quiet.Wait()
	}
	switch {
	case j.mu.err != nil:
		return j.mu.err
	case j.mu.closing:
		return ErrClosed
	}
	j.mu.committing = true
	return nil
}

// disown gives the right to commit back, to the committer if something is queued.
func (j *Journal) disown() {
	j.mu.Lock()
	j.mu.committing = false
	j.mu.quiet.Broadcast()
	more := j.moreLocked()
	j.mu.Unlock()
	if more {
		j.wakeCommitter()
	}
}

// Append queues a for the next commit, gives its entries their positions and copies their payloads. It never blocks.
// **It starts no commit**: the caller calls TryLead or Kick when it has nothing more to append at once, else the append
// waits for somebody else's commit. An error means that nothing was written and Done is never called: ErrBusy,
// ErrNoSpace, ErrTooLarge, ErrClosed, ErrFailed.
func (j *Journal) Append(a *Append) error { return j.enqueue(a, false) }

// enqueue is Append; own is the journal's own record while it lets in no others.
func (j *Journal) enqueue(a *Append, own bool) error {
	size := 0
	for i := range a.Entries {
		n := len(a.Entries[i].Payload)
		if n > RecordBytesMax-recordHeaderBytes {
			return ErrTooLarge
		}
		size += RecordBytes(n)
	}
	if size == 0 {
		panic("journal: append without entries")
	}
	if size > j.opts.QueueBytesMax {
		return ErrTooLarge
	}

	a.Short = false
	if a.Replicated {
		if r := j.replica.Load(); r == nil || !(*r).InSync() {
			return ErrNotReplicated
		}
	}

	j.mu.Lock()
	defer j.mu.Unlock()
	m := &j.mu
	switch {
	case m.err != nil:
		return m.err
	case m.closed || m.closing && !a.Urgent:
		return ErrClosed
	case m.following:
		return ErrFollows
	case m.cutting && !own,
		!a.Urgent && m.queueLen > 0 && (m.queueBytes+size > j.opts.QueueBytesMax || m.queueLen >= j.opts.QueueLenMax):
		m.metrics.Busy++
		return ErrBusy
	}
	g := m.gathering
	if refused := m.reserved && !a.Control && !planted.Bug("journal: sends use the reserve"); refused || m.next+Position(size+j.leaveLocked(a.Entries[0].Kind)) > m.limit {
		var s spare
		ok := false
		if !refused {
			s, ok = j.takeSpareLocked(int64(size))
		}
		if !ok && (a.Control || planted.Bug("journal: sends use the reserve")) {
			s, ok = j.takeReserveLocked(int64(size))
		}
		if !ok {
			m.need = max(m.need, int64(size))
			m.askAgain = m.askAgain || a.Urgent && !own
			j.wakePreparer()
			if m.prepareErr != nil {
				return m.prepareErr
			}
			m.metrics.Busy++
			return ErrBusy
		}
		g.rolls = append(g.rolls, roll{at: len(g.buf), spare: s})
		m.limit = m.next + Position(s.capacity)
		m.mark = m.next + Position(s.capacity/2)
		m.marked = false
		j.wakePreparer()
	}
	if len(g.buf) == 0 {
		g.from = m.next
	}
	r := Record{Epoch: Epoch(j.epoch.Load()), Stored: a.Stored}
	for i := range a.Entries {
		e := &a.Entries[i]
		e.Position = m.next
		r.Kind, r.Flags, r.Position, r.Payload = e.Kind, e.Flags, m.next, e.Payload
		if e.Kind == 0 {
			panic("journal: append of kind 0")
		}
		g.buf = appendRecord(g.buf, &r)
		m.next += Position(RecordBytes(len(e.Payload)))
	}
	g.appends = append(g.appends, queued{append: a, end: len(g.buf)})
	m.queueBytes += size
	m.queueLen++
	if m.next >= m.mark && !m.marked {
		m.marked = true
		j.wakePreparer()
	}
	return nil
}

// What is left of the last segment there is, when no other can be made, is the journal's own: the next start needs room for its epoch,
// and freeing the disk that for no-ops.
const (
	leaveForNoops  = 4096 // which leave, in turn,
	leaveForEpochs = 1024
)

// leaveLocked is how many bytes of the segment a record of that kind must leave behind itself.
func (j *Journal) leaveLocked(kind Kind) int {
	if len(j.mu.spares) > 0 || j.mu.reserve.file != nil {
		return 0
	}
	switch kind {
	case KindEpoch:
		return 0
	case KindNoop:
		return leaveForEpochs
	}
	return leaveForNoops
}

// WaitRoom blocks until an append is worth trying again after ErrBusy. It returns nil, ctx's error, or what Append would
// return: ErrNoSpace (a control append is worth trying then), ErrClosed, ErrFailed.
func (j *Journal) WaitRoom(ctx context.Context) error {
	for {
		j.mu.Lock()
		m := &j.mu
		var err error
		ready := false
		switch {
		case m.err != nil:
			err = m.err
		case m.closing:
			err = ErrClosed
		case m.need > 0 && !j.fitsLocked(m.need):
			err = m.prepareErr
		default:
			ready = m.queueLen == 0 || m.queueBytes < j.opts.QueueBytesMax && m.queueLen < j.opts.QueueLenMax
		}
		if err != nil || ready {
			j.mu.Unlock()
			return err
		}
		if m.room == nil {
			m.room = make(chan struct{})
		}
		room := m.room
		j.mu.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// roomLocked wakes all who wait in WaitRoom.
func (j *Journal) roomLocked() {
	if j.mu.room != nil {
		close(j.mu.room)
		j.mu.room = nil
	}
}

// Begin is the position of the first record that is kept.
func (j *Journal) Begin() Position {
	if l := *j.list.Load(); len(l) > 0 {
		return l[0].base
	}
	return j.opts.Begin
}

// End is the position that the next append gets.
func (j *Journal) End() Position {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.mu.next
}

// Synced is the end of what is on disk.
func (j *Journal) Synced() Position { return Position(j.synced.Load()) }

// Written is the end of what was written, on disk or not.
func (j *Journal) Written() Position { return Position(j.written.Load()) }

// Committed is the end of what readers see. Without a Replica it is Synced.
func (j *Journal) Committed() Position { return Position(j.committed.Load()) }

// Epoch is the epoch of what is appended now; of a journal that follows that of the last record, 0 if there is none.
func (j *Journal) Epoch() Epoch { return Epoch(j.epoch.Load()) }

// Err is nil while the journal takes appends, ErrClosed or an error that wraps ErrFailed when it does no more.
func (j *Journal) Err() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.mu.err == nil && j.mu.closing {
		return ErrClosed
	}
	return j.mu.err
}

// Close commits what is queued, writes a no-op with the durable end, and closes the files; a journal that follows syncs instead. Appends get ErrClosed from
// the moment it is called, but BeforeCommit can add urgent ones to the last commit. It returns why the journal had
// stopped, if it had, or could not be closed cleanly. A second Close returns ErrClosed.
func (j *Journal) Close() error {
	j.mu.Lock()
	if j.mu.closing {
		j.mu.Unlock()
		return ErrClosed
	}
	j.mu.closing = true
	j.roomLocked()
	j.mu.quiet.Broadcast() // who waits for the right to commit will not get it any more
	for j.mu.committing {
		j.mu.quiet.Wait()
	}
	j.mu.committing = true
	j.mu.Unlock()

	if j.mu.following { // who ends that has the right to commit
		j.mu.Lock()
		j.mu.closed = true
		j.mu.Unlock()
		j.syncMu.Lock()
		_ = j.syncCopied() // the error stays
		j.syncMu.Unlock()
	}
	for !j.mu.closed {
		j.commit(commitUsual) // also when the journal has stopped: who is queued must hear it
		j.mu.Lock()
		if !j.moreLocked() {
			j.mu.closed = true
			j.mu.noopDue = j.unproven
		}
		j.mu.Unlock()
	}
	if !j.mu.following {
		j.commit(commitOwn)
	}
	j.idleTimer.Stop()
	close(j.stop)
	j.wg.Wait()

	j.mu.Lock()
	if j.mu.err == nil {
		j.mu.Unlock()
		j.noteEnds()
		j.mu.Lock()
	}
	err := j.mu.err
	j.mu.Unlock()
	j.closeFiles()
	return err
}

// closeFiles releases the list's hold on all files; readers keep theirs.
func (j *Journal) closeFiles() {
	j.gone.Store(true)
	j.mu.Lock()
	spares := j.mu.spares
	if j.mu.reserve.file != nil {
		spares = append(spares, j.mu.reserve)
	}
	j.mu.spares, j.mu.reserve = nil, spare{}
	var l segments
	if p := j.list.Swap(&segments{}); p != nil {
		l = *p
	}
	j.mu.Unlock()
	for _, s := range l {
		s.release()
	}
	for _, s := range spares {
		if s.file != nil {
			_ = s.file.Close()
		}
	}
	for _, r := range append(j.writing.rolls, j.mu.gathering.rolls...) {
		_ = r.spare.file.Close()
	}
	if j.dir != nil {
		_ = j.dir.Close()
	}
	if j.ends != nil {
		_ = j.ends.file.Close() // what it says is synced
	}
}

// Metrics of a journal since it was opened.
type Metrics struct {
	Appends, Records, Commits, Noops int64
	Bytes                            int64 // of records, written by commits
	PaddedBytes                      int64 // of them, what only fills pages
	PageBytes                        int64 // of the pages that commits wrote into: what the disk is given for them
	Syncs                            int64 // of segments, by commits
	SyncTime                         time.Duration
	Led                              int64 // times that an appending goroutine led
	Rolls                            int64 // segments begun
	Prepared, PrepareFailed          int64 // spares made and not made
	FilledBytes                      int64 // zeroes written into them
	Busy                             int64 // appends refused with ErrBusy
	Segments, Spares                 int
	Recycled                         int64 // segments that became spares
	ReserveInUse                     bool  // only control appends are taken
	Holes                            int   // in what is kept, and the bytes in them
	LostBytes                        int64
	HeadersRepaired, TornBytes       int64 // at Open: segments' headers, and what was cut as a torn tail
	ScrubbedBytes                    int64
	CopiedBytes                      int64 // of Bytes, by CopyRecords
	Begin, Synced, Committed, End    Position
	QueueBytes, QueueLen             int
}

// Metrics returns a snapshot.
func (j *Journal) Metrics() Metrics {
	j.mu.Lock()
	defer j.mu.Unlock()
	m := j.mu.metrics
	m.Segments, m.Spares = len(*j.list.Load()), len(j.mu.spares)
	m.ReserveInUse = j.mu.reserved
	m.Holes, m.LostBytes = 0, 0
	for _, h := range j.holeList() {
		m.Holes++
		m.LostBytes += int64(h.To - h.From)
	}
	m.Begin, m.Synced, m.Committed, m.End = j.Begin(), j.Synced(), j.Committed(), j.mu.next
	m.QueueBytes, m.QueueLen = j.mu.queueBytes, j.mu.queueLen
	return m
}
