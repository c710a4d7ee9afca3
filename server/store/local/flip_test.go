package local

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/journal/journaltest"
	"github.com/jmqio/jmq/server/store"
)

// flipped is a store of two topics that was trimmed, carried forward and healed once, with everything that one can have on its disk.
type flipped struct {
	fs    *vfs.MemFS
	files []string
	parts []store.Partition
	want  []map[index.Index]string // by partition
	end   []index.Index
	ends  uint32 // records of KindEnd
}

func (f *flipped) options(fs vfs.FS) Options {
	o := options(fs)
	o.SegmentBytesMax = 64 << 10
	o.VerifyBytesPerSecond = 1 << 40
	return o
}

// makeFlipped fills a store of about 512 KiB. Killed: it was not closed, and recovery has something to read.
func makeFlipped(t testing.TB, killed bool) *flipped {
	t.Helper()
	f := &flipped{fs: vfs.NewCrashableMem()}
	o := f.options(f.fs)
	o.Tables = []store.Table{&counter{}}
	s := mustOpen(t, o)
	for i := range 2 {
		f.parts = append(f.parts, partitionOfTopic(mustTopic(t, s, fmt.Sprint("t", i), 2), i))
		f.want = append(f.want, map[index.Index]string{})
	}
	f.end = make([]index.Index, len(f.parts))
	add := func(n, bytes, partitions int) {
		for i := range n {
			p := i % partitions
			body := fmt.Sprintf("%d of %d %*d", f.end[p], p, bytes, 0)
			if r := appendWait(s, f.parts[p], batchOf(t, body, "second")); r.err != nil || r.first != f.end[p] {
				t.Fatal(r)
			}
			f.want[p][f.end[p]], f.want[p][f.end[p]+1] = body, "second"
			f.end[p] += 2
			if i%10 == 0 {
				done := make(chan error, 1)
				if err := s.AppendRecord(journal.KindEnd, binary.LittleEndian.AppendUint32(nil, f.ends), func(err error) { done <- err }); err != nil {
					t.Fatal(err)
				}
				if err := <-done; err != nil {
					t.Fatal(err)
				}
				f.ends++
			}
		}
	}
	add(10, 10, 2) // to be carried forward
	add(60, 3000, 1)
	if err := s.Trim(f.parts[0], f.end[0]); err != nil {
		t.Fatal(err)
	}
	for i := range f.end[0] {
		delete(f.want[0], i)
	}
	if err := s.Trim(f.parts[1], 4); err != nil {
		t.Fatal(err)
	}
	for i := range index.Index(4) {
		delete(f.want[1], i)
	}
	if _, err := s.Reclaim(context.Background()); err != nil {
		t.Fatal(err)
	}
	add(40, 3000, 2)
	damageMessage(t, s, f.parts[0], f.end[0]-40)
	readAll(t, s, f.parts[0])
	delete(f.want[0], f.end[0]-40)
	delete(f.want[0], f.end[0]-39)
	add(150, 50, 2)
	if err := s.Checkpoint(); err != nil {
		t.Fatal(err)
	}
	add(150, 50, 2)
	if m := s.Metrics(); m.Journal.Begin == 0 || m.Holes != 1 {
		t.Fatalf("%+v", m)
	}
	image := f.fs
	if killed {
		image = f.fs.CrashClone(vfs.CrashCloneCfg{})
	}
	mustClose(t, s)
	f.fs = image.CrashClone(vfs.CrashCloneCfg{})
	for _, dir := range []string{"/store", "/store/index", "/store/journal", "/store/journal/damaged"} {
		names, err := f.fs.List(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range names {
			path := f.fs.PathJoin(dir, n)
			if st, err := f.fs.Stat(path); err == nil && !st.IsDir() && st.Size() > 0 {
				f.files = append(f.files, path)
			}
		}
	}
	return f
}

// flip changes a bit of a byte, opens the store, and sees what has become of it.
func (f *flipped) flip(t testing.TB, path string, at int64, bit int) error {
	fs := f.fs.CrashClone(vfs.CrashCloneCfg{})
	file, err := fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	var b [1]byte
	if _, err := file.ReadAt(b[:], at); err != nil {
		return err
	}
	b[0] ^= 1 << bit
	if _, err := file.WriteAt(b[:], at); err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	table := &counter{}
	o := f.options(fs)
	o.Tables = []store.Table{table}
	s, err := Open(o)
	if err != nil {
		if path == "/store/"+identityName { // two copies of it would be of no use: the folder is whatever its name says
			return nil
		}
		if (errors.Is(err, ErrVersion) || errors.Is(err, index.ErrVersion)) && at >= 8 && at < 12 {
			return nil // it says of itself that it is of a newer version
		}
		return fmt.Errorf("open: %w", err)
	}
	defer s.Close()
	m := s.Metrics()
	told := m.Holes > 1 || m.Journal.TornBytes > 0
	lost, reused := 0, false
	for n, p := range f.parts {
		first, end, err := s.Bounds(p)
		if err != nil {
			return err
		}
		have := readAll(t, s, p)
		for i, body := range have {
			// What was trimmed may be there again when an older checkpoint is used.
			if want, kept := f.want[n][i]; kept && body != want {
				return fmt.Errorf("message %d of partition %d is %.20q, want %.20q", i, n, body, want)
			}
		}
		for i := range f.want[n] {
			if _, ok := have[i]; ok {
				continue
			}
			lost++
			if i < first {
				return fmt.Errorf("message %d of partition %d was trimmed, the first is %d", i, n, first)
			}
		}
		reused = reused || end < f.end[n]
		r := appendWait(s, p, batchOf(t, "later"))
		if r.err != nil || r.first != end {
			return fmt.Errorf("append to partition %d: %+v, want index %d", n, r, end)
		}
		if got, _ := bodies(t, s, p, end, end+1); got[0] != "later" {
			return fmt.Errorf("later message is %q", got)
		}
	}
	m = s.Metrics()
	told = told || m.Holes > 1
	switch {
	case lost > 4:
		return fmt.Errorf("%d messages are lost to one byte", lost)
	case lost > 0 && !told:
		return fmt.Errorf("%d messages are lost and nobody says so: %+v", lost, m)
	case table.seen.Load() < f.ends-1 || table.seen.Load() < f.ends && !told:
		return fmt.Errorf("%d of %d end records, %+v", table.seen.Load(), f.ends, m)
	case reused && m.Journal.TornBytes == 0 && m.Holes < 2:
		return errors.New("an end is lower, and nobody says so")
	}
	return s.Close()
}

// TestFlips changes one byte of a store after the other, a few in each run and all of them with JMQ_TEST_FLIPS=all: in every file, in
// segments sealed and active, runs of the index, checkpoints, what was set aside. Each time the store opens, gives out no wrong
// message, loses at most what was in the record, says so, and takes and gives later messages.
func TestFlips(t *testing.T) {
	r := random(t)
	flips := 250
	if raceEnabled {
		flips = 25
	}
	all := os.Getenv("JMQ_TEST_FLIPS")
	if n, err := strconv.Atoi(all); err == nil {
		flips = n
	}
	for _, killed := range []bool{false, true} {
		f := makeFlipped(t, killed)
		var total int64
		sizes := make([]int64, len(f.files))
		for i, path := range f.files {
			st, err := f.fs.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			sizes[i] = st.Size()
			total += st.Size()
		}
		one := func(i int, at int64, bit int) {
			if err := f.flip(t, f.files[i], at, bit); err != nil {
				t.Errorf("killed %v, bit %d of byte %d of %s: %v", killed, bit, at, f.files[i], err)
			}
		}
		if all == "all" {
			for i := range f.files {
				for at := range sizes[i] {
					if one(i, at, int(at)%8); t.Failed() {
						return
					}
				}
			}
			continue
		}
		for n := range flips / 2 {
			// Half of them in any file, so that small ones get their share, half anywhere.
			i := r.Intn(len(f.files))
			if n%2 == 0 {
				at := r.Int63n(total)
				for i = 0; at >= sizes[i]; i++ {
					at -= sizes[i]
				}
			}
			at := r.Int63n(sizes[i])
			if strings.HasSuffix(f.files[i], ".journal") {
				at = nonZero(t, f.fs, f.files[i], at)
			}
			if one(i, at, r.Intn(8)); t.Failed() {
				return
			}
		}
		t.Logf("killed %v: %d files, %d bytes", killed, len(f.files), total)
	}
}

// nonZero returns a place of the file that is not within zeroes, at or below one, 0 if there is none.
func nonZero(t testing.TB, fs vfs.FS, path string, at int64) int64 {
	t.Helper()
	b, err := journaltest.ReadFile(fs, path)
	if err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	for at > 0 && binary.LittleEndian.Uint64(b[at&^7:]) == 0 {
		at -= 8
	}
	return max(at, 0)
}
