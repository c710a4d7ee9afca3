package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jmqio/jmq/wire"
)

// leased counts the leases that the broker holds for anyone.
func leased(b *fakeBroker) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, partitions := range b.mu.groups {
		for _, g := range partitions {
			if g.lease != nil {
				n++
			}
		}
	}
	return n
}

// A loop over Messages gets them in order; break, the end of ctx and a panic give back what had no turn; what had its turn and
// is not acknowledged is the caller's.
func TestMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBroker()
		b.topic("orders", 1)
		c, _ := start(t, b, false)
		k := consumer(t, c, Batch(5))
		ctx := context.Background()
		sendN(t, c, 12)
		var got []string
		for d, err := range k.Messages(ctx) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, string(d.Body))
			if err := d.Ack(ctx); err != nil {
				t.Fatal(err)
			}
			if len(got) == 7 {
				break
			}
		}
		if want := []string{"0", "1", "2", "3", "4", "5", "6"}; !slices.Equal(got, want) {
			t.Errorf("got %v", got)
		}
		if n := leased(b); n != 0 {
			t.Errorf("%d leases after break", n)
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			for d, err := range k.Messages(ctx) {
				if err != nil || string(d.Body) != "7" || d.Ack(ctx) != nil {
					t.Errorf("%v, %v", d, err)
				}
				panic("body")
			}
		}()
		if n := leased(b); n != 0 {
			t.Errorf("%d leases after a panic", n)
		}
		ending, cancel := context.WithCancel(ctx)
		defer cancel()
		var kept *Delivery
		for d, err := range k.Messages(ending) {
			if err != nil {
				t.Fatal(err)
			}
			kept = d
			cancel()
		}
		if string(kept.Body) != "8" || leased(b) != 1 { // its lease ends with it
			t.Errorf("kept %q, %d leases", kept.Body, leased(b))
		}
		if err := kept.Ack(ctx); err != nil || leased(b) != 0 {
			t.Errorf("%v, %d leases", err, leased(b))
		}
	})
}

// Messages goes on after what passes by itself, and says what does not.
func TestMessagesErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBroker()
		b.topic("orders", 1)
		c, s := start(t, b, false)
		k := consumer(t, c, PollWait(time.Second))
		ctx := context.Background()
		sendN(t, c, 2)
		s.kill(true)
		time.AfterFunc(30*time.Second, s.up)
		n := 0
		for d, err := range k.Messages(ctx) {
			if err != nil || d.Ack(ctx) != nil {
				t.Fatal(err)
			}
			if n++; n == 2 {
				break
			}
		}
		none, err := c.Consumer("nothing")
		if err != nil {
			t.Fatal(err)
		}
		n = 0
		for d, err := range none.Messages(ctx) {
			if n++; d != nil || !errors.Is(err, ErrNotFound) {
				t.Errorf("%v, %v", d, err)
			}
		}
		time.AfterFunc(10*time.Second, func() { c.Close(ctx) })
		for d, err := range k.Messages(ctx) {
			if n++; d != nil || !errors.Is(err, ErrClosed) {
				t.Errorf("%v, %v", d, err)
			}
		}
		if n != 2 {
			t.Errorf("%d turns, want 2: one error each", n)
		}
	})
}

// While a consumer is paused it holds nothing: the handler that runs finishes and is acknowledged, what was fetched with its
// message goes to others, and a fetch that waits is taken back. After Resume it goes on.
func TestPauseRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBroker()
		b.topic("orders", 1)
		c, _ := start(t, b, false)
		k := consumer(t, c)
		sendN(t, c, 5)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		handled := make(chan string)
		ended := make(chan error)
		go func() {
			ended <- k.Run(ctx, func(ctx context.Context, d *Delivery) error { handled <- string(d.Body); return nil })
		}()
		if <-handled != "0" {
			t.Error("not 0")
		}
		synctest.Wait() // 1 is being handled
		k.Pause()
		if !k.Paused() {
			t.Error("not paused")
		}
		if <-handled != "1" {
			t.Error("not 1")
		}
		synctest.Wait()
		if n := leased(b); n != 0 || lag(t, c) != 3 {
			t.Errorf("%d leases, lag %d", n, lag(t, c))
		}
		other := consumer(t, c)
		ds, err := other.Fetch(ctx, 1, Wait(0))
		if err != nil || len(ds) != 1 || string(ds[0].Body) != "2" || ds[0].Ack(ctx) != nil {
			t.Fatalf("%v, %v", ds, err)
		}
		time.Sleep(time.Hour)
		select {
		case body := <-handled:
			t.Errorf("%s while paused", body)
		default:
		}
		k.Resume()
		for _, want := range []string{"3", "4"} {
			if body := <-handled; body != want {
				t.Errorf("got %s, want %s", body, want)
			}
		}
		synctest.Wait() // a fetch waits now
		k.Pause()
		synctest.Wait()
		sendN(t, c, 1)
		if ds, err := other.Fetch(ctx, 1, Wait(0)); err != nil || len(ds) != 1 || ds[0].Ack(ctx) != nil {
			t.Errorf("the paused consumer's fetch took it: %v, %v", ds, err)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if lag(t, c) != 0 || leased(b) != 0 {
			t.Errorf("lag %d, %d leases", lag(t, c), leased(b))
		}
	})
}

// An ack that has no connection when the pause begins is sent when there is one.
func TestPauseWithoutConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBroker()
		b.topic("orders", 1)
		c, s := start(t, b, false)
		k := consumer(t, c)
		sendN(t, c, 2)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		ended := make(chan error)
		go func() {
			ended <- k.Run(ctx, func(ctx context.Context, d *Delivery) error {
				s.kill(true)
				time.AfterFunc(time.Second, s.up)
				k.Pause()
				return nil
			})
		}()
		time.Sleep(10 * time.Second)
		if n := leased(b); n != 0 || lag(t, c) != 1 {
			t.Errorf("%d leases, lag %d", n, lag(t, c))
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// Fetch and Messages wait for Resume as for messages.
func TestPauseFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBroker()
		b.topic("orders", 1)
		c, _ := start(t, b, false)
		k := consumer(t, c)
		ctx := context.Background()
		k.Pause()
		begun := time.Now()
		if ds, err := k.Fetch(ctx, 1, Wait(3*time.Second)); ds != nil || err != nil || time.Since(begun) != 3*time.Second {
			t.Errorf("%v, %v after %v", ds, err, time.Since(begun))
		}
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if _, err := k.Fetch(short, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		k.Resume()
		time.AfterFunc(time.Second, k.Pause) // while the fetch waits at the broker
		time.AfterFunc(2*time.Second, func() { sendN(t, c, 3) })
		time.AfterFunc(3*time.Second, k.Resume)
		begun = time.Now()
		n := 0
		for d, err := range k.Messages(ctx) {
			if err != nil || d.Ack(ctx) != nil {
				t.Fatal(err)
			}
			if n++; n == 1 {
				if since := time.Since(begun); since != 3*time.Second {
					t.Errorf("came after %v", since)
				}
				k.Pause()
				time.AfterFunc(time.Minute, func() {
					if leased(b) != 0 {
						t.Error("leased while paused")
					}
					k.Resume()
				})
			}
			if n == 3 {
				break
			}
		}
		if time.Since(begun) < time.Minute {
			t.Error("the second came while paused")
		}
	})
}

// Gaps are told, and fetching goes on behind them at once.
func TestGaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBroker()
		b.topic("orders", 1)
		c, _ := start(t, b, false)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		sendN(t, c, 10)
		b.mu.gaps = []fakeGap{{0, 0, 3}, {0, 3, 4}, {0, 9, 10}}
		var gaps []Gap
		k := consumer(t, c, OnGap(func(g Gap) { gaps = append(gaps, g) }), Batch(5))
		begun := time.Now()
		ds, err := k.Fetch(ctx, 1)
		if err != nil || len(ds) != 1 || ds[0].Index != 4 || ds[0].Ack(ctx) != nil {
			t.Fatalf("%v, %v", ds, err)
		}
		want := []Gap{{"orders", "app", "bg1", 0, 0, 3, GapDamaged}, {"orders", "app", "bg1", 0, 3, 4, GapDamaged}}
		if !slices.Equal(gaps, want) {
			t.Errorf("got %v", gaps)
		}
		n := 0
		if err := k.Run(ctx, func(context.Context, *Delivery) error {
			if n++; n == 4 { // up to 8
				time.AfterFunc(time.Second, cancel)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if want = append(want, Gap{"orders", "app", "bg1", 0, 9, 10, GapDamaged}); !slices.Equal(gaps, want) || time.Since(begun) > 2*time.Second {
			t.Errorf("got %v after %v", gaps, time.Since(begun))
		}
	})
}

// Extend gives all of a lease more time, and never takes any; a lease that has ended is not revived. The next delivery says that
// it is the second.
func TestExtend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBroker()
		b.topic("orders", 1)
		c, _ := start(t, b, false)
		k := consumer(t, c)
		ctx := context.Background()
		sendN(t, c, 2)
		ds, err := k.Fetch(ctx, 2)
		if err != nil || len(ds) != 2 || ds[0].Attempt != 1 {
			t.Fatalf("%v, %v", ds, err)
		}
		was := ds[0].Deadline
		if err := ds[0].Extend(ctx, 10*time.Minute); err != nil || ds[0].Deadline.Sub(was) < 8*time.Minute {
			t.Fatalf("%v, %v after %v", err, ds[0].Deadline, was)
		}
		was = ds[0].Deadline
		if err := ds[0].Extend(ctx, 0); err != nil || !ds[0].Deadline.Equal(was) {
			t.Errorf("%v, %v", err, ds[0].Deadline)
		}
		for _, d := range []time.Duration{-1, 13 * time.Hour} {
			if err := ds[0].Extend(ctx, d); !errors.Is(err, ErrInvalid) {
				t.Errorf("%v: %v", d, err)
			}
		}
		if err := new(Delivery).Extend(ctx, 1); !errors.Is(err, ErrInvalid) {
			t.Errorf("of nobody: %v", err)
		}
		foreign := *ds[0]
		foreign.Member = 99
		if err := foreign.Extend(ctx, 1); !errors.Is(err, ErrLeaseForeign) {
			t.Errorf("foreign: %v", err)
		}
		time.Sleep(5 * time.Minute)
		if err := ds[1].Ack(ctx); err != nil { // its own Deadline is over, the lease is not
			t.Errorf("within the longer time: %v", err)
		}
		time.Sleep(6 * time.Minute)
		if err := ds[0].Extend(ctx, time.Minute); !errors.Is(err, ErrLeaseExpired) {
			t.Errorf("after the end: %v", err)
		}
		if again, err := k.Fetch(ctx, 2); err != nil || len(again) != 1 || again[0].Attempt != 2 {
			t.Errorf("%v, %v", again, err)
		}
	})
}

// A handler's context ends with its lease; Extend moves that, and ExtendLeases does it by itself, up to its bound.
func TestHandlerContext(t *testing.T) {
	for name, r := range map[string]struct {
		extend time.Duration // by the handler
		opts   []ConsumerOption
		from   time.Duration // when the context ends
		to     time.Duration
	}{
		"plain":     {0, nil, 58 * time.Second, 60 * time.Second},
		"extended":  {5 * time.Minute, nil, 298 * time.Second, 300 * time.Second},
		"by itself": {0, []ConsumerOption{ExtendLeases(4 * time.Minute)}, 238 * time.Second, 240 * time.Second},
		"for less":  {0, []ConsumerOption{ExtendLeases(time.Second)}, 58 * time.Second, 60 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newFakeBroker()
				b.topic("orders", 1)
				c, _ := start(t, b, false)
				sendN(t, c, 1)
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				k := consumer(t, c, r.opts...)
				if err := k.Run(ctx, func(ctx context.Context, d *Delivery) error {
					begun := time.Now()
					if r.extend > 0 {
						if err := d.Extend(ctx, r.extend); err != nil {
							t.Error(err)
						}
					}
					<-ctx.Done()
					if took := time.Since(begun); took < r.from || took > r.to || context.Cause(ctx) != ErrLeaseExpired {
						t.Errorf("%v after %v", context.Cause(ctx), took)
					}
					cancel()
					return nil
				}); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

// With ExtendLeases a lease of many slow messages holds, though each of them takes most of the ack timeout; without a
// connection it is tried again.
func TestExtendLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBroker()
		b.topic("orders", 1)
		c, s := start(t, b, false)
		sendN(t, c, 5)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		k := consumer(t, c, ExtendLeases(2*time.Minute))
		var got []string
		if err := k.Run(ctx, func(ctx context.Context, d *Delivery) error {
			got = append(got, fmt.Sprint(d.Index, "-", d.Attempt))
			if d.Index == 2 {
				s.kill(true)
				time.AfterFunc(15*time.Second, s.up)
			}
			time.Sleep(50 * time.Second)
			if d.Index == 4 {
				cancel()
			}
			return ctx.Err()
		}); err != nil {
			t.Fatal(err)
		}
		if want := []string{"0-1", "1-1", "2-1", "3-1", "4-1"}; !slices.Equal(got, want) || lag(t, c) != 0 {
			t.Errorf("handled %v, lag %d", got, lag(t, c))
		}
		if b.mu.extends > 20 {
			t.Errorf("%d requests to extend in 250 s", b.mu.extends)
		}
	})
}

// Parallel is what the group is subscribed with; Seek and Lag are the group's.
func TestConsumerGroupCalls(t *testing.T) {
	ctx := context.Background()
	c, b := startAdmin(t, &wire.SeekGroupResponse{})
	b.topic("orders", 1)
	k := consumer(t, c, Parallel(7))
	if _, err := k.Seek(ctx, Seek{To: SeekEnd}); err != nil {
		t.Fatal(err)
	}
	if r := b.got.(*wire.SeekGroupRequest); r.Topic != "orders" || r.Group != "app" || r.To != uint32(wire.SeekEnd) {
		t.Errorf("%v", r)
	}
	if p := b.mu.policy; !p.GetParallel() || p.GetWindow() != 7 {
		t.Errorf("policy %v", p)
	}
	if lags, err := k.Lag(ctx); err != nil || len(lags) != 1 || lags[0].Group != "app" {
		t.Errorf("%v, %v", lags, err)
	}
	if err := consumer(t, c).Subscribe(ctx); err != nil || b.mu.policy != nil {
		t.Errorf("%v: a consumer without a policy asks for %v", err, b.mu.policy)
	}
}
