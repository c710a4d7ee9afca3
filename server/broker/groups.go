package broker

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/jmqio/jmq/server/dispatch"
	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/wire"
)

// ListGroups implements wire.Admin.
func (b *Broker) ListGroups(ctx context.Context, r *wire.ListGroupsRequest) (*wire.ListGroupsResponse, error) {
	var response *wire.ListGroupsResponse
	err := b.weigh(ctx, func() (err error) {
		response, err = b.listGroups(ctx, r)
		return err
	})
	if err != nil {
		return nil, b.refuse(err)
	}
	return response, nil
}

func (b *Broker) listGroups(ctx context.Context, r *wire.ListGroupsRequest) (*wire.ListGroupsResponse, error) {
	if err := b.may(ctx, meta.ReadGroup, r.Topic, r.Group); err != nil {
		return nil, err
	}
	namespace := wire.PeerFrom(ctx).Namespace
	if r.Left {
		if err := b.may(ctx, meta.BeNode, "", ""); err != nil {
			return nil, err
		}
	}
	topics := b.store.Topics()
	if r.Topic != "" {
		t, err := b.topic(namespace, r.Topic)
		if err != nil {
			return nil, err
		}
		topics = []store.Topic{t}
	}
	response, size := &wire.ListGroupsResponse{}, 0
	for i := range topics {
		t := &topics[i]
		if t.Namespace != namespace && !r.Left {
			continue
		}
		for _, g := range b.offsets().GroupsOf(topicKey(t)) {
			if r.Group != "" && g.Name != r.Group {
				continue
			}
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			row, err := b.summary(t, g)
			if err != nil {
				return nil, err
			}
			if row == nil || r.Left && (row.Lag == 0 || row.Abandoned) {
				continue
			}
			if r.Left {
				row.Namespace = t.Namespace
			}
			if size += proto.Size(row) + 8; size > answerBytesMax {
				return nil, wire.Errorf(wire.CodeTooLarge, "%d groups are more than an answer holds: name a topic or a group", len(response.Groups))
			}
			response.Groups = append(response.Groups, row)
		}
	}
	if r.Group != "" && len(response.Groups) == 0 {
		if err := wire.CheckGroup(r.Group); err != nil {
			return nil, err
		}
		return nil, wire.Errorf(wire.CodeGroupNotFound, "group %q is on no such topic", r.Group)
	}
	return response, nil
}

// summary is nil for a group that left the topic meanwhile.
func (b *Broker) summary(t *store.Topic, g offset.NamedGroup) (*wire.GroupSummary, error) {
	key := topicKey(t)
	policy, ok := b.offsets().Policy(g.ID, key)
	if !ok {
		return nil, nil
	}
	use := b.dispatch.Use(dispatch.Queue{Group: g.ID, Topic: key})
	row := &wire.GroupSummary{Topic: t.Name, Group: g.Name, Policy: policyMessage(policy), Partitions: t.Partitions,
		Leased: use.Leased, Members: uint32(use.Members), Waiting: uint32(use.Waiting), ActiveNs: b.active(g.ID, key, &use)}
	row.Abandoned = b.o.Abandoned(g.ID, key)
	if moved, ok := b.offsets().LastMove(g.ID, key); ok {
		row.LastReset = &wire.GroupReset{TimeNs: moved.Time, Who: moved.Who, Reason: moved.Why}
	}
	for p := range t.Partitions {
		at, ok, err := b.standing(t, g.ID, p)
		if err != nil || !ok {
			return nil, err
		}
		row.Lag += at.lag
	}
	return row, nil
}

// Active returns when a group was last seen to do something on a topic: it fetched, acked or was moved. Unix nanoseconds; 0: not
// known. Fetches that found nothing are forgotten with a restart.
func (b *Broker) Active(g offset.GroupID, topic offset.Topic) int64 {
	use := b.dispatch.Use(dispatch.Queue{Group: g, Topic: topic})
	return b.active(g, topic, &use)
}

func (b *Broker) active(g offset.GroupID, topic offset.Topic, use *dispatch.Use) int64 {
	at := b.offsets().Active(g, topic)
	if !use.LastFetch.IsZero() {
		// By the clock as it is now: it may have been set since.
		at = max(at, b.o.Now().Add(-time.Since(use.LastFetch)).UnixNano())
	}
	return at
}
