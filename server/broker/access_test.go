package broker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jmqio/jmq/server/dispatch"
	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/wire"
)

// ruled is a world with a registry.
type ruled struct {
	*world
	registry *meta.Memory
}

func newRuled(t testing.TB, o Options) *ruled {
	o.Metadata, o.BrokerGroup = true, "here"
	r := &ruled{newWorld(t, o), meta.NewMemory(nil)}
	r.set(meta.KindBrokerGroup, "here", &meta.BrokerGroup{})
	r.set(meta.KindBrokerGroup, "there", &meta.BrokerGroup{})
	return r
}

// set makes or changes objects, by kind, name and spec, or deletes them (nil), in one change that the broker does not know yet.
func (r *ruled) set(what ...any) {
	r.t.Helper()
	c := meta.Change{By: meta.Actor{Name: "local"}}
	for ; len(what) > 0; what = what[3:] {
		k := meta.Key{Kind: what[0].(meta.Kind), Name: what[1].(string)}
		switch k.Kind {
		case meta.KindTopic, meta.KindApp, meta.KindProducer, meta.KindConsumer, meta.KindRequest:
			k.Namespace = meta.NamespaceDefault
		}
		spec, _ := what[2].(meta.Spec)
		c.Writes = append(c.Writes, meta.Write{Key: k, Spec: spec, Expect: meta.Expect{Any: true}})
	}
	if _, err := r.registry.Update(context.Background(), c); err != nil {
		r.t.Fatal(err)
	}
}

// apply gives the broker the newest metadata.
func (r *ruled) apply() {
	r.t.Helper()
	if err := r.broker.Apply(context.Background(), r.registry.View()); err != nil {
		r.t.Fatal(err)
	}
}

// change is set and apply.
func (r *ruled) change(what ...any) {
	r.t.Helper()
	r.set(what...)
	r.apply()
}

// orders makes a topic that app shop sends to and apps pay and audit consume.
func (r *ruled) orders(partitions int) {
	r.t.Helper()
	r.change(meta.KindTopic, "orders", &meta.Topic{Partitions: partitions, BrokerGroups: []string{"here"}},
		meta.KindApp, "shop", &meta.App{}, meta.KindApp, "pay", &meta.App{}, meta.KindApp, "audit", &meta.App{}, meta.KindApp, "thief", &meta.App{},
		meta.KindProducer, "orders/shop", &meta.Producer{}, meta.KindConsumer, "orders/pay", &meta.Consumer{}, meta.KindConsumer, "orders/audit", &meta.Consumer{})
}

// app attaches a client of an app.
func (r *ruled) app(name, client string) context.Context {
	r.t.Helper()
	p := &wire.Peer{ClientID: client, App: name, Addr: "10.1.2.3:4567", Principal: wire.Principal{Kind: wire.PrincipalApp, Name: name, Namespace: meta.NamespaceDefault}}
	if err := r.broker.Attach(p); err != nil {
		r.t.Fatal(err)
	}
	return wire.WithPeer(context.Background(), p)
}

func (r *ruled) send(ctx context.Context, topic string, n int) error {
	done := make(chan error, 1)
	r.broker.Produce(ctx, &wire.ProduceRequest{Topic: topic, Batch: batch(r.t, n, 10)}, func(_ *wire.ProduceResponse, err error) { done <- err })
	return <-done
}

func (r *ruled) join(ctx context.Context, topic, group string) error {
	_, err := r.broker.Subscribe(ctx, &wire.SubscribeRequest{Topic: topic, Group: group, Start: wire.StartBeginning})
	return err
}

func (r *ruled) get(ctx context.Context, group string, wait time.Duration) fetched {
	return <-r.startFetch(ctx, wire.FetchRequest{Topic: "orders", Group: group, WaitMs: uint32(wait.Milliseconds()), MessagesMax: 1})
}

func (r *ruled) ack(ctx context.Context, group string, f fetched) acked {
	done := make(chan acked, 1)
	r.broker.Ack(ctx, &wire.AckRequest{Topic: "orders", Group: group, Items: []wire.AckRange{{Partition: f.Partition, Lease: f.Lease, From: f.From, To: f.To, Outcome: wire.Acked}}},
		func(a *wire.AckResponse, err error) {
			if err != nil {
				done <- acked{err: err}
				return
			}
			done <- acked{codes: append([]wire.Code(nil), a.Codes...)}
		})
	return <-done
}

func wantCode(t testing.TB, what string, err error, want wire.Code) {
	t.Helper()
	if wire.CodeOf(err) != want {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// TestLeft asks, as a node, which groups of all namespaces have messages left; nobody else may.
func TestLeft(t *testing.T) {
	r := newRuled(t, Options{})
	defer r.close()
	r.orders(1)
	shop, pay, audit := r.app("shop", "c"), r.app("pay", "c"), r.app("audit", "c")
	for _, x := range []struct {
		ctx   context.Context
		group string
	}{{pay, "pay"}, {audit, "audit"}} {
		if err := r.join(x.ctx, "orders", x.group); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.send(shop, "orders", 3); err != nil {
		t.Fatal(err)
	}
	if _, err := r.broker.ListGroups(pay, &wire.ListGroupsRequest{Left: true}); wire.CodeOf(err) != wire.CodeForbidden {
		t.Fatal(err)
	}
	node := wire.WithPeer(context.Background(), &wire.Peer{ClientID: "n", Namespace: 7, Principal: wire.Principal{Kind: wire.PrincipalNode, Name: "r1"}})
	left := func() string {
		l, err := r.broker.ListGroups(node, &wire.ListGroupsRequest{Left: true})
		if err != nil {
			t.Fatal(err)
		}
		text := ""
		for _, g := range l.Groups {
			text += fmt.Sprintf("%d %s %s %d; ", g.Namespace, g.Topic, g.Group, g.Lag)
		}
		return text
	}
	if got := left(); got != "0 orders audit 3; 0 orders pay 3; " && got != "0 orders pay 3; 0 orders audit 3; " {
		t.Fatal(got)
	}
	if _, err := r.broker.SeekGroup(as("local"), &wire.SeekGroupRequest{Topic: "orders", Group: "pay", To: uint32(wire.SeekEnd)}); err != nil {
		t.Fatal(err)
	}
	if got := left(); got != "0 orders audit 3; " {
		t.Fatal(got)
	}
}

// TestRights asks for everything as those who may and as those who may not.
func TestRights(t *testing.T) {
	r := newRuled(t, Options{})
	defer r.close()
	local := as("local")
	wantCode(t, "before any metadata", r.send(local, "orders", 1), wire.CodeMetadataAway)
	wantCode(t, "subscribe before any metadata", r.join(local, "orders", "pay"), wire.CodeMetadataAway)
	if _, err := r.broker.ListGroups(local, &wire.ListGroupsRequest{}); wire.CodeOf(err) != wire.CodeMetadataAway {
		t.Error(err)
	}
	r.orders(2)
	r.change(meta.KindTopic, "secret", &meta.Topic{Partitions: 1, BrokerGroups: []string{"here"}, Owner: "pay"},
		meta.KindTopic, "elsewhere", &meta.Topic{Partitions: 1, BrokerGroups: []string{"there"}}, meta.KindProducer, "elsewhere/shop", &meta.Producer{},
		meta.KindUser, "root", &meta.User{Role: meta.RoleAdmin}, meta.KindUser, "guest", &meta.User{Role: meta.RoleUser})
	shop, pay, audit, thief := r.app("shop", "c"), r.app("pay", "c"), r.app("audit", "c"), r.app("thief", "c")
	user := func(name string) context.Context {
		return wire.WithPeer(context.Background(), &wire.Peer{ClientID: "u", Principal: wire.Principal{Kind: wire.PrincipalUser, Name: name}})
	}
	var mine fetched
	for _, c := range []struct {
		what string
		err  error
		want wire.Code
	}{
		{"send", r.send(shop, "orders", 3), wire.CodeOK},
		{"send again", r.send(shop, "orders", 1), wire.CodeOK},
		{"send as a consumer", r.send(pay, "orders", 1), wire.CodeForbidden},
		{"send as a stranger", r.send(thief, "orders", 1), wire.CodeForbidden},
		{"send as a user", r.send(user("guest"), "orders", 1), wire.CodeForbidden},
		{"send as an admin", r.send(user("root"), "orders", 1), wire.CodeOK},
		{"send as a user who is not there", r.send(user("nobody"), "orders", 1), wire.CodeUnauthenticated},
		{"send as local", r.send(local, "orders", 1), wire.CodeOK},
		{"send to a topic of others", r.send(shop, "secret", 1), wire.CodeForbidden},
		{"send to no topic", r.send(shop, "none", 1), wire.CodeTopicNotFound},
		{"send to what is no name", r.send(shop, "x'; DROP TABLE object; --", 1), wire.CodeInvalid},
		{"send to a topic elsewhere", r.send(shop, "elsewhere", 1), wire.CodePartitionNotFound},
		{"subscribe", r.join(pay, "orders", "pay"), wire.CodeOK},
		{"subscribe a subgroup", r.join(pay, "orders", "pay.eu"), wire.CodeOK},
		{"subscribe another", r.join(audit, "orders", "audit"), wire.CodeOK},
		{"subscribe as a producer", r.join(shop, "orders", "shop"), wire.CodeForbidden},
		{"subscribe as another", r.join(audit, "orders", "pay"), wire.CodeForbidden},
		{"subscribe as a stranger", r.join(thief, "orders", "thief"), wire.CodeForbidden},
		{"fetch", func() error { mine = r.get(pay, "pay", 0); return mine.err }(), wire.CodeOK},
		{"fetch as another", r.get(audit, "pay", 0).err, wire.CodeForbidden},
		{"fetch as a stranger", r.get(thief, "thief", 0).err, wire.CodeForbidden},
		{"fetch as a group that is not there", r.get(pay, "pay.us", 0).err, wire.CodeGroupNotFound},
		{"ack as another", r.ack(audit, "pay", fetched{}).err, wire.CodeForbidden},
		{"extend as another", func() error {
			_, err := r.broker.Extend(audit, &wire.ExtendRequest{Topic: "orders", Group: "pay"})
			return err
		}(), wire.CodeForbidden},
		{"create a topic", func() error {
			_, err := r.broker.CreateTopic(local, &wire.CreateTopicRequest{Topic: "new", Partitions: 1})
			return err
		}(), wire.CodeRoleElsewhere},
		{"alter a topic", func() error {
			_, err := r.broker.AlterTopic(local, &wire.AlterTopicRequest{Topic: "orders"})
			return err
		}(), wire.CodeRoleElsewhere},
		{"delete a topic", func() error {
			_, err := r.broker.DeleteTopic(local, &wire.DeleteTopicRequest{Topic: "orders"})
			return err
		}(), wire.CodeRoleElsewhere},
	} {
		wantCode(t, c.what, c.err, c.want)
	}
	// The same client id, and even the lease's number, is of no use to another app.
	if a := r.ack(local, "pay", mine); a.err != nil || a.codes[0] != wire.CodeLeaseForeign {
		t.Errorf("ack of another's lease: %+v", a)
	}
	impostor := wire.WithPeer(context.Background(), &wire.Peer{ClientID: "c", Principal: wire.Principal{Kind: wire.PrincipalUser, Name: "root"}})
	if a := r.ack(impostor, "pay", mine); a.err != nil || a.codes[0] != wire.CodeLeaseForeign {
		t.Errorf("ack of another's lease: %+v", a)
	}
	if a := r.ack(pay, "pay", mine); a.err != nil || a.codes[0] != wire.CodeOK {
		t.Errorf("ack: %+v", a)
	}

	operations := map[string]func(ctx context.Context) error{
		"lag": func(ctx context.Context) error {
			_, err := r.broker.GroupLag(ctx, &wire.GroupLagRequest{Topic: "orders", Group: "pay"})
			return err
		},
		"groups": func(ctx context.Context) error {
			_, err := r.broker.ListGroups(ctx, &wire.ListGroupsRequest{Topic: "orders", Group: "pay"})
			return err
		},
		"peek": func(ctx context.Context) error {
			_, err := r.broker.Peek(ctx, &wire.PeekRequest{Topic: "orders"})
			return err
		},
		"seek": func(ctx context.Context) error {
			_, err := r.broker.SeekGroup(ctx, &wire.SeekGroupRequest{Topic: "orders", Group: "pay", To: uint32(wire.SeekStart), DryRun: true})
			return err
		},
		"policy": func(ctx context.Context) error {
			_, err := r.broker.AlterGroup(ctx, &wire.AlterGroupRequest{Topic: "orders", Group: "pay", Policy: &wire.GroupPolicy{}})
			return err
		},
		"remove": func(ctx context.Context) error {
			_, err := r.broker.RemoveGroup(ctx, &wire.RemoveGroupRequest{Topic: "orders", Group: "pay.eu", Force: true})
			return err
		},
		"usage": func(ctx context.Context) error {
			_, err := r.broker.StoreUsage(ctx, &wire.StoreUsageRequest{})
			return err
		},
		"describe": func(ctx context.Context) error {
			_, err := r.broker.DescribeTopic(ctx, &wire.DescribeTopicRequest{Topic: "orders"})
			return err
		},
		"route": func(ctx context.Context) error {
			_, err := r.broker.Route(ctx, &wire.RouteRequest{Topic: "orders"})
			return err
		},
	}
	for name, do := range operations {
		if err := do(user("guest")); wire.CodeOf(err) != wire.CodeForbidden {
			t.Errorf("%s as a guest: %v", name, err)
		}
		if err := do(thief); wire.CodeOf(err) != wire.CodeForbidden {
			t.Errorf("%s as a stranger: %v", name, err)
		}
		// This broker has no Usage: that is found out only by those who may ask.
		if err := do(user("root")); err != nil && !(name == "usage" && wire.CodeOf(err) == wire.CodeUnknownCommand) {
			t.Errorf("%s as an admin: %v", name, err)
		}
	}
	seen := func(ctx context.Context) (names []string) {
		topics, err := r.broker.ListTopics(ctx, &wire.ListTopicsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, topic := range topics.Topics {
			names = append(names, topic.Name)
		}
		return names
	}
	if all, own, none := seen(user("root")), seen(pay), seen(thief); len(all) != 2 || len(own) != 2 || len(none) != 0 || len(seen(shop)) != 1 {
		t.Errorf("topics seen: by an admin %v, by an app %v, by a stranger %v, by a producer %v", all, own, none, seen(shop))
	}
	if m := r.broker.Metrics(); m.Denied[wire.CodeForbidden] < 20 || m.Metadata.Version != uint64(r.registry.View().Version) || !m.Metadata.Ruled {
		t.Errorf("%+v, %v", m.Metadata, m.Denied)
	}
}

// TestRightsOfFinalTopic names one topic and gives the number of another: the name is meant, whichever of them the app may send to.
func TestRightsOfFinalTopic(t *testing.T) {
	r := newRuled(t, Options{})
	defer r.close()
	r.orders(1)
	r.change(meta.KindTopic, "secret", &meta.Topic{Partitions: 1, BrokerGroups: []string{"here"}})
	orders, _ := r.store.Topic(0, "orders")
	secret, _ := r.store.Topic(0, "secret")
	shop := r.app("shop", "c")
	for _, c := range []struct {
		name  string
		of    store.Topic
		want  wire.Code
		holds index.Index // orders, then
	}{
		{"orders", secret, wire.CodeOK, 1}, {"secret", orders, wire.CodeForbidden, 1}, {"secret", secret, wire.CodeForbidden, 1}, {"orders", orders, wire.CodeOK, 2},
	} {
		done := make(chan error, 1)
		r.broker.Produce(shop, &wire.ProduceRequest{Topic: c.name, TopicID: uint64(c.of.ID), RouteVersion: routeVersion(&c.of), Batch: batch(t, 1, 1)},
			func(_ *wire.ProduceResponse, err error) { done <- err })
		wantCode(t, "send to "+c.name+" by the number of "+c.of.Name, <-done, c.want)
		_, in, _ := r.store.Bounds(store.Partition{Topic: orders.ID, Incarnation: orders.Incarnation})
		_, kept, _ := r.store.Bounds(store.Partition{Topic: secret.ID, Incarnation: secret.Incarnation})
		if in != c.holds || kept != 0 {
			t.Errorf("send to %s by the number of %s: %d messages in orders, %d in secret", c.name, c.of.Name, in, kept)
		}
	}
}

// TestRevocation ends fetches that wait, and leases, of those who lost their right, at once, and of nobody else.
func TestRevocation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRuled(t, Options{})
		defer r.close()
		r.orders(1)
		shop, pay, audit := r.app("shop", "s"), r.app("pay", "p"), r.app("audit", "a")
		for group, ctx := range map[string]context.Context{"pay": pay, "audit": audit} {
			if err := r.join(ctx, "orders", group); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		waits := func(ctx context.Context, group string) chan fetched {
			c := r.startFetch(ctx, wire.FetchRequest{Topic: "orders", Group: group, WaitMs: 30_000, MessagesMax: 1})
			synctest.Wait()
			return c
		}
		ended := func(c chan fetched, what string, want wire.Code) {
			t.Helper()
			synctest.Wait()
			select {
			case f := <-c:
				wantCode(t, what, f.err, want)
			default:
				t.Errorf("%s: it waits", what)
			}
		}
		waiting := func(c chan fetched, what string) {
			t.Helper()
			synctest.Wait()
			select {
			case f := <-c:
				t.Errorf("%s: it ended with %+v", what, f)
			default:
			}
		}
		theirs := waits(audit, "audit")
		for _, c := range []struct {
			what    string
			kind    meta.Kind
			name    string
			lost    meta.Spec
			restore meta.Spec
			code    wire.Code
			leases  bool // end
		}{
			{"subscription deleted", meta.KindConsumer, "orders/pay", nil, &meta.Consumer{}, wire.CodeForbidden, true},
			{"address forbidden", meta.KindConsumer, "orders/pay", &meta.Consumer{ForbiddenIPs: []string{"10.1.0.0/16"}}, &meta.Consumer{}, wire.CodeForbidden, true},
			{"broker group forbidden", meta.KindConsumer, "orders/pay", &meta.Consumer{ForbiddenBrokerGroups: []string{"here"}}, &meta.Consumer{}, wire.CodeForbidden, true},
			{"app disabled", meta.KindApp, "pay", &meta.App{Disabled: true}, &meta.App{}, wire.CodeUnauthenticated, true},
			{"paused", meta.KindConsumer, "orders/pay", &meta.Consumer{Paused: true}, &meta.Consumer{}, wire.CodePaused, false},
		} {
			mine := waits(pay, "pay")
			if err := r.send(shop, "orders", 1); err != nil {
				t.Fatal(err)
			}
			leased := <-mine
			if leased.err != nil || leased.Lease == 0 {
				t.Fatalf("%s: %+v", c.what, leased)
			}
			if f := <-theirs; f.err != nil || r.ack(audit, "audit", f).err != nil {
				t.Fatalf("%s: %+v", c.what, f)
			}
			theirs = waits(audit, "audit")
			mine = waits(pay, "pay")
			r.change(c.kind, c.name, c.lost)
			ended(mine, c.what, c.code)
			waiting(theirs, c.what+", another app")
			again := r.get(pay, "pay", time.Second)
			wantCode(t, c.what+", fetch", again.err, c.code)
			if c.code == wire.CodePaused && again.err.(*wire.CodeError).RetryAfter < pausedRetry {
				t.Errorf("%s: no time to wait", c.what)
			}
			switch a := r.ack(pay, "pay", leased); {
			case c.leases:
				wantCode(t, c.what+", ack", a.err, c.code)
				if m := r.broker.Metrics(); m.Dispatch.Leased != 0 {
					t.Errorf("%s: %d leases last", c.what, m.Dispatch.Leased)
				}
			case a.err != nil || a.codes[0] != wire.CodeOK:
				t.Errorf("%s: ack %+v", c.what, a)
			}
			r.change(c.kind, c.name, c.restore)
			if !c.leases {
				continue
			}
			// The message comes again, as if it had never been given.
			f := r.get(pay, "pay", 0)
			if f.err != nil || f.From != leased.From || f.Attempt != 1 {
				t.Errorf("%s: restored, %+v, want message %d", c.what, f, leased.From)
			}
			if a := r.ack(pay, "pay", f); a.err != nil || a.codes[0] != wire.CodeOK {
				t.Errorf("%s: restored, ack %+v", c.what, a)
			}
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("it took %v", took)
		}
		// A change that concerns nobody here ends nothing.
		r.change(meta.KindApp, "other", &meta.App{}, meta.KindDataCenter, "dc", &meta.DataCenter{})
		waiting(theirs, "a change elsewhere")
		r.change(meta.KindTopic, "orders", nil, meta.KindProducer, "orders/shop", nil, meta.KindConsumer, "orders/pay", nil, meta.KindConsumer, "orders/audit", nil)
		ended(theirs, "topic deleted", wire.CodeTopicNotFound)
		wantCode(t, "send", r.send(shop, "orders", 1), wire.CodeTopicNotFound)
	})
}

// TestRevocationRace takes a right away and gives it back while many fetch: after each time that it was taken nobody waits and nobody gets
// anything, whatever its fetch did meanwhile.
func TestRevocationRace(t *testing.T) {
	r := newRuled(t, Options{})
	defer r.close()
	r.orders(4)
	shop := r.app("shop", "s")
	const members, turns = 8, 30
	var mu sync.Mutex
	granted := sync.NewCond(&mu)
	turn, stopped, over := 1, 0, false // odd: the right is there
	if err := r.join(r.app("pay", "first"), "orders", "pay"); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for m := range members {
		ctx := r.app("pay", fmt.Sprint("p", m/2))
		all.Go(func() {
			for {
				f := <-r.startFetch(ctx, wire.FetchRequest{Topic: "orders", Group: "pay", Member: uint32(m), WaitMs: 30_000, MessagesMax: 2})
				switch code := wire.CodeOf(f.err); {
				case code == wire.CodeForbidden:
					mu.Lock()
					at := turn
					stopped++
					granted.Broadcast()
					for turn == at && !over {
						granted.Wait()
					}
					end := over
					mu.Unlock()
					if end {
						return
					}
				case f.err != nil:
					t.Error(f.err)
					return
				default:
					done := make(chan struct{})
					r.broker.Ack(ctx, &wire.AckRequest{Topic: "orders", Group: "pay", Member: uint32(m), Items: ackAll(f).Items}, func(*wire.AckResponse, error) { close(done) })
					<-done
				}
			}
		})
	}
	sending := make(chan struct{})
	all.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-sending:
				return
			default:
			}
			done := make(chan struct{})
			r.broker.Produce(shop, &wire.ProduceRequest{Topic: "orders", Partition: uint16(i % 4), Batch: batch(t, 1, 10)}, func(*wire.ProduceResponse, error) { close(done) })
			<-done
		}
	})
	for n := range turns {
		r.change(meta.KindConsumer, "orders/pay", nil)
		late := time.AfterFunc(20*time.Second, func() {
			mu.Lock()
			defer mu.Unlock()
			t.Errorf("turn %d: %d of %d members learned of it", n, stopped, members)
			over = true
			granted.Broadcast()
		})
		mu.Lock()
		for stopped < members && !over {
			granted.Wait()
		}
		failed := over
		mu.Unlock()
		late.Stop()
		if m := r.broker.Metrics().Dispatch; m.Waiting != 0 || m.Leased != 0 {
			t.Errorf("turn %d: %d fetches wait, %d leases last", n, m.Waiting, m.Leased)
		}
		r.change(meta.KindConsumer, "orders/pay", &meta.Consumer{})
		mu.Lock()
		turn, stopped = turn+2, 0
		over = over || n == turns-1
		granted.Broadcast()
		mu.Unlock()
		if failed {
			break
		}
	}
	close(sending)
	all.Wait()
}

// TestConnectionLimits attaches as many clients of an app and of a namespace as may be, and one more.
func TestConnectionLimits(t *testing.T) {
	r := newRuled(t, Options{})
	defer r.close()
	r.orders(1)
	r.change(meta.KindApp, "shop", &meta.App{Limit: meta.Limit{Connections: 2}})
	peer := func(app string) *wire.Peer {
		return &wire.Peer{ClientID: "c", Principal: wire.Principal{Kind: wire.PrincipalApp, Name: app, Namespace: meta.NamespaceDefault}}
	}
	one, two, three := peer("shop"), peer("shop"), peer("shop")
	wantCode(t, "first", r.broker.Attach(one), wire.CodeOK)
	wantCode(t, "second", r.broker.Attach(two), wire.CodeOK)
	err := r.broker.Attach(three)
	wantCode(t, "third", err, wire.CodeTooMany)
	if !strings.Contains(err.Error(), "app shop") || three.Session.Load() != nil {
		t.Error(err, three.Session.Load())
	}
	wantCode(t, "another app", r.broker.Attach(peer("pay")), wire.CodeOK)
	r.broker.Detach(one)
	wantCode(t, "third, when one has gone", r.broker.Attach(three), wire.CodeOK)
	// In place: those that are there stay.
	r.change(meta.KindApp, "shop", &meta.App{}, meta.KindNamespace, meta.NamespaceDefault, &meta.Namespace{Limit: meta.Limit{Connections: 1}})
	wantCode(t, "beyond the namespace's", r.broker.Attach(peer("audit")), wire.CodeTooMany)
	wantCode(t, "local", r.broker.Attach(&wire.Peer{ClientID: "c"}), wire.CodeOK)
	wantCode(t, "send of one that is there", r.send(wire.WithPeer(context.Background(), two), "orders", 1), wire.CodeOK)
	r.change(meta.KindNamespace, meta.NamespaceDefault, &meta.Namespace{})
	wantCode(t, "without a limit", r.broker.Attach(peer("audit")), wire.CodeOK)
}

// TestPolicy pushes what metadata says of a group: it is in force for the groups that are there, and their subscribers cannot undo it.
func TestPolicy(t *testing.T) {
	r := newRuled(t, Options{})
	defer r.close()
	r.orders(1)
	shop, pay := r.app("shop", "s"), r.app("pay", "p")
	for _, group := range []string{"pay", "pay.eu"} {
		if err := r.join(pay, "orders", group); err != nil {
			t.Fatal(err)
		}
	}
	for range 5 {
		if err := r.send(shop, "orders", 10); err != nil {
			t.Fatal(err)
		}
	}
	yes := true
	r.change(meta.KindConsumer, "orders/pay", &meta.Consumer{Parallel: &yes, Window: 7, AckTimeout: meta.Duration(42 * time.Second), BatchMessages: 3})
	for _, group := range []string{"pay", "pay.eu"} {
		s, err := r.broker.Subscribe(pay, &wire.SubscribeRequest{Topic: "orders", Group: group, Policy: &wire.GroupPolicy{}})
		if err != nil || !s.Policy.Parallel || s.Policy.Window != 7 || s.LeaseMs != 42_000 {
			t.Errorf("%s: %v, %v", group, s, err)
		}
		f := <-r.startFetch(pay, wire.FetchRequest{Topic: "orders", Group: group, MessagesMax: 100})
		if f.err != nil || f.To-f.From != 3 || f.LeaseMs != 42_000 {
			t.Errorf("%s: given %d for %d ms, %v", group, f.To-f.From, f.LeaseMs, f.err)
		}
		e, err := r.broker.Extend(pay, &wire.ExtendRequest{Topic: "orders", Group: group, Leases: []*wire.LeaseName{{Lease: f.Lease}}})
		if err != nil || e.LeaseMs != 42_000 {
			t.Errorf("%s: extended %v, %v", group, e, err)
		}
	}
	_, err := r.broker.AlterGroup(as("ops"), &wire.AlterGroupRequest{Topic: "orders", Group: "pay.eu", Policy: &wire.GroupPolicy{}})
	wantCode(t, "alter", err, wire.CodeInvalid)
	no := false
	r.change(meta.KindConsumer, "orders/pay.eu", &meta.Consumer{Parallel: &no})
	if s, err := r.broker.Subscribe(pay, &wire.SubscribeRequest{Topic: "orders", Group: "pay.eu", Policy: &wire.GroupPolicy{Parallel: true}}); err != nil || s.Policy.Parallel || s.LeaseMs != 300_000 {
		t.Error(s, err)
	}
	// Without a word of it the group is as it is, and may be altered.
	r.change(meta.KindConsumer, "orders/pay", &meta.Consumer{})
	if s, err := r.broker.Subscribe(pay, &wire.SubscribeRequest{Topic: "orders", Group: "pay"}); err != nil || !s.Policy.Parallel || s.Policy.Window != 7 {
		t.Error(s, err)
	}
	if _, err := r.broker.AlterGroup(as("ops"), &wire.AlterGroupRequest{Topic: "orders", Group: "pay", Policy: &wire.GroupPolicy{}}); err != nil {
		t.Error(err)
	}
}

// TestGrantCosts counts what asking for a right that was granted costs: no memory.
func TestGrantCosts(t *testing.T) {
	r := newRuled(t, Options{})
	defer r.close()
	r.orders(1)
	r.change(meta.KindTopic, "more", &meta.Topic{Partitions: 1, BrokerGroups: []string{"here"}, Limit: meta.Limit{MessagesPerSecond: 1 << 40, BytesPerSecond: 1 << 40}}, meta.KindProducer, "more/shop", &meta.Producer{})
	p := wire.PeerFrom(r.app("shop", "s"))
	one, _ := r.store.Topic(0, "orders")
	two, _ := r.store.Topic(0, "more")
	if n := testing.AllocsPerRun(100, func() {
		a, errA := r.broker.granted(p, &one, queueOf(&one), "")
		b, errB := r.broker.granted(p, &two, queueOf(&two), "")
		if errA != nil || errB != nil || r.broker.take(a, time.Now(), 1, 100) != nil || r.broker.take(b, time.Now(), 1, 100) != nil {
			t.Error(errA, errB)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestGrantsForgotten grants a session more than is kept, and takes the right away: a fetch that waits for one that was forgotten
// is ended when it is answered.
func TestGrantsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRuled(t, Options{})
		defer r.close()
		r.orders(1)
		shop, pay := r.app("shop", "s"), r.app("pay", "p")
		if err := r.join(pay, "orders", "pay"); err != nil {
			t.Fatal(err)
		}
		c := r.startFetch(pay, wire.FetchRequest{Topic: "orders", Group: "pay", WaitMs: 20_000})
		s := r.broker.sessionOf(wire.PeerFrom(pay))
		s.mu.Lock()
		clear(s.mu.grants)
		s.mu.Unlock()
		r.change(meta.KindConsumer, "orders/pay", nil)
		if err := r.send(shop, "orders", 1); err != nil {
			t.Fatal(err)
		}
		f := <-c
		wantCode(t, "fetch", f.err, wire.CodeForbidden)
		if e, ok := errors.AsType[*wire.CodeError](f.err); !ok || !strings.Contains(e.Message, "pay") {
			t.Error(f.err)
		}
		if m := r.broker.Metrics(); m.Dispatch.Leased != 0 {
			t.Errorf("%d leases last", m.Dispatch.Leased)
		}
	})
}

func queueOf(t *store.Topic) dispatch.Queue { return dispatch.Queue{Topic: topicKey(t)} }

// TestAppGroups: an app makes subgroups as it likes, but not so many that others can make none.
func TestAppGroups(t *testing.T) {
	r := newRuled(t, Options{})
	defer r.close()
	r.orders(1)
	pay, audit := r.app("pay", "p"), r.app("audit", "a")
	for n := range appGroupsMax {
		if err := r.join(pay, "orders", fmt.Sprint("pay.", n)); err != nil {
			t.Fatal(n, err)
		}
	}
	wantCode(t, "one too many", r.join(pay, "orders", "pay.more"), wire.CodeTooLarge)
	wantCode(t, "one of them", r.join(pay, "orders", "pay.7"), wire.CodeOK)
	wantCode(t, "the app itself", r.join(pay, "orders", "pay"), wire.CodeOK)
	wantCode(t, "another app", r.join(audit, "orders", "audit.eu"), wire.CodeOK)
}
