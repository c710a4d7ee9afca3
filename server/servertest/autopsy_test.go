package servertest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/oklog/ulid/v2"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/servertest/check"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/server/store/local"
	"github.com/jmqio/jmq/wire"
)

const scanBytes = 256 << 10 // read at once

// autopsy opens a copy of what a lost power left, with the engine alone, and notes what is there: all messages, and where
// each group stands. The next broker begins with the same bytes, so it must find the same.
func (c *campaign) autopsy(left *vfs.MemFS) error {
	mem := left.CrashClone(vfs.CrashCloneCfg{}) // all of it is on disk
	offsets := offset.NewTable()
	o := c.config.Broker
	at := now()
	st, err := local.Open(local.Options{
		FS: mem, Dir: o.Data, Tables: []store.Table{offsets}, SegmentBytesMax: o.Journal.SegmentBytesMax, CommitBytesMax: o.Journal.CommitBytesMax,
		QueueBytesMax: o.Journal.QueueBytesMax, CheckpointBytes: o.Store.CheckpointBytes, CheckpointEvery: o.Store.CheckpointEvery,
	})
	if err != nil {
		return fmt.Errorf("open what is left: %w", err)
	}
	err = c.examine(st, offsets, at)
	if closeErr := st.Close(); err == nil && closeErr != nil {
		err = fmt.Errorf("close what is left: %w", closeErr)
	}
	return err
}

func (c *campaign) examine(st *local.Store, offsets *offset.Table, at int64) error {
	for _, topic := range c.topics() {
		t, ok := st.Topic(0, topic)
		if !ok { // all is gone
			for p := range uint16(c.partitions) {
				c.event(check.Event{Op: check.OpScanned, Proc: "disk", Topic: topic, Partition: p, Call: at})
			}
			continue
		}
		key := offset.Topic{ID: uint64(t.ID), Incarnation: t.Incarnation}
		for p := range uint16(t.Partitions) {
			for _, g := range offsets.GroupsOf(key) {
				progress, _, ok := offsets.Progress(g.ID, key, p)
				if !ok {
					return fmt.Errorf("group %s has no progress in partition %d", g.Name, p)
				}
				e := check.Event{Op: check.OpOffset, Topic: topic, Group: g.Name, Partition: p, Index: uint64(progress.Ack), Call: at, Return: at}
				for _, r := range progress.Consumed {
					e.Ranges = append(e.Ranges, [2]uint64{uint64(r.From), uint64(r.To)})
				}
				c.event(e)
			}
			if err := c.scan(st, topic, store.Partition{Topic: t.ID, Incarnation: t.Incarnation, Partition: p}, at); err != nil {
				return fmt.Errorf("scan partition %d of %s: %w", p, topic, err)
			}
		}
	}
	return nil
}

// scan notes each message of a partition. It looks at no checksum of the producer's: what is damaged shall be seen.
func (c *campaign) scan(st *local.Store, topic string, p store.Partition, at int64) error {
	first, end, err := st.Bounds(p)
	if err != nil {
		return err
	}
	var events []check.Event
	var buf []byte
	late := time.Now().Add(within)
	for next := first; next < end; {
		var read index.Index
		buf, read, err = st.Read(p, next, end, scanBytes, buf[:0])
		if gap := (*store.GapError)(nil); errors.As(err, &gap) {
			events = append(events, check.Event{Op: check.OpGap, Proc: "disk", Topic: topic, Partition: p.Partition, Index: uint64(gap.From), To: uint64(gap.To),
				Reason: check.ReasonDamaged, Call: at})
			next = gap.To
			continue
		}
		if c.o.depth && errors.Is(err, store.ErrDamaged) && time.Now().Before(late) { // a repair is under way
			pause(context.Background(), time.Millisecond)
			continue
		}
		if err != nil {
			return err
		}
		for rest := buf; len(rest) > 0; {
			var b wire.Batch
			if b, rest, err = wire.SplitBatch(rest); err != nil {
				return err
			}
			raw, err := c.codec.Messages(b, nil)
			if err != nil {
				return err
			}
			it := wire.IterateMessages(b, raw)
			for it.Next() {
				if b.FirstIndex()+uint64(it.Slot()) < uint64(first) {
					continue // trimmed, and its batch is not
				}
				m := it.View.Message()
				var epoch journal.Epoch
				if !c.o.depth { // else it may be that of the record that carried it forward
					if _, epoch, err = st.Written(p, index.Index(b.FirstIndex()+uint64(it.Slot()))); err != nil {
						return err
					}
				}
				events = append(events, check.Event{
					Op: check.OpScan, Proc: "disk", Topic: topic, Partition: p.Partition, Index: b.FirstIndex() + uint64(it.Slot()), Epoch: uint64(epoch),
					ID: ulid.ULID(m.ID).String(), Key: m.OrderKey, Seq: seqOf(m.Headers), Hash: hash(m.Body), Call: at,
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
	c.event(append(events, check.Event{Op: check.OpScanned, Proc: "disk", Topic: topic, Partition: p.Partition, Index: uint64(first), To: uint64(end), Call: at})...)
	return nil
}
