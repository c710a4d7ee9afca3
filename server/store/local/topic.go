package local

import (
	"context"
	"errors"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/store"
)

type topicName struct {
	namespace uint32
	name      string
}

// creation is a topic whose record is on its way. done is closed after topic and err are set.
type creation struct {
	done  chan struct{}
	topic store.Topic
	err   error
}

// CreateTopic appends a topic record and returns the topic when it is committed.
func (s *Store) CreateTopic(ctx context.Context, namespace uint32, name string, partitions uint32) (store.Topic, error) {
	t := store.Topic{
		Namespace: namespace, Name: name, Partitions: partitions, Incarnation: 1, Created: s.opt.Now().UnixNano(),
	}
	if err := t.Check(); err != nil {
		return store.Topic{}, err
	}
	for {
		c, first := s.startCreation(&t)
		if c == nil {
			there, _ := s.Topic(namespace, name)
			return there, store.ErrTopicExists
		}
		if first {
			s.appendCreation(c)
		}
		select {
		case <-c.done:
		case <-ctx.Done():
			return store.Topic{}, ctx.Err()
		}
		switch {
		case c.err == nil && first:
			return c.topic, nil
		case c.err == nil:
			return c.topic, store.ErrTopicExists
		case errors.Is(c.err, journal.ErrBusy):
			if err := s.WaitRoom(ctx); err != nil {
				return store.Topic{}, err
			}
		default:
			return store.Topic{}, c.err
		}
	}
}

// startCreation returns the creation of t that is under way, or a new one and true, or nil when t is there.
func (s *Store) startCreation(t *store.Topic) (c *creation, first bool) {
	n := topicName{t.Namespace, t.Name}
	s.creating.Lock()
	defer s.creating.Unlock()
	if c := s.creating.names[n]; c != nil {
		return c, false
	}
	// A creation leaves names after the table has its topic, so one of them shows it.
	if _, ok := s.topics.Find(n.namespace, n.name); ok {
		return nil, false
	}
	c = &creation{done: make(chan struct{}), topic: *t}
	c.topic.ID = s.creating.nextID
	s.creating.nextID++
	s.creating.names[n] = c
	return c, true
}

func (s *Store) appendCreation(c *creation) {
	end := func(err error) {
		s.creating.Lock()
		delete(s.creating.names, topicName{c.topic.Namespace, c.topic.Name})
		s.creating.Unlock()
		c.err = err
		close(c.done)
	}
	// An id whose record was not written is not used again; a restart counts from the highest that was.
	if err := s.AppendRecord(journal.KindTopic, store.AppendTopicCreate(nil, &c.topic), end); err != nil {
		end(err)
	}
}
