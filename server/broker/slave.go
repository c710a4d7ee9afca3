package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmqio/jmq/server/dispatch"
	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/side"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/wire"
)

// A slave's broker stands over a store that follows a master's. Between Serve and StopServing, while the master is away, it gives
// consumers what the master had committed, and keeps their acks in the side file:
//
//	Serve        a copy of the offset table, with what the journal's tail and the side file say of messages that were handled
//	Fetch, Ack   as at a master, but for that copy; acks are answered when the side file is synced
//	StopServing  no lease any more; acks under way are answered; the copy is dropped. What the leases were is returned
//	ShipSide     the master is given the side file and those leases; when it has committed them the file goes
//
// The store's own table says what the journal says all the while, so checkpoints go on, and the store needs not be opened anew.

// Written is what a broker needs of its store to name the record of a message: where it was written first, and in which epoch.
// local.Store has it.
type Written interface {
	Written(p store.Partition, i index.Index) (journal.Position, journal.Epoch, error)
}

// Tail is what a slave's broker asks of its store, if it has it: each record above what is applied, in order, as far as they can be read. Their
// payloads are valid until each returns. local.Store has it.
type Tail interface {
	Tail(each func(r journal.Record) error) error
}

// slave is what a Broker with Options.Slave has beside. While it serves it owns a goroutine, which writes the side file.
type slave struct {
	b       *Broker
	turn    sync.Mutex // Serve and StopServing come one after another
	serving atomic.Bool
	wake    chan struct{} // has room for one
	mu      struct {
		sync.Mutex
		inside int           // requests that may take or change leases
		empty  chan struct{} // closed when inside is 0; nil: nobody waits
		since  time.Time
		behind bool
	}
	quit, done chan struct{} // of the goroutine; nil: there is none

	acked, unnamed atomic.Uint64
	buf            side.Entries
}

// Serving is in which way a slave serves.
type Serving struct {
	// Behind says that the slave is outside the in-sync set: there may be messages that it does not have.
	Behind bool
	Why    string // for people
}

// notMaster is the answer of one that is not asked.
func (b *Broker) notMaster() *wire.CodeError {
	err := wire.Errorf(wire.CodeNotMaster, "this broker is a slave of broker group %q", b.o.BrokerGroup)
	if b.o.Masters != nil {
		err.Nodes = b.o.Masters()
	}
	return err
}

// outside says why a request that enter refused is.
func (b *Broker) outside() error {
	if err := b.ready(); err != nil {
		return err
	}
	return b.notMaster()
}

// enter lets a request take or change leases until leave; false: the slave does not serve.
func (s *slave) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.serving.Load() {
		return false
	}
	s.mu.inside++
	return true
}

// stay is enter for what entered before and waited since: a fetch that is granted something while the slave stops serving is seen through.
func (s *slave) stay() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.inside++
}

func (s *slave) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.inside--; s.mu.inside == 0 && s.mu.empty != nil {
		close(s.mu.empty)
		s.mu.empty = nil
	}
}

// kick wakes the writer.
func (s *slave) kick() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// kickAcks has what waits for the disk written soon.
func (b *Broker) kickAcks() {
	if b.slave != nil {
		b.slave.kick()
		return
	}
	b.store.Kick()
}

// Serve lets a slave answer Fetch, Ack, Extend, Subscribe of groups that are there, Route, Peek and what describes. The caller knows that the
// master is away and that no other slave serves. It is an error to call it twice without StopServing.
func (b *Broker) Serve(how Serving) error {
	s := b.slave
	if s == nil || b.o.Side == nil {
		return errors.New("broker: only a slave with a side file serves as one")
	}
	s.turn.Lock()
	defer s.turn.Unlock()
	if err := b.ready(); err != nil {
		return err
	}
	if s.serving.Load() {
		return errors.New("broker: the slave serves already")
	}
	// The tail first: what is applied to the table meanwhile is noted again, which changes nothing.
	tail, err := b.tail()
	if err != nil {
		return fmt.Errorf("serve as a slave: the journal's tail: %w", err)
	}
	table, err := b.o.Offsets.Clone()
	if err != nil {
		return fmt.Errorf("serve as a slave: %w", err)
	}
	for _, r := range tail {
		if err := table.NoteRecord(r); err != nil {
			return fmt.Errorf("serve as a slave: the record at position %d: %w", r.Position, err)
		}
	}
	kept, other, err := s.note(table)
	if err != nil {
		return fmt.Errorf("serve as a slave: the side file: %w", err)
	}
	b.table.Store(table)
	b.dispatch.Restart()
	for _, t := range b.store.Topics() {
		b.dispatch.SetPaused(topicKey(&t), t.Settings.PauseConsume)
	}
	s.quit, s.done = make(chan struct{}), make(chan struct{})
	go s.run(s.quit, s.done)
	s.mu.Lock()
	s.mu.since, s.mu.behind = b.o.Now(), how.Behind
	s.serving.Store(true)
	s.mu.Unlock()
	b.o.Logger.Warn("the slave serves reads: its master is away", "brokerGroup", b.o.BrokerGroup, "behind", how.Behind, "why", how.Why,
		"tail", len(tail), "kept", kept, "ofOtherRecords", other)
	return nil
}

// tail returns the records about messages that were handled which lie above what is committed.
func (b *Broker) tail() (records []journal.Record, err error) {
	t, ok := b.store.(Tail)
	if !ok {
		return nil, nil
	}
	err = t.Tail(func(r journal.Record) error {
		if r.Kind == journal.KindEnd || r.Kind == journal.KindLeaseExpiry {
			r.Payload = slices.Clone(r.Payload)
			records = append(records, r)
		}
		return nil
	})
	return records, err
}

// note counts in table what the side file has, of records that are in this journal.
func (s *slave) note(table *offset.Table) (kept, other uint64, err error) {
	err = s.b.eachSide(func(e *side.Entries) error {
		for i := range e.Ends {
			if v := &e.Ends[i]; s.b.sameRecord(v.Topic, v.Partition, v.Range.To, v.Last) {
				table.Note([]offset.End{v.End}, nil, 0)
				kept++
			} else {
				other++
			}
		}
		for i := range e.Expiries {
			v := &e.Expiries[i]
			if s.b.sameRecord(v.Topic, v.Partition, v.Ranges[len(v.Ranges)-1].To, v.Last) {
				table.Note(nil, []offset.Expiry{v.Expiry}, 0)
				kept++
			} else {
				other++
			}
		}
		return nil
	})
	return kept, other, err
}

// eachSide calls each with what the side file has, if there is one.
func (b *Broker) eachSide(each func(e *side.Entries) error) error {
	if b.o.Side == nil {
		return nil
	}
	for at := int64(0); ; {
		parts, next, err := b.o.Side.Read(at, shipBytes)
		if err != nil || len(parts) == 0 {
			return err
		}
		e, err := side.Decode(parts)
		if err != nil {
			return err
		}
		if err := each(&e); err != nil {
			return err
		}
		at = next
	}
}

// recordOf names the record of the message before to.
func (b *Broker) recordOf(t offset.Topic, partition uint16, to index.Index) (side.Record, error) {
	w, ok := b.store.(Written)
	if !ok {
		return side.Record{}, errors.New("broker: the store cannot name records")
	}
	position, epoch, err := w.Written(store.Partition{Topic: store.TopicID(t.ID), Incarnation: t.Incarnation, Partition: partition}, to-1)
	return side.Record{Position: position, Epoch: epoch}, err
}

// sameRecord reports whether the message before to lies in that record here too: then all before it are the same as there.
func (b *Broker) sameRecord(t offset.Topic, partition uint16, to index.Index, r side.Record) bool {
	here, err := b.recordOf(t, partition, to)
	return err == nil && here == r && r != side.Record{}
}

// StopServing ends Serve: fetches that wait end with CodeNotMaster, acks under way are answered, and nothing is taken any more when it
// returns. It returns the leases that last, for ShipSide; nil if the slave did not serve.
func (b *Broker) StopServing() []*wire.SideLease {
	s := b.slave
	if s == nil {
		return nil
	}
	s.turn.Lock()
	defer s.turn.Unlock()
	if !s.serving.Load() {
		return nil
	}
	b.dispatch.Stop(b.notMaster())
	s.mu.Lock()
	s.serving.Store(false)
	var empty chan struct{}
	if s.mu.inside > 0 {
		empty = make(chan struct{})
		s.mu.empty = empty
	}
	since := s.mu.since
	s.mu.since, s.mu.behind = time.Time{}, false
	s.mu.Unlock()
	if empty != nil {
		<-empty
	}
	close(s.quit)
	<-s.done
	s.quit, s.done = nil, nil
	leases := b.sideLeases()
	b.table.Store(b.o.Offsets)
	b.dispatch.Restart()
	b.dispatch.Stop(b.notMaster())
	b.o.Logger.Info("the slave serves no reads any more", "brokerGroup", b.o.BrokerGroup, "served", b.o.Now().Sub(since), "acks", s.acked.Load(), "leases", len(leases))
	return leases
}

// sideLeases are the leases that last, as a master is told of them. Those of messages whose record cannot be named are left out.
func (b *Broker) sideLeases() []*wire.SideLease {
	var leases []*wire.SideLease
	names := map[dispatch.Queue][2]string{}
	for _, l := range b.dispatch.Ship() {
		last, err := b.recordOf(l.Queue.Topic, l.Partition, l.To)
		if err != nil {
			continue
		}
		name, ok := names[l.Queue]
		if !ok {
			name[0], name[1] = source{b}.Names(l.Queue)
			names[l.Queue] = name
		}
		m := &wire.SideLease{
			Client: l.Client.ID, Member: l.Member, Topic: name[0], Group: name[1], Namespace: l.Client.Namespace, Partition: uint32(l.Partition),
			Lease: l.ID, From: uint64(l.From), To: uint64(l.To), LeftMs: uint32(min(l.Left.Milliseconds(), int64(extendMax/time.Millisecond))), Attempt: l.Attempt,
			Principal: l.Client.Principal, Kind: uint32(l.Client.Kind), Generation: l.Generation, Position: uint64(last.Position), Epoch: uint64(last.Epoch),
		}
		for _, r := range l.Released {
			m.Released = append(m.Released, uint64(r.From), uint64(r.To))
		}
		leases = append(leases, m)
	}
	return leases
}

// run writes what was acked, all that came meanwhile at once.
func (s *slave) run(quit, done chan struct{}) {
	defer close(done)
	for {
		select {
		case <-s.wake:
			s.write()
		case <-quit:
			s.write()
			return
		}
	}
}

// write appends the ends and expiries that wait to the side file, and answers the acks.
func (s *slave) write() {
	b := s.b
	e := b.acks.batch()
	e.ends, e.number = b.dispatch.TakeEnds(e.ends[:0])
	expiries := b.dispatch.TakeExpiries()
	e.ends = offset.MergeEnds(e.ends)
	entries := &s.buf
	entries.Ends, entries.Expiries = entries.Ends[:0], entries.Expiries[:0]
	for i := range e.ends {
		v := &e.ends[i]
		if last, err := b.recordOf(v.Topic, v.Partition, v.Range.To); err == nil {
			entries.Ends = append(entries.Ends, side.End{End: *v, Last: last})
		} else {
			s.cannotName(v.Topic, v.Partition, v.Range.Len(), err)
		}
	}
	for i := range expiries {
		v := &expiries[i]
		if last, err := b.recordOf(v.Topic, v.Partition, v.Ranges[len(v.Ranges)-1].To); err == nil {
			entries.Expiries = append(entries.Expiries, side.Expiry{Expiry: *v, Last: last})
		}
	}
	err := b.o.Side.Append(entries)
	if err == nil {
		for i := range e.ends {
			s.acked.Add(e.ends[i].Range.Len())
		}
		b.offsets().Note(e.ends, expiries, b.o.Now().UnixNano())
	} else {
		b.failedBy(err)
		b.dispatch.PutBackExpiries(expiries)
	}
	if e.number == 0 {
		b.acks.putBatch(e)
		return
	}
	e.onCommit(err)
	b.o.Flush()
}

// cannotName tells of acked messages that the master will not be told of: the record of the last one cannot be read any more. What was
// trimmed never comes again.
func (s *slave) cannotName(t offset.Topic, partition uint16, messages uint64, err error) {
	if errors.Is(err, store.ErrTrimmed) || errors.Is(err, store.ErrNoPartition) {
		return
	}
	s.unnamed.Add(messages)
	s.b.o.Logger.Warn("acked messages will come again: their record cannot be read, and so not be named to the master",
		"topic", t.ID, "partition", partition, "messages", messages, "err", err)
}

const (
	shipBytes   = 1 << 20 // of the side file in one request
	shipLeases  = 4096    // and of leases
	shipTimeout = 30 * time.Second
)

// ShipSide gives the master of that epoch the side file, and the leases that StopServing returned; when the master has committed all of it
// the file goes. The slave does not serve. An error: the file is as it was, and it can be shipped again.
func (b *Broker) ShipSide(ctx context.Context, master interface {
	MergeSide(ctx context.Context, r *wire.MergeSideRequest, entries []byte) (*wire.MergeSideResponse, error)
}, epoch journal.Epoch, leases []*wire.SideLease) (*wire.MergeSideResponse, error) {
	s := b.slave
	if s == nil || b.o.Side == nil {
		return nil, errors.New("broker: only a slave has a side file to ship")
	}
	s.turn.Lock()
	defer s.turn.Unlock()
	if s.serving.Load() {
		return nil, errors.New("broker: the slave serves yet")
	}
	sum := &wire.MergeSideResponse{}
	ship := func(leases []*wire.SideLease, parts []byte, last bool) error {
		ctx, cancel := context.WithTimeout(ctx, shipTimeout)
		defer cancel()
		m, err := master.MergeSide(ctx, &wire.MergeSideRequest{BrokerGroup: b.o.BrokerGroup, Broker: b.o.Broker, Epoch: uint64(epoch), Leases: leases, Last: last}, parts)
		if err == nil {
			sum.Merged += m.Merged
			sum.Dropped += m.Dropped
			sum.Again += m.Again
			sum.Leases += m.Leases
		}
		return err
	}
	for at := int64(0); ; {
		parts, next, err := b.o.Side.Read(at, shipBytes)
		if err != nil {
			return nil, err
		}
		if len(parts) == 0 {
			break
		}
		if err := ship(nil, parts, false); err != nil {
			return nil, fmt.Errorf("ship the side file: %w", err)
		}
		at = next
	}
	// After the entries: a lease is about what was not acked. The last request says that it is, with leases or without.
	for last := false; !last; {
		n := min(len(leases), shipLeases)
		last = n == len(leases)
		if err := ship(leases[:n], nil, last); err != nil {
			return nil, fmt.Errorf("ship leases: %w", err)
		}
		leases = leases[n:]
	}
	if err := b.o.Side.Remove(); err != nil {
		return nil, err
	}
	b.o.Logger.Info("the master has what was acked here", "brokerGroup", b.o.BrokerGroup, "epoch", epoch, "merged", sum.Merged, "dropped", sum.Dropped,
		"again", sum.Again, "leases", sum.Leases)
	return sum, nil
}
