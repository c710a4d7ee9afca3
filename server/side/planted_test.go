//go:build planted

package side

import (
	"testing"

	"github.com/jmqio/jmq/server/planted"
)

// Each bug of this package makes the test fail that is there for it.
func TestPlanted(t *testing.T) { planted.Caught(t, "server/side") }
