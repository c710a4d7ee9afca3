package index

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sort"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/planted"
)

// flushing is one partition's part of a Flush.
type flushing struct {
	p    *partition
	from Index
	tail []Entry // what is written: whole chunks from from on
	cuts int
}

// Flush moves whole chunks of the tails that are long enough into their files: written, synced, and for a new file its
// directory synced, before the entries leave memory. An error leaves them there; the next Flush writes them again. A
// partition whose file is damaged is passed over and is part of the error. It returns how many files were written.
func (s *Set) Flush() (int, error) {
	s.work.Lock()
	defer s.work.Unlock()

	parts := s.choose()
	made, written := false, parts[:0]
	var buf []byte
	var errs []error
	for i := range parts {
		f := &parts[i]
		var err error
		if buf, err = s.write(f, buf); err != nil {
			var d *DamageError
			if !errors.As(err, &d) {
				return 0, err
			}
			errs = append(errs, err)
			continue
		}
		made = made || f.from == 0
		written = append(written, *f)
	}
	if made {
		if err := syncDir(s.opt.FS, s.opt.Dir); err != nil {
			return 0, err
		}
	}
	for i := range written {
		written[i].done()
	}
	return len(written), errors.Join(errs...)
}

// choose finds the tails to write: those of FlushEntries and more, then, while the rest is beyond TailBytesMax, the longest.
func (s *Set) choose() []flushing {
	var parts, short []flushing
	var rest int64
	for _, p := range s.all() {
		p.mu.RLock()
		n := len(p.tail)
		whole := n / ChunkEntries * ChunkEntries
		f := flushing{p: p, from: p.flushed, tail: p.tail[:whole:whole], cuts: p.cuts}
		p.mu.RUnlock()
		switch {
		case n >= s.opt.FlushEntries:
			parts = append(parts, f)
			rest += int64(n-whole) * EntryBytes
		case whole > 0:
			short = append(short, f)
			rest += int64(n) * EntryBytes
		default:
			rest += int64(n) * EntryBytes
		}
	}
	if rest > s.opt.TailBytesMax {
		sort.Slice(short, func(i, j int) bool { return len(short[i].tail) > len(short[j].tail) })
		for _, f := range short[:min(len(short), s.opt.FlushFilesMax)] {
			if rest <= s.opt.TailBytesMax/2 { // well below, so that the next Flush does not begin again
				break
			}
			rest -= int64(len(f.tail)) * EntryBytes
			parts = append(parts, f)
		}
	}
	return parts
}

// write writes and syncs the chunks of one partition. The first chunk writes the header too, over whatever lies there.
func (s *Set) write(f *flushing, buf []byte) ([]byte, error) {
	path := s.files.path(f.p.key)
	offset := offsetOf(f.from)
	buf = slices.Grow(buf[:0], headerBytes+len(f.tail)*EntryBytes)
	if f.from == 0 {
		offset = 0
		h := header{Version: Version, StoreID: s.opt.StoreID, Key: f.p.key}
		buf = append(buf, h.encode()...)
	} else {
		// The file must be the one that holds the entries before these.
		r, err := s.files.acquire(f.p.key)
		if err != nil {
			return buf, err
		}
		s.files.release(r)
	}
	for i := range f.tail {
		buf = AppendEntry(buf, f.p.seed, f.from+Index(i), &f.tail[i])
	}
	w, err := s.opt.FS.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return buf, fmt.Errorf("index: open file of partition %v for writing: %w", f.p.key, err)
	}
	if f.from == 0 {
		s.files.drop(f.p.key)
	}
	_, err = w.WriteAt(buf, offset)
	if err == nil {
		err = w.Sync()
	}
	if err = errors.Join(err, w.Close()); err != nil {
		return buf, fmt.Errorf("index: write %s: %w", path, err)
	}
	return buf, nil
}

// tailKeptMax is the largest array, in entries, that a partition keeps over a flush: 1 MiB.
const tailKeptMax = 1 << 20 / EntryBytes

// done lets the entries that are on disk leave memory.
func (f *flushing) done() {
	p := f.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cuts != f.cuts {
		return // what was written is beyond the end now; the next Flush writes what is there then
	}
	p.flushed += Index(len(f.tail))
	p.fileLast = f.tail[len(f.tail)-1].Stored
	rest := p.tail[len(f.tail):]
	// A busy partition keeps its array, up to a size; one that was busy once does not.
	if cap(p.tail) > 4*(len(rest)+ChunkEntries) && (len(f.tail) < cap(p.tail)/2 || cap(p.tail) > tailKeptMax) {
		p.tail = append(make([]Entry, 0, len(rest)+ChunkEntries), rest...)
	} else {
		p.tail = p.tail[:copy(p.tail, rest)] // no snapshot is being read: work is held
	}
}

// State is a partition as a checkpoint holds it.
type State struct {
	Key     Key
	First   Index
	Flushed Index   // end of the file
	Last    int64   // Stored of the last entry in the file; 0 without one
	Tail    []Entry // from Flushed on; in a snapshot it is valid only during the call
}

// Below cuts off what lies at or beyond a position of the journal. What is in the file must lie below.
func (st *State) Below(position uint64) {
	n := sort.Search(len(st.Tail), func(i int) bool { return st.Tail[i].Position >= position })
	if planted.Bug("index: last entry not in the checkpoint") {
		n = max(n-1, 0)
	}
	st.Tail = st.Tail[:n]
}

// Snapshot calls each with every partition that is not empty, one after the other. Appends go on meanwhile: a partition may hold
// more than it did when Snapshot was called, never less. Each state holds what was there at one moment, and what it says is
// in the file is synced.
func (s *Set) Snapshot(each func(*State) error) error {
	s.work.Lock()
	defer s.work.Unlock()
	for _, p := range s.all() {
		p.mu.RLock()
		st := State{Key: p.key, First: p.first, Flushed: p.flushed, Last: p.fileLast, Tail: p.tail[:len(p.tail):len(p.tail)]}
		p.mu.RUnlock()
		if st.First == 0 && st.Flushed == 0 && len(st.Tail) == 0 {
			continue
		}
		if err := each(&st); err != nil {
			return err
		}
	}
	return nil
}

// Restore puts a partition as it was in a checkpoint. st is not kept.
func (s *Set) Restore(st *State) {
	p := s.make(st.Key)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cuts++
	p.first, p.flushed, p.fileLast = st.First, st.Flushed, st.Last
	p.tail = append([]Entry(nil), st.Tail...)
}

// RestoreMore appends entries to the tail of a partition that was restored: a long tail comes in several parts.
func (s *Set) RestoreMore(k Key, entries []Entry) {
	p := s.make(k)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tail = append(p.tail, entries...)
}

// Reset forgets everything, before another checkpoint is restored. No file is touched.
func (s *Set) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.parts = map[Key]*partition{}
	s.mu.list = nil
}

// Check looks whether the files hold as much as they should, without reading them, and returns what is damaged. What a
// look does not show is found when it is read.
func (s *Set) Check() []*DamageError {
	var found []*DamageError
	for _, p := range s.all() {
		p.mu.RLock()
		first, flushed := p.first, p.flushed
		p.mu.RUnlock()
		if first >= flushed {
			continue
		}
		path := s.files.path(p.key)
		st, err := s.opt.FS.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			found = append(found, &DamageError{Key: p.key, File: path, Index: first, Reason: "file is missing"})
		case err != nil:
			found = append(found, &DamageError{Key: p.key, File: path, Index: first, Reason: "cannot be looked at", Err: err})
		case st.Size() < offsetOf(flushed):
			i := Index(max(st.Size()-headerBytes, 0) / EntryBytes)
			found = append(found, &DamageError{Key: p.key, File: path, Index: max(i, first),
				Reason: fmt.Sprintf("file has %d bytes, its entries up to %d need %d", st.Size(), flushed, offsetOf(flushed))})
		}
	}
	return found
}

// A Rebuild writes the files of damaged partitions anew, from batches read again from the journal.
type Rebuild struct {
	s     *Set
	parts map[Key]*rebuilding
}

type rebuilding struct {
	p     *partition
	next  Index // the entry that must come next
	end   Index // flushed when it began
	last  int64
	cuts  int
	f     vfs.File
	buf   []byte
	begin Index // of buf
}

// Rebuild begins to write the files of keys anew. It holds off Flush and Snapshot until Finish or Abort.
func (s *Set) Rebuild(keys ...Key) *Rebuild {
	s.work.Lock()
	r := &Rebuild{s: s, parts: map[Key]*rebuilding{}}
	for _, k := range keys {
		p := s.find(k)
		if p == nil {
			continue
		}
		p.mu.RLock()
		if p.first < p.flushed {
			r.parts[k] = &rebuilding{p: p, next: p.first, begin: p.first, end: p.flushed, cuts: p.cuts}
		}
		p.mu.RUnlock()
	}
	return r
}

// Wants says whether batches of k are asked for.
func (r *Rebuild) Wants(k Key) bool {
	b := r.parts[k]
	return b != nil && b.next < b.end
}

// Missing returns how many partitions still want batches.
func (r *Rebuild) Missing() int {
	n := 0
	for _, b := range r.parts {
		if b.next < b.end {
			n++
		}
	}
	return n
}

// Add takes a batch in the order of the journal. What is not wanted is ignored.
func (r *Rebuild) Add(k Key, first Index, b *Batch) error {
	w := r.parts[k]
	if w == nil || w.next >= w.end || first+Index(b.Count) <= w.next {
		return nil
	}
	if first > w.next {
		return &GapError{Key: k, End: w.next, First: first, Position: b.Position}
	}
	w.last = max(w.last, b.Stored)
	e := Entry{Position: b.Position, Stored: w.last, Size: b.Size, Count: b.Count}
	for i := int(w.next - first); i < int(b.Count) && w.next < w.end; i++ {
		e.Slot = uint16(i)
		if b.Tags != nil {
			e.TagHash = b.Tags[i]
		}
		w.buf = AppendEntry(w.buf, w.p.seed, w.next, &e)
		w.next++
	}
	if len(w.buf) >= 256<<10 {
		return r.flush(w)
	}
	return nil
}

func (r *Rebuild) temporary(k Key) string { return r.s.files.path(k) + ".new" }

func (r *Rebuild) flush(w *rebuilding) error {
	if w.f == nil {
		name := r.temporary(w.p.key)
		if err := r.s.opt.FS.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("index: remove %s: %w", name, err)
		}
		f, err := r.s.opt.FS.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
		if err != nil {
			return fmt.Errorf("index: make %s: %w", name, err)
		}
		w.f = f
		h := header{Version: Version, StoreID: r.s.opt.StoreID, Key: w.p.key}
		if _, err := f.WriteAt(h.encode(), 0); err != nil {
			return fmt.Errorf("index: write %s: %w", name, err)
		}
	}
	if _, err := w.f.WriteAt(w.buf, offsetOf(w.begin)); err != nil {
		return fmt.Errorf("index: write %s: %w", r.temporary(w.p.key), err)
	}
	w.begin, w.buf = w.next, w.buf[:0]
	return nil
}

// Finish puts the new files in the place of the old. It returns an error, and leaves a partition's file as it was, when
// the journal did not have all of it.
func (r *Rebuild) Finish() error {
	defer r.Abort()
	var errs []error
	renamed := false
	for k, w := range r.parts {
		if w.next < w.end {
			errs = append(errs, fmt.Errorf("index: partition %v cannot be rebuilt: the journal does not hold [%d, %d)", k, w.next, w.end))
			continue
		}
		if err := r.put(k, w); err != nil {
			errs = append(errs, err)
			continue
		}
		renamed = true
	}
	if renamed {
		if err := syncDir(r.s.opt.FS, r.s.opt.Dir); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (r *Rebuild) put(k Key, w *rebuilding) error {
	if err := r.flush(w); err != nil {
		return err
	}
	err := w.f.Sync()
	err = errors.Join(err, w.f.Close())
	w.f = nil
	if err != nil {
		return fmt.Errorf("index: sync %s: %w", r.temporary(k), err)
	}
	if err := r.s.opt.FS.Rename(r.temporary(k), r.s.files.path(k)); err != nil {
		return fmt.Errorf("index: rename %s: %w", r.temporary(k), err)
	}
	r.s.files.drop(k)
	return nil
}

// Abort gives up what was not finished.
func (r *Rebuild) Abort() {
	if r.s == nil {
		return
	}
	for k, w := range r.parts {
		if w.f != nil {
			w.f.Close()
			_ = r.s.opt.FS.Remove(r.temporary(k)) // only tidy: the name is never read
		}
	}
	r.s.work.Unlock()
	r.s = nil
}

func syncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return fmt.Errorf("index: open folder %s: %w", dir, err)
	}
	err = d.Sync()
	if err = errors.Join(err, d.Close()); err != nil {
		return fmt.Errorf("index: sync folder %s: %w", dir, err)
	}
	return nil
}
