package replica

import (
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"github.com/jmqio/jmq/server/journal"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestSolo: each opening starts a higher epoch, whose record is the first thing of it; committed is what is synced; a damaged log is
// not opened.
func TestSolo(t *testing.T) {
	opts := Options{FS: vfs.NewCrashableMem(), Dir: "/log", SegmentBytesMax: 64 << 10, Term: 2}
	var last journal.Position
	for life := uint32(1); life <= 3; life++ {
		s, err := OpenSolo(opts)
		if err != nil {
			t.Fatal(err)
		}
		if want := journal.MakeEpoch(2, life); s.Epoch() != want {
			t.Errorf("epoch %v, want %v", s.Epoch(), want)
		}
		r, _, err := s.ReadAt(last, nil)
		if err != nil || r.Kind != journal.KindEpoch || r.Epoch != s.Epoch() || s.Committed() != r.End() {
			t.Errorf("life %d begins with %+v (%v), committed %d", life, r, err, s.Committed())
		}
		done := make(chan error, 1)
		a := &journal.Append{Entries: []journal.Entry{{Kind: journal.KindMessages, Payload: []byte("x")}}}
		a.Done = func(*journal.Append, error) { done <- nil }
		if err := s.Append(a); err != nil {
			t.Fatal(err)
		}
		if s.Committed() > a.Entries[0].Position {
			t.Errorf("committed before the commit")
		}
		s.Kick()
		<-done
		if s.Committed() != s.End() {
			t.Errorf("committed %d, want %d", s.Committed(), s.End())
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		report, err := journal.Verify(opts.FS, opts.Dir, 0, nil)
		if err != nil || report.Damage != nil || len(report.Epochs) != int(life) {
			t.Errorf("verify: %+v, %v", report, err)
		}
		last = report.End
	}
	opts.Term = 1
	if _, err := OpenSolo(opts); !errors.Is(err, journal.ErrTerm) {
		t.Errorf("open with a lower term: %v, want journal.ErrTerm", err)
	}
}
