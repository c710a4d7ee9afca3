package client_test

import (
	"testing"
	"time"

	"github.com/jmqio/jmq/client"
)

// What a topic holds, and what lies on the disks.
func TestDescribeAndUsage(t *testing.T) {
	ctx := t.Context()
	cl := dial(t)
	if err := cl.CreateTopic(ctx, "orders", 2, client.Retention(time.Hour), client.RetentionBytes(1<<30)); err != nil {
		t.Fatal(err)
	}
	p := must[*client.Producer](t)(cl.Producer("orders"))
	for range 3 {
		must[client.Receipt](t)(p.Send(ctx, &client.Message{Partition: new(uint16(1))}))
	}
	d := must[client.TopicDescription](t)(cl.DescribeTopic(ctx, "orders"))
	if d.Topic.Partitions != 2 || d.Topic.Settings != (client.TopicSettings{Retention: time.Hour, RetentionBytes: 1 << 30}) || d.Effective.Retention != time.Hour ||
		len(d.Partitions) != 2 || d.Partitions[1].End != 3 || d.Partitions[1].Bytes == 0 || d.Partitions[1].Newest.IsZero() || !d.Partitions[0].Oldest.IsZero() {
		t.Errorf("%+v", d)
	}
	usage := must[client.StoreUsage](t)(cl.StoreUsage(ctx, 0))
	if usage.JournalBytes == 0 || usage.End == 0 || usage.State == "" {
		t.Errorf("%+v", usage)
	}
}
