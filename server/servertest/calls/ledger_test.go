package calls

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/store"
)

const (
	partitions = 2
	producers  = 3
)

var groups = [...]string{"pay", "ship"}

// outcome of a send.
type outcome int8

const (
	underWay outcome = iota // or not known
	ok
	failed // it is not there, and never will be
)

// send is one batch, under the number of its place.
type send struct {
	topic     store.Topic // with its incarnation
	partition uint16
	producer  int
	sequence  uint64
	messages  int
	repeated  bool // it may be behind what was sent later
	outcome   outcome
	first     index.Index // of one that is ok
}

// standing of a group in a partition.
type standing struct {
	acked, asked offset.Ranges // as it was told, and what may have come of it besides
	moving       bool          // it was asked to move, and may stand anywhere
}

// numbered is a value that only grows: it is set to the next number, and when that is done it is at least so on the disk.
type numbered struct{ asked, done uint32 }

// facts are what clients were told or shown, and what they have asked for.
type facts struct {
	id         *[16]byte // of the store, once it was opened
	sends      []send
	topics     map[string]store.Topic // that are there for certain
	deleting   map[string]bool        // they may be gone
	gone       []store.Topic          // for certain
	groups     [len(groups)]bool      // subscribed for certain
	standings  [len(groups)][partitions]standing
	trim       [partitions]index.Index // asked for
	settings   numbered                // RetentionBytes of the topic orders
	state      numbered                // Seen and Handing of REPLICA
	boot       string                  // of REPLICA
	stopping   bool                    // REPLICA may say that the stop was clean
	clean      bool                    // it does
	sides      numbered                // entries of SIDE
	sideBegin  uint32                  // those before are removed
	sideMoving bool                    // all may be removed
	acks       int
	problems   []problem
}

// problem is what must not be.
type problem struct {
	what trouble
	text string
}

type trouble int8

const (
	lost trouble = iota
	phantom
	twice
	reordered
	other
)

func (f *facts) problem(what trouble, format string, args ...any) {
	f.problems = append(f.problems, problem{what, fmt.Sprintf(format, args...)})
}

func (f *facts) clone() facts {
	c := *f
	c.sends, c.topics, c.gone, c.deleting, c.problems = slices.Clone(f.sends), maps.Clone(f.topics), slices.Clone(f.gone), maps.Clone(f.deleting), nil
	for g := range c.standings {
		for p := range c.standings[g] {
			s := &c.standings[g][p]
			s.acked, s.asked = slices.Clone(s.acked), slices.Clone(s.asked)
		}
	}
	return c
}

// ledger is facts that are written by the driver and by answers, and read within calls of the file system.
type ledger struct {
	mu sync.Mutex
	facts
}

func newLedger() *ledger {
	return &ledger{facts: facts{topics: map[string]store.Topic{}, deleting: map[string]bool{}}}
}

// note changes it.
func (l *ledger) note(change func(*facts)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(&l.facts)
}

// now returns a copy.
func (l *ledger) now() facts {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.facts.clone()
}
