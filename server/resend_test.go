package server

import (
	"testing"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/wire"
)

// What was set aside is owed where a promotion by force took its place, or the next term of a fixed broker group, or that is not known any more.
func TestMayBeCommitted(t *testing.T) {
	a := &journal.Aside{From: 800, To: 1200, Epoch: journal.MakeEpoch(2, 3)}
	at := func(term, start uint32, forced bool) journal.EpochStart {
		return journal.EpochStart{Epoch: journal.MakeEpoch(term, start), Position: 800, Forced: forced}
	}
	for i, c := range []struct {
		begin       journal.Position
		history     []journal.EpochStart
		fixed, auto bool
	}{
		{0, []journal.EpochStart{at(1, 1, true), at(2, 1, true)}, false, false}, // before it
		{0, []journal.EpochStart{at(2, 1, false), at(3, 1, false)}, true, false},
		{0, []journal.EpochStart{at(2, 1, false), at(2, 4, false), at(3, 1, false)}, false, false}, // its master opened again, and had all
		{0, []journal.EpochStart{at(2, 1, false), at(3, 1, true), at(4, 1, false)}, true, true},
		{0, []journal.EpochStart{at(2, 4, false), at(4, 1, true)}, true, true},
		{900, []journal.EpochStart{at(4, 1, false)}, true, true},
	} {
		if fixed, auto := mayBeCommitted(a, false, c.begin, c.history), mayBeCommitted(a, true, c.begin, c.history); fixed != c.fixed || auto != c.auto {
			t.Errorf("%d: fixed %v, auto %v, want %v and %v", i, fixed, auto, c.fixed, c.auto)
		}
	}
}

// A batch goes to the topic that its own journal had under its number: one that was made in the tail hides the one of the store, and one that is
// in neither has no place. The bytes that producers sum stay as they are.
func TestTail(t *testing.T) {
	batch := func(topic uint64, incarnation uint32) journal.Record {
		b, err := wire.AppendBatch(nil, [16]byte{7}, 40, []wire.Message{{ID: [16]byte{1}, Body: []byte("a")}, {ID: [16]byte{2}, Body: []byte("b")}})
		if err != nil {
			t.Fatal(err)
		}
		wire.Batch(b).SetBroker(wire.BrokerFields{Partition: 3, Namespace: 9, Topic: topic, Incarnation: incarnation, FirstIndex: 12, StoredNs: 13})
		return journal.Record{Kind: journal.KindMessages, Payload: b}
	}
	made := store.AppendTopicRecord(nil, &store.TopicRecord{Operation: store.TopicCreate,
		Topic: store.Topic{ID: 5, Incarnation: 1, Name: "made", Partitions: 4, Namespace: 9, Origin: store.Origin{Generation: 1, Created: 77}}})
	tail := tail{of: func(k offset.Topic) (store.Topic, bool) {
		return store.Topic{Name: "there", Namespace: 9, Origin: store.Origin{Created: 66}}, k == offset.Topic{ID: 5, Incarnation: 1}
	}}
	check := func(rec journal.Record, topic string, created uint64) {
		t.Helper()
		out, err := tail.next(rec)
		if err != nil || out.messages != 2 {
			t.Fatalf("%+v, %v", out, err)
		}
		if topic == "" {
			if out.gone == "" {
				t.Errorf("sent to %v", out.request)
			}
			return
		}
		r := out.request
		if r.GetTopic() != topic || r.GetCreated() != created || r.GetPartition() != 3 || r.GetNamespace() != 9 || out.gone != "" {
			t.Errorf("sent to %v, %q, want %s", r, out.gone, topic)
		}
		b, err := wire.ParseBatch(out.batch)
		if err != nil || b.Verify() != nil || b.Sequence() != 40 || b.Producer() != [16]byte{7} || b.FirstIndex() != 0 || b.Topic() != 0 {
			t.Errorf("batch %v, %v", b, err)
		}
	}
	check(batch(5, 1), "there", 66)
	check(batch(6, 1), "", 0)
	if out, err := tail.next(journal.Record{Kind: journal.KindTopic, Payload: made}); err != nil || out.messages != 0 {
		t.Fatal(out, err)
	}
	check(batch(5, 1), "made", 77)
	if _, err := tail.next(journal.Record{Kind: journal.KindMessages, Payload: []byte("x")}); err == nil {
		t.Error("a batch that cannot be read was taken")
	}
}
