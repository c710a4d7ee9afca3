// Package dedupe finds batches that a producer sends again. Each producer counts its messages for each partition, and repeats a batch
// with the sequence that it had; so what a store has of (producer, partition, sequence) it need not store again.
//
// A window keeps the 64 highest batches that one producer has stored in one partition: sequence, number of messages, and where and when
// they were stored. Sequences may have holes, and batches may come in any order. A batch is
//
//   - a repeat, when the window has one of the same sequence and number: it is answered as that was;
//   - a repeat of one that is under way: it gets the same outcome;
//   - in conflict, when it has some of its sequences in common with another;
//   - stored without being known, when its sequences are below what the window has forgotten: at least once;
//   - new, otherwise.
//
// Windows are derived from committed records alone, and counted in records: of more than WindowsMax the one goes that got no batch for
// longest. So they are the same at every replica, and after every start. A producer id of zeroes is nobody's: such batches are not looked at.
//
// The table (Table) is a store.Table, and knows besides what is under way: Begin is called in the order in which batches get their places
// in the log, and Apply, or Fail, in the same.
package dedupe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/planted"
	"github.com/jmqio/jmq/wire"
)

const (
	// WindowsMax is how many windows are kept.
	WindowsMax = 8192
	// BatchesMax is how many batches a window has.
	BatchesMax = 64
	// disorderMax is how many batches of one window may be under way out of the order of their sequences.
	disorderMax = 1024

	snapshotVersion = 1
)

// Key is a producer in a partition. Producer must not be zeroes.
type Key struct {
	Producer    [16]byte
	Topic       uint64
	Incarnation uint32
	Partition   uint16
}

// KeyOf returns the key of a batch that has its broker fields; false: its producer wants no look-up.
func KeyOf(b wire.Batch) (Key, bool) {
	k := Key{b.Producer(), b.Topic(), b.Incarnation(), b.Partition()}
	return k, k.Producer != [16]byte{}
}

// Done is told what became of a batch, as the done of an append.
type Done func(first index.Index, stored int64, err error)

// Verdict is what Begin says of a batch.
type Verdict uint8

const (
	Fresh    Verdict = iota // it is to be stored: Apply, Fail or Cancel follows
	Repeat                  // it was stored
	Waits                   // it is under way: its done is called with the outcome
	Conflict                // it cannot be
	Busy                    // too many of its producer are under way in disorder
)

// batch is what is kept of one that was stored.
type batch struct {
	sequence uint64
	first    index.Index
	stored   int64
	count    uint16
}

func (b *batch) end() uint64 { return b.sequence + uint64(b.count) }

// flight is a batch that is under way.
type flight struct {
	sequence uint64
	count    uint16
	repeats  []Done
}

// Window is what is known of a producer in a partition. It is in the table as long as it is in the list or something is under way.
type Window struct {
	key          Key
	newer, older *Window // in the list
	listed       bool
	// floor: what lay below it was forgotten.
	floor uint64
	// top: no batch has a sequence at or above it, stored or under way. There may be none below it either.
	top uint64

	// The batches by sequence are ring[(head+i) % len(ring)] for i in [0, n). No two have a sequence in common.
	ring    []batch
	head, n int

	flights []flight // from flown on, in the order of the log
	flown   int
	order   uint64 // end of the last flight's sequences
	mixed   bool   // the flights are not in the order of their sequences
}

func (w *Window) at(i int) *batch { return &w.ring[(w.head+i)&(len(w.ring)-1)] }

// Table has the windows. All methods are safe for concurrent use; Begin and Cancel are called in the order of places in the log, Apply and
// Fail too.
type Table struct {
	max  int
	some atomic.Bool // landed has something

	mu struct {
		sync.Mutex
		windows        map[Key]*Window
		newest, oldest *Window
		listed         int
		landed         []Done
		counts         Counts
	}
}

// Counts is what the table found since it was made.
type Counts struct {
	Windows   int
	Repeats   int64 // answered without being stored
	Waited    int64 // of these, until the first was committed
	Conflicts int64
	Forgotten int64 // stored though they may be repeats: older than their window
}

// New returns an empty table.
func New() *Table {
	t := &Table{max: WindowsMax}
	t.mu.windows = map[Key]*Window{}
	return t
}

// Counts returns what was found.
func (t *Table) Counts() Counts {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.mu.counts
	c.Windows = t.mu.listed
	return c
}

// Begin says what is to be done with a batch of count messages that is about to get its place in the log. Of a Fresh one it returns the
// window, for Cancel or Fail, of a Repeat where and when it was stored. done is kept only where it Waits.
func (t *Table) Begin(k Key, sequence uint64, count int, done Done) (w *Window, v Verdict, first index.Index, stored int64) {
	end := sequence + uint64(count)
	t.mu.Lock()
	defer t.mu.Unlock()
	if end < sequence {
		t.mu.counts.Conflicts++
		return nil, Conflict, 0, 0
	}
	w = t.mu.windows[k]
	if w == nil {
		w = t.makeLocked(k)
	}
	if sequence < w.top {
		if b := w.overlap(sequence, end); b != nil {
			if b.sequence == sequence && int(b.count) == count {
				t.mu.counts.Repeats++
				return nil, Repeat, b.first, b.stored
			}
			t.mu.counts.Conflicts++
			return nil, Conflict, 0, 0
		}
		f, ok := w.under(sequence, end)
		switch {
		case !ok:
			return nil, Busy, 0, 0
		case f == nil:
		case f.sequence == sequence && int(f.count) == count:
			t.mu.counts.Repeats++
			if planted.Bug("dedupe: repeat answered before the first is committed") {
				return nil, Repeat, 0, 0
			}
			t.mu.counts.Waited++
			f.repeats = append(f.repeats, done)
			return nil, Waits, 0, 0
		default:
			t.mu.counts.Conflicts++
			return nil, Conflict, 0, 0
		}
		if sequence < w.floor {
			t.mu.counts.Forgotten++
		}
	}
	w.top = max(w.top, end)
	w.takeOff(flight{sequence: sequence, count: uint16(count)})
	return w, Fresh, 0, 0
}

// makeLocked puts an empty window into the table.
func (t *Table) makeLocked(k Key) *Window {
	w := &Window{key: k}
	t.mu.windows[k] = w
	return w
}

// Cancel takes back the last Fresh of the window: it got no place in the log.
func (t *Table) Cancel(w *Window) {
	t.mu.Lock()
	defer t.mu.Unlock()
	last := len(w.flights) - 1
	w.flights[last] = flight{} // nobody can have come to wait for it: Begin and Cancel are in one order
	w.flights = w.flights[:last]
	t.emptyLocked(w)
}

// Fail takes the oldest batch that is under way out of the window: it was not stored, or nobody knows. It returns who else waits for the outcome.
func (t *Table) Fail(w *Window) []Done {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w.flown == len(w.flights) {
		return nil
	}
	repeats := w.land()
	t.emptyLocked(w)
	return repeats
}

// Landed returns the dones of the repeats of the batch that was applied last, once.
func (t *Table) Landed() []Done {
	if !t.some.Load() {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	list := t.mu.landed
	t.mu.landed = nil
	t.some.Store(false)
	return list
}

// takeOff adds a flight.
func (w *Window) takeOff(f flight) {
	if w.flown == len(w.flights) {
		w.flights, w.flown, w.mixed, w.order = w.flights[:0], 0, false, 0
	} else if w.flown >= 64 && w.flown > len(w.flights)/2 {
		n := copy(w.flights, w.flights[w.flown:])
		clear(w.flights[n:])
		w.flights, w.flown = w.flights[:n], 0
	}
	w.mixed = w.mixed || f.sequence < w.order
	w.order = f.sequence + uint64(f.count)
	w.flights = append(w.flights, f)
}

// land removes the first flight, and returns who waits for it too.
func (w *Window) land() []Done {
	f := &w.flights[w.flown]
	repeats := f.repeats
	f.repeats = nil
	w.flown++
	return repeats
}

// emptyLocked lets go of a window that nothing needs any more.
func (t *Table) emptyLocked(w *Window) {
	if !w.listed && w.flown == len(w.flights) && t.mu.windows[w.key] == w {
		delete(t.mu.windows, w.key)
	}
}

// overlap returns a stored batch that has one of the sequences.
func (w *Window) overlap(from, to uint64) *batch {
	if i := w.search(from); i < w.n && w.at(i).sequence < to {
		return w.at(i)
	}
	return nil
}

// search returns the first batch that ends after a sequence.
func (w *Window) search(sequence uint64) int {
	lo, hi := 0, w.n
	for lo < hi {
		if m := (lo + hi) / 2; w.at(m).end() <= sequence {
			lo = m + 1
		} else {
			hi = m
		}
	}
	return lo
}

// under returns a batch under way that has one of the sequences; false: there are too many to look.
func (w *Window) under(from, to uint64) (*flight, bool) {
	list := w.flights[w.flown:]
	if !w.mixed {
		lo, hi := 0, len(list)
		for lo < hi {
			if m := (lo + hi) / 2; list[m].sequence+uint64(list[m].count) <= from {
				lo = m + 1
			} else {
				hi = m
			}
		}
		if lo < len(list) && list[lo].sequence < to {
			return &list[lo], true
		}
		return nil, true
	}
	if len(list) > disorderMax {
		return nil, false
	}
	for i := range list {
		if f := &list[i]; f.sequence < to && from < f.sequence+uint64(f.count) {
			return f, true
		}
	}
	return nil, true
}

// Name is the table's in checkpoints.
func (t *Table) Name() string { return "dedupe" }

// Apply takes a batch that is committed.
func (t *Table) Apply(r journal.Record) error {
	if r.Kind != journal.KindMessages {
		return nil
	}
	if len(r.Payload) < wire.BatchHeaderBytes {
		return fmt.Errorf("dedupe: header of a batch of %d bytes", len(r.Payload))
	}
	header := wire.Batch(r.Payload)
	k, ok := KeyOf(header)
	if !ok {
		return nil
	}
	b := batch{header.Sequence(), index.Index(header.FirstIndex()), r.Stored, uint16(header.Count())}
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.mu.windows[k]
	if w == nil {
		w = t.makeLocked(k)
	}
	if w.flown == len(w.flights) && planted.Bug("dedupe: only what was appended here") {
		return nil
	}
	t.touchLocked(w)
	w.insert(b)
	if w.flown < len(w.flights) {
		if repeats := w.land(); len(repeats) > 0 {
			t.mu.landed = append(t.mu.landed, repeats...)
			t.some.Store(true)
		}
	}
	return nil
}

// touchLocked makes a window the newest of the list, and lets the oldest go if it has become one too many.
func (t *Table) touchLocked(w *Window) {
	m := &t.mu
	if m.newest == w {
		return
	}
	if w.listed {
		t.unlistLocked(w)
	}
	w.listed, w.older, w.newer = true, m.newest, nil
	if m.newest != nil {
		m.newest.newer = w
	} else {
		m.oldest = w
	}
	m.newest = w
	if m.listed++; m.listed > t.max {
		o := m.oldest
		t.unlistLocked(o)
		o.floor, o.head, o.n, o.ring = 0, 0, 0, nil
		t.emptyLocked(o)
	}
}

func (t *Table) unlistLocked(w *Window) {
	m := &t.mu
	if w.newer != nil {
		w.newer.older = w.older
	} else {
		m.newest = w.older
	}
	if w.older != nil {
		w.older.newer = w.newer
	} else {
		m.oldest = w.newer
	}
	w.newer, w.older, w.listed = nil, nil, false
	m.listed--
}

// insert keeps a batch, if it is one of the highest. Where it has sequences that are there already, as after a loss, those stay.
func (w *Window) insert(b batch) {
	if b.end() < b.sequence || b.sequence < w.floor {
		return
	}
	w.top = max(w.top, b.end())
	i := w.n
	if w.n > 0 && b.sequence < w.at(w.n-1).end() {
		if i = w.search(b.sequence); w.at(i).sequence < b.end() {
			return
		}
	}
	switch {
	case w.n < len(w.ring):
	case w.n < BatchesMax:
		ring := make([]batch, max(4, 2*len(w.ring)))
		for j := range w.n {
			ring[j] = *w.at(j)
		}
		w.ring, w.head = ring, 0
	case i == 0:
		w.floor = max(w.floor, b.end())
		return
	default:
		w.floor = max(w.floor, w.at(0).end())
		w.head = (w.head + 1) & (len(w.ring) - 1)
		w.n--
		i--
	}
	w.n++
	for j := w.n - 1; j > i; j-- {
		*w.at(j) = *w.at(j - 1)
	}
	*w.at(i) = b
}

// Snapshot appends the windows, the oldest first.
//
//	version u8 | windows u32
//	of each: producer [16] | topic u64 | incarnation u32 | partition u16 | floor uvarint | batches u8
//	  of each, by sequence: uvarint sequence less the end of the one before (of the first: less floor) | uvarint count |
//	  varint first less the end of the one before | varint stored less that of the one before
func (t *Table) Snapshot(b []byte) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	b = append(b, snapshotVersion)
	b = binary.LittleEndian.AppendUint32(b, uint32(t.mu.listed))
	for w := t.mu.oldest; w != nil; w = w.newer {
		b = append(b, w.key.Producer[:]...)
		b = binary.LittleEndian.AppendUint64(b, w.key.Topic)
		b = binary.LittleEndian.AppendUint32(b, w.key.Incarnation)
		b = binary.LittleEndian.AppendUint16(b, w.key.Partition)
		b = binary.AppendUvarint(b, w.floor)
		b = append(b, byte(w.n))
		sequence, first, stored := w.floor, index.Index(0), int64(0)
		for i := range w.n {
			x := w.at(i)
			b = binary.AppendUvarint(b, x.sequence-sequence)
			b = binary.AppendUvarint(b, uint64(x.count))
			b = binary.AppendVarint(b, int64(x.first-first))
			b = binary.AppendVarint(b, x.stored-stored)
			sequence, first, stored = x.end(), x.first+index.Index(x.count), x.stored
		}
	}
	return b
}

// errSnapshot: the bytes are not a snapshot.
var errSnapshot = errors.New("dedupe: not a snapshot")

// Restore puts the table into the state that Snapshot wrote.
func (t *Table) Restore(b []byte) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := &t.mu
	m.windows, m.newest, m.oldest, m.listed, m.landed = map[Key]*Window{}, nil, nil, 0, nil
	t.some.Store(false)
	if len(b) == 0 {
		return nil
	}
	if b[0] != snapshotVersion {
		return fmt.Errorf("dedupe: snapshot has version %d, this program reads %d", b[0], snapshotVersion)
	}
	if len(b) < 5 {
		return errSnapshot
	}
	n := binary.LittleEndian.Uint32(b[1:])
	d := decoder{b: b[5:]}
	for range n {
		w := d.window()
		if d.bad || m.windows[w.key] != nil || w.key.Producer == [16]byte{} {
			return errSnapshot
		}
		m.windows[w.key] = w
		t.touchLocked(w)
	}
	if len(d.b) != 0 {
		return errSnapshot
	}
	return nil
}

type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) take(n int) []byte {
	if d.bad || len(d.b) < n {
		d.bad = true
		return make([]byte, n)
	}
	p := d.b[:n]
	d.b = d.b[n:]
	return p
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.bad = true
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) varint() int64 {
	v := d.uvarint()
	return int64(v>>1) ^ -int64(v&1)
}

func (d *decoder) window() *Window {
	p := d.take(30)
	w := &Window{key: Key{[16]byte(p), binary.LittleEndian.Uint64(p[16:]), binary.LittleEndian.Uint32(p[24:]), binary.LittleEndian.Uint16(p[28:])}}
	w.floor = d.uvarint()
	n := int(d.take(1)[0])
	if n > BatchesMax {
		d.bad = true
	}
	x := batch{sequence: w.floor}
	for range n {
		sequence, count := d.uvarint(), d.uvarint()
		first, stored := d.varint(), d.varint()
		if d.bad || count == 0 || count > math.MaxUint16 || sequence > math.MaxUint64-x.end() || x.end()+sequence > math.MaxUint64-count {
			d.bad = true
			break
		}
		x = batch{x.end() + sequence, x.first + index.Index(x.count) + index.Index(first), x.stored + stored, uint16(count)}
		w.insert(x)
	}
	w.top = max(w.top, w.floor)
	return w
}
