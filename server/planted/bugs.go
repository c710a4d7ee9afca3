//go:build planted

package planted

// Entry is a bug that is planted, and how soon what must find it. docs/reliability.md shows the list.
type Entry struct {
	Name   string
	Breaks string
	// Package is whose TestPlanted looks for it, and By what there finds it: a test; of the campaigns of server/servertest a check of C1 to C11, "start" where the
	// broker refuses its own folder, or "errors"; of server/replica "simulator", the schedules with the seeds from 1 on.
	Package, By string
	Runs        int // at most, of the test, of campaigns, of schedules
}

// campaigns is how many a bug has that is found by chance: a campaign ends a broker six times under load.
const campaigns = 20

// Bugs are all that are planted.
var Bugs = []Entry{
	{"journal: small commit not synced", "ok is said before the sync", "server/servertest", "C1", campaigns},
	{"journal: directory not synced", "the name of a new segment is lost with the power", "server/servertest", "C1", campaigns},
	{"journal: failed sync said to be no write", "failed is said of what may be stored", "server/servertest", "C2", campaigns},
	{"journal: checksum ignored", "a torn record is read", "server/servertest", "C2", campaigns},
	{"journal: kept without rewriting", "what a failed sync left is trusted after a restart", "server/servertest", "start", campaigns},
	{"index: last entry not in the checkpoint", "an index is used again", "server/servertest", "C4", campaigns},
	{"offset: over a hole", "an ack passes over messages that were not acked", "server/servertest", "C6", campaigns},
	{"offset: ranges not restored", "acks above the offset are gone after a restart", "server/servertest", "C6", campaigns},
	{"dispatch: lease ends early", "a message is with two members", "server/servertest", "C3", campaigns},
	{"dispatch: lease of the gone forgotten", "what a dead member had is never given again", "server/servertest", "C1", campaigns},
	{"dispatch: lease from the end of what waits", "messages are given out of order", "server/servertest", "C5", campaigns},
	{"broker: ack answered before its commit", "an ack is gone after a crash", "server/servertest", "C6", campaigns},
	{"retention: beyond the slowest group", "messages go that a group has not consumed", "server/servertest", "C1", campaigns},
	{"store: segment freed though it is needed", "a segment goes that holds messages", "server/servertest", "start", campaigns},
	{"store: carried and not moved", "a message that was carried forward is looked for where it was", "server/servertest", "start", campaigns},
	{"store: gap too wide", "a message behind a loss is passed over", "server/servertest", "C1", campaigns},
	{"journal: damaged record is read", "changed bytes are delivered", "server/servertest", "C2", campaigns},
	{"broker: group moved without a generation", "acks of before a reset count after it", "server/servertest", "errors", campaigns},

	{"journal: record of a former life", "a recycled segment's old records are read", "server/journal", "TestFormerLife", 1},
	{"journal: sends use the reserve", "a full disk has no room left for acks", "server/journal", "TestReserve", 1},
	{"journal: cut at damage in the middle", "damage is taken for a torn tail: synced records behind it are cut", "server/journal", "TestDamageInTheMiddle", 1},

	{"replica: committed without the slaves", "two copies are promised, one is there", "server/replica", "simulator", 1000},
	{"replica: higher term ignored", "two masters", "server/replica", "simulator", 1000},
	{"replica: set not persisted", "a master that starts again does not wait for the slaves it promised to wait for", "server/replica", "simulator", 1000},
	{"replica: own copy counts as a slave's", "a send to a replicated topic is ok with one copy", "server/replica", "simulator", 1000},
	{"replica: slave counted twice", "two connections of a slave are two copies", "server/replica", "simulator", 1000},
	{"replica: slave serves beyond committed", "a message is given that may never have been", "server/replica", "simulator", 1000},
	{"replica: transfer to a slave that is behind", "the new master has less than was said ok", "server/replica", "simulator", 1000},
	{"term: promoted from outside the set", "a slave that was left behind becomes master", "server/replica", "simulator", 1000},
	{"term: membership outlives a boot", "a slave that lost its power becomes master", "server/replica", "simulator", 1000},
	{"replica: acks of an older session count", "a slave's ack of before its journal was cut", "server/replica", "TestScripts/twins", 1},
	{"replica: cut below what is committed", "a slave cuts what was said ok for a master that has less", "server/replica", "TestRefuse", 1},
	{"replica: acked before it is written", "a slave's ack of what a kill takes", "server/replica", "TestWrittenBeforeAck", 1},
	{"replica: read before it is committed", "a new master gives what may be cut yet", "server/replica", "TestMasterBegin", 1},
	{"journal: epoch used before it is synced", "after a power loss an epoch is begun twice, with other records", "server/replica", "TestRandom", 20},

	{"store: slave knows no ends", "offsets are not replicated: a slave gives again what was acked", "server/broker", "TestSlaveFollows", 1},
	{"store: checkpoint of what was cut", "index and tables of a slave have records that its journal has no more", "server/store/local", "TestCutBelowApplied/grown_beyond_it", 1},
	{"store: trimmed along before it is applied", "a slave lets go of messages that its master carried forward", "server/store/local", "TestTrimAlongWaits", 1},

	{"side: ok before it is synced", "an ack at a slave is gone after a crash", "server/side", "TestCrash", 1},
	{"broker: merged without the record", "an ack at a slave counts for another record of that index", "server/broker", "TestMergeOtherTail", 1},
	{"broker: merged over a reset", "an ack at a slave undoes a reset at the master", "server/broker", "TestMergeReset", 1},
	{"broker: side file gone before its acks are committed", "acks at a slave are gone when the master dies after the merge", "server/broker", "TestMergeOwn", 1},
	{"dispatch: lease of a slave not kept", "messages that a member got from a slave are given to another", "server/dispatch", "TestElsewhere", 1},
	{"dispatch: extended lease ends in its old time", "a message is given again while its member works on it", "server/dispatch", "TestScripts/extend", 1},

	{"dedupe: repeat answered before the first is committed", "ok is said of what is not stored yet", "server/dedupe", "TestVerdicts", 1},
	{"dedupe: only what was appended here", "a repeat after a restart or fail-over is stored again", "server/servertest", "C3", campaigns},
	{"retention: slowest group of another partition", "messages go that a group has not consumed, where it is slow in one partition", "server/retention", "TestJudge", 1},
	{"retention: groups that moved are not looked at again", "messages go that a group was moved back to", "server/retention", "TestMovedMeanwhile", 1},

	{"listener: session leaves a goroutine", "each connection that ends leaves a goroutine", "scripts/chaos", "C11", 1},

	{"client: unknown told as failed", "failed is said of what may be stored", "client", "TestSendOutcomes", 1},
	{"client: repeat under another number", "a batch that comes back to a broker group is stored again", "client", "TestSequenceOfRepeats", 1},
	{"client: two batches of an order key under way", "a repeat is stored behind what was sent after it", "client", "TestKeyedSendsMerge", 1},
	{"client: late ack said to be ok", "an ack is ok, and the message comes again", "client", "TestFetchAndAck", 1},
}

// Of returns the bugs that a package's TestPlanted looks for.
func Of(pkg string) (list []Entry) {
	for _, e := range Bugs {
		if e.Package == pkg {
			list = append(list, e)
		}
	}
	return list
}
