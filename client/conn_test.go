package client

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jmqio/jmq/wire"
)

// Dial says why it cannot, within its time; with several addresses one that answers is enough.
func TestDial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refuse := func(context.Context, string) (net.Conn, error) { return nil, errDown }
		_, err := Dial(context.Background(), "a:1", WithDialer(refuse))
		if !errors.Is(err, ErrDisconnected) || !strings.Contains(err.Error(), "a:1") || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("refused: %v", err)
		}

		hang := func(ctx context.Context, _ string) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }
		begun := time.Now()
		if _, err = Dial(context.Background(), "a:1", WithDialer(hang), WithDialTimeout(2*time.Second)); err == nil || time.Since(begun) != 2*time.Second {
			t.Errorf("no answer: %v after %v", err, time.Since(begun))
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		begun = time.Now()
		if _, err = Dial(ctx, "a:1", WithDialer(hang)); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != time.Second {
			t.Errorf("context: %v after %v", err, time.Since(begun))
		}

		// Someone who takes connections and says nothing.
		mute := func(context.Context, string) (net.Conn, error) {
			c, s := net.Pipe()
			go func() {
				for b := make([]byte, 1024); ; {
					if _, err := s.Read(b); err != nil {
						return
					}
				}
			}()
			return c, nil
		}
		if _, err = Dial(context.Background(), "a:1", WithDialer(mute)); !errors.Is(err, ErrTimeout) {
			t.Errorf("no hello: %v", err)
		}

		b := newFakeBroker()
		b.topic("orders", 1)
		s := newFakeServer(b, false)
		defer s.close()
		second := func(ctx context.Context, addr string) (net.Conn, error) {
			if addr != "b:2" {
				return nil, errDown
			}
			return s.dial(ctx, addr)
		}
		c, err := Dial(context.Background(), "a:1,b:2", WithDialer(second), WithConns(3))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := producer(t, c).Send(context.Background(), &Message{}); err != nil {
			t.Error(err)
		}
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// A send during an outage shorter than its time is ok; during a longer one it fails, and is not unknown: it was not sent.
func TestSendDuringOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBroker()
		b.topic("orders", 1)
		c, s := start(t, b, false)
		p := producer(t, c)
		if _, err := p.Send(context.Background(), &Message{}); err != nil {
			t.Fatal(err)
		}
		s.kill(true)
		synctest.Wait()
		time.AfterFunc(time.Second, s.up)
		begun := time.Now()
		r, err := p.Send(context.Background(), &Message{})
		if err != nil || r.Attempts != 1 || time.Since(begun) < time.Second {
			t.Errorf("short: %+v, %v after %v", r, err, time.Since(begun))
		}
		s.kill(true)
		synctest.Wait()
		begun = time.Now()
		_, err = p.Send(context.Background(), &Message{})
		checkOutcome(t, err, false, ErrDisconnected)
		if s := err.Error(); strings.Count(s, wire.CodeDisconnected.String()) != 1 {
			t.Errorf("says it more than once: %s", s)
		}
		if took := time.Since(begun); took > 3*time.Second || took < 2500*time.Millisecond {
			t.Errorf("long: after %v", took)
		}
		time.Sleep(time.Minute)
		s.up()
		time.Sleep(2 * time.Second)
		if _, err := p.Send(context.Background(), &Message{}); err != nil {
			t.Errorf("after it: %v", err)
		}
		if n := len(b.stored(0)); n != 3 {
			t.Errorf("%d stored, want 3", n)
		}
	})
}

// A connection that ends between request and answer: the attempt is unknown, the next one ok, and the receipt says so.
func TestConnectionLostBeforeAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBroker()
		b.topic("orders", 1)
		c, s := start(t, b, false)
		p := producer(t, c)
		var once sync.Once
		b.onProduce = func(r *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) (handled bool) {
			once.Do(func() {
				if _, err := b.store(r); err != nil {
					t.Error(err)
				}
				go s.kill(false)
				handled = true
			})
			return handled
		}
		r, err := p.Send(context.Background(), &Message{})
		if err != nil || r.Attempts != 2 || r.Unknown != 1 {
			t.Errorf("%+v, %v", r, err)
		}
		if s := b.stored(0); len(s) != 2 || s[0].ID != s[1].ID {
			t.Errorf("stored %v", s)
		}
	})
}

// A peer that is silent is noticed by pings, and connected to again.
func TestKeepAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBroker()
		b.topic("orders", 1)
		s := newFakeServer(b, false)
		defer s.close()
		var mu sync.Mutex
		silent, dials := false, 0
		dial := func(ctx context.Context, addr string) (net.Conn, error) {
			mu.Lock()
			defer mu.Unlock()
			dials++
			nc, err := s.dial(ctx, addr)
			return &silencedConn{Conn: nc, silent: func() bool { mu.Lock(); defer mu.Unlock(); return silent && dials == 1 }}, err
		}
		c, err := Dial(context.Background(), "x", WithDialer(dial), WithConns(1))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		mu.Lock()
		if silent = true; dials != 1 {
			t.Errorf("%d dials in five idle minutes", dials)
		}
		mu.Unlock()
		time.Sleep(time.Minute)
		mu.Lock()
		if dials != 2 {
			t.Errorf("%d dials after a silent minute", dials)
		}
		mu.Unlock()
		if _, err := producer(t, c).Send(context.Background(), &Message{}); err != nil {
			t.Error(err)
		}
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// silencedConn drops what it reads while silent.
type silencedConn struct {
	net.Conn
	silent func() bool
}

func (c *silencedConn) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		if err != nil || !c.silent() {
			return n, err
		}
	}
}

// Close waits for sends under way, refuses new ones, and when its context ends cuts off what is left, as unknown.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBroker()
		b.topic("orders", 1)
		b.onProduce = func(r *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) bool {
			time.AfterFunc(500*time.Millisecond, func() { done(&wire.ProduceResponse{FirstIndex: 1}, nil) })
			return true
		}
		c, _ := start(t, b, false)
		p := producer(t, c)
		results := make(chan error, 10)
		send := func(key string) {
			_, err := p.Send(context.Background(), &Message{OrderKey: key})
			results <- err
		}
		go send("")
		go send("k")
		synctest.Wait()
		go send("k") // waits behind the other
		synctest.Wait()
		begun := time.Now()
		go func() {
			synctest.Wait()
			send("")
		}()
		if err := c.Close(context.Background()); err != nil || time.Since(begun) != time.Second {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
		refused := 0
		for range 4 {
			if err := <-results; err != nil {
				refused++
				checkOutcome(t, err, false, ErrClosed)
			}
		}
		if refused != 1 {
			t.Errorf("%d refused", refused)
		}
		if err := c.Close(context.Background()); err != nil {
			t.Errorf("again: %v", err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBroker()
		b.topic("orders", 1)
		b.onProduce = func(*wire.ProduceRequest, func(*wire.ProduceResponse, error)) bool { return true }
		c, s := start(t, b, false)
		p := producer(t, c)
		results := make(chan error, 2)
		for _, key := range []string{"", "k"} {
			go func() {
				_, err := p.Send(context.Background(), &Message{OrderKey: key})
				results <- err
			}()
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		begun := time.Now()
		if err := c.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) > 200*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
		for range 2 {
			checkOutcome(t, <-results, true, nil)
		}
		s.close()
	})
}

// Cluster is a wire.Broker at a distance: answers come by done, exactly once, and ctx ends the wait.
func TestClusterAsBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBroker()
		b.topic("orders", 1)
		c, s := start(t, b, false)
		var broker wire.Broker = c.Cluster()
		ctx := context.Background()
		if _, err := broker.Subscribe(ctx, &wire.SubscribeRequest{Topic: "orders", Group: "g", Start: wire.StartBeginning}); err != nil {
			t.Fatal(err)
		}
		if r, err := broker.Route(ctx, &wire.RouteRequest{Topic: "orders"}); err != nil || len(r.Partitions) != 1 {
			t.Fatalf("%v, %v", r, err)
		}
		batch, err := wire.AppendBatch(nil, [16]byte{}, 0, []wire.Message{{Body: []byte("x")}})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		broker.Produce(ctx, &wire.ProduceRequest{Topic: "orders", Batch: batch}, func(r *wire.ProduceResponse, err error) { done <- err })
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		var lease wire.FetchResponse
		fetch := &wire.FetchRequest{Topic: "orders", Group: "g", Member: 1, MessagesMax: 1, WaitMs: 10_000}
		broker.Fetch(ctx, fetch, func(r *wire.FetchResponse, err error) {
			if err == nil {
				lease = *r
			}
			done <- err
		})
		if err := <-done; err != nil || lease.To != 1 {
			t.Fatalf("%+v, %v", lease, err)
		}
		broker.Ack(ctx, &wire.AckRequest{Topic: "orders", Group: "g", Member: 1, Items: []wire.AckRange{{Lease: lease.Lease, To: 1, Outcome: wire.Acked}}}, func(r *wire.AckResponse, err error) {
			if err == nil && r.Codes[0] != wire.CodeOK {
				t.Errorf("codes %v", r.Codes)
			}
			done <- err
		})
		if err := <-done; err != nil {
			t.Fatal(err)
		}

		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		broker.Fetch(short, fetch, func(r *wire.FetchResponse, err error) { done <- err })
		if err := <-done; wire.CodeOf(err) != wire.CodeTimeout {
			t.Errorf("fetch: %v", err)
		}
		broker.Produce(ctx, &wire.ProduceRequest{Topic: "orders", Batch: batch}, func(r *wire.ProduceResponse, err error) { done <- err })
		<-done
		synctest.Wait()
		broker.Fetch(ctx, fetch, func(r *wire.FetchResponse, err error) { done <- err })
		if err := <-done; err != nil {
			t.Errorf("the lease of the fetch that was given up was not given back: %v", err)
		}
		b.onProduce = func(*wire.ProduceRequest, func(*wire.ProduceResponse, error)) bool { return true }
		broker.Produce(short, &wire.ProduceRequest{Topic: "orders", Batch: batch}, func(r *wire.ProduceResponse, err error) { done <- err })
		if err := <-done; wire.CodeOf(err) != wire.CodeTimeout { // the context had ended before: nothing was sent
			t.Errorf("produce: %v", err)
		}
		short2, cancel2 := context.WithTimeout(ctx, time.Second)
		defer cancel2()
		broker.Produce(short2, &wire.ProduceRequest{Topic: "orders", Batch: batch}, func(r *wire.ProduceResponse, err error) { done <- err })
		if err := <-done; wire.CodeOf(err) != wire.CodeUnknown {
			t.Errorf("produce: %v", err)
		}
		s.kill(true)
		synctest.Wait()
		broker.Produce(ctx, &wire.ProduceRequest{Topic: "orders", Batch: batch}, func(r *wire.ProduceResponse, err error) { done <- err })
		if err := <-done; wire.CodeOf(err) != wire.CodeDisconnected {
			t.Errorf("produce: %v", err)
		}
	})
}

// Topics are made and listed.
func TestTopics(t *testing.T) {
	b := newFakeBroker()
	c, _ := start(t, b, false)
	ctx := context.Background()
	if err := c.CreateTopic(ctx, "a/b", 1); !errors.Is(err, ErrInvalid) {
		t.Errorf("%v", err)
	}
	if err := c.CreateTopic(ctx, "a", 0); !errors.Is(err, ErrInvalid) {
		t.Errorf("%v", err)
	}
	if err := c.CreateTopic(ctx, "a", 3); err != nil {
		t.Fatal(err)
	}
	topics, err := c.ListTopics(ctx)
	if err != nil || len(topics) != 1 || topics[0].Name != "a" || topics[0].Partitions != 3 {
		t.Errorf("%v, %v", topics, err)
	}
}
