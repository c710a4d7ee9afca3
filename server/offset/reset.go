package offset

import (
	"encoding/binary"
	"fmt"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/wire"
)

// Operation is what a Reset does. Numbers are part of the journal's format.
type Operation uint8

const (
	// Birth puts the group on the topic, with Policy and Starts. If it is there already this is a Move.
	Birth Operation = 1
	// Move moves the partitions of Starts, whatever was consumed of them. Each has a higher generation than it had; otherwise it
	// stays as it is.
	Move Operation = 2
	// Alter changes the policy to Policy.
	Alter Operation = 3
	// Remove takes the group off the topic.
	Remove Operation = 4
)

func (o Operation) String() string {
	if int(o) < len(operationNames) {
		return operationNames[o]
	}
	return fmt.Sprintf("operation%d", uint8(o))
}

var operationNames = [...]string{"none", "birth", "move", "alter", "remove"}

// Policy is how a topic is given to a group. The zero value is the default.
type Policy struct {
	// Parallel: up to Window messages of a partition in flight, at most half of them with one member while others are there.
	// Otherwise a partition has one lease at a time, which keeps its order.
	Parallel bool
	Window   uint32 // with Parallel; 0: WindowDefault
}

// WindowDefault is the window of a parallel policy that says nothing else.
const WindowDefault = 2000

// Reset changes where a group stands on a topic, or how it is given the topic. Applying one again changes nothing. Of a group
// that is not on the topic only a Birth does anything.
type Reset struct {
	Operation Operation
	Time      int64 // unix nanoseconds
	Namespace uint32
	Group     GroupID
	GroupName string
	Topic     Topic
	TopicName string  // for people who read the journal
	Policy    Policy  // of Birth and Alter
	Starts    []Start // of Birth and Move; those of a Birth all have the same generation
	Who, Why  string  // for the audit
}

// Start is where a group stands in one partition. A partition that a birth does not name, since it came later, starts at
// index 0 with the birth's generation, which is Table.BirthGeneration.
type Start struct {
	Partition  uint16
	Generation uint32
	Offset     index.Index
}

const (
	resetVersion  = 2
	resetParallel = 1 << 0 // flag: Policy.Parallel
	auditTextMax  = 4 << 10
)

// AppendReset appends the payload of a KindOffsetReset record to b. Starts must ascend by partition. Who and Why are
// cut to 4 KiB.
func AppendReset(b []byte, r *Reset) []byte {
	flags := byte(0)
	if r.Policy.Parallel {
		flags |= resetParallel
	}
	b = append(b, resetVersion, flags, byte(r.Operation))
	b = binary.AppendVarint(b, r.Time)
	b = binary.AppendUvarint(b, uint64(r.Namespace))
	b = binary.AppendUvarint(b, uint64(r.Group))
	b = appendString(b, r.GroupName)
	b = binary.AppendUvarint(b, r.Topic.ID)
	b = binary.AppendUvarint(b, uint64(r.Topic.Incarnation))
	b = appendString(b, r.TopicName)
	b = appendString(b, cutText(r.Who, auditTextMax))
	b = appendString(b, cutText(r.Why, auditTextMax))
	b = binary.AppendUvarint(b, uint64(r.Policy.Window))
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
	flags := r.byte()
	if flags&^resetParallel != 0 {
		r.fail("flags %#x", flags)
	}
	v := &Reset{Operation: Operation(r.byte()), Time: r.varint()}
	if r.err == nil && (v.Operation < Birth || v.Operation > Remove) {
		r.fail("operation %d", v.Operation)
	}
	v.Policy.Parallel = flags&resetParallel != 0
	v.Namespace, v.Group, v.GroupName = r.uint32("namespace"), GroupID(r.uint32("group")), r.string("group name", wire.NameBytesMax)
	v.Topic = Topic{ID: r.uvarint(), Incarnation: r.uint32("incarnation")}
	v.TopicName = r.string("topic name", wire.NameBytesMax)
	v.Who, v.Why = r.string("who", auditTextMax), r.string("why", auditTextMax)
	if r.err == nil && (v.Group == 0 || v.GroupName == "") {
		r.fail("group %d %q", v.Group, v.GroupName)
	}
	v.Policy.Window = r.uint32("window")
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

func cutText(s string, upTo int) string { return s[:min(len(s), upTo)] }
