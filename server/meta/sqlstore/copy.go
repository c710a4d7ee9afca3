package sqlstore

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/jmqio/jmq/server/meta"
)

// CopyOptions of Copy.
type CopyOptions struct {
	From, To Location
	By       meta.Actor
	// Force empties a target that has metadata, and takes a source that nodes still write to.
	Force bool
	// Progress is told how many rows of all are copied. nil: nobody is.
	Progress func(done, total int64)
	Now      func() time.Time // nil: time.Now
	Logger   *slog.Logger     // nil: slog.Default
}

// Copied says what a copy has.
type Copied struct {
	Kinds      map[meta.Kind]int // objects that are there
	Deleted    int               // deletions that are not forgotten
	Audit      int
	Generation meta.Generation
	Version    meta.Version
}

var (
	// ErrNotEmpty: the target of a copy has metadata.
	ErrNotEmpty = errors.New("the target has metadata")
	// ErrInUse: registry nodes run on the source of a copy.
	ErrInUse = errors.New("registry nodes run on the source")
)

// copyRows is how many rows are read and written at a time; beatsSeen is time enough for a living node to beat.
const (
	copyRows  = 500
	beatsSeen = 1500 * time.Millisecond
)

// Copy copies the metadata of one database into another, of any kind, with revisions and audit, as a new generation: brokers and clients accept it, and nobody
// who has seen it believes the old database again. Heartbeats stay behind. The target is taken by nobody before it is complete and compared with the source:
// until then its generation is 0, and a copy that ended before is begun anew. The source is only read.
func Copy(ctx context.Context, o CopyOptions) (Copied, error) {
	so := Options{Now: o.Now, Logger: o.Logger}.withDefaults()
	if o.From.String() == o.To.String() {
		return Copied{}, fmt.Errorf("copy metadata: source and target are both %s", o.From)
	}
	if o.From.File != "" {
		if _, err := os.Stat(o.From.File); err != nil { // to open it would make it
			return Copied{}, fmt.Errorf("source: %w", err)
		}
	}
	from, err := connect(o.From, so.Logger)
	if err != nil {
		return Copied{}, fmt.Errorf("source %s: %w", o.From, err)
	}
	defer from.close()
	to, err := connect(o.To, so.Logger)
	if err != nil {
		return Copied{}, fmt.Errorf("target %s: %w", o.To, err)
	}
	defer to.close()
	c := copier{from: from, to: to, o: o, now: so.Now}
	if err := c.start(ctx); err != nil {
		return Copied{}, err
	}
	return c.run(ctx)
}

type copier struct {
	from, to    *database
	o           CopyOptions
	now         func() time.Time
	done, total int64
}

// start looks whether it may be done, and marks the target.
func (c *copier) start(ctx context.Context) error {
	at, err := c.from.schemaAt(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("source %s: %w", c.o.From, plain(err))
	case at == 0:
		return fmt.Errorf("source %s: there is no metadata", c.o.From)
	case at > schemaVersion:
		return fmt.Errorf("source %s: %w", c.o.From, errNewer)
	}
	if !c.o.Force {
		if err := c.quiet(ctx); err != nil {
			return err
		}
	}
	if err := c.to.migrate(ctx); err != nil {
		return fmt.Errorf("target %s: %w", c.o.To, plain(err))
	}
	var rows []registryRow
	if err := c.to.read.NewSelect().Model(&rows).Scan(ctx); err != nil {
		return fmt.Errorf("target %s: %w", c.o.To, plain(err))
	}
	if len(rows) > 0 && rows[0].Generation != 0 && !c.o.Force {
		return fmt.Errorf("target %s: %w (generation %d, version %d); with --force it is replaced", c.o.To, ErrNotEmpty, rows[0].Generation, rows[0].Version)
	}
	// The mark first: from here on no registry takes the target for metadata. Then what an earlier copy, or --force, leaves to remove.
	err = c.change(ctx, func(tx bun.Tx) error {
		if _, err := tx.NewDelete().Model((*registryRow)(nil)).Where("1 = 1").Exec(ctx); err != nil {
			return err
		}
		_, err := tx.NewInsert().Model(&registryRow{ID: 1}).Exec(ctx)
		return err
	})
	for _, table := range []string{"jmq_object", "jmq_audit", "jmq_version", "jmq_heartbeat"} {
		if err == nil {
			_, err = c.to.schema.NewRaw("DELETE FROM ?", bun.Ident(table)).Exec(ctx)
		}
	}
	if err != nil {
		return fmt.Errorf("target %s: %w", c.o.To, plain(err))
	}
	return nil
}

// change makes a transaction at the target.
func (c *copier) change(ctx context.Context, f func(bun.Tx) error) error {
	tx, err := c.to.begin(ctx, false)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// quiet looks for nodes that live on the source: a heartbeat whose count goes up. What they change would not be in the copy.
func (c *copier) quiet(ctx context.Context) error {
	read := func() (rows []beatRow, err error) {
		err = c.from.read.NewSelect().Model(&rows).Order("node").Scan(ctx)
		return rows, err
	}
	before, err := read()
	if err != nil || len(before) == 0 {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(beatsSeen):
	}
	after, err := read()
	if err != nil {
		return err
	}
	if !slices.EqualFunc(before, after, func(a, b beatRow) bool { return a.Node == b.Node && a.Boot == b.Boot && a.Count == b.Count }) {
		return fmt.Errorf("source %s: %w: stop them first; with --force it is copied as it is now", c.o.From, ErrInUse)
	}
	return nil
}

func (c *copier) progress(n int) {
	c.done += int64(n)
	if c.o.Progress != nil {
		c.o.Progress(c.done, c.total)
	}
}

func (c *copier) run(ctx context.Context) (out Copied, err error) {
	tx, err := c.from.begin(ctx, true) // all of it as one version has it
	if err != nil {
		return out, fmt.Errorf("source %s: %w", c.o.From, plain(err))
	}
	defer func() { _ = tx.Rollback() }() // it has only read
	h, err := readHead(ctx, tx)
	if err != nil {
		return out, fmt.Errorf("source %s: %w", c.o.From, plain(err))
	}
	var objects, entries int64
	if err := tx.NewRaw("SELECT (SELECT COUNT(*) FROM jmq_object), (SELECT COUNT(*) FROM jmq_audit)").Scan(ctx, &objects, &entries); err != nil {
		return out, fmt.Errorf("source %s: %w", c.o.From, plain(err))
	}
	c.total = 2*(objects+entries) + 1 // each is copied and compared
	c.progress(0)

	// Objects are decoded on the way: what no registry could read is found now.
	s, err := c.copyObjects(ctx, tx, h)
	if err != nil {
		return out, err
	}
	if err := c.copyAudit(ctx, tx); err != nil {
		return out, err
	}
	if err := c.compare(ctx, tx); err != nil {
		return out, err
	}
	// Nothing of the source may have changed meanwhile.
	if now, err := readHead(ctx, c.from.read); err != nil || now != h {
		if err == nil && !c.o.Force {
			return out, fmt.Errorf("source %s: %w: it has version %d now, %d was copied; stop them and run it again", c.o.From, ErrInUse, now.Version, h.Version)
		} else if err != nil {
			return out, fmt.Errorf("source %s: %w", c.o.From, plain(err))
		}
	}
	next, changed, audit := s.PlanGeneration(h.Generation+1, c.o.By, "copied from "+c.o.From.String(), c.now())
	err = c.change(ctx, func(tx bun.Tx) error {
		if err := writeVersion(ctx, tx, next, changed, audit, newStamp(), c.now()); err != nil {
			return err
		}
		_, err := tx.NewRaw("UPDATE jmq_registry SET floor = ? WHERE id = 1", h.Floor).Exec(ctx)
		return err
	})
	if err != nil {
		return out, fmt.Errorf("target %s: %w", c.o.To, plain(err))
	}
	c.progress(1)
	out = Copied{Kinds: map[meta.Kind]int{}, Audit: int(entries) + len(audit), Generation: next.Generation, Version: next.Version}
	there := 0
	for _, k := range meta.Kinds {
		if n := next.Len(k); n > 0 {
			out.Kinds[k] = n
			there += n
		}
	}
	out.Deleted = int(objects) - there
	return out, nil
}

func (c *copier) copyObjects(ctx context.Context, tx bun.Tx, h head) (*meta.Snapshot, error) {
	var all []*meta.Object
	err := eachObject(ctx, tx, func(rows []objectRow) error {
		for i := range rows {
			o, err := rows[i].object()
			if err != nil {
				return fmt.Errorf("source %s: %w", c.o.From, err)
			}
			all = append(all, o)
		}
		if err := c.write(ctx, func(tx bun.Tx) error {
			return insert(ctx, tx, rows, false, func(row *objectRow) int { return len(row.Spec) })
		}); err != nil {
			return err
		}
		c.progress(len(rows))
		return nil
	})
	return meta.NewSnapshot(h.Generation, h.Version, h.Floor, all), err
}

func (c *copier) copyAudit(ctx context.Context, tx bun.Tx) error {
	return eachEntry(ctx, tx, func(rows []auditRow) error {
		if err := c.write(ctx, func(tx bun.Tx) error { return insert(ctx, tx, rows, false, (*auditRow).bytes) }); err != nil {
			return err
		}
		c.progress(len(rows))
		return nil
	})
}

func (c *copier) write(ctx context.Context, f func(bun.Tx) error) error {
	if err := c.change(ctx, f); err != nil {
		return fmt.Errorf("target %s: %w", c.o.To, plain(err))
	}
	return nil
}

// digest is of a set of rows: how many there are, and a sum that does not depend on their order.
type digest struct {
	rows int
	sum  [4]uint64
}

func (d *digest) add(format string, values ...any) {
	h := sha256.Sum256(fmt.Appendf(nil, format, values...))
	for i := range d.sum {
		for j := range 8 {
			d.sum[i] += uint64(h[8*i+j]) << (8 * j)
		}
	}
	d.rows++
}

// compare reads both databases and holds the copy to its source: counts of each kind, and every byte.
func (c *copier) compare(ctx context.Context, source bun.Tx) error {
	read := func(tx bun.IDB, progress func(int)) (map[string]*digest, error) {
		sets := map[string]*digest{}
		of := func(set string) *digest {
			if sets[set] == nil {
				sets[set] = &digest{}
			}
			return sets[set]
		}
		err := eachObject(ctx, tx, func(rows []objectRow) error {
			for _, r := range rows {
				of(r.Kind).add("%q %q %q %d %d %d %d %q", r.Kind, r.Namespace, r.Name, r.Revision, r.Created, r.Born, r.Deleted, r.Spec)
			}
			progress(len(rows))
			return nil
		})
		if err != nil {
			return nil, err
		}
		return sets, eachEntry(ctx, tx, func(rows []auditRow) error {
			for _, r := range rows {
				of("audit").add("%d %d %d %q %q %q %q %q %q %q %q %q", r.ID, r.Version, r.Time, r.Who, r.Addr, r.Reason, r.Operation, r.Kind, r.Namespace, r.Name, r.Before, r.After)
			}
			progress(len(rows))
			return nil
		})
	}
	want, err := read(source, func(int) {})
	if err != nil {
		return fmt.Errorf("source %s: %w", c.o.From, plain(err))
	}
	got, err := read(c.to.read, c.progress)
	if err != nil {
		return fmt.Errorf("target %s: %w", c.o.To, plain(err))
	}
	for set, w := range want {
		g := got[set]
		if g == nil {
			g = &digest{}
		}
		if *g != *w {
			return fmt.Errorf("target %s: its %s rows are not those of the source: %d of %d; something else writes to it", c.o.To, set, g.rows, w.rows)
		}
	}
	if len(got) != len(want) {
		return fmt.Errorf("target %s: it has more than the source; something else writes to it", c.o.To)
	}
	return nil
}

// eachObject gives all rows in pages, in the order of their keys.
func eachObject(ctx context.Context, db bun.IDB, f func([]objectRow) error) error {
	var last objectRow
	for {
		var rows []objectRow
		// A comparison of rows is one range of the key in all three databases' terms, but not in MySQL's plans: so it is written out.
		err := db.NewSelect().Model(&rows).
			Where("kind > ? OR (kind = ? AND (namespace > ? OR (namespace = ? AND name > ?)))", last.Kind, last.Kind, last.Namespace, last.Namespace, last.Name).
			Order("kind", "namespace", "name").Limit(copyRows).Scan(ctx)
		if err != nil || len(rows) == 0 {
			return err
		}
		last = rows[len(rows)-1]
		if err := f(rows); err != nil {
			return err
		}
	}
}

// eachEntry gives all rows in pages, in the order of their ids.
func eachEntry(ctx context.Context, db bun.IDB, f func([]auditRow) error) error {
	var last uint64
	for {
		var rows []auditRow
		if err := db.NewSelect().Model(&rows).Where("id > ?", last).Order("id").Limit(copyRows).Scan(ctx); err != nil || len(rows) == 0 {
			return err
		}
		last = rows[len(rows)-1].ID
		if err := f(rows); err != nil {
			return err
		}
	}
}
