package registry

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/wire"
)

// Counted is what lies in a part of a journal: how many messages, and when the first and the last of them were stored (unix ns).
type Counted struct {
	Messages    uint64
	First, Last int64
}

// NodeOptions are the options of a Node.
type NodeOptions struct {
	// Store is the metadata. The node does not close it.
	Store meta.Store
	// Self is what this process says of itself in heartbeats: name, boot, all its roles (registry among them), addresses; with the
	// role broker in the same process also what a broker says, so that it is registered as one. Generation and metadata version
	// are filled in: it must be a new one each time. It is asked every 0.5 s, and must not block.
	Self func() *wire.HeartbeatRequest
	// OnSnapshot is told each snapshot, in order, on one goroutine of the node, before clients are: a broker in the same process
	// applies it here. The first one is told before NewNode returns, unless the store has not seen its database yet. When it returns, the snapshot counts as in force here. Nil: nobody.
	OnSnapshot func(*meta.Snapshot)
	// Meet asks the broker at one of these addresses how its copy is, and to keep to a term: before another one is promoted by an
	// operator. Nil: none can be.
	Meet func(ctx context.Context, addresses []string, r *wire.MeetRequest) (*wire.MeetResponse, error)
	// Count asks the broker at one of these addresses what messages lie in [from, to) of its journal. What it has counted when ctx ends it returns
	// with the error. Nil: none can be asked.
	Count func(ctx context.Context, addresses []string, from, to uint64) (Counted, error)
	// ListGroups asks the broker at one of these addresses what its groups have not consumed: before a topic leaves its broker group. Nil: none can.
	ListGroups func(ctx context.Context, addresses []string, r *wire.ListGroupsRequest) (*wire.ListGroupsResponse, error)
	// Now is the wall clock, for dates that are stored. Default: time.Now.
	Now func() time.Time
	// Every is how long to wait where d is usual between two looks or beats. Default: d.
	Every func(d time.Duration) time.Duration
	// Logger. Default: nothing is logged.
	Logger *slog.Logger
}

func (o NodeOptions) withDefaults() NodeOptions {
	if o.OnSnapshot == nil {
		o.OnSnapshot = func(*meta.Snapshot) {}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Every == nil {
		o.Every = func(d time.Duration) time.Duration { return d }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Node is a registry node. It implements wire.Registry, and of wire.Admin what concerns topics; the rest of wire.Admin, which is a
// broker's, it answers with CodeRoleElsewhere.
//
// It owns three goroutines: one takes snapshots from the store, one stores heartbeats and counts silence, one writes who registered,
// is away or is back, so that a slow database holds up none of the others.
type Node struct {
	*Feed
	o      NodeOptions
	store  meta.Store
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	done   sync.WaitGroup

	applied   atomic.Pointer[meta.Snapshot] // in force here
	addresses atomic.Pointer[[]string]      // of registry nodes that live
	judge     chan struct{}                 // somebody may have to be written as registered, away or back

	mu struct {
		sync.Mutex
		nodes    map[string]*node
		groups   map[string]*group      // by broker group
		changing map[wire.Principal]int // changes under way, by whom
		trusted  bool                   // the last call that stored heartbeats did
		beaten   time.Time              // when the last one ended that did
		behind   int                    // rounds in a row in which nodes had newer metadata than the database
		told     chan struct{}          // closed when a heartbeat came that says something new; nil: nobody waits
	}
	counts struct {
		heartbeats, beats, beatsFailed, registrations, away, back, changes, refused, credentials, rows, promotions atomic.Uint64
	}
}

var (
	_ wire.Registry = (*Node)(nil)
	_ wire.Admin    = (*Node)(nil)
)

// NewNode starts a node. Close ends it.
func NewNode(o NodeOptions) (*Node, error) {
	if o.Store == nil || o.Self == nil {
		return nil, wire.Errorf(wire.CodeInvalid, "a registry node needs a store, and what it says of itself")
	}
	n := &Node{o: o.withDefaults(), store: o.Store, judge: make(chan struct{}, 1)}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.mu.nodes, n.mu.groups, n.mu.changing = map[string]*node{}, map[string]*group{}, map[wire.Principal]int{}
	n.addresses.Store(&[]string{})
	n.Feed = NewFeed(FeedOptions{Registry: n.Registry, Sure: n.Sure})
	first := n.store.View()
	n.take(first)
	n.done.Add(3)
	go n.follow(first)
	go n.beats()
	go n.judgement()
	return n, nil
}

// Close ends the node: those who wait are answered CodeStopping, and its goroutines are waited for.
func (n *Node) Close() error {
	n.cancel()
	n.done.Wait()
	return n.Feed.Close()
}

// follow takes each snapshot after the one given.
func (n *Node) follow(s *meta.Snapshot) {
	defer n.done.Done()
	for n.ctx.Err() == nil {
		next, err := n.store.Watch(n.ctx, s)
		if err != nil {
			if n.ctx.Err() == nil {
				n.o.Logger.Warn("the metadata cannot be watched", "err", err)
				n.pause(beatEvery)
			}
			continue
		}
		s = next
		n.take(s)
	}
}

func (n *Node) pause(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-n.ctx.Done():
	}
}

// take makes a snapshot count here: first in this process, then for those who watch.
func (n *Node) take(s *meta.Snapshot) {
	if s.Generation == 0 {
		return // the store has not seen the database yet
	}
	if was := n.applied.Load(); was != nil && was.Generation != s.Generation {
		n.o.Logger.Warn("the metadata has a new generation", "was", was.Generation, "is", s.Generation, "version", s.Version)
		n.mu.Lock()
		for _, x := range n.mu.nodes {
			x.boots = nil
		}
		n.mu.Unlock()
	}
	n.o.OnSnapshot(s)
	n.applied.Store(s)
	n.Feed.Set(s)
	n.hearSelf()
	n.kickJudge()
}

func (n *Node) kickJudge() {
	select {
	case n.judge <- struct{}{}:
	default:
	}
}

// Registry returns the addresses of registry nodes that live, this one among them.
func (n *Node) Registry() []string { return *n.addresses.Load() }

// Brokers returns the addresses of brokers that live.
func (n *Node) Brokers() []string {
	var list []string
	for _, o := range n.store.View().List(meta.KindBroker) {
		if b := o.Spec.(*meta.Broker); !b.Away {
			list = append(list, b.Addresses...)
		}
	}
	return list
}

// Metrics returns counts and gauges.
func (n *Node) Metrics() NodeMetrics {
	m := NodeMetrics{
		Feed: n.FeedMetrics(), Database: n.Health() == nil,
		Heartbeats: n.counts.heartbeats.Load(), Beats: n.counts.beats.Load(), BeatsFailed: n.counts.beatsFailed.Load(),
		Registrations: n.counts.registrations.Load(), NodesAway: n.counts.away.Load(), NodesBack: n.counts.back.Load(),
		Changes: n.counts.changes.Load(), ChangesRefused: n.counts.refused.Load(), Credentials: n.counts.credentials.Load(), Rows: n.counts.rows.Load(), Promotions: n.counts.promotions.Load(),
	}
	for o := range n.store.View().All(meta.KindBroker) {
		if o.Spec.(*meta.Broker).Away {
			m.BrokersAway++
		} else {
			m.BrokersLiving++
		}
	}
	return m
}

func (n *Node) brokers(what string) error {
	e := wire.Errorf(wire.CodeRoleElsewhere, "%s is answered by the role broker", what)
	e.Nodes = n.Brokers()
	return e
}

// DescribeTopic implements wire.Admin; it and all below are answered with CodeRoleElsewhere.
func (n *Node) DescribeTopic(context.Context, *wire.DescribeTopicRequest) (*wire.DescribeTopicResponse, error) {
	return nil, n.brokers("describe-topic")
}

// GroupLag implements wire.Admin.
func (n *Node) GroupLag(context.Context, *wire.GroupLagRequest) (*wire.GroupLagResponse, error) {
	return nil, n.brokers("group-lag")
}

// ListGroups implements wire.Admin.
func (n *Node) ListGroups(context.Context, *wire.ListGroupsRequest) (*wire.ListGroupsResponse, error) {
	return nil, n.brokers("list-groups")
}

// SeekGroup implements wire.Admin.
func (n *Node) SeekGroup(context.Context, *wire.SeekGroupRequest) (*wire.SeekGroupResponse, error) {
	return nil, n.brokers("seek-group")
}

// AlterGroup implements wire.Admin.
func (n *Node) AlterGroup(context.Context, *wire.AlterGroupRequest) (*wire.AlterGroupResponse, error) {
	return nil, n.brokers("alter-group")
}

// RemoveGroup implements wire.Admin.
func (n *Node) RemoveGroup(context.Context, *wire.RemoveGroupRequest) (*wire.RemoveGroupResponse, error) {
	return nil, n.brokers("remove-group")
}

// Peek implements wire.Admin.
func (n *Node) Peek(context.Context, *wire.PeekRequest) (*wire.PeekResponse, error) {
	return nil, n.brokers("peek")
}

// StoreUsage implements wire.Admin.
func (n *Node) StoreUsage(context.Context, *wire.StoreUsageRequest) (*wire.StoreUsageResponse, error) {
	return nil, n.brokers("store-usage")
}
