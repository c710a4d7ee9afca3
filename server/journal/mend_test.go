package journal

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/journal/journaltest"
)

// copyOf returns a journal that holds all that s's has, committed.
func copyOf(t testing.TB, fsys vfs.FS, s *stream) *Journal {
	t.Helper()
	j := mustOpen(t, followOptions(fsys))
	if err := feed(j, s, 0, s.end()); err != nil {
		t.Fatal(err)
	}
	j.SetCommitted(s.end())
	if err := j.Sync(); err != nil {
		t.Fatal(err)
	}
	return j
}

// TestSums: copies have the same sums, whatever their segments are and whichever store wrote them; a record that differs in any byte but those of
// back and checksum changes the sum of its range, and no other.
func TestSums(t *testing.T) {
	a, _, _ := twoMasters(t, newRand(t))
	one := copyOf(t, vfs.NewCrashableMem(), &a)
	defer one.Close()
	other := func(change func(raw []byte)) *Journal {
		o := followOptions(vfs.NewCrashableMem())
		o.SegmentBytesMax = 2 * segmentBytesFloor
		o.StoreID = [16]byte{4}
		j := mustOpen(t, o)
		s := a
		s.raw = bytes.Clone(a.raw)
		change(s.raw)
		for pos := Position(0); pos < s.end(); { // synced at other places
			i, _ := slices.BinarySearchFunc(a.records, pos+20000, func(r Record, p Position) int { return int(int64(r.Position) - int64(p)) })
			to := s.end()
			if i < len(a.records) {
				to = a.records[i].Position
			}
			if err := feed(j, &s, pos, to); err != nil {
				t.Fatal(err)
			}
			if err := j.Sync(); err != nil {
				t.Fatal(err)
			}
			pos = to
		}
		j.SetCommitted(s.end())
		return j
	}
	const every = 16 << 10
	want, err := one.Sums(0, a.end(), every)
	if err != nil || len(want) < 3 || want[len(want)-1].End != a.end() {
		t.Fatalf("%v, %v", want, err)
	}
	same := other(func([]byte) {})
	defer same.Close()
	if got, err := same.Sums(0, a.end(), every); err != nil || !slices.Equal(got, want) {
		t.Errorf("sums %v, want %v: %v", got, want, err)
	}
	i := len(a.records) / 2
	for a.records[i].Kind != KindMessages {
		i++
	}
	r := a.records[i]
	for _, at := range []int{atFlags, atStored, atStored + 7, recordHeaderBytes, recordHeaderBytes + len(r.Payload) - 1} {
		j := other(func(raw []byte) {
			rec := raw[r.Position:][:recordHeaderBytes+len(r.Payload)]
			rec[at] ^= 4
			seal(raw[r.Position:r.End()], r.Position, r.Durable, crcSeed(a.store))
		})
		got, err := j.Sums(0, a.end(), every)
		if err != nil || len(got) != len(want) {
			t.Fatalf("%d sums, want %d: %v", len(got), len(want), err)
		}
		for k := range got {
			if (got[k] != want[k]) != (k == int(r.Position/every)) {
				t.Errorf("byte %d of the record at %d: range %d: sum %v, want %v", at, r.Position, k, got[k], want[k])
			}
		}
		mustClose(t, j)
	}
	if _, err := one.Sums(4, a.end(), every); err == nil {
		t.Error("sums from the middle of a record")
	}
}

// TestMend: what was lost to damage is put back from another copy, whole: then all can be read, also after reopening. Anything but exactly
// those records is refused. A fault or a crash at any call leaves a hole or the records.
func TestMend(t *testing.T) {
	a, _, _ := twoMasters(t, newRand(t))
	holed := func(fsys *journaltest.FS) (*Journal, Hole) {
		j := copyOf(t, fsys, &a)
		r := a.records[5]
		damage(t, fsys.Mem(), j, r.Position, 20)
		h, err := j.Heal(r.Position)
		if err != nil || h.From != r.Position {
			t.Fatalf("%v, %v", h, err)
		}
		return j, h
	}
	fs := journaltest.New(nil)
	j, h := holed(fs)
	good := func() []byte { return bytes.Clone(a.raw[h.From:h.To]) }
	for name, c := range map[string]struct {
		h Hole
		b []byte
	}{
		"too short":      {h, good()[:len(good())-8]},
		"empty":          {h, nil},
		"another place":  {Hole{h.To, h.To + h.To - h.From}, good()},
		"no hole":        {Hole{a.records[8].Position, a.records[8].End()}, bytes.Clone(a.raw[a.records[8].Position:a.records[8].End()])},
		"damaged":        {h, append([]byte{good()[0] ^ 1}, good()[1:]...)},
		"damaged inside": {h, append(good()[:50], append([]byte{good()[50] ^ 1}, good()[51:]...)...)},
	} {
		if err := j.Mend(c.h, c.b, a.store); !errors.Is(err, ErrNotCopied) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := j.Mend(h, good(), [16]byte{3}); !errors.Is(err, ErrNotCopied) {
		t.Errorf("of another store: %v", err)
	}
	if err := j.Mend(h, good(), a.store); err != nil {
		t.Fatal(err)
	}
	whole := followed{least: a.end(), most: a.end(), committed: a.end(), records: a.records}
	if err := whole.compare(j); err != nil || len(j.Holes()) > 0 {
		t.Errorf("%v, holes %v", err, j.Holes())
	}
	mustClose(t, j)
	if err := whole.check(fs, j.opts); err != nil {
		t.Error(err)
	}
	mended := 0
	for name := range journaltest.Files(fs, j.opts.Dir) {
		if strings.HasSuffix(name, mendedSuffix) {
			mended++
		}
	}
	if mended != 1 {
		t.Errorf("%d files of what was mended", mended)
	}

	// Each call: a fault, then a power loss.
	for k := 1; ; k++ {
		fs := journaltest.New(nil)
		j, h := holed(fs)
		calls := 0
		fs.SetBefore(func(op journaltest.Op) journaltest.Fault {
			if !op.Changes() || preparing(op) {
				return journaltest.Fault{}
			}
			if calls++; calls == k {
				return journaltest.Fault{Err: syscall.EIO, Short: 100}
			}
			return journaltest.Fault{}
		})
		err := j.Mend(h, good(), a.store)
		fs.SetBefore(nil)
		if calls < k {
			mustClose(t, j)
			break
		}
		if err == nil {
			t.Errorf("call %d failed, Mend did not", k)
		}
		for _, percent := range []int{0, 50, 100} {
			o := j.opts
			o.FS = fs.Crash(percent, newRandQuiet(uint64(k)))
			again, err := Open(o)
			if err != nil {
				t.Fatalf("call %d: %v", k, err)
			}
			if again.End() != a.end() {
				t.Errorf("call %d: end %d, want %d", k, again.End(), a.end())
			}
			for _, h := range again.Holes() {
				if err := again.Mend(h, bytes.Clone(a.raw[h.From:h.To]), a.store); err != nil {
					t.Errorf("call %d: mend again: %v", k, err)
				}
			}
			if err := whole.compare(again); err != nil {
				t.Errorf("call %d: %v", k, err)
			}
			mustClose(t, again)
		}
		_ = j.Close()
	}
}

// TestMendCopiedLoss: records of KindLost that were copied, of which this journal has set nothing aside, can be mended too.
func TestMendCopiedLoss(t *testing.T) {
	a, _, _ := twoMasters(t, newRand(t))
	fs := journaltest.New(nil)
	j := copyOf(t, fs, &a)
	r := a.records[5]
	damage(t, fs.Mem(), j, r.Position, 20)
	h, err := j.Heal(r.Position)
	if err != nil {
		t.Fatal(err)
	}
	lost := streamOf(t, j)
	mustClose(t, j)
	o := followOptions(vfs.NewCrashableMem())
	o.StoreID = [16]byte{8}
	slave := mustOpen(t, o)
	if err := feed(slave, &lost, 0, lost.end()); err != nil {
		t.Fatal(err)
	}
	slave.SetCommitted(lost.end())
	var e *LostError
	if _, _, err := slave.ReadAt(r.Position, nil); !errors.As(err, &e) || e.From != h.From {
		t.Errorf("read what is lost: %v", err)
	}
	if err := slave.Mend(h, bytes.Clone(a.raw[h.From:h.To]), a.store); err != nil {
		t.Fatal(err)
	}
	if err := (followed{records: a.records}).compare(slave); err != nil {
		t.Error(err)
	}
	if got := fmt.Sprint(slave.Holes()); got != "[]" {
		t.Errorf("holes %s", got)
	}
	mustClose(t, slave)
}

// preparing says that a call is the preparer's, which goes on beside what is tested.
func preparing(op journaltest.Op) bool {
	return strings.Contains(op.Path, "spare-") || strings.Contains(op.Path, "reserve.")
}
