package meta

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func appKey(i int) Key { return Key{KindApp, NamespaceDefault, fmt.Sprint("app-", i)} }

// contents is all that a snapshot says, to compare by.
func contents(s *Snapshot) map[Key]*Object {
	m := map[Key]*Object{}
	for o := range s.everything() {
		m[o.Key] = o
	}
	return m
}

// TestSnapshots draws changes, applies them to snapshots and to plain maps, and compares: what is there, in which order, and that whoever stands
// at any earlier version comes to the same by Since and Next. Older snapshots, and branches of them, stay as they were.
func TestSnapshots(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kinds := []Kind{KindApp, KindTopic, KindUser, KindProducer}
		names := []string{"a", "b", "c", "d", "a/b", "a/c", "b/a", "x.y"}
		namespaces := []string{NamespaceDefault, "tenant", ""}
		s := NewSnapshot(3, 1, 1, nil)
		model := map[Key]*Object{}
		history := []*Snapshot{s}
		models := []map[Key]*Object{{}}
		for range rapid.IntRange(1, 40).Draw(t, "changes") {
			v := s.Version + Version(rapid.IntRange(1, 3).Draw(t, "step"))
			var objects []*Object
			used := map[Key]bool{}
			for range rapid.IntRange(1, 4).Draw(t, "objects") {
				o := &Object{Key: Key{rapid.SampledFrom(kinds).Draw(t, "kind"), rapid.SampledFrom(namespaces).Draw(t, "namespace"), rapid.SampledFrom(names).Draw(t, "name")}, Revision: s.Version + Version(rapid.IntRange(1, int(v-s.Version)).Draw(t, "revision"))}
				if used[o.Key] {
					continue
				}
				used[o.Key] = true
				if rapid.IntRange(0, 3).Draw(t, "delete") > 0 {
					o.Spec = NewSpec(o.Kind)
				}
				objects = append(objects, o)
				model[o.Key] = o
			}
			if rapid.Bool().Draw(t, "branch") { // as a dry run does
				s.Next(v, []*Object{{Key: appKey(1), Revision: v, Spec: &App{}}, {Key: Key{KindTopic, "", "a"}, Revision: v}})
			}
			s = s.Next(v, objects)
			clear(objects) // the slice is the caller's
			history = append(history, s)
			models = append(models, maps.Clone(model))
		}
		for i, h := range history {
			if got := contents(h); !maps.Equal(got, models[i]) {
				t.Fatalf("snapshot of version %d holds %v, want %v", h.Version, got, models[i])
			}
			for key, o := range models[i] {
				if got := h.Get(key); (o.Spec == nil && got != nil) || (o.Spec != nil && got != o) {
					t.Fatalf("%s at version %d is %v, want %v", key, h.Version, got, o)
				}
			}
			for _, kind := range kinds {
				list := h.List(kind)
				if len(list) != h.Len(kind) || !slices.IsSortedFunc(list, func(a, b *Object) int { return a.Key.Compare(b.Key) }) {
					t.Fatalf("%d objects of kind %s, listed are %d", h.Len(kind), kind, len(list))
				}
			}
			changed, ok := s.Since(h.Version)
			if !ok || !slices.IsSortedFunc(changed, byRevision) {
				t.Fatalf("since version %d: %v, %v", h.Version, changed, ok)
			}
			if got := contents(h.Next(s.Version, changed)); !maps.Equal(got, model) {
				t.Fatalf("version %d and what came since hold %v, want %v", h.Version, got, model)
			}
			for _, o := range changed {
				if o.Revision <= h.Version {
					t.Fatalf("since version %d: %s of revision %d", h.Version, o.Key, o.Revision)
				}
			}
		}
		for v := Version(1); v <= s.Version; v++ {
			changed, ok := s.Since(v)
			want := 0
			for _, o := range model {
				if o.Revision > v {
					want++
				}
			}
			if !ok || len(changed) != want || (want > 0 && changed[0].Revision <= v) {
				t.Fatalf("since version %d: %v, %v; want %d", v, changed, ok, want)
			}
		}
		// One that was made at once says the same as one that grew.
		all := slices.Collect(maps.Values(model))
		whole := NewSnapshot(3, s.Version, 1, all)
		for _, h := range history {
			a, _ := s.Since(h.Version)
			b, ok := whole.Since(h.Version)
			if !ok || !slices.Equal(a, b) {
				t.Fatalf("since version %d: %v, of one made at once %v", h.Version, a, b)
			}
		}
	})
}

// TestSnapshotBounds: after many more changes and deletions than are kept, Since still tells the truth, or that it cannot.
func TestSnapshotBounds(t *testing.T) {
	s := NewSnapshot(1, 1, 0, nil)
	put := func(i int, spec Spec) {
		s = s.Next(s.Version+1, []*Object{{Key: appKey(i), Revision: s.Version + 1, Spec: spec}})
	}
	for i := range goneMax + 10 {
		put(i, &App{})
	}
	early := s.Version
	for i := range goneMax {
		put(i, nil)
	}
	late := s.Version
	if s.Len(KindApp) != 10 || s.gone.n != goneMax || s.floor != 0 {
		t.Fatalf("%d apps, %d gone, floor %d", s.Len(KindApp), s.gone.n, s.floor)
	}
	if changed, ok := s.Since(early); !ok || len(changed) != goneMax {
		t.Fatalf("since version %d: %d, %v", early, len(changed), ok)
	}
	if changed, ok := s.Since(0); !ok || len(changed) != goneMax+10 {
		t.Fatalf("since the beginning: %d, %v", len(changed), ok)
	}
	put(goneMax, nil)
	if s.gone.n > goneMax/2+1 || s.floor <= early {
		t.Fatalf("%d gone, floor %d", s.gone.n, s.floor)
	}
	if _, ok := s.Since(early); ok {
		t.Fatal("deletions that are forgotten are told")
	}
	if changed, ok := s.Since(late); !ok || len(changed) != 1 || changed[0].Key != appKey(goneMax) {
		t.Fatalf("since version %d: %v, %v", late, changed, ok)
	}
	weight := 0
	for c := s.log; c.before != nil; c = c.before {
		weight += 1 + len(c.objects)
	}
	if weight != s.log.weight || weight > changesMax || weight < changesMax/4 {
		t.Fatalf("changes of weight %d are kept, as they say %d", weight, s.log.weight)
	}
	// One change of more than is kept.
	var many []*Object
	for i := range changesMax + 1 {
		many = append(many, &Object{Key: appKey(i), Revision: s.Version + 1, Spec: &App{}})
	}
	before := s
	s = s.Next(s.Version+1, many)
	if changed, ok := s.Since(before.Version); !ok || len(changed) != len(many) || s.log.weight > changesMax {
		t.Fatalf("since version %d: %d, %v", before.Version, len(changed), ok)
	}
}

// TestTable draws puts and drops with names that lie close to each other, and compares with a map.
func TestTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tab := newTable(rapid.IntRange(0, 1000).Draw(t, "size"))
		model := map[Key]*Object{}
		for range rapid.IntRange(0, 600).Draw(t, "steps") {
			o := &Object{Key: appKey(rapid.IntRange(0, 300).Draw(t, "name"))}
			if rapid.IntRange(0, 2).Draw(t, "drop") == 0 {
				tab.drop(o.Key)
				delete(model, o.Key)
			} else {
				tab.put(o)
				model[o.Key] = o
			}
		}
		for i := range 301 {
			if got, want := tab.get(appKey(i)), model[appKey(i)]; got != want {
				t.Fatalf("%s: %v, want %v", appKey(i), got, want)
			}
		}
		got := map[Key]*Object{}
		for o := range tab.all() {
			got[o.Key] = o
		}
		if !reflect.DeepEqual(got, model) || tab.n != len(model) {
			t.Fatalf("%d objects of %d, want %d", len(got), tab.n, len(model))
		}
	})
}
