package client_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/server"
	"github.com/jmqio/jmq/server/servertest"
)

// dial returns a client of a real broker, both of which end with the test.
func dial(t *testing.T, opts ...client.Option) *client.Client {
	t.Helper()
	s := servertest.Start(t, func(c *server.Config) { c.Node.Admin.Listen = "127.0.0.1:0" })
	cl, err := client.Dial(context.Background(), s.Address(), append([]client.Option{client.WithApp("app")}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cl.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return cl
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// The life of a topic: made with settings, filled, looked at, altered, paused, deleted, and made again.
func TestTopicLife(t *testing.T) {
	ctx := t.Context()
	cl := dial(t)
	if err := cl.CreateTopic(ctx, "orders", 2, client.Retention(time.Hour), client.RetentionBytes(1<<30)); err != nil {
		t.Fatal(err)
	}
	p := must[*client.Producer](t)(cl.Producer("orders", client.Timeout(2*time.Second)))
	var receipts []client.Receipt
	for i := range 3 {
		receipts = append(receipts, must[client.Receipt](t)(p.Send(ctx, &client.Message{Partition: new(uint16(1)), Key: fmt.Sprint("order-", i), Body: fmt.Append(nil, i)})))
	}
	got := must[client.Peeked](t)(cl.Peek(ctx, "orders", client.Peek{Partition: 1, Index: 1, Messages: 10}))
	if len(got.Messages) != 2 || got.From != 1 || got.To != 3 || got.End != 3 || got.Messages[0].ID != receipts[1].MessageID || got.Messages[0].Key != "order-1" ||
		string(got.Messages[1].Body) != "2" || !got.Messages[1].StoredAt.Equal(receipts[2].StoredAt) {
		t.Errorf("%+v", got)
	}
	if got = must[client.Peeked](t)(cl.Peek(ctx, "orders", client.Peek{Partition: 1, Time: receipts[2].StoredAt})); len(got.Messages) != 1 || got.Messages[0].Index != 2 {
		t.Errorf("by time: %+v", got)
	}
	topic := must[client.Topic](t)(cl.AlterTopic(ctx, "orders", "it grew", client.Partitions(4), client.PauseProduce(true)))
	if topic.Partitions != 4 || !topic.Settings.PauseProduce || topic.Settings.Retention != time.Hour {
		t.Errorf("%+v", topic)
	}
	begun := time.Now()
	if _, err := p.Send(ctx, &client.Message{}); !errors.Is(err, client.ErrPaused) || !errors.Is(err, client.ErrFailed) || time.Since(begun) > 3*time.Second {
		t.Errorf("paused: %v after %v", err, time.Since(begun))
	}
	must[client.Topic](t)(cl.AlterTopic(ctx, "orders", "", client.PauseProduce(false)))
	if r := must[client.Receipt](t)(p.Send(ctx, &client.Message{Partition: new(uint16(3))})); r.Partition != 3 || r.Index != 0 {
		t.Errorf("to a new partition: %+v", r)
	}
	if err := cl.DeleteTopic(ctx, "orders", "moved"); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Send(ctx, &client.Message{}); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("deleted: %v", err)
	}
	if err := cl.CreateTopic(ctx, "orders", 1); err != nil {
		t.Fatal(err)
	}
	again := must[[]client.Topic](t)(cl.ListTopics(ctx))
	if len(again) != 1 || again[0].Incarnation == topic.Incarnation {
		t.Errorf("%+v after %+v", again, topic)
	}
	if r := must[client.Receipt](t)(p.Send(ctx, &client.Message{})); r.Index != 0 {
		t.Errorf("in the new topic: %+v", r)
	}
}

// The life of a group: it consumes, is moved by each kind of seek, made parallel, and removed.
func TestGroupLife(t *testing.T) {
	ctx := t.Context()
	cl := dial(t)
	if err := cl.CreateTopic(ctx, "orders", 1); err != nil {
		t.Fatal(err)
	}
	p := must[*client.Producer](t)(cl.Producer("orders"))
	k := must[*client.Consumer](t)(cl.Consumer("orders", client.Start(client.FromBeginning), client.PollWait(time.Second)))
	var receipts []client.Receipt
	for i := range 10 {
		receipts = append(receipts, must[client.Receipt](t)(p.Send(ctx, &client.Message{Body: fmt.Append(nil, i)})))
	}
	n := 0
	for d, err := range k.Messages(ctx) {
		if err != nil || d.Attempt != 1 || d.Ack(ctx) != nil {
			t.Fatalf("%+v, %v", d, err)
		}
		if n++; n == 6 {
			break
		}
	}
	lags := must[[]client.PartitionLag](t)(k.Lag(ctx))
	if len(lags) != 1 || lags[0].Lag != 4 || lags[0].AckOffset != 6 || lags[0].Leased != 0 || !lags[0].Oldest.Equal(receipts[6].StoredAt) {
		t.Errorf("%+v", lags)
	}
	at := uint64(6)
	for _, s := range []struct {
		client.Seek
		to  uint64
		cut bool
	}{
		{client.Seek{To: client.SeekStart}, 0, false},
		{client.Seek{To: client.SeekIndex, Index: 8}, 8, false},
		{client.Seek{To: client.SeekShift, Shift: -3}, 5, false},
		{client.Seek{To: client.SeekShift, Shift: -30}, 0, true},
		{client.Seek{To: client.SeekIndex, Index: 99}, 10, true},
		{client.Seek{To: client.SeekTime, Time: receipts[3].StoredAt}, 3, false},
		{client.Seek{To: client.SeekEnd}, 10, false},
		{client.Seek{To: client.SeekTime}, 0, false},
	} {
		for _, dry := range []bool{true, false} {
			s.Seek.DryRun, s.Reason = dry, fmt.Sprint("to ", s.to)
			got := must[[]client.PartitionSeek](t)(k.Seek(ctx, s.Seek))
			if len(got) != 1 || got[0].From != at || got[0].To != s.to || got[0].Cut != s.cut || got[0].LagTo != 10-s.to {
				t.Errorf("%+v: %+v, from %d", s, got, at)
			}
		}
		at = s.to
		if ds, err := k.Fetch(ctx, 1, client.Wait(0)); err != nil || (len(ds) == 1) != (at < 10) || len(ds) == 1 && ds[0].Index != at {
			t.Errorf("%+v: fetched %v, %v", s, ds, err)
		} else if len(ds) == 1 {
			if err := ds[0].Release(ctx); err != nil {
				t.Error(err)
			}
		}
	}
	// A lease of before a reset is not good any more.
	ds := must[[]*client.Delivery](t)(k.Fetch(ctx, 3))
	if err := ds[0].Extend(ctx, time.Hour); err != nil || time.Until(ds[0].Deadline) < 50*time.Minute {
		t.Errorf("extend: %v, %v", err, ds[0].Deadline)
	}
	if err := cl.RemoveGroup(ctx, "orders", "app", "", false); !errors.Is(err, client.ErrMembers) {
		t.Errorf("with members: %v", err)
	}
	must[[]client.PartitionSeek](t)(k.Seek(ctx, client.Seek{To: client.SeekStart, Reason: "again"}))
	if err := ds[0].Ack(ctx); !errors.Is(err, client.ErrLeaseExpired) {
		t.Errorf("ack after a reset: %v", err)
	}

	parallel := must[*client.Consumer](t)(cl.Consumer("orders", client.Parallel(6)))
	a := must[[]*client.Delivery](t)(parallel.Fetch(ctx, 2))
	b := must[[]*client.Delivery](t)(k.Fetch(ctx, 2))
	if len(a) != 2 || len(b) != 2 || a[0].Index == b[0].Index {
		t.Errorf("two members of one partition: %v, %v", a, b)
	}
	if err := parallel.Ack(ctx, a...); err != nil {
		t.Error(err)
	}
	if err := k.Ack(ctx, b...); err != nil {
		t.Error(err)
	}
	groups := must[[]client.GroupSummary](t)(cl.ListGroups(ctx, "", ""))
	if len(groups) != 1 || groups[0].Topic != "orders" || groups[0].Group != "app" || groups[0].Policy != (client.GroupPolicy{Parallel: true, Window: 6}) || groups[0].Lag != 6 ||
		groups[0].LastReset == nil || groups[0].LastReset.Reason != "again" {
		t.Errorf("%+v", groups)
	}
	if policy := must[client.GroupPolicy](t)(cl.AlterGroup(ctx, "orders", "app", client.GroupPolicy{}, "in order")); policy.Parallel {
		t.Errorf("%+v", policy)
	}
	if err := cl.RemoveGroup(ctx, "orders", "app", "done", true); err != nil {
		t.Fatal(err)
	}
	if groups := must[[]client.GroupSummary](t)(cl.ListGroups(ctx, "orders", "")); len(groups) != 0 {
		t.Errorf("%+v", groups)
	}
	if _, err := cl.SeekGroup(ctx, "orders", "app", client.Seek{To: client.SeekEnd}); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("seek of a removed group: %v", err)
	}
	if ds := must[[]*client.Delivery](t)(k.Fetch(ctx, 1, client.Wait(time.Second))); len(ds) != 1 || ds[0].Index != 0 {
		t.Errorf("the group begins anew: %v", ds)
	}
}

// Asynchronous sends of several goroutines at the real broker: all are stored, each key in its order.
func TestAsyncAtBroker(t *testing.T) {
	ctx := t.Context()
	cl := dial(t)
	if err := cl.CreateTopic(ctx, "orders", 4); err != nil {
		t.Fatal(err)
	}
	p := must[*client.Producer](t)(cl.Producer("orders", client.Buffer(100, 1<<20)))
	const goroutines, each = 4, 500
	ended := make(chan struct{})
	stored := 0
	for g := range goroutines {
		go func() {
			defer func() { ended <- struct{}{} }()
			for i := range each {
				p.SendAsync(ctx, &client.Message{OrderKey: fmt.Sprint("key-", g), Body: fmt.Append(nil, i)}, func(_ client.Receipt, err error) {
					if err != nil {
						t.Error(err)
						return
					}
					stored++
				})
			}
		}()
	}
	for range goroutines {
		<-ended
	}
	if err := p.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	if stored != goroutines*each {
		t.Errorf("%d of %d stored", stored, goroutines*each)
	}
	k := must[*client.Consumer](t)(cl.Consumer("orders", client.Start(client.FromBeginning), client.Batch(100)))
	next := map[string]int{}
	n := 0
	var left []*client.Delivery
	for d, err := range k.Messages(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprint(next[d.OrderKey]); string(d.Body) != want {
			t.Fatalf("%s: got %s, want %s", d.OrderKey, d.Body, want)
		}
		next[d.OrderKey]++
		left = append(left, d)
		if n++; n%50 == 0 {
			if err := k.Ack(ctx, left...); err != nil {
				t.Fatal(err)
			}
			left = slices.Delete(left, 0, len(left))
		}
		if n == goroutines*each {
			break
		}
	}
}

// A group that is moved back while it works gets its messages again and comes to the end; a pause in between loses nothing.
func TestSeekUnderRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cl := dial(t)
	if err := cl.CreateTopic(ctx, "orders", 2); err != nil {
		t.Fatal(err)
	}
	p := must[*client.Producer](t)(cl.Producer("orders"))
	const n = 400
	for range n {
		p.SendAsync(ctx, &client.Message{}, nil)
	}
	if err := p.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	k := must[*client.Consumer](t)(cl.Consumer("orders", client.Start(client.FromBeginning), client.Concurrency(2), client.PollWait(time.Second)))
	var mu sync.Mutex
	handled, since := 0, map[string]bool{} // since: ids, from the last seek on
	half := make(chan struct{})
	all := make(chan struct{})
	moved := false
	ended := make(chan error)
	go func() {
		ended <- k.Run(ctx, func(ctx context.Context, d *client.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			since[d.ID] = true
			if handled++; handled == n/2 {
				close(half)
			}
			if moved && len(since) == n {
				close(all)
				moved = false
			}
			return nil
		})
	}()
	<-half
	k.Pause()
	mu.Lock()
	clear(since)
	moved = true
	mu.Unlock()
	seeks := must[[]client.PartitionSeek](t)(k.Seek(ctx, client.Seek{To: client.SeekStart, Reason: "once more"}))
	if len(seeks) != 2 || seeks[0].To != 0 || seeks[1].To != 0 || seeks[0].LagTo+seeks[1].LagTo != n {
		t.Errorf("%+v", seeks)
	}
	k.Resume()
	<-all
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for _, l := range must[[]client.PartitionLag](t)(k.Lag(context.Background())) {
		if l.Lag != 0 || l.Leased != 0 || l.Generation == 0 {
			t.Errorf("%+v", l)
		}
	}
}

// Handlers of a parallel group work on one partition at the same time, each message is handled once, and one that hangs holds up
// no others.
func TestParallelRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cl := dial(t)
	if err := cl.CreateTopic(ctx, "orders", 1); err != nil {
		t.Fatal(err)
	}
	p := must[*client.Producer](t)(cl.Producer("orders"))
	const n = 300
	for range n {
		p.SendAsync(ctx, &client.Message{}, nil)
	}
	if err := p.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	k := must[*client.Consumer](t)(cl.Consumer("orders", client.Start(client.FromBeginning), client.Concurrency(4), client.Parallel(100), client.Batch(5),
		client.PollWait(time.Second)))
	var mu sync.Mutex
	got := map[uint64]int{}
	others := make(chan struct{})
	if err := k.Run(ctx, func(ctx context.Context, d *client.Delivery) error {
		mu.Lock()
		got[d.Index]++
		count := len(got)
		mu.Unlock()
		if count == n-4 { // all but what is leased with the one that hangs, which may be the last to come
			close(others)
		}
		if d.Index == 0 {
			<-others
			cancel()
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for index, times := range got {
		if times != 1 {
			t.Errorf("message %d came %d times", index, times)
		}
	}
	lags := must[[]client.PartitionLag](t)(k.Lag(context.Background()))
	if len(lags) != 1 || lags[0].Lag != 4 || lags[0].Leased != 0 {
		t.Errorf("%+v", lags)
	}
}

// ExtendLeases holds a message for a handler that needs longer than the ack timeout; without it the message comes again, as the
// second attempt.
func TestExtendLeasesAtBroker(t *testing.T) {
	s := servertest.Start(t, func(c *server.Config) { c.Broker.Dispatch.AckTimeout = 1500 * time.Millisecond })
	s.CreateTopic("orders", 1)
	ctx := t.Context()
	cl := must[*client.Client](t)(client.Dial(ctx, s.Address()))
	t.Cleanup(func() {
		if err := cl.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	p := must[*client.Producer](t)(cl.Producer("orders"))
	must[client.Receipt](t)(p.Send(ctx, &client.Message{}))
	for _, extend := range []bool{true, false} {
		t.Run(fmt.Sprint("extend=", extend), func(t *testing.T) {
			t.Parallel()
			opts := []client.ConsumerOption{client.Group(fmt.Sprint("group-", extend)), client.Start(client.FromBeginning), client.PollWait(time.Second)}
			if extend {
				opts = append(opts, client.ExtendLeases(time.Minute))
			}
			k, err := cl.Consumer("orders", opts...)
			if err != nil {
				t.Fatal(err)
			}
			run, cancel := context.WithCancel(ctx)
			defer cancel()
			var attempts []int
			if err := k.Run(run, func(ctx context.Context, d *client.Delivery) error {
				attempts = append(attempts, d.Attempt)
				if d.Attempt == 2 {
					cancel()
					return nil
				}
				<-time.After(3 * time.Second) // twice the ack timeout
				if extend {
					cancel()
				}
				return ctx.Err()
			}); err != nil {
				t.Fatal(err)
			}
			want := []int{1}
			if !extend {
				want = []int{1, 2}
			}
			if !slices.Equal(attempts, want) {
				t.Errorf("attempts %v, want %v", attempts, want)
			}
		})
	}
}
