package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// The ends file says where a journal ends, for one that copies its records: these are synced some time after they were written, so they do
// not prove each other as those of commits do. It has two slots, written in turns, so that a torn write leaves the one before:
//
//	 0  magic      "JMQENDS\x00"
//	 8  version    u32   1
//	12  reserved   u32   0
//	16  store      [16]  store id
//	32  number     u64   of the write; the slot is number modulo 2, at 0 or at 4096
//	40  synced     u64   everything below was synced
//	48  committed  u64   the highest committed position known
//	56  epoch      u64   of the last record below synced
//	64  crc32c     u32   over [0, 64)
//
// It is written after a sync, and before the mark of a cut goes: so what it says of synced is true as long as no mark is there, and
// with one it is true below the cut.
const (
	endsName      = "ends"
	endsMagic     = "JMQENDS\x00"
	endsVersion   = 1
	endsSlotBytes = 4096
	endsBytes     = 68
	endsAtCRC     = 64
)

// Ends is what a journal's ends file says.
type Ends struct {
	Synced    Position
	Committed Position
	Epoch     Epoch
}

type endsFile struct {
	mu     sync.Mutex
	file   vfs.File
	store  [storeIDBytes]byte
	number uint64
	last   Ends
}

// readEnds returns what the file says; ok is false if there is none, or neither slot is whole.
func readEnds(fsys vfs.FS, dir string, store *[storeIDBytes]byte) (e Ends, number uint64, ok bool, err error) {
	path := fsys.PathJoin(dir, endsName)
	f, err := fsys.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return e, 0, false, nil
	}
	if err != nil {
		return e, 0, false, fmt.Errorf("open %s: %w", path, err)
	}
	defer f.Close()
	le := binary.LittleEndian
	for slot := range int64(2) {
		var b [endsBytes]byte
		if err := readFull(f, b[:], slot*endsSlotBytes); err != nil {
			if isUnreadable(err) {
				continue
			}
			return e, 0, false, fmt.Errorf("read %s: %w", path, err)
		}
		if string(b[:8]) != endsMagic {
			continue
		}
		if v := le.Uint32(b[8:]); v > endsVersion {
			return e, 0, false, &VersionError{File: path, Found: v, Supported: endsVersion}
		}
		if le.Uint32(b[endsAtCRC:]) != crc32.Checksum(b[:endsAtCRC], crcTable) {
			continue
		}
		var found [storeIDBytes]byte
		copy(found[:], b[16:])
		if store != nil && found != *store {
			return e, 0, false, &ForeignError{File: path, Found: found, Want: *store}
		}
		if n := le.Uint64(b[32:]); !ok || n > number {
			ok, number = true, n
			e = Ends{Position(le.Uint64(b[40:])), Position(le.Uint64(b[48:])), Epoch(le.Uint64(b[56:]))}
		}
	}
	return e, number, ok, nil
}

// openEnds opens the file for writing, or makes it; last is what readEnds said.
func openEnds(fsys vfs.FS, dir string, store [storeIDBytes]byte, last Ends, number uint64, there bool) (*endsFile, error) {
	path := fsys.PathJoin(dir, endsName)
	e := &endsFile{store: store, last: last, number: number}
	var err error
	if there {
		if e.file, err = fsys.OpenReadWrite(path, vfs.WriteCategoryUnspecified); err != nil {
			return nil, fmt.Errorf("open %s: %w", path, err)
		}
		return e, nil
	}
	if e.file, err = fsys.Create(path, vfs.WriteCategoryUnspecified); err == nil {
		err = writeAt(e.file, zeroes[:2*endsSlotBytes], 0)
	}
	if err == nil {
		err = e.file.Sync()
	}
	if err == nil {
		err = syncDirAt(fsys, dir)
	}
	if err != nil {
		if e.file != nil {
			_ = e.file.Close()
		}
		return nil, fmt.Errorf("make %s: %w", path, err)
	}
	return e, nil
}

// write writes what is to be said, synced, unless it is said already.
func (e *endsFile) write(say Ends) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if say == e.last && e.number > 0 {
		return nil
	}
	e.number++
	var b [endsBytes]byte
	copy(b[:], endsMagic)
	le := binary.LittleEndian
	le.PutUint32(b[8:], endsVersion)
	copy(b[16:], e.store[:])
	le.PutUint64(b[32:], e.number)
	le.PutUint64(b[40:], uint64(say.Synced))
	le.PutUint64(b[48:], uint64(say.Committed))
	le.PutUint64(b[56:], uint64(say.Epoch))
	le.PutUint32(b[endsAtCRC:], crc32.Checksum(b[:endsAtCRC], crcTable))
	if err := writeSync(e.file, b[:], int64(e.number%2)*endsSlotBytes); err != nil {
		return fmt.Errorf("write %s: %w", endsName, err)
	}
	e.last = say
	return nil
}

// writeEnds tells the ends file, if there is one, how things stand.
func (j *Journal) writeEnds() error {
	if j.ends == nil {
		return nil
	}
	return j.ends.write(Ends{Synced: j.Synced(), Committed: j.Committed(), Epoch: j.Epoch()})
}
