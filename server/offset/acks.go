package offset

import "github.com/jmqio/jmq/server/index"

// Acks returns the ack offset of a group in each partition of a topic; those beyond its end are 0. nil if it is not on the topic.
func (t *Table) Acks(g GroupID, topic Topic) []index.Index {
	t.mu.Lock()
	defer t.mu.Unlock()
	sub := t.mu.find(g, topic)
	if sub == nil {
		return nil
	}
	acks := make([]index.Index, len(sub.partitions))
	for i := range acks {
		acks[i] = sub.partitions[i].Ack
	}
	return acks
}
