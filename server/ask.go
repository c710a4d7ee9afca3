package server

import (
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/jmqio/jmq/wire"
)

// What the registry role asks of brokers. Operators cause it, seldom: each question has a connection of its own.

func (d *dialer) meet(ctx context.Context, addresses []string, r *wire.MeetRequest) (*wire.MeetResponse, error) {
	p := d.peer(addresses)
	defer p.Close()
	return p.Meet(ctx, r)
}

func (d *dialer) listGroups(ctx context.Context, addresses []string, r *wire.ListGroupsRequest) (*wire.ListGroupsResponse, error) {
	p := d.peer(addresses)
	defer p.Close()
	header, err := proto.Marshal(r)
	if err != nil {
		return nil, wire.Errorf(wire.CodeInvalid, "the request cannot be encoded: %v", err)
	}
	f, err := p.do(ctx, wire.CommandListGroups, header, nil)
	if err != nil {
		return nil, err
	}
	answer := new(wire.ListGroupsResponse)
	if err := proto.Unmarshal(f.Header, answer); err != nil {
		return nil, wire.Errorf(wire.CodeMalformed, "the answer to %v cannot be read: %v", wire.CommandListGroups, err)
	}
	return answer, nil
}
