package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/uptrace/bun"

	"github.com/jmqio/jmq/server/meta"
)

// head is what one statement says of the database.
type head struct {
	Generation meta.Generation
	Version    meta.Version
	Floor      meta.Version
	Stamp      int64
	Schema     int64
}

const headQuery = `SELECT generation, version, floor,
	COALESCE((SELECT stamp FROM jmq_version WHERE jmq_version.version = jmq_registry.version), 0) AS stamp,
	(SELECT MAX(version_id) FROM jmq_schema) AS schema_version
	FROM jmq_registry WHERE id = 1`

func readHead(ctx context.Context, q bun.IDB) (h head, err error) {
	err = q.NewRaw(headQuery).Scan(ctx, &h.Generation, &h.Version, &h.Floor, &h.Stamp, &h.Schema)
	switch {
	case err == sql.ErrNoRows:
		return h, fmt.Errorf("%w: jmq_registry has no row", errForeign)
	case err != nil:
		return h, err
	case h.Schema > schemaVersion:
		return h, fmt.Errorf("%w: it has schema %d, this jmq knows up to %d: upgrade jmq on this node", errNewer, h.Schema, schemaVersion)
	case h.Generation == 0:
		return h, errCopying
	}
	return h, nil
}

// look reads what the database has, if it is not what is known.
func (s *Store) look(ctx context.Context, db *database) (*state, error) {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	h, err := readHead(call, db.read)
	if err != nil {
		return nil, fmt.Errorf("read the version: %w", err)
	}
	if known := s.seen.Load(); h.Generation == known.Generation && h.Version == known.Version && h.Stamp == known.stamp && h.Floor <= known.floor {
		return known, nil
	}
	// Seldom, so that its time may be what reading everything takes.
	load, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	tx, err := db.begin(load, true)
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback() }() // it has only read
	if h, err = readHead(load, tx); err != nil {
		return nil, fmt.Errorf("read the version: %w", err)
	}
	return s.catchUp(load, tx, h)
}

// catchUp reads how the database has gone on from what is known to version h.Version, of which h.Stamp may be 0: not known.
func (s *Store) catchUp(ctx context.Context, tx bun.Tx, h head) (*state, error) {
	known := s.seen.Load()
	if h.Generation < known.Generation || h.Generation == known.Generation && h.Version < known.Version {
		return nil, fmt.Errorf("%w: generation %d, version %d, where %d, %d was seen; if it was restored from a copy, start a new generation: jmq registry new-generation", errOlder, h.Generation, h.Version, known.Generation, known.Version)
	}
	if h.Stamp == 0 {
		var err error
		if h.Stamp, err = stampOf(ctx, tx, h.Version); err != nil {
			return nil, err
		}
	}
	if h.Generation == known.Generation {
		stamp, err := stampOf(ctx, tx, known.Version)
		if err != nil {
			return nil, err
		}
		if stamp != known.stamp {
			return nil, fmt.Errorf("%w: its version %d is not the one that was seen; if that is wanted, start a new generation: jmq registry new-generation", errParted, known.Version)
		}
		if h.Floor <= known.floor {
			if h.Version == known.Version {
				return known, nil
			}
			changed, err := readObjects(ctx, tx, known.Version)
			if err != nil {
				return nil, err
			}
			return &state{known.Next(h.Version, changed), h.Stamp, known.floor}, nil
		}
	}
	return readAll(ctx, tx, h)
}

// readAll reads everything, with the deletions that are not forgotten.
func readAll(ctx context.Context, tx bun.Tx, h head) (*state, error) {
	objects, err := readObjects(ctx, tx, 0)
	if err != nil {
		return nil, err
	}
	return &state{meta.NewSnapshot(h.Generation, h.Version, h.Floor, objects), h.Stamp, h.Floor}, nil
}

// stampOf is 0 for a version that is not there.
func stampOf(ctx context.Context, tx bun.Tx, v meta.Version) (stamp int64, err error) {
	err = tx.NewRaw("SELECT stamp FROM jmq_version WHERE version = ?", v).Scan(ctx, &stamp)
	if err == sql.ErrNoRows {
		err = nil
	}
	return stamp, err
}

// decodeRows is how many rows one goroutine of readObjects decodes.
const decodeRows = 1000

// readObjects reads what has changed after a version, or everything. Specs are decoded on all processors, while the rows come in.
func readObjects(ctx context.Context, tx bun.Tx, after meta.Version) ([]*meta.Object, error) {
	rows, err := tx.QueryContext(ctx, "SELECT kind, namespace, name, revision, created, born, deleted, spec FROM jmq_object WHERE revision > ?", after)
	if err != nil {
		return nil, fmt.Errorf("read objects: %w", err)
	}
	defer rows.Close()
	type batch struct {
		rows    []objectRow
		objects []*meta.Object
		err     error
	}
	var batches []*batch
	var work sync.WaitGroup
	defer work.Wait()
	turns := make(chan struct{}, runtime.GOMAXPROCS(0))
	decode := func(b *batch) {
		turns <- struct{}{}
		work.Go(func() {
			defer func() { <-turns }()
			for i := range b.rows {
				o, err := b.rows[i].object()
				if err != nil {
					b.err = err
					return
				}
				b.objects = append(b.objects, o)
			}
		})
	}
	n := 0
	for rows.Next() {
		if n%decodeRows == 0 {
			if n > 0 {
				decode(batches[len(batches)-1])
			}
			batches = append(batches, &batch{})
		}
		n++
		b := batches[len(batches)-1]
		var row objectRow
		if err := rows.Scan(&row.Kind, &row.Namespace, &row.Name, &row.Revision, &row.Created, &row.Born, &row.Deleted, &row.Spec); err != nil {
			return nil, fmt.Errorf("read objects: %w", err)
		}
		b.rows = append(b.rows, row)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read objects: %w", err)
	}
	if n > 0 {
		decode(batches[len(batches)-1])
	}
	work.Wait()
	objects := make([]*meta.Object, 0, n)
	for _, b := range batches {
		if b.err != nil {
			return nil, b.err
		}
		objects = append(objects, b.objects...)
	}
	return objects, nil
}

// Audit is in meta.Store.
func (s *Store) Audit(ctx context.Context, q meta.AuditQuery) (entries []meta.AuditEntry, more bool, err error) {
	limit := q.Limit
	if limit <= 0 {
		limit = meta.AuditUsual
	}
	limit = min(limit, meta.AuditMax)
	err = s.ask(ctx, "read the audit", func(ctx context.Context, db *database) error {
		var rows []auditRow
		query := db.read.NewSelect().Model(&rows).Order("id DESC").Limit(int64(limit) + 1)
		for column, value := range map[string]string{"kind": string(q.Key.Kind), "namespace": q.Key.Namespace, "name": q.Key.Name, "who": q.Who} {
			if value != "" {
				query.Where("? = ?", bun.Ident(column), value)
			}
		}
		if !q.Since.IsZero() {
			query.Where("time >= ?", q.Since.UnixNano())
		}
		if q.Before > 0 {
			query.Where("id < ?", q.Before)
		}
		if err := query.Scan(ctx); err != nil {
			return err
		}
		if more = len(rows) > limit; more {
			rows = rows[:limit]
		}
		for i := range rows {
			entries = append(entries, rows[i].entry())
		}
		return nil
	})
	return entries, more, err
}

// ask calls f with the database and a deadline, and gives its error the code that it needs.
func (s *Store) ask(ctx context.Context, doing string, f func(context.Context, *database) error) error {
	if s.isClosed() {
		return away(doing, errClosed)
	}
	db := s.db.Load()
	if db == nil {
		return s.Health()
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := f(call, db); err != nil {
		return away(doing, plain(err))
	}
	return nil
}

// Beat is in meta.Store. Heartbeats have no clock: who reads them sees that a count has changed.
func (s *Store) Beat(ctx context.Context, beats []meta.Beat) ([]meta.Beat, error) {
	now := s.o.Now().UnixNano()
	rows := make([]beatRow, 0, len(beats))
	for _, b := range beats {
		info := b.Info
		if info == nil {
			info = []byte{}
		}
		rows = append(rows, beatRow{Node: b.Node, Boot: b.Boot, Count: b.Count, Time: now, Info: info})
	}
	// All nodes in one order, so that no two wait for each other.
	slices.SortFunc(rows, func(a, b beatRow) int { return strings.Compare(a.Node, b.Node) })
	var all []meta.Beat
	err := s.ask(ctx, "store heartbeats", func(call context.Context, db *database) error {
		if err := db.replaced(); err != nil {
			return err
		}
		if len(rows) > 0 {
			err := again(call, func() error {
				_, err := db.beat.NewInsert().Model(&rows).Replace().Exec(call)
				return err
			})
			if ctx.Err() == nil { // else it says nothing of the database
				s.note(&s.mu.writeErr, err)
			}
			if err != nil {
				return err
			}
		}
		var stored []beatRow
		if err := db.read.NewSelect().Model(&stored).Order("node").Scan(call); err != nil {
			return err
		}
		for _, row := range stored {
			all = append(all, meta.Beat{Node: row.Node, Boot: row.Boot, Count: row.Count, Info: row.Info})
		}
		return nil
	})
	return all, err
}

// again repeats what the engine has refused in favour of others.
func again(ctx context.Context, f func() error) (err error) {
	for try := range triesMax {
		if err = f(); !isRefused(err) || !pause(ctx, try) {
			break
		}
	}
	return err
}

// pause waits before the next try; it returns false if ctx has ended.
func pause(ctx context.Context, try int) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(backOff(try)):
		return true
	}
}
