package server

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jmqio/jmq/server/broker"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/replica"
	"github.com/jmqio/jmq/server/retention"
	"github.com/jmqio/jmq/server/side"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/server/store/local"
	"github.com/jmqio/jmq/wire"
)

// engine is an open store with the broker and the retention that stand on it, from one opening of the store to the next.
type engine struct {
	role       *brokerRole
	broker     *broker.Broker
	store      *local.Store
	keeper     atomic.Pointer[retention.Keeper]
	unattached map[*wire.Peer]struct{} // facade.mu's: peers that the broker did not let in

	// One of both, of a broker that a registry rules.
	master  *replica.Master
	slave   *replica.Slave
	side    *side.File // nil: there is none
	follows bool       // its store is a slave's
	opened  time.Time
	serves  serves // of a slave
	resends resends
}

// opening says what a store is opened as.
type opening struct {
	log   func(local.LogOptions) (local.Log, error) // nil: replicated nowhere
	slave bool
	side  *side.File
	ready func(*engine)                                              // called before the broker is started; nil: nothing is
	mend  func(ctx context.Context, from, to journal.Position) error // brings a damaged range from another copy; nil: there is none
}

// openEngine opens the store and starts the broker and its retention. Nobody reaches it yet.
func (r *brokerRole) openEngine(as opening) (*engine, error) {
	s, b := r.s, &r.s.config.Broker
	e := &engine{role: r, unattached: map[*wire.Peer]struct{}{}, side: as.side, follows: as.slave, opened: time.Now()}
	offsets := offset.NewTable()
	e.broker = broker.New(broker.Options{
		Offsets: offsets, BrokerGroup: b.BrokerGroup, Broker: s.config.Node.Name, Slave: as.slave, Side: as.side, Masters: r.masters, AckTimeout: b.Dispatch.AckTimeout, Grace: graceOf(b.Dispatch.DisconnectGrace),
		Metadata: s.followsMetadata(), Sure: s.knowsNewest, Route: s.route,
		Flush: r.flusher.Flush, Logger: s.log, Now: s.config.Now,
		Abandoned: func(g offset.GroupID, t offset.Topic) bool {
			k := e.keeper.Load()
			return k != nil && k.Abandoned(g, t)
		},
		Retention: store.Settings{RetentionAge: b.Retention.Age, RetentionBytes: b.Retention.Bytes},
		Usage: func(ctx context.Context, r *wire.StoreUsageRequest) (*wire.StoreUsageResponse, error) {
			return e.keeper.Load().Usage(ctx, r)
		},
	})
	o := r.storeOptions()
	o.Tables, o.Gather, o.OpenLog, o.Follow, o.Mend = []store.Table{offsets}, e.broker.Gather, as.log, as.slave, as.mend
	o.AfterCommit = func() {
		r.flusher.Flush()
		if k := e.keeper.Load(); k != nil {
			k.Grew()
		}
	}
	var err error
	if e.store, err = local.Open(o); err != nil {
		e.broker.Close()
		return nil, FolderError(s.dir, err)
	}
	if as.ready != nil {
		as.ready(e)
	}
	e.broker.Start(e.store)
	k, err := s.keep(e, offsets)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start retention: %w", err), e.close())
	}
	e.keeper.Store(k)
	return e, nil
}

// storeOptions are those of every opening.
func (r *brokerRole) storeOptions() local.Options {
	s, b := r.s, &r.s.config.Broker
	return local.Options{
		FS: s.config.FS, Dir: s.dir, JournalDir: b.Journal.Folder, IndexDir: b.Index.Folder,
		VerifyBytesPerSecond: verifyRate(b.Journal.VerifyBytesPerSecond), SegmentBytesMax: b.Journal.SegmentBytesMax,
		CommitBytesMax: b.Journal.CommitBytesMax, QueueBytesMax: b.Journal.QueueBytesMax,
		IndexFilesOpenMax: b.Index.FilesOpenMax, CheckpointBytes: b.Store.CheckpointBytes, CheckpointEvery: b.Store.CheckpointEvery,
		Now: s.config.Now, Logger: s.log, Progress: s.progress,
	}
}

// close stops all of it, what nothing else stands on first.
func (e *engine) close() error {
	if e.master != nil {
		e.master.Stopping() // acks under way are waited for below, and may wait for slaves that are gone
	}
	e.serves.ships.Wait()
	e.resends.close()
	if k := e.keeper.Load(); k != nil {
		k.Close()
	}
	e.broker.Close()
	err := e.store.Close()
	if e.side != nil {
		err = errors.Join(err, e.side.Close())
	}
	if err != nil {
		return fmt.Errorf("close data folder %s: %w", e.role.s.dir, err)
	}
	return nil
}

// journal is that of a broker that a registry rules.
func (e *engine) journal() *journal.Journal {
	if e.master != nil {
		return e.master.Journal
	}
	return e.slave.Journal
}

// condition says why sends are refused, "" while they are taken, and why the store stopped or is gone, nil while it is well.
func (e *engine) condition() (refusing string, failed error) {
	failed = e.store.Err()
	if k := e.keeper.Load(); k != nil {
		if gone := k.Gone(); failed == nil && gone != "" {
			failed = errors.New(gone)
		}
		refusing = k.Refusing()
	}
	return refusing, failed
}
