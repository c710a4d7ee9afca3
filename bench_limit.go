package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/spf13/cobra"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/wire"
)

// The limit program is the ceiling of a machine for a broker that syncs before it answers: frames over TCP on
// loopback, one journal, group commit, answers written by the committer. No names, checks, index, leases or offsets.
//
// It has five commands, without a hello:
//
//	append  payload -> answered when synced
//	pull    position u64 -> next position u64, count u64, the messages from there (waits for one)
//	ack     payload -> answered when synced
//	stats   -> syncs u64
//	push    position u64, records -> written: with --slave, from the server to a second one, beside its own write and sync
const (
	limitAppend wire.Command = 1
	limitPull   wire.Command = 2
	limitStats  wire.Command = 3
	limitAck    wire.Command = 4
	limitPush   wire.Command = 5

	// limitPullMessages is how many messages a pull answers at most.
	limitPullMessages = 100
)

func benchServeLimitCommand() *cobra.Command {
	var data, slave string
	var follow bool
	cmd := &cobra.Command{
		Use: "serve-limit", Hidden: true, Args: cobra.NoArgs,
		Short: "The servers of jmq bench limit",
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				return err
			}
			if follow {
				fmt.Fprintf(cmd.OutOrStdout(), "listening %s\n", ln.Addr())
				return serveLimitSlave(ctx, ln, data)
			}
			s, err := newLimitServer(data, slave)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "listening %s\n", ln.Addr())
			return s.serve(ctx, ln)
		},
	}
	cmd.Flags().StringVar(&data, "folder", "", "folder of the journal")
	cmd.Flags().StringVar(&slave, "slave", "", "address of the slave")
	cmd.Flags().BoolVar(&follow, "follow", false, "be the slave")
	return cmd
}

type limitServer struct {
	journal *journal.Journal
	slave   *limitSlave // nil: there is none

	mu    sync.Mutex
	conns []*wire.Conn
	pulls []limitPullCall // wait for something beyond their position
}

type limitPullCall struct {
	conn    *wire.Conn
	request uint64
	from    journal.Position
}

func newLimitServer(data, slave string) (*limitServer, error) {
	s := &limitServer{}
	o := journal.Options{FS: vfs.Default, Dir: data, AfterCommit: s.committed}
	o.Follow = slave != ""
	j, err := journal.Open(o)
	if err != nil {
		return nil, err
	}
	s.journal = j
	if slave != "" {
		if s.slave, err = dialLimitSlave(slave); err == nil {
			err = j.Lead(journal.MakeEpoch(1, 1), false, s.slave)
		}
		if err != nil {
			return nil, errors.Join(err, j.Close())
		}
	}
	return s, nil
}

func (s *limitServer) serve(ctx context.Context, ln net.Listener) error {
	var wg sync.WaitGroup
	stop := context.AfterFunc(ctx, func() {
		ln.Close()
		s.mu.Lock()
		conns := slices.Clone(s.conns)
		s.mu.Unlock()
		for _, c := range conns {
			c.Close(nil)
		}
	})
	defer stop()
	for {
		nc, err := ln.Accept()
		if err != nil {
			break
		}
		c := wire.NewConn(nc, wire.ConnOptions{Handler: s.handle, OnBatchEnd: s.batchEnd})
		s.mu.Lock()
		s.conns = append(s.conns, c)
		s.mu.Unlock()
		wg.Go(func() { _ = c.Serve() }) // a connection that ends is the client's business
	}
	wg.Wait()
	err := s.journal.Close()
	if s.slave != nil {
		s.slave.close()
	}
	return err
}

// limitCall is one append on its way.
type limitCall struct {
	journal.Append
	entry   [1]journal.Entry
	conn    *wire.Conn
	request uint64
	command wire.Command
}

func (s *limitServer) handle(c *wire.Conn, f wire.Frame) {
	switch f.Command {
	case limitAppend, limitAck:
		kind := journal.KindMessages
		if f.Command == limitAck {
			kind = journal.KindEnd
		}
		call := &limitCall{conn: c, request: f.Request, command: f.Command}
		call.entry[0] = journal.Entry{Kind: kind, Payload: f.Payload}
		call.Entries, call.Stored = call.entry[:], time.Now().UnixNano()
		call.Done = func(_ *journal.Append, err error) {
			if err != nil {
				call.conn.ReplyError(call.request, call.command, err)
				return
			}
			call.conn.Reply(call.request, call.command, nil)
		}
		err := s.journal.Append(&call.Append)
		for errors.Is(err, journal.ErrBusy) { // the reader waits, and so do its clients
			s.journal.Kick()
			if err = s.journal.WaitRoom(context.Background()); err == nil {
				err = s.journal.Append(&call.Append)
			}
		}
		if err != nil {
			c.ReplyError(f.Request, f.Command, err)
		}
	case limitPull:
		if len(f.Header) != 8 {
			c.ReplyError(f.Request, f.Command, wire.Errorf(wire.CodeMalformed, "a pull's header is %d bytes, not 8", len(f.Header)))
			return
		}
		s.pull(limitPullCall{c, f.Request, journal.Position(binary.LittleEndian.Uint64(f.Header))})
	case limitStats:
		m := s.journal.Metrics()
		c.Reply(f.Request, f.Command, binary.LittleEndian.AppendUint64(nil, uint64(m.Syncs)))
	default:
		c.ReplyError(f.Request, f.Command, wire.Errorf(wire.CodeUnknownCommand, "command %d", f.Command))
	}
}

// batchEnd runs when all frames of one read are handled: they are one group of the next commit.
func (s *limitServer) batchEnd(c *wire.Conn) {
	s.journal.TryLead()
	c.Flush()
}

// pull answers p, or parks it until the next commit.
func (s *limitServer) pull(p limitPullCall) {
	s.mu.Lock()
	if p.from >= s.journal.Synced() {
		s.pulls = append(s.pulls, p)
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	header, body, err := s.records(p.from)
	if err != nil {
		p.conn.ReplyError(p.request, limitPull, err)
		return
	}
	p.conn.Reply(p.request, limitPull, header, body)
}

func (s *limitServer) records(from journal.Position) (header, body []byte, err error) {
	r := s.journal.NewReader(from)
	defer r.Close()
	next, count := from, 0
	for count < limitPullMessages {
		rec, err := r.Next()
		if err == io.EOF {
			break // the synced end
		}
		if err != nil {
			return nil, nil, err
		}
		next = rec.Position + journal.Position(journal.RecordBytes(len(rec.Payload)))
		if rec.Kind == journal.KindMessages {
			body = append(body, rec.Payload...)
			count++
		}
	}
	header = binary.LittleEndian.AppendUint64(nil, uint64(next))
	return binary.LittleEndian.AppendUint64(header, uint64(count)), body, nil
}

// committed is the journal's AfterCommit: it answers pulls that waited and writes all answers.
func (s *limitServer) committed() {
	s.mu.Lock()
	pulls := s.pulls
	s.pulls = nil
	conns := s.conns
	s.mu.Unlock()
	for _, p := range pulls {
		s.pull(p)
	}
	for _, c := range conns {
		c.Flush()
	}
}

func benchLimit(ctx context.Context, o benchOptions) (benchResult, error) {
	args := []string{"bench", "serve-limit", "--folder", filepath.Join(o.data, "master")}
	var slave *process
	var err error
	if o.slave {
		if slave, err = startProcess(ctx, "bench", "serve-limit", "--folder", filepath.Join(o.data, "slave"), "--follow"); err != nil {
			return benchResult{}, err
		}
		defer slave.kill()
		args = append(args, "--slave", slave.address)
	}
	server, err := startProcess(ctx, args...)
	if err != nil {
		return benchResult{}, err
	}
	defer server.kill()
	conns, closeConns, err := dialLimit(server.address, o.connections)
	if err != nil {
		return benchResult{}, err
	}
	defer closeConns()
	payload := make([]byte, o.batch*o.size)
	m := &meter{pid: server.cmd.Process.Pid, syncs: func() (int64, error) { return limitSyncs(ctx, conns[0]) }}
	var consumed func() int64
	following := &consumers{cancel: func() {}}
	if o.consume {
		following = followLimit(ctx, server.address, o.consumers)
		defer following.stop()
		consumed = following.count.Load
	}
	m.consumed = consumed
	r, err := load{workers: o.producers, warmUp: o.warmUp, duration: o.duration, progress: o.progress}.run(ctx, func(i int) call {
		c := conns[i%len(conns)]
		return func(ctx context.Context) (int, error) {
			_, err := c.Call(ctx, limitAppend, nil, payload)
			return o.batch, err
		}
	}, m.mark)
	if err = errors.Join(err, following.stop()); err != nil {
		return benchResult{}, err
	}
	use, err := m.use()
	if err != nil {
		return benchResult{}, err
	}
	closeConns()
	name := "limit"
	if o.slave {
		name = "limit+slave"
	}
	err = server.stop()
	if slave != nil {
		err = errors.Join(err, slave.stop())
	}
	return o.result(name, r, use), err
}

func dialLimit(address string, n int) (conns []*wire.Conn, closeAll func(), err error) {
	var wg sync.WaitGroup
	closeAll = func() {
		for _, c := range conns {
			c.Close(nil)
		}
		wg.Wait()
	}
	for range n {
		nc, err := net.Dial("tcp", address)
		if err != nil {
			closeAll()
			return nil, nil, fmt.Errorf("connect to the limit server: %w", err)
		}
		c := wire.NewConn(nc, wire.ConnOptions{})
		conns = append(conns, c)
		wg.Go(func() { _ = c.Serve() }) // its calls tell how it ended
	}
	return conns, closeAll, nil
}

func limitSyncs(ctx context.Context, c *wire.Conn) (int64, error) {
	f, err := c.Call(ctx, limitStats, nil, nil)
	if err != nil {
		return 0, err
	}
	if len(f.Header) != 8 {
		return 0, errors.New("the limit server's statistics are cut")
	}
	return int64(binary.LittleEndian.Uint64(f.Header)), nil
}

// followLimit starts one connection that follows the journal, as one group does, with up to n acks in flight. Each pulled
// batch is acked by a small append.
func followLimit(ctx context.Context, address string, n int) *consumers {
	g := &consumers{}
	ctx, g.cancel = context.WithCancel(ctx)
	g.wg.Go(func() {
		if err := g.follow(ctx, address, n); err != nil && ctx.Err() == nil {
			g.fail(err)
		}
	})
	return g
}

func (g *consumers) follow(ctx context.Context, address string, n int) error {
	conns, closeConns, err := dialLimit(address, 1)
	if err != nil {
		return err
	}
	defer closeConns()
	c := conns[0]
	var position uint64
	acks := make(chan struct{}, n) // acks on their way
	for {
		f, err := c.Call(ctx, limitPull, binary.LittleEndian.AppendUint64(nil, position), nil)
		if err != nil {
			return fmt.Errorf("pull from position %d: %w", position, err)
		}
		if len(f.Header) != 16 {
			return fmt.Errorf("pull from position %d: the answer's header is %d bytes, not 16", position, len(f.Header))
		}
		position = binary.LittleEndian.Uint64(f.Header)
		got := int64(binary.LittleEndian.Uint64(f.Header[8:]))
		select {
		case acks <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		g.wg.Go(func() {
			defer func() { <-acks }()
			if _, err := c.Call(ctx, limitAck, nil, f.Header); err != nil {
				if ctx.Err() == nil {
					g.fail(fmt.Errorf("ack: %w", err))
				}
				return
			}
			g.count.Add(got)
		})
	}
}
