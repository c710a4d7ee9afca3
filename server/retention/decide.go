package retention

import (
	"time"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/planted"
	"github.com/jmqio/jmq/server/store"
)

// reason is why messages go.
type reason int

const (
	byAge reason = iota
	bySize
	early
	reasons // how many there are
)

func (r reason) String() string { return [...]string{"age", "size", "early"}[r] }

// trim is what goes of a partition: everything below to.
type trim struct {
	partition uint16
	to        index.Index
	why       reason
}

// limits of a topic; 0: none.
type limits struct {
	age     time.Duration
	bytes   int64
	discard bool // what a group has not consumed goes too
}

// limitsOf are those that hold of a topic.
func (o *Options) limitsOf(s store.Settings) limits {
	l := limits{age: s.RetentionAge, bytes: s.RetentionBytes, discard: s.DiscardUnconsumed}
	if l.age == 0 {
		l.age = o.Age
	}
	if l.bytes == 0 {
		l.bytes = o.Bytes
	}
	l.age, l.bytes = max(0, l.age), max(0, l.bytes)
	return l
}

// partition is what is known of one.
type partition struct {
	first, end index.Index
	floor      index.Index // the lowest that a group which counts has not consumed; end when nobody has to
	consumed   bool        // some group counts: what is below floor was consumed, not only kept for nobody
	oldest     int64       // stored time of first; of an empty partition that of nothing
	bytes      int64       // 0 where no limit asks for it
}

// seeker answers what a decision needs beyond that; store.Store does.
type seeker interface {
	Seek(p store.Partition, t int64) (index.Index, error)
	SeekBytes(p store.Partition, bytes int64) (index.Index, error)
}

// decide returns what goes of a topic by age and size. before is the stored time below which messages are too old, 0 when
// nothing goes by age. A partition that cannot be read is left as it is; the first error is returned beside the rest.
func decide(topic store.Topic, ps []partition, l limits, before int64, s seeker) (out []trim, err error) {
	total := int64(0)
	for i := range ps {
		total += ps[i].bytes
	}
	for i := range ps {
		p := &ps[i]
		most := p.end
		if !l.discard {
			most = min(p.floor, p.end)
		}
		if most <= p.first {
			continue
		}
		key, best := partitionOf(&topic, i), trim{partition: uint16(i), to: p.first}
		consider := func(why reason, to index.Index, seekErr error) {
			if seekErr != nil {
				if err == nil {
					err = seekErr
				}
				return
			}
			if to = min(to, most); to > best.to {
				best.to, best.why = to, why
			}
		}
		if l.age > 0 && p.oldest < before {
			to, seekErr := s.Seek(key, before)
			consider(byAge, to, seekErr)
		}
		if l.bytes > 0 && total > l.bytes {
			// Each partition keeps the same share of what it has.
			to, seekErr := s.SeekBytes(key, int64(float64(p.bytes)*(float64(l.bytes)/float64(total))))
			consider(bySize, to, seekErr)
		}
		if best.to > p.first {
			out = append(out, best)
		}
	}
	return out, err
}

// decideEarly returns what goes of a topic since the disk is too full: what was stored before a time and consumed by every
// group that counts.
func decideEarly(topic store.Topic, ps []partition, before int64, s seeker) (out []trim, err error) {
	for i := range ps {
		p := &ps[i]
		most := min(p.floor, p.end)
		if !p.consumed || most <= p.first || p.oldest >= before {
			continue
		}
		to, seekErr := s.Seek(partitionOf(&topic, i), before)
		if seekErr != nil {
			err = seekErr
			continue
		}
		if to = min(to, most); to > p.first {
			out = append(out, trim{uint16(i), to, early})
		}
	}
	return out, err
}

// judge tells the groups that count from those that were not seen since a time (0: all count).
func judge(groups []Group, since int64) (count, abandoned []Group) {
	if since == 0 {
		return groups, nil
	}
	for _, g := range groups {
		if g.Active != 0 && g.Active < since {
			abandoned = append(abandoned, g)
		} else {
			count = append(count, g)
		}
	}
	return count, abandoned
}

// slowest is the group that has consumed the least of a partition, and how far it has; nil if there is none.
func slowest(groups []Group, p uint16) (by *Group, ack index.Index) {
	if planted.Bug("retention: slowest group of another partition") {
		p = 0
	}
	for i := range groups {
		if a := groups[i].ack(p); by == nil || a < ack {
			by, ack = &groups[i], a
		}
	}
	return by, ack
}

func partitionOf(t *store.Topic, p int) store.Partition {
	return store.Partition{Topic: t.ID, Incarnation: t.Incarnation, Partition: uint16(p)}
}

func topicKey(t *store.Topic) offset.Topic {
	return offset.Topic{ID: uint64(t.ID), Incarnation: t.Incarnation}
}
