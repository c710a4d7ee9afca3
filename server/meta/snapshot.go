package meta

import (
	"iter"
	"maps"
	"slices"
)

// Snapshot is the metadata as one version has it. It never changes; a newer one shares with it what did not change.
type Snapshot struct {
	Generation Generation
	Version    Version

	kinds map[Kind]map[Key]*Object
	// gone are objects that were deleted after floor: who knows a version from floor on can be told of them.
	gone  map[Key]*Object
	floor Version
}

// NewSnapshot makes a snapshot of objects, among them deleted ones (without Spec); deletions up to floor are not among them.
func NewSnapshot(g Generation, v, floor Version, objects []*Object) *Snapshot {
	s := &Snapshot{Generation: g, Version: v, kinds: map[Kind]map[Key]*Object{}, gone: map[Key]*Object{}, floor: floor}
	s.put(objects)
	return s
}

// Next is the snapshot of version v, in which objects are changed.
func (s *Snapshot) Next(v Version, objects []*Object) *Snapshot {
	n := &Snapshot{Generation: s.Generation, Version: v, kinds: maps.Clone(s.kinds), gone: maps.Clone(s.gone), floor: s.floor}
	cloned := map[Kind]bool{}
	for _, o := range objects {
		if !cloned[o.Kind] {
			n.kinds[o.Kind], cloned[o.Kind] = maps.Clone(n.kinds[o.Kind]), true
		}
	}
	n.put(objects)
	return n
}

func (s *Snapshot) put(objects []*Object) {
	for _, o := range objects {
		if o.Spec == nil {
			delete(s.kinds[o.Kind], o.Key)
			s.gone[o.Key] = o
			continue
		}
		if s.kinds[o.Kind] == nil {
			s.kinds[o.Kind] = map[Key]*Object{}
		}
		s.kinds[o.Kind][o.Key] = o
		delete(s.gone, o.Key)
	}
}

// Get returns the object with that key, or nil.
func (s *Snapshot) Get(k Key) *Object { return s.kinds[k.Kind][k] }

// Len is how many objects of a kind there are.
func (s *Snapshot) Len(k Kind) int { return len(s.kinds[k]) }

// All gives the objects of a kind in no order.
func (s *Snapshot) All(k Kind) iter.Seq[*Object] { return maps.Values(s.kinds[k]) }

// List returns the objects of a kind in the order of their keys.
func (s *Snapshot) List(k Kind) []*Object {
	return slices.SortedFunc(s.All(k), func(a, b *Object) int { return a.Key.Compare(b.Key) })
}

// Since returns what changed after version v, deleted objects among it, in order of revision; ok is false when deletions of
// that time are not known any more: then everything must be told anew.
func (s *Snapshot) Since(v Version) (changed []*Object, ok bool) {
	if v < s.floor {
		return nil, false
	}
	for _, kind := range s.kinds {
		for _, o := range kind {
			if o.Revision > v {
				changed = append(changed, o)
			}
		}
	}
	for _, o := range s.gone {
		if o.Revision > v {
			changed = append(changed, o)
		}
	}
	slices.SortFunc(changed, byRevision)
	return changed, true
}

func byRevision(a, b *Object) int {
	if a.Revision != b.Revision {
		return int(int64(a.Revision) - int64(b.Revision))
	}
	return a.Key.Compare(b.Key)
}

// of returns the spec of the object with that key, or nil.
func of[S any](s *Snapshot, k Kind, namespace, name string) *S {
	o := s.Get(Key{k, namespace, name})
	if o == nil {
		return nil
	}
	spec, _ := o.Spec.(any).(*S)
	return spec
}

// Topic returns a topic's spec, or nil; the methods below likewise.
func (s *Snapshot) Topic(namespace, name string) *Topic {
	return of[Topic](s, KindTopic, namespace, name)
}

// App returns an app's spec, or nil.
func (s *Snapshot) App(namespace, name string) *App { return of[App](s, KindApp, namespace, name) }

// Namespace returns a namespace's spec, or nil.
func (s *Snapshot) Namespace(name string) *Namespace {
	return of[Namespace](s, KindNamespace, "", name)
}

// User returns a user's spec, or nil.
func (s *Snapshot) User(name string) *User { return of[User](s, KindUser, "", name) }

// Credential returns a credential's spec, or nil.
func (s *Snapshot) Credential(id string) *Credential {
	return of[Credential](s, KindCredential, "", id)
}

// BrokerGroup returns a broker group's spec, or nil.
func (s *Snapshot) BrokerGroup(name string) *BrokerGroup {
	return of[BrokerGroup](s, KindBrokerGroup, "", name)
}

// Broker returns a broker's spec, or nil.
func (s *Snapshot) Broker(name string) *Broker { return of[Broker](s, KindBroker, "", name) }
