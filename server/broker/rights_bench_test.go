package broker

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/server/store/local"
	"github.com/jmqio/jmq/wire"
)

// BenchmarkRights is what rights and limits cost: two brokers in this process, each with a store whose syncs cost nothing, of which one has
// no metadata, and one has an app with a right, and limits of the namespace, the app, the topic and the subscription. They take turns of 500
// messages of 1 KiB, one a batch, 64 in flight; an iteration is a turn of each. It reports the processor time of a message in microseconds,
// the median of all turns without metadata, and how much more it is with: the median of all iterations, and its 95 % interval. Run it
// with -benchtime 700x.
func BenchmarkRights(b *testing.B) {
	without, with := benchSide(b, false), benchSide(b, true)
	const most = 500
	for _, path := range []struct {
		name string
		turn func(s *contender, n int) (cpu time.Duration)
	}{
		{"produce", func(s *contender, n int) time.Duration { return cpuOf(func() { s.produce(n) }) }},
		{"consume", func(s *contender, n int) time.Duration {
			s.produce(n)
			return cpuOf(func() { s.consume(n) })
		}},
	} {
		b.Run(path.name, func(b *testing.B) {
			path.turn(without, most)
			path.turn(with, most)
			base, more := make([]float64, b.N), make([]float64, b.N)
			b.ResetTimer()
			for i := range b.N {
				var x, y float64
				turn := func(s *contender, us *float64) { *us = float64(path.turn(s, most).Nanoseconds()) / most / 1e3 }
				if i%2 == 0 {
					turn(without, &x)
					turn(with, &y)
				} else {
					turn(with, &y)
					turn(without, &x)
				}
				base[i], more[i] = x, y-x
			}
			slices.Sort(base)
			slices.Sort(more)
			half := int(0.98 * math.Sqrt(float64(b.N))) // ranks to both sides of the median
			middle, low, high := more[b.N/2], more[max(0, b.N/2-half)], more[min(b.N-1, b.N/2+half)]
			b.ReportMetric(base[b.N/2], "us/message")
			b.ReportMetric(middle, "us-more")
			b.ReportMetric(low, "us-more-from")
			b.ReportMetric(high, "us-more-to")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func cpuOf(f func()) time.Duration {
	spent := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			panic(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	from := spent()
	f()
	return spent() - from
}

// unsynced has files that are never synced.
type unsynced struct{ vfs.FS }

func (u unsynced) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := u.FS.Create(name, c)
	return unsyncedFile{f}, err
}

func (u unsynced) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := u.FS.OpenReadWrite(name, c, opts...)
	return unsyncedFile{f}, err
}

type unsyncedFile struct{ vfs.File }

func (unsyncedFile) Sync() error     { return nil }
func (unsyncedFile) SyncData() error { return nil }

// contender is one of two brokers that are compared.
type contender struct {
	*world
	shop, pay []context.Context // sessions
	id        store.Topic
	one       []byte
}

const (
	benchSessions = 4
	benchInFlight = 16 // of a session
)

func benchSide(b *testing.B, metadata bool) *contender {
	s := &contender{world: &world{t: b, offsets: offset.NewTable()}, one: batch(b, 1, 1024)}
	s.broker = New(Options{Offsets: s.offsets, Metadata: metadata, BrokerGroup: "here"})
	var err error
	if s.store, err = local.Open(local.Options{FS: unsynced{vfs.Default}, Dir: b.TempDir(), Tables: []store.Table{s.offsets}, Gather: s.broker.Gather, SegmentBytesMax: 8 << 20, SegmentBytesFirst: 8 << 20}); err != nil {
		b.Fatal(err)
	}
	s.broker.Start(s.store)
	b.Cleanup(s.close)
	if !metadata {
		s.topic("orders", 8)
	} else {
		high := meta.Limit{MessagesPerSecond: 1 << 40, BytesPerSecond: 1 << 40}
		r := &ruled{s.world, meta.NewMemory(nil)}
		r.set(meta.KindBrokerGroup, "here", &meta.BrokerGroup{})
		r.change(meta.KindNamespace, meta.NamespaceDefault, &meta.Namespace{Limit: high},
			meta.KindTopic, "orders", &meta.Topic{Partitions: 8, BrokerGroups: []string{"here"}, Limit: high},
			meta.KindApp, "shop", &meta.App{Limit: high}, meta.KindApp, "pay", &meta.App{Limit: high},
			meta.KindProducer, "orders/shop", &meta.Producer{Limit: high}, meta.KindConsumer, "orders/pay", &meta.Consumer{Limit: high})
	}
	attach := func(app string, i int) context.Context {
		p := &wire.Peer{ClientID: fmt.Sprint(app, i), App: app, Addr: "10.1.2.3:4567", Batched: true}
		if metadata {
			p.Principal = wire.Principal{Kind: wire.PrincipalApp, Name: app, Namespace: meta.NamespaceDefault}
		}
		if err := s.broker.Attach(p); err != nil {
			b.Fatal(err)
		}
		return wire.WithPeer(context.Background(), p)
	}
	for i := range benchSessions {
		s.shop = append(s.shop, attach("shop", i))
		s.pay = append(s.pay, attach("pay", i))
	}
	if _, err := s.broker.Subscribe(s.pay[0], &wire.SubscribeRequest{Topic: "orders", Group: "pay", Start: wire.StartEnd}); err != nil {
		b.Fatal(err)
	}
	s.id, _ = s.store.Topic(0, "orders")
	return s
}

// produce sends n messages as sessions do: some at a time, with one commit.
func (s *contender) produce(n int) {
	var all sync.WaitGroup
	for i, ctx := range s.shop {
		all.Go(func() {
			mine := append([]byte(nil), s.one...)
			var sent sync.WaitGroup
			var busy atomic.Int64 // the next segment is not prepared yet
			done := func(_ *wire.ProduceResponse, err error) {
				if wire.CodeOf(err) == wire.CodeBusy {
					busy.Add(1)
				} else if err != nil {
					s.t.Error(err)
				}
				sent.Done()
			}
			r := wire.ProduceRequest{Topic: "orders", TopicID: uint64(s.id.ID), RouteVersion: routeVersion(&s.id), Batch: mine}
			for left := n / benchSessions; left > 0; {
				some := min(left, benchInFlight)
				left -= some
				for k := range some {
					r.Partition = uint16((i + k) % 8)
					sent.Add(1)
					s.broker.Produce(ctx, &r, done)
				}
				s.broker.Commit()
				sent.Wait()
				if again := busy.Swap(0); again > 0 {
					left += int(again)
					if err := s.store.WaitRoom(ctx); err != nil {
						s.t.Error(err)
						return
					}
				}
			}
		})
	}
	all.Wait()
}

// consume fetches and acks n messages that are there, one at a time by each of 64 members.
func (s *contender) consume(n int) {
	var left atomic.Int64
	left.Store(int64(n))
	var all sync.WaitGroup
	for _, ctx := range s.pay {
		for m := range uint32(benchInFlight) {
			all.Go(func() {
				got := make(chan wire.AckRange, 1)
				acked := make(chan struct{}, 1)
				items := make([]wire.AckRange, 1)
				for left.Add(-1) >= 0 {
					s.broker.Fetch(ctx, &wire.FetchRequest{Topic: "orders", Group: "pay", Member: m, MessagesMax: 1, WaitMs: 10_000}, func(f *wire.FetchResponse, err error) {
						if err != nil || f.Lease == 0 {
							s.t.Errorf("fetch: %v, %+v", err, f)
							got <- wire.AckRange{}
							return
						}
						got <- wire.AckRange{Partition: f.Partition, Lease: f.Lease, From: f.From, To: f.To, Outcome: wire.Acked}
					})
					if items[0] = <-got; items[0].Lease == 0 {
						return
					}
					s.broker.Ack(ctx, &wire.AckRequest{Topic: "orders", Group: "pay", Member: m, Items: items}, func(a *wire.AckResponse, err error) {
						if err != nil || a.Codes[0] != wire.CodeOK {
							s.t.Error(err, a)
						}
						acked <- struct{}{}
					})
					<-acked
				}
			})
		}
	}
	all.Wait()
}
