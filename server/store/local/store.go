// Package local is the store engine of one machine: a log (server/journal, through a replica) and an index (server/index)
// in one, with tables derived from the log and checkpoints of all of it.
//
// What lies in the folder (FORMAT.md):
//
//	STORE                    format version and store id
//	LOCK, OWNER              held while open; whose process it is, for people
//	journal/                 the truth: records of all kinds, in order
//	index/                   a few files with what the checkpoints do not hold of the index
//	checkpoint-POSITION.ckpt the two newest: what all records below POSITION say
//
// The way of an append: under the order lock the batch gets its first index and its place in the log; the log commits it
// and calls back, in order; the record is applied to the index and the tables; then its owner is answered. So two ends
// are kept apart: assigned (what the next batch gets) and committed (what is applied, and all that anyone can see):
//
//	first <= committed <= assigned
//
// A batch that its producer sends again (server/dedupe) is found under the order lock, so that nothing comes between the look and
// the place in the log; it gets none, and its owner is answered as for the first one.
//
// Recovery takes the newest whole checkpoint and applies the records from its position on. With no whole one, and a log
// that still begins at 0, it applies all of it; else it refuses: it never starts with less than it had.
//
// What goes: Trim and deleted topics let the index forget; Reclaim (reclaim.go) frees the oldest segments below which the index
// needs nothing, after it has carried forward what is little. Both kept checkpoints are then from after that moment, so
// an index entry that points below the log's begin means that somebody took segments away, and the store does not open.
//
// Damage: what a reader, the verifier or a Reclaim finds damaged in the log becomes a hole (heal.go). Messages in holes are gaps for
// Read. Where recovery meets a hole it goes on with what follows: indexes, topics and incarnations that were given out are
// not given out again.
//
// Following: the log of a slave follows its master's (Options.Follow). The store then takes no appends; it applies what the log
// commits as recovery would, some milliseconds later (follow.go), and what it does with what is applied it does as ever.
//
// Goroutines: two per store, for checkpoints, the index and repairs (background.go), and for verification (verify.go), and a third one
// for following (follow.go); Close waits for all.
//
// Lock order: reclaiming.work, background.work, then apply; order and apply are never held together; under each the log's and the
// index's own.
package local

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmqio/jmq/server/dedupe"
	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/store"
)

// topicsTable is the name of the store's first table.
const topicsTable = "topics"

// dedupeTable is that of its second one.
const dedupeTable = "dedupe"

// Store is the engine. See store.Store.
type Store struct {
	opt    Options
	folder *folder
	log    Log
	index  Index
	// followed is the log when Options.Follow is set, else nil.
	followed FollowedLog

	topics *store.Topics
	dedupe *dedupe.Table
	tables []store.Table // topics first, then dedupe

	// byID has each topic's state at its id; 0 is nobody. Apply changes it, in a longer list or a new one.
	byID atomic.Pointer[[]*topicState]

	watch   atomic.Pointer[func(store.Partition, index.Index)]
	failure atomic.Pointer[error]
	started atomic.Bool // Open is done: the log's hooks may run

	// order gives each record its place: what happens under it happens in the order of the log. Nothing waits for the disk
	// under it.
	order struct {
		sync.Mutex
		closed bool
	}

	// apply is held while one record is applied, and while a checkpoint takes the tables' state.
	apply struct {
		sync.Mutex
		end   journal.Position // of the last record applied
		epoch journal.Epoch    // of the last record applied
		since int64            // bytes of journal since the last checkpoint
		err   error            // a record could not be applied: none is after it
		// dropped are partitions of deleted topics that the index still has.
		dropped []index.Key
	}

	restored journal.Epoch // of the last record below the checkpoint that was restored; 0: none was

	flushAt journal.Position // recovery flushes the index at it or later

	// grown are the partitions that grew in this commit. Only the committing goroutine touches it.
	grown []*part

	add      func(journal.Kind, []byte, func(error)) // s.gathered, made once
	pendings sync.Pool                               // *pending
	windows  sync.Pool                               // *window

	changing   changing
	trims      atomic.Uint64 // calls of Trim: there is something for a checkpoint though no record came
	background background
	healing    healing
	verifier   verifier
	reclaiming reclaiming
	following  following // when Options.Follow is set

	// lost is what recovery, or following, met of holes in the log. Guarded by apply; who applies reads any without it.
	lost struct {
		any      bool
		last     journal.Position
		bytes    int
		messages int64
	}

	close struct {
		sync.Once
		err error
	}
}

var _ store.Store = (*Store)(nil)

// changing has what topics get next, and the changes that are under way: of each name one at a time.
type changing struct {
	sync.Mutex
	names       map[topicName]*topicChange
	free        []store.TopicID // of topics that are not there any more
	nextID      store.TopicID
	incarnation uint32 // the highest given
}

// fail stops the store after a record was not committed or not applied: nothing is taken any more, and Err says why. What
// it says is ErrFailed, never ErrUnknown: for what is refused from now on the outcome is known.
func (s *Store) fail() {
	err := s.log.Err()
	s.apply.Lock()
	if s.apply.err != nil {
		err = fmt.Errorf("%w: %w", journal.ErrFailed, s.apply.err)
	}
	s.apply.Unlock()
	if err == nil {
		err = journal.ErrFailed
	}
	if s.failure.CompareAndSwap(nil, &err) {
		if errors.Is(err, journal.ErrFenced) {
			s.opt.Logger.Info("store takes no more as master's, for another broker is the master", "folder", s.folder.dir, "err", err)
			return
		}
		s.opt.Logger.Error("store stopped", "folder", s.folder.dir, "err", err)
	}
}

// Err is nil while the store takes writes, else why it stopped.
func (s *Store) Err() error {
	if p := s.failure.Load(); p != nil {
		return *p
	}
	return s.log.Err()
}

// Epoch is the log's.
func (s *Store) Epoch() journal.Epoch { return s.log.Epoch() }

// Kick starts a commit if none is running.
func (s *Store) Kick() { s.log.Kick() }

// WaitRoom waits until an append would not be refused with journal.ErrBusy, or ctx ends, or the store does.
func (s *Store) WaitRoom(ctx context.Context) error {
	if p := s.failure.Load(); p != nil {
		return *p
	}
	return s.log.WaitRoom(ctx)
}

// Watch registers the function that is told of partitions that grew.
func (s *Store) Watch(f func(p store.Partition, end index.Index)) { s.watch.Store(&f) }

// StoreID is the folder's, for ever.
func (s *Store) StoreID() [16]byte { return s.folder.storeID }

// Topic finds a topic by name.
func (s *Store) Topic(namespace uint32, name string) (store.Topic, bool) {
	if t, ok := s.topics.Find(namespace, name); ok {
		return *t, true
	}
	return store.Topic{}, false
}

// TopicByID finds a topic by id and incarnation.
func (s *Store) TopicByID(id store.TopicID, incarnation uint32) (store.Topic, bool) {
	if t := s.known(id, incarnation); t != nil {
		return t.topic, true
	}
	return store.Topic{}, false
}

// Committed is the end of what is committed of the log; it costs nothing to ask.
func (s *Store) Committed() journal.Position { return s.log.Committed() }

// Topics returns all topics, by id.
func (s *Store) Topics() []store.Topic { return s.topics.List() }

// Bounds returns the first index kept and the index after the last one committed.
func (s *Store) Bounds(p store.Partition) (first, end index.Index, err error) {
	if _, err := s.part(p); err != nil {
		return 0, 0, err
	}
	first, end = s.index.Bounds(keyOf(p))
	return first, end, nil
}

// Seek returns the first index stored at or after t, or the end.
func (s *Store) Seek(p store.Partition, t int64) (index.Index, error) {
	if _, err := s.part(p); err != nil {
		return 0, err
	}
	i, err := s.index.Seek(keyOf(p), t)
	if err != nil {
		return 0, s.unreadable(p, i, err)
	}
	return i, nil
}

// Stored returns the stored time of a message.
func (s *Store) Stored(p store.Partition, i index.Index) (int64, error) {
	if _, err := s.part(p); err != nil {
		return 0, err
	}
	var one [1]index.Entry
	e, err := s.index.Range(keyOf(p), i, i+1, one[:0])
	if err != nil {
		return 0, s.unreadable(p, i, err)
	}
	return e[0].Stored, nil
}

// Metrics of a Store.
type Metrics struct {
	Journal journal.Metrics
	Index   index.Metrics
	Topics  int
	// Applied is the end of what the index and the tables hold; Checkpoint the position of the newest checkpoint.
	Applied, Checkpoint journal.Position
	Checkpoints         int64 // written since the start
	CheckpointErrors    int64 // failed since the start
	CheckpointBytes     int64 // size of the newest
	CheckpointsBytes    int64 // and of all that were written
	CheckpointTook      time.Duration
	CheckpointHeld      time.Duration // how long the newest held off appends
	Repairs             int64         // parts of the index that were rebuilt

	Dedupe dedupe.Counts

	Holes            int   // in the log, left by damage
	Healed           int64 // of them since the start, not counting what opening found
	Mended           int64 // of these, brought again from a copy
	LostMessages     int64 // found lost since the start, at opening too, and not brought again
	VerifiedBytes    int64 // of segments read again in the background
	VerifiedSegments int64
	ReclaimedBytes   int64 // of segments that were freed
	CarriedBytes     int64 // appended again so that segments could be
	CarriedRecords   int64
}

// Metrics is what the store has, and did since it was opened.
func (s *Store) Metrics() Metrics {
	m := Metrics{Journal: s.log.Metrics(), Index: s.index.Metrics(), Topics: s.topics.Len(), Dedupe: s.dedupe.Counts()}
	s.apply.Lock()
	m.Applied, m.LostMessages = s.apply.end, s.lost.messages
	s.apply.Unlock()
	s.background.metrics(&m)
	m.Holes = len(s.log.Holes())
	h := &s.healing.mu
	h.Lock()
	m.Healed, m.Mended = h.healed, h.mended
	m.LostMessages += h.lost
	h.Unlock()
	v := &s.verifier.mu
	v.Lock()
	m.VerifiedBytes, m.VerifiedSegments = v.bytes, v.segments
	v.Unlock()
	r := &s.reclaiming.mu
	r.Lock()
	m.ReclaimedBytes, m.CarriedBytes, m.CarriedRecords = r.bytes, r.carried, r.carriedRecords
	r.Unlock()
	return m
}

// Close answers what is under way, writes a checkpoint, and releases the folder.
func (s *Store) Close() error {
	s.close.Do(func() { s.close.err = s.shut() })
	return s.close.err
}

func (s *Store) shut() error {
	s.order.Lock()
	s.order.closed = true
	s.order.Unlock()
	s.healing.cancel()
	if s.opt.Follow {
		s.following.stop() // the checkpoint is of what is applied now
	}
	s.verifier.stop()
	s.background.stop()
	errs := []error{s.log.Close()}                                // commits what it holds, and calls back
	cut := s.followed != nil && s.followed.Synced() < s.Applied() // below what is applied: a checkpoint would be of nothing
	if s.failure.Load() == nil && errs[0] == nil && !cut {
		errs = append(errs, s.checkpoint())
	}
	s.background.work.Lock()
	s.background.closed = true
	s.background.work.Unlock()
	errs = append(errs, s.index.Close(), s.folder.close())
	return errors.Join(errs...)
}
