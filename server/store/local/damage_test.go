package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal/journaltest"
	"github.com/jmqio/jmq/server/store"
)

// filled returns a file system with a store of one topic that has n messages, two checkpoints, and index files, and is closed.
func filled(t testing.TB, n int) (*vfs.MemFS, store.Partition) {
	t.Helper()
	mem := vfs.NewCrashableMem()
	o := options(mem)
	o.SegmentBytesMax = 64 << 10
	return mem, fill(t, mustOpen(t, o), n)
}

// fill gives s one topic that has n messages, with two checkpoints on the way, and closes it.
func fill(t testing.TB, s *Store, n int) store.Partition {
	t.Helper()
	p := partitionOfTopic(mustTopic(t, s, "orders", 1), 0)
	for i := range n {
		if r := appendWait(s, p, batchOf(t, fmt.Sprint(i))); r.err != nil {
			t.Fatal(r.err)
		}
		if i == n/2 || i == n*3/4 {
			if err := s.Checkpoint(); err != nil {
				t.Fatal(err)
			}
		}
	}
	mustClose(t, s)
	return p
}

func mustHave(t testing.TB, s *Store, p store.Partition, n int) {
	t.Helper()
	first, end, err := s.Bounds(p)
	if first != 0 || int(end) != n || err != nil {
		t.Fatalf("bounds [%d, %d), %v, want [0, %d)", first, end, err, n)
	}
	list, _ := bodies(t, s, p, 0, end)
	if len(list) != n {
		t.Fatalf("%d messages, want %d", len(list), n)
	}
	for i, b := range list {
		if b != fmt.Sprint(i) {
			t.Fatalf("message %d is %q", i, b)
		}
	}
}

func find(t testing.TB, mem vfs.FS, dir, part string) []string {
	t.Helper()
	names, err := mem.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, n := range names {
		if strings.Contains(n, part) && !strings.HasPrefix(n, "spare-") {
			found = append(found, mem.PathJoin(dir, n))
		}
	}
	slices.Sort(found)
	return found
}

func change(t testing.TB, mem vfs.FS, path string, f func([]byte) []byte) {
	t.Helper()
	b, err := journaltest.ReadFile(mem, path)
	if err != nil {
		t.Fatal(err)
	}
	journaltest.WriteFile(mem, path, f(b))
}

var damages = map[string]func([]byte) []byte{
	"empty":   func([]byte) []byte { return nil },
	"zero":    func(b []byte) []byte { return make([]byte, len(b)) },
	"cut":     func(b []byte) []byte { return b[:len(b)-1] },
	"half":    func(b []byte) []byte { return b[:len(b)/2] },
	"longer":  func(b []byte) []byte { return append(b, 0) },
	"foreign": func(b []byte) []byte { return bytes.Repeat([]byte("HTTP/1.1 "), len(b)/9+1) },
	"flipped": func(b []byte) []byte { b[len(b)/2] ^= 16; return b },
}

// TestCheckpointDamaged damages the newest checkpoint, both, or both and the begin of the journal: the store is whole, or
// says in one line that it cannot be.
func TestCheckpointDamaged(t *testing.T) {
	const n = 900
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			mem, p := filled(t, n)
			all := find(t, mem, "/store", checkpointSuffix)
			if len(all) != checkpointsKept {
				t.Fatal(all)
			}
			for i := len(all) - 1; i >= 0; i-- {
				change(t, mem, all[i], damage)
				clone := mem.CrashClone(vfs.CrashCloneCfg{})
				s := mustOpen(t, options(clone))
				mustHave(t, s, p, n)
				mustClose(t, s)
			}
			segments := find(t, mem, "/store/journal", ".journal")
			if len(segments) < 2 {
				t.Fatal(segments)
			}
			if err := mem.Remove(segments[0]); err != nil {
				t.Fatal(err)
			}
			_, err := Open(options(mem))
			if err == nil || !strings.Contains(err.Error(), "no whole checkpoint left") || !strings.Contains(err.Error(), "/store") || strings.Contains(err.Error(), "\n") {
				t.Fatalf("got %v", err)
			}
			if _, err := Open(options(mem)); err == nil || errors.Is(err, ErrInUse) {
				t.Fatalf("second try: %v", err)
			}
		})
	}
}

// TestFirstSegmentMissing removes the begin of the journal, while the checkpoints are whole: the store does not serve messages
// that are nowhere, neither those whose index is in memory nor those whose index is in a file.
func TestFirstSegmentMissing(t *testing.T) {
	for _, flushed := range []bool{false, true} {
		mem := vfs.NewCrashableMem()
		o := options(mem)
		o.SegmentBytesMax = 64 << 10
		if !flushed {
			o.IndexFlushBytes = 1 << 30
		}
		s := mustOpen(t, o)
		p := partitionOfTopic(mustTopic(t, s, "orders", 2), 1)
		for i := range 700 {
			if r := appendWait(s, p, batchOf(t, fmt.Sprint(i))); r.err != nil {
				t.Fatal(r.err)
			}
		}
		if err := s.Checkpoint(); err != nil {
			t.Fatal(err)
		}
		mustClose(t, s)
		if files := find(t, mem, "/store/index", ".index"); (len(files) > 0) != flushed {
			t.Fatal(files)
		}
		segments := find(t, mem, "/store/journal", ".journal")
		if len(segments) < 2 {
			t.Fatal(segments)
		}
		if err := mem.Remove(segments[0]); err != nil {
			t.Fatal(err)
		}
		_, err := Open(o)
		if err == nil || !strings.Contains(err.Error(), `message 0 of topic "orders", partition 1, is at a position below it`) {
			t.Errorf("flushed %v: got %v", flushed, err)
		}
	}
}

// TestCheckpointOfAnotherStore is no checkpoint; one of a newer version is not skipped but refused.
func TestCheckpointOfAnotherStore(t *testing.T) {
	mem, p := filled(t, 100)
	foreign, _ := filled(t, 100)
	ours, theirs := find(t, mem, "/store", checkpointSuffix), find(t, foreign, "/store", checkpointSuffix)
	for i := range ours {
		b, err := journaltest.ReadFile(foreign, theirs[i])
		if err != nil {
			t.Fatal(err)
		}
		journaltest.WriteFile(mem, ours[i], b)
	}
	s := mustOpen(t, options(mem))
	mustHave(t, s, p, 100)
	mustClose(t, s)

	newest := find(t, mem, "/store", checkpointSuffix)
	change(t, mem, newest[len(newest)-1], func(b []byte) []byte {
		h, err := decodeCheckpointHeader(b, checkpointMagic, checkpointVersion)
		if err != nil {
			t.Fatal(err)
		}
		e := h.encode(nil)
		e[8] = 7
		return append(resum(e), b[checkpointHeaderBytes:]...)
	})
	if _, err := Open(options(mem)); !errors.Is(err, ErrVersion) || !strings.Contains(err.Error(), "version 7") || !strings.Contains(err.Error(), fmt.Sprint("up to ", checkpointVersion)) {
		t.Fatal(err)
	}
}

// TestUnknownTable refuses to open a store without a table that its checkpoint has: the state would be gone.
func TestUnknownTable(t *testing.T) {
	mem := vfs.NewMem()
	o := options(mem)
	o.Tables = []store.Table{&counter{}}
	s := mustOpen(t, o)
	mustTopic(t, s, "orders", 1)
	mustClose(t, s)
	if _, err := Open(options(mem)); err == nil || !strings.Contains(err.Error(), "table counter is not known") {
		t.Fatal(err)
	}
	s = mustOpen(t, o)
	mustClose(t, s)
}

// TestIndexFileDamaged damages a run of the index: seen at opening or when it is read, it is rebuilt from the journal and the
// messages are there; with its journal gone, the partition begins later and the rest works.
func TestIndexFileDamaged(t *testing.T) {
	const n = 900
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			mem, p := filled(t, n)
			files := find(t, mem, "/store/index", ".index")
			if len(files) < 2 {
				t.Fatal(files)
			}
			change(t, mem, files[len(files)-1], damage)
			s := mustOpen(t, options(mem))
			if s.Metrics().Repairs == 0 { // not seen by a look: by the first who reads
				_, next, err := s.Read(p, 0, n, 1<<20, nil)
				if err == nil { // all before the damage
					_, _, err = s.Read(p, next, n, 1<<20, nil)
				}
				if !errors.Is(err, store.ErrDamaged) {
					t.Fatal(err)
				}
				var d *index.DamageError
				if !errors.As(err, &d) || !strings.Contains(err.Error(), ".index") {
					t.Fatal(err)
				}
				s.repairRuns() // the background's, or ours: one of them does it
			}
			mustHave(t, s, p, n)
			if m := s.Metrics(); m.Repairs != 1 {
				t.Fatalf("%d repairs", m.Repairs)
			}
			mustClose(t, s)
			s = mustOpen(t, options(mem))
			mustHave(t, s, p, n)
			mustClose(t, s)
		})
	}
	t.Run("removed", func(t *testing.T) {
		mem, p := filled(t, n)
		if err := mem.RemoveAll("/store/index"); err != nil {
			t.Fatal(err)
		}
		s := mustOpen(t, options(mem))
		mustHave(t, s, p, n)
		mustClose(t, s)
	})
	t.Run("journal trimmed", func(t *testing.T) {
		mem, p := filled(t, n)
		change(t, mem, find(t, mem, "/store/index", ".index")[0], damages["empty"])
		if err := mem.Remove(find(t, mem, "/store/journal", ".journal")[0]); err != nil {
			t.Fatal(err)
		}
		s := mustOpen(t, options(mem))
		if _, _, err := s.Read(p, 0, 1, 1, nil); !errors.Is(err, store.ErrTrimmed) {
			t.Fatal(err)
		}
		if first, end, err := s.Bounds(p); first == 0 || end != n || err != nil {
			t.Fatal(first, end, err)
		} else if got, _ := bodies(t, s, p, first, end); got[0] != fmt.Sprint(first) {
			t.Fatal(got[0])
		}
		if r := appendWait(s, p, batchOf(t, "next")); r.err != nil || r.first != n {
			t.Fatal(r)
		}
		if got, _ := bodies(t, s, p, n, n+1); got[0] != "next" {
			t.Fatal(got)
		}
		mustClose(t, s)
	})
}

// TestJournalDamaged flips a byte of a message in the journal: reading it is an error that names the place, its neighbours
// are there.
func TestJournalDamaged(t *testing.T) {
	mem, p := filled(t, 100)
	seg := find(t, mem, "/store/journal", ".journal")[0]
	var at int
	change(t, mem, seg, func(b []byte) []byte {
		at = bytes.LastIndex(b, batchOf(t, "10")[76:]) + 32 // its body
		b[at] ^= 1
		return b
	})
	s := mustOpen(t, options(mem))
	_, _, err := s.Read(p, 10, 11, 1, nil)
	if !errors.Is(err, store.ErrDamaged) || !strings.Contains(err.Error(), ".journal") {
		t.Fatal(err)
	}
	if got, _ := bodies(t, s, p, 11, 12); got[0] != "11" {
		t.Fatal(got)
	}
	mustClose(t, s)
}

// TestIndexLies points index entries at records that are sound but not theirs: of another partition, of another index of the
// same, of another count, and no batch at all. None is given out.
func TestIndexLies(t *testing.T) {
	s := mustOpen(t, options(vfs.NewMem()))
	topic := mustTopic(t, s, "orders", 2)
	a, b := partitionOfTopic(topic, 0), partitionOfTopic(topic, 1)
	for _, p := range []store.Partition{a, a, b} {
		if r := appendWait(s, p, batchOf(t, "same")); r.err != nil {
			t.Fatal(r.err)
		}
	}
	entry := func(p store.Partition, i index.Index) index.Entry {
		e, err := s.index.Range(keyOf(p), i, i+1, nil)
		if err != nil {
			t.Fatal(err)
		}
		return e[0]
	}
	e0, e1, other := entry(a, 0), entry(a, 1), entry(b, 0)
	longer, beyond, topicRecord := e0, e0, e0
	longer.Count = 2
	beyond.Position = 1 << 40
	topicRecord.Position -= 8 // within another record
	for name, tail := range map[string][]index.Entry{
		"another partition": {other}, "another index": {e1}, "another count": {longer, {Position: e0.Position, Size: e0.Size, Slot: 1, Count: 2}},
		"beyond the end": {beyond}, "between records": {topicRecord}, "another size": {{Position: e0.Position, Size: e0.Size + 8, Count: 1}},
	} {
		s.index.Restore(&index.State{Key: keyOf(a), Tail: tail})
		buf, next, err := s.Read(a, 0, index.Index(len(tail)), 1000, []byte("before"))
		if err == nil || string(buf) != "before" || next != 0 {
			t.Errorf("%s: %d bytes, next %d, %v", name, len(buf), next, err)
		}
		if name != "beyond the end" && !errors.Is(err, store.ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s.index.Restore(&index.State{Key: keyOf(a), Tail: []index.Entry{e0, e1}})
	if got, _ := bodies(t, s, a, 0, 2); len(got) != 2 {
		t.Fatal(got)
	}
	mustClose(t, s)
}

// TestFolder opens folders that cannot be a store's: each is one line that names it.
func TestFolder(t *testing.T) {
	oneLine := func(t *testing.T, err error, parts ...string) {
		t.Helper()
		if err == nil || strings.Contains(err.Error(), "\n") {
			t.Fatalf("got %v, want one line", err)
		}
		for _, p := range parts {
			if !strings.Contains(err.Error(), p) {
				t.Fatalf("got %q, want it to name %q", err, p)
			}
		}
	}
	t.Run("second opening", func(t *testing.T) {
		for name, o := range map[string]Options{"memory": options(vfs.NewMem()), "disk": options(vfs.Default)} {
			if name == "disk" {
				o.Dir = t.TempDir()
			}
			s := mustOpen(t, o)
			_, err := Open(o)
			if !errors.Is(err, ErrInUse) {
				t.Fatal(err)
			}
			oneLine(t, err, o.Dir, fmt.Sprintf("process %d", os.Getpid()))
			mustTopic(t, s, "orders", 1) // the first one did not notice
			mustClose(t, s)
			s = mustOpen(t, o)
			mustClose(t, s)
		}
	})
	t.Run("two spellings", func(t *testing.T) {
		dir := t.TempDir()
		link := filepath.Join(t.TempDir(), "link")
		if err := os.Symlink(dir, link); err != nil {
			t.Fatal(err)
		}
		a, b := options(vfs.Default), options(vfs.Default)
		a.Dir, b.Dir = dir, link
		s := mustOpen(t, a)
		if _, err := Open(b); !errors.Is(err, ErrInUse) {
			t.Fatal(err)
		}
		mustClose(t, s)
	})
	t.Run("newer version", func(t *testing.T) {
		mem, _ := filled(t, 1)
		change(t, mem, "/store/STORE", func(b []byte) []byte { return bytes.Replace(b, []byte("version 1"), []byte("version 12"), 1) })
		_, err := Open(options(mem))
		if !errors.Is(err, ErrVersion) {
			t.Fatal(err)
		}
		oneLine(t, err, "/store", "version 12", "up to 1")
	})
	t.Run("STORE", func(t *testing.T) {
		for name, damage := range damages {
			mem, _ := filled(t, 1)
			change(t, mem, "/store/STORE", damage)
			if _, err := Open(options(mem)); err == nil {
				t.Fatalf("%s: opened", name)
			} else {
				oneLine(t, err, "/store/STORE")
			}
		}
		mem, _ := filled(t, 1)
		if err := mem.Remove("/store/STORE"); err != nil {
			t.Fatal(err)
		}
		_, err := Open(options(mem))
		oneLine(t, err, "/store", "STORE", "not whole")
	})
	t.Run("unwritable", func(t *testing.T) {
		for _, denied := range []error{syscall.EACCES, syscall.EROFS} {
			for _, call := range []journaltest.Call{journaltest.Mkdir, journaltest.Lock, journaltest.Create} {
				fsys := journaltest.New(nil)
				fsys.SetBefore(func(op journaltest.Op) journaltest.Fault {
					if op.Call == call {
						return journaltest.Fault{Err: denied}
					}
					return journaltest.Fault{}
				})
				_, err := Open(options(fsys))
				oneLine(t, err, "/store", "cannot be written")
			}
		}
	})
	t.Run("a file", func(t *testing.T) {
		o := options(vfs.Default)
		o.Dir = filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(o.Dir, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Open(o)
		oneLine(t, err, o.Dir)
	})
	t.Run("journal gone", func(t *testing.T) {
		mem, _ := filled(t, 10)
		if err := mem.RemoveAll("/store/journal"); err != nil {
			t.Fatal(err)
		}
		_, err := Open(options(mem))
		oneLine(t, err, "/store", "journal", "missing")
		if err := mem.MkdirAll("/store/journal", 0o755); err != nil {
			t.Fatal(err)
		}
		_, err = Open(options(mem))
		oneLine(t, err, "/store")
	})
	t.Run("elsewhere", func(t *testing.T) {
		mem := vfs.NewCrashableMem()
		o := options(mem)
		o.JournalDir, o.IndexDir = "/fast/journal", "/other/index"
		if err := mem.MkdirAll("/fast/journal/lost+found", 0o755); err != nil {
			t.Fatal(err)
		}
		fill(t, mustOpen(t, o), 300)
		clone := mem.CrashClone(vfs.CrashCloneCfg{})
		for _, dir := range []string{"/store/journal", "/store/index"} {
			if _, err := clone.Stat(dir); err == nil {
				t.Fatalf("%s is there", dir)
			}
		}
		p := store.Partition{Topic: 1, Incarnation: 1}
		for range 2 { // the second time without an index
			o.FS = clone
			s := mustOpen(t, o)
			mustHave(t, s, p, 300)
			mustClose(t, s)
			if err := clone.RemoveAll("/other"); err != nil {
				t.Fatal(err)
			}
		}
		_, err := Open(options(clone))
		oneLine(t, err, "/store", "journal", "missing")
		// An own one is forgotten when the other is named.
		mem, _ = filled(t, 10)
		o.FS = mem
		if err := mem.MkdirAll("/fast/journal", 0o755); err != nil {
			t.Fatal(err)
		}
		_, err = Open(o)
		oneLine(t, err, "/fast/journal", "/store/journal/")
		// A new store does not take a folder that has something.
		mem = vfs.NewCrashableMem()
		o.FS = mem
		if err := mem.MkdirAll("/fast/journal/something", 0o755); err != nil {
			t.Fatal(err)
		}
		_, err = Open(o)
		oneLine(t, err, "/fast/journal/something", "/store/STORE")
	})
	t.Run("none", func(t *testing.T) {
		if _, err := Open(Options{FS: vfs.NewMem()}); err == nil {
			t.Fatal("opened")
		}
	})
	if _, err := os.Stat("/store"); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal("a test in memory wrote to the disk")
	}
}

// TestFailedSync shows what a failed sync of the journal does: the one append is unknown, all others are refused, Err says
// why, reads go on, and another opening has what was answered.
func TestFailedSync(t *testing.T) {
	fsys := journaltest.New(nil)
	s := mustOpen(t, options(fsys))
	p := partitionOfTopic(mustTopic(t, s, "orders", 1), 0)
	if r := appendWait(s, p, batchOf(t, "0")); r.err != nil {
		t.Fatal(r.err)
	}
	fsys.SetBefore(func(op journaltest.Op) journaltest.Fault {
		if op.Call == journaltest.SyncData && strings.Contains(op.Path, "journal") {
			return journaltest.Fault{Err: syscall.EIO}
		}
		return journaltest.Fault{}
	})
	if r := appendWait(s, p, batchOf(t, "1")); classify(r.err) != unknown || !errors.Is(r.err, syscall.EIO) {
		t.Fatal(r.err)
	}
	fsys.SetBefore(nil)
	if s.Err() == nil || !errors.Is(s.Err(), syscall.EIO) {
		t.Fatal(s.Err())
	}
	if r := appendWait(s, p, batchOf(t, "2")); classify(r.err) != failed {
		t.Fatal(r.err)
	}
	if _, err := s.CreateTopic(context.Background(), store.Topic{Name: "late", Partitions: 1}, ""); classify(err) != failed {
		t.Fatal(err)
	}
	if _, end, _ := s.Bounds(p); end != 1 {
		t.Fatal(end)
	}
	if got, _ := bodies(t, s, p, 0, 9); len(got) != 1 {
		t.Fatal(got)
	}
	s.Close()
	s = mustOpen(t, options(fsys))
	if got, _ := bodies(t, s, p, 0, 9); got[0] != "0" || len(got) > 2 || len(got) == 2 && got[1] != "1" {
		t.Fatal(got)
	}
	mustClose(t, s)
}
