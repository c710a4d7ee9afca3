package registry

import (
	"context"
	"log/slog"
	"time"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/wire"
)

var errNotBuilt = wire.Errorf(wire.CodeInternal, "not built yet")

// NodeOptions are the options of a Node.
type NodeOptions struct {
	// Store is the metadata. The node does not close it.
	Store meta.Store
	// Self is what this process says of itself in heartbeats: name, boot, all its roles (registry among them), addresses; with the
	// role broker in the same process also what a broker says, so that it is registered as one. It is asked every 0.5 s, and must
	// not block.
	Self func() *wire.HeartbeatRequest
	// OnSnapshot is told each snapshot, in order, on one goroutine of the node, before clients are: a broker in the same process
	// applies it here. The first one is told before NewNode returns. Nil: nobody.
	OnSnapshot func(*meta.Snapshot)
	// Now is the wall clock, for dates that are stored. Default: time.Now.
	Now func() time.Time
	// Logger. Default: nothing is logged.
	Logger *slog.Logger
}

// Node is a registry node. It implements wire.Registry, and of wire.Admin what concerns topics; the rest of wire.Admin, which is a
// broker's, it answers with CodeRoleElsewhere.
type Node struct {
	*Feed
	o NodeOptions
}

var (
	_ wire.Registry = (*Node)(nil)
	_ wire.Admin    = (*Node)(nil)
)

// NewNode starts a node. Close ends it.
func NewNode(o NodeOptions) (*Node, error) { return nil, errNotBuilt }

// Close ends the node: those who wait are answered CodeStopping, and its goroutines are waited for.
func (n *Node) Close() error { return nil }

// Registry returns the addresses of registry nodes that live, this one among them.
func (n *Node) Registry() []string { return nil }

// Brokers returns the addresses of brokers that live.
func (n *Node) Brokers() []string { return nil }

// Metrics returns counts and gauges.
func (n *Node) Metrics() NodeMetrics { return NodeMetrics{} }

// CreateTopic implements wire.Admin: the topic is made in the namespace of the peer, on broker groups that the metadata chooses.
func (n *Node) CreateTopic(ctx context.Context, r *wire.CreateTopicRequest) (*wire.CreateTopicResponse, error) {
	return nil, errNotBuilt
}

// ListTopics implements wire.Admin.
func (n *Node) ListTopics(ctx context.Context, r *wire.ListTopicsRequest) (*wire.ListTopicsResponse, error) {
	return nil, errNotBuilt
}

// AlterTopic implements wire.Admin.
func (n *Node) AlterTopic(ctx context.Context, r *wire.AlterTopicRequest) (*wire.AlterTopicResponse, error) {
	return nil, errNotBuilt
}

// DeleteTopic implements wire.Admin.
func (n *Node) DeleteTopic(ctx context.Context, r *wire.DeleteTopicRequest) (*wire.DeleteTopicResponse, error) {
	return nil, errNotBuilt
}

func (n *Node) brokers(what string) error {
	e := wire.Errorf(wire.CodeRoleElsewhere, "%s is answered by the role broker", what)
	e.Nodes = n.Brokers()
	return e
}

// DescribeTopic implements wire.Admin; it and all below are answered with CodeRoleElsewhere.
func (n *Node) DescribeTopic(context.Context, *wire.DescribeTopicRequest) (*wire.DescribeTopicResponse, error) {
	return nil, n.brokers("describe-topic")
}

// GroupLag implements wire.Admin.
func (n *Node) GroupLag(context.Context, *wire.GroupLagRequest) (*wire.GroupLagResponse, error) {
	return nil, n.brokers("group-lag")
}

// ListGroups implements wire.Admin.
func (n *Node) ListGroups(context.Context, *wire.ListGroupsRequest) (*wire.ListGroupsResponse, error) {
	return nil, n.brokers("list-groups")
}

// SeekGroup implements wire.Admin.
func (n *Node) SeekGroup(context.Context, *wire.SeekGroupRequest) (*wire.SeekGroupResponse, error) {
	return nil, n.brokers("seek-group")
}

// AlterGroup implements wire.Admin.
func (n *Node) AlterGroup(context.Context, *wire.AlterGroupRequest) (*wire.AlterGroupResponse, error) {
	return nil, n.brokers("alter-group")
}

// RemoveGroup implements wire.Admin.
func (n *Node) RemoveGroup(context.Context, *wire.RemoveGroupRequest) (*wire.RemoveGroupResponse, error) {
	return nil, n.brokers("remove-group")
}

// Peek implements wire.Admin.
func (n *Node) Peek(context.Context, *wire.PeekRequest) (*wire.PeekResponse, error) {
	return nil, n.brokers("peek")
}

// StoreUsage implements wire.Admin.
func (n *Node) StoreUsage(context.Context, *wire.StoreUsageRequest) (*wire.StoreUsageResponse, error) {
	return nil, n.brokers("store-usage")
}
