package term

// Renew begins a new term of the master that is named, with an empty set: after a change of what rules a set is formed by (the mode of the
// broker group). What a master says of its set that was formed by other rules is of a lower term then, and counts for nothing. m is the master
// as it lives now, and acts as one. ErrStale: it is not that.
func (r Row) Renew(m Report, reports []Report, generation uint64) (Row, error) {
	switch {
	case r.Unanswerable(generation) || r.Term == 0:
		return r, ErrNotReady
	case m.Broker != r.Master.Broker || !m.Master || m.Term != r.Term:
		return r, ErrStale
	}
	return r.grant(m.Member, nil, max(m.Seen, r.Highest(reports)), false), nil
}
