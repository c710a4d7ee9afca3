package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/store"
)

// testAlter changes partitions and settings of a topic, over openings: what is asked for holds, what cannot be is refused and changes nothing.
func testAlter(t *testing.T, p Place) {
	ctx := context.Background()
	s := open(t, p, Options{})
	orders := topic(t, s, "orders", 2)
	topic(t, s, "other", 1)
	mustAppend(t, s, part(orders, 1), "a")
	alter := func(c store.Change) {
		t.Helper()
		got, err := s.AlterTopic(ctx, orders.ID, orders.Incarnation, c)
		if err != nil {
			t.Fatal(err)
		}
		if c.Partitions != 0 {
			orders.Partitions = c.Partitions
		}
		if c.Settings != nil {
			orders.Settings = *c.Settings
		}
		if c.Origin != nil {
			orders.Origin = *c.Origin
		}
		if got != orders {
			t.Fatalf("altered to %+v, want %+v", got, orders)
		}
	}
	check := func() {
		t.Helper()
		if got, ok := s.Topic(0, "orders"); !ok || got != orders || !slices.Contains(s.Topics(), orders) {
			t.Fatalf("topic is %+v, want %+v", got, orders)
		}
		if _, _, err := s.Bounds(part(orders, uint16(orders.Partitions))); !errors.Is(err, store.ErrNoPartition) {
			t.Fatalf("partition %d: %v", orders.Partitions, err)
		}
		if _, _, err := s.Bounds(part(orders, uint16(orders.Partitions-1))); err != nil {
			t.Fatal(err)
		}
	}
	alter(store.Change{Settings: &store.Settings{RetentionAge: time.Hour, RetentionBytes: -1, DiscardUnconsumed: true, PauseProduce: true, PauseConsume: true}, Who: "who", Why: strings.Repeat("long", 2000)})
	check()
	if _, _, err := s.Bounds(part(orders, 3)); !errors.Is(err, store.ErrNoPartition) {
		t.Fatal(err)
	}
	alter(store.Change{Partitions: 4, Origin: &store.Origin{Generation: 1, Created: 2, Version: 3}})
	check()
	if a := mustAppend(t, s, part(orders, 3), "b"); a.First != 0 {
		t.Fatalf("first index of a new partition is %d", a.First)
	}
	if a := mustAppend(t, s, part(orders, 1), "c"); a.First != 1 {
		t.Fatalf("next index of an old partition is %d", a.First)
	}
	for name, c := range map[string]store.Change{"fewer": {Partitions: 3}, "too many": {Partitions: store.PartitionsMax + 1}} {
		if _, err := s.AlterTopic(ctx, orders.ID, orders.Incarnation, c); !errors.Is(err, store.ErrTopic) {
			t.Fatalf("%s: %v", name, err)
		}
	}
	for _, wrong := range []store.Topic{{}, {ID: orders.ID, Incarnation: orders.Incarnation + 7}, {ID: 99, Incarnation: 1}, {ID: 1 << 60, Incarnation: 1}} {
		if _, err := s.AlterTopic(ctx, wrong.ID, wrong.Incarnation, store.Change{Partitions: 9}); !errors.Is(err, store.ErrNoPartition) {
			t.Fatalf("alter of topic %d, incarnation %d: %v", wrong.ID, wrong.Incarnation, err)
		}
		if err := s.DeleteTopic(ctx, wrong.ID, wrong.Incarnation, "", ""); !errors.Is(err, store.ErrNoPartition) {
			t.Fatalf("delete of topic %d, incarnation %d: %v", wrong.ID, wrong.Incarnation, err)
		}
	}
	alter(store.Change{}) // nothing changes, and that is journalled
	for i := range 3 {
		if i == 1 {
			if err := s.Checkpoint(); err != nil {
				t.Fatal(err)
			}
		}
		shut(t, s)
		s = open(t, p, Options{})
		check()
		if got := All(t, s, part(orders, 1)); !slices.Equal(got, []string{"a", "c"}) {
			t.Fatal(got)
		}
		if got := All(t, s, part(orders, 3)); !slices.Equal(got, []string{"b"}) {
			t.Fatal(got)
		}
	}
}

// testAlterConcurrent raises the partitions of one topic and changes its settings from many goroutines: none undoes another's.
func testAlterConcurrent(t *testing.T, p Place) {
	ctx := context.Background()
	s := open(t, p, Options{})
	orders := topic(t, s, "orders", 1)
	var wg sync.WaitGroup
	for n := range uint32(8) {
		wg.Go(func() {
			c := store.Change{Partitions: 2 + n}
			if n%2 == 1 {
				c = store.Change{Settings: &store.Settings{RetentionBytes: int64(n)}}
			}
			if _, err := s.AlterTopic(ctx, orders.ID, orders.Incarnation, c); err != nil && !errors.Is(err, store.ErrTopic) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	got, _ := s.Topic(0, "orders")
	if got.Partitions != 8 || got.Settings.RetentionBytes == 0 {
		t.Fatalf("%+v", got)
	}
	if _, _, err := s.Bounds(part(got, 7)); err != nil {
		t.Fatal(err)
	}
}

// testDelete deletes a topic and makes it again: the old one is not there for anybody, the new one is empty, and both stay so.
func testDelete(t *testing.T, p Place) {
	ctx := context.Background()
	table := &recorder{name: "seen"}
	s := open(t, p, Options{Tables: []store.Table{table}})
	old, other := topic(t, s, "orders", 2), topic(t, s, "other", 1)
	mustAppend(t, s, part(old, 0), "old")
	mustAppend(t, s, part(other, 0), "other")
	before := table.count()
	if err := s.DeleteTopic(ctx, old.ID, old.Incarnation, "who", "why"); err != nil {
		t.Fatal(err)
	}
	if table.count() != before+1 {
		t.Fatalf("the table saw %d records of the delete", table.count()-before)
	}
	gone := func(o store.Topic) {
		t.Helper()
		pt := part(o, 0)
		_, _, err := s.Read(pt, 0, 1, 100, nil)
		_, _, bounds := s.Bounds(pt)
		_, seek := s.Seek(pt, 0)
		_, stored := s.Stored(pt, 0)
		_, bytes := s.Bytes(pt)
		_, seekBytes := s.SeekBytes(pt, 0)
		_, alter := s.AlterTopic(ctx, o.ID, o.Incarnation, store.Change{})
		for name, err := range map[string]error{
			"read": err, "bounds": bounds, "seek": seek, "stored": stored, "bytes": bytes, "seek bytes": seekBytes, "trim": s.Trim(pt, 1), "alter": alter,
			"append": Append(s, pt, Batch(t, "x")).Err, "delete": s.DeleteTopic(ctx, o.ID, o.Incarnation, "", ""),
		} {
			if !errors.Is(err, store.ErrNoPartition) {
				t.Fatalf("%s of a deleted topic: %v", name, err)
			}
		}
		if got, ok := s.Topic(0, o.Name); ok && got.Incarnation == o.Incarnation || slices.Contains(s.Topics(), o) {
			t.Fatal("the deleted topic is found")
		}
	}
	gone(old)
	again := topic(t, s, "orders", 1)
	if again.Incarnation <= old.Incarnation || again.Incarnation <= other.Incarnation {
		t.Fatalf("incarnation %d after %d and %d", again.Incarnation, old.Incarnation, other.Incarnation)
	}
	gone(old)
	if first, end, err := s.Bounds(part(again, 0)); first != 0 || end != 0 || err != nil {
		t.Fatalf("the new topic has [%d, %d), %v", first, end, err)
	}
	mustAppend(t, s, part(again, 0), "new")
	last := topic(t, s, "last", 1)
	if err := s.DeleteTopic(ctx, last.ID, last.Incarnation, "", ""); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if i == 1 {
			if err := s.Checkpoint(); err != nil {
				t.Fatal(err)
			}
		}
		shut(t, s)
		table = &recorder{name: "seen"}
		s = open(t, p, Options{Tables: []store.Table{table}})
		gone(old)
		gone(last)
		if got := All(t, s, part(again, 0)); !slices.Equal(got, []string{"new"}) {
			t.Fatal(got)
		}
		if got := All(t, s, part(other, 0)); !slices.Equal(got, []string{"other"}) {
			t.Fatal(got)
		}
	}
	// The incarnation of a topic that is not there is not given again.
	if next := topic(t, s, "next", 1); next.Incarnation <= last.Incarnation {
		t.Fatalf("incarnation %d after %d", next.Incarnation, last.Incarnation)
	}
}

// testDeleteConcurrent appends to topics while they are deleted and made again: what was answered before the delete is gone with
// it, nothing of it is in the new topic, and the store goes on.
func testDeleteConcurrent(t *testing.T, p Place) {
	ctx := context.Background()
	s := open(t, p, Options{})
	keep := topic(t, s, "keep", 1)
	var life atomic.Int64 // of the topic that comes and goes
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				got, ok := s.Topic(0, "comes and goes")
				if !ok {
					continue
				}
				a := Append(s, part(got, 0), Batch(t, fmt.Sprint(got.Incarnation)))
				if a.Err != nil && !errors.Is(a.Err, store.ErrNoPartition) && !errors.Is(a.Err, journal.ErrBusy) {
					t.Error(a.Err)
					return
				}
				b, _, err := s.Read(part(got, 0), 0, 1, 1, nil)
				if err != nil {
					if !errors.Is(err, store.ErrNoPartition) {
						t.Error(err)
						return
					}
					continue
				}
				if len(b) == 0 {
					continue
				}
				if _, bodies := Bodies(t, part(got, 0), b); bodies[0] != fmt.Sprint(got.Incarnation) {
					t.Errorf("incarnation %d has a message of %s", got.Incarnation, bodies[0])
					return
				}
			}
		})
	}
	for range 30 {
		got := topic(t, s, "comes and goes", 1)
		life.Add(1)
		mustAppend(t, s, part(keep, 0), "x")
		mustAppend(t, s, part(got, 0), fmt.Sprint(got.Incarnation))
		if err := s.DeleteTopic(ctx, got.ID, got.Incarnation, "", ""); err != nil {
			t.Error(err)
			break
		}
	}
	close(stop)
	wg.Wait()
	shut(t, s)
	s = open(t, p, Options{})
	if got := All(t, s, part(keep, 0)); int64(len(got)) != life.Load() || len(s.Topics()) != 1 {
		t.Fatalf("%d messages after %d rounds, %d topics", len(got), life.Load(), len(s.Topics()))
	}
}

// testTrim drops a partition's begin: it is trimmed for reading, the rest stays, and closing and opening keeps that.
func testTrim(t *testing.T, p Place) {
	s := open(t, p, Options{})
	orders := topic(t, s, "orders", 2)
	pt := part(orders, 0)
	for i := range 10 {
		mustAppend(t, s, pt, fmt.Sprint(2*i), fmt.Sprint(2*i+1))
	}
	mustAppend(t, s, part(orders, 1), "x")
	trim := func(first index.Index) {
		t.Helper()
		if err := s.Trim(pt, first); err != nil {
			t.Fatal(err)
		}
	}
	check := func(first index.Index) {
		t.Helper()
		if f, end, err := s.Bounds(pt); f != first || end != 20 || err != nil {
			t.Fatalf("bounds [%d, %d), %v, want [%d, 20)", f, end, err, first)
		}
		if first > 0 {
			if _, _, err := s.Read(pt, first-1, 20, 1, nil); !errors.Is(err, store.ErrTrimmed) {
				t.Fatalf("read below the first: %v", err)
			}
			if _, err := s.Stored(pt, first-1); !errors.Is(err, store.ErrTrimmed) {
				t.Fatalf("stored time below the first: %v", err)
			}
		}
		if i, err := s.Seek(pt, 0); i != first || err != nil {
			t.Fatalf("seek to the start: %d, %v", i, err)
		}
		b, next, err := s.Read(pt, first, 20, 1<<20, nil)
		if err != nil || next != 20 {
			t.Fatal(next, err)
		}
		if first == 20 {
			return
		}
		from, bodies := Bodies(t, pt, b) // a batch whose begin is trimmed comes whole
		if from != first/2*2 || bodies[first-from] != fmt.Sprint(first) {
			t.Fatalf("read from %d: batches from %d with %v", first, from, bodies)
		}
	}
	trim(0)
	check(0)
	trim(7)
	check(7)
	trim(3) // never back
	check(7)
	shut(t, s)
	s = open(t, p, Options{})
	check(7)
	trim(1 << 40) // cut to the end
	check(20)
	if a := mustAppend(t, s, pt, "next"); a.First != 20 {
		t.Fatalf("next index %d", a.First)
	}
	if got := All(t, s, pt); !slices.Equal(got, []string{"next"}) {
		t.Fatal(got)
	}
	if got := All(t, s, part(orders, 1)); !slices.Equal(got, []string{"x"}) {
		t.Fatal(got)
	}
	if err := s.Trim(part(orders, 2), 1); !errors.Is(err, store.ErrNoPartition) {
		t.Fatal(err)
	}
}

// testStored asks for the times of messages, at and beyond the borders, with a clock that goes back.
func testStored(t *testing.T, p Place) {
	var clock atomic.Int64
	s := open(t, p, Options{Now: clock.Load})
	pt := part(topic(t, s, "orders", 1), 0)
	if _, err := s.Stored(pt, 0); !errors.Is(err, store.ErrBeyond) {
		t.Fatalf("of an empty partition: %v", err)
	}
	for _, at := range []int64{1000, 2000, 1500, 3000} {
		clock.Store(at)
		mustAppend(t, s, pt, "x", "y")
	}
	for range 2 {
		for i, want := range []int64{1000, 1000, 2000, 2000, 2000, 2000, 3000, 3000} {
			if got, err := s.Stored(pt, index.Index(i)); got != want || err != nil {
				t.Fatalf("message %d was stored at %d, %v, want %d", i, got, err, want)
			}
		}
		if _, err := s.Stored(pt, 8); !errors.Is(err, store.ErrBeyond) {
			t.Fatalf("of the end: %v", err)
		}
		shut(t, s)
		s = open(t, p, Options{Now: clock.Load})
	}
}

// testBytes asks how much a partition keeps, and where it would keep less.
func testBytes(t *testing.T, p Place) {
	s := open(t, p, Options{})
	orders := topic(t, s, "orders", 2)
	pt := part(orders, 0)
	check := func(low, high int64) {
		t.Helper()
		if n, err := s.Bytes(pt); n < low || n > high || err != nil {
			t.Fatalf("%d bytes, %v, want [%d, %d]", n, err, low, high)
		}
	}
	check(0, 0)
	if i, err := s.SeekBytes(pt, 0); i != 0 || err != nil {
		t.Fatalf("seek in an empty partition: %d, %v", i, err)
	}
	one := int64(len(Batch(t, strings.Repeat("x", 1000))))
	const n = 100
	for range n {
		mustAppend(t, s, pt, strings.Repeat("x", 1000))
	}
	mustAppend(t, s, part(orders, 1), "other")
	for range 2 {
		check(n*one*9/10, n*one*11/10)
		for _, keep := range []int64{0, one - 1, one, 10 * one, 50*one + 10, n * one, n * one * 2} {
			i, err := s.SeekBytes(pt, keep)
			want := max(0, n-keep/one)
			if err != nil || int64(i) < want-n/10 || int64(i) > want+n/10 || i > n {
				t.Fatalf("keeping %d bytes begins at %d, %v, want about %d", keep, i, err, want)
			}
			if keep == 0 && i != n {
				t.Fatalf("keeping nothing begins at %d", i)
			}
		}
		if err := s.Checkpoint(); err != nil {
			t.Fatal(err)
		}
		shut(t, s)
		s = open(t, p, Options{})
	}
	if err := s.Trim(pt, n/2); err != nil {
		t.Fatal(err)
	}
	check(n/2*one*8/10, n/2*one*12/10)
	if i, err := s.SeekBytes(pt, 1<<40); i != n/2 || err != nil {
		t.Fatalf("keeping all begins at %d, %v", i, err)
	}
	if err := s.Trim(pt, n); err != nil {
		t.Fatal(err)
	}
	check(0, 0)
}

func usage(t testing.TB, s store.Store, holdsMax int) store.Usage {
	t.Helper()
	u, err := s.Usage(holdsMax)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func reclaim(t testing.TB, s store.Store) int64 {
	t.Helper()
	n, err := s.Reclaim(context.Background())
	if err != nil {
		t.Fatalf("reclaim: %v", err)
	}
	return n
}

// fillSegments appends to a partition until the log has at least so many segments, and returns how many messages it has then.
func fillSegments(t testing.TB, s store.Store, p store.Partition, segments int) index.Index {
	t.Helper()
	for usage(t, s, 0).Segments < segments {
		for range 8 {
			mustAppend(t, s, p, strings.Repeat("f", 1000))
		}
	}
	_, end, err := s.Bounds(p)
	if err != nil {
		t.Fatal(err)
	}
	return end
}

// testReclaim frees segments: not before their messages are trimmed, then all but those that are needed, and what is kept stays,
// over openings; Usage names who holds the rest.
func testReclaim(t *testing.T, p Place) {
	s := open(t, p, Options{})
	orders, pays := topic(t, s, "orders", 2), topic(t, s, "pays", 1)
	pt := part(orders, 0)
	end := fillSegments(t, s, pt, 4)
	fillSegments(t, s, part(pays, 0), 7)
	before := usage(t, s, 10)
	if before.Begin != 0 || before.JournalBytes <= 0 || before.Oldest <= 0 || before.JournalFolder == "" || before.IndexFolder == "" || len(before.Holes) != 0 {
		t.Fatalf("usage %+v", before)
	}
	if len(before.Holds) != 2 || before.Holds[0].Partition != pt || before.Holds[0].First != 0 || before.Holds[0].Bytes <= before.Holds[1].Bytes ||
		before.Holds[1].Partition != part(pays, 0) || before.Holds[0].Stored == 0 {
		t.Fatalf("holds %+v", before.Holds)
	}
	if one := usage(t, s, 1).Holds; len(one) != 1 || one[0] != before.Holds[0] {
		t.Fatalf("the largest hold is %+v, want %+v", one, before.Holds[0])
	}
	if n := reclaim(t, s); n != 0 {
		t.Fatalf("%d bytes were freed, though all is needed", n)
	}
	if err := s.Trim(pt, end); err != nil {
		t.Fatal(err)
	}
	pays1 := All(t, s, part(pays, 0))
	n := reclaim(t, s)
	after := usage(t, s, 10)
	if n <= 0 || after.Begin == 0 || after.Segments >= before.Segments || after.Oldest < before.Oldest {
		t.Fatalf("%d bytes were freed; usage %+v, before %+v", n, after, before)
	}
	if len(after.Holds) != 1 || after.Holds[0].Partition != part(pays, 0) {
		t.Fatalf("holds %+v", after.Holds)
	}
	for i := range 3 {
		if got := All(t, s, part(pays, 0)); !slices.Equal(got, pays1) {
			t.Fatalf("%d messages, want %d", len(got), len(pays1))
		}
		if first, e, err := s.Bounds(pt); first != end+index.Index(i) || e != first || err != nil {
			t.Fatalf("bounds [%d, %d), %v, want [%d, %d)", first, e, err, end+index.Index(i), end+index.Index(i))
		}
		shut(t, s)
		s = open(t, p, Options{})
		if got := usage(t, s, 0).Begin; got != after.Begin {
			t.Fatalf("begins at %d, want %d", got, after.Begin)
		}
		if a := mustAppend(t, s, pt, "next"); a.First != end+index.Index(i) {
			t.Fatalf("next index %d, want %d", a.First, end+index.Index(i))
		}
		if err := s.Trim(pt, end+index.Index(i)+1); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Trim(part(pays, 0), 1<<40); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Reclaim(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("reclaim with an ended context: %v", err)
	}
	if n := reclaim(t, s); n <= 0 {
		t.Fatalf("%d bytes were freed in the end", n)
	}
}

// testCarryForward frees segments in which a few old messages are still needed: they have other places then, and are the same for whoever
// asks by index or time, also a partly trimmed batch; what is trimmed stays so. It does so twice.
func testCarryForward(t *testing.T, p Place) {
	var clock atomic.Int64
	clock.Store(1000)
	o := Options{Now: clock.Load, Tables: []store.Table{&recorder{name: "seen"}}}
	s := open(t, p, o)
	orders, noise := topic(t, s, "orders", 2), topic(t, s, "noise", 1)
	mustAppend(t, s, part(orders, 0), "0", "1", "2", "3")
	mustAppend(t, s, part(orders, 0), "4", "5")
	clock.Store(2000)
	mustAppend(t, s, part(orders, 1), "x")
	if err := s.Trim(part(orders, 0), 2); err != nil {
		t.Fatal(err)
	}
	check := func() {
		t.Helper()
		if first, end, err := s.Bounds(part(orders, 0)); first != 2 || end < 6 || err != nil {
			t.Fatalf("bounds [%d, %d), %v", first, end, err)
		}
		b, next, err := s.Read(part(orders, 0), 2, 6, 1<<20, nil)
		if err != nil || next != 6 {
			t.Fatal(next, err)
		}
		if from, bodies := Bodies(t, part(orders, 0), b); from != 0 || !slices.Equal(bodies, []string{"0", "1", "2", "3", "4", "5"}) {
			t.Fatal(from, bodies)
		}
		if got := All(t, s, part(orders, 1)); got[0] != "x" {
			t.Fatal(got)
		}
		for i, want := range map[index.Index]int64{2: 1000, 5: 1000} {
			if got, err := s.Stored(part(orders, 0), i); got != want || err != nil {
				t.Fatalf("message %d was stored at %d, %v, want %d", i, got, err, want)
			}
		}
		if got, err := s.Stored(part(orders, 1), 0); got != 2000 || err != nil {
			t.Fatal(got, err)
		}
		if i, err := s.Seek(part(orders, 0), 900); i != 2 || err != nil {
			t.Fatal(i, err)
		}
	}
	for round := range 2 {
		clock.Add(1000)
		segments := usage(t, s, 0).Segments
		end := fillSegments(t, s, part(noise, 0), segments+3)
		mustAppend(t, s, part(orders, 1), fmt.Sprint("y", round))
		if err := s.Trim(part(noise, 0), end); err != nil {
			t.Fatal(err)
		}
		begin := usage(t, s, 0).Begin
		if n := reclaim(t, s); n <= 0 {
			t.Fatalf("round %d: nothing was freed", round)
		}
		if now := usage(t, s, 0).Begin; now <= begin {
			t.Fatalf("round %d: begins at %d, as before", round, now)
		}
		check()
		for i := range 2 {
			if i == 1 {
				if err := s.Checkpoint(); err != nil {
					t.Fatal(err)
				}
			}
			shut(t, s)
			o.Tables = []store.Table{&recorder{name: "seen"}}
			s = open(t, p, o)
			check()
		}
	}
	if got := All(t, s, part(orders, 1)); !slices.Equal(got, []string{"x", "y0", "y1"}) {
		t.Fatal(got)
	}
}

// testReclaimDeleted frees what deleted topics held.
func testReclaimDeleted(t *testing.T, p Place) {
	s := open(t, p, Options{})
	keep, gone := topic(t, s, "keep", 1), topic(t, s, "gone", 2)
	fillSegments(t, s, part(gone, 1), 5)
	mustAppend(t, s, part(keep, 0), "kept")
	fillSegments(t, s, part(gone, 0), 7)
	if n := reclaim(t, s); n != 0 {
		t.Fatalf("%d bytes were freed", n)
	}
	if err := s.DeleteTopic(context.Background(), gone.ID, gone.Incarnation, "", ""); err != nil {
		t.Fatal(err)
	}
	if n := reclaim(t, s); n <= 0 {
		t.Fatal("nothing was freed")
	}
	if u := usage(t, s, 9); u.Segments > 3 || len(u.Holds) > 1 {
		t.Fatalf("%+v", u)
	}
	for range 2 {
		if got := All(t, s, part(keep, 0)); !slices.Equal(got, []string{"kept"}) {
			t.Fatal(got)
		}
		shut(t, s)
		s = open(t, p, Options{})
	}
}

// testGaps damages messages in the middle of a partition: they are a gap, named in full, and all others are read; it stays so over openings,
// and when their segments are freed.
func testGaps(t *testing.T, p Place) {
	s := open(t, p, Options{})
	orders, noise := topic(t, s, "orders", 1), topic(t, s, "noise", 1)
	pt := part(orders, 0)
	for i := range 10 {
		mustAppend(t, s, pt, fmt.Sprint(2*i), fmt.Sprint(2*i+1))
	}
	fillSegments(t, s, part(noise, 0), 2) // so that the damage is not in the last commit
	p.Damage(t, s, pt, 8)
	p.Damage(t, s, pt, 10)
	// Reading tells of the damage first, of the gap when it was seen to.
	gap := func(from index.Index) *store.GapError {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); ; {
			buf, next, err := s.Read(pt, from, 20, 1<<20, []byte("kept"))
			if err == nil || string(buf) != "kept" || next != from {
				t.Fatalf("read of a lost message: %d bytes, next %d, %v", len(buf), next, err)
			}
			if g := (*store.GapError)(nil); errors.As(err, &g) {
				return g
			}
			if !errors.Is(err, store.ErrDamaged) || time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
	}
	check := func() {
		t.Helper()
		b, next, err := s.Read(pt, 0, 20, 1<<20, nil)
		if err != nil || next != 8 {
			t.Fatalf("read up to the damage: next %d, %v", next, err)
		}
		if _, bodies := Bodies(t, pt, b); len(bodies) != 8 {
			t.Fatal(bodies)
		}
		if g := gap(8); g.From != 8 || g.To != 12 {
			t.Fatalf("gap [%d, %d), want [8, 12)", g.From, g.To)
		}
		if g := gap(9); g.From != 9 || g.To != 12 {
			t.Fatalf("gap [%d, %d), want [9, 12)", g.From, g.To)
		}
		b, next, err = s.Read(pt, 12, 20, 1<<20, nil)
		if err != nil || next != 20 {
			t.Fatalf("read after the gap: next %d, %v", next, err)
		}
		if from, bodies := Bodies(t, pt, b); from != 12 || len(bodies) != 8 || bodies[0] != "12" {
			t.Fatal(from, bodies)
		}
		if first, end, err := s.Bounds(pt); first != 0 || end != 20 || err != nil {
			t.Fatal(first, end, err)
		}
		if at, err := s.Stored(pt, 8); at == 0 || err != nil {
			t.Fatalf("a lost message has the time %d, %v", at, err)
		}
	}
	gap(8)
	gap(10)
	check()
	u := usage(t, s, 0)
	if len(u.Holes) == 0 || u.DamagedBytes == 0 {
		t.Fatalf("usage %+v", u)
	}
	var lost uint64
	for _, h := range u.Holes {
		lost += h.Messages
	}
	if lost != 4 {
		t.Fatalf("%d messages in %+v, want 4", lost, u.Holes)
	}
	for i := range 3 {
		if i == 1 {
			if err := s.Checkpoint(); err != nil {
				t.Fatal(err)
			}
		}
		shut(t, s)
		s = open(t, p, Options{})
		check()
	}
	end := fillSegments(t, s, part(noise, 0), 5)
	if err := s.Trim(part(noise, 0), end); err != nil {
		t.Fatal(err)
	}
	if n := reclaim(t, s); n <= 0 {
		t.Fatal("nothing was freed")
	}
	for range 2 {
		check()
		shut(t, s)
		s = open(t, p, Options{})
	}
}
