// Package index owns the index of partitions: which message of a partition lies where in the journal. It is derived: it
// holds only what is committed, and all of it can be read again from the journal. It knows nothing of the journal itself;
// a position is a number that was given to it.
//
// A Set holds the partitions of one store. Each has one Entry a message, dense from the first index kept. The youngest
// entries, the tails, are in memory. Flush moves those of all partitions that lie below a position of the journal into one new
// file, a run; the number of files has nothing to do with that of partitions:
//
//	run-FROM-TO.index   all entries that records of the journal in [FROM, TO) gave, by partition, and a directory (FORMAT.md)
//	tail                [flushed, end) of a partition: memory; the store writes it into its checkpoint
//
// Of each run the directory is in memory, as extents of the partitions: 32 bytes for each partition that has entries in it. Merge
// makes one run of some neighbours, so there are few: about 7 of each size class. Runs never change. They are named by
// the store's checkpoints; Sweep removes those that no kept checkpoint names.
//
// What a run holds is a function of its range of the journal alone. So a damaged one is made again from that range (Rebuild),
// and what a flush has written twice, because a crash took the checkpoint that named it, is the same.
//
// A message that is written again elsewhere (Move) gets a second entry in a newer run, and where runs have the same index the
// newer one counts. A message that was lost (AppendLost) has an entry with Size 0.
//
// Append, Range, Bounds and Seek never write a file, so any number of consumers share one index and cost it nothing. Each
// entry carries a check over its content, its index and its partition, the directory has one of its own: what is damaged,
// misplaced or foreign is a DamageError and never a wrong answer.
package index

import (
	"errors"
	"fmt"
)

// Index is which message in a partition, from 0.
type Index uint64

// Key names one partition of one incarnation of a topic.
type Key struct {
	Topic       uint64
	Incarnation uint32
	Partition   uint16
}

func (k Key) String() string { return fmt.Sprintf("%d.%d/%d", k.Topic, k.Incarnation, k.Partition) }

// Entry says where one message is. The messages of one batch share Position, Stored, Size and Count; the first of them has
// index i - Slot, the first of the next batch i - Slot + Count.
type Entry struct {
	Position uint64 // of the journal record that holds the batch
	Stored   int64  // unix nanoseconds, never lower than that of the entry before: what Seek searches
	Size     uint32 // bytes of the record's payload; 0: the message was lost
	TagHash  uint32 // of the message's filter tag; 0: none, or not known because the batch is compressed
	Slot     uint16 // which message in the batch
	Count    uint16 // messages in the batch, at least 1
}

// Batch is what Append adds: Count entries that lie in one record.
type Batch struct {
	Position uint64
	Stored   int64
	Size     uint32
	Count    uint16
	Tags     []uint32 // one a message, or nil when no message has one. Not kept.
}

var (
	// ErrTrimmed: the index is below the first one kept.
	ErrTrimmed = errors.New("index: index was trimmed")
	// ErrBeyond: the index is beyond the end.
	ErrBeyond = errors.New("index: index is beyond the end")
	// ErrClosed: the set was closed, and files are not opened any more.
	ErrClosed = errors.New("index: closed")
	// ErrVersion: a file was written by a newer version.
	ErrVersion = errors.New("index: file of a newer version")
)

// A GapError says that a batch does not continue its partition: the journal and the index contradict each other.
type GapError struct {
	Key        Key
	End, First Index
	Position   uint64
}

func (e *GapError) Error() string {
	return fmt.Sprintf("index: partition %v ends at index %d, but the batch at position %d begins at %d", e.Key, e.End, e.Position, e.First)
}

// A DamageError says that a run is missing, short, foreign or damaged. It can be made again from the journal: Set.Rebuild.
type DamageError struct {
	Run    RunID
	File   string
	Key    Key   // whose entry cannot be had; zero: the whole run
	Index  Index // the first entry of Key that cannot be had
	Reason string
	Err    error // nil, or what the file system said
}

func (e *DamageError) Error() string {
	s := fmt.Sprintf("index: %s is damaged: %s", e.File, e.Reason)
	if e.Key != (Key{}) {
		s = fmt.Sprintf("index: %s is damaged at index %d of partition %v: %s", e.File, e.Index, e.Key, e.Reason)
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *DamageError) Unwrap() error { return e.Err }
