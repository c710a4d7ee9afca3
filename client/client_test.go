package client

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
)

// What is sent is consumed, in order, and acknowledged.
func TestSendAndRun(t *testing.T) {
	for _, tcp := range []bool{false, true} {
		t.Run(fmt.Sprintf("tcp=%v", tcp), func(t *testing.T) {
			b := newFakeBroker()
			b.topic("orders", 4)
			c, _ := start(t, b, tcp)
			p, err := c.Producer("orders")
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			const n = 200
			for i := range n {
				r, err := p.Send(ctx, &Message{OrderKey: fmt.Sprint(i % 7), Body: fmt.Append(nil, i)})
				if err != nil {
					t.Fatal(err)
				}
				if want := KeyPartition(fmt.Sprint(i%7), 4); r.Partition != want {
					t.Fatalf("message %d went to partition %d, want %d", i, r.Partition, want)
				}
			}
			k, err := c.Consumer("orders", Start(FromBeginning), Concurrency(3))
			if err != nil {
				t.Fatal(err)
			}
			var got atomic.Int32
			if err := k.Run(ctx, func(ctx context.Context, d *Delivery) error {
				if got.Add(1) == n {
					cancel()
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			lags, err := c.GroupLag(context.Background(), "orders", "app")
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range lags {
				if l.Lag != 0 {
					t.Errorf("lag %+v", l)
				}
			}
			if got.Load() != n {
				t.Errorf("got %d messages, want %d", got.Load(), n)
			}
		})
	}
}
