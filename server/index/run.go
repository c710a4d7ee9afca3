package index

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	// Version is the format of the files.
	Version = 2

	headerBytes  = 64
	extentBytes  = 40
	trailerBytes = 32

	runPrefix = "run-"
	runSuffix = ".index"
	// temporary is the end of the names of files that are being written.
	temporary = ".new"
)

var (
	headerMagic  = [8]byte{'J', 'M', 'Q', 'I', 'N', 'D', 'X', 0}
	trailerMagic = [8]byte{'J', 'M', 'Q', 'I', 'E', 'N', 'D', 0}
)

// RunID names a run by the range of the journal that it indexes: [From, To).
type RunID struct {
	From, To uint64
}

func (r RunID) name() string {
	return fmt.Sprintf("%s%020d-%020d%s", runPrefix, r.From, r.To, runSuffix)
}

func (r RunID) String() string { return fmt.Sprintf("[%d, %d)", r.From, r.To) }

func parseRunName(name string) (r RunID, ok bool) {
	s, ok := strings.CutPrefix(name, runPrefix)
	if !ok {
		return r, false
	}
	if s, ok = strings.CutSuffix(s, runSuffix); !ok || len(s) != 41 || s[20] != '-' {
		return r, false
	}
	var err, err2 error
	r.From, err = strconv.ParseUint(s[:20], 10, 64)
	r.To, err2 = strconv.ParseUint(s[21:], 10, 64)
	return r, err == nil && err2 == nil
}

// run is a file of the set.
type run struct {
	RunID
	number  uint32 // in Set.runs
	entries int64
	size    int64
	damaged bool        // it could not be loaded; guarded by Set.work
	gone    atomic.Bool // it is not in the set any more
}

// placed is an extent of a key.
type placed struct {
	key Key
	extent
}

func compareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Incarnation, b.Incarnation), cmp.Compare(a.Partition, b.Partition))
}

// runWriter writes a run: entries by partition and index, then the directory, which it makes of them.
type runWriter struct {
	fs      vfs.FS
	dir     string
	storeID [16]byte
	id      RunID

	f       vfs.File // nil until the first entry
	offset  int64
	synced  int64
	buf     []byte
	entries int64
	out     []placed
	open    bool   // the last of out goes on
	last    Entry  // of it
	bytes   uint64 // of it
}

const (
	writeBytes = 1 << 20  // gathered for one write
	syncBytes  = 16 << 20 // written before a sync, so that the last one is short
)

func (w *runWriter) path() string { return w.fs.PathJoin(w.dir, w.id.name()) }

// add writes entry i of k. Keys come in order, and the indexes of a key.
func (w *runWriter) add(k Key, s Seed, i Index, e *Entry) error {
	if w.f == nil {
		if err := w.make(); err != nil {
			return err
		}
	}
	lost := e.Size == 0
	if n := len(w.out) - 1; !w.open || w.out[n].key != k || w.out[n].end() != i || w.out[n].count == extentEntriesMax ||
		e.Position < w.last.Position || lost != (w.last.Size == 0) {
		w.endExtent()
		w.out = append(w.out, placed{k, extent{first: i, at: uint32(w.entries)}})
		w.open, w.bytes = true, 0
	}
	x := &w.out[len(w.out)-1]
	x.count++
	x.last = e.Stored
	w.bytes += uint64(e.Size) / uint64(e.Count)
	w.last = *e
	w.entries++
	w.buf = AppendEntry(w.buf, s, i, e)
	if len(w.buf) >= writeBytes {
		return w.write()
	}
	return nil
}

func (w *runWriter) endExtent() {
	if !w.open {
		return
	}
	w.open = false
	x := &w.out[len(w.out)-1]
	if w.last.Size != 0 {
		x.bytes = uint32(min(max(1, (w.bytes+bytesUnit/2)/bytesUnit), 1<<32-1))
	}
}

func (w *runWriter) make() error {
	name := w.path() + temporary
	if err := w.fs.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("index: remove %s: %w", name, err)
	}
	f, err := w.fs.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return fmt.Errorf("index: make %s: %w", name, err)
	}
	w.f = f
	w.buf = appendHeader(w.buf[:0], w.storeID, w.id)
	return nil
}

func appendHeader(b []byte, storeID [16]byte, id RunID) []byte {
	n := len(b)
	b = append(b, make([]byte, headerBytes)...)
	h := b[n:]
	copy(h, headerMagic[:])
	binary.LittleEndian.PutUint32(h[8:], Version)
	copy(h[16:], storeID[:])
	binary.LittleEndian.PutUint64(h[32:], id.From)
	binary.LittleEndian.PutUint64(h[40:], id.To)
	sumHeader(h)
	return b
}

// sumHeader puts the checksum into a header.
func sumHeader(h []byte) []byte {
	binary.LittleEndian.PutUint32(h[60:], crc32.Checksum(h[:60], castagnoli))
	return h
}

func (w *runWriter) write() error {
	if _, err := w.f.WriteAt(w.buf, w.offset); err != nil {
		return fmt.Errorf("index: write %s: %w", w.path()+temporary, err)
	}
	w.offset += int64(len(w.buf))
	w.buf = w.buf[:0]
	if w.offset-w.synced >= syncBytes {
		return w.sync()
	}
	return nil
}

func (w *runWriter) sync() error {
	if err := w.f.Sync(); err != nil {
		return fmt.Errorf("index: sync %s: %w", w.path()+temporary, err)
	}
	w.synced = w.offset
	return nil
}

// finish writes the directory, and gives the file its name. It returns nil when there was no entry, and no file then.
func (w *runWriter) finish() (*run, error) {
	if w.f == nil {
		return nil, nil
	}
	w.endExtent()
	crc := uint32(0)
	for i := range w.out {
		at := len(w.buf)
		w.buf = appendExtent(w.buf, &w.out[i])
		crc = crc32.Update(crc, castagnoli, w.buf[at:])
		if len(w.buf) >= writeBytes {
			if err := w.write(); err != nil {
				return nil, err
			}
		}
	}
	w.buf = appendTrailer(w.buf, uint64(w.entries), uint32(len(w.out)), crc)
	if err := w.write(); err != nil {
		return nil, err
	}
	if err := w.sync(); err != nil {
		return nil, err
	}
	err := w.f.Close()
	w.f = nil
	if err != nil {
		return nil, fmt.Errorf("index: close %s: %w", w.path()+temporary, err)
	}
	if err := w.fs.Rename(w.path()+temporary, w.path()); err != nil {
		return nil, fmt.Errorf("index: rename %s: %w", w.path()+temporary, err)
	}
	if err := syncDir(w.fs, w.dir); err != nil {
		return nil, err
	}
	return &run{RunID: w.id, entries: w.entries, size: w.offset}, nil
}

// abort gives up what was not finished.
func (w *runWriter) abort() {
	if w.f != nil {
		w.f.Close()
		w.f = nil
	}
	_ = w.fs.Remove(w.path() + temporary) // only tidy: the name is never read
}

func appendExtent(b []byte, x *placed) []byte {
	b = binary.LittleEndian.AppendUint64(b, x.key.Topic)
	b = binary.LittleEndian.AppendUint32(b, x.key.Incarnation)
	b = binary.LittleEndian.AppendUint16(b, x.key.Partition)
	b = append(b, 0, 0)
	b = binary.LittleEndian.AppendUint64(b, uint64(x.first))
	b = binary.LittleEndian.AppendUint64(b, uint64(x.last))
	b = binary.LittleEndian.AppendUint32(b, x.count)
	return binary.LittleEndian.AppendUint32(b, x.bytes)
}

func appendTrailer(b []byte, entries uint64, extents, crc uint32) []byte {
	at := len(b)
	b = append(b, trailerMagic[:]...)
	b = binary.LittleEndian.AppendUint64(b, entries)
	b = binary.LittleEndian.AppendUint32(b, extents)
	b = binary.LittleEndian.AppendUint32(b, crc)
	b = append(b, 0, 0, 0, 0)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[at:], castagnoli))
}

// readRun reads a run's header and directory, and gives each extent, without run. Errors: *DamageError, ErrVersion. What was
// given before an error counts nothing.
func readRun(vf vfs.FS, path string, storeID [16]byte, id RunID, each func(placed)) (*run, error) {
	damage := func(reason string, err error) (*run, error) {
		return nil, &DamageError{Run: id, File: path, Reason: reason, Err: err}
	}
	f, err := vf.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return damage("file is missing", nil)
	} else if err != nil {
		return damage("cannot be opened", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return damage("cannot be looked at", err)
	}
	size := st.Size()
	var h [headerBytes]byte
	if n, err := f.ReadAt(h[:], 0); n < len(h) {
		if err != nil && !errors.Is(err, io.EOF) {
			return damage("cannot be read", err)
		}
		return damage(fmt.Sprintf("file has %d bytes, which is less than a header", n), nil)
	}
	switch {
	case h == [headerBytes]byte{}:
		return damage("header is all zero", nil)
	case !bytes.Equal(h[:8], headerMagic[:]):
		return damage("not an index file", nil)
	case crc32.Checksum(h[:60], castagnoli) != binary.LittleEndian.Uint32(h[60:]):
		return damage("checksum of the header is wrong", nil)
	}
	if v := binary.LittleEndian.Uint32(h[8:]); v > Version {
		return nil, fmt.Errorf("%w: %s has version %d, this program reads up to %d", ErrVersion, path, v, Version)
	} else if v < Version {
		return damage(fmt.Sprintf("file has version %d", v), nil)
	}
	if !bytes.Equal(h[16:32], storeID[:]) {
		return damage(fmt.Sprintf("file of another store (%x)", h[16:32]), nil)
	}
	if got := (RunID{binary.LittleEndian.Uint64(h[32:]), binary.LittleEndian.Uint64(h[40:])}); got != id {
		return damage(fmt.Sprintf("file of the range %v", got), nil)
	}
	if size < headerBytes+trailerBytes {
		return damage(fmt.Sprintf("file has %d bytes, which is less than header and trailer", size), nil)
	}
	var t [trailerBytes]byte
	if _, err := f.ReadAt(t[:], size-trailerBytes); err != nil && !errors.Is(err, io.EOF) {
		return damage("cannot be read", err)
	}
	if !bytes.Equal(t[:8], trailerMagic[:]) || crc32.Checksum(t[:28], castagnoli) != binary.LittleEndian.Uint32(t[28:]) {
		return damage("trailer is wrong", nil)
	}
	entries, extents := binary.LittleEndian.Uint64(t[8:]), binary.LittleEndian.Uint32(t[16:])
	if entries > 1<<32-1 || size != headerBytes+int64(entries)*EntryBytes+int64(extents)*extentBytes+trailerBytes {
		return damage(fmt.Sprintf("file has %d bytes, %d entries and %d extents need others", size, entries, extents), nil)
	}
	// Twice: what is given must be whole.
	offset := headerBytes + int64(entries)*EntryBytes
	buf := make([]byte, min(int64(extents)*extentBytes, extentBytes<<14))
	crc, at := uint32(0), uint64(0)
	for pass := range 2 {
		var last placed
		for left, off := int64(extents)*extentBytes, offset; left > 0; {
			b := buf[:min(left, int64(len(buf)))]
			if n, err := f.ReadAt(b, off); n < len(b) {
				return damage("directory cannot be read", err)
			}
			off, left = off+int64(len(b)), left-int64(len(b))
			if pass == 0 {
				crc = crc32.Update(crc, castagnoli, b)
			}
			for ; len(b) > 0; b = b[extentBytes:] {
				x := decodeExtent(b)
				x.at = uint32(at)
				at += uint64(x.count)
				if pass == 0 {
					if x.count == 0 || x.count > extentEntriesMax || x.end() < x.first ||
						last.count > 0 && (compareKeys(last.key, x.key) > 0 || last.key == x.key && last.end() > x.first) {
						return damage("an extent of the directory cannot be", nil)
					}
					last = x
					continue
				}
				each(x)
			}
		}
		if pass == 0 && (crc != binary.LittleEndian.Uint32(t[20:]) || at != entries) {
			return damage("checksum of the directory is wrong", nil)
		}
		at = 0
	}
	return &run{RunID: id, entries: int64(entries), size: size}, nil
}

func decodeExtent(b []byte) placed {
	return placed{
		Key{
			Topic: binary.LittleEndian.Uint64(b[0:]), Incarnation: binary.LittleEndian.Uint32(b[8:]),
			Partition: binary.LittleEndian.Uint16(b[12:]),
		},
		extent{
			first: Index(binary.LittleEndian.Uint64(b[16:])), last: int64(binary.LittleEndian.Uint64(b[24:])),
			count: binary.LittleEndian.Uint32(b[32:]), bytes: binary.LittleEndian.Uint32(b[36:]),
		},
	}
}

// sortRuns puts runs in the order of the journal.
func sortRuns(list []*run) {
	slices.SortFunc(list, func(a, b *run) int { return cmp.Compare(a.From, b.From) })
}
