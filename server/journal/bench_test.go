package journal

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// BenchmarkAppend measures appends of 1 KiB, each waited for, by so many goroutines, on the disk under TMPDIR. "lead" calls
// TryLead after each append, as a store does, "kick" leaves all to the committer.
func BenchmarkAppend(b *testing.B) {
	for _, mode := range []string{"lead", "kick"} {
		for _, appenders := range []int{1, 8, 64} {
			b.Run(fmt.Sprintf("%s/%d", mode, appenders), func(b *testing.B) { benchmarkAppend(b, appenders, mode == "lead") })
		}
	}
}

func benchmarkAppend(b *testing.B, appenders int, lead bool) {
	j, err := Open(Options{FS: vfs.Default, Dir: b.TempDir(), SegmentBytesMax: 64 << 20})
	if err != nil {
		b.Fatal(err)
	}
	payload := make([]byte, 1024)
	b.SetBytes(1024)
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	for w := range appenders {
		n := b.N / appenders
		if w < b.N%appenders {
			n++
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			done := make(chan error, 1)
			a := &Append{
				Entries: []Entry{{Kind: KindMessages, Payload: payload}},
				Stored:  time.Now().UnixNano(),
				Done:    func(_ *Append, err error) { done <- err },
			}
			for range n {
				for {
					err := j.Append(a)
					if err == nil {
						break
					}
					if err := j.WaitRoom(b.Context()); err != nil {
						b.Error(err)
						return
					}
				}
				if lead {
					j.TryLead()
				} else {
					j.Kick()
				}
				if err := <-done; err != nil {
					b.Error(err)
					return
				}
			}
		}()
	}
	wg.Wait()
	b.StopTimer()
	m := j.Metrics()
	b.ReportMetric(float64(m.Commits)/b.Elapsed().Seconds(), "commits/s")
	b.ReportMetric(float64(m.SyncTime.Microseconds())/float64(m.Commits), "us/sync")
	if err := j.Close(); err != nil {
		b.Fatal(err)
	}
}
