package broker

import (
	"context"

	"github.com/jmqio/jmq/wire"
)

// Extend implements wire.Broker.
func (b *Broker) Extend(context.Context, *wire.ExtendRequest) (*wire.ExtendResponse, error) {
	return nil, wire.Errorf(wire.CodeUnknownCommand, "Extend is not built yet")
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
