package local

import (
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/server/store/storetest"
)

// TestStore runs the conformance suite in memory and on the disk.
func TestStore(t *testing.T) {
	place := func(o Options) storetest.Place {
		return func(t testing.TB, so storetest.Options) store.Store {
			o := o
			o.Tables, o.Gather, o.AfterCommit = so.Tables, so.Gather, so.AfterCommit
			if so.Now != nil {
				o.Now = func() time.Time { return time.Unix(0, so.Now()) }
			}
			s, err := Open(o)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
	}
	t.Run("memory", func(t *testing.T) {
		storetest.Run(t, func(testing.TB) storetest.Place { return place(options(vfs.NewMem())) })
	})
	t.Run("disk", func(t *testing.T) {
		storetest.Run(t, func(t testing.TB) storetest.Place {
			o := options(vfs.Default)
			o.Dir = t.TempDir()
			return place(o)
		})
	})
}
