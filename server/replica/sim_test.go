package replica

import (
	"cmp"
	"container/heap"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/term"
)

// The simulator: one broker group with its registry, clients, disks, machines and network, in one goroutine and in its own time. What brokers and the
// registry decide is decided by Leader, Follower, Decide and term.Row, the same that run in the product; all else here is the world they live in. With the
// same seed everything happens again.

// record of a simulated journal: its position is its place.
type record struct {
	id     int // unique; the same record has it wherever it is
	kind   recordKind
	epoch  journal.Epoch
	forced bool
}

type recordKind uint8

const (
	epochRecord recordKind = iota
	normalMessage
	replicatedMessage
)

// simDisk is what a file system shows. What lies above synced survives a kill, and a power loss only by chance, each record for itself.
type simDisk struct {
	store     string
	records   []record
	epochs    []journal.EpochStart
	synced    int
	committed journal.Position // in the ends file, written with each sync
	state     State
	aside     []record
	cuts      int
}

func (d *simDisk) clone() simDisk {
	c := *d
	c.records, c.epochs, c.aside = slices.Clone(d.records), slices.Clone(d.epochs), slices.Clone(d.aside)
	c.state = d.state.clone()
	return c
}

func (d *simDisk) end() journal.Position { return journal.Position(len(d.records)) }

func (d *simDisk) history() History { return History{Epochs: slices.Clone(d.epochs), End: d.end()} }

type event struct {
	at  time.Time
	seq int
	do  func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return cmp.Or(e[i].at.Compare(e[j].at), cmp.Compare(e[i].seq, e[j].seq)) < 0
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	x := old[len(old)-1]
	*e = old[:len(old)-1]
	return x
}

type world struct {
	rand    *rand.Rand // nil: everything takes a millisecond
	now     time.Time
	queue   events
	seq     int
	auto    bool
	off     rule
	offRow  rowRule
	nodes   []*simNode
	reg     simRegistry
	blocked map[[2]string]bool          // from, to; the registry is ""
	late    map[[2]string]time.Duration // what is sent on a connection takes so much longer
	ids     int
	ghost   ghost
	log     []string // nil: not kept
	keep    bool
	calm    bool          // nothing takes long any more
	slow    int           // so many of a thousand messages take up to 3 s
	silence time.Duration // a master that is not heard for so long is away
	timing  Timing
	images  []simImage
	imaged  bool // one came back
}

// rowRule are rules that the registry keeps by term's functions; the world switches them off by what it gives to these.
type rowRule uint16

const (
	rowBootMembership rowRule = 1 << iota
	rowMembershipNamesStore
	rowPromoteMembersOnly
	rowRestoreEmptiesSets
	rowCASAlwaysBumps
	rowForcedFencesAll
	rowHighestTerm
	rowEpochSynced
	rowCleanMarkCleared
	rowSyncFailureEndsMembership
	rowKnown
)

func newWorld(r *rand.Rand, names []string, auto bool) *world {
	w := &world{rand: r, now: time.Unix(1000, 0), auto: auto, blocked: map[[2]string]bool{}, late: map[[2]string]time.Duration{}, silence: 3 * time.Second, timing: Timing{JoinAfter: time.Second}.withDefaults()}
	w.ghost = newGhost()
	w.reg = simRegistry{w: w, up: true, generation: 1, reports: map[string]simReport{}}
	for _, name := range names {
		n := &simNode{w: w, name: name}
		w.nodes = append(w.nodes, n)
		n.format()
	}
	for i, n := range w.nodes {
		w.after(time.Duration(i)*time.Second, n.start) // the first one is named
	}
	w.every(250*time.Millisecond, func() { w.reg.tick() })
	return w
}

func (w *world) logf(format string, args ...any) {
	if w.keep {
		w.log = append(w.log, fmt.Sprintf("%8s  ", w.now.Sub(time.Unix(1000, 0)))+fmt.Sprintf(format, args...))
	}
}

func (w *world) after(d time.Duration, do func()) {
	w.seq++
	heap.Push(&w.queue, event{w.now.Add(d), w.seq, do})
}

func (w *world) every(d time.Duration, do func()) {
	w.after(d, func() { do(); w.every(d, do) })
}

// delay of a message or a sync: mostly short, now and then long.
func (w *world) delay() time.Duration {
	switch {
	case w.rand == nil:
		return time.Millisecond
	case w.calm:
		return time.Duration(200+w.rand.IntN(5000)) * time.Microsecond
	case w.rand.IntN(1000) < w.slow:
		return time.Duration(w.rand.IntN(3000)) * time.Millisecond
	case w.rand.IntN(30) == 0:
		return time.Duration(w.rand.IntN(200)) * time.Millisecond
	}
	return time.Duration(200+w.rand.IntN(5000)) * time.Microsecond
}

func (w *world) chance(percent int) bool { return w.rand != nil && w.rand.IntN(100) < percent }

// run lets d go by. It stops at the first violation.
func (w *world) run(d time.Duration) {
	until := w.now.Add(d)
	for w.ghost.bad == "" && len(w.queue) > 0 && !w.queue[0].at.After(until) {
		e := heap.Pop(&w.queue).(event)
		w.now = e.at
		e.do()
		w.check()
	}
	w.now = until
}

func (w *world) node(name string) *simNode {
	for _, n := range w.nodes {
		if n.name == name {
			return n
		}
	}
	return nil
}

// send brings a message of its own connection: it is lost if the way is blocked, or nobody is there.
func (w *world) send(from, to string, do func()) {
	w.after(w.delay(), func() {
		if w.blocked[[2]string{from, to}] {
			return
		}
		if n := w.node(to); n != nil {
			n.get(do)
		} else if w.reg.up {
			do()
		}
	})
}

// conn is a connection: what is sent on it comes in order, or not at all. It belongs to two lives of two brokers.
type conn struct {
	w      *world
	a, b   *simNode // slave, master
	lifeA  int
	lifeB  int
	last   [2]time.Time // to a, to b: nothing overtakes
	broken bool         // a message was lost: nothing comes after it
}

func (c *conn) send(to *simNode, do func()) {
	w, way, from, life := c.w, 0, c.b, c.lifeA
	if to == c.b {
		way, from, life = 1, c.a, c.lifeB
	}
	at := w.now.Add(w.delay() + w.late[[2]string{from.name, to.name}])
	if at.Before(c.last[way]) {
		at = c.last[way]
	}
	c.last[way] = at
	var come func()
	come = func() {
		switch {
		case c.broken:
		case w.blocked[[2]string{from.name, to.name}]:
			if w.chance(50) { // it is sent again later
				w.after(100*time.Millisecond, come)
				c.last[way] = w.now.Add(100 * time.Millisecond)
			} else {
				c.broken = true
			}
		case to.up && to.life == life:
			to.get(do)
		}
	}
	w.after(at.Sub(w.now), come)
}

// simNode is a broker: its disk, its machine, its process.
type simNode struct {
	w    *world
	name string
	disk simDisk

	machine int
	up      bool
	life    int
	paused  bool
	frozen  []func()

	role     string // waiting, opening, copying, master, slave (it has a follower)
	why      string
	leader   *Leader
	follower *Follower
	sessions map[uint64]*simSession // of a master
	conn     *conn                  // of a slave
	heard    time.Time              // slave: a push
	row      *term.Row
	rowAt    time.Time
	told     journal.Position
	met      map[string]Met
	metAt    map[string]time.Time
	pending  []record // of a master: without an answer
	first    int      // position of pending[0]
	syncing  bool
	refused  bool
	served   int // positions that were compared with what others served
}

type simSession struct {
	conn *conn
	sent journal.Position
	out  int // pushes without an ack
	at   time.Time
}

func (n *simNode) self() term.Member {
	return term.Member{Broker: n.name, Boot: n.disk.state.Boot, Store: n.disk.store}
}

// get does something in the process, if it is not paused; then when it goes on.
func (n *simNode) get(do func()) {
	switch {
	case !n.up:
	case n.paused:
		if len(n.frozen) < 1000 {
			n.frozen = append(n.frozen, do)
		}
	default:
		do()
	}
}

// in does something later in this life.
func (n *simNode) in(d time.Duration, do func()) {
	life := n.life
	n.w.after(d, func() {
		if n.life == life {
			n.get(func() {
				if n.life == life {
					do()
				}
			})
		}
	})
}

func (n *simNode) every(d time.Duration, do func()) {
	n.in(d, func() { do(); n.every(d, do) })
}

func (n *simNode) format() {
	n.w.ids++
	n.disk = simDisk{store: fmt.Sprintf("%s%d", n.name, n.w.ids)}
}

func (n *simNode) start() {
	if n.up {
		return
	}
	n.up, n.role, n.why = true, "waiting", "it starts"
	n.life++
	clean := n.disk.state.Clean
	n.disk.state.start(fmt.Sprint(n.machine), func() string { n.w.ids++; return fmt.Sprintf("boot%d", n.w.ids) })
	if n.w.offRow&rowCleanMarkCleared != 0 {
		n.disk.state.Clean = clean
	}
	if n.w.off.off(ruleSeenTermDurable) {
		n.disk.state.Seen = max(n.disk.state.Granted, n.last().Term())
	}
	n.w.logf("%s starts, boot %s", n.name, n.disk.state.Boot)
	n.met, n.metAt = map[string]Met{}, map[string]time.Time{}
	n.poll()
	n.every(200*time.Millisecond, n.poll)
	n.every(500*time.Millisecond, n.beat)
	n.every(50*time.Millisecond, n.tick)
	n.every(500*time.Millisecond, func() {
		if n.follower != nil {
			n.sync(nil)
		}
	})
}

func (n *simNode) last() journal.Epoch { return n.disk.history().Last() }

// stop ends the process; the page cache stays.
func (n *simNode) stop() {
	if !n.up {
		return
	}
	n.up, n.paused, n.frozen = false, false, nil
	n.life++
	n.step("down", "")
	n.row, n.told, n.refused = nil, 0, false
}

// step begins a role without sessions.
func (n *simNode) step(role, why string) {
	for _, id := range slices.Sorted(maps.Keys(n.sessions)) {
		n.close(n.sessions[id].conn)
	}
	if n.conn != nil {
		n.close(n.conn)
	}
	n.role, n.why = role, why
	n.leader, n.follower, n.conn, n.sessions, n.pending, n.syncing = nil, nil, nil, nil, nil, false
}

// close ends a connection; the other side sees it later, after what was sent before.
func (n *simNode) close(c *conn) {
	if c.broken {
		return
	}
	other := c.a
	if n == c.a {
		other = c.b
	}
	c.send(other, func() { c.broken = true; other.closed(c) })
}

func (n *simNode) closed(c *conn) {
	if n.conn == c {
		n.conn = nil
		if n.follower != nil {
			n.follower.Ended()
		}
	}
	for id, s := range n.sessions {
		if s.conn == c {
			n.leader.Gone(id)
			delete(n.sessions, id)
		}
	}
}

func (n *simNode) committed() journal.Position {
	switch {
	case n.leader != nil:
		return n.leader.Committed()
	case n.follower != nil:
		return n.follower.Committed()
	}
	return min(n.disk.committed, n.disk.end())
}

func (n *simNode) status() Met {
	m := Met{Member: n.self(), Seen: n.disk.state.Seen, Fresh: len(n.disk.records) == 0, History: n.disk.history(), Committed: n.committed()}
	m.Master = n.leader != nil && !n.leader.Stopped()
	return m
}

func (n *simNode) report() term.Report {
	m := n.status()
	last := m.History.Last()
	r := term.Report{
		Member: m.Member, Master: m.Master, Seen: m.Seen, LastTerm: last.Term(), LastStart: last.Start(), End: uint64(m.History.End),
		Committed: uint64(m.Committed), Refused: n.refused, New: m.Fresh,
	}
	if m.Master {
		r.Term = n.leader.Epoch().Term()
	}
	return r
}

// poll asks the registry and the other brokers, if this one is not served by a master, and decides by the answers.
func (n *simNode) poll() {
	if n.leader != nil || n.role == "opening" || n.role == "copying" || n.conn != nil && n.follower != nil {
		return
	}
	life := n.life
	n.w.send(n.name, "", func() {
		if row, ok := n.w.reg.answer(); ok {
			told := journal.Position(n.w.reg.base().Committed)
			n.w.send("", n.name, func() { n.told = told; n.hearRow(row) })
		}
	})
	for _, o := range n.w.nodes {
		if o == n {
			continue
		}
		promise := n.disk.state.Granted
		n.w.send(n.name, o.name, func() {
			o.meet(promise)
			m := o.status()
			n.w.send(o.name, n.name, func() {
				if n.life == life {
					n.met[o.name], n.metAt[o.name] = m, n.w.now
				}
			})
		})
	}
	n.in(100*time.Millisecond, n.decide)
}

func (n *simNode) hearRow(row term.Row) {
	n.disk.state = n.disk.state.hear(n.self(), row, n.w.off)
	if n.row == nil || row.Term > n.row.Term || row.Term == n.row.Term && row.Change >= n.row.Change {
		n.row, n.rowAt = &row, n.w.now
	}
	if n.leader != nil && n.leader.HeardRow(row) {
		n.meet(row.Term)
		return
	}
	if n.follower != nil && n.follower.HeardRow(row) {
		n.ended()
	}
	n.settle()
}

// meet hears of a term.
func (n *simNode) meet(t uint32) {
	n.disk.state.Seen = max(n.disk.state.Seen, t)
	if n.leader != nil && n.leader.Met(t) {
		n.w.logf("%s steps down for term %d", n.name, t)
		n.step("waiting", fmt.Sprintf("it met term %d", t))
	}
	if n.follower != nil && n.follower.Met(t) {
		n.ended()
	}
}

// ended closes the connection if the follower has ended its session.
func (n *simNode) ended() {
	if _, _, ok := n.follower.Session(); !ok && n.conn != nil {
		n.close(n.conn)
		n.conn = nil
	}
}

func (n *simNode) known() Known {
	k := Known{Self: n.self(), State: n.disk.state, Fresh: len(n.disk.records) == 0, History: n.disk.history(), Committed: n.committed(), Auto: n.w.auto, off: n.w.off}
	if n.row != nil && n.w.now.Sub(n.rowAt) < time.Second {
		k.Row = n.row
	}
	if n.row != nil && n.row.Term == k.State.Granted && n.row.Master.Broker == n.name {
		k.Start, k.Told = n.row.Start, n.told
	}
	if n.w.rand != nil { // another one for each opening
		k.Jump = 1 + uint32(n.w.ids)%startJump
	}
	for _, o := range n.w.nodes {
		if o == n {
			continue
		}
		k.Others = append(k.Others, o.name)
		if m, ok := n.met[o.name]; ok && n.w.now.Sub(n.metAt[o.name]) < time.Second {
			k.Met = append(k.Met, m)
		}
	}
	return k
}

func (n *simNode) decide() {
	if n.leader != nil || n.role == "opening" || n.role == "copying" || n.conn != nil {
		return
	}
	k := n.known()
	d := Decide(k)
	if d.Seen > n.disk.state.Seen {
		n.disk.state.Seen = d.Seen
	}
	if n.why != d.Why {
		n.w.logf("%s decides: %v: %s", n.name, d.Act, d.Why)
	}
	n.why = d.Why
	switch d.Act {
	case ActLead:
		n.lead(d, k)
	case ActFollow:
		n.connect(n.w.node(d.From))
	case ActCopy:
		n.copy(d)
	case ActTerm, ActSettle:
		a := d.Ask(n.self(), *k.Row, n.disk.end())
		n.w.send(n.name, "", func() {
			if row, _, ok := n.w.reg.compare(a); ok {
				n.w.send("", n.name, func() { n.hearRow(row) })
			}
		})
	}
}

// lead opens as master: all that is kept is synced, the epoch's record is written and synced, and only then anything of it leaves.
func (n *simNode) lead(d Decision, k Known) {
	committed := n.committed()
	n.step("opening", d.Why)
	if n.w.auto && !n.w.off.off(rulePersistSet) {
		n.disk.state.Set, n.disk.state.SetTerm = d.Set, d.Epoch.Term()
	}
	n.disk.state.Seen = max(n.disk.state.Seen, d.Epoch.Term())
	n.w.ids++
	n.write(record{id: n.w.ids, kind: epochRecord, epoch: d.Epoch, forced: d.Forced && !n.w.off.off(ruleForcedEpochCuts)})
	open := func() {
		if n.disk.state.Seen > d.Epoch.Term() && !n.w.off.off(ruleHigherTermStops) {
			n.step("waiting", "it met a higher term while it opened")
			return
		}
		n.role, n.sessions = "master", map[uint64]*simSession{}
		row := k.Row
		if row != nil && row.Term != d.Epoch.Term() {
			row = nil
		}
		n.leader = NewLeader(LeaderOptions{
			Self: n.self(), Epoch: d.Epoch, Begins: n.disk.end(), Committed: committed, Auto: n.w.auto, Set: d.Set, Row: row, Timing: n.w.timing, Now: n.w.now,
		})
		n.leader.off = n.w.off
		n.first = len(n.disk.records)
		n.w.logf("%s is master of epoch %v, end %d, set %v", n.name, d.Epoch, n.disk.end(), brokers(d.Set))
		n.w.ghost.dirty = true
		n.settle()
	}
	if n.w.offRow&rowEpochSynced != 0 {
		n.in(0, open)
		return
	}
	n.sync(open)
}

func brokers(set []term.Member) string {
	var b strings.Builder
	for _, m := range set {
		b.WriteString(m.Broker)
	}
	return "{" + b.String() + "}"
}

// copy takes another's records: cut, durably; read; write; sync.
func (n *simNode) copy(d Decision) {
	n.step("copying", d.Why)
	from := n.w.node(d.From)
	n.w.logf("%s copies [%d,%d) of %s", n.name, d.Cut, d.To, d.From)
	n.w.send(n.name, from.name, func() {
		if from.disk.end() < d.To {
			return
		}
		records := slices.Clone(from.disk.records[d.Cut:d.To])
		same, ok := Common(n.disk.history(), from.disk.history())
		n.w.send(from.name, n.name, func() {
			if n.role != "copying" || !ok || same < d.Cut {
				return
			}
			n.cut(d.Cut)
			for _, r := range records {
				n.write(r)
			}
			n.sync(func() { n.step("waiting", "it has copied") })
		})
	})
	n.in(3*time.Second, func() {
		if n.role == "copying" {
			n.step("waiting", "its copy was not answered")
		}
	})
}

// write appends to the page cache.
func (n *simNode) write(r record) {
	d := &n.disk
	if len(d.epochs) == 0 || d.epochs[len(d.epochs)-1].Epoch != r.epoch {
		d.epochs = append(d.epochs, journal.EpochStart{Epoch: r.epoch, Position: d.end(), Forced: r.kind == epochRecord && r.forced})
	}
	d.records = append(d.records, r)
	n.w.wrote(n, len(d.records)-1, r)
}

// cut sets aside what is from to on, durably.
func (n *simNode) cut(to journal.Position) {
	d := &n.disk
	if to < d.end() {
		n.w.logf("%s cuts %d to %d", n.name, d.end(), to)
		d.aside = append(d.aside, d.records[to:]...)
		n.shorten(int(to))
	}
}

func (n *simNode) shorten(to int) {
	d := &n.disk
	d.records = slices.Clone(d.records[:to])
	d.epochs = slices.DeleteFunc(d.epochs, func(e journal.EpochStart) bool { return int(e.Position) >= to })
	d.synced = min(d.synced, to)
	d.committed = min(d.committed, journal.Position(to))
	d.cuts++
	n.served = min(n.served, to)
	n.w.ghost.dirty = true
}

// sync makes durable what is written now; done is called then.
func (n *simNode) sync(done func()) {
	to, cuts := len(n.disk.records), n.disk.cuts
	n.in(n.w.delay(), func() {
		if cuts != n.disk.cuts {
			if done != nil {
				n.sync(done)
			}
			return
		}
		n.disk.synced = max(n.disk.synced, to)
		n.disk.committed = max(n.disk.committed, min(n.committed(), journal.Position(to)))
		if done != nil {
			done()
		}
	})
}

// connect comes to a master.
func (n *simNode) connect(o *simNode) {
	if n.follower == nil {
		f := NewFollower(FollowerOptions{Self: n.self(), Fresh: len(n.disk.records) == 0, Seen: n.disk.state.Seen, End: n.disk.end(), Committed: n.committed()})
		f.off = n.w.off
		n.step("slave", n.why)
		n.follower = f
	}
	n.follower.Met(n.disk.state.Seen)
	if n.row != nil {
		n.follower.HeardRow(*n.row)
	}
	n.conn = &conn{w: n.w, a: n, b: o, lifeA: n.life, lifeB: o.life}
	n.heard = n.w.now
	n.hello(n.conn, 0)
}

func (n *simNode) hello(c *conn, session uint64) {
	h := n.follower.Hello(n.disk.history(), session)
	c.send(c.b, func() { c.b.welcome(c, h) })
}

// welcome is the master's.
func (n *simNode) welcome(c *conn, h Hello) {
	if n.leader == nil {
		n.close(c)
		return
	}
	w, err := n.leader.Welcome(n.w.now, h, n.disk.history())
	if errors.Is(err, ErrFenced) {
		n.meet(h.Seen)
	}
	if err != nil {
		n.close(c)
		return
	}
	if w.Begun {
		n.sessions[w.Session] = &simSession{conn: c, sent: w.Match, at: n.w.now}
	}
	c.send(c.a, func() { c.a.welcomed(c, w) })
	n.settle()
	n.push()
}

func (n *simNode) welcomed(c *conn, w Welcome) {
	if n.conn != c || n.follower == nil {
		return
	}
	step, err := n.follower.Welcomed(n.disk.history(), w)
	n.disk.state.Seen = max(n.disk.state.Seen, n.follower.Seen())
	if err != nil {
		n.w.logf("%s and %s: %v", n.name, c.b.name, err)
		n.close(c)
		n.conn = nil
		return
	}
	if n.disk.state.Granted < w.Epoch.Term() {
		n.disk.state.Granted = 0
	}
	n.refused = step == StepRefuse
	switch step {
	case StepCut:
		n.cut(w.Match)
		n.follower.Cut(n.disk.end())
		n.hello(c, w.Session)
	case StepBegin:
		n.heard = n.w.now
		n.w.logf("%s follows %s from %d on", n.name, c.b.name, w.Match)
		n.ack(c, w.Session, w.Epoch)
	default:
		n.w.logf("%s and %s: %v at %d, committed %d", n.name, c.b.name, step, w.Match, n.committed())
		n.close(c)
		n.conn = nil
	}
}

func (n *simNode) ack(c *conn, session uint64, epoch journal.Epoch) {
	acked, synced := n.disk.end(), journal.Position(n.disk.synced)
	c.send(c.b, func() { c.b.acked(c, session, epoch, acked, synced) })
}

func (n *simNode) acked(c *conn, session uint64, epoch journal.Epoch, acked, synced journal.Position) {
	if n.leader == nil {
		return
	}
	s := n.sessions[session]
	if n.w.off.off(ruleAckOfSession) {
		n.leader.anyAck(n.w.now, c.a.name, acked)
	} else if _, err := n.leader.Ack(n.w.now, session, epoch, acked, synced); err != nil {
		n.close(c)
		return
	}
	if s != nil {
		s.out, s.at = max(s.out-1, 0), n.w.now
	}
	n.settle()
	n.push()
}

// anyAck counts an ack whatever session it is of: what rule AckOfSession forbids.
func (l *Leader) anyAck(now time.Time, broker string, acked journal.Position) {
	if s := l.find(broker); s != nil && acked <= l.end {
		s.acked, s.heard = max(s.acked, acked), now
		l.owe(now, s)
		l.settle()
	}
}

// push sends each slave what it lacks, with the committed position: at most four under way, and one each keep-alive time.
func (n *simNode) push() {
	if n.leader == nil || n.leader.Stopped() {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(n.sessions)) {
		n.pushTo(id, n.sessions[id])
	}
}

func (n *simNode) pushTo(id uint64, s *simSession) {
	if _, begun, ok := n.leader.Session(id); !ok || !begun {
		return
	}
	idle := n.w.now.Sub(s.at) >= n.w.timing.KeepAlive
	if s.out >= 4 && !idle || s.sent == n.disk.end() && !idle {
		return
	}
	from, records, committed, epoch := s.sent, slices.Clone(n.disk.records[s.sent:]), n.leader.Committed(), n.leader.Epoch()
	s.sent, s.at = n.disk.end(), n.w.now
	s.out++
	c := s.conn
	c.send(c.a, func() { c.a.pushed(c, id, epoch, from, records, committed) })
}

func (n *simNode) pushed(c *conn, session uint64, epoch journal.Epoch, from journal.Position, records []record, committed journal.Position) {
	if n.conn != c || n.follower == nil {
		return
	}
	if err := n.follower.Push(epoch, from, len(records)); err != nil {
		n.w.logf("%s: %v", n.name, err)
		n.follower.Ended()
		n.close(c)
		n.conn = nil
		return
	}
	n.heard = n.w.now
	for _, r := range records {
		n.write(r)
	}
	n.follower.Wrote(n.disk.end(), committed)
	n.ack(c, session, epoch)
}

// tick is the master's clock, and the slave's.
func (n *simNode) tick() {
	if n.follower != nil && n.conn != nil && n.w.now.Sub(n.heard) > n.w.timing.AwayAfter {
		n.follower.Ended()
		n.close(n.conn)
		n.conn = nil
	}
	if n.leader == nil {
		return
	}
	n.leader.Tick(n.w.now)
	for _, e := range n.leader.Events() {
		n.w.logf("%s: %s %s: %s", n.name, e.Broker, e.What, e.Why)
	}
	n.push()
	n.settle()
	if n.leader == nil {
		return
	}
	if a, persist, ok := n.leader.Ask(n.w.now); ok {
		n.ask(a, persist)
	}
}

func (n *simNode) ask(a term.Ask, persist []term.Member) {
	if persist != nil && !n.w.off.off(rulePersistSet) {
		n.disk.state.Set, n.disk.state.SetTerm = persist, a.Term
	}
	if a.To != "" {
		n.disk.state.Handing = a.Change + 1
	}
	life := n.life
	n.w.logf("%s asks for %s of term %d change %d %s", n.name, brokers(a.Set), a.Term, a.Change, a.To)
	n.w.send(n.name, "", func() {
		row, changed, ok := n.w.reg.compare(a)
		if !ok {
			return
		}
		n.w.send("", n.name, func() {
			if n.life != life || n.leader == nil || n.leader.Epoch() != journal.MakeEpoch(a.Term, a.Start) {
				return
			}
			n.disk.state = n.disk.state.hear(n.self(), row, n.w.off)
			if n.leader.Asked(a, row, changed, nil) {
				n.meet(row.Term)
			}
			n.settle()
		})
	})
}

// append is a client's send.
func (n *simNode) append(kind recordKind) (int, bool) {
	if n.leader == nil || n.leader.Stopped() || n.leader.Handing() || kind == replicatedMessage && !n.leader.InSync() {
		return 0, false
	}
	n.w.ids++
	r := record{id: n.w.ids, kind: kind, epoch: n.leader.Epoch()}
	n.write(r)
	n.pending = append(n.pending, r)
	n.w.ghost.sent[r.id] = len(n.disk.records) - 1
	n.leader.Written(n.w.now, n.disk.end())
	n.push()
	if !n.syncing {
		n.syncing = true
		n.syncOwn()
	}
	return r.id, true
}

func (n *simNode) syncOwn() {
	to := len(n.disk.records)
	n.sync(func() {
		if n.leader == nil {
			return
		}
		n.leader.Synced(journal.Position(to))
		n.settle()
		if n.leader == nil {
			return
		}
		if n.syncing = to < len(n.disk.records); n.syncing {
			n.syncOwn()
		}
	})
}

// settle answers clients: ok when committed, and a replicated record only if a slave has it.
func (n *simNode) settle() {
	if n.leader == nil || n.leader.Stopped() {
		return
	}
	committed := n.leader.Committed()
	for len(n.pending) > 0 && journal.Position(n.first) < committed {
		r := n.pending[0]
		if r.kind != replicatedMessage || n.leader.Copied() > journal.Position(n.first) {
			n.w.answered(n, r)
		}
		n.pending, n.first = n.pending[1:], n.first+1
	}
	if len(n.pending) == 0 {
		n.first = len(n.disk.records)
	}
}
