// Package journal: see the contract below. (helper: write the package comment, FORMAT.md, and the engine.)
package journal

import (
	"errors"
	"fmt"
)

// Position is a byte of the journal: 0 is the first ever written. Segments hold consecutive ranges of positions.
type Position uint64

// Epoch is (term, start), compared as one number: the term comes from the registry, start is raised each time the
// journal is opened for writing.
type Epoch uint64

func MakeEpoch(term, start uint32) Epoch { return Epoch(term)<<32 | Epoch(start) }
func (e Epoch) Term() uint32             { return uint32(e >> 32) }
func (e Epoch) Start() uint32            { return uint32(e) }
func (e Epoch) String() string           { return fmt.Sprintf("%d.%d", e.Term(), e.Start()) }

// Record is one record as read. Payload is valid as the reader that returned it says.
type Record struct {
	Kind     Kind
	Flags    uint8
	Epoch    Epoch
	Position Position
	Durable  Position // durable end of the writer's store when it wrote the record
	Stored   int64    // unix nanoseconds
	Payload  []byte
}

// Entry is one record to append. Payload is copied before Append returns.
type Entry struct {
	Kind    Kind
	Flags   uint8
	Payload []byte
	// Position is set by Append.
	Position Position
}

// Append is some entries that are committed together. The caller owns it again when Done was called.
type Append struct {
	Entries []Entry
	// Stored is the stored time written into every record; set by the caller, unix nanoseconds.
	Stored int64
	// Done is called exactly once after Append accepted it, in the order of positions over the whole journal, from the
	// goroutine that commits, and must not block: nil when the entries are synced, an error wrapping ErrUnknown when a write
	// or sync failed.
	Done func(a *Append, err error)
}

var (
	// ErrBusy: the queue of appends that wait for the next commit is full; nothing was written.
	ErrBusy = errors.New("journal: too much waits for the disk")
	// ErrClosed: nothing was written.
	ErrClosed = errors.New("journal: closed")
	// ErrFailed: a write or sync failed earlier; nothing was written, and nothing will be until the store is opened again.
	ErrFailed = errors.New("journal: stopped after a failed write or sync")
	// ErrUnknown: the entries were or may have been written, whether they survive is not known.
	ErrUnknown = errors.New("journal: outcome not known")
	// ErrNoSpace: no space to prepare a segment; nothing was written, the journal goes on when there is space.
	ErrNoSpace = errors.New("journal: no space left for a segment")
	// ErrTrimmed: the position is below the journal's begin.
	ErrTrimmed = errors.New("journal: position was trimmed")
	// ErrBeyond: the position is at or beyond the readable end.
	ErrBeyond = errors.New("journal: position is beyond the end")
)

// CorruptError says where damage was found below what the store had proven to be on disk.
type CorruptError struct {
	File     string
	Position Position
	Offset   int64 // in the file
	Reason   string
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("journal: %s is damaged at position %d (byte %d of the file): %s", e.File, e.Position, e.Offset, e.Reason)
}
