package meta

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/jmqio/jmq/server/term"
	"github.com/jmqio/jmq/wire"
)

// drawWrite draws a write of a small world, in which much refers to much and much is wrong.
func drawWrite(t *rapid.T, s *Snapshot) Write {
	pick := func(what string, of ...string) string { return rapid.SampledFrom(of).Draw(t, what) }
	var w Write
	ns := pick("namespace", NamespaceDefault, "n1", "n2")
	kind := rapid.SampledFrom(Kinds).Draw(t, "kind")
	w.Key = Key{Kind: kind, Name: pick("name", "a", "b")}
	some := func(of ...string) (l []string) {
		for _, n := range of {
			if rapid.Bool().Draw(t, "some") {
				l = append(l, n)
			}
		}
		return l
	}
	text := pick("text", "", "x", "y")
	switch kind {
	case KindNamespace:
		w.Key.Name = pick("which", NamespaceDefault, "n1", "n2")
		w.Spec = &Namespace{Description: text, ID: rapid.Uint32().Draw(t, "id"), Last: rapid.Uint32().Draw(t, "last"), TopicsMax: rapid.IntRange(0, 2).Draw(t, "max"), AppsMax: rapid.IntRange(0, 2).Draw(t, "max")}
	case KindTopic:
		w.Key.Namespace = ns
		w.Spec = &Topic{Description: text, Owner: pick("owner", "", "a"), Partitions: rapid.IntRange(0, 3).Draw(t, "partitions"), BrokerGroups: some("g1", "g2", "g3", "g4"), Type: TopicType(pick("type", "", "normal", "broadcast", "sequential"))}
	case KindApp:
		w.Key.Namespace = ns
		w.Spec = &App{Description: text, Owners: some("a", "b")}
	case KindProducer:
		w.Key.Namespace, w.Key.Name = ns, pick("topic", "a", "b")+"/"+pick("app", "a", "b")
		w.Spec = &Producer{Description: text, Weights: map[string]int{pick("group", "g1", "g2"): rapid.IntRange(-1, 101).Draw(t, "weight")}}
	case KindConsumer:
		w.Key.Namespace, w.Key.Name = ns, pick("topic", "a", "b")+"/"+pick("group", "a", "b", "a.x")
		w.Spec = &Consumer{Description: text, ForbiddenBrokerGroups: some("g1")}
	case KindRequest:
		w.Key.Namespace = ns
		w.Spec = &Request{Topic: pick("topic", "a", "b"), App: "a", Right: pick("right", RightProduce, RightConsume), RequestedBy: "user a", State: pick("state", "", RequestApproved, RequestRefused), DecidedBy: pick("by", "", "user a", "user b")}
	case KindCredential:
		w.Spec = &Credential{OwnerKind: pick("of", OwnerUser, OwnerNode), Owner: pick("owner", "a", "b"), Salt: make([]byte, 16), Iterations: 4096, StoredKey: make([]byte, 32), ServerKey: make([]byte, 32), Revoked: rapid.Bool().Draw(t, "revoked")}
	case KindUser:
		w.Spec = &User{DisplayName: text, Role: RoleUser}
	case KindBrokerGroup:
		w.Key.Name = pick("which", "g1", "g2", "g3", "g4")
		w.Spec = &BrokerGroup{Description: text, DataCenter: pick("center", "", "d1", "d2"), State: pick("state", "", BrokerGroupDraining)}
	case KindBroker:
		w.Key.Name = pick("which", "k1", "k2", "k3", "k4")
		w.Spec = &Broker{BrokerGroup: "g" + w.Key.Name[1:], Addresses: []string{"h:1"}, Away: rapid.Bool().Draw(t, "away")}
	case KindDataCenter:
		w.Spec = &DataCenter{Description: text}
	case KindReplication:
		w.Key.Name = pick("which", "g1", "g2")
		w.Spec = &Replication{Term: rapid.Uint32Range(0, 3).Draw(t, "term"), Master: term.Member{Broker: pick("master", "k1", "k2"), Boot: "b", Store: "s"}}
	}
	if rapid.IntRange(0, 3).Draw(t, "delete") == 0 {
		w.Spec = nil
	}
	switch rapid.IntRange(0, 3).Draw(t, "expect") {
	case 0:
		w.Expect.Create = true
	case 1:
		if o := s.Get(w.Key); o != nil {
			w.Expect.Revision = o.Revision
		}
	default:
		w.Expect.Any = true
	}
	return w
}

// TestPlan draws changes and plans them one after the other. Whatever it draws: a change that is refused has a code, one that is planned leaves metadata of
// which everything is valid, names only what is there, keeps to quotas, and gives no namespace a number twice; its objects, its audit and the
// snapshot say the same; and planning it again gives the same.
func TestPlan(t *testing.T) {
	planned := 0
	rapid.Check(t, func(t *rapid.T) {
		s := Initial(1)
		numbers := map[uint32]Key{} // of namespaces, and the incarnation in Name
		born := map[uint32]Version{0: 1}
		now := time.Unix(1e9, 0)
		for range rapid.IntRange(1, 60).Draw(t, "changes") {
			c := Change{By: Actor{Name: "user a"}}
			for range rapid.IntRange(1, 5).Draw(t, "writes") {
				c.Writes = append(c.Writes, drawWrite(t, s))
			}
			before := contents(s)
			next, changed, audit, _, err := s.Plan(c, now)
			again, changed2, audit2, _, err2 := s.Plan(c, now)
			if !maps.Equal(contents(s), before) {
				t.Fatal("planning changed the snapshot")
			}
			if err != nil {
				switch code := wire.CodeOf(err); {
				case code != wire.CodeConflict && code != wire.CodeNotFound && code != wire.CodeExists && code != wire.CodeInUse && code != wire.CodeInvalid:
					t.Fatalf("refused with %v", err)
				case next != nil || changed != nil || audit != nil || wire.CodeOf(err2) != code:
					t.Fatalf("refused with %v and then %v; next %v", err, err2, next)
				}
				continue
			}
			planned++
			if len(changed) == 0 {
				if next != s {
					t.Fatal("nothing changed, but there is a next snapshot")
				}
				continue
			}
			if next.Version != s.Version+1 || len(audit) != len(changed) || len(changed2) != len(changed) || len(audit2) != len(audit) {
				t.Fatalf("version %d after %d; %d changed, %d of audit", next.Version, s.Version, len(changed), len(audit))
			}
			for i, o := range changed {
				old := s.Get(o.Key)
				if o.Revision != next.Version || (old == nil) != (o.Created == o.Revision) || (old != nil && o.Created != old.Created) {
					t.Fatalf("%+v after %+v", o, old)
				}
				if o.Spec == nil && next.Get(o.Key) != nil || o.Spec != nil && next.Get(o.Key) != o {
					t.Fatalf("%s is not in the next snapshot as it was changed", o.Key)
				}
				e := audit[i]
				if e.Key != o.Key || e.Version != next.Version || (e.Before == nil) != (old == nil) || (e.After == nil) != (o.Spec == nil) || bytes.Equal(e.Before, e.After) && o.Kind != KindCredential {
					t.Fatalf("audit %+v of %+v", e, o)
				}
				if !bytes.Equal(e.After, audit2[i].After) || again.Get(o.Key) != nil && again.Get(o.Key).Revision != o.Revision {
					t.Fatalf("planned again it is %s, not %s", audit2[i].After, e.After)
				}
			}
			for _, kind := range Kinds {
				for o := range next.All(kind) {
					if err := o.Spec.Validate(); err != nil {
						t.Fatalf("%s: %v", o.Key, err)
					}
					if kind != KindRequest {
						for ref := range refs(o) {
							if !ref.Kind.named() {
								t.Fatalf("%s names %s, of a kind that is not named", o.Key, ref)
							}
							if next.Get(ref) == nil {
								t.Fatalf("%s names %s, which is not there", o.Key, ref)
							}
						}
					}
					switch v := o.Spec.(type) {
					case *Namespace:
						if created, ok := born[v.ID]; ok && created != o.Created {
							t.Fatalf("%s has number %d, as one before: %v", o.Key, v.ID, numbers[v.ID])
						}
						born[v.ID], numbers[v.ID] = o.Created, o.Key
						if (v.ID == 0) != (o.Name == NamespaceDefault) || v.Last != 0 && v.ID != 0 {
							t.Fatalf("%s has number %d", o.Key, v.ID)
						}
					case *Topic:
						if old := s.Get(o.Key); old != nil && old.Created == o.Created && old.Spec.(*Topic).Partitions > v.Partitions {
							t.Fatalf("%s lost partitions", o.Key)
						}
					case *Credential:
						if old := s.Get(o.Key); old != nil && old.Spec.(*Credential).Revoked && !v.Revoked {
							t.Fatalf("%s is good again", o.Key)
						}
					}
				}
			}
			s = next
		}
	})
	if planned == 0 {
		t.Fatal("nothing that was drawn could be planned")
	}
}

func write(kind Kind, name string, spec Spec) Write {
	w := Write{Key: Key{Kind: kind, Name: name}, Spec: spec, Expect: Expect{Any: true}}
	if kind.Namespaced() {
		w.Key.Namespace = NamespaceDefault
	}
	return w
}

func plannedOf(t *testing.T, s *Snapshot, writes ...Write) (*Snapshot, []string) {
	t.Helper()
	n, _, _, warnings, err := s.Plan(Change{By: Actor{Name: "local"}, Writes: writes}, time.Unix(1e9, 0))
	if err != nil {
		t.Fatal(err)
	}
	return n, warnings
}

// TestChoose: a topic without broker groups gets living, active ones from different data centers, those with the fewest topics first; later
// changes that name none leave them.
func TestChoose(t *testing.T) {
	var writes []Write
	for i, spec := range []struct {
		center string
		state  string
		away   bool
		slave  bool
	}{
		{"d1", "", false, false}, {"d1", "", false, false}, {"d1", "", false, false}, {"d2", "", false, false}, {"d2", "", true, false},
		{"d3", BrokerGroupReadOnly, false, false}, {"d3", "", false, true}, {"", BrokerGroupActive, false, false},
	} {
		g := fmt.Sprint("g", i)
		writes = append(writes, write(KindBrokerGroup, g, &BrokerGroup{State: spec.state}),
			write(KindBroker, g+"-1", &Broker{BrokerGroup: g, Addresses: []string{"h:1"}, DataCenter: spec.center, Away: spec.away, Slave: spec.slave}))
	}
	s, _ := plannedOf(t, Initial(1), writes...)
	for i, want := range []string{"[g0 g3 g7]", "[g1 g3 g7]", "[g2 g3 g7]", "[g0 g3 g7]"} {
		topic := fmt.Sprint("t", i)
		var warnings []string
		s, warnings = plannedOf(t, s, write(KindTopic, topic, &Topic{}))
		got := s.Topic(NamespaceDefault, topic)
		if fmt.Sprint(got.BrokerGroups) != want || got.Partitions != PartitionsUsual || len(warnings) != 0 {
			t.Fatalf("%s: %+v, %q; want %s", topic, got, warnings, want)
		}
	}
	s, _ = plannedOf(t, s, write(KindTopic, "t0", &Topic{Description: "new", Partitions: 9}))
	if got := s.Topic(NamespaceDefault, "t0"); fmt.Sprint(got.BrokerGroups) != "[g0 g3 g7]" || got.Partitions != 9 {
		t.Fatalf("%+v", got)
	}
	// Two topics of one change spread too.
	s, _ = plannedOf(t, s, write(KindBrokerGroup, "g3", &BrokerGroup{State: BrokerGroupDraining}), write(KindBrokerGroup, "g7", &BrokerGroup{State: BrokerGroupDraining}))
	s, _ = plannedOf(t, s, write(KindTopic, "u0", &Topic{}), write(KindTopic, "u1", &Topic{}))
	if got := s.Topic(NamespaceDefault, "u1"); fmt.Sprint(got.BrokerGroups) == "[]" || slices.Contains(got.BrokerGroups, "g3") {
		t.Fatalf("%+v", got)
	}
	if _, _, _, _, err := Initial(1).Plan(Change{Writes: []Write{write(KindTopic, "t", &Topic{})}}, time.Time{}); wire.CodeOf(err) != wire.CodeInvalid {
		t.Fatalf("without any broker group: %v", err)
	}
}

// TestWarnings: what people should know.
func TestWarnings(t *testing.T) {
	s, _ := plannedOf(t, Initial(1), write(KindBrokerGroup, "g1", &BrokerGroup{}), write(KindBrokerGroup, "g2", &BrokerGroup{}))
	s, w := plannedOf(t, s, write(KindTopic, "t", &Topic{BrokerGroups: []string{"g1", "g2"}}))
	if len(w) != 1 || w[0] != "topic t is on 2 broker groups: with fewer than 3 the loss of one stops or overloads it" {
		t.Fatalf("%q", w)
	}
	s, w = plannedOf(t, s, write(KindTopic, "t", &Topic{BrokerGroups: []string{"g1"}}))
	if len(w) != 2 || w[1] != "topic t leaves broker group g2, whose brokers were removed: what was not consumed there is lost with them" {
		t.Fatalf("%q", w)
	}
	s, _ = plannedOf(t, s, write(KindApp, "a", &App{}))
	consumer := &Consumer{Delay: Duration(time.Second), Filters: []Filter{{Type: "tag", Rule: "x"}}}
	if _, w = plannedOf(t, s, write(KindConsumer, "t/a", consumer)); len(w) != 2 || w[0] != "consumer t/a: delay is kept, and has no effect in this version" {
		t.Fatalf("%q", w)
	}
	if _, w = plannedOf(t, s, write(KindTopic, "t", nil)); len(w) != 1 || w[0] != "topic t is deleted with all its messages" {
		t.Fatalf("%q", w)
	}
}

// TestRowOfBrokerGroup: only the registry writes it, it needs its broker group, and goes with it; a replicated topic there is warned of until there is a slave.
func TestRowOfBrokerGroup(t *testing.T) {
	row := &Replication{Term: 1, Master: term.Member{Broker: "k1", Boot: "b", Store: "s"}, Change: 1}
	if _, _, _, _, err := Initial(1).Plan(Change{Writes: []Write{write(KindReplication, "g1", row)}}, time.Unix(1e9, 0)); wire.CodeOf(err) != wire.CodeInvalid {
		t.Fatal(err)
	}
	s, _ := plannedOf(t, Initial(1), write(KindBrokerGroup, "g1", &BrokerGroup{}), write(KindReplication, "g1", row),
		write(KindBroker, "k1", &Broker{BrokerGroup: "g1", Addresses: []string{"h:1"}, Slave: true}), write(KindBroker, "k2", &Broker{BrokerGroup: "g1", Addresses: []string{"h:2"}}))
	if !s.IsMaster("k1") || s.IsMaster("k2") {
		t.Fatal("the row says who is master")
	}
	for _, who := range []wire.Principal{{}, {Kind: wire.PrincipalNode, Name: "k1"}} {
		if err := s.MayWrite(Subject{Principal: who}, Key{Kind: KindReplication, Name: "g1"}, row, row); wire.CodeOf(err) != wire.CodeForbidden {
			t.Errorf("%v: %v", who, err)
		}
	}
	_, w := plannedOf(t, s, write(KindBroker, "k2", nil), write(KindTopic, "t", &Topic{BrokerGroups: []string{"g1"}, Durability: DurabilityReplicated}))
	if len(w) != 2 || w[1] != "topic t is replicated, and broker group g1 has no slave: it takes no sends before it has one" {
		t.Fatalf("%q", w)
	}
	s, _ = plannedOf(t, s, write(KindBroker, "k1", nil), write(KindBroker, "k2", nil))
	s, _ = plannedOf(t, s, write(KindBrokerGroup, "g1", nil))
	if s.Replication("g1") != nil {
		t.Fatal("the row stayed")
	}
}

// TestFinal: what can never be undone, and the quotas.
func TestFinal(t *testing.T) {
	cred := func(change func(*Credential)) *Credential {
		c := &Credential{OwnerKind: OwnerNode, Owner: "n", Salt: make([]byte, 16), Iterations: 4096, StoredKey: make([]byte, 32), ServerKey: make([]byte, 32)}
		change(c)
		return c
	}
	good := cred(func(*Credential) {})
	s, _ := plannedOf(t, Initial(1), write(KindBrokerGroup, "g", &BrokerGroup{}), write(KindApp, "a", &App{}), write(KindTopic, "t", &Topic{Partitions: 4, BrokerGroups: []string{"g"}}),
		write(KindCredential, "good", good), write(KindCredential, "bad", cred(func(c *Credential) { c.Revoked = true })),
		write(KindRequest, "open", &Request{Topic: "t", App: "a", Right: RightProduce, RequestedBy: "user u"}),
		write(KindRequest, "refused", &Request{Topic: "t", App: "a", Right: RightProduce, RequestedBy: "user u", State: RequestRefused, DecidedBy: "user v"}))
	approved := &Request{Topic: "t", App: "a", Right: RightProduce, RequestedBy: "user u", State: RequestApproved, DecidedBy: "user v"}
	refuse := func(text string, writes ...Write) {
		t.Helper()
		_, _, _, _, err := s.Plan(Change{Writes: writes}, time.Unix(1e9, 0))
		if wire.CodeOf(err) != wire.CodeInvalid || !bytes.Contains([]byte(err.Error()), []byte(text)) {
			t.Errorf("%v; want %q", err, text)
		}
	}
	refuse("topic t: 3 partitions: there are 4, and they can only become more", write(KindTopic, "t", &Topic{Partitions: 3}))
	refuse("topic t: its type is normal for good", write(KindTopic, "t", &Topic{Type: TopicBroadcast}))
	refuse("was revoked, for good", write(KindCredential, "bad", good))
	refuse("its secret cannot be changed", write(KindCredential, "good", cred(func(c *Credential) { c.Salt = make([]byte, 17) })))
	refuse("its secret cannot be changed", write(KindCredential, "good", cred(func(c *Credential) { c.StoredKey = append(make([]byte, 31), 1) })))
	refuse("it is of node n for good", write(KindCredential, "good", cred(func(c *Credential) { c.Owner = "m" })))
	refuse("it was refused, for good", write(KindRequest, "refused", approved))
	refuse("what it asks for cannot be changed", write(KindRequest, "open", &Request{Topic: "t", App: "a", Right: RightConsume, RequestedBy: "user u"}))
	refuse("request open is approved but producer t/a is not granted: write it in the same change", write(KindRequest, "open", approved))
	plannedOf(t, s, write(KindRequest, "open", approved), write(KindProducer, "t/a", &Producer{}))
	refuse("nobody decides on what was asked for by the same", write(KindRequest, "open", &Request{Topic: "t", App: "a", Right: RightProduce, RequestedBy: "user u", State: RequestRefused, DecidedBy: "user u"}))
	refuse("node n would have 3 credentials that are good, at most 2 are allowed: revoke one first", write(KindCredential, "c2", good), write(KindCredential, "c3", good))
	plannedOf(t, s, write(KindCredential, "good", cred(func(c *Credential) { c.Revoked = true })), write(KindCredential, "c2", good), write(KindCredential, "c3", good))

	plannedOf(t, s, write(KindCredential, "c2", good), write(KindCredential, "c3", cred(func(c *Credential) { c.Expires = time.Unix(1e9, 0) })), write(KindCredential, "c4", cred(func(c *Credential) { c.Revoked = true })))

	// What was read without its verifier can be written back.
	read := *Redact(good).(*Credential)
	read.Revoked = true
	n, _ := plannedOf(t, s, write(KindCredential, "good", &read))
	if c := n.Credential("good"); !c.Revoked || !bytes.Equal(c.StoredKey, good.StoredKey) || c.Iterations != good.Iterations {
		t.Errorf("%+v", c)
	}

	s, _ = plannedOf(t, s, write(KindNamespace, NamespaceDefault, &Namespace{TopicsMax: 2, AppsMax: 1}))
	refuse("namespace default would have 2 apps, at most 1 are allowed", write(KindApp, "b", &App{}))
	refuse("namespace default would have 3 topics, at most 2 are allowed", write(KindTopic, "t2", &Topic{BrokerGroups: []string{"g"}}), write(KindTopic, "t3", &Topic{BrokerGroups: []string{"g"}}))
	s, _ = plannedOf(t, s, write(KindTopic, "t2", &Topic{BrokerGroups: []string{"g"}}))
	s, _ = plannedOf(t, s, write(KindNamespace, NamespaceDefault, &Namespace{TopicsMax: 1}))
	plannedOf(t, s, write(KindTopic, "t3", &Topic{BrokerGroups: []string{"g"}}), write(KindTopic, "t2", nil))
}
