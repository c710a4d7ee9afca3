package journal

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/jmqio/jmq/server/journal/journaltest"
)

// TestBadFiles opens folders with files that are not as they should be. Each is refused with an error that names the file,
// and nothing in the folder is changed; or it is harmless, and nothing is lost; or what is lost is a hole, and all else is read.
func TestBadFiles(t *testing.T) {
	disk := journaltest.New(nil)
	var s sender
	synctest.Test(t, func(t *testing.T) {
		s.j = mustOpen(t, testOptions(disk))
		for range 50 {
			s.mustSend(t, 4000)
		}
		synctest.Wait() // the spare is there
		mustClose(t, s.j)
	})
	good := journaltest.Files(disk, testDir)
	var names []string
	spare := ""
	for _, name := range sorted(good) {
		if strings.HasPrefix(name, sparePrefix) {
			spare = name
		} else if name != reserveName && name != epochsName {
			names = append(names, name)
		}
	}
	if len(names) < 4 || spare == "" {
		t.Fatalf("files %v, want 4 segments and a spare", sorted(good))
	}
	first, second, last := names[0], names[1], names[len(names)-1]
	beyond, _ := parseSegmentName(last)
	secondBase, _ := parseSegmentName(second)
	thirdBase, _ := parseSegmentName(names[2])
	lostSecond := Hole{secondBase, thirdBase}
	next := segmentName(beyond + 50000)

	patch := func(name string, off int, b ...byte) func(map[string][]byte) {
		return func(f map[string][]byte) {
			c := bytes.Clone(f[name])
			copy(c[off:], b)
			f[name] = c
		}
	}
	put := func(name string, b []byte) func(map[string][]byte) {
		return func(f map[string][]byte) { f[name] = b }
	}
	both := func(a, b func(map[string][]byte)) func(map[string][]byte) {
		return func(f map[string][]byte) { a(f); b(f) }
	}
	for _, c := range []struct {
		name  string
		do    func(map[string][]byte)
		want  string // part of the error; "" for none
		as    any    // its type, by default *CorruptError
		start Position
		hole  Hole // what is lost
	}{
		{name: "nothing", do: func(map[string][]byte) {}},
		{name: "last is empty", do: put(last, nil), want: last + " is damaged at position"},
		{name: "last is all zeroes", do: put(last, make([]byte, segmentBytesFloor)), want: "segment header is damaged (the file has 65536 bytes)"},
		{name: "last is 100 bytes", do: func(f map[string][]byte) { f[last] = f[last][:70] }, want: last + " is damaged"},
		{name: "last is removed", do: func(f map[string][]byte) { delete(f, last) }}, // cannot be known without a checkpoint
		{name: "last is removed, and something was proven", do: func(f map[string][]byte) { delete(f, last) }, want: "everything below", start: beyond + 40},
		{name: "first is removed", do: func(f map[string][]byte) { delete(f, first) }}, // looks trimmed; the caller sees it by Begin
		{name: "first is removed, recovery starts in it", do: func(f map[string][]byte) { delete(f, first) }, want: "position was trimmed", as: ErrTrimmed, start: 40},
		{name: "all are removed", do: func(f map[string][]byte) { clear(f) }, want: "no segment is there", start: 40},
		{name: "second is removed", do: func(f map[string][]byte) { delete(f, second) }, want: second + " is damaged"},
		{name: "second is empty", do: put(second, nil), hole: lostSecond},
		{name: "second is all zeroes", do: put(second, make([]byte, segmentBytesFloor)), hole: lostSecond},
		{name: "second's records are zeroes", do: func(f map[string][]byte) {
			f[second] = append(bytes.Clone(f[second][:headerBlockBytes]), make([]byte, segmentBytesFloor-headerBlockBytes)...)
		}, hole: lostSecond},
		{name: "second is half as long", do: func(f map[string][]byte) { f[second] = f[second][:headerBlockBytes] }, hole: lostSecond},
		{name: "last has no header", do: patch(last, 0, make([]byte, headerBlockBytes)...)},
		{name: "second has no header", do: patch(second, 0, make([]byte, headerBlockBytes)...)},
		{name: "first has no header", do: patch(first, 0, bytes.Repeat([]byte{9}, headerBlockBytes)...)},
		{name: "second is renamed to a later name", do: func(f map[string][]byte) { f[next] = f[second]; delete(f, second) },
			want: next + " is damaged"},
		{name: "last is renamed to a spare's name", do: func(f map[string][]byte) { f["spare-000099.journal"] = f[last]; delete(f, last) },
			want: "is not named " + last},
		{name: "header's checksum is wrong", do: patch(first, headerAtCRC, 1, 2, 3)},
		{name: "the other header's checksum is wrong", do: patch(last, headerCopyBytes+headerAtCRC, 1, 2, 3)},
		{name: "newer version", do: both(patch(first, headerAtVersion, 9), patch(first, headerCopyBytes+headerAtVersion, 9)),
			want: "has format version 9, this program knows 2", as: &VersionError{}},
		{name: "version 1", do: patch(first, 0, append([]byte(headerMagic+"\x01\x00\x00\x00"), make([]byte, 4096-12)...)...),
			want: "has format version 1, this program knows 2", as: &VersionError{}},
		{name: "version 0", do: patch(first, headerAtVersion, 0)},
		{name: "newer spare", do: put(spare, bytes.Repeat(append([]byte(headerMagic+"\x03"), make([]byte, 2048-9)...), 3)), want: spare + " has format version 3", as: &VersionError{}},
		{name: "another store's segment", do: func(f map[string][]byte) {
			h, _ := decodeHeader(f[last])
			h.store[0] = 77
			b := bytes.Clone(f[last])
			h.encode(b[:headerBlockBytes])
			f[last] = b
		}, want: last + " belongs to store 4d", as: &ForeignError{}},
		{name: "spare is empty", do: put(spare, nil)},
		{name: "spare is too small", do: put(spare, make([]byte, 5000))},
		{name: "spare is not zeroes", do: put(spare, bytes.Repeat([]byte{0xab}, int(segmentBytesFloor)))},
		{name: "many spares", do: func(f map[string][]byte) {
			for i := range 5 {
				f[fmt.Sprintf(spareNameFormat, 100+i)] = make([]byte, segmentBytesFloor)
			}
		}},
		{name: "recycling was interrupted", do: func(f map[string][]byte) { // a trimmed segment with the header of what it was to be
			h := header{store: testStore, base: beyond + 50000, capacity: segmentBytesFloor - headerBlockBytes}
			b := bytes.Clone(f[first])
			h.encode(b[:headerBlockBytes])
			f[first] = b
		}},
		{name: "unfinished spare", do: put("spare-000100.filling", make([]byte, 5000))},
		{name: "mark of a cut, torn", do: put(cutName, []byte(cutMagic+"\x01"))},
		{name: "mark of a cut, newer", do: put(cutName, []byte(cutMagic+"\x07")), want: "cut.mark has format version 7", as: &VersionError{}},
		{name: "segments' names of no position", do: both(put(segmentName(secondBase+1), bytes.Repeat([]byte{9}, 5000)),
			put("18446744073709551608.journal", bytes.Repeat([]byte{9}, 5000)))},
		{name: "list of epochs is removed", do: func(f map[string][]byte) { delete(f, epochsName) }},
		{name: "list of epochs is damaged", do: patch(epochsName, 20, 7)},
		{name: "list of epochs is empty", do: put(epochsName, nil)},
		{name: "ends file is empty", do: put(endsName, nil)},
		{name: "ends file is not whole", do: put(endsName, []byte(endsMagic+"\x01"))},
		{name: "ends file, newer", do: put(endsName, []byte(endsMagic+"\x07")), want: "ends has format version 7", as: &VersionError{}},
		{name: "other files", do: func(f map[string][]byte) {
			f["5.journal"], f["00000000000000000001.journal.bak"], f["notes.txt"] = []byte("a"), []byte("b"), []byte("c")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := maps.Clone(good)
			c.do(files)
			disk := journaltest.Disk(testDir, files)
			o := testOptions(disk)
			o.Start = c.start
			var m messages
			m.gaps = c.hole.To > 0
			o.Recovered = m.add
			j, err := Open(o)
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				if h := j.Holes(); c.hole.To == 0 && len(h) > 0 || c.hole.To > 0 && (len(h) != 1 || h[0] != c.hole) {
					t.Errorf("holes %v, want %v", h, c.hole)
				}
				mustClose(t, j)
				if !strings.Contains(c.name, "removed") && m.next != s.next {
					t.Errorf("messages up to %d, want %d", m.next, s.next)
				}
				r, err := Verify(disk, testDir, 0, nil)
				if err != nil || r.Damage != nil {
					t.Errorf("verify: %v, %v", r.Damage, err)
				}
				return
			}
			if err == nil {
				t.Fatalf("opened; want %q", c.want)
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %q, want %q in it", err, c.want)
			}
			ok := false
			switch as := c.as.(type) {
			case nil:
				ok = errors.As(err, new(*CorruptError))
			case *VersionError:
				ok = errors.As(err, &as)
			case *ForeignError:
				ok = errors.As(err, &as)
			case error:
				ok = errors.Is(err, as)
			}
			if !ok {
				t.Errorf("error %v is a %T", err, err)
			}
			now := journaltest.Files(disk, testDir)
			if !maps.EqualFunc(now, files, bytes.Equal) {
				t.Errorf("the folder was changed: %v", sorted(now))
			}
		})
	}
}

func sorted(files map[string][]byte) []string {
	var names []string
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// TestDamageInTheMiddle flips one byte in each of the records of a journal of several segments: Verify names its file, position and
// byte and changes nothing; Open makes a hole of exactly that record and shows all others.
func TestDamageInTheMiddle(t *testing.T) {
	mem := journaltest.New(nil)
	s := sender{j: mustOpen(t, testOptions(mem))}
	for range 60 {
		s.mustSend(t, 3000)
	}
	m, err := readAll(s.j, 0)
	if err != nil {
		t.Fatal(err)
	}
	list := *s.j.list.Load()
	mustClose(t, s.j)
	good := journaltest.Files(mem, testDir)
	for i, r := range m.records {
		if raceEnabled && i%4 != 0 {
			continue
		}
		seg := list[list.find(r.Position)]
		name := segmentName(seg.base)
		off := int(seg.offset(r.Position))
		files := maps.Clone(good)
		files[name] = bytes.Clone(good[name])
		files[name][off+i%recordHeaderBytes] ^= 0x10
		disk := journaltest.Disk(testDir, files)
		v, err := Verify(disk, testDir, 0, nil)
		var corrupt *CorruptError
		want := Hole{r.Position, r.End()}
		if err != nil || !errors.As(v.Damage, &corrupt) || corrupt.Position != r.Position || corrupt.Offset != int64(off) ||
			!strings.HasSuffix(corrupt.File, name) || len(v.Damaged) != 1 || v.Damaged[0] != want {
			t.Fatalf("record %d at %d: %+v, %v, want damage of %s there", i, r.Position, v, err, name)
		}
		if !maps.EqualFunc(journaltest.Files(disk, testDir), files, bytes.Equal) {
			t.Fatalf("record %d: Verify has changed the folder", i)
		}
		got := messages{gaps: true}
		o := testOptions(disk)
		o.Recovered = got.add
		j := mustOpen(t, o)
		if h := j.Holes(); len(h) != 1 || h[0] != want || len(got.records) != len(m.records)+1 || got.records[i].Kind != KindLost ||
			got.records[i].Position != r.Position || got.records[i].End() != r.End() {
			t.Fatalf("record %d: holes %v, want %v; %d records", i, h, want, len(got.records))
		}
		mustClose(t, j)
		bad, err := journaltest.ReadFile(disk, holePath(disk, testDir, want))
		if err != nil || !bytes.Equal(bad, files[name][off:off+int(r.End()-r.Position)]) {
			t.Fatalf("record %d: what was set aside is not what was there: %v", i, err)
		}
	}
}

// TestLaterSegmentWithoutProof: a segment behind a torn tail that proves nothing (its writer had not synced what came before) is
// removed with it.
func TestLaterSegmentWithoutProof(t *testing.T) {
	mem := journaltest.New(nil)
	s := sender{j: mustOpen(t, testOptions(mem))}
	for range 22 {
		s.mustSend(t, 3000)
	}
	if len(*s.j.list.Load()) != 2 {
		t.Fatalf("%d segments", len(*s.j.list.Load()))
	}
	disk := mem.Crash(0, nil)
	mustClose(t, s.j)
	files := journaltest.Files(disk, testDir)
	var names []string
	for _, name := range sorted(files) {
		if _, ok := parseSegmentName(name); ok {
			names = append(names, name)
		}
	}
	h, err := decodeHeader(files[names[1]])
	if err != nil {
		t.Fatal(err)
	}
	// The last commit of the first segment is torn, the second has a header only, and it knew of 5 messages.
	h.durable = 40 + 5*3040
	clear(files[names[1]])
	h.encode(files[names[1]][:headerBlockBytes])
	clear(files[names[0]][headerBlockBytes+int(h.base)-1000:])
	disk = journaltest.Disk(testDir, files)
	j, m, err := reopen(testOptions(disk))
	if err != nil {
		t.Fatal(err)
	}
	if want := (uint64(h.base) - 40) / 3040; m.next != want-1 {
		t.Errorf("messages up to %d, want %d", m.next, want-1)
	}
	mustClose(t, j)
	if _, err := disk.Stat(disk.PathJoin(testDir, names[1])); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the second segment is still there: %v", err)
	}
	// With one that knew of all it is damage.
	h.durable = h.base
	h.encode(files[names[1]][:headerBlockBytes])
	v, err := Verify(journaltest.Disk(testDir, files), testDir, 0, nil)
	if want := (Hole{h.base - 3040, h.base}); err != nil || len(v.Damaged) != 1 || v.Damaged[0] != want {
		t.Errorf("damaged %v (%v), want %v", v.Damaged, err, want)
	}
}
