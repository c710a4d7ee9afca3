package broker

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/journal/journaltest"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/server/store/local"
	"github.com/jmqio/jmq/wire"
)

// TestSettled: while a group is made, or moved, nothing runs that relies on where groups stand: not until it is on the disk that it stands there.
func TestSettled(t *testing.T) {
	w := newWorld(t, Options{})
	defer w.close()
	w.topic("orders", 1)
	if _, err := w.produce("orders", 0, batch(t, 10, 10)); err != nil {
		t.Fatal(err)
	}
	syncs, settled := 0, 0
	w.fs.SetBefore(func(op journaltest.Op) journaltest.Fault {
		if op.Call == journaltest.SyncData {
			syncs++
			if w.broker.moving.TryLock() {
				settled++
				w.broker.moving.Unlock()
			}
		}
		return journaltest.Fault{}
	})
	w.subscribe("orders", "pay", wire.StartBeginning)
	if syncs == 0 || settled > 0 {
		t.Errorf("a birth: settled at %d of %d syncs", settled, syncs)
	}
	syncs, settled = 0, 0
	if _, err := w.broker.SeekGroup(as("a"), &wire.SeekGroupRequest{Topic: "orders", Group: "pay", To: uint32(wire.SeekStart)}); err != nil {
		t.Fatal(err)
	}
	if syncs == 0 || settled > 0 {
		t.Errorf("a move: settled at %d of %d syncs", settled, syncs)
	}
	w.fs.SetBefore(nil)
	ran := false
	w.broker.Settled(func() { ran = true })
	if !ran {
		t.Error("it did not run")
	}
}

// TestSeeksAtOnce moves a group from many places at a time while its messages are given and acked: each move has a generation of
// its own, and the group stands where the last one put it, or beyond by what was acked since.
func TestSeeksAtOnce(t *testing.T) {
	w := newWorld(t, Options{})
	defer w.close()
	w.topic("orders", 1)
	w.subscribe("orders", "pay", wire.StartBeginning)
	const messages, movers, moves = 400, 8, 10
	for range messages / 100 {
		if _, err := w.produce("orders", 0, batch(t, 100, 10)); err != nil {
			t.Fatal(err)
		}
	}
	var all, consumers sync.WaitGroup
	stop := make(chan struct{})
	for m := range uint32(3) {
		consumers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				f := w.fetch("a", wire.FetchRequest{Topic: "orders", Group: "pay", Member: m, MessagesMax: 7})
				if f.err != nil || f.Lease == 0 {
					continue
				}
				r := ackAll(f)
				r.Member = m
				a := <-w.startAck("a", r)
				if a.err != nil || a.codes[0] != wire.CodeOK && a.codes[0] != wire.CodeLeaseExpired && a.codes[0] != wire.CodeAlreadyEnded {
					t.Error(a)
				}
			}
		})
	}
	var mu sync.Mutex
	to := map[uint32]uint64{}
	for i := range movers {
		all.Go(func() {
			for j := range moves {
				at := uint64((i*moves + j) * messages / (movers * moves))
				r, err := w.broker.SeekGroup(as(fmt.Sprint(i)), &wire.SeekGroupRequest{Topic: "orders", Group: "pay", To: uint32(wire.SeekIndex), Index: at})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if _, twice := to[r.Partitions[0].Generation]; twice {
					t.Errorf("two moves have generation %d", r.Partitions[0].Generation)
				}
				to[r.Partitions[0].Generation] = at
				mu.Unlock()
			}
		})
	}
	all.Wait()
	close(stop)
	consumers.Wait()
	last := uint32(1 + movers*moves)
	r, err := w.broker.GroupLag(as("a"), &wire.GroupLagRequest{Topic: "orders", Group: "pay"})
	if err != nil {
		t.Fatal(err)
	}
	if row := r.Partitions[0]; len(to) != movers*moves || row.Generation != last || row.AckOffset < to[last] {
		t.Errorf("after %d moves, the last to %d: %v", len(to), to[last], row)
	}
	// What was acked under an old generation moved nothing: all from the last move on comes, each message once.
	had := r.Partitions[0]
	next := had.AckOffset
	for {
		f := w.fetch("last", wire.FetchRequest{Topic: "orders", Group: "pay", MessagesMax: 100})
		if f.err != nil {
			t.Fatal(f.err)
		}
		if f.Lease == 0 {
			break
		}
		next = f.To
		if a := <-w.startAck("last", ackAll(f)); a.err != nil || a.codes[0] != wire.CodeOK {
			t.Fatal(a)
		}
	}
	if had.Lag > 0 && next != messages {
		t.Errorf("drained up to %d of %d", next, messages)
	}
}

// TestTopicsComeAndGo makes, uses and deletes topics from several places at once. Nobody gets an answer that it may not, and nothing is
// left: no topic, group, room, queue or lease.
func TestTopicsComeAndGo(t *testing.T) {
	w := newWorld(t, Options{})
	defer w.close()
	workers, rounds := 6, 20
	if raceEnabled {
		rounds = 8
	}
	fine := func(err error) bool {
		switch wire.CodeOf(err) {
		case wire.CodeOK, wire.CodeTopicNotFound, wire.CodeGroupNotFound, wire.CodeTimeout, wire.CodeTopicExists:
			return true
		}
		return false
	}
	var all sync.WaitGroup
	for i := range workers {
		all.Go(func() {
			for j := range rounds {
				// Two workers share each name: so one deletes what the other uses.
				name, group := fmt.Sprint("t", i/2), fmt.Sprint("g", j%3)
				client := fmt.Sprint("c", i)
				_, create := w.broker.CreateTopic(as(client), &wire.CreateTopicRequest{Topic: name, Partitions: 3})
				_, subscribe := w.broker.Subscribe(as(client), &wire.SubscribeRequest{Topic: name, Group: group, Start: wire.StartBeginning})
				ctx, cancel := context.WithCancel(as(client))
				parked := w.startFetch(ctx, wire.FetchRequest{Topic: name, Group: group, Partitions: []uint32{2}, WaitMs: 30_000})
				_, produce := w.produce(name, 0, batch(t, 2, 10))
				f := w.fetch(client, wire.FetchRequest{Topic: name, Group: group})
				r := ackAll(f)
				r.Topic, r.Group = name, group
				ack := (<-w.startAck(client, r)).err
				more := uint32(4)
				_, alter := w.broker.AlterTopic(as(client), &wire.AlterTopicRequest{Topic: name, Partitions: &more})
				var remove error
				if j%2 == 0 {
					_, remove = w.broker.RemoveGroup(as(client), &wire.RemoveGroupRequest{Topic: name, Group: group, Force: true})
				}
				_, drop := w.broker.DeleteTopic(as(client), &wire.DeleteTopicRequest{Topic: name})
				cancel()
				for k, err := range []error{create, subscribe, produce, f.err, ack, alter, remove, drop, (<-parked).err} {
					if !fine(err) {
						t.Errorf("answer %d: %v", k, err)
					}
				}
			}
		})
	}
	all.Wait()
	for i := range workers {
		w.broker.DeleteTopic(as("x"), &wire.DeleteTopicRequest{Topic: fmt.Sprint("t", i)})
	}
	if n := len(w.store.Topics()) + w.offsets.Subscriptions(); n != 0 {
		t.Errorf("%d topics and subscriptions are left", n)
	}
	if d := w.broker.Metrics().Dispatch; d.Queues != 0 || d.Leased != 0 || d.Waiting != 0 {
		t.Errorf("dispatch has %+v", d)
	}
	m := &w.broker.births.mu
	if r := &w.broker.room.mu; r.topics != 0 || r.partitions != 0 || r.rows != 0 || len(m.running)+len(m.ids)+len(m.held) != 0 {
		t.Errorf("room for %d topics, %d partitions, %d rows; births %v %v %v", r.topics, r.partitions, r.rows, m.running, m.ids, m.held)
	}
}

// TestChangeIsSeenThrough lets the caller of an alteration go while its commit is held back: it is carried out whole nevertheless.
func TestChangeIsSeenThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		defer w.close()
		w.topic("orders", 1)
		w.subscribe("orders", "pay", wire.StartBeginning)
		if _, err := w.produce("orders", 0, batch(t, 1, 10)); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(as("a"))
		pause := true
		w.gate.shut()
		done := make(chan error, 1)
		go func() {
			_, err := w.broker.AlterTopic(ctx, &wire.AlterTopicRequest{Topic: "orders", Settings: &wire.TopicSettings{PauseConsume: &pause}})
			done <- err
		}()
		synctest.Wait()
		// Others wait for it, and may give up.
		impatient, end := context.WithTimeout(as("b"), time.Second)
		defer end()
		if _, err := w.broker.SeekGroup(impatient, &wire.SeekGroupRequest{Topic: "orders", Group: "pay", To: uint32(wire.SeekEnd)}); wire.CodeOf(err) != wire.CodeTimeout {
			t.Errorf("a seek meanwhile: %v, want timeout", err)
		}
		cancel()
		w.gate.open()
		if err := <-done; err != nil {
			t.Errorf("%v", err)
		}
		if f := w.fetch("a", wire.FetchRequest{Topic: "orders", Group: "pay"}); f.err != nil || f.Lease != 0 {
			t.Errorf("got [%d,%d) %v of a paused topic", f.From, f.To, f.err)
		}
	})
}

// TestBirthAndDeletion deletes a topic while a group is being born on it, and subscribes while it is being deleted: the birth comes
// first and goes with the topic, the late one finds none.
func TestBirthAndDeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		defer w.close()
		w.topic("orders", 1)
		w.gate.shut()
		subscribe := func(group string) chan error {
			done := make(chan error, 1)
			go func() {
				_, err := w.broker.Subscribe(as("a"), &wire.SubscribeRequest{Topic: "orders", Group: group})
				done <- err
			}()
			synctest.Wait()
			return done
		}
		early := subscribe("early")
		deleted := make(chan error, 1)
		go func() {
			_, err := w.broker.DeleteTopic(as("a"), &wire.DeleteTopicRequest{Topic: "orders"})
			deleted <- err
		}()
		synctest.Wait()
		late := subscribe("late")
		w.gate.open()
		if err := <-early; err != nil && wire.CodeOf(err) != wire.CodeTopicNotFound {
			t.Errorf("early: %v", err)
		}
		if err := <-deleted; err != nil {
			t.Errorf("deletion: %v", err)
		}
		if err := <-late; wire.CodeOf(err) != wire.CodeTopicNotFound {
			t.Errorf("late: %v, want topic-not-found", err)
		}
		if n := w.offsets.Subscriptions(); n != 0 {
			t.Errorf("%d subscriptions are left", n)
		}
	})
}

// TestNumberOfAGroup lets a group lose its only topic while its birth on another one is on its way: it keeps its number, which a
// birth on a third one gives it too.
func TestNumberOfAGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		defer w.close()
		for _, name := range []string{"one", "two", "three"} {
			w.topic(name, 1)
		}
		w.subscribe("one", "pay", wire.StartEnd)
		w.gate.shut()
		var all []chan error
		run := func(do func() error) {
			done := make(chan error, 1)
			go func() { done <- do() }()
			all = append(all, done)
			synctest.Wait()
		}
		subscribe := func(topic string) func() error {
			return func() error {
				_, err := w.broker.Subscribe(as("a"), &wire.SubscribeRequest{Topic: topic, Group: "pay"})
				return err
			}
		}
		run(func() error {
			_, err := w.broker.RemoveGroup(as("a"), &wire.RemoveGroupRequest{Topic: "one", Group: "pay"})
			return err
		})
		run(subscribe("two"))
		// One sync of a commit passes, of a segment that is made ahead perhaps another: the group is removed, and its birth on two
		// in the next commit.
		for range 20 {
			if w.offsets.Subscriptions() == 0 {
				break
			}
			w.gate.hold <- struct{}{}
			synctest.Wait()
		}
		if n := w.offsets.Subscriptions(); n != 0 {
			t.Errorf("%d subscriptions, want none", n)
		}
		run(subscribe("three"))
		w.gate.open()
		for i, done := range all {
			if err := <-done; err != nil {
				t.Errorf("%d: %v", i, err)
			}
		}
		if err := w.store.Err(); err != nil || w.offsets.Subscriptions() != 2 {
			t.Errorf("%d subscriptions, %v", w.offsets.Subscriptions(), err)
		}
	})
}

// TestHoles looks at a group that consumed every second message of very many: what operators ask costs the same as without holes.
func TestHoles(t *testing.T) {
	w := newWorld(t, Options{})
	defer w.close()
	w.topic("orders", 1)
	if _, err := w.broker.Subscribe(as("a"), &wire.SubscribeRequest{Topic: "orders", Group: "pay", Start: wire.StartBeginning, Policy: &wire.GroupPolicy{Parallel: true}}); err != nil {
		t.Fatal(err)
	}
	holes := 100_000
	if raceEnabled {
		holes = 40_000
	}
	for range 2 * holes / 1000 {
		if _, err := w.produce("orders", 0, batch(t, 1000, 0)); err != nil {
			t.Fatal(err)
		}
	}
	topic, _ := w.store.Topic(0, "orders")
	var ends []offset.End
	for i := range index.Index(holes) {
		ends = append(ends, offset.End{Group: groupID(w, "pay"), Topic: topicKey(&topic), Generation: 1, Outcome: wire.Acked, Range: offset.Range{From: 2*i + 1, To: 2*i + 2}})
	}
	done := make(chan error, 1)
	if err := w.store.AppendRecord(journal.KindEnd, offset.AppendEnds(nil, ends), func(err error) { done <- err }); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for name, ask := range map[string]func() error{
		"lag": func() error {
			r, err := w.broker.GroupLag(as("a"), &wire.GroupLagRequest{Topic: "orders", Group: "pay"})
			if err == nil && (r.Partitions[0].Lag != uint64(holes) || r.Partitions[0].Consumed != uint64(holes)) {
				err = fmt.Errorf("%v", r)
			}
			return err
		},
		"list": func() error {
			r, err := w.broker.ListGroups(as("a"), &wire.ListGroupsRequest{})
			if err == nil && r.Groups[0].Lag != uint64(holes) {
				err = fmt.Errorf("%v", r)
			}
			return err
		},
		"seek": func() error {
			r, err := w.broker.SeekGroup(as("a"), &wire.SeekGroupRequest{Topic: "orders", Group: "pay", To: uint32(wire.SeekShift), Shift: 10, DryRun: true})
			if err == nil && (r.Partitions[0].To != 10 || r.Partitions[0].LagFrom != uint64(holes) || r.Partitions[0].LagTo != uint64(2*holes-10)) {
				err = fmt.Errorf("%v", r)
			}
			return err
		},
	} {
		// A copy of the ranges would take 16 bytes each. What the store does in the background is counted too, but ends.
		least := ^uint64(0)
		for range 5 {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			if err := ask(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			runtime.ReadMemStats(&after)
			least = min(least, after.TotalAlloc-before.TotalAlloc)
		}
		if least > uint64(8*holes) {
			t.Errorf("%s allocates %d bytes", name, least)
		}
	}
	// A fetch goes on with them too.
	for i := range uint64(3) {
		f := w.fetch("a", wire.FetchRequest{Topic: "orders", Group: "pay", MessagesMax: 10})
		if f.err != nil || f.From != 2*i || f.To != 2*i+1 {
			t.Errorf("fetch %d: [%d,%d) %v", i, f.From, f.To, f.err)
		}
	}
}

// unusual is a store whose reads fail as a test wants.
type unusual struct {
	store.Store
	read func() error
}

func (u *unusual) Read(p store.Partition, from, to index.Index, bytesMax int, buf []byte) ([]byte, index.Index, error) {
	if err := u.read(); err != nil {
		return buf, from, err
	}
	return u.Store.Read(p, from, to, bytesMax, buf)
}

// TestReadErrors shows what a fetch and a peek are told for each error of a read.
func TestReadErrors(t *testing.T) {
	var fault atomic.Pointer[error]
	w := &world{t: t, fs: journaltest.New(nil)}
	w.wrap = func(s store.Store) store.Store {
		return &unusual{Store: s, read: func() error {
			if err := fault.Load(); err != nil {
				return *err
			}
			return nil
		}}
	}
	w.open()
	defer w.close()
	w.topic("orders", 1)
	w.subscribe("orders", "pay", wire.StartBeginning)
	if _, err := w.produce("orders", 0, batch(t, 4, 10)); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		err  error
		code wire.Code
		gap  wire.GapReason
	}{
		{&store.GapError{From: 0, To: 2}, wire.CodeOK, wire.GapDamaged},
		{fmt.Errorf("read: %w", store.ErrNoPartition), wire.CodeTopicNotFound, 0},
		{fmt.Errorf("read: %w", store.ErrDamaged), wire.CodeBusy, 0},
	} {
		fault.Store(&test.err)
		peek, err := w.broker.Peek(as("a"), &wire.PeekRequest{Topic: "orders", Index: 1, MessagesMax: 9})
		if wire.CodeOf(err) != test.code || err == nil && (wire.GapReason(peek.Gap) != test.gap || peek.From != 1 || peek.To != 2) {
			t.Errorf("peek with %v: %v %v", test.err, peek, err)
		}
		f := w.fetch("a", wire.FetchRequest{Topic: "orders", Group: "pay"})
		if wire.CodeOf(f.err) != test.code || f.Gap != test.gap || f.Gap != 0 && (f.From != 0 || f.To != 2 || f.Lease != 0) {
			t.Errorf("fetch with %v: %+v", test.err, f)
		}
	}
}

// TestUsage shows that the function which answers is asked within bounds, one question at a time, and its errors have a code.
func TestUsage(t *testing.T) {
	var asked []uint32
	fail := error(nil)
	w := newWorld(t, Options{Usage: func(_ context.Context, r *wire.StoreUsageRequest) (*wire.StoreUsageResponse, error) {
		asked = append(asked, r.HoldsMax)
		return &wire.StoreUsageResponse{State: "ok"}, fail
	}})
	defer w.close()
	for _, holds := range []uint32{0, 7, 1 << 31} {
		if r, err := w.broker.StoreUsage(as("a"), &wire.StoreUsageRequest{HoldsMax: holds}); err != nil || r.State != "ok" {
			t.Errorf("%v %v", r, err)
		}
	}
	if got := fmt.Sprint(asked); got != "[20 7 1000]" {
		t.Errorf("asked for %s holds", got)
	}
	fail = errors.New("no disk")
	if _, err := w.broker.StoreUsage(as("a"), &wire.StoreUsageRequest{}); wire.CodeOf(err) != wire.CodeInternal {
		t.Errorf("%v", err)
	}
	none := New(Options{Offsets: offset.NewTable()})
	defer none.Close()
	if _, err := none.StoreUsage(as("a"), &wire.StoreUsageRequest{}); wire.CodeOf(err) != wire.CodeUnknownCommand {
		t.Errorf("without a function: %v", err)
	}
}

// TestLongReason shows the bound of what people write into the journal.
func TestLongReason(t *testing.T) {
	w := newWorld(t, Options{})
	defer w.close()
	w.topic("orders", 1)
	long := string(make([]byte, reasonBytesMax+1))
	if _, err := w.broker.DeleteTopic(as("a"), &wire.DeleteTopicRequest{Topic: "orders", Reason: long}); wire.CodeOf(err) != wire.CodeTooLarge {
		t.Errorf("a reason that is too long: %v", err)
	}
	if _, err := w.broker.DeleteTopic(as("a"), &wire.DeleteTopicRequest{Topic: "orders", Reason: long[1:]}); err != nil {
		t.Error(err)
	}
}

// TestDeletedTopicsTakeNothing makes, fills, consumes and deletes many topics, at first while another one is in use: neither
// memory nor goroutines stay of them.
func TestDeletedTopicsTakeNothing(t *testing.T) {
	// A disk in memory would be counted too.
	w := &world{t: t, offsets: offset.NewTable()}
	w.broker = New(Options{Offsets: w.offsets})
	dir := t.TempDir()
	s, err := local.Open(local.Options{Dir: dir, Tables: []store.Table{w.offsets}, Gather: w.broker.Gather, SegmentBytesMax: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	w.store = s
	w.broker.Start(s)
	defer w.close()
	w.topic("orders", 4)
	stop := make(chan struct{})
	var load sync.WaitGroup
	load.Go(func() {
		for p := uint16(0); ; p = (p + 1) % 4 {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := w.produce("orders", p, batch(t, 1, 100)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	one := func(name string) error {
		if _, err := w.broker.CreateTopic(as("a"), &wire.CreateTopicRequest{Topic: name, Partitions: 4}); err != nil {
			return err
		}
		for _, group := range []string{"g0", name} {
			if _, err := w.broker.Subscribe(as("a"), &wire.SubscribeRequest{Topic: name, Group: group, Start: wire.StartBeginning}); err != nil {
				return err
			}
			parked := w.startFetch(as("b"), wire.FetchRequest{Topic: name, Group: group, Partitions: []uint32{3}, WaitMs: 30_000})
			defer func() { <-parked }()
		}
		for p := range uint16(3) {
			if _, err := w.produce(name, p, batch(t, 4, 100)); err != nil {
				return err
			}
		}
		f := w.fetch("a", wire.FetchRequest{Topic: name, Group: "g0", MessagesMax: 2})
		r := ackAll(f)
		r.Topic, r.Group = name, "g0"
		if a := <-w.startAck("a", r); f.err != nil || a.err != nil {
			return fmt.Errorf("%v, %v", f.err, a.err)
		}
		_, err := w.broker.DeleteTopic(as("a"), &wire.DeleteTopicRequest{Topic: name})
		return err
	}
	round := func(topics int) (heap uint64) {
		var next atomic.Int64
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for i := next.Add(1); i <= int64(topics); i = next.Add(1) {
					if err := one(fmt.Sprint("t", i)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		if err := w.store.Checkpoint(); err != nil {
			t.Error(err)
		}
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	topics := 300
	if raceEnabled {
		topics = 60
	}
	round(topics)
	close(stop)
	load.Wait()
	goroutines, before := runtime.NumGoroutine(), round(1)
	after := round(topics)
	if perTopic := (int(after) - int(before)) / topics; perTopic > 300 {
		t.Errorf("heap of %d bytes became %d, %d a topic", before, after, perTopic)
	}
	if n := runtime.NumGoroutine(); n > goroutines+2 {
		t.Errorf("%d goroutines became %d", goroutines, n)
	}
	if n := w.broker.Metrics().Dispatch.Queues; n != 0 {
		t.Errorf("%d queues", n)
	}
}

// audit keeps who did what, as the journal has it.
type audit struct {
	mu   sync.Mutex
	rows []string
}

func (a *audit) Name() string             { return "audit" }
func (a *audit) Snapshot(b []byte) []byte { return b }
func (a *audit) Restore([]byte) error     { return nil }
func (a *audit) Apply(rec journal.Record) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch rec.Kind {
	case journal.KindOffsetReset:
		r, err := offset.DecodeReset(rec.Payload)
		if err != nil {
			return err
		}
		a.rows = append(a.rows, fmt.Sprintf("%v %s on %s by %s: %s", r.Operation, r.GroupName, r.TopicName, r.Who, r.Why))
	case journal.KindTopic:
		r, err := store.ParseTopicRecord(rec.Payload)
		if err != nil {
			return err
		}
		a.rows = append(a.rows, fmt.Sprintf("topic %d %s by %s: %s", r.Operation, r.Topic.Name, r.Who, r.Why))
	}
	return nil
}

// TestAudit shows that the journal says of every change who made it and why, and nothing of what changed nothing.
func TestAudit(t *testing.T) {
	rows := &audit{}
	w := newWorld(t, Options{}, rows)
	defer w.close()
	ctx := wire.WithPeer(context.Background(), &wire.Peer{ClientID: "c-1", App: "shop", Addr: "10.0.0.7:4711"})
	two, group := uint32(2), "pay"
	for i, do := range []func() error{
		func() error {
			_, err := w.broker.CreateTopic(ctx, &wire.CreateTopicRequest{Topic: "orders", Partitions: 1})
			return err
		},
		func() error {
			_, err := w.broker.Subscribe(ctx, &wire.SubscribeRequest{Topic: "orders", Group: group})
			return err
		},
		func() error {
			_, err := w.broker.AlterTopic(ctx, &wire.AlterTopicRequest{Topic: "orders", Partitions: &two, Reason: "load"})
			return err
		},
		func() error {
			_, err := w.broker.AlterTopic(ctx, &wire.AlterTopicRequest{Topic: "orders", Partitions: &two, Reason: "again"})
			return err
		},
		func() error {
			_, err := w.broker.SeekGroup(ctx, &wire.SeekGroupRequest{Topic: "orders", Group: group, To: uint32(wire.SeekStart), DryRun: true, Reason: "looking"})
			return err
		},
		func() error {
			_, err := w.broker.SeekGroup(ctx, &wire.SeekGroupRequest{Topic: "orders", Group: group, To: uint32(wire.SeekStart), Reason: "again from the start"})
			return err
		},
		func() error {
			_, err := w.broker.AlterGroup(ctx, &wire.AlterGroupRequest{Topic: "orders", Group: group, Policy: &wire.GroupPolicy{Parallel: true}, Reason: "faster"})
			return err
		},
		func() error {
			_, err := w.broker.RemoveGroup(ctx, &wire.RemoveGroupRequest{Topic: "orders", Group: group, Reason: "gone"})
			return err
		},
		func() error {
			_, err := w.broker.DeleteTopic(ctx, &wire.DeleteTopicRequest{Topic: "orders", Reason: "over"})
			return err
		},
	} {
		if err := do(); err != nil {
			t.Errorf("step %d: %v", i, err)
		}
	}
	const who = "by app=shop client=c-1 addr=10.0.0.7:4711: "
	want := []string{"topic 1 orders " + who, "birth pay on orders " + who + "first subscription", "topic 2 orders " + who + "load", "move pay on orders " + who + "again from the start",
		"alter pay on orders " + who + "faster", "remove pay on orders " + who + "gone", "topic 3 orders " + who + "over"}
	rows.mu.Lock()
	defer rows.mu.Unlock()
	if !slices.Equal(rows.rows, want) {
		t.Errorf("the journal says\n%s\nwant\n%s", strings.Join(rows.rows, "\n"), strings.Join(want, "\n"))
	}
}
