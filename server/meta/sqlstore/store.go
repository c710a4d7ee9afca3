package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/wire"
)

const (
	pollEvery   = 200 * time.Millisecond
	retryEvery  = 500 * time.Millisecond // while the database is away
	callTimeout = 3 * time.Second        // of what is asked of the database
	loadTimeout = 30 * time.Second       // of reading everything, and of changing the schema
	dialTimeout = 2 * time.Second
	// writeTimeout is what each write of a change may take beside callTimeout.
	writeTimeout = 10 * time.Millisecond
	purgeEvery   = time.Hour
	tellEvery    = 10 * time.Second // how often the log says at most that the database is away
	// goneFor is how long a deletion is told to those who have seen the object, and a heartbeat of a node that is silent is kept.
	goneFor  = 24 * time.Hour
	triesMax = 8
)

// Options of a store.
type Options struct {
	Location
	// Now gives the times that are stored. nil: time.Now.
	Now func() time.Time
	// Logger is told when the database goes away and comes back. nil: slog.Default.
	Logger *slog.Logger
	// Absent lets Open return although the database cannot be reached: View is then a snapshot of generation 0, in which nothing is, and Watch gives
	// the first that is read.
	Absent bool
}

func (o Options) withDefaults() Options {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o
}

// Store is a meta.Store. One goroutine, started by Open and waited for by Close, looks for what other processes change.
type Store struct {
	o    Options
	db   atomic.Pointer[database] // nil: Open could not reach it, and the goroutine tries
	seen atomic.Pointer[state]
	turn chan struct{} // held by the one that changes something

	mu struct {
		sync.Mutex
		changed  chan struct{} // closed when seen is exchanged
		readErr  error         // of the last look; nil: it was good
		writeErr error         // of the last write; nil: it was good
		away     bool          // so the log says
		toldAway time.Time     // when it said so last
	}

	stop   context.CancelFunc
	done   chan struct{} // closed when the goroutine has ended
	closed chan struct{}
	close  sync.Once
}

var _ meta.Store = (*Store)(nil)

// state is a snapshot and what the database says of its version.
type state struct {
	*meta.Snapshot
	stamp int64
	floor meta.Version
}

// Open opens the database, and makes what is not there: file, tables, first version. While the database cannot be reached it tries until ctx ends, and then
// fails (but see Absent); it fails at once for what time does not heal, as a schema that is newer, or access denied.
func Open(ctx context.Context, o Options) (*Store, error) {
	o = o.withDefaults()
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("open metadata: %w", err)
	}
	s := &Store{o: o, turn: make(chan struct{}, 1), done: make(chan struct{}), closed: make(chan struct{})}
	s.mu.changed = make(chan struct{})
	s.seen.Store(&state{Snapshot: meta.NewSnapshot(0, 0, 0, nil)})
	for {
		err := s.first(ctx)
		if err == nil {
			break
		}
		if isLasting(err) {
			return nil, fmt.Errorf("open metadata at %s: %w", o.Location, plain(err))
		}
		s.mu.readErr = plain(err)
		if o.Absent {
			o.Logger.Warn("metadata: starting without the database", "database", o.Location, "error", plain(err))
			break
		}
		select {
		case <-ctx.Done():
			return nil, away("open metadata at "+o.Location.String(), plain(err))
		case <-time.After(retryEvery):
		}
	}
	background, stop := context.WithCancel(context.Background())
	s.stop = stop
	go s.run(background)
	return s, nil
}

// first opens the database and reads everything.
func (s *Store) first(ctx context.Context) error {
	db, err := connect(s.o.Location, s.o.Logger)
	if err != nil {
		return fmt.Errorf("%w: %w", errLocation, err)
	}
	var next *state
	if err = db.prepare(ctx, s.o.Now()); err == nil {
		next, err = s.look(ctx, db)
	}
	if err != nil {
		return errors.Join(err, db.close())
	}
	s.db.Store(db)
	s.publish(next)
	return nil
}

// View is in meta.Store.
func (s *Store) View() *meta.Snapshot { return s.seen.Load().Snapshot }

// Watch is in meta.Store.
func (s *Store) Watch(ctx context.Context, after *meta.Snapshot) (*meta.Snapshot, error) {
	for {
		s.mu.Lock()
		changed := s.mu.changed
		s.mu.Unlock()
		if v := s.View(); after == nil || v.Generation != after.Generation || v.Version > after.Version {
			return v, nil
		}
		select {
		case <-changed:
		case <-s.closed:
			return nil, away("watch metadata", errClosed)
		case <-ctx.Done():
			return nil, fmt.Errorf("watch metadata after version %d: %w", after.Version, ctx.Err())
		}
	}
}

// publish makes a state the one that is seen, unless a newer one is.
func (s *Store) publish(next *state) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.seen.Load()
	if next.Generation < now.Generation || next.Generation == now.Generation && (next.Version < now.Version || next.Version == now.Version && next.floor <= now.floor) {
		return
	}
	s.seen.Store(next)
	close(s.mu.changed)
	s.mu.changed = make(chan struct{})
}

// Health is in meta.Store.
func (s *Store) Health() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isClosed() {
		return away("metadata", errClosed)
	}
	if err := cmpErr(s.mu.readErr, s.mu.writeErr); err != nil {
		return away("metadata at "+s.o.Location.String(), err)
	}
	return nil
}

func cmpErr(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

func (s *Store) isClosed() bool {
	select {
	case <-s.closed:
		return true
	default:
		return false
	}
}

// note keeps how reading or writing went, and tells when that has changed: at most every tellEvery, since on a full disk one write
// succeeds and the next one does not.
func (s *Store) note(which *error, err error) {
	if err != nil {
		err = plain(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	*which = err
	switch err := cmpErr(s.mu.readErr, s.mu.writeErr); {
	case err != nil && !s.mu.away && (s.mu.toldAway.IsZero() || time.Since(s.mu.toldAway) >= tellEvery):
		s.mu.away, s.mu.toldAway = true, time.Now()
		s.o.Logger.Warn("metadata: the database is away; what is known stays in force", "database", s.o.Location, "error", err)
	case err == nil && s.mu.away:
		s.mu.away = false
		s.o.Logger.Info("metadata: the database is back", "database", s.o.Location, "version", s.View().Version)
	}
}

// run looks for changes until the store is closed.
func (s *Store) run(ctx context.Context) {
	defer close(s.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	// Nodes that start together do not purge together.
	purge := time.Now().Add(rand.N(purgeEvery))
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		err := s.poll(ctx)
		if ctx.Err() != nil {
			return
		}
		s.note(&s.mu.readErr, err)
		if err != nil {
			timer.Reset(retryEvery)
			continue
		}
		timer.Reset(pollEvery)
		s.probe(ctx)
		if time.Now().After(purge) {
			purge = time.Now().Add(purgeEvery)
			if err := s.Purge(ctx); err != nil {
				s.o.Logger.Warn("metadata: old deletions stay for another hour", "error", plain(err))
			}
		}
	}
}

// poll looks once; it opens the database first where that is to do.
func (s *Store) poll(ctx context.Context) error {
	db := s.db.Load()
	if db == nil {
		return s.first(ctx)
	}
	if err := db.replaced(); err != nil {
		return err
	}
	next, err := s.look(ctx, db)
	if err != nil {
		return err
	}
	s.publish(next)
	return nil
}

// probe writes, when the last write has failed and nobody else may try: so that Health says when the database is no longer read-only.
func (s *Store) probe(ctx context.Context) {
	s.mu.Lock()
	failed := s.mu.writeErr != nil
	s.mu.Unlock()
	if !failed {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := s.db.Load().write.NewRaw("UPDATE jmq_registry SET floor = floor WHERE id = 1").Exec(ctx)
	if ctx.Err() == nil || err == nil {
		s.note(&s.mu.writeErr, err)
	}
}

func (s *Store) take(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-s.closed:
		return away("change metadata", errClosed)
	case <-ctx.Done():
		return wire.Errorf(wire.CodeTimeout, "change metadata: %v", ctx.Err())
	}
}

func (s *Store) give() { <-s.turn }

// Close is in meta.Store. It waits for a change that is under way.
func (s *Store) Close() error {
	var err error
	s.close.Do(func() {
		close(s.closed)
		s.stop()
		<-s.done
		s.turn <- struct{}{} // held for good
		if db := s.db.Load(); db != nil {
			err = db.close()
		}
	})
	return err
}
