package journal

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestRestore deletes files of an open journal: a segment that is open, the current one, and those that are prepared, of which nothing may be
// missing, with or without a start in between; and one that nobody had open: that becomes a hole, which can be mended.
func TestRestore(t *testing.T) {
	dir := t.TempDir()
	o := testOptions(vfs.Default)
	o.Dir = dir
	s := sender{j: mustOpen(t, o)}
	for len(s.j.Segments()) < 5 {
		s.mustSend(t, 3000, 500)
	}
	o.Start, o.StartEpoch = s.j.End(), s.j.Epoch() // what is below is not opened
	mustClose(t, s.j)
	s.j = mustOpen(t, o)
	read := func() (list [][]byte) {
		t.Helper()
		r := s.j.NewReader(s.j.Begin())
		defer r.Close()
		for {
			rec, err := r.Next()
			if err == io.EOF {
				return list
			}
			if err != nil {
				t.Fatal(err)
			}
			if rec.Kind != KindLost {
				list = append(list, bytes.Clone(rec.Payload))
			}
		}
	}
	segments := s.j.Segments()
	missing := segments[1]
	from, to := missing.Base, segments[2].Base
	path := func(base Position) string { return filepath.Join(dir, segmentName(base)) }
	lost, err := os.ReadFile(path(from))
	if err != nil {
		t.Fatal(err)
	}
	lost = lost[headerBlockBytes:][:to-from]
	remove := func(path string) {
		t.Helper()
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	restore := func(want ...Hole) {
		t.Helper()
		if got, err := s.j.Restore(); err != nil || !slices.Equal(got, want) {
			t.Fatalf("lost %v, want %v; %v", got, want, err)
		}
		for _, i := range s.j.Segments() {
			if _, err := os.Stat(path(i.Base)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, _, err := s.j.ReadAt(segments[2].Base, nil); err != nil { // which opens it
		t.Fatal(err)
	}
	restore()

	remove(path(from))
	if _, _, err := s.j.ReadAt(from, nil); !errors.Is(err, ErrTrimmed) {
		t.Fatal(err)
	}
	restore(Hole{from, to})
	restore()
	if _, _, err := s.j.ReadAt(from, nil); !errors.As(err, new(*LostError)) {
		t.Fatal(err)
	}
	mustClose(t, s.j)
	s.j = mustOpen(t, o)
	if h := s.j.Holes(); !slices.Equal(h, []Hole{{from, to}}) {
		t.Fatal(h)
	}
	if err := s.j.Mend(Hole{from, to}, bytes.Clone(lost), o.StoreID); err != nil {
		t.Fatal(err)
	}
	want := read() // and so all are open

	for _, i := range s.j.Segments() {
		remove(path(i.Base))
	}
	names, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	prepared := 0
	for _, n := range names {
		if strings.HasPrefix(n.Name(), sparePrefix) || n.Name() == reserveName {
			remove(filepath.Join(dir, n.Name()))
			prepared++
		}
	}
	restore()
	restore()
	for i := range 40 { // on into segments that were prepared again
		s.mustSend(t, 3000+i)
	}
	got := read()
	if len(got) < len(want)+40 || !slices.EqualFunc(got[:len(want)], want, bytes.Equal) || prepared == 0 {
		t.Fatalf("%d records, there were %d, and 40 were sent; %d segments were prepared", len(got), len(want), prepared)
	}
	mustClose(t, s.j)
	s.j = mustOpen(t, o)
	if again := read(); !slices.EqualFunc(again[:len(got)], got, bytes.Equal) || len(s.j.Holes()) > 0 {
		t.Fatalf("%d records after a start, there were %d; holes %v", len(again), len(got), s.j.Holes())
	}
	mustClose(t, s.j)
}
