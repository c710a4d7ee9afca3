package index

import (
	"cmp"
	"slices"
	"sort"
)

// Oldest returns the lowest position that a kept entry points to; false: there is none. Entries of lost messages point nowhere.
// Where a run cannot be read it may return a lower one.
func (s *Set) Oldest() (position uint64, ok bool) {
	position = positionNone
	for _, p := range s.all() {
		position = min(position, s.lowOf(p, position))
	}
	return position, position != positionNone
}

// Below calls each with the ranges of kept entries that point below a position, until it returns false: partitions in no order,
// the ranges of one in theirs, with about the bytes of the batches. Entries of lost messages point nowhere. Where a run
// cannot be read the ranges may be too large.
func (s *Set) Below(position uint64, each func(k Key, from, to Index, bytes int64) bool) {
	for _, p := range s.all() {
		if s.lowOf(p, position) >= position {
			continue
		}
		for _, r := range s.rangesBelow(p, position) {
			if !each(p.key, r.from, r.to, r.bytes) {
				return
			}
		}
	}
}

// lowOf returns the partition's lowest position. What is at least enough need not be exact.
func (s *Set) lowOf(p *partition, enough uint64) uint64 {
	p.mu.RLock()
	low, changes := p.low, p.changes
	p.mu.RUnlock()
	if low != positionUnknown {
		return low
	}
	low, exact := s.lowest(p)
	if exact {
		p.mu.Lock()
		if p.changes == changes && p.low == positionUnknown {
			p.low = low
		}
		p.mu.Unlock()
	}
	return low
}

// lowest finds the partition's lowest position by reading. Not exact: a run could not be read, and the true one may be higher.
// Entries that are appended meanwhile are higher than what it finds, if it finds any; if not, it is not exact.
func (s *Set) lowest(p *partition) (low uint64, exact bool) {
	low, exact = positionNone, true
	p.mu.RLock()
	flushed := p.flushed
	p.mu.RUnlock()
	for from := Index(0); ; {
		// The next extent that can have a lower one, or the tail.
		p.mu.RLock()
		from = max(from, p.first)
		var e extent
		var r *run
		runs := *s.runs.Load()
		for n := findExtent(p.extents, from); n < len(p.extents); n++ {
			if x := &p.extents[n]; !x.lost() && runs[x.run].From < low {
				e, r = *x, runs[x.run]
				break
			}
		}
		if r == nil {
			for i := max(p.first, p.flushed); i < p.end() && low == positionNone; {
				if over := p.moved.overlap(i, i+1); over != nil {
					i++
				} else if x := p.tail.at(int(i - p.flushed)); x.Size == 0 {
					i++
				} else {
					low = x.Position
				}
			}
			if p.moved != nil {
				for _, x := range p.moved.overlap(p.first, p.end()) {
					low = min(low, x.entries[0].Position)
				}
			}
			exact = exact && p.flushed == flushed && low != positionNone
			p.mu.RUnlock()
			return low, exact
		}
		// The first entry of the extent that was not moved is its lowest.
		i := max(from, e.first)
		for _, x := range p.moved.overlap(i, e.end()) {
			if x.first > i {
				break
			}
			i = x.end()
		}
		p.mu.RUnlock()
		if i >= e.end() {
			from = e.end()
			continue
		}
		var one [1]Entry
		got, err := s.readRun(r, p, e.at+uint32(i-e.first), i, i+1, one[:0])
		switch {
		case err != nil && r.gone.Load():
			from = i // another has it now
			continue
		case err != nil:
			low, exact = min(low, r.From), false
		default:
			low = min(low, got[0].Position)
		}
		from = e.end()
	}
}

type indexRange struct {
	from, to Index
	bytes    int64
}

// rangesBelow returns the ranges of p whose entries point below a position.
func (s *Set) rangesBelow(p *partition, position uint64) []indexRange {
	var found []indexRange
	add := func(from, to Index, bytes int64) {
		if n := len(found); n > 0 && found[n-1].to == from {
			found[n-1].to = to
			found[n-1].bytes += bytes
		} else if from < to {
			found = append(found, indexRange{from, to, bytes})
		}
	}
	for from := Index(0); ; {
		p.mu.RLock()
		from = max(from, p.first)
		var e extent
		var r *run
		runs := *s.runs.Load()
		for n := findExtent(p.extents, from); n < len(p.extents); n++ {
			if x := &p.extents[n]; !x.lost() && runs[x.run].From < position {
				e, r = *x, runs[x.run]
				break
			}
		}
		if r == nil {
			i := max(from, p.flushed)
			end := p.flushed + Index(p.tail.below(position))
			for ; i < end; i++ {
				if x := p.tail.at(int(i - p.flushed)); x.Size != 0 {
					add(i, i+1, x.share())
				}
			}
			var over []piece
			if p.moved != nil {
				over = p.moved.overlap(p.first, p.end())
			}
			p.mu.RUnlock()
			return moveRanges(found, over, position)
		}
		p.mu.RUnlock()
		from = max(from, e.first)
		to := e.end()
		if r.To > position {
			i, err := s.search(p, r, &e, from, to, func(x *Entry) bool { return x.Position >= position })
			if err != nil && r.gone.Load() {
				continue
			}
			if err == nil { // else as if all were below: nothing is given up that may be needed
				to = i
			}
		}
		if from < to {
			c := e.clip(from, to)
			add(from, to, int64(c.bytes)*bytesUnit)
		}
		from = e.end()
	}
}

// moveRanges takes out of ranges what was moved, and puts in what of that lies below a position nevertheless.
func moveRanges(ranges []indexRange, over []piece, position uint64) []indexRange {
	if len(over) == 0 {
		return ranges
	}
	for _, x := range over {
		from, to := x.first, x.end()
		var left []indexRange
		for _, r := range ranges {
			if r.to <= from || r.from >= to {
				left = append(left, r)
				continue
			}
			part := func(a, b Index) {
				if a < b {
					left = append(left, indexRange{a, b, r.bytes * int64(b-a) / int64(r.to-r.from)})
				}
			}
			part(r.from, min(r.to, from))
			part(max(r.from, to), r.to)
		}
		n := sort.Search(len(x.entries), func(i int) bool { return x.entries[i].Position >= position })
		if n > 0 {
			r := indexRange{from: from, to: from + Index(n)}
			for i := range n {
				r.bytes += x.entries[i].share()
			}
			left = append(left, r)
		}
		ranges = left
	}
	slices.SortFunc(ranges, func(a, b indexRange) int { return cmp.Compare(a.from, b.from) })
	return ranges
}
