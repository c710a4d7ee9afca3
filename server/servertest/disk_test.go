package servertest

import (
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/journal/journaltest"
)

// disk is a broker's disk, and what happens to it. At a chosen call, or now:
//
//   - the power is lost: of what was not synced a percentage is left, block by block and name by name, for the next disk;
//   - the process is killed: the files stay as they are, not synced, for the next process on the same disk;
//   - a sync fails and loses its blocks, though whoever reads the file goes on seeing them; or any call fails.
//
// In the first two cases each later call fails, so that what a broker which runs on answers rests on what was on disk before.
// All calls are in one order: none is under way at that moment.
type disk struct {
	fs    *journaltest.FS
	eager bool

	mu struct {
		sync.Mutex
		rng   *rand.Rand
		plan  *plan
		after int           // number of the call after whose effect the plan is carried out
		dead  bool          // each call fails
		left  *vfs.MemFS    // by the lost power
		done  chan struct{} // closed when the plan was carried out
	}
}

// plan is what to do at a call.
type plan struct {
	call    journaltest.Call // "": any that changes something
	path    string           // part of its path
	lenMin  int              // of a write: at least so many bytes that are not all 0; 0: any
	skip    int              // so many such calls pass first
	after   bool             // the call is done before, else it is not
	fate    fate
	percent int               // of what was not synced, that a lost power leaves
	fault   journaltest.Fault // of failCall: what to do to it
}

type fate int

const (
	losePower fate = iota
	killProcess
	failSync
	failCall
)

// newDisk returns a disk that begins with mem; nil is empty. eager makes changes of names durable at once.
func newDisk(mem *vfs.MemFS, rng *rand.Rand, eager bool) *disk {
	d := &disk{fs: journaltest.New(mem), eager: eager}
	if eager {
		d.fs.EagerDirs()
	}
	d.mu.rng = rng
	d.fs.SetBefore(d.before)
	d.fs.SetAfter(d.afterCall)
	return d
}

func (d *disk) before(op journaltest.Op) journaltest.Fault {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.dead {
		return journaltest.Fault{Err: syscall.EIO}
	}
	p := d.mu.plan
	if p == nil || d.mu.after != 0 || p.call != op.Call && (p.call != "" || !op.Changes()) || !strings.Contains(op.Path, p.path) ||
		p.lenMin > 0 && (op.Len < p.lenMin || op.Zeroes) {
		return journaltest.Fault{}
	}
	if p.skip--; p.skip >= 0 {
		return journaltest.Fault{}
	}
	if p.after && op.Changes() {
		d.mu.after = op.N
		return journaltest.Fault{}
	}
	d.carryOut()
	if p.fate == failCall {
		return p.fault
	}
	return journaltest.Fault{Err: syscall.EIO, LoseBlocks: p.fate == failSync}
}

func (d *disk) afterCall(op journaltest.Op) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if op.N == d.mu.after {
		d.carryOut()
	}
}

// carryOut is called with d.mu held, within a call.
func (d *disk) carryOut() {
	p := d.mu.plan
	d.mu.plan, d.mu.after = nil, 0
	switch p.fate {
	case losePower:
		d.mu.left = d.fs.Crash(p.percent, d.mu.rng)
		d.mu.dead = true
	case killProcess:
		d.mu.dead = true
	}
	close(d.mu.done)
}

// arm returns a channel that is closed when p was carried out.
func (d *disk) arm(p plan) <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.plan, d.mu.after = &p, 0
	d.mu.done = make(chan struct{})
	return d.mu.done
}

// disarm drops a plan that was not carried out.
func (d *disk) disarm() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.plan, d.mu.after = nil, 0
}

// now carries out a plan at once, unless the disk is dead already.
func (d *disk) now(p plan) {
	p.call, p.path, p.lenMin, p.skip, p.after = journaltest.Stat, "", 0, 0, false
	d.arm(p)
	_, _ = d.fs.Stat("/") // this call, another one before it, or none
	d.disarm()
}

// lost returns what a lost power has left; nil if it was not lost.
func (d *disk) lost() *vfs.MemFS {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.left
}

// revive lets a disk work again, for the next process after one that was killed. That one must have ended.
func (d *disk) revive() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.dead = false
}
