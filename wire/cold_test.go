package wire

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// every is a Broker, an Admin and a Registry of which each method answers at once with its own type, and nothing else.
type every struct{}

func (every) Produce(_ context.Context, _ *ProduceRequest, done func(*ProduceResponse, error)) {
	done(&ProduceResponse{}, nil)
}
func (every) Fetch(_ context.Context, _ *FetchRequest, done func(*FetchResponse, error)) {
	done(&FetchResponse{}, nil)
}
func (every) Ack(_ context.Context, _ *AckRequest, done func(*AckResponse, error)) {
	done(&AckResponse{}, nil)
}
func (every) WatchRoutes(_ context.Context, _ *WatchRoutesRequest, done func(*WatchRoutesResponse, error)) {
	done(&WatchRoutesResponse{}, nil)
}
func (every) WatchObjects(_ context.Context, _ *WatchObjectsRequest, done func(*WatchObjectsResponse, error)) {
	done(&WatchObjectsResponse{}, nil)
}
func (every) Heartbeat(context.Context, *HeartbeatRequest) (*HeartbeatResponse, error) {
	return &HeartbeatResponse{}, nil
}
func (every) ListNodes(context.Context, *ListNodesRequest) (*ListNodesResponse, error) {
	return &ListNodesResponse{}, nil
}
func (every) ListObjects(context.Context, *ListObjectsRequest) (*ListObjectsResponse, error) {
	return &ListObjectsResponse{}, nil
}
func (every) ApplyObjects(context.Context, *ApplyObjectsRequest) (*ApplyObjectsResponse, error) {
	return &ApplyObjectsResponse{}, nil
}
func (every) CreateCredential(context.Context, *CreateCredentialRequest) (*CreateCredentialResponse, error) {
	return &CreateCredentialResponse{}, nil
}
func (every) ListAudit(context.Context, *ListAuditRequest) (*ListAuditResponse, error) {
	return &ListAuditResponse{}, nil
}
func (every) NewGeneration(context.Context, *NewGenerationRequest) (*NewGenerationResponse, error) {
	return &NewGenerationResponse{}, nil
}

func (every) Subscribe(context.Context, *SubscribeRequest) (*SubscribeResponse, error) {
	return &SubscribeResponse{}, nil
}
func (every) Route(context.Context, *RouteRequest) (*RouteResponse, error) {
	return &RouteResponse{}, nil
}
func (every) Extend(context.Context, *ExtendRequest) (*ExtendResponse, error) {
	return &ExtendResponse{}, nil
}
func (every) CreateTopic(context.Context, *CreateTopicRequest) (*CreateTopicResponse, error) {
	return &CreateTopicResponse{}, nil
}
func (every) ListTopics(context.Context, *ListTopicsRequest) (*ListTopicsResponse, error) {
	return &ListTopicsResponse{}, nil
}
func (every) AlterTopic(context.Context, *AlterTopicRequest) (*AlterTopicResponse, error) {
	return &AlterTopicResponse{}, nil
}
func (every) DeleteTopic(context.Context, *DeleteTopicRequest) (*DeleteTopicResponse, error) {
	return &DeleteTopicResponse{}, nil
}
func (every) DescribeTopic(context.Context, *DescribeTopicRequest) (*DescribeTopicResponse, error) {
	return &DescribeTopicResponse{}, nil
}
func (every) GroupLag(context.Context, *GroupLagRequest) (*GroupLagResponse, error) {
	return &GroupLagResponse{}, nil
}
func (every) ListGroups(context.Context, *ListGroupsRequest) (*ListGroupsResponse, error) {
	return &ListGroupsResponse{}, nil
}
func (every) SeekGroup(context.Context, *SeekGroupRequest) (*SeekGroupResponse, error) {
	return &SeekGroupResponse{}, nil
}
func (every) AlterGroup(context.Context, *AlterGroupRequest) (*AlterGroupResponse, error) {
	return &AlterGroupResponse{}, nil
}
func (every) RemoveGroup(context.Context, *RemoveGroupRequest) (*RemoveGroupResponse, error) {
	return &RemoveGroupResponse{}, nil
}
func (every) Peek(context.Context, *PeekRequest) (*PeekResponse, error) { return &PeekResponse{}, nil }
func (every) StoreUsage(context.Context, *StoreUsageRequest) (*StoreUsageResponse, error) {
	return &StoreUsageResponse{}, nil
}

func (every) ChangeReplication(context.Context, *ChangeReplicationRequest) (*ChangeReplicationResponse, error) {
	return &ChangeReplicationResponse{}, nil
}
func (every) BrokerGroup(context.Context, *BrokerGroupRequest) (*BrokerGroupResponse, error) {
	return &BrokerGroupResponse{}, nil
}
func (every) Follow(context.Context, *FollowRequest) (*FollowResponse, error) {
	return &FollowResponse{}, nil
}
func (every) Pull(_ context.Context, _ *PullRequest, done func(*PullResponse, []byte, error)) {
	done(&PullResponse{}, nil, nil)
}
func (every) Meet(context.Context, *MeetRequest) (*MeetResponse, error) { return &MeetResponse{}, nil }
func (every) ReadLog(context.Context, *ReadLogRequest) (*ReadLogResponse, []byte, error) {
	return &ReadLogResponse{}, nil, nil
}
func (every) ReadSeed(context.Context, *ReadSeedRequest) (*ReadSeedResponse, []byte, error) {
	return &ReadSeedResponse{}, nil, nil
}
func (every) LogSums(context.Context, *LogSumsRequest) (*LogSumsResponse, error) {
	return &LogSumsResponse{}, nil
}
func (every) MergeSide(context.Context, *MergeSideRequest, []byte) (*MergeSideResponse, error) {
	return &MergeSideResponse{}, nil
}
func (every) TakeOver(context.Context, *TakeOverRequest) (*TakeOverResponse, error) {
	return &TakeOverResponse{}, nil
}
func (every) Resend(context.Context, *ResendRequest, []byte) (*ResendResponse, error) {
	return &ResendResponse{}, nil
}

// TestColdCommands holds the table to what it stands for: it has every command that is not handled elsewhere, each reaches the
// method of its name, reads its header whole, and judges what is in it.
func TestColdCommands(t *testing.T) {
	h := NewHandler(Services{every{}, every{}, every{}, every{}}, HandlerOptions{})
	elsewhere := map[Command]bool{
		CommandHello: true, CommandPing: true, CommandAuthenticate: true, CommandWhoAmI: true, CommandProduce: true,
		CommandFetch: true, CommandAck: true, CommandWatchRoutes: true, CommandWatchObjects: true, CommandPull: true,
	}
	nameless := map[Command]bool{
		CommandListTopics: true, CommandStoreUsage: true, CommandListGroups: true, CommandListNodes: true, CommandListObjects: true,
		CommandApplyObjects: true, CommandListAudit: true, CommandNewGeneration: true, CommandReadLog: true, CommandReadSeed: true,
	}
	for command := range commandNames {
		row, ok := coldCommands[command]
		if ok == elsewhere[command] {
			t.Errorf("%v is in the table: %v", command, ok)
		}
		if !ok {
			continue
		}
		if _, err := row(h, []byte{0xff}, nil); CodeOf(err) != CodeMalformed {
			t.Errorf("%v of a header that is none: %v", command, err)
		}
		if _, err := row(h, nil, nil); (err == nil) != nameless[command] || err != nil && CodeOf(err) != CodeInvalid {
			t.Errorf("%v without a name: %v", command, err)
		}
		run, err := row(h, goodHeader(command), nil)
		if err != nil {
			t.Errorf("%v: %v", command, err)
			continue
		}
		m, _, err := run(context.Background())
		if err != nil {
			t.Errorf("%v: %v", command, err)
			continue
		}
		got := string(proto.MessageName(m).Name())
		if want := strings.ReplaceAll(command.String(), "-", "") + "response"; strings.ToLower(got) != want {
			t.Errorf("%v answers %s", command, got)
		}
		if command == CommandListTopics || command == CommandStoreUsage || commandServices[command] >= ofRegistry {
			continue // the table of TestRegistryChecks has what is judged of these
		}
		if _, err := row(h, names("a/b", "pay"), nil); CodeOf(err) != CodeInvalid {
			t.Errorf("%v of topic a/b: %v", command, err)
		}
	}
}

// goodHeader returns a header of a request that is let through.
func goodHeader(c Command) []byte {
	var m proto.Message
	switch c {
	case CommandHeartbeat:
		m = &HeartbeatRequest{Node: "n1", Boot: "b", Addresses: []string{"a:1"}}
	case CommandApplyObjects:
		m = &ApplyObjectsRequest{Writes: []*ObjectWrite{{Object: &Object{Kind: "topic", Name: "orders"}}}}
	case CommandCreateCredential:
		m = &CreateCredentialRequest{OwnerKind: "app", Owner: "pay"}
	case CommandWatchRoutes:
		m = &WatchRoutesRequest{Topics: []*WatchedTopic{{Topic: "orders", Group: "pay.vip"}, {Topic: "orders"}}}
	case CommandBrokerGroup:
		m = &BrokerGroupRequest{Action: "status"}
	case CommandLogSums:
		m = &LogSumsRequest{To: 8, Every: 8}
	case CommandResend:
		m = &ResendRequest{BrokerGroup: "bg1", Broker: "b1", Topic: "orders"}
	case CommandReadLog, CommandReadSeed, CommandListNodes, CommandListObjects, CommandListAudit, CommandNewGeneration, CommandWatchObjects, CommandWhoAmI:
		return nil
	default:
		return names("orders", "pay")
	}
	b, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}

// names returns a header that names a topic and a group, which all requests that have them do in fields 1 and 2. Others skip it.
func names(topic, group string) []byte {
	b := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), topic)
	return protowire.AppendString(protowire.AppendTag(b, 2, protowire.BytesType), group)
}
