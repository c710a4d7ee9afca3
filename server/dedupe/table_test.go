package dedupe

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand"
	"testing"
	"time"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/servertest/mutate"
	"github.com/jmqio/jmq/wire"
)

var seed = flag.Int64("seed", 0, "seed of random tests; 0: by the clock")

func random(t testing.TB) *rand.Rand {
	s := *seed
	if s == 0 {
		s = time.Now().UnixNano()
	}
	t.Logf("-seed %d", s)
	return rand.New(rand.NewSource(s))
}

func key(producer byte, partition uint16) Key {
	return Key{Producer: [16]byte{producer}, Topic: 7, Incarnation: 1, Partition: partition}
}

// record is that of a batch.
func record(k Key, sequence uint64, count int, first index.Index, stored int64) journal.Record {
	msgs := make([]wire.Message, count)
	for i := range msgs {
		msgs[i].Body = []byte("x")
	}
	b, err := wire.AppendBatch(nil, k.Producer, sequence, msgs)
	if err != nil {
		panic(err)
	}
	wire.Batch(b).SetBroker(wire.BrokerFields{Topic: k.Topic, Incarnation: k.Incarnation, Partition: k.Partition, FirstIndex: uint64(first), StoredNs: stored})
	return journal.Record{Kind: journal.KindMessages, Stored: stored, Payload: b[:wire.BatchHeaderBytes]}
}

// TestVerdicts goes through what a batch can be.
func TestVerdicts(t *testing.T) {
	table := New()
	k := key(1, 0)
	var outcomes []string
	done := func(name string) Done {
		return func(first index.Index, stored int64, err error) {
			outcomes = append(outcomes, fmt.Sprint(name, " ", first, "@", stored, " ", err))
		}
	}
	begin := func(want string, sequence uint64, count int) *Window {
		t.Helper()
		w, v, first, stored := table.Begin(k, sequence, count, done(fmt.Sprint(sequence)))
		got := [...]string{"fresh", "repeat", "waits", "conflict", "busy"}[v]
		if v == Repeat {
			got += fmt.Sprint(" ", first, "@", stored)
		}
		if got != want {
			t.Fatalf("batch [%d, %d): %s, want %s", sequence, sequence+uint64(count), got, want)
		}
		return w
	}
	apply := func(sequence uint64, count int, first index.Index) {
		t.Helper()
		if err := table.Apply(record(k, sequence, count, first, int64(first)*10)); err != nil {
			t.Fatal(err)
		}
		for _, f := range table.Landed() {
			f(first, int64(first)*10, nil)
		}
	}
	w := begin("fresh", 0, 3)
	begin("waits", 0, 3)
	begin("conflict", 2, 2)
	begin("conflict", 0, 2)
	begin("fresh", 10, 2) // a hole before it
	begin("fresh", 5, 2)  // out of order
	begin("waits", 5, 2)
	begin("conflict", 4, 2)
	apply(0, 3, 100)
	apply(10, 2, 103)
	begin("waits", 5, 2)
	apply(5, 2, 105)
	if got, want := fmt.Sprint(outcomes), "[0 100@1000 <nil> 5 105@1050 <nil> 5 105@1050 <nil>]"; got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
	begin("repeat 100@1000", 0, 3)
	begin("repeat 105@1050", 5, 2)
	begin("repeat 103@1030", 10, 2)
	begin("conflict", 6, 1)
	begin("conflict", 11, 4)
	begin("conflict", ^uint64(0), 2)
	if again := begin("fresh", 3, 2); again != w {
		t.Fatal("another window")
	}
	table.Cancel(w)
	begin("fresh", 3, 2) // in the hole
	begin("waits", 3, 2)
	begin("fresh", 20, 1)
	for _, f := range table.Fail(w) {
		f(0, 0, errors.New("gone"))
	}
	if got := outcomes[len(outcomes)-1]; got != "3 0@0 gone" {
		t.Fatal(got)
	}
	begin("fresh", 3, 2)
	if got := table.Counts(); got != (Counts{Windows: 1, Repeats: 7, Waited: 4, Conflicts: 6}) {
		t.Fatalf("%+v", got)
	}
}

// TestForgotten: below what a window has forgotten a batch is stored again, and counted.
func TestForgotten(t *testing.T) {
	table := New()
	k := key(1, 0)
	for i := range uint64(BatchesMax + 10) {
		if err := table.Apply(record(k, i*2, 2, index.Index(i*2), 1)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range uint64(BatchesMax + 10) {
		w, v, first, _ := table.Begin(k, i*2, 2, nil)
		switch {
		case i < 10 && v == Fresh:
			table.Cancel(w)
		case i >= 10 && v == Repeat && first == index.Index(i*2):
		default:
			t.Fatal(i, v, first)
		}
	}
	if got := table.Counts(); got.Forgotten != 10 || got.Repeats != BatchesMax {
		t.Fatalf("%+v", got)
	}
}

// TestLongestUnusedGoes: of too many windows that one goes which got no batch for longest, whoever was looked for meanwhile; what is under
// way in it stays.
func TestLongestUnusedGoes(t *testing.T) {
	table := New()
	table.max = 3
	store := func(p byte, sequence uint64) {
		if err := table.Apply(record(key(p, 0), sequence, 1, 1, 1)); err != nil {
			t.Fatal(err)
		}
	}
	verdict := func(p byte, sequence uint64) (v Verdict) {
		_, v, _, _ = table.Begin(key(p, 0), sequence, 1, nil)
		return v
	}
	store(1, 0)
	store(2, 0)
	store(3, 0)
	if verdict(1, 0) != Repeat || verdict(2, 1) != Fresh {
		t.Fatal("not as stored")
	}
	store(1, 1)
	store(4, 0) // 2 goes, but for its flight
	if verdict(2, 1) != Waits {
		t.Fatal("what is under way was forgotten")
	}
	if len(table.mu.windows) != 4 || table.Counts().Windows != 3 {
		t.Fatal(len(table.mu.windows))
	}
	store(2, 1) // now 3 goes
	if verdict(2, 0) != Fresh || verdict(3, 0) != Fresh || verdict(1, 1) != Repeat || verdict(4, 0) != Repeat {
		t.Fatal("another one went")
	}
}

// model is what is known, simply.
type model struct {
	stored map[Key][]batch // all, in the order of the log
	flying map[Key][]batch
}

// TestModel compares a table with a model over random producers that send in and out of order, again, and in conflict, while
// commits succeed or not; a second table that is only applied to, and is made again from snapshots now and then, says the same.
func TestModel(t *testing.T) {
	r := random(t)
	table, slave := New(), New()
	m := model{map[Key][]batch{}, map[Key][]batch{}}
	type pending struct {
		k Key
		b batch
		w *Window
	}
	var log []pending
	waits := 0
	next := map[Key]uint64{}
	var end index.Index
	overlaps := func(list []batch, b batch) (exact, some bool) {
		for _, x := range list {
			if x.sequence < b.end() && b.sequence < x.end() {
				some = true
				exact = exact || x.sequence == b.sequence && x.count == b.count
			}
		}
		return exact, some
	}
	for step := range 20000 {
		k := key(byte(1+r.Intn(5)), uint16(r.Intn(2)))
		switch r.Intn(10) {
		default:
			b := batch{sequence: next[k], count: uint16(1 + r.Intn(4))}
			switch r.Intn(6) {
			case 0: // again
				if l := m.stored[k]; len(l) > 0 {
					b = l[max(0, len(l)-1-r.Intn(100))]
				}
			case 1:
				if l := m.flying[k]; len(l) > 0 {
					b = l[r.Intn(len(l))]
				}
			case 2: // anywhere
				b.sequence -= min(b.sequence, uint64(r.Intn(300)))
			case 3:
				b.sequence += uint64(r.Intn(3))
			}
			// What the last BatchesMax of the highest sequences have is known for sure.
			w, v, first, stored := table.Begin(k, b.sequence, int(b.count), func(index.Index, int64, error) { waits-- })
			exact, some := overlaps(m.stored[k], b)
			flies, any := overlaps(m.flying[k], b)
			floor := uint64(0)
			if x := table.mu.windows[k]; x != nil {
				floor = x.floor
			}
			switch {
			case b.sequence >= floor && exact && v == Repeat, b.sequence >= floor && !exact && some && v == Conflict:
				if v == Repeat {
					found := false
					for _, x := range m.stored[k] {
						found = found || x.sequence == b.sequence && x.first == first && x.stored == stored
					}
					if !found {
						t.Fatalf("step %d: %+v was stored at %d", step, b, first)
					}
				}
			case (!some || b.sequence < floor) && flies && v == Waits:
				waits++
			case (!some || b.sequence < floor) && any && !flies && v == Conflict:
			case (!some || b.sequence < floor) && !any && v == Fresh:
				next[k] = max(next[k], b.end())
				m.flying[k] = append(m.flying[k], b)
				if r.Intn(20) == 0 { // refused
					table.Cancel(w)
					m.flying[k] = m.flying[k][:len(m.flying[k])-1]
					break
				}
				log = append(log, pending{k, b, w})
			case b.sequence < floor && v == Conflict: // in part above it
			default:
				t.Fatalf("step %d: %+v: verdict %d, stored %v %v, under way %v %v, floor %d", step, b, v, exact, some, flies, any, floor)
			}
		case 0, 1, 2, 3, 4:
			if len(log) == 0 {
				continue
			}
			p := log[0]
			log = log[1:]
			m.flying[p.k] = m.flying[p.k][1:]
			if r.Intn(30) == 0 {
				for _, done := range table.Fail(p.w) {
					done(0, 0, nil)
				}
				continue
			}
			p.b.first, p.b.stored = end, int64(step)
			end += index.Index(p.b.count)
			rec := record(p.k, p.b.sequence, int(p.b.count), p.b.first, p.b.stored)
			for _, x := range []*Table{table, slave} {
				if err := x.Apply(rec); err != nil {
					t.Fatal(err)
				}
			}
			for _, done := range table.Landed() {
				done(0, 0, nil)
			}
			m.stored[p.k] = append(m.stored[p.k], p.b)
		}
		if step%500 == 0 {
			a, b := table.Snapshot(nil), slave.Snapshot(nil)
			if !bytes.Equal(a, b) {
				t.Fatalf("step %d: the slave has %x, the master %x", step, b, a)
			}
			slave = New()
			if err := slave.Restore(b); err != nil {
				t.Fatal(err)
			}
		}
	}
	for len(log) > 0 {
		for _, done := range table.Fail(log[0].w) {
			done(0, 0, nil)
		}
		log = log[1:]
	}
	if waits != 0 {
		t.Fatalf("%d repeats were never answered", waits)
	}
	if c := table.Counts(); c.Repeats == 0 || c.Waited == 0 || c.Conflicts == 0 || c.Forgotten == 0 {
		t.Fatalf("not everything was met: %+v", c)
	}
}

// TestDisorder: a producer with very many batches under way out of order has to wait.
func TestDisorder(t *testing.T) {
	table := New()
	for i := range uint64(2 * disorderMax) {
		_, v, _, _ := table.Begin(key(1, 0), 1e6-i, 1, nil)
		if want := i > disorderMax; (v == Busy) != want {
			t.Fatalf("batch %d: verdict %d", i, v)
		}
	}
}

// TestSteady: nothing is allocated for producers that are known.
func TestSteady(t *testing.T) {
	table := New()
	const producers = 8
	var recs [producers]journal.Record
	for i := range recs {
		recs[i] = record(key(byte(i+1), 0), 0, 1, 0, 1)
	}
	n := uint64(0)
	step := func() {
		for i := range recs {
			h := wire.Batch(recs[i].Payload)
			putSequence(h, n)
			k, _ := KeyOf(h)
			if _, v, _, _ := table.Begin(k, n, 1, nil); v != Fresh {
				t.Fatal(v)
			}
		}
		for i := range recs {
			if err := table.Apply(recs[i]); err != nil {
				t.Fatal(err)
			}
		}
		n++
	}
	for range 200 {
		step()
	}
	if got := testing.AllocsPerRun(1000, step); got != 0 {
		t.Fatalf("%v allocations", got)
	}
}

func putSequence(b wire.Batch, n uint64) {
	for i := range 8 {
		b[64+i] = byte(n >> (8 * i))
	}
}

func TestBadSnapshots(t *testing.T) {
	table := New()
	for p := range byte(3) {
		for i := range uint64(5) {
			if err := table.Apply(record(key(p+1, 2), i*3, 2, index.Index(i), 1)); err != nil {
				t.Fatal(err)
			}
		}
	}
	good := table.Snapshot(nil)
	for i := range len(good) {
		if err := New().Restore(good[:i]); err == nil && i > 0 {
			t.Errorf("cut at %d: accepted", i)
		}
	}
	if err := New().Restore(append(bytes.Clone(good), 0)); err == nil {
		t.Error("longer: accepted")
	}
	twice := append(bytes.Clone(good), good[5:]...)
	twice[1] = 6
	if err := New().Restore(twice); err == nil {
		t.Error("windows twice: accepted")
	}
	if err := table.Restore(nil); err != nil || table.Counts().Windows != 0 {
		t.Error("not empty")
	}
	if err := table.Apply(journal.Record{Kind: journal.KindMessages, Payload: make([]byte, 3)}); err == nil {
		t.Error("a cut batch: accepted")
	}
}

func FuzzRestore(f *testing.F) {
	table := New()
	for i := range uint64(3) {
		if err := table.Apply(record(key(1, 2), i*3, 2, index.Index(i), 1)); err != nil {
			f.Fatal(err)
		}
	}
	mutate.Fuzz(f, mutate.Decoder{Seeds: [][]byte{table.Snapshot(nil), {snapshotVersion, 1, 0, 0, 0}}, Slowness: 4, Check: func(t testing.TB, b []byte) bool {
		table := New()
		if table.Restore(b) != nil {
			return false
		}
		again := New()
		s := table.Snapshot(nil)
		if err := again.Restore(s); err != nil || !bytes.Equal(again.Snapshot(nil), s) {
			t.Fatalf("%x becomes %x: %v", b, s, err)
		}
		return true
	}})
}

// BenchmarkSend is what a send costs: Begin and Apply, with so many producers on 8 partitions each, one after the other.
func BenchmarkSend(b *testing.B) {
	for _, producers := range []int{1, 64, 1024} {
		b.Run(fmt.Sprint(producers), func(b *testing.B) {
			table := New()
			recs := make([]journal.Record, producers*8)
			for i := range recs {
				k := key(0, uint16(i%8))
				k.Producer[4], k.Producer[5], k.Producer[6] = 1, byte(i/8), byte(i/8>>8)
				recs[i] = record(k, 0, 1, 0, 1)
			}
			b.ReportAllocs()
			for i := range b.N {
				h := wire.Batch(recs[i%len(recs)].Payload)
				n := uint64(i / len(recs))
				putSequence(h, n)
				k, _ := KeyOf(h)
				if _, v, _, _ := table.Begin(k, n, 1, nil); v != Fresh {
					b.Fatal(v)
				}
				if err := table.Apply(recs[i%len(recs)]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkSnapshot is how long a full table holds off appends.
func BenchmarkSnapshot(b *testing.B) {
	table := New()
	for i := range WindowsMax * BatchesMax {
		k := key(1, uint16(i%WindowsMax))
		if err := table.Apply(record(k, uint64(i/WindowsMax), 1, index.Index(i), int64(i))); err != nil {
			b.Fatal(err)
		}
	}
	var buf []byte
	for b.Loop() {
		buf = table.Snapshot(buf[:0])
	}
	b.ReportMetric(float64(len(buf))/1e6, "MB")
}
