package check

import (
	"cmp"
	"slices"
)

// balance is what the broker says of a group at a partition.
type balance struct {
	from, to, pending uint64
	call, ret         int64
}

// What became of a stored message, for one group.
type fate uint8

const (
	pending fate = iota
	perhaps      // it may have ended: its ack is of unknown outcome, or the group was moved meanwhile
	skipped
	acked
	fates
)

// balanceMost bounds the indexes of which nothing is known, but that a balance counts: each needs a byte.
const balanceMost = 1 << 20

// balancesMost of a group at a partition are looked at, the last ones: each is a walk over all that is stored.
const balancesMost = 8

// conserved is C8: what is stored is what was acked, was skipped, or is pending.
func (c *Checker) conserved() *CheckResult {
	out := &CheckResult{Name: "C8", Title: "conservation", What: "stored messages of groups"}
	var sum [fates]uint64
	for _, g := range c.sortedGroups() {
		if len(g.balances) == 0 {
			continue
		}
		slices.SortFunc(g.balances, func(a, b balance) int { return cmp.Compare(a.call, b.call) })
		last := g.balances[max(0, len(g.balances)-balancesMost):]
		for i := range last {
			b := &last[i]
			of, ok := c.fates(g, b, out)
			if !ok {
				continue
			}
			var n [fates]uint64
			for _, f := range of {
				n[f]++
			}
			out.Checked += len(of)
			// Exact where nothing may or may not have ended. What waits in a retry store would be a fate of its own: acked here, and not ended.
			if b.pending < n[pending] || b.pending > n[pending]+n[perhaps] {
				out.violate(c.ofGroup(g, g.start, b.to).with(OpBalance), "%s at %d: stored %d = acked %d + skipped %d + %d of unknown outcome + pending %d, but %d are said to be pending",
					c.groupName(g.groupKey), b.call, len(of), n[acked], n[skipped], n[perhaps], n[pending], b.pending)
			}
			if i == len(last)-1 {
				for f := range sum {
					sum[f] += n[f]
				}
			}
		}
	}
	if out.Checked > 0 {
		out.note("at the end acked %d, skipped %d, unknown %d, pending %d", sum[acked], sum[skipped], sum[perhaps], sum[pending])
	}
	return out
}

// fates says of each index from the group's start up to the balance's end what became of it.
func (c *Checker) fates(g *groupPartition, b *balance, out *CheckResult) ([]fate, bool) {
	l := c.logs[g.logKey]
	end := g.start
	if l != nil {
		for i, n := range l.at {
			if i >= end {
				end = i + 1
			}
			if m := &c.messages[n]; i >= b.to && i >= g.start {
				if at, ok := m.okPlace(); ok && at == (place{g.logKey, i}) && m.returned() < b.call {
					out.violate(c.ofMessage(n).with(OpBalance), "%s at %d: the end is %d, but %s was ok before with index %d", c.groupName(g.groupKey), b.call, b.to, m.id, i)
				}
			}
		}
	}
	if b.to < g.start || b.to-g.start > end-g.start+balanceMost {
		out.violate(c.ofGroup(g, g.start, b.to).with(OpBalance), "%s at %d: the end is said to be %d; the group begins at %d, and nobody knows an index from %d on", c.groupName(g.groupKey),
			b.call, b.to, g.start, end)
		return nil, false
	}
	of := make([]fate, b.to-g.start)
	set := func(from, to uint64, f fate) {
		for i := max(from, g.start); i < min(to, b.to); i++ {
			of[i-g.start] = max(of[i-g.start], f)
		}
	}
	// The last move decides, unless another may have come after it.
	var moved *observation
	clear := true
	for i := range g.resets { // by call
		r := &g.resets[i]
		if r.call > b.ret {
			continue
		}
		clear = (moved == nil || moved.ret < r.call) && !r.unknown && r.ret < b.call
		moved = r
	}
	for i := range g.acks {
		a := &g.acks[i]
		f := acked
		switch {
		case a.result == Failed || a.call > b.ret:
			continue
		case a.result != OK || a.ret > b.call || c.unmerged(g.logKey, a):
			f = perhaps
		case moved != nil && a.call <= moved.ret:
			if f = perhaps; clear && a.ret < moved.call {
				set(a.from, min(a.to, moved.index), acked)
				continue
			}
		}
		set(a.from, a.to, f)
	}
	if moved != nil {
		for _, r := range g.resets {
			if r.call <= b.ret {
				set(0, r.index, perhaps)
			}
		}
		if clear {
			set(0, moved.index, skipped)
		}
	}
	for _, r := range g.gaps {
		set(r[0], r[1], skipped)
	}
	if l != nil {
		for _, r := range l.lost {
			set(r[0], r[1], perhaps)
		}
	}
	// What was seen to have ended before had ended, and what was seen not to have ended later had not.
	var before, after *observation
	for i := range g.observed {
		o := &g.observed[i]
		switch {
		case moved != nil && !(clear && moved.ret < o.call):
		case o.ret <= b.call && (before == nil || o.call > before.call):
			before = o
		case o.call >= b.ret && (after == nil || o.call < after.call):
			after = o
		}
	}
	for i, f := range of {
		if f == perhaps {
			switch at := g.start + uint64(i); {
			case before != nil && (at < before.index || covered(before, at)):
				of[i] = acked
			case after != nil && at >= after.index && !covered(after, at):
				of[i] = pending
			}
		}
	}
	return of, true
}
