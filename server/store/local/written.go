package local

import (
	"errors"
	"fmt"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/store"
)

// Written returns where the batch that holds message i was written first, and in which epoch. Two replicas for which both are equal have
// the same messages up to there. Errors are those of Read.
func (s *Store) Written(p store.Partition, i index.Index) (journal.Position, journal.Epoch, error) {
	if _, err := s.part(p); err != nil {
		return 0, 0, err
	}
	var one [1]index.Entry
	for tried := uint64(0); ; {
		entries, err := s.index.Range(keyOf(p), i, i+1, one[:0])
		if err != nil {
			return 0, 0, s.unreadable(p, i, err)
		}
		e := &entries[0]
		if e.Size == 0 {
			return 0, 0, s.unreadable(p, i, errLost)
		}
		rec, _, err := s.log.ReadAt(journal.Position(e.Position), make([]byte, journal.RecordBytes(int(e.Size))))
		if errors.Is(err, journal.ErrTrimmed) && e.Position != tried {
			tried = e.Position // it was carried forward since the index was asked
			continue
		}
		if err != nil {
			return 0, 0, s.unreadable(p, i, err)
		}
		if _, err := checkBatch(&rec, p, i-index.Index(e.Slot), e); err != nil {
			return 0, 0, s.unreadable(p, i, err)
		}
		if rec.Kind != journal.KindCarriedForward {
			return rec.Position, rec.Epoch, nil
		}
		c, err := parseCarried(rec.Payload)
		if err != nil {
			return 0, 0, fmt.Errorf("%w: the record at position %d: %w", store.ErrDamaged, e.Position, err)
		}
		return c.Position, c.Epoch, nil
	}
}
