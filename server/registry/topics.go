package registry

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/wire"
)

// forceWait is how long a change of a topic waits until it is in force at the brokers. It is made even if they do not say so.
const forceWait = 5 * time.Second

// CreateTopic implements wire.Admin: the topic is made in the namespace of the peer, on broker groups that the metadata chooses.
func (n *Node) CreateTopic(ctx context.Context, r *wire.CreateTopicRequest) (*wire.CreateTopicResponse, error) {
	o, err := n.changeTopic(ctx, r.Topic, "", func(before *meta.Topic) (meta.Spec, error) {
		if before == nil {
			t := &meta.Topic{Partitions: int(r.Partitions)}
			setTopic(t, r.Settings)
			return t, nil
		}
		same := *before
		setTopic(&same, r.Settings)
		if r.Partitions != 0 && int(r.Partitions) != before.Partitions || !sameSettings(before, &same) {
			return nil, wire.Errorf(wire.CodeTopicExists, "topic %q is there, with %d partitions and these settings: %v", r.Topic, before.Partitions, settingsOf(before))
		}
		return before, nil
	})
	if err != nil {
		return nil, err
	}
	return &wire.CreateTopicResponse{Topic: topicOf(o)}, nil
}

// AlterTopic implements wire.Admin.
func (n *Node) AlterTopic(ctx context.Context, r *wire.AlterTopicRequest) (*wire.AlterTopicResponse, error) {
	o, err := n.changeTopic(ctx, r.Topic, r.Reason, func(before *meta.Topic) (meta.Spec, error) {
		if before == nil {
			return nil, wire.Errorf(wire.CodeTopicNotFound, "topic %q", r.Topic)
		}
		t := *before
		if r.Partitions != nil {
			t.Partitions = int(*r.Partitions)
		}
		setTopic(&t, r.Settings)
		return &t, nil
	})
	if err != nil {
		return nil, err
	}
	return &wire.AlterTopicResponse{Topic: topicOf(o)}, nil
}

// DeleteTopic implements wire.Admin. A topic with subscriptions is refused, CodeInUse: they go first.
func (n *Node) DeleteTopic(ctx context.Context, r *wire.DeleteTopicRequest) (*wire.DeleteTopicResponse, error) {
	o, err := n.changeTopic(ctx, r.Topic, r.Reason, func(before *meta.Topic) (meta.Spec, error) {
		if before == nil {
			return nil, wire.Errorf(wire.CodeTopicNotFound, "topic %q", r.Topic)
		}
		return nil, nil
	})
	if err != nil {
		return nil, err
	}
	return &wire.DeleteTopicResponse{Topic: topicOf(o)}, nil
}

// changeTopic makes of a topic what to says, and waits until that is in force. It returns the topic as it is then, a deleted one
// as it was.
func (n *Node) changeTopic(ctx context.Context, name, reason string, to func(before *meta.Topic) (meta.Spec, error)) (*meta.Object, error) {
	o, err := n.tryTopic(ctx, name, reason, to)
	if err != nil {
		n.counts.refused.Add(1)
		return nil, err
	}
	return o, nil
}

func (n *Node) tryTopic(ctx context.Context, name, reason string, to func(before *meta.Topic) (meta.Spec, error)) (*meta.Object, error) {
	who, p := subjectOf(ctx)
	key := meta.Key{Kind: meta.KindTopic, Namespace: namespaceOf(p), Name: name}
	for try := 1; ; try++ {
		s := n.store.View()
		o := s.Get(key)
		var before *meta.Topic
		var was meta.Spec
		expect := meta.Expect{Create: true}
		if o != nil {
			before = o.Spec.(*meta.Topic)
			was, expect = before, meta.Expect{Revision: o.Revision}
		}
		after, err := to(before)
		if err != nil {
			return nil, err
		}
		if before != nil && after == was { // it is as it shall be: whoever may see it may say so
			if err := s.MayRead(who, key); err != nil {
				return nil, err
			}
			n.awaitForce(ctx, s, before.BrokerGroups)
			return o, nil
		}
		if err := s.MayWrite(who, key, was, after); err != nil {
			return nil, err
		}
		next, err := n.store.Update(ctx, meta.Change{By: meta.ActorOf(who), As: &who, Seen: n.seen(), Reason: reason, Writes: []meta.Write{{Key: key, Spec: after, Expect: expect}}})
		switch wire.CodeOf(err) {
		case wire.CodeOK:
		case wire.CodeConflict, wire.CodeExists, wire.CodeNotFound:
			if try < conflictTries && ctx.Err() == nil {
				continue
			}
			return nil, err
		default:
			return nil, err
		}
		changed := next.Get(key)
		if changed == nil || o == nil || changed.Revision != o.Revision {
			n.counts.changes.Add(1)
		}
		if changed == nil {
			changed = o
		}
		n.awaitForce(ctx, next, changed.Spec.(*meta.Topic).BrokerGroups)
		return changed, nil
	}
}

// ListTopics implements wire.Admin: those of the peer's namespace that it may see.
func (n *Node) ListTopics(ctx context.Context, r *wire.ListTopicsRequest) (*wire.ListTopicsResponse, error) {
	s := n.store.View()
	who, p := subjectOf(ctx)
	namespace := namespaceOf(p)
	response := &wire.ListTopicsResponse{}
	for _, o := range s.List(meta.KindTopic) {
		if o.Namespace == namespace && s.MayRead(who, o.Key) == nil {
			response.Topics = append(response.Topics, topicOf(o))
		}
	}
	return response, nil
}

// awaitForce waits until the living brokers of some broker groups (nil: of all) say that they have s or newer, a while at most.
func (n *Node) awaitForce(ctx context.Context, s *meta.Snapshot, groups []string) {
	ctx, cancel := context.WithTimeout(ctx, forceWait)
	defer cancel()
	for {
		n.mu.Lock()
		if n.inForce(s, groups) {
			n.mu.Unlock()
			return
		}
		if n.mu.told == nil {
			n.mu.told = make(chan struct{})
		}
		told := n.mu.told
		n.mu.Unlock()
		select {
		case <-told:
		case <-ctx.Done():
			return
		case <-n.ctx.Done():
			return
		}
	}
}

// inForce says whether the living brokers of some broker groups (nil: of all) have s. n.mu is held.
func (n *Node) inForce(s *meta.Snapshot, groups []string) bool {
	on := make(map[string]bool, len(groups))
	for _, g := range groups {
		on[g] = true
	}
	for o := range n.store.View().All(meta.KindBroker) { // as they are now: one may have registered anew since s
		b := o.Spec.(*meta.Broker)
		if b.Away || groups != nil && !on[b.BrokerGroup] {
			continue
		}
		x := n.mu.nodes[o.Name]
		if x == nil || x.last == nil || x.last.Boot != b.Boot || x.last.Generation != uint64(s.Generation) || x.last.MetadataVersion < uint64(s.Version) {
			return false
		}
	}
	return true
}

// setTopic puts the settings that are given into a topic.
func setTopic(t *meta.Topic, s *wire.TopicSettings) {
	if s == nil {
		return
	}
	if s.RetentionMs != nil {
		t.RetentionAge = meta.Duration(min(max(*s.RetentionMs, -1), int64(1)<<43)) * meta.Duration(time.Millisecond)
	}
	if s.RetentionBytes != nil {
		t.RetentionBytes = *s.RetentionBytes
	}
	if s.DiscardUnconsumed != nil {
		t.DiscardUnconsumed = *s.DiscardUnconsumed
	}
	if s.PauseProduce != nil {
		t.PauseProduce = *s.PauseProduce
	}
	if s.PauseConsume != nil {
		t.PauseConsume = *s.PauseConsume
	}
}

func sameSettings(a, b *meta.Topic) bool { return proto.Equal(settingsOf(a), settingsOf(b)) }

func settingsOf(t *meta.Topic) *wire.TopicSettings {
	age := time.Duration(t.RetentionAge).Milliseconds()
	if t.RetentionAge < 0 {
		age = -1
	}
	return &wire.TopicSettings{
		RetentionMs: proto.Int64(age), RetentionBytes: proto.Int64(max(t.RetentionBytes, -1)), DiscardUnconsumed: proto.Bool(t.DiscardUnconsumed),
		PauseProduce: proto.Bool(t.PauseProduce), PauseConsume: proto.Bool(t.PauseConsume),
	}
}

// topicOf is a topic as wire.Admin shows it: its id and incarnation are those of the metadata.
func topicOf(o *meta.Object) *wire.Topic {
	t := o.Spec.(*meta.Topic)
	return &wire.Topic{
		Name: o.Name, Id: uint64(o.Created), Incarnation: uint32(o.Created), Partitions: uint32(t.Partitions), Settings: settingsOf(t),
		CreatedNs: o.Born,
	}
}
