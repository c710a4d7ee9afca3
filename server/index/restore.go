package index

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Reset forgets everything, before a checkpoint is restored, and says what that one named. No file is touched.
func (s *Set) Reset(covered uint64, runs []RunID) {
	s.work.Lock()
	defer s.work.Unlock()
	s.abortMerge()
	for _, r := range slices.Clone(s.order) {
		s.removeRun(r)
	}
	s.mu.Lock()
	s.mu.parts = map[Key]*partition{}
	s.mu.list, s.mu.dead = nil, 0
	s.mu.Unlock()
	s.tails.Store(0)
	s.moved.Store(0)
	s.covered = covered
	s.planned.Store(false)
	for _, id := range runs {
		s.addRun(&run{RunID: id})
	}
}

// Restore puts a partition as it was in a checkpoint, after Reset. st is not kept.
func (s *Set) Restore(st *State) {
	p := s.make(st.Key)
	p.mu.Lock()
	defer p.mu.Unlock()
	s.tails.Add(-int64(p.tail.n))
	p.tail.cut(0, &s.free)
	p.first, p.flushed, p.last, p.low = st.First, st.Flushed, st.Last, st.Low
	s.restoreTail(p, st.Tail)
}

// RestoreMore appends entries to the tail of a partition that was restored: a long tail comes in several parts.
func (s *Set) RestoreMore(k Key, entries []Entry) {
	p := s.make(k)
	p.mu.Lock()
	defer p.mu.Unlock()
	s.restoreTail(p, entries)
}

func (s *Set) restoreTail(p *partition, entries []Entry) {
	for i := range entries {
		p.tail.push(&entries[i], &s.free)
	}
	s.tails.Add(int64(len(entries)))
	if p.first == p.end() && p.low == positionUnknown {
		p.low = positionNone
	} else if p.low == positionNone && p.first < p.end() {
		p.low = positionUnknown
	}
}

// Load reads the directories of the runs that Reset was given. It comes after all partitions were restored: what belongs to none
// of them is passed over. It returns those that are damaged, which Rebuild makes again. Other errors: ErrVersion.
func (s *Set) Load() ([]*DamageError, error) {
	s.work.Lock()
	defer s.work.Unlock()
	parts := s.sorted()
	var found []*DamageError
	for _, r := range slices.Clone(s.order) {
		at := 0
		got, err := readRun(s.opt.FS, s.files.path(r.name()), s.opt.StoreID, r.RunID, func(x placed) {
			for at < len(parts) && compareKeys(parts[at].key, x.key) < 0 {
				at++
			}
			if at == len(parts) || parts[at].key != x.key {
				return
			}
			x.run = r.number
			p := parts[at]
			p.mu.Lock()
			s.placeLocked(p, x.extent)
			p.mu.Unlock()
		})
		var d *DamageError
		switch {
		case errors.As(err, &d):
			r.damaged = true
			found = append(found, d)
		case err != nil:
			return found, err
		default:
			r.entries, r.size = got.entries, got.size
		}
	}
	return found, nil
}

// A Hole is what Check found: runs do not hold [From, To) of a partition, which they should.
type Hole struct {
	Key      Key
	From, To Index
}

func (h Hole) String() string {
	return fmt.Sprintf("index: no run holds [%d, %d) of partition %v", h.From, h.To, h.Key)
}

// Check sees that runs hold all that is kept and not in a tail, after Load and the Rebuild of what was damaged. Where the first
// ones kept are missing and the journal begins above 0, they were dropped and trimmed after the checkpoint that was
// restored, and a run was made again without them: first is set behind them again. These are trimmed. What else is missing a
// Rebuild of all runs may bring.
func (s *Set) Check(begin uint64) (trimmed, missing []Hole) {
	for _, p := range s.all() {
		p.mu.Lock()
		uncovered(p.coveredLocked(), p.first, p.flushed, func(from, to Index) {
			if from == p.first && begin > 0 {
				p.first = to
				p.changedLocked()
				trimmed = append(trimmed, Hole{p.key, from, to})
				return
			}
			missing = append(missing, Hole{p.key, from, to})
		})
		p.mu.Unlock()
	}
	return trimmed, missing
}

func isRunFile(name string) bool {
	name, _ = strings.CutSuffix(name, temporary)
	_, ok := parseRunName(name)
	return ok
}
