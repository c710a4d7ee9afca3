package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/server/meta/sqlstore"
	"github.com/jmqio/jmq/server/registry"
	"github.com/jmqio/jmq/wire"
)

const (
	metadataName = "metadata.db"    // of the database, in the data folder
	cacheName    = "METADATA"       // what the registry said last, in the data folder
	applyWithin  = 5 * time.Second  // of one attempt to have a broker follow the metadata
	applyServing = time.Second      // of the first attempt while clients are served: newer metadata may wait behind it
	applyRetry   = time.Second      // after one that failed
	openWithin   = 10 * time.Second // for the database at a start

	registerWithin = 3 * time.Second
)

// metadata is where this process has its metadata from: its own database, or a registry elsewhere.
//
// A snapshot counts at once for who peers are and what they may do; then the broker makes its topics and groups as it says. What it
// could not do (its disk is full) is tried again by a goroutine, until close, or until something newer is told, which waits for no
// such attempt.
type metadata struct {
	s        *Server
	b        *brokerRole                   // nil: no such role
	store    meta.Store                    // of the registry role
	owned    bool                          // and to be closed
	node     *registry.Node                // or
	follower *registry.Follower            // one of the two
	known    atomic.Pointer[meta.Snapshot] // the newest; nil: none yet
	again    chan *meta.Snapshot           // has room for one: the newest that is to be applied again
	retrying struct {                      // of applyAgain's attempt, which a newer snapshot ends
		sync.Mutex
		end context.CancelFunc
	}
	told        chan struct{}   // closed when there is metadata
	noted       chan struct{}   // closed when the metadata knows the broker of this start
	first, once sync.Once       // close told and noted
	ctx         context.Context // ends with close
	cancel      context.CancelFunc
	done        sync.WaitGroup
}

// followsMetadata says whether a registry rules the broker of this process.
func (s *Server) followsMetadata() bool {
	return s.has(RoleRegistry) || len(s.config.Node.Registry.Addresses) > 0
}

// openMetadata starts the role registry, or follows one; nil: the broker stands alone.
func (s *Server) openMetadata(ctx context.Context, b *brokerRole) (*metadata, error) {
	if !s.followsMetadata() {
		return nil, nil
	}
	md := &metadata{s: s, b: b, again: make(chan *meta.Snapshot, 1), told: make(chan struct{}), noted: make(chan struct{})}
	md.ctx, md.cancel = context.WithCancel(context.Background())
	md.retrying.end = func() {}
	open := md.follow
	if s.has(RoleRegistry) {
		open = md.serve
	}
	if err := open(ctx); err != nil {
		return nil, errors.Join(err, md.close())
	}
	s.metadata.Store(md)
	md.done.Go(md.applyAgain)
	return md, nil
}

// serve opens the database and starts the registry role.
func (md *metadata) serve(ctx context.Context) (err error) {
	s := md.s
	md.store = s.config.Metadata
	if md.store == nil {
		at := sqlstore.Location{File: s.config.Registry.File, DSN: s.config.Registry.DSN, Insecure: s.config.Registry.Insecure}
		if at.File == "" && at.DSN == "" {
			at.File = filepath.Join(s.dir, metadataName)
			if err := os.MkdirAll(s.dir, 0o700); err != nil {
				return FolderError(s.dir, err)
			}
		}
		opening, cancel := context.WithTimeout(ctx, openWithin)
		defer cancel()
		if md.store, err = sqlstore.Open(opening, sqlstore.Options{Location: at, Absent: true, Now: s.config.Now, Logger: s.log}); err != nil {
			return &StartError{What: "metadata database " + at.String(), Err: err, Next: "see that it runs and that registry.file or registry.dsn is right"}
		}
		md.owned = true
	}
	d, err := s.newDialer()
	if err != nil {
		return err
	}
	md.node, err = registry.NewNode(registry.NodeOptions{
		Store: md.store, Self: s.self, OnSnapshot: md.onSnapshot, Meet: d.meet, Count: d.count, ListGroups: d.listGroups, Now: s.config.Now, Every: s.config.Every, Logger: s.log,
	})
	if err != nil {
		return fmt.Errorf("start registry: %w", err)
	}
	return nil
}

// follow starts following a registry elsewhere.
func (md *metadata) follow(context.Context) (err error) {
	s, n := md.s, &md.s.config.Node.Registry
	o := registry.FollowerOptions{
		Addresses: n.Addresses, Self: s.self, OnSnapshot: md.onSnapshot, CacheFile: filepath.Join(s.dir, cacheName), Every: s.config.Every, Logger: s.log,
	}
	if md.b != nil && md.b.replicas != nil {
		o.OnCurrent = md.b.replicas.kick // what it may be it decides by a registry that stands by what is known
	}
	if o.Dial, err = dialRegistry(n); err != nil {
		return &StartError{What: "certificates for the registry", Err: err, Next: "see node.registry.caFile, certFile and keyFile"}
	}
	if wrap := s.config.Dial; wrap != nil {
		if o.Dial == nil {
			o.Dial = dialTCP
		}
		o.Dial = wrap(o.Dial)
	}
	if n.CredentialFile != "" {
		if i, err := os.Stat(n.CredentialFile); err == nil && i.Mode().Perm()&0o077 != 0 {
			return &StartError{What: "credential " + n.CredentialFile, Err: fmt.Errorf("open to others (mode %#o)", i.Mode().Perm()), Next: "chmod 600 " + n.CredentialFile}
		}
		o.Credentials = func() (wire.Credentials, error) { return client.ReadCredentials(n.CredentialFile) }
		if _, err := o.Credentials(); err != nil {
			return &StartError{What: "credential " + n.CredentialFile, Err: err, Next: "jmq registry init writes one for nodes: see node.registry.credentialFile"}
		}
	}
	md.follower, err = registry.NewFollower(o)
	if err != nil {
		return fmt.Errorf("follow the registry: %w", err)
	}
	return nil
}

// await waits until there is metadata, and until it has the broker of this process, so that whoever connects can make topics; but a
// registry that cannot write now holds up no messages. false: ctx ended first.
func (md *metadata) await(ctx context.Context) bool {
	select {
	case <-md.told:
	case <-ctx.Done():
		return false
	}
	if md.b == nil {
		return true
	}
	late := time.NewTimer(registerWithin)
	defer late.Stop()
	select {
	case <-md.noted:
	case <-late.C:
		md.s.log.Warn("the registry has not noted this broker yet", "waited", registerWithin)
	case <-ctx.Done():
		return false
	}
	return true
}

func (md *metadata) registry() wire.Registry {
	if md.node != nil {
		return md.node
	}
	return md.follower
}

// changeRow is the question of this node's own master, which a registry in this process answers itself.
func (md *metadata) changeRow(ctx context.Context, r *wire.ChangeReplicationRequest) (*wire.ChangeReplicationResponse, error) {
	if md.node != nil {
		return md.node.ChangeReplication(ctx, r)
	}
	return md.follower.ChangeRow(ctx, r)
}

// toldOf is what the registry knows to be committed in this node's broker group, up to the term of its row; term 0: it has not said it.
func (md *metadata) toldOf(brokerGroup string) (rowTerm uint32, committed uint64) {
	if md.node != nil {
		return md.node.Told(brokerGroup)
	}
	return md.follower.Told()
}

// feed is what answers watches.
func (md *metadata) feed() *registry.Feed {
	if md.node != nil {
		return md.node.Feed
	}
	return md.follower.Feed
}

// onSnapshot has it in force in this process when it returns.
func (md *metadata) onSnapshot(snapshot *meta.Snapshot) {
	md.known.Store(snapshot)
	md.first.Do(func() { close(md.told) })
	sockets := md.s.sockets.Load()
	if sockets != nil {
		sockets.Recheck()
	}
	self := md.s.self()
	// A broker that starts again where it was is where routes say that it is, whether a registry answers now or not.
	if b := snapshot.Broker(self.Node); b != nil && (b.Boot == self.Boot || md.store == nil && slices.Equal(b.Addresses, self.Addresses)) {
		md.once.Do(func() { close(md.noted) })
	}
	if md.b == nil {
		return
	}
	md.b.replicas.hear(snapshot)
	md.retrying.Lock()
	md.retrying.end()
	md.retrying.Unlock()
	within := applyWithin
	if sockets != nil {
		within = applyServing
	}
	ctx, cancel := context.WithTimeout(md.ctx, within)
	defer cancel()
	if md.apply(ctx, snapshot) != nil {
		md.retry(snapshot)
	}
}

func (md *metadata) apply(ctx context.Context, snapshot *meta.Snapshot) error {
	e := md.b.engine.Load()
	if e == nil {
		return nil // the next one is given what is known before it serves
	}
	return md.applyTo(ctx, e, snapshot)
}

func (md *metadata) applyTo(ctx context.Context, e *engine, snapshot *meta.Snapshot) error {
	err := e.broker.Apply(ctx, snapshot)
	if err != nil && wire.CodeOf(err) != wire.CodeNotMaster && !errors.Is(ctx.Err(), context.Canceled) && md.known.Load() == snapshot {
		md.s.log.Warn("the broker does not follow the metadata yet, trying on", "version", snapshot.Version, "err", err)
	}
	return err
}

// retry leaves a snapshot to applyAgain, in place of an older one.
func (md *metadata) retry(snapshot *meta.Snapshot) {
	for {
		select {
		case md.again <- snapshot:
			return
		default:
		}
		select {
		case <-md.again:
		default:
		}
	}
}

// applyAgain tries what failed until it is in force, or something newer was told, which is applied with all that was left.
func (md *metadata) applyAgain() {
	pause := time.NewTimer(0)
	defer pause.Stop()
	<-pause.C
	for {
		var snapshot *meta.Snapshot
		select {
		case snapshot = <-md.again:
		case <-md.ctx.Done():
			return
		}
		pause.Reset(applyRetry)
		select {
		case <-pause.C:
		case <-md.ctx.Done():
			return
		}
		ctx, cancel := context.WithTimeout(md.ctx, applyWithin)
		md.retrying.Lock()
		md.retrying.end = cancel
		md.retrying.Unlock()
		// One that is told from here on ends ctx.
		if md.known.Load() == snapshot && md.apply(ctx, snapshot) != nil && md.known.Load() == snapshot {
			md.retry(snapshot)
		}
		cancel()
	}
}

// current says whether what is known is what the registry has now: it is heard, and nothing newer was told of.
func (md *metadata) current() bool {
	if md.node != nil {
		return md.node.Health() == nil && md.known.Load() != nil
	}
	return md.follower.Current()
}

// sure says whether what is not known here is not there: the registry was just heard, and what it has is known.
func (md *metadata) sure() bool {
	if md.node != nil {
		return md.node.Sure()
	}
	return md.follower.Sure()
}

// knowsNewest is metadata.sure; true where there is none to be followed.
func (s *Server) knowsNewest() bool {
	if md := s.metadata.Load(); md != nil {
		return md.sure()
	}
	return !s.followsMetadata()
}

// condition says why changes are refused; "" while they are taken.
func (md *metadata) condition() string {
	if md.node == nil {
		return ""
	}
	if err := md.node.Health(); err != nil {
		return "changes of metadata: " + err.Error()
	}
	return ""
}

// elsewhere returns the addresses of nodes that run a role.
func (md *metadata) elsewhere(r Role) []string {
	switch {
	case r == RoleRegistry && md.node != nil:
		return md.node.Registry()
	case r == RoleRegistry && md.follower != nil:
		return md.follower.Registry()
	case r == RoleBroker && md.node != nil:
		return md.node.Brokers()
	}
	snapshot := md.feed().Snapshot()
	if snapshot == nil || r != RoleBroker {
		return nil
	}
	var all []string
	for _, o := range snapshot.List(meta.KindBroker) {
		if b := o.Spec.(*meta.Broker); !b.Away {
			all = append(all, b.Addresses...)
		}
	}
	return all
}

func (md *metadata) close() (err error) {
	md.cancel()
	if md.node != nil {
		err = md.node.Close()
	}
	if md.follower != nil {
		err = errors.Join(err, md.follower.Close())
	}
	md.done.Wait()
	if md.owned {
		if closeErr := md.store.Close(); closeErr != nil {
			err = errors.Join(err, fmt.Errorf("close the metadata database: %w", closeErr))
		}
	}
	return err
}

// self is what this node says of itself.
func (s *Server) self() *wire.HeartbeatRequest {
	n := &s.config.Node
	h := &wire.HeartbeatRequest{
		Node: n.Name, Boot: s.boot, DataCenter: n.DataCenter, Labels: n.Labels, Version: s.config.Version, State: string(s.health.state()),
		Addresses: n.Advertise,
	}
	if len(h.Addresses) == 0 {
		h.Addresses = []string{s.wireAddress}
	}
	for _, r := range s.config.Roles {
		h.Roles = append(h.Roles, string(r))
	}
	if b := s.broker.Load(); b != nil {
		h.BrokerGroup, h.Slave = s.config.Broker.BrokerGroup, s.config.Broker.Slave
		if b.replicas != nil {
			h.Replica = b.replicas.status()
		}
		if _, failed := b.condition(); failed != nil {
			h.State = string(stateFailed)
		}
	}
	if l := s.sockets.Load(); l != nil {
		m := l.Metrics()
		h.BytesIn, h.BytesOut, h.Connections = m.BytesRead, m.BytesWritten, uint32(m.Connections)
	}
	return h
}

// route answers the command route on a broker that follows metadata.
func (s *Server) route(ctx context.Context, r *wire.RouteRequest) (*wire.RouteResponse, error) {
	if md := s.metadata.Load(); md != nil {
		return md.feed().Route(ctx, r)
	}
	return nil, wire.Errorf(wire.CodeMetadataAway, "no metadata is known yet")
}

// topicsAtRegistry is the administration of a process that runs both roles: topics are the registry's, the rest is the broker's.
type topicsAtRegistry struct {
	wire.Admin
	node *registry.Node
}

func (a topicsAtRegistry) CreateTopic(ctx context.Context, r *wire.CreateTopicRequest) (*wire.CreateTopicResponse, error) {
	return a.node.CreateTopic(ctx, r)
}

func (a topicsAtRegistry) AlterTopic(ctx context.Context, r *wire.AlterTopicRequest) (*wire.AlterTopicResponse, error) {
	return a.node.AlterTopic(ctx, r)
}

func (a topicsAtRegistry) DeleteTopic(ctx context.Context, r *wire.DeleteTopicRequest) (*wire.DeleteTopicResponse, error) {
	return a.node.DeleteTopic(ctx, r)
}

func (a topicsAtRegistry) ListTopics(ctx context.Context, r *wire.ListTopicsRequest) (*wire.ListTopicsResponse, error) {
	return a.node.ListTopics(ctx, r)
}

// topicsElsewhere is the administration of a broker that follows a registry: it names who makes topics.
type topicsElsewhere struct {
	wire.Admin
	follower *registry.Follower
}

func (a topicsElsewhere) refuse() error {
	e := wire.Errorf(wire.CodeRoleElsewhere, "topics are made, altered and deleted at a node with the role %s", RoleRegistry)
	e.Nodes = a.follower.Registry()
	return e
}

func (a topicsElsewhere) CreateTopic(context.Context, *wire.CreateTopicRequest) (*wire.CreateTopicResponse, error) {
	return nil, a.refuse()
}

func (a topicsElsewhere) AlterTopic(context.Context, *wire.AlterTopicRequest) (*wire.AlterTopicResponse, error) {
	return nil, a.refuse()
}

func (a topicsElsewhere) DeleteTopic(context.Context, *wire.DeleteTopicRequest) (*wire.DeleteTopicResponse, error) {
	return nil, a.refuse()
}
