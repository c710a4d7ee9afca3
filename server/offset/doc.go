// Package offset owns where consumer groups stand.
//
// A group is a name in a namespace with a number, given at its first birth and never again. On each topic that it
// consumes it has, per partition, a Progress (ack offset and consumed ranges) and a generation, which every reset raises.
// Two kinds of journal record change that and nothing else does:
//
//   - journal.KindOffsetReset: from here on the group stands there. Its first for a (group, topic) is the group's birth.
//   - journal.KindEnd: these messages ended for these groups. One record holds all ends of one commit.
//
// Table is the state that the records make, a store.Table: fed with committed records only, written into checkpoints.
// An ack offset moves back by a reset only. An end that was written before the reset has a lower generation and is dropped
// and counted. Applying a record twice is the same as once.
//
// FORMAT.md has the layout of both records and of the snapshot, byte by byte.
package offset

import (
	"errors"
	"fmt"
)

// GroupID numbers a consumer group; 0 is none. It stands for (namespace, name) in end records, which so stay small.
type GroupID uint32

// Topic is one incarnation of a topic.
type Topic struct {
	ID          uint64
	Incarnation uint32
}

func (t Topic) String() string { return fmt.Sprintf("%d.%d", t.ID, t.Incarnation) }

var (
	// ErrCorrupt: a record or snapshot cannot be read although its checksum was right, or contradicts what came before.
	ErrCorrupt = errors.New("offset: corrupt")
	// ErrVersion: written by a newer jmq.
	ErrVersion = errors.New("offset: unknown version")
)

const partitionsMax = 1 << 16 // a partition's number is a u16
