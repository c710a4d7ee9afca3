package local

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/wire"
)

// A carried-forward record's payload (journal.KindCarriedForward), little-endian: what was written before, in a segment that
// goes. A reader may take it for the first writing: its position, epoch and stored time are kept here, however often it is
// carried.
//
//	 0  version   u8   1
//	 1  kind      u8   of the record that is carried: messages or lost
//	 2  reserved  u16  0
//	 4  reserved  u32  0
//	 8  position  u64  of its first writing
//	16  epoch     u64
//	24  stored    i64  unix nanoseconds
//	32  payload: of messages the batch; of lost ones topic u64, incarnation u32, partition u16, 0 u16, indexes from u64, to u64
const (
	carriedVersion     = 1
	carriedHeaderBytes = 32
	lostPayloadBytes   = 32
)

var errCarried = errors.New("not a carried-forward record")

// carried is a carried-forward record's content.
type carried struct {
	Kind     journal.Kind
	Position journal.Position
	Epoch    journal.Epoch
	Stored   int64
	Payload  []byte
}

// appendCarried appends the payload of the record that carries rec, which may itself be one.
func appendCarried(b []byte, rec *journal.Record) ([]byte, error) {
	if rec.Kind == journal.KindCarriedForward {
		if _, err := parseCarried(rec.Payload); err != nil {
			return b, err
		}
		return append(b, rec.Payload...), nil
	}
	b = append(b, carriedVersion, byte(rec.Kind), 0, 0, 0, 0, 0, 0)
	b = binary.LittleEndian.AppendUint64(b, uint64(rec.Position))
	b = binary.LittleEndian.AppendUint64(b, uint64(rec.Epoch))
	b = binary.LittleEndian.AppendUint64(b, uint64(rec.Stored))
	return append(b, rec.Payload...), nil
}

// appendCarriedLost appends the payload of a record that says that messages are lost, in place of the hole that said so.
func appendCarriedLost(b []byte, p store.Partition, from, to index.Index, at journal.Position, stored int64) []byte {
	b, _ = appendCarried(b, &journal.Record{Kind: journal.KindLost, Position: at, Stored: stored}) // it is no carried one
	b = binary.LittleEndian.AppendUint64(b, uint64(p.Topic))
	b = binary.LittleEndian.AppendUint32(b, p.Incarnation)
	b = binary.LittleEndian.AppendUint16(b, p.Partition)
	b = append(b, 0, 0)
	b = binary.LittleEndian.AppendUint64(b, uint64(from))
	return binary.LittleEndian.AppendUint64(b, uint64(to))
}

func parseCarried(b []byte) (carried, error) {
	switch {
	case len(b) < carriedHeaderBytes:
		return carried{}, fmt.Errorf("%w: %d bytes", errCarried, len(b))
	case b[0] != carriedVersion:
		return carried{}, fmt.Errorf("%w: version %d, this program reads %d", errCarried, b[0], carriedVersion)
	case journal.Kind(b[1]) != journal.KindMessages && journal.Kind(b[1]) != journal.KindLost:
		return carried{}, fmt.Errorf("%w: it carries kind %d", errCarried, b[1])
	case b[2] != 0 || b[3] != 0 || binary.LittleEndian.Uint32(b[4:]) != 0:
		return carried{}, fmt.Errorf("%w: reserved bytes are used", errCarried)
	}
	return carried{
		Kind:     journal.Kind(b[1]),
		Position: journal.Position(binary.LittleEndian.Uint64(b[8:])),
		Epoch:    journal.Epoch(binary.LittleEndian.Uint64(b[16:])),
		Stored:   int64(binary.LittleEndian.Uint64(b[24:])),
		Payload:  b[carriedHeaderBytes:],
	}, nil
}

// Carried returns the record that a carried-forward record's payload carries, as it was written first. Its payload is part of it.
// It is for tools that look into a journal.
func Carried(payload []byte) (journal.Record, error) {
	c, err := parseCarried(payload)
	return journal.Record{Kind: c.Kind, Position: c.Position, Epoch: c.Epoch, Stored: c.Stored, Payload: c.Payload}, err
}

// lost decodes what a carried record says of lost messages.
func (c *carried) lost() (p store.Partition, from, to index.Index, err error) {
	b := c.Payload
	if len(b) != lostPayloadBytes || b[14] != 0 || b[15] != 0 {
		return p, 0, 0, fmt.Errorf("%w: lost messages in %d bytes", errCarried, len(b))
	}
	p.Topic = store.TopicID(binary.LittleEndian.Uint64(b))
	p.Incarnation = binary.LittleEndian.Uint32(b[8:])
	p.Partition = binary.LittleEndian.Uint16(b[12:])
	from, to = index.Index(binary.LittleEndian.Uint64(b[16:])), index.Index(binary.LittleEndian.Uint64(b[24:]))
	if from >= to {
		return p, 0, 0, fmt.Errorf("%w: lost messages [%d, %d)", errCarried, from, to)
	}
	return p, from, to, nil
}

// lostError: a carried-forward record says that messages are lost.
type lostError struct {
	partition store.Partition
	from, to  index.Index
}

func (e *lostError) Error() string { return fmt.Sprintf("messages [%d, %d) are lost", e.from, e.to) }

// recordBatch returns the batch that a record holds, carried or not; a *lostError where one was carried that is lost.
func recordBatch(rec *journal.Record) (wire.Batch, error) {
	payload := rec.Payload
	switch rec.Kind {
	case journal.KindMessages:
	case journal.KindCarriedForward:
		c, err := parseCarried(payload)
		if err != nil {
			return nil, err
		}
		if c.Kind == journal.KindLost {
			p, from, to, err := c.lost()
			if err == nil {
				err = &lostError{p, from, to}
			}
			return nil, err
		}
		payload = c.Payload
	default:
		return nil, fmt.Errorf("%w: a record of kind %d", store.ErrBatch, rec.Kind)
	}
	return wire.ParseBatch(payload)
}
