package side

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/journal/journaltest"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/servertest/mutate"
	"github.com/jmqio/jmq/wire"
)

var (
	rewrite  = flag.Bool("rewrite", false, "write the golden files anew")
	seedFlag = flag.Uint64("seed", 0, "seed of the random tests; 0 draws one")
)

func seeded(t *testing.T) *rand.Rand {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

const dir = "/side"

func newFS(t testing.TB, mem *vfs.MemFS) *journaltest.FS {
	f := journaltest.New(mem)
	if err := f.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	root, err := f.OpenDir("/")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(root.Sync(), root.Close()); err != nil {
		t.Fatal(err)
	}
	return f
}

func mustOpen(t testing.TB, o Options) *File {
	t.Helper()
	o.Dir = dir
	f, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// all reads the file in small pieces.
func all(f *File) (e Entries, err error) {
	for at := int64(0); ; {
		parts, next, err := f.Read(at, 100)
		if err != nil || len(parts) == 0 {
			return e, err
		}
		more, err := Decode(parts)
		if err != nil {
			return e, err
		}
		e.Ends, e.Expiries, at = append(e.Ends, more.Ends...), append(e.Expiries, more.Expiries...), next
	}
}

var orders = offset.Topic{ID: 300, Incarnation: 1}

// end is the n-th entry of a test: all differ.
func end(n uint64) End {
	return End{offset.End{Group: 1, Topic: orders, Partition: 0, Generation: 1, Outcome: wire.Acked, Range: offset.Range{From: index.Index(3 * n), To: index.Index(3*n + 2)}},
		Record{journal.Position(n * 64), journal.Epoch(1<<32 | 1)}}
}

func goldenEntries() []Entries {
	return []Entries{{Ends: []End{
		{offset.End{Group: 1, Topic: orders, Partition: 0, Generation: 1, Outcome: wire.Acked, Range: offset.Range{From: 1000, To: 1010}}, Record{65536, 3<<32 | 2}},
		{offset.End{Group: 1, Topic: orders, Partition: 7, Generation: 2, Outcome: wire.Acked, Range: offset.Range{From: 5, To: 6}}, Record{64, 1<<32 | 1}},
	}}, {Ends: []End{
		{offset.End{Group: 2, Topic: orders, Partition: 0, Generation: 1, Outcome: wire.Skipped, Range: offset.Range{From: 3, To: 4}}, Record{4096, 3<<32 | 2}},
	}, Expiries: []Expiry{
		{offset.Expiry{Group: 2, Topic: orders, Partition: 0, Generation: 1, Count: 1, Ranges: offset.Ranges{{From: 10, To: 12}, {From: 20, To: 25}}}, Record{8192, 3<<32 | 2}},
	}}}
}

// TestFormat holds the bytes of a file to testdata/side.hex, which FORMAT.md explains, and reads them back.
func TestFormat(t *testing.T) {
	fs := newFS(t, nil)
	f := mustOpen(t, Options{FS: fs, Random: func(b []byte) {
		for i := range b {
			b[i] = byte(i + 1)
		}
	}})
	var want Entries
	for _, e := range goldenEntries() {
		if err := f.Append(&e); err != nil {
			t.Fatal(err)
		}
		want.Ends, want.Expiries = append(want.Ends, e.Ends...), append(want.Expiries, e.Expiries...)
	}
	if got, err := all(f); err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("read back %+v, %v, want %+v", got, err, want)
	}
	b, err := journaltest.ReadFile(fs.Mem(), dir+"/"+FileName)
	if err != nil {
		t.Fatal(err)
	}
	var dump strings.Builder
	for i := 0; i < len(b); i += 16 {
		fmt.Fprintf(&dump, "%04x  % x\n", i, b[i:min(i+16, len(b))])
	}
	const golden = "testdata/side.hex"
	if *rewrite {
		if err := os.WriteFile(golden, []byte(dump.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	wanted, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if dump.String() != string(wanted) {
		t.Errorf("the file is\n%swant\n%s", dump.String(), wanted)
	}
}

// TestFileOps holds the operations on the disk to testdata/ops.txt: what is synced before what.
func TestFileOps(t *testing.T) {
	fs := newFS(t, nil)
	fs.TakeOps()
	var out strings.Builder
	show := func(what string) {
		fmt.Fprintf(&out, "%s:\n", what)
		for _, op := range fs.TakeOps() {
			fmt.Fprintf(&out, "  %v\n", op)
		}
	}
	f := mustOpen(t, Options{FS: fs})
	show("open without a file")
	for n := range uint64(2) {
		if err := f.Append(&Entries{Ends: []End{end(n)}}); err != nil {
			t.Fatal(err)
		}
		show("append")
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	f = mustOpen(t, Options{FS: fs})
	show("open")
	if err := f.Remove(); err != nil {
		t.Fatal(err)
	}
	show("remove")
	const golden = "testdata/ops.txt"
	if *rewrite {
		if err := os.WriteFile(golden, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if out.String() != string(want) {
		t.Errorf("operations are\n%swant\n%s", out.String(), want)
	}
}

// TestCrash crashes after each operation of a run of appends and removals, and of the recovery that follows: what was answered is there,
// what was removed is not, nothing else is, and no damage is told.
func TestCrash(t *testing.T) {
	rng := seeded(t)
	fs := newFS(t, nil)
	f := mustOpen(t, Options{FS: fs})
	// Entries [first, acked) are there; up to most they may be, or with a removal under way none.
	var first, acked, most uint64
	removing := false
	check := func(disk vfs.FS, what string, first, acked, most uint64, removing bool) *File {
		f, err := Open(Options{FS: disk, Dir: dir})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		got, err := all(f)
		if err != nil || f.Metrics().Damaged != 0 {
			t.Fatalf("%s: %v, damaged %+v", what, err, f.Metrics())
		}
		n := uint64(len(got.Ends))
		if !(removing && n == 0) && (n < acked-first || n > most-first) {
			t.Fatalf("%s: %d entries, want %d to %d", what, n, acked-first, most-first)
		}
		for i, e := range got.Ends {
			if !reflect.DeepEqual(e, end(first+uint64(i))) {
				t.Fatalf("%s: entry %d is %+v", what, i, e)
			}
		}
		return f
	}
	crashes := 0
	fs.SetAfter(func(op journaltest.Op) {
		for _, percent := range []int{0, 50, 100} {
			crashes++
			what := fmt.Sprintf("crash %d after %v with %d %% of the unsynced", crashes, op, percent)
			disk := fs.Crash(percent, rng)
			// Its recovery crashes too.
			again := journaltest.New(disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rng}))
			again.SetAfter(func(op journaltest.Op) {
				check(again.Crash(50, rng), what+fmt.Sprintf(", recovery after %v", op), first, acked, most, removing)
			})
			check(again, what, first, acked, most, removing)
			// It goes on.
			f := check(disk, what, first, acked, most, removing)
			got, _ := all(f)
			more := Entries{Ends: []End{end(1 << 20)}}
			if err := f.Append(&more); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			f = mustOpen(t, Options{FS: disk})
			if after, err := all(f); err != nil || !reflect.DeepEqual(after.Ends, append(got.Ends, more.Ends...)) {
				t.Fatalf("%s: after another append there are %d entries, %v", what, len(after.Ends), err)
			}
		}
	})
	for range 20 {
		if rng.IntN(8) == 0 && acked > first {
			removing = true
			if err := f.Remove(); err != nil {
				t.Fatal(err)
			}
			removing, first = false, acked
			continue
		}
		var e Entries
		n := acked + 1 + rng.Uint64N(30)
		if rng.IntN(10) == 0 {
			n += 2*entriesMax + 1 // several records
		}
		for ; most < n; most++ {
			e.Ends = append(e.Ends, end(most))
		}
		if err := f.Append(&e); err != nil {
			t.Fatal(err)
		}
		acked = most
	}
	if crashes < 60 {
		t.Errorf("only %d crashes", crashes)
	}
}

// TestDamage flips every byte of a file: each entry is there as it was, or it is told that bytes are damaged, but for those of the last append, which
// could be torn.
func TestDamage(t *testing.T) {
	fs := newFS(t, nil)
	f := mustOpen(t, Options{FS: fs})
	const appends = 5
	var last int64
	for n := range uint64(appends) {
		last = f.mu.end
		if err := f.Append(&Entries{Ends: []End{end(n)}}); err != nil {
			t.Fatal(err)
		}
	}
	good, err := journaltest.ReadFile(fs.Mem(), dir+"/"+FileName)
	if err != nil {
		t.Fatal(err)
	}
	for i := range good {
		for _, flip := range []byte{1, 0x80, 0xff} {
			b := append([]byte(nil), good...)
			b[i] ^= flip
			disk := newFS(t, nil)
			journaltest.WriteFile(disk.Mem(), dir+"/"+FileName, b)
			f, err := Open(Options{FS: disk, Dir: dir})
			if err != nil {
				if errors.Is(err, ErrVersion) {
					continue
				}
				t.Fatalf("byte %d: %v", i, err)
			}
			got, err := all(f)
			if err != nil {
				t.Fatalf("byte %d: %v", i, err)
			}
			next := uint64(0)
			for _, e := range got.Ends {
				n := uint64(e.Range.From) / 3
				if n < next || !reflect.DeepEqual(e, end(n)) {
					t.Fatalf("byte %d: entry %+v after %d", i, e, next)
				}
				next = n + 1
			}
			if missing := appends - len(got.Ends); missing > 0 && f.Metrics().Damaged == 0 && int64(i) < last {
				t.Fatalf("byte %d of %d: %d entries are missing, and no damage was told", i, len(good), missing)
			}
			if int64(i) >= fileHeaderBytes && len(got.Ends) < appends-1 {
				t.Fatalf("byte %d: only %d entries are left", i, len(got.Ends))
			}
		}
	}
}

// TestFaults fails each operation of an append once: it says so, and the file takes nothing more until it was removed; what
// was answered is there when it is opened again.
func TestFaults(t *testing.T) {
	for fault := 0; ; fault++ {
		fs := newFS(t, nil)
		f := mustOpen(t, Options{FS: fs})
		begin, hit := fs.Calls(), false
		fs.SetBefore(func(op journaltest.Op) journaltest.Fault {
			if op.N == begin+fault+1 {
				hit = true
				return journaltest.Fault{Err: journaltest.ErrInjected}
			}
			return journaltest.Fault{}
		})
		acked := uint64(0)
		var failed error
		for n := range uint64(3) {
			err := f.Append(&Entries{Ends: []End{end(n)}})
			if failed != nil && err == nil {
				t.Fatalf("fault %d: an append after one that failed was taken", fault)
			}
			if err == nil {
				acked++
			} else if failed = err; !errors.Is(err, ErrFailed) {
				t.Fatalf("fault %d: %v", fault, err)
			}
		}
		if !hit {
			if fault < 6 {
				t.Errorf("only %d operations", fault)
			}
			return
		}
		fs.SetBefore(nil)
		again := mustOpen(t, Options{FS: fs.Mem()})
		if got, err := all(again); err != nil || uint64(len(got.Ends)) < acked {
			t.Fatalf("fault %d: %d entries, %v, %d were acknowledged", fault, len(got.Ends), err, acked)
		}
	}
}

// TestFull: an append beyond the bound is refused whole, and the next that fits is taken.
func TestFull(t *testing.T) {
	fs := newFS(t, nil)
	f := mustOpen(t, Options{FS: fs, BytesMax: 300})
	var many Entries
	for n := range uint64(40) {
		many.Ends = append(many.Ends, end(n))
	}
	if err := f.Append(&many); !errors.Is(err, ErrFull) {
		t.Fatalf("40 entries in 300 bytes: %v", err)
	}
	if err := f.Append(&Entries{Ends: []End{end(7)}}); err != nil {
		t.Fatal(err)
	}
	if got, err := all(f); err != nil || len(got.Ends) != 1 || !reflect.DeepEqual(got.Ends[0], end(7)) {
		t.Fatalf("%+v %v", got, err)
	}
	if m := f.Metrics(); m.Entries != 1 || m.Bytes > 300 || f.Empty() {
		t.Errorf("%+v", m)
	}
}

// FuzzDecode: whatever a peer sends is decoded to something that encodes to the same again, or refused.
func FuzzDecode(f *testing.F) {
	seeds := [][]byte{{kindHandOffs, 0}}
	for _, e := range goldenEntries() {
		seeds = append(seeds, appendParts(nil, &e, func(b []byte) []byte { return b }))
	}
	mutate.Fuzz(f, mutate.Decoder{Seeds: seeds, Check: func(t testing.TB, b []byte) bool {
		e, err := Decode(b)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) {
				t.Fatal(err)
			}
			return false
		}
		for _, v := range e.Ends {
			if v.Range.Len() == 0 || v.Group == 0 {
				t.Fatalf("%+v", v)
			}
		}
		for _, v := range e.Expiries {
			if len(v.Ranges) == 0 || v.Count == 0 {
				t.Fatalf("%+v", v)
			}
		}
		return true
	}})
}

// FuzzFile opens any bytes as a side file: it is opened or refused as of another version, what it holds can be read, entries can be added, and
// the next start finds them.
func FuzzFile(f *testing.F) {
	disk := mutate.NewDisk()
	o := Options{FS: disk, Dir: dir, Random: func(b []byte) { copy(b, "a file's number") }}
	file := mustOpen(f, o)
	for _, e := range goldenEntries() {
		if err := file.Append(&e); err != nil {
			f.Fatal(err)
		}
	}
	good := bytes.Clone(disk.Bytes(file.path))
	if err := file.Close(); err != nil {
		f.Fatal(err)
	}
	seal := func(b []byte) {
		if len(b) < fileHeaderBytes {
			return
		}
		binary.LittleEndian.PutUint32(b[fileHeaderBytes-4:], crc32.Checksum(b[:fileHeaderBytes-4], crcTable))
		nonce := crc32.Checksum(b[12:fileHeaderBytes-4], crcTable)
		for at := fileHeaderBytes; at+recordHeadBytes <= len(b); {
			n := int(binary.LittleEndian.Uint32(b[at:]))
			if n <= recordHeadBytes || n > len(b)-at {
				return
			}
			binary.LittleEndian.PutUint64(b[at+8:], uint64(at))
			binary.LittleEndian.PutUint32(b[at+4:], crc32.Update(nonce, crcTable, b[at+8:at+n]))
			at += int(align(int64(n)))
		}
	}
	mutate.Fuzz(f, mutate.Decoder{Seeds: [][]byte{good, good[:fileHeaderBytes], {}}, Seal: seal, Slowness: 50, Check: func(t testing.TB, b []byte) bool {
		disk.Clear()
		disk.Put(file.path, b)
		file, err := Open(o)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) {
				t.Fatal(err)
			}
			return false
		}
		before, err := all(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := file.Append(&Entries{Ends: []End{end(7)}}); err != nil {
			t.Fatal(err)
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
		if file, err = Open(o); err != nil {
			t.Fatal(err)
		}
		after, err := all(file)
		if err != nil || after.Len() != before.Len()+1 {
			t.Fatalf("%d entries, then %d: %v", before.Len(), after.Len(), err)
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
		return before.Len() > 0
	}})
}

// TestDecode refuses what is cut anywhere, and parts of a kind that is not known.
func TestDecode(t *testing.T) {
	e := goldenEntries()[1]
	good := appendParts(nil, &e, func(b []byte) []byte { return b })
	if got, err := Decode(good); err != nil || !reflect.DeepEqual(got, e) {
		t.Fatalf("%+v %v", got, err)
	}
	ends := len(appendParts(nil, &Entries{Ends: e.Ends}, func(b []byte) []byte { return b }))
	for n := 1; n < len(good); n++ {
		if _, err := Decode(good[:n]); (err == nil) != (n == ends) {
			t.Errorf("%d of %d bytes (%s): %v", n, len(good), hex.EncodeToString(good[:n]), err)
		}
	}
	if _, err := Decode([]byte{kindHandOffs, 1, 0}); !errors.Is(err, ErrVersion) {
		t.Errorf("hand-offs: %v", err)
	}
}

// TestKilledThenPowerLoss kills the process at each call of its first appends, which leaves all that it wrote, and not all of it on the disk: there its
// last sync may have failed too. What the next process shows, or answers, is there after a lost power, and no damage is told.
func TestKilledThenPowerLoss(t *testing.T) {
	for _, loseBlocks := range []bool{false, true} {
		for k, killed := 1, true; killed; k++ {
			fs := newFS(t, nil)
			calls := 0
			fs.SetBefore(func(op journaltest.Op) journaltest.Fault {
				if op.Changes() {
					calls++
				}
				if calls < k {
					return journaltest.Fault{}
				}
				return journaltest.Fault{Err: journaltest.ErrInjected, LoseBlocks: loseBlocks && calls == k && op.Call == journaltest.Sync}
			})
			f := mustOpen(t, Options{FS: fs})
			answered := 0
			for n := range uint64(2) {
				if f.Append(&Entries{Ends: []End{end(n)}}) == nil {
					answered++
				}
			}
			_ = f.Close()
			killed = calls >= k
			fs.SetBefore(nil)

			f = mustOpen(t, Options{FS: fs})
			shown, err := all(f)
			if err != nil || len(shown.Ends) < answered || f.Metrics().Damaged != 0 {
				t.Fatalf("killed at call %d, blocks lost %v: %d entries, %d were answered; %v, %+v", k, loseBlocks, len(shown.Ends), answered, err, f.Metrics())
			}
			more := Entries{Ends: []End{end(9)}}
			for range 2 {
				left := mustOpen(t, Options{FS: fs.Crash(0, nil)})
				if got, err := all(left); err != nil || !reflect.DeepEqual(got.Ends, shown.Ends) || left.Metrics().Damaged != 0 {
					t.Fatalf("killed at call %d, blocks lost %v: %d entries after a lost power, %d were shown; %v, %+v", k, loseBlocks, len(got.Ends), len(shown.Ends), err, left.Metrics())
				}
				if err := errors.Join(left.Close(), f.Append(&more)); err != nil {
					t.Fatal(err)
				}
				shown.Ends, more = append(shown.Ends, more.Ends...), Entries{Ends: []End{end(10)}}
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}
