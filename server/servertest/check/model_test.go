package check

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
)

// The model is a small broker with the rules of the real one, run by producers and consumers one step at a time on a
// seeded schedule with crashes: one journal for messages and acks, answered after its sync; segments whose directory
// entries must be synced; state rebuilt from the journal; exclusive leases in memory. It is small enough to be believed,
// and each planted bug (a rule of it left out) is one that a broker can really have. It yields the history that
// clients of such a broker would have written.

type bug string

const (
	noBug               bug = ""
	ackBeforeSync       bug = "ack before sync"
	directoryNotSynced  bug = "directory not synced"
	ackOverHole         bug = "ack over a hole"
	reusedIndex         bug = "reused index"
	pollSkip            bug = "poll begins at what woke it"
	offsetsNotPersisted bug = "offsets not persisted"
	failedButStored     bug = "failed, but stored"
	leaseTwice          bug = "range leased twice"
	lateAck             bug = "ack of an expired lease taken"
	givenBackwards      bug = "lease given backwards"
	noChecksum          bug = "damaged tail kept"
	storedTwice         bug = "batch stored twice"
	repeatStored        bug = "repeat not known after a crash"
	endBeforeSync       bug = "ack answered before its sync"
	readsUncommitted    bug = "reads what is not committed"
	pendingForgotten    bug = "what came back is not counted as pending"
	epochLate           bug = "writes in the epoch of the life before"
	settingsStale       bug = "settings read from a cache"
	settingsLost        bug = "settings not in the journal"
	deadMembersKept     bug = "members that died are kept"
	copyDiffers         bug = "copy with another record"
)

const (
	modelTopic      = "orders"
	modelPartitions = 3
	segmentRecords  = 16
	leaseTime       = int64(5e9)
	step            = int64(1e6)
)

type modelRecord struct {
	message   bool   // else an ack
	setting   uint64 // not 0: sets the topic's settings to this version
	partition int
	index     uint64
	sent      Event // whose message
	epoch     uint64
	group     string
	from, to  uint64
}

type segment struct {
	records []modelRecord
	synced  int  // records that are on disk
	entry   bool // its directory entry is on disk
}

type modelGroup struct {
	offset   uint64
	consumed map[uint64]bool
	lease    *modelLease
	expired  map[uint64]*modelLease // ended by time: kept to plant lateAck
}

type modelLease struct {
	number    uint64
	member    *consumer
	partition int
	from, to  uint64
	until     int64
}

type waiter struct {
	answer func(ok, unknown bool, r modelRecord)
	record modelRecord
}

type model struct {
	bug      bug
	rng      *rand.Rand
	now      int64
	events   []Event
	segments []*segment
	logs     [modelPartitions][]modelRecord // what the journal holds, by partition
	ends     [modelPartitions]uint64        // committed
	groups   map[string]*[modelPartitions]*modelGroup
	waiting  []waiter
	epoch    uint64
	leases   uint64
	ids      int
	woken    [modelPartitions]uint64 // pollSkip: where the last commit began
	settings [2]uint64               // the version in force, and the one before
	versions uint64                  // given to writes of settings
	deaths   int

	producers []*producer
	consumers []*consumer
	calm      bool // no more faults
}

type producer struct {
	proc    string
	seq     uint64
	busy    bool
	current Event
	retry   bool
}

type consumer struct {
	group     string
	name      string
	lives     int
	member    uint32
	lease     *modelLease
	epoch     uint64
	given     []modelRecord // of the lease, not yet handled
	handled   []modelRecord // received, not yet acked
	acking    bool
	stuckTo   int64 // slow, until then
	fetchMode bool  // takes all at once and acks in any order
}

func (c *consumer) proc() string { return fmt.Sprintf("%s-%d", c.name, c.lives) }

// runModel runs steps, then calms down, drains, scans and returns the history.
func runModel(seed uint64, b bug, steps int) []Event {
	m := &model{bug: b, rng: rand.New(rand.NewPCG(seed, 1)), now: 1e9, epoch: 1, groups: map[string]*[modelPartitions]*modelGroup{}}
	for _, g := range []string{"pay", "ship"} {
		ps := &[modelPartitions]*modelGroup{}
		for i := range ps {
			ps[i] = newModelGroup()
		}
		m.groups[g] = ps
	}
	m.roll()
	m.segments[0].entry = true
	for i := range 4 {
		m.producers = append(m.producers, &producer{proc: fmt.Sprintf("producer-%d", i)})
	}
	for i, g := range []string{"pay", "pay", "ship", "ship"} {
		m.consumers = append(m.consumers, &consumer{group: g, name: fmt.Sprintf("%s-%d", g, i), member: uint32(i), fetchMode: g == "ship"})
	}
	m.usage()
	m.serves()
	for range steps {
		m.step()
	}
	m.calm = true
	for _, g := range []string{"pay", "ship"} {
		m.observe(g)
		m.balance(g)
	}
	// A broker with a bug may never come to rest.
	for idle, all := 0, 0; idle < 400 && all < 4*steps+4000; idle, all = idle+1, all+1 {
		n := len(m.events)
		m.now += 50 * step // leases of the dead run out
		m.step()
		if slices.ContainsFunc(m.events[n:], func(e Event) bool { return e.Op != OpOffset }) {
			idle = 0
		}
	}
	for _, g := range []string{"pay", "ship"} {
		m.observe(g)
		m.event(Event{Op: OpDrain, Topic: modelTopic, Group: g, Call: m.tick()})
		m.balance(g)
	}
	m.serves()
	m.scan()
	m.copies()
	m.usage()
	return m.events
}

// serves says who is the master.
func (m *model) serves() {
	at := m.now
	m.event(Event{Op: OpMaster, Proc: "broker", Epoch: m.epoch, Call: at, Return: m.tick()})
}

func (m *model) usage() {
	u := Usage{Goroutines: 20, Open: 9, Files: 3, RSS: 30 << 20}
	if m.planted(deadMembersKept) {
		u.Goroutines += m.deaths
	}
	m.event(Event{Op: OpUsage, Proc: "broker", Usage: &u, Call: m.tick()})
}

// balance is what an administrator is told of a group.
func (m *model) balance(group string) {
	for p, g := range m.groups[group] {
		n := uint64(0)
		for i := g.offset; i < m.ends[p]; i++ {
			if !g.consumed[i] {
				n++
			}
		}
		if m.planted(pendingForgotten) {
			n = 0
		}
		m.event(Event{Op: OpBalance, Topic: modelTopic, Group: group, Partition: uint16(p), To: m.ends[p], Pending: n, Call: m.now, Return: m.now})
	}
}

// copies are the journal's, of three nodes.
func (m *model) copies() {
	for n := range 3 {
		for i, s := range m.segments {
			h := fnv.New32a()
			for _, r := range s.records[:s.synced] {
				if m.planted(copyDiffers) && n == 2 && i == 1 {
					r.index++
				}
				fmt.Fprintln(h, r.message, r.partition, r.index, r.epoch, r.sent.ID, r.from, r.to)
			}
			if s.synced > 0 {
				m.event(Event{Op: OpCopy, Proc: fmt.Sprint("node-", n), Index: uint64(i * segmentRecords), To: uint64(i*segmentRecords + s.synced), Hash: fmt.Sprintf("%08x", h.Sum32()), Call: m.now})
			}
		}
	}
}

// configure writes the topic's settings, or reads them.
func (m *model) configure() {
	e := Event{Op: OpRead, Proc: fmt.Sprint("admin-", m.rng.IntN(2)), Key: "topic " + modelTopic, Call: m.tick()}
	if m.rng.IntN(3) > 0 {
		v := m.settings[0]
		if m.planted(settingsStale) && m.rng.IntN(4) == 0 {
			v = m.settings[1]
		}
		if v != 0 {
			e.Version, e.Hash = v, fmt.Sprint("settings ", v)
		}
		e.Return = m.tick()
		m.event(e)
		return
	}
	m.versions++
	v := m.versions
	e.Op, e.Hash = OpWrite, fmt.Sprint("settings ", v)
	m.event(e)
	m.append(modelRecord{setting: v}, func(ok, _ bool, _ modelRecord) {
		if e.Result, e.Return = Unknown, m.tick(); ok {
			e.Result, e.Version = OK, v
		}
		m.event(e)
	})
}

func newModelGroup() *modelGroup {
	return &modelGroup{consumed: map[uint64]bool{}, expired: map[uint64]*modelLease{}}
}

func (m *model) event(e Event) { m.events = append(m.events, e) }

func (m *model) tick() int64 {
	m.now += 1 + m.rng.Int64N(step)
	return m.now
}

func (m *model) roll() { m.segments = append(m.segments, &segment{entry: false}) }

func (m *model) step() {
	m.tick()
	switch n := m.rng.IntN(100); {
	case n < 35:
		m.produce(m.producers[m.rng.IntN(len(m.producers))])
	case n < 75:
		m.consume(m.consumers[m.rng.IntN(len(m.consumers))])
	case n < 94:
		m.commit()
	case n < 95:
		m.configure()
	case n < 97:
		m.observe([]string{"pay", "ship"}[m.rng.IntN(2)])
	case n < 98 && !m.calm:
		m.die(m.consumers[m.rng.IntN(len(m.consumers))])
	case n < 99 && !m.calm && m.rng.IntN(3) == 0:
		m.crash()
	case m.rng.IntN(4) == 0 && !m.calm:
		m.scan()
	}
}

func partitionOf(key string) int {
	h := fnv.New32a()
	h.Write([]byte(key))
	return int(h.Sum32() % modelPartitions)
}

func (m *model) produce(p *producer) {
	if p.busy || (m.calm && !p.retry) {
		return
	}
	if !p.retry {
		p.seq++
		m.ids++
		key := fmt.Sprintf("%s-key-%d", p.proc, m.rng.IntN(5))
		id := fmt.Sprintf("id-%06d", m.ids)
		p.current = Event{Op: OpSend, Proc: p.proc, Topic: modelTopic, Key: key, ID: id, Seq: p.seq, Hash: "body of " + id, Call: m.tick(), Partition: uint16(partitionOf(key))}
		m.event(p.current) // begun
	}
	p.retry = false
	p.busy = true
	if !m.calm && m.rng.IntN(40) == 0 { // refused: busy
		if m.planted(failedButStored) {
			m.append(modelRecord{message: true, partition: int(p.current.Partition), sent: p.current}, func(bool, bool, modelRecord) {})
		}
		m.sent(p, Failed, modelRecord{})
		return
	}
	if i := slices.IndexFunc(m.logs[p.current.Partition], func(r modelRecord) bool { return r.sent.ID == p.current.ID && r.sent.Call == p.current.Call }); i >= 0 && !m.planted(repeatStored) {
		m.sent(p, OK, m.logs[p.current.Partition][i])
		return
	}
	r := modelRecord{message: true, partition: int(p.current.Partition), sent: p.current}
	m.append(r, func(ok, unknown bool, r modelRecord) {
		switch {
		case ok:
			m.sent(p, OK, r)
		case m.rng.IntN(3) > 0: // the SDK tries again, with the same id
			p.current.Unknown++
			p.retry, p.busy = true, false
		default:
			p.current.Unknown++
			m.sent(p, Unknown, r)
			if m.rng.IntN(2) == 0 { // its caller sends it again: another call, which the broker does not know for a repeat
				p.current.Call, p.current.Unknown = m.tick(), 0
				m.event(p.current)
				p.retry = true
			}
		}
	})
	if m.planted(storedTwice) && m.rng.IntN(30) == 0 {
		m.append(r, func(bool, bool, modelRecord) {})
	}
}

func (m *model) sent(p *producer, result Result, r modelRecord) {
	p.busy = false
	e := p.current
	e.Result, e.Return = result, m.tick()
	if result == Failed && e.Unknown > 0 {
		e.Result = Unknown
	}
	if result == OK {
		e.Index = r.index
	}
	m.event(e)
}

// append writes a record at the end of the journal, unsynced.
func (m *model) append(r modelRecord, answer func(ok, unknown bool, r modelRecord)) {
	s := m.segments[len(m.segments)-1]
	if len(s.records) >= segmentRecords {
		m.roll()
		s = m.segments[len(m.segments)-1]
	}
	if r.message {
		r.index, r.epoch = uint64(len(m.logs[r.partition])), m.epoch
		if m.planted(epochLate) && m.epoch > 1 {
			r.epoch--
		}
		m.logs[r.partition] = append(m.logs[r.partition], r)
	}
	s.records = append(s.records, r)
	w := waiter{answer, r}
	if (m.planted(ackBeforeSync) && r.message) || (m.planted(endBeforeSync) && !r.message) {
		m.finish(w)
		return
	}
	m.waiting = append(m.waiting, w)
}

// commit syncs, makes visible, and answers, in order.
func (m *model) commit() {
	for i, s := range m.segments {
		s.synced = len(s.records)
		if !m.planted(directoryNotSynced) || i == 0 {
			s.entry = true
		}
	}
	waiting := m.waiting
	m.waiting = nil
	for p := range m.logs {
		if end := uint64(len(m.logs[p])); end > m.ends[p] {
			m.woken[p], m.ends[p] = m.ends[p], end
		}
	}
	for _, w := range waiting {
		m.finish(w)
	}
}

func (m *model) finish(w waiter) {
	r := w.record
	if r.setting != 0 {
		m.settings = [2]uint64{r.setting, m.settings[0]}
	} else if !r.message {
		m.apply(r)
	} else if r.index >= m.ends[r.partition] {
		m.ends[r.partition] = r.index + 1
	}
	w.answer(true, false, r)
}

// apply ends [from, to) for a group: the offset moves over the contiguous prefix.
func (m *model) apply(r modelRecord) {
	g := m.groups[r.group][r.partition]
	for i := r.from; i < r.to; i++ {
		if i >= g.offset {
			g.consumed[i] = true
		}
	}
	if m.planted(ackOverHole) {
		g.offset = max(g.offset, r.to)
	}
	for g.consumed[g.offset] {
		delete(g.consumed, g.offset)
		g.offset++
	}
}

// crash loses what was not synced, answers nobody, and rebuilds.
func (m *model) crash() {
	from := m.tick()
	// Of the unsynced tail any prefix may have reached the disk.
	var kept []*segment
	for _, s := range m.segments {
		if !s.entry {
			break
		}
		n := s.synced + m.rng.IntN(len(s.records)-s.synced+1)
		torn := n < len(s.records)
		s.records = s.records[:n]
		if torn && m.planted(noChecksum) && n > 0 && s.records[n-1].message {
			s.records[n-1].sent.Hash = "garbage"
		}
		kept = append(kept, s)
		if torn {
			break
		}
	}
	m.segments = kept
	for i := range m.logs {
		m.logs[i] = nil
	}
	for _, ps := range m.groups {
		for i := range ps {
			ps[i] = newModelGroup()
		}
	}
	m.settings = [2]uint64{}
	for _, s := range m.segments {
		for _, r := range s.records {
			switch {
			case r.setting != 0:
				if !m.planted(settingsLost) {
					m.settings = [2]uint64{r.setting, m.settings[0]}
				}
			case r.message:
				m.logs[r.partition] = append(m.logs[r.partition], r)
			case !m.planted(offsetsNotPersisted):
				m.apply(r)
			}
		}
		s.synced = len(s.records) // kept bytes are rewritten and synced before serving
	}
	for i := range m.logs {
		if n := len(m.logs[i]); m.planted(reusedIndex) && n > 2 {
			m.logs[i] = m.logs[i][:n-1] // the index was rebuilt from a checkpoint, one short
		}
		m.ends[i] = uint64(len(m.logs[i]))
		m.woken[i] = 0
	}
	m.epoch++
	waiting := m.waiting
	m.waiting = nil
	to := m.tick()
	for _, w := range waiting {
		w.answer(false, true, w.record)
	}
	m.event(Event{Op: OpRestart, Proc: "broker", Call: from, Return: to})
	for _, c := range m.consumers {
		c.drop()
	}
	m.serves()
}

// drop forgets a lease.
func (c *consumer) drop() {
	c.lease, c.given, c.handled, c.acking = nil, nil, nil, false
}

func (m *model) consume(c *consumer) {
	if c.acking || c.stuckTo > m.now {
		return
	}
	if c.lease == nil {
		m.fetch(c)
		return
	}
	switch n := m.rng.IntN(100); {
	case n < 3 && !m.calm: // slower than its lease
		c.stuckTo = m.now + leaseTime*5/4
	case n < 6 && !m.calm: // the handler fails: what was not acked is given back
		m.release(c)
	case len(c.given) > 0:
		n := 1
		if c.fetchMode {
			n = len(c.given)
		}
		for _, r := range c.given[:n] {
			e := r.sent
			m.event(Event{Op: OpRecv, Proc: c.proc(), Topic: modelTopic, Group: c.group, Partition: uint16(r.partition), Index: r.index, ID: e.ID, Key: e.Key, Seq: e.Seq, Hash: e.Hash,
				Epoch: c.epoch, Lease: c.lease.number, Member: c.member, Deadline: c.lease.until, Call: m.tick()})
			c.handled = append(c.handled, r)
		}
		c.given = c.given[n:]
	case len(c.handled) > 0:
		m.ack(c)
	default:
		m.release(c)
	}
}

// fetch leases [offset, ...) of a partition that has something and no lease.
func (m *model) fetch(c *consumer) {
	ps := m.groups[c.group]
	for k, start := 0, m.rng.IntN(modelPartitions); k < modelPartitions; k++ {
		p := (start + k) % modelPartitions
		g := ps[p]
		if g.lease != nil && m.now >= g.lease.until {
			g.expired[g.lease.number] = g.lease
			g.lease = nil
		}
		if g.lease != nil && !(m.planted(leaseTwice) && m.rng.IntN(4) == 0) {
			continue
		}
		from, end := g.offset, m.ends[p]
		if m.planted(readsUncommitted) {
			end = uint64(len(m.logs[p]))
		}
		if m.planted(pollSkip) && m.woken[p] > from && m.rng.IntN(8) == 0 {
			from = m.woken[p]
		}
		for g.consumed[from] {
			from++
		}
		to := from
		for to < end && to-from < 5 && !g.consumed[to] {
			to++
		}
		if to == from {
			continue
		}
		m.leases++
		l := &modelLease{m.leases, c, p, from, to, m.now + leaseTime}
		g.lease, c.lease, c.epoch = l, l, m.epoch
		c.given = slices.Clone(m.logs[p][from:to])
		if m.planted(givenBackwards) {
			slices.Reverse(c.given)
		}
		return
	}
}

// holds says whether the lease is in force at the broker.
func (m *model) holds(l *modelLease, group string) bool {
	g := m.groups[group][l.partition]
	if m.planted(leaseTwice) {
		return m.now < l.until
	}
	return g.lease == l && m.now < l.until
}

func (m *model) ack(c *consumer) {
	l := c.lease
	r := modelRecord{partition: l.partition, group: c.group}
	if c.fetchMode { // in any order, one by one
		i := m.rng.IntN(len(c.handled))
		r.from, r.to = c.handled[i].index, c.handled[i].index+1
		c.handled = slices.Delete(c.handled, i, i+1)
	} else {
		byIndex := func(a, b modelRecord) int { return cmp.Compare(a.index, b.index) }
		r.from, r.to = slices.MinFunc(c.handled, byIndex).index, slices.MaxFunc(c.handled, byIndex).index+1
		c.handled = nil
	}
	e := Event{Op: OpAck, Proc: c.proc(), Topic: modelTopic, Group: c.group, Partition: uint16(l.partition), Index: r.from, To: r.to, Lease: l.number, Member: c.member, Call: m.tick()}
	m.event(e)
	if !m.holds(l, c.group) && !(m.planted(lateAck) && m.groups[c.group][l.partition].expired[l.number] != nil) {
		e.Result, e.Return, e.Reason = Failed, m.tick(), "lease-expired"
		m.event(e)
		c.drop()
		return
	}
	c.acking = true
	life := c.lives
	// The broker looks at the lease when the ack arrives, so the lease may end between that and the commit; it is kept till then.
	l.until = max(l.until, m.now+leaseTime)
	m.append(r, func(ok, unknown bool, _ modelRecord) {
		if c.lives != life { // died meanwhile
			return
		}
		c.acking = false
		e.Result, e.Return = OK, m.tick()
		if !ok {
			e.Result = Unknown
		}
		m.event(e)
		if !ok {
			c.drop()
		} else if len(c.given) == 0 && len(c.handled) == 0 {
			m.end(l, c.group)
			c.drop()
		}
	})
}

func (m *model) end(l *modelLease, group string) {
	if g := m.groups[group][l.partition]; g.lease == l {
		g.lease = nil
	}
}

func (m *model) release(c *consumer) {
	l := c.lease
	for _, r := range c.handled {
		m.event(Event{Op: OpRelease, Proc: c.proc(), Topic: modelTopic, Group: c.group, Partition: uint16(l.partition), Index: r.index, Lease: l.number, Member: c.member, Call: m.tick()})
	}
	m.end(l, c.group)
	c.drop()
}

// die ends a consumer's process; the broker notices by the lease's end, or at once.
func (m *model) die(c *consumer) {
	m.event(Event{Op: OpDie, Proc: c.proc(), Reason: "killed", Call: m.tick()})
	if c.lease != nil && !c.acking && m.rng.IntN(2) == 0 {
		m.end(c.lease, c.group)
	}
	c.drop()
	c.stuckTo = 0
	c.lives++
	m.deaths++
}

func (m *model) observe(group string) {
	for p, g := range m.groups[group] {
		e := Event{Op: OpOffset, Topic: modelTopic, Group: group, Partition: uint16(p), Index: g.offset, Call: m.now}
		e.Return = m.tick()
		indexes := make([]uint64, 0, len(g.consumed))
		for i := range g.consumed {
			if i >= g.offset {
				indexes = append(indexes, i)
			}
		}
		slices.SortFunc(indexes, cmp.Compare[uint64])
		for _, i := range indexes {
			if n := len(e.Ranges); n > 0 && e.Ranges[n-1][1] == i {
				e.Ranges[n-1][1]++
			} else {
				e.Ranges = append(e.Ranges, [2]uint64{i, i + 1})
			}
		}
		m.event(e)
	}
}

// scan reads what is committed.
func (m *model) scan() {
	for p := range m.logs {
		at := m.tick()
		for _, r := range m.logs[p][:m.ends[p]] {
			e := r.sent
			m.event(Event{Op: OpScan, Proc: "master", Topic: modelTopic, Partition: uint16(p), Index: r.index, ID: e.ID, Key: e.Key, Seq: e.Seq, Hash: e.Hash, Epoch: r.epoch, Call: at})
		}
		m.event(Event{Op: OpScanned, Proc: "master", Topic: modelTopic, Partition: uint16(p), To: m.ends[p], Call: at})
	}
}
