package offset

import (
	"fmt"
	"sort"
	"strings"

	"github.com/jmqio/jmq/server/index"
)

// Range is the indexes [From, To).
type Range struct{ From, To index.Index }

// Len returns how many indexes are in r; none if To <= From.
func (r Range) Len() uint64 {
	if r.To <= r.From {
		return 0
	}
	return uint64(r.To - r.From)
}

// Contains reports whether all of o is in r.
func (r Range) Contains(o Range) bool { return r.From <= o.From && o.To <= r.To }

func (r Range) String() string { return fmt.Sprintf("[%d,%d)", r.From, r.To) }

// Ranges is a set of indexes, held as ranges.
//
//	s[i].From < s[i].To < s[i+1].From    (ascending, never empty, never touching)
//
// So equal sets are equal slices. A lookup is a binary search, a change moves the tail of the slice. The zero value is
// the empty set.
type Ranges []Range

// first returns the position of the first range that ends at or after i: the one that holds i, touches i from below, or
// lies above it.
func (s Ranges) first(i index.Index) int {
	return sort.Search(len(s), func(k int) bool { return s[k].To >= i })
}

// Add puts r into the set and returns how many indexes were not there before.
func (s *Ranges) Add(r Range) uint64 {
	if r.Len() == 0 {
		return 0
	}
	// The usual case: acks come in order.
	if n := len(*s); n == 0 || (*s)[n-1].To < r.From {
		*s = append(*s, r)
		return r.Len()
	}
	lo := s.first(r.From)
	hi, merged, had := lo, r, uint64(0)
	for ; hi < len(*s) && (*s)[hi].From <= r.To; hi++ {
		o := (*s)[hi]
		had += overlap(o, r)
		merged.From = min(merged.From, o.From)
		merged.To = max(merged.To, o.To)
	}
	if lo == hi {
		*s = append(*s, Range{})
		copy((*s)[lo+1:], (*s)[lo:])
		(*s)[lo] = r
		return r.Len()
	}
	(*s)[hi-1] = merged
	s.cut(lo, hi-1)
	return r.Len() - had
}

// Remove takes r out of the set and returns how many indexes that were.
func (s *Ranges) Remove(r Range) uint64 {
	if r.Len() == 0 {
		return 0
	}
	lo := sort.Search(len(*s), func(k int) bool { return (*s)[k].To > r.From })
	hi, had := lo, uint64(0)
	for ; hi < len(*s) && (*s)[hi].From < r.To; hi++ {
		had += overlap((*s)[hi], r)
	}
	if lo == hi {
		return 0
	}
	left := Range{(*s)[lo].From, r.From}
	right := Range{r.To, (*s)[hi-1].To}
	switch {
	case left.Len() > 0 && right.Len() > 0:
		if hi-lo == 1 {
			*s = append(*s, Range{})
			copy((*s)[hi+1:], (*s)[hi:])
			hi++
		}
		(*s)[lo], (*s)[lo+1] = left, right
		lo += 2
	case left.Len() > 0:
		(*s)[lo] = left
		lo++
	case right.Len() > 0:
		(*s)[lo] = right
		lo++
	}
	s.cut(lo, hi)
	return had
}

// moveMax bounds what cut moves: a longer set gives the room up instead, which append makes anew when it is needed.
const moveMax = 64

// cut takes ranges [lo, hi) of the list out. The first of 10^5 may go 10^5 times without moving the others.
func (s *Ranges) cut(lo, hi int) {
	if lo == hi {
		return
	}
	if lo == 0 && len(*s)-hi > moveMax {
		*s = (*s)[hi:]
		return
	}
	*s = append((*s)[:lo], (*s)[hi:]...)
}

// Count returns how many indexes of r are in the set.
func (s Ranges) Count(r Range) uint64 {
	n := uint64(0)
	for k := s.first(r.From); k < len(s) && s[k].From < r.To; k++ {
		n += overlap(s[k], r)
	}
	return n
}

// Contains reports whether i is in the set.
func (s Ranges) Contains(i index.Index) bool {
	k := sort.Search(len(s), func(k int) bool { return s[k].To > i })
	return k < len(s) && s[k].From <= i
}

// Gap returns the first run of r that is not in the set; an empty range at r.To when all of r is.
func (s Ranges) Gap(r Range) Range {
	from := r.From
	k := sort.Search(len(s), func(k int) bool { return s[k].To > from })
	if k < len(s) && s[k].From <= from {
		from = s[k].To // ranges never touch, so what follows is a gap
		k++
	}
	if from >= r.To {
		return Range{r.To, r.To}
	}
	if k < len(s) && s[k].From < r.To {
		return Range{from, s[k].From}
	}
	return Range{from, r.To}
}

// Overlap returns the first run of r that is in the set; an empty range when none of r is.
func (s Ranges) Overlap(r Range) Range {
	k := sort.Search(len(s), func(k int) bool { return s[k].To > r.From })
	if k == len(s) || s[k].From >= r.To {
		return Range{r.To, r.To}
	}
	return Range{max(s[k].From, r.From), min(s[k].To, r.To)}
}

// Len returns how many indexes are in the set.
func (s Ranges) Len() uint64 {
	n := uint64(0)
	for _, r := range s {
		n += r.Len()
	}
	return n
}

func (s Ranges) String() string {
	if len(s) == 0 {
		return "none"
	}
	b := strings.Builder{}
	for i, r := range s {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(r.String())
	}
	return b.String()
}

// check returns an error when s is not as its invariant says, or does not lie above the ack offset.
func (s Ranges) check(ack index.Index) error {
	for i, r := range s {
		if r.From <= ack || r.To <= r.From {
			return fmt.Errorf("range %d of %d is %v, the one before ends at %d", i, len(s), r, ack)
		}
		ack = r.To
	}
	return nil
}

func overlap(a, b Range) uint64 {
	return Range{max(a.From, b.From), min(a.To, b.To)}.Len()
}

// Progress is how far a group is in one partition: every index below Ack has ended, and those in Consumed.
//
//	Ack < Consumed[0].From    (what touches Ack is absorbed by it)
//
// So index Ack has not ended. Progress grows only; a reset puts a new one in its place. It stays small since few messages are
// in flight, but nothing relies on that.
//
// Expired counts, of messages that have not ended, how many of their leases ran out.
type Progress struct {
	Ack      index.Index
	Consumed Ranges
	Expired  Expiries
}

// Add notes that r ended and returns how many indexes had not before.
func (p *Progress) Add(r Range) uint64 {
	r.From = max(r.From, p.Ack)
	if r.Len() == 0 {
		return 0
	}
	p.Expired.Remove(r)
	if r.From > p.Ack {
		return p.Consumed.Add(r)
	}
	had := p.Consumed.Count(r)
	p.Ack = r.To
	// Drop what the new offset passed or touches.
	k := 0
	for ; k < len(p.Consumed) && p.Consumed[k].From <= p.Ack; k++ {
		p.Ack = max(p.Ack, p.Consumed[k].To)
	}
	if k > 0 {
		p.Consumed.cut(0, k)
	}
	return r.Len() - had
}

// Expire notes that count leases of the messages of r ran out, those left aside that have ended.
func (p *Progress) Expire(r Range, count uint32) {
	for gap := p.GapIn(r); gap.Len() > 0; gap = p.GapIn(Range{gap.To, r.To}) {
		p.Expired.Raise(gap, count)
	}
}

// GapIn returns the first run of r that has not ended; an empty range at r.To when all of r has.
func (p *Progress) GapIn(r Range) Range {
	if r.From = max(r.From, p.Ack); r.From >= r.To {
		return Range{r.To, r.To}
	}
	return p.Consumed.Gap(r)
}

// Count returns how many indexes of r have ended.
func (p *Progress) Count(r Range) uint64 {
	return overlap(Range{0, p.Ack}, r) + p.Consumed.Count(r)
}

// Clone returns a copy that shares nothing with p.
func (p *Progress) Clone() Progress {
	return Progress{Ack: p.Ack, Consumed: append(Ranges(nil), p.Consumed...), Expired: append(Expiries(nil), p.Expired...)}
}

func (p Progress) String() string {
	s := fmt.Sprintf("offset %d consumed %v", p.Ack, p.Consumed)
	if len(p.Expired) > 0 {
		s += fmt.Sprintf(" expired %v", p.Expired)
	}
	return s
}
