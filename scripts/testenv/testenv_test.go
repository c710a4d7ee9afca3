package testenv

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(Main(m)) }

func open(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// TestShared gives two databases of one server, each empty.
func TestShared(t *testing.T) {
	for range 2 {
		db := open(t, MariaDB(t))
		if _, err := db.Exec("CREATE TABLE t (a INT)"); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFaults does to a server what fault tests do: what it had committed is there after a kill, a paused one does not answer, a
// read-only one refuses, and a stopped one cannot be reached.
func TestFaults(t *testing.T) {
	s := NewMariaDB(t)
	dir := s.dir
	db := open(t, s.Database(t))
	if _, err := db.Exec("CREATE TABLE t (a INT)"); err != nil {
		t.Fatal(err)
	}
	s.Kill()
	if _, err := db.Exec("INSERT INTO t VALUES (1)"); err == nil {
		t.Fatal("a killed server answers")
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec("INSERT INTO t VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	s.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := db.ExecContext(ctx, "INSERT INTO t VALUES (2)"); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a paused server: got %v, want the deadline", err)
	}
	s.Resume()
	if err := s.SetReadOnly(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	var refused *mysql.MySQLError
	if _, err := db.Exec("INSERT INTO t VALUES (3)"); !errors.As(err, &refused) || refused.Number != 1290 {
		t.Fatalf("a read-only server: got %v, want error 1290", err)
	}
	if err := s.SetReadOnly(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec("INSERT INTO t VALUES (4)"); err != nil {
		t.Fatal(err)
	}
	s.Stop()
	if err := s.Remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("its folder: got %v, want that it is gone", err)
	}
}

// recorder is a test that only tells how it would have ended.
type recorder struct {
	testing.TB
	skipped, failed string
}

func (r *recorder) Helper()                   {}
func (r *recorder) Skip(args ...any)          { r.skipped = args[0].(error).Error() }
func (r *recorder) Fatalf(f string, a ...any) { r.failed = a[0].(error).Error() }

// TestMissing skips, and fails where it is required; both name the package to install.
func TestMissing(t *testing.T) {
	for _, c := range []struct {
		require string
		fails   bool
	}{{"", false}, {"redis", false}, {"redis,mysql", true}, {"all", true}} {
		t.Setenv("JMQ_TEST_REQUIRE", c.require)
		r := &recorder{}
		Missing(r, "mysql", ErrMissing)
		said, other := r.skipped, r.failed
		if c.fails {
			said, other = other, said
		}
		if !strings.Contains(said, "mariadb-server-core") || other != "" {
			t.Errorf("JMQ_TEST_REQUIRE=%q: got skipped %q, failed %q", c.require, r.skipped, r.failed)
		}
	}
}

// TestDisk: a disk has as much room as it was given, and is gone with its test. One that a process left which was killed goes at the next start.
func TestDisk(t *testing.T) {
	var dir string
	t.Run("one", func(t *testing.T) {
		dir = Disk(t, 1<<20)
		if err := os.WriteFile(filepath.Join(dir, "more"), make([]byte, 2<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
	})
	if _, err := os.Stat(dir); dir != "" && !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is left: %v", dir, err)
	}
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	left, err := os.MkdirTemp("", fmt.Sprintf("jmq-testenv-%d-", dead.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("jmq-test", left, "tmpfs", 0, "size=65536"); err != nil {
		_ = os.Remove(left)
		Missing(t, "disk", err)
	}
	removeLeft()
	mounts, err := os.ReadFile("/proc/self/mounts")
	if _, serr := os.Stat(left); err != nil || strings.Contains(string(mounts), left) || !errors.Is(serr, fs.ErrNotExist) {
		_ = syscall.Unmount(left, syscall.MNT_DETACH)
		t.Errorf("%s is left: %v, %v\n%s", left, err, serr, mounts)
	}
}
