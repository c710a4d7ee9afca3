package replica

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/term"
	"github.com/jmqio/jmq/wire"
)

var (
	// ErrNotMaster: this broker does not take what only a master takes; nothing was written.
	ErrNotMaster = errors.New("replica: this broker is not the master")
	// ErrFenced stops a master that met a higher term, or handed over: appends under way are ErrUnknown, later ones were not written.
	ErrFenced = errors.New("replica: another broker is the master now")
)

// Timing of replication. The zero value of each is its default.
type Timing struct {
	KeepAlive  time.Duration // 100 ms: a push at least so often
	LeaveAfter time.Duration // 800 ms: the oldest byte that a slave of the set has not acked is at most so old
	LeaveBytes int64         // 64 MiB: and it is at most so much behind
	JoinAfter  time.Duration // 5 s in step before a slave joins; doubled each time that it left within a minute, up to 16 times
	SyncEvery  time.Duration // 500 ms: a slave syncs so often; at most 1 s behind
	AwayAfter  time.Duration // 2 s: a slave that heard nothing for so long takes its master as away
	CheckEvery time.Duration // 10 min: a slave compares its records with the master's; below 0: only when it is asked to
}

// Peer asks another broker of the broker group. client of server makes them; a Peer connects when it is first used.
type Peer interface {
	wire.Replication
	// Call as wire.Conn.Go: done runs on the goroutine that reads the connection, and f is valid until it returns.
	Call(ctx context.Context, command wire.Command, header []byte, done func(f wire.Frame, err error))
	Close() error
}

// Node is what Master and Slave know of the broker that they are part of.
type Node struct {
	BrokerGroup string
	Self        term.Member
	State       *StateFile
	Auto        bool
	// Peers are the addresses of the other brokers of the broker group, by name, as the metadata says now.
	Peers func() map[string][]string
	// Dial returns a Peer for a broker at one of these addresses. It does not wait.
	Dial func(broker string, addresses []string) Peer
	// Ask is the compare-and-set at the registry: the row as it is then, and whether it was changed. An error: it may or may not have been.
	Ask func(ctx context.Context, a term.Ask) (row term.Row, changed bool, err error)
	// Row is the broker group's row as last heard of the registry; false: none yet.
	Row func() (term.Row, bool)
	// Changed is called when Status says something else than before; it must not block. nil: nobody.
	Changed func()
	// Seed makes what a full copy of this store begins with, at a master. nil: none can be given.
	Seed func(ctx context.Context) (Seed, error)
	// MasterBegin is told where the master's journal begins, at a slave whose store may trim what lies before when it has applied what is
	// committed: until then it may lack what the master has carried forward. It must not block and may be told the same again. nil: nobody.
	MasterBegin func(begin, committed journal.Position)
	// Side says, at a slave, whether it has acks for its master, and whether it served reads since it last heard one. nil: neither.
	Side   func() (acks, served bool)
	Timing Timing
	// Every is how long to wait where d is usual between two looks or signs of life. nil: d.
	Every  func(d time.Duration) time.Duration
	Now    func() time.Time
	Logger *slog.Logger

	copying bool // of the slave that makes a full copy
}

// Seed is what a full copy begins with: what the tables of a store say of its journal up to a position. It stays as it is until Close.
type Seed interface {
	io.ReaderAt
	Size() int64
	// Position is what it says it of, Begin where the copy's journal begins. Begin <= Position <= committed; both are begins of records.
	Position() journal.Position
	Begin() journal.Position
	Close() error
}
