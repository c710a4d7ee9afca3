package replica

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/jmqio/jmq/server/journal"
)

// ErrHistory: what a peer says of its journal contradicts itself.
var ErrHistory = errors.New("replica: the epochs of a journal contradict each other")

// History is what a replica has: the epochs of its journal, the one in force at Begin first.
//
// begin <= end; epochs and their positions ascend, only the first begins at or before Begin. Two journals that have the same epoch at a position have the same
// record there, and so all records before it (P0): an epoch is written by one master in one life, whose first record is synced before any
// byte of it leaves the master.
type History struct {
	Epochs     []journal.EpochStart
	Begin, End journal.Position
}

// Check is for a history from a peer.
func (h History) Check() error {
	if h.Begin > h.End {
		return fmt.Errorf("%w: begin %d is beyond end %d", ErrHistory, h.Begin, h.End)
	}
	if (len(h.Epochs) == 0) != (h.Begin == h.End) {
		return fmt.Errorf("%w: %d epochs in [%d,%d)", ErrHistory, len(h.Epochs), h.Begin, h.End)
	}
	for i, e := range h.Epochs {
		switch {
		case i == 0 && e.Position > h.Begin, e.Position >= h.End, i > 0 && e.Position <= h.Begin:
			return fmt.Errorf("%w: epoch %v begins at %d of [%d,%d)", ErrHistory, e.Epoch, e.Position, h.Begin, h.End)
		case i > 0 && (e.Epoch <= h.Epochs[i-1].Epoch || e.Position <= h.Epochs[i-1].Position):
			return fmt.Errorf("%w: epoch %v at %d after %v at %d", ErrHistory, e.Epoch, e.Position, h.Epochs[i-1].Epoch, h.Epochs[i-1].Position)
		}
	}
	return nil
}

// Last is the epoch of the last record; 0: there is none.
func (h History) Last() journal.Epoch {
	if len(h.Epochs) == 0 {
		return 0
	}
	return h.Epochs[len(h.Epochs)-1].Epoch
}

// at returns the run that holds p, which must be in [Begin,End): its epoch and where it ends.
func (h History) at(p journal.Position) (journal.Epoch, journal.Position) {
	i, found := slices.BinarySearchFunc(h.Epochs, p, func(e journal.EpochStart, p journal.Position) int { return cmp.Compare(e.Position, p) })
	if found {
		i++
	}
	end := h.End
	if i < len(h.Epochs) {
		end = h.Epochs[i].Position
	}
	return h.Epochs[i-1].Epoch, end
}

// Common is up to where two journals are the same; divergence is found from the epochs, never from the contents. ok is false where that cannot be
// known, since they have no position in common or differ at the first: only a full copy makes them the same.
func Common(a, b History) (p journal.Position, ok bool) {
	p = max(a.Begin, b.Begin)
	if len(a.Epochs) == 0 || len(b.Epochs) == 0 {
		// An empty journal begins where the other one does, or, that of a full copy, at one of its records: it has the tables of what is before.
		return p, a.Begin == b.Begin || len(a.Epochs) == 0 && b.Begin < a.Begin && a.Begin <= b.End ||
			len(b.Epochs) == 0 && a.Begin < b.Begin && b.Begin <= a.End
	}
	first := p
	for p < a.End && p < b.End {
		x, xEnd := a.at(p)
		y, yEnd := b.at(p)
		if x != y {
			break
		}
		p = min(xEnd, yEnd)
	}
	return p, p > first || a.Begin == b.Begin
}

// ForcedSince says whether an epoch later than last was granted by force.
func (h History) ForcedSince(last journal.Epoch) bool {
	return slices.ContainsFunc(h.Epochs, func(e journal.EpochStart) bool { return e.Forced && e.Epoch > last })
}

// MoreComplete orders journals: the later last epoch first, then the longer one.
func (h History) MoreComplete(than History) bool {
	return cmp.Or(cmp.Compare(h.Last(), than.Last()), cmp.Compare(h.End, than.End)) > 0
}

// startJump bounds by how much a start is raised.
const startJump = 4096

// NextEpoch is what a master of a term begins: start is its own counter, raised by jump, at least 1, each time it opens its journal (rule StartCounter).
// A jump that nobody can guess keeps the openings of one disk apart that did not know of each other, since an older image of it was brought back: what
// the one that was forgotten sent is then seen to be another epoch's.
func (h History) NextEpoch(termGranted, jump uint32) journal.Epoch {
	start := uint32(0)
	if last := h.Last(); last.Term() == termGranted {
		start = last.Start()
	}
	return journal.MakeEpoch(termGranted, start+max(jump, 1))
}
