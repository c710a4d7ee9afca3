package check

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// Report decides. It may be called once.
func (c *Checker) Report() *Report {
	r := &Report{Events: c.events, Restarts: len(c.restarts), Duplicates: map[Reason]int{}}
	for i := range c.messages {
		m := &c.messages[i]
		if !m.sent {
			continue
		}
		r.Messages++
		r.Ops += len(m.attempts)
		switch m.outcome() {
		case OK:
			r.SentOK++
		case Failed:
			r.SentFailed++
		default:
			r.SentUnknown++
		}
	}
	for _, g := range c.sortedGroups() {
		r.Deliveries += len(g.deliveries)
		r.Ops += len(g.acks)
		granted := map[uint64]int64{}
		for _, d := range g.deliveries {
			if t, ok := granted[d.lease]; !ok || d.call < t {
				granted[d.lease] = d.call
			}
		}
		for i := range g.deliveries {
			d := &g.deliveries[i]
			d.granted = granted[d.lease]
			if d.since == 0 || d.since > d.granted {
				d.since = d.granted
			}
		}
		g.orderLeases()
		slices.SortFunc(g.deliveries, byIndex)
		slices.SortFunc(g.resets, func(a, b observation) int { return cmp.Compare(a.call, b.call) })
	}
	r.Checks = []*CheckResult{
		c.noLoss(), c.noPhantom(), c.explained(r), c.indexes(r), c.ordered(), c.ackState(), c.noSkip(), c.conserved(), c.fenced(), c.linear(), c.noLeak(),
	}
	return r
}

// noLoss is C1.
func (c *Checker) noLoss() *CheckResult {
	out := &CheckResult{Name: "C1", Title: "no loss", What: "readings of ok messages"}
	lost := 0
	// Scans: one that began after the receipt, and covers its index, has the message there.
	byLog := map[logKey][]*scan{}
	for _, s := range c.done {
		byLog[s.logKey] = append(byLog[s.logKey], s)
	}
	for i := range c.messages {
		for _, a := range c.messages[i].attempts {
			if a.result != OK {
				continue
			}
			for _, s := range byLog[a.at.logKey] {
				if s.call < a.ret || a.at.index < s.from {
					continue // taken too early, or trimmed
				}
				out.Checked++
				if got, ok := s.seen[a.at.index]; !ok && c.logs[a.at.logKey].isLost(a.at.index) {
					lost++
				} else if !ok || got != int32(i) {
					out.violate(c.ofMessage(int32(i)), "%s, ok at %s, returned %d: not in the scan by %s, begun %d", c.messages[i].id, c.placeName(a.at), a.ret, c.names.name(s.proc), s.call)
				}
			}
		}
	}
	// Groups: what was ok before a drain was given. The last drain of a group on a topic says the most.
	type groupTopic struct{ group, topic uint32 }
	last := map[groupTopic]int64{}
	for _, d := range c.drains {
		k := groupTopic{d.group, d.topic}
		if t, ok := last[k]; !ok || d.call > t {
			last[k] = d.call
		}
	}
	keys := make([]groupTopic, 0, len(last))
	for k := range last {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b groupTopic) int {
		return cmp.Or(cmp.Compare(c.names.name(a.topic), c.names.name(b.topic)), cmp.Compare(c.names.name(a.group), c.names.name(b.group)))
	})
	given := make([]bool, len(c.messages))
	for _, k := range keys {
		clear(given)
		for gk, g := range c.groups {
			if gk.group != k.group || gk.topic != k.topic {
				continue
			}
			for _, d := range g.deliveries {
				given[d.message] = true
			}
		}
		for i := range c.messages {
			m := &c.messages[i]
			if m.topic != k.topic || m.returned() > last[k] {
				continue
			}
			if at, ok := m.okPlace(); ok && at.topic == k.topic {
				if g := c.groups[groupKey{k.group, at.logKey}]; g != nil && at.index < g.start {
					continue
				}
				if !given[i] && c.logs[at.logKey].isLost(at.index) {
					lost++
					continue
				}
			}
			out.Checked++
			if !given[i] {
				at, _ := m.okPlace()
				out.violate(c.ofMessage(int32(i)), "%s, ok at %s, returned %d: never given to group %s, drained at %d", m.id, c.placeName(at), m.returned(), c.names.name(k.group), last[k])
			}
		}
	}
	// Nothing is said to be lost that was not damaged.
	for _, g := range c.gaps {
		for i := g.from; i < g.to; i++ {
			if l := c.logs[g.logKey]; l == nil || !l.isLost(i) {
				out.violate(c.ofLog(g.logKey, g.from, g.to), "%s was told at %d that [%d, %d) of %s is lost, but index %d was not damaged", g.who, g.call, g.from, g.to, c.logName(g.logKey), i)
				break
			}
		}
	}
	if len(c.gaps) > 0 || lost > 0 {
		out.Note = fmt.Sprintf("%d readings of damaged ones left out, %d gaps told", lost, len(c.gaps))
	}
	return out
}

func (m *message) okPlace() (place, bool) {
	for _, a := range m.attempts {
		if a.result == OK {
			return a.at, true
		}
	}
	return place{}, false
}

// noPhantom is C2.
func (c *Checker) noPhantom() *CheckResult {
	out := &CheckResult{Name: "C2", Title: "no phantom", What: "messages read"}
	for i := range c.messages {
		m := &c.messages[i]
		if m.differs != "" {
			out.violate(c.ofMessage(int32(i)), "%s: %s", m.id, m.differs)
		}
		if m.firstRead == math.MaxInt64 {
			continue
		}
		out.Checked++
		switch {
		case !m.sent:
			out.violate(c.ofMessage(int32(i)), "%s: read by %s at %d, never sent", m.id, c.readerName(m.firstReader), m.firstRead)
		case m.outcome() == Failed:
			out.violate(c.ofMessage(int32(i)), "%s: read by %s at %d, though its send failed", m.id, c.readerName(m.firstReader), m.firstRead)
		case m.firstRead < m.called():
			out.violate(c.ofMessage(int32(i)), "%s: read by %s at %d, before it was sent at %d", m.id, c.readerName(m.firstReader), m.firstRead, m.called())
		}
	}
	return out
}

// explained is C3.
func (c *Checker) explained(r *Report) *CheckResult {
	out := &CheckResult{Name: "C3", Title: "explained duplicates", What: "messages and deliveries"}
	for i := range c.messages {
		m := &c.messages[i]
		if !m.sent {
			continue
		}
		out.Checked++
		n, most := len(m.places), m.copiesMax()
		if n > most {
			where := make([]string, n)
			for k, p := range m.places {
				where[k] = c.placeName(p)
			}
			if m.outcome() != Failed { // that is a phantom
				r.Unexplained += n - most
				out.violate(c.ofMessage(int32(i)), "%s: %d copies (%s), but its attempts can have left %d", m.id, n, strings.Join(where, ", "), most)
			}
		} else if n > 1 {
			r.LogCopies += n - 1
		}
		if n > 1 {
			c.repeated(m, int32(i), r, out)
		}
	}
	for _, g := range c.sortedGroups() {
		facts := g.facts()
		first := map[int32]int{} // copies of a message that came
		for i := range g.deliveries {
			d := &g.deliveries[i]
			out.Checked++
			if i > 0 && g.deliveries[i-1].index == d.index {
				if reason := c.reason(g, facts, &g.deliveries[i-1], d); reason != "" {
					r.Duplicates[reason]++
				} else {
					r.Unexplained++
					p := &g.deliveries[i-1]
					out.violate(c.ofGroup(g, d.index, d.index+1), "%s, %s index %d: lease %d to %s at %d, again lease %d to %s at %d, without a reason", c.messages[d.message].id, c.groupName(g.groupKey), d.index,
						p.lease, c.names.name(p.proc), p.call, d.lease, c.names.name(d.proc), d.call)
				}
			} else {
				first[d.message]++
			}
		}
		for _, n := range first {
			r.Duplicates[ReasonSendRepeated] += n - 1 // judged above
		}
	}
	var notes []string
	for _, reason := range Reasons {
		if n := r.Duplicates[reason]; n > 0 {
			notes = append(notes, fmt.Sprintf("%s %d", reason, n))
		}
	}
	if r.LogCopies > 0 {
		notes = append(notes, fmt.Sprintf("further copies in the log %d", r.LogCopies))
	}
	out.Note = strings.Join(append(notes, fmt.Sprintf("unexplained %d", r.Unexplained)), ", ")
	return out
}

// knownBatches is how many batches of a producer a partition knows at least, so that a repeat of one is not stored again.
const knownBatches = 64

// repeated: the attempts of one call have one number in a partition, which knows what it has. Only where more was stored in between
// than it knows, or what it knew may be damaged, may a call have left two copies there.
func (c *Checker) repeated(m *message, i int32, r *Report, out *CheckResult) {
	places := slices.Clone(m.places)
	slices.SortFunc(places, func(a, b place) int {
		return cmp.Or(cmp.Compare(a.topic, b.topic), cmp.Compare(a.partition, b.partition), cmp.Compare(a.index, b.index))
	})
	near := 1
	for k := 1; k < len(places); k++ {
		p, before := places[k], places[k-1]
		if p.logKey != before.logKey || p.index-before.index >= knownBatches || len(c.logs[p.logKey].lost) > 0 {
			near = 1
			continue
		}
		if near++; near > len(m.attempts) && m.outcome() != Failed {
			r.Unexplained++
			out.violate(c.ofMessage(i), "%s: stored again at %s, after %s: %d calls were made", m.id, c.placeName(p), c.placeName(before), len(m.attempts))
		}
	}
}

// facts of one group and partition, by lease.
type facts struct {
	acks map[uint64][]*ack
	ends map[uint64][]*leaseEnd
}

func (g *groupPartition) facts() facts {
	f := facts{map[uint64][]*ack{}, map[uint64][]*leaseEnd{}}
	for i := range g.acks {
		f.acks[g.acks[i].lease] = append(f.acks[g.acks[i].lease], &g.acks[i])
	}
	for i := range g.ends {
		f.ends[g.ends[i].lease] = append(f.ends[g.ends[i].lease], &g.ends[i])
	}
	return f
}

// reason finds why d came after p, both of one index.
func (c *Checker) reason(g *groupPartition, f facts, p, d *delivery) Reason {
	for _, a := range f.acks[p.lease] {
		if a.proc == p.proc && a.from <= p.index && p.index < a.to && a.call < d.granted && (a.result == Unknown || a.result == "") {
			return ReasonAckUnknown
		}
	}
	for _, e := range f.ends[p.lease] {
		if e.from <= p.index && p.index < e.to && e.call <= d.granted {
			switch {
			case e.proc == 0:
				return ReasonLeaseExpired
			case e.proc == p.proc:
				return ReasonReleased
			}
		}
	}
	if g.resetBetween(p.since, d.granted) {
		return ReasonReset
	}
	if p.deadline != 0 && p.deadline <= d.granted {
		return ReasonLeaseExpired
	}
	for _, t := range c.deaths[p.proc] {
		if p.since <= t && t <= d.granted {
			return ReasonConsumerDied
		}
	}
	if p.epoch != 0 && p.epoch < d.epoch {
		return ReasonBrokerRestarted
	}
	for _, s := range c.restarts {
		if c.hits(s, g.logKey) && p.since <= s.ret && s.call <= d.granted {
			return ReasonBrokerRestarted
		}
	}
	return c.apart(g.logKey, p.lease, d.lease, p.since, d.granted)
}

func (g *groupPartition) resetBetween(from, to int64) bool {
	return slices.ContainsFunc(g.resets, func(o observation) bool { return o.call <= to && o.ret >= from })
}

// indexes is C4.
func (c *Checker) indexes(r *Report) *CheckResult {
	out := &CheckResult{Name: "C4", Title: "indexes", What: "indexes"}
	for _, k := range c.sortedLogs() {
		l := c.logs[k]
		out.Checked += len(l.at)
		for _, p := range l.conflicts {
			out.violate(p.about, "%s", p.text)
		}
		out.Violations += l.conflictN - len(l.conflicts)
		// Increasing in real time: a send that began after another one returned has a higher index.
		indexes := sortedIndexes(l)
		earliest, who := int64(math.MaxInt64), int32(0)
		for i := len(indexes) - 1; i >= 0; i-- {
			n := l.at[indexes[i]]
			m := &c.messages[n]
			if len(m.places) > 1 || m.outcome() != OK {
				continue
			}
			if m.called() > earliest {
				out.violate(c.ofLog(k, indexes[i], indexes[i]+1).or(c.ofMessage(who)), "%s at %s was sent at %d, after %s had returned at %d with a higher index", m.id, c.placeName(place{k, indexes[i]}), m.called(), c.messages[who].id, earliest)
			}
			if t := m.returned(); t < earliest {
				earliest, who = t, n
			}
		}
	}
	// A scan that was cut short, or stands in the history without its end, still shows what it saw.
	all := slices.Clone(c.done)
	for _, s := range c.scans {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b *scan) int {
		return cmp.Or(cmp.Compare(a.call, b.call), c.compareLogs(a.logKey, b.logKey), cmp.Compare(c.names.name(a.proc), c.names.name(b.proc)))
	})
	for _, s := range all {
		for _, p := range s.problems {
			out.violate(p.about, "%s", p.text)
		}
		out.Violations += s.problemsN - len(s.problems)
	}
	// What a complete scan covers and does not hold was no index for anybody.
	for _, s := range c.done {
		l := c.logs[s.logKey]
		if l == nil {
			continue
		}
		for _, g := range c.sortedGroups() {
			if g.logKey != s.logKey {
				continue
			}
			for i := range g.deliveries {
				d := &g.deliveries[i]
				if d.index >= s.to && d.call < s.call {
					out.violate(c.ofGroup(g, d.index, d.index+1), "%s was given to %s at index %d, beyond the end %d of the later scan by %s", c.messages[d.message].id, c.groupName(g.groupKey), d.index, s.to, c.names.name(s.proc))
				}
			}
		}
	}
	c.sameCopies(r, out)
	// Leases: each is of one epoch. (That epochs do not go back is for scans to show: a lease may reach its holder late.)
	for _, g := range c.sortedGroups() {
		of := map[uint64]uint64{}
		some := slices.ContainsFunc(g.deliveries, func(d delivery) bool { return d.epoch != 0 })
		for i := range g.deliveries {
			d := &g.deliveries[i]
			was, ok := of[d.lease]
			switch {
			case d.epoch == 0 && some:
				out.violate(c.ofGroup(g, d.index, d.index+1), "%s: lease %d at %d has no epoch, others have one", c.groupName(g.groupKey), d.lease, d.call)
			case ok && was != d.epoch:
				out.violate(c.ofGroup(g, d.index, d.index+1), "%s: lease %d is of epoch %d, and of epoch %d at %d", c.groupName(g.groupKey), d.lease, was, d.epoch, d.call)
			}
			of[d.lease] = d.epoch
		}
	}
	return out
}

// sameCopies: all copies of a journal have the same records, and what is derived from them is the same.
func (c *Checker) sameCopies(r *Report, out *CheckResult) {
	ranges := slices.Collect(maps.Keys(c.copies))
	slices.SortFunc(ranges, func(a, b copyKey) int {
		return cmp.Or(cmp.Compare(c.names.name(a.brokerGroup), c.names.name(b.brokerGroup)), c.compareLogs(a.logKey, b.logKey),
			cmp.Compare(c.names.name(a.group), c.names.name(b.group)), cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to))
	})
	for _, k := range ranges {
		of := c.copies[k]
		if len(of) > 1 {
			out.Checked += len(of)
			r.Copies += len(of)
		}
		for _, v := range of[1:] {
			if v.hash != of[0].hash {
				about, what := Subject{Op: OpCopy, BrokerGroup: c.names.name(k.brokerGroup), From: k.from, To: k.to}, "records"
				switch {
				case k.group != 0:
					about.Topic, about.Partition, about.Group = c.names.name(k.topic), k.partition, c.names.name(k.group)
					what = c.groupName(k.groupKey) + ","
				case k.topic != 0:
					about.Topic, about.Partition = c.names.name(k.topic), k.partition
					what = "index of " + c.logName(k.logKey) + ","
				}
				out.violate(about, "%s [%d, %d): %s has %s, and %s has %s", what, k.from, k.to, c.names.name(of[0].proc), c.names.name(of[0].hash), c.names.name(v.proc), c.names.name(v.hash))
			}
		}
	}
}

// firstCopyGone says whether readers of a log from start on may have met with a later copy of m first: the first one was trimmed
// before, or damaged.
func (c *Checker) firstCopyGone(m *message, k logKey, start uint64) bool {
	l := c.logs[k]
	if len(l.lost) > 0 && m.copiesMax() > 1 {
		return true
	}
	return slices.ContainsFunc(m.places, func(p place) bool { return p.logKey == k && (p.index < start || l.isLost(p.index)) })
}

func sortedIndexes(l *partitionLog) []uint64 {
	indexes := make([]uint64, 0, len(l.at))
	for i := range l.at {
		indexes = append(indexes, i)
	}
	slices.Sort(indexes)
	return indexes
}

// line is who promised an order: a producer, or a producer's order key.
type line struct{ proc, key uint32 }

// ordered is C5.
func (c *Checker) ordered() *CheckResult {
	out := &CheckResult{Name: "C5", Title: "order", What: "messages in sequence"}
	unknown := 0
	walk := func(where string, k logKey, start uint64, ids []int32) {
		seen := make(map[int32]bool, len(ids))
		last := map[line]int32{}
		for _, i := range ids {
			m := &c.messages[i]
			if seen[i] || !m.sent || m.seq == 0 {
				continue
			}
			seen[i] = true
			if m.outcome() != OK || c.firstCopyGone(m, k, start) { // it may have come at any time after its producer gave up
				unknown++
				continue
			}
			out.Checked++
			lines := []line{{m.proc, 0}}
			if m.key != 0 {
				lines = append(lines, line{m.proc, m.key})
			}
			for _, l := range lines {
				if p, ok := last[l]; ok && c.messages[p].seq >= m.seq {
					what := "producer " + c.names.name(l.proc)
					if l.key != 0 {
						what += ", order key " + c.names.name(l.key)
					}
					out.violate(c.ofMessage(i).or(c.ofMessage(p)), "%s: %s, sequence %d of %s, comes after sequence %d (%s)", where, m.id, m.seq, what, c.messages[p].seq, c.messages[p].id)
					break
				}
			}
			for _, l := range lines {
				if p, ok := last[l]; !ok || c.messages[p].seq < m.seq {
					last[l] = i
				}
			}
		}
	}
	for _, k := range c.sortedLogs() {
		l := c.logs[k]
		indexes := sortedIndexes(l)
		ids := make([]int32, len(indexes))
		for i, at := range indexes {
			ids[i] = l.at[at]
		}
		walk("log of "+c.logName(k), k, 0, ids)
	}
	for _, g := range c.sortedGroups() {
		ds := slices.Clone(g.deliveries)
		slices.SortFunc(ds, byCall)
		ids := make([]int32, len(ds))
		for i := range ds {
			ids[i] = ds[i].message
		}
		walk("first receptions of "+c.groupName(g.groupKey), g.logKey, g.start, ids)
	}
	// An order key stays in one partition, else there is no order to speak of.
	type topicKey struct{ topic, key uint32 }
	home := map[topicKey]place{}
	for i := range c.messages {
		m := &c.messages[i]
		if m.key == 0 || !m.sent {
			continue
		}
		for _, p := range m.places {
			k := topicKey{m.topic, m.key}
			if h, ok := home[k]; !ok {
				home[k] = p
			} else if h.logKey != p.logKey {
				out.violate(c.ofMessage(int32(i)), "%s: order key %s is at %s, and at %s", m.id, c.names.name(m.key), c.placeName(p), c.placeName(h))
			}
		}
	}
	if unknown > 0 {
		out.Note = fmt.Sprintf("%d of unknown outcome left out", unknown)
	}
	return out
}

// ackState is C6.
func (c *Checker) ackState() *CheckResult {
	out := &CheckResult{Name: "C6", Title: "ack state", What: "acks and observed offsets"}
	for _, g := range c.sortedGroups() {
		c.ackRights(g, out)
		c.observations(g, out)
	}
	return out
}

// ackRights: an ack that was ok came from who held the lease; and its messages are not given again.
func (c *Checker) ackRights(g *groupPartition, out *CheckResult) {
	name := c.groupName(g.groupKey)
	for i := range g.acks {
		a := &g.acks[i]
		out.Checked++
		if a.result != OK {
			continue
		}
		at := g.firstDelivery(a.from)
		for index := a.from; index < a.to; index++ {
			var held *delivery
			for ; at < len(g.deliveries) && g.deliveries[at].index == index; at++ {
				d := &g.deliveries[at]
				switch {
				case d.lease == a.lease && d.proc == a.proc && d.member == a.member && d.call <= a.call:
					held = d
				case held == nil || d.lease == a.lease || g.resetBetween(a.call, d.granted):
				case c.apart(g.logKey, a.lease, d.lease, a.ret, d.granted) != "":
				case d.granted < a.call && !g.endedByOther(index, a) && !g.resetBetween(d.since, d.granted):
					out.violate(c.ofGroup(g, index, index+1), "%s index %d: the ack by %s with lease %d was ok at %d, after the message was given with lease %d to %s at %d", name, index,
						c.names.name(a.proc), a.lease, a.call, d.lease, c.names.name(d.proc), d.call)
				case d.granted > a.ret:
					out.violate(c.ofGroup(g, index, index+1), "%s index %d: acked ok by %s with lease %d, returned %d, and given again with lease %d to %s at %d",
						name, index, c.names.name(a.proc), a.lease, a.ret, d.lease, c.names.name(d.proc), d.call)
				}
			}
			if held == nil {
				out.violate(c.ofGroup(g, index, index+1), "%s index %d: the ack of [%d, %d) by %s, member %d, with lease %d was ok at %d, but that lease did not give it the message", name, index,
					a.from, a.to, c.names.name(a.proc), a.member, a.lease, a.ret)
				break
			}
		}
	}
}

// endedByOther says whether an ack of another lease may have ended the message before a returned. Then a, repeated after its
// connection broke, is rightly told that the message has ended: by which ack it cannot be told.
func (g *groupPartition) endedByOther(index uint64, a *ack) bool {
	return slices.ContainsFunc(g.acks, func(o ack) bool {
		return o.lease != a.lease && o.from <= index && index < o.to && o.result != Failed && o.call < a.ret
	})
}

func (g *groupPartition) firstDelivery(index uint64) int {
	i, _ := slices.BinarySearchFunc(g.deliveries, index, func(d delivery, i uint64) int { return cmp.Compare(d.index, i) })
	return i
}

// ackTimes says when an index was surely consumed, and when it was so at the earliest.
type ackTimes struct{ sure, maybe int64 }

// observations: what the broker says is consumed is what was acked.
func (c *Checker) observations(g *groupPartition, out *CheckResult) {
	if len(g.observed) == 0 {
		return
	}
	name := c.groupName(g.groupKey)
	slices.SortFunc(g.observed, func(a, b observation) int { return cmp.Compare(a.call, b.call) })
	// Acks of indexes that were delivered; others are violations already.
	indexes := make([]uint64, 0, len(g.deliveries))
	for _, d := range g.deliveries {
		if n := len(indexes); n == 0 || indexes[n-1] != d.index {
			indexes = append(indexes, d.index)
		}
	}
	times := make([]ackTimes, len(indexes))
	for i := range times {
		times[i] = ackTimes{math.MaxInt64, math.MaxInt64}
	}
	for _, a := range g.acks {
		if a.result == Failed {
			continue
		}
		heard := a.ret
		if a.lease&sideLease != 0 {
			heard = c.heard(g, &a)
		}
		i, _ := slices.BinarySearch(indexes, a.from)
		for ; i < len(indexes) && indexes[i] < a.to; i++ {
			times[i].maybe = min(times[i].maybe, a.call)
			if a.result == OK && !c.unmerged(g.logKey, &a) && !slices.ContainsFunc(g.resets, func(o observation) bool { return o.ret >= a.call }) {
				times[i].sure = min(times[i].sure, heard)
			}
		}
	}
	passed := c.logs[g.logKey]
	// unheard finds an index of [from, to) that nobody can have acked before t.
	unheard := func(from, to uint64, t int64) (uint64, bool) {
		i, _ := slices.BinarySearch(indexes, from)
		for want := from; want < to; want++ {
			given := i < len(indexes) && indexes[i] == want
			if (!given || times[i].maybe > t) && !within(g.gaps, want) && (passed == nil || !passed.isLost(want)) {
				return want, true
			}
			if given {
				i++
			}
		}
		return 0, false
	}
	checkedTo := g.start // below it the last observation was found right; only a later one is asked for more
	var last *observation
	for i := range g.observed {
		o := &g.observed[i]
		out.Checked++
		base := g.start
		for _, s := range g.resets {
			if s.call <= o.ret {
				base, checkedTo = s.index, max(checkedTo, s.index)
				if s.unknown { // to anywhere
					base = math.MaxUint64
				}
			}
		}
		if at, bad := unheard(max(base, checkedTo), o.index, o.ret); bad {
			out.violate(c.ofGroup(g, at, at+1), "%s: ack offset %d at %d, but index %d was not acked", name, o.index, o.call, at)
		}
		checkedTo = max(checkedTo, o.index)
		for _, span := range o.ranges {
			if at, bad := unheard(span[0], span[1], o.ret); bad {
				out.violate(c.ofGroup(g, at, at+1), "%s: [%d, %d) is consumed at %d, but index %d was not acked", name, span[0], span[1], o.call, at)
			}
		}
		k, _ := slices.BinarySearch(indexes, o.index)
		for ; k < len(indexes); k++ {
			if times[k].sure <= o.call && !covered(o, indexes[k]) {
				out.violate(c.ofGroup(g, indexes[k], indexes[k]+1), "%s index %d: acked ok at %d, but not consumed at %d: ack offset %d, ranges %v", name, indexes[k], times[k].sure, o.call, o.index, o.ranges)
			}
		}
		if last != nil && last.ret <= o.call && !g.resetBetween(last.call, o.ret) {
			if back, bad := movedBack(last, o); bad {
				out.violate(c.ofGroup(g, back, back+1), "%s: index %d was consumed at %d and is not at %d: from ack offset %d %v to %d %v", name, back, last.call, o.call, last.index, last.ranges, o.index, o.ranges)
			}
		}
		last = o
	}
}

// covered says whether index, at or above the ack offset, is consumed.
func covered(o *observation, index uint64) bool {
	return slices.ContainsFunc(o.ranges, func(r [2]uint64) bool { return r[0] <= index && index < r[1] })
}

// movedBack finds an index consumed in a and not in b.
func movedBack(a, b *observation) (uint64, bool) {
	if b.index < a.index {
		// All below a's offset must be in b's ranges, which begin above b's offset.
		return b.index, true
	}
	for _, r := range a.ranges {
		at := max(r[0], b.index)
		for _, s := range b.ranges {
			if s[0] <= at && at < s[1] {
				at = s[1]
			}
		}
		if at < r[1] {
			return at, true
		}
	}
	return 0, false
}

// apart says why a message that one lease had given, acked at or given since t, may be given by another, at u: a slave had given the one or the other
// by itself. The later of both times counts.
func (c *Checker) apart(k logKey, one, other uint64, t, u int64) Reason {
	if one&sideLease == 0 && other&sideLease == 0 {
		return ""
	}
	at := max(t, u)
	for _, a := range c.aways {
		switch {
		case at < a.call || a.ret < at || !c.hits(a.outage, k):
		case a.behind && one&sideLease != other&sideLease:
			return ReasonSlaveBehind
		case a.unmerged && one&sideLease != 0:
			return ReasonAckAtSlave
		}
	}
	return ""
}

// unmerged says whether no master may ever have heard of an ack.
func (c *Checker) unmerged(k logKey, a *ack) bool {
	return a.lease&sideLease != 0 && slices.ContainsFunc(c.aways, func(w away) bool {
		return w.unmerged && w.ret == math.MaxInt64 && w.call <= a.ret && c.hits(w.outage, k)
	})
}

// hits says whether an outage may have been one of the brokers that have a partition.
func (c *Checker) hits(o outage, k logKey) bool {
	l := c.logs[k]
	return o.brokerGroup == 0 || l == nil || l.brokerGroup == 0 || o.brokerGroup == l.brokerGroup
}
