package faults

import (
	"errors"
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

// The simulation: three broker groups of a master and two slaves, two registry nodes over one database, producers and consumers, all of them the
// real ones, in simulated time and over a network in memory. The seed says what is chosen; which of several goroutines that could run runs first it
// does not say, nor what the product itself draws by lot. So a run with the same seed has the same kinds of mishaps on the same broker groups, as long as
// the same node is master, and nearly the same course, but what needs one order of goroutines may not come again.

const (
	clients = "clients"

	schedule = time.Hour // of simulated time: one cluster, one seed, one history
	perDay   = int(24 * time.Hour / schedule)

	simulatedShort = 4 * time.Minute // of a plain run
	simulatedRace  = time.Minute
)

// mishap is what happens to a node, a broker group, or all of them.
type mishap struct {
	name string
	away string // as that of a fault
	// wide: it may touch more than one broker group.
	wide bool
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
		s.database.Fail(errors.New("the database is away"))
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
	{name: "clock", wide: true, do: func(s *simulation) string {
		n := s.nodes()[s.rng.IntN(len(s.nodes()))].Name()
		d := s.upTo(2*time.Hour) - time.Hour
		s.clocks[n].Store(int64(d))
		return "clock of " + n + " " + d.String()
	}},
	{name: "transfer", do: func(s *simulation) string {
		if _, err := s.g.Do(&wire.BrokerGroupRequest{Action: "transfer"}); err != nil {
			return ""
		}
		return "transfer"
	}},
	{name: "empty disk", do: func(s *simulation) string {
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
	e := check.Event{Op: check.OpRestart, Proc: "cluster", Call: now()}
	s.g = s.Groups[s.rng.IntN(len(s.Groups))]
	n := 1
	if s.rng.IntN(3) == 0 {
		n = 2 + s.rng.IntN(2)
	}
	var chosen []mishap
	for range n {
		m := mishaps[s.rng.IntN(len(mishaps))]
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
	begun := time.Now()
	s.heal()
	s.settle()
	s.slowest = max(s.slowest, time.Since(begun))
	s.strict.Store(false)
	s.busy.Store(false)
	e.Reason, e.Return = strings.Join(did, "; "), now()
	s.event(e)
	if away != "" {
		s.event(check.Event{Op: check.OpAway, Proc: "slaves", Reason: away, Call: e.Call, Return: e.Return})
	}
	s.happened += len(did)
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

// simulate lets d go by in simulated time.
func simulate(t *testing.T, seed uint64, d time.Duration) {
	begun := time.Now()
	t.Logf("-seed=%d", seed)
	synctest.Test(t, func(t *testing.T) {
		from := time.Now()
		x := newTrial(t, shape{auto: seed%2 == 0, slaves: 2, network: servertest.NewNetwork(seed)}, seed)
		s := &simulation{trial: x}
		defer func() {
			if t.Failed() {
				t.Logf("-seed=%d: the history is in %s\n%s", seed, x.keep(), strings.Join(x.mu.problems, "\n"))
			}
		}()
		x.goesOn("all is well", 3, x.topics...)
		for time.Since(from) < d && !t.Failed() {
			s.hold(s.upTo(time.Minute))
			s.step()
		}
		r := x.judge()
		if err := r.Err(); err != nil || len(x.mu.problems) > 0 {
			t.Errorf("%v\n%s", r, strings.Join(x.mu.problems, "\n"))
		}
		if none := r.Unchecked("C1", "C2", "C3", "C4", "C5", "C6", "C7", "C8", "C9", "C10"); len(none) > 0 || r.Copies == 0 {
			t.Errorf("%v had nothing to check; %d ranges of copies", none, r.Copies)
		}
		t.Logf("seed %d, auto %v: %v, %d mishaps, well again after %v at most, %s", seed, x.auto, time.Since(from).Round(time.Second), s.happened, s.slowest.Round(time.Millisecond), r.Summary())
	})
	t.Logf("took %v", time.Since(begun).Round(time.Millisecond))
}

// TestSimulation lets minutes go by, or with JMQ_TEST_DAYS so many days, each of schedules of an hour with a seed of its own, beginning with -seed. After
// each step all is healed, and must go on within 30 s; while only one broker group is ill, what may go to others must be ok. It ends at the first
// schedule that shows something.
func TestSimulation(t *testing.T) {
	n, d := 1, simulatedShort
	if raceEnabled {
		d = simulatedRace
	}
	if days, err := strconv.ParseFloat(os.Getenv("JMQ_TEST_DAYS"), 64); err == nil {
		n, d = int(days*float64(perDay)+0.5), schedule
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
