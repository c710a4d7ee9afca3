package local

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal/journaltest"
	"github.com/jmqio/jmq/server/store"
)

// stateOf is what a store says of itself to whom reads it: topics, bounds, every message of every partition that another has too.
func stateOf(t testing.TB, s, other *Store) string {
	t.Helper()
	var w strings.Builder
	for _, topic := range s.Topics() {
		fmt.Fprintf(&w, "%+v\n", topic)
		for n := range int(topic.Partitions) {
			p := partitionOfTopic(topic, n)
			first, end, err := s.Bounds(p)
			if from, _, err := other.Bounds(p); err == nil {
				first = max(first, from)
			}
			fmt.Fprintf(&w, "  %d [%d, %d) %v:", n, first, end, err)
			for i := first; i < end; {
				b, next, err := s.Read(p, i, end, 1, nil)
				if gap := (*store.GapError)(nil); errors.As(err, &gap) {
					fmt.Fprintf(&w, " lost [%d, %d)", gap.From, gap.To)
					i = gap.To
					continue
				}
				if err != nil {
					t.Fatalf("read %d of partition %d: %v", i, n, err)
				}
				stored, err := s.Stored(p, i)
				fmt.Fprintf(&w, " %d@%d%v", len(b), stored, err)
				i = next
			}
			w.WriteString("\n")
		}
	}
	return w.String()
}

func seedOf(t testing.TB, s *Store) ([]byte, Seed) {
	t.Helper()
	var b bytes.Buffer
	seed, release, err := s.WriteSeed(&b)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return b.Bytes(), seed
}

// TestSeed: a store begun from a seed has, when it has read the journal, what the other has: topics, bounds, messages, what is lost, and
// what tables say; also when it is opened again, and when the other's journal begins late and holds carried-forward records.
func TestSeed(t *testing.T) {
	o := options(vfs.NewMem())
	o.SegmentBytesMax = 64 << 10
	was := &counter{}
	o.Tables = []store.Table{was}
	master := mustOpen(t, o)
	a, gone := mustTopic(t, master, "orders", 3), mustTopic(t, master, "gone", 2)
	slow := mustTopic(t, master, "slow", 1)
	send := func(topic store.Topic, n, batches int) {
		for i := range batches {
			if r := appendWait(master, partitionOfTopic(topic, n), batchOf(t, strings.Repeat("x", 1000+i), "y")); r.err != nil {
				t.Fatal(r.err)
			}
		}
	}
	send(slow, 0, 2)
	for n := range 2 {
		send(a, n, 150)
	}
	send(gone, 1, 3)
	for n := range 2 {
		if err := master.Trim(partitionOfTopic(a, n), 280); err != nil {
			t.Fatal(err)
		}
	}
	if err := master.DeleteTopic(t.Context(), gone.ID, gone.Incarnation, "", ""); err != nil {
		t.Fatal(err)
	}
	if _, err := master.Reclaim(t.Context()); err != nil {
		t.Fatal(err)
	}
	if master.log.Begin() == 0 || master.Metrics().CarriedRecords == 0 {
		t.Fatal("nothing was carried forward", master.log.Begin())
	}
	send(a, 0, 10)
	damageMessage(t, master, partitionOfTopic(a, 0), 305)
	if _, _, err := master.Read(partitionOfTopic(a, 0), 304, 305, 1, nil); !errors.Is(err, store.ErrDamaged) {
		t.Fatal(err)
	}
	master.healWanted()
	b, seed := seedOf(t, master)
	if seed.StoreID != master.StoreID() || seed.Position != master.Applied() || seed.Begin < master.log.Begin() {
		t.Fatalf("%+v", seed)
	}
	send(a, 1, 5) // and it goes on

	so := options(vfs.NewMem())
	so.Tables = []store.Table{&counter{}}
	made, err := BeginFromSeed(so, bytes.NewReader(b), int64(len(b)))
	if err != nil || made.StoreID == seed.StoreID || made.Position != seed.Position || made.Begin != seed.Begin {
		t.Fatal(made, seed, err)
	}
	if _, err := BeginFromSeed(so, bytes.NewReader(b), int64(len(b))); err == nil {
		t.Fatal("a store was begun over another")
	}
	want := stateOf(t, master, master)
	for range 3 { // from the seed, from its own checkpoint, and again
		slave, _ := onlook(t, master, so)
		if slave.StoreID() != made.StoreID {
			t.Fatal("another store id")
		}
		if got := stateOf(t, slave, slave); got != want {
			t.Fatalf("got\n%s\nwant\n%s", got, want)
		}
		if got := so.Tables[0].(*counter).seen.Load(); got != was.seen.Load() {
			t.Fatal(got)
		}
		mustClose(t, slave)
	}
	mustClose(t, master)
}

// TestSeedPin: what a seed needs of the log stays until it is released.
func TestSeedPin(t *testing.T) {
	o := options(vfs.NewMem())
	o.SegmentBytesMax = 64 << 10
	s := mustOpen(t, o)
	topic := mustTopic(t, s, "orders", 1)
	p := partitionOfTopic(topic, 0)
	send := func() (end index.Index) {
		for range 200 {
			r := appendWait(s, p, batchOf(t, strings.Repeat("x", 1000)))
			if r.err != nil {
				t.Fatal(r.err)
			}
			end = r.first + 1
		}
		return end
	}
	send()
	seed, release, err := s.WriteSeed(new(bytes.Buffer))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Trim(p, send()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Reclaim(t.Context()); err != nil || s.log.Begin() != seed.Begin {
		t.Fatalf("log begins at %d, the seed at %d, %v", s.log.Begin(), seed.Begin, err)
	}
	release()
	if _, err := s.Reclaim(t.Context()); err != nil || s.log.Begin() < seed.Position {
		t.Fatalf("log begins at %d, %v", s.log.Begin(), err)
	}
	mustClose(t, s)
}

// TestSeedDamaged: no damaged or cut seed begins a store, nor a checkpoint.
func TestSeedDamaged(t *testing.T) {
	s := mustOpen(t, options(vfs.NewMem()))
	topic := mustTopic(t, s, "orders", 2)
	if r := appendWait(s, partitionOfTopic(topic, 0), batchOf(t, "x")); r.err != nil {
		t.Fatal(r.err)
	}
	b, _ := seedOf(t, s)
	for i := range len(b) {
		bad := bytes.Clone(b)
		bad[i] ^= 4
		if _, err := ReadSeed(bytes.NewReader(bad), int64(len(bad))); err == nil {
			t.Fatalf("byte %d is flipped, and the seed is taken", i)
		}
		if _, err := ReadSeed(bytes.NewReader(b[:i]), int64(i)); !errors.Is(err, ErrSeed) {
			t.Fatalf("seed cut at %d: %v", i, err)
		}
	}
	if err := s.Checkpoint(); err != nil {
		t.Fatal(err)
	}
	c, err := readFile(s.opt.FS, s.folder.path(checkpointName(s.background.mu.position)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ReadSeed(bytes.NewReader(c), int64(len(c))); !errors.Is(err, ErrSeed) {
		t.Fatalf("a checkpoint as a seed: %v", err)
	}
	mustClose(t, s)
}

// TestSeedCrash: a store begun from a seed is not there before it is whole.
func TestSeedCrash(t *testing.T) {
	s := mustOpen(t, options(vfs.NewMem()))
	topic := mustTopic(t, s, "orders", 2)
	if r := appendWait(s, partitionOfTopic(topic, 0), batchOf(t, "x")); r.err != nil {
		t.Fatal(r.err)
	}
	b, seed := seedOf(t, s)
	want := stateOf(t, s, s)
	rng := rand.New(rand.NewPCG(uint64(random(t).Int63()), 0))
	whole := 0
	for n := 1; ; n++ {
		mem := journaltest.New(vfs.NewCrashableMem())
		mem.SetBefore(func(op journaltest.Op) journaltest.Fault {
			if op.N >= n {
				return journaltest.Fault{Err: journaltest.ErrInjected}
			}
			return journaltest.Fault{}
		})
		o := options(mem)
		_, err := BeginFromSeed(o, bytes.NewReader(b), int64(len(b)))
		mem.SetBefore(nil)
		o.FS = mem.Crash(rng.IntN(101), rng)
		if id, reached, known := Known(o.FS, o.Dir); known == nil && id != nil {
			if reached != seed.Position {
				t.Fatalf("after %d calls the store is there without its checkpoint", n)
			}
			again, _ := onlook(t, s, o)
			if got := stateOf(t, again, again); got != want {
				t.Fatalf("got\n%s\nwant\n%s", got, want)
			}
			mustClose(t, again)
			whole++
		} else if err == nil {
			t.Fatalf("the store was begun, and after a crash it is not there: %v", known)
		}
		if err == nil {
			break
		}
	}
	if whole == 0 {
		t.Fatal("no store was begun")
	}
	mustClose(t, s)
}
