package broker

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/journal/journaltest"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/replica"
	"github.com/jmqio/jmq/server/side"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/server/store/local"
	"github.com/jmqio/jmq/wire"
)

var seedFlag = flag.Uint64("seed", 0, "seed of the random tests of slaves; 0 draws one")

func seeded(t testing.TB) *rand.Rand {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// following is a store as a slave's broker has it: nothing is appended, and it has a tail that is not committed.
type following struct {
	*local.Store
	t    testing.TB
	tail []journal.Record
}

func (f *following) refuse() error {
	f.t.Error("a slave's store was asked to write")
	return replica.ErrNotMaster
}

func (f *following) AppendBatch(store.Partition, []byte, func(index.Index, int64, error)) error {
	return f.refuse()
}
func (f *following) QueueBatch(store.Partition, []byte, func(index.Index, int64, error)) error {
	return f.refuse()
}
func (f *following) AppendRecord(journal.Kind, []byte, func(error)) error { return f.refuse() }
func (f *following) CreateTopic(context.Context, store.Topic, string) (store.Topic, error) {
	return store.Topic{}, f.refuse()
}
func (f *following) AlterTopic(context.Context, store.TopicID, uint32, store.Change) (store.Topic, error) {
	return store.Topic{}, f.refuse()
}
func (f *following) DeleteTopic(context.Context, store.TopicID, uint32, string, string) error {
	return f.refuse()
}
func (f *following) Kick() { f.t.Error("a slave's store was asked for a commit") }

func (f *following) Tail(each func(journal.Record) error) error {
	for _, r := range f.tail {
		if err := each(r); err != nil {
			return err
		}
	}
	return nil
}

const sideDir = "/data"

func openSide(t testing.TB, fs vfs.FS) *side.File {
	t.Helper()
	if err := fs.MkdirAll(sideDir, 0o755); err != nil {
		t.Fatal(err)
	}
	root, err := fs.OpenDir("/")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(root.Sync(), root.Close()); err != nil {
		t.Fatal(err)
	}
	f, err := side.Open(side.Options{FS: fs, Dir: sideDir})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// slaveOn opens a slave's broker on a disk: that of its master at some moment, or its own at a later one.
func slaveOn(t testing.TB, disk *vfs.MemFS, tail ...journal.Record) *world {
	w := &world{t: t, fs: journaltest.New(disk)}
	w.o = Options{BrokerGroup: "here", Broker: "slave", Slave: true, Masters: func() []string { return []string{"master:1"} }, Side: openSide(t, w.fs)}
	w.wrap = func(s store.Store) store.Store { return &following{s.(*local.Store), t, tail} }
	w.open()
	return w
}

// copyOf returns the disk of a master whose log is all committed.
func copyOf(w *world) *vfs.MemFS {
	return w.fs.Crash(100, rand.New(rand.NewPCG(1, 1)))
}

func newMaster(t testing.TB) *world {
	return newWorld(t, Options{BrokerGroup: "here", Broker: "master"})
}

func (w *world) serve(behind bool) {
	w.t.Helper()
	if err := w.broker.Serve(Serving{Behind: behind, Why: "a test"}); err != nil {
		w.t.Fatal(err)
	}
}

// ship stops serving and ships what there is to a master.
func (w *world) ship(to *world) *wire.MergeSideResponse {
	w.t.Helper()
	leases := w.broker.StopServing()
	r, err := w.broker.ShipSide(context.Background(), to.broker, to.store.Epoch(), leases)
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

func (w *world) produceMany(topic string, partition uint16, n int) {
	w.t.Helper()
	for range n {
		if _, err := w.produce(topic, partition, batch(w.t, 1, 10)); err != nil {
			w.t.Fatal(err)
		}
	}
}

// mustFetch fetches up to max messages of "orders" as group "pay".
func (w *world) mustFetch(client string, max uint32) fetched {
	w.t.Helper()
	f := w.fetch(client, wire.FetchRequest{Topic: "orders", Group: "pay", MessagesMax: max})
	if f.err != nil {
		w.t.Fatal(f.err)
	}
	if err := f.check(); err != nil {
		w.t.Fatal(err)
	}
	return f
}

func ackOf(f fetched, from, to uint64, outcome wire.Outcome) wire.AckRequest {
	return wire.AckRequest{Topic: "orders", Group: "pay", Items: []wire.AckRange{{Partition: f.Partition, Lease: f.Lease, From: from, To: to, Outcome: outcome}}}
}

func (w *world) mustAck(client string, f fetched, from, to uint64) {
	w.t.Helper()
	if a := <-w.startAck(client, ackOf(f, from, to, wire.Acked)); a.err != nil || a.codes[0] != wire.CodeOK {
		w.t.Fatalf("ack of [%d,%d): %v %v", from, to, a.codes, a.err)
	}
}

// progress is where group "pay" stands in a partition of "orders", by a table.
func (w *world) progress(table *offset.Table, partition uint16) string {
	w.t.Helper()
	t, ok := w.store.Topic(0, "orders")
	if !ok {
		w.t.Fatal("no topic")
	}
	g, _ := table.Group(0, "pay")
	p, generation, ok := table.Progress(g, topicKey(&t), partition)
	if !ok {
		w.t.Fatal("no group")
	}
	return fmt.Sprintf("%v generation %d", p, generation)
}

func (w *world) wantProgress(partition uint16, want string) {
	w.t.Helper()
	if got := w.progress(w.offsets, partition); got != want {
		w.t.Errorf("partition %d: %s, want %s", partition, got, want)
	}
}

// reopen closes and opens a master: the table is what the journal says.
func (w *world) reopen() {
	w.t.Helper()
	w.close()
	w.open()
}

// TestSlaveRefuses asks a slave for everything, before it serves and while it does: what only a master does is refused, with the master's
// address, and nothing is written to the store.
func TestSlaveRefuses(t *testing.T) {
	m := newMaster(t)
	defer m.close()
	m.topic("orders", 1)
	m.subscribe("orders", "pay", wire.StartBeginning)
	m.produceMany("orders", 0, 4)
	s := slaveOn(t, copyOf(m))
	defer s.close()
	b, ctx, age := s.broker, as("a"), int64(1000)
	requests := []struct {
		name   string
		serves bool
		do     func() error
	}{
		{"fetch", true, func() error {
			f := s.fetch("a", wire.FetchRequest{Topic: "orders", Group: "pay", MessagesMax: 1})
			if f.err == nil && f.Lease>>63 != 1 {
				t.Errorf("lease %x", f.Lease)
			}
			return f.err
		}},
		{"ack", true, func() error {
			return (<-s.startAck("a", wire.AckRequest{Topic: "orders", Group: "pay", Items: []wire.AckRange{{Lease: 1, From: 0, To: 1, Outcome: wire.Acked}}})).err
		}},
		{"ack, beyond what it has heard of", true, func() error { // of a lease that the master gave
			a := <-s.startAck("a", wire.AckRequest{Topic: "orders", Group: "pay", Items: []wire.AckRange{{Lease: 1, From: 3, To: 5, Outcome: wire.Acked}}})
			if a.err == nil && a.codes[0] != wire.CodeLeaseUnknown {
				t.Errorf("an ack of what the slave does not have yet is answered %v", a.codes[0])
			}
			return a.err
		}},
		{"ack, of a group that it has not heard of", false, func() error {
			return (<-s.startAck("a", wire.AckRequest{Topic: "orders", Group: "new", Items: []wire.AckRange{{Lease: 1, From: 0, To: 1, Outcome: wire.Acked}}})).err
		}},
		{"fetch, of a topic that it has not heard of", false, func() error {
			return s.fetch("a", wire.FetchRequest{Topic: "new", Group: "pay", MessagesMax: 1}).err
		}},
		{"extend", true, func() error {
			_, err := b.Extend(ctx, &wire.ExtendRequest{Topic: "orders", Group: "pay", Leases: []*wire.LeaseName{{Lease: 1}}})
			return err
		}},
		{"subscribe, known", true, func() error {
			_, err := b.Subscribe(ctx, &wire.SubscribeRequest{Topic: "orders", Group: "pay"})
			return err
		}},
		{"subscribe, known, another policy", true, func() error {
			_, err := b.Subscribe(ctx, &wire.SubscribeRequest{Topic: "orders", Group: "pay", Policy: &wire.GroupPolicy{Parallel: true}})
			return err
		}},
		{"route", true, func() error { _, err := b.Route(ctx, &wire.RouteRequest{Topic: "orders"}); return err }},
		{"peek", true, func() error { _, err := b.Peek(ctx, &wire.PeekRequest{Topic: "orders"}); return err }},
		{"describe", true, func() error { _, err := b.DescribeTopic(ctx, &wire.DescribeTopicRequest{Topic: "orders"}); return err }},
		{"lag", true, func() error { _, err := b.GroupLag(ctx, &wire.GroupLagRequest{Topic: "orders"}); return err }},
		{"subscribe, new", false, func() error {
			_, err := b.Subscribe(ctx, &wire.SubscribeRequest{Topic: "orders", Group: "new"})
			return err
		}},
		{"produce", false, func() error { _, err := s.produce("orders", 0, batch(t, 1, 1)); return err }},
		{"create", false, func() error {
			_, err := b.CreateTopic(ctx, &wire.CreateTopicRequest{Topic: "t", Partitions: 1})
			return err
		}},
		{"create, paused", false, func() error {
			yes := true
			_, err := b.CreateTopic(ctx, &wire.CreateTopicRequest{Topic: "t", Partitions: 1, Settings: &wire.TopicSettings{PauseConsume: &yes}})
			return err
		}},
		{"alter", false, func() error {
			_, err := b.AlterTopic(ctx, &wire.AlterTopicRequest{Topic: "orders", Settings: &wire.TopicSettings{RetentionMs: &age}})
			return err
		}},
		{"delete", false, func() error { _, err := b.DeleteTopic(ctx, &wire.DeleteTopicRequest{Topic: "orders"}); return err }},
		{"seek", false, func() error {
			_, err := b.SeekGroup(ctx, &wire.SeekGroupRequest{Topic: "orders", Group: "pay", To: uint32(wire.SeekEnd)})
			return err
		}},
		{"alter group", false, func() error {
			_, err := b.AlterGroup(ctx, &wire.AlterGroupRequest{Topic: "orders", Group: "pay", Policy: &wire.GroupPolicy{Parallel: true}})
			return err
		}},
		{"remove group", false, func() error {
			_, err := b.RemoveGroup(ctx, &wire.RemoveGroupRequest{Topic: "orders", Group: "pay", Force: true})
			return err
		}},
		{"merge", false, func() error { _, err := b.MergeSide(ctx, &wire.MergeSideRequest{BrokerGroup: "here"}, nil); return err }},
	}
	ask := func(serving bool) {
		t.Helper()
		for _, r := range requests {
			err := r.do()
			want := wire.CodeOK
			if !serving || !r.serves {
				want = wire.CodeNotMaster
			}
			if wire.CodeOf(err) != want {
				t.Errorf("serving %v: %s: %v, want %v", serving, r.name, err, want)
			}
			if e, ok := errors.AsType[*wire.CodeError](err); ok && !slices.Equal(e.Nodes, []string{"master:1"}) {
				t.Errorf("%s: nodes %v", r.name, e.Nodes)
			}
		}
	}
	ask(false)
	s.serve(false)
	if err := b.Serve(Serving{}); err == nil {
		t.Error("it serves twice")
	}
	ask(true)
	b.StopServing()
	ask(false)
	if err := m.broker.Serve(Serving{}); err == nil || m.broker.StopServing() != nil {
		t.Errorf("a master served: %v", err)
	}
}

// TestSlaveReads: a slave goes on where the master was, its acks and leases are the master's when that is back, and the master's table is what its
// journal says.
func TestSlaveReads(t *testing.T) {
	m := newMaster(t)
	defer func() { m.close() }()
	m.topic("orders", 2)
	m.subscribe("orders", "pay", wire.StartBeginning)
	m.produceMany("orders", 0, 20)
	m.produceMany("orders", 1, 3)
	f := m.mustFetch("a", 5)
	m.mustAck("a", f, f.From, f.To)
	at := f.Partition
	s := slaveOn(t, copyOf(m))
	defer s.close()
	m.reopen() // the master was away: its leases are forgotten

	s.serve(true)
	if metrics := s.broker.Metrics().Side; !metrics.Behind || metrics.Since.IsZero() {
		t.Errorf("%+v", metrics)
	}
	ends := map[uint16]uint64{}
	var held fetched
	for range 2 {
		f := s.mustFetch("b", 6)
		if f.Partition == at && f.From != 5 {
			t.Fatalf("the slave gives [%d,%d) of partition %d first", f.From, f.To, f.Partition)
		}
		if f.Partition == 0 {
			s.mustAck("b", f, f.From, f.From+2)
			held, ends[0] = f, f.From+2
		} else {
			s.mustAck("b", f, f.From, f.To)
			ends[1] = f.To
		}
	}
	if one := s.fetch("c", wire.FetchRequest{Topic: "orders", Group: "pay", Partitions: []uint32{0}}); one.err != nil || one.Lease != 0 {
		t.Errorf("a leased partition was given to another: %+v", one)
	}
	lag, err := s.broker.GroupLag(as("b"), &wire.GroupLagRequest{Topic: "orders", Group: "pay"})
	if err != nil || lag.Partitions[0].AckOffset != ends[0] || lag.Partitions[1].AckOffset != ends[1] {
		t.Errorf("%v, want %v; %v", lag, ends, err)
	}
	before := s.progress(s.offsets, 0)
	if r := s.ship(m); r.Merged != ends[0]+ends[1]-5 || r.Dropped+r.Again != 0 || r.Leases != 1 {
		t.Errorf("%+v", r)
	}
	if got := s.progress(s.offsets, 0); got != before || s.progress(s.broker.offsets(), 0) != before {
		t.Errorf("the slave's own table says %s, %s before", got, before)
	}
	if !s.o.Side.Empty() {
		t.Error("the side file is still there")
	}
	m.wantProgress(0, fmt.Sprintf("offset %d consumed none generation 1", ends[0]))
	// The lease is honoured: nobody else gets its messages, and its member acks them.
	if one := m.fetch("c", wire.FetchRequest{Topic: "orders", Group: "pay", Partitions: []uint32{0}}); one.err != nil || one.Lease != 0 {
		t.Errorf("messages of a slave's lease were given to another: %+v", one)
	}
	if a := <-m.startAck("c", ackOf(held, ends[0], held.To, wire.Acked)); a.codes[0] != wire.CodeLeaseForeign {
		t.Errorf("ack by another: %v", a)
	}
	m.mustAck("b", held, ends[0], held.To)
	next := m.fetch("c", wire.FetchRequest{Topic: "orders", Group: "pay", Partitions: []uint32{0}})
	if next.Lease == 0 || next.From != held.To || next.Lease>>63 != 0 {
		t.Errorf("the next lease is %+v", next)
	}
	want := []string{m.progress(m.offsets, 0), m.progress(m.offsets, 1)}
	m.reopen()
	for p, w := range want {
		m.wantProgress(uint16(p), w)
	}
}

// TestMergeTwice ships the same twice, as a slave does whose answer was lost: the second changes nothing.
func TestMergeTwice(t *testing.T) {
	m := newMaster(t)
	defer m.close()
	m.topic("orders", 1)
	m.subscribe("orders", "pay", wire.StartBeginning)
	m.produceMany("orders", 0, 20)
	s := slaveOn(t, copyOf(m))
	defer s.close()
	s.serve(false)
	f := s.mustFetch("b", 10)
	s.mustAck("b", f, 0, 4)
	leases := s.broker.StopServing()
	parts, _, err := s.o.Side.Read(0, 1<<20)
	if err != nil || len(leases) != 1 {
		t.Fatal(err, leases)
	}
	r := &wire.MergeSideRequest{BrokerGroup: "here", Broker: "slave", Epoch: uint64(m.store.Epoch()), Leases: leases}
	for i, want := range []string{"4 0 0 1", "0 0 4 1"} {
		a, err := m.broker.MergeSide(context.Background(), r, parts)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(a.Merged, a.Dropped, a.Again, a.Leases); got != want {
			t.Errorf("merge %d: merged, dropped, again, leases are %s, want %s", i, got, want)
		}
		m.wantProgress(0, "offset 4 consumed none generation 1")
	}
	if held := m.broker.dispatch.Metrics().Leased; held != 1 {
		t.Errorf("%d leases", held)
	}
	// Another epoch, another broker group, and bytes that are no entries are refused.
	for _, bad := range []struct {
		change func(r *wire.MergeSideRequest)
		parts  []byte
		want   wire.Code
	}{
		{func(r *wire.MergeSideRequest) { r.Epoch++ }, parts, wire.CodeStaleTerm},
		{func(r *wire.MergeSideRequest) { r.BrokerGroup = "there" }, parts, wire.CodeInvalid},
		{func(r *wire.MergeSideRequest) {}, parts[:len(parts)-1], wire.CodeMalformed},
	} {
		r := &wire.MergeSideRequest{BrokerGroup: "here", Broker: "slave", Epoch: r.Epoch}
		bad.change(r)
		if _, err := m.broker.MergeSide(context.Background(), r, bad.parts); wire.CodeOf(err) != bad.want {
			t.Errorf("%v, want %v", err, bad.want)
		}
	}
	if _, err := s.broker.ShipSide(context.Background(), m.broker, m.store.Epoch()+1, nil); wire.CodeOf(err) != wire.CodeStaleTerm || s.o.Side.Empty() {
		t.Errorf("shipped to another epoch: %v; empty %v", err, s.o.Side.Empty())
	}
}

// TestMergeReset: the group was moved at the master while the slave served by an older generation. What was acked there does not count.
func TestMergeReset(t *testing.T) {
	m := newMaster(t)
	defer func() { m.close() }()
	m.topic("orders", 1)
	m.subscribe("orders", "pay", wire.StartBeginning)
	m.produceMany("orders", 0, 20)
	s := slaveOn(t, copyOf(m))
	defer s.close()
	s.serve(false)
	f := s.mustFetch("b", 10)
	s.mustAck("b", f, 0, 4)
	if _, err := m.broker.SeekGroup(as("op"), &wire.SeekGroupRequest{Topic: "orders", Group: "pay", To: uint32(wire.SeekIndex), Index: 2}); err != nil {
		t.Fatal(err)
	}
	if r := s.ship(m); r.Merged != 0 || r.Dropped != 4 || r.Leases != 0 {
		t.Errorf("%+v", r)
	}
	m.wantProgress(0, "offset 2 consumed none generation 2")
	if c := m.broker.Metrics().Side; c.DroppedOld != 4 || c.DroppedOther != 0 || c.LeasesRefused != 1 {
		t.Errorf("%+v", c)
	}
	m.reopen()
	m.wantProgress(0, "offset 2 consumed none generation 2")
	if f := m.mustFetch("a", 1); f.From != 2 {
		t.Errorf("given from %d", f.From)
	}
	// A group that was removed, and a topic that was deleted, meanwhile.
	for _, gone := range []func() error{
		func() error {
			_, err := m.broker.RemoveGroup(as("op"), &wire.RemoveGroupRequest{Topic: "orders", Group: "pay", Force: true})
			return err
		},
		func() error {
			_, err := m.broker.DeleteTopic(as("op"), &wire.DeleteTopicRequest{Topic: "orders"})
			return err
		},
	} {
		s.serve(false)
		f := s.mustFetch("b", 10)
		s.mustAck("b", f, f.From, f.From+1)
		if err := gone(); err != nil {
			t.Fatal(err)
		}
		if r := s.ship(m); r.Merged != 0 || r.Dropped != 1 || r.Leases != 0 {
			t.Errorf("%+v", r)
		}
	}
}

// TestMergeOtherTail: from some message on the slave had another tail than the master has now. What was acked of it is about other
// messages, and is dropped; what lies before is taken.
func TestMergeOtherTail(t *testing.T) {
	m := newMaster(t)
	defer m.close()
	m.topic("orders", 2)
	m.subscribe("orders", "pay", wire.StartBeginning)
	m.produceMany("orders", 0, 4)
	m.produceMany("orders", 1, 4)
	other := newWorldOn(t, copyOf(m))
	for _, w := range []*world{m, other} {
		w.produceMany("orders", 0, 4) // the same indexes and bytes
	}
	other.broker.Close()
	if err := other.store.Close(); err != nil {
		t.Fatal(err)
	}
	s := slaveOn(t, copyOf(other))
	defer s.close()
	s.serve(false)
	var first fetched
	for range 2 {
		f := s.mustFetch("b", 8)
		s.mustAck("b", f, f.From, f.From+2)
		if f.Partition == 0 {
			first = f
		}
	}
	s.mustAck("b", first, 5, 6)
	r := s.ship(m)
	// [0,2) of both partitions is the same, and the lease of partition 1; message 5 of partition 0, and the lease that ends at 8, are not.
	if r.Merged != 4 || r.Dropped != 1 || r.Leases != 1 {
		t.Errorf("%+v", r)
	}
	m.wantProgress(0, "offset 2 consumed none generation 1")
	m.wantProgress(1, "offset 2 consumed none generation 1")
	if c := m.broker.Metrics().Side; c.DroppedOther != 1 || c.LeasesRefused != 1 {
		t.Errorf("%+v", c)
	}
}

func newWorldOn(t testing.TB, disk *vfs.MemFS) *world {
	w := &world{t: t, fs: journaltest.New(disk), o: Options{BrokerGroup: "here"}}
	w.open()
	return w
}

// TestMergeLate: the master gave messages before the slave came with what was acked there: they end at the master too, whoever has
// them, and that is counted as duplicates which this explains.
func TestMergeLate(t *testing.T) {
	m := newMaster(t)
	defer m.close()
	m.topic("orders", 1)
	m.subscribe("orders", "pay", wire.StartBeginning)
	m.produceMany("orders", 0, 10)
	s := slaveOn(t, copyOf(m))
	defer s.close()
	s.serve(false)
	f := s.mustFetch("b", 6)
	s.mustAck("b", f, 0, 3)
	given := m.mustFetch("a", 2)
	if r := s.ship(m); r.Merged != 3 || r.Leases != 1 {
		t.Errorf("%+v", r)
	}
	if c := m.broker.Metrics().Side; c.Leased != 2 {
		t.Errorf("%+v", c)
	}
	if a := <-m.startAck("a", ackOf(given, 0, 2, wire.Acked)); a.err != nil || a.codes[0] != wire.CodeAlreadyEnded {
		t.Errorf("%v", a)
	}
	m.mustAck("b", f, 3, 6)
	m.wantProgress(0, "offset 6 consumed none generation 1")
}

// TestServeTail: ends of the journal's tail that is not known to be committed, and those of the side file before a restart, are not given again.
func TestServeTail(t *testing.T) {
	m := newMaster(t)
	defer m.close()
	m.topic("orders", 1)
	m.subscribe("orders", "pay", wire.StartBeginning)
	m.produceMany("orders", 0, 20)
	topic, _ := m.store.Topic(0, "orders")
	group, _ := m.offsets.Group(0, "pay")
	end := func(from, to index.Index, generation uint32) journal.Record {
		return journal.Record{Kind: journal.KindEnd, Payload: offset.AppendEnds(nil, []offset.End{{Group: group, Topic: topicKey(&topic), Generation: generation,
			Outcome: wire.Acked, Range: offset.Range{From: from, To: to}}})}
	}
	expiry := journal.Record{Kind: journal.KindLeaseExpiry, Payload: offset.AppendExpiries(nil, []offset.Expiry{{Group: group, Topic: topicKey(&topic), Generation: 1, Count: 2,
		Ranges: offset.Ranges{{From: 7, To: 8}}}})}
	// The second comes behind a reset that is not committed: its messages were handled too.
	tail := []journal.Record{end(0, 3, 1), {Kind: journal.KindMessages}, end(4, 5, 2), expiry}
	s := slaveOn(t, copyOf(m), tail...)
	s.serve(false)
	f := s.mustFetch("b", 10)
	if f.From != 3 || f.To != 4 {
		t.Fatalf("given [%d,%d)", f.From, f.To)
	}
	s.mustAck("b", f, 3, 4)
	if f = s.mustFetch("b", 10); f.From != 5 || f.To != 7 { // up to the message of which leases ran out
		t.Fatalf("given [%d,%d)", f.From, f.To)
	}
	s.mustAck("b", f, 5, 7)
	disk := copyOf(s)
	s.close()

	again := slaveOn(t, disk)
	defer func() { again.close() }()
	again.serve(false) // no tail now
	if f := again.mustFetch("b", 10); f.From != 0 || f.To != 3 {
		t.Fatalf("given [%d,%d)", f.From, f.To)
	}
	again.broker.StopServing()
	again.close()
	again = slaveOn(t, copyOf(again), tail...)
	again.serve(false)
	if f := again.mustFetch("b", 10); f.From != 7 || f.To != 8 || f.Attempt != 3 {
		t.Fatalf("given [%d,%d) attempt %d", f.From, f.To, f.Attempt)
	}
	if r := again.ship(m); r.Merged != 3 {
		t.Errorf("%+v", r)
	}
	m.wantProgress(0, "offset 0 consumed [3,4) [5,7) generation 1")
}

// TestSlaveExpiries: leases that ran out at a slave are counted at the master.
func TestSlaveExpiries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMaster(t)
		defer m.close()
		m.topic("orders", 1)
		m.subscribe("orders", "pay", wire.StartBeginning)
		m.produceMany("orders", 0, 3)
		s := slaveOn(t, copyOf(m))
		defer s.close()
		s.serve(false)
		s.mustFetch("b", 2)
		time.Sleep(6 * time.Minute)
		synctest.Wait()
		if f := s.mustFetch("b", 2); f.To != 1 || f.Attempt != 2 {
			t.Fatalf("given [%d,%d) attempt %d", f.From, f.To, f.Attempt)
		}
		if r := s.ship(m); r.Leases != 1 {
			t.Fatalf("%+v", r)
		}
		if err := m.store.Checkpoint(); err != nil {
			t.Fatal(err)
		}
		m.store.Kick()
		synctest.Wait()
		m.wantProgress(0, "offset 0 consumed none expired [0,2)*1 generation 1")
	})
}

// TestSlaveParallel: with a parallel policy several leases last, what a member released is free, and all is so at the master.
func TestSlaveParallel(t *testing.T) {
	m := newMaster(t)
	defer func() { m.close() }()
	m.topic("orders", 1)
	if _, err := m.broker.Subscribe(as("a"), &wire.SubscribeRequest{Topic: "orders", Group: "pay", Start: wire.StartBeginning, Policy: &wire.GroupPolicy{Parallel: true, Window: 100}}); err != nil {
		t.Fatal(err)
	}
	m.produceMany("orders", 0, 20)
	s := slaveOn(t, copyOf(m))
	defer s.close()
	s.serve(false)
	a, b := s.mustFetch("a", 5), s.mustFetch("b", 5)
	s.mustAck("b", b, 7, 9)
	if r := <-s.startAck("a", ackOf(a, 1, 3, wire.Released)); r.codes[0] != wire.CodeOK {
		t.Fatal(r)
	}
	m.reopen()
	if r := s.ship(m); r.Merged != 2 || r.Leases != 2 {
		t.Errorf("%+v", r)
	}
	m.wantProgress(0, "offset 0 consumed [7,9) generation 1")
	if f := m.mustFetch("c", 10); f.From != 1 || f.To != 3 {
		t.Errorf("what was released is not free: [%d,%d)", f.From, f.To)
	}
	if f := m.mustFetch("c", 3); f.From != 10 || f.To != 13 {
		t.Errorf("given [%d,%d)", f.From, f.To)
	}
	m.mustAck("a", a, 3, 5)
	m.mustAck("a", a, 0, 1)
	m.mustAck("b", b, 5, 7)
	m.mustAck("b", b, 9, 10)
	m.wantProgress(0, "offset 1 consumed [3,10) generation 1")
}

// TestMergeOwn: a slave that served is master now.
func TestMergeOwn(t *testing.T) {
	m := newMaster(t)
	m.topic("orders", 1)
	m.subscribe("orders", "pay", wire.StartBeginning)
	m.produceMany("orders", 0, 10)
	s := slaveOn(t, copyOf(m))
	m.close()
	s.serve(false)
	f := s.mustFetch("b", 6)
	s.mustAck("b", f, 0, 3)
	s.close()
	p := &world{t: t, fs: s.fs, o: Options{BrokerGroup: "here", Side: openSide(t, s.fs)}}
	p.open()
	defer func() { p.close() }()
	for range 2 {
		if err := p.broker.MergeOwn(context.Background()); err != nil {
			t.Fatal(err)
		}
		p.wantProgress(0, "offset 3 consumed none generation 1")
	}
	if !p.o.Side.Empty() || p.broker.Metrics().Side.Merged != 3 {
		t.Errorf("%+v", p.broker.Metrics().Side)
	}
	p.reopen()
	p.wantProgress(0, "offset 3 consumed none generation 1")
}

// TestSlaveCrash crashes a slave after each operation on its disk while it serves: what was acked is not given again when it serves then,
// and is the master's when it is shipped.
func TestSlaveCrash(t *testing.T) {
	rng := seeded(t)
	m := newMaster(t)
	m.topic("orders", 1)
	m.subscribe("orders", "pay", wire.StartBeginning)
	m.produceMany("orders", 0, 30)
	masterDisk := copyOf(m)
	m.close()
	s := slaveOn(t, masterDisk.CrashClone(vfs.CrashCloneCfg{}))
	type moment struct {
		disk  *vfs.MemFS
		acked offset.Ranges
		what  string
	}
	var mu sync.Mutex
	var acked offset.Ranges
	var moments []moment
	s.fs.SetAfter(func(op journaltest.Op) {
		if !strings.HasPrefix(op.Path, sideDir) {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		for _, percent := range []int{0, 50, 100} {
			moments = append(moments, moment{s.fs.Crash(percent, rng), slices.Clone(acked), fmt.Sprintf("%v, %d %% of the unsynced", op, percent)})
		}
	})
	s.serve(false)
	for range 6 {
		f := s.mustFetch("b", 1+rng.Uint32N(5))
		for i := f.From; i < f.To; i++ {
			s.mustAck("b", f, i, i+1)
			mu.Lock()
			acked.Add(offset.Range{From: index.Index(i), To: index.Index(i + 1)})
			mu.Unlock()
		}
	}
	s.fs.SetAfter(nil)
	s.close()
	if len(moments) < 30 {
		t.Fatalf("only %d moments", len(moments))
	}
	for _, at := range moments {
		if rng.IntN(12) != 0 { // each takes a while
			continue
		}
		s := slaveOn(t, at.disk)
		s.serve(false)
		f := s.mustFetch("b", 30)
		if got := at.acked.Count(offset.Range{From: index.Index(f.From), To: index.Index(f.To)}); got != 0 {
			t.Errorf("%s: given [%d,%d), acked were %v", at.what, f.From, f.To, at.acked)
		}
		m := &world{t: t, fs: journaltest.New(masterDisk.CrashClone(vfs.CrashCloneCfg{})), o: Options{BrokerGroup: "here"}}
		m.open()
		s.ship(m)
		m.reopen()
		topic, _ := m.store.Topic(0, "orders")
		group, _ := m.offsets.Group(0, "pay")
		p, _, _ := m.offsets.Progress(group, topicKey(&topic), 0)
		for _, r := range at.acked {
			if p.Count(r) != r.Len() {
				t.Errorf("%s: the master has %v, acked were %v", at.what, p, at.acked)
			}
		}
		s.close()
		m.close()
	}
}

// TestSideFails: a sync of the side file fails. The ack's outcome is not known, and nothing is served any more: memory is ahead of the disk.
func TestSideFails(t *testing.T) {
	m := newMaster(t)
	defer m.close()
	m.topic("orders", 1)
	m.subscribe("orders", "pay", wire.StartBeginning)
	m.produceMany("orders", 0, 4)
	s := slaveOn(t, copyOf(m))
	defer s.close()
	s.serve(false)
	f := s.mustFetch("b", 4)
	s.mustAck("b", f, 0, 1)
	s.fs.SetBefore(func(op journaltest.Op) journaltest.Fault {
		if op.Call == journaltest.Sync && strings.HasPrefix(op.Path, sideDir) {
			return journaltest.Fault{Err: journaltest.ErrInjected}
		}
		return journaltest.Fault{}
	})
	if a := <-s.startAck("b", ackOf(f, 1, 2, wire.Acked)); wire.CodeOf(a.err) != wire.CodeUnknown {
		t.Errorf("%v %v", a.codes, a.err)
	}
	if f := s.fetch("b", wire.FetchRequest{Topic: "orders", Group: "pay"}); wire.CodeOf(f.err) != wire.CodeFailed {
		t.Errorf("%+v", f)
	}
	s.fs.SetBefore(nil)
	if r := s.ship(m); r.Merged < 1 || r.Merged > 2 {
		t.Errorf("%+v", r)
	}
}

// TestSideFull: no more acks can be kept. Those are refused, nothing is lost, and serving goes on.
func TestSideFull(t *testing.T) {
	m := newMaster(t)
	defer m.close()
	m.topic("orders", 1)
	m.subscribe("orders", "pay", wire.StartBeginning)
	m.produceMany("orders", 0, 10)
	s := slaveOn(t, copyOf(m))
	defer s.close()
	if err := s.o.Side.Close(); err != nil {
		t.Fatal(err)
	}
	s.broker.Close()
	small, err := side.Open(side.Options{FS: s.fs, Dir: sideDir, BytesMax: 90})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.store.Close(); err != nil {
		t.Fatal(err)
	}
	s.o.Side = small
	s.open()
	s.serve(false)
	f := s.mustFetch("b", 10)
	s.mustAck("b", f, 0, 1)
	if a := <-s.startAck("b", ackOf(f, 1, 2, wire.Acked)); wire.CodeOf(a.err) != wire.CodeNoSpace {
		t.Errorf("%v %v", a.codes, a.err)
	}
	if _, err := s.broker.GroupLag(as("b"), &wire.GroupLagRequest{Topic: "orders"}); err != nil {
		t.Error(err)
	}
	if r := s.ship(m); r.Merged != 1 {
		t.Errorf("%+v", r)
	}
}

// TestStopServingUnderLoad: consumers fetch and ack while the slave stops. Each ack that was answered ok is the master's, no fetch hangs,
// and each lease that a consumer has is either the master's too or gone.
func TestStopServingUnderLoad(t *testing.T) {
	rng := seeded(t)
	m := newMaster(t)
	defer m.close()
	m.topic("orders", 4)
	m.subscribe("orders", "pay", wire.StartBeginning)
	for p := range uint16(4) {
		if _, err := m.produce("orders", p, batch(t, 900, 1)); err != nil {
			t.Fatal(err)
		}
	}
	disk := copyOf(m)
	seen := map[uint64]bool{}
	for round := range 3 {
		s := slaveOn(t, disk.CrashClone(vfs.CrashCloneCfg{}))
		s.serve(false)
		var mu sync.Mutex
		acked := map[uint16]*offset.Ranges{0: {}, 1: {}, 2: {}, 3: {}}
		var all sync.WaitGroup
		var acks atomic.Int64
		enough := 20 + rng.Int64N(60)
		stop := make(chan struct{})
		for c := range 4 {
			client := fmt.Sprint("c", c)
			max := 1 + rng.Uint32N(4)
			all.Go(func() {
				for {
					f := s.fetch(client, wire.FetchRequest{Topic: "orders", Group: "pay", MessagesMax: max, WaitMs: 20_000})
					if wire.CodeOf(f.err) == wire.CodeNotMaster {
						return
					}
					if f.err != nil || f.Lease == 0 {
						t.Errorf("fetch: %+v", f)
						return
					}
					mu.Lock()
					if seen[f.Lease] {
						t.Errorf("lease %x was given twice", f.Lease)
					}
					seen[f.Lease] = true
					mu.Unlock()
					a := <-s.startAck(client, ackOf(f, f.From, f.To, wire.Acked))
					if wire.CodeOf(a.err) == wire.CodeNotMaster {
						return
					}
					if a.err != nil || a.codes[0] != wire.CodeOK {
						t.Errorf("ack: %v", a)
						return
					}
					mu.Lock()
					acked[f.Partition].Add(offset.Range{From: index.Index(f.From), To: index.Index(f.To)})
					mu.Unlock()
					if acks.Add(1) == enough {
						close(stop)
					}
				}
			})
		}
		<-stop
		s.ship(m)
		all.Wait()
		topic, _ := m.store.Topic(0, "orders")
		group, _ := m.offsets.Group(0, "pay")
		for p, ranges := range acked {
			at, _, _ := m.offsets.Progress(group, topicKey(&topic), p)
			for _, r := range *ranges {
				if at.Count(r) != r.Len() {
					t.Errorf("round %d: partition %d is at %v, acked were %v", round, p, at, *ranges)
				}
			}
		}
		s.close()
		m.broker.dispatch.Restart() // the leases that were taken in end
	}
}

// TestHoldConsuming: after a master's start fetches wait until it is known what was acked elsewhere, or 30 seconds; sends do not.
func TestHoldConsuming(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMaster(t)
		defer m.close()
		m.topic("orders", 1)
		m.subscribe("orders", "pay", wire.StartBeginning)
		m.produceMany("orders", 0, 2)
		for _, test := range []struct {
			name     string
			until    time.Duration
			release  time.Duration
			released time.Duration
		}{
			{"released", 20 * time.Second, 3 * time.Second, 3 * time.Second},
			{"its time is over", 10 * time.Second, time.Hour, 10 * time.Second},
			{"30 s at most", time.Hour, time.Hour, 30 * time.Second},
			{"at once", -time.Second, time.Hour, 0},
		} {
			begin := time.Now()
			m.broker.HoldConsuming(begin.Add(test.until), "a test")
			if f := m.mustFetch("a", 1); test.released > 0 && f.Lease != 0 {
				t.Errorf("%s: given at once", test.name)
			}
			time.Sleep(time.Second)
			waiting := m.startFetch(as("a"), wire.FetchRequest{Topic: "orders", Group: "pay", WaitMs: 30_000, MessagesMax: 1})
			m.produceMany("orders", 0, 1)
			go func() {
				time.Sleep(time.Until(begin.Add(test.release)))
				m.broker.ReleaseConsuming("a test")
			}()
			f := <-waiting
			took := time.Since(begin)
			if test.released > 0 && (f.err != nil || f.Lease == 0 || took != test.released) {
				t.Errorf("%s: given after %v: %+v", test.name, took, f)
			}
			if m.broker.Metrics().Side.Holding {
				t.Errorf("%s: it holds on", test.name)
			}
			if f.Lease != 0 {
				m.mustAck("a", f, f.From, f.To)
			}
			time.Sleep(2 * time.Hour)
			m.broker.dispatch.Restart()
		}
	})
}

// TestFenced: a master whose log stopped since another broker is the master says so, and does not say that its disk failed.
func TestFenced(t *testing.T) {
	m := newMaster(t)
	defer m.close()
	m.topic("orders", 1)
	m.subscribe("orders", "pay", wire.StartBeginning)
	var fenced atomic.Bool
	m.close()
	m.wrap = func(s store.Store) store.Store { return &fencedStore{s.(*local.Store), &fenced} }
	m.open()
	waiting := m.startFetch(as("a"), wire.FetchRequest{Topic: "orders", Group: "pay", WaitMs: 20_000})
	fenced.Store(true)
	if _, err := m.produce("orders", 0, batch(t, 1, 1)); wire.CodeOf(err) != wire.CodeNotMaster {
		t.Error(err)
	}
	if f := <-waiting; wire.CodeOf(f.err) != wire.CodeNotMaster {
		t.Errorf("%+v", f)
	}
}

type fencedStore struct {
	*local.Store
	fenced *atomic.Bool
}

func (f *fencedStore) Err() error {
	if f.fenced.Load() {
		return fmt.Errorf("%w: %w", journal.ErrFailed, replica.ErrFenced)
	}
	return nil
}

// TestSlaveFollows serves from a store that follows a journal, with a tail that is not committed, and goes on following: its own table is the master's
// again without being opened anew.
func TestSlaveFollows(t *testing.T) {
	m := newMaster(t)
	defer m.close()
	m.topic("orders", 1)
	m.subscribe("orders", "pay", wire.StartBeginning)
	m.produceMany("orders", 0, 20)
	f := m.mustFetch("a", 8)
	m.mustAck("a", f, 0, 5)
	committed := m.store.Committed()
	m.mustAck("a", f, 5, 8)
	m.produceMany("orders", 0, 5)

	var log *journal.Journal
	s := &world{t: t, fs: journaltest.New(nil), follow: &log}
	s.o = Options{BrokerGroup: "here", Broker: "slave", Slave: true, Side: openSide(t, s.fs)}
	s.open()
	defer s.close()
	copyTail := func(to journal.Position) {
		t.Helper()
		// What the master has written, as anyone reads it who has its disk.
		from, err := journal.Open(journal.Options{FS: copyOf(m), Dir: "/store/journal", StoreID: m.store.StoreID()})
		if err != nil {
			t.Fatal(err)
		}
		defer from.Close()
		for at := log.Written(); at < to; at = log.Written() {
			b := make([]byte, to-at)
			n, err := from.ReadRaw(at, b)
			if err == nil {
				err = log.CopyRecords(at, b[:n], m.store.StoreID())
			}
			if errors.Is(err, journal.ErrBusy) {
				err = log.WaitRoom(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	commit := func(to journal.Position) {
		t.Helper()
		log.SetCommitted(to)
		if err := s.store.WaitApplied(t.Context(), to); err != nil {
			t.Fatal(err)
		}
	}
	copyTail(m.store.Committed())
	commit(committed)
	s.wantProgress(0, "offset 5 consumed none generation 1")

	s.serve(false)
	g := s.mustFetch("b", 100)
	if g.From != 8 || g.To != 20 {
		t.Fatalf("given [%d,%d), want what is committed and was not acked in the tail", g.From, g.To)
	}
	s.mustAck("b", g, 10, 12)
	s.wantProgress(0, "offset 5 consumed none generation 1")
	if err := s.store.Checkpoint(); err != nil {
		t.Error(err)
	}
	if r := s.ship(m); r.Merged != 2 || r.Leases != 1 {
		t.Errorf("%+v", r)
	}
	end := m.store.Committed() // the idle master goes on to write no-ops
	copyTail(end)
	commit(end)
	want := "offset 8 consumed [10,12) generation 1"
	m.wantProgress(0, want)
	s.wantProgress(0, want)
	// It serves again, from there.
	s.serve(false)
	if g := s.mustFetch("b", 100); g.From != 8 || g.To != 10 {
		t.Errorf("given [%d,%d)", g.From, g.To)
	}
}
