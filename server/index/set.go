package index

import (
	"errors"
	"fmt"
	"io"
	"sort"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Options of a Set.
type Options struct {
	FS      vfs.FS // default: the disk
	Dir     string // must exist
	StoreID [16]byte
	// FilesOpenMax is how many files are held open for reading; 0: 2000.
	FilesOpenMax int
	// FlushEntries is from how many entries on a tail is moved to its file; 0: 4096. At least a chunk (128).
	FlushEntries int
	// TailBytesMax is what the tails may take together after a Flush: beyond it shorter ones are moved too, longest first, by
	// whole chunks; 0: 64 MiB.
	TailBytesMax int64
	// FlushFilesMax is how many of the shorter ones one Flush moves, each of which costs a sync; 0: 2000. With more
	// partitions than that the tails may pass TailBytesMax for a while.
	FlushFilesMax int
}

func (o Options) withDefaults() Options {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.FilesOpenMax <= 0 {
		o.FilesOpenMax = 2000
	}
	if o.FlushEntries <= 0 {
		o.FlushEntries = 4096
	}
	o.FlushEntries = max(o.FlushEntries, ChunkEntries)
	if o.TailBytesMax <= 0 {
		o.TailBytesMax = 64 << 20
	}
	if o.FlushFilesMax <= 0 {
		o.FlushFilesMax = 2000
	}
	return o
}

// ChunkEntries is the unit in which a tail is moved to its file: one block of 4096 bytes, so that a synced chunk shares no
// block with what is written later.
const ChunkEntries = 4096 / EntryBytes

// Set is the index of one store. Reads are safe for concurrent use with everything; Append and Truncate of one partition
// must not run at the same time as each other.
//
// Lock order: work, then partition.mu or files.mu.
type Set struct {
	opt   Options
	files files
	bufs  sync.Pool // *[4096]byte, for reading chunks

	// work is held while files are written and while a snapshot is taken: one of these at a time.
	work sync.Mutex

	mu struct {
		sync.RWMutex
		parts map[Key]*partition
		list  []*partition // in order of making; only grows
	}
}

// partition is the index of one. base = 0 <= first, 0 <= flushed <= end = flushed + len(tail).
type partition struct {
	key  Key
	seed Seed

	mu sync.RWMutex // guards what follows
	// first is the first index kept. It may be beyond flushed.
	first Index
	// flushed is the end of what the file holds, synced.
	flushed Index
	// tail has the entries from flushed on. What is below its length never changes while it is in this array, except under
	// Set.work: a snapshot may read it without mu.
	tail []Entry
	// fileLast is the Stored of the entry before the tail; 0 without one.
	fileLast int64
	// cuts counts Truncates, so that a Flush notices one that came in between.
	cuts int
}

// Open returns an empty set: Restore and Append fill it. No file is touched.
func Open(opt Options) *Set {
	s := &Set{opt: opt.withDefaults()}
	s.files = files{fs: s.opt.FS, dir: s.opt.Dir, storeID: s.opt.StoreID, max: s.opt.FilesOpenMax}
	s.files.init()
	s.bufs.New = func() any { return new([ChunkEntries * EntryBytes]byte) }
	s.mu.parts = map[Key]*partition{}
	return s
}

// Close closes the files. Nothing is written.
func (s *Set) Close() error {
	s.files.closeAll()
	return nil
}

func (s *Set) find(k Key) *partition {
	s.mu.RLock()
	p := s.mu.parts[k]
	s.mu.RUnlock()
	return p
}

func (s *Set) make(k Key) *partition {
	if p := s.find(k); p != nil {
		return p
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.mu.parts[k]
	if p == nil {
		p = &partition{key: k, seed: k.Seed()}
		s.mu.parts[k] = p
		s.mu.list = append(s.mu.list, p)
	}
	return p
}

func (s *Set) all() []*partition {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.mu.list[:len(s.mu.list):len(s.mu.list)]
}

// Append adds the entries of one batch, whose first message has index first, and returns the partition's new end. A batch
// that does not begin at the end is a GapError.
func (s *Set) Append(k Key, first Index, b *Batch) (Index, error) {
	if b.Count == 0 || (b.Tags != nil && len(b.Tags) != int(b.Count)) {
		panic(fmt.Sprintf("index: append of %d messages with %d tags", b.Count, len(b.Tags)))
	}
	p := s.make(k)
	p.mu.Lock()
	defer p.mu.Unlock()
	end := p.flushed + Index(len(p.tail))
	if first != end {
		return end, &GapError{Key: k, End: end, First: first, Position: b.Position}
	}
	// A clock that was set back must not take the order from under Seek.
	last := p.fileLast
	if n := len(p.tail); n > 0 {
		last = p.tail[n-1].Stored
	}
	e := Entry{Position: b.Position, Stored: max(last, b.Stored), Size: b.Size, Count: b.Count}
	for i := range int(b.Count) {
		e.Slot = uint16(i)
		if b.Tags != nil {
			e.TagHash = b.Tags[i]
		}
		p.tail = append(p.tail, e)
	}
	return end + Index(b.Count), nil
}

// Bounds returns the first index kept and the end. A partition that never had a message has 0, 0.
func (s *Set) Bounds(k Key) (first, end Index) {
	p := s.find(k)
	if p == nil {
		return 0, 0
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.first, p.flushed + Index(len(p.tail))
}

// Range appends the entries [from, to) to dst. Errors: ErrTrimmed, ErrBeyond, a *DamageError or what the file system says;
// dst then has the entries before the one that could not be had.
func (s *Set) Range(k Key, from, to Index, dst []Entry) ([]Entry, error) {
	if from >= to {
		return dst, nil
	}
	p := s.find(k)
	if p == nil {
		return dst, fmt.Errorf("%w: partition %v has no message, %d was asked for", ErrBeyond, k, from)
	}
	p.mu.RLock()
	first, flushed, end := p.first, p.flushed, p.flushed+Index(len(p.tail))
	switch {
	case from < first:
		p.mu.RUnlock()
		return dst, fmt.Errorf("%w: partition %v begins at %d, %d was asked for", ErrTrimmed, k, first, from)
	case to > end:
		p.mu.RUnlock()
		return dst, fmt.Errorf("%w: partition %v ends at %d, [%d, %d) was asked for", ErrBeyond, k, end, from, to)
	case from >= flushed:
		dst = append(dst, p.tail[from-flushed:to-flushed]...)
		p.mu.RUnlock()
		return dst, nil
	}
	var young []Entry
	if to > flushed {
		// Copied: a flush may move the array's content as soon as the lock is free.
		young = append(young, p.tail[:to-flushed]...)
	}
	p.mu.RUnlock()
	dst, err := s.readFile(p, from, min(to, flushed), dst)
	if err != nil {
		return dst, err
	}
	return append(dst, young...), nil
}

// readFile appends the entries [from, to) of the partition's file.
func (s *Set) readFile(p *partition, from, to Index, dst []Entry) ([]Entry, error) {
	f, err := s.files.acquire(p.key)
	if err != nil {
		var d *DamageError
		if errors.As(err, &d) {
			d.Index = from
		}
		return dst, err
	}
	defer s.files.release(f)
	buf := s.bufs.Get().(*[ChunkEntries * EntryBytes]byte)
	defer s.bufs.Put(buf)
	for from < to {
		b := buf[:min(int(to-from), ChunkEntries)*EntryBytes]
		n, err := f.ReadAt(b, offsetOf(from))
		if err != nil && !errors.Is(err, io.EOF) {
			return dst, &DamageError{Key: p.key, File: s.files.path(p.key), Index: from, Reason: "cannot be read", Err: err}
		}
		for len(b) > 0 {
			e, wrong := Entry{}, "file is short"
			if n >= EntryBytes {
				e, wrong = DecodeEntry(p.seed, from, b)
			}
			if wrong != "" {
				return dst, &DamageError{Key: p.key, File: s.files.path(p.key), Index: from, Reason: wrong}
			}
			dst = append(dst, e)
			b, n, from = b[EntryBytes:], n-EntryBytes, from+1
		}
	}
	return dst, nil
}

// Seek returns the first index kept whose message was stored at or after t, or the end.
func (s *Set) Seek(k Key, t int64) (Index, error) {
	p := s.find(k)
	if p == nil {
		return 0, nil
	}
	p.mu.RLock()
	first, flushed := p.first, p.flushed
	n := sort.Search(len(p.tail), func(i int) bool { return flushed+Index(i) >= first && p.tail[i].Stored >= t })
	p.mu.RUnlock()
	if n > 0 && flushed+Index(n-1) >= first || first >= flushed {
		return flushed + Index(n), nil // the tail has an older one: it is not in the file
	}
	var one [1]Entry
	var err error
	older := sort.Search(int(flushed-first), func(i int) bool {
		if err != nil {
			return true
		}
		var e []Entry
		if e, err = s.readFile(p, first+Index(i), first+Index(i)+1, one[:0]); err != nil {
			return true
		}
		return e[0].Stored >= t
	})
	if err != nil {
		return 0, err
	}
	return first + Index(older), nil
}

// SetFirst drops what is below first. The end never moves: first is cut to it.
func (s *Set) SetFirst(k Key, first Index) {
	p := s.make(k)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.first = max(p.first, min(first, p.flushed+Index(len(p.tail))))
}

// Truncate drops the entries from end on, when the journal was cut. An end beyond the partition's changes nothing. What a
// file holds beyond is ignored and overwritten; a checkpoint that still counts it must not be used again, which holds
// because nothing that can be cut is ever put into the index by a store.
func (s *Set) Truncate(k Key, end Index) {
	p := s.find(k)
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if end >= p.flushed+Index(len(p.tail)) {
		return
	}
	p.cuts++
	if end >= p.flushed {
		// A new array: a snapshot may be reading the old one, which the next Append would overwrite.
		p.tail = append([]Entry(nil), p.tail[:end-p.flushed]...)
	} else {
		p.flushed, p.tail = end, nil // fileLast stays: it may be too high, and then Seek finds an earlier message
	}
	p.first = min(p.first, end)
}

// Metrics of a Set.
type Metrics struct {
	Partitions  int
	FilesOpen   int
	TailEntries int64
}

// Metrics is what the set has now.
func (s *Set) Metrics() Metrics {
	m := Metrics{FilesOpen: s.files.len()}
	for _, p := range s.all() {
		p.mu.RLock()
		m.TailEntries += int64(len(p.tail))
		p.mu.RUnlock()
		m.Partitions++
	}
	return m
}
