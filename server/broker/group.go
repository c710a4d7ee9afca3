package broker

import (
	"context"
	"fmt"
	"sync"

	"github.com/jmqio/jmq/server/dispatch"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/wire"
)

// births are the groups that are being born: their record is on its way to the disk.
type births struct {
	mu struct {
		sync.Mutex
		running map[birthKey]*birth
		ids     map[groupKey]*newID            // numbers of the groups of running
		held    map[offset.Topic]chan struct{} // topics on which none may begin; closed when they may again
	}
}

type groupKey struct {
	namespace uint32
	name      string
}

type birthKey struct {
	group groupKey
	topic offset.Topic
}

type newID struct {
	id    offset.GroupID
	users int // births that need it
}

type birth struct {
	done chan struct{} // closed when err is set
	err  error
}

func (s *births) init() {
	s.mu.running = map[birthKey]*birth{}
	s.mu.ids = map[groupKey]*newID{}
	s.mu.held = map[offset.Topic]chan struct{}{}
}

// hold lets no birth begin on a topic until release, and waits for those under way. Only a change calls it: one at a time.
func (s *births) hold(ctx context.Context, topic offset.Topic) error {
	s.mu.Lock()
	s.mu.held[topic] = make(chan struct{})
	s.mu.Unlock()
	for {
		running := s.on(topic)
		if running == nil {
			return nil
		}
		select {
		case <-running.done:
		case <-ctx.Done():
			s.release(topic)
			return ctx.Err()
		}
	}
}

// on returns a birth under way on the topic, if there is one.
func (s *births) on(topic offset.Topic) *birth {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, running := range s.mu.running {
		if key.topic == topic {
			return running
		}
	}
	return nil
}

func (s *births) release(topic offset.Topic) {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.mu.held[topic])
	delete(s.mu.held, topic)
}

// Subscribe implements wire.Broker. A new group's positions are read before its record is appended, so it gets every
// message whose commit comes after, and so every one that is sent after the answer.
func (b *Broker) Subscribe(ctx context.Context, r *wire.SubscribeRequest) (*wire.SubscribeResponse, error) {
	var response *wire.SubscribeResponse
	err := b.patiently(ctx, func(ctx context.Context) (err error) {
		response, err = b.subscribe(ctx, r)
		return err
	})
	if err != nil {
		return nil, b.refuse(err)
	}
	return response, nil
}

func (b *Broker) subscribe(ctx context.Context, r *wire.SubscribeRequest) (*wire.SubscribeResponse, error) {
	who := wire.PeerFrom(ctx)
	if err := wire.CheckGroup(r.Group); err != nil {
		return nil, err
	}
	if r.Start != wire.StartEnd && r.Start != wire.StartBeginning {
		return nil, wire.Errorf(wire.CodeInvalid, "start is %d: 0 (end) and 1 (beginning) are known", r.Start)
	}
	var policy offset.Policy
	if r.Policy != nil {
		var err error
		if policy, err = policyOf(r.Policy); err != nil {
			return nil, err
		}
	}
	g, known, err := b.mayJoin(who, r.Topic, r.Group)
	if err != nil {
		return nil, err
	}
	policy = policyBy(g.policy, policy)
	group := groupKey{who.Namespace, r.Group}
	a, err := b.births.begin(ctx, b, group, r.Topic)
	if err != nil {
		return nil, err
	}
	if a.running != nil {
		key := birthKey{group, topicKey(&a.topic)}
		if a.mine {
			err := error(nil)
			if key.topic != known { // made again meanwhile: the right was not asked for this one
				err = beingMade(r.Topic)
			} else {
				err = b.bear(key, a.id, &a.topic, policy, who, r.Start, a.running)
			}
			if err != nil {
				b.birthEnds(key, &a.topic, a.running, err)
			}
		}
		select {
		case <-a.running.done:
			err = a.running.err
		case <-ctx.Done():
			err = fmt.Errorf("group %q is being made: %w", r.Group, ctx.Err())
		}
	}
	if err == nil {
		policy, err = b.subscribed(ctx, r, a.topic.Namespace, g)
	}
	if err != nil {
		return nil, err
	}
	return &wire.SubscribeResponse{Partitions: a.topic.Partitions, LeaseMs: uint32(b.ackTimeout(g).Milliseconds()), Created: a.mine, Policy: policyMessage(policy)}, nil
}

// mayJoin returns what who may do as a group that need not be there, and the topic that this is about.
func (b *Broker) mayJoin(who *wire.Peer, topic, group string) (*grant, offset.Topic, error) {
	t, err := b.topic(who.Namespace, topic)
	if err != nil {
		return nil, offset.Topic{}, b.absent(who, topic, group, err)
	}
	if !b.o.Metadata {
		return everything, topicKey(&t), nil
	}
	g, err := b.ask(subjectOf(who), who, &t, dispatch.Queue{Topic: topicKey(&t)}, group)
	return g, topicKey(&t), err
}

// subscribed sees to it that a group has the policy which the metadata or else its subscriber wants, if any, and returns what it has.
func (b *Broker) subscribed(ctx context.Context, r *wire.SubscribeRequest, namespace uint32, g *grant) (policy offset.Policy, err error) {
	_, q, err := b.queue(namespace, r.Topic, r.Group)
	if err != nil {
		return policy, err
	}
	has, _ := b.offsets().Policy(q.Group, q.Topic)
	policy = has
	if r.Policy != nil {
		if policy, err = policyOf(r.Policy); err != nil {
			return policy, err
		}
	}
	if policy = policyBy(g.policy, policy); same(has, policy) || b.slave != nil { // its master alters it, when it is back
		return has, nil
	}
	return policy, b.change(ctx, "", func(ctx context.Context) error {
		return b.alterGroup(namespace, r.Topic, r.Group, policy, whoText(wire.PeerFrom(ctx)), "a subscription")
	})
}

// arrival is how a group comes to be on a topic.
type arrival struct {
	topic   store.Topic
	running *birth // to wait for; nil: it is there
	mine    bool   // who asked must bring it about
	id      offset.GroupID
}

// begin finds the topic, and the group's birth on it, or begins that.
func (s *births) begin(ctx context.Context, b *Broker, group groupKey, topic string) (a arrival, err error) {
	for {
		// The topic is looked up under the lock: a change of it comes either before, and is seen, or waits for the birth.
		s.mu.Lock()
		if a.topic, err = b.topic(group.namespace, topic); err != nil {
			s.mu.Unlock()
			return a, err
		}
		key := birthKey{group, topicKey(&a.topic)}
		held := s.mu.held[key.topic]
		if held == nil {
			err = s.beginLocked(b, key, &a)
			s.mu.Unlock()
			return a, err
		}
		s.mu.Unlock()
		select {
		case <-held:
		case <-ctx.Done():
			return a, ctx.Err()
		}
	}
}

func (s *births) beginLocked(b *Broker, key birthKey, a *arrival) error {
	if a.running = s.mu.running[key]; a.running != nil {
		return nil
	}
	// A birth leaves running after the table has it, so nothing is missed between the two.
	table := b.offsets()
	id, known := table.Group(key.group.namespace, key.group.name)
	if known && table.Has(id, key.topic) {
		return nil
	}
	if err := b.master(); err != nil {
		return err // a slave knows those that its master had committed
	}
	if n := table.Subscriptions() + len(s.mu.running); n >= b.o.SubscriptionsMax {
		return wire.Errorf(wire.CodeTooLarge, "there are %d subscriptions, which is as many as can be", n)
	}
	if app := meta.AppOf(key.group.name); b.o.Metadata && app != key.group.name && s.ofApp(table, key, app) >= appGroupsMax {
		return wire.Errorf(wire.CodeTooLarge, "app %q has %d groups on topic %q, which is as many as can be: remove some", app, appGroupsMax, a.topic.Name)
	}
	if err := b.room.more(&b.o, 0, int(a.topic.Partitions)); err != nil {
		return err
	}
	n := s.mu.ids[key.group]
	if n == nil {
		// A number is taken by the table or by a birth under way; one whose birth failed, and so is not in the log, is free again.
		// A known one is kept here too: the group may lose its last topic, and its number, before the birth is committed, and the
		// next birth must not give it a second one.
		if !known {
			id = table.LastGroup()
			for _, other := range s.mu.ids {
				id = max(id, other.id)
			}
			id++
		}
		n = &newID{id: id}
		s.mu.ids[key.group] = n
	}
	n.users++
	a.mine, a.id, a.running = true, n.id, &birth{done: make(chan struct{})}
	s.mu.running[key] = a.running
	return nil
}

// appGroupsMax bounds an app's groups on one topic, which it makes as it likes: what all apps together may have is soon used up by one.
const appGroupsMax = 1000

// ofApp counts the groups of an app on the topic of key, and those that are being born.
func (s *births) ofApp(table *offset.Table, key birthKey, app string) (n int) {
	for _, g := range table.GroupsOf(key.topic) {
		if g.Namespace == key.group.namespace && meta.AppOf(g.Name) == app {
			n++
		}
	}
	for k := range s.mu.running {
		if k.topic == key.topic && k.group.namespace == key.group.namespace && meta.AppOf(k.group.name) == app {
			n++
		}
	}
	return n
}

func (s *births) end(key birthKey, running *birth, err error) {
	s.mu.Lock()
	running.err = err
	delete(s.mu.running, key)
	if n := s.mu.ids[key.group]; n != nil {
		if n.users--; n.users == 0 {
			delete(s.mu.ids, key.group)
		}
	}
	s.mu.Unlock()
	close(running.done)
}

// startName is wire.StartEnd or wire.StartBeginning for people.
func startName(start uint32) string {
	if start == wire.StartBeginning {
		return "beginning"
	}
	return "end"
}

func (b *Broker) bear(key birthKey, id offset.GroupID, t *store.Topic, policy offset.Policy, who *wire.Peer, start uint32, running *birth) error {
	r := offset.Reset{Operation: offset.Birth, Time: b.o.Now().UnixNano(), Policy: policy, Namespace: key.group.namespace, Group: id, GroupName: key.group.name, Topic: key.topic, TopicName: t.Name,
		Who: whoText(who), Why: "first subscription"}
	b.moving.RLock() // until the birth is committed, or not
	generation := b.offsets().BirthGeneration()
	for p := range t.Partitions {
		first, end, err := b.store.Bounds(partitionOf(t, p))
		if err != nil {
			b.moving.RUnlock()
			return err
		}
		at := first
		if start == wire.StartEnd {
			at = end
		}
		r.Starts = append(r.Starts, offset.Start{Partition: uint16(p), Generation: generation, Offset: at})
	}
	err := b.store.AppendRecord(journal.KindOffsetReset, offset.AppendReset(nil, &r), func(err error) {
		b.moving.RUnlock()
		if err != nil {
			b.failedBy(err)
		} else {
			b.o.Logger.Info("a group was made", "topic", t.Name, "group", r.GroupName, "id", id, "client", who.ClientID, "start", startName(start))
		}
		b.birthEnds(key, t, running, err)
	})
	if err != nil {
		b.moving.RUnlock()
	}
	return err
}

func (b *Broker) birthEnds(key birthKey, t *store.Topic, running *birth, err error) {
	if err != nil {
		b.room.less(0, 0, int(t.Partitions))
	}
	b.births.end(key, running, err)
}

func partitionOf(t *store.Topic, p uint32) store.Partition {
	return store.Partition{Topic: t.ID, Incarnation: t.Incarnation, Partition: uint16(p)}
}
