package client

import "sync/atomic"

// reading is what consumers know of who serves a broker group.
type reading struct {
	refused atomic.Int64 // the master is not asked before, unix time in nanoseconds
}

func (r *reading) again() { r.refused.Store(0) }
