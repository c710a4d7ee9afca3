package replica

import (
	"errors"
	"fmt"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/planted"
	"github.com/jmqio/jmq/server/term"
)

var (
	// ErrStale: the session, or the master's epoch, is not the current one; who gets it begins anew.
	ErrStale = errors.New("replica: not the current session or term")
	// ErrPeer: what a peer says cannot be.
	ErrPeer = errors.New("replica: a peer says what cannot be")
	// ErrRegistryFirst: a broker with a new store forgot what it promised, so it takes nothing before the registry told it the term.
	ErrRegistryFirst = errors.New("replica: a new store takes nothing from a master before the registry has told the term")
)

// Hello is what a slave says when it comes to a master.
type Hello struct {
	term.Member
	Seen      uint32 // the highest term that it met
	History   History
	Committed journal.Position // the highest that it knows
	Session   uint64           // not 0: it has done what the last Welcome asked for
	Copying   bool             // it makes a full copy, which is nothing before it is whole and in its place
}

// Welcome is the master's answer.
type Welcome struct {
	Epoch     journal.Epoch
	Session   uint64
	Match     journal.Position // up to here both are the same
	Forced    bool             // an epoch after Match was granted by force
	Copy      bool             // they have nothing in common: the slave needs a full copy
	History   History          // the master's
	Committed journal.Position
	Begun     bool // the session has begun: pushes may come
}

// FollowStep is what a slave does next.
type FollowStep uint8

const (
	StepCut    FollowStep = iota // cut the journal to Match (nothing, if that is its end), then say Hello with the session
	StepBegin                    // the session has begun
	StepCopy                     // a full copy is needed
	StepRefuse                   // it would have to cut below what is committed: an alarm, until an operator or another master comes
)

func (s FollowStep) String() string { return [...]string{"cut", "begin", "copy", "refuse"}[s] }

// Follower is what a slave decides. It does no I/O: the caller has the journal, and persists what it is told to before it goes on. Not safe
// for concurrent use.
type Follower struct {
	self      term.Member
	fresh     bool   // the store was empty when it was opened, and no session has begun since
	seen      uint32 // the highest term met, durable
	row       uint32 // term of the registry's row as last heard; 0: none
	epoch     journal.Epoch
	session   uint64
	begun     bool
	end       journal.Position
	committed journal.Position // committed <= end, but after StepRefuse
	refused   journal.Epoch    // of the master that it refuses to follow
	off       rule
}

// FollowerOptions are of NewFollower.
type FollowerOptions struct {
	Self      term.Member
	Fresh     bool   // the store has no record and never had one
	Seen      uint32 // State.Seen
	End       journal.Position
	Committed journal.Position
}

// NewFollower returns a slave that has no session.
func NewFollower(o FollowerOptions) *Follower {
	return &Follower{self: o.Self, fresh: o.Fresh, seen: o.Seen, end: o.End, committed: o.Committed}
}

// Hello is what to say to a master. h is the journal's.
func (f *Follower) Hello(h History, session uint64) Hello {
	return Hello{Member: f.self, Seen: f.seen, History: h, Committed: f.committed, Session: session}
}

// Met hears of a term. true: it is the highest, and must be synced (State.Seen) before anything is answered in it or promised
// (rule SeenTermDurable). A session of a lower term has ended (rule HigherTermStops).
func (f *Follower) Met(t uint32) bool {
	if t <= f.seen {
		return false
	}
	f.seen = t
	if f.begun && f.epoch.Term() < t && !f.off.off(ruleHigherTermStops) {
		f.Ended()
	}
	return true
}

// HeardRow hears the registry's row, of the current generation. true as Met.
func (f *Follower) HeardRow(r term.Row) bool {
	f.row = max(f.row, r.Term)
	return f.Met(r.Term)
}

// Welcomed decides what to do with a master's answer. h is the journal's history. The caller persists Seen (the master's term, which Met has
// taken in) and Granted = 0 before it carries the step out.
func (f *Follower) Welcomed(h History, w Welcome) (FollowStep, error) {
	if err := w.History.Check(); err != nil {
		return 0, err
	}
	switch {
	case w.Epoch.Term() < f.seen && !f.off.off(ruleHigherTermStops), w.Epoch < h.Last():
		return 0, fmt.Errorf("%w: master of epoch %v, while term %d was met and the journal ends in %v", ErrStale, w.Epoch, f.seen, h.Last())
	case w.History.Last() != w.Epoch:
		return 0, fmt.Errorf("%w: a master of epoch %v whose journal ends in %v", ErrPeer, w.Epoch, w.History.Last())
	case f.fresh && f.row == 0 && !f.off.off(ruleNewStoreAsksTerm):
		return 0, ErrRegistryFirst
	case f.fresh && w.Epoch.Term() < f.row && !f.off.off(ruleNewStoreAsksTerm):
		return 0, fmt.Errorf("%w: master of epoch %v, and the registry is at term %d", ErrStale, w.Epoch, f.row)
	}
	f.Met(w.Epoch.Term())
	match, ok := Common(h, w.History)
	if !ok || w.Copy {
		differ := !ok && match < h.End && match < w.History.End
		if (differ && match < f.committed || w.History.End < f.committed) && !f.mayLose(w.History, h.Last()) {
			f.refused = w.Epoch
			return StepRefuse, nil
		}
		return StepCopy, nil
	}
	if match != w.Match {
		return 0, fmt.Errorf("%w: both journals are the same up to %d, and the master says %d", ErrPeer, match, w.Match)
	}
	if w.Begun {
		if match != h.End || w.Session == 0 {
			return 0, fmt.Errorf("%w: a session began at %d of a journal that ends at %d", ErrPeer, match, h.End)
		}
		f.epoch, f.session, f.begun, f.end, f.fresh, f.refused = w.Epoch, w.Session, true, match, false, 0
		f.heard(w.Committed)
		return StepBegin, nil
	}
	if f.off.off(ruleCommitAfterMatch) {
		f.committed = max(f.committed, min(w.Committed, h.End))
	}
	if match < f.committed && !f.mayLose(w.History, h.Last()) {
		f.refused = w.Epoch
		return StepRefuse, nil
	}
	return StepCut, nil
}

// mayLose says whether what is known to be committed may be cut for a master: an operator has accepted that in an epoch that this journal does
// not have (rules NoCutBelowCommit, ForcedEpochCuts).
func (f *Follower) mayLose(master History, last journal.Epoch) bool {
	return f.off.off(ruleNoCutBelowCommit) || planted.Bug("replica: cut below what is committed") || master.ForcedSince(last) && !f.off.off(ruleForcedEpochCuts)
}

// Cut says that the journal ends at to now, durably.
func (f *Follower) Cut(to journal.Position) {
	f.end = to
	f.committed = min(f.committed, to)
}

// Refused says whether the slave refuses to follow the master that it last came to.
func (f *Follower) Refused() bool { return f.refused != 0 }

// Push decides whether what a master pushed may be written: n bytes of whole records that begin at from; n may be 0. An error ends the session.
func (f *Follower) Push(epoch journal.Epoch, from journal.Position, n int) error {
	switch {
	case !f.begun || epoch != f.epoch || f.seen > epoch.Term() && !f.off.off(ruleHigherTermStops):
		return fmt.Errorf("%w: a push of epoch %v in a session of %v, term %d was met", ErrStale, epoch, f.epoch, f.seen)
	case from != f.end:
		return fmt.Errorf("%w: records at %d are pushed to a journal that ends at %d", ErrPeer, from, f.end)
	}
	return nil
}

// Wrote says that all of a push is written, so that the journal ends at end; committed is what came with it. A commit position counts only in a session,
// after divergence is resolved, and only up to the end matched in it (rule CommitAfterMatch). The result is what is known to be committed now.
func (f *Follower) Wrote(end, committed journal.Position) journal.Position {
	f.end = end
	if planted.Bug("replica: slave serves beyond committed") {
		committed = end
	}
	f.heard(committed)
	return f.committed
}

func (f *Follower) heard(committed journal.Position) {
	f.committed = max(f.committed, min(committed, f.end))
}

// Ended says that the session is over: the connection broke, or the master is none any more.
func (f *Follower) Ended() { f.epoch, f.session, f.begun = 0, 0, false }

// Session returns the session and the master's epoch; false: there is none.
func (f *Follower) Session() (uint64, journal.Epoch, bool) { return f.session, f.epoch, f.begun }

func (f *Follower) Seen() uint32                { return f.seen }
func (f *Follower) End() journal.Position       { return f.end }
func (f *Follower) Committed() journal.Position { return f.committed }
