package replica

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/planted"
	"github.com/jmqio/jmq/server/term"
	"github.com/jmqio/jmq/wire"
)

const (
	window        = 4                      // pulls under way
	callTimeout   = 3 * time.Second        // of what is not a pull
	backOffFirst  = 20 * time.Millisecond  // between tries to follow, doubled up to
	backOffMax    = 500 * time.Millisecond // so that a master that returns is found soon
	lookEvery     = 50 * time.Millisecond  // at the row, and whether the master is silent
	refusedPause  = time.Second
	fullPause     = 5 * time.Second // of a slave whose disk is full
	silentSession = 3               // of AwayAfter, at most: then another connection is tried
	// catchUpSync is how much a slave that catches up writes before it syncs. More at once would hold up whoever else syncs on its disk.
	catchUpSync = 2 << 20
)

// Slave is the log of a slave: it follows the master that it is told of, and commits what that has committed. It is a local.Log whose appends
// are ErrNotMaster, and answers Meet, ReadLog and LogSums.
//
// Its goroutines, which Close waits for: run, which finds the master and begins sessions; syncer; and the checker (check.go). Records are
// written on the goroutine that reads the connection with the master.
type Slave struct {
	*journal.Journal
	log    log
	n      Node
	mender mender

	ctx        context.Context
	stop       context.CancelFunc
	wg         sync.WaitGroup
	mustReopen chan struct{}
	much       chan struct{} // a catch-up has written much that is not synced; has room for one
	heard      atomic.Int64  // unix ns; 0: never
	applied    atomic.Uint64 // committed as told to the store

	// turn is held while the records of a session are written, so that a session that has ended writes nothing any more. It holds one element
	// while it is free: who waits for it may wait for a disk.
	turn turn

	mu struct {
		sync.Mutex
		f       *Follower
		why     string // it must be opened anew, or cannot follow
		reopen  bool
		refused bool
		full    string           // why it takes nothing more: its disk is full
		master  string           // whom it follows; "": nobody
		inSync  bool             // as the master says
		handing string           // to whom the master hands over
		begin   journal.Position // of the master's journal, as told on
		dirty   time.Time        // since when something written is not synced; zero: all is
		check   Check
	}
}

// OpenSlave recovers the journal up to its real end and begins to follow. opts.Recovered is called up to what it knows to be committed;
// opts.OnCommitted tells of more. serve is called before it follows anybody; nil: nobody else is to reach it.
func OpenSlave(ctx context.Context, n Node, opts journal.Options, serve func(*Slave)) (*Slave, error) {
	n = n.withDefaults()
	s := &Slave{n: n, mustReopen: make(chan struct{}), much: make(chan struct{}, 1), turn: newTurn()}
	told := opts.OnCommitted
	opts.Follow = true
	opts.OnCommitted = func(p journal.Position) {
		if told != nil {
			told(p)
		}
		s.log.commits.told()
	}
	j, err := journal.Open(opts)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	s.Journal = j
	s.log.j, s.log.store = j, opts.StoreID
	s.mender = mender{j: j, n: n}
	state := n.State.Get()
	s.mu.f = NewFollower(FollowerOptions{Self: n.Self, Fresh: j.Begin() == j.Written(), Seen: state.Seen, End: j.End(), Committed: j.Committed()})
	s.ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	if serve != nil {
		serve(s)
	}
	s.wg.Add(3)
	go s.run()
	go s.syncer()
	go s.checker()
	return s, nil
}

// Close ends following, syncs, and closes the journal.
func (s *Slave) Close() error {
	s.stop()
	s.wg.Wait()
	return s.Journal.Close()
}

// Append is never taken: nothing is written.
func (s *Slave) Append(*journal.Append) error { return ErrNotMaster }

// Kick and TryLead have nothing to commit.
func (s *Slave) Kick()         {}
func (s *Slave) TryLead() bool { return false }

// Heard is when the slave last heard a master of the current term in a session; the zero time: not since it was opened.
func (s *Slave) Heard() time.Time {
	if ns := s.heard.Load(); ns != 0 {
		return time.Unix(0, ns)
	}
	return time.Time{}
}

// MustReopen is closed when the slave cannot go on with this store as it is: it was named master, its journal was cut below what the store
// has applied, it has failed, or it needs a full copy. Why says which.
func (s *Slave) MustReopen() <-chan struct{} { return s.mustReopen }

// Why says why the slave must be opened anew, or does not follow; "": it follows, or tries to.
func (s *Slave) Why() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.why
}

// Following returns whom the slave follows in a session now, whether it counts as in sync there, and to whom that hands over, each as
// last heard; "": nobody.
func (s *Slave) Following() (master string, inSync bool, handsOverTo string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.master, s.mu.inSync, s.mu.handing
}

// Session is the master's epoch in the session that there is now. The journal's own is older until the record of that epoch has come.
func (s *Slave) Session() (master string, epoch journal.Epoch, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, epoch, ok = s.mu.f.Session()
	return s.mu.master, epoch, ok && s.mu.master != ""
}

// Reasons of MustReopen.
const (
	WhyNamed  = "it was named master"
	WhyCopy   = "it needs a full copy"
	WhyCut    = "its journal was cut below what is committed, for a promotion by force"
	WhyFailed = "its journal has failed"
)

// reopen ends the slave.
func (s *Slave) reopen(why string) {
	s.mu.Lock()
	first := !s.mu.reopen
	s.mu.reopen = true
	if first {
		s.mu.why = why
	}
	s.mu.Unlock()
	if first {
		s.n.Logger.Info("slave must be opened anew", "broker", s.n.Self.Broker, "brokerGroup", s.n.BrokerGroup, "why", why)
		close(s.mustReopen)
		s.n.Changed()
	}
}

var (
	errReopen = errors.New("replica: the slave must be opened anew")
	errSilent = errors.New("replica: the master is silent")
	errOther  = errors.New("replica: another broker is the master")
)

// run follows until the slave is closed or must be opened anew.
func (s *Slave) run() {
	defer s.wg.Done()
	back := backOffFirst
	said := ""
	for {
		master, err := s.master()
		if err == nil {
			began := s.n.Now()
			err = s.follow(master)
			if s.n.Now().Sub(began) > backOffMax {
				back = backOffFirst
			}
		}
		if s.ctx.Err() != nil || errors.Is(err, errReopen) {
			return
		}
		if errors.Is(err, journal.ErrNoSpace) {
			s.setFull(err)
			s.rest(fullPause)
			continue
		}
		if text := err.Error(); text != said {
			said = text
			s.n.Logger.Info("slave does not follow", "broker", s.n.Self.Broker, "brokerGroup", s.n.BrokerGroup, "master", master, "err", err)
		}
		if !sleep(s.ctx, back) {
			return
		}
		back = min(2*back, backOffMax)
	}
}

// rest waits, and hears the registry's row meanwhile.
func (s *Slave) rest(d time.Duration) {
	for end := s.n.Now().Add(d); s.n.Now().Before(end); {
		if _, _, err := s.row(); err != nil || !sleep(s.ctx, lookEvery) {
			return
		}
	}
}

// setFull notes that nothing more is taken, and why; nil: something was.
func (s *Slave) setFull(err error) {
	full := ""
	if err != nil {
		full = "its disk has no room for a segment of the journal"
	}
	s.mu.Lock()
	was := s.mu.full
	s.mu.full = full
	s.mu.Unlock()
	switch {
	case full != "" && was == "":
		s.n.Logger.Warn("slave has no room for what its master has, trying again now and then", "broker", s.n.Self.Broker, "brokerGroup", s.n.BrokerGroup, "every", fullPause, "err", err)
	case full == "" && was != "":
		s.n.Logger.Info("slave has room again", "broker", s.n.Self.Broker, "brokerGroup", s.n.BrokerGroup)
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// row hears the registry's row, if there is one.
func (s *Slave) row() (term.Row, bool, error) {
	row, ok := s.n.Row()
	if !ok {
		return row, false, nil
	}
	if row.Master.Broker == s.n.Self.Broker {
		s.mu.Lock()
		seen := s.mu.f.Seen()
		s.mu.Unlock()
		if row.Term >= seen {
			s.reopen(WhyNamed)
			return row, true, errReopen
		}
	}
	s.mu.Lock()
	s.mu.f.HeardRow(row)
	s.mu.Unlock()
	if row.Term > s.n.State.Seen() {
		return row, true, s.n.State.Update(func(st *State) { st.Seen = max(st.Seen, row.Term) })
	}
	return row, true, nil
}

// master says whom to follow: whom the registry named, or, where that is not known or was overtaken, the broker that says it is the master
// of the highest epoch.
func (s *Slave) master() (string, error) {
	row, ok, err := s.row()
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	seen := s.mu.f.Seen()
	s.mu.Unlock()
	if ok && row.Term >= seen && row.Master.Broker != "" {
		return row.Master.Broker, nil
	}
	best, epoch := "", uint64(0)
	for name, addresses := range s.n.Peers() {
		peer := s.n.Dial(name, addresses)
		ctx, cancel := context.WithTimeout(s.ctx, callTimeout)
		a, err := peer.Meet(ctx, &wire.MeetRequest{BrokerGroup: s.n.BrokerGroup, Broker: s.n.Self.Broker})
		cancel()
		_ = peer.Close()
		if err == nil && a.Status.GetRole() == roleMaster && a.Status.Epoch > epoch {
			best, epoch = name, a.Status.Epoch
		}
	}
	if best == "" {
		return "", errors.New("replica: no master is known")
	}
	return best, nil
}

// follow connects to a master, comes to terms with it, and takes what it pushes until that ends.
func (s *Slave) follow(master string) error {
	addresses, ok := s.n.Peers()[master]
	if !ok {
		return fmt.Errorf("replica: no address of broker %s is known", master)
	}
	peer := s.n.Dial(master, addresses)
	defer peer.Close()

	var session uint64
	for try := 0; try < 3; try++ {
		h := historyOf(s.Journal)
		s.mu.Lock()
		s.mu.f.Met(s.n.State.Seen())
		hello := s.mu.f.Hello(h, session)
		s.mu.Unlock()
		w, a, err := s.hello(peer, hello)
		if err != nil {
			return err
		}
		store, err := storeID(a.Store)
		if err != nil {
			return err
		}
		s.mu.Lock()
		step, err := s.mu.f.Welcomed(h, w)
		committed := s.mu.f.Committed()
		s.mu.Unlock()
		if err != nil {
			return err
		}
		if st := s.n.State.Get(); st.Seen < w.Epoch.Term() || st.Granted != 0 {
			if err := s.n.State.Update(func(st *State) { st.Seen, st.Granted = max(st.Seen, w.Epoch.Term()), 0 }); err != nil {
				return err
			}
		}
		switch step {
		case StepCopy:
			s.reopen(WhyCopy)
			return errReopen
		case StepRefuse:
			return s.refuse(master, w.Match, committed)
		case StepBegin:
			return s.serve(&following{s: s, peer: peer, master: master, session: w.Session, epoch: w.Epoch, store: store, ended: make(chan error, 1)})
		case StepCut:
			s.refusal(false, "")
			if w.Match < h.End {
				aside, err := s.CutTo(w.Match)
				if err != nil {
					return s.failed(err)
				}
				s.n.Logger.Warn("journal's end differs from the master's: it is set aside and cut", "broker", s.n.Self.Broker, "brokerGroup", s.n.BrokerGroup,
					"master", master, "position", uint64(w.Match), "end", uint64(h.End), "epoch", w.Epoch.String(), "file", aside)
			}
			s.mu.Lock()
			s.mu.f.Cut(w.Match)
			s.mu.Unlock()
			if w.Match < committed {
				s.reopen(WhyCut)
				return errReopen
			}
			session = w.Session
		}
	}
	return errors.New("replica: the master's journal and this one do not come to terms")
}

// hello asks the master to begin.
func (s *Slave) hello(peer Peer, h Hello) (Welcome, *wire.FollowResponse, error) {
	r := &wire.FollowRequest{BrokerGroup: s.n.BrokerGroup, Broker: h.Broker, Store: h.Store, Boot: h.Boot, SeenTerm: h.Seen, Session: h.Session, Copying: s.n.copying,
		Begin: uint64(h.History.Begin), End: uint64(h.History.End), Committed: uint64(h.Committed), History: wireHistory(h.History)}
	r.Side, r.Served = s.n.Side()
	ctx, cancel := context.WithTimeout(s.ctx, callTimeout)
	defer cancel()
	a, err := peer.Follow(ctx, r)
	if err != nil {
		return Welcome{}, nil, fmt.Errorf("replica: follow: %w", err)
	}
	w := Welcome{Epoch: journal.Epoch(a.Epoch), Session: a.Session, Match: journal.Position(a.Match), Forced: a.Forced, Copy: a.Copy,
		History: historyFrom(a.Begin, a.End, a.History), Committed: journal.Position(a.Committed), Begun: h.Session != 0}
	return w, a, nil
}

func (s *Slave) refuse(master string, match, committed journal.Position) error {
	why := fmt.Sprintf("it would have to cut at %d to follow %s, and knows that %d is committed", match, master, committed)
	if s.refusal(true, why) {
		s.n.Logger.Error("slave refuses to follow: an operator must look", "broker", s.n.Self.Broker, "brokerGroup", s.n.BrokerGroup,
			"master", master, "position", uint64(match), "committed", uint64(committed))
	}
	if !sleep(s.ctx, refusedPause) {
		return s.ctx.Err()
	}
	return errors.New("replica: " + why)
}

// refusal says whether that is new.
func (s *Slave) refusal(refused bool, why string) bool {
	s.mu.Lock()
	changed := s.mu.refused != refused
	s.mu.refused, s.mu.why = refused, why
	s.mu.Unlock()
	if changed {
		s.n.Changed()
	}
	return changed
}

// failed ends the slave, whose disk took a failed write or sync: what it wrote may be gone, so it is another boot from now on (rule
// SyncFailureEndsMembership).
func (s *Slave) failed(err error) error {
	if _, uerr := s.n.State.NewBoot(); uerr != nil {
		err = errors.Join(err, uerr)
	}
	s.n.Logger.Error("slave's journal has failed", "broker", s.n.Self.Broker, "brokerGroup", s.n.BrokerGroup, "err", err)
	s.reopen(WhyFailed)
	return errReopen
}

// turn is the right to do something that only one may do at a time.
type turn chan struct{}

func newTurn() turn {
	t := make(turn, 1)
	t.give()
	return t
}

func (t turn) take() { <-t }
func (t turn) give() { t <- struct{}{} }

// following is a session as the slave sees it.
type following struct {
	s       *Slave
	peer    Peer
	master  string
	session uint64
	epoch   journal.Epoch
	store   [16]byte
	ended   chan error // why; one
	over    bool       // s.turn: nothing more is written
	header  []byte     // of the next pull
	done    func(wire.Frame, error)
}

// serve takes what the master pushes until the session ends.
func (s *Slave) serve(f *following) error {
	f.done = f.pulled
	s.hearMaster(f)
	s.n.Logger.Info("slave follows", "broker", s.n.Self.Broker, "brokerGroup", s.n.BrokerGroup, "master", f.master, "epoch", f.epoch.String(),
		"position", uint64(s.End()))
	s.turn.take() // an answer's pull must not overtake one of these: what is acked never goes back
	for range window {
		f.send(s.End())
	}
	s.turn.give()
	err := s.watch(f)
	s.turn.take()
	f.over = true
	s.turn.give()
	s.mu.Lock()
	s.mu.f.Ended()
	s.mu.master, s.mu.inSync, s.mu.handing = "", false, ""
	s.mu.Unlock()
	s.n.Changed()
	return err
}

func (s *Slave) hearMaster(f *following) {
	s.heard.Store(s.n.Now().UnixNano())
	s.mu.Lock()
	changed := s.mu.master != f.master
	s.mu.master = f.master
	s.mu.Unlock()
	if changed {
		s.n.Changed()
	}
}

// watch returns when the session has ended, or is to.
func (s *Slave) watch(f *following) error {
	t := time.NewTicker(lookEvery)
	defer t.Stop()
	for {
		select {
		case err := <-f.ended:
			return err
		case <-s.ctx.Done():
			return s.ctx.Err()
		case <-t.C:
			t.Reset(s.n.Every(lookEvery))
			row, ok, err := s.row()
			if err != nil {
				return err
			}
			if ok && row.Term > f.epoch.Term() && row.Master.Broker != f.master {
				return errOther
			}
			if s.n.Now().Sub(s.Heard()) > s.n.Timing.AwayAfter {
				return errSilent
			}
		}
	}
}

// pull sends the next request, which is the ack of what is written. It is called on the goroutine that reads the connection.
func (f *following) pull() error {
	f.s.turn.take()
	over, end := f.over, f.s.End()
	f.s.turn.give()
	// After end: whoever is promised a higher term, and then told where the journal ends, is told of all that was acked.
	if over || f.s.n.State.Seen() > f.epoch.Term() {
		return errOther
	}
	f.send(end)
	return nil
}

func (f *following) send(end journal.Position) {
	f.header = appendPull(f.header[:0], f.session, uint64(f.epoch), uint64(end), uint64(min(end, f.s.Synced())), window)
	f.peer.Call(f.s.ctx, wire.CommandPull, f.header, f.done) // which copies it
}

// pulled takes an answer, on the goroutine that reads the connection.
func (f *following) pulled(frame wire.Frame, err error) {
	if err == nil && planted.Bug("replica: acked before it is written") {
		f.send(f.s.End() + journal.Position(len(frame.Payload)))
	}
	if err == nil {
		err = f.take(frame)
	}
	if err == nil {
		err = f.pull()
	}
	if err != nil {
		select {
		case f.ended <- err:
		default:
		}
	}
}

func (f *following) take(frame wire.Frame) error {
	s := f.s
	a, err := parsePulled(frame.Header)
	if err != nil {
		return err
	}
	s.turn.take()
	defer s.turn.give()
	if f.over {
		return errOther
	}
	s.mu.Lock()
	from := journal.Position(a.from)
	if len(frame.Payload) == 0 {
		from = s.mu.f.End()
	}
	s.mu.f.Met(s.n.State.Seen()) // by whoever answers while no log is open
	err = s.mu.f.Push(journal.Epoch(a.epoch), from, len(frame.Payload))
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if len(frame.Payload) > 0 {
		if err := s.write(from, frame.Payload, f.store); err != nil {
			return err
		}
	}
	now := s.n.Now()
	s.heard.Store(now.UnixNano())
	end := s.End()
	if !a.inSync && end-s.Synced() >= catchUpSync {
		select {
		case s.much <- struct{}{}:
		default:
		}
	}
	s.mu.Lock()
	if len(frame.Payload) > 0 && s.mu.dirty.IsZero() {
		s.mu.dirty = now
	}
	committed := s.mu.f.Wrote(end, journal.Position(a.committed))
	roomAgain := s.mu.full != "" && (a.inSync || len(frame.Payload) > 0)
	changed := s.mu.inSync != a.inSync || s.mu.handing != string(a.transfer)
	if changed {
		s.mu.inSync, s.mu.handing = a.inSync, string(a.transfer)
	}
	begin := journal.Position(a.begin)
	trim := begin > s.mu.begin
	s.mu.begin = max(s.mu.begin, begin)
	s.mu.Unlock()
	if uint64(committed) > s.applied.Load() {
		s.applied.Store(uint64(committed))
		s.SetCommitted(committed)
	}
	if roomAgain {
		s.setFull(nil)
	}
	if trim {
		s.n.MasterBegin(begin, journal.Position(a.committed))
	}
	if changed {
		s.n.Changed()
	}
	return nil
}

// write writes what was pushed, waiting for a segment where none is ready.
func (s *Slave) write(from journal.Position, b []byte, store [16]byte) error {
	for {
		err := s.CopyRecords(from, b, store)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, journal.ErrBusy):
			if err := s.WaitRoom(s.ctx); err != nil {
				return err
			}
		case errors.Is(err, journal.ErrFailed):
			return s.failed(err)
		default:
			return err
		}
	}
}

// syncer syncs what was written, now and then, and when it is much.
func (s *Slave) syncer() {
	defer s.wg.Done()
	t := time.NewTicker(s.n.Timing.SyncEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-s.much:
		case <-s.ctx.Done():
			return
		}
		if err := s.syncNow(); err != nil {
			return
		}
	}
}

func (s *Slave) syncNow() error {
	if s.Synced() == s.End() {
		return nil
	}
	s.mu.Lock()
	was := s.mu.dirty
	s.mu.dirty = time.Time{} // of what is written from now on
	s.mu.Unlock()
	err := s.Sync()
	s.mu.Lock()
	if err != nil || s.mu.dirty.IsZero() && s.Synced() < s.End() {
		s.mu.dirty = was
	}
	s.mu.Unlock()
	if err != nil {
		return s.failed(err)
	}
	return nil
}

// syncDelay is the age of the oldest byte that is not on the disk.
func (s *Slave) syncDelay() time.Duration {
	if s.Synced() == s.End() {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.dirty.IsZero() {
		return 0
	}
	return s.n.Now().Sub(s.mu.dirty)
}

// Status of a slave.
func (s *Slave) Status() *wire.ReplicaStatus {
	h := historyOf(s.Journal)
	committed := s.Committed()
	delay := s.syncDelay()
	s.mu.Lock()
	defer s.mu.Unlock()
	return &wire.ReplicaStatus{
		Store: hex.EncodeToString(s.log.store[:]), Boot: s.n.State.Get().Boot, Role: roleSlave, Epoch: uint64(h.Last()), End: uint64(h.End), Synced: uint64(s.Synced()),
		Committed: uint64(max(committed, s.mu.f.Committed())), SeenTerm: s.n.State.Seen(), Refused: s.mu.refused, Fresh: h.End == 0, Why: s.mu.why,
		SyncDelayMs: uint64(delay.Milliseconds()), Begin: uint64(h.Begin), NoRoom: s.mu.full,
	}
}

// Meet answers what the slave knows; with a term it first promises, durably, to do nothing in a lower one: nothing of a lower one is written any
// more when it answers.
func (s *Slave) Meet(ctx context.Context, r *wire.MeetRequest) (*wire.MeetResponse, error) {
	if err := s.n.ofGroup(r.BrokerGroup); err != nil {
		return nil, err
	}
	if err := s.n.State.Near(r.Term); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.mu.f.Met(r.Term)
	s.mu.Unlock()
	if r.Term > s.n.State.Seen() {
		if err := s.n.State.Update(func(st *State) { st.Seen = max(st.Seen, r.Term) }); err != nil {
			return nil, wire.Errorf(wire.CodeFailed, "the promise cannot be kept: %v", err)
		}
	}
	if r.Term > 0 { // what was pushed before the promise may be written just now
		select {
		case <-s.turn:
			s.turn.give()
		case <-ctx.Done():
			return nil, wire.Errorf(wire.CodeStopping, "what its master pushed is being written")
		}
	}
	return &wire.MeetResponse{Status: s.Status(), History: wireHistory(historyOf(s.Journal))}, nil
}

// ReadLog answers other brokers and observers.
func (s *Slave) ReadLog(ctx context.Context, r *wire.ReadLogRequest) (*wire.ReadLogResponse, []byte, error) {
	return s.log.readLog(ctx, r)
}

// LogSums answers the other copies.
func (s *Slave) LogSums(_ context.Context, r *wire.LogSumsRequest) (*wire.LogSumsResponse, error) {
	return s.log.sums(r)
}
