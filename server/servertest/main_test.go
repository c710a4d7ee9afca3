package servertest

import (
	"flag"
	"math/rand/v2"
	"testing"

	"go.uber.org/goleak"

	"github.com/jmqio/jmq/scripts/testenv"
)

var seedFlag = flag.Uint64("seed", 0, "of campaigns; 0: a new one each time")

// TestMain holds all tests to leave no goroutine.
func TestMain(m *testing.M) { goleak.VerifyTestMain(testenv.Main(m)) }

// newSeed returns the seed that was asked for, or any.
func newSeed() uint64 {
	if *seedFlag != 0 {
		return *seedFlag
	}
	return rand.Uint64()>>32 + 1
}
