package broker

import (
	"context"
	"errors"

	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/wire"
)

// CreateTopic implements wire.Admin.
func (b *Broker) CreateTopic(ctx context.Context, r *wire.CreateTopicRequest) (*wire.CreateTopicResponse, error) {
	t, err := b.createTopic(ctx, r)
	if err != nil {
		b.failedBy(err)
		err = coded(err)
		b.metrics.refused(err)
		return nil, err
	}
	return &wire.CreateTopicResponse{Topic: topicMessage(&t)}, nil
}

func (b *Broker) createTopic(ctx context.Context, r *wire.CreateTopicRequest) (store.Topic, error) {
	if err := b.check(); err != nil {
		return store.Topic{}, err
	}
	if err := wire.CheckTopic(r.Topic); err != nil {
		return store.Topic{}, err
	}
	if r.Partitions < 1 || r.Partitions > PartitionsMax {
		return store.Topic{}, wire.Errorf(wire.CodeInvalid, "%d partitions, 1 to %d are possible", r.Partitions, PartitionsMax)
	}
	namespace := wire.PeerFrom(ctx).Namespace
	t, there := b.store.Topic(namespace, r.Topic)
	err := error(store.ErrTopicExists)
	if !there {
		if err := b.room.topic(b, int(r.Partitions)); err != nil {
			return store.Topic{}, err
		}
		if t, err = b.store.CreateTopic(ctx, namespace, r.Topic, r.Partitions); err != nil {
			b.room.leaveTopic(int(r.Partitions), ctx.Err() == nil)
		}
	}
	if errors.Is(err, store.ErrTopicExists) {
		if t.Partitions == r.Partitions {
			return t, nil
		}
		return t, wire.Errorf(wire.CodeTopicExists, "topic %q is there with %d partitions, not %d", t.Name, t.Partitions, r.Partitions)
	}
	if err == nil {
		b.o.Logger.Info("a topic was made", "topic", t.Name, "id", t.ID, "partitions", t.Partitions)
	}
	return t, err
}

// ListTopics implements wire.Admin.
func (b *Broker) ListTopics(ctx context.Context, _ *wire.ListTopicsRequest) (*wire.ListTopicsResponse, error) {
	if err := b.check(); err != nil {
		return nil, err
	}
	response := &wire.ListTopicsResponse{}
	namespace := wire.PeerFrom(ctx).Namespace
	for _, t := range b.store.Topics() {
		if t.Namespace == namespace {
			response.Topics = append(response.Topics, topicMessage(&t))
		}
	}
	return response, nil
}

func topicMessage(t *store.Topic) *wire.Topic {
	return &wire.Topic{Name: t.Name, Id: uint64(t.ID), Incarnation: t.Incarnation, Partitions: t.Partitions, CreatedNs: t.Created}
}

// Route implements wire.Broker. All partitions of a topic are in this broker group; the version grows with them.
func (b *Broker) Route(ctx context.Context, r *wire.RouteRequest) (*wire.RouteResponse, error) {
	t, err := b.route(ctx, r)
	if err != nil {
		b.metrics.refused(err)
		return nil, err
	}
	response := &wire.RouteResponse{Version: uint64(t.Incarnation)<<32 | uint64(t.Partitions), TopicId: uint64(t.ID), Incarnation: t.Incarnation}
	for p := range t.Partitions {
		response.Partitions = append(response.Partitions, &wire.PartitionRoute{Partition: p, BrokerGroup: b.o.BrokerGroup})
	}
	return response, nil
}

func (b *Broker) route(ctx context.Context, r *wire.RouteRequest) (store.Topic, error) {
	if err := b.check(); err != nil {
		return store.Topic{}, err
	}
	return b.topic(wire.PeerFrom(ctx).Namespace, r.Topic)
}
