//go:build planted

package replica

import (
	"testing"

	"github.com/jmqio/jmq/server/planted"
)

// plantedSchedules is in how many schedules of the simulator a bug is found at the latest: those with the seeds 1 to that.
const plantedSchedules = 3000

// Each bug of what the machines decide breaks a promise in the simulator; the others make the test fail that is there for them, in one run.
func TestPlanted(t *testing.T) {
	defer planted.Set("")
	for _, bug := range []string{
		"replica: committed without the slaves",
		"replica: higher term ignored",
		"replica: set not persisted",
		"replica: own copy counts as a slave's",
		"replica: slave counted twice",
		"replica: slave serves beyond committed",
		"term: promoted from outside the set",
	} {
		planted.Set(bug)
		bad, seed := "", uint64(0)
		for bad == "" && seed < plantedSchedules {
			seed++
			bad, _ = schedule(seed, 0, 0, false)
		}
		planted.Set("")
		if bad == "" {
			t.Errorf("%s is not found in %d schedules", bug, seed)
			continue
		}
		t.Logf("%s: found in schedule %d: %s", bug, seed, bad)
		if bad, _ := schedule(seed, 0, 0, false); bad != "" {
			t.Errorf("schedule %d without a bug: %s", seed, bad)
		}
	}
	planted.Caught(t, "replica: acks of an older session count", "TestScripts/twins")
	planted.Caught(t, "replica: cut below what is committed", "TestRefuse")
	planted.Caught(t, "replica: acked before it is written", "TestWrittenBeforeAck")
}
