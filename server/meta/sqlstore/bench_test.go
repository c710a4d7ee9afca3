package sqlstore

import (
	"fmt"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/jmqio/jmq/scripts/testenv"
	"github.com/jmqio/jmq/server/meta"
)

// Sizes of a large installation.
const (
	benchTopics        = 5000
	benchApps          = 2000
	benchSubscriptions = 20000
)

func fill(b *testing.B, s *Store) {
	b.Helper()
	var writes []meta.Write
	flush := func() {
		if len(writes) > 0 {
			update(b, s, meta.Change{By: by, Writes: writes})
			writes = nil
		}
	}
	add := func(kind meta.Kind, name string, spec meta.Spec) {
		k := meta.Key{Kind: kind, Name: name}
		if kind.Namespaced() {
			k.Namespace = meta.NamespaceDefault
		}
		writes = append(writes, meta.Write{Key: k, Spec: spec, Expect: meta.Expect{Create: true}})
		if len(writes) == meta.WritesMax {
			flush()
		}
	}
	var groups []string
	for i := range 6 {
		groups = append(groups, fmt.Sprintf("group-%d", i))
		add(meta.KindBrokerGroup, groups[i], &meta.BrokerGroup{})
	}
	flush()
	for i := range benchTopics {
		add(meta.KindTopic, fmt.Sprintf("topic-%d", i), &meta.Topic{Description: "Orders of a shop", Partitions: 5, BrokerGroups: groups[i%4 : i%4+3], Labels: []string{"team=shop"}})
	}
	for i := range benchApps {
		add(meta.KindApp, fmt.Sprintf("app-%d", i), &meta.App{Description: "A shop", Limit: meta.Limit{MessagesPerSecond: 1000}})
	}
	flush()
	for i := range benchSubscriptions / 2 {
		name := fmt.Sprintf("topic-%d/app-%d", i%benchTopics, (i+i/benchTopics)%benchApps)
		add(meta.KindProducer, name, &meta.Producer{Weights: map[string]int{groups[i%4]: 50}})
		add(meta.KindConsumer, name, &meta.Consumer{BatchMessages: 10, Concurrency: 4, Filters: []meta.Filter{{Type: "tag", Rule: "new|paid"}}})
	}
	flush()
}

// cpuTime is what this process has used of processors: unlike time it says little of what else the machine does.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkStore measures over a large installation: load is Open of another store, poll a look at the version when nothing
// has changed, update a change of one object, and watch an update by one store until another gives it.
func BenchmarkStore(b *testing.B) {
	for _, e := range []struct {
		name  string
		place func() Location
	}{
		{"mysql", func() Location { return Location{DSN: testenv.MariaDB(b), Insecure: true} }},
		{"sqlite", func() Location { return Location{File: filepath.Join(b.TempDir(), "registry.db")} }},
	} {
		b.Run(e.name, func(b *testing.B) {
			l := e.place()
			s := open(b, l)
			fill(b, s)
			b.Run("load", func(b *testing.B) {
				var before, after runtime.MemStats
				var cpu time.Duration
				for b.Loop() {
					b.StopTimer()
					runtime.GC()
					runtime.ReadMemStats(&before)
					used := cpuTime(b)
					b.StartTimer()
					other, err := Open(b.Context(), Options{Location: l, Logger: quiet()})
					b.StopTimer()
					if err != nil {
						b.Fatal(err)
					}
					cpu += cpuTime(b) - used
					if n := other.View().Len(meta.KindConsumer); n != benchSubscriptions/2 {
						b.Fatalf("it has %d consumers", n)
					}
					runtime.GC()
					runtime.ReadMemStats(&after)
					if err := other.Close(); err != nil {
						b.Fatal(err)
					}
					b.StartTimer()
				}
				b.ReportMetric(float64(cpu.Milliseconds())/float64(b.N), "cpu-ms")
				b.ReportMetric(float64(int64(after.HeapAlloc)-int64(before.HeapAlloc))/(1<<20), "MiB")
			})
			b.Run("poll", func(b *testing.B) {
				for b.Loop() {
					if _, err := s.look(b.Context(), s.db.Load()); err != nil {
						b.Fatal(err)
					}
				}
			})
			rename := func(i int) meta.Change {
				return meta.Change{By: by, Writes: []meta.Write{{Key: meta.Key{Kind: meta.KindTopic, Namespace: meta.NamespaceDefault, Name: "topic-7"},
					Spec: &meta.Topic{Description: fmt.Sprint(i), Partitions: 5, BrokerGroups: []string{"group-0", "group-1", "group-2"}}, Expect: meta.Expect{Any: true}}}}
			}
			n := 0
			b.Run("update", func(b *testing.B) {
				for b.Loop() {
					n++
					update(b, s, rename(n))
				}
			})
			b.Run("watch", func(b *testing.B) {
				other := open(b, l)
				for b.Loop() {
					n++
					v := update(b, s, rename(n))
					for other.View().Version < v.Version {
						if _, err := other.Watch(b.Context(), other.View()); err != nil {
							b.Fatal(err)
						}
					}
				}
			})
		})
	}
}
