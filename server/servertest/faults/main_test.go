package faults

import (
	"flag"
	"os"
	"testing"

	"github.com/jmqio/jmq/scripts/testenv"
)

var seedFlag = flag.Uint64("seed", 0, "of schedules")

// Most of a trial is waiting for somebody to be taken as away: many run at the same time.
const atOnce = "12"

func TestMain(m *testing.M) {
	flag.Parse()
	atOnceAsked := false
	flag.Visit(func(f *flag.Flag) { atOnceAsked = atOnceAsked || f.Name == "test.parallel" })
	if !atOnceAsked {
		if err := flag.Set("test.parallel", atOnce); err != nil {
			panic(err)
		}
	}
	os.Exit(testenv.Main(m).Run()) // no goleak: what is left of a process that was killed, without its disk, may leave goroutines
}
