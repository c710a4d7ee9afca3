package meta

import (
	"context"
	"time"
)

// Store holds the metadata. All methods may be called at the same time.
type Store interface {
	// View is the newest snapshot that this store knows; never nil. It reads nothing.
	View() *Snapshot
	// Watch returns a snapshot newer than after, or of another generation, as soon as this store knows one: also one that another
	// process wrote, at the latest 0.5 s after its commit while the database can be reached. It ends with ctx.
	Watch(ctx context.Context, after *Snapshot) (*Snapshot, error)
	// Update carries out all writes of a change and its audit entries in one transaction, or nothing. Errors are *wire.CodeError:
	// CodeConflict, CodeNotFound, CodeExists, CodeInUse, CodeInvalid: nothing was changed. CodeMetadataAway: the database cannot be
	// reached, is read-only, or holds an older version than this store has seen; nothing was changed. CodeUnknown: the commit was not answered.
	// The snapshot that it returns has the change, and View and Watch give it from then on.
	Update(ctx context.Context, c Change) (*Snapshot, error)
	// NewGeneration takes the database as it is, although it may be older than what is known.
	NewGeneration(ctx context.Context, by Actor, reason string) (*Snapshot, error)
	// Audit reads entries, the newest first.
	Audit(ctx context.Context, q AuditQuery) (entries []AuditEntry, more bool, err error)
	// Beat stores the heartbeats of nodes and returns those of all nodes of the last minutes. One round trip, however many.
	Beat(ctx context.Context, beats []Beat) ([]Beat, error)
	// Health is nil while the database can be reached and is trusted, else what is wrong.
	Health() error
	Close() error
}

// Actor is who changes something.
type Actor struct {
	Name string // as "user NAME", "app NAME", "node NAME", "local"
	Addr string
}

// Mark is a place in the history of metadata.
type Mark struct {
	Generation Generation
	Version    Version
}

// Change is one change of one or more objects.
type Change struct {
	By     Actor
	Seen   Mark     // what somebody is known to have been told: metadata of that generation which is behind it went back, and takes no change
	As     *Subject // must have the right to each write (MayWrite), in the snapshot that the change is made of; nil: nobody is asked
	Reason string
	Writes []Write // at most 1,000; no key twice
	DryRun bool    // only says what would be: the snapshot returned has the change, and nobody else ever sees it
}

// Write makes, changes or deletes an object.
type Write struct {
	Key    Key
	Spec   Spec // nil: delete
	Expect Expect
	Own    bool // the registry's own, beside those of Change.As, who is not asked for the right to it
}

// Expect is what a write wants to find.
type Expect struct {
	Revision Version // the object's revision now; with Any and Create it is ignored
	Create   bool    // it must not be there
	Any      bool    // there or not
}

// AuditEntry is one write of a change that was made. Before and After are specs as JSON, without secrets; empty: not there.
type AuditEntry struct {
	ID      uint64
	Version Version
	Time    time.Time
	By      Actor
	Reason  string
	Change  string // created, changed, deleted, new-generation
	Key     Key
	Before  []byte
	After   []byte
}

// AuditQuery selects audit entries; each empty field is any.
type AuditQuery struct {
	Key    Key
	Who    string
	Since  time.Time
	Before uint64 // only entries with a lower id; 0: from the newest
	Limit  int    // 0: 100
}

// Beat is a node's sign of life. Count only says that it changed: silence is measured by the clock of who judges.
type Beat struct {
	Node  string
	Boot  string
	Count uint64
	Info  []byte // wire.HeartbeatRequest, encoded
}
