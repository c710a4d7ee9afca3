package wire

import "strconv"

// Command says what a frame asks for. Numbers are never used again.
type Command uint16

const (
	CommandHello         Command = 1  // HelloRequest -> HelloResponse
	CommandPing          Command = 2  // PingRequest -> PingResponse
	CommandProduce       Command = 10 // ProduceRequestHeader, batch -> ProduceResponseHeader
	CommandFetch         Command = 11 // FetchRequestHeader -> FetchResponseHeader, batches
	CommandAck           Command = 12 // AckRequestHeader -> AckResponseHeader
	CommandSubscribe     Command = 13 // SubscribeRequest -> SubscribeResponse
	CommandRoute         Command = 14 // RouteRequest -> RouteResponse
	CommandCreateTopic   Command = 30 // CreateTopicRequest -> CreateTopicResponse
	CommandListTopics    Command = 31 // ListTopicsRequest -> ListTopicsResponse
	CommandGroupLag      Command = 32 // GroupLagRequest -> GroupLagResponse
	CommandExtend        Command = 15 // ExtendRequest -> ExtendResponse
	CommandAlterTopic    Command = 33 // AlterTopicRequest -> AlterTopicResponse
	CommandDeleteTopic   Command = 34 // DeleteTopicRequest -> DeleteTopicResponse
	CommandDescribeTopic Command = 35 // DescribeTopicRequest -> DescribeTopicResponse
	CommandListGroups    Command = 36 // ListGroupsRequest -> ListGroupsResponse
	CommandSeekGroup     Command = 37 // SeekGroupRequest -> SeekGroupResponse
	CommandAlterGroup    Command = 38 // AlterGroupRequest -> AlterGroupResponse
	CommandRemoveGroup   Command = 39 // RemoveGroupRequest -> RemoveGroupResponse
	CommandPeek          Command = 40 // PeekRequest -> PeekResponse
	CommandStoreUsage    Command = 41 // StoreUsageRequest -> StoreUsageResponse

	CommandAuthenticate     Command = 3  // AuthenticateRequest -> AuthenticateResponse, until done
	CommandWhoAmI           Command = 4  // WhoAmIRequest -> WhoAmIResponse
	CommandWatchRoutes      Command = 16 // WatchRoutesRequest -> WatchRoutesResponse
	CommandWatchObjects     Command = 50 // WatchObjectsRequest -> WatchObjectsResponse
	CommandHeartbeat        Command = 51 // HeartbeatRequest -> HeartbeatResponse
	CommandListNodes        Command = 52 // ListNodesRequest -> ListNodesResponse
	CommandListObjects      Command = 53 // ListObjectsRequest -> ListObjectsResponse
	CommandApplyObjects     Command = 54 // ApplyObjectsRequest -> ApplyObjectsResponse
	CommandCreateCredential Command = 55 // CreateCredentialRequest -> CreateCredentialResponse
	CommandListAudit        Command = 56 // ListAuditRequest -> ListAuditResponse
	CommandNewGeneration    Command = 57 // NewGenerationRequest -> NewGenerationResponse

	CommandChangeReplication Command = 58 // ChangeReplicationRequest -> ChangeReplicationResponse
	CommandBrokerGroup       Command = 59 // BrokerGroupRequest -> BrokerGroupResponse

	CommandFollow    Command = 100 // FollowRequest -> FollowResponse
	CommandPull      Command = 101 // PullRequest -> PullResponse, records
	CommandMeet      Command = 102 // MeetRequest -> MeetResponse
	CommandReadLog   Command = 103 // ReadLogRequest -> ReadLogResponse, records
	CommandReadSeed  Command = 104 // ReadSeedRequest -> ReadSeedResponse, bytes of a seed
	CommandLogSums   Command = 105 // LogSumsRequest -> LogSumsResponse
	CommandMergeSide Command = 106 // MergeSideRequest, entries of a side file -> MergeSideResponse
	CommandTakeOver  Command = 107 // TakeOverRequest -> TakeOverResponse
	CommandResend    Command = 108 // ResendRequest, a batch -> ResendResponse
)

var commandNames = map[Command]string{
	CommandHello: "hello", CommandPing: "ping", CommandProduce: "produce", CommandFetch: "fetch", CommandAck: "ack",
	CommandSubscribe: "subscribe", CommandRoute: "route", CommandCreateTopic: "create-topic", CommandListTopics: "list-topics",
	CommandGroupLag: "group-lag", CommandExtend: "extend", CommandAlterTopic: "alter-topic", CommandDeleteTopic: "delete-topic",
	CommandDescribeTopic: "describe-topic", CommandListGroups: "list-groups", CommandSeekGroup: "seek-group",
	CommandAlterGroup: "alter-group", CommandRemoveGroup: "remove-group", CommandPeek: "peek", CommandStoreUsage: "store-usage",
	CommandAuthenticate:     "authenticate",
	CommandWhoAmI:           "whoami",
	CommandWatchRoutes:      "watch-routes",
	CommandWatchObjects:     "watch-objects",
	CommandHeartbeat:        "heartbeat",
	CommandListNodes:        "list-nodes",
	CommandListObjects:      "list-objects",
	CommandApplyObjects:     "apply-objects",
	CommandCreateCredential: "create-credential",
	CommandListAudit:        "list-audit",
	CommandNewGeneration:    "new-generation",

	CommandChangeReplication: "change-replication", CommandBrokerGroup: "broker-group",
	CommandFollow: "follow", CommandPull: "pull", CommandMeet: "meet", CommandReadLog: "read-log", CommandReadSeed: "read-seed",
	CommandLogSums: "log-sums", CommandMergeSide: "merge-side", CommandTakeOver: "take-over", CommandResend: "resend",
}

// Roles of nodes, as configured and as hello says them.
const (
	RoleBroker   = "broker"
	RoleRegistry = "registry"
)

// service is one of Services.
type service uint8

const (
	ofBroker service = iota
	ofAdmin
	ofRegistry
	ofReplication
)

// role is what a node runs that has the service.
func (s service) role() string {
	if s == ofRegistry {
		return RoleRegistry
	}
	return RoleBroker
}

// commandServices says which service answers a command. Those that are missing are answered by every node itself.
var commandServices = map[Command]service{
	CommandProduce: ofBroker, CommandFetch: ofBroker, CommandAck: ofBroker, CommandSubscribe: ofBroker, CommandRoute: ofBroker,
	CommandExtend: ofBroker,

	CommandCreateTopic: ofAdmin, CommandListTopics: ofAdmin, CommandGroupLag: ofAdmin, CommandAlterTopic: ofAdmin,
	CommandDeleteTopic: ofAdmin, CommandDescribeTopic: ofAdmin, CommandListGroups: ofAdmin, CommandSeekGroup: ofAdmin,
	CommandAlterGroup: ofAdmin, CommandRemoveGroup: ofAdmin, CommandPeek: ofAdmin, CommandStoreUsage: ofAdmin,

	CommandWatchRoutes: ofRegistry, CommandWatchObjects: ofRegistry, CommandHeartbeat: ofRegistry, CommandListNodes: ofRegistry,
	CommandListObjects: ofRegistry, CommandApplyObjects: ofRegistry, CommandCreateCredential: ofRegistry,
	CommandListAudit: ofRegistry, CommandNewGeneration: ofRegistry, CommandChangeReplication: ofRegistry, CommandBrokerGroup: ofRegistry,

	CommandFollow: ofReplication, CommandPull: ofReplication, CommandMeet: ofReplication, CommandReadLog: ofReplication,
	CommandReadSeed: ofReplication, CommandLogSums: ofReplication, CommandMergeSide: ofReplication, CommandTakeOver: ofReplication, CommandResend: ofReplication,
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

// SeekTo says where a group is moved to. 0 is nowhere.
type SeekTo uint32

const (
	SeekStart SeekTo = 1 // the first message kept
	SeekEnd   SeekTo = 2 // behind the last
	SeekTime  SeekTo = 3
	SeekIndex SeekTo = 4
	SeekShift SeekTo = 5
)

// GapReason says why messages will never come. 0 is no gap.
type GapReason uint32

const (
	GapDamaged GapReason = 1 // the disk damaged them
	GapTrimmed GapReason = 2 // retention removed them before the group consumed them
)

func (r GapReason) String() string {
	switch r {
	case 0:
		return "none"
	case GapDamaged:
		return "damaged"
	case GapTrimmed:
		return "trimmed"
	}
	return "gap-" + strconv.Itoa(int(r))
}
