package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/jmqio/jmq/server/journal"
)

// A topic record's payload (journal.KindTopic), little-endian:
//
//	 0  version      u8    1
//	 1  operation    u8    1 create; 2 alter and 3 delete are kept free
//	 2  reserved     u16   0
//	 4  namespace    u32
//	 8  topic        u64
//	16  incarnation  u32
//	20  partitions   u32
//	24  created      i64   unix nanoseconds
//	32  nameLength   u8
//	33  name
const (
	topicVersion    = 1
	topicCreate     = 1
	topicFixedBytes = 33

	topicsSnapshotVersion = 1
	topicShards           = 256

	// TopicNameBytesMax and PartitionsMax bound what a topic can be.
	TopicNameBytesMax = 255
	PartitionsMax     = 1 << 16
)

// errTopicRecord: a payload is not a topic record, or one of a newer version.
var errTopicRecord = errors.New("store: not a topic record")

// Check says whether a topic can be.
func (t *Topic) Check() error {
	switch {
	case len(t.Name) == 0 || len(t.Name) > TopicNameBytesMax:
		return fmt.Errorf("%w: name of %d bytes, 1 to %d are allowed", ErrTopic, len(t.Name), TopicNameBytesMax)
	case t.Partitions == 0 || t.Partitions > PartitionsMax:
		return fmt.Errorf("%w: %d partitions, 1 to %d are allowed", ErrTopic, t.Partitions, PartitionsMax)
	}
	return nil
}

// AppendTopicCreate appends the payload of a record that creates t.
func AppendTopicCreate(b []byte, t *Topic) []byte {
	b = append(b, topicVersion, topicCreate, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, t.Namespace)
	b = binary.LittleEndian.AppendUint64(b, uint64(t.ID))
	b = binary.LittleEndian.AppendUint32(b, t.Incarnation)
	b = binary.LittleEndian.AppendUint32(b, t.Partitions)
	b = binary.LittleEndian.AppendUint64(b, uint64(t.Created))
	b = append(b, byte(len(t.Name)))
	return append(b, t.Name...)
}

// ParseTopicRecord decodes a topic record's payload: the topic that it creates.
func ParseTopicRecord(b []byte) (Topic, error) {
	t, rest, err := parseTopic(b)
	if err == nil && len(rest) != 0 {
		err = fmt.Errorf("%w: %d bytes too many", errTopicRecord, len(rest))
	}
	return t, err
}

func parseTopic(b []byte) (t Topic, rest []byte, err error) {
	switch {
	case len(b) < topicFixedBytes:
		return t, nil, fmt.Errorf("%w: %d bytes", errTopicRecord, len(b))
	case b[0] != topicVersion:
		return t, nil, fmt.Errorf("%w: version %d, this program reads %d", errTopicRecord, b[0], topicVersion)
	case b[1] != topicCreate:
		return t, nil, fmt.Errorf("%w: operation %d is not known", errTopicRecord, b[1])
	case b[2] != 0 || b[3] != 0:
		return t, nil, fmt.Errorf("%w: reserved bytes are used", errTopicRecord)
	}
	n := topicFixedBytes + int(b[32])
	if len(b) < n {
		return t, nil, fmt.Errorf("%w: name is cut", errTopicRecord)
	}
	t = Topic{
		Namespace:   binary.LittleEndian.Uint32(b[4:]),
		ID:          TopicID(binary.LittleEndian.Uint64(b[8:])),
		Incarnation: binary.LittleEndian.Uint32(b[16:]),
		Partitions:  binary.LittleEndian.Uint32(b[20:]),
		Created:     int64(binary.LittleEndian.Uint64(b[24:])),
		Name:        string(b[topicFixedBytes:n]),
	}
	if t.ID == 0 || t.Incarnation == 0 {
		return t, nil, fmt.Errorf("%w: topic %d, incarnation %d", errTopicRecord, t.ID, t.Incarnation)
	}
	if err := t.Check(); err != nil {
		return t, nil, fmt.Errorf("%w: %w", errTopicRecord, err)
	}
	return t, b[n:], nil
}

// Topics is the table of topics. Lookups take no lock: names are spread over shards, each an immutable map behind an atomic
// pointer, so that a creation copies a part and not all; ids are an immutable list.
type Topics struct {
	seed  maphash.Seed
	names [topicShards]atomic.Pointer[map[topicName]*Topic]

	// mu is held by Apply and Restore, which come one at a time, and by List.
	mu struct {
		sync.Mutex
		list []*Topic // by id
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

// IDMax returns the highest id there is, 0 without topics.
func (t *Topics) IDMax() TopicID {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.mu.list); n > 0 {
		return t.mu.list[n-1].ID
	}
	return 0
}

// Name is the table's in checkpoints.
func (t *Topics) Name() string { return "topics" }

// Apply adds the topic that a topic record creates.
func (t *Topics) Apply(r journal.Record) error {
	if r.Kind != journal.KindTopic {
		return nil
	}
	topic, err := ParseTopicRecord(r.Payload)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.addLocked(&topic)
}

func (t *Topics) addLocked(topic *Topic) error {
	n := topicName{topic.Namespace, topic.Name}
	if there, ok := t.Find(n.namespace, n.name); ok {
		return fmt.Errorf("store: topic record creates %q as %d, which is there as %d", topic.Name, topic.ID, there.ID)
	}
	at, there := slices.BinarySearchFunc(t.mu.list, topic.ID, func(p *Topic, id TopicID) int {
		switch {
		case p.ID < id:
			return -1
		case p.ID > id:
			return 1
		}
		return 0
	})
	if there {
		return fmt.Errorf("store: topic record creates %q as %d, which is %q", topic.Name, topic.ID, t.mu.list[at].Name)
	}
	t.mu.list = slices.Insert(t.mu.list, at, topic)

	p := t.shard(n)
	next := map[topicName]*Topic{n: topic}
	if old := p.Load(); old != nil {
		for k, v := range *old {
			next[k] = v
		}
	}
	p.Store(&next)
	return nil
}

// Snapshot appends a version, the number of topics and each as its record has it.
func (t *Topics) Snapshot(b []byte) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	b = append(b, topicsSnapshotVersion)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(t.mu.list)))
	for _, topic := range t.mu.list {
		b = AppendTopicCreate(b, topic)
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
	t.mu.list = nil
	if len(b) == 0 {
		return nil
	}
	if len(b) < 5 {
		return fmt.Errorf("store: snapshot of topics has %d bytes", len(b))
	}
	if b[0] != topicsSnapshotVersion {
		return fmt.Errorf("store: snapshot of topics has version %d, this program reads %d", b[0], topicsSnapshotVersion)
	}
	n := binary.LittleEndian.Uint32(b[1:])
	b = b[5:]
	for range n {
		topic, rest, err := parseTopic(b)
		if err != nil {
			return err
		}
		if err := t.addLocked(&topic); err != nil {
			return err
		}
		b = rest
	}
	if len(b) != 0 {
		return fmt.Errorf("store: snapshot of topics has %d bytes too many", len(b))
	}
	return nil
}
