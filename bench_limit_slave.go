package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/wire"
)

// limitSlave is the other machine of jmq bench limit --slave: the journal pushes to it what it is about to write, and commits
// when it is synced here and written there.
type limitSlave struct {
	conn   *wire.Conn
	served sync.WaitGroup
	mu     struct {
		sync.Mutex
		acked   journal.Position
		err     error
		changed chan struct{} // closed when acked or err changed; nil: nobody waits
	}
}

var _ journal.Replica = (*limitSlave)(nil)

func dialLimitSlave(address string) (*limitSlave, error) {
	nc, err := net.Dial("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("connect to the limit program's slave: %w", err)
	}
	s := &limitSlave{conn: wire.NewConn(nc, wire.ConnOptions{})}
	s.served.Go(func() { _ = s.conn.Serve() }) // its pushes tell how it ended
	return s, nil
}

func (s *limitSlave) close() {
	s.conn.Close(nil)
	s.served.Wait()
}

// Written pushes what is about to be written.
func (s *limitSlave) Written(from journal.Position, b []byte) {
	var header [8]byte
	binary.LittleEndian.PutUint64(header[:], uint64(from))
	end := from + journal.Position(len(b))
	if _, err := s.conn.Start(limitPush, header[:], b, func(_ wire.Frame, err error) { s.answered(end, err) }); err != nil {
		s.answered(end, err)
		return
	}
	s.conn.Flush()
}

func (s *limitSlave) answered(end journal.Position, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.mu.err = err
	} else {
		s.mu.acked = max(s.mu.acked, end)
	}
	if s.mu.changed != nil {
		close(s.mu.changed)
		s.mu.changed = nil
	}
}

// Wait waits for the slave's answer.
func (s *limitSlave) Wait(end journal.Position) error {
	for {
		s.mu.Lock()
		if s.mu.err != nil || s.mu.acked >= end {
			err := s.mu.err
			s.mu.Unlock()
			return err
		}
		if s.mu.changed == nil {
			s.mu.changed = make(chan struct{})
		}
		changed := s.mu.changed
		s.mu.Unlock()
		<-changed
	}
}

func (s *limitSlave) InSync() bool { return true }

func (s *limitSlave) Copied() journal.Position {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.acked
}

// serveLimitSlave writes what is pushed into one file, without a sync, and answers.
func serveLimitSlave(ctx context.Context, ln net.Listener, data string) error {
	if err := os.MkdirAll(data, 0o755); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(data, "log"))
	if err != nil {
		return err
	}
	defer f.Close() // it is removed after the run
	stop := context.AfterFunc(ctx, func() { ln.Close() })
	defer stop()
	var conns sync.WaitGroup
	defer conns.Wait()
	for {
		nc, err := ln.Accept()
		if err != nil {
			return nil // stopped
		}
		c := wire.NewConn(nc, wire.ConnOptions{OnBatchEnd: (*wire.Conn).Flush, Handler: func(c *wire.Conn, fr wire.Frame) {
			if fr.Command != limitPush || len(fr.Header) != 8 {
				c.ReplyError(fr.Request, fr.Command, wire.Errorf(wire.CodeUnknownCommand, "command %d", fr.Command))
				return
			}
			if _, err := f.WriteAt(fr.Payload, int64(binary.LittleEndian.Uint64(fr.Header))); err != nil {
				c.ReplyError(fr.Request, fr.Command, err)
				return
			}
			c.Reply(fr.Request, fr.Command, nil)
		}})
		conns.Go(func() {
			defer context.AfterFunc(ctx, func() { c.Close(nil) })()
			_ = c.Serve() // a connection that ends is the master's business
		})
	}
}
