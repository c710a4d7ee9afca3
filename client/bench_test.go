package client

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/jmqio/jmq/wire"
)

// okBroker stores nothing and answers at once.
type okBroker struct {
	*fakeBroker
	indexes atomic.Uint64
}

func (b *okBroker) Produce(ctx context.Context, r *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) {
	n := uint64(wire.Batch(r.Batch).Count())
	done(&wire.ProduceResponse{FirstIndex: b.indexes.Add(n) - n, StoredNs: 1}, nil)
}

// BenchmarkSend is one message of 1 KiB a call over TCP on loopback, to a broker that does nothing with it.
func BenchmarkSend(b *testing.B) {
	for _, c := range []struct {
		name string
		key  string
		opts []ProducerOption
	}{
		{name: "free"},
		{name: "keyed", key: "k"},
		{name: "merged", opts: []ProducerOption{MergeAfter(4)}},
	} {
		for _, goroutines := range []int{1, 8, 64} {
			b.Run(fmt.Sprintf("%s-%d", c.name, goroutines), func(b *testing.B) {
				broker := &okBroker{fakeBroker: newFakeBroker()}
				broker.topic("orders", 8)
				s := newFakeServer(broker.fakeBroker, true)
				s.h = wire.NewHandler(broker, broker, wire.HandlerOptions{})
				defer s.close()
				cl, err := Dial(context.Background(), "x", WithDialer(s.dial))
				if err != nil {
					b.Fatal(err)
				}
				defer cl.Close(context.Background())
				p, err := cl.Producer("orders", c.opts...)
				if err != nil {
					b.Fatal(err)
				}
				m := &Message{OrderKey: c.key, Body: make([]byte, 1024)}
				b.ReportAllocs()
				b.SetParallelism(max(1, goroutines/2)) // of GOMAXPROCS 2 here
				b.ResetTimer()
				work := func(pb *testing.PB) {
					for pb.Next() {
						if _, err := p.Send(context.Background(), m); err != nil {
							b.Error(err)
							return
						}
					}
				}
				if goroutines == 1 {
					for b.Loop() {
						if _, err := p.Send(context.Background(), m); err != nil {
							b.Fatal(err)
						}
					}
					return
				}
				b.RunParallel(work)
			})
		}
	}
}

// BenchmarkRun is the receiving of messages of 1 KiB that are there, by Run.
func BenchmarkRun(b *testing.B) {
	broker := newFakeBroker()
	broker.topic("orders", 1)
	c, _ := start(b, broker, true)
	p := producer(b, c)
	k := consumer(b, c, Batch(100), BatchBytes(4<<20))
	var msgs []*Message
	for range 100 {
		msgs = append(msgs, &Message{OrderKey: "k", Body: make([]byte, 1024)})
	}
	for range (b.N + 99) / 100 {
		if _, err := p.SendBatch(context.Background(), msgs); err != nil {
			b.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	b.ReportAllocs()
	b.ResetTimer()
	n := 0
	if err := k.Run(ctx, func(context.Context, *Delivery) error {
		if n++; n == b.N {
			cancel()
		}
		return nil
	}); err != nil {
		b.Fatal(err)
	}
}
