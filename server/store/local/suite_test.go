package local

import (
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/server/store/storetest"
)

// TestStore runs the conformance suite in memory and on the disk.
func TestStore(t *testing.T) {
	place := func(o Options) storetest.Place {
		o.SegmentBytesMax = 64 << 10
		return storetest.Place{
			Open: func(t testing.TB, so storetest.Options) store.Store {
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
			},
			Damage: func(t testing.TB, s store.Store, p store.Partition, i index.Index) {
				damageMessage(t, s.(*Store), p, i)
			},
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

// damageMessage flips a bit in what the journal has of a message.
func damageMessage(t testing.TB, s *Store, p store.Partition, i index.Index) {
	t.Helper()
	e, err := s.index.Range(keyOf(p), i, i+1, nil)
	if err != nil {
		t.Fatal(err)
	}
	at := journal.Position(e[0].Position)
	for _, seg := range s.log.Segments() {
		if seg.Base > at || at >= seg.End {
			continue
		}
		name := s.opt.FS.PathJoin(s.folder.journal, fmt.Sprintf("%020d.journal", seg.Base))
		f, err := s.opt.FS.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		var b [1]byte
		offset := 4096 + int64(at-seg.Base) + 100
		if _, err := f.ReadAt(b[:], offset); err != nil {
			t.Fatal(err)
		}
		b[0] ^= 4
		if _, err := f.WriteAt(b[:], offset); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatalf("position %d of message %d is in no segment", at, i)
}
