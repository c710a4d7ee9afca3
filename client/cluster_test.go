package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jmqio/jmq/wire"
)

// fakeMetadata is what registry nodes have in common: views of topics, and who waits for another one.
type fakeMetadata struct {
	mu struct {
		sync.Mutex
		generation uint64
		version    uint64
		views      map[watchKey]*wire.TopicView
		waiting    map[*fakeWatch]bool
		asked      int // requests
		topics     int // of them
		nodes      []*wire.Node
	}
}

type fakeWatch struct {
	r     *wire.WatchRoutesRequest
	done  func(*wire.WatchRoutesResponse, error)
	timer *time.Timer
}

func newFakeMetadata() *fakeMetadata {
	m := new(fakeMetadata)
	m.mu.generation, m.mu.version = 1, 1
	m.mu.views, m.mu.waiting = map[watchKey]*wire.TopicView{}, map[*fakeWatch]bool{}
	return m
}

// set gives a topic another view; group empty: producers'.
func (m *fakeMetadata) set(topic, group string, v *wire.TopicView) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.version++
	v.Topic, v.Group, v.Version = topic, group, m.mu.version<<8|0x5a // no order in it
	m.mu.views[watchKey{topic, group}] = v
	for w := range m.mu.waiting {
		if out := m.answer(w.r); len(out.Views) > 0 {
			m.end(w)
			w.done(out, nil)
		}
	}
}

func (m *fakeMetadata) end(w *fakeWatch) {
	w.timer.Stop()
	delete(m.mu.waiting, w)
}

func (m *fakeMetadata) answer(r *wire.WatchRoutesRequest) *wire.WatchRoutesResponse {
	out := &wire.WatchRoutesResponse{Generation: m.mu.generation, MetadataVersion: m.mu.version, Registry: []string{"r1:1", "r2:1", "r3:1"}}
	for _, t := range r.Topics {
		v := m.mu.views[watchKey{t.Topic, t.Group}]
		if v == nil {
			v = &wire.TopicView{Topic: t.Topic, Group: t.Group, Version: 7, Code: uint32(wire.CodeTopicNotFound), Message: "no such topic"}
		}
		if v.Version != t.Version || r.Generation != m.mu.generation {
			out.Views = append(out.Views, v)
		}
	}
	return out
}

// fakeRegistry is one node over it.
type fakeRegistry struct {
	wire.Registry
	wire.Admin
	*fakeMetadata
	lists atomic.Int32
}

func (n *fakeRegistry) WatchRoutes(_ context.Context, r *wire.WatchRoutesRequest, done func(*wire.WatchRoutesResponse, error)) {
	m := n.fakeMetadata
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.asked++
	m.mu.topics += len(r.Topics)
	if out := m.answer(r); len(out.Views) > 0 || r.WaitMs == 0 {
		done(out, nil)
		return
	}
	w := &fakeWatch{r: r, done: done}
	w.timer = time.AfterFunc(time.Duration(r.WaitMs)*time.Millisecond, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.mu.waiting[w] {
			delete(m.mu.waiting, w)
			done(m.answer(r), nil)
		}
	})
	m.mu.waiting[w] = true
}

func (n *fakeRegistry) ListTopics(context.Context, *wire.ListTopicsRequest) (*wire.ListTopicsResponse, error) {
	n.lists.Add(1)
	return &wire.ListTopicsResponse{Topics: []*wire.Topic{{Name: "orders"}}}, nil
}

func (n *fakeRegistry) ListNodes(context.Context, *wire.ListNodesRequest) (*wire.ListNodesResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return &wire.ListNodesResponse{Nodes: n.mu.nodes}, nil
}

// fakeCluster is registry nodes r1:1 to r3:1, and brokers bg1:1, bg2:1, ...
type fakeCluster struct {
	t        *testing.T
	meta     *fakeMetadata
	registry []*fakeRegistry
	brokers  map[string]*fakeBroker
	servers  map[string]*fakeServer // by address

	mu struct {
		sync.Mutex
		dials map[string]int
	}
}

func newFakeCluster(t *testing.T, groups, partitions int) *fakeCluster {
	c := &fakeCluster{t: t, meta: newFakeMetadata(), brokers: map[string]*fakeBroker{}, servers: map[string]*fakeServer{}}
	c.mu.dials = map[string]int{}
	for i := range 3 {
		n := &fakeRegistry{fakeMetadata: c.meta}
		c.registry = append(c.registry, n)
		s := newFakeServer(newFakeBroker(), false)
		s.h = wire.NewHandler(wire.Services{Registry: n, Admin: n}, wire.HandlerOptions{Broker: fmt.Sprintf("r%d", i+1), Roles: []string{"registry"}})
		c.servers[fmt.Sprintf("r%d:1", i+1)] = s
	}
	for i := range groups {
		c.addBroker(fmt.Sprintf("bg%d", i+1), partitions)
	}
	t.Cleanup(c.close)
	return c
}

func (c *fakeCluster) addBroker(name string, partitions int) *fakeBroker {
	b := newFakeBroker()
	b.name = name
	if partitions > 0 {
		b.topic("orders", partitions)
	}
	s := newFakeServer(b, false)
	s.h = wire.NewHandler(wire.Services{Broker: b, Admin: b}, wire.HandlerOptions{
		Broker: name, BrokerGroup: name, Roles: []string{"broker"}, Elsewhere: func(string) []string { return []string{"r9:1", "r2:1"} },
	})
	c.brokers[name], c.servers[name+":1"] = b, s
	c.meta.mu.Lock()
	defer c.meta.mu.Unlock()
	c.meta.mu.nodes = append(c.meta.mu.nodes, &wire.Node{Last: &wire.HeartbeatRequest{Node: name, BrokerGroup: name, Addresses: []string{name + ":1"}}})
	return b
}

func (c *fakeCluster) close() {
	for _, s := range c.servers {
		s.close()
	}
}

func (c *fakeCluster) dial(ctx context.Context, addr string) (net.Conn, error) {
	c.mu.Lock()
	c.mu.dials[addr]++
	c.mu.Unlock()
	s := c.servers[addr]
	if s == nil {
		return nil, errDown
	}
	return s.dial(ctx, addr)
}

func (c *fakeCluster) dials(addr string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.dials[addr]
}

// routeTo is orders on these broker groups, n partitions each.
func routeTo(n int, groups ...string) *wire.RouteResponse {
	r := &wire.RouteResponse{Version: 1}
	for _, g := range groups {
		r.BrokerGroups = append(r.BrokerGroups, &wire.BrokerGroupRoute{BrokerGroup: g, DataCenter: "dc-" + g, Brokers: []*wire.BrokerRoute{{Broker: g, Addresses: []string{g + ":1"}}}})
		for i := range n {
			r.Partitions = append(r.Partitions, &wire.PartitionRoute{Partition: uint32(i), BrokerGroup: g})
		}
	}
	return r
}

// put puts orders on broker groups, for producers and for the group app.
func (c *fakeCluster) put(n int, groups ...string) {
	c.meta.set("orders", "", &wire.TopicView{Route: routeTo(n, groups...)})
	c.meta.set("orders", "app", &wire.TopicView{Route: routeTo(n, groups...)})
}

func (c *fakeCluster) connect(addresses string, opts ...Option) *Client {
	c.t.Helper()
	cl, err := Dial(context.Background(), addresses, append([]Option{WithDialer(c.dial), WithApp("app")}, opts...)...)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		if err := cl.Close(context.Background()); err != nil {
			c.t.Errorf("close: %v", err)
		}
	})
	return cl
}

const registryNodes = "r1:1,r2:1,r3:1"

func inBubble(t *testing.T, groups, partitions int, f func(t *testing.T, c *fakeCluster)) {
	synctest.Test(t, func(t *testing.T) { f(t, newFakeCluster(t, groups, partitions)) })
}

// The groups of a topic are those of all its broker groups, each once, in whatever order they say them.
func TestDescribeTopicGroups(t *testing.T) {
	inBubble(t, 3, 2, func(t *testing.T, c *fakeCluster) {
		c.put(2, "bg1", "bg2", "bg3")
		cl := c.connect(registryNodes)
		r, err := cl.Cluster().describeTopic(context.Background(), &wire.DescribeTopicRequest{Topic: "orders"},
			func(*pool, context.Context, *wire.DescribeTopicRequest) (*wire.DescribeTopicResponse, error) {
				return &wire.DescribeTopicResponse{Groups: []string{"c", "a", "b"}}, nil
			})
		if err != nil || !slices.Equal(r.Groups, []string{"a", "b", "c"}) {
			t.Errorf("%v, %v", r.GetGroups(), err)
		}
	})
}

// Messages without order key go round all partitions of all broker groups, those with one to a place of the ordered list; a
// consumer gets all of them, knows where from, and acknowledges there. No connection is made before it is needed.
func TestManyBrokerGroups(t *testing.T) {
	inBubble(t, 3, 2, func(t *testing.T, c *fakeCluster) {
		ctx := context.Background()
		c.put(2, "bg1", "bg2", "bg3")
		cl := c.connect(registryNodes)
		if n := c.dials("bg1:1") + c.dials("bg2:1") + c.dials("bg3:1"); n > 0 {
			t.Errorf("%d connections to brokers before any use", n)
		}
		p, k := producer(t, cl), consumer(t, cl, Concurrency(2))
		if err := k.Subscribe(ctx); err != nil {
			t.Fatal(err)
		}
		sent := map[string]string{} // location -> id
		per := map[string]int{}
		for i := range 120 {
			m := &Message{}
			if i >= 60 {
				m.OrderKey = fmt.Sprint("k", i%10)
			}
			r, err := p.Send(ctx, m)
			if err != nil {
				t.Fatal(err)
			}
			sent[r.Location()] = r.MessageID
			if m.OrderKey == "" {
				per[location(r.BrokerGroup, r.Partition)]++
				continue
			}
			place := keyPlace(m.OrderKey, 6)
			if want := location(fmt.Sprint("bg", place/2+1), uint16(place%2)); location(r.BrokerGroup, r.Partition) != want {
				t.Errorf("key %s is at %s, want %s", m.OrderKey, r.Location(), want)
			}
		}
		if len(sent) != 120 || len(per) != 6 || slices.Min(slices.Collect(maps.Values(per))) != 10 {
			t.Errorf("%d places; without key: %v", len(sent), per)
		}
		run, cancel := context.WithCancel(ctx)
		var mu sync.Mutex
		begun := time.Now()
		if err := k.Run(run, func(_ context.Context, d *Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			if sent[d.Location()] != d.ID {
				t.Errorf("%s is %q, sent was %q", d.Location(), d.ID, sent[d.Location()])
			}
			if delete(sent, d.Location()); len(sent) == 0 {
				cancel()
			}
			return nil
		}); err != nil || time.Since(begun) > time.Second {
			t.Errorf("run: %v after %v", err, time.Since(begun))
		}
		lags, err := k.Lag(ctx)
		if err != nil || len(lags) != 6 {
			t.Fatalf("lag: %v, %v", lags, err)
		}
		for i, l := range lags {
			if l.BrokerGroup != fmt.Sprint("bg", i/2+1) || int(l.Partition) != i%2 || l.Lag != 0 || l.End == 0 {
				t.Errorf("lag %d: %+v", i, l)
			}
		}
		one := uint16(1)
		if r, err := p.Send(ctx, &Message{BrokerGroup: "bg2", Partition: &one}); err != nil || r.BrokerGroup != "bg2" || r.Partition != 1 {
			t.Errorf("to bg2/1: %+v, %v", r, err)
		}
		if _, err := p.Send(ctx, &Message{BrokerGroup: "bg9", Partition: &one}); !errors.Is(err, ErrNotFound) {
			t.Errorf("to bg9/1: %v", err)
		}
	})
}

// Each partition's first send names its topic by name alone, and all others also by what that broker group told: a topic that is made
// again, or that gets partitions, is told anew, once for each partition. Routes are not asked for again.
func TestTopicIDs(t *testing.T) {
	inBubble(t, 2, 2, func(t *testing.T, c *fakeCluster) {
		ctx := context.Background()
		bg1, bg2 := c.brokers["bg1"], c.brokers["bg2"]
		bg1.mu.id, bg2.mu.id = 7, 300
		c.put(2, "bg1", "bg2")
		p := producer(t, c.connect(registryNodes))
		send := func(what string, n int, byName ...int) { // n round all 4 partitions; byName of those to each broker group without its id
			t.Helper()
			sent := map[string]int{} // at first one of the two may be connected and the other not yet
			for i := range n {
				m := &Message{}
				if i%8 >= 4 { // the same partitions by another lane
					partition := uint16(i % 2)
					m.BrokerGroup, m.Partition = fmt.Sprint("bg", 1+i%4/2), &partition
				}
				r, err := p.Send(ctx, m)
				if err != nil {
					t.Fatal(err)
				}
				sent[r.BrokerGroup]++
			}
			for i, b := range []*fakeBroker{bg1, bg2} {
				b.mu.Lock()
				if want := sent[fmt.Sprint("bg", i+1)] - byName[i]; b.mu.hints != want || want < n/4-byName[i] {
					t.Errorf("%s: %d sends to broker group %d had its id, want %d", what, b.mu.hints, i+1, want)
				}
				b.mu.hints = 0
				b.mu.Unlock()
			}
		}
		send("at first", 40, 2, 2)
		send("later", 40, 0, 0)
		bg1.mu.Lock()
		bg1.mu.id = 8
		bg1.mu.Unlock()
		send("made again at one", 40, 2, 0)
		bg2.topic("orders", 3)
		send("more partitions at one", 40, 0, 2)
		c.meta.mu.Lock()
		defer c.meta.mu.Unlock()
		if c.meta.mu.topics > 2 { // the first, and the one that waits
			t.Errorf("views were asked for %d times", c.meta.mu.topics)
		}
	})
}

// A broker group that is added while messages flow is used within two seconds: by producers at once, and by the group from its
// first message on, though it began at the end elsewhere. One that leaves the route is not, and its connections end.
func TestRouteChangesUnderLoad(t *testing.T) {
	inBubble(t, 2, 2, func(t *testing.T, c *fakeCluster) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		c.put(2, "bg1")
		cl := c.connect(registryNodes)
		p, k := producer(t, cl), consumer(t, cl, Concurrency(3))
		if err := k.Subscribe(ctx); err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		sent, got := map[string]time.Time{}, map[string]int{}
		from := map[string]int{}
		var working sync.WaitGroup
		working.Go(func() {
			if err := k.Run(ctx, func(_ context.Context, d *Delivery) error {
				mu.Lock()
				defer mu.Unlock()
				got[d.ID]++
				from[d.BrokerGroup]++
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
		stop := make(chan struct{})
		for i := range 4 {
			working.Go(func() {
				for n := 0; ; n++ {
					select {
					case <-stop:
						return
					case <-time.After(5 * time.Millisecond):
					}
					m := &Message{}
					if n%2 == 0 {
						m.OrderKey = fmt.Sprint(i, n%20)
					}
					r, err := p.Send(ctx, m)
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					sent[r.MessageID] = time.Now()
					mu.Unlock()
				}
			})
		}
		time.Sleep(time.Second)
		c.put(2, "bg1", "bg2")
		time.Sleep(2 * time.Second)
		mu.Lock()
		if from["bg2"] == 0 {
			t.Error("nothing of bg2 was consumed within two seconds")
		}
		mu.Unlock()
		c.put(2, "bg2")
		time.Sleep(time.Second)
		mu.Lock()
		before := from["bg1"]
		mu.Unlock()
		time.Sleep(2 * time.Second)
		close(stop)
		time.Sleep(time.Second)
		mu.Lock()
		if from["bg1"] != before {
			t.Errorf("%d of bg1 were consumed after it left", from["bg1"]-before)
		}
		for id := range sent {
			if n := got[id]; n != 1 {
				t.Errorf("a message was got %d times", n)
			}
		}
		mu.Unlock()
		bg1 := c.servers["bg1:1"]
		time.Sleep(3 * idleTime)
		bg1.mu.Lock()
		if n := len(bg1.mu.sessions); n > 0 {
			t.Errorf("%d connections to a broker group that no route names", n)
		}
		bg1.mu.Unlock()
		cancel()
		working.Wait()
	})
}

// When a broker group dies, messages without order key go to the others without an error; those with a key wait for it, and fail
// as not stored when their time is over.
func TestBrokerGroupDies(t *testing.T) {
	inBubble(t, 3, 1, func(t *testing.T, c *fakeCluster) {
		ctx := context.Background()
		c.put(1, "bg1", "bg2", "bg3")
		cl := c.connect(registryNodes)
		p := producer(t, cl)
		for range 6 {
			if _, err := p.Send(ctx, &Message{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond) // for all to be connected to
		}
		key := ""
		for i := 0; key == ""; i++ {
			if k := fmt.Sprint(i); keyPlace(k, 3) == 1 {
				key = k
			}
		}
		// One that dies with a send under way.
		var once sync.Once
		c.brokers["bg2"].onProduce = func(*wire.ProduceRequest, func(*wire.ProduceResponse, error)) (handled bool) {
			once.Do(func() { handled = true; go c.servers["bg2:1"].kill(true) })
			return handled
		}
		begun := time.Now()
		unknown := 0
		for range 30 {
			r, err := p.Send(ctx, &Message{})
			if err != nil {
				t.Fatal(err)
			}
			unknown += r.Unknown
		}
		msgs := []*Message{{}, {}, {}}
		for range 6 {
			if _, err := p.SendBatch(ctx, msgs); err != nil {
				t.Fatal(err)
			}
		}
		if unknown != 1 || time.Since(begun) > 100*time.Millisecond {
			t.Errorf("%d unknown, after %v", unknown, time.Since(begun))
		}
		begun = time.Now()
		_, err := p.Send(ctx, &Message{OrderKey: key})
		checkOutcome(t, err, false, ErrDisconnected)
		if took := time.Since(begun); took < 2*time.Second || took > 3*time.Second {
			t.Errorf("with key: %v", took)
		}
		time.AfterFunc(time.Second, c.servers["bg2:1"].up)
		if r, err := p.Send(ctx, &Message{OrderKey: key}); err != nil || r.BrokerGroup != "bg2" {
			t.Errorf("with key, when it is back: %+v, %v", r, err)
		}
		// Codes that say: elsewhere.
		for _, code := range []wire.Code{wire.CodeStopping, wire.CodeFailed, wire.CodeNoSpace, wire.CodeTopicNotFound} {
			c.brokers["bg3"].onProduce = func(_ *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) bool {
				done(nil, wire.Errorf(code, "x"))
				return true
			}
			begun := time.Now()
			for range 9 {
				if r, err := p.Send(ctx, &Message{}); err != nil || r.BrokerGroup == "bg3" || r.Unknown != 0 {
					t.Errorf("%v: %+v, %v", code, r, err)
				}
			}
			if took := time.Since(begun); took > 10*time.Millisecond {
				t.Errorf("%v: took %v", code, took)
			}
		}
	})
}

// What may be carried out once only goes to a registry node, where one is known, and not by a broker that is silent.
func TestCallOnce(t *testing.T) {
	inBubble(t, 1, 1, func(t *testing.T, c *fakeCluster) {
		cl := c.connect("bg1:1", WithConns(1))
		c.servers["bg1:1"].freeze()
		begun := time.Now()
		var r wire.ListNodesResponse
		if err := cl.Cluster().CallOnce(context.Background(), "list", wire.CommandListNodes, &wire.ListNodesRequest{}, &r); err != nil || len(r.Nodes) != 1 {
			t.Errorf("%v, %v", err, &r)
		}
		if took := time.Since(begun); took > 2*registryPatience { // of those that it names one is down
			t.Errorf("it took %v", took)
		}
		c.servers["bg1:1"].thaw()
	})
}

// Registry nodes are killed one by one and all: what is known stays, and no change is missed.
func TestRegistryNodesDie(t *testing.T) {
	inBubble(t, 3, 1, func(t *testing.T, c *fakeCluster) {
		ctx := context.Background()
		c.put(1, "bg1")
		cl := c.connect(registryNodes)
		p := producer(t, cl)
		groups := func() (all []string) {
			for range 6 {
				r, err := p.Send(ctx, &Message{})
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, r.BrokerGroup)
				time.Sleep(10 * time.Millisecond) // one that is new is connected to with the first send
			}
			slices.Sort(all)
			return slices.Compact(all)
		}
		expect := func(when string, want ...string) {
			t.Helper()
			if got := groups(); !slices.Equal(got, want) {
				t.Errorf("%s: sends go to %v, want %v", when, got, want)
			}
		}
		expect("at first", "bg1")
		c.servers["r1:1"].kill(true)
		c.put(1, "bg1", "bg2")
		time.Sleep(time.Second)
		expect("one is dead", "bg1", "bg2")
		c.servers["r2:1"].kill(true)
		c.servers["r3:1"].kill(true)
		c.put(1, "bg2", "bg3") // nobody hears it
		time.Sleep(time.Hour)
		expect("all are dead", "bg1", "bg2")
		c.servers["r2:1"].up()
		time.Sleep(2 * reconnectMax)
		expect("one is back", "bg2", "bg3")
		// An older database is not believed, a new generation is.
		c.meta.mu.Lock()
		c.meta.mu.generation = 0
		c.meta.mu.Unlock()
		c.put(1, "bg1")
		time.Sleep(time.Minute)
		expect("an older generation", "bg2", "bg3")
		c.meta.mu.Lock()
		c.meta.mu.generation = 2
		c.meta.mu.Unlock()
		c.put(1, "bg3")
		time.Sleep(10 * time.Second)
		expect("a new generation", "bg3")
	})
}

// A client that was given brokers only learns of registry nodes by them; brokers that hold metadata answer when no registry node does.
func TestMetadataAtBrokers(t *testing.T) {
	inBubble(t, 2, 1, func(t *testing.T, c *fakeCluster) {
		ctx := context.Background()
		c.put(1, "bg1", "bg2")
		// Without: it names who has it.
		cl := c.connect("bg1:1")
		if _, err := producer(t, cl).Send(ctx, &Message{}); err != nil {
			t.Fatal(err)
		}
		if n := c.dials("r2:1"); n == 0 {
			t.Error("the node that has metadata was not asked")
		}
		synctest.Wait()
		if n := c.dials("bg1:1"); n != 2 {
			t.Errorf("%d connections to a broker that is at home", n)
		}
		// With.
		holds := func(name string) {
			c.servers[name+":1"].h = wire.NewHandler(wire.Services{Broker: c.brokers[name], Admin: c.brokers[name], Registry: &fakeRegistry{fakeMetadata: c.meta}},
				wire.HandlerOptions{Broker: name, BrokerGroup: name})
		}
		holds("bg1")
		holds("bg2")
		c.servers["bg1:1"].kill(false)
		c.servers["bg2:1"].kill(false)
		for _, r := range []string{"r1:1", "r2:1", "r3:1"} {
			c.servers[r].kill(true)
		}
		p := producer(t, cl)
		time.Sleep(5 * time.Second)
		c.put(1, "bg2")
		time.Sleep(2 * time.Second)
		for range 4 {
			if r, err := p.Send(ctx, &Message{}); err != nil || r.BrokerGroup != "bg2" {
				t.Errorf("%+v, %v", r, err)
			}
		}
		c.servers["bg1:1"].kill(true) // home is gone: bg2 says it too
		time.Sleep(10 * time.Second)
		c.put(1, "bg2")
		c.meta.set("orders", "", &wire.TopicView{Code: uint32(wire.CodeForbidden)})
		time.Sleep(2 * time.Second)
		if _, err := p.Send(ctx, &Message{}); !errors.Is(err, ErrForbidden) {
			t.Errorf("told by bg2: %v", err)
		}
	})
}

// What the registry says of a client's settings is in force within two seconds, and when it says nothing any more the options are.
func TestSettings(t *testing.T) {
	inBubble(t, 1, 8, func(t *testing.T, c *fakeCluster) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		c.put(8, "bg1")
		cl := c.connect(registryNodes)
		p := producer(t, cl, Timeout(3*time.Second))
		b := c.brokers["bg1"]
		var hang atomic.Bool
		var batches atomic.Uint32
		b.onProduce = func(*wire.ProduceRequest, func(*wire.ProduceResponse, error)) bool { return hang.Load() }
		b.onFetch = func(r *wire.FetchRequest) error { batches.Store(r.MessagesMax); return nil }
		if _, err := p.Send(ctx, &Message{}); err != nil {
			t.Fatal(err)
		}
		took := func() time.Duration {
			begun := time.Now()
			_, err := p.Send(ctx, &Message{})
			checkOutcome(t, err, true, nil)
			return time.Since(begun).Round(100 * time.Millisecond)
		}
		hang.Store(true)
		if d := took(); d != 3*time.Second {
			t.Errorf("by option: %v", d)
		}
		c.meta.set("orders", "", &wire.TopicView{Route: routeTo(8, "bg1"), Producer: &wire.ProducerSettings{TimeoutMs: new(uint32(600))}})
		time.Sleep(time.Second)
		if d := took(); d != 600*time.Millisecond {
			t.Errorf("by the registry: %v", d)
		}
		if err := func() (err error) {
			p.SendAsync(ctx, &Message{}, func(_ Receipt, e error) { err = e })
			begun := time.Now()
			p.Flush(ctx)
			if d := time.Since(begun); d > 900*time.Millisecond {
				t.Errorf("async, by the registry: %v", d)
			}
			return err
		}(); !errors.Is(err, ErrUnknown) {
			t.Errorf("async: %v", err)
		}
		hang.Store(false)
		c.meta.set("orders", "", &wire.TopicView{Route: routeTo(8, "bg1"), Producer: &wire.ProducerSettings{Paused: new(true)}})
		time.Sleep(time.Second)
		_, err := p.Send(ctx, &Message{})
		checkOutcome(t, err, false, ErrPaused)
		c.put(8, "bg1")
		time.Sleep(time.Second)
		if _, err := p.Send(ctx, &Message{}); err != nil {
			t.Error(err)
		}

		// Concurrency, batch and pause of a consumer that runs.
		var mu sync.Mutex
		running, most, handled := 0, 0, 0
		k := consumer(t, cl, Concurrency(1), Batch(1))
		if err := k.Subscribe(ctx); err != nil {
			t.Fatal(err)
		}
		var working sync.WaitGroup
		working.Go(func() {
			if err := k.Run(ctx, func(context.Context, *Delivery) error {
				mu.Lock()
				running++
				handled++
				most = max(most, running)
				mu.Unlock()
				time.Sleep(100 * time.Millisecond)
				mu.Lock()
				running--
				mu.Unlock()
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
		working.Go(func() {
			for ctx.Err() == nil {
				for i := range uint16(8) {
					if _, err := p.Send(ctx, &Message{Partition: &i}); err != nil && ctx.Err() == nil {
						t.Error(err)
					}
				}
				time.Sleep(100 * time.Millisecond)
			}
		})
		concurrent := func() int {
			mu.Lock()
			most = 0
			mu.Unlock()
			time.Sleep(2 * time.Second)
			mu.Lock()
			defer mu.Unlock()
			return most
		}
		say := func(s *wire.ConsumerSettings) {
			c.meta.set("orders", "app", &wire.TopicView{Route: routeTo(8, "bg1"), Consumer: s})
			time.Sleep(1500 * time.Millisecond)
		}
		if n := concurrent(); n != 1 {
			t.Errorf("by option: %d at a time", n)
		}
		say(&wire.ConsumerSettings{Concurrency: new(uint32(5))})
		if n := concurrent(); n != 5 {
			t.Errorf("by the registry: %d at a time, want 5", n)
		}
		say(&wire.ConsumerSettings{Concurrency: new(uint32(2))})
		if n := concurrent(); n != 2 {
			t.Errorf("by the registry: %d at a time, want 2", n)
		}
		say(&wire.ConsumerSettings{Paused: new(true)})
		mu.Lock()
		before := handled
		mu.Unlock()
		if !k.Paused() {
			t.Error("not paused")
		}
		time.Sleep(3 * time.Second)
		mu.Lock()
		if handled != before {
			t.Errorf("%d were handled while it was paused", handled-before)
		}
		mu.Unlock()
		ds, err := k.Fetch(ctx, 1, Wait(100*time.Millisecond))
		if err != nil || len(ds) > 0 {
			t.Errorf("fetch while paused: %v, %v", ds, err)
		}
		say(&wire.ConsumerSettings{BatchMessages: new(uint32(77))})
		if n := batches.Load(); n != 77 {
			t.Errorf("fetches ask for %d messages", n)
		}
		cancel()
		working.Wait()
	})
}

// What a view says of a topic that may not be used is a typed error, as soon as the view says so; and no longer.
func TestViewCodes(t *testing.T) {
	inBubble(t, 1, 1, func(t *testing.T, c *fakeCluster) {
		ctx := context.Background()
		cl := c.connect(registryNodes)
		p, k := producer(t, cl), consumer(t, cl)
		for _, code := range []struct {
			code wire.Code
			is   error
		}{{wire.CodeTopicNotFound, ErrNotFound}, {wire.CodeForbidden, ErrForbidden}, {wire.CodePaused, ErrPaused}} {
			if code.code != wire.CodeTopicNotFound { // which is so at first
				c.meta.set("orders", "", &wire.TopicView{Code: uint32(code.code), Message: "because"})
				c.meta.set("orders", "app", &wire.TopicView{Code: uint32(code.code), Message: "because"})
				time.Sleep(time.Second)
			}
			_, err := p.Send(ctx, &Message{})
			checkOutcome(t, err, false, code.is)
			if code.code == wire.CodePaused {
				continue
			}
			if err := k.Run(ctx, func(context.Context, *Delivery) error { return nil }); !errors.Is(err, code.is) {
				t.Errorf("run: %v, want %v", err, code.is)
			}
			if _, err := k.Fetch(ctx, 1); !errors.Is(err, code.is) {
				t.Errorf("fetch: %v, want %v", err, code.is)
			}
		}
		c.put(1, "bg1")
		time.Sleep(time.Second)
		ran := make(chan error, 1)
		go func() { ran <- k.Run(ctx, func(context.Context, *Delivery) error { return nil }) }()
		synctest.Wait()
		if _, err := p.Send(ctx, &Message{}); err != nil {
			t.Error(err)
		}
		c.meta.set("orders", "app", &wire.TopicView{Code: uint32(wire.CodeForbidden)})
		begun := time.Now()
		if err := <-ran; !errors.Is(err, ErrForbidden) || time.Since(begun) > 2*time.Second {
			t.Errorf("a right that was taken: %v after %v", err, time.Since(begun))
		}
	})
}

// A broker that has not heard yet of what the registry says is waited for; one that goes on refusing ends the consumer.
func TestBrokerLags(t *testing.T) {
	inBubble(t, 1, 0, func(t *testing.T, c *fakeCluster) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		c.put(1, "bg1")
		var refuse atomic.Bool
		c.brokers["bg1"].onFetch = func(*wire.FetchRequest) error {
			if refuse.Load() {
				return wire.Errorf(wire.CodeForbidden, "x")
			}
			return nil
		}
		cl := c.connect(registryNodes)
		p, k := producer(t, cl), consumer(t, cl, Start(FromBeginning))
		time.AfterFunc(time.Second, func() { c.brokers["bg1"].topic("orders", 1) })
		got := make(chan string, 1)
		ran := make(chan error, 1)
		go func() {
			ran <- k.Run(ctx, func(_ context.Context, d *Delivery) error { got <- d.ID; return nil })
		}()
		begun := time.Now()
		r, err := p.Send(ctx, &Message{OrderKey: "k"})
		if err != nil || time.Since(begun) > 2*time.Second {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
		if id := <-got; id != r.MessageID {
			t.Errorf("got %s, want %s", id, r.MessageID)
		}
		refuse.Store(true)
		begun = time.Now()
		if err := <-ran; !errors.Is(err, ErrForbidden) || time.Since(begun) < lagTime || time.Since(begun) > 2*lagTime {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
	})
}

// Fetch gives messages of whichever broker group has some, and keeps none of the others from other clients.
func TestFetchOfMany(t *testing.T) {
	inBubble(t, 3, 1, func(t *testing.T, c *fakeCluster) {
		ctx := context.Background()
		c.put(1, "bg1", "bg2", "bg3")
		one, two := c.connect(registryNodes), c.connect(registryNodes)
		p, k, other := producer(t, one), consumer(t, one), consumer(t, two)
		if err := k.Subscribe(ctx); err != nil {
			t.Fatal(err)
		}
		if err := other.Subscribe(ctx); err != nil {
			t.Fatal(err)
		}
		zero := uint16(0)
		send := func(group string) {
			if _, err := p.Send(ctx, &Message{BrokerGroup: group, Partition: &zero}); err != nil {
				t.Error(err)
			}
		}
		begun := time.Now()
		if ds, err := k.Fetch(ctx, 1, Wait(2*time.Second)); len(ds) > 0 || err != nil || time.Since(begun) != 2*time.Second {
			t.Errorf("nothing is there: %v, %v after %v", ds, err, time.Since(begun))
		}
		time.AfterFunc(time.Second, func() { send("bg2") })
		begun = time.Now()
		ds, err := k.Fetch(ctx, 1, Wait(5*time.Second))
		if err != nil || len(ds) != 1 || ds[0].BrokerGroup != "bg2" || time.Since(begun) != time.Second {
			t.Fatalf("it waits at all: %v, %v after %v", ds, err, time.Since(begun))
		}
		if err := ds[0].Ack(ctx); err != nil {
			t.Error(err)
		}
		// While a fetch waits, all get one at the same moment.
		got := make(chan []*Delivery, 1)
		go func() {
			ds, err := k.Fetch(ctx, 1, Wait(5*time.Second))
			if err != nil {
				t.Error(err)
			}
			got <- ds
		}()
		synctest.Wait()
		for _, g := range []string{"bg1", "bg2", "bg3"} {
			go send(g)
		}
		mine := <-got
		if len(mine) != 1 {
			t.Fatalf("got %v", mine)
		}
		time.Sleep(100 * time.Millisecond)
		from := []string{mine[0].BrokerGroup}
		for range 2 {
			ds, err := other.Fetch(ctx, 1, Wait(0))
			if err != nil || len(ds) != 1 {
				t.Fatalf("the other client: %v, %v", ds, err)
			}
			from = append(from, ds[0].BrokerGroup)
			if err := ds[0].Ack(ctx); err != nil {
				t.Error(err)
			}
		}
		slices.Sort(from)
		if !slices.Equal(from, []string{"bg1", "bg2", "bg3"}) {
			t.Errorf("from %v", from)
		}
		if err := mine[0].Extend(ctx, 2*time.Minute); err != nil {
			t.Error(err)
		}
		if err := mine[0].Ack(ctx); err != nil {
			t.Error(err)
		}
		// One that is away holds nobody up.
		c.servers["bg1:1"].kill(true)
		send("bg2")
		time.Sleep(time.Second)
		begun = time.Now()
		if ds, err := k.Fetch(ctx, 1, Wait(5*time.Second)); err != nil || len(ds) != 1 || time.Since(begun) > time.Second {
			t.Errorf("one is away: %v, %v after %v", ds, err, time.Since(begun))
		}
	})
}

// A handler that takes long keeps no messages of other broker groups: another consumer gets them within two seconds. All
// broker groups have their turn.
func TestTurns(t *testing.T) {
	inBubble(t, 3, 1, func(t *testing.T, c *fakeCluster) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		c.put(1, "bg1", "bg2", "bg3")
		cl := c.connect(registryNodes)
		p, k := producer(t, cl), consumer(t, cl, Batch(5))
		if err := k.Subscribe(ctx); err != nil {
			t.Fatal(err)
		}
		for range 60 {
			if _, err := p.Send(ctx, &Message{}); err != nil {
				t.Fatal(err)
			}
		}
		var working sync.WaitGroup
		var mu sync.Mutex
		var order []string
		release := make(chan struct{})
		working.Go(func() {
			if err := k.Run(ctx, func(_ context.Context, d *Delivery) error {
				<-release
				time.Sleep(10 * time.Millisecond)
				mu.Lock()
				defer mu.Unlock()
				if n := len(order); n == 0 || order[n-1] != d.BrokerGroup {
					order = append(order, d.BrokerGroup)
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(2 * time.Second)
		other := consumer(t, c.connect(registryNodes))
		from := map[string]bool{}
		for range 2 {
			ds, err := other.Fetch(ctx, 1, Wait(0))
			if err != nil || len(ds) != 1 {
				t.Fatalf("the other client: %v, %v", ds, err)
			}
			from[ds[0].BrokerGroup] = true
			defer ds[0].Release(ctx)
		}
		if len(from) != 2 {
			t.Errorf("from %v", from)
		}
		cl2 := other.c
		if err := cl2.Close(ctx); err != nil { // gives back
			t.Error(err)
		}
		close(release)
		time.Sleep(3 * time.Second)
		mu.Lock()
		if len(order) < 6 {
			t.Errorf("turns: %v", order)
		}
		mu.Unlock()
		cancel()
		working.Wait()
	})
}

// Above a limit a send waits as long as the broker says, once; longer than its time, it fails at once and says so.
func TestLimited(t *testing.T) {
	inBubble(t, 1, 1, func(t *testing.T, c *fakeCluster) {
		ctx := context.Background()
		c.put(1, "bg1")
		p := producer(t, c.connect(registryNodes))
		after, asked := 1700*time.Millisecond, 0
		c.brokers["bg1"].onProduce = func(_ *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) bool {
			if asked++; asked == 1 {
				done(nil, &wire.CodeError{Code: wire.CodeLimited, Message: "1 message a second", RetryAfter: after})
				return true
			}
			return false
		}
		begun := time.Now()
		if _, err := p.Send(ctx, &Message{}); err != nil || time.Since(begun) != after || asked != 2 {
			t.Errorf("%v after %v, asked %d times", err, time.Since(begun), asked)
		}
		after, asked = 20*time.Second, 0
		begun = time.Now()
		_, err := p.Send(ctx, &Message{})
		checkOutcome(t, err, false, ErrLimited)
		if e := new(Error); !errors.As(err, &e) || e.RetryAfter != after || !strings.Contains(err.Error(), "room in 20s") || time.Since(begun) > time.Second {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
	})
}

// What a node does not answer is asked of those that it names, and answers of all broker groups are put together.
func TestAdminOfMany(t *testing.T) {
	inBubble(t, 3, 2, func(t *testing.T, c *fakeCluster) {
		ctx := context.Background()
		c.put(2, "bg1", "bg2", "bg3")
		for _, b := range c.brokers {
			b.Admin = nil
		}
		c.servers["bg1:1"].h = wire.NewHandler(wire.Services{Broker: c.brokers["bg1"]}, wire.HandlerOptions{
			Broker: "bg1", BrokerGroup: "bg1", Elsewhere: func(string) []string { return []string{"r9:1", "r2:1"} }, // one does not live
		})
		cl := c.connect("bg1:1")
		ts, err := cl.ListTopics(ctx)
		if err != nil || len(ts) != 1 || c.registry[1].lists.Load() != 1 {
			t.Errorf("list topics: %v, %v", ts, err)
		}
		names, err := cl.Cluster().Groups(ctx)
		if err != nil || !slices.Equal(names, []string{"bg1", "bg2", "bg3"}) {
			t.Errorf("broker groups: %v, %v", names, err)
		}
		if _, ok := cl.Cluster().Group("bg2"); !ok {
			t.Error("no access to bg2")
		}
		if _, ok := cl.Cluster().Group("bg9"); ok {
			t.Error("access to bg9")
		}
		// One that is away: what the others say comes with its error.
		reg := c.connect(registryNodes)
		if err := consumer(t, reg).Subscribe(ctx); err != nil {
			t.Fatal(err)
		}
		c.servers["bg1:1"].h = wire.NewHandler(wire.Services{Broker: c.brokers["bg1"], Admin: c.brokers["bg1"]}, wire.HandlerOptions{Broker: "bg1", BrokerGroup: "bg1"})
		c.servers["bg1:1"].kill(false)
		c.servers["bg3:1"].kill(true)
		time.Sleep(time.Second)
		begun := time.Now()
		lags, err := reg.GroupLag(ctx, "orders", "app")
		if !errors.Is(err, ErrDisconnected) || len(lags) != 4 || lags[3].BrokerGroup != "bg2" || time.Since(begun) > 2*callTimeout {
			t.Errorf("lag: %v, %v after %v", lags, err, time.Since(begun))
		}
	})
}

// A broker group that is away keeps its order keys, and gets nothing else; one that is near gets all the rest; one that is read-only
// is consumed only.
func TestRouteStates(t *testing.T) {
	inBubble(t, 3, 1, func(t *testing.T, c *fakeCluster) {
		ctx := context.Background()
		read := func(r *wire.RouteResponse, s *wire.ProducerSettings, opts ...Option) (keyed, active []string) {
			t.Helper()
			c.meta.set("orders", "", &wire.TopicView{Route: r, Producer: s})
			cl := c.connect(registryNodes, opts...)
			rt, err := cl.topic("orders").routed(ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range rt.keyed {
				keyed = append(keyed, l.brokerGroup)
			}
			for _, l := range rt.active {
				active = append(active, l.brokerGroup)
			}
			return keyed, active
		}
		check := func(what string, r *wire.RouteResponse, s *wire.ProducerSettings, keyed, active []string, opts ...Option) {
			t.Helper()
			if k, a := read(r, s, opts...); !slices.Equal(k, keyed) || !slices.Equal(a, active) {
				t.Errorf("%s: keyed %v, active %v; want %v, %v", what, k, a, keyed, active)
			}
		}
		all := []string{"bg1", "bg2", "bg3"}
		check("as it is", routeTo(1, "bg3", "bg1", "bg2"), nil, all, all)
		r := routeTo(1, all...)
		r.BrokerGroups[1].Brokers[0].Away = true
		check("away", r, nil, all, []string{"bg1", "bg3"})
		for _, g := range r.BrokerGroups {
			g.Brokers[0].Away = true
		}
		check("all away", r, nil, all, all)
		r = routeTo(1, all...)
		r.Partitions[1].State = 4
		check("away, by its state", r, nil, all, []string{"bg1", "bg3"})
		r = routeTo(1, all...)
		r.Partitions[0].State = 1
		check("read-only", r, nil, []string{"bg2", "bg3"}, []string{"bg2", "bg3"})
		near := &wire.ProducerSettings{Near: new(true), DataCenter: new("dc-bg2")}
		check("near", routeTo(1, all...), near, all, []string{"bg2"})
		check("near, by option", routeTo(1, all...), near, all, []string{"bg3"}, WithDataCenter("dc-bg3"))
		check("nothing is near", routeTo(1, all...), near, all, all, WithDataCenter("dc-x"))
		for _, p := range r.Partitions {
			p.State = 2
		}
		c.meta.set("orders", "", &wire.TopicView{Route: r})
		_, err := producer(t, c.connect(registryNodes)).Send(ctx, &Message{})
		checkOutcome(t, err, false, ErrNotFound)
	})
}

// Thousands of topics are watched with few requests, whoever asked for them when, and each change comes within two seconds.
func TestManyTopics(t *testing.T) {
	inBubble(t, 1, 1, func(t *testing.T, c *fakeCluster) {
		ctx := context.Background()
		const topics = 2500
		name := func(i int) string { return fmt.Sprint("t", i) }
		for i := range topics {
			c.meta.set(name(i), "", &wire.TopicView{Route: routeTo(1, "bg1")})
		}
		cl := c.connect(registryNodes)
		for i := range topics {
			if _, err := cl.topic(name(i)).routed(ctx, nil); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		c.meta.mu.Lock()
		waiting, asked := len(c.meta.mu.waiting), c.meta.mu.asked
		c.meta.mu.Unlock()
		if waiting != topics/topicsMax+1 {
			t.Errorf("%d requests wait", waiting)
		}
		for i := 0; i < topics; i += 100 {
			c.meta.set(name(i), "", &wire.TopicView{Code: uint32(wire.CodeForbidden)})
		}
		time.Sleep(2 * time.Second)
		for i := range topics {
			if r := cl.topic(name(i)).route.Load(); errors.Is(r.err, ErrForbidden) != (i%100 == 0) {
				t.Fatalf("topic %d: %v", i, r.err)
			}
		}
		time.Sleep(10 * time.Minute)
		c.meta.mu.Lock()
		defer c.meta.mu.Unlock()
		if n := c.meta.mu.asked - asked; n > 10*60/15*(topics/topicsMax+2) {
			t.Errorf("%d requests in ten idle minutes", n)
		}
	})
}
