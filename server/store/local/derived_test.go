package local

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal/journaltest"
	"github.com/jmqio/jmq/server/store"
)

// TestDerivedEveryByte flips bytes of each run of the index and of each checkpoint of a small store, one at a time: every message is there,
// and what was damaged is whole again at the next opening.
func TestDerivedEveryByte(t *testing.T) {
	const n = 40
	mem, p := filled(t, n)
	files := slices.Concat(find(t, mem, "/store/index", ".index"), find(t, mem, "/store", checkpointSuffix))
	if len(files) < 4 {
		t.Fatal(files)
	}
	r, step := random(t), 3*stride()
	for _, name := range files {
		good, err := journaltest.ReadFile(mem, name)
		if err != nil {
			t.Fatal(err)
		}
		for i := r.Intn(step); i < len(good); i += step {
			b := slices.Clone(good)
			b[i] ^= 0x21
			clone := mem.CrashClone(vfs.CrashCloneCfg{})
			journaltest.WriteFile(clone, name, b)
			s, err := Open(options(clone))
			if errors.Is(err, ErrVersion) || errors.Is(err, index.ErrVersion) {
				if i < 8 || i >= 12 {
					t.Fatalf("%s, byte %d: %v", name, i, err)
				}
				continue
			}
			if err != nil {
				t.Fatalf("%s, byte %d: %v", name, i, err)
			}
			for from := index.Index(0); from < n; {
				_, next, err := s.Read(p, from, n, 1<<20, nil)
				if from = next; errors.Is(err, store.ErrDamaged) {
					s.repairRuns()
				} else if err != nil {
					t.Fatalf("%s, byte %d: %v", name, i, err)
				}
			}
			mustHave(t, s, p, n)
			mustClose(t, s)
			again := mustOpen(t, options(clone))
			mustHave(t, again, p, n)
			if m := again.Metrics(); m.Repairs != 0 {
				t.Fatalf("%s, byte %d: %d repairs at the second opening", name, i, m.Repairs)
			}
			mustClose(t, again)
		}
	}
}

// TestForeignCheckpoint puts a checkpoint of another store into the folder, of a position that is beyond everything here: it is set
// aside, and does not push those of this store out.
func TestForeignCheckpoint(t *testing.T) {
	const n = 100
	mem, p := filled(t, n)
	foreign, _ := filled(t, 3*n)
	theirs := find(t, foreign, "/store", checkpointSuffix)
	name := theirs[len(theirs)-1]
	b, err := journaltest.ReadFile(foreign, name)
	if err != nil {
		t.Fatal(err)
	}
	journaltest.WriteFile(mem, name, b)
	s := mustOpen(t, options(mem))
	mustHave(t, s, p, n)
	for i := range 3 {
		if r := appendWait(s, p, batchOf(t, fmt.Sprint(n+i))); r.err != nil {
			t.Fatal(r.err)
		}
		if err := s.Checkpoint(); err != nil {
			t.Fatal(err)
		}
	}
	mustClose(t, s)
	all := find(t, mem, "/store", checkpointSuffix)
	if !slices.Contains(all, name+setAside) || len(all) != checkpointsKept+1 {
		t.Fatal(all)
	}
	s = mustOpen(t, options(mem))
	mustHave(t, s, p, n+3)
	mustClose(t, s)
}

// TestRunsAreFew writes many checkpoints with a little of the index each: runs are merged, and files that no kept checkpoint names
// are removed.
func TestRunsAreFew(t *testing.T) {
	mem := vfs.NewCrashableMem()
	s := mustOpen(t, options(mem))
	p := partitionOfTopic(mustTopic(t, s, "orders", 2), 0)
	const n = 100
	for i := range n {
		if r := appendWait(s, p, batchOf(t, fmt.Sprint(i))); r.err != nil {
			t.Fatal(r.err)
		}
		if err := s.Checkpoint(); err != nil {
			t.Fatal(err)
		}
		s.merge(false)
	}
	m := s.Metrics().Index
	if files := find(t, mem, "/store/index", ".index"); m.Runs > 16 || len(files) > 40 || m.Merges < 5 {
		t.Fatalf("%d files, %+v", len(files), m)
	}
	mustHave(t, s, p, n)
	clone := mem.CrashClone(vfs.CrashCloneCfg{})
	mustClose(t, s)
	s = mustOpen(t, options(clone))
	mustHave(t, s, p, n)
	mustClose(t, s)
}

// TestIndexDiskFull fills the index's disk and not the journal's: checkpoints go on with the tails, and when there is space again the
// index is flushed.
func TestIndexDiskFull(t *testing.T) {
	fsys := journaltest.New(nil)
	s := mustOpen(t, options(fsys))
	p := partitionOfTopic(mustTopic(t, s, "orders", 1), 0)
	fsys.SetBefore(func(op journaltest.Op) journaltest.Fault {
		if strings.Contains(op.Path, "/index/") && op.Call == journaltest.Write {
			return journaltest.Fault{Err: journaltest.ErrInjected}
		}
		return journaltest.Fault{}
	})
	const n = 20
	for i := range n {
		if i == n/2 {
			fsys.SetBefore(nil)
		}
		if r := appendWait(s, p, batchOf(t, fmt.Sprint(i))); r.err != nil {
			t.Fatal(r.err)
		}
		if err := s.Checkpoint(); err != nil {
			t.Fatal(err)
		}
		if m := s.Metrics(); (m.Index.Runs > 0) != (i >= n/2) || m.Checkpoints != int64(i+1) {
			t.Fatalf("after %d: %+v", i, m.Index)
		}
		c := mustOpen(t, options(fsys.Crash(0, nil)))
		mustHave(t, c, p, i+1)
		mustClose(t, c)
	}
	mustClose(t, s)
}
