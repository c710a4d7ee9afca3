// Package storetest holds engines to the contract of store.Store. An engine's tests are Run and its own oddities.
package storetest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/wire"
)

// Options are what every engine takes.
type Options struct {
	Tables      []store.Table
	Gather      store.Gather
	AfterCommit func()
	// Now is the clock for stored times; nil: the engine's own.
	Now func() int64
}

// Place is where one store can be. Its segments are of at most 64 KiB.
type Place struct {
	// Open opens the store. It is called again only after the one it returned was closed.
	Open func(t testing.TB, o Options) store.Store
	// Damage damages what s, which is open, has stored of message i, behind its back.
	Damage func(t testing.TB, s store.Store, p store.Partition, i index.Index)
}

// Run runs the suite. newPlace returns a place where no store was yet.
func Run(t *testing.T, newPlace func(t testing.TB) Place) {
	for _, c := range []struct {
		name string
		run  func(t *testing.T, p Place)
	}{
		{"append and read", testAppendRead},
		{"appenders at once", testConcurrent},
		{"invisible before the commit", testVisibility},
		{"limits of Read", testReadLimits},
		{"seek", testSeek},
		{"topics", testTopics},
		{"topics at once", testTopicsConcurrent},
		{"alter", testAlter},
		{"alter at once", testAlterConcurrent},
		{"delete", testDelete},
		{"delete under load", testDeleteConcurrent},
		{"trim", testTrim},
		{"stored", testStored},
		{"bytes", testBytes},
		{"reclaim", testReclaim},
		{"carry forward", testCarryForward},
		{"reclaim deleted topics", testReclaimDeleted},
		{"gaps", testGaps},
		{"tables", testTables},
		{"gather", testGather},
		{"watch", testWatch},
		{"append from done", testAppendFromDone},
		{"queue and commit", testQueue},
		{"bad input", testBadInput},
		{"repeats", testRepeats},
		{"repeats at once", testRepeatsConcurrent},
		{"replicated alone", testReplicatedAlone},
		{"close", testClose},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, newPlace(t)) })
	}
}

func open(t testing.TB, p Place, o Options) store.Store {
	t.Helper()
	s := p.Open(t, o)
	t.Cleanup(func() { s.Close() })
	return s
}

func shut(t testing.TB, s store.Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
}

func topic(t testing.TB, s store.Store, name string, partitions uint32) store.Topic {
	t.Helper()
	got, err := s.CreateTopic(context.Background(), store.Topic{Name: name, Partitions: partitions}, "")
	if err != nil {
		t.Fatalf("create topic %q: %v", name, err)
	}
	return got
}

func part(t store.Topic, n uint16) store.Partition {
	return store.Partition{Topic: t.ID, Incarnation: t.Incarnation, Partition: n}
}

// Batch encodes a batch of messages with these bodies.
func Batch(t testing.TB, bodies ...string) []byte {
	t.Helper()
	msgs := make([]wire.Message, len(bodies))
	for i, b := range bodies {
		msgs[i] = wire.Message{ID: [16]byte{byte(i + 1)}, Body: []byte(b)}
		if i%2 == 1 {
			msgs[i].Tag = "odd"
		}
	}
	b, err := wire.AppendBatch(nil, [16]byte{}, 0, msgs)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Numbered is Batch of a producer that numbers its messages.
func Numbered(t testing.TB, producer byte, sequence uint64, bodies ...string) []byte {
	t.Helper()
	msgs := make([]wire.Message, len(bodies))
	for i, b := range bodies {
		msgs[i].Body = []byte(b)
	}
	b, err := wire.AppendBatch(nil, [16]byte{producer}, sequence, msgs)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Appended is what a done was given.
type Appended struct {
	First  index.Index
	Stored int64
	Err    error
}

// Append appends a batch and waits for its commit.
func Append(s store.Store, p store.Partition, batch []byte) Appended {
	c := make(chan Appended, 1)
	err := s.AppendBatch(p, batch, func(first index.Index, stored int64, err error) { c <- Appended{first, stored, err} })
	if err != nil {
		return Appended{Err: err}
	}
	return <-c
}

func mustAppend(t testing.TB, s store.Store, p store.Partition, bodies ...string) Appended {
	t.Helper()
	for {
		a := Append(s, p, Batch(t, bodies...))
		switch {
		case errors.Is(a.Err, journal.ErrBusy):
			continue
		case a.Err != nil:
			t.Fatalf("append: %v", a.Err)
		}
		return a
	}
}

func record(s store.Store, kind journal.Kind, payload string) error {
	c := make(chan error, 1)
	if err := s.AppendRecord(kind, []byte(payload), func(err error) { c <- err }); err != nil {
		return err
	}
	return <-c
}

// Bodies splits what Read returned into the bodies of the messages, and checks each batch: whole, in place, and as its
// producer made it.
func Bodies(t testing.TB, p store.Partition, b []byte) (first index.Index, bodies []string) {
	t.Helper()
	for n := 0; len(b) > 0; n++ {
		batch, rest, err := wire.SplitBatch(b)
		if err != nil {
			t.Fatalf("batch %d of the answer: %v", n, err)
		}
		if err := batch.Verify(); err != nil {
			t.Fatalf("batch %d of the answer: %v", n, err)
		}
		if batch.Topic() != uint64(p.Topic) || batch.Incarnation() != p.Incarnation || batch.Partition() != p.Partition {
			t.Fatalf("batch %d of the answer is of topic %d.%d, partition %d; %+v was asked for", n, batch.Topic(), batch.Incarnation(), batch.Partition(), p)
		}
		if n == 0 {
			first = index.Index(batch.FirstIndex())
		}
		if want := first + index.Index(len(bodies)); index.Index(batch.FirstIndex()) != want {
			t.Fatalf("batch %d of the answer begins at %d, want %d", n, batch.FirstIndex(), want)
		}
		it := wire.IterateMessages(batch, batch[wire.BatchHeaderBytes:])
		for it.Next() {
			bodies = append(bodies, string(it.View.Body))
		}
		if it.Err() != nil {
			t.Fatal(it.Err())
		}
		b = rest
	}
	return first, bodies
}

// All reads a partition from its first index to its end, in several steps.
func All(t testing.TB, s store.Store, p store.Partition) []string {
	t.Helper()
	first, end, err := s.Bounds(p)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for at := first; at < end; {
		b, next, err := s.Read(p, at, end, 1000, nil)
		if err != nil {
			t.Fatalf("read from %d: %v", at, err)
		}
		from, bodies := Bodies(t, p, b)
		if from != at || next != at+index.Index(len(bodies)) || next == at {
			t.Fatalf("read from %d: batches from %d with %d messages, next %d", at, from, len(bodies), next)
		}
		all, at = append(all, bodies...), next
	}
	return all
}

// testAppendRead stores batches in several partitions, reads them back, and again after closing and opening.
func testAppendRead(t *testing.T, p Place) {
	s := open(t, p, Options{})
	orders, pays := topic(t, s, "orders", 2), topic(t, s, "pays", 1)
	parts := []store.Partition{part(orders, 0), part(orders, 1), part(pays, 0)}
	want := make([][]string, len(parts))
	add := func(rounds int) {
		t.Helper()
		for i := range rounds {
			n := i % len(parts)
			var bodies []string
			for j := range 1 + i%4 {
				bodies = append(bodies, fmt.Sprintf("%d-%d-%d", n, len(want[n])+j, i))
			}
			if a := mustAppend(t, s, parts[n], bodies...); a.First != index.Index(len(want[n])) {
				t.Fatalf("first index %d, want %d", a.First, len(want[n]))
			}
			want[n] = append(want[n], bodies...)
		}
	}
	check := func() {
		t.Helper()
		for n, pt := range parts {
			if first, end, err := s.Bounds(pt); first != 0 || end != index.Index(len(want[n])) || err != nil {
				t.Fatalf("bounds of %v: [%d, %d), %v, want [0, %d)", pt, first, end, err, len(want[n]))
			}
			if got := All(t, s, pt); !slices.Equal(got, want[n]) {
				t.Fatalf("partition %v:\ngot  %v\nwant %v", pt, got, want[n])
			}
		}
	}
	check()
	add(60)
	check()
	for i := range 4 {
		if i%2 == 1 {
			if err := s.Checkpoint(); err != nil {
				t.Fatal(err)
			}
			add(7)
		}
		epoch := s.Epoch()
		shut(t, s)
		s = open(t, p, Options{})
		if s.Epoch() <= epoch {
			t.Fatalf("epoch %v after %v", s.Epoch(), epoch)
		}
		check()
		add(30)
		check()
	}
	// The broker's fields are the store's, whatever a producer wrote there.
	b := Batch(t, "x")
	wire.Batch(b).SetBroker(wire.BrokerFields{Namespace: 9, Partition: 9, Topic: 9, Incarnation: 9, FirstIndex: 9, StoredNs: 9})
	a := Append(s, parts[0], b)
	if a.Err != nil {
		t.Fatal(a.Err)
	}
	got, _, err := s.Read(parts[0], a.First, a.First+1, 1, []byte("before"))
	if err != nil || !bytes.HasPrefix(got, []byte("before")) {
		t.Fatal(err)
	}
	w := wire.Batch(got[len("before"):])
	if w.Namespace() != 0 || w.Topic() != uint64(orders.ID) || w.FirstIndex() != uint64(a.First) || w.StoredNs() != a.Stored {
		t.Fatalf("batch in the store: namespace %d, topic %d, first %d, stored %d; done said %+v", w.Namespace(), w.Topic(), w.FirstIndex(), w.StoredNs(), a)
	}
}

// testConcurrent appends from many goroutines at once: each partition's indexes are dense and in the order of the dones,
// and each appender's own batches are in its order.
func testConcurrent(t *testing.T, p Place) {
	s := open(t, p, Options{})
	orders := topic(t, s, "orders", 3)
	const appenders, each = 8, 60
	var mu sync.Mutex
	ends := map[uint16]index.Index{}
	var wg sync.WaitGroup
	for a := range appenders {
		wg.Go(func() {
			n := uint16(a % 3)
			for i := range each {
				answered := make(chan error, 1)
				count := 1 + i%2
				bodies := []string{fmt.Sprintf("%d %d", a, i), "more"}[:count]
				for {
					err := s.AppendBatch(part(orders, n), Batch(t, bodies...), func(first index.Index, _ int64, err error) {
						mu.Lock()
						defer mu.Unlock()
						if err == nil && first != ends[n] {
							err = fmt.Errorf("partition %d: first index %d, want %d", n, first, ends[n])
						}
						ends[n] = first + index.Index(count)
						answered <- err
					})
					if errors.Is(err, journal.ErrBusy) {
						continue
					}
					if err == nil {
						err = <-answered
					}
					if err != nil {
						t.Error(err)
						return
					}
					break
				}
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	next := map[int]int{}
	for n := range uint16(3) {
		for _, b := range All(t, s, part(orders, n)) {
			var a, i int
			if _, err := fmt.Sscanf(b, "%d %d", &a, &i); err != nil {
				continue
			}
			if next[a] != i {
				t.Fatalf("appender %d: %d comes where %d should", a, i, next[a])
			}
			next[a]++
		}
	}
	for a := range appenders {
		if next[a] != each {
			t.Fatalf("appender %d has %d batches, want %d", a, next[a], each)
		}
	}
}

// testVisibility holds a commit at its start: what was appended is nowhere to be seen until the commit is done.
func testVisibility(t *testing.T, p Place) {
	hold, held := make(chan chan struct{}, 1), make(chan struct{})
	table := &recorder{name: "seen"}
	s := open(t, p, Options{
		Tables: []store.Table{table},
		Gather: func(func(journal.Kind, []byte, func(error))) {
			select {
			case c := <-hold:
				held <- struct{}{}
				<-c
			default:
			}
		},
	})
	orders := topic(t, s, "orders", 1)
	pt := part(orders, 0)
	mustAppend(t, s, pt, "a")
	records := table.count()

	release := make(chan struct{})
	hold <- release
	s.Kick()
	<-held // a commit has begun and stands
	done := make(chan Appended, 1)
	if err := s.AppendBatch(pt, Batch(t, "b"), func(first index.Index, stored int64, err error) { done <- Appended{first, stored, err} }); err != nil {
		t.Fatal(err)
	}
	created := make(chan error, 1)
	go func() {
		_, err := s.CreateTopic(context.Background(), store.Topic{Name: "late", Partitions: 1}, "")
		created <- err
	}()
	if _, end, _ := s.Bounds(pt); end != 1 {
		t.Fatalf("end is %d before the commit", end)
	}
	if b, next, err := s.Read(pt, 1, 9, 1000, nil); len(b) != 0 || next != 1 || err != nil {
		t.Fatalf("read before the commit: %d bytes, next %d, %v", len(b), next, err)
	}
	if i, err := s.Seek(pt, 1<<62); i != 1 || err != nil {
		t.Fatalf("seek before the commit: %d, %v", i, err)
	}
	if _, ok := s.Topic(0, "late"); ok || len(s.Topics()) != 1 {
		t.Fatal("topic is there before the commit")
	}
	if n := table.count(); n != records {
		t.Fatalf("table got %d records before the commit", n-records)
	}
	select {
	case a := <-done:
		t.Fatalf("answered before the commit: %+v", a)
	case err := <-created:
		t.Fatalf("created before the commit: %v", err)
	default:
	}
	close(release)
	if a := <-done; a.Err != nil || a.First != 1 {
		t.Fatalf("%+v", a)
	}
	if err := <-created; err != nil {
		t.Fatal(err)
	}
	if got := All(t, s, pt); !slices.Equal(got, []string{"a", "b"}) {
		t.Fatal(got)
	}
	if _, ok := s.Topic(0, "late"); !ok {
		t.Fatal("topic is not there after the commit")
	}
}

// testReadLimits asks for ranges and bytes at and around the borders.
func testReadLimits(t *testing.T, p Place) {
	s := open(t, p, Options{})
	pt := part(topic(t, s, "orders", 1), 0)
	if b, next, err := s.Read(pt, 0, 10, 100, nil); len(b) != 0 || next != 0 || err != nil {
		t.Fatalf("read of nothing: %d bytes, next %d, %v", len(b), next, err)
	}
	for i := range 40 {
		mustAppend(t, s, pt, fmt.Sprint(3*i), fmt.Sprint(3*i+1), fmt.Sprint(3*i+2)) // batches of three
	}
	one, _, err := s.Read(pt, 0, 1, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	size := len(one)
	for _, c := range []struct {
		from, to    index.Index
		bytesMax    int
		first, next index.Index
	}{
		{0, 1, 1, 0, 3},               // the whole batch, though 1 was asked for
		{2, 3, 1, 0, 3},               // from within
		{2, 4, 1 << 20, 0, 6},         // to within
		{3, 3, 1 << 20, 3, 3},         // nothing
		{9, 3, 1 << 20, 9, 9},         // nothing
		{0, 120, 1, 0, 3},             // at least one batch
		{0, 120, 2 * size, 0, 6},      // exactly two
		{0, 120, 2*size - 1, 0, 3},    // not quite two
		{0, 1 << 40, 1 << 20, 0, 120}, // to the end
		{117, 1 << 40, 1 << 20, 117, 120},
		{119, 120, 0, 117, 120},
		{120, 130, 1 << 20, 120, 120}, // the end
	} {
		b, next, err := s.Read(pt, c.from, c.to, c.bytesMax, nil)
		if err != nil || next != c.next {
			t.Fatalf("read [%d, %d) of %d bytes: next %d, %v, want %d", c.from, c.to, c.bytesMax, next, err, c.next)
		}
		first, bodies := Bodies(t, pt, b)
		if len(b) == 0 {
			if c.first != c.next {
				t.Fatalf("read [%d, %d): nothing", c.from, c.to)
			}
			continue
		}
		if first != c.first || len(bodies) != int(c.next-c.first) {
			t.Fatalf("read [%d, %d): %d messages from %d, want [%d, %d)", c.from, c.to, len(bodies), first, c.first, c.next)
		}
		for i, body := range bodies {
			if body != fmt.Sprint(int(first)+i) {
				t.Fatalf("message %d is %q", int(first)+i, body)
			}
		}
	}
	buf := []byte("kept")
	if b, _, err := s.Read(pt, 121, 122, 1, buf); !errors.Is(err, store.ErrBeyond) || string(b) != "kept" {
		t.Fatalf("beyond the end: %q, %v", b, err)
	}
	for _, wrong := range []store.Partition{
		{}, {Topic: pt.Topic, Incarnation: pt.Incarnation, Partition: 1}, {Topic: pt.Topic, Incarnation: 2},
		{Topic: pt.Topic}, {Topic: pt.Topic + 1, Incarnation: 1}, {Topic: 1 << 63, Incarnation: 1},
	} {
		if _, _, err := s.Read(wrong, 0, 1, 1, nil); !errors.Is(err, store.ErrNoPartition) {
			t.Fatalf("read of %+v: %v", wrong, err)
		}
		if _, _, err := s.Bounds(wrong); !errors.Is(err, store.ErrNoPartition) {
			t.Fatalf("bounds of %+v: %v", wrong, err)
		}
		if _, err := s.Seek(wrong, 0); !errors.Is(err, store.ErrNoPartition) {
			t.Fatalf("seek in %+v: %v", wrong, err)
		}
		if a := Append(s, wrong, Batch(t, "x")); !errors.Is(a.Err, store.ErrNoPartition) {
			t.Fatalf("append to %+v: %v", wrong, a.Err)
		}
	}
}

// testSeek finds messages by the time they were stored, also after opening again and after the clock was set back.
func testSeek(t *testing.T, p Place) {
	var clock atomic.Int64
	o := Options{Now: clock.Load}
	s := open(t, p, o)
	pt := part(topic(t, s, "orders", 1), 0)
	check := func(at int64, want index.Index) {
		t.Helper()
		if got, err := s.Seek(pt, at); got != want || err != nil {
			t.Fatalf("seek %d: %d, %v, want %d", at, got, err, want)
		}
	}
	check(0, 0)
	for i := range int64(20) {
		clock.Store(1000 + 10*i)
		if a := mustAppend(t, s, pt, "x", "y"); a.Stored != 1000+10*i {
			t.Fatalf("stored at %d, the clock says %d", a.Stored, 1000+10*i)
		}
	}
	clock.Store(1055) // back
	a := mustAppend(t, s, pt, "z")
	for range 2 {
		check(-5, 0)
		check(1000, 0)
		check(1001, 2)
		check(1190, 38)
		check(1191, 41)
		check(1<<62, 41)
		if got, err := s.Seek(pt, 1055); err != nil || got > a.First {
			t.Fatalf("seek of the set-back clock's time: %d, %v, must not be beyond %d", got, err, a.First)
		}
		shut(t, s)
		s = open(t, p, o)
	}
}

func testTopics(t *testing.T, p Place) {
	ctx := context.Background()
	s := open(t, p, Options{})
	a, b := topic(t, s, "a", 3), topic(t, s, strings.Repeat("n", 255), 1)
	settings := store.Settings{RetentionAge: 1e9, RetentionBytes: -1, DiscardUnconsumed: true, PauseProduce: true, PauseConsume: true}
	other, err := s.CreateTopic(ctx, store.Topic{Namespace: 5, Name: "a", Partitions: 65536, Settings: settings}, "somebody")
	if err != nil {
		t.Fatal(err)
	}
	if a.ID == 0 || a.ID == b.ID || a.ID == other.ID || b.ID == other.ID || a.Incarnation == 0 || a.Partitions != 3 || a.Name != "a" || a.Created == 0 || other.Namespace != 5 || other.Settings != settings {
		t.Fatalf("topics %+v, %+v, %+v", a, b, other)
	}
	if again, err := s.CreateTopic(ctx, store.Topic{Name: "a", Partitions: 9}, ""); !errors.Is(err, store.ErrTopicExists) || again != a {
		t.Fatalf("again: %+v, %v", again, err)
	}
	for _, c := range []struct {
		name       string
		partitions uint32
	}{{"", 1}, {strings.Repeat("n", 256), 1}, {"c", 0}, {"c", 65537}, {"c", 1<<32 - 1}} {
		if _, err := s.CreateTopic(ctx, store.Topic{Name: c.name, Partitions: c.partitions}, ""); !errors.Is(err, store.ErrTopic) {
			t.Fatalf("%q with %d partitions: %v", c.name, c.partitions, err)
		}
	}
	mustAppend(t, s, part(other, 65535), "x")
	for i := range 3 {
		if i == 2 {
			if err := s.Checkpoint(); err != nil {
				t.Fatal(err)
			}
		}
		list := s.Topics()
		if len(list) != 3 || !slices.IsSortedFunc(list, func(x, y store.Topic) int { return int(x.ID) - int(y.ID) }) {
			t.Fatalf("topics %+v", list)
		}
		for _, want := range []store.Topic{a, b, other} {
			if got, ok := s.Topic(want.Namespace, want.Name); !ok || got != want || !slices.Contains(list, want) {
				t.Fatalf("got %+v, want %+v in %+v", got, want, list)
			}
		}
		if _, ok := s.Topic(1, "a"); ok {
			t.Fatal("found in another namespace")
		}
		if got := All(t, s, part(other, 65535)); len(got) != 1 {
			t.Fatal(got)
		}
		shut(t, s)
		s = open(t, p, Options{})
	}
	if next := topic(t, s, "next", 1); next.ID == a.ID || next.ID == b.ID || next.ID == other.ID || next.Incarnation <= other.Incarnation {
		t.Fatalf("%+v after %+v", next, other)
	}
}

// testTopicsConcurrent creates the same topics from many goroutines: each comes into being once.
func testTopicsConcurrent(t *testing.T, p Place) {
	table := &recorder{name: "seen"}
	s := open(t, p, Options{Tables: []store.Table{table}})
	var made atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 10 {
				got, err := s.CreateTopic(context.Background(), store.Topic{Name: fmt.Sprint("t", i), Partitions: uint32(i + 1)}, "")
				switch {
				case err == nil:
					made.Add(1)
				case !errors.Is(err, store.ErrTopicExists):
					t.Error(err)
				}
				if got.Name != fmt.Sprint("t", i) || got.Partitions != uint32(i+1) {
					t.Errorf("%+v", got)
				}
				if there, ok := s.Topic(0, got.Name); !ok || there != got {
					t.Errorf("%+v is there as %+v, %v", got, there, ok)
				}
			}
		})
	}
	wg.Wait()
	if made.Load() != 10 || len(s.Topics()) != 10 || table.count() != 10 {
		t.Fatalf("%d were made, %d are there, %d records", made.Load(), len(s.Topics()), table.count())
	}
}

// recorder is a table that remembers every record: its kind, position and payload.
type recorder struct {
	name string
	mu   sync.Mutex
	seen []seen
	busy atomic.Int32
}

type seen struct {
	kind     journal.Kind
	position journal.Position
	sum      uint32
	length   uint32
}

func (r *recorder) Name() string { return r.name }

func (r *recorder) Apply(rec journal.Record) error {
	if r.busy.Add(1) != 1 {
		return errors.New("two calls of Apply at once")
	}
	defer r.busy.Add(-1)
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.seen); n > 0 && rec.Position <= r.seen[n-1].position {
		return fmt.Errorf("record at position %d after %d", rec.Position, r.seen[n-1].position)
	}
	if rec.Kind == journal.KindMessages && len(rec.Payload) != wire.BatchHeaderBytes {
		return fmt.Errorf("batch with %d bytes", len(rec.Payload))
	}
	r.seen = append(r.seen, seen{rec.Kind, rec.Position, crc32.ChecksumIEEE(rec.Payload), uint32(len(rec.Payload))})
	return nil
}

func (r *recorder) Snapshot(b []byte) []byte {
	if r.busy.Load() != 0 {
		panic("storetest: Snapshot during Apply")
	}
	for _, s := range r.seen {
		b = append(b, byte(s.kind))
		b = binary.LittleEndian.AppendUint64(b, uint64(s.position))
		b = binary.LittleEndian.AppendUint32(b, s.sum)
		b = binary.LittleEndian.AppendUint32(b, s.length)
	}
	return b
}

func (r *recorder) Restore(b []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = nil
	for ; len(b) >= 17; b = b[17:] {
		r.seen = append(r.seen, seen{journal.Kind(b[0]), journal.Position(binary.LittleEndian.Uint64(b[1:])),
			binary.LittleEndian.Uint32(b[9:]), binary.LittleEndian.Uint32(b[13:])})
	}
	if len(b) != 0 {
		return errors.New("recorder: cut")
	}
	return nil
}

func (r *recorder) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.seen)
}

// testTables feeds two tables with records of several kinds and compares what they saw with what was appended, over
// checkpoints and openings: everything once, in order.
func testTables(t *testing.T, p Place) {
	open2 := func() (store.Store, []*recorder) {
		rs := []*recorder{{name: "one"}, {name: "two"}}
		return open(t, p, Options{Tables: []store.Table{rs[0], rs[1]}}), rs
	}
	s, rs := open2()
	pt := part(topic(t, s, "orders", 1), 0)
	type want struct {
		kind   journal.Kind
		length uint32
		sum    uint32
	}
	wants := []want{{kind: journal.KindTopic}}
	add := func(n int) {
		t.Helper()
		for i := range n {
			switch i % 3 {
			case 0:
				mustAppend(t, s, pt, "x")
				wants = append(wants, want{kind: journal.KindMessages})
			default:
				payload := strings.Repeat("p", i) + fmt.Sprint(len(wants))
				if err := record(s, journal.KindEnd, payload); err != nil {
					t.Fatal(err)
				}
				wants = append(wants, want{journal.KindEnd, uint32(len(payload)), crc32.ChecksumIEEE([]byte(payload))})
			}
		}
	}
	check := func() {
		t.Helper()
		for _, r := range rs {
			r.mu.Lock()
			got := slices.Clone(r.seen)
			r.mu.Unlock()
			if len(got) != len(wants) {
				t.Fatalf("table %s saw %d records, want %d", r.name, len(got), len(wants))
			}
			for i, w := range wants {
				if got[i].kind != w.kind || w.length != 0 && (got[i].length != w.length || got[i].sum != w.sum) {
					t.Fatalf("table %s: record %d is %+v, want %+v", r.name, i, got[i], w)
				}
			}
		}
	}
	add(20)
	check()
	for i := range 4 {
		if i%2 == 0 {
			if err := s.Checkpoint(); err != nil {
				t.Fatal(err)
			}
		}
		add(10)
		check()
		shut(t, s)
		s, rs = open2()
		check()
	}
}

// testGather shows that what Gather adds is committed with the commit that asked, whether records wait or Kick asked, and
// that a done comes for each.
func testGather(t *testing.T, p Place) {
	table := &recorder{name: "seen"}
	var mu sync.Mutex
	var waiting []chan error
	asked := 0
	s := open(t, p, Options{
		Tables: []store.Table{table},
		Gather: func(add func(journal.Kind, []byte, func(error))) {
			mu.Lock()
			list := waiting
			waiting = nil
			asked++
			mu.Unlock()
			if len(list) == 0 {
				return
			}
			payload := []byte(fmt.Sprint("ends ", len(list)))
			add(journal.KindEnd, payload, func(err error) {
				for _, c := range list {
					c <- err
				}
			})
			clear(payload) // it is ours again
		},
	})
	pt := part(topic(t, s, "orders", 1), 0)
	hold := func() chan error {
		c := make(chan error, 1)
		mu.Lock()
		defer mu.Unlock()
		waiting = append(waiting, c)
		return c
	}
	last := func() seen {
		table.mu.Lock()
		defer table.mu.Unlock()
		return table.seen[len(table.seen)-1]
	}
	want := crc32.ChecksumIEEE([]byte("ends 2"))
	a, b := hold(), hold()
	s.Kick() // nothing else to commit
	if err := errors.Join(<-a, <-b); err != nil {
		t.Fatal(err)
	}
	if got := last(); got.kind != journal.KindEnd || got.sum != want {
		t.Fatalf("last record %+v", got)
	}
	before := table.count()
	a, b = hold(), hold()
	mustAppend(t, s, pt, "x")
	if err := errors.Join(<-a, <-b); err != nil {
		t.Fatal(err)
	}
	if n := table.count() - before; n != 2 {
		t.Fatalf("%d records, want a batch and one end record", n)
	}
	if asked < 2 {
		t.Fatalf("asked %d times", asked)
	}
}

// testWatch shows that after a commit the watcher is told once of each partition that grew, when tables, dones and index are
// done with it, and that AfterCommit comes after.
func testWatch(t *testing.T, p Place) {
	table := &recorder{name: "seen"}
	var s store.Store
	var answered atomic.Int32
	var mu sync.Mutex
	told := map[store.Partition]int{}
	ends := map[store.Partition]index.Index{}
	calls, after := 0, 0
	watched := func() int {
		mu.Lock()
		defer mu.Unlock()
		return calls
	}
	hold, held := make(chan chan struct{}, 1), make(chan struct{})
	s = open(t, p, Options{
		Tables: []store.Table{table},
		Gather: func(func(journal.Kind, []byte, func(error))) {
			select {
			case c := <-hold:
				held <- struct{}{}
				<-c
			default:
			}
		},
		AfterCommit: func() {
			mu.Lock()
			defer mu.Unlock()
			after = calls
		},
	})
	orders := topic(t, s, "orders", 3)
	messages := table.count()
	s.Watch(func(pt store.Partition, end index.Index) {
		mu.Lock()
		defer mu.Unlock()
		calls++
		told[pt]++
		ends[pt] = end
		if _, e, err := s.Bounds(pt); e != end || err != nil {
			t.Errorf("told of end %d, bounds say %d, %v", end, e, err)
		}
		if table.count()-messages < int(answered.Load()) || answered.Load() < 5 {
			t.Errorf("told when %d were answered and %d applied", answered.Load(), table.count()-messages)
		}
	})
	// Five batches in one commit: held at the start of one, they go into it or the next together.
	release := make(chan struct{})
	hold <- release
	s.Kick()
	<-held
	for i := range 5 {
		if err := s.AppendBatch(part(orders, uint16(i%2)), Batch(t, "x"), func(index.Index, int64, error) { answered.Add(1) }); err != nil {
			t.Fatal(err)
		}
	}
	close(release)
	mustAppend(t, s, part(orders, 2), "last") // its commit is after theirs, or the same
	mustAppend(t, s, part(orders, 2), "last") // and this one is after that commit's Watch
	if n := watched(); n < 3 {
		t.Fatalf("told %d times", n)
	}
	mu.Lock()
	defer mu.Unlock()
	for n, end := range []index.Index{3, 2} {
		if pt := part(orders, uint16(n)); told[pt] != 1 || ends[pt] != end {
			t.Fatalf("partition %d: told %d times, end %d, want once, %d", n, told[pt], ends[pt], end)
		}
	}
	if after < 3 {
		t.Fatalf("AfterCommit saw %d calls of Watch", after)
	}
}

// testQueue shows that batches that were queued are committed by Commit, in order.
func testQueue(t *testing.T, p Place) {
	s := open(t, p, Options{})
	pt := part(topic(t, s, "orders", 1), 0)
	const n = 5
	done := make(chan index.Index, n)
	for i := range n {
		err := s.QueueBatch(pt, Batch(t, fmt.Sprint(i)), func(first index.Index, _ int64, err error) {
			if err != nil {
				t.Error(err)
			}
			done <- first
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	s.Commit()
	for i := range index.Index(n) {
		if first := <-done; first != i {
			t.Fatalf("answer %d is of index %d", i, first)
		}
	}
}

// testAppendFromDone appends the next batch in the done of the one before.
func testAppendFromDone(t *testing.T, p Place) {
	s := open(t, p, Options{})
	pt := part(topic(t, s, "orders", 1), 0)
	end := make(chan error, 1)
	left := 20
	var next func(index.Index, int64, error)
	next = func(_ index.Index, _ int64, err error) {
		if left--; err != nil || left == 0 {
			end <- err
			return
		}
		if err := s.AppendBatch(pt, Batch(t, fmt.Sprint(left)), next); err != nil {
			end <- err
		}
	}
	if err := s.AppendBatch(pt, Batch(t, "first"), next); err != nil {
		t.Fatal(err)
	}
	if err := <-end; err != nil {
		t.Fatal(err)
	}
	if got := All(t, s, pt); len(got) != 20 || got[19] != "1" {
		t.Fatal(got)
	}
}

// testBadInput gives what is no batch: nothing is written and no index is used.
func testBadInput(t *testing.T, p Place) {
	s := open(t, p, Options{})
	pt := part(topic(t, s, "orders", 1), 0)
	good := Batch(t, "a", "b")
	change := func(f func(b []byte) []byte) []byte { return f(slices.Clone(good)) }
	for name, b := range map[string][]byte{
		"nothing":        nil,
		"a byte":         {1},
		"zeroes":         make([]byte, 200),
		"cut":            good[:len(good)-1],
		"header only":    good[:wire.BatchHeaderBytes],
		"too long":       change(func(b []byte) []byte { return append(b, 0) }),
		"length 2^32-1":  change(func(b []byte) []byte { binary.LittleEndian.PutUint32(b, 1<<32-1); return b }),
		"length 0":       change(func(b []byte) []byte { binary.LittleEndian.PutUint32(b, 0); return b }),
		"version 1":      change(func(b []byte) []byte { b[4] = 1; return b }),
		"count 0":        change(func(b []byte) []byte { b[46] = 0; return b }),
		"count 3":        change(func(b []byte) []byte { b[46] = 3; return b }),
		"count 1":        change(func(b []byte) []byte { b[46] = 1; return b }),
		"message length": change(func(b []byte) []byte { b[wire.BatchHeaderBytes+3] = 0xff; return b }),
		"message of 0":   change(func(b []byte) []byte { clear(b[wire.BatchHeaderBytes : wire.BatchHeaderBytes+4]); return b }),
	} {
		if a := Append(s, pt, b); !errors.Is(a.Err, store.ErrBatch) {
			t.Fatalf("%s: %v", name, a.Err)
		}
	}
	if a := mustAppend(t, s, pt, "x"); a.First != 0 {
		t.Fatalf("first good batch has index %d", a.First)
	}
	if s.Err() != nil {
		t.Fatal(s.Err())
	}
}

// testRepeats sends batches again: each is stored once, and every answer is that of the first, also when the store was closed between.
func testRepeats(t *testing.T, p Place) {
	s := open(t, p, Options{})
	orders := topic(t, s, "orders", 2)
	pt, other := part(orders, 0), part(orders, 1)
	first := Append(s, pt, Numbered(t, 1, 0, "a", "b"))
	second := Append(s, pt, Numbered(t, 1, 5, "c"))
	again := func(s store.Store) {
		t.Helper()
		for _, c := range []struct {
			name  string
			batch []byte
			want  Appended
		}{{"first", Numbered(t, 1, 0, "a", "b"), first}, {"second", Numbered(t, 1, 5, "c"), second}} {
			if got := Append(s, pt, c.batch); got != c.want || got.Err != nil {
				t.Fatalf("%s batch again: %+v, the first time %+v", c.name, got, c.want)
			}
		}
		for _, b := range [][]byte{Numbered(t, 1, 0, "a"), Numbered(t, 1, 1, "b"), Numbered(t, 1, 4, "x", "c")} {
			a := Append(s, pt, b)
			code := (*wire.CodeError)(nil)
			if !errors.Is(a.Err, store.ErrBatch) || !errors.As(a.Err, &code) || code.Code != wire.CodeInvalid {
				t.Fatalf("a batch of the same sequences, in part: %+v", a)
			}
		}
	}
	again(s)
	if got := fmt.Sprint(All(t, s, pt)); got != "[a b c]" {
		t.Fatal(got)
	}
	// Another partition, another producer, none.
	for _, c := range []struct {
		pt    store.Partition
		batch []byte
	}{{other, Numbered(t, 1, 0, "a", "b")}, {pt, Numbered(t, 2, 0, "a", "b")}, {pt, Numbered(t, 0, 0, "n")}, {pt, Numbered(t, 0, 0, "n")}, {pt, Numbered(t, 1, 2, "h")}} {
		if a := Append(s, c.pt, c.batch); a.Err != nil {
			t.Fatal(a.Err)
		}
	}
	want := "[a b c a b n n h]"
	if got := fmt.Sprint(All(t, s, pt), All(t, s, other)); got != want+" [a b]" {
		t.Fatal(got)
	}
	for range 2 {
		shut(t, s)
		s = open(t, p, Options{})
		again(s)
		if got := fmt.Sprint(All(t, s, pt)); got != want {
			t.Fatal(got)
		}
	}
	// One that is queued and not committed is waited for.
	answers := make(chan Appended, 2)
	for range 2 {
		if err := s.QueueBatch(pt, Numbered(t, 1, 6, "d"), func(first index.Index, stored int64, err error) { answers <- Appended{first, stored, err} }); err != nil {
			t.Fatal(err)
		}
	}
	s.Commit()
	if a, b := <-answers, <-answers; a != b || a.Err != nil || a.First != 8 {
		t.Fatalf("%+v and %+v", a, b)
	}
}

// testRepeatsConcurrent sends each batch from several goroutines at once: it is stored once, and all get the same answer.
func testRepeatsConcurrent(t *testing.T, p Place) {
	s := open(t, p, Options{})
	pt := part(topic(t, s, "orders", 1), 0)
	const senders, rounds, batches = 4, 5, 50 // nobody falls behind by more than what is kept
	var answers [senders][rounds * batches]Appended
	for round := range rounds {
		var wg sync.WaitGroup
		for n := range senders {
			wg.Go(func() {
				for i := round * batches; i < (round+1)*batches; i++ {
					answers[n][i] = Append(s, pt, Numbered(t, 1, uint64(2*i), fmt.Sprint(i), "x"))
				}
			})
		}
		wg.Wait()
	}
	for n := range senders {
		for i, a := range answers[n] {
			if a.Err != nil || a != answers[0][i] {
				t.Fatalf("batch %d of sender %d: %+v, of sender 0 %+v", i, n, a, answers[0][i])
			}
		}
	}
	if got := All(t, s, pt); len(got) != 2*rounds*batches {
		t.Fatalf("%d messages are stored, want %d", len(got), 2*rounds*batches)
	}
}

// testReplicatedAlone: where no other machine is, a replicated topic takes no messages, and can be made one that does, and back.
func testReplicatedAlone(t *testing.T, p Place) {
	s := open(t, p, Options{})
	made, err := s.CreateTopic(context.Background(), store.Topic{Name: "money", Partitions: 1, Settings: store.Settings{Durability: store.DurabilityReplicated}}, "")
	if err != nil {
		t.Fatal(err)
	}
	pt := part(made, 0)
	refused := func() {
		t.Helper()
		if a := Append(s, pt, Numbered(t, 1, 0, "a")); !errors.Is(a.Err, journal.ErrNotReplicated) {
			t.Fatalf("%+v", a)
		}
	}
	refused()
	refused() // it left nothing that it could be taken for
	shut(t, s)
	s = open(t, p, Options{})
	refused()
	if _, err := s.AlterTopic(context.Background(), made.ID, made.Incarnation, store.Change{Settings: &store.Settings{}}); err != nil {
		t.Fatal(err)
	}
	a := Append(s, pt, Numbered(t, 1, 0, "a"))
	if a.Err != nil || a.First != 0 {
		t.Fatalf("%+v", a)
	}
	if _, err := s.AlterTopic(context.Background(), made.ID, made.Incarnation, store.Change{Settings: &made.Settings}); err != nil {
		t.Fatal(err)
	}
	refused() // the repeat too: it may be on one machine alone
	if got := fmt.Sprint(All(t, s, pt)); got != "[a]" || s.Err() != nil {
		t.Fatal(got, s.Err())
	}
}

// testClose appends while the store is closed: what was answered is there, what was refused is not.
func testClose(t *testing.T, p Place) {
	s := open(t, p, Options{})
	orders := topic(t, s, "orders", 4)
	var wg sync.WaitGroup
	stored := make([]int, 4)
	begun := make(chan struct{}, 4)
	for n := range 4 {
		wg.Go(func() {
			for {
				a := Append(s, part(orders, uint16(n)), Batch(t, fmt.Sprint(stored[n])))
				switch {
				case errors.Is(a.Err, journal.ErrBusy):
					continue
				case errors.Is(a.Err, journal.ErrClosed):
					return
				case a.Err != nil:
					t.Error(a.Err)
					return
				}
				stored[n]++
				if stored[n] == 3 {
					begun <- struct{}{}
				}
			}
		})
	}
	for range 4 {
		<-begun
	}
	shut(t, s)
	wg.Wait()
	if err := s.Close(); err != nil {
		t.Fatalf("second close: %v", err)
	}
	if err := record(s, journal.KindEnd, "x"); !errors.Is(err, journal.ErrClosed) {
		t.Fatal(err)
	}
	if _, err := s.CreateTopic(context.Background(), store.Topic{Name: "late", Partitions: 1}, ""); !errors.Is(err, journal.ErrClosed) {
		t.Fatal(err)
	}
	s = open(t, p, Options{})
	for n := range 4 {
		got := All(t, s, part(orders, uint16(n)))
		if len(got) != stored[n] {
			t.Fatalf("partition %d has %d messages, %d were answered", n, len(got), stored[n])
		}
	}
}
