package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/replica"
	"github.com/jmqio/jmq/server/store"
)

// Options of Open.
type Options struct {
	FS  vfs.FS // nil: the disk
	Dir string // made when it is not there
	// JournalDir and IndexDir are the folders of the journal and of the index, where they are to be on other disks. One that is
	// moved is moved while the store is closed; an index that is not there is made again. "": in Dir.
	JournalDir, IndexDir string

	// Tables are fed with every record, in this order, after the store's own topics.
	Tables []store.Table
	// Gather is asked at the start of each commit; nil: nobody.
	Gather store.Gather
	// AfterCommit is called on the committing goroutine at the end of each commit, after Watch: what the dones of the commit
	// have written can be sent now. It must not block. nil: nothing.
	AfterCommit func()

	// Sizes of the journal, see journal.Options; 0: its defaults.
	SegmentBytesMax   int64
	SegmentBytesFirst int64
	CommitBytesMax    int
	QueueBytesMax     int
	QueueLenMax       int
	IdleAfter         time.Duration
	// Term of the epoch that Open starts; 0 without a registry.
	Term uint32

	// Sizes of the index, see index.Options; 0: its defaults.
	IndexFilesOpenMax int
	IndexFlushBytes   int64
	// IndexTailBytesMax is also what lets a checkpoint be written early; 0: 16 MiB.
	IndexTailBytesMax int64
	IndexRunBytesMax  int64

	// CheckpointBytes is after how much journal a checkpoint is written: what recovery has to read; 0: 256 MiB.
	CheckpointBytes int64
	// CheckpointEvery is after what time one is written when something changed; 0: 10 s.
	CheckpointEvery time.Duration

	// VerifyBytesPerSecond is how fast sealed segments are read again in the background, to find damage; 0: 16 MiB; below 0: not
	// at all. Each is read once after it was sealed, and again VerifyEvery later; 0: 7 days.
	VerifyBytesPerSecond int64
	VerifyEvery          time.Duration

	Now    func() time.Time // for dates that are stored; nil: time.Now
	Logger *slog.Logger     // nil: none
	// Progress is told how far recovery has read, in bytes of journal; nil: nobody.
	Progress func(done, total int64)

	// Follow: the log follows another's (a FollowedLog, as replica.Slave is). The store applies what that commits as it comes, see Applied
	// and WaitApplied, and takes no appends: their errors are the log's.
	Follow bool
	// Mend brings what a hole of the log, which damage has just left, had in it, from a copy: nil when it is there again. It is called
	// before the hole's messages are counted as lost, and again later as long as it fails; nil: there is no copy.
	Mend func(ctx context.Context, from, to journal.Position) error

	// OpenLog opens the log; nil: a journal that is replicated nowhere.
	OpenLog func(LogOptions) (Log, error)
	// OpenIndex makes the index, empty; nil: index.Open.
	OpenIndex func(index.Options) Index
}

func (o Options) withDefaults() Options {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.CheckpointBytes == 0 {
		o.CheckpointBytes = 256 << 20
	}
	if o.IndexTailBytesMax <= 0 {
		o.IndexTailBytesMax = 16 << 20
	}
	if o.CheckpointEvery == 0 {
		o.CheckpointEvery = 10 * time.Second
	}
	if o.VerifyBytesPerSecond == 0 {
		o.VerifyBytesPerSecond = 16 << 20
	}
	if o.VerifyEvery == 0 {
		o.VerifyEvery = 7 * 24 * time.Hour
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.AfterCommit == nil {
		o.AfterCommit = func() {}
	}
	if o.OpenLog == nil && !o.Follow {
		o.OpenLog = func(lo LogOptions) (Log, error) {
			l, err := replica.OpenSolo(lo)
			if err != nil {
				return nil, err
			}
			return l, nil
		}
	}
	if o.OpenIndex == nil {
		o.OpenIndex = func(io index.Options) Index { return index.Open(io) }
	}
	return o
}

func (o *Options) validate() error {
	if o.Dir == "" {
		return errors.New("store: no folder")
	}
	if o.Follow && o.OpenLog == nil {
		return errors.New("store: no log is given to follow with")
	}
	if o.CheckpointBytes < 0 || o.CheckpointEvery < 0 {
		return fmt.Errorf("store: checkpoint after %d bytes or %v: must not be negative", o.CheckpointBytes, o.CheckpointEvery)
	}
	names := map[string]bool{topicsTable: true, dedupeTable: true}
	for _, t := range o.Tables {
		n := t.Name()
		if n == "" || len(n) > tableNameBytesMax || names[n] {
			return fmt.Errorf("store: name %q of a table is empty, too long or there twice", n)
		}
		names[n] = true
	}
	return nil
}
