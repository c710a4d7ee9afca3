package meta

import (
	"hash/maphash"
	"iter"
	"math/bits"
	"slices"
	"strings"
	"sync/atomic"
)

// table holds the objects of one kind. Its shards are cloned one by one when a next snapshot writes to them: cloning one map of 20,000 entries
// for each change costs more than a millisecond. A shard is a hash table with open addressing and not a Go map, since a right is looked up for
// each request that is not in a cache: so the hash of a topic's name is computed once for the topic and its subscriptions, and TOPIC/APP is found without
// making that string.
type table struct {
	n      int
	shards [shardCount]shard
	// What is derived of a table that is not written to any more, made by the first who wants it.
	sorted  atomic.Pointer[[]*Object]
	related atomic.Pointer[map[name][]*Object]
}

const shardCount = 64

// shard has 2^k slots, of which at most 3/4 are used; the object of a slot lies at or behind where its hash wants it, with no empty slot between.
type shard struct {
	slots []slot
	n     int
}

type slot struct {
	hash uint64
	o    *Object // nil: empty
}

// name is a key within its kind.
type name struct{ namespace, name string }

// seed of hashes: of this process, as snapshots share shards.
var (
	seed        = maphash.MakeSeed()
	hashDefault = hashString(NamespaceDefault)
	hashNone    = hashString("")
)

func hashString(s string) uint64 { return maphash.String(seed, s) }

func hashNamespace(s string) uint64 {
	switch s {
	case NamespaceDefault:
		return hashDefault
	case "":
		return hashNone
	}
	return hashString(s)
}

// mix joins two hashes, as wyhash does.
func mix(a, b uint64) uint64 {
	high, low := bits.Mul64(a^0x9e3779b97f4a7c15, b^0xd1b54a32d192ed03)
	return high ^ low
}

// hashOf is the hash of a name; that of TOPIC/APP is joined from those of its parts.
func hashOf(namespace, name string) uint64 {
	if i := strings.IndexByte(name, '/'); i >= 0 {
		return mix(mix(hashNamespace(namespace), hashString(name[:i])), hashString(name[i+1:]))
	}
	return mix(hashNamespace(namespace), hashString(name))
}

func newTable(size int) *table {
	t := &table{}
	if size >= 4*shardCount {
		for i := range t.shards {
			t.shards[i].slots = make([]slot, 1<<bits.Len(uint(size/shardCount*4/3)))
		}
	}
	return t
}

func (t *table) get(k Key) *Object { return t.getHashed(hashOf(k.Namespace, k.Name), k) }

// getHashed is get with the hash of the name in hand.
func (t *table) getHashed(h uint64, k Key) *Object {
	s := &t.shards[h%shardCount]
	for i := h / shardCount; len(s.slots) > 0; i++ {
		e := &s.slots[i&uint64(len(s.slots)-1)]
		if e.o == nil {
			return nil
		}
		if e.hash == h && e.o.Key == k {
			return e.o
		}
	}
	return nil
}

// getPair is get of the name first/second; firstHash is mix(hash of the namespace, hash of first).
func (t *table) getPair(firstHash uint64, namespace, first, second string) *Object {
	h := mix(firstHash, hashString(second))
	s := &t.shards[h%shardCount]
	for i := h / shardCount; len(s.slots) > 0; i++ {
		e := &s.slots[i&uint64(len(s.slots)-1)]
		if e.o == nil {
			return nil
		}
		if n := len(first); e.hash == h && len(e.o.Name) == n+1+len(second) && e.o.Name[n] == '/' && e.o.Name[:n] == first && e.o.Name[n+1:] == second && e.o.Namespace == namespace {
			return e.o
		}
	}
	return nil
}

func (t *table) put(o *Object) {
	h := hashOf(o.Namespace, o.Name)
	s := &t.shards[h%shardCount]
	if (s.n+1)*4 > len(s.slots)*3 {
		old := s.slots
		s.slots = make([]slot, max(4, 2*len(old)))
		for _, e := range old {
			if e.o != nil {
				s.place(e)
			}
		}
	}
	if s.place(slot{h, o}) {
		s.n++
		t.n++
	}
}

// place puts e where it belongs, in place of one with its key; it says whether there was none.
func (s *shard) place(e slot) bool {
	for i := e.hash / shardCount; ; i++ {
		at := &s.slots[i&uint64(len(s.slots)-1)]
		if at.o == nil {
			*at = e
			return true
		}
		if at.hash == e.hash && at.o.Key == e.o.Key {
			*at = e
			return false
		}
	}
}

func (t *table) drop(k Key) {
	h := hashOf(k.Namespace, k.Name)
	s := &t.shards[h%shardCount]
	if s.n == 0 {
		return
	}
	mask := uint64(len(s.slots) - 1)
	i := h / shardCount & mask
	for ; s.slots[i].o == nil || s.slots[i].hash != h || s.slots[i].o.Key != k; i = (i + 1) & mask {
		if s.slots[i].o == nil {
			return
		}
	}
	s.n--
	t.n--
	// What follows without an empty slot between moves up, unless it is where it wants to be.
	for j := (i + 1) & mask; s.slots[j].o != nil; j = (j + 1) & mask {
		want := s.slots[j].hash / shardCount & mask
		if (j-want)&mask >= (j-i)&mask {
			s.slots[i] = s.slots[j]
			i = j
		}
	}
	s.slots[i] = slot{}
}

func (t *table) all() iter.Seq[*Object] {
	return func(yield func(*Object) bool) {
		for i := range t.shards {
			for _, e := range t.shards[i].slots {
				if e.o != nil && !yield(e.o) {
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
	i := hashOf(k.Namespace, k.Name) % shardCount
	if s.shards&(1<<i) == 0 {
		t.shards[i].slots = slices.Clone(t.shards[i].slots)
		s.shards |= 1 << i
	}
	return t
}

// kindCount is how many kinds there are, indexOf their numbers.
const (
	kindCount = 12

	indexTopic      = 1
	indexApp        = 2
	indexProducer   = 3
	indexConsumer   = 4
	indexCredential = 6
	indexUser       = 7
)

func indexOf(k Kind) int {
	switch k {
	case KindNamespace:
		return 0
	case KindTopic:
		return indexTopic
	case KindApp:
		return indexApp
	case KindProducer:
		return indexProducer
	case KindConsumer:
		return indexConsumer
	case KindRequest:
		return 5
	case KindCredential:
		return indexCredential
	case KindUser:
		return indexUser
	case KindBrokerGroup:
		return 8
	case KindBroker:
		return 9
	case KindDataCenter:
		return 10
	case KindReplication:
		return 11
	}
	return -1
}
