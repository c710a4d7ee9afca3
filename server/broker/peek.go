package broker

import (
	"context"
	"errors"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/wire"
)

const peekMessagesMax = 1000

// Peek implements wire.Admin.
func (b *Broker) Peek(ctx context.Context, r *wire.PeekRequest) (*wire.PeekResponse, error) {
	var response *wire.PeekResponse
	err := b.weigh(ctx, func() (err error) {
		response, err = b.peek(ctx, r)
		return err
	})
	if err != nil {
		return nil, b.refuse(err)
	}
	return response, nil
}

func (b *Broker) peek(ctx context.Context, r *wire.PeekRequest) (*wire.PeekResponse, error) {
	if err := b.may(ctx, meta.ReadMessages, r.Topic, ""); err != nil {
		return nil, err
	}
	t, err := b.topic(wire.PeerFrom(ctx).Namespace, r.Topic)
	if err != nil {
		return nil, err
	}
	if r.Partition >= t.Partitions {
		return nil, noPartition(&t, r.Partition)
	}
	p, from := partitionOf(&t, r.Partition), index.Index(r.Index)
	if r.TimeNs != 0 {
		if from, err = b.store.Seek(p, r.TimeNs); err != nil {
			return nil, err
		}
	}
	first, end, err := b.store.Bounds(p)
	if err != nil {
		return nil, err
	}
	if from > end {
		return nil, wire.Errorf(wire.CodeOutOfRange, "index %d is beyond the end of partition %d, %d", from, r.Partition, end)
	}
	messages := index.Index(min(orDefault(r.MessagesMax, 1), peekMessagesMax))
	to := min(from+messages, end)
	bytes := int(min(orDefault(r.BytesMax, bytesDefault), wire.FetchBytesMax))
	out, next, err := b.store.Read(p, from, to, bytes, nil)
	response := &wire.PeekResponse{From: uint64(from), To: uint64(min(next, to)), First: uint64(first), End: uint64(end), Batches: out}
	if gap, reason := gapOf(b.store, p, err); reason != 0 {
		response.To, response.Gap = uint64(gap.To), uint32(reason)
		return response, nil
	}
	return response, err
}

// gapOf returns the range that a Read's error says will never be read, and why; reason 0 if it says no such thing. What was
// trimmed is all below the first index kept.
func gapOf(s store.Store, p store.Partition, err error) (gap store.GapError, reason wire.GapReason) {
	if e, ok := errors.AsType[*store.GapError](err); ok {
		return *e, wire.GapDamaged
	}
	if errors.Is(err, store.ErrTrimmed) {
		if first, _, err := s.Bounds(p); err == nil {
			return store.GapError{To: first}, wire.GapTrimmed
		}
	}
	return store.GapError{}, 0
}
