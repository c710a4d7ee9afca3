package registry

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/server/term"
	"github.com/jmqio/jmq/wire"
)

const (
	// promoteAfter is how long the master of an auto broker group is silent before a member of its set is promoted, and how fresh what a
	// broker reports must be to count.
	promoteAfter = 3 * time.Second
	// standAfter is how long the master of an auto broker group may live and not be one: it waits, or copies.
	standAfter = 10 * time.Second
	// confirmAfter is how long a promotion may take that was begun: brokers met its term, and the row has it not.
	confirmAfter = 5 * time.Second
	// refillAfter is how long brokers have after a new generation to register, before all that are known have reported.
	refillAfter = 5 * time.Second
	// lonelyAfter is how long the only broker of a broker group whose row was lost waits for others.
	lonelyAfter = 30 * time.Second
	// transferMax is how long a transfer may take before it is given up.
	transferMax = 30 * time.Second
)

// registryActor is who the audit names for what the registry does by itself.
var registryActor = meta.Actor{Name: "registry"}

func rowKey(brokerGroup string) meta.Key {
	return meta.Key{Kind: meta.KindReplication, Name: brokerGroup}
}

// rowOf is a broker group's row in s with what a write of it expects to find; the zero row: there is none.
func rowOf(s *meta.Snapshot, brokerGroup string) (term.Row, meta.Expect) {
	if o := s.Get(rowKey(brokerGroup)); o != nil {
		return term.Row(*o.Spec.(*meta.Replication)), meta.Expect{Revision: o.Revision}
	}
	return term.Row{}, meta.Expect{Create: true}
}

// row is rowOf, with what masters have said to be committed since it was written: whatever becomes of it keeps that.
func (n *Node) row(s *meta.Snapshot, brokerGroup string) (term.Row, meta.Expect) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.rowLocked(s, brokerGroup)
}

// rowLocked is row. n.mu is held.
func (n *Node) rowLocked(s *meta.Snapshot, brokerGroup string) (term.Row, meta.Expect) {
	row, expect := rowOf(s, brokerGroup)
	if m := n.mu.groups[brokerGroup]; m != nil && row.Term != 0 && m.told.term == row.Term {
		row.Committed = max(row.Committed, m.told.committed)
	}
	return row, expect
}

// note keeps what a master says to be committed. Its last word stays with its heartbeat in the database, and goes into the row when it is not
// heard to be master any more: the heartbeat is another one then. n.mu is held.
func (n *Node) note(r *wire.HeartbeatRequest) {
	rep, ok := reportOf(r.Node, r.Replica)
	if !ok || !rep.Master || r.BrokerGroup == "" {
		return
	}
	m := n.mu.groups[r.BrokerGroup]
	if m == nil {
		m = &group{}
		n.mu.groups[r.BrokerGroup] = m
	}
	switch {
	case rep.Term > m.told.term:
		m.told.term, m.told.committed = rep.Term, rep.Committed
	case rep.Term == m.told.term:
		m.told.committed = max(m.told.committed, rep.Committed)
	}
}

// Told is the highest position that masters of a broker group said to be committed, up to the term of its row; term 0: there is no row, or what
// was said before this node started is not known yet.
func (n *Node) Told(brokerGroup string) (rowTerm uint32, committed uint64) {
	s := n.applied.Load()
	n.mu.Lock()
	defer n.mu.Unlock()
	if s == nil || n.mu.beaten.IsZero() {
		return 0, 0
	}
	row, _ := n.rowLocked(s, brokerGroup)
	return row.Term, row.Committed
}

// rowWrite puts a row in the place of the one that was read.
func rowWrite(brokerGroup string, row term.Row, expect meta.Expect) meta.Write {
	spec := meta.Replication(row)
	return meta.Write{Key: rowKey(brokerGroup), Spec: &spec, Expect: expect}
}

// updateRow writes a row. Errors are those of the store: CodeConflict, CodeExists or CodeNotFound when it is another than the one that was read.
func (n *Node) updateRow(ctx context.Context, by meta.Actor, reason, brokerGroup string, row term.Row, expect meta.Expect) (*meta.Snapshot, error) {
	s, err := n.store.Update(ctx, meta.Change{By: by, Seen: n.seen(), Reason: reason, Writes: []meta.Write{rowWrite(brokerGroup, row, expect)}})
	if err == nil {
		n.counts.rows.Add(1)
	}
	return s, err
}

// reportOf is what a broker says of its copy; false: it says nothing of it yet.
func reportOf(broker string, r *wire.ReplicaStatus) (term.Report, bool) {
	rep := term.Report{
		Member: term.Member{Broker: broker, Boot: r.GetBoot(), Store: r.GetStore()}, Master: r.GetRole() == roleMaster, Seen: r.GetSeenTerm(),
		LastTerm: uint32(r.GetEpoch() >> 32), LastStart: uint32(r.GetEpoch()), End: r.GetEnd(), Committed: r.GetCommitted(), Refused: r.GetRefused(), New: r.GetFresh(),
	}
	if rep.Master {
		rep.Term = rep.LastTerm
	}
	return rep, rep.Boot != "" && rep.Store != ""
}

// Roles of a broker in its broker group, as ReplicaStatus says them.
const (
	roleMaster  = "master"
	roleWaiting = "waiting"
	roleCopying = "copying"
)

// ChangeReplication implements wire.Registry: a master's compare-and-set. Only the broker that the row names may ask, and every one
// that succeeds raises the row's count. One that does not is answered with the row as it is.
func (n *Node) ChangeReplication(ctx context.Context, r *wire.ChangeReplicationRequest) (*wire.ChangeReplicationResponse, error) {
	row, changed, err := n.changeReplication(ctx, r)
	if err != nil {
		n.counts.refused.Add(1)
		return nil, err
	}
	b, err := encodeRow(row)
	if err != nil {
		return nil, err
	}
	return &wire.ChangeReplicationResponse{Row: b, Changed: changed}, nil
}

func encodeRow(row term.Row) ([]byte, error) {
	spec := meta.Replication(row)
	return meta.EncodeSpec(&spec)
}

func (n *Node) changeReplication(ctx context.Context, r *wire.ChangeReplicationRequest) (row term.Row, changed bool, err error) {
	who, _ := subjectOf(ctx)
	if err := n.store.View().MayOperate(who, meta.BeNode, "", ""); err != nil {
		return row, false, err
	}
	if err := (meta.Key{Kind: meta.KindBrokerGroup, Name: r.BrokerGroup}).Check(); err != nil {
		return row, false, err
	}
	var a term.Ask
	if len(r.Ask) > infoMax {
		return row, false, wire.Errorf(wire.CodeTooLarge, "a question of %d bytes, at most %d are possible", len(r.Ask), infoMax)
	}
	if err := json.Unmarshal(r.Ask, &a); err != nil {
		return row, false, wire.Errorf(wire.CodeInvalid, "the question cannot be read: %s", err)
	}
	if err := meta.SpeaksFor(who.Principal, a.Master.Broker); err != nil {
		return row, false, err
	}
	for try := 1; ; try++ {
		s := n.store.View()
		row, expect := n.row(s, r.BrokerGroup)
		if a.Term > row.Term || a.Term == row.Term && a.Change > row.Change {
			// The master was told more than this node has read, and the row as it is here would be an old one.
			if n.newer(ctx, s) == nil {
				return row, false, wire.Errorf(wire.CodeMetadataAway, "the row of broker group %s is of term %d, change %d here, and of term %d, change %d at its master: this node knows less", r.BrokerGroup, row.Term, row.Change, a.Term, a.Change)
			}
			continue
		}
		next, err := row.Compare(a, n.highest(s, r.BrokerGroup), uint64(s.Generation))
		switch {
		case errors.Is(err, term.ErrStale):
			return row, false, nil
		case errors.Is(err, term.ErrNotReady):
			return row, false, wire.Errorf(wire.CodeMetadataAway, "nothing is said of broker group %s yet: not all of its brokers have reported in generation %d of the metadata", r.BrokerGroup, s.Generation)
		case err != nil:
			return row, false, wire.Errorf(wire.CodeInvalid, "broker group %s: %s", r.BrokerGroup, err)
		}
		reason := "its master asked for this set"
		switch {
		case a.To != "":
			reason = "its master handed over"
		case a.Copied:
			reason = "its master has another store, and copied"
		}
		after, err := n.updateRow(ctx, registryActor, reason, r.BrokerGroup, next, expect)
		switch wire.CodeOf(err) {
		case wire.CodeOK:
			n.logRow(r.BrokerGroup, row, next, reason)
			row, _ = rowOf(after, r.BrokerGroup)
			return row, true, nil
		case wire.CodeConflict, wire.CodeNotFound:
			// Another node was first: what it wrote is read, and compared with.
			if try < conflictTries && n.newer(ctx, s) != nil {
				continue
			}
		}
		return row, false, err
	}
}

// newerWithin is how long a node waits for what another one wrote: stores read twice a second.
const newerWithin = time.Second

// newer waits for a snapshot after s; nil: none came.
func (n *Node) newer(ctx context.Context, s *meta.Snapshot) *meta.Snapshot {
	ctx, cancel := context.WithTimeout(ctx, newerWithin)
	defer cancel()
	next, err := n.store.Watch(ctx, s)
	if err != nil {
		return nil
	}
	return next
}

// logRow says what became of a row; a change of the set alone is its master's to say.
func (n *Node) logRow(brokerGroup string, before, after term.Row, reason string) {
	if before.Term == after.Term && before.Transfer == after.Transfer {
		return
	}
	n.o.Logger.Log(n.ctx, slog.LevelInfo, "the row of a broker group changed", "brokerGroup", brokerGroup, "was", before.Master.Broker, "is", after.Master.Broker,
		"term", after.Term, "transfer", after.Transfer, "forced", after.Forced, "why", reason)
}

// group is what a node remembers of a broker group beside its row. Times are zero while it is not so.
type group struct {
	refill   time.Time // since when its row may not be answered for
	standing time.Time // since when its master lives and is none
	stranded time.Time // since when one of its brokers has met a higher term
	transfer time.Time // since when the row asks for the transfer with this count
	change   uint64
	told     struct { // the highest position that a master of the highest term has said to be committed
		term      uint32
		committed uint64
	}
	state string    // its condition's kind, as this node saw it last
	since time.Time // and since when
}

// mark counts since when something is so.
func mark(at *time.Time, is bool, now time.Time) time.Duration {
	if !is {
		*at = time.Time{}
		return 0
	}
	if at.IsZero() {
		*at = now
	}
	return now.Sub(*at)
}

// replicas are the brokers of a broker group as this node hears them.
type replicas struct {
	names   []string // of all that the metadata has, by when they were created
	specs   map[string]*meta.Broker
	reports map[string]term.Report // of those that say what they have, in the boot that is registered; living or not
	living  map[string]bool        // of those with a report: it is fresh
	failed  map[string]bool        // its journal stopped
	silent  map[string]time.Duration
	status  map[string]*wire.ReplicaStatus // of those with a report, as they said it
	twins   map[string][]string            // addresses of other processes of its name
}

// replicasOf returns them by broker group. n.mu is held.
func (n *Node) replicasOf(s *meta.Snapshot) map[string]*replicas {
	all, twins := map[string]*replicas{}, map[string][]string{}
	for _, x := range n.mu.nodes {
		if x.last != nil && x.silent < silenceMax {
			for _, t := range x.last.Twins {
				twins[t.Node] = append(twins[t.Node], t.Addresses...)
			}
		}
	}
	list := slices.Clone(s.List(meta.KindBroker))
	slices.SortStableFunc(list, func(a, b *meta.Object) int { return int(int64(a.Created) - int64(b.Created)) })
	for _, o := range list {
		b := o.Spec.(*meta.Broker)
		g := all[b.BrokerGroup]
		if g == nil {
			g = &replicas{specs: map[string]*meta.Broker{}, reports: map[string]term.Report{}, living: map[string]bool{}, failed: map[string]bool{},
				silent: map[string]time.Duration{}, status: map[string]*wire.ReplicaStatus{}, twins: twins}
			all[b.BrokerGroup] = g
		}
		g.names = append(g.names, o.Name)
		g.specs[o.Name] = b
		x := n.mu.nodes[o.Name]
		if x == nil {
			continue
		}
		if g.silent[o.Name] = x.silent; x.heard {
			g.silent[o.Name] = 0 // it came to us, and goes to the database with the next beat
		}
		if x.last == nil || x.last.Boot != b.Boot { // another one of that name, or one that is not registered yet
			continue
		}
		g.failed[o.Name] = x.last.State == stateFailed
		if rep, ok := reportOf(o.Name, x.last.Replica); ok {
			g.reports[o.Name], g.status[o.Name] = rep, x.last.Replica
			g.living[o.Name] = n.mu.trusted && !b.Away && g.silent[o.Name] < promoteAfter
		}
	}
	return all
}

// stateFailed is what a broker says whose journal stopped.
const stateFailed = "failed"

// fresh are the reports of brokers that live.
func (g *replicas) fresh() (list []term.Report) {
	for _, name := range g.names {
		if g.living[name] {
			list = append(list, g.reports[name])
		}
	}
	return list
}

// all are the last reports of all brokers.
func (g *replicas) all() (list []term.Report) {
	for _, name := range g.names {
		if rep, ok := g.reports[name]; ok {
			list = append(list, rep)
		}
	}
	return list
}

// highest is the highest term that a broker of the broker group was heard to know.
func (n *Node) highest(s *meta.Snapshot, brokerGroup string) uint32 {
	n.mu.Lock()
	defer n.mu.Unlock()
	g := n.replicasOf(s)[brokerGroup]
	if g == nil {
		return 0
	}
	return term.Row{}.Highest(g.all())
}

// rowFinding is what has to be written of a broker group's row.
type rowFinding struct {
	brokerGroup   string
	reason        string
	before, after term.Row
	expect        meta.Expect
}

// rowsDue says which rows have to be written.
func (n *Node) rowsDue() []rowFinding {
	s := n.store.View()
	now := time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	var due []rowFinding
	all := n.replicasOf(s)
	for name := range n.mu.groups {
		if row, _ := rowOf(s, name); all[name] == nil && row.Term == 0 {
			delete(n.mu.groups, name)
		}
	}
	if !n.mu.trusted {
		// What was silent may be we ourselves; and nothing could be written.
		for _, m := range n.mu.groups {
			m.refill, m.standing, m.stranded, m.transfer = time.Time{}, time.Time{}, time.Time{}, time.Time{}
		}
		return nil
	}
	for name, g := range all {
		m := n.mu.groups[name]
		if m == nil {
			m = &group{}
			n.mu.groups[name] = m
		}
		row, expect := n.rowLocked(s, name)
		if after, reason := n.judgeRow(s, m, name, row, g, now); after.Change != row.Change || reason != "" {
			due = append(due, rowFinding{name, reason, row, after, expect})
		}
		kind, _ := condition(s, name, row, g)
		if kind != m.state {
			m.state, m.since = kind, n.o.Now()
		}
	}
	return due
}

// judgeRow is what a row becomes by what is heard of its brokers; reason "": nothing. n.mu is held.
func (n *Node) judgeRow(s *meta.Snapshot, m *group, name string, row term.Row, g *replicas, now time.Time) (after term.Row, reason string) {
	generation := uint64(s.Generation)
	if waited := mark(&m.refill, row.Unanswerable(generation) || row.Term == 0 && g.stranger(), now); !m.refill.IsZero() {
		if waited < refillAfter || row.Term == 0 && !g.mayRefill(waited) {
			return row, ""
		}
		next, err := row.Refill(g.names, g.ofGeneration(n, generation), nil, generation)
		if err != nil {
			return row, ""
		}
		return next, "all brokers have reported in the metadata's new generation"
	}
	after = row
	for _, b := range g.names {
		if !g.living[b] {
			continue
		}
		next, err := after.Register(g.reports[b], !g.specs[b].Slave, generation)
		if err != nil || next.Change == after.Change {
			continue
		}
		if reason = "broker " + b + " has another boot or store, and is in the set no more"; after.Term == 0 {
			reason = "broker " + b + " is the first of the broker group"
		}
		after = next
	}
	if after.Term == 0 || reason != "" {
		return after, reason
	}
	master := row.Master.Broker
	reports := g.fresh()
	strandedFor := mark(&m.stranded, slices.ContainsFunc(reports, func(rep term.Report) bool { return rep.Seen > row.Term }), now)
	for _, rep := range reports {
		if !rep.Master && strandedFor < confirmAfter {
			continue
		}
		if next, changed := row.Confirm(rep, g.all(), generation); changed {
			return next, "broker " + rep.Broker + " has met a higher term"
		}
	}
	if mode := s.BrokerGroup(name); mode != nil && mode.Mode == meta.BrokerGroupAuto {
		standing := mark(&m.standing, g.living[master] && !g.reports[master].Master, now)
		why := ""
		switch silent, heard := g.silent[master]; {
		case g.specs[master] == nil:
			why = "its master " + master + " was removed"
		case !heard || silent >= promoteAfter:
			why = "its master " + master + " is silent for " + promoteAfter.String()
		case g.failed[master]:
			why = "the journal of its master " + master + " failed"
		case standing >= standAfter:
			why = "its master " + master + " does not serve for " + standAfter.String()
		}
		if why != "" {
			candidates := slices.DeleteFunc(reports, func(rep term.Report) bool { return rep.Broker == master || g.failed[rep.Broker] })
			if next, err := row.Promote(candidates, row.Committed, generation); err == nil {
				return next, why
			}
		}
	}
	if row.Transfer == "" || m.change != row.Change {
		m.transfer, m.change = time.Time{}, row.Change
	}
	if mark(&m.transfer, row.Transfer != "", now) > transferMax {
		after.Transfer = ""
		after.Change++
		return after, "the transfer to broker " + row.Transfer + " did not come about"
	}
	if was, _ := rowOf(s, name); was.Committed < row.Committed && !(g.reports[master].Master && g.reports[master].Term == row.Term) {
		after.Change++
		return after, "what its master said to be committed, which does not say it any more"
	}
	return row, ""
}

// stranger says whether a broker was in a term although the metadata has no row: that was lost, and with it who is of the broker group.
func (g *replicas) stranger() bool {
	for _, rep := range g.reports {
		if rep.Seen > 0 || rep.LastTerm > 0 {
			return true
		}
	}
	return false
}

// mayRefill says whether a lost row may be made anew without an operator: the one that has most may not have registered. It may if a master lives, or
// if there is one broker only, and no other came for long.
func (g *replicas) mayRefill(waited time.Duration) bool {
	for _, rep := range g.fresh() {
		if rep.Master && rep.Term == (term.Row{}).Highest(g.all()) {
			return true
		}
	}
	return len(g.names) == 1 && !g.specs[g.names[0]].Slave && waited >= lonelyAfter
}

// ofGeneration are the reports of brokers that live and hold metadata of a generation: they were given in it. n.mu is held.
func (g *replicas) ofGeneration(n *Node, generation uint64) map[string]term.Report {
	reports := map[string]term.Report{}
	for b, rep := range g.reports {
		if g.living[b] && n.mu.nodes[b].last.Generation == generation {
			reports[b] = rep
		}
	}
	return reports
}

func (n *Node) writeRow(f rowFinding) {
	ctx, cancel := context.WithTimeout(n.ctx, beatTimeout)
	defer cancel()
	switch _, err := n.updateRow(ctx, registryActor, f.reason, f.brokerGroup, f.after, f.expect); wire.CodeOf(err) {
	case wire.CodeOK:
		n.logRow(f.brokerGroup, f.before, f.after, f.reason)
		if f.before.Term != 0 && f.before.Master.Broker != f.after.Master.Broker {
			n.counts.promotions.Add(1)
		}
	case wire.CodeInvalid:
		n.o.Logger.Error("the row of a broker group cannot be written", "brokerGroup", f.brokerGroup, "err", err)
	default: // another node was first, and its snapshot comes; or the database is away, and the next beat finds it again
	}
}
