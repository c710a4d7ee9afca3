package journal

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/jmqio/jmq/server/planted"
)

// The header of a record. FORMAT.md has the layout with an example; a golden file holds it.
const (
	recordHeaderBytes = 40

	atLength   = 0
	atCRC      = 4
	atKind     = 8
	atFlags    = 9
	atReserved = 10
	atBack     = 12
	atEpoch    = 16
	atPosition = 24
	atStored   = 32
)

// RecordBytesMax bounds one record, header included. It is the format's: a greater length is never a record.
const RecordBytesMax = 64 << 20

var (
	crcTable = crc32.MakeTable(crc32.Castagnoli)
	zeroes   [64 << 10]byte // written with WriteAt only, which leaves it alone
)

func align8(n int) int { return (n + 7) &^ 7 }

// RecordBytes is what a record with a payload of n bytes takes in the journal.
func RecordBytes(n int) int { return align8(recordHeaderBytes + n) }

// appendRecord appends a record whose back and crc are still to be filled by seal.
func appendRecord(b []byte, r *Record) []byte {
	var h [recordHeaderBytes]byte
	length := recordHeaderBytes + len(r.Payload)
	binary.LittleEndian.PutUint32(h[atLength:], uint32(length))
	h[atKind] = byte(r.Kind)
	h[atFlags] = r.Flags
	binary.LittleEndian.PutUint64(h[atEpoch:], uint64(r.Epoch))
	binary.LittleEndian.PutUint64(h[atPosition:], uint64(r.Position))
	binary.LittleEndian.PutUint64(h[atStored:], uint64(r.Stored))
	b = append(b, h[:]...)
	b = append(b, r.Payload...)
	return append(b, zeroes[:align8(length)-length]...)
}

// crcSeed is what every checksum of a store's records begins with. It makes a record of another store none of this one's; and since
// no client knows a store's id, none can send a message in whose bytes, once the disk has damaged what is around them, a record
// would be found that the broker never wrote.
func crcSeed(store [storeIDBytes]byte) uint32 { return crc32.Checksum(store[:], crcTable) }

// seal fills back and crc of the records in b, the first of which is at position pos, and returns how many they are.
// Invariant: durable <= pos, and b is less than 4 GiB.
func seal(b []byte, pos, durable Position, seed uint32) (records int) {
	for off := 0; off < len(b); {
		length := int(binary.LittleEndian.Uint32(b[off+atLength:]))
		binary.LittleEndian.PutUint32(b[off+atBack:], uint32(pos+Position(off)-durable))
		crc := crc32.Update(seed, crcTable, b[off+atKind:off+length])
		binary.LittleEndian.PutUint32(b[off+atCRC:], crc)
		off += align8(length)
		records++
	}
	return records
}

// recordLength looks at the header h of what may be a record at pos and returns its length without padding, or why it
// is no record. room is how many bytes there are up to the end of the segment.
func recordLength(h []byte, pos Position, room int64) (length int, reason string) {
	n := binary.LittleEndian.Uint32(h[atLength:])
	switch {
	case n == 0:
		return 0, "no record"
	case n < recordHeaderBytes:
		return 0, "length is less than a header"
	case n > RecordBytesMax:
		return 0, "length is more than a record may have"
	case int64(align8(int(n))) > room:
		return 0, "length goes beyond the segment"
	case Position(binary.LittleEndian.Uint64(h[atPosition:])) != pos && !planted.Bug("journal: record of a former life"):
		return 0, "holds another position"
	case Position(binary.LittleEndian.Uint32(h[atBack:])) > pos:
		return 0, "durable end is below 0"
	case h[atKind] == 0:
		return 0, "kind is 0"
	}
	return int(n), ""
}

// decodeRecord decodes the record b, which recordLength accepted; b has the record's length. Payload points into b.
func decodeRecord(b []byte, seed uint32) (r Record, reason string) {
	if crc32.Update(seed, crcTable, b[atKind:]) != binary.LittleEndian.Uint32(b[atCRC:]) && !planted.Bug("journal: checksum ignored") {
		return Record{}, "checksum is wrong"
	}
	return fields(b), ""
}

// fields decodes the record b, whatever its checksum is.
func fields(b []byte) Record {
	pos := Position(binary.LittleEndian.Uint64(b[atPosition:]))
	return Record{
		Kind:     Kind(b[atKind]),
		Flags:    b[atFlags],
		Epoch:    Epoch(binary.LittleEndian.Uint64(b[atEpoch:])),
		Position: pos,
		Durable:  pos - Position(binary.LittleEndian.Uint32(b[atBack:])),
		Stored:   int64(binary.LittleEndian.Uint64(b[atStored:])),
		Payload:  b[recordHeaderBytes:],
	}
}

// End is the position after the record, where the next one is.
func (r Record) End() Position { return r.Position + Position(RecordBytes(len(r.Payload))) }
