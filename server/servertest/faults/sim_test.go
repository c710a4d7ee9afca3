package faults

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jmqio/jmq/server/servertest"
	"github.com/jmqio/jmq/server/servertest/check"
	"github.com/jmqio/jmq/wire"
)

// The simulation: two or three broker groups of a master and one or two slaves, two registry nodes over one database, producers and consumers, all of
// them the real ones, in simulated time and over a network in memory. A day is mostly quiet: messages come now and then, what is old goes, nodes look at
// each other rarely (server.Config.Every), and all sends must be ok. In between mishaps come one after the other. The seed says what is chosen; which of several goroutines that could run runs first it
// does not say, nor what the product itself draws by lot. So a run with the same seed has the same kinds of mishaps on the same broker groups, as long as
// the same node is master, and nearly the same course, but what needs one order of goroutines may not come again.

const (
	clients = "clients"

	schedule = 24 * time.Hour // of simulated time: one cluster, one seed, one history

	simulatedShort = 40 * time.Minute // of a plain run
	simulatedRace  = 10 * time.Minute

	quietMost = schedule / 4    // between the mishaps of a day, or so much less as a schedule is shorter
	wakes     = 5 * time.Second // until all look as often as ever
)

// mishap is what happens to a node, a broker group, or all of them.
type mishap struct {
	name string
	away string // as that of a fault
	// wide: it may touch more than one broker group.
	wide bool
	// clock: nothing goes by its age for a day after it.
	clock bool
	// first: it happens while all is well, since elsewhere there may be no other copy.
	first bool
	// do says what happened; "": it could not be.
	do func(s *simulation) string
}

// Slow disks are not among them: the journal syncs under a lock, and while somebody waits for a lock synctest lets no time go by.
var mishaps = []mishap{
	{name: "kill", do: func(s *simulation) string { return s.each(s.kill, s.one()) }},
	{name: "kill all", away: bothWays, do: func(s *simulation) string { return s.each(s.kill, s.g.Brokers...) }},
	{name: "kill everything", away: bothWays, wide: true, do: func(s *simulation) string { return s.each(s.kill, s.brokers()...) }},
	{name: "power", away: bothWays, do: func(s *simulation) string { return s.each(s.power, s.one()) }},
	{name: "power all", away: bothWays, do: func(s *simulation) string { return s.each(s.power, s.g.Brokers...) }},
	{name: "power everything", away: bothWays, wide: true, do: func(s *simulation) string { return s.each(s.power, s.brokers()...) }},
	{name: "pause", away: bothWays, do: func(s *simulation) string { return s.each(s.pause, s.one()) }},
	{name: "pause all", away: bothWays, do: func(s *simulation) string { return s.each(s.pause, s.g.Brokers...) }},
	{name: "pause registry", away: bothWays, wide: true, do: func(s *simulation) string { return s.each(s.pause, s.Registries[s.rng.IntN(2):]...) }},
	{name: "stop registry", wide: true, do: func(s *simulation) string { return s.each(s.stopNode, s.Registries[s.rng.IntN(2):]...) }},
	{name: "database", wide: true, do: func(s *simulation) string {
		why := errors.New("the database is away")
		switch s.rng.IntN(3) {
		case 0:
			s.database.Fail(why)
			return "database away from the first registry node"
		case 1:
			s.others[0].Fail(why)
			return "database away from the second registry node"
		}
		s.database.Fail(why)
		s.others[0].Fail(why)
		return "database away"
	}},
	{name: "part", away: bothWays, do: func(s *simulation) string {
		a, b := s.two()
		s.Links.Part(a, b)
		return "part " + a + " and " + b
	}},
	{name: "cut", away: bothWays, do: func(s *simulation) string {
		a, b := s.two()
		s.Links.Cut(a, b)
		return "nothing from " + a + " to " + b
	}},
	{name: "isolate", away: bothWays, do: func(s *simulation) string {
		a := s.one().Name()
		for _, b := range s.nodes() {
			if b.Name() != a {
				s.Links.Part(a, b.Name())
			}
		}
		if s.rng.IntN(2) == 0 {
			return "isolate " + a
		}
		s.Links.Part(a, clients)
		return "isolate " + a + ", for clients too"
	}},
	{name: "reset", do: func(s *simulation) string {
		a, b := s.two()
		for range 1 + s.rng.IntN(10) {
			s.Links.Reset(a, b)
			s.hold(s.upTo(time.Second))
		}
		return "reset " + a + " and " + b
	}},
	{name: "flapping", away: bothWays, do: func(s *simulation) string {
		var all []string
		for range 2 + s.rng.IntN(10) {
			a, b := s.two()
			if s.rng.IntN(2) == 0 {
				s.Links.Cut(a, b)
			} else {
				s.Links.Part(a, b)
			}
			s.hold(s.upTo(3 * time.Second))
			s.Links.Heal()
			s.hold(s.upTo(300 * time.Millisecond))
			all = append(all, a+"-"+b)
		}
		return "flapping " + strings.Join(all, " ")
	}},
	{name: "delay", wide: true, do: func(s *simulation) string {
		d := s.upTo(250 * time.Millisecond)
		s.network.Delay(d)
		return "delay " + d.String()
	}},
	{name: "failing sync", away: bothWays, do: func(s *simulation) string {
		b := s.one()
		b.Disk().FailSyncs(true)
		s.broken = append(s.broken, b)
		return "syncs of " + b.Name() + " fail"
	}},
	{name: "clocks", wide: true, clock: true, do: func(s *simulation) string {
		d := s.upTo(40*24*time.Hour) - 4*24*time.Hour
		nodes := s.nodes()
		if s.rng.IntN(2) == 0 {
			nodes = s.g.Brokers
		}
		for _, n := range nodes {
			s.clocks[n.Name()].Store(int64(d))
		}
		return fmt.Sprintf("clocks of %d nodes %v", len(nodes), d.Round(time.Second))
	}},
	{name: "clock", wide: true, clock: true, do: func(s *simulation) string {
		n := s.nodes()[s.rng.IntN(len(s.nodes()))].Name()
		d := s.upTo(2*time.Hour) - time.Hour
		s.clocks[n].Store(int64(d))
		return "clock of " + n + " " + d.String()
	}},
	{name: "transfer", do: func(s *simulation) string {
		if s.down[s.Registries[0]] {
			return ""
		}
		if _, err := s.g.Do(&wire.BrokerGroupRequest{Action: "transfer"}); err != nil {
			return ""
		}
		return "transfer"
	}},
	{name: "empty disk", first: true, do: func(s *simulation) string {
		b := s.one()
		if s.masterNow() == b || s.down[b] {
			return ""
		}
		s.kill(b)
		s.EmptyDisk(b)
		return "empty disk of " + b.Name()
	}},
}

// simulation is a trial in simulated time. What it does is of one goroutine.
type simulation struct {
	*trial
	g        *servertest.ReplicaGroup // that the mishap is about
	broken   []*servertest.Server     // their disks failed
	clocksGo bool                     // wrong, now and then
	did      []string
	happened int
	slowest  time.Duration // until all was well again
}

func (s *simulation) upTo(d time.Duration) time.Duration {
	return time.Duration(s.rng.Int64N(int64(d)))
}

// one is the master as often as not.
func (s *simulation) one() *servertest.Server {
	if m := s.masterNow(); m != nil && s.rng.IntN(2) == 0 {
		return m
	}
	return s.g.Brokers[s.rng.IntN(len(s.g.Brokers))]
}

func (s *simulation) masterNow() *servertest.Server {
	for name, st := range s.g.Status() {
		if st.GetRole() == "master" {
			return s.g.Broker(name)
		}
	}
	return nil
}

// two are nodes of the broker group, the registry, or the clients, one of which at least is of the broker group.
func (s *simulation) two() (a, b string) {
	a = s.one().Name()
	others := []string{clients}
	for _, n := range slices.Concat(s.Registries, s.g.Brokers) {
		if n.Name() != a {
			others = append(others, n.Name())
		}
	}
	b = others[s.rng.IntN(len(others))]
	if s.rng.IntN(2) == 0 {
		a, b = b, a
	}
	return a, b
}

func (s *simulation) each(do func(*servertest.Server) string, all ...*servertest.Server) string {
	var did []string
	for _, n := range all {
		if !s.down[n] {
			did = append(did, do(n))
		}
	}
	return strings.Join(did, ", ")
}

func (s *simulation) kill(n *servertest.Server) string {
	s.trial.kill(n)
	return "kill " + n.Name()
}

func (s *simulation) power(n *servertest.Server) string {
	s.trial.power(n)
	return "power of " + n.Name()
}

func (s *simulation) pause(n *servertest.Server) string {
	s.Links.Pause(n.Name())
	return "pause " + n.Name()
}

func (s *simulation) stopNode(n *servertest.Server) string {
	n.Stop()
	s.down[n] = true
	return "stop " + n.Name()
}

// step lets one or a few mishaps happen, heals all, and waits until all is well.
func (s *simulation) step() {
	s.t.Helper()
	var did []string
	away, wide := "", false
	call := now()
	s.g = s.Groups[s.rng.IntN(len(s.Groups))]
	n := 1
	if s.rng.IntN(3) == 0 {
		n = 2 + s.rng.IntN(2)
	}
	var chosen []mishap
	for len(chosen) < n {
		m := mishaps[s.rng.IntN(len(mishaps))]
		if m.clock && !s.clocksGo || m.first && len(chosen) > 0 {
			continue
		}
		chosen = append(chosen, m)
		wide = wide || m.wide
		if away = m.away; n > 1 { // one may make of another what it is not alone
			away = bothWays
		}
	}
	s.strict.Store(!wide)
	s.busy.Store(s.rng.IntN(3) == 0)
	for i, m := range chosen {
		if i > 0 {
			s.hold(s.upTo(time.Duration(1<<s.rng.IntN(12)) * 2 * time.Millisecond))
		}
		if what := m.do(s); what != "" {
			did = append(did, what)
		}
	}
	s.hold(s.upTo(time.Duration(1<<s.rng.IntN(15)) * time.Millisecond))
	ill := []*servertest.ReplicaGroup{s.g}
	if wide {
		ill = s.Groups
	}
	begun := time.Now()
	s.heal()
	well := s.settle()
	s.slowest = max(s.slowest, time.Since(begun))
	s.strict.Store(false)
	s.busy.Store(false)
	for _, g := range ill {
		e := check.Event{Op: check.OpRestart, Proc: "cluster", BrokerGroup: g.Name, Reason: strings.Join(did, "; "), Call: call, Return: well[g]}
		s.event(e)
		if away != "" {
			e.Op, e.Proc, e.Reason = check.OpAway, "slaves", away
			s.event(e)
		}
	}
	s.happened += len(did)
	s.did = append(s.did, did...)
}

// settle waits until the cluster is well again, and returns when each broker group was: a master serves, and all slaves are in sync.
func (s *simulation) settle() map[*servertest.ReplicaGroup]int64 {
	s.t.Helper()
	begun := time.Now()
	well := map[*servertest.ReplicaGroup]int64{}
	for _, g := range s.Groups {
		g.Master()
	}
	s.goesOn("sends after the mishap", 3, s.topics...)
	for _, g := range s.Groups {
		g.Master()
		g.InSync(s.slaves)
		well[g] = now()
	}
	s.goesOn("sends with all slaves in sync", 3, s.topics...)
	if took := time.Since(begun); took > recoverMost {
		s.t.Errorf("healed after %v", took.Round(time.Millisecond))
	}
	return well
}

// quietly lets so much time go by in which nothing happens. All sends must be ok meanwhile.
func (s *simulation) quietly(d time.Duration) {
	s.sure.Store(true)
	s.calm(true)
	s.hold(d)
	s.calm(false)
	s.hold(wakes)
	s.sure.Store(false)
}

// heal ends every mishap.
func (s *simulation) heal() {
	s.t.Helper()
	s.network.Delay(0)
	for _, b := range s.broken {
		b.Disk().FailSyncs(false)
		if !s.down[b] { // what it has in memory and on its disk may differ
			s.power(b)
		}
	}
	s.broken = nil
	s.trial.heal()
}

// wrong returns a delivery that would be wrong, though a mishap is under way: what was acked at a broker group that is well comes again, of a slave.
// false: there was no such moment.
func (s *simulation) wrong() (check.Event, bool) {
	var aways, resets []check.Event
	of := map[[2]uint64]check.Event{}
	for _, e := range s.mu.events {
		switch e.Op {
		case check.OpAway:
			aways = append(aways, e)
		case check.OpReset:
			resets = append(resets, e)
		case check.OpRecv:
			of[[2]uint64{e.Lease, e.Index}] = e
		}
	}
	for _, i := range s.rng.Perm(len(s.mu.events)) {
		a := s.mu.events[i]
		e, given := of[[2]uint64{a.Lease, a.Index}]
		at := a.Return + 1
		if a.Op != check.OpAck || a.Result != check.OK || !given || a.Group == moved && len(resets) > 0 {
			continue
		}
		ill, other := false, false
		for _, w := range aways {
			if w.Call <= at && at <= w.Return {
				ill = ill || w.BrokerGroup == s.Groups[a.Partition/partitions].Name
				other = true
			}
		}
		if other && !ill {
			e.Lease, e.Call, e.Granted, e.Deadline = 1<<63|e.Lease, at, at, at+1
			return e, true
		}
	}
	return check.Event{}, false
}

// simulate lets d go by in simulated time.
func simulate(t *testing.T, seed uint64, d time.Duration) {
	begun := time.Now()
	t.Logf("-seed=%d", seed)
	f := check.Figures{Other: 1} // if it does not come to its end
	defer func() {
		f.Seed = seed
		if err := f.Print(os.Stdout); err != nil {
			t.Error(err)
		}
	}()
	synctest.Test(t, func(t *testing.T) {
		from := time.Now()
		rng := rand.New(rand.NewPCG(seed, 24))
		x := newTrial(t, shape{auto: rng.IntN(2) == 0, slaves: 1 + rng.IntN(3)/2, brokerGroups: 2 + rng.IntN(3)/2, network: servertest.NewNetwork(seed)}, seed)
		s := &simulation{trial: x, clocksGo: rng.IntN(2) == 0}
		defer func() {
			if t.Failed() {
				t.Logf("-seed=%d: the history is in %s\n%s", seed, x.keep(), strings.Join(x.mu.problems, "\n"))
			}
		}()
		x.goesOn("all is well", 3, x.topics...)
		x.well()
		operators := []*operator{x.operator("operator-0", 0), x.operator("operator-1", 1)}
		operators[0].write() // else the register has no first value
		for _, o := range operators {
			x.senders.Go(func() { o.run(x.sending) })
		}
		most := 4
		if d == schedule { // a day is nearly all quiet: its mishaps cost little beside that
			most = 16
		}
		for time.Since(from) < d && !t.Failed() {
			s.quietly(s.upTo(min(quietMost, d/4)))
			for range 1 + s.rng.IntN(most) {
				s.hold(s.upTo(time.Duration(1<<s.rng.IntN(16)) * time.Millisecond))
				s.step()
			}
		}
		r := x.judge()
		f = r.Figures()
		f.Other += len(x.mu.problems)
		f.Faults, f.Recovery, f.Count = strings.Join(s.did, "; "), s.slowest, int(time.Since(from).Hours())
		if err := r.Err(); err != nil || len(x.mu.problems) > 0 {
			t.Errorf("%v\n%s", r, strings.Join(x.mu.problems, "\n"))
		}
		if e, ok := s.wrong(); ok && !t.Failed() {
			if r := x.report(e); !slices.Contains(r.Violated(), "C6") {
				t.Errorf("%+v would not be found:\n%v", e, r)
			}
		}
		if none := r.Unchecked("C1", "C2", "C3", "C4", "C5", "C6", "C7", "C8", "C9", "C10"); len(none) > 0 || r.Copies == 0 {
			t.Errorf("%v had nothing to check; %d ranges of copies", none, r.Copies)
		}
		if d == schedule && !s.clocksGo && x.trimmed == 0 {
			t.Error("nothing was trimmed")
		}
		if t.Failed() && f.Violations() == 0 {
			f.Other = 1
		}
		t.Logf("seed %d, auto %v, %d broker groups, %d slaves: %v, %d mishaps, well again after %v at most, trimmed below %d\n%v", seed, x.auto, len(x.Groups), x.slaves, time.Since(from).Round(time.Second), s.happened,
			s.slowest.Round(time.Millisecond), x.trimmed, r)
	})
	t.Logf("took %v", time.Since(begun).Round(time.Millisecond))
}

// TestSimulation lets minutes go by, or with JMQ_TEST_DAYS so many days, each a schedule with a seed of its own, beginning with -seed. After
// each step all is healed, and must go on within 30 s; while only one broker group is ill, what may go to others must be ok. It ends at the first
// schedule that shows something.
func TestSimulation(t *testing.T) {
	n, d := 1, simulatedShort
	if raceEnabled {
		d = simulatedRace
	}
	if days, err := strconv.ParseFloat(os.Getenv("JMQ_TEST_DAYS"), 64); err == nil {
		n, d = max(1, int(days)), min(schedule, time.Duration(days*float64(schedule)))
	}
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()>>32 + 1
	}
	for i := range uint64(n) {
		simulate(t, seed+i, d)
		if t.Failed() {
			return
		}
	}
}
