package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jmqio/jmq/wire"
)

// results collects what callbacks are told.
type results struct {
	sync.Mutex
	receipts []Receipt
	errs     []error
}

func (r *results) done(receipt Receipt, err error) {
	r.Lock()
	defer r.Unlock()
	r.receipts = append(r.receipts, receipt)
	r.errs = append(r.errs, err)
}

func (r *results) count() int {
	r.Lock()
	defer r.Unlock()
	return len(r.errs)
}

// holdProduce makes the broker keep all batches; what it returns stores those that came, and lets later ones through.
func holdProduce(b *fakeBroker) (release func()) {
	var mu sync.Mutex
	var held []func()
	open := false
	b.onProduce = func(r *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) bool {
		mu.Lock()
		defer mu.Unlock()
		if open {
			return false
		}
		kept := *r
		kept.Batch = slices.Clone(r.Batch)
		held = append(held, func() { done(b.store(&kept)) })
		return true
	}
	return func() {
		mu.Lock()
		open = true
		all := held
		mu.Unlock()
		for _, store := range all {
			store()
		}
	}
}

// The messages of an order key are stored in the order of the calls, and told in it; those that are sent while a batch is
// under way go together in the next one. The caller may use message and body again at once.
func TestAsyncGathersInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBroker()
		b.topic("orders", 4)
		c, _ := start(t, b, false)
		p := producer(t, c)
		ctx := context.Background()
		release := holdProduce(b)
		const n = 500
		var got results
		m := &Message{OrderKey: "k", Body: make([]byte, 3), Headers: Headers{{Key: "h"}}}
		for i := range n {
			copy(m.Body, fmt.Sprintf("%03d", i))
			m.Headers[0].Value = string(m.Body)
			p.SendAsync(ctx, m, got.done)
		}
		synctest.Wait()
		if got.count() != 0 {
			t.Errorf("%d outcomes before the broker's", got.count())
		}
		release()
		if err := p.Flush(ctx); err != nil {
			t.Fatal(err)
		}
		part := KeyPartition("k", 4)
		stored := b.stored(part)
		if len(stored) != n || got.count() != n {
			t.Fatalf("%d stored, %d outcomes, want %d", len(stored), got.count(), n)
		}
		for i, s := range stored {
			want := fmt.Sprintf("%03d", i)
			if string(s.Body) != want || s.Headers[0].Value != want {
				t.Errorf("at %d: %q, %v", i, s.Body, s.Headers)
			}
			r := got.receipts[i]
			if got.errs[i] != nil || r.Index != uint64(i) || r.Partition != part || r.MessageID == "" || r.Topic != "orders" || r.Attempts != 1 || r.BrokerGroup != "bg1" || r.StoredAt.IsZero() {
				t.Errorf("receipt %d: %+v, %v", i, r, got.errs[i])
			}
		}
		if batches := b.batches(); len(batches) != 2 || len(batches[1].messages) != n-1 {
			t.Errorf("%d batches", len(batches))
		}
	})
}

// Without order key a few batches are under way at a time, and gather the others. Messages of Send and SendAsync keep their
// order.
func TestAsyncWithoutKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBroker()
		b.topic("orders", 8)
		c, _ := start(t, b, false)
		p := producer(t, c)
		ctx := context.Background()
		release := holdProduce(b)
		for range 100 {
			if err := p.SendOneway(ctx, &Message{Body: []byte("x")}); err != nil {
				t.Fatal(err)
			}
		}
		release()
		if err := p.Flush(ctx); err != nil {
			t.Fatal(err)
		}
		batches := b.batches()
		most := 0
		for _, batch := range batches {
			most = max(most, len(batch.messages))
		}
		if len(batches) != asyncWidth+1 || most != 100-asyncWidth {
			t.Errorf("%d batches, the largest of %d messages", len(batches), most)
		}
		release = holdProduce(b)
		for i := range 6 {
			m := &Message{OrderKey: "k", Body: fmt.Append(nil, i)}
			if i%2 == 0 {
				p.SendAsync(ctx, m, nil)
				continue
			}
			go p.Send(ctx, m)
			synctest.Wait()
		}
		release()
		synctest.Wait()
		stored := b.stored(KeyPartition("k", 8))
		for i, s := range stored[len(stored)-6:] {
			if string(s.Body) != fmt.Sprint(i) {
				t.Errorf("at %d: %q", i, s.Body)
			}
		}
	})
}

// A full buffer makes callers wait, first come, first served, until their ctx ends or there is room; or refuses.
func TestAsyncBuffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBroker()
		b.topic("orders", 1)
		c, _ := start(t, b, false)
		ctx := context.Background()
		release := holdProduce(b)
		for name, o := range map[string]ProducerOption{"messages": Buffer(2, 1<<20), "bytes": Buffer(100, 2*(&Message{}).size())} {
			p := producer(t, c, o, BusyWhenFull(), Timeout(time.Hour))
			var got results
			for range 3 {
				p.SendAsync(ctx, &Message{}, got.done)
			}
			if got.count() != 1 {
				t.Fatalf("%s: %d outcomes: %v", name, got.count(), got.errs)
			}
			checkOutcome(t, got.errs[0], false, ErrBusy)
			if got.receipts[0].MessageID == "" {
				t.Errorf("%s: no id", name)
			}
			checkOutcome(t, p.SendOneway(ctx, &Message{}), false, ErrBusy)
		}
		p := producer(t, c, Buffer(2, 1<<20), Timeout(time.Hour))
		var got results
		for range 2 {
			p.SendAsync(ctx, &Message{}, got.done)
		}
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		begun := time.Now()
		checkOutcome(t, p.SendOneway(short, &Message{}), false, context.DeadlineExceeded)
		if time.Since(begun) != time.Second {
			t.Errorf("waited for %v", time.Since(begun))
		}
		var order results
		for i := range 4 {
			go func() {
				if err := p.SendOneway(ctx, &Message{OrderKey: "k", Body: fmt.Append(nil, i)}); err != nil {
					t.Error(err)
				}
				order.done(Receipt{Index: uint64(i)}, nil)
			}()
			synctest.Wait()
		}
		if order.count() != 0 {
			t.Fatalf("%d came in", order.count())
		}
		release()
		synctest.Wait()
		if order.count() != 4 || got.count() != 2 || got.errs[0] != nil {
			t.Errorf("%d of 4 came in, outcomes %v", order.count(), got.errs)
		}
		if err := p.Flush(ctx); err != nil {
			t.Error(err)
		}
		p = producer(t, c, Buffer(1, 1)) // one message always has room
		if err := p.SendOneway(ctx, &Message{Body: []byte("large")}); err != nil {
			t.Error(err)
		}
	})
}

// What can be known at once is told at once, and nothing is kept of it.
func TestAsyncRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBroker()
		b.topic("orders", 1)
		c, _ := start(t, b, false)
		p := producer(t, c)
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		for name, r := range map[string]struct {
			ctx  context.Context
			m    *Message
			want error
		}{
			"nil":       {context.Background(), nil, ErrInvalid},
			"id":        {context.Background(), &Message{ID: "x"}, ErrInvalid},
			"priority":  {context.Background(), &Message{Priority: 10}, ErrInvalid},
			"body":      {context.Background(), &Message{Body: make([]byte, wire.BodyBytesMax+1)}, ErrTooLarge},
			"partition": {context.Background(), &Message{Partition: new(uint16(9))}, ErrNotFound},
			"ctx":       {ended, &Message{}, context.Canceled},
		} {
			checkOutcome(t, p.SendOneway(r.ctx, r.m), false, r.want)
			var got results
			p.SendAsync(r.ctx, r.m, got.done)
			if got.count() != 1 {
				t.Fatalf("%s: the callback was not called at once", name)
			}
			checkOutcome(t, got.errs[0], false, r.want)
		}
		if err := p.Flush(context.Background()); err != nil {
			t.Error(err)
		}
		if n := p.async.mu.messages + p.async.mu.bytes + len(b.batches()); n != 0 {
			t.Errorf("%d left", n)
		}
		if err := c.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		checkOutcome(t, p.SendOneway(context.Background(), &Message{}), false, ErrClosed)
	})
}

// Each outcome of a Send is that of a SendAsync too. Behind a broker that does not answer the time of those that wait runs
// as well: they are not sent late.
func TestAsyncOutcomes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBroker()
		b.topic("orders", 1)
		c, _ := start(t, b, false)
		p := producer(t, c, Timeout(3*time.Second))
		ctx := context.Background()
		for _, r := range []struct {
			code    wire.Code
			unknown bool
			want    error
		}{
			{wire.CodePaused, false, ErrPaused}, {wire.CodeInvalid, false, ErrInvalid}, {wire.CodeNoSpace, false, ErrDiskFull}, {wire.CodeUnknown, true, nil},
		} {
			b.onProduce = func(_ *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) bool {
				done(nil, wire.Errorf(r.code, "x"))
				return true
			}
			begun := time.Now()
			var got results
			for range 3 {
				p.SendAsync(ctx, &Message{OrderKey: "k"}, got.done)
			}
			if err := p.Flush(ctx); err != nil || got.count() != 3 {
				t.Fatalf("%v, %d outcomes", err, got.count())
			}
			for i, err := range got.errs {
				if unknown := r.unknown && got.receipts[i].Attempts > 0; unknown || i == 0 || !errors.Is(err, ErrTimeout) {
					checkOutcome(t, err, unknown, r.want)
				}
			}
			if took := time.Since(begun); took > 4*time.Second {
				t.Errorf("%v: told after %v", r.code, took)
			}
		}
		b.onProduce = func(*wire.ProduceRequest, func(*wire.ProduceResponse, error)) bool { return true }
		begun := time.Now()
		var got results
		for range 2 {
			p.SendAsync(ctx, &Message{OrderKey: "k"}, got.done)
			time.Sleep(2 * time.Second) // of the fake clock
		}
		if err := p.Flush(ctx); err != nil || time.Since(begun) > 6*time.Second {
			t.Fatalf("%v after %v", err, time.Since(begun))
		}
		checkOutcome(t, got.errs[0], true, nil)
		checkOutcome(t, got.errs[1], true, nil) // it had its try
	})
}

// Each callback is called once, also when the client is closed: with the outcome if the broker gives it in time, else as
// unknown or not sent.
func TestAsyncClose(t *testing.T) {
	for _, answered := range []bool{true, false} {
		t.Run(fmt.Sprint("answered=", answered), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newFakeBroker()
				b.topic("orders", 1)
				c, _ := start(t, b, false)
				p := producer(t, c, Timeout(time.Minute))
				release := holdProduce(b)
				var got results
				const n = 50
				for range n {
					p.SendAsync(context.Background(), &Message{OrderKey: "k"}, got.done)
				}
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				if answered {
					time.AfterFunc(time.Millisecond, release)
				}
				if err := c.Close(ctx); (err == nil) != answered {
					t.Errorf("close: %v", err)
				}
				if got.count() != n {
					t.Fatalf("%d outcomes of %d", got.count(), n)
				}
				for i, err := range got.errs {
					switch {
					case answered && err != nil:
						t.Errorf("message %d: %v", i, err)
					case !answered:
						checkOutcome(t, err, i == 0, nil)
					}
				}
			})
		})
	}
}

// A callback that hangs keeps the other callbacks, but not Close, for ever.
func TestAsyncCallbackHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBroker()
		b.topic("orders", 1)
		c, s := start(t, b, false)
		p := producer(t, c)
		end := make(chan struct{})
		p.SendAsync(context.Background(), &Message{}, func(Receipt, error) { <-end })
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := p.Flush(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("flush: %v", err)
		}
		if err := c.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("close: %v", err)
		}
		close(end)
		synctest.Wait()
		s.close()
	})
}

// Flush waits for what was sent before it, and not for what is sent while it waits.
func TestFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBroker()
		b.topic("orders", 2)
		c, _ := start(t, b, false)
		p := producer(t, c, Timeout(time.Hour))
		ctx := context.Background()
		if err := p.Flush(ctx); err != nil { // nothing
			t.Fatal(err)
		}
		var held []func()
		b.onProduce = func(r *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) bool {
			kept := *r
			kept.Batch = slices.Clone(r.Batch)
			held = append(held, func() { done(b.store(&kept)) })
			return true
		}
		flushed := make([]bool, 2)
		for i := range flushed {
			p.SendAsync(ctx, &Message{Partition: new(uint16(i))}, nil)
			go func() {
				if err := p.Flush(ctx); err != nil {
					t.Error(err)
				}
				flushed[i] = true
			}()
			synctest.Wait()
		}
		for i, want := range [][]bool{{true, false}, {true, true}} {
			held[i]()
			synctest.Wait()
			if !slices.Equal(flushed, want) {
				t.Errorf("after outcome %d: %v, want %v", i, flushed, want)
			}
		}
	})
}

// A pending that is used again begins at nothing: what was counted for its former send is not merged, or compressed, by.
func TestPendingIsEmptyAgain(t *testing.T) {
	c := new(Client)
	p := c.pending(nil)
	p.msgs, p.size, p.async, p.done, p.epoch = p.one[:], 7, new(asyncProducer), func(Receipt, error) {}, new(sendEpoch)
	c.putPending(p)
	if p.msgs != nil || p.size != 0 || p.async != nil || p.done != nil || p.epoch != nil {
		t.Errorf("%+v", p)
	}
}
