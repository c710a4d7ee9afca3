package wire

import (
	"context"
	"strconv"
	"sync/atomic"
)

// Broker is what a client may ask of a broker. server/broker implements it in process, client.Cluster over the network;
// gateways stand on it.
//
// Produce, Fetch and Ack answer by calling done exactly once, possibly before they return, possibly later from another
// goroutine; done must not block (it runs in the journal's committer). Slices of a request, and of a response given to
// done, belong to the caller of the function that they are passed to and are valid only until it returns; who needs
// them longer copies them. An error given to done is, or wraps, a *CodeError.
//
// ctx is the session's: PeerFrom(ctx) says who asks, and its end ends a long poll. It bounds waiting, not durability: a
// Produce whose ctx ended may still commit, and is then answered CodeUnknown or not at all.
type Broker interface {
	// Produce stores one batch (see Batch) in one partition, whole or not at all. When done gets no error the batch is
	// committed: it survives kills and power loss. CodeUnknown: it may be stored; any other code: it is not and never will be.
	Produce(ctx context.Context, r *ProduceRequest, done func(*ProduceResponse, error))
	// Fetch leases the next range of messages to a member, waiting up to r.WaitMs for one. Whoever does not learn its outcome
	// may hold a lease without knowing: the member's next fetch says so with r.Reconcile.
	Fetch(ctx context.Context, r *FetchRequest, done func(*FetchResponse, error))
	// Ack ends leased ranges. An item is ok when its end is committed.
	Ack(ctx context.Context, r *AckRequest, done func(*AckResponse, error))
	// Subscribe makes sure that the group exists on the topic. It must come before the first Fetch; it may be repeated.
	Subscribe(ctx context.Context, r *SubscribeRequest) (*SubscribeResponse, error)
	Route(ctx context.Context, r *RouteRequest) (*RouteResponse, error)
	// Extend makes leases last longer.
	Extend(ctx context.Context, r *ExtendRequest) (*ExtendResponse, error)
}

// Admin is what operators may ask of a broker.
type Admin interface {
	// CreateTopic is answered when the topic is committed. CodeTopicExists when it is there with another shape; the same
	// shape again is ok.
	CreateTopic(ctx context.Context, r *CreateTopicRequest) (*CreateTopicResponse, error)
	ListTopics(ctx context.Context, r *ListTopicsRequest) (*ListTopicsResponse, error)
	// AlterTopic, DeleteTopic, SeekGroup, AlterGroup and RemoveGroup are answered when what they did is committed.
	AlterTopic(ctx context.Context, r *AlterTopicRequest) (*AlterTopicResponse, error)
	DeleteTopic(ctx context.Context, r *DeleteTopicRequest) (*DeleteTopicResponse, error)
	DescribeTopic(ctx context.Context, r *DescribeTopicRequest) (*DescribeTopicResponse, error)
	GroupLag(ctx context.Context, r *GroupLagRequest) (*GroupLagResponse, error)
	ListGroups(ctx context.Context, r *ListGroupsRequest) (*ListGroupsResponse, error)
	SeekGroup(ctx context.Context, r *SeekGroupRequest) (*SeekGroupResponse, error)
	AlterGroup(ctx context.Context, r *AlterGroupRequest) (*AlterGroupResponse, error)
	RemoveGroup(ctx context.Context, r *RemoveGroupRequest) (*RemoveGroupResponse, error)
	// Peek reads stored messages without a group: nothing is leased, nothing moves.
	Peek(ctx context.Context, r *PeekRequest) (*PeekResponse, error)
	// StoreUsage says what lies on the disks and why it is still there.
	StoreUsage(ctx context.Context, r *StoreUsageRequest) (*StoreUsageResponse, error)
}

// Registry is what a node that holds metadata may be asked. Those of the registry role answer all of it; brokers and proxies,
// which hold a copy, answer WatchRoutes, WatchObjects and WhoAmI, and the rest with CodeRoleElsewhere.
type Registry interface {
	// WatchRoutes and WatchObjects answer by calling done exactly once, as Broker's Fetch does: at once, or when something
	// changed, or when the wait ends. They take no goroutine while they wait.
	WatchRoutes(ctx context.Context, r *WatchRoutesRequest, done func(*WatchRoutesResponse, error))
	WatchObjects(ctx context.Context, r *WatchObjectsRequest, done func(*WatchObjectsResponse, error))
	Heartbeat(ctx context.Context, r *HeartbeatRequest) (*HeartbeatResponse, error)
	ListNodes(ctx context.Context, r *ListNodesRequest) (*ListNodesResponse, error)
	ListObjects(ctx context.Context, r *ListObjectsRequest) (*ListObjectsResponse, error)
	// ApplyObjects is answered when the change is committed in the database. CodeConflict: an object has another revision
	// than expected, and nothing was changed.
	ApplyObjects(ctx context.Context, r *ApplyObjectsRequest) (*ApplyObjectsResponse, error)
	CreateCredential(ctx context.Context, r *CreateCredentialRequest) (*CreateCredentialResponse, error)
	ListAudit(ctx context.Context, r *ListAuditRequest) (*ListAuditResponse, error)
	NewGeneration(ctx context.Context, r *NewGenerationRequest) (*NewGenerationResponse, error)
	// ChangeReplication is a master's compare-and-set of its broker group's row. The answer carries the row as it is then; with
	// CodeConflict too (as the error's row).
	ChangeReplication(ctx context.Context, r *ChangeReplicationRequest) (*ChangeReplicationResponse, error)
	// BrokerGroup is what operators ask of a broker group: its status, promote, transfer, drain, activate.
	BrokerGroup(ctx context.Context, r *BrokerGroupRequest) (*BrokerGroupResponse, error)
}

// Replication is what brokers of one broker group ask of each other, and observers (archive, backup) of any of them. Only peers that are
// nodes may ask it. Answers of Pull and ReadLog carry records as the answering broker's journal holds them, checksums begun with its
// store id.
type Replication interface {
	// Follow begins a session of a slave at a master: the slave says who it is and what it has, the master up to where that is the same.
	Follow(ctx context.Context, r *FollowRequest) (*FollowResponse, error)
	// Pull says what the slave has written, and is answered with the next records as soon as there are any, or with none after
	// the keep-alive time. Answers as Fetch does: done is called exactly once, perhaps later; the payload is valid until done
	// returns. A slave has up to r.Window pulls under way.
	Pull(ctx context.Context, r *PullRequest, done func(r *PullResponse, records []byte, err error))
	// Meet asks a broker what it knows. With a term it promises, durably, to do nothing in a lower one.
	Meet(ctx context.Context, r *MeetRequest) (*MeetResponse, error)
	// ReadLog reads records: for repair, for what a master lost of its end, and for observers, who read what is committed.
	ReadLog(ctx context.Context, r *ReadLogRequest) (*ReadLogResponse, []byte, error)
	// ReadSeed reads the beginning of a full copy: what the tables say, and where the journal begins.
	ReadSeed(ctx context.Context, r *ReadSeedRequest) (*ReadSeedResponse, []byte, error)
	// LogSums returns checksums of ranges of the journal, equal where the records are.
	LogSums(ctx context.Context, r *LogSumsRequest) (*LogSumsResponse, error)
	// MergeSide hands the master what a slave acked while it was away. It is answered when that is committed.
	MergeSide(ctx context.Context, r *MergeSideRequest, entries []byte) (*MergeSideResponse, error)
	// TakeOver tells a slave that it was named master, before the registry's push reaches it.
	TakeOver(ctx context.Context, r *TakeOverRequest) (*TakeOverResponse, error)
	// Resend stores, at the master, a batch that another broker of the broker group had at the end of its journal, where a promotion by force cut
	// it off. It is answered when that is committed. CodeTopicNotFound, CodePartitionNotFound: there is no place for it any more.
	Resend(ctx context.Context, r *ResendRequest, batch []byte) (*ResendResponse, error)
}

// PrincipalKind says what an identity is.
type PrincipalKind uint8

const (
	// PrincipalLocal is a peer on loopback at a node that asks for no authentication: it may do everything.
	PrincipalLocal PrincipalKind = 0
	PrincipalApp   PrincipalKind = 1
	PrincipalUser  PrincipalKind = 2
	PrincipalNode  PrincipalKind = 3 // another role of the cluster
)

func (k PrincipalKind) String() string {
	switch k {
	case PrincipalLocal:
		return "local"
	case PrincipalApp:
		return "app"
	case PrincipalUser:
		return "user"
	case PrincipalNode:
		return "node"
	}
	return "principal-" + strconv.Itoa(int(k))
}

// Principal is whom a session was authenticated as. Only an authenticator makes one that is not local.
type Principal struct {
	Kind       PrincipalKind
	Name       string
	Namespace  string // its name; Peer.Namespace is its number
	Credential string // id; empty: it showed a certificate
	ExpiresNs  int64  // unix time at which it ends; 0: never
}

// Peer is who is at the other end of a session.
type Peer struct {
	ClientID  string // from the hello; leases are held by (ClientID, member)
	App       string // of an authenticated app its name, whatever the hello said
	SDK       string
	Addr      string
	Namespace uint32
	Principal Principal
	// Batched says that the session hands over several requests at a time, and calls Committer.Commit after the last one:
	// what they store goes into one commit. Without it each Produce starts a commit if none is running.
	Batched bool
	// Session is what the broker keeps of this session while it is attached. Nobody else looks at it. A node that opens its store anew
	// attaches the session to another broker while requests go on.
	Session atomic.Value
}

// Committer is a Broker that wants to know when a session has handed over all requests that it has at the moment.
type Committer interface {
	// Commit starts a commit of what was stored, if none is running. It may carry the commit out itself. Never blocks on
	// anything but the disk.
	Commit()
}

// The hot requests have plain structs, coded by hand to the protobuf form of their ...Header twins in jmq.proto.

// ProduceRequest stores a batch in a partition.
type ProduceRequest struct {
	Topic        string // as a slice: whoever needs it longer than Produce runs clones it
	Partition    uint16
	RouteVersion uint64 // of the route that the client knows
	TimeoutMs    uint32 // how long the client will wait; 0: until its connection ends
	// TopicID with RouteVersion is a hint: where it leads to the topic of that name, the broker need not look for the name, which
	// among very many topics is most of what a small send costs. Elsewhere it is worth nothing: each broker group has numbers of
	// its own, and gives them anew when its store is another. 0: not known.
	TopicID uint64
	// Batch is one encoded batch. The broker fills its broker fields in place.
	Batch []byte
}

// ProduceResponse says where the batch is stored: [FirstIndex, FirstIndex + its count).
type ProduceResponse struct {
	FirstIndex uint64
	StoredNs   int64
	// RouteVersion and TopicID are those of the topic at this broker group, where one of the request's is another: for the next requests.
	// A client that has its route from this broker, and not from metadata, asks for it again. 0: they are the request's.
	RouteVersion, TopicID uint64
}

// FetchRequest asks for a lease.
type FetchRequest struct {
	Topic, Group string
	Member       uint32   // which consumer of this client
	MessagesMax  uint32   // 0: 10
	BytesMax     uint32   // 0: 1 MiB; at least one message is given
	WaitMs       uint32   // long poll; 0: answer at once
	RouteVersion uint64   // of the route that the client knows
	Partitions   []uint32 // only these; empty: any
	// Reconcile: before anything is given, the member's fetches that wait are ended, and its leases on this topic and group
	// but those of Held, as if they were released.
	Reconcile bool
	Held      []uint64 // at most FetchHeldMax
	// Round counts a member's fetches: one that is older than the last with Reconcile gets nothing, whichever way it came,
	// since nobody waits for it any more. 0: not counted.
	Round uint64
	Leave bool // nothing is given: Reconcile is all that is wanted
}

// FetchResponse is a lease of messages [From, To) of a partition, or none.
type FetchResponse struct {
	Lease     uint64 // 0: nothing came
	Partition uint16
	From, To  uint64
	LeaseMs   uint32    // how long the lease lasts from now
	Epoch     uint64    // of the broker
	Attempt   uint32    // which delivery of these messages it is: 1 and the leases of them that ran out before; 0: 1
	Gap       GapReason // with Lease 0: messages [From, To) of Partition will never come, the group was moved over them; 0: no gap
	Batches   []byte    // the stored batches that hold [From, To), whole and in order
}

// AckRange is how messages [From, To) of a lease ended.
type AckRange struct {
	Partition uint16
	Lease     uint64
	From, To  uint64
	Outcome   Outcome
}

// AckRequest says how messages that a member was given ended.
type AckRequest struct {
	Topic, Group string
	Member       uint32 // who fetched them
	Items        []AckRange
}

// AckResponse answers an AckRequest, item by item.
type AckResponse struct {
	Codes []Code // one an item
}

type peerKey struct{}

// WithPeer returns a context that carries p.
func WithPeer(ctx context.Context, p *Peer) context.Context {
	return context.WithValue(ctx, peerKey{}, p)
}

// PeerFrom returns the peer that ctx carries, or an anonymous one.
func PeerFrom(ctx context.Context) *Peer {
	if p, ok := ctx.Value(peerKey{}).(*Peer); ok {
		return p
	}
	return &Peer{}
}
