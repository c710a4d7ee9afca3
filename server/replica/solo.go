// Package replica turns a journal into a committed log: what every replica that must have a record has.
//
// Solo is the log of a store without slaves: committed is what is synced here. It has nothing that a master will not have,
// so a store does not see which it was given.
package replica

import (
	"fmt"

	"github.com/jmqio/jmq/server/journal"
)

// Options of OpenSolo are the journal's. Term is the broker group's, 0 where no registry ever named a master.
type Options = journal.Options

// Solo is a journal alone. All of the journal's methods are the log's.
type Solo struct {
	*journal.Journal
}

// OpenSolo recovers the journal and starts a new epoch. The epoch's start is one higher than the last one in the
// journal, whatever the term, and its record is on disk before anything else is appended.
func OpenSolo(opts Options) (*Solo, error) {
	j, err := journal.Open(opts)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	return &Solo{Journal: j}, nil
}
