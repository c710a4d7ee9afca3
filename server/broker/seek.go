package broker

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/jmqio/jmq/server/dispatch"
	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/planted"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/wire"
)

// SeekGroup implements wire.Admin.
func (b *Broker) SeekGroup(ctx context.Context, r *wire.SeekGroupRequest) (*wire.SeekGroupResponse, error) {
	var rows []*wire.SeekPartition
	do := func(ctx context.Context) (err error) {
		rows, err = b.seekGroup(ctx, r)
		return err
	}
	var err error
	if r.DryRun {
		err = b.weigh(ctx, func() error { return do(ctx) })
	} else {
		err = b.change(ctx, r.Reason, do)
	}
	if err != nil {
		return nil, b.refuse(err)
	}
	return &wire.SeekGroupResponse{Partitions: rows}, nil
}

// seekGroup says where the group goes, and with DryRun that is all. Generations are read and raised within one change, so they
// only rise. What is acked until the record is committed counts for where the group stood, if its end comes first in the log; if
// it comes later it has the generation before, and moves nothing.
func (b *Broker) seekGroup(ctx context.Context, r *wire.SeekGroupRequest) ([]*wire.SeekPartition, error) {
	if err := b.may(ctx, meta.OperateGroup, r.Topic, r.Group); err != nil {
		return nil, err
	}
	who := wire.PeerFrom(ctx)
	t, q, err := b.queue(who.Namespace, r.Topic, r.Group)
	if err != nil {
		return nil, err
	}
	if to := wire.SeekTo(r.To); to < wire.SeekStart || to > wire.SeekShift {
		return nil, wire.Errorf(wire.CodeInvalid, "seek to %d: 1 (start) to 5 (shift) are known", r.To)
	}
	partitions, err := seekPartitions(&t, r.Partitions)
	if err != nil {
		return nil, err
	}
	b.moving.RLock()
	defer b.moving.RUnlock()
	var rows []*wire.SeekPartition
	record := offset.Reset{Operation: offset.Move, Namespace: who.Namespace, Group: q.Group, GroupName: r.Group, Topic: q.Topic, TopicName: t.Name, Who: whoText(who), Why: r.Reason}
	for _, p := range partitions {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		row, err := b.seekPartition(&t, q, p, r)
		if err != nil {
			return nil, err
		}
		rows = append(rows, row)
		record.Starts = append(record.Starts, offset.Start{Partition: uint16(p), Generation: row.Generation, Offset: index.Index(row.To)})
	}
	if r.DryRun {
		return rows, nil
	}
	if err := b.reset(&record); err != nil {
		return nil, err
	}
	b.dispatch.Reload(q)
	b.o.Logger.Info("a group was moved", "topic", t.Name, "group", r.Group, "partitions", len(rows), "to", seekName(r), "who", record.Who, "why", r.Reason)
	return rows, nil
}

// seekPartitions returns the partitions that a request names, ascending and each once.
func seekPartitions(t *store.Topic, named []uint32) ([]uint32, error) {
	if len(named) > onlyMax {
		return nil, wire.Errorf(wire.CodeTooLarge, "%d partitions are named, at most %d can be", len(named), onlyMax)
	}
	if len(named) == 0 {
		for p := range t.Partitions {
			named = append(named, p)
		}
		return named, nil
	}
	named = slices.Clone(named)
	slices.Sort(named)
	if last := named[len(named)-1]; last >= t.Partitions {
		return nil, noPartition(t, last)
	}
	return slices.Compact(named), nil
}

func (b *Broker) seekPartition(t *store.Topic, q dispatch.Queue, p uint32, r *wire.SeekGroupRequest) (*wire.SeekPartition, error) {
	at, ok, err := b.standing(t, q.Group, p)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, dispatch.ErrNoGroup
	}
	to, cut := index.Index(0), false
	switch wire.SeekTo(r.To) {
	case wire.SeekStart:
		to = at.first
	case wire.SeekEnd:
		to = at.end
	case wire.SeekTime:
		if to, err = b.store.Seek(partitionOf(t, p), r.TimeNs); err != nil {
			return nil, err
		}
	case wire.SeekIndex:
		to = index.Index(r.Index)
	case wire.SeekShift:
		to, cut = shift(at.Ack, r.Shift)
	}
	row := &wire.SeekPartition{Partition: p, First: uint64(at.first), End: uint64(at.end), From: uint64(at.Ack), To: uint64(min(max(to, at.first), at.end)),
		LagFrom: at.lag, Generation: at.Generation + 1}
	if planted.Bug("broker: group moved without a generation") {
		row.Generation = at.Generation
	}
	// Time is cut by nothing: what was trimmed or stored between two readings is no less than was asked for.
	row.Cut = cut || index.Index(row.To) != to && wire.SeekTo(r.To) != wire.SeekTime
	row.LagTo = row.End - row.To
	return row, nil
}

// shift returns i moved by n, or as far as indexes go, and then true.
func shift(i index.Index, n int64) (to index.Index, cut bool) {
	if n < 0 {
		back := index.Index(-(n + 1)) + 1 // -n may not be an int64
		return i - min(back, i), back > i
	}
	if to = i + index.Index(n); to < i {
		return ^index.Index(0), true
	}
	return to, false
}

// seekName is where a request moves a group, for the log.
func seekName(r *wire.SeekGroupRequest) string {
	switch wire.SeekTo(r.To) {
	case wire.SeekStart:
		return "start"
	case wire.SeekEnd:
		return "end"
	case wire.SeekTime:
		return "time " + time.Unix(0, r.TimeNs).UTC().Format(time.RFC3339)
	case wire.SeekIndex:
		return "index " + strconv.FormatUint(r.Index, 10)
	}
	return "shift " + strconv.FormatInt(r.Shift, 10)
}
