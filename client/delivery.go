package client

import (
	"context"
	"fmt"
	"time"

	"github.com/jmqio/jmq/wire"
)

// Delivery is a message that a group was given. Its Body is its own.
type Delivery struct {
	Message            // ID, Topic and Partition are set
	Group    string    //
	Index    uint64    // in its partition
	Epoch    uint64    // of the broker that gave it
	Lease    uint64    // under which it was given
	Member   uint32    // to whom
	Attempt  int       // which delivery it is: 1, and one more for each lease of it that ran out
	Deadline time.Time // when the lease ends by itself, as far as this side can tell
	BornAt   time.Time // at the producer
	StoredAt time.Time // at the broker

	consumer  *Consumer
	pool      *pool // which gave it
	partition uint16
	term      *term
}

// Location is where the message is stored: broker group, partition and index, as "bg1/3/4711".
func (d *Delivery) Location() string {
	return fmt.Sprintf("%s/%d", location(d.BrokerGroup, d.partition), d.Index)
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
func (c *Consumer) deliveries(r *wire.FetchResponse, m *member, l *link, t *term) ([]*Delivery, error) {
	partition, deadline, attempt := r.Partition, t.end(), max(int(r.Attempt), 1)
	all := make([]Delivery, 0, r.To-r.From)
	err := c.c.readBatches(r.Batches, r.From, r.To, func(index uint64, stored time.Time, w wire.Message) {
		all = append(all, Delivery{
			Message: messageOf(c.topic, l.brokerGroup, &partition, w),
			Group:   c.o.group, Index: index, Epoch: r.Epoch, Lease: r.Lease, Member: m.number, Deadline: deadline, Attempt: attempt,
			BornAt: time.Unix(0, w.BornNs), StoredAt: stored, consumer: c, pool: m.pool, partition: r.Partition, term: t,
		})
	})
	if err != nil {
		return nil, err
	}
	out := make([]*Delivery, len(all))
	for i := range all {
		out[i] = &all[i]
	}
	return out, nil
}
