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

// restore brings an older image of the disk back.
func (n *simNode) restore(image simDisk) {
	n.w.logf("an older image of the disk of %s comes back: %d of %d records", n.name, len(image.records), len(n.disk.records))
	n.stop()
	n.machine++
	n.w.destroyed(n, &image)
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
			ok = slices.ContainsFunc(w.ghost.ok, func(id int) bool { return slices.Contains(ids, id) })
		}
		if !ok {
			return false
		}
	}
	return true
}

// happen does one thing at random.
func (w *world) happen(used map[string]int) {
	n := w.nodes[w.rand.IntN(len(w.nodes))]
	o := w.nodes[w.rand.IntN(len(w.nodes))]
	once := func(what string, most int) bool {
		used[what]++
		return used[what] <= most
	}
	switch w.rand.IntN(40) {
	case 0, 1:
		n.kill()
	case 2:
		n.power(-1)
	case 3:
		if w.rand.IntN(3) == 0 {
			for _, n := range w.nodes {
				n.power(-1)
			}
		}
	case 4:
		if n.paused {
			n.resume()
		} else {
			n.pause()
		}
	case 5, 6:
		ways := [][2]string{{n.name, o.name}, {n.name, ""}, {"", n.name}, {n.name, o.name}}
		way := ways[w.rand.IntN(len(ways))]
		w.logf("%q does not reach %q", way[0], way[1])
		w.block(way[0], way[1], true)
		if w.rand.IntN(2) == 0 {
			w.block(way[1], way[0], true)
		}
	case 7, 8:
		clear(w.blocked)
		w.logf("all ways are free")
	case 9:
		if once("fsync", 2) {
			n.failSync()
		}
	case 10:
		if once("clean", 2) {
			n.cleanStop()
		}
	case 11:
		if w.rand.IntN(3) == 0 && once("swap", 1) {
			n.swap(w.rand.IntN(2) == 0)
		}
	case 12:
		w.reg.up = !w.reg.up
		w.reg.since = w.now
		w.logf("the registry is up: %v", w.reg.up)
	case 13:
		// Never to before the first master was named: an empty broker that comes first then is as good as any.
		if w.rand.IntN(4) == 0 && len(w.reg.old) > 1 && once("restore", 1) {
			w.reg.restore(w.reg.old[1+w.rand.IntN(len(w.reg.old)-1)])
		}
	case 14:
		if w.rand.IntN(3) == 0 && once("force", 2) {
			w.reg.force(n, w.rand.IntN(4) == 0)
		}
	case 15, 16, 17, 18:
		n.start()
	case 19:
		for _, n := range w.nodes {
			n.start()
		}
	case 20:
		w.run(time.Duration(w.rand.IntN(5000)) * time.Millisecond)
	case 21:
		w.reg.start()
	case 22:
		n.resume()
	case 23:
		n.transfer(o.name)
	default:
		kind := normalMessage
		if w.rand.IntN(3) == 0 {
			kind = replicatedMessage
		}
		for range 1 + w.rand.IntN(3) {
			n.append(kind)
		}
	}
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
