package index

import (
	"errors"
	"fmt"
	"slices"

	"github.com/jmqio/jmq/server/planted"
)

// ErrMoved: a snapshot below entries that were moved and not flushed cannot be taken.
var ErrMoved = errors.New("index: moved entries are not flushed")

// flushing is one partition's part of a Flush.
type flushing struct {
	p *partition
	n int // entries of its tail that go
}

// flushBlock is how many entries are copied under a partition's lock at once.
const flushBlock = 512

// Flush moves what the tails hold of records below a position into a new run, if that is at least Options.FlushBytes or if
// entries were moved: written, synced and named, with its folder synced, before the entries leave memory. An error leaves
// them there; the next Flush writes them again. Everything below the position must have been appended. Appends go on
// meanwhile. It says whether entries left.
func (s *Set) Flush(to uint64) (bool, error) {
	s.work.Lock()
	defer s.work.Unlock()
	if to <= s.covered || s.moved.Load() == 0 && s.tails.Load()*EntryBytes < s.opt.FlushBytes {
		return false, nil
	}
	w := s.writer(RunID{s.covered, to})
	var parts []flushing
	for _, p := range s.sorted() {
		f, some, err := s.flushPart(w, p, to)
		if err != nil {
			w.abort()
			return false, err
		}
		if some {
			parts = append(parts, f)
		}
	}
	r, err := w.finish()
	if err != nil {
		w.abort()
		return false, err
	}
	if r != nil {
		s.addRun(r)
		s.counts.flushes.Add(1)
		s.counts.flushedBytes.Add(r.size)
	}
	out := w.out
	for _, f := range parts {
		n := 0
		for n < len(out) && out[n].key == f.p.key {
			n++
		}
		s.flushed(f, to, r, out[:n])
		out = out[n:]
	}
	s.covered = to
	s.planned.Store(false)
	return true, nil
}

func (s *Set) writer(id RunID) *runWriter {
	return &runWriter{fs: s.opt.FS, dir: s.opt.Dir, storeID: s.opt.StoreID, id: id}
}

// flushPart writes what p has below a position. False: nothing.
func (s *Set) flushPart(w *runWriter, p *partition, to uint64) (flushing, bool, error) {
	p.mu.RLock()
	f := flushing{p, p.tail.below(to)}
	flushed, next := p.flushed, max(p.first, p.flushed)
	var over []piece
	if p.moved != nil {
		over = p.moved.below(to)
	}
	p.mu.RUnlock()
	if f.n == 0 && len(over) == 0 {
		return f, false, nil
	}
	end := flushed + Index(f.n)
	write := func(first Index, entries []Entry) error {
		for i := range entries {
			if err := w.add(p.key, p.seed, first+Index(i), &entries[i]); err != nil {
				return err
			}
		}
		return nil
	}
	// writeTail writes the tail up to an index.
	var block [flushBlock]Entry
	writeTail := func(upTo Index) error {
		for next < upTo {
			n := min(upTo-next, flushBlock)
			p.mu.RLock()
			if p.dropped {
				p.mu.RUnlock()
				return nil
			}
			// Nothing but a Flush takes entries out of a tail, and there is one at a time.
			got := p.tail.copyTo(int(next-flushed), int(next-flushed+n), block[:0])
			p.mu.RUnlock()
			if err := write(next, got); err != nil {
				return err
			}
			next += n
		}
		return nil
	}
	for _, x := range over {
		if x.first >= next {
			if err := writeTail(min(x.first, end)); err != nil {
				return f, false, err
			}
		}
		entries := s.restamp(p, x)
		if err := write(x.first, entries); err != nil {
			return f, false, err
		}
		next = max(next, x.end())
	}
	return f, true, writeTail(end)
}

// restamp gives moved entries the stored times that they had in the index: those in their records may go back where the clock
// did. What cannot be read keeps those.
func (s *Set) restamp(p *partition, x piece) []Entry {
	entries := slices.Clone(x.entries)
	p.mu.RLock()
	from := min(max(x.first, p.first), x.end())
	p.mu.RUnlock()
	old, _ := s.rangeOf(p, from, x.end(), nil, false)
	for i := range old {
		entries[int(from-x.first)+i].Stored = old[i].Stored
	}
	return entries
}

// flushed lets the entries that are in r leave memory.
func (s *Set) flushed(f flushing, to uint64, r *run, out []placed) {
	p := f.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dropped {
		return
	}
	if f.n > 0 {
		p.last = p.tail.at(f.n - 1).Stored
		p.flushed += Index(f.n)
		p.tail.drop(f.n, &s.free)
		s.tails.Add(-int64(f.n))
	}
	for _, x := range out {
		x.run = r.number
		s.placeLocked(p, x.extent)
	}
	if p.moved != nil {
		m := *p.moved
		m.drop(to)
		if m.n == 0 {
			s.setMoved(p, nil)
		} else {
			s.setMoved(p, &m)
		}
	}
}

// placeLocked puts what is kept of an extent into a partition. p.mu is held.
func (s *Set) placeLocked(p *partition, e extent) {
	if from, to := max(e.first, p.first), min(e.end(), p.flushed); from < to {
		p.extents = insertExtent(p.extents, e.clip(from, to), s.newer())
	}
}

// newer says which of two runs, by number, is of a later range.
func (s *Set) newer() func(a, b uint32) bool {
	runs := *s.runs.Load()
	return func(a, b uint32) bool { return runs[a].From > runs[b].From }
}

// addRun gives a run its number and its place. work is held.
func (s *Set) addRun(r *run) {
	old := *s.runs.Load()
	n := slices.Index(old, nil)
	next := slices.Clone(old)
	if n < 0 {
		n = len(next)
		next = append(next, nil)
	}
	r.number = uint32(n)
	next[n] = r
	s.runs.Store(&next)
	s.order = append(s.order, r)
	sortRuns(s.order)
}

// removeRun takes out a run that no partition has an extent in. Its file stays: checkpoints may name it. work is held.
func (s *Set) removeRun(r *run) {
	r.gone.Store(true)
	s.files.drop(r)
	next := slices.Clone(*s.runs.Load())
	next[r.number] = nil
	s.runs.Store(&next)
	s.order = slices.DeleteFunc(s.order, func(x *run) bool { return x == r })
}

// State is a partition as a checkpoint holds it.
type State struct {
	Key     Key
	First   Index
	Flushed Index  // where the tail begins; what is kept below is in runs
	Last    int64  // Stored of the entry before the tail; 0 without one
	Low     uint64 // the lowest position that a kept entry points to; 0: not known
	Tail    []Entry
}

// Snapshot calls runs once with the runs and what they cover, then each with every partition, one after the other: what was
// there of records below a position. All of these must have been appended. Appends go on meanwhile. A state is valid only
// during the call. ErrMoved: Flush(position) comes first. A position below what runs cover is an error.
func (s *Set) Snapshot(position uint64, runs func(covered uint64, list []RunID) error, each func(*State) error) error {
	s.work.Lock()
	defer s.work.Unlock()
	if position < s.covered {
		return fmt.Errorf("index: snapshot at position %d, below what runs cover, %d", position, s.covered)
	}
	if err := runs(s.covered, s.runsLocked()); err != nil {
		return err
	}
	var st State
	for _, p := range s.sorted() {
		p.mu.RLock()
		if p.dropped {
			p.mu.RUnlock()
			continue
		}
		if p.moved != nil && len(p.moved.below(position)) > 0 {
			p.mu.RUnlock()
			return ErrMoved
		}
		n := p.tail.below(position)
		if planted.Bug("index: last entry not in the checkpoint") {
			n = max(n-1, 0)
		}
		st = State{Key: p.key, First: p.first, Flushed: p.flushed, Last: p.last, Low: p.low, Tail: p.tail.copyTo(0, n, st.Tail[:0])}
		p.mu.RUnlock()
		if st.Low >= position { // of entries that are not in the snapshot, or none
			st.Low = 0
		}
		if st.First == 0 && st.Flushed == 0 && len(st.Tail) == 0 {
			continue
		}
		st.First = min(st.First, st.Flushed+Index(n))
		if err := each(&st); err != nil {
			return err
		}
	}
	return nil
}

// Sweep removes the files of runs that are neither in the set nor in keep, and what a crash left half written.
func (s *Set) Sweep(keep []RunID) error {
	s.work.Lock()
	defer s.work.Unlock()
	// Before the names are gathered that are kept: what comes later is not in it.
	names, err := s.opt.FS.List(s.opt.Dir)
	if err != nil {
		return err
	}
	kept := map[string]bool{}
	for _, r := range s.order {
		kept[r.name()] = true
	}
	for _, r := range keep {
		kept[r.name()] = true
	}
	s.building.Lock()
	for id := range s.building.runs {
		kept[id.name()], kept[id.name()+temporary] = true, true
	}
	s.building.Unlock()
	if s.merging != nil {
		kept[s.merging.w.id.name()+temporary] = true
	}
	for _, n := range names {
		if kept[n] || !isRunFile(n) {
			continue
		}
		if err := s.opt.FS.Remove(s.files.path(n)); err != nil {
			return err
		}
	}
	return nil
}
