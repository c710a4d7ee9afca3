package broker

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/server/store/local"
	"github.com/jmqio/jmq/wire"
)

// BenchmarkThrough sends 1 KiB messages, one a call, from 64 producers through a broker on the disk, while so many groups
// consume and ack them with 4 members each. ns/op is a message's, sent and received by all groups.
func BenchmarkThrough(b *testing.B) {
	for _, groups := range []int{0, 1, 20} {
		b.Run(fmt.Sprintf("groups=%d", groups), func(b *testing.B) {
			w := &world{t: b, offsets: offset.NewTable()}
			w.broker = New(Options{Offsets: w.offsets})
			s, err := local.Open(local.Options{Dir: b.TempDir(), Tables: []store.Table{w.offsets}, Gather: w.broker.Gather, SegmentBytesMax: 64 << 20})
			if err != nil {
				b.Fatal(err)
			}
			w.store = s
			w.broker.Start(s)
			defer w.close()
			const partitions = 8
			w.topic("orders", partitions)
			for g := range groups {
				w.subscribe("orders", fmt.Sprint("g", g), wire.StartBeginning)
			}
			one := batch(b, 1, 1024)
			var sent atomic.Int64
			var all, consumed sync.WaitGroup
			over := make(chan struct{})
			b.ResetTimer()
			b.SetBytes(1024)
			b.ReportAllocs()
			for i := range 64 {
				all.Go(func() {
					mine := append([]byte(nil), one...)
					for sent.Add(1) <= int64(b.N) {
						if _, err := w.produce("orders", uint16(i%partitions), mine); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			consumed.Add(groups * b.N)
			for g := range groups {
				for m := range 4 {
					all.Go(func() {
						for {
							select {
							case <-over:
								return
							default:
							}
							f := w.fetch(fmt.Sprint(m), wire.FetchRequest{Topic: "orders", Group: fmt.Sprint("g", g), MessagesMax: 100, WaitMs: 200})
							if f.err != nil {
								b.Error(f.err)
								return
							}
							if f.Lease == 0 {
								continue
							}
							r := ackAll(f)
							r.Group = fmt.Sprint("g", g)
							consumed.Add(-int(f.To - f.From))
							w.startAck(fmt.Sprint(m), r)
						}
					})
				}
			}
			consumed.Wait()
			close(over)
			all.Wait()
		})
	}
}
