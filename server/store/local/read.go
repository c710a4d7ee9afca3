package local

import (
	"errors"
	"fmt"
	"slices"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/wire"
)

// window is how many index entries Read looks at together.
type window [128]index.Entry

// Read appends the batches that hold [from, to).
func (s *Store) Read(p store.Partition, from, to index.Index, bytesMax int, buf []byte) ([]byte, index.Index, error) {
	if _, err := s.part(p); err != nil {
		return buf, from, err
	}
	k := keyOf(p)
	first, end := s.index.Bounds(k)
	switch {
	case from < first:
		return buf, from, fmt.Errorf("%w: %d, the first is %d", store.ErrTrimmed, from, first)
	case from > end:
		return buf, from, fmt.Errorf("%w: %d, the end is %d", store.ErrBeyond, from, end)
	}
	to = min(to, end)
	w, ok := s.windows.Get().(*window)
	if !ok {
		w = new(window)
	}
	defer s.windows.Put(w)

	begin, next := len(buf), from
	for next < to {
		entries, err := s.index.Range(k, next, min(to, next+index.Index(len(w))), w[:0])
		if err != nil {
			return buf[:begin], from, s.unreadable(p, err)
		}
		for i := 0; i < len(entries); {
			e := &entries[i]
			if len(buf) > begin && len(buf)-begin+int(e.Size) > bytesMax {
				return buf, next, nil
			}
			head := next - index.Index(e.Slot) // only the first batch of all can begin before next
			if buf, err = s.readBatch(p, head, e, buf); err != nil {
				return buf[:begin], from, s.unreadable(p, err)
			}
			n := int(e.Count - e.Slot)
			next += index.Index(n)
			i += n
		}
	}
	return buf, next, nil
}

// readBatch appends the batch that e is a message of, and that begins at index first.
func (s *Store) readBatch(p store.Partition, first index.Index, e *index.Entry, buf []byte) ([]byte, error) {
	n := len(buf)
	size := journal.RecordBytes(int(e.Size))
	buf = slices.Grow(buf, size)
	rec, _, err := s.log.ReadAt(journal.Position(e.Position), buf[n:n+size])
	if err != nil {
		return buf[:n], err
	}
	b := wire.Batch(rec.Payload)
	if rec.Kind != journal.KindMessages || len(b) != int(e.Size) || len(b) < wire.BatchHeaderBytes ||
		partitionOf(b) != p || index.Index(b.FirstIndex()) != first || b.Count() != int(e.Count) {
		return buf[:n], fmt.Errorf("%w: the record at position %d is not the batch at index %d of topic %d, partition %d",
			store.ErrDamaged, e.Position, first, p.Topic, p.Partition)
	}
	return append(buf[:n], b...), nil
}

// unreadable is what to say of a partition that cannot be read: it may have been trimmed or deleted meanwhile.
func (s *Store) unreadable(p store.Partition, err error) error {
	if _, gone := s.part(p); gone != nil {
		return gone
	}
	switch {
	case errors.Is(err, index.ErrTrimmed), errors.Is(err, journal.ErrTrimmed):
		return fmt.Errorf("%w: %w", store.ErrTrimmed, err)
	case errors.Is(err, index.ErrBeyond):
		return fmt.Errorf("%w: %w", store.ErrBeyond, err)
	}
	return s.damaged(err)
}

// damaged turns what index and journal say of damage into store.ErrDamaged, and sees to the repair of what can be.
func (s *Store) damaged(err error) error {
	var d *index.DamageError
	var c *journal.CorruptError
	switch {
	case errors.Is(err, store.ErrDamaged):
		return err
	case errors.As(err, &d):
		s.background.repair(d.Run)
	case errors.As(err, &c):
	default:
		return err
	}
	return fmt.Errorf("%w: %w", store.ErrDamaged, err)
}
