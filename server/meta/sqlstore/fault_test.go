package sqlstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/jmqio/jmq/scripts/testenv"
	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/wire"
)

var by = meta.Actor{Name: "user tess", Addr: "192.0.2.7"}

func user(name string) meta.Change {
	return meta.Change{By: by, Writes: []meta.Write{{Key: meta.Key{Kind: meta.KindUser, Name: name}, Spec: &meta.User{Role: meta.RoleUser}, Expect: meta.Expect{Create: true}}}}
}

func remove(name string) meta.Change {
	return meta.Change{By: by, Writes: []meta.Write{{Key: meta.Key{Kind: meta.KindUser, Name: name}, Expect: meta.Expect{Any: true}}}}
}

func update(t testing.TB, s *Store, c meta.Change) *meta.Snapshot {
	t.Helper()
	v, err := s.Update(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// refuses holds Update to a code and to what its text says.
func refuses(t *testing.T, s *Store, c meta.Change, code wire.Code, says string) {
	t.Helper()
	before := s.View()
	_, err := s.Update(t.Context(), c)
	if wire.CodeOf(err) != code || !strings.Contains(fmt.Sprint(err), says) {
		t.Fatalf("update: got %v, want %v that says %q", err, code, says)
	}
	if s.View() != before {
		t.Fatalf("view: got version %d after a refused change, was %d", s.View().Version, before.Version)
	}
}

// await looks at a condition until it holds.
func await(t *testing.T, what string, f func() bool) {
	t.Helper()
	ctx := within(t, soon)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not within %v", what, soon)
		case <-tick.C:
		}
	}
}

func sick(t *testing.T, s *Store, says string) {
	t.Helper()
	await(t, "health says "+says, func() bool { return strings.Contains(fmt.Sprint(s.Health()), says) })
}

func well(t *testing.T, s *Store) {
	t.Helper()
	await(t, "health is good", func() bool { return s.Health() == nil })
}

func count(s *meta.Snapshot) int { return s.Len(meta.KindUser) }

// TestServer does to a MariaDB what happens to databases. Meanwhile the store gives what it knows; afterwards it goes on by itself.
func TestServer(t *testing.T) {
	t.Parallel()
	server := testenv.NewMariaDB(t)
	l := Location{DSN: server.Database(t)}
	s := open(t, l)
	update(t, s, user("first"))

	t.Run("killed", func(t *testing.T) {
		before := s.View()
		server.Kill()
		refuses(t, s, user("second"), wire.CodeMetadataAway, "")
		sick(t, s, "cannot be reached")
		if _, err := s.Beat(t.Context(), []meta.Beat{{Node: "n", Count: 1}}); wire.CodeOf(err) != wire.CodeMetadataAway {
			t.Fatalf("beat: got %v, want %v", err, wire.CodeMetadataAway)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := s.Watch(ctx, before); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("watch: got %v, want that it waits", err)
		}
		if s.View() != before {
			t.Fatal("view: it has changed while the database was away")
		}
		if err := server.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		update(t, s, user("second"))
		well(t, s)
	})

	t.Run("opened while it is away", func(t *testing.T) {
		server.Stop()
		ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
		defer cancel()
		if _, err := Open(ctx, Options{Location: l, Logger: quiet()}); wire.CodeOf(err) != wire.CodeMetadataAway {
			t.Fatalf("open: got %v, want %v", err, wire.CodeMetadataAway)
		}
		absent, err := Open(t.Context(), Options{Location: l, Logger: quiet(), Absent: true})
		if err != nil {
			t.Fatal(err)
		}
		defer absent.Close()
		nothing := absent.View()
		if nothing.Generation != 0 || count(nothing) != 0 || absent.Health() == nil {
			t.Fatalf("a store that knows nothing: got generation %d, %d users, health %v", nothing.Generation, count(nothing), absent.Health())
		}
		refuses(t, absent, user("third"), wire.CodeMetadataAway, "")
		if _, err := absent.NewGeneration(t.Context(), by, "none"); wire.CodeOf(err) != wire.CodeMetadataAway {
			t.Fatalf("new generation: got %v, want %v", err, wire.CodeMetadataAway)
		}
		if err := server.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		v, err := absent.Watch(within(t, soon), nothing)
		if err != nil || count(v) != 2 {
			t.Fatalf("watch: got %d users, %v; want 2", count(v), err)
		}
		update(t, absent, user("third"))
		well(t, s)
	})

	t.Run("paused", func(t *testing.T) {
		server.Pause()
		start := time.Now()
		resumed := make(chan struct{})
		timer := time.AfterFunc(2*time.Second, func() { server.Resume(); close(resumed) })
		defer timer.Stop()
		before := s.View()
		update(t, s, user("fourth"))
		<-resumed
		if took := time.Since(start); took < 2*time.Second || before == s.View() {
			t.Fatalf("update over a pause: it took %v", took)
		}
	})

	t.Run("read-only", func(t *testing.T) {
		if err := server.SetReadOnly(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		refuses(t, s, user("fifth"), wire.CodeMetadataAway, "read-only")
		sick(t, s, "read-only")
		readOnly := open(t, l) // one that was prepared is opened all the same
		if count(readOnly.View()) != 4 {
			t.Fatalf("view: got %d users, want 4", count(readOnly.View()))
		}
		if err := server.SetReadOnly(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		well(t, s)
		update(t, s, user("fifth"))
	})

	t.Run("wrong password", func(t *testing.T) {
		_, err := Open(within(t, soon), Options{Location: Location{DSN: strings.Replace(l.DSN, ":secret@", ":other@", 1)}, Logger: quiet()})
		if err == nil || !strings.Contains(err.Error(), "Access denied") || strings.Contains(err.Error(), "other") {
			t.Fatalf("open: got %v, want that access is denied", err)
		}
		_, err = Open(within(t, soon), Options{Location: Location{DSN: server.DSN("jmq_none")}, Logger: quiet()})
		if err == nil || !strings.Contains(err.Error(), "jmq_none") {
			t.Fatalf("open: got %v, want that the database is not there", err)
		}
	})
}

// proxy stands between a store and a server, and loses commits.
type proxy struct {
	net.Listener
	target string
	lose   atomic.Int32 // the commit that is lost next: loseAnswer or loseRequest; 0: none
	shut   atomic.Bool  // afterwards it takes no connections
	work   sync.WaitGroup
}

const (
	loseAnswer  = 1
	loseRequest = 2
)

func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{Listener: l, target: target}
	p.work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.work.Go(func() { p.serve(c) })
		}
	})
	t.Cleanup(func() { l.Close(); p.work.Wait() })
	return p
}

func (p *proxy) serve(client net.Conn) {
	defer client.Close()
	if p.shut.Load() {
		return
	}
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer server.Close()
	answered := make(chan struct{})
	var deaf atomic.Bool
	p.work.Go(func() {
		defer close(answered)
		defer client.Close()
		buf := make([]byte, 64<<10)
		for {
			n, err := server.Read(buf)
			if err != nil || deaf.Load() {
				return
			}
			if _, err := client.Write(buf[:n]); err != nil {
				return
			}
		}
	})
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if err != nil {
			server.Close()
			<-answered
			return
		}
		if bytes.Equal(buf[:n], []byte("\x07\x00\x00\x00\x03COMMIT")) {
			switch p.lose.Swap(0) {
			case loseAnswer:
				deaf.Store(true)
				if _, err := server.Write(buf[:n]); err == nil {
					<-answered // the server has made it
				}
				return
			case loseRequest:
				server.Close()
				<-answered
				return
			}
		}
		if _, err := server.Write(buf[:n]); err != nil {
			return
		}
	}
}

// TestCommitLost breaks the connection at the commit. Where it can be found out what became of it, the change is made once; else the code says that it is not known,
// and the store finds out what is there.
func TestCommitLost(t *testing.T) {
	t.Parallel()
	c, err := mysql.ParseDSN(testenv.MariaDB(t))
	if err != nil {
		t.Fatal(err)
	}
	p := newProxy(t, c.Addr)
	c.Addr = p.Addr().String()
	s := open(t, Location{DSN: c.FormatDSN()})
	once := func(name string) {
		t.Helper()
		entries, _, err := s.Audit(t.Context(), meta.AuditQuery{Key: meta.Key{Kind: meta.KindUser, Name: name}})
		if err != nil || len(entries) != 1 || entries[0].Version != s.View().Version {
			t.Fatalf("audit of %s: got %+v, %v; want one entry of version %d", name, entries, err, s.View().Version)
		}
	}
	for i, how := range []int32{loseAnswer, loseRequest} {
		name := fmt.Sprintf("user%d", i)
		p.lose.Store(how)
		before := s.View()
		v := update(t, s, user(name))
		if v.Version != before.Version+1 || v.User(name) == nil || p.lose.Load() != 0 {
			t.Fatalf("%s: got version %d, want %d with the user", name, v.Version, before.Version+1)
		}
		once(name)
	}
	p.lose.Store(loseAnswer)
	p.shut.Store(true)
	before := s.View()
	if _, err := s.Update(t.Context(), user("unknown")); wire.CodeOf(err) != wire.CodeUnknown {
		t.Fatalf("update: got %v, want %v", err, wire.CodeUnknown)
	}
	p.shut.Store(false)
	v, err := s.Watch(within(t, soon), before)
	if err != nil || v.User("unknown") == nil {
		t.Fatalf("watch: got %v, %v; want the change that was made", v, err)
	}
	once("unknown")
	well(t, s)
}

// copyOf is what a dump has.
type copyOf struct {
	registry []registryRow
	versions []versionRow
	objects  []objectRow
	audit    []auditRow
}

func dump(t *testing.T, s *Store) (c copyOf) {
	t.Helper()
	db := s.db.Load().read
	for _, rows := range []any{&c.registry, &c.versions, &c.objects, &c.audit} {
		if err := db.NewSelect().Model(rows).Scan(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func (c copyOf) restore(t *testing.T, s *Store) {
	t.Helper()
	tx, err := s.db.Load().begin(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	for _, rows := range []any{&c.registry, &c.versions, &c.objects, &c.audit} {
		if _, err := tx.NewDelete().Model(rows).Where("1 = 1").Exec(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := tx.NewInsert().Model(rows).Exec(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
}

// TestRestored puts an old copy into the database. Who has seen more does not believe it, also when it has gone on to a higher version, until an operator
// says that it is so; then all follow.
func TestRestored(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, l Location) {
		s, other := open(t, l), open(t, l)
		update(t, s, user("kept"))
		old := dump(t, s)
		update(t, s, user("lost"))
		seen := update(t, s, user("lost2"))
		if _, err := other.Watch(within(t, soon), other.View()); err != nil {
			t.Fatal(err)
		}
		old.restore(t, s)
		sick(t, s, "older than what is known")
		refuses(t, s, user("new"), wire.CodeMetadataAway, "new generation")

		fresh := open(t, l) // it has seen nothing else
		if fresh.View().User("lost") != nil || fresh.View().Version != seen.Version-2 {
			t.Fatalf("a new store: got version %d, want the old copy's %d", fresh.View().Version, seen.Version-2)
		}
		for i := range 4 {
			update(t, fresh, user(fmt.Sprintf("beyond%d", i)))
		}
		sick(t, s, "gone on from an older copy")
		refuses(t, s, user("new"), wire.CodeMetadataAway, "new generation")
		if s.View() != seen {
			t.Fatal("view: it is not what was seen")
		}

		v, err := s.NewGeneration(t.Context(), by, "restored")
		if err != nil {
			t.Fatal(err)
		}
		if v.Generation != seen.Generation+1 || v.User("lost") != nil || v.User("beyond3") == nil || s.View() != v {
			t.Fatalf("new generation: got %d, with lost %v", v.Generation, v.User("lost"))
		}
		update(t, s, user("new"))
		well(t, s)
		await(t, "all stores follow", func() bool {
			return other.View().User("new") != nil && other.View().User("lost") == nil && fresh.View().User("new") != nil
		})
		well(t, other)
		entries, _, err := s.Audit(t.Context(), meta.AuditQuery{Limit: 2})
		if err != nil || entries[1].Change != meta.ChangeNewGeneration || entries[1].Reason != "restored" {
			t.Fatalf("audit: got %+v, %v", entries, err)
		}
	})
}

// TestSchema meets schemas that this version does not know.
func TestSchema(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, l Location) {
		s := open(t, l)
		update(t, s, user("first"))
		db := s.db.Load().write
		run := func(query string) {
			t.Helper()
			if _, err := db.ExecContext(t.Context(), query); err != nil {
				t.Fatal(err)
			}
		}
		opens := func(says string) {
			t.Helper()
			_, err := Open(within(t, soon), Options{Location: l, Logger: quiet(), Absent: true})
			if err == nil || !strings.Contains(err.Error(), says) {
				t.Fatalf("open: got %v, want that it says %q", err, says)
			}
		}
		run("INSERT INTO jmq_schema (version_id, is_applied) VALUES (7, 1)")
		opens("newer version of jmq: it has schema 7, this jmq knows up to 1")
		sick(t, s, "newer version of jmq")
		refuses(t, s, user("second"), wire.CodeMetadataAway, "newer version of jmq")
		if s.View().User("first") == nil {
			t.Fatal("view: it is empty")
		}
		run("DELETE FROM jmq_schema WHERE version_id = 7")
		well(t, s)
		update(t, s, user("second"))

		run("UPDATE jmq_object SET spec = '{\"role\":\"user\",\"color\":\"red\"}', revision = 99 WHERE name = 'second'")
		opens("user second")
		run("DELETE FROM jmq_object WHERE revision = 99")
		run("UPDATE jmq_registry SET generation = 0")
		opens("jmq migrate metadata")
		run("DELETE FROM jmq_registry")
		opens("not in a state that jmq leaves")
		run("DROP TABLE jmq_registry")
		opens("jmq_registry")
		sick(t, s, "jmq_registry")
	})
}

// TestOpenTogether has processes that start together make the schema and the first version once.
func TestOpenTogether(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, l Location) {
		var work sync.WaitGroup
		stores := make([]*Store, 6)
		for i := range stores {
			work.Go(func() {
				s, err := Open(t.Context(), Options{Location: l, Logger: quiet()})
				if err != nil {
					t.Error(err)
					return
				}
				stores[i] = s
			})
		}
		work.Wait()
		for _, s := range stores {
			if s == nil {
				continue
			}
			if s.View().Version != 1 || s.View().Namespace(meta.NamespaceDefault) == nil {
				t.Errorf("view: got version %d", s.View().Version)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestPurge forgets deletions after a day: who has seen them goes on, and who knows an older version is told everything.
func TestPurge(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, l Location) {
		var ahead atomic.Int64
		now := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
		s, err := Open(t.Context(), Options{Location: l, Logger: quiet(), Now: now})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		other := open(t, l)
		update(t, s, user("gone"))
		before := update(t, s, user("stays")).Version
		after := update(t, s, remove("gone")).Version
		if _, err := s.Beat(t.Context(), []meta.Beat{{Node: "silent", Count: 1}}); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			ahead time.Duration
			told  bool
		}{{23 * time.Hour, true}, {25 * time.Hour, false}} {
			ahead.Store(int64(c.ahead))
			if err := s.Purge(t.Context()); err != nil {
				t.Fatal(err)
			}
			fresh := open(t, l)
			changed, ok := fresh.View().Since(before)
			if ok != c.told || ok && len(changed) != 1 {
				t.Fatalf("after %v: got %d changes, %v; want %v", c.ahead, len(changed), ok, c.told)
			}
			if _, ok := fresh.View().Since(after); !ok || fresh.View().User("stays") == nil {
				t.Fatalf("after %v: what came later is not known", c.ahead)
			}
			if beats, err := s.Beat(t.Context(), nil); err != nil || len(beats) == 1 != c.told {
				t.Fatalf("after %v: got beats %v, %v", c.ahead, beats, err)
			}
		}
		await(t, "the other store forgets", func() bool { _, ok := other.View().Since(before); return !ok })
		update(t, other, user("later"))
		await(t, "changes go on", func() bool { return s.View().User("later") != nil })
	})
}

// TestLocked holds the lock of changes in another process's place: a change waits for it, and fails in bounded time if it does not end.
func TestLocked(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, l Location) {
		s, other := open(t, l), open(t, l)
		lock := func() (unlock func()) {
			tx, err := other.db.Load().begin(t.Context(), false)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec("UPDATE jmq_registry SET version = version + 1"); err != nil {
				t.Fatal(err)
			}
			return func() { _ = tx.Rollback() }
		}
		timer := time.AfterFunc(300*time.Millisecond, lock())
		defer timer.Stop()
		update(t, s, user("first"))
		unlock := lock()
		start := time.Now()
		refuses(t, s, user("second"), wire.CodeMetadataAway, "")
		if took := time.Since(start); took > 3*callTimeout {
			t.Errorf("update behind a lock: it took %v", took)
		}
		unlock()
		update(t, s, user("second"))
		well(t, s)
	})
}

// TestFile holds the file of SQLite to its mode, and tells when it is not there any more.
func TestFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name := filepath.Join(dir, "with space ?and#%41.db")
	if err := os.WriteFile(name, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s := open(t, Location{File: name})
	update(t, s, user("first"))
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 3 {
		t.Fatalf("files: got %v, %v; want the database, its log and the log's index", files, err)
	}
	for _, f := range files {
		if info, err := f.Info(); err != nil || info.Mode().Perm() != 0o600 || !strings.HasPrefix(f.Name(), filepath.Base(name)) {
			t.Errorf("%s: got %v, %v; want mode 0600", f.Name(), info.Mode(), err)
		}
	}
	if err := os.Rename(name, name+".old"); err != nil {
		t.Fatal(err)
	}
	sick(t, s, "removed or replaced")
	refuses(t, s, user("second"), wire.CodeMetadataAway, "removed or replaced")
	if err := os.Rename(name+".old", name); err != nil {
		t.Fatal(err)
	}
	well(t, s)
	update(t, s, user("second"))

	for file, says := range map[string]string{filepath.Join(dir, "no", "such"): "no such file", dir: "is a directory"} {
		if _, err := Open(within(t, soon), Options{Location: Location{File: file}, Logger: quiet()}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("open %s: got %v, want that it says %q", file, err, says)
		}
	}
	garbage := filepath.Join(dir, "garbage")
	if err := os.WriteFile(garbage, bytes.Repeat([]byte("not a database "), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(within(t, soon), Options{Location: Location{File: garbage}, Logger: quiet()}); err == nil || !strings.Contains(err.Error(), "not a database") {
		t.Errorf("open garbage: got %v", err)
	}
}
