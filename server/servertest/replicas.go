package servertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/server/replica/replicatest"
	"github.com/jmqio/jmq/server/term"
	"github.com/jmqio/jmq/wire"
)

// ReplicaGroup is a broker group of a Cluster.
type ReplicaGroup struct {
	Name    string
	Brokers []*Server // the first of them is named master at the start

	c *Cluster
}

// Broker returns the broker of that name, or fails the test.
func (g *ReplicaGroup) Broker(name string) *Server {
	g.c.t.Helper()
	for _, b := range g.Brokers {
		if b.Name() == name {
			return b
		}
	}
	g.c.t.Fatalf("servertest: broker group %s has no broker %q", g.Name, name)
	return nil
}

// Row is what the registry says of the broker group now.
func (g *ReplicaGroup) Row() term.Row {
	g.c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	var row term.Row
	r, err := g.c.Registries[0].Registry().ListObjects(ctx, &wire.ListObjectsRequest{Kind: string(meta.KindReplication), Prefix: g.Name})
	if err != nil {
		g.c.t.Fatalf("servertest: the row of %s: %v", g.Name, err)
	}
	for _, o := range r.Objects {
		if o.Name == g.Name {
			if err := json.Unmarshal(o.Spec, &row); err != nil {
				g.c.t.Fatal(err)
			}
		}
	}
	return row
}

// Status is what each running broker says of itself, by name.
func (g *ReplicaGroup) Status() map[string]*wire.ReplicaStatus {
	all := map[string]*wire.ReplicaStatus{}
	for _, b := range g.Brokers {
		b.mu.Lock()
		running := b.running
		b.mu.Unlock()
		if running != nil {
			all[b.Name()] = running.Replica()
		}
	}
	return all
}

// Master waits until a broker serves as master, and returns it.
func (g *ReplicaGroup) Master() *Server {
	g.c.t.Helper()
	var master *Server
	g.Await("a broker serves as master", func(all map[string]*wire.ReplicaStatus) bool {
		master = nil
		for name, st := range all {
			if st.GetRole() == "master" && g.Broker(name).serves() {
				master = g.Broker(name)
			}
		}
		return master != nil
	})
	return master
}

// serves says whether the broker takes requests as master.
func (s *Server) serves() bool {
	s.mu.Lock()
	running := s.running
	s.mu.Unlock()
	if running == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	_, err := running.Admin().ListTopics(ctx, &wire.ListTopicsRequest{})
	return wire.CodeOf(err) != wire.CodeNotMaster
}

// InSync waits until the master has n slaves in sync; on an auto broker group also until the registry knows.
func (g *ReplicaGroup) InSync(n int) {
	g.c.t.Helper()
	g.Await(fmt.Sprintf("%d slaves are in sync", n), func(all map[string]*wire.ReplicaStatus) bool {
		for _, st := range all {
			in := 0
			for _, s := range st.GetSlaves() {
				if s.InSync {
					in++
				}
			}
			if st.GetRole() == "master" && in == n {
				return !g.c.o.Auto || len(g.Row().Set) == n
			}
		}
		return false
	})
}

// Await waits until the brokers' statuses are good, or fails the test.
func (g *ReplicaGroup) Await(what string, good func(map[string]*wire.ReplicaStatus) bool) {
	g.c.t.Helper()
	late := time.NewTimer(within)
	defer late.Stop()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for {
		all := g.Status()
		if good(all) {
			return
		}
		select {
		case <-look.C:
		case <-late.C:
			g.c.t.Fatalf("servertest: not within %v: %s of %s; row %+v, brokers %v", within, what, g.Name, g.Row(), all)
		}
	}
}

// Do asks the registry for an action on the broker group, as jmq broker-group does.
func (g *ReplicaGroup) Do(r *wire.BrokerGroupRequest) (*wire.BrokerGroupResponse, error) {
	r.BrokerGroup, r.Reason = g.Name, "test"
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	return g.c.Registries[0].Registry().BrokerGroup(ctx, r)
}

// Kill ends a node as kill -9 does: nothing is said any more, and what it has written is there, synced or not. It needs Memory.
func (c *Cluster) Kill(s *Server) {
	c.t.Helper()
	c.lose(s, 100, rand.New(rand.NewPCG(1, 1)))
}

// PowerLoss ends a node as the loss of its machine's power does: of what was not synced any part is gone, and it is another boot of the machine.
func (c *Cluster) PowerLoss(s *Server, rng *rand.Rand) {
	c.t.Helper()
	c.lose(s, rng.IntN(101), rng)
	s.config.Machine += "'"
}

func (c *Cluster) lose(s *Server, percent int, rng *rand.Rand) {
	c.t.Helper()
	if c.Links == nil || !c.o.Memory {
		c.t.Fatal("servertest: only a node with Memory and Links can be killed")
	}
	c.Links.vanish(s.Name())
	s.config.FS = s.Disk().Crash(percent, rng)
	// What is left of the process ends without its disk; whether well or not is of no matter.
	if err := s.end(); errors.Is(err, errNotStopped) {
		c.t.Errorf("servertest: what was left of %s: %v", s.Name(), err)
	} else if err != nil {
		c.t.Logf("servertest: what was left of %s: %v", s.Name(), err)
	}
	c.Links.come(s.Name())
}

// EmptyDisk gives a node that is stopped another disk, with nothing on it.
func (c *Cluster) EmptyDisk(s *Server) {
	s.config.FS = replicatest.NewDisk()
}

// Disk is that of a node of a Cluster with Memory.
func (s *Server) Disk() *replicatest.Disk {
	s.t.Helper()
	d, ok := s.config.FS.(*replicatest.Disk)
	if !ok {
		s.t.Fatalf("servertest: %s has no disk in memory", s.Name())
	}
	return d
}

// SetDisk gives a node that is stopped another disk.
func (s *Server) SetDisk(d *replicatest.Disk) { s.config.FS = d }

// SameEnds waits until all running brokers have what the master has, committed, and returns where that ends.
func (g *ReplicaGroup) SameEnds() (committedEnd uint64) {
	g.c.t.Helper()
	g.Await("all have the same", func(all map[string]*wire.ReplicaStatus) bool {
		var end, committed []uint64
		for _, st := range all {
			end, committed = append(end, st.GetEnd()), append(committed, st.GetCommitted())
		}
		if len(end) == 0 || slices.Min(end) != slices.Max(end) || slices.Min(committed) != slices.Max(end) {
			return false
		}
		committedEnd = slices.Max(end)
		return true
	})
	return committedEnd
}
