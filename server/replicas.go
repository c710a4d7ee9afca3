package server

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/server/replica"
	"github.com/jmqio/jmq/server/store/local"
	"github.com/jmqio/jmq/server/term"
	"github.com/jmqio/jmq/wire"
)

const (
	registryWithin = 2 * time.Second        // for a registry to be heard at a start
	meetWithin     = 2 * time.Second        // for another broker to say what it has
	toldEvery      = 20 * time.Millisecond  // at a start, until the registry says what it knows to be committed
	decideEvery    = 250 * time.Millisecond // while the broker waits
	lookEvery      = 250 * time.Millisecond // at a slave: whether its master is away
	askWithin      = 3 * time.Second        // of a question to the registry
	handOverWithin = 10 * time.Second
	tellWaiting    = 2 * time.Second       // of a hand-over
	namedRetry     = 20 * time.Millisecond // clients ask a broker again that was named master and opens its store
)

// What a broker is, as status says it.
const (
	roleWaiting = "waiting"
	roleMaster  = "master"
	roleSlave   = "slave"
	roleCopying = "copying"
)

// replicas is the part of a broker's role that a registry rules: it decides what the broker is, and opens the store as that.
//
//	waiting   it may not open as master yet: the store is a slave's, and why is told
//	master    its log is a replica.Master
//	slave     its log is a replica.Slave
//
// One goroutine, run, decides, and closes and opens engines; nobody else does. It looks again when it is woken (the registry's row has
// changed, a log says so) and, while the broker waits, now and then.
type replicas struct {
	r      *brokerRole
	s      *Server
	state  *replica.StateFile
	dialer *dialer
	begun  time.Time

	wake    chan struct{} // has room for one
	settled chan struct{} // closed when the broker is what it can be for now
	once    sync.Once     // close settled
	failed  chan error    // has room for one: the store cannot be opened

	ctx    context.Context
	cancel context.CancelFunc
	done   sync.WaitGroup

	// The logs that other brokers reach; a master's before its engine is open. At most one of both.
	master atomic.Pointer[replica.Master]
	slave  atomic.Pointer[replica.Slave]

	waits   waits
	store   atomic.Pointer[string]         // id, hex
	seeds   atomic.Uint64                  // made for others
	refusal atomic.Pointer[wire.CodeError] // notMaster
	serving atomic.Bool                    // a slave that serves reads
	resent  resent

	mu struct {
		sync.Mutex
		row        term.Row // the newest that was heard
		known      bool
		generation meta.Generation // of the metadata that it was in
		looked     local.Looked    // of the store, when it was closed last
		granted    uint32          // of the master that is open
		copying    bool
		waiting    bool // it is a slave for lack of anything better
		why        string
		told       string // of role and why, by the last log line
	}
}

// newReplicas looks at the store and at what the broker remembers. Nothing runs yet.
func (r *brokerRole) newReplicas() (*replicas, error) {
	s := r.s
	x := &replicas{
		r: r, s: s, begun: time.Now(), wake: make(chan struct{}, 1), settled: make(chan struct{}), failed: make(chan error, 1),
	}
	x.ctx, x.cancel = context.WithCancel(context.Background())
	var err error
	if x.dialer, err = s.newDialer(); err != nil {
		return nil, err
	}
	c := s.copies()
	if err := c.install(); err != nil {
		return nil, FolderError(s.dir, err)
	}
	if err := x.look(); err != nil {
		return nil, err
	}
	x.removeSeeds()
	if x.state, err = replica.OpenState(s.config.FS, s.dir, s.machine()); err != nil {
		return nil, FolderError(s.dir, err)
	}
	x.mu.why = "it starts"
	x.refuse()
	return x, nil
}

// machine is the name of what lives as long as the system's memory does; "": it cannot be known.
func (s *Server) machine() string {
	if s.config.Machine != "" {
		return s.config.Machine
	}
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// start begins to decide.
func (x *replicas) start() { x.done.Go(x.run) }

// stop ends deciding. The engine that is open stays.
func (x *replicas) stop() {
	x.cancel()
	x.done.Wait()
}

// kick has run look again. It does not block.
func (x *replicas) kick() {
	select {
	case x.wake <- struct{}{}:
	default:
	}
}

func (x *replicas) name() string  { return x.s.config.Node.Name }
func (x *replicas) group() string { return x.s.config.Broker.BrokerGroup }

// self is this broker as it counts in an in-sync set.
func (x *replicas) self() term.Member {
	return term.Member{Broker: x.name(), Boot: x.state.Get().Boot, Store: *x.store.Load()}
}

// snapshot is the metadata as it is known, or nil.
func (x *replicas) snapshot() *meta.Snapshot {
	if md := x.s.metadata.Load(); md != nil {
		return md.known.Load()
	}
	return nil
}

// auto says whether the broker group promotes a slave without an operator.
func (x *replicas) auto() bool {
	s := x.snapshot()
	if s == nil {
		return false
	}
	g := s.BrokerGroup(x.group())
	return g != nil && g.Mode == meta.BrokerGroupAuto
}

// peers are the addresses of the other brokers of the broker group.
func (x *replicas) peers() map[string][]string {
	all := map[string][]string{}
	if s := x.snapshot(); s != nil {
		for o := range s.All(meta.KindBroker) {
			if b := o.Spec.(*meta.Broker); b.BrokerGroup == x.group() && o.Name != x.name() {
				all[o.Name] = b.Addresses
			}
		}
	}
	return all
}

// others are their names.
func (x *replicas) others() []string {
	var names []string
	for n := range x.peers() {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// hear takes the row of a snapshot.
func (x *replicas) hear(s *meta.Snapshot) {
	if row := s.Replication(x.group()); row != nil {
		x.hearRow(term.Row(*row), s.Generation)
	}
	x.refuse() // addresses may have changed
	x.kick()
}

// hearRow takes a row, if it is newer than what is known. It says whether it was.
func (x *replicas) hearRow(row term.Row, generation meta.Generation) bool {
	x.mu.Lock()
	old := x.mu.known && (generation < x.mu.generation || generation == x.mu.generation && (row.Term < x.mu.row.Term || row.Term == x.mu.row.Term && row.Change <= x.mu.row.Change))
	if !old {
		x.mu.row, x.mu.known, x.mu.generation = row, true, generation
	}
	x.mu.Unlock()
	if old {
		return false
	}
	if m := x.master.Load(); m != nil && row.Term > m.Epoch().Term() && row.Master.Broker != x.name() {
		m.StepDown(row.Term, fmt.Sprintf("broker %s was named master of term %d", row.Master.Broker, row.Term))
	}
	x.refuse()
	x.kick()
	return true
}

// row is the newest one that was heard.
func (x *replicas) row() (term.Row, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.mu.row, x.mu.known
}

// answerable is the row while the registry is heard and stands by it, and the metadata that has it, which a server that stops lets go; else nil.
func (x *replicas) answerable() (*term.Row, *metadata) {
	md := x.s.metadata.Load()
	if md == nil || !md.current() {
		return nil, nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	row, generation := x.mu.row, x.mu.generation
	if s := md.known.Load(); s != nil && !x.mu.known {
		generation = s.Generation // it has named none yet
	}
	if row.Unanswerable(uint64(generation)) {
		return nil, nil
	}
	return &row, md
}

// notMaster is the answer to who asks for what only a master does: it names the master's addresses, if it is another.
func (x *replicas) notMaster() error { return x.refusal.Load() }

// masters are the addresses of the master, if it is another.
func (x *replicas) masters() []string {
	row, _ := x.row()
	if row.Master.Broker == x.name() {
		return nil
	}
	return x.peers()[row.Master.Broker]
}

// refuse makes notMaster's answer anew.
func (x *replicas) refuse() {
	row, known := x.row()
	x.mu.Lock()
	why := x.mu.why
	x.mu.Unlock()
	var e *wire.CodeError
	switch {
	case !known:
		e = wire.Errorf(wire.CodeNotMaster, "it is not known who is the master of broker group %s", x.group())
	case row.Master.Broker == x.name():
		e = wire.Errorf(wire.CodeNotMaster, "broker %s was named master of broker group %s, and does not serve as that yet: %s", x.name(), x.group(), why)
		e.RetryAfter = namedRetry
	default:
		e = wire.Errorf(wire.CodeNotMaster, "broker %s is a slave of broker group %s", x.name(), x.group())
		e.Nodes = x.masters()
	}
	x.refusal.Store(e)
}

// history is that of the own journal, as it is now.
func (x *replicas) history(ctx context.Context) (h replica.History, committed journal.Position, err error) {
	if l := x.open(); l != nil {
		r, err := l.Meet(ctx, &wire.MeetRequest{BrokerGroup: x.group(), Broker: x.name()})
		if err != nil {
			return h, 0, err
		}
		own, err := replica.MetOf(x.name(), r)
		return own.History, own.Committed, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return historyLooked(&x.mu.looked), x.mu.looked.Committed, nil
}

// decide says what the broker is to be. What must be remembered for that is on disk.
func (x *replicas) decide(ctx context.Context) (d replica.Decision, met []replica.Met, err error) {
	self, state := x.self(), x.state.Get()
	row, _ := x.answerable()
	if row != nil && !reflect.DeepEqual(state.Hear(self, *row), state) {
		if err := x.state.Update(func(s *replica.State) { *s = s.Hear(self, *row) }); err != nil {
			return d, nil, err
		}
		state = x.state.Get()
	}
	k := replica.Known{Self: self, State: state, Auto: x.auto(), Others: x.others(), Row: row}
	if heard, ok := x.row(); ok && heard.Term == state.Granted && heard.Master.Broker == self.Broker {
		k.Start, k.Told = heard.Start, x.told(heard)
	}
	if k.History, k.Committed, err = x.history(ctx); err != nil {
		return d, nil, err
	}
	k.Fresh = k.History.End == 0
	if row == nil || row.Master.Broker == self.Broker {
		k.Met = x.meet(ctx, state.Granted) // what is answered is true of a broker that does nothing in a lower term any more
	}
	d = replica.Decide(k)
	if d.Seen > state.Seen {
		err = x.state.Update(func(s *replica.State) { s.Seen = max(s.Seen, d.Seen) })
	}
	return d, k.Met, errors.Join(err, ctx.Err())
}

// meet asks all other brokers at once. With a term it asks them to promise to do nothing in a lower one.
func (x *replicas) meet(ctx context.Context, promise uint32) []replica.Met {
	peers := x.peers()
	if len(peers) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, meetWithin)
	defer cancel()
	var mu sync.Mutex
	var met []replica.Met
	var all sync.WaitGroup
	for name, addresses := range peers {
		all.Go(func() {
			p := x.dialer.peer(addresses)
			defer p.Close()
			r, err := p.Meet(ctx, &wire.MeetRequest{BrokerGroup: x.group(), Broker: x.name(), Term: promise})
			if err != nil {
				x.s.log.Debug("another broker of the broker group does not answer", "broker", name, "err", err)
				return
			}
			m, err := replica.MetOf(name, r)
			if err != nil {
				x.s.log.Warn("what another broker of the broker group says of itself cannot be", "broker", name, "err", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			met = append(met, m)
		})
	}
	all.Wait()
	return met
}

// node is what a log knows of this broker.
func (x *replicas) node() replica.Node {
	c := &x.s.config.Broker.Replication
	return replica.Node{
		BrokerGroup: x.group(), Self: x.self(), State: x.state, Auto: x.auto(), Peers: x.peers,
		Dial: func(_ string, addresses []string) replica.Peer { return x.dialer.peer(addresses) },
		Ask:  x.ask, Row: x.row, Changed: x.kick, Side: x.mayHaveServed, Seed: x.makeSeed,
		Timing: replica.Timing{KeepAlive: c.KeepAlive, LeaveAfter: c.LeaveAfter, LeaveBytes: c.LeaveBytes, JoinAfter: c.JoinAfter, CheckEvery: checkEvery(c.CompareEvery)},
		Every:  x.every, Now: time.Now, Logger: x.s.log,
	}
}

// ask is a compare-and-set at the registry.
func (x *replicas) ask(ctx context.Context, a term.Ask) (row term.Row, changed bool, err error) {
	md := x.s.metadata.Load()
	if md == nil {
		return row, false, wire.Errorf(wire.CodeMetadataAway, "no registry is followed yet")
	}
	b, err := json.Marshal(a)
	if err != nil {
		return row, false, err
	}
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	r, err := md.changeRow(ctx, &wire.ChangeReplicationRequest{BrokerGroup: x.group(), Ask: b})
	if err != nil {
		return row, false, err
	}
	if err := json.Unmarshal(r.Row, &row); err != nil {
		return row, false, fmt.Errorf("the row of the broker group cannot be read: %w", err)
	}
	x.hearRow(row, x.generation())
	return row, r.Changed, nil
}

func (x *replicas) generation() meta.Generation {
	if s := x.snapshot(); s != nil {
		return s.Generation
	}
	return 0
}

// run decides and carries out, until stop.
func (x *replicas) run() {
	x.awaitRegistry()
	for x.ctx.Err() == nil {
		again, err := x.turn()
		if err != nil && x.ctx.Err() == nil {
			select {
			case x.failed <- err:
			default:
			}
			return
		}
		if again > 0 {
			x.wait(again)
		}
	}
}

func (x *replicas) every(d time.Duration) time.Duration {
	if f := x.s.config.Every; f != nil {
		return f(d)
	}
	return d
}

// wait returns when something has happened, or after d.
func (x *replicas) wait(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-x.wake:
	case <-t.C:
	case <-x.ctx.Done():
	}
}

// awaitRegistry gives the registry a moment to say who is master, and what it knows to be committed: a broker that alone makes up its broker group
// does not need it.
func (x *replicas) awaitRegistry() {
	late := time.Now().Add(registryWithin)
	for x.ctx.Err() == nil && time.Now().Before(late) {
		again := decideEvery
		if row, md := x.answerable(); row != nil && row.Term > 0 {
			if t, _ := md.toldOf(x.group()); t == row.Term || row.Master.Broker != x.name() {
				return
			}
			again = toldEvery
		}
		x.wait(min(again, time.Until(late)))
	}
}

// told is what the registry knows to be committed, as far as it has said that for this row.
func (x *replicas) told(row term.Row) journal.Position {
	if md := x.s.metadata.Load(); md != nil {
		if t, committed := md.toldOf(x.group()); t == row.Term {
			return journal.Position(max(row.Committed, committed))
		}
	}
	return journal.Position(row.Committed)
}

// turn does what is to be done now, and says after what time to look again, if nothing happens before; 0: at once.
func (x *replicas) turn() (again time.Duration, err error) {
	if e := x.r.engine.Load(); e != nil {
		if err := e.store.Err(); errors.Is(err, local.ErrReplaced) {
			return 0, FolderError(x.s.dir, err) // what is there now is not for this process to open, and others do what they do when it is away
		}
	}
	if e := x.r.engine.Load(); e != nil && e.master != nil && !isClosed(e.master.Fenced()) {
		if err := e.store.Err(); errors.Is(err, journal.ErrFailed) {
			e.master.Resign(fmt.Sprintf("the journal of broker %s has failed: %v", x.name(), err))
			x.r.facade.put(nil) // clients go elsewhere, those that read to a slave
			x.say(roleMaster, "its journal has failed, and it does nothing as that: "+err.Error())
			return time.Second, nil
		}
		x.tendMaster(e)
		x.resend(e)
		return time.Second, nil
	}
	d, met, err := x.decide(x.ctx)
	if err != nil {
		return 0, err
	}
	switch d.Act {
	case replica.ActLead:
		return x.lead(d, met)
	case replica.ActTerm, replica.ActSettle:
		x.say(roleWaiting, d.Why)
		row, _ := x.row()
		h, _, err := x.history(x.ctx)
		if err != nil {
			return 0, err
		}
		_, changed, err := x.ask(x.ctx, d.Ask(x.self(), row, h.End))
		if err == nil && changed {
			return 0, nil
		}
		x.s.log.Debug("the registry did not change the row as asked", "err", err)
		return decideEvery, x.follow(true)
	case replica.ActCopy:
		x.say(roleWaiting, d.Why)
		if err := x.copyFrom(d); err != nil {
			x.s.log.Warn("another broker's journal could not be copied, trying on", "from", d.From, "err", err)
			return decideEvery, x.follow(true)
		}
		return 0, nil
	case replica.ActWait:
		x.say(roleWaiting, d.Why)
		err := x.follow(true)
		x.settle()
		if e := x.r.engine.Load(); err == nil && e != nil && e.slave != nil {
			x.tendSlave(e) // the master and the registry may be away at once
		}
		return decideEvery, err
	}
	x.say(roleSlave, d.Why)
	if err := x.follow(false); err != nil {
		return 0, err
	}
	x.settle()
	if e := x.r.engine.Load(); e != nil && e.slave != nil {
		x.tendSlave(e)
		x.resend(e)
	}
	return x.every(lookEvery), nil
}

// role is what the broker is now, and why.
func (x *replicas) role() (role, why string) {
	st := x.status()
	x.mu.Lock()
	defer x.mu.Unlock()
	if st.Why != "" {
		return st.Role, st.Why
	}
	return st.Role, x.mu.why
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (x *replicas) settle() { x.once.Do(func() { close(x.settled) }) }

// say notes what the broker is, and logs it when that is news.
func (x *replicas) say(role, why string) {
	x.mu.Lock()
	x.mu.waiting, x.mu.why = role == roleWaiting, why
	told := role + ": " + why
	before := x.mu.told
	x.mu.told = told
	row := x.mu.row
	x.mu.Unlock()
	if told != before {
		x.refuse()
		was, _, _ := strings.Cut(before, ":")
		x.s.log.Info("broker is "+role, "was", was, "brokerGroup", x.group(), "why", why, "term", row.Term, "master", row.Master.Broker)
	}
}

// closeEngine closes what is open, and looks at what is there then. An error: a slave's part may not be on the disk, and it is another boot.
func (x *replicas) closeEngine() error {
	e := x.r.engine.Load()
	if e == nil {
		return nil
	}
	x.r.facade.put(nil)
	x.serving.Store(false)
	h := e.journal()
	err := e.close()
	x.mu.Lock() // before the log goes: whoever asks is told of one or the other
	x.mu.looked, x.mu.granted = local.Looked{StoreID: x.mu.looked.StoreID, Begin: h.Begin(), End: h.End(), Committed: h.Committed(), History: h.History()}, 0
	x.mu.Unlock()
	x.master.Store(nil)
	x.slave.Store(nil)
	x.r.engine.Store(nil)
	if e.slave != nil {
		x.lost(err)
	}
	return err
}

// lost makes the broker another boot where err says that what it has acked as a slave may not have reached the disk (rule SyncFailureEndsMembership). If
// that cannot be written no store is opened any more.
func (x *replicas) lost(err error) {
	if !errors.Is(err, journal.ErrFailed) {
		return
	}
	if _, err := x.state.NewBoot(); err != nil {
		x.s.log.Error("the broker's state", "err", err)
	}
}

// lead opens the store as master.
func (x *replicas) lead(d replica.Decision, met []replica.Met) (again time.Duration, err error) {
	granted := d.Epoch.Term()
	x.say(roleWaiting, d.Why+", and opens the store")
	heard := time.Time{}
	if e := x.r.engine.Load(); e != nil && e.slave != nil {
		heard = e.slave.Heard()
	}
	x.awaitServed(met, heard)
	boot := x.state.Get().Boot
	if err := x.closeEngine(); err != nil && !errors.Is(err, journal.ErrFenced) { // another leads: that was told
		x.s.log.Warn("the store was not closed well", "err", err)
	}
	if x.state.Get().Boot != boot {
		return 0, nil // it was named for what may be lost now: it decides again
	}
	if x.auto() {
		if err := x.state.Update(func(s *replica.State) { s.Set, s.SetTerm = d.Set, granted }); err != nil {
			return 0, err
		}
	}
	// Until it is open the row may say that another is master.
	ctx, cancel := context.WithCancel(x.ctx)
	defer cancel()
	type result struct {
		e   *engine
		err error
	}
	opened := make(chan result, 1)
	go func() {
		e, err := x.openMaster(ctx, granted, d.Forced)
		opened <- result{e, err}
	}()
	for {
		select {
		case o := <-opened:
			return x.openedAs(o.e, granted, o.err)
		case <-x.wake:
			if row, ok := x.row(); ok && row.Term > granted {
				cancel()
			}
		}
	}
}

// openedAs takes the master's engine into service.
func (x *replicas) openedAs(e *engine, granted uint32, err error) (time.Duration, error) {
	if err != nil {
		x.master.Store(nil)
		if x.ctx.Err() != nil || errors.Is(err, context.Canceled) || errors.Is(err, replica.ErrFenced) || errors.Is(err, replica.ErrNotMaster) {
			return 0, x.ctx.Err()
		}
		x.lost(err)
		return 0, err
	}
	x.r.engine.Store(e)
	x.mu.Lock()
	x.mu.granted = granted
	x.mu.Unlock()
	x.applyMetadata(e)
	x.r.facade.put(e)
	if len(x.awaited()) == 0 { // the last one may have come before the engine was there
		e.broker.ReleaseConsuming("every slave that may have served has come")
	}
	x.say(roleMaster, fmt.Sprintf("it was named master of term %d", granted))
	x.settle()
	return 0, nil
}

// applyMetadata has a new engine follow what is known, before it serves.
func (x *replicas) applyMetadata(e *engine) {
	md := x.s.metadata.Load()
	if md == nil {
		return
	}
	if s := md.known.Load(); s != nil {
		ctx, cancel := context.WithTimeout(x.ctx, applyServing)
		defer cancel()
		if md.applyTo(ctx, e, s) != nil {
			md.retry(s)
		}
	}
}

// follow opens the store as a slave, unless it is that already and can go on.
func (x *replicas) follow(waiting bool) error {
	e := x.r.engine.Load()
	if e != nil && e.slave != nil {
		if !isClosed(e.slave.MustReopen()) {
			return nil
		}
		why := e.slave.Why()
		if waiting && why == replica.WhyNamed {
			return nil // it is read by others, and decides again
		}
		x.s.log.Info("the store is opened anew", "brokerGroup", x.group(), "why", why)
		if why == replica.WhyCopy {
			x.say(roleCopying, why)
			return x.copyAll()
		}
	}
	if err := x.closeEngine(); err != nil && !errors.Is(err, journal.ErrFenced) { // another leads: that was told
		x.s.log.Warn("the store was not closed well", "err", err)
	}
	e, err := x.openSlave(x.ctx)
	if err != nil {
		return err
	}
	x.r.engine.Store(e)
	x.applyMetadata(e)
	x.r.facade.put(e)
	return nil
}

// tendMaster does what a master is asked for while it serves: to hand over.
func (x *replicas) tendMaster(e *engine) {
	row, _ := x.row()
	to := row.Transfer
	if to == "" || to == x.name() || row.Master.Broker != x.name() {
		return
	}
	ctx, cancel := context.WithTimeout(x.ctx, handOverWithin)
	defer cancel()
	begun := time.Now()
	waiting := time.AfterFunc(tellWaiting, func() {
		x.s.log.Warn("the broker group is being handed over, and nobody serves it until that is done: the slave lacks something, or the registry does not say who is master now", "brokerGroup", x.group(), "to", to)
	})
	next, err := e.master.HandOver(ctx, to)
	waiting.Stop()
	if err != nil {
		x.s.log.Warn("the broker group was not handed over, trying on", "brokerGroup", x.group(), "to", to, "took", time.Since(begun), "err", err)
		return
	}
	x.s.log.Info("the broker group was handed over", "brokerGroup", x.group(), "to", to, "term", next.Term, "took", time.Since(begun))
	x.hearRow(next, x.generation())
	x.tell(to, next)
}

// tell has the broker that was named know it before the registry's push reaches it.
func (x *replicas) tell(broker string, row term.Row) {
	b, err := json.Marshal(row)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(x.ctx, meetWithin)
	defer cancel()
	p := x.dialer.peer(x.peers()[broker])
	defer p.Close()
	if _, err := p.TakeOver(ctx, &wire.TakeOverRequest{BrokerGroup: x.group(), Row: b}); err != nil {
		x.s.log.Debug("the new master hears of it from the registry", "broker", broker, "err", err)
	}
}

// status is what the broker says of its copy of the journal.
func (x *replicas) status() *wire.ReplicaStatus {
	st := x.statusOfLog()
	if e := x.r.engine.Load(); e != nil && st.NoRoom == "" {
		if k := e.keeper.Load(); k != nil {
			st.NoRoom = k.Refusing()
		}
	}
	return st
}

func (x *replicas) statusOfLog() *wire.ReplicaStatus {
	m, s := x.master.Load(), x.slave.Load()
	x.mu.Lock() // after: what was looked at is of a log that is closed
	waiting, why := x.mu.waiting, x.mu.why
	x.mu.Unlock()
	if m != nil {
		return m.Status()
	}
	if s != nil {
		st := s.Status()
		st.Serving = x.serving.Load()
		if waiting {
			st.Role, st.Why = roleWaiting, why
		}
		return st
	}
	st, _ := x.closed()
	return st
}

// closed is the status of the closed store, and what its journal has.
func (x *replicas) closed() (*wire.ReplicaStatus, replica.History) {
	state := x.state.Get()
	x.mu.Lock()
	copying, why, looked := x.mu.copying, x.mu.why, x.mu.looked
	x.mu.Unlock()
	h, role := historyLooked(&looked), roleWaiting
	if copying {
		role = roleCopying
	}
	return &wire.ReplicaStatus{
		Store: hex.EncodeToString(looked.StoreID[:]), Boot: state.Boot, Role: role, Epoch: uint64(h.Last()), End: uint64(looked.End), Synced: uint64(looked.End),
		Committed: uint64(looked.Committed), Begin: uint64(looked.Begin), SeenTerm: state.Seen, Fresh: looked.End == 0, Why: why,
	}, h
}
