package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jmqio/jmq/wire"
)

// Sends go to broker groups as their weights say, exactly and spread evenly; those of one broker group to all of its partitions.
func TestWeights(t *testing.T) {
	inBubble(t, 3, 4, func(t *testing.T, c *fakeCluster) {
		ctx := context.Background()
		weigh := func(weights ...uint32) {
			r := routeTo(4, "bg1", "bg2", "bg3")
			for i, w := range weights {
				r.BrokerGroups[i].Weight = w
			}
			c.meta.set("orders", "", &wire.TopicView{Route: r})
			time.Sleep(2 * time.Second)
		}
		weigh()
		p := producer(t, c.connect(registryNodes))
		count := func(n int) (per [3]int, most int) {
			places := map[string]int{}
			for range n {
				r, err := p.Send(ctx, &Message{})
				if err != nil {
					t.Fatal(err)
				}
				per[r.BrokerGroup[2]-'1']++
				places[location(r.BrokerGroup, r.Partition)]++
			}
			for _, n := range places {
				most = max(most, n)
			}
			return per, most
		}
		count(12) // connects
		time.Sleep(time.Second)
		if per, _ := count(120); per != [3]int{40, 40, 40} {
			t.Errorf("without weights: %v", per)
		}
		weigh(70, 20, 10)
		if per, most := count(200); per != [3]int{140, 40, 20} || most != 35 {
			t.Errorf("with weights: %v, %d on one partition", per, most)
		}
		if per, _ := count(10); per != [3]int{7, 2, 1} {
			t.Errorf("ten with weights: %v", per)
		}
		c.servers["bg1:1"].kill(true)
		if per, _ := count(100); per[0] != 0 || per[1] < 20 || per[2] < 10 {
			t.Errorf("one is dead: %v", per)
		}
		c.servers["bg1:1"].up()
		time.Sleep(2 * reconnectMax)
		weigh(0, 50, 50)
		if per, _ := count(100); per != [3]int{0, 50, 50} {
			t.Errorf("one without weight: %v", per)
		}
	})
}

// Sends go to broker groups of the data center first, by option or setting; to others while none of these takes messages; and back.
func TestNearFirst(t *testing.T) {
	inBubble(t, 3, 1, func(t *testing.T, c *fakeCluster) {
		ctx := context.Background()
		c.put(1, "bg1", "bg2", "bg3")
		p := producer(t, c.connect(registryNodes, WithDataCenter("dc-bg2"), WithNear()))
		where := func() (all []string) {
			for range 12 {
				r, err := p.Send(ctx, &Message{})
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, r.BrokerGroup)
			}
			slices.Sort(all)
			return slices.Compact(all)
		}
		check := func(when string, want ...string) {
			t.Helper()
			where() // connects
			time.Sleep(100 * time.Millisecond)
			if got := where(); !slices.Equal(got, want) {
				t.Errorf("%s: %v, want %v", when, got, want)
			}
		}
		check("near", "bg2")
		c.servers["bg2:1"].kill(true)
		check("dead", "bg1", "bg3")
		c.servers["bg2:1"].up()
		time.Sleep(2 * reconnectMax)
		check("back", "bg2")
		c.brokers["bg2"].refuse(wire.Errorf(wire.CodeReadOnly, "no"))
		check("read-only", "bg1", "bg3")
		c.brokers["bg2"].refuse(nil)
		time.Sleep(time.Minute)
		check("active", "bg2")
		c.meta.set("orders", "", &wire.TopicView{Route: routeTo(1, "bg1", "bg2", "bg3"), Producer: &wire.ProducerSettings{Near: new(false)}})
		time.Sleep(2 * time.Second)
		check("the registry says no", "bg1", "bg2", "bg3")
	})
}

// load is producers that send all the time.
type load struct {
	sync.Mutex
	slow  map[time.Duration]int // sends that took longer
	most  time.Duration
	to    map[string]int
	sends int
}

func (l *load) took(d time.Duration, brokerGroup string) {
	l.Lock()
	defer l.Unlock()
	l.most = max(l.most, d)
	for k := range l.slow {
		if d > k {
			l.slow[k]++
		}
	}
	l.to[brokerGroup]++
	l.sends++
}

// reset forgets what was before.
func (l *load) reset() {
	l.Lock()
	defer l.Unlock()
	l.most, l.sends, l.to, l.slow = 0, 0, map[string]int{}, map[time.Duration]int{400 * time.Millisecond: 0}
}

func (l *load) slowest() time.Duration {
	l.Lock()
	defer l.Unlock()
	return l.most
}

// With three broker groups, one master is killed, or stopped: no send returns an error, and the slowest takes less than 500 ms, or 1.5 s;
// when it is stopped one send of each producer is slow, not more. When it is back it is used again.
func TestMasterGone(t *testing.T) {
	const producers = 12
	for _, stopped := range []bool{false, true} {
		t.Run(fmt.Sprintf("stopped=%v", stopped), func(t *testing.T) {
			inBubble(t, 3, 4, func(t *testing.T, c *fakeCluster) {
				ctx := context.Background()
				c.put(4, "bg1", "bg2", "bg3")
				cl := c.connect(registryNodes)
				l := &load{}
				l.reset()
				stop := make(chan struct{})
				var working sync.WaitGroup
				for i := range producers {
					p := producer(t, cl, MergeAfter(i%3))
					working.Go(func() {
						for n := 0; ; n++ {
							select {
							case <-stop:
								return
							case <-time.After(20 * time.Millisecond):
							}
							begun := time.Now()
							r, err := p.Send(ctx, &Message{})
							if err != nil {
								t.Errorf("after %v: %v", time.Since(begun), err)
								return
							}
							l.took(time.Since(begun), r.BrokerGroup)
						}
					})
				}
				time.Sleep(time.Second)
				l.reset()
				s, limit := c.servers["bg2:1"], 500*time.Millisecond
				if stopped {
					limit = 1500 * time.Millisecond
					s.freeze()
				} else {
					s.kill(true)
				}
				time.Sleep(5 * time.Second)
				if d := l.slowest(); d >= limit {
					t.Errorf("the slowest took %v", d)
				}
				l.Lock()
				if n := l.slow[400*time.Millisecond]; n > 2*producers || !stopped && n > 0 {
					t.Errorf("%d sends were slow", n)
				}
				t.Logf("slowest %v, %d slow of %d", l.most, l.slow[400*time.Millisecond], l.sends)
				l.Unlock()
				time.Sleep(20 * time.Second)
				l.reset()
				if stopped {
					s.thaw()
				} else {
					s.up()
				}
				time.Sleep(5 * time.Second)
				l.reset()
				time.Sleep(time.Second)
				l.Lock()
				if n := l.to["bg2"]; n < l.sends/4 {
					t.Errorf("of %d sends %d went to the one that is back", l.sends, n)
				}
				if l.most > 100*time.Millisecond {
					t.Errorf("when it is back the slowest took %v", l.most)
				}
				l.Unlock()
				close(stop)
				working.Wait()
			})
		})
	}
}

// A broker group that refuses gets no sends but one now and then, and all of its share within 60 s of the end of that.
func TestBreaker(t *testing.T) {
	inBubble(t, 2, 1, func(t *testing.T, c *fakeCluster) {
		ctx := context.Background()
		c.put(1, "bg1", "bg2")
		p := producer(t, c.connect(registryNodes))
		b := c.brokers["bg1"]
		var asked atomic.Int32
		var refuses atomic.Bool
		b.onProduce = func(_ *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) bool {
			asked.Add(1)
			if refuses.Load() {
				done(nil, wire.Errorf(wire.CodeFailed, "the disk"))
			}
			return refuses.Load()
		}
		send := func(d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(max(10*time.Millisecond, d/600)) {
				if r, err := p.Send(ctx, &Message{}); err != nil || r.Attempts > 2 {
					t.Fatalf("%+v, %v", r, err)
				}
			}
		}
		send(time.Second)
		refuses.Store(true)
		asked.Store(0)
		send(2 * time.Minute)
		if n := asked.Load(); n > 25 || n < 8 {
			t.Errorf("asked %d times", n)
		}
		refuses.Store(false)
		send(breakerMax)
		asked.Store(0)
		send(time.Second)
		if n := asked.Load(); n < 45 {
			t.Errorf("asked %d times when it is good again", n)
		}
		// A route that says that it is back is believed at once.
		away := func(is bool) {
			r := routeTo(1, "bg1", "bg2")
			r.BrokerGroups[0].Brokers = append(r.BrokerGroups[0].Brokers, &wire.BrokerRoute{Broker: "s", Addresses: []string{"s:1"}, Slave: true})
			if r.BrokerGroups[0].Brokers[0].Away = is; is {
				r.Partitions[0].State = partitionAway
			}
			c.meta.set("orders", "", &wire.TopicView{Route: r})
		}
		away(false)
		send(time.Second)
		refuses.Store(true)
		send(time.Minute)
		away(true)
		send(time.Second)
		asked.Store(0)
		send(time.Minute)
		if n := asked.Load(); n > 0 {
			t.Errorf("asked %d times while it is away", n)
		}
		refuses.Store(false)
		away(false)
		time.Sleep(watchGather)
		send(100 * time.Millisecond)
		asked.Store(0)
		send(time.Second)
		if n := asked.Load(); n < 45 {
			t.Errorf("asked %d times when the route says that it is back", n)
		}
	})
}

// The trial that the news of another master allows comes before that serves: the next ones follow soon, so that a planned hand-over is
// seen not much later than it is done; and at once where the broker says that it will serve in a moment, but not for ever.
func TestBreakerHandOver(t *testing.T) {
	for _, x := range []struct{ serves, soon, late time.Duration }{
		{300 * time.Millisecond, 0, 150 * time.Millisecond},
		{2 * time.Second, 20 * time.Millisecond, 25 * time.Millisecond},
		{time.Minute, 20 * time.Millisecond, breakerMax},
	} {
		synctest.Test(t, func(t *testing.T) {
			var b breaker
			for range breakerFailures {
				b.failed(false, x.soon)
			}
			b.back()
			named, trials := time.Now(), 0
			for !b.closed() {
				switch {
				case !b.allow():
					time.Sleep(time.Millisecond)
				case time.Since(named) < x.serves:
					trials++
					b.failed(false, x.soon)
				default:
					b.succeeded()
				}
			}
			if d := time.Since(named) - x.serves; d > x.late {
				t.Errorf("%v: used again %v after it serves", x, d)
			}
			if most := int(breakerSoon/(20*time.Millisecond)) + 30; trials > most {
				t.Errorf("%v: tried %d times", x, trials)
			}
		})
	}
}

// Who says that he does not serve yet, but soon, is waited for: the pool does not go back to the broker that was master before.
func TestServesSoon(t *testing.T) {
	c := newCluster(&options{}, []string{"x"}, "c")
	p := c.newPool("bg1", []string{"old"}, 1)
	p.mu.told = []string{"old"}
	p.lead([]string{"new"})
	l := &link{pool: p, addr: "new"}
	p.follow(&wire.CodeError{Code: wire.CodeNotMaster, RetryAfter: time.Millisecond}, l)
	if got := p.mu.addrs[0]; got != "new" {
		t.Errorf("it is at %s", got)
	}
	p.follow(&wire.CodeError{Code: wire.CodeNotMaster}, l)
	if got := p.mu.addrs[0]; got != "old" {
		t.Errorf("it is at %s though nobody is at the other", got)
	}
	c.cancel()
}

// A topic that cannot be replicated at a broker group keeps no other topic from it.
func TestNotReplicated(t *testing.T) {
	inBubble(t, 2, 1, func(t *testing.T, c *fakeCluster) {
		ctx := context.Background()
		c.put(1, "bg1", "bg2")
		for _, b := range c.brokers {
			b.topic("copies", 1)
		}
		c.meta.set("copies", "", &wire.TopicView{Route: routeTo(1, "bg1", "bg2")})
		cl := c.connect(registryNodes)
		var refused atomic.Int32
		c.brokers["bg1"].onProduce = func(r *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) bool {
			if r.Topic == "copies" {
				refused.Add(1)
				done(nil, wire.Errorf(wire.CodeNotReplicated, "no slave"))
			}
			return r.Topic == "copies"
		}
		other, err := cl.Producer("copies")
		if err != nil {
			t.Fatal(err)
		}
		p := producer(t, cl)
		for range 4 { // connects
			if _, err := p.Send(ctx, &Message{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		to := 0
		for range 200 {
			if r, err := other.Send(ctx, &Message{}); err != nil || r.BrokerGroup != "bg2" || r.Unknown != 0 {
				t.Fatalf("%+v, %v", r, err)
			}
			r, err := p.Send(ctx, &Message{})
			if err != nil || r.Attempts != 1 {
				t.Fatalf("%+v, %v", r, err)
			}
			if r.BrokerGroup == "bg1" {
				to++
			}
		}
		if n := refused.Load(); n > 10 {
			t.Errorf("%d were tried at the broker group that cannot", n)
		}
		if to != 100 {
			t.Errorf("%d of another topic went there", to)
		}
	})
}

// A send is tried at no broker group twice while another one is left, and at no more others than Retries says, or the registry.
func TestRetries(t *testing.T) {
	inBubble(t, 4, 1, func(t *testing.T, c *fakeCluster) {
		ctx := context.Background()
		c.put(1, "bg1", "bg2", "bg3", "bg4")
		cl := c.connect(registryNodes)
		var mu sync.Mutex
		var tried []string
		var good atomic.Bool
		good.Store(true)
		for name, b := range c.brokers {
			b.onProduce = func(_ *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) bool {
				if good.Load() {
					return false
				}
				mu.Lock()
				tried = append(tried, name)
				mu.Unlock()
				done(nil, wire.Errorf(wire.CodeNoSpace, "full"))
				return true
			}
		}
		p, few := producer(t, cl), producer(t, cl, Retries(2))
		for range 8 {
			if _, err := p.Send(ctx, &Message{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		good.Store(false)
		_, err := p.Send(ctx, &Message{})
		checkOutcome(t, err, false, ErrDiskFull)
		for i := 0; i+4 <= len(tried); i += 4 {
			round := slices.Clone(tried[i : i+4])
			if slices.Sort(round); len(slices.Compact(round)) != 4 {
				t.Errorf("round %d: %v", i/4, tried[i:i+4])
			}
		}
		if len(tried) < 8 {
			t.Errorf("tried %v", tried)
		}
		check := func(p *Producer, want int) {
			t.Helper()
			mu.Lock()
			tried = nil
			mu.Unlock()
			_, err := p.Send(ctx, &Message{})
			checkOutcome(t, err, false, ErrDiskFull)
			if slices.Sort(tried); len(tried) != want || len(slices.Compact(tried)) != want {
				t.Errorf("tried %v, want %d", tried, want)
			}
		}
		check(few, 3)
		c.meta.set("orders", "", &wire.TopicView{Route: routeTo(1, "bg1", "bg2", "bg3", "bg4"), Producer: &wire.ProducerSettings{Retries: new(uint32(1))}})
		time.Sleep(2 * time.Second)
		check(few, 2)
		check(p, 2)
	})
}

// An answer that comes after its try was given up counts: as ok, when the next try has no answer yet or waits for its turn, and as
// failed where it would be unknown else.
func TestLateAnswers(t *testing.T) {
	inBubble(t, 2, 1, func(t *testing.T, c *fakeCluster) {
		ctx := context.Background()
		c.put(1, "bg1", "bg2")
		type hook = func(b *fakeBroker, r *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) bool
		var now atomic.Pointer[hook]
		for _, b := range c.brokers {
			b.onProduce = func(r *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) bool {
				h := now.Load()
				return h != nil && (*h)(b, r, done)
			}
		}
		set := func(h hook) { now.Store(&h) }
		p := producer(t, c.connect(registryNodes))
		for range 4 {
			if _, err := p.Send(ctx, &Message{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		after := func(d time.Duration, answer func(b *fakeBroker, r *wire.ProduceRequest, done func(*wire.ProduceResponse, error))) {
			var once sync.Once
			set(func(b *fakeBroker, r *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) bool {
				once.Do(func() {
					copied := *r
					copied.Batch = slices.Clone(r.Batch)
					time.AfterFunc(d, func() { answer(b, &copied, done) })
				})
				return true
			})
		}
		store := func(b *fakeBroker, r *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) { done(b.store(r)) }
		busy := func(_ *fakeBroker, _ *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) {
			done(nil, wire.Errorf(wire.CodeBusy, "full"))
		}
		after(1500*time.Millisecond, store)
		begun := time.Now()
		r, err := p.Send(ctx, &Message{})
		if took := time.Since(begun); err != nil || r.Attempts != 2 || r.Unknown != 1 || took != 1500*time.Millisecond {
			t.Errorf("a late ok: %+v, %v after %v", r, err, took)
		}
		time.Sleep(time.Minute) // the breakers have forgotten it
		for range 10 {
			now.Store(nil)
			if _, err := p.Send(ctx, &Message{}); err != nil {
				t.Fatal(err)
			}
		}
		after(1500*time.Millisecond, busy)
		_, err = p.Send(ctx, &Message{})
		checkOutcome(t, err, true, nil) // the third try had no answer
		time.Sleep(time.Minute)
		// One broker group: the last tries have no connection.
		c.put(1, "bg1")
		time.Sleep(2 * time.Second)
		now.Store(nil)
		if _, err := p.Send(ctx, &Message{}); err != nil {
			t.Fatal(err)
		}
		var n atomic.Int32
		set(func(_ *fakeBroker, _ *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) bool {
			if n.Add(1) == 1 {
				time.AfterFunc(2900*time.Millisecond, func() { done(nil, wire.Errorf(wire.CodeBusy, "full")) })
			} else {
				done(nil, wire.Errorf(wire.CodeBusy, "full"))
			}
			return true
		})
		begun = time.Now()
		_, err = p.Send(ctx, &Message{})
		checkOutcome(t, err, false, ErrBusy)
		if took := time.Since(begun); took < 2900*time.Millisecond || took > 3*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// atLog is a log handler that does something at a line.
type atLog struct {
	slog.Handler
	line string
	do   func()
}

func (h atLog) Handle(_ context.Context, r slog.Record) error {
	if r.Message == h.line {
		h.do()
	}
	return nil
}

// A late ok that comes in the moment between another try's ok and the outcome tells of another copy.
func TestTwoAnswersAtOnce(t *testing.T) {
	inBubble(t, 2, 1, func(t *testing.T, c *fakeCluster) {
		ctx := context.Background()
		c.put(1, "bg1", "bg2")
		late := make(chan func(), 1)
		h := atLog{slog.NewTextHandler(io.Discard, nil), "sends go to the broker group again", func() {
			select {
			case answer := <-late:
				answer()
				time.Sleep(time.Millisecond) // it is read meanwhile
			default:
			}
		}}
		cl := c.connect(registryNodes, WithLogger(slog.New(h)))
		p := producer(t, cl)
		at := func(brokerGroup string) *Message {
			return &Message{BrokerGroup: brokerGroup, Partition: new(uint16)}
		}
		bg1, bg2 := c.brokers["bg1"], c.brokers["bg2"]
		if _, err := p.Send(ctx, at("bg1")); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Send(ctx, at("bg2")); err != nil {
			t.Fatal(err)
		}
		breaker := &p.topic.route.Load().find("bg2", 0).pool.Load().breaker // open: the next goes to bg1 first
		breaker.failed(true, 0)
		breaker.mu.silent, breaker.mu.until = false, time.Now().Add(time.Minute)
		bg1.onProduce = func(r *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) bool {
			copied := *r
			copied.Batch = slices.Clone(r.Batch)
			late <- func() { done(bg1.store(&copied)) }
			return true
		}
		r, err := p.Send(ctx, &Message{})
		if n := len(bg1.batches()) + len(bg2.batches()); err != nil || n != 4 || r.Attempts != 2 || r.Unknown != 1 {
			t.Errorf("%d batches, %+v, %v", n, r, err)
		}
	})
}

// A batch that comes again to a broker group has the number that it had there before: after others were tried, and after its
// connection broke. Numbers of other batches are higher.
func TestSequenceOfRepeats(t *testing.T) {
	inBubble(t, 2, 3, func(t *testing.T, c *fakeCluster) {
		ctx := context.Background()
		c.put(3, "bg1", "bg2")
		p := producer(t, c.connect(registryNodes))
		type sent struct {
			brokerGroup string
			partition   uint16
			sequence    uint64
		}
		var mu sync.Mutex
		var all []sent
		answer := func(int) *wire.CodeError { return nil }
		now := func(a func(n int) *wire.CodeError) {
			mu.Lock()
			defer mu.Unlock()
			all, answer = nil, a
		}
		for name, b := range c.brokers {
			b.onProduce = func(r *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) bool {
				mu.Lock()
				defer mu.Unlock()
				all = append(all, sent{name, r.Partition, wire.Batch(r.Batch).Sequence()})
				err := answer(len(all))
				if err != nil {
					done(nil, err)
				}
				return err != nil
			}
		}
		for range 12 {
			if _, err := p.SendBatch(ctx, []*Message{{}, {}}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		seen := map[sent]bool{}
		highest := map[string]uint64{}
		for _, s := range all {
			k := location(s.brokerGroup, s.partition)
			if seen[s] || highest[k] > s.sequence {
				t.Errorf("%+v after %d", s, highest[k])
			}
			seen[s], highest[k] = true, s.sequence+2
		}
		for range 5 {
			now(func(n int) *wire.CodeError {
				if n < 6 {
					return wire.Errorf(wire.CodeUnknown, "the disk")
				}
				return nil
			})
			r, err := p.Send(ctx, &Message{})
			if err != nil || r.Attempts != 6 || r.Unknown != 5 {
				t.Fatalf("%+v, %v", r, err)
			}
			at := map[string]sent{}
			for i, s := range all {
				if seen[s] {
					t.Errorf("%+v is an earlier one's", s)
				}
				if i > 0 && all[i-1].brokerGroup == s.brokerGroup {
					t.Errorf("%s was tried twice in a row", s.brokerGroup)
				}
				if old, ok := at[s.brokerGroup]; ok && old != s {
					t.Errorf("%+v, before it was %+v", s, old)
				}
				at[s.brokerGroup] = s
			}
			for _, s := range at {
				seen[s] = true
			}
		}
		// With order key: the connection breaks.
		now(func(n int) *wire.CodeError {
			if n == 1 {
				go c.servers["bg1:1"].kill(false)
				go c.servers["bg2:1"].kill(false)
				return wire.Errorf(wire.CodeUnknown, "the disk")
			}
			return nil
		})
		if _, err := p.Send(ctx, &Message{OrderKey: "k"}); err != nil {
			t.Fatal(err)
		}
		if len(all) < 2 || all[0] != all[len(all)-1] {
			t.Errorf("%+v", all)
		}
	})
}

// While the broker group of an order key is away its messages wait, or go to another one, all to the same, and with the next message come
// back: as the option or the topic's setting says. Those with a partition stay in any case.
func TestOrderKeysOfOneAway(t *testing.T) {
	inBubble(t, 3, 2, func(t *testing.T, c *fakeCluster) {
		ctx := context.Background()
		c.put(2, "bg1", "bg2", "bg3")
		cl := c.connect(registryNodes)
		waits, moves := producer(t, cl), producer(t, cl, MoveOrderKeys())
		for range 12 {
			if _, err := waits.Send(ctx, &Message{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		key := ""
		for i := 0; key == ""; i++ {
			if k := fmt.Sprint(i); keyPlace(k, 6) == 2 { // bg2/0
				key = k
			}
		}
		c.servers["bg2:1"].kill(true)
		where := map[string]int{}
		begun := time.Now()
		for range 10 {
			r, err := moves.Send(ctx, &Message{OrderKey: key})
			if err != nil {
				t.Fatal(err)
			}
			where[location(r.BrokerGroup, r.Partition)]++
		}
		if len(where) != 1 || where["bg2/0"] != 0 || time.Since(begun) > 100*time.Millisecond {
			t.Errorf("moved to %v in %v", where, time.Since(begun))
		}
		_, err := waits.Send(ctx, &Message{OrderKey: key})
		checkOutcome(t, err, false, ErrDisconnected)
		zero := uint16(0)
		_, err = moves.Send(ctx, &Message{BrokerGroup: "bg2", Partition: &zero})
		checkOutcome(t, err, false, ErrDisconnected)
		c.meta.set("orders", "", &wire.TopicView{Route: routeTo(2, "bg1", "bg2", "bg3"), Producer: &wire.ProducerSettings{OrderKeyMove: true}})
		time.Sleep(2 * time.Second)
		if r, err := waits.Send(ctx, &Message{OrderKey: key}); err != nil || where[location(r.BrokerGroup, r.Partition)] == 0 {
			t.Errorf("the topic's setting: %+v, %v", r, err)
		}
		c.servers["bg2:1"].up()
		time.Sleep(2 * reconnectMax)
		if r, err := moves.Send(ctx, &Message{OrderKey: key}); err != nil || r.BrokerGroup != "bg2" || r.Partition != 0 {
			t.Errorf("it is back: %+v, %v", r, err)
		}
	})
}

// replicated is a cluster of one broker group, with the brokers bg1 and s1, of which the first is the master.
func replicated(t *testing.T, partitions int, f func(t *testing.T, c *fakeCluster, master, slave *fakeBroker)) {
	inBubble(t, 1, partitions, func(t *testing.T, c *fakeCluster) {
		b := newFakeBroker()
		b.name = "bg1"
		s := newFakeServer(b, false)
		s.h = wire.NewHandler(wire.Services{Broker: b, Admin: b}, wire.HandlerOptions{Broker: "s1", BrokerGroup: "bg1", Roles: []string{"broker"}})
		c.brokers["s1"], c.servers["s1:1"] = b, s
		b.refuse(notMaster("bg1:1"))
		c.lead("bg1", "s1")
		f(t, c, c.brokers["bg1"], b)
	})
}

func notMaster(nodes ...string) *wire.CodeError {
	return &wire.CodeError{Code: wire.CodeNotMaster, Message: "a slave", Nodes: nodes}
}

// lead makes brokers those of bg1 in the route, the master first.
func (c *fakeCluster) lead(brokers ...string) {
	view := func() *wire.TopicView {
		r := &wire.RouteResponse{Version: 1, BrokerGroups: []*wire.BrokerGroupRoute{{BrokerGroup: "bg1"}}}
		for i, b := range brokers {
			r.BrokerGroups[0].Brokers = append(r.BrokerGroups[0].Brokers, &wire.BrokerRoute{Broker: b, Addresses: []string{b + ":1"}, Slave: i > 0})
		}
		for i := range c.brokers["bg1"].mu.topics["orders"] {
			r.Partitions = append(r.Partitions, &wire.PartitionRoute{Partition: uint32(i), BrokerGroup: "bg1"})
		}
		return &wire.TopicView{Route: r}
	}
	c.meta.set("orders", "", view())
	c.meta.set("orders", "app", view())
}

// A broker group gets another master: what is under way is answered, and what comes next goes to the new one, as soon as the old one
// says who that is, or the route does. No send fails or is unknown, and nobody asks the old one any more.
func TestMasterChanges(t *testing.T) {
	for _, told := range []string{"by the old master", "by the route"} {
		t.Run(told, func(t *testing.T) {
			replicated(t, 2, func(t *testing.T, c *fakeCluster, master, slave *fakeBroker) {
				ctx := context.Background()
				cl := c.connect(registryNodes)
				l := &load{}
				l.reset()
				stop := make(chan struct{})
				var working sync.WaitGroup
				delay := func(b *fakeBroker) func(*wire.ProduceRequest, func(*wire.ProduceResponse, error)) bool {
					return func(r *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) bool {
						copied := *r
						copied.Batch = slices.Clone(r.Batch)
						time.AfterFunc(20*time.Millisecond, func() { done(b.store(&copied)) })
						return true
					}
				}
				master.onProduce, slave.onProduce = delay(master), delay(slave)
				for i := range 16 {
					p := producer(t, cl)
					working.Go(func() {
						for {
							select {
							case <-stop:
								return
							case <-time.After(time.Millisecond):
							}
							m := &Message{}
							if i%2 == 0 {
								m.OrderKey = fmt.Sprint(i)
							}
							begun := time.Now()
							r, err := p.Send(ctx, m)
							if err != nil || r.Unknown != 0 {
								t.Errorf("%+v, %v", r, err)
								return
							}
							l.took(time.Since(begun), r.BrokerGroup)
						}
					})
				}
				time.Sleep(time.Second)
				if told == "by the route" { // the new one is ready only a moment later
					c.lead("s1", "bg1")
					time.Sleep(300 * time.Millisecond)
				}
				master.refuse(notMaster())
				time.Sleep(200 * time.Millisecond)
				slave.follow(master)
				slave.refuse(nil)
				if told == "by the old master" {
					master.refuse(notMaster("s1:1"))
				}
				time.Sleep(time.Second)
				if d := l.slowest(); d > 800*time.Millisecond {
					t.Errorf("the slowest took %v", d)
				}
				c.lead("s1", "bg1")
				time.Sleep(retireTime + time.Second)
				l.reset()
				before := len(slave.batches())
				time.Sleep(time.Second)
				if n := len(slave.batches()) - before; n < 100 || l.slowest() > 50*time.Millisecond {
					t.Errorf("%d batches in a second, the slowest took %v", n, l.slowest())
				}
				s := c.servers["bg1:1"]
				s.mu.Lock()
				if n := len(s.mu.sessions); n > 0 {
					t.Errorf("%d connections to the old master", n)
				}
				s.mu.Unlock()
				close(stop)
				working.Wait()
			})
		})
	}
}

// handled counts the messages that were handled.
type handled struct {
	sync.Mutex
	n map[string]int
}

func (h *handled) add(d *Delivery) {
	h.Lock()
	defer h.Unlock()
	h.n[d.ID]++
}

func (h *handled) count() (messages, twice int) {
	h.Lock()
	defer h.Unlock()
	for _, n := range h.n {
		if n > 1 {
			twice++
		}
	}
	return len(h.n), twice
}

// consumers receive in all three ways until ctx ends.
func consumers(t *testing.T, ctx context.Context, c *fakeCluster, cl *Client, way string, h *handled, work time.Duration) (wait func()) {
	k := consumer(t, cl, Start(FromBeginning), Concurrency(2), Batch(5), ExtendLeases(time.Minute))
	var working sync.WaitGroup
	working.Go(func() {
		switch way {
		case "run":
			if err := k.Run(ctx, func(_ context.Context, d *Delivery) error {
				time.Sleep(work)
				h.add(d)
				return nil
			}); err != nil {
				t.Error(err)
			}
		case "messages":
			for d, err := range k.Messages(ctx) {
				if err != nil {
					t.Error(err)
					return
				}
				time.Sleep(work)
				h.add(d)
				if err := d.Extend(ctx, 0); err != nil {
					t.Errorf("extend: %v", err)
				}
				if err := d.Ack(ctx); err != nil {
					t.Errorf("ack: %v", err)
				}
			}
		case "fetch":
			for ctx.Err() == nil {
				ds, err := k.Fetch(ctx, 5, Wait(10*time.Second))
				if err != nil && ctx.Err() == nil {
					t.Errorf("fetch: %v", err)
				}
				for _, d := range ds {
					time.Sleep(work)
					h.add(d)
				}
				if err := k.Ack(context.Background(), ds...); err != nil {
					t.Errorf("ack: %v", err)
				}
			}
		}
	})
	return working.Wait
}

// The master dies, is stopped, or says that it is none: what is left is read at the slave within 3 s, since that serves after two. When the
// master is back it has the slave's acks and leases: those under way are acknowledged there, messages are asked for there within
// two seconds, and no message is handled twice.
func TestReadingFromSlave(t *testing.T) {
	for _, way := range []string{"run", "fetch", "messages"} {
		for _, fault := range []string{"killed", "stopped", "refuses"} {
			t.Run(way+"/"+fault, func(t *testing.T) {
				replicated(t, 2, func(t *testing.T, c *fakeCluster, master, slave *fakeBroker) {
					ctx, cancel := context.WithCancel(context.Background())
					defer cancel()
					cl := c.connect(registryNodes)
					p := producer(t, cl)
					send := func(n int) {
						for i := range n {
							if _, err := p.Send(ctx, &Message{OrderKey: fmt.Sprint(i)}); err != nil {
								t.Fatal(err)
							}
						}
					}
					h := &handled{n: map[string]int{}}
					send(20)
					wait := consumers(t, ctx, c, cl, way, h, 10*time.Millisecond)
					time.Sleep(5 * time.Second)
					expect := func(when string, want int) {
						t.Helper()
						if n, twice := h.count(); n != want || twice > 0 {
							t.Errorf("%s: %d were handled, %d of them twice; want %d", when, n, twice, want)
						}
					}
					expect("at first", 20)
					// What the master has and gives nobody.
					master.idle.Store(true)
					master.refuse(wire.Errorf(wire.CodeStopping, "it stops")) // those that wait
					master.refuse(nil)
					send(40)
					slave.follow(master)
					s := c.servers["bg1:1"]
					switch fault {
					case "killed":
						s.kill(true)
					case "stopped":
						s.freeze()
					case "refuses":
						master.refuse(notMaster())
					}
					time.AfterFunc(2*time.Second, func() { slave.refuse(nil) })
					time.Sleep(2*time.Second + 600*time.Millisecond)
					limit := time.Second
					if n, _ := h.count(); n < 30 && fault != "stopped" {
						t.Errorf("%d were handled 600 ms after the slave serves", n)
					}
					time.Sleep(limit)
					expect("at the slave", 60)

					// The master comes back while messages of the slave are being handled.
					master.idle.Store(false)
					switch fault {
					case "killed":
						s.up()
					case "stopped":
						s.thaw()
					case "refuses":
						master.refuse(nil)
					}
					master.merge(slave, notMaster("bg1:1"))
					time.Sleep(2 * reconnectMax)
					before := slave.fetchesSeen()
					send(40)
					time.Sleep(2 * time.Second)
					expect("at the master again", 100)
					if n := slave.fetchesSeen() - before; n > 0 {
						t.Errorf("the slave was asked %d times", n)
					}
					cancel()
					wait()
				})
			})
		}
	}
}

// A lease that a slave gave is acknowledged at the master once that has it, by Ack, and given back there by Release.
func TestLeasesOfSlaveAtMaster(t *testing.T) {
	replicated(t, 1, func(t *testing.T, c *fakeCluster, master, slave *fakeBroker) {
		ctx := context.Background()
		cl := c.connect(registryNodes)
		p, k := producer(t, cl), consumer(t, cl, Start(FromBeginning))
		if err := k.Subscribe(ctx); err != nil {
			t.Fatal(err)
		}
		for range 10 {
			if _, err := p.Send(ctx, &Message{}); err != nil {
				t.Fatal(err)
			}
		}
		slave.follow(master)
		slave.refuse(nil)
		c.servers["bg1:1"].kill(true)
		ds, err := k.Fetch(ctx, 4)
		if err != nil || len(ds) != 4 || ds[0].Lease>>63 != 1 {
			t.Fatalf("%v, %v", ds, err)
		}
		if err := ds[0].Ack(ctx); err != nil {
			t.Errorf("at the slave: %v", err)
		}
		c.servers["bg1:1"].up()
		master.merge(slave, notMaster("bg1:1"))
		time.Sleep(2 * reconnectMax)
		if err := ds[1].Extend(ctx, time.Hour); err != nil || time.Until(ds[1].Deadline) < 30*time.Minute {
			t.Errorf("extended at the master: %v until %v", err, ds[1].Deadline)
		}
		if err := k.Ack(ctx, ds[1]); err != nil {
			t.Errorf("at the master: %v", err)
		}
		if err := k.end(ctx, opRelease, wire.Released, ds[2:]); err != nil {
			t.Errorf("given back at the master: %v", err)
		}
		again, err := k.Fetch(ctx, 10)
		if err != nil || len(again) != 8 || again[0].ID != ds[2].ID || again[0].Lease>>63 != 0 {
			t.Errorf("%d deliveries, %v", len(again), err)
		}
		if err := k.Ack(ctx, again...); err != nil {
			t.Error(err)
		}
	})
}

// A lease of the master outlives a break of the connection. When the master dies and its slave serves, nobody waits for the lease's end:
// it is extended and acknowledged in vain, at once, and the message comes again from the slave.
func TestLeasesOfDeadMaster(t *testing.T) {
	replicated(t, 1, func(t *testing.T, c *fakeCluster, master, slave *fakeBroker) {
		ctx := context.Background()
		cl := c.connect(registryNodes)
		p, k := producer(t, cl), consumer(t, cl, Start(FromBeginning))
		if err := k.Subscribe(ctx); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if _, err := p.Send(ctx, &Message{}); err != nil {
				t.Fatal(err)
			}
		}
		ds, err := k.Fetch(ctx, 3)
		if err != nil || len(ds) != 3 {
			t.Fatalf("%v, %v", ds, err)
		}
		c.servers["bg1:1"].kill(false)
		if err := ds[0].Ack(ctx); err != nil {
			t.Errorf("after a break: %v", err)
		}
		c.servers["bg1:1"].kill(true)
		slave.follow(master)
		time.AfterFunc(2*time.Second, func() { slave.refuse(nil) })
		begun := time.Now()
		if err := ds[1].Ack(ctx); !errors.Is(err, ErrLeaseExpired) {
			t.Errorf("at the slave: %v", err)
		}
		if took := time.Since(begun); took < 2*time.Second || took > 2500*time.Millisecond {
			t.Errorf("it took %v", took)
		}
		if err := ds[2].Extend(ctx, time.Minute); !errors.Is(err, ErrLeaseExpired) {
			t.Errorf("extended at the slave: %v", err)
		}
		again, err := k.Fetch(ctx, 3)
		if err != nil || len(again) != 2 || again[0].ID != ds[1].ID || time.Since(begun) > 3*time.Second {
			t.Errorf("%d deliveries, %v after %v", len(again), err, time.Since(begun))
		}
		if err := k.Ack(ctx, again...); err != nil {
			t.Error(err)
		}
	})
}

// A consumer whose client is closed while the slave's leases are the master's leaves at the master: others get them at once.
func TestLeavingAtMaster(t *testing.T) {
	replicated(t, 1, func(t *testing.T, c *fakeCluster, master, slave *fakeBroker) {
		ctx := context.Background()
		cl := c.connect(registryNodes)
		p, k := producer(t, cl), consumer(t, cl, Start(FromBeginning))
		if err := k.Subscribe(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Send(ctx, &Message{}); err != nil {
			t.Fatal(err)
		}
		slave.follow(master)
		slave.refuse(nil)
		c.servers["bg1:1"].kill(true)
		if ds, err := k.Fetch(ctx, 4); err != nil || len(ds) != 1 {
			t.Fatalf("%v, %v", ds, err)
		}
		c.servers["bg1:1"].up()
		master.merge(slave, notMaster("bg1:1"))
		time.Sleep(2 * reconnectMax)
		if err := cl.Close(ctx); err != nil {
			t.Fatal(err)
		}
		other := consumer(t, c.connect(registryNodes))
		begun := time.Now()
		ds, err := other.Fetch(ctx, 4)
		if err != nil || len(ds) != 1 || time.Since(begun) > time.Second {
			t.Errorf("%v, %v after %v", ds, err, time.Since(begun))
		}
	})
}

// The errors of the new codes are told apart.
func TestErrorsOfReplication(t *testing.T) {
	for code, want := range map[wire.Code]error{wire.CodeNotMaster: ErrNotMaster, wire.CodeNotReplicated: ErrNotReplicated, wire.CodeReadOnly: ErrReadOnly} {
		synctest.Test(t, func(t *testing.T) {
			b := newFakeBroker()
			b.topic("orders", 1)
			c, _ := start(t, b, false)
			b.onProduce = func(_ *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) bool {
				done(nil, wire.Errorf(code, "x"))
				return true
			}
			_, err := producer(t, c).Send(context.Background(), &Message{})
			checkOutcome(t, err, false, want)
			if e, ok := errors.AsType[*Error](err); !ok || e.Attempts < 2 {
				t.Errorf("%v was not tried again", err)
			}
		})
	}
}

// A newer route may give a broker group's lanes another pool while a send of the route before looks for another broker group: what it has tried
// it does not try again in the same round, over and over without a pause.
func TestLeaveAfterNewerRoute(t *testing.T) {
	f := &flight{route: &route{}}
	for _, name := range []string{"bg1", "bg2", "bg3"} {
		l, p := &lane{brokerGroup: name}, &pool{}
		l.pool.Store(p)
		f.route.groups = append(f.route.groups, &routeGroup{pool: p, lanes: []*lane{l}})
	}
	for k, g := range f.route.groups {
		f.target = g.lanes[0]
		f.target.pool.Store(&pool{})
		if f.leave(); f.tried != 1<<(k+1)-1 {
			t.Errorf("after %d broker groups tried is %b", k+1, f.tried)
		}
	}
}

// A message whose order key may move, and whose broker group is away while no other one takes anything, waits at home, and not without a pause.
func TestStaysAtHomeWithPause(t *testing.T) {
	f := &flight{c: &Client{}, route: &route{}, pause: retryMin, deadline: time.Now().Add(time.Hour)}
	for range 3 {
		l, p := &lane{topic: &topic{}, partition: uint32(len(f.route.groups))}, &pool{}
		for range breakerFailures {
			p.breaker.failed(false, 0)
		}
		l.pool.Store(p)
		f.route.groups = append(f.route.groups, &routeGroup{pool: p, lanes: []*lane{l}})
	}
	home := f.route.groups[0].lanes[0]
	f.lane, f.target = home, home
	f.sends = []*pending{{o: &producerOptions{timeout: 3 * time.Second, retries: -1, moveKeys: true}}}
	f.timer = time.AfterFunc(time.Hour, func() {})
	defer f.timer.Stop()
	for n := range 10 {
		begun := time.Now()
		f.ended(wire.Errorf(wire.CodeDisconnected, "nothing is connected"), nil)
		if pause := f.mu.until.Sub(begun); f.mu.phase != phasePausing || f.target != home || pause < min(retryMin<<n, retryMax)/2 {
			t.Fatalf("after attempt %d: phase %d, partition %d, a pause of %v", n+1, f.mu.phase, f.target.partition, pause)
		}
		f.mu.phase = phaseIdle
	}
}
