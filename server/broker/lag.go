package broker

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/jmqio/jmq/server/dispatch"
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
		t, groups = topic, b.o.Offsets.GroupsOf(topicKey(&topic))
	}
	if n := len(groups) * int(t.Partitions); n > rowsMax {
		return nil, wire.Errorf(wire.CodeTooLarge, "%d groups of %d partitions are more than an answer holds: name one group", len(groups), t.Partitions)
	}
	response := &wire.GroupLagResponse{}
	for _, g := range groups {
		q := dispatch.Queue{Group: g.ID, Topic: topicKey(&t)}
		held := b.dispatch.Held(q)
		for p := range t.Partitions {
			first, _, err := b.store.Bounds(partitionOf(&t, p))
			if err != nil {
				return nil, err
			}
			at, ok := b.o.Offsets.Standing(g.ID, q.Topic, uint16(p), first)
			if !ok {
				break
			}
			// The end last: so it is not below what has ended.
			_, end, err := b.store.Bounds(partitionOf(&t, p))
			if err != nil {
				return nil, err
			}
			row := &wire.GroupPartition{Group: g.Name, Partition: p, First: uint64(first), End: uint64(end), AckOffset: uint64(at.Ack),
				Consumed: at.Consumed, Lag: uint64(end-first) - at.Ended, Generation: at.Generation, Expired: at.Expired, AttemptsMax: at.AttemptsMax}
			for ; len(held) > 0 && uint32(held[0].Partition) == p; held = held[1:] {
				row.Leases++
				row.Leased += held[0].Left
				row.Member = fmt.Sprintf("%s#%d", held[0].Client, held[0].Member)
			}
			response.Partitions = append(response.Partitions, row)
		}
	}
	if n := proto.Size(response); n > answerBytesMax { // the names are long
		return nil, wire.Errorf(wire.CodeTooLarge, "%d groups of %d partitions take %d bytes, more than an answer holds: name one group", len(groups), t.Partitions, n)
	}
	return response, nil
}
