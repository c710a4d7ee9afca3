package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	"github.com/jmqio/jmq/client/admin"
	"github.com/jmqio/jmq/scripts/chaos/disk"
	"github.com/jmqio/jmq/scripts/chaos/netns"
	"github.com/jmqio/jmq/scripts/localcluster"
	"github.com/jmqio/jmq/server/servertest/check"
)

// fault is what happens to a cluster, until it is healed.
type fault struct {
	name string
	// away is what slaves may do that no restart explains: see check.OpAway. Empty: consumers are given nothing again that was acked, whoever took
	// the ack.
	away string
	// clients: only they are hit.
	clients bool
	do      func(ctx context.Context, t *trial) error
}

const bothWays = check.AwayUnmerged + ", " + check.AwayBehind

// kind is a class of faults, on the clusters that they are for, or in a test. A seed and a kind name a schedule.
type kind struct {
	name string
	test *test // nil: real processes, and all that follows
	// shapes that a cluster of it may have; nil: any.
	shapes []shape
	// apart: each node is a host of its own on a network that can be cut.
	apart bool
	// disk that each broker has; nil: a folder of this machine's.
	disk *disk.Options
	// workers: some of the clients are processes of their own.
	workers bool
	// soak: one cluster sees all of it, and what happens is drawn from the faults of all kinds.
	soak   bool
	faults []fault
}

// number of a kind is another stream of random numbers.
func (k *kind) number() uint64 {
	h := fnv.New64a()
	h.Write([]byte(k.name))
	return h.Sum64()
}

var anyShape = []shape{{1, 1, false}, {1, 2, false}, {2, 1, false}, {3, 1, false}, {1, 2, true}}

var kinds = []kind{
	{name: "kill", faults: []fault{
		{name: "the master is killed, and started at once", do: func(ctx context.Context, t *trial) error { return t.kill(ctx, 0, masterOf) }},
		{name: "the master is killed, a slave serves", do: func(ctx context.Context, t *trial) error { return t.kill(ctx, 2500*time.Millisecond, masterOf) }},
		{name: "the slave is killed, and started at once", do: func(ctx context.Context, t *trial) error { return t.kill(ctx, 0, slaveOf) }},
		{name: "a broker group is killed", away: bothWays, do: func(ctx context.Context, t *trial) error { return t.kill(ctx, 0, groupOf) }},
		{name: "all brokers are killed", away: bothWays, do: func(ctx context.Context, t *trial) error { return t.kill(ctx, 0, allBrokers) }},
		{name: "all nodes are killed", away: bothWays, do: func(ctx context.Context, t *trial) error { return t.kill(ctx, 0, allNodes) }},
		{name: "the master is killed three times", do: func(ctx context.Context, t *trial) error {
			for n := range 3 {
				if err := t.kill(ctx, 0, masterOf); err != nil {
					return err
				}
				t.times = n + 1
				if err := t.heal(ctx); err != nil {
					return err
				}
				t.hold(ctx, 50, 500)
			}
			return nil
		}},
	}},
	{name: "pause", faults: []fault{
		{name: "the master is paused for a moment", away: bothWays, do: func(ctx context.Context, t *trial) error { return t.paused(ctx, 50, 900, masterOf) }},
		{name: "the master is paused, a slave serves", away: bothWays, do: func(ctx context.Context, t *trial) error { return t.paused(ctx, 2300, 3500, masterOf) }},
		{name: "the slave is paused", do: func(ctx context.Context, t *trial) error { return t.paused(ctx, 100, 1800, slaveOf) }},
		{name: "a broker group is paused", away: bothWays, do: func(ctx context.Context, t *trial) error { return t.paused(ctx, 100, 2500, groupOf) }},
		{name: "the registry is paused", away: bothWays, do: func(ctx context.Context, t *trial) error { return t.paused(ctx, 500, 3000, registryOf) }},
		{name: "the registry is paused, the master is killed", away: bothWays, do: func(ctx context.Context, t *trial) error {
			t.Of("registry")[0].Pause()
			return t.kill(ctx, 500*time.Millisecond, masterOf)
		}},
	}},
	{name: "clients", workers: true, faults: []fault{
		{name: "a consumer is killed", clients: true, do: func(ctx context.Context, t *trial) error { return t.killWorkers(ctx, 1, consumes) }},
		{name: "a producer is killed", clients: true, do: func(ctx context.Context, t *trial) error { return t.killWorkers(ctx, 1, produces) }},
		{name: "consumers are killed three times", clients: true, do: func(ctx context.Context, t *trial) error { return t.killWorkers(ctx, 3, consumes) }},
		{name: "producers are killed three times", clients: true, do: func(ctx context.Context, t *trial) error { return t.killWorkers(ctx, 3, produces) }},
		{name: "clients are killed", clients: true, do: func(ctx context.Context, t *trial) error { return t.killWorkers(ctx, 1, produces, consumes) }},
		{name: "a consumer is paused for longer than its lease", clients: true, do: func(ctx context.Context, t *trial) error {
			t.worker(consumes).pause()
			t.hold(ctx, int(ackTimeout.Milliseconds()), int(ackTimeout.Milliseconds())+2000)
			return nil
		}},
		{name: "a producer is paused", clients: true, do: func(ctx context.Context, t *trial) error {
			t.worker(produces).pause()
			t.hold(ctx, 500, 4000)
			return nil
		}},
		{name: "clients and the master are killed", away: bothWays, do: func(ctx context.Context, t *trial) error {
			if err := t.kill(ctx, 0, masterOf); err != nil {
				return err
			}
			return t.killWorkers(ctx, 1, produces, consumes)
		}},
	}},
	{name: "slave", faults: []fault{
		{name: "the slave is killed for a while", do: func(ctx context.Context, t *trial) error { return t.kill(ctx, 1500*time.Millisecond, slaveOf) }},
		{name: "the slave is paused", do: func(ctx context.Context, t *trial) error { return t.paused(ctx, 900, 2000, slaveOf) }},
		{name: "the slave gets an empty disk", do: func(ctx context.Context, t *trial) error {
			s, err := t.slave(ctx, t.group())
			if err != nil {
				return err
			}
			s.Kill()
			return emptyFolder(s.DataFolder())
		}},
		{name: "the slave gets an empty disk, the master is killed meanwhile", away: bothWays, do: func(ctx context.Context, t *trial) error {
			g := t.group()
			m, err := t.master(ctx, g)
			if err != nil {
				return err
			}
			s, err := t.slave(ctx, g)
			if err != nil {
				return err
			}
			s.Kill()
			if err := emptyFolder(s.DataFolder()); err != nil {
				return err
			}
			if err := s.Begin(); err != nil {
				return err
			}
			t.hold(ctx, 50, 600)
			m.Kill()
			t.hold(ctx, 0, 300)
			return nil
		}},
	}},
	{name: "partition", apart: true, faults: []fault{
		{name: "master and slave are parted", away: bothWays, do: func(ctx context.Context, t *trial) error { return t.parted(ctx, cut, both, masterOf, slaveOf) }},
		{name: "nothing comes from the master to the slave", away: bothWays, do: func(ctx context.Context, t *trial) error { return t.parted(ctx, cut, there, masterOf, slaveOf) }},
		{name: "nothing comes from the slave to the master", away: bothWays, do: func(ctx context.Context, t *trial) error { return t.parted(ctx, cut, there, slaveOf, masterOf) }},
		{name: "master and registry are parted", away: bothWays, do: func(ctx context.Context, t *trial) error { return t.parted(ctx, cut, both, masterOf, registryOf) }},
		{name: "nothing comes from the master to the registry", away: bothWays, do: func(ctx context.Context, t *trial) error { return t.parted(ctx, cut, there, masterOf, registryOf) }},
		{name: "nothing comes from the registry to the master", away: bothWays, do: func(ctx context.Context, t *trial) error { return t.parted(ctx, cut, there, registryOf, masterOf) }},
		{name: "clients and master are parted", away: bothWays, do: func(ctx context.Context, t *trial) error { return t.parted(ctx, cut, both, clients, masterOf) }},
		{name: "nothing comes from the master to clients", away: bothWays, do: func(ctx context.Context, t *trial) error { return t.parted(ctx, cut, there, masterOf, clients) }},
		{name: "nothing comes from clients to the master", away: bothWays, do: func(ctx context.Context, t *trial) error { return t.parted(ctx, cut, there, clients, masterOf) }},
		{name: "the registry is cut off", away: bothWays, do: func(ctx context.Context, t *trial) error { return t.cutOff(ctx, registryOf) }},
		{name: "the master is cut off", away: bothWays, do: func(ctx context.Context, t *trial) error { return t.cutOff(ctx, masterOf) }},
		{name: "the slave is cut off", away: bothWays, do: func(ctx context.Context, t *trial) error { return t.cutOff(ctx, slaveOf) }},
		{name: "the master is cut off and killed", away: bothWays, do: func(ctx context.Context, t *trial) error {
			m, err := t.master(ctx, t.group())
			if err != nil {
				return err
			}
			t.network.Isolate(m.Name, cut)
			t.hold(ctx, 0, 1500)
			m.Kill()
			t.hold(ctx, 0, 500)
			return nil
		}},
		{name: "connections of the master are reset", away: bothWays, do: func(ctx context.Context, t *trial) error {
			m, err := t.master(ctx, t.group())
			if err != nil {
				return err
			}
			for range 1 + t.rng.IntN(5) {
				t.network.Isolate(m.Name, netns.Rule{Reset: true})
				t.hold(ctx, 1, 300)
				t.network.Heal()
				t.hold(ctx, 1, 400)
			}
			return nil
		}},
		{name: "flapping", away: bothWays, do: flapping},
		{name: "packets are lost and doubled", away: bothWays, do: func(ctx context.Context, t *trial) error {
			t.network.SetAll(netns.Rule{Loss: 0.02 + 0.2*t.rng.Float64(), Double: 0.2 * t.rng.Float64()})
			t.hold(ctx, 500, 3000)
			return nil
		}},
		{name: "packets are late", away: bothWays, do: func(ctx context.Context, t *trial) error {
			late := time.Duration(1+t.rng.IntN(100)) * time.Millisecond
			t.network.SetAll(netns.Rule{Delay: late, Jitter: late * time.Duration(t.rng.IntN(3))})
			t.hold(ctx, 500, 3000)
			return nil
		}},
	}},
	{name: "power-ext4", shapes: small, disk: &disk.Options{}, faults: powers},
	{name: "power-xfs", shapes: small, disk: &disk.Options{XFS: true}, faults: powers},
	{name: "power-cache", shapes: small, disk: &disk.Options{Volatile: true}, faults: powers},
	{name: "disk-full", shapes: small, disk: &disk.Options{}, faults: []fault{
		{name: "the master's disk is full", away: bothWays, do: func(ctx context.Context, t *trial) error { return t.full(ctx, masterOf) }},
		{name: "the slave's disk is full", away: bothWays, do: func(ctx context.Context, t *trial) error { return t.full(ctx, slaveOf) }},
		{name: "the disks of a broker group are full", away: bothWays, do: func(ctx context.Context, t *trial) error { return t.full(ctx, groupOf) }},
		{name: "the master's disk is full, and it is killed and started", away: bothWays, do: func(ctx context.Context, t *trial) error {
			group := t.group()
			t.fixed = group
			defer func() { t.fixed = "" }()
			m, err := t.master(ctx, group)
			if err != nil {
				return err
			}
			if err := t.full(ctx, masterOf); err != nil {
				return err
			}
			m.Kill()
			if err := m.Begin(); err != nil {
				return err
			}
			t.hold(ctx, 0, 1000)
			return nil
		}},
	}},
	{name: "disk-slow", shapes: small, disk: &disk.Options{Volatile: true}, faults: []fault{
		{name: "the master's disk is slow", away: bothWays, do: func(ctx context.Context, t *trial) error { return t.slow(ctx, masterOf) }},
		{name: "the slave's disk is slow", away: bothWays, do: func(ctx context.Context, t *trial) error { return t.slow(ctx, slaveOf) }},
		{name: "the disks of a broker group are slow", away: bothWays, do: func(ctx context.Context, t *trial) error { return t.slow(ctx, groupOf) }},
		{name: "the slow master is killed", away: bothWays, do: func(ctx context.Context, t *trial) error {
			group := t.group()
			t.fixed = group
			defer func() { t.fixed = "" }()
			m, err := t.master(ctx, group)
			if err != nil {
				return err
			}
			if err := t.slow(ctx, masterOf); err != nil {
				return err
			}
			m.Kill()
			return nil
		}},
	}},
	{name: "disk-error", shapes: small, disk: &disk.Options{Volatile: true}, faults: []fault{
		{name: "writes fail at the master", away: bothWays, do: func(ctx context.Context, t *trial) error { return t.failing(ctx, masterOf) }},
		{name: "writes fail at the slave", away: bothWays, do: func(ctx context.Context, t *trial) error { return t.failing(ctx, slaveOf) }},
		{name: "writes fail in a broker group", away: bothWays, do: func(ctx context.Context, t *trial) error { return t.failing(ctx, groupOf) }},
	}},
	{name: "soak", soak: true, apart: true, disk: &disk.Options{}, workers: true, shapes: []shape{{3, 1, false}, {3, 1, true}}, faults: soakFaults},
	{name: "two-masters", apart: true, shapes: []shape{{1, 2, true}, {1, 1, true}, {2, 1, false}, {1, 2, true}}, faults: []fault{
		{name: "the master is paused until another serves", away: bothWays, do: func(ctx context.Context, t *trial) error {
			return t.replaced(ctx, func(m *localcluster.Node) { m.Pause() })
		}},
		{name: "the master is cut off until another serves", away: bothWays, do: func(ctx context.Context, t *trial) error {
			return t.replaced(ctx, func(m *localcluster.Node) { t.network.Isolate(m.Name, cut) })
		}},
		{name: "the master is cut off from all but the clients until another serves", away: bothWays, do: func(ctx context.Context, t *trial) error {
			return t.replaced(ctx, func(m *localcluster.Node) {
				for _, n := range t.Nodes {
					if n != m {
						t.network.SetBoth(m.Name, n.Name, cut)
					}
				}
			})
		}},
		{name: "the master is killed, and comes back when another serves", away: bothWays, do: func(ctx context.Context, t *trial) error {
			return t.replaced(ctx, func(m *localcluster.Node) { m.Kill() })
		}},
		{name: "the master hands over under load", away: bothWays, do: func(ctx context.Context, t *trial) error {
			g := t.group()
			if err := t.well(ctx); err != nil {
				return err
			}
			asking, cancel := context.WithTimeout(ctx, recoverWithin)
			defer cancel()
			_, err := admin.New(t.admin).Operate(asking, admin.Operation{BrokerGroup: g, Action: admin.Transfer, Reason: "chaos"})
			t.times = 0 // the old one knows of it
			return err
		}},
	}},
	{name: "clones", test: &test{layer: "memory", pkg: "server/servertest/calls", name: "TestClones", within: 5 * time.Minute}},
	{name: "errors", test: &test{layer: "memory", pkg: "server/servertest/calls", name: "TestErrors", within: 5 * time.Minute}},
	{name: "broker", test: &test{layer: "memory", pkg: "server/servertest", name: "TestCampaign", long: "JMQ_TEST_CYCLES=25", short: "JMQ_TEST_CYCLES=5", within: 10 * time.Minute}},
	{name: "sim", test: &test{layer: "simulation", pkg: "server/servertest/faults", name: "TestSimulation", long: "JMQ_TEST_DAYS=1", within: 30 * time.Minute}},
}

// replaced does something to a master, and has another one in its place: the registry names it, or on a fixed broker group an operator, when the old
// one is dead. Then the old one comes back, and knows of nothing.
func (t *trial) replaced(ctx context.Context, what func(m *localcluster.Node)) error {
	group := t.group()
	m, err := t.master(ctx, group)
	if err != nil {
		return err
	}
	t.hold(ctx, 50, 500)
	what(m)
	t.hold(ctx, 0, 1000)
	if !t.auto && m.PID() != 0 {
		// Who says of a living master that it is off accepts that what it alone takes is set aside, and sent again elsewhere: no loss, and not what
		// a receipt says. So nobody is promoted.
		t.happened[len(t.happened)-1] += " (nobody does)"
		t.times = 0
		t.hold(ctx, 500, 2500)
		return nil
	}
	if !t.auto {
		asking, cancel := context.WithTimeout(ctx, recoverWithin)
		defer cancel()
		// By force: the old master may have gone on alone, for what the registry knows.
		if _, err := admin.New(t.admin).Operate(asking, admin.Operation{BrokerGroup: group, Action: admin.Promote, Off: []string{m.Name}, Force: true, Reason: "chaos"}); err != nil {
			return fmt.Errorf("promote %s: %w", group, err)
		}
	}
	err = t.await(ctx, "another master of "+group, func() bool {
		return slices.ContainsFunc(t.of(group), func(b *localcluster.Node) bool { return b != m && t.look(ctx, b).role == "master" })
	})
	t.hold(ctx, 0, 1500)
	return err
}

// small clusters have disks of their own, which take memory.
var small = []shape{{1, 1, false}, {1, 2, false}, {2, 1, false}, {1, 2, true}}

// powers are losses of power, of whole machines: their disks and what their memory had.
var powers = []fault{
	{name: "power of the master", away: bothWays, do: func(ctx context.Context, t *trial) error { return t.power(ctx, 0, masterOf) }},
	{name: "power of the master, a slave serves", away: bothWays, do: func(ctx context.Context, t *trial) error { return t.power(ctx, 2500*time.Millisecond, masterOf) }},
	{name: "power of the slave", away: bothWays, do: func(ctx context.Context, t *trial) error { return t.power(ctx, 0, slaveOf) }},
	{name: "power of a broker group", away: bothWays, do: func(ctx context.Context, t *trial) error { return t.power(ctx, 0, groupOf) }},
	{name: "power of all", away: bothWays, do: func(ctx context.Context, t *trial) error { return t.power(ctx, 0, allBrokers) }},
	{name: "power of the master, and again while it starts", away: bothWays, do: func(ctx context.Context, t *trial) error {
		m, err := t.master(ctx, t.group())
		if err != nil {
			return err
		}
		same := func(context.Context, *trial) ([]*localcluster.Node, error) { return []*localcluster.Node{m}, nil }
		if err := t.power(ctx, 0, same); err != nil {
			return err
		}
		for range 1 + t.rng.IntN(2) {
			if err := t.heal(ctx); err != nil {
				return err
			}
			t.hold(ctx, 0, 300)
			if err := t.powerNow(m); err != nil {
				return err
			}
			t.times++
		}
		return nil
	}},
	{name: "power of the master without its slaves", away: bothWays, do: func(ctx context.Context, t *trial) error {
		group := t.group()
		m, err := t.master(ctx, group)
		if err != nil {
			return err
		}
		for _, n := range t.of(group) {
			if n != m {
				n.Kill()
			}
		}
		t.hold(ctx, 0, 2000)
		return t.powerNow(m)
	}},
}

// power takes that of nodes at a moment of its own, and leaves them without it so long.
func (t *trial) power(ctx context.Context, dead time.Duration, of victims) error {
	nodes, err := of(ctx, t)
	if err != nil {
		return err
	}
	t.hold(ctx, 50, 500)
	if err := t.powerNow(nodes...); err != nil {
		return err
	}
	pause(ctx, dead)
	return nil
}

func (t *trial) powerNow(nodes ...*localcluster.Node) error {
	t.rng.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	for _, n := range nodes { // first the disks: nobody is told any more that something was synced
		t.off[n.Name] = true
		if err := errors.Join(t.disks[n.Name].PowerOff(t.rng), t.boot(n.Name)); err != nil {
			return err
		}
	}
	for _, n := range nodes {
		n.Kill()
	}
	return nil
}

// full leaves disks little room, or none, for a while.
func (t *trial) full(ctx context.Context, of victims) error {
	nodes, err := of(ctx, t)
	if err != nil {
		return err
	}
	for _, n := range nodes {
		if err := t.disks[n.Name].Fill(int64(t.rng.IntN(3)) * int64(t.rng.IntN(2<<20))); err != nil {
			return err
		}
	}
	t.hold(ctx, 200, 3000)
	if !slices.ContainsFunc(nodes, func(n *localcluster.Node) bool { return t.look(ctx, n).full }) {
		t.happened[len(t.happened)-1] += " (it has room enough)"
		t.times = 0
	}
	return nil
}

// slow has flushes take long for a while.
func (t *trial) slow(ctx context.Context, of victims) error {
	nodes, err := of(ctx, t)
	if err != nil {
		return err
	}
	for _, n := range nodes {
		if err := t.disks[n.Name].Slow(time.Duration(5+t.rng.IntN(600)) * time.Millisecond); err != nil {
			return err
		}
	}
	t.hold(ctx, 500, 3500)
	return nil
}

// failing has writes fail for a while. Then the brokers start again, on the file systems that were mounted again.
func (t *trial) failing(ctx context.Context, of victims) error {
	nodes, err := of(ctx, t)
	if err != nil {
		return err
	}
	for _, n := range nodes {
		t.off[n.Name] = true
		if err := t.disks[n.Name].Fail(true); err != nil {
			return err
		}
	}
	t.hold(ctx, 50, 2000)
	if t.rng.IntN(2) == 0 { // what is not on the disk yet gets there in the end
		for _, n := range nodes {
			if err := t.disks[n.Name].Fail(false); err != nil {
				return err
			}
		}
		t.hold(ctx, 0, 500)
	}
	return nil
}

// cut lets nothing pass.
var cut = netns.Rule{Cut: true}

// Ways that a rule holds between two hosts.
const (
	there = iota
	both
)

// clientsHost is where all producers and consumers are.
const clientsHost = "clients"

// clients stands for them where a fault wants nodes.
func clients(context.Context, *trial) ([]*localcluster.Node, error) { return nil, nil }

// parted has a rule hold from some hosts to others of one broker group, there or both ways, for a while.
func (t *trial) parted(ctx context.Context, r netns.Rule, way int, from, to victims) error {
	group := t.group()
	t.fixed = group
	defer func() { t.fixed = "" }()
	hosts := func(of victims) ([]string, error) {
		nodes, err := of(ctx, t)
		if err == nil && len(nodes) == 0 {
			return []string{clientsHost}, nil
		}
		var names []string
		for _, n := range nodes {
			names = append(names, n.Name)
		}
		return names, err
	}
	a, err := hosts(from)
	if err != nil {
		return err
	}
	b, err := hosts(to)
	if err != nil {
		return err
	}
	for _, x := range a {
		for _, y := range b {
			t.network.Set(x, y, r)
			if way == both {
				t.network.Set(y, x, r)
			}
		}
	}
	t.hold(ctx, 200, 4000)
	return nil
}

// cutOff parts a node from all others for a while.
func (t *trial) cutOff(ctx context.Context, of victims) error {
	nodes, err := of(ctx, t)
	if err != nil {
		return err
	}
	for _, n := range nodes {
		t.network.Isolate(n.Name, cut)
	}
	t.hold(ctx, 200, 5000)
	return nil
}

// flapping parts and joins hosts, and pauses nodes, at random.
func flapping(ctx context.Context, t *trial) error {
	names := []string{clientsHost}
	for _, n := range t.Nodes {
		names = append(names, n.Name)
	}
	for range 3 + t.rng.IntN(6) {
		i, j := t.rng.IntN(len(names)), t.rng.IntN(len(names))
		switch {
		case i == j && i > 0:
			t.Nodes[i-1].Pause()
		case i == j:
			t.network.Isolate(names[i], cut)
		case t.rng.IntN(2) == 0:
			t.network.Set(names[i], names[j], cut)
		default:
			t.network.SetBoth(names[i], names[j], cut)
		}
		t.hold(ctx, 100, 900)
		t.network.Heal()
		for _, n := range t.Nodes {
			n.Resume()
		}
		t.hold(ctx, 0, 200)
	}
	return nil
}

// kindsOf finds kinds by their names; "power" is all that begin with it.
func kindsOf(names string) (list []*kind, unknown string) {
	for _, name := range strings.FieldsFunc(names, func(r rune) bool { return r == ',' || r == ' ' }) {
		found := false
		for i := range kinds {
			if k := &kinds[i]; k.name == name || strings.HasPrefix(k.name, name+"-") {
				found = true
				if !slices.Contains(list, k) {
					list = append(list, k)
				}
			}
		}
		if !found {
			return nil, name
		}
	}
	return list, ""
}

// The nodes that a fault hits.

type victims func(ctx context.Context, t *trial) ([]*localcluster.Node, error)

func masterOf(ctx context.Context, t *trial) ([]*localcluster.Node, error) {
	m, err := t.master(ctx, t.group())
	return []*localcluster.Node{m}, err
}

func slaveOf(ctx context.Context, t *trial) ([]*localcluster.Node, error) {
	s, err := t.slave(ctx, t.group())
	return []*localcluster.Node{s}, err
}

func groupOf(_ context.Context, t *trial) ([]*localcluster.Node, error) { return t.of(t.group()), nil }

func allBrokers(_ context.Context, t *trial) ([]*localcluster.Node, error) {
	return t.Of("broker"), nil
}

func allNodes(_ context.Context, t *trial) ([]*localcluster.Node, error) {
	return slices.Clone(t.Nodes), nil
}

func registryOf(_ context.Context, t *trial) ([]*localcluster.Node, error) {
	return t.Of("registry"), nil
}

// hold lets something last, between two times in ms.
func (t *trial) hold(ctx context.Context, from, to int) {
	pause(ctx, time.Duration(from+t.rng.IntN(to-from+1))*time.Millisecond)
}

// kill kills nodes at a moment of its own, and leaves them dead so long.
func (t *trial) kill(ctx context.Context, dead time.Duration, of victims) error {
	nodes, err := of(ctx, t)
	if err != nil {
		return err
	}
	t.hold(ctx, 50, 500)
	t.rng.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	for _, n := range nodes {
		n.Kill()
	}
	pause(ctx, dead)
	return nil
}

// paused stops processes for a time in ms.
func (t *trial) paused(ctx context.Context, from, to int, of victims) error {
	nodes, err := of(ctx, t)
	if err != nil {
		return err
	}
	for _, n := range nodes {
		n.Pause()
	}
	t.hold(ctx, from, to)
	return nil
}
