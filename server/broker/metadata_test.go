package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/wire"
)

// applyModel is a registry with a history, a broker that follows it, and what may have happened to topics.
type applyModel struct {
	*world
	r        *rapid.T
	s        *meta.Snapshot            // the newest
	history  []*meta.Snapshot          // of all generations, in order: what caches may hold
	told     *meta.Snapshot            // the last that the broker has
	deleted  map[string]bool           // "generation name created" that were deleted there
	stored   map[topicName]store.Topic // after the last Apply
	messages map[store.Partition]bool  // that were sent to
}

var applyNames = []string{"a", "b", "c"}

// TestApplyModel draws histories of metadata with generations that were restored from older copies, and gives them to a broker
// that is stopped, crashes, and is told old versions meanwhile. When it has applied the newest, its topics are those that the registry wants
// there and those that nobody deleted; nothing goes that the registry did not delete, and nothing old is in what was made again.
func TestApplyModel(t *testing.T) {
	checkInBubbles(t, runApplyModel)
}

func runApplyModel(t *testing.T, r *rapid.T) error {
	m := &applyModel{world: newWorld(t, Options{Metadata: true, BrokerGroup: "here"}), r: r, s: meta.Initial(1), deleted: map[string]bool{}, stored: map[topicName]store.Topic{}, messages: map[store.Partition]bool{}}
	defer func() { m.close() }()
	for _, k := range []meta.Key{{Kind: meta.KindBrokerGroup, Name: "here"}, {Kind: meta.KindBrokerGroup, Name: "there"}} {
		m.plan(k, &meta.BrokerGroup{})
	}
	m.plan(meta.Key{Kind: meta.KindNamespace, Name: "test"}, &meta.Namespace{})
	m.history = []*meta.Snapshot{m.s}
	for range rapid.IntRange(5, 40).Draw(r, "steps") {
		if err := m.step(); err != nil {
			return err
		}
	}
	return m.apply(m.s, true)
}

// plan makes a change, if it can be made.
func (m *applyModel) plan(k meta.Key, spec meta.Spec) {
	before := m.s.Get(k)
	next, _, _, _, err := m.s.Plan(meta.Change{Writes: []meta.Write{{Key: k, Spec: spec, Expect: meta.Expect{Any: true}}}}, time.Now())
	if err != nil {
		return
	}
	if spec == nil && before != nil && k.Kind == meta.KindTopic {
		m.deleted[lifeOf(uint64(m.s.Generation), k.Namespace, k.Name, uint64(before.Created))] = true
	}
	m.s = next
	m.history = append(m.history, next)
}

func lifeOf(generation uint64, namespace, name string, created uint64) string {
	return fmt.Sprint(generation, " ", namespace, ":", name, " ", created)
}

func (m *applyModel) step() error {
	r := m.r
	k := meta.Key{Kind: meta.KindTopic, Namespace: rapid.SampledFrom([]string{"default", "test"}).Draw(r, "namespace"), Name: rapid.SampledFrom(applyNames).Draw(r, "topic")}
	switch op := rapid.SampledFrom([]string{"set", "set", "set", "delete", "delete", "again", "apply", "apply", "send", "send", "restart", "crash", "old", "generation", "fail", "stuck"}).Draw(r, "op"); op {
	case "set":
		groups := rapid.SampledFrom([][]string{{"here"}, {"here"}, {"here", "there"}, {"there"}}).Draw(r, "groups")
		partitions := rapid.IntRange(1, 3).Draw(r, "partitions")
		if was := m.s.Topic(k.Namespace, k.Name); was != nil {
			partitions = max(partitions, was.Partitions)
		}
		m.plan(k, &meta.Topic{Partitions: partitions, BrokerGroups: groups, RetentionBytes: int64(rapid.IntRange(0, 2).Draw(r, "bytes")) << 20, PauseProduce: rapid.IntRange(0, 9).Draw(r, "paused") == 0})
	case "delete":
		m.plan(k, nil)
	case "again": // deleted and made again between two looks
		m.plan(k, nil)
		m.plan(k, &meta.Topic{Partitions: 1, BrokerGroups: []string{"here"}})
	case "apply":
		return m.apply(m.s, true)
	case "send":
		m.send(k)
	case "restart", "crash":
		if op == "crash" {
			m.crash(50, rapid.Uint64().Draw(r, "seed"))
		} else {
			m.close()
			m.open()
		}
		m.told = nil
	case "old": // from the cache, after a start; a broker that runs refuses it
		s := m.history[rapid.IntRange(0, len(m.history)-1).Draw(r, "at")]
		if m.told != nil && s.Generation < m.told.Generation { // nobody tells it that: registries and caches go to a later generation only
			return nil
		}
		return m.apply(s, false)
	case "stuck": // topics cannot follow now: others have the turn
		m.broker.metadata.turn <- struct{}{}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		err := m.broker.Apply(ctx, m.s)
		cancel()
		if err == nil || m.broker.metadata.snapshot.Load() != m.s {
			return fmt.Errorf("stuck: %v, its rights are not in force", err)
		}
		<-m.broker.metadata.turn
		m.told = m.s
	case "fail": // the caller's patience ends while it applies
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if m.broker.Apply(ctx, m.s) == nil {
			return m.look(m.s, true)
		}
		m.told = m.broker.metadata.snapshot.Load()
		return m.look(nil, false)
	case "generation": // the database is that of some time ago, and an operator takes it as it is
		old := m.history[rapid.IntRange(0, len(m.history)-1).Draw(r, "at")]
		if old.Generation != m.s.Generation { // copies of before an earlier one are as good
			return nil
		}
		next, _, _ := old.PlanGeneration(m.s.Generation+1, meta.Actor{Name: "ops"}, "restored", time.Now())
		m.s = next
		m.history = append(m.history, next)
	}
	return nil
}

func (m *applyModel) apply(s *meta.Snapshot, newest bool) error {
	err := m.broker.Apply(context.Background(), s)
	if m.told != nil && m.told.Generation == s.Generation && s.Version < m.told.Version {
		if !errors.Is(err, errOldMetadata) {
			return fmt.Errorf("version %d after %d: %v", s.Version, m.told.Version, err)
		}
		return m.look(nil, false)
	}
	if err != nil {
		return err
	}
	m.told = s
	return m.look(s, newest)
}

// send puts a message into a topic, as the store has it: what is told by metadata is not looked at.
func (m *applyModel) send(k meta.Key) {
	t, ok := m.store.Topic(m.number(k.Namespace), k.Name)
	if !ok {
		return
	}
	p := partitionOf(&t, uint32(rapid.IntRange(0, int(t.Partitions)-1).Draw(m.r, "partition")))
	done := make(chan error, 1)
	if err := m.store.AppendBatch(p, batch(m.t, 1, 10), func(_ index.Index, _ int64, err error) { done <- err }); err != nil {
		m.r.Fatal(err)
	}
	if err := <-done; err != nil {
		m.r.Fatal(err)
	}
	m.messages[p] = true
}

func (m *applyModel) number(namespace string) uint32 { return m.s.Namespace(namespace).ID }

func (m *applyModel) holds(t *store.Topic) bool {
	for p := range t.Partitions {
		if m.messages[partitionOf(t, p)] {
			return true
		}
	}
	return false
}

// look compares what the store has with what it had, and with s where all of that was applied.
func (m *applyModel) look(s *meta.Snapshot, newest bool) error {
	names := map[uint32]string{m.number("default"): "default", m.number("test"): "test"}
	now := map[topicName]store.Topic{}
	for _, t := range m.store.Topics() {
		now[topicName{t.Namespace, t.Name}] = t
	}
	before := m.stored
	m.stored = maps.Clone(now)
	for n, was := range before {
		is, there := now[n]
		if there && is.Incarnation == was.Incarnation {
			if was.Origin.Generation == is.Origin.Generation && was.Origin.Created != is.Origin.Created {
				return fmt.Errorf("topic %v, %+v, was taken for %+v", n, was.Origin, is.Origin)
			}
			for p := range was.Partitions {
				if _, end, err := m.store.Bounds(partitionOf(&is, p)); err != nil || end == 0 && m.messages[partitionOf(&is, p)] {
					return fmt.Errorf("topic %v lost messages: %v", n, err)
				}
			}
			continue
		}
		// It went: the registry deleted it, in the generation in which it had told of it, or it was empty here.
		deleted := m.deleted[lifeOf(was.Origin.Generation, names[n.namespace], n.name, was.Origin.Created)]
		for g := range m.deleted { // told of again by a later generation than the record that we saw last
			if rest, ok := strings.CutSuffix(g, lifeOf(0, names[n.namespace], n.name, was.Origin.Created)[1:]); ok && rest != "" {
				deleted = true
			}
		}
		if !deleted && m.holds(&was) {
			return fmt.Errorf("topic %v, %+v, went though nobody deleted it", n, was.Origin)
		}
	}
	for n, is := range now {
		if was, there := before[n]; there && was.Incarnation == is.Incarnation {
			continue
		}
		for p := range is.Partitions {
			if _, end, err := m.store.Bounds(partitionOf(&is, p)); err != nil || end != 0 && !m.messages[partitionOf(&is, p)] {
				return fmt.Errorf("topic %v was made with messages: %d, %v", n, end, err)
			}
		}
	}
	if s == nil {
		return nil
	}
	for o := range s.All(meta.KindTopic) {
		want := o.Spec.(*meta.Topic)
		is, there := now[topicName{m.number(o.Namespace), o.Name}]
		if !slices.Contains(want.BrokerGroups, "here") {
			if there && is.Origin.Generation == uint64(s.Generation) && is.Origin.Version <= uint64(s.Version) && !m.holds(&is) {
				return fmt.Errorf("%v is not wanted here, and empty: %+v", o.Key, is)
			}
			continue
		}
		if there && is.Origin.Generation == uint64(s.Generation) && is.Origin.Version > uint64(s.Version) && !newest {
			continue
		}
		if !there || is.Origin.Created != uint64(o.Created) || is.Origin.Generation != uint64(s.Generation) || is.Partitions < uint32(want.Partitions) ||
			is.Settings.RetentionBytes != want.RetentionBytes || is.Settings.PauseProduce != want.PauseProduce {
			return fmt.Errorf("%v of version %d is %+v, want %+v created in %d, generation %d", o.Key, s.Version, is, want, o.Created, s.Generation)
		}
		delete(now, topicName{m.number(o.Namespace), o.Name})
	}
	kept := &m.broker.metadata.kept
	kept.Lock()
	defer kept.Unlock()
	for n := range kept.why {
		if _, there := m.stored[n]; !there {
			return fmt.Errorf("topic %v is told as kept (%s), and is not there: %v", n, kept.why[n], m.stored)
		}
	}
	for n, is := range now {
		if kept.why[n] == "" && newest {
			return fmt.Errorf("topic %v is there, %+v, and nobody knows why", n, is.Origin)
		}
	}
	if len(m.broker.metadata.follow.todo) > 0 && len(m.broker.metadata.follow.todo) != len(m.broker.metadata.follow.left) {
		return fmt.Errorf("%v is yet to be done", m.broker.metadata.follow.todo)
	}
	return nil
}

// TestApplyBusy applies the metadata of many topics, of which some cannot be made: the others are, rights are in force at once, and those
// are made by the next Apply.
func TestApplyBusy(t *testing.T) {
	r := newRuled(t, Options{TopicsMax: 50})
	defer r.close()
	var what []any
	for i := range 60 {
		what = append(what, meta.KindTopic, fmt.Sprint("t", i), &meta.Topic{Partitions: 1, BrokerGroups: []string{"here"}})
	}
	r.set(what...)
	err := r.broker.Apply(context.Background(), r.registry.View())
	if err == nil || !strings.Contains(err.Error(), "10 of 60") || len(r.store.Topics()) != 50 {
		t.Fatal(err, len(r.store.Topics()))
	}
	if m := r.broker.Metrics().Metadata; m.TopicsPending != 10 || m.Version != uint64(r.registry.View().Version) {
		t.Errorf("%+v", m)
	}
	made := 0
	for i := range 60 {
		err := r.send(as("local"), fmt.Sprint("t", i), 1)
		if err == nil {
			made++
		} else {
			wantCode(t, "send to one that is not made", err, wire.CodeBusy)
		}
	}
	if made != 50 {
		t.Errorf("%d take messages", made)
	}
	what = nil
	for i := range 20 {
		what = append(what, meta.KindTopic, fmt.Sprint("t", i), nil)
	}
	r.set(what...)
	// Room is made by the same Apply, or the next.
	for range 2 {
		err = r.broker.Apply(context.Background(), r.registry.View())
	}
	if err != nil || len(r.store.Topics()) != 40 || r.broker.Metrics().Metadata.TopicsPending != 0 {
		t.Fatal(err, len(r.store.Topics()))
	}
	if err := r.broker.Apply(context.Background(), meta.Initial(1)); !errors.Is(err, errOldMetadata) {
		t.Error(err)
	}
}

// TestApplyKeeps runs a broker without metadata, and then with: what the registry knows by name is taken over with its messages, the rest is
// kept and not served.
func TestApplyKeeps(t *testing.T) {
	r := newRuled(t, Options{})
	r.o.Metadata = false
	r.close()
	r.open()
	r.topic("orders", 2)
	r.topic("old", 1)
	if _, err := r.produce("orders", 1, batch(t, 3, 10)); err != nil {
		t.Fatal(err)
	}
	r.close()
	r.o.Metadata = true
	r.open()
	defer func() { r.close() }()
	r.orders(1)
	if n := r.broker.Metrics().Metadata.TopicsUnknown; n != 1 {
		t.Errorf("%d topics are unknown", n)
	}
	is, _ := r.store.Topic(0, "orders")
	if _, end, err := r.store.Bounds(partitionOf(&is, 1)); err != nil || end != 3 || is.Partitions != 2 || is.Origin.Created == 0 {
		t.Errorf("%d messages, %v, %+v", end, err, is)
	}
	wantCode(t, "send", r.send(r.app("shop", "s"), "orders", 1), wire.CodeOK)
	wantCode(t, "send to what is not known", r.send(as("local"), "old", 1), wire.CodeTopicNotFound)
	// A route that changes throws nothing away; when it changes back all is there.
	r.change(meta.KindTopic, "orders", &meta.Topic{Partitions: 1, BrokerGroups: []string{"there"}})
	wantCode(t, "send to what went elsewhere", r.send(as("local"), "orders", 1), wire.CodePartitionNotFound)
	if n := r.broker.Metrics().Metadata.TopicsUnknown; n != 2 {
		t.Errorf("%d topics are unknown", n)
	}
	r.change(meta.KindTopic, "orders", &meta.Topic{Partitions: 3, BrokerGroups: []string{"there", "here"}})
	is, _ = r.store.Topic(0, "orders")
	if _, end, err := r.store.Bounds(partitionOf(&is, 1)); err != nil || end != 3 || is.Partitions != 3 {
		t.Errorf("%d messages, %v, %+v", end, err, is)
	}
}

// TestMadeAgainUnderLoad deletes a topic and makes it again while clients send and consume: what was committed before a deletion is never
// given after it.
func TestMadeAgainUnderLoad(t *testing.T) {
	r := newRuled(t, Options{})
	defer r.close()
	r.orders(2)
	const lives = 15
	var sent, life atomic.Uint64 // message numbers; lives of the topic that have begun
	life.Store(1)
	dead := make([]atomic.Uint64, 1<<20) // by number: the first life in which it must not come
	var mu sync.Mutex
	var committed []uint64 // numbers of this life
	stop := make(chan struct{})
	over := func() bool {
		select {
		case <-stop:
			return true
		default:
			return false
		}
	}
	var all sync.WaitGroup
	var got atomic.Uint64
	for s := range 3 {
		ctx := r.app("shop", fmt.Sprint("s", s))
		all.Go(func() {
			var id, version atomic.Uint64 // as it was told last, of whichever life
			for !over() {
				n := sent.Add(1)
				b, err := wire.AppendBatch(nil, [16]byte{}, n, messages(1, 10))
				if err != nil {
					t.Error(err)
					return
				}
				done := make(chan error, 1)
				r.broker.Produce(ctx, &wire.ProduceRequest{Topic: "orders", TopicID: id.Load(), RouteVersion: version.Load(), Partition: uint16(s % 2), Batch: b},
					func(r *wire.ProduceResponse, err error) {
						if err == nil && r.RouteVersion > 0 {
							id.Store(r.TopicID)
							version.Store(r.RouteVersion)
						}
						done <- err
					})
				switch err := <-done; wire.CodeOf(err) {
				case wire.CodeOK:
					mu.Lock()
					committed = append(committed, n)
					mu.Unlock()
				case wire.CodeBusy, wire.CodeTopicNotFound, wire.CodeForbidden, wire.CodePartitionNotFound:
				default:
					t.Error(err)
				}
			}
		})
	}
	for c := range uint32(3) {
		ctx := r.app("pay", fmt.Sprint("p", c))
		all.Go(func() {
			for !over() {
				began := life.Load()
				f := <-r.startFetch(ctx, wire.FetchRequest{Topic: "orders", Group: "pay", Member: c, WaitMs: 50, MessagesMax: 10})
				switch wire.CodeOf(f.err) {
				case wire.CodeOK:
				case wire.CodeGroupNotFound, wire.CodeTopicNotFound, wire.CodeForbidden, wire.CodeBusy:
					_ = r.join(ctx, "orders", "pay") // refused for the same reasons
					continue
				default:
					t.Error(f.err)
					return
				}
				for rest := f.Batches; len(rest) > 0; {
					one, more, err := wire.SplitBatch(rest)
					if err != nil {
						t.Error(err)
						return
					}
					rest = more
					if since := dead[one.Sequence()].Load(); since > 0 && since <= began {
						t.Errorf("message %d came in life %d of the topic, which was deleted before life %d", one.Sequence(), began, since)
					}
					got.Add(1)
				}
				if f.Lease != 0 {
					done := make(chan struct{})
					r.broker.Ack(ctx, &wire.AckRequest{Topic: "orders", Group: "pay", Member: c, Items: ackAll(f).Items}, func(*wire.AckResponse, error) { close(done) })
					<-done
				}
			}
		})
	}
	for n := range uint64(lives) {
		enough := func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(committed) >= 20 && (n+1 < lives || got.Load() > 0) // consumers may have been too slow for all lives but the last
		}
		for !enough() && !t.Failed() {
			runtime.Gosched()
		}
		mu.Lock()
		before := committed
		committed = nil
		mu.Unlock()
		if n%2 == 0 { // in one change that the broker sees as another topic; else as gone first
			r.set(meta.KindTopic, "orders", nil, meta.KindProducer, "orders/shop", nil, meta.KindConsumer, "orders/pay", nil, meta.KindConsumer, "orders/audit", nil)
		} else {
			r.change(meta.KindTopic, "orders", nil, meta.KindProducer, "orders/shop", nil, meta.KindConsumer, "orders/pay", nil, meta.KindConsumer, "orders/audit", nil)
		}
		r.orders(2)
		for _, number := range before {
			dead[number].Store(n + 2)
		}
		life.Store(n + 2)
	}
	close(stop)
	all.Wait()
}

// TestNamespaceMadeAgain deletes a namespace with its topic and makes both again between two looks: the topic of the old number goes,
// and one of the new number is made.
func TestNamespaceMadeAgain(t *testing.T) {
	r := newRuled(t, Options{})
	defer r.close()
	topic := meta.Key{Kind: meta.KindTopic, Namespace: "test", Name: "orders"}
	update := func(w ...meta.Write) {
		t.Helper()
		if _, err := r.registry.Update(context.Background(), meta.Change{Writes: w}); err != nil {
			t.Fatal(err)
		}
	}
	create := func() {
		t.Helper()
		update(meta.Write{Key: meta.Key{Kind: meta.KindNamespace, Name: "test"}, Spec: &meta.Namespace{}, Expect: meta.Expect{Create: true}},
			meta.Write{Key: topic, Spec: &meta.Topic{Partitions: 1, BrokerGroups: []string{"here"}}, Expect: meta.Expect{Create: true}})
	}
	create()
	r.apply()
	was := r.store.Topics()
	update(meta.Write{Key: topic, Expect: meta.Expect{Any: true}})
	update(meta.Write{Key: meta.Key{Kind: meta.KindNamespace, Name: "test"}, Expect: meta.Expect{Any: true}})
	create()
	r.apply()
	is := r.store.Topics()
	if len(was) != 1 || len(is) != 1 || was[0].Namespace == is[0].Namespace || is[0].Namespace != r.registry.View().Namespace("test").ID {
		t.Errorf("%+v, then %+v", was, is)
	}
}
