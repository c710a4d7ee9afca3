package faults

import (
	"flag"
	"testing"

	"go.uber.org/goleak"

	"github.com/jmqio/jmq/scripts/testenv"
)

var seedFlag = flag.Uint64("seed", 0, "of schedules")

// Most of a trial is waiting for somebody to be taken as away: many run at the same time, but not so many with -race that all are slow.
func atOnce() string {
	if raceEnabled {
		return "4"
	}
	return "12"
}

// TestMain holds all tests to leave no goroutine, of what is left of a process that was killed, without its disk, too.
func TestMain(m *testing.M) {
	flag.Parse()
	atOnceAsked := false
	flag.Visit(func(f *flag.Flag) { atOnceAsked = atOnceAsked || f.Name == "test.parallel" })
	if !atOnceAsked {
		if err := flag.Set("test.parallel", atOnce()); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(testenv.Main(m))
}
