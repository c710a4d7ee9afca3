package local

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/journal/journaltest"
	"github.com/jmqio/jmq/server/servertest/mutate"
	"github.com/jmqio/jmq/server/store"
)

func resum(h []byte) []byte {
	binary.LittleEndian.PutUint32(h[60:], crc32.Checksum(h[:60], castagnoli))
	return h
}

// example is a small checkpoint with all that one can hold.
func example(t testing.TB) []byte {
	mem := vfs.NewMem()
	f := &folder{fs: mem, storeID: [16]byte{1, 2, 3}}
	h := checkpointHeader{StoreID: f.storeID, Position: 4096, Epoch: journal.MakeEpoch(1, 2), Created: 1e18}
	_, err := f.writeCheckpoint(&h, func(w *checkpointWriter) error {
		w.runs(4096, []index.RunID{{From: 0, To: 1024}, {From: 2048, To: 4096}})
		w.partition(&index.State{Key: index.Key{Topic: 1, Incarnation: 1}, First: 3, Flushed: 128, Last: 7, Low: 300, Tail: []index.Entry{
			{Position: 400, Stored: 8, Size: 200, TagHash: 5, Slot: 0, Count: 2},
			{Position: 400, Stored: 8, Size: 200, Slot: 1, Count: 2},
		}})
		w.partition(&index.State{Key: index.Key{Topic: 1, Incarnation: 1, Partition: 1}, Flushed: 256, Last: 9})
		w.table("topics", []byte("state of topics"))
		w.table("offsets", nil)
		return w.err
	})
	if err != nil {
		t.Fatal(err)
	}
	b, err := journaltest.ReadFile(mem, f.path(checkpointName(4096)))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestCheckpointGolden holds the bytes of a checkpoint and of a STORE file.
func TestCheckpointGolden(t *testing.T) {
	var b bytes.Buffer
	b.WriteString("# STORE\n")
	b.Write(formatIdentity([16]byte{0xab, 1, 2, 3}))
	fmt.Fprintf(&b, "# %s\n", checkpointName(4096))
	b.WriteString(hex.Dump(example(t)))
	golden(t, "checkpoint.golden", b.Bytes())
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	name = filepath.Join("testdata", name)
	if *rewrite {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, got) {
		t.Fatalf("%s changed; -rewrite if that was meant\ngot\n%s\nwant\n%s", name, got, want)
	}
}

// TestCheckpointEveryByte changes each byte of a checkpoint, and cuts it at each: none passes.
func TestCheckpointEveryByte(t *testing.T) {
	good := example(t)
	if _, err := readCheckpoint(bytes.NewReader(good), nil); err != nil {
		t.Fatal(err)
	}
	for i := range good {
		b := slices.Clone(good)
		b[i] ^= 0x21
		if _, err := readCheckpoint(bytes.NewReader(b), nil); !errors.Is(err, errCheckpoint) {
			t.Fatalf("byte %d changed: %v", i, err)
		}
		if _, err := readCheckpoint(bytes.NewReader(good[:i]), nil); !errors.Is(err, errCheckpoint) {
			t.Fatalf("cut at %d: %v", i, err)
		}
	}
}

// TestCheckpointLong writes a tail and a table that need several blocks and reads them back.
func TestCheckpointLong(t *testing.T) {
	mem := vfs.NewMem()
	f := &folder{fs: mem}
	var tail []index.Entry
	for i := range 3*blockEntriesMax + 5 {
		tail = append(tail, index.Entry{Position: uint64(i) * 64, Count: 1})
	}
	state := bytes.Repeat([]byte("0123456789"), 250_000)
	h := checkpointHeader{Position: 8}
	if _, err := f.writeCheckpoint(&h, func(w *checkpointWriter) error {
		w.runs(0, nil)
		w.partition(&index.State{Key: index.Key{Topic: 1}, Flushed: 128, Tail: tail})
		w.table("long", state)
		w.table("short", []byte("x"))
		return w.err
	}); err != nil {
		t.Fatal(err)
	}
	var got []index.Entry
	tables := map[string][]byte{}
	if _, err := f.openCheckpoint(8, &checkpointVisitor{
		runs: func(uint64, []index.RunID) {},
		partition: func(st *index.State, more bool) error {
			if more != (len(got) > 0) {
				t.Fatal(more, len(got))
			}
			got = append(got, st.Tail...)
			return nil
		},
		table: func(name string, state []byte) error {
			tables[name] = slices.Clone(state)
			return nil
		},
	}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, tail) || !bytes.Equal(tables["long"], state) || string(tables["short"]) != "x" || len(tables) != 2 {
		t.Fatalf("%d entries, tables of %d and %d bytes", len(got), len(tables["long"]), len(tables["short"]))
	}
}

// FuzzCheckpoint decodes any bytes, also with right checksums: an error or a checkpoint, never a panic, and never more memory
// than the bytes are worth.
func FuzzCheckpoint(f *testing.F) {
	good := example(f)
	f.Add(good, false)
	f.Add(good, true)
	f.Add([]byte{}, false)
	f.Add(make([]byte, 200), true)
	r := newMemory()
	check := func(t testing.TB, b []byte) bool {
		total := 0
		_, err := readCheckpoint(r.of(b), &checkpointVisitor{
			runs:      func(_ uint64, list []index.RunID) { total += 16 * len(list) },
			partition: func(st *index.State, _ bool) error { total += index.EntryBytes * len(st.Tail); return nil },
			table:     func(_ string, state []byte) error { total += len(state); return nil },
		})
		if err != nil && !errors.Is(err, errCheckpoint) && !errors.Is(err, ErrVersion) {
			t.Fatal(err)
		}
		if total > len(b) {
			t.Fatalf("%d bytes out of %d", total, len(b))
		}
		return err == nil
	}
	mutate.Run(f, mutate.Decoder{Seeds: [][]byte{good, make([]byte, 200)}, Seal: func(b []byte) { fixSums(b) }, Slowness: 4, Check: check})
	f.Fuzz(func(t *testing.T, b []byte, fix bool) {
		if fix {
			b = fixSums(slices.Clone(b))
		}
		check(t, b)
	})
}

// memory is a reader of an input as large as readBlocks would make one for each.
type memory struct {
	bytes  bytes.Reader
	buffer *bufio.Reader
}

func newMemory() *memory { return &memory{buffer: bufio.NewReaderSize(nil, checkpointReadBytes)} }

func (m *memory) of(b []byte) *bufio.Reader {
	m.bytes.Reset(b)
	m.buffer.Reset(&m.bytes)
	return m.buffer
}

// FuzzSeed reads any bytes as the checkpoint that a copy begins with: a seed or an error that says what it is.
func FuzzSeed(f *testing.F) {
	h := checkpointHeader{StoreID: [16]byte{1, 2, 3}, Position: 4096, Epoch: journal.MakeEpoch(1, 2), Created: 1e18}
	var written bytes.Buffer
	w := &checkpointWriter{f: inOrder{&written}, buf: h.encodeAs(nil, seedMagic, seedVersion)}
	w.runs(4096, []index.RunID{{From: 1024, To: 4096}})
	w.partition(&index.State{Key: index.Key{Topic: 1, Incarnation: 1}, First: 3, Flushed: 128, Last: 7})
	w.table("topics", []byte("state of topics"))
	err := w.finish()
	good := written.Bytes()
	if _, rerr := ReadSeed(bytes.NewReader(good), int64(len(good))); err != nil || rerr != nil {
		f.Fatal(err, rerr)
	}
	r := newMemory()
	mutate.Fuzz(f, mutate.Decoder{Seeds: [][]byte{good, {}}, Seal: func(b []byte) { fixSums(b) }, Slowness: 4, Check: func(t testing.TB, b []byte) bool {
		s, _, err := readSeed(r.of(b))
		if err != nil && !errors.Is(err, ErrSeed) && !errors.Is(err, ErrVersion) {
			t.Fatal(err)
		}
		if err == nil && s.Begin > s.Position {
			t.Fatalf("%+v", s)
		}
		return err == nil
	}})
}

// FuzzCarried reads any bytes as a carried-forward record: what is taken is carried again as the same bytes.
func FuzzCarried(f *testing.F) {
	message, err := appendCarried(nil, &journal.Record{Kind: journal.KindMessages, Position: 800, Epoch: 3, Stored: 5, Payload: []byte("a batch")})
	if err != nil {
		f.Fatal(err)
	}
	lost := appendCarriedLost(nil, store.Partition{Topic: 1, Incarnation: 2, Partition: 3}, 4, 9, 800, 5)
	mutate.Fuzz(f, mutate.Decoder{Seeds: [][]byte{message, lost}, Check: func(t testing.TB, b []byte) bool {
		c, err := parseCarried(b)
		if err != nil {
			if !errors.Is(err, errCarried) {
				t.Fatal(err)
			}
			return false
		}
		if c.Kind == journal.KindLost {
			if p, from, to, err := c.lost(); err == nil {
				again := appendCarriedLost(nil, p, from, to, c.Position, c.Stored)
				binary.LittleEndian.PutUint64(again[16:], uint64(c.Epoch)) // a hole has none
				if !bytes.Equal(again, b) {
					t.Fatalf("%x became %x", b, again)
				}
			} else if !errors.Is(err, errCarried) {
				t.Fatal(err)
			}
		}
		again, err := appendCarried(nil, &journal.Record{Kind: c.Kind, Position: c.Position, Epoch: c.Epoch, Stored: c.Stored, Payload: c.Payload})
		if err != nil || !bytes.Equal(again, b) {
			t.Fatalf("%x became %x, %v", b, again, err)
		}
		return true
	}})
}

// FuzzFooter reads any bytes as the footer of a segment: what is taken is written as something that says the same.
func FuzzFooter(f *testing.F) {
	good := footer{Verified: 5, Records: 7, Messages: 9, First: 1, Last: 4, partitions: map[store.Partition]*span{
		{Topic: 1, Incarnation: 1}: {3, 9}, {Topic: 2, Incarnation: 4, Partition: 7}: {0, 1},
	}}
	empty := footer{}
	mutate.Fuzz(f, mutate.Decoder{Seeds: [][]byte{good.encode(nil), empty.encode(nil), {}}, Check: func(t testing.TB, b []byte) bool {
		f, err := decodeFooter(b)
		if err != nil {
			return false
		}
		first := f.encode(nil)
		again, err := decodeFooter(first)
		if err != nil || !bytes.Equal(again.encode(nil), first) {
			t.Fatalf("%x, then %x: %v", first, again.encode(nil), err)
		}
		return true
	}})
}

// fixSums makes the checksums of what looks like a header and blocks right.
func fixSums(b []byte) []byte {
	if len(b) < checkpointHeaderBytes {
		return b
	}
	resum(b)
	for rest := b[checkpointHeaderBytes:]; len(rest) >= blockHeaderBytes; {
		n := blockHeaderBytes + int(binary.LittleEndian.Uint32(rest))
		if n > len(rest) {
			break
		}
		binary.LittleEndian.PutUint32(rest[4:], crc32.Checksum(rest[8:n], castagnoli))
		rest = rest[n:]
	}
	return b
}

func FuzzIdentity(f *testing.F) {
	seal := func(b []byte) {
		if n := bytes.LastIndex(b, []byte("sum ")); n >= 0 {
			copy(b[n:], fmt.Sprintf("sum %08x\n", crc32.Checksum(b[:n], castagnoli)))
		}
	}
	seeds := [][]byte{formatIdentity([16]byte{1, 2}), []byte("jmq store\nversion 2\n"), {}}
	mutate.Fuzz(f, mutate.Decoder{Seeds: seeds, Seal: seal, Check: func(t testing.TB, b []byte) bool {
		id, err := parseIdentity(b)
		if err == nil && !bytes.Equal(formatIdentity(id), b) {
			t.Fatalf("accepted %q", b)
		}
		return err == nil
	}})
}

// TestCheckpointTriggers shows when checkpoints are written: after so many bytes, after so much time when something
// changed, at Close, and not when nothing did.
func TestCheckpointTriggers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(vfs.NewMem())
		o.CheckpointBytes, o.CheckpointEvery = 8<<10, 10*time.Second
		s, err := Open(o)
		if err != nil {
			t.Fatal(err)
		}
		written := func() int64 {
			synctest.Wait()
			return s.Metrics().Checkpoints
		}
		if n := written(); n != 0 {
			t.Fatalf("%d at the start", n)
		}
		p := partitionOfTopic(mustTopic(t, s, "orders", 1), 0)
		time.Sleep(11 * time.Second)
		if n := written(); n != 1 {
			t.Fatalf("%d after 11 s with a change", n)
		}
		time.Sleep(60 * time.Second)
		if n := written(); n != 1 {
			t.Fatalf("%d after a minute without a change", n)
		}
		for range 3 {
			if r := appendWait(s, p, batchOf(t, strings.Repeat("x", 3000))); r.err != nil {
				t.Fatal(r.err)
			}
		}
		if n := written(); n != 2 {
			t.Fatalf("%d after 9 KB", n)
		}
		if r := appendWait(s, p, batchOf(t, "x")); r.err != nil {
			t.Fatal(r.err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if n := s.Metrics().Checkpoints; n != 3 {
			t.Fatalf("%d after Close", n)
		}
		if err := s.Checkpoint(); !errors.Is(err, journal.ErrClosed) {
			t.Fatal(err)
		}
	})
}

// TestCheckpointAfterOpen shows that a checkpoint may begin as soon as the store is open: with -race.
func TestCheckpointAfterOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewCrashableMem()
		o := options(fs)
		s := mustOpen(t, o)
		mustTopic(t, s, "orders", 1)
		o.FS = fs.CrashClone(vfs.CrashCloneCfg{})
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		o.CheckpointEvery = time.Second
		s = mustOpen(t, o)
		time.Sleep(1500 * time.Millisecond)
		if n := s.Metrics().Checkpoints; n != 1 {
			t.Fatalf("%d", n)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestCheckpointFails shows that a checkpoint that cannot be written stops nothing, is not tried again at each append, and
// leaves the older one; when the disk is well again the next is written.
func TestCheckpointFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := journaltest.New(nil)
		o := options(fs)
		o.CheckpointBytes, o.CheckpointEvery = 1<<10, 10*time.Second
		s, err := Open(o)
		if err != nil {
			t.Fatal(err)
		}
		fs.SetBefore(func(op journaltest.Op) journaltest.Fault {
			if op.Call == journaltest.Write && strings.Contains(op.Path, checkpointSuffix) {
				return journaltest.Fault{Err: journaltest.ErrInjected}
			}
			return journaltest.Fault{}
		})
		p := partitionOfTopic(mustTopic(t, s, "orders", 1), 0)
		for range 50 {
			if r := appendWait(s, p, batchOf(t, strings.Repeat("x", 500))); r.err != nil {
				t.Fatal(r.err)
			}
			synctest.Wait()
		}
		if m := s.Metrics(); m.CheckpointErrors != 1 || m.Checkpoints != 0 {
			t.Fatalf("%d failed, %d written", m.CheckpointErrors, m.Checkpoints)
		}
		time.Sleep(11 * time.Second)
		synctest.Wait()
		if m := s.Metrics(); m.CheckpointErrors != 2 {
			t.Fatalf("%d failed after 11 s", m.CheckpointErrors)
		}
		fs.SetBefore(nil)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if m := s.Metrics(); m.Checkpoints != 1 || s.Err() != nil {
			t.Fatalf("%d written, %v", m.Checkpoints, s.Err())
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// blob is a table whose state is as many bytes as it has seen end records.
type blob struct{ n int }

func (b *blob) Name() string { return "blob" }
func (b *blob) Apply(r journal.Record) error {
	if r.Kind == journal.KindEnd {
		b.n++
	}
	return nil
}
func (b *blob) Snapshot(to []byte) []byte { return append(to, make([]byte, b.n)...) }
func (b *blob) Restore(from []byte) error { b.n = len(from); return nil }

// TestOperations is the golden list of the file operations of a store outside its journal: what is written, synced and
// renamed in which order, and that reading and the ends of 20 groups touch no file of the index.
func TestOperations(t *testing.T) {
	fs := journaltest.New(nil)
	o := options(fs)
	o.IdleAfter = time.Hour // no no-op at a chance moment: positions are in the list
	o.Now = func() time.Time { return time.Unix(1e9, 0) }
	o.Tables = []store.Table{&blob{}}
	var b bytes.Buffer
	step := func(format string, args ...any) {
		fmt.Fprintf(&b, "# "+format+"\n", args...)
		for _, op := range fs.TakeOps() {
			if op.Path == "/store/"+ownerName {
				op.Len = 0 // a process id
			}
			if !strings.HasPrefix(op.Path, "/store/journal") || op.Call == journaltest.Mkdir {
				fmt.Fprintln(&b, strings.ReplaceAll(op.String(), "/store", "."))
			}
		}
	}
	s := mustOpen(t, o)
	step("open a new folder")
	p := partitionOfTopic(mustTopic(t, s, "orders", 1), 0)
	for i := range 100 {
		if r := appendWait(s, p, batchOf(t, fmt.Sprintf("%08d", i))); r.err != nil {
			t.Fatal(r.err)
		}
	}
	step("a topic and 100 messages")
	if err := s.Checkpoint(); err != nil {
		t.Fatal(err)
	}
	step("checkpoint: a run")
	for i := range 100 {
		if r := appendWait(s, p, batchOf(t, fmt.Sprintf("%08d", i))); r.err != nil {
			t.Fatal(r.err)
		}
	}
	if err := s.Checkpoint(); err != nil {
		t.Fatal(err)
	}
	step("100 more messages and a checkpoint: a second run")
	for range 20 { // groups
		for i := range index.Index(20) {
			if got, _ := bodies(t, s, p, 10*i, 10*i+10); len(got) != 10 {
				t.Fatal(got)
			}
			end := make(chan error, 1)
			if err := s.AppendRecord(journal.KindEnd, []byte("ends"), func(err error) { end <- err }); err != nil {
				t.Fatal(err)
			}
			if err := <-end; err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.Seek(p, 5); err != nil {
			t.Fatal(err)
		}
	}
	step("20 groups read and end all messages")
	if err := s.Checkpoint(); err != nil {
		t.Fatal(err)
	}
	step("checkpoint: the index is as it was; the oldest goes")
	if err := s.Checkpoint(); err != nil {
		t.Fatal(err)
	}
	step("checkpoint without a change")
	mustClose(t, s)
	step("close")
	s = mustOpen(t, o)
	step("open again")
	for i := range 100 {
		if r := appendWait(s, p, batchOf(t, fmt.Sprintf("%08d", i))); r.err != nil {
			t.Fatal(r.err)
		}
	}
	mustClose(t, s)
	step("100 more messages and close: another run")
	golden(t, "operations.golden", b.Bytes())
}
