package retention

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/store"
)

// Options of Start.
type Options struct {
	Store store.Store
	// Groups returns where the groups of a topic stand, each once. It may be called at any time.
	Groups func(offset.Topic) []Group
	// Settled runs f while no group is being made, or moved: none has read how far messages are kept, to stand there, and is not seen by Groups yet.
	// nil: it runs it.
	Settled func(f func())
	// SetWritable is told when sends are to be refused, with a sentence that says why, and when they are taken again. Calls
	// come one at a time, and only when something changed; before the first one sends are taken.
	SetWritable func(ok bool, why string)

	// End is where the log ends, which costs nothing to ask: Grew does so after each commit. nil: Grew does nothing.
	End func() journal.Position

	FS vfs.FS
	// Folders are those whose disks are watched, and that must stay where they are.
	Folders []Folder
	// StateFile is where the time that is left of a suspension, and the clock, are kept; its folder is there. "": nowhere.
	StateFile string

	Age            time.Duration // of topics that say nothing of their own; 0: nothing goes by age
	Bytes          int64         // the same by size
	AbandonedAfter time.Duration // 0: a group counts for ever
	Every          time.Duration // between two passes; 0: 10 s

	// Follows: the store follows another one, which says what goes; here nothing does by itself. Disks are watched, and people warned.
	Follows bool

	// BytesMax limits what the store takes on its disks; the percentages hold of it as of the disks. 0: no limit.
	BytesMax int64
	// Percentages of a disk at which a level begins, in this order; 0: 75, 80, 90.
	WarnPercent, EarlyDeletePercent, RefusePercent int

	Now    func() time.Time // the wall clock; nil: time.Now
	Logger *slog.Logger     // nil: nobody
}

// Folder is a folder of the store.
type Folder struct {
	What string // "journal", "index"
	Path string
	// Also is a file that is there while the store is, besides Path; "": none.
	Also string
}

// Group is where a consumer group stands on a topic.
type Group struct {
	ID     offset.GroupID
	Name   string
	Active int64         // when it was last seen to do anything, unix nanoseconds; 0: not known
	Acks   []index.Index // ack offset of each partition; of those beyond its end 0
}

// ack is the lowest index of a partition that the group has not consumed.
func (g *Group) ack(p uint16) index.Index {
	if int(p) < len(g.Acks) {
		return g.Acks[p]
	}
	return 0
}

const (
	// SuspendFor is how long nothing is decided by the wall clock after it jumped, of uptime.
	SuspendFor = 24 * time.Hour

	jumpRunning = time.Hour           // against the monotonic clock
	jumpStart   = 30 * 24 * time.Hour // against the last time that the broker was seen to run
	anchorFor   = 24 * time.Hour      // a clock that is slewed must not add up to a jump
	settle      = time.Hour           // after a start, before groups are judged: their fetches are not known any more
	saveEvery   = time.Minute         // of the state file
)

func (o Options) withDefaults() Options {
	if o.Settled == nil {
		o.Settled = func(f func()) { f() }
	}
	if o.Every == 0 {
		o.Every = 10 * time.Second
	}
	if o.WarnPercent == 0 {
		o.WarnPercent = 75
	}
	if o.EarlyDeletePercent == 0 {
		o.EarlyDeletePercent = 80
	}
	if o.RefusePercent == 0 {
		o.RefusePercent = 90
	}
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

func (o *Options) validate() error {
	switch {
	case o.Store == nil || o.Groups == nil || o.SetWritable == nil:
		return errors.New("retention: no store, groups or SetWritable")
	case o.Age < 0 || o.Bytes < 0 || o.AbandonedAfter < 0 || o.Every < 0 || o.BytesMax < 0:
		return fmt.Errorf("retention: age %v, bytes %d, abandoned after %v, every %v, limit %d: must not be negative",
			o.Age, o.Bytes, o.AbandonedAfter, o.Every, o.BytesMax)
	case o.WarnPercent <= 0 || o.WarnPercent > o.EarlyDeletePercent || o.EarlyDeletePercent > o.RefusePercent || o.RefusePercent > 100:
		return fmt.Errorf("retention: marks at %d, %d and %d %%: must rise, from 1 to 100", o.WarnPercent, o.EarlyDeletePercent, o.RefusePercent)
	}
	return nil
}
