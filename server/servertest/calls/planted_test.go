//go:build planted

package calls

import (
	"testing"

	"github.com/jmqio/jmq/server/planted"
)

// Each bug is found within so many schedules.
func TestPlanted(t *testing.T) {
	const within = 8
	clones := func(t *testing.T, seed uint64) []problem { return runClones(t, seed).problems }
	errors := func(t *testing.T, seed uint64) []problem { return runErrors(t, seed).problems }
	slave := func(t *testing.T, seed uint64) []problem { return runSlaveClones(t, seed).problems }
	for bug, run := range map[string]func(*testing.T, uint64) []problem{
		"journal: small commit not synced":         clones,
		"journal: directory not synced":            slave,
		"broker: ack answered before its commit":   clones,
		"offset: ranges not restored":              clones,
		"side: ok before it is synced":             clones,
		"journal: failed sync said to be no write": errors,
		"journal: kept without rewriting":          errors,
		"index: last entry not in the checkpoint":  errors,
	} {
		t.Run(bug, func(t *testing.T) {
			planted.Set(bug)
			defer planted.Set("")
			for seed := range uint64(within) {
				if problems := run(t, seed+1); len(problems) > 0 {
					t.Logf("seed %d: %s", seed+1, problems[0].text)
					return
				}
			}
			t.Errorf("it is not found by %d schedules", within)
		})
	}
}
