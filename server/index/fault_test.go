package index

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/jmqio/jmq/server/journal/journaltest"
	"github.com/jmqio/jmq/server/servertest/mutate"
)

// rebuildFilled makes runs again from the journal that fill has written up to end.
func rebuildFilled(s *Set, end Index, keys []Key, ids ...RunID) error {
	b := s.Rebuild(0, ids...)
	defer b.Abort()
	for i := Index(0); i < end; i += 3 {
		for _, k := range keys {
			if err := b.Append(k, i, batchAt(i)); err != nil {
				return err
			}
		}
	}
	return b.Finish()
}

// reopen returns a set that was restored from what s is.
func reopen(t testing.TB, s *Set, fs vfs.FS, position uint64) *Set {
	t.Helper()
	c := open(t, fs, nil)
	if err := s.Snapshot(position, func(covered uint64, list []RunID) error { c.Reset(covered, list); return nil },
		func(st *State) error { c.Restore(st); return nil }); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestEveryByte flips each byte of a run, and cuts it at each: Load or the first who reads finds it, no wrong entry is ever given, and
// the run that is made again is the same file.
func TestEveryByte(t *testing.T) {
	fs := vfs.NewMem()
	s := open(t, fs, nil)
	other := Key{Topic: 7, Incarnation: 1, Partition: 4}
	keys := []Key{orders, other}
	fill(t, s, orders, 9)
	fill(t, s, other, 6)
	mustFlush(t, s, entryAt(9).Position)
	fill(t, s, orders, 12)
	id := s.Runs()[0]
	name := fs.PathJoin("index", id.name())
	raw := readAll(t, fs, name)
	try := func(what string, b []byte) {
		writeAll(t, fs, name, b)
		c := reopen(t, s, fs, entryAt(12).Position)
		defer c.Close()
		bad, err := c.Load()
		if err != nil && !(errors.Is(err, ErrVersion) && strings.HasPrefix(what, "byte 8 ")) {
			t.Fatalf("%s: %v", what, err)
		}
		found := len(bad) > 0 || err != nil
		if !found {
			for _, k := range keys {
				_, end := c.Bounds(k)
				got, err := c.Range(k, 0, end, nil)
				for i, e := range got {
					if e != entryAt(Index(i)) {
						t.Fatalf("%s: entry %d is %+v", what, i, e)
					}
				}
				var d *DamageError
				found = found || errors.As(err, &d) && d.Run == id
			}
		}
		if !found {
			t.Fatalf("%s: not found", what)
		}
		if err != nil {
			return
		}
		if err := rebuildFilled(c, 12, keys, id); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if _, missing := c.Check(0); len(missing) > 0 {
			t.Fatalf("%s: %v", what, missing)
		}
		mustRange(t, c, orders, 0, 12)
		mustRange(t, c, other, 0, 6)
		if got := readAll(t, fs, name); !slices.Equal(got, raw) {
			t.Fatalf("%s: the run is not what it was", what)
		}
	}
	for i := range raw {
		b := slices.Clone(raw)
		b[i] ^= 0x21
		try(fmt.Sprintf("byte %d changed", i), b)
		try(fmt.Sprintf("cut at %d", i), raw[:i])
	}
	try("longer", append(slices.Clone(raw), 0))
	try("zero", make([]byte, len(raw)))
}

// TestDamage shows what is said of a run that is missing, of another store or range, or newer.
func TestDamage(t *testing.T) {
	for _, c := range []struct {
		name, want string
		change     func(fs vfs.FS, name string, id RunID)
	}{
		{"missing", "missing", func(fs vfs.FS, name string, _ RunID) { _ = fs.Remove(name) }},
		{"store", "another store", func(fs vfs.FS, name string, id RunID) {
			writeAll(t, fs, name, append(appendHeader(nil, [16]byte{9}, id), readAll(t, fs, name)[headerBytes:]...))
		}},
		{"range", "of the range [1, 9000)", func(fs vfs.FS, name string, id RunID) {
			writeAll(t, fs, name, append(appendHeader(nil, storeID, RunID{1, 9000}), readAll(t, fs, name)[headerBytes:]...))
		}},
		{"old", "version 1", func(fs vfs.FS, name string, id RunID) {
			b := readAll(t, fs, name)
			b[8] = 1
			writeAll(t, fs, name, resum(b))
		}},
		{"newer", "version 7, this program reads up to 2", func(fs vfs.FS, name string, id RunID) {
			b := readAll(t, fs, name)
			b[8] = 7
			writeAll(t, fs, name, resum(b))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			fs := vfs.NewMem()
			s := open(t, fs, nil)
			fill(t, s, orders, 24)
			mustFlush(t, s, 9000)
			id := s.Runs()[0]
			c.change(fs, fs.PathJoin("index", id.name()), id)
			r := reopen(t, s, fs, 9000)
			bad, err := r.Load()
			if c.name == "newer" {
				if !errors.Is(err, ErrVersion) || !strings.Contains(err.Error(), c.want) {
					t.Fatal(err)
				}
				return
			}
			if err != nil || len(bad) != 1 || bad[0].Run != id || !strings.Contains(bad[0].Error(), c.want) {
				t.Fatal(bad, err)
			}
			if _, missing := r.Check(0); len(missing) != 1 || missing[0] != (Hole{orders, 0, 24}) {
				t.Fatal(missing)
			}
			if err := rebuildFilled(r, 24, []Key{orders}, id); err != nil {
				t.Fatal(err)
			}
			mustRange(t, r, orders, 0, 24)
		})
	}
	t.Run("journal too short", func(t *testing.T) {
		s := open(t, vfs.NewMem(), nil)
		fill(t, s, orders, 24)
		mustFlush(t, s, 9000)
		if err := rebuildFilled(s, 21, []Key{orders}, s.Runs()...); err == nil || !strings.Contains(err.Error(), "does not hold [21, 24)") {
			t.Fatal(err)
		}
		mustRange(t, s, orders, 0, 24) // it was sound
	})
}

func resum(b []byte) []byte {
	var id RunID
	h := appendHeader(nil, storeID, id)
	copy(h[8:60], b[8:60])
	copy(b, sumHeader(h))
	return b
}

// world is a set on a file system that fails, with what every call of it does.
type world struct {
	s    *Set
	keys []Key
	end  Index
}

func (w *world) add(t testing.TB, n Index) {
	w.end += n
	for _, k := range w.keys {
		fill(t, w.s, k, w.end)
	}
}

func (w *world) steps(t testing.TB, try func(func() error)) {
	flush := func() error { _, err := w.s.Flush(entryAt(w.end).Position); return err }
	merge := func() error {
		for {
			w.s.planned.Store(false) // the try after an error
			if more, err := w.s.Merge(1000); !more || err != nil {
				return err
			}
		}
	}
	for range mergeRuns {
		w.add(t, 30)
		try(flush)
		try(func() error { _, err := w.s.Range(orders, 0, w.end, nil); return err })
	}
	try(merge)
	if n := len(w.s.Runs()); n != 1 {
		t.Fatalf("%d runs after the merge", n)
	}
	try(func() error { return w.s.Sweep(nil) })
	try(func() error { return rebuildFilled(w.s, w.end, w.keys, w.s.Runs()...) })
	w.add(t, 3)
}

// TestErrorAtEveryCall fails each file operation of flushes, merges, rebuilds and reads once: nothing is lost, and the next
// try works.
func TestErrorAtEveryCall(t *testing.T) {
	for k := 1; ; k++ {
		mem := vfs.NewMem()
		calls, armed, failed := 0, false, false
		fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(errorfs.Op) error {
			if !armed {
				return nil
			}
			if calls++; calls == k {
				return errorfs.ErrInjected
			}
			return nil
		}))
		w := &world{keys: []Key{orders, {Topic: 8, Incarnation: 2}}, s: open(t, fs, func(o *Options) { o.RunBytesMax, o.FilesOpenMax = 1<<20, 3 })}
		w.steps(t, func(f func() error) {
			armed = true
			err := f()
			armed = false
			if err == nil {
				return
			}
			if failed || !errors.Is(err, errorfs.ErrInjected) {
				t.Fatalf("call %d: %v", k, err)
			}
			failed = true
			for _, k := range w.keys {
				mustRange(t, w.s, k, 0, w.end) // all is there, whatever failed
			}
			if err := f(); err != nil {
				t.Fatalf("call %d: second try: %v", k, err)
			}
		})
		for _, k := range w.keys {
			mustRange(t, w.s, k, 0, w.end)
		}
		w.s.Close()
		if calls < k {
			t.Logf("%d calls", calls)
			if calls < 50 {
				t.Fatal("the calls were not counted")
			}
			return
		}
	}
}

// TestDiskFull takes the space away at every size: calls fail with ENOSPC, nothing is lost, and with space they work.
func TestDiskFull(t *testing.T) {
	seen := 0
	for limit := int64(500); limit < 40_000; limit += 731 {
		fs := journaltest.New(nil)
		w := &world{keys: []Key{orders, {Topic: 8, Incarnation: 2}}, s: open(t, fs, func(o *Options) { o.RunBytesMax = 1 << 20 })}
		fs.SetLimit(limit)
		w.steps(t, func(f func() error) {
			err := f()
			if err == nil {
				return
			}
			if !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("limit %d: %v", limit, err)
			}
			seen++
			for _, k := range w.keys {
				mustRange(t, w.s, k, 0, w.end)
			}
			fs.SetLimit(0)
			if err := f(); err != nil {
				t.Fatalf("limit %d: with space: %v", limit, err)
			}
		})
		for _, k := range w.keys {
			mustRange(t, w.s, k, 0, w.end)
		}
		w.s.Close()
	}
	if seen < 20 {
		t.Fatalf("the disk was full %d times", seen)
	}
}

// TestReadError shows that an error of the disk is told, and is damage of that run.
func TestReadError(t *testing.T) {
	mem := vfs.NewMem()
	broken := false
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if broken && op.Kind == errorfs.OpFileReadAt {
			return syscall.EIO
		}
		return nil
	}))
	s := open(t, fs, nil)
	fill(t, s, orders, 129)
	mustFlush(t, s, entryAt(129).Position)
	broken = true
	var d *DamageError
	if _, err := s.Range(orders, 5, 7, nil); !errors.As(err, &d) || d.Index != 5 || d.Key != orders || d.Run != s.Runs()[0] || !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	if _, err := s.Seek(orders, 1); !errors.As(err, &d) {
		t.Fatal(err)
	}
	s.SetFirst(orders, 5) // so that the lowest position has to be read
	if low, ok := s.Oldest(); !ok || low > entryAt(5).Position {
		t.Fatalf("oldest is %d, which would let go of what is kept", low)
	}
	n := Index(0)
	s.Below(entryAt(64).Position, func(_ Key, from, to Index, _ int64) bool { n += to - from; return true })
	if n < 58 {
		t.Fatalf("%d entries below, which would let go of some", n)
	}
	broken = false
	if low, ok := s.Oldest(); !ok || low != entryAt(5).Position {
		t.Fatal(low, ok)
	}
}

// TestAtOnce appends, reads, flushes, merges, rebuilds and takes snapshots at the same time: each read has what was appended.
func TestAtOnce(t *testing.T) {
	fs := vfs.NewMem()
	s := open(t, fs, func(o *Options) { o.FilesOpenMax, o.RunBytesMax = 2, 256<<10 })
	var journal sync.RWMutex // position up to which all is appended
	end := Index(0)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	until := func(f func()) {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					f()
				}
			}
		})
	}
	now := func() Index {
		journal.RLock()
		defer journal.RUnlock()
		return end
	}
	until(func() {
		if _, err := s.Flush(entryAt(now()).Position); err != nil {
			t.Error(err)
		}
	})
	until(func() {
		if _, err := s.Merge(5000); err != nil {
			t.Error(err)
		}
	})
	until(func() {
		runs := s.Runs()
		e := now() // after it: the journal has what is in runs
		if len(runs) > 0 {
			if err := rebuildFilled(s, e, []Key{orders}, runs[int(e)%len(runs)]); err != nil {
				t.Error(err)
			}
		}
	})
	until(func() {
		var keep []RunID
		e := now()
		if err := s.Snapshot(entryAt(e).Position, func(_ uint64, list []RunID) error { keep = list; return nil },
			func(st *State) error {
				if got := st.Flushed + Index(len(st.Tail)); got > e || st.Key != orders {
					t.Errorf("state of %v ends at %d, want at most %d", st.Key, got, e)
				}
				return nil
			}); err != nil && !strings.Contains(err.Error(), "below what runs cover") {
			t.Error(err)
		}
		if err := s.Sweep(keep); err != nil {
			t.Error(err)
		}
	})
	for n := range 3 {
		until(func() {
			e := now()
			from := e / 4 * Index(n)
			mustRangeOf(t, s, from, min(from+200, e))
			if got, err := s.Seek(orders, entryAt(from).Stored); err != nil || got != from/3*3 && e > 0 {
				t.Errorf("seek: %d, %v, want %d", got, err, from/3*3)
			}
			s.Oldest()
			s.Bytes(orders)
		})
	}
	for range 3000 {
		journal.Lock()
		if _, err := s.Append(orders, end, batchAt(end)); err != nil {
			t.Fatal(err)
		}
		end += 3
		journal.Unlock()
	}
	close(stop)
	wg.Wait()
	mustRange(t, s, orders, 0, end)
}

func mustRangeOf(t *testing.T, s *Set, from, to Index) {
	got, err := s.Range(orders, from, to, nil)
	if err != nil || len(got) != int(to-from) {
		t.Errorf("range [%d, %d): %d entries, %v", from, to, len(got), err)
	}
	for i, e := range got {
		if e != entryAt(from+Index(i)) {
			t.Errorf("entry %d is %+v", int(from)+i, e)
		}
	}
}

// FuzzRun loads any bytes as a run, also with right checksums: an error or extents, never a panic, and what is read is what was written.
func FuzzRun(f *testing.F) {
	fs := mutate.NewDisk()
	s := open(f, fs, nil)
	fill(f, s, orders, 9)
	mustFlush(f, s, 9000)
	id := s.Runs()[0]
	name := fs.PathJoin("index", id.name())
	good := slices.Clone(fs.Bytes(name))
	seeds := [][]byte{good, {}, make([]byte, len(good)), good[:len(good)-5]}
	mutate.Fuzz(f, mutate.Decoder{Seeds: seeds, Slowness: 20, Check: func(t testing.TB, b []byte) bool {
		if len(b) >= headerBytes {
			b = slices.Clone(b)
			copy(b, sumHeader(b[:headerBytes]))
		}
		fs.Put(name, b)
		c := Open(Options{FS: fs, Dir: "index", StoreID: storeID, FlushBytes: 1})
		defer c.Close()
		c.Reset(9000, []RunID{id})
		c.Restore(&State{Key: orders, Flushed: 9})
		damaged, err := c.Load()
		if err != nil && !errors.Is(err, ErrVersion) {
			t.Fatal(err)
		}
		got, _ := c.Range(orders, 0, 9, nil)
		for i, e := range got {
			if e != entryAt(Index(i)) {
				t.Fatalf("entry %d is %+v", i, e)
			}
		}
		return err == nil && len(damaged) == 0
	}})
}
