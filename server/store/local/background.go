package local

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/store"
)

// background is the store's one goroutine: it writes checkpoints when they are due, merges runs of the index, and rebuilds those
// that were found damaged.
type background struct {
	wake chan struct{} // has room for one
	quit chan struct{}
	done chan struct{}

	// work is held while a checkpoint is written or runs are rebuilt. It guards what follows.
	work   sync.Mutex
	buf    []byte // for checkpoints
	trims  uint64 // Store.trims when the newest checkpoint was begun
	closed bool   // the folder may be another's
	// rebuilt: runs were rebuilt since the newest checkpoint, which may name others.
	rebuilt bool
	// named are the runs of the last checkpoints, as long as all that were written since the start succeeded. What two of them do not
	// name is named by none that is kept.
	named [][]index.RunID

	mu struct {
		sync.Mutex
		repairs  map[index.RunID]bool // wanted; false: was tried in vain, and is not tried again
		position journal.Position     // of the newest checkpoint
		older    journal.Position     // of the one before it, which is kept too; 0: there is none
		size     int64                // of the newest checkpoint
		took     time.Duration
		held     time.Duration
		written  int64
		bytes    int64 // of those
		failed   int64
		repaired int64
	}
}

func (b *background) init() {
	b.wake = make(chan struct{}, 1)
	b.quit = make(chan struct{})
	b.done = make(chan struct{})
	b.mu.repairs = map[index.RunID]bool{}
}

// kick lets the goroutine look whether something is due.
func (b *background) kick() {
	select {
	case b.wake <- struct{}{}:
	default: // it will look
	}
}

// repair asks for the rebuilding of a run.
func (b *background) repair(k index.RunID) {
	b.mu.Lock()
	_, known := b.mu.repairs[k]
	if !known {
		b.mu.repairs[k] = true
	}
	b.mu.Unlock()
	if !known {
		b.kick()
	}
}

func (b *background) stop() {
	close(b.quit)
	<-b.done
}

// floor is the position that recovery needs the log from when the newest checkpoint is damaged.
func (b *background) floor() journal.Position {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.older
}

func (b *background) metrics(m *Metrics) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m.Checkpoint, m.CheckpointBytes = b.mu.position, b.mu.size
	m.CheckpointTook, m.CheckpointHeld = b.mu.took, b.mu.held
	m.Checkpoints, m.CheckpointsBytes, m.CheckpointErrors, m.Repairs = b.mu.written, b.mu.bytes, b.mu.failed, b.mu.repaired
}

// run is the goroutine.
func (s *Store) run() {
	b := &s.background
	defer close(b.done)
	tick := time.NewTicker(s.opt.CheckpointEvery)
	defer tick.Stop()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	failed := false // the last one did: the next is tried when its time has come, however much was written
	for {
		due := false
		select {
		case <-b.quit:
			return
		case <-tick.C:
			due = true
		case <-look.C:
			s.lookAtFolder()
			continue
		case <-b.wake:
		}
		s.repairRuns()
		s.healWanted()
		s.drop()
		if due {
			s.mendAgain()
		}
		s.trimFollowed()
		due = due || !failed && s.due()
		if due && s.Err() == nil {
			err := s.Checkpoint()
			if failed = err != nil; failed {
				// The journal has everything; recovery takes longer meanwhile.
				s.opt.Logger.Error("checkpoint failed", "folder", s.folder.dir, "err", err)
			}
			tick.Reset(s.opt.CheckpointEvery)
			s.trimFollowed()
		}
		s.merge(failed)
	}
}

// lookEvery is how often the store looks whether its folder is still there.
const lookEvery = time.Second

// lookAtFolder stops the store when its folder was deleted or replaced: what it writes is seen by nobody who starts again. Single files of the log
// that were deleted are made again.
func (s *Store) lookAtFolder() {
	if s.Err() != nil {
		return
	}
	if err := s.folder.replaced(); err != nil {
		_ = s.log.Fail(err) // which is what Err says
		s.fail()
		return
	}
	s.restoreFiles()
}

// trimFollowed trims along with the log that is followed.
func (s *Store) trimFollowed() {
	if !s.opt.Follow || s.Err() != nil {
		return
	}
	if err := s.trimAlong(); err != nil && !errors.Is(err, journal.ErrClosed) {
		s.opt.Logger.Warn("log cannot be trimmed", "folder", s.folder.dir, "err", err) // it is tried again
	}
}

// due says whether so much was appended that a checkpoint should be written.
func (s *Store) due() bool {
	s.apply.Lock()
	defer s.apply.Unlock()
	return s.apply.since >= s.opt.CheckpointBytes || s.index.TailBytes() > s.opt.IndexTailBytesMax
}

// mergeStepBytes is what one step of a merge copies: some milliseconds.
const mergeStepBytes = 4 << 20

// merge makes fewer runs of many, as long as nothing else is due.
func (s *Store) merge(failed bool) {
	b := &s.background
	for {
		select {
		case <-b.quit:
			return
		default:
		}
		if !failed && s.due() {
			b.kick()
			return
		}
		more, err := s.index.Merge(mergeStepBytes)
		if err != nil && !s.repairAll(err) {
			// The runs stay as they are; it is tried again after the next flush.
			s.opt.Logger.Warn("index cannot be merged", "folder", s.folder.dir, "err", err)
		}
		if !more {
			return
		}
	}
}

// drop takes deleted topics out of the index.
func (s *Store) drop() {
	b := &s.background
	b.work.Lock()
	defer b.work.Unlock()
	s.apply.Lock()
	keys := s.takeDroppedLocked()
	s.apply.Unlock()
	if !b.closed {
		s.dropPartitions(keys)
	}
}

// Checkpoint writes one now, unless nothing changed since the last.
func (s *Store) Checkpoint() error {
	err := s.checkpoint()
	if err != nil {
		b := &s.background
		b.mu.Lock()
		b.mu.failed++
		b.mu.Unlock()
	}
	return err
}

// tailBytesFailed is up to what size of tails a checkpoint is written with them although they could not be flushed: the index may
// be on a full disk of its own.
const tailBytesFailed = 64 << 20

// moment is what the records below a position say, as far as it changes with the next: the rest the index knows by position.
type moment struct {
	end     journal.Position
	epoch   journal.Epoch
	dropped []index.Key
	states  []byte // of the tables, one after the other
	ends    []int  // where each ends
}

// momentLocked takes the moment; the tables' states go to buf. s.apply and background.work are held; the caller drops what was dropped.
func (s *Store) momentLocked(buf []byte) moment {
	m := moment{end: s.apply.end, epoch: s.apply.epoch, dropped: s.takeDroppedLocked(), states: buf, ends: make([]int, 0, len(s.tables))}
	for _, t := range s.tables {
		m.states = t.Snapshot(m.states)
		m.ends = append(m.ends, len(m.states))
	}
	return m
}

// writeTables writes what the tables said at a moment.
func (s *Store) writeTables(w *checkpointWriter, m *moment) {
	from := 0
	for i, t := range s.tables {
		w.table(t.Name(), m.states[from:m.ends[i]])
		from = m.ends[i]
	}
}

// checkpoint takes position and tables at one moment, which is all that appends wait for; then lets the index move what it
// has below that position into a run, if it is enough; then writes what the index still holds itself, and which runs it
// has.
func (s *Store) checkpoint() error {
	b := &s.background
	b.work.Lock()
	defer b.work.Unlock()
	if b.closed {
		return journal.ErrClosed
	}

	if err := s.folder.replaced(); err != nil {
		return err // what is there now is not to be changed
	}
	begin, trims := time.Now(), s.trims.Load()
	h := checkpointHeader{StoreID: s.folder.storeID, Created: s.opt.Now().UnixNano()}
	s.apply.Lock()
	locked := time.Now()
	err, since := s.apply.err, s.apply.since
	if s.opt.Follow && s.lost.any {
		s.recoverEnds() // where this is opened as a master from this checkpoint, the hole is not met again
	}
	b.mu.Lock()
	same := s.apply.end == b.mu.position && trims == b.trims && !b.rebuilt
	b.mu.Unlock()
	m := moment{end: s.apply.end, epoch: s.apply.epoch}
	if err == nil && !same {
		m = s.momentLocked(b.buf[:0])
		b.buf = m.states
	}
	h.Position, h.Epoch = m.end, m.epoch
	s.apply.Unlock()
	took := time.Since(locked)
	s.dropPartitions(m.dropped)
	if err != nil || same {
		return err
	}
	if s.followed != nil {
		if err := s.syncFollowed(h.Position); err != nil {
			return err
		}
	}

	_, flushed := s.index.Flush(uint64(h.Position))
	if flushed != nil {
		if s.index.TailBytes() > tailBytesFailed {
			return flushed
		}
		s.opt.Logger.Warn("index cannot be flushed", "folder", s.folder.dir, "err", flushed)
	}
	var runs []index.RunID
	size, err := s.folder.writeCheckpoint(&h, func(w *checkpointWriter) error {
		err := s.index.Snapshot(uint64(h.Position), func(covered uint64, list []index.RunID) error {
			runs = list
			w.runs(covered, list)
			return w.err
		}, func(st *index.State) error {
			w.partition(st)
			return w.err
		})
		if err != nil {
			return err
		}
		s.writeTables(w, &m)
		return w.err
	})
	if err != nil {
		b.named = nil
		if flushed != nil && errors.Is(err, index.ErrMoved) {
			err = fmt.Errorf("%w: %w", err, flushed) // what is to be done about it
		}
		return err
	}
	s.apply.Lock()
	s.apply.since -= since
	s.apply.Unlock()
	b.trims, b.rebuilt = trims, false
	b.mu.Lock()
	again := h.Position == b.mu.position // it has replaced the newest
	if !again {
		b.mu.older = b.mu.position
	}
	b.mu.position, b.mu.size = h.Position, size
	b.mu.took, b.mu.held = time.Since(begin), took
	b.mu.written++
	b.mu.bytes += size
	b.mu.Unlock()
	if again && len(b.named) > 0 {
		b.named = b.named[:len(b.named)-1]
	}
	if b.named = append(b.named, runs); len(b.named) >= checkpointsKept {
		b.named = b.named[len(b.named)-checkpointsKept:]
		if err := s.index.Sweep(slices.Concat(b.named...)); err != nil {
			// They only take space; the next checkpoint tries again.
			s.opt.Logger.Warn("old runs of the index cannot be removed", "folder", s.folder.dir, "err", err)
		}
	}
	return nil
}

// repairAll asks for the repair of what err says is damaged; false when it says something else too.
func (s *Store) repairAll(err error) bool {
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		all := true
		for _, e := range many.Unwrap() {
			all = s.repairAll(e) && all
		}
		return all
	}
	var d *index.DamageError
	if !errors.As(err, &d) {
		return false
	}
	s.background.repair(d.Run)
	return true
}

// repairRuns rebuilds the runs that are wanted.
func (s *Store) repairRuns() {
	b := &s.background
	b.work.Lock()
	defer b.work.Unlock()
	b.mu.Lock()
	var runs []index.RunID
	for k, wanted := range b.mu.repairs {
		if wanted {
			runs = append(runs, k)
		}
	}
	b.mu.Unlock()
	if len(runs) == 0 || b.closed {
		return
	}
	s.opt.Logger.Warn("part of the index is damaged and is rebuilt from the journal", "folder", s.folder.dir, "runs", runs)
	err := s.rebuild(runs)
	if err != nil {
		s.opt.Logger.Error("part of the index cannot be rebuilt", "folder", s.folder.dir, "err", err)
	}
	b.mu.Lock()
	for _, k := range runs {
		if err != nil {
			b.mu.repairs[k] = false
		} else {
			delete(b.mu.repairs, k)
			b.mu.repaired++
		}
	}
	b.mu.Unlock()
}

// rebuild does it, reading only the ranges of the log that the runs are of. background.work is held, or nothing runs yet.
func (s *Store) rebuild(runs []index.RunID) error {
	build := s.index.Rebuild(uint64(s.log.Begin()), runs...)
	defer build.Abort()
	var in batchReader
	for _, r := range build.Ranges() {
		if err := s.rebuildRange(build, r, &in); err != nil {
			return err
		}
	}
	s.background.rebuilt = true
	return build.Finish()
}

func (s *Store) rebuildRange(build *index.Rebuild, of index.RunID, in *batchReader) error {
	r := s.log.NewReader(max(s.log.Begin(), journal.Position(of.From)))
	defer func() { r.Close() }()
	for r.Position() < journal.Position(of.To) {
		rec, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if c := (*journal.CorruptError)(nil); errors.As(err, &c) {
			hole, healErr := s.healAt(c.Position)
			if healErr != nil || hole == (journal.Hole{}) {
				return errors.Join(err, healErr)
			}
			r.Close()
			r = s.log.NewReader(hole.From)
			continue
		}
		if err != nil {
			return err
		}
		if err := s.rebuildRecord(build, &rec, in); err != nil {
			return err
		}
	}
	return nil
}

// rebuildRecord gives a record to a rebuild of the index.
func (s *Store) rebuildRecord(build *index.Rebuild, rec *journal.Record, in *batchReader) error {
	switch rec.Kind {
	case journal.KindLost:
		build.Hole()
	case journal.KindMessages:
		p, first, batch, err := in.read(rec)
		if err != nil {
			return err
		}
		return build.Append(keyOf(p), first, batch)
	case journal.KindCarriedForward:
		return in.moves(rec, func(p store.Partition, first index.Index, b *index.Batch) error {
			return build.Move(keyOf(p), first, b)
		})
	}
	return nil
}
