package servertest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jmqio/jmq/client"
)

// flow sends and consumes all the time, and knows what was acknowledged and what came.
type flow struct {
	t       testing.TB
	cancel  context.CancelFunc // of sending
	stop    context.CancelFunc // of consuming
	senders sync.WaitGroup
	ran     sync.WaitGroup

	mu struct {
		sync.Mutex
		acked   map[string]bool
		sent    map[string]int // acked, by broker group
		came    map[string]int
		failed  int
		last    error // of a send
		changed chan struct{}
	}
}

const flowPause = 2 * time.Millisecond // of a sender, so that the rest of the machine goes on

// startFlow sends to topic by two goroutines, and consumes it as group.
func startFlow(t testing.TB, sender, receiver *client.Client, topic, group string) *flow {
	t.Helper()
	f := &flow{t: t}
	f.mu.acked, f.mu.came, f.mu.sent, f.mu.changed = map[string]bool{}, map[string]int{}, map[string]int{}, make(chan struct{})
	consuming, stop := context.WithCancel(context.Background())
	sending, cancel := context.WithCancel(consuming)
	f.cancel, f.stop = cancel, stop
	t.Cleanup(f.end)
	consumer, err := receiver.Consumer(topic, client.Group(group), client.Start(client.FromBeginning), client.PollWait(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	first, done := context.WithTimeout(consuming, within)
	defer done()
	if err := consumer.Subscribe(first); err != nil {
		t.Fatal(err)
	}
	producer, err := sender.Producer(topic, client.Timeout(2*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	f.ran.Go(func() {
		err := consumer.Run(consuming, func(_ context.Context, d *client.Delivery) error {
			f.note(func() { f.mu.came[string(d.Body)]++ })
			return nil
		})
		if err != nil && consuming.Err() == nil {
			t.Errorf("the consumer ended: %v", err)
		}
	})
	for i := range 2 {
		f.senders.Go(func() { f.send(sending, producer, i) })
	}
	return f
}

func (f *flow) send(ctx context.Context, p *client.Producer, sender int) {
	pause := time.NewTicker(flowPause)
	defer pause.Stop()
	for n := 0; ; n++ {
		select {
		case <-pause.C:
		case <-ctx.Done():
			return
		}
		body := fmt.Sprintf("%d-%d", sender, n)
		r, err := p.Send(context.WithoutCancel(ctx), &client.Message{Body: []byte(body)})
		f.note(func() {
			if err != nil {
				f.mu.failed++
				f.mu.last = err
			} else {
				f.mu.acked[body] = true
				f.mu.sent[r.BrokerGroup]++
			}
		})
	}
}

func (f *flow) note(what func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	what()
	close(f.mu.changed)
	f.mu.changed = make(chan struct{})
}

// await waits until good says so of what happened, or fails the test. good is asked with the lock.
func (f *flow) await(what string, most time.Duration, good func() bool) time.Duration {
	f.t.Helper()
	begun := time.Now()
	late := time.NewTimer(most)
	defer late.Stop()
	for {
		f.mu.Lock()
		ok, changed := good(), f.mu.changed
		f.mu.Unlock()
		if ok {
			return time.Since(begun)
		}
		select {
		case <-changed:
		case <-late.C:
			f.mu.Lock()
			defer f.mu.Unlock()
			f.t.Fatalf("%s: not within %v: %d messages acknowledged, %d came, %d sends failed, the last with %v", what, most, len(f.mu.acked), len(f.mu.came), f.mu.failed, f.mu.last)
		}
	}
}

// goesOn waits until n more messages were acknowledged, and n more came.
func (f *flow) goesOn(what string, n int) time.Duration {
	f.t.Helper()
	f.mu.Lock()
	acked, came := len(f.mu.acked)+n, len(f.mu.came)+n
	f.mu.Unlock()
	return f.await(what, within, func() bool { return len(f.mu.acked) >= acked && len(f.mu.came) >= came })
}

// failures are the sends that failed until now.
func (f *flow) failures() (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.failed, f.mu.last
}

// settle stops sending, and waits until all that was acknowledged has come. It returns how many messages that were.
func (f *flow) settle() int {
	f.t.Helper()
	f.cancel()
	f.senders.Wait()
	f.await("all that was acknowledged comes", within, func() bool {
		for body := range f.mu.acked {
			if f.mu.came[body] == 0 {
				return false
			}
		}
		return true
	})
	f.end()
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.mu.acked)
}

func (f *flow) end() {
	f.cancel()
	f.senders.Wait()
	f.stop()
	f.ran.Wait()
}
