package side

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"log/slog"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/planted"
)

// FileName is the side file's in its folder.
const FileName = "SIDE"

const (
	fileVersion      = 1
	fileHeaderBytes  = 32
	recordHeadBytes  = 24
	nonceBytes       = 16
	recordBytesMax   = 4 << 20 // an entry has at most some KiB; so much is never a record's
	bytesMaxDefault  = 256 << 20
	scanWindowBytes  = 64 << 10
	zeroesAtOnce     = 64 << 10
	recordAlignBytes = 8
)

var (
	fileMagic = [8]byte{'j', 'm', 'q', 's', 'i', 'd', 'e', 0}
	crcTable  = crc32.MakeTable(crc32.Castagnoli)
)

// Options of a File.
type Options struct {
	FS  vfs.FS
	Dir string // the folder is there
	// BytesMax bounds the file; beyond it Append is ErrFull. 0: 256 MiB, which are some ten million acks.
	BytesMax int64
	// Random fills b, for the number of a new file. nil: crypto/rand.
	Random func(b []byte)
	Logger *slog.Logger // nil: nobody
}

// File is a side file, or the place of one: there is no file until the first Append, and none after Remove.
//
//	32 <= synced = end, but within Append; 0 = end when there is no file
type File struct {
	o    Options
	path string

	mu struct {
		sync.Mutex
		file    vfs.File // nil: there is none
		nonce   [nonceBytes]byte
		end     int64 // of the last record
		metrics Metrics
		failed  error
	}
	buf []byte // Append's own
}

// Metrics of a File.
type Metrics struct {
	Bytes   int64  // 0: there is no file
	Entries uint64 // in it
	Syncs   uint64 // since Open
	Damaged int64  // bytes of acknowledged entries that could not be read at Open
}

// Open opens the folder's side file, if there is one. A torn tail is cut: nobody was answered for it. Damage below what was synced is
// told and left out: the messages of those entries come again.
func Open(o Options) (*File, error) {
	if o.BytesMax == 0 {
		o.BytesMax = bytesMaxDefault
	}
	if o.Random == nil {
		o.Random = func(b []byte) { rand.Read(b) } // it never fails
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	f := &File{o: o, path: o.FS.PathJoin(o.Dir, FileName)}
	if _, err := o.FS.Stat(f.path); errors.Is(err, fs.ErrNotExist) {
		return f, nil // opening would make it
	}
	file, err := o.FS.OpenReadWrite(f.path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, fmt.Errorf("open the side file: %w", err)
	}
	f.mu.file = file
	if err := f.recover(); err != nil {
		return nil, errors.Join(fmt.Errorf("open the side file %s: %w", f.path, err), file.Close())
	}
	return f, nil
}

// recover reads the file, which is there.
func (f *File) recover() error {
	info, err := f.mu.file.Stat()
	if err != nil {
		return err
	}
	size := info.Size()
	var h [fileHeaderBytes]byte
	if size < fileHeaderBytes {
		return f.drop() // nothing was appended yet
	}
	if _, err := f.mu.file.ReadAt(h[:], 0); err != nil {
		return err
	}
	if [8]byte(h[:8]) != fileMagic || crc32.Checksum(h[:fileHeaderBytes-4], crcTable) != binary.LittleEndian.Uint32(h[fileHeaderBytes-4:]) {
		if size == fileHeaderBytes {
			return f.drop() // the header is synced before the first entry is written
		}
		return f.setAside(size)
	}
	if v := binary.LittleEndian.Uint32(h[8:]); v != fileVersion {
		return fmt.Errorf("%w: %d, this is for %d", ErrVersion, v, fileVersion)
	}
	copy(f.mu.nonce[:], h[12:])
	f.mu.end = fileHeaderBytes
	synced := int64(0) // when the last record was written
	for at := int64(fileHeaderBytes); at < size; {
		payload, next, proven, err := f.record(at, size)
		if err != nil {
			return err
		}
		if payload == nil {
			later, err := f.laterThan(at, size)
			if err != nil {
				return err
			}
			if later == 0 {
				break
			}
			f.mu.metrics.Damaged += later - at
			f.o.Logger.Error("the side file is damaged: acks in it are lost, and their messages come again", "file", f.path, "position", at, "to", later)
			at = later
			continue
		}
		e, err := Decode(payload)
		if err != nil {
			return fmt.Errorf("record at %d: %w", at, err)
		}
		f.mu.metrics.Entries += uint64(e.Len())
		synced = min(max(proven, fileHeaderBytes), at)
		f.mu.end, at = next, next
	}
	if f.mu.end == fileHeaderBytes {
		return f.drop()
	}
	if err := f.zero(f.mu.end, size); err != nil {
		return err
	}
	if err := f.keep(synced); err != nil {
		return err
	}
	f.mu.metrics.Bytes = f.mu.end
	return nil
}

// keep makes durable what is counted from now on: a process that was killed may have written [from, end) and not synced it, or its sync
// failed, so that a sync alone would do nothing; and the file's name may be as new.
func (f *File) keep(from int64) error {
	b := make([]byte, min(zeroesAtOnce, f.mu.end-from))
	for at := from; at < f.mu.end; at += int64(len(b)) {
		b = b[:min(int64(len(b)), f.mu.end-at)]
		n, err := f.mu.file.ReadAt(b, at)
		if errors.Is(err, io.EOF) { // what aligns the last record is missing
			clear(b[n:])
		} else if err != nil {
			return err
		}
		if _, err := f.mu.file.WriteAt(b, at); err != nil {
			return err
		}
	}
	return errors.Join(f.mu.file.Sync(), f.syncDir())
}

// setAside renames a file that cannot be read at all.
func (f *File) setAside(size int64) error {
	f.mu.metrics.Damaged = size
	bad := f.path + ".bad"
	f.o.Logger.Error("the side file's header is damaged: acks in it are lost, and their messages come again", "file", f.path, "bytes", size, "setAside", bad)
	err := f.mu.file.Close()
	f.mu.file = nil
	if err == nil {
		err = f.o.FS.Rename(f.path, bad)
	}
	if err == nil {
		err = f.syncDir()
	}
	return err
}

// drop removes a file that says nothing.
func (f *File) drop() error {
	err := f.mu.file.Close()
	f.mu.file = nil
	if err == nil {
		err = f.unlink()
	}
	return err
}

func (f *File) unlink() error {
	if err := f.o.FS.Remove(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return f.syncDir()
}

func (f *File) syncDir() error {
	d, err := f.o.FS.OpenDir(f.o.Dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// record reads the record at a place. payload is nil where none is; proven is what was synced when it was written.
func (f *File) record(at, size int64) (payload []byte, next, proven int64, err error) {
	var h [recordHeadBytes]byte
	if at+recordHeadBytes > size {
		return nil, 0, 0, nil
	}
	if _, err := f.mu.file.ReadAt(h[:], at); err != nil {
		return nil, 0, 0, err
	}
	n := int64(binary.LittleEndian.Uint32(h[:]))
	if n <= recordHeadBytes || n > recordBytesMax || at+n > size || int64(binary.LittleEndian.Uint64(h[8:])) != at {
		return nil, 0, 0, nil
	}
	b := make([]byte, n)
	if _, err := f.mu.file.ReadAt(b, at); err != nil {
		return nil, 0, 0, err
	}
	if f.crc(b[8:]) != binary.LittleEndian.Uint32(b[4:]) {
		return nil, 0, 0, nil
	}
	return b[recordHeadBytes:], at + align(n), int64(binary.LittleEndian.Uint64(b[16:])), nil
}

func align(n int64) int64 { return (n + recordAlignBytes - 1) &^ (recordAlignBytes - 1) }

// crc begins with the file's own number: no client can send bytes in which a record would be found.
func (f *File) crc(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(f.mu.nonce[:], crcTable), crcTable, b)
}

// laterThan returns the place of the next record behind at that was written when at was synced; 0 if there is none.
func (f *File) laterThan(at, size int64) (int64, error) {
	window := make([]byte, min(scanWindowBytes, max(size-at, 0)))
	for from := at + recordAlignBytes; from+recordHeadBytes <= size; {
		n := int(min(int64(len(window)), size-from))
		if _, err := f.mu.file.ReadAt(window[:n], from); err != nil {
			return 0, err
		}
		i := 0
		for ; i+recordHeadBytes <= n; i += recordAlignBytes {
			place := from + int64(i)
			if int64(binary.LittleEndian.Uint64(window[i+8:])) != place {
				continue
			}
			payload, _, proven, err := f.record(place, size)
			if err != nil {
				return 0, err
			}
			if payload != nil && proven > at {
				return place, nil
			}
		}
		from += int64(i)
	}
	return 0, nil
}

// zero overwrites [from, to), synced, unless it is zero already.
func (f *File) zero(from, to int64) error {
	if clean, err := f.zeroFrom(from, to); err != nil || clean {
		return err
	}
	zeroes := make([]byte, min(zeroesAtOnce, to-from))
	for at := from; at < to; at += zeroesAtOnce {
		if _, err := f.mu.file.WriteAt(zeroes[:min(zeroesAtOnce, to-at)], at); err != nil {
			return err
		}
	}
	return f.mu.file.Sync()
}

// zeroFrom reports whether [from, to) is all zero.
func (f *File) zeroFrom(from, to int64) (bool, error) {
	b := make([]byte, min(scanWindowBytes, max(to-from, 0)))
	for at := from; at < to; at += int64(len(b)) {
		part := b[:min(int64(len(b)), to-at)]
		if _, err := f.mu.file.ReadAt(part, at); err != nil {
			return false, err
		}
		for _, v := range part {
			if v != 0 {
				return false, nil
			}
		}
	}
	return true, nil
}

// Append appends entries, and returns nil when they are on disk. ErrFull: nothing was written; ErrFailed: the file takes no more.
func (f *File) Append(e *Entries) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.failed != nil {
		return f.mu.failed
	}
	if e.Len() == 0 {
		return nil
	}
	if f.mu.file == nil {
		if err := f.create(); err != nil {
			return f.fail(err)
		}
	}
	b := f.buf[:0]
	appendParts(nil, e, func(part []byte) []byte {
		b = f.appendRecord(b, f.mu.end+int64(len(b)), f.mu.end, part)
		return part[:0]
	})
	f.buf = b
	if f.mu.end+int64(len(b)) > f.o.BytesMax {
		return fmt.Errorf("%w: it may have %d bytes", ErrFull, f.o.BytesMax)
	}
	if _, err := f.mu.file.WriteAt(b, f.mu.end); err != nil {
		return f.fail(err)
	}
	if !planted.Bug("side: ok before it is synced") {
		if err := f.mu.file.Sync(); err != nil {
			return f.fail(err)
		}
	}
	f.mu.end += int64(len(b))
	f.mu.metrics.Bytes = f.mu.end
	f.mu.metrics.Entries += uint64(e.Len())
	f.mu.metrics.Syncs++
	return nil
}

func (f *File) fail(err error) error {
	f.mu.failed = fmt.Errorf("%w: %w", ErrFailed, err)
	f.o.Logger.Error("the side file takes no more acks", "file", f.path, "err", err)
	return f.mu.failed
}

// create makes the file with its header, on disk when it returns: so where there are entries and no header it was damaged.
func (f *File) create() (err error) {
	if f.mu.file, err = f.o.FS.Create(f.path, vfs.WriteCategoryUnspecified); err != nil {
		return err
	}
	f.o.Random(f.mu.nonce[:])
	var b []byte
	b = append(b, fileMagic[:]...)
	b = binary.LittleEndian.AppendUint32(b, fileVersion)
	b = append(b, f.mu.nonce[:]...)
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, crcTable))
	if _, err := f.mu.file.WriteAt(b, 0); err != nil {
		return err
	}
	if err := f.mu.file.Sync(); err != nil {
		return err
	}
	f.mu.end = fileHeaderBytes
	return f.syncDir()
}

func (f *File) appendRecord(b []byte, at, proven int64, payload []byte) []byte {
	from, n := len(b), recordHeadBytes+len(payload)
	b = binary.LittleEndian.AppendUint32(b, uint32(n))
	b = append(b, 0, 0, 0, 0)
	b = binary.LittleEndian.AppendUint64(b, uint64(at))
	b = binary.LittleEndian.AppendUint64(b, uint64(proven))
	b = append(b, payload...)
	binary.LittleEndian.PutUint32(b[from+4:], f.crc(b[from+8:]))
	return append(b, make([]byte, align(int64(n))-int64(n))...)
}

// Read returns parts, as Decode reads them, from a place on: 0 is the first. It returns as many records as fit into bytesMax, at
// least one, and the place of the next; there are no more when nothing is returned.
func (f *File) Read(from int64, bytesMax int) (parts []byte, next int64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	next = max(from, fileHeaderBytes)
	for f.mu.file != nil && next < f.mu.end {
		payload, to, _, err := f.record(next, f.mu.end)
		if err != nil {
			return nil, 0, fmt.Errorf("read the side file at %d: %w", next, err)
		}
		if payload == nil {
			if to, err = f.laterThan(next, f.mu.end); err != nil {
				return nil, 0, err
			}
			if to == 0 {
				to = f.mu.end
			}
			next = to
			continue
		}
		if len(parts) > 0 && len(parts)+len(payload) > bytesMax {
			break
		}
		parts, next = append(parts, payload...), to
	}
	return parts, next, nil
}

// Remove forgets all entries: when it returns nil they are gone for good. Append may follow.
func (f *File) Remove() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.file == nil {
		return f.mu.failed
	}
	err := errors.Join(f.mu.file.Close(), f.unlink())
	f.mu.file, f.mu.end = nil, 0
	f.mu.metrics.Bytes, f.mu.metrics.Entries = 0, 0
	if err != nil {
		f.mu.failed = fmt.Errorf("%w: remove the side file: %w", ErrFailed, err)
		return f.mu.failed
	}
	f.mu.failed = nil
	return nil
}

// Empty reports whether there is no file: the master has all that was acked.
func (f *File) Empty() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.file == nil
}

// Err says why the file takes no more; nil: it does.
func (f *File) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.failed
}

// Metrics returns them.
func (f *File) Metrics() Metrics {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.metrics
}

// Close releases the file.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.file == nil {
		return nil
	}
	err := f.mu.file.Close()
	f.mu.file = nil
	f.mu.failed = fmt.Errorf("%w: it is closed", ErrFailed)
	return err
}
