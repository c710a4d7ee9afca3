package broker

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/jmqio/jmq/server/dispatch"
	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/wire"
)

// births are the groups that are being born: their record is on its way to the disk.
type births struct {
	mu struct {
		sync.Mutex
		running map[birthKey]*birth
		ids     map[groupKey]*newID // numbers of groups that are nowhere yet
	}
}

type groupKey struct {
	namespace uint32
	name      string
}

type birthKey struct {
	group groupKey
	topic offset.Topic
}

type newID struct {
	id    offset.GroupID
	users int // births that need it
}

type birth struct {
	done chan struct{} // closed when err is set
	err  error
}

func (b *births) init() {
	b.mu.running = map[birthKey]*birth{}
	b.mu.ids = map[groupKey]*newID{}
}

// Subscribe implements wire.Broker. A new group's positions are read before its record is appended, so it gets every
// message whose commit comes after, and so every one that is sent after the answer.
func (b *Broker) Subscribe(ctx context.Context, r *wire.SubscribeRequest) (*wire.SubscribeResponse, error) {
	created, t, err := b.subscribe(ctx, r)
	// Unlike a send it may wait: nobody's reading is held up, and a new client should not begin with an error.
	for try := 0; try < subscribeTries && wire.CodeOf(coded(err)) == wire.CodeBusy; try++ {
		select {
		case <-time.After(busyRetry):
		case <-ctx.Done():
		}
		created, t, err = b.subscribe(ctx, r)
	}
	if err != nil {
		err = coded(err)
		b.metrics.refused(err)
		return nil, err
	}
	return &wire.SubscribeResponse{Partitions: t.Partitions, LeaseMs: uint32(b.dispatch.AckTimeout().Milliseconds()), Created: created}, nil
}

func (b *Broker) subscribe(ctx context.Context, r *wire.SubscribeRequest) (created bool, t store.Topic, err error) {
	if err := b.check(); err != nil {
		return false, t, err
	}
	who := wire.PeerFrom(ctx)
	if err := wire.CheckGroup(r.Group); err != nil {
		return false, t, err
	}
	if r.Start != wire.StartEnd && r.Start != wire.StartBeginning {
		return false, t, wire.Errorf(wire.CodeInvalid, "start is %d: 0 (end) and 1 (beginning) are known", r.Start)
	}
	if t, err = b.topic(who.Namespace, r.Topic); err != nil {
		return false, t, err
	}
	key := birthKey{groupKey{who.Namespace, r.Group}, topicKey(&t)}
	mine, running, id, err := b.births.begin(b, key, int(t.Partitions))
	if err != nil || running == nil {
		return false, t, err
	}
	if mine {
		if err := b.bear(key, id, &t, who, r.Start, running); err != nil {
			b.birthEnds(key, &t, running, err)
		}
	}
	select {
	case <-running.done:
		return mine, t, running.err
	case <-ctx.Done():
		return false, t, fmt.Errorf("group %q is being made: %w", r.Group, ctx.Err())
	}
}

// begin returns the birth to wait for, and whether the caller must bring it about; nil if the group is on the topic.
func (s *births) begin(b *Broker, key birthKey, partitions int) (mine bool, running *birth, id offset.GroupID, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if running = s.mu.running[key]; running != nil {
		return false, running, 0, nil
	}
	// A birth leaves running after the table has it, so nothing is missed between the two.
	table := b.o.Offsets
	id, known := table.Group(key.group.namespace, key.group.name)
	if known && table.Has(id, key.topic) {
		return false, nil, 0, nil
	}
	if n := table.Subscriptions() + len(s.mu.running); n >= b.o.SubscriptionsMax {
		return false, nil, 0, wire.Errorf(wire.CodeTooLarge, "there are %d subscriptions, which is as many as can be", n)
	}
	if err := b.room.group(&b.o, partitions); err != nil {
		return false, nil, 0, err
	}
	if !known {
		n := s.mu.ids[key.group]
		if n == nil {
			// A number is taken by the table or by a birth under way; one whose birth failed, and so is not in the log, is free again.
			last := table.LastGroup()
			for _, other := range s.mu.ids {
				last = max(last, other.id)
			}
			n = &newID{id: last + 1}
			s.mu.ids[key.group] = n
		}
		n.users++
		id = n.id
	}
	running = &birth{done: make(chan struct{})}
	s.mu.running[key] = running
	return true, running, id, nil
}

func (s *births) end(key birthKey, running *birth, err error) {
	s.mu.Lock()
	running.err = err
	delete(s.mu.running, key)
	if n := s.mu.ids[key.group]; n != nil {
		if n.users--; n.users == 0 {
			delete(s.mu.ids, key.group)
		}
	}
	s.mu.Unlock()
	close(running.done)
}

// startName is wire.StartEnd or wire.StartBeginning for people.
func startName(start uint32) string {
	if start == wire.StartBeginning {
		return "beginning"
	}
	return "end"
}

func (b *Broker) bear(key birthKey, id offset.GroupID, t *store.Topic, who *wire.Peer, start uint32, running *birth) error {
	r := offset.Reset{Namespace: key.group.namespace, Group: id, GroupName: key.group.name, Topic: key.topic, TopicName: t.Name,
		Who: who.App + " " + who.ClientID + " " + who.Addr, Why: "first subscription"}
	for p := range t.Partitions {
		first, end, err := b.store.Bounds(partitionOf(t, p))
		if err != nil {
			return err
		}
		at := first
		if start == wire.StartEnd {
			at = end
		}
		r.Starts = append(r.Starts, offset.Start{Partition: uint16(p), Generation: 1, Offset: at})
	}
	return b.store.AppendRecord(journal.KindOffsetReset, offset.AppendReset(nil, &r), func(err error) {
		if err != nil {
			b.failedBy(err)
		} else {
			b.o.Logger.Info("a group was made", "topic", t.Name, "group", r.GroupName, "id", id, "client", who.ClientID, "start", startName(start))
		}
		b.birthEnds(key, t, running, err)
	})
}

func (b *Broker) birthEnds(key birthKey, t *store.Topic, running *birth, err error) {
	if err != nil {
		b.room.leaveGroup(int(t.Partitions))
	}
	b.births.end(key, running, err)
}

func partitionOf(t *store.Topic, p uint32) store.Partition {
	return store.Partition{Topic: t.ID, Incarnation: t.Incarnation, Partition: uint16(p)}
}

// GroupLag implements wire.Admin.
func (b *Broker) GroupLag(ctx context.Context, r *wire.GroupLagRequest) (*wire.GroupLagResponse, error) {
	var response *wire.GroupLagResponse
	var err error
	select {
	case b.lags <- struct{}{}: // one at a time, so that sends keep the other processors
		response, err = b.groupLag(ctx, r)
		<-b.lags
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		err = coded(err)
		b.metrics.refused(err)
		return nil, err
	}
	return response, nil
}

func (b *Broker) groupLag(ctx context.Context, r *wire.GroupLagRequest) (*wire.GroupLagResponse, error) {
	if err := b.check(); err != nil {
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
			// The offset first: an end that is read later is not below it.
			progress, generation, ok := b.o.Offsets.Progress(g.ID, q.Topic, uint16(p))
			if !ok {
				break
			}
			first, end, err := b.store.Bounds(partitionOf(&t, p))
			if err != nil {
				return nil, err
			}
			row := &wire.GroupPartition{Group: g.Name, Partition: p, First: uint64(first), End: uint64(end), AckOffset: uint64(progress.Ack),
				Consumed: progress.Consumed.Len(), Generation: generation}
			row.Lag = lag(progress, first, end)
			if len(held) > 0 && uint32(held[0].Partition) == p {
				row.Leased, row.Member = held[0].Left, fmt.Sprintf("%s#%d", held[0].Client, held[0].Member)
				held = held[1:]
			}
			response.Partitions = append(response.Partitions, row)
		}
	}
	if n := proto.Size(response); n > answerBytesMax { // the names are long
		return nil, wire.Errorf(wire.CodeTooLarge, "%d groups of %d partitions take %d bytes, more than an answer holds: name one group", len(groups), t.Partitions, n)
	}
	return response, nil
}

// lag is how many messages between first and end have not ended.
func lag(p offset.Progress, first, end index.Index) uint64 {
	all := offset.Range{From: first, To: end}
	return all.Len() - p.Count(all)
}
