package replica

import "testing"

// switched are the rules that can be switched off, and a schedule that shows what each is for. Known is what the registry was told to be committed,
// which alone stops many of the same losses.
//
// No schedule shows these: JoinAtCommitted alone (who joins has everything up to the epoch's record, and nearly all that came since),
// SeenTermDurable alone (OpenConfirmsTerm asks those who remember), NoCutBelowCommit alone (a master that lacks something copies it before it opens).
// The traces of scripts/model that have three brokers and many promotions (PersistedSetOfTerm, NewStoreAsksTerm) are too rare here.
var switched = []struct {
	name   string
	off    rule
	offRow rowRule
	seed   uint64
}{
	{name: "OwnSync", off: ruleOwnSync, seed: 234},
	{name: "SetAcks", off: ruleSetAcks, seed: 21},
	{name: "UnionSet", off: ruleUnionSet, seed: 79},
	{name: "JoinAtCommitted, JoinBeyondEpoch, Known", off: ruleJoinBeyondEpoch | ruleJoinAtCommitted, offRow: rowKnown, seed: 1110},
	{name: "PersistSet", off: rulePersistSet, seed: 189},
	{name: "ReplicatedNeedsSlave", off: ruleReplicatedNeedsSlave, seed: 3},
	{name: "HigherTermStops", off: ruleHigherTermStops, seed: 2},
	{name: "SeenTermDurable, OpenConfirmsTerm", off: ruleSeenTermDurable | ruleOpenConfirmsTerm, seed: 3994},
	{name: "StoreIDs", off: ruleStoreIDs, seed: 23},
	{name: "ForcedEpochCuts", off: ruleForcedEpochCuts, seed: 323},
	{name: "CommitAfterMatch", off: ruleCommitAfterMatch, seed: 21},
	{name: "GrantNamesBoot", off: ruleGrantNamesBoot, seed: 1333},
	{name: "CopyMostComplete", off: ruleCopyMostComplete, seed: 23},
	{name: "NewStoreNewTerm", off: ruleNewStoreNewTerm, seed: 27},
	{name: "Fence", off: ruleFence, seed: 17751590666},
	{name: "HandingSettled", off: ruleHandingSettled, seed: 30739474840},
	{name: "ToldStops", off: ruleToldStops, seed: 56},
	{name: "BootMembership", offRow: rowBootMembership, seed: 25},
	{name: "PromoteMembersOnly", offRow: rowPromoteMembersOnly, seed: 8},
	{name: "RestoreEmptiesSets", offRow: rowRestoreEmptiesSets, seed: 31},
	{name: "CASAlwaysBumps", offRow: rowCASAlwaysBumps, seed: 3},
	{name: "CleanMarkCleared, Known", offRow: rowCleanMarkCleared | rowKnown, seed: 334},
	{name: "EpochSynced", offRow: rowEpochSynced, seed: 6},
}

// TestSwitchedOff shows that the simulator finds what each rule is for: with it off, a promise is broken, in the schedule of that seed, or, when the
// simulator has changed since, in one of the first.
func TestSwitchedOff(t *testing.T) {
	for _, s := range switched {
		if bad, _ := schedule(s.seed, 0, 0, false); bad != "" {
			t.Errorf("seed %d with all rules: %s", s.seed, bad)
		}
		bad, _ := schedule(s.seed, s.off, s.offRow, false)
		seed := s.seed
		for i := uint64(1); bad == "" && i <= 3000; i++ {
			seed = i
			bad, _ = schedule(i, s.off, s.offRow, false)
		}
		if bad == "" {
			t.Errorf("%s: no promise is broken", s.name)
			continue
		}
		t.Logf("%s: seed %d: %s", s.name, seed, bad)
	}
}
