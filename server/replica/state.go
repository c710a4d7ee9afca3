package replica

import (
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/term"
)

// State is what a broker remembers of its broker group, in the file REPLICA of its data folder.
type State struct {
	// Boot is the name of what the broker may rely on of what it did not sync: it stays through kills and clean stops, and is another
	// after a power loss, a failed sync, or on an empty folder.
	Boot    string `json:"boot"`
	Machine string `json:"machine,omitempty"` // the system's boot id when Boot was chosen, to see a power loss
	Clean   bool   `json:"clean,omitempty"`   // the mark of a clean stop; removed, synced, at start
	Seen    uint32 `json:"seen,omitempty"`    // the highest term met: synced before the broker answers in it, or promises to stop
	// Granted is the term in which the registry named this broker master, as last heard, for the store and the boot in it; 0: it is a slave.
	Granted uint32      `json:"granted,omitempty"`
	Grant   term.Member `json:"grant,omitzero"`
	Forced  bool        `json:"forced,omitempty"`
	// Set is the in-sync set with what the registry may hold of it, and counts in SetTerm only. auto broker groups.
	Set     []term.Member `json:"set,omitempty"`
	SetTerm uint32        `json:"setTerm,omitempty"`
	// Serving since, unix ns: the broker may have served reads as a slave since it last heard a master. 0: it has not.
	Serving int64 `json:"serving,omitempty"`
}

// StateFile keeps a State: replaced as a whole, checksummed, synced before Update returns.
type StateFile struct {
	fs  vfs.FS
	dir string
}

// OpenState reads dir's state, or begins one. machine is the system's boot id, empty where it cannot be known: each start is then
// another boot unless the stop before was clean. A damaged file is an error: what was promised is not known any more.
func OpenState(fs vfs.FS, dir, machine string) (*StateFile, error) {
	panic("replica: not built yet")
}

// Get returns the state as it is.
func (f *StateFile) Get() State { panic("replica: not built yet") }

// Update changes the state; when it returns nil the change is on disk. An error leaves it as it was.
func (f *StateFile) Update(change func(*State)) error { panic("replica: not built yet") }
