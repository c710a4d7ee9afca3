package retention

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/journal/journaltest"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/server/store/local"
	"github.com/jmqio/jmq/server/store/storetest"
)

// A real store under load keeps its limit, whatever its groups do: while they follow, what they consumed goes early and sends go on;
// when one stops, sends are refused before the limit is reached and nothing goes that it has not consumed; when it has caught up,
// sends are taken again by themselves.
func TestRealStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit, segment, batches = 3 << 20, 64 << 10, 800
		fs := journaltest.New(nil)
		var keeper atomic.Pointer[Keeper]
		st, err := local.Open(local.Options{FS: fs, Dir: "/store", SegmentBytesMax: segment, CheckpointBytes: 512 << 10, CheckpointEvery: time.Second, AfterCommit: func() {
			if k := keeper.Load(); k != nil {
				k.Grew()
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := st.Close(); err != nil {
				t.Error(err)
			}
		}()
		topic, err := st.CreateTopic(t.Context(), store.Topic{Name: "orders", Partitions: 2}, "")
		if err != nil {
			t.Fatal(err)
		}
		var groups fakeGroups
		var refused atomic.Pointer[string]
		var logs logs
		k, err := Start(Options{
			Store: st, End: st.Committed, Groups: groups.of, FS: fs, Logger: slog.New(&logs), StateFile: "/store/RETENTION", BytesMax: limit, Age: 7 * day, Every: time.Second,
			Folders: []Folder{{What: "journal", Path: "/store/journal"}, {What: "index", Path: "/store/index"}},
			SetWritable: func(ok bool, why string) {
				refused.Store(nil)
				if !ok {
					refused.Store(&why)
				}
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer k.Close()
		keeper.Store(k)

		batch := storetest.Batch(t, slices.Repeat([]string{strings.Repeat("x", 1<<10)}, 8)...)
		most, sent, pause := int64(0), 0, 2*time.Millisecond
		end := func(p int) index.Index {
			_, end, err := st.Bounds(partitionOf(&topic, p))
			if err != nil {
				t.Fatal(err)
			}
			return end
		}
		// load sends up to so many batches, at up to 4 MiB/s, while sends are taken.
		load := func(n int, each func()) (taken int) {
			for range n {
				if refused.Load() == nil {
					a := storetest.Append(st, partitionOf(&topic, sent%2), batch)
					for errors.Is(a.Err, journal.ErrBusy) { // the disk is slower than that
						time.Sleep(time.Millisecond)
						a = storetest.Append(st, partitionOf(&topic, sent%2), batch)
					}
					if a.Err != nil {
						t.Fatal(a.Err)
					}
					sent++
					taken++
				}
				each()
				time.Sleep(pause)
				if sent%4 == 0 {
					u, err := st.Usage(0)
					if err != nil {
						t.Fatal(err)
					}
					if most = max(most, limitedBytes(&u)); most > limit {
						t.Fatalf("the store takes %d bytes, more than %d: %+v; log:\n%s", most, limit, u, &logs)
					}
				}
			}
			return taken
		}

		groups.set(topic, "quick", time.Now(), 0, 0)
		if n := load(batches, func() { groups.set(topic, "quick", time.Now(), end(0), end(1)) }); n != batches {
			t.Errorf("with a group that follows %d sends of %d were taken: %+v; log:\n%s", n, batches, k.Metrics(), &logs)
		}
		if m := k.Metrics(); m.TrimmedEarly == 0 || m.Reclaimed == 0 || m.Errors != 0 {
			t.Errorf("%+v; log:\n%s", m, &logs)
		}

		stopped := [2]index.Index{end(0), end(1)}
		groups.set(topic, "slow", time.Now(), stopped[0], stopped[1])
		n := load(batches, func() { groups.set(topic, "quick", time.Now(), end(0), end(1)) })
		if n == batches || n < 50 || refused.Load() == nil {
			t.Errorf("with a group that stopped %d sends of %d were taken: %+v; log:\n%s", n, batches, k.Metrics(), &logs)
		}
		for p, at := range stopped {
			key := partitionOf(&topic, p)
			if first, _, err := st.Bounds(key); err != nil || first > at {
				t.Errorf("partition %d begins at %d, its group stands at %d: %v", p, first, at, err)
			}
			for to := end(p); at < to; {
				if _, at, err = st.Read(key, at, to, 1<<20, nil); err != nil {
					t.Fatalf("read partition %d: %v", p, err)
				}
			}
		}

		groups.set(topic, "slow", time.Now(), end(0), end(1))
		groups.set(topic, "quick", time.Now(), end(0), end(1))
		time.Sleep(3 * time.Second)
		if why := refused.Load(); why != nil {
			t.Errorf("still refused after all was consumed: %s: %+v; log:\n%s", *why, k.Metrics(), &logs)
		}
		if n := load(batches/4, func() {
			groups.set(topic, "quick", time.Now(), end(0), end(1))
			groups.set(topic, "slow", time.Now(), end(0), end(1))
		}); n != batches/4 {
			t.Errorf("afterwards %d sends of %d were taken", n, batches/4)
		}

		// As fast as a disk can: no time goes by, so no timer of the guard's helps.
		pause = 0
		if n := load(batches, func() {}); n == batches {
			t.Errorf("in a burst all %d sends were taken: %+v", n, k.Metrics())
		}
		t.Logf("most %d of %d bytes", most, limit)
	})
}
