package testenv

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
)

// The user of every DSN: it may do everything with databases named jmq_*, but not what an administrator may: so it is bound by
// read-only.
const (
	userName = "jmq"
	password = "secret"
)

// ErrMissing is about a program that is not installed.
var ErrMissing = errors.New("MariaDB is missing: install mariadb-server-core and mariadb-client-core (make deps does)")

// MariaDB returns the DSN of a fresh database, dropped when the test ends, on the server that this process shares, or on the one
// of JMQ_TEST_MYSQL.
func MariaDB(t testing.TB) string {
	t.Helper()
	if dsn := os.Getenv("JMQ_TEST_MYSQL"); dsn != "" {
		return externalDatabase(t, dsn)
	}
	shared.Lock()
	if shared.server == nil && shared.err == nil {
		shared.server, shared.err = StartMariaDB(context.Background(), Options{})
	}
	server, err := shared.server, shared.err
	shared.Unlock()
	if errors.Is(err, ErrMissing) {
		Missing(t, "mysql", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return freshDatabase(t, server)
}

// NewMariaDB starts a server for this test alone, ended with it. Its Database method makes databases.
func NewMariaDB(t testing.TB) *Server {
	t.Helper()
	server, err := StartMariaDB(context.Background(), Options{})
	if errors.Is(err, ErrMissing) {
		Missing(t, "mysql", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the log of MariaDB ends with\n%s", server.logTail())
		}
		if err := server.Remove(); err != nil {
			t.Errorf("remove the server: %v", err)
		}
	})
	return server
}

func databaseName() string { return fmt.Sprintf("jmq_%016x", rand.Uint64()) }

func freshDatabase(t testing.TB, s *Server) string {
	t.Helper()
	name := databaseName()
	if err := s.CreateDatabase(context.Background(), name); err != nil {
		t.Fatalf("create a database: %v", err)
	}
	t.Cleanup(func() {
		if err := s.admin(context.Background(), "DROP DATABASE IF EXISTS "+name); err != nil {
			t.Errorf("drop database %s: %v", name, err)
		}
	})
	return s.DSN(name)
}

func externalDatabase(t testing.TB, dsn string) string {
	t.Helper()
	c, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatalf("JMQ_TEST_MYSQL: %v", err)
	}
	c.DBName = ""
	name := databaseName()
	// Any other character set is a bad default that the store must not depend on.
	if err := execute(context.Background(), c.FormatDSN(), "CREATE DATABASE "+name+" CHARACTER SET latin1"); err != nil {
		t.Fatalf("JMQ_TEST_MYSQL: create a database: %v", err)
	}
	t.Cleanup(func() {
		if err := execute(context.Background(), c.FormatDSN(), "DROP DATABASE IF EXISTS "+name); err != nil {
			t.Errorf("drop database %s: %v", name, err)
		}
	})
	c.DBName = name
	return c.FormatDSN()
}

// execute runs statements on a connection of their own.
func execute(ctx context.Context, dsn string, statements ...string) error {
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	for _, s := range statements {
		if _, err := conn.ExecContext(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

// Options of a server.
type Options struct {
	Dir      string // holds its data and log; it is kept, and one that is there is used again. "": a temporary one, gone with Remove
	Port     int    // 0: a free one
	Detached bool   // it goes on when this process ends; its process id is in Dir/pid
}

// Server is a MariaDB of ours. One goroutine waits for its process while it runs. Methods are not for use at the same time, except by
// those who only use the database.
type Server struct {
	dir       string
	temporary bool
	detached  bool
	port      int

	process *os.Process // nil: it does not run
	ended   chan struct{}
	paused  bool
}

// StartMariaDB starts a server and waits until it answers.
func StartMariaDB(ctx context.Context, o Options) (*Server, error) {
	mariadbd, err := program("mariadbd")
	if err != nil {
		return nil, err
	}
	template, err := template(ctx, mariadbd)
	if err != nil {
		return nil, err
	}
	s := &Server{dir: o.Dir, port: o.Port, detached: o.Detached}
	if s.dir == "" {
		if s.dir, err = temporaryDir(); err != nil {
			return nil, err
		}
		s.temporary = true
	}
	if s.dir, err = filepath.Abs(s.dir); err != nil {
		return nil, err
	}
	if len(s.Socket()) > 100 { // the kernel's bound is 107
		return nil, fmt.Errorf("folder %s: its name is too long for a socket's address", s.dir)
	}
	data := filepath.Join(s.dir, "data")
	if _, err := os.Stat(data); errors.Is(err, os.ErrNotExist) {
		unfinished := data + ".tmp"
		_ = os.RemoveAll(unfinished) // of an earlier try
		if err := os.MkdirAll(s.dir, 0o700); err != nil {
			return nil, err
		}
		if err := os.CopyFS(unfinished, os.DirFS(template)); err != nil {
			return nil, errors.Join(err, s.discard())
		}
		if err := os.Rename(unfinished, data); err != nil {
			return nil, errors.Join(err, s.discard())
		}
	}
	// A port that was free is not for sure free a moment later.
	for try := range 3 {
		if o.Port == 0 {
			if s.port, err = freePort(); err != nil {
				break
			}
		}
		if err = s.Start(ctx); err == nil {
			return s, nil
		}
		if ctx.Err() != nil || o.Port != 0 && try > 0 {
			break
		}
	}
	return nil, errors.Join(err, s.discard())
}

// discard removes what a start that failed has made.
func (s *Server) discard() error {
	if !s.temporary {
		return nil
	}
	return os.RemoveAll(s.dir)
}

// Socket is where it listens on this machine.
func (s *Server) Socket() string { return filepath.Join(s.dir, "s.sock") }

// Addr is where it listens.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// DSN is for package mysql; the database must be there.
func (s *Server) DSN(database string) string {
	return userName + ":" + password + "@tcp(" + s.Addr() + ")/" + database
}

// Database creates a database for a test, dropped with its server, and returns its DSN.
func (s *Server) Database(t testing.TB) string {
	t.Helper()
	name := databaseName()
	if err := s.CreateDatabase(context.Background(), name); err != nil {
		t.Fatalf("create a database: %v", err)
	}
	return s.DSN(name)
}

// CreateDatabase creates one if it is not there; the name must begin with jmq_.
func (s *Server) CreateDatabase(ctx context.Context, name string) error {
	// Any other character set is a bad default that the store must not depend on.
	return s.admin(ctx, "CREATE DATABASE IF NOT EXISTS "+name+" CHARACTER SET latin1")
}

// SetReadOnly makes it refuse all changes by DSN's user, or take them again.
func (s *Server) SetReadOnly(ctx context.Context, on bool) error {
	if on {
		return s.admin(ctx, "SET GLOBAL read_only = 1")
	}
	return s.admin(ctx, "SET GLOBAL read_only = 0")
}

// admin runs statements as administrator.
func (s *Server) admin(ctx context.Context, statements ...string) error {
	return execute(ctx, "root@unix("+s.Socket()+")/", statements...)
}

// Start starts it again, at the same address and with the same data, and returns when it answers.
func (s *Server) Start(ctx context.Context) error {
	if s.process != nil {
		return errors.New("it runs")
	}
	mariadbd, err := program("mariadbd")
	if err != nil {
		return err
	}
	_ = os.Remove(s.Socket()) // a killed one left it; so that what answers is the new one
	args := append(commonArgs(filepath.Join(s.dir, "data")),
		"--bind-address=127.0.0.1", "--port="+strconv.Itoa(s.port), "--socket="+s.Socket(),
		"--pid-file="+filepath.Join(s.dir, "pid"), "--log-error="+s.logFile(), "--skip-name-resolve", "--max-connections=1000",
		"--innodb-buffer-pool-size=64M", "--innodb-flush-log-at-trx-commit=1")
	cmd := exec.Command(mariadbd, args...)
	cmd.Dir = s.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if !s.detached {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	started, ended := make(chan error), make(chan struct{})
	go func() {
		// The signal at our end is bound to the thread that started it: that thread stays while the server runs.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(ended)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is in its log
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start MariaDB: %w", err)
	}
	s.process, s.ended = cmd.Process, ended
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		err := s.admin(ctx, "CREATE USER IF NOT EXISTS "+userName+" IDENTIFIED BY '"+password+"'",
			"GRANT ALL ON `jmq\\_%`.* TO "+userName)
		if err == nil {
			return nil
		}
		select {
		case <-s.ended:
			s.process = nil
			return fmt.Errorf("MariaDB ended at its start; its log ends with\n%s", s.logTail())
		case <-ctx.Done():
			s.Kill()
			return fmt.Errorf("MariaDB does not answer: %w; its log ends with\n%s", err, s.logTail())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// commonArgs must be the same for the template and the servers that use it.
func commonArgs(data string) []string {
	args := []string{"--no-defaults", "--datadir=" + data, "--innodb-log-file-size=8M",
		"--character-set-server=utf8mb4", "--collation-server=utf8mb4_bin"}
	if os.Getuid() == 0 {
		args = append(args, "--user=root")
	}
	return args
}

// Runs says whether it was started, and not ended by us since.
func (s *Server) Runs() bool { return s.process != nil }

// Stop ends it as an administrator does, and waits.
func (s *Server) Stop() { s.end(syscall.SIGTERM) }

// Kill ends it at once, and waits.
func (s *Server) Kill() { s.end(syscall.SIGKILL) }

func (s *Server) end(sig syscall.Signal) {
	if s.process == nil {
		return
	}
	if s.paused {
		s.Resume()
	}
	_ = s.process.Signal(sig) // it may have ended by itself
	select {
	case <-s.ended:
	case <-time.After(30 * time.Second):
		_ = s.process.Kill()
		<-s.ended
	}
	s.process = nil
}

// Pause stops its process where it is: connections stay open, and nothing is answered.
func (s *Server) Pause() {
	_ = s.process.Signal(syscall.SIGSTOP)
	s.paused = true
}

// Resume lets it go on.
func (s *Server) Resume() {
	_ = s.process.Signal(syscall.SIGCONT)
	s.paused = false
}

// Remove kills it; a temporary folder goes, too.
func (s *Server) Remove() error {
	s.Kill()
	return s.discard()
}

func (s *Server) logFile() string { return filepath.Join(s.dir, "log") }

func (s *Server) logTail() string {
	text, err := os.ReadFile(s.logFile())
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-4000):])
}

// program finds a program that packages put where a user's PATH may not look.
func program(name string) (string, error) {
	for _, try := range []string{name, "/usr/sbin/" + name, "/usr/libexec/" + name, "/usr/local/sbin/" + name} {
		if path, err := exec.LookPath(try); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("no %s: %w", name, ErrMissing)
}

// freePort chooses below the ports that the kernel gives to connections: else, while the server is down, somebody's connection
// could get its port, or even connect to itself.
func freePort() (int, error) {
	var err error
	for range 100 {
		port := 20000 + rand.IntN(12000)
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("no free port: %w", err)
}

// template returns a folder of data as a new server has it, made once a machine and version: that takes 7 s, to copy it under 1 s.
func template(ctx context.Context, mariadbd string) (string, error) {
	install, err := program("mariadb-install-db")
	if err != nil {
		return "", err
	}
	version, err := exec.CommandContext(ctx, mariadbd, "--no-defaults", "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", mariadbd, err)
	}
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	// What was made by another version, or for other options, is another template.
	of := sha256.Sum256(append(version, strings.Join(commonArgs(""), " ")...))
	dir := filepath.Join(cache, fmt.Sprintf("mariadb-%x", of[:6]))
	unlock, err := lock(dir + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	unfinished := dir + ".tmp"
	if err := os.RemoveAll(unfinished); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	args := append(commonArgs(unfinished), "--auth-root-authentication-method=normal", "--skip-test-db")
	cmd := exec.CommandContext(ctx, install, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", install, err, out.Bytes())
	}
	return dir, os.Rename(unfinished, dir)
}

func cacheDir() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		base = os.TempDir()
	}
	dir := filepath.Join(base, "jmq-testenv")
	return dir, os.MkdirAll(dir, 0o700)
}

// lock takes a file's lock among the processes of this machine.
func lock(name string) (unlock func(), err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	return func() { f.Close() }, nil
}

var sweep = sync.OnceFunc(removeLeft)

// temporaryDir makes a folder whose name tells the process that it belongs to.
func temporaryDir() (string, error) {
	sweep()
	return os.MkdirTemp("", fmt.Sprintf("jmq-testenv-%d-", os.Getpid()))
}

// removeLeft removes folders, and disks mounted there, of processes that ended without doing it.
func removeLeft() {
	left, _ := filepath.Glob(filepath.Join(os.TempDir(), "jmq-testenv-*-*"))
	for _, dir := range left {
		rest := strings.TrimPrefix(filepath.Base(dir), "jmq-testenv-")
		pid, err := strconv.Atoi(rest[:max(0, strings.IndexByte(rest, '-'))])
		if err == nil && pid > 1 && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			_ = syscall.Unmount(dir, syscall.MNT_DETACH) // if it is a Disk
			_ = os.RemoveAll(dir)                        // another process may be at it
		}
	}
}
