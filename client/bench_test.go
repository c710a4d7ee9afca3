package client

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jmqio/jmq/wire"
)

// okBroker stores nothing and answers at once, or together what came within every.
type okBroker struct {
	*fakeBroker
	indexes atomic.Uint64
	every   time.Duration

	waiting struct {
		sync.Mutex
		answers []func()
	}
}

func (b *okBroker) Produce(ctx context.Context, r *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) {
	n := uint64(wire.Batch(r.Batch).Count())
	first := b.indexes.Add(n) - n
	if b.every == 0 {
		done(&wire.ProduceResponse{FirstIndex: first, StoredNs: 1}, nil)
		return
	}
	b.answerLater(func() { done(&wire.ProduceResponse{FirstIndex: first, StoredNs: 1}, nil) })
}

func (b *okBroker) answerLater(answer func()) {
	w := &b.waiting
	w.Lock()
	defer w.Unlock()
	if w.answers = append(w.answers, answer); len(w.answers) > 1 {
		return
	}
	time.AfterFunc(b.every, func() {
		w.Lock()
		all := w.answers
		w.answers = nil
		w.Unlock()
		for _, answer := range all {
			answer()
		}
	})
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
				s.h = wire.NewHandler(wire.Services{Broker: broker, Admin: broker}, wire.HandlerOptions{})
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

// BenchmarkAsync compares 8 goroutines that give single messages of 1 KiB to SendAsync with 8 that send batches of 100. The
// broker stores nothing and answers at once, or, as one that syncs does, 1 ms after the first of the batches that it answers
// together.
func BenchmarkAsync(b *testing.B) {
	for _, slow := range []bool{false, true} {
		for _, c := range []struct {
			name string
			keys int
			work func(p *Producer, n int, key func(i int) string) error
		}{
			{"batches-free", 0, sendBatches}, {"async-free", 0, sendAsync}, {"oneway-free", 0, sendOneway},
			{"batches-keyed", 1, sendBatches}, {"async-keyed", 64, sendAsync},
		} {
			b.Run(fmt.Sprintf("slow=%v/%s", slow, c.name), func(b *testing.B) {
				broker := &okBroker{fakeBroker: newFakeBroker()}
				if slow {
					broker.every = time.Millisecond
				}
				broker.topic("orders", 8)
				s := newFakeServer(broker.fakeBroker, true)
				s.h = wire.NewHandler(wire.Services{Broker: broker, Admin: broker}, wire.HandlerOptions{})
				defer s.close()
				cl, err := Dial(context.Background(), "x", WithDialer(s.dial))
				if err != nil {
					b.Fatal(err)
				}
				defer cl.Close(context.Background())
				p := producer(b, cl)
				b.ReportAllocs()
				b.SetBytes(1024)
				b.ResetTimer()
				var working sync.WaitGroup
				for g := range 8 {
					working.Go(func() {
						key := func(i int) string {
							if c.keys == 0 {
								return ""
							}
							return fmt.Sprint(g, "-", i%c.keys)
						}
						if err := c.work(p, b.N/8+1, key); err != nil {
							b.Error(err)
						}
					})
				}
				working.Wait()
			})
		}
	}
}

func sendBatches(p *Producer, n int, key func(int) string) error {
	msgs := make([]*Message, 100)
	for i := range msgs {
		msgs[i] = &Message{OrderKey: key(0), Body: make([]byte, 1024)}
	}
	for ; n > 0; n -= len(msgs) {
		if _, err := p.SendBatch(context.Background(), msgs[:min(n, len(msgs))]); err != nil {
			return err
		}
	}
	return nil
}

func sendAsync(p *Producer, n int, key func(int) string) error {
	msgs := make([]Message, 64)
	for i := range msgs {
		msgs[i] = Message{OrderKey: key(i), Body: make([]byte, 1024)}
	}
	failed := make(chan error, 1)
	for i := range n {
		p.SendAsync(context.Background(), &msgs[i%len(msgs)], func(_ Receipt, err error) {
			if err != nil {
				select {
				case failed <- err:
				default:
				}
			}
		})
	}
	err := p.Flush(context.Background())
	select {
	case err := <-failed:
		return err
	default:
		return err
	}
}

func sendOneway(p *Producer, n int, key func(int) string) error {
	m := &Message{OrderKey: key(0), Body: make([]byte, 1024)}
	for range n {
		if err := p.SendOneway(context.Background(), m); err != nil {
			return err
		}
	}
	return p.Flush(context.Background())
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
