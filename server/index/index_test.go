package index

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"github.com/jmqio/jmq/server/servertest/mutate"
)

var (
	seed    = flag.Int64("seed", 0, "seed of random tests; 0: by the clock")
	rewrite = flag.Bool("rewrite", false, "write golden files")
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func random(t *testing.T) *rand.Rand {
	s := *seed
	if s == 0 {
		s = time.Now().UnixNano()
	}
	t.Logf("-seed %d", s)
	return rand.New(rand.NewSource(s))
}

var (
	storeID = [16]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	orders  = Key{Topic: 7, Incarnation: 1, Partition: 3}
)

func open(t testing.TB, fs vfs.FS, change func(*Options)) *Set {
	t.Helper()
	if err := fs.MkdirAll("index", 0o755); err != nil {
		t.Fatal(err)
	}
	o := Options{FS: fs, Dir: "index", StoreID: storeID, FlushBytes: 1}
	if change != nil {
		change(&o)
	}
	s := Open(o)
	t.Cleanup(func() { s.Close() })
	return s
}

// entryAt is what message i of fill's partitions is: batches of three, one second apart.
func entryAt(i Index) Entry {
	batch := uint64(i / 3)
	return Entry{Position: 1000 * (batch + 1), Stored: int64(batch) * 1e9, Size: uint32(500 + batch), TagHash: uint32(i % 5), Slot: uint16(i % 3), Count: 3}
}

// batchAt is the batch of messages i, i+1, i+2.
func batchAt(i Index) *Batch {
	e := entryAt(i)
	b := &Batch{Position: e.Position, Stored: e.Stored, Size: e.Size, Count: 3}
	for j := i; j < i+3; j++ {
		b.Tags = append(b.Tags, entryAt(j).TagHash)
	}
	return b
}

// fill appends batches of three up to end, which is at position 1000 * (end/3 + 1).
func fill(t testing.TB, s *Set, k Key, end Index) {
	t.Helper()
	_, i := s.Bounds(k)
	for ; i < end; i += 3 {
		if got, err := s.Append(k, i, batchAt(i)); err != nil || got != i+3 {
			t.Fatalf("append at %d: end %d, %v", i, got, err)
		}
	}
}

func mustFlush(t testing.TB, s *Set, to uint64) {
	t.Helper()
	if ok, err := s.Flush(to); !ok || err != nil {
		t.Fatal(ok, err)
	}
}

func mustRange(t testing.TB, s *Set, k Key, from, to Index) {
	t.Helper()
	got, err := s.Range(k, from, to, nil)
	if err != nil {
		t.Fatalf("range [%d, %d): %v", from, to, err)
	}
	if len(got) != int(to-from) {
		t.Fatalf("range [%d, %d): %d entries", from, to, len(got))
	}
	for i, e := range got {
		if want := entryAt(from + Index(i)); e != want {
			t.Fatalf("entry %d: got %+v, want %+v", from+Index(i), e, want)
		}
	}
}

// TestRangeAcrossRunsAndTail reads ranges that lie in a run, in the tail and across all.
func TestRangeAcrossRunsAndTail(t *testing.T) {
	s := open(t, vfs.NewMem(), nil)
	fill(t, s, orders, 600)
	mustFlush(t, s, entryAt(450).Position)
	fill(t, s, orders, 900)
	mustFlush(t, s, entryAt(897).Position)
	fill(t, s, orders, 1200)
	if m := s.Metrics(); m.TailEntries != 1200-897 || m.Runs != 2 || m.Extents != 2 {
		t.Fatalf("%+v", m)
	}
	for _, r := range [][2]Index{{0, 1200}, {0, 1}, {127, 129}, {449, 451}, {895, 898}, {897, 1200}, {1199, 1200}, {5, 5}, {300, 700}} {
		mustRange(t, s, orders, r[0], r[1])
	}
	if first, end := s.Bounds(orders); first != 0 || end != 1200 {
		t.Fatal(first, end)
	}
	if _, err := s.Range(orders, 1190, 1201, nil); !errors.Is(err, ErrBeyond) {
		t.Fatal(err)
	}
	if _, err := s.Range(Key{Topic: 9}, 0, 1, nil); !errors.Is(err, ErrBeyond) {
		t.Fatal(err)
	}
	s.SetFirst(orders, 100)
	if _, err := s.Range(orders, 99, 200, nil); !errors.Is(err, ErrTrimmed) {
		t.Fatal(err)
	}
	mustRange(t, s, orders, 100, 1200)
	s.SetFirst(orders, 50)
	if first, _ := s.Bounds(orders); first != 100 {
		t.Fatalf("first moved back to %d", first)
	}
}

// TestAppendGap shows that a batch that does not continue its partition is refused and changes nothing.
func TestAppendGap(t *testing.T) {
	s := open(t, vfs.NewMem(), nil)
	fill(t, s, orders, 9)
	for _, first := range []Index{0, 6, 8, 10} {
		var gap *GapError
		_, err := s.Append(orders, first, &Batch{Position: 5, Count: 1})
		if !errors.As(err, &gap) || gap.End != 9 || gap.First != first {
			t.Fatalf("append at %d: %v", first, err)
		}
	}
	mustRange(t, s, orders, 0, 9)
}

// TestSeek compares the search over runs and tail with a walk, for every time and first index, also where the clock was set
// back.
func TestSeek(t *testing.T) {
	s := open(t, vfs.NewMem(), nil)
	r := random(t)
	var stored []int64
	clock := int64(1000)
	add := func(n int) {
		for range n {
			clock += int64(r.Intn(7)) - 2
			if _, err := s.Append(orders, Index(len(stored)), &Batch{Position: uint64(len(stored) + 1), Stored: clock, Count: 1}); err != nil {
				t.Fatal(err)
			}
			last := clock
			if len(stored) > 0 {
				last = max(last, stored[len(stored)-1])
			}
			stored = append(stored, last)
		}
	}
	check := func() {
		t.Helper()
		for first := Index(0); first < Index(len(stored)); first += 60 {
			s.SetFirst(orders, first)
			for at := stored[0] - 1; at <= stored[len(stored)-1]+1; at++ {
				want := first
				for want < Index(len(stored)) && stored[want] < at {
					want++
				}
				if got, err := s.Seek(orders, at); err != nil || got != want {
					t.Fatalf("seek %d with first %d: got %d, %v, want %d", at, first, got, err, want)
				}
			}
		}
	}
	add(100)
	mustFlush(t, s, 101)
	add(156)
	mustFlush(t, s, 257) // all of it: nothing is left in the tail
	clock -= 50
	add(44)
	check()
	if got, err := s.Seek(Key{Topic: 99}, 5); got != 0 || err != nil {
		t.Fatal(got, err)
	}
}

func FuzzEntry(f *testing.F) {
	e := entryAt(4)
	f.Add(uint64(4), AppendEntry(nil, orders.Seed(), 4, &e))
	f.Add(uint64(0), make([]byte, EntryBytes))
	f.Add(uint64(0), []byte{1})
	decodes := func(t testing.TB, i uint64, b []byte) bool {
		e, wrong := DecodeEntry(orders.Seed(), Index(i), b)
		if wrong == "" && !bytes.Equal(AppendEntry(nil, orders.Seed(), Index(i), &e), b[:EntryBytes]) {
			t.Fatalf("entry %+v is not what was decoded", e)
		}
		return wrong == ""
	}
	good := AppendEntry(nil, orders.Seed(), 4, &e)
	mutate.Run(f, mutate.Decoder{
		Seeds: [][]byte{good, make([]byte, EntryBytes)},
		Seal: func(b []byte) {
			if len(b) >= EntryBytes {
				binary.LittleEndian.PutUint32(b[28:], check(orders.Seed(), 4, b))
			}
		},
		Check: func(t testing.TB, b []byte) bool { return decodes(t, 4, b) },
	})
	f.Fuzz(func(t *testing.T, i uint64, b []byte) { decodes(t, i, b) })
}

func readAll(t testing.TB, fs vfs.FS, name string) []byte {
	t.Helper()
	f, err := fs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, st.Size())
	if len(b) > 0 {
		if _, err := f.ReadAt(b, 0); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func writeAll(t testing.TB, fs vfs.FS, name string, b []byte) {
	t.Helper()
	if err := fs.Remove(name); err != nil {
		t.Fatal(err)
	}
	f, err := fs.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(b, 0); err != nil {
		t.Fatal(err)
	}
	f.Close()
}

// TestGolden holds the bytes of a run: a change of the format is a change of testdata/run.golden.
func TestGolden(t *testing.T) {
	fs := vfs.NewMem()
	s := open(t, fs, nil)
	fill(t, s, orders, 6)
	s.AppendLost(orders, 8, 3000)
	other := Key{Topic: 7, Incarnation: 1, Partition: 4}
	if _, err := s.Append(other, 0, &Batch{Position: 3100, Stored: 5e9, Size: 300, Count: 1}); err != nil {
		t.Fatal(err)
	}
	mustFlush(t, s, 4000)
	id := s.Runs()[0]
	raw := readAll(t, fs, fs.PathJoin("index", id.name()))
	var b bytes.Buffer
	fmt.Fprintf(&b, "# %s, %d bytes: header, 9 entries, 3 extents, trailer\n", id.name(), len(raw))
	b.WriteString(hex.Dump(raw))
	name := filepath.Join("testdata", "run.golden")
	if *rewrite {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, b.Bytes()) {
		t.Fatalf("format changed; -rewrite if that was meant\ngot\n%s\nwant\n%s", b.Bytes(), want)
	}
}

// TestDrop shows that nothing is left of partitions that were dropped: neither memory nor runs nor, after two checkpoints, files.
func TestDrop(t *testing.T) {
	fs := vfs.NewMem()
	s := open(t, fs, nil)
	const n = 100
	key := func(i int) Key { return Key{Topic: uint64(i + 1), Incarnation: 1} }
	for i := range n {
		fill(t, s, key(i), 30)
	}
	mustFlush(t, s, entryAt(30).Position)
	for i := range n {
		fill(t, s, key(i), 33)
		s.Move(key(i), 0, &Batch{Position: entryAt(33).Position, Size: 9, Count: 3})
	}
	for i := range n {
		s.Drop(key(i))
		s.Drop(key(i)) // twice is nothing more
	}
	if _, end := s.Bounds(key(1)); end != 0 {
		t.Fatal(end)
	}
	if more, err := s.Merge(1); more || err != nil {
		t.Fatal(more, err)
	}
	if m := s.Metrics(); m.Partitions != 0 || m.Runs != 0 || m.TailEntries != 0 || m.Extents != 0 || s.TailBytes() != 0 || len(s.all()) > 1 {
		t.Fatalf("%+v, %d bytes of tails, %d partitions", m, s.TailBytes(), len(s.all()))
	}
	if _, ok := s.Oldest(); ok {
		t.Fatal("something points into the journal")
	}
	if err := s.Sweep(nil); err != nil {
		t.Fatal(err)
	}
	if names, err := fs.List("index"); err != nil || len(names) != 0 {
		t.Fatal(names, err)
	}
}

// TestMove shows that a batch that was written again is found where it is now, in the tail, after a flush, after a merge, and
// that the part of it that is not kept is not brought back.
func TestMove(t *testing.T) {
	s := open(t, vfs.NewMem(), nil)
	fill(t, s, orders, 30)
	mustFlush(t, s, entryAt(30).Position)
	fill(t, s, orders, 60)
	s.SetFirst(orders, 4) // in the second batch
	moved := uint64(500_000)
	for _, first := range []Index{3, 6, 33} { // part of it dropped; in a run; in the tail
		b := batchAt(first)
		b.Position, b.Size = moved, b.Size+24
		s.Move(orders, first, b)
		moved += 1000
	}
	check := func(when string) {
		t.Helper()
		for i, want := range map[Index]uint64{4: 500_000, 5: 500_000, 6: 501_000, 8: 501_000, 9: entryAt(9).Position, 33: 502_000, 36: entryAt(36).Position} {
			e, err := s.Range(orders, i, i+1, nil)
			if err != nil || e[0].Position != want || e[0].Slot != entryAt(i).Slot || e[0].TagHash != entryAt(i).TagHash || e[0].Stored != entryAt(i).Stored {
				t.Fatalf("%s: message %d is %+v, %v, want position %d", when, i, e, err, want)
			}
		}
		if low, ok := s.Oldest(); !ok || low != entryAt(9).Position {
			t.Fatalf("%s: oldest %d, %v", when, low, ok)
		}
		if first, end := s.Bounds(orders); first != 4 || end != 60 {
			t.Fatalf("%s: [%d, %d)", when, first, end)
		}
	}
	check("pending")
	if err := s.Snapshot(moved, func(uint64, []RunID) error { return nil }, func(*State) error { return nil }); !errors.Is(err, ErrMoved) {
		t.Fatal(err)
	}
	mustFlush(t, s, moved)
	check("flushed")
	for i := Index(60); len(s.Runs()) < mergeRuns; i += 3 {
		b := batchAt(i)
		b.Position = moved
		if _, err := s.Append(orders, i, b); err != nil {
			t.Fatal(err)
		}
		moved += 1000
		mustFlush(t, s, moved)
	}
	end, _ := s.SeekPosition(orders, moved)
	for more := true; more; {
		var err error
		if more, err = s.Merge(100); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(s.Runs()); n != 1 {
		t.Fatalf("%d runs", n)
	}
	if i, err := s.SeekPosition(orders, 500_000); i != 4 || err != nil || end != 78 {
		t.Fatal(i, end, err)
	}
}

// TestLongExtents shows that runs with long extents are left as they are, and those with short ones are merged.
func TestLongExtents(t *testing.T) {
	for name, c := range map[string]struct{ partitions, entries, runs int }{
		"long":  {1, extentEntries * 3 / 2, mergeRuns + 2},
		"short": {extentEntries / 30, 30, 3}, // of the first eight one
	} {
		s := open(t, vfs.NewMem(), nil)
		end := Index(0)
		for range mergeRuns + 2 {
			end += Index(c.entries)
			for i := range c.partitions {
				fill(t, s, Key{Topic: uint64(i + 1), Incarnation: 1}, end)
			}
			mustFlush(t, s, entryAt(end).Position)
		}
		for more := true; more; {
			var err error
			if more, err = s.Merge(1 << 20); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(s.Runs()); n != c.runs {
			t.Errorf("%s extents: %d runs, want %d", name, n, c.runs)
		}
	}
}
