package main

import (
	"context"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/jmqio/jmq/scripts/chaos/disk"
	"github.com/jmqio/jmq/scripts/localcluster"
	"github.com/jmqio/jmq/server/servertest/check"
)

// windowLasts is how long a soak goes on until all must be at rest, and what happened meanwhile is judged and let go.
const windowLasts = time.Minute

// soakDisks are those of broker groups in a soak, by their number.
var soakDisks = []disk.Options{{}, {Volatile: true}, {XFS: true}}

// volatileGroup has the disks that can be slow or fail.
const volatileGroup = "b2"

// soakOn soaks a cluster in faults of all kinds, one after the other, for as long as is left of what was asked for. Each window has the next seed, and
// becomes a row.
func (c *campaign) soakOn(ctx context.Context, k *kind) (err error) {
	left, seed := c.soak, c.seed
	for i := range c.rows {
		if r := &c.rows[i]; r.Kind == k.name {
			left -= time.Duration(r.Count) * time.Second
			seed = max(seed, r.Seed+1)
		}
	}
	if left <= 0 {
		return nil
	}
	s := k.shapeOf(seed)
	dir := c.folder(k, seed)
	begun := time.Now()
	t, err := c.begin(ctx, k, s, dir)
	if err != nil {
		return c.notBegun(t, err)
	}
	c.up(t, begun)
	var last []row // whose window was the last one: what the disks show in the end becomes part of it
	for left > 0 && err == nil && !(c.stopping.Load() && len(last) > 0) && ctx.Err() == nil {
		begun := time.Now()
		var r row
		if r, err = t.window(ctx, seed, min(left, windowLasts)); err != nil {
			break
		}
		r.Count = int(time.Since(begun).Round(time.Second).Seconds())
		left -= time.Duration(r.Count) * time.Second
		c.rows = append(c.rows, last...)
		if err = appendRows(c.file, last...); err != nil {
			break
		}
		last = []row{r}
		c.tell(&r, time.Since(begun))
		seed++
		if r.Violations() > 0 {
			break
		}
		if left > 0 {
			t.forget()
			err = t.join(ctx)
		}
	}
	err = c.finish(ctx, t, seed, last, err)
	if err == nil && left > 0 && len(c.failed) == 0 {
		err = fmt.Errorf("%w: %v of soaking are left", errStopped, left)
	}
	return err
}

// window lets faults happen for so long, waits until all is well and consumed, and judges.
func (t *trial) window(ctx context.Context, seed uint64, lasts time.Duration) (row, error) {
	t.rng = rand.New(rand.NewPCG(seed, t.k.number()))
	t.happened, t.count, t.recovery = nil, 0, 0
	over := time.Now().Add(lasts)
	stop, err := t.send()
	steered := t.steer()
	if err == nil {
		err = t.goesOn(ctx, "all is well", 3, topics...)
	}
	for err == nil && time.Now().Before(over) && ctx.Err() == nil {
		k, f := t.anyFault()
		if strings.HasPrefix(k.name, "disk-") && k.name != "disk-full" {
			t.fixed = volatileGroup
		}
		err = t.carryOut(ctx, f)
		t.fixed = ""
		t.hold(ctx, 200, 3000)
	}
	stop()
	steered()
	if err == nil {
		err = t.drain(ctx)
	}
	if err == nil {
		err = t.settled(ctx)
	}
	if err == nil {
		err = t.same(ctx)
	}
	if err == nil {
		t.leave()
		t.rest(ctx)
	}
	return t.outcome(seed, err)
}

// anyFault draws one of all kinds on processes, each kind as often as the others.
func (t *trial) anyFault() (*kind, *fault) {
	var list []*kind
	for i := range kinds {
		if len(kinds[i].faults) > 0 {
			list = append(list, &kinds[i])
		}
	}
	k := list[t.rng.IntN(len(list))]
	return k, &k.faults[t.rng.IntN(len(k.faults))]
}

// past is what stays of a history that was judged: of each message its place, and where the next window begins.
type past struct {
	seen  map[place][]uint32 // by index: a checksum of the message; 0: there was none
	begin map[place]uint64   // the first index of the window
}

type place struct {
	topic     string
	partition uint16
}

// sumOf is of what makes a message, never 0.
func sumOf(e *check.Event) uint32 { return crc32.ChecksumIEEE([]byte(e.ID+e.Hash+e.Key)) | 1 }

// admit says whether e is to be judged in this window. A reading of what was judged before is compared with what was seen then, and told if it is not the same.
func (p *past) admit(e *check.Event) (ok bool, problem string) {
	at := place{e.Topic, e.Partition}
	begin := p.begin[at]
	switch {
	case begin == 0 || e.Op != check.OpScan && e.Op != check.OpScanned:
		return true, ""
	case e.Op == check.OpScanned && e.To < begin:
		return false, fmt.Sprintf("%s: %s/%d ends at index %d, and was consumed to %d", e.Proc, e.Topic, e.Partition, e.To, begin)
	case e.Op == check.OpScanned:
		e.Index = max(e.Index, begin)
		return true, ""
	case e.Index >= begin:
		return true, ""
	}
	if seen := p.seen[at]; e.Index >= uint64(len(seen)) || seen[e.Index] != sumOf(e) {
		return false, fmt.Sprintf("%s: index %d of %s/%d is %s, and was another message for those who consumed it", e.Proc, e.Index, e.Topic, e.Partition, e.ID)
	}
	return false, ""
}

// forget lets go of a window that was judged, but for what the next one must know: where groups stand and what is stored, messages whose sends had no
// outcome and may come yet, who was master, and what processes had.
func (t *trial) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.past.seen == nil {
		t.past = past{seen: map[place][]uint32{}, begin: map[place]uint64{}}
	}
	type attempt struct {
		id   string
		call int64
	}
	open, unsure := map[attempt]bool{}, map[string]bool{}
	masters := map[string]check.Event{}
	for i := range t.mu.events {
		e := &t.mu.events[i]
		at := place{e.Topic, e.Partition}
		switch {
		case e.Op == check.OpRecv && e.Group == app:
			seen := t.past.seen[at]
			for uint64(len(seen)) <= e.Index {
				seen = append(seen, 0)
			}
			seen[e.Index] = sumOf(e)
			t.past.seen[at] = seen
		case e.Op == check.OpOffset && e.Group == app:
			t.past.begin[at] = e.Index
		case e.Op == check.OpMaster && e.Epoch >= masters[e.BrokerGroup].Epoch:
			masters[e.BrokerGroup] = *e
		case e.Op == check.OpSend && e.Result == "":
			open[attempt{e.ID, e.Call}] = true
		case e.Op == check.OpSend:
			delete(open, attempt{e.ID, e.Call})
			if e.Result == check.Unknown || e.Unknown != 0 {
				unsure[e.ID] = true
			}
		}
	}
	for a := range open {
		unsure[a.id] = true
	}
	var carried []check.Event
	for _, e := range t.mu.events {
		if e.Op == check.OpSend && unsure[e.ID] {
			carried = append(carried, e)
		}
	}
	carried = slices.Clone(carried[max(0, len(carried)-carriedMost):])
	at := now()
	for k, begin := range t.past.begin {
		carried = append(carried, check.Event{Op: check.OpSubscribe, Topic: k.topic, Partition: k.partition, Group: app, Index: begin, Call: at})
	}
	for _, e := range masters {
		carried = append(carried, e)
	}
	for topic, is := range t.registers {
		carried = append(carried, check.Event{Op: check.OpWrite, Proc: "before", Key: topic, Hash: is.name, Version: is.revision, Call: at, Return: at, Result: check.OK})
	}
	for proc, u := range t.base {
		carried = append(carried, check.Event{Op: check.OpUsage, Proc: proc, Usage: &u, Call: t.based})
	}
	t.mu.events = carried
	t.told = t.figures()
}

// carriedMost bounds the sends of which nobody knows the end.
const carriedMost = 4000

// registryNode chooses one of them.
func (t *trial) registryNode() *localcluster.Node {
	nodes := t.Of("registry")
	return nodes[t.rng.IntN(len(nodes))]
}

// soakFaults are those that need several registry nodes, or their database.
var soakFaults = []fault{
	{name: "a registry node is killed", do: func(ctx context.Context, t *trial) error {
		t.registryNode().Kill()
		t.hold(ctx, 0, 2500)
		return nil
	}},
	{name: "a registry node is paused", do: func(ctx context.Context, t *trial) error {
		t.registryNode().Pause()
		t.hold(ctx, 500, 4000)
		return nil
	}},
	{name: "a registry node is cut off", do: func(ctx context.Context, t *trial) error {
		t.network.Isolate(t.registryNode().Name, cut)
		t.hold(ctx, 500, 4000)
		return nil
	}},
	{name: "the database is paused", away: bothWays, do: func(ctx context.Context, t *trial) error {
		t.Database.Pause()
		t.hold(ctx, 500, 4000)
		return nil
	}},
	{name: "the database is killed", away: bothWays, do: func(ctx context.Context, t *trial) error {
		t.Database.Kill()
		t.hold(ctx, 0, 2500)
		return nil
	}},
}
