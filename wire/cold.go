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
		return h.services.Broker.Subscribe(ctx, r)
	}),
	CommandRoute: cold(topicOnly, func(h *Handler, ctx context.Context, r *RouteRequest) (*RouteResponse, error) {
		return h.services.Broker.Route(ctx, r)
	}),
	CommandExtend: cold(topicAndGroup, func(h *Handler, ctx context.Context, r *ExtendRequest) (*ExtendResponse, error) {
		return h.services.Broker.Extend(ctx, r)
	}),
	CommandCreateTopic: cold(topicOnly, func(h *Handler, ctx context.Context, r *CreateTopicRequest) (*CreateTopicResponse, error) {
		return h.services.Admin.CreateTopic(ctx, r)
	}),
	CommandAlterTopic: cold(topicOnly, func(h *Handler, ctx context.Context, r *AlterTopicRequest) (*AlterTopicResponse, error) {
		return h.services.Admin.AlterTopic(ctx, r)
	}),
	CommandDeleteTopic: cold(topicOnly, func(h *Handler, ctx context.Context, r *DeleteTopicRequest) (*DeleteTopicResponse, error) {
		return h.services.Admin.DeleteTopic(ctx, r)
	}),
	CommandDescribeTopic: cold(topicOnly, func(h *Handler, ctx context.Context, r *DescribeTopicRequest) (*DescribeTopicResponse, error) {
		return h.services.Admin.DescribeTopic(ctx, r)
	}),
	CommandListTopics: cold(anything, func(h *Handler, ctx context.Context, r *ListTopicsRequest) (*ListTopicsResponse, error) {
		return h.services.Admin.ListTopics(ctx, r)
	}),
	CommandGroupLag: cold(topicAndAnyGroup, func(h *Handler, ctx context.Context, r *GroupLagRequest) (*GroupLagResponse, error) {
		return h.services.Admin.GroupLag(ctx, r)
	}),
	CommandListGroups: cold(anyTopicAndGroup, func(h *Handler, ctx context.Context, r *ListGroupsRequest) (*ListGroupsResponse, error) {
		return h.services.Admin.ListGroups(ctx, r)
	}),
	CommandSeekGroup: cold(topicAndGroup, func(h *Handler, ctx context.Context, r *SeekGroupRequest) (*SeekGroupResponse, error) {
		return h.services.Admin.SeekGroup(ctx, r)
	}),
	CommandAlterGroup: cold(topicAndGroup, func(h *Handler, ctx context.Context, r *AlterGroupRequest) (*AlterGroupResponse, error) {
		return h.services.Admin.AlterGroup(ctx, r)
	}),
	CommandRemoveGroup: cold(topicAndGroup, func(h *Handler, ctx context.Context, r *RemoveGroupRequest) (*RemoveGroupResponse, error) {
		return h.services.Admin.RemoveGroup(ctx, r)
	}),
	CommandPeek: cold(topicOnly, func(h *Handler, ctx context.Context, r *PeekRequest) (*PeekResponse, error) {
		return h.services.Admin.Peek(ctx, r)
	}),
	CommandStoreUsage: cold(anything, func(h *Handler, ctx context.Context, r *StoreUsageRequest) (*StoreUsageResponse, error) {
		return h.services.Admin.StoreUsage(ctx, r)
	}),
	CommandHeartbeat: cold(checkHeartbeat, func(h *Handler, ctx context.Context, r *HeartbeatRequest) (*HeartbeatResponse, error) {
		return h.services.Registry.Heartbeat(ctx, r)
	}),
	CommandListNodes: cold(anything, func(h *Handler, ctx context.Context, r *ListNodesRequest) (*ListNodesResponse, error) {
		return h.services.Registry.ListNodes(ctx, r)
	}),
	CommandListObjects: cold(checkListObjects, func(h *Handler, ctx context.Context, r *ListObjectsRequest) (*ListObjectsResponse, error) {
		return h.services.Registry.ListObjects(ctx, r)
	}),
	CommandApplyObjects: cold(checkApplyObjects, func(h *Handler, ctx context.Context, r *ApplyObjectsRequest) (*ApplyObjectsResponse, error) {
		return h.services.Registry.ApplyObjects(ctx, r)
	}),
	CommandCreateCredential: cold(checkCreateCredential, func(h *Handler, ctx context.Context, r *CreateCredentialRequest) (*CreateCredentialResponse, error) {
		return h.services.Registry.CreateCredential(ctx, r)
	}),
	CommandListAudit: cold(checkListAudit, func(h *Handler, ctx context.Context, r *ListAuditRequest) (*ListAuditResponse, error) {
		return h.services.Registry.ListAudit(ctx, r)
	}),
	CommandNewGeneration: cold(func(r *NewGenerationRequest) error { return checkText("reason", r.Reason, ReasonBytesMax) },
		func(h *Handler, ctx context.Context, r *NewGenerationRequest) (*NewGenerationResponse, error) {
			return h.services.Registry.NewGeneration(ctx, r)
		}),
}
