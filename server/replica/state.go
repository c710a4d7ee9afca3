package replica

import (
	"bytes"
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
	// Handing is one more than the change that the last ask to hand over compared with: until the row has moved on from that, this broker may not be
	// master any more without having heard of it. 0: nothing was asked, or it is settled.
	Handing uint64 `json:"handing,omitempty"`
	// Serving since, unix ns: the broker may have served reads as a slave since it last heard a master. 0: it has not.
	Serving int64 `json:"serving,omitempty"`
}

// Format of the file REPLICA: two slots of the same size with the same in them, each three lines, "jmq replica VERSION NUMBER", the state as JSON, and
// the crc32c of both in hex, and then zeroes. Version 1 is one slot of just its size, without a number.
//
// Both slots are written, one after the other, before a change counts: so one that is torn or damaged takes no promise along. They are written in
// place, for a broker must be able to promise, and to become another, on a disk that is full.
const (
	stateVersion  = 2
	stateName     = "REPLICA"
	stateFirst    = "jmq replica "
	stateSlot     = 8192 // multiples of it are a slot's size
	stateBytesMax = 2 << 20
)

var (
	// ErrState: the file REPLICA is damaged. What this broker promised and what it may rely on is not known any more.
	ErrState = errors.New("replica: the file REPLICA is damaged")
	// ErrStateVersion: the file REPLICA was written by a newer version.
	ErrStateVersion = errors.New("replica: the file REPLICA is of a newer version")
)

// StateFile keeps a State: checksummed, twice, synced before Update returns. Safe for concurrent use.
type StateFile struct {
	fs   vfs.FS
	dir  string
	seen atomic.Uint32 // State.Seen, once it is on disk
	mu   struct {
		sync.Mutex // held while the file is written: its purpose is to order that
		state      State
		slots      slots
		failed     error // of a write: what is on the disk is not known
	}
}

// slots say how the file is.
type slots struct {
	bytes  int64  // of each; 0: the file must be made anew
	number uint64 // of what was written last
	good   int64  // the one that holds it
}

// OpenState reads dir's state, or begins one. machine is the system's boot id, empty where it cannot be known: each start is then
// another boot unless the stop before was clean. A damaged file is an error: what was promised is not known any more.
//
// The mark of a clean stop is gone, synced, when it returns (rule CleanMarkCleared).
func OpenState(fs vfs.FS, dir, machine string) (*StateFile, error) {
	f := &StateFile{fs: fs, dir: dir}
	s, at, err := readState(fs, fs.PathJoin(dir, stateName))
	if err != nil {
		return nil, err
	}
	f.mu.state, f.mu.slots = s, at
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
	if err := f.mu.slots.write(f.fs, f.dir, next); err != nil {
		f.mu.failed = fmt.Errorf("replica: write the state of the broker: %w", err)
		return f.mu.failed
	}
	f.mu.state = next
	f.seen.Store(next.Seen)
	return nil
}

// Seen is the highest term that was met and is on disk: whoever was promised something in it, nothing is done in a lower one any more.
func (f *StateFile) Seen() uint32 { return f.seen.Load() }

// Err says why the file has ended; nil: it has not. Who gets it begins nothing any more that he would have to remember.
func (f *StateFile) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.failed
}

// NewBoot ends what others may rely on of what this broker has not synced: a sync failed, or its store is another
// (rule SyncFailureEndsMembership). Get says so with an error too: the registry hears of it as long as the broker lives.
func (f *StateFile) NewBoot() (string, error) {
	boot := newBoot()
	err := f.Update(func(s *State) { s.Boot, s.Clean = boot, false })
	if err != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.mu.state.Boot = boot
	}
	return boot, err
}

// CleanStop marks that everything is synced and the broker ends: whatever happens to the machine, nothing of it is lost.
func (f *StateFile) CleanStop() error { return f.Update(func(s *State) { s.Clean = true }) }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func readState(fsys vfs.FS, path string) (s State, at slots, err error) {
	b, err := readFile(fsys, path)
	if errors.Is(err, fs.ErrNotExist) {
		return State{}, slots{}, nil
	}
	if err != nil {
		return State{}, slots{}, fmt.Errorf("replica: read the state of the broker: %w", err)
	}
	if v, _, _ := strings.Cut(string(b), "\n"); v == stateFirst+"1" {
		s, _, err := parseState(string(b), path)
		return s, slots{}, err
	}
	size := int64(len(b) / 2)
	if size == 0 || size%stateSlot != 0 || len(b)%2 != 0 {
		return State{}, slots{}, fmt.Errorf("%w: %s: its size is %d", ErrState, path, len(b))
	}
	s, at, err = chooseState(string(bytes.TrimRight(b[:size], "\x00")), string(bytes.TrimRight(b[size:], "\x00")), path)
	at.bytes = size
	return s, at, err
}

// chooseState reads what is in the two slots, and returns the newer one that is whole.
func chooseState(first, second, path string) (s State, at slots, err error) {
	found := false
	for i, text := range [2]string{first, second} {
		one, number, serr := parseState(text, path)
		switch {
		case errors.Is(serr, ErrStateVersion):
			return State{}, slots{}, serr
		case serr != nil:
			err = serr
		case !found || number > at.number:
			found, s, at.number, at.good = true, one, number, int64(i)
		}
	}
	if !found {
		return State{}, slots{}, err
	}
	return s, at, nil
}

// parseState reads the three lines.
func parseState(text, path string) (s State, number uint64, err error) {
	damaged := func(why string) (State, uint64, error) {
		return State{}, 0, fmt.Errorf("%w: %s: %s", ErrState, path, why)
	}
	end := strings.LastIndexByte(strings.TrimSuffix(text, "\n"), '\n') + 1
	first, body, ok := strings.Cut(text[:end], "\n")
	if !ok || !strings.HasPrefix(first, stateFirst) {
		return damaged("it does not begin as it should")
	}
	if sum, err := strconv.ParseUint(strings.TrimSuffix(text[end:], "\n"), 16, 32); err != nil || uint32(sum) != crc32.Checksum([]byte(text[:end]), castagnoli) {
		return damaged("its checksum is wrong")
	}
	version, rest, _ := strings.Cut(first[len(stateFirst):], " ")
	switch v, err := strconv.Atoi(version); {
	case err != nil:
		return damaged("it has no version")
	case v > stateVersion:
		return State{}, 0, fmt.Errorf("%w: %s is of version %d, this one reads %d", ErrStateVersion, path, v, stateVersion)
	case v > 1:
		if number, err = strconv.ParseUint(rest, 10, 64); err != nil {
			return damaged("it has no number")
		}
	}
	if err := json.Unmarshal([]byte(body), &s); err != nil {
		return damaged(err.Error())
	}
	return s, number, nil
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

// write writes both slots, and makes the file first where there is none, an old one, or one with too little room.
func (x *slots) write(fsys vfs.FS, dir string, s State) error {
	b, err := encodeState(s, x.number+1)
	if err != nil {
		return err
	}
	if int64(len(b)) > x.bytes {
		err = x.make(fsys, dir, b)
	} else {
		err = x.change(fsys, dir, b)
	}
	if err == nil {
		x.number++
	}
	return err
}

// encodeState writes the three lines.
func encodeState(s State, number uint64) ([]byte, error) {
	body, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	b := fmt.Appendf(nil, "%s%d %d\n%s\n", stateFirst, stateVersion, number, body)
	return fmt.Appendf(b, "%08x\n", crc32.Checksum(b, castagnoli)), nil
}

// change writes the slot that is not the good one, and when that is on the disk the other. Who stops in between has left one that is whole.
func (x *slots) change(fsys vfs.FS, dir string, text []byte) error {
	f, err := fsys.OpenReadWrite(fsys.PathJoin(dir, stateName), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	b := make([]byte, x.bytes)
	for _, slot := range []int64{1 - x.good, x.good} {
		clear(b[copy(b, text):]) // the file system in memory inverts what it was given
		if _, err = f.WriteAt(b, slot*x.bytes); err == nil {
			err = f.Sync()
		}
		if err != nil {
			break
		}
	}
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}

// make replaces the file: a new one beside it, synced, renamed over it, and the folder synced.
func (x *slots) make(fsys vfs.FS, dir string, text []byte) error {
	size := (int64(len(text)) + stateSlot - 1) / stateSlot * stateSlot
	if 2*size > stateBytesMax {
		return fmt.Errorf("it takes %d bytes, at most %d are possible", len(text), stateBytesMax/2)
	}
	b := make([]byte, 2*size)
	copy(b, text)
	copy(b[size:], text)
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
		_ = fsys.Remove(path + ".new") // only tidy: it is never read
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
	if err == nil {
		x.bytes, x.good = size, 0
	}
	return err
}
