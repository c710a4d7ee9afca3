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

var (
	_ store.Table   = (*Table)(nil)
	_ store.Witness = (*Table)(nil)
)

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
// records are given to it again: both stay the same, and their numbers are those of their ranges.
func TestSnapshot(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := NewTable(), NewTable()
		names := []string{"pay", "ship", "log"}
		numbers := map[string]GroupID{}
		stored := int64(0)
		var last journal.Record
		both := func(r journal.Record) {
			stored++
			r.Stored = stored
			for _, table := range []*Table{a, b} {
				if err := table.Apply(r); err != nil {
					t.Fatal(err)
				}
			}
			last = r
		}
		// number gives a group that is on no topic a new number, as the broker does.
		number := func(name string) GroupID {
			id, ok := a.Group(1, name)
			if !ok {
				if id = a.LastGroup() + 1; id <= numbers[name] {
					t.Fatalf("number %d is given again", id)
				}
				numbers[name] = id
			}
			return id
		}
		drawTopic := func(t *rapid.T) Topic { return Topic{rapid.Uint64Range(1, 2).Draw(t, "topic"), 1} }
		t.Repeat(map[string]func(*rapid.T){
			"reset": func(t *rapid.T) {
				name := rapid.SampledFrom(names).Draw(t, "group")
				r := Reset{Operation: Birth, Time: stored, Namespace: 1, Group: number(name), GroupName: name, Topic: drawTopic(t), Who: "someone", Why: name}
				p := uint16(rapid.IntRange(0, 3).Draw(t, "partition"))
				start := Start{p, a.BirthGeneration(), index.Index(rapid.IntRange(0, 20).Draw(t, "offset"))}
				if a.Has(r.Group, r.Topic) {
					r.Operation = rapid.SampledFrom([]Operation{Birth, Move, Alter, Remove}).Draw(t, "operation")
					_, start.Generation, _ = a.Progress(r.Group, r.Topic, p)
					start.Generation++
				}
				r.Policy = Policy{Parallel: rapid.Bool().Draw(t, "parallel"), Window: rapid.Uint32().Draw(t, "window")}
				r.Starts = []Start{start}
				both(journal.Record{Kind: journal.KindOffsetReset, Payload: AppendReset(nil, &r)})
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
			"expiry": func(t *rapid.T) {
				e := Expiry{Group: GroupID(rapid.Uint32Range(1, 3).Draw(t, "group")), Topic: drawTopic(t), Partition: uint16(rapid.IntRange(0, 2).Draw(t, "partition")),
					Count: rapid.Uint32Range(1, 3).Draw(t, "count")}
				for range rapid.IntRange(1, 3).Draw(t, "ranges") {
					from := index.Index(rapid.IntRange(0, 50).Draw(t, "from"))
					e.Ranges.Add(Range{from, from + index.Index(rapid.IntRange(1, 5).Draw(t, "length"))})
				}
				_, e.Generation, _ = a.Progress(e.Group, e.Topic, e.Partition)
				both(journal.Record{Kind: journal.KindLeaseExpiry, Payload: AppendExpiries(nil, []Expiry{e})})
			},
			"lost": func(t *rapid.T) { both(journal.Record{Kind: journal.KindLost}) },
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
				if r, err := DecodeReset(last.Payload); last.Kind == journal.KindOffsetReset && err == nil && r.Operation != Remove {
					if err := b.Apply(last); err != nil {
						t.Fatal(err)
					}
				}
			},
			"": func(t *rapid.T) {
				if !slices.Equal(a.Snapshot(nil), b.Snapshot(nil)) {
					t.Fatalf("the tables differ:\n% x\n% x", a.Snapshot(nil), b.Snapshot(nil))
				}
				for _, sub := range a.mu.subs {
					for p := range uint16(4) {
						progress, generation, _ := a.Progress(sub.group.id, sub.topic, p)
						first := index.Index(rapid.IntRange(0, 60).Draw(t, "first"))
						s, ok := a.Standing(sub.group.id, sub.topic, p, first)
						if want := progress.Count(Range{first, 1000}); !ok || s.Ended != want || s.Consumed != progress.Consumed.Len() || s.Ack != progress.Ack || s.Generation != generation {
							t.Fatalf("%+v of %v generation %d from %d on, want %d ended", s, progress, generation, first, want)
						}
						if i, _ := a.First(sub.group.id, sub.topic, p, first); progress.Count(Range{first, i}) != uint64(max(i, first)-first) || progress.Count(Range{i, i + 1}) != 0 {
							t.Fatalf("%d is the first from %d on that has not ended, of %v", i, first, progress)
						}
					}
				}
			},
		})
	})
}

// reset applies one with a policy, at a time.
func reset(t testing.TB, table *Table, r Reset) {
	t.Helper()
	r.Namespace = 1
	if err := table.Apply(journal.Record{Kind: journal.KindOffsetReset, Payload: AppendReset(nil, &r), Stored: r.Time}); err != nil {
		t.Fatal(err)
	}
}

// TestResets goes through what a reset can do: a birth with a policy, a move that is remembered, an alteration, a removal,
// and a second birth for which nothing from before counts, even if it is written after it.
func TestResets(t *testing.T) {
	table := NewTable()
	pay := Reset{Operation: Birth, Time: 10, Group: 1, GroupName: "pay", Topic: orders, Starts: []Start{{0, table.BirthGeneration(), 5}}, Policy: Policy{Parallel: true, Window: 7}}
	other := pay
	other.Topic = payments
	reset(t, table, pay)
	reset(t, table, other)
	if p, ok := table.Policy(1, orders); !ok || p != pay.Policy {
		t.Errorf("policy %+v, %v", p, ok)
	}
	if m, ok := table.LastMove(1, orders); ok {
		t.Errorf("moved by its birth: %+v", m)
	}
	if at := table.Active(1, orders); at != 10 {
		t.Errorf("active at %d", at)
	}
	move := pay
	move.Operation, move.Time, move.Who, move.Why, move.Starts = Move, 20, "ops", "again", []Start{{0, 2, 1}}
	reset(t, table, move)
	wantProgress(t, table, 1, orders, 0, "offset 1 consumed none generation 2")
	if m, ok := table.LastMove(1, orders); !ok || m != (Moved{20, "ops", "again"}) {
		t.Errorf("moved %+v, %v", m, ok)
	}
	alter := pay
	alter.Operation, alter.Time, alter.Policy, alter.Starts = Alter, 30, Policy{}, nil
	reset(t, table, alter)
	if p, _ := table.Policy(1, orders); p != (Policy{}) || table.Active(1, orders) != 30 {
		t.Errorf("policy %+v, active at %d", p, table.Active(1, orders))
	}
	apply(t, table, journal.KindLeaseExpiry, AppendExpiries(nil, []Expiry{{Group: 1, Topic: orders, Generation: 2, Count: 2, Ranges: Ranges{{0, 4}}}}))
	wantProgress(t, table, 1, orders, 0, "offset 1 consumed none expired [1,4)*2 generation 2")
	apply(t, table, journal.KindEnd, acked(1, orders, 0, 2, 2, 3))
	if s, ok := table.Standing(1, orders, 0, 0); !ok || s != (Standing{Ack: 1, Consumed: 1, Ended: 2, Generation: 2, Expired: 2, AttemptsMax: 2}) {
		t.Errorf("stands at %+v", s)
	}
	move.Starts = []Start{{0, 3, 0}}
	reset(t, table, move)
	apply(t, table, journal.KindLeaseExpiry, AppendExpiries(nil, []Expiry{{Group: 1, Topic: orders, Generation: 2, Count: 2, Ranges: Ranges{{0, 4}}}}))
	wantProgress(t, table, 1, orders, 0, "offset 0 consumed none generation 3")

	remove := pay
	remove.Operation = Remove
	for range 2 {
		reset(t, table, remove)
		reset(t, table, move) // was on its way
		reset(t, table, alter)
		if table.Has(1, orders) || !table.Has(1, payments) || table.BirthGeneration() != 4 {
			t.Fatalf("after the removal: on orders %v, on payments %v, next generation %d", table.Has(1, orders), table.Has(1, payments), table.BirthGeneration())
		}
	}
	pay.Starts[0].Generation = table.BirthGeneration()
	reset(t, table, pay)
	apply(t, table, journal.KindEnd, acked(1, orders, 0, 3, 5, 9))
	wantProgress(t, table, 1, orders, 0, "offset 5 consumed none generation 4")
	wantProgress(t, table, 1, orders, 9, "offset 0 consumed none generation 4") // made later

	// With its last topic a group goes, and its number is not given again.
	reset(t, table, remove)
	other.Operation = Remove
	reset(t, table, other)
	if _, ok := table.Group(1, "pay"); ok || table.LastGroup() != 1 || table.Subscriptions() != 0 {
		t.Errorf("group is there: %v, last %d, %d subscriptions", ok, table.LastGroup(), table.Subscriptions())
	}
}

// TestDeletedTopics makes and deletes many topics with groups on them, births on their way included: nothing is left of them
// but a few numbers.
func TestDeletedTopics(t *testing.T) {
	table := NewTable()
	reset(t, table, Reset{Operation: Birth, Group: 1, GroupName: "stays", Topic: Topic{1, 1}, Starts: []Start{{3, 1, 7}}})
	before := table.Snapshot(nil)
	for i := range uint32(5000) {
		topic := Topic{2, 2 + i}
		for g := range GroupID(3) {
			reset(t, table, Reset{Operation: Birth, Group: 2 + GroupID(3*i) + g, GroupName: fmt.Sprint("group", g), Topic: topic, Starts: []Start{{3, 1, 7}}})
		}
		reset(t, table, Reset{Operation: Birth, Group: 1, GroupName: "stays", Topic: topic})
		apply(t, table, journal.KindTopic, topicDelete(topic))
		reset(t, table, Reset{Operation: Birth, Group: 1, GroupName: "stays", Topic: topic})
		reset(t, table, Reset{Operation: Birth, Group: 2 + GroupID(3*i) + 3, GroupName: "late", Topic: topic})
	}
	if n, g := table.Subscriptions(), len(table.mu.groups); n != 1 || g != 1 || len(table.mu.byTopic) != 1 || len(table.mu.byID) != 1 || len(table.mu.byName) != 1 || len(table.mu.deleted) != deletedMax {
		t.Errorf("%d subscriptions and %d groups are left, and %d deleted topics", n, g, len(table.mu.deleted))
	}
	if after := table.Snapshot(nil); len(after) > len(before)+4*deletedMax+10 {
		t.Errorf("the snapshot had %d bytes and has %d", len(before), len(after))
	}
}

// TestLost shows that after lost records a table goes on with what follows: a generation whose reset was lost is adopted, and a
// group whose end or birth was lost gives way to the one that has its name or number.
func TestLost(t *testing.T) {
	table := NewTable()
	apply(t, table, journal.KindOffsetReset, birth(1, "pay", orders, Start{0, 1, 10}))
	apply(t, table, journal.KindOffsetReset, birth(2, "ship", orders, Start{0, 1, 10}))
	apply(t, table, journal.KindLost, nil)
	restored := NewTable()
	if err := restored.Restore(table.Snapshot(nil)); err != nil {
		t.Fatal(err)
	}
	for _, table := range []*Table{table, restored} {
		apply(t, table, journal.KindEnd, acked(1, orders, 0, 3, 10, 12))
		wantProgress(t, table, 1, orders, 0, "offset 12 consumed none generation 3")
		apply(t, table, journal.KindEnd, acked(1, orders, 0, 2, 12, 14))
		wantProgress(t, table, 1, orders, 0, "offset 12 consumed none generation 3")
		apply(t, table, journal.KindOffsetReset, birth(5, "ship", payments, Start{0, 1, 0}))
		apply(t, table, journal.KindOffsetReset, birth(1, "log", orders, Start{0, 1, 0}))
		if got, want := fmt.Sprint(table.GroupsOf(orders), table.GroupsOf(payments)), "[{1 1 log}] [{5 1 ship}]"; got != want {
			t.Errorf("groups %s, want %s", got, want)
		}
	}
}

// BenchmarkHoles is one partition of which every second message of 200,000 was acked: reading where the group stands, acks that
// fill holes at the front, in the middle and at random, a copy and a snapshot.
func BenchmarkHoles(b *testing.B) {
	const holes = 100_000
	make := func() *Table {
		table := NewTable()
		apply(b, table, journal.KindOffsetReset, birth(1, "pay", orders, Start{0, 1, 0}))
		var ends []End
		for i := range index.Index(holes) {
			ends = append(ends, End{Group: 1, Topic: orders, Generation: 1, Outcome: wire.Acked, Range: Range{2*i + 1, 2*i + 2}})
		}
		apply(b, table, journal.KindEnd, AppendEnds(nil, ends))
		return table
	}
	b.Run("standing", func(b *testing.B) {
		table := make()
		b.ReportAllocs()
		for b.Loop() {
			table.Standing(1, orders, 0, 0)
		}
	})
	for name, at := range map[string]func(i int) int{"front": func(i int) int { return i }, "back": func(i int) int { return holes - 1 - i }, "random": func(i int) int { return i * 7919 % holes }} {
		b.Run("ack/"+name, func(b *testing.B) {
			table, i := make(), 0
			for b.Loop() {
				if i == holes {
					b.StopTimer()
					table, i = make(), 0
					b.StartTimer()
				}
				from := index.Index(2 * at(i))
				i++
				apply(b, table, journal.KindEnd, acked(1, orders, 0, 1, from, from+1))
			}
		})
	}
	b.Run("progress", func(b *testing.B) {
		table := make()
		for b.Loop() {
			table.Progress(1, orders, 0)
		}
	})
	b.Run("snapshot", func(b *testing.B) {
		table, buf := make(), []byte(nil)
		for b.Loop() {
			buf = table.Snapshot(buf[:0])
		}
		b.ReportMetric(float64(len(buf)), "bytes")
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

// TestEnds tells how far each partition's messages went at least: the ack offset, or what was consumed beyond it.
func TestEnds(t *testing.T) {
	a := NewTable()
	topic := Topic{ID: 7, Incarnation: 2}
	apply(t, a, journal.KindOffsetReset, AppendReset(nil, &Reset{Operation: Birth, Group: 1, GroupName: "g", Topic: topic, Starts: []Start{{Partition: 0, Offset: 5, Generation: 1}, {Partition: 2, Offset: 9, Generation: 1}}}))
	apply(t, a, journal.KindEnd, AppendEnds(nil, []End{{Group: 1, Topic: topic, Partition: 0, Generation: 1, Outcome: wire.Acked, Range: Range{From: 8, To: 10}}}))
	var got []string
	a.Ends(func(topic uint64, incarnation uint32, partition uint16, end index.Index) {
		got = append(got, fmt.Sprint(topic, incarnation, partition, end))
	})
	if want := []string{"7 2 0 10", "7 2 1 0", "7 2 2 9"}; !slices.Equal(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
}
