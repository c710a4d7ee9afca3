package calls

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/broker"
	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/replica"
	"github.com/jmqio/jmq/server/side"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/server/store/local"
	"github.com/jmqio/jmq/wire"
)

const (
	dir    = "/data"
	orders = "orders"
	aux    = "aux" // it comes and goes
)

// shape of a store.
type shape struct {
	segmentBytes int64
	checkpoint   int64 // bytes of journal
	large        int   // one batch of so many is
}

func newShape(rng *rand.Rand) shape {
	return shape{segmentBytes: 64 << 10 << rng.IntN(2), checkpoint: 16 << 10 << rng.IntN(8), large: 4 + rng.IntN(20)}
}

// world is a broker, the files that it keeps, and who uses it. Its methods are for one goroutine.
type world struct {
	shape
	rng    *rand.Rand
	ledger *ledger
	fs     vfs.FS

	broker  *broker.Broker
	store   *local.Store
	journal *journal.Journal
	offsets *offset.Table
	side    *side.File
	state   *replica.StateFile

	waiting sync.WaitGroup // for answers
	boots   uint32
	machine string
	keep    bool // nothing is trimmed
}

// options of the store on a file system.
func (s *shape) options(fs vfs.FS, offsets *offset.Table) local.Options {
	return local.Options{
		FS: fs, Dir: dir, Tables: []store.Table{offsets}, SegmentBytesMax: s.segmentBytes, SegmentBytesFirst: 64 << 10,
		CheckpointBytes: s.checkpoint, CheckpointEvery: time.Hour, IndexFlushBytes: 1, VerifyBytesPerSecond: -1,
	}
}

// open opens all; after an error nothing is open.
func (w *world) open(machine string) (err error) {
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	w.ledger.note(func(f *facts) { f.clean = false })
	if w.state, err = replica.OpenState(w.fs, dir, machine); err != nil {
		return err
	}
	w.ledger.note(func(f *facts) { f.adoptState(w.state.Get(), machine == w.machine) })
	w.machine = machine
	if w.side, err = side.Open(side.Options{FS: w.fs, Dir: dir}); err != nil {
		return err
	}
	w.offsets = offset.NewTable()
	w.boots++
	w.broker = broker.New(broker.Options{Offsets: w.offsets, Boot: w.boots, AckTimeout: time.Hour, Grace: time.Hour, Readers: 1})
	o := w.options(w.fs, w.offsets)
	o.Gather = w.broker.Gather
	o.OpenLog = func(lo local.LogOptions) (local.Log, error) {
		l, err := replica.OpenSolo(lo)
		if err != nil {
			return nil, err
		}
		w.journal = l.Journal
		return l, nil
	}
	if w.store, err = local.Open(o); err != nil {
		return err
	}
	w.broker.Start(w.store)
	// Who reads now is shown what is there for good.
	found, err := look(w.fs, w.store, w.offsets, w.side)
	if err != nil {
		return err
	}
	w.ledger.note(func(f *facts) { f.adopt(found) })
	return nil
}

// stop is a stop in order, as far as it goes.
func (w *world) stop() {
	w.waiting.Wait()
	state := w.state
	err := errors.Join(w.store.Err(), w.side.Err())
	w.broker.Close()
	err = errors.Join(err, w.store.Close())
	w.broker, w.store = nil, nil
	w.close()
	if err == nil && state.Err() == nil {
		w.ledger.note(func(f *facts) { f.stopping = true })
		if state.CleanStop() == nil {
			w.ledger.note(func(f *facts) { f.clean = true })
		}
	}
}

// close closes what is open. Errors are seen in what is left.
func (w *world) close() {
	if w.broker != nil {
		w.broker.Close()
		w.broker = nil
	}
	if w.store != nil {
		_ = w.store.Close()
		w.store = nil
	}
	w.waiting.Wait()
	if w.side != nil {
		_ = w.side.Close()
		w.side = nil
	}
	w.state = nil
}

var client = wire.WithPeer(context.Background(), &wire.Peer{ClientID: "client", App: "shop", Addr: "here"})

// step is one thing that clients, people or the broker itself do.
func (w *world) step() {
	steps := []func(){
		w.send, w.send, w.send, w.send, w.send, w.burst, w.repeat, w.consume, w.consume, w.consume, w.consume,
		w.subscribe, w.seek, w.create, w.auxiliary, w.auxiliary, w.alter, w.trim, w.checkpoint, w.remember, w.beside,
	}
	steps[w.rng.IntN(len(steps))]()
	if w.rng.IntN(3) == 0 {
		w.waiting.Wait()
	}
}

// settle waits until all that was asked for was answered.
func (w *world) settle() { w.waiting.Wait() }

// batch is that of a send, whose number is in each message.
func (s *send) batch(number int) []byte {
	rng := rand.New(rand.NewPCG(uint64(number), 7))
	messages := make([]wire.Message, s.messages)
	for i := range messages {
		body := bytesOf(number, i, rng.IntN(40))
		if s.messages == 1 && number%6 == 3 {
			body = bytesOf(number, i, 3000+rng.IntN(6000))
		}
		messages[i] = wire.Message{ID: [16]byte(body), Body: body}
	}
	var producer [16]byte
	binary.LittleEndian.PutUint64(producer[:], uint64(s.producer)+1)
	b, err := wire.AppendBatch(nil, producer, s.sequence, messages)
	if err != nil {
		panic(err)
	}
	return b
}

// bytesOf are the bytes of message i of a send, and so many more.
func bytesOf(number, i, more int) []byte {
	b := make([]byte, 16+more)
	binary.LittleEndian.PutUint64(b, uint64(number))
	binary.LittleEndian.PutUint64(b[8:], uint64(i))
	for k := range b[16:] {
		b[16+k] = byte(number*31 + i*7 + k)
	}
	return b
}

func (w *world) send() { w.sendTo(orders, w.rng.IntN(partitions), 1+w.rng.IntN(4)) }

// burst is several sends in one commit.
func (w *world) burst() {
	for range 2 + w.rng.IntN(6) {
		w.sendTo(orders, w.rng.IntN(partitions), 1+w.rng.IntN(3))
	}
}

func (w *world) sendTo(topic string, partition, messages int) {
	t, there := w.store.Topic(0, topic)
	if !there {
		return
	}
	s := send{topic: t, partition: uint16(partition), producer: w.rng.IntN(producers), messages: messages}
	number := 0
	w.ledger.note(func(f *facts) {
		number = len(f.sends)
		s.sequence = uint64(number) * 16
		f.sends = append(f.sends, s)
	})
	w.produce(number, s)
}

// repeat sends something again.
func (w *world) repeat() {
	var s send
	number := -1
	w.ledger.note(func(f *facts) {
		if n := len(f.sends); n > 0 {
			at := n - 1 - w.rng.IntN(min(n, 8))
			if f.sends[at].outcome != failed && f.sends[at].topic.Name == orders {
				f.sends[at].repeated = true
				number, s = at, f.sends[at]
			}
		}
	})
	if number >= 0 {
		w.produce(number, s)
	}
}

// produce sends a batch, of which the ledger has the outcome when it is answered.
func (w *world) produce(number int, s send) {
	w.waiting.Add(1)
	w.broker.Produce(client, &wire.ProduceRequest{Topic: s.topic.Name, Partition: s.partition, Batch: s.batch(number)}, func(r *wire.ProduceResponse, err error) {
		defer w.waiting.Done()
		w.ledger.note(func(f *facts) {
			switch {
			case err == nil:
				f.stored(number, index.Index(r.FirstIndex))
			case wire.CodeOf(err) != wire.CodeUnknown && f.sends[number].outcome == underWay && !f.sends[number].repeated:
				f.sends[number].outcome = failed
			}
		})
	})
}

// stored notes where a send is.
func (f *facts) stored(number int, first index.Index) {
	s := &f.sends[number]
	switch {
	case s.outcome == failed:
		f.problem(phantom, "send %d had failed, and is at index %d", number, first)
	case s.outcome == ok && s.first != first:
		f.problem(twice, "send %d is at index %d, and at %d", number, s.first, first)
	}
	s.outcome, s.first = ok, first
}

// consume fetches, and acks what came, or a part of it.
func (w *world) consume() {
	g := w.rng.IntN(len(groups))
	done := make(chan *wire.FetchResponse, 1)
	w.broker.Fetch(client, &wire.FetchRequest{Topic: orders, Group: groups[g], Member: 1, MessagesMax: uint32(1 + w.rng.IntN(12))}, func(r *wire.FetchResponse, err error) {
		if err != nil || r.Lease == 0 {
			done <- nil
			return
		}
		c := *r
		w.shown(&c)
		done <- &c
	})
	r := <-done
	if r == nil {
		return
	}
	from, to := r.From, r.To
	if w.rng.IntN(4) == 0 {
		from += w.rng.Uint64N(to - from)
	}
	if w.rng.IntN(4) == 0 {
		to = from + 1 + w.rng.Uint64N(to-from)
	}
	acked := offset.Range{From: index.Index(from), To: index.Index(to)}
	outcome := wire.Acked
	if w.rng.IntN(8) == 0 {
		outcome = wire.Skipped
	}
	items := []wire.AckRange{{Partition: r.Partition, Lease: r.Lease, From: from, To: to, Outcome: outcome}}
	for _, rest := range [][2]uint64{{r.From, from}, {to, r.To}} {
		if rest[0] < rest[1] {
			items = append(items, wire.AckRange{Partition: r.Partition, Lease: r.Lease, From: rest[0], To: rest[1], Outcome: wire.Released})
		}
	}
	w.ledger.note(func(f *facts) { f.acks++; f.standings[g][r.Partition].asked.Add(acked) })
	w.waiting.Add(1)
	w.broker.Ack(client, &wire.AckRequest{Topic: orders, Group: groups[g], Member: 1, Items: items}, func(a *wire.AckResponse, err error) {
		defer w.waiting.Done()
		if err == nil && a.Codes[0] == wire.CodeOK {
			w.ledger.note(func(f *facts) { f.standings[g][r.Partition].acked.Add(acked) })
		}
	})
}

// shown notes what a consumer is given: it is stored for good.
func (w *world) shown(r *wire.FetchResponse) {
	messages, err := messagesOf(r.Batches, nil)
	w.ledger.note(func(f *facts) {
		if err != nil {
			f.problem(other, "fetch: %v", err)
		}
		for _, m := range messages {
			if m.number >= len(f.sends) {
				f.problem(phantom, "a consumer got message %d of send %d, of %d", m.slot, m.number, len(f.sends))
				continue
			}
			f.stored(m.number, m.index-index.Index(m.slot))
		}
	})
}

func (w *world) subscribe() {
	g := w.rng.IntN(len(groups))
	if _, err := w.broker.Subscribe(client, &wire.SubscribeRequest{Topic: orders, Group: groups[g], Start: wire.StartBeginning}); err == nil {
		w.ledger.note(func(f *facts) { f.groups[g] = true })
	}
}

// seek moves a group.
func (w *world) seek() {
	if w.rng.IntN(3) > 0 {
		return
	}
	w.settle()
	g, p := w.rng.IntN(len(groups)), w.rng.IntN(partitions)
	w.ledger.note(func(f *facts) { f.standings[g][p].moving = true })
	r, err := w.broker.SeekGroup(client, &wire.SeekGroupRequest{Topic: orders, Group: groups[g], To: uint32(wire.SeekIndex), Index: w.rng.Uint64N(200), Partitions: []uint32{uint32(p)}})
	if err != nil {
		return
	}
	w.ledger.note(func(f *facts) {
		s := standing{}
		below := offset.Range{To: index.Index(r.Partitions[0].To)}
		s.acked.Add(below)
		s.asked.Add(below)
		f.standings[g][p] = s
	})
}

// create makes the topic that all is about.
func (w *world) create() { w.make(orders, partitions) }

func (w *world) make(name string, n uint32) {
	_, err := w.broker.CreateTopic(client, &wire.CreateTopicRequest{Topic: name, Partitions: n})
	t, there := w.store.Topic(0, name)
	w.ledger.note(func(f *facts) {
		switch {
		case there:
			f.topics[name], f.deleting[name] = t, false
		case err == nil:
			f.problem(lost, "topic %s was made, and is not there", name)
		}
	})
}

// auxiliary makes a topic, sends to it, or deletes it.
func (w *world) auxiliary() {
	t, there := w.store.Topic(0, aux)
	switch {
	case !there:
		w.make(aux, 1)
	case w.rng.IntN(3) > 0:
		w.sendTo(aux, 0, 1+w.rng.IntN(3))
	default:
		w.settle()
		w.ledger.note(func(f *facts) { f.deleting[aux] = true })
		if _, err := w.broker.DeleteTopic(client, &wire.DeleteTopicRequest{Topic: aux}); err != nil {
			return
		}
		w.ledger.note(func(f *facts) {
			delete(f.topics, aux)
			f.deleting[aux], f.gone = false, append(f.gone, t)
		})
	}
}

// alter changes a setting of a topic.
func (w *world) alter() {
	var n int64
	w.ledger.note(func(f *facts) { f.settings.asked++; n = int64(f.settings.asked) })
	if _, err := w.broker.AlterTopic(client, &wire.AlterTopicRequest{Topic: orders, Settings: &wire.TopicSettings{RetentionBytes: new(n << 20)}}); err == nil {
		w.ledger.note(func(f *facts) { f.settings.done = uint32(n) })
	}
}

// trim lets go of what all groups have acked.
func (w *world) trim() {
	t, there := w.store.Topic(0, orders)
	if !there || w.keep {
		return
	}
	p := w.rng.IntN(partitions)
	var to index.Index
	w.ledger.note(func(f *facts) {
		to = ^index.Index(0)
		for g := range groups {
			s := &f.standings[g][p]
			if !f.groups[g] || s.moving || len(s.acked) == 0 || s.acked[0].From > 0 {
				to = 0
				return
			}
			to = min(to, s.acked[0].To)
		}
		f.trim[p] = max(f.trim[p], to)
	})
	if to > 0 {
		_ = w.store.Trim(store.Partition{Topic: t.ID, Incarnation: t.Incarnation, Partition: uint16(p)}, to)
	}
	_, _ = w.store.Reclaim(context.Background())
}

func (w *world) checkpoint() { _ = w.store.Checkpoint() }

// remember has REPLICA keep something new.
func (w *world) remember() {
	if w.state.Err() != nil {
		return
	}
	var n uint32
	w.ledger.note(func(f *facts) { f.state.asked++; n = f.state.asked })
	if w.state.Update(func(s *replica.State) { s.Seen, s.Handing = n, uint64(n) }) == nil {
		w.ledger.note(func(f *facts) { f.state.done = n })
	}
}

// beside notes an ack in SIDE, or has them removed.
func (w *world) beside() {
	if w.side.Err() != nil {
		return
	}
	if w.rng.IntN(6) == 0 {
		w.ledger.note(func(f *facts) { f.sideMoving = true })
		if w.side.Remove() == nil {
			w.ledger.note(func(f *facts) { f.sideMoving, f.sideBegin = false, f.sides.asked })
		}
		return
	}
	var n uint32
	w.ledger.note(func(f *facts) { n = f.sides.asked; f.sides.asked++ })
	if w.side.Append(&side.Entries{Ends: []side.End{sideEnd(n)}}) == nil {
		w.ledger.note(func(f *facts) { f.sides.done = n + 1 })
	}
}

// sideEnd is entry n of SIDE.
func sideEnd(n uint32) side.End {
	return side.End{
		End:  offset.End{Group: 1, Topic: offset.Topic{ID: 1, Incarnation: 1}, Generation: 1, Outcome: wire.Acked, Range: offset.Range{From: index.Index(3 * n), To: index.Index(3*n + 2)}},
		Last: side.Record{Position: journal.Position(n * 64), Epoch: 1<<32 | 1},
	}
}
