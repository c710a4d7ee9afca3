package check

import (
	"cmp"
	"math"
	"slices"
)

// lease is what a history shows of one: the deliveries that its holder noted. It may have held more.
type lease struct {
	*delivery          // the one of the lowest index
	indexes   []uint64 // ascending
	// acked: its holder acked all that it noted.
	acked bool
	until int64 // when the next lease was given, not earlier
	// ended is the earliest moment at which it may have ended.
	ended int64
}

// leases of a group at a partition, in the order in which they were given.
func (c *Checker) leases(g *groupPartition) []*lease {
	of := map[uint64]*lease{}
	var all []*lease
	for i := range g.deliveries { // by index
		d := &g.deliveries[i]
		l := of[d.lease]
		if l == nil {
			l = &lease{delivery: d}
			of[d.lease] = l
			all = append(all, l)
		}
		if n := len(l.indexes); n == 0 || l.indexes[n-1] != d.index {
			l.indexes = append(l.indexes, d.index)
		}
	}
	slices.SortFunc(all, func(a, b *lease) int { return byLease(*a.delivery, *b.delivery) })
	facts := g.facts()
	for i, l := range all {
		l.until = math.MaxInt64
		if i+1 < len(all) {
			l.until = max(all[i+1].granted, l.granted)
		}
		l.ended, l.acked = l.endedByHolder(facts)
		c.endOther(g, l)
	}
	return all
}

// endedByHolder is when all that the holder noted was acked or given back, at the earliest, and whether all of it was acked.
func (l *lease) endedByHolder(f facts) (at int64, acked bool) {
	at, acked = l.granted, true
	for _, i := range l.indexes {
		first, ack := int64(math.MaxInt64), false
		for _, a := range f.acks[l.lease] {
			if a.from <= i && i < a.to && a.result != Failed {
				first, ack = min(first, a.call), ack || a.result != Unknown
			}
		}
		for _, e := range f.ends[l.lease] {
			if e.from <= i && i < e.to {
				first = min(first, e.call)
			}
		}
		at, acked = max(at, first), acked && ack
	}
	return at, acked
}

// endOther: a lease ends with its time, its holder, its broker, and when its group is moved. That may be before its holder noted anything: its
// handler was late.
func (c *Checker) endOther(g *groupPartition, l *lease) {
	end := func(t int64) { l.ended = min(l.ended, t) }
	if l.deadline != 0 {
		end(l.deadline)
	}
	for _, t := range c.deaths[l.proc] {
		if t >= l.since {
			end(t)
		}
	}
	for _, s := range c.restarts {
		if c.hits(s, g.logKey) && s.ret >= l.since {
			end(s.call)
		}
	}
	for i := range g.resets {
		if g.resets[i].ret >= l.since {
			end(g.resets[i].call)
		}
	}
}

// cutShort says why a lease may have had messages that its holder never noted, which others have yet to be given.
func (c *Checker) cutShort(g *groupPartition, l *lease) bool {
	return !l.acked ||
		slices.ContainsFunc(c.deaths[l.proc], func(t int64) bool { return l.since <= t && t <= l.until }) ||
		slices.ContainsFunc(c.restarts, func(s outage) bool { return c.hits(s, g.logKey) && l.since <= s.ret && s.call <= l.until }) ||
		g.resetBetween(l.since, l.until)
}

// noSkip is C7: a lease begins with the first message that has not ended, and leaves out only what has. What has ended when a lease
// was given is counted generously: all of which an ack was begun by then.
func (c *Checker) noSkip() *CheckResult {
	out := &CheckResult{Name: "C7", Title: "no skip", What: "leases"}
	parallel := 0
	known := map[logKey][]uint64{}
	for _, g := range c.sortedGroups() {
		switch l := c.logs[g.logKey]; {
		case len(g.deliveries) == 0 || l == nil:
			continue
		case g.parallel:
			parallel++
			continue
		case known[g.logKey] == nil:
			known[g.logKey] = sortedIndexes(l)
		}
		all := known[g.logKey]
		first, _ := slices.BinarySearch(all, g.start)
		c.skips(g, all[first:], out)
	}
	if parallel > 0 {
		out.note("%d partitions of parallel groups left out", parallel)
	}
	return out
}

func (c *Checker) skips(g *groupPartition, known []uint64, out *CheckResult) {
	// When each had ended at the earliest.
	ended := make([]int64, len(known))
	for i := range ended {
		ended[i] = math.MaxInt64
	}
	end := func(from, to uint64, t int64) {
		for i, _ := slices.BinarySearch(known, from); i < len(known) && known[i] < to; i++ {
			ended[i] = min(ended[i], t)
		}
	}
	for _, a := range g.acks {
		if a.result != Failed {
			end(a.from, a.to, a.call)
		}
	}
	for _, r := range g.resets {
		end(0, r.index, r.call)
	}
	for _, r := range g.gaps {
		end(r[0], r[1], math.MinInt64)
	}
	for _, r := range c.logs[g.logKey].lost {
		end(r[0], r[1], math.MinInt64)
	}
	leases := c.leases(g)
	slices.SortStableFunc(leases, func(a, b *lease) int { return cmp.Compare(a.granted, b.granted) })
	var open []int // places in known below seen that had not ended when they were passed
	seen := 0
	for _, l := range leases {
		out.Checked++
		short := c.cutShort(g, l)
		excused := func(i int) bool {
			if short {
				return true
			}
			at := g.firstDelivery(known[i])
			for ; at < len(g.deliveries) && g.deliveries[at].index == known[i]; at++ {
				// It is with a consumer of a slave that had served, or the other way round.
				if d := &g.deliveries[at]; d.lease&sideLease != l.lease&sideLease && d.since <= l.granted {
					return true
				}
			}
			return false
		}
		lowest, highest := l.indexes[0], l.indexes[len(l.indexes)-1]
		for ; seen < len(known) && known[seen] < lowest; seen++ {
			if ended[seen] > l.granted {
				open = append(open, seen)
			}
		}
		// It is told once; the next leases pass it too.
		open = slices.DeleteFunc(open, func(i int) bool {
			switch {
			case ended[i] <= l.granted:
				return true
			case known[i] >= lowest || excused(i):
				return false
			}
			out.violate(c.ofGroup(g, known[i], lowest+1), "%s: lease %d to %s at %d begins at index %d, but index %d (%s) had not ended", c.groupName(g.groupKey), l.lease,
				c.names.name(l.proc), l.granted, lowest, known[i], c.messages[c.logs[g.logKey].at[known[i]]].id)
			return true
		})
		at, _ := slices.BinarySearch(known, lowest)
		for ; at < len(known) && known[at] < highest; at++ {
			if _, given := slices.BinarySearch(l.indexes, known[at]); !given && ended[at] > l.granted && !excused(at) {
				out.violate(c.ofGroup(g, known[at], known[at]+1), "%s: lease %d to %s at %d passes over index %d (%s), which had not ended", c.groupName(g.groupKey), l.lease,
					c.names.name(l.proc), l.granted, known[at], c.messages[c.logs[g.logKey].at[known[at]]].id)
			}
		}
	}
}
