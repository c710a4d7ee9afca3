//go:build planted

package side

import (
	"testing"

	"github.com/jmqio/jmq/server/planted"
)

// The bug makes the test fail that is there for it, in one run.
func TestPlanted(t *testing.T) { planted.Caught(t, "side: ok before it is synced", "TestCrash") }
