package local

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
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
