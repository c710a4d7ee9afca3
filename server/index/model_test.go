package index

import (
	"errors"
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// record is one of the model's journal.
type record struct {
	position uint64
	kind     string // append, lost, move, drop, hole
	key      Key
	first    Index
	to       Index // of lost
	batch    Batch
}

// checkpoint is what a store keeps of a Snapshot.
type checkpoint struct {
	position uint64
	covered  uint64
	runs     []RunID
	states   []State
	firsts   map[Key]Index
}

// model is a map beside a set, and a journal that both are made from.
type model struct {
	t       *testing.T
	r       *rand.Rand
	fs      *vfs.MemFS
	s       *Set
	change  func(*Options)
	journal []record
	begin   uint64 // records below it are not there any more
	next    uint64
	parts   map[Key][]Entry
	first   map[Key]Index
	dropped map[Key]bool
	kept    []checkpoint // the newest last
	log     []string
}

func (m *model) note(format string, args ...any) { m.log = append(m.log, fmt.Sprintf(format, args...)) }

func (m *model) fail(format string, args ...any) {
	m.t.Helper()
	m.t.Fatalf("%s\n%s", fmt.Sprintf(format, args...), strings.Join(m.log, "\n"))
}

func (m *model) put(rec record) {
	rec.position = m.next
	rec.batch.Position = m.next
	m.next += 64
	m.journal = append(m.journal, rec)
	m.apply(&rec)
	m.applyModel(&rec)
}

// apply is what a store does with a record.
func (m *model) apply(rec *record) {
	switch rec.kind {
	case "append":
		if _, err := m.s.Append(rec.key, rec.first, &rec.batch); err != nil {
			m.fail("append: %v", err)
		}
	case "lost":
		m.s.AppendLost(rec.key, rec.to, rec.position)
	case "move":
		m.s.Move(rec.key, rec.first, &rec.batch)
	case "drop":
		m.s.Drop(rec.key)
	}
}

func (m *model) applyModel(rec *record) {
	all := m.parts[rec.key]
	switch rec.kind {
	case "append":
		last := int64(0)
		if len(all) > 0 {
			last = all[len(all)-1].Stored
		}
		for n := range rec.batch.Count {
			all = append(all, modelEntry(&rec.batch, n, max(last, rec.batch.Stored)))
		}
		m.parts[rec.key] = all
	case "lost":
		e := Entry{Position: rec.position, Count: 1}
		if len(all) > 0 {
			e.Stored = all[len(all)-1].Stored
		}
		for Index(len(all)) < rec.to {
			all = append(all, e)
		}
		m.parts[rec.key] = all
	case "move":
		for n := range rec.batch.Count {
			i := rec.first + Index(n)
			if i >= m.first[rec.key] && i < Index(len(all)) {
				all[i] = modelEntry(&rec.batch, n, all[i].Stored)
			}
		}
	case "drop":
		delete(m.parts, rec.key)
		delete(m.first, rec.key)
		m.dropped[rec.key] = true
	}
}

func modelEntry(b *Batch, n uint16, stored int64) Entry {
	e := Entry{Position: b.Position, Stored: stored, Size: b.Size, Slot: n, Count: b.Count}
	if b.Tags != nil {
		e.TagHash = b.Tags[n]
	}
	return e
}

// checkpoint does what a store does: flush, snapshot, and remove files that neither of two checkpoints names.
func (m *model) checkpoint() {
	if _, err := m.s.Flush(m.next); err != nil {
		m.fail("flush: %v", err)
	}
	c := checkpoint{position: m.next, firsts: map[Key]Index{}}
	err := m.s.Snapshot(m.next, func(covered uint64, list []RunID) error {
		c.covered, c.runs = covered, list
		return nil
	}, func(st *State) error {
		x := *st
		x.Tail = slices.Clone(st.Tail)
		c.states = append(c.states, x)
		c.firsts[st.Key] = st.First
		return nil
	})
	if err != nil {
		m.fail("snapshot: %v", err)
	}
	if m.kept = append(m.kept, c); len(m.kept) > 2 {
		m.kept = m.kept[1:]
	}
	var keep []RunID
	for _, c := range m.kept {
		keep = append(keep, c.runs...)
	}
	if len(m.kept) == 2 {
		if err := m.s.Sweep(keep); err != nil {
			m.fail("sweep: %v", err)
		}
	}
}

// restart opens a new set from a checkpoint and what the journal has after it.
func (m *model) restart(c *checkpoint) {
	m.s.Close()
	m.s = open(m.t, m.fs, m.change)
	m.s.Reset(c.covered, c.runs)
	for i := range c.states {
		m.s.Restore(&c.states[i])
	}
	bad, err := m.s.Load()
	if err != nil {
		m.fail("load: %v", err)
	}
	for i := range m.journal {
		if rec := &m.journal[i]; rec.position >= c.position {
			m.apply(rec)
			if m.r.Intn(20) == 0 {
				if _, err := m.s.Flush(rec.position + 64); err != nil {
					m.fail("flush: %v", err)
				}
			}
		}
	}
	var ids []RunID
	for _, d := range bad {
		ids = append(ids, d.Run)
	}
	m.rebuild(ids)
	if _, holes := m.s.Check(m.begin); len(holes) > 0 {
		m.note("holes %v", holes)
		m.rebuild(m.s.Runs())
		if _, holes := m.s.Check(m.begin); len(holes) > 0 {
			m.fail("holes %v", holes)
		}
	}
	for k := range m.parts {
		// What SetFirst said after the checkpoint may be forgotten, but not what the journal does not have any more.
		m.s.SetFirst(k, m.first[k])
		got, _ := m.s.Bounds(k)
		raised := got
		for got > m.first[k] && m.parts[k][got-1].Size == 0 {
			got-- // lost ones need not be kept
		}
		if got > m.first[k] || got < min(c.firsts[k], m.first[k]) {
			m.fail("first of %v is %d, was %d, in the checkpoint %d", k, got, m.first[k], c.firsts[k])
		}
		m.first[k] = raised
	}
}

// rebuild makes runs again from the journal.
func (m *model) rebuild(ids []RunID) {
	if len(ids) == 0 {
		return
	}
	b := m.s.Rebuild(m.begin, ids...)
	defer b.Abort()
	for _, r := range b.Ranges() {
		for i := range m.journal {
			rec := &m.journal[i]
			if rec.position < r.From || rec.position >= r.To || rec.position < m.begin {
				continue
			}
			var err error
			switch rec.kind {
			case "append":
				err = b.Append(rec.key, rec.first, &rec.batch)
			case "move":
				err = b.Move(rec.key, rec.first, &rec.batch)
			case "lost":
				b.Hole()
			}
			if err != nil {
				m.fail("rebuild: %v", err)
			}
		}
	}
	if err := b.Finish(); err != nil {
		m.fail("rebuild: %v", err)
	}
}

// damage changes a byte of a run, cuts it or removes it, and returns which.
func (m *model) damage() (RunID, bool) {
	if len(m.s.order) == 0 {
		return RunID{}, false
	}
	id := m.s.order[m.r.Intn(len(m.s.order))].RunID
	name := m.fs.PathJoin("index", id.name())
	b := readAll(m.t, m.fs, name)
	switch m.r.Intn(4) {
	case 0:
		b = b[:m.r.Intn(len(b))]
	case 1:
		b = nil
	default:
		b[m.r.Intn(len(b))] ^= 1 << m.r.Intn(8)
	}
	writeAll(m.t, m.fs, name, b)
	return id, true
}

// trim takes away the journal below what anything needs.
func (m *model) trim() {
	if len(m.kept) < 2 {
		return
	}
	begin := m.kept[0].position
	if low, ok := m.s.Oldest(); ok {
		begin = min(begin, low)
	}
	m.begin = max(m.begin, begin)
}

func (m *model) check() {
	m.t.Helper()
	oldest, some := uint64(positionNone), false
	for k, all := range m.parts {
		f, end := m.s.Bounds(k)
		if f != m.first[k] || end != Index(len(all)) {
			m.fail("bounds of %v: [%d, %d), want [%d, %d)", k, f, end, m.first[k], len(all))
		}
		from := f + Index(m.r.Intn(int(end-f)+1))
		to := from + Index(m.r.Intn(int(end-from)+1))
		got, err := m.s.Range(k, from, to, nil)
		if m.repaired(err) {
			got, err = m.s.Range(k, from, to, nil)
		}
		if err != nil {
			m.fail("range %v [%d, %d): %v", k, from, to, err)
		}
		if !equalEntries(got, all[from:to]) {
			for i := range got {
				if !equalEntries(got[i:i+1], all[from+Index(i):from+Index(i)+1]) {
					m.fail("range %v [%d, %d): %d is %v, want %v", k, from, to, from+Index(i), got[i], all[from+Index(i)])
				}
			}
			m.fail("range %v [%d, %d): %d entries", k, from, to, len(got))
		}
		for i := f; i < end; i++ {
			if e := all[i]; e.Size != 0 {
				oldest, some = min(oldest, e.Position), true
			}
		}
	}
	if got, ok := m.s.Oldest(); ok != some || got != oldest {
		m.fail("oldest is %d, %v, want %d, %v", got, ok, oldest, some)
	}
	m.checkBelow()
	if n := m.s.files.len(); n > 2 {
		m.fail("%d files are open", n)
	}
}

// equalEntries passes over the stored times, which a moved entry may have from its record, and over where lost messages were.
func equalEntries(a, b []Entry) bool {
	return slices.EqualFunc(a, b, func(a, b Entry) bool {
		if a.Stored, b.Stored = 0, 0; a.Size == 0 {
			a.Position, b.Position = 0, 0
		}
		return a == b
	})
}

func (m *model) checkBelow() {
	m.t.Helper()
	position := uint64(m.r.Int63n(int64(m.next) + 64))
	got := map[Key][]bool{}
	m.s.Below(position, func(k Key, from, to Index, bytes int64) bool {
		if from >= to || bytes < 0 {
			m.fail("below %d: %v [%d, %d) with %d bytes", position, k, from, to, bytes)
		}
		if got[k] == nil {
			got[k] = make([]bool, len(m.parts[k]))
		}
		for i := from; i < to; i++ {
			if got[k][i] {
				m.fail("below %d: %v has %d twice", position, k, i)
			}
			got[k][i] = true
		}
		return true
	})
	for k, all := range m.parts {
		first := Index(len(all))
		for i := len(all) - 1; i >= int(m.first[k]); i-- {
			e := all[i]
			if want := e.Size != 0 && e.Position < position; want != (got[k] != nil && got[k][i]) {
				m.fail("below %d: %v message %d, %+v", position, k, i, e)
			}
			if e.Size != 0 && e.Position >= position {
				first = Index(i)
			}
		}
		i, err := m.s.SeekPosition(k, position)
		for m.repaired(err) {
			i, err = m.s.SeekPosition(k, position)
		}
		if err != nil || i != first {
			m.fail("seek position %d in %v: %d, %v, want %d", position, k, i, err, first)
		}
		keep := m.r.Int63n(20000)
		if i := m.s.SeekBytes(k, keep); i > m.first[k] {
			before := m.s.Bytes(k)
			if before <= keep {
				m.fail("seek bytes %d of %d in %v: %d, first %d", keep, before, k, i, m.first[k])
			}
		}
	}
}

// TestModel drives a set with random calls, restarts from either checkpoint, and damages, and compares with a map.
func TestModel(t *testing.T) {
	r := random(t)
	rounds := 10
	if raceEnabled {
		rounds = 3
	}
	for range rounds {
		m := &model{
			t: t, r: r, fs: vfs.NewMem(), next: 64, parts: map[Key][]Entry{}, first: map[Key]Index{}, dropped: map[Key]bool{},
			change: func(o *Options) { o.FilesOpenMax, o.FlushBytes, o.RunBytesMax = 2, int64(1+2000*r.Intn(2)), 64<<10 },
		}
		m.s = open(t, m.fs, m.change)
		m.checkpoint()
		incarnation := uint32(1)
		for range 300 {
			k := Key{Topic: uint64(1 + r.Intn(3)), Incarnation: incarnation, Partition: uint16(r.Intn(2))}
			all := m.parts[k]
			switch op := r.Intn(60); {
			case op < 24:
				b := Batch{Stored: int64(m.next) + int64(r.Intn(300)), Size: uint32(50 + r.Intn(1000)), Count: uint16(1 + r.Intn(60))}
				if r.Intn(2) == 0 {
					for range b.Count {
						b.Tags = append(b.Tags, r.Uint32())
					}
				}
				m.note("append %v %d at %d", k, b.Count, m.next)
				m.put(record{kind: "append", key: k, first: Index(len(all)), batch: b})
			case op < 26:
				m.note("lost %v at %d", k, m.next)
				m.put(record{kind: "lost", key: k, to: Index(len(all) + r.Intn(40))})
			case op < 32:
				// A batch that is kept is written again, the oldest most often.
				i := m.first[k]
				if n := Index(len(all)) - i; n == 0 {
					continue
				} else if r.Intn(2) == 0 {
					i += Index(r.Intn(int(n)))
				}
				e := all[i]
				if e.Size == 0 {
					continue
				}
				b := Batch{Stored: e.Stored, Size: e.Size + 24, Count: e.Count}
				m.note("move %v %d at %d", k, i-Index(e.Slot), m.next)
				first := i - Index(e.Slot)
				if r.Intn(2) == 0 {
					for n := range b.Count {
						b.Tags = append(b.Tags, 7*uint32(n))
					}
				}
				m.put(record{kind: "move", key: k, first: first, batch: b})
			case op < 38:
				m.note("checkpoint at %d", m.next)
				m.checkpoint()
			case op < 40:
				m.note("flush at %d", m.next)
				if _, err := m.s.Flush(m.next); err != nil {
					m.fail("flush: %v", err)
				}
			case op < 48:
				m.note("merge")
				if _, err := m.s.Merge(int64(1 + r.Intn(3000))); err != nil && !m.repaired(err) {
					m.fail("merge: %v", err)
				}
			case op < 52:
				if len(all) > 0 {
					f := m.first[k] + Index(r.Intn(len(all)-int(m.first[k])+1))
					m.note("first %v %d", k, f)
					m.s.SetFirst(k, f)
					m.first[k] = f
				}
			case op < 53:
				m.note("drop %v", k)
				m.put(record{kind: "drop", key: k})
				incarnation++
			case op < 54:
				m.trim()
				m.note("trim: begin is %d", m.begin)
			case op < 56:
				c := &m.kept[r.Intn(len(m.kept))]
				m.note("restart from %d", c.position)
				m.restart(c)
			case op < 58:
				if id, ok := m.damage(); ok {
					m.note("damage of %v, restart", id)
					c := &m.kept[r.Intn(len(m.kept))]
					m.restart(c)
					m.readAll()
				}
			default:
				if id, ok := m.damage(); ok {
					m.note("damage of %v, rebuild", id)
					m.s.files.drop(m.s.order[0])
					m.rebuild([]RunID{id})
				}
			}
			m.check()
		}
	}
}

// repaired rebuilds what err says is damaged; false when it says something else.
func (m *model) repaired(err error) bool {
	var d *DamageError
	if !errors.As(err, &d) {
		return false
	}
	m.note("rebuild %v", d.Run)
	m.rebuild([]RunID{d.Run})
	return true
}

// readAll reads everything, and rebuilds what is damaged.
func (m *model) readAll() {
	for k, all := range m.parts {
		for {
			_, err := m.s.Range(k, m.first[k], Index(len(all)), nil)
			if err == nil {
				break
			}
			if !m.repaired(err) {
				m.fail("range: %v", err)
			}
		}
	}
}
