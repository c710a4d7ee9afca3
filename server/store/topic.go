package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmqio/jmq/server/journal"
)

// A topic record's payload (journal.KindTopic), little-endian. Each holds the topic as it is after the change, of a delete
// as it was before: so a record says all by itself, also where the one before it was lost.
//
//	 0  version         u8    2, 3 with an origin, or 4 with that and a durability
//	 1  operation       u8    1 create, 2 alter, 3 delete
//	 2  flags           u8    1 discardUnconsumed, 2 pauseProduce, 4 pauseConsume
//	 3  nameLength      u8
//	 4  namespace       u32
//	 8  topic           u64
//	16  incarnation     u32
//	20  partitions      u32
//	24  created         i64   unix nanoseconds
//	32  retentionAge    i64   nanoseconds
//	40  retentionBytes  i64
//	48  whoLength       u16
//	50  whyLength       u16
//	52  generation      u64   of the origin, and the next two: of versions 3 and 4
//	60  created         u64
//	68  version         u64
//	76  durability      u8    of version 4: 1 replicated
//	77  reserved        [7]   0
//	52, 76 or 84  name, who, why
const (
	topicVersion       = 2
	topicVersionOrigin = 3
	topicVersionLast   = 4
	topicFixedBytes    = 52
	topicOriginBytes   = 24
	topicMoreBytes     = 8

	flagDiscardUnconsumed = 1
	flagPauseProduce      = 2
	flagPauseConsume      = 4

	topicsSnapshotVersion = 2
	topicShards           = 256

	// TopicNameBytesMax and PartitionsMax bound what a topic can be.
	TopicNameBytesMax = 255
	PartitionsMax     = 1 << 16
	// TopicReasonBytesMax bounds who and why of a change.
	TopicReasonBytesMax = 4096
)

// TopicOperation is what a topic record does.
type TopicOperation uint8

const (
	TopicCreate TopicOperation = 1
	TopicAlter  TopicOperation = 2
	TopicDelete TopicOperation = 3
)

// TopicRecord is a topic record's content.
type TopicRecord struct {
	Operation TopicOperation
	Topic     Topic // after the change; of a delete before it
	Who, Why  string
}

// errTopicRecord: a payload is not a topic record, or one of a newer version.
var errTopicRecord = errors.New("store: not a topic record")

// Check says whether a topic can be.
func (t *Topic) Check() error {
	switch {
	case t.Settings.Durability > DurabilityReplicated:
		return fmt.Errorf("%w: durability %d is not known", ErrTopic, t.Settings.Durability)
	case len(t.Name) == 0 || len(t.Name) > TopicNameBytesMax:
		return fmt.Errorf("%w: name of %d bytes, 1 to %d are allowed", ErrTopic, len(t.Name), TopicNameBytesMax)
	case t.Partitions == 0 || t.Partitions > PartitionsMax:
		return fmt.Errorf("%w: %d partitions, 1 to %d are allowed", ErrTopic, t.Partitions, PartitionsMax)
	}
	return nil
}

// AppendTopicRecord appends the payload of a topic record. Who and why are cut to TopicReasonBytesMax.
func AppendTopicRecord(b []byte, r *TopicRecord) []byte {
	who, why := cutReason(r.Who), cutReason(r.Why)
	t, flags := &r.Topic, byte(0)
	for _, f := range []struct {
		set  bool
		flag byte
	}{{t.Settings.DiscardUnconsumed, flagDiscardUnconsumed}, {t.Settings.PauseProduce, flagPauseProduce}, {t.Settings.PauseConsume, flagPauseConsume}} {
		if f.set {
			flags |= f.flag
		}
	}
	version := byte(topicVersion)
	switch {
	case t.Settings.Durability != DurabilityNormal:
		version = topicVersionLast
	case t.Origin != (Origin{}):
		version = topicVersionOrigin
	}
	b = append(b, version, byte(r.Operation), flags, byte(len(t.Name)))
	b = binary.LittleEndian.AppendUint32(b, t.Namespace)
	b = binary.LittleEndian.AppendUint64(b, uint64(t.ID))
	b = binary.LittleEndian.AppendUint32(b, t.Incarnation)
	b = binary.LittleEndian.AppendUint32(b, t.Partitions)
	b = binary.LittleEndian.AppendUint64(b, uint64(t.Created))
	b = binary.LittleEndian.AppendUint64(b, uint64(t.Settings.RetentionAge))
	b = binary.LittleEndian.AppendUint64(b, uint64(t.Settings.RetentionBytes))
	b = binary.LittleEndian.AppendUint16(b, uint16(len(who)))
	b = binary.LittleEndian.AppendUint16(b, uint16(len(why)))
	if version >= topicVersionOrigin {
		b = binary.LittleEndian.AppendUint64(b, t.Origin.Generation)
		b = binary.LittleEndian.AppendUint64(b, t.Origin.Created)
		b = binary.LittleEndian.AppendUint64(b, t.Origin.Version)
	}
	if version == topicVersionLast {
		b = append(b, byte(t.Settings.Durability), 0, 0, 0, 0, 0, 0, 0)
	}
	b = append(b, t.Name...)
	b = append(b, who...)
	return append(b, why...)
}

// cutReason cuts s to what a record takes, not within a character.
func cutReason(s string) string {
	if len(s) > TopicReasonBytesMax {
		s = strings.ToValidUTF8(s[:TopicReasonBytesMax], "")
	}
	return s
}

// ParseTopicRecord decodes a topic record's payload.
func ParseTopicRecord(b []byte) (TopicRecord, error) {
	r, rest, err := parseTopic(b)
	if err == nil && len(rest) != 0 {
		err = fmt.Errorf("%w: %d bytes too many", errTopicRecord, len(rest))
	}
	return r, err
}

func parseTopic(b []byte) (r TopicRecord, rest []byte, err error) {
	switch {
	case len(b) < topicFixedBytes:
		return r, nil, fmt.Errorf("%w: %d bytes", errTopicRecord, len(b))
	case b[0] < topicVersion || b[0] > topicVersionLast:
		return r, nil, fmt.Errorf("%w: version %d, this program reads %d to %d", errTopicRecord, b[0], topicVersion, topicVersionLast)
	case b[1] < byte(TopicCreate) || b[1] > byte(TopicDelete):
		return r, nil, fmt.Errorf("%w: operation %d is not known", errTopicRecord, b[1])
	case b[2] >= flagPauseConsume<<1:
		return r, nil, fmt.Errorf("%w: flags %#x are not known", errTopicRecord, b[2])
	}
	name, who, why, fixed := int(b[3]), int(binary.LittleEndian.Uint16(b[48:])), int(binary.LittleEndian.Uint16(b[50:])), topicFixedBytes
	if b[0] >= topicVersionOrigin {
		fixed += topicOriginBytes
	}
	if b[0] == topicVersionLast {
		fixed += topicMoreBytes
	}
	if who > TopicReasonBytesMax || why > TopicReasonBytesMax || len(b) < fixed+name+who+why {
		return r, nil, fmt.Errorf("%w: origin, name, who or why is cut or too long", errTopicRecord)
	}
	text := b[fixed:]
	r = TopicRecord{
		Operation: TopicOperation(b[1]),
		Topic: Topic{
			Namespace:   binary.LittleEndian.Uint32(b[4:]),
			ID:          TopicID(binary.LittleEndian.Uint64(b[8:])),
			Incarnation: binary.LittleEndian.Uint32(b[16:]),
			Partitions:  binary.LittleEndian.Uint32(b[20:]),
			Created:     int64(binary.LittleEndian.Uint64(b[24:])),
			Name:        string(text[:name]),
			Settings: Settings{
				RetentionAge:      time.Duration(binary.LittleEndian.Uint64(b[32:])),
				RetentionBytes:    int64(binary.LittleEndian.Uint64(b[40:])),
				DiscardUnconsumed: b[2]&flagDiscardUnconsumed != 0,
				PauseProduce:      b[2]&flagPauseProduce != 0,
				PauseConsume:      b[2]&flagPauseConsume != 0,
			},
		},
		Who: string(text[name : name+who]),
		Why: string(text[name+who : name+who+why]),
	}
	if b[0] >= topicVersionOrigin {
		o := b[topicFixedBytes:]
		r.Topic.Origin = Origin{binary.LittleEndian.Uint64(o), binary.LittleEndian.Uint64(o[8:]), binary.LittleEndian.Uint64(o[16:])}
		if r.Topic.Origin == (Origin{}) && b[0] == topicVersionOrigin {
			return r, nil, fmt.Errorf("%w: version %d without an origin", errTopicRecord, b[0])
		}
	}
	if b[0] == topicVersionLast {
		more := binary.LittleEndian.Uint64(b[topicFixedBytes+topicOriginBytes:])
		if more == 0 || more > uint64(DurabilityReplicated) {
			return r, nil, fmt.Errorf("%w: version %d with durability and reserved bytes %#x", errTopicRecord, b[0], more)
		}
		r.Topic.Settings.Durability = Durability(more)
	}
	if r.Topic.ID == 0 || r.Topic.Incarnation == 0 {
		return r, nil, fmt.Errorf("%w: topic %d, incarnation %d", errTopicRecord, r.Topic.ID, r.Topic.Incarnation)
	}
	if err := r.Topic.Check(); err != nil {
		return r, nil, fmt.Errorf("%w: %w", errTopicRecord, err)
	}
	return r, text[name+who+why:], nil
}

// Topics is the table of topics. Lookups take no lock: names are spread over shards, each an immutable map behind an atomic
// pointer, so that a creation copies a part and not all; ids are a sorted list.
//
// The ids of deleted topics are used again, their incarnations never: they are counted for the whole store. So nothing needs
// to be remembered of a deleted topic.
type Topics struct {
	seed  maphash.Seed
	names [topicShards]atomic.Pointer[map[topicName]*Topic]

	// mu is held by Apply and Restore, which come one at a time, and by List.
	mu struct {
		sync.Mutex
		list []*Topic // by id
		// incarnation is the highest ever given. Each topic's is at most that, and no two are the same.
		incarnation uint32
		// lenient: records were lost, so those that follow may contradict what is here, and they are right.
		lenient bool
	}
}

type topicName struct {
	namespace uint32
	name      string
}

var _ Table = (*Topics)(nil)

// NewTopics returns a table without topics.
func NewTopics() *Topics { return &Topics{seed: maphash.MakeSeed()} }

func (t *Topics) shard(n topicName) *atomic.Pointer[map[topicName]*Topic] {
	return &t.names[(maphash.String(t.seed, n.name)+uint64(n.namespace))%topicShards]
}

// Find returns the topic of that name.
func (t *Topics) Find(namespace uint32, name string) (*Topic, bool) {
	n := topicName{namespace, name}
	m := t.shard(n).Load()
	if m == nil {
		return nil, false
	}
	found, ok := (*m)[n]
	return found, ok
}

// List returns all topics, by id.
func (t *Topics) List() []Topic {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := make([]Topic, len(t.mu.list))
	for i, p := range t.mu.list {
		list[i] = *p
	}
	return list
}

// Len returns how many topics there are.
func (t *Topics) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.mu.list)
}

// Incarnation returns the highest incarnation ever given, 0 when none was.
func (t *Topics) Incarnation() uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.incarnation
}

// Name is the table's in checkpoints.
func (t *Topics) Name() string { return "topics" }

// Apply makes the change of a topic record.
func (t *Topics) Apply(r journal.Record) error {
	_, err := t.Change(r)
	return err
}

// Change is Apply, and returns which topics are not there any more.
func (t *Topics) Change(r journal.Record) (gone []Topic, err error) {
	switch r.Kind {
	case journal.KindLost:
		t.lost(len(r.Payload))
		return nil, nil
	case journal.KindTopic:
	default:
		return nil, nil
	}
	c, err := ParseTopicRecord(r.Payload)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.incarnation = max(t.mu.incarnation, c.Topic.Incarnation)
	at, there := t.findLocked(c.Topic.ID)
	var old *Topic
	if there {
		old = t.mu.list[at]
	}
	same := there && old.Incarnation == c.Topic.Incarnation
	switch named, taken := t.Find(c.Topic.Namespace, c.Topic.Name); {
	case t.mu.lenient:
		// What else has its id or its name is older, and the record of its end was lost.
		if taken && named.ID != c.Topic.ID && c.Operation != TopicDelete {
			gone = append(gone, *named)
			other, _ := t.findLocked(named.ID)
			t.removeLocked(other)
			at, _ = t.findLocked(c.Topic.ID)
		}
		switch {
		case same && c.Operation != TopicDelete:
			c.Topic.Partitions = max(c.Topic.Partitions, old.Partitions)
			t.replaceLocked(at, &c.Topic)
			return gone, nil
		case there:
			gone = append(gone, *old)
			t.removeLocked(at)
		}
		if c.Operation != TopicDelete {
			err = t.addLocked(&c.Topic)
		}
		return gone, err
	case c.Operation == TopicCreate:
		return nil, t.addLocked(&c.Topic)
	case !same || old.Namespace != c.Topic.Namespace || old.Name != c.Topic.Name:
		return nil, fmt.Errorf("store: topic record changes %q, topic %d, incarnation %d, which is not there", c.Topic.Name, c.Topic.ID, c.Topic.Incarnation)
	case c.Operation == TopicAlter:
		if c.Topic.Partitions < old.Partitions {
			return nil, fmt.Errorf("store: topic record leaves %q %d of %d partitions", c.Topic.Name, c.Topic.Partitions, old.Partitions)
		}
		t.replaceLocked(at, &c.Topic)
		return nil, nil
	default:
		t.removeLocked(at)
		return []Topic{*old}, nil
	}
}

// lost takes note of n bytes of records that were lost.
func (t *Topics) lost(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.lenient = true
	// Topics may have been made there, whose incarnations must not be given again.
	t.mu.incarnation += uint32(n/journal.RecordBytes(topicFixedBytes+1)) + 1
}

// Recover adds the topic of a partition whose topic's records were lost, under a name that says so, or gives it more partitions. It
// returns which topic, of a former life of the id, is not there any more.
func (t *Topics) Recover(namespace uint32, p Partition) (topic Topic, gone []Topic, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.incarnation = max(t.mu.incarnation, p.Incarnation)
	if at, there := t.findLocked(p.Topic); there {
		switch old := t.mu.list[at]; {
		case old.Incarnation > p.Incarnation:
			return topic, nil, fmt.Errorf("store: topic %d has incarnation %d, not %d", p.Topic, old.Incarnation, p.Incarnation)
		case old.Incarnation < p.Incarnation:
			gone = append(gone, *old)
			t.removeLocked(at)
		default:
			topic = *old
			topic.Partitions = max(topic.Partitions, uint32(p.Partition)+1)
			t.replaceLocked(at, &topic)
			return topic, nil, nil
		}
	}
	topic = Topic{
		Namespace: namespace, ID: p.Topic, Incarnation: p.Incarnation, Partitions: uint32(p.Partition) + 1,
		Name: fmt.Sprintf("recovered-%d-%d", p.Topic, p.Incarnation),
	}
	return topic, gone, t.addLocked(&topic)
}

// findLocked returns where in the list a topic is, or would be.
func (t *Topics) findLocked(id TopicID) (int, bool) {
	return slices.BinarySearchFunc(t.mu.list, id, func(p *Topic, id TopicID) int {
		switch {
		case p.ID < id:
			return -1
		case p.ID > id:
			return 1
		}
		return 0
	})
}

func (t *Topics) addLocked(topic *Topic) error {
	if there, ok := t.Find(topic.Namespace, topic.Name); ok {
		return fmt.Errorf("store: topic record creates %q as %d, which is there as %d", topic.Name, topic.ID, there.ID)
	}
	at, there := t.findLocked(topic.ID)
	if there {
		return fmt.Errorf("store: topic record creates %q as %d, which is %q", topic.Name, topic.ID, t.mu.list[at].Name)
	}
	t.mu.list = slices.Insert(t.mu.list, at, topic)
	t.nameLocked(topicName{topic.Namespace, topic.Name}, topic)
	return nil
}

func (t *Topics) replaceLocked(at int, topic *Topic) {
	old := t.mu.list[at]
	t.mu.list[at] = topic
	if n := (topicName{old.Namespace, old.Name}); n != (topicName{topic.Namespace, topic.Name}) {
		t.nameLocked(n, nil)
	}
	t.nameLocked(topicName{topic.Namespace, topic.Name}, topic)
}

func (t *Topics) removeLocked(at int) {
	old := t.mu.list[at]
	t.mu.list = slices.Delete(t.mu.list, at, at+1)
	t.nameLocked(topicName{old.Namespace, old.Name}, nil)
}

// nameLocked puts topic under a name in a copy of the name's shard; nil removes it.
func (t *Topics) nameLocked(n topicName, topic *Topic) {
	p := t.shard(n)
	next := map[topicName]*Topic{}
	if old := p.Load(); old != nil {
		next = maps.Clone(*old)
	}
	if topic != nil {
		next[n] = topic
	} else {
		delete(next, n)
	}
	p.Store(&next)
}

// Snapshot appends a version, the highest incarnation, the number of topics and each as the record that creates it has it.
func (t *Topics) Snapshot(b []byte) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	b = append(b, topicsSnapshotVersion)
	b = binary.LittleEndian.AppendUint32(b, t.mu.incarnation)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(t.mu.list)))
	for _, topic := range t.mu.list {
		b = AppendTopicRecord(b, &TopicRecord{Operation: TopicCreate, Topic: *topic})
	}
	return b
}

// Restore puts the table into the state that Snapshot wrote.
func (t *Topics) Restore(b []byte) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.names {
		t.names[i].Store(nil)
	}
	t.mu.list, t.mu.incarnation, t.mu.lenient = nil, 0, false
	if len(b) == 0 {
		return nil
	}
	const head = 9
	if b[0] != topicsSnapshotVersion {
		return fmt.Errorf("store: snapshot of topics has version %d, this program reads %d", b[0], topicsSnapshotVersion)
	}
	if len(b) < head {
		return fmt.Errorf("store: snapshot of topics has %d bytes", len(b))
	}
	incarnation, n := binary.LittleEndian.Uint32(b[1:]), binary.LittleEndian.Uint32(b[5:])
	b = b[head:]
	for range n {
		r, rest, err := parseTopic(b)
		if err != nil {
			return err
		}
		if r.Operation != TopicCreate || r.Topic.Incarnation > incarnation {
			return fmt.Errorf("store: snapshot of topics has %q with operation %d, incarnation %d of %d", r.Topic.Name, r.Operation, r.Topic.Incarnation, incarnation)
		}
		if err := t.addLocked(&r.Topic); err != nil {
			return err
		}
		b = rest
	}
	if len(b) != 0 {
		return fmt.Errorf("store: snapshot of topics has %d bytes too many", len(b))
	}
	t.mu.incarnation = incarnation
	return nil
}
