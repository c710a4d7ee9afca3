// Package store is the contract of a message store. (helper: finish the comments.)
package store

import (
	"context"
	"errors"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
)

// TopicID numbers a topic for ever; 0 is none.
type TopicID uint64

// Topic is a topic as the store knows it. A deleted and recreated topic has a new incarnation.
type Topic struct {
	Namespace   uint32
	ID          TopicID
	Incarnation uint32
	Name        string
	Partitions  uint32
	Created     int64 // unix nanoseconds
}

// Partition names one partition of one incarnation of a topic.
type Partition struct {
	Topic       TopicID
	Incarnation uint32
	Partition   uint16
}

var (
	// ErrNoPartition: the store has no such topic, incarnation or partition.
	ErrNoPartition = errors.New("store: no such partition")
	// ErrTrimmed: the index is below the partition's first one.
	ErrTrimmed = errors.New("store: index was trimmed")
	// ErrTopicExists: a topic of that name is there.
	ErrTopicExists = errors.New("store: topic exists")
)

// Table is state derived from committed records beside the store's own index: offsets now; timers, transactions,
// retry references and idempotence windows later. The store feeds it every committed record of every kind, in order, on
// one goroutine, before the record's append is answered; writes it into checkpoints, and restores it from one before
// it feeds it what follows. Apply must not block and must not keep r.Payload.
type Table interface {
	Name() string
	Apply(r journal.Record) error
	// Snapshot appends the state to b. It is called between two Applies.
	Snapshot(b []byte) []byte
	Restore(b []byte) error
}

// Gather is called at the start of each commit, on the committing goroutine, and adds records that were held back to be
// written as one (the acks of all consumers). It must not block. done runs as journal.Append.Done does.
type Gather func(add func(kind journal.Kind, payload []byte, done func(error)))

// Store keeps messages by partition and index, and all other records, in one log. Everything is visible only when it
// is committed: synced here and, where replicated, acknowledged there. Safe for concurrent use.
//
// Errors of appends: journal.ErrBusy, ErrClosed, ErrFailed, ErrNoSpace (nothing was written), ErrUnknown (outcome not known).
type Store interface {
	// AppendBatch gives the batch its broker fields (namespace, topic, partition, first index, stored time), in place, and
	// appends it; batch is free again when AppendBatch returns, done is called when it is committed, as
	// journal.Append.Done says. An error returned means that done is never called and nothing was written.
	AppendBatch(p Partition, batch []byte, done func(first index.Index, stored int64, err error)) error
	// AppendRecord appends one record of another kind.
	AppendRecord(kind journal.Kind, payload []byte, done func(error)) error
	// Kick starts a commit if none is running, so that Gather is asked soon.
	Kick()

	// CreateTopic appends a topic record and returns the topic when it is committed; ErrTopicExists with the topic as it is.
	CreateTopic(ctx context.Context, namespace uint32, name string, partitions uint32) (Topic, error)
	// Topic finds a topic by name. The answer is a snapshot, without a lock.
	Topic(namespace uint32, name string) (Topic, bool)
	Topics() []Topic

	// Read appends to buf the batches that hold [from, to), whole, until bytesMax is passed (at least one batch), and
	// returns buf and the index after the last one read. to is cut to the committed end.
	Read(p Partition, from, to index.Index, bytesMax int, buf []byte) ([]byte, index.Index, error)
	// Bounds returns the first index kept and the index after the last one committed.
	Bounds(p Partition) (first, end index.Index, err error)
	// Seek returns the first index stored at or after t (unix nanoseconds), or the end.
	Seek(p Partition, t int64) (index.Index, error)
	// Watch registers the one function that is called after commits, on the committing goroutine, once for each partition
	// that grew, after every table has applied it. It must not block.
	Watch(func(p Partition, end index.Index))

	Epoch() journal.Epoch
	// Err is nil while the store takes writes, else why it stopped.
	Err() error
	// Checkpoint writes one now.
	Checkpoint() error
	// Close flushes, writes a checkpoint and a no-op with the durable end, and releases the folder.
	Close() error
}
