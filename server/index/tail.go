package index

import (
	"sort"
	"sync"
)

// chunkEntries is how many entries of a tail lie together: 512 bytes, so that 40,000 partitions with one message each take
// 20 MB and no more.
const chunkEntries = 16

type chunk [chunkEntries]Entry

// tail is a row of entries in chunks. Entry i is at skip + i of the chunks' row.
type tail struct {
	open   *chunk // the last of chunks, so that push finds it at once; nil: there is none
	used   int    // entries of open
	n      int
	skip   int // entries of the first chunk that are not counted any more; less than a chunk
	chunks []*chunk
}

func (t *tail) at(i int) *Entry {
	i += t.skip
	return &t.chunks[i/chunkEntries][i%chunkEntries]
}

// last is the last entry; nil without one.
func (t *tail) last() *Entry {
	if t.n == 0 {
		return nil
	}
	return &t.open[t.used-1]
}

// push appends an entry; free gives chunks.
func (t *tail) push(e *Entry, free *chunks) {
	if t.open == nil || t.used == chunkEntries {
		t.open, t.used = free.take(), 0
		t.chunks = append(t.chunks, t.open)
	}
	t.open[t.used] = *e
	t.used++
	t.n++
}

// reopen is called when chunks or n were made less.
func (t *tail) reopen() {
	t.open, t.used = nil, 0
	if k := len(t.chunks); k > 0 {
		t.open, t.used = t.chunks[k-1], t.skip+t.n-(k-1)*chunkEntries
	}
}

// drop takes n entries off the begin.
func (t *tail) drop(n int, free *chunks) {
	defer t.reopen()
	t.skip += n
	t.n -= n
	whole := t.skip / chunkEntries
	if t.n == 0 {
		whole, t.skip = len(t.chunks), 0
	} else {
		t.skip -= whole * chunkEntries
	}
	free.put(t.chunks[:whole])
	rest := t.chunks[whole:]
	if cap(t.chunks) > 64 && whole < cap(t.chunks)/4 { // it was busy once
		t.chunks = append([]*chunk(nil), rest...)
		return
	}
	kept := copy(t.chunks, rest)
	clear(t.chunks[kept:])
	t.chunks = t.chunks[:kept]
}

// cut takes all but n entries off the end.
func (t *tail) cut(n int, free *chunks) {
	t.n = n
	used := (t.skip + n + chunkEntries - 1) / chunkEntries
	if n == 0 {
		used, t.skip = 0, 0
	}
	free.put(t.chunks[used:])
	clear(t.chunks[used:])
	t.chunks = t.chunks[:used]
	t.reopen()
}

// copyTo appends entries [from, to) to dst.
func (t *tail) copyTo(from, to int, dst []Entry) []Entry {
	for from < to {
		i := from + t.skip
		c := t.chunks[i/chunkEntries][i%chunkEntries:]
		c = c[:min(len(c), to-from)]
		dst = append(dst, c...)
		from += len(c)
	}
	return dst
}

// below returns how many entries lie below a position. Positions never fall in a tail.
func (t *tail) below(position uint64) int {
	if t.n == 0 || t.last().Position < position {
		return t.n
	}
	return sort.Search(t.n, func(i int) bool { return t.at(i).Position >= position })
}

// chunks are free ones. Steady appends and flushes pass them round and make none.
type chunks struct {
	max int
	mu  struct {
		sync.Mutex
		free []*chunk
	}
}

func (c *chunks) take() *chunk {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.mu.free)
	if n == 0 {
		return new(chunk)
	}
	k := c.mu.free[n-1]
	c.mu.free[n-1] = nil
	c.mu.free = c.mu.free[:n-1]
	return k
}

func (c *chunks) put(list []*chunk) {
	if len(list) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.free = append(c.mu.free, list[:min(len(list), max(c.max-len(c.mu.free), 0))]...)
}
