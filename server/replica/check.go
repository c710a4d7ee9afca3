package replica

import "github.com/jmqio/jmq/server/journal"

// Check is what the last comparison with the master found.
type Check struct{}

// mender brings what holes had in them from other copies.
type mender struct {
	j *journal.Journal
	n Node
}

// checker compares checksums with the master's now and then.
func (s *Slave) checker() { s.wg.Done() }
