package meta_test

import (
	"errors"
	"testing"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/server/meta/metatest"
	"github.com/jmqio/jmq/wire"
)

// TestMemory holds the store in memory to the contract.
func TestMemory(t *testing.T) {
	metatest.Run(t, func(*testing.T) metatest.Place {
		m := meta.NewMemory(nil)
		return metatest.Place{Open: func(*testing.T) meta.Store { return m.Another() }}
	})
}

// TestMemoryFails: while its database is away a store keeps its view and changes nothing, and another one goes on; after it, it has what came meanwhile.
func TestMemoryFails(t *testing.T) {
	a := meta.NewMemory(nil)
	b := a.Another()
	a.Fail(errors.New("unplugged"))
	c := meta.Change{Writes: []meta.Write{{Key: meta.Key{Kind: meta.KindUser, Name: "u"}, Spec: &meta.User{Role: meta.RoleViewer}, Expect: meta.Expect{Create: true}}}}
	if _, err := a.Update(t.Context(), c); wire.CodeOf(err) != wire.CodeMetadataAway || a.Health() == nil {
		t.Fatalf("update: %v, health %v", err, a.Health())
	}
	if _, err := a.Beat(t.Context(), nil); wire.CodeOf(err) != wire.CodeMetadataAway {
		t.Fatal(err)
	}
	want, err := b.Update(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	old := a.View()
	if old.Version >= want.Version {
		t.Fatalf("version %d is seen although the database is away", old.Version)
	}
	a.Fail(nil)
	if n, err := a.Watch(t.Context(), old); err != nil || n.Version != want.Version || a.Health() != nil {
		t.Fatalf("after the outage: %+v, %v, health %v", n, err, a.Health())
	}
}
