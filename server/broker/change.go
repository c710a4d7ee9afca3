package broker

import (
	"context"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/wire"
)

// windowMax bounds what is in flight of a partition, and so what its group's acks can leave in pieces.
const windowMax = 100_000

// policyOf returns what m says, with its default.
func policyOf(m *wire.GroupPolicy) (offset.Policy, error) {
	if m.Window > windowMax {
		return offset.Policy{}, wire.Errorf(wire.CodeInvalid, "a window of %d messages, at most %d are possible", m.Window, windowMax)
	}
	if !m.Parallel {
		return offset.Policy{}, nil
	}
	return offset.Policy{Parallel: true, Window: orDefault(m.Window, offset.WindowDefault)}, nil
}

// same reports whether two policies give a topic in the same way.
func same(a, b offset.Policy) bool {
	if a.Window == 0 {
		a.Window = offset.WindowDefault
	}
	if b.Window == 0 {
		b.Window = offset.WindowDefault
	}
	return a.Parallel == b.Parallel && (!a.Parallel || a.Window == b.Window)
}

func policyMessage(p offset.Policy) *wire.GroupPolicy {
	if !p.Parallel {
		return &wire.GroupPolicy{}
	}
	return &wire.GroupPolicy{Parallel: true, Window: orDefault(p.Window, offset.WindowDefault)}
}

// AlterGroup implements wire.Admin.
func (b *Broker) AlterGroup(ctx context.Context, r *wire.AlterGroupRequest) (*wire.AlterGroupResponse, error) {
	if r.Policy == nil {
		return nil, b.refuse(wire.Errorf(wire.CodeInvalid, "no policy is given: there is nothing else to alter"))
	}
	policy, err := policyOf(r.Policy)
	if err == nil {
		err = b.change(ctx, r.Reason, func(ctx context.Context) error {
			if err := b.may(ctx, meta.OperateGroup, r.Topic, r.Group); err != nil {
				return err
			}
			who := wire.PeerFrom(ctx)
			if err := b.mayAlter(who, r.Topic, r.Group, policy); err != nil {
				return err
			}
			return b.alterGroup(who.Namespace, r.Topic, r.Group, policy, whoText(who), r.Reason)
		})
	}
	if err != nil {
		return nil, b.refuse(err)
	}
	return &wire.AlterGroupResponse{Policy: policyMessage(policy)}, nil
}

// mayAlter refuses a policy that the metadata would change back.
func (b *Broker) mayAlter(who *wire.Peer, topic, group string, policy offset.Policy) error {
	if !b.o.Metadata {
		return nil
	}
	s, namespace := b.metadata.snapshot.Load(), namespaceOf(who)
	o := consumerOf(s, namespace, topic, group)
	if o == nil || same(policyBy(specOf[meta.Consumer](o), policy), policy) {
		return nil
	}
	return wire.Errorf(wire.CodeInvalid, "how group %q is given topic %q is set at the registry: change %v there", group, topic, o.Key)
}

func (b *Broker) alterGroup(namespace uint32, topic, group string, policy offset.Policy, who, why string) error {
	t, q, err := b.queue(namespace, topic, group)
	if err != nil {
		return err
	}
	was, ok := b.offsets().Policy(q.Group, q.Topic)
	if ok && same(was, policy) {
		return nil
	}
	err = b.reset(&offset.Reset{Operation: offset.Alter, Namespace: namespace, Group: q.Group, GroupName: group, Topic: q.Topic, TopicName: t.Name,
		Policy: policy, Who: who, Why: why})
	if err != nil {
		return err
	}
	b.dispatch.Reload(q)
	b.o.Logger.Info("a group was altered", "topic", t.Name, "group", group, "policy", policy, "was", was, "who", who, "why", why)
	return nil
}

// RemoveGroup implements wire.Admin.
func (b *Broker) RemoveGroup(ctx context.Context, r *wire.RemoveGroupRequest) (*wire.RemoveGroupResponse, error) {
	err := b.change(ctx, r.Reason, func(ctx context.Context) error { return b.removeGroup(ctx, r) })
	if err != nil {
		return nil, b.refuse(err)
	}
	return &wire.RemoveGroupResponse{}, nil
}

func (b *Broker) removeGroup(ctx context.Context, r *wire.RemoveGroupRequest) error {
	if err := b.may(ctx, meta.OperateGroup, r.Topic, r.Group); err != nil {
		return err
	}
	who := wire.PeerFrom(ctx)
	t, q, err := b.queue(who.Namespace, r.Topic, r.Group)
	if err != nil {
		return err
	}
	if n := b.dispatch.Use(q).Members; n > 0 && !r.Force {
		return wire.Errorf(wire.CodeMembers, "group %q has %d members on topic %q", r.Group, n, t.Name)
	}
	// The group is not born again before dispatch has forgotten it.
	if err := b.births.hold(ctx, q.Topic); err != nil {
		return err
	}
	defer b.births.release(q.Topic)
	err = b.reset(&offset.Reset{Operation: offset.Remove, Namespace: who.Namespace, Group: q.Group, GroupName: r.Group, Topic: q.Topic, TopicName: t.Name,
		Who: whoText(who), Why: r.Reason})
	if err != nil {
		return err
	}
	b.dispatch.Forget(q)
	b.room.less(0, 0, int(t.Partitions))
	b.o.Logger.Info("a group was removed", "topic", t.Name, "group", r.Group, "who", whoText(who), "why", r.Reason)
	return nil
}

// Settled runs f while no group is being made, and none moved: what one is to stand on is kept from when it is read until it is committed that it stands
// there. f must be quick.
func (b *Broker) Settled(f func()) {
	b.moving.Lock()
	defer b.moving.Unlock()
	f()
}

// reset appends the record, with the time, and waits for its commit.
func (b *Broker) reset(r *offset.Reset) error {
	r.Time = b.o.Now().UnixNano()
	done := make(chan error, 1)
	if err := b.store.AppendRecord(journal.KindOffsetReset, offset.AppendReset(nil, r), func(err error) { done <- err }); err != nil {
		return err
	}
	return <-done
}
