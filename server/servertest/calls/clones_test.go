package calls

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/journal/journaltest"
)

// How a life of a broker ends.
const (
	stopped = iota
	powerLost
	killed
	ways
)

// clones is a schedule of several lives of a broker on one disk, of which clones are made at each call.
type clones struct {
	t   *testing.T
	w   *world
	fs  *journaltest.FS
	rng *rand.Rand // of hooks, which are in one order

	eager    bool
	machine  int
	ops      int
	dieAt    int // the call of this life at which its power is lost, or it is killed; 0: none
	way      int
	dead     atomic.Bool
	left     *vfs.MemFS // by a lost power
	did      []string   // how lives ended
	opened   int        // clones, and those of their recoveries
	problems []problem
}

// TestClones lets a broker live several times, and end in order, by a kill or a lost power, on one disk. At each call that changes something a clone
// is made of what a lost power would leave: none, all or some of what was not synced. It is opened, and compared with what clients were told, and goes
// on; of some the recovery loses its power too. A change of names needs its sync, or does not. With every fourth seed it is the disk of a slave.
func TestClones(t *testing.T) {
	seed := newSeed(t)
	who, run := "broker", runClones
	if seed%4 == 3 {
		who, run = "slave", runSlaveClones
	}
	c := run(t, seed)
	all := c.w.ledger.figures()
	all.Seed, all.Count = seed, c.opened
	all.Faults = fmt.Sprintf("power of a %s lost at %d calls; its lives end by %s", who, c.ops, strings.Join(c.did, ", "))
	tell(t, &all, c.problems)
	if all.OK < 10 && len(c.problems) == 0 {
		t.Errorf("only %d sends were ok", all.OK)
	}
}

// runClones ends with the first clone that shows something.
func runClones(t *testing.T, seed uint64) *clones {
	rng := rand.New(rand.NewPCG(seed, 1))
	c := &clones{t: t, rng: rand.New(rand.NewPCG(seed, 2)), eager: rng.IntN(3) == 0}
	c.w = &world{shape: newShape(rng), rng: rng, ledger: newLedger()}
	c.disk(nil)
	for n := range lives() {
		way := stopped // the last one
		if n < lives()-1 {
			way = rng.IntN(ways)
		}
		c.live(way)
		if len(c.problems) > 0 {
			break
		}
	}
	c.problems = append(c.problems, c.w.ledger.problems...)
	return c
}

// mount makes a disk the one that is used: after is called within each call, when it is done, and none succeeds once the machine is dead.
func (c *clones) mount(mem *vfs.MemFS, after func(journaltest.Op)) {
	c.fs = newDisk(c.t, mem, c.eager)
	c.fs.SetBefore(func(journaltest.Op) journaltest.Fault {
		if c.dead.Load() {
			return journaltest.Fault{Err: syscall.EIO}
		}
		return journaltest.Fault{}
	})
	c.fs.SetAfter(after)
}

// disk gives the broker another one.
func (c *clones) disk(mem *vfs.MemFS) {
	c.mount(mem, c.after)
	c.w.fs = c.fs
	c.machine++
}

// begin is that of a life, which ends in a way.
func (c *clones) begin(way int) {
	c.way, c.dieAt = way, 0
	c.did = append(c.did, [...]string{"stop", "power", "kill"}[way])
	if way != stopped {
		c.dieAt = c.ops + 1 + c.w.rng.IntN(150)
	}
}

// live is one life of the broker.
func (c *clones) live(way int) {
	c.begin(way)
	if err := c.w.open(c.name()); err != nil {
		if !c.dead.Load() {
			c.problems = append(c.problems, problem{other, fmt.Sprintf("open: %v", err)})
		}
	} else {
		c.w.create()
		for n := 0; n < 60 && !c.dead.Load(); n++ {
			c.w.step()
		}
		if c.dead.Load() {
			c.w.close()
		} else {
			c.w.stop()
		}
	}
	if c.dead.Swap(false) && c.left != nil {
		c.disk(c.left)
		c.left = nil
	}
}

// name of the machine, since its last start.
func (c *clones) name() string { return fmt.Sprint("machine ", c.machine) }

// percents of what is not synced, that a lost power leaves.
func (c *clones) percent() int {
	switch c.rng.IntN(4) {
	case 0:
		return 0
	case 1:
		return 100
	}
	return 1 + c.rng.IntN(99)
}

// after is called within each call, when it is done.
func (c *clones) after(op journaltest.Op) {
	if c.dead.Load() || len(c.problems) > 0 {
		return
	}
	c.ops++
	f := c.w.ledger.now()
	percent := c.percent()
	clone := c.fs.Crash(percent, c.rng)
	if c.ops == c.dieAt {
		if c.way == powerLost {
			c.left = clone.CrashClone(vfs.CrashCloneCfg{})
		}
		c.dead.Store(true)
	}
	if c.rng.IntN(spare()) > 0 {
		return
	}
	what := fmt.Sprintf("power lost after call %d, %v, with %d %% of the unsynced", c.ops, op, percent)
	if c.rng.IntN(recoveries()) == 0 {
		c.again(clone.CrashClone(vfs.CrashCloneCfg{}), f.clone(), what)
	}
	c.judge(clone, &f, what, true)
}

// again loses the power once more, at a call of the recovery.
func (c *clones) again(disk *vfs.MemFS, f facts, what string) {
	fs := journaltest.New(disk)
	if c.eager {
		fs.EagerDirs()
	}
	calls, at := 0, 1+c.rng.IntN(30)
	var left *vfs.MemFS
	percent := c.percent()
	fs.SetAfter(func(op journaltest.Op) {
		if calls++; calls == at {
			left = fs.Crash(percent, c.rng)
			what += fmt.Sprintf(", and again after call %d of the recovery, %v, with %d %%", calls, op, percent)
		}
	})
	f.boot = "" // REPLICA may have another by now, which this disk may have or not
	recovered := f.clone()
	c.judge(fs, &recovered, what+", recovered", false)
	fs.SetAfter(nil)
	if left != nil {
		c.judge(left, &f, what, true)
	}
}

func (c *clones) judge(fs vfs.FS, f *facts, what string, goOn bool) {
	f.problems = nil
	c.opened++
	c.w.shape.judge(fs, f, opening{machine: "another", goOn: goOn})
	for _, p := range f.problems {
		p.text = what + ": " + p.text
		c.problems = append(c.problems, p)
	}
}
