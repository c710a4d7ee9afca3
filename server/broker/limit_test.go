package broker

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/wire"
)

// TestBucketModel takes from a bucket at random times and compares it with one that counts tokens: what is taken, and how long is to be
// waited, to the nanosecond and the part of a token that rounding takes.
func TestBucketModel(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		var b bucket
		rate := rapid.Int64Range(1, 1_000_000).Draw(r, "rate")
		now := rapid.Int64Range(0, 1<<40).Draw(r, "now")
		b.set(now, rate)
		tokens, most := float64(rate), float64(rate)
		slack := 4 * float64(rate) / 1e9
		for range rapid.IntRange(1, 60).Draw(r, "steps") {
			pass := rapid.Int64Range(0, 2_000_000_000).Draw(r, "pass")
			now += pass
			tokens = min(most, tokens+float64(pass)*float64(rate)/1e9)
			n := rapid.Int64Range(1, 3*rate).Draw(r, "n")
			need := min(float64(n), most)
			switch rapid.SampledFrom([]string{"take", "take", "take", "charge", "back", "rate"}).Draw(r, "op") {
			case "charge":
				b.charge(now, n)
				tokens -= float64(n)
			case "back":
				if b.take(now, n) == 0 {
					b.giveBack(n)
				}
			case "rate":
				next := rapid.Int64Range(1, 1_000_000).Draw(r, "rate")
				b.set(now, next)
				if tokens > 0 { // as full as before, in parts
					tokens *= float64(next) / most
				} // else a debt stays what it is
				rate, most = next, float64(next)
				slack = 4 * float64(rate) / 1e9 * 1e3
			case "take":
				wait := b.take(now, n)
				short := need - tokens
				switch {
				case wait == 0 && short > slack+1e-6:
					r.Fatalf("took %d of %v at rate %d", n, tokens, rate)
				case wait == 0:
					tokens -= float64(n)
				case math.Abs(float64(wait)-short/float64(rate)*1e9) > slack*1e9/float64(rate)+8:
					r.Fatalf("told to wait %v for %v tokens at rate %d", wait, short, rate)
				default:
					if b.wait(now, n) != wait || b.take(now+int64(wait)-1, n) == 0 {
						r.Fatalf("a wait of %v that is too long or not %v", wait, b.wait(now, n))
					}
				}
			}
			// The model is kept to what rounding made of it, so that errors do not add up.
			if exact := float64(rate) - float64(max(b.full.Load()-now, 0))*float64(rate)/1e9; math.Abs(exact-tokens) > slack*60+1e-3 {
				r.Fatalf("%v tokens, want %v", exact, tokens)
			} else {
				tokens = exact
			}
		}
	})
}

// TestBucketExtremes: neither a rate that changes from the highest to the lowest nor thousands of large fetches at a rate of 1 overflow, and a
// limit that is lowered keeps nobody waiting longer than the bucket of the new one takes to fill.
func TestBucketExtremes(t *testing.T) {
	var b bucket
	now := int64(time.Hour)
	b.set(now, 1<<40)
	for range 1 << 10 {
		if wait := b.take(now, 1<<30); wait != 0 {
			t.Fatalf("a bucket of 2^40 tokens has %v to wait", wait)
		}
	}
	b.set(now, 1)
	if wait := b.take(now, 1); wait < time.Second-time.Microsecond || wait > time.Second {
		t.Errorf("an empty bucket that was lowered to 1 a second: %v to wait, want a second", wait)
	}
	for range 1 << 14 {
		b.charge(now, wire.FetchBytesMax)
	}
	if wait := b.take(now, 1); wait < limitedMost {
		t.Errorf("after 2^14 large fetches at 1 byte a second: %v to wait", wait)
	}
	b.set(now, 1<<40)
	b.set(now, 1)
	if wait := b.take(now, 1); wait < limitedMost {
		t.Errorf("the debt is forgotten: %v to wait", wait)
	}
}

// limits of 10 messages and a lot of bytes a second, for each kind that has limits.
func tenASecond(kind meta.Kind) []any {
	l := meta.Limit{MessagesPerSecond: 10, BytesPerSecond: 1 << 30}
	switch kind {
	case meta.KindNamespace:
		return []any{kind, meta.NamespaceDefault, &meta.Namespace{Limit: l}}
	case meta.KindApp:
		return []any{kind, "shop", &meta.App{Limit: l}}
	case meta.KindTopic:
		return []any{kind, "orders", &meta.Topic{Partitions: 1, BrokerGroups: []string{"here"}, Limit: l}}
	}
	return []any{kind, "orders/shop", &meta.Producer{Limit: l}}
}

// TestSendLimits sends as fast as it is let, and waits as long as it is told to: as much is stored as the limit says, for each kind of limit.
func TestSendLimits(t *testing.T) {
	for _, kind := range []meta.Kind{meta.KindNamespace, meta.KindApp, meta.KindTopic, meta.KindProducer} {
		synctest.Test(t, func(t *testing.T) {
			r := newRuled(t, Options{})
			defer r.close()
			r.orders(1)
			r.change(tenASecond(kind)...)
			shop := r.app("shop", "s")
			time.Sleep(2 * time.Second) // it is full
			began, stored := time.Now(), 0
			for time.Since(began) < 30*time.Second {
				err := r.send(shop, "orders", 1)
				if err == nil {
					stored++
					continue
				}
				wantCode(t, "send", err, wire.CodeLimited)
				time.Sleep(err.(*wire.CodeError).RetryAfter)
			}
			if stored < 309 || stored > 310 {
				t.Errorf("%s: %d messages in 30 s, want 10 and 300", kind, stored)
			}
			if n := r.broker.Metrics().Limited[string(kind)]; n == 0 {
				t.Errorf("%s: %v are counted as limited", kind, r.broker.Metrics().Limited)
			}
		})
	}
}

// TestSendLimitExact sends batches larger than the bucket, changes the limit in place, and looks at each time to wait: it is exact.
func TestSendLimitExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRuled(t, Options{})
		defer r.close()
		r.orders(1)
		r.change(tenASecond(meta.KindTopic)...)
		shop := r.app("shop", "s")
		sends := func(n int, wait time.Duration) {
			t.Helper()
			err := r.send(shop, "orders", n)
			if wait == 0 {
				wantCode(t, fmt.Sprint("send of ", n), err, wire.CodeOK)
				return
			}
			e, ok := errors.AsType[*wire.CodeError](err)
			if !ok || e.Code != wire.CodeLimited || e.RetryAfter != wait {
				t.Fatalf("send of %d: %v, wait %v, want %v", n, err, e.RetryAfter, wait)
			}
		}
		sends(25, 0) // more than it ever holds
		sends(25, 2500*time.Millisecond)
		sends(1, 1600*time.Millisecond)
		time.Sleep(1599 * time.Millisecond)
		sends(1, time.Millisecond)
		time.Sleep(time.Millisecond)
		sends(1, 0)
		sends(1, 100*time.Millisecond)
		sends(10, time.Second)
		// A higher limit: the same debt is paid in a tenth of the time.
		r.change(meta.KindTopic, "orders", &meta.Topic{Partitions: 1, BrokerGroups: []string{"here"}, Limit: meta.Limit{MessagesPerSecond: 100}})
		time.Sleep(time.Second)
		sends(100, 0)
		sends(1, 10*time.Millisecond)
		// Bytes are counted too, and a send that is refused takes nothing of either.
		r.change(meta.KindTopic, "orders", &meta.Topic{Partitions: 1, BrokerGroups: []string{"here"}, Limit: meta.Limit{MessagesPerSecond: 100, BytesPerSecond: 1000}})
		time.Sleep(2 * time.Second)
		size := time.Duration(len(batch(t, 1, 10)))
		sends(1, 0)
		over := batch(t, 60, 10)
		sends(60, size*time.Millisecond) // larger than the bucket: when it is full
		if len(over) < 1000 {
			t.Fatal("the batch fits")
		}
		time.Sleep(size * time.Millisecond)
		sends(60, 0)
		// A batch that the broker does not store, since it is damaged, counts for nothing.
		time.Sleep(time.Duration(len(over)) * time.Millisecond)
		bad := batch(t, 60, 10)
		bad[len(bad)-1] ^= 1
		done := make(chan error, 1)
		r.broker.Produce(shop, &wire.ProduceRequest{Topic: "orders", Batch: bad}, func(_ *wire.ProduceResponse, err error) { done <- err })
		wantCode(t, "send of damage", <-done, wire.CodeCorrupt)
		sends(60, 0)
		r.change(meta.KindTopic, "orders", &meta.Topic{Partitions: 1, BrokerGroups: []string{"here"}})
		for range 100 {
			sends(10, 0)
		}
	})
}

// TestFetchLimits consumes as fast as it is let, with several members that wait, and gets as much as the limit says: messages, and bytes.
func TestFetchLimits(t *testing.T) {
	for _, kind := range []meta.Kind{meta.KindConsumer, meta.KindTopic} {
		synctest.Test(t, func(t *testing.T) {
			r := newRuled(t, Options{})
			defer r.close()
			r.orders(4)
			pay := r.app("pay", "p")
			if err := r.join(pay, "orders", "pay"); err != nil {
				t.Fatal(err)
			}
			for p := range uint16(4) {
				for range 6 {
					if _, err := r.produce("orders", p, batch(t, 100, 10)); err != nil {
						t.Fatal(err)
					}
				}
			}
			l := meta.Limit{MessagesPerSecond: 50}
			switch kind {
			case meta.KindConsumer:
				r.change(kind, "orders/pay", &meta.Consumer{Limit: l})
			case meta.KindTopic:
				r.change(kind, "orders", &meta.Topic{Partitions: 4, BrokerGroups: []string{"here"}, Limit: l})
			}
			time.Sleep(2 * time.Second)
			began := time.Now()
			var mu sync.Mutex
			got, refused := uint64(0), 0
			var all sync.WaitGroup
			for m := range uint32(4) {
				all.Go(func() {
					for time.Since(began) < 20*time.Second {
						f := <-r.startFetch(pay, wire.FetchRequest{Topic: "orders", Group: "pay", Member: m, WaitMs: 1000, MessagesMax: 20})
						if f.err != nil {
							wantCode(t, "fetch", f.err, wire.CodeLimited)
							mu.Lock()
							refused++
							mu.Unlock()
							time.Sleep(f.err.(*wire.CodeError).RetryAfter)
							continue
						}
						mu.Lock()
						got += f.To - f.From
						mu.Unlock()
						done := make(chan struct{})
						r.broker.Ack(pay, &wire.AckRequest{Topic: "orders", Group: "pay", Member: m, Items: ackAll(f).Items}, func(*wire.AckResponse, error) { close(done) })
						<-done
					}
				})
			}
			all.Wait()
			// 50 to begin with, and what those who came at the same time were given beyond.
			if got < 1000 || got > 1050+4*20 {
				t.Errorf("%s: %d messages in 20 s, want 1000 and up to 50 and 80", kind, got)
			}
			if refused > 20*60*4 {
				t.Errorf("%s: refused %d times", kind, refused)
			}
		})
	}
}

// BenchmarkGrant is what a request pays for its right: with one topic at a time, with two in turn, and with limits.
func BenchmarkGrant(b *testing.B) {
	r := newRuled(b, Options{})
	defer r.close()
	r.orders(1)
	high := meta.Limit{MessagesPerSecond: 1 << 40, BytesPerSecond: 1 << 40}
	r.change(meta.KindTopic, "more", &meta.Topic{Partitions: 1, BrokerGroups: []string{"here"}}, meta.KindProducer, "more/shop", &meta.Producer{},
		meta.KindTopic, "limited", &meta.Topic{Partitions: 1, BrokerGroups: []string{"here"}, Limit: high}, meta.KindProducer, "limited/shop", &meta.Producer{Limit: high})
	p := wire.PeerFrom(r.app("shop", "s"))
	orders, _ := r.store.Topic(0, "orders")
	more, _ := r.store.Topic(0, "more")
	limited, _ := r.store.Topic(0, "limited")
	b.Run("hit", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			g, err := r.broker.granted(p, &orders, queueOf(&orders), "")
			if err != nil || r.broker.take(g, time.Now(), 1, 1024) != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("turns", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			t := &orders
			if i%2 == 0 {
				t = &more
			}
			if _, err := r.broker.granted(p, t, queueOf(t), ""); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("limits=2", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			g, err := r.broker.granted(p, &limited, queueOf(&limited), "")
			if err != nil || r.broker.take(g, time.Now(), 1, 1024) != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("miss", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			r.broker.metadata.epoch.Add(1)
			if _, err := r.broker.granted(p, &orders, queueOf(&orders), ""); err != nil {
				b.Fatal(err)
			}
		}
	})
	pay := r.app("pay", "p")
	if err := r.join(pay, "orders", "pay"); err != nil || r.get(pay, "pay", 0).err != nil {
		b.Fatal(err)
	}
	b.Run("again", func(b *testing.B) { // what new metadata costs, for each grant that sessions keep
		for b.Loop() {
			r.broker.metadata.epoch.Add(1)
			r.broker.askAgain(nil, false)
		}
	})
}

// BenchmarkProduce is a send of one message of 1 KiB up to its answer, on a store that forgets: with metadata, an app's right and limits
// of namespace, app, topic and producer, and without.
func BenchmarkProduce(b *testing.B) {
	high := meta.Limit{MessagesPerSecond: 1 << 40, BytesPerSecond: 1 << 40}
	for _, with := range []string{"standalone", "rights", "limits"} {
		b.Run(with, func(b *testing.B) {
			var w *world
			ctx := context.Background()
			if with == "standalone" {
				w = newWorld(b, Options{})
				w.topic("orders", 1)
				p := &wire.Peer{ClientID: "s", Batched: true}
				if err := w.broker.Attach(p); err != nil {
					b.Fatal(err)
				}
				ctx = wire.WithPeer(ctx, p)
			} else {
				r := newRuled(b, Options{})
				r.orders(1)
				if with == "limits" {
					r.change(meta.KindNamespace, meta.NamespaceDefault, &meta.Namespace{Limit: high}, meta.KindApp, "shop", &meta.App{Limit: high},
						meta.KindTopic, "orders", &meta.Topic{Partitions: 1, BrokerGroups: []string{"here"}, Limit: high}, meta.KindProducer, "orders/shop", &meta.Producer{Limit: high})
				}
				w, ctx = r.world, r.app("shop", "s")
				wire.PeerFrom(ctx).Batched = true
			}
			defer w.close()
			w.broker.store = forgetful{w.store}
			one := batch(b, 1, 1024)
			b.ReportAllocs()
			for b.Loop() {
				w.broker.Produce(ctx, &wire.ProduceRequest{Topic: "orders", Batch: one}, func(_ *wire.ProduceResponse, err error) {
					if err != nil {
						b.Fatal(err)
					}
				})
			}
		})
	}
}

// forgetful is a store that answers batches at once.
type forgetful struct{ store.Store }

func (f forgetful) QueueBatch(_ store.Partition, _ []byte, done func(index.Index, int64, error)) error {
	done(0, 0, nil)
	return nil
}

// TestPeek: an app that looks at messages without a group is limited as if it fetched them, and neither it nor the owner of a topic is shown what
// a topic of the same name held that was deleted.
func TestPeek(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRuled(t, Options{})
		defer r.close()
		r.orders(1)
		r.change(meta.KindConsumer, "orders/pay", &meta.Consumer{Limit: meta.Limit{MessagesPerSecond: 10}},
			meta.KindUser, "olga", &meta.User{Role: meta.RoleUser}, meta.KindApp, "pay", &meta.App{Owners: []string{"olga"}})
		shop, pay := r.app("shop", "s"), r.app("pay", "p")
		olga := wire.WithPeer(context.Background(), &wire.Peer{ClientID: "o", Principal: wire.Principal{Kind: wire.PrincipalUser, Name: "olga"}})
		for range 50 {
			if err := r.send(shop, "orders", 1); err != nil {
				t.Fatal(err)
			}
		}
		peek := func(ctx context.Context) (uint64, error) {
			a, err := r.broker.Peek(ctx, &wire.PeekRequest{Topic: "orders", MessagesMax: 1000})
			if err != nil {
				return 0, err
			}
			return a.To - a.From, nil
		}
		if n, err := peek(pay); n != 10 || err != nil {
			t.Errorf("%d messages (%v), want 10", n, err)
		}
		_, err := peek(pay)
		wantCode(t, "peek", err, wire.CodeLimited)
		if wait := err.(*wire.CodeError).RetryAfter; wait != 100*time.Millisecond {
			t.Errorf("%v to wait", wait)
		}
		wantCode(t, "fetch", func() error { r.join(pay, "orders", "pay"); return r.get(pay, "pay", 0).err }(), wire.CodeLimited)
		time.Sleep(time.Second)
		if n, err := peek(pay); n != 10 || err != nil {
			t.Errorf("%d messages (%v), want 10", n, err)
		}
		if n, err := peek(olga); n != 50 || err != nil {
			t.Errorf("%d messages (%v), want 50", n, err)
		}
		// The topic is another one, and its messages are still here.
		r.set(meta.KindProducer, "orders/shop", nil, meta.KindConsumer, "orders/pay", nil, meta.KindConsumer, "orders/audit", nil, meta.KindTopic, "orders", nil)
		r.set(meta.KindTopic, "orders", &meta.Topic{Partitions: 1, BrokerGroups: []string{"here"}}, meta.KindConsumer, "orders/pay", &meta.Consumer{})
		if err := r.broker.takeOver(r.registry.View()); err != nil {
			t.Fatal(err)
		}
		for _, who := range []context.Context{pay, olga} {
			_, err := peek(who)
			wantCode(t, "peek", err, wire.CodeBusy)
		}
	})
}
