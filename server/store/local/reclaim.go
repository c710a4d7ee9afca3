package local

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/planted"
	"github.com/jmqio/jmq/server/store"
)

const (
	// carryShare: a segment of which at most one part in so many is still needed is freed.
	carryShare = 4
	// carryBytesMax is after how many bytes carried forward what became free is freed; in between two checkpoints are written.
	carryBytesMax = 64 << 20
	// carryControlBytes is up to how much of a segment is carried forward on a full disk too, in the log's reserve.
	carryControlBytes = 256 << 10
	// carryWaitBytes is how much of it waits for a commit at most, so that producers get their share of the log.
	carryWaitBytes = 1 << 20
)

// reclaiming is what Reclaim did since the store was opened.
type reclaiming struct {
	work sync.Mutex // one at a time

	// What was needed of the oldest segment when it was last to be carried forward; guarded by work. 0 bytes: that is not known.
	oldest struct {
		base  journal.Position
		bytes int64
	}

	mu struct {
		sync.Mutex
		bytes, carried, carriedRecords int64
		pins                           []*journal.Position
	}
}

// pin keeps the log from p on until release is called.
func (r *reclaiming) pin(p journal.Position) (release func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	mine := &p
	r.mu.pins = append(r.mu.pins, mine)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.mu.pins = slices.DeleteFunc(r.mu.pins, func(p *journal.Position) bool { return p == mine })
	}
}

// pinned returns up to where the log may be trimmed, to at most.
func (r *reclaiming) pinned(to journal.Position) journal.Position {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.mu.pins {
		to = min(to, *p)
	}
	return to
}

// Reclaim frees the oldest segments that nothing needs any more, or little.
func (s *Store) Reclaim(ctx context.Context) (int64, error) {
	s.reclaiming.work.Lock()
	defer s.reclaiming.work.Unlock()
	s.drop()
	var freed int64
	carries := false
	for {
		to, err := s.reclaimable(ctx, &carries)
		if err != nil || to == 0 {
			return freed, err
		}
		n, err := s.release(ctx, to)
		freed += n
		if err != nil {
			return freed, err
		}
	}
}

// reclaimable returns up to where the log can be trimmed: below it nothing is that the index needs, if need be after it was carried
// forward. 0: nowhere. carries: something was carried forward in this call of Reclaim.
func (s *Store) reclaimable(ctx context.Context, carries *bool) (journal.Position, error) {
	segments := s.sealed()
	to := s.free(segments)
	if to > 0 {
		return to, nil
	}
	var carried int64
	for _, seg := range segments {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		n, err := s.carrySegment(ctx, &seg, *carries)
		carried += n
		*carries = *carries || n > 0
		if err != nil {
			// What was carried is at its new place, whatever came of the rest.
			return 0, err
		}
		if free := s.free(segments); free < seg.End || carried > carryBytesMax {
			break
		}
	}
	return s.free(segments), nil
}

// sealed returns the segments that can be freed at all: nothing is appended to them, and all that they hold is applied.
func (s *Store) sealed() []journal.SegmentInfo {
	s.apply.Lock()
	applied := s.apply.end
	s.apply.Unlock()
	list := s.log.Segments()
	n := 0
	for n < len(list) && list[n].Sealed && list[n].End <= applied {
		n++
	}
	return list[:n]
}

// free returns the end of the last of these segments below which the index needs nothing.
func (s *Store) free(segments []journal.SegmentInfo) (to journal.Position) {
	oldest, any := s.index.Oldest()
	pinned := s.reclaiming.pinned(math.MaxUint64)
	for _, seg := range segments {
		if seg.End > pinned {
			break
		}
		if any && journal.Position(oldest) < seg.End && !planted.Bug("store: segment freed though it is needed") {
			break
		}
		to = seg.End
	}
	return to
}

// release trims the log. First it sees to it that both kept checkpoints were begun after the index had let go of everything
// below to: so whichever of them is used next has nothing that points there, and needs no record from there. At opening
// an entry that points below the log's begin can therefore only mean that somebody took segments away.
func (s *Store) release(ctx context.Context, to journal.Position) (int64, error) {
	s.apply.Lock()
	after := s.apply.end
	s.apply.Unlock()
	for s.background.floor() <= after {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		if err := s.appendNoop(ctx); err != nil {
			return 0, fmt.Errorf("store: before segments go: %w", err)
		}
		err := s.Checkpoint()
		// On a full disk the older one has to make room for the next: else nothing could ever be freed. Where that is not enough, since
		// others have filled it to the last byte, the log's spares and its reserve do: it makes them again from the segments that go.
		if vfs.IsNoSpaceError(err) {
			if err = s.dropOlderCheckpoints(); err == nil {
				err = s.Checkpoint()
			}
		}
		for vfs.IsNoSpaceError(err) && s.logHasRoom(err) {
			given, giveErr := s.log.GiveRoom()
			if !given || giveErr != nil {
				err = errors.Join(err, giveErr)
				break
			}
			s.opt.Logger.Warn("disk is full: segments prepared for later are removed to make room for a checkpoint", "folder", s.folder.dir)
			err = s.Checkpoint()
		}
		if err != nil {
			return 0, fmt.Errorf("store: checkpoint before segments go: %w", err)
		}
	}
	var freed int64
	for _, seg := range s.log.Segments() {
		if seg.End <= to {
			freed += seg.FileBytes
		}
	}
	if err := s.log.Trim(to); err != nil {
		return 0, fmt.Errorf("store: trim the log to %d: %w", to, err)
	}
	r := &s.reclaiming.mu
	r.Lock()
	r.bytes += freed
	r.Unlock()
	return freed, nil
}

// logHasRoom says whether what the log gives up is room on the disk of which err says that it is full: the checkpoints' or the index's.
func (s *Store) logHasRoom(err error) bool {
	f := s.folder
	return f.journal == f.path(journalDir) && (f.index == f.path(indexDir) || !errors.Is(err, index.ErrMoved))
}

// dropOlderCheckpoints removes all checkpoints but the newest whole one.
func (s *Store) dropOlderCheckpoints() error {
	b := &s.background
	b.work.Lock()
	defer b.work.Unlock()
	b.mu.Lock()
	newest, any := b.mu.position, b.mu.position > 0
	b.mu.Unlock()
	if !any || b.closed {
		return nil
	}
	s.opt.Logger.Warn("disk is full: the older checkpoint is removed to make room for the next", "folder", s.folder.dir, "position", newest)
	return s.folder.keepOnly(newest)
}

// appendNoop moves the log's end on, so that another checkpoint can be written.
func (s *Store) appendNoop(ctx context.Context) error {
	done := make(chan error, 1)
	err := s.appendPatiently(ctx, func() error {
		a := s.take()
		a.recordOK = func(err error) { done <- err }
		a.payload = a.payload[:0]
		a.Control = true
		a.entry[0] = journal.Entry{Kind: journal.KindNoop}
		return s.appendPending(a, nil)
	})
	if err != nil {
		return err
	}
	s.log.TryLead()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// appendPatiently appends, and while too much waits for the disk it waits too.
func (s *Store) appendPatiently(ctx context.Context, appendOne func() error) error {
	for {
		err := appendOne()
		if !errors.Is(err, journal.ErrBusy) {
			return err
		}
		s.Kick()
		if err := s.WaitRoom(ctx); err != nil {
			return err
		}
	}
}

// carrySegment appends again what the index needs of a segment, if that is little, and returns how many bytes it was. What goes by
// itself soon is left, but for sure.
func (s *Store) carrySegment(ctx context.Context, seg *journal.SegmentInfo, sure bool) (int64, error) {
	type need struct {
		key      index.Key
		from, to index.Index
	}
	var needs []need
	var bytes int64
	max := int64(seg.End-seg.Base) / carryShare
	s.index.Below(uint64(seg.End), func(k index.Key, from, to index.Index, n int64) bool {
		bytes += n
		needs = append(needs, need{k, from, to})
		return bytes <= max
	})
	if !s.settled(seg.Base, bytes, max) && !sure || bytes > max {
		return 0, nil
	}
	c := carrier{s: s, ctx: ctx, control: bytes <= carryControlBytes}
	var err error
	for _, n := range needs {
		if err = c.carry(n.key, n.from, n.to); err != nil {
			break
		}
	}
	if waited := c.wait(); err == nil {
		err = waited
	}
	r := &s.reclaiming.mu
	r.Lock()
	r.carried += c.bytes
	r.carriedRecords += c.records
	r.Unlock()
	if err != nil {
		return c.bytes, fmt.Errorf("store: carry forward: %w", err)
	}
	return c.bytes, nil
}

// settled says whether what is needed of the oldest segment should be carried forward, since it will be needed for long: since the last call
// it has not become less by a quarter. Where retention moves on through a segment, what is left of that would be written again now
// and dropped by one of the next passes. A little is carried at once: it is not worth the wait. reclaiming.work is held.
func (s *Store) settled(base journal.Position, bytes, max int64) bool {
	last := &s.reclaiming.oldest
	before := last.bytes
	if last.base != base {
		before = 0
	}
	last.base, last.bytes = base, bytes
	if bytes > max { // it was not counted to the end
		last.bytes = 0
	}
	return bytes <= carryControlBytes || before > 0 && bytes > before-before/4
}

// carrier appends records again.
type carrier struct {
	s       *Store
	ctx     context.Context
	control bool // it goes on when the disk is full

	bytes, records int64
	entries        window
	payload, read  []byte

	waiting int // bytes of appended records that are not committed
	group   sync.WaitGroup
	mu      struct {
		sync.Mutex
		err error
	}
}

// carry appends again the batches that hold messages [from, to).
func (c *carrier) carry(k index.Key, from, to index.Index) error {
	p := store.Partition{Topic: store.TopicID(k.Topic), Incarnation: k.Incarnation, Partition: k.Partition}
	lost := from // messages [lost, from) are lost, and that is still to be said
	for from < to {
		entries, err := c.s.index.Range(k, from, min(to, from+index.Index(len(c.entries))), c.entries[:0])
		switch {
		case errors.Is(err, index.ErrTrimmed), errors.Is(err, index.ErrBeyond):
			return nil // not needed any more
		case err != nil:
			return c.s.damaged(err)
		}
		for i := 0; i < len(entries); {
			e := &entries[i]
			n := int(e.Count - e.Slot)
			rec, err := c.batch(p, from, e)
			if err == nil && rec != nil {
				if err = c.lost(p, lost, from, e); err == nil {
					c.payload, err = appendCarried(c.payload[:0], rec)
				}
				if err == nil {
					err = c.append()
				}
			}
			if err != nil {
				return err
			}
			i += n
			from += index.Index(n)
			if rec != nil {
				lost = from
			}
			if from >= to || i >= len(entries) {
				if err := c.lost(p, lost, from, e); err != nil {
					return err
				}
				lost = from
			}
		}
	}
	return nil
}

// lost appends that messages [from, to), which e is the entry of one of, are lost: the hole that says so goes.
func (c *carrier) lost(p store.Partition, from, to index.Index, e *index.Entry) error {
	if from >= to {
		return nil
	}
	c.payload = appendCarriedLost(c.payload[:0], p, from, to, journal.Position(e.Position), e.Stored)
	return c.append()
}

// batch returns the record of the batch that e, the entry of message i, is of; nil: it is lost. The record is valid until the next.
func (c *carrier) batch(p store.Partition, i index.Index, e *index.Entry) (_ *journal.Record, err error) {
	if e.Size == 0 {
		return nil, nil
	}
	at := journal.Position(e.Position)
	var rec journal.Record
	rec, c.read, err = c.s.log.ReadAt(at, grown(c.read, journal.RecordBytes(int(e.Size))))
	if errors.As(err, new(*journal.CorruptError)) {
		if _, err := c.s.healNow(at); err != nil {
			return nil, err
		}
		rec, c.read, err = c.s.log.ReadAt(at, c.read)
	}
	if err == nil {
		_, err = checkBatch(&rec, p, i-index.Index(e.Slot), e)
	}
	if errors.As(err, new(*journal.LostError)) || errors.As(err, new(*store.GapError)) {
		return nil, nil
	}
	return &rec, err
}

// append appends what is in payload. It waits for the commit when enough waits.
func (c *carrier) append() error {
	done := func(err error) {
		if err != nil {
			c.mu.Lock()
			c.mu.err = err
			c.mu.Unlock()
		}
		c.group.Done()
	}
	err := c.s.appendPatiently(c.ctx, func() error {
		c.group.Add(1)
		err := c.s.appendCarried(c.payload, c.control, done)
		if err != nil {
			c.group.Done()
		}
		return err
	})
	if err != nil {
		return err
	}
	c.bytes += int64(journal.RecordBytes(len(c.payload)))
	c.records++
	if c.waiting += len(c.payload); c.waiting > carryWaitBytes {
		return c.wait()
	}
	return nil
}

// appendCarried appends a carried-forward record.
func (s *Store) appendCarried(payload []byte, control bool, done func(error)) error {
	a := s.take()
	a.recordOK, a.Control = done, control
	a.payload = append(a.payload[:0], payload...)
	a.entry[0] = journal.Entry{Kind: journal.KindCarriedForward, Payload: a.payload}
	return s.appendPending(a, nil)
}

// wait waits until all that was appended is committed.
func (c *carrier) wait() error {
	c.s.Kick()
	c.group.Wait()
	c.waiting = 0
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.err
}

// grown returns a buffer of n bytes, b if it is large enough.
func grown(b []byte, n int) []byte {
	if cap(b) >= n {
		return b[:n]
	}
	return make([]byte, n)
}

// moveLocked lets the index point to where a carried-forward record has messages now. What is trimmed or deleted it does not
// have any more. s.apply is held.
func (s *Store) moveLocked(rec *journal.Record) error {
	var in batchReader
	return in.moves(rec, func(p store.Partition, first index.Index, b *index.Batch) error {
		if _, err := s.part(p); err == nil && !planted.Bug("store: carried and not moved") {
			s.index.Move(keyOf(p), first, b)
		}
		return nil
	})
}

// moves calls each with what a carried-forward record lets the index move.
func (r *batchReader) moves(rec *journal.Record, each func(store.Partition, index.Index, *index.Batch) error) error {
	c, err := parseCarried(rec.Payload)
	if err != nil {
		return err
	}
	if c.Kind != journal.KindLost {
		p, first, batch, err := r.read(rec)
		if err != nil {
			return err
		}
		batch.Stored = c.Stored // an index that is made again may not meet the first writing
		return each(p, first, batch)
	}
	p, first, to, err := c.lost()
	for err == nil && first < to {
		n := min(to-first, 1<<16-1)
		err = each(p, first, &index.Batch{Position: uint64(rec.Position), Stored: c.Stored, Count: uint16(n)})
		first += n
	}
	return err
}
