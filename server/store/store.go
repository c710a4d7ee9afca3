// Package store is the contract of a message store: one log of records of all kinds, an index that finds messages by
// partition and index in it, and tables that are derived from it. It owns what every engine needs to say the same thing:
// the contract, the topics (Topics, the first table, with the layout of topic records) and nothing that touches a disk.
// Engines are sub-packages (local); storetest.Run holds each to this contract.
//
// What an engine promises:
//
//   - What was answered without an error is committed: it survives kills and power loss, and is never changed again.
//   - Nothing is visible before it is committed: not to Read, Bounds, Seek, Topic, a Table, nor to a Watch.
//   - The indexes of a partition are dense: committed batches lie at [first, end) without a gap or an overlap, in the order
//     in which AppendBatch gave them out.
//   - Tables see every committed record once and in order, whatever was crashed and opened again in between.
package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
)

// TopicID numbers a topic for ever; 0 is none.
type TopicID uint64

// Topic is a topic as the store knows it. A deleted and recreated topic has a new incarnation.
type Topic struct {
	Namespace   uint32
	ID          TopicID
	Incarnation uint32 // from 1
	Name        string
	Partitions  uint32 // 1..65536
	Created     int64  // unix nanoseconds
	Settings    Settings
	Origin      Origin // zero: nobody but this store knows it
}

// Origin says which topic of a registry this is, and since when it is as it is. The store only keeps it.
type Origin struct {
	Generation uint64 // of the metadata: in another one Created may name something else
	Created    uint64 // the version that created it: with the name, its incarnation there
	Version    uint64 // of the metadata by which it was made or altered last: what an older version says of it is old
}

// Durability says what an append to a topic waits for.
type Durability uint8

const (
	// DurabilityNormal: what is committed, whoever has it.
	DurabilityNormal Durability = iota
	// DurabilityReplicated: a batch is refused with journal.ErrNotReplicated, and nothing written, while no other machine is in sync; and
	// its sender gets journal.ErrUnknown where it was committed on one machine alone: it is there, and may be lost with that machine.
	DurabilityReplicated
)

// Settings is what can be changed of a topic. The zero value is the default.
type Settings struct {
	RetentionAge      time.Duration // messages older than that may go; 0: the broker's default; below 0: never by age
	RetentionBytes    int64         // what all partitions may hold together; 0: the broker's default; below 0: no limit
	DiscardUnconsumed bool          // by age and size a message goes even if a group has not consumed it
	PauseProduce      bool          // sends are refused
	PauseConsume      bool          // fetches get nothing
	Durability        Durability
}

// Change alters a topic.
type Change struct {
	Partitions uint32    // 0: as many as there are; fewer cannot be
	Settings   *Settings // nil: as they are; else all of them
	Origin     *Origin   // nil: as it is
	Who, Why   string    // for people who read the journal; cut to 4 KiB
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
	// ErrBeyond: the index is beyond the partition's committed end. The end itself is not: there is nothing to read yet.
	ErrBeyond = errors.New("store: index is beyond the end")
	// ErrBatch: the bytes are not a batch as wire.Batch says; nothing was written.
	ErrBatch = errors.New("store: not a batch")
	// ErrTopicExists: a topic of that name is there.
	ErrTopicExists = errors.New("store: topic exists")
	// ErrTopic: a name or a number of partitions that no topic can have.
	ErrTopic = errors.New("store: topic cannot be")
	// ErrDamaged: what was stored cannot be read at the moment, because the disk damaged it; the wrapped error says where. What
	// is lost for good becomes a GapError once that is known.
	ErrDamaged = errors.New("store: damaged")
)

// GapError says that messages [From, To) of a partition are lost: the disk damaged them and nothing can bring them back.
// What comes after them can be read.
type GapError struct {
	From, To index.Index
}

func (e *GapError) Error() string {
	return fmt.Sprintf("store: messages [%d, %d) were lost to damage of the disk", e.From, e.To)
}

// Table is state derived from committed records beside the store's own index: topics and offsets now; timers, transactions,
// retry references and idempotence windows later. The store feeds it every committed record of every kind but no-op, epoch and
// carried-forward ones (which were fed when they were first written), in order and each once, never two at a time, before the record's append is answered; writes it into
// checkpoints, and restores it from one before it feeds it what follows.
type Table interface {
	// Name is the table's in checkpoints: one word that never changes.
	Name() string
	// Apply must not block, must not call the store and must not keep r.Payload. Of a message batch (journal.KindMessages) the
	// payload is the batch's header only (wire.BatchHeaderBytes), of all other kinds it is whole. r.Durable and r.Epoch
	// are set only for records that are read: at opening, and where a log is followed. A record of journal.KindLost stands where records were lost to
	// damage: what follows it may contradict what the table knows, and is right. An error says that the record contradicts what the table
	// knows: the store stops.
	Apply(r journal.Record) error
	// Snapshot appends the state to b. It is called between two Applies and holds them off, so it must be quick. A table
	// that is as it was when it was made may append nothing.
	Snapshot(b []byte) []byte
	// Restore puts the table into the state that Snapshot wrote, whatever it was before; b is not kept. An empty b is the
	// state of a new table. It is called before the first Apply only, perhaps more than once.
	Restore(b []byte) error
}

// Witness is what a table is too that knows messages by their index. When records were lost the store asks it, at opening, how far
// the messages of a partition went at least: so an index that was given out is not given out again.
type Witness interface {
	Ends(each func(topic uint64, incarnation uint32, partition uint16, end index.Index))
}

// Gather is called at the start of each commit, on the committing goroutine, and adds records that were held back to be
// written as one (the acks of all consumers). It must not block, and must not call the store but through add, which copies
// payload before it returns. done runs as the done of AppendRecord does; when the record could not be added it runs before
// add returns, with the error that says why, and nothing was written.
type Gather func(add func(kind journal.Kind, payload []byte, done func(error)))

// Store keeps messages by partition and index, and all other records, in one log. Everything is visible only when it
// is committed: synced here and, where replicated, acknowledged there. Safe for concurrent use.
//
// Errors of appends: journal.ErrBusy, ErrClosed, ErrFailed, ErrNoSpace, ErrNotReplicated (nothing was written), ErrUnknown (outcome not known).
// After ErrUnknown that is not ErrOneCopy the store has stopped: Err says why, and until it is opened again every append is ErrFailed.
//
// A done is called exactly once, in the order of the log, after the tables have applied the record and before anyone is
// told by Watch. It runs on the goroutine that commits, which may be one that is inside an Append of the same store, and
// must not block. It may append (the record goes into a later commit) and may read.
type Store interface {
	// AppendBatch gives the batch its broker fields (namespace, topic, partition, first index, stored time), in place, and
	// appends it; batch is free again when AppendBatch returns, done is called when it is committed, as
	// journal.Append.Done says. An error returned means that done is never called and nothing was written; besides those
	// above ErrNoPartition and ErrBatch. It never waits for the disk while another goroutine commits, but it may lead a
	// commit itself, and then returns after it. Of the batch only the header and the
	// messages' lengths are looked at: checksum and content are for whoever took the bytes from outside (broker) to judge,
	// before. AppendBatch, AppendRecord and CreateTopic must not be called under a lock that a done, Gather, Watch or
	// Options.AfterCommit of an engine wants.
	AppendBatch(p Partition, batch []byte, done func(first index.Index, stored int64, err error)) error
	// A batch whose producer has an id, and which was stored or is under way with the same sequence and number of messages, is not stored
	// again: done is called with what became of the first, perhaps before AppendBatch or QueueBatch returns. One that has some of its sequences
	// in common with another is an ErrBatch that wraps wire.CodeInvalid. How far back is looked, server/dedupe says.
	//
	// QueueBatch is AppendBatch that starts no commit: the batch goes into the next one. The caller calls Commit when it has
	// queued all that it has at the moment, so that one commit takes it all.
	QueueBatch(p Partition, batch []byte, done func(first index.Index, stored int64, err error)) error
	// Commit starts a commit of what is queued, if none is running. It may carry it out itself, and then returns after it.
	Commit()
	// AppendRecord appends one record of another kind; payload is free again when it returns. Errors and done as above.
	AppendRecord(kind journal.Kind, payload []byte, done func(error)) error
	// Kick starts a commit if none is running, so that Gather is asked soon.
	Kick()

	// CreateTopic appends a topic record and returns the topic when it is committed; ErrTopicExists with the topic as it is. Of t
	// namespace, name, partitions, settings and origin are used; who is for people who read the journal.
	// Of several at one time for one name one creates it and the others get ErrTopicExists. ctx bounds the waiting only: the
	// topic may come into being after its end. ErrTopic: name (1 to 255 bytes) or partitions (1 to 65536) cannot be.
	CreateTopic(ctx context.Context, t Topic, who string) (Topic, error)
	// AlterTopic appends a topic record and returns the topic as it is when that is committed. Errors besides those of appends:
	// ErrNoPartition (no such topic or incarnation), ErrTopic (the change cannot be).
	AlterTopic(ctx context.Context, id TopicID, incarnation uint32, c Change) (Topic, error)
	// DeleteTopic appends a topic record; when that is committed the topic is not there any more: its messages, and what
	// tables knew of it, are gone, and appends to it are ErrNoPartition. Its bytes are freed by Reclaim. A topic made later
	// under its name has another incarnation. Errors as AlterTopic.
	DeleteTopic(ctx context.Context, id TopicID, incarnation uint32, who, why string) error
	// Topic finds a topic by name. The answer is a snapshot, without a lock.
	Topic(namespace uint32, name string) (Topic, bool)
	// TopicByID is Topic for who knows the topic already: it costs next to nothing.
	TopicByID(id TopicID, incarnation uint32) (Topic, bool)
	// Topics returns all topics, by id.
	Topics() []Topic

	// Read appends to buf the batches that hold [from, to), whole and as they were stored, as long as they fit into bytesMax
	// together (at least one batch, whatever its size), and returns buf and the index after the last one read, which may
	// lie beyond to when a batch does. to is cut to the committed end; when nothing lies in [from, to) it returns buf and from. Errors:
	// ErrNoPartition, ErrTrimmed, ErrBeyond, ErrDamaged, a *GapError when from lies in a gap; buf is then returned as it was.
	// A gap, trimmed range or damage behind from ends the reading before it.
	Read(p Partition, from, to index.Index, bytesMax int, buf []byte) ([]byte, index.Index, error)
	// Bounds returns the first index kept and the index after the last one committed.
	Bounds(p Partition) (first, end index.Index, err error)
	// Seek returns the first index stored at or after t (unix nanoseconds), or the end. Where the clock was set back it may
	// return an earlier index, never a later one.
	Seek(p Partition, t int64) (index.Index, error)
	// Stored returns the stored time of a message (unix nanoseconds; never lower than that of the one before it). Errors as
	// Read's, without *GapError: what is lost has a time.
	Stored(p Partition, i index.Index) (int64, error)
	// Bytes returns about how many bytes of batches the partition keeps, and SeekBytes the first index from which on it keeps at
	// most so many.
	Bytes(p Partition) (int64, error)
	SeekBytes(p Partition, bytes int64) (index.Index, error)

	// Trim drops what a partition keeps below first, for good; first is cut to the end. The bytes are freed by Reclaim. It is
	// this store's own doing, not a record: after a crash less may be dropped, never more.
	Trim(p Partition, first index.Index) error
	// Reclaim frees the oldest segments of the log that nothing needs any more, and returns how many bytes that were. A segment of
	// which little is still needed is freed too: that is carried forward, appended again, where it has not become less by itself since
	// the last call. It stops at the first segment of which more is needed: Usage says by whom. One at a time; ctx ends it between segments.
	Reclaim(ctx context.Context) (int64, error)
	// Usage says what the store takes on the disk, and with holdsMax above 0 what holds the oldest segments: up to so many
	// partitions, the largest first.
	Usage(holdsMax int) (Usage, error)

	// Watch registers the one function that is called after commits, on the committing goroutine, once for each partition
	// that grew, after every table has applied it and every done was called. It must not block. Register it before the
	// first append.
	Watch(func(p Partition, end index.Index))

	Epoch() journal.Epoch
	// Err is nil while the store takes writes, else why it stopped.
	Err() error
	// Checkpoint writes one now. Appends go on meanwhile.
	Checkpoint() error
	// Close answers what is under way, writes a checkpoint and a no-op with the durable end, and releases the folder.
	Close() error
}

// Usage is what a store takes on the disk.
type Usage struct {
	JournalFolder, IndexFolder string // they may be on different disks
	JournalBytes               int64  // segments, spares and the reserve
	IndexBytes                 int64
	CheckpointBytes            int64
	DamagedBytes               int64 // set aside
	Segments                   int
	Begin, End                 journal.Position
	OldestEnd                  journal.Position // of the oldest segment
	Oldest                     int64            // when the oldest segment was begun, unix nanoseconds
	Holds                      []Hold
	Holes                      []Hole
}

// Hold is a partition that keeps the oldest segments from going.
type Hold struct {
	Partition Partition
	First     index.Index // the first message kept, and when it was stored
	Stored    int64
	Bytes     int64  // what of the log could go without this hold, were it the only one
	Why       string // "" for messages; else what else points there
}

// Hole is a range of the log that was damaged.
type Hole struct {
	From, To journal.Position
	Messages uint64 // that were in it, as far as is known
}

// ErrOneCopy is the ErrUnknown of what its topic wants on two machines, and what was committed on one alone: the last slave left meanwhile. The
// store goes on.
var ErrOneCopy = fmt.Errorf("%w: it is committed, but no other machine was found to have it", journal.ErrUnknown)
