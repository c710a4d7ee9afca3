// Package side owns the side file of a slave: what consumers acked at it while its master was away, until the master has it.
//
// A slave's journal is its master's, byte by byte, so a slave writes nothing of its own into it. While it serves reads, acks go to the
// side file, synced before they are answered. When the master is back it is given the entries, journals those that are about
// the same messages, and only then the file goes.
//
// An entry is what an end or expiry record of the journal says (server/offset), and for each range of a partition which record the
// range's last message lies in: where that was written first and in which epoch. Two journals that have a record of the same epoch at the same
// position are the same up to there, so that one pair says whether all messages of the range are the same ones.
//
// FORMAT.md has the layout, byte by byte. Owner: whoever opened it; it has no goroutine. What is appended and what is removed comes from one
// goroutine at a time; Metrics and Read may be called at any time.
package side

import (
	"errors"
	"fmt"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/offset"
)

var (
	// ErrCorrupt: bytes that are no entries.
	ErrCorrupt = errors.New("side: corrupt")
	// ErrVersion: written by a newer jmq.
	ErrVersion = errors.New("side: unknown version")
	// ErrFull: the file is as large as it may become; nothing was written.
	ErrFull = errors.New("side: the file is full")
	// ErrFailed: a write or sync failed, now or before: it is not known whether the entries are there, and the file takes no more.
	ErrFailed = errors.New("side: a write or sync failed")
)

// Record names a record of the journal: where it was written first, and in which epoch.
type Record struct {
	Position journal.Position
	Epoch    journal.Epoch
}

func (r Record) String() string { return fmt.Sprintf("%d@%d", r.Position, r.Epoch) }

// End is messages of one partition that ended for a group. Last is the record of the last one.
type End struct {
	offset.End
	Last Record
}

// Expiry is leases that ran out. Last is the record of the last message of its ranges.
type Expiry struct {
	offset.Expiry
	Last Record
}

// Entries are what is appended at once. Ends are as offset.MergeEnds leaves them, and all of them have a Detail or none.
type Entries struct {
	Ends     []End
	Expiries []Expiry
}

// Len returns how many entries these are.
func (e *Entries) Len() int { return len(e.Ends) + len(e.Expiries) }
