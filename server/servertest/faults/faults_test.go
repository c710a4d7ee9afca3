package faults

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/servertest"
	"github.com/jmqio/jmq/server/servertest/check"
	"github.com/jmqio/jmq/wire"
)

// fault is what happens to a broker group, until it is healed.
type fault struct {
	name string
	shape
	// away is what slaves may do that no restart explains: see check.OpAway. Empty: consumers are given nothing again that was acked, whoever took
	// the ack.
	away string
	// needs says that the fault needs the registry; others happen while it, or its database, is away too.
	needs bool
	do    func(x *trial)
}

const bothWays = check.AwayUnmerged + ", " + check.AwayBehind

var (
	fixed1 = shape{slaves: 1}
	fixed2 = shape{slaves: 2}
	auto1  = shape{auto: true, slaves: 1}
	auto2  = shape{auto: true, slaves: 2}

	exchanging = shape{slaves: 1, oneFolder: true}
)

var faults = []fault{
	{name: "kill the master", shape: fixed1, do: func(x *trial) { x.kill(x.master()); x.served() }},
	{name: "kill the master, two slaves", shape: fixed2, do: func(x *trial) { x.kill(x.master()); x.served() }},
	{name: "kill the master, at once back", shape: fixed1, do: func(x *trial) { m := x.master(); x.kill(m); x.up(m) }},
	{name: "kill the slave", shape: fixed1, do: func(x *trial) { x.kill(x.slave()); x.goesOn("sends without the slave", 10, normal) }},
	{name: "kill the slave, at once back", shape: fixed1, do: func(x *trial) { s := x.slave(); x.kill(s); x.up(s) }},
	{name: "kill both, master first back", shape: fixed1, do: func(x *trial) { m := x.master(); x.killAll(); x.up(m) }},
	{name: "kill both, slave first back", shape: fixed1, away: bothWays, do: func(x *trial) { s := x.slave(); x.killAll(); x.up(s); x.served() }},
	{name: "kill all, registry too", shape: fixed1, needs: true, do: func(x *trial) { x.killAll(); x.stopRegistry() }},
	{name: "kill the master, a slave is promoted", shape: auto1, needs: true, do: func(x *trial) { x.kill(x.master()); x.promoted() }},
	// What the slave that served first had acked, another that serves until it hears of the new master may not know.
	{name: "kill the master, one of two slaves is promoted", shape: auto2, needs: true, away: check.AwayUnmerged, do: func(x *trial) { x.kill(x.master()); x.promoted() }},
	{name: "kill all, auto", shape: auto1, needs: true, do: func(x *trial) { s := x.slave(); x.killAll(); x.up(s); x.promoted() }},

	{name: "pause the master", shape: fixed1, away: bothWays, do: func(x *trial) { x.Links.Pause(x.master().Name()); x.served() }},
	{name: "pause the master, a slave is promoted", shape: auto1, needs: true, away: bothWays, do: func(x *trial) { m := x.master(); x.Links.Pause(m.Name()); x.promotedInstead(m) }},
	{name: "pause the slave", shape: fixed1, do: func(x *trial) { x.Links.Pause(x.slave().Name()); x.goesOn("sends without the slave", 10, normal) }},
	{name: "pause both", shape: fixed1, away: bothWays, do: func(x *trial) {
		x.Links.Pause(x.slave().Name())
		x.Links.Pause(x.master().Name())
		x.hold(2500 * time.Millisecond)
	}},
	{name: "pause the slave, auto", shape: auto1, do: func(x *trial) { x.Links.Pause(x.slave().Name()); x.hold(1500 * time.Millisecond) }},

	{name: "power of the master", shape: fixed1, do: func(x *trial) { x.power(x.master()); x.served() }},
	{name: "power of the master, at once back", shape: fixed1, do: func(x *trial) { m := x.master(); x.power(m); x.up(m) }},
	{name: "power of the slave", shape: fixed1, do: func(x *trial) { x.power(x.slave()); x.goesOn("sends without the slave", 10, normal) }},
	{name: "power of both", shape: fixed1, away: bothWays, do: func(x *trial) { x.powerAll() }},
	{name: "power of the master, a slave is promoted", shape: auto1, needs: true, do: func(x *trial) { x.power(x.master()); x.promoted() }},
	{name: "power of all, slave back first", shape: auto1, needs: true, away: bothWays, do: func(x *trial) { s := x.slave(); x.powerAll(); x.up(s); x.hold(4 * time.Second) }},
	{name: "power of all, slaves back first", shape: auto2, needs: true, away: bothWays, do: func(x *trial) {
		m := x.master()
		x.powerAll()
		for _, b := range x.g.Brokers {
			if b != m {
				x.up(b)
			}
		}
		x.hold(4 * time.Second)
	}},

	{name: "part master and slave", shape: fixed1, away: bothWays, do: func(x *trial) {
		x.Links.Part(x.master().Name(), x.slave().Name())
		x.goesOn("sends without the slave", 10, normal)
		x.hold(2500 * time.Millisecond)
	}},
	{name: "part master and slave, auto", shape: auto1, away: bothWays, do: func(x *trial) {
		x.Links.Part(x.master().Name(), x.slave().Name())
		x.hold(4 * time.Second)
	}},
	{name: "part master and registry", shape: fixed1, do: func(x *trial) {
		x.Links.Part(x.master().Name(), x.Registries[0].Name())
		x.goesOn("sends without a registry", 10, topics...)
		x.hold(4 * time.Second)
	}},
	{name: "part master and registry, auto", shape: auto1, needs: true, away: bothWays, do: func(x *trial) {
		m := x.master()
		x.Links.Part(m.Name(), x.Registries[0].Name())
		x.promotedInstead(m)
	}},
	{name: "part master and all", shape: auto1, needs: true, away: bothWays, do: func(x *trial) {
		m := x.master()
		for _, other := range []string{x.Registries[0].Name(), x.slave().Name()} {
			x.Links.Part(m.Name(), other)
		}
		x.promotedInstead(m)
	}},
	{name: "part clients and master", shape: fixed1, do: func(x *trial) { x.Links.Part("clients", x.master().Name()); x.hold(3 * time.Second) }},
	{name: "part slave and registry", shape: auto1, do: func(x *trial) {
		x.Links.Part(x.slave().Name(), x.Registries[0].Name())
		x.goesOn("sends", 10, topics...)
		x.hold(4 * time.Second)
	}},
	{name: "nothing from master to slave", shape: fixed1, away: bothWays, do: func(x *trial) {
		x.Links.Cut(x.master().Name(), x.slave().Name())
		x.goesOn("sends without the slave", 10, normal)
		x.hold(2500 * time.Millisecond)
	}},
	{name: "nothing from slave to master", shape: fixed1, away: bothWays, do: func(x *trial) {
		x.Links.Cut(x.slave().Name(), x.master().Name())
		x.goesOn("sends without the slave", 10, normal)
		x.hold(2500 * time.Millisecond)
	}},
	{name: "nothing from master to registry", shape: auto1, away: bothWays, do: func(x *trial) {
		x.Links.Cut(x.master().Name(), x.Registries[0].Name())
		x.hold(5 * time.Second)
	}},
	{name: "nothing from registry to master", shape: auto1, away: bothWays, do: func(x *trial) {
		x.Links.Cut(x.Registries[0].Name(), x.master().Name())
		x.hold(5 * time.Second)
	}},
	{name: "flapping", shape: auto2, away: bothWays, do: func(x *trial) {
		var names []string
		for _, s := range append(x.Registries[:1:1], x.g.Brokers...) {
			names = append(names, s.Name())
		}
		for range 12 {
			a, b := x.rng.IntN(len(names)), x.rng.IntN(len(names))
			switch {
			case a == b:
				x.Links.Pause(names[a])
			case x.rng.IntN(2) == 0:
				x.Links.Cut(names[a], names[b])
			default:
				x.Links.Part(names[a], names[b])
			}
			x.hold(time.Duration(100+x.rng.IntN(900)) * time.Millisecond)
			x.Links.Heal()
			for _, n := range names {
				x.Links.Resume(n)
			}
			x.hold(time.Duration(x.rng.IntN(200)) * time.Millisecond)
		}
	}},

	{name: "empty disk at the slave", shape: fixed1, do: func(x *trial) { s := x.slave(); x.kill(s); x.EmptyDisk(s) }},
	{name: "empty disk at the master", shape: fixed1, needs: true, do: func(x *trial) { m := x.master(); x.kill(m); x.EmptyDisk(m) }},
	{name: "empty disk at the master, auto", shape: auto1, needs: true, do: func(x *trial) { m := x.master(); x.kill(m); x.EmptyDisk(m); x.up(m) }},
	{name: "old image at the slave", shape: fixed1, do: func(x *trial) { x.restore(x.slave()) }},
	{name: "old image at the master", shape: fixed1, do: func(x *trial) { x.restore(x.master()) }},
	{name: "old image at the master, auto", shape: auto1, do: func(x *trial) { x.restore(x.master()) }},
	{name: "short disk at the slave", shape: fixed1, do: func(x *trial) { x.shorten(x.slave()) }},
	{name: "short disk at the master", shape: fixed1, do: func(x *trial) { x.shorten(x.master()) }},
	{name: "short disk at the master, auto", shape: auto1, do: func(x *trial) { x.shorten(x.master()) }},
	{name: "the slave's disk is a copy of the master's", shape: exchanging, needs: true, away: check.AwayUnmerged, do: func(x *trial) {
		m, s := x.master(), x.slave()
		x.kill(s)
		s.SetDisk(m.Disk().Image())
	}},
	{name: "disks exchanged", shape: exchanging, needs: true, away: bothWays, do: func(x *trial) {
		m, s := x.master(), x.slave()
		x.killAll()
		a, b := m.Disk(), s.Disk()
		m.SetDisk(b)
		s.SetDisk(a)
	}},
	{name: "the master loses its power in mid-push", shape: fixed2, away: bothWays, do: func(x *trial) {
		m := x.master()
		x.Links.Cut(m.Name(), x.slave().Name())
		x.hold(time.Duration(x.rng.IntN(300)) * time.Millisecond)
		x.power(m)
		x.Links.Heal()
		x.up(m)
	}},
	{name: "two slaves with one identity", shape: fixed1, needs: true, do: func(x *trial) {
		twin := x.StartTwin(1, x.slave())
		x.goesOn("sends with twins", 10, normal)
		x.hold(2 * time.Second)
		twin.Stop()
	}},
	{name: "slow disk at the slave", shape: fixed1, do: func(x *trial) { x.slave().Disk().Slow(2 * time.Second); x.goesOn("sends", 100, topics...) }},
	{name: "slow disk at the master", shape: fixed1, do: func(x *trial) { x.master().Disk().Slow(300 * time.Millisecond); x.goesOn("sends", 20, topics...) }},

	{name: "transfer", shape: fixed1, needs: true, do: func(x *trial) { x.transfer() }},
	{name: "transfer, auto", shape: auto2, needs: true, do: func(x *trial) { x.transfer(); x.transfer() }},
	{name: "replicated topics without a slave", shape: fixed1, do: func(x *trial) {
		x.kill(x.slave())
		x.await("no slave is in sync", recoverMost, func() bool {
			for _, s := range x.g.Status()[x.master().Name()].GetSlaves() {
				if s.InSync {
					return false
				}
			}
			return true
		})
		x.hold(100 * time.Millisecond) // what was under way
		was := x.oks[replicated].Load()
		x.goesOn("sends without the slave", 20, normal)
		if n := x.oks[replicated].Load() - was; n > 0 {
			x.t.Errorf("%d sends to a replicated topic were ok without a slave", n)
		}
	}},
}

func (x *trial) master() *servertest.Server { x.t.Helper(); return x.g.Master() }

// slave is the first that is none.
func (x *trial) slave() *servertest.Server {
	x.t.Helper()
	m := x.master()
	for _, b := range x.g.Brokers {
		if b != m {
			return b
		}
	}
	x.t.Fatal("there is no slave")
	return nil
}

func (x *trial) kill(s *servertest.Server)  { x.t.Helper(); x.Kill(s); x.down[s] = true }
func (x *trial) power(s *servertest.Server) { x.t.Helper(); x.PowerLoss(s, x.rng); x.down[s] = true }

func (x *trial) killAll() {
	for _, i := range x.rng.Perm(len(x.g.Brokers)) {
		x.kill(x.g.Brokers[i])
	}
}

func (x *trial) powerAll() {
	for _, i := range x.rng.Perm(len(x.g.Brokers)) {
		x.power(x.g.Brokers[i])
	}
}

func (x *trial) stopRegistry() {
	x.Registries[0].Stop()
	x.down[x.Registries[0]] = true
}

// hold lets the fault last.
func (x *trial) hold(d time.Duration) { pause(context.Background(), d) }

// served waits until a slave serves reads, or there is nothing more that it could give; and a moment longer.
func (x *trial) served() {
	x.t.Helper()
	x.await("a slave serves", recoverMost, func() bool {
		for _, st := range x.g.Status() {
			if st.GetServing() {
				return true
			}
		}
		return false
	})
	x.hold(300 * time.Millisecond)
}

// promoted waits until a master serves.
func (x *trial) promoted() {
	x.t.Helper()
	x.master()
	x.goesOn("sends to the new master", 10, normal)
}

// promotedInstead waits until another broker than old is the master.
func (x *trial) promotedInstead(old *servertest.Server) {
	x.t.Helper()
	x.await("another master", recoverMost, func() bool {
		for name, st := range x.g.Status() {
			if name != old.Name() && st.GetRole() == "master" {
				return true
			}
		}
		return false
	})
	x.goesOn("sends to the new master", 10, normal)
}

// restore puts an image of a moment ago in the place of a node's disk.
func (x *trial) restore(s *servertest.Server) {
	x.t.Helper()
	image := s.Disk().Image()
	x.goesOn("sends after the image", 20, topics...)
	x.kill(s)
	s.SetDisk(image)
}

// shorten takes the end of a node's journal away.
func (x *trial) shorten(s *servertest.Server) {
	x.t.Helper()
	x.kill(s)
	fs := s.Disk()
	dir := path.Join(s.Folder(), "journal")
	names, err := fs.List(dir)
	if err != nil {
		x.t.Fatal(err)
	}
	last := ""
	for _, n := range names {
		if strings.HasSuffix(n, ".journal") && n > last {
			last = n
		}
	}
	f, err := fs.OpenReadWrite(path.Join(dir, last), vfs.WriteCategoryUnspecified)
	if err != nil {
		x.t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		x.t.Fatal(err)
	}
	b := make([]byte, info.Size())
	if _, err := f.ReadAt(b, 0); err != nil {
		x.t.Fatal(err)
	}
	end := len(b)
	for end > 0 && b[end-1] == 0 {
		end--
	}
	from := max(4096, end-20_000)
	if _, err := f.WriteAt(make([]byte, max(end-from, 0)), int64(from)); err != nil {
		x.t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		x.t.Fatal(err)
	}
}

func (x *trial) transfer() {
	x.t.Helper()
	x.g.InSync(x.slaves)
	m := x.master()
	x.await("a transfer is begun", recoverMost, func() bool { // the slaves may have fallen out of the set since
		r, err := x.g.Do(&wire.BrokerGroupRequest{Action: "transfer"})
		if err == nil && len(r.Lost) > 0 {
			x.t.Errorf("transfer: %v", r.Lost)
		} else if err != nil && wire.CodeOf(err) != wire.CodeInUse {
			x.t.Errorf("transfer: %v", err)
		}
		return wire.CodeOf(err) != wire.CodeInUse
	})
	x.promotedInstead(m)
}

// surroundings are what is away during a fault.
type surroundings int

const (
	allThere surroundings = iota
	registryAway
	databaseAway
)

func (s surroundings) String() string {
	return [...]string{"", ", registry away", ", database away"}[s]
}

// within is the fault, in surroundings.
func (f fault) within(s surroundings) fault {
	do := f.do
	f.name += s.String()
	switch s {
	case registryAway:
		f.do = func(x *trial) { x.stopRegistry(); do(x) }
	case databaseAway:
		f.do = func(x *trial) { x.database.Fail(errors.New("the database is away")); do(x) }
	}
	return f
}

// A run takes a sample of the faults, by its seed; 0: all, as with JMQ_TEST_CYCLES.
var sample = flag.Int("sample", 30, "how many of the faults happen, a fourth of them with -race; 0: all")

// TestFaults carries out each fault on a cluster of its own, and some while the registry or its database is away: what was ok is never lost, all
// copies are the same, and soon after it is healed all is as before. With JMQ_TEST_CYCLES each happens so often, in all surroundings.
func TestFaults(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64N(1_000_000) + 1
	}
	t.Logf("-seed=%d", seed)
	rng := rand.New(rand.NewPCG(seed, 20))
	cycles, _ := strconv.Atoi(os.Getenv("JMQ_TEST_CYCLES"))
	var list []fault
	for _, f := range faults {
		list = append(list, f)
		for s := registryAway; s <= databaseAway && !f.needs; s++ {
			if cycles > 0 || rng.IntN(6) == 0 {
				list = append(list, f.within(s))
			}
		}
	}
	rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	most := *sample
	if raceEnabled {
		most = (most + 3) / 4
	}
	if cycles == 0 && most > 0 {
		list = list[:min(most, len(list))]
	}
	for i, f := range list {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			runFaults(t, f.shape, seed+uint64(i), max(1, cycles), &f)
		})
	}
}

// runFaults carries out faults, one after the other, on one cluster, the list so often, and judges.
func runFaults(t *testing.T, s shape, seed uint64, times int, list ...*fault) {
	x := newTrial(t, s, seed)
	x.goesOn("all is well", 10, topics...)
	for range times {
		for _, f := range list {
			x.carryOut(f)
		}
	}
	r := x.judge()
	if err := r.Err(); err != nil || len(x.mu.problems) > 0 {
		t.Errorf("-seed=%d: the history is in %s\n%v\n%s", seed, x.keep(), r, strings.Join(x.mu.problems, "\n"))
	}
	if none := r.Unchecked("C1", "C2", "C3", "C4", "C5", "C6", "C7", "C8", "C9", "C10"); len(none) > 0 || r.Copies == 0 {
		t.Errorf("%v had nothing to check; %d ranges of copies", none, r.Copies)
	}
	if testing.Verbose() {
		fmt.Println(t.Name(), r)
	}
}
