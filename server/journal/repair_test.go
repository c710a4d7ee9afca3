package journal

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/journal/journaltest"
)

// fourSegments makes a closed journal of four segments and returns its files and what is read of it.
func fourSegments(t *testing.T) (files map[string][]byte, names []string, m messages) {
	fs := journaltest.New(nil)
	s := sender{j: mustOpen(t, testOptions(fs))}
	for len(*s.j.list.Load()) < 4 {
		s.mustSend(t, 4000)
	}
	s.mustSend(t, 4000)
	var err error
	if m, err = readAll(s.j, 0); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s.j)
	files = journaltest.Files(fs, testDir)
	for _, name := range sorted(files) {
		if _, ok := parseSegmentName(name); ok {
			names = append(names, name)
		}
	}
	return files, names, m
}

// TestRepair brings folders that Open refuses, or would heal, into a state that Open takes. A dry run says the same and changes nothing;
// a crash after each operation of a repair leaves what the next one finishes; a second one finds nothing to do.
func TestRepair(t *testing.T) {
	good, names, m := fourSegments(t)
	var base []Position
	for _, name := range names {
		b, _ := parseSegmentName(name)
		base = append(base, b)
	}
	limit := func(i int) Position { return base[i] + Position(segmentBytesFloor-headerBlockBytes) }
	end := m.records[len(m.records)-1].End() + recordHeaderBytes
	flip := func(f map[string][]byte, name string, off int) {
		f[name] = bytes.Clone(f[name])
		f[name][off] ^= 1
	}
	inSecond := slices.IndexFunc(m.records, func(r Record) bool { return r.Position > base[1]+9000 })
	for _, c := range []struct {
		name    string
		do      func(map[string][]byte)
		options RepairOptions
		want    RepairReport
		least   int // records that are still read
	}{
		{name: "nothing", do: func(map[string][]byte) {}, want: RepairReport{End: end}, least: len(m.records)},
		{name: "a segment is missing", do: func(f map[string][]byte) { delete(f, names[1]) },
			want: RepairReport{Missing: []Hole{{limit(0), base[2]}}, Lost: []Hole{{base[1], limit(0)}}, End: end}, least: 30},
		{name: "two are missing", do: func(f map[string][]byte) { delete(f, names[1]); delete(f, names[2]) },
			want: RepairReport{Missing: []Hole{{limit(0), base[3]}}, Lost: []Hole{{base[1], limit(0)}}, End: end}, least: 15},
		{name: "the last is empty", do: func(f map[string][]byte) { f[names[3]] = nil },
			want: RepairReport{SetAside: testDir + "/" + names[3], End: base[3]}, least: 45},
		{name: "the last is empty, and something was proven", do: func(f map[string][]byte) { f[names[3]] = nil }, options: RepairOptions{End: end + 70_000},
			want: RepairReport{SetAside: testDir + "/" + names[3], Missing: []Hole{{base[3], end + 70_000}}, End: end + 70_000}, least: 45},
		{name: "it ends too early", do: func(map[string][]byte) {}, options: RepairOptions{End: end + 800},
			want: RepairReport{Missing: []Hole{{end, end + 800}}, End: end + 800}, least: len(m.records)},
		{name: "a record is damaged", do: func(f map[string][]byte) {
			flip(f, names[1], int(m.records[inSecond].Position-base[1])+headerBlockBytes+20)
		},
			want: RepairReport{Lost: []Hole{{m.records[inSecond].Position, m.records[inSecond].End()}}, End: end}, least: len(m.records) - 1},
		{name: "a header is damaged", do: func(f map[string][]byte) { flip(f, names[1], 30) },
			want: RepairReport{Headers: []string{testDir + "/" + names[1]}, End: end}, least: len(m.records)},
		{name: "no header is left", do: func(f map[string][]byte) {
			for _, name := range names {
				f[name] = bytes.Clone(f[name])
				clear(f[name][:headerBlockBytes])
			}
		}, options: RepairOptions{StoreID: &testStore}, want: RepairReport{Headers: []string{testDir + "/" + names[0], testDir + "/" + names[1], testDir + "/" + names[2], testDir + "/" + names[3]}, End: end}, least: len(m.records)},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := maps.Clone(good)
			c.do(files)
			mem := journaltest.Disk(testDir, files)
			dry := c.options
			dry.DryRun = true
			r, err := Repair(mem, testDir, dry)
			if got, want := fmt.Sprintf("%+v", r), fmt.Sprintf("%+v", c.want); err != nil || got != want {
				t.Errorf("dry run: %s, %v; want %s", got, err, want)
			}
			if !maps.EqualFunc(journaltest.Files(mem, testDir), files, bytes.Equal) {
				t.Fatal("a dry run has changed something")
			}
			check := func(disk vfs.FS) error {
				if _, err := Repair(disk, testDir, c.options); err != nil {
					return err
				}
				again, err := Repair(disk, testDir, c.options)
				if err != nil || !again.Nothing() || again.End != c.want.End {
					return fmt.Errorf("repaired again: %+v, %w", again, err)
				}
				o := testOptions(disk)
				o.Start = c.options.End
				j, err := Open(o)
				if err != nil {
					return err
				}
				defer j.Close()
				holes := len(c.want.Missing) + len(c.want.Lost)
				if got := len(j.Holes()); got < holes || got > holes+1 { // what goes on into another segment is two
					return fmt.Errorf("holes %v, want %d", j.Holes(), holes)
				}
				got := messages{gaps: true}
				reader := j.NewReader(0)
				defer reader.Close()
				found := 0
				for reader.Position() < j.Synced() {
					r, err := reader.Next()
					if err == nil {
						err = got.add(r)
					}
					if err != nil {
						return err
					}
					if r.Kind != KindLost && r.Epoch == m.records[0].Epoch && r.Kind != KindNoop {
						found++
					}
				}
				if found < c.least {
					return fmt.Errorf("%d records are read, want %d", found, c.least)
				}
				return nil
			}
			rng := newRand(t)
			fs := journaltest.New(mem.CrashClone(vfs.CrashCloneCfg{}))
			steps := 0
			fs.SetAfter(func(op journaltest.Op) {
				steps++
				for _, percent := range []int{0, 50} {
					if raceEnabled && (steps+percent)%7 != 0 {
						continue
					}
					if err := check(fs.Crash(percent, rng)); err != nil && !t.Failed() {
						t.Errorf("crash (%d %%) after %v: %v", percent, op, err)
					}
				}
			})
			r, err = Repair(fs, testDir, c.options)
			fs.SetAfter(nil)
			if got, want := fmt.Sprintf("%+v", r), fmt.Sprintf("%+v", c.want); err != nil || got != want {
				t.Errorf("repair: %s, %v; want %s", got, err, want)
			}
			if err := check(fs); err != nil {
				t.Error(err)
			}
			t.Logf("%d steps", steps)
		})
	}
}

// TestDump shows every record from any position on, and what lies behind damage and behind a missing segment; then it says the first damage.
func TestDump(t *testing.T) {
	good, names, m := fourSegments(t)
	for _, from := range []Position{0, 1, m.records[20].Position, m.records[20].Position + 8} {
		var got []Position
		err := Dump(journaltest.Disk(testDir, good), testDir, from, func(r Record) error { got = append(got, r.Position); return nil })
		want := 1 // the no-op of the close
		for _, r := range m.records {
			if r.Position >= from {
				want++
			}
		}
		if err != nil || len(got) != want {
			t.Errorf("from %d: %d records, %v, want %d", from, len(got), err, want)
		}
	}
	files := maps.Clone(good)
	delete(files, names[1])
	files[names[2]] = bytes.Clone(files[names[2]])
	files[names[2]][headerBlockBytes+5000] ^= 1
	disk := journaltest.Disk(testDir, files)
	third, _ := parseSegmentName(names[2])
	var some messages
	some.gaps, some.lost = true, true
	kept := 0
	err := Dump(disk, testDir, 0, func(r Record) error { kept++; some.lost = true; return some.add(r) })
	var corrupt *CorruptError
	if !errors.As(err, &corrupt) || !strings.Contains(corrupt.Reason, "missing") || some.next != m.next || kept < 30 {
		t.Errorf("%d records, messages up to %d, want %d; %v", kept, some.next, m.next, err)
	}
	err = Dump(disk, testDir, third+20_000, func(Record) error { return nil })
	if !errors.As(err, &corrupt) {
		t.Errorf("from behind the damage: %v", err)
	}
	if err := Dump(disk, testDir, 0, func(Record) error { return ErrBusy }); !errors.Is(err, ErrBusy) {
		t.Errorf("its own error: %v", err)
	}
	if !maps.EqualFunc(journaltest.Files(disk, testDir), files, bytes.Equal) {
		t.Error("Dump has changed something")
	}
}
