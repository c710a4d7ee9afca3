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
	mu struct {
		sync.Mutex
		last    uint64 // milliseconds of the last id; never goes back
		entropy *ulid.MonotonicEntropy
	}
}

func newIDGenerator(random io.Reader) *idGenerator {
	g := &idGenerator{}
	g.mu.entropy = ulid.Monotonic(bufio.NewReader(random), 0)
	return g
}

// next makes one. now need not be later than that of the call before: what was used stays used.
func (g *idGenerator) next(now time.Time) ulid.ULID {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.last = max(g.mu.last, ulid.Timestamp(now))
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
