package check

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Checker gathers a history, event by event, in compact form. Not safe for concurrent use.
type Checker struct {
	names    interner
	messages []message
	ids      map[string]int32 // id -> place in messages
	logs     map[logKey]*partitionLog
	groups   map[groupKey]*groupPartition
	scans    map[scanKey]*scan
	done     []*scan // scans that are complete
	restarts []outage
	deaths   map[uint32][]int64 // proc -> calls
	aways    []away
	copies   map[copyKey][]copied
	masters  []master
	writes   map[uint32][]registerOp // by register
	usages   map[uint32][]usage      // by process
	drains   []drain
	gaps     []gap // for the reason that they are lost
	events   int
	order    int32
}

type (
	logKey struct {
		topic     uint32
		partition uint16
	}
	groupKey struct {
		group uint32
		logKey
	}
	scanKey struct {
		proc uint32
		logKey
	}
	span    struct{ call, ret int64 }
	copyKey struct {
		brokerGroup uint32
		groupKey    // of what is derived from the journal
		from, to    uint64
	}
	// told is a violation that was seen when its event was added.
	told struct {
		about Subject
		text  string
	}
	// outage of the brokers of a broker group; 0: of any.
	outage struct {
		span
		brokerGroup uint32
	}
	away struct {
		outage
		unmerged, behind bool
	}
	copied struct{ proc, hash uint32 }
	place  struct {
		logKey
		index uint64
	}
	drain struct {
		group, topic uint32
		call         int64
	}
)

// attempt is one send event. ret 0: begun only.
type attempt struct {
	call, ret int64
	result    Result
	unknown   int32
	at        place // when ok
}

type message struct {
	id               string
	topic, key, proc uint32
	hash             uint32
	seq              uint64
	sent             bool // else only ever read
	attempts         []attempt
	places           []place // where it was seen, each once
	firstRead        int64   // call of the earliest event that read it
	firstReader      reader
	differs          string // the first reader that saw other content
}

type reader struct {
	op          Op
	proc, group uint32
}

// gap is what somebody was told will never come.
type gap struct {
	logKey
	who      string
	from, to uint64
	call     int64
}

// outcome is ok if any attempt was ok, else unknown if any was, else failed.
func (m *message) outcome() Result {
	out := Failed
	for _, a := range m.attempts {
		switch a.result {
		case OK:
			return OK
		case Unknown, "":
			out = Unknown
		}
	}
	return out
}

// copiesMax is how many copies the attempts may have left in the log.
func (m *message) copiesMax() int {
	n := 0
	for _, a := range m.attempts {
		switch {
		case a.unknown < 0:
			return math.MaxInt
		case a.result == OK:
			n += 1 + int(a.unknown)
		case a.unknown > 0:
			n += int(a.unknown)
		case a.result != Failed:
			n++
		}
	}
	return n
}

// called is when the message was first sent; returned when the last ok came back.
func (m *message) called() int64 {
	t := int64(math.MaxInt64)
	for _, a := range m.attempts {
		t = min(t, a.call)
	}
	return t
}

func (m *message) returned() int64 {
	t := int64(math.MaxInt64)
	for _, a := range m.attempts {
		if a.result == OK {
			t = min(t, a.ret)
		}
	}
	return t
}

// partitionLog is what all readers together say about one partition.
type partitionLog struct {
	at     map[uint64]int32  // index -> message
	epochs map[uint64]uint64 // index -> epoch of its record, as scans say
	// brokerGroup whose epochs they are.
	brokerGroup uint32
	conflicts   []told
	conflictN   int
	lost        [][2]uint64 // [from, to) that were damaged
}

func (l *partitionLog) isLost(i uint64) bool { return within(l.lost, i) }

func within(ranges [][2]uint64, i uint64) bool {
	return slices.ContainsFunc(ranges, func(r [2]uint64) bool { return r[0] <= i && i < r[1] })
}

type scan struct {
	scanKey
	call      int64 // of its first event
	from, to  uint64
	next      uint64 // index expected; meaningful once started
	started   bool
	epoch     uint64
	seen      map[uint64]int32
	n         int
	problems  []told
	problemsN int
}

// delivery is one message given to a group.
type delivery struct {
	message      int32
	proc, member uint32
	order        int32
	index, lease uint64
	epoch        uint64
	call         int64
	deadline     int64
	// since <= when the broker gave its lease <= granted, which is the call of its lease's first delivery.
	since, granted int64
	at             int64 // place of its lease among those of its epoch: see orderLeases
}

// Deliveries stand in the order of their leases, not of their calls: who lost its lease without knowing (the broker
// restarted, its connection was lost, or it was slow) may go on with what it was given, later than the next holder. It may
// even begin later: the answer with the lease was on its way, or its handler was late. So epochs come first, then leases.
func byLease(a, b delivery) int {
	order := 0
	switch {
	case a.epoch != 0 && b.epoch != 0:
		order = cmp.Or(cmp.Compare(a.epoch, b.epoch), cmp.Compare(a.at, b.at), cmp.Compare(a.lease, b.lease))
	case a.deadline != 0 && b.deadline != 0:
		order = cmp.Compare(a.deadline, b.deadline)
	}
	return cmp.Or(order, cmp.Compare(a.granted, b.granted), cmp.Compare(a.call, b.call), cmp.Compare(a.order, b.order))
}

// orderLeases: those of a master ascend as it gives them. A slave's begin anew each time that it serves, in the epoch of its master, and are no
// lower than those: only time orders them among others.
func (g *groupPartition) orderLeases() {
	var masters []*delivery
	for i := range g.deliveries {
		d := &g.deliveries[i]
		if d.at = d.granted; d.lease&sideLease == 0 && d.epoch != 0 {
			masters = append(masters, d)
		}
	}
	slices.SortFunc(masters, func(a, b *delivery) int { return cmp.Or(cmp.Compare(a.epoch, b.epoch), cmp.Compare(a.lease, b.lease)) })
	for i, d := range masters {
		if i > 0 && masters[i-1].epoch == d.epoch { // who notes it late does not make it a later one
			d.at = max(d.at, masters[i-1].at)
		}
	}
}

func byIndex(a, b delivery) int {
	return cmp.Or(cmp.Compare(a.index, b.index), byLease(a, b))
}

func byCall(a, b delivery) int {
	return cmp.Or(cmp.Compare(a.call, b.call), cmp.Compare(a.order, b.order))
}

type ack struct {
	from, to     uint64
	lease        uint64
	proc, member uint32
	call, ret    int64
	result       Result
}

type observation struct {
	index     uint64
	ranges    [][2]uint64
	call, ret int64
	unknown   bool // a reset that may not have been
}

type leaseEnd struct {
	from, to uint64
	lease    uint64
	proc     uint32 // 0: the broker
	call     int64
}

type groupPartition struct {
	groupKey
	deliveries []delivery
	acks       []ack
	ends       []leaseEnd // released and expired
	observed   []observation
	resets     []observation
	gaps       [][2]uint64 // told to its members, or skipped for them
	start      uint64
	parallel   bool // any number of leases at once
	balances   []balance
}

// interner numbers strings, from 1; 0 is the empty one.
type interner struct {
	numbers map[string]uint32
	names   []string
}

func (n *interner) number(s string) uint32 {
	if s == "" {
		return 0
	}
	if i, ok := n.numbers[s]; ok {
		return i
	}
	i := uint32(len(n.names))
	n.names = append(n.names, s)
	n.numbers[s] = i
	return i
}

func (n *interner) name(i uint32) string { return n.names[i] }

// NewChecker returns an empty one.
func NewChecker() *Checker {
	return &Checker{
		names:  interner{numbers: map[string]uint32{}, names: []string{""}},
		ids:    map[string]int32{},
		logs:   map[logKey]*partitionLog{},
		groups: map[groupKey]*groupPartition{},
		scans:  map[scanKey]*scan{},
		deaths: map[uint32][]int64{},
		copies: map[copyKey][]copied{},
		writes: map[uint32][]registerOp{},
		usages: map[uint32][]usage{},
	}
}

func getOrMake[K comparable, V any](m map[K]*V, k K, make func() *V) *V {
	v, ok := m[k]
	if !ok {
		v = make()
		m[k] = v
	}
	return v
}

func (c *Checker) message(id string) (int32, *message) {
	i, ok := c.ids[id]
	if !ok {
		i = int32(len(c.messages))
		c.messages = append(c.messages, message{id: id, firstRead: math.MaxInt64})
		c.ids[id] = i
	}
	return i, &c.messages[i]
}

func (c *Checker) log(k logKey) *partitionLog {
	return getOrMake(c.logs, k, func() *partitionLog { return &partitionLog{at: map[uint64]int32{}, epochs: map[uint64]uint64{}} })
}

func (c *Checker) group(k groupKey) *groupPartition {
	return getOrMake(c.groups, k, func() *groupPartition { return &groupPartition{groupKey: k} })
}

// Add takes one event. An error means that the event is not valid; the checker goes on without it.
func (c *Checker) Add(e Event) error {
	if err := e.Validate(); err != nil {
		return err
	}
	c.events++
	c.order++
	proc, topic := c.names.number(e.Proc), c.names.number(e.Topic)
	lk := logKey{topic, e.Partition}
	gk := groupKey{c.names.number(e.Group), lk}
	switch e.Op {
	case OpHistory:
		c.events--
	case OpSend:
		c.addSend(&e, proc, lk)
	case OpRecv:
		i := c.addRead(&e, reader{OpRecv, proc, gk.group}, lk)
		g := c.group(gk)
		g.deliveries = append(g.deliveries, delivery{
			message: i, proc: proc, member: e.Member, order: c.order, index: e.Index, lease: e.Lease, epoch: e.Epoch,
			call: e.Call, deadline: e.Deadline, since: e.Granted,
		})
	case OpAck:
		g := c.group(gk)
		a := ack{from: e.Index, to: e.end(), lease: e.Lease, proc: proc, member: e.Member, call: e.Call, ret: e.Return, result: e.Result}
		// An ack that was begun and then returned is two events of one call.
		for i := len(g.acks) - 1; i >= 0 && i >= len(g.acks)-64; i-- {
			p := &g.acks[i]
			if p.result == "" && p.lease == a.lease && p.proc == a.proc && p.from == a.from && p.call == a.call {
				*p = a
				return nil
			}
		}
		g.acks = append(g.acks, a)
	case OpRelease, OpExpire:
		g := c.group(gk)
		end := leaseEnd{from: e.Index, to: e.end(), lease: e.Lease, proc: proc, call: e.Call}
		if e.Op == OpExpire {
			end.proc = 0
		}
		g.ends = append(g.ends, end)
	case OpDie:
		c.deaths[proc] = append(c.deaths[proc], e.Call)
	case OpRestart:
		c.restarts = append(c.restarts, outage{span{e.Call, e.Return}, c.names.number(e.BrokerGroup)})
	case OpAway:
		a := away{outage{span{e.Call, e.Return}, c.names.number(e.BrokerGroup)}, strings.Contains(e.Reason, AwayUnmerged), strings.Contains(e.Reason, AwayBehind)}
		if a.ret == 0 {
			a.ret = math.MaxInt64
		}
		c.aways = append(c.aways, a)
	case OpCopy:
		k := copyKey{c.names.number(e.BrokerGroup), gk, e.Index, e.To}
		c.copies[k] = append(c.copies[k], copied{proc, c.names.number(e.Hash)})
	case OpLost:
		l := c.log(lk)
		l.lost = append(l.lost, [2]uint64{e.Index, e.To})
	case OpGap:
		who := reader{OpRecv, proc, gk.group}
		if e.Group == "" {
			who.op = OpScan
			c.addScan(&e, scanKey{proc, lk})
		} else {
			g := c.group(gk)
			g.gaps = append(g.gaps, [2]uint64{e.Index, e.To})
		}
		if e.Reason == ReasonDamaged {
			c.gaps = append(c.gaps, gap{lk, c.readerName(who), e.Index, e.To, e.Call})
		}
	case OpSkip:
		g := c.group(gk)
		g.gaps = append(g.gaps, [2]uint64{e.Index, e.To})
	case OpBalance:
		g := c.group(gk)
		g.balances = append(g.balances, balance{e.Index, e.To, e.Pending, e.Call, max(e.Call, e.Return)})
	case OpMaster:
		c.masters = append(c.masters, master{proc: proc, brokerGroup: c.names.number(e.BrokerGroup), epoch: e.Epoch, span: span{e.Call, e.Return}})
	case OpWrite, OpRead:
		c.addRegister(&e)
	case OpUsage:
		c.usages[proc] = append(c.usages[proc], usage{*e.Usage, e.Call})
	case OpScan, OpScanned:
		c.addScan(&e, scanKey{proc, lk})
	case OpOffset:
		g := c.group(gk)
		g.observed = append(g.observed, observation{index: e.Index, ranges: e.Ranges, call: e.Call, ret: max(e.Call, e.Return)})
	case OpReset:
		g := c.group(gk)
		g.resets = append(g.resets, observation{index: e.Index, call: e.Call, ret: max(e.Call, e.Return), unknown: e.Result == Unknown})
	case OpSubscribe:
		g := c.group(gk)
		g.start, g.parallel = e.Index, e.Reason == Parallel
	case OpDrain:
		c.drains = append(c.drains, drain{gk.group, topic, e.Call})
	}
	return nil
}

func (c *Checker) addSend(e *Event, proc uint32, lk logKey) {
	i, m := c.message(e.ID)
	if !m.sent {
		if m.topic != 0 { // read before, in the order of files
			if why := c.contentDiffers(m, e, lk.topic); why != "" && m.differs == "" {
				m.differs = fmt.Sprintf("%s read %s", c.readerName(m.firstReader), why)
			}
		}
		m.sent = true
		m.topic, m.key, m.hash, m.seq, m.proc = lk.topic, c.names.number(e.Key), c.names.number(e.Hash), e.Seq, proc
	} else if why := c.contentDiffers(m, e, lk.topic); why != "" && m.differs == "" {
		m.differs = "it was sent twice with different content: " + why
	}
	a := attempt{call: e.Call, ret: e.Return, result: e.Result, unknown: int32(e.Unknown)}
	if e.Result == OK {
		a.at = place{lk, e.Index}
		m.places = addPlace(m.places, a.at)
		c.place(a.at, i, "the receipt of "+e.Proc)
	}
	for k := range m.attempts {
		if p := &m.attempts[k]; p.call == a.call {
			if p.result == "" {
				*p = a
			}
			if e.Result == "" || p.result == a.result {
				return
			}
		}
	}
	m.attempts = append(m.attempts, a)
}

// contentDiffers compares what e says of a message with what is known.
func (c *Checker) contentDiffers(m *message, e *Event, topic uint32) string {
	var name, got, want string
	switch {
	case m.topic != topic:
		name, got, want = "topic", e.Topic, c.names.name(m.topic)
	case m.hash != c.names.number(e.Hash):
		name, got, want = "hash", e.Hash, c.names.name(m.hash)
	case m.key != c.names.number(e.Key):
		name, got, want = "key", e.Key, c.names.name(m.key)
	case m.seq != e.Seq:
		name, got, want = "sequence", fmt.Sprint(e.Seq), fmt.Sprint(m.seq)
	default:
		return ""
	}
	if e.Op == OpSend && !m.sent {
		got, want = want, got
	}
	return fmt.Sprintf("%s %q instead of %q", name, got, want)
}

func (c *Checker) addRead(e *Event, by reader, lk logKey) int32 {
	i, m := c.message(e.ID)
	if m.topic == 0 {
		m.topic, m.key, m.hash, m.seq = lk.topic, c.names.number(e.Key), c.names.number(e.Hash), e.Seq
		m.firstReader = by
	} else if why := c.contentDiffers(m, e, lk.topic); why != "" && m.differs == "" {
		m.differs = fmt.Sprintf("%s read %s", c.readerName(by), why)
	}
	if e.Call < m.firstRead {
		m.firstRead, m.firstReader = e.Call, by
	}
	at := place{lk, e.Index}
	m.places = addPlace(m.places, at)
	c.place(at, i, c.readerName(by))
	return i
}

func addPlace(places []place, p place) []place {
	if slices.Contains(places, p) {
		return places
	}
	return append(places, p)
}

// place holds that index is message i for whoever reads it.
func (c *Checker) place(p place, i int32, who string) {
	l := c.log(p.logKey)
	was, ok := l.at[p.index]
	if !ok {
		l.at[p.index] = i
	} else if was != i {
		l.conflictN++
		if len(l.conflicts) < offendersMax {
			l.conflicts = append(l.conflicts, told{c.ofLog(p.logKey, p.index, p.index+1),
				fmt.Sprintf("%s is %s for %s, and %s for others", c.placeName(p), c.messages[i].id, who, c.messages[was].id)})
		}
	}
}

func (c *Checker) addScan(e *Event, k scanKey) {
	s := getOrMake(c.scans, k, func() *scan { return &scan{scanKey: k, call: e.Call, seen: map[uint64]int32{}} })
	problem := func(format string, args ...any) {
		s.problemsN++
		if len(s.problems) < offendersMax {
			about := c.ofLog(k.logKey, e.Index, e.Index+1)
			about.Proc = e.Proc
			s.problems = append(s.problems, told{about, fmt.Sprintf("scan of %s by %s: ", c.logName(k.logKey), c.names.name(k.proc)) + fmt.Sprintf(format, args...)})
		}
	}
	s.call = min(s.call, e.Call)
	if e.Op == OpGap {
		switch {
		case !s.started:
			s.started, s.from = true, e.Index
		case e.Index != s.next:
			problem("a gap at index %d follows %d", e.Index, s.next-1)
		}
		s.next = e.To
		return
	}
	if e.Op == OpScan {
		i := c.addRead(e, reader{OpScan, k.proc, 0}, k.logKey)
		switch {
		case !s.started:
			s.started, s.from = true, e.Index
		case e.Index != s.next:
			problem("index %d follows %d", e.Index, s.next-1)
		}
		if e.Epoch < s.epoch {
			problem("epoch %d at index %d, after epoch %d", e.Epoch, e.Index, s.epoch)
		}
		if l := c.log(k.logKey); e.Epoch != 0 {
			l.brokerGroup = c.names.number(e.BrokerGroup)
			if was, ok := l.epochs[e.Index]; !ok {
				l.epochs[e.Index] = e.Epoch
			} else if was != e.Epoch {
				problem("index %d has epoch %d, and %d in another scan", e.Index, e.Epoch, was)
			}
		}
		s.next, s.epoch = e.Index+1, max(s.epoch, e.Epoch)
		s.seen[e.Index] = i
		s.n++
		return
	}
	// A scan says [Index, To); To is the end even where it is 0.
	switch {
	case s.started && s.from != e.Index:
		problem("begins at index %d, not at the first one, %d", s.from, e.Index)
	case s.started && s.next != e.To:
		problem("stops at index %d, before the end %d", s.next, e.To)
	case !s.started && e.To > e.Index:
		problem("finds nothing of [%d, %d)", e.Index, e.To)
	}
	s.from, s.to = e.Index, e.To
	c.done = append(c.done, s)
	delete(c.scans, k)
}

func (c *Checker) logName(k logKey) string {
	return fmt.Sprintf("%s/%d", c.names.name(k.topic), k.partition)
}

func (c *Checker) placeName(p place) string {
	return fmt.Sprintf("%s index %d", c.logName(p.logKey), p.index)
}

func (c *Checker) groupName(k groupKey) string {
	return fmt.Sprintf("group %s at %s", c.names.name(k.group), c.logName(k.logKey))
}

func (c *Checker) readerName(r reader) string {
	if r.op == OpRecv {
		return fmt.Sprintf("%s of group %s", c.names.name(r.proc), c.names.name(r.group))
	}
	return fmt.Sprintf("the scan by %s", c.names.name(r.proc))
}

// sortedKeys makes reports the same for the same history.
func (c *Checker) sortedGroups() []*groupPartition {
	gs := make([]*groupPartition, 0, len(c.groups))
	for _, g := range c.groups {
		gs = append(gs, g)
	}
	slices.SortFunc(gs, func(a, b *groupPartition) int {
		return cmp.Or(cmp.Compare(c.names.name(a.group), c.names.name(b.group)), c.compareLogs(a.logKey, b.logKey))
	})
	return gs
}

func (c *Checker) sortedLogs() []logKey {
	ks := make([]logKey, 0, len(c.logs))
	for k := range c.logs {
		ks = append(ks, k)
	}
	slices.SortFunc(ks, c.compareLogs)
	return ks
}

func (c *Checker) compareLogs(a, b logKey) int {
	return cmp.Or(cmp.Compare(c.names.name(a.topic), c.names.name(b.topic)), cmp.Compare(a.partition, b.partition))
}
