package client

import (
	"fmt"
	"strconv"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/jmqio/jmq/wire"
	"github.com/oklog/ulid/v2"
)

// Header is one of a message's headers. Keys beginning with "jmq." are the SDK's own.
type Header = wire.Header

// Headers keep their order; a key is there once.
type Headers = wire.Headers

// Message is what a producer sends and a consumer gets. Send does not change it, and does not keep Body after it returned.
type Message struct {
	Topic     string  // set on delivery; a producer's messages go to its topic whatever stands here
	ID        string  // a ULID; empty: Send makes one. Only to repeat a send of unknown outcome
	Key       string  // business id: for finding the message
	OrderKey  string  // messages with the same one stay in order
	Tag       string  // what consumers may filter by
	Headers   Headers //
	Body      []byte  // at most 4 MiB
	Flag      uint16  // yours
	Priority  uint8   // 0..9
	Partition *uint16 // where to; nil: by OrderKey, else in turn
	// BrokerGroup says, with Partition, of which broker group; empty: the first that has it. It is set on delivery.
	BrokerGroup string
}

// Receipt says where a message is stored. With an error of Send it still has MessageID and Topic.
type Receipt struct {
	MessageID   string
	Topic       string
	BrokerGroup string
	Partition   uint16
	Index       uint64
	StoredAt    time.Time // at the broker
	Attempts    int       // how often it was sent
	// Unknown counts the attempts that may have left another copy: their outcome stayed unknown, or two were stored before Send
	// knew of either. -1: Send returned while its batch was under way, because its context or its time had ended.
	Unknown int
}

// KeyPartition returns the partition of an order key: xxhash64 of its bytes, modulo the number of partitions. It is part of
// the protocol: every SDK and version computes the same. With several broker groups it is the place in the list of all partitions
// that take messages, by broker group and number.
func KeyPartition(orderKey string, partitions int) uint16 {
	return uint16(keyPlace(orderKey, partitions))
}

func keyPlace(orderKey string, places int) int {
	return int(xxhash.Sum64String(orderKey) % uint64(places))
}

// encode fills w for m.
func (m *Message) encode(w *wire.Message, id ulid.ULID, born int64) {
	*w = wire.Message{ID: id, Key: m.Key, OrderKey: m.OrderKey, Tag: m.Tag, Headers: m.Headers, Body: m.Body, Flag: m.Flag, Priority: m.Priority, BornNs: born}
}

// size is about what m takes in a batch.
func (m *Message) size() int {
	n := 64 + len(m.Body) + len(m.Key) + len(m.OrderKey) + len(m.Tag)
	for i := range m.Headers {
		n += 4 + len(m.Headers[i].Key) + len(m.Headers[i].Value)
	}
	return n
}

// Location is where the message is stored: broker group, partition and index, as "bg1/3/4711".
func (r *Receipt) Location() string {
	return fmt.Sprintf("%s/%d", location(r.BrokerGroup, r.Partition), r.Index)
}

func location(brokerGroup string, partition uint16) string {
	if brokerGroup == "" {
		return strconv.Itoa(int(partition))
	}
	return brokerGroup + "/" + strconv.Itoa(int(partition))
}
