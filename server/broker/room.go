package broker

import (
	"sync"

	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/wire"
)

// room counts what stays until it is deleted and takes memory, at this start and at every later one: topics, their partitions,
// and rows, a partition for each group on it. Whoever may make them could else make more than any machine holds, with a few
// bytes each, and the broker would never start again.
type room struct {
	mu struct {
		sync.Mutex
		topics, partitions, rows int  // those being made included
		doubt                    bool // some topics were given up by those who made them, and may not be there
	}
}

// fill counts what the store and the table have already.
func (r *room) fill(b *Broker) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.countLocked(b.store)
	for _, t := range b.store.Topics() {
		r.mu.rows += int(t.Partitions) * len(b.offsets().GroupsOf(topicKey(&t)))
	}
}

func (r *room) countLocked(s store.Store) {
	r.mu.topics, r.mu.partitions, r.mu.doubt = 0, 0, false
	for _, t := range s.Topics() {
		r.mu.topics++
		r.mu.partitions += int(t.Partitions)
	}
}

// topic takes room for one.
func (r *room) topic(b *Broker, partitions int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.topicLocked(&b.o, partitions)
	if err != nil && r.mu.doubt {
		r.countLocked(b.store)
		err = r.topicLocked(&b.o, partitions)
	}
	return err
}

func (r *room) topicLocked(o *Options, partitions int) error {
	switch m := &r.mu; {
	case m.topics >= o.TopicsMax:
		return wire.Errorf(wire.CodeTooLarge, "there are %d topics, which is as many as can be", m.topics)
	case m.partitions+partitions > o.AllPartitionsMax:
		return wire.Errorf(wire.CodeTooLarge, "there are %d partitions in all topics, and %d can be: %d more are too many", m.partitions, o.AllPartitionsMax, partitions)
	}
	r.mu.topics++
	r.mu.partitions += partitions
	return nil
}

// leaveTopic gives it back: the topic was not made. Not sure: it may yet be.
func (r *room) leaveTopic(partitions int, sure bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !sure {
		r.mu.doubt = true
		return
	}
	r.mu.topics--
	r.mu.partitions -= partitions
}

// more takes room for partitions of a topic that is there, and for rows.
func (r *room) more(o *Options, partitions, rows int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch m := &r.mu; {
	case partitions > 0 && m.partitions+partitions > o.AllPartitionsMax:
		return wire.Errorf(wire.CodeTooLarge, "there are %d partitions in all topics, and %d can be: %d more are too many", m.partitions, o.AllPartitionsMax, partitions)
	case m.rows+rows > o.RowsMax:
		return wire.Errorf(wire.CodeTooLarge, "all groups have %d partitions, and can have %d: %d more are too many", m.rows, o.RowsMax, rows)
	}
	r.mu.partitions += partitions
	r.mu.rows += rows
	return nil
}

// less gives room back: for what was not made, or is gone.
func (r *room) less(topics, partitions, rows int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.topics -= topics
	r.mu.partitions -= partitions
	r.mu.rows -= rows
}
