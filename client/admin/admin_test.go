package admin_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/client/admin"
	"github.com/jmqio/jmq/server"
	"github.com/jmqio/jmq/server/servertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T) (context.Context, *admin.Admin) {
	s := servertest.Start(t, func(c *server.Config) { c.Roles = server.Roles })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	c, err := client.Dial(ctx, s.Address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.Background()) })
	return ctx, admin.New(c)
}

func app(name string) admin.Key { return admin.Key{Kind: "app", Namespace: "default", Name: name} }

// Of two changes of one revision one is a conflict, and whoever edits sees the other's change.
func TestConflict(t *testing.T) {
	ctx, a := start(t)
	made, err := a.Apply(ctx, admin.Change{Writes: []admin.Write{{Key: app("shop"), Spec: json.RawMessage(`{}`), Expect: admin.Absent}}})
	if err != nil || made.Changes[0].Change != "created" || made.Changes[0].Before != nil {
		t.Fatalf("create: %+v, %v", made, err)
	}
	write := func(text string, e admin.Expect) error {
		_, err := a.Apply(ctx, admin.Change{Writes: []admin.Write{{Key: app("shop"), Spec: json.RawMessage(text), Expect: e}}})
		return err
	}
	if err := write(`{}`, admin.Absent); !errors.Is(err, client.ErrExists) {
		t.Errorf("create again: %v", err)
	}
	was := admin.Revision(made.Changes[0].After.Revision)
	if err := write(`{"description":"first"}`, was); err != nil {
		t.Fatal(err)
	}
	if err := write(`{"description":"second"}`, was); !errors.Is(err, client.ErrConflict) {
		t.Errorf("of an old revision: %v", err)
	}
	o, err := a.Get(ctx, app("shop"))
	if err != nil || string(o.Spec) != `{"description":"first"}` {
		t.Fatalf("get: %+v, %v", o, err)
	}
	// Many who each add one to a number: none is lost.
	const editors, edits = 4, 10
	var editing sync.WaitGroup
	for range editors {
		editing.Go(func() {
			for range edits {
				_, err := a.Edit(ctx, app("shop"), "one more", func(spec map[string]any) error {
					limit, _ := spec["limit"].(map[string]any)
					n := json.Number("0")
					if limit != nil {
						n = limit["connections"].(json.Number)
					}
					k, err := n.Int64()
					spec["limit"] = map[string]any{"connections": k + 1}
					return err
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	editing.Wait()
	if o, err := a.Get(ctx, app("shop")); err != nil || string(o.Spec) != fmt.Sprintf(`{"description":"first","limit":{"connections":%d}}`, editors*edits) {
		t.Errorf("after all edits: %s, %v", o.Spec, err)
	}
	entries, err := a.Audit(ctx, admin.AuditQuery{Key: app("shop"), Most: 1000})
	if err != nil || len(entries) != 2+editors*edits || entries[0].Reason != "one more" || entries[len(entries)-1].Change != "created" {
		t.Errorf("%d audit entries, %v", len(entries), err)
	}
	if _, err := a.Get(ctx, app("sho")); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("a name that others begin with: %v", err)
	}
}

// What a page does not hold comes with the next; a dry run changes nothing.
func TestList(t *testing.T) {
	ctx, a := start(t)
	const n = 1500
	for from := 0; from < n; from += 500 {
		var c admin.Change
		for i := range 500 {
			c.Writes = append(c.Writes, admin.Write{Key: app(fmt.Sprintf("app-%05d", from+i)), Spec: json.RawMessage(`{}`), Expect: admin.Absent})
		}
		c.DryRun = true
		if _, err := a.Apply(ctx, c); err != nil {
			t.Fatal(err)
		}
		c.DryRun = false
		if _, err := a.Apply(ctx, c); err != nil {
			t.Fatal(err)
		}
	}
	all, err := a.List(ctx, admin.Query{Kind: "app"})
	if err != nil || len(all) != n {
		t.Fatalf("%d apps, %v", len(all), err)
	}
	for i, o := range all {
		if o.Name != fmt.Sprintf("app-%05d", i) {
			t.Fatalf("app %d is %s", i, o.Name)
		}
	}
	if some, err := a.List(ctx, admin.Query{Kind: "app", Prefix: "app-0149"}); err != nil || len(some) != 10 {
		t.Errorf("%d of a prefix, %v", len(some), err)
	}
	if _, err := a.List(ctx, admin.Query{Kind: "nothing"}); !errors.Is(err, client.ErrInvalid) {
		t.Errorf("a kind that is none: %v", err)
	}
	nodes, err := a.Nodes(ctx)
	if err != nil || len(nodes.Nodes) != 1 || nodes.Nodes[0].BrokerGroup != "default" || nodes.Database != "ok" || nodes.Version == 0 {
		t.Errorf("nodes: %+v, %v", nodes, err)
	}
	if me, err := a.WhoAmI(ctx); err != nil || me.Kind != "local" || me.Node != "broker" {
		t.Errorf("who: %+v, %v", me, err)
	}
}
