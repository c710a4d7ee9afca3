package index

import (
	"encoding/binary"
	"hash/crc32"
	"slices"
)

// EntryBytes is the size of an entry in a file and in a checkpoint.
const EntryBytes = 32

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Seed is the part of every check of a partition that comes from its key.
type Seed uint32

// Seed returns the checksum that the checks of k's entries start from.
func (k Key) Seed() Seed {
	var b [14]byte
	binary.LittleEndian.PutUint64(b[0:], k.Topic)
	binary.LittleEndian.PutUint32(b[8:], k.Incarnation)
	binary.LittleEndian.PutUint16(b[12:], k.Partition)
	return Seed(crc32.Update(0, castagnoli, b[:]))
}

// AppendEntry appends the 32 bytes of e, which is entry i of the partition that s is of.
func AppendEntry(b []byte, s Seed, i Index, e *Entry) []byte {
	n := len(b)
	b = slices.Grow(b, EntryBytes)[:n+EntryBytes]
	p := b[n : n+EntryBytes : n+EntryBytes]
	binary.LittleEndian.PutUint64(p[0:], e.Position)
	binary.LittleEndian.PutUint64(p[8:], uint64(e.Stored))
	binary.LittleEndian.PutUint32(p[16:], e.Size)
	binary.LittleEndian.PutUint32(p[20:], e.TagHash)
	binary.LittleEndian.PutUint16(p[24:], e.Slot)
	binary.LittleEndian.PutUint16(p[26:], e.Count)
	binary.LittleEndian.PutUint32(p[28:], check(s, i, p))
	return b
}

// check is the CRC32C of key, index and the first 28 bytes of the entry. The index goes in through the last step's start
// value, so an entry that lies in another's place is found as well as a damaged one.
func check(s Seed, i Index, p []byte) uint32 {
	// CRC32C mixes its start value linearly, so adding the folded index to it is as good as 8 more bytes and needs no
	// scratch memory.
	x := uint64(i) * 0x9E3779B97F4A7C15
	return crc32.Update(uint32(s)^uint32(x)^uint32(x>>32), castagnoli, p[:28])
}

// DecodeEntry decodes entry i of the partition that s is of. The text is empty, or says what is wrong.
func DecodeEntry(s Seed, i Index, p []byte) (e Entry, wrong string) {
	if len(p) < EntryBytes {
		return e, "entry is cut"
	}
	e = Entry{
		Position: binary.LittleEndian.Uint64(p[0:]),
		Stored:   int64(binary.LittleEndian.Uint64(p[8:])),
		Size:     binary.LittleEndian.Uint32(p[16:]),
		TagHash:  binary.LittleEndian.Uint32(p[20:]),
		Slot:     binary.LittleEndian.Uint16(p[24:]),
		Count:    binary.LittleEndian.Uint16(p[26:]),
	}
	if got, want := binary.LittleEndian.Uint32(p[28:]), check(s, i, p); got != want {
		return e, "check of the entry is wrong"
	}
	if e.Count == 0 || e.Slot >= e.Count || uint64(e.Slot) > uint64(i) {
		return e, "slot and count of the entry cannot be"
	}
	return e, ""
}
