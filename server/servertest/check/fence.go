package check

import (
	"cmp"
	"slices"
)

// master is a broker that served as one, or (proc 0) one that gave a lease.
type master struct {
	proc, brokerGroup uint32
	epoch             uint64
	span
}

// fenced is C9: an epoch has one writer, and once somebody serves in an epoch, or a send was ok in a term, no send that begins later is
// ok in a lower one. It needs scans that tell the epochs of records.
func (c *Checker) fenced() *CheckResult {
	out := &CheckResult{Name: "C9", Title: "fencing", What: "ok sends and masters"}
	sends := map[uint32][]okSend{}
	for i := range c.messages {
		m := &c.messages[i]
		for _, a := range m.attempts {
			if l := c.logs[a.at.logKey]; a.result == OK && l != nil && l.epochs[a.at.index] != 0 && len(m.attempts) == 1 {
				sends[l.brokerGroup] = append(sends[l.brokerGroup], okSend{a, l.epochs[a.at.index], int32(i)})
			}
		}
	}
	masters := map[uint32][]master{}
	for _, m := range c.masters {
		masters[m.brokerGroup] = append(masters[m.brokerGroup], m)
		out.Checked++
	}
	// Who gave a lease of an epoch served in it before the lease came.
	for _, g := range c.sortedGroups() {
		if l := c.logs[g.logKey]; l != nil && len(l.epochs) > 0 {
			seen := map[uint64]int64{}
			for i := range g.deliveries {
				if d := &g.deliveries[i]; d.epoch != 0 && d.lease&sideLease == 0 && (seen[d.epoch] == 0 || d.granted < seen[d.epoch]) {
					seen[d.epoch] = d.granted
				}
			}
			for epoch, t := range seen {
				masters[l.brokerGroup] = append(masters[l.brokerGroup], master{brokerGroup: l.brokerGroup, epoch: epoch, span: span{t, t}})
			}
		}
	}
	for _, name := range slices.Sorted(slices.Values(c.names.names)) { // in the order of names
		bg := c.names.numbers[name]
		c.oneWriter(masters[bg], out)
		c.noneLower(sends[bg], masters[bg], out)
	}
	return out
}

type okSend struct {
	attempt
	epoch   uint64
	message int32
}

func (c *Checker) oneWriter(masters []master, out *CheckResult) {
	first := map[uint64]*master{}
	for i := range masters {
		m := &masters[i]
		if m.proc == 0 {
			continue
		}
		if f := first[m.epoch]; f == nil {
			first[m.epoch] = m
		} else if f.proc != m.proc {
			out.violate(Subject{Op: OpMaster, BrokerGroup: c.names.name(m.brokerGroup)}, "%s was master in epoch %d at %d, and %s at %d", c.names.name(f.proc), f.epoch, f.call,
				c.names.name(m.proc), m.call)
		}
	}
}

func (c *Checker) noneLower(sends []okSend, masters []master, out *CheckResult) {
	byReturn := slices.Clone(sends)
	slices.SortFunc(sends, func(a, b okSend) int { return cmp.Compare(a.call, b.call) })
	slices.SortFunc(byReturn, func(a, b okSend) int { return cmp.Compare(a.ret, b.ret) })
	slices.SortFunc(masters, func(a, b master) int { return cmp.Compare(a.ret, b.ret) })
	var ok okSend
	var served master
	for _, s := range sends {
		out.Checked++
		for ; len(byReturn) > 0 && byReturn[0].ret < s.call; byReturn = byReturn[1:] {
			if byReturn[0].epoch > ok.epoch {
				ok = byReturn[0]
			}
		}
		for ; len(masters) > 0 && masters[0].ret < s.call; masters = masters[1:] {
			if masters[0].epoch > served.epoch {
				served = masters[0]
			}
		}
		switch {
		case s.epoch>>32 < ok.epoch>>32:
			out.violate(c.ofMessage(s.message).or(c.ofMessage(ok.message)), "%s, sent at %d, was ok in term %d, after %s was ok in term %d at %d", c.messages[s.message].id, s.call, s.epoch>>32,
				c.messages[ok.message].id, ok.epoch>>32, ok.ret)
		case s.epoch < served.epoch:
			who := c.names.name(served.proc)
			if served.proc == 0 {
				who = "who gave a lease"
			}
			out.violate(c.ofMessage(s.message).with(OpMaster), "%s, sent at %d, was ok in epoch %d, though %s served in epoch %d at %d", c.messages[s.message].id, s.call, s.epoch,
				who, served.epoch, served.ret)
		}
	}
}
