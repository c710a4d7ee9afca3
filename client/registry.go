package client

import (
	"context"
	"time"

	"github.com/jmqio/jmq/wire"
	"google.golang.org/protobuf/proto"
)

var _ wire.Registry = (*Cluster)(nil)

// registryPatience is how long a registry node is waited for before the next one is asked.
const registryPatience = time.Second

// WatchRoutes implements wire.Registry: it asks one node that holds metadata.
func (c *Cluster) WatchRoutes(ctx context.Context, r *wire.WatchRoutesRequest, done func(*wire.WatchRoutesResponse, error)) {
	park(ctx, c, wire.CommandWatchRoutes, r, new(wire.WatchRoutesResponse), done)
}

// WatchObjects implements wire.Registry.
func (c *Cluster) WatchObjects(ctx context.Context, r *wire.WatchObjectsRequest, done func(*wire.WatchObjectsResponse, error)) {
	park(ctx, c, wire.CommandWatchObjects, r, new(wire.WatchObjectsResponse), done)
}

func park[R proto.Message](ctx context.Context, c *Cluster, command wire.Command, request proto.Message, response R, done func(R, error)) {
	var none R
	header, err := proto.Marshal(request)
	if err != nil {
		done(none, wire.Errorf(wire.CodeInvalid, "the request cannot be encoded: %v", err))
		return
	}
	p := c.at()
	l := p.any()
	if l == nil {
		done(none, p.none())
		return
	}
	l.remote(ctx, wire.CodeTimeout, command, header, nil, func(_ *link, f wire.Frame, err error) {
		if err == nil {
			if err = proto.Unmarshal(f.Header, response); err != nil {
				err = wire.Errorf(wire.CodeMalformed, "the answer cannot be read: %v", err)
			}
		}
		if err != nil {
			done(none, err)
			return
		}
		done(response, nil)
	}, ignoreLate)
}

// Heartbeat implements wire.Registry.
func (c *Cluster) Heartbeat(ctx context.Context, r *wire.HeartbeatRequest) (*wire.HeartbeatResponse, error) {
	return called(new(wire.HeartbeatResponse), func(out *wire.HeartbeatResponse) error { return c.one(ctx, wire.CommandHeartbeat, r, out) })
}

// ListNodes implements wire.Registry.
func (c *Cluster) ListNodes(ctx context.Context, r *wire.ListNodesRequest) (*wire.ListNodesResponse, error) {
	return called(new(wire.ListNodesResponse), func(out *wire.ListNodesResponse) error { return c.one(ctx, wire.CommandListNodes, r, out) })
}

// ListObjects implements wire.Registry.
func (c *Cluster) ListObjects(ctx context.Context, r *wire.ListObjectsRequest) (*wire.ListObjectsResponse, error) {
	return called(new(wire.ListObjectsResponse), func(out *wire.ListObjectsResponse) error { return c.one(ctx, wire.CommandListObjects, r, out) })
}

// ApplyObjects implements wire.Registry.
func (c *Cluster) ApplyObjects(ctx context.Context, r *wire.ApplyObjectsRequest) (*wire.ApplyObjectsResponse, error) {
	return called(new(wire.ApplyObjectsResponse), func(out *wire.ApplyObjectsResponse) error { return c.one(ctx, wire.CommandApplyObjects, r, out) })
}

// CreateCredential implements wire.Registry.
func (c *Cluster) CreateCredential(ctx context.Context, r *wire.CreateCredentialRequest) (*wire.CreateCredentialResponse, error) {
	return called(new(wire.CreateCredentialResponse), func(out *wire.CreateCredentialResponse) error {
		return c.one(ctx, wire.CommandCreateCredential, r, out)
	})
}

// ListAudit implements wire.Registry.
func (c *Cluster) ListAudit(ctx context.Context, r *wire.ListAuditRequest) (*wire.ListAuditResponse, error) {
	return called(new(wire.ListAuditResponse), func(out *wire.ListAuditResponse) error { return c.one(ctx, wire.CommandListAudit, r, out) })
}

// NewGeneration implements wire.Registry.
func (c *Cluster) NewGeneration(ctx context.Context, r *wire.NewGenerationRequest) (*wire.NewGenerationResponse, error) {
	return called(new(wire.NewGenerationResponse), func(out *wire.NewGenerationResponse) error { return c.one(ctx, wire.CommandNewGeneration, r, out) })
}

// ChangeReplication implements wire.Registry.
func (c *Cluster) ChangeReplication(ctx context.Context, r *wire.ChangeReplicationRequest) (*wire.ChangeReplicationResponse, error) {
	return called(new(wire.ChangeReplicationResponse), func(out *wire.ChangeReplicationResponse) error {
		return c.one(ctx, wire.CommandChangeReplication, r, out)
	})
}

// BrokerGroup implements wire.Registry.
func (c *Cluster) BrokerGroup(ctx context.Context, r *wire.BrokerGroupRequest) (*wire.BrokerGroupResponse, error) {
	return called(new(wire.BrokerGroupResponse), func(out *wire.BrokerGroupResponse) error { return c.one(ctx, wire.CommandBrokerGroup, r, out) })
}

// WhoAmI says as whom the client is known, and who answers.
func (c *Cluster) WhoAmI(ctx context.Context, r *wire.WhoAmIRequest) (*wire.WhoAmIResponse, error) {
	return called(new(wire.WhoAmIResponse), func(out *wire.WhoAmIResponse) error { return c.one(ctx, wire.CommandWhoAmI, r, out) })
}

// Call asks a node that answers the command, and again while nodes are away or ask for patience, until ctx ends: for what may be carried
// out any number of times. op says in errors, which are *Errors, what it was. For packages that are built on this one.
func (c *Cluster) Call(ctx context.Context, op string, command wire.Command, request, response proto.Message) error {
	return c.call(ctx, op, "", repeatAlways, command, request, response)
}

// CallOnce is Call for what may be carried out once only: it is not repeated when it may have been; ErrUnknown then. It begins at a registry node
// where one is known: a broker can only name those, and of one that hangs it would not be known what it has done.
func (c *Cluster) CallOnce(ctx context.Context, op string, command wire.Command, request, response proto.Message) error {
	for _, addr := range c.registryAddrs() {
		p := c.node(addr)
		if p.any() == nil {
			wait, cancel := context.WithTimeout(ctx, registryPatience)
			_, err := p.awaitLink(wait, p.any)
			cancel()
			if err != nil {
				continue
			}
		}
		try, cancel := context.WithTimeout(ctx, callTimeout)
		err := p.call(try, op, "", repeatUnsent, command, request, response)
		cancel()
		if code := codeOf(err); code != wire.CodeDisconnected && code != wire.CodeRoleElsewhere { // it may have given up the role since
			return err
		}
	}
	return c.call(ctx, op, "", repeatUnsent, command, request, response)
}
