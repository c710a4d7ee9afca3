package wire

import (
	"bytes"
	"context"

	"google.golang.org/protobuf/proto"
)

// coldRun carries a cold command out; the bytes are the payload of its answer.
type coldRun func(context.Context) (proto.Message, []byte, error)

// coldCommand reads the header of a command that may block, judges it, and returns what carries it out. payload is valid only
// until it returns.
type coldCommand func(h *Handler, header, payload []byte) (run coldRun, err error)

// cold makes one of a request's check and of what carries it out.
func cold[Q any, R proto.Message, P interface {
	*Q
	proto.Message
}](check func(P) error, run func(*Handler, context.Context, P) (R, error)) coldCommand {
	return coldBytes(check, func(h *Handler, ctx context.Context, r P, _ []byte) (R, []byte, error) {
		m, err := run(h, ctx, r)
		return m, nil, err
	})
}

// coldBytes is cold for a command whose request or answer has a payload.
func coldBytes[Q any, R proto.Message, P interface {
	*Q
	proto.Message
}](check func(P) error, run func(*Handler, context.Context, P, []byte) (R, []byte, error)) coldCommand {
	return func(h *Handler, header, payload []byte) (coldRun, error) {
		r := P(new(Q))
		if err := proto.Unmarshal(header, r); err != nil {
			return nil, errHeader
		}
		if err := check(r); err != nil {
			return nil, err
		}
		payload = bytes.Clone(payload)
		return func(ctx context.Context) (proto.Message, []byte, error) { return run(h, ctx, r, payload) }, nil
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
	CommandChangeReplication: cold(checkChangeReplication, func(h *Handler, ctx context.Context, r *ChangeReplicationRequest) (*ChangeReplicationResponse, error) {
		return h.services.Registry.ChangeReplication(ctx, r)
	}),
	CommandBrokerGroup: cold(checkBrokerGroup, func(h *Handler, ctx context.Context, r *BrokerGroupRequest) (*BrokerGroupResponse, error) {
		return h.services.Registry.BrokerGroup(ctx, r)
	}),
	CommandFollow: cold(checkFollow, func(h *Handler, ctx context.Context, r *FollowRequest) (*FollowResponse, error) {
		return h.services.Replication.Follow(ctx, r)
	}),
	CommandMeet: cold(checkMeet, func(h *Handler, ctx context.Context, r *MeetRequest) (*MeetResponse, error) {
		return h.services.Replication.Meet(ctx, r)
	}),
	CommandReadLog: coldBytes(checkReadLog, func(h *Handler, ctx context.Context, r *ReadLogRequest, _ []byte) (*ReadLogResponse, []byte, error) {
		return h.services.Replication.ReadLog(ctx, r)
	}),
	CommandReadSeed: coldBytes(anything[*ReadSeedRequest], func(h *Handler, ctx context.Context, r *ReadSeedRequest, _ []byte) (*ReadSeedResponse, []byte, error) {
		r.BytesMax = replicationBytes(r.BytesMax)
		return h.services.Replication.ReadSeed(ctx, r)
	}),
	CommandLogSums: cold(checkLogSums, func(h *Handler, ctx context.Context, r *LogSumsRequest) (*LogSumsResponse, error) {
		return h.services.Replication.LogSums(ctx, r)
	}),
	CommandMergeSide: coldBytes(checkMergeSide, func(h *Handler, ctx context.Context, r *MergeSideRequest, entries []byte) (*MergeSideResponse, []byte, error) {
		m, err := h.services.Replication.MergeSide(ctx, r, entries)
		return m, nil, err
	}),
	CommandTakeOver: cold(checkTakeOver, func(h *Handler, ctx context.Context, r *TakeOverRequest) (*TakeOverResponse, error) {
		return h.services.Replication.TakeOver(ctx, r)
	}),
	CommandResend: coldBytes(checkResend, func(h *Handler, ctx context.Context, r *ResendRequest, batch []byte) (*ResendResponse, []byte, error) {
		m, err := h.services.Replication.Resend(ctx, r, batch)
		return m, nil, err
	}),
}
