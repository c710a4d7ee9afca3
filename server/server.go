// Package server wires the roles of jmq together. Today there is one, the broker:
//
//	listener -> wire.Handler -> broker -> store/local -> journal
//
// Its parts start in this order and stop in the reverse one, so that at every moment what can be reached from outside has
// all that it stands on:
//
//	start: admin port, store (lock of the folder, recovery), broker, retention, wire port, ready
//	stop:  not ready; wire port closed and requests under way answered (at most node.stopTimeout), connections closed;
//	       retention; broker; store (checkpoint, proof of a clean end); admin port
//
// Run owns every goroutine of it and waits for them.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/jmqio/jmq/server/broker"
	"github.com/jmqio/jmq/server/listener"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/retention"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/server/store/local"
	"github.com/jmqio/jmq/wire"
)

// Server is the roles of one process. It runs once.
type Server struct {
	config Config
	dir    string
	log    *slog.Logger
	health health
	ran    atomic.Bool
	ready  chan struct{} // closed when it serves

	// Set before ready is closed, and not changed after.
	wireAddress, adminAddress string
	broker                    *broker.Broker
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
	if err := c.Validate(); err != nil {
		return nil, err
	}
	dir, err := c.dataDir()
	if err != nil {
		return nil, FolderError(c.Broker.Data, err)
	}
	s := &Server{config: c, dir: dir, log: c.Logger.With("broker", c.Node.Name), ready: make(chan struct{})}
	s.health.set(stateStarting)
	return s, nil
}

// Ready is closed when the server serves.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// WireAddress is where clients connect. Known once Ready is closed, as AdminAddress and Admin are.
func (s *Server) WireAddress() string { return s.wireAddress }

// AdminAddress is where the admin port is.
func (s *Server) AdminAddress() string { return s.adminAddress }

// Admin is the broker's administration, in process.
func (s *Server) Admin() wire.Admin { return s.broker }

// Run serves until ctx ends, then stops in order. It returns nil after a stop that was asked for, else what made it
// impossible to start or to go on: a *StartError where the user can do something about it.
func (s *Server) Run(ctx context.Context) (err error) {
	if !s.ran.CompareAndSwap(false, true) {
		panic("server: run twice")
	}
	n, b := &s.config.Node, &s.config.Broker
	begun := time.Now()
	registry := prometheus.NewRegistry()
	metrics := newCollector(s.config.Version, n.Name, b.BrokerGroup, s.config.Now)
	metrics.register(registry)
	adminListener, err := s.listen(ctx, "node.admin.listen", n.Admin.Listen)
	if err != nil {
		return err
	}
	var storeErr atomic.Pointer[func() error]
	var keeper atomic.Pointer[retention.Keeper]
	s.adminAddress = adminListener.Addr().String()
	admin := serveAdmin(adminListener, registry, func() Readiness {
		return s.health.readiness(func() (refusing string, failed error) {
			if f := storeErr.Load(); f != nil {
				failed = (*f)()
			}
			if k := keeper.Load(); k != nil {
				if gone := k.Gone(); failed == nil && gone != "" {
					failed = errors.New(gone)
				}
				refusing = k.Refusing()
			}
			return refusing, failed
		})
	}, s.log)
	defer admin.stop()

	if !portZero(n.Wire.Listen) {
		// A port that is in use is told before a long recovery, not after it. It is opened only when clients are served.
		probe, err := s.listen(ctx, "node.wire.listen", n.Wire.Listen)
		if err != nil {
			return err
		}
		if err := probe.Close(); err != nil {
			return listenError("node.wire.listen", n.Wire.Listen, err)
		}
	}

	s.setState(stateRecovering, "version", s.config.Version, "brokerGroup", b.BrokerGroup, "folder", s.dir)
	flusher := new(listener.Flusher)
	offsets := offset.NewTable()
	s.broker = broker.New(broker.Options{
		Offsets: offsets, BrokerGroup: b.BrokerGroup, AckTimeout: b.Dispatch.AckTimeout, Grace: graceOf(b.Dispatch.DisconnectGrace),
		Flush: flusher.Flush, Logger: s.log, Now: s.config.Now,
		Abandoned: func(g offset.GroupID, t offset.Topic) bool { k := keeper.Load(); return k != nil && k.Abandoned(g, t) },
		Retention: store.Settings{RetentionAge: b.Retention.Age, RetentionBytes: b.Retention.Bytes},
		Usage: func(ctx context.Context, r *wire.StoreUsageRequest) (*wire.StoreUsageResponse, error) {
			return keeper.Load().Usage(ctx, r)
		},
	})
	st, err := local.Open(local.Options{
		FS: s.config.FS, Dir: s.dir, JournalDir: b.Journal.Folder, IndexDir: b.Index.Folder, Tables: []store.Table{offsets}, Gather: s.broker.Gather, AfterCommit: func() {
			flusher.Flush()
			if k := keeper.Load(); k != nil {
				k.Grew()
			}
		},
		VerifyBytesPerSecond: verifyRate(b.Journal.VerifyBytesPerSecond), SegmentBytesMax: b.Journal.SegmentBytesMax,
		CommitBytesMax: b.Journal.CommitBytesMax, QueueBytesMax: b.Journal.QueueBytesMax,
		IndexFilesOpenMax: b.Index.FilesOpenMax, CheckpointBytes: b.Store.CheckpointBytes, CheckpointEvery: b.Store.CheckpointEvery,
		Now: s.config.Now, Logger: s.log, Progress: s.progress,
	})
	if err != nil {
		s.broker.Close()
		return FolderError(s.dir, err)
	}
	defer func() {
		s.broker.Close()
		if closeErr := st.Close(); closeErr != nil {
			err = errors.Join(err, fmt.Errorf("close data folder %s: %w", s.dir, closeErr))
		}
		s.setState(stateStopped)
	}()
	failed := st.Err
	storeErr.Store(&failed)
	s.broker.Start(st)
	k, err := s.keep(st, offsets)
	if err != nil {
		return fmt.Errorf("start retention: %w", err)
	}
	defer k.Close()
	keeper.Store(k)

	wireListener, err := s.listen(ctx, "node.wire.listen", n.Wire.Listen)
	if err != nil {
		return err
	}
	s.wireAddress = wireListener.Addr().String()
	handler := wire.NewHandler(wire.Services{Broker: s.broker, Admin: s.broker}, wire.HandlerOptions{
		Broker: n.Name, BrokerGroup: b.BrokerGroup, Epoch: uint64(st.Epoch()),
		KeepAlive: n.Listener.KeepAlive, HelloTimeout: n.Listener.HelloTimeout,
		Logger: s.log, OnOpen: s.broker.Attach, OnClose: s.broker.Detach,
	})
	sockets, err := listener.New(listener.Options{
		Listener: wireListener, Handler: handler, Flusher: flusher, ConnectionsMax: n.Listener.ConnectionsMax,
		BufferBytesMax: n.Listener.BufferBytesMax, Logger: s.log,
	})
	if err != nil {
		return errors.Join(listenError("node.wire.listen", n.Wire.Listen, err), wireListener.Close())
	}
	metrics.serve(s.broker, st, sockets, k)
	served := make(chan error, 1)
	go func() { served <- sockets.Serve() }() // ends with sockets.Close; received below

	s.setState(stateServing, "wire", s.wireAddress, "admin", s.adminAddress, "epoch", st.Epoch().String(), "took", time.Since(begun).Round(time.Millisecond))
	close(s.ready)
	select {
	case <-ctx.Done():
	case err = <-served:
		served <- nil
		err = fmt.Errorf("the wire port stopped: %w", err)
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
	metrics.serve(nil, nil, nil, nil)
	return err
}

// graceOf turns the configuration's 0, no grace, into the broker's word for it.
func graceOf(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

func (s *Server) setState(now state, facts ...any) {
	before := s.health.set(now)
	s.log.Info("broker is "+string(now), append([]any{"before", string(before)}, facts...)...)
}

// progress is told by recovery how far it is.
func (s *Server) progress(done, total int64) {
	s.health.progress(done, total)
	if s.config.Progress != nil {
		s.config.Progress(done, total)
	}
}

// listen opens a port. When it is taken by another jmq that runs on the same folder, that is what is told.
func (s *Server) listen(ctx context.Context, key, address string) (net.Listener, error) {
	deadline := time.Now().Add(bindWait)
	for told := false; ; told = true {
		l, err := listener.Listen(address)
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

// verifyRate is the store's meaning of broker.journal.verifyBytesPerSecond: below 0 not at all.
func verifyRate(bytesPerSecond int64) int64 {
	if bytesPerSecond == 0 {
		return -1
	}
	return bytesPerSecond
}
