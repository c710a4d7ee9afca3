package client

import (
	"context"

	"github.com/jmqio/jmq/wire"
)

// RemoteBroker is one broker group at a distance, for those who speak the protocol themselves. It does not repeat what failed.
type RemoteBroker interface {
	wire.Broker
	wire.Admin
}

var _ RemoteBroker = (*pool)(nil)

// Produce implements wire.Broker.
func (p *pool) Produce(ctx context.Context, r *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) {
	p.remote(ctx, wire.CodeUnknown, wire.CommandProduce, wire.AppendProduceRequest(nil, r), r.Batch, func(_ *link, f wire.Frame, err error) {
		var out wire.ProduceResponse
		if err == nil {
			err = wire.ParseProduceResponse(&out, f.Header)
		}
		answer(&out, err, done)
	}, ignoreLate)
}

// Fetch implements wire.Broker. A lease that comes after ctx has ended is given back.
func (p *pool) Fetch(ctx context.Context, r *wire.FetchRequest, done func(*wire.FetchResponse, error)) {
	give := &wire.AckRequest{Topic: r.Topic, Group: r.Group, Member: r.Member}
	p.remote(ctx, wire.CodeTimeout, wire.CommandFetch, wire.AppendFetchRequest(nil, r), nil, func(_ *link, f wire.Frame, err error) {
		var out wire.FetchResponse
		if err == nil {
			err = wire.ParseFetchResponse(&out, f.Header)
			out.Batches = f.Payload
		}
		answer(&out, err, done)
	}, func(l *link, f wire.Frame, err error) {
		var out wire.FetchResponse
		if err == nil && wire.ParseFetchResponse(&out, f.Header) == nil {
			giveBack(l, give, &out)
		}
	})
}

// giveBack releases a lease that nobody waits for any more. It may run on the connection's reading goroutine.
func giveBack(l *link, r *wire.AckRequest, lease *wire.FetchResponse) {
	if lease.Lease == 0 {
		return
	}
	r.Items = []wire.AckRange{{Partition: lease.Partition, Lease: lease.Lease, From: lease.From, To: lease.To, Outcome: wire.Released}}
	// If it does not get there, the lease ends by itself.
	if _, err := l.Start(wire.CommandAck, wire.AppendAckRequest(nil, r), nil, func(wire.Frame, error) {}); err == nil {
		l.Flush()
	}
}

// Ack implements wire.Broker.
func (p *pool) Ack(ctx context.Context, r *wire.AckRequest, done func(*wire.AckResponse, error)) {
	p.remote(ctx, wire.CodeUnknown, wire.CommandAck, wire.AppendAckRequest(nil, r), nil, func(_ *link, f wire.Frame, err error) {
		var out wire.AckResponse
		if err == nil {
			err = parseAcks(&out, f.Header, len(r.Items))
		}
		answer(&out, err, done)
	}, ignoreLate)
}

func parseAcks(out *wire.AckResponse, header []byte, items int) error {
	if err := wire.ParseAckResponse(out, header); err != nil {
		return err
	}
	if len(out.Codes) != items {
		return wire.Errorf(wire.CodeMalformed, "%d codes for %d acks", len(out.Codes), items)
	}
	return nil
}

func answer[M any](out *M, err error, done func(*M, error)) {
	if err != nil {
		done(nil, err)
		return
	}
	done(out, nil)
}

func called[M any](out M, call func(M) error) (M, error) {
	if err := call(out); err != nil {
		var none M
		return none, err
	}
	return out, nil
}

// Subscribe implements wire.Broker.
func (p *pool) Subscribe(ctx context.Context, r *wire.SubscribeRequest) (*wire.SubscribeResponse, error) {
	return called(new(wire.SubscribeResponse), func(out *wire.SubscribeResponse) error { return p.one(ctx, wire.CommandSubscribe, r, out) })
}

// Route implements wire.Broker.
func (p *pool) Route(ctx context.Context, r *wire.RouteRequest) (*wire.RouteResponse, error) {
	return called(new(wire.RouteResponse), func(out *wire.RouteResponse) error { return p.one(ctx, wire.CommandRoute, r, out) })
}

// Extend implements wire.Broker.
func (p *pool) Extend(ctx context.Context, r *wire.ExtendRequest) (*wire.ExtendResponse, error) {
	return called(new(wire.ExtendResponse), func(out *wire.ExtendResponse) error { return p.one(ctx, wire.CommandExtend, r, out) })
}

// CreateTopic implements wire.Admin.
func (p *pool) CreateTopic(ctx context.Context, r *wire.CreateTopicRequest) (*wire.CreateTopicResponse, error) {
	return called(new(wire.CreateTopicResponse), func(out *wire.CreateTopicResponse) error { return p.one(ctx, wire.CommandCreateTopic, r, out) })
}

// AlterTopic implements wire.Admin.
func (p *pool) AlterTopic(ctx context.Context, r *wire.AlterTopicRequest) (*wire.AlterTopicResponse, error) {
	return called(new(wire.AlterTopicResponse), func(out *wire.AlterTopicResponse) error { return p.one(ctx, wire.CommandAlterTopic, r, out) })
}

// DeleteTopic implements wire.Admin.
func (p *pool) DeleteTopic(ctx context.Context, r *wire.DeleteTopicRequest) (*wire.DeleteTopicResponse, error) {
	return called(new(wire.DeleteTopicResponse), func(out *wire.DeleteTopicResponse) error { return p.one(ctx, wire.CommandDeleteTopic, r, out) })
}

// DescribeTopic implements wire.Admin.
func (p *pool) DescribeTopic(ctx context.Context, r *wire.DescribeTopicRequest) (*wire.DescribeTopicResponse, error) {
	return called(new(wire.DescribeTopicResponse), func(out *wire.DescribeTopicResponse) error { return p.one(ctx, wire.CommandDescribeTopic, r, out) })
}

// ListTopics implements wire.Admin.
func (p *pool) ListTopics(ctx context.Context, r *wire.ListTopicsRequest) (*wire.ListTopicsResponse, error) {
	return called(new(wire.ListTopicsResponse), func(out *wire.ListTopicsResponse) error { return p.one(ctx, wire.CommandListTopics, r, out) })
}

// GroupLag implements wire.Admin.
func (p *pool) GroupLag(ctx context.Context, r *wire.GroupLagRequest) (*wire.GroupLagResponse, error) {
	return called(new(wire.GroupLagResponse), func(out *wire.GroupLagResponse) error { return p.one(ctx, wire.CommandGroupLag, r, out) })
}

// ListGroups implements wire.Admin.
func (p *pool) ListGroups(ctx context.Context, r *wire.ListGroupsRequest) (*wire.ListGroupsResponse, error) {
	return called(new(wire.ListGroupsResponse), func(out *wire.ListGroupsResponse) error { return p.one(ctx, wire.CommandListGroups, r, out) })
}

// SeekGroup implements wire.Admin.
func (p *pool) SeekGroup(ctx context.Context, r *wire.SeekGroupRequest) (*wire.SeekGroupResponse, error) {
	return called(new(wire.SeekGroupResponse), func(out *wire.SeekGroupResponse) error { return p.one(ctx, wire.CommandSeekGroup, r, out) })
}

// AlterGroup implements wire.Admin.
func (p *pool) AlterGroup(ctx context.Context, r *wire.AlterGroupRequest) (*wire.AlterGroupResponse, error) {
	return called(new(wire.AlterGroupResponse), func(out *wire.AlterGroupResponse) error { return p.one(ctx, wire.CommandAlterGroup, r, out) })
}

// RemoveGroup implements wire.Admin.
func (p *pool) RemoveGroup(ctx context.Context, r *wire.RemoveGroupRequest) (*wire.RemoveGroupResponse, error) {
	return called(new(wire.RemoveGroupResponse), func(out *wire.RemoveGroupResponse) error { return p.one(ctx, wire.CommandRemoveGroup, r, out) })
}

// Peek implements wire.Admin.
func (p *pool) Peek(ctx context.Context, r *wire.PeekRequest) (*wire.PeekResponse, error) {
	return called(new(wire.PeekResponse), func(out *wire.PeekResponse) error { return p.one(ctx, wire.CommandPeek, r, out) })
}

// StoreUsage implements wire.Admin.
func (p *pool) StoreUsage(ctx context.Context, r *wire.StoreUsageRequest) (*wire.StoreUsageResponse, error) {
	return called(new(wire.StoreUsageResponse), func(out *wire.StoreUsageResponse) error { return p.one(ctx, wire.CommandStoreUsage, r, out) })
}
