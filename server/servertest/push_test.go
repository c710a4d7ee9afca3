package servertest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/scripts/testenv"
	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/wire"
)

const forceWithin = 2 * time.Second // what the documents promise of a change

// TestLimitPushed sets a limit at one registry node: senders that are connected are held to it soon, told how long to wait, and are free
// again when it is lifted. A broker group that a topic is given is sent to and consumed from by those who are connected.
func TestLimitPushed(t *testing.T) {
	c := StartCluster(t, ClusterOptions{Registries: 2, BrokerGroups: 2})
	topic := Key(meta.KindTopic, "orders")
	c.Apply(Object{topic, &meta.Topic{Partitions: 2, BrokerGroups: []string{"bg1"}}})
	sender := c.Dial(c.Brokers[0].Address())
	f := startFlow(t, sender, c.Dial(c.Brokers[0].Address()), "orders", "shop")
	f.goesOn("no limit", 20)

	Apply(t, c.Registries[1], Object{topic, &meta.Topic{Partitions: 2, BrokerGroups: []string{"bg1"}, Limit: meta.Limit{MessagesPerSecond: 1}}})
	impatient, err := sender.Producer("orders", client.Timeout(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	begun := time.Now()
	for {
		_, err := impatient.Send(ctx, &client.Message{Body: []byte("x")})
		if errors.Is(err, client.ErrLimited) {
			e, _ := errors.AsType[*client.Error](err)
			if e.RetryAfter <= 0 || e.RetryAfter > 10*time.Second {
				t.Errorf("it says to wait %v", e.RetryAfter)
			}
			break
		}
		if time.Since(begun) > forceWithin {
			t.Fatalf("the limit is not enforced after %v: %v", time.Since(begun), err)
		}
	}
	limited := time.Since(begun)

	Apply(t, c.Registries[0], Object{topic, &meta.Topic{Partitions: 2, BrokerGroups: []string{"bg1", "bg2"}}})
	sent := f.await("the added broker group is sent to", forceWithin, func() bool { return f.mu.sent["bg2"] > 0 })
	came := f.await("and consumed from", forceWithin, func() bool { return len(f.mu.came) > 0 && f.mu.sent["bg2"] > 10 })
	f.goesOn("with both", 50)
	n := f.settle()
	t.Logf("a limit was enforced after %v, a broker group sent to after %v, consumed from after %v more; %d messages, none lost", limited.Round(time.Millisecond), sent.Round(time.Millisecond), came.Round(time.Millisecond), n)
}

// TestPushReach measures how soon a change at one of three registry nodes over one database is known to 200 clients that watch: a setting of
// their subscriptions, and the route of their topic.
func TestPushReach(t *testing.T) {
	for _, engine := range []string{"sqlite", "mariadb"} {
		t.Run(engine, func(t *testing.T) {
			o := ClusterOptions{Registries: 3, BrokerGroups: 2}
			if engine == "mariadb" {
				o.DSN = testenv.MariaDB(t)
			}
			reach(t, StartCluster(t, o))
		})
	}
}

const reachClients = 200

func reach(t *testing.T, c *Cluster) {
	topic, consumer := Key(meta.KindTopic, "orders"), Key(meta.KindConsumer, "orders/shop")
	c.Apply(
		Object{topic, &meta.Topic{Partitions: 1, BrokerGroups: []string{"bg1"}}},
		Object{Key(meta.KindApp, "shop"), &meta.App{}},
		Object{consumer, &meta.Consumer{Concurrency: 2, AckTimeout: meta.Duration(time.Minute)}},
	)
	// A fifth watches at each node that has metadata, as SDKs and proxies do.
	nodes := slices.Concat(c.Registries, c.Brokers)
	watching, stop := context.WithCancel(context.Background())
	var watchers sync.WaitGroup
	t.Cleanup(func() { stop(); watchers.Wait() })
	type news struct {
		at          time.Time
		concurrency uint32
		groups      int
	}
	told := make(chan news, reachClients*8)
	ready := make(chan error, reachClients)
	for i := range reachClients {
		conn := dialWire(t, nodes[i%len(nodes)])
		watchers.Go(func() {
			known, version, generation, first := uint64(0), uint64(0), uint64(0), true
			for watching.Err() == nil {
				r := &wire.WatchRoutesRequest{WaitMs: 10_000, Generation: generation, MetadataVersion: version, Topics: []*wire.WatchedTopic{{Topic: "orders", Group: "shop", Version: known}}}
				var out wire.WatchRoutesResponse
				err := conn.CallMessage(watching, wire.CommandWatchRoutes, r, &out)
				if err == nil {
					generation, version = out.Generation, out.MetadataVersion
				}
				if err == nil && len(out.Views) == 1 {
					v := out.Views[0]
					known = v.Version
					n := news{at: time.Now(), concurrency: v.Consumer.GetConcurrency()}
					seen := map[string]bool{}
					for _, p := range v.Route.GetPartitions() {
						seen[p.BrokerGroup] = true
					}
					n.groups = len(seen)
					told <- n
				}
				if first {
					ready <- err
					first = false
				}
				if err != nil {
					return
				}
			}
		})
	}
	for range reachClients {
		if err := <-ready; err != nil {
			t.Fatal(err)
		}
	}
	measure := func(what string, change func(), is func(news) bool) {
		t.Helper()
		begun := time.Now()
		change()
		made := time.Since(begun)
		var times []time.Duration
		late := time.NewTimer(within)
		defer late.Stop()
		for len(times) < reachClients {
			select {
			case n := <-told:
				if is(n) {
					times = append(times, n.at.Sub(begun))
				}
			case <-late.C:
				t.Fatalf("%s: %d of %d clients know it after %v", what, len(times), reachClients, within)
			}
		}
		slices.Sort(times)
		t.Logf("%s: made in %v; %d clients know it after p50 %v, p99 %v, all %v", what, made.Round(time.Millisecond), reachClients,
			times[len(times)/2].Round(time.Millisecond), times[len(times)*99/100].Round(time.Millisecond), times[len(times)-1].Round(time.Millisecond))
		if last := times[len(times)-1]; last > forceWithin {
			t.Errorf("%s: the last client knew it after %v", what, last)
		}
	}
	for n := range 3 {
		measure("concurrency", func() {
			Apply(t, c.Registries[n], Object{consumer, &meta.Consumer{Concurrency: 10 + n, AckTimeout: meta.Duration(time.Minute)}})
		}, func(v news) bool { return v.concurrency == uint32(10+n) })
	}
	measure("broker group added", func() {
		Apply(t, c.Registries[1], Object{topic, &meta.Topic{Partitions: 1, BrokerGroups: []string{"bg1", "bg2"}}})
	}, func(v news) bool { return v.groups == 2 })
}
