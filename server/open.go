package server

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/replica"
	"github.com/jmqio/jmq/server/side"
	"github.com/jmqio/jmq/server/store/local"
)

// openSide opens the file of acks that a slave took.
func (x *replicas) openSide() (*side.File, error) {
	f, err := side.Open(side.Options{FS: x.s.config.FS, Dir: x.s.dir, Logger: x.s.log})
	if err != nil {
		return nil, FolderError(x.s.dir, err)
	}
	return f, nil
}

// openMaster opens the store with a master's log, which other brokers reach as soon as it lets them. It returns when all that the journal has is
// committed.
func (x *replicas) openMaster(ctx context.Context, granted uint32, forced bool) (*engine, error) {
	if err := x.state.Err(); err != nil {
		return nil, err
	}
	f, err := x.openSide()
	if err != nil {
		return nil, err
	}
	var m *replica.Master
	e, err := x.r.openEngine(opening{side: f,
		log: func(o local.LogOptions) (_ local.Log, err error) {
			if m, err = replica.OpenMaster(ctx, x.node(), granted, forced, o, x.master.Store); err != nil {
				return nil, err
			}
			return m, nil
		},
		mend: func(ctx context.Context, from, to journal.Position) error { return m.Repair(ctx, from, to) },
		ready: func(e *engine) {
			if names := x.awaited(); len(names) > 0 {
				e.broker.HoldConsuming(time.Now().Add(holdFor), fmt.Sprintf("%v may have served meanwhile", names))
			}
		},
	})
	if err != nil {
		x.master.Store(nil)
		_ = f.Close() // that it is not open is told
		return nil, err
	}
	e.master = m
	if err := e.broker.MergeOwn(ctx); err != nil {
		x.s.log.Warn("what was acked here while the broker was a slave is not merged: those messages come again", "brokerGroup", x.group(), "err", err)
	} else if x.state.Get().Serving != 0 {
		err = x.state.Update(func(s *replica.State) { s.Serving = 0 })
		if err != nil {
			x.s.log.Warn("the broker's state", "err", err)
		}
	}
	return e, nil
}

// openSlave opens the store with a slave's log.
func (x *replicas) openSlave(ctx context.Context) (*engine, error) {
	if err := x.state.Err(); err != nil {
		return nil, err // as what it is, and what it has promised, may be forgotten
	}
	f, err := x.openSide()
	if err != nil {
		return nil, err
	}
	var l *replica.Slave
	var trim trimAlong
	e, err := x.r.openEngine(opening{slave: true, side: f,
		log: func(o local.LogOptions) (_ local.Log, err error) {
			n := x.node()
			n.MasterBegin = trim.to
			// It acks already while the store is opened: others are told what it has.
			if l, err = replica.OpenSlave(ctx, n, o, x.slave.Store); err != nil {
				return nil, err
			}
			return l, nil
		},
		mend: func(ctx context.Context, from, to journal.Position) error { return l.Repair(ctx, from, to) },
	})
	if err != nil {
		x.slave.Store(nil)
		x.lost(err)
		_ = f.Close() // that it is not open is told
		return nil, err
	}
	e.slave = l
	trim.open(e.store.FollowTrim)
	return e, nil
}

// trimAlong has a slave's store let go of what its master's journal does not have any more.
type trimAlong struct {
	mu               sync.Mutex
	begin, committed journal.Position                        // of the master's journal, as told
	follow           func(begin, committed journal.Position) // the store's; nil: it is not open yet
}

// to is told where the master's journal begins, and what it had committed then: before that is applied, what it has carried forward may be
// missing here.
func (t *trimAlong) to(begin, committed journal.Position) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.begin, t.committed = begin, committed; t.follow != nil {
		t.follow(begin, committed)
	}
}

func (t *trimAlong) open(follow func(begin, committed journal.Position)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.follow = follow; t.begin > 0 {
		follow(t.begin, t.committed)
	}
}
