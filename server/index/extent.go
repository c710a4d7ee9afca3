package index

import (
	"math"
	"slices"
	"sort"
)

const (
	// extentEntriesMax is where a longer extent is cut in two: what is reckoned by its share of an extent (bytes) is not far off,
	// and a search in one reads few entries.
	extentEntriesMax = 64 << 10
	// bytesUnit is the unit in which extents count bytes, so that 4 bytes are enough.
	bytesUnit = 64
)

// extent says that entries [first, first+count) of a partition lie in a run, one after the other from its entry at on. Positions
// in an extent never fall. A partition's extents are in order of index and do not overlap.
type extent struct {
	first Index
	last  int64  // Stored of the last entry; of a part that was cut off it may be too high
	count uint32 // at least 1
	at    uint32
	run   uint32 // number in Set.runs
	bytes uint32 // of its messages, in units; 0: the messages are lost
}

func (e *extent) end() Index { return e.first + Index(e.count) }
func (e *extent) lost() bool { return e.bytes == 0 }

// clip returns the part of e in [from, to), which it has some of.
func (e *extent) clip(from, to Index) extent {
	from, to = max(from, e.first), min(to, e.end())
	c := *e
	c.first, c.count, c.at = from, uint32(to-from), e.at+uint32(from-e.first)
	if e.bytes > 0 && c.count < e.count {
		c.bytes = max(1, uint32(uint64(e.bytes)*uint64(c.count)/uint64(e.count)))
	}
	return c
}

// coveredLocked returns extents that have all of p that is not in its tail: those of runs, and what was moved and is not flushed,
// which may be gone from where it was first. Only their index ranges count. p.mu is held.
func (p *partition) coveredLocked() []extent {
	if p.moved == nil {
		return p.extents
	}
	list := slices.Clone(p.extents)
	for _, x := range p.moved.overlap(p.first, p.flushed) {
		list = insertRange(list, x.first, x.end())
	}
	return list
}

// findExtent returns which is the first extent that ends beyond i.
func findExtent(list []extent, i Index) int {
	return sort.Search(len(list), func(n int) bool { return list[n].end() > i })
}

// insertExtent returns list with e in it. Where e and another overlap the one of the newer run stays.
func insertExtent(list []extent, e extent, newer func(a, b uint32) bool) []extent {
	if len(list) == 0 || list[len(list)-1].end() <= e.first {
		return append(list, e)
	}
	at := findExtent(list, e.first)
	out := append(make([]extent, 0, len(list)+2), list[:at]...)
	left := true // something of e is still to be put in
	for _, x := range list[at:] {
		switch {
		case !left || x.end() <= e.first:
			out = append(out, x)
		case x.first >= e.end():
			out = append(out, e, x)
			left = false
		case newer(x.run, e.run):
			if e.first < x.first {
				out = append(out, e.clip(e.first, x.first))
			}
			out = append(out, x)
			if left = x.end() < e.end(); left {
				e = e.clip(x.end(), e.end())
			}
		default:
			if x.first < e.first {
				out = append(out, x.clip(x.first, e.first))
			}
			if x.end() > e.end() {
				out = append(out, e, x.clip(e.end(), x.end()))
				left = false
			}
		}
	}
	if left {
		out = append(out, e)
	}
	return out
}

// uncovered calls each with the parts of [from, to) that no extent has.
func uncovered(list []extent, from, to Index, each func(from, to Index)) {
	for _, e := range list[findExtent(list, from):] {
		if e.first >= to {
			break
		}
		if e.first > from {
			each(from, e.first)
		}
		from = max(from, e.end())
	}
	if from < to {
		each(from, to)
	}
}

// insertRange returns list, of which only the index ranges count, with [from, to) in it.
func insertRange(list []extent, from, to Index) []extent {
	for from < to {
		n := min(to-from, math.MaxUint32)
		list = insertExtent(list, extent{first: from, count: uint32(n)}, func(uint32, uint32) bool { return false })
		from += n
	}
	return list
}

// pieces are entries that override others or stand alone: rows in order of index that do not overlap. What a row holds never
// changes, so a part of it may be read without a lock.
type pieces struct {
	list []piece
	n    int // entries
}

type piece struct {
	first   Index
	entries []Entry // positions never fall
}

func (p *piece) end() Index { return p.first + Index(len(p.entries)) }

// find returns which is the first piece that ends beyond i.
func (p *pieces) find(i Index) int {
	return sort.Search(len(p.list), func(n int) bool { return p.list[n].end() > i })
}

// put puts entries in, over whatever is there. They are not kept.
func (p *pieces) put(first Index, entries []Entry) {
	if len(entries) == 0 {
		return
	}
	if n := len(p.list); n == 0 || p.list[n-1].end() <= first {
		p.n += len(entries)
		if n > 0 {
			l := &p.list[n-1]
			if l.end() == first && l.entries[len(l.entries)-1].Position <= entries[0].Position {
				l.entries = append(l.entries, entries...)
				return
			}
		}
		p.list = append(p.list, piece{first, append([]Entry(nil), entries...)})
		return
	}
	end := first + Index(len(entries))
	from := p.find(first)
	to := from
	var with []piece
	add := func(q piece) { with = append(with, q); p.n += len(q.entries) }
	if x := p.list[from]; x.first < first {
		add(piece{x.first, x.entries[: first-x.first : first-x.first]})
	}
	add(piece{first, append([]Entry(nil), entries...)})
	for ; to < len(p.list) && p.list[to].first < end; to++ {
		x := p.list[to]
		p.n -= len(x.entries)
		if x.end() > end {
			add(piece{end, x.entries[end-x.first:]})
		}
	}
	p.list = append(p.list[:from:from], append(with, p.list[to:]...)...)
}

// below returns the parts that lie below a position. They stay.
func (p *pieces) below(position uint64) []piece {
	var found []piece
	for _, x := range p.list {
		n := sort.Search(len(x.entries), func(i int) bool { return x.entries[i].Position >= position })
		if n > 0 {
			found = append(found, piece{x.first, x.entries[:n:n]})
		}
	}
	return found
}

// drop takes out what lies below a position.
func (p *pieces) drop(position uint64) {
	var kept []piece
	p.n = 0
	for _, x := range p.list {
		n := sort.Search(len(x.entries), func(i int) bool { return x.entries[i].Position >= position })
		if n < len(x.entries) {
			kept = append(kept, piece{x.first + Index(n), x.entries[n:]})
			p.n += len(x.entries) - n
		}
	}
	p.list = kept
}

// overlap returns the parts in [from, to).
func (p *pieces) overlap(from, to Index) []piece {
	if p == nil || len(p.list) == 0 || from >= to {
		return nil
	}
	var found []piece
	for _, x := range p.list[p.find(from):] {
		if x.first >= to {
			break
		}
		b, e := max(from, x.first), min(to, x.end())
		found = append(found, piece{b, x.entries[b-x.first : e-x.first]})
	}
	return found
}
