package store

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/servertest/mutate"
)

var rewrite = flag.Bool("rewrite", false, "write golden files")

func created(t *Topic) journal.Record {
	return change(TopicCreate, t)
}

func change(op TopicOperation, t *Topic) journal.Record {
	return journal.Record{Kind: journal.KindTopic, Payload: AppendTopicRecord(nil, &TopicRecord{Operation: op, Topic: *t, Who: "ops", Why: "because"})}
}

func topicNumber(n int) *Topic {
	t := &Topic{Namespace: uint32(n % 3), ID: TopicID(n), Incarnation: uint32(n), Name: fmt.Sprint("topic-", n), Partitions: uint32(n), Created: int64(n) * 1e9}
	if n%2 == 0 {
		t.Origin = Origin{Generation: uint64(n), Created: uint64(n) << 32, Version: uint64(n)<<32 + 1}
	}
	if n%3 == 0 {
		t.Settings.Durability = DurabilityReplicated
	}
	return t
}

// TestTopics applies records in and out of the order of ids, finds the topics while others are added, and restores them from
// a snapshot.
func TestTopics(t *testing.T) {
	const n = 1000
	a := NewTopics()
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		for i := 1; ; i = i%n + 1 {
			select {
			case <-stop:
				return
			default:
			}
			want := topicNumber(i)
			if got, ok := a.Find(want.Namespace, want.Name); ok && *got != *want {
				t.Errorf("found %+v, want %+v", *got, *want)
				return
			}
		}
	})
	for i := range n { // pairs out of order
		if err := a.Apply(created(topicNumber(i ^ 1 + 1))); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	wg.Wait()
	if err := a.Apply(journal.Record{Kind: journal.KindEnd, Payload: []byte("not ours")}); err != nil {
		t.Fatal(err)
	}
	list := a.List()
	if !slices.IsSortedFunc(list, func(x, y Topic) int { return int(x.ID) - int(y.ID) }) || a.Len() != len(list) || a.Incarnation() != n {
		t.Fatalf("%d topics, the highest incarnation is %d", a.Len(), a.Incarnation())
	}
	state := a.Snapshot([]byte("before"))[len("before"):]
	b := NewTopics()
	if err := b.Apply(created(&Topic{ID: 1, Incarnation: 1, Name: "goes away", Partitions: 1})); err != nil {
		t.Fatal(err)
	}
	if err := b.Restore(state); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(b.List(), list) {
		t.Fatal("restored topics differ")
	}
	for _, want := range list {
		if got, ok := b.Find(want.Namespace, want.Name); !ok || *got != want {
			t.Fatalf("found %+v, %v, want %+v", got, ok, want)
		}
	}
	if _, ok := b.Find(0, "goes away"); ok {
		t.Fatal("Restore kept what was there")
	}
	if err := b.Restore(nil); err != nil || b.Len() != 0 || b.Incarnation() != 0 {
		t.Fatal(err, b.Len())
	}
}

// TestTopicsRefuse applies records that contradict what is there, or are no topic records: each is an error and changes nothing.
func TestTopicsRefuse(t *testing.T) {
	a := NewTopics()
	first := Topic{ID: 4, Incarnation: 1, Name: "orders", Partitions: 2}
	if err := a.Apply(created(&first)); err != nil {
		t.Fatal(err)
	}
	sameName, sameID := first, first
	sameName.ID, sameID.Name = 5, "other"
	good := created(&Topic{ID: 9, Incarnation: 1, Name: "n", Partitions: 1}).Payload
	with := func(at int, v byte) []byte { b := slices.Clone(good); b[at] = v; return b }
	// durable is a record of version 4 with one byte changed of what it has more.
	durable := func(at int, v byte) []byte {
		b := created(&Topic{ID: 9, Incarnation: 1, Name: "n", Partitions: 1, Settings: Settings{Durability: DurabilityReplicated}}).Payload
		b[topicFixedBytes+topicOriginBytes+at] = v
		return b
	}
	otherIncarnation, otherName, fewer := first, first, first
	otherIncarnation.Incarnation, otherName.Name, fewer.Partitions = 2, "other", 1
	for name, b := range map[string][]byte{
		"same name":               created(&sameName).Payload,
		"same id":                 created(&sameID).Payload,
		"alter what is not there": change(TopicAlter, &sameName).Payload,
		"alter a former life":     change(TopicAlter, &otherIncarnation).Payload,
		"alter the name":          change(TopicAlter, &otherName).Payload,
		"fewer partitions":        change(TopicAlter, &fewer).Payload,
		"delete a former life":    change(TopicDelete, &otherIncarnation).Payload,
		"nothing":                 nil,
		"cut":                     good[:len(good)-1],
		"longer":                  append(slices.Clone(good), 0),
		"version 1":               with(0, 1),
		"version 5":               with(0, 5),
		"version 4, cut":          with(0, 4),
		"durability 0":            durable(0, 0),
		"durability 2":            durable(0, 2),
		"durability, reserved":    durable(7, 1),
		"cut origin":              with(0, 3),
		"no origin":               with(0, 3)[:topicFixedBytes],
		"origin 0":                append(append(with(0, 3)[:topicFixedBytes:topicFixedBytes], make([]byte, topicOriginBytes)...), good[topicFixedBytes:]...),
		"operation 0":             with(1, 0),
		"operation 4":             with(1, 4),
		"flags":                   with(2, 8),
		"id 0":                    with(8, 0),
		"incarnation 0":           with(16, 0),
		"partitions 0":            with(20, 0),
		"partitions":              with(22, 2),
		"no name":                 with(3, 0)[:topicFixedBytes],
		"long name":               with(3, 200),
		"long who":                with(49, 0x20),
		"long why":                with(51, 0x20),
	} {
		if err := a.Apply(journal.Record{Kind: journal.KindTopic, Payload: b}); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if got := a.List(); len(got) != 1 || got[0] != first {
		t.Fatal(got)
	}
	state := a.Snapshot(nil)
	for name, b := range map[string][]byte{
		"cut": state[:len(state)-1], "longer": append(slices.Clone(state), 1), "version": append([]byte{1}, state[1:]...), "a byte": {topicsSnapshotVersion},
		"count": append(append(slices.Clone(state[:5]), 2, 0, 0, 0), state[9:]...), "incarnation": append([]byte{topicsSnapshotVersion, 0}, state[2:]...),
	} {
		if err := NewTopics().Restore(b); err == nil {
			t.Errorf("snapshot %s: accepted", name)
		}
	}
}

// TestTopicChanges alters and deletes topics, makes one again under its name with its old id, and restores each state.
func TestTopicChanges(t *testing.T) {
	a := NewTopics()
	apply := func(r journal.Record) []Topic {
		t.Helper()
		gone, err := a.Change(r)
		if err != nil {
			t.Fatal(err)
		}
		b := NewTopics()
		if err := b.Restore(a.Snapshot(nil)); err != nil || !slices.Equal(a.List(), b.List()) || a.Incarnation() != b.Incarnation() {
			t.Fatalf("restored %v as %v (%v)", a.List(), b.List(), err)
		}
		return gone
	}
	one := Topic{Namespace: 2, ID: 1, Incarnation: 1, Name: "orders", Partitions: 2}
	apply(created(&one))
	apply(created(&Topic{ID: 2, Incarnation: 2, Name: "pays", Partitions: 1}))
	one.Partitions = 5
	one.Settings = Settings{RetentionAge: -1, RetentionBytes: 1 << 40, DiscardUnconsumed: true, PauseProduce: true, PauseConsume: true}
	if gone := apply(change(TopicAlter, &one)); gone != nil {
		t.Fatal(gone)
	}
	if got, ok := a.Find(2, "orders"); !ok || *got != one || a.List()[0] != one {
		t.Fatalf("altered: %+v, %v, want %+v", got, a.List(), one)
	}
	if gone := apply(change(TopicDelete, &one)); len(gone) != 1 || gone[0] != one {
		t.Fatal(gone)
	}
	if _, ok := a.Find(2, "orders"); ok || a.Len() != 1 {
		t.Fatal(a.List())
	}
	one.Incarnation, one.Settings = 3, Settings{}
	apply(created(&one))
	if got, ok := a.Find(2, "orders"); !ok || *got != one || a.Incarnation() != 3 {
		t.Fatalf("made again: %+v, %d", got, a.Incarnation())
	}
	// The highest is remembered though its topic is not.
	apply(change(TopicDelete, &one))
	if a.Incarnation() != 3 || a.Len() != 1 {
		t.Fatal(a.Incarnation(), a.List())
	}
	long := TopicRecord{Operation: TopicDelete, Topic: one, Who: strings.Repeat("w", 5000), Why: strings.Repeat("ü", 2049)}
	got, err := ParseTopicRecord(AppendTopicRecord(nil, &long))
	if err != nil || len(got.Who) != TopicReasonBytesMax || got.Why != strings.Repeat("ü", 2048) || got.Topic != one {
		t.Fatal(len(got.Who), len(got.Why), err)
	}
}

// TestTopicsAfterLoss applies records that contradict what is there because others were lost: each makes it as it says.
func TestTopicsAfterLoss(t *testing.T) {
	base := Topic{ID: 1, Incarnation: 1, Name: "orders", Partitions: 2}
	renamed, reborn, moved, unknown, fewer := base, base, base, base, base
	renamed.Incarnation, renamed.Name = 2, "other"
	reborn.Incarnation = 2
	moved.ID, moved.Incarnation = 2, 2
	unknown.ID, unknown.Incarnation, unknown.Name = 7, 9, "unknown"
	fewer.Partitions = 1
	for name, c := range map[string]struct {
		r          journal.Record
		want, gone []Topic
	}{
		"id is another's now":       {created(&renamed), []Topic{renamed}, []Topic{base}},
		"id is another's, altered":  {change(TopicAlter, &renamed), []Topic{renamed}, []Topic{base}},
		"made again":                {created(&reborn), []Topic{reborn}, []Topic{base}},
		"made again, other id":      {created(&moved), []Topic{moved}, []Topic{base}},
		"altered, not known":        {change(TopicAlter, &unknown), []Topic{base, unknown}, nil},
		"deleted, not known":        {change(TopicDelete, &unknown), []Topic{base}, nil},
		"deleted, one of its id is": {change(TopicDelete, &renamed), nil, []Topic{base}},
		"deleted":                   {change(TopicDelete, &base), nil, []Topic{base}},
		"created, is there":         {created(&base), []Topic{base}, nil},
	} {
		a := NewTopics()
		if err := a.Apply(created(&base)); err != nil {
			t.Fatal(err)
		}
		if err := a.Apply(journal.Record{Kind: journal.KindLost, Payload: make([]byte, 1000)}); err != nil {
			t.Fatal(err)
		}
		if a.Incarnation() < 1+1000/104 {
			t.Fatalf("after 1000 lost bytes the next incarnation would be %d", a.Incarnation()+1)
		}
		gone, err := a.Change(c.r)
		if err != nil || !slices.Equal(gone, c.gone) || !slices.Equal(a.List(), c.want) {
			t.Errorf("%s: %v gone, %v there, %v; want %v and %v", name, gone, a.List(), err, c.gone, c.want)
		}
		for _, want := range c.want {
			if got, ok := a.Find(want.Namespace, want.Name); !ok || *got != want {
				t.Errorf("%s: found %+v, want %+v", name, got, want)
			}
		}
	}
	a := NewTopics()
	more := Topic{Namespace: 2, ID: 3, Incarnation: 4, Name: "recovered-3-4"}
	for _, n := range []uint16{0, 2, 1} {
		more.Partitions = max(more.Partitions, uint32(n)+1)
		if got, gone, err := a.Recover(2, Partition{Topic: 3, Incarnation: 4, Partition: n}); err != nil || gone != nil || got != more {
			t.Fatalf("%+v, %v, want %+v", got, err, more)
		}
		if got, ok := a.Find(2, more.Name); !ok || *got != more || a.Incarnation() != 4 {
			t.Fatalf("%+v, %d", got, a.Incarnation())
		}
	}
	if _, _, err := a.Recover(2, Partition{Topic: 3, Incarnation: 3}); err == nil {
		t.Fatal("an incarnation from before")
	}
	former := more
	more.Incarnation, more.Name, more.Partitions = 5, "recovered-3-5", 1
	if got, gone, err := a.Recover(2, Partition{Topic: 3, Incarnation: 5}); err != nil || got != more || len(gone) != 1 || gone[0] != former {
		t.Fatal(got, gone, err)
	}
	// The real one is altered: it has its name again.
	if err := a.Apply(journal.Record{Kind: journal.KindLost}); err != nil {
		t.Fatal(err)
	}
	more.Name = "real"
	if gone, err := a.Change(change(TopicAlter, &more)); gone != nil || err != nil {
		t.Fatal(gone, err)
	}
	if _, ok := a.Find(2, "recovered-3-5"); ok || len(a.List()) != 1 || a.List()[0] != more {
		t.Fatal(a.List())
	}
}

// TestGolden holds the bytes of topic records and of a snapshot.
func TestGolden(t *testing.T) {
	topic := Topic{Namespace: 3, ID: 258, Incarnation: 1, Name: "orders.paid", Partitions: 8, Created: 1e18}
	a := NewTopics()
	if err := a.Apply(created(&topic)); err != nil {
		t.Fatal(err)
	}
	altered := topic
	altered.Settings = Settings{RetentionAge: time.Hour, RetentionBytes: -1, DiscardUnconsumed: true, PauseConsume: true}
	known := altered
	known.Origin = Origin{Generation: 1, Created: 259, Version: 4711}
	replicated := known
	replicated.Settings.Durability = DurabilityReplicated
	var b bytes.Buffer
	for _, r := range []TopicRecord{{Operation: TopicCreate, Topic: topic}, {Operation: TopicAlter, Topic: altered, Who: "ops 10.0.0.1:9", Why: "full disk"},
		{Operation: TopicAlter, Topic: known, Who: "the registry"}, {Operation: TopicAlter, Topic: replicated}} {
		fmt.Fprintf(&b, "# %d %+v %s, %s\n%s", r.Operation, r.Topic, r.Who, r.Why, hex.Dump(AppendTopicRecord(nil, &r)))
	}
	if err := a.Apply(change(TopicAlter, &known)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&b, "# snapshot\n%s", hex.Dump(a.Snapshot(nil)))
	name := filepath.Join("testdata", "topic.golden")
	if *rewrite {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, b.Bytes()) {
		t.Fatalf("format changed; -rewrite if that was meant\ngot\n%s\nwant\n%s", b.Bytes(), want)
	}
}

func FuzzTopicRecord(f *testing.F) {
	seeds := [][]byte{created(topicNumber(7)).Payload, created(topicNumber(8)).Payload, []byte(strings.Repeat("\x01", 40)), {}}
	mutate.Fuzz(f, mutate.Decoder{Seeds: seeds, Check: func(t testing.TB, b []byte) bool {
		r, err := ParseTopicRecord(b)
		if err == nil && !bytes.Equal(AppendTopicRecord(nil, &r), b) {
			t.Fatalf("accepted %x as %+v", b, r)
		}
		return err == nil
	}})
}

// FuzzTopics restores any bytes: what is taken is written as something that is taken again.
func FuzzTopics(f *testing.F) {
	all := NewTopics()
	for i := range 4 {
		if err := all.Apply(created(topicNumber(i + 1))); err != nil {
			f.Fatal(err)
		}
	}
	mutate.Fuzz(f, mutate.Decoder{Seeds: [][]byte{all.Snapshot(nil), NewTopics().Snapshot(nil)}, Slowness: 4, Check: func(t testing.TB, b []byte) bool {
		topics := NewTopics()
		if topics.Restore(b) != nil {
			return false
		}
		first := topics.Snapshot(nil)
		again := NewTopics()
		if err := again.Restore(first); err != nil || !bytes.Equal(again.Snapshot(nil), first) {
			t.Fatalf("%x becomes %x, %v", first, again.Snapshot(nil), err)
		}
		return true
	}})
}
