// Package calls tests the store of a broker at each call of its file system: there the power is lost (TestClones), or the call fails (TestErrors).
//
// The store is all that a broker keeps: the journal, the index, the topics, where groups stand, the windows of producers, the store's own file,
// REPLICA and SIDE; it is used through the broker, by calls as clients make them. What they were told is a ledger, and what is on a disk is held against it.
package calls

import (
	"flag"
	"math/rand/v2"
	"testing"

	"go.uber.org/goleak"
)

var seedFlag = flag.Uint64("seed", 0, "of schedules; 0: a new one each time")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newSeed returns the seed that was asked for, or any.
func newSeed(t *testing.T) uint64 {
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()>>32 + 1
	}
	t.Logf("-seed=%d", seed)
	return seed
}

// With -race all costs ten times as much: a sample, which the seed draws, is taken.

// lives of a broker in a schedule of clones.
func lives() int {
	if raceEnabled {
		return 2
	}
	return 5
}

// spare is how many calls there are to one of which a clone is looked at.
func spare() int {
	if raceEnabled {
		return 4
	}
	return 1
}

// recoveries is how many clones there are to one whose recovery loses its power too.
func recoveries() int {
	if raceEnabled {
		return 15
	}
	return 10
}

// every is that so many calls one fails.
func every() int {
	if raceEnabled {
		return 23
	}
	return 1
}
