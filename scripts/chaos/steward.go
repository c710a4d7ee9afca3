package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/client/admin"
	"github.com/jmqio/jmq/server/servertest/check"
	"github.com/jmqio/jmq/wire"
)

const (
	// stewardTopics have settings that change; nobody consumes them.
	stewardTopics = 3
	// movedTopic is the one on which the group is moved, by index.
	movedTopic    = "settings-1"
	movedMessages = 10 // in each partition, or more
)

func stewardTopic(n int) string { return "settings-" + strconv.Itoa(n+1) }

// register is what is known of a topic's settings: each change gives them another name.
type register struct {
	name     string
	revision uint64
}

// steward changes settings of topics through one registry node, each change being of what it read, and moves a group and looks where it stands. Two of
// them contend for the settings; partitions are shared out, since a group that two persons move at once stands where either of them said.
type steward struct {
	t       *trial
	n       int // its number
	proc    string
	rng     *rand.Rand
	cl      *client.Client
	changes int
}

// joinStewards has one at each registry node: it reaches no other.
func (t *trial) joinStewards(ctx context.Context) error {
	for i, n := range t.Of("registry") {
		proc := "steward of " + n.Name
		cl, err := t.dialAs(ctx, proc, t.AdminFile(), []string{n.Wire}, n)
		if err != nil {
			return err
		}
		if i == len(t.stewards) {
			t.stewards = append(t.stewards, &steward{t: t, n: i, proc: proc})
		}
		t.stewards[i].cl = cl
	}
	if t.registers == nil {
		t.registers = map[string]register{}
		return t.begunSettings(ctx)
	}
	return nil
}

// begunSettings makes messages to move among, and names all settings for the first time.
func (t *trial) begunSettings(ctx context.Context) error {
	cl, err := t.dial("steward")
	if err != nil {
		return err
	}
	// The other group stays where it is. Without it what the group has passed would go when a disk is full, and it could not be moved back.
	for _, group := range []string{app, app + ".stays"} {
		k, err := cl.Consumer(movedTopic, client.Group(group), client.Start(client.FromBeginning))
		if err != nil {
			return err
		}
		if err := k.Subscribe(ctx); err != nil {
			return err
		}
	}
	p, err := cl.Producer(movedTopic)
	if err != nil {
		return err
	}
	for full := map[uint16]bool{}; len(full) < partitions*len(t.groups); {
		m := &client.Message{Body: []byte("here")}
		e := check.Event{Op: check.OpSend, Proc: "steward", Topic: movedTopic, Hash: hash(m.Body), Call: now(), Result: check.OK}
		r, err := p.Send(ctx, m)
		if err != nil {
			return err
		}
		e.ID, e.Unknown, e.Partition, e.Index, e.Return = r.MessageID, r.Unknown, t.partition(r.BrokerGroup, r.Partition), r.Index, now()
		t.event(e)
		if r.Index >= movedMessages {
			full[e.Partition] = true
		}
	}
	s := t.stewards[0]
	for n := range stewardTopics {
		s.change(ctx, stewardTopic(n))
	}
	return nil
}

// steer has the stewards at work until the returned function is called.
func (t *trial) steer() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var working sync.WaitGroup
	for _, s := range t.stewards {
		s.rng = rand.New(rand.NewPCG(t.rng.Uint64(), 4))
		working.Go(func() { s.run(ctx) })
	}
	return func() { cancel(); working.Wait() }
}

func (s *steward) run(ctx context.Context) {
	for ctx.Err() == nil {
		switch s.rng.IntN(4) {
		case 0:
			s.move()
		case 1:
			s.look()
		default:
			s.change(ctx, stewardTopic(s.rng.IntN(stewardTopics)))
		}
		pause(ctx, time.Duration(50+s.rng.IntN(200))*time.Millisecond)
	}
}

// asking bounds a call. It is not that of the load: what was begun is to end, so that its outcome is known.
func asking() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 5*time.Second)
}

func topicKey(topic string) admin.Key {
	return admin.Key{Kind: "topic", Namespace: admin.NamespaceDefault, Name: topic}
}

// settings are read at the steward's registry node.
func (s *steward) settings(topic string) (spec map[string]any, found register, err error) {
	ctx, cancel := asking()
	defer cancel()
	o, err := admin.New(s.cl).Get(ctx, topicKey(topic))
	if err != nil {
		return nil, register{}, err
	}
	if err := json.Unmarshal(o.Spec, &spec); err != nil {
		return nil, register{}, err
	}
	name, _ := spec["description"].(string)
	return spec, register{name, o.Revision}, nil
}

// change changes what was read before, or is refused. What a registry node shows may be as it was a moment ago, so it is no event that it was read; that
// a change was of it is.
func (s *steward) change(ctx context.Context, topic string) {
	spec, found, err := s.settings(topic)
	if err != nil {
		return
	}
	s.changes++
	name := fmt.Sprintf("%s, change %d", s.proc, s.changes)
	spec["description"] = name
	switch s.changes % 3 {
	case 0:
		spec["limit"] = map[string]any{"messagesPerSecond": 1000 + s.changes}
	case 1:
		spec["pauseConsume"] = spec["pauseConsume"] != true
	default:
		spec["pauseProduce"] = spec["pauseProduce"] != true
	}
	b, err := json.Marshal(spec)
	if err != nil {
		s.t.problem("%s: %v", s.proc, err)
		return
	}
	e := check.Event{Op: check.OpWrite, Proc: s.proc, Key: topic, Hash: name, Expect: found.revision, Call: now(), Result: check.OK}
	asked, cancel := asking()
	defer cancel()
	r, err := admin.New(s.cl).Apply(asked, admin.Change{Writes: []admin.Write{{Key: topicKey(topic), Spec: b, Expect: admin.Revision(found.revision)}}, Reason: "chaos"})
	e.Return = now()
	switch {
	case err == nil && len(r.Changes) == 1 && r.Changes[0].After != nil:
		e.Version = r.Changes[0].After.Revision
	case err == nil:
		s.t.problem("%s: a change of %s was ok, and changed %+v", s.proc, topic, r.Changes)
		return
	case errors.Is(err, client.ErrConflict):
		e.Result, e.Reason = check.Failed, err.Error()
	default:
		e.Result, e.Reason = check.Unknown, err.Error()
		if code := wire.CodeOf(err); code == wire.CodeInvalid || code == wire.CodeForbidden {
			s.t.problem("%s: change %s: %v", s.proc, topic, err)
		}
	}
	s.t.event(e)
}

// move moves the group in one of the steward's partitions.
func (s *steward) move() {
	g := s.t.groups[s.rng.IntN(len(s.t.groups))]
	part := uint16(s.n + len(s.t.stewards)*s.rng.IntN(partitions/len(s.t.stewards)))
	e := check.Event{Op: check.OpReset, Topic: movedTopic, Group: app, Partition: s.t.partition(g, part), Index: uint64(s.rng.IntN(movedMessages)), Call: now(), Result: check.OK}
	ctx, cancel := asking()
	defer cancel()
	r, err := s.cl.SeekGroup(ctx, movedTopic, app, client.Seek{To: client.SeekIndex, Index: e.Index, BrokerGroup: g, Partitions: []uint16{part}, Reason: "chaos"})
	e.Return = now()
	switch {
	case err != nil:
		e.Result, e.Reason = check.Unknown, err.Error()
	case len(r) != 1 || r[0].To != e.Index:
		s.t.problem("%s: the group was to be moved to index %d of partition %d of %s: %+v", s.proc, e.Index, part, g, r)
	}
	s.t.event(e)
}

// look asks where the group stands.
func (s *steward) look() {
	ctx, cancel := asking()
	defer cancel()
	e := check.Event{Op: check.OpOffset, Topic: movedTopic, Group: app, Call: now()}
	lags, err := s.cl.GroupLag(ctx, movedTopic, app)
	if e.Return = now(); err != nil {
		return
	}
	for _, l := range lags {
		e.Partition, e.Index = s.t.partition(l.BrokerGroup, l.Partition), l.AckOffset
		s.t.event(e)
	}
}

// settled waits until all registry nodes show the same settings, no older than what was changed, and notes them, and where the group stands. All is well,
// and nobody changes anything.
func (t *trial) settled(ctx context.Context) error {
	if len(t.stewards) == 0 {
		return nil
	}
	newest := map[string]uint64{}
	t.mu.Lock()
	for _, e := range t.mu.events {
		if e.Op == check.OpWrite {
			newest[e.Key] = max(newest[e.Key], e.Version)
		}
	}
	t.mu.Unlock()
	for n := range stewardTopics {
		topic := stewardTopic(n)
		var reads []check.Event
		err := t.await(ctx, "all registry nodes show the newest settings of "+topic, func() bool {
			reads = nil
			for _, s := range t.stewards {
				e := check.Event{Op: check.OpRead, Proc: s.proc, Key: topic, Call: now()}
				_, found, err := s.settings(topic)
				if err != nil || found.revision < newest[topic] || len(reads) > 0 && reads[0].Version != found.revision {
					return false
				}
				e.Hash, e.Version, e.Return = found.name, found.revision, now()
				reads = append(reads, e)
				t.registers[topic] = found
			}
			return true
		})
		if err != nil {
			return err
		}
		t.event(reads...)
	}
	t.stewards[0].look()
	return nil
}

// stewardCommands make what the stewards need.
func stewardCommands(groups string) (commands []string) {
	for n := range stewardTopics {
		commands = append(commands, fmt.Sprintf("topic create %s --partitions %d --broker-groups %s", stewardTopic(n), partitions, groups))
	}
	return append(commands, "topic grant "+movedTopic+" --app "+app+" --produce --consume")
}
