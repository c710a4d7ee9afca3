package registry

import (
	"context"
	"log/slog"
	"net"
	"time"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/wire"
)

// FollowerOptions are the options of a Follower.
type FollowerOptions struct {
	// Addresses of registry nodes; those that heartbeats tell of are tried too.
	Addresses []string
	// Dial connects, with TLS where that is wanted. Default: TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Credentials are shown after the hello when the node asks for them. Zero: none (a certificate says it).
	Credentials wire.Credentials
	// Self is what this node says of itself in heartbeats; generation and metadata version are filled in by the follower. It is
	// asked every 0.5 s, and must not block.
	Self func() *wire.HeartbeatRequest
	// OnSnapshot is told each snapshot, in order, on the follower's goroutine, before those who watch Feed are. What the cache
	// held is told before NewFollower returns. When it returns, the snapshot counts as in force here. Nil: nobody.
	OnSnapshot func(*meta.Snapshot)
	// CacheFile keeps what is known over a restart. It holds verifiers of secrets: mode 0600. Empty: nothing is kept.
	CacheFile string
	// Now is the wall clock. Default: time.Now.
	Now func() time.Time
	// Logger. Default: nothing is logged.
	Logger *slog.Logger
}

// Follower keeps a copy of the metadata, by a registry node.
type Follower struct {
	*Feed
	o FollowerOptions
}

// NewFollower reads the cache and starts following. It does not wait for a registry. Close ends it.
func NewFollower(o FollowerOptions) (*Follower, error) { return nil, errNotBuilt }

// Ready is closed once there is a snapshot, of the cache or of a registry.
func (f *Follower) Ready() <-chan struct{} { return nil }

// Connected says whether a registry node answers just now.
func (f *Follower) Connected() bool { return false }

// Registry returns the addresses of registry nodes that are known.
func (f *Follower) Registry() []string { return nil }

// Metrics returns counts and gauges.
func (f *Follower) Metrics() FollowerMetrics { return FollowerMetrics{} }

// Close writes the cache, and ends and waits for the follower's goroutines.
func (f *Follower) Close() error { return nil }
