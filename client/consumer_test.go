package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jmqio/jmq/wire"
)

func consumer(t testing.TB, c *Client, opts ...ConsumerOption) *Consumer {
	t.Helper()
	k, err := c.Consumer("orders", append([]ConsumerOption{Start(FromBeginning)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// sendN sends n messages "0", "1", ... with one order key.
func sendN(t testing.TB, c *Client, n int) {
	t.Helper()
	p := producer(t, c)
	var msgs []*Message
	for i := range n {
		msgs = append(msgs, &Message{OrderKey: "k", Key: fmt.Sprint("o", i), Tag: "t", Headers: Headers{{Key: "h", Value: "v"}}, Flag: 7, Priority: 3, Body: fmt.Append(nil, i)})
	}
	if _, err := p.SendBatch(context.Background(), msgs); err != nil {
		t.Fatal(err)
	}
}

func lag(t testing.TB, c *Client) (n uint64) {
	t.Helper()
	lags, err := c.GroupLag(context.Background(), "orders", "app")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range lags {
		n += l.Lag
	}
	return n
}

// An ack that the broker has taken, but could not write for lack of space, is repeated: that it has ended already is then its
// own doing, and no error. If it is not repeated its outcome is unknown.
func TestAckWithoutSpace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBroker()
		b.topic("orders", 1)
		refuse := 1
		b.onAck = func(r *wire.AckRequest) error {
			if refuse == 0 {
				return nil
			}
			refuse--
			b.mu.Lock()
			defer b.mu.Unlock()
			for _, i := range r.Items {
				b.ack(b.group(r.Topic, r.Group, uint32(i.Partition)).lease.client, r, i)
			}
			return wire.Errorf(wire.CodeNoSpace, "full")
		}
		c, _ := start(t, b, false)
		k := consumer(t, c)
		ctx := context.Background()
		sendN(t, c, 2)
		ds, err := k.Fetch(ctx, 2)
		if err != nil || len(ds) != 2 {
			t.Fatalf("%d deliveries, %v", len(ds), err)
		}
		if err := ds[0].Ack(ctx); err != nil {
			t.Errorf("repeated: %v", err)
		}
		refuse = 1
		short, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		if err := ds[1].Ack(short); !errors.Is(err, ErrDiskFull) || !errors.Is(err, ErrUnknown) {
			t.Errorf("not repeated: %v", err)
		}
	})
}

// Fetch gives what was sent, with all of its fields; Ack ends it; a second Ack, a foreign and a late one have their errors.
func TestFetchAndAck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBroker()
		b.topic("orders", 2)
		c, _ := start(t, b, false)
		k := consumer(t, c)
		ctx := context.Background()
		if ds, err := k.Fetch(ctx, 5, Wait(0)); ds != nil || err != nil {
			t.Fatalf("%v, %v", ds, err)
		}
		sendN(t, c, 7)
		ds, err := k.Fetch(ctx, 5)
		if err != nil || len(ds) != 5 {
			t.Fatalf("%d deliveries, %v", len(ds), err)
		}
		for i, d := range ds {
			if d.Topic != "orders" || d.Key != fmt.Sprint("o", i) || d.OrderKey != "k" || d.Tag != "t" || d.Flag != 7 || d.Priority != 3 || string(d.Body) != fmt.Sprint(i) ||
				!slices.Equal(d.Headers, Headers{{Key: "h", Value: "v"}}) || d.Index != uint64(i) || d.Group != "app" || len(d.ID) != 26 ||
				*d.Partition != KeyPartition("k", 2) || d.BornAt.IsZero() || d.StoredAt.IsZero() || d.Lease == 0 || !d.Deadline.After(time.Now()) {
				t.Errorf("delivery %d: %+v", i, d)
			}
		}
		if err := ds[0].Ack(ctx); err != nil {
			t.Fatal(err)
		}
		if err := ds[0].Ack(ctx); !errors.Is(err, ErrAlreadyEnded) {
			t.Errorf("again: %v", err)
		}
		foreign := *ds[1]
		foreign.Member = 999
		if err := foreign.Ack(ctx); !errors.Is(err, ErrLeaseForeign) {
			t.Errorf("foreign: %v", err)
		}
		never := *ds[1]
		never.Lease = 999
		if err := never.Ack(ctx); !errors.Is(err, ErrLeaseUnknown) {
			t.Errorf("unknown lease: %v", err)
		}
		if err := consumer(t, c).Ack(ctx, ds[1]); !errors.Is(err, ErrInvalid) {
			t.Errorf("of another consumer: %v", err)
		}
		beyond := *ds[1]
		beyond.Index = 6
		if err := beyond.Ack(ctx); !errors.Is(err, ErrInvalid) {
			t.Errorf("beyond the lease: %v", err)
		}
		if err := k.Ack(ctx, ds[1], ds[2], ds[4]); err != nil {
			t.Errorf("three: %v", err)
		}
		time.Sleep(2 * time.Minute)
		var e *Error
		if err := ds[3].Ack(ctx); !errors.Is(err, ErrLeaseExpired) || !errors.As(err, &e) || e.Partition != int(*ds[3].Partition) || e.Code != wire.CodeLeaseExpired {
			t.Errorf("late: %v", err)
		}
		if again, err := k.Fetch(ctx, 5); err != nil || len(again) != 1 || again[0].Index != 3 {
			t.Errorf("after the hole: %v, %v", again, err)
		} else if err := again[0].Release(ctx); err != nil {
			t.Error(err)
		}
		if again, err := k.Fetch(ctx, 1); err != nil || len(again) != 1 || again[0].Index != 3 {
			t.Errorf("after the release: %v, %v", again, err)
		}
	})
}

// A fetch waits at the broker, is woken by a send, and ends with its wait, its context, or the client.
func TestFetchWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBroker()
		b.topic("orders", 1)
		c, _ := start(t, b, false)
		k := consumer(t, c)
		begun := time.Now()
		if ds, err := k.Fetch(context.Background(), 1, Wait(7*time.Second)); len(ds) != 0 || err != nil || time.Since(begun) != 7*time.Second {
			t.Errorf("%v, %v after %v", ds, err, time.Since(begun))
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if _, err := k.Fetch(ctx, 1); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrUnknown) {
			t.Errorf("context: %v", err)
		}
		// The lease that comes too late is given back at once: the next fetch gets it.
		sendN(t, c, 1)
		synctest.Wait()
		begun = time.Now()
		if ds, err := k.Fetch(context.Background(), 1); len(ds) != 1 || err != nil || time.Since(begun) != 0 {
			t.Errorf("after an abandoned fetch: %v, %v after %v", ds, err, time.Since(begun))
		}
		result := make(chan error)
		go func() {
			_, err := k.Fetch(context.Background(), 1)
			result <- err
		}()
		synctest.Wait()
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-result; !errors.Is(err, ErrClosed) {
			t.Errorf("closed: %v", err)
		}
	})
}

// A broker that takes no new group, or does not answer, does not hold a fetch for much longer than its wait.
func TestFetchOfFailedBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBroker()
		b.topic("orders", 1)
		c, _ := start(t, b, false)
		fetch := func(k *Consumer, wait, most time.Duration, want error) {
			t.Helper()
			begun := time.Now()
			_, err := k.Fetch(context.Background(), 1, Wait(wait))
			if took := time.Since(begun); !errors.Is(err, want) || took > most {
				t.Errorf("wait %v: %v after %v, want %v after %v at most", wait, err, took, want, most)
			}
		}
		b.onSubscribe = func() error { return wire.Errorf(wire.CodeFailed, "the store stopped") }
		fetch(consumer(t, c), 0, callTimeout, ErrBroken)
		fetch(consumer(t, c), 10*time.Second, 10*time.Second, ErrBroken)
		b.onSubscribe = nil

		frozen := make(chan struct{})
		b.onFetch = func(*wire.FetchRequest) error { <-frozen; return nil }
		fetch(consumer(t, c), 2*time.Second, 2*time.Second+callTimeout, ErrTimeout)
		close(frozen)
	})
}

// Run keeps the order within a partition, whatever the handlers do, and its acks are few.
func TestRunOrderAndAcks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBroker()
		b.topic("orders", 1)
		c, _ := start(t, b, false)
		const n = 300
		sendN(t, c, n)
		ctx, cancel := context.WithCancel(context.Background())
		var got []string
		if err := consumer(t, c, Concurrency(4), Batch(100)).Run(ctx, func(ctx context.Context, d *Delivery) error {
			got = append(got, string(d.Body)) // one at a time, or -race tells
			if len(got) == n {
				cancel()
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		for i, s := range got {
			if s != fmt.Sprint(i) {
				t.Fatalf("message %d is %s", i, s)
			}
		}
		b.mu.Lock()
		if b.mu.acks != 3 {
			t.Errorf("%d acks for three leases", b.mu.acks)
		}
		b.mu.Unlock()
		if l := lag(t, c); l != 0 {
			t.Errorf("lag %d", l)
		}
	})
}

// A handler that runs on does not hold up the acks of what was handled before it.
func TestAckAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBroker()
		b.topic("orders", 1)
		c, _ := start(t, b, false)
		sendN(t, c, 3)
		ctx, cancel := context.WithCancel(context.Background())
		if err := consumer(t, c).Run(ctx, func(ctx context.Context, d *Delivery) error {
			if d.Index == 2 {
				time.Sleep(150 * time.Millisecond)
				synctest.Wait()
				if l := lag(t, c); l != 1 {
					t.Errorf("lag %d while the third is handled", l)
				}
				cancel()
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if l := lag(t, c); l != 0 {
			t.Errorf("lag %d at the end", l)
		}
	})
}

// An error and a panic: what came before is acknowledged, the message comes again after a pause that doubles, in order.
func TestHandlerFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBroker()
		b.topic("orders", 1)
		c, _ := start(t, b, false)
		sendN(t, c, 6)
		ctx, cancel := context.WithCancel(context.Background())
		type call struct {
			index uint64
			at    time.Duration
		}
		var calls []call
		begun := time.Now()
		fails := 0
		if err := consumer(t, c).Run(ctx, func(ctx context.Context, d *Delivery) error {
			calls = append(calls, call{d.Index, time.Since(begun)})
			if d.Index == 3 && fails < 4 {
				if fails++; fails == 2 {
					panic("the handler's own defect")
				}
				return errors.New("not now")
			}
			if d.Index == 5 {
				cancel()
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		ms := time.Millisecond
		want := []call{{0, 0}, {1, 0}, {2, 0}, {3, 0}, {3, 100 * ms}, {3, 300 * ms}, {3, 700 * ms}, {3, 1500 * ms}, {4, 1500 * ms}, {5, 1500 * ms}}
		if !slices.Equal(calls, want) {
			t.Errorf("calls %v\nwant  %v", calls, want)
		}
		if l := lag(t, c); l != 0 {
			t.Errorf("lag %d", l)
		}
	})
}

// When the context ends, the handler that runs finishes and is acknowledged, and the rest of the lease is given back.
func TestRunStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBroker()
		b.topic("orders", 1)
		c, _ := start(t, b, false)
		sendN(t, c, 5)
		ctx, cancel := context.WithCancel(context.Background())
		k := consumer(t, c)
		if err := k.Run(ctx, func(ctx context.Context, d *Delivery) error {
			if d.Index == 1 {
				cancel()
				time.Sleep(time.Second)
				if ctx.Err() != nil {
					t.Error("the handler's context ended with Run's")
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		ds, err := k.Fetch(context.Background(), 10)
		if err != nil || len(ds) != 3 || ds[0].Index != 2 || time.Since(begun) != 0 {
			t.Errorf("then %d deliveries, %v", len(ds), err)
		}
	})
}

// A handler that does not stop is told so after StopTimeout; one that exceeds its lease when that is over, and what it
// still holds is not handled.
func TestHandlerContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBroker()
		b.topic("orders", 1)
		c, _ := start(t, b, false)
		sendN(t, c, 5)
		ctx, cancel := context.WithCancel(context.Background())
		begun := time.Now()
		if err := consumer(t, c, StopTimeout(3*time.Second)).Run(ctx, func(ctx context.Context, d *Delivery) error {
			cancel()
			<-ctx.Done()
			return ctx.Err()
		}); err != nil || time.Since(begun) != 3*time.Second {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
		ctx, cancel = context.WithCancel(context.Background())
		defer cancel()
		var indexes []uint64
		begun = time.Now()
		if err := consumer(t, c).Run(ctx, func(ctx context.Context, d *Delivery) error {
			indexes = append(indexes, d.Index)
			if len(indexes) == 1 {
				<-ctx.Done()
				if took := time.Since(begun); took < 50*time.Second || took > time.Minute {
					t.Errorf("the context ended after %v of a lease of 1 min", took)
				}
				time.Sleep(20 * time.Second) // longer than the lease
				return nil
			}
			if len(indexes) == 6 {
				cancel()
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
		if want := []uint64{0, 0, 1, 2, 3, 4}; !slices.Equal(indexes, want) {
			t.Errorf("handled %v, want %v", indexes, want)
		}
	})
}

// Run goes on by itself after the broker was away, its group is made again if it is lost, and acks that could not be sent
// are sent then.
func TestRunReconnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBroker()
		b.topic("orders", 1)
		c, s := start(t, b, false)
		sendN(t, c, 1)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		var got atomic.Int32
		ended := make(chan error)
		go func() {
			ended <- consumer(t, c).Run(ctx, func(ctx context.Context, d *Delivery) error {
				if got.Add(1) == 1 {
					s.kill(true) // the ack of this one cannot be sent
				}
				return nil
			})
		}()
		time.Sleep(10 * time.Second)
		s.up()
		time.Sleep(5 * time.Second)
		sendN(t, c, 2)
		time.Sleep(time.Second)
		if n, l := got.Load(), lag(t, c); n != 3 || l != 0 {
			t.Errorf("%d handled, lag %d", n, l)
		}
		b.mu.Lock()
		clear(b.mu.groups)
		b.mu.Unlock()
		s.kill(false)
		time.Sleep(10 * time.Second)
		if n := got.Load(); n != 6 { // a new group, from the beginning
			t.Errorf("%d handled after the group was lost", n)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// A Run that cannot go on says why; one of a closed client as well.
func TestRunErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBroker()
		c, _ := start(t, b, false)
		k := consumer(t, c)
		handler := func(context.Context, *Delivery) error { return nil }
		if err := k.Run(context.Background(), handler); !errors.Is(err, ErrNotFound) {
			t.Errorf("no topic: %v", err)
		}
		if err := k.Run(context.Background(), nil); !errors.Is(err, ErrInvalid) {
			t.Errorf("no handler: %v", err)
		}
		b.topic("orders", 1)
		var fail atomic.Bool
		b.onFetch = func(*wire.FetchRequest) error {
			if fail.Load() {
				return wire.Errorf(wire.CodeInvalid, "no such thing")
			}
			return nil
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := consumer(t, c, Concurrency(3)).Run(context.Background(), handler); !errors.Is(err, ErrInvalid) {
				t.Errorf("refused: %v", err)
			}
		})
		time.Sleep(time.Second)
		fail.Store(true)
		wg.Wait()
		fail.Store(false)
		wg.Go(func() {
			if err := consumer(t, c).Run(context.Background(), handler); !errors.Is(err, ErrClosed) {
				t.Errorf("closed: %v", err)
			}
		})
		time.Sleep(time.Second)
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
		wg.Wait()
		if err := k.Run(context.Background(), handler); !errors.Is(err, ErrClosed) {
			t.Errorf("after close: %v", err)
		}
		if _, err := c.Consumer("orders"); !errors.Is(err, ErrClosed) {
			t.Errorf("consumer after close: %v", err)
		}
		if _, err := c.Producer("orders"); !errors.Is(err, ErrClosed) {
			t.Errorf("producer after close: %v", err)
		}
	})
}

// A damaged batch is never handed out: its lease is given back, and it is told.
func TestDamagedBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBroker()
		b.topic("orders", 1)
		c, _ := start(t, b, false)
		sendN(t, c, 2)
		b.mu.Lock()
		batch := b.mu.topics["orders"][0].batches[0]
		batch[len(batch)-1] ^= 1
		b.mu.Unlock()
		if ds, err := consumer(t, c).Fetch(context.Background(), 5); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%v, %v", ds, err)
		}
		b.mu.Lock()
		batch[len(batch)-1] ^= 1
		b.mu.Unlock()
		begun := time.Now()
		if ds, err := consumer(t, c).Fetch(context.Background(), 5); err != nil || len(ds) != 2 || time.Since(begun) != 0 {
			t.Errorf("%d deliveries, %v", len(ds), err)
		}
	})
}
