package client

import (
	"bytes"
	"crypto/rand"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
)

// Ids increase for each goroutine and none comes twice, while the clock jumps to and fro.
func TestIDsIncrease(t *testing.T) {
	var clock struct {
		sync.Mutex
		n int
	}
	now := func() time.Time { // forward 3 ms, back 2
		clock.Lock()
		defer clock.Unlock()
		clock.n++
		return time.UnixMilli(1_700_000_000_000 + int64(clock.n/2*1) + []int64{3, -2, 0}[clock.n%3])
	}
	g := newIDGenerator(rand.Reader)
	const goroutines, each = 8, 5000
	ids := make([][]ulid.ULID, goroutines)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			for range each {
				ids[i] = append(ids[i], g.next(now()))
			}
		})
	}
	wg.Wait()
	var all []ulid.ULID
	for i, list := range ids {
		if !slices.IsSortedFunc(list, ulid.ULID.Compare) {
			t.Errorf("ids of goroutine %d go back", i)
		}
		all = append(all, list...)
	}
	slices.SortFunc(all, ulid.ULID.Compare)
	if n := len(slices.Compact(all)); n != goroutines*each {
		t.Errorf("%d different ids, want %d", n, goroutines*each)
	}
}

// A clock that steps back an hour does not take the ids back; one that steps forward takes them along.
func TestIDsWithClockStep(t *testing.T) {
	at := time.UnixMilli(1_700_000_000_000)
	g := newIDGenerator(rand.Reader)
	first := g.next(at)
	at = at.Add(-time.Hour)
	second := g.next(at)
	if second.Compare(first) <= 0 || second.Time() != first.Time() {
		t.Errorf("after a step back: %v, then %v", first, second)
	}
	at = at.Add(2 * time.Hour)
	if third := g.next(at); third.Compare(second) <= 0 || third.Time() != ulid.Timestamp(at) {
		t.Errorf("after a step forward: %v, then %v", second, third)
	}
}

// When the random part of a millisecond is at its end, the next millisecond is used.
func TestIDsOverflow(t *testing.T) {
	at := time.UnixMilli(1_700_000_000_000)
	full := bytes.Repeat([]byte{0xff}, 10)
	g := newIDGenerator(io.MultiReader(bytes.NewReader(full), rand.Reader))
	first := g.next(at)
	for range 100 {
		next := g.next(at)
		if next.Compare(first) <= 0 {
			t.Fatalf("%v after %v", next, first)
		}
		first = next
	}
	if first.Time() == ulid.Timestamp(at) {
		t.Error("the test did not reach the end of the millisecond")
	}
}

func BenchmarkID(b *testing.B) {
	g := newIDGenerator(rand.Reader)
	for b.Loop() {
		g.next(time.Now())
	}
}
