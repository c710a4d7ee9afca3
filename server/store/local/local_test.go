package local

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/wire"
)

var (
	seed    = flag.Int64("seed", 0, "seed of random tests; 0: by the clock")
	rewrite = flag.Bool("rewrite", false, "write golden files")
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func random(t testing.TB) *rand.Rand {
	s := *seed
	if s == 0 {
		s = time.Now().UnixNano()
	}
	t.Logf("-seed %d", s)
	return rand.New(rand.NewSource(s))
}

// options are for memory: small segments, no checkpoint by itself.
func options(fs vfs.FS) Options {
	return Options{
		FS: fs, Dir: "/store", SegmentBytesMax: 256 << 10, SegmentBytesFirst: 64 << 10,
		CheckpointEvery: time.Hour, IndexFlushBytes: 1,
	}
}

func mustOpen(t testing.TB, o Options) *Store {
	t.Helper()
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func mustClose(t testing.TB, s *Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func mustTopic(t testing.TB, s *Store, name string, partitions uint32) store.Topic {
	t.Helper()
	topic, err := s.CreateTopic(context.Background(), store.Topic{Name: name, Partitions: partitions}, "")
	if err != nil && !errors.Is(err, store.ErrTopicExists) {
		t.Fatal(err)
	}
	return topic
}

func partitionOfTopic(t store.Topic, n int) store.Partition {
	return store.Partition{Topic: t.ID, Incarnation: t.Incarnation, Partition: uint16(n)}
}

// batchOf encodes a batch of messages with these bodies.
func batchOf(t testing.TB, bodies ...string) []byte {
	t.Helper()
	msgs := make([]wire.Message, len(bodies))
	for i, b := range bodies {
		msgs[i] = wire.Message{ID: [16]byte{1}, Body: []byte(b)}
	}
	b, err := wire.AppendBatch(nil, [16]byte{}, 0, msgs)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

type result struct {
	first  index.Index
	stored int64
	err    error
}

// appendWait appends a batch and waits for its commit; while the journal is busy it waits for room.
func appendWait(s *Store, p store.Partition, batch []byte) result {
	c := make(chan result, 1)
	for {
		err := s.AppendBatch(p, batch, func(first index.Index, stored int64, err error) { c <- result{first, stored, err} })
		if errors.Is(err, journal.ErrBusy) {
			err = s.WaitRoom(context.Background())
			if err == nil {
				continue
			}
		}
		if err != nil {
			return result{err: err}
		}
		return <-c
	}
}

// bodies reads [from, to) and returns the bodies of what came, and the index after it.
func bodies(t testing.TB, s *Store, p store.Partition, from, to index.Index) ([]string, index.Index) {
	t.Helper()
	b, next, err := s.Read(p, from, to, 1<<20, nil)
	if err != nil {
		t.Fatal(err)
	}
	return split(t, b), next
}

// split returns the bodies of the messages in b, which is batch after batch.
func split(t testing.TB, b []byte) []string {
	t.Helper()
	var list []string
	for len(b) > 0 {
		batch, rest, err := wire.SplitBatch(b)
		if err != nil {
			t.Fatal(err)
		}
		if err := batch.Verify(); err != nil {
			t.Fatal(err)
		}
		it := wire.IterateMessages(batch, batch[wire.BatchHeaderBytes:])
		for it.Next() {
			list = append(list, string(it.View.Body))
		}
		if it.Err() != nil {
			t.Fatal(it.Err())
		}
		b = rest
	}
	return list
}

// TestSmoke stores, reads and reopens.
func TestSmoke(t *testing.T) {
	fs := vfs.NewCrashableMem()
	s := mustOpen(t, options(fs))
	topic := mustTopic(t, s, "orders", 2)
	p := partitionOfTopic(topic, 1)
	for i := range 300 {
		r := appendWait(s, p, batchOf(t, fmt.Sprint(i), "x"))
		if r.err != nil || r.first != index.Index(2*i) {
			t.Fatal(i, r)
		}
	}
	got, next := bodies(t, s, p, 11, 14)
	if fmt.Sprint(got, next) != "[5 x 6 x] 14" {
		t.Fatal(got, next)
	}
	if err := s.Checkpoint(); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		if r := appendWait(s, p, batchOf(t, fmt.Sprint(i))); r.err != nil {
			t.Fatal(r.err)
		}
	}
	clone := fs.CrashClone(vfs.CrashCloneCfg{})
	mustClose(t, s)
	s = mustOpen(t, options(clone))
	if first, end, err := s.Bounds(p); first != 0 || end != 610 || err != nil {
		t.Fatal(first, end, err)
	}
	got, _ = bodies(t, s, p, 599, 602)
	if fmt.Sprint(got) != "[299 x 0 1]" {
		t.Fatal(got)
	}
	mustClose(t, s)
}
