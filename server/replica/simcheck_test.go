package replica

import (
	"fmt"
)

// ghost is what an all-seeing observer notes; no broker reads it. The properties are those of scripts/model/README.md:
//
//	P0  the same epoch at the same position is the same record, on any two disks
//	P1  what was answered ok is in the journal of the master of the newest term, and on some disk, but for what an accident excuses
//	P2  a replicated ok is on two disks when it is given
//	P3  no position is served as two different records
//	P5  one broker answers in a term; an older term answers after a newer one only for what the newer master has
//	P6  when everything is healed, a normal and a replicated send are answered ok within a bound
//
// P4 is about side files, which server/side has.
type ghost struct {
	bad      string
	dirty    bool         // P1 must be looked at
	at       map[int]int  // position of each record, by id
	sent     map[int]int  // of messages
	ok       []int        // messages answered ok
	excused  map[int]bool // records whose loss a promise allows
	powerHit map[int]bool // records that some broker lost by a power loss
	served   map[int]int  // position: id
	happened bool         // a disk was destroyed, or an operator accepted loss
	termOK   uint32
	nodeOf   map[uint32]string
}

func newGhost() ghost {
	return ghost{
		at: map[int]int{}, sent: map[int]int{}, excused: map[int]bool{}, powerHit: map[int]bool{}, served: map[int]int{},
		nodeOf: map[uint32]string{},
	}
}

func (w *world) fail(format string, args ...any) {
	if w.ghost.bad == "" {
		w.ghost.bad = fmt.Sprintf(format, args...)
		w.logf("VIOLATION %s", w.ghost.bad)
	}
}

// at says whether the record is on the disk, where it must be.
func (d *simDisk) at(at, id int) bool { return at < len(d.records) && d.records[at].id == id }

func (w *world) wrote(n *simNode, at int, r record) {
	g := &w.ghost
	g.at[r.id] = at
	for _, o := range w.nodes {
		if o != n && at < len(o.disk.records) && o.disk.records[at].epoch == r.epoch && o.disk.records[at].id != r.id {
			w.fail("P0: %s writes record %d at %d in epoch %v, where %s has record %d", n.name, r.id, at, r.epoch, o.name, o.disk.records[at].id)
		}
	}
}

// answered: n answers ok.
func (w *world) answered(n *simNode, r record) {
	g := &w.ghost
	t := n.leader.Epoch().Term()
	at := g.sent[r.id]
	w.logf("%s answers ok: %d at %d", n.name, r.id, at)
	newest := w.node(w.reg.row.Master.Broker)
	if t < g.termOK && newest != nil && newest.leader != nil && !newest.disk.at(at, r.id) {
		w.fail("P5: %s answers %d ok in term %d after term %d answered", n.name, r.id, t, g.termOK)
	}
	// (When the metadata went back and the disk of the newest master was destroyed, nobody knows of its term any more, nor has anything of it.)
	if o, ok := g.nodeOf[t]; ok && o != n.name && !(g.happened && w.reg.generation > 1) {
		w.fail("P5: %s and %s both answered ok in term %d", o, n.name, t)
	}
	g.nodeOf[t], g.termOK = n.name, max(g.termOK, t)
	g.ok = append(g.ok, r.id)
	if r.kind == replicatedMessage && !g.powerHit[r.id] && !g.happened && w.copies(r.id) < 2 {
		w.fail("P2: replicated message %d is answered ok with %d copies", r.id, w.copies(r.id))
	}
	if newest != n {
		g.dirty = true
	}
}

func (w *world) copies(id int) int {
	c := 0
	for _, n := range w.nodes {
		if n.disk.at(w.ghost.at[id], id) {
			c++
		}
	}
	return c
}

// accident excuses records whose only copies are lost by it.
func (w *world) accident(lost func(id, at int) bool) {
	w.ghost.happened = true
	for id, at := range w.ghost.at {
		if lost(id, at) {
			w.ghost.excused[id] = true
		}
	}
	w.ghost.dirty = true
}

// destroyed excuses what only n's disk had. A copy counts if its holder had followed to the last term of the lost disk.
func (w *world) destroyed(n *simNode, kept *simDisk) {
	lost := n.last().Term()
	w.accident(func(id, at int) bool {
		if !n.disk.at(at, id) || kept != nil && kept.at(at, id) {
			return false
		}
		for _, o := range w.nodes {
			if o != n && o.disk.at(at, id) && o.last().Term() >= lost {
				return false
			}
		}
		return true
	})
}

// check looks at the world after each step.
func (w *world) check() {
	g := &w.ghost
	if g.dirty && g.happened {
		// A disk was destroyed, and the last other copy was lost by a power loss, before it was on that disk or later.
		for id := range g.powerHit {
			if w.copies(id) == 0 {
				g.excused[id] = true
			}
		}
	}
	for _, n := range w.nodes {
		if end := n.serving(); end > n.served {
			for at := n.served; at < end; at++ {
				id := n.disk.records[at].id
				if old := g.served[at]; old != 0 && old != id && !g.excused[old] && !g.excused[id] {
					w.fail("P3: %s serves record %d at %d, where record %d was served before", n.name, id, at, old)
				}
				g.served[at] = id
			}
			n.served = end
		}
	}
	if !g.dirty {
		return
	}
	g.dirty = false
	for _, id := range g.ok {
		if !g.excused[id] && w.copies(id) == 0 {
			w.fail("P1: message %d was answered ok and is on no disk", id)
		}
	}
	n := w.node(w.reg.row.Master.Broker)
	if n == nil || n.leader == nil || n.leader.Stopped() || n.leader.Epoch().Term() != w.reg.row.Term || w.reg.row.Term < g.termOK {
		return
	}
	for _, id := range g.ok {
		if !g.excused[id] && !n.disk.at(g.at[id], id) {
			w.fail("P1: message %d at %d was answered ok and master %s does not have it", id, g.at[id], n.name)
		}
	}
}

// serving is up to where n may give records to consumers. A slave may at any time: that is the worst case.
func (n *simNode) serving() int {
	if !n.up || n.leader == nil && n.disk.state.Granted != 0 || n.leader != nil && n.leader.Stopped() {
		return 0
	}
	return int(min(n.committed(), n.disk.end()))
}
