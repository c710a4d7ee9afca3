package offset

import "github.com/jmqio/jmq/server/journal"

// Clone returns a copy of the table that no store feeds: for a broker that goes on from where the journal is known to be committed.
func (t *Table) Clone() (*Table, error) {
	t.mu.Lock()
	b := t.Snapshot(nil)
	t.mu.Unlock()
	c := NewTable()
	if err := c.Restore(b); err != nil {
		return nil, err
	}
	return c, nil
}

// Note counts what no record of this table's journal says: ends and expiries of a journal's tail that may not be committed, or of a side
// file. For a table that a store feeds it would be gone with the next restart: only clones get it. Those of an older generation are
// dropped; a newer one comes from a reset that is not known here, and the messages were handled all the same. It returns how many messages had not
// ended before.
func (t *Table) Note(ends []End, expiries []Expiry, stored int64) (ended uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &t.mu.state
	for i := range ends {
		e := &ends[i]
		p := s.counted(e.Group, e.Topic, e.Partition, e.Generation, stored)
		if p == nil {
			continue
		}
		n := p.end(e.Range)
		s.counts.Ended += n
		s.counts.Again += e.Range.Len() - n
		ended += n
	}
	for i := range expiries {
		e := &expiries[i]
		p := s.counted(e.Group, e.Topic, e.Partition, e.Generation, stored)
		if p == nil {
			continue
		}
		s.counts.Expired++
		for _, r := range e.Ranges {
			p.Expire(r, e.Count)
		}
	}
	return ended
}

// NoteRecord is Note of a record; of kinds that are neither ends nor expiries nothing is noted.
func (t *Table) NoteRecord(r journal.Record) error {
	switch r.Kind {
	case journal.KindEnd:
		ends, err := DecodeEnds(nil, r.Payload)
		if err != nil {
			return err
		}
		t.Note(ends, nil, r.Stored)
	case journal.KindLeaseExpiry:
		expiries, err := DecodeExpiries(r.Payload)
		if err != nil {
			return err
		}
		t.Note(nil, expiries, r.Stored)
	}
	return nil
}
