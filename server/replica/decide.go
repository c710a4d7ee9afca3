package replica

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/term"
)

// Met is what another broker of the broker group answered when it was asked (Meet). The asker gives the term that it was granted, if it was
// granted one, so that the other has promised to do nothing in a lower term before it says what it has.
type Met struct {
	term.Member
	Seen      uint32 // the highest term that it met
	Master    bool   // it acts as master, of the epoch in which its history ends
	Fresh     bool   // its store has no record
	History   History
	Committed journal.Position
}

// Known is what a broker decides by. State has taken in Row (Hear).
type Known struct {
	Self      term.Member
	State     State
	Fresh     bool             // the store has no record and never had one
	History   History          // of the own journal, up to its real end
	Committed journal.Position // the highest that it knows
	Auto      bool
	Others    []string  // names of the other brokers of the broker group
	Row       *term.Row // nil: the registry cannot be reached, or its metadata is of a generation in which nothing is answered yet
	Met       []Met     // of the others: who has answered
	// Told is the highest committed position that masters told the registry of, up to the granted term and since the last promotion by force, and Start
	// the start of the last opening in that term that the registry heard of: as it has said at any time since the broker started. 0: not known. That the
	// registry is away now makes neither untrue.
	Told  journal.Position
	Start uint32
	Jump  uint32 // by how much the own counter of starts is raised; 0: by 1
	off   rule
}

// Act is what a broker does.
type Act uint8

const (
	ActWait   Act = iota // as Why says; decide again when something new is known
	ActLead              // begin Epoch, and open as master
	ActFollow            // be a slave of From; "": of whoever says that it is the master
	ActCopy              // cut the own journal to Cut, take From's records [Cut, To), sync, and decide again
	ActTerm              // ask the registry for a term: Ask; hear the row, and decide again
	ActSettle            // ask the registry for the row as it is, so that no ask of a former life is carried out any more: Ask; hear the row, and decide again
)

func (a Act) String() string {
	return [...]string{"wait", "lead", "follow", "copy", "ask for a term", "ask for what is"}[a]
}

// Decision is what a broker does now, and why.
type Decision struct {
	Act     Act
	Why     string
	From    string
	Cut, To journal.Position // of ActCopy; Cut is the own end where only more is taken
	Full    bool             // of ActCopy: nothing is in common, all of From's journal is taken
	Epoch   journal.Epoch    // of ActLead
	Forced  bool
	Set     []term.Member // of ActLead, on auto broker groups: who the registry may hold; persisted with the term before the journal is opened
	Seen    uint32        // the highest term met: persisted first, if it is higher than State.Seen
}

// Hear is how a state takes in the registry's row, of the current generation; the caller persists the result before it acts on it. A row of a term
// lower than one that was met is an older one, and changes nothing.
func (s State) Hear(self term.Member, r term.Row) State { return s.hear(self, r, 0) }

func (s State) hear(self term.Member, r term.Row, off rule) State {
	if r.Term == 0 || r.Term < s.Seen {
		return s
	}
	s.Seen = r.Term
	if r.Master.Broker != self.Broker {
		s.Granted, s.Grant, s.Forced, s.Fence, s.Handing = 0, term.Member{}, false, false, 0
		return s
	}
	if s.Granted != r.Term {
		s.Granted, s.Grant, s.Forced, s.Fence, s.Handing = r.Term, r.Master, r.Forced, r.Fence, 0
	}
	if r.Change >= s.Handing {
		s.Handing = 0
	}
	// The grant carries the registry's set; a set of another term says nothing (rule PersistedSetOfTerm).
	if s.SetTerm != r.Term && !off.off(rulePersistedSetOfTerm) {
		s.Set, s.SetTerm = slices.Clone(r.Set), r.Term
	}
	return s
}

// Decide says what a broker that starts, or that was told something new, may do.
func Decide(k Known) Decision {
	d := Decision{Seen: max(k.State.Seen, k.History.Last().Term())}
	for _, m := range k.Met {
		d.Seen = max(d.Seen, m.Seen)
	}
	named := k.State.Granted != 0 && (k.Row == nil || k.Row.Master.Broker == k.Self.Broker && k.Row.Term == k.State.Granted)
	if !named {
		return k.follow(d)
	}
	wait := func(format string, args ...any) Decision {
		d.Act, d.Why = ActWait, fmt.Sprintf(format, args...)
		return d
	}
	// rule OpenConfirmsTerm
	if away := k.away(); k.Row == nil && len(away) > 0 && !k.off.off(ruleOpenConfirmsTerm) {
		return wait("it was named master of term %d, the registry is away, and so are %v: one of them may have met a higher term", k.State.Granted, away)
	}
	if d.Seen > k.State.Granted && !k.off.off(ruleHigherTermStops) {
		return wait("it was named master of term %d, and term %d was met", k.State.Granted, d.Seen)
	}
	behind, isNew := k.behind()
	if behind == "" && k.State.Fence && k.History.Last().Term() < k.State.Granted && !k.off.off(ruleFence) {
		behind = "it was named by what was known before all others had promised to follow it"
	}
	if behind != "" {
		if !k.off.off(ruleFence) { // what was answered before the promise may not be all any more
			k.Met = slices.DeleteFunc(slices.Clone(k.Met), func(m Met) bool { return m.Seen < k.State.Granted })
		}
		away := k.away()
		from, ok := k.mostComplete(away)
		if !ok {
			return wait("%s, and %v cannot be asked, one of which may have more", behind, away)
		}
		if from != nil && from.History.MoreComplete(k.History) {
			cut, ok := Common(k.History, from.History)
			lose := cut < min(k.Committed, k.History.End) && !from.History.ForcedSince(k.History.Last()) && !k.off.off(ruleNoCutBelowCommit)
			switch {
			case !lose:
				d.Act, d.Why, d.From, d.Cut, d.To, d.Full = ActCopy, behind, from.Broker, cut, from.History.End, !ok
				return d
			case !k.State.Forced:
				return wait("%s, and broker %s, which has more, is the same only up to %d, below %d, which is committed", behind, from.Broker, cut, k.Committed)
			}
			// An operator chose between two journals of which each has what is committed and the other lacks.
		}
		if k.Told > k.History.End && !k.off.off(ruleToldStops) {
			return wait("%s. No broker that answers has what was acknowledged: one that has it must come, or an operator promote by force", k.short())
		}
		if isNew && !k.off.off(ruleNewStoreNewTerm) {
			if k.Row == nil {
				return wait("%s, and the registry is away, which would have to grant it a term of its own", behind)
			}
			d.Act, d.Why = ActTerm, behind
			return d
		}
	}
	// "before cutting, a master asks its slaves for the range and takes it back if they continue the same epoch."
	for _, m := range k.Met {
		if cut, ok := Common(k.History, m.History); ok && cut == k.History.End && m.History.End > cut && len(k.History.Epochs) > 0 {
			if epoch, to := m.History.at(cut); epoch == k.History.Last() {
				d.Act, d.From, d.Cut, d.To = ActCopy, m.Broker, cut, to
				d.Why = fmt.Sprintf("broker %s has more of epoch %v", m.Broker, epoch)
				return d
			}
		}
	}
	if k.State.Handing > 0 && !k.off.off(ruleHandingSettled) {
		const why = "it was handing over when it ended, and that may still be carried out"
		if k.Row == nil {
			return wait("%s: the registry, which knows, is away", why)
		}
		d.Act, d.Why = ActSettle, why
		return d
	}
	d.Act, d.Epoch, d.Forced = ActLead, k.History.NextEpoch(k.State.Granted, k.Jump), k.State.Forced
	d.Why = fmt.Sprintf("it was named master of term %d", k.State.Granted)
	if k.Auto {
		d.Set = k.mayHold()
	}
	return d
}

// away are the other brokers that have not answered.
func (k Known) away() (list []string) {
	for _, b := range k.Others {
		if !slices.ContainsFunc(k.Met, func(m Met) bool { return m.Broker == b }) {
			list = append(list, b)
		}
	}
	return list
}

// Ask is what the registry is asked for ActTerm and ActSettle.
func (d Decision) Ask(self term.Member, row term.Row, end journal.Position) term.Ask {
	a := term.Ask{Master: self, Term: row.Term, Change: row.Change, Seen: d.Seen}
	if d.Act == ActTerm {
		a.Copied, a.End = true, uint64(end)
	} else {
		a.Set, a.Start = row.Set, row.Start
	}
	return a
}

// behind says why the own journal may not be all that a master of the granted term must have; "": it is. isNew: it cannot count its starts any
// more, so that it needs a term of its own.
func (k Known) behind() (why string, isNew bool) {
	grant, last := k.State.Grant, k.History.Last()
	if !k.off.off(ruleStoreIDs) {
		switch {
		case k.Row != nil && k.Row.Master.Store != k.Self.Store, grant.Store != k.Self.Store:
			return "its store is new", true
		case !k.off.off(ruleOldImage) && k.Start > 0 && journal.MakeEpoch(k.State.Granted, k.Start) > last:
			return fmt.Sprintf("its journal ends in epoch %v, and the registry knows that it opened %d.%d: it is an older image", last, k.State.Granted, k.Start), true
		}
		for _, m := range k.Met {
			if theirs := m.History.Last(); !k.off.off(ruleOldImage) && theirs > last && theirs.Term() == k.State.Granted {
				return fmt.Sprintf("its journal ends in epoch %v, and broker %s has %v: it is an older image", last, m.Broker, theirs), true
			}
		}
	}
	if last.Term() < k.State.Granted && grant.Boot != k.Self.Boot && !k.off.off(ruleGrantNamesBoot) {
		return "it was named before it lost what was not on its disk, and has not opened since", false
	}
	if !k.off.off(ruleStoreIDs) {
		if k.Told > k.History.End && !k.off.off(ruleOldImage) {
			return k.short(), false
		}
		for _, m := range k.Met {
			if m.Committed > k.History.End {
				return fmt.Sprintf("its journal ends at %d, and broker %s knows %d to be committed", k.History.End, m.Broker, m.Committed), false
			}
		}
	}
	return "", false
}

// short says that the own journal ends below what the registry knows to be committed.
func (k Known) short() string {
	if k.Fresh {
		return fmt.Sprintf("its store is empty, and the registry knows messages to be committed up to position %d", k.Told)
	}
	return fmt.Sprintf("its journal ends at position %d, and the registry knows messages to be committed up to %d: its disk is an older image, or lost some", k.History.End, k.Told)
}

// mostComplete returns whose journal to copy: on auto broker groups a current member of the registry's set, else the most complete of all others, which must
// all have answered (rule CopyMostComplete). nil: there is no other. ok is false if it cannot be known.
func (k Known) mostComplete(away []string) (best *Met, ok bool) {
	better := func(m *Met) {
		if best == nil || m.History.MoreComplete(best.History) {
			best = m
		}
	}
	if k.Auto && k.Row != nil {
		for i, m := range k.Met {
			if set, ok := k.Row.Member(m.Broker); ok && set == m.Member {
				better(&k.Met[i])
			}
		}
		if best != nil {
			return best, true
		}
	}
	for i := range k.Met {
		better(&k.Met[i])
	}
	return best, len(away) == 0 || k.off.off(ruleCopyMostComplete)
}

// mayHold is who commits must wait for: the persisted set if it is of this term, and the registry's.
func (k Known) mayHold() []term.Member {
	var set []term.Member
	if k.Row != nil {
		set = slices.Clone(k.Row.Set)
	}
	if (k.State.SetTerm == k.State.Granted || k.off.off(rulePersistedSetOfTerm)) && !k.off.off(rulePersistSet) {
		for _, m := range k.State.Set {
			if !slices.ContainsFunc(set, func(o term.Member) bool { return o.Broker == m.Broker }) {
				set = append(set, m)
			}
		}
	}
	set = slices.DeleteFunc(set, func(m term.Member) bool { return m.Broker == k.Self.Broker })
	slices.SortFunc(set, func(a, b term.Member) int { return cmp.Compare(a.Broker, b.Broker) })
	return set
}

// follow says whom a broker follows that was not named master.
func (k Known) follow(d Decision) Decision {
	wait := func(format string, args ...any) Decision {
		d.Act, d.Why = ActWait, fmt.Sprintf(format, args...)
		return d
	}
	switch {
	case k.Row != nil && k.Row.Term == 0:
		return wait("the registry has not named a master yet")
	case k.Row != nil && k.Row.Term >= d.Seen && k.Row.Master.Broker != k.Self.Broker:
		d.Act, d.From, d.Why = ActFollow, k.Row.Master.Broker, fmt.Sprintf("broker %s was named master of term %d", k.Row.Master.Broker, k.Row.Term)
		return d
	case k.Row != nil && k.Row.Term < d.Seen:
		return wait("the registry is at term %d, and term %d was met", k.Row.Term, d.Seen)
	case k.Fresh && k.Row == nil && !k.off.off(ruleNewStoreAsksTerm):
		return wait("its store is new, and the registry is away, which would have to tell it the term")
	}
	var best *Met
	for i, m := range k.Met {
		if m.Master && m.History.Last().Term() >= d.Seen && (best == nil || m.History.Last() > best.History.Last()) {
			best = &k.Met[i]
		}
	}
	if best == nil {
		return wait("the registry is away, and no other broker says that it is the master of term %d or later", d.Seen)
	}
	d.Act, d.From, d.Why = ActFollow, best.Broker, fmt.Sprintf("broker %s is the master of epoch %v", best.Broker, best.History.Last())
	return d
}
