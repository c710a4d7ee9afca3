package server

import (
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/registry"
	"github.com/jmqio/jmq/wire"
)

// What the registry role asks of brokers. Operators cause it, seldom: each question has a connection of its own.

func (d *dialer) meet(ctx context.Context, addresses []string, r *wire.MeetRequest) (*wire.MeetResponse, error) {
	p := d.peer(addresses)
	defer p.Close()
	return p.Meet(ctx, r)
}

// count reads the records of a broker's journal in [from, to), and counts messages.
func (d *dialer) count(ctx context.Context, addresses []string, from, to uint64) (c registry.Counted, err error) {
	p := d.peer(addresses)
	defer p.Close()
	for from < to {
		a, b, err := p.ReadLog(ctx, &wire.ReadLogRequest{From: from, To: to, BytesMax: countBytes})
		if err != nil {
			return c, err
		}
		if a.From != from || len(b) == 0 || uint64(len(b)) > to-from {
			return c, wire.Errorf(wire.CodeMalformed, "%d bytes from %d, for [%d,%d)", len(b), a.From, from, to)
		}
		err = journal.EachRaw(b, func(r journal.Record) error {
			if r.Kind != journal.KindMessages {
				return nil
			}
			batch, err := wire.ParseBatch(r.Payload)
			if err != nil {
				return err
			}
			if c.Messages == 0 {
				c.First = r.Stored
			}
			c.Messages, c.Last = c.Messages+uint64(batch.Count()), r.Stored
			return nil
		})
		if err != nil {
			return c, err
		}
		from += uint64(len(b))
	}
	return c, nil
}

const countBytes = 1 << 20 // of an answer

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
