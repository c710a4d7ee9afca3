package wire

import (
	"flag"
	"math/rand/v2"
	"testing"
	"time"

	"go.uber.org/goleak"
)

var seedFlag = flag.Int64("seed", 0, "seed of random tests; 0: by time")

func TestMain(m *testing.M) {
	flag.Parse()
	goleak.VerifyTestMain(m)
}

// newRand returns a generator whose seed a failing test prints.
func newRand(t testing.TB) *rand.Rand {
	seed := *seedFlag
	if seed == 0 {
		seed = time.Now().UnixNano()
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("-seed %d", seed)
		}
	})
	return rand.New(rand.NewPCG(uint64(seed), 0))
}

func wantCode(t testing.TB, err error, want Code) {
	t.Helper()
	if got := CodeOf(err); got != want {
		t.Fatalf("got %v (%v), want %v", got, err, want)
	}
}
