package replica_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/replica"
	"github.com/jmqio/jmq/server/replica/replicatest"
)

// trial is a broker group under random faults, with what its clients were told.
type trial struct {
	t   *testing.T
	g   *replicatest.Group
	rng *rand.Rand
	log []string

	sends sync.WaitGroup
	mu    sync.Mutex
	sent  int
	ok    map[string]bool // acknowledged
	never map[string]bool // refused: must not be there
}

func (r *trial) note(format string, args ...any) {
	r.log = append(r.log, fmt.Sprintf("%v ", time.Now().Format("05.000"))+fmt.Sprintf(format, args...))
}

func (r *trial) master() *replicatest.Node {
	row, _ := r.g.Registry.Row()
	if n := r.g.Nodes[row.Master.Broker]; n != nil && n.Master != nil {
		return n
	}
	return nil
}

// send sends one message, and does not wait for its outcome.
func (r *trial) send() {
	n := r.master()
	if n == nil {
		return
	}
	r.sent++
	name, replicated, m := fmt.Sprint("m", r.sent), r.rng.IntN(3) == 0, n.Master
	done := func(short bool, err error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.ok[name] = err == nil && !(replicated && short)
	}
	a := &journal.Append{Entries: []journal.Entry{{Kind: journal.KindMessages, Payload: []byte(name)}}, Stored: time.Now().UnixNano(), Replicated: replicated}
	r.sends.Add(1)
	a.Done = func(a *journal.Append, err error) { done(a.Short, err); r.sends.Done() }
	if err := m.Append(a); err != nil {
		r.sends.Done()
		r.mu.Lock()
		r.never[name] = true
		r.mu.Unlock()
		return
	}
	m.Kick()
}

// step lets something happen.
func (r *trial) step(names []string) {
	n := r.g.Nodes[names[r.rng.IntN(len(names))]]
	other := names[r.rng.IntN(len(names))]
	if r.rng.IntN(3) > 0 { // that something is under way
		for range r.rng.IntN(5) {
			r.send()
		}
		time.Sleep(time.Duration(r.rng.IntN(2000)) * time.Microsecond)
	}
	switch k := r.rng.IntN(100); {
	case k < 35:
		time.Sleep(time.Duration(r.rng.IntN(300)) * time.Millisecond)
	case k < 39 && n.Up():
		r.note("kill %s", n.Name)
		n.Kill()
	case k < 43 && n.Up():
		r.note("power loss of %s", n.Name)
		n.PowerLoss(r.rng.IntN(101), r.rng)
	case k < 45 && n.Up():
		r.note("stop %s", n.Name)
		n.Stop()
	case k < 46:
		r.note("power loss of all")
		for _, name := range names {
			if n := r.g.Nodes[name]; n.Up() {
				n.PowerLoss(r.rng.IntN(101), r.rng)
			}
		}
	case k < 47:
		if row, _ := r.g.Registry.Row(); !n.Up() && n.Name != row.Master.Broker {
			r.note("%s gets an empty disk", n.Name)
			n.SwapDisk()
		}
	case k < 50:
		r.note("partition of %s and %s", n.Name, other)
		r.g.Net.Partition(n.Name, other)
	case k < 53:
		r.note("nothing from %s to %s", n.Name, other)
		r.g.Net.Cut(n.Name, other)
	case k < 63:
		r.g.Net.Heal(n.Name, other)
	case k < 65:
		r.g.Net.Break(n.Name, other)
	case k < 67:
		n.Disk.Slow(time.Duration(r.rng.IntN(3)) * 20 * time.Millisecond)
	case k < 69:
		r.g.Registry.Away(r.rng.IntN(2) == 0)
	case k < 72:
		time.Sleep(time.Duration(r.rng.IntN(6000)) * time.Millisecond)
	case k < 82 && r.g.Auto && r.master() == nil:
		if row, err := r.g.Promote(); err == nil {
			r.note("%s is promoted, term %d", row.Master.Broker, row.Term)
			if n := r.g.Nodes[row.Master.Broker]; n.Slave != nil && r.rng.IntN(2) == 0 {
				n.Stop()
				r.start(n)
			}
		}
	default:
		for _, name := range names {
			if r.rng.IntN(2) == 0 {
				r.start(r.g.Nodes[name])
			}
		}
	}
	r.reopen(names)
}

func (r *trial) start(n *replicatest.Node) {
	if n.Up() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	err := n.Start(ctx)
	r.note("start %s: %v", n.Name, err)
}

// reopen does what a broker does when its master or slave cannot go on.
func (r *trial) reopen(names []string) {
	for _, name := range names {
		n := r.g.Nodes[name]
		switch {
		case n.Slave != nil:
			select {
			case <-n.Slave.MustReopen():
				r.note("%s opens anew: %s", name, n.Slave.Why())
				n.Stop()
			default:
			}
		case n.Master != nil && n.Master.Stopped():
			r.note("%s is fenced", name)
			n.Stop()
		}
	}
}

// settle mends all, and waits until every broker is up and has the same.
func (r *trial) settle(names []string) {
	r.g.Registry.Away(false)
	for _, a := range names {
		r.g.Nodes[a].Disk.Slow(0)
		for _, b := range names {
			r.g.Net.Heal(a, b)
		}
	}
	good := func() bool {
		m := r.master()
		if m == nil {
			return false
		}
		for _, name := range names {
			if name != m.Name && (r.g.Nodes[name].Slave == nil || !m.InSync(name) || r.g.Nodes[name].Slave.Committed() != m.Master.Committed()) {
				return false
			}
		}
		return true
	}
	for end := time.Now().Add(3 * time.Minute); !good(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			for _, l := range r.log {
				r.t.Log(l)
			}
			for _, name := range names {
				if n := r.g.Nodes[name]; n.Master != nil {
					r.t.Logf("%s: %v", name, n.Master.Status())
				} else if n.Slave != nil {
					r.t.Logf("%s: %v", name, n.Slave.Status())
				}
			}
			row, _ := r.g.Registry.Row()
			r.t.Fatalf("the broker group does not come together: %+v", row)
		}
		for _, name := range names {
			r.start(r.g.Nodes[name])
		}
		r.reopen(names)
	}
	r.sends.Wait()
	m := r.master()
	end := m.Master.Committed()
	for _, name := range names {
		if s := r.g.Nodes[name].Slave; s != nil {
			r.g.Await(func() bool { return s.Committed() >= end }, "%s hears of the last commit", name)
		}
	}
}

// check looks at what is there: nothing that was acknowledged is lost, nothing that was refused or was never sent is there, nothing twice, and
// all copies are the same.
func (r *trial) check(names []string) {
	m := r.master()
	list, want := messages(r.t, m.Master)
	seen := map[string]int{}
	for _, name := range list {
		seen[name]++
	}
	bad := false
	fail := func(format string, args ...any) {
		bad = true
		r.t.Errorf(format, args...)
	}
	for name, ok := range r.ok {
		if ok && seen[name] != 1 {
			fail("%s was acknowledged, and is there %d times", name, seen[name])
		}
	}
	for name, n := range seen {
		if n != 1 || r.never[name] {
			fail("%s is there %d times, refused: %v", name, n, r.never[name])
		}
	}
	for _, name := range names {
		if s := r.g.Nodes[name].Slave; s != nil {
			// A no-op may just have been written at the master.
			if has, got := messages(r.t, s); !strings.HasPrefix(string(want), string(got)) || !slices.Equal(has, list) {
				fail("%s has another journal than %s", name, m.Name)
			}
		}
	}
	if bad {
		for _, l := range r.log {
			r.t.Log(l)
		}
	}
}

// TestRandom: kills, power losses, partitions and restarts of a broker group with real journals. Of fixed ones the master stays the one that
// was named; of auto ones members are promoted.
func TestRandom(t *testing.T) {
	rng := random(t)
	runs := 20
	if testing.Short() || replica.RaceEnabled { // which makes it many times slower
		runs = 4
	}
	for i := range runs {
		one := rng.Uint64()
		auto := i%2 == 1
		ok := t.Run(fmt.Sprintf("auto=%v/%d", auto, i), func(t *testing.T) {
			inGroup(t, func(t *testing.T, g *replicatest.Group) {
				g.Auto = auto
				names := []string{"a", "b", "c"}
				pair(t, g, "b", "c")
				r := &trial{t: t, g: g, rng: rand.New(rand.NewPCG(one, 1)), ok: map[string]bool{}, never: map[string]bool{}}
				for range 150 {
					r.step(names)
				}
				r.settle(names)
				r.check(names)
				asides := 0
				for _, name := range names {
					asides += len(g.Nodes[name].Journal().SetAside())
				}
				row, _ := g.Registry.Row()
				t.Logf("%d sent, %d ok, %d refused, term %d, %d tails set aside", r.sent, len(r.ok), len(r.never), row.Term, asides)
			}, "a", "b", "c")
		})
		if !ok {
			break
		}
	}
}
