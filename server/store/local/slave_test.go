package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/journal/journaltest"
	"github.com/jmqio/jmq/server/replica"
	"github.com/jmqio/jmq/server/store"
)

// slaveOptions are of a store whose journal copies another one's.
func slaveOptions(fs vfs.FS, begin journal.Position) Options {
	o := options(fs)
	o.SegmentBytesMax = 64 << 10
	o.Follow = true
	o.OpenLog = func(lo LogOptions) (Log, error) {
		lo.Follow, lo.Begin = true, begin
		j, err := journal.Open(lo)
		if err != nil {
			return nil, err
		}
		return j, nil
	}
	return o
}

func journalOf(s *Store) *journal.Journal {
	if solo, ok := s.log.(*replica.Solo); ok {
		return solo.Journal
	}
	return s.log.(*journal.Journal)
}

// copyUp copies up to bytes of what the slave has not, and says what of it is committed.
func copyUp(t testing.TB, master, slave *Store, bytes int) error {
	t.Helper()
	from, to := journalOf(master), journalOf(slave)
	buf := make([]byte, 64<<10)
	for at := to.Written(); bytes > 0 && at < from.Written(); at = to.Written() {
		n, err := from.ReadRaw(at, buf)
		if err != nil {
			t.Fatal(err)
		}
		for {
			err = to.CopyRecords(at, buf[:n], master.StoreID())
			if !errors.Is(err, journal.ErrBusy) {
				break
			}
			if err := to.WaitRoom(t.Context()); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
		bytes -= n
	}
	to.SetCommitted(from.Committed())
	return nil
}

// follows waits until the slave has what the master has, and compares what they say.
func follows(t testing.TB, master, slave *Store) {
	t.Helper()
	if err := copyUp(t, master, slave, 1<<30); err != nil {
		t.Fatal(err)
	}
	if err := slave.WaitApplied(t.Context(), master.Applied()); err != nil {
		t.Fatal(err)
	}
	if got, want := stateOf(t, slave, master), stateOf(t, master, slave); got != want {
		t.Fatalf("the slave has\n%s\nthe master\n%s", got, want)
	}
	// A slave lets go of what its master let go of, never of more.
	for _, topic := range master.Topics() {
		for n := range int(topic.Partitions) {
			p := partitionOfTopic(topic, n)
			at, _, err := slave.Bounds(p)
			most, _, _ := master.Bounds(p)
			if err != nil || at > most {
				t.Fatalf("partition %d of topic %d begins at %d at the slave, at the master at %d: %v", n, topic.ID, at, most, err)
			}
		}
	}
	if got, want := slave.dedupe.Snapshot(nil), master.dedupe.Snapshot(nil); !bytes.Equal(got, want) {
		t.Fatalf("the slave's windows are %x, the master's %x", got, want)
	}
}

// TestSlaveCrash: a slave copies a master under a random load of sends, topics, trims and carried-forward records, loses power, is killed,
// and begins anew from a seed; each time it opens, and follows on to where the master is.
func TestSlaveCrash(t *testing.T) {
	seed := uint64(random(t).Int63())
	rng := rand.New(rand.NewPCG(seed, 1))
	mo := options(vfs.NewMem())
	mo.SegmentBytesMax = 64 << 10
	master := mustOpen(t, mo)
	topics := []store.Topic{mustTopic(t, master, "orders", 2), mustTopic(t, master, "slow", 1)}
	sequence := uint64(0)
	send := func(n int) {
		for range n {
			topic := topics[rng.IntN(len(topics))]
			p := partitionOfTopic(topic, rng.IntN(int(topic.Partitions)))
			b := batchOf(t, strings.Repeat("x", rng.IntN(3000)))
			b[48], b[64], b[65] = 1, byte(sequence), byte(sequence>>8)
			sequence++
			if r := appendWait(master, p, b); r.err != nil {
				t.Fatal(r.err)
			}
		}
	}
	load := func() {
		send(rng.IntN(20))
		switch rng.IntN(8) {
		case 0:
			p := partitionOfTopic(topics[0], rng.IntN(2))
			_, end, _ := master.Bounds(p)
			if err := master.Trim(p, end); err != nil {
				t.Fatal(err)
			}
			if _, err := master.Reclaim(t.Context()); err != nil {
				t.Fatal(err)
			}
		case 1:
			if err := master.DeleteTopic(t.Context(), topics[1].ID, topics[1].Incarnation, "", ""); err != nil {
				t.Fatal(err)
			}
			topics[1] = mustTopic(t, master, "slow", 1)
		}
	}
	rounds := 60
	if raceEnabled {
		rounds = 15
	}
	disk := journaltest.New(vfs.NewCrashableMem())
	begin := journal.Position(0)
	trimmed, crashed, seeds := 0, 0, 0
	for round := range rounds {
		slave, err := Open(slaveOptions(disk, begin))
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		for range 1 + rng.IntN(5) {
			load()
			if journalOf(slave).Written() < journalOf(master).Begin() {
				break // it has fallen behind what the master has
			}
			if err := copyUp(t, master, slave, rng.IntN(200<<10)); err != nil {
				t.Fatal(err)
			}
			switch rng.IntN(5) {
			case 0:
				if err := journalOf(slave).Sync(); err != nil {
					t.Fatal(err)
				}
			case 1:
				if err := slave.Checkpoint(); err != nil {
					t.Fatal(err)
				}
			case 2:
				slave.FollowTrim(master.log.Begin(), master.Applied())
				if err := slave.trimAlong(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if journalOf(slave).Written() < journalOf(master).Begin() {
			seeds++
			var seed bytes.Buffer
			made, release, err := master.WriteSeed(&seed)
			if err != nil {
				t.Fatal(err)
			}
			disk = journaltest.New(vfs.NewCrashableMem())
			begin = made.Begin
			mustClose(t, slave)
			if _, err := BeginFromSeed(options(disk), bytes.NewReader(seed.Bytes()), int64(seed.Len())); err != nil {
				t.Fatal(err)
			}
			j, err := journal.Open(journal.Options{FS: disk, Dir: "/store/journal", StoreID: storeIDOf(t, disk), SegmentBytesMax: 64 << 10, SegmentBytesFirst: 64 << 10, Follow: true, Begin: begin})
			if err != nil {
				t.Fatal(err)
			}
			copying := &Store{log: j}
			if err := copyUp(t, master, copying, 1<<30); err != nil {
				t.Fatal(err)
			}
			release()
			if err := j.Close(); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if rng.IntN(2) == 0 {
			follows(t, master, slave)
			slave.FollowTrim(master.log.Begin(), master.Applied())
			before := slave.log.Begin()
			for range 3 { // both checkpoints that are kept must be from after it let go
				if err := slave.trimAlong(); err != nil {
					t.Fatal(err)
				}
				send(1)
				follows(t, master, slave)
				if err := slave.Checkpoint(); err != nil {
					t.Fatal(err)
				}
			}
			if slave.log.Begin() > before {
				trimmed++
			}
		}
		switch rng.IntN(3) {
		case 0:
			mustClose(t, slave)
		default:
			crashed++
			next := journaltest.New(disk.Crash(rng.IntN(101), rng))
			slave.Close() // of a disk that nobody sees any more
			disk = next
		}
	}
	slave := mustOpen(t, slaveOptions(disk, begin))
	if journalOf(slave).Written() >= journalOf(master).Begin() {
		follows(t, master, slave)
	}
	mustClose(t, slave)
	mustClose(t, master)
	t.Logf("%d crashes, %d trims, %d full copies", crashed, trimmed, seeds)
	if crashed == 0 || trimmed == 0 && !raceEnabled {
		t.Fatal("nothing was crashed, or trimmed")
	}
}

func storeIDOf(t testing.TB, fs vfs.FS) [16]byte {
	t.Helper()
	id, _, err := Known(fs, "/store")
	if err != nil || id == nil {
		t.Fatal(id, err)
	}
	return *id
}

// TestCutBelowApplied: a slave's journal is cut below what its store has applied, and has grown again from another master. The store takes
// the older checkpoint, or the journal's begin, and has what the other master has; where neither is there, only a copy helps.
func TestCutBelowApplied(t *testing.T) {
	for _, c := range []string{"older checkpoint", "no checkpoint", "grown beyond it", "older checkpoint damaged, and trimmed"} {
		t.Run(c, func(t *testing.T) {
			disk := vfs.NewCrashableMem()
			master := mustOpen(t, options(disk))
			topic := mustTopic(t, master, "orders", 1)
			p := partitionOfTopic(topic, 0)
			send := func(s *Store, n int) {
				for i := range n {
					if r := appendWait(s, p, batchOf(t, fmt.Sprint(i), strings.Repeat("x", 2000))); r.err != nil {
						t.Fatal(r.err)
					}
				}
			}
			send(master, 10)
			fs := vfs.NewMem()
			slave := mustOpen(t, slaveOptions(fs, 0))
			follows(t, master, slave)
			if c != "no checkpoint" {
				if err := slave.Checkpoint(); err != nil {
					t.Fatal(err)
				}
			}
			// What follows the other master does not have: it went on from here.
			common := master.log.Committed()
			image := disk.CrashClone(vfs.CrashCloneCfg{})
			send(master, 10)
			follows(t, master, slave)
			mustClose(t, slave)
			old := slave.Metrics().Checkpoint
			mustClose(t, master)
			master = mustOpen(t, options(image))
			if master.log.Committed() < common {
				t.Fatal("the image has lost something")
			}
			send(master, 3)

			j, err := journal.Open(journal.Options{FS: fs, Dir: "/store/journal", StoreID: slave.StoreID(), SegmentBytesMax: 64 << 10, SegmentBytesFirst: 64 << 10, Follow: true})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := j.CutTo(common); err != nil {
				t.Fatal(err)
			}
			if c == "grown beyond it" {
				send(master, 20)
				if err := copyUp(t, master, &Store{log: j}, 1<<30); err != nil {
					t.Fatal(err)
				}
				if j.Committed() <= old {
					t.Fatal("it did not grow")
				}
			}
			if err := j.Close(); err != nil {
				t.Fatal(err)
			}
			if strings.HasSuffix(c, "trimmed") {
				for _, pos := range []journal.Position{common, old} {
					journaltest.WriteFile(fs, "/store/"+checkpointName(pos), []byte("x"))
				}
				o := slaveOptions(fs, 0)
				open := o.OpenLog
				o.OpenLog = func(lo LogOptions) (Log, error) {
					l, err := open(lo)
					if err != nil {
						return nil, err
					}
					return late{l.(FollowedLog)}, nil
				}
				if _, err := Open(o); !errors.Is(err, ErrNeedsCopy) {
					t.Fatalf("opened: %v", err)
				}
				mustClose(t, master)
				return
			}
			for range 2 {
				slave = mustOpen(t, slaveOptions(fs, 0))
				follows(t, master, slave)
				mustClose(t, slave)
			}
			mustClose(t, master)
		})
	}
}

// TestTrimAlongWaits: a slave that has not applied what its master carried forward lets go of nothing when it hears that the master has trimmed; when
// it has applied that, it does.
func TestTrimAlongWaits(t *testing.T) {
	mo := options(vfs.NewMem())
	mo.SegmentBytesMax = 64 << 10
	master := mustOpen(t, mo)
	defer mustClose(t, master)
	topic := mustTopic(t, master, "orders", 2)
	still, moving := partitionOfTopic(topic, 0), partitionOfTopic(topic, 1)
	send := func(p store.Partition) {
		t.Helper()
		if r := appendWait(master, p, batchOf(t, strings.Repeat("x", 2000))); r.err != nil {
			t.Fatal(r.err)
		}
	}
	send(still)
	for master.Metrics().Journal.Segments < 4 {
		send(moving)
	}
	slave := mustOpen(t, slaveOptions(vfs.NewMem(), 0))
	defer func() { mustClose(t, slave) }()
	follows(t, master, slave)
	_, end, err := master.Bounds(moving)
	if err != nil {
		t.Fatal(err)
	}
	if err := master.Trim(moving, end-1); err != nil {
		t.Fatal(err)
	}
	for range 3 { // carried by one, freed by a later one
		if _, err := master.Reclaim(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if m := master.Metrics(); m.Journal.Begin == 0 || m.CarriedRecords == 0 {
		t.Fatalf("the master's log begins at %d, %d records were carried", m.Journal.Begin, m.CarriedRecords)
	}
	slave.FollowTrim(master.log.Begin(), master.Applied())
	if err := slave.trimAlong(); err != nil {
		t.Fatal(err)
	}
	for _, p := range []store.Partition{still, moving} {
		if first, _, err := slave.Bounds(p); first != 0 || err != nil {
			t.Errorf("partition %d begins at %d before the slave has what was carried forward: %v", p.Partition, first, err)
		}
	}
	follows(t, master, slave)
	for range 2 { // both that are kept are from after that
		if err := slave.trimAlong(); err != nil {
			t.Fatal(err)
		}
		send(moving)
		follows(t, master, slave)
		if err := slave.Checkpoint(); err != nil {
			t.Fatal(err)
		}
	}
	if err := slave.trimAlong(); err != nil {
		t.Fatal(err)
	}
	if got, want := slave.log.Begin(), master.log.Begin(); got != want {
		t.Errorf("the slave's log begins at %d, the master's at %d", got, want)
	}
	follows(t, master, slave)
}

// late is a log that says that it begins late.
type late struct{ FollowedLog }

func (late) Begin() journal.Position { return 4096 }

// TestMend: damage that the verifier or a reader finds is asked for from the copy before messages count as lost, and again later.
func TestMend(t *testing.T) {
	o := options(vfs.NewMem())
	var s *Store
	asked, away := 0, true
	var whole []byte
	o.Mend = func(_ context.Context, from, to journal.Position) error {
		asked++
		if away {
			return errors.New("the other is away")
		}
		at := int(from)
		return journalOf(s).Mend(journal.Hole{From: from, To: to}, bytes.Clone(whole[at:at+int(to-from)]), s.StoreID())
	}
	s = mustOpen(t, o)
	topic := mustTopic(t, s, "orders", 1)
	p := partitionOfTopic(topic, 0)
	for i := range 10 {
		if r := appendWait(s, p, batchOf(t, fmt.Sprint(i))); r.err != nil {
			t.Fatal(r.err)
		}
	}
	buf := make([]byte, 64<<10)
	n, err := journalOf(s).ReadRaw(0, buf)
	if err != nil {
		t.Fatal(err)
	}
	whole = buf[:n]
	damageMessage(t, s, p, 5)
	if _, _, err := s.Read(p, 5, 6, 1, nil); !errors.Is(err, store.ErrDamaged) {
		t.Fatal(err)
	}
	s.healWanted()
	if gap := (*store.GapError)(nil); asked != 1 || s.Metrics().LostMessages != 1 {
		t.Fatal(asked, s.Metrics().LostMessages)
	} else if _, _, err := s.Read(p, 5, 6, 1, nil); !errors.As(err, &gap) {
		t.Fatal(err)
	}
	away = false
	s.healing.mu.after = time.Time{}
	s.mendAgain()
	if got, _ := bodies(t, s, p, 5, 6); fmt.Sprint(got) != "[5]" {
		t.Fatal(got)
	}
	if m := s.Metrics(); asked != 2 || m.LostMessages != 0 || m.Mended != 1 || m.Healed != 1 {
		t.Fatalf("asked %d times, %d lost, %d mended of %d", asked, m.LostMessages, m.Mended, m.Healed)
	}
	mustClose(t, s)
}
