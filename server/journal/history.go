package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// EpochStart says where an epoch begins in a journal.
type EpochStart struct {
	Epoch    Epoch
	Position Position
	Forced   bool // its term was granted by force: what others know to be committed beyond may be cut for it
}

// The epochs file keeps the history, so that opening need not read all of the journal for it. It is replaced as a whole before an
// epoch's first record is written. It is no more than a memory of the records: what is missing in it, or too much, is seen at
// Open by the epoch at which that begins to read, and then it is made anew by reading everything.
//
//	 0  magic     "JMQEPOC\x00"
//	 8  version   u32   1
//	12  count     u32
//	16  store     [16]  store id
//	32  entries         epoch u64, position u64, flags u64 (1: forced), by position
//	..  crc32c    u32   over all before
const (
	epochsName       = "epochs"
	epochsNewName    = "epochs.new"
	epochsMagic      = "JMQEPOC\x00"
	epochsVersion    = 1
	epochsHeadBytes  = 32
	epochsEntryBytes = 24
	epochsMax        = 1 << 20

	epochForced = 1 // flag of a record of KindEpoch
)

// History returns where the epochs begin, by position: from the one on in which the journal's first record is, whose start may lie
// below Begin.
func (j *Journal) History() []EpochStart {
	begin := j.Begin()
	j.mu.Lock()
	defer j.mu.Unlock()
	return append([]EpochStart(nil), fromBegin(j.mu.history, begin)...)
}

// fromBegin leaves out the epochs that ended at or before begin.
func fromBegin(h []EpochStart, begin Position) []EpochStart {
	for len(h) > 1 && h[1].Position <= begin {
		h = h[1:]
	}
	return h
}

// below returns the epochs that begin below a position.
func below(h []EpochStart, to Position) []EpochStart {
	for len(h) > 0 && h[len(h)-1].Position >= to {
		h = h[:len(h)-1]
	}
	return h
}

// setHistory makes h what is known, and writes it. A failure to write is only told: the file as it was lacks the newest epochs, or has
// some that were cut, which the next Open sees and makes it anew. On a full disk the journal must begin an epoch all the same.
func (j *Journal) setHistory(h []EpochStart) {
	h = append([]EpochStart(nil), fromBegin(h, j.Begin())...)
	j.mu.Lock()
	j.mu.history = h
	j.mu.Unlock()
	if err := writeHistory(j.fs, j.opts.Dir, j.opts.StoreID, h); err != nil {
		j.opts.Logger.Warn("journal's list of epochs is not written: the next start may read all of the journal", "err", err)
	}
}

// noteEpoch adds an epoch whose first record is about to be written.
func (j *Journal) noteEpoch(s EpochStart) {
	j.mu.Lock()
	h := j.mu.history
	j.mu.Unlock()
	h = below(h, s.Position)
	if n := len(h); n > 0 && h[n-1].Epoch == s.Epoch {
		return
	}
	j.setHistory(append(h[:len(h):len(h)], s))
}

func writeHistory(fsys vfs.FS, dir string, store [storeIDBytes]byte, h []EpochStart) error {
	le := binary.LittleEndian
	b := make([]byte, epochsHeadBytes, epochsHeadBytes+len(h)*epochsEntryBytes+4)
	copy(b, epochsMagic)
	le.PutUint32(b[8:], epochsVersion)
	le.PutUint32(b[12:], uint32(len(h)))
	copy(b[16:], store[:])
	for _, s := range h {
		flags := uint64(0)
		if s.Forced {
			flags = epochForced
		}
		b = le.AppendUint64(b, uint64(s.Epoch))
		b = le.AppendUint64(b, uint64(s.Position))
		b = le.AppendUint64(b, flags)
	}
	b = le.AppendUint32(b, crc32.Checksum(b, crcTable))
	next := fsys.PathJoin(dir, epochsNewName)
	f, err := fsys.Create(next, vfs.WriteCategoryUnspecified)
	if err != nil {
		return fmt.Errorf("write epochs: %w", err)
	}
	if err = writeAt(f, b, 0); err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = fsys.Rename(next, fsys.PathJoin(dir, epochsName))
	}
	if err != nil {
		_ = fsys.Remove(next) // only tidy: it is never read
	} else {
		err = syncDirAt(fsys, dir)
	}
	if err != nil {
		return fmt.Errorf("write epochs: %w", err)
	}
	return nil
}

// readHistory returns what the file says; ok is false if there is none, it is damaged, or another store's or program's.
func readHistory(fsys vfs.FS, dir string, store *[storeIDBytes]byte) (h []EpochStart, ok bool, err error) {
	path := fsys.PathJoin(dir, epochsName)
	f, err := fsys.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("open %s: %w", path, err)
	}
	defer f.Close()
	le := binary.LittleEndian
	var head [epochsHeadBytes]byte
	read := func(b []byte, off int64) bool {
		if err == nil {
			if err = readFull(f, b, off); isUnreadable(err) {
				err = nil
				return false
			}
		}
		return err == nil
	}
	if !read(head[:], 0) || string(head[:8]) != epochsMagic || le.Uint32(head[8:]) != epochsVersion || le.Uint32(head[12:]) > epochsMax ||
		store != nil && [storeIDBytes]byte(head[16:]) != *store {
		return nil, false, err
	}
	n := int(le.Uint32(head[12:]))
	info, err := f.Stat()
	if err != nil {
		return nil, false, fmt.Errorf("stat %s: %w", path, err)
	}
	length := n*epochsEntryBytes + 4
	if info.Size() < int64(epochsHeadBytes+length) { // before memory is taken for it
		return nil, false, nil
	}
	b := make([]byte, length)
	if !read(b, epochsHeadBytes) {
		return nil, false, err
	}
	crc := crc32.Update(crc32.Checksum(head[:], crcTable), crcTable, b[:len(b)-4])
	if le.Uint32(b[len(b)-4:]) != crc {
		return nil, false, nil
	}
	for i := range n {
		e := b[i*epochsEntryBytes:]
		s := EpochStart{Epoch(le.Uint64(e)), Position(le.Uint64(e[8:])), le.Uint64(e[16:])&epochForced != 0}
		if k := len(h); k > 0 && (h[k-1].Epoch >= s.Epoch || h[k-1].Position >= s.Position) {
			return nil, false, nil
		}
		h = append(h, s)
	}
	return h, true, nil
}

// ReadHistory returns what the list of epochs of a journal says that nobody has open: as History, but as it was written, and nothing where the
// list is missing or damaged.
func ReadHistory(fsys vfs.FS, dir string, store [16]byte) ([]EpochStart, error) {
	h, _, err := readHistory(fsys, dir, &store)
	return h, err
}

// epochs collects where epochs begin from the records that are read.
type epochs []EpochStart

func (h *epochs) add(r Record) {
	if n := len(*h); n == 0 || (*h)[n-1].Epoch != r.Epoch {
		*h = append(*h, EpochStart{r.Epoch, r.Position, r.Kind == KindEpoch && r.Flags&epochForced != 0})
	}
}

// recoverHistory makes the history of what the file says of what lies below start, and of what was read from there on. at is the epoch
// of the last record below start, which tells whether the file lacks something; then everything below is read for it.
func (j *Journal) recoverHistory(l segments, start Position, at Epoch, read epochs) error {
	file, ok, err := readHistory(j.fs, j.opts.Dir, &j.opts.StoreID)
	if err != nil {
		return err
	}
	h := below(file, start)
	if begin := l[0].base; start > begin && (len(h) == 0 || h[len(h)-1].Epoch != at) {
		if ok {
			j.opts.Logger.Warn("journal's list of epochs is not that of its records: it is made anew", "position", uint64(start))
		} else {
			j.opts.Logger.Info("journal's list of epochs is made anew", "position", uint64(start))
		}
		var all epochs
		errEnough := errors.New("enough")
		s := scanner{fs: j.fs, list: l, holes: j.holeList(), damage: func(*CorruptError, Hole) {}, record: func(r Record) error {
			if r.Position >= start {
				return errEnough
			}
			all.add(r)
			return nil
		}}
		if err := s.run(); err != nil && err != errEnough {
			return err
		}
		h = all
	}
	h = h[:len(h):len(h)]
	for _, s := range read {
		if n := len(h); n > 0 && h[n-1].Epoch == s.Epoch {
			continue
		}
		for _, f := range file { // whose record is lost, or trimmed
			if f.Epoch == s.Epoch && f.Position < s.Position {
				if _, lost := findHole(j.holeList(), f.Position); lost || f.Position < l[0].base {
					s = f
				}
			}
		}
		for len(h) > 0 && (h[len(h)-1].Position >= s.Position || h[len(h)-1].Epoch > s.Epoch) { // of a file that lies
			h = h[:len(h)-1]
		}
		h = append(h, s)
	}
	h = fromBegin(h, l[0].base)
	j.mu.history = h
	if !ok || !slices.Equal(h, fromBegin(file, l[0].base)) {
		j.setHistory(h)
	}
	return nil
}
