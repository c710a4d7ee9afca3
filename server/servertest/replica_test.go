package servertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/server"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/server/store/local"
	"github.com/jmqio/jmq/wire"
)

// fast makes slaves join soon.
func fast(c *server.Config) { c.Broker.Replication.JoinAfter = 200 * time.Millisecond }

func send(t testing.TB, c *client.Client, topic, body string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	p, err := c.Producer(topic)
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.Send(ctx, &client.Message{Body: []byte(body)})
	return err
}

// TestReplicates: a broker group of a master and a slave takes sends, the slave holds what the master holds, and both go on after restarts.
func TestReplicates(t *testing.T) {
	t.Parallel()
	c := StartCluster(t, ClusterOptions{Slaves: 1, Each: fast})
	g := c.Groups[0]
	if m := g.Master(); m != g.Brokers[0] {
		t.Fatalf("%s is the master", m.Name())
	}
	c.Registries[0].CreateTopic("orders", 2)
	g.InSync(1)
	cl := c.Dial(c.BrokerAddresses())
	for i := range 50 {
		if err := send(t, cl, "orders", fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	g.SameEnds()
	g.Brokers[1].Restart()
	g.InSync(1)
	if err := send(t, cl, "orders", "after the slave"); err != nil {
		t.Fatal(err)
	}
	g.Brokers[0].Restart()
	g.Master()
	if err := send(t, cl, "orders", "after the master"); err != nil {
		t.Fatal(err)
	}
	g.InSync(1)
	g.SameEnds()
}

// received fetches until n different messages were had, and fails the test if they do not come.
func received(t testing.TB, c *client.Client, topic string, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	k, err := c.Consumer(topic, client.Group("check"), client.Start(client.FromBeginning))
	if err != nil {
		t.Fatal(err)
	}
	had := map[string]bool{}
	for len(had) < n {
		ds, err := k.Fetch(ctx, 100)
		if err != nil {
			t.Fatalf("%d of %d messages came: %v", len(had), n, err)
		}
		for _, d := range ds {
			had[d.ID] = true
		}
		if err := k.Ack(ctx, ds...); err != nil && wire.CodeOf(err) != wire.CodeNotMaster {
			t.Logf("ack: %v", err)
		}
	}
}

// replicated is a cluster with a broker group that has a master and slaves in sync, a topic, and a client.
func replicated(t *testing.T, o ClusterOptions) (*Cluster, *ReplicaGroup, *client.Client) {
	t.Helper()
	o.Memory = true
	if o.Each == nil {
		o.Each = fast
	}
	o.Slaves = max(o.Slaves, 1)
	c := StartCluster(t, o)
	g := c.Groups[0]
	g.Master()
	c.Registries[0].CreateTopic("orders", 2)
	g.InSync(o.Slaves)
	var all []string
	for _, b := range g.Brokers {
		all = append(all, b.Address())
	}
	return c, g, c.Dial(strings.Join(all, ","))
}

// TestMasterKilled: on a fixed broker group the master that was killed is still named: it opens again, and has all that was answered.
func TestMasterKilled(t *testing.T) {
	t.Parallel()
	c, g, cl := replicated(t, ClusterOptions{})
	for i := range 30 {
		if err := send(t, cl, "orders", fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	m := g.Master()
	c.Kill(m)
	m.StartAgain()
	if again := g.Master(); again != m {
		t.Fatalf("%s is master", again.Name())
	}
	g.InSync(1)
	received(t, cl, "orders", 30)
}

// TestDegraded: a slave that is gone is waited for no longer than it may, sends go on, and it joins again when it is back.
func TestDegraded(t *testing.T) {
	t.Parallel()
	c, g, cl := replicated(t, ClusterOptions{})
	st := watchStalls(t)
	s := sendByMany(t, cl, st, "orders", 1)
	c.Kill(g.Brokers[1])
	g.InSync(0)
	g.Brokers[1].StartAgain()
	g.InSync(1)
	s.end(t, st, 3*time.Second)
	g.SameEnds()
}

// TestPromoted: on an auto broker group the slave in sync becomes master after the death of the master, with all that was answered, and the old
// master comes back as its slave.
func TestPromoted(t *testing.T) {
	t.Parallel()
	c, g, cl := replicated(t, ClusterOptions{Auto: true})
	for i := range 30 {
		if err := send(t, cl, "orders", fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	old := g.Master()
	c.Kill(old)
	if next := g.Master(); next == old {
		t.Fatalf("%s is master again", old.Name())
	}
	if err := send(t, cl, "orders", "to the new master"); err != nil {
		t.Error(err)
	}
	old.StartAgain()
	g.InSync(1)
	g.SameEnds()
	received(t, cl, "orders", 31)
}

// TestLeavesCutMaster: a client that knows routes from a master which is cut off from all other nodes hears elsewhere of the one that was promoted.
func TestLeavesCutMaster(t *testing.T) {
	t.Parallel()
	c, g, cl := replicated(t, ClusterOptions{Auto: true})
	m := g.Master()
	k, err := c.Dial(m.Address()).Consumer("orders", client.Group("shop"), client.Start(client.FromBeginning))
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Subscribe(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.Links.Part(m.Name(), g.Brokers[1].Name())
	c.Links.Part(m.Name(), c.Registries[0].Name())
	g.Await("another master", func(all map[string]*wire.ReplicaStatus) bool { return all[g.Brokers[1].Name()].GetRole() == "master" })
	begun := time.Now()
	for send(t, cl, "orders", "to the new master") != nil {
		if time.Since(begun) > within {
			t.Fatal("no send is ok")
		}
	}
	ds, err := k.Fetch(t.Context(), 1, client.Wait(within))
	took := time.Since(begun)
	if err != nil || len(ds) != 1 {
		t.Fatalf("%d messages, %v", len(ds), err)
	}
	if took > 10*time.Second { // far less than the 15 s that a watch of routes lasts
		t.Errorf("it came after %v", took)
	}
	t.Logf("it came after %v", took)
	c.Links.Heal()
}

// TestStopsAlone: a master that an ack waits for, since its slaves and the registry are away, stops all the same.
func TestStopsAlone(t *testing.T) {
	t.Parallel()
	c, g, cl := replicated(t, ClusterOptions{Auto: true})
	if err := send(t, cl, "orders", "1"); err != nil {
		t.Fatal(err)
	}
	k, err := cl.Consumer("orders", client.Group("shop"), client.Start(client.FromBeginning))
	if err != nil {
		t.Fatal(err)
	}
	ds, err := k.Fetch(t.Context(), 1, client.Wait(within))
	if err != nil || len(ds) != 1 {
		t.Fatal(ds, err)
	}
	m := g.Master()
	c.Links.Part(m.Name(), g.Brokers[1].Name())
	c.Links.Part(m.Name(), c.Registries[0].Name())
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if err := k.Ack(ctx, ds...); err == nil {
		t.Error("an ack was committed alone")
	}
	m.Stop()
	c.Links.Heal()
	m.StartAgain()
	g.InSync(1)
}

// TestForced: when the master is gone an operator promotes the slave by force; the old master comes back with a tail of its own, which is set
// aside, and follows. What it alone had took its place again then: with its ids, in order, and once.
func TestForced(t *testing.T) {
	t.Parallel()
	c, g, cl := replicated(t, ClusterOptions{})
	c.Registries[0].CreateTopic("row", 1)
	if err := send(t, cl, "row", "both have it"); err != nil {
		t.Fatal(err)
	}
	g.SameEnds()
	old, slave := g.Brokers[0], g.Brokers[1]
	c.Links.Part(old.Name(), slave.Name())
	g.InSync(0)
	p, err := cl.Producer("row")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	var want, got []string
	for i := range 5 {
		m := &client.Message{Body: fmt.Append(nil, "only the master has it ", i)}
		r, err := p.Send(ctx, m)
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, fmt.Sprintf("%s %s", r.MessageID, m.Body))
	}
	c.Kill(old)
	if r, err := g.Do(&wire.BrokerGroupRequest{Action: "promote", Broker: slave.Name(), Off: []string{old.Name()}, Force: true}); err != nil {
		t.Fatalf("%v, %v", r, err)
	}
	if m := g.Master(); m != slave {
		t.Fatalf("%s is master", m.Name())
	}
	c.Links.Heal()
	old.StartAgain()
	g.InSync(1)
	g.SameEnds()
	if err := send(t, cl, "row", "after it"); err != nil {
		t.Error(err)
	}
	dir := filepath.Join(old.Folder(), "journal")
	var aside []journal.Aside
	until(t, "what was set aside is sent again", func() bool {
		if aside, err = journal.ListAside(old.config.FS, dir); err != nil {
			t.Fatal(err)
		}
		return len(aside) == 1 && aside[0].Resent != nil && aside[0].Resent.Done
	})
	if r := aside[0].Resent; r.Sent != 5 || r.Skipped != 0 || r.Why != "" {
		t.Errorf("noted is %+v", r)
	}
	k, err := cl.Consumer("row", client.Group("check"), client.Start(client.FromBeginning))
	if err != nil {
		t.Fatal(err)
	}
	for all := 0; all < 7; {
		ds, err := k.Fetch(ctx, 100)
		if err != nil {
			t.Fatalf("%d messages came: %v", all, err)
		}
		for _, d := range ds {
			if strings.HasPrefix(string(d.Body), "only") {
				got = append(got, fmt.Sprintf("%v %s", d.ID, d.Body))
			}
		}
		all += len(ds)
		if err := k.Ack(ctx, ds...); err != nil {
			t.Error(err)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("sent again were %q, want %q", got, want)
	}
}

// TestCountsLosses: who asks for a promotion is told how many messages another broker has that the promoted one has not, and of when they are.
func TestCountsLosses(t *testing.T) {
	t.Parallel()
	c, g, cl := replicated(t, ClusterOptions{Slaves: 2})
	if err := send(t, cl, "orders", "1"); err != nil {
		t.Fatal(err)
	}
	g.SameEnds()
	behind := g.Brokers[2]
	c.Links.Pause(behind.Name())
	g.InSync(1)
	for _, body := range []string{"2", "3"} {
		if err := send(t, cl, "orders", body); err != nil {
			t.Fatal(err)
		}
	}
	c.Kill(g.Brokers[0])
	c.Links.Resume(behind.Name())
	until(t, "the loss is counted", func() bool {
		r, err := g.Do(&wire.BrokerGroupRequest{Action: "promote", Broker: behind.Name(), Off: []string{g.Brokers[0].Name()}, DryRun: true})
		return err == nil && slices.ContainsFunc(r.Lost, func(l string) bool {
			return strings.Contains(l, "broker "+g.Brokers[1].Name()+" has ") && strings.Contains(l, "that is 2 messages, stored from 20")
		})
	})
}

// TestRefusesAlone: a replicated topic takes no sends while no slave is in sync; others do.
func TestRefusesAlone(t *testing.T) {
	t.Parallel()
	c, g, cl := replicated(t, ClusterOptions{})
	c.Apply(Object{Key(meta.KindTopic, "money"), &meta.Topic{Partitions: 1, BrokerGroups: []string{g.Name}, Durability: meta.DurabilityReplicated}})
	if err := send(t, cl, "money", "two have it"); err != nil {
		t.Fatal(err)
	}
	c.Kill(g.Brokers[1])
	g.InSync(0)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	p, err := cl.Producer("money")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Send(ctx, &client.Message{Body: []byte("one has it")}); err == nil {
		t.Error("a replicated topic took a send without a slave")
	}
	if err := send(t, cl, "orders", "normal"); err != nil {
		t.Error(err)
	}
	g.Brokers[1].StartAgain()
	g.InSync(1)
	if err := send(t, cl, "money", "two have it again"); err != nil {
		t.Error(err)
	}
}

// TestRegistryAway: without the registry a master that was killed opens when its slave says that it has met no higher term, and a broker that alone
// makes up its broker group opens at once.
func TestRegistryAway(t *testing.T) {
	t.Parallel()
	c, g, cl := replicated(t, ClusterOptions{})
	alone := c.AddBroker()
	c.Groups[1].Master()
	if err := send(t, cl, "orders", "before"); err != nil {
		t.Fatal(err)
	}
	g.SameEnds()
	c.Registries[0].Stop()
	c.Kill(g.Brokers[0])
	c.Kill(alone)
	alone.StartAgain()
	c.Groups[1].Master()
	g.Brokers[0].StartAgain()
	g.Master()
	if err := send(t, cl, "orders", "without the registry"); err != nil {
		t.Error(err)
	}
	// All of it, and nothing is there: a broker cannot know whether the other met a higher term.
	c.Kill(g.Brokers[0])
	c.Kill(g.Brokers[1])
	g.Brokers[0].StartAgain()
	g.Await("the master waits", func(all map[string]*wire.ReplicaStatus) bool {
		st := all[g.Brokers[0].Name()]
		return st.GetRole() == "waiting" && strings.Contains(st.GetWhy(), "registry is away")
	})
	g.Brokers[1].StartAgain()
	g.Master()
	c.Registries[0].StartAgain()
	g.InSync(1)
	received(t, cl, "orders", 2)
}

// TestServedBySlave: while the master is away its slave gives consumers what is committed, and what they acked there is not given again
// when the master is back.
func TestServedBySlave(t *testing.T) {
	t.Parallel()
	c, g, cl := replicated(t, ClusterOptions{})
	for i := range 20 {
		if err := send(t, cl, "orders", fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	k, err := cl.Consumer("orders", client.Group("pay"), client.Start(client.FromBeginning))
	if err != nil {
		t.Fatal(err)
	}
	acked := map[string]bool{}
	take := func(n int) {
		t.Helper()
		for had := 0; had < n; {
			ds, err := k.Fetch(ctx, min(5, n-had))
			if err != nil {
				t.Fatalf("%d of %d: %v", had, n, err)
			}
			if err := k.Ack(ctx, ds...); err != nil {
				t.Fatal(err)
			}
			for _, d := range ds {
				if acked[d.ID] {
					t.Errorf("%s is given again", d.Location())
				}
				acked[d.ID] = true
			}
			had += len(ds)
		}
	}
	take(5)
	g.SameEnds()
	c.Kill(g.Brokers[0])
	begun := time.Now()
	take(10)
	t.Logf("10 messages had from the slave %v after the master's death", time.Since(begun).Round(time.Millisecond))
	if !g.Status()[g.Brokers[1].Name()].GetServing() {
		t.Error("the slave does not say that it serves")
	}
	g.Brokers[0].StartAgain()
	g.Master()
	take(5)
	g.InSync(1)
}

// TestOtherDisk: a slave whose disk is empty begins with a copy of what its master has, also when the beginning of that is gone.
func TestOtherDisk(t *testing.T) {
	t.Parallel()
	c, g, cl := replicated(t, ClusterOptions{})
	for i := range 30 {
		if err := send(t, cl, "orders", fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	c.Kill(g.Brokers[1])
	c.EmptyDisk(g.Brokers[1])
	g.Brokers[1].StartAgain()
	g.InSync(1)
	g.SameEnds()
	// And the master's: it takes what its slave has, and a term of its own.
	c.Kill(g.Brokers[0])
	c.EmptyDisk(g.Brokers[0])
	g.Brokers[0].StartAgain()
	g.Master()
	g.InSync(1)
	g.SameEnds()
	if row := g.Row(); row.Term < 2 || row.Master.Broker != g.Brokers[0].Name() {
		t.Errorf("the row is %+v", row)
	}
	received(t, cl, "orders", 30)
}

// TestOldImage: the disk of a master that went on alone comes back as an older image, and then both disks are empty: nobody begins without what
// was acknowledged, and all says why, until an operator promotes by force.
func TestOldImage(t *testing.T) {
	t.Parallel()
	c, g, cl := replicated(t, ClusterOptions{})
	a, b := g.Brokers[0], g.Brokers[1]
	waits := func(why string) {
		t.Helper()
		g.Await(why, func(all map[string]*wire.ReplicaStatus) bool {
			st := all[a.Name()]
			return st.GetRole() == "waiting" && strings.Contains(st.GetWhy(), why) && strings.Contains(st.GetWhy(), "promote by force")
		})
		if _, err := g.Do(&wire.BrokerGroupRequest{Action: "promote", Broker: a.Name()}); err != nil {
			t.Error(err)
		}
		waitsStill := g.Status()[a.Name()]
		if waitsStill.GetRole() != "waiting" {
			t.Errorf("it was promoted without force: %v", waitsStill)
		}
		r, err := g.Do(&wire.BrokerGroupRequest{Action: "promote", Broker: a.Name(), Force: true})
		if err != nil || len(r.Lost) == 0 || !strings.Contains(r.Lost[0], "messages were acknowledged up to") {
			t.Errorf("%v, %v", r, err)
		}
		if m := g.Master(); m != a {
			t.Errorf("%s is master", m.Name())
		}
		g.InSync(1)
	}
	if err := send(t, cl, "orders", "both have it"); err != nil {
		t.Fatal(err)
	}
	c.Kill(b)
	g.InSync(0)
	image := a.Disk().Image()
	for i := range 10 {
		if err := send(t, cl, "orders", fmt.Sprint("only the master has it ", i)); err != nil {
			t.Fatal(err)
		}
	}
	heard := func() {
		end := g.Status()[a.Name()].GetCommitted()
		until(t, "the registry hears what is committed", func() bool {
			r, err := c.Registries[0].Registry().ListNodes(context.Background(), &wire.ListNodesRequest{})
			if err != nil {
				t.Fatal(err)
			}
			return slices.ContainsFunc(r.Nodes, func(n *wire.Node) bool { return n.Last.Node == a.Name() && n.Last.Replica.GetCommitted() >= end })
		})
	}
	heard()
	c.Kill(a)
	a.SetDisk(image)
	a.StartAgain()
	b.StartAgain()
	waits("its disk is an older image")
	if err := send(t, cl, "orders", "after it"); err != nil {
		t.Fatal(err)
	}
	g.SameEnds()
	heard()
	for _, s := range []*Server{a, b} {
		c.Kill(s)
		c.EmptyDisk(s)
	}
	a.StartAgain()
	b.StartAgain()
	waits("its store is empty")
	if err := send(t, cl, "orders", "after that"); err != nil {
		t.Fatal(err)
	}
}

// TestFolderDeleted: a master whose folder is deleted under it ends, and its slave takes over.
func TestFolderDeleted(t *testing.T) {
	t.Parallel()
	c := StartCluster(t, ClusterOptions{Slaves: 1, Auto: true, Each: fast})
	g := c.Groups[0]
	g.Master()
	g.InSync(1)
	a, b := g.Brokers[0], g.Brokers[1]
	if err := os.RemoveAll(a.Folder()); err != nil {
		t.Fatal(err)
	}
	g.Await("the slave is master", func(all map[string]*wire.ReplicaStatus) bool { return all[b.Name()].GetRole() == "master" })
	if err := a.end(); !errors.Is(err, local.ErrReplaced) {
		t.Errorf("it ended: %v", err)
	}
	a.mu.Lock()
	a.running = nil
	a.mu.Unlock()
}

// TestMasterFails: the journal of a master fails: on an auto broker group its slave is promoted, on a fixed one it serves what is there, and status says failed.
func TestMasterFails(t *testing.T) {
	t.Parallel()
	for _, auto := range []bool{true, false} {
		_, g, cl := replicated(t, ClusterOptions{Auto: auto})
		if err := send(t, cl, "orders", "both have it"); err != nil {
			t.Fatal(err)
		}
		a, b := g.Brokers[0], g.Brokers[1]
		a.Disk().FailSyncs(true)
		_ = send(t, cl, "orders", "nobody may have it") // it is failed or unknown
		if auto {
			g.Await("the slave is master", func(all map[string]*wire.ReplicaStatus) bool { return all[b.Name()].GetRole() == "master" })
		} else {
			g.Await("the slave serves", func(all map[string]*wire.ReplicaStatus) bool {
				return all[a.Name()].GetRole() == "failed" && all[b.Name()].GetServing()
			})
		}
		a.Disk().FailSyncs(false)
		_ = a.end() // its journal has failed
		a.mu.Lock()
		a.running = nil
		a.mu.Unlock()
	}
}

// TestPowerLoss: all lose their power at once; what was answered is there when they are back, whoever is first.
func TestPowerLoss(t *testing.T) {
	t.Parallel()
	seed := newSeed()
	rng := rand.New(rand.NewPCG(seed, 0))
	t.Logf("-seed %d", seed)
	c, g, cl := replicated(t, ClusterOptions{Auto: true})
	sent := 0
	for range 2 {
		for range 20 {
			if err := send(t, cl, "orders", fmt.Sprint(sent)); err != nil {
				t.Fatal(err)
			}
			sent++
		}
		for _, b := range g.Brokers {
			c.PowerLoss(b, rng)
		}
		for _, i := range rng.Perm(len(g.Brokers)) {
			g.Brokers[i].StartAgain()
		}
		g.Master()
		g.InSync(1)
	}
	received(t, cl, "orders", sent)
}

// TestFullCopy: a slave that comes when its master's journal does not begin at 0 any more gets a full copy.
func TestFullCopy(t *testing.T) {
	t.Parallel()
	c, g, cl := replicated(t, ClusterOptions{Each: func(s *server.Config) {
		fast(s)
		s.Broker.Journal.SegmentBytesMax = 64 << 10
		s.Broker.Store.CheckpointBytes, s.Broker.Store.CheckpointEvery = 64<<10, 100*time.Millisecond
		s.Broker.Retention.Bytes, s.Broker.Retention.Every = 64<<10, 20*time.Millisecond
	}})
	body := strings.Repeat("x", 8<<10)
	for range 60 {
		if err := send(t, cl, "orders", body); err != nil {
			t.Fatal(err)
		}
	}
	g.Await("the master's journal is trimmed, and its slave's with it", func(all map[string]*wire.ReplicaStatus) bool {
		for _, st := range all {
			if st.GetBegin() == 0 {
				return send(t, cl, "orders", "x") != nil // a store that does nothing writes no checkpoints
			}
		}
		return true
	})
	c.Kill(g.Brokers[1])
	c.EmptyDisk(g.Brokers[1])
	g.Brokers[1].StartAgain()
	g.Await("the slave has a copy", func(all map[string]*wire.ReplicaStatus) bool {
		st := all[g.Brokers[1].Name()]
		return st.GetRole() == "slave" && st.GetBegin() > 0
	})
	g.InSync(1)
	// It is as good as another: it can be master.
	g.Await("the registry takes the transfer", func(map[string]*wire.ReplicaStatus) bool {
		_, err := g.Do(&wire.BrokerGroupRequest{Action: "transfer", Broker: g.Brokers[1].Name()})
		return err == nil
	})
	g.Await("the copy serves as master", func(all map[string]*wire.ReplicaStatus) bool {
		return all[g.Brokers[1].Name()].GetRole() == "master"
	})
	if err := send(t, cl, "orders", "to the copy"); err != nil {
		t.Error(err)
	}
	g.InSync(1)
	g.SameEnds()
}
