package replica

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/term"
)

// State is what a broker remembers of its broker group, in the file REPLICA of its data folder.
type State struct {
	// Boot is the name of what the broker may rely on of what it did not sync: it stays through kills and clean stops, and is another
	// after a power loss, a failed sync, or on an empty folder.
	Boot    string `json:"boot"`
	Machine string `json:"machine,omitempty"` // the system's boot id when Boot was chosen, to see a power loss
	Clean   bool   `json:"clean,omitempty"`   // the mark of a clean stop; removed, synced, at start
	Seen    uint32 `json:"seen,omitempty"`    // the highest term met: synced before the broker answers in it, or promises to stop
	// Granted is the term in which the registry named this broker master, as last heard, for the store and the boot in it; 0: it is a slave.
	Granted uint32      `json:"granted,omitempty"`
	Grant   term.Member `json:"grant,omitzero"`
	Forced  bool        `json:"forced,omitempty"`
	Fence   bool        `json:"fence,omitempty"` // as in term.Row
	// Set is the in-sync set with what the registry may hold of it, and counts in SetTerm only. auto broker groups.
	Set     []term.Member `json:"set,omitempty"`
	SetTerm uint32        `json:"setTerm,omitempty"`
	// Serving since, unix ns: the broker may have served reads as a slave since it last heard a master. 0: it has not.
	Serving int64 `json:"serving,omitempty"`
}

// Format of the file REPLICA: three lines, "jmq replica VERSION", the state as JSON, and the crc32c of both in hex.
const (
	stateVersion  = 1
	stateName     = "REPLICA"
	stateFirst    = "jmq replica "
	stateBytesMax = 1 << 20
)

var (
	// ErrState: the file REPLICA is damaged. What this broker promised and what it may rely on is not known any more.
	ErrState = errors.New("replica: the file REPLICA is damaged")
	// ErrStateVersion: the file REPLICA was written by a newer version.
	ErrStateVersion = errors.New("replica: the file REPLICA is of a newer version")
)

// StateFile keeps a State: replaced as a whole, checksummed, synced before Update returns. Safe for concurrent use.
type StateFile struct {
	fs   vfs.FS
	dir  string
	seen atomic.Uint32 // State.Seen, once it is on disk
	mu   struct {
		sync.Mutex // held while the file is written: its purpose is to order that
		state      State
		failed     error // of a write: what is on the disk is not known
	}
}

// OpenState reads dir's state, or begins one. machine is the system's boot id, empty where it cannot be known: each start is then
// another boot unless the stop before was clean. A damaged file is an error: what was promised is not known any more.
//
// The mark of a clean stop is gone, synced, when it returns (rule CleanMarkCleared).
func OpenState(fs vfs.FS, dir, machine string) (*StateFile, error) {
	f := &StateFile{fs: fs, dir: dir}
	s, err := readState(fs, fs.PathJoin(dir, stateName))
	if err != nil {
		return nil, err
	}
	f.mu.state = s
	err = f.Update(func(s *State) { s.start(machine, newBoot) })
	if err != nil {
		return nil, err
	}
	return f, nil
}

// start is what a start makes of the state: another boot, if the machine may have lost what was not synced.
func (s *State) start(machine string, newBoot func() string) {
	if s.Boot == "" || !s.Clean && (machine == "" || s.Machine != machine) {
		s.Boot = newBoot()
	}
	s.Machine, s.Clean = machine, false
}

func newBoot() string {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// Get returns the state as it is.
func (f *StateFile) Get() State {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.state.clone()
}

func (s State) clone() State {
	s.Set = slices.Clone(s.Set)
	return s
}

// Update changes the state; when it returns nil the change is on disk. An error leaves Get as it was, and ends the file: what is on the
// disk is either of both, so that later changes get the same error.
func (f *StateFile) Update(change func(*State)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.failed != nil {
		return f.mu.failed
	}
	next := f.mu.state.clone()
	change(&next)
	if err := writeState(f.fs, f.dir, next); err != nil {
		f.mu.failed = fmt.Errorf("replica: write the state of the broker: %w", err)
		return f.mu.failed
	}
	f.mu.state = next
	f.seen.Store(next.Seen)
	return nil
}

// Seen is the highest term that was met and is on disk: whoever was promised something in it, nothing is done in a lower one any more.
func (f *StateFile) Seen() uint32 { return f.seen.Load() }

// NewBoot ends what others may rely on of what this broker has not synced: a sync failed, or its store is another
// (rule SyncFailureEndsMembership).
func (f *StateFile) NewBoot() (string, error) {
	boot := newBoot()
	return boot, f.Update(func(s *State) { s.Boot, s.Clean = boot, false })
}

// CleanStop marks that everything is synced and the broker ends: whatever happens to the machine, nothing of it is lost.
func (f *StateFile) CleanStop() error { return f.Update(func(s *State) { s.Clean = true }) }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func readState(fsys vfs.FS, path string) (s State, err error) {
	b, err := readFile(fsys, path)
	if errors.Is(err, fs.ErrNotExist) {
		return State{}, nil
	}
	if err != nil {
		return State{}, fmt.Errorf("replica: read the state of the broker: %w", err)
	}
	damaged := func(why string) (State, error) { return State{}, fmt.Errorf("%w: %s: %s", ErrState, path, why) }
	end := strings.LastIndexByte(strings.TrimSuffix(string(b), "\n"), '\n') + 1
	first, body, ok := strings.Cut(string(b[:end]), "\n")
	if !ok || !strings.HasPrefix(first, stateFirst) {
		return damaged("it does not begin as it should")
	}
	if sum, err := strconv.ParseUint(strings.TrimSuffix(string(b[end:]), "\n"), 16, 32); err != nil || uint32(sum) != crc32.Checksum(b[:end], castagnoli) {
		return damaged("its checksum is wrong")
	}
	switch v, err := strconv.Atoi(first[len(stateFirst):]); {
	case err != nil:
		return damaged("it has no version")
	case v > stateVersion:
		return State{}, fmt.Errorf("%w: %s is of version %d, this one reads %d", ErrStateVersion, path, v, stateVersion)
	}
	if err := json.Unmarshal([]byte(body), &s); err != nil {
		return damaged(err.Error())
	}
	return s, nil
}

func readFile(fsys vfs.FS, path string) ([]byte, error) {
	f, err := fsys.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, stateBytesMax+1))
	if err == nil && len(b) > stateBytesMax {
		err = fmt.Errorf("%w: %s is larger than %d bytes", ErrState, path, stateBytesMax)
	}
	return b, err
}

// writeState replaces the file: a new one beside it, synced, renamed over it, and the folder synced.
func writeState(fsys vfs.FS, dir string, s State) error {
	body, err := json.Marshal(s)
	if err != nil {
		return err
	}
	b := fmt.Appendf(nil, "%s%d\n%s\n", stateFirst, stateVersion, body)
	b = fmt.Appendf(b, "%08x\n", crc32.Checksum(b, castagnoli))
	path := fsys.PathJoin(dir, stateName)
	f, err := fsys.Create(path+".new", vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(b, 0)
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = fsys.Rename(path+".new", path)
	}
	if err != nil {
		return err
	}
	d, err := fsys.OpenDir(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if e := d.Close(); err == nil {
		err = e
	}
	return err
}
