package replica

// rule names a rule of scripts/model that is kept here. All are kept; a machine has an unexported field of those that are switched off, which
// only the simulator's own test sets, to show what each is for.
type rule uint32

const (
	ruleOwnSync rule = 1 << iota
	ruleSetAcks
	ruleUnionSet
	ruleUnanswered
	ruleJoinAtCommitted
	ruleJoinBeyondEpoch
	rulePersistSet
	rulePersistedSetOfTerm
	ruleReplicatedNeedsSlave
	ruleAckOfSession
	ruleHigherTermStops
	ruleSeenTermDurable
	ruleNoCutBelowCommit
	ruleForcedEpochCuts
	ruleCommitAfterMatch
	ruleNewStoreAsksTerm
	ruleStoreIDs
	ruleGrantNamesBoot
	ruleCopyMostComplete
	ruleNewStoreNewTerm
	ruleOpenConfirmsTerm
	ruleOldImage
	ruleToldStops      // "or ends below the committed position ... waits or asks the operator": as masters told the registry
	ruleHandingSettled // "a refusal of an older request settles nothing about a newer one": across lives too, for hand-overs
	ruleFence          // who copies counts what others have only after they promised the term: not in the model, where nothing is under way between brokers
)

// off says whether r is switched off.
func (r rule) off(one rule) bool { return r&one != 0 }
