package broker

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/jmqio/jmq/server/dispatch"
	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/wire"
)

// GroupLag implements wire.Admin.
func (b *Broker) GroupLag(ctx context.Context, r *wire.GroupLagRequest) (*wire.GroupLagResponse, error) {
	var response *wire.GroupLagResponse
	err := b.weigh(ctx, func() (err error) {
		response, err = b.groupLag(ctx, r)
		return err
	})
	if err != nil {
		return nil, b.refuse(err)
	}
	return response, nil
}

func (b *Broker) groupLag(ctx context.Context, r *wire.GroupLagRequest) (*wire.GroupLagResponse, error) {
	if err := b.may(ctx, meta.ReadGroup, r.Topic, r.Group); err != nil {
		return nil, err
	}
	who := wire.PeerFrom(ctx)
	var t store.Topic
	var groups []offset.NamedGroup
	if r.Group != "" {
		topic, q, err := b.queue(who.Namespace, r.Topic, r.Group)
		if err != nil {
			return nil, err
		}
		t, groups = topic, []offset.NamedGroup{{ID: q.Group, Namespace: who.Namespace, Name: r.Group}}
	} else {
		topic, err := b.topic(who.Namespace, r.Topic)
		if err != nil {
			return nil, err
		}
		t, groups = topic, b.offsets().GroupsOf(topicKey(&topic))
	}
	if n := len(groups) * int(t.Partitions); n > rowsMax {
		return nil, wire.Errorf(wire.CodeTooLarge, "%d groups of %d partitions are more than an answer holds: name one group", len(groups), t.Partitions)
	}
	response := &wire.GroupLagResponse{}
	for _, g := range groups {
		held := b.dispatch.Held(dispatch.Queue{Group: g.ID, Topic: topicKey(&t)})
		for p := range t.Partitions {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			at, ok, err := b.standing(&t, g.ID, p)
			if err != nil {
				return nil, err
			}
			if !ok {
				break
			}
			row := &wire.GroupPartition{Group: g.Name, Partition: p, First: uint64(at.first), End: uint64(at.end), AckOffset: uint64(at.Ack),
				Consumed: at.Consumed, Lag: at.lag, Generation: at.Generation, Expired: at.Expired, AttemptsMax: at.AttemptsMax}
			for ; len(held) > 0 && uint32(held[0].Partition) == p; held = held[1:] {
				if row.Leases++; row.Leases == 1 {
					row.Member = fmt.Sprintf("%s#%d", held[0].Client, held[0].Member)
				}
				row.Leased += held[0].Left
			}
			if r.Group != "" && at.lag > 0 { // each may take a read of the disk, and metrics ask for all groups again and again
				row.OldestNs = b.oldest(&t, g.ID, p, at.first)
			}
			response.Partitions = append(response.Partitions, row)
		}
	}
	if n := proto.Size(response); n > answerBytesMax { // the names are long
		return nil, wire.Errorf(wire.CodeTooLarge, "%d groups of %d partitions take %d bytes, more than an answer holds: name one group", len(groups), t.Partitions, n)
	}
	return response, nil
}

// oldest returns when the first message was stored that has not ended; 0 if it cannot be read.
func (b *Broker) oldest(t *store.Topic, g offset.GroupID, p uint32, first index.Index) int64 {
	i, ok := b.offsets().First(g, topicKey(t), uint16(p), first)
	if !ok {
		return 0
	}
	stored, err := b.store.Stored(partitionOf(t, p), i)
	if err != nil { // trimmed or ended meanwhile, or damaged: the rest of the row is still right
		return 0
	}
	return stored
}

// standing is where a group stands in a partition, and how far it is behind.
type standing struct {
	offset.Standing
	first, end index.Index
	lag        uint64 // messages in [first, end) that have not ended
}

// standing returns ok false for a group that is not on the topic.
func (b *Broker) standing(t *store.Topic, g offset.GroupID, p uint32) (s standing, ok bool, err error) {
	if s.first, _, err = b.store.Bounds(partitionOf(t, p)); err != nil {
		return s, false, err
	}
	if s.Standing, ok = b.offsets().Standing(g, topicKey(t), uint16(p), s.first); !ok {
		return s, false, nil
	}
	// The end last: so nothing at or beyond it has ended. A first index that was raised meanwhile is told as it was.
	if _, s.end, err = b.store.Bounds(partitionOf(t, p)); err != nil {
		return s, false, err
	}
	// After the loss of a disk's end a group may stand beyond what is left.
	s.lag = uint64(s.end-s.first) - min(uint64(s.end-s.first), s.Ended)
	return s, true, nil
}
