package offset

import (
	"encoding/hex"
	"errors"
	"flag"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/servertest/mutate"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/wire"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

var (
	orders   = Topic{ID: 300, Incarnation: 1}
	payments = Topic{ID: 301, Incarnation: 2}
)

func goldenEnds() []End {
	return []End{
		{Group: 1, Topic: orders, Partition: 0, Generation: 1, Outcome: wire.Acked, Range: Range{1000, 1010}},
		{Group: 1, Topic: orders, Partition: 0, Generation: 1, Outcome: wire.Acked, Range: Range{1011, 1012}},
		{Group: 1, Topic: orders, Partition: 0, Generation: 1, Outcome: wire.Skipped, Range: Range{1010, 1011}},
		{Group: 1, Topic: orders, Partition: 7, Generation: 2, Outcome: wire.Acked, Range: Range{5, 6}},
		{Group: 2, Topic: payments, Partition: 0, Generation: 1, Outcome: wire.Filtered, Range: Range{1 << 40, 1<<40 + 3}},
	}
}

func goldenDetailed() []End {
	return []End{{Group: 2, Topic: payments, Partition: 3, Generation: 1, Outcome: wire.Acked, Range: Range{8, 9},
		Detail: &Detail{Client: "host-17", Attempt: 2, LeasedAt: 1_700_000_000_000_000_000, EndedAt: 1_700_000_000_001_000_000}}}
}

func goldenReset() *Reset {
	return &Reset{Operation: Birth, Time: 1_700_000_000_000_000_000, Namespace: 4, Group: 2, GroupName: "payment", Topic: orders, TopicName: "orders",
		Policy: Policy{Parallel: true, Window: 500}, Who: "shop host-17", Why: "first subscription", Starts: []Start{{0, 1, 1000}, {1, 1, 0}, {7, 1, 1 << 33}}}
}

func goldenExpiries() []Expiry {
	return []Expiry{
		{Group: 2, Topic: orders, Partition: 0, Generation: 1, Count: 1, Ranges: Ranges{{1010, 1012}, {1020, 1025}}},
		{Group: 2, Topic: orders, Partition: 7, Generation: 2, Count: 3, Ranges: Ranges{{1 << 33, 1<<33 + 1}}},
	}
}

func goldenTable() *Table {
	t := NewTable()
	must := func(kind journal.Kind, payload []byte) {
		if err := t.Apply(journal.Record{Kind: kind, Payload: payload, Stored: 1_700_000_000_000_000_000}); err != nil {
			panic(err)
		}
	}
	r := goldenReset()
	must(journal.KindOffsetReset, AppendReset(nil, r))
	r.Operation, r.Time, r.Who, r.Why, r.Starts = Move, 1_700_000_000_000_000_001, "ops", "bad deploy", []Start{{7, 2, 1 << 33}}
	must(journal.KindOffsetReset, AppendReset(nil, r))
	must(journal.KindEnd, AppendEnds(nil, []End{
		{Group: 2, Topic: orders, Partition: 0, Generation: 1, Outcome: wire.Acked, Range: Range{1000, 1010}},
		{Group: 2, Topic: orders, Partition: 0, Generation: 1, Outcome: wire.Acked, Range: Range{1012, 1020}},
	}))
	must(journal.KindLeaseExpiry, AppendExpiries(nil, goldenExpiries()))
	must(journal.KindTopic, topicDelete(payments))
	return t
}

// topicDelete is the topic record of a deletion.
func topicDelete(t Topic) []byte {
	return store.AppendTopicRecord(nil, &store.TopicRecord{Operation: store.TopicDelete,
		Topic: store.Topic{ID: store.TopicID(t.ID), Incarnation: t.Incarnation, Name: "orders", Partitions: 1}})
}

// TestGolden holds the layouts of FORMAT.md to their bytes.
func TestGolden(t *testing.T) {
	for name, got := range map[string][]byte{
		"end":          AppendEnds(nil, goldenEnds()),
		"end-detailed": AppendEnds(nil, goldenDetailed()),
		"expiry":       AppendExpiries(nil, goldenExpiries()),
		"reset":        AppendReset(nil, goldenReset()),
		"snapshot":     goldenTable().Snapshot(nil),
	} {
		file := "testdata/" + name + ".hex"
		if *rewrite {
			if err := os.WriteFile(file, []byte(hex.Dump(got)), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if string(want) != hex.Dump(got) {
			t.Errorf("%s has changed: is\n%swas\n%s", name, hex.Dump(got), want)
		}
		// The text of FORMAT.md shows the same bytes.
		text, err := os.ReadFile("FORMAT.md")
		if err != nil {
			t.Fatal(err)
		}
		if name != "end-detailed" && !strings.Contains(strings.Join(strings.Fields(commentless(string(text))), ""), hex.EncodeToString(got)) {
			t.Errorf("FORMAT.md does not show the bytes of %s: % x", name, got)
		}
	}
}

// commentless keeps what stands left of the first two blanks after text in the indented blocks of FORMAT.md.
func commentless(text string) string {
	b := strings.Builder{}
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, "    "); ok {
			code, _, _ := strings.Cut(rest, "  ")
			b.WriteString(code + "\n")
		}
	}
	return b.String()
}

func drawEnds(t *rapid.T, detailed bool) []End {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) End {
		from := index.Index(rapid.Uint64Range(0, 50).Draw(t, "from"))
		e := End{
			Group: GroupID(rapid.Uint32Range(1, 3).Draw(t, "group")), Topic: Topic{rapid.Uint64Range(1, 2).Draw(t, "topic"), rapid.Uint32Range(1, 2).Draw(t, "incarnation")},
			Partition: uint16(rapid.Uint32Range(0, 2).Draw(t, "partition")), Generation: rapid.Uint32Range(1, 2).Draw(t, "generation"),
			Outcome: wire.Outcome(rapid.IntRange(int(wire.Acked), int(wire.Expired)).Draw(t, "outcome")),
			Range:   Range{from, from + index.Index(rapid.Uint64Range(0, 5).Draw(t, "length"))},
		}
		if detailed {
			e.Detail = &Detail{Client: rapid.StringN(0, 5, 20).Draw(t, "client"), Attempt: rapid.Uint32().Draw(t, "attempt"),
				LeasedAt: rapid.Int64Range(0, 1<<61).Draw(t, "leased"), EndedAt: rapid.Int64Range(0, 1<<61).Draw(t, "ended")}
		}
		return e
	}), 0, 40).Draw(t, "ends")
}

// TestEndsRoundTrip merges and encodes random ends: what is decoded is the same, and covers the messages that the ends
// before merging did.
func TestEndsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type message struct {
			g GroupID
			t Topic
			p uint16
			n uint32
			o wire.Outcome
			i index.Index
		}
		messages := func(ends []End) map[message]bool {
			m := map[message]bool{}
			for _, e := range ends {
				for i := e.Range.From; i < e.Range.To; i++ {
					m[message{e.Group, e.Topic, e.Partition, e.Generation, e.Outcome, i}] = true
				}
			}
			return m
		}
		ends := drawEnds(t, rapid.Bool().Draw(t, "detailed"))
		want := messages(ends)
		merged := MergeEnds(slices.Clone(ends))
		got, err := DecodeEnds(nil, AppendEnds(nil, merged))
		if err != nil {
			t.Fatal(err)
		}
		if len(got)+len(merged) > 0 && !reflect.DeepEqual(got, merged) {
			t.Fatalf("decoded %+v, want %+v", got, merged)
		}
		if !reflect.DeepEqual(messages(got), want) {
			t.Fatalf("merging %+v gave %+v", ends, got)
		}
	})
}

// TestEndsSize measures the steady state: 64 acks of single messages over 8 partitions of 2 groups, far into the topic,
// none of which touches another.
func TestEndsSize(t *testing.T) {
	var ends []End
	for i := range 64 {
		at := index.Index(40_000_000_000 + 1000*(i/16))
		ends = append(ends, End{Group: GroupID(1000 + i%2), Topic: Topic{ID: 5000, Incarnation: 1}, Partition: uint16(i / 2 % 8), Generation: 1, Outcome: wire.Acked, Range: Range{at, at + 1}})
	}
	ends = MergeEnds(ends)
	if len(ends) != 64 {
		t.Fatalf("%d ends are left of 64 apart", len(ends))
	}
	b := AppendEnds(nil, ends)
	t.Logf("%d bytes, %.2f an ack", len(b), float64(len(b))/64)
	if len(b) > 8*64 {
		t.Errorf("%d bytes, at most %d are allowed", len(b), 8*64)
	}
}

// TestBadRecords gives each decoder bytes that are wrong in one way each.
func TestBadRecords(t *testing.T) {
	end, expiry, reset, snapshot := AppendEnds(nil, goldenEnds()), AppendExpiries(nil, goldenExpiries()), AppendReset(nil, goldenReset()), goldenTable().Snapshot(nil)
	decode := map[string]func([]byte) error{
		"end":      func(b []byte) error { _, err := DecodeEnds(nil, b); return err },
		"expiry":   func(b []byte) error { _, err := DecodeExpiries(b); return err },
		"reset":    func(b []byte) error { _, err := DecodeReset(b); return err },
		"snapshot": func(b []byte) error { return NewTable().Restore(b) },
	}
	for name, good := range map[string][]byte{"end": end, "expiry": expiry, "reset": reset, "snapshot": snapshot} {
		if err := decode[name](good); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for n := 1; n < len(good); n++ { // an empty snapshot is that of a new table
			if err := decode[name](good[:n]); !errors.Is(err, ErrCorrupt) {
				t.Errorf("%s cut to %d of %d bytes: %v, want ErrCorrupt", name, n, len(good), err)
			}
		}
		if err := decode[name](append(slices.Clone(good), 0)); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s with a byte more: %v, want ErrCorrupt", name, err)
		}
		newer := slices.Clone(good)
		newer[0]++
		if err := decode[name](newer); !errors.Is(err, ErrVersion) {
			t.Errorf("%s of a newer version: %v, want ErrVersion", name, err)
		}
	}
	huge := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01} // 2^64-1
	for name, b := range map[string][]byte{
		"flags":          {1, 2, 0},
		"no such count":  {1, 0, 9, 0},
		"huge count":     append([]byte{1, 0}, huge...),
		"long varint":    append([]byte{1, 0}, append(huge[:9:9], 0x80, 0x01)...),
		"group 0":        {1, 0, 1, 0, 1, 1, 0},
		"huge group":     append(append([]byte{1, 0, 1}, huge...), 1, 1, 0),
		"outcome 0":      {1, 0, 1, 1, 1, 1, 1, 0, 1, byte(wire.Released), 1, 5, 1},
		"outcome 7":      {1, 0, 1, 1, 1, 1, 1, 0, 1, 7, 1, 5, 1},
		"empty range":    {1, 0, 1, 1, 1, 1, 1, 0, 1, 1, 1, 5, 0},
		"beyond 2^64":    append(append([]byte{1, 0, 1, 1, 1, 1, 1, 0, 1, 1, 1}, huge...), 5),
		"huge partition": {1, 0, 1, 1, 1, 1, 1, 0x80, 0x80, 0x04, 1, 1, 1, 5, 1},
	} {
		if got, err := DecodeEnds(goldenEnds(), b); !errors.Is(err, ErrCorrupt) || len(got) != len(goldenEnds()) {
			t.Errorf("end record with %s: %d ends, %v, want ErrCorrupt and the ends before", name, len(got), err)
		}
	}
}

func FuzzEnds(f *testing.F) {
	seeds := [][]byte{AppendEnds(nil, goldenEnds()), AppendEnds(nil, goldenDetailed()), {1, 0, 0}}
	mutate.Fuzz(f, mutate.Decoder{Seeds: seeds, Check: func(t testing.TB, b []byte) bool {
		ends, err := DecodeEnds(nil, b)
		if err != nil {
			mustRefuse(t, err)
			return false
		}
		// What can be read is read again from what it is written as.
		ends = MergeEnds(ends)
		again, err := DecodeEnds(nil, AppendEnds(nil, ends))
		if err != nil || len(ends) > 0 && !reflect.DeepEqual(again, ends) {
			t.Fatalf("%+v became %+v, %v", ends, again, err)
		}
		return true
	}})
}

// mustRefuse fails unless bytes were refused as what they are.
func mustRefuse(t testing.TB, err error) {
	if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) {
		t.Fatalf("refused with %v", err)
	}
}

func FuzzExpiries(f *testing.F) {
	mutate.Fuzz(f, mutate.Decoder{Seeds: [][]byte{AppendExpiries(nil, goldenExpiries())}, Check: func(t testing.TB, b []byte) bool {
		expiries, err := DecodeExpiries(b)
		if err != nil {
			mustRefuse(t, err)
			return false
		}
		again, err := DecodeExpiries(AppendExpiries(nil, expiries))
		if err != nil || !reflect.DeepEqual(expiries, again) {
			t.Fatalf("%+v became %+v, %v", expiries, again, err)
		}
		return true
	}})
}

func FuzzReset(f *testing.F) {
	mutate.Fuzz(f, mutate.Decoder{Seeds: [][]byte{AppendReset(nil, goldenReset())}, Check: func(t testing.TB, b []byte) bool {
		r, err := DecodeReset(b)
		if err != nil {
			mustRefuse(t, err)
			return false
		}
		again, err := DecodeReset(AppendReset(nil, r))
		if err != nil || !reflect.DeepEqual(r, again) {
			t.Fatalf("%+v became %+v, %v", r, again, err)
		}
		return true
	}})
}

func FuzzSnapshot(f *testing.F) {
	mutate.Fuzz(f, mutate.Decoder{Seeds: [][]byte{goldenTable().Snapshot(nil)}, Slowness: 4, Check: func(t testing.TB, b []byte) bool {
		table := NewTable()
		if err := table.Restore(b); err != nil {
			mustRefuse(t, err)
			if got, want := table.Snapshot(nil), NewTable().Snapshot(nil); !slices.Equal(got, want) {
				t.Fatalf("a refused snapshot left % x behind", got)
			}
			return false
		}
		first := table.Snapshot(nil)
		again := NewTable()
		if err := again.Restore(first); err != nil || !slices.Equal(first, again.Snapshot(nil)) {
			t.Fatalf("% x became % x, %v", first, again.Snapshot(nil), err)
		}
		return true
	}})
}
