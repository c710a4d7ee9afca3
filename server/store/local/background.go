package local

import (
	"errors"
	"io"
	"sync"
	"time"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
)

// background is the store's one goroutine: it writes checkpoints when they are due and rebuilds index files that were
// found damaged.
type background struct {
	wake chan struct{} // has room for one
	quit chan struct{}
	done chan struct{}

	// work is held while a checkpoint is written or files are rebuilt.
	work   sync.Mutex
	buf    []byte // for checkpoints; guarded by work
	trims  uint64 // Store.trims when the newest checkpoint was begun; guarded by work
	closed bool   // the folder may be another's; guarded by work

	mu struct {
		sync.Mutex
		repairs  map[index.Key]bool // wanted; false: was tried in vain, and is not tried again
		position journal.Position   // of the newest checkpoint
		size     int64              // of the newest checkpoint
		took     time.Duration
		held     time.Duration
		written  int64
		failed   int64
		repaired int64
	}
}

func (b *background) init() {
	b.wake = make(chan struct{}, 1)
	b.quit = make(chan struct{})
	b.done = make(chan struct{})
	b.mu.repairs = map[index.Key]bool{}
}

// kick lets the goroutine look whether something is due.
func (b *background) kick() {
	select {
	case b.wake <- struct{}{}:
	default: // it will look
	}
}

// repair asks for the rebuilding of a partition's file.
func (b *background) repair(k index.Key) {
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

func (b *background) metrics(m *Metrics) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m.Checkpoint, m.CheckpointBytes = b.mu.position, b.mu.size
	m.CheckpointTook, m.CheckpointHeld = b.mu.took, b.mu.held
	m.Checkpoints, m.CheckpointErrors, m.Repairs = b.mu.written, b.mu.failed, b.mu.repaired
}

// run is the goroutine.
func (s *Store) run() {
	b := &s.background
	defer close(b.done)
	tick := time.NewTicker(s.opt.CheckpointEvery)
	defer tick.Stop()
	failed := false // the last one did: the next is tried when its time has come, however much was written
	for {
		due := false
		select {
		case <-b.quit:
			return
		case <-tick.C:
			due = true
		case <-b.wake:
		}
		s.repairFiles()
		s.drop()
		s.apply.Lock()
		due = due || !failed && s.apply.since >= s.opt.CheckpointBytes
		s.apply.Unlock()
		if due && s.Err() == nil {
			err := s.Checkpoint()
			if failed = err != nil; failed {
				// The journal has everything; recovery takes longer meanwhile.
				s.opt.Logger.Error("checkpoint failed", "folder", s.folder.dir, "err", err)
			}
			tick.Reset(s.opt.CheckpointEvery)
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

// checkpoint first moves whole chunks of the index to their files, so that what a checkpoint says is in a file is synced
// there; then takes position and tables at one moment, which is all that appends wait for; then writes, with what the
// index holds below that position.
func (s *Store) checkpoint() error {
	b := &s.background
	b.work.Lock()
	defer b.work.Unlock()
	if b.closed {
		return journal.ErrClosed
	}

	if _, err := s.index.Flush(); err != nil && !s.repairAll(err) {
		return err
	}

	begin, trims := time.Now(), s.trims.Load()
	h := checkpointHeader{StoreID: s.folder.storeID, Created: s.opt.Now().UnixNano()}
	ends := make([]int, 0, len(s.tables))
	s.apply.Lock()
	locked := time.Now()
	err, since := s.apply.err, s.apply.since
	h.Position, h.Epoch = s.apply.end, s.apply.epoch
	dropped := s.takeDroppedLocked()
	states := b.buf[:0]
	b.mu.Lock()
	same := h.Position == b.mu.position && trims == b.trims
	b.mu.Unlock()
	if err == nil && !same {
		for _, t := range s.tables {
			states = t.Snapshot(states)
			ends = append(ends, len(states))
		}
	}
	s.apply.Unlock()
	held := time.Since(locked)
	b.buf = states
	s.dropPartitions(dropped)
	if err != nil || same {
		return err
	}

	size, err := s.folder.writeCheckpoint(&h, func(w *checkpointWriter) error {
		err := s.index.Snapshot(func(st *index.State) error {
			st.Below(uint64(h.Position))
			w.partition(st)
			return w.err
		})
		if err != nil {
			return err
		}
		from := 0
		for i, t := range s.tables {
			w.table(t.Name(), states[from:ends[i]])
			from = ends[i]
		}
		return w.err
	})
	if err != nil {
		return err
	}
	s.apply.Lock()
	s.apply.since -= since
	s.apply.Unlock()
	b.trims = trims
	b.mu.Lock()
	b.mu.position, b.mu.size = h.Position, size
	b.mu.took, b.mu.held = time.Since(begin), held
	b.mu.written++
	b.mu.Unlock()
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
	s.background.repair(d.Key)
	return true
}

// repairFiles rebuilds the index files that are wanted, reading the log once for all of them.
func (s *Store) repairFiles() {
	b := &s.background
	b.work.Lock()
	defer b.work.Unlock()
	b.mu.Lock()
	var keys []index.Key
	for k, wanted := range b.mu.repairs {
		if wanted {
			keys = append(keys, k)
		}
	}
	b.mu.Unlock()
	if len(keys) == 0 || b.closed {
		return
	}
	s.opt.Logger.Warn("index files are damaged and are rebuilt from the journal", "folder", s.folder.dir, "files", len(keys))
	err := s.rebuild(keys)
	if err != nil {
		s.opt.Logger.Error("index files cannot be rebuilt", "folder", s.folder.dir, "err", err)
	}
	b.mu.Lock()
	for _, k := range keys {
		if err != nil {
			b.mu.repairs[k] = false
		} else {
			delete(b.mu.repairs, k)
			b.mu.repaired++
		}
	}
	b.mu.Unlock()
}

// rebuild does it. background.work is held.
func (s *Store) rebuild(keys []index.Key) error {
	build := s.index.Rebuild(keys...)
	defer build.Abort()
	r := s.log.NewReader(s.log.Begin())
	defer r.Close()
	var in batchReader
	for build.Missing() > 0 {
		rec, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if rec.Kind != journal.KindMessages {
			continue
		}
		p, first, batch, err := in.read(&rec)
		if err != nil {
			return err
		}
		if err := build.Add(keyOf(p), first, batch); err != nil {
			return err
		}
	}
	return build.Finish()
}
