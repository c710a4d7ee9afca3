package registry

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/wire"
)

func user(name string) context.Context {
	return wire.WithPeer(context.Background(), &wire.Peer{Addr: "10.0.0.1:999", Principal: wire.Principal{Kind: wire.PrincipalUser, Name: name}})
}

// office is a node over metadata with an admin, a viewer, a person who owns app shop, and a broker that beats.
func office(t testing.TB) (*cluster, *Node) {
	c := newCluster(t, 1)
	c.write(map[meta.Key]meta.Spec{
		{Kind: meta.KindUser, Name: "admin"}: &meta.User{Role: meta.RoleAdmin}, {Kind: meta.KindUser, Name: "viewer"}: &meta.User{Role: meta.RoleViewer},
		{Kind: meta.KindUser, Name: "joe"}: &meta.User{Role: meta.RoleUser},
		appKey("shop"):                     &meta.App{Owners: []string{"joe"}}, appKey("pay"): &meta.App{},
		groupKey("group-a"):  &meta.BrokerGroup{},
		topicKey("orders"):   &meta.Topic{Partitions: 2, BrokerGroups: []string{"group-a"}, Owner: "shop"},
		topicKey("payments"): &meta.Topic{Partitions: 2, BrokerGroups: []string{"group-a"}, Owner: "pay"},
	})
	return c, c.nodes[0]
}

func object(k meta.Key, spec string) *wire.Object {
	return &wire.Object{Kind: string(k.Kind), Namespace: k.Namespace, Name: k.Name, Spec: []byte(spec)}
}

func apply(n *Node, ctx context.Context, r *wire.ApplyObjectsRequest) (*wire.ApplyObjectsResponse, error) {
	return n.ApplyObjects(ctx, r)
}

func one(w *wire.ObjectWrite) *wire.ApplyObjectsRequest {
	return &wire.ApplyObjectsRequest{Writes: []*wire.ObjectWrite{w}, Reason: "a test"}
}

// TestApply shows what a change is answered: rights by what is there before and after, conflicts, what is wrong with it, what a dry run would do,
// and what the audit keeps.
func TestApply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, n := office(t)
		defer c.close()
		topic := topicKey("orders")
		revision := uint64(c.stores[0].View().Get(topic).Revision)
		good := object(topic, `{"partitions":4}`)
		for name, x := range map[string]struct {
			who  context.Context
			w    *wire.ObjectWrite
			want wire.Code
		}{
			"viewer":             {user("viewer"), &wire.ObjectWrite{Object: good, Any: true}, wire.CodeForbidden},
			"owner, partitions":  {user("joe"), &wire.ObjectWrite{Object: good, Any: true}, wire.CodeForbidden},
			"nobody":             {user("nobody"), &wire.ObjectWrite{Object: good, Any: true}, wire.CodeUnauthenticated},
			"other app's topic":  {user("joe"), &wire.ObjectWrite{Object: object(producerKey("payments", "shop"), `{}`), Create: true}, wire.CodeForbidden},
			"old revision":       {user("admin"), &wire.ObjectWrite{Object: good, Expect: revision - 1}, wire.CodeConflict},
			"create":             {user("admin"), &wire.ObjectWrite{Object: good, Create: true}, wire.CodeExists},
			"not there":          {user("admin"), &wire.ObjectWrite{Object: object(topicKey("none"), `{"partitions":1}`), Expect: 1}, wire.CodeNotFound},
			"unknown field":      {user("admin"), &wire.ObjectWrite{Object: object(topic, `{"partitons":4}`), Any: true}, wire.CodeInvalid},
			"kind":               {user("admin"), &wire.ObjectWrite{Object: &wire.Object{Kind: "table", Name: "x"}, Any: true}, wire.CodeInvalid},
			"name":               {user("admin"), &wire.ObjectWrite{Object: object(topicKey("x'; drop table object; --"), `{}`), Any: true}, wire.CodeInvalid},
			"no object":          {user("admin"), &wire.ObjectWrite{Any: true}, wire.CodeInvalid},
			"in use":             {user("admin"), &wire.ObjectWrite{Object: object(groupKey("group-a"), ""), Any: true}, wire.CodeInUse},
			"a broker":           {user("admin"), &wire.ObjectWrite{Object: object(brokerKey("b"), `{"brokerGroup":"group-a","addresses":["b:1"]}`), Any: true}, wire.CodeForbidden},
			"an admin by an app": {app("shop", ""), &wire.ObjectWrite{Object: object(meta.Key{Kind: meta.KindUser, Name: "me"}, `{"role":"admin"}`), Create: true}, wire.CodeForbidden},
		} {
			before := c.stores[0].View()
			if _, err := apply(n, x.who, one(x.w)); wire.CodeOf(err) != x.want {
				t.Errorf("%s: %v, want %v", name, err, x.want)
			}
			if c.stores[0].View() != before {
				t.Errorf("%s: something was changed", name)
			}
		}
		big := &wire.ApplyObjectsRequest{}
		for i := range 5 {
			big.Writes = append(big.Writes, &wire.ObjectWrite{Object: object(appKey(fmt.Sprint("a", i)), `{"description":"`+strings.Repeat("x", 900_000)+`"}`), Create: true})
		}
		_, err := apply(n, user("admin"), big)
		wantCode(t, err, wire.CodeTooLarge)

		dry := one(&wire.ObjectWrite{Object: good, Expect: revision})
		dry.DryRun = true
		r, err := apply(n, user("admin"), dry)
		if err != nil || r.Changes[0].Change != meta.ChangeChanged || !strings.Contains(string(r.Changes[0].After.Spec), `"partitions":4`) {
			t.Fatalf("dry run: %v, %v", r, err)
		}
		if got := c.stores[0].View().Topic(meta.NamespaceDefault, "orders").Partitions; got != 2 {
			t.Fatalf("a dry run made %d partitions", got)
		}
		// The namespace of the peer is put in; a dry run and a write that changes nothing are no versions.
		r, err = apply(n, user("admin"), one(&wire.ObjectWrite{Object: &wire.Object{Kind: "topic", Name: "orders", Spec: []byte(`{"partitions":4,"owner":"shop"}`)}, Any: true}))
		if err != nil || r.Changes[0].Change != meta.ChangeChanged || r.Changes[0].Before.Revision != revision || len(r.Warnings) == 0 {
			t.Fatalf("%v, %v", r, err)
		}
		again, err := apply(n, user("admin"), one(&wire.ObjectWrite{Object: object(topic, `{"partitions":4,"owner":"shop"}`), Any: true}))
		if err != nil || again.Changes[0].Change != "unchanged" || again.Version != r.Version {
			t.Fatalf("%v, %v", again, err)
		}
		// An owner of the app that owns the topic grants it, and takes it back.
		grant := one(&wire.ObjectWrite{Object: object(producerKey("orders", "pay"), `{"timeout":"1s"}`), Create: true})
		if r, err = apply(n, user("joe"), grant); err != nil || r.Changes[0].Change != meta.ChangeCreated || r.Changes[0].Before != nil {
			t.Fatalf("%v, %v", r, err)
		}
		if r, err = apply(n, user("joe"), one(&wire.ObjectWrite{Object: object(producerKey("orders", "pay"), ""), Expect: r.Version})); err != nil || r.Changes[0].Change != meta.ChangeDeleted || r.Changes[0].After != nil {
			t.Fatalf("%v, %v", r, err)
		}
		audit, err := n.ListAudit(user("admin"), &wire.ListAuditRequest{Kind: "producer"})
		if err != nil || len(audit.Entries) != 2 || audit.Entries[1].Who != "user joe" || audit.Entries[1].Addr != "10.0.0.1" || audit.Entries[1].Reason != "a test" || audit.Entries[0].Change != meta.ChangeDeleted {
			t.Fatalf("%v, %v", audit, err)
		}
		_, err = n.ListAudit(user("joe"), &wire.ListAuditRequest{})
		wantCode(t, err, wire.CodeForbidden)
		if m := n.Metrics(); m.Changes != 3 || m.ChangesRefused < 14 {
			t.Errorf("%+v", m)
		}
	})
}

// TestCredentials shows that a secret is told once and its verifier never, that two live at a time, that one is revoked for good by a change of
// what is shown of it, and who may do that.
func TestCredentials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, n := office(t)
		defer c.close()
		create := func(ctx context.Context, owner string, expires time.Duration) (*wire.CreateCredentialResponse, error) {
			r := &wire.CreateCredentialRequest{OwnerKind: "app", Owner: owner}
			if expires != 0 {
				r.ExpiresNs = time.Now().Add(expires).UnixNano()
			}
			return n.CreateCredential(ctx, r)
		}
		first, err := create(user("joe"), "shop", 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = create(user("joe"), "shop", time.Hour); err != nil {
			t.Fatal(err)
		}
		for name, x := range map[string]func() error{
			"third": func() error { _, err := create(user("joe"), "shop", 0); return err },
			"other": func() error { _, err := create(user("joe"), "pay", 0); return err },
			"none":  func() error { _, err := create(user("admin"), "none", 0); return err },
			"past":  func() error { _, err := create(user("admin"), "pay", -time.Hour); return err },
			"node": func() error {
				_, err := n.CreateCredential(user("joe"), &wire.CreateCredentialRequest{OwnerKind: "node", Owner: "b"})
				return err
			},
		} {
			if err := x(); err == nil {
				t.Errorf("%s: made", name)
			}
		}
		if len(first.Secret) != 43 || len(first.Id) != 26 {
			t.Errorf("id %q, secret of %d characters", first.Id, len(first.Secret))
		}
		kept := c.stores[0].View().Credential(first.Id)
		if len(kept.StoredKey) != 32 || kept.Owner != "shop" {
			t.Errorf("kept is %+v", kept)
		}
		list, err := n.ListObjects(user("admin"), &wire.ListObjectsRequest{Kind: "credential"})
		if err != nil || len(list.Objects) != 2 {
			t.Fatalf("%v, %v", list, err)
		}
		audit, err := n.ListAudit(user("admin"), &wire.ListAuditRequest{Kind: "credential"})
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{fmt.Sprint(list), fmt.Sprint(audit)} {
			if strings.Contains(text, "salt") || strings.Contains(text, "Key") || strings.Contains(text, first.Secret) {
				t.Errorf("a verifier or a secret is shown: %s", text)
			}
		}
		// What the list shows is changed and given back, without the verifier.
		for _, o := range list.Objects {
			if o.Name != first.Id {
				continue
			}
			o.Spec = []byte(strings.TrimSuffix(string(o.Spec), "}") + `,"revoked":true}`)
			_, err := apply(n, user("viewer"), one(&wire.ObjectWrite{Object: o, Expect: o.Revision}))
			wantCode(t, err, wire.CodeForbidden)
			r, err := apply(n, user("joe"), one(&wire.ObjectWrite{Object: o, Expect: o.Revision}))
			if err != nil || strings.Contains(fmt.Sprint(r), "storedKey") {
				t.Fatalf("%v, %v", r, err)
			}
		}
		if now := c.stores[0].View().Credential(first.Id); !now.Revoked || string(now.StoredKey) != string(kept.StoredKey) {
			t.Errorf("revoked is %+v", now)
		}
		if _, err := create(user("joe"), "shop", 0); err != nil {
			t.Errorf("after one was revoked: %v", err)
		}
	})
}

// TestListObjects pages through all objects, sees each once and in order, and shows nobody what he may not see.
func TestListObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, n := office(t)
		defer c.close()
		c.write(map[meta.Key]meta.Spec{producerKey("orders", "shop"): &meta.Producer{}, producerKey("payments", "pay"): &meta.Producer{}})
		var all []string
		after := ""
		for {
			r, err := n.ListObjects(user("admin"), &wire.ListObjectsRequest{After: after, Limit: 3})
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range r.Objects {
				after = o.Kind + "/" + o.Namespace + "/" + o.Name
				all = append(all, after)
			}
			if !r.More {
				break
			}
		}
		want := "app/default/pay app/default/shop broker-group//group-a namespace//default producer/default/orders/shop producer/default/payments/pay topic/default/orders topic/default/payments user//admin user//joe user//viewer"
		if got := strings.Join(all, " "); got != want {
			t.Errorf("got %s\nwant %s", got, want)
		}
		r, err := n.ListObjects(app("shop", ""), &wire.ListObjectsRequest{Kind: "producer"})
		if err != nil || len(r.Objects) != 1 || r.Objects[0].Name != "orders/shop" {
			t.Errorf("%v, %v", r, err)
		}
		r, err = n.ListObjects(user("viewer"), &wire.ListObjectsRequest{Namespace: "default", Prefix: "pay"})
		if err != nil || len(r.Objects) != 3 {
			t.Errorf("%v, %v", r, err)
		}
		_, err = n.ListObjects(user("admin"), &wire.ListObjectsRequest{After: "nonsense"})
		wantCode(t, err, wire.CodeInvalid)
		_, err = n.ListObjects(user("admin"), &wire.ListObjectsRequest{Kind: "table"})
		wantCode(t, err, wire.CodeInvalid)
	})
}

// TestTopics shows the older commands of topics on a registry: they wait until the brokers have the change, and no longer than 5 s.
func TestTopics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2)
		defer c.close()
		all := brokers(t, c)
		n := c.nodes[0]
		begun := time.Now()
		r, err := n.CreateTopic(context.Background(), &wire.CreateTopicRequest{Topic: "mail", Partitions: 3, Settings: &wire.TopicSettings{RetentionMs: proto.Int64(-1)}})
		if err != nil || r.Topic.Partitions != 3 || *r.Topic.Settings.RetentionMs != -1 {
			t.Fatalf("%v, %v", r, err)
		}
		if took := time.Since(begun); took > time.Second {
			t.Errorf("created in %v", took)
		}
		for name, f := range all {
			if s := f.applied.Load(); s.Topic(meta.NamespaceDefault, "mail") == nil {
				t.Errorf("%s does not have it when it is created", name)
			}
		}
		if got := c.stores[0].View().Topic(meta.NamespaceDefault, "mail").BrokerGroups; len(got) != 3 {
			t.Errorf("on %v", got)
		}
		for _, again := range []struct {
			r    *wire.CreateTopicRequest
			want wire.Code
		}{
			{&wire.CreateTopicRequest{Topic: "mail", Partitions: 3, Settings: &wire.TopicSettings{RetentionMs: proto.Int64(-1)}}, wire.CodeOK},
			{&wire.CreateTopicRequest{Topic: "mail"}, wire.CodeOK},
			{&wire.CreateTopicRequest{Topic: "mail", Partitions: 4}, wire.CodeTopicExists},
			{&wire.CreateTopicRequest{Topic: "mail", Settings: &wire.TopicSettings{PauseProduce: proto.Bool(true)}}, wire.CodeTopicExists},
			{&wire.CreateTopicRequest{Topic: "a/b"}, wire.CodeInvalid},
		} {
			_, err := n.CreateTopic(context.Background(), again.r)
			if wire.CodeOf(err) != again.want {
				t.Errorf("%v: %v, want %v", again.r, err, again.want)
			}
		}
		a, err := n.AlterTopic(context.Background(), &wire.AlterTopicRequest{Topic: "mail", Partitions: proto.Uint32(5), Settings: &wire.TopicSettings{RetentionMs: proto.Int64(90_000)}})
		if err != nil || a.Topic.Partitions != 5 || *a.Topic.Settings.RetentionMs != 90_000 {
			t.Errorf("%v, %v", a, err)
		}
		_, err = n.AlterTopic(context.Background(), &wire.AlterTopicRequest{Topic: "mail", Partitions: proto.Uint32(4)})
		wantCode(t, err, wire.CodeInvalid)
		_, err = n.AlterTopic(context.Background(), &wire.AlterTopicRequest{Topic: "none"})
		wantCode(t, err, wire.CodeTopicNotFound)
		list, err := n.ListTopics(context.Background(), &wire.ListTopicsRequest{})
		if err != nil || len(list.Topics) != 2 {
			t.Errorf("%v, %v", list, err)
		}
		_, err = n.GroupLag(context.Background(), &wire.GroupLagRequest{})
		wantCode(t, err, wire.CodeRoleElsewhere)
		if e := err.(*wire.CodeError); len(e.Nodes) != 3 {
			t.Errorf("brokers are %v", e.Nodes)
		}

		all["c"].Close() // silent, and not away yet
		begun = time.Now()
		d, err := n.DeleteTopic(context.Background(), &wire.DeleteTopicRequest{Topic: "mail", Reason: "a test"})
		if err != nil || d.Topic.Partitions != 5 {
			t.Errorf("%v, %v", d, err)
		}
		if took := time.Since(begun); took != forceWait {
			t.Errorf("deleted in %v while a broker is silent", took)
		}
		_, err = n.DeleteTopic(context.Background(), &wire.DeleteTopicRequest{Topic: "mail"})
		wantCode(t, err, wire.CodeTopicNotFound)
		_, err = n.DeleteTopic(user("nobody"), &wire.DeleteTopicRequest{Topic: "orders"})
		wantCode(t, err, wire.CodeUnauthenticated)
		all["a"].Close()
		all["b"].Close()
	})
}

// TestNodes shows what a node says of all nodes, also of those that beat elsewhere.
func TestNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		defer c.close()
		all := brokers(t, c)
		all["a"].Close()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		for i, n := range c.nodes {
			r, err := n.ListNodes(context.Background(), &wire.ListNodesRequest{})
			if err != nil {
				t.Fatal(err)
			}
			text := r.Database
			for _, x := range r.Nodes {
				text += fmt.Sprintf(" %s/%v", x.Last.Node, x.Away)
			}
			if want := "ok a/true b/false c/false registry-0/false registry-1/false registry-2/false"; text != want {
				t.Errorf("node %d: %s, want %s", i, text, want)
			}
			if got := len(n.Registry()); got != 3 {
				t.Errorf("node %d knows %v", i, n.Registry())
			}
		}
		if got := len(all["b"].Registry()); got != 3 {
			t.Errorf("b knows %v", all["b"].Registry())
		}
		c.stop(1)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got := len(all["b"].Registry()); got != 2 {
			t.Errorf("b knows %v when one is gone", all["b"].Registry())
		}
		s, err := c.nodes[0].NewGeneration(context.Background(), &wire.NewGenerationRequest{Reason: "a test"})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if got := all["b"].Snapshot(); uint64(got.Generation) != s.Generation || got.Topic(meta.NamespaceDefault, "orders") == nil {
			t.Errorf("b has generation %d, %d is new", got.Generation, s.Generation)
		}
		_, err = c.nodes[0].NewGeneration(user("nobody"), &wire.NewGenerationRequest{})
		wantCode(t, err, wire.CodeUnauthenticated)
		all["b"].Close()
		all["c"].Close()
	})
}

// behind is a store that does not know the newest yet, as one whose database was written by another node a moment ago.
type behind struct {
	meta.Store
	view *meta.Snapshot
}

func (b behind) View() *meta.Snapshot { return b.view }

// TestRightsOfWhatIsThere shows that a node that is behind grants nothing that was taken meanwhile: not what its rights would let somebody change
// (a subscription that was deleted is not made again), nor what they let him say of a newer revision (a limit that was set is not lifted).
func TestRightsOfWhatIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := office(t)
		defer c.close()
		mine := producerKey("payments", "shop") // of joe's app, to a topic that is not his
		c.write(map[meta.Key]meta.Spec{mine: &meta.Producer{}})
		n, err := NewNode(NodeOptions{
			Store: behind{c.stores[0].Another(), c.stores[0].View()},
			Self: func() *wire.HeartbeatRequest {
				return &wire.HeartbeatRequest{Node: "registry-behind", Boot: "boot-behind", Roles: []string{RoleRegistry}}
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()

		c.write(map[meta.Key]meta.Spec{mine: &meta.Producer{Limit: meta.Limit{MessagesPerSecond: 1}}})
		limited := c.stores[0].View()
		_, err = apply(n, user("joe"), one(&wire.ObjectWrite{Object: object(mine, `{"description":"no limit"}`), Expect: uint64(limited.Get(mine).Revision)}))
		wantCode(t, err, wire.CodeForbidden)

		c.write(map[meta.Key]meta.Spec{mine: nil})
		_, err = apply(n, user("joe"), one(&wire.ObjectWrite{Object: object(mine, `{"description":"again"}`), Create: true}))
		wantCode(t, err, wire.CodeForbidden)

		c.write(map[meta.Key]meta.Spec{{Kind: meta.KindUser, Name: "admin"}: &meta.User{Role: meta.RoleAdmin, Disabled: true}})
		_, err = apply(n, user("admin"), one(&wire.ObjectWrite{Object: object(mine, `{}`), Create: true}))
		wantCode(t, err, wire.CodeUnauthenticated)
		_, err = n.CreateCredential(user("admin"), &wire.CreateCredentialRequest{OwnerKind: "app", Owner: "shop"})
		wantCode(t, err, wire.CodeUnauthenticated)
		_, err = n.AlterTopic(user("admin"), &wire.AlterTopicRequest{Topic: "orders", Settings: &wire.TopicSettings{PauseProduce: proto.Bool(true)}})
		wantCode(t, err, wire.CodeUnauthenticated)
		if now := c.stores[0].View(); now.Get(mine) != nil {
			t.Errorf("%v is there again", mine)
		}
	})
}

// stuck is a store whose database answers no change until done is closed.
type stuck struct {
	meta.Store
	done chan struct{}
}

func (s stuck) Update(ctx context.Context, c meta.Change) (*meta.Snapshot, error) {
	<-s.done
	return s.Store.Update(ctx, c)
}

// TestManyChanges shows that one who asks for changes without end holds up others for no more than 16 of them, and by dry runs not at all.
func TestManyChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := office(t)
		defer c.close()
		done := make(chan struct{})
		n, err := NewNode(NodeOptions{
			Store: stuck{c.stores[0], done},
			Self: func() *wire.HeartbeatRequest {
				return &wire.HeartbeatRequest{Node: "one-more", Boot: "x", Roles: []string{RoleRegistry}, Addresses: []string{"one-more:1"}}
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		change := func(who, app string) error {
			_, err := apply(n, user(who), one(&wire.ObjectWrite{Object: object(meta.Key{Kind: meta.KindUser, Name: who}, `{"role":"user","displayName":"`+app+`"}`), Any: true}))
			return err
		}
		answers := make(chan error, 2*changingMax)
		for i := range changingMax {
			go func() { answers <- change("joe", fmt.Sprint(i)) }()
		}
		synctest.Wait()
		wantCode(t, change("joe", "one more"), wire.CodeBusy)
		_, err = n.CreateCredential(user("joe"), &wire.CreateCredentialRequest{OwnerKind: "user", Owner: "joe"})
		wantCode(t, err, wire.CodeBusy)
		dry := one(&wire.ObjectWrite{Object: object(topicKey("orders"), `{"partitions":9}`), Any: true})
		dry.DryRun = true
		if r, err := apply(n, user("admin"), dry); err != nil || r.Changes[0].Change != meta.ChangeChanged {
			t.Errorf("a dry run: %v, %v", r, err)
		}
		go func() {
			_, err := apply(n, user("admin"), one(&wire.ObjectWrite{Object: object(appKey("new"), `{}`), Create: true}))
			answers <- err
		}()
		close(done)
		for range changingMax + 1 {
			if err := <-answers; err != nil && wire.CodeOf(err) != wire.CodeConflict {
				t.Error(err)
			}
		}
		wantCode(t, change("joe", "again"), wire.CodeOK)
	})
}
