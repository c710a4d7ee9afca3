package broker

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/journal/journaltest"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/servertest/script"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/server/store/local"
	"github.com/jmqio/jmq/wire"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if raceEnabled && !slices.ContainsFunc(os.Args, func(a string) bool { return strings.Contains(a, "rapid.checks") }) {
		flag.Set("rapid.checks", "40") // each takes ten times as long
	}
	goleak.VerifyTestMain(m)
}

// world is a broker on a store on a disk in memory, and the disk that is left when it crashes.
type world struct {
	t       testing.TB
	fs      *journaltest.FS
	gate    *gate // between the store and fs
	o       Options
	boot    uint32
	mute    atomic.Bool                   // the store does not ask for acks
	now     func() time.Time              // nil: time.Now
	tables  []store.Table                 // beside the offsets
	wrap    func(store.Store) store.Store // what the broker gets instead; nil: the store
	follow  **journal.Journal             // not nil: the store follows, and this is its log
	broker  *Broker
	store   *local.Store
	offsets *offset.Table
}

func newWorld(t testing.TB, o Options, tables ...store.Table) *world {
	w := &world{t: t, o: o, fs: journaltest.New(nil), tables: tables}
	w.open()
	return w
}

func (w *world) open() {
	w.t.Helper()
	w.boot++
	w.gate = &gate{FS: w.fs}
	w.offsets = offset.NewTable()
	w.o.Offsets, w.o.Boot = w.offsets, w.boot
	b := New(w.o)
	w.broker = b
	o := local.Options{
		FS: w.gate, Dir: "/store", Tables: append([]store.Table{w.offsets}, w.tables...), Gather: func(add func(journal.Kind, []byte, func(error))) {
			if !w.mute.Load() {
				b.Gather(add)
			}
		},
		SegmentBytesMax: 256 << 10, SegmentBytesFirst: 64 << 10, CheckpointEvery: time.Hour, IndexFlushBytes: 1, Now: w.now,
	}
	if o.Follow = w.follow != nil; o.Follow {
		o.OpenLog = func(lo local.LogOptions) (_ local.Log, err error) {
			lo.Follow = true
			*w.follow, err = journal.Open(lo)
			return *w.follow, err
		}
	}
	s, err := local.Open(o)
	if err != nil {
		w.t.Fatal(err)
	}
	w.store = s
	if w.wrap != nil {
		w.broker.Start(w.wrap(s))
	} else {
		w.broker.Start(s)
	}
}

func (w *world) close() {
	w.broker.Close()
	if err := w.store.Close(); err != nil && w.store.Err() == nil {
		w.t.Error(err)
	}
}

// crash closes the broker, and opens one on what the disk had at this moment if power was lost: percent of what was not synced, drawn by seed.
func (w *world) crash(percent int, seed uint64) {
	disk := w.fs.Crash(percent, rand.New(rand.NewPCG(seed, 0)))
	w.close()
	w.fs = journaltest.New(disk)
	w.open()
}

// as returns a context of a client.
func as(client string) context.Context {
	return wire.WithPeer(context.Background(), &wire.Peer{ClientID: client, App: "shop", Addr: "here"})
}

func batch(t testing.TB, n, size int) []byte {
	t.Helper()
	b, err := wire.AppendBatch(nil, [16]byte{}, 0, messages(n, size))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func messages(n, size int) []wire.Message {
	m := make([]wire.Message, n)
	for i := range m {
		m[i] = wire.Message{ID: [16]byte{byte(i)}, Body: []byte(strings.Repeat("x", size))}
	}
	return m
}

func (w *world) topic(name string, partitions uint32) {
	w.t.Helper()
	if _, err := w.broker.CreateTopic(as("admin"), &wire.CreateTopicRequest{Topic: name, Partitions: partitions}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) subscribe(topic, group string, start uint32) {
	w.t.Helper()
	if _, err := w.broker.Subscribe(as("a"), &wire.SubscribeRequest{Topic: topic, Group: group, Start: start}); err != nil {
		w.t.Fatal(err)
	}
}

// produce sends a batch and waits for its answer. When the broker is busy it tries again as it is told to: the segments
// here are so small that the next one is often not ready yet.
func (w *world) produce(topic string, partition uint16, b []byte) (uint64, error) {
	type answer struct {
		first uint64
		err   error
	}
	for {
		done := make(chan answer, 1)
		w.broker.Produce(as("a"), &wire.ProduceRequest{Topic: topic, Partition: partition, Batch: b}, func(r *wire.ProduceResponse, err error) {
			if err != nil {
				done <- answer{err: err}
				return
			}
			done <- answer{first: r.FirstIndex}
		})
		a := <-done
		if e, ok := errors.AsType[*wire.CodeError](a.err); ok && e.Code == wire.CodeBusy {
			time.Sleep(e.RetryAfter)
			continue
		}
		return a.first, a.err
	}
}

// fetched is a copy of an answer.
type fetched struct {
	wire.FetchResponse
	err error
}

func (w *world) startFetch(ctx context.Context, r wire.FetchRequest) chan fetched {
	done := make(chan fetched, 1)
	w.broker.Fetch(ctx, &r, func(r *wire.FetchResponse, err error) {
		if err != nil {
			done <- fetched{err: err}
			return
		}
		f := fetched{FetchResponse: *r}
		f.Batches = append([]byte(nil), r.Batches...)
		done <- f
	})
	return done
}

func (w *world) fetch(client string, r wire.FetchRequest) fetched {
	return <-w.startFetch(as(client), r)
}

type acked struct {
	codes []wire.Code
	err   error
}

func (w *world) startAck(client string, r wire.AckRequest) chan acked {
	done := make(chan acked, 1)
	w.broker.Ack(as(client), &r, func(r *wire.AckResponse, err error) {
		if err != nil {
			done <- acked{err: err}
			return
		}
		done <- acked{codes: append([]wire.Code(nil), r.Codes...)}
	})
	return done
}

// check compares the bytes of an answer with what it says: whole batches, without a gap, that hold [From, To).
func (f *fetched) check() error {
	at, rest := f.From, f.Batches
	for len(rest) > 0 {
		b, more, err := wire.SplitBatch(rest)
		if err == nil {
			err = b.Verify()
		}
		if err != nil {
			return err
		}
		if b.FirstIndex() > at || b.FirstIndex()+uint64(b.Count()) <= at || b.Partition() != f.Partition {
			return fmt.Errorf("batch [%d,%d) of partition %d where %d of partition %d should be", b.FirstIndex(), b.FirstIndex()+uint64(b.Count()), b.Partition(), at, f.Partition)
		}
		at, rest = b.FirstIndex()+uint64(b.Count()), more
	}
	if f.Lease != 0 && (f.From >= f.To || at < f.To) {
		return fmt.Errorf("batches up to %d for [%d,%d)", at, f.From, f.To)
	}
	return nil
}

// stage runs a script's commands on a world.
type stage struct {
	*world   // nil before open
	mu       sync.Mutex
	events   []string
	later    []string // of fetches that waited: their order among the others is not fixed
	fetches  int
	cancels  map[string]context.CancelFunc
	attached map[string][]*wire.Peer
	born     time.Time // when the bubble began
	lost     lostRanges
}

func (st *stage) say(format string, args ...any) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.events = append(st.events, fmt.Sprintf(format, args...))
}

func (st *stage) sayLater(format string, args ...any) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.later = append(st.later, fmt.Sprintf(format, args...))
}

func (st *stage) run(c script.Command) string {
	synctest.Wait()
	st.do(c)
	synctest.Wait()
	st.mu.Lock()
	defer st.mu.Unlock()
	out := ""
	slices.Sort(st.later)
	for _, e := range append(st.events, st.later...) {
		out += e + "\n"
	}
	st.events, st.later = nil, nil
	return out
}

func leaseText(id uint64) string { return fmt.Sprintf("%d.%d", id>>40, id&(1<<40-1)) }

func parseLease(c script.Command, text string) uint64 {
	boot, number, ok := strings.Cut(text, ".")
	a, errA := strconv.ParseUint(boot, 10, 24)
	b, errB := strconv.ParseUint(number, 10, 40)
	if !ok || errA != nil || errB != nil {
		c.Fatalf("lease %s", text)
	}
	return a<<40 | b
}

func (st *stage) do(c script.Command) {
	topic, group := c.Str("topic", "orders"), c.Str("group", "pay")
	ctx := as(c.Str("client", "a"))
	switch c.Name {
	case "open":
		if st.world != nil {
			st.open()
			return
		}
		st.world = &world{t: c.T, fs: journaltest.New(nil), wrap: func(s store.Store) store.Store { return gapped{s, &st.lost} }}
		abandoned := func(g offset.GroupID, t offset.Topic) bool {
			at := st.broker.Active(g, t)
			return at > 0 && time.Now().UnixNano()-at > int64(24*time.Hour)
		}
		st.o = Options{Abandoned: abandoned, BrokerGroup: "here", WaitersMax: c.Int("waiters", 0), SubscriptionsMax: c.Int("subscriptions", 0),
			TopicsMax: c.Int("topics", 0), AllPartitionsMax: c.Int("partitions", 0), RowsMax: c.Int("rows", 0)}
		st.world.open()
	case "close":
		st.close()
	case "crash": // percent=0
		st.crash(c.Int("percent", 0), 1)
	case "topic": // name=orders partitions=2, and settings as alter has them
		r, err := st.broker.CreateTopic(ctx, &wire.CreateTopicRequest{Topic: unquote(c, c.Str("name", "orders")), Partitions: uint32(c.Int("partitions", 2)), Settings: alteration(c, "").Settings})
		if err != nil {
			st.say("%v", short(err))
			return
		}
		st.say("%s", topicText(r.Topic))
	case "topics":
		r, err := st.broker.ListTopics(ctx, &wire.ListTopicsRequest{})
		if err != nil {
			st.say("%v", short(err))
			return
		}
		for _, t := range r.Topics {
			st.say("%s", topicText(t))
		}
	case "alter": // topic=orders partitions=3 age=1h bytes=1000 discard=true produce=paused consume=paused why=text
		r, err := st.broker.AlterTopic(ctx, alteration(c, topic))
		if err != nil {
			st.say("%v", short(err))
			return
		}
		st.say("%s", topicText(r.Topic))
	case "delete": // topic=orders why=text
		r, err := st.broker.DeleteTopic(ctx, &wire.DeleteTopicRequest{Topic: topic, Reason: c.Str("why", "")})
		if err != nil {
			st.say("%v", short(err))
			return
		}
		st.say("deleted %s", topicText(r.Topic))
	case "describe": // topic=orders
		r, err := st.broker.DescribeTopic(ctx, &wire.DescribeTopicRequest{Topic: topic})
		if err != nil {
			st.say("%v", short(err))
			return
		}
		st.say("%s", topicText(r.Topic))
		st.say("effective %s", settingsText(r.Effective))
		for _, p := range r.Partitions {
			st.say("%d: [%d,%d) %d bytes, from %s to %s", p.Partition, p.First, p.End, p.Bytes, timeText(p.OldestNs), timeText(p.NewestNs))
		}
		for _, g := range r.Groups {
			st.say("group %s", g)
		}
	case "peek": // partition=0 index=0 after=1m max=1 bytes=0; after counts from the bubble's begin
		r := &wire.PeekRequest{Topic: topic, Partition: uint32(c.Int("partition", 0)), Index: uint64(c.Int("index", 0)), MessagesMax: uint32(c.Int("max", 0)), BytesMax: uint32(c.Int("bytes", 0))}
		if after, ok := c.Args["after"]; ok {
			r.TimeNs = st.born.Add(c.Duration(after)).UnixNano()
		}
		a, err := st.broker.Peek(ctx, r)
		if err != nil {
			st.say("%v", short(err))
			return
		}
		f := fetched{FetchResponse: wire.FetchResponse{Partition: uint16(r.Partition), From: a.From, To: a.To, Batches: a.Batches}}
		if err := f.check(); err != nil {
			st.say("WRONG BYTES: %v", err)
		}
		st.say("[%d,%d) of [%d,%d), gap %v, %d bytes", a.From, a.To, a.First, a.End, wire.GapReason(a.Gap), len(a.Batches))
	case "writable":
		st.broker.SetWritable(true, "")
	case "unwritable": // why=text
		st.broker.SetWritable(false, c.Str("why", ""))
	case "route":
		r, err := st.broker.Route(ctx, &wire.RouteRequest{Topic: topic})
		if err != nil {
			st.say("%v", short(err))
			return
		}
		for _, p := range r.Partitions {
			st.say("partition %d at %s state %d", p.Partition, p.BrokerGroup, p.State)
		}
	case "subscribe": // group=pay start=0 parallel=true window=10
		r, err := st.broker.Subscribe(ctx, &wire.SubscribeRequest{Topic: topic, Group: unquote(c, group), Start: uint32(c.Int("start", 0)), Policy: policyArgs(c)})
		if err != nil {
			st.say("%v", short(err))
			return
		}
		st.say("partitions %d lease %v created %v%s", r.Partitions, time.Duration(r.LeaseMs)*time.Millisecond, r.Created, policyText(r.Policy))
	case "produce": // partition=0 n=1 size=10 times=1
		for range c.Int("times", 1) {
			b := batch(c.T, c.Int("n", 1), c.Int("size", 10))
			st.broker.Produce(ctx, &wire.ProduceRequest{Topic: unquote(c, topic), Partition: uint16(c.Int("partition", 0)), Batch: b}, func(r *wire.ProduceResponse, err error) {
				if err != nil {
					st.say("%v", short(err))
					return
				}
				st.say("index [%d,%d)", r.FirstIndex, r.FirstIndex+uint64(c.Int("n", 1)))
			})
		}
	case "fetch", "leave": // client=a member=0 max=0 bytes=0 wait=0s only=0,1 round=1; held=1.1,1.2 or held= reconciles
		st.fetches++
		name := c.Str("name", fmt.Sprintf("fetch %d", st.fetches))
		r := &wire.FetchRequest{Topic: topic, Group: group, Member: uint32(c.Int("member", 0)), MessagesMax: uint32(c.Int("max", 0)), BytesMax: uint32(c.Int("bytes", 0)),
			WaitMs: uint32(c.Duration(c.Str("wait", "0s")).Milliseconds())}
		r.Partitions = numbers(c, "only")
		_, r.Reconcile = c.Args["held"]
		for _, h := range strings.FieldsFunc(c.Args["held"], func(r rune) bool { return r == ',' }) {
			r.Held = append(r.Held, parseLease(c, h))
		}
		r.Round, r.Leave = uint64(c.Int("round", 0)), c.Name == "leave"
		ctx, cancel := context.WithCancel(ctx)
		st.cancels[name] = cancel
		parked := atomic.Bool{}
		st.broker.Fetch(ctx, r, func(r *wire.FetchResponse, err error) {
			say := st.say
			if parked.Load() {
				say = st.sayLater
			}
			switch {
			case err != nil:
				say("%s: %v", name, short(err))
			case r.Gap != 0:
				say("%s: gap %v partition %d [%d,%d)", name, r.Gap, r.Partition, r.From, r.To)
			case r.Lease == 0:
				say("%s: nothing", name)
			default:
				f := fetched{FetchResponse: *r}
				if err := f.check(); err != nil {
					say("%s: WRONG BYTES: %v", name, err)
				}
				attempt := ""
				if r.Attempt != 1 {
					attempt = fmt.Sprintf(", attempt %d", r.Attempt)
				}
				say("%s: lease %s partition %d [%d,%d) for %v, %d bytes%s", name, leaseText(r.Lease), r.Partition, r.From, r.To, time.Duration(r.LeaseMs)*time.Millisecond, len(r.Batches), attempt)
			}
		})
		parked.Store(true)
	case "cancel":
		st.cancels[strings.Join(c.Words, " ")]()
	case "ack": // lease=1.1 index=0..3 partition=0 outcome=1
		from, to := c.Span("index")
		r := &wire.AckRequest{Topic: topic, Group: group, Member: uint32(c.Int("member", 0)),
			Items: []wire.AckRange{{Partition: uint16(c.Int("partition", 0)), Lease: parseLease(c, c.Str("lease", "1.1")), From: from, To: to, Outcome: wire.Outcome(c.Int("outcome", int(wire.Acked)))}}}
		st.broker.Ack(ctx, r, func(r *wire.AckResponse, err error) {
			if err != nil {
				st.say("%v", short(err))
				return
			}
			st.say("%v", r.Codes[0])
		})
	case "lag":
		r, err := st.broker.GroupLag(ctx, &wire.GroupLagRequest{Topic: topic, Group: c.Str("group", "")})
		if err != nil {
			st.say("%v", short(err))
			return
		}
		for _, p := range r.Partitions {
			s := fmt.Sprintf("%s %d: [%d,%d) offset %d consumed %d lag %d generation %d", p.Group, p.Partition, p.First, p.End, p.AckOffset, p.Consumed, p.Lag, p.Generation)
			if p.Leased > 0 {
				s += fmt.Sprintf(" leased %d by %s", p.Leased, p.Member)
			}
			if p.Leases > 1 {
				s += fmt.Sprintf(" in %d leases", p.Leases)
			}
			if p.Expired > 0 {
				s += fmt.Sprintf(" expired %d at most %d times", p.Expired, p.AttemptsMax)
			}
			if c.Str("ages", "") == "true" {
				s += " since " + timeText(p.OldestNs)
			}
			st.say("%s", s)
		}
	case "groups": // topic= group=
		r, err := st.broker.ListGroups(ctx, &wire.ListGroupsRequest{Topic: c.Str("topic", ""), Group: c.Str("group", "")})
		if err != nil {
			st.say("%v", short(err))
			return
		}
		for _, g := range r.Groups {
			st.say("%s", groupText(g))
		}
	case "seek": // to=start|end|time|index|shift after=1m index=3 shift=-2 only=0,1 dry=true why=text
		r := &wire.SeekGroupRequest{Topic: topic, Group: group, To: uint32(seekNames[c.Str("to", "")]), Index: uint64(c.Int("index", 0)),
			DryRun: c.Str("dry", "") == "true", Reason: c.Str("why", ""), Partitions: numbers(c, "only")}
		if n, err := strconv.ParseInt(c.Str("shift", "0"), 10, 64); err != nil {
			c.Fatalf("%v", err)
		} else {
			r.Shift = n
		}
		if after, ok := c.Args["after"]; ok {
			r.TimeNs = st.born.Add(c.Duration(after)).UnixNano()
		}
		a, err := st.broker.SeekGroup(ctx, r)
		if err != nil {
			st.say("%v", short(err))
			return
		}
		for _, p := range a.Partitions {
			st.say("%d: [%d,%d) from %d to %d, lag %d to %d, generation %d%s", p.Partition, p.First, p.End, p.From, p.To, p.LagFrom, p.LagTo, p.Generation, map[bool]string{true: ", cut"}[p.Cut])
		}
	case "policy": // parallel=true window=10 why=text
		r, err := st.broker.AlterGroup(ctx, &wire.AlterGroupRequest{Topic: topic, Group: group, Policy: policyArgs(c), Reason: c.Str("why", "")})
		if err != nil {
			st.say("%v", short(err))
			return
		}
		st.say("%s", policyText(r.Policy))
	case "remove": // force=true why=text
		if _, err := st.broker.RemoveGroup(ctx, &wire.RemoveGroupRequest{Topic: topic, Group: group, Force: c.Str("force", "") == "true", Reason: c.Str("why", "")}); err != nil {
			st.say("%v", short(err))
			return
		}
		st.say("removed")
	case "extend": // lease=1.1 partition=0 by=10m
		r, err := st.broker.Extend(ctx, &wire.ExtendRequest{Topic: topic, Group: group, Member: uint32(c.Int("member", 0)),
			Leases:   []*wire.LeaseName{{Partition: uint32(c.Int("partition", 0)), Lease: parseLease(c, c.Str("lease", "1.1"))}},
			ExtendMs: uint32(c.Duration(c.Str("by", "0s")).Milliseconds())})
		if err != nil {
			st.say("%v", short(err))
			return
		}
		if code := wire.Code(r.Codes[0]); code != wire.CodeOK {
			st.say("%v", code)
			return
		}
		st.say("extended for %v", time.Duration(r.LeaseMs)*time.Millisecond)
	case "trim": // partition=0 first=3
		t, _ := st.store.Topic(0, topic)
		if err := st.store.Trim(partitionOf(&t, uint32(c.Int("partition", 0))), index.Index(c.Int("first", 0))); err != nil {
			st.say("%v", err)
		}
	case "lose": // partition=0 index=3..5: those messages cannot be read any more
		from, to := c.Span("index")
		st.lost.add(uint16(c.Int("partition", 0)), store.GapError{From: index.Index(from), To: index.Index(to)})
	case "metrics":
		m := st.broker.Metrics()
		st.say("skipped %d damaged, %d trimmed; read errors %d; leases %d, waiting %d", m.SkippedDamaged, m.SkippedTrimmed, m.ReadErrors, m.Dispatch.Leased, m.Dispatch.Waiting)
	case "attach":
		p := wire.PeerFrom(ctx)
		if err := st.broker.Attach(p); err != nil {
			st.say("%v", err)
			break
		}
		st.attached[p.ClientID] = append(st.attached[p.ClientID], p)
	case "detach":
		id := wire.PeerFrom(ctx).ClientID
		last := len(st.attached[id]) - 1
		st.broker.Detach(st.attached[id][last])
		st.attached[id] = st.attached[id][:last]
	case "advance":
		time.Sleep(c.Duration(c.Words[0]))
	case "break": // write=k: the k-th write from now on fails; sync: the next sync; read: every read
		st.fail(c)
	case "mend":
		st.fs.SetBefore(nil)
	default:
		c.Fatalf("unknown command %q", c.Name)
	}
}

var seekNames = map[string]wire.SeekTo{"start": wire.SeekStart, "end": wire.SeekEnd, "time": wire.SeekTime, "index": wire.SeekIndex, "shift": wire.SeekShift}

func numbers(c script.Command, name string) (list []uint32) {
	for _, o := range strings.FieldsFunc(c.Args[name], func(r rune) bool { return r == ',' }) {
		n, err := strconv.ParseUint(o, 10, 32)
		if err != nil {
			c.Fatalf("%v", err)
		}
		list = append(list, uint32(n))
	}
	return list
}

// policyArgs is nil without parallel=.
func policyArgs(c script.Command) *wire.GroupPolicy {
	parallel, ok := c.Args["parallel"]
	if !ok {
		return nil
	}
	return &wire.GroupPolicy{Parallel: parallel == "true", Window: uint32(c.Int("window", 0))}
}

// policyText says what is not the default.
func policyText(p *wire.GroupPolicy) string {
	if !p.GetParallel() {
		return ""
	}
	return fmt.Sprintf(" parallel %d", p.Window)
}

func groupText(g *wire.GroupSummary) string {
	s := fmt.Sprintf("%s on %s%s partitions %d lag %d leased %d members %d waiting %d active %s", g.Group, g.Topic, policyText(g.Policy), g.Partitions, g.Lag, g.Leased, g.Members, g.Waiting, timeText(g.ActiveNs))
	if g.Abandoned {
		s += " abandoned"
	}
	if r := g.LastReset; r != nil {
		s += fmt.Sprintf(" moved %s by %q: %s", timeText(r.TimeNs), r.Who, r.Reason)
	}
	return s
}

// lostRanges are messages that reads find damaged, by partition.
type lostRanges struct {
	mu   sync.Mutex
	gaps map[uint16][]store.GapError
}

func (l *lostRanges) add(p uint16, gap store.GapError) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gaps == nil {
		l.gaps = map[uint16][]store.GapError{}
	}
	l.gaps[p] = append(l.gaps[p], gap)
}

// gapped is a store that has lost them.
type gapped struct {
	store.Store
	lost *lostRanges
}

func (g gapped) Read(p store.Partition, from, to index.Index, bytesMax int, buf []byte) ([]byte, index.Index, error) {
	g.lost.mu.Lock()
	defer g.lost.mu.Unlock()
	for _, gap := range g.lost.gaps[p.Partition] {
		if gap.From <= from && from < gap.To {
			return buf, from, &gap
		}
		if from < gap.From {
			to = min(to, gap.From)
		}
	}
	out, next, err := g.Store.Read(p, from, to, bytesMax, buf)
	return out, min(next, max(to, from)), err
}

func alteration(c script.Command, topic string) *wire.AlterTopicRequest {
	r := &wire.AlterTopicRequest{Topic: topic, Settings: &wire.TopicSettings{}, Reason: c.Str("why", "")}
	if _, ok := c.Args["partitions"]; ok {
		n := uint32(c.Int("partitions", 0))
		r.Partitions = &n
	}
	if age, ok := c.Args["age"]; ok {
		ms := c.Duration(age).Milliseconds()
		r.Settings.RetentionMs = &ms
	}
	if _, ok := c.Args["bytes"]; ok {
		n := int64(c.Int("bytes", 0))
		r.Settings.RetentionBytes = &n
	}
	flag := func(to **bool, name, set string) {
		if v, ok := c.Args[name]; ok {
			is := v == set
			*to = &is
		}
	}
	flag(&r.Settings.DiscardUnconsumed, "discard", "true")
	flag(&r.Settings.PauseProduce, "produce", "paused")
	flag(&r.Settings.PauseConsume, "consume", "paused")
	return r
}

func topicText(t *wire.Topic) string {
	s := fmt.Sprintf("topic %s %d.%d partitions %d", t.Name, t.Id, t.Incarnation, t.Partitions)
	if more := settingsText(t.Settings); more != "" {
		s += " " + more
	}
	return s
}

// settingsText names what is not the default.
func settingsText(s *wire.TopicSettings) string {
	var words []string
	if ms := s.GetRetentionMs(); ms != 0 {
		words = append(words, fmt.Sprint("age ", time.Duration(ms)*time.Millisecond))
	}
	if n := s.GetRetentionBytes(); n != 0 {
		words = append(words, fmt.Sprint("bytes ", n))
	}
	for _, f := range []struct {
		is   bool
		word string
	}{{s.GetDiscardUnconsumed(), "discard"}, {s.GetPauseProduce(), "produce-paused"}, {s.GetPauseConsume(), "consume-paused"}} {
		if f.is {
			words = append(words, f.word)
		}
	}
	return strings.Join(words, " ")
}

func timeText(ns int64) string {
	if ns == 0 {
		return "none"
	}
	return time.Unix(0, ns).UTC().Format("15:04:05")
}

func (st *stage) fail(c script.Command) {
	what := c.Words[0]
	st.fs.SetBefore(func(op journaltest.Op) journaltest.Fault {
		switch {
		case what == "sync" && (op.Call == journaltest.SyncData || op.Call == journaltest.Sync),
			what == "read" && op.Call == journaltest.Read && strings.Contains(op.Path, ".journal"):
			return journaltest.Fault{Err: journaltest.ErrInjected}
		}
		return journaltest.Fault{}
	})
}

// unquote lets a name have any byte: name="a\x00b", without blanks.
func unquote(c script.Command, s string) string {
	if !strings.HasPrefix(s, `"`) {
		return s
	}
	u, err := strconv.Unquote(s)
	if err != nil {
		c.Fatalf("%s: %v", s, err)
	}
	return u
}

// short is an error without its remedy, cut where it gets long.
func short(err error) string {
	e, ok := errors.AsType[*wire.CodeError](err)
	if !ok {
		return "WITHOUT CODE: " + err.Error()
	}
	s := e.Code.String() + ": " + e.Message
	if len(s) > 150 {
		s = s[:150] + "..."
	}
	if e.RetryAfter > 0 {
		s += fmt.Sprintf(", again after %v", e.RetryAfter)
	}
	return s
}

// TestScripts runs testdata/*.txt, each with its own disk in its own bubble of time.
func TestScripts(t *testing.T) {
	script.Each(t, func(t *testing.T, file string) {
		synctest.Test(t, func(t *testing.T) {
			st := &stage{cancels: map[string]context.CancelFunc{}, attached: map[string][]*wire.Peer{}, born: time.Now()}
			defer func() {
				for _, cancel := range st.cancels {
					cancel()
				}
				st.close()
			}()
			script.Run(t, file, st.run)
		})
	})
}
