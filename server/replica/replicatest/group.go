package replicatest

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/replica"
	"github.com/jmqio/jmq/server/term"
	"github.com/jmqio/jmq/wire"
)

// Registry keeps the row of one broker group.
type Registry struct {
	mu   sync.Mutex
	row  term.Row
	away bool
}

// Generation of the metadata.
const Generation = 1

// Away makes the registry answer nothing, and tell nothing new.
func (r *Registry) Away(away bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.away = away
}

// Row returns the row; false: there is none yet.
func (r *Registry) Row() (term.Row, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.row, r.row.Term > 0
}

// Change changes the row.
func (r *Registry) Change(change func(term.Row) (term.Row, error)) (term.Row, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	row, err := change(r.row)
	if err == nil {
		r.row = row
	}
	return r.row, err
}

func (r *Registry) ask(a term.Ask) (term.Row, bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.away {
		return term.Row{}, false, errors.New("replicatest: the registry is away")
	}
	row, err := r.row.Compare(a, a.Seen, Generation)
	switch {
	case err == nil:
		r.row = row
		return row, true, nil
	case errors.Is(err, term.ErrStale):
		return r.row, false, nil
	}
	return term.Row{}, false, err
}

// Group is a broker group: journals without stores, over a network in memory.
type Group struct {
	T        testing.TB
	Name     string
	Auto     bool
	Timing   replica.Timing
	Net      *Net
	Registry *Registry
	Logger   *slog.Logger
	Nodes    map[string]*Node
}

// NewGroup returns a broker group of brokers that are not started. Close it.
func NewGroup(t testing.TB, names ...string) *Group {
	g := &Group{T: t, Name: "group", Net: NewNet(), Registry: new(Registry), Nodes: map[string]*Node{}, Logger: slog.New(slog.DiscardHandler)}
	for _, name := range names {
		g.Nodes[name] = &Node{Name: name, g: g, Disk: NewDisk(), machine: "1"}
	}
	return g
}

// Close stops all.
func (g *Group) Close() {
	for _, n := range g.Nodes {
		n.Stop()
	}
	g.Net.Close()
}

// Node is one broker: a disk, and a master or slave on it while it is up.
type Node struct {
	Name    string
	Disk    *Disk
	Options journal.Options // sizes and callbacks
	Seed    func(context.Context) (replica.Seed, error)
	// MasterBegin is replica.Node's.
	MasterBegin func(begin, committed journal.Position)

	g       *Group
	machine string
	state   *replica.StateFile
	row     atomic.Pointer[term.Row] // as last heard

	Master *replica.Master
	Slave  *replica.Slave
}

const (
	dataDir    = "/data"
	journalDir = "/data/journal"
)

// StoreID is that of the disk, made with it.
func (n *Node) StoreID() (id [16]byte) {
	path := dataDir + "/store"
	if f, err := n.Disk.Open(path); err == nil {
		defer f.Close()
		if _, err := f.ReadAt(id[:], 0); err != nil {
			n.g.T.Fatal(err)
		}
		return id
	}
	for i := range id {
		id[i] = byte(rand.Uint32())
	}
	must := func(err error) {
		if err != nil {
			n.g.T.Fatal(err)
		}
	}
	must(n.Disk.MkdirAll(journalDir, 0o700))
	f, err := n.Disk.Create(path, "")
	must(err)
	_, err = f.WriteAt(id[:], 0)
	must(err)
	must(f.Sync())
	must(f.Close())
	for _, dir := range []string{dataDir, "/"} {
		d, err := n.Disk.OpenDir(dir)
		must(err)
		must(d.Sync())
		must(d.Close())
	}
	return id
}

// Node returns what a master or slave on the disk knows of its broker.
func (n *Node) Node() replica.Node {
	store := n.StoreID()
	if n.state == nil {
		state, err := replica.OpenState(n.Disk, dataDir, n.machine)
		if err != nil {
			n.g.T.Fatalf("%s: %v", n.Name, err)
		}
		n.state = state
	}
	return replica.Node{
		BrokerGroup: n.g.Name, State: n.state, Auto: n.g.Auto, Timing: n.g.Timing, Seed: n.Seed, MasterBegin: n.MasterBegin,
		Self: term.Member{Broker: n.Name, Boot: n.state.Get().Boot, Store: hex.EncodeToString(store[:])},
		Peers: func() map[string][]string {
			m := map[string][]string{}
			for name := range n.g.Nodes {
				if name != n.Name {
					m[name] = []string{name}
				}
			}
			return m
		},
		Dial: func(broker string, addresses []string) replica.Peer { return n.g.Net.Peer(n.Name, addresses[0]) },
		Ask: func(ctx context.Context, a term.Ask) (term.Row, bool, error) {
			return n.g.Registry.ask(a)
		},
		Row:    n.g.Registry.heard(&n.row),
		Logger: n.g.Logger.With("node", n.Name),
	}
}

// heard is the row as a broker knows it.
func (r *Registry) heard(last *atomic.Pointer[term.Row]) func() (term.Row, bool) {
	return func() (term.Row, bool) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if !r.away && r.row.Term > 0 {
			row := r.row
			last.Store(&row)
		}
		if p := last.Load(); p != nil {
			return *p, true
		}
		return term.Row{}, false
	}
}

func (n *Node) options() journal.Options {
	o := n.Options
	o.FS, o.Dir, o.StoreID = n.Disk, journalDir, n.StoreID()
	if o.SegmentBytesMax == 0 {
		o.SegmentBytesMax, o.SegmentBytesFirst, o.ReserveBytes = 1<<20, 64<<10, -1
	}
	o.Logger = n.g.Logger.With("node", n.Name)
	return o
}

// StartMaster names the broker master of a new term, if another one is, and opens it.
func (n *Node) StartMaster(ctx context.Context) error {
	node := n.Node()
	row, _ := n.g.Registry.Change(func(r term.Row) (term.Row, error) {
		if r.Master == node.Self {
			return r, nil
		}
		return term.Row{Term: r.Term + 1, Master: node.Self, Change: r.Change + 1, Generation: Generation}, nil
	})
	return n.Lead(ctx, row)
}

// Lead opens the broker as the master that the row names.
func (n *Node) Lead(ctx context.Context, row term.Row) error {
	node := n.Node()
	if err := n.state.Update(func(s *replica.State) { *s = s.Hear(node.Self, row) }); err != nil {
		return err
	}
	return n.open(ctx, row.Term, row.Forced)
}

func (n *Node) open(ctx context.Context, termGranted uint32, forced bool) error {
	m, err := replica.OpenMaster(ctx, n.Node(), termGranted, forced, n.options(), func(m *replica.Master) {
		n.g.Net.Up(n.Name, wire.Services{Replication: &service{Replication: nil, master: m}})
	})
	if err != nil {
		n.g.Net.Down(n.Name)
		return err
	}
	n.Master = m
	return nil
}

// StartSlave opens the broker as a slave.
func (n *Node) StartSlave(ctx context.Context) error {
	s, err := replica.OpenSlave(ctx, n.Node(), n.options(), nil)
	if err != nil {
		return err
	}
	n.Slave = s
	n.g.Net.Up(n.Name, wire.Services{Replication: &service{slave: s}})
	return nil
}

// Start opens the broker as what it may be, as replica.Decide says. An error: it may not open yet, or what went wrong.
func (n *Node) Start(ctx context.Context) error {
	for range 5 {
		node := n.Node()
		k := replica.Known{Self: node.Self, Auto: n.g.Auto}
		if row, ok := n.g.Registry.known(); ok {
			k.Row = &row
			if err := n.state.Update(func(s *replica.State) { *s = s.Hear(node.Self, row) }); err != nil {
				return err
			}
		}
		k.State = n.state.Get()
		for name := range node.Peers() {
			k.Others = append(k.Others, name)
			peer := n.g.Net.Peer(n.Name, name)
			meet, cancel := context.WithTimeout(ctx, time.Second)
			a, err := peer.Meet(meet, &wire.MeetRequest{BrokerGroup: n.g.Name, Broker: n.Name, Term: k.State.Granted})
			cancel()
			_ = peer.Close()
			if err != nil {
				continue
			}
			met, err := replica.MetOf(name, a)
			if err != nil {
				return err
			}
			k.Met = append(k.Met, met)
		}
		o := n.options()
		o.Follow, o.Recovered = true, nil
		j, err := journal.Open(o)
		if err != nil {
			return err
		}
		k.History, k.Committed = replica.HistoryOf(j), j.Committed()
		k.Fresh = k.History.End == 0
		d := replica.Decide(k)
		if d.Act == replica.ActCopy {
			err = replica.CopyMissing(ctx, node, d, j)
		}
		if err := errors.Join(err, j.Close()); err != nil {
			return err
		}
		if d.Seen > k.State.Seen {
			if err := n.state.Update(func(s *replica.State) { s.Seen = d.Seen }); err != nil {
				return err
			}
		}
		switch d.Act {
		case replica.ActWait:
			return fmt.Errorf("replicatest: %s waits: %s", n.Name, d.Why)
		case replica.ActFollow:
			return n.StartSlave(ctx)
		case replica.ActLead:
			return n.open(ctx, k.State.Granted, d.Forced)
		case replica.ActTerm, replica.ActSettle:
			if _, _, err := n.g.Registry.ask(d.Ask(node.Self, *k.Row, k.History.End)); err != nil {
				return err
			}
		}
	}
	return errors.New("replicatest: it does not come to an end")
}

// known is the row, if the registry can be asked.
func (r *Registry) known() (term.Row, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.row, !r.away
}

// Promote lets the registry name a member of its set, of those that are up, master, and returns it.
func (g *Group) Promote() (term.Row, error) {
	var reports []term.Report
	known := uint64(0)
	row, _ := g.Registry.Row()
	for name, n := range g.Nodes {
		if n.Slave == nil || name == row.Master.Broker {
			continue
		}
		st := n.Slave.Status()
		e := journal.Epoch(st.Epoch)
		reports = append(reports, term.Report{Member: n.Node().Self, Seen: st.SeenTerm, LastTerm: e.Term(), LastStart: e.Start(), End: st.End,
			Committed: st.Committed, Refused: st.Refused, New: st.Fresh})
		known = max(known, st.Committed)
	}
	return g.Registry.Change(func(r term.Row) (term.Row, error) { return r.Promote(reports, known, Generation) })
}

// Serve is what a broker answers that is a master, or a slave.
func Serve(m *replica.Master, s *replica.Slave) wire.Replication {
	return &service{master: m, slave: s}
}

// service lets a node answer what it can as it is.
type service struct {
	wire.Replication // nil: the rest is not asked
	master           *replica.Master
	slave            *replica.Slave
}

func notMaster() error { return wire.Errorf(wire.CodeNotMaster, "this broker is a slave") }

func (s *service) Follow(ctx context.Context, r *wire.FollowRequest) (*wire.FollowResponse, error) {
	if s.master == nil {
		return nil, notMaster()
	}
	return s.master.Follow(ctx, r)
}

func (s *service) Pull(ctx context.Context, r *wire.PullRequest, done func(*wire.PullResponse, []byte, error)) {
	if s.master == nil {
		done(nil, nil, notMaster())
		return
	}
	s.master.Pull(ctx, r, done)
}

func (s *service) Meet(ctx context.Context, r *wire.MeetRequest) (*wire.MeetResponse, error) {
	if s.master == nil {
		return s.slave.Meet(ctx, r)
	}
	return s.master.Meet(ctx, r)
}

func (s *service) ReadLog(ctx context.Context, r *wire.ReadLogRequest) (*wire.ReadLogResponse, []byte, error) {
	if s.master == nil {
		return s.slave.ReadLog(ctx, r)
	}
	return s.master.ReadLog(ctx, r)
}

func (s *service) ReadSeed(ctx context.Context, r *wire.ReadSeedRequest) (*wire.ReadSeedResponse, []byte, error) {
	if s.master == nil {
		return nil, nil, notMaster()
	}
	return s.master.ReadSeed(ctx, r)
}

func (s *service) LogSums(ctx context.Context, r *wire.LogSumsRequest) (*wire.LogSumsResponse, error) {
	if s.master == nil {
		return s.slave.LogSums(ctx, r)
	}
	return s.master.LogSums(ctx, r)
}

// Up says whether the node runs.
func (n *Node) Up() bool { return n.Master != nil || n.Slave != nil }

// Stop stops the node in order.
func (n *Node) Stop() {
	if n.Master != nil {
		_ = n.Master.Close() // it may have been fenced
	}
	if n.Slave != nil {
		_ = n.Slave.Close()
	}
	n.g.Net.Down(n.Name)
	n.Master, n.Slave = nil, nil
}

// Kill ends the process as it is: what it wrote stays. PowerLoss leaves percent of what was not synced.
func (n *Node) Kill() { n.crash(100, rand.New(rand.NewPCG(1, 1))) }

func (n *Node) PowerLoss(percent int, rng *rand.Rand) {
	n.crash(percent, rng)
	n.machine = fmt.Sprint(rng.Uint64())
}

func (n *Node) crash(percent int, rng *rand.Rand) {
	left := n.Disk.Crash(percent, rng)
	n.g.Net.Down(n.Name)
	n.Stop()
	n.Replace(left)
}

// SwapDisk gives the stopped node an empty disk.
func (n *Node) SwapDisk() { n.Replace(NewDisk()) }

// Restore gives the stopped node a disk as it was.
func (n *Node) Restore(image *Disk) { n.Replace(image.Image()) }

// Send appends a record at the master and waits for its outcome. short: it is committed, and not known to be on two machines.
func (n *Node) Send(payload []byte, replicated bool) (end journal.Position, short bool, err error) {
	type result struct {
		short bool
		err   error
	}
	done := make(chan result, 1)
	a := &journal.Append{Entries: []journal.Entry{{Kind: journal.KindMessages, Payload: payload}}, Stored: time.Now().UnixNano(), Replicated: replicated}
	a.Done = func(a *journal.Append, err error) { done <- result{a.Short, err} }
	for {
		err := n.Master.Append(a)
		if errors.Is(err, journal.ErrBusy) {
			if err = n.Master.WaitRoom(context.Background()); err == nil {
				continue
			}
		}
		if err != nil {
			return 0, false, err
		}
		break
	}
	n.Master.Kick()
	r := <-done
	return a.Entries[0].Position + journal.Position(journal.RecordBytes(len(payload))), r.short, r.err
}

// Await waits until good, or fails the test with what is said.
func (g *Group) Await(good func() bool, format string, args ...any) {
	g.T.Helper()
	for end := time.Now().Add(20 * time.Second); !good(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			g.T.Fatalf("waited in vain until "+format, args...)
		}
	}
}

// InSync says whether the master counts a slave.
func (n *Node) InSync(slave string) bool {
	if n.Master == nil {
		return false
	}
	for _, s := range n.Master.Status().Slaves {
		if s.Broker == slave {
			return s.InSync
		}
	}
	return false
}

// Replace gives the stopped node another disk.
func (n *Node) Replace(d *Disk) { n.Disk, n.state = d, nil }

// JournalOptions are those that the node's journal is opened with.
func (n *Node) JournalOptions() journal.Options { return n.options() }

// Journal is the node's, while it is up.
func (n *Node) Journal() *journal.Journal {
	if n.Master != nil {
		return n.Master.Journal
	}
	return n.Slave.Journal
}

// Damage overwrites some bytes of the segment that begins at base.
func (n *Node) Damage(base journal.Position, at int64) {
	f, err := n.Disk.OpenReadWrite(fmt.Sprintf("%s/%020d.journal", journalDir, base), "")
	if err == nil {
		_, err = f.WriteAt([]byte("damage damage damage damage damage"), at)
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err != nil {
		n.g.T.Fatal(err)
	}
}
