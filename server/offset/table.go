package offset

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/planted"
	"github.com/jmqio/jmq/wire"
)

// Table is where every group stands, as committed. It is a store.Table: Apply, Snapshot and Restore are called by the
// store, one at a time. Everything else may be called at any time, and sees the table between two Applies.
type Table struct {
	mu struct {
		sync.Mutex // short: held by Apply for one record, by readers for one copy
		state
	}
	ends []End // Apply's own, reused
}

// state is what a snapshot holds. Only Apply and Restore change it.
type state struct {
	groups  []*group // in the order of their births, which is the same on every replica
	byName  map[groupName]*group
	byID    map[GroupID]*group
	subs    []*subscription // in the order of their births
	lastID  GroupID         // the highest ever given
	retired uint32          // the highest generation of a group that was removed from a topic
	byTopic map[Topic][]*subscription
	deleted []Topic // the last deletedMax, the oldest first
	lost    bool    // records were lost
	counts  Counts
}

// deletedMax bounds the deleted topics that are remembered: the birth of a group may be on its way while its topic is deleted.
const deletedMax = 1024

type groupName struct {
	namespace uint32
	name      string
}

// group is a consumer group of a namespace.
type group struct {
	id     GroupID
	name   groupName
	topics map[Topic]*subscription
}

// subscription is a group on a topic.
type subscription struct {
	group      *group
	topic      Topic
	policy     Policy
	born       uint32 // generation of its birth
	active     int64  // stored time of its last record
	moved      Moved
	partitions []partition // those beyond its end are at index 0 since the birth
}

type partition struct {
	Progress
	generation uint32
	above      uint64 // Consumed.Len()
}

// Moved is the last Move of a group on a topic.
type Moved struct {
	Time     int64  // unix nanoseconds; 0: never
	Who, Why string // cut to 255 bytes
}

const movedTextMax = 255

// Counts is what the table has been given, and dropped, since the store was made.
type Counts struct {
	Ended   uint64 // messages that ended, once each
	Again   uint64 // messages in ends of what had ended before
	Old     uint64 // ends and expiries dropped for their generation: a reset came between
	Unknown uint64 // ends, expiries and resets dropped since their group or topic is not there: it was deleted
	Expired uint64 // leases that ran out
}

// NewTable returns an empty table.
func NewTable() *Table {
	t := &Table{}
	t.mu.state = newState()
	return t
}

func newState() state {
	return state{byName: map[groupName]*group{}, byID: map[GroupID]*group{}, byTopic: map[Topic][]*subscription{}}
}

func (t *Table) Name() string { return "offset" }

// A topic record's payload (server/store) begins like this; what it deletes is dropped here too.
//
//	version u8 | operation u8 | .. | 8: topic u64 | 16: incarnation u32
const (
	topicRecordMin    = 20
	topicRecordDelete = 3
)

// Apply takes a committed record of any kind. An error means that the record contradicts what was applied before, and
// that nothing of it was.
func (t *Table) Apply(r journal.Record) error {
	var err error
	switch r.Kind {
	case journal.KindEnd:
		if t.ends, err = DecodeEnds(t.ends[:0], r.Payload); err == nil {
			err = t.change(func(s *state) error { return s.end(t.ends, r.Stored) })
		}
	case journal.KindLeaseExpiry:
		var expiries []Expiry
		if expiries, err = DecodeExpiries(r.Payload); err == nil {
			err = t.change(func(s *state) error { return s.expire(expiries, r.Stored) })
		}
	case journal.KindOffsetReset:
		var v *Reset
		if v, err = DecodeReset(r.Payload); err == nil {
			err = t.change(func(s *state) error { return s.reset(v, r.Stored) })
		}
	case journal.KindTopic:
		if b := r.Payload; len(b) >= topicRecordMin && b[1] == topicRecordDelete {
			topic := Topic{ID: binary.LittleEndian.Uint64(b[8:]), Incarnation: binary.LittleEndian.Uint32(b[16:])}
			err = t.change(func(s *state) error { s.deleteTopic(topic); return nil })
		}
	case journal.KindLost:
		err = t.change(func(s *state) error { s.lost = true; return nil })
	}
	if err != nil {
		return fmt.Errorf("%v record at position %d: %w", r.Kind, r.Position, err)
	}
	return nil
}

func (t *Table) change(f func(s *state) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return f(&t.mu.state)
}

// given checks that a reset gave the generation which a record names. If not, a record is missing, and going on would move an
// offset that a person set. Where the disk lost records it is adopted: where that reset moved the group is not known.
func (s *state) given(g GroupID, topic Topic, p uint16, generation uint32) error {
	sub := s.find(g, topic)
	if sub == nil || generation <= sub.at(p).generation {
		return nil
	}
	if s.lost {
		sub.grow(p).generation = generation
		return nil
	}
	return fmt.Errorf("%w: generation %d in partition %d of topic %v for group %q, which is at %d",
		ErrCorrupt, generation, p, topic, sub.group.name.name, sub.at(p).generation)
}

// counted returns the partition that a record of a generation changes; nil when it changes nothing, which is counted.
func (s *state) counted(g GroupID, topic Topic, number uint16, generation uint32, stored int64) *partition {
	sub := s.find(g, topic)
	if sub == nil {
		s.counts.Unknown++
		return nil
	}
	sub.active = max(sub.active, stored)
	p := sub.grow(number)
	if generation < p.generation {
		s.counts.Old++
		return nil
	}
	return p
}

func (s *state) end(ends []End, stored int64) error {
	for i := range ends {
		e := &ends[i]
		if err := s.given(e.Group, e.Topic, e.Partition, e.Generation); err != nil {
			return err
		}
	}
	for i := range ends {
		e := &ends[i]
		p := s.counted(e.Group, e.Topic, e.Partition, e.Generation, stored)
		if p == nil {
			continue
		}
		n := p.end(e.Range)
		s.counts.Ended += n
		s.counts.Again += e.Range.Len() - n
	}
	return nil
}

// end is Progress.Add that keeps above.
func (p *partition) end(r Range) uint64 {
	ack := p.Ack
	if planted.Bug("offset: over a hole") {
		r.From = min(r.From, ack)
	}
	n := p.Add(r)
	p.above = p.above + n - uint64(p.Ack-ack) // what the offset passed was above it or is new
	return n
}

func (s *state) expire(expiries []Expiry, stored int64) error {
	for i := range expiries {
		e := &expiries[i]
		if err := s.given(e.Group, e.Topic, e.Partition, e.Generation); err != nil {
			return err
		}
	}
	for i := range expiries {
		e := &expiries[i]
		p := s.counted(e.Group, e.Topic, e.Partition, e.Generation, stored)
		if p == nil {
			continue
		}
		s.counts.Expired++
		for _, r := range e.Ranges {
			p.Expire(r, e.Count)
		}
	}
	return nil
}

func (s *state) reset(v *Reset, stored int64) error {
	name := groupName{v.Namespace, v.GroupName}
	byID, byName := s.byID[v.Group], s.byName[name]
	if byID != byName {
		if !s.lost {
			return fmt.Errorf("%w: group %d is %q in namespace %d, but another group has that number or name", ErrCorrupt, v.Group, v.GroupName, v.Namespace)
		}
		// The end of the one group, or the birth of the other, was lost.
		for _, g := range []*group{byID, byName} {
			if g != nil {
				s.dropGroup(g)
			}
		}
		byID = nil
	}
	var sub *subscription
	if byID != nil {
		sub = byID.topics[v.Topic]
	}
	switch {
	case sub == nil && v.Operation != Birth, slices.Contains(s.deleted, v.Topic):
		s.counts.Unknown++
		return nil
	case v.Operation == Remove:
		s.remove(sub)
		return nil
	}
	if sub == nil {
		g := byID
		if g == nil {
			g = s.addGroup(v.Group, name)
		}
		sub = s.addSubscription(g, v.Topic)
		sub.policy, sub.born, sub.active = v.Policy, 1, stored
		if len(v.Starts) > 0 {
			sub.born = v.Starts[0].Generation
		}
		for _, start := range v.Starts {
			*sub.grow(start.Partition) = partition{Progress: Progress{Ack: start.Offset}, generation: start.Generation}
		}
		return nil
	}
	sub.active = max(sub.active, stored)
	if v.Operation == Alter {
		sub.policy = v.Policy
		return nil
	}
	for _, start := range v.Starts {
		if p := sub.grow(start.Partition); start.Generation > p.generation {
			*p = partition{Progress: Progress{Ack: start.Offset}, generation: start.Generation}
		}
	}
	if v.Operation == Move {
		sub.moved = Moved{v.Time, cutText(v.Who, movedTextMax), cutText(v.Why, movedTextMax)}
	}
	return nil
}

func (s *state) deleteTopic(topic Topic) {
	for _, sub := range slices.Clone(s.byTopic[topic]) {
		s.drop(sub)
	}
	if !slices.Contains(s.deleted, topic) {
		s.deleted = append(s.deleted, topic)
		if n := len(s.deleted) - deletedMax; n > 0 {
			s.deleted = slices.Delete(s.deleted, 0, n)
		}
	}
}

// remove takes a group off a topic that goes on: it may be born there again, and what was written before must not count then.
func (s *state) remove(sub *subscription) {
	s.retired = max(s.retired, sub.born)
	for i := range sub.partitions {
		s.retired = max(s.retired, sub.partitions[i].generation)
	}
	s.drop(sub)
}

// drop forgets sub, and its group if it is on no other topic.
func (s *state) drop(sub *subscription) {
	is := func(o *subscription) bool { return o == sub }
	delete(sub.group.topics, sub.topic)
	s.subs = slices.DeleteFunc(s.subs, is)
	if rest := slices.DeleteFunc(s.byTopic[sub.topic], is); len(rest) > 0 {
		s.byTopic[sub.topic] = rest
	} else {
		delete(s.byTopic, sub.topic)
	}
	if len(sub.group.topics) == 0 {
		s.dropGroup(sub.group)
	}
}

func (s *state) dropGroup(g *group) {
	for _, sub := range s.subs {
		if sub.group == g {
			s.byTopic[sub.topic] = slices.DeleteFunc(s.byTopic[sub.topic], func(o *subscription) bool { return o == sub })
			if len(s.byTopic[sub.topic]) == 0 {
				delete(s.byTopic, sub.topic)
			}
		}
	}
	s.subs = slices.DeleteFunc(s.subs, func(o *subscription) bool { return o.group == g })
	s.groups = slices.DeleteFunc(s.groups, func(o *group) bool { return o == g })
	delete(s.byID, g.id)
	delete(s.byName, g.name)
}

func (s *state) addGroup(id GroupID, name groupName) *group {
	g := &group{id: id, name: name, topics: map[Topic]*subscription{}}
	s.groups = append(s.groups, g)
	s.byName[name], s.byID[id] = g, g
	s.lastID = max(s.lastID, id)
	return g
}

func (s *state) addSubscription(g *group, topic Topic) *subscription {
	sub := &subscription{group: g, topic: topic}
	g.topics[topic] = sub
	s.subs = append(s.subs, sub)
	s.byTopic[topic] = append(s.byTopic[topic], sub)
	return sub
}

func (s *state) find(g GroupID, topic Topic) *subscription {
	if group := s.byID[g]; group != nil {
		return group.topics[topic]
	}
	return nil
}

// at returns the partition's state; grow does so to change it.
func (s *subscription) at(p uint16) *partition {
	if int(p) < len(s.partitions) {
		return &s.partitions[p]
	}
	return &partition{generation: s.born}
}

func (s *subscription) grow(p uint16) *partition {
	for int(p) >= len(s.partitions) {
		s.partitions = append(s.partitions, partition{generation: s.born})
	}
	return &s.partitions[p]
}

// Group returns the number of a group, if it is on any topic.
func (t *Table) Group(namespace uint32, name string) (GroupID, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if g := t.mu.byName[groupName{namespace, name}]; g != nil {
		return g.id, true
	}
	return 0, false
}

// Has reports whether the group was born on the topic.
func (t *Table) Has(g GroupID, topic Topic) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.find(g, topic) != nil
}

// LastGroup returns the highest number that a group ever had: the next one is above it.
func (t *Table) LastGroup() GroupID {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.lastID
}

// Subscriptions returns how many (group, topic) there are.
func (t *Table) Subscriptions() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.mu.subs)
}

// BirthGeneration returns the generation that a birth must give: higher than any of a group that was removed from its topic, so
// that nothing which was on its way then counts for it.
func (t *Table) BirthGeneration() uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.retired + 1
}

// Policy returns how a group is given a topic; false if it is not on the topic.
func (t *Table) Policy(g GroupID, topic Topic) (Policy, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	sub := t.mu.find(g, topic)
	if sub == nil {
		return Policy{}, false
	}
	return sub.policy, true
}

// LastMove returns the last Move of a group on a topic; false if it never was moved, or is not there.
func (t *Table) LastMove(g GroupID, topic Topic) (Moved, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	sub := t.mu.find(g, topic)
	if sub == nil {
		return Moved{}, false
	}
	return sub.moved, sub.moved.Time != 0
}

// Active returns the stored time of the last record about a group on a topic: an end, an expiry, a reset; 0 if it is not
// there. A group that fetches and finds nothing writes nothing.
func (t *Table) Active(g GroupID, topic Topic) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if sub := t.mu.find(g, topic); sub != nil {
		return sub.active
	}
	return 0
}

// Standing is where a group stands in a partition, in numbers.
type Standing struct {
	Ack         index.Index // everything below has ended
	Consumed    uint64      // messages above it that have ended
	Ended       uint64      // messages at or above the index asked for that have ended
	Generation  uint32
	Expired     uint64 // messages that have not ended, and of which a lease ran out
	AttemptsMax uint32 // the most leases of one of them that ran out
}

// Standing returns where a group stands in a partition, and how much of what lies at or above first has ended: of messages
// [first, end) all others are its lag, if end is read later. It costs the same whatever was consumed, unless first is above the ack
// offset. False if the group is not on the topic.
func (t *Table) Standing(g GroupID, topic Topic, p uint16, first index.Index) (Standing, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	sub := t.mu.find(g, topic)
	if sub == nil {
		return Standing{}, false
	}
	at := sub.at(p)
	s := Standing{Ack: at.Ack, Consumed: at.above, Generation: at.generation}
	s.Expired, s.AttemptsMax = at.Expired.Messages()
	if first > at.Ack {
		s.Ended = at.Consumed.Count(Range{first, ^index.Index(0)})
	} else {
		s.Ended = uint64(at.Ack-first) + at.above
	}
	return s, true
}

// First returns the first index from i on that has not ended; false if the group is not on the topic.
func (t *Table) First(g GroupID, topic Topic, p uint16, i index.Index) (index.Index, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	sub := t.mu.find(g, topic)
	if sub == nil {
		return 0, false
	}
	return sub.at(p).GapIn(Range{i, ^index.Index(0)}).From, true
}

// Progress returns a copy of where a group stands in a partition, and the generation; false if it is not on the topic.
func (t *Table) Progress(g GroupID, topic Topic, p uint16) (Progress, uint32, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	sub := t.mu.find(g, topic)
	if sub == nil {
		return Progress{}, 0, false
	}
	at := sub.at(p)
	return at.Clone(), at.generation, true
}

// NamedGroup is a group with its name.
type NamedGroup struct {
	ID        GroupID
	Namespace uint32
	Name      string
}

// GroupsOf returns the groups on a topic, in the order of their births.
func (t *Table) GroupsOf(topic Topic) []NamedGroup {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []NamedGroup
	for _, sub := range t.mu.byTopic[topic] {
		g := sub.group
		out = append(out, NamedGroup{g.id, g.name.namespace, g.name.name})
	}
	return out
}

// Counts returns what the table has counted.
func (t *Table) Counts() Counts {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.counts
}

const (
	snapshotVersion = 2
	snapshotLost    = 1 << 0 // flag: records were lost
)

// Snapshot appends the table to b. Like Apply it is the store's to call; it takes no lock, since nothing but Apply and
// Restore changes the table, and so readers do not wait for a checkpoint.
func (t *Table) Snapshot(b []byte) []byte {
	s := &t.mu.state
	flags := byte(0)
	if s.lost {
		flags |= snapshotLost
	}
	b = append(b, snapshotVersion, flags)
	for _, n := range []uint64{s.counts.Ended, s.counts.Again, s.counts.Old, s.counts.Unknown, s.counts.Expired, uint64(s.lastID), uint64(s.retired)} {
		b = binary.AppendUvarint(b, n)
	}
	b = binary.AppendUvarint(b, uint64(len(s.groups)))
	for _, g := range s.groups {
		b = binary.AppendUvarint(b, uint64(g.id))
		b = binary.AppendUvarint(b, uint64(g.name.namespace))
		b = appendString(b, g.name.name)
	}
	b = binary.AppendUvarint(b, uint64(len(s.subs)))
	for _, sub := range s.subs {
		flags := byte(0)
		if sub.policy.Parallel {
			flags |= resetParallel
		}
		b = binary.AppendUvarint(b, uint64(sub.group.id))
		b = appendTopic(b, sub.topic)
		b = append(b, flags)
		b = binary.AppendUvarint(b, uint64(sub.policy.Window))
		b = binary.AppendUvarint(b, uint64(sub.born))
		b = binary.AppendVarint(b, sub.active)
		b = binary.AppendVarint(b, sub.moved.Time)
		b = appendString(b, sub.moved.Who)
		b = appendString(b, sub.moved.Why)
		b = binary.AppendUvarint(b, uint64(len(sub.partitions)))
		for i := range sub.partitions {
			p := &sub.partitions[i]
			b = binary.AppendUvarint(b, uint64(p.generation))
			b = binary.AppendUvarint(b, uint64(p.Ack))
			b = appendRanges(b, p.Ack, p.Consumed)
			b = binary.AppendUvarint(b, uint64(len(p.Expired)))
			last := p.Ack
			for _, e := range p.Expired {
				b = binary.AppendUvarint(b, uint64(e.From-last))
				b = binary.AppendUvarint(b, e.Len())
				b = binary.AppendUvarint(b, uint64(e.Count))
				last = e.To
			}
		}
	}
	b = binary.AppendUvarint(b, uint64(len(s.deleted)))
	for _, topic := range s.deleted {
		b = appendTopic(b, topic)
	}
	return b
}

func appendTopic(b []byte, t Topic) []byte {
	b = binary.AppendUvarint(b, t.ID)
	return binary.AppendUvarint(b, uint64(t.Incarnation))
}

// Restore puts a snapshot in the table's place; an empty one is that of a new table. On an error the table is as it was.
func (t *Table) Restore(b []byte) error {
	s := newState()
	if len(b) > 0 {
		if err := s.restore(b); err != nil {
			return err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.state = s
	return nil
}

func (s *state) restore(b []byte) error {
	r := reader{b: b}
	r.version("offset snapshot", snapshotVersion)
	flags := r.byte()
	if flags&^snapshotLost != 0 {
		r.fail("flags %#x", flags)
	}
	s.lost = flags&snapshotLost != 0
	s.counts = Counts{Ended: r.uvarint(), Again: r.uvarint(), Old: r.uvarint(), Unknown: r.uvarint(), Expired: r.uvarint()}
	lastID := GroupID(r.uint32("last group"))
	s.retired = r.uint32("retired generation")
	for range r.count("groups", 4) {
		id, name := GroupID(r.uint32("group")), groupName{namespace: r.uint32("namespace")}
		name.name = r.string("group name", wire.NameBytesMax)
		if r.err == nil && (id == 0 || id > lastID || name.name == "" || s.byID[id] != nil || s.byName[name] != nil) {
			r.fail("group %d %q of namespace %d is nothing, beyond the last, or there twice", id, name.name, name.namespace)
		}
		if r.err != nil {
			return r.err
		}
		s.addGroup(id, name)
	}
	s.lastID = lastID
	for range r.count("subscriptions", 11) {
		g, topic := s.byID[GroupID(r.uint32("group"))], r.topic()
		if r.err == nil && (g == nil || g.topics[topic] != nil) {
			r.fail("a subscription to topic %v of a group that is not there, or there twice", topic)
		}
		if r.err != nil {
			return r.err
		}
		sub := s.addSubscription(g, topic)
		flags := r.byte()
		if flags&^resetParallel != 0 {
			r.fail("flags %#x", flags)
		}
		sub.policy = Policy{Parallel: flags&resetParallel != 0, Window: r.uint32("window")}
		sub.born, sub.active = r.uint32("generation"), r.varint()
		sub.moved = Moved{Time: r.varint(), Who: r.string("who", movedTextMax), Why: r.string("why", movedTextMax)}
		n := r.count("partitions", 4)
		if r.err == nil && (n > partitionsMax || sub.born == 0) {
			r.fail("%d partitions of generation %d", n, sub.born)
		}
		if n > 0 && r.err == nil {
			sub.partitions = make([]partition, n)
		}
		for i := range sub.partitions {
			r.partitionState(&sub.partitions[i])
		}
	}
	n := r.count("deleted topics", 2)
	if r.err == nil && n > deletedMax {
		r.fail("%d deleted topics", n)
	}
	for range n {
		topic := r.topic()
		if r.err == nil && (slices.Contains(s.deleted, topic) || len(s.byTopic[topic]) > 0) {
			r.fail("topic %v is deleted twice, or has groups", topic)
		}
		if r.err != nil {
			return r.err
		}
		s.deleted = append(s.deleted, topic)
	}
	for _, g := range s.groups {
		if r.err == nil && len(g.topics) == 0 {
			r.fail("group %d is on no topic", g.id)
		}
	}
	return r.end()
}

func (r *reader) topic() Topic { return Topic{ID: r.uvarint(), Incarnation: r.uint32("incarnation")} }

func (r *reader) partitionState(p *partition) {
	p.generation, p.Ack = r.uint32("generation"), r.index()
	if r.err == nil && p.generation == 0 {
		r.fail("generation 0")
	}
	p.Consumed = r.ranges("consumed ranges", p.Ack)
	if planted.Bug("offset: ranges not restored") {
		p.Consumed = nil
	}
	if err := p.Consumed.check(p.Ack); r.err == nil && err != nil {
		r.fail("consumed ranges: %v", err)
	}
	p.above = p.Consumed.Len()
	n := r.count("expired ranges", 3)
	if n > 0 {
		p.Expired = make(Expiries, 0, n)
	}
	last := p.Ack
	for range n {
		e := Expired{Range: Range{From: r.add(last, r.uvarint())}}
		e.To = r.add(e.From, r.uvarint())
		e.Count = r.uint32("count")
		last = e.To
		p.Expired = append(p.Expired, e)
	}
	if err := p.Expired.check(&p.Progress); r.err == nil && err != nil {
		r.fail("expired ranges: %v", err)
	}
}
