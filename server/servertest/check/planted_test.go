//go:build planted

package check

import (
	"slices"
	"testing"
)

func (m *model) planted(b bug) bool { return m.bug == b }

// Each bug that a broker can really have is caught, and by the check that is there for it. The seeds are several: a bug
// needs its crash at the right moment.
func TestPlanted(t *testing.T) {
	for _, p := range []struct {
		bug bug
		by  string
	}{
		{ackBeforeSync, "C1"},
		{directoryNotSynced, "C1"},
		{ackOverHole, "C6"},
		{reusedIndex, "C4"},
		{pollSkip, "C5"},
		{offsetsNotPersisted, "C6"},
		{failedButStored, "C2"},
		{leaseTwice, "C3"},
		{lateAck, "C6"},
		{givenBackwards, "C5"},
		{noChecksum, "C2"},
		{storedTwice, "C3"},
		{repeatStored, "C3"},
		{endBeforeSync, "C6"},
		{readsUncommitted, "C4"},
		{pollSkip, "C7"},
		{offsetsNotPersisted, "C8"},
		{pendingForgotten, "C8"},
		{epochLate, "C9"},
		{settingsStale, "C10"},
		{settingsLost, "C10"},
		{leaseTwice, "C10"},
		{deadMembersKept, "C11"},
		{copyDiffers, "C4"},
	} {
		t.Run(string(p.bug)+" by "+p.by, func(t *testing.T) {
			all := seeds(10)
			caught := map[string]int{}
			any := 0
			for _, seed := range all {
				r := checkEvents(t, runModel(seed, p.bug, 3000))
				for _, name := range r.Violated() {
					caught[name]++
				}
				if !r.OK() {
					any++
				}
				if seed == all[0] && slices.Contains(r.Violated(), p.by) {
					t.Log("\n" + r.String())
				}
			}
			t.Logf("caught in %d of %d runs: %v", any, len(all), caught)
			if caught[p.by] == 0 {
				t.Errorf("%s did not catch it in %d runs; the others: %v", p.by, len(all), caught)
			}
		})
	}
}
