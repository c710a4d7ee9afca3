package local

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/journal/journaltest"
	"github.com/jmqio/jmq/server/store"
)

// witness is a table that remembers the ends that records of KindEnd told it, and what it was told of losses.
type witness struct {
	topic       store.Topic
	end         index.Index
	lost, total int
}

func (w *witness) Name() string { return "witness" }
func (w *witness) Apply(r journal.Record) error {
	w.total++
	switch r.Kind {
	case journal.KindEnd:
		w.end = index.Index(binary.LittleEndian.Uint32(r.Payload))
	case journal.KindLost:
		w.lost++
	case journal.KindCarriedForward:
		return errors.New("a carried-forward record")
	}
	return nil
}
func (w *witness) Snapshot(b []byte) []byte {
	return binary.LittleEndian.AppendUint64(b, uint64(w.end))
}
func (w *witness) Restore(b []byte) error {
	w.end = 0
	if len(b) == 8 {
		w.end = index.Index(binary.LittleEndian.Uint64(b))
	}
	return nil
}
func (w *witness) Ends(each func(topic uint64, incarnation uint32, partition uint16, end index.Index)) {
	each(uint64(w.topic.ID), w.topic.Incarnation, 1, w.end)
	each(99, 1, 0, 1000) // of a topic that is not there
}

var _ store.Witness = (*witness)(nil)

// positionOf returns where in the log a message lies.
func positionOf(t testing.TB, s *Store, p store.Partition, i index.Index) journal.Position {
	t.Helper()
	e, err := s.index.Range(keyOf(p), i, i+1, nil)
	if err != nil {
		t.Fatal(err)
	}
	return journal.Position(e[0].Position)
}

// overwrite makes zeroes of the bytes of the log from one position on up to another, which are in its first segment.
func overwriteLog(mem vfs.FS, from, to journal.Position) {
	path := "/store/journal/00000000000000000000.journal"
	b, err := journaltest.ReadFile(mem, path)
	if err != nil {
		panic(err)
	}
	clear(b[4096+from : 4096+to])
	journaltest.WriteFile(mem, path, b)
}

// TestRecoverLoss loses records that recovery reads, in the middle of what it reads: messages of partitions that go on, whose end is lost, and
// of which all are lost; the records that made, altered and deleted topics. What is left is served under its own indexes, what is lost is
// a gap, no index and no incarnation is given twice, and the tables hear of it. All of it again after a second opening without checkpoints.
func TestRecoverLoss(t *testing.T) {
	ctx := context.Background()
	mem := vfs.NewCrashableMem()
	o := options(mem)
	s := mustOpen(t, o)
	topic := mustTopic(t, s, "orders", 2)
	reborn := mustTopic(t, s, "reborn", 1)
	a, b := partitionOfTopic(topic, 0), partitionOfTopic(topic, 1)
	add := func(p store.Partition, bodies ...string) journal.Position {
		t.Helper()
		r := appendWait(s, p, batchOf(t, bodies...))
		if r.err != nil {
			t.Fatal(r.err)
		}
		return positionOf(t, s, p, r.first)
	}
	add(a, "0", "1")
	add(b, "0")
	from := add(a, "lost", "lost") // the hole begins
	add(b, "lost")
	late, err := s.CreateTopic(ctx, store.Topic{Name: "late", Partitions: 3}, "")
	if err != nil {
		t.Fatal(err)
	}
	if topic, err = s.AlterTopic(ctx, topic.ID, topic.Incarnation, store.Change{Partitions: 3}); err != nil {
		t.Fatal(err)
	}
	if err := s.DeleteTopic(ctx, reborn.ID, reborn.Incarnation, "", ""); err != nil {
		t.Fatal(err)
	}
	reborn2 := mustTopic(t, s, "reborn", 1)
	add(partitionOfTopic(late, 0), "lost") // and ends
	to := add(a, "4")
	add(partitionOfTopic(topic, 2), "of a new partition")
	add(partitionOfTopic(late, 1), "late")
	add(partitionOfTopic(reborn2, 0), "reborn")
	wait := make(chan error, 1)
	if err := s.AppendRecord(journal.KindEnd, binary.LittleEndian.AppendUint32(nil, 2), func(err error) { wait <- err }); err != nil {
		t.Fatal(err)
	}
	if err := <-wait; err != nil {
		t.Fatal(err)
	}
	last := mustTopic(t, s, "last", 1)
	// As after a kill: no checkpoint.
	mem = mem.CrashClone(vfs.CrashCloneCfg{})
	mustClose(t, s)
	overwriteLog(mem, from, to)
	check := func(s *Store) {
		t.Helper()
		if got, _ := bodies(t, s, a, 0, 2); !slices.Equal(got, []string{"0", "1"}) {
			t.Fatal(got)
		}
		_, _, err := s.Read(a, 2, 5, 1000, nil)
		if g := (*store.GapError)(nil); !errors.As(err, &g) || g.From != 2 || g.To != 4 {
			t.Fatalf("read of the lost: %v, want a gap [2, 4)", err)
		}
		if got, _ := bodies(t, s, a, 4, 5); got[0] != "4" {
			t.Fatal(got)
		}
		if _, end, err := s.Bounds(b); end != 2 || err != nil {
			t.Fatalf("the end is %d, %v; a table knows of 2", end, err)
		}
		_, _, err = s.Read(b, 1, 2, 1000, nil)
		if g := (*store.GapError)(nil); !errors.As(err, &g) || g.From != 1 || g.To != 2 {
			t.Fatalf("read of the lost: %v, want a gap [1, 2)", err)
		}
		got, ok := s.Topic(0, "orders")
		if !ok || got.Partitions != 3 || got.ID != topic.ID {
			t.Fatalf("%+v", got)
		}
		if got, _ := bodies(t, s, partitionOfTopic(topic, 2), 0, 1); got[0] != "of a new partition" {
			t.Fatal(got)
		}
		recovered, ok := s.Topic(0, fmt.Sprintf("recovered-%d-%d", late.ID, late.Incarnation))
		if !ok || recovered.Partitions != 2 || recovered.Incarnation != late.Incarnation {
			t.Fatalf("%+v in %+v", recovered, s.Topics())
		}
		if got, _ := bodies(t, s, partitionOfTopic(late, 1), 0, 1); got[0] != "late" {
			t.Fatal(got)
		}
		// Nobody knows the name of what has the id of "reborn" now.
		if _, ok := s.Topic(0, "reborn"); ok {
			t.Fatal("a topic of a former life is there")
		}
		if got, _ := bodies(t, s, partitionOfTopic(reborn2, 0), 0, 1); got[0] != "reborn" {
			t.Fatal(got)
		}
		if _, ok := s.Topic(0, "last"); !ok {
			t.Fatal("a topic from after the loss is not there")
		}
	}
	for i := range 3 {
		w := &witness{topic: topic}
		o.FS, o.Tables = mem, []store.Table{w}
		if i == 1 {
			for _, name := range find(t, mem, "/store", checkpointSuffix) {
				if err := mem.Remove(name); err != nil {
					t.Fatal(err)
				}
			}
		}
		s = mustOpen(t, o)
		if (w.lost > 0) != (i < 2) {
			t.Fatalf("opening %d: the table heard of %d losses", i, w.lost)
		}
		check(s)
		if m := s.Metrics(); m.Holes != 1 || (m.LostMessages == 3) != (i < 2) {
			t.Fatalf("opening %d: %d holes, %d messages lost", i, m.Holes, m.LostMessages)
		}
		if i == 0 {
			next := mustTopic(t, s, "next", 1)
			if next.Incarnation <= last.Incarnation || next.ID == late.ID {
				t.Fatalf("%+v after %+v", next, last)
			}
		}
		mustClose(t, s)
	}
}

// TestVerifier flips two bytes in a sealed segment that nobody reads: the background finds them, makes holes of them and writes footers; a second
// look comes when its time has come, and not after every opening.
func TestVerifier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := vfs.NewCrashableMem()
		o := options(mem)
		o.SegmentBytesMax = 64 << 10
		o.VerifyBytesPerSecond = 16 << 10
		s := mustOpen(t, o)
		p := partitionOfTopic(mustTopic(t, s, "orders", 1), 0)
		const n = 900
		for i := range n {
			if r := appendWait(s, p, batchOf(t, fmt.Sprint(i))); r.err != nil {
				t.Fatal(r.err)
			}
		}
		sealed := len(s.sealed())
		if sealed < 2 {
			t.Fatal(sealed)
		}
		damageMessage(t, s, p, 5)
		damageMessage(t, s, p, 8)
		begin := time.Now()
		for s.Metrics().VerifiedSegments < int64(sealed) {
			time.Sleep(time.Second) // of the bubble
		}
		m := s.Metrics()
		if took := time.Since(begin); took < time.Duration(sealed-1)*4*time.Second || m.VerifiedBytes < int64(sealed-1)*64<<10 {
			t.Fatalf("%d bytes were read in %v", m.VerifiedBytes, took)
		}
		if m.Holes != 2 || m.Healed != 2 || m.LostMessages != 2 {
			t.Fatalf("%+v", m)
		}
		_, _, err := s.Read(p, 5, 6, 1, nil)
		if g := (*store.GapError)(nil); !errors.As(err, &g) || *g != (store.GapError{From: 5, To: 6}) {
			t.Fatal(err)
		}
		var messages uint64
		for _, seg := range s.sealed() {
			b, err := s.log.ReadFooter(seg.Base)
			if err != nil {
				t.Fatal(err)
			}
			f, err := decodeFooter(b)
			if err != nil || f.Verified == 0 || f.First > f.Last || f.Records < f.Messages || len(f.partitions) != 1 {
				t.Fatalf("%+v, %v", f, err)
			}
			messages += f.Messages
			if again := f.encode(nil); !slices.Equal(again, b) {
				t.Fatal("encoded again it differs")
			}
			for i := range b {
				if _, err := decodeFooter(b[:i]); err == nil {
					t.Fatalf("cut at %d: accepted", i)
				}
			}
		}
		if messages == 0 || messages >= n {
			t.Fatalf("%d messages in sealed segments", messages)
		}
		mustClose(t, s)
		o.VerifyEvery = time.Hour
		s = mustOpen(t, o)
		time.Sleep(5 * time.Minute)
		if got := s.Metrics().VerifiedSegments; got > 1 { // the last one may be sealed only now
			t.Fatalf("%d segments were read again at once", got)
		}
		time.Sleep(time.Hour)
		if got := s.Metrics().VerifiedSegments; got < int64(sealed) {
			t.Fatalf("%d of %d segments were read again", got, sealed)
		}
		mustClose(t, s)
		o.VerifyBytesPerSecond = -1
		o.VerifyEvery = time.Second
		s = mustOpen(t, o)
		time.Sleep(time.Hour)
		if got := s.Metrics().VerifiedSegments; got != 0 {
			t.Fatalf("%d segments were read though none should be", got)
		}
		mustClose(t, s)
	})
}

// TestLossAcrossCheckpoint loses records on both sides of the position from which recovery reads, and just up to it, and just from it on.
func TestLossAcrossCheckpoint(t *testing.T) {
	for name, around := range map[string][2]int{"across": {2, 2}, "below": {2, 0}, "above": {0, 2}, "one across": {1, 1}} {
		t.Run(name, func(t *testing.T) {
			mem := vfs.NewCrashableMem()
			o := options(mem)
			s := mustOpen(t, o)
			p := partitionOfTopic(mustTopic(t, s, "orders", 1), 0)
			add := func(from, to int) {
				t.Helper()
				for i := from; i < to; i++ {
					if r := appendWait(s, p, batchOf(t, fmt.Sprint(i))); r.err != nil {
						t.Fatal(r.err)
					}
				}
			}
			add(0, 10)
			if err := s.Checkpoint(); err != nil {
				t.Fatal(err)
			}
			add(10, 20)
			at := s.Metrics().Checkpoint
			from, to := positionOf(t, s, p, index.Index(10-around[0])), positionOf(t, s, p, index.Index(10+around[1]))
			if from > at || to < at {
				t.Fatalf("checkpoint of %d, damage [%d, %d)", at, from, to)
			}
			mem = mem.CrashClone(vfs.CrashCloneCfg{})
			mustClose(t, s)
			overwriteLog(mem, from, to)
			o.FS = mem
			for range 2 {
				s = mustOpen(t, o)
				have := readAll(t, s, p)
				for i := range 20 {
					_, there := have[index.Index(i)]
					if lost := i >= 10-around[0] && i < 10+around[1]; there == lost {
						t.Fatalf("message %d: there %v, lost %v", i, there, lost)
					}
				}
				mustClose(t, s)
			}
		})
	}
}

// readAll reads all of a partition, over gaps, and returns the bodies by index. What is damaged is seen to.
func readAll(t testing.TB, s *Store, p store.Partition) map[index.Index]string {
	t.Helper()
	first, end, err := s.Bounds(p)
	if err != nil {
		t.Fatal(err)
	}
	have := map[index.Index]string{}
	tries := 0
	for at := first; at < end; {
		b, next, err := s.Read(p, at, end, 1<<20, nil)
		var gap *store.GapError
		switch {
		case err == nil && next > at:
			list := split(t, b)
			from := next - index.Index(len(list))
			for i, body := range list {
				if i := from + index.Index(i); i >= at {
					have[i] = body
				}
			}
			at = next
		case errors.As(err, &gap):
			if gap.From != at || gap.To <= at || gap.To > end {
				t.Fatalf("read from %d: %v", at, err)
			}
			at = gap.To
		case errors.Is(err, store.ErrDamaged) && tries < 10:
			tries++
			s.healWanted() // the background's, or ours: one of them does it
			s.repairRuns()
		default:
			t.Fatalf("read from %d: next %d, %v", at, next, err)
		}
	}
	return have
}
