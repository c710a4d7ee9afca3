package replica

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/planted"
	"github.com/jmqio/jmq/server/term"
)

// slavesMax bounds how many brokers a master knows as slaves.
const slavesMax = 64

// ErrHandOver: the slave is not in sync, or does not hold everything yet.
var ErrHandOver = errors.New("replica: the slave does not hold everything yet")

func (t Timing) withDefaults() Timing {
	t.KeepAlive = cmp.Or(t.KeepAlive, 100*time.Millisecond)
	t.LeaveAfter = cmp.Or(t.LeaveAfter, 800*time.Millisecond)
	t.LeaveBytes = cmp.Or(t.LeaveBytes, 64<<20)
	t.JoinAfter = cmp.Or(t.JoinAfter, 5*time.Second)
	t.SyncEvery = cmp.Or(t.SyncEvery, 500*time.Millisecond)
	t.AwayAfter = cmp.Or(t.AwayAfter, 2*time.Second)
	return t
}

const (
	leftSoon   = time.Minute // who leaves sooner after it joined waits twice as long
	delayMax   = 16          // times JoinAfter
	askAgain   = time.Second // an ask without an answer is repeated
	askSoonest = 50 * time.Millisecond
)

// LeaderOptions are of NewLeader.
type LeaderOptions struct {
	Self   term.Member
	Epoch  journal.Epoch    // its own, whose record is in the journal and synced
	Begins journal.Position // where that record ends
	// Committed is what was known to be committed before; Begins is synced.
	Committed journal.Position
	Auto      bool
	// Set is what the registry may hold: on auto broker groups the persisted set if it is of this term, and that of Row.
	Set    []term.Member
	Row    *term.Row // of this term, as last heard; nil: not heard
	Timing Timing
	Now    time.Time
}

// Leader is what a master decides of its slaves: sessions, what is committed, who is in sync. It does no I/O and has no clock: the caller
// tells it the time, which must not go back. Not safe for concurrent use. Once stopped it commits nothing any more.
//
// committed <= synced <= end, and committed <= acked of every slave waited for, but where it was committed before the slave joined.
type Leader struct {
	self   term.Member
	epoch  journal.Epoch
	begins journal.Position
	auto   bool
	timing Timing
	opened time.Time
	off    rule

	end, synced, committed, copied journal.Position

	slaves []*slaveOf // by broker
	lost   uint64     // last session that was given

	row     term.Row  // of this term, as last heard; Term 0: none yet
	former  []string  // what the registry may hold by asks of a former life: until an own ask was carried out
	unknown []string  // what it may hold by own asks that compared with row.Change, and may still be carried out
	asking  bool      // an ask is on its way
	asked   time.Time // the last ask
	handing string    // an ask to hand over to this slave may still be carried out
	met     uint32    // the term that ended it; 0: none did
	ticked  time.Time // the last Tick
	events  []Event
}

// slaveOf is a slave, or what the registry may hold as one.
type slaveOf struct {
	broker  string
	member  term.Member // as told when it came last; before that, as the registry holds it
	set     bool        // it is in the set that is wanted
	joining bool        // commits wait for it so that it can join: with a disk faster than the network it has never acked all that is committed
	waited  bool        // commits wait for it: set, or the registry may hold it
	refuse  bool        // it refused to cut
	copying bool        // it makes a full copy: what it acks is gone if that is not completed, and nobody is told of it, so it counts as 0
	session uint64      // 0: none in this epoch
	begun   bool
	gone    bool             // the connection of the session is closed
	acked   journal.Position // in this epoch
	most    journal.Position // that it acked in this epoch as this member
	synced  journal.Position
	heard   time.Time        // the last ack
	target  journal.Position // the end at since; acked < target: it owes this since then
	since   time.Time        // acked >= target: nothing is owed
	steady  time.Time        // in step since; zero: it is not
	joined  time.Time
	delay   int // times JoinAfter
}

// Event is a change that is logged, counted and told.
type Event struct {
	Broker string
	What   string // joined, left, came, refused, settled
	Why    string
}

// SlaveState is one slave as the master sees it.
type SlaveState struct {
	term.Member
	InSync  bool
	Waited  bool // commits wait for it
	Begun   bool // it has a session
	Refused bool
	Acked   journal.Position
	Synced  journal.Position
	Lag     time.Duration // since it owes the oldest byte, about
	Join    time.Duration // it is in step, and joins after so long; 0: it is not, or it has joined
	Heard   time.Time
}

// NewLeader returns the machine of a master that has begun its epoch.
func NewLeader(o LeaderOptions) *Leader {
	l := &Leader{
		self: o.Self, epoch: o.Epoch, begins: o.Begins, auto: o.Auto, timing: o.Timing.withDefaults(), opened: o.Now, ticked: o.Now,
		end: o.Begins, synced: o.Begins, committed: min(o.Committed, o.Begins),
	}
	if o.Row != nil && o.Row.Term == o.Epoch.Term() {
		l.row = *o.Row
	}
	if o.Auto {
		for _, m := range append(slices.Clone(l.row.Set), o.Set...) {
			if m.Broker == o.Self.Broker || l.find(m.Broker) != nil {
				continue
			}
			// It is waited for, and in the set again as soon as it has shown that it has all that this master had when it opened: what is
			// persisted, and a row that was read a while ago, may name one that has left.
			l.add(m)
		}
		for _, m := range o.Set {
			l.former = append(l.former, m.Broker)
		}
	}
	l.settle()
	return l
}

func (l *Leader) find(broker string) *slaveOf {
	for _, s := range l.slaves {
		if s.broker == broker {
			return s
		}
	}
	return nil
}

func (l *Leader) add(m term.Member) *slaveOf {
	s := &slaveOf{broker: m.Broker, member: m, delay: 1}
	i, _ := slices.BinarySearchFunc(l.slaves, m.Broker, func(s *slaveOf, b string) int { return cmp.Compare(s.broker, b) })
	l.slaves = slices.Insert(l.slaves, i, s)
	return s
}

func (l *Leader) event(broker, what, why string) {
	if len(l.events) < 1024 { // nobody takes them
		l.events = append(l.events, Event{broker, what, why})
	}
}

// Events returns what has changed since it was last called.
func (l *Leader) Events() []Event {
	e := l.events
	l.events = nil
	return e
}

// Welcome answers a slave's Hello. own is the journal's history now. With ErrFenced the slave has met a higher term: the caller calls
// Met, persists it and steps down.
func (l *Leader) Welcome(now time.Time, h Hello, own History) (Welcome, error) {
	if err := h.History.Check(); err != nil {
		return Welcome{}, err
	}
	w := Welcome{Epoch: l.epoch, History: own, Committed: l.committed}
	switch {
	case h.Broker == "" || h.Broker == l.self.Broker || h.Store == "" || h.Boot == "":
		return w, fmt.Errorf("%w: broker %q comes as a slave of %q", ErrPeer, h.Broker, l.self.Broker)
	case l.met != 0 || h.Seen > l.epoch.Term():
		return w, ErrFenced
	}
	s := l.find(h.Broker)
	if planted.Bug("replica: slave counted twice") && s != nil && s.member != h.Member {
		s = nil
	}
	if s == nil {
		if len(l.slaves) >= slavesMax {
			return w, fmt.Errorf("%w: more than %d slaves", ErrPeer, slavesMax)
		}
		s = l.add(term.Member{Broker: h.Broker})
	}
	match, ok := Common(h.History, own)
	w.Match, w.Copy = match, !ok
	w.Forced = own.ForcedSince(h.History.Last())
	if h.Session == 0 {
		// "Only that is trusted": what it acked before counts no more than what it has now.
		l.lost++
		s.session, s.begun, s.gone = l.lost, false, false
		w.Session = s.session
		if w.Copy {
			match = 0
		}
		s.acked = min(s.acked, match)
		l.identify(now, s, h)
		refused := s.refuse
		if s.refuse = match < h.Committed && !w.Forced && !w.Copy; s.refuse && !refused { // it will say no more, but come again
			l.event(s.broker, "refused", fmt.Sprintf("it knows %d to be committed, and both are the same up to %d only", h.Committed, match))
		}
		return w, nil
	}
	w.Session = s.session
	if h.Session != s.session || s.begun || h.Member != s.member || !ok || match != h.History.End || match > l.end {
		return w, fmt.Errorf("%w: session %d of broker %q, which ends at %d, both are the same up to %d", ErrStale, h.Session, h.Broker, h.History.End, match)
	}
	w.Begun = true
	s.begun, s.acked, s.synced, s.heard, s.steady = true, match, min(s.synced, match), now, time.Time{}
	l.owe(now, s)
	l.event(s.broker, "came", fmt.Sprintf("with [%d,%d)", h.History.Begin, h.History.End))
	if s.set && s.acked < s.most {
		l.leave(now, s, fmt.Sprintf("it came back with %d, and had acked %d", s.acked, s.most))
	}
	s.most = s.acked
	l.settle()
	return w, nil
}

// identify says who the slave is now: "membership belongs to one boot and one store".
func (l *Leader) identify(now time.Time, s *slaveOf, h Hello) {
	switch {
	case s.set && h.Copying:
		l.leave(now, s, "it makes a full copy")
	case s.set && s.member != h.Member:
		l.leave(now, s, "its store is another, or it may have lost what it acked")
	}
	if s.member != h.Member {
		s.member, s.most = h.Member, 0
	}
	s.copying = h.Copying
	l.settle()
}

// owe keeps what the slave owes, and since when.
func (l *Leader) owe(now time.Time, s *slaveOf) {
	switch {
	case s.acked >= l.end:
		s.target, s.since = s.acked, time.Time{}
	case s.since.IsZero() || s.acked >= s.target:
		s.target, s.since = l.end, now
	}
}

// Written says that the journal ends at end: records up to there may be pushed from now on.
func (l *Leader) Written(now time.Time, end journal.Position) {
	l.end = end
	for _, s := range l.slaves {
		if s.since.IsZero() {
			s.target, s.since = end, now
		}
	}
}

// Synced says that all up to end is on the own disk. The result is what is committed now.
func (l *Leader) Synced(end journal.Position) journal.Position {
	l.synced = end
	l.settle()
	return l.committed
}

// Ack says that the slave of a session has written all up to acked, and has all up to synced on its disk. Acks count in the session and epoch they were
// given in (rule AckOfSession). The result is what is committed now.
func (l *Leader) Ack(now time.Time, session uint64, epoch journal.Epoch, acked, synced journal.Position) (journal.Position, error) {
	if l.met != 0 {
		return l.committed, ErrFenced
	}
	s := l.of(session)
	if s == nil || !s.begun || epoch != l.epoch {
		return l.committed, fmt.Errorf("%w: ack of session %d in epoch %v", ErrStale, session, epoch)
	}
	if acked > l.end || synced > acked || acked < s.acked {
		return l.committed, fmt.Errorf("%w: broker %q acks %d, on its disk %d, after %d, and the journal ends at %d", ErrPeer, s.broker, acked, synced, s.acked, l.end)
	}
	s.acked, s.most, s.synced, s.heard, s.gone = acked, acked, synced, now, false
	l.owe(now, s)
	l.settle()
	return l.committed, nil
}

func (l *Leader) of(session uint64) *slaveOf {
	for _, s := range l.slaves {
		if s.session == session && session != 0 || planted.Bug("replica: acks of an older session count") && 0 < session && session < s.session {
			return s
		}
	}
	return nil
}

// Session says whether a session is the current one of its slave, and whether it has begun.
func (l *Leader) Session(session uint64) (broker string, begun, ok bool) {
	if s := l.of(session); s != nil && l.met == 0 {
		return s.broker, s.begun, true
	}
	return "", false, false
}

// Gone says that the connection of a session is closed. What was acked in it stays acked, until the slave says what it has.
func (l *Leader) Gone(session uint64) {
	if s := l.of(session); s != nil {
		s.gone, s.steady = true, time.Time{}
	}
}

// settle moves the committed position as early as the rules allow.
//
// "committed = min(own synced, acked by every slave in the in-sync set)"; auto: "of the union of the set the registry may hold and the one
// wanted" (rules OwnSync, SetAcks, UnionSet).
func (l *Leader) settle() {
	c := l.synced
	if l.off.off(ruleOwnSync) {
		c = l.end
	}
	for _, s := range l.slaves {
		acked := s.acked
		if s.copying {
			acked = 0
		}
		s.waited = s.set || s.joining || l.auto && !l.off.off(ruleUnionSet) && l.mayHold(s.broker)
		if s.waited && !l.off.off(ruleSetAcks) && !planted.Bug("replica: committed without the slaves") {
			c = min(c, acked)
		}
		l.copied = max(l.copied, acked)
	}
	if l.met == 0 {
		l.committed = max(l.committed, c)
	}
}

// mayHold says whether the registry may have the broker in its set.
func (l *Leader) mayHold(broker string) bool {
	_, ok := l.row.Member(broker)
	return ok || slices.Contains(l.former, broker) || slices.Contains(l.unknown, broker)
}

func (l *Leader) leave(now time.Time, s *slaveOf, why string) {
	s.set, s.steady = false, time.Time{}
	if s.joined.IsZero() || now.Sub(s.joined) >= leftSoon {
		s.delay = 1
	} else {
		s.delay = min(2*s.delay, delayMax)
	}
	l.event(s.broker, "left", why)
	l.settle()
}

// Tick lets slaves leave and join as time goes by. It is called every 50 ms or so. Time that the caller itself was stopped for is nobody's silence.
func (l *Leader) Tick(now time.Time) {
	if gap := now.Sub(l.ticked); gap > l.timing.LeaveAfter/2 {
		for _, s := range l.slaves {
			s.heard = s.heard.Add(gap)
			if !s.since.IsZero() {
				s.since = s.since.Add(gap)
			}
		}
	}
	l.ticked = now
	if l.met != 0 {
		return
	}
	for _, s := range l.slaves {
		l.owe(now, s)
		late, silent, behind := l.lag(now, s), now.Sub(s.heard), int64(l.end)-int64(s.acked)
		if s.set {
			switch {
			case late > l.timing.LeaveAfter:
				l.leave(now, s, fmt.Sprintf("it has not acked %d bytes for %v", behind, late.Round(time.Millisecond)))
			case silent > l.timing.LeaveAfter:
				l.leave(now, s, fmt.Sprintf("it was not heard for %v", silent.Round(time.Millisecond)))
			case behind > l.timing.LeaveBytes:
				l.leave(now, s, fmt.Sprintf("it is %d bytes behind", behind))
			}
			continue
		}
		// rules JoinAtCommitted and JoinBeyondEpoch: this master does not know how far the one before it committed, so all that it held when it
		// opened counts as committed.
		inStep := s.begun && !s.gone && !s.copying && late <= l.timing.LeaveAfter/2 && silent <= l.timing.LeaveAfter/2 && behind <= l.timing.LeaveBytes/2 &&
			(s.acked >= l.begins || l.off.off(ruleJoinBeyondEpoch))
		if !inStep {
			s.steady = time.Time{}
			if s.joining {
				s.joining = false
				l.settle()
			}
			continue
		}
		if s.steady.IsZero() {
			s.steady = now
		}
		wait := l.wait(now, s)
		switch {
		case now.Sub(s.steady) < wait:
		case s.acked < l.committed && !l.off.off(ruleJoinAtCommitted):
			s.joining = true
		default:
			s.joining = false
			s.set, s.joined = true, now // rule JoinMasterFirst: it is waited for before the registry hears of it
			l.event(s.broker, "joined", "it is in step")
			l.settle()
		}
	}
}

// wait is how long the slave has to be in step before it joins.
func (l *Leader) wait(now time.Time, s *slaveOf) time.Duration {
	if s.joined.IsZero() && now.Sub(l.opened) < l.timing.JoinAfter {
		return 0 // it was in step with the master before, or leaves again
	}
	return time.Duration(s.delay) * l.timing.JoinAfter
}

// lag is since when the slave owes what it has not acked.
func (l *Leader) lag(now time.Time, s *slaveOf) time.Duration {
	if s.since.IsZero() {
		return 0
	}
	return now.Sub(s.since)
}

// Ask returns the compare-and-set that the master has for the registry, if it has one and none is under way. persist is what the caller
// syncs in State.Set, with the term, before it sends the ask (rule PersistSet); nil on fixed broker groups. Then it calls Asked.
func (l *Leader) Ask(now time.Time) (a term.Ask, persist []term.Member, ok bool) {
	if l.met != 0 || l.handing != "" || l.asking && now.Sub(l.asked) < askAgain || now.Sub(l.asked) < askSoonest {
		return a, nil, false
	}
	if now.Sub(l.opened) < l.timing.LeaveAfter && slices.ContainsFunc(l.slaves, func(s *slaveOf) bool { return s.waited && !s.set }) {
		return a, nil, false // who was in sync with the master before has not come yet
	}
	set := l.members()
	if l.row.Term != 0 && len(l.former) == 0 && len(l.unknown) == 0 && slices.Equal(set, l.row.Set) && l.row.Start == l.epoch.Start() {
		return a, nil, false
	}
	return l.ask(now, term.Ask{Set: set}), l.persist(), true
}

func (l *Leader) ask(now time.Time, a term.Ask) term.Ask {
	a.Master, a.Term, a.Start, a.Change, a.Seen = l.self, l.epoch.Term(), l.epoch.Start(), l.row.Change, l.epoch.Term()
	for _, m := range a.Set {
		if !slices.Contains(l.unknown, m.Broker) {
			l.unknown = append(l.unknown, m.Broker)
		}
	}
	l.asking, l.asked = true, now
	l.settle()
	return a
}

// members is the set that is wanted.
func (l *Leader) members() []term.Member {
	var set []term.Member
	for _, s := range l.slaves {
		if s.set {
			set = append(set, s.member)
		}
	}
	return set
}

// persist is what a next life of this master must wait for.
func (l *Leader) persist() []term.Member {
	if !l.auto {
		return nil
	}
	set := []term.Member{}
	for _, s := range l.slaves {
		if s.waited && !planted.Bug("replica: set not persisted") {
			set = append(set, s.member)
		}
	}
	return set
}

// Asked takes the answer to an ask: the row as it is then, and whether the ask was carried out. err: nobody knows; the ask may be carried out later.
// true: the row is another master's or of another term, and the caller steps down (Met).
func (l *Leader) Asked(a term.Ask, row term.Row, changed bool, err error) (stepDown bool) {
	l.asking = false
	if err != nil {
		return false
	}
	if changed && a.Start == l.epoch.Start() {
		// Every ask that compared with an older row is void now, those of a former life among them.
		l.former = nil
	}
	if l.off.off(ruleUnanswered) {
		l.unknown = nil
	}
	return l.HeardRow(row)
}

// HeardRow hears the registry's row. A refusal of an older ask says nothing about a newer one that is still on its way: what was asked
// stays possible until the row has moved on from what it compared with (rules UnansweredBothWays, CASAlwaysBumps). true: as Asked.
func (l *Leader) HeardRow(row term.Row) (stepDown bool) {
	switch {
	case row.Term < l.epoch.Term():
		return false // an older one
	case row.Term > l.epoch.Term() || row.Master.Broker != l.self.Broker:
		return true
	case l.row.Term != 0 && row.Change <= l.row.Change:
		return false
	}
	l.row = row
	l.unknown, l.handing, l.asking = nil, "", false
	for _, m := range row.Set {
		if l.find(m.Broker) == nil && m.Broker != l.self.Broker && len(l.slaves) < slavesMax {
			l.add(m) // the registry holds it: it is waited for until that is changed
		}
	}
	l.settle()
	return false
}

// HandOver returns the ask that hands over to a slave. The caller has stopped appends and begins none before the ask is settled: Handing says so. It
// may be repeated; an Abandon settles it the other way.
func (l *Leader) HandOver(now time.Time, to string) (a term.Ask, persist []term.Member, err error) {
	s := l.find(to)
	switch {
	case l.met != 0:
		return a, nil, ErrFenced
	case l.handing != "" && l.handing != to:
		return a, nil, fmt.Errorf("%w: %q, handing over to %q is not settled", ErrHandOver, to, l.handing)
	case s != nil && !s.set && planted.Bug("replica: transfer to a slave that is behind"):
		l.handing = to
		return l.ask(now, term.Ask{Set: append(l.members(), s.member), To: to}), l.persist(), nil
	case s == nil || !s.set || !s.begun:
		return a, nil, fmt.Errorf("%w: broker %q is not in sync", ErrHandOver, to)
	case s.acked != l.end || l.committed != l.end:
		return a, nil, fmt.Errorf("%w: the journal ends at %d, is committed up to %d, and broker %q has it up to %d", ErrHandOver, l.end, l.committed, to, s.acked)
	case l.row.Term == 0:
		return a, nil, fmt.Errorf("%w: the registry has not been heard yet", ErrHandOver)
	}
	a = l.ask(now, term.Ask{Set: l.members(), To: to})
	l.handing = to
	return a, l.persist(), nil
}

// Abandon returns an ask that, when it is carried out, voids the one to hand over.
func (l *Leader) Abandon(now time.Time) (a term.Ask, persist []term.Member) {
	return l.ask(now, term.Ask{Set: l.members()}), l.persist()
}

// Handing says whether an ask to hand over may still be carried out: nothing may be appended.
func (l *Leader) Handing() bool { return l.handing != "" }

// Met hears of a term. true: it is a higher one, and this master has stopped: it answers nothing any more (rule HigherTermStops). The caller syncs
// State.Seen before it answers or promises anything in that term.
func (l *Leader) Met(t uint32) (stopped bool) {
	if t <= l.epoch.Term() || l.off.off(ruleHigherTermStops) || planted.Bug("replica: higher term ignored") {
		return false
	}
	l.met = max(l.met, t)
	return true
}

// Stop ends the master where no higher term is known: the journal failed.
func (l *Leader) Stop() { l.met = math.MaxUint32 }

func (l *Leader) Stopped() bool               { return l.met != 0 }
func (l *Leader) Epoch() journal.Epoch        { return l.epoch }
func (l *Leader) End() journal.Position       { return l.end }
func (l *Leader) Committed() journal.Position { return l.committed }

// Copied is up to where at least one slave has the journal: what a replicated append needs beside its commit (rule ReplicatedNeedsSlave).
func (l *Leader) Copied() journal.Position {
	if l.off.off(ruleReplicatedNeedsSlave) || planted.Bug("replica: own copy counts as a slave's") {
		return l.end
	}
	return l.copied
}

// InSync says whether a slave is in sync: else a replicated append is refused before anything is written.
func (l *Leader) InSync() bool {
	return slices.ContainsFunc(l.slaves, func(s *slaveOf) bool { return s.set })
}

// Settled says whether everything up to where the journal was opened is committed, so that readers may begin.
func (l *Leader) Settled() bool { return l.committed >= l.begins }

// Slaves returns the slaves by broker.
func (l *Leader) Slaves(now time.Time) []SlaveState {
	out := make([]SlaveState, 0, len(l.slaves))
	for _, s := range l.slaves {
		state := SlaveState{
			Member: s.member, InSync: s.set, Waited: s.waited, Begun: s.begun && !s.gone, Refused: s.refuse,
			Acked: s.acked, Synced: s.synced, Lag: l.lag(now, s), Heard: s.heard,
		}
		if !s.set && !s.steady.IsZero() {
			state.Join = max(time.Millisecond, l.wait(now, s)-now.Sub(s.steady))
		}
		out = append(out, state)
	}
	return out
}
