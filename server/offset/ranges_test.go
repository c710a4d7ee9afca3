package offset

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/jmqio/jmq/server/index"
)

const space = 64 // indexes that the models know

// model is a set of indexes written down one by one.
type model [space]bool

func (m *model) set(r Range, v bool) (changed uint64) {
	for i := r.From; i < r.To; i++ {
		if m[i] != v {
			changed++
		}
		m[i] = v
	}
	return changed
}

func (m *model) count(r Range) (n uint64) {
	for i := r.From; i < r.To; i++ {
		if m[i] {
			n++
		}
	}
	return n
}

// gap is the first run of r that is not in m.
func (m *model) gap(r Range) Range {
	for r.From < r.To && m[r.From] {
		r.From++
	}
	for i := r.From; i < r.To; i++ {
		if m[i] {
			r.To = i
		}
	}
	return r
}

func (m *model) ranges() Ranges {
	var out Ranges
	for i := index.Index(0); i < space; i++ {
		if m[i] {
			out.addSlow(i)
		}
	}
	return out
}

func (s *Ranges) addSlow(i index.Index) {
	if n := len(*s); n > 0 && (*s)[n-1].To == i {
		(*s)[n-1].To++
		return
	}
	*s = append(*s, Range{i, i + 1})
}

func drawRange(t *rapid.T) Range {
	a := index.Index(rapid.IntRange(0, space-1).Draw(t, "from"))
	return Range{a, a + index.Index(rapid.IntRange(0, min(12, int(space-a))).Draw(t, "length"))}
}

// TestRanges does random operations on a set of ranges and on one of single indexes, and compares everything after each.
func TestRanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s Ranges
		var m model
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				r := drawRange(t)
				if got, want := s.Add(r), m.set(r, true); got != want {
					t.Fatalf("Add(%v) added %d, want %d", r, got, want)
				}
			},
			"remove": func(t *rapid.T) {
				r := drawRange(t)
				if got, want := s.Remove(r), m.set(r, false); got != want {
					t.Fatalf("Remove(%v) removed %d, want %d", r, got, want)
				}
			},
			"": func(t *rapid.T) {
				if want := m.ranges(); !slices.Equal(s, want) {
					t.Fatalf("set is %v, want %v", s, want)
				}
				if got, want := s.Len(), m.count(Range{0, space}); got != want {
					t.Fatalf("%v has length %d, want %d", s, got, want)
				}
				r := drawRange(t)
				if got, want := s.Count(r), m.count(r); got != want {
					t.Fatalf("%v counts %d in %v, want %d", s, got, r, want)
				}
				if got, want := s.Gap(r), m.gap(r); got != want && got.Len()+want.Len() > 0 {
					t.Fatalf("%v has gap %v in %v, want %v", s, got, r, want)
				}
				want := Range{r.To, r.To}
				for i := r.From; i < r.To; i++ {
					if m[i] && want.From == r.To {
						want.From = i
					} else if !m[i] && want.From < r.To {
						want.To = i
						break
					}
				}
				if got := s.Overlap(r); got != want && got.Len()+want.Len() > 0 {
					t.Fatalf("%v has %v of %v, want %v", s, got, r, want)
				}
				if r.From < space && s.Contains(r.From) != m[r.From] {
					t.Fatalf("%v contains %d: %v, want %v", s, r.From, s.Contains(r.From), m[r.From])
				}
			},
		})
	})
}

// TestProgress does the same for the ack offset and the ranges above it: nothing is ever taken back.
func TestProgress(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p Progress
		var m model
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				r := drawRange(t)
				before := p.Ack
				if got, want := p.Add(r), m.set(r, true); got != want {
					t.Fatalf("Add(%v) added %d, want %d", r, got, want)
				}
				if p.Ack < before {
					t.Fatalf("the ack offset moved back from %d to %d", before, p.Ack)
				}
			},
			"": func(t *rapid.T) {
				ack := index.Index(0)
				for ack < space && m[ack] {
					ack++
				}
				want := m
				want.set(Range{0, ack}, false)
				if p.Ack != ack || !slices.Equal(p.Consumed, want.ranges()) {
					t.Fatalf("%v, want offset %d consumed %v", p, ack, want.ranges())
				}
				if err := p.Consumed.check(p.Ack); err != nil {
					t.Fatalf("%v: %v", p, err)
				}
				r := drawRange(t)
				if got, want := p.Count(r), m.count(r); got != want {
					t.Fatalf("%v counts %d in %v, want %d", p, got, r, want)
				}
				if got, want := p.GapIn(r), m.gap(r); got != want && got.Len()+want.Len() > 0 {
					t.Fatalf("%v has gap %v in %v, want %v", p, got, r, want)
				}
				c := p.Clone()
				if len(c.Consumed) > 0 && &c.Consumed[0] == &p.Consumed[0] || !reflect.DeepEqual(c.Ack, p.Ack) || !slices.Equal(c.Consumed, p.Consumed) {
					t.Fatalf("clone %v of %v", c, p)
				}
			},
		})
	})
}

// BenchmarkProgress acks the messages of one lease in the worst order: every second one first.
func BenchmarkProgress(b *testing.B) {
	for _, n := range []int{10, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			p := Progress{}
			for b.Loop() {
				base := p.Ack
				for i := n - 1; i >= 0; i -= 2 {
					p.Add(Range{base + index.Index(i), base + index.Index(i) + 1})
				}
				p.Add(Range{base, base + index.Index(n)})
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*(n/2+1)), "ns/add")
		})
	}
}

// TestExpiries raises and forgets counts of random ranges and compares with a count for each message.
func TestExpiries(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p Progress
		var count [space]uint32
		var ended [space]bool
		t.Repeat(map[string]func(*rapid.T){
			"expire": func(t *rapid.T) {
				r, n := drawRange(t), uint32(rapid.IntRange(0, 3).Draw(t, "count"))
				p.Expire(r, n)
				for i := r.From; i < r.To; i++ {
					if !ended[i] {
						count[i] = max(count[i], n)
					}
				}
			},
			"end": func(t *rapid.T) {
				r := drawRange(t)
				p.Add(r)
				for i := r.From; i < r.To; i++ {
					ended[i], count[i] = true, 0
				}
			},
			"": func(t *rapid.T) {
				if err := p.Expired.check(&p); err != nil {
					t.Fatal(err)
				}
				messages, most := uint64(0), uint32(0)
				for i := range index.Index(space) {
					n, to := p.Expired.At(i)
					if n != count[i] || to <= i {
						t.Fatalf("%v: %d at %d up to %d, want %d", p, n, i, to, count[i])
					}
					for k := i; k < min(to, space); k++ {
						if count[k] != n {
							t.Fatalf("%v: %d at %d up to %d, but %d at %d", p, n, i, to, count[k], k)
						}
					}
					if n > 0 {
						messages++
					}
					most = max(most, n)
				}
				if n, m := p.Expired.Messages(); n != messages || m != most {
					t.Fatalf("%v: %d messages and at most %d, want %d and %d", p, n, m, messages, most)
				}
			},
		})
	})
}

// TestExpiriesBound counts more ranges than are kept: the oldest messages are, in whatever order they come.
func TestExpiriesBound(t *testing.T) {
	for name, at := range map[string]func(i int) int{"up": func(i int) int { return i }, "down": func(i int) int { return 2*ExpiriesMax - 1 - i }} {
		var p Progress
		for i := range 2 * ExpiriesMax {
			from := index.Index(3 * at(i))
			p.Expire(Range{from, from + 1}, 1)
		}
		if len(p.Expired) != ExpiriesMax || p.Expired[0].From != 0 || p.Expired[ExpiriesMax-1].From != 3*(ExpiriesMax-1) {
			t.Errorf("%s: %d ranges are kept, from %v to %v", name, len(p.Expired), p.Expired[0], p.Expired[len(p.Expired)-1])
		}
	}
}
