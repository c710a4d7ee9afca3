package broker

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmqio/jmq/server/dispatch"
	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/planted"
	"github.com/jmqio/jmq/server/side"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/wire"
)

// merged counts what a merge did, in messages but for leases.
type merged struct {
	ended, again  uint64 // by it, and before
	leased        uint64 // of ended, those that a member here had: it handles them too
	old           uint64 // dropped: the group was moved since, or is not there any more
	other         uint64 // dropped: of records that are not in this journal
	leases        uint64 // honoured
	leasesRefused uint64
}

// MergeSide is wire.Replication's: it takes what a slave's consumers acked while this master was away, and the leases that they have. What is
// about the same records, and of the generation that the group is in, is journalled; nil: it is committed. Merging again changes nothing.
func (b *Broker) MergeSide(ctx context.Context, r *wire.MergeSideRequest, entries []byte) (*wire.MergeSideResponse, error) {
	if err := b.master(); err != nil {
		return nil, b.refuse(err)
	}
	if r.BrokerGroup != b.o.BrokerGroup {
		return nil, b.refuse(wire.Errorf(wire.CodeInvalid, "a side file of broker group %q, this is %q", r.BrokerGroup, b.o.BrokerGroup))
	}
	if at := b.store.Epoch(); r.Epoch != uint64(at) {
		return nil, b.refuse(wire.Errorf(wire.CodeStaleTerm, "a side file for epoch %v, this is %v", journal.Epoch(r.Epoch), at))
	}
	e, err := side.Decode(entries)
	if err != nil {
		return nil, b.refuse(wire.Errorf(wire.CodeMalformed, "%v", err))
	}
	m, err := b.merge(ctx, &e, r.Leases)
	if err != nil {
		return nil, b.refuse(err)
	}
	b.tellMerge(r.Broker, m, e.Len())
	return &wire.MergeSideResponse{Merged: m.ended, Dropped: m.old + m.other, Again: m.again, Leases: m.leases}, nil
}

// MergeOwn merges what this broker's own side file has: it was a slave that served, and is the master now. Call it after Start, before
// anything is given: HoldConsuming. When it returns nil the file is gone.
func (b *Broker) MergeOwn(ctx context.Context) error {
	if b.o.Side == nil || b.o.Side.Empty() {
		return nil
	}
	if err := b.master(); err != nil {
		return err
	}
	var sum merged
	entries := 0
	err := b.eachSide(func(e *side.Entries) error {
		m, err := b.merge(ctx, e, nil)
		sum.add(&m)
		entries += e.Len()
		return err
	})
	if err != nil {
		return err
	}
	b.tellMerge(b.o.Broker, sum, entries)
	return b.o.Side.Remove()
}

func (m *merged) add(o *merged) {
	m.ended += o.ended
	m.again += o.again
	m.leased += o.leased
	m.old += o.old
	m.other += o.other
	m.leases += o.leases
	m.leasesRefused += o.leasesRefused
}

func (b *Broker) tellMerge(broker string, m merged, entries int) {
	c := &b.merges
	c.merges.Add(1)
	c.ended.Add(m.ended)
	c.again.Add(m.again)
	c.leased.Add(m.leased)
	c.old.Add(m.old)
	c.other.Add(m.other)
	c.leases.Add(m.leases)
	c.leasesRefused.Add(m.leasesRefused)
	b.o.Logger.Info("acks that a slave took were merged", "broker", broker, "brokerGroup", b.o.BrokerGroup, "entries", entries, "messages", m.ended, "again", m.again,
		"old", m.old, "ofOtherRecords", m.other, "duplicates", m.leased+m.old+m.other, "leases", m.leases, "leasesRefused", m.leasesRefused)
}

// merge does it within b.change: no group is moved meanwhile.
func (b *Broker) merge(ctx context.Context, e *side.Entries, leases []*wire.SideLease) (m merged, err error) {
	err = b.change(ctx, "", func(ctx context.Context) error {
		m = merged{} // what was merged before it was found busy is counted as again
		ticket := uint64(0)
		for i := range e.Ends {
			t, err := b.mergeEnd(&e.Ends[i], &m)
			if err != nil {
				return err
			}
			ticket = max(ticket, t)
		}
		for i := range e.Expiries {
			if err := b.mergeExpiry(&e.Expiries[i], &m); err != nil {
				return err
			}
		}
		for _, l := range leases {
			ok, err := b.takeIn(l)
			if err != nil {
				return err
			}
			if ok {
				m.leases++
			} else {
				m.leasesRefused++
			}
		}
		if planted.Bug("broker: side file gone before its acks are committed") {
			return nil
		}
		return b.acks.commit(ctx, ticket)
	})
	return m, err
}

// goneHere reports whether err says that a group, or its topic, is not there any more.
func goneHere(err error) bool {
	return errors.Is(err, dispatch.ErrNoGroup) || errors.Is(err, store.ErrNoPartition)
}

// mayMerge returns the topic that an entry is about; false: nothing of it counts, which is noted.
func (b *Broker) mayMerge(group offset.GroupID, topic offset.Topic, partition uint16, generation uint32, to index.Index, last side.Record, messages uint64, m *merged) (store.Topic, bool) {
	t, ok := b.store.TopicByID(store.TopicID(topic.ID), topic.Incarnation)
	if !ok || uint32(partition) >= t.Partitions || !b.offsets().Has(group, topic) {
		m.old += messages
		return t, false
	}
	if at, ok := b.offsets().Standing(group, topic, partition, 0); !ok || at.Generation != generation && !planted.Bug("broker: merged over a reset") {
		m.old += messages
		return t, false
	}
	if !b.sameRecord(topic, partition, to, last) && !planted.Bug("broker: merged without the record") {
		m.other += messages
		return t, false
	}
	return t, true
}

func (b *Broker) mergeEnd(e *side.End, m *merged) (ticket uint64, err error) {
	n := e.Range.Len()
	t, ok := b.mayMerge(e.Group, e.Topic, e.Partition, e.Generation, e.Range.To, e.Last, n, m)
	if !ok {
		return 0, nil
	}
	if planted.Bug("broker: merged over a reset") {
		at, _ := b.offsets().Standing(e.Group, e.Topic, e.Partition, 0)
		e.Generation = at.Generation
	}
	ended, leased, ticket, known, err := b.dispatch.Merge(dispatch.Queue{Group: e.Group, Topic: e.Topic}, int(t.Partitions), &e.End)
	switch {
	case goneHere(err) || err == nil && !known:
		m.old += n
		return 0, nil
	case err != nil:
		return 0, err
	}
	m.ended += ended
	m.leased += leased
	m.again += n - ended
	return ticket, nil
}

func (b *Broker) mergeExpiry(e *side.Expiry, m *merged) error {
	t, ok := b.mayMerge(e.Group, e.Topic, e.Partition, e.Generation, e.Ranges[len(e.Ranges)-1].To, e.Last, 0, m)
	if !ok {
		return nil
	}
	_, err := b.dispatch.MergeExpiry(dispatch.Queue{Group: e.Group, Topic: e.Topic}, int(t.Partitions), &e.Expiry)
	if goneHere(err) {
		return nil
	}
	return err
}

// takeIn honours a lease that a slave gave, if it can be.
func (b *Broker) takeIn(l *wire.SideLease) (bool, error) {
	t, q, err := b.queue(l.Namespace, l.Topic, l.Group)
	if err != nil || l.Partition >= t.Partitions || l.From >= l.To || len(l.Released)%2 != 0 || l.Attempt == 0 {
		return false, nil
	}
	s := &dispatch.Shipped{
		Queue: q, Client: dispatch.Client{Namespace: l.Namespace, Kind: wire.PrincipalKind(l.Kind), Principal: l.Principal, ID: l.Client},
		Member: l.Member, Partition: uint16(l.Partition), Generation: l.Generation, ID: l.Lease, Attempt: l.Attempt,
		Range: offset.Range{From: index.Index(l.From), To: index.Index(l.To)}, Left: min(time.Duration(l.LeftMs)*time.Millisecond, extendMax),
	}
	if !b.sameRecord(q.Topic, s.Partition, s.To, side.Record{Position: journal.Position(l.Position), Epoch: journal.Epoch(l.Epoch)}) {
		return false, nil
	}
	for i := 0; i < len(l.Released); i += 2 {
		s.Released.Add(offset.Range{From: index.Index(l.Released[i]), To: index.Index(l.Released[i+1])})
	}
	ok, err := b.dispatch.TakeIn(s, int(t.Partitions))
	if goneHere(err) {
		return false, nil
	}
	return ok, err
}

// commit waits until the batch of ends named by ticket is committed; 0 waits for nothing.
func (a *acks) commit(ctx context.Context, ticket uint64) error {
	if ticket == 0 {
		return nil
	}
	done := make(chan error, 1)
	a.wait(a.call(func(_ *wire.AckResponse, err error) { done <- err }), ticket)
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// holdMost is how long consuming waits at most after a master's start.
const holdMost = 30 * time.Second

// hold is that nothing is given yet.
type hold struct {
	mu struct {
		sync.Mutex
		timer *time.Timer // not nil: consuming waits
		since time.Time
		turn  uint64 // counts the holds: the timer of one that was ended ends no other
	}
}

// HoldConsuming lets fetches wait until ReleaseConsuming, or until then, at most 30 seconds from now: a slave may have served while this
// master was away, and what was acked there is not known yet. Sends, acks and all else go on. Call it before Start. Today all groups wait the same; a
// kind of group that may be given nothing before its slave or an operator was heard keeps waiting in dispatch, by its queue.
func (b *Broker) HoldConsuming(until time.Time, why string) {
	h := &b.hold
	h.mu.Lock()
	defer h.mu.Unlock()
	wait := min(max(time.Until(until), 0), holdMost)
	if h.mu.timer != nil {
		h.mu.timer.Stop()
	} else {
		h.mu.since = time.Now()
	}
	h.mu.turn++
	turn := h.mu.turn
	h.mu.timer = time.AfterFunc(wait, func() { b.release(turn, "the time is over: what a slave acked comes again") })
	b.dispatch.Hold()
	b.o.Logger.Info("consuming waits", "brokerGroup", b.o.BrokerGroup, "atMost", wait, "why", why)
}

// ReleaseConsuming ends HoldConsuming.
func (b *Broker) ReleaseConsuming(why string) { b.release(0, why) }

// release ends the hold of a turn; 0: the one there is.
func (b *Broker) release(turn uint64, why string) {
	h := &b.hold
	h.mu.Lock()
	if h.mu.timer == nil || turn != 0 && turn != h.mu.turn {
		h.mu.Unlock()
		return
	}
	h.mu.timer.Stop()
	h.mu.timer = nil
	waited := time.Since(h.mu.since)
	h.mu.Unlock()
	b.dispatch.Release()
	b.o.Logger.Info("consuming goes on", "brokerGroup", b.o.BrokerGroup, "waited", waited, "why", why)
}

// SideMetrics are about what slaves serve while their master is away.
type SideMetrics struct {
	// Of a slave.
	Since   time.Time // it serves since then; zero: it does not
	Behind  bool      // it serves, and is outside the in-sync set
	Acked   uint64    // messages that ended in the side file, since New
	Unnamed uint64    // of those, what the master cannot be told of
	File    side.Metrics
	// Of a master, in messages but for merges and leases.
	Holding       bool // consuming waits
	Merges        uint64
	Merged        uint64 // ended by a merge
	Again         uint64 // had ended before
	Leased        uint64 // of those that ended by a merge, what a member here had too: duplicates that this explains
	DroppedOld    uint64 // the group was moved since: duplicates that this explains
	DroppedOther  uint64 // of records that are not in this journal: duplicates that this explains
	Leases        uint64 // of slaves, honoured
	LeasesRefused uint64
}

type mergeCounts struct {
	merges, ended, again, leased, old, other, leases, leasesRefused atomic.Uint64
}

func (b *Broker) sideMetrics() SideMetrics {
	c := &b.merges
	m := SideMetrics{
		Merges: c.merges.Load(), Merged: c.ended.Load(), Again: c.again.Load(), Leased: c.leased.Load(), DroppedOld: c.old.Load(), DroppedOther: c.other.Load(),
		Leases: c.leases.Load(), LeasesRefused: c.leasesRefused.Load(),
	}
	b.hold.mu.Lock()
	m.Holding = b.hold.mu.timer != nil
	b.hold.mu.Unlock()
	if s := b.slave; s != nil {
		s.mu.Lock()
		m.Since, m.Behind = s.mu.since, s.mu.behind
		s.mu.Unlock()
		m.Acked, m.Unnamed = s.acked.Load(), s.unnamed.Load()
	}
	if b.o.Side != nil {
		m.File = b.o.Side.Metrics()
	}
	return m
}
