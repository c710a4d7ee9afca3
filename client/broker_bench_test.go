package client_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/server"
	"github.com/jmqio/jmq/server/servertest"
)

// BenchmarkBroker compares, at the real broker on a real disk, 8 goroutines that send batches of 100 messages of 1 KiB with 8
// that give SendAsync one at a time.
func BenchmarkBroker(b *testing.B) {
	for _, keys := range []int{0, 64} {
		for _, how := range []string{"batches", "async"} {
			b.Run(fmt.Sprintf("keys=%d/%s", keys, how), func(b *testing.B) {
				s := servertest.Start(b, func(c *server.Config) { c.Broker.Journal.SegmentBytesMax = 256 << 20 })
				s.CreateTopic("orders", 8)
				ctx := context.Background()
				cl, err := client.Dial(ctx, s.Address())
				if err != nil {
					b.Fatal(err)
				}
				defer cl.Close(ctx)
				p, err := cl.Producer("orders")
				if err != nil {
					b.Fatal(err)
				}
				b.SetBytes(1024)
				b.ResetTimer()
				var failed atomic.Pointer[error]
				fail := func(err error) {
					if err != nil {
						failed.Store(&err)
					}
				}
				var working sync.WaitGroup
				for g := range 8 {
					working.Go(func() {
						msgs := make([]*client.Message, 100)
						for i := range msgs {
							msgs[i] = &client.Message{Body: make([]byte, 1024)}
							if keys > 0 {
								msgs[i].OrderKey = fmt.Sprint(g, "-", i%keys)
							}
						}
						for n := b.N/8 + 1; n > 0; n -= len(msgs) {
							part := msgs[:min(n, len(msgs))]
							if how == "batches" {
								_, err := p.SendBatch(ctx, part)
								fail(err)
								continue
							}
							for _, m := range part {
								p.SendAsync(ctx, m, func(_ client.Receipt, err error) { fail(err) })
							}
						}
						fail(p.Flush(ctx))
					})
				}
				working.Wait()
				if err := failed.Load(); err != nil {
					b.Fatal(*err)
				}
			})
		}
	}
}
