package offset

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/wire"
)

var _ store.Table = (*Table)(nil)

func apply(t testing.TB, table *Table, kind journal.Kind, payload []byte) {
	t.Helper()
	if err := table.Apply(journal.Record{Kind: kind, Payload: payload}); err != nil {
		t.Fatal(err)
	}
}

func birth(id GroupID, name string, topic Topic, starts ...Start) []byte {
	return AppendReset(nil, &Reset{Operation: Birth, Namespace: 1, Group: id, GroupName: name, Topic: topic, Starts: starts})
}

func acked(g GroupID, topic Topic, p uint16, generation uint32, from, to index.Index) []byte {
	return AppendEnds(nil, []End{{Group: g, Topic: topic, Partition: p, Generation: generation, Outcome: wire.Acked, Range: Range{from, to}}})
}

func wantProgress(t testing.TB, table *Table, g GroupID, topic Topic, p uint16, want string) {
	t.Helper()
	progress, generation, ok := table.Progress(g, topic, p)
	if got := fmt.Sprintf("%v generation %d", progress, generation); !ok || got != want {
		t.Errorf("group %d partition %d: %s, want %s", g, p, got, want)
	}
}

// TestTable goes through the life of two groups: birth, acks in and out of order, the same again, a partition that came
// later, a reset, an ack that is older than the reset, and a topic that was made anew.
func TestTable(t *testing.T) {
	table := NewTable()
	apply(t, table, journal.KindOffsetReset, birth(1, "pay", orders, Start{0, 1, 10}, Start{1, 1, 0}))
	apply(t, table, journal.KindOffsetReset, birth(2, "ship", orders, Start{0, 1, 0}))
	wantProgress(t, table, 1, orders, 0, "offset 10 consumed none generation 1")
	wantProgress(t, table, 1, orders, 5, "offset 0 consumed none generation 1") // it came after the birth
	wantProgress(t, table, 2, orders, 0, "offset 0 consumed none generation 1")

	for range 2 { // the second time nothing changes
		apply(t, table, journal.KindOffsetReset, birth(1, "pay", orders, Start{0, 1, 10}, Start{1, 1, 0}))
		apply(t, table, journal.KindEnd, acked(1, orders, 0, 1, 12, 15))
		apply(t, table, journal.KindEnd, acked(1, orders, 0, 1, 10, 11))
		wantProgress(t, table, 1, orders, 0, "offset 11 consumed [12,15) generation 1")
	}
	apply(t, table, journal.KindEnd, acked(1, orders, 0, 1, 11, 12))
	wantProgress(t, table, 1, orders, 0, "offset 15 consumed none generation 1")
	apply(t, table, journal.KindEnd, acked(1, orders, 5, 1, 0, 2))
	wantProgress(t, table, 1, orders, 5, "offset 2 consumed none generation 1")
	wantProgress(t, table, 2, orders, 0, "offset 0 consumed none generation 1")

	// A reset moves one partition back; acks from before it count no more, wherever they are.
	apply(t, table, journal.KindOffsetReset, birth(1, "pay", orders, Start{0, 2, 3}))
	wantProgress(t, table, 1, orders, 0, "offset 3 consumed none generation 2")
	wantProgress(t, table, 1, orders, 1, "offset 0 consumed none generation 1")
	apply(t, table, journal.KindEnd, acked(1, orders, 0, 1, 15, 20))
	apply(t, table, journal.KindEnd, acked(1, orders, 0, 2, 3, 4))
	wantProgress(t, table, 1, orders, 0, "offset 4 consumed none generation 2")

	// Other incarnations are other topics.
	apply(t, table, journal.KindEnd, acked(1, Topic{orders.ID, 2}, 0, 1, 0, 100))
	apply(t, table, journal.KindEnd, acked(9, orders, 0, 1, 0, 100))
	if _, _, ok := table.Progress(1, Topic{orders.ID, 2}, 0); ok {
		t.Error("an end made a subscription")
	}
	if got, want := table.Counts(), (Counts{Ended: 8, Again: 4, Old: 1, Unknown: 2}); got != want {
		t.Errorf("counted %+v, want %+v", got, want)
	}

	if id, ok := table.Group(1, "pay"); !ok || id != 1 {
		t.Errorf("group pay is %d, %v", id, ok)
	}
	if _, ok := table.Group(2, "pay"); ok {
		t.Error("group pay is in another namespace too")
	}
	if !table.Has(1, orders) || table.Has(1, payments) || table.LastGroup() != 2 || table.Subscriptions() != 2 {
		t.Errorf("has %v %v, last %d, %d subscriptions", table.Has(1, orders), table.Has(1, payments), table.LastGroup(), table.Subscriptions())
	}
	if got, want := table.GroupsOf(orders), []NamedGroup{{1, 1, "pay"}, {2, 1, "ship"}}; !slices.Equal(got, want) {
		t.Errorf("groups of orders: %v, want %v", got, want)
	}
}

// TestContradictions shows records that cannot follow on what was there, and that they change nothing.
func TestContradictions(t *testing.T) {
	table := NewTable()
	apply(t, table, journal.KindOffsetReset, birth(1, "pay", orders, Start{0, 1, 0}))
	before := table.Snapshot(nil)
	for name, r := range map[string]journal.Record{
		"number taken":         {Kind: journal.KindOffsetReset, Payload: birth(1, "ship", orders)},
		"name taken":           {Kind: journal.KindOffsetReset, Payload: birth(2, "pay", orders)},
		"generation not given": {Kind: journal.KindEnd, Payload: AppendEnds(nil, []End{{Group: 1, Topic: orders, Generation: 1, Outcome: 1, Range: Range{0, 1}}, {Group: 1, Topic: orders, Partition: 1, Generation: 2, Outcome: 1, Range: Range{0, 1}}})},
		"malformed end":        {Kind: journal.KindEnd, Payload: []byte{1}},
		"malformed reset":      {Kind: journal.KindOffsetReset, Payload: []byte{2}},
		"malformed expiry":     {Kind: journal.KindLeaseExpiry, Payload: []byte{1}},
	} {
		if err := table.Apply(r); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v, want ErrCorrupt", name, err)
		}
		if after := table.Snapshot(nil); !slices.Equal(before, after) {
			t.Errorf("%s changed the table from % x to % x", name, before, after)
		}
	}
	if err := table.Apply(journal.Record{Kind: journal.KindMessages, Payload: []byte{1}}); err != nil {
		t.Errorf("a record of another kind: %v", err)
	}
}

// TestSnapshot applies random records to two tables, one of which is replaced by its snapshot now and then, and some
// records are given to it again: both stay the same.
func TestSnapshot(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := NewTable(), NewTable()
		names := []string{"pay", "ship", "log"}
		generations := map[[3]any]uint32{}
		var last journal.Record
		both := func(r journal.Record) {
			for _, table := range []*Table{a, b} {
				if err := table.Apply(r); err != nil {
					t.Fatal(err)
				}
			}
			last = r
		}
		t.Repeat(map[string]func(*rapid.T){
			"reset": func(t *rapid.T) {
				g := rapid.IntRange(1, len(names)).Draw(t, "group")
				topic := Topic{rapid.Uint64Range(1, 2).Draw(t, "topic"), 1}
				p := uint16(rapid.IntRange(0, 3).Draw(t, "partition"))
				key := [3]any{g, topic, p}
				if a.Has(GroupID(g), topic) {
					generations[key] = max(generations[key], 1) + 1
				} else {
					generations[key] = 1
				}
				both(journal.Record{Kind: journal.KindOffsetReset, Payload: birth(GroupID(g), names[g-1], topic, Start{p, generations[key], index.Index(rapid.IntRange(0, 20).Draw(t, "offset"))})})
			},
			"end": func(t *rapid.T) {
				var ends []End
				for _, e := range drawEnds(t, false) {
					e.Topic.Incarnation = 1
					_, at, ok := a.Progress(e.Group, e.Topic, e.Partition)
					if ok && e.Generation > at {
						e.Generation = at
					}
					ends = append(ends, e)
				}
				both(journal.Record{Kind: journal.KindEnd, Payload: AppendEnds(nil, MergeEnds(ends))})
			},
			"restore": func(t *rapid.T) {
				snapshot := b.Snapshot(nil)
				b = NewTable()
				if rapid.Bool().Draw(t, "over another") {
					if err := b.Restore(goldenTable().Snapshot(nil)); err != nil {
						t.Fatal(err)
					}
				}
				if err := b.Restore(snapshot); err != nil {
					t.Fatal(err)
				}
			},
			"again": func(t *rapid.T) {
				if last.Kind == journal.KindOffsetReset {
					if err := b.Apply(last); err != nil {
						t.Fatal(err)
					}
				}
			},
			"": func(t *rapid.T) {
				if !slices.Equal(a.Snapshot(nil), b.Snapshot(nil)) {
					t.Fatalf("the tables differ:\n% x\n% x", a.Snapshot(nil), b.Snapshot(nil))
				}
			},
		})
	})
}

// TestEmptySnapshot shows that nothing restores a new table, as the store asks.
func TestEmptySnapshot(t *testing.T) {
	table := goldenTable()
	if err := table.Restore(nil); err != nil || table.Subscriptions() != 0 {
		t.Errorf("%v, %d subscriptions are left", err, table.Subscriptions())
	}
}

// TestReaders reads while records are applied: each answer is of one moment, and nothing moves back.
func TestReaders(t *testing.T) {
	table := NewTable()
	apply(t, table, journal.KindOffsetReset, birth(1, "pay", orders, Start{0, 1, 0}))
	const n = 2000
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			for last := index.Index(0); last < n; {
				// Every record ends one even and then the odd below it, so at most one range lies above the offset.
				p, _, ok := table.Progress(1, orders, 0)
				if !ok || p.Ack < last || len(p.Consumed) > 1 {
					t.Errorf("%v after offset %d", p, last)
					return
				}
				last = p.Ack
			}
		})
	}
	for i := index.Index(0); i < n; i += 2 {
		apply(t, table, journal.KindEnd, acked(1, orders, 0, 1, i+1, i+2))
		apply(t, table, journal.KindEnd, acked(1, orders, 0, 1, i, i+1))
	}
	all.Wait()
}

// TestApplyAllocates shows that a commit's ends cost no memory in the steady state.
func TestApplyAllocates(t *testing.T) {
	table := NewTable()
	for g := GroupID(1); g <= 2; g++ {
		apply(t, table, journal.KindOffsetReset, birth(g, fmt.Sprint("g", g), orders, Start{7, 1, 0}))
	}
	at, payload := index.Index(0), []byte(nil)
	ends := make([]End, 0, 64)
	round := func() {
		ends = ends[:0]
		for i := range 64 {
			// Out of order by one, so that ranges come and go.
			k := at + index.Index(i/16^1)
			ends = append(ends, End{Group: GroupID(1 + i%2), Topic: orders, Partition: uint16(i / 2 % 8), Generation: 1, Outcome: wire.Acked, Range: Range{k, k + 1}})
		}
		at += 4
		payload = AppendEnds(payload[:0], MergeEnds(ends))
		if err := table.Apply(journal.Record{Kind: journal.KindEnd, Payload: payload}); err != nil {
			t.Fatal(err)
		}
	}
	round()
	if n := testing.AllocsPerRun(200, round); n > 0 {
		t.Errorf("%v allocations for a record of 64 acks, want none", n)
	}
}
