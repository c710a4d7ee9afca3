package local

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/store"
)

// modelMessage is a message as a model knows it.
type modelMessage struct {
	body   string
	stored int64
	batch  int  // its first index
	lost   bool // its record was damaged
}

// modelPartition is what a partition must be. first is its first index, which after a kill may be lower again.
type modelPartition struct {
	first int
	all   []modelMessage
}

// model is a store and what must be in it.
type model struct {
	r      *rapid.T
	t      *testing.T
	s      *Store
	fs     *vfs.MemFS
	clock  atomic.Int64 // unix nanoseconds; the store's goroutine looks, too
	number int
	topics []store.Topic
	parts  map[store.Partition]*modelPartition
}

func (m *model) open() {
	o := options(m.fs)
	o.SegmentBytesMax = 64 << 10
	o.IndexFilesOpenMax = 1
	o.Now = func() time.Time { return time.Unix(0, m.clock.Load()) }
	o.Tables = []store.Table{&counter{}}
	o.VerifyBytesPerSecond = -1
	s, err := Open(o)
	if err != nil {
		m.r.Fatalf("open: %v", err)
	}
	m.s = s
}

func (m *model) create(name string) {
	topic, err := m.s.CreateTopic(context.Background(), store.Topic{Name: name, Partitions: 2}, "")
	if err != nil {
		m.r.Fatalf("create %s: %v", name, err)
	}
	for _, old := range m.topics {
		if topic.Incarnation <= old.Incarnation {
			m.r.Fatalf("topic %+v after %+v", topic, old)
		}
	}
	m.topics = append(m.topics, topic)
	m.extend(&topic)
}

func (m *model) extend(topic *store.Topic) {
	for n := range topic.Partitions {
		if p := partitionOfTopic(*topic, int(n)); m.parts[p] == nil {
			m.parts[p] = new(modelPartition)
		}
	}
}

// partitions are the keys of parts, in an order that is always the same.
func (m *model) partitions() []store.Partition {
	return slices.SortedFunc(maps.Keys(m.parts), comparePartitions)
}

func (m *model) append(p store.Partition, messages, bytes int) {
	list := make([]string, messages)
	for i := range list {
		list[i] = fmt.Sprintf("%d %*d", m.number, bytes, 0)
		m.number++
	}
	mp := m.parts[p]
	got := appendWait(m.s, p, batchOf(m.t, list...))
	if got.err != nil || got.first != index.Index(len(mp.all)) || got.stored != m.clock.Load() {
		m.r.Fatalf("append: %+v, want index %d", got, len(mp.all))
	}
	for _, b := range list {
		mp.all = append(mp.all, modelMessage{body: b, stored: got.stored, batch: int(got.first)})
	}
}

// read reads and compares. It returns what Read said was next.
func (m *model) read(p store.Partition, from, to index.Index, bytesMax int) index.Index {
	mp := m.parts[p]
	b, next, err := m.s.Read(p, from, to, bytesMax, nil)
	var gap *store.GapError
	switch {
	case from >= to:
		if err != nil || len(b) != 0 || next != from {
			m.r.Fatalf("read [%d, %d): %d bytes, next %d, %v", from, to, len(b), next, err)
		}
		return next
	case mp.all[from].lost:
		if !errors.As(err, &gap) || gap.From != from || gap.To <= from {
			m.r.Fatalf("read from %d, which is lost: %d bytes, next %d, %v", from, len(b), next, err)
		}
		for i := gap.From; i < gap.To; i++ {
			if int(i) >= len(mp.all) || !mp.all[i].lost {
				m.r.Fatalf("%v, but %d is not lost", err, i)
			}
		}
		return gap.To
	case err != nil:
		m.r.Fatalf("read [%d, %d): %v", from, to, err)
	}
	list := split(m.t, b)
	first := mp.all[from].batch
	if next <= from || int(next)-first != len(list) || len(list) > 1 && next < to && len(b) > bytesMax && mp.all[from].batch != mp.all[next-1].batch {
		m.r.Fatalf("read [%d, %d) of %d bytes: %d messages, %d bytes, next %d", from, to, bytesMax, len(list), len(b), next)
	}
	if int(next) < len(mp.all) && mp.all[next].batch != int(next) {
		m.r.Fatalf("read up to %d, which is inside a batch", next)
	}
	for i, body := range list {
		if body != mp.all[first+i].body || mp.all[first+i].lost {
			m.r.Fatalf("message %d is %.20q, want %.20q", first+i, body, mp.all[first+i].body)
		}
	}
	return next
}

// damage flips a byte of a message's record and lets a reader find it.
func (m *model) damage(p store.Partition, i int) {
	mp := m.parts[p]
	if mp.all[i].lost {
		return
	}
	damageMessage(m.t, m.s, p, index.Index(i))
	for n := 0; ; n++ {
		_, _, err := m.s.Read(p, index.Index(i), index.Index(i)+1, 1, nil)
		if errors.As(err, new(*store.GapError)) {
			break
		}
		if !errors.Is(err, store.ErrDamaged) || n > 10 {
			m.r.Fatalf("read of a damaged message: %v", err)
		}
		m.s.healWanted() // the background's, or ours: one of them does it
	}
	// Whoever did it writes a checkpoint then, which we must not outrun: after a kill before it nothing says how many messages the hole had,
	// when none of its partition comes after them.
	if err := m.s.Checkpoint(); err != nil {
		m.r.Fatalf("checkpoint: %v", err)
	}
	for j := range mp.all {
		if mp.all[j].batch == mp.all[i].batch {
			mp.all[j].lost = true
		}
	}
}

// check compares the bounds of all partitions, and the topics.
func (m *model) check(killed bool) {
	for p, mp := range m.parts {
		first, end, err := m.s.Bounds(p)
		if killed && int(first) <= mp.first { // less may be dropped, never more
			mp.first = int(first)
		}
		if int(first) != mp.first || int(end) != len(mp.all) || err != nil {
			m.r.Fatalf("bounds of %+v: [%d, %d), %v, want [%d, %d)", p, first, end, err, mp.first, len(mp.all))
		}
	}
	live := 0
	for _, t := range m.s.Topics() {
		live += int(t.Partitions)
	}
	if live != len(m.parts) {
		m.r.Fatalf("%d partitions of %+v, want %d", live, m.s.Topics(), len(m.parts))
	}
}

// TestModel drives a store with random calls, kills, power losses and damage, and compares it with a model.
func TestModel(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		m := &model{r: r, t: t, fs: vfs.NewCrashableMem(), parts: map[store.Partition]*modelPartition{}}
		m.clock.Store(int64(1000 * time.Second))
		m.open()
		defer func() { m.s.Close() }()
		m.create("t0")
		m.create("t1")
		steps := 60
		if raceEnabled {
			steps = 15
		}
		for range rapid.IntRange(0, steps).Draw(r, "steps") {
			p := rapid.SampledFrom(m.partitions()).Draw(r, "partition")
			mp := m.parts[p]
			at := func(name string) index.Index {
				return index.Index(rapid.IntRange(mp.first, len(mp.all)).Draw(r, name))
			}
			topic := rapid.IntRange(0, 1).Draw(r, "topic")
			killed := false
			switch rapid.SampledFrom([]string{"append", "append", "append", "many", "large", "large", "read", "read", "seek", "checkpoint", "reopen", "kill", "clock",
				"trim", "trim", "reclaim", "reclaim", "delete", "alter", "damage"}).Draw(r, "do") {
			case "append":
				m.append(p, rapid.IntRange(1, 5).Draw(r, "messages"), 1)
			case "many":
				m.append(p, 150, 1)
			case "large":
				for range rapid.IntRange(1, 4).Draw(r, "batches") {
					m.append(p, 1, 12<<10)
				}
			case "read":
				m.read(p, at("from"), at("to"), rapid.IntRange(0, 4000).Draw(r, "bytes"))
			case "seek":
				t := m.clock.Load() + int64(rapid.IntRange(-30, 3).Draw(r, "seconds"))*int64(time.Second)
				got, err := m.s.Seek(p, t)
				want := 0
				high := int64(0)
				for want < len(mp.all) {
					if high = max(high, mp.all[want].stored); high >= t {
						break
					}
					want++
				}
				if want = max(want, mp.first); err != nil || int(got) != want {
					r.Fatalf("seek %d: %d, %v, want %d", t, got, err, want)
				}
			case "checkpoint":
				if err := m.s.Checkpoint(); err != nil {
					r.Fatal(err)
				}
			case "reopen":
				if err := m.s.Close(); err != nil {
					r.Fatal(err)
				}
				m.open()
			case "kill":
				percent := rapid.SampledFrom([]int{0, 50, 100}).Draw(r, "percent")
				rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(r, "rng"), 1))
				clone := m.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
				if err := m.s.Close(); err != nil {
					r.Fatal(err)
				}
				m.fs = clone
				m.open()
				killed = true
			case "clock":
				m.clock.Add(int64(rapid.IntRange(-5, 20).Draw(r, "step")) * int64(time.Second))
			case "trim":
				to := at("to")
				if err := m.s.Trim(p, to); err != nil {
					r.Fatal(err)
				}
				mp.first = int(to)
			case "reclaim":
				if _, err := m.s.Reclaim(context.Background()); err != nil {
					r.Fatalf("reclaim: %v", err)
				}
			case "delete":
				old := m.topics[topic]
				if err := m.s.DeleteTopic(context.Background(), old.ID, old.Incarnation, "who", "why"); err != nil {
					r.Fatal(err)
				}
				for n := range old.Partitions {
					delete(m.parts, partitionOfTopic(old, int(n)))
				}
				m.create(old.Name)
				m.topics[topic] = m.topics[2]
				m.topics = m.topics[:2]
			case "alter":
				old := m.topics[topic]
				got, err := m.s.AlterTopic(context.Background(), old.ID, old.Incarnation, store.Change{Partitions: min(old.Partitions+1, 4)})
				if err != nil {
					r.Fatal(err)
				}
				m.topics[topic] = got
				m.extend(&got)
			case "damage":
				if i := int(at("message")); i < len(mp.all) {
					m.damage(p, i)
				}
			}
			m.check(killed)
		}
		for _, p := range m.partitions() {
			mp := m.parts[p]
			for at := index.Index(mp.first); int(at) < len(mp.all); {
				at = m.read(p, at, index.Index(len(mp.all)), 1<<20)
			}
		}
	})
}
