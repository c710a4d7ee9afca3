package dispatch

import "slices"

// What a member knows and what it has may differ: a connection, or its patience, can end between the grant of a lease and
// the arrival of the answer. Nobody would handle that lease's messages, and nobody else get them, before its end. So a
// member that missed an answer reconciles: its next fetch names what it has, and all else of it ends.
//
// Meanwhile an older fetch of it may be anywhere: parked (it is ended), granted and about to be read (its lease is ended, and
// nobody waits for the answer), or still in the buffer of a dead connection. The last comes later than what came over the
// next connection, and would be given a lease that nobody knows:
//
//	client   fetch, round 5, on connection 1 | loses it | fetch, round 6, reconcile, on connection 2
//	broker                                                 reads round 6: ends, gives | reads round 5
//
// Therefore the round of a member's last reconcile is kept, and what is older gets nothing. It is kept with the client while
// that has a connection, since without one nothing is left to be read.

// reconciledMax bounds the rounds kept of a client. Beyond it they are forgotten: some lease may then be lost until its end.
const reconciledMax = 4096

// stale reports whether f is older than the last reconcile of its member.
func (d *Dispatcher) stale(q *queue, f *Fetch) bool {
	if f.Round == 0 {
		return false
	}
	c := d.mu.clients[f.Client]
	return c != nil && f.Round < c.reconciled[memberKey{q, f.Member}]
}

// reconcile ends what m, f's member, does not know of: its parked fetches first, so that none of them gets what its leases
// leave; then its leases but f.Held, by partition.
func (d *Dispatcher) reconcile(q *queue, f *Fetch, m *member, out *fetchList) {
	c, k := d.mu.clients[f.Client], memberKey{q, f.Member}
	if c != nil && c.conns > 0 && f.Round > 0 {
		if c.reconciled == nil || len(c.reconciled) >= reconciledMax {
			c.reconciled = map[memberKey]uint64{}
		}
		c.reconciled[k] = f.Round
	}
	held := slices.Clone(f.Held)
	slices.Sort(held)
	var lost []*lease
	for _, l := range m.leases {
		if _, ok := slices.BinarySearch(held, l.id); !ok {
			lost = append(lost, l)
		}
	}
	sortLeases(lost)
	for len(m.parked) > 0 {
		g := m.parked[0]
		d.unpark(q, g)
		g.Err = ErrReplaced
		out.push(g)
	}
	for _, l := range lost {
		d.endLease(l, EndedLost, out)
	}
}
