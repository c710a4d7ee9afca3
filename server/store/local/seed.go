package local

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
)

// A seed is what a full copy of a store begins with: a checkpoint without entries of the index, which the copy makes from the journal.
// It has the blocks of a checkpoint and a header of its own magic and version; its one run is [Begin, Position).
const seedVersion = 1

var seedMagic = [8]byte{'J', 'M', 'Q', 'S', 'E', 'E', 'D', 0}

// ErrSeed: the bytes are not a whole seed.
var ErrSeed = errors.New("store: not a whole seed")

// Seed says what a seed is of.
type Seed struct {
	StoreID  [16]byte // of the store that wrote it; of BeginFromSeed that of the new one
	Begin    journal.Position
	Position journal.Position // what it says is true of the journal up to here, which the copy needs from Begin on
	Epoch    journal.Epoch    // of the last record below Position
}

// WriteSeed writes a seed: what tables say and what partitions hold, at one moment. The log is not trimmed beyond Begin until release is
// called, which who copies does at the end. After an error there is nothing to release.
func (s *Store) WriteSeed(w io.Writer) (seed Seed, release func(), err error) {
	s.reclaiming.work.Lock() // else what the index needs could move and its segment go
	defer s.reclaiming.work.Unlock()
	b := &s.background
	b.work.Lock()
	defer b.work.Unlock()
	if b.closed {
		return seed, nil, journal.ErrClosed
	}
	s.apply.Lock()
	m := s.momentLocked(nil)
	err = s.apply.err
	s.apply.Unlock()
	if err != nil {
		return seed, nil, err
	}
	s.dropPartitions(m.dropped)
	if _, err := s.index.Flush(uint64(m.end)); err != nil {
		return seed, nil, err
	}
	seed = Seed{StoreID: s.folder.storeID, Position: m.end, Epoch: m.epoch, Begin: s.log.Begin()}
	oldest, any := s.index.Oldest()
	for _, seg := range s.log.Segments() {
		if seg.Base < m.end && (!any || seg.Base <= journal.Position(oldest)) {
			seed.Begin = seg.Base
		}
	}
	if seed.Begin >= seed.Position {
		return seed, nil, fmt.Errorf("store: nothing is in the log of %s to begin a copy with", s.folder.dir)
	}
	h := checkpointHeader{StoreID: seed.StoreID, Position: seed.Position, Epoch: seed.Epoch, Created: s.opt.Now().UnixNano()}
	cw := &checkpointWriter{f: inOrder{w}, buf: h.encodeAs(nil, seedMagic, seedVersion)}
	cw.runs(uint64(seed.Position), []index.RunID{{From: uint64(seed.Begin), To: uint64(seed.Position)}})
	err = s.index.Snapshot(uint64(m.end), func(uint64, []index.RunID) error { return nil }, func(st *index.State) error {
		end := index.State{Key: st.Key, First: st.First, Flushed: st.Flushed + index.Index(len(st.Tail)), Last: st.Last}
		if n := len(st.Tail); n > 0 {
			end.Last = st.Tail[n-1].Stored
		}
		cw.partition(&end)
		return cw.err
	})
	if err != nil {
		return seed, nil, err
	}
	s.writeTables(cw, &m)
	if err := cw.finish(); err != nil {
		return seed, nil, fmt.Errorf("store: write a seed: %w", err)
	}
	return seed, s.reclaiming.pin(seed.Begin), nil
}

// inOrder writes what comes in the order of its offsets.
type inOrder struct{ w io.Writer }

func (w inOrder) WriteAt(b []byte, _ int64) (int, error) { return w.w.Write(b) }

// BeginFromSeed makes the folder of a new store, with an id of its own, from a seed. Then the journal is copied there, from Begin on, to
// Position at least; Open makes the index from it, and goes on with what follows. Of o FS, Dir, JournalDir and IndexDir are used;
// the folder must not hold a store, nor what an earlier call left that failed. Errors: ErrSeed, and the file system's.
func BeginFromSeed(o Options, seed io.ReaderAt, size int64) (_ Seed, err error) {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Dir == "" {
		return Seed{}, errors.New("store: no folder")
	}
	made, h, err := readSeed(io.NewSectionReader(seed, 0, size))
	if err != nil {
		return made, err
	}
	f := &folder{fs: o.FS, dir: o.Dir, journal: o.JournalDir, index: o.IndexDir}
	if f.journal == "" {
		f.journal = f.path(journalDir)
	}
	if f.index == "" {
		f.index = f.path(indexDir)
	}
	if err := o.FS.MkdirAll(o.Dir, 0o700); err != nil {
		return made, fmt.Errorf("store: make folder %s: %w", o.Dir, err)
	}
	if f.lock, err = o.FS.Lock(f.path(lockName)); err != nil {
		return made, fmt.Errorf("%w: %s (%w)", ErrInUse, o.Dir, err)
	}
	defer func() { err = errors.Join(err, f.lock.Close()) }()
	if _, err := o.FS.Stat(f.path(identityName)); err == nil {
		return made, fmt.Errorf("store: %s is a store already", o.Dir)
	}
	if err := f.mustBeNew(); err != nil {
		return made, err
	}
	if err := f.makeFolders(); err != nil {
		return made, err
	}
	made.StoreID, h.StoreID = f.storeID, f.storeID
	_, err = f.writeCheckpoint(&h, func(w *checkpointWriter) error {
		_, err := readBlocks(io.NewSectionReader(seed, 0, size), seedMagic, seedVersion, &checkpointVisitor{
			runs: func(covered uint64, _ []index.RunID) {
				// From 0 on: what the journal of the copy does not reach is not missed. No file has it, so Open makes it.
				w.runs(covered, []index.RunID{{From: 0, To: covered}})
			},
			partition: func(st *index.State, _ bool) error { w.partition(st); return w.err },
			table:     func(name string, state []byte) error { w.table(name, state); return w.err },
		})
		return err
	})
	if err != nil {
		return made, err
	}
	if err := f.writeIdentity(); err != nil { // last: where it is, all is
		return made, err
	}
	return made, syncDir(f.fs, f.dir)
}

// ReadSeed checks that a seed is whole, and says what it is of.
func ReadSeed(seed io.ReaderAt, size int64) (Seed, error) {
	s, _, err := readSeed(io.NewSectionReader(seed, 0, size))
	return s, err
}

func readSeed(r io.Reader) (s Seed, h checkpointHeader, err error) {
	var list []index.RunID
	h, err = readBlocks(r, seedMagic, seedVersion, &checkpointVisitor{
		runs:      func(_ uint64, l []index.RunID) { list = slices.Clone(l) },
		partition: func(*index.State, bool) error { return nil },
		table:     func(string, []byte) error { return nil },
	})
	switch {
	case errors.Is(err, errCheckpoint):
		return s, h, fmt.Errorf("%w: %w", ErrSeed, err)
	case err != nil:
		return s, h, err
	case len(list) != 1 || list[0].To != uint64(h.Position):
		return s, h, fmt.Errorf("%w: it does not say where the journal begins", ErrSeed)
	}
	return Seed{StoreID: h.StoreID, Begin: journal.Position(list[0].From), Position: h.Position, Epoch: h.Epoch}, h, nil
}
