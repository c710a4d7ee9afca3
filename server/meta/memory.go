package meta

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmqio/jmq/wire"
)

// Memory is a Store in memory: the model that other engines are held to, and what tests use. It starts no goroutine.
type Memory struct {
	db     *database
	broken atomic.Pointer[error] // why this store cannot reach the database; nil: it can
	seen   atomic.Pointer[Snapshot]
	closed atomic.Bool
}

var _ Store = (*Memory)(nil)

// database is what several Memory stores share.
type database struct {
	now func() time.Time
	mu  struct {
		sync.Mutex
		snapshot *Snapshot
		audit    []AuditEntry // the oldest first; id i+1 is at i
		beats    map[string]Beat
		changed  chan struct{} // closed at the next change of anything that Watch waits for
	}
}

// NewMemory returns a store with the initial snapshot of generation 1. now gives the times of the audit; nil: time.Now.
func NewMemory(now func() time.Time) *Memory {
	if now == nil {
		now = time.Now
	}
	db := &database{now: now}
	db.mu.snapshot = Initial(1)
	db.mu.beats = map[string]Beat{}
	db.mu.changed = make(chan struct{})
	return (&Memory{db: db}).Another()
}

// Another returns another store over the same database, as a second node would open it.
func (m *Memory) Another() *Memory {
	m.db.mu.Lock()
	defer m.db.mu.Unlock()
	n := &Memory{db: m.db}
	n.seen.Store(m.db.mu.snapshot)
	return n
}

// Fail makes this store behave as if its database could not be reached, for a reason; nil ends that.
func (m *Memory) Fail(why error) {
	m.db.mu.Lock()
	defer m.db.mu.Unlock()
	if why == nil {
		m.broken.Store(nil)
	} else {
		m.broken.Store(&why)
	}
	m.db.wake()
}

func (db *database) wake() {
	close(db.mu.changed)
	db.mu.changed = make(chan struct{})
}

// Health is in Store.
func (m *Memory) Health() error {
	if m.closed.Load() {
		return wire.Errorf(wire.CodeMetadataAway, "the store is closed")
	}
	if why := m.broken.Load(); why != nil {
		return &wire.CodeError{Code: wire.CodeMetadataAway, Message: (*why).Error()}
	}
	return nil
}

// View is in Store.
func (m *Memory) View() *Snapshot {
	m.db.mu.Lock()
	defer m.db.mu.Unlock()
	return m.view()
}

// view is View under the lock: a store that cannot reach the database knows what it knew.
func (m *Memory) view() *Snapshot {
	if m.Health() == nil {
		m.seen.Store(m.db.mu.snapshot)
	}
	return m.seen.Load()
}

// Watch is in Store.
func (m *Memory) Watch(ctx context.Context, after *Snapshot) (*Snapshot, error) {
	for {
		m.db.mu.Lock()
		s, changed := m.view(), m.db.mu.changed
		m.db.mu.Unlock()
		if after == nil || s.Generation != after.Generation || s.Version > after.Version {
			return s, nil
		}
		if m.closed.Load() {
			return nil, m.Health()
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("watch metadata after version %d: %w", after.Version, ctx.Err())
		}
	}
}

// reach is the start of what needs the database.
func (m *Memory) reach(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return wire.Errorf(wire.CodeTimeout, "%s", err)
	}
	return m.Health()
}

// Update is in Store.
func (m *Memory) Update(ctx context.Context, c Change) (*Snapshot, error) {
	m.db.mu.Lock()
	defer m.db.mu.Unlock()
	if err := m.reach(ctx); err != nil {
		return nil, err
	}
	next, changed, audit, _, err := m.db.mu.snapshot.Plan(c, m.db.now())
	if err != nil || c.DryRun || len(changed) == 0 {
		return next, err
	}
	m.db.commit(next, audit)
	return m.view(), nil
}

func (db *database) commit(next *Snapshot, audit []AuditEntry) {
	db.mu.snapshot = next
	for _, e := range audit {
		e.ID = uint64(len(db.mu.audit)) + 1
		db.mu.audit = append(db.mu.audit, e)
	}
	db.wake()
}

// NewGeneration is in Store.
func (m *Memory) NewGeneration(ctx context.Context, by Actor, reason string) (*Snapshot, error) {
	m.db.mu.Lock()
	defer m.db.mu.Unlock()
	if err := m.reach(ctx); err != nil {
		return nil, err
	}
	s := m.db.mu.snapshot
	next, _, audit := s.PlanGeneration(s.Generation+1, by, reason, m.db.now())
	m.db.commit(next, audit)
	return m.view(), nil
}

// Audit is in Store.
func (m *Memory) Audit(ctx context.Context, q AuditQuery) (entries []AuditEntry, more bool, err error) {
	m.db.mu.Lock()
	defer m.db.mu.Unlock()
	if err := m.reach(ctx); err != nil {
		return nil, false, err
	}
	limit := q.Limit
	if limit <= 0 {
		limit = AuditUsual
	}
	for _, e := range slices.Backward(m.db.mu.audit) {
		if !q.matches(&e) {
			continue
		}
		if len(entries) == min(limit, AuditMax) {
			return entries, true, nil
		}
		entries = append(entries, e)
	}
	return entries, false, nil
}

const (
	// AuditUsual is how many entries a query gets that does not say.
	AuditUsual = 100
	// AuditMax is the most that one query gets.
	AuditMax = 1000
)

func (q *AuditQuery) matches(e *AuditEntry) bool {
	return (q.Key.Kind == "" || q.Key.Kind == e.Key.Kind) && (q.Key.Namespace == "" || q.Key.Namespace == e.Key.Namespace) &&
		(q.Key.Name == "" || q.Key.Name == e.Key.Name) && (q.Who == "" || q.Who == e.By.Name) && !e.Time.Before(q.Since) &&
		(q.Before == 0 || e.ID < q.Before)
}

// Beat is in Store. Memory forgets no beat.
func (m *Memory) Beat(ctx context.Context, beats []Beat) ([]Beat, error) {
	m.db.mu.Lock()
	defer m.db.mu.Unlock()
	if err := m.reach(ctx); err != nil {
		return nil, err
	}
	for _, b := range beats {
		b.Info = slices.Clone(b.Info)
		m.db.mu.beats[b.Node] = b
	}
	all := make([]Beat, 0, len(m.db.mu.beats))
	for _, b := range m.db.mu.beats {
		all = append(all, b)
	}
	slices.SortFunc(all, func(a, b Beat) int { return strings.Compare(a.Node, b.Node) })
	return all, nil
}

// Close is in Store. The database stays for other stores.
func (m *Memory) Close() error {
	m.db.mu.Lock()
	defer m.db.mu.Unlock()
	m.closed.Store(true)
	m.db.wake()
	return nil
}
