package server

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jmqio/jmq/server/broker"
	"github.com/jmqio/jmq/server/listener"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/retention"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/server/store/local"
	"github.com/jmqio/jmq/wire"
)

// brokerRole is the broker with all that it stands on.
type brokerRole struct {
	s      *Server
	broker *broker.Broker
	store  *local.Store
	keeper atomic.Pointer[retention.Keeper]
}

// openBroker opens the store and starts the broker and its retention. Nobody reaches it yet.
func (s *Server) openBroker(flusher *listener.Flusher) (*brokerRole, error) {
	b := &s.config.Broker
	role := &brokerRole{s: s}
	offsets := offset.NewTable()
	role.broker = broker.New(broker.Options{
		Offsets: offsets, BrokerGroup: b.BrokerGroup, AckTimeout: b.Dispatch.AckTimeout, Grace: graceOf(b.Dispatch.DisconnectGrace),
		Metadata: s.followsMetadata(), Route: s.route,
		Flush: flusher.Flush, Logger: s.log, Now: s.config.Now,
		Abandoned: func(g offset.GroupID, t offset.Topic) bool {
			k := role.keeper.Load()
			return k != nil && k.Abandoned(g, t)
		},
		Retention: store.Settings{RetentionAge: b.Retention.Age, RetentionBytes: b.Retention.Bytes},
		Usage: func(ctx context.Context, r *wire.StoreUsageRequest) (*wire.StoreUsageResponse, error) {
			return role.keeper.Load().Usage(ctx, r)
		},
	})
	var err error
	role.store, err = local.Open(local.Options{
		FS: s.config.FS, Dir: s.dir, JournalDir: b.Journal.Folder, IndexDir: b.Index.Folder, Tables: []store.Table{offsets}, Gather: role.broker.Gather, AfterCommit: func() {
			flusher.Flush()
			if k := role.keeper.Load(); k != nil {
				k.Grew()
			}
		},
		VerifyBytesPerSecond: verifyRate(b.Journal.VerifyBytesPerSecond), SegmentBytesMax: b.Journal.SegmentBytesMax,
		CommitBytesMax: b.Journal.CommitBytesMax, QueueBytesMax: b.Journal.QueueBytesMax,
		IndexFilesOpenMax: b.Index.FilesOpenMax, CheckpointBytes: b.Store.CheckpointBytes, CheckpointEvery: b.Store.CheckpointEvery,
		Now: s.config.Now, Logger: s.log, Progress: s.progress,
	})
	if err != nil {
		role.broker.Close()
		return nil, FolderError(s.dir, err)
	}
	role.broker.Start(role.store)
	k, err := s.keep(role, offsets)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start retention: %w", err), role.close())
	}
	role.keeper.Store(k)
	return role, nil
}

// close stops all of it, what nothing else stands on first.
func (r *brokerRole) close() error {
	if k := r.keeper.Load(); k != nil {
		k.Close()
	}
	r.broker.Close()
	if err := r.store.Close(); err != nil {
		return fmt.Errorf("close data folder %s: %w", r.s.dir, err)
	}
	return nil
}

// condition says why sends are refused, "" while they are taken, and why the store stopped or is gone, nil while it is well.
func (r *brokerRole) condition() (refusing string, failed error) {
	failed = r.store.Err()
	if k := r.keeper.Load(); k != nil {
		if gone := k.Gone(); failed == nil && gone != "" {
			failed = errors.New(gone)
		}
		refusing = k.Refusing()
	}
	return refusing, failed
}

// graceOf turns the configuration's 0, no grace, into the broker's word for it.
func graceOf(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

// verifyRate is the store's meaning of broker.journal.verifyBytesPerSecond: below 0 not at all.
func verifyRate(bytesPerSecond int64) int64 {
	if bytesPerSecond == 0 {
		return -1
	}
	return bytesPerSecond
}
