package broker

import (
	"context"
	"time"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/wire"
)

// Resend is wire.Replication's: it stores a batch that another broker of the broker group had at its journal's end. Nobody's rights, limits and pauses
// count: the messages were taken once. A batch that is here already, as its producer's sequence says, is not stored again.
func (b *Broker) Resend(ctx context.Context, r *wire.ResendRequest, bytes []byte) (*wire.ResendResponse, error) {
	if err := b.master(); err != nil {
		return nil, b.refuse(err)
	}
	if r.BrokerGroup != b.o.BrokerGroup {
		return nil, b.refuse(wire.Errorf(wire.CodeInvalid, "a batch of broker group %q, this is %q", r.BrokerGroup, b.o.BrokerGroup))
	}
	if at := b.store.Epoch(); r.Epoch != uint64(at) {
		return nil, b.refuse(wire.Errorf(wire.CodeStaleTerm, "a batch for epoch %v, this is %v", journal.Epoch(r.Epoch), at))
	}
	t, err := b.topic(r.Namespace, r.Topic)
	if err == nil && t.Origin.Created != r.Created {
		err = wire.Errorf(wire.CodeTopicNotFound, "topic %q was made anew since", r.Topic)
	}
	if err == nil && r.Partition >= t.Partitions {
		err = noPartition(&t, r.Partition)
	}
	if err == nil {
		if why := b.refusing.Load(); why != nil {
			err = why
		}
	}
	if err != nil {
		return nil, b.refuse(err)
	}
	batch, err := wire.ParseBatch(bytes)
	if err != nil {
		return nil, b.refuse(err)
	}
	type outcome struct {
		first uint64
		err   error
	}
	done := make(chan outcome, 1)
	c := b.produceCall()
	c.started, c.route, c.id = time.Now(), 0, 0
	p := store.Partition{Topic: t.ID, Incarnation: t.Incarnation, Partition: uint16(r.Partition)}
	if err := c.store(&wire.Peer{}, batch, p, func(a *wire.ProduceResponse, err error) {
		o := outcome{err: err}
		if err == nil {
			o.first = a.FirstIndex
		}
		done <- o
	}); err != nil {
		c.done = nil
		b.produces.Put(c)
		return nil, b.refuse(err)
	}
	select {
	case o := <-done:
		if o.err != nil {
			return nil, o.err
		}
		return &wire.ResendResponse{FirstIndex: o.first}, nil
	case <-ctx.Done():
		return nil, wire.Errorf(wire.CodeUnknown, "it is not known yet whether the batch is committed")
	}
}
