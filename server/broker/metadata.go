package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/wire"
)

// metadata is what the broker was told of the registry's. Rights and limits are read from the newest snapshot at once; topics and
// groups follow it, since that takes records in the log.
type metadata struct {
	snapshot atomic.Pointer[meta.Snapshot] // the newest; nil: none yet
	epoch    atomic.Uint64                 // counts them, after snapshot was set
	pending  atomic.Int64                  // topics in todo
	taking   sync.Mutex                    // held while the newest is taken over; nothing waits for the disk under it
	turn     chan struct{}                 // has room for one: topics follow one snapshot after another
	follow   follow
	// kept are topics that the store has and that are not served: see keep.
	kept struct {
		sync.Mutex
		why map[topicName]string
	}
}

// follow belongs to whoever has metadata.turn.
type follow struct {
	seen    *meta.Snapshot            // the last whose changes are in the store or in todo
	todo    map[topicName]struct{}    // topics to be looked at, with their groups
	numbers map[string]uint32         // of all namespaces seen
	names   map[uint32]string         // of those of seen
	left    map[topicName]store.Topic // this broker group does not have them any more; they go when they are empty
}

type topicName struct {
	namespace uint32
	name      string
}

const (
	applyWorkers = 64 // they share commits
	registryText = "the registry"
)

var errOldMetadata = errors.New("broker: metadata older than what is known")

func (m *metadata) init() {
	m.turn = make(chan struct{}, 1)
	m.follow.todo = map[topicName]struct{}{}
	m.follow.numbers = map[string]uint32{}
	m.follow.left = map[topicName]store.Topic{}
	m.kept.why = map[topicName]string{}
}

// Apply takes over a snapshot of the metadata. Rights, limits and the ends of both are in force when the snapshot is there; then topics are
// made, altered and deleted in the store, and groups altered, until they are as it says: only those that changed since the last
// one, and those that failed then. An error says that some are not: call it again, with the same snapshot or a newer one. A snapshot with a lower version of the
// same generation is refused.
//
// A topic is deleted only when the registry had told of it and, in the same generation and not before, says that it is gone, or another one now.
// What the registry does not know (it lost it, or never knew it), and what this broker group shall not have any more but is not empty, is kept, and not served.
func (b *Broker) Apply(ctx context.Context, s *meta.Snapshot) error {
	if err := b.ready(); err != nil {
		return err
	}
	if err := b.takeOver(s); err != nil || b.slave != nil { // a slave's topics and groups follow its master's
		return err
	}
	m := &b.metadata
	select {
	case m.turn <- struct{}{}:
		defer func() { <-m.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	s = m.snapshot.Load() // a newer one may have come while others had the turn
	if f := &m.follow; s != f.seen {
		changed, known := since(f.seen, s)
		f.note(b, s, changed, known)
	}
	return b.follow(ctx, s)
}

// takeOver has the rights and limits of s in force.
func (b *Broker) takeOver(s *meta.Snapshot) error {
	m := &b.metadata
	m.taking.Lock()
	defer m.taking.Unlock()
	was := m.snapshot.Load()
	if was != nil && was.Generation == s.Generation && s.Version < was.Version {
		return fmt.Errorf("%w: version %d, after %d of generation %d", errOldMetadata, s.Version, was.Version, s.Generation)
	}
	if s == was {
		return nil
	}
	m.snapshot.Store(s)
	m.epoch.Add(1)
	b.limits.follow(s)
	changed, known := since(was, s)
	b.askAgain(changed, known)
	return nil
}

// since returns what changed from was to s, and whether that is known.
func since(was, s *meta.Snapshot) (changed []*meta.Object, known bool) {
	if was == nil || was.Generation != s.Generation {
		return nil, false
	}
	return s.Since(was.Version)
}

// note adds to todo what changed; all, if that is not known.
func (f *follow) note(b *Broker, s *meta.Snapshot, changed []*meta.Object, known bool) {
	// A namespace may have been made again with another number: its topics are looked at under both.
	for _, o := range changed {
		f.noteObject(o)
	}
	f.seen, f.names = s, map[uint32]string{}
	for o := range s.All(meta.KindNamespace) {
		id := specOf[meta.Namespace](o).ID
		f.numbers[o.Name], f.names[id] = id, o.Name
	}
	for _, o := range changed {
		f.noteObject(o)
	}
	if known {
		return
	}
	for _, t := range b.store.Topics() {
		f.todo[topicName{t.Namespace, t.Name}] = struct{}{}
	}
	for o := range s.All(meta.KindTopic) {
		f.noteObject(o)
	}
}

func (f *follow) noteObject(o *meta.Object) {
	name := o.Name
	switch o.Kind {
	case meta.KindTopic:
	case meta.KindConsumer:
		name, _, _ = strings.Cut(name, "/")
	default:
		return
	}
	// Of a namespace that is gone, and was never seen, the store has nothing: what it had was looked at with the first snapshot.
	if n, ok := f.numbers[o.Namespace]; ok {
		f.todo[topicName{n, name}] = struct{}{}
	}
}

// follow does what is in todo.
func (b *Broker) follow(ctx context.Context, s *meta.Snapshot) error {
	f := &b.metadata.follow
	for n := range f.left {
		f.todo[n] = struct{}{}
	}
	b.metadata.pending.Store(int64(len(f.todo) - len(f.left)))
	defer func() { b.metadata.pending.Store(int64(len(f.todo))) }()
	names := make([]topicName, 0, len(f.todo))
	for n := range f.todo {
		names = append(names, n)
	}
	var (
		next    atomic.Int64
		workers sync.WaitGroup
		mu      sync.Mutex
		first   error
		failed  int
	)
	work := func() {
		for i := int(next.Add(1)) - 1; i < len(names); i = int(next.Add(1)) - 1 {
			n := names[i]
			left, err := b.followTopic(ctx, s, n)
			mu.Lock()
			delete(f.left, n)
			if left != nil {
				f.left[n] = *left
			}
			if err == nil {
				delete(f.todo, n)
			} else if failed++; first == nil {
				first = fmt.Errorf("topic %q: %w", n.name, err)
			}
			mu.Unlock()
		}
	}
	for range min(applyWorkers, len(names)) - 1 {
		workers.Go(work)
	}
	work()
	workers.Wait()
	if failed == 0 {
		return nil
	}
	b.failedBy(first)
	return fmt.Errorf("%d of %d topics are not yet as version %d of the metadata says: %w", failed, len(names), s.Version, first)
}

// followTopic makes a topic and its groups what s says. It returns the topic if it is left over here.
func (b *Broker) followTopic(ctx context.Context, s *meta.Snapshot, n topicName) (left *store.Topic, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var o *meta.Object
	if namespace, ok := b.metadata.follow.names[n.namespace]; ok {
		o = s.Get(meta.Key{Kind: meta.KindTopic, Namespace: namespace, Name: n.name})
	}
	var want *meta.Topic
	if o != nil {
		want = specOf[meta.Topic](o)
	}
	here := want != nil && slices.Contains(want.BrokerGroups, b.o.BrokerGroup)
	have, there := b.store.Topic(n.namespace, n.name)
	// Of another generation the registry has not told of it since: whatever it says now, nothing is deleted by it.
	told := there && have.Origin.Generation == uint64(s.Generation)
	switch {
	case !there:
		b.keep(n, "")
	case told && uint64(s.Version) < have.Origin.Version:
		b.keep(n, "the metadata at hand is older than the topic")
		return nil, nil
	case want == nil && !told:
		b.keep(n, "the registry does not know it")
		return nil, nil
	case want == nil || told && have.Origin.Created != uint64(o.Created):
		if err := b.dropTopic(ctx, &have, fmt.Sprintf("version %d of the metadata", s.Version)); err != nil {
			return nil, err
		}
		b.keep(n, "")
		there = false
	case !here:
		return b.leaveTopic(ctx, s, n, &have)
	}
	if !here {
		return nil, nil
	}
	t, err := b.wantTopic(ctx, s, o, want, n, there, &have)
	if err != nil {
		return nil, err
	}
	b.keep(n, "")
	return nil, b.followGroups(ctx, s, o, &t)
}

// keep notes why a topic is kept and not served; "": it is not so.
func (b *Broker) keep(n topicName, why string) {
	k := &b.metadata.kept
	k.Lock()
	was := k.why[n]
	if why == "" {
		delete(k.why, n)
	} else {
		k.why[n] = why
	}
	k.Unlock()
	if why != "" && why != was {
		b.o.Logger.Warn("a topic is kept, and not served", "topic", n.name, "namespace", n.namespace, "why", why)
	}
}

// leaveTopic deletes a topic that this broker group shall not have any more, when it is empty: what was taken is not thrown away
// because somebody changes a route.
func (b *Broker) leaveTopic(ctx context.Context, s *meta.Snapshot, n topicName, t *store.Topic) (*store.Topic, error) {
	for p := range t.Partitions {
		first, end, err := b.store.Bounds(partitionOf(t, p))
		if err != nil {
			return nil, err
		}
		if first < end {
			b.keep(n, "this broker group does not have it any more, and it is not empty")
			return t, nil
		}
	}
	if err := b.dropTopic(ctx, t, fmt.Sprintf("version %d of the metadata: broker group %s does not have it", s.Version, b.o.BrokerGroup)); err != nil {
		return nil, err
	}
	b.keep(n, "")
	return nil, nil
}

// wantTopic makes a topic, or what is there into it.
func (b *Broker) wantTopic(ctx context.Context, s *meta.Snapshot, o *meta.Object, want *meta.Topic, n topicName, there bool, have *store.Topic) (store.Topic, error) {
	settings := store.Settings{
		RetentionAge: time.Duration(want.RetentionAge), RetentionBytes: want.RetentionBytes, DiscardUnconsumed: want.DiscardUnconsumed,
		PauseProduce: want.PauseProduce, PauseConsume: want.PauseConsume,
	}
	if want.Durability == meta.DurabilityReplicated {
		settings.Durability = store.DurabilityReplicated
	}
	origin := store.Origin{Generation: uint64(s.Generation), Created: uint64(o.Created), Version: uint64(s.Version)}
	if !there {
		return b.makeTopic(ctx, store.Topic{Namespace: n.namespace, Name: n.name, Partitions: uint32(want.Partitions), Settings: settings, Origin: origin}, registryText)
	}
	c := store.Change{Who: registryText, Why: fmt.Sprintf("version %d of the metadata", s.Version)}
	if settings != have.Settings {
		c.Settings = &settings
	}
	if more := uint32(want.Partitions); more > have.Partitions { // there are never fewer again
		c.Partitions = more
	}
	known := have.Origin.Generation == origin.Generation && have.Origin.Created == origin.Created
	if known && c.Settings == nil && c.Partitions == 0 {
		return *have, nil
	}
	c.Origin = &origin
	if c.Partitions == 0 {
		return b.alterTopicBy(ctx, have, c) // no group's partitions change: others need not wait
	}
	var t store.Topic
	err := b.change(ctx, "", func(ctx context.Context) (err error) {
		t, err = b.alterTopicBy(ctx, have, c)
		return err
	})
	return t, err
}

func (b *Broker) dropTopic(ctx context.Context, t *store.Topic, why string) error {
	return b.change(ctx, "", func(ctx context.Context) error { return b.deleteTopicBy(ctx, t, registryText, why) })
}

// followGroups gives the groups on a topic the policies that s says.
func (b *Broker) followGroups(ctx context.Context, s *meta.Snapshot, topic *meta.Object, t *store.Topic) error {
	for _, g := range b.offsets().GroupsOf(topicKey(t)) {
		c := consumerOf(s, topic.Namespace, topic.Name, g.Name)
		has, ok := b.offsets().Policy(g.ID, topicKey(t))
		if c == nil || !ok {
			continue
		}
		wanted := policyBy(specOf[meta.Consumer](c), has)
		if same(has, wanted) {
			continue
		}
		err := b.change(ctx, "", func(context.Context) error {
			return b.alterGroup(t.Namespace, t.Name, g.Name, wanted, registryText, fmt.Sprintf("version %d of the metadata", s.Version))
		})
		if err != nil && wire.CodeOf(coded(err)) != wire.CodeGroupNotFound { // it was removed meanwhile
			return fmt.Errorf("group %q: %w", g.Name, err)
		}
	}
	return nil
}

// consumerOf returns what s says of a group on a topic: of itself, or of its app; or nil.
func consumerOf(s *meta.Snapshot, namespace, topic, group string) *meta.Object {
	for _, who := range [2]string{group, meta.AppOf(group)} {
		if o := s.Get(meta.Key{Kind: meta.KindConsumer, Namespace: namespace, Name: topic + "/" + who}); o != nil {
			return o
		}
	}
	return nil
}

// specOf returns the spec of an object whose kind says that it is an S.
func specOf[S any](o *meta.Object) *S { return any(o.Spec).(*S) }

// policyBy returns has with what c says, if anything.
func policyBy(c *meta.Consumer, has offset.Policy) offset.Policy {
	if c == nil {
		return has
	}
	if c.Parallel != nil {
		has.Parallel = *c.Parallel
	}
	switch {
	case !has.Parallel:
		has.Window = 0
	case c.Window > 0:
		has.Window = uint32(min(c.Window, windowMax))
	case has.Window == 0:
		has.Window = offset.WindowDefault
	}
	return has
}

// ruled refuses what only a registry may do.
func (b *Broker) ruled() error {
	if b.o.Metadata {
		return wire.Errorf(wire.CodeRoleElsewhere, "topics are made, altered and deleted at the registry")
	}
	return nil
}
