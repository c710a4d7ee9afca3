package index

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// many returns a set with so many partitions and runs, one message of each partition in each run and one in the tail, and where its
// journal ends.
func many(t testing.TB, fs vfs.FS, partitions, runs int) (*Set, uint64) {
	s := open(t, fs, nil)
	position := uint64(64)
	for r := range runs + 1 {
		for p := range partitions {
			k := Key{Topic: uint64(p/4 + 1), Incarnation: 1, Partition: uint16(p % 4)}
			if _, err := s.Append(k, Index(r), &Batch{Position: position, Stored: int64(position), Size: 1024, Count: 1}); err != nil {
				t.Fatal(err)
			}
			position += 1064
		}
		if r < runs {
			mustFlush(t, s, position)
		}
	}
	return s, position
}

// BenchmarkRestore is what opening costs with 40,000 partitions and 30 runs: directories into memory, and the check.
func BenchmarkRestore(b *testing.B) {
	fs := vfs.NewMem()
	s, position := many(b, fs, 40_000, 30)
	for b.Loop() {
		c := reopen(b, s, fs, position)
		if bad, err := c.Load(); len(bad) > 0 || err != nil {
			b.Fatal(bad, err)
		}
		if _, missing := c.Check(0); len(missing) > 0 {
			b.Fatal(missing)
		}
		c.Close()
	}
}

// BenchmarkOldest is what looking for the lowest position costs with 40,000 partitions.
func BenchmarkOldest(b *testing.B) {
	s, _ := many(b, vfs.NewMem(), 40_000, 3)
	for b.Loop() {
		if low, ok := s.Oldest(); !ok || low != 64 {
			b.Fatal(low, ok)
		}
	}
}

// BenchmarkBelow asks 40,000 partitions what lies in the oldest segment, of which 100 have something there.
func BenchmarkBelow(b *testing.B) {
	s, _ := many(b, vfs.NewMem(), 40_000, 3)
	for b.Loop() {
		n := 0
		s.Below(64+100*1064, func(Key, Index, Index, int64) bool { n++; return true })
		if n != 100 {
			b.Fatal(n)
		}
	}
}

// BenchmarkAppend is an append of one message to one of 1,000 partitions, with a flush after each 100,000.
func BenchmarkAppend(b *testing.B) {
	s := open(b, vfs.NewMem(), func(o *Options) { o.TailBytesMax = 64 << 20 })
	keys := make([]Key, 1000)
	ends := make([]Index, len(keys))
	for i := range keys {
		keys[i] = Key{Topic: uint64(i + 1), Incarnation: 1}
	}
	batch := Batch{Size: 1024, Count: 1}
	position := uint64(64)
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		k := n % len(keys)
		batch.Position = position
		position += 1064
		var err error
		if ends[k], err = s.Append(keys[k], ends[k], &batch); err != nil {
			b.Fatal(err)
		}
		if n++; n%100_000 == 0 {
			b.StopTimer()
			mustFlush(b, s, position)
			b.StartTimer()
		}
	}
}

// BenchmarkFlushMerge is a flush of 500,000 entries of 40,000 partitions, and with eight of them a merge, by entry.
func BenchmarkFlushMerge(b *testing.B) {
	for b.Loop() {
		s := open(b, vfs.NewMem(), func(o *Options) { o.RunBytesMax = 1 << 30 })
		position := uint64(64)
		ends := make([]Index, 40_000)
		b.StopTimer()
		for range mergeRuns {
			for i := range 500_000 {
				p := i % len(ends)
				k := Key{Topic: uint64(p/4 + 1), Incarnation: 1, Partition: uint16(p % 4)}
				var err error
				if ends[p], err = s.Append(k, ends[p], &Batch{Position: position, Size: 1024, Count: 1}); err != nil {
					b.Fatal(err)
				}
				position += 1064
			}
			b.StartTimer()
			mustFlush(b, s, position)
			b.StopTimer()
		}
		b.StartTimer()
		for more := true; more; {
			var err error
			if more, err = s.Merge(4 << 20); err != nil {
				b.Fatal(err)
			}
		}
		b.StopTimer()
		if n := len(s.Runs()); n != 1 {
			b.Fatal(n)
		}
		s.Close()
		b.StartTimer()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/(mergeRuns*500_000), "ns/entry")
}

// TestMemory shows what messages take in memory that are not in tails, in 40,000 partitions and in one: nearly nothing. Extents
// grow with partitions and runs.
func TestMemory(t *testing.T) {
	if raceEnabled {
		t.Skip("memory is another with -race")
	}
	for _, partitions := range []int{40_000, 1} {
		t.Run(fmt.Sprint(partitions), func(t *testing.T) {
			const messages = 600_000
			s := open(t, onDisk{vfs.Default}, func(o *Options) {
				o.Dir = t.TempDir()
				o.FlushBytes, o.TailBytesMax = 1<<20, 2<<20
				o.RunBytesMax = 32 << 20
			})
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			position := uint64(64)
			ends := make([]Index, partitions)
			for i := range messages {
				p := i % partitions
				k := Key{Topic: uint64(p/4 + 1), Incarnation: 1, Partition: uint16(p % 4)}
				var err error
				if ends[p], err = s.Append(k, ends[p], &Batch{Position: position, Size: 1024, Count: 1}); err != nil {
					t.Fatal(err)
				}
				if position += 1064; s.TailBytes() > 2<<20 {
					mustFlush(t, s, position)
					for more := true; more; {
						if more, err = s.Merge(4 << 20); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			took := int64(after.HeapAlloc) - int64(before.HeapAlloc)
			m := s.Metrics()
			t.Logf("%d bytes, %+v", took, m)
			if limit := int64(8<<20) + int64(partitions)*1500; took > limit || m.Runs > 3*mergeRuns {
				t.Fatalf("%d bytes in memory, at most %d are right; %+v", took, limit, m)
			}
			for p := range min(partitions, 10) {
				if first, end := s.Bounds(Key{Topic: uint64(p/4 + 1), Incarnation: 1, Partition: uint16(p % 4)}); first != 0 || end != ends[p] {
					t.Fatal(first, end)
				}
			}
		})
	}
}

type onDisk struct{ vfs.FS }

func (onDisk) MkdirAll(string, os.FileMode) error { return nil }
