package journal

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/journal/journaltest"
)

// TestIdleNoop: one no-op 50 ms after the last of some commits, and none after that; one at a clean stop unless the last record
// is one. It proves what came before: damage there is then damage.
func TestIdleNoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := journaltest.New(nil)
		o := testOptions(fs)
		o.IdleAfter = 0
		hooks := 0
		o.AfterCommit = func() { hooks++ }
		j := mustOpen(t, o)
		s := sender{j: j}
		time.Sleep(time.Second)
		if n := j.Metrics().Noops; n != 0 || hooks != 0 {
			t.Errorf("%d no-ops and %d hooks without a commit", n, hooks)
		}
		for range 10 { // 20 ms apart: never idle
			s.mustSend(t, 100)
			time.Sleep(20 * time.Millisecond)
		}
		if n := j.Metrics().Noops; n != 0 {
			t.Errorf("%d no-ops while busy", n)
		}
		end := j.Synced()
		time.Sleep(29 * time.Millisecond)
		if n := j.Metrics().Noops; n != 0 {
			t.Errorf("%d no-ops after 49 ms", n)
		}
		time.Sleep(2 * time.Millisecond)
		if n := j.Metrics().Noops; n != 1 {
			t.Errorf("%d no-ops after 51 ms", n)
		}
		time.Sleep(time.Minute)
		if n := j.Metrics().Noops; n != 1 {
			t.Errorf("%d no-ops after a minute", n)
		}
		r, _, err := j.ReadAt(end, nil)
		if err != nil || r.Kind != KindNoop || r.Durable != end || len(r.Payload) != 0 {
			t.Errorf("record %+v, %v; want a no-op that proves %d", r, err, end)
		}
		mustClose(t, j)
		report, err := Verify(fs, testDir, 0, nil)
		if err != nil || report.Records[KindNoop].Records != 1 || report.Proven != end {
			t.Errorf("closed after a no-op: %+v, %v", report, err)
		}
		j = mustOpen(t, o)
		s.j = j
		s.mustSend(t, 100)
		end = j.Synced()
		mustClose(t, j)
		report, err = Verify(fs, testDir, 0, nil)
		if err != nil || report.Records[KindNoop].Records != 2 || report.Proven != end {
			t.Errorf("closed after a message: %+v, %v; want proof of %d", report, err, end)
		}
	})
}

// TestHooks: BeforeCommit is asked at the start of each commit, also of one that Kick asked for while nothing is queued; what it
// appends is in that commit; a commit of nothing writes nothing; AfterCommit comes after all Done.
func TestHooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := journaltest.New(nil)
		o := testOptions(fs)
		var log []string
		gather := 0
		var j *Journal
		add := func(name string, urgent bool) error {
			return j.Append(&Append{Urgent: urgent, Entries: []Entry{{Kind: KindEnd, Payload: payload(1, 8)}},
				Done: func(_ *Append, err error) { log = append(log, fmt.Sprint(name, " ", err)) }})
		}
		o.BeforeCommit = func() {
			log = append(log, "before")
			if gather > 0 {
				gather--
				if err := add("gathered", true); err != nil {
					t.Error(err)
				}
			}
		}
		o.AfterCommit = func() { log = append(log, "after") }
		o.QueueLenMax = 2
		j = mustOpen(t, o)
		expect := func(what string, want ...string) {
			t.Helper()
			synctest.Wait()
			if fmt.Sprint(log) != fmt.Sprint(want) {
				t.Errorf("%s: %q, want %q", what, log, want)
			}
			log = nil
		}
		expect("open")
		fs.TakeOps()
		j.Kick()
		expect("kick with nothing", "before")
		if ops := fs.TakeOps(); len(ops) != 0 && ops[0].Call == journaltest.Write && !ops[0].Zeroes {
			t.Errorf("written: %v", ops)
		}
		gather = 1
		j.Kick()
		expect("kick with gathered", "before", "gathered <nil>", "after")
		gather = 1
		if err := add("a", false); err != nil {
			t.Error(err)
		}
		if err := add("b", false); err != nil {
			t.Error(err)
		}
		if err := add("c", false); !errors.Is(err, ErrBusy) {
			t.Errorf("third in a queue of two: %v, want ErrBusy", err)
		}
		if !j.TryLead() {
			t.Error("TryLead did not lead")
		}
		expect("lead", "before", "a <nil>", "b <nil>", "gathered <nil>", "after")
		if j.TryLead() {
			t.Error("TryLead led with nothing queued")
		}
		gather = 1
		mustClose(t, j)
		expect("close", "before", "gathered <nil>", "after")
	})
}

// TestDoneAppends: Done may append and ask for a commit; it is called without the lock.
func TestDoneAppends(t *testing.T) {
	j := mustOpen(t, testOptions(vfs.NewCrashableMem()))
	left, over := 10, make(chan error, 1)
	var a *Append
	a = &Append{Entries: []Entry{{Kind: KindMessages, Payload: payload(1, 100)}}, Done: func(got *Append, err error) {
		if left--; left == 0 || err != nil || got != a {
			over <- err
			return
		}
		if err := j.Append(a); err != nil {
			over <- err
		}
		j.TryLead()
		j.Kick()
	}}
	if err := j.Append(a); err != nil {
		t.Fatal(err)
	}
	j.TryLead()
	if err := <-over; err != nil {
		t.Fatal(err)
	}
	mustClose(t, j)
	if err := j.Append(a); !errors.Is(err, ErrClosed) {
		t.Errorf("append after Close: %v, want ErrClosed", err)
	}
	if _, _, err := j.ReadAt(0, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("read after Close: %v, want ErrClosed", err)
	}
	if err := j.Close(); !errors.Is(err, ErrClosed) {
		t.Errorf("second Close: %v, want ErrClosed", err)
	}
}

// TestLimits: what can never be appended is ErrTooLarge; a single append larger than a commit goes alone, and one larger than a
// segment gets a segment of its own.
func TestLimits(t *testing.T) {
	o := testOptions(vfs.NewCrashableMem())
	o.CommitBytesMax, o.QueueBytesMax = 4096, 300_000
	s := sender{j: mustOpen(t, o)}
	if err := s.send(300_000); !errors.Is(err, ErrTooLarge) {
		t.Errorf("larger than the queue: %v, want ErrTooLarge", err)
	}
	s.mustSend(t, 299_000)
	s.mustSend(t, 8)
	s.mustSend(t, 5000, 5000)
	var waits []<-chan error
	for range 5 {
		done, err := s.queue(1500)
		if err != nil {
			t.Fatal(err)
		}
		waits = append(waits, done)
	}
	before := s.j.Metrics().Commits
	s.j.Kick()
	for _, done := range waits {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	if got := s.j.Metrics().Commits - before; got != 3 {
		t.Errorf("5 appends of 1540 bytes in %d commits of at most 4096, want 3", got)
	}
	if m, err := readAll(s.j, 0); err != nil || m.next != s.next {
		t.Errorf("read up to %d (%v), want %d", m.next, err, s.next)
	}
	mustClose(t, s.j)
	for _, bad := range []Options{
		{}, {Dir: testDir, SegmentBytesMax: 65535}, {Dir: testDir, SegmentBytesMax: 70_000}, {Dir: testDir, SegmentBytesFirst: 4096},
		{Dir: testDir, CommitBytesMax: -1}, {Dir: testDir, QueueBytesMax: 2 << 30}, {Dir: testDir, QueueLenMax: -1}, {Dir: testDir, IdleAfter: -1},
	} {
		bad.FS = vfs.NewCrashableMem()
		if _, err := Open(bad); err == nil {
			t.Errorf("opened with %+v", bad)
		}
	}
}

// TestEpochs: each opening starts a new epoch, whose record is the first of it; a lower term is refused.
func TestEpochs(t *testing.T) {
	o := testOptions(vfs.NewCrashableMem())
	for _, c := range []struct {
		term uint32
		want Epoch
	}{{0, MakeEpoch(0, 1)}, {0, MakeEpoch(0, 2)}, {5, MakeEpoch(5, 3)}, {5, MakeEpoch(5, 4)}} {
		o.Term = c.term
		j := mustOpen(t, o)
		if j.Epoch() != c.want {
			t.Errorf("epoch %v, want %v", j.Epoch(), c.want)
		}
		m, err := readAll(j, 0)
		if err != nil {
			t.Fatal(err)
		}
		if r := m.records[len(m.records)-1]; r.Kind != KindEpoch || r.Epoch != c.want || r.End() != j.Synced() {
			t.Errorf("last record %+v, want the epoch %v", r, c.want)
		}
		mustClose(t, j)
	}
	o.Term = 4
	if _, err := Open(o); !errors.Is(err, ErrTerm) {
		t.Errorf("open with a lower term: %v, want ErrTerm", err)
	}
}

// TestStart: recovery from each record's position shows exactly the records from there on, and the new epoch is higher than the
// last, also when nothing follows the position. A position that no record ends at is refused.
func TestStart(t *testing.T) {
	mem := journaltest.New(nil)
	o := testOptions(mem)
	s := sender{j: mustOpen(t, o)}
	for range 40 {
		s.mustSend(t, 4000)
	}
	m, err := readAll(s.j, 0)
	if err != nil {
		t.Fatal(err)
	}
	last := s.j.Epoch()
	disk := mem.Crash(0, nil)
	mustClose(t, s.j)
	end := m.records[len(m.records)-1].End()
	for i := range len(m.records) + 1 {
		at, epoch := end, Epoch(0)
		if i < len(m.records) {
			at = m.records[i].Position
		}
		if i%2 == 0 && i > 0 {
			epoch = last
		}
		o := testOptions(disk.CrashClone(vfs.CrashCloneCfg{}))
		o.Start, o.StartEpoch = at, epoch
		shown := 0
		o.Recovered = func(r Record) error {
			if r.Position != m.records[i+shown].Position {
				return fmt.Errorf("record at %d, want %d", r.Position, m.records[i+shown].Position)
			}
			shown++
			return nil
		}
		var done, total int64
		o.Progress = func(d, t int64) { done, total = d, t }
		j := mustOpen(t, o)
		if shown != len(m.records)-i || j.Epoch() <= last {
			t.Errorf("from %d: %d records and epoch %v, want %d and more than %v", at, shown, j.Epoch(), len(m.records)-i, last)
		}
		if done != total {
			t.Errorf("from %d: progress ended at %d of %d", at, done, total)
		}
		mustClose(t, j)
	}
	for _, start := range []Position{8, end - 8, end + 8, end + 1<<30} {
		o := testOptions(disk.CrashClone(vfs.CrashCloneCfg{}))
		o.Start = start
		var corrupt *CorruptError
		if _, err := Open(o); !errors.As(err, &corrupt) {
			t.Errorf("from %d: %v, want *CorruptError", start, err)
		}
	}
	o = testOptions(disk)
	o.Recovered = func(Record) error { return io.ErrNoProgress }
	if _, err := Open(o); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("open: %v, want what Recovered said", err)
	}
}

// TestReadAt reads each record with buffers that are too small, right and large, and refuses positions where none is.
func TestReadAt(t *testing.T) {
	s := sender{j: mustOpen(t, testOptions(vfs.NewCrashableMem()))}
	for i := range 60 {
		s.mustSend(t, 10+i*150)
	}
	m, err := readAll(s.j, 0)
	if err != nil {
		t.Fatal(err)
	}
	if s.j.Metrics().Segments < 3 {
		t.Fatalf("%+v", s.j.Metrics())
	}
	n := uint64(0)
	for _, want := range m.records {
		for _, size := range []int{0, recordHeaderBytes, 100, RecordBytes(len(want.Payload)), 20_000} {
			r, buf, err := s.j.ReadAt(want.Position, make([]byte, size))
			if err != nil || r.Position != want.Position || r.Kind != want.Kind || len(r.Payload) != len(want.Payload) {
				t.Fatalf("at %d with %d bytes: %+v, %v", want.Position, size, r, err)
			}
			if len(r.Payload) > 0 && &r.Payload[0] != &buf[recordHeaderBytes] {
				t.Fatal("payload is not in the buffer returned")
			}
			if r.Kind == KindMessages {
				if got, err := number(r.Payload); err != nil || got != n {
					t.Fatalf("at %d: message %d, %v, want %d", want.Position, got, err, n)
				}
			}
		}
		if want.Kind == KindMessages {
			n++
		}
	}
	for pos, want := range map[Position]error{s.j.End(): ErrBeyond, s.j.End() + 1000: ErrBeyond, 8: new(CorruptError)} {
		_, _, err := s.j.ReadAt(pos, nil)
		if c, ok := want.(*CorruptError); ok && !errors.As(err, &c) || !ok && !errors.Is(err, want) {
			t.Errorf("at %d: %v, want %v", pos, err, want)
		}
	}
	if err := s.j.Trim(s.j.End()); err != nil {
		t.Fatal(err)
	}
	if got := s.j.Metrics().Segments; got != 1 {
		t.Errorf("%d segments after trimming all, want the current one", got)
	}
	if _, _, err := s.j.ReadAt(0, nil); !errors.Is(err, ErrTrimmed) {
		t.Errorf("trimmed: %v, want ErrTrimmed", err)
	}
	if _, err := s.j.NewReader(0).Next(); !errors.Is(err, ErrTrimmed) {
		t.Errorf("trimmed: %v, want ErrTrimmed", err)
	}
	mustClose(t, s.j)
}

// TestReaders: a reader in a segment that is trimmed reads on to its end; one that waits at the end goes on after more was
// committed; a cut ends those beyond it and lets the others go on.
func TestReaders(t *testing.T) {
	s := sender{j: mustOpen(t, testOptions(vfs.NewCrashableMem()))}
	for range 40 {
		s.mustSend(t, 4000)
	}
	next := func(r *Reader, want uint64) {
		t.Helper()
		for {
			rec, err := r.Next()
			if err != nil {
				t.Fatalf("message %d: %v", want, err)
			}
			if rec.Kind != KindMessages {
				continue
			}
			if n, err := number(rec.Payload); err != nil || n != want {
				t.Fatalf("message %d (%v), want %d", n, err, want)
			}
			return
		}
	}
	first, tail := s.j.NewReader(0), s.j.NewReader(0)
	next(first, 0)
	for n := range s.next {
		next(tail, n)
	}
	if _, err := tail.Next(); err != io.EOF {
		t.Fatalf("at the end: %v, want io.EOF", err)
	}
	s.mustSend(t, 100)
	next(tail, 40)

	second := (*s.j.list.Load())[1].base
	if err := s.j.Trim(second); err != nil {
		t.Fatal(err)
	}
	m, err := readAll(s.j, second)
	if err != nil {
		t.Fatal(err)
	}
	for n := uint64(1); n < m.first+3; n++ {
		next(first, n)
	}

	to := m.records[10].Position
	if err := s.j.Truncate(to); err != nil {
		t.Fatal(err)
	}
	if _, err := tail.Next(); !errors.Is(err, ErrBeyond) {
		t.Errorf("beyond the cut: %v, want ErrBeyond", err)
	}
	s.next = m.first + 10
	s.mustSend(t, 777)
	for n := m.first + 3; n < s.next; n++ {
		next(first, n)
	}
	if _, err := first.Next(); err != io.EOF {
		t.Errorf("at the end: %v, want io.EOF", err)
	}
	for pos, want := range map[Position]error{0: ErrTrimmed, s.j.End() + 8: ErrBeyond} {
		if err := s.j.Truncate(pos); !errors.Is(err, want) {
			t.Errorf("Truncate(%d): %v, want %v", pos, err, want)
		}
	}
	var corrupt *CorruptError
	if err := s.j.Truncate(to + 8); !errors.As(err, &corrupt) {
		t.Errorf("Truncate inside a record: %v, want *CorruptError", err)
	}
	if s.j.Err() != nil {
		t.Errorf("Err: %v", s.j.Err())
	}
	for _, r := range []*Reader{first, tail} {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if _, err := r.Next(); !errors.Is(err, ErrClosed) {
			t.Errorf("Next after Close: %v, want ErrClosed", err)
		}
	}
	mustClose(t, s.j)
}

// TestConcurrent: many appenders, some of which lead, readers that follow, random reads, a trimmer, on a journal that rolls all the
// time. Done comes in the order of positions; each appender's messages are in its order; nobody sees a record that is not synced.
// With no-ops in between, and without: then an append that a commit left behind would wait for ever.
func TestConcurrent(t *testing.T) {
	t.Run("noops", func(t *testing.T) { testConcurrent(t, time.Millisecond) })
	t.Run("no noops", func(t *testing.T) { testConcurrent(t, time.Hour) })
}

func testConcurrent(t *testing.T, idleAfter time.Duration) {
	o := testOptions(vfs.NewMem())
	o.QueueLenMax = 40
	o.IdleAfter = idleAfter
	var commits atomic.Int64
	o.AfterCommit = func() { commits.Add(1) }
	j := mustOpen(t, o)
	const appenders = 16
	each := 100
	if raceEnabled {
		each = 25
	}
	var order atomic.Uint64 // position of the last Done
	var wg sync.WaitGroup
	for w := range appenders {
		wg.Go(func() {
			done := make(chan error, 1)
			a := &Append{Entries: make([]Entry, 1), Done: func(a *Append, err error) {
				at := uint64(a.Entries[0].Position)
				if last := order.Swap(at); last >= at {
					t.Errorf("Done of %d after that of %d", at, last)
				}
				if Position(at) >= j.Synced() {
					t.Errorf("Done of %d before it is synced", at)
				}
				done <- err
			}}
			for i := range each {
				a.Entries[0] = Entry{Kind: KindMessages, Payload: payload(uint64(w)<<32|uint64(i), 20+(i*397+w*131)%3000)}
				for {
					err := j.Append(a)
					if err == nil {
						break
					}
					if !errors.Is(err, ErrBusy) {
						t.Error(err)
						return
					}
					if err := j.WaitRoom(t.Context()); err != nil {
						t.Error(err)
						return
					}
				}
				if w%2 == 0 {
					j.TryLead()
				} else {
					j.Kick()
				}
				if err := <-done; err != nil {
					t.Error(err)
					return
				}
				r, _, err := j.ReadAt(a.Entries[0].Position, nil)
				if err != nil && !errors.Is(err, ErrTrimmed) {
					t.Error(err)
				} else if err == nil && string(r.Payload) != string(a.Entries[0].Payload) {
					t.Errorf("read another payload at %d", r.Position)
				}
			}
		})
	}
	stop := make(chan struct{})
	var others sync.WaitGroup
	for range 2 {
		others.Go(func() {
			r := j.NewReader(0)
			defer func() { _ = r.Close() }()
			next := map[uint64]uint64{}
			for stopped := false; ; {
				rec, err := r.Next()
				if errors.Is(err, ErrTrimmed) { // fell behind
					_ = r.Close()
					r = j.NewReader(j.Begin())
					clear(next)
					continue
				}
				if err == io.EOF {
					if stopped {
						return
					}
					select {
					case <-stop:
						stopped = true
					default:
					}
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if rec.Kind != KindMessages {
					continue
				}
				n, err := number(rec.Payload)
				if want, ok := next[n>>32]; err != nil || ok && n != want {
					t.Errorf("appender %d: message %d (%v), want %d", n>>32, uint32(n), err, uint32(want))
					return
				}
				next[n>>32] = n + 1
			}
		})
	}
	others.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if end := j.Synced(); end > 300_000 {
				if err := j.Trim(end - 300_000); err != nil {
					t.Error(err)
				}
			}
			_ = j.Metrics()
		}
	})
	wg.Wait()
	close(stop)
	others.Wait()
	m := j.Metrics()
	if m.Appends != appenders*int64(each)+1 || m.QueueBytes != 0 || m.QueueLen != 0 || m.Rolls < 5 {
		t.Errorf("metrics %+v", m)
	}
	t.Logf("%+v", m)
	mustClose(t, j)
}

// TestNothingIsLeftBehind: an append that comes while a commit ends is in the next one, though its own TryLead found one running.
// In each round two goroutines append once and wait, so nothing else would ever commit it; their distance varies so that
// some meet that moment.
func TestNothingIsLeftBehind(t *testing.T) {
	o := testOptions(vfs.NewMem())
	o.SegmentBytesMax, o.SegmentBytesFirst = 8<<20, 8<<20
	j := mustOpen(t, o)
	rounds := 30_000
	if raceEnabled {
		rounds = 3000
	}
	sink := 0
	appender := func(seed uint64) func() bool {
		rng := newRandQuiet(seed)
		done := make(chan error, 1)
		a := &Append{Entries: []Entry{{Kind: KindEnd}}, Done: func(_ *Append, err error) { done <- err }}
		late := time.NewTimer(time.Hour)
		late.Stop()
		return func() bool {
			spin := 0
			for i := range rng.IntN(2000) {
				spin += i
			}
			if spin < 0 {
				sink++
			}
			if err := j.Append(a); err != nil {
				t.Error(err)
				return false
			}
			j.TryLead()
			late.Reset(10 * time.Second)
			defer late.Stop()
			select {
			case err := <-done:
				return err == nil
			case <-late.C:
				t.Error("an append was left behind")
				return false
			}
		}
	}
	one, other := appender(1), appender(2)
	begin, end := make(chan struct{}), make(chan bool)
	go func() {
		for range begin {
			end <- other()
		}
		close(end)
	}()
	for range rounds {
		begin <- struct{}{}
		ok := one()
		if !<-end || !ok {
			t.Error("not committed")
			break
		}
	}
	close(begin)
	<-end
	mustClose(t, j)
}

// TestNoAllocations: in the steady state an append, its commit and a read allocate nothing.
func TestNoAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("-race allocates")
	}
	o := testOptions(vfs.NewMem())
	o.SegmentBytesMax = 1 << 20
	o.BeforeCommit, o.AfterCommit = func() {}, func() {}
	j := mustOpen(t, o)
	defer func() { mustClose(t, j) }()
	var outcome error
	a := &Append{Entries: []Entry{{Kind: KindMessages, Payload: payload(1, 500)}}, Done: func(_ *Append, err error) { outcome = err }}
	buf := make([]byte, RecordBytes(500))
	run := func() {
		if err := j.Append(a); err != nil {
			t.Fatal(err)
		}
		if !j.TryLead() || outcome != nil {
			t.Fatal("not committed", outcome)
		}
		if _, _, err := j.ReadAt(a.Entries[0].Position, buf); err != nil {
			t.Fatal(err)
		}
	}
	run()
	run()
	if n := testing.AllocsPerRun(200, run); n != 0 {
		t.Errorf("%v allocations per append, want 0", n)
	}
}

// TestVerify reports what is there, from the begin and from a position, also of a journal with a torn tail and of an empty folder.
func TestVerify(t *testing.T) {
	fs := journaltest.New(nil)
	s := sender{j: mustOpen(t, testOptions(fs))}
	for range 30 {
		s.mustSend(t, 3000, 100)
	}
	disk := fs.Crash(0, nil)
	mustClose(t, s.j)
	s.j = mustOpen(t, testOptions(fs))
	s.mustSend(t, 9)
	proven := s.j.Synced()
	mustClose(t, s.j)
	r, err := Verify(fs, testDir, 0, func(done, total int64) {})
	if err != nil {
		t.Fatal(err)
	}
	if r.StoreID != testStore || r.Segments != 2 || r.Begin != 0 || r.From != 0 || r.End != proven+40 || r.Last != proven || r.Proven != proven ||
		r.TornBytes != 0 || r.Damage != nil || len(r.Epochs) != 2 || r.Epochs[1].Epoch != MakeEpoch(1, 2) ||
		r.Records[KindMessages] != (KindCount{61, 30*3100 + 9}) || r.Records[KindEpoch].Records != 2 || r.Records[KindNoop].Records != 2 ||
		r.Bytes != int64(r.End) {
		t.Errorf("report %+v", r)
	}
	r, err = Verify(fs, testDir, proven, nil)
	if err != nil || r.Damage != nil || r.From != proven || r.End != proven+40 || r.Records[KindNoop].Records != 1 || len(r.Records) != 1 {
		t.Errorf("from %d: %+v, %v", proven, r, err)
	}

	files := journaltest.Files(disk, testDir)
	last := sorted(files)[1]
	clear(files[last][headerBlockBytes+20000 : headerBlockBytes+20500])
	r, err = Verify(journaltest.Disk(testDir, files), testDir, 0, nil)
	if err != nil || r.Damage == nil {
		t.Errorf("damaged: %+v, %v", r, err)
	}
	r, err = Verify(journaltest.Disk(testDir, nil), testDir, 0, nil)
	if err != nil || r.Segments != 0 || r.Damage != nil {
		t.Errorf("empty folder: %+v, %v", r, err)
	}
	if _, err = Verify(disk, "/nowhere", 0, nil); err == nil {
		t.Error("no error for a folder that is not there")
	}
}

// TestKindNames: each kind has a name, and each a number of its own.
func TestKindNames(t *testing.T) {
	seen := map[string]Kind{}
	for k := KindNoop; k <= KindLost; k++ {
		if other, ok := seen[k.String()]; ok || k.String() == fmt.Sprintf("kind%d", k) {
			t.Errorf("kind %d is named %q, as is %d", k, k, other)
		}
		seen[k.String()] = k
	}
	if s := Kind(200).String(); s != "kind200" {
		t.Errorf("kind 200 is %q", s)
	}
}
