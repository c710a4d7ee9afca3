package client_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/server"
	"github.com/jmqio/jmq/server/servertest"
	"github.com/jmqio/jmq/server/servertest/check"
)

// Ordered sends and two groups at work while the real broker is restarted under them: the history holds.
func TestRestarts(t *testing.T) {
	s := servertest.Start(t, func(c *server.Config) { c.Node.Admin.Listen = "127.0.0.1:0" })
	s.CreateTopic("orders", 4)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	cl, err := client.Dial(ctx, s.Address(), client.WithApp("app"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := cl.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	var history struct {
		sync.Mutex
		events []check.Event
	}
	event := func(e check.Event) {
		history.Lock()
		defer history.Unlock()
		history.events = append(history.events, e)
	}
	now := func() int64 { return time.Now().UnixNano() }

	const producers, each = 4, 400
	var sent, working sync.WaitGroup
	var ok atomic.Int32
	for n := range producers {
		sent.Go(func() {
			p, err := cl.Producer("orders", client.Timeout(20*time.Second))
			if err != nil {
				t.Error(err)
				return
			}
			for i := range each {
				m := &client.Message{OrderKey: fmt.Sprint(n, "-", i%5), Body: fmt.Append(nil, i), Headers: client.Headers{{Key: "seq", Value: fmt.Sprint(i + 1)}}}
				e := check.Event{Op: check.OpSend, Proc: fmt.Sprint("producer-", n), Topic: "orders", Key: m.OrderKey, Seq: uint64(i + 1), Hash: string(m.Body), Call: now()}
				r, err := p.Send(ctx, m)
				e.ID, e.Return, e.Unknown, e.Result = r.MessageID, now(), r.Unknown, check.OK
				if err == nil {
					ok.Add(1)
					e.Partition, e.Index = r.Partition, r.Index
				} else if e.Result = check.Failed; errors.Is(err, client.ErrUnknown) {
					e.Result = check.Unknown
				}
				event(e)
			}
		})
	}
	for _, group := range []string{"run", "other"} {
		for n := range 2 {
			working.Go(func() {
				c, err := cl.Consumer("orders", client.Group(group), client.Start(client.FromBeginning), client.Concurrency(2), client.PollWait(time.Second))
				if err != nil {
					t.Error(err)
					return
				}
				if err := c.Run(ctx, func(ctx context.Context, d *client.Delivery) error {
					e := check.Event{Op: check.OpRecv, Proc: fmt.Sprint(group, n), Topic: d.Topic, Group: d.Group, Partition: *d.Partition, Key: d.OrderKey, ID: d.ID, Index: d.Index,
						Epoch: d.Epoch, Hash: string(d.Body), Lease: d.Lease, Member: d.Member, Deadline: d.Deadline.UnixNano(), Call: now()}
					seq, _ := d.Headers.Get("seq")
					fmt.Sscan(seq, &e.Seq)
					event(e)
					event(check.Event{Op: check.OpAck, Proc: e.Proc, Topic: e.Topic, Group: e.Group, Partition: e.Partition, Index: e.Index, Lease: e.Lease, Member: e.Member, Call: now()})
					return nil
				}); err != nil {
					t.Error(err)
				}
			})
		}
	}
	finished := make(chan struct{})
	go func() { sent.Wait(); close(finished) }()
	for restarts := 0; restarts < 3; restarts++ {
		goal := int32((restarts + 1) * producers * each / 5)
		for ok.Load() < goal {
			select {
			case <-finished:
			case <-time.After(time.Millisecond):
				continue
			}
			break
		}
		from := now()
		s.Restart()
		event(check.Event{Op: check.OpRestart, Proc: "broker", Call: from, Return: now()})
	}
	<-finished
	deadline := time.Now().Add(20 * time.Second)
	for lag := uint64(1); lag > 0; {
		if time.Now().After(deadline) {
			t.Fatalf("lag %d at the end", lag)
		}
		lags, err := cl.GroupLag(ctx, "orders", "")
		if err != nil {
			t.Fatal(err)
		}
		lag = 0
		for _, l := range lags {
			lag += l.Lag
		}
		if lag > 0 {
			<-time.After(5 * time.Millisecond)
		}
	}
	cancel()
	working.Wait()
	for _, group := range []string{"run", "other"} {
		event(check.Event{Op: check.OpDrain, Topic: "orders", Group: group, Call: now()})
	}
	k := check.NewChecker()
	for _, e := range history.events {
		if err := k.Add(e); err != nil {
			t.Fatalf("%+v: %v", e, err)
		}
	}
	r := k.Report()
	if err := r.Err(); err != nil {
		t.Fatal(err)
	}
	if r.SentOK != producers*each {
		t.Errorf("%d of %d sends were ok: a restart is shorter than their time", r.SentOK, producers*each)
	}
	t.Log("\n" + r.String())
}
