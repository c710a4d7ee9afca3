package broker

import (
	"context"

	"github.com/jmqio/jmq/wire"
)

// Extend implements wire.Broker.
func (b *Broker) Extend(context.Context, *wire.ExtendRequest) (*wire.ExtendResponse, error) {
	return nil, wire.Errorf(wire.CodeUnknownCommand, "Extend is not built yet")
}

// AlterTopic implements wire.Admin.
func (b *Broker) AlterTopic(context.Context, *wire.AlterTopicRequest) (*wire.AlterTopicResponse, error) {
	return nil, wire.Errorf(wire.CodeUnknownCommand, "AlterTopic is not built yet")
}

// DeleteTopic implements wire.Admin.
func (b *Broker) DeleteTopic(context.Context, *wire.DeleteTopicRequest) (*wire.DeleteTopicResponse, error) {
	return nil, wire.Errorf(wire.CodeUnknownCommand, "DeleteTopic is not built yet")
}

// DescribeTopic implements wire.Admin.
func (b *Broker) DescribeTopic(context.Context, *wire.DescribeTopicRequest) (*wire.DescribeTopicResponse, error) {
	return nil, wire.Errorf(wire.CodeUnknownCommand, "DescribeTopic is not built yet")
}

// ListGroups implements wire.Admin.
func (b *Broker) ListGroups(context.Context, *wire.ListGroupsRequest) (*wire.ListGroupsResponse, error) {
	return nil, wire.Errorf(wire.CodeUnknownCommand, "ListGroups is not built yet")
}

// SeekGroup implements wire.Admin.
func (b *Broker) SeekGroup(context.Context, *wire.SeekGroupRequest) (*wire.SeekGroupResponse, error) {
	return nil, wire.Errorf(wire.CodeUnknownCommand, "SeekGroup is not built yet")
}

// AlterGroup implements wire.Admin.
func (b *Broker) AlterGroup(context.Context, *wire.AlterGroupRequest) (*wire.AlterGroupResponse, error) {
	return nil, wire.Errorf(wire.CodeUnknownCommand, "AlterGroup is not built yet")
}

// RemoveGroup implements wire.Admin.
func (b *Broker) RemoveGroup(context.Context, *wire.RemoveGroupRequest) (*wire.RemoveGroupResponse, error) {
	return nil, wire.Errorf(wire.CodeUnknownCommand, "RemoveGroup is not built yet")
}

// Peek implements wire.Admin.
func (b *Broker) Peek(context.Context, *wire.PeekRequest) (*wire.PeekResponse, error) {
	return nil, wire.Errorf(wire.CodeUnknownCommand, "Peek is not built yet")
}

// StoreUsage implements wire.Admin.
func (b *Broker) StoreUsage(context.Context, *wire.StoreUsageRequest) (*wire.StoreUsageResponse, error) {
	return nil, wire.Errorf(wire.CodeUnknownCommand, "StoreUsage is not built yet")
}
