package journal

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jmqio/jmq/server/journal/journaltest"
)

// hexdump writes b in lines of 16 bytes, and leaves out lines of zeroes.
func hexdump(b []byte) string {
	var out strings.Builder
	for off := 0; off < len(b); off += 16 {
		line := b[off:min(off+16, len(b))]
		if !allZero(line) {
			fmt.Fprintf(&out, "%08x  % x\n", off, line)
		}
	}
	return out.String()
}

func unhexdump(t *testing.T, s string, size int) []byte {
	b := make([]byte, size)
	for line := range strings.Lines(s) {
		var off int
		at, rest, _ := strings.Cut(line, "  ")
		if _, err := fmt.Sscanf(at, "%x", &off); err != nil {
			t.Fatal(err)
		}
		bytes, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(rest), " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		copy(b[off:], bytes)
	}
	return b
}

// TestFormat holds the bytes of a segment, a cut's mark, and the files of a copy to testdata/format.hex, and reads them back.
func TestFormat(t *testing.T) {
	fs := journaltest.New(nil)
	o := testOptions(fs)
	o.Term = 3
	o.Now = func() time.Time { return time.Unix(1_700_000_000, 5) }
	j := mustOpen(t, o)
	done := make(chan error, 1)
	err := j.Append(&Append{
		Entries: []Entry{{Kind: KindMessages, Flags: 0x81, Payload: []byte("an order")}, {Kind: KindEnd, Payload: []byte("its end")}},
		Stored:  1_700_000_001_000_000_002,
		Done:    func(_ *Append, err error) { done <- err },
	})
	if err != nil {
		t.Fatal(err)
	}
	j.Kick()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := j.writeCutMark(88); err != nil {
		t.Fatal(err)
	}
	mark, err := journaltest.ReadFile(fs, fs.PathJoin(testDir, cutName))
	if err != nil {
		t.Fatal(err)
	}
	if err := j.removeCutMark(); err != nil {
		t.Fatal(err)
	}
	mustClose(t, j)
	b, err := journaltest.ReadFile(fs, fs.PathJoin(testDir, segmentName(0)))
	if err != nil {
		t.Fatal(err)
	}
	segment, cut := hexdump(b), hexdump(mark)

	// A copy of it: followed, synced, led by force, and what was cut of it before.
	copied := followOptions(fs)
	copied.Now = o.Now
	slave := mustOpen(t, copied)
	raw := stream{store: testStore, raw: b[headerBlockBytes : headerBlockBytes+176]}
	if err := feed(slave, &raw, 0, 176); err != nil {
		t.Fatal(err)
	}
	if _, err := slave.CutTo(136); err != nil {
		t.Fatal(err)
	}
	slave.SetCommitted(88)
	if err := slave.Sync(); err != nil {
		t.Fatal(err)
	}
	files := journaltest.Files(fs, copied.Dir)
	if err := slave.Lead(MakeEpoch(4, 2), true, nil); err != nil {
		t.Fatal(err)
	}
	files[epochsName] = journaltest.Files(fs, copied.Dir)[epochsName]
	mustClose(t, slave)
	text := segment + "-- " + cutName + "\n" + cut
	for _, name := range []string{endsName, epochsName, divergedDir + "/00000000000000000136-00000000000000000176-3.1.journal"} {
		text += "-- " + name + "\n" + hexdump(files[name])
	}
	golden(t, "format.hex", text)
	if e, number, ok, err := readEnds(fs, copied.Dir, &copied.StoreID); err != nil || !ok || number < 3 || e.Synced == 0 {
		t.Errorf("ends read as %+v, write %d, %v, %v", e, number, ok, err)
	}
	history, ok, err := readHistory(fs, copied.Dir, &copied.StoreID)
	if want := []EpochStart{{MakeEpoch(3, 1), 0, false}, {MakeEpoch(4, 2), 136, true}}; !ok || err != nil || !slices.Equal(history, want) {
		t.Errorf("epochs read as %v, want %v: %v", history, want, err)
	}

	// What the golden file says is read as what was written: two records, an epoch before and a no-op after them.
	segment, _, _ = strings.Cut(segment, "--")
	disk := journaltest.Disk(testDir, map[string][]byte{segmentName(0): unhexdump(t, segment, int(segmentBytesFloor))})
	var got strings.Builder
	o.FS = disk
	o.Recovered = func(r Record) error {
		fmt.Fprintf(&got, "%v flags %x epoch %v [%d,%d) durable %d stored %d %q\n", r.Kind, r.Flags, r.Epoch, r.Position, r.End(), r.Durable, r.Stored, r.Payload)
		return nil
	}
	mustClose(t, mustOpen(t, o))
	want := `epoch flags 0 epoch 3.1 [0,40) durable 0 stored 1700000000000000005 ""
messages flags 81 epoch 3.1 [40,88) durable 40 stored 1700000001000000002 "an order"
end flags 0 epoch 3.1 [88,136) durable 40 stored 1700000001000000002 "its end"
noop flags 0 epoch 3.1 [136,176) durable 136 stored 1700000000000000005 ""
`
	if got.String() != want {
		t.Errorf("read:\n%swant:\n%s", &got, want)
	}
	files = journaltest.Files(disk, testDir)
	if !bytes.Equal(files[segmentName(0)][:4096+136], b[:4096+136]) {
		t.Error("records were changed by recovery")
	}
}

// TestFileOperationsInDepth is TestFileOperations for recycling, footers, damage and the reserve.
func TestFileOperationsInDepth(t *testing.T) {
	var out strings.Builder
	fs := journaltest.New(nil)
	step := func(name string) {
		synctest.Wait()
		fmt.Fprintf(&out, "# %s\n", name)
		for _, op := range fs.TakeOps() {
			if !strings.Contains(op.Path, fillingSuffix) {
				fmt.Fprintln(&out, strings.ReplaceAll(op.String(), testDir+"/", ""))
			}
		}
		out.WriteByte('\n')
	}
	synctest.Test(t, func(t *testing.T) {
		s := sender{j: mustOpen(t, testOptions(fs))}
		recycling(t, &s, 3)
		for s.j.End()+3000 < s.j.mu.limit {
			s.mustSend(t, 2000)
		}
		synctest.Wait()
		fs.TakeOps()
		s.mustSend(t, 5000)
		step("append to the next segment, a recycled one")
		l := *s.j.list.Load()
		if l[len(l)-1].flags&flagRecycled == 0 {
			t.Error("it is not recycled")
		}
		if err := s.j.WriteFooter(l[0].base, []byte("what is in it")); err != nil {
			t.Fatal(err)
		}
		step("write a footer")
		if err := s.j.Trim(l[1].base); err != nil {
			t.Fatal(err)
		}
		step("trim one segment")
		sealed := l[1].base
		m, err := readAll(s.j, sealed)
		if err != nil {
			t.Fatal(err)
		}
		damage(t, fs.Mem(), s.j, m.records[3].Position, 10)
		if _, err := s.j.Heal(m.records[3].Position); err != nil {
			t.Fatal(err)
		}
		step("heal one record")
		for s.j.End()+6000 < s.j.mu.limit {
			s.mustSend(t, 5000)
		}
		synctest.Wait()
		fs.SetLimit(1)
		for s.send(5000) == nil {
		}
		synctest.Wait()
		fs.TakeOps()
		fs.SetBefore(nil)
		if err := control(s.j, 5000); err != nil {
			t.Fatal(err)
		}
		step("a control record, when no segment can be made")
		fs.SetLimit(0)
		mustClose(t, s.j)
		fs.TakeOps()
		files := journaltest.Files(fs, testDir)
		files[segmentName(sealed)][headerCopyBytes+20] ^= 1
		files[segmentName(sealed)][headerBlockBytes+9] ^= 1
		fs = journaltest.New(journaltest.Disk(testDir, files))
		s.j = mustOpen(t, testOptions(fs))
		step("open with a damaged header and a damaged record")
		mustClose(t, s.j)
	})
	golden(t, "operations_depth.txt", out.String())
}

// TestFileOperationsFollowing is TestFileOperations for a journal that follows: copying syncs nothing but the header of a new segment and its
// name, Sync what was written and then the ends file.
func TestFileOperationsFollowing(t *testing.T) {
	var out strings.Builder
	fs := journaltest.New(nil)
	a := stream{store: testStore}
	{
		s := sender{j: mustOpen(t, testOptions(journaltest.New(nil)))}
		for range 20 {
			s.mustSend(t, 6000)
		}
		a = streamOf(t, s.j)
		mustClose(t, s.j)
	}
	o := followOptions(fs)
	step := func(name string) {
		synctest.Wait()
		fmt.Fprintf(&out, "# %s\n", name)
		for _, op := range fs.TakeOps() {
			if !strings.Contains(op.Path, fillingSuffix) {
				fmt.Fprintln(&out, strings.ReplaceAll(op.String(), o.Dir+"/", ""))
			}
		}
		out.WriteByte('\n')
	}
	synctest.Test(t, func(t *testing.T) {
		j := mustOpen(t, o)
		step("open a new journal that follows")
		do := func(name string, err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
			step(name)
		}
		copyTo := func(n int) error { return feed(j, &a, j.Written(), a.records[n].Position) }
		do("copy the first records, and their epoch", copyTo(3))
		do("copy two more", copyTo(5))
		do("sync", j.Sync())
		do("sync again", j.Sync())
		do("copy up to the next segment", copyTo(12))
		do("sync both", j.Sync())
		j.SetCommitted(j.End())
		do("sync what is committed", j.Sync())
		_, err := j.CutTo(a.records[9].Position)
		do("cut", err)
		do("lead", j.Lead(MakeEpoch(2, 1), false, nil))
		do("close", j.Close())
		j = mustOpen(t, o)
		step("open after a clean stop")
		do("close", j.Close())
	})
	golden(t, "operations_following.txt", out.String())
}

// TestFileOperations holds the calls that change files to testdata/operations.txt: what is written, synced, named and synced again
// before anybody is answered. The preparer's are apart, because they happen meanwhile.
func TestFileOperations(t *testing.T) {
	var out strings.Builder
	fs := journaltest.New(nil)
	step := func(name string) {
		synctest.Wait()
		fmt.Fprintf(&out, "# %s\n", name)
		var filling []string
		for _, op := range fs.TakeOps() {
			line := strings.ReplaceAll(op.String(), testDir+"/", "")
			if strings.Contains(op.Path, fillingSuffix) && op.Call != journaltest.Remove {
				filling = append(filling, line)
				continue
			}
			fmt.Fprintln(&out, line)
		}
		for _, line := range filling {
			fmt.Fprintln(&out, "    meanwhile", line)
		}
		out.WriteByte('\n')
	}
	synctest.Test(t, func(t *testing.T) {
		o := testOptions(fs)
		o.IdleAfter = 0
		s := sender{j: mustOpen(t, o)}
		step("open a new journal")
		s.mustSend(t, 1000)
		step("append one record")
		a, err := s.queue(1000)
		b, err2 := s.queue(10, 10)
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		s.j.Kick()
		<-a
		<-b
		step("two appends in one commit")
		time.Sleep(time.Second)
		step("idle for a second")
		at := s.j.End()
		s.mustSend(t, 56000)
		step("fill the segment")
		s.mustSend(t, 5000)
		step("append to the next one")
		for range 20 {
			s.mustSend(t, 6000)
		}
		synctest.Wait()
		fs.TakeOps()
		if err := s.j.Trim((*s.j.list.Load())[1].base); err != nil {
			t.Fatal(err)
		}
		step("trim one segment")
		if err := s.j.Truncate((*s.j.list.Load())[0].base); err != nil {
			t.Fatal(err)
		}
		step("cut all that is left")
		if s.j.End() < at {
			t.Fatalf("end %d", s.j.End())
		}
		s.mustSend(t, 4000)
		synctest.Wait()
		fs.TakeOps()
		// What a process that is killed in the middle of a commit leaves.
		disk := fs.Crash(0, nil)
		mustClose(t, s.j)
		step("close")
		files := journaltest.Files(disk, testDir)
		for name, b := range files {
			if strings.HasPrefix(name, "0") {
				copy(b[headerBlockBytes+8000:], bytes.Repeat([]byte{7}, 3000))
			}
		}
		fs = journaltest.New(journaltest.Disk(testDir, files))
		o.FS = fs
		j := mustOpen(t, o)
		step("open with a torn tail: rewrite what is not proven, zero the rest")
		mustClose(t, j)
		step("close at once")
		o.FS = fs
		j = mustOpen(t, o)
		step("open after a clean stop")
		mustClose(t, j)
	})
	golden(t, "operations.txt", out.String())
	if !slices.Contains(strings.Split(out.String(), "\n"), "# close at once") {
		t.Error("not all steps were made")
	}
}
