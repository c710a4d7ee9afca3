package index

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Options of a Set.
type Options struct {
	FS      vfs.FS // default: the disk
	Dir     string // must exist
	StoreID [16]byte
	// FilesOpenMax is how many files are held open for reading; 0: 2000.
	FilesOpenMax int
	// FlushBytes is how many bytes of tails a Flush leaves where they are: a run should be worth its file; 0: 1 MiB.
	FlushBytes int64
	// TailBytesMax is what the tails should take together at most: who appends calls Flush when TailBytes is above it, and free
	// memory is kept up to it; 0: 16 MiB.
	TailBytesMax int64
	// RunBytesMax is the size from which on a run is not merged any more; 0: 256 MiB.
	RunBytesMax int64
}

func (o Options) withDefaults() Options {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.FilesOpenMax <= 0 {
		o.FilesOpenMax = 2000
	}
	if o.FlushBytes <= 0 {
		o.FlushBytes = 1 << 20
	}
	if o.TailBytesMax <= 0 {
		o.TailBytesMax = 16 << 20
	}
	if o.RunBytesMax <= 0 {
		o.RunBytesMax = 256 << 20
	}
	return o
}

// Set is the index of one store. Reads are safe for concurrent use with everything; Append, AppendLost, Move and Drop of
// one partition must not run at the same time as each other.
//
// Lock order: work, then one of mu, building, partition.mu, files.mu, chunks.mu; the last also under partition.mu.
type Set struct {
	opt   Options
	files files
	free  chunks
	bufs  sync.Pool // *[readBytes]byte

	// runs are those of the set by number; nil: the number is free. An extent's number is looked up under its partition's lock:
	// a number becomes free when no partition has it any more.
	runs  atomic.Pointer[[]*run]
	tails atomic.Int64 // entries in tails
	moved atomic.Int64 // entries in partition.moved
	// planned: since extents came or went a plan was made, and there was nothing to merge.
	planned atomic.Bool

	// work is held while runs are made, and while a snapshot is taken: one of these at a time. It guards what follows.
	work    sync.Mutex
	covered uint64 // all entries of records below it are in runs, or not kept
	order   []*run // by range
	merging *merging
	counts  struct{ flushes, merges, flushedBytes, mergedBytes atomic.Int64 } // not guarded

	// building are runs that Rebuilds write, which Sweep leaves alone.
	building struct {
		sync.Mutex
		runs map[RunID]int
	}

	mu struct {
		sync.RWMutex
		parts map[Key]*partition
		list  []*partition // those of parts, and some that were dropped; only grows, or is replaced
		dead  int          // dropped ones in list
	}
}

const readBytes = 4096

// partition is the index of one. 0 <= first <= end, 0 <= flushed <= end = flushed + tail.n.
type partition struct {
	mu sync.RWMutex // guards what follows
	// flushed is where the tail begins. Runs have all of [first, flushed).
	flushed Index
	// low is the lowest position that a kept entry points to; positionNone: no entry; positionUnknown: to be found.
	low  uint64
	tail tail // an append needs nothing of what comes behind it, and finds it together in few cache lines
	// first is the first index kept. It may be beyond flushed.
	first   Index
	extents []extent
	// moved override entries of runs and tail; Flush writes them. nil: none.
	moved *pieces
	// last is the Stored of the entry before the tail; 0 without one.
	last int64
	// changes counts what can change low but appends.
	changes uint32
	dropped bool

	seed Seed // not guarded: they never change
	key  Key
}

const (
	positionNone    = math.MaxUint64
	positionUnknown = 0 // no message is there: the journal begins with a record of its own
)

func (p *partition) end() Index { return p.flushed + Index(p.tail.n) }

// Open returns an empty set: Restore and Append fill it. No file is touched.
func Open(opt Options) *Set {
	s := &Set{opt: opt.withDefaults()}
	s.files = files{fs: s.opt.FS, dir: s.opt.Dir, max: s.opt.FilesOpenMax}
	s.files.init()
	s.free.max = int(s.opt.TailBytesMax / (chunkEntries * EntryBytes))
	s.bufs.New = func() any { return new([readBytes]byte) }
	s.runs.Store(new([]*run))
	s.building.runs = map[RunID]int{}
	s.mu.parts = map[Key]*partition{}
	return s
}

// Close closes the files. Nothing is written.
func (s *Set) Close() error {
	s.work.Lock()
	defer s.work.Unlock()
	s.abortMerge()
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
		p = &partition{key: k, seed: k.Seed(), low: positionNone}
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

// sorted returns the partitions by key.
func (s *Set) sorted() []*partition {
	list := slices.Clone(s.all())
	slices.SortFunc(list, func(a, b *partition) int { return compareKeys(a.key, b.key) })
	return list
}

// Append adds the entries of one batch, whose first message has index first, and returns the partition's new end. A batch
// that does not begin at the end is a GapError.
func (s *Set) Append(k Key, first Index, b *Batch) (Index, error) {
	return s.AppendTo(s.Ref(k), first, b)
}

// Ref is a partition that was found once, so that appends to it need no look-up. It is worth nothing after a Drop of the partition,
// or a Reset.
type Ref struct{ p *partition }

// Ref finds a partition.
func (s *Set) Ref(k Key) Ref { return Ref{s.make(k)} }

// AppendTo is Append.
func (s *Set) AppendTo(r Ref, first Index, b *Batch) (Index, error) {
	if b.Count == 0 || (b.Tags != nil && len(b.Tags) != int(b.Count)) {
		panic(fmt.Sprintf("index: append of %d messages with %d tags", b.Count, len(b.Tags)))
	}
	p := r.p
	p.mu.Lock()
	defer p.mu.Unlock()
	end := p.end()
	if first != end {
		return end, &GapError{Key: p.key, End: end, First: first, Position: b.Position}
	}
	if p.low == positionNone {
		p.low = b.Position
	}
	// A clock that was set back must not take the order from under Seek.
	e := Entry{Position: b.Position, Stored: max(p.lastStored(), b.Stored), Size: max(1, b.Size), Count: b.Count}
	for i := range int(b.Count) {
		e.Slot = uint16(i)
		if b.Tags != nil {
			e.TagHash = b.Tags[i]
		}
		p.tail.push(&e, &s.free)
	}
	s.tails.Add(int64(b.Count))
	return end + Index(b.Count), nil
}

func (p *partition) lastStored() int64 {
	if e := p.tail.last(); e != nil {
		return e.Stored
	}
	return p.last
}

// AppendLost appends entries of lost messages up to index to, because a record at the given position shows that they were
// there. They take memory until a Flush as others do, so whoever appends very many does so in parts. An index to that is not
// above the end changes nothing.
func (s *Set) AppendLost(k Key, to Index, position uint64) {
	p := s.make(k)
	p.mu.Lock()
	defer p.mu.Unlock()
	if last := p.tail.last(); last != nil { // positions never fall in a tail
		position = max(position, last.Position)
	}
	e := Entry{Position: position, Stored: p.lastStored(), Count: 1}
	for p.end() < to {
		p.tail.push(&e, &s.free)
		s.tails.Add(1)
	}
}

// Move replaces the entries of a batch that was written again: b says where it is now, which is beyond all positions given
// before, and else what the Append of it said. Only entries that are kept are replaced.
func (s *Set) Move(k Key, first Index, b *Batch) {
	p := s.find(k)
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	from, to := max(first, p.first), min(first+Index(b.Count), p.end())
	if from >= to {
		return
	}
	entries := make([]Entry, 0, to-from)
	for i := from; i < to; i++ {
		e := Entry{Position: b.Position, Stored: b.Stored, Size: max(1, b.Size), Slot: uint16(i - first), Count: b.Count}
		if b.Tags != nil {
			e.TagHash = b.Tags[i-first]
		}
		entries = append(entries, e)
	}
	if p.moved == nil {
		p.moved = &pieces{}
	}
	n := p.moved.n
	p.moved.put(from, entries)
	s.moved.Add(int64(p.moved.n - n))
	p.changedLocked()
}

// changedLocked says that what low says may not be so any more.
func (p *partition) changedLocked() {
	p.changes++
	if p.low = positionUnknown; p.first == p.end() {
		p.low = positionNone
	}
}

// Bounds returns the first index kept and the end. A partition that never had a message has 0, 0.
func (s *Set) Bounds(k Key) (first, end Index) {
	p := s.find(k)
	if p == nil {
		return 0, 0
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.first, p.end()
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
	return s.rangeOf(p, from, to, dst, true)
}

// rangeOf is Range; without moved, entries are as they were before Moves that were not flushed.
func (s *Set) rangeOf(p *partition, from, to Index, dst []Entry, moved bool) ([]Entry, error) {
	for from < to {
		p.mu.RLock()
		first, end := p.first, p.end()
		switch {
		case from < first:
			p.mu.RUnlock()
			return dst, fmt.Errorf("%w: partition %v begins at %d, %d was asked for", ErrTrimmed, p.key, first, from)
		case to > end:
			p.mu.RUnlock()
			return dst, fmt.Errorf("%w: partition %v ends at %d, [%d, %d) was asked for", ErrBeyond, p.key, end, from, to)
		}
		n := len(dst)
		if from >= p.flushed {
			dst = p.tail.copyTo(int(from-p.flushed), int(to-p.flushed), dst)
			if moved {
				overlay(dst[n:], from, p.moved.overlap(from, to))
			}
			p.mu.RUnlock()
			return dst, nil
		}
		if moved && p.moved != nil {
			if over := p.moved.overlap(from, min(to, p.flushed)); len(over) > 0 && over[0].first == from {
				p.mu.RUnlock()
				dst = append(dst, over[0].entries...)
				from += Index(len(over[0].entries))
				continue
			}
		}
		e, r, err := s.extentOf(p, from)
		if err != nil {
			p.mu.RUnlock()
			return dst, err
		}
		upTo := min(to, e.end())
		var over []piece
		if moved {
			over = p.moved.overlap(from, upTo)
		}
		p.mu.RUnlock()
		if dst, err = s.readRun(r, p, e.at+uint32(from-e.first), from, upTo, dst); err != nil && !r.gone.Load() {
			return dst, err
		}
		overlay(dst[n:], from, over)
		from += Index(len(dst) - n) // not all when the run went away meanwhile: another has the rest
	}
	return dst, nil
}

// overlay puts the entries of over in the place of those in dst, whose first has index from.
func overlay(dst []Entry, from Index, over []piece) {
	for _, x := range over {
		if x.first-from < Index(len(dst)) {
			copy(dst[x.first-from:], x.entries)
		}
	}
}

// extentOf finds the extent that has index i, and its run. p.mu is held.
func (s *Set) extentOf(p *partition, i Index) (extent, *run, error) {
	n := findExtent(p.extents, i)
	if n == len(p.extents) || p.extents[n].first > i {
		return extent{}, nil, fmt.Errorf("index: no run holds index %d of partition %v", i, p.key)
	}
	e := p.extents[n]
	return e, (*s.runs.Load())[e.run], nil
}

// readRun appends the entries [from, to) of p, the first of which is entry at of the run.
func (s *Set) readRun(r *run, p *partition, at uint32, from, to Index, dst []Entry) ([]Entry, error) {
	damage := func(reason string, err error) error {
		return &DamageError{Run: r.RunID, File: s.files.path(r.name()), Key: p.key, Index: from, Reason: reason, Err: err}
	}
	f, err := s.files.acquire(r)
	if err != nil {
		var d *DamageError
		if errors.As(err, &d) {
			d.Key, d.Index = p.key, from
		}
		return dst, err
	}
	defer s.files.release(f)
	buf := s.bufs.Get().(*[readBytes]byte)
	defer s.bufs.Put(buf)
	for from < to {
		b := buf[:min(int(to-from), readBytes/EntryBytes)*EntryBytes]
		n, err := f.ReadAt(b, headerBytes+int64(at)*EntryBytes)
		if err != nil && !errors.Is(err, io.EOF) {
			return dst, damage("cannot be read", err)
		}
		for ; len(b) > 0; b, n, from, at = b[EntryBytes:], n-EntryBytes, from+1, at+1 {
			e, wrong := Entry{}, "file is short"
			if n >= EntryBytes {
				e, wrong = DecodeEntry(p.seed, from, b)
			}
			if wrong != "" {
				return dst, damage(wrong, nil)
			}
			dst = append(dst, e)
		}
	}
	return dst, nil
}

// search returns the first index in [from, to), all of it in one extent, of whose entry is says so, or to. The entries must be in
// the order of it.
func (s *Set) search(p *partition, r *run, e *extent, from, to Index, is func(*Entry) bool) (Index, error) {
	var one [1]Entry
	var err error
	n := sort.Search(int(to-from), func(i int) bool {
		if err != nil {
			return true
		}
		at := from + Index(i)
		var got []Entry
		if got, err = s.readRun(r, p, e.at+uint32(at-e.first), at, at+1, one[:0]); err != nil {
			return true
		}
		return is(&got[0])
	})
	return from + Index(n), err
}

// Seek returns the first index kept whose message was stored at or after t, or the end.
func (s *Set) Seek(k Key, t int64) (Index, error) {
	return s.seek(k, func(e *extent, _ *run) bool { return e.last >= t }, func(e *Entry) bool { return e.Stored >= t })
}

// SeekPosition returns the first index kept whose entry points to a position or beyond it, or the end. Entries of lost messages point
// nowhere.
func (s *Set) SeekPosition(k Key, position uint64) (Index, error) {
	is := func(e *Entry) bool { return e.Position >= position }
	i, err := s.seek(k, func(e *extent, r *run) bool { return !e.lost() && r.To > position }, is)
	p := s.find(k)
	if err != nil || p == nil {
		return i, err
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	for i >= p.flushed && i < p.end() && p.tail.at(int(i-p.flushed)).Size == 0 {
		i++
	}
	// What was moved lies higher than it did, so it can only be found earlier.
	for _, x := range p.moved.overlap(p.first, i) {
		for n := range x.entries {
			if is(&x.entries[n]) {
				return x.first + Index(n), nil
			}
		}
	}
	return i, nil
}

// seek returns the first index kept of whose entry is says so; may says of which extents there can be one. Within an
// extent and within the tail the entries are in the order of it. Moves that were not flushed do not count.
func (s *Set) seek(k Key, may func(*extent, *run) bool, is func(*Entry) bool) (Index, error) {
	p := s.find(k)
	if p == nil {
		return 0, nil
	}
	for from := Index(0); ; {
		p.mu.RLock()
		from = max(from, p.first)
		var e extent
		var r *run
		if from < p.flushed {
			runs := *s.runs.Load()
			for n := findExtent(p.extents, from); n < len(p.extents); n++ {
				if x := &p.extents[n]; may(x, runs[x.run]) {
					e, r = *x, runs[x.run]
					break
				}
			}
		}
		if r == nil {
			skip := int(max(from, p.flushed) - p.flushed)
			n := sort.Search(p.tail.n-skip, func(i int) bool { return is(p.tail.at(skip + i)) })
			i := p.flushed + Index(skip+n)
			p.mu.RUnlock()
			return i, nil
		}
		p.mu.RUnlock()
		from = max(from, e.first)
		i, err := s.search(p, r, &e, from, e.end(), is)
		switch {
		case err != nil && r.gone.Load(): // another has it now
		case err != nil:
			return 0, err
		case i < e.end():
			return i, nil
		default:
			from = i
		}
	}
}

// Bytes returns about how many bytes of batches the partition keeps.
func (s *Set) Bytes(k Key) int64 {
	p := s.find(k)
	if p == nil {
		return 0
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	var sum int64
	for i := findExtent(p.extents, p.first); i < len(p.extents); i++ {
		e := p.extents[i].clip(p.first, math.MaxUint64)
		sum += int64(e.bytes) * bytesUnit
	}
	for i := max(p.first, p.flushed); i < p.end(); i++ {
		sum += p.tail.at(int(i - p.flushed)).share()
	}
	return sum
}

// share is what of the batch's bytes is the message's.
func (e *Entry) share() int64 { return int64(e.Size) / int64(e.Count) }

// SeekBytes returns the first index from which on the partition keeps at most about so many bytes of batches: after SetFirst to it
// Bytes is not above them.
func (s *Set) SeekBytes(k Key, keep int64) Index {
	p := s.find(k)
	if p == nil {
		return 0
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	i := p.end()
	for i > max(p.first, p.flushed) {
		n := p.tail.at(int(i - 1 - p.flushed)).share()
		if n > keep {
			return i
		}
		keep -= n
		i--
	}
	for n := len(p.extents) - 1; n >= 0 && p.extents[n].end() > p.first; n-- {
		e := p.extents[n].clip(p.first, math.MaxUint64)
		if all := int64(e.bytes) * bytesUnit; all > keep {
			// Rounded so that its part is not above keep.
			return e.end() - Index(keep/bytesUnit*int64(e.count)/int64(e.bytes))
		} else {
			keep -= all
		}
	}
	return p.first
}

// SetFirst drops what is below first. The end never moves: first is cut to it.
func (s *Set) SetFirst(k Key, first Index) {
	p := s.find(k)
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if first = min(first, p.end()); first <= p.first {
		return
	}
	p.first = first
	p.changedLocked()
	if n := findExtent(p.extents, first); n > 0 {
		p.extents = append([]extent(nil), p.extents[n:]...)
		s.planned.Store(false)
	}
}

// Drop forgets a partition, whose key is never used again.
func (s *Set) Drop(k Key) {
	s.mu.Lock()
	p := s.mu.parts[k]
	if p != nil {
		delete(s.mu.parts, k)
		if s.mu.dead++; s.mu.dead > len(s.mu.list)/2 {
			list := make([]*partition, 0, len(s.mu.parts))
			for _, q := range s.mu.list {
				if s.mu.parts[q.key] == q {
					list = append(list, q)
				}
			}
			s.mu.list, s.mu.dead = list, 0
		}
	}
	s.mu.Unlock()
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropped = true
	s.tails.Add(-int64(p.tail.n))
	p.tail.cut(0, &s.free)
	p.first, p.flushed, p.extents, p.low = 0, 0, nil, positionNone
	s.setMoved(p, nil)
	p.changes++
	s.planned.Store(false)
}

// setMoved replaces p.moved. p.mu is held.
func (s *Set) setMoved(p *partition, m *pieces) {
	if p.moved != nil {
		s.moved.Add(-int64(p.moved.n))
	}
	if p.moved = m; m != nil {
		s.moved.Add(int64(m.n))
	}
}

// Runs returns the runs of the set, in the order of the journal.
func (s *Set) Runs() []RunID {
	s.work.Lock()
	defer s.work.Unlock()
	return s.runsLocked()
}

func (s *Set) runsLocked() []RunID {
	list := make([]RunID, 0, len(s.order))
	for _, r := range s.order {
		list = append(list, r.RunID)
	}
	return list
}

// TailBytes is what the tails take, and entries that were moved since the last Flush.
func (s *Set) TailBytes() int64 { return (s.tails.Load() + s.moved.Load()) * EntryBytes }

// Metrics of a Set.
type Metrics struct {
	Partitions   int
	Runs         int
	FilesOpen    int
	Extents      int64
	TailEntries  int64
	RunBytes     int64 // of all runs
	Flushes      int64 // runs that were written since the start
	Merges       int64 // and those that took the place of others
	FlushedBytes int64
	MergedBytes  int64
}

// Metrics is what the set has now.
func (s *Set) Metrics() Metrics {
	m := Metrics{
		FilesOpen: s.files.len(), TailEntries: s.tails.Load(), Flushes: s.counts.flushes.Load(), Merges: s.counts.merges.Load(),
		FlushedBytes: s.counts.flushedBytes.Load(), MergedBytes: s.counts.mergedBytes.Load(),
	}
	for _, r := range *s.runs.Load() {
		if r != nil {
			m.Runs++
			m.RunBytes += r.size
		}
	}
	for _, p := range s.all() {
		p.mu.RLock()
		m.Extents += int64(len(p.extents))
		if !p.dropped {
			m.Partitions++
		}
		p.mu.RUnlock()
	}
	return m
}
