package server

import (
	"slices"
	"testing"

	"github.com/jmqio/jmq/server/journal"
)

// A slave's store trims along by what the master said in one word, where its journal begins and what was committed: never by what the slave
// has written, which may be less than the master has carried forward.
func TestTrimAlong(t *testing.T) {
	var told [][2]journal.Position
	var trim trimAlong
	trim.to(10, 100)
	trim.open(func(begin, committed journal.Position) { told = append(told, [2]journal.Position{begin, committed}) })
	trim.to(20, 200)
	if want := [][2]journal.Position{{10, 100}, {20, 200}}; !slices.Equal(told, want) {
		t.Errorf("the store was told %v, want %v", told, want)
	}
}
