package local

import (
	"context"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/replica"
)

// Log is what the store needs of a log: a journal whose records are committed when its kind of replication says so.
// replica.Solo: when they are synced here.
type Log interface {
	// Append, Kick and TryLead are journal.Journal's; Done with nil means committed.
	Append(*journal.Append) error
	Kick()
	TryLead() bool
	// WaitRoom returns when Append would not say ErrBusy.
	WaitRoom(context.Context) error
	// ReadAt is journal.Journal's: it reads len(buf) bytes at once, in which the record's payload lies when it fits.
	ReadAt(at journal.Position, buf []byte) (journal.Record, []byte, error)
	// NewReader reads from a position on up to the committed end.
	NewReader(from journal.Position) *journal.Reader
	Begin() journal.Position
	Committed() journal.Position
	// Truncate cuts the log's end off, Trim whole segments of its begin.
	Truncate(to journal.Position) error
	Trim(before journal.Position) error
	// GiveRoom is journal.Journal's: it gives up what is prepared for later.
	GiveRoom() (bool, error)
	// Segments, Bytes, Scrub, the footers, Heal, Restore and Holes are journal.Journal's.
	Segments() []journal.SegmentInfo
	Bytes() journal.FolderBytes
	Scrub(base journal.Position, pace func(bytes int) error, each func(journal.Record) error) error
	WriteFooter(base journal.Position, blob []byte) error
	ReadFooter(base journal.Position) ([]byte, error)
	Heal(at journal.Position) (journal.Hole, error)
	Restore() ([]journal.Hole, error)
	Holes() []journal.Hole
	Epoch() journal.Epoch
	Err() error
	// Fail stops the log for good, as a failed write or sync does.
	Fail(cause error) error
	Metrics() journal.Metrics
	Close() error
}

// FollowedLog is a Log that follows another's: its records come from there, and OnCommitted tells how far they are committed. What is
// committed need not be synced here.
type FollowedLog interface {
	Log
	// Synced is up to where everything is on the disk, and Sync moves it to the end.
	Synced() journal.Position
	Sync() error
}

// LogOptions is what the store gives to a log that it opens: where, from which position on, and the callbacks. A log calls
// Recovered with committed records only.
type LogOptions = journal.Options

// Index is what the store needs of an index; its contract is index.Set's.
type Index interface {
	Append(index.Key, index.Index, *index.Batch) (index.Index, error)
	Ref(index.Key) index.Ref
	AppendTo(index.Ref, index.Index, *index.Batch) (index.Index, error)
	AppendLost(k index.Key, to index.Index, position uint64)
	Move(index.Key, index.Index, *index.Batch)
	Bounds(index.Key) (first, end index.Index)
	Range(k index.Key, from, to index.Index, dst []index.Entry) ([]index.Entry, error)
	Seek(k index.Key, t int64) (index.Index, error)
	SeekPosition(k index.Key, position uint64) (index.Index, error)
	Bytes(index.Key) int64
	SeekBytes(k index.Key, keep int64) index.Index
	SetFirst(index.Key, index.Index)
	Drop(index.Key)
	Oldest() (position uint64, ok bool)
	Below(position uint64, each func(k index.Key, from, to index.Index, bytes int64) bool)

	Flush(to uint64) (bool, error)
	Merge(bytes int64) (more bool, err error)
	Snapshot(position uint64, runs func(covered uint64, list []index.RunID) error, each func(*index.State) error) error
	Sweep(keep []index.RunID) error
	Reset(covered uint64, runs []index.RunID)
	Restore(*index.State)
	RestoreMore(index.Key, []index.Entry)
	Load() ([]*index.DamageError, error)
	Check(begin uint64) (trimmed, missing []index.Hole)
	Rebuild(begin uint64, damaged ...index.RunID) *index.Rebuild
	Runs() []index.RunID
	TailBytes() int64
	Metrics() index.Metrics
	Close() error
}

var (
	_ Log   = (*replica.Solo)(nil)
	_ Index = (*index.Set)(nil)
)
