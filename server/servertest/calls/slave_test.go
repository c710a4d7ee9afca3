package calls

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/journal/journaltest"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/store/local"
)

// follower is a store whose journal copies a master's.
type follower struct {
	store   *local.Store
	journal *journal.Journal
}

func (s *shape) follow(fs vfs.FS) (*follower, error) {
	f := &follower{}
	o := s.options(fs, offset.NewTable())
	o.Follow = true
	o.OpenLog = func(lo local.LogOptions) (_ local.Log, err error) {
		lo.Follow = true
		if f.journal, err = journal.Open(lo); err != nil {
			return nil, err
		}
		return f.journal, nil
	}
	var err error
	f.store, err = local.Open(o)
	return f, err
}

// copy takes up to so many bytes of what it has not, and is told what is committed.
func (f *follower) copy(master *world, bytes int) error {
	buf := make([]byte, 16<<10)
	for at := f.journal.Written(); bytes > 0 && at < master.journal.Written(); at = f.journal.Written() {
		n, err := master.journal.ReadRaw(at, buf)
		if err != nil {
			return fmt.Errorf("read the master's journal at %d: %w", at, err)
		}
		for {
			if err = f.journal.CopyRecords(at, buf[:n], master.store.StoreID()); !errors.Is(err, journal.ErrBusy) {
				break
			}
			if err := f.journal.WaitRoom(context.Background()); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
		bytes -= n
	}
	f.journal.SetCommitted(master.journal.Committed())
	return nil
}

// slaveClones are those of a slave's disk.
type slaveClones struct {
	*clones
	master *world
	// still: nobody uses the master. Hooks look at it only then.
	still  sync.RWMutex
	synced journal.Position // for certain; written by the driver, and read within its calls and those that it waits for
	mu     sync.Mutex       // guards synced
}

// runSlaveClones has a slave follow a master, in several lives. Each clone of its disk has what was synced; follows on to where the master is; and is then,
// as a master, what the master was.
func runSlaveClones(t *testing.T, seed uint64) *clones {
	rng := rand.New(rand.NewPCG(seed, 1))
	s := &slaveClones{clones: &clones{t: t, rng: rand.New(rand.NewPCG(seed, 2)), eager: rng.IntN(3) == 0}}
	s.w = &world{shape: newShape(rng), rng: rng, ledger: newLedger(), fs: newDisk(t, nil, true), keep: true}
	s.master = s.w
	if err := s.master.open("machine"); err != nil {
		t.Fatal(err)
	}
	s.master.create()
	s.mount(nil, s.afterSlave)
	for n := range lives() - 1 {
		way := stopped // the last one
		if n < lives()-2 {
			way = rng.IntN(ways)
		}
		s.liveAsSlave(way)
		if len(s.problems) > 0 {
			break
		}
	}
	s.still.Lock()
	s.master.close()
	s.still.Unlock()
	s.problems = append(s.problems, s.w.ledger.problems...)
	return s.clones
}

func (s *slaveClones) liveAsSlave(way int) {
	s.begin(way)
	f, err := s.w.shape.follow(s.fs)
	if err == nil {
		err = s.following(f)
		if closed := f.store.Close(); err == nil {
			err = closed
		}
	}
	if err != nil && !s.dead.Load() {
		s.problems = append(s.problems, problem{other, fmt.Sprintf("slave: %v", err)})
	}
	if s.dead.Swap(false) && s.left != nil {
		s.mount(s.left, s.afterSlave)
		s.left = nil
	}
}

// following is what the slave does while the master goes on in between.
func (s *slaveClones) following(f *follower) error {
	for n := 0; n < 40 && !s.dead.Load(); n++ {
		s.still.Lock()
		for range 1 + s.w.rng.IntN(4) {
			s.master.step()
		}
		s.master.settle()
		s.still.Unlock()
		if err := f.copy(s.master, s.w.rng.IntN(32<<10)); err != nil {
			return err
		}
		switch s.w.rng.IntN(4) {
		case 0:
			written := f.journal.Written()
			if err := f.journal.Sync(); err != nil {
				return err
			}
			s.mu.Lock()
			s.synced = written
			s.mu.Unlock()
		case 1:
			if err := f.store.Checkpoint(); err != nil {
				return err
			}
		}
	}
	return nil
}

// afterSlave is called within each call of the slave.
func (s *slaveClones) afterSlave(op journaltest.Op) {
	if s.dead.Load() || !s.still.TryRLock() {
		return
	}
	defer s.still.RUnlock()
	if len(s.problems) > 0 {
		return
	}
	s.ops++
	s.mu.Lock()
	synced := s.synced
	s.mu.Unlock()
	f := s.w.ledger.now()
	percent := s.percent()
	clone := s.fs.Crash(percent, s.rng)
	if s.dieAt > 0 && s.ops >= s.dieAt {
		if s.way == powerLost {
			s.left = clone.CrashClone(vfs.CrashCloneCfg{})
		}
		s.dead.Store(true)
	}
	if s.rng.IntN(spare()) > 0 {
		return
	}
	what := fmt.Sprintf("a slave's power lost after call %d, %v, with %d %% of the unsynced", s.ops, op, percent)
	if err := s.followOn(clone, synced); err != nil {
		s.problems = append(s.problems, problem{other, fmt.Sprintf("%s: %v", what, err)})
		return
	}
	// Its store, REPLICA and SIDE are not the master's.
	f.id, f.boot, f.state, f.sides, f.sideBegin, f.sideMoving = nil, "", numbered{}, numbered{}, 0, false
	s.judge(clone, &f, what+", then it is the master", true)
}

// followOn opens a clone as a slave, and lets it follow to where the master is.
func (s *slaveClones) followOn(clone vfs.FS, synced journal.Position) error {
	f, err := s.w.shape.follow(clone)
	if err != nil {
		return fmt.Errorf("open the slave: %w", err)
	}
	defer f.store.Close()
	if has, most := f.journal.Written(), s.master.journal.Written(); has < synced || has > most {
		return fmt.Errorf("the slave has %d, %d was synced, the master has %d", has, synced, most)
	}
	if m := f.store.Metrics(); m.Holes != 0 || m.LostMessages != 0 {
		return fmt.Errorf("the slave has %d holes, %d lost messages", m.Holes, m.LostMessages)
	}
	to := s.master.journal.Committed() // an idle master commits a no-op when it likes
	if err := f.copy(s.master, 1<<30); err != nil {
		return fmt.Errorf("follow on: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := f.store.WaitApplied(ctx, to); err != nil {
		return fmt.Errorf("apply: %w", err)
	}
	return f.store.Close()
}
