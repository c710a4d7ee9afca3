package meta_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/server/term"
	"github.com/jmqio/jmq/wire"
)

func ptr[T any](v T) *T { return &v }

// TestValidate: each value that may not be, with the field that the error names.
func TestValidate(t *testing.T) {
	long := strings.Repeat("x", 256)
	topic := func(change func(*meta.Topic)) *meta.Topic {
		v := &meta.Topic{Partitions: 1, BrokerGroups: []string{"b1"}}
		change(v)
		return v
	}
	req := func(change func(*meta.Request)) *meta.Request {
		v := &meta.Request{Topic: "t", App: "a", Right: meta.RightConsume, RequestedBy: "user u"}
		change(v)
		return v
	}
	cred := func(change func(*meta.Credential)) *meta.Credential {
		v := secret(meta.OwnerApp, "a")
		change(v)
		return v
	}
	row := func(change func(*meta.Replication)) *meta.Replication {
		v := &meta.Replication{Term: 2, Master: term.Member{Broker: "k1", Boot: "b", Store: "s"}, Set: []term.Member{{Broker: "k2", Boot: "b", Store: "s"}}}
		change(v)
		return v
	}
	broker := func(addresses ...string) *meta.Broker { return &meta.Broker{BrokerGroup: "b1", Addresses: addresses} }
	for i, good := range []meta.Spec{
		topic(func(*meta.Topic) {}), req(func(*meta.Request) {}), cred(func(*meta.Credential) {}), &meta.Consumer{}, &meta.Producer{}, &meta.App{}, &meta.Namespace{}, &meta.BrokerGroup{}, &meta.DataCenter{},
		broker("h:1", "[::1]:50088", "a.example.org:65535"), &meta.User{Role: meta.RoleUser}, row(func(*meta.Replication) {}), &meta.BrokerGroup{Mode: meta.BrokerGroupAuto},
		topic(func(v *meta.Topic) { v.Durability, v.OrderKeyAway = meta.DurabilityReplicated, meta.OrderKeyMove }),
	} {
		if err := good.Validate(); err != nil {
			t.Fatalf("%d: %v", i, err)
		}
	}
	for _, c := range []struct {
		field string
		spec  meta.Spec
	}{
		{"description", &meta.Namespace{Description: strings.Repeat("x", 5000)}},
		{"description", &meta.Namespace{Description: "\x00"}},
		{"description", &meta.Namespace{Description: "\xff"}},
		{"description", &meta.Namespace{Description: "\u009b2J"}},
		{"description", &meta.Namespace{Description: "a\u202eb"}},
		{"limit.messagesPerSecond", &meta.Namespace{Limit: meta.Limit{MessagesPerSecond: -1}}},
		{"limit.bytesPerSecond", &meta.Namespace{Limit: meta.Limit{BytesPerSecond: 1 << 50}}},
		{"limit.connections", &meta.Namespace{Limit: meta.Limit{Connections: -1}}},
		{"topicsMax", &meta.Namespace{TopicsMax: -1}},
		{"appsMax", &meta.Namespace{AppsMax: -1}},
		{"owner", topic(func(v *meta.Topic) { v.Owner = "a.b" })},
		{"type", topic(func(v *meta.Topic) { v.Type = "odd" })},
		{"type", topic(func(v *meta.Topic) { v.Type = meta.TopicSequential })},
		{"partitions", topic(func(v *meta.Topic) { v.Partitions = 0 })},
		{"partitions", topic(func(v *meta.Topic) { v.Partitions = meta.PartitionsMax + 1 })},
		{"partitions", topic(func(v *meta.Topic) {
			v.Partitions, v.BrokerGroups = meta.PartitionsMax, []string{"b1", "b2", "b3", "b4", "b5"}
		})},
		{"brokerGroups", topic(func(v *meta.Topic) { v.BrokerGroups = nil })},
		{"brokerGroups", topic(func(v *meta.Topic) { v.BrokerGroups = []string{"b1", "b1"} })},
		{"brokerGroups", topic(func(v *meta.Topic) { v.BrokerGroups = []string{"b 1"} })},
		{"brokerGroups", topic(func(v *meta.Topic) {
			v.BrokerGroups = nil
			for i := range 101 {
				v.BrokerGroups = append(v.BrokerGroups, fmt.Sprint("b", i))
			}
		})},
		{"orderKeyAway", topic(func(v *meta.Topic) { v.OrderKeyAway = "stay" })},
		{"durability", topic(func(v *meta.Topic) { v.Durability = "strong" })},
		{"retentionAge", topic(func(v *meta.Topic) { v.RetentionAge = meta.Duration(200 * 365 * 24 * time.Hour) })},
		{"retentionBytes", topic(func(v *meta.Topic) { v.RetentionBytes = -2 })},
		{"labels", topic(func(v *meta.Topic) { v.Labels = []string{"novalue"} })},
		{"labels", topic(func(v *meta.Topic) { v.Labels = []string{"=v"} })},
		{"labels", topic(func(v *meta.Topic) { v.Labels = []string{"a=1", "a=2"} })},
		{"labels", topic(func(v *meta.Topic) { v.Labels = []string{"a=\n"} })},
		{"labels", topic(func(v *meta.Topic) { v.Labels = []string{"a=" + long} })},
		{"owners", &meta.App{Owners: []string{""}}},
		{"members", &meta.App{Members: []string{"a", "a"}}},
		{"members", &meta.App{Members: []string{"a; drop table object"}}},
		{"weights", &meta.Producer{Weights: map[string]int{"a": 60, "b": 41}}},
		{"weights.a", &meta.Producer{Weights: map[string]int{"a": -1}}},
		{"weights", &meta.Producer{Weights: map[string]int{"a b": 1}}},
		{"timeout", &meta.Producer{Timeout: meta.Duration(time.Hour)}},
		{"timeout", &meta.Producer{Timeout: -1}},
		{"timeout", &meta.Producer{Timeout: meta.Duration(time.Millisecond)}},
		{"retries", &meta.Producer{Retries: ptr(-1)}},
		{"forbiddenIPs", &meta.Producer{ForbiddenIPs: []string{"10.0.0.0/33"}}},
		{"forbiddenIPs", &meta.Producer{ForbiddenIPs: []string{"host"}}},
		{"forbiddenIPs", &meta.Producer{ForbiddenIPs: []string{"fe80::1%eth0"}}},
		{"forbiddenIPs", &meta.Producer{ForbiddenIPs: []string{"::ffff:10.0.0.0/104"}}},
		{"forbiddenBrokerGroups", &meta.Producer{ForbiddenBrokerGroups: []string{"x/y"}}},
		{"batchMessages", &meta.Consumer{BatchMessages: 1001}},
		{"ackTimeout", &meta.Consumer{AckTimeout: meta.Duration(13 * time.Hour)}},
		{"ackTimeout", &meta.Consumer{AckTimeout: meta.Duration(time.Millisecond)}},
		{"pollWait", &meta.Consumer{PollWait: meta.Duration(2 * time.Minute)}},
		{"concurrency", &meta.Consumer{Concurrency: -1}},
		{"window", &meta.Consumer{Parallel: ptr(true), Window: meta.WindowMax + 1}},
		{"window", &meta.Consumer{Window: 10}},
		{"window", &meta.Consumer{Parallel: ptr(false), Window: 10}},
		{"delay", &meta.Consumer{Delay: -1}},
		{"retry.delay", &meta.Consumer{Retry: &meta.RetryPolicy{Delay: -1}}},
		{"retry.multiplier", &meta.Consumer{Retry: &meta.RetryPolicy{Multiplier: 0.5}}},
		{"retry.delayMax", &meta.Consumer{Retry: &meta.RetryPolicy{DelayMax: -1}}},
		{"retry.attemptsMax", &meta.Consumer{Retry: &meta.RetryPolicy{AttemptsMax: -1}}},
		{"retry.expiry", &meta.Consumer{Retry: &meta.RetryPolicy{Expiry: 1}}},
		{"filters", &meta.Consumer{Filters: []meta.Filter{{Type: "script", Rule: "x"}}}},
		{"filters", &meta.Consumer{Filters: []meta.Filter{{Type: "tag", Rule: "a||b"}}}},
		{"filters", &meta.Consumer{Filters: []meta.Filter{{Type: "tag"}}}},
		{"forbiddenIPs", &meta.Consumer{ForbiddenIPs: []string{""}}},
		{"topic", req(func(v *meta.Request) { v.Topic = "" })},
		{"app", req(func(v *meta.Request) { v.App = "a.b" })},
		{"right", req(func(v *meta.Request) { v.Right = "admin" })},
		{"group", req(func(v *meta.Request) { v.Group = "b" })},
		{"group", req(func(v *meta.Request) { v.Right, v.Group = meta.RightProduce, "a" })},
		{"requestedBy", req(func(v *meta.Request) { v.RequestedBy = "" })},
		{"state", req(func(v *meta.Request) { v.State = "done" })},
		{"decidedBy", req(func(v *meta.Request) { v.State = meta.RequestApproved })},
		{"decidedBy", req(func(v *meta.Request) { v.DecidedBy = "user v" })},
		{"decidedBy", req(func(v *meta.Request) { v.State, v.DecidedBy = meta.RequestApproved, "user u" })},
		{"ownerKind", cred(func(v *meta.Credential) { v.OwnerKind = "local" })},
		{"owner", cred(func(v *meta.Credential) { v.Owner = "" })},
		{"namespace", cred(func(v *meta.Credential) { v.Namespace = "" })},
		{"namespace", cred(func(v *meta.Credential) { v.OwnerKind = meta.OwnerUser })},
		{"salt", cred(func(v *meta.Credential) { v.Salt = nil })},
		{"iterations", cred(func(v *meta.Credential) { v.Iterations = 1 })},
		{"iterations", cred(func(v *meta.Credential) { v.Iterations = 1 << 30 })},
		{"storedKey", cred(func(v *meta.Credential) { v.StoredKey = v.StoredKey[1:] })},
		{"serverKey", cred(func(v *meta.Credential) { v.ServerKey = nil })},
		{"expires", cred(func(v *meta.Credential) { v.Expires = time.Date(12000, 1, 1, 0, 0, 0, 0, time.UTC) })},
		{"role", &meta.User{}},
		{"role", &meta.User{Role: "root"}},
		{"email", &meta.User{Role: meta.RoleUser, Email: "nowhere"}},
		{"displayName", &meta.User{Role: meta.RoleUser, DisplayName: "a\nb"}},
		{"mode", &meta.BrokerGroup{Mode: "x"}},
		{"state", &meta.BrokerGroup{State: "gone"}},
		{"dataCenter", &meta.BrokerGroup{DataCenter: "a b"}},
		{"addresses", broker()},
		{"addresses", broker("host")},
		{"addresses", broker(":1")},
		{"addresses", broker("h:0")},
		{"addresses", broker("h:70000")},
		{"brokerGroup", &meta.Broker{Addresses: []string{"h:1"}}},
		{"version", &meta.Broker{BrokerGroup: "b", Addresses: []string{"h:1"}, Version: long}},
		{"boot", &meta.Broker{BrokerGroup: "b", Addresses: []string{"h:1"}, Boot: long}},
		{"networks", &meta.DataCenter{Networks: []string{"10.0.0.0/8", "x"}}},
		{"term", row(func(v *meta.Replication) { v.Term = 0 })},
		{"master.broker", row(func(v *meta.Replication) { v.Master.Broker = "" })},
		{"master.boot", row(func(v *meta.Replication) { v.Master.Boot = "" })},
		{"master.store", row(func(v *meta.Replication) { v.Master.Store = long })},
		{"set.store", row(func(v *meta.Replication) { v.Set[0].Store = "" })},
		{"set", row(func(v *meta.Replication) { v.Set[0].Broker = v.Master.Broker })},
		{"set", row(func(v *meta.Replication) { v.Set = append(v.Set, v.Set[0]) })},
		{"transfer", row(func(v *meta.Replication) { v.Transfer = "a b" })},
	} {
		err := c.spec.Validate()
		if wire.CodeOf(err) != wire.CodeInvalid || !strings.Contains(fmt.Sprint(err), fmt.Sprintf("field %q of a %s", c.field, c.spec.Kind())) || len(err.Error()) > 600 {
			t.Errorf("%s of %+v: %v", c.field, c.spec, err)
		}
	}
}

// TestKeys: which names objects may have.
func TestKeys(t *testing.T) {
	long := strings.Repeat("n", 255)
	for _, key := range []meta.Key{
		k(meta.KindTopic, "a.b-c_d"), k(meta.KindTopic, long), k(meta.KindApp, "a"), k(meta.KindProducer, "a.b/c"), k(meta.KindProducer, long+"/"+long), k(meta.KindConsumer, "t/a.sub"),
		k(meta.KindUser, "a.b@example.org"), k(meta.KindBroker, "host.example.org"), k(meta.KindNamespace, "n"), k(meta.KindCredential, "c"), k(meta.KindRequest, "r"),
	} {
		if err := key.Check(); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
	for _, key := range []meta.Key{
		{}, {Kind: "x", Name: "a"}, {Kind: meta.KindTopic, Name: "a"}, {Kind: meta.KindTopic, Namespace: "a b", Name: "a"}, {Kind: meta.KindUser, Namespace: "default", Name: "a"},
		k(meta.KindTopic, ""), k(meta.KindTopic, long+"n"), k(meta.KindTopic, "a/b"), k(meta.KindApp, "a.b"), k(meta.KindProducer, "a"), k(meta.KindProducer, "a/b.c"), k(meta.KindProducer, "/a"),
		k(meta.KindConsumer, "t/a.b.c"), k(meta.KindConsumer, "t/a/b"), k(meta.KindUser, "a b"), k(meta.KindUser, ".."), k(meta.KindBroker, "a@b"), k(meta.KindCredential, strings.Repeat("c", 65)), k(meta.KindUser, "é"),
		k(meta.KindApp, "x' OR 1=1 --"),
	} {
		if err := key.Check(); wire.CodeOf(err) != wire.CodeInvalid || len(err.Error()) > 500 {
			t.Errorf("%q: %v", key, err)
		}
	}
}

// TestReferences: what names what is not there is refused with both names, and what is named is not deleted.
func TestReferences(t *testing.T) {
	s := world(t)
	fails(t, s, wire.CodeInvalid, "topic x names broker-group nowhere", put(meta.KindTopic, "x", &meta.Topic{BrokerGroups: []string{"nowhere"}}))
	fails(t, s, wire.CodeInvalid, "topic x names app nobody", put(meta.KindTopic, "x", &meta.Topic{Owner: "nobody"}))
	fails(t, s, wire.CodeInvalid, "consumer orders/nobody.x names app nobody", put(meta.KindConsumer, "orders/nobody.x", &meta.Consumer{}))
	fails(t, s, wire.CodeInvalid, "producer nothing/pay names topic nothing", put(meta.KindProducer, "nothing/pay", &meta.Producer{}))
	fails(t, s, wire.CodeInvalid, "producer orders/pay names broker-group b9", put(meta.KindProducer, "orders/pay", &meta.Producer{Weights: map[string]int{"b9": 5}}))
	fails(t, s, wire.CodeInvalid, "app a names user who", put(meta.KindApp, "a", &meta.App{Members: []string{"who"}}))
	fails(t, s, wire.CodeInvalid, "credential c names app nobody", put(meta.KindCredential, "c", secret(meta.OwnerApp, "nobody")))
	fails(t, s, wire.CodeInvalid, "request r names topic nothing", put(meta.KindRequest, "r", &meta.Request{Topic: "nothing", App: "pay", Right: meta.RightProduce, RequestedBy: "user max"}))
	fails(t, s, wire.CodeInvalid, "broker k names broker-group b9", put(meta.KindBroker, "k", &meta.Broker{BrokerGroup: "b9", Addresses: []string{"h:1"}}))
	tenant := meta.Write{Key: meta.Key{Kind: meta.KindApp, Namespace: "tenant", Name: "pay"}, Spec: &meta.App{}, Expect: meta.Expect{Any: true}}
	fails(t, s, wire.CodeInvalid, "app tenant:pay names namespace tenant", tenant)
	s = must(t, s, put(meta.KindNamespace, "tenant", &meta.Namespace{}), tenant)
	fails(t, s, wire.CodeInUse, "namespace tenant is named by app tenant:pay", put(meta.KindNamespace, "tenant", nil))
	fails(t, s, wire.CodeInUse, "app pay is named by consumer orders/pay, credential of-pay, producer orders/pay", put(meta.KindApp, "pay", nil))
	fails(t, s, wire.CodeInUse, "user olga is named by app pay, credential of-olga", put(meta.KindUser, "olga", nil))
	fails(t, s, wire.CodeInUse, "broker-group b1 is named by broker b1-1, topic orders", put(meta.KindBrokerGroup, "b1", nil))
	fails(t, s, wire.CodeInUse, "topic orders is named by consumer orders/pay, producer orders/pay", put(meta.KindTopic, "orders", nil))
	// A request keeps nothing from going.
	s = must(t, s, put(meta.KindTopic, "orders", nil), put(meta.KindConsumer, "orders/pay", nil), put(meta.KindProducer, "orders/pay", nil))
	must(t, s, put(meta.KindApp, "pay", nil), put(meta.KindCredential, "of-pay", nil))
	must(t, s, put(meta.KindRequest, "r1", &meta.Request{Topic: "orders", App: "pay", Right: meta.RightConsume, RequestedBy: "user max", State: meta.RequestWithdrawn}))
}
