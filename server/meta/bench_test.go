package meta_test

import (
	"fmt"
	"net/netip"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/wire"
)

// large is the metadata of a large company: 5,000 topics, 2,000 apps with a credential each, 20,000 subscriptions, 200 users, 40 brokers.
func large() (objects []*meta.Object) {
	add := func(k meta.Kind, name string, spec meta.Spec) {
		key := meta.Key{Kind: k, Name: name}
		if k.Namespaced() {
			key.Namespace = meta.NamespaceDefault
		}
		v := meta.Version(len(objects) + 1)
		objects = append(objects, &meta.Object{Key: key, Revision: v, Created: v, Spec: spec})
	}
	add(meta.KindNamespace, meta.NamespaceDefault, &meta.Namespace{})
	group := func(i int) string { return fmt.Sprintf("group-%02d", i%20) }
	user := func(i int) string { return fmt.Sprintf("user-%03d", i%200) }
	app := func(i int) string { return fmt.Sprintf("app-%04d", i%2000) }
	topic := func(i int) string { return fmt.Sprintf("company.orders.topic-%04d", i%5000) }
	for i := range 20 {
		add(meta.KindBrokerGroup, group(i), &meta.BrokerGroup{DataCenter: fmt.Sprintf("dc%d", i%3)})
		add(meta.KindBroker, group(i)+"-1", &meta.Broker{BrokerGroup: group(i), Addresses: []string{fmt.Sprintf("192.0.2.%d:50088", i)}, DataCenter: fmt.Sprintf("dc%d", i%3), Version: "0.1", Boot: "0123456789abcdef"})
	}
	for i := range 200 {
		add(meta.KindUser, user(i), &meta.User{DisplayName: "A Name", Email: user(i) + "@example.org", Role: meta.RoleUser})
	}
	for i := range 2000 {
		add(meta.KindApp, app(i), &meta.App{Description: "An application of the company", Owners: []string{user(i), user(i + 1)}, Members: []string{user(i + 2), user(i + 3)}, Limit: meta.Limit{MessagesPerSecond: 10000}})
		add(meta.KindCredential, fmt.Sprintf("credential-%04d", i), &meta.Credential{
			OwnerKind: meta.OwnerApp, Namespace: meta.NamespaceDefault, Owner: app(i), Salt: make([]byte, 16), Iterations: 4096, StoredKey: make([]byte, 32), ServerKey: make([]byte, 32), IssuedAt: time.Unix(1e9, 0),
		})
	}
	for i := range 5000 {
		add(meta.KindTopic, topic(i), &meta.Topic{Description: "Events of orders", Owner: app(i), Partitions: 8, BrokerGroups: []string{group(i), group(i + 1), group(i + 2)}, RetentionAge: meta.Duration(168 * time.Hour), Labels: []string{"team=orders"}})
		add(meta.KindProducer, topic(i)+"/"+app(i), &meta.Producer{Timeout: meta.Duration(3 * time.Second)})
		for j := range 3 {
			add(meta.KindConsumer, topic(i)+"/"+app(7*i+j+1), &meta.Consumer{BatchMessages: 10, AckTimeout: meta.Duration(time.Minute), Concurrency: 4})
		}
	}
	return objects
}

// BenchmarkLoad is what a start costs with the rows of a database or a cache in hand: decoding and building the snapshot.
func BenchmarkLoad(b *testing.B) {
	objects := large()
	specs := make([][]byte, len(objects))
	bytes := 0
	for i, o := range objects {
		specs[i], _ = meta.EncodeSpec(o.Spec)
		bytes += len(specs[i])
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var s *meta.Snapshot
	defer cpu(b)()
	for b.Loop() {
		loaded := make([]*meta.Object, len(objects))
		for i, o := range objects {
			spec, err := meta.DecodeSpec(o.Kind, specs[i])
			if err != nil {
				b.Fatal(err)
			}
			loaded[i] = &meta.Object{Key: o.Key, Revision: o.Revision, Created: o.Created, Spec: spec}
		}
		s = meta.NewSnapshot(1, meta.Version(len(loaded)), 0, loaded)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(int64(after.HeapAlloc)-int64(before.HeapAlloc))/(1<<20), "MiB-held")
	b.ReportMetric(float64(len(objects)), "objects")
	b.ReportMetric(float64(bytes)/(1<<20), "MiB-json")
	runtime.KeepAlive(s)
	runtime.KeepAlive(specs)
	runtime.KeepAlive(objects)
}

// cpu adds what the benchmark takes of the CPU, which says more than its time does where other things run too.
func cpu(b *testing.B) func() {
	runtime.LockOSThread()
	used := func() (ns int64) {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return u.Utime.Nano() + u.Stime.Nano()
	}
	start := used()
	return func() {
		b.ReportMetric(float64(used()-start)/float64(b.N), "cpu-ns/op")
		runtime.UnlockOSThread()
	}
}

func largeSnapshot() *meta.Snapshot {
	objects := large()
	return meta.NewSnapshot(1, meta.Version(len(objects)), 0, objects)
}

// BenchmarkNext is what one change of one object costs where it is applied.
func BenchmarkNext(b *testing.B) {
	s := largeSnapshot()
	o := *s.Get(meta.Key{Kind: meta.KindConsumer, Namespace: meta.NamespaceDefault, Name: "company.orders.topic-0007/app-0050"})
	v := s.Version
	b.ReportAllocs()
	defer cpu(b)()
	for b.Loop() {
		v++
		n := o
		n.Revision = v
		s = s.Next(v, []*meta.Object{&n})
	}
}

// BenchmarkSince is what it costs to tell one that is one change behind.
func BenchmarkSince(b *testing.B) {
	s := largeSnapshot()
	o := *s.Get(meta.Key{Kind: meta.KindTopic, Namespace: meta.NamespaceDefault, Name: "company.orders.topic-0007"})
	o.Revision = s.Version + 1
	before := s.Version
	s = s.Next(o.Revision, []*meta.Object{&o})
	b.ReportAllocs()
	defer cpu(b)()
	for b.Loop() {
		if changed, ok := s.Since(before); !ok || len(changed) != 1 {
			b.Fatal(changed, ok)
		}
	}
}

// BenchmarkPlan is what planning one change of one subscription costs.
func BenchmarkPlan(b *testing.B) {
	s := largeSnapshot()
	k := meta.Key{Kind: meta.KindConsumer, Namespace: meta.NamespaceDefault, Name: "company.orders.topic-0007/app-0050"}
	c := meta.Change{By: meta.Actor{Name: "user u"}, Writes: []meta.Write{{Key: k, Spec: &meta.Consumer{Concurrency: 9}, Expect: meta.Expect{Any: true}}}}
	b.ReportAllocs()
	defer cpu(b)()
	for b.Loop() {
		if _, changed, _, _, err := s.Plan(c, time.Unix(0, 0)); err != nil || len(changed) != 1 {
			b.Fatal(changed, err)
		}
	}
}

func rightsSubjects() (producer, consumer meta.Subject) {
	addr := netip.MustParseAddr("192.0.2.1")
	producer = meta.Subject{Principal: wire.Principal{Kind: wire.PrincipalApp, Name: "app-0007", Namespace: meta.NamespaceDefault, Credential: "credential-0007"}, Addr: addr}
	consumer = meta.Subject{Principal: wire.Principal{Kind: wire.PrincipalApp, Name: "app-0050", Namespace: meta.NamespaceDefault, Credential: "credential-0050"}, Addr: addr}
	return producer, consumer
}

func BenchmarkMayProduce(b *testing.B) {
	s := largeSnapshot()
	who, _ := rightsSubjects()
	b.ReportAllocs()
	defer cpu(b)()
	for b.Loop() {
		if _, err := s.MayProduce(who, "company.orders.topic-0007", "group-07"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkMayConsume(b *testing.B) {
	s := largeSnapshot()
	_, who := rightsSubjects()
	b.ReportAllocs()
	defer cpu(b)()
	for b.Loop() {
		if _, err := s.MayConsume(who, "company.orders.topic-0007", "app-0050.eu", "group-07"); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPlanDelete is what planning the deletion of a user costs, which looks at all that might name it: he is, and it is refused.
func BenchmarkPlanDelete(b *testing.B) {
	s := largeSnapshot()
	c := meta.Change{By: meta.Actor{Name: "user u"}, Writes: []meta.Write{{Key: meta.Key{Kind: meta.KindUser, Name: "user-007"}, Expect: meta.Expect{Any: true}}}}
	defer cpu(b)()
	for b.Loop() {
		if _, changed, _, _, err := s.Plan(c, time.Unix(0, 0)); wire.CodeOf(err) != wire.CodeInUse {
			b.Fatal(changed, err)
		}
	}
}
