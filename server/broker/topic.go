package broker

import (
	"context"
	"errors"
	"math"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/wire"
)

// CreateTopic implements wire.Admin.
func (b *Broker) CreateTopic(ctx context.Context, r *wire.CreateTopicRequest) (*wire.CreateTopicResponse, error) {
	var t store.Topic
	do := func(ctx context.Context) (err error) {
		t, err = b.createTopic(ctx, r)
		return err
	}
	var err error
	if r.Settings.GetPauseConsume() {
		err = b.change(ctx, "", do) // dispatch must learn of it, before the next one
	} else {
		err = do(ctx)
	}
	if err != nil {
		return nil, b.refuse(err)
	}
	return &wire.CreateTopicResponse{Topic: topicMessage(&t)}, nil
}

func (b *Broker) createTopic(ctx context.Context, r *wire.CreateTopicRequest) (store.Topic, error) {
	if err := b.master(); err != nil {
		return store.Topic{}, err
	}
	if err := b.ruled(); err != nil {
		return store.Topic{}, err
	}
	if err := wire.CheckTopic(r.Topic); err != nil {
		return store.Topic{}, err
	}
	if r.Partitions < 1 || r.Partitions > PartitionsMax {
		return store.Topic{}, wire.Errorf(wire.CodeInvalid, "%d partitions, 1 to %d are possible", r.Partitions, PartitionsMax)
	}
	settings, err := settingsOf(r.Settings, store.Settings{})
	if err != nil {
		return store.Topic{}, err
	}
	who := wire.PeerFrom(ctx)
	t, there := b.store.Topic(who.Namespace, r.Topic)
	err = error(store.ErrTopicExists)
	if !there {
		t, err = b.makeTopic(ctx, store.Topic{Namespace: who.Namespace, Name: r.Topic, Partitions: r.Partitions, Settings: settings}, whoText(who))
	}
	if errors.Is(err, store.ErrTopicExists) {
		if t.Partitions != r.Partitions {
			return t, wire.Errorf(wire.CodeTopicExists, "topic %q is there with %d partitions, not %d", t.Name, t.Partitions, r.Partitions)
		}
		if asked, err := settingsOf(r.Settings, t.Settings); err != nil || asked != t.Settings {
			return t, wire.Errorf(wire.CodeTopicExists, "topic %q is there with other settings: alter them", t.Name)
		}
		return t, nil
	}
	return t, err
}

// makeTopic makes a topic that was not there.
func (b *Broker) makeTopic(ctx context.Context, wanted store.Topic, who string) (store.Topic, error) {
	if err := b.room.topic(b, int(wanted.Partitions)); err != nil {
		return store.Topic{}, err
	}
	t, err := b.store.CreateTopic(ctx, wanted, who)
	if err != nil {
		b.room.leaveTopic(int(wanted.Partitions), ctx.Err() == nil)
		return t, err
	}
	if t.Settings.PauseConsume {
		b.dispatch.SetPaused(topicKey(&t), true)
	}
	b.o.Logger.Info("a topic was made", "topic", t.Name, "id", t.ID, "partitions", t.Partitions, "settings", t.Settings, "who", who)
	return t, nil
}

// AlterTopic implements wire.Admin.
func (b *Broker) AlterTopic(ctx context.Context, r *wire.AlterTopicRequest) (*wire.AlterTopicResponse, error) {
	var t store.Topic
	err := b.change(ctx, r.Reason, func(ctx context.Context) (err error) {
		t, err = b.alterTopic(ctx, r)
		return err
	})
	if err != nil {
		return nil, b.refuse(err)
	}
	return &wire.AlterTopicResponse{Topic: topicMessage(&t)}, nil
}

func (b *Broker) alterTopic(ctx context.Context, r *wire.AlterTopicRequest) (store.Topic, error) {
	if err := b.ruled(); err != nil {
		return store.Topic{}, err
	}
	who := wire.PeerFrom(ctx)
	t, err := b.topic(who.Namespace, r.Topic)
	if err != nil {
		return t, err
	}
	settings, err := settingsOf(r.Settings, t.Settings)
	if err != nil {
		return t, err
	}
	c := store.Change{Who: whoText(who), Why: r.Reason}
	if r.Partitions != nil && *r.Partitions != t.Partitions {
		if *r.Partitions < t.Partitions || *r.Partitions > PartitionsMax {
			return t, wire.Errorf(wire.CodeInvalid, "%d partitions, topic %q has %d: %d to %d are possible", *r.Partitions, t.Name, t.Partitions, t.Partitions, PartitionsMax)
		}
		c.Partitions = *r.Partitions
	}
	if settings != t.Settings {
		c.Settings = &settings
	}
	if c.Partitions == 0 && c.Settings == nil {
		return t, nil
	}
	return b.alterTopicBy(ctx, &t, c)
}

// alterTopicBy alters a topic. A change that gives it more partitions must be within b.change.
func (b *Broker) alterTopicBy(ctx context.Context, was *store.Topic, c store.Change) (store.Topic, error) {
	key, more, rows := topicKey(was), 0, 0
	if c.Partitions > was.Partitions {
		// No group is born meanwhile: each has as many partitions as is counted.
		if err := b.births.hold(ctx, key); err != nil {
			return *was, err
		}
		defer b.births.release(key)
		more = int(c.Partitions - was.Partitions)
		rows = more * len(b.offsets().GroupsOf(key))
		if err := b.room.more(&b.o, more, rows); err != nil {
			return *was, err
		}
	}
	t, err := b.store.AlterTopic(ctx, was.ID, was.Incarnation, c)
	if err != nil {
		b.room.less(0, more, rows)
		return t, err
	}
	b.dispatch.SetPaused(key, t.Settings.PauseConsume)
	if more > 0 {
		b.dispatch.Grow(key, int(t.Partitions))
	}
	b.o.Logger.Info("a topic was altered", "topic", t.Name, "id", t.ID, "partitions", t.Partitions, "was", was.Partitions,
		"settings", t.Settings, "wereSettings", was.Settings, "who", c.Who, "why", c.Why)
	return t, nil
}

// DeleteTopic implements wire.Admin.
func (b *Broker) DeleteTopic(ctx context.Context, r *wire.DeleteTopicRequest) (*wire.DeleteTopicResponse, error) {
	var t store.Topic
	err := b.change(ctx, r.Reason, func(ctx context.Context) (err error) {
		t, err = b.deleteTopic(ctx, r)
		return err
	})
	if err != nil {
		return nil, b.refuse(err)
	}
	return &wire.DeleteTopicResponse{Topic: topicMessage(&t)}, nil
}

func (b *Broker) deleteTopic(ctx context.Context, r *wire.DeleteTopicRequest) (store.Topic, error) {
	if err := b.ruled(); err != nil {
		return store.Topic{}, err
	}
	who := wire.PeerFrom(ctx)
	t, err := b.topic(who.Namespace, r.Topic)
	if err != nil {
		return t, err
	}
	return t, b.deleteTopicBy(ctx, &t, whoText(who), r.Reason)
}

// deleteTopicBy deletes a topic. It must be within b.change.
func (b *Broker) deleteTopicBy(ctx context.Context, t *store.Topic, who, why string) error {
	// No birth may follow the record: it would be a group on a topic that is not there.
	key := topicKey(t)
	if err := b.births.hold(ctx, key); err != nil {
		return err
	}
	defer b.births.release(key)
	groups := len(b.offsets().GroupsOf(key))
	if err := b.store.DeleteTopic(ctx, t.ID, t.Incarnation, who, why); err != nil {
		return err
	}
	b.dispatch.ForgetTopic(key)
	b.room.less(1, int(t.Partitions), int(t.Partitions)*groups)
	b.o.Logger.Info("a topic was deleted", "topic", t.Name, "id", t.ID, "partitions", t.Partitions, "groups", groups, "who", who, "why", why)
	return nil
}

// ListTopics implements wire.Admin.
func (b *Broker) ListTopics(ctx context.Context, _ *wire.ListTopicsRequest) (*wire.ListTopicsResponse, error) {
	if err := b.check(); err != nil {
		return nil, err
	}
	response := &wire.ListTopicsResponse{}
	who := wire.PeerFrom(ctx)
	for _, t := range b.store.Topics() {
		if t.Namespace == who.Namespace && b.mayRead(who, &t) {
			response.Topics = append(response.Topics, topicMessage(&t))
		}
	}
	return response, nil
}

// DescribeTopic implements wire.Admin.
func (b *Broker) DescribeTopic(ctx context.Context, r *wire.DescribeTopicRequest) (*wire.DescribeTopicResponse, error) {
	var response *wire.DescribeTopicResponse
	err := b.weigh(ctx, func() (err error) {
		response, err = b.describeTopic(ctx, r)
		return err
	})
	if err != nil {
		return nil, b.refuse(err)
	}
	return response, nil
}

func (b *Broker) describeTopic(ctx context.Context, r *wire.DescribeTopicRequest) (*wire.DescribeTopicResponse, error) {
	who := wire.PeerFrom(ctx)
	t, err := b.topic(who.Namespace, r.Topic)
	if b.o.Metadata && !b.mayRead(who, &store.Topic{Name: r.Topic}) {
		err = b.denied(wire.Errorf(wire.CodeForbidden, "topic %q may not be seen by %v %s", r.Topic, who.Principal.Kind, who.Principal.Name))
	}
	if err != nil {
		return nil, err
	}
	effective := t.Settings
	if effective.RetentionAge == 0 {
		effective.RetentionAge = orNever(b.o.Retention.RetentionAge)
	}
	if effective.RetentionBytes == 0 {
		effective.RetentionBytes = orNever(b.o.Retention.RetentionBytes)
	}
	response := &wire.DescribeTopicResponse{Topic: topicMessage(&t), Effective: settingsMessage(effective)}
	for p := range t.Partitions {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		row, err := b.describePartition(partitionOf(&t, p))
		if err != nil {
			return nil, err
		}
		response.Partitions = append(response.Partitions, row)
	}
	size := proto.Size(response)
	for _, g := range b.offsets().GroupsOf(topicKey(&t)) {
		if size += len(g.Name) + 4; size > answerBytesMax {
			return nil, wire.Errorf(wire.CodeTooLarge, "the groups of topic %q are more than an answer holds: list them one by one", t.Name)
		}
		response.Groups = append(response.Groups, g.Name)
	}
	return response, nil
}

func orNever[T ~int64](v T) T {
	if v == 0 {
		return -1
	}
	return v
}

func (b *Broker) describePartition(p store.Partition) (*wire.TopicPartition, error) {
	first, end, err := b.store.Bounds(p)
	if err != nil {
		return nil, err
	}
	bytes, err := b.store.Bytes(p)
	if err != nil {
		return nil, err
	}
	row := &wire.TopicPartition{Partition: uint32(p.Partition), First: uint64(first), End: uint64(end), Bytes: uint64(max(bytes, 0))}
	if first < end {
		// What cannot be read, or was trimmed meanwhile, has no time; all else is told.
		row.OldestNs, _ = b.store.Stored(p, first)
		row.NewestNs, _ = b.store.Stored(p, end-1)
	}
	return row, nil
}

func topicMessage(t *store.Topic) *wire.Topic {
	return &wire.Topic{Name: t.Name, Id: uint64(t.ID), Incarnation: t.Incarnation, Partitions: t.Partitions, CreatedNs: t.Created, Settings: settingsMessage(t.Settings)}
}

func settingsMessage(s store.Settings) *wire.TopicSettings {
	age := s.RetentionAge.Milliseconds()
	if s.RetentionAge < 0 {
		age = -1
	}
	bytes := max(s.RetentionBytes, -1)
	return &wire.TopicSettings{RetentionMs: &age, RetentionBytes: &bytes, DiscardUnconsumed: &s.DiscardUnconsumed, PauseProduce: &s.PauseProduce, PauseConsume: &s.PauseConsume}
}

const retentionMsMax = math.MaxInt64 / int64(time.Millisecond)

// settingsOf returns s with what m says.
func settingsOf(m *wire.TopicSettings, s store.Settings) (store.Settings, error) {
	if m == nil {
		return s, nil
	}
	if v := m.RetentionMs; v != nil {
		if *v < -1 || *v > retentionMsMax {
			return s, wire.Errorf(wire.CodeInvalid, "retention of %d ms: 0 is the broker's default, -1 for ever, at most %d is possible", *v, retentionMsMax)
		}
		if s.RetentionAge = time.Duration(*v) * time.Millisecond; *v < 0 {
			s.RetentionAge = -1
		}
	}
	if v := m.RetentionBytes; v != nil {
		if *v < -1 {
			return s, wire.Errorf(wire.CodeInvalid, "retention of %d bytes: 0 is the broker's default, -1 without limit", *v)
		}
		s.RetentionBytes = *v
	}
	setIf(&s.DiscardUnconsumed, m.DiscardUnconsumed)
	setIf(&s.PauseProduce, m.PauseProduce)
	setIf(&s.PauseConsume, m.PauseConsume)
	return s, nil
}

func setIf(v, to *bool) {
	if to != nil {
		*v = *to
	}
}

// Route implements wire.Broker. All partitions of a topic are in this broker group; the version grows with them.
func (b *Broker) Route(ctx context.Context, r *wire.RouteRequest) (*wire.RouteResponse, error) {
	if b.o.Metadata && b.o.Route != nil {
		response, err := b.o.Route(ctx, r)
		if err != nil {
			return nil, b.refuse(err)
		}
		return response, nil
	}
	t, err := b.route(ctx, r)
	if err != nil {
		return nil, b.refuse(err)
	}
	response := &wire.RouteResponse{Version: routeVersion(&t), TopicId: uint64(t.ID), Incarnation: t.Incarnation}
	for p := range t.Partitions {
		response.Partitions = append(response.Partitions, &wire.PartitionRoute{Partition: p, BrokerGroup: b.o.BrokerGroup})
	}
	return response, nil
}

func routeVersion(t *store.Topic) uint64 { return uint64(t.Incarnation)<<32 | uint64(t.Partitions) }

// incarnationOf is the topic's whose route has that version.
func incarnationOf(routeVersion uint64) uint32 { return uint32(routeVersion >> 32) }

func (b *Broker) route(ctx context.Context, r *wire.RouteRequest) (store.Topic, error) {
	if err := b.check(); err != nil {
		return store.Topic{}, err
	}
	who := wire.PeerFrom(ctx)
	t, err := b.topic(who.Namespace, r.Topic)
	if b.o.Metadata && !b.mayRead(who, &store.Topic{Name: r.Topic}) {
		err = b.absent(who, r.Topic, "", wire.Errorf(wire.CodeTopicNotFound, "topic %q is not there", r.Topic))
	}
	return t, err
}
