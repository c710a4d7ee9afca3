package journal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"testing"

	"github.com/jmqio/jmq/server/journal/journaltest"
)

// FuzzRecord decodes any bytes as a record: it never panics, and what it accepts is encoded to the same bytes again.
func FuzzRecord(f *testing.F) {
	good := appendRecord(nil, &Record{Kind: KindMessages, Flags: 3, Epoch: MakeEpoch(1, 2), Position: 800, Stored: 5, Payload: []byte("an order")})
	seal(good, 800, 400, crcSeed(testStore))
	f.Add(good, uint64(800), true)
	f.Add(good[:39], uint64(800), false)
	f.Add(good, uint64(801), true)
	for _, length := range []uint32{0, 39, 41, 1 << 31, ^uint32(0)} {
		b := bytes.Clone(good)
		binary.LittleEndian.PutUint32(b, length)
		f.Add(b, uint64(800), true)
	}
	f.Fuzz(func(t *testing.T, b []byte, pos uint64, repair bool) {
		if len(b) < recordHeaderBytes {
			return
		}
		if repair { // so that the fuzzer comes past position and checksum
			binary.LittleEndian.PutUint64(b[atPosition:], pos)
			if n := int(binary.LittleEndian.Uint32(b)); n >= recordHeaderBytes && n <= len(b) {
				binary.LittleEndian.PutUint32(b[atCRC:], crc32.Update(crcSeed(testStore), crcTable, b[atKind:n]))
			}
		}
		n, reason := recordLength(b, Position(pos), int64(len(b)))
		if reason != "" {
			return
		}
		if n < recordHeaderBytes || align8(n) > len(b) {
			t.Fatalf("length %d of %d bytes", n, len(b))
		}
		r, reason := decodeRecord(b[:n], crcSeed(testStore))
		if reason != "" {
			return
		}
		if r.Durable > r.Position || r.Position != Position(pos) || r.Kind == 0 {
			t.Fatalf("record %+v", r)
		}
		again := appendRecord(nil, &r)
		seal(again, r.Position, r.Durable, crcSeed(testStore))
		want := bytes.Clone(b[:n])
		want[atReserved], want[atReserved+1] = 0, 0
		again, want = again[atKind:n], want[atKind:]
		if !bytes.Equal(again, want) {
			t.Fatalf("encoded again:\n%x\nwant\n%x", again, want)
		}
	})
}

// FuzzSegment puts any bytes at any place of a sound journal of two segments. Verify and Open never panic and say the
// same; what they keep of the messages is what was there, in its order, and what is missing in between is a hole. After Open, Verify
// finds no damage and nothing to cut.
func FuzzSegment(f *testing.F) {
	mem := journaltest.New(nil)
	s := sender{}
	var err error
	if s.j, err = Open(testOptions(mem)); err != nil {
		f.Fatal(err)
	}
	for i := range 30 {
		if err := s.send(3000, 10*i); err != nil {
			f.Fatal(err)
		}
	}
	m, err := readAll(s.j, 0)
	if err != nil {
		f.Fatal(err)
	}
	base := (*s.j.list.Load())[1].base
	disk := mem.Crash(0, nil)
	if err := s.j.Close(); err != nil {
		f.Fatal(err)
	}
	good := map[string][]byte{}
	for name, b := range journaltest.Files(disk, testDir) {
		if _, ok := parseSegmentName(name); ok {
			good[name] = b
		}
	}
	names := sorted(good)
	tail := headerBlockBytes + int(m.records[len(m.records)-1].Position-base)
	record := bytes.Clone(good[names[1]][headerBlockBytes : headerBlockBytes+3040])
	f.Add(uint16(0), false, []byte{0})
	f.Add(uint16(tail), true, []byte("torn"))
	f.Add(uint16(tail+40), true, make([]byte, 300))
	f.Add(uint16(headerBlockBytes), true, record)
	f.Add(uint16(headerBlockBytes), false, record)
	f.Add(uint16(8), true, []byte{2, 0, 0, 0})
	f.Fuzz(func(t *testing.T, off uint16, second bool, b []byte) {
		name := names[0]
		if second {
			name = names[1]
		}
		files := map[string][]byte{names[0]: good[names[0]], names[1]: good[names[1]]}
		c := bytes.Clone(good[name])
		copy(c[off:], b)
		files[name] = c
		disk := journaltest.Disk(testDir, files)
		r, err := Verify(disk, testDir, 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		got := messages{gaps: true}
		o := testOptions(disk)
		o.Recovered = got.add
		j, err := Open(o)
		if err != nil {
			var corrupt *CorruptError
			if r.Damage == nil || !errors.As(err, &corrupt) && !errors.As(err, new(*VersionError)) && !errors.As(err, new(*ForeignError)) {
				t.Fatalf("open: %v, verify: %v", err, r.Damage)
			}
			return
		}
		if holes := j.Holes(); len(holes) != len(r.Damaged) || len(holes) > 0 && r.Damage == nil || len(holes) > 0 && holes[0] != r.Damaged[0] {
			t.Fatalf("holes %v, verify: %v, %v", holes, r.Damaged, r.Damage)
		}
		was := map[Position]Record{}
		for _, r := range m.records {
			was[r.Position] = r
		}
		for _, r := range got.records {
			if w := was[r.Position]; r.Kind != KindLost && (w.Kind != r.Kind || len(w.Payload) != len(r.Payload)) {
				t.Fatalf("record of kind %v at %d, was %v", r.Kind, r.Position, w.Kind)
			}
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		if r, err = Verify(disk, testDir, 0, nil); err != nil || r.Damage != nil || r.TornBytes != 0 || r.TornSegments != 0 {
			t.Fatalf("after open: %+v, %v", r, err)
		}
	})
}
