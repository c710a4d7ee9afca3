package meta

import (
	"cmp"
	"iter"
	"slices"
)

// Snapshot is the metadata as one version has it. It never changes; a newer one shares with it what did not change. Objects
// given to it are not changed after.
type Snapshot struct {
	Generation Generation
	Version    Version

	kinds [kindCount]*table
	// gone are objects that were deleted after floor: who knows a version from floor on can be told of them.
	gone  *table
	floor Version
	// log leads to what changed last, the newest first, so that telling it costs no look at everything.
	log *change
}

// change is what one version changed. Every change of a version above that of the last one of the chain is in it.
type change struct {
	version Version
	objects []*Object
	before  *change
	weight  int // of the chain from here: one for each change but the one where it ends, and one for each object
}

const (
	// changesMax bounds the weight of the chain of changes; it is cut to about half of that.
	changesMax = 16384
	// goneMax bounds what is kept of deleted objects; the older half goes, and floor rises.
	goneMax = 8192
)

// NewSnapshot makes a snapshot of objects, among them deleted ones (without Spec); deletions up to floor are not among them.
func NewSnapshot(g Generation, v, floor Version, objects []*Object) *Snapshot {
	s := &Snapshot{Generation: g, Version: v, gone: &table{}, floor: floor, log: &change{version: v}}
	sizes := [kindCount]int{}
	for _, o := range objects {
		if i := indexOf(o.Kind); i >= 0 {
			sizes[i]++
		}
	}
	for i := range s.kinds {
		s.kinds[i] = newTable(sizes[i])
	}
	s.put(objects, nil)
	return s
}

// Next is the snapshot of version v, in which objects are changed. It costs as much as they are, not as much as there is.
func (s *Snapshot) Next(v Version, objects []*Object) *Snapshot {
	n := *s
	n.Version = v
	n.log = &change{version: v, objects: slices.Clone(objects), before: s.log, weight: s.log.weight + 1 + len(objects)}
	if n.log.weight > changesMax {
		n.log = n.log.newest(changesMax / 2)
	}
	n.put(objects, &owned{})
	if n.gone.n > goneMax {
		n.forget()
	}
	return &n
}

// newest returns a chain of the newest changes of the one from c, of at most that weight.
func (c *change) newest(weight int) *change {
	floor := c.weight - weight
	var kept []*change
	for ; c.before != nil && c.before.weight >= floor; c = c.before {
		kept = append(kept, c)
	}
	n := &change{version: c.version} // where the chain ends, only the version counts
	for _, k := range slices.Backward(kept) {
		n = &change{version: k.version, objects: k.objects, before: n, weight: n.weight + 1 + len(k.objects)}
	}
	return n
}

// forget drops the older half of what was deleted.
func (s *Snapshot) forget() {
	all := slices.SortedFunc(s.gone.all(), byRevision)
	s.floor = all[len(all)/2].Revision
	s.gone = newTable(len(all) / 2)
	for _, o := range all {
		if o.Revision > s.floor {
			s.gone.put(o)
		}
	}
}

// owned are the shards that a new snapshot has cloned already, and may write to; nil: it owns all.
type owned struct {
	kinds [kindCount]shardSet
	gone  shardSet
}

func (s *Snapshot) put(objects []*Object, own *owned) {
	for _, o := range objects {
		i := indexOf(o.Kind)
		if i < 0 {
			continue // of a kind that is not known here
		}
		if own != nil {
			s.kinds[i] = own.kinds[i].write(s.kinds[i], o.Key)
			s.gone = own.gone.write(s.gone, o.Key)
		}
		if o.Spec == nil {
			s.kinds[i].drop(o.Key)
			s.gone.put(o)
			continue
		}
		s.kinds[i].put(o)
		s.gone.drop(o.Key)
	}
}

// Get returns the object with that key, or nil.
func (s *Snapshot) Get(k Key) *Object {
	i := indexOf(k.Kind)
	if i < 0 {
		return nil
	}
	return s.kinds[i].get(k)
}

// Len is how many objects of a kind there are.
func (s *Snapshot) Len(k Kind) int {
	if i := indexOf(k); i >= 0 {
		return s.kinds[i].n
	}
	return 0
}

// All gives the objects of a kind in no order.
func (s *Snapshot) All(k Kind) iter.Seq[*Object] {
	if i := indexOf(k); i >= 0 {
		return s.kinds[i].all()
	}
	return func(func(*Object) bool) {}
}

// List returns the objects of a kind in the order of their keys.
func (s *Snapshot) List(k Kind) []*Object {
	if i := indexOf(k); i >= 0 {
		return slices.Clone(s.kinds[i].list())
	}
	return nil
}

// Floor is the version up to which deletions are not known any more.
func (s *Snapshot) Floor() Version { return s.floor }

// Since returns what changed after version v, deleted objects among it, in order of revision; ok is false when deletions of
// that time are not known any more: then everything must be told anew. For what changed lately it costs as much as that is.
func (s *Snapshot) Since(v Version) (changed []*Object, ok bool) {
	if v < s.floor {
		return nil, false
	}
	c := s.log
	for ; c.version > v && c.before != nil; c = c.before {
		for _, o := range c.objects {
			if o.Revision > v && s.now(o.Key) == o { // else it changed again
				changed = append(changed, o)
			}
		}
	}
	if c.version > v { // the chain does not reach back so far
		changed = changed[:0]
		for o := range s.everything() {
			if o.Revision > v {
				changed = append(changed, o)
			}
		}
	}
	slices.SortFunc(changed, byRevision)
	return slices.Compact(changed), true
}

// now returns the object with that key also when it was deleted.
func (s *Snapshot) now(k Key) *Object {
	if o := s.Get(k); o != nil {
		return o
	}
	return s.gone.get(k)
}

func (s *Snapshot) everything() iter.Seq[*Object] {
	return func(yield func(*Object) bool) {
		for _, t := range s.kinds {
			for o := range t.all() {
				if !yield(o) {
					return
				}
			}
		}
		for o := range s.gone.all() {
			if !yield(o) {
				return
			}
		}
	}
}

func byRevision(a, b *Object) int {
	return cmp.Or(cmp.Compare(a.Revision, b.Revision), a.Key.Compare(b.Key))
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

// Replication returns the row of a broker group, or nil: it never had a master.
func (s *Snapshot) Replication(brokerGroup string) *Replication {
	return of[Replication](s, KindReplication, "", brokerGroup)
}

// IsMaster says whether a broker is its broker group's master: as the row says, and before there is one, as it is configured.
func (s *Snapshot) IsMaster(broker string) bool {
	b := s.Broker(broker)
	if b == nil {
		return false
	}
	if row := s.Replication(b.BrokerGroup); row != nil {
		return row.Master.Broker == broker
	}
	return !b.Slave
}
