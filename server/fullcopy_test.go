package server

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// TestCopyNotSeen: what cannot be seen for an error is not taken as gone: the complete copy is installed by the next start, whichever look fails.
func TestCopyNotSeen(t *testing.T) {
	for n := 0; ; n++ {
		mem := vfs.NewMem()
		for _, dir := range []string{"/d/journal", "/d/COPY/journal", "/d/COPY/index"} {
			if err := mem.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		files := []string{"/d/STORE", "/d/journal/old", "/d/COPY/STORE", "/d/COPY/COMPLETE", "/d/COPY/journal/new", "/d/COPY/index/new"}
		for _, name := range files {
			f, err := mem.Create(name, vfs.WriteCategoryUnspecified)
			if err != nil || f.Close() != nil {
				t.Fatal(err)
			}
		}
		looks := 0
		c := copies{dir: "/d", from: "/d/COPY", journal: place{"/d/journal", "/d/COPY/journal"}, index: place{"/d/index", "/d/COPY/index"}}
		c.fs = errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind != errorfs.OpStat {
				return nil
			}
			if looks++; looks == n {
				return errorfs.ErrInjected
			}
			return nil
		}))
		err := c.install()
		if n > 0 && looks < n {
			break
		}
		if (err != nil) != (n > 0) {
			t.Errorf("look %d failed: %v", n, err)
		}
		c.fs = mem
		if err := c.install(); err != nil {
			t.Errorf("look %d failed, then %v", n, err)
		}
		for name, want := range map[string]bool{"/d/STORE": true, "/d/journal/new": true, "/d/journal/old": false, "/d/index/new": true, "/d/COPY": false} {
			if _, err := mem.Stat(name); (err == nil) != want {
				t.Errorf("look %d failed: is %s there: %v", n, name, err)
			}
		}
	}
}
