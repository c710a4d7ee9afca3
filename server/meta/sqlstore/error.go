package sqlstore

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/go-sql-driver/mysql"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/jmqio/jmq/wire"
)

var (
	// errNewer: the schema is of a later jmq.
	errNewer = errors.New("the database is of a newer version of jmq")
	// errForeign: the tables are there but not as jmq keeps them.
	errForeign = errors.New("the database is not in a state that jmq leaves")
	// errCopying: jmq migrate metadata was ended before it was done.
	errCopying = errors.New("a copy into this database was not finished: run jmq migrate metadata again")
	// errOlder: the database has a lower version than what this store has seen, of the same generation.
	errOlder = errors.New("the database is older than what is known")
	// errParted: the version that this store has seen is another one in the database.
	errParted = errors.New("the database has gone on from an older copy")
	// errReplaced: SQLite's file is another one than what was opened.
	errReplaced = errors.New("the file was removed or replaced while it was open: stop jmq, put the copy there without its -wal and -shm, and start jmq again")
	// errLocation: what the location says cannot be opened at all.
	errLocation = errors.New("the database cannot be opened")
	// errClosed: the store.
	errClosed = errors.New("the store is closed")
)

// away is the error of what cannot be done now; nothing was changed.
func away(doing string, err error) error {
	return wire.Errorf(wire.CodeMetadataAway, "%s: %v", doing, err)
}

// Numbers of MySQL's errors. They are part of its protocol.
const (
	mysqlDuplicate   = 1062
	mysqlAccess      = 1045
	mysqlAccessDB    = 1044
	mysqlNoDatabase  = 1049
	mysqlNoTable     = 1146
	mysqlNoColumn    = 1054
	mysqlLockWait    = 1205
	mysqlDeadlock    = 1213
	mysqlTooLarge    = 1153
	mysqlPrivilege   = 1142
	mysqlWrongColumn = 1364
)

// number is the number of an error that a server of MySQL has answered, or 0.
func number(err error) uint16 {
	if e, ok := errors.AsType[*mysql.MySQLError](err); ok {
		return e.Number
	}
	return 0
}

// result is the primary result code of an error of SQLite, or 0.
func result(err error) int {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return e.Code() & 0xff
	}
	return 0
}

func isDuplicate(err error) bool {
	return number(err) == mysqlDuplicate || result(err) == sqlite3.SQLITE_CONSTRAINT
}

func isNoTable(err error) bool {
	return number(err) == mysqlNoTable || result(err) == sqlite3.SQLITE_ERROR && strings.Contains(err.Error(), "no such table")
}

// isRefused: the engine rolled it back, or never began, in favour of another transaction: the same may do next time.
func isRefused(err error) bool {
	n, r := number(err), result(err)
	return n == mysqlLockWait || n == mysqlDeadlock || r == sqlite3.SQLITE_BUSY || r == sqlite3.SQLITE_LOCKED
}

// isAnswered: a server decided, so that what was asked for was not done.
func isAnswered(err error) bool {
	return number(err) != 0 || isRefused(err) || result(err) == sqlite3.SQLITE_READONLY || result(err) == sqlite3.SQLITE_FULL
}

// isLasting: waiting does not help, somebody must set something right.
func isLasting(err error) bool {
	switch number(err) {
	case mysqlAccess, mysqlAccessDB, mysqlNoDatabase, mysqlNoTable, mysqlNoColumn, mysqlPrivilege, mysqlWrongColumn:
		return true
	}
	switch result(err) {
	case sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR:
		return true
	}
	return errors.Is(err, errNewer) || errors.Is(err, errForeign) || errors.Is(err, errCopying) || errors.Is(err, errLocation)
}

// plain says what an error is to people who do not know the driver.
func plain(err error) error {
	var opened *net.OpError
	switch {
	case errors.Is(err, mysql.ErrInvalidConn), errors.Is(err, driver.ErrBadConn):
		return errors.New("the connection to the database broke")
	case errors.Is(err, context.DeadlineExceeded):
		return errors.New("the database does not answer in time")
	case errors.As(err, &opened):
		return fmt.Errorf("the database cannot be reached: %w", opened)
	case result(err) == sqlite3.SQLITE_CORRUPT, result(err) == sqlite3.SQLITE_NOTADB:
		return fmt.Errorf("%w: the file is damaged; restore a copy of it, and say so by jmq registry new-generation", err)
	case number(err) == mysqlTooLarge:
		return fmt.Errorf("%w: raise the server's max_allowed_packet to 16M or more", err)
	}
	return err
}
