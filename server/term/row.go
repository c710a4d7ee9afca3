package term

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/jmqio/jmq/server/planted"
)

// generationStep is what a new generation adds to Change: more than an older copy of the row can lack, so that no ask that is still on its way
// compares with what comes, and no master takes it for older than what it knows.
const generationStep = 1 << 20

// All functions return a new row and leave the old one, its slices too, as it is. A row that was changed has a higher Change: whoever keeps
// the row stores it by comparing with the one that was read.

// Unanswerable says whether nothing may be said, asked or granted: the metadata is of another generation than the row
// (rule RestoreEmptiesSets), until Refill. A broker group that never had a master is answerable.
func (r Row) Unanswerable(generation uint64) bool { return r.Term != 0 && r.Generation != generation }

// Member returns the broker's entry in the set.
func (r Row) Member(broker string) (Member, bool) {
	for _, m := range r.Set {
		if m.Broker == broker {
			return m, true
		}
	}
	return Member{}, false
}

// Register takes what a broker says of itself with each heartbeat. The first one that may be master is named, in term 1. A member that
// comes with another boot or store is none any more: "membership belongs to one boot and one store". ErrNotReady: Refill must come first.
func (r Row) Register(rep Report, mayBeMaster bool, generation uint64) (Row, error) {
	if r.Unanswerable(generation) || r.Term == 0 && (rep.Seen > 0 || rep.LastTerm > 0) {
		return r, ErrNotReady // it was in a term that this metadata does not know
	}
	if r.Term == 0 {
		if !mayBeMaster {
			return r, nil
		}
		return Row{Term: 1, Master: rep.Member, Change: r.Change + 1, Generation: generation}, nil
	}
	if m, ok := r.Member(rep.Broker); ok && m != rep.Member && !planted.Bug("term: membership outlives a boot") {
		r.Set = slices.DeleteFunc(slices.Clone(r.Set), func(m Member) bool { return m.Broker == rep.Broker })
		r.Change++
	}
	return r, nil
}

// Compare is a master's compare-and-set: of the set, to hand over, or for a new term of its own. seen is the highest term that any broker
// of the broker group reported. With an error the row is as it was; with ErrStale it is what the master is answered.
func (r Row) Compare(a Ask, seen uint32, generation uint64) (Row, error) {
	switch {
	case r.Unanswerable(generation) || r.Term == 0:
		return r, ErrNotReady
	case r.Term != a.Term || r.Change != a.Change || r.Master.Broker != a.Master.Broker:
		return r, ErrStale
	}
	set := slices.Clone(a.Set)
	slices.SortFunc(set, func(a, b Member) int { return cmp.Compare(a.Broker, b.Broker) })
	for i, m := range set {
		if m.Broker == "" || m.Broker == r.Master.Broker || i > 0 && set[i-1].Broker == m.Broker {
			return r, fmt.Errorf("%w: broker %q cannot be in the set", ErrAsk, m.Broker)
		}
	}
	switch {
	case a.Copied: // NewStoreNewTerm
		if a.To != "" {
			return r, fmt.Errorf("%w: a term of its own, and to hand over", ErrAsk)
		}
		if a.End < r.Committed {
			return r, fmt.Errorf("%w: that of broker %s ends at %d, and %d is committed", ErrShort, a.Master.Broker, a.End, r.Committed)
		}
		next := r.grant(a.Master, r.Set, max(seen, a.Seen), false)
		next.Fence = true // what its former life sent in the old term may have reached a slave since it copied
		return next, nil
	case a.Master.Store != r.Master.Store:
		return r, fmt.Errorf("%w: the master has another store than was named", ErrAsk)
	case a.To != "":
		i := slices.IndexFunc(set, func(m Member) bool { return m.Broker == a.To })
		if i < 0 {
			return r, fmt.Errorf("%w: broker %q is not in the set of the master that hands over to it", ErrAsk, a.To)
		}
		return r.grant(set[i], set, max(seen, a.Seen), false), nil
	}
	r.Set, r.Start = set, max(r.Start, a.Start)
	r.Change++ // CASAlwaysBumps: also when the set stays the same, so that a request sent before is settled
	return r, nil
}

// Leap is how far above the highest term that is known one that somebody says he met may be. Each change of master adds one, and there is none after the
// last, so a term above that is not believed.
const Leap = 1 << 20

// grant names m master of a term higher than any that was met; it carries the set that was (rule GrantNamesBoot: with m's boot and store).
func (r Row) grant(m Member, set []Member, seen uint32, forced bool) Row {
	if seen > r.Term && seen-r.Term > Leap {
		seen = 0
	}
	set = slices.DeleteFunc(slices.Clone(set), func(s Member) bool { return s.Broker == m.Broker })
	return Row{Term: max(r.Term, seen) + 1, Master: m, Forced: forced, Set: set, Change: r.Change + 1, Generation: r.Generation, Committed: r.Committed}
}

// Highest is the highest term that the reports and the row know.
func (r Row) Highest(reports []Report) uint32 {
	t := r.Term
	for _, rep := range reports {
		t = max(t, rep.Seen, rep.LastTerm, rep.Term)
	}
	return t
}

// Promote names a member of the set master, without an operator: the most complete of those that have reported (rules PromoteMembersOnly,
// BootMembership, MembershipNamesStore). reports are those of brokers that are alive, without the one that is taken as away; known is the
// highest committed position that the master of r.Term was heard to know: who ends below it has lost some, for its disk is an older image.
func (r Row) Promote(reports []Report, known uint64, generation uint64) (Row, error) {
	if r.Unanswerable(generation) || r.Term == 0 {
		return r, ErrNotReady
	}
	best := Report{}
	for _, rep := range reports {
		m, ok := r.Member(rep.Broker)
		if ok && planted.Bug("term: membership outlives a boot") {
			m = rep.Member
		}
		if (!ok || m != rep.Member) && !planted.Bug("term: promoted from outside the set") || rep.Refused || rep.New || rep.Master || rep.End < known || rep.Broker == r.Master.Broker {
			continue
		}
		if best.Broker == "" || rep.MoreComplete(best) {
			best = rep
		}
	}
	if best.Broker == "" {
		return r, ErrNoCandidate
	}
	return r.grant(best.Member, r.Set, r.Highest(reports), false), nil
}

// Force names to master by an operator's word. Before it, every broker of the broker group, to among them, has promised to do nothing in a term lower
// than the new one, Highest + 1, or the operator says that it is off (rule ForcedFencesAll); reports have what they answered. (Were to not
// asked, one that was off could start, hear from all others that nobody met a higher term, and open.) The new epoch says
// that it was forced, so that others may cut what they knew to be committed (rule ForcedEpochCuts).
func (r Row) Force(to Member, reports []Report, generation uint64) (Row, error) {
	if r.Unanswerable(generation) || r.Term == 0 {
		return r, ErrNotReady
	}
	r.Committed = 0 // what the promoted one does not have of it is given up
	return r.grant(to, nil, r.Highest(reports), true), nil
}

// A Loss is why something may be lost when a broker is promoted by force.
type Loss struct {
	Broker string
	// Beyond is how many bytes of Broker's journal the promoted one does not have, if both have the same up to its end; 0 with Diverged, and if
	// Broker cannot be asked.
	Beyond   uint64
	Acked    bool // Broker knows some of it to be committed
	Diverged bool // its last epoch is a later one: more than Beyond may be missing
	Unasked  bool // it is off: nobody knows what it has
	// Committed is up to where a master said that messages are committed, which the promoted one does not have; Broker is empty.
	Committed uint64
}

// Losses says what may be lost when to is promoted: nothing if it is empty. reports are those of all other brokers that answered, committed is
// the row's.
func Losses(to Report, reports []Report, off []string, committed uint64) []Loss {
	var out []Loss
	if committed > to.End && !slices.ContainsFunc(reports, func(rep Report) bool { return rep.End >= committed }) { // else it is in what that one has more
		out = append(out, Loss{Beyond: committed - to.End, Acked: true, Committed: committed})
	}
	for _, rep := range reports {
		if rep.Broker == to.Broker || !rep.MoreComplete(to) {
			continue
		}
		l := Loss{Broker: rep.Broker, Acked: rep.Committed > to.End, Diverged: rep.LastTerm != to.LastTerm || rep.LastStart != to.LastStart}
		if rep.End > to.End {
			l.Beyond = rep.End - to.End
		}
		out = append(out, l)
	}
	for _, b := range off {
		if b != to.Broker {
			out = append(out, Loss{Broker: b, Unasked: true})
		}
	}
	return out
}

// Refill ends the time after a new generation of the metadata: every broker of the group has reported, or the operator says that it is gone.
// The master of the highest term is entered, or else the most complete broker gets a new term; the set is empty either way
// (rule RestoreEmptiesSets). reports are by broker.
func (r Row) Refill(group []string, reports map[string]Report, gone []string, generation uint64) (Row, error) {
	var all []Report
	for _, b := range group {
		rep, ok := reports[b]
		switch {
		case ok:
			all = append(all, rep)
		case !slices.Contains(gone, b):
			return r, ErrNotReady
		}
	}
	if len(all) == 0 {
		return r, ErrNotReady
	}
	r.Generation, r.Set = generation, nil
	r.Change += generationStep
	highest := r.Highest(all)
	most := all[0]
	for _, rep := range all {
		if rep.Master && rep.Term == highest {
			return Row{Term: rep.Term, Master: rep.Member, Change: r.Change + 1, Generation: generation}, nil
		}
		if rep.MoreComplete(most) {
			most = rep
		}
	}
	next := r.grant(most.Member, nil, highest, false)
	next.Fence = true
	return next, nil
}

// Confirm takes a report that knows a higher term than the row. A master of a higher term is entered, with an empty set. Else a promotion by force was
// begun, so that brokers promised, and never written: the named master gets a term that is higher still, or those would never follow it; the
// caller waits some seconds for the promotion first. reports are the last ones of all brokers. changed is false where there is nothing to confirm.
func (r Row) Confirm(rep Report, reports []Report, generation uint64) (row Row, changed bool) {
	switch {
	case r.Unanswerable(generation) || r.Term == 0:
		return r, false
	case rep.Master && rep.Term > r.Term:
		return Row{Term: rep.Term, Master: rep.Member, Change: r.Change + 1, Generation: generation}, true
	case rep.Seen > r.Term:
		m, fence := r.Master, r.Fence
		for _, o := range append(slices.Clone(reports), rep) {
			if o.Broker == m.Broker && o.Store == m.Store && o.LastTerm == r.Term {
				m, fence = o.Member, false // it has opened in the term, so it holds what it must, in whatever boot
			}
		}
		next := r.grant(m, r.Set, max(rep.Seen, r.Highest(reports)), r.Forced)
		next.Fence = fence
		return next, true
	}
	return r, false
}

// MoreComplete orders journals: the later last epoch first, then the longer one.
func (rep Report) MoreComplete(than Report) bool {
	return cmp.Or(cmp.Compare(rep.LastTerm, than.LastTerm), cmp.Compare(rep.LastStart, than.LastStart), cmp.Compare(rep.End, than.End)) > 0
}
