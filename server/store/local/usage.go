package local

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/store"
)

// Bytes returns about how many bytes of batches the partition keeps.
func (s *Store) Bytes(p store.Partition) (int64, error) {
	if _, err := s.part(p); err != nil {
		return 0, err
	}
	return s.index.Bytes(keyOf(p)), nil
}

// SeekBytes returns the first index from which on the partition keeps at most so many bytes.
func (s *Store) SeekBytes(p store.Partition, bytes int64) (index.Index, error) {
	if _, err := s.part(p); err != nil {
		return 0, err
	}
	return s.index.SeekBytes(keyOf(p), bytes), nil
}

// Usage says what the store takes on the disk, and what holds the oldest segments.
func (s *Store) Usage(holdsMax int) (store.Usage, error) {
	u := store.Usage{JournalFolder: s.folder.journal, IndexFolder: s.folder.index}
	segments := s.log.Segments()
	b := s.log.Bytes()
	u.JournalBytes, u.DamagedBytes = b.Segments+b.Spares+b.Reserve, b.Damaged
	u.Segments, u.Begin, u.End = len(segments), s.log.Begin(), s.log.Committed()
	if len(segments) > 0 {
		u.Oldest, u.OldestEnd = segments[0].Created, segments[0].End
	}
	var err error
	if u.IndexBytes, err = s.folder.bytesOf(s.folder.index, nil); err != nil {
		return u, err
	}
	if u.CheckpointBytes, err = s.folder.bytesOf(s.folder.dir, func(name string) bool { _, ok := parseCheckpointName(name); return ok }); err != nil {
		return u, err
	}
	for _, h := range s.log.Holes() {
		u.Holes = append(u.Holes, store.Hole{From: h.From, To: h.To, Messages: s.messagesIn(h)})
	}
	u.Holds, err = s.holds(segments, holdsMax)
	return u, err
}

// holds returns up to max partitions that have the oldest messages of the log. One segment after the other is asked
// for, until there are enough.
func (s *Store) holds(segments []journal.SegmentInfo, max int) ([]store.Hold, error) {
	var holds []store.Hold
	// A partition holds by the first message that it has in the oldest of these segments: what was carried forward lies behind later ones.
	seen := map[index.Key]bool{}
	for i := range segments {
		if max <= 0 || len(holds) >= max {
			break
		}
		s.index.Below(uint64(segments[i].End), func(k index.Key, from, _ index.Index, _ int64) bool {
			if !seen[k] {
				seen[k] = true
				p := store.Partition{Topic: store.TopicID(k.Topic), Incarnation: k.Incarnation, Partition: k.Partition}
				holds = append(holds, store.Hold{Partition: p, First: from})
			}
			return true
		})
	}
	end := s.log.Committed()
	var one [1]index.Entry
	kept := holds[:0]
	for _, h := range holds {
		e, err := s.index.Range(keyOf(h.Partition), h.First, h.First+1, one[:0])
		if err != nil {
			if err = s.unreadable(h.Partition, h.First, err); isGone(err) {
				continue
			}
			return nil, err
		}
		h.Stored, h.Bytes = e[0].Stored, int64(end)-int64(e[0].Position)
		kept = append(kept, h)
	}
	slices.SortFunc(kept, func(a, b store.Hold) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), comparePartitions(a.Partition, b.Partition))
	})
	return kept[:min(len(kept), max)], nil
}

// bytesOf returns what the files of a folder take whose name is wanted, nil: of all.
func (f *folder) bytesOf(dir string, wanted func(name string) bool) (n int64, err error) {
	names, err := f.fs.List(dir)
	if err != nil {
		return 0, fmt.Errorf("store: list folder %s: %w", dir, err)
	}
	for _, name := range names {
		if wanted != nil && !wanted(name) {
			continue
		}
		if st, err := f.fs.Stat(f.fs.PathJoin(dir, name)); err == nil && !st.IsDir() { // else it was removed meanwhile
			n += st.Size()
		}
	}
	return n, nil
}
