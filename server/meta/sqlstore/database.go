package sqlstore

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/mysqldialect"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	"github.com/uptrace/bun/schema"
	"modernc.org/sqlite"
)

// Location says where a database is: in a file, or at a DSN.
type Location struct {
	// File of SQLite; made with mode 0600 if it is not there.
	File string
	// DSN of MySQL or MariaDB: user:password@tcp(host:port)/database?tls=true. For the password stands env:NAME (an
	// environment variable) or file:/PATH (the first line of a file), so that it is in no configuration and no list of processes. The
	// parameter ca=/PATH names a file of certificates that the server's is verified by, in place of the system's.
	DSN string
	// Insecure allows a server that is not on this machine without TLS that verifies it, or without a password.
	Insecure bool
}

// Locate tells a DSN from a file's name.
func Locate(text string) Location {
	if slash := strings.LastIndexByte(text, '/'); slash > 0 && text[slash-1] == ')' || strings.Contains(text, "@tcp") || strings.Contains(text, "@unix") {
		return Location{DSN: text}
	}
	return Location{File: text}
}

// String names the database without its password.
func (l Location) String() string {
	if l.File != "" {
		return l.File
	}
	dsn, _ := cutCA(l.DSN)
	c, err := mysql.ParseDSN(dsn)
	if err != nil {
		return "a DSN that cannot be read"
	}
	return c.User + "@" + c.Net + "(" + c.Addr + ")/" + c.DBName
}

// HasPassword says whether the location has a password in clear, which is not for files that are shown or for command lines.
func (l Location) HasPassword() bool {
	dsn, _ := cutCA(l.DSN)
	c, err := mysql.ParseDSN(dsn)
	return l.File == "" && err == nil && c.Passwd != "" && !strings.HasPrefix(c.Passwd, "env:") && !strings.HasPrefix(c.Passwd, "file:")
}

// Validate says what is wrong with a location, by its text alone.
func (l Location) Validate() error {
	switch {
	case (l.File == "") == (l.DSN == ""):
		return errors.New("the database is either a file (SQLite) or a DSN (MySQL)")
	case l.File != "":
		return nil
	}
	c, err := l.parse()
	if err != nil {
		return err
	}
	return l.secure(c)
}

// cutCA takes the parameter ca out of a DSN: the driver does not know it, nor a slash in a parameter.
func cutCA(dsn string) (rest, file string) {
	start, parameters, ok := strings.Cut(dsn[strings.LastIndexByte(dsn, '@')+1:], "?")
	if !ok {
		return dsn, ""
	}
	start = dsn[:strings.LastIndexByte(dsn, '@')+1] + start
	var others []string
	for _, p := range strings.Split(parameters, "&") {
		if value, ok := strings.CutPrefix(p, "ca="); ok {
			file = value
		} else {
			others = append(others, p)
		}
	}
	return start + "?" + strings.Join(others, "&"), file
}

// parse reads the DSN and sets what is ours to set; the password is not resolved.
func (l Location) parse() (*mysql.Config, error) {
	dsn, file := cutCA(l.DSN)
	c, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, fmt.Errorf("the DSN cannot be read: %w (it is like user:env:NAME@tcp(host:port)/database?tls=true)", err)
	}
	if c.DBName == "" {
		return nil, errors.New("the DSN names no database: user:env:NAME@tcp(host:port)/database")
	}
	if c.Params == nil {
		c.Params = map[string]string{}
	}
	if file != "" {
		if c.TLSConfig != "true" {
			return nil, errors.New("the DSN has ca without tls=true")
		}
		pem, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("the DSN's ca: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("the DSN's ca: no certificate in %s", file)
		}
		host, _, err := net.SplitHostPort(c.Addr)
		if err != nil {
			return nil, fmt.Errorf("the DSN's address: %w", err)
		}
		c.TLS = &tls.Config{RootCAs: pool, ServerName: host, MinVersion: tls.VersionTLS12}
	}
	c.ParseTime, c.Loc, c.MultiStatements, c.InterpolateParams = true, time.UTC, false, true
	c.AllowAllFiles, c.AllowCleartextPasswords, c.AllowOldPasswords = false, false, false
	c.Collation = "utf8mb4_bin"
	c.CheckConnLiveness = true
	// A wait for a lock ends before the deadline of the call, so that what remains is known to be nothing. The mode is strict, and such that
	// a backslash in text needs its escape: strings are built by that rule.
	c.Params["innodb_lock_wait_timeout"] = "2"
	c.Params["sql_mode"] = "'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'"
	return c, nil
}

// secure refuses to send metadata over a network where others can read it, or be the database.
func (l Location) secure(c *mysql.Config) error {
	host, _, err := net.SplitHostPort(c.Addr)
	if c.Net == "unix" || err == nil && (host == "localhost" || net.ParseIP(host).IsLoopback()) || l.Insecure {
		return nil
	}
	if c.TLSConfig != "true" && (c.TLS == nil || c.TLS.InsecureSkipVerify) {
		return fmt.Errorf("the database at %s is on another machine and its DSN has no tls=true: anybody between could read and change the metadata; add it, with ca=/PATH for a certificate of your own, or allow it by the option insecure", c.Addr)
	}
	if c.Passwd == "" {
		return fmt.Errorf("the database at %s is on another machine and its DSN has no password: add one, as env:NAME or file:/PATH, or allow it by the option insecure", c.Addr)
	}
	return nil
}

// secret resolves a password's reference.
func secret(text string) (string, error) {
	if name, ok := strings.CutPrefix(text, "env:"); ok {
		value, ok := os.LookupEnv(name)
		if !ok {
			return "", fmt.Errorf("the DSN's password is in the environment variable %s, which is not set", name)
		}
		return value, nil
	}
	if name, ok := strings.CutPrefix(text, "file:"); ok {
		value, err := os.ReadFile(name)
		if err != nil {
			return "", fmt.Errorf("the DSN's password: %w", err)
		}
		line, _, _ := strings.Cut(string(value), "\n")
		return strings.TrimSuffix(line, "\r"), nil
	}
	return text, nil
}

// database is a location that is open: pools of connections.
type database struct {
	location Location
	mysql    bool
	write    *bun.DB // short: of changes
	read     *bun.DB
	beat     *bun.DB // its commits need not survive a power cut
	schema   *bun.DB // one of them, whose statements may last
	file     os.FileInfo
}

// offline is a dialect that asks the server nothing when it is made.
type offline struct{ *mysqldialect.Dialect }

func (offline) Init(*sql.DB) {}

// connect opens the pools; for MySQL no connection is made yet.
func connect(l Location, logger *slog.Logger) (*database, error) {
	if err := l.Validate(); err != nil {
		return nil, err
	}
	if l.File != "" {
		return connectFile(l)
	}
	c, err := l.parse()
	if err != nil {
		return nil, err
	}
	if c.Passwd, err = secret(c.Passwd); err != nil {
		return nil, err
	}
	if err := l.secure(c); err != nil {
		return nil, err
	}
	c.Logger = driverLog{logger}
	open := func(connections int, timeout time.Duration) (*bun.DB, error) {
		c := c.Clone()
		// The driver's commit knows no context: what bounds it is the time to read its answer.
		c.Timeout, c.ReadTimeout, c.WriteTimeout = dialTimeout, timeout, timeout
		connector, err := mysql.NewConnector(c)
		if err != nil {
			return nil, err
		}
		pool := sql.OpenDB(connector)
		pool.SetMaxOpenConns(connections)
		pool.SetMaxIdleConns(2)
		pool.SetConnMaxLifetime(10 * time.Minute)
		return bun.NewDB(pool, offline{mysqldialect.New()}), nil
	}
	db := &database{location: l, mysql: true}
	if db.write, err = open(4, callTimeout); err != nil {
		return nil, err
	}
	if db.read, err = open(8, loadTimeout); err != nil {
		return nil, errors.Join(err, db.close())
	}
	db.beat, db.schema = db.write, db.read
	return db, nil
}

// driverLog takes what the driver says of connections that broke: the store says it better, once.
type driverLog struct{ *slog.Logger }

func (l driverLog) Print(v ...any) {
	l.Debug("database driver", "said", strings.TrimSpace(fmt.Sprint(v...)))
}

func connectFile(l Location) (*database, error) {
	name, err := filepath.Abs(l.File)
	if err != nil {
		return nil, err
	}
	// Before SQLite makes it: the file has verifiers, and its log gets the mode that it has.
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && info.Mode().Perm() != 0o600 {
		err = f.Chmod(0o600)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	if err := syncDir(filepath.Dir(name)); err != nil {
		return nil, err
	}
	open := func(connections int, parameters ...string) (*bun.DB, error) {
		dsn := (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: name}).EscapedPath()}).String() + "?_dqs=0&_defensive=1&_txlock=immediate" +
			"&_pragma=busy_timeout(2000)&_pragma=journal_mode(WAL)" + strings.Join(parameters, "")
		connector, err := sqlite.NewConnector(dsn)
		if err != nil {
			return nil, err
		}
		pool := sql.OpenDB(connector)
		pool.SetMaxOpenConns(connections)
		pool.SetMaxIdleConns(connections)
		return bun.NewDB(pool, sqlitedialect.New()), nil
	}
	db := &database{location: l, file: info}
	if db.write, err = open(1, "&_pragma=synchronous(FULL)"); err != nil {
		return nil, err
	}
	if db.read, err = open(4, "&_pragma=query_only(1)"); err != nil {
		return nil, errors.Join(err, db.close())
	}
	if db.beat, err = open(1, "&_pragma=synchronous(NORMAL)"); err != nil {
		return nil, errors.Join(err, db.close())
	}
	db.schema = db.write
	return db, nil
}

func syncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// replaced says whether the file is not the one that was opened: what is written into that one is lost. It is not opened anew, since
// SQLite would take the log of the old file for one of the new.
func (db *database) replaced() error {
	if db.mysql {
		return nil
	}
	now, err := os.Stat(db.location.File)
	if err == nil && os.SameFile(now, db.file) {
		return nil
	}
	return errors.Join(errReplaced, err)
}

func (db *database) close() error {
	var err error
	for _, b := range []*bun.DB{db.beat, db.read, db.write} { // the writer last: it empties SQLite's log
		if b != nil {
			err = errors.Join(err, b.Close()) // where two are one, the second does nothing
		}
	}
	return err
}

// begin starts a transaction; of a reader all statements see the same version.
func (db *database) begin(ctx context.Context, readOnly bool) (bun.Tx, error) {
	b, o := db.write, &sql.TxOptions{ReadOnly: readOnly}
	if readOnly {
		b = db.read
	}
	if db.mysql {
		o.Isolation = sql.LevelRepeatableRead
	}
	return b.BeginTx(ctx, o)
}

var _ schema.Dialect = offline{}
