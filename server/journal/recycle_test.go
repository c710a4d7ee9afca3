package journal

import (
	"bytes"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/journal/journaltest"
)

// recycling sends until the last segment is a recycled one, trimming all but two, and returns the sizes of what it sent.
func recycling(t *testing.T, s *sender, segments int) {
	t.Helper()
	for i, made := 0, 0; made < segments; i++ {
		synctest.Wait()
		before := len(*s.j.list.Load())
		s.mustSend(t, 3000+i%9*8, 200)
		synctest.Wait()
		l := *s.j.list.Load()
		if len(l) > before && l[len(l)-1].flags&flagRecycled != 0 {
			made++
		}
		if len(l) > 2 {
			if err := s.j.Trim(l[len(l)-2].base); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestRecycling: Trim makes spares of segments, at most RecycleMax of them, but not of one that a reader holds, nor of one of another
// size, nor while the reserve is missing; they are used again, and nothing new is made then.
func TestRecycling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := journaltest.New(nil)
		o := testOptions(fs)
		s := sender{j: mustOpen(t, o)}
		for s.j.Metrics().Spares < 2 { // with one, the next is made before Trim comes
			recycling(t, &s, 1)
			synctest.Wait()
		}
		fs.TakeOps()
		recycling(t, &s, 6)
		for _, op := range fs.TakeOps() {
			if op.Call == journaltest.Create || op.Call == journaltest.Remove || op.Zeroes {
				t.Errorf("%v, though a segment was there to be used again", op)
			}
		}
		j := s.j
		for len(*j.list.Load()) < 8 {
			synctest.Wait()
			s.mustSend(t, 5000)
		}
		synctest.Wait()
		recycled, l := j.Metrics().Recycled, *j.list.Load()
		held := j.NewReader(l[1].base)
		if _, err := held.Next(); err != nil {
			t.Fatal(err)
		}
		if err := j.Trim(l[2].base); err != nil {
			t.Fatal(err)
		}
		if n := j.Metrics().Recycled - recycled; n != 1 {
			t.Errorf("%d recycled, want the one that no reader holds", n)
		}
		if m, err := held.Next(); err != nil || m.Position <= l[1].base {
			t.Errorf("the reader reads on: %v", err)
		}
		_ = held.Close()
		if err := j.Trim(l[6].base); err != nil {
			t.Fatal(err)
		}
		if m := j.Metrics(); m.Spares != 2 || m.Recycled-recycled != 1 {
			t.Errorf("%d spares and %d recycled, want 2 and 1", m.Spares, m.Recycled-recycled)
		}
		mustClose(t, j)

		// Another size: those that are there stay readable, and are not used again.
		o.SegmentBytesMax, o.SegmentBytesFirst = 2*segmentBytesFloor, segmentBytesFloor
		j, m, err := reopen(o)
		if err != nil || m.next != s.next {
			t.Fatalf("messages up to %d, %v, want %d", m.next, err, s.next)
		}
		s.j = j
		for len(*j.list.Load()) < 6 {
			synctest.Wait()
			s.mustSend(t, 5000)
		}
		synctest.Wait()
		recycled = j.Metrics().Recycled
		l = *j.list.Load()
		if err := j.Trim(l[1].base); err != nil {
			t.Fatal(err)
		}
		if n := j.Metrics().Recycled - recycled; n != 0 {
			t.Errorf("%d of another size are recycled", n)
		}
		mustClose(t, j)
		// And back: larger ones than wanted.
		o.SegmentBytesMax = segmentBytesFloor
		j, m, err = reopen(o)
		if err != nil || m.next != s.next {
			t.Fatalf("messages up to %d, %v, want %d", m.next, err, s.next)
		}
		s.j = j
		recycling(t, &s, 2)
		mustClose(t, j)
		if r, err := Verify(fs, testDir, 0, nil); err != nil || r.Damage != nil {
			t.Errorf("verify: %v, %v", r.Damage, err)
		}
	})
}

// TestCrashInRecycling crashes after each operation of a journal that uses its segments again and again, and crashes the recovery: what was
// acknowledged is there and in order, and never a record of a former life.
func TestCrashInRecycling(t *testing.T) {
	eachDirs(t, func(t *testing.T, eager bool) {
		c, s := newCrashes(t, eager)
		c.fs.SetAfter(nil)
		var first atomic.Uint64
		c.bounds = func() bounds { return bounds{first: first.Load(), least: s.acked.Load(), most: s.begun.Load()} }
		for life := range 3 {
			j, m, err := reopen(testOptions(c.fs))
			if err != nil || m.next != s.next {
				t.Fatalf("life %d: recovered messages up to %d, want %d: %v", life, m.next, s.next, err)
			}
			s.j = j
			c.fs.SetAfter(nil)
			for n := 0; n < 60; n++ {
				if n == 30 {
					c.fs.SetAfter(c.after)
				}
				s.mustSend(t, 4000+n%7*8, 100)
				if l := *j.list.Load(); len(l) > 2 {
					before := l[len(l)-2].base
					kept, err := readAll(j, before)
					if err != nil {
						t.Fatal(err)
					}
					first.Store(kept.first) // may be the first from now on
					if err := j.Trim(before); err != nil {
						t.Fatal(err)
					}
				}
			}
			if j.Metrics().Recycled < 3 {
				t.Errorf("life %d: %+v", life, j.Metrics())
			}
			mustClose(t, j)
		}
		c.fs.SetAfter(nil)
		t.Logf("%d operations, %d crashes", c.ops, c.checked)
	})
}

// TestTornTailOverFormerLife tears the last commit of a recycled segment at every sector and cuts it at every 8 bytes, with what the
// file held before behind it: the journal ends inside or after that commit, never with a wrong record, and is never damaged. What is
// cut is told; the next commit over it is sound.
func TestTornTailOverFormerLife(t *testing.T) {
	var disk *vfs.MemFS
	var path string
	var former []byte // the segment before the last commit
	var from, to int
	var next uint64
	synctest.Test(t, func(t *testing.T) {
		fs := journaltest.New(nil)
		s := sender{j: mustOpen(t, testOptions(fs))}
		recycling(t, &s, 2)
		s.mustSend(t, 100)
		l := *s.j.list.Load()
		seg := l[len(l)-1]
		path = seg.path
		from = int(seg.offset(s.j.End()))
		var err error
		if former, err = journaltest.ReadFile(fs, path); err != nil {
			t.Fatal(err)
		}
		if allZero(former[from : from+4000]) {
			t.Fatal("there is nothing of a former life")
		}
		next = s.next
		s.mustSend(t, 20, 1500, 10, 1500, 300)
		to = int(seg.offset(s.j.End()))
		disk = fs.Crash(0, nil)
		mustClose(t, s.j)
	})
	whole, err := journaltest.ReadFile(disk, path)
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, content []byte, told bool) {
		t.Helper()
		disk := disk.CrashClone(vfs.CrashCloneCfg{})
		journaltest.WriteFile(disk, path, content)
		j, m, err := reopen(testOptions(disk))
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if m.next < next || m.next > next+5 || len(j.Holes()) > 0 {
			t.Fatalf("%s: messages up to %d, want [%d, %d]; holes %v", what, m.next, next, next+5, j.Holes())
		}
		if torn := j.Metrics().TornBytes; told && torn == 0 {
			t.Fatalf("%s: the tail is cut silently", what)
		}
		s := sender{j: j, next: m.next}
		s.mustSend(t, 700, 700)
		disk = disk.CrashClone(vfs.CrashCloneCfg{})
		mustClose(t, j)
		if err := (bounds{first: m.first, least: s.next, most: s.next}).check(disk); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	first, sectors := from/512, (to+511)/512-from/512
	for mask := range 1 << sectors {
		if mask%19 != 0 && raceEnabled {
			continue
		}
		content := bytes.Clone(former)
		for i := range sectors {
			if mask>>i&1 != 0 {
				a, b := max(from, (first+i)*512), min(to, (first+i+1)*512)
				copy(content[a:b], whole[a:b])
			}
		}
		check(fmt.Sprintf("sectors %b", mask), content, false)
	}
	for cut := from; cut < to; cut += 8 {
		if cut%200 != 0 && raceEnabled {
			continue
		}
		content := bytes.Clone(former)
		copy(content[from:cut], whole[from:cut])
		check(fmt.Sprintf("cut at byte %d", cut), content, false)
		// One byte of it is wrong.
		content = bytes.Clone(whole)
		content[cut] ^= 0x10
		check(fmt.Sprintf("byte %d is wrong", cut), content, true) // padding never begins at a multiple of 8
	}
}

// TestFooters: a footer belongs to its segment and its life; it is found again, counted, written anew when it is damaged, and moves nothing else.
func TestFooters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := journaltest.New(nil)
		o := testOptions(fs)
		s := sender{j: mustOpen(t, o)}
		for len(*s.j.list.Load()) < 3 {
			synctest.Wait()
			s.mustSend(t, 5000)
		}
		j := s.j
		segs := j.Segments()
		if len(segs) != 3 || !segs[0].Sealed || segs[2].Sealed || segs[1].End != segs[2].Base || segs[2].End != j.Synced() || segs[0].FileBytes != segmentBytesFloor || segs[0].Created == 0 {
			t.Fatalf("segments %+v", segs)
		}
		first := segs[0].Base
		if _, err := j.ReadFooter(first); err != ErrNoFooter {
			t.Errorf("none: %v", err)
		}
		if err := j.WriteFooter(segs[2].Base, nil); err == nil {
			t.Error("a footer of a segment that is not sealed")
		}
		if err := j.WriteFooter(first+8, nil); err == nil {
			t.Error("a footer of no segment")
		}
		for _, size := range []int{5000, 30, 0} {
			if err := j.WriteFooter(first, payload(3, size)); err != nil {
				t.Fatal(err)
			}
			if b, err := j.ReadFooter(first); err != nil || !bytes.Equal(b, payload(3, size)) {
				t.Errorf("%d bytes, %v, want %d", len(b), err, size)
			}
		}
		if got := j.Segments()[0]; !got.Footer || got.FileBytes != segmentBytesFloor+footerHeaderBytes+5000 {
			t.Errorf("%+v", got)
		}
		records := 0
		var paced int64
		for _, seg := range segs[:2] {
			err := j.Scrub(seg.Base, func(n int) error { paced += int64(n); return nil }, func(Record) error { records++; return nil })
			if err != nil {
				t.Error(err)
			}
		}
		if m, err := readAll(j, 0); err != nil || paced != int64(segs[2].Base) || j.Metrics().ScrubbedBytes != paced || records == 0 || m.records[records].Position != segs[2].Base {
			t.Errorf("scrubbed %d bytes of %d and %d records (%v)", paced, segs[2].Base, records, err)
		}
		if err := j.Scrub(first, func(int) error { return ErrBusy }, nil); err != ErrBusy {
			t.Errorf("pace ends it: %v", err)
		}
		mustClose(t, j)
		j, m, err := reopen(o)
		if err != nil || m.next != s.next {
			t.Fatal(err)
		}
		s.j = j
		if got := j.Segments(); !got[0].Footer || got[1].Footer {
			t.Errorf("%+v", got)
		}
		// Its next life has none, though the bytes are there.
		if err := j.Trim(segs[1].Base); err != nil {
			t.Fatal(err)
		}
		for len(*j.list.Load()) < 6 {
			synctest.Wait()
			s.mustSend(t, 5000)
		}
		again := false
		for _, seg := range j.Segments() {
			again = again || seg.FileBytes > segmentBytesFloor
			if _, err := j.ReadFooter(seg.Base); seg.Sealed && err != ErrNoFooter || seg.Footer {
				t.Errorf("a footer of another life: %+v, %v", seg, err)
			}
		}
		if !again {
			t.Error("the segment was not used again")
		}
		mustClose(t, j)
		// A header and the footer behind it, and a hole up to the end of the segment, are all damaged at once.
		files := journaltest.Files(fs, testDir)
		for name, b := range files {
			if base, ok := parseSegmentName(name); ok && len(b) > int(segmentBytesFloor) {
				clear(b[:headerBlockBytes])
				clear(b[60_000:])
				disk := journaltest.Disk(testDir, files)
				o.FS = disk
				got := messages{gaps: true}
				o.Recovered = got.add
				j := mustOpen(t, o)
				h := j.Holes()
				l := *j.list.Load()
				i := l.find(base)
				if len(h) != 1 || h[0].To != l[i+1].base || got.next != s.next {
					t.Errorf("holes %v; messages up to %d, want %d", h, got.next, s.next)
				}
				if err := j.WriteFooter(base, []byte("again")); err != nil {
					t.Error(err)
				}
				if b, err := j.ReadFooter(base); err != nil || string(b) != "again" {
					t.Errorf("%q, %v", b, err)
				}
				mustClose(t, j)
				if r, err := Verify(disk, testDir, 0, nil); err != nil || r.Damage != nil {
					t.Errorf("verify: %v, %v", r.Damage, err)
				}
			}
		}
	})
}

// TestTrimHoles: what was set aside goes with the range it is of; a cut takes holes beyond it along, so that what is written there
// is never taken for lost.
func TestTrimHoles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := journaltest.New(nil)
		s := sender{j: mustOpen(t, testOptions(fs))}
		j := s.j
		var at []Position
		for len(*j.list.Load()) < 3 {
			synctest.Wait()
			at = append(at, j.End())
			s.mustSend(t, 4000)
		}
		n := len(at)
		for _, i := range []int{2, n - 8, n - 2} {
			damage(t, fs, j, at[i], 30)
			if _, err := j.Heal(at[i]); err != nil {
				t.Fatal(err)
			}
		}
		if err := j.Trim((*j.list.Load())[1].base); err != nil {
			t.Fatal(err)
		}
		if h := j.Holes(); len(h) != 2 || h[0].From != at[n-8] {
			t.Errorf("after Trim: %v", h)
		}
		if err := j.Truncate(at[n-4]); err != nil {
			t.Fatal(err)
		}
		if h := j.Holes(); len(h) != 1 || h[0].From != at[n-8] {
			t.Errorf("after Truncate: %v", h)
		}
		s.next = uint64(n - 4)
		for range 6 {
			s.mustSend(t, 3990)
		}
		names, err := fs.List(fs.PathJoin(testDir, damagedDir))
		if err != nil || len(names) != 1 || !strings.HasPrefix(names[0], fmt.Sprintf("%020d-", uint64(at[n-8]))) {
			t.Errorf("set aside are %v, %v", names, err)
		}
		disk := fs.Crash(0, nil)
		mustClose(t, j)
		o := testOptions(disk)
		got := messages{gaps: true}
		o.Recovered = got.add
		j = mustOpen(t, o)
		if got.next != s.next || len(j.Holes()) != 1 {
			t.Errorf("messages up to %d, want %d; holes %v", got.next, s.next, j.Holes())
		}
		mustClose(t, j)
	})
}
