package registry

import (
	"cmp"
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/server/term"
	"github.com/jmqio/jmq/wire"
)

const (
	beatEvery   = 500 * time.Millisecond
	beatTimeout = 3 * time.Second
	// silenceMax is how long a node may be silent before it is away: a client is told within 10 s.
	silenceMax = 8 * time.Second
	// takeOver is how long a broker must have been silent before one at another address may have its name: two that live would
	// share it else, and senders would go to the one that came last.
	takeOver = 2 * time.Second
	// silenceStep bounds how much silence one call can show: what the judge itself slept through, or waited for the database, is not
	// the silence of others.
	silenceStep = time.Second
	// nodesMax bounds what heartbeats can make us remember.
	nodesMax = 10_000
	bootsMax = 16
	infoMax  = 16 << 10 // of a heartbeat, encoded
)

// Roles in heartbeats.
const (
	RoleRegistry = "registry"
	RoleBroker   = "broker"
)

// node is what is known of a node of the cluster by its heartbeats.
type node struct {
	last  *wire.HeartbeatRequest
	count uint64 // of last
	heard bool   // last came to us, and was not handed to the database yet
	due   bool   // last came to us, and the metadata does not say what it says: it is for us to write it
	// boots are those that were registered in this generation, as far as we saw. One that was and is not any more has been followed by another.
	boots []string
	// What the database had when we looked last, and how long it did not change while we could see it.
	seenBoot  string
	seenCount uint64
	silent    time.Duration
	revision  meta.Version // of its object when we looked last
	member    term.Member  // that last was
	refused   error        // why it could not be registered
	unwritten bool         // what was found of it could not be written, and that was told
	twin      twin         // another process of its name, which is refused here
}

// twin is a process whose heartbeats are refused since another one has its name.
type twin struct {
	boot        string
	addresses   []string
	first, last time.Time // heartbeats
}

const (
	// A heartbeat of a process that has just ended may be late: one counts as running beside the other when it was refused for so long, and was heard
	// within that time.
	twinAfter = time.Second
	twinHeard = 3 * time.Second
)

// refuse notes a heartbeat that is refused for its name.
func (x *node) refuse(r *wire.HeartbeatRequest) {
	now := time.Now()
	if x.twin.boot != r.Boot || now.Sub(x.twin.last) > twinHeard {
		x.twin = twin{boot: r.Boot, first: now}
	}
	x.twin.addresses, x.twin.last = r.Addresses, now
}

// twins are the processes that are refused here for their names.
func (n *Node) twins() (list []*wire.Twin) {
	now := time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	for name, x := range n.mu.nodes {
		if t := &x.twin; t.last.Sub(t.first) >= twinAfter && now.Sub(t.last) < twinHeard && len(list) < bootsMax {
			list = append(list, &wire.Twin{Node: name, Addresses: t.addresses})
		}
	}
	slices.SortFunc(list, func(a, b *wire.Twin) int { return cmp.Compare(a.Node, b.Node) })
	return list
}

// Heartbeat implements wire.Registry. It is answered from memory: a slow database does not make others fall silent.
func (n *Node) Heartbeat(ctx context.Context, r *wire.HeartbeatRequest) (*wire.HeartbeatResponse, error) {
	s := n.applied.Load()
	if s == nil {
		return nil, n.Feed.away()
	}
	who, p := subjectOf(ctx)
	if err := s.MayOperate(who, meta.BeNode, "", ""); err != nil {
		return nil, err
	}
	if err := checkHeartbeat(r); err != nil {
		return nil, err
	}
	if err := meta.SpeaksFor(who.Principal, r.Node); err != nil {
		return nil, err
	}
	n.counts.heartbeats.Add(1)
	if err := n.hear(r, p.Addr); err != nil {
		return nil, err
	}
	n.mu.Lock()
	trusted := n.mu.trusted
	n.mu.Unlock()
	a := &wire.HeartbeatResponse{Generation: uint64(s.Generation), Version: uint64(s.Version), Registry: n.Registry(), Stored: trusted}
	if r.Replica != nil {
		a.ToldTerm, a.Told = n.Told(r.BrokerGroup)
	}
	return a, nil
}

func checkHeartbeat(r *wire.HeartbeatRequest) error {
	if err := (meta.Key{Kind: meta.KindBroker, Name: r.Node}).Check(); err != nil {
		return err
	}
	if size := proto.Size(r); size > infoMax {
		return wire.Errorf(wire.CodeTooLarge, "a heartbeat of %d bytes, at most %d are possible", size, infoMax)
	}
	if r.Boot == "" {
		return wire.Errorf(wire.CodeInvalid, "the heartbeat of node %s says no boot", r.Node)
	}
	if slices.Contains(r.Roles, RoleBroker) {
		if err := (meta.Key{Kind: meta.KindBrokerGroup, Name: r.BrokerGroup}).Check(); err != nil {
			return err
		}
		return brokerOf(r).Validate()
	}
	return nil
}

// brokerOf is the object of a broker that sends r.
func brokerOf(r *wire.HeartbeatRequest) *meta.Broker {
	return &meta.Broker{BrokerGroup: r.BrokerGroup, Addresses: r.Addresses, DataCenter: r.DataCenter, Labels: r.Labels, Version: r.Version, Boot: r.Boot, Slave: r.Slave}
}

// sameBroker says whether an object says what its broker says, whoever judged it away.
func sameBroker(a, b *meta.Broker) bool {
	return a.BrokerGroup == b.BrokerGroup && a.Boot == b.Boot && a.DataCenter == b.DataCenter && a.Version == b.Version && a.Slave == b.Slave &&
		slices.Equal(a.Addresses, b.Addresses) && slices.Equal(a.Labels, b.Labels)
}

// hear takes a heartbeat.
func (n *Node) hear(r *wire.HeartbeatRequest, addr string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	x := n.mu.nodes[r.Node]
	if x == nil {
		if len(n.mu.nodes) >= nodesMax {
			return wire.Errorf(wire.CodeTooMany, "%d nodes are known, which is the most", nodesMax)
		}
		x = &node{}
		n.mu.nodes[r.Node] = x
	}
	due := false
	if slices.Contains(r.Roles, RoleBroker) {
		b := n.store.View().Broker(r.Node)
		switch {
		case b != nil && b.Boot == r.Boot:
			x.own(r.Boot)
		case b != nil && !b.Away && slices.Contains(x.boots, r.Boot):
			x.refuse(r)
			return wire.Errorf(wire.CodeConflict, "another broker with the name %s runs, at %v: stop one, or give this one a name of its own (node.name)", r.Node, b.Addresses)
		}
		if b != nil && !b.Away && b.Boot != r.Boot && x.last != nil && x.last.Boot == b.Boot && x.silent < takeOver && !slices.Equal(b.Addresses, r.Addresses) {
			x.refuse(r)
			return wire.Errorf(wire.CodeConflict, "another broker with the name %s lives, at %v: give this one a name of its own (node.name)", r.Node, b.Addresses)
		}
		due = b == nil || b.Away || !sameBroker(b, brokerOf(r))
	}
	if x.last == nil || x.last.Boot != r.Boot {
		x.refused = nil
	}
	news := x.last == nil || x.last.Boot != r.Boot || x.last.MetadataVersion != r.MetadataVersion || x.last.Generation != r.Generation
	n.note(r)
	x.last, x.heard = r, true
	x.count = max(x.count, x.seenCount) + 1
	if news {
		n.tell()
	}
	if x.refused != nil {
		return x.refused
	}
	if x.due = due; due || x.newMember(r) {
		n.kickJudge()
	}
	return nil
}

// newMember says whether a broker's copy is another than it was at the last heartbeat, or is told for the first time, and notes it.
func (x *node) newMember(r *wire.HeartbeatRequest) bool {
	rep, ok := reportOf(r.Node, r.Replica)
	was := x.member
	x.member = rep.Member
	return ok && rep.Member != was
}

// own remembers that a boot is, or was, the registered one.
func (x *node) own(boot string) {
	if !slices.Contains(x.boots, boot) {
		x.boots = append(x.boots, boot)
		x.boots = x.boots[max(0, len(x.boots)-bootsMax):]
	}
}

// hearSelf takes this process's own heartbeat.
func (n *Node) hearSelf() {
	r := n.o.Self()
	r.Twins = n.twins()
	if s := n.applied.Load(); s != nil {
		r.Generation, r.MetadataVersion = uint64(s.Generation), uint64(s.Version)
	}
	if err := n.hear(r, ""); err != nil {
		n.o.Logger.Warn("this node cannot be registered", "node", r.Node, "err", err)
	}
}

// seen is the newest metadata of this generation that any node says to have.
func (n *Node) seen() meta.Mark {
	m := meta.Mark{Generation: n.store.View().Generation}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, x := range n.mu.nodes {
		if x.last != nil && x.last.Generation == uint64(m.Generation) {
			m.Version = max(m.Version, meta.Version(x.last.MetadataVersion))
		}
	}
	return m
}

// behindMax is how many rounds in a row what nodes have may be newer than what we have: a change needs less to be read from the database.
const behindMax = 4

// compare notes whether nodes have newer metadata than the database.
func (n *Node) compare() {
	v, seen := n.store.View(), n.seen()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.behind++; seen.Generation != v.Generation || seen.Version <= v.Version {
		n.mu.behind = 0
	}
}

// Health is nil while changes can be made, else why not.
func (n *Node) Health() error {
	if err := n.store.Health(); err != nil {
		return err
	}
	n.mu.Lock()
	behind := n.mu.behind >= behindMax
	n.mu.Unlock()
	if v, seen := n.store.View(), n.seen(); behind && seen.Version > v.Version {
		return wire.Errorf(wire.CodeMetadataAway, "the database has version %d of generation %d, and nodes have %d: it went back, and takes no change before jmq registry new-generation", v.Version, v.Generation, seen.Version)
	}
	return nil
}

// Sure says whether what is not known here is not there: the database is read, and what it has is in force.
func (n *Node) Sure() bool {
	s, v := n.applied.Load(), n.store.View()
	return s != nil && v != nil && s.Generation == v.Generation && s.Version == v.Version && n.Health() == nil
}

// tell wakes those who wait for news of nodes. n.mu is held.
func (n *Node) tell() {
	if n.mu.told != nil {
		close(n.mu.told)
		n.mu.told = nil
	}
}

// beats stores what was heard, for all nodes at once, and counts the silence of the others.
func (n *Node) beats() {
	defer n.done.Done()
	every := time.NewTicker(beatEvery)
	defer every.Stop()
	for {
		n.hearSelf()
		n.beat()
		select {
		case <-every.C:
			every.Reset(n.o.Every(beatEvery))
		case <-n.ctx.Done():
			return
		}
	}
}

func (n *Node) beat() {
	n.mu.Lock()
	var beats []meta.Beat
	for name, x := range n.mu.nodes {
		if !x.heard || n.mu.beaten.IsZero() { // what the database has is read before it is replaced: a master's last word

			continue
		}
		x.heard = false
		info, err := proto.Marshal(x.last)
		if err != nil { // text that is not UTF-8: proto did not let it in
			continue
		}
		beats = append(beats, meta.Beat{Node: name, Boot: x.last.Boot, Count: x.count, Info: info})
	}
	n.mu.Unlock()
	ctx, cancel := context.WithTimeout(n.ctx, beatTimeout)
	all, err := n.store.Beat(ctx, beats)
	cancel()
	if n.ctx.Err() != nil {
		return
	}
	n.counts.beats.Add(1)
	if err != nil {
		n.counts.beatsFailed.Add(1)
		if n.distrust() {
			n.o.Logger.Warn("heartbeats cannot be stored: nobody is judged away meanwhile", "err", err)
		}
		return
	}
	first, unreadable := n.count(all)
	n.compare()
	if first {
		n.o.Logger.Info("heartbeats are stored")
	}
	if len(unreadable) > 0 {
		n.o.Logger.Warn("heartbeats in the database cannot be read", "nodes", unreadable)
	}
	n.kickJudge()
}

// distrust forgets all silence, since we may be the one who does not hear. It says whether that is news.
func (n *Node) distrust() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	was := n.mu.trusted
	n.mu.trusted = false
	for _, x := range n.mu.nodes {
		x.silent = 0
	}
	return was
}

// count takes what the database has of all nodes. first: it is the first time, or the first after failures.
func (n *Node) count(all []meta.Beat) (first bool, unreadable []string) {
	s := n.store.View()
	now := time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	step := min(now.Sub(n.mu.beaten), silenceStep) // by the monotonic clock
	if first = !n.mu.trusted; first {
		step = 0
	}
	fresh := n.mu.beaten.IsZero()
	n.mu.trusted, n.mu.beaten = true, now
	present := make(map[string]bool, len(all))
	for i := range all {
		b := &all[i]
		present[b.Node] = true
		x := n.mu.nodes[b.Node]
		if x == nil {
			x = &node{}
			n.mu.nodes[b.Node] = x
		}
		if b.Boot == x.seenBoot && b.Count == x.seenCount {
			x.silent += step
		} else {
			x.seenBoot, x.seenCount, x.silent = b.Boot, b.Count, 0
		}
		known := x.heard || x.last != nil && x.last.Boot == b.Boot && x.count >= b.Count
		if known && !fresh {
			continue
		}
		r := new(wire.HeartbeatRequest)
		if len(b.Info) > infoMax || proto.Unmarshal(b.Info, r) != nil || r.Node != b.Node {
			unreadable = append(unreadable, b.Node)
			continue
		}
		if n.note(r); known {
			continue
		}
		if x.last == nil || x.last.MetadataVersion != r.MetadataVersion || x.last.Boot != r.Boot || x.last.Generation != r.Generation {
			n.tell()
		}
		if x.last != nil && x.last.Boot != r.Boot {
			x.refused = nil
		}
		x.last, x.count = r, b.Count
	}
	for o := range s.All(meta.KindBroker) {
		if n.mu.nodes[o.Name] == nil {
			n.mu.nodes[o.Name] = &node{}
		}
	}
	var addresses []string
	for name, x := range n.mu.nodes {
		if !present[name] {
			if x.silent += step; !x.heard && x.silent > silenceMax && s.Broker(name) == nil {
				delete(n.mu.nodes, name)
				continue
			}
		}
		if x.last != nil && x.silent < silenceMax && slices.Contains(x.last.Roles, RoleRegistry) {
			addresses = append(addresses, x.last.Addresses...)
		}
	}
	slices.Sort(addresses)
	addresses = slices.Compact(addresses)
	n.addresses.Store(&addresses)
	return first, unreadable
}

// judgement writes who registered, is away or is back.
func (n *Node) judgement() {
	defer n.done.Done()
	for {
		select {
		case <-n.judge:
		case <-n.ctx.Done():
			return
		}
		for _, c := range n.due() {
			n.write(c)
		}
		for _, f := range n.rowsDue() {
			n.writeRow(f)
		}
	}
}

// finding is what has to be written of a broker.
type finding struct {
	change meta.Change
	broker string
	before *meta.Broker
	after  *meta.Broker
}

// due says what has to be written.
func (n *Node) due() []finding {
	s := n.store.View()
	self := n.o.Self().Node
	n.mu.Lock()
	defer n.mu.Unlock()
	var due []finding
	for name, x := range n.mu.nodes {
		o := s.Get(meta.Key{Kind: meta.KindBroker, Name: name})
		var before *meta.Broker
		expect := meta.Expect{Create: true}
		if o != nil {
			before = o.Spec.(*meta.Broker)
			x.own(before.Boot) // a heartbeat of it that comes when it was followed by another is late
			expect = meta.Expect{Revision: o.Revision}
			if o.Revision != x.revision {
				// A node that heard it wrote it: our silence begins anew, or we would judge by beats from before that.
				// That it is away is not from it: how long it is silent is counted on.
				if x.revision = o.Revision; !before.Away {
					x.silent = 0
				}
			}
		}
		f := finding{broker: name, before: before}
		switch {
		case x.due:
			x.due = false // if it cannot be written, the next heartbeat says so again
			if before != nil && !before.Away && sameBroker(before, brokerOf(x.last)) {
				continue
			}
			f.after = brokerOf(x.last)
			f.after.Registered = n.o.Now().UTC().Truncate(time.Second)
			f.change = meta.Change{By: meta.Actor{Name: "node " + name}, Reason: "it registered"}
			if before != nil && sameBroker(before, f.after) {
				f.after.Registered = before.Registered
				f.change.Reason = "it is back"
			}
			group := meta.Key{Kind: meta.KindBrokerGroup, Name: f.after.BrokerGroup}
			if s.Get(group) == nil {
				f.change.Writes = append(f.change.Writes, meta.Write{Key: group, Spec: &meta.BrokerGroup{DataCenter: f.after.DataCenter}, Expect: meta.Expect{Create: true}})
			}
		case before != nil && !before.Away && n.mu.trusted && x.silent >= silenceMax && !x.heard:
			away := *before
			away.Away = true
			f.after = &away
			f.change = meta.Change{By: meta.Actor{Name: "node " + self}, Reason: "it is silent for " + silenceMax.String()}
		default:
			continue
		}
		f.change.Writes = append(f.change.Writes, meta.Write{Key: meta.Key{Kind: meta.KindBroker, Name: name}, Spec: f.after, Expect: expect})
		due = append(due, f)
	}
	return due
}

func (n *Node) write(f finding) {
	ctx, cancel := context.WithTimeout(n.ctx, beatTimeout)
	defer cancel()
	f.change.Seen = n.seen()
	_, err := n.store.Update(ctx, f.change)
	log := n.o.Logger.With("broker", f.broker, "brokerGroup", f.after.BrokerGroup)
	switch wire.CodeOf(err) {
	case wire.CodeOK:
	case wire.CodeConflict, wire.CodeExists, wire.CodeNotFound:
		return // another node was first: its snapshot comes
	case wire.CodeInvalid, wire.CodeInUse:
		log.Error("the broker cannot be registered", "err", err)
		n.mu.Lock()
		defer n.mu.Unlock()
		if x := n.mu.nodes[f.broker]; x != nil {
			x.refused = err
		}
		return
	default:
		n.mu.Lock()
		x := n.mu.nodes[f.broker]
		told := x == nil || x.unwritten
		if x != nil {
			x.unwritten = true
		}
		n.mu.Unlock()
		if !told {
			log.Warn("what was found of the broker cannot be written, trying on", "err", err)
		}
		return // the next beat finds it again
	}
	n.mu.Lock()
	if x := n.mu.nodes[f.broker]; x != nil {
		x.unwritten = false
		x.own(f.after.Boot)
	}
	n.mu.Unlock()
	switch {
	case f.after.Away:
		n.counts.away.Add(1)
		log.Warn("a broker is away", "was", "living", "is", "away", "silentFor", silenceMax)
	case f.before != nil && f.before.Boot == f.after.Boot && f.before.Away:
		n.counts.back.Add(1)
		log.Info("a broker is back", "was", "away", "is", "living")
	default:
		n.counts.registrations.Add(1)
		log.Info("a broker registered", "addresses", f.after.Addresses, "boot", f.after.Boot, "version", f.after.Version)
	}
}

// ListNodes implements wire.Registry.
func (n *Node) ListNodes(ctx context.Context, r *wire.ListNodesRequest) (*wire.ListNodesResponse, error) {
	s := n.store.View()
	who, _ := subjectOf(ctx)
	if err := s.MayOperate(who, meta.ReadStore, "", ""); err != nil {
		return nil, err
	}
	response := &wire.ListNodesResponse{Generation: uint64(s.Generation), Version: uint64(s.Version), Database: "ok"}
	if err := n.Health(); err != nil {
		response.Database = messageOf(err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for name, x := range n.mu.nodes {
		if m := n.wireNode(s, name, x); m.Last != nil {
			response.Nodes = append(response.Nodes, m)
		}
	}
	slices.SortFunc(response.Nodes, func(a, b *wire.Node) int {
		if a.Last.Node < b.Last.Node {
			return -1
		}
		return 1
	})
	return response, nil
}
