package local

import (
	"context"
	"errors"
	"fmt"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/store"
)

// topicState is a topic and its partitions. It never changes; an altered topic gets another one, with the parts of the old.
type topicState struct {
	parts []part      // from partition from on
	from  int         // 0, unless the topic got partitions since the start, some each time
	fewer *topicState // has those below from
	topic store.Topic
}

// part finds a partition that there is.
func (t *topicState) part(n int) *part {
	for n < t.from {
		t = t.fewer
	}
	return &t.parts[n-t.from]
}

// part is small, and the parts of a topic lie together: with very many, what a send costs is what it finds in no cache.
type part struct {
	assigned  index.Index // guarded by Store.order: the index of the next message
	end       index.Index // of what was applied since the start; guarded by Store.apply, read by the committing goroutine
	ref       index.Ref   // once it was appended to; guarded by Store.apply
	id        store.Partition
	namespace uint32
	grown     bool // is in Store.grown; only the committing goroutine touches it
	ended     bool // guarded by Store.order: the record of its topic's end has its place in the log, nothing of it comes behind
	gone      bool // guarded by Store.apply, read by the committing goroutine: that record was applied
}

func (p *part) key() index.Key { return keyOf(p.id) }

func keyOf(p store.Partition) index.Key {
	return index.Key{Topic: uint64(p.Topic), Incarnation: p.Incarnation, Partition: p.Partition}
}

// known finds a topic; nil: it is not there.
func (s *Store) known(id store.TopicID, incarnation uint32) *topicState {
	list := *s.byID.Load()
	if uint64(id) < uint64(len(list)) {
		if t := list[id]; t != nil && t.topic.Incarnation == incarnation {
			return t
		}
	}
	return nil
}

// find finds a topic; ErrNoPartition.
func (s *Store) find(id store.TopicID, incarnation uint32) (*topicState, error) {
	if t := s.known(id, incarnation); t != nil {
		return t, nil
	}
	return nil, fmt.Errorf("%w: topic %d, incarnation %d", store.ErrNoPartition, id, incarnation)
}

// part finds a partition; ErrNoPartition.
func (s *Store) part(p store.Partition) (*part, error) {
	_, pt, err := s.partOf(p)
	return pt, err
}

// partOf finds a partition and its topic; ErrNoPartition.
func (s *Store) partOf(p store.Partition) (*topicState, *part, error) {
	if t := s.known(p.Topic, p.Incarnation); t != nil && uint32(p.Partition) < t.topic.Partitions {
		return t, t.part(int(p.Partition)), nil
	}
	return nil, nil, fmt.Errorf("%w: topic %d, incarnation %d, partition %d", store.ErrNoPartition, p.Topic, p.Incarnation, p.Partition)
}

// topicIDMax bounds the list by id; a higher id in a record is damage.
const topicIDMax = 1 << 24

// setTopic makes a topic's partitions known, or those that it got. Only apply and recovery call it, one at a time.
func (s *Store) setTopic(t *store.Topic) error {
	if t.ID > topicIDMax {
		return fmt.Errorf("store: topic %q has id %d, at most %d can be", t.Name, t.ID, topicIDMax)
	}
	st := &topicState{topic: *t}
	list := *s.byID.Load()
	if int(t.ID) >= len(list) {
		// Readers of the old list do not look beyond its length, so what lies there may be written.
		list = append(list, make([]*topicState, int(t.ID)+1-len(list))...)
	} else {
		list = append([]*topicState(nil), list...)
	}
	if old := list[t.ID]; old != nil && old.topic.Incarnation == t.Incarnation {
		st.from, st.fewer = int(old.topic.Partitions), old
		if t.Partitions == old.topic.Partitions {
			st.parts, st.from, st.fewer = old.parts, old.from, old.fewer
		}
	}
	if st.parts == nil {
		st.parts = make([]part, int(t.Partitions)-st.from)
		for i := range st.parts {
			st.parts[i].namespace = t.Namespace
			st.parts[i].id = store.Partition{Topic: t.ID, Incarnation: t.Incarnation, Partition: uint16(st.from + i)}
		}
	}
	list[t.ID] = st
	s.byID.Store(&list)
	return nil
}

// dropTopic makes a topic unknown. Its index goes later, with the lock that checkpoints hold: one that is being written is
// of a moment at which the topic was there. s.apply is held.
func (s *Store) dropTopic(t *store.Topic) {
	list := append([]*topicState(nil), *s.byID.Load()...)
	st := list[t.ID]
	list[t.ID] = nil
	s.byID.Store(&list)
	for n := range int(st.topic.Partitions) {
		p := st.part(n)
		p.gone = true
		s.apply.dropped = append(s.apply.dropped, p.key())
	}
	s.background.kick()
}

// applyTopic applies a topic record to the table and to what is known by id. s.apply is held.
func (s *Store) applyTopic(rec *journal.Record) error {
	gone, err := s.topics.Change(*rec)
	if err != nil || rec.Kind != journal.KindTopic {
		return err
	}
	for i := range gone {
		s.dropTopic(&gone[i])
	}
	r, err := store.ParseTopicRecord(rec.Payload)
	if err != nil || r.Operation == store.TopicDelete {
		return err
	}
	t, _ := s.topics.Find(r.Topic.Namespace, r.Topic.Name)
	return s.setTopic(t)
}

type topicName struct {
	namespace uint32
	name      string
}

// topicChange is a topic record on its way. done is closed when it is committed, or failed; err is set before.
type topicChange struct {
	done chan struct{}
	err  error
}

// changeTopic appends a record that changes a topic, and waits for its commit. prepare is called when no other change of
// that name is under way, with what there is, and fills r; its error ends it. It may be called more than once. ctx bounds the waiting only.
func (s *Store) changeTopic(ctx context.Context, n topicName, prepare func(there *store.Topic, r *store.TopicRecord) error) (store.Topic, error) {
	for {
		s.changing.Lock()
		if other := s.changing.names[n]; other != nil {
			s.changing.Unlock()
			select {
			case <-other.done:
				continue
			case <-ctx.Done():
				return store.Topic{}, ctx.Err()
			}
		}
		// A change leaves names after the table has it, so what is there now is the last one's.
		var r store.TopicRecord
		there, _ := s.topics.Find(n.namespace, n.name)
		if err := prepare(there, &r); err != nil {
			s.changing.Unlock()
			return store.Topic{}, err
		}
		if r.Operation == store.TopicCreate {
			s.changing.numberLocked(&r.Topic)
		}
		c := &topicChange{done: make(chan struct{})}
		s.changing.names[n] = c
		s.changing.Unlock()

		s.appendChange(n, c, &r)
		select {
		case <-c.done:
		case <-ctx.Done():
			return store.Topic{}, ctx.Err()
		}
		if !errors.Is(c.err, journal.ErrBusy) {
			return r.Topic, c.err
		}
		if err := s.WaitRoom(ctx); err != nil {
			return store.Topic{}, err
		}
	}
}

func (s *Store) appendChange(n topicName, c *topicChange, r *store.TopicRecord) {
	op, id := r.Operation, r.Topic.ID
	end := func(err error) {
		s.changing.Lock()
		delete(s.changing.names, n)
		if (op == store.TopicDelete) == (err == nil) && op != store.TopicAlter {
			// Deleted, or never made. After an unknown outcome nothing is made any more.
			s.changing.free = append(s.changing.free, id)
		}
		s.changing.Unlock()
		c.err = err
		close(c.done)
	}
	if err := s.appendTopicRecord(r, end); err != nil {
		end(err)
		return
	}
	s.log.TryLead()
}

// appendTopicRecord appends the record. From the place in the log that a delete gets nothing of the topic is taken.
func (s *Store) appendTopicRecord(r *store.TopicRecord, done func(error)) error {
	a := s.take()
	a.recordOK, a.Control = done, isControl(journal.KindTopic)
	a.payload = store.AppendTopicRecord(a.payload[:0], r)
	a.entry[0] = journal.Entry{Kind: journal.KindTopic, Payload: a.payload}
	return s.appendPending(a, func() {
		if r.Operation != store.TopicDelete {
			return
		}
		if st, err := s.find(r.Topic.ID, r.Topic.Incarnation); err == nil {
			for n := range int(st.topic.Partitions) {
				st.part(n).ended = true
			}
		}
	})
}

// numberLocked gives a topic that is to be made an id and an incarnation.
func (c *changing) numberLocked(t *store.Topic) {
	if n := len(c.free); n > 0 {
		t.ID, c.free = c.free[n-1], c.free[:n-1]
	} else {
		t.ID = c.nextID
		c.nextID++
	}
	c.incarnation++
	t.Incarnation = c.incarnation
}

// startLocked takes over what topics there are.
func (c *changing) start(topics *store.Topics) {
	c.names = map[topicName]*topicChange{}
	c.nextID, c.incarnation = 1, topics.Incarnation()
	for _, t := range topics.List() {
		for ; c.nextID < t.ID; c.nextID++ {
			c.free = append(c.free, c.nextID)
		}
		c.nextID++
	}
}

// CreateTopic appends a topic record and returns the topic when it is committed.
func (s *Store) CreateTopic(ctx context.Context, t store.Topic, who string) (store.Topic, error) {
	t.Created = s.opt.Now().UnixNano()
	if err := t.Check(); err != nil {
		return store.Topic{}, err
	}
	var found store.Topic
	made, err := s.changeTopic(ctx, topicName{t.Namespace, t.Name}, func(there *store.Topic, r *store.TopicRecord) error {
		if there != nil {
			found = *there
			return store.ErrTopicExists
		}
		r.Operation, r.Topic, r.Who = store.TopicCreate, t, who
		return nil
	})
	if errors.Is(err, store.ErrTopicExists) {
		return found, err
	}
	if err != nil {
		return store.Topic{}, err
	}
	return made, nil
}

// AlterTopic appends a topic record and returns the topic as it is when that is committed.
func (s *Store) AlterTopic(ctx context.Context, id store.TopicID, incarnation uint32, c store.Change) (store.Topic, error) {
	return s.changeKnown(ctx, id, incarnation, func(r *store.TopicRecord) error {
		r.Operation, r.Who, r.Why = store.TopicAlter, c.Who, c.Why
		if c.Partitions != 0 {
			if c.Partitions < r.Topic.Partitions {
				return fmt.Errorf("%w: %q has %d partitions, %d would be fewer", store.ErrTopic, r.Topic.Name, r.Topic.Partitions, c.Partitions)
			}
			r.Topic.Partitions = c.Partitions
		}
		if c.Settings != nil {
			r.Topic.Settings = *c.Settings
		}
		if c.Origin != nil {
			r.Topic.Origin = *c.Origin
		}
		return r.Topic.Check()
	})
}

// DeleteTopic appends a topic record; when it is committed the topic is not there any more.
func (s *Store) DeleteTopic(ctx context.Context, id store.TopicID, incarnation uint32, who, why string) error {
	_, err := s.changeKnown(ctx, id, incarnation, func(r *store.TopicRecord) error {
		r.Operation, r.Who, r.Why = store.TopicDelete, who, why
		return nil
	})
	return err
}

// changeKnown is changeTopic of a topic that must be there.
func (s *Store) changeKnown(ctx context.Context, id store.TopicID, incarnation uint32, prepare func(*store.TopicRecord) error) (store.Topic, error) {
	st, err := s.find(id, incarnation)
	if err != nil {
		return store.Topic{}, err
	}
	t, err := s.changeTopic(ctx, topicName{st.topic.Namespace, st.topic.Name}, func(there *store.Topic, r *store.TopicRecord) error {
		if there == nil || there.ID != id || there.Incarnation != incarnation {
			return fmt.Errorf("%w: topic %d, incarnation %d", store.ErrNoPartition, id, incarnation)
		}
		r.Topic = *there
		return prepare(r)
	})
	if err != nil {
		return store.Topic{}, err
	}
	return t, nil
}
