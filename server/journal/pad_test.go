package journal

import (
	"testing"

	"github.com/jmqio/jmq/server/journal/journaltest"
)

// TestPadding commits groups of random sizes. One of 16 KiB or more ends at the end of a page wherever a no-op does that which is no longer
// than a 24th of it, so that the next commit writes no page again; others end with their last message. After a loss of power
// everything acknowledged is there, and the no-ops fill exactly what is between.
func TestPadding(t *testing.T) {
	rng := newRand(t)
	fs := journaltest.New(nil)
	o := testOptions(fs)
	o.SegmentBytesMax, o.SegmentBytesFirst = 1<<20, 1<<20
	j := mustOpen(t, o)
	s := &sender{j: j}
	padded, plain, rolled := 0, 0, 0
	for round := range 300 {
		var sizes []int
		bytes := 0
		for want := 1 + rng.IntN(40<<10); bytes < want; {
			n := 8 + rng.IntN(3000)
			sizes = append(sizes, n)
			bytes += RecordBytes(n)
		}
		begin, before, last := j.Synced(), j.Metrics(), j.current
		fs.TakeOps()
		s.mustSend(t, sizes...)
		m := j.Metrics()
		at := begin // of its first record in the file
		if j.current != last {
			at = j.current.base
			rolled++
		}
		off := j.current.offset(at)
		pad := int(-(off + int64(bytes)) & 4095)
		if pad < recordHeaderBytes || bytes < 16<<10 || pad*24 > bytes || j.current.offset(at)+int64(bytes+pad) > j.current.offset(j.current.limit()) {
			pad = 0
		}
		if got := int(m.PaddedBytes - before.PaddedBytes); got != pad || j.Synced() != at+Position(bytes+pad) || m.End != j.Synced() {
			t.Fatalf("round %d: %d bytes at %d are padded with %d, want %d; the journal ends at %d", round, bytes, off, got, pad, j.Synced())
		}
		if m.Appends != before.Appends+1 || m.Commits != before.Commits+1 || m.QueueLen != 0 || m.QueueBytes != 0 {
			t.Fatalf("round %d: metrics %+v, before %+v", round, m, before)
		}
		pages := map[int64]bool{}
		for p := off; p < off+int64(bytes+pad); p += 8 {
			pages[p/4096] = true
		}
		if got := m.PageBytes - before.PageBytes; got != int64(len(pages))*4096 {
			t.Fatalf("round %d: pages of %d bytes, want %d pages", round, got, len(pages))
		}
		if pad == 0 {
			plain++
		} else if padded++; (off+int64(bytes+pad))%4096 != 0 {
			t.Fatalf("round %d: it ends at %d of the file", round, off+int64(bytes+pad))
		}
		if round%30 != 0 {
			continue
		}
		again, all, err := reopen(Options{FS: fs.Crash(0, rng), Dir: o.Dir, StoreID: o.StoreID, Term: 1, SegmentBytesMax: o.SegmentBytesMax, SegmentBytesFirst: o.SegmentBytesFirst, IdleAfter: o.IdleAfter})
		if err != nil || all.next != s.next {
			t.Fatalf("round %d: after a crash %d messages, %v; want %d", round, all.next, err, s.next)
		}
		mustClose(t, again)
	}
	if padded < 20 || plain < 20 || rolled < 3 {
		t.Fatalf("%d commits padded, %d not, %d segments", padded, plain, rolled)
	}
	mustClose(t, j)
	report, err := Verify(fs, testDir, 0, nil)
	if err != nil || report.Records[KindMessages].Records != int64(s.next) || report.Records[KindNoop].Records != int64(padded)+1 {
		t.Fatalf("%+v, %v; want %d messages and %d no-ops", report, err, s.next, padded+1)
	}
}
