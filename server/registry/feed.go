package registry

import (
	"context"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/wire"
)

// FeedOptions are the options of a Feed.
type FeedOptions struct {
	// Registry gives the addresses of registry nodes that live: clients are told them, and they are named to who asks for
	// something that only a registry node answers. Nil: none are known.
	Registry func() []string
}

// Feed gives snapshots to who watches. It implements wire.Registry: what only the registry role answers, it answers with CodeRoleElsewhere.
type Feed struct {
	o FeedOptions
}

var _ wire.Registry = (*Feed)(nil)

// NewFeed returns a feed that knows nothing yet: it answers CodeMetadataAway. Close ends it.
func NewFeed(o FeedOptions) *Feed { return &Feed{o: o} }

// Set makes s what is told from now on. When it returns, all that s concerns were answered.
func (f *Feed) Set(s *meta.Snapshot) {}

// Snapshot is the last one set; nil before.
func (f *Feed) Snapshot() *meta.Snapshot { return nil }

// Close answers those who wait with CodeStopping.
func (f *Feed) Close() error { return nil }

// WatchRoutes implements wire.Registry.
func (f *Feed) WatchRoutes(ctx context.Context, r *wire.WatchRoutesRequest, done func(*wire.WatchRoutesResponse, error)) {
	done(nil, errNotBuilt)
}

// WatchObjects implements wire.Registry.
func (f *Feed) WatchObjects(ctx context.Context, r *wire.WatchObjectsRequest, done func(*wire.WatchObjectsResponse, error)) {
	done(nil, errNotBuilt)
}

// Route answers wire.Broker's Route over all broker groups, as the peer of ctx may see it.
func (f *Feed) Route(ctx context.Context, r *wire.RouteRequest) (*wire.RouteResponse, error) {
	return nil, errNotBuilt
}

func (f *Feed) elsewhere(what string) error {
	e := wire.Errorf(wire.CodeRoleElsewhere, "%s is answered by the role registry", what)
	if f.o.Registry != nil {
		e.Nodes = f.o.Registry()
	}
	return e
}

// Heartbeat implements wire.Registry; it and all below are answered with CodeRoleElsewhere.
func (f *Feed) Heartbeat(context.Context, *wire.HeartbeatRequest) (*wire.HeartbeatResponse, error) {
	return nil, f.elsewhere("heartbeat")
}

// ListNodes implements wire.Registry.
func (f *Feed) ListNodes(context.Context, *wire.ListNodesRequest) (*wire.ListNodesResponse, error) {
	return nil, f.elsewhere("list-nodes")
}

// ListObjects implements wire.Registry.
func (f *Feed) ListObjects(context.Context, *wire.ListObjectsRequest) (*wire.ListObjectsResponse, error) {
	return nil, f.elsewhere("list-objects")
}

// ApplyObjects implements wire.Registry.
func (f *Feed) ApplyObjects(context.Context, *wire.ApplyObjectsRequest) (*wire.ApplyObjectsResponse, error) {
	return nil, f.elsewhere("apply-objects")
}

// CreateCredential implements wire.Registry.
func (f *Feed) CreateCredential(context.Context, *wire.CreateCredentialRequest) (*wire.CreateCredentialResponse, error) {
	return nil, f.elsewhere("create-credential")
}

// ListAudit implements wire.Registry.
func (f *Feed) ListAudit(context.Context, *wire.ListAuditRequest) (*wire.ListAuditResponse, error) {
	return nil, f.elsewhere("list-audit")
}

// NewGeneration implements wire.Registry.
func (f *Feed) NewGeneration(context.Context, *wire.NewGenerationRequest) (*wire.NewGenerationResponse, error) {
	return nil, f.elsewhere("new-generation")
}
