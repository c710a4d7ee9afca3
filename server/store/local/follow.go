package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/planted"
)

const (
	// followEvery is how long what was committed waits at most to be applied with what comes next, unless it is followBytes.
	followEvery = 20 * time.Millisecond
	followBytes = 1 << 20
	// mendAfter is when damage that could not be mended is tried again; doubled each time, up to mendAfterMax.
	mendAfter    = time.Second
	mendAfterMax = time.Minute
	mendTimeout  = 30 * time.Second
)

// following applies what a followed log has committed, as recovery does: its goroutine is to the store what the committing
// goroutine is where records are appended. The log's OnCommitted wakes it; it applies at once, and then not before
// followEvery or followBytes later. The store owns it; Close waits for it before the log is closed.
type following struct {
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{}
	news   chan struct{} // something was committed; has room for one
	hurry  chan struct{} // so much was, or somebody waits: apply it now; has room for one

	applied atomic.Uint64 // apply.end, stored after Watch was called

	mu struct {
		sync.Mutex
		moved chan struct{} // closed when applied moves; nil: nobody waits
	}

	// Owned by the goroutine.
	reader *journal.Reader
	in     batchReader

	trim trimAlong
}

func (s *Store) startFollowing() {
	f := &s.following
	f.applied.Store(uint64(s.apply.end))
	f.poke(f.news)
	go s.runFollowing()
}

func (f *following) init() {
	f.ctx, f.cancel = context.WithCancel(context.Background())
	f.done = make(chan struct{})
	f.news, f.hurry = make(chan struct{}, 1), make(chan struct{}, 1)
}

func (f *following) poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // it will look
	}
}

// committed is the log's OnCommitted.
func (f *following) committed(to journal.Position) {
	f.poke(f.news)
	if to >= journal.Position(f.applied.Load())+followBytes {
		f.poke(f.hurry)
	}
}

func (f *following) stop() {
	f.cancel()
	<-f.done
}

// tell says that applied is what it is now.
func (f *following) tell(applied journal.Position) {
	f.applied.Store(uint64(applied))
	f.mu.Lock()
	if f.mu.moved != nil {
		close(f.mu.moved)
		f.mu.moved = nil
	}
	f.mu.Unlock()
}

func (s *Store) runFollowing() {
	f := &s.following
	defer close(f.done)
	defer func() {
		if f.reader != nil {
			_ = f.reader.Close() // it only reads
		}
	}()
	pause := time.NewTimer(followEvery)
	defer pause.Stop()
	for {
		select {
		case <-f.news:
		case <-f.ctx.Done():
			return
		}
		if err := s.applyCommitted(); err != nil {
			if f.ctx.Err() == nil {
				s.stopFollowing(err)
			}
			return
		}
		pause.Reset(followEvery)
		select {
		case <-pause.C:
		case <-f.hurry:
		case <-f.ctx.Done():
			return
		}
	}
}

// stopFollowing stops the store: what comes next in the log cannot be applied.
func (s *Store) stopFollowing(err error) {
	s.apply.Lock()
	if s.apply.err == nil {
		s.apply.err = err
	}
	s.apply.Unlock()
	s.fail()
	s.following.tell(s.Applied())
}

// applyCommitted applies what the log has committed, and tells of it at least every followBytes.
func (s *Store) applyCommitted() error {
	f := &s.following
	told := s.apply.end // this goroutine alone moves it
	tell := func() {
		if s.apply.end > told {
			told = s.apply.end
			s.afterCommit()
			f.tell(told)
		}
	}
	defer tell()
	for f.ctx.Err() == nil {
		if f.reader == nil {
			f.reader = s.log.NewReader(s.apply.end)
		}
		rec, err := f.reader.Next()
		var corrupt *journal.CorruptError
		var lost *journal.LostError
		switch {
		case err == nil:
			err = s.recovered(&rec, &f.in)
		case errors.Is(err, io.EOF):
			return nil
		case errors.As(err, &corrupt):
			tell()
			err = s.healAhead(corrupt.Position)
		case errors.As(err, &lost):
			err = s.passLost(lost)
		default:
			err = fmt.Errorf("store: follow the log of %s at position %d: %w", s.folder.dir, s.apply.end, err)
		}
		if err != nil {
			return err
		}
		if s.apply.end >= told+followBytes {
			tell()
		}
	}
	return nil
}

// again lets the next read begin anew, at what is to be applied.
func (f *following) again() {
	_ = f.reader.Close() // it only reads
	f.reader = nil
}

// healAhead sees to damage in what is still to be applied. While there may be a copy it waits for that: what is passed over here is
// lost in the tables too.
func (s *Store) healAhead(at journal.Position) error {
	f := &s.following
	defer f.again()
	hole, err := s.healAt(at)
	if err != nil {
		return err
	}
	if hole == (journal.Hole{}) {
		return nil
	}
	for after := mendAfter; s.opt.Mend != nil && s.isHole(hole); after = min(2*after, mendAfterMax) {
		select {
		case <-time.After(after):
		case <-f.ctx.Done():
			return f.ctx.Err()
		}
		s.mend(hole)
	}
	return nil
}

// passLost passes over the rest of a hole that begins below what is applied.
func (s *Store) passLost(lost *journal.LostError) error {
	defer s.following.again()
	n := max(0, int(lost.To-s.apply.end)-journal.RecordBytes(0))
	rec := journal.Record{Kind: journal.KindLost, Position: s.apply.end, Epoch: s.apply.epoch, Payload: make([]byte, min(n, followBytes))}
	if err := s.recovered(&rec, &s.following.in); err != nil {
		return err
	}
	s.apply.Lock()
	s.apply.end = lost.To
	s.apply.Unlock()
	return nil
}

// Applied is the end of what the index and the tables have of the log.
func (s *Store) Applied() journal.Position {
	s.apply.Lock()
	defer s.apply.Unlock()
	return s.apply.end
}

// WaitApplied returns when a following store has applied everything below p and told Watch of it; or what ctx ended by, or why the
// store has stopped.
func (s *Store) WaitApplied(ctx context.Context, p journal.Position) error {
	f := &s.following
	for {
		f.mu.Lock()
		if f.mu.moved == nil {
			f.mu.moved = make(chan struct{})
		}
		moved := f.mu.moved
		f.mu.Unlock()
		switch err := s.failure.Load(); {
		case journal.Position(f.applied.Load()) >= p:
			return nil
		case err != nil:
			return *err
		}
		f.poke(f.hurry)
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		case <-f.ctx.Done():
			return journal.ErrClosed
		}
	}
}

// syncFollowed sees that the log has on the disk what a checkpoint says of it: the copy that is read when nothing else is left
// must not end before.
func (s *Store) syncFollowed(to journal.Position) error {
	if s.followed.Synced() < to {
		if err := s.followed.Sync(); err != nil {
			return err
		}
	}
	if end := s.followed.Synced(); end < to {
		return fmt.Errorf("store: the log of %s was cut to position %d, below what is applied, %d", s.folder.dir, end, to)
	}
	return nil
}

// trimAlong is how far the log is to be trimmed, as the log that is followed was. The background goroutine does it.
type trimAlong struct {
	mu struct {
		sync.Mutex
		begin, heard journal.Position // as FollowTrim was told last
	}

	// Guarded by reclaiming.work: the index has let go of what lies below raised when after was applied.
	raised, after journal.Position
}

// FollowTrim lets the log be trimmed up to begin, where the log that is followed begins since it had reached heard. It does not wait: when
// heard is applied the partitions let go of what lies below begin, and when both kept checkpoints are from after that the log is trimmed.
func (s *Store) FollowTrim(begin, heard journal.Position) {
	t := &s.following.trim
	t.mu.Lock()
	more := begin > t.mu.begin
	if more {
		t.mu.begin, t.mu.heard = begin, heard
	}
	t.mu.Unlock()
	if more {
		s.background.kick()
	}
}

// trimAlong does what FollowTrim asked for, as far as it can be done now: the checkpoints for it are those of the ticks, since the log
// that is followed is trimmed in steps.
func (s *Store) trimAlong() error {
	t := &s.following.trim
	t.mu.Lock()
	begin, heard := t.mu.begin, t.mu.heard
	t.mu.Unlock()
	if begin == 0 {
		return nil
	}
	s.reclaiming.work.Lock()
	defer s.reclaiming.work.Unlock()
	if begin > t.raised && (s.Applied() >= heard || planted.Bug("store: trimmed along before it is applied")) {
		// What lies below begin and was still needed when it was trimmed there has been carried forward, to below heard.
		if err := s.letGo(begin); err != nil {
			return err
		}
		t.raised, t.after = begin, s.Applied()
		s.trims.Add(1)
	}
	to := s.reclaiming.pinned(t.raised)
	if to <= s.log.Begin() || s.background.floor() <= t.after {
		return nil
	}
	if err := s.log.Trim(to); err != nil {
		return fmt.Errorf("store: trim the log along to %d: %w", to, err)
	}
	return nil
}

// letGo raises the partitions' first to where nothing lies below a position of the log.
func (s *Store) letGo(begin journal.Position) error {
	firsts := map[index.Key]index.Index{}
	s.index.Below(uint64(begin), func(k index.Key, _, to index.Index, _ int64) bool {
		firsts[k] = max(firsts[k], to)
		return true
	})
	var one [1]index.Entry
	for k, first := range firsts {
		// Where the index could not be read the range may be too large.
		e, err := s.index.Range(k, first-1, first, one[:0])
		switch {
		case errors.Is(err, index.ErrTrimmed), errors.Is(err, index.ErrBeyond): // its topic was deleted meanwhile
			continue
		case err != nil:
			return s.damaged(err)
		case e[0].Position >= uint64(begin):
			return fmt.Errorf("store: message %d of partition %v is not below position %d", first-1, k, begin)
		}
		s.index.SetFirst(k, first)
	}
	return nil
}
