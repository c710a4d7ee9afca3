package local

import (
	"errors"
	"slices"
	"sync"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/store"
)

// healing has what was found damaged in the log, and what became of it.
type healing struct {
	mu struct {
		sync.Mutex
		wanted map[journal.Position]bool // false: there was no damage, and it is not looked at again
		healed int64
		lost   int64 // messages in what was healed
		// messages are how many were found in a hole when it was first asked.
		messages map[journal.Hole]uint64
	}
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
		// What else was in the hole the tables know: with a checkpoint they need not be told it again.
		if err := s.Checkpoint(); err != nil && !errors.Is(err, journal.ErrClosed) {
			s.opt.Logger.Error("checkpoint failed", "folder", s.folder.dir, "err", err)
		}
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
		if slices.Contains(before, made) {
			continue
		}
		n := s.messagesIn(made)
		s.opt.Logger.Error("messages are lost to damage of the journal", "folder", s.folder.journal, "position", made.From, "to", made.To, "messages", n)
		h := &s.healing.mu
		h.Lock()
		h.healed++
		h.lost += int64(n)
		h.Unlock()
	}
	return hole, nil
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
