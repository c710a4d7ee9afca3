// Package metatest holds engines to the contract of meta.Store. An engine's test is
//
//	metatest.Run(t, func(t *testing.T) metatest.Place { ... })
//
// which is called once for each test, for an empty database.
package metatest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/server/term"
	"github.com/jmqio/jmq/wire"
)

// Place is one database.
type Place struct {
	// Open opens a store over the database: again after the one before was closed, and several at one time, as several nodes do.
	Open func(t *testing.T) meta.Store
}

// wait bounds what must come soon: far more than the contract's 0.5 s, since machines of tests are slow.
const wait = 30 * time.Second

// by is who changes things here.
var by = meta.Actor{Name: "user tess", Addr: "192.0.2.7"}

// Run runs all tests, each on a place of its own.
func Run(t *testing.T, open func(t *testing.T) Place) {
	for _, c := range []struct {
		name string
		test func(*testing.T, Place)
	}{
		{"initial", testInitial},
		{"update", testUpdate},
		{"expect", testExpect},
		{"refused whole", testWhole},
		{"unchanged", testUnchanged},
		{"dry run", testDryRun},
		{"names", testNames},
		{"created", testCreated},
		{"namespace numbers", testNumbers},
		{"in use", testInUse},
		{"reopen", testReopen},
		{"watch", testWatch},
		{"two stores", testTwo},
		{"concurrent", testConcurrent},
		{"many", testMany},
		{"large", testLarge},
		{"audit", testAudit},
		{"audit pages", testAuditPages},
		{"generation", testGeneration},
		{"beats", testBeats},
		{"closed", testClosed},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, open(t)) })
	}
}

func open(t *testing.T, p Place) meta.Store {
	t.Helper()
	s := p.Open(t)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

func key(k meta.Kind, name string) meta.Key {
	if k.Namespaced() {
		return meta.Key{Kind: k, Namespace: meta.NamespaceDefault, Name: name}
	}
	return meta.Key{Kind: k, Name: name}
}

func create(k meta.Kind, name string, spec meta.Spec) meta.Write {
	return meta.Write{Key: key(k, name), Spec: spec, Expect: meta.Expect{Create: true}}
}

func update(t *testing.T, s meta.Store, writes ...meta.Write) *meta.Snapshot {
	t.Helper()
	n, err := s.Update(t.Context(), meta.Change{By: by, Reason: "a test", Writes: writes})
	if err != nil {
		t.Fatalf("update %d objects, %.300v: %v", len(writes), fmt.Sprint(writes), err)
	}
	return n
}

func refused(t *testing.T, s meta.Store, code wire.Code, writes ...meta.Write) {
	t.Helper()
	before := s.View()
	n, err := s.Update(t.Context(), meta.Change{By: by, Writes: writes})
	var ce *wire.CodeError
	if n != nil || !errors.As(err, &ce) || ce.Code != code {
		t.Fatalf("update %d objects, %.300v: %v, %v; want code %v", len(writes), fmt.Sprint(writes), n, err, code)
	}
	if after := s.View(); after.Version != before.Version {
		t.Fatalf("version %d after a refused change, was %d", after.Version, before.Version)
	}
	if entries, _, err := s.Audit(t.Context(), meta.AuditQuery{Limit: 1}); err != nil || (len(entries) == 1 && entries[0].Version > before.Version) {
		t.Fatalf("audit after a refused change: %+v, %v", entries, err)
	}
}

// same compares two snapshots, object by object.
func same(t *testing.T, got, want *meta.Snapshot) {
	t.Helper()
	if got.Generation != want.Generation || got.Version != want.Version {
		t.Fatalf("snapshot is generation %d version %d, want %d %d", got.Generation, got.Version, want.Generation, want.Version)
	}
	for _, k := range meta.Kinds {
		g, w := got.List(k), want.List(k)
		if len(g) != len(w) {
			t.Fatalf("%d objects of kind %s, want %d", len(g), k, len(w))
		}
		for i := range g {
			if !reflect.DeepEqual(g[i], w[i]) {
				t.Fatalf("%s:\n got %+v %+v\nwant %+v %+v", w[i].Key, g[i], g[i].Spec, w[i], w[i].Spec)
			}
		}
	}
}

// until watches s until a snapshot is as wanted.
func until(t *testing.T, s meta.Store, ok func(*meta.Snapshot) bool) *meta.Snapshot {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	n := s.View()
	for !ok(n) {
		var err error
		if n, err = s.Watch(ctx, n); err != nil {
			t.Fatalf("watch: %v; stands at version %d, health %v", err, s.View().Version, s.Health())
		}
	}
	return n
}

// testInitial: an empty database has the default namespace, and nothing else.
func testInitial(t *testing.T, p Place) {
	s := open(t, p)
	v := s.View()
	if v.Generation == 0 || v.Version == 0 || s.Health() != nil {
		t.Fatalf("generation %d, version %d, health %v", v.Generation, v.Version, s.Health())
	}
	for _, k := range meta.Kinds {
		want := 0
		if k == meta.KindNamespace {
			want = 1
		}
		if v.Len(k) != want {
			t.Fatalf("%d objects of kind %s", v.Len(k), k)
		}
	}
	if n := v.Namespace(meta.NamespaceDefault); n == nil || n.ID != 0 {
		t.Fatalf("default namespace is %+v", n)
	}
}

// testUpdate makes, changes and deletes, and looks at what is there after each.
func testUpdate(t *testing.T, p Place) {
	s := open(t, p)
	first := s.View()
	n := update(t, s, create(meta.KindApp, "pay", &meta.App{Description: "Zahlung ☂ 'quoted' \"twice\" \\ back; drop table object"}))
	o := n.Get(key(meta.KindApp, "pay"))
	if n.Version != first.Version+1 || o == nil || o.Revision != n.Version || o.Created != n.Version {
		t.Fatalf("version %d after %d, object %+v", n.Version, first.Version, o)
	}
	if got := s.View(); got.Version != n.Version {
		t.Fatalf("view gives version %d after an update to %d", got.Version, n.Version)
	}
	n2 := update(t, s, meta.Write{Key: o.Key, Spec: &meta.App{Description: "new"}, Expect: meta.Expect{Revision: o.Revision}})
	o2 := n2.Get(o.Key)
	if o2.Revision != n2.Version || o2.Created != o.Created || o2.Spec.(*meta.App).Description != "new" {
		t.Fatalf("changed: %+v %+v", o2, o2.Spec)
	}
	if n.Get(o.Key) != o || first.Get(o.Key) != nil {
		t.Fatal("an older snapshot changed")
	}
	n3 := update(t, s, meta.Write{Key: o.Key, Expect: meta.Expect{Revision: o2.Revision}})
	if n3.Get(o.Key) != nil || n3.Len(meta.KindApp) != 0 {
		t.Fatal("deleted, and still there")
	}
	changed, ok := n3.Since(n.Version)
	if !ok || len(changed) != 1 || changed[0].Key != o.Key || changed[0].Spec != nil || changed[0].Revision != n3.Version {
		t.Fatalf("since version %d: %+v, %v", n.Version, changed, ok)
	}
}

// testExpect: each way in which what a write finds is not what it wants to find.
func testExpect(t *testing.T, p Place) {
	s := open(t, p)
	k := key(meta.KindApp, "pay")
	one := &meta.App{Description: "1"}
	two := &meta.App{Description: "2"}
	refused(t, s, wire.CodeNotFound, meta.Write{Key: k, Spec: one, Expect: meta.Expect{Revision: 1}})
	refused(t, s, wire.CodeNotFound, meta.Write{Key: k, Expect: meta.Expect{Revision: 1}})
	r := update(t, s, create(meta.KindApp, "pay", one)).Get(k).Revision
	refused(t, s, wire.CodeExists, create(meta.KindApp, "pay", two))
	refused(t, s, wire.CodeConflict, meta.Write{Key: k, Spec: two, Expect: meta.Expect{Revision: r - 1}})
	refused(t, s, wire.CodeConflict, meta.Write{Key: k, Spec: two})
	refused(t, s, wire.CodeConflict, meta.Write{Key: k, Expect: meta.Expect{Revision: r + 1}})
	refused(t, s, wire.CodeInvalid)
	refused(t, s, wire.CodeInvalid, meta.Write{Key: k, Spec: two, Expect: meta.Expect{Any: true}}, meta.Write{Key: k, Spec: one, Expect: meta.Expect{Any: true}})
	refused(t, s, wire.CodeInvalid, meta.Write{Key: key(meta.KindUser, "x"), Spec: one, Expect: meta.Expect{Any: true}})
	refused(t, s, wire.CodeInvalid, create(meta.KindApp, "x'; drop table object; --", one))
	update(t, s, meta.Write{Key: k, Spec: two, Expect: meta.Expect{Any: true}})
	update(t, s, meta.Write{Key: k, Expect: meta.Expect{Any: true}})
	update(t, s, create(meta.KindApp, "pay", two))
}

// testWhole: of a change of which one write is refused nothing is done.
func testWhole(t *testing.T, p Place) {
	s := open(t, p)
	refused(t, s, wire.CodeNotFound,
		create(meta.KindApp, "pay", &meta.App{}), create(meta.KindApp, "ship", &meta.App{}),
		meta.Write{Key: key(meta.KindApp, "gone"), Spec: &meta.App{}, Expect: meta.Expect{Revision: 7}})
	refused(t, s, wire.CodeInvalid, create(meta.KindApp, "pay", &meta.App{}), create(meta.KindApp, "ship", &meta.App{Owners: []string{"nobody"}}))
	if n := s.View().Len(meta.KindApp); n != 0 {
		t.Fatalf("%d apps", n)
	}
}

// testUnchanged: a write of what is there already is no change.
func testUnchanged(t *testing.T, p Place) {
	s := open(t, p)
	a := update(t, s, create(meta.KindApp, "pay", &meta.App{Description: "x"}), create(meta.KindApp, "ship", &meta.App{}))
	again := meta.Write{Key: key(meta.KindApp, "pay"), Spec: &meta.App{Description: "x"}, Expect: meta.Expect{Any: true}}
	b := update(t, s, again, meta.Write{Key: key(meta.KindApp, "never"), Expect: meta.Expect{Any: true}})
	same(t, b, a)
	c := update(t, s, again, meta.Write{Key: key(meta.KindApp, "ship"), Spec: &meta.App{Description: "y"}, Expect: meta.Expect{Any: true}})
	if o := c.Get(again.Key); o.Revision != a.Version || c.Version != a.Version+1 {
		t.Fatalf("what did not change has revision %d; version %d", o.Revision, c.Version)
	}
	entries, _, err := s.Audit(t.Context(), meta.AuditQuery{Key: again.Key})
	if err != nil || len(entries) != 1 {
		t.Fatalf("audit of it: %+v, %v", entries, err)
	}
}

// testDryRun: says what would be, and nobody sees it.
func testDryRun(t *testing.T, p Place) {
	s := open(t, p)
	before := s.View()
	c := meta.Change{By: by, DryRun: true, Writes: []meta.Write{create(meta.KindApp, "pay", &meta.App{})}}
	n, err := s.Update(t.Context(), c)
	if err != nil || n.App(meta.NamespaceDefault, "pay") == nil || n.Version != before.Version+1 {
		t.Fatalf("dry run: %+v, %v", n, err)
	}
	same(t, s.View(), before)
	if entries, _, err := s.Audit(t.Context(), meta.AuditQuery{}); err != nil || len(entries) != 0 {
		t.Fatalf("audit: %+v, %v", entries, err)
	}
	c.Writes[0].Expect = meta.Expect{Revision: 9}
	if _, err := s.Update(t.Context(), c); wire.CodeOf(err) != wire.CodeNotFound {
		t.Fatalf("a dry run of what would be refused: %v", err)
	}
	update(t, s, create(meta.KindApp, "ship", &meta.App{}))
	if s.View().App(meta.NamespaceDefault, "pay") != nil {
		t.Fatal("the dry run came true")
	}
}

// testNames: names are compared byte by byte, and long ones are kept whole.
func testNames(t *testing.T, p Place) {
	s := open(t, p)
	long := strings.Repeat("n", 255)
	names := []string{"pay", "Pay", "PAY", "pay_", "pay-", "p", long}
	for _, n := range names {
		update(t, s, create(meta.KindApp, n, &meta.App{Description: "of " + n}))
	}
	topic := strings.Repeat("t", 255)
	update(t, s, create(meta.KindBrokerGroup, "b1", &meta.BrokerGroup{}), create(meta.KindTopic, topic, &meta.Topic{BrokerGroups: []string{"b1"}}),
		create(meta.KindProducer, topic+"/"+long, &meta.Producer{Description: "x"}))
	update(t, s, meta.Write{Key: key(meta.KindApp, "PAY"), Expect: meta.Expect{Any: true}})
	v := open(t, p).View()
	for _, n := range names {
		a := v.App(meta.NamespaceDefault, n)
		if n == "PAY" {
			if a != nil {
				t.Fatalf("%s is still there: %+v", n, a)
			}
			continue
		}
		if a == nil || a.Description != "of "+n {
			t.Fatalf("app %s is %+v", n, a)
		}
	}
	if v.Get(key(meta.KindProducer, topic+"/"+long)) == nil {
		t.Fatal("the producer with the longest name is not there")
	}
}

// testCreated: what is deleted and made again is another one.
func testCreated(t *testing.T, p Place) {
	s := open(t, p)
	k := key(meta.KindApp, "pay")
	a := update(t, s, create(meta.KindApp, "pay", &meta.App{})).Get(k)
	update(t, s, meta.Write{Key: k, Expect: meta.Expect{Revision: a.Revision}})
	b := update(t, s, create(meta.KindApp, "pay", &meta.App{})).Get(k)
	if b.Created <= a.Created {
		t.Fatalf("made again it was created by version %d, the first time by %d", b.Created, a.Created)
	}
	if b.Born <= 0 || b.Born < a.Born {
		t.Fatalf("made again it was born at %d, the first time at %d", b.Born, a.Born)
	}
	if o := open(t, p).View().Get(k); o.Created != b.Created || o.Born != b.Born {
		t.Fatalf("another store has it created by version %d at %d, not %d at %d", o.Created, o.Born, b.Created, b.Born)
	}
}

// testNumbers: a namespace's number is never given again, whatever is deleted and whoever gives it.
func testNumbers(t *testing.T, p Place) {
	seen := map[uint32]string{0: meta.NamespaceDefault}
	number := func(s *meta.Snapshot, name string) {
		t.Helper()
		id := s.Namespace(name).ID
		if other, ok := seen[id]; ok {
			t.Fatalf("namespace %s has number %d, as %s had", name, id, other)
		}
		seen[id] = name
	}
	for round := range 3 {
		s := p.Open(t)
		name := func(n string) string { return fmt.Sprintf("%s%d", n, round) }
		n := update(t, s, create(meta.KindNamespace, name("a"), &meta.Namespace{ID: 3}), create(meta.KindNamespace, name("b"), &meta.Namespace{}))
		number(n, name("a"))
		number(n, name("b"))
		id := n.Namespace(name("a")).ID
		n = update(t, s, meta.Write{Key: key(meta.KindNamespace, name("a")), Spec: &meta.Namespace{ID: 99, TopicsMax: 5}, Expect: meta.Expect{Any: true}})
		if got := n.Namespace(name("a")); got.ID != id || got.TopicsMax != 5 {
			t.Fatalf("changed, it is %+v; its number was %d", got, id)
		}
		update(t, s, meta.Write{Key: key(meta.KindNamespace, name("b")), Expect: meta.Expect{Any: true}}, meta.Write{Key: key(meta.KindNamespace, name("a")), Expect: meta.Expect{Any: true}})
		n = update(t, s, create(meta.KindNamespace, name("c"), &meta.Namespace{}),
			meta.Write{Key: key(meta.KindNamespace, meta.NamespaceDefault), Spec: &meta.Namespace{Description: name("d")}, Expect: meta.Expect{Any: true}})
		number(n, name("c"))
		if round == 1 {
			if _, err := s.NewGeneration(t.Context(), by, "numbers"); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// testInUse: what others name is not deleted, unless they are in the same change.
func testInUse(t *testing.T, p Place) {
	s := open(t, p)
	update(t, s, create(meta.KindBrokerGroup, "b1", &meta.BrokerGroup{}), create(meta.KindApp, "pay", &meta.App{}),
		create(meta.KindTopic, "orders", &meta.Topic{BrokerGroups: []string{"b1"}, Owner: "pay"}), create(meta.KindConsumer, "orders/pay.eu", &meta.Consumer{}))
	drop := func(k meta.Kind, name string) meta.Write {
		return meta.Write{Key: key(k, name), Expect: meta.Expect{Any: true}}
	}
	refused(t, s, wire.CodeInUse, drop(meta.KindBrokerGroup, "b1"))
	refused(t, s, wire.CodeInUse, drop(meta.KindTopic, "orders"))
	refused(t, s, wire.CodeInUse, drop(meta.KindApp, "pay"))
	refused(t, s, wire.CodeInvalid, create(meta.KindProducer, "orders/nobody", &meta.Producer{}))
	refused(t, s, wire.CodeInvalid, drop(meta.KindNamespace, meta.NamespaceDefault))
	update(t, s, drop(meta.KindApp, "pay"), drop(meta.KindBrokerGroup, "b1"), drop(meta.KindTopic, "orders"), drop(meta.KindConsumer, "orders/pay.eu"))
}

// testReopen: what was updated is there for the next who opens the database, whole.
func testReopen(t *testing.T, p Place) {
	s := p.Open(t)
	update(t, s, everything()...)
	update(t, s, create(meta.KindApp, "brief", &meta.App{}))
	want := update(t, s, meta.Write{Key: key(meta.KindApp, "brief"), Expect: meta.Expect{Any: true}})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, p)
	same(t, s.View(), want)
	changed, ok := s.View().Since(want.Version - 2)
	if ok && (len(changed) != 1 || changed[0].Key.Name != "brief" || changed[0].Spec != nil) {
		t.Fatalf("since the version before the last two: %+v", changed)
	}
	update(t, s, meta.Write{Key: key(meta.KindApp, "pay"), Spec: &meta.App{Description: "after"}, Expect: meta.Expect{Revision: want.Get(key(meta.KindApp, "pay")).Revision}})
}

// everything is one object of each kind, with each field set that can be.
func everything() []meta.Write {
	yes, retries := true, 2
	at := time.Date(2026, 3, 4, 5, 6, 7, 8, time.UTC)
	limit := meta.Limit{MessagesPerSecond: 1000, BytesPerSecond: 1 << 20, Connections: 10}
	return []meta.Write{
		create(meta.KindNamespace, "tenant", &meta.Namespace{Description: "d", Limit: limit, TopicsMax: 10, AppsMax: 20}),
		create(meta.KindUser, "tess", &meta.User{DisplayName: "Tess ☂", Email: "tess@example.org", Role: meta.RoleOperator}),
		create(meta.KindUser, "ulf@example.org", &meta.User{Role: meta.RoleUser, Disabled: true}),
		create(meta.KindDataCenter, "dc1", &meta.DataCenter{Description: "d", Networks: []string{"10.0.0.0/8", "2001:db8::/32"}}),
		create(meta.KindBrokerGroup, "b1", &meta.BrokerGroup{Description: "d", DataCenter: "dc1", Mode: meta.BrokerGroupAuto, State: meta.BrokerGroupReadOnly, Labels: []string{"rack=7"}}),
		create(meta.KindReplication, "b1", &meta.Replication{
			Term: 3, Master: term.Member{Broker: "b1-1", Boot: "b", Store: "s"}, Forced: true, Set: []term.Member{{Broker: "b1-2", Boot: "b", Store: "s"}}, Change: 7, Generation: 1, Transfer: "b1-2",
		}),
		create(meta.KindBroker, "b1-1", &meta.Broker{BrokerGroup: "b1", Slave: true, Addresses: []string{"192.0.2.1:50088", "[2001:db8::1]:50088"}, DataCenter: "dc1", Labels: []string{"host=h"}, Version: "0.1", Boot: "boot", Registered: at, Away: true}),
		create(meta.KindApp, "pay", &meta.App{Description: "d", Owners: []string{"tess"}, Members: []string{"ulf@example.org"}, Limit: limit, Labels: []string{"team=a"}}),
		create(meta.KindTopic, "orders", &meta.Topic{
			Description: "d", Owner: "pay", Type: meta.TopicBroadcast, Partitions: 4, BrokerGroups: []string{"b1"}, Durability: meta.DurabilityReplicated, OrderKeyAway: meta.OrderKeyMove, RetentionAge: -1,
			RetentionBytes: -1, DiscardUnconsumed: true, Archive: true, PauseProduce: true, PauseConsume: true, Limit: limit, Labels: []string{"a=", "b=x=y"},
		}),
		create(meta.KindProducer, "orders/pay", &meta.Producer{
			Description: "d", Weights: map[string]int{"b1": 70}, Near: &yes, Timeout: meta.Duration(3 * time.Second), Retries: &retries, Archive: &yes, Paused: true,
			ForbiddenIPs: []string{"192.0.2.9", "10.1.0.0/16"}, ForbiddenBrokerGroups: []string{"b1"}, Limit: limit,
		}),
		create(meta.KindConsumer, "orders/pay.eu", &meta.Consumer{
			Description: "d", Near: &yes, Archive: &yes, BatchMessages: 10, AckTimeout: meta.Duration(time.Minute), PollWait: meta.Duration(5 * time.Second), Concurrency: 8, Parallel: &yes,
			Window: 100, Delay: meta.Duration(time.Hour), Paused: true,
			Retry:        &meta.RetryPolicy{Delay: meta.Duration(time.Second), Multiplier: 1.5, DelayMax: meta.Duration(time.Minute), AttemptsMax: 7, Expiry: meta.Duration(72 * time.Hour)},
			Filters:      []meta.Filter{{Type: "tag", Rule: "a|b"}},
			ForbiddenIPs: []string{"192.0.2.9"}, ForbiddenBrokerGroups: []string{"b1"}, Limit: limit,
		}),
		create(meta.KindRequest, "r1", &meta.Request{Topic: "orders", App: "pay", Right: meta.RightConsume, Group: "pay.eu", Reason: "why", RequestedBy: "user tess", State: meta.RequestRefused, DecidedBy: "user ulf", Decision: "no", Decided: at}),
		create(meta.KindCredential, "c1", credential(meta.OwnerApp, "pay", at)),
	}
}

func credential(kind, owner string, at time.Time) *meta.Credential {
	c := &meta.Credential{OwnerKind: kind, Owner: owner, Salt: []byte("salt-of-16-bytes"), Iterations: 4096, StoredKey: make([]byte, 32), ServerKey: make([]byte, 32), IssuedAt: at, Expires: at.AddDate(1, 0, 0)}
	if kind == meta.OwnerApp {
		c.Namespace = meta.NamespaceDefault
	}
	c.StoredKey[0], c.ServerKey[0] = 0xfe, 0xff
	return c
}

// testWatch: a watcher is told of what comes after what it knows, at once when that is there already, and its end is its ctx's.
func testWatch(t *testing.T, p Place) {
	s := open(t, p)
	first := s.View()
	got := make(chan *meta.Snapshot, 1)
	go func() {
		n, _ := s.Watch(t.Context(), first)
		got <- n
	}()
	want := update(t, s, create(meta.KindApp, "pay", &meta.App{}))
	select {
	case n := <-got:
		same(t, n, want)
	case <-time.After(wait):
		t.Fatal("nothing came")
	}
	if n, err := s.Watch(t.Context(), first); err != nil || n.Version != want.Version {
		t.Fatalf("watch of what is there: %+v, %v", n, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if n, err := s.Watch(ctx, want); n != nil || !errors.Is(err, context.Canceled) {
		t.Fatalf("watch with an ended ctx: %+v, %v", n, err)
	}
}

// testTwo: what one store writes another over the same database sees, and writes after it.
func testTwo(t *testing.T, p Place) {
	a, b := open(t, p), open(t, p)
	k := key(meta.KindApp, "pay")
	last := update(t, a, create(meta.KindApp, "pay", &meta.App{}))
	for i := range 10 {
		s, other := a, b
		if i%2 == 0 {
			s, other = b, a
		}
		// The writer may not have polled yet: the transaction itself must see what the other one wrote.
		last = update(t, s, meta.Write{Key: k, Spec: &meta.App{Description: fmt.Sprint(i)}, Expect: meta.Expect{Revision: last.Get(k).Revision}})
		if i%3 == 0 {
			n := until(t, other, func(n *meta.Snapshot) bool { return n.Version >= last.Version })
			same(t, n, last)
		}
	}
	last = update(t, a, meta.Write{Key: k, Expect: meta.Expect{Any: true}})
	same(t, until(t, b, func(n *meta.Snapshot) bool { return n.Version >= last.Version }), last)
}

// testConcurrent: of those who change one object at one time with the same revision one wins, at every store, and no change is lost.
func testConcurrent(t *testing.T, p Place) {
	const writers, rounds = 6, 8
	stores := []meta.Store{open(t, p), open(t, p)}
	k := key(meta.KindApp, "counter")
	update(t, stores[0], create(meta.KindApp, "counter", &meta.App{Limit: meta.Limit{MessagesPerSecond: 1}}))
	until(t, stores[1], func(s *meta.Snapshot) bool { return s.Get(k) != nil })
	var wg sync.WaitGroup
	for w := range writers {
		s := stores[w%2]
		wg.Go(func() {
			for range rounds {
				v := s.View()
				for {
					o := v.Get(k)
					app := *o.Spec.(*meta.App)
					app.Limit.MessagesPerSecond++
					_, err := s.Update(t.Context(), meta.Change{By: by, Writes: []meta.Write{{Key: k, Spec: &app, Expect: meta.Expect{Revision: o.Revision}}}})
					if err == nil {
						break
					}
					if wire.CodeOf(err) != wire.CodeConflict {
						t.Errorf("update: %v", err)
						return
					}
					ctx, cancel := context.WithTimeout(t.Context(), wait)
					v, err = s.Watch(ctx, v)
					cancel()
					if err != nil {
						t.Errorf("after a conflict nothing newer came: %v", err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	for _, s := range stores {
		n := until(t, s, func(n *meta.Snapshot) bool { return n.Get(k).Spec.(*meta.App).Limit.MessagesPerSecond > writers*rounds })
		if got := n.Get(k).Spec.(*meta.App).Limit.MessagesPerSecond; got != writers*rounds+1 {
			t.Fatalf("%d changes are there, %d were made", got-1, writers*rounds)
		}
	}
	entries, more, err := stores[1].Audit(t.Context(), meta.AuditQuery{Key: k, Limit: 1000})
	if err != nil || more || len(entries) != writers*rounds+1 {
		t.Fatalf("%d audit entries, more %v, %v; %d changes were made", len(entries), more, err, writers*rounds+1)
	}
}

// testMany: a thousand objects in one change, more of them in all, deleted and made again.
func testMany(t *testing.T, p Place) {
	s := open(t, p)
	name := func(i int) string { return fmt.Sprintf("app-%04d", i) }
	for from := 0; from < 2500; from += meta.WritesMax {
		var writes []meta.Write
		for i := from; i < min(from+meta.WritesMax, 2500); i++ {
			writes = append(writes, create(meta.KindApp, name(i), &meta.App{Description: name(i)}))
		}
		update(t, s, writes...)
	}
	var drops []meta.Write
	for i := range meta.WritesMax {
		drops = append(drops, meta.Write{Key: key(meta.KindApp, name(2*i)), Expect: meta.Expect{Any: true}})
	}
	refused(t, s, wire.CodeInvalid, append(slices.Clone(drops), create(meta.KindApp, "one-more", &meta.App{}))...)
	want := update(t, s, drops...)
	n := open(t, p).View()
	same(t, n, want)
	if n.Len(meta.KindApp) != 1500 || n.App(meta.NamespaceDefault, name(1)) == nil || n.App(meta.NamespaceDefault, name(2)) != nil {
		t.Fatalf("%d apps", n.Len(meta.KindApp))
	}
}

// testLarge: the largest spec that is allowed is kept, and a larger one refused.
func testLarge(t *testing.T, p Place) {
	s := open(t, p)
	labels := func(n int) (l []string) {
		for i := range n {
			l = append(l, fmt.Sprintf("label-%03d=%s", i, strings.Repeat("v", 200)))
		}
		return l
	}
	want := update(t, s, create(meta.KindApp, "large", &meta.App{Labels: labels(meta.ListMax)}))
	refused(t, s, wire.CodeInvalid, create(meta.KindApp, "larger", &meta.App{Labels: labels(meta.ListMax + 1)}))
	refused(t, s, wire.CodeInvalid, create(meta.KindApp, "text", &meta.App{Description: strings.Repeat("x", 10<<20)}))
	same(t, open(t, p).View(), want)
}

// testAudit: each write of a change is written down with who, what, before and after; secrets are not.
func testAudit(t *testing.T, p Place) {
	s := open(t, p)
	k := key(meta.KindApp, "pay")
	a := update(t, s, create(meta.KindApp, "pay", &meta.App{Description: "1"}), create(meta.KindCredential, "c1", credential(meta.OwnerNode, "n1", time.Unix(1e9, 0))))
	b := update(t, s, meta.Write{Key: k, Spec: &meta.App{Description: "2"}, Expect: meta.Expect{Any: true}})
	c, err := s.Update(t.Context(), meta.Change{By: meta.Actor{Name: "local"}, Reason: "O'Brien\nsaid so ☂", Writes: []meta.Write{{Key: k, Expect: meta.Expect{Any: true}}}})
	if err != nil {
		t.Fatal(err)
	}
	got, more, err := s.Audit(t.Context(), meta.AuditQuery{Key: k})
	if err != nil || more || len(got) != 3 {
		t.Fatalf("%+v, %v, %v", got, more, err)
	}
	want := []meta.AuditEntry{
		{Version: c.Version, By: meta.Actor{Name: "local"}, Reason: "O'Brien\nsaid so ☂", Change: "deleted", Key: k, Before: []byte(`{"description":"2"}`)},
		{Version: b.Version, By: by, Reason: "a test", Change: "changed", Key: k, Before: []byte(`{"description":"1"}`), After: []byte(`{"description":"2"}`)},
		{Version: a.Version, By: by, Reason: "a test", Change: "created", Key: k, After: []byte(`{"description":"1"}`)},
	}
	for i, e := range got {
		if e.ID == 0 || e.Time.IsZero() || (i > 0 && e.ID >= got[i-1].ID) {
			t.Fatalf("entry %d: id %d, time %v", i, e.ID, e.Time)
		}
		w := want[i]
		if string(e.Before) != string(w.Before) || string(e.After) != string(w.After) || e.Version != w.Version || e.By != w.By || e.Reason != w.Reason || e.Change != w.Change || e.Key != w.Key {
			t.Fatalf("entry %d:\n got %+v\nwant %+v", i, e, w)
		}
	}
	all, _, err := s.Audit(t.Context(), meta.AuditQuery{Key: meta.Key{Kind: meta.KindCredential}})
	if err != nil || len(all) != 1 || strings.Contains(string(all[0].After), "Key") || strings.Contains(string(all[0].After), "salt") {
		t.Fatalf("audit of a credential: %s, %v", all[0].After, err)
	}
}

// testAuditPages: entries page by page, the newest first, and by who and since.
func testAuditPages(t *testing.T, p Place) {
	s := open(t, p)
	for i := range 25 {
		if _, err := s.Update(t.Context(), meta.Change{By: meta.Actor{Name: fmt.Sprintf("user u%d", i%2)}, Writes: []meta.Write{create(meta.KindApp, fmt.Sprint("app-", i), &meta.App{})}}); err != nil {
			t.Fatal(err)
		}
	}
	var names []string
	q := meta.AuditQuery{Limit: 10}
	for {
		entries, more, err := s.Audit(t.Context(), q)
		if err != nil || len(entries) == 0 {
			t.Fatalf("%d entries, %v", len(entries), err)
		}
		for _, e := range entries {
			names = append(names, e.Key.Name)
		}
		q.Before = entries[len(entries)-1].ID
		if !more {
			break
		}
	}
	for i, n := range names {
		if n != fmt.Sprint("app-", 24-i) {
			t.Fatalf("entries are of %v", names)
		}
	}
	if len(names) != 25 {
		t.Fatalf("%d entries", len(names))
	}
	if got, _, err := s.Audit(t.Context(), meta.AuditQuery{Who: "user u1"}); err != nil || len(got) != 12 || got[0].Key.Name != "app-23" {
		t.Fatalf("of user u1: %d, %v", len(got), err)
	}
	if got, _, err := s.Audit(t.Context(), meta.AuditQuery{Since: time.Now().Add(time.Hour)}); err != nil || len(got) != 0 {
		t.Fatalf("since in an hour: %d, %v", len(got), err)
	}
	if got, more, err := s.Audit(t.Context(), meta.AuditQuery{}); err != nil || more || len(got) != 25 {
		t.Fatalf("all: %d, %v, %v", len(got), more, err)
	}
}

// testGeneration: a new generation is a higher one, keeps what is there, and gives no version again that may have been lost.
func testGeneration(t *testing.T, p Place) {
	a, b := open(t, p), open(t, p)
	before := update(t, a, create(meta.KindApp, "pay", &meta.App{Description: "kept"}))
	n, err := a.NewGeneration(t.Context(), by, "restored")
	if err != nil {
		t.Fatal(err)
	}
	if n.Generation == before.Generation || n.Version < before.Version+meta.GenerationStep || n.App(meta.NamespaceDefault, "pay") == nil {
		t.Fatalf("generation %d version %d after %d %d", n.Generation, n.Version, before.Generation, before.Version)
	}
	same(t, a.View(), n)
	same(t, until(t, b, func(s *meta.Snapshot) bool { return s.Generation == n.Generation }), n)
	got, _, err := b.Audit(t.Context(), meta.AuditQuery{Limit: 1})
	if err != nil || len(got) != 1 || got[0].Change != meta.ChangeNewGeneration || got[0].Reason != "restored" || got[0].By != by {
		t.Fatalf("audit: %+v, %v", got, err)
	}
	last := update(t, b, create(meta.KindApp, "ship", &meta.App{}))
	same(t, until(t, a, func(s *meta.Snapshot) bool { return s.Version >= last.Version }), last)
}

// testBeats: the last beat of each node is given to all.
func testBeats(t *testing.T, p Place) {
	a, b := open(t, p), open(t, p)
	check := func(s meta.Store, mine []meta.Beat, want ...meta.Beat) {
		t.Helper()
		got, err := s.Beat(t.Context(), mine)
		if err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(got, func(x, y meta.Beat) int { return strings.Compare(x.Node, y.Node) })
		if len(got) != len(want) {
			t.Fatalf("%d beats, want %d: %+v", len(got), len(want), got)
		}
		for i := range got {
			if got[i].Node != want[i].Node || got[i].Boot != want[i].Boot || got[i].Count != want[i].Count || string(got[i].Info) != string(want[i].Info) {
				t.Fatalf("beat %+v, want %+v", got[i], want[i])
			}
		}
	}
	n1, n2 := meta.Beat{Node: "n1", Boot: "x", Count: 1, Info: []byte{0, 1, 255}}, meta.Beat{Node: "n2", Boot: "y", Count: 7}
	check(a, nil)
	check(a, []meta.Beat{n1}, n1)
	check(b, []meta.Beat{n2}, n1, n2)
	n1.Count, n1.Boot, n1.Info = 2, "z", []byte("new")
	check(b, []meta.Beat{n1, n2}, n1, n2)
	check(a, nil, n1, n2)
}

// testClosed: a closed store refuses changes with CodeMetadataAway, and still has its view.
func testClosed(t *testing.T, p Place) {
	s := p.Open(t)
	want := update(t, s, create(meta.KindApp, "pay", &meta.App{}))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Update(t.Context(), meta.Change{By: by, Writes: []meta.Write{create(meta.KindApp, "ship", &meta.App{})}}); wire.CodeOf(err) != wire.CodeMetadataAway {
		t.Fatalf("update of a closed store: %v", err)
	}
	if s.Health() == nil {
		t.Fatal("a closed store is healthy")
	}
	same(t, s.View(), want)
}
