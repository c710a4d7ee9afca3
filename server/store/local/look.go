package local

import (
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/jmqio/jmq/server/journal"
)

// Looked is what the log of a closed store has.
type Looked struct {
	StoreID               [16]byte
	Begin, End, Committed journal.Position // End is the real one; Committed the highest that is known here to be
	History               []journal.EpochStart
}

// Look says what the log of a store has, without opening the store: what a broker must know before it decides what it opens its store as. A
// folder that is not there, or empty, becomes that of a new store. Errors as Open's.
func Look(opt Options) (l Looked, err error) {
	opt = opt.withDefaults()
	f, err := openFolder(&opt)
	if err != nil {
		return l, err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	l.StoreID = f.storeID
	if names, err := opt.FS.List(f.journal); err != nil || len(names) == 0 {
		return l, err
	}
	start, err := f.newestCheckpoint()
	if err != nil {
		return l, err
	}
	j, err := f.openFollowing(&opt, start)
	if err != nil {
		return l, err
	}
	l.Begin, l.End, l.Committed, l.History = j.Begin(), j.End(), j.Committed(), j.History()
	if err := j.Close(); err != nil {
		return l, fmt.Errorf("store: look at the log of %s: %w", f.dir, err)
	}
	return l, nil
}

func (f *folder) openFollowing(opt *Options, start checkpointHeader) (*journal.Journal, error) {
	j, err := journal.Open(journal.Options{
		FS: opt.FS, Dir: f.journal, StoreID: f.storeID, SegmentBytesMax: opt.SegmentBytesMax, SegmentBytesFirst: opt.SegmentBytesFirst,
		Start: start.Position, StartEpoch: start.Epoch, Follow: true, Now: opt.Now, Logger: opt.Logger,
	})
	if err != nil {
		return nil, fmt.Errorf("store: look at the log of %s: %w", f.dir, err)
	}
	return j, nil
}

// Following is the journal of a store that is closed otherwise.
type Following struct {
	*journal.Journal
	folder *folder
}

// OpenFollowing opens only the journal of a store, to be completed from another broker's. Errors as Open's.
func OpenFollowing(opt Options) (*Following, error) {
	opt = opt.withDefaults()
	f, err := openFolder(&opt)
	if err != nil {
		return nil, err
	}
	start, err := f.newestCheckpoint()
	if err == nil {
		var j *journal.Journal
		if j, err = f.openFollowing(&opt, start); err == nil {
			return &Following{j, f}, nil
		}
	}
	return nil, errors.Join(err, f.close())
}

// Close closes the journal, synced, and releases the folder.
func (j *Following) Close() error { return errors.Join(j.Journal.Close(), j.folder.close()) }

// newestCheckpoint is the header of the newest one whose header is whole; the zero header: there is none.
func (f *folder) newestCheckpoint() (checkpointHeader, error) {
	positions, err := f.checkpoints()
	if err != nil {
		return checkpointHeader{}, err
	}
	for _, p := range positions {
		r, err := f.fs.Open(f.path(checkpointName(p)))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return checkpointHeader{}, fmt.Errorf("store: open %s: %w", f.path(checkpointName(p)), err)
		}
		var b [checkpointHeaderBytes]byte
		_, err = io.ReadFull(io.NewSectionReader(r, 0, checkpointHeaderBytes), b[:])
		_ = r.Close() // it was read only
		if err != nil {
			continue
		}
		if h, err := decodeCheckpointHeader(b[:], checkpointMagic, checkpointVersion); err == nil && h.StoreID == f.storeID && h.Position == p {
			return h, nil
		}
	}
	return checkpointHeader{}, nil
}
