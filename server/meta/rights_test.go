package meta_test

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/wire"
)

var rewrite = flag.Bool("rewrite", false, "write testdata anew")

func k(kind meta.Kind, name string) meta.Key {
	if kind.Namespaced() {
		return meta.Key{Kind: kind, Namespace: meta.NamespaceDefault, Name: name}
	}
	return meta.Key{Kind: kind, Name: name}
}

func put(kind meta.Kind, name string, spec meta.Spec) meta.Write {
	return meta.Write{Key: k(kind, name), Spec: spec, Expect: meta.Expect{Any: true}}
}

func secret(kind, owner string) *meta.Credential {
	c := &meta.Credential{OwnerKind: kind, Owner: owner, Salt: make([]byte, 16), Iterations: 4096, StoredKey: make([]byte, 32), ServerKey: make([]byte, 32)}
	if kind == meta.OwnerApp {
		c.Namespace = meta.NamespaceDefault
	}
	return c
}

// must plans a change and returns what it makes.
func must(t testing.TB, s *meta.Snapshot, writes ...meta.Write) *meta.Snapshot {
	t.Helper()
	n, _, _, _, err := s.Plan(meta.Change{By: meta.Actor{Name: "local"}, Writes: writes}, time.Unix(1e9, 0))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func fails(t testing.TB, s *meta.Snapshot, code wire.Code, text string, writes ...meta.Write) {
	t.Helper()
	n, _, _, _, err := s.Plan(meta.Change{By: meta.Actor{Name: "local"}, Writes: writes}, time.Unix(1e9, 0))
	if n != nil || wire.CodeOf(err) != code || !strings.Contains(err.Error(), text) {
		t.Fatalf("%v: got %v; want code %v with %q", writes, err, code, text)
	}
}

// world is a small company: topic orders belongs to app shop, of gina; app pay, of olga and her colleague max, sends to it and consumes it; app
// stranger of otto has nothing to do with it.
func world(t testing.TB) *meta.Snapshot {
	var writes []meta.Write
	for name, role := range map[string]meta.Role{
		"anna": meta.RoleAdmin, "oskar": meta.RoleOperator, "aude": meta.RoleAuditor, "vera": meta.RoleViewer,
		"gina": meta.RoleUser, "olga": meta.RoleUser, "max": meta.RoleUser, "otto": meta.RoleUser, "gone": meta.RoleAdmin,
	} {
		writes = append(writes, put(meta.KindUser, name, &meta.User{Role: role, Disabled: name == "gone"}))
	}
	return must(t, meta.Initial(1), append(writes,
		put(meta.KindDataCenter, "dc1", &meta.DataCenter{}),
		put(meta.KindBrokerGroup, "b1", &meta.BrokerGroup{}), put(meta.KindBroker, "b1-1", &meta.Broker{BrokerGroup: "b1", Addresses: []string{"192.0.2.1:1"}}),
		put(meta.KindApp, "shop", &meta.App{Owners: []string{"gina"}}),
		put(meta.KindApp, "pay", &meta.App{Owners: []string{"olga"}, Members: []string{"max"}}),
		put(meta.KindApp, "stranger", &meta.App{Owners: []string{"otto"}}),
		put(meta.KindTopic, "orders", &meta.Topic{Owner: "shop", Partitions: 2, BrokerGroups: []string{"b1"}}),
		put(meta.KindProducer, "orders/pay", &meta.Producer{}), put(meta.KindConsumer, "orders/pay", &meta.Consumer{}),
		put(meta.KindRequest, "r1", &meta.Request{Topic: "orders", App: "pay", Right: meta.RightConsume, RequestedBy: "user max"}),
		put(meta.KindCredential, "of-pay", secret(meta.OwnerApp, "pay")), put(meta.KindCredential, "of-olga", secret(meta.OwnerUser, "olga")), put(meta.KindCredential, "of-b1-1", secret(meta.OwnerNode, "b1-1")),
	)...)
}

func user(name string) meta.Subject {
	return meta.Subject{Principal: wire.Principal{Kind: wire.PrincipalUser, Name: name}}
}

func app(name string) meta.Subject {
	return meta.Subject{Principal: wire.Principal{Kind: wire.PrincipalApp, Name: name, Namespace: meta.NamespaceDefault}}
}

var subjects = []struct {
	title string
	who   meta.Subject
}{
	{"local", meta.Subject{}},
	{"node", meta.Subject{Principal: wire.Principal{Kind: wire.PrincipalNode, Name: "b1-1"}}},
	{"admin", user("anna")}, {"operator", user("oskar")}, {"auditor", user("aude")}, {"viewer", user("vera")},
	{"owner", user("olga")}, {"member", user("max")}, {"granter", user("gina")}, {"other", user("otto")},
	{"app", app("pay")}, {"app-other", app("stranger")}, {"disabled", user("gone")}, {"nobody", user("none")},
}

// TestRights writes down for everybody what he may do to each kind of object: r read, c create, w change anything, p change part of it, d delete;
// and which operations. Each line that changes must be wanted.
func TestRights(t *testing.T) {
	s := world(t)
	var b strings.Builder
	fmt.Fprintf(&b, "%-20s", "")
	for _, u := range subjects {
		fmt.Fprintf(&b, " %-9s", u.title)
	}
	b.WriteString("\n")
	line := func(name string, cell func(meta.Subject) string) {
		fmt.Fprintf(&b, "%-20s", name)
		for _, u := range subjects {
			fmt.Fprintf(&b, " %-9s", cell(u.who))
		}
		b.WriteString("\n")
	}
	ok := func(letter string, err error) string {
		if err == nil {
			return letter
		}
		if c := wire.CodeOf(err); c != wire.CodeForbidden && c != wire.CodeUnauthenticated {
			t.Errorf("refused with %v", err)
		}
		return "-"
	}
	for _, row := range []struct {
		title     string
		key       meta.Key
		part, all meta.Spec // changes that who may change part of it may make, and that only who may change all of it may make
	}{
		{"namespace", k(meta.KindNamespace, meta.NamespaceDefault), nil, &meta.Namespace{TopicsMax: 3}},
		{"topic", k(meta.KindTopic, "orders"), &meta.Topic{Owner: "shop", PauseProduce: true}, &meta.Topic{Owner: "shop", Partitions: 9}},
		{"app", k(meta.KindApp, "pay"), &meta.App{Owners: []string{"olga", "otto"}, Members: []string{"max"}}, &meta.App{Owners: []string{"olga"}, Members: []string{"max"}, Limit: meta.Limit{Connections: 9}}},
		{"producer", k(meta.KindProducer, "orders/pay"), &meta.Producer{Timeout: meta.Duration(time.Second)}, &meta.Producer{Limit: meta.Limit{BytesPerSecond: 1}}},
		{"consumer", k(meta.KindConsumer, "orders/pay"), &meta.Consumer{Concurrency: 3}, &meta.Consumer{ForbiddenIPs: []string{"192.0.2.1"}}},
		{"request", k(meta.KindRequest, "r1"), nil, &meta.Request{Topic: "orders", App: "pay", Right: meta.RightProduce, RequestedBy: "user max"}},
		{"credential/app", k(meta.KindCredential, "of-pay"), nil, revoked(meta.OwnerApp, "pay")},
		{"credential/user", k(meta.KindCredential, "of-olga"), nil, revoked(meta.OwnerUser, "olga")},
		{"credential/node", k(meta.KindCredential, "of-b1-1"), nil, revoked(meta.OwnerNode, "b1-1")},
		{"user (olga)", k(meta.KindUser, "olga"), &meta.User{Role: meta.RoleUser, DisplayName: "Olga"}, &meta.User{Role: meta.RoleAdmin}},
		{"broker-group", k(meta.KindBrokerGroup, "b1"), nil, &meta.BrokerGroup{State: meta.BrokerGroupDraining}},
		{"broker", k(meta.KindBroker, "b1-1"), nil, &meta.Broker{BrokerGroup: "b1", Addresses: []string{"192.0.2.66:1"}}},
		{"data-center", k(meta.KindDataCenter, "dc1"), nil, &meta.DataCenter{Networks: []string{"10.0.0.0/8"}}},
	} {
		line(row.title, func(who meta.Subject) string {
			before := s.Get(row.key).Spec
			created := before
			if q, isRequest := before.(*meta.Request); isRequest { // everybody asks in his own name
				own := *q
				own.RequestedBy = meta.ActorOf(who).Name
				created = &own
			}
			cell := ok("r", s.MayRead(who, row.key)) + ok("c", s.MayWrite(who, row.key, nil, created))
			change := ok("w", s.MayWrite(who, row.key, before, row.all))
			if change == "-" && row.part != nil {
				change = ok("p", s.MayWrite(who, row.key, before, row.part))
			}
			if q, isRequest := before.(*meta.Request); isRequest && change == "-" {
				for state, letter := range map[string]string{meta.RequestWithdrawn: "p", meta.RequestApproved: "p"} {
					n := *q
					if n.State = state; state == meta.RequestApproved {
						n.DecidedBy = meta.ActorOf(who).Name
					}
					if s.MayWrite(who, row.key, before, &n) == nil {
						change = letter
					}
				}
			}
			return cell + change + ok("d", s.MayWrite(who, row.key, before, nil))
		})
	}
	for _, o := range []struct {
		op           meta.Operation
		topic, group string
	}{
		{meta.OperateGroup, "orders", "pay"}, {meta.ReadGroup, "orders", "pay.eu"}, {meta.ReadGroup, "orders", ""}, {meta.ReadGroup, "", ""},
		{meta.ReadMessages, "orders", ""}, {meta.ReadStore, "", ""}, {meta.ReadAudit, "", ""}, {meta.OperateCluster, "", ""}, {meta.OperateBrokerGroup, "", ""}, {meta.BeNode, "", ""},
	} {
		line(strings.TrimSpace(fmt.Sprint(o.op, " ", o.topic, " ", o.group)), func(who meta.Subject) string { return ok("yes", s.MayOperate(who, o.op, o.topic, o.group)) })
	}
	line("produce orders", func(who meta.Subject) string { _, err := s.MayProduce(who, "orders", "b1"); return ok("yes", err) })
	line("consume orders pay", func(who meta.Subject) string {
		_, err := s.MayConsume(who, "orders", "pay", "b1")
		return ok("yes", err)
	})
	got := b.String()
	const file = "testdata/rights.txt"
	if *rewrite {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Fatalf("rights are\n%s\nnot\n%s\nif each change is wanted: go test -rewrite", got, want)
	}
}

func revoked(kind, owner string) *meta.Credential {
	c := secret(kind, owner)
	c.Revoked = true
	return c
}

// TestEscalation: nobody gives himself or others more than he has.
func TestEscalation(t *testing.T) {
	s := world(t)
	for name, c := range map[string]struct {
		who           meta.Subject
		key           meta.Key
		before, after meta.Spec
	}{
		"an operator makes an admin":                           {user("oskar"), k(meta.KindUser, "new"), nil, &meta.User{Role: meta.RoleAdmin}},
		"an operator makes himself admin":                      {user("oskar"), k(meta.KindUser, "oskar"), s.User("oskar"), &meta.User{Role: meta.RoleAdmin}},
		"an operator makes a credential of an admin":           {user("oskar"), k(meta.KindCredential, "c"), nil, secret(meta.OwnerUser, "anna")},
		"an operator makes a credential of a node":             {user("oskar"), k(meta.KindCredential, "c"), nil, secret(meta.OwnerNode, "n")},
		"a user makes his role another":                        {user("olga"), k(meta.KindUser, "olga"), s.User("olga"), &meta.User{Role: meta.RoleOperator, DisplayName: "O"}},
		"an owner lifts his app's limit":                       {user("olga"), k(meta.KindApp, "pay"), &meta.App{Owners: []string{"olga"}, Limit: meta.Limit{Connections: 1}}, &meta.App{Owners: []string{"olga"}}},
		"an owner enables his app":                             {user("olga"), k(meta.KindApp, "pay"), &meta.App{Owners: []string{"olga"}, Disabled: true}, &meta.App{Owners: []string{"olga"}}},
		"an owner lifts a prohibition":                         {user("olga"), k(meta.KindProducer, "orders/pay"), &meta.Producer{ForbiddenIPs: []string{"0.0.0.0/0"}}, &meta.Producer{}},
		"an owner grants himself another's topic":              {user("otto"), k(meta.KindConsumer, "orders/stranger"), nil, &meta.Consumer{}},
		"an owner takes over another's topic":                  {user("otto"), k(meta.KindTopic, "orders"), s.Topic("default", "orders"), &meta.Topic{Owner: "stranger"}},
		"a granter gives the topic away":                       {user("gina"), k(meta.KindTopic, "orders"), s.Topic("default", "orders"), &meta.Topic{Owner: "pay"}},
		"a stranger writes an owner's list with himself in":    {user("otto"), k(meta.KindApp, "pay"), s.App("default", "pay"), &meta.App{Owners: []string{"otto"}}},
		"a credential is moved to another app":                 {user("otto"), k(meta.KindCredential, "c"), secret(meta.OwnerApp, "pay"), secret(meta.OwnerApp, "stranger")},
		"and from one's own":                                   {user("otto"), k(meta.KindCredential, "c"), secret(meta.OwnerApp, "stranger"), secret(meta.OwnerApp, "pay")},
		"a node changes a topic":                               {subjects[1].who, k(meta.KindTopic, "orders"), s.Topic("default", "orders"), &meta.Topic{Partitions: 9}},
		"an app makes itself a credential":                     {app("pay"), k(meta.KindCredential, "c"), nil, secret(meta.OwnerApp, "pay")},
		"an admin forges a broker":                             {user("anna"), k(meta.KindBroker, "b"), nil, &meta.Broker{BrokerGroup: "b1"}},
		"somebody asks in another's name":                      {user("max"), k(meta.KindRequest, "r"), nil, request("user olga", "", "")},
		"somebody asks and has it decided at once":             {user("max"), k(meta.KindRequest, "r"), nil, request("user max", meta.RequestApproved, "user gina")},
		"an operator approves what he asked for":               {user("oskar"), k(meta.KindRequest, "r"), request("user oskar", "", ""), request("user oskar", meta.RequestApproved, "user oskar")},
		"an admin approves what he asked for":                  {user("anna"), k(meta.KindRequest, "r"), request("user anna", "", ""), request("user anna", meta.RequestApproved, "user anna")},
		"an owner approves what a colleague asked for":         {user("olga"), k(meta.KindRequest, "r"), request("user max", "", ""), request("user max", meta.RequestApproved, "user olga")},
		"a granter decides in another's name":                  {user("gina"), k(meta.KindRequest, "r"), request("user max", "", ""), request("user max", meta.RequestApproved, "user anna")},
		"a granter changes what he approves":                   {user("gina"), k(meta.KindRequest, "r"), request("user max", "", ""), &meta.Request{Topic: "orders", App: "shop", Right: meta.RightConsume, RequestedBy: "user max", State: meta.RequestApproved, DecidedBy: "user gina"}},
		"somebody withdraws what another asked for":            {user("olga"), k(meta.KindRequest, "r"), request("user max", "", ""), request("user max", meta.RequestWithdrawn, "")},
		"a request is made to be of a topic that one may give": {user("otto"), k(meta.KindRequest, "r"), request("user max", "", ""), &meta.Request{Topic: "own", App: "stranger", Right: meta.RightConsume, RequestedBy: "user max", State: meta.RequestApproved, DecidedBy: "user otto"}},
	} {
		if err := s.MayWrite(c.who, c.key, c.before, c.after); wire.CodeOf(err) != wire.CodeForbidden {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, c := range map[string]struct {
		who           meta.Subject
		before, after meta.Spec
	}{
		"a granter approves":   {user("gina"), request("user max", "", ""), request("user max", meta.RequestApproved, "user gina")},
		"an operator refuses":  {user("oskar"), request("user max", "", ""), request("user max", meta.RequestRefused, "user oskar")},
		"who asked withdraws":  {user("max"), request("user max", "", ""), request("user max", meta.RequestWithdrawn, "")},
		"a member asks":        {user("max"), nil, request("user max", "", "")},
		"an operator asks too": {user("oskar"), nil, request("user oskar", "", "")},
	} {
		if err := s.MayWrite(c.who, k(meta.KindRequest, "r"), c.before, c.after); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func request(by, state, decided string) *meta.Request {
	return &meta.Request{Topic: "orders", App: "pay", Right: meta.RightConsume, RequestedBy: by, State: state, DecidedBy: decided}
}

// TestRightsChange: an owner who is taken off the list has lost his rights with the next snapshot.
func TestRightsChange(t *testing.T) {
	s := world(t)
	key := k(meta.KindCredential, "new")
	if err := s.MayWrite(user("olga"), key, nil, secret(meta.OwnerApp, "pay")); err != nil {
		t.Fatal(err)
	}
	s = must(t, s, put(meta.KindApp, "pay", &meta.App{Members: []string{"max"}}))
	if err := s.MayWrite(user("olga"), key, nil, secret(meta.OwnerApp, "pay")); wire.CodeOf(err) != wire.CodeForbidden {
		t.Fatal(err)
	}
	var topics []string
	for _, o := range s.List(meta.KindTopic) {
		if s.MayRead(user("olga"), o.Key) == nil {
			topics = append(topics, o.Name)
		}
	}
	if slices.Contains(topics, "orders") {
		t.Fatalf("she still sees %v", topics)
	}
}

// TestOwnedMax: what people make as they like is bounded, for each owner by itself; room comes by deleting.
func TestOwnedMax(t *testing.T) {
	for kind, one := range map[meta.Kind]func(app string, n int) meta.Write{
		meta.KindRequest: func(app string, n int) meta.Write {
			return put(meta.KindRequest, fmt.Sprint(app, n), &meta.Request{Topic: "orders", App: app, Right: meta.RightProduce, RequestedBy: "user max"})
		},
		meta.KindCredential: func(app string, n int) meta.Write {
			c := secret(meta.OwnerApp, app)
			c.Revoked = true
			return put(meta.KindCredential, fmt.Sprint(app, n), c)
		},
		meta.KindConsumer: func(app string, n int) meta.Write {
			return put(meta.KindConsumer, fmt.Sprint("orders/", app, ".", n), &meta.Consumer{})
		},
	} {
		s := world(t)
		var all []meta.Write
		for n := range meta.OwnedMax - 1 { // the world has one
			all = append(all, one("pay", n))
		}
		s = must(t, s, all...)
		fails(t, s, wire.CodeInvalid, "more than 1000 "+string(kind)+"s", one("pay", meta.OwnedMax))
		must(t, s, one("stranger", 1))
		gone := all[0]
		gone.Spec = nil
		must(t, s, gone, one("pay", meta.OwnedMax))
	}
}
