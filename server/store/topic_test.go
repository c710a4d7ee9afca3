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

	"github.com/jmqio/jmq/server/journal"
)

var rewrite = flag.Bool("rewrite", false, "write golden files")

func created(t *Topic) journal.Record {
	return journal.Record{Kind: journal.KindTopic, Payload: AppendTopicCreate(nil, t)}
}

func topicNumber(n int) *Topic {
	return &Topic{Namespace: uint32(n % 3), ID: TopicID(n), Incarnation: 1, Name: fmt.Sprint("topic-", n), Partitions: uint32(n), Created: int64(n) * 1e9}
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
	if !slices.IsSortedFunc(list, func(x, y Topic) int { return int(x.ID) - int(y.ID) }) || a.Len() != len(list) || a.IDMax() != list[len(list)-1].ID {
		t.Fatalf("%d topics, the highest %d", a.Len(), a.IDMax())
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
	if err := b.Restore(nil); err != nil || b.Len() != 0 || b.IDMax() != 0 {
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
	good := AppendTopicCreate(nil, &Topic{ID: 9, Incarnation: 1, Name: "n", Partitions: 1})
	with := func(at int, v byte) []byte { b := slices.Clone(good); b[at] = v; return b }
	for name, b := range map[string][]byte{
		"same name":     AppendTopicCreate(nil, &sameName),
		"same id":       AppendTopicCreate(nil, &sameID),
		"nothing":       nil,
		"cut":           good[:len(good)-1],
		"longer":        append(slices.Clone(good), 0),
		"version 2":     with(0, 2),
		"operation 2":   with(1, 2),
		"reserved":      with(2, 1),
		"id 0":          with(8, 0),
		"incarnation 0": with(16, 0),
		"partitions 0":  with(20, 0),
		"partitions":    with(22, 2),
		"no name":       with(32, 0)[:33],
		"long name":     with(32, 200),
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
		"cut": state[:len(state)-1], "longer": append(slices.Clone(state), 1), "version": append([]byte{2}, state[1:]...), "a byte": {1},
		"count": append([]byte{1, 2, 0, 0, 0}, state[5:]...),
	} {
		if err := NewTopics().Restore(b); err == nil {
			t.Errorf("snapshot %s: accepted", name)
		}
	}
}

// TestGolden holds the bytes of a topic record and of a snapshot.
func TestGolden(t *testing.T) {
	topic := Topic{Namespace: 3, ID: 258, Incarnation: 1, Name: "orders.paid", Partitions: 8, Created: 1e18}
	a := NewTopics()
	if err := a.Apply(created(&topic)); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "# %+v\n%s# snapshot\n%s", topic, hex.Dump(AppendTopicCreate(nil, &topic)), hex.Dump(a.Snapshot(nil)))
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
	f.Add(AppendTopicCreate(nil, topicNumber(7)))
	f.Add([]byte(strings.Repeat("\x01", 40)))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		topic, err := ParseTopicRecord(b)
		if err == nil && !bytes.Equal(AppendTopicCreate(nil, &topic), b) {
			t.Fatalf("accepted %x as %+v", b, topic)
		}
		_ = NewTopics().Restore(b)
	})
}
