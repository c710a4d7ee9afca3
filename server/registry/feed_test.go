package registry

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/wire"
)

// shop is metadata with two apps, a topic on three broker groups, and one on one.
func shop(t testing.TB) *meta.Memory {
	t.Helper()
	store := meta.NewMemory(nil)
	specs := map[meta.Key]meta.Spec{
		appKey("shop"): &meta.App{}, appKey("pay"): &meta.App{},
		{Kind: meta.KindDataCenter, Name: "east"}: &meta.DataCenter{Networks: []string{"10.0.0.0/8"}},
		{Kind: meta.KindDataCenter, Name: "west"}: &meta.DataCenter{Networks: []string{"10.7.0.0/16", "fd00::/8"}},
		topicKey("orders"):                        &meta.Topic{Partitions: 2, BrokerGroups: []string{"g1", "g2", "g3"}},
		topicKey("mail"):                          &meta.Topic{Partitions: 1, BrokerGroups: []string{"g1"}},
		producerKey("orders", "shop"):             &meta.Producer{Timeout: meta.Duration(2 * time.Second)},
		consumerKey("orders", "pay"):              &meta.Consumer{Concurrency: 4, BatchMessages: 20, AckTimeout: meta.Duration(time.Minute)},
		consumerKey("orders", "pay.slow"):         &meta.Consumer{Concurrency: 1},
		producerKey("mail", "pay"):                &meta.Producer{},
	}
	for i := 1; i <= 3; i++ {
		g := fmt.Sprint("g", i)
		specs[groupKey(g)] = &meta.BrokerGroup{DataCenter: []string{"east", "west", ""}[i-1]}
		specs[brokerKey("b"+g)] = &meta.Broker{BrokerGroup: g, Addresses: []string{g + ":50088"}}
	}
	write(t, store, specs)
	return store
}

func app(name, addr string) context.Context {
	return wire.WithPeer(context.Background(), &wire.Peer{Addr: addr, Principal: wire.Principal{Kind: wire.PrincipalApp, Name: name}})
}

// ask asks a feed once, without waiting.
func ask(t testing.TB, f *Feed, ctx context.Context, topics ...*wire.WatchedTopic) *wire.WatchRoutesResponse {
	t.Helper()
	var got *wire.WatchRoutesResponse
	f.WatchRoutes(ctx, &wire.WatchRoutesRequest{Topics: topics}, func(r *wire.WatchRoutesResponse, err error) {
		if err != nil {
			t.Fatal(err)
		}
		got = r
	})
	return got
}

// text is a view in a line.
func text(v *wire.TopicView) string {
	if v.Code != 0 {
		return wire.Code(v.Code).String()
	}
	var parts []string
	for _, g := range v.Route.BrokerGroups {
		n, state := 0, uint32(0)
		for _, p := range v.Route.Partitions {
			if p.BrokerGroup == g.BrokerGroup {
				n++
				state = p.State
			}
		}
		s := fmt.Sprintf("%s:%d/%d", g.BrokerGroup, n, state)
		if g.DataCenter != "" {
			s += "@" + g.DataCenter
		}
		if g.Weight != 0 {
			s += fmt.Sprintf("*%d", g.Weight)
		}
		for _, b := range g.Brokers {
			s += "(" + strings.Join(b.Addresses, ",")
			if b.Away {
				s += " away"
			}
			s += ")"
		}
		parts = append(parts, s)
	}
	settings := fmt.Sprint(v.Producer, v.Consumer)
	settings = strings.Join(strings.Fields(strings.ReplaceAll(settings, "<nil>", "")), " ")
	return strings.Join(parts, " ") + " | " + settings
}

// TestViews shows what apps are told of topics, and how changes of what a view rests on show in it.
func TestViews(t *testing.T) {
	store := shop(t)
	f := NewFeed(FeedOptions{})
	defer f.Close()
	yes := true
	all := "g1:2/0@east(g1:50088) g2:2/0@west(g2:50088) g3:2/0(g3:50088)"
	for i, c := range []struct {
		change map[meta.Key]meta.Spec
		who    context.Context
		topic  string
		group  string
		want   string
	}{
		{nil, app("shop", "10.7.0.9:1234"), "orders", "", all + ` | timeout_ms:2000 data_center:"west"`},
		{nil, app("shop", "10.9.0.9:1234"), "orders", "", all + ` | timeout_ms:2000 data_center:"east"`},
		{nil, app("shop", "[::ffff:10.7.1.1]:9"), "orders", "", all + ` | timeout_ms:2000 data_center:"west"`},
		{nil, app("shop", "192.168.0.1:1"), "orders", "", all + ` | timeout_ms:2000`},
		{nil, app("pay", ""), "orders", "", "forbidden"},
		{nil, app("pay", ""), "nothing", "", "topic-not-found"},
		{nil, app("gone", ""), "orders", "", "unauthenticated"},
		{nil, app("pay", ""), "orders", "pay", all + " | batch_messages:20 ack_timeout_ms:60000 concurrency:4"},
		{nil, app("pay", ""), "orders", "pay.slow", all + " | concurrency:1"},
		{nil, app("pay", ""), "orders", "pay.other", all + " | batch_messages:20 ack_timeout_ms:60000 concurrency:4"},
		{nil, app("shop", ""), "orders", "pay", "forbidden"},
		{map[meta.Key]meta.Spec{producerKey("orders", "shop"): &meta.Producer{Weights: map[string]int{"g1": 70, "g2": 0}, Near: &yes}}, app("shop", ""), "orders", "",
			"g1:2/0@east*70(g1:50088) g2:2/1@west(g2:50088) g3:2/0*30(g3:50088) | near:true"},
		{map[meta.Key]meta.Spec{producerKey("orders", "shop"): &meta.Producer{ForbiddenBrokerGroups: []string{"g1"}, Paused: true}}, app("shop", ""), "orders", "",
			"g2:2/0@west(g2:50088) g3:2/0(g3:50088) | paused:true"},
		{map[meta.Key]meta.Spec{producerKey("orders", "shop"): &meta.Producer{ForbiddenIPs: []string{"10.7.0.0/16"}}}, app("shop", "10.7.0.9:1"), "orders", "", "forbidden"},
		{map[meta.Key]meta.Spec{producerKey("orders", "shop"): &meta.Producer{}, groupKey("g2"): &meta.BrokerGroup{State: meta.BrokerGroupReadOnly}, groupKey("g3"): &meta.BrokerGroup{State: meta.BrokerGroupDraining}}, app("shop", ""), "orders", "",
			"g1:2/0@east(g1:50088) g2:2/1(g2:50088) g3:2/2(g3:50088) |"},
		{map[meta.Key]meta.Spec{brokerKey("bg1"): &meta.Broker{BrokerGroup: "g1", Addresses: []string{"g1:50088"}, Away: true}}, app("shop", ""), "orders", "",
			"g1:2/0@east(g1:50088 away) g2:2/1(g2:50088) g3:2/2(g3:50088) |"}, // the last one
		{map[meta.Key]meta.Spec{groupKey("g2"): &meta.BrokerGroup{}}, app("shop", ""), "orders", "",
			"g1:2/4@east(g1:50088 away) g2:2/0(g2:50088) g3:2/2(g3:50088) |"},
		{map[meta.Key]meta.Spec{topicKey("orders"): &meta.Topic{Partitions: 3, BrokerGroups: []string{"g2"}, PauseConsume: true}}, app("pay", ""), "orders", "pay",
			"g2:3/0(g2:50088) | batch_messages:20 ack_timeout_ms:60000 concurrency:4 paused:true"},
		{map[meta.Key]meta.Spec{consumerKey("orders", "pay"): nil}, app("pay", ""), "orders", "pay", "forbidden"},
		{map[meta.Key]meta.Spec{appKey("shop"): &meta.App{Disabled: true}}, app("shop", ""), "orders", "", "unauthenticated"},
	} {
		if c.change != nil {
			write(t, store, c.change)
		}
		f.Set(store.View())
		r := ask(t, f, c.who, &wire.WatchedTopic{Topic: c.topic, Group: c.group})
		if got := text(r.Views[0]); strings.TrimSpace(got) != c.want {
			t.Errorf("%d: %s %s\n got %s\nwant %s", i, c.topic, c.group, got, c.want)
		}
		again := ask(t, f, c.who, &wire.WatchedTopic{Topic: c.topic, Group: c.group, Version: r.Views[0].Version})
		if len(again.Views) != 0 {
			t.Errorf("%d: what is known is told again", i)
		}
	}
}

// TestVersions shows that two nodes, one of which has forgotten what was deleted, give a view the same version, and another one when something
// was deleted that is older than the rest of it.
func TestVersions(t *testing.T) {
	store := shop(t)
	write(t, store, map[meta.Key]meta.Spec{brokerKey("old"): &meta.Broker{BrokerGroup: "g1", Addresses: []string{"old:1"}}})
	write(t, store, map[meta.Key]meta.Spec{topicKey("orders"): &meta.Topic{Partitions: 4, BrokerGroups: []string{"g1", "g2", "g3"}}})
	f := NewFeed(FeedOptions{})
	defer f.Close()
	f.Set(store.View())
	watched := &wire.WatchedTopic{Topic: "orders"}
	before := ask(t, f, app("shop", ""), watched).Views[0].Version
	s := write(t, store, map[meta.Key]meta.Spec{brokerKey("old"): nil})
	f.Set(s)
	after := ask(t, f, app("shop", ""), watched).Views[0].Version
	if before == after {
		t.Error("a broker was deleted, and the version is the same")
	}
	o := old{Memory: store}
	o.floor.Store(uint64(s.Version))
	other := NewFeed(FeedOptions{})
	defer other.Close()
	other.Set(o.View())
	if got := ask(t, other, app("shop", ""), watched).Views[0].Version; got != after {
		t.Errorf("one node says %x, the other %x", after, got)
	}
	write(t, store, map[meta.Key]meta.Spec{topicKey("orders"): &meta.Topic{Partitions: 4, BrokerGroups: []string{"g1", "g2", "g3"}, Description: "what clients do not see"}})
	f.Set(store.View())
	if got := ask(t, f, app("shop", ""), watched).Views[0].Version; got != after {
		t.Error("a description makes another version")
	}
}

// waiting is a watch of routes that waits in a feed.
type waiting struct {
	mu     sync.Mutex
	answer *wire.WatchRoutesResponse
	err    error
	calls  int
}

func (w *waiting) done(r *wire.WatchRoutesResponse, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answer, w.err = r, err
	w.calls++
}

func (w *waiting) called() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calls
}

// park makes a watch of what is known now wait.
func park(t testing.TB, f *Feed, ctx context.Context, wait time.Duration, names ...string) *waiting {
	t.Helper()
	r := &wire.WatchRoutesRequest{WaitMs: uint32(wait.Milliseconds())}
	for _, name := range names {
		topic, group, _ := strings.Cut(name, "/")
		r.Topics = append(r.Topics, &wire.WatchedTopic{Topic: topic, Group: group})
	}
	now := ask(t, f, ctx, r.Topics...)
	r.Generation, r.MetadataVersion = now.Generation, now.MetadataVersion
	for i, v := range now.Views {
		r.Topics[i].Version = v.Version
	}
	w := &waiting{}
	f.WatchRoutes(ctx, r, w.done)
	if w.called() != 0 {
		t.Fatalf("%v does not wait: %v, %v", names, w.answer, w.err)
	}
	return w
}

// TestWaking shows that a change wakes those whose views it changes and no others, that it looks at few besides, that the end of a
// session, of the wait and of the feed answer each watch once, and that nothing of it stays.
func TestWaking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := shop(t)
		f := NewFeed(FeedOptions{Registry: func() []string { return []string{"r:1"} }})
		f.Set(store.View())
		parkAll := func() map[string]*waiting {
			return map[string]*waiting{
				"shop":  park(t, f, app("shop", "10.7.0.1:1"), time.Minute, "orders"),
				"pay":   park(t, f, app("pay", "10.1.0.1:1"), time.Minute, "mail", "orders/pay"),
				"slow":  park(t, f, app("pay", ""), time.Minute, "orders/pay.slow"),
				"other": park(t, f, app("shop", ""), time.Minute, "nothing"),
			}
		}
		for i, c := range []struct {
			change map[meta.Key]meta.Spec
			want   string
		}{
			{map[meta.Key]meta.Spec{consumerKey("orders", "pay"): &meta.Consumer{Concurrency: 5}}, "pay"},
			{map[meta.Key]meta.Spec{consumerKey("orders", "pay.slow"): nil}, "slow"},
			{map[meta.Key]meta.Spec{producerKey("orders", "shop"): &meta.Producer{}}, "shop"},
			{map[meta.Key]meta.Spec{topicKey("mail"): &meta.Topic{Partitions: 2, BrokerGroups: []string{"g1"}}}, "pay"},
			{map[meta.Key]meta.Spec{topicKey("nothing"): &meta.Topic{Partitions: 2, BrokerGroups: []string{"g1"}}}, "other"},
			{map[meta.Key]meta.Spec{brokerKey("bg3"): &meta.Broker{BrokerGroup: "g3", Addresses: []string{"g3:2"}}}, "pay shop slow"},
			{map[meta.Key]meta.Spec{brokerKey("bg1"): &meta.Broker{BrokerGroup: "g1", Addresses: []string{"g1:2"}}}, "pay shop slow"},
			{map[meta.Key]meta.Spec{{Kind: meta.KindDataCenter, Name: "west"}: &meta.DataCenter{}}, "shop"},
			{map[meta.Key]meta.Spec{appKey("pay"): &meta.App{Disabled: true}}, "pay slow"},
			{map[meta.Key]meta.Spec{appKey("shop"): &meta.App{Description: "nothing to a client"}}, ""},
			{map[meta.Key]meta.Spec{{Kind: meta.KindUser, Name: "joe"}: &meta.User{Role: meta.RoleUser}}, ""},
		} {
			all := parkAll()
			f.Set(write(t, store, c.change))
			var woken []string
			for name, w := range all {
				if w.called() > 0 {
					woken = append(woken, name)
				}
			}
			slices.Sort(woken)
			if got := strings.Join(woken, " "); got != c.want {
				t.Errorf("%d: woken are %q, want %q", i, got, c.want)
			}
			time.Sleep(2 * time.Minute)
			synctest.Wait()
			for name, w := range all {
				if w.calls != 1 || w.err != nil || w.answer.Registry[0] != "r:1" {
					t.Errorf("%d: %s: %d calls, %v, %v", i, name, w.calls, w.answer, w.err)
				}
			}
		}
		if m := f.FeedMetrics(); m.RouteWatchers != 0 || m.Looked > m.Woken+8 || len(f.mu.topics)+len(f.mu.groups)+len(f.mu.late) != 0 {
			t.Errorf("%+v, %d topics, %d groups, %d late", m, len(f.mu.topics), len(f.mu.groups), len(f.mu.late))
		}

		ctx, cancel := context.WithCancel(app("shop", ""))
		ended := park(t, f, ctx, time.Minute, "orders")
		late := &waiting{}
		f.WatchRoutes(app("shop", ""), &wire.WatchRoutesRequest{WaitMs: 60_000, Generation: 1, MetadataVersion: uint64(store.View().Version) + 2,
			Topics: []*wire.WatchedTopic{{Topic: "orders", Version: 1}}}, late.done)
		news := &waiting{}
		f.WatchRoutes(app("shop", ""), &wire.WatchRoutesRequest{Generation: 1, MetadataVersion: uint64(store.View().Version) + 2,
			Topics: []*wire.WatchedTopic{{Topic: "orders", Version: 1}, {Topic: "mail"}}}, news.done)
		if news.calls != 1 || len(news.answer.Views) != 1 || news.answer.Views[0].Topic != "mail" || news.answer.MetadataVersion != uint64(store.View().Version)+2 {
			t.Errorf("late, of a topic of which nothing is known: %v", news.answer)
		}
		closed := park(t, f, app("shop", ""), time.Minute, "mail")
		cancel()
		synctest.Wait()
		if ended.calls != 1 || late.calls != 0 {
			t.Errorf("session ended: %d calls; late: %d", ended.calls, late.calls)
		}
		for i := range 2 {
			f.Set(write(t, store, map[meta.Key]meta.Spec{appKey(fmt.Sprint("a", i)): &meta.App{}}))
			if late.calls != i {
				t.Errorf("%d changes later: late was called %d times", i+1, late.calls)
			}
		}
		f.Close()
		if closed.calls != 1 || wire.CodeOf(closed.err) != wire.CodeStopping {
			t.Errorf("closed: %d calls, %v", closed.calls, closed.err)
		}
		after := &waiting{}
		f.WatchRoutes(app("shop", ""), &wire.WatchRoutesRequest{WaitMs: 1000, Generation: 1}, after.done)
		if wire.CodeOf(after.err) != wire.CodeStopping || len(f.mu.parked) != 0 {
			t.Errorf("after Close: %v, %d parked", after.err, len(f.mu.parked))
		}
	})
}

// TestRace parks, changes, cancels and expires at once: each watch is answered exactly once, and nothing of it stays.
func TestRace(t *testing.T) {
	store := shop(t)
	f := NewFeed(FeedOptions{})
	f.Set(store.View())
	var asked, answered atomic.Int64
	var clients, changes sync.WaitGroup
	stop := make(chan struct{})
	for range 8 {
		clients.Go(func() {
			known := &wire.WatchedTopic{Topic: "orders"}
			var generation uint64
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				ctx, cancel := context.WithTimeout(app("shop", ""), time.Duration(n%3)*time.Millisecond)
				done := make(chan *wire.WatchRoutesResponse, 2)
				asked.Add(1)
				f.WatchRoutes(ctx, &wire.WatchRoutesRequest{WaitMs: uint32(1 + n%2), Generation: generation, Topics: []*wire.WatchedTopic{known}},
					func(r *wire.WatchRoutesResponse, err error) {
						answered.Add(1)
						done <- r
					})
				if r := <-done; r != nil {
					generation = r.Generation
					for _, v := range r.Views {
						known.Version = v.Version
					}
				}
				cancel()
			}
		})
	}
	changes.Go(func() {
		for i := range 200 {
			f.Set(write(t, store, map[meta.Key]meta.Spec{producerKey("orders", "shop"): &meta.Producer{Timeout: meta.Duration(time.Duration(i+10) * time.Millisecond)}}))
		}
	})
	changes.Wait()
	close(stop)
	clients.Wait()
	f.Close()
	if a, b := asked.Load(), answered.Load(); a != b || len(f.mu.topics) != 0 {
		t.Errorf("%d watches, %d answers, %d topics are left", a, b, len(f.mu.topics))
	}
}

// large is metadata of 5,000 topics, 2,000 apps and 20,000 subscriptions.
func large(t testing.TB) *meta.Memory {
	t.Helper()
	store := meta.NewMemory(nil)
	specs := map[meta.Key]meta.Spec{}
	flush := func() {
		if len(specs) > 0 {
			write(t, store, specs)
			clear(specs)
		}
	}
	put := func(k meta.Key, s meta.Spec) {
		if specs[k] = s; len(specs) == meta.WritesMax {
			flush()
		}
	}
	for i := range 10 {
		put(groupKey(fmt.Sprint("g", i)), &meta.BrokerGroup{})
		put(brokerKey(fmt.Sprint("b", i)), &meta.Broker{BrokerGroup: fmt.Sprint("g", i), Addresses: []string{fmt.Sprintf("b%d:50088", i)}})
	}
	flush()
	for i := range 2000 {
		put(appKey(fmt.Sprint("app", i)), &meta.App{Description: "an application of the shop"})
	}
	flush()
	for i := range 5000 {
		put(topicKey(fmt.Sprint("topic", i)), &meta.Topic{Partitions: 4, BrokerGroups: []string{fmt.Sprint("g", i%10), fmt.Sprint("g", (i+1)%10), fmt.Sprint("g", (i+2)%10)}})
	}
	flush()
	for i := range 10000 {
		put(producerKey(fmt.Sprint("topic", i%5000), fmt.Sprint("app", (i*7+i/5000)%2000)), &meta.Producer{Timeout: meta.Duration(time.Second)})
		put(consumerKey(fmt.Sprint("topic", i%5000), fmt.Sprint("app", (i*11+i/5000)%2000)), &meta.Consumer{Concurrency: 4})
	}
	flush()
	return store
}

func heapNow() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkParked parks 10,000 watches of one topic each, each with a session's context and peer of its own that are not counted, and says
// what one costs.
func BenchmarkParked(b *testing.B) {
	store := large(b)
	f := NewFeed(FeedOptions{})
	defer f.Close()
	f.Set(store.View())
	const watchers = 10_000
	for b.Loop() {
		contexts := make([]context.Context, watchers)
		cancels := make([]context.CancelFunc, watchers)
		for i := range contexts {
			ctx, cancel := context.WithCancel(context.Background())
			contexts[i], cancels[i] = wire.WithPeer(ctx, &wire.Peer{Principal: wire.Principal{Kind: wire.PrincipalApp, Name: fmt.Sprint("app", i*7%2000)}}), cancel
		}
		done := func(*wire.WatchRoutesResponse, error) {}
		before := heapNow()
		for i, ctx := range contexts {
			topic := fmt.Sprint("topic", i%5000)
			v := ask(b, f, ctx, &wire.WatchedTopic{Topic: topic}).Views[0]
			f.WatchRoutes(ctx, &wire.WatchRoutesRequest{Generation: 1, WaitMs: 60_000, Topics: []*wire.WatchedTopic{{Topic: topic, Version: v.Version}}}, done)
		}
		if m := f.FeedMetrics(); m.RouteWatchers != watchers {
			b.Fatalf("%d wait", m.RouteWatchers)
		}
		b.ReportMetric(float64(heapNow()-before)/watchers, "bytes/watch")
		for _, cancel := range cancels {
			cancel()
		}
		for f.FeedMetrics().RouteWatchers > 0 {
			runtime.Gosched()
		}
	}
}

// BenchmarkChange measures Set of a change that concerns two of 10,000 watchers, and of one that concerns all of a broker group's.
func BenchmarkChange(b *testing.B) {
	store := large(b)
	f := NewFeed(FeedOptions{})
	defer f.Close()
	f.Set(store.View())
	ctx := context.Background()
	again := make(chan *wire.WatchedTopic, 10_000)
	watch := func(t *wire.WatchedTopic) {
		f.WatchRoutes(ctx, &wire.WatchRoutesRequest{Generation: 1, WaitMs: 60_000, Topics: []*wire.WatchedTopic{t}}, func(r *wire.WatchRoutesResponse, err error) {
			if err == nil && len(r.Views) > 0 {
				t.Version = r.Views[0].Version
				again <- t
			} else if err == nil {
				again <- t
			}
		})
	}
	settle := func() {
		for {
			select {
			case t := <-again:
				watch(t)
			default:
				return
			}
		}
	}
	for i := range 10_000 {
		watch(&wire.WatchedTopic{Topic: fmt.Sprint("topic", i%5000)})
	}
	settle()
	n := 0
	b.Run("topic", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			n++
			s := write(b, store, map[meta.Key]meta.Spec{topicKey(fmt.Sprint("topic", n%5000)): &meta.Topic{Partitions: 5 + n/5000, BrokerGroups: []string{"g1", "g2", "g3"}}})
			b.StartTimer()
			f.Set(s)
			b.StopTimer()
			settle()
			b.StartTimer()
		}
	})
	b.Run("broker", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			n++
			s := write(b, store, map[meta.Key]meta.Spec{brokerKey("b1"): &meta.Broker{BrokerGroup: "g1", Addresses: []string{fmt.Sprintf("b1:%d", 1+n%50000)}}})
			b.StartTimer()
			f.Set(s)
			b.StopTimer()
			settle()
			b.StartTimer()
		}
	})
}

// BenchmarkLoad measures what a follower's start costs with 27,000 objects: all pages made, coded, read, and put into a snapshot; and the cache.
func BenchmarkLoad(b *testing.B) {
	store := large(b)
	f := NewFeed(FeedOptions{})
	defer f.Close()
	f.Set(store.View())
	load := func() *meta.Snapshot {
		r := &wire.WatchObjectsRequest{}
		var objects []*meta.Object
		for {
			var got []byte
			f.WatchObjects(context.Background(), r, func(m *wire.WatchObjectsResponse, err error) {
				if err != nil {
					b.Fatal(err)
				}
				got, err = proto.Marshal(m)
				if err != nil {
					b.Fatal(err)
				}
			})
			m := new(wire.WatchObjectsResponse)
			if err := proto.Unmarshal(got, m); err != nil {
				b.Fatal(err)
			}
			list, err := readObjects(m.Objects)
			if err != nil {
				b.Fatal(err)
			}
			objects = append(objects, list...)
			if !m.More {
				return meta.NewSnapshot(meta.Generation(m.Generation), meta.Version(m.Version), meta.Version(m.Since), newestOnly(objects))
			}
			r = &wire.WatchObjectsRequest{Generation: m.Generation, Version: m.Version, Since: m.Since}
		}
	}
	b.Run("registry", func(b *testing.B) {
		for b.Loop() {
			before := heapNow()
			s := load()
			b.ReportMetric(float64(heapNow()-before)/(1<<20), "MiB/snapshot")
			runtime.KeepAlive(s)
		}
	})
	b.Run("encode", func(b *testing.B) {
		for b.Loop() {
			if _, err := encodeCache("a", store.View()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("decode", func(b *testing.B) {
		data, err := encodeCache("a", store.View())
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(len(data))/(1<<20), "MiB/file")
		for b.Loop() {
			if _, err := decodeCache("a", data); err != nil {
				b.Fatal(err)
			}
		}
	})
}
