package index

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.uber.org/goleak"
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
	o := Options{FS: fs, Dir: "index", StoreID: storeID, FlushEntries: ChunkEntries}
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
	return Entry{Position: 1000 * batch, Stored: int64(batch) * 1e9, Size: uint32(500 + batch), TagHash: uint32(i % 5), Slot: uint16(i % 3), Count: 3}
}

// fill appends batches of three up to end.
func fill(t testing.TB, s *Set, k Key, end Index) {
	t.Helper()
	_, i := s.Bounds(k)
	for ; i < end; i += 3 {
		b := Batch{Position: entryAt(i).Position, Stored: entryAt(i).Stored, Size: entryAt(i).Size, Count: 3}
		for j := i; j < i+3; j++ {
			b.Tags = append(b.Tags, entryAt(j).TagHash)
		}
		if got, err := s.Append(k, i, &b); err != nil || got != i+3 {
			t.Fatalf("append at %d: end %d, %v", i, got, err)
		}
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

// TestRangeAcrossFileAndTail reads ranges that lie in the file, in the tail and across both.
func TestRangeAcrossFileAndTail(t *testing.T) {
	s := open(t, vfs.NewMem(), nil)
	fill(t, s, orders, 900)
	if n, err := s.Flush(); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	fill(t, s, orders, 1200)
	if m := s.Metrics(); m.TailEntries != 1200-896 {
		t.Fatalf("tail has %d entries, want what is beyond 7 chunks", m.TailEntries)
	}
	for _, r := range [][2]Index{{0, 1200}, {0, 1}, {127, 129}, {895, 897}, {896, 1200}, {1199, 1200}, {5, 5}, {300, 700}} {
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

// TestSeek compares the binary search over file and tail with a walk, for every time and first index, also where the
// clock was set back.
func TestSeek(t *testing.T) {
	s := open(t, vfs.NewMem(), nil)
	r := random(t)
	var stored []int64
	clock := int64(1000)
	add := func(n int) {
		for range n {
			clock += int64(r.Intn(7)) - 2
			if _, err := s.Append(orders, Index(len(stored)), &Batch{Stored: clock, Count: 1}); err != nil {
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
	add(256)
	if n, err := s.Flush(); n != 1 || err != nil { // all of it: nothing is left in the tail
		t.Fatal(n, err)
	}
	clock -= 50
	add(44)
	check()
	if got, err := s.Seek(Key{Topic: 99}, 5); got != 0 || err != nil {
		t.Fatal(got, err)
	}
}

// TestModel drives a set with random calls, restarts from its snapshots and flushes, and compares with a slice.
func TestModel(t *testing.T) {
	r := random(t)
	for round := range 30 {
		fs := vfs.NewMem()
		small := func(o *Options) { o.FilesOpenMax, o.TailBytesMax = 2, 3000 }
		s := open(t, fs, small)
		keys := []Key{orders, {Topic: 7, Incarnation: 1, Partition: 4}, {Topic: 7, Incarnation: 2, Partition: 3}, {Topic: 8, Incarnation: 1}}
		model := make([][]Entry, len(keys))
		first := make([]Index, len(keys))
		pos := uint64(0)
		var log []string
		for range 150 {
			i := r.Intn(len(keys))
			k := keys[i]
			switch op := r.Intn(20); {
			case op < 12:
				b := Batch{Position: pos, Stored: int64(pos), Size: uint32(r.Intn(1000)), Count: uint16(1 + r.Intn(60))}
				pos += 64
				if r.Intn(2) == 0 {
					for range b.Count {
						b.Tags = append(b.Tags, r.Uint32())
					}
				}
				log = append(log, fmt.Sprintf("append %v %d", k, b.Count))
				if _, err := s.Append(k, Index(len(model[i])), &b); err != nil {
					t.Fatal(err, log)
				}
				for n := range b.Count {
					e := Entry{Position: b.Position, Stored: b.Stored, Size: b.Size, Slot: n, Count: b.Count}
					if b.Tags != nil {
						e.TagHash = b.Tags[n]
					}
					model[i] = append(model[i], e)
				}
			case op < 14:
				log = append(log, "flush")
				if _, err := s.Flush(); err != nil {
					t.Fatal(err, log)
				}
			case op < 15:
				end := Index(r.Intn(len(model[i]) + 1))
				end -= min(end, Index(0))
				for end < Index(len(model[i])) && model[i][end].Slot != 0 {
					end++
				}
				log = append(log, fmt.Sprintf("truncate %v %d", k, end))
				s.Truncate(k, end)
				model[i] = model[i][:end]
				first[i] = min(first[i], end)
			case op < 16:
				f := first[i] + Index(r.Intn(len(model[i])-int(first[i])+1))
				log = append(log, fmt.Sprintf("first %v %d", k, f))
				s.SetFirst(k, f)
				first[i] = f
			case op < 18:
				log = append(log, "restart")
				var states []State
				if err := s.Snapshot(func(st *State) error {
					c := *st
					c.Tail = slices.Clone(st.Tail)
					states = append(states, c)
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				s.Close()
				s = open(t, fs, small)
				for i := range states {
					s.Restore(&states[i])
				}
				if bad := s.Check(); len(bad) != 0 {
					t.Fatal(bad, log)
				}
			}
			for i, k := range keys {
				f, end := s.Bounds(k)
				if end != Index(len(model[i])) || f != first[i] {
					t.Fatalf("round %d: bounds of %v: [%d, %d), want [%d, %d)\n%s", round, k, f, end, first[i], len(model[i]), strings.Join(log, "\n"))
				}
				from := f + Index(r.Intn(int(end-f)+1))
				to := from + Index(r.Intn(int(end-from)+1))
				got, err := s.Range(k, from, to, nil)
				if err != nil || !slices.Equal(got, model[i][from:to]) {
					t.Fatalf("round %d: range %v [%d, %d): %v\ngot  %v\nwant %v\n%s", round, k, from, to, err, got, model[i][from:to], strings.Join(log, "\n"))
				}
			}
			if n := s.files.len(); n > 2 {
				t.Fatalf("%d files are open", n)
			}
		}
	}
}

// TestTailBudget shows that short tails are moved too when all together take too much memory, the longest first, and that
// what is less than a chunk makes no file.
func TestTailBudget(t *testing.T) {
	fs := vfs.NewMem()
	s := open(t, fs, func(o *Options) { o.FlushEntries, o.TailBytesMax = 4096, 64<<10 })
	for i := range 20 {
		fill(t, s, Key{Topic: 1, Incarnation: 1, Partition: uint16(i)}, Index(60+15*i))
	}
	if n, err := s.Flush(); err != nil || n == 0 || n == 20 {
		t.Fatal(n, err)
	}
	if m := s.Metrics(); m.TailEntries*EntryBytes > 64<<10 {
		t.Fatalf("tails hold %d entries", m.TailEntries)
	}
	names, err := fs.List("index")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if n < fileName(Key{Topic: 1, Incarnation: 1, Partition: 5}) {
			t.Fatalf("partition of less than a chunk has a file: %v", names)
		}
	}
	for i := range 20 {
		mustRange(t, s, Key{Topic: 1, Incarnation: 1, Partition: uint16(i)}, 0, Index(60+15*i))
	}
}

// TestDamage shows what is said of a file that is missing, empty, zero, short, foreign, newer, of another partition, or
// has a flipped bit anywhere; and that Rebuild makes each whole again.
func TestDamage(t *testing.T) {
	other := Key{Topic: 7, Incarnation: 1, Partition: 4}
	const n = 2 * ChunkEntries
	write := func(t *testing.T, fs vfs.FS, b []byte) {
		name := fs.PathJoin("index", fileName(orders))
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
	resign := func(b []byte, change func(h *header)) []byte {
		h, wrong := decodeHeader(b)
		if wrong != "" {
			t.Fatal(wrong)
		}
		change(&h)
		return append(h.encode(), b[headerBytes:]...)
	}
	for _, c := range []struct {
		name   string
		change func(b []byte) []byte
		want   string
		looked bool // Check sees it
	}{
		{"empty", func(b []byte) []byte { return nil }, "less than a header", true},
		{"zero", func(b []byte) []byte { return make([]byte, len(b)) }, "all zero", false},
		{"short", func(b []byte) []byte { return b[:len(b)-EntryBytes-1] }, "short", true},
		{"foreign", func(b []byte) []byte { return bytes.Repeat([]byte("GET / "), len(b)/6+1) }, "not an index file", false},
		{"other store", func(b []byte) []byte { return resign(b, func(h *header) { h.StoreID[0] ^= 1 }) }, "another store", false},
		{"other partition", func(b []byte) []byte { return resign(b, func(h *header) { h.Key = other }) }, "another partition", false},
		{"other base", func(b []byte) []byte { return resign(b, func(h *header) { h.Base = 5 }) }, "begins at index 5", false},
		{"header bit", func(b []byte) []byte { b[33] ^= 4; return b }, "checksum of the header", false},
		{"entry bit", func(b []byte) []byte { b[headerBytes+100*EntryBytes+7] ^= 1; return b }, "check of the entry", false},
		{"zero entries", func(b []byte) []byte { clear(b[headerBytes+4096:]); return b }, "check of the entry", false},
		{"moved entries", func(b []byte) []byte {
			copy(b[headerBytes+EntryBytes:], b[headerBytes:])
			return b
		}, "check of the entry", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			fs := vfs.NewMem()
			s := open(t, fs, nil)
			fill(t, s, orders, n+2)
			fill(t, s, other, n)
			if _, err := s.Flush(); err != nil {
				t.Fatal(err)
			}
			raw := readAll(t, fs, fs.PathJoin("index", fileName(orders)))
			write(t, fs, c.change(slices.Clone(raw)))
			looked := s.Check()
			if c.looked != (len(looked) == 1) {
				t.Fatalf("check: %v", looked)
			}
			var d *DamageError
			_, err := s.Range(orders, 0, n, nil)
			if !errors.As(err, &d) || d.Key != orders || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want a DamageError with %q", err, c.want)
			}
			mustRange(t, s, orders, n, n+2) // the tail is in memory
			mustRange(t, s, other, 0, n)

			b := s.Rebuild(orders)
			for i := Index(0); b.Missing() > 0; i += 3 {
				e := entryAt(i)
				batch := Batch{Position: e.Position, Stored: e.Stored, Size: e.Size, Count: 3,
					Tags: []uint32{entryAt(i).TagHash, entryAt(i + 1).TagHash, entryAt(i + 2).TagHash}}
				if err := b.Add(orders, i, &batch); err != nil {
					t.Fatal(err)
				}
				if err := b.Add(other, i, &batch); err != nil {
					t.Fatal(err)
				}
			}
			if err := b.Finish(); err != nil {
				t.Fatal(err)
			}
			mustRange(t, s, orders, 0, n+2)
			if got := readAll(t, fs, fs.PathJoin("index", fileName(orders))); !bytes.Equal(got, raw) {
				t.Fatal("the rebuilt file differs from what it was")
			}
			if names, _ := fs.List("index"); len(names) != 2 {
				t.Fatal(names)
			}
		})
	}
	t.Run("newer", func(t *testing.T) {
		fs := vfs.NewMem()
		s := open(t, fs, nil)
		fill(t, s, orders, n)
		if _, err := s.Flush(); err != nil {
			t.Fatal(err)
		}
		raw := readAll(t, fs, fs.PathJoin("index", fileName(orders)))
		write(t, fs, resign(raw, func(h *header) { h.Version = 2 }))
		if _, err := s.Range(orders, 0, 1, nil); !errors.Is(err, ErrVersion) || !strings.Contains(err.Error(), "version 2") {
			t.Fatal(err)
		}
	})
	t.Run("missing", func(t *testing.T) {
		fs := vfs.NewMem()
		s := open(t, fs, nil)
		fill(t, s, orders, n)
		if _, err := s.Flush(); err != nil {
			t.Fatal(err)
		}
		if err := fs.Remove(fs.PathJoin("index", fileName(orders))); err != nil {
			t.Fatal(err)
		}
		if bad := s.Check(); len(bad) != 1 || !strings.Contains(bad[0].Error(), "missing") {
			t.Fatal(bad)
		}
		// The next chunks must not make a file with a hole; they stay in memory, and other partitions are flushed.
		fill(t, s, orders, 2*n)
		fill(t, s, other, n)
		var d *DamageError
		if w, err := s.Flush(); w != 1 || !errors.As(err, &d) {
			t.Fatal(w, err)
		}
		mustRange(t, s, orders, n, 2*n)
		if bad := s.Check(); len(bad) != 1 {
			t.Fatal(bad)
		}
		b := s.Rebuild(orders)
		if err := b.Finish(); err == nil || !strings.Contains(err.Error(), "does not hold [0, 256)") {
			t.Fatal(err)
		}
	})
}

// TestEveryBit flips each bit of a file, and each must be found.
func TestEveryBit(t *testing.T) {
	fs := vfs.NewMem()
	s := open(t, fs, nil)
	fill(t, s, orders, ChunkEntries+1)
	if _, err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	raw := readAll(t, fs, fs.PathJoin("index", fileName(orders)))
	key := orders.Seed()
	for i := 0; i < headerUsedBytes*8; i++ {
		b := slices.Clone(raw[:headerUsedBytes])
		b[i/8] ^= 1 << (i % 8)
		if h, wrong := decodeHeader(b); wrong == "" {
			t.Fatalf("bit %d of the header: %+v", i, h)
		}
	}
	for n := range Index(ChunkEntries) {
		p := raw[offsetOf(n):][:EntryBytes]
		for i := range EntryBytes * 8 {
			p[i/8] ^= 1 << (i % 8)
			if e, wrong := DecodeEntry(key, n, p); wrong == "" {
				t.Fatalf("bit %d of entry %d: %+v", i, n, e)
			}
			p[i/8] ^= 1 << (i % 8)
		}
		for m := range Index(ChunkEntries) {
			if e, wrong := DecodeEntry(key, m, p); (wrong == "") != (m == n) {
				t.Fatalf("entry %d in the place of %d: %+v %s", n, m, e, wrong)
			}
		}
	}
}

// TestErrorAtEveryCall fails each file operation of a flush, a rebuild and a read once: nothing is lost, and the next try works.
func TestErrorAtEveryCall(t *testing.T) {
	for k := 1; ; k++ {
		mem := vfs.NewMem()
		if err := mem.MkdirAll("index", 0o755); err != nil {
			t.Fatal(err)
		}
		calls, armed := 0, false
		fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(errorfs.Op) error {
			if !armed {
				return nil
			}
			if calls++; calls == k {
				return errorfs.ErrInjected
			}
			return nil
		}))
		s := Open(Options{FS: fs, Dir: "index", StoreID: storeID, FlushEntries: ChunkEntries})
		fill(t, s, orders, ChunkEntries+3)
		failed := false
		try := func(f func() error) {
			t.Helper()
			armed = true
			err := f()
			armed = false
			if err == nil {
				return
			}
			if failed || !errors.Is(err, errorfs.ErrInjected) {
				t.Fatalf("call %d: %v", k, err)
			}
			failed = true
			_, end := s.Bounds(orders)
			for i := Index(0); i < end; i++ { // all is there, whatever failed
				mustRange(t, s, orders, i, i+1)
			}
			if err := f(); err != nil {
				t.Fatalf("call %d: second try: %v", k, err)
			}
		}
		flush := func() error { _, err := s.Flush(); return err }
		read := func() error { _, err := s.Range(orders, 0, ChunkEntries, nil); return err }
		try(flush)
		try(read)
		fill(t, s, orders, 2*ChunkEntries+2)
		try(flush)
		try(read)
		try(func() error {
			b := s.Rebuild(orders)
			for i := Index(0); b.Missing() > 0; i += 3 {
				e := entryAt(i)
				batch := Batch{Position: e.Position, Stored: e.Stored, Size: e.Size, Count: 3,
					Tags: []uint32{entryAt(i).TagHash, entryAt(i + 1).TagHash, entryAt(i + 2).TagHash}}
				if err := b.Add(orders, i, &batch); err != nil {
					b.Abort()
					return err
				}
			}
			return b.Finish()
		})
		_, end := s.Bounds(orders)
		mustRange(t, s, orders, 0, end)
		s.Close()
		if !failed && calls < k {
			t.Logf("%d calls", calls)
			if calls < 15 {
				t.Fatal("the calls were not counted")
			}
			return
		}
	}
}

// TestReadError shows that an error of the disk is told, and is damage of that partition.
func TestReadError(t *testing.T) {
	mem := vfs.NewMem()
	broken := false
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if broken && op.Kind == errorfs.OpFileReadAt && op.Offset >= headerBytes {
			return syscall.EIO
		}
		return nil
	}))
	s := open(t, fs, nil)
	fill(t, s, orders, ChunkEntries+1)
	if _, err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	broken = true
	var d *DamageError
	if _, err := s.Range(orders, 5, 7, nil); !errors.As(err, &d) || d.Index != 5 || !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	if _, err := s.Seek(orders, 1); !errors.As(err, &d) {
		t.Fatal(err)
	}
}

// TestGolden holds the bytes of a file: a change of the format is a change of testdata/file.golden.
func TestGolden(t *testing.T) {
	fs := vfs.NewMem()
	s := open(t, fs, nil)
	fill(t, s, orders, ChunkEntries+1)
	if _, err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	raw := readAll(t, fs, fs.PathJoin("index", fileName(orders)))
	var b bytes.Buffer
	fmt.Fprintf(&b, "# %s, %d bytes: the header's first 64, then entries 0 to 3 and 127\n", fileName(orders), len(raw))
	b.WriteString(hex.Dump(raw[:headerUsedBytes]))
	for _, i := range []Index{0, 1, 2, 3, 127} {
		fmt.Fprintf(&b, "entry %d %+v\n", i, entryAt(i))
		b.WriteString(hex.Dump(raw[offsetOf(i):][:EntryBytes]))
	}
	name := filepath.Join("testdata", "file.golden")
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
	for _, z := range raw[headerUsedBytes:headerBytes] {
		if z != 0 {
			t.Fatal("the rest of the header is not zero")
		}
	}
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

func FuzzEntry(f *testing.F) {
	e := entryAt(4)
	f.Add(uint64(4), AppendEntry(nil, orders.Seed(), 4, &e))
	f.Add(uint64(0), make([]byte, EntryBytes))
	f.Add(uint64(0), []byte{1})
	f.Fuzz(func(t *testing.T, i uint64, b []byte) {
		e, wrong := DecodeEntry(orders.Seed(), Index(i), b)
		if wrong == "" && !bytes.Equal(AppendEntry(nil, orders.Seed(), Index(i), &e), b[:EntryBytes]) {
			t.Fatalf("entry %+v is not what was decoded", e)
		}
	})
}

// FuzzFile puts any bytes where a partition's file should be: a read gives what was written there, or an error.
func FuzzFile(f *testing.F) {
	h := header{Version: Version, StoreID: storeID, Key: orders}
	good := h.encode()
	for i := range Index(ChunkEntries) {
		e := entryAt(i)
		good = AppendEntry(good, orders.Seed(), i, &e)
	}
	f.Add(good)
	f.Add([]byte{})
	f.Add(make([]byte, len(good)))
	f.Add(good[:len(good)-5])
	f.Fuzz(func(t *testing.T, b []byte) {
		fs := vfs.NewMem()
		s := open(t, fs, nil)
		w, err := fs.OpenReadWrite(fs.PathJoin("index", fileName(orders)), vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.WriteAt(b, 0); err != nil {
			t.Fatal(err)
		}
		w.Close()
		s.Restore(&State{Key: orders, Flushed: ChunkEntries})
		s.Check()
		got, err := s.Range(orders, 0, ChunkEntries, nil)
		if err != nil {
			var d *DamageError
			if !errors.As(err, &d) && !errors.Is(err, ErrVersion) {
				t.Fatal(err)
			}
		}
		for i := range got {
			if !bytes.Equal(AppendEntry(nil, orders.Seed(), Index(i), &got[i]), b[offsetOf(Index(i)):][:EntryBytes]) {
				t.Fatalf("entry %d is not what the file has", i)
			}
		}
	})
}
