package registry

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/wire"
)

// TestSpread measures, with 3 nodes, 100 followers and 100 clients that watch routes (with -race 15 of each), how long a change at one node takes until it is in force
// at each of them: for a parameter of a consumer, and for a broker group that is added to a topic.
func TestSpread(t *testing.T) {
	followers, clients, changes, p99Max := 100, 100, 20, 2*time.Second
	if raceEnabled { // which says nothing of the time that it takes
		followers, clients, changes, p99Max = 15, 15, 5, 15*time.Second
	}
	c := newCluster(t, 3)
	defer c.close()
	c.write(map[meta.Key]meta.Spec{
		appKey("pay"): &meta.App{}, groupKey("g1"): &meta.BrokerGroup{}, groupKey("g2"): &meta.BrokerGroup{},
		topicKey("orders"): &meta.Topic{Partitions: 1, BrokerGroups: []string{"g1"}}, consumerKey("orders", "pay"): &meta.Consumer{Concurrency: 1},
	})
	type settings struct {
		concurrency uint32
		groups      int
	}
	type arrival struct {
		who string
		settings
	}
	arrived := make(chan arrival, 4*(followers+clients))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var all []*Follower
	for i := range followers {
		who := fmt.Sprint("b", i)
		all = append(all, c.follower(who, func(o *FollowerOptions) {
			o.OnSnapshot = func(s *meta.Snapshot) {
				if k, topic := s.Get(consumerKey("orders", "pay")), s.Topic(meta.NamespaceDefault, "orders"); k != nil { // else its node is not so far yet
					arrived <- arrival{who, settings{uint32(k.Spec.(*meta.Consumer).Concurrency), len(topic.BrokerGroups)}}
				}
			}
		}))
	}
	var running sync.WaitGroup
	for i := range clients {
		nc, err := c.hosts.dial(ctx, registryAddress(i%3))
		if err != nil {
			t.Fatal(err)
		}
		conn := wire.NewConn(nc, wire.ConnOptions{})
		running.Go(func() { conn.Serve() })
		running.Go(func() {
			defer conn.Close(nil)
			who := fmt.Sprint("client-", i)
			if _, err := conn.Hello(ctx, &wire.HelloRequest{ClientId: who}); err != nil {
				t.Error(err)
				return
			}
			r := &wire.WatchRoutesRequest{WaitMs: 30_000, Topics: []*wire.WatchedTopic{{Topic: "orders", Group: "pay"}}}
			for {
				m := new(wire.WatchRoutesResponse)
				if err := conn.CallMessage(ctx, wire.CommandWatchRoutes, r, m); err != nil {
					if ctx.Err() == nil {
						t.Error(err)
					}
					return
				}
				r.Generation, r.MetadataVersion = m.Generation, m.MetadataVersion
				for _, v := range m.Views {
					r.Topics[0].Version = v.Version
					arrived <- arrival{who, settings{v.Consumer.GetConcurrency(), len(v.Route.GetBrokerGroups())}}
				}
			}
		})
	}
	// await waits until everybody has what is wanted: some are told it again, with another change.
	await := func(want settings, begun time.Time, took *[]time.Duration) {
		timeout := time.After(20 * time.Second)
		has := map[string]bool{}
		for len(has) < followers+clients {
			select {
			case a := <-arrived:
				if a.settings == want && !has[a.who] {
					has[a.who] = true
					*took = append(*took, time.Since(begun))
				}
			case <-timeout:
				t.Fatalf("%d of %d have %v after 20 s", len(has), followers+clients, want)
			}
		}
	}
	var ignored, parameter, group []time.Duration
	await(settings{1, 1}, time.Now(), &ignored)
	settled := time.Now()
	for c.stores[0].View().Len(meta.KindBroker) < followers {
		select {
		case <-arrived:
		case <-time.After(10 * time.Millisecond):
		}
		if time.Since(settled) > 20*time.Second {
			t.Fatal("not all brokers are registered")
		}
	}
	want := settings{1, 1}
	for i := range changes {
		for len(arrived) > 0 {
			<-arrived
		}
		want.concurrency = uint32(i + 2)
		begun := time.Now()
		c.write(map[meta.Key]meta.Spec{consumerKey("orders", "pay"): &meta.Consumer{Concurrency: i + 2}})
		await(want, begun, &parameter)
		want.groups = 3 - want.groups
		begun = time.Now()
		c.write(map[meta.Key]meta.Spec{topicKey("orders"): &meta.Topic{Partitions: 1, BrokerGroups: []string{"g1", "g2"}[:want.groups]}})
		await(want, begun, &group)
	}
	for name, took := range map[string][]time.Duration{"a parameter": parameter, "a broker group": group} {
		slices.Sort(took)
		p99 := took[len(took)*99/100]
		t.Logf("%s: p50 %v, p99 %v, slowest %v", name, took[len(took)/2], p99, took[len(took)-1])
		if p99 > p99Max {
			t.Errorf("%s: p99 %v", name, p99)
		}
	}
	cancel()
	running.Wait()
	var closing sync.WaitGroup
	for _, f := range all {
		closing.Go(func() { f.Close() })
	}
	closing.Wait()
}
