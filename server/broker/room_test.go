package broker

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/wire"
)

// Names as long as they may be make an answer about groups longer than a frame, with as many rows as are allowed: that is told
// as what it is, and one group still fits.
func TestLagOfLongNames(t *testing.T) {
	w := newWorld(t, Options{})
	defer w.close()
	w.topic("orders", PartitionsMax)
	ctx := as(strings.Repeat("c", wire.NameBytesMax))
	var group string
	for i := range rowsMax / PartitionsMax {
		group = fmt.Sprintf("%s%d", strings.Repeat("g", wire.NameBytesMax-1), i)
		if _, err := w.broker.Subscribe(ctx, &wire.SubscribeRequest{Topic: "orders", Group: group}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.broker.GroupLag(ctx, &wire.GroupLagRequest{Topic: "orders"}); wire.CodeOf(err) != wire.CodeTooLarge {
		t.Errorf("all groups: %v, want too large", err)
	}
	r, err := w.broker.GroupLag(ctx, &wire.GroupLagRequest{Topic: "orders", Group: group})
	if err != nil || len(r.Partitions) != PartitionsMax || proto.Size(r) > answerBytesMax {
		t.Errorf("one group: %d rows, %d bytes, %v", len(r.GetPartitions()), proto.Size(r), err)
	}
}

// Nobody waits for the lag of others once it is gone.
func TestLagWaits(t *testing.T) {
	w := newWorld(t, Options{})
	defer w.close()
	w.topic("orders", 1)
	w.broker.heavy <- struct{}{}
	ctx, cancel := context.WithCancel(as("a"))
	cancel()
	if _, err := w.broker.GroupLag(ctx, &wire.GroupLagRequest{Topic: "orders"}); wire.CodeOf(err) != wire.CodeTimeout {
		t.Errorf("%v, want timeout", err)
	}
	<-w.broker.heavy
	if _, err := w.broker.GroupLag(as("a"), &wire.GroupLagRequest{Topic: "orders"}); err != nil {
		t.Error(err)
	}
}

// The list of as many topics as there can be, with names as long as they can be, is one answer.
func TestTopicsAreOneAnswer(t *testing.T) {
	topic := topicMessage(&store.Topic{Name: strings.Repeat("t", wire.NameBytesMax), ID: 1 << 40, Incarnation: 1 << 20, Partitions: PartitionsMax, Created: 1 << 62,
		Settings: store.Settings{RetentionAge: -1, RetentionBytes: -1, DiscardUnconsumed: true, PauseProduce: true, PauseConsume: true}})
	one := proto.Size(&wire.ListTopicsResponse{Topics: []*wire.Topic{topic}})
	if n := one * (Options{}).withDefaults().TopicsMax; n > answerBytesMax {
		t.Fatalf("%d bytes, at most %d fit", n, answerBytesMax)
	}
}

// A topic whose maker went away before it was there takes its room, and one that was not made does not.
func TestRoomOfTopicsGivenUp(t *testing.T) {
	w := newWorld(t, Options{TopicsMax: 2})
	defer w.close()
	gone, cancel := context.WithCancel(as("a"))
	cancel()
	create := func(ctx context.Context, name string) error {
		_, err := w.broker.CreateTopic(ctx, &wire.CreateTopicRequest{Topic: name, Partitions: 1})
		return err
	}
	if err := create(gone, "given-up"); err != nil && wire.CodeOf(err) != wire.CodeTimeout {
		t.Fatal(err)
	}
	for len(w.store.Topics()) == 0 {
		runtime.Gosched()
	}
	if err := w.broker.room.topic(w.broker, 1); err != nil { // as for one that is given up, and never made
		t.Fatal(err)
	}
	w.broker.room.leaveTopic(1, false)
	if err := create(as("a"), "second"); err != nil {
		t.Error(err)
	}
	if err := create(as("a"), "third"); wire.CodeOf(err) != wire.CodeTooLarge {
		t.Errorf("third: %v", err)
	}
}
