//go:build planted

package broker

import (
	"testing"

	"github.com/jmqio/jmq/server/planted"
)

// The bug makes the test fail that is there for it, in one run.
func TestPlanted(t *testing.T) {
	planted.Caught(t, "broker: merged without the record", "TestMergeOtherTail")
}
