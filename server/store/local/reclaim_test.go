package local

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/journal/journaltest"
	"github.com/jmqio/jmq/server/store"
)

// life is a store that keeps a few messages of one partition while those of another come and go: in every segment is a little that is needed
// for ever. Bodies are their messages' indexes. Hooks read it while it runs.
type life struct {
	keep, noise store.Partition
	kept        atomic.Int64 // messages of keep that were answered
	sent        atomic.Int64 // and asked for
	noised      atomic.Int64 // of noise, answered
	noiseSent   atomic.Int64
	trim        atomic.Int64 // what noise was to be trimmed to, at most
	each        int          // messages of keep in each segment of noise
}

const noiseBytes = 4000

func (l *life) open(s *Store) error {
	for _, p := range []*store.Partition{&l.keep, &l.noise} {
		name := map[bool]string{true: "keep", false: "noise"}[p == &l.keep]
		topic, err := s.CreateTopic(context.Background(), store.Topic{Name: name, Partitions: 1}, "")
		if err != nil && !errors.Is(err, store.ErrTopicExists) {
			return err
		}
		*p = partitionOfTopic(topic, 0)
	}
	return nil
}

func (l *life) send(t testing.TB, s *Store, p store.Partition) error {
	sent, answered, pad := &l.sent, &l.kept, ""
	if p == l.noise {
		sent, answered, pad = &l.noiseSent, &l.noised, " "+strings.Repeat("n", noiseBytes)
	}
	n := sent.Load()
	sent.Add(1)
	r := appendWait(s, p, batchOf(t, fmt.Sprint(n)+pad))
	if r.err != nil {
		return r.err
	}
	if r.first != index.Index(n) {
		return fmt.Errorf("message %d has index %d", n, r.first)
	}
	answered.Store(n + 1)
	return nil
}

// round fills segments, trims the noise and frees what it can.
func (l *life) round(t testing.TB, s *Store) error {
	for range 3 {
		for range l.each {
			if err := l.send(t, s, l.keep); err != nil {
				return err
			}
		}
		for segments := s.Metrics().Journal.Segments; s.Metrics().Journal.Segments == segments; {
			if err := l.send(t, s, l.noise); err != nil {
				return err
			}
		}
	}
	_, end, err := s.Bounds(l.noise)
	if err != nil {
		return err
	}
	l.trim.Store(int64(end - 1))
	if err := s.Trim(l.noise, end-1); err != nil {
		return err
	}
	_, err = s.Reclaim(context.Background())
	return err
}

// state is a life at one moment.
type state struct{ kept, sent, noised, noiseSent, trim int64 }

func (l *life) state() state {
	return state{l.kept.Load(), l.sent.Load(), l.noised.Load(), l.noiseSent.Load(), l.trim.Load()}
}

// check opens what is left and holds it against before (when the power was lost) and after (what may have become of it meanwhile).
func (l *life) check(t testing.TB, fs vfs.FS, before, after state) error {
	o := options(fs)
	o.SegmentBytesMax = 64 << 10
	s, err := Open(o)
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer s.Close()
	if _, ok := s.Topic(0, "noise"); !ok {
		if before.sent > 0 {
			return errors.New("topics are lost")
		}
		return nil
	}
	look := func() error {
		for _, c := range []struct {
			p         store.Partition
			low, high int64
			first     int64
		}{{l.keep, before.kept, after.sent, 0}, {l.noise, before.noised, after.noiseSent, after.trim}} {
			first, end, err := s.Bounds(c.p)
			if err != nil || int64(first) > c.first || int64(end) < c.low || int64(end) > c.high {
				return fmt.Errorf("bounds of %+v: [%d, %d), %v, want the first up to %d, the end in [%d, %d]", c.p, first, end, err, c.first, c.low, c.high)
			}
			for at := first; at < end; {
				b, next, err := s.Read(c.p, at, end, 1<<20, nil)
				if err != nil {
					return fmt.Errorf("read of %+v from %d: %w", c.p, at, err)
				}
				for _, body := range split(t, b) {
					var n index.Index
					if _, err := fmt.Sscan(body, &n); err != nil || n != at {
						return fmt.Errorf("message %d of %+v is %.10q", at, c.p, body)
					}
					at++
				}
				if next != at {
					return fmt.Errorf("read up to %d says %d", at, next)
				}
			}
		}
		return nil
	}
	if err := look(); err != nil {
		return err
	}
	// And once more after everything that can go has gone.
	if _, err := s.Reclaim(context.Background()); err != nil {
		return fmt.Errorf("reclaim: %w", err)
	}
	if err := look(); err != nil {
		return fmt.Errorf("after reclaiming: %w", err)
	}
	return s.Close()
}

// TestReclaimCrash loses power after each file operation of trimming, carrying forward and freeing. No message that is kept is
// lost, none is there twice, each has its own index.
func TestReclaimCrash(t *testing.T) {
	r := random(t)
	fs := journaltest.New(nil)
	rng := rand.New(rand.NewPCG(uint64(r.Int63()), 3))
	l := &life{each: 5}
	o := options(fs)
	o.SegmentBytesMax = 64 << 10
	s := mustOpen(t, o)
	if err := l.open(s); err != nil {
		t.Fatal(err)
	}
	ops, checked, step := r.Intn(stride()), 0, stride()
	fs.SetAfter(func(op journaltest.Op) {
		ops++
		appended := strings.HasSuffix(op.Path, ".journal") && (op.Call == journaltest.Write || op.Call == journaltest.SyncData)
		if appended && ops%(7*step) != 0 || ops%step != 0 || t.Failed() {
			return
		}
		for _, percent := range []int{0, 50, 100} {
			before := l.state()
			clone := fs.Crash(percent, rng)
			checked++
			if err := l.check(t, clone, before, l.state()); err != nil {
				t.Errorf("crash with %d %% of the unsynced after operation %d, %v: %v", percent, ops, op, err)
				return
			}
		}
	})
	for range 3 {
		if err := l.round(t, s); err != nil {
			t.Fatal(err)
		}
	}
	fs.SetAfter(nil)
	m := s.Metrics()
	if m.CarriedRecords < 30 || m.ReclaimedBytes == 0 || m.Journal.Begin == 0 {
		t.Fatalf("%d records were carried forward, %d bytes freed", m.CarriedRecords, m.ReclaimedBytes)
	}
	mustClose(t, s)
	if err := l.check(t, fs, l.state(), l.state()); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d operations, %d crashes", ops, checked)
}

// TestReclaimFault fails each call of a Reclaim that carries forward, once; then the power is lost, or not.
func TestReclaimFault(t *testing.T) {
	r := random(t)
	rng := rand.New(rand.NewPCG(uint64(r.Int63()), 4))
	step := stride()
	hits := 0
	for k := 1 + r.Intn(step); ; k += step {
		fs := journaltest.New(nil)
		l := &life{each: 5}
		o := options(fs)
		o.SegmentBytesMax = 64 << 10
		s := mustOpen(t, o)
		if err := l.open(s); err != nil {
			t.Fatal(err)
		}
		if err := l.round(t, s); err != nil {
			t.Fatal(err)
		}
		calls, hit := 0, atomic.Bool{}
		fs.SetBefore(func(op journaltest.Op) journaltest.Fault {
			if calls++; calls != k {
				return journaltest.Fault{}
			}
			hit.Store(true)
			return journaltest.Fault{Err: journaltest.ErrInjected, After: k%2 == 0}
		})
		_ = l.round(t, s) // what it says is seen in what is there
		fs.SetBefore(nil)
		if !hit.Load() {
			mustClose(t, s)
			break
		}
		hits++
		before := l.state()
		clone := fs.Crash(50, rng)
		s.Close()
		for name, left := range map[string]vfs.FS{"crashed": clone, "opened again": fs} {
			if err := l.check(t, left, before, l.state()); err != nil {
				t.Fatalf("fault at call %d, %s: %v", k, name, err)
			}
		}
	}
	if hits < 100/step {
		t.Fatalf("only %d calls were hit", hits)
	}
}

// TestReclaimUnderLoad appends and reads while segments go: whoever reads a kept message gets it, wherever it is meanwhile.
func TestReclaimUnderLoad(t *testing.T) {
	o := options(vfs.NewMem())
	o.SegmentBytesMax = 64 << 10
	s := mustOpen(t, o)
	l := &life{each: 1}
	if err := l.open(s); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var reads atomic.Int64
	for i := range 2 {
		rng := rand.New(rand.NewPCG(1, uint64(i)))
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				n := l.kept.Load()
				if n == 0 {
					continue
				}
				at := index.Index(rng.Int64N(n))
				b, _, err := s.Read(l.keep, at, at+1, 1, nil)
				if err != nil {
					t.Errorf("read of %d of %d: %v", at, n, err)
					return
				}
				if got := split(t, b); len(got) != 1 || got[0] != fmt.Sprint(at) {
					t.Errorf("message %d is %v", at, got)
					return
				}
				reads.Add(1)
			}
		})
	}
	rounds := 10 // with more, what is kept would be more than a quarter of a segment
	if raceEnabled {
		rounds = 5
	}
	for range rounds {
		if err := l.round(t, s); err != nil {
			t.Error(err)
			break
		}
	}
	close(stop)
	wg.Wait()
	m := s.Metrics()
	if m.Journal.Segments > 8 || reads.Load() == 0 || m.CarriedRecords < int64(rounds*rounds/2) {
		t.Fatalf("%d segments are left, %d reads, %+v", m.Journal.Segments, reads.Load(), m)
	}
	mustClose(t, s)
}

// TestTopicsComeAndGo creates and deletes 500 topics while others are appended to: no file, goroutine or memory is left of them.
func TestTopicsComeAndGo(t *testing.T) {
	mem := vfs.NewMem()
	o := options(mem)
	s := mustOpen(t, o)
	ctx := context.Background()
	keep := partitionOfTopic(mustTopic(t, s, "keep", 1), 0)
	round := func(n int) {
		t.Helper()
		for i := range n {
			topic := mustTopic(t, s, fmt.Sprint("t", i), 8)
			for p := range 8 {
				if r := appendWait(s, partitionOfTopic(topic, p), batchOf(t, "x")); r.err != nil {
					t.Fatal(r.err)
				}
			}
			if r := appendWait(s, keep, batchOf(t, "kept")); r.err != nil {
				t.Fatal(r.err)
			}
			if i%50 == 49 {
				if err := s.Checkpoint(); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.DeleteTopic(ctx, topic.ID, topic.Incarnation, "", ""); err != nil {
				t.Fatal(err)
			}
		}
		s.drop()
	}
	files := func() int {
		t.Helper()
		n := 0
		for _, dir := range []string{"/store", "/store/index"} {
			names, err := mem.List(dir)
			if err != nil {
				t.Fatal(err)
			}
			n += len(names)
		}
		return n
	}
	round(50)
	if err := errors.Join(s.Checkpoint(), s.Checkpoint()); err != nil {
		t.Fatal(err)
	}
	goroutines, before := runtime.NumGoroutine(), files()
	round(500)
	s.merge(false) // the background may be late, and both checkpoints that are kept may name what it merged
	for range 2 {
		if r := appendWait(s, keep, batchOf(t, "kept")); r.err != nil {
			t.Fatal(r.err)
		}
		if err := s.Checkpoint(); err != nil {
			t.Fatal(err)
		}
	}
	for begin := time.Now(); runtime.NumGoroutine() > goroutines; runtime.Gosched() {
		if time.Since(begin) > 10*time.Second {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), goroutines)
		}
	}
	if n := files(); n > before+8 { // runs that are not merged yet
		t.Errorf("%d files, %d before", n, before)
	}
	if m := s.Metrics(); m.Topics != 1 || m.Index.Partitions != 1 {
		t.Errorf("%d topics, %d partitions", m.Topics, m.Index.Partitions)
	}
	if n := len(*s.byID.Load()); n > 3 {
		t.Errorf("ids up to %d for one topic at a time", n)
	}
	s.changing.Lock()
	if len(s.changing.names) != 0 || len(s.changing.free) > 3 {
		t.Errorf("%d changes, %d free ids", len(s.changing.names), len(s.changing.free))
	}
	s.changing.Unlock()
	mustClose(t, s)
	s = mustOpen(t, o)
	if _, end, err := s.Bounds(keep); end != 552 || err != nil || len(s.Topics()) != 1 {
		t.Fatal(end, err, s.Topics())
	}
	mustClose(t, s)
}

// TestBothCheckpointsGone removes or damages both checkpoints of a store whose log begins late: it says so, whatever is left, and starts
// with nothing less.
func TestBothCheckpointsGone(t *testing.T) {
	for name, damage := range damages {
		mem := vfs.NewCrashableMem()
		o := options(mem)
		o.SegmentBytesMax = 64 << 10
		s := mustOpen(t, o)
		l := &life{each: 5}
		if err := l.open(s); err != nil {
			t.Fatal(err)
		}
		if err := l.round(t, s); err != nil {
			t.Fatal(err)
		}
		if s.log.Begin() == 0 {
			t.Fatal("nothing was freed")
		}
		mustClose(t, s)
		all := find(t, mem, "/store", checkpointSuffix)
		if len(all) != checkpointsKept {
			t.Fatal(all)
		}
		change(t, mem, all[1], damage)
		clone := mem.CrashClone(vfs.CrashCloneCfg{})
		if err := l.check(t, clone, l.state(), l.state()); err != nil {
			t.Fatalf("%s: with the older one: %v", name, err)
		}
		if name == "empty" {
			err := errors.Join(mem.Remove(all[0]), mem.Remove(all[1]))
			if err != nil {
				t.Fatal(err)
			}
		} else {
			change(t, mem, all[0], damage)
		}
		for range 2 {
			_, err := Open(o)
			if err == nil || !strings.Contains(err.Error(), "no whole checkpoint left") || strings.Contains(err.Error(), "\n") {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
}

// TestSegmentsTakenAway removes the first segment of a log that was trimmed: the store sees that it was not its own doing.
func TestSegmentsTakenAway(t *testing.T) {
	mem := vfs.NewCrashableMem()
	o := options(mem)
	o.SegmentBytesMax = 64 << 10
	s := mustOpen(t, o)
	l := &life{each: 5}
	if err := l.open(s); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := l.round(t, s); err != nil {
			t.Fatal(err)
		}
	}
	mustClose(t, s)
	segments := find(t, mem, "/store/journal", ".journal")
	if len(segments) < 2 || strings.HasSuffix(segments[0], "/00000000000000000000.journal") {
		t.Fatal(segments)
	}
	if err := mem.Remove(segments[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(o); err == nil || strings.Contains(err.Error(), "\n") {
		t.Fatal(err)
	}
}

// TestCarriedGolden holds the bytes of carried-forward records, and that what is none is refused.
func TestCarriedGolden(t *testing.T) {
	rec := journal.Record{Kind: journal.KindMessages, Position: 4096, Epoch: journal.MakeEpoch(1, 2), Stored: 1e18, Payload: []byte("a batch")}
	one, err := appendCarried(nil, &rec)
	if err != nil {
		t.Fatal(err)
	}
	again, err := appendCarried(nil, &journal.Record{Kind: journal.KindCarriedForward, Position: 8192, Payload: one})
	if err != nil || !bytes.Equal(again, one) {
		t.Fatalf("carried again: %x, %v", again, err)
	}
	p := store.Partition{Topic: 258, Incarnation: 3, Partition: 4}
	lost := appendCarriedLost(nil, p, 1000, 71000, 4096, 1e18)
	c, err := parseCarried(lost)
	if err != nil {
		t.Fatal(err)
	}
	if gotP, from, to, err := c.lost(); gotP != p || from != 1000 || to != 71000 || err != nil {
		t.Fatal(gotP, from, to, err)
	}
	golden(t, "carried.golden", fmt.Appendf(nil, "# messages\n%s# lost\n%s", hex.Dump(one), hex.Dump(lost)))
	for i := range lost[:carriedHeaderBytes] {
		b := bytes.Clone(lost)
		b[i] ^= 0x80
		c, err := parseCarried(b)
		if (err == nil) != (i >= 8) {
			t.Fatalf("byte %d: %+v, %v", i, c, err)
		}
	}
	for i := range lost {
		c, err := parseCarried(lost[:i])
		if err == nil {
			_, _, _, err = c.lost()
		}
		if err == nil {
			t.Fatalf("cut at %d: accepted", i)
		}
	}
	if _, err := appendCarried(nil, &journal.Record{Kind: journal.KindCarriedForward, Payload: []byte("x")}); err == nil {
		t.Fatal("carried what is no carried record")
	}
}

// TestDiskFullToTheLastByte has others fill the disk while nothing is under way: not even a checkpoint finds room. What can go does
// nevertheless, whether it went as it was or its rest was carried forward, and the store can be opened on such a disk.
func TestDiskFullToTheLastByte(t *testing.T) {
	for _, carry := range []bool{false, true} {
		t.Run(fmt.Sprintf("carry %v", carry), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fs := journaltest.New(nil)
				o := options(fs)
				o.SegmentBytesMax = 64 << 10
				s := mustOpen(t, o)
				l := &life{each: 1}
				if err := l.open(s); err != nil {
					t.Fatal(err)
				}
				if carry {
					if err := l.send(t, s, l.keep); err != nil {
						t.Fatal(err)
					}
				}
				for len(s.log.Segments()) < 6 {
					if err := l.send(t, s, l.noise); err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
				}
				if err := s.Checkpoint(); err != nil {
					t.Fatal(err)
				}
				if err := l.send(t, s, l.noise); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute) // of the bubble: spares and the reserve are there
				fs.SetLimit(fs.Used())
				_, end, err := s.Bounds(l.noise)
				if err != nil {
					t.Fatal(err)
				}
				l.trim.Store(int64(end - 1))
				if err := s.Trim(l.noise, end-1); err != nil {
					t.Fatal(err)
				}
				if n, err := s.Reclaim(context.Background()); err != nil || n == 0 {
					t.Fatalf("%d bytes were freed on a full disk, %v", n, err)
				}
				time.Sleep(time.Minute)
				fs.SetLimit(fs.Used())
				_ = s.Close() // its checkpoint finds no room
				fs.SetLimit(fs.Used())
				again := mustOpen(t, o)
				_ = again.Close()
				fs.SetLimit(0)
				if err := l.check(t, fs, l.state(), l.state()); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

// TestDiskFull fills the disk again and again: sends are refused, acks and topic records go on, trimming and reclaiming make it writable
// again by itself, and what is kept is there, also after a power loss on the full disk.
func TestDiskFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := random(t)
		rng := rand.New(rand.NewPCG(uint64(r.Int63()), 5))
		fs := journaltest.New(nil)
		o := options(fs)
		o.SegmentBytesMax = 64 << 10
		s := mustOpen(t, o)
		l := &life{each: 1}
		if err := l.open(s); err != nil {
			t.Fatal(err)
		}
		if err := l.round(t, s); err != nil {
			t.Fatal(err)
		}
		rounds := 20
		if raceEnabled {
			rounds = 4
		}
		for round := range rounds {
			fs.SetLimit(fs.Used() + 300<<10)
			var err error
			for err == nil {
				err = l.send(t, s, l.noise)
			}
			l.noiseSent.Add(-1)
			if !errors.Is(err, journal.ErrNoSpace) {
				t.Fatalf("round %d: send on a full disk: %v", round, err)
			}
			done := make(chan error, 1)
			if err := s.AppendRecord(journal.KindEnd, []byte("acks"), func(err error) { done <- err }); err != nil {
				t.Fatalf("round %d: acks on a full disk: %v", round, err)
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if err := l.check(t, fs.Crash(50, rng), l.state(), l.state()); err != nil {
				t.Fatalf("round %d: power loss on the full disk: %v", round, err)
			}
			_, end, err := s.Bounds(l.noise)
			if err != nil {
				t.Fatal(err)
			}
			l.trim.Store(int64(end - 1))
			if err := s.Trim(l.noise, end-1); err != nil {
				t.Fatal(err)
			}
			if n, err := s.Reclaim(context.Background()); err != nil || n == 0 {
				t.Fatalf("round %d: %d bytes were freed on a full disk, %v", round, n, err)
			}
			for {
				err := l.send(t, s, l.keep)
				if err == nil {
					break
				}
				l.sent.Add(-1)
				if !errors.Is(err, journal.ErrNoSpace) {
					t.Fatalf("round %d: send after space was freed: %v", round, err)
				}
				time.Sleep(100 * time.Millisecond) // of the bubble: the journal prepares a segment
			}
		}
		mustClose(t, s)
		fs.SetLimit(0)
		if err := l.check(t, fs, l.state(), l.state()); err != nil {
			t.Fatal(err)
		}
	})
}

// TestNotCarried trims a partition step by step within its oldest segment: what is still needed of that is not carried forward, for it goes by
// itself. When the steps become small it is; and so is what another partition needs of the next segment, by the second call that sees it.
func TestNotCarried(t *testing.T) {
	o := options(vfs.NewMem())
	o.SegmentBytesMax, o.SegmentBytesFirst = 8<<20, 8<<20
	o.VerifyBytesPerSecond = -1
	s := mustOpen(t, o)
	topic := mustTopic(t, s, "orders", 2)
	moving, still := partitionOfTopic(topic, 0), partitionOfTopic(topic, 1)
	body := strings.Repeat("x", 64<<10)
	send := func(p store.Partition, n int) {
		t.Helper()
		for range n {
			if r := appendWait(s, p, batchOf(t, body)); r.err != nil {
				t.Fatal(r.err)
			}
		}
	}
	trim := func(p store.Partition, first index.Index) {
		t.Helper()
		if err := s.Trim(p, first); err != nil {
			t.Fatal(err)
		}
	}
	reclaim := func(what string, freed, carried bool) {
		t.Helper()
		before := s.Metrics()
		n, err := s.Reclaim(t.Context())
		m := s.Metrics()
		if err != nil || n > 0 != freed || m.CarriedRecords > before.CarriedRecords != carried {
			t.Fatalf("%s: %d bytes freed, %d records carried, %v; want %v, %v", what, n, m.CarriedRecords-before.CarriedRecords, err, freed, carried)
		}
	}
	for segments := s.Metrics().Journal.Segments; s.Metrics().Journal.Segments == segments; {
		send(moving, 1)
	}
	_, end, err := s.Bounds(moving)
	if err != nil {
		t.Fatal(err)
	}
	last := end - 1 // it is in the second segment
	// Of the second segment a twelfth is another partition's.
	send(still, 10)
	for s.Metrics().Journal.Segments < 3 {
		send(moving, 1)
	}
	trim(moving, last-60)
	reclaim("half is needed", false, false)
	trim(moving, last-24)
	reclaim("less than a quarter, and how fast it goes is not known", false, false)
	trim(moving, last-18)
	reclaim("a quarter less than before", false, false)
	trim(moving, last-14)
	reclaim("a little less than a quarter less", true, true)
	if first, _, err := s.Bounds(moving); err != nil || first != last-14 {
		t.Fatal(first, err)
	}
	_, end, err = s.Bounds(moving)
	if err != nil {
		t.Fatal(err)
	}
	trim(moving, end)
	reclaim("another partition's messages, seen for the first time", false, false)
	send(moving, 1)
	reclaim("they are as they were", true, true)
	if got, _ := bodies(t, s, still, 0, 10); len(got) != 10 || got[0] != body {
		t.Fatalf("%d messages", len(got))
	}
	mustClose(t, s)
	s = mustOpen(t, o)
	if got, _ := bodies(t, s, still, 0, 10); len(got) != 10 || got[9] != body {
		t.Fatalf("%d messages", len(got))
	}
	mustClose(t, s)
}
