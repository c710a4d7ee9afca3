package client

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jmqio/jmq/server/servertest/check"
	"github.com/jmqio/jmq/wire"
	"github.com/oklog/ulid/v2"
)

var seedFlag = flag.Uint64("seed", 0, "the one seed of TestFaults; 0: several")

// Producers and consumers work while answers are dropped, delayed or refused, connections die, and the broker restarts
// (its leases gone). The history is checked: nothing lost, nothing invented, every duplicate explained, orders kept.
func TestFaults(t *testing.T) {
	seeds := []uint64{1, 2, 3, 4, 5}
	if *seedFlag != 0 {
		seeds = []uint64{*seedFlag}
	}
	if testing.Short() {
		seeds = seeds[:2]
	}
	total := map[check.Reason]int{}
	again, unknown := 0, 0
	for _, seed := range seeds {
		var r *check.Report
		n := 0
		synctest.Test(t, func(t *testing.T) { r, n = runFaults(t, seed) })
		if err := r.Err(); err != nil {
			t.Fatalf("-seed=%d: %v", seed, err)
		}
		if none := r.Unchecked("C1", "C2", "C3", "C4", "C5", "C6", "C7", "C10"); len(none) > 0 {
			t.Errorf("-seed=%d: %v had nothing to check", seed, none)
		}
		for reason, n := range r.Duplicates {
			total[reason] += n
		}
		again += n
		unknown += r.SentUnknown
	}
	t.Logf("duplicates %v, batches sent again %d, sends unknown %d", total, again, unknown)
	if *seedFlag == 0 && (again == 0 || unknown == 0 || total[check.ReasonBrokerRestarted] == 0 || total[check.ReasonReleased] == 0) {
		t.Error("the faults did not show")
	}
}

// faulty is one run.
type faulty struct {
	b   *fakeBroker
	s   *fakeServer
	rng struct {
		sync.Mutex
		*rand.Rand
	}
	history struct {
		sync.Mutex
		events []check.Event
	}
}

func (f *faulty) intn(n int) int {
	f.rng.Lock()
	defer f.rng.Unlock()
	return f.rng.IntN(n)
}

// now ticks: events of the same instant keep their order.
func (f *faulty) now() int64 {
	time.Sleep(time.Nanosecond)
	return time.Now().UnixNano()
}

func (f *faulty) event(e check.Event) {
	f.history.Lock()
	defer f.history.Unlock()
	f.history.events = append(f.history.events, e)
}

func hash(body []byte) string { return fmt.Sprintf("%08x", crc32.ChecksumIEEE(body)) }

// faultGroups are the groups, each with a way of receiving of its own.
var faultGroups = []string{"run", "fetch", "messages"}

func runFaults(t *testing.T, seed uint64) (r *check.Report, again int) {
	f := &faulty{b: newFakeBroker()}
	f.b.repeats = true
	f.rng.Rand = rand.New(rand.NewPCG(seed, 7))
	f.b.leaseTime = 20 * time.Second
	f.b.topic("orders", 3)
	var calm atomic.Bool
	f.b.onProduce = func(r *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) bool {
		c := *r
		c.Batch = slices.Clone(r.Batch)
		if calm.Load() {
			return false
		}
		switch n := f.intn(100); {
		case n < 3: // lost on the way, or the answer is
			if f.intn(2) == 0 {
				f.b.store(&c)
			}
		case n < 5:
			done(nil, wire.Errorf(wire.CodeUnknown, "the disk failed"))
			if f.intn(2) == 0 {
				f.b.store(&c)
			}
		case n < 8:
			done(nil, wire.Errorf(wire.CodeBusy, "full"))
		case n < 9:
			done(nil, wire.Errorf(wire.CodeInvalid, "out of sorts"))
		case n < 50:
			time.AfterFunc(time.Duration(f.intn(100))*time.Millisecond, func() { done(f.b.store(&c)) })
		default:
			return false
		}
		return true
	}
	f.b.onAck = func(*wire.AckRequest) error {
		if !calm.Load() && f.intn(20) == 0 {
			return wire.Errorf(wire.CodeBusy, "full")
		}
		return nil
	}
	c, s := start(t, f.b, false)
	f.s = s

	var producers, consumers, chaos sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	stop := make(chan struct{})
	chaos.Go(func() { f.chaos(stop) })
	for i := range 5 {
		producers.Go(func() { f.produce(t, c, i, i == 3) })
	}
	for _, group := range faultGroups {
		for i := range 2 {
			consumers.Go(func() {
				switch group {
				case "run":
					f.run(t, ctx, c, i)
				case "fetch":
					f.fetch(t, ctx, c, i)
				case "messages":
					f.messages(t, ctx, c, i)
				}
			})
		}
	}
	producers.Wait()
	close(stop)
	chaos.Wait()
	calm.Store(true)
	f.s.up()
	for {
		time.Sleep(10 * time.Second)
		left := uint64(0)
		for _, group := range faultGroups {
			lags, err := c.GroupLag(context.Background(), "orders", group)
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range lags {
				left += l.Lag
			}
		}
		if left == 0 {
			break
		}
	}
	cancel()
	consumers.Wait()
	for _, group := range faultGroups {
		f.event(check.Event{Op: check.OpDrain, Topic: "orders", Group: group, Call: f.now()})
	}
	f.scan()
	k := check.NewChecker()
	for _, e := range f.history.events {
		if err := k.Add(e); err != nil {
			t.Fatalf("%+v: %v", e, err)
		}
	}
	r = k.Report()
	if !r.OK() { // what concerns the first offenders
		for _, e := range f.history.events {
			if e.ID != "" && strings.Contains(r.String(), e.ID) || e.Op == check.OpRestart {
				t.Logf("%+v", e)
			}
		}
	}
	return r, f.b.mu.again
}

// chaos kills connections and restarts the broker.
func (f *faulty) chaos(stop chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(time.Duration(f.intn(700)) * time.Millisecond):
		}
		if f.intn(3) > 0 {
			f.s.kill(false)
			continue
		}
		from := f.now()
		f.s.kill(true)
		f.b.mu.Lock()
		for _, gs := range f.b.mu.groups {
			for _, g := range gs {
				g.lease = nil
			}
		}
		f.b.mu.Unlock()
		time.Sleep(time.Duration(f.intn(3000)) * time.Millisecond)
		f.s.up()
		f.event(check.Event{Op: check.OpRestart, Proc: "broker", Call: from, Return: f.now()})
	}
}

// produce is one line of sends, in order, with keys of its own; free: without keys and order. The last one waits for none of
// its sends before the next.
func (f *faulty) produce(t *testing.T, c *Client, n int, free bool) {
	var opts []ProducerOption
	switch n {
	case 1:
		opts = append(opts, Compress(Snappy, 0))
	case 3:
		opts = append(opts, MergeAfter(1))
	case 4:
		opts = append(opts, Buffer(20, 1<<20))
	}
	p := producer(t, c, opts...)
	for i := range 150 {
		m := &Message{Body: fmt.Appendf(nil, "%d of %d", i, n)}
		e := check.Event{Op: check.OpSend, Proc: fmt.Sprint("producer-", n), Topic: "orders", Hash: hash(m.Body)}
		if !free {
			m.OrderKey = fmt.Sprintf("%d-%d", n, f.intn(4))
			e.Key, e.Seq = m.OrderKey, uint64(i+1)
			m.Headers = Headers{{Key: "seq", Value: fmt.Sprint(i + 1)}}
		}
		e.Call = f.now()
		ctx, cancel := context.Background(), func() {}
		if f.intn(20) == 0 { // a caller who has no time
			ctx, cancel = context.WithTimeout(ctx, time.Duration(f.intn(60))*time.Millisecond)
		}
		told := func(r Receipt, err error) {
			e.Return, e.ID, e.Unknown = f.now(), r.MessageID, r.Unknown
			e.Result, e.Partition, e.Index = check.OK, r.Partition, r.Index
			if err != nil {
				e.Result, e.Partition, e.Index = check.Failed, 0, 0
				if errors.Is(err, ErrUnknown) {
					e.Result = check.Unknown
				}
			}
			f.event(e)
		}
		if n == 4 {
			p.SendAsync(ctx, m, told)
		} else {
			told(p.Send(ctx, m))
		}
		cancel()
		time.Sleep(time.Duration(f.intn(40)) * time.Millisecond)
	}
	if err := p.Flush(context.Background()); err != nil {
		t.Error(err)
	}
}

func (f *faulty) received(proc string, d *Delivery) check.Event {
	e := check.Event{Op: check.OpRecv, Proc: proc, Topic: d.Topic, Group: d.Group, Partition: *d.Partition, Key: d.OrderKey, ID: d.ID, Index: d.Index, Epoch: d.Epoch,
		Hash: hash(d.Body), Lease: d.Lease, Member: d.Member, Deadline: d.Deadline.UnixNano(), Call: f.now()}
	if s, ok := d.Headers.Get("seq"); ok {
		fmt.Sscan(s, &e.Seq)
	}
	f.event(e)
	e.Call, e.ID, e.Hash, e.Key, e.Seq, e.Deadline, e.Epoch = f.now(), "", "", "", 0, 0, 0
	return e
}

func (f *faulty) run(t *testing.T, ctx context.Context, c *Client, i int) {
	proc := fmt.Sprint("run-", i)
	k := consumer(t, c, Group("run"), Concurrency(2))
	if i == 1 {
		var pausing sync.WaitGroup
		pausing.Go(func() { f.pause(ctx, k) })
		defer pausing.Wait()
	}
	if err := k.Run(ctx, func(ctx context.Context, d *Delivery) error {
		e := f.received(proc, d)
		time.Sleep(time.Duration(f.intn(20)) * time.Millisecond)
		if f.intn(40) == 0 {
			e.Op = check.OpRelease
			f.event(e)
			return errors.New("not now")
		}
		e.Op = check.OpAck // begun: how it ends is the SDK's own
		f.event(e)
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// pause pauses and resumes a consumer now and then.
func (f *faulty) pause(ctx context.Context, k *Consumer) {
	for ctx.Err() == nil {
		k.c.cluster.pause(ctx, time.Duration(f.intn(2000))*time.Millisecond)
		k.Pause()
		k.c.cluster.pause(ctx, time.Duration(f.intn(500))*time.Millisecond)
		k.Resume()
	}
}

// messages is a loop over Messages that breaks now and then.
func (f *faulty) messages(t *testing.T, ctx context.Context, c *Client, i int) {
	proc := fmt.Sprint("messages-", i)
	k := consumer(t, c, Group("messages"), Batch(5))
	for ctx.Err() == nil {
		for d, err := range k.Messages(ctx) {
			if err != nil {
				t.Errorf("messages: %v", err)
				return
			}
			e := f.received(proc, d)
			time.Sleep(time.Duration(f.intn(20)) * time.Millisecond)
			if f.intn(30) == 0 {
				d.Extend(context.Background(), time.Minute) // if it fails, the ack says so
			}
			e.Op, e.Call = check.OpAck, f.now()
			short, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			err = d.Ack(short)
			cancel()
			e.Return, e.Result = f.now(), check.OK
			if err != nil {
				e.Result, e.Reason = check.Failed, err.Error()
				if errors.Is(err, ErrUnknown) {
					e.Result = check.Unknown
				}
			}
			f.event(e)
			if f.intn(20) == 0 {
				break
			}
		}
	}
}

func (f *faulty) fetch(t *testing.T, ctx context.Context, c *Client, i int) {
	proc := fmt.Sprint("fetch-", i)
	k := consumer(t, c, Group("fetch"))
	for ctx.Err() == nil {
		ds, err := k.Fetch(ctx, 7)
		if err != nil {
			if ctx.Err() == nil && !errors.Is(err, ErrDisconnected) && !errors.Is(err, ErrBusy) && wire.CodeOf(err) != wire.CodeUnknown {
				t.Errorf("fetch: %v", err)
			}
			continue
		}
		var acks []check.Event
		for _, d := range ds {
			acks = append(acks, f.received(proc, d))
		}
		for n, d := range ds {
			time.Sleep(time.Duration(f.intn(20)) * time.Millisecond)
			e := acks[n]
			e.Op = check.OpAck
			if f.intn(30) == 0 {
				e.Op = check.OpRelease
			}
			e.Call = f.now()
			if e.Op == check.OpRelease {
				f.event(e)
				d.Release(context.Background()) // if it fails, the lease ends by itself
				continue
			}
			short, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			err := d.Ack(short)
			cancel()
			e.Return, e.Result = f.now(), check.OK
			if err != nil {
				e.Result, e.Reason = check.Failed, err.Error()
				if errors.Is(err, ErrUnknown) {
					e.Result = check.Unknown
				}
			}
			f.event(e)
		}
	}
}

func (f *faulty) scan() {
	at := f.now()
	for p := range uint16(3) {
		index := uint64(0)
		for _, m := range f.b.stored(p) {
			e := check.Event{Op: check.OpScan, Proc: "fake", Topic: "orders", Partition: p, Index: index, ID: ulid.ULID(m.ID).String(), Key: m.OrderKey, Hash: hash(m.Body), Call: at}
			if s, ok := m.Headers.Get("seq"); ok {
				fmt.Sscan(s, &e.Seq)
			}
			f.event(e)
			index++
		}
		f.event(check.Event{Op: check.OpScanned, Proc: "fake", Topic: "orders", Partition: p, To: index, Call: at})
	}
}
