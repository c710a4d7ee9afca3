package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jmqio/jmq/wire"
	"github.com/oklog/ulid/v2"
)

// Producers send while masters of three broker groups are killed, stopped and refuse, and answers are late or lost. What was ok is stored where
// the receipt says, what failed is nowhere, there are no more copies than receipts tell of, and what has an order key is in order. Without a key
// nothing fails while the other broker groups are well.
func TestFaultsOfMasters(t *testing.T) {
	if raceEnabled && *seedFlag == 0 {
		t.Skip("with -race by -seed only: a send without a key may then run out of time")
	}
	seeds := []uint64{1, 2, 3, 4}
	if *seedFlag != 0 {
		seeds = []uint64{*seedFlag}
	}
	unknown, again, failed := 0, 0, 0
	for _, seed := range seeds {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			inBubble(t, 3, 2, func(t *testing.T, c *fakeCluster) {
				u, a, f := runMasterFaults(t, c, seed)
				unknown, again, failed = unknown+u, again+a, failed+f
			})
		})
	}
	t.Logf("%d attempts unknown, %d sends tried again, %d with order key failed or unknown", unknown, again, failed)
	if *seedFlag == 0 && (unknown == 0 || again == 0) {
		t.Error("the faults did not show")
	}
}

func runMasterFaults(t *testing.T, c *fakeCluster, seed uint64) (unknown, again, failed int) {
	ctx := context.Background()
	var rng struct {
		sync.Mutex
		*rand.Rand
	}
	rng.Rand = rand.New(rand.NewPCG(seed, 11))
	intn := func(n int) int {
		rng.Lock()
		defer rng.Unlock()
		return rng.IntN(n)
	}
	for _, b := range c.brokers {
		b.onProduce = func(r *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) bool {
			copied := *r
			copied.Batch = slices.Clone(r.Batch)
			switch n := intn(100); {
			case n < 2: // the answer is lost, or the request
				if intn(2) == 0 {
					b.store(&copied)
				}
			case n < 5: // late
				time.AfterFunc(time.Duration(900+intn(500))*time.Millisecond, func() { done(b.store(&copied)) })
			case n < 7:
				time.AfterFunc(time.Duration(900+intn(500))*time.Millisecond, func() { done(nil, wire.Errorf(wire.CodeBusy, "full")) })
			default:
				return false
			}
			return true
		}
	}
	c.put(2, "bg1", "bg2", "bg3")
	cl := c.connect(registryNodes)
	type outcome struct {
		r   Receipt
		err error
		key string
	}
	var mu sync.Mutex
	var all []outcome
	var working, chaos sync.WaitGroup
	stop := make(chan struct{})
	chaos.Go(func() { // one broker group at a time
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Duration(100+intn(900)) * time.Millisecond):
			}
			name := fmt.Sprint("bg", 1+intn(3))
			s, b, d := c.servers[name+":1"], c.brokers[name], time.Duration(intn(2500))*time.Millisecond
			switch intn(4) {
			case 0:
				s.kill(false)
			case 1:
				s.kill(true)
				time.Sleep(d)
				s.up()
			case 2:
				s.freeze()
				time.Sleep(d)
				s.thaw()
			case 3:
				codes := []wire.Code{wire.CodeFailed, wire.CodeNoSpace, wire.CodeReadOnly, wire.CodeNotMaster, wire.CodeStopping, wire.CodeNotReplicated}
				b.refuse(wire.Errorf(codes[intn(len(codes))], "now"))
				time.Sleep(d)
				b.refuse(nil)
			}
		}
	})
	for i := range 8 {
		var opts []ProducerOption
		if i%3 == 1 {
			opts = append(opts, MergeAfter(1))
		}
		p := producer(t, cl, opts...)
		working.Go(func() {
			for n := range 120 {
				m := &Message{Body: fmt.Appendf(nil, "%d/%d", i, n)}
				if i%2 == 0 {
					m.OrderKey = fmt.Sprint(i, "-", n%3)
				}
				r, err := p.Send(ctx, m)
				mu.Lock()
				all = append(all, outcome{r, err, m.OrderKey})
				mu.Unlock()
				time.Sleep(time.Duration(intn(60)) * time.Millisecond)
			}
		})
	}
	working.Wait()
	close(stop)
	chaos.Wait()
	time.Sleep(10 * time.Second) // what is late
	copies := map[string]int{}
	for _, b := range c.brokers {
		for _, batch := range b.batches() {
			for _, m := range batch.messages {
				copies[ulid.ULID(m.ID).String()]++
			}
		}
	}
	last := map[string]Receipt{}
	for _, o := range all {
		n := copies[o.r.MessageID]
		if o.r.Attempts > 1 {
			again++
		}
		unknown += max(o.r.Unknown, 0)
		switch {
		case o.err == nil:
			stored := c.brokers[o.r.BrokerGroup].stored(o.r.Partition)
			if o.r.Index >= uint64(len(stored)) || ulid.ULID(stored[o.r.Index].ID).String() != o.r.MessageID {
				t.Errorf("%s is not at %s", o.r.MessageID, o.r.Location())
			}
			if n > 1+max(o.r.Unknown, 0) {
				t.Errorf("%d copies of %+v", n, o.r)
			}
			if before, ok := last[o.key]; ok && o.key != "" && (before.BrokerGroup != o.r.BrokerGroup || before.Partition != o.r.Partition || before.Index >= o.r.Index) {
				t.Errorf("key %s: %s after %s", o.key, o.r.Location(), before.Location())
			}
			last[o.key] = o.r
		case errors.Is(o.err, ErrFailed) && n > 0:
			t.Errorf("%s failed and is stored: %v", o.r.MessageID, o.err)
		}
		if o.err != nil && o.key == "" {
			t.Errorf("without key: %+v, %v", o.r, o.err)
		}
		if o.err != nil {
			failed++
		}
	}
	return unknown, again, failed
}
