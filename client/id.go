package client

import (
	"bufio"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
)

// idGenerator makes message ids: ULIDs, each greater than the one before whatever goroutine asked for it and wherever the
// clock steps. One a client; safe for concurrent use.
type idGenerator struct {
	now func() time.Time

	mu struct {
		sync.Mutex
		last    uint64 // milliseconds of the last id; never goes back
		entropy *ulid.MonotonicEntropy
	}
}

func newIDGenerator(now func() time.Time, random io.Reader) *idGenerator {
	g := &idGenerator{now: now}
	g.mu.entropy = ulid.Monotonic(bufio.NewReader(random), 0)
	return g
}

// next makes one. The clock is read under the lock: read before it, two goroutines could overtake each other.
func (g *idGenerator) next() ulid.ULID {
	g.mu.Lock()
	defer g.mu.Unlock()
	if ms := ulid.Timestamp(g.now()); ms > g.mu.last {
		g.mu.last = ms
	}
	for {
		id, err := ulid.New(g.mu.last, g.mu.entropy)
		switch {
		case err == nil:
			return id
		case err == ulid.ErrMonotonicOverflow:
			g.mu.last++ // 2^80 random bits of one millisecond are used up: take one from the future
		default:
			panic(fmt.Sprintf("client: no random numbers: %v", err)) // crypto/rand does not fail
		}
	}
}
