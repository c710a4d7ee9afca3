package offset

import "github.com/jmqio/jmq/server/index"

// Ends tells, of each partition that a group stands in, how far its messages went at least: the table is a store.Witness.
func (t *Table) Ends(each func(topic uint64, incarnation uint32, partition uint16, end index.Index)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, sub := range t.mu.subs {
		for i := range sub.partitions {
			p := &sub.partitions[i]
			end := p.Ack
			if n := len(p.Consumed); n > 0 {
				end = p.Consumed[n-1].To
			}
			each(sub.topic.ID, sub.topic.Incarnation, uint16(i), end)
		}
	}
}
