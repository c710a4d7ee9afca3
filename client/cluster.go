package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jmqio/jmq/wire"
	"google.golang.org/protobuf/proto"
)

const sdkName = "jmq-go/0.1"

const (
	reconnectMin = 20 * time.Millisecond
	reconnectMax = 2 * time.Second
	refusedMin   = time.Second // when the credentials are not taken
	refusedMax   = 15 * time.Second
	callTimeout  = 5 * time.Second // of one attempt of a call that is no send, fetch or ack
	idleTime     = time.Minute     // after which connections that nobody needs any more are ended
	sweepEvery   = 5 * time.Second
	elsewhereMax = 3 // times that a request is passed on
	// startPatience is how long Dial waits for an address before it tries what a route cache has too.
	startPatience = time.Second
)

// Cluster is jmq at a distance: it implements wire.Broker, wire.Admin and wire.Registry over the client's connections. It does
// not repeat what failed: that is the business of producers and consumers, who know what may be repeated.
//
// It has a pool of connections to the addresses given to Dial (home), one for the master of each broker group that a route names, one for
// each slave that is asked while its master is away, and one for each other node that was named. As wire.Broker it is the broker at home; Group is another one. As wire.Admin it asks all
// broker groups of the topic and puts their answers together. What a role answers that the node at home does not run is asked
// of the nodes that it names.
//
// The Cluster owns the goroutines of its pools; close waits for them.
type Cluster struct {
	o        *options
	clientID string
	buffers  wire.Buffers // of all connections

	connected func(*link)                                              // is told of each connection that came up; must not block; nil: nobody
	routes    func(ctx context.Context, topic string) ([]*pool, error) // where a topic is

	home   *pool
	ctx    context.Context // ends with the cluster
	cancel context.CancelFunc
	ran    sync.WaitGroup

	mu struct {
		sync.Mutex
		up       chan struct{}    // closed when a connection comes up, ends, or cannot be made; renewed
		groups   map[string]*pool // of broker groups, by name
		slaves   map[slaveKey]*pool
		nodes    map[string]*pool // of other nodes, by address
		registry []string         // addresses of registry nodes, as they were told last
		swept    time.Time
	}
}

type slaveKey struct{ brokerGroup, broker string }

var (
	_ wire.Broker = (*Cluster)(nil)
	_ wire.Admin  = (*Cluster)(nil)
)

func newCluster(o *options, addrs []string, clientID string) *Cluster {
	c := &Cluster{o: o, clientID: clientID}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.mu.up = make(chan struct{})
	c.mu.groups, c.mu.nodes, c.mu.slaves = map[string]*pool{}, map[string]*pool{}, map[slaveKey]*pool{}
	c.home = c.newPool("", addrs, o.conns)
	return c
}

// start connects, and returns when one connection is good. Several addresses are tried at the same time. kept is what a route cache
// has, nil if nothing: its nodes are tried when no address answers, or none does soon.
func (c *Cluster) start(ctx context.Context, kept *wire.WatchRoutesResponse) error {
	first := make(chan error, len(c.home.slots))
	tries := c.home.wake(1, first)
	c.home.mu.Lock()
	tries += c.home.startSlots(min(len(c.home.slots), len(c.home.mu.addrs)), first)
	c.home.mu.Unlock()
	var late <-chan time.Time
	if kept != nil {
		t := time.NewTimer(startPatience)
		defer t.Stop()
		late = t.C
	}
	var more chan error // as first, of the nodes in kept
	spare := func() {   // tries them, once
		if kept == nil {
			return
		}
		c.o.logger.Warn("no address answers, trying the nodes of the route cache")
		pools := c.spare(kept)
		kept, more = nil, make(chan error, len(pools))
		for _, p := range pools {
			tries += p.wake(1, more)
		}
	}
	var errs []error
	for tries > 0 {
		var err error
		select {
		case err = <-first:
		case err = <-more:
		case <-late:
			spare()
			continue
		case <-ctx.Done():
			errs = append(errs, ctx.Err())
			return newError(opDial, "", -1, "", errors.Join(errs...))
		}
		if err == nil {
			return nil
		}
		if silent(err) {
			errs = append(errs, err)
		} else { // what a node refuses no cache grants, and it is what Dial says
			errs, kept = slices.Insert(errs, 0, err), nil
		}
		if tries--; tries == 0 {
			spare()
		}
	}
	if more != nil {
		return fmt.Errorf("%w (nor does a node of the route cache answer)", errs[0])
	}
	return errs[0]
}

// close ends all connections and waits for their goroutines. Requests without an answer are answered before it returns.
func (c *Cluster) close() {
	c.cancel()
	for _, p := range c.pools() {
		p.rest(wire.Errorf(wire.CodeClosed, "the client was closed"))
	}
	c.ran.Wait()
}

// pools returns all: home, other nodes, broker groups, slaves.
func (c *Cluster) pools() []*pool {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := []*pool{c.home}
	for _, addr := range c.mu.registry {
		if p := c.mu.nodes[addr]; p != nil {
			all = append(all, p)
		}
	}
	for addr, p := range c.mu.nodes {
		if !slices.Contains(c.mu.registry, addr) {
			all = append(all, p)
		}
	}
	for _, p := range c.mu.groups {
		all = append(all, p)
	}
	for _, p := range c.mu.slaves {
		all = append(all, p)
	}
	return all
}

// watchLinks returns what is closed when a connection comes up, ends or cannot be made.
func (c *Cluster) watchLinks() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.up
}

func (c *Cluster) changed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.mu.up)
	c.mu.up = make(chan struct{})
}

// registryAddrs returns where registry nodes are.
func (c *Cluster) registryAddrs() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.registry
}

// addRegistry notes where registry nodes are.
func (c *Cluster) addRegistry(addrs []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(addrs) == 0 || slices.Equal(c.mu.registry, addrs) {
		return
	}
	c.mu.registry = slices.Clone(addrs)
}

// group returns the pool of a broker group whose master is at addrs; none: it is where that was told. alone: it has no other broker,
// so it may be the one at home.
func (c *Cluster) group(name string, addrs []string, alone bool, told *pool) *pool {
	if len(addrs) == 0 {
		return told
	}
	if alone && c.home.within(addrs) {
		return c.home
	}
	c.mu.Lock()
	p := c.mu.groups[name]
	if p == nil {
		p = c.newPool(name, addrs, c.o.conns)
		p.mu.told = addrs
		c.mu.groups[name] = p
	}
	c.mu.Unlock()
	p.tell(addrs)
	return p
}

// slave returns the pool of a broker of the group that may serve consumers while the master is away.
func (c *Cluster) slave(group *pool, broker string, addrs []string) *pool {
	c.mu.Lock()
	key := slaveKey{group.name, broker}
	p := c.mu.slaves[key]
	if p == nil {
		p = c.newPool(group.name, addrs, 1)
		p.of, p.mu.told = group, addrs
		c.mu.slaves[key] = p
	}
	c.mu.Unlock()
	p.tell(addrs)
	return p
}

// routed returns the pool of a broker group of a route, and whether its master is away.
func (c *Cluster) routed(g *wire.BrokerGroupRoute, from *pool) (p *pool, away bool) {
	master := slices.IndexFunc(g.Brokers, func(b *wire.BrokerRoute) bool { return !b.Slave })
	if master < 0 { // it has none now: the last one is waited for
		if len(g.Brokers) == 0 {
			return c.group(g.BrokerGroup, nil, true, from), false
		}
		master, away = 0, true
		c.mu.Lock()
		p = c.mu.groups[g.BrokerGroup]
		c.mu.Unlock()
	} else {
		away = g.Brokers[master].Away
	}
	if p == nil {
		p = c.group(g.BrokerGroup, g.Brokers[master].Addresses, len(g.Brokers) == 1, from)
	}
	if p.name == "" { // at home, or who told of it
		return p, away
	}
	var slaves []*pool
	for _, b := range g.Brokers {
		if b.Slave && len(b.Addresses) > 0 {
			slaves = append(slaves, c.slave(p, b.Broker, b.Addresses))
		}
	}
	p.setSlaves(slaves)
	p.setAway(away)
	return p, away
}

// within says that addrs are all those of p.
func (p *pool) within(addrs []string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !slices.ContainsFunc(p.mu.addrs, func(a string) bool { return !slices.Contains(addrs, a) })
}

// node returns the pool of the node at addr.
func (c *Cluster) node(addr string) *pool {
	if c.home.within([]string{addr}) {
		return c.home
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.mu.nodes[addr]
	if p == nil {
		p = c.newPool("", []string{addr}, 1)
		c.mu.nodes[addr] = p
	}
	return p
}

// wakeAll connects to every node that is known. It returns whether there are any but home.
func (c *Cluster) wakeAll() bool {
	for _, addr := range c.registryAddrs() {
		c.node(addr)
	}
	all := c.pools()
	for _, p := range all {
		p.any()
	}
	return len(all) > 1
}

// wakeRegistry connects to the registry nodes that are known.
func (c *Cluster) wakeRegistry() {
	for _, addr := range c.registryAddrs() {
		c.node(addr).any()
	}
}

// source returns a connection to a node that may hold metadata, and waits for one. none: every node that can be asked says that
// it holds none.
func (c *Cluster) source(ctx context.Context) (l *link, none bool, err error) {
	var patience <-chan time.Time
	for {
		up := c.watchLinks()
		l, none := c.candidate(time.Now())
		if l != nil {
			return l, false, nil
		}
		others := c.wakeAll()
		if none && !others {
			return nil, true, nil
		}
		if none && patience == nil {
			t := time.NewTimer(time.Second)
			defer t.Stop()
			patience = t.C
		}
		if !none {
			if err := c.home.none(); codeOf(err) == wire.CodeUnauthenticated {
				return nil, false, err
			}
		}
		select {
		case <-up:
		case <-patience:
			return nil, true, nil
		case <-ctx.Done():
			return nil, false, c.home.none()
		case <-c.ctx.Done():
			return nil, false, c.home.none()
		}
	}
}

// candidate is source without waiting; none: there are nodes, and none of them holds metadata.
func (c *Cluster) candidate(now time.Time) (l *link, none bool) {
	var spare *link
	for _, p := range c.pools() {
		l := p.ready()
		switch {
		case l == nil:
		case l.noMetadata.Load():
			none = true
		case now.UnixNano() < l.avoid.Load():
			spare = l
		default:
			return l, false
		}
	}
	return spare, none && spare == nil
}

// sweep puts pools to sleep that were not used for idleTime. used are those that routes name, or that metadata comes from.
func (c *Cluster) sweep(now time.Time, used map[*pool]bool) {
	for _, p := range c.pools()[1:] {
		l := p.ready()
		switch {
		case used[p] || p.users.Load() > 0 || l != nil && l.Stats().Pending > 0:
			p.idle = time.Time{}
		case p.wanted.Load() == 0:
		case p.idle.IsZero():
			p.idle = now
		case now.Sub(p.idle) >= idleTime:
			p.rest(wire.Errorf(wire.CodeDisconnected, "not used any more"))
			p.idle = time.Time{}
		}
	}
}

// pause waits for d; false when ctx or the cluster ended.
func (c *Cluster) pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
	case <-c.ctx.Done():
	}
	return false
}

// at is the pool to begin with for what any node may answer, or pass on.
func (c *Cluster) at() *pool {
	if c.home.any() != nil {
		return c.home
	}
	for _, p := range c.pools() {
		if p.ready() != nil {
			return p
		}
	}
	c.wakeAll()
	return c.home
}

// follow tries a node, and those that it names when it does not run the role.
func (c *Cluster) follow(try func(p *pool) error) error {
	err := try(c.at())
	for range elsewhereMax {
		e, ok := errors.AsType[*wire.CodeError](err)
		if !ok || e.Code != wire.CodeRoleElsewhere || len(e.Nodes) == 0 {
			return err
		}
		for _, addr := range e.Nodes {
			// It certainly was not carried out by the one before.
			err = try(c.node(addr))
			if code := codeOf(err); code != wire.CodeDisconnected && code != wire.CodeRoleElsewhere { // it may have given up the role since
				break
			}
		}
	}
	return err
}

// call sends a cold request to a node that answers it, and repeats it as pool.call does.
func (c *Cluster) call(ctx context.Context, op, topic string, again repeat, command wire.Command, request, response proto.Message) error {
	first := true
	for {
		err := c.follow(func(p *pool) error {
			try := ctx
			if !first { // one of several
				var cancel context.CancelFunc
				try, cancel = context.WithTimeout(ctx, callTimeout)
				defer cancel()
			}
			first = false
			return p.call(try, op, topic, again, command, request, response)
		})
		if err == nil || codeOf(err) != wire.CodeDisconnected || !c.pause(ctx, retryMax) {
			return err
		}
	}
}

// one is call once.
func (c *Cluster) one(ctx context.Context, command wire.Command, request, response proto.Message) error {
	return c.follow(func(p *pool) error { return p.one(ctx, command, request, response) })
}

// Produce implements wire.Broker, and so do the others: by the broker at home.
func (c *Cluster) Produce(ctx context.Context, r *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) {
	c.home.Produce(ctx, r, done)
}

// Fetch implements wire.Broker. A lease that comes after ctx has ended is given back.
func (c *Cluster) Fetch(ctx context.Context, r *wire.FetchRequest, done func(*wire.FetchResponse, error)) {
	c.home.Fetch(ctx, r, done)
}

// Ack implements wire.Broker.
func (c *Cluster) Ack(ctx context.Context, r *wire.AckRequest, done func(*wire.AckResponse, error)) {
	c.home.Ack(ctx, r, done)
}

// Subscribe implements wire.Broker.
func (c *Cluster) Subscribe(ctx context.Context, r *wire.SubscribeRequest) (*wire.SubscribeResponse, error) {
	return c.home.Subscribe(ctx, r)
}

// Route implements wire.Broker.
func (c *Cluster) Route(ctx context.Context, r *wire.RouteRequest) (*wire.RouteResponse, error) {
	return called(new(wire.RouteResponse), func(out *wire.RouteResponse) error { return c.one(ctx, wire.CommandRoute, r, out) })
}

// Extend implements wire.Broker.
func (c *Cluster) Extend(ctx context.Context, r *wire.ExtendRequest) (*wire.ExtendResponse, error) {
	return c.home.Extend(ctx, r)
}

// Group returns the broker group of that name. ok is false when no route, and no list of nodes, has named it yet.
func (c *Cluster) Group(name string) (b RemoteBroker, ok bool) {
	c.mu.Lock()
	p := c.mu.groups[name]
	c.mu.Unlock()
	if p != nil {
		return p, true
	}
	if l := c.home.any(); l != nil && l.brokerGroup == name {
		return c.home, true
	}
	return nil, false
}

// Groups returns the names of all broker groups, in order.
func (c *Cluster) Groups(ctx context.Context) ([]string, error) {
	all, err := c.brokerGroups(ctx)
	var names []string
	for _, p := range all {
		names = append(names, p.group())
	}
	slices.Sort(names)
	return names, err
}

// group is the broker group's name; at home that is known once there is a connection.
func (p *pool) group() string {
	if p.name != "" {
		return p.name
	}
	if l := p.any(); l != nil {
		return l.brokerGroup
	}
	return ""
}

// brokerGroups returns the pools of all broker groups: of a broker without a registry, home.
func (c *Cluster) brokerGroups(ctx context.Context) ([]*pool, error) {
	var out wire.ListNodesResponse
	err := c.one(ctx, wire.CommandListNodes, &wire.ListNodesRequest{}, &out)
	switch codeOf(err) {
	case wire.CodeOK:
	case wire.CodeRoleElsewhere, wire.CodeUnknownCommand: // there is no registry
		return []*pool{c.home}, nil
	default: // what is known
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.mu.groups) == 0 {
			return nil, err
		}
		var all []*pool
		for _, p := range c.mu.groups {
			all = append(all, p)
		}
		return all, nil
	}
	masters := map[string]*wire.Node{}
	brokers := map[string]int{}
	for _, n := range out.Nodes {
		// A broker that is away is not waited for.
		if b := n.GetLast(); b.GetBrokerGroup() != "" && len(b.GetAddresses()) > 0 {
			brokers[b.BrokerGroup]++
			if m := masters[b.BrokerGroup]; !n.Away && (m == nil || leads(n) > leads(m)) {
				masters[b.BrokerGroup] = n
			}
		}
	}
	var all []*pool
	for _, name := range slices.Sorted(maps.Keys(masters)) {
		c.mu.Lock()
		p := c.mu.groups[name]
		c.mu.Unlock()
		if p == nil || leads(masters[name]) > 0 {
			p = c.group(name, masters[name].Last.Addresses, brokers[name] == 1, c.home)
		}
		if !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	if len(all) == 0 {
		return nil, wire.Errorf(wire.CodeDisconnected, "no broker is there")
	}
	return all, nil
}

// leads says how sure it is that a node is its broker group's master. One that says nothing of a replica has no other beside it.
func leads(n *wire.Node) int {
	switch r := n.GetLast().GetReplica(); {
	case r.GetRole() == "master":
		return 2
	case r == nil:
		return 1
	}
	return 0
}

// located returns the pools of a topic's broker groups; of an empty topic, all.
func (c *Cluster) located(ctx context.Context, topic string) ([]*pool, error) {
	if topic == "" {
		return c.brokerGroups(ctx)
	}
	return c.routes(ctx, topic)
}

// asker asks one broker group.
type asker[Q, R any] func(p *pool, ctx context.Context, r *Q) (*R, error)

// repeating is pool.call as an asker.
func repeating[Q, R any, PQ interface {
	*Q
	proto.Message
}, PR interface {
	*R
	proto.Message
}](op, topic string, again repeat, command wire.Command) asker[Q, R] {
	return func(p *pool, ctx context.Context, r *Q) (*R, error) {
		out := new(R)
		if err := p.call(ctx, op, topic, again, command, PQ(r), PR(out)); err != nil {
			return nil, err
		}
		return out, nil
	}
}

// partTimeout bounds the wait for one of several broker groups.
const partTimeout = callTimeout

// each calls ask for every broker group of a topic, all at the same time, and add with the answers, one after the other. What
// missing says of a broker group is an answer if another one has one: a group that is not there yet. With an error,
// what was added is what the others said.
func each[R any](ctx context.Context, c *Cluster, topic string, ask func(ctx context.Context, p *pool) (R, error), add func(brokerGroup string, r R)) error {
	pools, err := c.located(ctx, topic)
	if err != nil {
		return err
	}
	if len(pools) == 1 {
		r, err := ask(ctx, pools[0])
		if err == nil {
			add(pools[0].group(), r)
		}
		return err
	}
	answers, errs := make([]R, len(pools)), make([]error, len(pools))
	var asking sync.WaitGroup
	for i, p := range pools {
		asking.Go(func() {
			part, cancel := context.WithTimeout(ctx, partTimeout)
			defer cancel()
			answers[i], errs[i] = ask(part, p)
		})
	}
	asking.Wait()
	var missing, failed []error
	good := 0
	for i, p := range pools {
		switch codeOf(errs[i]) {
		case wire.CodeOK:
			good++
			add(p.group(), answers[i])
		case wire.CodeTopicNotFound, wire.CodeGroupNotFound:
			missing = append(missing, errs[i])
		default:
			failed = append(failed, errs[i])
		}
	}
	if good == 0 && len(failed) == 0 {
		return missing[0]
	}
	return errors.Join(failed...)
}

// CreateTopic implements wire.Admin.
func (c *Cluster) CreateTopic(ctx context.Context, r *wire.CreateTopicRequest) (*wire.CreateTopicResponse, error) {
	return called(new(wire.CreateTopicResponse), func(out *wire.CreateTopicResponse) error { return c.one(ctx, wire.CommandCreateTopic, r, out) })
}

// AlterTopic implements wire.Admin.
func (c *Cluster) AlterTopic(ctx context.Context, r *wire.AlterTopicRequest) (*wire.AlterTopicResponse, error) {
	return called(new(wire.AlterTopicResponse), func(out *wire.AlterTopicResponse) error { return c.one(ctx, wire.CommandAlterTopic, r, out) })
}

// DeleteTopic implements wire.Admin.
func (c *Cluster) DeleteTopic(ctx context.Context, r *wire.DeleteTopicRequest) (*wire.DeleteTopicResponse, error) {
	return called(new(wire.DeleteTopicResponse), func(out *wire.DeleteTopicResponse) error { return c.one(ctx, wire.CommandDeleteTopic, r, out) })
}

// ListTopics implements wire.Admin.
func (c *Cluster) ListTopics(ctx context.Context, r *wire.ListTopicsRequest) (*wire.ListTopicsResponse, error) {
	return called(new(wire.ListTopicsResponse), func(out *wire.ListTopicsResponse) error { return c.one(ctx, wire.CommandListTopics, r, out) })
}

// DescribeTopic implements wire.Admin, by all broker groups of the topic. With an error it still returns what others answered; so
// do GroupLag, ListGroups and SeekGroup.
func (c *Cluster) DescribeTopic(ctx context.Context, r *wire.DescribeTopicRequest) (*wire.DescribeTopicResponse, error) {
	return c.describeTopic(ctx, r, (*pool).DescribeTopic)
}

func (c *Cluster) describeTopic(ctx context.Context, r *wire.DescribeTopicRequest, ask asker[wire.DescribeTopicRequest, wire.DescribeTopicResponse]) (*wire.DescribeTopicResponse, error) {
	var all *wire.DescribeTopicResponse
	err := each(ctx, c, r.Topic, func(ctx context.Context, p *pool) (*wire.DescribeTopicResponse, error) { return ask(p, ctx, r) },
		func(name string, part *wire.DescribeTopicResponse) {
			for _, p := range part.Partitions {
				p.BrokerGroup = cmp.Or(p.BrokerGroup, name)
			}
			if all == nil {
				all = part
				slices.Sort(all.Groups)
				return
			}
			all.Partitions = append(all.Partitions, part.Partitions...)
			for _, g := range part.Groups {
				if i, ok := slices.BinarySearch(all.Groups, g); !ok {
					all.Groups = slices.Insert(all.Groups, i, g)
				}
			}
		})
	if all != nil {
		slices.SortStableFunc(all.Partitions, func(a, b *wire.TopicPartition) int {
			return byLocation(a.BrokerGroup, a.Partition, b.BrokerGroup, b.Partition)
		})
	}
	return all, err
}

// GroupLag implements wire.Admin.
func (c *Cluster) GroupLag(ctx context.Context, r *wire.GroupLagRequest) (*wire.GroupLagResponse, error) {
	return c.groupLag(ctx, r, (*pool).GroupLag)
}

func (c *Cluster) groupLag(ctx context.Context, r *wire.GroupLagRequest, ask asker[wire.GroupLagRequest, wire.GroupLagResponse]) (*wire.GroupLagResponse, error) {
	all := new(wire.GroupLagResponse)
	err := each(ctx, c, r.Topic, func(ctx context.Context, p *pool) (*wire.GroupLagResponse, error) { return ask(p, ctx, r) },
		func(name string, part *wire.GroupLagResponse) {
			for _, p := range part.Partitions {
				p.BrokerGroup = cmp.Or(p.BrokerGroup, name)
			}
			all.Partitions = append(all.Partitions, part.Partitions...)
		})
	slices.SortStableFunc(all.Partitions, func(a, b *wire.GroupPartition) int {
		if a.Group != b.Group {
			return cmp.Compare(a.Group, b.Group)
		}
		return byLocation(a.BrokerGroup, a.Partition, b.BrokerGroup, b.Partition)
	})
	return all, err
}

// ListGroups implements wire.Admin: one summary for each broker group.
func (c *Cluster) ListGroups(ctx context.Context, r *wire.ListGroupsRequest) (*wire.ListGroupsResponse, error) {
	return c.listGroups(ctx, r, (*pool).ListGroups)
}

func (c *Cluster) listGroups(ctx context.Context, r *wire.ListGroupsRequest, ask asker[wire.ListGroupsRequest, wire.ListGroupsResponse]) (*wire.ListGroupsResponse, error) {
	all := new(wire.ListGroupsResponse)
	err := each(ctx, c, r.Topic, func(ctx context.Context, p *pool) (*wire.ListGroupsResponse, error) { return ask(p, ctx, r) },
		func(name string, part *wire.ListGroupsResponse) {
			for _, g := range part.Groups {
				g.BrokerGroup = cmp.Or(g.BrokerGroup, name)
			}
			all.Groups = append(all.Groups, part.Groups...)
		})
	slices.SortStableFunc(all.Groups, func(a, b *wire.GroupSummary) int {
		if a.Topic != b.Topic {
			return cmp.Compare(a.Topic, b.Topic)
		}
		if a.Group != b.Group {
			return cmp.Compare(a.Group, b.Group)
		}
		return cmp.Compare(a.BrokerGroup, b.BrokerGroup)
	})
	return all, err
}

// SeekGroup implements wire.Admin.
func (c *Cluster) SeekGroup(ctx context.Context, r *wire.SeekGroupRequest) (*wire.SeekGroupResponse, error) {
	return c.seekGroup(ctx, r, "", (*pool).SeekGroup)
}

// seekGroup seeks at one broker group, or with brokerGroup empty at all.
func (c *Cluster) seekGroup(ctx context.Context, r *wire.SeekGroupRequest, brokerGroup string, ask asker[wire.SeekGroupRequest, wire.SeekGroupResponse]) (*wire.SeekGroupResponse, error) {
	all := new(wire.SeekGroupResponse)
	err := each(ctx, c, r.Topic, func(ctx context.Context, p *pool) (*wire.SeekGroupResponse, error) {
		if brokerGroup != "" && p.group() != brokerGroup {
			return nil, wire.Errorf(wire.CodeGroupNotFound, "broker group %q has no partition of %q", brokerGroup, r.Topic)
		}
		return ask(p, ctx, r)
	}, func(name string, part *wire.SeekGroupResponse) {
		for _, p := range part.Partitions {
			p.BrokerGroup = cmp.Or(p.BrokerGroup, name)
		}
		all.Partitions = append(all.Partitions, part.Partitions...)
	})
	slices.SortStableFunc(all.Partitions, func(a, b *wire.SeekPartition) int {
		return byLocation(a.BrokerGroup, a.Partition, b.BrokerGroup, b.Partition)
	})
	return all, err
}

// AlterGroup implements wire.Admin.
func (c *Cluster) AlterGroup(ctx context.Context, r *wire.AlterGroupRequest) (*wire.AlterGroupResponse, error) {
	return c.alterGroup(ctx, r, (*pool).AlterGroup)
}

func (c *Cluster) alterGroup(ctx context.Context, r *wire.AlterGroupRequest, ask asker[wire.AlterGroupRequest, wire.AlterGroupResponse]) (*wire.AlterGroupResponse, error) {
	all := new(wire.AlterGroupResponse)
	err := each(ctx, c, r.Topic, func(ctx context.Context, p *pool) (*wire.AlterGroupResponse, error) { return ask(p, ctx, r) },
		func(_ string, part *wire.AlterGroupResponse) { all = part })
	return all, err
}

// RemoveGroup implements wire.Admin.
func (c *Cluster) RemoveGroup(ctx context.Context, r *wire.RemoveGroupRequest) (*wire.RemoveGroupResponse, error) {
	return c.removeGroup(ctx, r, (*pool).RemoveGroup)
}

func (c *Cluster) removeGroup(ctx context.Context, r *wire.RemoveGroupRequest, ask asker[wire.RemoveGroupRequest, wire.RemoveGroupResponse]) (*wire.RemoveGroupResponse, error) {
	all := new(wire.RemoveGroupResponse)
	err := each(ctx, c, r.Topic, func(ctx context.Context, p *pool) (*wire.RemoveGroupResponse, error) { return ask(p, ctx, r) },
		func(_ string, part *wire.RemoveGroupResponse) { all = part })
	return all, err
}

// Peek implements wire.Admin, by the first broker group of the topic; see Group.
func (c *Cluster) Peek(ctx context.Context, r *wire.PeekRequest) (*wire.PeekResponse, error) {
	p, err := c.locatedAt(ctx, r.Topic, "")
	if err != nil {
		return nil, err
	}
	return called(new(wire.PeekResponse), func(out *wire.PeekResponse) error { return p.one(ctx, wire.CommandPeek, r, out) })
}

// locatedAt is one of a topic's broker groups; empty: the first.
func (c *Cluster) locatedAt(ctx context.Context, topic, brokerGroup string) (*pool, error) {
	pools, err := c.located(ctx, topic)
	if err != nil {
		return nil, err
	}
	for _, p := range pools {
		if brokerGroup == "" || p.group() == brokerGroup {
			return p, nil
		}
	}
	return nil, wire.Errorf(wire.CodePartitionNotFound, "broker group %q has no partition of %q", brokerGroup, topic)
}

// StoreUsage implements wire.Admin, by one broker: that at home, or one that it names; see Group.
func (c *Cluster) StoreUsage(ctx context.Context, r *wire.StoreUsageRequest) (*wire.StoreUsageResponse, error) {
	return called(new(wire.StoreUsageResponse), func(out *wire.StoreUsageResponse) error { return c.one(ctx, wire.CommandStoreUsage, r, out) })
}

func byLocation(aGroup string, a uint32, bGroup string, b uint32) int {
	if aGroup != bGroup {
		return cmp.Compare(aGroup, bGroup)
	}
	return int(a) - int(b)
}
