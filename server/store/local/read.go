package local

import (
	"errors"
	"fmt"
	"slices"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/planted"
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
	var tried uint64 // the position that was looked at last
	for next < to {
		entries, err := s.index.Range(k, next, min(to, next+index.Index(len(w))), w[:0])
		again := len(entries) > 0 && entries[0].Position != tried
		for i := 0; i < len(entries); {
			e := &entries[i]
			tried = e.Position
			if len(buf) > begin && len(buf)-begin+int(e.Size) > bytesMax {
				return buf, next, nil
			}
			head := next - index.Index(e.Slot) // only the first batch of all can begin before next
			if buf, err = s.readBatch(p, head, e, buf); err != nil {
				break
			}
			n := int(e.Count - e.Slot)
			next += index.Index(n)
			i += n
		}
		switch {
		case err == nil:
		case next > from:
			return buf, next, nil // who comes back for the rest is told
		case errors.Is(err, journal.ErrTrimmed) && again:
			// It was carried forward since the index was asked, and its segment is gone.
		default:
			return buf[:begin], from, s.unreadable(p, from, err)
		}
	}
	return buf, next, nil
}

// errLost: the index says that a message is lost.
var errLost = errors.New("store: message is lost")

// readBatch appends the batch that e is a message of, and that begins at index first.
func (s *Store) readBatch(p store.Partition, first index.Index, e *index.Entry, buf []byte) ([]byte, error) {
	if e.Size == 0 {
		return buf, errLost
	}
	n := len(buf)
	size := journal.RecordBytes(int(e.Size))
	buf = slices.Grow(buf, size)
	rec, _, err := s.log.ReadAt(journal.Position(e.Position), buf[n:n+size])
	if err != nil {
		return buf[:n], err
	}
	b, err := checkBatch(&rec, p, first, e)
	if err != nil {
		return buf[:n], err
	}
	return append(buf[:n], b...), nil
}

// checkBatch returns the batch in a record that the index says is the one of e. A *store.GapError: the record says that it is lost.
func checkBatch(rec *journal.Record, p store.Partition, first index.Index, e *index.Entry) (wire.Batch, error) {
	b, err := recordBatch(rec)
	if err != nil {
		i := first + index.Index(e.Slot)
		if lost := (*lostError)(nil); errors.As(err, &lost) && lost.partition == p && lost.from <= i && i < lost.to {
			return nil, &store.GapError{From: i, To: lost.to}
		}
	}
	if err != nil || len(b) != int(e.Size) || partitionOf(b) != p || index.Index(b.FirstIndex()) != first || b.Count() != int(e.Count) {
		return nil, fmt.Errorf("%w: the record at position %d is not the batch at index %d of topic %d, partition %d",
			store.ErrDamaged, e.Position, first, p.Topic, p.Partition)
	}
	return b, nil
}

// unreadable is what to say of message i of a partition, which cannot be read: it may have been trimmed or deleted meanwhile.
func (s *Store) unreadable(p store.Partition, i index.Index, err error) error {
	if _, gone := s.part(p); gone != nil {
		return gone
	}
	var lost *journal.LostError
	switch {
	case errors.Is(err, index.ErrTrimmed):
		return fmt.Errorf("%w: %w", store.ErrTrimmed, err)
	case errors.Is(err, index.ErrBeyond):
		return fmt.Errorf("%w: %w", store.ErrBeyond, err)
	case errors.Is(err, journal.ErrTrimmed):
		if first, _ := s.index.Bounds(keyOf(p)); first > i {
			return fmt.Errorf("%w: %d, the first is %d", store.ErrTrimmed, i, first)
		}
		return fmt.Errorf("%w: the file of its segment is gone, and will be made again", store.ErrDamaged)
	case errors.Is(err, errLost):
		return s.gap(p, i, journal.Hole{})
	case errors.As(err, new(*store.GapError)):
		return err
	case errors.As(err, &lost):
		return s.gap(p, i, journal.Hole{From: lost.From, To: lost.To})
	}
	return s.damaged(err)
}

// gapEntriesMax is how far a gap is looked for. A longer one is told in parts.
const gapEntriesMax = 1 << 16

// gap tells of the gap that begins at message from, which is lost, itself or its record in a hole of the log.
func (s *Store) gap(p store.Partition, from index.Index, h journal.Hole) error {
	_, end := s.index.Bounds(keyOf(p))
	to, end := from, min(end, from+gapEntriesMax)
	w, ok := s.windows.Get().(*window)
	if !ok {
		w = new(window)
	}
	defer s.windows.Put(w)
	for to < end {
		entries, err := s.index.Range(keyOf(p), to, min(end, to+index.Index(len(w))), w[:0])
		for i := range entries {
			if e := &entries[i]; e.Size != 0 && !h.Contains(journal.Position(e.Position)) {
				if planted.Bug("store: gap too wide") {
					to++
				}
				return &store.GapError{From: from, To: to}
			}
			to++
		}
		if err != nil {
			break
		}
	}
	return &store.GapError{From: from, To: max(to, from+1)}
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
		s.heal(c.Position)
	default:
		return err
	}
	return fmt.Errorf("%w: %w", store.ErrDamaged, err)
}

// isGone says that the message is not there any more, and rightly so.
func isGone(err error) bool {
	return errors.Is(err, store.ErrNoPartition) || errors.Is(err, store.ErrTrimmed)
}
