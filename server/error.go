package server

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/store/local"
)

// StartError says in one line why a server could not start, and what to do.
type StartError struct {
	What string // what was tried, with the value in hand
	Next string
	Err  error
}

func (e *StartError) Error() string { return fmt.Sprintf("%s: %v; %s", e.What, e.Err, e.Next) }
func (e *StartError) Unwrap() error { return e.Err }

// FolderError is err as a StartError about a data folder, with the next step that it asks for.
func FolderError(dir string, err error) error {
	e := &StartError{What: "data folder " + dir, Err: err}
	corrupt, isCorrupt := errors.AsType[*journal.CorruptError](err)
	switch {
	case errors.Is(err, local.ErrInUse):
		e.Next = "stop the other jmq, or take another folder: --data FOLDER"
	case errors.Is(err, local.ErrVersion):
		e.Next = "start the newer jmq that wrote it, or take another folder: --data FOLDER"
	case isCorrupt:
		e.Err = corrupt
		e.Next = "nothing was changed; keep a copy of the folder, look with jmq journal verify " + dir + " and jmq journal repair " + dir + " --dry-run, then repair it"
	case errors.Is(err, local.ErrNoJournal):
		e.Next = "mount its disk or bring it back; where it lies is broker.journal.folder"
	case errors.Is(err, local.ErrReplaced):
		e.Next = "see what is there now: a start takes it as it is, and a master that lacks what was acknowledged waits (jmq broker-group status)"
	case errors.Is(err, local.ErrIdentity):
		e.Next = "keep a copy of the folder, and bring the file back, or make it again: jmq journal repair " + dir
	case within(dir, err) && (errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.EEXIST) || errors.Is(err, syscall.EISDIR)):
		e.Next = "that is not what a broker leaves there; see what it is, or take another folder: --data FOLDER"
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EEXIST), errors.Is(err, syscall.EISDIR):
		e.Err = PathCause(err)
		e.Next = "it must be a folder, or not there yet: --data FOLDER"
	case errors.Is(err, fs.ErrNotExist) && !exists(dir):
		e.Err = PathCause(err)
		e.Next = "it cannot be made there, take another folder: --data FOLDER"
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		e.Err = PathCause(err)
		e.Next = "take a folder that this user may write: --data FOLDER"
	case errors.Is(err, journal.ErrNoSpace), errors.Is(err, syscall.ENOSPC):
		e.Next = "free space on its disk, or take a folder on another one: --data FOLDER"
	default:
		e.Next = "see the log, and jmq journal verify " + dir
	}
	return e
}

// within reports whether err is about something in the folder, not the folder itself.
func within(dir string, err error) bool {
	info, statErr := os.Stat(dir)
	p, ok := errors.AsType[*fs.PathError](err)
	return ok && statErr == nil && info.IsDir() && filepath.Clean(p.Path) != filepath.Clean(dir)
}

func exists(dir string) bool {
	_, err := os.Stat(dir)
	return err == nil
}

// PathCause leaves out of err what names the path, which the message has already.
func PathCause(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	return err
}

// listenError is err as a StartError about a listening socket; key is the one to set for another address.
func listenError(key, address string, err error) error {
	e := &StartError{What: "listen on " + address, Err: err, Next: "take another address: --" + key + " HOST:PORT"}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		e.Err = op.Err
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		e.Err = errors.New("the port is in use")
		e.Next = "stop the program that listens there, or take another port: --" + key + " HOST:PORT"
	}
	return e
}
