package local

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/store"
)

// TestModel drives a store with random calls, kills and power losses, and compares it with a map.
func TestModel(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		clock := time.Unix(1000, 0)
		fs := vfs.NewCrashableMem()
		table := &counter{}
		open := func() *Store {
			o := options(fs)
			o.SegmentBytesMax = 64 << 10
			o.IndexFilesOpenMax = 1
			o.Now = func() time.Time { return clock }
			table = &counter{}
			o.Tables = []store.Table{table}
			s, err := Open(o)
			if err != nil {
				r.Fatalf("open: %v", err)
			}
			return s
		}
		s := open()
		defer func() { s.Close() }()
		type message struct {
			body   string
			stored int64
			batch  int // its first index
		}
		model := map[store.Partition][]message{}
		var parts []store.Partition
		number := 0
		for i := range 2 {
			topic := mustTopic(t, s, fmt.Sprint("t", i), 2)
			for n := range 2 {
				parts = append(parts, partitionOfTopic(topic, n))
			}
		}
		which := rapid.SampledFrom(parts)
		steps := 40
		if raceEnabled {
			steps = 15
		}
		for range rapid.IntRange(0, steps).Draw(r, "steps") {
			p := which.Draw(r, "partition")
			all := model[p]
			at := func(name string) index.Index {
				return index.Index(rapid.IntRange(0, len(all)).Draw(r, name))
			}
			switch rapid.SampledFrom([]string{"append", "append", "append", "many", "read", "seek", "checkpoint", "reopen", "kill", "clock"}).Draw(r, "do") {
			case "append":
				var list []string
				for range rapid.IntRange(1, 5).Draw(r, "messages") {
					list = append(list, fmt.Sprint(number))
					number++
				}
				got := appendWait(s, p, batchOf(t, list...))
				if got.err != nil || got.first != index.Index(len(all)) || got.stored != clock.UnixNano() {
					r.Fatalf("append: %+v, want index %d", got, len(all))
				}
				for _, b := range list {
					model[p] = append(model[p], message{b, got.stored, int(got.first)})
				}
			case "many": // more than a chunk
				list := make([]string, 150)
				for i := range list {
					list[i] = fmt.Sprint(number)
					number++
				}
				got := appendWait(s, p, batchOf(t, list...))
				if got.err != nil {
					r.Fatal(got.err)
				}
				for _, b := range list {
					model[p] = append(model[p], message{b, got.stored, int(got.first)})
				}
			case "read":
				from, to := at("from"), at("to")
				bytesMax := rapid.IntRange(0, 4000).Draw(r, "bytes")
				b, next, err := s.Read(p, from, to, bytesMax, nil)
				if err != nil {
					r.Fatal(err)
				}
				if from >= to {
					if len(b) != 0 || next != from {
						r.Fatalf("read [%d, %d): %d bytes, next %d", from, to, len(b), next)
					}
					continue
				}
				list := split(t, b)
				first := all[from].batch
				if next <= from || int(next)-first != len(list) || len(list) > 1 && next < to && len(b) > bytesMax && all[from].batch != all[next-1].batch {
					r.Fatalf("read [%d, %d) of %d bytes: %d messages, %d bytes, next %d", from, to, bytesMax, len(list), len(b), next)
				}
				if int(next) < len(all) && all[next].batch != int(next) {
					r.Fatalf("read up to %d, which is inside a batch", next)
				}
				for i, body := range list {
					if body != all[first+i].body {
						r.Fatalf("message %d is %q, want %q", first+i, body, all[first+i].body)
					}
				}
			case "seek":
				t := clock.Add(time.Duration(rapid.IntRange(-30, 3).Draw(r, "seconds")) * time.Second).UnixNano()
				got, err := s.Seek(p, t)
				want := 0
				high := int64(0)
				for want < len(all) {
					if high = max(high, all[want].stored); high >= t {
						break
					}
					want++
				}
				if err != nil || int(got) != want {
					r.Fatalf("seek %d: %d, %v, want %d", t, got, err, want)
				}
			case "checkpoint":
				if err := s.Checkpoint(); err != nil {
					r.Fatal(err)
				}
			case "reopen":
				if err := s.Close(); err != nil {
					r.Fatal(err)
				}
				s = open()
			case "kill":
				percent := rapid.SampledFrom([]int{0, 50, 100}).Draw(r, "percent")
				rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(r, "rng"), 1))
				clone := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
				if err := s.Close(); err != nil {
					r.Fatal(err)
				}
				fs = clone
				s = open()
			case "clock":
				clock = clock.Add(time.Duration(rapid.IntRange(-5, 20).Draw(r, "step")) * time.Second)
			}
			for _, p := range parts {
				if first, end, err := s.Bounds(p); first != 0 || int(end) != len(model[p]) || err != nil {
					r.Fatalf("bounds of %+v: [%d, %d), %v, want %d", p, first, end, err, len(model[p]))
				}
			}
		}
		for _, p := range parts {
			var want []string
			for _, m := range model[p] {
				want = append(want, m.body)
			}
			if len(want) == 0 {
				continue
			}
			if got, _ := bodies(t, s, p, 0, index.Index(len(want))); !slices.Equal(got, want) {
				r.Fatalf("partition %+v: got %v, want %v", p, got, want)
			}
		}
	})
}
