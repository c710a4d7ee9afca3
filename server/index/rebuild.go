package index

import (
	"errors"
	"fmt"
	"slices"
)

// rebuildBytes is how many bytes of entries a Rebuild gathers for one run.
const rebuildBytes = 16 << 20

// A Rebuild makes damaged runs again, from the records of the journal in their ranges. Large ones become several: what is
// gathered in memory is bounded. Its methods are for one goroutine.
type Rebuild struct {
	s       *Set
	begin   uint64
	old     []*run
	ranges  []RunID // of old
	parts   map[Key]*rebuilding
	entries int
	from    uint64 // of what is gathered
	holes   bool   // the journal has lost some of it
	runs    []rebuilt
	built   []RunID // in Set.building
	failed  error
}

type rebuilding struct {
	p      *partition
	end    Index // what is wanted lies below
	last   int64
	got    pieces
	ranges []extent // index ranges that were written
}

type rebuilt struct {
	run *run
	out []placed
}

// Rebuild begins to make the runs again that are damaged and still in the set. The journal begins at a position; what was
// before is not kept, so it is not missed. The caller gives the records of Ranges, in order, with Append, Move and Hole, and then
// calls Finish, and Abort in any case.
func (s *Set) Rebuild(begin uint64, damaged ...RunID) *Rebuild {
	s.work.Lock()
	defer s.work.Unlock()
	b := &Rebuild{s: s, begin: begin, parts: map[Key]*rebuilding{}}
	s.abortMerge() // one of them may be in it
	for _, r := range s.order {
		if slices.Contains(damaged, r.RunID) {
			b.old = append(b.old, r)
			b.ranges = append(b.ranges, r.RunID)
			r.damaged = true
		}
	}
	if len(b.ranges) > 0 {
		b.from = b.ranges[0].From
	}
	return b
}

// Ranges are what of the journal is to be read.
func (b *Rebuild) Ranges() []RunID { return b.ranges }

// at ends what is gathered of the ranges before a position, and says whether that is in one.
func (b *Rebuild) at(position uint64) (bool, error) {
	if b.failed != nil {
		return false, b.failed
	}
	for _, r := range b.ranges {
		if position < r.From || position >= r.To {
			continue
		}
		if b.from < r.From {
			return true, b.enter(r)
		}
		if b.entries*EntryBytes >= rebuildBytes && position > b.from {
			return true, b.flush(position)
		}
		return true, nil
	}
	return false, nil
}

// enter ends the range that is gathered, and begins a later one.
func (b *Rebuild) enter(r RunID) error {
	for _, q := range b.ranges {
		if b.from >= q.From && b.from < q.To {
			if err := b.flush(q.To); err != nil {
				return err
			}
			break
		}
	}
	b.from = r.From
	return nil
}

func (b *Rebuild) part(k Key) *rebuilding {
	w := b.parts[k]
	if w == nil {
		if w = (&rebuilding{p: b.s.find(k)}); w.p != nil {
			w.p.mu.RLock()
			w.end = w.p.flushed
			w.p.mu.RUnlock()
		}
		b.parts[k] = w
	}
	return w
}

// Append takes a batch, as Set.Append.
func (b *Rebuild) Append(k Key, first Index, batch *Batch) error {
	return b.add(k, first, batch, false)
}

// Move takes a batch that was written again, as Set.Move.
func (b *Rebuild) Move(k Key, first Index, batch *Batch) error { return b.add(k, first, batch, true) }

// Hole says that a part of the ranges is lost: entries that are missing at the end are those of lost messages.
func (b *Rebuild) Hole() { b.holes = true }

func (b *Rebuild) add(k Key, first Index, batch *Batch, moved bool) error {
	ok, err := b.at(batch.Position)
	if !ok || err != nil {
		return err
	}
	w := b.part(k)
	to := min(first+Index(batch.Count), w.end)
	if w.p == nil || first >= to {
		return nil // its topic was deleted, or the tail has it
	}
	stored := batch.Stored
	if !moved {
		if w.last == 0 {
			w.last = b.s.storedBefore(w.p, first)
		}
		w.last = max(w.last, stored)
		stored = w.last
	}
	entries := make([]Entry, 0, to-first)
	for i := range to - first {
		e := Entry{Position: batch.Position, Stored: stored, Size: max(1, batch.Size), Slot: uint16(i), Count: batch.Count}
		if batch.Tags != nil {
			e.TagHash = batch.Tags[i]
		}
		entries = append(entries, e)
	}
	w.got.put(first, entries)
	b.entries += len(entries)
	return nil
}

// storedBefore returns the stored time of the entry before i, as far as runs say it; else 0.
func (s *Set) storedBefore(p *partition, i Index) int64 {
	p.mu.RLock()
	defer p.mu.RUnlock()
	n := findExtent(p.extents, i)
	if n == 0 {
		return 0
	}
	return p.extents[n-1].last
}

// flush writes what was gathered as the run [from, to).
func (b *Rebuild) flush(to uint64) (err error) {
	defer func() { b.failed = err }()
	id := RunID{b.from, to}
	b.build(id, 1)
	b.built = append(b.built, id)
	w := b.s.writer(id)
	keys := make([]Key, 0, len(b.parts))
	for k, x := range b.parts {
		if x.got.n > 0 {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, compareKeys)
	for _, k := range keys {
		x := b.parts[k]
		for _, q := range x.got.list {
			for i := range q.entries {
				if err := w.add(k, x.p.seed, q.first+Index(i), &q.entries[i]); err != nil {
					w.abort()
					return err
				}
			}
			x.ranges = insertRange(x.ranges, q.first, q.end())
		}
		x.got = pieces{}
	}
	r, err := w.finish()
	if err != nil {
		w.abort()
		return err
	}
	if r != nil {
		b.runs = append(b.runs, rebuilt{r, w.out})
	}
	b.entries, b.from = 0, to
	return nil
}

// Finish puts what was made in the place of the damaged runs. When the journal did not have all that they had and is kept, and has
// no hole that explains it, it returns an error and leaves them as they were. What runs had that could not be loaded is not
// known: Check finds what is missing then.
func (b *Rebuild) Finish() error {
	if b.failed != nil {
		return b.failed
	}
	if len(b.old) == 0 {
		return nil
	}
	s := b.s
	last := b.ranges[len(b.ranges)-1]
	if b.from < last.From {
		if err := b.enter(last); err != nil {
			return err
		}
	}
	if err := b.fill(); err != nil {
		return err
	}
	if err := b.flush(last.To); err != nil {
		return err
	}
	s.work.Lock()
	defer s.work.Unlock()
	s.abortMerge()
	is := make([]bool, len(*s.runs.Load()))
	for _, r := range b.old {
		if r.gone.Load() {
			return nil // another has all that is kept of it
		}
		is[r.number] = true
	}
	byKey := map[Key][]extent{}
	for _, n := range b.runs {
		s.addRun(n.run)
		for _, x := range n.out {
			x.run = n.run.number
			byKey[x.key] = append(byKey[x.key], x.extent)
		}
	}
	for _, p := range s.all() {
		p.mu.Lock()
		p.extents = slices.DeleteFunc(slices.Clone(p.extents), func(e extent) bool { return int(e.run) < len(is) && is[e.run] })
		for _, e := range byKey[p.key] {
			s.placeLocked(p, e)
		}
		p.changedLocked()
		p.mu.Unlock()
	}
	for _, r := range b.old {
		s.removeRun(r)
	}
	s.planned.Store(false)
	return nil
}

// fill sees that with what was gathered runs will hold all that is kept, and makes entries of what is lost.
func (b *Rebuild) fill() error {
	s := b.s
	s.work.Lock()
	all := len(b.old) == len(s.order)
	s.work.Unlock()
	var errs []error
	for _, p := range s.sorted() {
		p.mu.RLock()
		first, flushed := p.first, p.flushed
		moved := p.moved.overlap(first, flushed)
		var list []extent
		var were []extent // of the damaged runs; none when they could not be loaded
		for _, e := range p.extents {
			if slices.Contains(b.old, (*s.runs.Load())[e.run]) {
				were = append(were, e)
			} else {
				list = append(list, e)
			}
		}
		p.mu.RUnlock()
		if first >= flushed {
			continue
		}
		w := b.part(p.key)
		if w.p != p {
			continue // dropped
		}
		for _, x := range w.ranges {
			list = insertRange(list, x.first, x.end())
		}
		for _, x := range slices.Concat(w.got.list, moved) {
			list = insertRange(list, x.first, x.end())
		}
		uncovered(list, first, flushed, func(from, to Index) {
			switch {
			case b.holes || wereLost(were, from, to):
				b.lost(p, from, to)
			case overlaps(were, from, to):
				errs = append(errs, fmt.Errorf("index: partition %v cannot be rebuilt: the journal does not hold [%d, %d)", p.key, from, to))
			case all && from > first && b.begin > b.ranges[0].From:
				// Before the begin of the journal there is nothing that is kept: it was lost.
				b.lost(p, from, to)
			}
		})
	}
	return errors.Join(errs...)
}

func overlaps(list []extent, from, to Index) bool {
	n := findExtent(list, from)
	return n < len(list) && list[n].first < to
}

// wereLost says whether the extents of lost messages have all of [from, to).
func wereLost(list []extent, from, to Index) bool {
	lost := slices.DeleteFunc(slices.Clone(list), func(e extent) bool { return !e.lost() })
	all := true
	uncovered(lost, from, to, func(Index, Index) { all = false })
	return all
}

func (b *Rebuild) lost(p *partition, from, to Index) {
	w := b.part(p.key)
	e := Entry{Position: b.from, Stored: b.s.storedBefore(p, from), Count: 1}
	entries := make([]Entry, to-from)
	for i := range entries {
		entries[i] = e
	}
	w.got.put(from, entries)
	b.entries += len(entries)
}

func (b *Rebuild) build(id RunID, n int) {
	l := &b.s.building
	l.Lock()
	defer l.Unlock()
	if l.runs[id] += n; l.runs[id] == 0 {
		delete(l.runs, id)
	}
}

// Abort gives up what was not finished. It is to be called after Finish too.
func (b *Rebuild) Abort() {
	for _, id := range b.built {
		b.build(id, -1)
	}
	b.built = nil
	b.failed = ErrClosed
	b.runs, b.parts = nil, nil
}
