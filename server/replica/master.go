package replica

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/planted"
	"github.com/jmqio/jmq/server/term"
	"github.com/jmqio/jmq/wire"
)

const (
	tickEvery    = 50 * time.Millisecond
	askTimeout   = time.Second
	closeTimeout = 2 * time.Second // for slaves to ack what was appended last
	seedIdle     = 30 * time.Second
	roleMaster   = "master"
	roleSlave    = "slave"
	roleWaiting  = "waiting"
	roleFailed   = "failed" // a master whose journal has
)

// Master is the log of a broker that was named master: records are committed when they are synced here and acked by every slave in sync.
// It is a local.Log, and the master's half of wire.Replication (Follow, Pull, ReadLog, ReadSeed, LogSums, Meet).
//
// Its goroutines, which Close waits for: ticker, asker, and one of each session (session.go). Lock order: m.mu, then a session's mu; neither is
// held while an answer is given or anything waits, nor do they last longer than a few comparisons.
type Master struct {
	*journal.Journal
	log    log
	n      Node
	epoch  journal.Epoch
	mender mender
	pace   *pace

	ctx    context.Context
	stop   context.CancelFunc
	wg     sync.WaitGroup
	made   chan struct{} // closed when the leader is there
	more   chan struct{} // of the committing goroutine, which waits for committed
	abort  chan struct{} // closed when Close, or who is about to call it, waited long enough
	fenced chan struct{}
	wanted chan struct{} // of the asker

	committed atomic.Uint64    // as slaves are told
	begins    journal.Position // end of the epoch's record; set before made is closed
	offered   atomic.Uint64    // end of what was given to push
	transfer  atomic.Pointer[string]
	sessions  atomic.Pointer[[]*session] // changed under mu
	seeds     seeds

	stopping sync.Once   // makes late
	late     *time.Timer // closes abort

	// gate is held for reading by appends, and for writing to shut it.
	gate struct {
		sync.RWMutex
		shut bool
	}

	began time.Time // of the commit under way; the committing goroutine's

	mu struct {
		sync.Mutex
		leader *Leader // nil until the epoch has begun
		early  journal.Position
		why    string // it stopped
		fenced bool
		failed bool     // its journal has
		row    term.Row // as last heard, whatever its term
	}
}

// OpenMaster recovers the journal, takes back what slaves hold of its own epoch, begins an epoch of term, and returns when everything in
// the journal is committed: on auto broker groups that waits for the slaves of the set. opts.Recovered is called with all of it. serve
// is called as soon as slaves may connect. The caller has decided that this store may be opened as master: see Decide.
func OpenMaster(ctx context.Context, n Node, termGranted uint32, forced bool, opts journal.Options, serve func(*Master)) (_ *Master, err error) {
	n = n.withDefaults()
	m := &Master{n: n, pace: newPace(n.Now), made: make(chan struct{}), more: make(chan struct{}, 1), abort: make(chan struct{}),
		fenced: make(chan struct{}), wanted: make(chan struct{}, 1)}
	m.sessions.Store(new([]*session))
	m.ctx, m.stop = context.WithCancel(context.WithoutCancel(ctx))
	recovered, after := opts.Recovered, opts.AfterCommit
	opts.Follow = true
	opts.AfterCommit = func() {
		if after != nil {
			after()
		}
		m.log.commits.told()
	}
	j, err := journal.Open(opts)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	m.Journal = j
	m.log.j, m.log.store = j, opts.StoreID
	m.mender = mender{j: j, n: n}
	defer func() {
		if err != nil {
			close(m.abort)
			m.stop()
			m.endSessions(wire.Errorf(wire.CodeStopping, "the master did not open"))
			m.wg.Wait()
			_ = j.Close()
		}
	}()
	known := j.Committed()
	h := historyOf(j)
	m.epoch = h.NextEpoch(termGranted, 1+rand.Uint32N(startJump))
	if planted.Bug("journal: epoch used before it is synced") {
		m.epoch = h.NextEpoch(termGranted, 1)
	}
	if h.Last() >= m.epoch {
		return nil, fmt.Errorf("%w: the journal ends in epoch %v, and term %d was granted", journal.ErrTerm, h.Last(), termGranted)
	}
	if err := m.takeBack(ctx, h); err != nil {
		return nil, err
	}
	if err := j.Lead(m.epoch, forced, hook{m}); err != nil {
		return nil, fmt.Errorf("begin epoch %v: %w", m.epoch, err)
	}
	m.lead(known)
	m.wg.Add(2)
	go m.ticker()
	go m.asker()
	if serve != nil {
		serve(m)
	}
	// Who asked for a promise while the journal was opened was answered by the broker, and found no master to end.
	if seen := m.n.State.Get().Seen; seen > m.epoch.Term() {
		m.StepDown(seen, fmt.Sprintf("term %d was met while it opened", seen))
		return nil, fmt.Errorf("%w: term %d was met while the master of term %d opened", ErrFenced, seen, m.epoch.Term())
	}
	if err := m.settle(ctx); err != nil {
		return nil, err
	}
	if recovered == nil {
		return m, nil
	}
	r := j.NewReader(known)
	defer r.Close()
	for r.Position() < j.Committed() {
		rec, err := r.Next()
		if err == nil {
			err = recovered(rec)
		}
		if err != nil {
			return nil, fmt.Errorf("open log: %w", err)
		}
	}
	return m, nil
}

// lead makes the leader of the epoch that has begun.
func (m *Master) lead(known journal.Position) {
	history := m.Journal.History()
	begins := history[len(history)-1].Position + journal.Position(journal.RecordBytes(0))
	state := m.n.State.Get()
	o := LeaderOptions{Self: m.n.Self, Epoch: m.epoch, Begins: begins, Committed: known, Auto: m.n.Auto, Timing: m.n.Timing, Now: m.n.Now()}
	if state.SetTerm == m.epoch.Term() {
		o.Set = state.Set
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if row, ok := m.n.Row(); ok {
		m.mu.row = row
		if row.Term == m.epoch.Term() {
			o.Row = &row
		}
	}
	l := NewLeader(o)
	if m.mu.early > begins {
		l.Written(o.Now, m.mu.early)
	}
	m.mu.leader = l
	m.begins = begins
	m.offered.Store(uint64(max(m.mu.early, begins)))
	m.committed.Store(uint64(l.Committed()))
	close(m.made)
}

// settle waits until everything up to the epoch's record is committed, and lets readers see it.
func (m *Master) settle(ctx context.Context) error {
	t := time.NewTicker(10 * time.Millisecond)
	defer t.Stop()
	for {
		m.mu.Lock()
		settled, committed := m.mu.leader.Settled(), m.mu.leader.Committed()
		m.mu.Unlock()
		if planted.Bug("replica: read before it is committed") {
			settled, committed = true, m.begins
		}
		if settled {
			m.tellCommitted(committed)
			m.SetCommitted(committed)
			return nil
		}
		select {
		case <-t.C:
		case <-m.fenced:
			return ErrFenced
		case <-ctx.Done():
			return fmt.Errorf("replica: the slaves of the set have not come yet: %w", ctx.Err())
		}
	}
}

// takeBack copies what other brokers have of the journal's own last epoch beyond its end: it was pushed before a power loss took it here.
func (m *Master) takeBack(ctx context.Context, own History) error {
	if len(own.Epochs) == 0 {
		return nil
	}
	took := false
	for _, name := range m.n.others() {
		addresses, ok := m.n.Peers()[name]
		if !ok {
			continue
		}
		peer := m.n.Dial(name, addresses)
		n, err := m.takeFrom(ctx, peer, own)
		_ = peer.Close()
		if n > 0 {
			took = true
			m.n.Logger.Warn("master took back what a slave had of its last epoch", "broker", m.n.Self.Broker, "brokerGroup", m.n.BrokerGroup,
				"from", name, "position", uint64(own.End), "bytes", n, "epoch", own.Last().String())
			own = historyOf(m.Journal)
		}
		if err != nil {
			if m.Journal.Err() != nil {
				return fmt.Errorf("take back from %s: %w", name, err)
			}
			m.n.Logger.Info("master asked in vain for what it may have lost of its end", "broker", m.n.Self.Broker, "brokerGroup", m.n.BrokerGroup, "from", name, "err", err)
		}
	}
	if took {
		return m.Sync()
	}
	return nil
}

func (m *Master) takeFrom(ctx context.Context, peer Peer, own History) (took int, err error) {
	meet, cancel := context.WithTimeout(ctx, askTimeout)
	met, err := peer.Meet(meet, &wire.MeetRequest{BrokerGroup: m.n.BrokerGroup, Broker: m.n.Self.Broker})
	cancel()
	if err != nil {
		return 0, err
	}
	theirs := historyFrom(met.Status.GetBegin(), met.Status.GetEnd(), met.History)
	if err := theirs.Check(); err != nil {
		return 0, err
	}
	if p, ok := Common(own, theirs); !ok || p != own.End {
		return 0, nil
	}
	end := theirs.End // of the own epoch there
	for _, e := range theirs.Epochs {
		if e.Epoch > own.Last() {
			end = min(end, e.Position)
		}
	}
	return takeRecords(ctx, peer, m.Journal, end)
}

// Stopping says that Close comes as soon as what was appended is committed or failed: a commit that waits for slaves waits a little longer, and then
// the journal stops.
func (m *Master) Stopping() {
	m.stopping.Do(func() { m.late = time.AfterFunc(closeTimeout, func() { close(m.abort) }) })
}

// Close commits what is queued, waiting for slaves a little, and ends everything.
func (m *Master) Close() error {
	m.Stopping()
	err := m.Journal.Close()
	m.late.Stop()
	m.stop()
	m.endSessions(wire.Errorf(wire.CodeStopping, "%s stops", m.n.Self.Broker))
	m.wg.Wait()
	m.seeds.close()
	return err
}

// Append as journal.Journal's; ErrNotMaster after this master stopped, or while it hands over.
func (m *Master) Append(a *journal.Append) error {
	m.gate.RLock()
	if m.gate.shut {
		m.gate.RUnlock()
		return ErrNotMaster
	}
	err := m.Journal.Append(a)
	m.gate.RUnlock()
	return err
}

// TryLead starts a commit as Kick does, and never carries it out itself: it may have to wait for slaves, and whoever reads a client's
// connection must not.
func (m *Master) TryLead() bool {
	m.Kick()
	return false
}

func (m *Master) shut(shut bool) {
	m.gate.Lock()
	defer m.gate.Unlock()
	m.gate.shut = shut
}

// hook is what the journal asks.
type hook struct{ m *Master }

var _ journal.Replica = hook{}

// Written pushes b to every slave that waits for it, before it is written here.
func (h hook) Written(from journal.Position, b []byte) {
	m := h.m
	end := from + journal.Position(len(b))
	now := m.n.Now()
	m.mu.Lock()
	if m.mu.leader == nil {
		m.mu.early = end
		m.mu.Unlock()
		return
	}
	m.mu.leader.Written(now, end)
	m.mu.Unlock()
	m.began = now
	for _, s := range *m.sessions.Load() {
		s.push(from, b, now)
	}
	m.offered.Store(uint64(end))
}

// Wait returns when everything below end, which is synced here, is committed.
func (h hook) Wait(end journal.Position) error {
	m := h.m
	select {
	case <-m.made:
	default:
		<-m.made
	}
	m.mu.Lock()
	committed := m.mu.leader.Synced(end)
	stopped := m.mu.leader.Stopped()
	m.mu.Unlock()
	m.tellCommitted(committed)
	for _, s := range *m.sessions.Load() {
		s.wakeBehind(end)
	}
	if stopped {
		return ErrFenced
	}
	for committed < end {
		select {
		case <-m.more:
			committed = journal.Position(m.committed.Load())
		case <-m.fenced:
			return ErrFenced
		case <-m.abort:
			return fmt.Errorf("replica: the slaves of the set have not acked up to %d", end)
		}
	}
	if now := m.n.Now(); !m.began.IsZero() {
		m.pace.committed(now.Sub(m.began), now)
	}
	return nil
}

// InSync says whether a replicated append may be taken.
func (h hook) InSync() bool {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	return h.m.mu.leader != nil && h.m.mu.leader.InSync()
}

// Copied is up to where at least one slave has the journal.
func (h hook) Copied() journal.Position {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	if h.m.mu.leader == nil {
		return 0
	}
	return h.m.mu.leader.Copied()
}

// tellCommitted wakes the committing goroutine.
func (m *Master) tellCommitted(p journal.Position) {
	for {
		was := m.committed.Load()
		if uint64(p) <= was {
			return
		}
		if m.committed.CompareAndSwap(was, uint64(p)) {
			break
		}
	}
	select {
	case m.more <- struct{}{}:
	default:
	}
}

// Follow begins a session of a slave.
func (m *Master) Follow(_ context.Context, r *wire.FollowRequest) (*wire.FollowResponse, error) {
	if err := m.n.ofGroup(r.BrokerGroup); err != nil {
		return nil, err
	}
	if !m.n.knows(r.Broker) {
		return nil, wire.Errorf(wire.CodeForbidden, "broker %q is not of broker group %s", r.Broker, m.n.BrokerGroup)
	}
	if err := m.n.State.Near(r.SeenTerm); err != nil {
		return nil, err
	}
	hello := Hello{Member: term.Member{Broker: r.Broker, Boot: r.Boot, Store: r.Store}, Seen: r.SeenTerm, Committed: journal.Position(r.Committed),
		Session: r.Session, Copying: r.Copying, History: historyFrom(r.Begin, r.End, r.History)}
	own := historyOf(m.Journal)
	own.End = journal.Position(m.offered.Load()) // what is only queued may never be
	now := m.n.Now()
	m.mu.Lock()
	if m.mu.failed {
		defer m.mu.Unlock()
		return nil, wire.Errorf(wire.CodeFailed, "%s", m.mu.why)
	}
	w, err := m.mu.leader.Welcome(now, hello, own)
	committed := m.mu.leader.Committed()
	inSync := m.inSync(r.Broker)
	if err == nil {
		m.replace(r.Broker, w, hello.History.End, inSync)
	}
	m.mu.Unlock()
	m.tellCommitted(committed)
	m.tell()
	if errors.Is(err, ErrFenced) {
		m.StepDown(hello.Seen, fmt.Sprintf("broker %s has met term %d", r.Broker, hello.Seen))
	}
	if err != nil {
		return nil, m.answered(err)
	}
	a := &wire.FollowResponse{Epoch: uint64(w.Epoch), Session: w.Session, Match: uint64(w.Match), Forced: w.Forced, Copy: w.Copy, Begin: uint64(own.Begin),
		Committed: uint64(w.Committed), Store: hex.EncodeToString(m.log.store[:]), History: wireHistory(w.History), End: uint64(own.End),
		KeepaliveMs: uint32(m.n.Timing.KeepAlive.Milliseconds())}
	return a, nil
}

// answered is an error of the machines for another broker.
func (m *Master) answered(err error) error {
	switch {
	case errors.Is(err, ErrFenced), errors.Is(err, ErrStale):
		return wire.Errorf(wire.CodeStaleTerm, "%v", err)
	case errors.Is(err, ErrPeer), errors.Is(err, ErrHistory):
		return wire.Errorf(wire.CodeInvalid, "%v", err)
	}
	return coded(err)
}

// replace ends the broker's former session, and begins w's if it has begun. m.mu is held.
func (m *Master) replace(broker string, w Welcome, end journal.Position, inSync bool) {
	list := slices.Clone(*m.sessions.Load())
	if i := slices.IndexFunc(list, func(s *session) bool { return s.broker == broker }); i >= 0 {
		old := list[i]
		list = slices.Delete(list, i, i+1)
		m.wg.Go(func() { old.end(wire.Errorf(wire.CodeStaleTerm, "a newer session of broker %s has begun", broker)) })
	}
	if w.Begun && m.ctx.Err() == nil {
		s := &session{m: m, id: w.Session, broker: broker, kick: make(chan struct{}, 1)}
		s.ctx, s.stop = context.WithCancel(m.ctx)
		s.mu.sent, s.mu.last = end, m.n.Now()
		s.copies.Store(m.seeds.copying(broker))
		s.inSync.Store(inSync)
		list = append(list, s)
		m.wg.Add(1)
		go s.serve()
	}
	m.sessions.Store(&list)
}

// inSync says whether a slave counts. m.mu is held.
func (m *Master) inSync(broker string) bool {
	return slices.ContainsFunc(m.mu.leader.Slaves(m.n.Now()), func(s SlaveState) bool { return s.Broker == broker && s.InSync })
}

func (m *Master) session(id uint64) *session {
	for _, s := range *m.sessions.Load() {
		if s.id == id {
			return s
		}
	}
	return nil
}

// SlaveOf is whose session it is; "": nobody's.
func (m *Master) SlaveOf(session uint64) string {
	if s := m.session(session); s != nil {
		return s.broker
	}
	return ""
}

// Pull takes an ack, and answers with what comes next.
func (m *Master) Pull(ctx context.Context, r *wire.PullRequest, done func(*wire.PullResponse, []byte, error)) {
	s := m.session(r.Session)
	if s == nil {
		done(nil, nil, wire.Errorf(wire.CodeStaleTerm, "session %d is not there any more", r.Session))
		return
	}
	now := m.n.Now()
	m.mu.Lock()
	committed, err := m.mu.leader.Ack(now, r.Session, journal.Epoch(r.Epoch), journal.Position(r.Acked), journal.Position(r.Synced))
	m.mu.Unlock()
	if err != nil {
		done(nil, nil, m.answered(err))
		return
	}
	m.tellCommitted(committed)
	s.acked(ctx, journal.Position(r.Acked), now)
	s.add(pull{done, int(r.BytesMax)})
}

// lose ends a session that cannot go on.
func (m *Master) lose(s *session, err error) {
	m.mu.Lock()
	list := slices.DeleteFunc(slices.Clone(*m.sessions.Load()), func(o *session) bool { return o == s })
	m.sessions.Store(&list)
	m.mu.leader.Gone(s.id)
	m.mu.Unlock()
	if m.ctx.Err() == nil && !m.Stopped() {
		m.n.Logger.Info("a slave's session ended", "broker", m.n.Self.Broker, "brokerGroup", m.n.BrokerGroup, "slave", s.broker, "err", err)
	}
	s.end(coded(err))
}

func (m *Master) endSessions(err error) {
	m.mu.Lock()
	list := *m.sessions.Swap(new([]*session))
	m.mu.Unlock()
	for _, s := range list {
		s.end(err)
	}
}

// ticker lets time go by.
func (m *Master) ticker() {
	defer m.wg.Done()
	every := min(tickEvery, m.n.Timing.KeepAlive/2)
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-m.ctx.Done():
			return
		}
		t.Reset(m.n.Every(every))
		m.tick()
	}
}

func (m *Master) tick() {
	now := m.n.Now()
	row, known := m.n.Row()
	m.mu.Lock()
	down := false
	if known {
		if row.Term >= m.mu.row.Term {
			m.mu.row = row
		}
		down = m.mu.leader.HeardRow(row)
		var to *string
		if !down && row.Term == m.epoch.Term() && row.Transfer != "" {
			to = &row.Transfer
		}
		m.transfer.Store(to)
	}
	m.mu.leader.Tick(now)
	committed := m.mu.leader.Committed()
	for _, s := range *m.sessions.Load() {
		s.inSync.Store(m.inSync(s.broker))
	}
	m.mu.Unlock()
	if down {
		m.StepDown(row.Term, fmt.Sprintf("broker %s was named master of term %d", row.Master.Broker, row.Term))
	}
	m.tellCommitted(committed)
	m.tell()
	for _, s := range *m.sessions.Load() {
		s.keepAlive(now, m.n.Every(m.n.Timing.KeepAlive))
	}
	m.seeds.drop(now)
	select {
	case m.wanted <- struct{}{}:
	default:
	}
}

// tell logs what has changed of the slaves.
func (m *Master) tell() {
	m.mu.Lock()
	events := m.mu.leader.Events()
	m.mu.Unlock()
	for _, e := range events {
		m.n.Logger.Info("slave "+e.What, "broker", m.n.Self.Broker, "brokerGroup", m.n.BrokerGroup, "slave", e.Broker, "epoch", m.epoch.String(), "why", e.Why)
	}
	if len(events) > 0 {
		m.n.Changed()
	}
}

// asker asks the registry, one question at a time.
func (m *Master) asker() {
	defer m.wg.Done()
	for {
		select {
		case <-m.wanted:
		case <-m.ctx.Done():
			return
		}
		m.mu.Lock()
		a, persist, ok := m.mu.leader.Ask(m.n.Now())
		m.mu.Unlock()
		if ok {
			_, _, _ = m.ask(m.ctx, a, persist) // it is asked again until it is settled
		}
	}
}

// ask persists, asks, and takes the answer.
func (m *Master) ask(ctx context.Context, a term.Ask, persist []term.Member) (row term.Row, changed bool, err error) {
	if persist != nil || a.To != "" {
		err = m.n.State.Update(func(s *State) {
			if persist != nil {
				s.Set, s.SetTerm = persist, m.epoch.Term()
			}
			if a.To != "" {
				s.Handing = a.Change + 1
			}
		})
	}
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
		row, changed, err = m.n.Ask(ctx, a)
		cancel()
	}
	m.mu.Lock()
	down := m.mu.leader.Asked(a, row, changed, err)
	committed := m.mu.leader.Committed()
	m.mu.Unlock()
	m.tellCommitted(committed)
	m.tell()
	if down {
		m.StepDown(row.Term, fmt.Sprintf("broker %s was named master of term %d", row.Master.Broker, row.Term))
	}
	return row, changed, err
}

// StepDown ends the master for good: it met the term, or handed over.
func (m *Master) StepDown(termMet uint32, why string) {
	m.mu.Lock()
	if !m.mu.leader.Met(termMet) {
		m.mu.leader.Stop()
	}
	first := !m.mu.fenced
	m.mu.fenced = true
	if first {
		m.mu.why = why
		close(m.fenced)
	}
	m.mu.Unlock()
	if termMet > m.n.State.Get().Seen {
		if err := m.n.State.Update(func(s *State) { s.Seen = max(s.Seen, termMet) }); err != nil {
			m.n.Logger.Error("the highest term met cannot be kept", "broker", m.n.Self.Broker, "brokerGroup", m.n.BrokerGroup, "term", termMet, "err", err)
		}
	}
	if !first {
		return
	}
	m.n.Logger.Info("master stops", "broker", m.n.Self.Broker, "brokerGroup", m.n.BrokerGroup, "epoch", m.epoch.String(), "term", termMet, "why", why)
	m.shut(true)
	_ = m.Journal.Fence(ErrFenced) // it says why the journal has stopped
	m.endSessions(wire.Errorf(wire.CodeStaleTerm, "%s is not the master any more: %s", m.n.Self.Broker, why))
	m.n.Changed()
}

// Resign says that the journal has failed: it stays the master that was named, and does nothing as that. Slaves take it for away, and serve.
func (m *Master) Resign(why string) {
	m.mu.Lock()
	m.mu.leader.Stop() // it asks for no other set: who is in it may be promoted
	first := !m.mu.failed
	m.mu.failed = true
	if m.mu.why == "" {
		m.mu.why = why
	}
	m.mu.Unlock()
	if first {
		m.endSessions(wire.Errorf(wire.CodeFailed, "%s", why))
		m.n.Changed()
	}
}

// Fenced is closed when the master stopped because another is named, or a higher term was met.
func (m *Master) Fenced() <-chan struct{} { return m.fenced }

// Stopped says whether Fenced is closed.
func (m *Master) Stopped() bool {
	select {
	case <-m.fenced:
		return true
	default:
		return false
	}
}

// HandOver stops appends (ErrNotMaster), waits until everything is committed and held by slave to, and asks the registry to name it. nil: it
// was named, and this master is fenced. An error: nothing was handed over, and appends go on. It waits for ctx at most until it asks; then until
// the registry has answered, since until then it is not known who the master is. Where ctx was cancelled it does not wait, and nothing is appended
// any more: the caller closes the master.
func (m *Master) HandOver(ctx context.Context, to string) (term.Row, error) {
	m.shut(true)
	row, err := m.handOver(ctx, to)
	if err != nil && !m.Stopped() && !errors.Is(err, errUnsettled) {
		if m.n.State.Get().Handing > 0 {
			// What cannot be written makes the next start ask the registry, no more.
			_ = m.n.State.Update(func(s *State) { s.Handing = 0 })
		}
		m.shut(false)
	}
	return row, err
}

var errUnsettled = errors.New("replica: it is not known whether the registry names the other broker")

func (m *Master) handOver(ctx context.Context, to string) (term.Row, error) {
	m.Kick()
	for asked := false; ; {
		m.mu.Lock()
		queued := m.Journal.End() != m.mu.leader.End()
		a, persist, err := term.Ask{}, []term.Member(nil), error(nil)
		switch {
		case asked && !m.mu.leader.Handing() && !m.mu.leader.Stopped():
			m.mu.Unlock()
			return term.Row{}, fmt.Errorf("%w: the registry did not name broker %q", ErrHandOver, to)
		case asked && ctx.Err() != nil:
			a, persist = m.mu.leader.Abandon(m.n.Now())
		case queued:
			err = fmt.Errorf("%w: appends are under way", ErrHandOver)
		default:
			a, persist, err = m.mu.leader.HandOver(m.n.Now(), to)
		}
		m.mu.Unlock()
		if err == nil {
			asked = true
			row, changed, askErr := m.ask(m.ctx, a, persist)
			if m.Stopped() && row.Master.Broker == to {
				return row, nil
			}
			if askErr == nil && (!changed || a.To == "") {
				m.mu.Lock()
				handing := m.mu.leader.Handing()
				m.mu.Unlock()
				if !handing {
					return term.Row{}, fmt.Errorf("%w: the registry did not name broker %q", ErrHandOver, to)
				}
			}
		} else if !errors.Is(err, ErrHandOver) {
			return term.Row{}, err
		}
		if asked && errors.Is(ctx.Err(), context.Canceled) {
			return term.Row{}, errUnsettled
		}
		pause := 2 * time.Millisecond
		if asked {
			pause = 50 * time.Millisecond
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-m.ctx.Done():
			t.Stop()
			return term.Row{}, journal.ErrClosed
		case <-m.fenced:
			t.Stop()
			if row, ok := m.n.Row(); ok && row.Master.Broker == to {
				return row, nil
			}
			return term.Row{}, ErrFenced
		}
		if !asked && ctx.Err() != nil {
			if err == nil {
				err = ctx.Err()
			}
			return term.Row{}, fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

// Meet answers what the master knows. A term that is higher than its own ends it first.
func (m *Master) Meet(_ context.Context, r *wire.MeetRequest) (*wire.MeetResponse, error) {
	if err := m.n.ofGroup(r.BrokerGroup); err != nil {
		return nil, err
	}
	if err := m.n.State.Near(r.Term); err != nil {
		return nil, err
	}
	if r.Term > m.epoch.Term() {
		m.StepDown(r.Term, fmt.Sprintf("broker %s asked it to promise term %d", r.Broker, r.Term))
		if m.n.State.Get().Seen < r.Term {
			return nil, wire.Errorf(wire.CodeFailed, "the promise cannot be kept")
		}
	}
	return &wire.MeetResponse{Status: m.Status(), History: wireHistory(historyOf(m.Journal))}, nil
}

// ReadLog answers other brokers and observers, who hold nothing back.
func (m *Master) ReadLog(ctx context.Context, r *wire.ReadLogRequest) (*wire.ReadLogResponse, []byte, error) {
	return m.log.readLog(ctx, r)
}

// LogSums answers the other copies.
func (m *Master) LogSums(_ context.Context, r *wire.LogSumsRequest) (*wire.LogSumsResponse, error) {
	return m.log.sums(r)
}

// Status of a master.
func (m *Master) Status() *wire.ReplicaStatus {
	now := m.n.Now()
	state := m.n.State.Get()
	a := &wire.ReplicaStatus{Store: hex.EncodeToString(m.log.store[:]), Boot: state.Boot, Role: roleMaster, Epoch: uint64(m.epoch), End: uint64(m.Journal.End()),
		Synced: uint64(m.Synced()), Begin: uint64(m.Begin()), SeenTerm: max(state.Seen, m.epoch.Term())}
	sessions := *m.sessions.Load()
	m.mu.Lock()
	defer m.mu.Unlock()
	a.Committed = uint64(m.mu.leader.Committed())
	if a.Why = m.mu.why; m.mu.fenced {
		a.Role = roleWaiting
	} else if m.mu.failed {
		a.Role = roleFailed
	}
	end := m.mu.leader.End()
	for _, s := range m.mu.leader.Slaves(now) {
		st := &wire.SlaveStatus{Broker: s.Broker, Store: s.Store, Boot: s.Boot, InSync: s.InSync, Acked: uint64(s.Acked), LagBytes: uint64(end - min(end, s.Acked)),
			LagMs: uint64(s.Lag.Milliseconds()), JoinMs: uint64(s.Join.Milliseconds())}
		away := !s.Begun || now.Sub(s.Heard) > m.n.Timing.AwayAfter
		switch {
		case s.Refused:
			st.State, st.LagBytes, st.LagMs = "refused", 0, 0 // it acked nothing, and may have more than this one
		case m.seeds.copying(s.Broker):
			st.State = "full-copy"
		case away:
			st.State = "away"
		case s.InSync:
			st.State = "in-sync"
		default:
			st.State = "catching-up"
		}
		for _, o := range sessions {
			if o.broker == s.Broker {
				st.AckUs = uint64(o.ackTime().Microseconds())
			}
		}
		a.Slaves = append(a.Slaves, st)
	}
	if a.Why == "" && !m.mu.leader.InSync() && len(m.n.others()) > 0 {
		a.Why = "no slave is in sync: there is one copy of what is sent now"
	}
	return a
}
