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
	// MasterBegin is told where the master's journal begins, at a slave whose store may trim what lies before. It must not block and may
	// be told the same again. nil: nobody.
	MasterBegin func(journal.Position)
	// Side says, at a slave, whether it has acks for its master, and whether it served reads since it last heard one. nil: neither.
	Side   func() (acks, served bool)
	Timing Timing
	Now    func() time.Time
	Logger *slog.Logger
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

// Master is the log of a broker that was named master: records are committed when they are synced here and acked by every slave in sync.
// It is a local.Log, and the master's half of wire.Replication (Follow, Pull, ReadLog, ReadSeed, LogSums).
type Master struct{ *journal.Journal }

// OpenMaster recovers the journal, takes back what slaves hold of its own epoch, begins an epoch of term, and returns when everything in
// the journal is committed: on auto broker groups that waits for the slaves of the set. opts.Recovered is called with all of it. serve
// is called as soon as slaves may connect. The caller has decided that this store may be opened as master: see Decide.
func OpenMaster(ctx context.Context, n Node, termGranted uint32, forced bool, opts journal.Options, serve func(*Master)) (*Master, error) {
	panic("replica: not built yet")
}

// StepDown ends the master for good: it met the term, or handed over.
func (m *Master) StepDown(termMet uint32, why string) { panic("replica: not built yet") }

// HandOver stops appends (ErrNotMaster), waits until everything is committed and held by slave to, and asks the registry to name it. nil: it
// was named, and this master is fenced. An error: nothing was handed over, and appends go on.
func (m *Master) HandOver(ctx context.Context, to string) (term.Row, error) {
	panic("replica: not built yet")
}

// Fenced is closed when the master stopped because another is named, or a higher term was met.
func (m *Master) Fenced() <-chan struct{} { panic("replica: not built yet") }

// Status of a master.
func (m *Master) Status() *wire.ReplicaStatus { panic("replica: not built yet") }

// Slave is the log of a slave: it follows the master that it is told of, and commits what that has committed. It is a local.Log whose appends
// are ErrNotMaster, and answers Meet, ReadLog and LogSums.
type Slave struct{ *journal.Journal }

// OpenSlave recovers the journal up to its real end and begins to follow. opts.Recovered is called up to what it knows to be committed; opts.Committed
// tells of more.
func OpenSlave(ctx context.Context, n Node, opts journal.Options) (*Slave, error) {
	panic("replica: not built yet")
}

// Heard is when the slave last heard a master of the current term in a session; the zero time: not since it was opened.
func (s *Slave) Heard() time.Time { panic("replica: not built yet") }

// MustReopen is closed when the slave cannot go on with this store as it is: it was named master, its journal was cut below what the store
// has applied, or it needs a full copy. Why says which.
func (s *Slave) MustReopen() <-chan struct{} { panic("replica: not built yet") }

// Status of a slave.
func (s *Slave) Status() *wire.ReplicaStatus { panic("replica: not built yet") }
