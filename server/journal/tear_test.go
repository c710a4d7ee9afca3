package journal

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/journal/journaltest"
)

// victim is a journal in one file whose bytes are changed, and what was in it.
type victim struct {
	mem     *vfs.MemFS
	file    vfs.File
	path    string
	good    []byte
	records []Record
	proven  Position
}

// newVictim has commits of one and of several records. Its last commit is lastBytes long, and nothing proves that it is on disk,
// unless a no-op follows.
func newVictim(t *testing.T, lastBytes int, noop bool) *victim {
	fs := journaltest.New(nil)
	o := testOptions(fs)
	j := mustOpen(t, o)
	s := sender{j: j}
	s.mustSend(t, 100)
	s.mustSend(t, 700, 9, 300)
	s.mustSend(t, 1500)
	s.mustSend(t, 33, 34, 35, 36, 37)
	if lastBytes > 0 {
		s.mustSend(t, 20, lastBytes/2, 10, lastBytes/2-200)
	}
	v := &victim{path: fs.PathJoin(testDir, segmentName(0))}
	if !noop {
		v.mem = fs.Crash(0, nil)
	}
	m, err := readAll(j, 0)
	if err != nil {
		t.Fatal(err)
	}
	v.records = m.records
	mustClose(t, j)
	if noop {
		v.mem = fs.Crash(0, nil)
		v.records = append(v.records, Record{Kind: KindNoop, Position: j.Synced() - recordHeaderBytes, Durable: j.Synced() - recordHeaderBytes})
	}
	for _, r := range v.records {
		v.proven = max(v.proven, r.Durable)
	}
	if v.file, err = v.mem.OpenReadWrite(v.path, vfs.WriteCategoryUnspecified); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = v.file.Close() })
	if v.good, err = journaltest.ReadFile(v.mem, v.path); err != nil {
		t.Fatal(err)
	}
	return v
}

func (v *victim) end() Position { return v.records[len(v.records)-1].End() }

func (v *victim) offset(p Position) int { return headerBlockBytes + int(p) }

func (v *victim) write(t *testing.T, off int, b []byte) {
	t.Helper()
	if _, err := v.file.WriteAt(b, int64(off)); err != nil {
		t.Fatal(err)
	}
}

// expect checks what Verify says, and, if open is set, that Open says the same: a journal that ends after kept records, or damage of
// the one after them, of which Open makes a hole.
func (v *victim) expect(t *testing.T, what string, kept int, damaged bool, open bool) {
	t.Helper()
	at := Position(0)
	if kept > 0 {
		at = v.records[kept-1].End()
	}
	r, err := Verify(v.mem, testDir, 0, nil)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	var corrupt *CorruptError
	switch {
	case damaged && (!errors.As(r.Damage, &corrupt) || corrupt.Position != at || corrupt.Offset != int64(v.offset(at)) || corrupt.File != v.path):
		t.Fatalf("%s: %v, want damage at %d", what, r.Damage, at)
	case !damaged && (r.Damage != nil || r.End != at):
		t.Fatalf("%s: ends at %d (%v), want %d", what, r.End, r.Damage, at)
	}
	if !open {
		return
	}
	mem := v.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: newRandQuiet(1)})
	m := messages{gaps: damaged}
	o := testOptions(mem)
	o.Recovered = m.add
	j, err := Open(o)
	if err != nil {
		t.Fatalf("%s: open: %v", what, err)
	}
	if damaged {
		want := Hole{at, v.records[kept].End()}
		if h := j.Holes(); len(h) != 1 || h[0] != want || len(m.records) != len(v.records) {
			t.Fatalf("%s: open: holes %v and %d records, want %v and %d", what, h, len(m.records), want, len(v.records))
		}
		kept, at = len(v.records), v.end()
	}
	if len(m.records) != kept {
		t.Fatalf("%s: open kept %d records, want %d", what, len(m.records), kept)
	}
	mustClose(t, j)
	r, err = Verify(mem, testDir, 0, nil)
	if err != nil || r.Damage != nil || r.TornBytes != 0 || r.Proven < at {
		t.Fatalf("%s: after open: %+v, %v", what, r, err)
	}
}

// TestCutPoints ends the file's content at each byte of the last 4 KiB, as zeroes and as a shorter file. Nothing after
// the cut is left to prove anything, so the journal ends with the last whole record. (The padding of a record is not
// part of it.)
func TestCutPoints(t *testing.T) {
	v := newVictim(t, 3000, false)
	last := v.offset(v.end())
	for cut := last; cut > last-4096; cut-- {
		if cut < last {
			v.write(t, cut, []byte{0})
		}
		if raceEnabled && cut%5 != 0 {
			continue
		}
		kept := 0
		for kept < len(v.records) && v.offset(v.records[kept].Position)+v.length(kept) <= cut {
			kept++
		}
		v.expect(t, fmt.Sprintf("zeroes from byte %d on", cut), kept, false, cut%95 == 0)
		if cut%35 == 0 {
			short := *v
			short.mem = journaltest.Disk(testDir, map[string][]byte{segmentName(0): v.good[:cut]})
			short.expect(t, fmt.Sprintf("file of %d bytes", cut), kept, false, cut%95 == 0)
		}
	}
}

// length is that of record i without padding.
func (v *victim) length(i int) int {
	b := v.good[v.offset(v.records[i].Position):]
	return int(b[0]) | int(b[1])<<8 | int(b[2])<<16
}

// TestFlips flips each bit of one byte, at each byte of the last 4 KiB, with and without a no-op at the end. A record that a later one
// proves to have been on disk is damage, named with its position and byte; in the unproven tail the journal ends before it. Padding
// is not looked at.
func TestFlips(t *testing.T) {
	for _, noop := range []bool{false, true} {
		t.Run(fmt.Sprintf("noop=%v", noop), func(t *testing.T) {
			v := newVictim(t, 3000, noop)
			last := v.offset(v.end())
			for i, r := range v.records {
				for off := max(v.offset(r.Position), last-4096); off < v.offset(r.End()); off++ {
					if raceEnabled && off%19 != 0 {
						continue
					}
					flip := byte(1) << (off % 8)
					v.write(t, off, []byte{v.good[off] ^ flip})
					what := fmt.Sprintf("bit flipped in byte %d (record %d at %d)", off, i, r.Position)
					if off >= v.offset(r.Position)+v.length(i) {
						v.expect(t, what+", padding", len(v.records), false, off%95 == 0)
					} else {
						v.expect(t, what, i, r.Position < v.proven, off%95 == 0)
					}
					v.write(t, off, v.good[off:off+1])
				}
			}
		})
	}
}

// TestTornLastCommit leaves every combination of the last commit's 512-byte sectors on disk, the others as zeroes. The
// journal ends inside or after that commit, never with a wrong record, and is never damaged.
func TestTornLastCommit(t *testing.T) {
	v := newVictim(t, 4600, false)
	from, to := v.offset(v.proven), v.offset(v.end())
	first, sectors := from/512, (to+511)/512-from/512
	t.Logf("last commit is [%d, %d): %d sectors", from, to, sectors)
	if sectors < 8 || sectors > 12 {
		t.Fatalf("%d sectors", sectors)
	}
	for mask := range 1 << sectors {
		content := bytes.Clone(v.good)
		for i := range sectors {
			if mask>>i&1 == 0 {
				clear(content[max(from, (first+i)*512):min(to, (first+i+1)*512)])
			}
		}
		v.write(t, from, content[from:to])
		kept := 0
		for kept < len(v.records) {
			off := v.offset(v.records[kept].Position)
			if n := v.length(kept); !bytes.Equal(content[off:off+n], v.good[off:off+n]) {
				break
			}
			kept++
		}
		v.expect(t, fmt.Sprintf("sectors %b", mask), kept, false, mask%41 == 0)
	}
}

// TestFormerLife: records that an earlier use of the file left behind, whole and with right checksums, are no records: their
// positions or their epochs are older.
func TestFormerLife(t *testing.T) {
	v := newVictim(t, 3000, true)
	end := v.offset(v.end())
	// Positions of a former life.
	v.write(t, end, v.good[headerBlockBytes:headerBlockBytes+2000])
	v.expect(t, "records of a former life behind the end", len(v.records), false, true)
	// Right position, lower epoch, and a back that would prove something.
	old := appendRecord(nil, &Record{Kind: KindMessages, Epoch: MakeEpoch(0, 9), Position: v.end(), Payload: payload(99, 100)})
	seal(old, v.end(), v.end(), crcSeed(testStore))
	v.write(t, end, old)
	later := appendRecord(nil, &Record{Kind: KindMessages, Epoch: MakeEpoch(0, 9), Position: v.end() + Position(len(old)), Payload: payload(99, 100)})
	seal(later, v.end()+Position(len(old)), v.end()+Position(len(old)), crcSeed(testStore))
	v.write(t, end+len(old), later)
	v.expect(t, "records of an older epoch behind the end", len(v.records), false, true)
}
