package journal

import "fmt"

// Replica is who copies what a leading journal appends, and says when enough others have it.
type Replica interface {
	// Written is called with each run of records, as they will be on disk, before they are written here, so that both go on at
	// once. In order of positions, by the goroutine that commits. b is valid until it returns; it must not block.
	Written(from Position, b []byte)
	// Wait is called after what is below end was synced here, and returns when it is committed. An error stops the journal
	// (ErrFenced), and the outcome of these appends is unknown.
	Wait(end Position) error
	// InSync says whether another replica holds all that is committed: it is asked by Append, on any goroutine, and must not block.
	InSync() bool
	// Copied is the end of what at least one other replica holds. Asked after Wait.
	Copied() Position
}

// Lead makes a journal that follows one that appends, in epoch e, which must be higher than that of the last record. All that was copied is
// synced, then the epoch's record is written, offered to r and synced; r is not waited for: what was not committed yet, and that record, are
// when SetCommitted says so or a later append is. forced marks an epoch whose term was granted by force.
//
// Errors: ErrTerm if e is not higher, ErrNoSpace (it follows still, and Lead can be called again), ErrLeads, ErrClosed; any other has stopped
// the journal.
func (j *Journal) Lead(e Epoch, forced bool, r Replica) error {
	j.syncMu.Lock()
	defer j.syncMu.Unlock()
	if err := j.ownFollowing(); err != nil {
		return err
	}
	defer j.disown()
	if err := j.syncCopied(); err != nil {
		return err
	}
	last := j.Epoch()
	if e <= last {
		return fmt.Errorf("%w: its last record is of epoch %v, it cannot lead in epoch %v", ErrTerm, last, e)
	}
	flags := uint8(0)
	if forced {
		flags = epochForced
	}
	j.mu.Lock()
	j.mu.following, j.mu.cutting = false, true
	if c := j.current; c != nil && c.flags&flagReserve != 0 && j.reserveMissingLocked() {
		j.mu.reserved, j.mu.reservedFrom = true, c.base
	}
	j.mu.Unlock()
	if r != nil {
		j.replica.Store(&r)
	}
	err := j.startEpoch(e, flags)
	j.mu.Lock()
	j.mu.cutting = false
	if err != nil && j.mu.err == nil {
		j.mu.following, j.mu.reserved = true, false
		j.replica.Store(nil)
		j.epoch.Store(uint64(last))
	}
	j.roomLocked()
	j.mu.Unlock()
	return err
}

// markShort tells the Replicated ones of what was committed whether another replica has them.
func (j *Journal) markShort(appends []queued, from, copied Position) {
	for _, q := range appends {
		if q.append != nil && q.append.Replicated && from+Position(q.end) > copied {
			q.append.Short = true
		}
	}
}

// noteEnds writes the ends file now and then while the journal leads: nothing relies on it, for a leading journal's records prove what was
// synced, and what is committed is found anew by who leads next.
func (j *Journal) noteEnds() {
	if err := j.writeEnds(); err != nil {
		j.opts.Logger.Warn("journal's ends file is not written", "err", err)
	}
}
