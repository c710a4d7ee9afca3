// Package term owns what a registry keeps of one broker group: who is its master, in which term, and which slaves are in sync
// (auto broker groups). All of it is one row, changed by compare-and-set only, with pure functions: they touch no clock, no network
// and no database, so that the simulator of server/replica and the registry run the same rules.
//
// scripts/model is the executable model of these rules; the names of its rules stand at the code that keeps them.
package term

import "errors"

// Member is a node as it counts in an in-sync set: of one boot and one store. One that restarted without a clean stop, whose sync
// failed, or whose disk is another, is another member.
type Member struct {
	Broker string `json:"broker"`
	Boot   string `json:"boot"`  // changes when what was not synced may be lost
	Store  string `json:"store"` // store id, hex; changes with the disk
}

// Row is what the registry keeps of a broker group. The zero Row is that of one that never had a master.
type Row struct {
	Term   uint32 `json:"term,omitempty"`
	Master Member `json:"master,omitzero"`  // with the boot and store that the grant was for
	Forced bool   `json:"forced,omitempty"` // the term was granted by an operator, who accepted loss
	// Fence: the term was granted by what brokers had before anybody had promised it: what they reported at different times (Refill), of which one may
	// have opened its journal since, or what a master with a new store copied (Ask.Copied), while what it sent in its former life may reach a slave
	// later. The master opens only after every other broker of the broker group (auto: a member of the set) has promised to do nothing in a
	// lower term, and it has copied what the most complete of them had then.
	Fence bool `json:"fence,omitempty"`
	// Set are the slaves in sync, without the master, ordered by broker. On fixed broker groups it is what the master told last, and nothing
	// is decided by it; on auto ones only its members can be promoted.
	Set []Member `json:"set,omitempty"`
	// Change is raised by every compare-and-set, also by one that changes nothing else.
	Change uint64 `json:"change,omitempty"`
	// Start is that of the master's last opening that the registry heard of: a master whose journal does not know it has lost its end, or is an
	// older image of itself.
	Start uint32 `json:"start,omitempty"`
	// Committed is the highest position that a master said to be committed, as of the last write of the row; 0: not known. The next terms
	// keep it, until an operator promotes by force: no master opens with a journal that ends below it.
	Committed uint64 `json:"committed,omitempty"`
	// Generation of the metadata in which the row was confirmed: in another one every set counts as empty, and nothing is answered
	// until all nodes of the broker group have reported (Refill).
	Generation uint64 `json:"generation,omitempty"`
	// Transfer names the slave to which the master hands over as soon as it can; "" none is asked for.
	Transfer string `json:"transfer,omitempty"`
}

// Report is what a node says of itself, by its heartbeat or when it is asked.
type Report struct {
	Member
	Master    bool   // it acts as master, of Term
	Term      uint32 // of the epoch in which it acts as master
	Seen      uint32 // the highest term that it met; durable before it said so
	LastTerm  uint32 // of the last record of its journal, and the start
	LastStart uint32
	End       uint64 // of its journal
	Committed uint64 // the highest committed position it knows
	Refused   bool   // it would have to cut below what it knows to be committed: an alarm stands
	New       bool   // its store is empty: it forgot what it promised
}

// Ask is a master's compare-and-set of the in-sync set.
type Ask struct {
	Master Member
	Term   uint32
	Start  uint32 // of the master's epoch
	Change uint64 // of the row that the master knows
	Set    []Member
	To     string // not empty: the master has stopped for good and everything is committed and held by this slave, one of Set: it hands over
	// Copied: Master is the named broker with another store than it was named with. It has copied the most complete journal, synced, and
	// asks for a term of its own, because its start counter went with the disk. Seen is the highest term that it heard of.
	Copied bool
	Seen   uint32
	End    uint64 // of the journal; with Copied
}

var (
	// ErrStale: the row is another than the one that was compared with; the caller gets the row as it is.
	ErrStale = errors.New("term: the broker group's row has changed")
	// ErrNotReady: after a new generation of the metadata not all nodes have reported yet.
	ErrNotReady = errors.New("term: not all brokers of the broker group have reported since the metadata's new generation")
	// ErrShort: messages are committed that the journal of who asks does not have.
	ErrShort = errors.New("term: the journal ends below what is committed")
	// ErrAsk: what was asked for contradicts itself, or the row.
	ErrAsk = errors.New("term: this change of the broker group cannot be")
	// ErrNoCandidate: nobody can be promoted without the loss of acknowledged messages.
	ErrNoCandidate = errors.New("term: no complete slave is there")
)
