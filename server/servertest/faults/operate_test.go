package faults

import (
	"context"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/server/servertest/check"
)

const (
	operateWithin = 5 * time.Second
	operatePause  = 30 * time.Second // at most
	doneLate      = time.Minute      // what was asked for, and had no answer, may still be done

	settings = "settings of " + moving // the register
	moved    = group + ".audit"        // the group that is moved, on the replicated topic
)

// operator changes and reads the settings of a topic, and looks where a group stands.
type operator struct {
	x      *trial
	admin  *client.Client
	rng    *rand.Rand
	proc   string
	number int // among all
	writes int
}

// operator has not the producers' client: who changes a topic asks for its route again, maybe at a node that stands still.
func (x *trial) operator(proc string, number int) *operator {
	return &operator{x: x, admin: x.client(proc, "operators"), rng: rand.New(rand.NewPCG(x.rng.Uint64(), 25)), proc: proc, number: number}
}

// run goes on until ctx ends. The first operator moves the group too.
func (o *operator) run(ctx context.Context) {
	for ctx.Err() == nil {
		switch o.rng.IntN(4) {
		case 0:
			o.write()
		case 1:
			o.read()
		case 2:
			o.look()
		default:
			if o.number == 0 && (o.x.quiet.Load() || o.rng.IntN(4) == 0) {
				o.seek()
			}
		}
		if most := quietPause; o.x.quiet.Load() {
			o.x.rest(ctx, time.Duration(o.rng.Int64N(int64(most))))
		} else {
			pause(ctx, time.Duration(o.rng.Int64N(int64(operatePause))))
		}
	}
}

// failed says of an error whether it is one that faults may cause.
func (o *operator) failed(what string, err error) {
	if !excused(err) || o.x.sure.Load() {
		o.x.problem("%s: %s: %v", o.proc, what, err)
	}
}

// write gives the topic settings that it never had.
func (o *operator) write() {
	o.writes++
	value := keptBytes + 2*o.writes + o.number
	e := check.Event{Op: check.OpWrite, Proc: o.proc, Key: settings, Hash: strconv.Itoa(value), Call: now(), Result: check.OK}
	ctx, cancel := context.WithTimeout(context.Background(), operateWithin)
	defer cancel()
	_, err := o.admin.AlterTopic(ctx, moving, "write", client.RetentionBytes(int64(value)))
	if e.Return = now(); err != nil {
		e.Result, e.Reason = check.Unknown, err.Error()
		o.failed("write", err)
	}
	o.x.event(e)
}

// read is a change of nothing: what it finds is the topic as it is, not as somebody remembers it.
func (o *operator) read() {
	e := check.Event{Op: check.OpRead, Proc: o.proc, Key: settings, Call: now()}
	ctx, cancel := context.WithTimeout(context.Background(), operateWithin)
	defer cancel()
	t, err := o.admin.AlterTopic(ctx, moving, "read")
	if err != nil {
		o.failed("read", err)
		return
	}
	e.Hash, e.Return = strconv.FormatInt(t.Settings.RetentionBytes, 10), now()
	o.x.event(e)
}

// look notes where the group stands. It returns what it was told.
func (o *operator) look() []client.PartitionLag {
	e := check.Event{Op: check.OpOffset, Topic: replicated, Group: moved, Call: now()}
	ctx, cancel := context.WithTimeout(context.Background(), operateWithin)
	defer cancel()
	lags, err := o.admin.GroupLag(ctx, replicated, moved)
	if e.Return = now(); err != nil {
		o.failed("look", err)
	}
	for _, l := range lags {
		if l.Consumed == 0 { // else it is not told which
			e.Partition, e.Index = o.x.partition(l.BrokerGroup, l.Partition), l.AckOffset
			o.x.event(e)
		}
	}
	return lags
}

// seek moves the group a little back, in one partition.
func (o *operator) seek() {
	lags := o.look()
	if len(lags) == 0 {
		return
	}
	l := lags[o.rng.IntN(len(lags))]
	s := client.Seek{To: client.SeekIndex, Index: l.AckOffset - min(uint64(o.rng.IntN(8)), l.AckOffset), Partitions: []uint16{l.Partition}, BrokerGroup: l.BrokerGroup, Reason: "again"}
	e := check.Event{Op: check.OpReset, Topic: replicated, Group: moved, Partition: o.x.partition(l.BrokerGroup, l.Partition), Index: l.First, Call: now()}
	ctx, cancel := context.WithTimeout(context.Background(), operateWithin)
	defer cancel()
	rows, err := o.admin.SeekGroup(ctx, replicated, moved, s)
	if e.Return = now(); err != nil || len(rows) != 1 {
		e.Result, e.Return = check.Unknown, e.Return+int64(doneLate)
		o.failed("seek", err)
	} else {
		e.Index = rows[0].To
	}
	o.x.event(e)
}
