package journal

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

var (
	seedFlag = flag.Uint64("seed", 0, "seed of the random tests; 0 draws one")
	rewrite_ = flag.Bool("rewrite", false, "write the golden files anew")
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// seed returns the seed of this test and prints it.
func seed(t testing.TB) uint64 {
	s := *seedFlag
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("-seed=%d", s)
	return s
}

var _ = fmt.Sprint
var _ = os.Args
