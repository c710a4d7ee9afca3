package client

import (
	"context"
	"time"

	"github.com/jmqio/jmq/wire"
	"github.com/oklog/ulid/v2"
)

// Delivery is a message that a group was given. Its Body is its own.
type Delivery struct {
	Message            // ID, Topic and Partition are set
	Group    string    //
	Index    uint64    // in its partition
	Epoch    uint64    // of the broker that gave it
	Lease    uint64    // under which it was given
	Member   uint32    // to whom
	Deadline time.Time // when the lease ends by itself, as far as this side can tell
	BornAt   time.Time // at the producer
	StoredAt time.Time // at the broker

	consumer  *Consumer
	partition uint16
}

// Ack says that the message was handled: the group does not get it again. nil: that is on disk. Errors that are
// ErrLeaseExpired, ErrLeaseUnknown or ErrLeaseForeign mean that the message was given away meanwhile, and comes, or came,
// again; ErrAlreadyEnded that it was acknowledged before. After one that is ErrUnknown the ack may have arrived. It is
// repeated until ctx ends or the lease is over.
//
// Run does this itself.
func (d *Delivery) Ack(ctx context.Context) error {
	return d.consumer.end(ctx, opAck, wire.Acked, []*Delivery{d})
}

// Release gives the message back: it is delivered again, to whoever asks first, when all of its lease has ended. After an
// error the client goes on trying, unless the lease has other messages that are not acknowledged yet: then with their end.
func (d *Delivery) Release(ctx context.Context) error {
	return d.consumer.end(ctx, opRelease, wire.Released, []*Delivery{d})
}

// deliveries reads what of a fetch's batches belongs to its lease. The batches are kept by the deliveries.
func (c *Consumer) deliveries(r *wire.FetchResponse, member uint32, deadline time.Time) ([]*Delivery, error) {
	all := make([]Delivery, 0, r.To-r.From)
	partition := r.Partition
	for rest := r.Batches; len(rest) > 0; {
		b, after, err := wire.SplitBatch(rest)
		if err != nil {
			return nil, err
		}
		rest = after
		if err := b.Verify(); err != nil {
			return nil, err
		}
		raw, err := c.c.codec.Messages(b, nil)
		if err != nil {
			return nil, err
		}
		stored := time.Unix(0, b.StoredNs())
		it := wire.IterateMessages(b, raw)
		for it.Next() {
			index := b.FirstIndex() + uint64(it.Slot())
			if index < r.From || index >= r.To {
				continue
			}
			if len(all) == cap(all) || index != r.From+uint64(len(all)) {
				return nil, wire.Errorf(wire.CodeMalformed, "index %d where %d was due in [%d, %d)", index, r.From+uint64(len(all)), r.From, r.To)
			}
			m := it.View.Alias()
			all = append(all, Delivery{
				Message: Message{
					Topic: c.topic, ID: ulid.ULID(m.ID).String(), Key: m.Key, OrderKey: m.OrderKey, Tag: m.Tag, Headers: m.Headers, Body: m.Body, Flag: m.Flag,
					Priority: m.Priority, Partition: &partition,
				},
				Group: c.o.group, Index: index, Epoch: r.Epoch, Lease: r.Lease, Member: member, Deadline: deadline,
				BornAt: time.Unix(0, m.BornNs), StoredAt: stored, consumer: c, partition: partition,
			})
		}
		if err := it.Err(); err != nil {
			return nil, err
		}
	}
	if uint64(len(all)) != r.To-r.From {
		return nil, wire.Errorf(wire.CodeMalformed, "%d messages in the lease of [%d, %d)", len(all), r.From, r.To)
	}
	out := make([]*Delivery, len(all))
	for i := range all {
		out[i] = &all[i]
	}
	return out, nil
}
