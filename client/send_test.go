package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jmqio/jmq/wire"
)

func producer(t testing.TB, c *Client, opts ...ProducerOption) *Producer {
	t.Helper()
	p, err := c.Producer("orders", opts...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// checkOutcome holds err to be a send's error with exactly one of the two outcomes.
func checkOutcome(t *testing.T, err error, unknown bool, also error) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	if got := errors.Is(err, ErrUnknown); got != unknown {
		t.Errorf("ErrUnknown: %v, want %v: %v", got, unknown, err)
	}
	if got := errors.Is(err, ErrFailed); got == unknown {
		t.Errorf("ErrFailed: %v, want %v: %v", got, !unknown, err)
	}
	if also != nil && !errors.Is(err, also) {
		t.Errorf("not %v: %v", also, err)
	}
	var e *Error
	if !errors.As(err, &e) || e.Op != "send" || e.Topic != "orders" {
		t.Errorf("error %#v", err)
	}
}

// Each code has its outcome, and is repeated or not, as the table says; the id is the same in every attempt.
func TestSendOutcomes(t *testing.T) {
	for _, c := range []struct {
		name     string
		answers  []error // of the attempts; nil: stored. The last one stays
		err      error
		unknown  bool // outcome
		attempts int  // 0: until the time is over
		copies   int
	}{
		{name: "ok", answers: []error{nil}, attempts: 1, copies: 1},
		{name: "busy, then ok", answers: []error{wire.Errorf(wire.CodeBusy, ""), nil}, attempts: 2, copies: 1},
		{name: "unknown, then ok", answers: []error{wire.Errorf(wire.CodeUnknown, ""), nil}, attempts: 2, copies: 1},
		{name: "invalid", answers: []error{wire.Errorf(wire.CodeInvalid, "bad")}, err: ErrInvalid, attempts: 1},
		{name: "too large", answers: []error{wire.Errorf(wire.CodeTooLarge, "big")}, err: ErrTooLarge, attempts: 1},
		{name: "unknown, then invalid", answers: []error{wire.Errorf(wire.CodeUnknown, ""), wire.Errorf(wire.CodeInvalid, "")}, err: ErrInvalid, unknown: true, attempts: 2},
		{name: "busy for ever", answers: []error{wire.Errorf(wire.CodeBusy, "")}, err: ErrBusy},
		{name: "disk full for ever", answers: []error{wire.Errorf(wire.CodeNoSpace, "")}, err: ErrDiskFull},
		{name: "unknown for ever", answers: []error{wire.Errorf(wire.CodeUnknown, "")}, unknown: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newFakeBroker()
				b.topic("orders", 1)
				var n atomic.Int32
				var ids sync.Map
				b.onProduce = func(r *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) bool {
					batch, err := wire.ParseBatch(r.Batch)
					if err != nil {
						t.Error(err)
						return false
					}
					it := wire.IterateMessages(batch, batch[wire.BatchHeaderBytes:])
					it.Next()
					ids.Store(it.View.ID(), true)
					k := min(int(n.Add(1)), len(c.answers)) - 1
					if c.answers[k] != nil {
						done(nil, c.answers[k])
					}
					return c.answers[k] != nil
				}
				client, _ := start(t, b, false)
				p := producer(t, client)
				begun := time.Now()
				r, err := p.Send(context.Background(), &Message{Body: []byte("x")})
				if c.err == nil && !c.unknown {
					if err != nil {
						t.Fatal(err)
					}
				} else {
					checkOutcome(t, err, c.unknown, c.err)
				}
				if c.attempts > 0 && (r.Attempts != c.attempts || int(n.Load()) != c.attempts) {
					t.Errorf("%d attempts in the receipt, %d at the broker, want %d", r.Attempts, n.Load(), c.attempts)
				}
				if took := time.Since(begun); c.attempts == 0 && (took < 2*time.Second || took > 3*time.Second) {
					t.Errorf("gave up after %v, want nearly 3 s", took)
				}
				count := 0
				ids.Range(func(any, any) bool { count++; return true })
				if count != 1 {
					t.Errorf("%d ids in %d attempts", count, n.Load())
				}
				if got := len(b.stored(0)); got != c.copies {
					t.Errorf("%d copies stored, want %d", got, c.copies)
				}
				if r.MessageID == "" {
					t.Error("the receipt has no id")
				}
			})
		})
	}
}

// A broker that does not answer: three tries of a third of the time each, then unknown. A late answer is dropped.
func TestSendTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBroker()
		b.topic("orders", 1)
		var times []time.Duration
		var late []func()
		begun := time.Now()
		b.onProduce = func(r *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) bool {
			times = append(times, time.Since(begun))
			if r.TimeoutMs != 1000 {
				t.Errorf("the broker is told %d ms", r.TimeoutMs)
			}
			late = append(late, func() { done(&wire.ProduceResponse{}, nil) })
			return true
		}
		c, _ := start(t, b, false, WithConns(1))
		p := producer(t, c)
		begun = time.Now()
		r, err := p.Send(context.Background(), &Message{Body: []byte("x")})
		checkOutcome(t, err, true, nil)
		if took := time.Since(begun); took > 3*time.Second || took < 2900*time.Millisecond {
			t.Errorf("took %v", took)
		}
		synctest.Wait()
		if len(times) != 3 || r.Attempts != 3 || r.Unknown != 3 {
			t.Errorf("attempts at %v, receipt %+v", times, r)
		}
		for _, answer := range late {
			answer()
		}
		b.onProduce = nil
		if _, err := p.Send(context.Background(), &Message{Body: []byte("y")}); err != nil {
			t.Error(err)
		}
	})
}

// The end of a context ends the wait at once: unknown when it was sent, failed when it was not.
func TestSendContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBroker()
		b.topic("orders", 1)
		b.onProduce = func(*wire.ProduceRequest, func(*wire.ProduceResponse, error)) bool { return true }
		c, _ := start(t, b, false)
		p := producer(t, c)

		done, cancel := context.WithCancel(context.Background())
		cancel()
		_, err := p.Send(done, &Message{})
		checkOutcome(t, err, false, context.Canceled)

		for _, key := range []string{"", "k"} {
			begun := time.Now()
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			_, err = p.Send(ctx, &Message{OrderKey: key})
			checkOutcome(t, err, true, context.DeadlineExceeded)
			if took := time.Since(begun); took != 100*time.Millisecond {
				t.Errorf("took %v", took)
			}
			cancel()
		}
		// Behind one in flight, with the same partition: never sent.
		begun := time.Now()
		go p.Send(context.Background(), &Message{OrderKey: "k"})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		defer cancel()
		_, err = p.Send(ctx, &Message{OrderKey: "k"})
		checkOutcome(t, err, false, context.DeadlineExceeded)
		if took := time.Since(begun); took != 10*time.Millisecond {
			t.Errorf("took %v", took)
		}
	})
}

// While one batch of a partition is in flight, further sends with an order key wait and go in one batch, in order.
func TestKeyedSendsMerge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBroker()
		b.topic("orders", 1)
		var inFlight atomic.Int32
		b.onProduce = func(r *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) bool {
			if inFlight.Add(1) > 1 {
				t.Error("two batches of one partition in flight")
			}
			r.Batch = slices.Clone(r.Batch)
			time.AfterFunc(50*time.Millisecond, func() {
				inFlight.Add(-1)
				done(b.store(r))
			})
			return true
		}
		c, _ := start(t, b, false)
		p := producer(t, c)
		var wg sync.WaitGroup
		for i := range 100 {
			body := fmt.Append(nil, i)
			wg.Go(func() {
				if _, err := p.Send(context.Background(), &Message{OrderKey: "k", Body: body}); err != nil {
					t.Error(err)
				}
				clear(body) // Send does not keep it
			})
			synctest.Wait()
		}
		wg.Wait()
		batches := b.batches()
		if len(batches) != 2 {
			t.Errorf("%d batches, want 2", len(batches))
		}
		for i, m := range b.stored(0) {
			if string(m.Body) != fmt.Sprint(i) {
				t.Fatalf("message %d is %q", i, m.Body)
			}
		}
		if batches[1].sequence != 1 {
			t.Errorf("sequence %d after one message", batches[1].sequence)
		}
	})
}

// A message that cannot be encoded fails alone, not those that were merged with it.
func TestMergedFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBroker()
		b.topic("orders", 1)
		b.onProduce = func(r *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) bool {
			r.Batch = slices.Clone(r.Batch)
			time.AfterFunc(50*time.Millisecond, func() { done(b.store(r)) })
			return true
		}
		c, _ := start(t, b, false)
		p := producer(t, c)
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				m := &Message{OrderKey: "k", Body: fmt.Append(nil, i)}
				if i == 4 {
					m.Priority = 77
				}
				r, err := p.Send(context.Background(), m)
				if i == 4 {
					checkOutcome(t, err, false, ErrInvalid)
				} else if err != nil {
					t.Errorf("message %d: %v", i, err)
				} else if got := b.stored(0)[r.Index]; string(got.Body) != fmt.Sprint(i) {
					t.Errorf("message %d: receipt %+v, there is %q", i, r, got.Body)
				}
			})
			synctest.Wait()
		}
		wg.Wait()
		if n := len(b.stored(0)); n != 9 {
			t.Errorf("%d stored", n)
		}
	})
}

// MergeAfter merges unkeyed sends behind n batches in flight; without it each goes alone, at once.
func TestMergeAfter(t *testing.T) {
	for _, width := range []int{0, 2} {
		synctest.Test(t, func(t *testing.T) {
			b := newFakeBroker()
			b.topic("orders", 4)
			b.onProduce = func(r *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) bool {
				c := *r
				c.Batch = slices.Clone(r.Batch)
				time.AfterFunc(50*time.Millisecond, func() { done(b.store(&c)) })
				return true
			}
			c, _ := start(t, b, false)
			p := producer(t, c, MergeAfter(width))
			var wg sync.WaitGroup
			for range 50 {
				wg.Go(func() {
					if _, err := p.Send(context.Background(), &Message{Body: []byte("x")}); err != nil {
						t.Error(err)
					}
				})
				synctest.Wait()
			}
			wg.Wait()
			if got, want := len(b.batches()), map[int]int{0: 50, 2: 3}[width]; got != want {
				t.Errorf("width %d: %d batches, want %d", width, got, want)
			}
		})
	}
}

// Receipts of a batch are those of its messages; keyed ones go to their partitions, the others together.
func TestSendBatch(t *testing.T) {
	b := newFakeBroker()
	b.topic("orders", 8)
	c, _ := start(t, b, false)
	p := producer(t, c, Compress(Zstd, 100))
	pinned := uint16(3)
	var msgs []*Message
	for i := range 60 {
		m := &Message{Key: fmt.Sprint("o", i), Body: []byte(strings.Repeat(fmt.Sprint(i), 50)), Tag: "t", Headers: Headers{{Key: "a", Value: "b"}}}
		switch i % 3 {
		case 1:
			m.OrderKey = fmt.Sprint(i % 5)
		case 2:
			m.Partition = &pinned
		}
		msgs = append(msgs, m)
	}
	receipts, err := p.SendBatch(context.Background(), msgs)
	if err != nil {
		t.Fatal(err)
	}
	free := receipts[0].Partition
	for i, r := range receipts {
		want := free
		switch i % 3 {
		case 1:
			want = KeyPartition(msgs[i].OrderKey, 8)
		case 2:
			want = pinned
		}
		m := b.stored(r.Partition)[r.Index]
		if r.Partition != want || m.Key != msgs[i].Key || string(m.Body) != string(msgs[i].Body) || m.Tag != "t" || r.BrokerGroup != "bg1" {
			t.Errorf("message %d: receipt %+v, stored %+v", i, r, m)
		}
	}
}

// A batch that is stored in part says which part, and each partition is whole.
func TestSendBatchPartly(t *testing.T) {
	b := newFakeBroker()
	b.topic("orders", 4)
	b.onProduce = func(r *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) bool {
		switch r.Partition {
		case 1:
			done(nil, wire.Errorf(wire.CodeInvalid, "no"))
		case 2:
			done(b.store(r))
		default:
			return false
		}
		return true
	}
	c, s := start(t, b, false)
	_ = s
	p := producer(t, c)
	var msgs []*Message
	for i := range 20 {
		q := uint16(i % 5) // partition 4 is not there
		msgs = append(msgs, &Message{Partition: &q, Body: fmt.Append(nil, i)})
	}
	receipts, err := p.SendBatch(context.Background(), msgs)
	var be *BatchError
	if !errors.As(err, &be) || !errors.Is(err, ErrFailed) || errors.Is(err, ErrUnknown) {
		t.Fatalf("error %v", err)
	}
	for i := range msgs {
		want := error(nil)
		switch i % 5 {
		case 1:
			want = ErrInvalid
		case 4:
			want = ErrNotFound
		}
		if want == nil && (be.Errors[i] != nil || string(b.stored(receipts[i].Partition)[receipts[i].Index].Body) != string(msgs[i].Body)) ||
			want != nil && !errors.Is(be.Errors[i], want) {
			t.Errorf("message %d: %v, want %v", i, be.Errors[i], want)
		}
	}
	if len(b.stored(1)) != 0 {
		t.Error("a refused part is stored")
	}
	t.Log(err)
}

// What cannot be sent is refused before anything is.
func TestSendRefuses(t *testing.T) {
	b := newFakeBroker()
	b.topic("orders", 2)
	c, _ := start(t, b, false)
	p := producer(t, c, Timeout(30*time.Second))
	nine := uint16(9)
	for name, m := range map[string]*Message{
		"body":      {Body: make([]byte, wire.BodyBytesMax+1)},
		"key":       {Key: strings.Repeat("k", 256)},
		"order key": {OrderKey: strings.Repeat("k", 256)},
		"priority":  {Priority: 10},
		"id":        {ID: "no ulid"},
		"header":    {Headers: Headers{{Key: "jmq.x"}}},
		"partition": {Partition: &nine},
	} {
		_, err := p.Send(context.Background(), m)
		if err == nil || !errors.Is(err, ErrFailed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := p.Send(context.Background(), nil); !errors.Is(err, ErrInvalid) || !errors.Is(err, ErrFailed) {
		t.Errorf("nil: %v", err)
	}
	if _, err := p.SendBatch(context.Background(), []*Message{nil}); !errors.Is(err, ErrInvalid) {
		t.Errorf("batch with nil: %v", err)
	}
	var many []*Message
	for range wire.BatchMessagesMax + 1 {
		many = append(many, &Message{})
	}
	if _, err := p.SendBatch(context.Background(), many); !errors.Is(err, ErrFailed) || errors.Is(err, ErrUnknown) {
		t.Errorf("batch of 1001: %v", err)
	}
	if r, err := p.SendBatch(context.Background(), nil); r != nil || err != nil {
		t.Errorf("batch of none: %v, %v", r, err)
	}
	if n := len(b.batches()); n != 0 {
		t.Errorf("%d batches are stored", n)
	}
	if _, err := p.Send(context.Background(), &Message{Body: make([]byte, wire.BodyBytesMax)}); err != nil {
		t.Errorf("the largest body: %v", err)
	}
	q, err := c.Producer("missing")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.Send(context.Background(), &Message{}); !errors.Is(err, ErrNotFound) || !errors.Is(err, ErrFailed) {
		t.Errorf("a topic that is not there: %v", err)
	}
}

// A repeated send of unknown outcome keeps its id.
func TestSendAgainWithID(t *testing.T) {
	b := newFakeBroker()
	b.topic("orders", 1)
	c, _ := start(t, b, false)
	p := producer(t, c)
	r, err := p.Send(context.Background(), &Message{})
	if err != nil {
		t.Fatal(err)
	}
	r2, err := p.Send(context.Background(), &Message{ID: r.MessageID})
	if err != nil || r2.MessageID != r.MessageID {
		t.Fatalf("%+v, %v", r2, err)
	}
	if s := b.stored(0); s[0].ID != s[1].ID {
		t.Error("the ids differ")
	}
}

// A topic that gets more partitions is used whole once the old route is refused; one that gets fewer as well.
func TestRouteChanges(t *testing.T) {
	b := newFakeBroker()
	b.topic("orders", 8)
	c, _ := start(t, b, false)
	p := producer(t, c)
	for i := range 16 {
		if _, err := p.Send(context.Background(), &Message{OrderKey: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	b.mu.Lock()
	b.mu.topics["orders"] = b.mu.topics["orders"][:2]
	b.mu.Unlock()
	for i := range 16 {
		r, err := p.Send(context.Background(), &Message{OrderKey: fmt.Sprint(i)})
		if err != nil {
			t.Fatal(err)
		}
		if want := KeyPartition(fmt.Sprint(i), 2); i > 8 && r.Partition != want {
			t.Errorf("key %d went to %d, want %d", i, r.Partition, want)
		}
	}
}

// A broker that refuses until the time is over, and takes a moment for each answer: the send has failed. It is not unknown
// because the last attempt had less time than an answer takes.
func TestRefusedToTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBroker()
		b.topic("orders", 1)
		b.onProduce = func(_ *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) bool {
			time.AfterFunc(100*time.Millisecond, func() { done(nil, wire.Errorf(wire.CodePaused, "x")) })
			return true
		}
		c, _ := start(t, b, false)
		p := producer(t, c)
		for range 50 { // the pauses between attempts are random
			begun := time.Now()
			_, err := p.Send(context.Background(), &Message{})
			checkOutcome(t, err, false, ErrPaused)
			if took := time.Since(begun); took < 2*time.Second || took > 3*time.Second {
				t.Errorf("gave up after %v", took)
			}
		}
	})
}

// A producer learns of partitions that were added while it sends, by the answers, and asks no more than it must. Without a
// connection it goes on with what it knows.
func TestRouteIsRefreshed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &routeBroker{fakeBroker: newFakeBroker()}
		b.topic("orders", 1)
		s := newFakeServer(b.fakeBroker, false)
		s.h = wire.NewHandler(wire.Services{Broker: b, Admin: b}, wire.HandlerOptions{})
		c, err := Dial(context.Background(), "x", WithDialer(s.dial))
		if err != nil {
			t.Fatal(err)
		}
		p := producer(t, c)
		ctx := context.Background()
		begun := time.Now()
		var learnt time.Duration
		for time.Since(begun) < time.Minute {
			if time.Since(begun) == 20*time.Second {
				b.topic("orders", 2)
			}
			if time.Since(begun) == 40*time.Second {
				s.kill(true)
				s.up()
			}
			r, err := p.Send(ctx, &Message{})
			if err != nil {
				t.Fatal(err)
			}
			if r.Partition == 1 && learnt == 0 {
				learnt = time.Since(begun)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if learnt < 20*time.Second || learnt > 21*time.Second {
			t.Errorf("learnt of the new partition after %v, it was there after 20 s", learnt)
		}
		if n := b.routes.Load(); n != 2 {
			t.Errorf("asked %d times, at the begin and when there was another partition is 2", n)
		}
		if err := c.Close(ctx); err != nil {
			t.Error(err)
		}
		s.close()
	})
}

// routeBroker counts what is asked of it.
type routeBroker struct {
	*fakeBroker
	routes atomic.Int32
}

func (b *routeBroker) Route(ctx context.Context, r *wire.RouteRequest) (*wire.RouteResponse, error) {
	b.routes.Add(1)
	return b.fakeBroker.Route(ctx, r)
}

// What waits behind a batch is sent although the route was forgotten meanwhile, as by the deletion or alteration of the topic, or a send
// that found its partition gone.
func TestRouteIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBroker()
		b.topic("orders", 4)
		c, _ := start(t, b, false)
		p := producer(t, c)
		release := holdProduce(b)
		var got results
		const n = 50
		for i := range n {
			p.SendAsync(context.Background(), &Message{OrderKey: fmt.Sprint(i % 2), Body: []byte("x")}, got.done)
		}
		synctest.Wait()
		c.topic("orders").route.Store(nil)
		release()
		if err := p.Flush(context.Background()); err != nil {
			t.Fatal(err)
		}
		if got.count() != n || errors.Join(got.errs...) != nil {
			t.Fatalf("%d of %d were told: %v", got.count(), n, errors.Join(got.errs...))
		}
	})
}
