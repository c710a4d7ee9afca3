package wire

import "strconv"

// Command says what a frame asks for. Numbers are never used again.
type Command uint16

const (
	CommandHello       Command = 1  // HelloRequest -> HelloResponse
	CommandPing        Command = 2  // PingRequest -> PingResponse
	CommandProduce     Command = 10 // ProduceRequestHeader, batch -> ProduceResponseHeader
	CommandFetch       Command = 11 // FetchRequestHeader -> FetchResponseHeader, batches
	CommandAck         Command = 12 // AckRequestHeader -> AckResponseHeader
	CommandSubscribe   Command = 13 // SubscribeRequest -> SubscribeResponse
	CommandRoute       Command = 14 // RouteRequest -> RouteResponse
	CommandCreateTopic Command = 30 // CreateTopicRequest -> CreateTopicResponse
	CommandListTopics  Command = 31 // ListTopicsRequest -> ListTopicsResponse
	CommandGroupLag    Command = 32 // GroupLagRequest -> GroupLagResponse
)

var commandNames = map[Command]string{
	CommandHello: "hello", CommandPing: "ping", CommandProduce: "produce", CommandFetch: "fetch", CommandAck: "ack",
	CommandSubscribe: "subscribe", CommandRoute: "route", CommandCreateTopic: "create-topic", CommandListTopics: "list-topics",
	CommandGroupLag: "group-lag",
}

func (c Command) String() string {
	if name, ok := commandNames[c]; ok {
		return name
	}
	return "command-" + strconv.Itoa(int(c))
}

// Outcome is how a message ended for a group. Numbers are part of the journal's format.
type Outcome uint8

const (
	// Released gives the range back without an end: it is delivered again. It is never journalled.
	Released Outcome = 0
	Acked    Outcome = 1
	Retried  Outcome = 2
	Rejected Outcome = 3
	Skipped  Outcome = 4
	Filtered Outcome = 5
	Expired  Outcome = 6
)

// Where a new group starts.
const (
	StartEnd       uint32 = 0
	StartBeginning uint32 = 1
)
