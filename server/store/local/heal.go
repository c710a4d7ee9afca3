package local

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/store"
)

// healing has what was found damaged in the log, and what became of it.
type healing struct {
	ctx    context.Context // ends with the store
	cancel context.CancelFunc

	restoring string // what restoreFiles found wrong last; the background goroutine's own

	mu struct {
		sync.Mutex
		wanted map[journal.Position]bool // false: there was no damage, and it is not looked at again
		healed int64
		mended int64 // of these
		lost   int64 // messages in what was healed and not mended
		// unmended are those that a copy did not bring again; after is when that is tried next.
		unmended []journal.Hole
		after    time.Time
		wait     time.Duration
		// messages are how many were found in a hole when it was first asked.
		messages map[journal.Hole]uint64
	}
}

func (h *healing) init() {
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.mu.wanted, h.mu.messages = map[journal.Position]bool{}, map[journal.Hole]uint64{}
}

// heal asks for a look at the damage that a reader found at a position of the log.
func (s *Store) heal(at journal.Position) {
	h := &s.healing.mu
	h.Lock()
	_, known := h.wanted[at]
	if !known {
		h.wanted[at] = true
	}
	h.Unlock()
	if !known {
		s.background.kick()
	}
}

// healWanted sees to what was asked for. The background goroutine calls it: Heal waits for commits, which may be what found
// the damage.
func (s *Store) healWanted() {
	h := &s.healing.mu
	h.Lock()
	var list []journal.Position
	for at, wanted := range h.wanted {
		if wanted {
			list = append(list, at)
		}
	}
	h.Unlock()
	for _, at := range list {
		hole, err := s.healNow(at)
		h.Lock()
		if err == nil && hole == (journal.Hole{}) {
			h.wanted[at] = false
		} else {
			delete(h.wanted, at) // after an error the next who reads asks again
		}
		h.Unlock()
	}
}

// healNow turns damage of the log into a hole. The zero hole: there is none.
func (s *Store) healNow(at journal.Position) (journal.Hole, error) {
	before := len(s.log.Holes())
	hole, err := s.healAt(at)
	if err == nil && len(s.log.Holes()) > before {
		s.checkpointHeal()
	}
	return hole, err
}

// healAt is healNow without the checkpoint.
func (s *Store) healAt(at journal.Position) (journal.Hole, error) {
	before := s.log.Holes()
	hole, err := s.log.Heal(at)
	switch {
	case errors.Is(err, journal.ErrTrimmed), errors.Is(err, journal.ErrClosed):
		return hole, err
	case err != nil:
		s.opt.Logger.Error("journal is damaged and cannot be healed", "folder", s.folder.journal, "position", at, "err", err)
		return hole, err
	}
	for _, made := range s.log.Holes() { // all that was damaged in the segment
		if !slices.Contains(before, made) {
			s.made(made)
		}
	}
	return hole, nil
}

// made counts a new hole, and asks a copy for what was in it.
func (s *Store) made(hole journal.Hole) {
	n := s.messagesIn(hole)
	h := &s.healing.mu
	h.Lock()
	h.healed++
	h.lost += int64(n)
	h.unmended = append(h.unmended, hole)
	h.Unlock()
	if !s.mend(hole) {
		s.opt.Logger.Error("messages are lost to damage of the journal", "folder", s.folder.journal, "position", hole.From, "to", hole.To, "messages", n)
	}
}

// restoreFiles sees to files of the log that were deleted. The background goroutine calls it.
func (s *Store) restoreFiles() {
	lost, err := s.log.Restore()
	for _, hole := range lost {
		s.made(hole)
	}
	if len(lost) > 0 {
		s.checkpointHeal()
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != s.healing.restoring {
		s.opt.Logger.Error("a file of the journal was deleted and cannot be made again, trying on", "folder", s.folder.journal, "err", err)
	}
	s.healing.restoring = text
}

// checkpointHeal writes a checkpoint after a hole was made. What else was in it the tables know: with a checkpoint they need not be told it again.
func (s *Store) checkpointHeal() {
	if err := s.Checkpoint(); err != nil && !errors.Is(err, journal.ErrClosed) {
		s.opt.Logger.Error("checkpoint failed", "folder", s.folder.dir, "err", err)
	}
}

// isHole says whether what a hole was made of is still lost.
func (s *Store) isHole(h journal.Hole) bool { return slices.Contains(s.log.Holes(), h) }

// mend asks for what is in a hole from a copy; false: it is lost as it was.
func (s *Store) mend(hole journal.Hole) bool {
	if s.opt.Mend == nil {
		return false
	}
	if s.isHole(hole) { // else someone else has done it
		ctx, cancel := context.WithTimeout(s.healing.ctx, mendTimeout)
		err := s.opt.Mend(ctx, hole.From, hole.To)
		cancel()
		if err != nil {
			s.opt.Logger.Warn("damage of the journal cannot be mended from a copy", "folder", s.folder.journal, "position", hole.From, "to", hole.To, "err", err)
			return false
		}
	}
	n := int64(s.messagesIn(hole))
	h := &s.healing.mu
	h.Lock()
	defer h.Unlock()
	if i := slices.Index(h.unmended, hole); i >= 0 {
		h.unmended = slices.Delete(h.unmended, i, i+1)
		h.mended++
		h.lost -= n
		s.opt.Logger.Info("damage of the journal is mended from a copy", "folder", s.folder.journal, "position", hole.From, "to", hole.To, "messages", n)
	}
	return true
}

// mendAgain tries what could not be mended before, when it is time.
func (s *Store) mendAgain() {
	h := &s.healing.mu
	h.Lock()
	var list []journal.Hole
	if now := time.Now(); s.opt.Mend != nil && len(h.unmended) > 0 && !now.Before(h.after) {
		list = slices.Clone(h.unmended)
		h.wait = min(max(mendAfter, 2*h.wait), mendAfterMax)
		h.after = now.Add(h.wait)
	}
	h.Unlock()
	for _, hole := range list {
		if s.mend(hole) {
			h.Lock()
			h.wait = 0
			h.Unlock()
		}
	}
}

// messagesIn returns how many messages the index has in a hole, or had when it was first asked. What it cannot read is not
// counted.
func (s *Store) messagesIn(h journal.Hole) (n uint64) {
	m := &s.healing.mu
	m.Lock()
	n, known := m.messages[h]
	m.Unlock()
	if known {
		return n
	}
	s.index.Below(uint64(h.To), func(k index.Key, from, to index.Index, _ int64) bool {
		if first, err := s.index.SeekPosition(k, uint64(h.From)); err == nil && max(first, from) < to {
			n += uint64(to - max(first, from))
		}
		return true
	})
	m.Lock()
	m.messages[h] = n
	m.Unlock()
	return n
}

// recoverPartition makes the partition of a batch known whose topic's record was lost.
func (s *Store) recoverPartition(p store.Partition, namespace uint32) error {
	t, gone, err := s.topics.Recover(namespace, p)
	if err != nil {
		return err
	}
	for i := range gone {
		s.dropTopic(&gone[i])
	}
	s.opt.Logger.Error("the record of a topic is lost; its messages are kept", "topic", t.Name, "partition", p.Partition)
	return s.setTopic(&t)
}
