// Package servertest starts a whole jmq on a temporary folder in one call, for tests and for programs under scripts.
package servertest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/jmqio/jmq/server"
	"github.com/jmqio/jmq/server/servertest/ports"
	"github.com/jmqio/jmq/wire"
)

// within bounds a start and a stop: far more than either takes, so that a test that hangs says where.
const within = 30 * time.Second

// Server is a running jmq. Its goroutine ends with Stop, which the test's end calls.
type Server struct {
	t      testing.TB
	config server.Config

	mu      sync.Mutex // of what follows
	running *server.Server
	stop    context.CancelFunc
	ended   chan error
}

// Option changes the configuration that Start begins with: the defaults, on ports that stay the server's until the test ends, small segments, a
// temporary folder, and a disk that is full when nothing is left, whatever else lies on the machine's.
type Option func(*server.Config)

// Start returns a server that serves. The test fails if it cannot start, or does not stop well at its end.
func Start(t testing.TB, options ...Option) *Server {
	t.Helper()
	c := server.DefaultConfig()
	c.Broker.Data = t.TempDir()
	for _, listen := range []*string{&c.Node.Wire.Listen, &c.Node.Admin.Listen} {
		address, release, err := ports.Take()
		if err != nil {
			t.Fatal(err)
		}
		*listen = address
		t.Cleanup(release)
	}
	d := &c.Broker.Disk
	d.WarnPercent, d.EarlyDeletePercent, d.RefusePercent = 100, 100, 100
	c.Broker.Journal.SegmentBytesMax = 1 << 20
	c.Node.StopTimeout = 2 * time.Second
	if os.Getenv("JMQ_TEST_LOG") != "" {
		c.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	for _, o := range options {
		o(&c)
	}
	s := &Server{t: t, config: c}
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

func (s *Server) start() error {
	running, err := server.New(s.config)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- running.Run(ctx) }()
	select {
	case <-running.Ready():
	case err := <-ended:
		stop()
		if err == nil {
			err = errors.New("ended at once")
		}
		return fmt.Errorf("servertest: start: %w", err)
	case <-time.After(within):
		stop()
		return fmt.Errorf("servertest: not ready within %v", within)
	}
	s.config.Node.Wire.Listen, s.config.Node.Admin.Listen = running.WireAddress(), running.AdminAddress()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running, s.stop, s.ended = running, stop, ended
	return nil
}

// Stop stops the server in order and waits. It may be called again.
func (s *Server) Stop() {
	s.t.Helper()
	if err := s.end(); err != nil {
		s.t.Errorf("servertest: stop: %v", err)
	}
}

func (s *Server) end() error {
	s.mu.Lock()
	running, stop, ended := s.running, s.stop, s.ended
	s.running = nil
	s.mu.Unlock() // whoever looks meanwhile must not wait: under synctest the time would stand still
	if running == nil {
		return nil
	}
	stop()
	select {
	case err := <-ended:
		return err
	case <-time.After(within):
		all := make([]byte, 256<<10)
		return fmt.Errorf("%w within %v; all goroutines:\n%s", errNotStopped, within, all[:runtime.Stack(all, true)])
	}
}

var errNotStopped = errors.New("not stopped")

// Restart stops the server and starts it again on the same folder and the same ports.
func (s *Server) Restart() {
	s.t.Helper()
	s.Stop()
	s.StartAgain()
}

// StartAgain starts a server that was stopped on the same folder and the same ports.
func (s *Server) StartAgain() {
	s.t.Helper()
	if err := s.start(); err != nil {
		s.t.Fatal(err)
	}
}

// Change alters the configuration that the next start has.
func (s *Server) Change(o Option) { o(&s.config) }

// Address is where clients connect.
func (s *Server) Address() string { return s.get().WireAddress() }

// Name is the node's.
func (s *Server) Name() string { return s.config.Node.Name }

// AdminAddress is where the admin port is.
func (s *Server) AdminAddress() string { return s.get().AdminAddress() }

// Folder is the data folder.
func (s *Server) Folder() string { return s.config.Broker.Data }

// Registry is the metadata as the server has it, in process.
func (s *Server) Registry() wire.Registry { return s.get().Registry() }

// Reload has the server look at its certificates.
func (s *Server) Reload() error { return s.get().Reload() }

// Admin is the broker's administration, in process.
func (s *Server) Admin() wire.Admin { return s.get().Admin() }

// CreateTopic makes a topic, or fails the test.
func (s *Server) CreateTopic(name string, partitions uint32) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if _, err := s.Admin().CreateTopic(ctx, &wire.CreateTopicRequest{Topic: name, Partitions: partitions}); err != nil {
		s.t.Fatalf("servertest: create topic %s: %v", name, err)
	}
}

func (s *Server) get() *server.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running == nil {
		s.t.Fatal("servertest: the server is stopped")
	}
	return s.running
}
