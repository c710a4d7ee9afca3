package registry

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/wire"
)

// slow is a store whose calls of the database take a while, and that has not seen the database before it is told so.
type slow struct {
	*meta.Memory
	delay  atomic.Int64 // nanoseconds
	absent atomic.Bool
}

func (s *slow) wait(ctx context.Context) error {
	select {
	case <-time.After(time.Duration(s.delay.Load())):
		return nil
	case <-ctx.Done():
		return wire.Errorf(wire.CodeMetadataAway, "the database is slow: %v", ctx.Err())
	}
}

func (s *slow) Beat(ctx context.Context, beats []meta.Beat) ([]meta.Beat, error) {
	if err := s.wait(ctx); err != nil {
		return nil, err
	}
	return s.Memory.Beat(ctx, beats)
}

func (s *slow) Update(ctx context.Context, c meta.Change) (*meta.Snapshot, error) {
	if err := s.wait(ctx); err != nil {
		return nil, err
	}
	return s.Memory.Update(ctx, c)
}

func (s *slow) View() *meta.Snapshot {
	if s.absent.Load() {
		return meta.NewSnapshot(0, 0, 0, nil)
	}
	return s.Memory.View()
}

func (s *slow) Watch(ctx context.Context, after *meta.Snapshot) (*meta.Snapshot, error) {
	for s.absent.Load() {
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return s.Memory.Watch(ctx, after)
}

// slowCluster is two nodes over a database that can be slow.
func slowCluster(t *testing.T, absent bool) (*cluster, []*slow) {
	c := newCluster(t, 0)
	c.stores = nil
	first := meta.NewMemory(nil)
	stores := []*slow{{Memory: first}, {Memory: first.Another()}}
	for i, s := range stores {
		s.absent.Store(absent)
		n, err := NewNode(NodeOptions{Store: s, Self: func() *wire.HeartbeatRequest {
			return &wire.HeartbeatRequest{Node: []string{"r0", "r1"}[i], Boot: "x", Roles: []string{RoleRegistry}, Addresses: []string{registryAddress(i)}}
		}})
		if err != nil {
			t.Fatal(err)
		}
		c.nodes = append(c.nodes, n)
		c.stores = append(c.stores, s.Memory)
		c.hosts.up(registryAddress(i), wire.NewHandler(wire.Services{Admin: n, Registry: n}, wire.HandlerOptions{Broker: "r"}))
	}
	return c, stores
}

// TestSlowDatabase shows that a database which takes 2 s for everything costs nobody its place in the routes, and that one which takes longer
// than is waited for is as good as away.
func TestSlowDatabase(t *testing.T) {
	for _, delay := range []time.Duration{2 * time.Second, 5 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			c, stores := slowCluster(t, false)
			defer c.close()
			a, b := c.follower("a", nil), c.follower("b", nil)
			defer a.Close()
			defer b.Close()
			time.Sleep(3 * time.Second)
			synctest.Wait()
			if n := c.stores[0].View().Len(meta.KindBroker); n != 2 {
				t.Fatalf("%d brokers registered", n)
			}
			for _, s := range stores {
				s.delay.Store(int64(delay))
			}
			for range 60 {
				time.Sleep(time.Second)
				synctest.Wait()
				if away := awayOf(c.stores[0].View()); away != "" {
					t.Fatalf("%v: away: %s", delay, away)
				}
			}
			if got, want := a.Metrics().Stored, delay < beatTimeout; got != want {
				t.Errorf("%v: stored %v, want %v", delay, got, want)
			}
		})
	}
}

// TestDatabaseNotSeenYet shows that a node which started while its database was away answers that, and serves when it is there.
func TestDatabaseNotSeenYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, stores := slowCluster(t, true)
		defer c.close()
		a := c.follower("a", nil)
		defer a.Close()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if a.Snapshot() != nil || a.Connected() {
			t.Fatalf("a knows %v, connected %v", a.Snapshot(), a.Connected())
		}
		_, err := c.nodes[0].Route(context.Background(), &wire.RouteRequest{Topic: "orders"})
		wantCode(t, err, wire.CodeMetadataAway)
		_, err = c.nodes[0].Heartbeat(context.Background(), &wire.HeartbeatRequest{Node: "a", Boot: "x"})
		wantCode(t, err, wire.CodeMetadataAway)
		for _, s := range stores {
			s.absent.Store(false)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if d := differ(a.Snapshot(), c.stores[0].View()); d != "" || c.stores[0].View().Broker("a") == nil {
			t.Fatalf("%s; broker a: %v", d, c.stores[0].View().Broker("a"))
		}
	})
}
