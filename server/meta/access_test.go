package meta_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/wire"
)

// TestSpeaksFor: a certificate is of one node, a credential may be shared by all.
func TestSpeaksFor(t *testing.T) {
	node := wire.Principal{Kind: wire.PrincipalNode, Name: "b1"}
	shared := node
	shared.Credential = "nodes"
	for _, x := range []struct {
		who  wire.Principal
		node string
		want wire.Code
	}{
		{node, "b1", wire.CodeOK}, {node, "b2", wire.CodeForbidden}, {shared, "b2", wire.CodeOK}, {wire.Principal{Kind: wire.PrincipalLocal}, "b2", wire.CodeOK},
	} {
		if err := meta.SpeaksFor(x.who, x.node); wire.CodeOf(err) != x.want {
			t.Errorf("%+v for %s: %v", x.who, x.node, err)
		}
	}
}

// TestGrants: who gets what on a topic, step by step as the metadata changes.
func TestGrants(t *testing.T) {
	s := world(t)
	from := func(w meta.Subject, addr string) meta.Subject {
		w.Addr = netip.MustParseAddr(addr)
		return w
	}
	pay := app("pay")
	pay.Credential = "of-pay"
	produce := func(want wire.Code, who meta.Subject, topic, brokerGroup string) meta.Grant {
		t.Helper()
		g, err := s.MayProduce(who, topic, brokerGroup)
		if wire.CodeOf(err) != want {
			t.Fatalf("produce: %v, want %v", err, want)
		}
		if (want == wire.CodeOK || want == wire.CodePaused) != (g.Spec != nil && g.Topic != nil) {
			t.Fatalf("with %v comes %+v", err, g)
		}
		return g
	}
	consume := func(want wire.Code, who meta.Subject, topic, group, brokerGroup string) meta.Grant {
		t.Helper()
		g, err := s.MayConsume(who, topic, group, brokerGroup)
		if wire.CodeOf(err) != want {
			t.Fatalf("consume: %v, want %v", err, want)
		}
		if (want == wire.CodeOK || want == wire.CodePaused) != (g.Spec != nil && g.Topic != nil) {
			t.Fatalf("with %v comes %+v", err, g)
		}
		return g
	}
	change := func(writes ...meta.Write) { t.Helper(); s = must(t, s, writes...) }

	// Local and admins need no subscription, but the topic.
	produce(wire.CodeOK, meta.Subject{}, "orders", "")
	produce(wire.CodeTopicNotFound, meta.Subject{}, "nothing", "")
	produce(wire.CodeOK, user("anna"), "orders", "b1")
	produce(wire.CodeForbidden, user("oskar"), "orders", "b1")
	produce(wire.CodeForbidden, meta.Subject{Principal: wire.Principal{Kind: wire.PrincipalNode, Name: "b1-1"}}, "orders", "b1")
	produce(wire.CodeForbidden, meta.Subject{Principal: wire.Principal{Kind: 9, Name: "x"}}, "orders", "b1")
	if g := consume(wire.CodeOK, meta.Subject{}, "orders", "pay.tool", ""); g.Consumer == nil || g.App != nil {
		t.Fatalf("a local member of a group has its settings: %+v", g)
	}
	if g := consume(wire.CodeOK, meta.Subject{}, "orders", "unknown", ""); g.Consumer != nil {
		t.Fatalf("%+v", g)
	}

	// An app with its subscription, and only as itself.
	if g := produce(wire.CodeOK, pay, "orders", "b1"); g.App != s.App("default", "pay") || g.Producer == nil || g.Spec.Partitions != 2 {
		t.Fatalf("%+v", g)
	}
	produce(wire.CodeTopicNotFound, pay, "nothing", "")
	produce(wire.CodeForbidden, app("stranger"), "orders", "b1")
	produce(wire.CodeUnauthenticated, app("none"), "orders", "b1")
	other := app("pay")
	other.Namespace = "tenant"
	produce(wire.CodeUnauthenticated, other, "orders", "b1")
	foreign := app("stranger")
	foreign.Credential = "of-pay"
	produce(wire.CodeUnauthenticated, foreign, "orders", "b1")
	consume(wire.CodeOK, pay, "orders", "pay", "b1")
	consume(wire.CodeForbidden, app("stranger"), "orders", "pay", "b1")
	consume(wire.CodeForbidden, app("stranger"), "orders", "stranger", "b1")
	consume(wire.CodeForbidden, pay, "orders", "payer", "b1")
	consume(wire.CodeForbidden, pay, "orders", "shop", "b1")

	// Subgroups have the app's subscription until they have one of their own.
	if g := consume(wire.CodeOK, pay, "orders", "pay.eu", "b1"); g.Consumer != s.Get(k(meta.KindConsumer, "orders/pay")).Spec {
		t.Fatalf("%+v", g.Consumer)
	}
	change(put(meta.KindConsumer, "orders/pay.eu", &meta.Consumer{Concurrency: 5}))
	if g := consume(wire.CodeOK, pay, "orders", "pay.eu", "b1"); g.Consumer.Concurrency != 5 {
		t.Fatalf("%+v", g.Consumer)
	}
	change(put(meta.KindConsumer, "orders/pay", nil))
	consume(wire.CodeForbidden, pay, "orders", "pay", "b1")
	consume(wire.CodeForbidden, pay, "orders", "pay.us", "b1")
	consume(wire.CodeOK, pay, "orders", "pay.eu", "b1")

	// Addresses and broker groups.
	change(put(meta.KindProducer, "orders/pay", &meta.Producer{ForbiddenIPs: []string{"192.0.2.9", "10.1.0.0/16", "2001:db8::/32"}, ForbiddenBrokerGroups: []string{"b1"}}),
		put(meta.KindConsumer, "orders/pay.eu", &meta.Consumer{ForbiddenIPs: []string{"0.0.0.0/0"}}), put(meta.KindBrokerGroup, "b2", &meta.BrokerGroup{}))
	produce(wire.CodeForbidden, from(pay, "192.0.2.1"), "orders", "b1")
	for addr, want := range map[string]wire.Code{
		"192.0.2.1": wire.CodeOK, "192.0.2.9": wire.CodeForbidden, "::ffff:192.0.2.9": wire.CodeForbidden, "10.1.2.3": wire.CodeForbidden, "10.2.0.0": wire.CodeOK,
		"2001:db8::7": wire.CodeForbidden, "2001:db8::7%eth0": wire.CodeForbidden, "2001:db9::7": wire.CodeOK,
	} {
		produce(want, from(pay, addr), "orders", "b2")
	}
	produce(wire.CodeForbidden, pay, "orders", "b2") // where it is from is not known
	consume(wire.CodeForbidden, from(pay, "198.51.100.1"), "orders", "pay.eu", "b2")
	consume(wire.CodeOK, from(pay, "2001:db8::7"), "orders", "pay.eu", "b2")

	// Pauses say so, and give the grant.
	change(put(meta.KindProducer, "orders/pay", &meta.Producer{Paused: true}), put(meta.KindConsumer, "orders/pay.eu", &meta.Consumer{Paused: true}))
	if g := produce(wire.CodePaused, pay, "orders", "b1"); !g.Producer.Paused {
		t.Fatalf("%+v", g)
	}
	if g := consume(wire.CodePaused, pay, "orders", "pay.eu", "b1"); !g.Consumer.Paused {
		t.Fatalf("%+v", g)
	}
	produce(wire.CodeOK, meta.Subject{}, "orders", "b1")
	change(put(meta.KindTopic, "orders", &meta.Topic{Owner: "shop", PauseProduce: true}), put(meta.KindProducer, "orders/pay", &meta.Producer{}), put(meta.KindConsumer, "orders/pay.eu", &meta.Consumer{}))
	produce(wire.CodePaused, pay, "orders", "b1")
	produce(wire.CodePaused, meta.Subject{}, "orders", "b1")
	consume(wire.CodeOK, pay, "orders", "pay.eu", "b1")
	change(put(meta.KindTopic, "orders", &meta.Topic{Owner: "shop", PauseConsume: true}))
	produce(wire.CodeOK, pay, "orders", "b1")
	consume(wire.CodePaused, pay, "orders", "pay.eu", "b1")

	// A credential or an app that is not good any more.
	change(put(meta.KindTopic, "orders", &meta.Topic{Owner: "shop"}), put(meta.KindApp, "pay", &meta.App{Disabled: true}))
	produce(wire.CodeUnauthenticated, pay, "orders", "b1")
	consume(wire.CodeUnauthenticated, pay, "orders", "pay.eu", "b1")
	change(put(meta.KindApp, "pay", &meta.App{}), put(meta.KindCredential, "of-pay", revoked(meta.OwnerApp, "pay")))
	produce(wire.CodeUnauthenticated, pay, "orders", "b1")
	produce(wire.CodeOK, app("pay"), "orders", "b1") // the same with a certificate
	change(put(meta.KindCredential, "of-pay", nil))
	produce(wire.CodeUnauthenticated, pay, "orders", "b1")
}

// TestNamespaces: the same names in two namespaces are different things.
func TestNamespaces(t *testing.T) {
	in := func(w meta.Write) meta.Write { w.Key.Namespace = "tenant"; return w }
	s := must(t, world(t), put(meta.KindNamespace, "tenant", &meta.Namespace{}), in(put(meta.KindApp, "pay", &meta.App{})),
		in(put(meta.KindTopic, "orders", &meta.Topic{Partitions: 7, BrokerGroups: []string{"b1"}})), in(put(meta.KindConsumer, "orders/pay", &meta.Consumer{})))
	theirs := app("pay")
	theirs.Namespace = "tenant"
	if g, err := s.MayConsume(theirs, "orders", "pay", "b1"); err != nil || g.Spec.Partitions != 7 {
		t.Fatalf("%+v, %v", g, err)
	}
	if _, err := s.MayProduce(theirs, "orders", "b1"); wire.CodeOf(err) != wire.CodeForbidden {
		t.Fatalf("the producer of the other namespace counts: %v", err)
	}
	if err := s.MayRead(theirs, k(meta.KindTopic, "orders")); wire.CodeOf(err) != wire.CodeForbidden {
		t.Fatalf("the other namespace's topic is seen: %v", err)
	}
	if err := s.MayRead(theirs, meta.Key{Kind: meta.KindTopic, Namespace: "tenant", Name: "orders"}); err != nil {
		t.Fatal(err)
	}
	if err := s.MayWrite(user("olga"), meta.Key{Kind: meta.KindApp, Namespace: "tenant", Name: "pay"}, &meta.App{}, &meta.App{Description: "hers"}); wire.CodeOf(err) != wire.CodeForbidden {
		t.Fatalf("the owner of an app owns its namesake: %v", err)
	}
}

// TestAlive: until when a principal is good.
func TestAlive(t *testing.T) {
	s := world(t)
	expires := time.Unix(2e9, 0)
	c := secret(meta.OwnerUser, "vera")
	c.Expires = expires
	s = must(t, s, put(meta.KindCredential, "short", c), put(meta.KindCredential, "of-gone", secret(meta.OwnerUser, "gone")))
	alive := func(p wire.Principal, now time.Time, want bool) {
		t.Helper()
		if err := s.Alive(p, now.UnixNano()); (err == nil) != want || (err != nil && wire.CodeOf(err) != wire.CodeUnauthenticated) {
			t.Fatalf("%+v at %v: %v", p, now, err)
		}
	}
	now := time.Unix(1e9, 0)
	alive(wire.Principal{}, now, true)
	alive(user("vera").Principal, now, true)
	alive(user("gone").Principal, now, false)
	alive(user("none").Principal, now, false)
	alive(app("pay").Principal, now, true)
	alive(wire.Principal{Kind: 77}, now, false)
	alive(wire.Principal{Kind: wire.PrincipalNode, Name: "n", ExpiresNs: now.UnixNano()}, now, false)
	alive(wire.Principal{Kind: wire.PrincipalNode, Name: "n", ExpiresNs: now.UnixNano() + 1}, now, true)
	p, got, ok := s.PrincipalOf("short", now.UnixNano())
	if !ok || got == nil || p.Name != "vera" || p.Kind != wire.PrincipalUser || p.ExpiresNs != expires.UnixNano() || p.Credential != "short" {
		t.Fatalf("%+v, %v", p, ok)
	}
	alive(p, expires.Add(-1), true)
	alive(p, expires, false)
	if _, _, ok := s.PrincipalOf("short", expires.UnixNano()); ok {
		t.Fatal("an expired credential is good")
	}
	if _, _, ok := s.PrincipalOf("of-gone", now.UnixNano()); ok {
		t.Fatal("a credential of a disabled user is good")
	}
	if _, _, ok := s.PrincipalOf("none", now.UnixNano()); ok {
		t.Fatal("an unknown credential is good")
	}
	if p, _, ok := s.PrincipalOf("of-b1-1", now.UnixNano()); !ok || p.Kind != wire.PrincipalNode || p.Name != "b1-1" {
		t.Fatalf("%+v, %v", p, ok)
	}
	// A credential of a namesake is another's.
	s = must(t, s, put(meta.KindNamespace, "tenant", &meta.Namespace{}), meta.Write{Key: meta.Key{Kind: meta.KindApp, Namespace: "tenant", Name: "pay"}, Spec: &meta.App{}, Expect: meta.Expect{Any: true}},
		put(meta.KindUser, "pay", &meta.User{Role: meta.RoleAdmin}))
	alive(wire.Principal{Kind: wire.PrincipalApp, Name: "pay", Namespace: meta.NamespaceDefault, Credential: "of-pay"}, now, true)
	alive(wire.Principal{Kind: wire.PrincipalApp, Name: "pay", Namespace: "tenant", Credential: "of-pay"}, now, false)
	alive(wire.Principal{Kind: wire.PrincipalUser, Name: "pay", Credential: "of-pay"}, now, false)
	alive(wire.Principal{Kind: wire.PrincipalNode, Name: "pay", Credential: "of-pay"}, now, false)
	alive(wire.Principal{Kind: wire.PrincipalNode, Name: "pay", Credential: "of-b1-1"}, now, false)

	// An expiry that is brought forward counts for who came before.
	c2 := *c
	c2.Expires = now
	s = must(t, s, put(meta.KindCredential, "short", &c2))
	alive(p, now, false)
}

// TestNoAllocations: a right that is given costs no memory.
func TestNoAllocations(t *testing.T) {
	s := largeSnapshot()
	p, c := rightsSubjects()
	for name, f := range map[string]func() error{
		"produce": func() error { _, err := s.MayProduce(p, "company.orders.topic-0007", "group-07"); return err },
		"consume": func() error {
			_, err := s.MayConsume(c, "company.orders.topic-0007", "app-0050", "group-07")
			return err
		},
		"consume subgroup": func() error {
			_, err := s.MayConsume(c, "company.orders.topic-0007", "app-0050.eu", "group-07")
			return err
		},
		"alive": func() error { return s.Alive(c.Principal, 1) },
	} {
		if n := testing.AllocsPerRun(100, func() {
			if err := f(); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
