package replica

import (
	"slices"
	"time"
)

func (n *simNode) kill() { n.w.logf("%s is killed", n.name); n.stop() }

// power: the machine restarts, and each record that was not synced is there by chance; what recovery finds ends at the first that is not.
// keep is how many are there; -1: by chance.
func (n *simNode) power(keep int) {
	n.stop()
	n.machine++
	n.lose(keep)
	n.w.logf("%s loses power and keeps %d records", n.name, len(n.disk.records))
}

func (n *simNode) lose(keep int) {
	d := &n.disk
	to := d.synced
	if keep < 0 {
		for to < len(d.records) && n.w.chance(50) {
			to++
		}
	} else {
		to = min(max(keep, to), len(d.records))
	}
	for _, r := range d.records[to:] {
		n.w.ghost.powerHit[r.id] = true
	}
	if to < len(d.records) {
		n.shorten(to)
	}
	d.synced = len(d.records)
}

// failSync: a sync fails, the broker ends, and what was not synced may be gone though the machine runs on.
func (n *simNode) failSync() {
	if !n.up {
		return
	}
	n.stop()
	n.lose(-1)
	if n.w.offRow&rowSyncFailureEndsMembership == 0 {
		n.w.ids++
		n.disk.state.Boot = "after a failed sync " + n.name + time.Duration(n.w.ids).String()
	}
	n.w.logf("a sync of %s fails, %d records are left", n.name, len(n.disk.records))
}

// cleanStop: all is synced and marked, the machine restarts.
func (n *simNode) cleanStop() {
	if !n.up {
		return
	}
	n.stop()
	n.machine++
	n.disk.synced, n.disk.state.Clean = len(n.disk.records), true
	n.w.logf("%s stops cleanly", n.name)
}

// swap: the broker gets an empty disk, with or without a restart of its machine.
func (n *simNode) swap(reboot bool) {
	n.w.logf("the disk of %s is swapped", n.name)
	n.stop()
	n.w.destroyed(n, nil)
	boot, machine := n.disk.state.Boot, n.disk.state.Machine
	n.format()
	n.served = 0
	if reboot {
		n.machine++
	} else {
		// The worst case: the boot is remembered although the store is new.
		n.disk.state.Boot, n.disk.state.Machine = boot, machine
	}
}

// simImage is a copy of a broker's disk, taken while it runs.
type simImage struct {
	of   *simNode
	disk simDisk
}

// restore brings an older image of the disk back; the machine restarts.
func (n *simNode) restore(image simDisk) {
	n.w.logf("an older image of the disk of %s comes back: %d of %d records", n.name, len(image.records), len(n.disk.records))
	n.stop()
	n.machine++
	// Neither is always found out: where nobody can be asked, the master serves without what its image lacks, and its slaves refuse to follow it.
	n.w.accident(func(id, at int) bool { return n.disk.at(at, id) && !image.at(at, id) })
	n.w.imaged = true
	n.disk = image.clone()
	n.disk.synced = len(n.disk.records)
	n.served = 0
}

func (n *simNode) pause() {
	if n.up {
		n.w.logf("%s is paused", n.name)
		n.paused = true
	}
}

func (n *simNode) resume() {
	if !n.paused {
		return
	}
	n.w.logf("%s goes on", n.name)
	n.paused = false
	frozen := n.frozen
	n.frozen = nil
	life := n.life
	for _, do := range frozen {
		if n.life == life && n.up {
			n.get(do)
		}
	}
}

func (w *world) block(from, to string, blocked bool) { w.blocked[[2]string{from, to}] = blocked }

// heal ends all faults.
func (w *world) heal() {
	w.logf("everything is healed")
	w.calm = true
	clear(w.blocked)
	w.reg.start()
	for _, n := range w.nodes {
		n.resume()
		n.start()
	}
}

func (g *simRegistry) start() {
	if !g.up {
		g.up, g.since = true, g.w.now
	}
}

// lives is P6: after heal a normal send is answered ok, and then a replicated one.
func (w *world) lives(within time.Duration) bool {
	until := w.now.Add(within)
	for _, kind := range []recordKind{normalMessage, replicatedMessage} {
		ok := false
		for !ok && w.now.Before(until) && w.ghost.bad == "" {
			var ids []int
			for _, n := range w.nodes {
				if id, sent := n.append(kind); sent {
					ids = append(ids, id)
				}
			}
			w.run(500 * time.Millisecond)
			for _, n := range w.nodes {
				late := n.w.now.Sub(until) > -within/2
				if w.imaged && n.refused && late {
					w.reg.force(n, false) // it has what the master's older image lacks, and an operator says so
				}
				if w.ghost.happened && n.short() && late {
					w.reg.force(n, false) // what was on a disk that was destroyed is nowhere
				}
			}
			ok = slices.ContainsFunc(w.ghost.ok, func(id int) bool { return slices.Contains(ids, id) })
		}
		if !ok {
			return false
		}
	}
	return true
}

// short says whether the named master waits because it lacks what the registry knows to be committed.
func (n *simNode) short() bool {
	return n.up && n.leader == nil && n.row != nil && n.row.Master.Broker == n.name && n.told > n.disk.end()
}

// things that happen at random, and how often where they happen at all.
var things = []struct {
	name   string
	weight int
	most   int // in one schedule; 0: any number
	do     func(w *world, n, o *simNode)
}{
	{"send", 12, 0, func(w *world, n, _ *simNode) {
		for range 1 + w.rand.IntN(3) {
			n.append(normalMessage)
		}
	}},
	{"send replicated", 4, 0, func(w *world, n, _ *simNode) { n.append(replicatedMessage) }},
	{"start", 4, 0, func(w *world, n, _ *simNode) { n.start() }},
	{"start all", 1, 0, func(w *world, n, _ *simNode) {
		for _, n := range w.nodes {
			n.start()
		}
	}},
	{"time", 2, 0, func(w *world, n, _ *simNode) { w.run(time.Duration(w.rand.IntN(5000)) * time.Millisecond) }},
	{"kill", 2, 0, func(w *world, n, _ *simNode) { n.kill() }},
	{"power", 1, 0, func(w *world, n, _ *simNode) { n.power(-1) }},
	{"power of all", 1, 2, func(w *world, n, _ *simNode) {
		for _, n := range w.nodes {
			n.power(-1)
		}
	}},
	{"pause", 1, 0, func(w *world, n, _ *simNode) { n.pause() }},
	{"resume", 2, 0, func(w *world, n, _ *simNode) { n.resume() }},
	{"partition", 3, 0, func(w *world, n, o *simNode) {
		ways := [][2]string{{n.name, o.name}, {n.name, ""}, {"", n.name}}
		way := ways[w.rand.IntN(len(ways))]
		w.logf("%q does not reach %q", way[0], way[1])
		w.block(way[0], way[1], true)
		if w.rand.IntN(2) == 0 {
			w.block(way[1], way[0], true)
		}
	}},
	{"reconnect", 3, 0, func(w *world, n, _ *simNode) { clear(w.blocked); w.logf("all ways are free") }},
	{"failed sync", 1, 2, func(w *world, n, _ *simNode) { n.failSync() }},
	{"clean stop", 1, 3, func(w *world, n, _ *simNode) { n.cleanStop() }},
	{"swapped disk", 1, 1, func(w *world, n, _ *simNode) { n.swap(w.rand.IntN(2) == 0) }},
	{"image", 2, 3, func(w *world, n, _ *simNode) { w.images = append(w.images, simImage{n, n.disk.clone()}) }},
	{"old image", 1, 1, func(w *world, n, _ *simNode) {
		if len(w.images) > 0 {
			i := w.images[w.rand.IntN(len(w.images))]
			i.of.restore(i.disk)
		}
	}},
	{"registry", 1, 0, func(w *world, n, _ *simNode) {
		w.reg.up = !w.reg.up
		w.reg.since = w.now
		w.logf("the registry is up: %v", w.reg.up)
	}},
	{"restored metadata", 1, 1, func(w *world, n, _ *simNode) {
		// Never to before the first master was named: an empty broker that comes first then is as good as any.
		if len(w.reg.old) > 1 {
			w.reg.restore(w.reg.old[1+w.rand.IntN(len(w.reg.old)-1)])
		}
	}},
	{"force", 1, 2, func(w *world, n, _ *simNode) { w.reg.force(n, w.rand.IntN(4) == 0) }},
	{"transfer", 2, 0, func(w *world, n, o *simNode) { n.transfer(o.name) }},
}

// mix is which things happen in a schedule, by weight: not all in each, so that some get far.
func (w *world) mix() []int {
	var mix []int
	for i, t := range things {
		if i < 5 || w.rand.IntN(3) == 0 {
			for range t.weight * (1 + w.rand.IntN(2)) {
				mix = append(mix, i)
			}
		}
	}
	return mix
}

// happen does one thing.
func (w *world) happen(mix []int, used map[int]int) {
	i := mix[w.rand.IntN(len(mix))]
	if used[i]++; things[i].most > 0 && used[i] > things[i].most {
		return
	}
	things[i].do(w, w.nodes[w.rand.IntN(len(w.nodes))], w.nodes[w.rand.IntN(len(w.nodes))])
}

// transfer hands over to a slave, if it is ready for that now.
func (n *simNode) transfer(to string) {
	if n.leader == nil || n.paused {
		return
	}
	if a, persist, err := n.leader.HandOver(n.w.now, to); err == nil {
		n.w.logf("%s hands over to %s", n.name, to)
		n.ask(a, persist)
		n.in(2*time.Second, n.abandon)
	}
}

// abandon settles an ask to hand over that was not answered.
func (n *simNode) abandon() {
	if n.leader != nil && n.leader.Handing() {
		a, persist := n.leader.Abandon(n.w.now)
		n.ask(a, persist)
		n.in(2*time.Second, n.abandon)
	}
}
