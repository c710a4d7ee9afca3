// Package server wires the roles of jmq together. A process runs one or more of them, behind one wire port and one admin port:
//
//	listener -> wire.Handler -> broker -> store/local -> journal
//	                         -> registry.Node -> meta.Store (the database)
//	                         or registry.Follower -> a registry node elsewhere
//
// Their parts start in this order and stop in the reverse one, so that at every moment what can be reached from outside has
// all that it stands on:
//
//	start: certificates, admin port, store (lock of the folder, recovery), broker, retention, wire port bound, metadata (database, or what
//	       registry or cache say), wire port served, ready
//	stop:  not ready; wire port closed and requests under way answered (at most node.stopTimeout), connections closed;
//	       metadata; retention; broker; store (checkpoint, proof of a clean end); admin port
//
// Run owns every goroutine of it and waits for them.
package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/listener"
	"github.com/jmqio/jmq/server/store/local"
	"github.com/jmqio/jmq/wire"
)

// Role is what a process does.
type Role string

const (
	RoleRegistry Role = "registry" // holds the metadata and tells it to everyone
	RoleBroker   Role = "broker"   // takes, keeps and gives messages
)

// Roles are all that there are, in the order in which people name them.
var Roles = []Role{RoleRegistry, RoleBroker}

// Server is the roles of one process. It runs once.
type Server struct {
	config Config
	dir    string
	boot   string // of this start, random
	log    *slog.Logger
	health health
	ran    atomic.Bool
	ready  chan struct{} // closed when it serves

	// Set before ready is closed, and not changed after.
	wireAddress, adminAddress string
	admin                     wire.Admin
	registry                  wire.Registry

	broker       atomic.Pointer[brokerRole]
	metadata     atomic.Pointer[metadata]
	sockets      atomic.Pointer[listener.Listener]
	certificates atomic.Pointer[listener.Certificates]
}

// New checks the configuration. It opens nothing.
func New(c Config) (*Server, error) {
	if c.FS == nil {
		c.FS = vfs.Default
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if len(c.Roles) == 0 {
		c.Roles = []Role{RoleBroker}
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	dir, err := c.dataDir()
	if err != nil {
		return nil, FolderError(c.Broker.Data, err)
	}
	s := &Server{config: c, dir: dir, boot: rand.Text(), log: c.Logger.With("node", c.Node.Name), ready: make(chan struct{})}
	s.health.set(stateStarting)
	return s, nil
}

// has says whether the process runs a role.
func (s *Server) has(r Role) bool { return slices.Contains(s.config.Roles, r) }

// Ready is closed when the server serves.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// WireAddress is where clients connect. Known once Ready is closed, as AdminAddress, Admin and Registry are.
func (s *Server) WireAddress() string { return s.wireAddress }

// AdminAddress is where the admin port is.
func (s *Server) AdminAddress() string { return s.adminAddress }

// Replica is what its broker says of its copy of the broker group's journal; nil without a broker that a registry rules.
func (s *Server) Replica() *wire.ReplicaStatus {
	if b := s.broker.Load(); b != nil && b.replicas != nil {
		return b.replicas.status()
	}
	return nil
}

// Admin is the administration of what this process runs.
func (s *Server) Admin() wire.Admin { return s.admin }

// Registry is the metadata as this process has it; nil of a broker that stands alone.
func (s *Server) Registry() wire.Registry { return s.registry }

// Run serves until ctx ends, then stops in order. It returns nil after a stop that was asked for, else what made it
// impossible to start or to go on: a *StartError where the user can do something about it.
func (s *Server) Run(ctx context.Context) (err error) {
	if !s.ran.CompareAndSwap(false, true) {
		panic("server: run twice")
	}
	n := &s.config.Node
	begun := time.Now()
	registry := prometheus.NewRegistry()
	newCollector(s).register(registry)
	certificates, err := s.openCertificates()
	if err != nil {
		return err
	}
	if certificates != nil {
		defer certificates.Close()
	}
	adminListener, err := s.listen(ctx, "node.admin.listen", n.Admin.Listen, n.adminAuthenticates())
	if err != nil {
		return err
	}
	s.adminAddress = adminListener.Addr().String()
	admin := s.serveAdmin(adminListener, registry, certificates)
	defer admin.stop()

	if !portZero(n.Wire.Listen) {
		// A port that is in use is told before a long recovery, not after it. It is opened only when clients are served.
		probe, err := s.listen(ctx, "node.wire.listen", n.Wire.Listen, n.Authenticates())
		if err != nil {
			return err
		}
		if err := probe.Close(); err != nil {
			return listenError("node.wire.listen", n.Wire.Listen, err)
		}
	}
	defer func() { s.setState(stateStopped) }()
	flusher := new(listener.Flusher)
	services, options := wire.Services{}, wire.HandlerOptions{
		Broker: n.Name, KeepAlive: n.Listener.KeepAlive, HelloTimeout: n.Listener.HelloTimeout, Logger: s.log, Elsewhere: s.elsewhere,
	}
	for _, r := range s.config.Roles {
		options.Roles = append(options.Roles, string(r))
	}
	if n.Authenticates() {
		options.Authenticator, options.UserRole = identity{s}, identity{s}.UserRole
	}
	var b *brokerRole
	if s.has(RoleBroker) {
		s.setState(stateRecovering, "version", s.config.Version, "brokerGroup", s.config.Broker.BrokerGroup, "folder", s.dir)
		if b, err = s.newBroker(flusher); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, b.close()) }()
		s.broker.Store(b)
		services.Broker, services.Admin = b.facade, b.facade
		if b.replicas != nil {
			services.Replication = replication{b.replicas}
		}
		options.BrokerGroup, options.Epoch = s.config.Broker.BrokerGroup, b.epoch
		options.OnOpen, options.OnClose = b.facade.Attach, b.facade.Detach
	}
	wireListener, err := s.listen(ctx, "node.wire.listen", n.Wire.Listen, n.Authenticates())
	if err != nil {
		return err
	}
	s.wireAddress = wireListener.Addr().String()
	handed := false // to the sockets, which close it
	defer func() {
		if !handed {
			_ = wireListener.Close() // another error is on its way
		}
	}()

	md, err := s.openMetadata(ctx, b)
	if err != nil {
		return err
	}
	if md != nil {
		defer func() {
			s.metadata.Store(nil)
			err = errors.Join(err, md.close())
		}()
		services.Registry = md.registry()
		switch {
		case md.node == nil:
			services.Admin = topicsElsewhere{b.facade, md.follower}
		case b != nil:
			services.Admin = topicsAtRegistry{Admin: b.facade, node: md.node}
		default:
			services.Admin = md.node
		}
		s.setState(stateMetadata)
		if !md.await(ctx) {
			return nil
		}
	}
	s.admin, s.registry = services.Admin, services.Registry
	socketOptions := listener.Options{
		Listener: wireListener, Handler: wire.NewHandler(services, options), Flusher: flusher, ConnectionsMax: n.Listener.ConnectionsMax,
		BufferBytesMax: n.Listener.BufferBytesMax, InsecureWithoutAuthentication: n.Auth.InsecureWithoutAuthentication, Logger: s.log,
	}
	if certificates != nil {
		socketOptions.TLS = certificates.Config
	}
	sockets, err := listener.New(socketOptions)
	if err != nil {
		return listenError("node.wire.listen", n.Wire.Listen, err)
	}
	handed = true
	s.sockets.Store(sockets) // from now on it is told when metadata changes; before, it has no sessions
	served := make(chan error, 1)
	go func() { served <- sockets.Serve() }() // ends with sockets.Close; received below

	var failed <-chan error
	if b != nil && b.replicas != nil {
		s.setState(stateRecovering, "folder", s.dir)
		failed = b.replicas.failed
		b.replicas.start()
		select {
		case <-b.replicas.settled:
		case err = <-failed:
			failed = nil
		case <-time.After(settleWithin):
		case <-ctx.Done():
		}
	}
	if err == nil {
		err = s.serve(ctx, begun, b, served, failed)
	}
	s.setState(stateStopping)
	drain, cancel := context.WithTimeout(context.Background(), n.StopTimeout)
	defer cancel()
	if closeErr := sockets.Close(drain); closeErr != nil {
		err = errors.Join(err, fmt.Errorf("close the wire port: %w", closeErr))
	}
	if drain.Err() != nil {
		s.log.Warn("connections were closed with requests under way", "stopTimeout", n.StopTimeout)
	}
	<-served
	s.sockets.Store(nil)
	s.broker.Store(nil) // its metrics and readiness end here
	return err
}

// serve serves until ctx ends or something fails.
func (s *Server) serve(ctx context.Context, begun time.Time, b *brokerRole, served chan error, failed <-chan error) error {
	facts := []any{"roles", s.config.Roles, "wire", s.wireAddress, "admin", s.adminAddress, "took", time.Since(begun).Round(time.Millisecond)}
	if b != nil {
		facts = append(facts, "epoch", journal.Epoch(b.epoch()).String())
	}
	s.setState(stateServing, facts...)
	close(s.ready)
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	case err := <-served:
		served <- nil
		return fmt.Errorf("the wire port stopped: %w", err)
	}
}

// settleWithin is how long a start waits for its broker to be what it can be: one that waits for its slaves, or is long in reading its journal,
// becomes it while the node serves.
const settleWithin = 5 * time.Second

// elsewhere says which nodes run a role.
func (s *Server) elsewhere(role string) []string {
	md := s.metadata.Load()
	if md == nil {
		return nil
	}
	return md.elsewhere(Role(role))
}

func (s *Server) readiness() Readiness {
	all := s.health.readiness(s.config.Roles, func(r Role) (refusing string, failed error) {
		switch r {
		case RoleBroker:
			if b := s.broker.Load(); b != nil {
				return b.condition()
			}
		case RoleRegistry:
			if md := s.metadata.Load(); md != nil {
				return md.condition(), nil
			}
		}
		return "", nil
	})
	if b := s.broker.Load(); b != nil && b.replicas != nil {
		one := all.Roles[string(RoleBroker)]
		if one.Replica, one.Why = b.replicas.role(); one.State == string(stateServing) && one.Replica != roleMaster && one.Replica != roleSlave {
			one.State, all.Ready = one.Replica, false
		}
		all.Roles[string(RoleBroker)] = one
	}
	return all
}

func (s *Server) setState(now state, facts ...any) {
	before := s.health.set(now)
	s.log.Info("node is "+string(now), append([]any{"before", string(before)}, facts...)...)
}

// progress is told by recovery how far it is.
func (s *Server) progress(done, total int64) {
	s.health.progress(done, total)
	if s.config.Progress != nil {
		s.config.Progress(done, total)
	}
}

// Reload looks at the files of node.tls now, and not only within the next seconds. An error says why they cannot be used: those before are
// in force still.
func (s *Server) Reload() error {
	if c := s.certificates.Load(); c != nil {
		return c.Reload()
	}
	return nil
}

// openCertificates reads the files of node.tls; nil: there are none.
func (s *Server) openCertificates() (*listener.Certificates, error) {
	t := &s.config.Node.TLS
	if t.CertFile == "" {
		return nil, nil
	}
	c, err := listener.OpenCertificates(listener.CertificateOptions{
		CertFile: t.CertFile, KeyFile: t.KeyFile, ClientCAFile: t.ClientCAFile, RequireClientCertificate: t.ClientCertsRequired, Logger: s.log,
	})
	if err != nil {
		return nil, &StartError{What: "certificates of this node", Err: err, Next: "see node.tls.certFile, keyFile and clientCAFile"}
	}
	s.certificates.Store(c)
	return c, nil
}

// listen opens a port, beyond loopback only where callers say who they are, or need not. When it is taken by another jmq that runs on
// the same folder, that is what is told.
func (s *Server) listen(ctx context.Context, key, address string, authenticates bool) (net.Listener, error) {
	open := listener.Listen
	if authenticates || s.config.Node.Auth.InsecureWithoutAuthentication {
		open = listener.ListenAnywhere
	}
	if wrap := s.config.Listen; wrap != nil {
		open = wrap(open)
	}
	deadline := time.Now().Add(bindWait)
	for told := false; ; told = true {
		l, err := open(address)
		if err == nil {
			return l, nil
		}
		if errors.Is(err, syscall.EADDRINUSE) {
			if pid := s.folderOwner(); pid != 0 {
				return nil, FolderError(s.dir, fmt.Errorf("%w by process %d", local.ErrInUse, pid))
			}
			if time.Now().Before(deadline) && nobodyListens(address) {
				if !told {
					s.log.Warn("an outgoing connection of this machine has the port, waiting for it", "addr", address)
				}
				select {
				case <-time.After(bindRetry):
					continue
				case <-ctx.Done():
				}
			}
		}
		return nil, listenError(key, address, err)
	}
}

const (
	bindWait  = 70 * time.Second // an ended connection keeps its port for a minute (TIME_WAIT)
	bindRetry = 50 * time.Millisecond
)

// nobodyListens reports whether a port that is in use is not a server's. The default ports lie in the range from which
// the system takes the ports of outgoing connections, one of which may have ours for a while.
func nobodyListens(address string) bool {
	c, err := net.DialTimeout("tcp", address, time.Second)
	if err == nil {
		_ = c.Close()
		return false
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// folderOwner returns the living process that has the data folder open, by the file that the store keeps there for
// people; 0 if there is none. It decides nothing but the words of an error: the lock is what guards the folder.
func (s *Server) folderOwner() int {
	if s.config.FS != vfs.Default {
		return 0
	}
	content, err := os.ReadFile(filepath.Join(s.dir, "OWNER"))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil || pid <= 0 {
		return 0
	}
	p, err := os.FindProcess(pid)
	if err != nil || errors.Is(p.Signal(syscall.Signal(0)), os.ErrProcessDone) {
		return 0
	}
	return pid
}
