package faults

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/server"
	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/servertest"
	"github.com/jmqio/jmq/server/servertest/check"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/server/store/local"
	"github.com/jmqio/jmq/wire"
)

// heal ends every fault: links, disks, database, nodes that are stopped.
func (x *trial) heal() {
	x.Links.Heal()
	for _, s := range x.nodes() {
		x.Links.Resume(s.Name())
	}
	for _, d := range append(x.others, x.database) {
		d.Fail(nil)
	}
	for _, s := range x.nodes() {
		if x.down[s] {
			x.up(s)
		}
	}
	for _, b := range x.brokers() {
		b.Disk().Slow(0)
	}
	for _, wrong := range x.clocks {
		wrong.Store(0)
	}
}

// up starts a node that is stopped.
func (x *trial) up(s *servertest.Server) {
	x.t.Helper()
	delete(x.down, s)
	s.Change(func(c *server.Config) { c.Node.Admin.Listen = "127.0.0.1:0" }) // another may have got it meanwhile
	s.StartAgain()
}

// settle waits until the cluster is well again: a master serves, all slaves are in sync, sends of both kinds are ok and come.
func (x *trial) settle() {
	x.t.Helper()
	begun, before := time.Now(), x.stalled
	for _, g := range x.Groups {
		g.Master()
	}
	x.goesOn("sends after the fault", 3, x.topics...)
	x.well()
	x.goesOn("sends with all slaves in sync", 3, x.topics...)
	stalled := x.stalled - before
	took := (time.Since(begun) - stalled).Round(time.Millisecond)
	x.t.Logf("healed after %v, and %v in which the machine stood still", took, stalled.Round(time.Millisecond))
	if took > recoverMost {
		x.t.Errorf("healed after %v", took)
	}
}

// carryOut lets a fault happen, heals it, and waits until all is well.
func (x *trial) carryOut(f *fault) {
	x.t.Helper()
	e := check.Event{Op: check.OpRestart, Proc: "cluster", Reason: f.name, Call: now()}
	f.do(x)
	x.heal()
	x.settle()
	e.Return = now()
	x.event(e)
	if f.away != "" {
		x.event(check.Event{Op: check.OpAway, Proc: "slaves", Reason: f.away, Call: e.Call, Return: e.Return})
	}
}

// judge ends the load, waits until everything was consumed and all copies are the same, looks at the disks, and has the history checked.
func (x *trial) judge() *check.Report {
	x.t.Helper()
	x.stopSending()
	x.senders.Wait()
	admin := x.client("admin", "admin")
	x.await("all groups are drained", recoverMost, func() bool {
		for _, topic := range x.topics {
			for _, g := range x.groups {
				ctx, cancel := context.WithTimeout(context.Background(), recoverMost)
				lags, err := admin.GroupLag(ctx, topic, g)
				cancel()
				if err != nil || len(lags) < len(x.Groups) {
					return false
				}
				for _, l := range lags {
					if l.Lag > 0 {
						return false
					}
				}
			}
		}
		return true
	})
	for _, topic := range x.topics {
		for _, g := range x.groups {
			x.event(check.Event{Op: check.OpDrain, Topic: topic, Group: g, Call: now()})
		}
	}
	x.observe(admin)
	x.balance(admin)
	x.stop()
	x.working.Wait()
	committed := map[*servertest.ReplicaGroup]journal.Position{}
	for _, g := range x.Groups {
		committed[g] = journal.Position(g.SameEnds())
	}
	for _, st := range x.status() {
		for _, s := range st.GetSlaves() {
			if s.LagBytes > 0 {
				x.t.Errorf("slave %s lags by %d bytes", s.Broker, s.LagBytes)
			}
		}
	}
	for _, b := range x.brokers() {
		b.Stop()
	}
	for _, g := range x.Groups {
		x.compare(g, committed[g])
	}
	return x.report()
}

// report judges what was seen, and more.
func (x *trial) report(more ...check.Event) *check.Report {
	x.t.Helper()
	k := check.NewChecker()
	for _, e := range append(x.mu.events[:len(x.mu.events):len(x.mu.events)], more...) {
		if err := k.Add(e); err != nil {
			x.t.Fatalf("event %+v: %v", e, err)
		}
	}
	return k.Report()
}

// compare looks at the disks of a broker group: what they have in common must be the same.
func (x *trial) compare(g *servertest.ReplicaGroup, committed journal.Position) {
	x.t.Helper()
	copies := map[string]*journalCopy{}
	var from, to journal.Position // of all
	for _, b := range g.Brokers {
		c, err := x.journalOf(b, committed)
		if err != nil {
			x.t.Errorf("the journal of %s: %v", b.Name(), err)
			continue
		}
		from = max(from, c.begin)
		if to = min(to, c.end); len(copies) == 0 {
			to = c.end
		}
		copies[b.Name()] = c
		if err := x.autopsy(g, b); err != nil {
			x.t.Errorf("the store of %s: %v", b.Name(), err)
		}
	}
	x.trimmed = max(x.trimmed, from)
	for name, c := range copies {
		for at := from; at < to; {
			next := min(to, (at/sumBytes+1)*sumBytes)
			all := crc32.NewIEEE()
			for _, s := range c.sums {
				if at <= s.position && s.position < next {
					fmt.Fprintln(all, s)
				}
			}
			x.event(check.Event{Op: check.OpCopy, Proc: name, BrokerGroup: g.Name, Index: uint64(at), To: uint64(next), Hash: fmt.Sprintf("%08x", all.Sum32()), Call: now()})
			at = next
		}
	}
}

// observe notes where the groups stand.
func (x *trial) observe(admin *client.Client) {
	x.t.Helper()
	x.lags(admin, func(e check.Event, l client.PartitionLag) {
		if l.Consumed == 0 { // else it is not told which
			e.Op, e.Index = check.OpOffset, l.AckOffset
			x.event(e)
		}
	})
}

// balance notes what the groups are said to have left.
func (x *trial) balance(admin *client.Client) {
	x.t.Helper()
	x.lags(admin, func(e check.Event, l client.PartitionLag) {
		e.Op, e.Index, e.To, e.Pending = check.OpBalance, l.First, l.End, l.Lag
		x.event(e)
	})
}

// lags asks where the groups stand.
func (x *trial) lags(admin *client.Client, each func(check.Event, client.PartitionLag)) {
	x.t.Helper()
	for _, topic := range x.topics {
		for _, g := range x.groups {
			ctx, cancel := context.WithTimeout(context.Background(), recoverMost)
			e := check.Event{Topic: topic, Group: g, Call: now()}
			lags, err := admin.GroupLag(ctx, topic, g)
			cancel()
			if err != nil {
				x.t.Errorf("group lag: %v", err)
			}
			e.Return = now()
			for _, l := range lags {
				e.Partition = x.partition(l.BrokerGroup, l.Partition)
				each(e, l)
			}
		}
	}
}

// masters notes who serves as master, again and again, until ctx ends.
func (x *trial) masters(ctx context.Context) {
	for ctx.Err() == nil {
		call := now()
		for _, g := range x.Groups {
			for name, st := range g.Status() {
				if st.GetRole() == "master" {
					x.event(check.Event{Op: check.OpMaster, Proc: name, BrokerGroup: g.Name, Epoch: st.GetEpoch(), Call: call, Return: now()})
				}
			}
		}
		switch {
		case x.network == nil:
			pause(ctx, 20*time.Millisecond)
		case x.quiet.Load():
			x.rest(ctx, time.Minute)
		default:
			pause(ctx, 250*time.Millisecond)
		}
	}
}

// sumBytes of a journal are compared at once.
const sumBytes = 64 << 10

// journalCopy is what a broker has of its broker group's journal.
type journalCopy struct {
	begin, end journal.Position
	sums       []sum
}

// sum is a record without what is each copy's own.
type sum struct {
	kind     journal.Kind
	flags    uint8
	epoch    journal.Epoch
	position journal.Position
	stored   int64
	payload  uint32
}

func (x *trial) storeOptions(b *servertest.Server) local.Options {
	return local.Options{FS: b.Disk().Image(), Dir: b.Folder(), SegmentBytesMax: 1 << 20}
}

// journalOf returns the records of a stopped broker, up to what it knows to be committed: at least what it said so. A master that stops proves its last
// records with one more, which its slaves may be too late for.
func (x *trial) journalOf(b *servertest.Server, committed journal.Position) (c *journalCopy, err error) {
	j, err := local.OpenFollowing(x.storeOptions(b))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, j.Close()) }()
	if x.network == nil && j.Begin() != 0 || j.Committed() < committed {
		return nil, fmt.Errorf("it has [%d,%d), of which %d is committed; it had said %d", j.Begin(), j.End(), j.Committed(), committed)
	}
	c = &journalCopy{begin: j.Begin(), end: j.Committed()}
	r := j.NewReader(j.Begin())
	defer r.Close()
	for r.Position() < j.Committed() {
		rec, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		c.sums = append(c.sums, sum{rec.Kind, rec.Flags, rec.Epoch, rec.Position, rec.Stored, crc32.ChecksumIEEE(rec.Payload)})
	}
	return c, nil
}

// autopsy opens a stopped broker's store with the engine alone, and notes what is there: all messages, and where the group stands.
func (x *trial) autopsy(g *servertest.ReplicaGroup, b *servertest.Server) (err error) {
	offsets := offset.NewTable()
	at := now()
	o := x.storeOptions(b)
	o.Tables, o.Term = []store.Table{offsets}, 1<<20
	st, err := local.Open(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	for _, topic := range x.topics {
		t, ok := st.Topic(0, topic)
		if !ok {
			return fmt.Errorf("it has no topic %s", topic)
		}
		key := offset.Topic{ID: uint64(t.ID), Incarnation: t.Incarnation}
		for p := range uint16(t.Partitions) {
			for _, of := range offsets.GroupsOf(key) {
				progress, _, ok := offsets.Progress(of.ID, key, p)
				if !ok {
					return fmt.Errorf("group %s has no progress in partition %d of %s", of.Name, p, topic)
				}
				e := check.Event{Op: check.OpOffset, Topic: topic, Group: of.Name, Partition: x.partition(g.Name, p), Index: uint64(progress.Ack), Call: at, Return: at}
				for _, r := range progress.Consumed {
					e.Ranges = append(e.Ranges, [2]uint64{uint64(r.From), uint64(r.To)})
				}
				x.event(e)
			}
			if err := x.scan(st, g.Name, b.Name(), topic, store.Partition{Topic: t.ID, Incarnation: t.Incarnation, Partition: p}, at); err != nil {
				return fmt.Errorf("partition %d of %s: %w", p, topic, err)
			}
		}
	}
	return nil
}

// scan notes each message of a partition.
func (x *trial) scan(st *local.Store, brokerGroup, proc, topic string, p store.Partition, at int64) error {
	first, end, err := st.Bounds(p)
	if err != nil {
		return err
	}
	partition := x.partition(brokerGroup, p.Partition)
	var codec wire.Codec
	var buf []byte
	for next := first; next < end; {
		var read index.Index
		if buf, read, err = st.Read(p, next, end, 256<<10, buf[:0]); err != nil {
			return err
		}
		for rest := buf; len(rest) > 0; {
			var b wire.Batch
			if b, rest, err = wire.SplitBatch(rest); err != nil {
				return err
			}
			raw, err := codec.Messages(b, nil)
			if err != nil {
				return err
			}
			it := wire.IterateMessages(b, raw)
			for it.Next() {
				m := it.View.Message()
				i := b.FirstIndex() + uint64(it.Slot())
				_, epoch, err := st.Written(p, index.Index(i))
				if err != nil {
					return err
				}
				x.event(check.Event{
					Op: check.OpScan, Proc: proc, BrokerGroup: brokerGroup, Topic: topic, Partition: partition, Index: i, Epoch: uint64(epoch),
					ID: ulid.ULID(m.ID).String(), Key: ordered(topic, m.OrderKey), Seq: seqOf(m.Headers), Hash: hash(m.Body), Call: at,
				})
			}
			if err := it.Err(); err != nil {
				return err
			}
		}
		if read <= next {
			return fmt.Errorf("nothing is read at index %d, before the end %d", next, end)
		}
		next = read
	}
	x.event(check.Event{Op: check.OpScanned, Proc: proc, Topic: topic, Partition: partition, Index: uint64(first), To: uint64(end), Call: at})
	return nil
}

// keep writes the history where it can be looked at, and returns its name.
func (x *trial) keep() string {
	name, err := check.Keep(check.Kept(), "faults", x.mu.events)
	if err != nil {
		return err.Error()
	}
	return name
}
