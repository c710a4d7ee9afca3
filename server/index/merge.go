package index

import (
	"fmt"
	"slices"
)

const (
	// mergeRuns is how many runs of a size class are made one.
	mergeRuns = 8
	// extentEntries is from how many entries on, on average, the extents of runs are long enough: merging them would write all of
	// them again for a few extents less. So the index of a few busy partitions is written once, and that of many light ones as
	// often as it has size classes.
	extentEntries = 4096
	// runsMax is how many runs are too many files, however long their extents are.
	runsMax = 512
)

// merging is a merge under way: the entries of neighbours that are still kept are written into one new run, partition by
// partition, and then the new one takes their place.
type merging struct {
	inputs []*run
	in     []bool // by number
	w      *runWriter
	parts  []*partition // what is still to be written
	from   Index        // of parts[0]
}

// Merge makes fewer runs of many, in steps: each copies about so many bytes of entries, and holds off Flush and Snapshot. It says
// whether there is more to do now. A *DamageError means that a run has to be made again before it can be merged; after
// any error the merge begins anew.
func (s *Set) Merge(bytes int64) (more bool, err error) {
	s.work.Lock()
	defer s.work.Unlock()
	if s.merging == nil {
		if s.planned.Load() {
			return false, nil
		}
		s.planned.Store(true) // before it is made: what goes meanwhile lets another be made
		inputs := s.plan()
		if inputs == nil {
			return false, nil
		}
		m := &merging{inputs: inputs, w: s.writer(RunID{inputs[0].From, inputs[len(inputs)-1].To}), parts: s.sorted()}
		m.in = make([]bool, len(*s.runs.Load()))
		for _, r := range inputs {
			m.in[r.number] = true
		}
		s.merging = m
	}
	done, err := s.mergeStep(s.merging, bytes)
	if err == nil && done {
		err = s.mergeDone(s.merging)
	}
	if err != nil {
		s.abortMerge()
		s.planned.Store(true) // until the next Flush or Rebuild
		return false, err
	}
	return true, nil
}

func (m *merging) has(e *extent) bool { return int(e.run) < len(m.in) && m.in[e.run] }

func (s *Set) abortMerge() {
	if s.merging != nil {
		s.merging.w.abort()
		s.merging = nil
	}
}

// plan takes out of the set the runs of which nothing is kept, and chooses neighbours to merge; nil: none.
func (s *Set) plan() []*run {
	used := make([]int64, len(*s.runs.Load()))
	extents := make([]int64, len(used))
	for _, p := range s.all() {
		p.mu.RLock()
		for i := range p.extents {
			used[p.extents[i].run] += int64(p.extents[i].count)
			extents[p.extents[i].run]++
		}
		p.mu.RUnlock()
	}
	var list []*run
	for _, r := range slices.Clone(s.order) {
		switch {
		case r.damaged:
			return nil
		case used[r.number] == 0:
			s.removeRun(r)
		default:
			list = append(list, r)
		}
	}
	size := func(r *run) int64 { return used[r.number] * EntryBytes }
	// Half empty ones.
	for i := 1; i < len(list); i++ {
		if n := size(list[i-1]) + size(list[i]); n <= s.opt.RunBytesMax && n*2 <= (list[i-1].entries+list[i].entries)*EntryBytes {
			return list[i-1 : i+1]
		}
	}
	// A class is 8 times as large as the one below it. Runs below the class that lie between are taken along.
	class := func(r *run) int {
		n := 0
		for limit := s.opt.RunBytesMax / (mergeRuns * mergeRuns); n < 3 && size(r) >= limit; limit *= mergeRuns {
			n++
		}
		return n
	}
	for c := range 3 {
		begin, count := 0, 0
		for i, r := range list {
			switch got := class(r); {
			case got > c:
				begin, count = i+1, 0
			case got == c:
				count++
			}
			if count < mergeRuns {
				continue
			}
			inputs := list[begin : i+1]
			var entries, pieces int64
			for _, r := range inputs {
				entries, pieces = entries+used[r.number], pieces+extents[r.number]
			}
			if entries < pieces*extentEntries || len(list) > runsMax {
				return inputs
			}
			// The eight that begin with the next one.
			if class(inputs[0]) == c {
				count--
			}
			begin++
		}
	}
	return nil
}

// mergeStep copies about so many bytes; true: all is copied.
func (s *Set) mergeStep(m *merging, bytes int64) (bool, error) {
	var buf []Entry
	for bytes > 0 {
		if len(m.parts) == 0 {
			return true, nil
		}
		p := m.parts[0]
		p.mu.RLock()
		m.from = max(m.from, p.first)
		var e extent
		for n := findExtent(p.extents, m.from); n < len(p.extents); n++ {
			if m.has(&p.extents[n]) {
				e = p.extents[n]
				break
			}
		}
		p.mu.RUnlock()
		if e.count == 0 {
			m.parts, m.from = m.parts[1:], 0
			bytes -= EntryBytes
			continue
		}
		from := max(m.from, e.first)
		to := min(e.end(), from+4096)
		r := (*s.runs.Load())[e.run]
		var err error
		if buf, err = s.readRun(r, p, e.at+uint32(from-e.first), from, to, buf[:0]); err != nil {
			return false, err
		}
		for i := range buf {
			if err := m.w.add(p.key, p.seed, from+Index(i), &buf[i]); err != nil {
				return false, err
			}
		}
		m.from = to
		bytes -= int64(len(buf)) * EntryBytes
	}
	return false, nil
}

// mergeDone puts the new run in the place of the others.
func (s *Set) mergeDone(m *merging) error {
	r, err := m.w.finish()
	if err != nil {
		return err
	}
	s.merging = nil
	if r != nil {
		s.addRun(r)
		s.counts.merges.Add(1)
		s.counts.mergedBytes.Add(r.size)
	}
	s.replace(m.inputs, m.w.out, r)
	s.planned.Store(false)
	return nil
}

// replace takes runs out of the set, whose kept entries are in r.
func (s *Set) replace(old []*run, out []placed, r *run) {
	is := make([]bool, len(*s.runs.Load()))
	for _, r := range old {
		is[r.number] = true
	}
	for _, p := range s.sorted() {
		n := 0
		for n < len(out) && compareKeys(out[n].key, p.key) < 0 {
			n++ // of a partition that was dropped meanwhile
		}
		out = out[n:]
		for n = 0; n < len(out) && out[n].key == p.key; {
			n++
		}
		p.mu.Lock()
		before := held(p.extents, p.first)
		kept := make([]extent, 0, len(p.extents))
		for i := range p.extents {
			if !is[p.extents[i].run] {
				kept = append(kept, p.extents[i])
			}
		}
		if len(kept) < len(p.extents) {
			p.extents = kept
			for _, x := range out[:n] {
				x.run = r.number
				s.placeLocked(p, x.extent)
			}
			if after := held(p.extents, p.first); after != before {
				panic(fmt.Sprintf("index: partition %v has %d entries in runs after a merge, %d before", p.key, after, before))
			}
		}
		p.mu.Unlock()
		out = out[n:]
	}
	for _, r := range old {
		s.removeRun(r)
	}
}

// held is how many entries from first on extents have.
func held(list []extent, first Index) int64 {
	var n int64
	for i := findExtent(list, first); i < len(list); i++ {
		n += int64(list[i].end() - max(list[i].first, first))
	}
	return n
}
