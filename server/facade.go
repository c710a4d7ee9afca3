package server

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/jmqio/jmq/wire"
)

// facade is the broker as clients reach it, whatever it is at the moment: requests go to the engine that is open now, and while that
// is not a master's they are answered with who is. So ports and sessions outlive the engines.
type facade struct {
	role *brokerRole
	now  atomic.Pointer[engine] // that serves; nil: none does

	mu struct {
		sync.Mutex // held while an engine is put in place, so that no peer is attached to neither
		peers      map[*wire.Peer]struct{}
	}
}

var (
	_ wire.Broker    = (*facade)(nil)
	_ wire.Admin     = (*facade)(nil)
	_ wire.Committer = (*facade)(nil)
)

// put has e serve, nil: nobody. All peers are attached to it before it gets the first request.
func (f *facade) put(e *engine) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e != nil {
		for p := range f.mu.peers {
			// A limit of connections that was set meanwhile holds for those that come.
			if e.broker.Attach(p) != nil {
				e.unattached[p] = struct{}{}
			}
		}
	}
	f.now.Store(e)
}

// Attach notes a connection of a client, before its first request.
func (f *facade) Attach(p *wire.Peer) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := f.now.Load(); e != nil {
		if err := e.broker.Attach(p); err != nil {
			return err
		}
	}
	f.mu.peers[p] = struct{}{}
	return nil
}

// Detach notes the end of a connection that Attach noted.
func (f *facade) Detach(p *wire.Peer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.mu.peers, p)
	e := f.now.Load()
	if e == nil {
		return
	}
	if _, not := e.unattached[p]; not {
		delete(e.unattached, p)
		return
	}
	e.broker.Detach(p)
}

// take returns the engine that serves sends, or the answer.
func (f *facade) take() (*engine, error) {
	if e := f.now.Load(); e != nil {
		return e, nil
	}
	return nil, f.role.notMaster()
}

// Produce implements wire.Broker.
func (f *facade) Produce(ctx context.Context, r *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) {
	e, err := f.take()
	if err != nil {
		done(nil, err)
		return
	}
	e.broker.Produce(ctx, r, done)
}

// Commit implements wire.Committer. What an engine holds that has been closed since, its close commits.
func (f *facade) Commit() {
	if e := f.now.Load(); e != nil {
		e.broker.Commit()
	}
}

// Fetch implements wire.Broker.
func (f *facade) Fetch(ctx context.Context, r *wire.FetchRequest, done func(*wire.FetchResponse, error)) {
	e, err := f.take()
	if err != nil {
		done(nil, err)
		return
	}
	e.broker.Fetch(ctx, r, done)
}

// Ack implements wire.Broker.
func (f *facade) Ack(ctx context.Context, r *wire.AckRequest, done func(*wire.AckResponse, error)) {
	e, err := f.take()
	if err != nil {
		done(nil, err)
		return
	}
	e.broker.Ack(ctx, r, done)
}

// Route implements wire.Broker. Where a topic is the metadata says, whoever is the master.
func (f *facade) Route(ctx context.Context, r *wire.RouteRequest) (*wire.RouteResponse, error) {
	if e := f.now.Load(); e != nil {
		return e.broker.Route(ctx, r)
	}
	return f.role.s.route(ctx, r)
}

// to carries out a cold request at the engine that serves it.
func to[Q, R any](f *facade, ctx context.Context, r Q, run func(*engine, context.Context, Q) (R, error)) (R, error) {
	e, err := f.take()
	if err != nil {
		var none R
		return none, err
	}
	return run(e, ctx, r)
}

// Subscribe implements wire.Broker.
func (f *facade) Subscribe(ctx context.Context, r *wire.SubscribeRequest) (*wire.SubscribeResponse, error) {
	return to(f, ctx, r, func(e *engine, ctx context.Context, r *wire.SubscribeRequest) (*wire.SubscribeResponse, error) {
		return e.broker.Subscribe(ctx, r)
	})
}

// Extend implements wire.Broker.
func (f *facade) Extend(ctx context.Context, r *wire.ExtendRequest) (*wire.ExtendResponse, error) {
	return to(f, ctx, r, func(e *engine, ctx context.Context, r *wire.ExtendRequest) (*wire.ExtendResponse, error) {
		return e.broker.Extend(ctx, r)
	})
}

// CreateTopic implements wire.Admin, as those that follow.
func (f *facade) CreateTopic(ctx context.Context, r *wire.CreateTopicRequest) (*wire.CreateTopicResponse, error) {
	return to(f, ctx, r, func(e *engine, ctx context.Context, r *wire.CreateTopicRequest) (*wire.CreateTopicResponse, error) {
		return e.broker.CreateTopic(ctx, r)
	})
}

func (f *facade) ListTopics(ctx context.Context, r *wire.ListTopicsRequest) (*wire.ListTopicsResponse, error) {
	return to(f, ctx, r, func(e *engine, ctx context.Context, r *wire.ListTopicsRequest) (*wire.ListTopicsResponse, error) {
		return e.broker.ListTopics(ctx, r)
	})
}

func (f *facade) AlterTopic(ctx context.Context, r *wire.AlterTopicRequest) (*wire.AlterTopicResponse, error) {
	return to(f, ctx, r, func(e *engine, ctx context.Context, r *wire.AlterTopicRequest) (*wire.AlterTopicResponse, error) {
		return e.broker.AlterTopic(ctx, r)
	})
}

func (f *facade) DeleteTopic(ctx context.Context, r *wire.DeleteTopicRequest) (*wire.DeleteTopicResponse, error) {
	return to(f, ctx, r, func(e *engine, ctx context.Context, r *wire.DeleteTopicRequest) (*wire.DeleteTopicResponse, error) {
		return e.broker.DeleteTopic(ctx, r)
	})
}

func (f *facade) DescribeTopic(ctx context.Context, r *wire.DescribeTopicRequest) (*wire.DescribeTopicResponse, error) {
	return to(f, ctx, r, func(e *engine, ctx context.Context, r *wire.DescribeTopicRequest) (*wire.DescribeTopicResponse, error) {
		return e.broker.DescribeTopic(ctx, r)
	})
}

func (f *facade) GroupLag(ctx context.Context, r *wire.GroupLagRequest) (*wire.GroupLagResponse, error) {
	return to(f, ctx, r, func(e *engine, ctx context.Context, r *wire.GroupLagRequest) (*wire.GroupLagResponse, error) {
		return e.broker.GroupLag(ctx, r)
	})
}

func (f *facade) ListGroups(ctx context.Context, r *wire.ListGroupsRequest) (*wire.ListGroupsResponse, error) {
	return to(f, ctx, r, func(e *engine, ctx context.Context, r *wire.ListGroupsRequest) (*wire.ListGroupsResponse, error) {
		return e.broker.ListGroups(ctx, r)
	})
}

func (f *facade) SeekGroup(ctx context.Context, r *wire.SeekGroupRequest) (*wire.SeekGroupResponse, error) {
	return to(f, ctx, r, func(e *engine, ctx context.Context, r *wire.SeekGroupRequest) (*wire.SeekGroupResponse, error) {
		return e.broker.SeekGroup(ctx, r)
	})
}

func (f *facade) AlterGroup(ctx context.Context, r *wire.AlterGroupRequest) (*wire.AlterGroupResponse, error) {
	return to(f, ctx, r, func(e *engine, ctx context.Context, r *wire.AlterGroupRequest) (*wire.AlterGroupResponse, error) {
		return e.broker.AlterGroup(ctx, r)
	})
}

func (f *facade) RemoveGroup(ctx context.Context, r *wire.RemoveGroupRequest) (*wire.RemoveGroupResponse, error) {
	return to(f, ctx, r, func(e *engine, ctx context.Context, r *wire.RemoveGroupRequest) (*wire.RemoveGroupResponse, error) {
		return e.broker.RemoveGroup(ctx, r)
	})
}

func (f *facade) Peek(ctx context.Context, r *wire.PeekRequest) (*wire.PeekResponse, error) {
	return to(f, ctx, r, func(e *engine, ctx context.Context, r *wire.PeekRequest) (*wire.PeekResponse, error) {
		return e.broker.Peek(ctx, r)
	})
}

func (f *facade) StoreUsage(ctx context.Context, r *wire.StoreUsageRequest) (*wire.StoreUsageResponse, error) {
	return to(f, ctx, r, func(e *engine, ctx context.Context, r *wire.StoreUsageRequest) (*wire.StoreUsageResponse, error) {
		return e.broker.StoreUsage(ctx, r)
	})
}
