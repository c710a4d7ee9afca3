//go:build planted

package replica

import (
	"testing"

	"github.com/jmqio/jmq/server/planted"
)

// Each bug of what the machines decide breaks a promise in the simulator; the others make the test fail that is there for them.
func TestPlanted(t *testing.T) {
	defer planted.Set("")
	for _, e := range planted.Of("server/replica") {
		if e.By != "simulator" {
			continue
		}
		planted.Set(e.Name)
		bad, seed := "", 0
		for bad == "" && seed < e.Runs {
			seed++
			bad, _ = schedule(uint64(seed), 0, 0, false)
		}
		planted.Set("")
		if bad == "" {
			t.Errorf("%s is not found in %d schedules", e.Name, e.Runs)
			continue
		}
		t.Logf("%s: found in schedule %d: %s", e.Name, seed, bad)
		if bad, _ := schedule(uint64(seed), 0, 0, false); bad != "" {
			t.Errorf("schedule %d without a bug: %s", seed, bad)
		}
	}
	planted.Caught(t, "server/replica")
}
