package journal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/journal/journaltest"
	"github.com/jmqio/jmq/server/servertest/mutate"
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
	var again, want []byte
	check := func(t testing.TB, b []byte, pos uint64) bool {
		if len(b) < recordHeaderBytes {
			return false
		}
		n, reason := recordLength(b, Position(pos), int64(len(b)))
		if reason != "" {
			return false
		}
		if n < recordHeaderBytes || align8(n) > len(b) {
			t.Fatalf("length %d of %d bytes", n, len(b))
		}
		r, reason := decodeRecord(b[:n], crcSeed(testStore))
		if reason != "" {
			return false
		}
		if r.Durable > r.Position || r.Position != Position(pos) || r.Kind == 0 {
			t.Fatalf("record %+v", r)
		}
		again = appendRecord(again[:0], &r)
		seal(again, r.Position, r.Durable, crcSeed(testStore))
		want = append(want[:0], b[:n]...)
		want[atReserved], want[atReserved+1] = 0, 0
		if !bytes.Equal(again[atKind:n], want[atKind:]) {
			t.Fatalf("encoded again:\n%x\nwant\n%x", again[atKind:n], want[atKind:])
		}
		return true
	}
	right := func(b []byte, pos uint64) { // so that the fuzzer comes past position and checksum
		if len(b) < recordHeaderBytes {
			return
		}
		binary.LittleEndian.PutUint64(b[atPosition:], pos)
		if n := int(binary.LittleEndian.Uint32(b)); n >= recordHeaderBytes && n <= len(b) {
			binary.LittleEndian.PutUint32(b[atCRC:], crc32.Update(crcSeed(testStore), crcTable, b[atKind:n]))
		}
	}
	mutate.Run(f, mutate.Decoder{Seeds: [][]byte{good, good[:39], slices.Concat(good, good)}, Seal: func(b []byte) { right(b, 800) }, Check: func(t testing.TB, b []byte) bool {
		return check(t, b, 800)
	}})
	f.Fuzz(func(t *testing.T, b []byte, pos uint64, repair bool) {
		if repair {
			right(b, pos)
		}
		check(t, b, pos)
	})
}

// twoSegments is a journal of about 30 commits, whose largest messages have so many bytes: its segments, their names, and what is in it.
func twoSegments(f *testing.F, size int) (good map[string][]byte, names []string, m messages) {
	mem := journaltest.New(nil)
	s := sender{}
	var err error
	if s.j, err = Open(testOptions(mem)); err != nil {
		f.Fatal(err)
	}
	for i := range 30 {
		if err := s.send(size, size*i/300); err != nil {
			f.Fatal(err)
		}
	}
	if m, err = readAll(s.j, 0); err != nil {
		f.Fatal(err)
	}
	disk := mem.Crash(0, nil)
	if err := s.j.Close(); err != nil {
		f.Fatal(err)
	}
	good = map[string][]byte{}
	for name, b := range journaltest.Files(disk, testDir) {
		if _, ok := parseSegmentName(name); ok {
			good[name] = b
		}
	}
	return good, sorted(good), m
}

// mutateSegments changes the records of one of two small segments: Verify finds a journal or damage, and for some Open finds the same.
func mutateSegments(f *testing.F) {
	defer func() { segmentBytesFloor = 64 << 10 }()
	segmentBytesFloor = 8 << 10
	good, names, _ := twoSegments(f, 130)
	if len(names) != 2 {
		f.Fatal(names)
	}
	disk := mutate.NewDisk()
	var seeds [][]byte // which segment, then its records
	var bases [2]Position
	for i, name := range names {
		bases[i], _ = parseSegmentName(name)
		seeds = append(seeds, append([]byte{byte(i)}, bytes.TrimRight(good[name][headerBlockBytes:], "\x00")...))
	}
	which := func(b []byte) (int, []byte) {
		if len(b) == 0 {
			return 0, nil
		}
		return int(b[0] & 1), b[1:min(len(b), 1+4<<10)]
	}
	right := func(b []byte) {
		i, b := which(b)
		for off := 0; off+recordHeaderBytes <= len(b); {
			n := int(binary.LittleEndian.Uint32(b[off:]))
			if n < recordHeaderBytes || n > len(b)-off {
				return
			}
			binary.LittleEndian.PutUint64(b[off+atPosition:], uint64(bases[i])+uint64(off))
			binary.LittleEndian.PutUint32(b[off+atCRC:], crc32.Update(crcSeed(testStore), crcTable, b[off+atKind:off+n]))
			off += align8(n)
		}
	}
	opened := 0
	mutate.Run(f, mutate.Decoder{Seeds: seeds, Seal: right, Slowness: 10, AllocMost: 1 << 20, Check: func(t testing.TB, b []byte) bool {
		i, records := which(b)
		disk.Clear()
		for n, name := range names {
			path := disk.PathJoin(testDir, name)
			disk.Put(path, good[name])
			if n == i {
				clear(disk.Bytes(path)[headerBlockBytes+copy(disk.Bytes(path)[headerBlockBytes:], records):])
			}
		}
		r, err := Verify(disk, testDir, 0, nil)
		if err != nil || r.From > r.Proven || r.Proven > r.End || r.Last > r.End {
			t.Fatalf("%+v, %v", r, err)
		}
		if opened++; opened%128 == 0 {
			openVerified(t, disk, r, func(Record) error { return nil })
		}
		return r.Damage == nil
	}})
}

// openVerified opens a journal that Verify has read, and says whether there is one. It finds what Verify found, and leaves nothing to be found again.
func openVerified(t testing.TB, disk vfs.FS, r Report, recovered func(Record) error) bool {
	o := testOptions(disk)
	o.Recovered = recovered
	j, err := Open(o)
	if err != nil {
		var corrupt *CorruptError
		if errors.Is(err, ErrTerm) { // a record that says so, with a checksum that was made right
			return false
		}
		if r.Damage == nil || !errors.As(err, &corrupt) && !errors.As(err, new(*VersionError)) && !errors.As(err, new(*ForeignError)) {
			t.Fatalf("open: %v, verify: %v", err, r.Damage)
		}
		return false
	}
	if holes := j.Holes(); len(holes) != len(r.Damaged) || len(holes) > 0 && r.Damage == nil || len(holes) > 0 && holes[0] != r.Damaged[0] {
		t.Fatalf("holes %v, verify: %v, %v", holes, r.Damaged, r.Damage)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if r, err = Verify(disk, testDir, 0, nil); err != nil || r.Damage != nil || r.TornBytes != 0 || r.TornSegments != 0 {
		t.Fatalf("after open: %+v, %v", r, err)
	}
	return true
}

// FuzzSegment puts any bytes at any place of a sound journal of two segments. Verify and Open never panic and say the
// same; what they keep of the messages is what was there, in its order, and what is missing in between is a hole. After Open, Verify
// finds no damage and nothing to cut.
func FuzzSegment(f *testing.F) {
	mutateSegments(f)
	good, names, m := twoSegments(f, 3000)
	base, _ := parseSegmentName(names[1])
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
		if !openVerified(t, disk, r, got.add) {
			return
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
	})
}
