package replica

import "time"

// RaceEnabled is for the tests from outside.
const RaceEnabled = raceEnabled

// HoldCatchUps has slaves that catch up wait until then, as their pace may have them.
func (m *Master) HoldCatchUps(until time.Time) {
	p := &m.pace.mu
	p.Lock()
	defer p.Unlock()
	p.free, p.last = until, until
}
