package offset

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/jmqio/jmq/server/index"
)

// Expiry says that a lease ran out: its messages were with a member that neither acked nor released them.
type Expiry struct {
	Group      GroupID
	Topic      Topic
	Partition  uint16
	Generation uint32
	Count      uint32 // so many leases of these messages ran out by now, from 1
	Ranges     Ranges // not empty
}

// ExpiriesMax bounds the ranges kept in each partition. Beyond it those of the youngest messages are forgotten: they are given as
// if their leases had not run out.
const ExpiriesMax = 1000

// Expired is a range of messages of which Count leases ran out.
type Expired struct {
	Range
	Count uint32
}

// Expiries is of which messages leases ran out, and how many.
//
//	0 < s[i].Count, s[i].From < s[i].To <= s[i+1].From, and where they touch their counts differ
//	len(s) <= ExpiriesMax
type Expiries []Expired

// after returns the place of the first range that ends after i.
func (s Expiries) after(i index.Index) int {
	return sort.Search(len(s), func(k int) bool { return s[k].To > i })
}

// At returns how many leases of message i ran out, and up to where the same holds: at most to the end of all.
func (s Expiries) At(i index.Index) (count uint32, to index.Index) {
	k := s.after(i)
	switch {
	case k == len(s):
		return 0, ^index.Index(0)
	case i < s[k].From:
		return 0, s[k].From
	}
	return s[k].Count, s[k].To
}

// Raise notes that at least count leases of the messages of r ran out.
func (s *Expiries) Raise(r Range, count uint32) {
	if r.Len() == 0 || count == 0 {
		return
	}
	lo := s.after(r.From)
	var parts []Expired
	at, hi := r.From, lo
	for ; hi < len(*s) && (*s)[hi].From < r.To; hi++ {
		e := (*s)[hi]
		parts = append(parts,
			Expired{Range{e.From, min(at, e.To)}, e.Count},                        // before r
			Expired{Range{at, e.From}, count},                                     // not known yet
			Expired{Range{max(at, e.From), min(e.To, r.To)}, max(e.Count, count)}, // known
			Expired{Range{max(r.To, e.From), e.To}, e.Count})                      // behind r
		at = max(at, min(e.To, r.To))
	}
	s.replace(lo, hi, append(parts, Expired{Range{at, r.To}, count}))
}

// Remove forgets the messages of r.
func (s *Expiries) Remove(r Range) {
	if len(*s) == 0 || r.Len() == 0 {
		return
	}
	lo := s.after(r.From)
	hi := lo
	for hi < len(*s) && (*s)[hi].From < r.To {
		hi++
	}
	if lo == hi {
		return
	}
	first, last := (*s)[lo], (*s)[hi-1]
	s.replace(lo, hi, []Expired{{Range{first.From, r.From}, first.Count}, {Range{r.To, last.To}, last.Count}})
}

// replace puts parts, some of which may be empty, in the place of ranges [lo, hi).
func (s *Expiries) replace(lo, hi int, parts []Expired) {
	// The neighbours may be joined with what is new.
	if lo > 0 {
		lo--
		parts = slices.Insert(parts, 0, (*s)[lo])
	}
	if hi < len(*s) {
		parts = append(parts, (*s)[hi])
		hi++
	}
	kept := parts[:0]
	for _, e := range parts {
		if n := len(kept); n > 0 && kept[n-1].To == e.From && kept[n-1].Count == e.Count && e.Len() > 0 {
			kept[n-1].To = e.To
		} else if e.Len() > 0 {
			kept = append(kept, e)
		}
	}
	*s = slices.Replace(*s, lo, hi, kept...)
	if len(*s) > ExpiriesMax {
		*s = (*s)[:ExpiriesMax]
	}
}

// Messages returns how many messages are in s, and the highest of their counts.
func (s Expiries) Messages() (n uint64, most uint32) {
	for _, e := range s {
		n += e.Len()
		most = max(most, e.Count)
	}
	return n, most
}

func (s Expiries) String() string {
	if len(s) == 0 {
		return "none"
	}
	var all []string
	for _, e := range s {
		all = append(all, fmt.Sprintf("%v*%d", e.Range, e.Count))
	}
	return strings.Join(all, " ")
}

// check returns an error when s is not as its invariant says, or holds what p says has ended.
func (s Expiries) check(p *Progress) error {
	if len(s) > ExpiriesMax {
		return fmt.Errorf("%d ranges, %d are kept", len(s), ExpiriesMax)
	}
	last := Expired{Range: Range{To: p.Ack}}
	for _, e := range s {
		if e.Count == 0 || e.Len() == 0 || e.From < last.To || e.From == last.To && e.Count == last.Count || p.Count(e.Range) > 0 {
			return fmt.Errorf("range %v*%d after %v*%d, with %v", e.Range, e.Count, last.Range, last.Count, *p)
		}
		last = e
	}
	return nil
}

const expiryVersion = 1

// AppendExpiries appends the payload of a KindLeaseExpiry record to b.
func AppendExpiries(b []byte, expiries []Expiry) []byte {
	b = append(b, expiryVersion)
	b = binary.AppendUvarint(b, uint64(len(expiries)))
	for i := range expiries {
		e := &expiries[i]
		b = binary.AppendUvarint(b, uint64(e.Group))
		b = binary.AppendUvarint(b, e.Topic.ID)
		b = binary.AppendUvarint(b, uint64(e.Topic.Incarnation))
		b = binary.AppendUvarint(b, uint64(e.Partition))
		b = binary.AppendUvarint(b, uint64(e.Generation))
		b = binary.AppendUvarint(b, uint64(e.Count))
		b = appendRanges(b, 0, e.Ranges)
	}
	return b
}

// DecodeExpiries reads the payload of a KindLeaseExpiry record.
func DecodeExpiries(payload []byte) ([]Expiry, error) {
	r := reader{b: payload}
	r.version("lease expiry record", expiryVersion)
	n := r.count("expiries", 9)
	var all []Expiry
	for range n {
		e := Expiry{Group: GroupID(r.uint32("group"))}
		e.Topic = Topic{ID: r.uvarint(), Incarnation: r.uint32("incarnation")}
		e.Partition, e.Generation, e.Count = r.partition(), r.uint32("generation"), r.uint32("count")
		e.Ranges = r.ranges("ranges", 0)
		if r.err == nil && (e.Group == 0 || e.Count == 0 || len(e.Ranges) == 0) {
			r.fail("group %d, count %d, %d ranges", e.Group, e.Count, len(e.Ranges))
		}
		if r.err != nil {
			return nil, r.err
		}
		all = append(all, e)
	}
	if err := r.end(); err != nil {
		return nil, err
	}
	return all, nil
}
