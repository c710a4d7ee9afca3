package journal

import (
	"encoding/binary"
	"hash/crc32"
	"io"
)

// Sum is a checksum over some records one after the other: over what is the same in every copy of them, which is all but how far the store
// had synced that wrote it, and the record's checksum.
type Sum struct {
	End Position // after the last of them
	Sum uint64   // crc32c in the upper half, their number in the lower
}

// Sums returns a checksum for the records that begin in each so many bytes of [from, to), as far as they are committed; a range in which none
// begins has none. from must be where a record begins. With other errors than those of Reader.Next, those of the ranges before are returned.
func (j *Journal) Sums(from, to Position, every int64) ([]Sum, error) {
	var sums []Sum
	r := j.NewReader(from)
	defer r.Close()
	part := int64(-1)
	for r.Position() < to {
		rec, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return sums, err
		}
		if n := int64(rec.Position-from) / every; n != part {
			part = n
			sums = append(sums, Sum{})
		}
		s := &sums[len(sums)-1]
		s.End = rec.End()
		s.Sum = uint64(sameCRC(uint32(s.Sum>>32), &rec))<<32 | uint64(uint32(s.Sum)+1)
	}
	return sums, nil
}

// sameCRC goes on with crc over what is the same of r in every copy.
func sameCRC(crc uint32, r *Record) uint32 {
	var h [recordHeaderBytes]byte
	le := binary.LittleEndian
	le.PutUint32(h[atLength:], uint32(recordHeaderBytes+len(r.Payload)))
	h[atKind], h[atFlags] = byte(r.Kind), r.Flags
	le.PutUint64(h[atEpoch:], uint64(r.Epoch))
	le.PutUint64(h[atPosition:], uint64(r.Position))
	le.PutUint64(h[atStored:], uint64(r.Stored))
	return crc32.Update(crc32.Update(crc, crcTable, h[:]), crcTable, r.Payload)
}
