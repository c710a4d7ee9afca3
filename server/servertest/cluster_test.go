package servertest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/server"
	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/wire"
)

// TestSplit takes a process with all roles apart: a registry on its metadata file, a broker on its data folder. What was sent and not
// consumed is there, groups stand where they stood, settings hold, and clients are the same programs with the same addresses.
func TestSplit(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "metadata.db")
	all := Start(t, func(c *server.Config) {
		c.Node.Name = "one"
		c.Roles = server.Roles
		c.Registry.File = file
	})
	all.CreateTopic("orders", 4)
	Apply(t, all,
		Object{Key(meta.KindApp, "shop"), &meta.App{}},
		Object{Key(meta.KindConsumer, "orders/shop"), &meta.Consumer{BatchMessages: 3, Description: "kept"}},
	)
	f := startFlow(t, dial(t, all), dial(t, all), "orders", "shop")
	f.goesOn("all in one", 50)
	// A group that has consumed a part.
	c := dial(t, all)
	half, err := c.Consumer("orders", client.Group("half"), client.Start(client.FromBeginning))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	taken := map[string]bool{}
	for len(taken) < 20 {
		ds, err := half.Fetch(ctx, 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range ds {
			taken[d.Location()] = true
		}
		if err := half.Ack(ctx, ds...); err != nil {
			t.Fatal(err)
		}
	}

	registry := Start(t, func(c *server.Config) {
		c.Node.Name = "r1"
		c.Roles = []server.Role{server.RoleRegistry}
		c.Registry.File = file // two nodes for a while: the broker is one of them
	})
	all.Stop()
	all.Change(func(c *server.Config) {
		c.Roles = []server.Role{server.RoleBroker}
		c.Node.Registry.Addresses = []string{registry.Address()}
	})
	all.StartAgain()

	f.goesOn("after the split, the same clients", 50)
	f.cancel()
	f.senders.Wait()
	for {
		ds, err := half.Fetch(ctx, 100, client.Wait(0))
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range ds {
			if d.Attempt > 1 {
				t.Errorf("%s is given again: its ack was before the split", d.Location())
			}
		}
		if len(ds) == 0 {
			break
		}
		if err := half.Ack(ctx, ds...); err != nil {
			t.Fatal(err)
		}
	}
	n := f.settle()
	o, err := registry.Registry().ListObjects(ctx, &wire.ListObjectsRequest{Kind: string(meta.KindConsumer)})
	if err != nil || len(o.Objects) != 1 || o.Objects[0].Name != "orders/shop" {
		t.Errorf("the registry has the subscriptions %v, %v", o, err)
	}
	if _, err := all.Admin().CreateTopic(ctx, &wire.CreateTopicRequest{Topic: "more", Partitions: 1}); wire.CodeOf(err) != wire.CodeRoleElsewhere {
		t.Errorf("the broker makes a topic: %v", err)
	}
	// The SDK goes to who has the role.
	if err := dial(t, all).CreateTopic(ctx, "more", 2); err != nil {
		t.Errorf("a topic by the SDK, which knows the broker: %v", err)
	}
	t.Logf("%d messages, none lost", n)
}

// dial connects a client to one node, closed when the test ends.
func dial(t *testing.T, s *Server, options ...client.Option) *client.Client {
	t.Helper()
	return (&Cluster{t: t}).Dial(s.Address(), options...)
}

// TestElsewhere asks each node for everything: what its role does not do is answered with the addresses of those who do.
func TestElsewhere(t *testing.T) {
	t.Parallel()
	c := StartCluster(t, ClusterOptions{Registries: 2, BrokerGroups: 2})
	c.Registries[0].CreateTopic("orders", 1)
	alone := Start(t)
	both := Start(t, func(s *server.Config) { s.Roles = server.Roles; s.Node.Name = "both" })
	brokers, registries := Addresses(c.Brokers), Addresses(c.Registries)
	topics := []wire.Command{wire.CommandCreateTopic, wire.CommandAlterTopic, wire.CommandDeleteTopic}
	for _, test := range []struct {
		name             string
		node             *Server
		broker, registry []string // who does it; nil: the node itself
		alters           []string // and who makes topics
	}{
		{"registry", c.Registries[1], brokers, nil, nil},
		{"broker", c.Brokers[1], nil, registries, registries},
		{"both", both, nil, nil, nil},
		{"alone", alone, nil, []string{}, nil},
	} {
		conn := dialWire(t, test.node)
		for command, request := range requests {
			want := test.broker
			switch {
			case slices.Contains(topics, command), command == wire.CommandListTopics && test.name != "broker":
				want = test.alters
			case command >= wire.CommandWatchObjects || command == wire.CommandWatchRoutes:
				want = test.registry
			}
			// A broker serves watches: it has the metadata.
			held := command == wire.CommandWatchRoutes || command == wire.CommandWatchObjects
			if held && test.name == "broker" {
				want = nil
			}
			if want == nil && command == wire.CommandNewGeneration {
				continue // it would be one
			}
			header, err := proto.Marshal(request)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(context.Background(), within)
			is, got := whoElse(ctx, conn, command, header)
			// Nodes hear of each other within a second.
			for is && want != nil && !slices.Equal(got, slices.Sorted(slices.Values(want))) && ctx.Err() == nil {
				is, got = whoElse(ctx, conn, command, header)
			}
			cancel()
			if is != (want != nil) || is && !slices.Equal(got, slices.Sorted(slices.Values(want))) {
				t.Errorf("%s: %v is for others: %v, nodes %v, want %v", test.name, command, is, got, want)
			}
		}
	}
}

// whoElse asks conn's node, and says whether that named others, in order.
func whoElse(ctx context.Context, conn *wire.Conn, command wire.Command, header []byte) (bool, []string) {
	_, err := conn.Call(ctx, command, header, nil)
	e, _ := errors.AsType[*wire.CodeError](err)
	if e == nil || e.Code != wire.CodeRoleElsewhere {
		return false, nil
	}
	return true, slices.Sorted(slices.Values(e.Nodes))
}

// requests are good ones of all commands but those that every node answers.
var requests = map[wire.Command]proto.Message{
	wire.CommandProduce: &wire.ProduceRequestHeader{Topic: "orders"}, wire.CommandFetch: &wire.FetchRequestHeader{Topic: "orders", Group: "g"},
	wire.CommandAck: &wire.AckRequestHeader{Topic: "orders", Group: "g"}, wire.CommandSubscribe: &wire.SubscribeRequest{Topic: "orders", Group: "g"},
	wire.CommandRoute: &wire.RouteRequest{Topic: "orders"}, wire.CommandExtend: &wire.ExtendRequest{Topic: "orders", Group: "g"},
	wire.CommandCreateTopic: &wire.CreateTopicRequest{Topic: "orders", Partitions: 1}, wire.CommandListTopics: &wire.ListTopicsRequest{},
	wire.CommandGroupLag: &wire.GroupLagRequest{Topic: "orders"}, wire.CommandAlterTopic: &wire.AlterTopicRequest{Topic: "orders"},
	wire.CommandDeleteTopic: &wire.DeleteTopicRequest{Topic: "none"}, wire.CommandDescribeTopic: &wire.DescribeTopicRequest{Topic: "orders"},
	wire.CommandListGroups: &wire.ListGroupsRequest{}, wire.CommandSeekGroup: &wire.SeekGroupRequest{Topic: "orders", Group: "g", To: uint32(wire.SeekEnd)},
	wire.CommandAlterGroup:  &wire.AlterGroupRequest{Topic: "orders", Group: "g", Policy: &wire.GroupPolicy{}},
	wire.CommandRemoveGroup: &wire.RemoveGroupRequest{Topic: "orders", Group: "g"}, wire.CommandPeek: &wire.PeekRequest{Topic: "orders"},
	wire.CommandStoreUsage: &wire.StoreUsageRequest{}, wire.CommandWatchRoutes: &wire.WatchRoutesRequest{},
	wire.CommandWatchObjects: &wire.WatchObjectsRequest{}, wire.CommandHeartbeat: &wire.HeartbeatRequest{Node: "n", Boot: "b"},
	wire.CommandListNodes: &wire.ListNodesRequest{}, wire.CommandListObjects: &wire.ListObjectsRequest{},
	wire.CommandApplyObjects: &wire.ApplyObjectsRequest{}, wire.CommandCreateCredential: &wire.CreateCredentialRequest{OwnerKind: "app", Owner: "none"},
	wire.CommandListAudit: &wire.ListAuditRequest{}, wire.CommandNewGeneration: &wire.NewGenerationRequest{},
}

// TestRegistryOutage kills registry nodes one by one and all, and takes the database away for longer than silence is borne:
// messages flow all the time, a broker and a client start anew meanwhile, and nobody leaves the routes.
func TestRegistryOutage(t *testing.T) {
	t.Parallel()
	stores := []*meta.Memory{meta.NewMemory(nil)}
	for len(stores) < 3 {
		stores = append(stores, stores[0].Another())
	}
	c := StartCluster(t, ClusterOptions{Registries: 3, BrokerGroups: 2, Store: func(i int) meta.Store { return stores[i] }})
	c.Registries[0].CreateTopic("orders", 2)
	// Registry nodes know the metadata, brokers are where the messages are: a client may dial either.
	f := startFlow(t, c.Dial(c.Registries[0].Address()), c.Dial(c.BrokerAddresses()), "orders", "shop")
	bothGroups := func(what string) {
		t.Helper()
		f.mu.Lock()
		one, two := f.mu.sent["bg1"]+20, f.mu.sent["bg2"]+20
		f.mu.Unlock()
		f.await(what, within, func() bool { return f.mu.sent["bg1"] >= one && f.mu.sent["bg2"] >= two })
		f.goesOn(what, 20)
	}
	bothGroups("all is well")

	gone := errors.New("the database is away")
	for _, s := range stores {
		s.Fail(gone)
	}
	away := time.Now()
	bothGroups("the database is away")
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if _, err := c.Registries[0].Admin().CreateTopic(ctx, &wire.CreateTopicRequest{Topic: "none", Partitions: 1}); wire.CodeOf(err) != wire.CodeMetadataAway {
		t.Errorf("a topic is made without a database: %v", err)
	}
	for i, r := range c.Registries[:2] {
		r.Stop()
		bothGroups(fmt.Sprintf("%d registry nodes are gone", i+1))
	}
	failed, err := f.failures()
	if failed > 0 {
		t.Errorf("%d sends failed while the database was away and registry nodes went, the last with %v", failed, err)
	}
	c.Registries[2].Stop()
	bothGroups("all registry nodes are gone")
	if now, err := f.failures(); now > failed {
		t.Errorf("%d sends failed while no registry node was there, the last with %v", now-failed, err)
	}
	c.Brokers[1].Restart() // from its copy
	bothGroups("a broker started without a registry")
	late := startFlow(t, c.Dial(c.BrokerAddresses()), c.Dial(c.BrokerAddresses()), "orders", "late")
	late.goesOn("a client that came when no registry node was there", 20)
	late.settle()

	for _, r := range c.Registries {
		r.StartAgain()
	}
	// Longer than silence is borne, in which registry nodes lived and the database was away.
	if rest := 9*time.Second - time.Since(away); rest > 0 {
		f.await("time passes", within, func() bool { return time.Since(away) > 9*time.Second })
	}
	for _, s := range stores {
		s.Fail(nil)
	}
	bothGroups("the database is back")
	begun := time.Now()
	c.Registries[1].CreateTopic("again", 1)
	for _, o := range stores[0].View().List(meta.KindBroker) {
		if o.Spec.(*meta.Broker).Away {
			t.Errorf("broker %s left the routes", o.Name)
		}
	}
	t.Logf("%d messages, none lost; a topic made %v after the database was back", f.settle(), time.Since(begun).Round(time.Millisecond))
}

// dialWire says hello to a node as a program that speaks the protocol itself does.
func dialWire(t *testing.T, s *Server) *wire.Conn {
	t.Helper()
	nc, err := net.Dial("tcp", s.Address())
	if err != nil {
		t.Fatal(err)
	}
	c := wire.NewConn(nc, wire.ConnOptions{})
	served := make(chan error, 1)
	go func() { served <- c.Serve() }()
	t.Cleanup(func() {
		c.Close(nil)
		<-served
	})
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if _, err := c.Hello(ctx, &wire.HelloRequest{ClientId: "test"}); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestRegistryAsksBrokers: where everybody must say who he is a registry node does too, when it asks a broker.
func TestRegistryAsksBrokers(t *testing.T) {
	t.Parallel()
	c := StartCluster(t, ClusterOptions{Auth: true, Memory: true})
	if r, err := c.Groups[0].Do(&wire.BrokerGroupRequest{Action: "drain"}); err != nil || !r.Done || len(r.Left) > 0 {
		t.Errorf("%v, %v", r, err)
	}
}
