package wire

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// every is a Broker and an Admin of which each cold method answers with its own type, and nothing else.
type every struct{ Broker }

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

// TestColdCommands holds the table to what it stands for: it has every command that is not handled elsewhere, each reaches the
// method of its name, reads its header whole, and judges the names in it.
func TestColdCommands(t *testing.T) {
	h := NewHandler(every{}, every{}, HandlerOptions{})
	elsewhere := map[Command]bool{CommandHello: true, CommandPing: true, CommandProduce: true, CommandFetch: true, CommandAck: true}
	nameless := map[Command]bool{CommandListTopics: true, CommandStoreUsage: true, CommandListGroups: true}
	for command := range commandNames {
		row, ok := coldCommands[command]
		if ok == elsewhere[command] {
			t.Errorf("%v is in the table: %v", command, ok)
		}
		if !ok {
			continue
		}
		if _, err := row(h, []byte{0xff}); CodeOf(err) != CodeMalformed {
			t.Errorf("%v of a header that is none: %v", command, err)
		}
		if _, err := row(h, nil); (err == nil) != nameless[command] || err != nil && CodeOf(err) != CodeInvalid {
			t.Errorf("%v without a name: %v", command, err)
		}
		run, err := row(h, names("orders", "pay"))
		if err != nil {
			t.Errorf("%v: %v", command, err)
			continue
		}
		m, err := run(context.Background())
		if err != nil {
			t.Errorf("%v: %v", command, err)
			continue
		}
		got := string(proto.MessageName(m).Name())
		if want := strings.ReplaceAll(command.String(), "-", "") + "response"; strings.ToLower(got) != want {
			t.Errorf("%v answers %s", command, got)
		}
		if command == CommandListTopics || command == CommandStoreUsage {
			continue
		}
		if _, err := row(h, names("a/b", "pay")); CodeOf(err) != CodeInvalid {
			t.Errorf("%v of topic a/b: %v", command, err)
		}
	}
}

// names returns a header that names a topic and a group, which all requests that have them do in fields 1 and 2. Others skip it.
func names(topic, group string) []byte {
	b := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), topic)
	return protowire.AppendString(protowire.AppendTag(b, 2, protowire.BytesType), group)
}
