package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/uptrace/bun"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/wire"
)

const (
	// statementBytes is about where a statement ends and the next begins: far below what servers take.
	statementBytes = 1 << 20
	statementRows  = 500
)

// planner says what becomes of a snapshot.
type planner func(s *meta.Snapshot, now time.Time) (next *meta.Snapshot, changed []*meta.Object, audit []meta.AuditEntry, err error)

// Update is in meta.Store. ctx bounds waiting for other changes, not a transaction that has begun.
func (s *Store) Update(ctx context.Context, c meta.Change) (*meta.Snapshot, error) {
	return s.change(ctx, "change metadata", &transaction{s: s, dry: c.DryRun, writes: len(c.Writes), plan: func(base *meta.Snapshot, now time.Time) (*meta.Snapshot, []*meta.Object, []meta.AuditEntry, error) {
		next, changed, audit, _, err := base.Plan(c, now)
		return next, changed, audit, err
	}})
}

// NewGeneration is in meta.Store.
func (s *Store) NewGeneration(ctx context.Context, by meta.Actor, reason string) (*meta.Snapshot, error) {
	t := &transaction{s: s, generation: true}
	t.plan = func(base *meta.Snapshot, now time.Time) (*meta.Snapshot, []*meta.Object, []meta.AuditEntry, error) {
		next, changed, audit := base.PlanGeneration(max(base.Generation, s.View().Generation)+1, by, reason, now)
		return next, changed, audit, nil
	}
	return s.change(ctx, "start a new generation", t)
}

// change makes tries of a transaction until one has a known outcome.
func (s *Store) change(ctx context.Context, doing string, t *transaction) (*meta.Snapshot, error) {
	if err := s.take(ctx); err != nil {
		return nil, err
	}
	defer s.give()
	// What began may go on when the caller has gone: a commit that nobody waits for is an outcome that nobody knows.
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*t.timeout())
	defer cancel()
	for try := 0; ; try++ {
		next, err := t.try(own)
		if _, ok := errors.AsType[*wire.CodeError](err); err == nil || ok {
			if !t.dry && err == nil {
				s.note(&s.mu.writeErr, nil)
			}
			return next, err
		}
		if ctx.Err() == nil && (isRefused(err) && try < triesMax || t.asked.Stamp != 0 && !isLasting(err)) && pause(own, try) {
			continue
		}
		s.note(&s.mu.writeErr, err)
		if t.asked.Stamp != 0 {
			return nil, wire.Errorf(wire.CodeUnknown, "%s: the commit was not answered (%v): it may have been made, read it again", doing, plain(err))
		}
		return nil, away(doing, plain(err))
	}
}

// backOff is the time before try+1, at random so that nodes do not meet again.
func backOff(try int) time.Duration {
	return 5*time.Millisecond + rand.N(10*time.Millisecond<<min(try, 5))
}

// transaction makes one change, in as many tries as it takes.
type transaction struct {
	s          *Store
	plan       planner
	dry        bool
	writes     int  // that it is to make
	generation bool // the database is taken as it is, and gets the generation that is planned
	// asked is the version whose commit was asked for and not answered. Its stamp is 0: there is none.
	asked versionRow
}

// timeout of a try.
func (t *transaction) timeout() time.Duration {
	return callTimeout + time.Duration(t.writes)*writeTimeout
}

// try makes it once. Errors that are not a *wire.CodeError are of the database: nothing was changed, unless asked is set.
func (t *transaction) try(ctx context.Context) (*meta.Snapshot, error) {
	db := t.s.db.Load()
	if db == nil {
		return nil, t.s.Health()
	}
	if err := db.replaced(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, t.timeout())
	defer cancel()
	tx, err := db.begin(ctx, false)
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	// From here on this is the only change, on any node.
	if _, err := tx.NewRaw("UPDATE jmq_registry SET version = version + 1 WHERE id = 1").Exec(ctx); err != nil {
		return nil, err
	}
	h, err := readHead(ctx, tx)
	if err != nil {
		return nil, err
	}
	h.Version, h.Stamp = h.Version-1, 0
	base, err := t.base(ctx, tx, h)
	if err != nil {
		return nil, err
	}
	if t.asked.Stamp != 0 {
		made, err := stampOf(ctx, tx, t.asked.Version)
		if err != nil {
			return nil, err
		}
		if made == t.asked.Stamp { // base has it
			t.s.publish(base)
			return base.Snapshot, nil
		}
		t.asked = versionRow{} // and never will be: the lock is ours
	}
	now := t.s.o.Now()
	next, changed, audit, err := t.plan(base.Snapshot, now)
	if err != nil || t.dry || len(changed) == 0 {
		if !t.generation {
			t.s.publish(base) // others' changes were read anyway
		}
		return next, err
	}
	stamp := newStamp()
	if err := writeVersion(ctx, tx, next, changed, audit, stamp, now); err != nil {
		return nil, err
	}
	if err := tx.Commit(); err != nil {
		if !isAnswered(err) {
			t.asked = versionRow{Version: next.Version, Stamp: stamp}
		}
		return nil, fmt.Errorf("commit: %w", err)
	}
	t.s.publish(&state{next, stamp, base.floor})
	return next, nil
}

// base is what the database has before the change.
func (t *transaction) base(ctx context.Context, tx bun.Tx, h head) (*state, error) {
	if !t.generation {
		return t.s.catchUp(ctx, tx, h)
	}
	var err error
	if h.Stamp, err = stampOf(ctx, tx, h.Version); err != nil {
		return nil, err
	}
	return readAll(ctx, tx, h)
}

// everything is all that is in a snapshot.
func everything(s *meta.Snapshot) []*meta.Object {
	all, _ := s.Since(0)
	return all
}

// writeVersion writes a version: objects, audit, its stamp and its number.
func writeVersion(ctx context.Context, tx bun.Tx, next *meta.Snapshot, changed []*meta.Object, audit []meta.AuditEntry, stamp int64, now time.Time) error {
	objects := make([]objectRow, 0, len(changed))
	for _, o := range changed {
		row, err := newObjectRow(o, now)
		if err != nil {
			return err
		}
		objects = append(objects, row)
	}
	if err := insert(ctx, tx, objects, true, func(row *objectRow) int { return len(row.Spec) }); err != nil {
		return fmt.Errorf("write objects: %w", err)
	}
	entries := make([]auditRow, 0, len(audit))
	for n, e := range audit {
		entries = append(entries, newAuditRow(e, n))
	}
	if err := insert(ctx, tx, entries, false, (*auditRow).bytes); err != nil {
		return fmt.Errorf("write the audit: %w", err)
	}
	if _, err := tx.NewInsert().Model(&versionRow{Version: next.Version, Stamp: stamp, Time: now.UnixNano()}).Exec(ctx); err != nil {
		return fmt.Errorf("write the version: %w", err)
	}
	if _, err := tx.NewRaw("UPDATE jmq_registry SET generation = ?, version = ? WHERE id = 1", next.Generation, next.Version).Exec(ctx); err != nil {
		return fmt.Errorf("write the version: %w", err)
	}
	return nil
}

func (row *auditRow) bytes() int { return len(row.Before) + len(row.After) + len(row.Reason) }

// insert writes rows in as few statements as are of a size that servers take.
func insert[R any](ctx context.Context, db bun.IDB, rows []R, replace bool, size func(*R) int) error {
	for from := 0; from < len(rows); {
		to, bytes := from, 0
		for ; to < len(rows) && to-from < statementRows && (to == from || bytes+size(&rows[to]) <= statementBytes); to++ {
			bytes += size(&rows[to])
		}
		some := rows[from:to]
		q := db.NewInsert().Model(&some)
		if replace {
			q.Replace()
		}
		if _, err := q.Exec(ctx); err != nil {
			return err
		}
		from = to
	}
	return nil
}

// Purge forgets what was deleted more than a day ago, and heartbeats of nodes that are silent as long. The store does it each hour.
func (s *Store) Purge(ctx context.Context) error {
	if err := s.take(ctx); err != nil {
		return err
	}
	defer s.give()
	db := s.db.Load()
	if db == nil {
		return s.Health()
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	before := s.o.Now().Add(-goneFor).UnixNano()
	if _, err := db.beat.NewDelete().Model((*beatRow)(nil)).Where("time < ?", before).Exec(ctx); err != nil {
		return err
	}
	return again(ctx, func() error {
		var old meta.Version
		if err := db.read.NewRaw("SELECT COALESCE(MAX(revision), 0) FROM jmq_object WHERE deleted > 0 AND deleted < ?", before).Scan(ctx, &old); err != nil || old == 0 {
			return err
		}
		tx, err := db.begin(ctx, false)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // after a commit it does nothing
		// The floor first: its row is what changes wait for.
		if _, err := tx.NewRaw("UPDATE jmq_registry SET floor = ? WHERE id = 1 AND floor < ?", old, old).Exec(ctx); err != nil {
			return err
		}
		if _, err := tx.NewDelete().Model((*objectRow)(nil)).Where("deleted > 0 AND revision <= ?", old).Exec(ctx); err != nil {
			return err
		}
		return tx.Commit()
	})
}
