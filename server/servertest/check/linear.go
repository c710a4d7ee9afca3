package check

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

// What is decided by search is bounded: a longer history of one key, or one with more calls that never returned, is left out and counted;
// C6 looks at acks and offsets of any number, in another way.
const (
	linearMost = 3000
	openMost   = 16
	searchMost = 2 * time.Second // for one key
)

// linear is C10: for each register, and for where each group stands, there is one order of all calls, each within its time, that
// explains what they found; and a group that is not parallel has one lease at a time.
func (c *Checker) linear() *CheckResult {
	out := &CheckResult{Name: "C10", Title: "linearizable", What: "calls and leases"}
	left := 0
	registers := make([]uint32, 0, len(c.writes))
	for k := range c.writes {
		registers = append(registers, k)
	}
	slices.SortFunc(registers, func(a, b uint32) int { return cmp.Compare(c.names.name(a), c.names.name(b)) })
	for _, k := range registers {
		ops, ok := registerOps(c.writes[k])
		if !ok {
			left++
			continue
		}
		out.Checked += len(ops)
		switch bad, result := search(registerModel, ops); result {
		case porcupine.Unknown:
			left++
		case porcupine.Illegal:
			op := bad.Input.(registerOp)
			out.violate(Subject{Key: c.names.name(k)}, "register %s: what the %s by %s found at %d, value %s, version %d, has no place among the others", c.names.name(k), op.what(),
				c.names.name(op.proc), op.call, c.names.name(op.hash), op.version)
		}
	}
	for _, g := range c.sortedGroups() {
		if ops, ok := c.offsetOps(g); !ok {
			left++
		} else if len(ops) > 0 {
			out.Checked += len(ops)
			switch bad, result := search(offsetModel(g.start), ops); result {
			case porcupine.Unknown:
				left++
			case porcupine.Illegal:
				op := bad.Input.(offsetOp)
				out.violate(c.ofGroup(g, op.from, op.to).with(OpOffset), "%s: ack offset %d, ranges %v at %d has no place among the acks and the other readings", c.groupName(g.groupKey),
					op.from, op.ranges, bad.Call)
			}
		}
		c.oneLease(g, out)
	}
	if left > 0 {
		out.note("%d keys left out, too large for a search", left)
	}
	return out
}

// search finds out whether ops are linearizable, and if not, the call that is the first one not to fit those that had returned before.
func search(m porcupine.Model, ops []porcupine.Operation) (porcupine.Operation, porcupine.CheckResult) {
	slices.SortStableFunc(ops, func(a, b porcupine.Operation) int { return cmp.Compare(a.Return, b.Return) })
	upTo := func(n int) porcupine.CheckResult { // the first n+1 have returned, and others are under way
		some := slices.Clone(ops[:n+1])
		for _, o := range ops[n+1:] {
			if o.Call < ops[n].Return && o.Output == nil { // a read that has not returned says nothing
				o.Return = math.MaxInt64
				some = append(some, o)
			}
		}
		return porcupine.CheckOperationsTimeout(m, some, searchMost)
	}
	result := porcupine.CheckOperationsTimeout(m, ops, searchMost)
	if result != porcupine.Illegal {
		return porcupine.Operation{}, result
	}
	n := sort.Search(len(ops)-1, func(n int) bool { return upTo(n) == porcupine.Illegal })
	return ops[n], result
}

// registerOp is a write or a read.
type registerOp struct {
	read      bool
	proc      uint32
	hash      uint32
	version   uint64
	expect    uint64 // of a write: of what it changes; 0: of anything
	call, ret int64
	result    Result
}

func (o registerOp) what() string {
	if o.read {
		return "read"
	}
	return "write"
}

func (c *Checker) addRegister(e *Event) {
	k := c.names.number(e.Key)
	o := registerOp{e.Op == OpRead, c.names.number(e.Proc), c.names.number(e.Hash), e.Version, e.Expect, e.Call, e.Return, e.Result}
	for i, was := range c.writes[k] { // begun, and then returned
		if !was.read && !o.read && was.result == "" && was.proc == o.proc && was.call == o.call {
			c.writes[k][i] = o
			return
		}
	}
	c.writes[k] = append(c.writes[k], o)
}

func registerOps(all []registerOp) (ops []porcupine.Operation, ok bool) {
	open, written := 0, false
	for _, o := range all {
		op := porcupine.Operation{Input: o, Call: o.call, Return: o.ret}
		switch {
		case o.read:
			op.Output = true
		case o.result == Failed:
			continue
		case o.result != OK:
			open++
			op.Return = math.MaxInt64
		}
		written = written || !o.read
		ops = append(ops, op)
	}
	if !written {
		ops = nil
	}
	return ops, len(ops) <= linearMost && open <= openMost
}

type registerState struct {
	hash    uint32
	version uint64 // exact, or not lower
	exact   bool
}

var registerModel = porcupine.Model{
	Init: func() any { return registerState{} },
	Step: func(state, input, _ any) (bool, any) {
		s, o := state.(registerState), input.(registerOp)
		switch {
		case o.read:
			fits := o.hash == s.hash && (o.version == 0 || o.version == s.version || !s.exact && o.version > s.version)
			if o.version != 0 {
				s.version, s.exact = o.version, true
			}
			return fits, s
		case o.expect != 0 && o.expect != s.version && (s.exact || o.expect < s.version):
			return o.result != OK, s // one of unknown outcome has changed nothing then
		case o.version != 0:
			return o.version > s.version, registerState{o.hash, o.version, true}
		}
		return true, registerState{o.hash, max(s.version, o.expect) + 1, false}
	},
}

// offsetOp is an ack of [from, to), a move to from, or an observation that everything below from and in ranges is consumed.
type offsetOp struct {
	op       Op
	from, to uint64
	ranges   [][2]uint64
}

// offsetOps are the calls about where a group stands. There are none where nobody looked. One that is told of gaps, or may have been moved without
// a word, is left out. An ack that a slave took by itself may reach the master at any time until the slave is away no more; it never does if the
// group was moved meanwhile.
func (c *Checker) offsetOps(g *groupPartition) (ops []porcupine.Operation, ok bool) {
	if len(g.observed) == 0 {
		return nil, true
	}
	if l := c.logs[g.logKey]; len(g.gaps) > 0 || l != nil && len(l.lost) > 0 || len(g.acks)+len(g.observed) > linearMost {
		return nil, false
	}
	open := 0
	for _, a := range g.acks {
		op := porcupine.Operation{Input: offsetOp{OpAck, a.from, a.to, nil}, Call: a.call, Return: a.ret}
		switch {
		case a.result == Failed:
			continue
		case a.result != OK:
			open++
			op.Return = math.MaxInt64
		case a.lease&sideLease != 0:
			if op.Return = c.heard(g, &a); op.Return == math.MaxInt64 {
				open++
			}
		}
		ops = append(ops, op)
	}
	for _, r := range g.resets {
		op := porcupine.Operation{Input: offsetOp{OpReset, r.index, 0, nil}, Call: r.call, Return: r.ret}
		if r.unknown {
			open++
			op.Input, op.Return = offsetOp{op: moved}, math.MaxInt64
		}
		ops = append(ops, op)
	}
	for _, o := range g.observed {
		ops = append(ops, porcupine.Operation{Input: offsetOp{OpOffset, o.index, o.index + 1, o.ranges}, Output: true, Call: o.call, Return: o.ret})
	}
	return ops, open <= openMost
}

// heard is when the master had an ack that a slave took, at the latest: when its broker group was well again, or at once where no outage is told of.
// math.MaxInt64: maybe never, since the group was moved meanwhile.
func (c *Checker) heard(g *groupPartition, a *ack) int64 {
	var ill *outage // the first to end
	during := func(o outage) {
		if c.hits(o, g.logKey) && o.call <= a.ret && a.call <= o.ret && (ill == nil || o.ret < ill.ret) {
			ill = &o
		}
	}
	for _, s := range c.restarts {
		during(s)
	}
	for _, w := range c.aways {
		during(w.outage)
	}
	switch {
	case ill == nil:
		return a.ret
	case g.resetBetween(ill.call, ill.ret):
		return math.MaxInt64
	}
	return max(ill.ret, a.ret)
}

// moved is the op of a move to anywhere.
const moved Op = "moved"

type offsetState struct {
	any    bool // it was moved, and nobody has looked since
	offset uint64
	ranges [][2]uint64 // above it, ascending, apart
}

func offsetModel(start uint64) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return offsetState{offset: start} },
		Step: func(state, input, _ any) (bool, any) {
			s, o := state.(offsetState), input.(offsetOp)
			switch {
			case o.op == moved:
				return true, offsetState{any: true}
			case o.op == OpReset:
				return true, offsetState{offset: o.from}
			case s.any && o.op == OpAck:
				return true, s
			case s.any:
				return true, offsetState{offset: o.from, ranges: o.ranges}
			case o.op == OpAck:
				return true, s.acked(o.from, o.to)
			}
			return s.offset == o.from && slices.Equal(s.ranges, o.ranges), s
		},
		Equal: func(a, b any) bool {
			s, t := a.(offsetState), b.(offsetState)
			return s.any == t.any && s.offset == t.offset && slices.Equal(s.ranges, t.ranges)
		},
	}
}

// acked is the state after an ack of [from, to). The ranges of s are not changed.
func (s offsetState) acked(from, to uint64) offsetState {
	if to <= s.offset {
		return s
	}
	from = max(from, s.offset)
	var ranges [][2]uint64
	for i, r := range s.ranges {
		if r[1] < from {
			ranges = append(ranges, r)
			continue
		}
		if to < r[0] {
			ranges = append(append(ranges, [2]uint64{from, to}), s.ranges[i:]...)
			from = to
			break
		}
		from, to = min(from, r[0]), max(to, r[1])
	}
	if from < to {
		ranges = append(ranges, [2]uint64{from, to})
	}
	if ranges[0][0] == s.offset {
		return offsetState{offset: ranges[0][1], ranges: ranges[1:]}
	}
	return offsetState{offset: s.offset, ranges: ranges}
}

// oneLease needs no search: the leases of an epoch ascend, so their order is known, and each of them is given when all before it may have
// ended.
func (c *Checker) oneLease(g *groupPartition, out *CheckResult) {
	if g.parallel {
		return
	}
	var longest *lease // of this epoch
	for _, l := range c.leases(g) {
		if l.epoch == 0 || l.lease&sideLease != 0 {
			continue
		}
		out.Checked++
		if longest == nil || longest.epoch != l.epoch {
			longest = l
			continue
		}
		if longest.ended > l.granted {
			out.violate(c.ofGroup(g, longest.indexes[0], l.indexes[len(l.indexes)-1]+1), "%s: lease %d was given to %s by %d, while lease %d was with %s from %d until %d or later", c.groupName(g.groupKey),
				l.lease, c.names.name(l.proc), l.granted, longest.lease, c.names.name(longest.proc), longest.granted, longest.ended)
		}
		if l.ended > longest.ended {
			longest = l
		}
	}
}
