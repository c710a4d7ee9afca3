package local

import (
	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/store"
)

// Trim drops what a partition keeps below first.
func (s *Store) Trim(p store.Partition, first index.Index) error {
	if _, err := s.part(p); err != nil {
		return err
	}
	s.index.SetFirst(keyOf(p), first)
	s.trims.Add(1)
	return nil
}

// dropPartitions takes what deleted topics had out of the index. background.work is held.
func (s *Store) dropPartitions(keys []index.Key) {
	for _, k := range keys {
		s.index.Drop(k)
	}
}

// takeDroppedLocked returns the partitions of topics that were deleted since it was last asked. s.apply is held.
func (s *Store) takeDroppedLocked() []index.Key {
	keys := s.apply.dropped
	s.apply.dropped = nil
	return keys
}
