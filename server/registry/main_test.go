package registry

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/wire"
)

var seedFlag = flag.Int64("seed", 0, "seed of random tests; 0: by time")

func TestMain(m *testing.M) {
	flag.Parse()
	goleak.VerifyTestMain(m)
}

// newRand returns a generator whose seed a failing test prints.
func newRand(t testing.TB) *rand.Rand {
	seed := *seedFlag
	if seed == 0 {
		seed = time.Now().UnixNano()
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("-seed %d", seed)
		}
	})
	return rand.New(rand.NewPCG(uint64(seed), 0))
}

func wantCode(t testing.TB, err error, want wire.Code) {
	t.Helper()
	if got := wire.CodeOf(err); got != want {
		t.Fatalf("got %v (%v), want %v", got, err, want)
	}
}

// hosts is a network of pipes.
type hosts struct {
	mu   sync.Mutex
	host map[string]*host
}

type host struct {
	handler  *wire.Handler // nil: it is down
	silent   bool          // it takes connections and never says anything
	sessions map[net.Conn]chan struct{}
	dials    int
}

func newHosts() *hosts { return &hosts{host: map[string]*host{}} }

func (h *hosts) at(address string) *host {
	if h.host[address] == nil {
		h.host[address] = &host{sessions: map[net.Conn]chan struct{}{}}
	}
	return h.host[address]
}

func (h *hosts) dial(_ context.Context, address string) (net.Conn, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	x := h.at(address)
	x.dials++
	if x.handler == nil {
		return nil, fmt.Errorf("%s: connection refused", address)
	}
	client, server := net.Pipe()
	ended := make(chan struct{})
	x.sessions[server] = ended
	handler, silent := x.handler, x.silent
	go func() {
		defer func() {
			server.Close()
			h.mu.Lock()
			delete(x.sessions, server)
			h.mu.Unlock()
			close(ended)
		}()
		if silent {
			io.Copy(io.Discard, server)
			return
		}
		handler.NewSession(server, wire.SessionOptions{}).Serve()
	}()
	return client, nil
}

func (h *hosts) up(address string, handler *wire.Handler) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.at(address).handler = handler
}

// down ends a host's sessions and waits for them.
func (h *hosts) down(address string) {
	h.mu.Lock()
	x := h.at(address)
	x.handler, x.silent = nil, false
	h.mu.Unlock()
	h.cut(address)
}

// cut ends the sessions that a host has just now.
func (h *hosts) cut(address string) {
	h.mu.Lock()
	x := h.at(address)
	var ended []chan struct{}
	for c, done := range x.sessions {
		c.Close()
		ended = append(ended, done)
	}
	h.mu.Unlock()
	for _, done := range ended {
		<-done
	}
}

func (h *hosts) mute(address string, silent bool) {
	h.mu.Lock()
	h.at(address).silent = silent
	h.mu.Unlock()
	h.cut(address)
}

func (h *hosts) sessions(address string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.at(address).sessions)
}

// cluster is some registry nodes over one database in memory.
type cluster struct {
	t      testing.TB
	hosts  *hosts
	stores []*meta.Memory
	nodes  []*Node
	now    func() time.Time
	boots  int
	meet   func(address string, r *wire.MeetRequest) (*wire.MeetResponse, error)
	count  func(address string, from, to uint64) (Counted, error)
	groups func(address string) (*wire.ListGroupsResponse, error)
}

func newCluster(t testing.TB, nodes int) *cluster {
	c := &cluster{t: t, hosts: newHosts(), now: time.Now, nodes: make([]*Node, nodes)}
	first := meta.NewMemory(func() time.Time { return c.now() })
	c.stores = append(c.stores, first)
	for range nodes - 1 {
		c.stores = append(c.stores, first.Another())
	}
	for i := range nodes {
		c.start(i)
	}
	return c
}

func registryAddress(i int) string { return fmt.Sprintf("registry-%d:50088", i) }

func (c *cluster) start(i int) {
	c.boots++
	name, boot, address := fmt.Sprintf("registry-%d", i), fmt.Sprint("boot-", c.boots), registryAddress(i)
	n, err := NewNode(NodeOptions{
		Store: c.stores[i], Now: func() time.Time { return c.now() },
		Meet: func(_ context.Context, addresses []string, r *wire.MeetRequest) (*wire.MeetResponse, error) {
			return c.meet(addresses[0], r)
		},
		Count: func(_ context.Context, addresses []string, from, to uint64) (Counted, error) {
			if c.count == nil {
				return Counted{}, errors.New("nobody counts")
			}
			return c.count(addresses[0], from, to)
		},
		ListGroups: func(_ context.Context, addresses []string, r *wire.ListGroupsRequest) (*wire.ListGroupsResponse, error) {
			if !r.Left {
				return nil, errors.New("all groups are asked for")
			}
			return c.groups(addresses[0])
		},
		Self: func() *wire.HeartbeatRequest {
			return &wire.HeartbeatRequest{Node: name, Boot: boot, Roles: []string{RoleRegistry}, Addresses: []string{address}}
		},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	c.nodes[i] = n
	c.hosts.up(address, wire.NewHandler(wire.Services{Admin: n, Registry: n}, wire.HandlerOptions{Broker: name, Roles: []string{RoleRegistry}}))
}

func (c *cluster) stop(i int) {
	c.hosts.down(registryAddress(i))
	if n := c.nodes[i]; n != nil {
		c.nodes[i] = nil
		if err := n.Close(); err != nil {
			c.t.Error(err)
		}
	}
}

func (c *cluster) close() {
	for i := range c.nodes {
		c.stop(i)
	}
}

// follower is a broker's, on the broker group of its name.
func (c *cluster) follower(name string, change func(*FollowerOptions)) *Follower {
	c.boots++
	boot := fmt.Sprint("boot-", c.boots)
	o := FollowerOptions{
		Dial: c.hosts.dial,
		Self: func() *wire.HeartbeatRequest {
			return &wire.HeartbeatRequest{Node: name, Boot: boot, Roles: []string{RoleBroker}, BrokerGroup: "group-" + name, Addresses: []string{name + ":50088"}}
		},
	}
	for i := range c.stores {
		o.Addresses = append(o.Addresses, registryAddress(i))
	}
	if change != nil {
		change(&o)
	}
	f, err := NewFollower(o)
	if err != nil {
		c.t.Fatal(err)
	}
	return f
}

// write makes a change in the database by the first store, whatever is there.
func (c *cluster) write(specs map[meta.Key]meta.Spec) *meta.Snapshot {
	c.t.Helper()
	return write(c.t, c.stores[0], specs)
}

func write(t testing.TB, store meta.Store, specs map[meta.Key]meta.Spec) *meta.Snapshot {
	t.Helper()
	change := meta.Change{By: meta.Actor{Name: "local"}}
	keys := make([]meta.Key, 0, len(specs))
	for k := range specs {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b meta.Key) int {
		if d := slices.Index(meta.Kinds, a.Kind) - slices.Index(meta.Kinds, b.Kind); d != 0 {
			return d
		}
		return a.Compare(b)
	})
	for _, k := range keys {
		change.Writes = append(change.Writes, meta.Write{Key: k, Spec: specs[k], Expect: meta.Expect{Any: true}})
	}
	s, err := store.Update(context.Background(), change)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func topicKey(name string) meta.Key {
	return meta.Key{Kind: meta.KindTopic, Namespace: meta.NamespaceDefault, Name: name}
}

func appKey(name string) meta.Key {
	return meta.Key{Kind: meta.KindApp, Namespace: meta.NamespaceDefault, Name: name}
}

func groupKey(name string) meta.Key { return meta.Key{Kind: meta.KindBrokerGroup, Name: name} }

func brokerKey(name string) meta.Key { return meta.Key{Kind: meta.KindBroker, Name: name} }

func producerKey(topic, app string) meta.Key {
	return meta.Key{Kind: meta.KindProducer, Namespace: meta.NamespaceDefault, Name: topic + "/" + app}
}

func consumerKey(topic, group string) meta.Key {
	return meta.Key{Kind: meta.KindConsumer, Namespace: meta.NamespaceDefault, Name: topic + "/" + group}
}

// differ says how two snapshots differ in what they hold, "" if they do not.
func differ(a, b *meta.Snapshot) string {
	if a == nil || b == nil {
		return fmt.Sprintf("%v, %v", a != nil, b != nil)
	}
	if a.Generation != b.Generation || a.Version != b.Version {
		return fmt.Sprintf("generation %d version %d, not %d and %d", a.Generation, a.Version, b.Generation, b.Version)
	}
	for _, k := range meta.Kinds {
		x, y := a.List(k), b.List(k)
		for i := range max(len(x), len(y)) {
			if i >= len(x) || i >= len(y) {
				return fmt.Sprintf("%d %ss, not %d", len(x), k, len(y))
			}
			p, err := meta.ToWire(x[i])
			q, err2 := meta.ToWire(y[i])
			if err := errors.Join(err, err2); err != nil {
				return err.Error()
			}
			if !proto.Equal(p, q) {
				return fmt.Sprintf("%v, not %v", p, q)
			}
		}
	}
	return ""
}
