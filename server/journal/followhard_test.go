package journal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/journal/journaltest"
)

// TestFollowDamage: what the ends file says was synced is damage when it cannot be read, although no record proves it: a hole, which is mended
// from the other copy. The first that cannot be read above that is a torn tail.
func TestFollowDamage(t *testing.T) {
	a, _, _ := twoMasters(t, newRand(t))
	n := len(a.records)
	synced := a.records[n-3].Position
	for _, c := range []struct {
		name   string
		record int // that is damaged
		hole   Hole
		end    Position
	}{
		{"last one synced", n - 4, Hole{a.records[n-4].Position, synced}, a.end()},
		{"one in the middle", n / 2, Hole{a.records[n/2].Position, a.records[n/2].End()}, a.end()},
		{"first one not synced", n - 3, Hole{}, synced},
		{"last one not synced", n - 1, Hole{}, a.records[n-1].Position},
	} {
		t.Run(c.name, func(t *testing.T) {
			fs := journaltest.New(nil)
			j := mustOpen(t, followOptions(fs))
			if err := feed(j, &a, 0, synced); err != nil {
				t.Fatal(err)
			}
			if err := j.Sync(); err != nil {
				t.Fatal(err)
			}
			if err := feed(j, &a, synced, a.end()); err != nil {
				t.Fatal(err)
			}
			o := j.opts
			disk := fs.Crash(100, newRandQuiet(1))
			o.FS = disk
			damage(t, disk, j, a.records[c.record].Position, 30)
			_ = j.Close()
			report, err := VerifyOf(disk, o.Dir, &o.StoreID, 0, nil)
			if err != nil || (report.Damage != nil) != (c.hole.To > 0) || report.Ends == nil || report.Ends.Synced != synced {
				t.Errorf("verify: damage %v, ends %v, %v", report.Damage, report.Ends, err)
			}
			j = mustOpen(t, o)
			if got := fmt.Sprint(j.Holes()); j.End() != c.end || c.hole.To == 0 && got != "[]" || c.hole.To > 0 && got != fmt.Sprint([]Hole{c.hole}) {
				t.Fatalf("end %d, holes %s, want %d, %v", j.End(), got, c.end, c.hole)
			}
			if c.hole.To > 0 {
				j.SetCommitted(j.End())
				if err := j.Mend(c.hole, bytes.Clone(a.raw[c.hole.From:c.hole.To]), a.store); err != nil {
					t.Fatal(err)
				}
			}
			if err := (followed{records: a.records}).compare(j); err != nil {
				t.Error(err)
			}
			mustClose(t, j)
		})
	}
}

// TestFollowLastSegmentMissing: a last segment that is gone is seen by the ends file; a journal of one that is alone could not know.
func TestFollowLastSegmentMissing(t *testing.T) {
	a, _, _ := twoMasters(t, newRand(t))
	disk := vfs.NewCrashableMem()
	j := copyOf(t, disk, &a)
	l := *j.list.Load()
	last := l[len(l)-1].path
	mustClose(t, j)
	if err := disk.Remove(last); err != nil {
		t.Fatal(err)
	}
	var corrupt *CorruptError
	if _, err := Open(j.opts); !errors.As(err, &corrupt) {
		t.Errorf("open: %v", err)
	}
	end := l[len(l)-1].base
	shown := Position(0)
	if err := Dump(disk, j.opts.Dir, 0, func(r Record) error { shown = r.End(); return nil }); err != nil || shown != end {
		t.Errorf("dump shows up to %d, want %d: %v", shown, end, err)
	}
	report, err := Repair(disk, j.opts.Dir, RepairOptions{})
	if err != nil || report.End != a.end() || len(report.Missing) != 1 || report.Missing[0].From != end {
		t.Fatalf("repair: %+v, %v", report, err)
	}
	j = mustOpen(t, j.opts)
	if j.End() != a.end() {
		t.Errorf("end %d, want %d", j.End(), a.end())
	}
	for _, h := range j.Holes() {
		j.SetCommitted(j.End())
		if err := j.Mend(h, bytes.Clone(a.raw[h.From:h.To]), a.store); err != nil && h.From == end {
			t.Logf("mend %v: %v", h, err) // where the file that was there ended, a record need not end
		}
	}
	mustClose(t, j)
}

// TestBoundsForgotten: where not all ends of records are kept, less is committed than was told, never more, and in the end all.
func TestBoundsForgotten(t *testing.T) {
	defer func(n int) { boundsMax = n }(boundsMax)
	boundsMax = 8
	a, _, _ := twoMasters(t, newRand(t))
	j := mustOpen(t, followOptions(vfs.NewCrashableMem()))
	if err := feed(j, &a, 0, a.end()); err != nil {
		t.Fatal(err)
	}
	moved := 0
	for p := Position(0); p < a.end(); p += 8 {
		before := j.Committed()
		j.SetCommitted(p)
		if c := j.Committed(); c > p || c < before {
			t.Fatalf("committed %d after %d, told of %d", c, before, p)
		} else if c > before {
			moved++
		}
	}
	j.SetCommitted(a.end())
	if j.Committed() != a.end() || moved == 0 {
		t.Errorf("committed %d, want %d, in %d steps", j.Committed(), a.end(), moved)
	}
	if m, err := readAll(j, 0); err != nil || len(m.records) != len(a.records) {
		t.Errorf("%d records, want %d: %v", len(m.records), len(a.records), err)
	}
	mustClose(t, j)
}

// TestCloseWhileWaited: a Heal that waits for the right to commit while Close does ends, whoever gets it.
func TestCloseWhileWaited(t *testing.T) {
	for range 20 {
		disk := vfs.NewCrashableMem()
		o := testOptions(disk)
		o.Follow = true
		j := mustOpen(t, o)
		waits, release := make(chan struct{}), make(chan struct{})
		r := &replicaStub{}
		if err := j.Lead(MakeEpoch(1, 1), false, r); err != nil {
			t.Fatal(err)
		}
		s := sender{j: j}
		s.mustSend(t, 1000)
		damage(t, disk, j, 40, 30)
		once := sync.OnceFunc(func() { close(waits) })
		r.wait = func(Position) error { once(); <-release; return nil }
		var wg sync.WaitGroup
		wg.Add(3)
		go func() { defer wg.Done(); _ = s.send(1000) }()
		<-waits
		go func() {
			defer wg.Done()
			if _, err := j.Heal(40); err != nil && !errors.Is(err, ErrClosed) {
				t.Errorf("heal: %v", err)
			}
		}()
		go func() { defer wg.Done(); _ = j.Close() }()
		close(release)
		wg.Wait()
	}
}

// TestFollowEmptySegment: an empty last segment that is too small for the next record is replaced by one that is not.
func TestFollowEmptySegment(t *testing.T) {
	disk := vfs.NewCrashableMem()
	s := sender{j: mustOpen(t, testOptions(disk))}
	for len(*s.j.list.Load()) < 3 {
		s.mustSend(t, 6000)
	}
	a := streamOf(t, s.j)
	j := copyOf(t, disk, &a)
	l := *j.list.Load()
	base := l[len(l)-1].base
	if _, err := j.CutTo(base); err != nil {
		t.Fatal(err)
	}
	if err := s.j.Truncate(base); err != nil {
		t.Fatal(err)
	}
	s.next = 0
	// Its epoch's record is in the way: cut that too, so that the large one comes first.
	s.mustSend(t, 300_000)
	m, err := readAll(s.j, base)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1<<20)
	n, err := s.j.ReadRaw(m.records[1].Position, b)
	if err != nil {
		t.Fatal(err)
	}
	large := stream{store: testStore, raw: append(bytes.Clone(a.raw[:base]), b[:n]...)}
	for off := int(base); off < len(large.raw); { // as if it had been written at the base
		r := fields(large.raw[off:][:recordHeaderBytes])
		length, _ := recordLength(large.raw[off:], r.Position, int64(len(large.raw)-off))
		le64(large.raw[off+atPosition:], uint64(off))
		seal(large.raw[off:off+align8(length)], Position(off), Position(off), crcSeed(testStore))
		off += align8(length)
	}
	if err := feed(j, &large, base, large.end()); err != nil {
		t.Fatal(err)
	}
	j.SetCommitted(large.end())
	if got := len(*j.list.Load()); got != len(l) {
		t.Errorf("%d segments, want %d", got, len(l))
	}
	mustClose(t, j)
	j = mustOpen(t, j.opts)
	if r, _, err := j.ReadAt(base, nil); err != nil || len(r.Payload) != 300_000 || j.End() != large.end() {
		t.Errorf("read %d bytes, end %d: %v", len(r.Payload), j.End(), err)
	}
	mustClose(t, j)
	mustClose(t, s.j)
}

func le64(b []byte, v uint64) {
	for i := range 8 {
		b[i] = byte(v >> (8 * i))
	}
}

// TestFollowNoSpace: on a full disk copying is refused, with all that was copied kept; it goes on when there is room, by itself.
func TestFollowNoSpace(t *testing.T) {
	a, _, _ := twoMasters(t, newRand(t))
	synctest.Test(t, func(t *testing.T) {
		fs := journaltest.New(nil)
		fs.SetLimit(2*segmentBytesFloor + 20000)
		j := mustOpen(t, followOptions(fs))
		first := a.records[3].Position
		if err := feed(j, &a, 0, first); err != nil {
			t.Fatal(err)
		}
		err := feed(j, &a, first, a.end())
		if !errors.Is(err, ErrNoSpace) {
			t.Fatalf("copy on a full disk: %v", err)
		}
		at := j.Written()
		if at <= first || at >= a.end() {
			t.Errorf("copied up to %d of %d", at, a.end())
		}
		if err := j.Sync(); err != nil {
			t.Fatal(err)
		}
		fs.SetLimit(0)
		for err = ErrNoSpace; errors.Is(err, ErrNoSpace); {
			time.Sleep(prepareRetry)
			err = feed(j, &a, first, a.end()) // the same again: its begin is there
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := (followed{records: a.records}).compare(j); err != nil || j.End() != a.end() {
			t.Errorf("end %d, want %d: %v", j.End(), a.end(), err)
		}
		mustClose(t, j)
	})
}

// TestFollowReaders: while records are copied, committed, trimmed, and cut above what is committed, readers see what is committed, in order, and
// nothing else.
func TestFollowReaders(t *testing.T) {
	a, b, common := twoMasters(t, newRand(t))
	j := mustOpen(t, followOptions(vfs.NewCrashableMem()))
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 3 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			r := j.NewReader(0)
			defer r.Close()
			i := 0
			for last := false; ; {
				select {
				case <-stop:
					last = true
				default:
				}
				rec, err := r.Next()
				switch {
				case err == io.EOF && !last:
					continue
				case err == io.EOF:
					if r.Position() != b.end() {
						t.Errorf("a reader ends at %d, want %d", r.Position(), b.end())
					}
					return
				case err != nil:
					t.Errorf("read at %d: %v", r.Position(), err)
					return
				}
				if w := b.records[i]; w.Position != rec.Position || w.Epoch != rec.Epoch || !bytes.Equal(w.Payload, rec.Payload) {
					t.Errorf("read %v of %v at %d, want %v of %v at %d", rec.Kind, rec.Epoch, rec.Position, w.Kind, w.Epoch, w.Position)
					return
				}
				i++
			}
		}()
	}
	step := func(s *stream, to Position) {
		t.Helper()
		for _, r := range s.records {
			if r.Position < j.Written() || r.Position >= to {
				continue
			}
			if err := feed(j, s, r.Position, r.End()); err != nil {
				t.Fatal(err)
			}
			j.SetCommitted(min(r.Position, common))
			if r.Position%3 == 0 {
				if err := j.Sync(); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	for range 4 {
		step(&a, a.end())
		if _, err := j.CutTo(common); err != nil {
			t.Fatal(err)
		}
	}
	step(&b, b.end())
	j.SetCommitted(b.end())
	close(stop)
	wg.Wait()
	mustClose(t, j)
}

// TestTakeBack: a master that lost the end of its own epoch takes it back from a slave, before it leads again.
func TestTakeBack(t *testing.T) {
	fs := journaltest.New(nil)
	o := testOptions(fs)
	o.Follow = true
	master := mustOpen(t, o)
	slave := mustOpen(t, followOptions(vfs.NewCrashableMem()))
	r := &replicaStub{}
	r.written = func(from Position, b []byte) { // the slave has it before the master's disk has
		if err := feed(slave, &stream{store: testStore, raw: append(make([]byte, from), b...)}, from, from+Position(len(b))); err != nil {
			t.Error(err)
		}
	}
	if err := master.Lead(MakeEpoch(1, 1), false, r); err != nil {
		t.Fatal(err)
	}
	s := sender{j: master}
	for range 10 {
		s.mustSend(t, 9000)
	}
	kept := master.End()
	var disk *vfs.MemFS // power is lost in the middle of the next commit
	written := r.written
	r.written = func(from Position, b []byte) {
		written(from, b)
		if disk == nil {
			disk = fs.Crash(0, nil)
		}
	}
	s.mustSend(t, 5000)
	mustClose(t, master)
	o.FS = disk
	master = mustOpen(t, o)
	if master.End() != kept || slave.End() < kept+5000 {
		t.Fatalf("the master has %d, the slave %d, want %d and more", master.End(), slave.End(), kept)
	}
	if err := copyAll(slave, master, 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := master.Lead(MakeEpoch(1, 2), false, nil); err != nil {
		t.Fatal(err)
	}
	s.j = master
	s.mustSend(t, 10)
	m, err := readAll(master, 0)
	if err != nil || m.next != 12 {
		t.Errorf("%d messages: %v", m.next, err)
	}
	mustClose(t, master)
	mustClose(t, slave)
}

// TestCutDropsFooter: a segment that is cut and goes on has no more the footer of what it held.
func TestCutDropsFooter(t *testing.T) {
	disk := vfs.NewCrashableMem()
	s := sender{j: mustOpen(t, testOptions(disk))}
	for len(*s.j.list.Load()) < 3 {
		s.mustSend(t, 6000)
	}
	l := *s.j.list.Load()
	if err := s.j.WriteFooter(l[1].base, []byte("what is in it")); err != nil {
		t.Fatal(err)
	}
	m, err := readAll(s.j, l[1].base)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.j.Truncate(m.records[2].Position); err != nil {
		t.Fatal(err)
	}
	s.next = 0
	for len(*s.j.list.Load()) < 3 {
		s.mustSend(t, 6000)
	}
	for range 2 {
		if b, err := s.j.ReadFooter(l[1].base); !errors.Is(err, ErrNoFooter) {
			t.Errorf("footer %q: %v", b, err)
		}
		if s.j.Segments()[1].Footer {
			t.Error("the segment has a footer")
		}
		mustClose(t, s.j)
		s.j = mustOpen(t, testOptions(disk))
	}
	mustClose(t, s.j)
}

// TestFollowBegin: an empty journal begins where it is told to, as that of a full copy does.
func TestFollowBegin(t *testing.T) {
	disk := vfs.NewCrashableMem()
	a, _, common := twoMasters(t, newRand(t))
	o := followOptions(disk)
	o.Begin = common
	j := mustOpen(t, o)
	if j.Begin() != common || j.End() != common || j.Committed() != common {
		t.Errorf("begin %d, end %d, committed %d, want %d", j.Begin(), j.End(), j.Committed(), common)
	}
	if _, _, err := j.ReadAt(common, nil); !errors.Is(err, ErrBeyond) {
		t.Errorf("read of an empty journal: %v", err)
	}
	if n, err := j.ReadRaw(common, make([]byte, 100)); n != 0 || err != nil {
		t.Errorf("raw read of an empty journal: %d, %v", n, err)
	}
	mustClose(t, j)
	j = mustOpen(t, o)
	if err := feed(j, &a, common, a.end()); err != nil {
		t.Fatal(err)
	}
	mustClose(t, j)
	j = mustOpen(t, o)
	if err := (followed{records: a.records}).compare(j); err != nil || j.Begin() != common || j.End() != a.end() {
		t.Errorf("[%d, %d), want [%d, %d): %v", j.Begin(), j.End(), common, a.end(), err)
	}
	mustClose(t, j)
}

// TestCopyRefuses: what is not the records that come next is refused, and nothing is written.
func TestCopyRefuses(t *testing.T) {
	a, b, common := twoMasters(t, newRand(t))
	j := mustOpen(t, followOptions(vfs.NewCrashableMem()))
	defer j.Close()
	if err := feed(j, &b, 0, b.end()); err != nil {
		t.Fatal(err)
	}
	if _, err := j.CutTo(common); err != nil {
		t.Fatal(err)
	}
	if err := feed(j, &b, common, b.records[len(a.records)*3/5].End()); err != nil { // the higher epoch's record
		t.Fatal(err)
	}
	end := j.Written()
	next := func() []byte { return bytes.Clone(b.raw[end:]) }
	older := bytes.Clone(a.raw[common:a.end()])
	le64(older[atPosition:], uint64(end))
	seal(older[:len(a.raw[common:a.records[len(a.records)*3/5].End()])], end, end, crcSeed(a.store))
	for name, c := range map[string]struct {
		from  Position
		b     []byte
		store [16]byte
	}{
		"not the end":       {common, bytes.Clone(b.raw[common:]), b.store},
		"beyond the end":    {end + 40, next(), b.store},
		"absurd position":   {1<<63 - 8, next(), b.store},
		"cut off":           {end, next()[:len(next())-8], b.store},
		"less than a head":  {end, next()[:39], b.store},
		"another store's":   {end, next(), a.store},
		"zeroes":            {end, make([]byte, 4096), b.store},
		"lower epoch":       {end, older[:len(a.raw[common:a.records[len(a.records)*3/5].End()])], a.store},
		"one byte is wrong": {end, append([]byte{}, append(next()[:41], append([]byte{next()[41] ^ 1}, next()[42:]...)...)...), b.store},
	} {
		if err := j.CopyRecords(c.from, c.b, c.store); !errors.Is(err, ErrNotCopied) {
			t.Errorf("%s: %v", name, err)
		} else if name == "lower epoch" && !strings.Contains(err.Error(), "epoch") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if j.Written() != end || j.Err() != nil {
		t.Errorf("written %d, want %d; %v", j.Written(), end, j.Err())
	}
	if err := feed(j, &b, end, b.end()); err != nil {
		t.Error(err)
	}
}

// TestFollowTrimmedToNothing: a journal whose records are trimmed or lost knows the epoch that it was in, and takes no older one.
func TestFollowTrimmedToNothing(t *testing.T) {
	a, _, _ := twoMasters(t, newRand(t))
	fs := journaltest.New(nil)
	j := mustOpen(t, followOptions(fs))
	last := a.records[len(a.records)-1]
	if err := feed(j, &a, 0, last.Position); err != nil {
		t.Fatal(err)
	}
	j.SetCommitted(last.Position)
	l := *j.list.Load()
	begin := l[len(l)-1].base
	if err := j.Trim(begin); err != nil {
		t.Fatal(err)
	}
	o := j.opts
	o.FS = fs.Crash(0, nil)
	mustClose(t, j)
	j = mustOpen(t, o)
	if h := j.History(); j.Begin() != begin || j.End() != begin || len(h) != 1 || h[0].Epoch != j.Epoch() || h[0].Position >= begin || j.Epoch() == 0 {
		t.Errorf("[%d, %d) in epoch %v, history %v, want nothing at %d", j.Begin(), j.End(), j.Epoch(), h, begin)
	}
	if err := feed(j, &a, begin, a.end()); err != nil {
		t.Error(err)
	}
	mustClose(t, j)
}
