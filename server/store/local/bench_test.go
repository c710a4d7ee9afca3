package local

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/server/store/storetest"
)

func benchStore(b *testing.B, change func(*Options)) *Store {
	o := Options{Dir: b.TempDir(), SegmentBytesMax: 64 << 20}
	if change != nil {
		change(&o)
	}
	s, err := Open(o)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	return s
}

// BenchmarkAppendBatch measures batches of one message of 1 KiB in 8 partitions, each waited for, by so many goroutines, on
// the disk under TMPDIR: compare with the journal's BenchmarkAppend/lead.
func BenchmarkAppendBatch(b *testing.B) {
	for _, appenders := range []int{1, 8, 64} {
		b.Run(fmt.Sprint(appenders), func(b *testing.B) {
			s := benchStore(b, nil)
			topic, err := s.CreateTopic(context.Background(), store.Topic{Name: "orders", Partitions: 8}, "")
			if err != nil {
				b.Fatal(err)
			}
			body := strings.Repeat("x", 1024-160)
			b.SetBytes(1024)
			b.ReportAllocs()
			b.ResetTimer()
			begin := s.Metrics().Journal
			var wg sync.WaitGroup
			for w := range appenders {
				n := b.N / appenders
				if w < b.N%appenders {
					n++
				}
				wg.Go(func() {
					p := partitionOfTopic(topic, w%8)
					batch := batchOf(b, body)
					c := make(chan error, 1)
					done := func(_ index.Index, _ int64, err error) { c <- err }
					for range n {
						for {
							err := s.AppendBatch(p, batch, done)
							if err == nil {
								break
							}
							if !errors.Is(err, journal.ErrBusy) || s.WaitRoom(b.Context()) != nil {
								b.Error(err)
								return
							}
						}
						if err := <-c; err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			m := s.Metrics().Journal
			b.ReportMetric(float64(m.Commits-begin.Commits)/b.Elapsed().Seconds(), "commits/s")
		})
	}
}

// nullLog commits at once and keeps nothing: what is measured on it is the store alone.
type nullLog struct {
	Log
	o   LogOptions
	pos journal.Position
	mu  sync.Mutex
	q   []*journal.Append
}

func (l *nullLog) Append(a *journal.Append) error {
	for i := range a.Entries {
		a.Entries[i].Position = l.pos
		l.pos += journal.Position(journal.RecordBytes(len(a.Entries[i].Payload)))
	}
	l.q = append(l.q, a)
	return nil
}

func (l *nullLog) TryLead() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.q {
		a.Done(a, nil)
	}
	l.q = l.q[:0]
	l.o.AfterCommit()
	return true
}
func (l *nullLog) Begin() journal.Position          { return 0 }
func (l *nullLog) Committed() journal.Position      { return l.pos }
func (l *nullLog) Holes() []journal.Hole            { return nil }
func (l *nullLog) Restore() ([]journal.Hole, error) { return nil, nil }
func (l *nullLog) Epoch() journal.Epoch             { return 1 }
func (l *nullLog) Err() error                       { return nil }
func (l *nullLog) Close() error                     { return nil }
func (l *nullLog) Metrics() journal.Metrics         { return journal.Metrics{} }

// BenchmarkOverhead measures what the store adds to an append: order, index, table, callback; by messages a batch, with producers that
// number them, each its own, and without.
func BenchmarkOverhead(b *testing.B) {
	for _, c := range []struct{ messages, producers int }{{1, 0}, {1, 1}, {1, 64}, {100, 0}, {100, 1}} {
		messages := c.messages
		b.Run(fmt.Sprintf("messages=%d/producers=%d", messages, c.producers), func(b *testing.B) {
			s := benchStore(b, func(o *Options) {
				o.Tables = []store.Table{&counter{}}
				o.CheckpointEvery = time.Hour
				o.CheckpointBytes = 1 << 50
				o.VerifyBytesPerSecond = -1
				o.OpenLog = func(lo LogOptions) (Log, error) { return &nullLog{o: lo}, nil }
			})
			topic, err := s.CreateTopic(context.Background(), store.Topic{Name: "orders", Partitions: 8}, "")
			if err != nil {
				b.Fatal(err)
			}
			bodies := make([]string, messages)
			for i := range bodies {
				bodies[i] = strings.Repeat("x", 1024-160)
			}
			batch := batchOf(b, bodies...)
			done := func(index.Index, int64, error) {}
			p := partitionOfTopic(topic, 0)
			b.ReportAllocs()
			for i := range b.N {
				if i%256 == 255 {
					b.StopTimer()
					if _, err := s.index.Flush(uint64(s.apply.end)); err != nil {
						b.Fatal(err)
					}
					b.StartTimer()
				}
				if c.producers > 0 {
					batch[48] = byte(1 + i%c.producers)
					binary.LittleEndian.PutUint64(batch[64:], uint64(i/c.producers*messages))
				}
				if err := s.AppendBatch(p, batch, done); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkRead reads 100 messages of 1 KiB that were stored one by one, from a partition alone in the journal and from one of
// eight, young ones and such whose index is in a file.
func BenchmarkRead(b *testing.B) {
	for _, partitions := range []int{1, 8} {
		for _, flushed := range []bool{false, true} {
			b.Run(fmt.Sprintf("partitions=%d/indexInFile=%v", partitions, flushed), func(b *testing.B) {
				s := benchStore(b, func(o *Options) { o.IndexFlushBytes = 1 })
				topic, err := s.CreateTopic(context.Background(), store.Topic{Name: "orders", Partitions: 8}, "")
				if err != nil {
					b.Fatal(err)
				}
				const n = 1024
				batch := batchOf(b, strings.Repeat("x", 1024-160))
				var wg sync.WaitGroup
				wg.Add(n * partitions)
				for i := range n * partitions {
					for {
						err := s.AppendBatch(partitionOfTopic(topic, i%partitions), batch, func(index.Index, int64, error) { wg.Done() })
						if err == nil {
							break
						}
						if !errors.Is(err, journal.ErrBusy) || s.WaitRoom(b.Context()) != nil {
							b.Fatal(err)
						}
					}
				}
				wg.Wait()
				if flushed {
					if err := s.Checkpoint(); err != nil {
						b.Fatal(err)
					}
				}
				p := partitionOfTopic(topic, 0)
				b.SetBytes(100 << 10)
				b.ReportAllocs()
				b.ResetTimer()
				var buf []byte
				for i := range b.N {
					from := index.Index(i * 100 % (n - 100))
					var next index.Index
					if buf, next, err = s.Read(p, from, from+100, 1<<20, buf[:0]); err != nil || next != from+100 {
						b.Fatal(next, err)
					}
				}
			})
		}
	}
}

// BenchmarkCheckpoint writes checkpoints of so many partitions with 100 new messages each, and reports how long the
// longest held off appends.
func BenchmarkCheckpoint(b *testing.B) {
	for _, partitions := range []int{8, 4000, 40000} {
		b.Run(fmt.Sprint(partitions), func(b *testing.B) {
			s := benchStore(b, func(o *Options) {
				o.CheckpointEvery = time.Hour
				o.CheckpointBytes = 1 << 50
				o.VerifyBytesPerSecond = -1
				o.OpenLog = func(lo LogOptions) (Log, error) { return &nullLog{o: lo}, nil }
			})
			var parts []store.Partition
			for t := range (partitions + 3) / 4 {
				topic, err := s.CreateTopic(context.Background(), store.Topic{Name: fmt.Sprint("t", t), Partitions: 4}, "")
				if err != nil {
					b.Fatal(err)
				}
				for n := range 4 {
					parts = append(parts, partitionOfTopic(topic, n))
				}
			}
			batch := batchOf(b, "x")
			done := func(index.Index, int64, error) {}
			var held time.Duration
			for range b.N {
				b.StopTimer()
				for range 100 {
					for _, p := range parts {
						if err := s.AppendBatch(p, batch, done); err != nil {
							b.Fatal(err)
						}
					}
				}
				b.StartTimer()
				if err := s.Checkpoint(); err != nil {
					b.Fatal(err)
				}
				held = max(held, s.Metrics().CheckpointHeld)
			}
			m := s.Metrics()
			b.ReportMetric(float64(held.Microseconds()), "us-held")
			b.ReportMetric(float64(m.CheckpointBytes)/1e6, "MB")
			var ms runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&ms)
			b.ReportMetric(float64(ms.HeapAlloc)/1e6, "MB-heap")
		})
	}
}

var restartBytes = flag.Int64("restart", 0, "bytes of journal for TestRestart; 0: 24 MiB")

// TestRestart fills a journal, leaves the folder as a kill does, and measures how long opening takes. It must not depend on
// the journal's size: only what follows the checkpoint is read.
func TestRestart(t *testing.T) {
	size, o := *restartBytes, Options{Dir: t.TempDir()}
	if size == 0 {
		size = 24 << 20
		o.SegmentBytesMax, o.CheckpointBytes = 4<<20, 4<<20
	}
	s := mustOpen(t, o)
	topic := mustTopic(t, s, "orders", 8)
	one := strings.Repeat("x", 1024-160)
	bodies := make([]string, 100)
	for i := range bodies {
		bodies[i] = one
	}
	batch := batchOf(t, bodies...)
	var wg sync.WaitGroup
	var want [8]index.Index
	for i := 0; int64(i*len(batch)) < size; i++ {
		wg.Add(1)
		want[i%8] += 100
		for {
			err := s.AppendBatch(partitionOfTopic(topic, i%8), batch, func(_ index.Index, _ int64, err error) {
				if err != nil {
					t.Error(err)
				}
				wg.Done()
			})
			if err == nil {
				break
			}
			if !errors.Is(err, journal.ErrBusy) || s.WaitRoom(t.Context()) != nil {
				t.Fatal(err)
			}
		}
	}
	wg.Wait()
	m := s.Metrics()
	// A copy of the names stands for the kill: the store goes on having its folder, and this one has no lock.
	killed := t.TempDir()
	for _, sub := range []string{"", journalDir, indexDir} {
		names, err := vfs.Default.List(vfs.Default.PathJoin(o.Dir, sub))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(vfs.Default.PathJoin(killed, sub), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, n := range names {
			from := vfs.Default.PathJoin(o.Dir, sub, n)
			if st, err := os.Stat(from); err != nil || st.IsDir() || n == lockName || n == ownerName || strings.HasSuffix(n, ".filling") {
				continue
			}
			if err := os.Rename(from, vfs.Default.PathJoin(killed, sub, n)); err != nil {
				t.Fatal(err)
			}
		}
	}
	s.background.work.Lock() // no checkpoint at Close: the folder is gone
	s.background.closed = true
	s.background.work.Unlock()
	s.Close()

	o.Dir = killed
	read := int64(0)
	o.Progress = func(done, total int64) { read = total }
	begin := time.Now()
	s = mustOpen(t, o)
	took := time.Since(begin)
	for i := range want {
		p := partitionOfTopic(topic, i)
		_, end, err := s.Bounds(p)
		if err != nil || end != want[i] {
			t.Fatalf("partition %d ends at %d, %v, want %d", i, end, err, want[i])
		}
		buf, next, err := s.Read(p, end-1, end, 1, nil)
		if err != nil || next != end {
			t.Fatal(err)
		}
		storetest.Bodies(t, p, buf)
	}
	t.Logf("journal %d MiB, %d checkpoints, opened in %v after reading %d MiB", m.Applied>>20, m.Checkpoints, took.Round(time.Millisecond), read>>20)
	if m.Checkpoints == 0 {
		t.Fatal("no checkpoint was written")
	}
	if took > 2*time.Second {
		t.Fatalf("opening took %v", took)
	}
	mustClose(t, s)
}
