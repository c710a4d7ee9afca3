//go:build planted

package servertest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jmqio/jmq/server/planted"
)

const plantedBuild = true

// plantedBugs are all bugs that are planted in jmq, and what must find each: a check of C1 to C6, or "start" where the broker
// refuses its own folder, because it sees that something is missing. A bug that needs a certain fault gets it more often.
var plantedBugs = []struct {
	bug, by string
	o       options
}{
	{"journal: small commit not synced", "C1", options{faults: []fault{powerLost}, noCheckpoints: true, segmentBytes: 1 << 20}},
	{"journal: directory not synced", "C1", options{faults: []fault{powerLost}, noCheckpoints: true}},
	{"journal: failed sync said to be no write", "C2", options{faults: []fault{syncFailed, powerTorn}}},
	{"journal: checksum ignored", "C2", options{faults: []fault{powerTorn}}},
	{"journal: kept without rewriting", "start", options{faults: []fault{syncFailed, powerLost}}},
	{"index: last entry not in the checkpoint", "C4", options{faults: []fault{stopped}}},
	{"offset: over a hole", "C6", options{}},
	{"offset: ranges not restored", "C6", options{}},
	{"dispatch: lease ends early", "C3", options{work: 1000}},
	{"dispatch: lease of the gone forgotten", "C1", options{}},
	{"dispatch: lease from the end of what waits", "C5", options{}},
	{"broker: ack answered before its commit", "C6", options{}},

	{"retention: beyond the slowest group", "C1", options{depth: true, faults: []fault{powerLost, killed}}},
	{"store: segment freed though it is needed", "start", options{depth: true, faults: []fault{powerLost}}},
	{"store: carried and not moved", "start", options{depth: true, faults: []fault{killed}, idle: time.Second}},
	{"store: gap too wide", "C1", options{depth: true, faults: []fault{damaged, powerLost}, damage: messagesOnly}},
	{"journal: damaged record is read", "C2", options{depth: true, faults: []fault{damaged, powerLost}, damage: messagesOnly}},
	{"broker: group moved without a generation", "errors", options{depth: true, faults: []fault{stopped}}},

	{"journal: record of a former life", "server/journal", options{}},
	{"journal: sends use the reserve", "server/journal", options{}},

	{"replica: committed without the slaves", "server/replica", options{}},
	{"replica: higher term ignored", "server/replica", options{}},
	{"replica: set not persisted", "server/replica", options{}},
	{"replica: own copy counts as a slave's", "server/replica", options{}},
	{"replica: slave counted twice", "server/replica", options{}},
	{"replica: slave serves beyond committed", "server/replica", options{}},
	{"term: promoted from outside the set", "server/replica", options{}},
	{"replica: acks of an older session count", "server/replica", options{}},
	{"replica: cut below what is committed", "server/replica", options{}},
	{"replica: acked before it is written", "server/replica", options{}},
	{"side: ok before it is synced", "server/side", options{}},
	{"broker: merged without the record", "server/broker", options{}},
}

const (
	plantedCycles  = 6
	plantedRunsMax = 20
)

// TestPlanted plants each bug in the broker and runs campaigns until the check that is there for it has found it, at most
// plantedRunsMax.
func TestPlanted(t *testing.T) {
	defer planted.Set("")
	for _, p := range plantedBugs {
		if strings.Contains(p.by, "/") {
			continue // that package's TestPlanted finds it
		}
		t.Run(p.bug, func(t *testing.T) {
			planted.Set(p.bug)
			seed := newSeed()
			others := map[string]int{}
			for n := range plantedRunsMax {
				p.o.seed, p.o.cycles = seed+uint64(n), plantedCycles
				if p.o.faults == nil {
					p.o.faults = []fault{powerLost, powerTorn, killed, syncFailed, stopped} // a full disk takes its time
				}
				v := runCampaign(t, p.o)
				found := v.found()
				if slices.Contains(found, p.by) {
					t.Logf("found by %v in run %d\n%v", found, n+1, v)
					return
				}
				t.Logf("run %d: %v", n+1, v)
				for _, name := range found {
					others[name]++
				}
			}
			t.Errorf("%s has not found it in %d runs from -seed=%d on; others: %v", p.by, plantedRunsMax, seed, others)
		})
	}
}

// Every bug that the code can have is in the list, and none that it cannot.
func TestPlantedList(t *testing.T) {
	var listed []string
	for _, p := range plantedBugs {
		listed = append(listed, p.bug)
	}
	slices.Sort(listed)
	if names := plantedNames(t); !slices.Equal(listed, names) {
		t.Errorf("listed %q, in the code %q", listed, names)
	}
}
