package wire

import (
	"encoding/binary"
	"hash/crc32"
	"slices"
	"strconv"
)

// A batch is what a producer sends, a journal record holds and a consumer gets: the same bytes all the way, encoded
// once by the SDK. Little-endian; the broker writes the broker's fields and nothing else, so the SDK's checksum guards
// bodies from end to end.
//
//	 0  length       u32   the whole batch
//	 4  version      u8    2
//	 5  reserved     u8    0
//	    -- the broker's, 0 when sent --
//	 6  partition    u16
//	 8  namespace    u32
//	12  incarnation  u32   of the topic
//	16  topic        u64   topic id
//	24  firstIndex   u64   index of the first message in the partition
//	32  stored       i64   unix nanoseconds at the broker
//	    -- the SDK's, never changed after --
//	40  crc          u32   CRC32C of [44, length)
//	44  compression  u8    of the messages: 0 none, 1 zstd, 2 lz4, 3 snappy
//	45  flags        u8    0
//	46  count        u16   messages, 1..1000
//	48  producer     [16]  producer id
//	64  sequence     u64   of the first message, counted per producer and partition
//	72  rawSize      u32   size of the messages before compression
//	76  messages, possibly compressed
//
// A message:
//
//	 0  length       u32   of the whole message
//	 4  id           [16]  ULID
//	20  born         i64   unix nanoseconds at the producer
//	28  flag         u16   the user's
//	30  priority     u8    0..9
//	31  attributes   u8    which of the following it has
//	32  then, where there is one (bit of attributes): hash of the filter tag u32 (1); hash of the order key u64 (2); with a uvarint
//	    length before each, business id (4), order key (2), trace context (8); a uvarint count of light queues (16; not in use
//	    yet), each topic id uvarint, name; a uvarint count of headers (32), each key, value; then the body, to the end
//
// FORMAT.md has a worked example, held by a golden test.
const (
	BatchVersion     = 2
	BatchHeaderBytes = 76

	atBatchCRC    = 40
	atBatchSummed = 44 // the checksum is of all from here on
)

// Compression of a batch's messages.
type Compression uint8

const (
	CompressionNone   Compression = 0
	CompressionZstd   Compression = 1
	CompressionLZ4    Compression = 2 // one block
	CompressionSnappy Compression = 3 // one block
)

func (c Compression) String() string {
	switch c {
	case CompressionNone:
		return "none"
	case CompressionZstd:
		return "zstd"
	case CompressionLZ4:
		return "lz4"
	case CompressionSnappy:
		return "snappy"
	}
	return "compression-" + strconv.Itoa(int(c))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Batch is an encoded batch as ParseBatch judged it.
type Batch []byte

// ParseBatch judges the header of the one batch that b is, without a copy: length, version, counts, and that the SDK's
// reserved bytes are 0. The checksum is Verify's, the messages are MessageInfos' and MessageIterator's to judge.
// Errors are *CodeError: CodeMalformed, CodeTooLarge, CodeUnsupportedVersion, CodeInvalid.
func ParseBatch(b []byte) (Batch, error) {
	batch, rest, err := SplitBatch(b)
	if err == nil && len(rest) != 0 {
		return nil, Errorf(CodeMalformed, "%d bytes after the batch", len(rest))
	}
	return batch, err
}

// SplitBatch is ParseBatch for the first of several batches written one after the other; rest begins with the next.
func SplitBatch(b []byte) (batch Batch, rest []byte, err error) {
	if len(b) < BatchHeaderBytes {
		return nil, nil, Errorf(CodeMalformed, "batch of %d bytes, its header alone has %d", len(b), BatchHeaderBytes)
	}
	length := binary.LittleEndian.Uint32(b)
	if length > BatchBytesMax {
		return nil, nil, Errorf(CodeTooLarge, "batch of %d bytes, at most %d are allowed", length, BatchBytesMax)
	}
	if length < BatchHeaderBytes || uint64(length) > uint64(len(b)) {
		return nil, nil, Errorf(CodeMalformed, "batch length %d, %d bytes are there", length, len(b))
	}
	batch = Batch(b[:length:length])
	if batch[4] != BatchVersion {
		return nil, nil, Errorf(CodeUnsupportedVersion, "batch version %d, %d is known", batch[4], BatchVersion)
	}
	if batch[5]|batch[45] != 0 {
		return nil, nil, Errorf(CodeInvalid, "batch has reserved bytes that are not 0")
	}
	count, raw := batch.Count(), batch.RawSize()
	if count < 1 || count > BatchMessagesMax {
		return nil, nil, Errorf(CodeInvalid, "batch of %d messages, 1 to %d are allowed", count, BatchMessagesMax)
	}
	if raw > BatchBytesMax-BatchHeaderBytes {
		return nil, nil, Errorf(CodeTooLarge, "batch of %d bytes before compression, at most %d are allowed", raw+BatchHeaderBytes, BatchBytesMax)
	}
	if raw < count*messageBytesMin {
		return nil, nil, Errorf(CodeMalformed, "batch of %d messages in %d bytes", count, raw)
	}
	switch c := batch.Compression(); c {
	case CompressionNone:
		if raw != len(batch)-BatchHeaderBytes {
			return nil, nil, Errorf(CodeMalformed, "batch says %d bytes of messages, and has %d", raw, len(batch)-BatchHeaderBytes)
		}
	case CompressionZstd, CompressionLZ4, CompressionSnappy:
	default:
		return nil, nil, Errorf(CodeInvalid, "batch has unknown compression %d", uint8(c))
	}
	return batch, b[length:], nil
}

func (b Batch) u32(at int) uint32 { return binary.LittleEndian.Uint32(b[at:]) }
func (b Batch) u64(at int) uint64 { return binary.LittleEndian.Uint64(b[at:]) }

func (b Batch) Namespace() uint32        { return b.u32(8) }
func (b Batch) Partition() uint16        { return binary.LittleEndian.Uint16(b[6:]) }
func (b Batch) Topic() uint64            { return b.u64(16) }
func (b Batch) Incarnation() uint32      { return b.u32(12) }
func (b Batch) FirstIndex() uint64       { return b.u64(24) }
func (b Batch) StoredNs() int64          { return int64(b.u64(32)) }
func (b Batch) Compression() Compression { return Compression(b[44]) }
func (b Batch) Count() int               { return int(binary.LittleEndian.Uint16(b[46:])) }
func (b Batch) Producer() [16]byte       { return [16]byte(b[48:64]) }
func (b Batch) Sequence() uint64         { return b.u64(64) }

// RawSize is the size of the messages before compression.
func (b Batch) RawSize() int { return int(b.u32(72)) }

// Verify compares the checksum; a *CodeError with CodeCorrupt when it is wrong.
func (b Batch) Verify() error {
	if want, got := b.u32(atBatchCRC), crc32.Checksum(b[atBatchSummed:], castagnoli); got != want {
		return Errorf(CodeCorrupt, "checksum of the batch is %08x, its bytes have %08x", want, got)
	}
	return nil
}

// BrokerFields is what the broker writes into a batch.
type BrokerFields struct {
	Namespace   uint32
	Partition   uint16
	Topic       uint64
	Incarnation uint32
	FirstIndex  uint64
	StoredNs    int64
}

// SetBroker writes the broker's part, whatever the producer had there.
func (b Batch) SetBroker(f BrokerFields) {
	le := binary.LittleEndian
	le.PutUint16(b[6:], f.Partition)
	le.PutUint32(b[8:], f.Namespace)
	le.PutUint32(b[12:], f.Incarnation)
	le.PutUint64(b[16:], f.Topic)
	le.PutUint64(b[24:], f.FirstIndex)
	le.PutUint64(b[32:], uint64(f.StoredNs))
}

// MessageInfo is what the index keeps of a message.
type MessageInfo struct {
	Size    uint32
	TagHash uint32
}

// MessageInfos appends one row a message to dst, and judges the messages on the way, so that no batch is stored that no
// consumer could read. A compressed batch is not opened: each of its messages is given an equal share of the size before
// compression, and tag hash 0, which a filter must read as "may match".
func (b Batch) MessageInfos(dst []MessageInfo) ([]MessageInfo, error) {
	if b.Compression() != CompressionNone {
		share := MessageInfo{Size: uint32(b.RawSize() / b.Count())}
		for range b.Count() {
			dst = append(dst, share)
		}
		return dst, nil
	}
	it := MessageIterator{rest: b[BatchHeaderBytes:], count: b.Count()}
	for it.Next() {
		if err := it.checkUse(); err != nil {
			return dst, err
		}
		dst = append(dst, MessageInfo{uint32(it.View.Size()), it.View.TagHash()})
	}
	return dst, it.err
}

// CheckMessages judges raw, the messages of b as Codec.Messages gave them, as MessageInfos judges those of a batch without
// compression.
func (b Batch) CheckMessages(raw []byte) error {
	it := IterateMessages(b, raw)
	for it.Next() {
		if err := it.checkUse(); err != nil {
			return err
		}
	}
	return it.err
}

// checkUse refuses what a producer may not use yet, though readers skip it.
func (it *MessageIterator) checkUse() error {
	if it.View.hasUnknownUse() {
		return Errorf(CodeInvalid, "message %d: light queues and further attributes are not in use yet", it.Slot())
	}
	return nil
}

// MessageIterator walks over the messages of a batch in place:
//
//	raw, err := codec.Messages(batch, buf)
//	it := IterateMessages(batch, raw)
//	for it.Next() {
//		use(it.View)
//	}
//	err = it.Err()
type MessageIterator struct {
	View  MessageView // after Next returned true
	rest  []byte
	slot  int // messages read
	count int
	err   error
}

// IterateMessages returns an iterator over raw, the messages of b as Codec.Messages gave them.
func IterateMessages(b Batch, raw []byte) MessageIterator {
	return MessageIterator{rest: raw, count: b.Count()}
}

// Next reads the next message into View; false at the end or at the first one that is malformed.
func (it *MessageIterator) Next() bool {
	if it.err != nil {
		return false
	}
	if it.slot == it.count {
		if len(it.rest) != 0 {
			it.err = Errorf(CodeMalformed, "%d bytes after the last message of the batch", len(it.rest))
		}
		return false
	}
	it.rest, it.err = it.View.parse(it.rest, it.slot)
	if it.err != nil {
		return false
	}
	it.slot++
	return true
}

// Slot is the place of View in the batch, from 0.
func (it *MessageIterator) Slot() int { return it.slot - 1 }

// Err is nil when Next returned false at the end, else a *CodeError.
func (it *MessageIterator) Err() error { return it.err }

// AppendBatch encodes msgs without compression and appends them to dst. sequence is that of the first message. Errors are
// *CodeError, CodeInvalid or CodeTooLarge, and dst is as it was.
func AppendBatch(dst []byte, producer [16]byte, sequence uint64, msgs []Message) ([]byte, error) {
	begin := len(dst)
	b, err := appendMessages(appendBatchHeader(dst, producer, sequence, len(msgs)), msgs)
	if err != nil {
		return dst, err
	}
	sealBatch(b[begin:], CompressionNone, len(b)-begin-BatchHeaderBytes)
	return b, nil
}

func appendBatchHeader(dst []byte, producer [16]byte, sequence uint64, count int) []byte {
	var h [BatchHeaderBytes]byte
	le := binary.LittleEndian
	h[4] = BatchVersion
	le.PutUint16(h[46:], uint16(count))
	copy(h[48:], producer[:])
	le.PutUint64(h[64:], sequence)
	return append(dst, h[:]...)
}

// sealBatch writes what is known last.
func sealBatch(b []byte, c Compression, rawSize int) {
	le := binary.LittleEndian
	le.PutUint32(b, uint32(len(b)))
	b[44] = byte(c)
	le.PutUint32(b[72:], uint32(rawSize))
	le.PutUint32(b[atBatchCRC:], crc32.Checksum(b[atBatchSummed:], castagnoli))
}

// appendMessages judges and encodes msgs; the limits bound the messages before compression.
func appendMessages(b []byte, msgs []Message) ([]byte, error) {
	if len(msgs) == 0 || len(msgs) > BatchMessagesMax {
		return nil, Errorf(CodeInvalid, "batch of %d messages, 1 to %d are allowed", len(msgs), BatchMessagesMax)
	}
	total := BatchHeaderBytes
	for i := range msgs {
		size, err := msgs[i].check(i)
		if err != nil {
			return nil, err
		}
		if total += size; total > BatchBytesMax {
			return nil, Errorf(CodeTooLarge, "batch is over %d bytes at message %d of %d", BatchBytesMax, i, len(msgs))
		}
		b = msgs[i].append(slices.Grow(b, size), size)
	}
	return b, nil
}
