package calls

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/journal/journaltest"
	"github.com/jmqio/jmq/server/servertest/check"
)

// injection is a way in which a call fails.
type injection struct {
	name  string
	calls []journaltest.Call // nil: any
	fault journaltest.Fault
}

var (
	syncs  = []journaltest.Call{journaltest.Sync, journaltest.SyncData, journaltest.SyncDir}
	writes = []journaltest.Call{journaltest.Write}
	grows  = []journaltest.Call{journaltest.Write, journaltest.Create, journaltest.Rename, journaltest.Mkdir}
)

var injections = []injection{
	{"EIO, and nothing is done", nil, journaltest.Fault{Err: syscall.EIO}},
	{"EIO, though it is done", nil, journaltest.Fault{Err: syscall.EIO, After: true}},
	{"ENOSPC", grows, journaltest.Fault{Err: syscall.ENOSPC}},
	{"short, EIO", writes, journaltest.Fault{Err: syscall.EIO, Short: 20}},
	{"short, ENOSPC", writes, journaltest.Fault{Err: syscall.ENOSPC, Short: 4096}},
	{"short, without an error", writes, journaltest.Fault{Short: 100}},
	{"interrupted", syncs, journaltest.Fault{Err: syscall.EINTR}},
	{"EIO, and the blocks are lost", syncs[:2], journaltest.Fault{Err: syscall.EIO, LoseBlocks: true}},
	{"interrupted, and the blocks are lost", syncs[:2], journaltest.Fault{Err: syscall.EINTR, LoseBlocks: true}},
}

// TestErrors lets a call fail in the life of a broker, the first in one, the second in the next, and so on, each in a way of its own. What clients were told is
// true for the next process on the same disk, and whenever the power is lost: at once, or when that process has shown what there is.
func TestErrors(t *testing.T) {
	seed := newSeed(t)
	e := runErrors(t, seed)
	e.Seed, e.Faults = seed, fmt.Sprintf("an error at %d calls, in %d ways", e.Count, len(e.how))
	tell(t, &e.Figures, e.problems)
	if len(e.problems) == 0 && (e.Count < 100/every() || e.OK == 0) {
		t.Errorf("%d errors, %d sends were ok", e.Count, e.OK)
	}
	t.Log(e.how)
}

// erring is what lives with errors showed.
type erring struct {
	check.Figures
	how      map[string]int // they came
	problems []problem
}

// runErrors ends with the first error after which something is wrong.
func runErrors(t *testing.T, seed uint64) *erring {
	rng := rand.New(rand.NewPCG(seed, 1))
	before := newLedger()
	fs := newDisk(t, nil, true)
	w := &world{shape: newShape(rng), rng: rng, ledger: before, fs: fs}
	w.life(t, 40)
	if rng.IntN(2) == 0 {
		w.close() // REPLICA does not say that it stopped
	} else {
		w.stop()
	}
	image := fs.Crash(100, rng)
	e := &erring{how: map[string]int{}}
	for n := 1 + rng.IntN(every()); len(e.problems) == 0; n += every() {
		problems, what, f := erred(t, w.shape, image, before, seed, n)
		if what == "" {
			break
		}
		_, way, _ := strings.Cut(what, ": ")
		e.how[way]++
		e.Count++
		one := f.figures()
		e.Ops, e.OK, e.Failed, e.Unknown = e.Ops+one.Ops, e.OK+one.OK, e.Failed+one.Failed, e.Unknown+one.Unknown
		e.problems = append(e.problems, problems...)
	}
	return e
}

// newDisk returns a disk with a folder for the broker.
func newDisk(t *testing.T, mem *vfs.MemFS, eager bool) *journaltest.FS {
	fs := journaltest.New(mem)
	if eager {
		fs.EagerDirs()
	}
	if mem == nil {
		if err := fs.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		root, err := fs.OpenDir("/")
		if err == nil {
			err = root.Sync()
			_ = root.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return fs
}

// life opens the broker, and lets so many things happen.
func (w *world) life(t *testing.T, steps int) {
	if err := w.open("machine"); err != nil {
		t.Fatal(err)
	}
	w.create()
	for range steps {
		w.step()
	}
	w.settle()
}

// erred lets call n of a life fail, and says how, and what was wrong then. "": there are not so many calls.
func erred(t *testing.T, s shape, image *vfs.MemFS, before *ledger, seed uint64, n int) (problems []problem, what string, f facts) {
	rng := rand.New(rand.NewPCG(seed, uint64(n)))
	fs := newDisk(t, image.CrashClone(vfs.CrashCloneCfg{}), rng.IntN(3) == 0)
	calls := 0
	fs.SetBefore(func(op journaltest.Op) journaltest.Fault {
		if calls++; calls != n {
			return journaltest.Fault{}
		}
		var may []injection
		for _, i := range injections {
			if i.calls == nil || slices.Contains(i.calls, op.Call) {
				may = append(may, i)
			}
		}
		i := may[rng.IntN(len(may))]
		what = fmt.Sprintf("%v: %s", op, i.name)
		return i.fault
	})
	w := &world{shape: s, rng: rand.New(rand.NewPCG(seed, 3)), ledger: newLedger(), fs: fs, machine: "machine"}
	w.ledger.facts = before.now()
	if err := w.open("machine"); err == nil {
		w.create()
		for range 24 {
			w.step()
		}
		w.stop()
	}
	fs.SetBefore(nil)
	if what == "" {
		return nil, "", f
	}
	f = w.ledger.now()
	problems = w.ledger.problems
	judge := func(fs vfs.FS, f *facts, when string, o opening) {
		f.problems = nil
		s.judge(fs, f, o)
		for _, p := range f.problems {
			p.text = fmt.Sprintf("call %d, %s; %s: %s", n, what, when, p.text)
			problems = append(problems, p)
		}
	}
	for _, percent := range []int{0, 1 + rng.IntN(100)} {
		at := f.clone()
		judge(fs.Crash(percent, rng), &at, fmt.Sprintf("power lost, with %d %% of the unsynced", percent), opening{machine: "another", goOn: true})
	}
	next := f.clone()
	judge(fs, &next, "next process", opening{machine: "machine", same: true})
	judge(fs.Crash(0, rng), &next, "power lost after the next process", opening{machine: "another", goOn: true})
	return problems, what, f
}
