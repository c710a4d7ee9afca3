package wire

import (
	"context"

	"google.golang.org/protobuf/proto"
)

// coldCommand reads the header of a command that may block, judges it, and returns what carries it out.
type coldCommand func(h *Handler, header []byte) (run func(context.Context) (proto.Message, error), err error)

// cold makes one of a request's check and of what carries it out.
func cold[Q any, R proto.Message, P interface {
	*Q
	proto.Message
}](check func(P) error, run func(*Handler, context.Context, P) (R, error)) coldCommand {
	return func(h *Handler, header []byte) (func(context.Context) (proto.Message, error), error) {
		r := P(new(Q))
		if err := proto.Unmarshal(header, r); err != nil {
			return nil, errHeader
		}
		if err := check(r); err != nil {
			return nil, err
		}
		return func(ctx context.Context) (proto.Message, error) { return run(h, ctx, r) }, nil
	}
}

type ofTopic interface{ GetTopic() string }

type ofGroup interface {
	ofTopic
	GetGroup() string
}

func anything[P any](P) error { return nil }

func topicOnly[P ofTopic](r P) error { return CheckTopic(r.GetTopic()) }

func topicAndGroup[P ofGroup](r P) error {
	if err := CheckTopic(r.GetTopic()); err != nil {
		return err
	}
	return CheckGroup(r.GetGroup())
}

// topicAndAnyGroup lets the group be empty: all of them.
func topicAndAnyGroup[P ofGroup](r P) error {
	if r.GetGroup() == "" {
		return CheckTopic(r.GetTopic())
	}
	return topicAndGroup(r)
}

// anyTopicAndGroup lets both be empty: all of them.
func anyTopicAndGroup[P ofGroup](r P) error {
	if r.GetTopic() != "" {
		if err := CheckTopic(r.GetTopic()); err != nil {
			return err
		}
	}
	if r.GetGroup() != "" {
		return CheckGroup(r.GetGroup())
	}
	return nil
}

var coldCommands = map[Command]coldCommand{
	CommandSubscribe: cold(topicAndGroup, func(h *Handler, ctx context.Context, r *SubscribeRequest) (*SubscribeResponse, error) {
		return h.broker.Subscribe(ctx, r)
	}),
	CommandRoute: cold(topicOnly, func(h *Handler, ctx context.Context, r *RouteRequest) (*RouteResponse, error) {
		return h.broker.Route(ctx, r)
	}),
	CommandExtend: cold(topicAndGroup, func(h *Handler, ctx context.Context, r *ExtendRequest) (*ExtendResponse, error) {
		return h.broker.Extend(ctx, r)
	}),
	CommandCreateTopic: cold(topicOnly, func(h *Handler, ctx context.Context, r *CreateTopicRequest) (*CreateTopicResponse, error) {
		return h.admin.CreateTopic(ctx, r)
	}),
	CommandAlterTopic: cold(topicOnly, func(h *Handler, ctx context.Context, r *AlterTopicRequest) (*AlterTopicResponse, error) {
		return h.admin.AlterTopic(ctx, r)
	}),
	CommandDeleteTopic: cold(topicOnly, func(h *Handler, ctx context.Context, r *DeleteTopicRequest) (*DeleteTopicResponse, error) {
		return h.admin.DeleteTopic(ctx, r)
	}),
	CommandDescribeTopic: cold(topicOnly, func(h *Handler, ctx context.Context, r *DescribeTopicRequest) (*DescribeTopicResponse, error) {
		return h.admin.DescribeTopic(ctx, r)
	}),
	CommandListTopics: cold(anything, func(h *Handler, ctx context.Context, r *ListTopicsRequest) (*ListTopicsResponse, error) {
		return h.admin.ListTopics(ctx, r)
	}),
	CommandGroupLag: cold(topicAndAnyGroup, func(h *Handler, ctx context.Context, r *GroupLagRequest) (*GroupLagResponse, error) {
		return h.admin.GroupLag(ctx, r)
	}),
	CommandListGroups: cold(anyTopicAndGroup, func(h *Handler, ctx context.Context, r *ListGroupsRequest) (*ListGroupsResponse, error) {
		return h.admin.ListGroups(ctx, r)
	}),
	CommandSeekGroup: cold(topicAndGroup, func(h *Handler, ctx context.Context, r *SeekGroupRequest) (*SeekGroupResponse, error) {
		return h.admin.SeekGroup(ctx, r)
	}),
	CommandAlterGroup: cold(topicAndGroup, func(h *Handler, ctx context.Context, r *AlterGroupRequest) (*AlterGroupResponse, error) {
		return h.admin.AlterGroup(ctx, r)
	}),
	CommandRemoveGroup: cold(topicAndGroup, func(h *Handler, ctx context.Context, r *RemoveGroupRequest) (*RemoveGroupResponse, error) {
		return h.admin.RemoveGroup(ctx, r)
	}),
	CommandPeek: cold(topicOnly, func(h *Handler, ctx context.Context, r *PeekRequest) (*PeekResponse, error) {
		return h.admin.Peek(ctx, r)
	}),
	CommandStoreUsage: cold(anything, func(h *Handler, ctx context.Context, r *StoreUsageRequest) (*StoreUsageResponse, error) {
		return h.admin.StoreUsage(ctx, r)
	}),
}
