package broker

import (
	"context"
	"errors"
	"time"

	"github.com/jmqio/jmq/server/dispatch"
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
	who := wire.PeerFrom(ctx)
	t, err := b.topic(who.Namespace, r.Topic)
	if err != nil {
		return nil, err
	}
	// An app sees what it could fetch, no more of it in a second than that, and never what a topic of the same name held before.
	g := everything
	if who.Principal.Kind == wire.PrincipalApp && b.o.Metadata {
		if g, err = b.ask(subjectOf(who), who, &t, dispatch.Queue{Topic: topicKey(&t)}, who.Principal.Name); err != nil {
			return nil, err
		}
	} else if b.outlived(who, &t) {
		return nil, beingMade(t.Name)
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
	at := time.Now()
	messages, bytes, err := b.most(g, at, min(orDefault(r.MessagesMax, 1), peekMessagesMax), int(min(orDefault(r.BytesMax, bytesDefault), wire.FetchBytesMax)))
	if err != nil {
		return nil, err
	}
	to := min(from+index.Index(messages), end)
	out, next, err := b.store.Read(p, from, to, bytes, nil)
	if to = min(next, to); to > from {
		b.charge(g, at, uint64(to-from), len(out))
	}
	response := &wire.PeekResponse{From: uint64(from), To: uint64(to), First: uint64(first), End: uint64(end), Batches: out}
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
