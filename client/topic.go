package client

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmqio/jmq/wire"
	"google.golang.org/protobuf/proto"
)

// topic is what the client knows of one topic: its route, and a lane for each partition. All producers of the client
// share it, so that one order key has one lane.
type topic struct {
	c        *Client
	name     string
	route    atomic.Pointer[route]
	checked  atomic.Int64  // when the route was asked for, unix time in nanoseconds; routeWatched: metadata sees to it
	turn     atomic.Uint32 // round robin
	checking atomic.Bool   // refresh is under way
	free     lane          // of merged sends without order key
	load     chan struct{} // one element: who holds it asks for the route
	watch    watch

	mu struct {
		sync.Mutex
		lanes    []*lane // in order of broker group and partition; those that no route has any more stay
		breakers map[string]*breaker
	}
}

// routeWatched is a time that is not old for long.
const routeWatched = math.MaxInt64 / 2

// route is a route as it was answered; immutable.
type route struct {
	version    uint64        // at the one broker that it names, and so is topicID; 0: there may be several
	topicID    uint64        //
	partitions []*lane       // in order of broker group and partition
	keyed      []*lane       // on which order keys fall: those that take messages, also while their broker is away
	active     []*lane       // for other messages, in turn
	pools      []*pool       // of active
	groups     []*routeGroup // where other messages may go, those of active first
	turns      []uint8       // whose turn it is, by weights: places in groups; nil: active has the order
	watched    bool          // it comes from metadata: a broker may learn later of what it says
	err        error         // not nil: nothing may be sent
	overrides  *overrides
}

// routeGroup is a broker group in a route.
type routeGroup struct {
	pool   *pool
	lanes  []*lane
	tier   int // 0: of active; 1: there; 2: away
	weight int
	turn   atomic.Uint32
}

// next is where the n-th send to any partition goes.
func (r *route) next(n uint32) *lane {
	if r.turns == nil {
		return r.active[n%uint32(len(r.active))]
	}
	return r.groups[r.turns[n%uint32(len(r.turns))]].next()
}

// has says whether a lane is of the broker group, which it is too when a newer route has given it another pool since.
func (g *routeGroup) has(l *lane) bool { return g.pool == l.pool.Load() || slices.Contains(g.lanes, l) }

func (g *routeGroup) next() *lane { return g.lanes[g.turn.Add(1)%uint32(len(g.lanes))] }

// byWeight gives each of the groups as many of the turns as its weight says, spread evenly; nil: they have none, or are too many.
func byWeight(groups []*routeGroup) []uint8 {
	sum, divisor := 0, 0
	for _, g := range groups {
		sum += g.weight
		for a, b := divisor, g.weight; ; a, b = b, a%b {
			if b == 0 {
				divisor = a
				break
			}
		}
	}
	if sum == 0 || len(groups) > math.MaxUint8 || sum/divisor > weightTurnsMax {
		return nil
	}
	turns := make([]uint8, sum/divisor)
	due := make([]int, len(groups))
	for i := range turns {
		most := 0
		for k, g := range groups {
			if due[k] += g.weight; due[k] > due[most] {
				most = k
			}
		}
		due[most] -= sum
		turns[i] = uint8(most)
	}
	return turns
}

const weightTurnsMax = 100_000 // a registry's are 100 together

// find returns a partition; brokerGroup empty: of the first broker group that has it.
func (r *route) find(brokerGroup string, partition uint16) *lane {
	if n := int(partition); n < len(r.partitions) && r.partitions[n].is(brokerGroup, partition) {
		return r.partitions[n]
	}
	if i := slices.IndexFunc(r.partitions, func(l *lane) bool { return l.is(brokerGroup, partition) }); i >= 0 {
		return r.partitions[i]
	}
	return nil
}

func (l *lane) is(brokerGroup string, partition uint16) bool {
	return l.partition == uint32(partition) && (brokerGroup == "" || l.brokerGroup == brokerGroup)
}

// overrides are what a registry says of producers' options.
type overrides struct {
	overriding
	options sync.Map // *producerOptions, as given -> as they are in force
}

type overriding struct {
	timeout time.Duration // 0: as the options say
	retries int           // -1: as the options say
	moves   bool          // order keys move; false: as the options say
}

func overridesOf(s *wire.ProducerSettings) overriding {
	o := overriding{timeout: time.Duration(s.GetTimeoutMs()) * time.Millisecond, retries: -1, moves: s.GetOrderKeyMove()}
	if s != nil && s.Retries != nil {
		o.retries = int(min(*s.Retries, math.MaxInt32))
	}
	return o
}

// options returns o as it is in force.
func (r *route) options(o *producerOptions) *producerOptions {
	if r.overrides == nil {
		return o
	}
	if n, ok := r.overrides.options.Load(o); ok {
		return n.(*producerOptions)
	}
	n := new(*o)
	n.timeout = cmp.Or(r.overrides.timeout, o.timeout)
	if r.overrides.retries >= 0 {
		n.retries = r.overrides.retries
	}
	n.moveKeys = o.moveKeys || r.overrides.moves
	kept, _ := r.overrides.options.LoadOrStore(o, n) // what has the same options may go in one batch
	return kept.(*producerOptions)
}

// States of a partition in a route.
const (
	partitionActive = 0
	partitionGone   = 3
	partitionAway   = 4 // active, but its broker is away
)

func (c *Client) topic(name string) *topic {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.mu.topics[name]
	if t == nil {
		t = &topic{c: c, name: name, load: make(chan struct{}, 1)}
		t.load <- struct{}{}
		t.free.topic = t
		t.watch = watch{watchKey: watchKey{topic: name}, take: t.take}
		c.mu.topics[name] = t
	}
	return t
}

// forget makes the next send ask for the route.
func (c *Client) forget(name string) {
	c.mu.Lock()
	t := c.mu.topics[name]
	c.mu.Unlock()
	if t != nil {
		t.route.Store(nil)
	}
}

// routed returns the route, asking for it if it is not known or no newer than old.
func (t *topic) routed(ctx context.Context, old *route) (*route, error) {
	if r := t.route.Load(); r != nil && r != old {
		return r, r.err
	}
	select {
	case <-t.load:
	case <-ctx.Done():
		return nil, newError(opRoute, t.name, -1, "", ctx.Err())
	}
	defer func() { t.load <- struct{}{} }()
	if r := t.route.Load(); r != nil && r != old {
		return r, r.err
	}
	t.checked.Store(time.Now().UnixNano())
	t.c.metadata.add(&t.watch)
	alone, err := t.c.metadata.know(ctx, opRoute, &t.watch)
	if err != nil {
		return nil, err
	}
	if alone {
		return t.ask(ctx)
	}
	r := t.route.Load()
	if r == nil { // forgotten meanwhile
		return nil, newError(opRoute, t.name, -1, "", wire.Errorf(wire.CodeBusy, "the topic is being changed"))
	}
	if r.err == nil {
		t.c.cluster.awaitAny(ctx, r.pools)
	}
	return r, r.err
}

// ask asks the broker at home for the route.
func (t *topic) ask(ctx context.Context) (*route, error) {
	var answer wire.RouteResponse
	if err := t.c.cluster.call(ctx, opRoute, t.name, repeatAlways, wire.CommandRoute, &wire.RouteRequest{Topic: t.name}, &answer); err != nil {
		return nil, err
	}
	r, err := t.read(&answer, t.c.cluster.home, nil)
	if err != nil {
		return nil, newError(opRoute, t.name, -1, "", err)
	}
	r.topicID = answer.TopicId
	t.route.Store(r)
	return r, nil
}

// take takes the view of a node that holds metadata.
func (t *topic) take(v *wire.TopicView, from *pool) []*pool {
	old := t.route.Load()
	r, err := t.read(v.Route, from, v.Producer)
	if err != nil {
		r = &route{err: err}
	}
	switch {
	case v.Code != 0:
		r.err = &wire.CodeError{Code: wire.Code(v.Code), Message: v.Message}
	case v.Producer.GetPaused():
		r.err = wire.Errorf(wire.CodePaused, "sending to %q is paused", t.name)
	}
	if r.err != nil {
		r.err = newError(opRoute, t.name, -1, "", r.err)
	}
	r.watched, r.version = true, 0 // a broker counts its routes by itself
	if o := overridesOf(v.Producer); o != (overriding{retries: -1}) {
		r.overrides = &overrides{overriding: o}
		if old != nil && old.overrides != nil && old.overrides.overriding == o {
			r.overrides = old.overrides
		}
	}
	t.checked.Store(routeWatched)
	t.route.Store(r)
	return r.pools
}

// located are the pools of a route, by broker group, and what else it says of these.
type located struct {
	pools   map[string]*pool
	away    map[string]bool   // the master
	data    map[string]string // centers
	weights map[string]int
}

func (c *Cluster) locate(answer *wire.RouteResponse, from *pool) located {
	l := located{map[string]*pool{}, map[string]bool{}, map[string]string{}, map[string]int{}}
	for _, g := range answer.GetBrokerGroups() {
		l.pools[g.BrokerGroup], l.away[g.BrokerGroup] = c.routed(g, from)
		l.data[g.BrokerGroup] = g.DataCenter
		l.weights[g.BrokerGroup] = int(g.Weight)
	}
	for _, p := range answer.GetPartitions() {
		if l.pools[p.BrokerGroup] == nil {
			l.pools[p.BrokerGroup] = from
		}
	}
	return l
}

// read makes a route of an answer.
func (t *topic) read(answer *wire.RouteResponse, from *pool, settings *wire.ProducerSettings) (*route, error) {
	r := &route{version: answer.GetVersion()}
	at := t.c.cluster.locate(answer, from)
	near := ""
	if wanted := settings.GetNear(); wanted || t.c.o.near && (settings == nil || settings.Near == nil) {
		near = cmp.Or(t.c.o.dataCenter, settings.GetDataCenter())
	}
	parts := slices.DeleteFunc(answer.GetPartitions(), func(p *wire.PartitionRoute) bool { return p.State == partitionGone })
	slices.SortFunc(parts, func(a, b *wire.PartitionRoute) int {
		return byLocation(a.BrokerGroup, a.Partition, b.BrokerGroup, b.Partition)
	})
	for _, p := range parts {
		if p.Partition > math.MaxUint16 {
			return nil, wire.Errorf(wire.CodeMalformed, "partition %d in the route", p.Partition)
		}
	}
	r.partitions = t.lanes(parts)
	var keyed, here, close []*lane
	for i, l := range r.partitions {
		l.pool.Store(at.pools[l.brokerGroup])
		if parts[i].State != partitionActive && parts[i].State != partitionAway {
			continue
		}
		keyed = append(keyed, l)
		if parts[i].State == partitionActive && !at.away[l.brokerGroup] {
			here = append(here, l)
			if near != "" && at.data[l.brokerGroup] == near {
				close = append(close, l)
			}
		}
	}
	if len(keyed) == 0 {
		return nil, wire.Errorf(wire.CodePartitionNotFound, "no partition of %q takes messages", t.name)
	}
	r.keyed, r.active = keyed, keyed
	switch {
	case len(close) > 0:
		r.active = close
	case len(here) > 0:
		r.active = here
	}
	if len(keyed) == len(r.partitions) { // as always: less memory
		r.keyed = r.partitions
		if len(r.active) == len(keyed) {
			r.active = r.partitions
		}
	}
	for _, l := range r.active {
		if p := l.pool.Load(); !slices.Contains(r.pools, p) {
			r.pools = append(r.pools, p)
		}
	}
	r.group(here, at)
	return r, nil
}

// group puts the lanes of order keys, which are all that take messages, into broker groups.
func (r *route) group(here []*lane, at located) {
	if len(at.pools) < 2 { // there is nothing to choose
		return
	}
	places := map[*pool]*routeGroup{}
	for from := 0; from < len(r.keyed); {
		first, p := r.keyed[from], r.keyed[from].pool.Load()
		to := from + 1
		for to < len(r.keyed) && r.keyed[to].pool.Load() == p {
			to++
		}
		if g := places[p]; g != nil { // two names for one broker group
			g.lanes = append(slices.Clip(g.lanes), r.keyed[from:to]...)
		} else {
			places[p] = &routeGroup{pool: p, lanes: r.keyed[from:to:to], tier: 2, weight: at.weights[first.brokerGroup]}
			r.groups = append(r.groups, places[p])
		}
		from = to
	}
	for _, l := range here {
		places[l.pool.Load()].tier = 1
	}
	for _, p := range r.pools {
		places[p].tier = 0
	}
	slices.SortStableFunc(r.groups, func(a, b *routeGroup) int { return a.tier - b.tier })
	r.turns = byWeight(r.groups[:len(r.pools)])
}

// lanes returns the lanes of partitions, which are in order; they are made where there are none yet.
func (t *topic) lanes(parts []*wire.PartitionRoute) []*lane {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]*lane, len(parts))
	var missing int
	for i, p := range parts {
		if k, ok := slices.BinarySearchFunc(t.mu.lanes, p, compareLane); ok {
			all[i] = t.mu.lanes[k]
		} else {
			missing++
		}
	}
	if missing == 0 {
		return all
	}
	made := make([]lane, missing)
	for i, p := range parts {
		if all[i] == nil {
			l := &made[0]
			made = made[1:]
			l.topic, l.partition, l.brokerGroup, l.refused = t, p.Partition, p.BrokerGroup, t.breaker(p.BrokerGroup)
			all[i] = l
			t.mu.lanes = append(t.mu.lanes, l)
		}
	}
	slices.SortFunc(t.mu.lanes, func(a, b *lane) int { return byLocation(a.brokerGroup, a.partition, b.brokerGroup, b.partition) })
	return all
}

// breaker is that of a broker group for this topic alone. t.mu is held.
func (t *topic) breaker(brokerGroup string) *breaker {
	if t.mu.breakers == nil {
		t.mu.breakers = map[string]*breaker{}
	}
	b := t.mu.breakers[brokerGroup]
	if b == nil {
		b = new(breaker)
		t.mu.breakers[brokerGroup] = b
	}
	return b
}

func compareLane(l *lane, p *wire.PartitionRoute) int {
	return byLocation(l.brokerGroup, l.partition, p.BrokerGroup, p.Partition)
}

// awaitAny connects to all of pools, and waits until one has a connection, all have failed, or ctx ends.
func (c *Cluster) awaitAny(ctx context.Context, pools []*pool) {
	for {
		up := c.watchLinks()
		failed := 0
		for _, p := range pools {
			if p.pick(0) != nil {
				return
			}
			if p.failed() {
				failed++
			}
		}
		if failed == len(pools) {
			return
		}
		select {
		case <-up:
		case <-ctx.Done():
			return
		case <-c.ctx.Done():
			return
		}
	}
}

// routePause is how long after it was asked for a route is not asked for again, though an answer said that there is another.
const routePause = time.Second

// refresh asks for the route again, without waiting, since an answer said that old is not it any more. Its reading goroutine calls it,
// which flushes l.
func (t *topic) refresh(old *route, l *link) {
	now := time.Now().UnixNano()
	if now-t.checked.Load() < int64(routePause) || !t.checking.CompareAndSwap(false, true) {
		return
	}
	t.checked.Store(now)
	header, err := proto.Marshal(&wire.RouteRequest{Topic: t.name})
	if err != nil {
		t.checking.Store(false)
		return
	}
	if _, err := l.Start(wire.CommandRoute, header, nil, func(f wire.Frame, err error) {
		defer t.checking.Store(false)
		var answer wire.RouteResponse
		if err != nil || proto.Unmarshal(f.Header, &answer) != nil {
			return // the next answer says it again
		}
		if r, err := t.read(&answer, l.pool, nil); err == nil && !r.same(old) {
			r.topicID = answer.TopicId
			t.route.CompareAndSwap(old, r)
		}
	}); err != nil {
		t.checking.Store(false)
	}
}

// same says whether r knows no other partitions than o.
func (r *route) same(o *route) bool {
	return r.version == o.version && slices.Equal(r.partitions, o.partitions) && slices.Equal(r.active, o.active)
}
