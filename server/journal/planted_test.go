//go:build planted

package journal

import (
	"testing"

	"github.com/jmqio/jmq/server/planted"
)

// Each bug makes the test fail that is there for it, in a process of its own. Others are in server/servertest.
func TestPlanted(t *testing.T) {
	planted.Caught(t, "journal: record of a former life", "TestFormerLife") // it reads the same record for ever
	planted.Caught(t, "journal: sends use the reserve", "TestReserve")
}
