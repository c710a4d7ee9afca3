package meta

import (
	"hash/maphash"
	"iter"
	"maps"
	"slices"
	"sync/atomic"
)

// table holds the objects of one kind. Its shards are cloned one by one when a next snapshot writes to them, since cloning one map of
// 20,000 entries for each change would cost more than a millisecond.
type table struct {
	n      int
	shards [shardCount]map[name]*Object
	// What is derived of a table that is not written to any more, made by the first who wants it.
	sorted  atomic.Pointer[[]*Object]
	related atomic.Pointer[map[name][]*Object]
}

const shardCount = 64

// name is a key within its kind.
type name struct{ namespace, name string }

// seed of which shard a name is in: of this process, as snapshots share shards.
var seed = maphash.MakeSeed()

func shardOf(n string) int { return int(maphash.String(seed, n) % shardCount) }

func newTable(size int) *table {
	t := &table{}
	if size >= 4*shardCount {
		for i := range t.shards {
			t.shards[i] = make(map[name]*Object, size/shardCount)
		}
	}
	return t
}

func (t *table) get(k Key) *Object {
	return t.shards[shardOf(k.Name)][name{k.Namespace, k.Name}]
}

// getPair is get of the name first/second, which it makes on its stack.
func (t *table) getPair(namespace, first, second string) *Object {
	var buf [2*nameBytesMax + 1]byte
	if len(first)+1+len(second) > len(buf) {
		return nil
	}
	b := append(append(append(buf[:0], first...), '/'), second...)
	return t.shards[maphash.Bytes(seed, b)%shardCount][name{namespace, string(b)}]
}

func (t *table) put(o *Object) {
	shard := &t.shards[shardOf(o.Name)]
	if *shard == nil {
		*shard = map[name]*Object{}
	}
	before := len(*shard)
	(*shard)[name{o.Namespace, o.Name}] = o
	t.n += len(*shard) - before
}

func (t *table) drop(k Key) {
	shard := t.shards[shardOf(k.Name)]
	before := len(shard)
	delete(shard, name{k.Namespace, k.Name})
	t.n -= before - len(shard)
}

func (t *table) all() iter.Seq[*Object] {
	return func(yield func(*Object) bool) {
		for _, shard := range t.shards {
			for _, o := range shard {
				if !yield(o) {
					return
				}
			}
		}
	}
}

// list returns all objects in the order of their keys, which nobody changes.
func (t *table) list() []*Object {
	if l := t.sorted.Load(); l != nil {
		return *l
	}
	l := slices.SortedFunc(t.all(), func(a, b *Object) int { return a.Key.Compare(b.Key) })
	t.sorted.Store(&l)
	return l
}

// relate returns the objects by what each is related to, which nobody changes. A table knows one relation only.
func (t *table) relate(to func(o *Object, add func(namespace, name string))) map[name][]*Object {
	if m := t.related.Load(); m != nil {
		return *m
	}
	m := map[name][]*Object{}
	for o := range t.all() {
		to(o, func(ns, n string) { m[name{ns, n}] = append(m[name{ns, n}], o) })
	}
	t.related.Store(&m)
	return m
}

// shardSet says which shards of a table are its writer's own; the zero value: none, and not the table itself.
type shardSet struct {
	shards uint64
	table  bool
}

// write makes the shard of k fit to be written to: it returns t, or a clone.
func (s *shardSet) write(t *table, k Key) *table {
	if !s.table {
		t, s.table = &table{n: t.n, shards: t.shards}, true
	}
	i := shardOf(k.Name)
	if s.shards&(1<<i) == 0 {
		t.shards[i] = maps.Clone(t.shards[i])
		s.shards |= 1 << i
	}
	return t
}

// kindCount is how many kinds there are, indexOf their numbers.
const kindCount = 11

func indexOf(k Kind) int {
	switch k {
	case KindNamespace:
		return 0
	case KindTopic:
		return 1
	case KindApp:
		return 2
	case KindProducer:
		return 3
	case KindConsumer:
		return 4
	case KindRequest:
		return 5
	case KindCredential:
		return 6
	case KindUser:
		return 7
	case KindBrokerGroup:
		return 8
	case KindBroker:
		return 9
	case KindDataCenter:
		return 10
	}
	return -1
}
