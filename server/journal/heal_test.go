package journal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/journal/journaltest"
)

// smallLife makes a journal of small segments on a disk: sealed ones that are recycled, with footers, and a recycled last one; a spare and the
// reserve. It returns what is read of it, from its begin.
func smallLife(t *testing.T, closed bool) (disk *vfs.MemFS, records []Record, payloads map[Position][]byte) {
	synctest.Test(t, func(t *testing.T) {
		fs := journaltest.New(nil)
		o := testOptions(fs)
		s := sender{j: mustOpen(t, o)}
		recycled := func() bool {
			l := *s.j.list.Load()
			return len(l) == 3 && l[0].flags&l[1].flags&l[2].flags&flagRecycled != 0 && s.j.End() > s.j.mu.mark
		}
		for i := 0; !recycled() && i < 1000; i++ {
			synctest.Wait()
			s.mustSend(t, 300, 20+i%7)
			s.mustSend(t, 200+i%5)
			if l := *s.j.list.Load(); len(l) > 3 {
				if err := s.j.Trim(l[len(l)-3].base); err != nil {
					t.Fatal(err)
				}
			}
		}
		s.mustSend(t, 33, 90, 21) // the last commit
		for _, seg := range s.j.Segments() {
			if seg.Sealed {
				if err := s.j.WriteFooter(seg.Base, payload(uint64(seg.Base), 200)); err != nil {
					t.Fatal(err)
				}
			}
		}
		synctest.Wait()
		disk = fs.Crash(0, nil)
		payloads = map[Position][]byte{}
		r := s.j.NewReader(s.j.Begin())
		for {
			rec, err := r.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			payloads[rec.Position] = bytes.Clone(rec.Payload)
			rec.Payload = blank[:len(rec.Payload)]
			records = append(records, rec)
		}
		_ = r.Close()
		if !recycled() {
			t.Errorf("%d segments, not all recycled", len(s.j.Segments()))
		}
		mustClose(t, s.j)
		if closed {
			disk = fs.Crash(0, nil)
		}
	})
	return disk, records, payloads
}

// TestEveryByte changes every byte of a journal's segments, one at a time: of sealed ones with footers and of the last one, all of
// them recycled. After Open and reading everything either all records are right; or the damaged one is a hole, and all others are
// read; or, in the last commit only, the tail is cut, and that is told. Verify says before what Open will find.
func TestEveryByte(t *testing.T) {
	defer func() { segmentBytesFloor = 64 << 10 }()
	segmentBytesFloor = 8 << 10
	for _, closed := range []bool{true, false} {
		t.Run(fmt.Sprintf("closed=%v", closed), func(t *testing.T) {
			disk, records, payloads := smallLife(t, closed)
			var proven, end Position
			for _, r := range records {
				proven, end = max(proven, r.Durable), r.End()
			}
			if closed {
				proven = end
			}
			good := journaltest.Files(disk, testDir)
			names := sorted(good)
			first, last := names[0], names[2]
			step := 1
			if raceEnabled {
				step = 127
			}
			flips, holes, torn, headers, footers := 0, 0, 0, 0, 0
			for name, content := range good {
				base, ok := parseSegmentName(name)
				if !ok {
					continue
				}
				for off := int(base) % step; off < len(content); off += step {
					// Once is enough for a header; what is not yet proven is in the last segment.
					if (off < headerBlockBytes && name != first || !closed && name != last) && off%13 != 0 {
						continue
					}
					flips++
					files := map[string][]byte{}
					for n, b := range good {
						files[n] = b
					}
					files[name] = bytes.Clone(content)
					files[name][off] ^= byte(1) << (off % 8)
					what := fmt.Sprintf("byte %d of %s, bit %d", off, name, off%8)
					disk := journaltest.Disk(testDir, files)
					v, err := Verify(disk, testDir, 0, nil)
					if err != nil {
						t.Fatalf("%s: verify: %v", what, err)
					}
					j, err := Open(testOptions(disk))
					if err != nil {
						t.Fatalf("%s: open: %v", what, err)
					}
					lost := j.Holes()
					cut := Position(0)
					if len(lost) > 1 || len(lost) != len(v.Damaged) || len(lost) == 1 && (v.Damage == nil || v.Damaged[0] != lost[0]) {
						t.Fatalf("%s: holes %v, verify found %v, %v", what, lost, v.Damaged, v.Damage)
					}
					for _, r := range records {
						got, _, err := j.ReadAt(r.Position, nil)
						switch {
						case err == nil && got.Kind == r.Kind && bytes.Equal(got.Payload, payloads[r.Position]):
						case len(lost) == 1 && lost[0] == Hole{r.Position, r.End()} && errors.As(err, new(*LostError)):
						case (errors.Is(err, ErrBeyond) || err == nil && got.Kind == KindEpoch || errors.As(err, new(*CorruptError))) && r.Position >= proven && j.Metrics().TornBytes > 0 && v.TornBytes > 0:
							cut = max(cut, r.Position) // or a new epoch lies there
						default:
							t.Fatalf("%s: record at %d: kind %v, %v; holes %v, torn %d, proven %d", what, r.Position, got.Kind, err, lost, j.Metrics().TornBytes, proven)
						}
					}
					if cut > 0 {
						torn++
					}
					holes += len(lost)
					if j.Metrics().HeadersRepaired > 0 {
						headers++
						if v.Damage == nil {
							t.Fatalf("%s: header was repaired, but verify did not see it", what)
						}
					}
					for _, seg := range j.Segments() {
						if !seg.Sealed {
							continue
						}
						blob, err := j.ReadFooter(seg.Base)
						if errors.Is(err, ErrNoFooter) {
							footers++
						} else if err != nil || !bytes.Equal(blob, payload(uint64(seg.Base), 200)) {
							t.Fatalf("%s: footer of %d: %v", what, seg.Base, err)
						}
					}
					mustClose(t, j)
					if v, err := Verify(disk, testDir, 0, nil); err != nil || v.Damage != nil || v.TornBytes != 0 {
						t.Fatalf("%s: after open: %+v, %v", what, v, err)
					}
				}
			}
			t.Logf("%d flips: %d holes, %d torn tails, %d headers, %d footers", flips, holes, torn, headers, footers)
			if !raceEnabled && (holes == 0 || headers == 0 || footers == 0 || (torn > 0) == closed) {
				t.Error("not every kind of damage was made")
			}
		})
	}
}

// damage changes one byte of the file that pos lies in, on the disk below an open journal.
func damage(t testing.TB, fs vfs.FS, j *Journal, pos Position, n int) {
	t.Helper()
	l := *j.list.Load()
	seg := l[l.find(pos)]
	f, err := fs.OpenReadWrite(seg.path, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, n)
	if _, err := f.ReadAt(b, seg.offset(pos)); err != nil {
		t.Fatal(err)
	}
	for i := range b {
		b[i] ^= 0x55
	}
	if _, err := f.WriteAt(b, seg.offset(pos)); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
}

// TestHeal: damage that is found while the journal is open becomes a hole: one record, several, one up to the end of a segment, in the
// segment that appends go to. Readers go on behind it, ReadAt says what is lost, and the next life knows the same.
func TestHeal(t *testing.T) {
	fs := journaltest.New(nil)
	s := sender{j: mustOpen(t, testOptions(fs))}
	j := s.j
	for range 40 {
		s.mustSend(t, 4000)
	}
	m, err := readAll(j, 0)
	if err != nil {
		t.Fatal(err)
	}
	at := func(i int) Record { return m.records[i] }
	second := (*j.list.Load())[1].base
	lastOfFirst := slices.IndexFunc(m.records, func(r Record) bool { return r.Position == second }) - 1
	reader := j.NewReader(0)
	defer reader.Close()
	for range 3 {
		if _, err := reader.Next(); err != nil {
			t.Fatal(err)
		}
	}
	var want []Hole
	for _, c := range []struct {
		first, last int
		bytes       int
	}{
		{5, 5, 1}, // a length
		{8, 10, int(at(10).Position-at(8).Position) + 60},                        // three records
		{lastOfFirst - 1, lastOfFirst, int(second - at(lastOfFirst-1).Position)}, // up to the segment's end
		{len(m.records) - 1, len(m.records) - 1, 100},                            // the last one
	} {
		first, last := at(c.first), at(c.last)
		damage(t, fs, j, first.Position, c.bytes)
		for i := c.first; i <= c.last; i++ {
			if _, _, err := j.ReadAt(at(i).Position, nil); !errors.As(err, new(*CorruptError)) {
				t.Fatalf("record %d: %v, want damage", i, err)
			}
		}
		h := Hole{first.Position, last.End()}
		if got, err := j.Heal(at(c.last).Position); err != nil || got != h {
			t.Fatalf("Heal(%d): %v, %v; want %v", at(c.last).Position, got, err, h)
		}
		if got, err := j.Heal(first.Position); err != nil || got != h {
			t.Fatalf("Heal again: %v, %v; want %v", got, err, h)
		}
		want = append(want, h)
		for i := c.first; i <= c.last; i++ {
			var lost *LostError
			if _, _, err := j.ReadAt(at(i).Position, nil); !errors.As(err, &lost) || lost.From != h.From || lost.To != h.To {
				t.Fatalf("record %d: %v, want it to be lost in %v", i, err, h)
			}
		}
	}
	s.mustSend(t, 50)
	if h, err := j.Heal(at(20).Position); err != nil || h != (Hole{}) {
		t.Errorf("Heal of a sound record: %v, %v", h, err)
	}
	if got := j.Holes(); !slices.Equal(got, want) {
		t.Errorf("holes %v, want %v", got, want)
	}
	if m := j.Metrics(); m.Holes != 4 || m.LostBytes != int64(want[0].To-want[0].From+want[1].To-want[1].From+want[2].To-want[2].From+want[3].To-want[3].From) || j.Bytes().Damaged != m.LostBytes {
		t.Errorf("metrics %+v, bytes %+v", m, j.Bytes())
	}
	// A reader that was there before, one from inside a hole, and the next life.
	got := messages{gaps: true, some: true, next: 2, lost: false}
	for {
		r, err := reader.Next()
		if err == io.EOF {
			break
		}
		if err == nil {
			err = got.add(r)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if got.next != s.next {
		t.Errorf("messages up to %d, want %d", got.next, s.next)
	}
	inside := j.NewReader(at(9).Position)
	var lost *LostError
	if _, err := inside.Next(); !errors.As(err, &lost) || lost.To != at(10).End() {
		t.Errorf("reader inside of a hole: %v", err)
	}
	_ = inside.Close()
	disk := fs.Crash(0, nil)
	mustClose(t, j)
	for _, start := range []Position{0, at(5).Position, at(9).Position, at(10).End(), at(lastOfFirst).Position, at(len(m.records) - 1).Position} {
		o := testOptions(disk.CrashClone(vfs.CrashCloneCfg{}))
		o.Start = start
		shown := start
		o.Recovered = func(r Record) error {
			if r.Position != shown {
				return fmt.Errorf("record at %d, want %d", r.Position, shown)
			}
			shown = r.End()
			return nil
		}
		next := mustOpen(t, o)
		if got := next.Holes(); !slices.Equal(got, want) {
			t.Errorf("from %d: holes %v, want %v", start, got, want)
		}
		if shown+40 != next.Synced() {
			t.Errorf("from %d: shown up to %d of %d", start, shown, next.Synced())
		}
		mustClose(t, next)
		if v, err := Verify(o.FS, testDir, 0, nil); err != nil || v.Damage != nil || len(v.Holes) != 4 {
			t.Errorf("from %d: verify %+v, %v", start, v, err)
		}
	}
}

// TestHealWhileAppending heals the segment that appends go to, again and again, while they go on.
func TestHealWhileAppending(t *testing.T) {
	fs := journaltest.New(nil)
	j := mustOpen(t, testOptions(fs))
	var last atomic.Uint64
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for w := range 4 {
		wg.Go(func() {
			s := sender{j: j, next: uint64(w) << 32}
			for {
				select {
				case <-stop:
					return
				default:
				}
				at := j.Synced()
				if err := s.send(300); err != nil {
					t.Error(err)
					return
				}
				last.Store(uint64(at))
			}
		})
	}
	for healed := 0; healed < 20; {
		at := Position(last.Load())
		if _, _, err := j.ReadAt(at, nil); err != nil {
			continue // not where a record begins, or just that
		}
		l := *j.list.Load()
		seg := l[l.find(at)]
		f, err := fs.OpenReadWrite(seg.path, vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte{0xff}, seg.offset(at)+20); err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		if h, err := j.Heal(at); err != nil || !h.Contains(at) {
			t.Fatalf("Heal(%d): %v, %v", at, h, err)
		}
		healed++
	}
	close(stop)
	wg.Wait()
	disk := fs.Crash(0, nil)
	mustClose(t, j)
	v, err := Verify(disk, testDir, 0, nil)
	if err != nil || v.Damage != nil || len(v.Holes) != 20 || v.End != j.Synced()-40 && v.End != j.Synced() {
		t.Errorf("%+v, %v", v, err)
	}
}

// TestCrashInHeal crashes after each operation of a Heal, of a range so long that it has several records, and of the recovery that does the same.
// Either nothing was done, or the range is a hole, known by its name; what was set aside is whole.
func TestCrashInHeal(t *testing.T) {
	lostRecordBytesMax = 4 << 10
	defer func() { lostRecordBytesMax = len(lostPayload) }()
	eachDirs(t, func(t *testing.T, eager bool) {
		for _, open := range []bool{false, true} {
			rng := newRand(t)
			fs := journaltest.New(nil)
			if eager {
				fs.EagerDirs()
			}
			o := testOptions(fs)
			s := sender{j: mustOpen(t, o)}
			s.mustSend(t, 100)
			from := s.j.End()
			s.mustSend(t, 4000, 4000, 4000)
			s.mustSend(t, 5000)
			to := s.j.End()
			s.mustSend(t, 200)
			l := *s.j.list.Load()
			bad := bytes.Repeat([]byte{0xee}, int(to-from))
			f, err := fs.OpenReadWrite(l[0].path, vfs.WriteCategoryUnspecified)
			if err != nil {
				t.Fatal(err)
			}
			if _, err = f.WriteAt(bad, l[0].offset(from)); err == nil {
				err = f.Sync()
			}
			if err != nil {
				t.Fatal(err)
			}
			_ = f.Close()
			if open {
				mustClose(t, s.j)
			}
			want := Hole{from, to}
			checked := 0
			check := func(op journaltest.Op) {
				if strings.Contains(op.Path, sparePrefix) || t.Failed() {
					return
				}
				for _, percent := range []int{0, 50, 100} {
					if raceEnabled && checked%5 != 0 {
						checked++
						continue
					}
					disk := fs.Crash(percent, rng)
					checked++
					got := messages{gaps: true}
					o := o
					o.FS, o.Recovered = disk, got.add
					j, err := Open(o)
					if err != nil {
						t.Errorf("crash (%d %%) after %v: %v", percent, op, err)
						return
					}
					if h := j.Holes(); len(h) != 1 || h[0] != want || got.next != 6 {
						t.Errorf("crash (%d %%) after %v: holes %v, want %v; messages up to %d", percent, op, h, want, got.next)
					}
					_ = j.Close()
					if b, err := journaltest.ReadFile(disk, holePath(disk, testDir, want)); err != nil || !bytes.Equal(b, bad) {
						t.Errorf("crash (%d %%) after %v: what was set aside has %d bytes (%v)", percent, op, len(b), err)
					}
				}
			}
			fs.SetAfter(check)
			if open {
				o := o
				s.j = mustOpen(t, o)
			} else if h, err := s.j.Heal(from); err != nil || h != want {
				t.Fatalf("Heal: %v, %v", h, err)
			}
			fs.SetAfter(nil)
			mustClose(t, s.j)
			if checked < 20 {
				t.Errorf("only %d crashes", checked)
			}
		}
	})
}

// TestUnreadable: what the disk cannot read, also when asked again, is damage of that range: in ReadAt, Reader, Scrub, and at Open; what is around
// it is read. What it can read at the second time is none.
func TestUnreadable(t *testing.T) {
	fs := journaltest.New(nil)
	s := sender{j: mustOpen(t, testOptions(fs))}
	j := s.j
	for range 40 {
		s.mustSend(t, 4000)
	}
	m, err := readAll(j, 0)
	if err != nil {
		t.Fatal(err)
	}
	bad := m.records[7]
	path, off := (*j.list.Load())[0].path, (*j.list.Load())[0].offset(bad.Position)+1000
	left := 1
	written := false
	sector := func(op journaltest.Op) journaltest.Fault {
		reaches := op.Path == path && op.Offset < off+512 && op.Offset+int64(op.Len) > off
		if op.Call == journaltest.Write && reaches {
			written = true // the disk has put another sector in its place
		}
		if op.Call != journaltest.Read || !reaches || written || left == 0 {
			return journaltest.Fault{}
		}
		left--
		return journaltest.Fault{Err: syscall.EIO}
	}
	fs.SetBefore(sector)
	if r, _, err := j.ReadAt(bad.Position, nil); err != nil || r.Position != bad.Position {
		t.Errorf("read at the second try: %v", err)
	}
	left = 1
	if got, err := readAll(j, 0); err != nil || got.next != s.next {
		t.Errorf("read all at the second try: %v", err)
	}
	left = 1 << 30
	disk := fs.Crash(100, newRandQuiet(1)) // for Open, below
	if _, _, err := j.ReadAt(bad.Position, nil); !errors.As(err, new(*CorruptError)) {
		t.Errorf("ReadAt: %v, want damage", err)
	}
	if _, err := readAll(j, 0); !errors.As(err, new(*CorruptError)) {
		t.Errorf("Reader: %v, want damage", err)
	}
	free := func(int) error { return nil }
	if err := j.Scrub(0, free, func(Record) error { return nil }); !errors.As(err, new(*CorruptError)) {
		t.Errorf("Scrub: %v, want damage", err)
	}
	want := Hole{bad.Position, bad.End()}
	if h, err := j.Heal(bad.Position); err != nil || h != want {
		t.Errorf("Heal: %v, %v; want %v", h, err, want)
	}
	if err := j.Scrub(0, free, func(Record) error { return nil }); err != nil {
		t.Errorf("Scrub: %v", err)
	}
	fs.SetBefore(nil)
	mustClose(t, j)
	// What could be read of it was kept.
	b, err := journaltest.ReadFile(fs, holePath(fs, testDir, want))
	if err != nil || !bytes.Equal(b[recordHeaderBytes:800], payload(6, 4000)[:800-recordHeaderBytes]) {
		t.Errorf("set aside: %d bytes, %v", len(b), err)
	}

	// At Open, also where nothing follows: no kill leaves what cannot be read.
	for _, r := range []Record{bad, m.records[len(m.records)-1]} {
		fs := journaltest.New(disk.CrashClone(vfs.CrashCloneCfg{}))
		l, err := list(fs, testDir, nil)
		if err != nil {
			t.Fatal(err)
		}
		seg := l.segments[l.segments.find(r.Position)]
		path, off, written = seg.path, seg.offset(r.Position)+20, false
		fs.SetBefore(sector)
		o := testOptions(fs)
		got := messages{gaps: true}
		o.Recovered = got.add
		j, err := Open(o)
		if err != nil {
			t.Fatal(err)
		}
		if h := j.Holes(); len(h) != 1 || h[0].From != r.Position || h[0].To < r.Position+recordHeaderBytes {
			t.Errorf("open: holes %v, want one at %d", h, r.Position)
		}
		if r.Position == bad.Position && got.next != s.next {
			t.Errorf("messages up to %d, want %d", got.next, s.next)
		}
		fs.SetBefore(nil)
		mustClose(t, j)
	}
}

// TestFaultInHeal injects one fault at each call of a Heal, in a sealed segment and in the one that appends go to. Heal says so; the
// journal goes on, or has stopped if the range lies where appends go; another Heal, or the next life, makes the hole, and
// after a power loss nothing else is lost.
func TestFaultInHeal(t *testing.T) {
	for _, kind := range faultKinds {
		t.Run(kind.name, func(t *testing.T) {
			for _, current := range []bool{false, true} {
				from, step := sample(t, 13)
				for k := 1 + from; ; k += step {
					fs := journaltest.New(nil)
					o := testOptions(fs)
					s := sender{j: mustOpen(t, o)}
					for range 20 {
						s.mustSend(t, 4000)
					}
					m, err := readAll(s.j, 0)
					if err != nil {
						t.Fatal(err)
					}
					r := m.records[4]
					if current {
						r = m.records[18]
					}
					for s.j.Metrics().Spares == 0 || s.j.Bytes().Reserve == 0 { // so that the preparer rests
						s.j.wakePreparer()
						if err := s.j.WaitRoom(t.Context()); err != nil {
							t.Fatal(err)
						}
					}
					damage(t, fs.Mem(), s.j, r.Position, 100)
					var calls atomic.Int64
					var hit atomic.Bool
					fs.SetBefore(func(op journaltest.Op) journaltest.Fault {
						if strings.HasSuffix(op.Path, fillingSuffix) || kind.calls != nil && !slices.Contains(kind.calls, op.Call) {
							return journaltest.Fault{}
						}
						if calls.Add(1) == int64(k) {
							hit.Store(true)
							return kind.fault
						}
						return journaltest.Fault{}
					})
					want := Hole{r.Position, r.End()}
					h, err := s.j.Heal(r.Position)
					fs.SetBefore(nil)
					if err == nil && h != want {
						t.Fatalf("call %d: %v, want %v", k, h, want)
					}
					if s.j.Err() != nil && (!current || err == nil) {
						t.Fatalf("call %d: Heal: %v, and the journal has stopped: %v", k, err, s.j.Err())
					}
					if s.j.Err() == nil {
						if h, err := s.j.Heal(r.Position); err != nil || h != want {
							t.Fatalf("call %d: Heal again: %v, %v; want %v", k, h, err, want)
						}
						s.mustSend(t, 100)
					}
					disk := fs.Crash(0, nil)
					_ = s.j.Close()
					got := messages{gaps: true}
					o.FS, o.Recovered = disk, got.add
					j, err := Open(o)
					if err != nil || got.next != s.next || len(j.Holes()) != 1 || j.Holes()[0] != want {
						t.Fatalf("call %d: next life: messages up to %d, want %d; %v", k, got.next, s.next, err)
					}
					mustClose(t, j)
					if !hit.Load() {
						if k == 1 && !slices.Equal(kind.calls, []journaltest.Call{journaltest.SyncData}) { // it has none
							t.Error("no fault was injected")
						}
						break
					}
				}
			}
		})
	}
}
