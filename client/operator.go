package client

import (
	"context"

	"github.com/jmqio/jmq/wire"
)

// operator is the Cluster's wire.Admin with repetition: what may be carried out any number of times is repeated while brokers are away,
// until ctx ends; the rest only when it certainly was not carried out.
type operator struct {
	c           *Cluster
	brokerGroup string
}

var _ wire.Admin = operator{}

// Operator returns the calls of operators in the words of the protocol, repeated as those of Client
// are; errors are *Errors. brokerGroup is where to seek, to peek, and whose store; empty: everywhere, the first, the one at home.
func (c *Client) Operator(brokerGroup string) wire.Admin { return c.operator(brokerGroup) }

func (c *Client) operator(brokerGroup string) operator { return operator{c.cluster, brokerGroup} }

func (o operator) CreateTopic(ctx context.Context, r *wire.CreateTopicRequest) (*wire.CreateTopicResponse, error) {
	return called(new(wire.CreateTopicResponse), func(out *wire.CreateTopicResponse) error {
		return o.c.call(ctx, opCreate, r.Topic, repeatAlways, wire.CommandCreateTopic, r, out)
	})
}

func (o operator) ListTopics(ctx context.Context, r *wire.ListTopicsRequest) (*wire.ListTopicsResponse, error) {
	return called(new(wire.ListTopicsResponse), func(out *wire.ListTopicsResponse) error {
		return o.c.call(ctx, opList, "", repeatAlways, wire.CommandListTopics, r, out)
	})
}

func (o operator) AlterTopic(ctx context.Context, r *wire.AlterTopicRequest) (*wire.AlterTopicResponse, error) {
	return called(new(wire.AlterTopicResponse), func(out *wire.AlterTopicResponse) error {
		return o.c.call(ctx, opAlter, r.Topic, repeatAlways, wire.CommandAlterTopic, r, out)
	})
}

func (o operator) DeleteTopic(ctx context.Context, r *wire.DeleteTopicRequest) (*wire.DeleteTopicResponse, error) {
	return called(new(wire.DeleteTopicResponse), func(out *wire.DeleteTopicResponse) error {
		return o.c.call(ctx, opDelete, r.Topic, repeatUnsent, wire.CommandDeleteTopic, r, out)
	})
}

func (o operator) DescribeTopic(ctx context.Context, r *wire.DescribeTopicRequest) (*wire.DescribeTopicResponse, error) {
	return o.c.describeTopic(ctx, r, repeating[wire.DescribeTopicRequest, wire.DescribeTopicResponse](opDescribe, r.Topic, repeatAlways, wire.CommandDescribeTopic))
}

func (o operator) GroupLag(ctx context.Context, r *wire.GroupLagRequest) (*wire.GroupLagResponse, error) {
	return o.c.groupLag(ctx, r, repeating[wire.GroupLagRequest, wire.GroupLagResponse](opLag, r.Topic, repeatAlways, wire.CommandGroupLag))
}

func (o operator) ListGroups(ctx context.Context, r *wire.ListGroupsRequest) (*wire.ListGroupsResponse, error) {
	return o.c.listGroups(ctx, r, repeating[wire.ListGroupsRequest, wire.ListGroupsResponse](opGroups, r.Topic, repeatAlways, wire.CommandListGroups))
}

func (o operator) SeekGroup(ctx context.Context, r *wire.SeekGroupRequest) (*wire.SeekGroupResponse, error) {
	again := repeatUnsent
	if r.DryRun {
		again = repeatAlways
	}
	return o.c.seekGroup(ctx, r, o.brokerGroup, repeating[wire.SeekGroupRequest, wire.SeekGroupResponse](opSeek, r.Topic, again, wire.CommandSeekGroup))
}

func (o operator) AlterGroup(ctx context.Context, r *wire.AlterGroupRequest) (*wire.AlterGroupResponse, error) {
	return o.c.alterGroup(ctx, r, repeating[wire.AlterGroupRequest, wire.AlterGroupResponse](opPolicy, r.Topic, repeatAlways, wire.CommandAlterGroup))
}

func (o operator) RemoveGroup(ctx context.Context, r *wire.RemoveGroupRequest) (*wire.RemoveGroupResponse, error) {
	return o.c.removeGroup(ctx, r, repeating[wire.RemoveGroupRequest, wire.RemoveGroupResponse](opRemove, r.Topic, repeatUnsent, wire.CommandRemoveGroup))
}

func (o operator) Peek(ctx context.Context, r *wire.PeekRequest) (*wire.PeekResponse, error) {
	at, err := o.c.locatedAt(ctx, r.Topic, o.brokerGroup)
	if err != nil {
		return nil, newError(opPeek, r.Topic, int(r.Partition), "", err)
	}
	return called(new(wire.PeekResponse), func(out *wire.PeekResponse) error {
		return at.call(ctx, opPeek, r.Topic, repeatAlways, wire.CommandPeek, r, out)
	})
}

func (o operator) StoreUsage(ctx context.Context, r *wire.StoreUsageRequest) (*wire.StoreUsageResponse, error) {
	return called(new(wire.StoreUsageResponse), func(out *wire.StoreUsageResponse) error {
		if o.brokerGroup == "" {
			return o.c.call(ctx, opUsage, "", repeatAlways, wire.CommandStoreUsage, r, out)
		}
		all, err := o.c.brokerGroups(ctx)
		for _, p := range all {
			if p.group() == o.brokerGroup {
				return p.call(ctx, opUsage, "", repeatAlways, wire.CommandStoreUsage, r, out)
			}
		}
		if err == nil {
			err = wire.Errorf(wire.CodeNotFound, "no broker group %q is known", o.brokerGroup)
		}
		return newError(opUsage, "", -1, "", err)
	})
}
