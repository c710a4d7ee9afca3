package local

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/store"
)

// TestReplaced: a store whose folder was deleted, or is another one now, takes no writes any more and leaves what is there alone; one whose folder was
// moved away and came back goes on.
func TestReplaced(t *testing.T) {
	away := func(t *testing.T, dir string) {
		if err := os.Rename(dir, dir+".away"); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		what    string
		do      func(t *testing.T, s *Store, dir string)
		stopped bool
	}{
		{"nothing", func(*testing.T, *Store, string) {}, false},
		{"moved away and back", func(t *testing.T, s *Store, dir string) {
			away(t, dir)
			s.lookAtFolder()
			if err := os.Rename(dir+".away", dir); err != nil {
				t.Fatal(err)
			}
		}, false},
		{"deleted", func(t *testing.T, _ *Store, dir string) {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		}, true},
		{"emptied", func(t *testing.T, _ *Store, dir string) {
			all, err := filepath.Glob(filepath.Join(dir, "*"))
			if err != nil || len(all) == 0 {
				t.Fatal(all, err)
			}
			for _, path := range all {
				if err := os.RemoveAll(path); err != nil {
					t.Fatal(err)
				}
			}
		}, true},
		{"the journal deleted and made again", func(t *testing.T, _ *Store, dir string) {
			if err := errors.Join(os.RemoveAll(filepath.Join(dir, journalDir)), os.Mkdir(filepath.Join(dir, journalDir), 0o700)); err != nil {
				t.Fatal(err)
			}
		}, true},
		{"an older image is there", func(t *testing.T, _ *Store, dir string) {
			away(t, dir)
			if err := os.CopyFS(dir, os.DirFS(dir+".away")); err != nil {
				t.Fatal(err)
			}
		}, true},
	} {
		t.Run(c.what, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			o := options(vfs.Default)
			o.Dir = dir
			s, err := Open(o)
			if err != nil {
				t.Fatal(err)
			}
			p := partitionOfTopic(mustTopic(t, s, "orders", 1), 0)
			if r := appendWait(s, p, batchOf(t, "1")); r.err != nil {
				t.Fatal(r.err)
			}
			for b := s.log.Bytes(); b.Reserve == 0 || b.Spares < o.SegmentBytesMax; b = s.log.Bytes() {
				time.Sleep(time.Millisecond) // until nothing more is prepared, by names that would be those of files in another folder
			}
			c.do(t, s, dir)
			before := listing(t, dir)
			s.lookAtFolder()
			r := appendWait(s, p, batchOf(t, "2"))
			if (r.err != nil) != c.stopped || errors.Is(s.Err(), ErrReplaced) != c.stopped {
				t.Errorf("append: %v; the store: %v", r.err, s.Err())
			}
			if err := s.Close(); c.stopped {
				if after := listing(t, dir); after != before {
					t.Errorf("there was\n%s\nand is\n%s", before, after)
				}
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}

// TestSegmentDeleted: a segment of the log that is deleted under an open store, and that nobody had open, is missed within a second. Its messages come
// from a copy, or are a gap; until then they cannot be read at the moment.
func TestSegmentDeleted(t *testing.T) {
	for _, copied := range []bool{true, false} {
		o := options(vfs.Default)
		o.Dir = filepath.Join(t.TempDir(), "data")
		o.SegmentBytesMax, o.VerifyBytesPerSecond = 64<<10, -1 // who verifies opens them
		const n = 900
		p := fill(t, mustOpen(t, o), n)
		var s *Store
		var whole []byte
		o.Mend = func(_ context.Context, from, to journal.Position) error {
			if !copied {
				return errors.New("there is no copy")
			}
			return journalOf(s).Mend(journal.Hole{From: from, To: to}, bytes.Clone(whole[:to-from]), s.StoreID())
		}
		s = mustOpen(t, o)
		all := s.log.Segments()
		path := find(t, vfs.Default, filepath.Join(o.Dir, journalDir), ".journal")[0]
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		whole = b[4096:] // behind the header
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Read(p, 0, n, 1, nil); !errors.Is(err, store.ErrDamaged) {
			t.Fatal(err)
		}
		s.lookAtFolder()
		if _, err := os.Stat(path); err != nil {
			t.Fatal(err)
		}
		m, gap := s.Metrics(), (*store.GapError)(nil)
		if copied {
			mustHave(t, s, p, n)
			if m.LostMessages != 0 || m.Mended != 1 || m.Holes != 0 {
				t.Errorf("%d lost, %d mended, %d holes", m.LostMessages, m.Mended, m.Holes)
			}
		} else if _, _, err := s.Read(p, 0, n, 1, nil); !errors.As(err, &gap) || gap.From != 0 || uint64(gap.To) != uint64(m.LostMessages) || m.Holes != 1 {
			t.Errorf("%v, %d lost, %d holes, of %d segments", err, m.LostMessages, m.Holes, len(all))
		}
		mustClose(t, s)
	}
}

// listing is the names, sizes and times of all in a folder.
func listing(t *testing.T, dir string) (list string) {
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		i, err := d.Info()
		if err == nil {
			list += path + " " + i.ModTime().String() + "\n"
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}
