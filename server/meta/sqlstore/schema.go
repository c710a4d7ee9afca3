package sqlstore

import (
	"context"
	"database/sql"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/uptrace/bun"

	"github.com/jmqio/jmq/server/meta"
)

//go:embed schema/*/*.sql
var schemaFiles embed.FS

// schemaVersion is the last step that this version of jmq knows.
const schemaVersion = 1

// registryRow is the one row of jmq_registry.
type registryRow struct {
	bun.BaseModel `bun:"table:jmq_registry"`
	ID            int64 `bun:",pk"`
	Generation    meta.Generation
	Version       meta.Version
	Floor         meta.Version
}

type versionRow struct {
	bun.BaseModel `bun:"table:jmq_version"`
	Version       meta.Version `bun:",pk"`
	Stamp         int64
	Time          int64
}

type objectRow struct {
	bun.BaseModel `bun:"table:jmq_object"`
	Kind          string `bun:",pk"`
	Namespace     string `bun:",pk"`
	Name          string `bun:",pk"`
	Revision      meta.Version
	Created       meta.Version
	Born          int64
	Deleted       int64 // 0: it is there
	Spec          string
}

type auditRow struct {
	bun.BaseModel `bun:"table:jmq_audit"`
	ID            uint64 `bun:",pk"`
	Version       meta.Version
	Time          int64
	Who           string
	Addr          string
	Reason        string
	Operation     string
	Kind          string
	Namespace     string
	Name          string
	Before        string `bun:"before_"`
	After         string `bun:"after_"`
}

type beatRow struct {
	bun.BaseModel `bun:"table:jmq_heartbeat"`
	Node          string `bun:",pk"`
	Boot          string
	Count         uint64
	Time          int64
	Info          []byte
}

func newObjectRow(o *meta.Object, now time.Time) (objectRow, error) {
	row := objectRow{Kind: string(o.Kind), Namespace: o.Namespace, Name: o.Name, Revision: o.Revision, Created: o.Created, Born: o.Born}
	if o.Spec == nil {
		row.Deleted = now.UnixNano()
		return row, nil
	}
	spec, err := meta.EncodeSpec(o.Spec)
	row.Spec = string(spec)
	return row, err
}

func (row *objectRow) object() (*meta.Object, error) {
	o := &meta.Object{Key: meta.Key{Kind: meta.Kind(row.Kind), Namespace: row.Namespace, Name: row.Name}, Revision: row.Revision, Created: row.Created, Born: row.Born}
	if row.Deleted != 0 {
		return o, nil
	}
	o.Spec = meta.NewSpec(o.Kind)
	if o.Spec == nil {
		return nil, fmt.Errorf("%w: %s: its kind is not known", errForeign, o.Key)
	}
	// Not meta.DecodeSpec: a change was checked by it before it was written, and to check it again is half of the time of a start.
	d := json.NewDecoder(strings.NewReader(row.Spec))
	d.DisallowUnknownFields()
	if err := d.Decode(o.Spec); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", errForeign, o.Key, err)
	}
	return o, nil
}

func newAuditRow(e meta.AuditEntry, n int) auditRow {
	return auditRow{ID: uint64(e.Version)<<10 | uint64(n), Version: e.Version, Time: e.Time.UnixNano(), Who: e.By.Name, Addr: e.By.Addr, Reason: e.Reason, Operation: e.Change,
		Kind: string(e.Key.Kind), Namespace: e.Key.Namespace, Name: e.Key.Name, Before: string(e.Before), After: string(e.After)}
}

func (row *auditRow) entry() meta.AuditEntry {
	return meta.AuditEntry{ID: row.ID, Version: row.Version, Time: time.Unix(0, row.Time).UTC(), By: meta.Actor{Name: row.Who, Addr: row.Addr}, Reason: row.Reason, Change: row.Operation,
		Key: meta.Key{Kind: meta.Kind(row.Kind), Namespace: row.Namespace, Name: row.Name}, Before: textBytes(row.Before), After: textBytes(row.After)}
}

func textBytes(s string) []byte {
	if s == "" {
		return nil
	}
	return []byte(s)
}

// newStamp is never 0, which says that there is none.
func newStamp() int64 { return 1 + rand.Int64N(1<<62) }

// prepare brings the schema up to date and writes the first version, where that was not done. Any number of processes may
// do it at the same time.
func (db *database) prepare(ctx context.Context, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	if err := db.migrate(ctx); err != nil {
		return err
	}
	var rows int
	if err := db.read.NewRaw("SELECT COUNT(*) FROM jmq_registry").Scan(ctx, &rows); err != nil {
		return fmt.Errorf("read jmq_registry: %w", err)
	}
	if rows > 0 {
		return nil
	}
	tx, err := db.begin(ctx, false)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	s := meta.Initial(1)
	row := registryRow{ID: 1, Generation: s.Generation, Version: s.Version}
	if _, err := tx.NewInsert().Model(&row).Exec(ctx); err != nil {
		if isDuplicate(err) { // another process was faster
			return nil
		}
		return fmt.Errorf("write the first version: %w", err)
	}
	if left, err := tx.NewSelect().Model((*objectRow)(nil)).Count(ctx); err != nil || left > 0 {
		return errors.Join(err, fmt.Errorf("%w: jmq_object has %d objects but jmq_registry no version", errForeign, left))
	}
	if err := writeVersion(ctx, tx, s, everything(s), nil, newStamp(), now); err != nil {
		return err
	}
	return tx.Commit()
}

// migrate takes the steps of the schema that are missing, and refuses a schema that is newer.
func (db *database) migrate(ctx context.Context) error {
	at, err := db.schemaAt(ctx)
	if err != nil {
		return fmt.Errorf("read the version of the schema: %w", err)
	}
	if at > schemaVersion {
		return fmt.Errorf("%w: it has schema %d, this jmq knows up to %d: upgrade jmq on this node", errNewer, at, schemaVersion)
	}
	if at == schemaVersion {
		return nil
	}
	dialect, dir := goose.DialectSQLite3, "schema/sqlite"
	if db.mysql {
		dialect, dir = goose.DialectMySQL, "schema/mysql"
		unlock, err := db.lockSchema(ctx)
		if err != nil {
			return err
		}
		defer unlock()
	}
	files, err := fs.Sub(schemaFiles, dir)
	if err != nil {
		return err
	}
	provider, err := goose.NewProvider(dialect, db.schema.DB, files, goose.WithTableName("jmq_schema"), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("read the steps of the schema: %w", err)
	}
	for try := 0; ; try++ {
		if _, err = provider.Up(ctx); err == nil {
			return nil
		}
		// Of SQLite's processes one makes the schema, and the others find that it is there.
		if now, e := db.schemaAt(ctx); e == nil && now == schemaVersion {
			return nil
		}
		if db.mysql || try == 5 || ctx.Err() != nil {
			return fmt.Errorf("bring the schema from %d to %d: %w", at, schemaVersion, err)
		}
	}
}

// schemaAt is 0 where there is none.
func (db *database) schemaAt(ctx context.Context) (int64, error) {
	var at sql.NullInt64
	err := db.read.NewRaw("SELECT MAX(version_id) FROM jmq_schema").Scan(ctx, &at)
	if isNoTable(err) {
		return 0, nil
	}
	return at.Int64, err
}

// lockSchema lets one process of all change the schema: MySQL has no transactions of definitions.
func (db *database) lockSchema(ctx context.Context) (unlock func(), err error) {
	conn, err := db.schema.DB.Conn(ctx)
	if err != nil {
		return nil, err
	}
	var got sql.NullInt64
	if err := conn.QueryRowContext(ctx, "SELECT GET_LOCK(LEFT(CONCAT('jmq ', DATABASE()), 64), 20)").Scan(&got); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if got.Int64 != 1 {
		return nil, errors.Join(errors.New("another process changes the schema, for 20 s now"), conn.Close())
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
		defer cancel()
		// Where this fails the connection is broken, and the lock gone with it.
		_, _ = conn.ExecContext(ctx, "SELECT RELEASE_LOCK(LEFT(CONCAT('jmq ', DATABASE()), 64))")
		_ = conn.Close()
	}, nil
}
