package local

import (
	"errors"
	"fmt"
	"math"

	"github.com/jmqio/jmq/server/dedupe"
	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/planted"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/wire"
)

// Open opens the store in a folder, or makes one. When it returns, everything that was ever answered is there again.
//
// Errors, each one line that names the folder or file: ErrInUse, ErrVersion, a folder that cannot be written, one whose
// checkpoints are all damaged while its journal was trimmed, *journal.CorruptError and other errors of the log's.
func Open(opt Options) (*Store, error) {
	opt = opt.withDefaults()
	if err := opt.validate(); err != nil {
		return nil, err
	}
	f, err := openFolder(&opt)
	if err != nil {
		return nil, err
	}
	s := &Store{opt: opt, folder: f, topics: store.NewTopics(), dedupe: dedupe.New()}
	s.tables = append([]store.Table{s.topics, s.dedupe}, opt.Tables...)
	s.byID.Store(new([]*topicState))
	s.add = s.gathered
	s.background.init()
	s.healing.init()
	s.following.init()
	s.index = opt.OpenIndex(index.Options{
		FS: opt.FS, Dir: f.index, StoreID: f.storeID, FilesOpenMax: opt.IndexFilesOpenMax,
		FlushBytes: opt.IndexFlushBytes, TailBytesMax: opt.IndexTailBytesMax, RunBytesMax: opt.IndexRunBytesMax,
	})
	if err := s.recover(); err != nil {
		// Why it does not open is told; what went wrong on the way out adds nothing.
		if s.log != nil {
			_ = s.log.Close()
		}
		_ = s.index.Close()
		_ = f.close()
		return nil, err
	}
	s.started.Store(true)
	if opt.Follow {
		s.startFollowing()
	}
	go s.run()
	s.startVerifier()
	if s.due() {
		s.background.kick()
	}
	return s, nil
}

// ErrNeedsCopy: the folder does not hold what it once held, or not what its checkpoints are of, and it cannot be made again from the log: a
// full copy of another store helps, or what is missing, brought back.
var ErrNeedsCopy = errors.New("store: only a full copy helps")

// copyError is an error that is ErrNeedsCopy.
type copyError struct{ error }

func (e copyError) Is(target error) bool { return target == ErrNeedsCopy }
func (e copyError) Unwrap() error        { return e.error }

func needsCopy(format string, args ...any) error { return copyError{fmt.Errorf(format, args...)} }

func (s *Store) recover() error {
	found, damaged, bad, start, err := s.openLog()
	if err != nil {
		return err
	}
	if n := s.topics.Len(); s.apply.end > start || !found {
		s.opt.Logger.Info("store recovered", "folder", s.folder.dir, "checkpoint", start, "position", s.apply.end, "topics", n)
	}
	if holes := s.log.Holes(); len(holes) > 0 {
		s.opt.Logger.Warn("ranges of the journal were lost to damage", "folder", s.folder.journal, "ranges", len(holes), "first", holes[0].From, "to", holes[len(holes)-1].To)
	}
	if err := s.recoverIndex(bad); err != nil {
		return err
	}
	if begin := s.log.Begin(); begin > 0 {
		if err := s.checkBegin(begin); err != nil {
			return err
		}
	}
	// They would be taken for the newest again, and the next checkpoints for older ones.
	for _, p := range damaged {
		name := s.folder.path(checkpointName(p))
		if err := s.folder.fs.Rename(name, name+setAside); err != nil {
			return fmt.Errorf("store: set a damaged checkpoint aside: %w", err)
		}
	}

	if s.lost.any {
		s.apply.Lock()
		s.recoverEnds()
		s.apply.Unlock()
		s.opt.Logger.Error("records of the journal were lost to damage", "folder", s.folder.journal, "position", s.lost.last, "messages", s.lost.messages)
	}
	for _, t := range *s.byID.Load() {
		if t == nil {
			continue
		}
		for n := range int(t.topic.Partitions) {
			p := t.part(n)
			_, p.assigned = s.index.Bounds(p.key())
		}
	}
	s.changing.start(s.topics)
	return nil
}

// openLog restores the newest checkpoint and opens the log with it, which applies what follows. The log of a slave may have been cut, since it
// had what its master never committed: then checkpoints of what was cut are passed over, as damaged ones are.
func (s *Store) openLog() (found bool, damaged []journal.Position, bad []*index.DamageError, start journal.Position, err error) {
	for below := journal.Position(math.MaxUint64); ; below = start {
		if found, damaged, err = s.restoreNewest(below); err != nil {
			return
		}
		if bad, err = s.index.Load(); err != nil {
			err = fmt.Errorf("store: %w", err)
			return
		}
		start = s.apply.end
		s.restored = s.apply.epoch
		if err = s.checkHistory(start); err == nil {
			err = s.openLogAt(start)
		}
		if err == nil {
			err = s.checkLog(found, start)
		}
		if err == nil || !s.opt.Follow || !found || !errors.Is(err, ErrNeedsCopy) {
			return
		}
		s.opt.Logger.Warn("checkpoint is not of what the log has, an older one is used", "folder", s.folder.dir, "position", start, "err", err)
		if s.log != nil {
			_ = s.log.Close() // it is opened again
			s.log = nil
		}
		s.byID.Store(new([]*topicState))
		s.apply.end, s.apply.epoch, s.apply.since, s.apply.dropped = 0, 0, 0, nil
		s.apply.err, s.flushAt = nil, 0
		s.lost.any, s.lost.last, s.lost.bytes, s.lost.messages = false, 0, 0, 0
		s.background.mu.position, s.background.mu.older = 0, 0
	}
}

// checkLog sees that the log has what the checkpoint of position start is of.
func (s *Store) checkLog(found bool, start journal.Position) error {
	if s.opt.Follow {
		var ok bool
		if s.followed, ok = s.log.(FollowedLog); !ok {
			return fmt.Errorf("store: the log of %s does not follow another", s.folder.dir)
		}
	}
	if begin := s.log.Begin(); begin > start {
		return s.refuse(found, begin)
	}
	if end := s.log.Committed(); end < start {
		return needsCopy("store: the log of %s ends at position %d, but its checkpoint is of position %d", s.folder.dir, end, start)
	}
	return nil
}

// checkHistory sees that the log of a slave was not cut below start, and has grown again since: then it has other records there, of a later
// epoch. (Logs that have one record in common have all before it in common.) It is asked before the log is opened, which would
// take records that do not begin where the checkpoint says for damaged ones.
func (s *Store) checkHistory(start journal.Position) error {
	if !s.opt.Follow || start == 0 || planted.Bug("store: checkpoint of what was cut") {
		return nil
	}
	history, err := journal.ReadHistory(s.opt.FS, s.folder.journal, s.folder.storeID)
	if err != nil {
		return fmt.Errorf("store: read the epochs of the log of %s: %w", s.folder.dir, err)
	}
	if e := epochBelow(history, start); e > s.restored {
		return needsCopy("store: the log of %s has a record of epoch %v below position %d, but its checkpoint has one of epoch %v", s.folder.dir, e, start, s.restored)
	}
	return nil
}

// epochBelow returns the epoch of the last record below a position; 0: not known.
func epochBelow(history []journal.EpochStart, p journal.Position) (e journal.Epoch) {
	for _, h := range history {
		if h.Position < p {
			e = h.Epoch
		}
	}
	return e
}

// openLogAt opens the log; what it has from start on is applied.
func (s *Store) openLogAt(start journal.Position) (err error) {
	var in batchReader
	s.log, err = s.opt.OpenLog(LogOptions{
		FS: s.opt.FS, Dir: s.folder.journal, StoreID: s.folder.storeID,
		SegmentBytesMax: s.opt.SegmentBytesMax, SegmentBytesFirst: s.opt.SegmentBytesFirst,
		CommitBytesMax: s.opt.CommitBytesMax, QueueBytesMax: s.opt.QueueBytesMax, QueueLenMax: s.opt.QueueLenMax,
		IdleAfter: s.opt.IdleAfter, Start: start, StartEpoch: s.apply.epoch, Term: s.opt.Term,
		Now: s.opt.Now, Logger: s.opt.Logger, Progress: s.opt.Progress,
		BeforeCommit: s.beforeCommit, AfterCommit: s.afterCommit,
		Recovered: func(rec journal.Record) error {
			err := s.recovered(&rec, &in)
			if err != nil && s.opt.Follow { // it contradicts the checkpoint
				err = copyError{err}
			}
			return err
		},
		OnCommitted: s.following.committed,
	})
	if err != nil {
		s.log = nil
		if errors.As(err, new(*journal.CorruptError)) && s.opt.Follow && start > 0 {
			err = copyError{err}
		}
		return fmt.Errorf("store: open the log of %s: %w", s.folder.dir, err)
	}
	return nil
}

// setAside is the end of the names of files that are not read any more, for people to look at.
const setAside = ".bad"

// recoverIndex makes the runs again that could not be loaded, and sees that the index is whole.
func (s *Store) recoverIndex(bad []*index.DamageError) error {
	var runs []index.RunID
	for _, d := range bad {
		s.opt.Logger.Warn("part of the index is damaged and is rebuilt from the journal", "folder", s.folder.dir, "err", d)
		runs = append(runs, d.Run)
	}
	if len(runs) > 0 {
		if err := s.rebuild(runs); err != nil {
			return fmt.Errorf("store: rebuild the index of %s: %w", s.folder.dir, err)
		}
		s.background.mu.repaired += int64(len(runs))
	}
	begin := uint64(s.log.Begin())
	trimmed, holes := s.index.Check(begin)
	if len(holes) > 0 {
		s.opt.Logger.Warn("index is not whole and is rebuilt from the journal", "folder", s.folder.dir, "places", len(holes), "first", holes[0])
		if err := s.rebuild(s.index.Runs()); err != nil {
			return fmt.Errorf("store: rebuild the index of %s: %w", s.folder.dir, err)
		}
		var more []index.Hole
		more, holes = s.index.Check(begin)
		trimmed = append(trimmed, more...)
	}
	for _, h := range trimmed {
		s.opt.Logger.Warn("messages are not in the journal any more", "folder", s.folder.dir, "topic", h.Key.Topic, "partition", h.Key.Partition, "from", h.From, "to", h.To)
	}
	if len(holes) > 0 {
		return fmt.Errorf("store: index and checkpoint of %s contradict each other in %d places, the first: %v", s.folder.dir, len(holes), holes[0])
	}
	return nil
}

// checkBegin sees that each message the index has is in the log, which begins late. Where it is not, segments were removed by
// someone else (release): whoever consumes those messages would wait for them for ever.
func (s *Store) checkBegin(begin journal.Position) error {
	if oldest, any := s.index.Oldest(); !any || journal.Position(oldest) >= begin {
		return nil
	}
	var found error
	s.index.Below(uint64(begin), func(k index.Key, from, _ index.Index, _ int64) bool {
		name := fmt.Sprint(k.Topic)
		if t, err := s.find(store.TopicID(k.Topic), k.Incarnation); err == nil {
			name = fmt.Sprintf("%q", t.topic.Name)
		}
		found = needsCopy("store: the log of %s begins at position %d, but message %d of topic %s, partition %d, is at a position below it: segments are missing, bring them back",
			s.folder.dir, begin, from, name, k.Partition)
		return false
	})
	return found
}

// refuse says that the log begins too late for what is known of the time before.
func (s *Store) refuse(found bool, begin journal.Position) error {
	if !found {
		return needsCopy("store: %s has no whole checkpoint left and its log begins at position %d: what was before cannot be rebuilt, so it is left as it is",
			s.folder.dir, begin)
	}
	return needsCopy("store: %s has no whole checkpoint from position %d on, where its log begins: what was before cannot be rebuilt, so it is left as it is",
		s.folder.dir, begin)
}

// restoreNewest restores the newest whole checkpoint below a position; false when there is none. It also returns the newer ones, which are
// damaged or not below.
func (s *Store) restoreNewest(below journal.Position) (found bool, damaged []journal.Position, err error) {
	positions, err := s.folder.checkpoints()
	if err != nil {
		return false, nil, err
	}
	for i, p := range positions {
		if p >= below {
			damaged = append(damaged, p)
			continue
		}
		h, err := s.restore(p)
		if err == nil {
			s.apply.end, s.apply.epoch = h.Position, h.Epoch
			s.background.mu.position = p
			if i+1 < len(positions) {
				s.background.mu.older = positions[i+1]
			}
			return true, damaged, nil
		}
		if !errors.Is(err, errCheckpoint) {
			return false, nil, err
		}
		damaged = append(damaged, p)
		s.opt.Logger.Warn("checkpoint is damaged, an older one is used", "folder", s.folder.dir, "position", p, "err", err)
	}
	if err := s.reset(); err != nil {
		return false, nil, err
	}
	if len(positions) > 0 {
		s.opt.Logger.Warn("no checkpoint is whole, the log is read from its begin", "folder", s.folder.dir)
	}
	return false, damaged, nil
}

// reset forgets what a checkpoint said.
func (s *Store) reset() error {
	s.index.Reset(0, nil)
	for _, t := range s.tables {
		if err := t.Restore(nil); err != nil {
			return err
		}
	}
	return nil
}

// restore fills index and tables from one checkpoint, which is checked before anything is changed.
func (s *Store) restore(p journal.Position) (checkpointHeader, error) {
	if err := s.reset(); err != nil {
		return checkpointHeader{}, err
	}
	h, err := s.folder.openCheckpoint(p, &checkpointVisitor{
		runs: s.index.Reset,
		partition: func(st *index.State, more bool) error {
			if more {
				s.index.RestoreMore(st.Key, st.Tail)
			} else {
				s.index.Restore(st)
			}
			return nil
		},
		table: func(name string, state []byte) error {
			for _, t := range s.tables {
				if t.Name() == name {
					if err := t.Restore(state); err != nil {
						return fmt.Errorf("table %s: %w", name, err)
					}
					return nil
				}
			}
			// Its state would be gone with the next checkpoint.
			return fmt.Errorf("table %s is not known to this program", name)
		},
	})
	if err != nil {
		return h, err
	}
	for _, t := range s.topics.List() {
		if err := s.setTopic(&t); err != nil {
			return h, err
		}
	}
	return h, nil
}

// recovered applies one record that the log kept.
func (s *Store) recovered(rec *journal.Record, in *batchReader) error {
	if rec.Position < s.apply.end {
		return nil // what the checkpoint has
	}
	live := s.started.Load() // it follows
	if rec.Position > s.apply.end {
		if live {
			return fmt.Errorf("store: the log of %s has nothing between positions %d and %d", s.folder.dir, s.apply.end, rec.Position)
		}
		return s.refuse(s.background.mu.position != 0, rec.Position)
	}
	if rec.Kind != journal.KindMessages {
		if rec.Kind == journal.KindLost {
			s.apply.Lock()
			s.lost.any, s.lost.last = true, rec.Position
			s.lost.bytes += len(rec.Payload)
			s.apply.Unlock()
		}
		return s.applyRecord(rec, len(rec.Payload), nil, 0, nil)
	}
	p, first, batch, err := in.read(rec)
	if err != nil {
		return err
	}
	if s.lost.any {
		if err := s.recoverLost(p, first, wire.Batch(rec.Payload).Namespace()); err != nil {
			return fmt.Errorf("record at position %d: %w", rec.Position, err)
		}
	}
	pt, err := s.part(p)
	if err != nil {
		return fmt.Errorf("record at position %d: %w", rec.Position, err)
	}
	size := len(rec.Payload)
	rec.Payload = rec.Payload[:wire.BatchHeaderBytes]
	if err := s.applyRecord(rec, size, pt, first, batch); err != nil {
		return err
	}
	if live {
		if !pt.grown {
			pt.grown = true
			s.grown = append(s.grown, pt)
		}
		return nil
	}
	if s.index.TailBytes() > s.opt.IndexTailBytesMax && s.apply.end >= s.flushAt {
		s.flushAt = s.apply.end + 16<<20
		if _, err := s.index.Flush(uint64(s.apply.end)); err != nil {
			// The entries stay in memory; the next checkpoint tries again.
			s.opt.Logger.Warn("index cannot be flushed", "folder", s.folder.dir, "err", err)
		}
	}
	return nil
}

// recoverLost sees that what records of a hole said of a partition does not keep the batch of index first out.
func (s *Store) recoverLost(p store.Partition, first index.Index, namespace uint32) error {
	s.apply.Lock()
	defer s.apply.Unlock()
	if _, err := s.part(p); err != nil {
		if err := s.recoverPartition(p, namespace); err != nil {
			return err
		}
	}
	s.appendLost(p, first)
	return nil
}

// appendLost marks the messages from a partition's end up to index to as lost: their records were in a hole of the log. s.apply is held.
func (s *Store) appendLost(p store.Partition, to index.Index) {
	if _, end := s.index.Bounds(keyOf(p)); end < to {
		s.lost.messages += int64(to - end)
		s.index.AppendLost(keyOf(p), to, uint64(s.lost.last))
	}
}

// recoverEnds raises the ends of partitions whose last messages were lost to where the tables know that there were some: an
// index that was given out is not given out again. s.apply is held.
func (s *Store) recoverEnds() {
	for _, t := range s.tables {
		if w, ok := t.(store.Witness); ok {
			w.Ends(func(topic uint64, incarnation uint32, partition uint16, end index.Index) {
				p := store.Partition{Topic: store.TopicID(topic), Incarnation: incarnation, Partition: partition}
				if _, err := s.part(p); err != nil {
					return
				}
				// No more than can have been there: each lost one takes memory.
				_, have := s.index.Bounds(keyOf(p))
				s.appendLost(p, min(end, have+index.Index(s.lost.bytes)))
			})
		}
	}
}

// batchReader makes index entries of a batch's record. What it returns is valid until it reads the next.
type batchReader struct {
	tags  []uint32
	batch index.Batch
}

func (r *batchReader) read(rec *journal.Record) (store.Partition, index.Index, *index.Batch, error) {
	b, err := recordBatch(rec)
	if err != nil {
		return store.Partition{}, 0, nil, fmt.Errorf("%w: record at position %d: %w", store.ErrBatch, rec.Position, err)
	}
	r.batch = index.Batch{
		Position: uint64(rec.Position), Stored: rec.Stored, Size: uint32(len(b)), Count: uint16(b.Count()),
	}
	if r.tags, r.batch.Tags, err = tagsOf(b, r.tags); err != nil {
		return store.Partition{}, 0, nil, fmt.Errorf("record at position %d: %w", rec.Position, err)
	}
	return partitionOf(b), index.Index(b.FirstIndex()), &r.batch, nil
}

func partitionOf(b wire.Batch) store.Partition {
	return store.Partition{Topic: store.TopicID(b.Topic()), Incarnation: b.Incarnation(), Partition: b.Partition()}
}
