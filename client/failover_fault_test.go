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
// nothing fails that met no more than two faults: each costs at most one of the three tries that a send has time for.
func TestFaultsOfMasters(t *testing.T) {
	seeds := []uint64{1, 2, 3, 4}
	if *seedFlag != 0 {
		seeds = []uint64{*seedFlag}
	}
	var all faultSums
	for _, seed := range seeds {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			inBubble(t, 3, 2, func(t *testing.T, c *fakeCluster) { runMasterFaults(t, c, seed, &all) })
		})
	}
	t.Logf("%+v", all)
	if *seedFlag == 0 && (all.unknown == 0 || all.again == 0 || all.met == 0 || all.excused > all.met/10) {
		t.Error("the faults did not show, or excused too much")
	}
}

// faultSums counts attempts that are unknown, and sends: tried more than once; failed or unknown, with order key; without, that met one fault or two; without, failed or
// unknown after they met more.
type faultSums struct{ unknown, again, keyed, met, excused int }

// faults is when broker groups, or answers of theirs, were not good.
type faults struct {
	sync.Mutex
	all []fault
}

type fault struct {
	what     string
	from, to time.Time
	of       int // an answer to a batch of that producer; negative: of the broker group
}

func (f *faults) note(what string, d time.Duration, of int) {
	f.Lock()
	defer f.Unlock()
	now := time.Now()
	f.all = append(f.all, fault{what, now, now.Add(d), of})
}

// met returns what met a send that was under way in [from, to]: what broker groups did, and how batches of these producers were answered.
func (f *faults) met(from, to time.Time, producers ...int) (all []string) {
	f.Lock()
	defer f.Unlock()
	for _, x := range f.all {
		if !x.to.Before(from) && !x.from.After(to) && (x.of < 0 || slices.Contains(producers, x.of)) {
			all = append(all, fmt.Sprintf("%s at %v for %v", x.what, x.from.Sub(from), x.to.Sub(x.from)))
		}
	}
	return all
}

func runMasterFaults(t *testing.T, c *fakeCluster, seed uint64, sums *faultSums) {
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
	var bad faults
	const try = time.Second
	sender := func(batch wire.Batch) (i int) {
		var codec wire.Codec
		raw, err := codec.Messages(batch, nil)
		if err != nil {
			t.Fatal(err)
		}
		it := wire.IterateMessages(batch, raw)
		it.Next()
		if _, err := fmt.Sscanf(string(it.View.Message().Body), "%d/", &i); err != nil {
			t.Fatal(err)
		}
		return i
	}
	for name, b := range c.brokers {
		b.onProduce = func(r *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) bool {
			copied := *r
			copied.Batch = slices.Clone(r.Batch)
			n := intn(100)
			if n < 7 {
				bad.note(name+" answers badly", try, sender(copied.Batch))
			}
			switch {
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
		r          Receipt
		err        error
		key        string
		begun, end time.Time
		by         int
	}
	var mu sync.Mutex
	var all []outcome
	var merged []int // without key
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
				bad.note(name+" loses its connections", 0, -1)
				s.kill(false)
			case 1:
				bad.note(name+" is killed", d, -1)
				s.kill(true)
				time.Sleep(d)
				s.up()
			case 2:
				bad.note(name+" is stopped", d, -1)
				s.freeze()
				time.Sleep(d)
				s.thaw()
			case 3:
				codes := []wire.Code{wire.CodeFailed, wire.CodeNoSpace, wire.CodeReadOnly, wire.CodeNotMaster, wire.CodeStopping, wire.CodeNotReplicated}
				bad.note(name+" refuses", d, -1)
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
			if i%2 == 1 {
				merged = append(merged, i)
			}
		}
		p := producer(t, cl, opts...)
		working.Go(func() {
			for n := range 120 {
				m := &Message{Body: fmt.Appendf(nil, "%d/%d", i, n)}
				if i%2 == 0 {
					m.OrderKey = fmt.Sprint(i, "-", n%3)
				}
				begun := time.Now()
				r, err := p.Send(ctx, m)
				mu.Lock()
				all = append(all, outcome{r, err, m.OrderKey, begun, time.Now(), i})
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
			sums.again++
		}
		sums.unknown += max(o.r.Unknown, 0)
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
		if o.key != "" {
			if o.err != nil {
				sums.keyed++
			}
			continue
		}
		by := []int{o.by}
		if slices.Contains(merged, o.by) { // they wait for each other
			by = merged
		}
		switch met := bad.met(o.begun, o.end, by...); {
		case len(met) > 2:
			if o.err != nil {
				sums.excused++
			}
		case o.err != nil:
			t.Errorf("without key: %+v, %v after %v; it met %q", o.r, o.err, o.end.Sub(o.begun), met)
		case len(met) > 0:
			sums.met++
		}
	}
}
