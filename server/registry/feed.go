package registry

import (
	"container/heap"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/wire"
)

const (
	watchedMax = 1000 // topics of one watch
	waitMax    = time.Minute
	// viewsBytesMax bounds an answer of WatchRoutes, about: what did not fit is told to the next watch, which finds it unknown.
	viewsBytesMax = 2 << 20
)

// FeedOptions are the options of a Feed.
type FeedOptions struct {
	// Registry gives the addresses of registry nodes that live: clients are told them, and they are named to who asks for
	// something that only a registry node answers. It must not block. Nil: none are known.
	Registry func() []string
	// Stale says that others may know more than what was set last. It must not block. Nil: none do.
	Stale func() bool
	// Sure is false while a topic, or a right to it, that is not known here may be there: who asks for a view that would refuse it is answered
	// CodeMetadataAway. It must not block. Nil: it never is.
	Sure func() bool
}

// Feed gives snapshots to who watches. It implements wire.Registry: what only the registry role answers, it answers with CodeRoleElsewhere.
//
// A watch is looked at when it comes; if it would be told nothing it is parked: in a heap by when its wait ends, and, by its topics,
// in lists that a change goes through. One goroutine answers those whose wait ended; Set answers those that a change concerns.
// Whoever takes a watch out of the heap, under mu, answers it, without mu.
type Feed struct {
	o     FeedOptions
	begun time.Time
	done  sync.WaitGroup
	wake  chan struct{} // the heap has a new first; or the feed was closed

	pageBytes int // of WatchObjects, about

	setting sync.Mutex // one Set at a time
	world   atomic.Pointer[world]
	sorted  atomic.Pointer[sortedObjects]
	page    atomic.Pointer[page]

	mu struct {
		sync.Mutex
		closed  bool
		parked  watchHeap
		topics  map[topicName]*watchedTopic
		groups  map[string]map[*watchedTopic]struct{} // by broker group, those whose topic is on it
		objects map[*watch]struct{}                   // parked watches of everything
		late    map[*watch]struct{}                   // parked watches of routes that know more than we do
	}
	counts struct {
		snapshots, looked, woken, expired, views, objects, resets atomic.Uint64
	}
}

var _ wire.Registry = (*Feed)(nil)

type topicName struct{ namespace, name string }

// watchedTopic is a topic, there or not, that parked watches name.
type watchedTopic struct {
	topicName
	groups []string // under which it is in Feed.mu.groups
	first  *watched
}

// watched is a topic of a watch; while that is parked it is in the topic's list.
type watched struct {
	watch      *watch
	topic      *watchedTopic
	next, prev *watched
	name       string
	group      string
	version    uint64 // that is known
}

// watch is one request that waits, or is about to.
type watch struct {
	place  int           // in the heap; -1: not parked
	due    time.Duration // since the feed's begin
	peer   *wire.Peer
	stop   func() bool
	topics []watched // of a watch of routes
	// known is what the client knows of the metadata.
	generation, version, since uint64
	routes                     func(*wire.WatchRoutesResponse, error) // one of these two
	objects                    func(*wire.WatchObjectsResponse, error)
}

// NewFeed returns a feed that knows nothing yet: it answers CodeMetadataAway. Close ends it.
func NewFeed(o FeedOptions) *Feed {
	f := &Feed{o: o, begun: time.Now(), wake: make(chan struct{}, 1), pageBytes: pageBytes}
	f.mu.topics = map[topicName]*watchedTopic{}
	f.mu.groups = map[string]map[*watchedTopic]struct{}{}
	f.mu.objects = map[*watch]struct{}{}
	f.mu.late = map[*watch]struct{}{}
	f.done.Add(1)
	go f.expire()
	return f
}

// Snapshot is the last one set; nil before.
func (f *Feed) Snapshot() *meta.Snapshot {
	if w := f.world.Load(); w != nil {
		return w.Snapshot
	}
	return nil
}

// Set makes s what is told from now on. When it returns, all that s concerns were answered.
func (f *Feed) Set(s *meta.Snapshot) {
	f.setting.Lock()
	defer f.setting.Unlock()
	before := f.world.Load()
	if before != nil && before.Snapshot == s {
		return
	}
	all := before == nil || before.Generation != s.Generation || before.Version > s.Version
	var changed []*meta.Object
	if !all {
		var ok bool
		if changed, ok = s.Since(before.Version); !ok {
			all = true
		}
	}
	f.counts.snapshots.Add(1)
	w := newWorld(before, s, changed, all)

	f.mu.Lock()
	f.world.Store(w)
	f.sorted.Store(nil) // they would keep what was deleted
	f.page.Store(nil)
	concerned := f.concerned(before, w, changed, all)
	f.mu.Unlock()
	for c := range concerned {
		f.counts.looked.Add(1)
		f.look(w, c)
	}
}

// concerned returns the parked watches that a change may concern, and puts watched topics where they are now. f.mu is held.
func (f *Feed) concerned(before, w *world, changed []*meta.Object, all bool) map[*watch]struct{} {
	c := map[*watch]struct{}{}
	for x := range f.mu.objects {
		c[x] = struct{}{}
	}
	for x := range f.mu.late {
		c[x] = struct{}{}
	}
	if all {
		for _, x := range f.mu.parked {
			c[x] = struct{}{}
		}
		for _, t := range f.mu.topics {
			f.regroup(t, w)
		}
		return c
	}
	everyone := func(if_ func(*watch) bool) {
		for _, x := range f.mu.parked {
			if x.routes != nil && if_(x) {
				c[x] = struct{}{}
			}
		}
	}
	ofTopic := func(t *watchedTopic, if_ func(*watched) bool) {
		if t == nil {
			return
		}
		for x := t.first; x != nil; x = x.next {
			if if_(x) {
				c[x.watch] = struct{}{}
			}
		}
	}
	ofGroup := func(g string) {
		for t := range f.mu.groups[g] {
			ofTopic(t, func(*watched) bool { return true })
		}
	}
	for _, o := range changed {
		switch o.Kind {
		case meta.KindTopic:
			if t := f.mu.topics[topicName{o.Namespace, o.Name}]; t != nil {
				f.regroup(t, w)
				ofTopic(t, func(*watched) bool { return true })
			}
		case meta.KindProducer:
			ofTopic(f.mu.topics[topicName{o.Namespace, o.TopicOf()}], func(x *watched) bool {
				return x.group == "" && appOf(x.watch.peer) == o.SubscriberOf()
			})
		case meta.KindConsumer:
			who := o.SubscriberOf()
			ofTopic(f.mu.topics[topicName{o.Namespace, o.TopicOf()}], func(x *watched) bool {
				return x.group != "" && (x.group == who || meta.AppOf(x.group) == who)
			})
		case meta.KindBrokerGroup, meta.KindReplication:
			ofGroup(o.Name)
		case meta.KindBroker:
			if b, ok := o.Spec.(*meta.Broker); ok {
				ofGroup(b.BrokerGroup)
			}
			if was := before.Broker(o.Name); was != nil {
				ofGroup(was.BrokerGroup)
			}
		case meta.KindDataCenter:
			everyone(func(*watch) bool { return true })
		case meta.KindNamespace:
			everyone(func(x *watch) bool { return namespaceOf(x.peer) == o.Name })
		case meta.KindApp:
			everyone(func(x *watch) bool {
				p := &x.peer.Principal
				return p.Kind == wire.PrincipalApp && p.Name == o.Name && namespaceOf(x.peer) == o.Namespace
			})
		case meta.KindUser:
			everyone(func(x *watch) bool {
				return x.peer.Principal.Kind == wire.PrincipalUser && x.peer.Principal.Name == o.Name
			})
		case meta.KindCredential:
			everyone(func(x *watch) bool { return x.peer.Principal.Credential == o.Name })
		}
	}
	return c
}

// appOf is whose settings a peer has.
func appOf(p *wire.Peer) string {
	if p.Principal.Kind == wire.PrincipalApp {
		return p.Principal.Name
	}
	return p.App
}

// regroup puts a watched topic under the broker groups that it has in w. f.mu is held.
func (f *Feed) regroup(t *watchedTopic, w *world) {
	for _, g := range t.groups {
		delete(f.mu.groups[g], t)
		if len(f.mu.groups[g]) == 0 {
			delete(f.mu.groups, g)
		}
	}
	t.groups = nil
	if w == nil || t.first == nil {
		return
	}
	spec := w.Topic(t.namespace, t.name)
	if spec == nil {
		return
	}
	t.groups = spec.BrokerGroups
	for _, g := range t.groups {
		if f.mu.groups[g] == nil {
			f.mu.groups[g] = map[*watchedTopic]struct{}{}
		}
		f.mu.groups[g][t] = struct{}{}
	}
}

// look answers a parked watch if w has something for it.
func (f *Feed) look(w *world, x *watch) {
	if x.routes != nil {
		if r := f.routesFor(w, x); r != nil && f.take(x) {
			f.counts.woken.Add(1)
			f.tellRoutes(x, r)
		}
		return
	}
	r, err := f.objectsFor(w, x)
	if (r != nil || err != nil) && f.take(x) {
		f.counts.woken.Add(1)
		f.tellObjects(x, r, err)
	}
}

// take takes a watch out of the parked ones: true for the one who has to answer it.
func (f *Feed) take(x *watch) bool {
	f.mu.Lock()
	if x.place < 0 {
		f.mu.Unlock()
		return false
	}
	f.unpark(x)
	f.mu.Unlock()
	x.stop()
	return true
}

// unpark takes a watch out of everything. f.mu is held.
func (f *Feed) unpark(x *watch) {
	heap.Remove(&f.mu.parked, x.place)
	delete(f.mu.objects, x)
	delete(f.mu.late, x)
	for i := range x.topics {
		n := &x.topics[i]
		if n.prev != nil {
			n.prev.next = n.next
		} else {
			n.topic.first = n.next
		}
		if n.next != nil {
			n.next.prev = n.prev
		}
		if n.topic.first == nil {
			f.regroup(n.topic, nil)
			delete(f.mu.topics, n.topic.topicName)
		}
		n.topic, n.next, n.prev = nil, nil, nil
	}
}

// park makes a watch wait; false: the world is not w any more. An error: the feed was closed.
func (f *Feed) park(ctx context.Context, w *world, x *watch, wait time.Duration) (bool, error) {
	x.due = time.Since(f.begun) + min(wait, waitMax)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.closed {
		return false, errStopping
	}
	if f.world.Load() != w {
		return false, nil
	}
	if x.objects != nil {
		f.mu.objects[x] = struct{}{}
	} else if late(w, x) {
		f.mu.late[x] = struct{}{}
	}
	namespace := namespaceOf(x.peer)
	for i := range x.topics {
		n := &x.topics[i]
		name := topicName{namespace, n.name}
		t := f.mu.topics[name]
		if t == nil {
			t = &watchedTopic{topicName: name}
			f.mu.topics[name] = t
		}
		n.watch, n.topic, n.name = x, t, t.name // so that the name is kept once
		n.next = t.first
		if n.next != nil {
			n.next.prev = n
		}
		t.first = n
		if t.groups == nil {
			f.regroup(t, w)
		}
	}
	heap.Push(&f.mu.parked, x)
	x.stop = context.AfterFunc(ctx, func() { f.giveUp(x) })
	if x.place == 0 {
		f.kick()
	}
	return true, nil
}

// late says that the watch knows more than w: another node told it. It waits until we know as much.
func late(w *world, x *watch) bool {
	return x.generation > uint64(w.Generation) || x.generation == uint64(w.Generation) && x.version > uint64(w.Version)
}

// giveUp answers a watch whose session ended.
func (f *Feed) giveUp(x *watch) {
	if f.take(x) {
		f.nothing(x)
	}
}

// nothing answers a watch that nothing changed.
func (f *Feed) nothing(x *watch) {
	w := f.world.Load()
	if x.routes != nil {
		x.routes(f.emptyRoutes(w, x), nil)
		return
	}
	x.objects(&wire.WatchObjectsResponse{Generation: x.generation, Version: x.version, Since: x.since}, nil)
}

func (f *Feed) kick() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// expire is the feed's goroutine: it answers those whose wait ended.
func (f *Feed) expire() {
	defer f.done.Done()
	timer := time.NewTimer(waitMax)
	defer timer.Stop()
	for {
		f.mu.Lock()
		if f.mu.closed {
			f.mu.Unlock()
			return
		}
		var due *watch
		next := waitMax
		if len(f.mu.parked) > 0 {
			if next = f.mu.parked[0].due - time.Since(f.begun); next <= 0 {
				due = f.mu.parked[0]
				f.unpark(due)
			}
		}
		f.mu.Unlock()
		if due != nil {
			due.stop()
			f.counts.expired.Add(1)
			f.nothing(due)
			continue
		}
		timer.Reset(next)
		select {
		case <-timer.C:
		case <-f.wake:
		}
	}
}

var errStopping = wire.Errorf(wire.CodeStopping, "this node stops")

// Close answers those who wait with CodeStopping.
func (f *Feed) Close() error {
	f.mu.Lock()
	f.mu.closed = true
	parked := append([]*watch(nil), f.mu.parked...)
	f.mu.Unlock()
	for _, x := range parked {
		if !f.take(x) {
			continue
		}
		if x.routes != nil {
			x.routes(nil, errStopping)
		} else {
			x.objects(nil, errStopping)
		}
	}
	f.kick()
	f.done.Wait()
	return nil
}

// away is the answer while nothing is known.
func (f *Feed) away() error {
	e := wire.Errorf(wire.CodeMetadataAway, "this node knows no metadata yet")
	e.RetryAfter = time.Second
	return e
}

// WatchRoutes implements wire.Registry.
func (f *Feed) WatchRoutes(ctx context.Context, r *wire.WatchRoutesRequest, done func(*wire.WatchRoutesResponse, error)) {
	if len(r.Topics) > watchedMax {
		done(nil, wire.Errorf(wire.CodeTooLarge, "%d topics in one watch, at most %d are possible", len(r.Topics), watchedMax))
		return
	}
	x := &watch{place: -1, peer: wire.PeerFrom(ctx), routes: done, generation: r.Generation, version: r.MetadataVersion, topics: make([]watched, len(r.Topics))}
	for i, t := range r.Topics {
		err := wire.CheckTopic(t.GetTopic())
		if err == nil && t.GetGroup() != "" {
			err = wire.CheckGroup(t.GetGroup())
		}
		if err != nil {
			done(nil, err)
			return
		}
		x.topics[i] = watched{name: t.Topic, group: t.Group, version: t.Version}
	}
	for {
		w := f.world.Load()
		if w == nil {
			done(nil, f.away())
			return
		}
		answer := f.routesFor(w, x)
		if r.WaitMs == 0 && (answer == nil || len(answer.Views) == 0) {
			if err := f.doubted(w, x); err != nil {
				done(nil, err)
				return
			}
			answer = f.emptyRoutes(w, x)
		}
		if answer != nil {
			f.tellRoutes(x, answer)
			return
		}
		ok, err := f.park(ctx, w, x, time.Duration(r.WaitMs)*time.Millisecond)
		if err != nil {
			done(nil, err)
			return
		}
		if ok {
			return
		}
	}
}

// routesFor is what w has for a watch, nil if nothing.
func (f *Feed) routesFor(w *world, x *watch) *wire.WatchRoutesResponse {
	late := late(w, x)
	v := viewerOf(x.peer)
	var r *wire.WatchRoutesResponse
	bytes := 0
	for i := range x.topics {
		t := &x.topics[i]
		if late && t.version != 0 {
			continue // what was told of it may be newer; who knows nothing of it is told what we have
		}
		view := w.view(v, t.name, t.group)
		if view.Version == t.version || t.version == 0 && !f.sure() && refuses(view) {
			continue
		}
		if r == nil {
			r = f.emptyRoutes(w, x)
		}
		r.Views = append(r.Views, view)
		if bytes += sizeOf(view); bytes > viewsBytesMax {
			break
		}
	}
	if r == nil && !late && x.generation != uint64(w.Generation) {
		r = f.emptyRoutes(w, x)
	}
	return r
}

// sure says that what w refuses is to be refused.
func (f *Feed) sure() bool { return f.o.Sure == nil || f.o.Sure() }

// refuses says that a view is a refusal which newer metadata may lift.
func refuses(v *wire.TopicView) bool {
	switch wire.Code(v.Code) {
	case wire.CodeTopicNotFound, wire.CodeForbidden, wire.CodeUnauthenticated:
		return true
	}
	return false
}

// doubted is the answer to who asks for a view that w would refuse, and may not be told so yet; nil: there is none such.
func (f *Feed) doubted(w *world, x *watch) error {
	if f.sure() {
		return nil
	}
	v := viewerOf(x.peer)
	for i := range x.topics {
		t := &x.topics[i]
		if view := w.view(v, t.name, t.group); t.version == 0 && refuses(view) {
			return wire.Unsure(&wire.CodeError{Code: wire.Code(view.Code), Message: view.Message})
		}
	}
	return nil
}

// sizeOf is about how many bytes a view has.
func sizeOf(v *wire.TopicView) int {
	n := 200
	if v.Route != nil {
		n += 40*len(v.Route.Partitions) + 300*len(v.Route.BrokerGroups)
	}
	return n
}

func (f *Feed) emptyRoutes(w *world, x *watch) *wire.WatchRoutesResponse {
	r := &wire.WatchRoutesResponse{Generation: uint64(w.Generation), MetadataVersion: uint64(w.Version)}
	if late(w, x) {
		r.Generation, r.MetadataVersion = x.generation, x.version
	}
	if f.o.Registry != nil {
		r.Registry = f.o.Registry()
	}
	r.Stale = f.o.Stale != nil && f.o.Stale()
	return r
}

// tellStale answers all who watch routes: what is known here may be stale from now on.
func (f *Feed) tellStale() {
	f.mu.Lock()
	parked := slices.Clone(f.mu.parked)
	f.mu.Unlock()
	for _, x := range parked {
		if x.routes != nil && f.take(x) {
			f.nothing(x)
		}
	}
}

func (f *Feed) tellRoutes(x *watch, r *wire.WatchRoutesResponse) {
	f.counts.views.Add(uint64(len(r.Views)))
	x.routes(r, nil)
}

// Route answers wire.Broker's Route over all broker groups, as the peer of ctx may see it: by its right to send, or to consume.
func (f *Feed) Route(ctx context.Context, r *wire.RouteRequest) (*wire.RouteResponse, error) {
	if err := wire.CheckTopic(r.GetTopic()); err != nil {
		return nil, err
	}
	w := f.world.Load()
	if w == nil {
		return nil, f.away()
	}
	v := viewerOf(wire.PeerFrom(ctx))
	t := &wire.TopicView{Topic: r.Topic}
	err := w.fill(t, v)
	if wire.CodeOf(err) == wire.CodeForbidden && v.app != "" {
		t.Group = v.app
		if w.fill(t, v) == nil {
			err = nil
		}
	}
	if err != nil {
		if !f.sure() {
			err = wire.Unsure(err)
		}
		return nil, err
	}
	return t.Route, nil
}

// FeedMetrics returns counts and gauges.
func (f *Feed) FeedMetrics() FeedMetrics {
	m := FeedMetrics{
		Snapshots: f.counts.snapshots.Load(), Looked: f.counts.looked.Load(), Woken: f.counts.woken.Load(), Expired: f.counts.expired.Load(),
		Views: f.counts.views.Load(), ObjectsTold: f.counts.objects.Load(), Resets: f.counts.resets.Load(),
	}
	if w := f.world.Load(); w != nil {
		m.Generation, m.Version = uint64(w.Generation), uint64(w.Version)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	m.ObjectWatchers = len(f.mu.objects)
	m.RouteWatchers = len(f.mu.parked) - m.ObjectWatchers
	return m
}

// watchHeap orders watches by when they are due.
type watchHeap []*watch

func (h watchHeap) Len() int           { return len(h) }
func (h watchHeap) Less(i, j int) bool { return h[i].due < h[j].due }
func (h watchHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}
func (h *watchHeap) Push(v any) {
	x := v.(*watch)
	x.place = len(*h)
	*h = append(*h, x)
}
func (h *watchHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	x.place = -1
	return x
}

func (f *Feed) elsewhere(what string) error {
	e := wire.Errorf(wire.CodeRoleElsewhere, "%s is answered by the role registry", what)
	if f.o.Registry != nil {
		e.Nodes = f.o.Registry()
	}
	return e
}

// Heartbeat implements wire.Registry; it and all below are answered with CodeRoleElsewhere.
func (f *Feed) Heartbeat(context.Context, *wire.HeartbeatRequest) (*wire.HeartbeatResponse, error) {
	return nil, f.elsewhere("heartbeat")
}

// ListNodes implements wire.Registry.
func (f *Feed) ListNodes(context.Context, *wire.ListNodesRequest) (*wire.ListNodesResponse, error) {
	return nil, f.elsewhere("list-nodes")
}

// ListObjects implements wire.Registry.
func (f *Feed) ListObjects(context.Context, *wire.ListObjectsRequest) (*wire.ListObjectsResponse, error) {
	return nil, f.elsewhere("list-objects")
}

// ApplyObjects implements wire.Registry.
func (f *Feed) ApplyObjects(context.Context, *wire.ApplyObjectsRequest) (*wire.ApplyObjectsResponse, error) {
	return nil, f.elsewhere("apply-objects")
}

// CreateCredential implements wire.Registry.
func (f *Feed) CreateCredential(context.Context, *wire.CreateCredentialRequest) (*wire.CreateCredentialResponse, error) {
	return nil, f.elsewhere("create-credential")
}

// ListAudit implements wire.Registry.
func (f *Feed) ListAudit(context.Context, *wire.ListAuditRequest) (*wire.ListAuditResponse, error) {
	return nil, f.elsewhere("list-audit")
}

// NewGeneration implements wire.Registry.
func (f *Feed) NewGeneration(context.Context, *wire.NewGenerationRequest) (*wire.NewGenerationResponse, error) {
	return nil, f.elsewhere("new-generation")
}

// ChangeReplication implements wire.Registry.
func (f *Feed) ChangeReplication(context.Context, *wire.ChangeReplicationRequest) (*wire.ChangeReplicationResponse, error) {
	return nil, f.elsewhere("change-replication")
}

// BrokerGroup implements wire.Registry.
func (f *Feed) BrokerGroup(context.Context, *wire.BrokerGroupRequest) (*wire.BrokerGroupResponse, error) {
	return nil, f.elsewhere("broker-group")
}
