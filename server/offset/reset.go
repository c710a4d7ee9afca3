package offset

import (
	"encoding/binary"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/wire"
)

// Reset says where a group stands on a topic from here on, whatever it had consumed. The first for a (group, topic) is
// the group's birth there: generation 1. A later one has, for each partition that it moves, a higher generation than the
// partition had; otherwise that partition stays as it is, so that applying a record again changes nothing.
type Reset struct {
	Namespace uint32
	Group     GroupID
	GroupName string
	Topic     Topic
	TopicName string // for people who read the journal
	Starts    []Start
	Who, Why  string // for the audit
}

// Start is where a group stands in one partition. A partition that a birth does not name, since it came later, starts at
// index 0 with generation 1.
type Start struct {
	Partition  uint16
	Generation uint32
	Offset     index.Index
}

const (
	resetVersion = 1
	auditTextMax = 4 << 10
)

// AppendReset appends the payload of a KindOffsetReset record to b. Starts must ascend by partition. Who and Why are
// cut to 4 KiB.
func AppendReset(b []byte, r *Reset) []byte {
	b = append(b, resetVersion, 0)
	b = binary.AppendUvarint(b, uint64(r.Namespace))
	b = binary.AppendUvarint(b, uint64(r.Group))
	b = appendString(b, r.GroupName)
	b = binary.AppendUvarint(b, r.Topic.ID)
	b = binary.AppendUvarint(b, uint64(r.Topic.Incarnation))
	b = appendString(b, r.TopicName)
	b = appendString(b, r.Who[:min(len(r.Who), auditTextMax)])
	b = appendString(b, r.Why[:min(len(r.Why), auditTextMax)])
	b = binary.AppendUvarint(b, uint64(len(r.Starts)))
	next := uint64(0)
	for _, s := range r.Starts {
		b = binary.AppendUvarint(b, uint64(s.Partition)-next)
		b = binary.AppendUvarint(b, uint64(s.Generation))
		b = binary.AppendUvarint(b, uint64(s.Offset))
		next = uint64(s.Partition) + 1
	}
	return b
}

// DecodeReset reads the payload of a KindOffsetReset record.
func DecodeReset(payload []byte) (*Reset, error) {
	r := reader{b: payload}
	r.version("offset reset record", resetVersion)
	if flags := r.byte(); flags != 0 {
		r.fail("flags %#x", flags)
	}
	v := &Reset{Namespace: r.uint32("namespace"), Group: GroupID(r.uint32("group")), GroupName: r.string("group name", wire.NameBytesMax)}
	v.Topic = Topic{ID: r.uvarint(), Incarnation: r.uint32("incarnation")}
	v.TopicName = r.string("topic name", wire.NameBytesMax)
	v.Who, v.Why = r.string("who", auditTextMax), r.string("why", auditTextMax)
	if r.err == nil && (v.Group == 0 || v.GroupName == "") {
		r.fail("group %d %q", v.Group, v.GroupName)
	}
	n := r.count("partitions", 3)
	if n > 0 {
		v.Starts = make([]Start, 0, n)
	}
	next := uint64(0)
	for range n {
		p := r.uvarint()
		if p >= partitionsMax || next+p >= partitionsMax {
			r.fail("partition %d after %d", p, next)
		}
		s := Start{Partition: uint16(next + p), Generation: r.uint32("generation"), Offset: r.index()}
		if r.err == nil && s.Generation == 0 {
			r.fail("generation 0 in partition %d", s.Partition)
		}
		if r.err != nil {
			return nil, r.err
		}
		v.Starts = append(v.Starts, s)
		next = uint64(s.Partition) + 1
	}
	if err := r.end(); err != nil {
		return nil, err
	}
	return v, nil
}
