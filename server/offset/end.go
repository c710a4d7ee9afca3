package offset

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/wire"
)

// End says that messages ended for a group: the range will not be given to it again.
type End struct {
	Group      GroupID
	Topic      Topic
	Partition  uint16
	Generation uint32
	Outcome    wire.Outcome // never Released
	Range      Range
	// Detail is for topics with archiving; nil elsewhere. A record has it for all of its ends or for none.
	Detail *Detail
}

// Detail says how a message came to its end.
type Detail struct {
	Client   string
	Attempt  uint32
	LeasedAt int64 // unix nanoseconds
	EndedAt  int64 // unix nanoseconds
}

const (
	endVersion    = 1
	endDetail     = 1 << 0 // flag: each range has a Detail
	detailTextMax = 1 << 10
)

func compareEnds(a, b End) int {
	return cmp.Or(
		cmp.Compare(a.Group, b.Group),
		cmp.Compare(a.Topic.ID, b.Topic.ID),
		cmp.Compare(a.Topic.Incarnation, b.Topic.Incarnation),
		cmp.Compare(a.Partition, b.Partition),
		cmp.Compare(a.Generation, b.Generation),
		cmp.Compare(a.Outcome, b.Outcome),
		cmp.Compare(a.Range.From, b.Range.From),
		cmp.Compare(a.Range.To, b.Range.To),
	)
}

// MergeEnds sorts ends and joins ranges that touch or overlap and differ in nothing else, in place. Ends with a Detail
// are not joined; what two of them share stays with the first.
func MergeEnds(ends []End) []End {
	slices.SortFunc(ends, compareEnds)
	out := ends[:0]
	for _, e := range ends {
		if n := len(out); n > 0 && samePartition(&e, &out[n-1]) && e.Range.From <= out[n-1].Range.To {
			last := &out[n-1]
			if e.Detail == nil && last.Detail == nil {
				last.Range.To = max(last.Range.To, e.Range.To)
				continue
			}
			e.Range.From = last.Range.To
		}
		if e.Range.Len() > 0 {
			out = append(out, e)
		}
	}
	return out
}

func sameTopic(a, b *End) bool { return a.Group == b.Group && a.Topic == b.Topic }

func samePartition(a, b *End) bool {
	return sameTopic(a, b) && a.Partition == b.Partition && a.Generation == b.Generation && a.Outcome == b.Outcome
}

// AppendEnds appends the payload of a KindEnd record to b. ends must be as MergeEnds leaves them, and all have a Detail or
// none.
func AppendEnds(b []byte, ends []End) []byte {
	flags := byte(0)
	if len(ends) > 0 && ends[0].Detail != nil {
		flags |= endDetail
	}
	b = append(b, endVersion, flags)
	b = binary.AppendUvarint(b, runs(ends, sameTopic))
	for len(ends) > 0 {
		topic := run(ends, sameTopic)
		b = binary.AppendUvarint(b, uint64(topic[0].Group))
		b = binary.AppendUvarint(b, topic[0].Topic.ID)
		b = binary.AppendUvarint(b, uint64(topic[0].Topic.Incarnation))
		b = binary.AppendUvarint(b, runs(topic, samePartition))
		ends = ends[len(topic):]
		for len(topic) > 0 {
			partition := run(topic, samePartition)
			topic = topic[len(partition):]
			b = binary.AppendUvarint(b, uint64(partition[0].Partition))
			b = binary.AppendUvarint(b, uint64(partition[0].Generation))
			b = append(b, byte(partition[0].Outcome))
			b = binary.AppendUvarint(b, uint64(len(partition)))
			last := index.Index(0)
			for i := range partition {
				e := &partition[i]
				b = binary.AppendUvarint(b, uint64(e.Range.From-last))
				b = binary.AppendUvarint(b, e.Range.Len())
				last = e.Range.To
				if flags&endDetail != 0 {
					b = appendString(b, e.Detail.Client)
					b = binary.AppendUvarint(b, uint64(e.Detail.Attempt))
					b = binary.AppendVarint(b, e.Detail.LeasedAt)
					b = binary.AppendVarint(b, e.Detail.EndedAt-e.Detail.LeasedAt)
				}
			}
		}
	}
	return b
}

// run returns the longest prefix of ends that are the same; runs counts them.
func run(ends []End, same func(a, b *End) bool) []End {
	n := 1
	for n < len(ends) && same(&ends[0], &ends[n]) {
		n++
	}
	return ends[:n]
}

func runs(ends []End, same func(a, b *End) bool) uint64 {
	n := uint64(0)
	for len(ends) > 0 {
		ends = ends[len(run(ends, same)):]
		n++
	}
	return n
}

// DecodeEnds appends the ends of a KindEnd record's payload to ends. On an error ends is returned as it was.
func DecodeEnds(ends []End, payload []byte) ([]End, error) {
	had := len(ends)
	r := reader{b: payload}
	r.version("end record", endVersion)
	flags := r.byte()
	if flags&^endDetail != 0 {
		r.fail("flags %#x", flags)
	}
	for range r.count("topics", 4) {
		e := End{Group: GroupID(r.uint32("group"))}
		e.Topic = Topic{ID: r.uvarint(), Incarnation: r.uint32("incarnation")}
		if r.err == nil && e.Group == 0 {
			r.fail("group 0")
		}
		for range r.count("partitions", 4) {
			e.Partition, e.Generation, e.Outcome = r.partition(), r.uint32("generation"), wire.Outcome(r.byte())
			if r.err == nil && (e.Outcome < wire.Acked || e.Outcome > wire.Expired) {
				r.fail("outcome %d", e.Outcome)
			}
			last := index.Index(0)
			for range r.count("ranges", 2) {
				e.Range.From = r.add(last, r.uvarint())
				n := r.uvarint()
				e.Range.To = r.add(e.Range.From, n)
				if r.err == nil && n == 0 {
					r.fail("an empty range at %d", e.Range.From)
				}
				last = e.Range.To
				e.Detail = nil
				if flags&endDetail != 0 {
					d := &Detail{Client: r.string("client", detailTextMax), Attempt: r.uint32("attempt")}
					d.LeasedAt = r.varint()
					d.EndedAt = d.LeasedAt + r.varint()
					e.Detail = d
				}
				if r.err != nil {
					return ends[:had], r.err
				}
				ends = append(ends, e)
			}
		}
	}
	if err := r.end(); err != nil {
		return ends[:had], err
	}
	return ends, nil
}
