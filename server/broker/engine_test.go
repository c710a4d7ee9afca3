package broker

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/klauspost/compress/snappy"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/journal/journaltest"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/servertest/mutate"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/wire"
)

// seal makes the checksum of a batch right.
func seal(b []byte) []byte {
	binary.LittleEndian.PutUint32(b[40:], crc32.Checksum(b[44:], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// TestBadBatches sends batches that are wrong in one way each: every one has its code, and nothing is stored of it.
func TestBadBatches(t *testing.T) {
	w := newWorld(t, Options{})
	defer w.close()
	w.topic("orders", 1)
	good := batch(t, 3, 100)
	change := func(f func(b []byte)) []byte {
		b := slices.Clone(good)
		f(b)
		return b
	}
	compressed := func(c wire.Compression, f func(b []byte) []byte) []byte {
		b, err := new(wire.Codec).AppendBatch(nil, [16]byte{}, 0, c, messages(3, 1000))
		if err != nil {
			t.Fatal(err)
		}
		b = f(b)
		binary.LittleEndian.PutUint32(b, uint32(len(b)))
		return seal(b)
	}
	whole := func(b []byte) []byte { return b }
	// What is hidden by compression is judged as what is not.
	attributes := func(b []byte) []byte {
		raw := slices.Clone(good[wire.BatchHeaderBytes:])
		raw[31] = 0x40 // of the first message
		b = append(b[:wire.BatchHeaderBytes], snappy.Encode(nil, raw)...)
		binary.LittleEndian.PutUint32(b[72:], uint32(len(raw)))
		return b
	}
	for _, test := range []struct {
		name  string
		batch []byte
		want  wire.Code
	}{
		{"nothing", nil, wire.CodeMalformed},
		{"half a header", good[:50], wire.CodeMalformed},
		{"cut", good[:len(good)-1], wire.CodeMalformed},
		{"a byte more", append(slices.Clone(good), 0), wire.CodeMalformed},
		{"version", change(func(b []byte) { b[4] = 1 }), wire.CodeUnsupportedVersion},
		{"flags", seal(change(func(b []byte) { b[45] = 1 })), wire.CodeInvalid},
		{"compression", seal(change(func(b []byte) { b[44] = 9 })), wire.CodeInvalid},
		{"count 0", seal(change(func(b []byte) { b[46] = 0 })), wire.CodeInvalid},
		{"count 4 of 3", seal(change(func(b []byte) { b[46] = 4 })), wire.CodeMalformed},
		{"count 2 of 3", seal(change(func(b []byte) { b[46] = 2 })), wire.CodeMalformed},
		{"length of a message", seal(change(func(b []byte) { b[wire.BatchHeaderBytes]++ })), wire.CodeMalformed},
		{"not zstd", compressed(wire.CompressionZstd, func(b []byte) []byte { b[wire.BatchHeaderBytes] ^= 1; return b }), wire.CodeCorrupt},
		{"lz4, cut", compressed(wire.CompressionLZ4, func(b []byte) []byte { return b[:len(b)-2] }), wire.CodeCorrupt},
		{"snappy of another size", compressed(wire.CompressionSnappy, func(b []byte) []byte { b[72]++; return b }), wire.CodeCorrupt},
		{"zstd with count 2 of 3", compressed(wire.CompressionZstd, func(b []byte) []byte { b[46] = 2; return b }), wire.CodeMalformed},
		{"attributes", seal(change(func(b []byte) { b[wire.BatchHeaderBytes+31] |= 0x40 })), wire.CodeInvalid},
		{"snappy with attributes", compressed(wire.CompressionSnappy, attributes), wire.CodeInvalid},
		{"zstd", compressed(wire.CompressionZstd, whole), wire.CodeOK},
		{"lz4", compressed(wire.CompressionLZ4, whole), wire.CodeOK},
		{"snappy", compressed(wire.CompressionSnappy, whole), wire.CodeOK},
		{"good", good, wire.CodeOK},
	} {
		before := w.broker.Metrics().MessagesIn
		_, err := w.produce("orders", 0, test.batch)
		if got := wire.CodeOf(err); got != test.want {
			t.Errorf("%s: %v (%v), want %v", test.name, got, err, test.want)
		}
		if stored := w.broker.Metrics().MessagesIn - before; (stored != 0) != (test.want == wire.CodeOK) {
			t.Errorf("%s: %d messages were stored", test.name, stored)
		}
	}
	// Each bit of what the checksum guards.
	for i := 60 * 8; i < len(good)*8; i += 7 {
		if _, err := w.produce("orders", 0, change(func(b []byte) { b[i/8] ^= 1 << (i % 8) })); err == nil {
			t.Fatalf("bit %d was flipped and nobody noticed", i)
		}
	}
	// The limits.
	largest := batch(t, 1, wire.BodyBytesMax)
	if _, err := w.produce("orders", 0, largest); err != nil {
		t.Errorf("a body of the limit: %v", err)
	}
	over := slices.Clone(largest)
	over = append(over, make([]byte, wire.BatchBytesMax-len(over)+1)...)
	binary.LittleEndian.PutUint32(over, uint32(len(over)))
	if _, err := w.produce("orders", 0, seal(over)); wire.CodeOf(err) != wire.CodeTooLarge {
		t.Errorf("a batch over the limit: %v", err)
	}
	if _, err := w.produce("orders", 0, batch(t, wire.BatchMessagesMax, 1)); err != nil {
		t.Errorf("as many messages as can be: %v", err)
	}
}

// TestLargeAnswer fetches a batch that is larger than the bytes asked for, and several that together are.
func TestLargeAnswer(t *testing.T) {
	w := newWorld(t, Options{})
	defer w.close()
	w.topic("orders", 1)
	w.subscribe("orders", "pay", wire.StartBeginning)
	for range 4 {
		if _, err := w.produce("orders", 0, batch(t, 1, 60_000)); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range []struct{ bytes, messages uint32 }{{1, 1}, {130_000, 2}, {1 << 31, 1}} {
		f := w.fetch("a", wire.FetchRequest{Topic: "orders", Group: "pay", BytesMax: want.bytes, MessagesMax: 1 << 31})
		if f.err != nil || f.check() != nil || f.To-f.From != uint64(want.messages) {
			t.Fatalf("fetch %d of %d bytes: [%d,%d) %v %v, want %d messages", i, want.bytes, f.From, f.To, f.err, f.check(), want.messages)
		}
		if a := <-w.startAck("a", ackAll(f)); a.err != nil || a.codes[0] != wire.CodeOK {
			t.Fatal(a)
		}
	}
}

func ackAll(f fetched) wire.AckRequest {
	return wire.AckRequest{Topic: "orders", Group: "pay", Items: []wire.AckRange{{Partition: f.Partition, Lease: f.Lease, From: f.From, To: f.To, Outcome: wire.Acked}}}
}

// gate is a file system whose syncs can be held back. (A hook of journaltest.FS may not wait.)
type gate struct {
	vfs.FS
	mu   sync.Mutex
	hold chan struct{} // nil: open
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hold = make(chan struct{})
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.hold)
	g.hold = nil
}

func (g *gate) pass() {
	g.mu.Lock()
	hold := g.hold
	g.mu.Unlock()
	if hold != nil {
		<-hold
	}
}

func (g *gate) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := g.FS.Create(name, c)
	return g.file(f, err)
}

func (g *gate) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := g.FS.OpenReadWrite(name, c, opts...)
	return g.file(f, err)
}

func (g *gate) file(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &gatedFile{f, g}, nil
}

type gatedFile struct {
	vfs.File
	g *gate
}

func (f *gatedFile) Sync() error     { f.g.pass(); return f.File.Sync() }
func (f *gatedFile) SyncData() error { f.g.pass(); return f.File.SyncData() }

// records counts what the store applies.
type records struct{ ends, resets, acks atomic.Int64 }

func (r *records) Name() string             { return "records" }
func (r *records) Snapshot(b []byte) []byte { return b }
func (r *records) Restore([]byte) error     { return nil }
func (r *records) Apply(rec journal.Record) error {
	switch rec.Kind {
	case journal.KindEnd:
		r.ends.Add(1)
		ends, err := offset.DecodeEnds(nil, rec.Payload)
		r.acks.Add(int64(len(ends)))
		return err
	case journal.KindOffsetReset:
		r.resets.Add(1)
	}
	return nil
}

// TestAcksShareARecord holds a commit back while many members ack: none is answered before its end is on disk, the repeated
// one too, and all of them are one record.
func TestAcksShareARecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counted := &records{}
		w := newWorld(t, Options{}, counted)
		defer w.close()
		const partitions = 16
		w.topic("orders", partitions)
		w.subscribe("orders", "pay", wire.StartBeginning)
		var given []fetched
		for p := range uint16(partitions) {
			if _, err := w.produce("orders", p, batch(t, 4, 10)); err != nil {
				t.Fatal(err)
			}
			given = append(given, w.fetch("a", wire.FetchRequest{Topic: "orders", Group: "pay"}))
		}
		w.gate.shut()
		var answers []chan acked
		produced := make(chan error, 1)
		go func() { // the commit that is held back may be led by whoever begins it
			_, err := w.produce("orders", 0, batch(t, 1, 10))
			produced <- err
		}()
		synctest.Wait()
		for _, f := range append(given, given[0]) {
			answers = append(answers, w.startAck("a", ackAll(f)))
		}
		released := ackAll(given[0])
		released.Items[0].From, released.Items[0].To, released.Items[0].Outcome = 4, 5, wire.Released
		synctest.Wait()
		for i, a := range answers {
			if len(a) > 0 {
				t.Errorf("ack %d was answered before its commit: %v", i, <-a)
			}
		}
		// What one's own acks leave can be had already.
		if f := w.fetch("a", wire.FetchRequest{Topic: "orders", Group: "pay"}); f.Lease != 0 || f.err != nil {
			t.Errorf("got [%d,%d) %v, want nothing", f.From, f.To, f.err)
		}
		w.gate.open()
		for i, a := range answers {
			want := wire.CodeOK
			if i == len(answers)-1 {
				want = wire.CodeAlreadyEnded
			}
			if got := <-a; got.err != nil || got.codes[0] != want {
				t.Errorf("ack %d: %v, want %v", i, got, want)
			}
		}
		if err := <-produced; err != nil {
			t.Error(err)
		}
		if e, a := counted.ends.Load(), counted.acks.Load(); e != 1 || a != partitions {
			t.Errorf("%d records with %d ends, want 1 with %d", e, a, partitions)
		}
	})
}

// TestReleaseNeedsNoDisk shows that what is given back is answered and given again while a commit is held back.
func TestReleaseNeedsNoDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		defer w.close()
		w.topic("orders", 1)
		w.subscribe("orders", "pay", wire.StartBeginning)
		if _, err := w.produce("orders", 0, batch(t, 4, 10)); err != nil {
			t.Fatal(err)
		}
		f := w.fetch("a", wire.FetchRequest{Topic: "orders", Group: "pay"})
		w.gate.shut()
		r := ackAll(f)
		r.Items[0].Outcome = wire.Released
		a := w.startAck("a", r)
		again := w.startFetch(as("b"), wire.FetchRequest{Topic: "orders", Group: "pay"})
		synctest.Wait()
		if len(a) == 0 || len(again) == 0 {
			t.Fatalf("%d and %d answers, want both", len(a), len(again))
		}
		if a, f := <-a, <-again; a.codes[0] != wire.CodeOK || f.To != 4 {
			t.Errorf("%v, then [%d,%d)", a, f.From, f.To)
		}
		w.gate.open()
	})
}

// deaf is a store that fails without a word to anybody: what that looks like in a commit that holds nothing of the broker's.
type deaf struct {
	store.Store
	err atomic.Pointer[error]
}

func (d *deaf) Err() error {
	if err := d.err.Load(); err != nil {
		return *err
	}
	return d.Store.Err()
}

// TestSilentFailure shows that an ack which nobody will ever commit is answered, and that Close does not wait for it.
func TestSilentFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d *deaf
		flushed := atomic.Int64{}
		w := &world{t: t, fs: journaltest.New(nil), o: Options{Flush: func() { flushed.Add(1) }}}
		w.wrap = func(s store.Store) store.Store { d = &deaf{Store: s}; return d }
		w.open()
		defer w.close()
		w.topic("orders", 1)
		w.subscribe("orders", "pay", wire.StartBeginning)
		if _, err := w.produce("orders", 0, batch(t, 4, 10)); err != nil {
			t.Fatal(err)
		}
		f := w.fetch("a", wire.FetchRequest{Topic: "orders", Group: "pay", MessagesMax: 2})
		waits := w.startFetch(as("b"), wire.FetchRequest{Topic: "orders", Group: "pay", WaitMs: 30_000})
		w.mute.Store(true)
		a := w.startAck("a", ackAll(f))
		time.Sleep(3 * time.Second)
		if len(a) > 0 {
			t.Fatalf("answered %v without a commit", <-a)
		}
		err := error(fmt.Errorf("%w: no-op", journal.ErrFailed))
		d.err.Store(&err)
		time.Sleep(failurePoll)
		synctest.Wait()
		if len(a) == 0 || len(waits) == 0 {
			t.Fatalf("%d, %d answers after the failure, want both", len(a), len(waits))
		}
		if a, f := <-a, <-waits; wire.CodeOf(a.err) != wire.CodeUnknown || wire.CodeOf(f.err) != wire.CodeFailed && f.Lease == 0 {
			t.Errorf("ack %v, fetch %v", a, f.err)
		}
		if _, err := w.produce("orders", 0, batch(t, 1, 10)); wire.CodeOf(err) != wire.CodeFailed {
			t.Errorf("produce: %v, want failed", err)
		}
		if flushed.Load() == 0 {
			t.Error("nobody was told that answers wait")
		}
	})
}

// TestSilentFailureWhileFetchesWait shows that a fetch which waits is told within a moment that the store has failed, though
// nobody else asks for anything.
func TestSilentFailureWhileFetchesWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d *deaf
		w := &world{t: t, fs: journaltest.New(nil)}
		w.wrap = func(s store.Store) store.Store { d = &deaf{Store: s}; return d }
		w.open()
		defer w.close()
		w.topic("orders", 1)
		w.subscribe("orders", "pay", wire.StartBeginning)
		waits := w.startFetch(as("a"), wire.FetchRequest{Topic: "orders", Group: "pay", WaitMs: 30_000})
		time.Sleep(failurePoll * 5 / 2)
		failed := time.Now()
		err := error(fmt.Errorf("%w: no-op", journal.ErrFailed))
		d.err.Store(&err)
		if f := <-waits; wire.CodeOf(f.err) != wire.CodeFailed || time.Since(failed) > failurePoll {
			t.Errorf("%v after %v", f.err, time.Since(failed))
		}
	})
}

// TestLeaseLog shows that the log calls a lease which ran out, and a new group, by the names that people know.
func TestLeaseLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		w := newWorld(t, Options{AckTimeout: time.Minute, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		w.topic("orders", 1)
		w.subscribe("orders", "pay", wire.StartBeginning)
		if _, err := w.produce("orders", 0, batch(t, 2, 10)); err != nil {
			t.Fatal(err)
		}
		w.fetch("a", wire.FetchRequest{Topic: "orders", Group: "pay"})
		time.Sleep(2 * time.Minute)
		w.close()
		for _, want := range []string{
			`msg="a group was made" topic=orders group=pay id=1 client=a start=beginning`,
			`msg="a lease ended before its messages did" why=timeout topic=orders group=pay partition=0 index=0 to=2 client=a`,
		} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("log has no %s:\n%s", want, &log)
			}
		}
	})
}

// TestFetchGivenUp shows that a fetch which its client gave up while it waited does not count as refused.
func TestFetchGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		defer w.close()
		w.topic("orders", 1)
		w.subscribe("orders", "pay", wire.StartBeginning)
		ctx, cancel := context.WithCancel(as("a"))
		waits := w.startFetch(ctx, wire.FetchRequest{Topic: "orders", Group: "pay", WaitMs: 30_000})
		synctest.Wait()
		cancel()
		if f := <-waits; wire.CodeOf(f.err) != wire.CodeTimeout {
			t.Errorf("%v, want timeout", f.err)
		}
		if refused := w.broker.Metrics().Refused; len(refused) != 0 {
			t.Errorf("refused: %v", refused)
		}
	})
}

// TestHeldBound shows how many leases a fetch may name.
func TestHeldBound(t *testing.T) {
	w := newWorld(t, Options{})
	defer w.close()
	w.topic("orders", 1)
	w.subscribe("orders", "pay", wire.StartBeginning)
	for n, want := range map[int]wire.Code{wire.FetchHeldMax: wire.CodeOK, wire.FetchHeldMax + 1: wire.CodeTooLarge} {
		if f := w.fetch("a", wire.FetchRequest{Topic: "orders", Group: "pay", Reconcile: true, Held: make([]uint64, n)}); wire.CodeOf(f.err) != want {
			t.Errorf("%d: %v, want %v", n, f.err, want)
		}
	}
}

// TestNoSpace fills the disk: sends are refused before anything is written, acks too, for now; and when there is room again
// the acks that were refused reach the disk with the next.
func TestNoSpace(t *testing.T) {
	w := newWorld(t, Options{})
	w.topic("orders", 1)
	w.subscribe("orders", "pay", wire.StartBeginning)
	for range 100 { // of a large one each fetch would copy all
		if _, err := w.produce("orders", 0, batch(t, 100, 0)); err != nil {
			t.Fatal(err)
		}
	}
	var last wire.Code
	w.fs.SetLimit(w.fs.Used())
	for i := 0; i < 1000 && last == wire.CodeOK; i++ {
		_, err := w.produce("orders", 0, batch(t, 4, 1000))
		last = wire.CodeOf(err)
	}
	if last != wire.CodeNoSpace {
		t.Fatalf("a full disk: %v, want no-space", last)
	}
	// The last bytes of the segment and the reserve take many acks, but not all.
	var refused fetched
	taken := 0
	for ; refused.Lease == 0; taken++ {
		f := w.fetch("a", wire.FetchRequest{Topic: "orders", Group: "pay", MessagesMax: 1})
		if f.err != nil || f.Lease == 0 {
			t.Fatalf("after %d acks: lease %d, %v", taken, f.Lease, f.err)
		}
		switch a := <-w.startAck("a", ackAll(f)); wire.CodeOf(a.err) {
		case wire.CodeOK:
		case wire.CodeNoSpace:
			refused = f
		default:
			t.Fatal(a.err)
		}
	}
	if taken < 200 {
		t.Errorf("%d acks were taken on the full disk, the reserve has room for more", taken)
	}
	w.fs.SetLimit(0)
	waitFor(t, func() bool { _, err := w.produce("orders", 0, batch(t, 1, 10)); return err == nil })
	if a := <-w.startAck("a", ackAll(refused)); a.err != nil || a.codes[0] != wire.CodeAlreadyEnded {
		t.Fatalf("again after there was room: %v, want already-ended", a)
	}
	w.crash(0, 1)
	defer w.close()
	if f := w.fetch("a", wire.FetchRequest{Topic: "orders", Group: "pay", MessagesMax: 1}); f.err != nil || f.From != refused.To {
		t.Errorf("after the restart [%d,%d) %v, want it to begin at %d", f.From, f.To, f.err, refused.To)
	}
}

// waitFor asks until it is so, for what happens in the background outside a bubble.
func waitFor(t *testing.T, good func() bool) {
	t.Helper()
	for begin := time.Now(); !good(); {
		if time.Since(begin) > 10*time.Second {
			t.Fatal("it did not become so within 10 s")
		}
	}
}

// TestStates shows what is answered before Start and after Close, and that Close ends what waits.
func TestStates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Options{Offsets: offset.NewTable()})
		if _, err := b.ListTopics(as("a"), nil); wire.CodeOf(err) != wire.CodeStopping {
			t.Errorf("before Start: %v", err)
		}
		b.Close()

		w := newWorld(t, Options{})
		w.topic("orders", 1)
		w.subscribe("orders", "pay", wire.StartBeginning)
		waits := w.startFetch(as("a"), wire.FetchRequest{Topic: "orders", Group: "pay", WaitMs: 30_000})
		synctest.Wait()
		w.close()
		if f := <-waits; wire.CodeOf(f.err) != wire.CodeStopping {
			t.Errorf("a fetch that waited: %v", f.err)
		}
		_, produce := w.produce("orders", 0, batch(t, 1, 10))
		_, subscribe := w.broker.Subscribe(as("a"), &wire.SubscribeRequest{Topic: "orders", Group: "pay"})
		_, create := w.broker.CreateTopic(as("a"), &wire.CreateTopicRequest{Topic: "x", Partitions: 1})
		_, route := w.broker.Route(as("a"), &wire.RouteRequest{Topic: "orders"})
		_, lag := w.broker.GroupLag(as("a"), &wire.GroupLagRequest{Topic: "orders"})
		_, list := w.broker.ListTopics(as("a"), nil)
		fetch := w.fetch("a", wire.FetchRequest{Topic: "orders", Group: "pay"}).err
		ack := (<-w.startAck("a", wire.AckRequest{Topic: "orders", Group: "pay"})).err
		for i, err := range []error{produce, subscribe, create, route, lag, list, fetch, ack} {
			if wire.CodeOf(err) != wire.CodeStopping {
				t.Errorf("request %d after Close: %v", i, err)
			}
		}
	})
}

// TestSubscribeAtOnce lets many clients make the same groups on two topics while messages are sent: each group comes into
// being once, has one number, and misses nothing that was sent after it was there.
func TestSubscribeAtOnce(t *testing.T) {
	counted := &records{}
	w := newWorld(t, Options{}, counted)
	defer w.close()
	w.topic("orders", 4)
	w.topic("returns", 2)
	var all sync.WaitGroup
	stop := make(chan struct{})
	all.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				for p := range uint16(4) {
					if _, err := w.produce("orders", p, batch(t, 2, 10)); err != nil {
						t.Error(err)
					}
				}
			}
		}
	})
	var created atomic.Int64
	var subscribers sync.WaitGroup
	for i := range 60 {
		subscribers.Go(func() {
			group := fmt.Sprint("g", i%5)
			for _, topic := range []string{"orders", "returns"} {
				r, err := w.broker.Subscribe(as(fmt.Sprint(i)), &wire.SubscribeRequest{Topic: topic, Group: group})
				if err != nil {
					t.Error(err)
					return
				}
				if r.Created {
					created.Add(1)
				}
			}
			// What is sent from now on is the group's.
			p := uint16(i % 4)
			first, err := w.produce("orders", p, batch(t, 1, 10))
			if err != nil {
				t.Error(err)
				return
			}
			lag, err := w.broker.GroupLag(as("a"), &wire.GroupLagRequest{Topic: "orders", Group: group})
			if err != nil || lag.Partitions[p].AckOffset > first {
				t.Errorf("group %s stands at %v (%v), message %d was sent after it was made", group, lag, err, first)
			}
		})
	}
	subscribers.Wait()
	close(stop)
	all.Wait()
	if created.Load() != 10 || counted.resets.Load() != 10 {
		t.Errorf("%d were told that they made a group, by %d records, want 10", created.Load(), counted.resets.Load())
	}
	ids := map[offset.GroupID]bool{}
	for i := range 5 {
		id, ok := w.offsets.Group(0, fmt.Sprint("g", i))
		if !ok || ids[id] {
			t.Errorf("group g%d has number %d, %v", i, id, ok)
		}
		ids[id] = true
	}
}

// TestGroupsShareAnIndex sends the same messages to a broker with one group and to one with twenty that all consume: the
// index files are the same, byte by byte, and fetches and acks touch none.
func TestGroupsShareAnIndex(t *testing.T) {
	run := func(t *testing.T, groups int) map[string][]byte {
		w := &world{t: t, fs: journaltest.New(nil), now: func() time.Time { return time.Unix(1_700_000_000, 0) }}
		w.open()
		defer w.close()
		w.topic("orders", 2)
		const batches, size = 8, 1000
		for i := range batches {
			synctest.Wait() // the next segment is ready, so that both runs write the same
			if _, err := w.produce("orders", uint16(i%2), batch(t, size, 1)); err != nil {
				t.Fatal(err)
			}
		}
		w.fs.TakeOps()
		for g := range groups {
			w.subscribe("orders", fmt.Sprint("g", g), wire.StartBeginning)
			for {
				f := w.fetch("a", wire.FetchRequest{Topic: "orders", Group: fmt.Sprint("g", g), MessagesMax: size})
				if f.err != nil {
					t.Fatal(f.err)
				}
				if f.Lease == 0 {
					break
				}
				r := ackAll(f)
				r.Group = fmt.Sprint("g", g)
				if a := <-w.startAck("a", r); a.err != nil || a.codes[0] != wire.CodeOK {
					t.Fatal(a)
				}
			}
		}
		for _, op := range w.fs.TakeOps() {
			if strings.Contains(op.Path, "/index/") {
				t.Errorf("consuming did: %v", op)
			}
		}
		if err := w.store.Checkpoint(); err != nil { // writes the index
			t.Fatal(err)
		}
		return journaltest.Files(w.fs, "/store/index")
	}
	var one, twenty map[string][]byte
	synctest.Test(t, func(t *testing.T) { one = run(t, 1) })
	synctest.Test(t, func(t *testing.T) { twenty = run(t, 20) })
	if len(one) == 0 || len(one) != len(twenty) {
		t.Fatalf("%d index files with one group, %d with twenty", len(one), len(twenty))
	}
	// The header says who the store is and up to where the run goes, which the acks move.
	const header = 64
	body := func(files map[string][]byte) (all []byte) {
		for _, name := range slices.Sorted(maps.Keys(files)) {
			if len(files[name]) < header {
				t.Fatalf("index file %s has %d bytes", name, len(files[name]))
			}
			all = append(all, files[name][header:]...)
		}
		return all
	}
	if want, got := body(one), body(twenty); !bytes.Equal(got, want) {
		k := 0
		for k < min(len(got), len(want)) && got[k] == want[k] {
			k++
		}
		t.Errorf("index files of %d bytes differ with twenty groups, of %d bytes, from byte %d on", len(want), len(got), k)
	}
}

// TestProduceKnowsTheRoute shows that an answer tells the topic's id and the version of its route where the send's were others, and that
// those of another topic, or of one that is gone, lead nowhere but to the topic of the name.
func TestProduceKnowsTheRoute(t *testing.T) {
	w := newWorld(t, Options{})
	defer w.close()
	w.topic("orders", 1)
	route := func() *wire.RouteResponse {
		r, err := w.broker.Route(as("a"), &wire.RouteRequest{Topic: "orders"})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	type told struct{ id, version uint64 }
	send := func(ctx context.Context, topic string, r *wire.RouteResponse) (got told, code wire.Code) {
		done := make(chan struct{})
		w.broker.Produce(ctx, &wire.ProduceRequest{Topic: topic, TopicID: r.TopicId, RouteVersion: r.Version, Batch: batch(t, 1, 10)}, func(r *wire.ProduceResponse, err error) {
			if code = wire.CodeOf(err); err == nil {
				got = told{r.TopicID, r.RouteVersion}
			}
			close(done)
		})
		<-done
		return got, code
	}
	check := func(what string, ctx context.Context, topic string, r *wire.RouteResponse, wantTold told, want wire.Code) {
		t.Helper()
		if got, code := send(ctx, topic, r); got != wantTold || code != want {
			t.Errorf("%s: told %+v, %v; want %+v, %v", what, got, code, wantTold, want)
		}
	}
	now := func() told { r := route(); return told{r.TopicId, r.Version} }
	first := route()
	check("its own", as("a"), "orders", first, told{}, wire.CodeOK)
	check("none", as("a"), "orders", &wire.RouteResponse{}, now(), wire.CodeOK)
	check("the id alone", as("a"), "orders", &wire.RouteResponse{TopicId: first.TopicId}, now(), wire.CodeOK)
	check("the version alone", as("a"), "orders", &wire.RouteResponse{Version: first.Version}, now(), wire.CodeOK)
	check("an id that never was", as("a"), "orders", &wire.RouteResponse{TopicId: 1 << 63, Version: first.Version}, now(), wire.CodeOK)
	check("a name that is not there", as("a"), "nobody", first, told{}, wire.CodeTopicNotFound)
	other := wire.WithPeer(context.Background(), &wire.Peer{Namespace: 7, ClientID: "b", App: "shop", Addr: "here"})
	check("another namespace", other, "orders", first, told{}, wire.CodeTopicNotFound)
	w.topic("mails", 1)
	mails, err := w.broker.Route(as("a"), &wire.RouteRequest{Topic: "mails"})
	if err != nil {
		t.Fatal(err)
	}
	check("another's, as of another broker group", as("a"), "orders", mails, now(), wire.CodeOK)
	if m, _ := w.store.Topic(0, "mails"); true {
		if _, end, err := w.store.Bounds(store.Partition{Topic: m.ID, Incarnation: m.Incarnation}); err != nil || end != 0 {
			t.Errorf("%d messages in the topic of the id, %v", end, err)
		}
	}

	more := uint32(2)
	if _, err := w.broker.AlterTopic(as("admin"), &wire.AlterTopicRequest{Topic: "orders", Partitions: &more}); err != nil {
		t.Fatal(err)
	}
	check("more partitions", as("a"), "orders", first, now(), wire.CodeOK)
	if _, err := w.broker.DeleteTopic(as("admin"), &wire.DeleteTopicRequest{Topic: "orders"}); err != nil {
		t.Fatal(err)
	}
	check("gone", as("a"), "orders", first, told{}, wire.CodeTopicNotFound)
	w.topic("orders", 1)
	if second := route(); second.TopicId != first.TopicId {
		t.Errorf("ids %d and %d: the test wants one that is used again", first.TopicId, second.TopicId)
	}
	check("made again", as("a"), "orders", first, now(), wire.CodeOK)
}

// TestProduceAllocates shows what a send costs: at most two allocations up to the answer.
func TestProduceAllocates(t *testing.T) {
	s := &sink{}
	b := New(Options{Offsets: offset.NewTable()})
	defer b.Close()
	b.Start(s)
	r := &wire.ProduceRequest{Topic: "orders", Batch: batch(t, 1, 1024)}
	done := func(r *wire.ProduceResponse, err error) {
		if err != nil {
			t.Error(err)
		}
	}
	ctx := as("a")
	b.Produce(ctx, r, done)
	if n := testing.AllocsPerRun(1000, func() { b.Produce(ctx, r, done) }); n > 2 {
		t.Errorf("%v allocations a send, at most 2 are wanted", n)
	} else {
		t.Logf("%v allocations a send", n)
	}
}

// sink is a store that takes every batch and commits it at once.
type sink struct {
	store.Store
	batches [][]byte
	keep    bool
}

func (s *sink) Err() error                                     { return nil }
func (s *sink) Watch(func(p store.Partition, end index.Index)) {}
func (s *sink) Topics() []store.Topic                          { return nil }
func (s *sink) Topic(uint32, string) (store.Topic, bool) {
	return store.Topic{ID: 1, Incarnation: 1, Name: "orders", Partitions: 1}, true
}
func (s *sink) TopicByID(store.TopicID, uint32) (store.Topic, bool) { return store.Topic{}, false }

func (s *sink) AppendBatch(_ store.Partition, batch []byte, done func(index.Index, int64, error)) error {
	if s.keep {
		s.batches = append(s.batches, batch)
	}
	done(1, 2, nil)
	return nil
}

// FuzzProduce sends any bytes as a batch, with a checksum that is right so that they come far: what is taken can be read
// by a consumer to the last message.
func FuzzProduce(f *testing.F) {
	seeds := [][]byte{batch(f, 2, 10)}
	for _, c := range []wire.Compression{wire.CompressionZstd, wire.CompressionLZ4, wire.CompressionSnappy} {
		b, err := new(wire.Codec).AppendBatch(nil, [16]byte{}, 0, c, messages(2, 100))
		if err != nil {
			f.Fatal(err)
		}
		seeds = append(seeds, b)
	}
	s := &sink{keep: true}
	b := New(Options{Offsets: offset.NewTable()})
	f.Cleanup(b.Close)
	b.Start(s)
	codec := &wire.Codec{}
	mutate.Fuzz(f, mutate.Decoder{Seeds: seeds, Slowness: 4, AllocMost: 8 << 20, Check: func(t testing.TB, sent []byte) bool {
		if len(sent) >= wire.BatchHeaderBytes {
			sent = seal(slices.Clone(sent))
		}
		s.batches = nil
		answers := 0
		b.Produce(as("a"), &wire.ProduceRequest{Topic: "orders", Batch: sent}, func(_ *wire.ProduceResponse, err error) {
			answers++
			if _, ok := errors.AsType[*wire.CodeError](err); err != nil && !ok {
				t.Errorf("an error without a code: %v", err)
			}
		})
		if answers != 1 {
			t.Errorf("%d answers", answers)
		}
		for _, taken := range s.batches {
			parsed, err := wire.ParseBatch(taken)
			if err != nil {
				t.Fatal(err)
			}
			raw, err := codec.Messages(parsed, nil)
			if err != nil {
				t.Fatal(err)
			}
			n, it := 0, wire.IterateMessages(parsed, raw)
			for it.Next() {
				n++
			}
			if it.Err() != nil || n != parsed.Count() {
				t.Fatalf("%d of %d messages can be read: %v", n, parsed.Count(), it.Err())
			}
		}
		return len(s.batches) > 0
	}})
}

// TestConcurrent lets producers, consumers of two groups that come and go, and a reader of the backlog run at once: each
// group gets each message, and acks it once.
func TestConcurrent(t *testing.T) {
	w := newWorld(t, Options{Readers: 3})
	defer w.close()
	const partitions, producers, sends = 3, 4, 60
	w.topic("orders", partitions)
	groups := []string{"pay", "ship"}
	for _, g := range groups {
		w.subscribe("orders", g, wire.StartBeginning)
	}
	ctx, over := context.WithCancel(context.Background())
	var all, left sync.WaitGroup
	left.Add(len(groups) * producers * sends * 3)
	for i := range producers {
		all.Go(func() {
			for k := range sends {
				if _, err := w.produce("orders", uint16((i+k)%partitions), batch(t, 3, 100)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for g, group := range groups {
		var ended [partitions]offset.Ranges
		var mu sync.Mutex
		for m := range 3 {
			all.Go(func() {
				peer := &wire.Peer{ClientID: fmt.Sprint(group, m)}
				rng := rand.New(rand.NewPCG(uint64(m), uint64(g)))
				for ctx.Err() == nil {
					w.broker.Attach(peer)
					session, end := context.WithCancel(wire.WithPeer(ctx, peer))
					for range 1 + rng.IntN(10) {
						f := <-w.startFetch(session, wire.FetchRequest{Topic: "orders", Group: group, MessagesMax: 5, WaitMs: uint32(rng.IntN(300))})
						if f.err != nil && ctx.Err() == nil {
							t.Error(f.err)
						}
						if f.err != nil || f.Lease == 0 {
							continue
						}
						if err := f.check(); err != nil {
							t.Error(err)
						}
						r := ackAll(f)
						r.Group = group
						if rng.IntN(4) == 0 {
							r.Items[0].Outcome = wire.Released
						}
						a := <-w.startAck(peer.ClientID, r)
						if a.err != nil || a.codes[0] != wire.CodeOK {
							t.Errorf("ack of [%d,%d): %v", f.From, f.To, a)
							continue
						}
						if r.Items[0].Outcome == wire.Acked {
							mu.Lock()
							if n := ended[f.Partition].Add(offset.Range{From: index.Index(f.From), To: index.Index(f.To)}); n != f.To-f.From {
								t.Errorf("group %s: [%d,%d) of partition %d was acked before", group, f.From, f.To, f.Partition)
							}
							mu.Unlock()
							left.Add(-int(f.To - f.From))
						}
					}
					end()
					w.broker.Detach(peer)
				}
			})
		}
	}
	all.Go(func() {
		for ctx.Err() == nil {
			if _, err := w.broker.GroupLag(as("x"), &wire.GroupLagRequest{Topic: "orders"}); err != nil {
				t.Error(err)
			}
			w.broker.Metrics()
		}
	})
	left.Wait()
	over()
	all.Wait()
	m := w.broker.Metrics()
	if want := uint64(producers * sends * 3); m.MessagesIn != want || m.Acks != want*uint64(len(groups)) || m.Offsets.Ended != m.Acks || m.Offsets.Again != 0 {
		t.Errorf("in %d, acked %d, ended %+v, want %d in", m.MessagesIn, m.Acks, m.Offsets, want)
	}
	count := uint64(0)
	for _, n := range m.ProduceDuration.Counts {
		count += n
	}
	if count != m.BatchesIn || m.ProduceDuration.Sum <= 0 {
		t.Errorf("%d durations of %d batches, sum %v", count, m.BatchesIn, m.ProduceDuration.Sum)
	}
}

// TestDamagedMessages flips a bit of a stored message, while the broker runs or while it does not: two groups are told once each of the
// gap, get everything else, and are not told again after a restart.
func TestDamagedMessages(t *testing.T) {
	for _, running := range []bool{true, false} {
		t.Run(fmt.Sprint("running=", running), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, Options{})
				defer func() { w.close() }()
				w.topic("orders", 1)
				const batches, size, hit = 10, 4, 3
				for i := range batches {
					msgs := messages(size, 0)
					for j := range msgs {
						msgs[j].Body = fmt.Appendf(nil, "message %d of batch %d.", j, i)
					}
					b, err := wire.AppendBatch(nil, [16]byte{}, 0, msgs)
					if err != nil {
						t.Fatal(err)
					}
					if _, err := w.produce("orders", 0, b); err != nil {
						t.Fatal(err)
					}
				}
				w.subscribe("orders", "pay", wire.StartBeginning)
				w.subscribe("orders", "ship", wire.StartBeginning)
				if !running {
					w.close()
				}
				w.flip("message 2 of batch 3.")
				if !running {
					w.open()
				}
				for _, group := range []string{"pay", "ship"} {
					var got, gaps offset.Ranges
					told, busy := 0, 0
					for {
						f := w.fetch("a", wire.FetchRequest{Topic: "orders", Group: group, MessagesMax: 7})
						if e, ok := errors.AsType[*wire.CodeError](f.err); ok && e.Code == wire.CodeBusy && busy < 2 {
							busy++                                      // until the store knows what is lost
							time.Sleep(e.RetryAfter + time.Millisecond) // the pause ends then too
							continue
						}
						if f.err != nil || f.check() != nil {
							t.Fatal(f.err, f.check())
						}
						if f.Gap != 0 {
							told++
							gaps.Add(offset.Range{From: index.Index(f.From), To: index.Index(f.To)})
							if f.Gap != wire.GapDamaged {
								t.Errorf("%s: gap %v", group, f.Gap)
							}
							continue
						}
						if f.Lease == 0 {
							break
						}
						got.Add(offset.Range{From: index.Index(f.From), To: index.Index(f.To)})
						r := ackAll(f)
						r.Group = group
						if a := <-w.startAck("a", r); a.err != nil || a.codes[0] != wire.CodeOK {
							t.Fatal(a)
						}
					}
					lost := offset.Range{From: hit * size, To: (hit + 1) * size}
					if told != 1 || fmt.Sprint(gaps) != fmt.Sprint(offset.Ranges{lost}) || got.Count(lost) != 0 || got.Len() != (batches-1)*size {
						t.Errorf("%s: told %d times of %v, got %v", group, told, gaps, got)
					}
				}
				synctest.Wait()
				w.crash(0, 1)
				r, err := w.broker.GroupLag(as("a"), &wire.GroupLagRequest{Topic: "orders"})
				if err != nil {
					t.Fatal(err)
				}
				for _, row := range r.Partitions {
					if row.Lag != 0 || row.AckOffset != batches*size {
						t.Errorf("after a restart: %v", row)
					}
				}
			})
		})
	}
}

// flip changes a bit of the one place in the journal's files where the text is.
func (w *world) flip(text string) {
	w.t.Helper()
	places := 0
	for name, content := range journaltest.Files(w.fs, "/store/journal") {
		at := bytes.Index(content, []byte(text))
		if at < 0 {
			continue
		}
		places++
		f, err := w.fs.Mem().OpenReadWrite("/store/journal/"+name, vfs.WriteCategoryUnspecified)
		if err != nil {
			w.t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte{content[at] ^ 1}, int64(at)); err != nil {
			w.t.Fatal(err)
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			w.t.Fatal(err)
		}
	}
	if places != 1 {
		w.t.Fatalf("%q is at %d places", text, places)
	}
}
