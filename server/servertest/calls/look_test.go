package calls

import (
	"encoding/binary"
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/replica"
	"github.com/jmqio/jmq/server/side"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/server/store/local"
	"github.com/jmqio/jmq/wire"
)

// message of a send, as it is stored.
type message struct {
	number, slot int
	index        index.Index
}

// messagesOf reads batches, and appends their messages to list.
func messagesOf(b []byte, list []message) ([]message, error) {
	for len(b) > 0 {
		batch, rest, err := wire.SplitBatch(b)
		if err == nil {
			err = batch.Verify()
		}
		if err != nil {
			return list, err
		}
		it := wire.IterateMessages(batch, batch[wire.BatchHeaderBytes:])
		for it.Next() {
			body := it.View.Body
			if len(body) < 16 {
				return list, fmt.Errorf("message at index %d of %d bytes", batch.FirstIndex()+uint64(it.Slot()), len(body))
			}
			m := message{int(binary.LittleEndian.Uint64(body)), int(binary.LittleEndian.Uint64(body[8:])), index.Index(batch.FirstIndex() + uint64(it.Slot()))}
			for k, c := range body[16:] {
				if c != byte(m.number*31+m.slot*7+k) {
					return list, fmt.Errorf("message at index %d, %d of send %d: byte %d is %#x", m.index, m.slot, m.number, 16+k, c)
				}
			}
			list = append(list, m)
		}
		if err := it.Err(); err != nil {
			return list, err
		}
		b = rest
	}
	return list, nil
}

// part of a topic: what a partition has.
type part struct {
	first, end index.Index
	messages   []message
}

// found is all that is on a disk.
type found struct {
	id        *[16]byte
	topics    map[string]store.Topic
	parts     map[string][]part
	groups    [len(groups)]bool
	progress  [len(groups)][partitions]offset.Ranges
	sideBegin uint32 // of the entries of SIDE; what it was, if there are none
	sides     int
}

// look reads it.
func look(fs vfs.FS, s *local.Store, offsets *offset.Table, beside *side.File) (*found, error) {
	f := &found{topics: map[string]store.Topic{}, parts: map[string][]part{}}
	var err error
	if f.id, _, err = local.Known(fs, dir); err != nil {
		return nil, err
	}
	if m := s.Metrics(); m.Holes != 0 || m.LostMessages != 0 {
		return nil, fmt.Errorf("%d holes, %d messages are lost to damage", m.Holes, m.LostMessages)
	}
	for _, t := range s.Topics() {
		f.topics[t.Name] = t
		for p := range uint16(t.Partitions) {
			of, err := lookAt(s, store.Partition{Topic: t.ID, Incarnation: t.Incarnation, Partition: p})
			if err != nil {
				return nil, fmt.Errorf("partition %d of %s: %w", p, t.Name, err)
			}
			f.parts[t.Name] = append(f.parts[t.Name], of)
		}
	}
	if t, there := f.topics[orders]; there {
		key := offset.Topic{ID: uint64(t.ID), Incarnation: t.Incarnation}
		for g, name := range groups {
			id, known := offsets.Group(0, name)
			if f.groups[g] = known && offsets.Has(id, key); !f.groups[g] {
				continue
			}
			for p := range uint16(partitions) {
				progress, _, there := offsets.Progress(id, key, p)
				if !there {
					return nil, fmt.Errorf("group %s stands nowhere in partition %d", name, p)
				}
				if progress.Ack > 0 {
					f.progress[g][p].Add(offset.Range{To: progress.Ack})
				}
				for _, r := range progress.Consumed {
					f.progress[g][p].Add(r)
				}
			}
		}
	}
	if d := beside.Metrics().Damaged; d != 0 {
		return nil, fmt.Errorf("%d bytes of SIDE are damaged", d)
	}
	for at := int64(0); ; {
		parts, next, err := beside.Read(at, 1<<20)
		if err != nil {
			return nil, fmt.Errorf("SIDE: %w", err)
		}
		if len(parts) == 0 {
			return f, nil
		}
		e, err := side.Decode(parts)
		if err != nil {
			return nil, fmt.Errorf("SIDE: %w", err)
		}
		for _, end := range e.Ends {
			n := uint32(end.Range.From / 3)
			if f.sides == 0 {
				f.sideBegin = n
			}
			if n != f.sideBegin+uint32(f.sides) || end.Last != sideEnd(n).Last {
				return nil, fmt.Errorf("entry %d of SIDE is %+v", f.sides, end)
			}
			f.sides++
		}
		at = next
	}
}

func lookAt(s *local.Store, p store.Partition) (of part, err error) {
	if of.first, of.end, err = s.Bounds(p); err != nil {
		return of, err
	}
	var b []byte
	for at := of.first; at < of.end; {
		if b, at, err = s.Read(p, at, of.end, 1<<20, b[:0]); err != nil {
			return of, err
		}
		if of.messages, err = messagesOf(b, of.messages); err != nil {
			return of, err
		}
	}
	for len(of.messages) > 0 && of.messages[0].index < of.first { // trimmed, and their batch is not
		of.messages = of.messages[1:]
	}
	for i, m := range of.messages {
		if m.index != of.first+index.Index(i) {
			return of, fmt.Errorf("index %d where %d should be", m.index, of.first+index.Index(i))
		}
	}
	if len(of.messages) != int(of.end-of.first) {
		return of, fmt.Errorf("%d messages in [%d, %d)", len(of.messages), of.first, of.end)
	}
	return of, nil
}

// compare holds what is on a disk against facts of the moment when its power was lost.
func (f *facts) compare(d *found) {
	if f.id != nil && (d.id == nil || *d.id != *f.id) {
		f.problem(other, "the store is %x, it was %x", d.id, *f.id)
	}
	for name, t := range f.topics {
		now, there := d.topics[name]
		if !f.deleting[name] && (!there || now.ID != t.ID || now.Incarnation != t.Incarnation || now.Partitions != t.Partitions) {
			f.problem(lost, "topic %s was %+v, and is %+v", name, t, now)
		}
	}
	for _, t := range f.gone {
		if now, there := d.topics[t.Name]; there && now.ID == t.ID && now.Incarnation == t.Incarnation {
			f.problem(phantom, "topic %+v was deleted", t)
		}
	}
	if t, there := d.topics[orders]; there {
		if n := uint32(t.Settings.RetentionBytes >> 20); n < f.settings.done || n > f.settings.asked {
			f.problem(lost, "setting %d of the topic, %d was done, %d asked for", n, f.settings.done, f.settings.asked)
		}
	}
	at := make(map[int]index.Index, len(f.sends))
	for name, parts := range d.parts {
		for p, of := range parts {
			f.comparePart(d.topics[name], uint16(p), &of, at)
		}
	}
	for n := range f.sends {
		s := &f.sends[n]
		if s.outcome != ok {
			continue
		}
		t, there := d.topics[s.topic.Name]
		if there = there && t.ID == s.topic.ID && t.Incarnation == s.topic.Incarnation; !there {
			if s.topic.Name == orders {
				f.problem(lost, "send %d, of a topic that is not there", n)
			}
			continue
		}
		of := d.parts[s.topic.Name][s.partition]
		if first, there := at[n]; there && first != s.first {
			f.problem(lost, "send %d is at index %d of partition %d, it was at %d", n, first, s.partition, s.first)
		} else if !there && s.first+index.Index(s.messages) > of.first {
			f.problem(lost, "send %d is not at index %d of partition %d, which has [%d, %d)", n, s.first, s.partition, of.first, of.end)
		}
	}
	for g, name := range groups {
		if f.groups[g] && !d.groups[g] {
			f.problem(lost, "group %s is not subscribed", name)
		}
		if !d.groups[g] {
			continue
		}
		for p := range partitions {
			s, stands := &f.standings[g][p], d.progress[g][p]
			if s.moving {
				continue
			}
			for _, r := range s.acked {
				if stands.Count(r) != r.Len() {
					f.problem(lost, "group %s acked %v in partition %d, it stands at %v", name, r, p, stands)
				}
			}
			may := append(offset.Ranges(nil), s.asked...)
			if f.trim[p] > 0 {
				may.Add(offset.Range{To: f.trim[p]})
			}
			for _, r := range stands {
				if may.Count(r) != r.Len() {
					f.problem(phantom, "group %s stands at %v in partition %d, it asked for %v", name, r, p, s.asked)
				}
			}
		}
	}
	switch n := f.sideBegin + uint32(d.sides); {
	case d.sides == 0 && (f.sideMoving || f.sides.done <= f.sideBegin):
	case d.sideBegin != f.sideBegin || n < f.sides.done || n > f.sides.asked:
		f.problem(lost, "SIDE has entries [%d, %d), of which [%d, %d) were done, %d asked for", d.sideBegin, d.sideBegin+uint32(d.sides), f.sideBegin, f.sides.done, f.sides.asked)
	}
}

// comparePart notes in at where sends are.
func (f *facts) comparePart(t store.Topic, p uint16, of *part, at map[int]index.Index) {
	most := index.Index(0)
	if t.Name == orders {
		most = f.trim[p]
	}
	if of.first > most {
		f.problem(lost, "partition %d of %s begins with index %d, it was to be trimmed up to %d", p, t.Name, of.first, most)
	}
	last := -1
	for _, m := range of.messages {
		if m.number >= len(f.sends) {
			f.problem(phantom, "index %d of partition %d is of send %d, of %d", m.index, p, m.number, len(f.sends))
			continue
		}
		s := &f.sends[m.number]
		first := m.index - index.Index(m.slot)
		if was, there := at[m.number]; there && was != first {
			f.problem(twice, "send %d is at index %d and at %d of partition %d", m.number, was, first, p)
		} else if there {
			continue
		}
		at[m.number] = first
		switch {
		case s.topic.ID != t.ID || s.topic.Incarnation != t.Incarnation || s.partition != p || m.slot >= s.messages || first+index.Index(s.messages) > of.end:
			f.problem(phantom, "index %d of partition %d of %s is message %d of %+v", m.index, p, t.Name, m.slot, *s)
		case s.outcome == failed:
			f.problem(phantom, "send %d had failed, and is at index %d of partition %d", m.number, first, p)
		case !s.repeated && m.number < last:
			f.problem(reordered, "send %d is after %d in partition %d", m.number, last, p)
		}
		if !s.repeated {
			last = max(last, m.number)
		}
	}
}

// compareState does so for REPLICA. same says that the machine did not start anew.
func (f *facts) compareState(s replica.State, same bool) {
	if n := s.Seen; n < f.state.done || n > f.state.asked || uint64(n) != s.Handing {
		f.problem(lost, "REPLICA has %d and %d, %d was done, %d asked for", n, s.Handing, f.state.done, f.state.asked)
	}
	switch {
	case f.boot == "": // the first
	case s.Boot != f.boot && (same || f.clean):
		f.problem(other, "another boot, though nothing can have been lost; clean %v", f.clean)
	case s.Boot == f.boot && !same && !f.stopping:
		f.problem(other, "the same boot, though what was not synced is lost")
	}
}

// adoptState notes what whoever opened REPLICA goes by.
func (f *facts) adoptState(s replica.State, same bool) {
	f.compareState(s, same)
	f.boot, f.stopping, f.clean, f.state.done = s.Boot, false, false, s.Seen
}

// adopt notes what whoever opened the store is shown: it is there for good, and what is not will never be.
func (f *facts) adopt(d *found) {
	f.compare(d)
	f.id = d.id
	clear(f.topics)
	clear(f.deleting)
	for name, t := range d.topics {
		f.topics[name] = t
	}
	at := map[int]bool{}
	for _, parts := range d.parts {
		for _, of := range parts {
			for _, m := range of.messages {
				if m.number < len(f.sends) {
					s := &f.sends[m.number]
					s.outcome, s.first = ok, m.index-index.Index(m.slot)
					at[m.number] = true
				}
			}
		}
	}
	for n := range f.sends {
		if f.sends[n].outcome == underWay && !at[n] {
			f.sends[n].outcome = failed
		}
	}
	for g := range groups {
		f.groups[g] = d.groups[g]
		for p := range partitions {
			f.standings[g][p] = standing{acked: append(offset.Ranges(nil), d.progress[g][p]...), asked: append(offset.Ranges(nil), d.progress[g][p]...)}
		}
	}
	if t, there := d.topics[orders]; there {
		f.settings.done = uint32(t.Settings.RetentionBytes >> 20)
	}
	f.sideMoving = false
	if d.sides > 0 {
		f.sideBegin = d.sideBegin
		f.sides.done = d.sideBegin + uint32(d.sides)
		f.sides.asked = f.sides.done
	} else {
		f.sideBegin, f.sides.done = f.sides.asked, f.sides.asked
	}
}
