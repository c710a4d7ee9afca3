package replica

import (
	"flag"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// oneSeed is the flag -seed, which the package's other tests define: one schedule to run and to show; 0: many, by the clock.
func oneSeed(t *testing.T) uint64 {
	seed, err := strconv.ParseUint(flag.Lookup("seed").Value.String(), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return seed
}

// schedule runs one random life of a broker group, and heals it. "" is returned if every property held.
func schedule(seed uint64, off rule, offRow rowRule, keep bool) (bad string, w *world) {
	r := rand.New(rand.NewPCG(seed, 6))
	names := []string{"A", "B", "C"}[:2+r.IntN(2)]
	w = newWorld(r, names, r.IntN(3) > 0)
	w.keep, w.off, w.offRow = keep, off, offRow
	w.slow = []int{0, 3, 30}[r.IntN(3)]
	w.silence = []time.Duration{500 * time.Millisecond, 3 * time.Second}[r.IntN(2)]
	w.timing.JoinAfter = []time.Duration{200 * time.Millisecond, time.Second}[r.IntN(2)]
	steps, pace := 20+r.IntN(60), []int{20, 100, 500}[r.IntN(3)]
	if r.IntN(4) == 0 { // many masters one after the other
		w.silence, w.slow, w.timing.JoinAfter, pace, steps = 500*time.Millisecond, 30, 100*time.Millisecond, 300, 120
	}
	w.run(4 * time.Second)
	mix, used := w.mix(), map[int]int{}
	for range steps {
		if w.ghost.bad != "" {
			return w.ghost.bad, w
		}
		w.happen(mix, used)
		w.run(time.Duration(r.IntN(pace)) * time.Millisecond)
	}
	w.heal()
	if !w.lives(90*time.Second) && w.ghost.bad == "" {
		w.fail("P6: healed, and a normal and a replicated send are not answered ok")
	}
	return w.ghost.bad, w
}

func (w *world) show() string {
	var b strings.Builder
	for _, l := range w.log {
		b.WriteString(l + "\n")
	}
	return b.String()
}

// TestSimulator runs random schedules: kills, power losses, pauses, partitions, swapped disks, a registry that is away or restored, promotions by
// force and transfers, and looks at the promises after each step. JMQ_TEST_SCHEDULES is how many.
func TestSimulator(t *testing.T) {
	n, first := 1000, uint64(time.Now().UnixNano())/1000%1e12
	if s := os.Getenv("JMQ_TEST_SCHEDULES"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	if raceEnabled {
		n /= 10
	}
	if seed := oneSeed(t); seed != 0 {
		bad, w := schedule(seed, 0, 0, true)
		t.Logf("seed %d\n%s", seed, w.show())
		if bad != "" {
			t.Fatal(bad)
		}
		return
	}
	t.Logf("seeds %d to %d", first, first+uint64(n))
	for i := range n {
		if bad, _ := schedule(first+uint64(i), 0, 0, false); bad != "" {
			_, w := schedule(first+uint64(i), 0, 0, true)
			t.Fatalf("seed %d: %s\n%s", first+uint64(i), bad, w.show())
		}
	}
}
