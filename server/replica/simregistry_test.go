package replica

import (
	"errors"
	"slices"
	"time"

	"github.com/jmqio/jmq/server/term"
)

// simRegistry keeps the row, and does what server/registry does with it.
type simRegistry struct {
	w          *world
	up         bool
	since      time.Time // it is up
	row        term.Row
	old        []term.Row // copies of the database
	generation uint64
	reports    map[string]simReport
	high       uint32    // the row's term when a broker told of a higher one
	highAt     time.Time // for the first time
	knownOf    uint32    // term of
	known      uint64    // the highest committed position that its master told
}

type simReport struct {
	term.Report
	at time.Time
}

func (g *simRegistry) set(row term.Row) {
	if row.Change == g.row.Change {
		return
	}
	if row.Term != g.row.Term {
		g.w.logf("registry: term %d, master %s of %s and %s, set %s", row.Term, row.Master.Broker, row.Master.Store, row.Master.Boot, brokers(row.Set))
	}
	g.old = append(g.old, g.row)
	g.row = row
	g.w.ghost.dirty = true
}

func (g *simRegistry) list() []term.Report {
	var out []term.Report
	for _, n := range g.w.nodes { // in a fixed order
		if r, ok := g.reports[n.name]; ok {
			out = append(out, r.Report)
		}
	}
	return out
}

func (g *simRegistry) highest() uint32 {
	if g.w.offRow&rowHighestTerm != 0 {
		return 0
	}
	return g.row.Highest(g.list())
}

// answer is the row, if anything is answered.
func (g *simRegistry) answer() (term.Row, bool) { return g.row, !g.row.Unanswerable(g.generation) }

// base is the row with what is known to be committed, which changes of it keep.
func (g *simRegistry) base() term.Row {
	row := g.row
	row.Committed = max(row.Committed, g.told(row.Term))
	return row
}

// told is what masters of the term said to be committed.
func (g *simRegistry) told(t uint32) uint64 {
	if g.knownOf != t {
		return 0
	}
	return g.known
}

func (g *simRegistry) compare(a term.Ask) (row term.Row, changed, ok bool) {
	row, err := g.base().Compare(a, g.highest(), g.generation)
	switch {
	case errors.Is(err, term.ErrStale):
		return g.row, false, true
	case errors.Is(err, term.ErrNotReady):
		return row, false, false
	case err != nil:
		g.w.fail("the registry cannot take the ask %+v: %v", a, err)
		return row, false, false
	}
	if g.w.offRow&rowCASAlwaysBumps != 0 && row.Term == g.row.Term && slices.Equal(row.Set, g.row.Set) {
		row.Change--
	}
	g.set(row)
	return row, true, true
}

// beat is a heartbeat with a broker's report.
func (n *simNode) beat() {
	rep := n.report()
	n.w.send(n.name, "", func() {
		g := &n.w.reg
		if rep.Master && rep.Term == g.row.Term {
			g.knownOf, g.known = rep.Term, max(g.told(rep.Term), rep.Committed)
		}
		g.reports[n.name] = simReport{rep, n.w.now}
		g.register(rep)
		if row, ok := g.answer(); ok {
			n.w.send("", n.name, func() { n.hearRow(row) })
		}
	})
}

func (g *simRegistry) register(rep term.Report) {
	if g.w.offRow&(rowBootMembership|rowMembershipNamesStore) == 0 {
		if row, err := g.base().Register(rep, true, g.generation); err == nil {
			g.set(row)
		}
	} else if g.row.Term == 0 {
		row, _ := g.base().Register(rep, true, g.generation)
		g.set(row)
	}
	row, changed := g.base().Confirm(rep, g.list(), g.generation)
	if !changed {
		return
	}
	if !rep.Master || rep.Term <= g.row.Term {
		if g.high != g.row.Term {
			g.high, g.highAt = g.row.Term, g.w.now
		}
		if g.w.now.Sub(g.highAt) < 3*time.Second {
			return // a promotion by force may be under way
		}
	}
	g.set(row)
}

// tick promotes on auto broker groups, and ends the time after a restore.
func (g *simRegistry) tick() {
	if !g.up {
		return
	}
	if g.row.Unanswerable(g.generation) || g.row.Term == 0 {
		var group []string
		reports := map[string]term.Report{}
		for _, n := range g.w.nodes {
			group = append(group, n.name)
			if r, ok := g.reports[n.name]; ok {
				reports[n.name] = r.Report
			}
		}
		if g.row.Term == 0 && g.row.Highest(g.list()) == 0 {
			return // the first one is named when it registers
		}
		if row, err := g.base().Refill(group, reports, nil, g.generation); err == nil {
			g.set(row)
		}
		return
	}
	silent := func(name string) bool {
		r, ok := g.reports[name]
		return !ok || g.w.now.Sub(r.at) > g.w.silence
	}
	if g.w.auto && g.w.now.Sub(g.since) > g.w.silence && silent(g.row.Master.Broker) {
		g.promote(silent)
	}
}

func (g *simRegistry) promote(silent func(string) bool) {
	var alive []term.Report
	row := g.base()
	known := row.Committed
	if g.w.offRow&rowKnown != 0 {
		known = 0
	}
	for _, rep := range g.list() {
		if silent(rep.Broker) {
			continue
		}
		m, ok := row.Member(rep.Broker)
		if !ok && g.w.offRow&rowPromoteMembersOnly != 0 {
			row.Set = append(slices.Clone(row.Set), rep.Member)
		}
		if ok && g.w.offRow&rowBootMembership != 0 {
			rep.Boot = m.Boot
		}
		if ok && g.w.offRow&rowMembershipNamesStore != 0 {
			rep.Store, rep.New = m.Store, false
		}
		alive = append(alive, rep)
	}
	next, err := row.Promote(alive, known, g.generation)
	if err != nil {
		return
	}
	next.Term = max(g.highest(), g.row.Term) + 1
	if n := g.w.node(next.Master.Broker); g.w.offRow&(rowBootMembership|rowMembershipNamesStore) != 0 {
		next.Master = g.reports[n.name].Member
	}
	g.set(next)
}

// restore brings the database back from an older copy, under a new generation.
func (g *simRegistry) restore(row term.Row) {
	g.w.logf("the metadata is restored: term %d, set %s", row.Term, brokers(row.Set))
	g.generation++
	if g.w.offRow&rowRestoreEmptiesSets != 0 && row.Term != 0 {
		row.Generation = g.generation
		row.Change += 1 << 20
	}
	g.row, g.reports, g.high = row, map[string]simReport{}, 0
	g.w.ghost.dirty = true
}

// force is an operator's promotion: every other broker is off, or answers that it stops. lost: it ends before the row is written.
func (g *simRegistry) force(to *simNode, lost bool) bool {
	if !g.up || g.row.Unanswerable(g.generation) || g.row.Term == 0 || !to.up || to.paused || to.leader != nil {
		return false
	}
	reports := []term.Report{to.report()}
	for _, n := range g.w.nodes {
		way := g.w.blocked[[2]string{"", n.name}] || g.w.blocked[[2]string{n.name, ""}]
		if n.up && (n.paused || way) {
			return false
		}
		if n.up && n != to {
			reports = append(reports, n.report())
		}
	}
	row, err := g.base().Force(to.self(), append(g.list(), reports...), g.generation)
	if err != nil {
		return false
	}
	for _, n := range g.w.nodes {
		if n.up && (n == to || g.w.offRow&rowForcedFencesAll == 0 || n.name == g.row.Master.Broker) {
			n.meet(row.Term)
		}
	}
	g.w.logf("an operator promotes %s by force in term %d, lost %v", to.name, row.Term, lost)
	if lost {
		return true
	}
	g.w.accident(func(id, at int) bool { return !to.disk.at(at, id) })
	g.set(row)
	return true
}
