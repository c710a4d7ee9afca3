package broker

import (
	"context"
	"fmt"
	"time"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/wire"
)

const reasonBytesMax = 1 << 10

// change carries out one alteration, deletion or reset. They come one after another, so that each sees what the one before
// made: a generation that is one higher, a topic that is gone. do gets a context that does not end with the caller's: what was
// begun is seen through to its commit, and what has to follow it is done. So ctx bounds the waiting for others only.
func (b *Broker) change(ctx context.Context, reason string, do func(context.Context) error) error {
	if err := b.master(); err != nil {
		return err
	}
	if len(reason) > reasonBytesMax {
		return wire.Errorf(wire.CodeTooLarge, "a reason of %d bytes, at most %d are possible", len(reason), reasonBytesMax)
	}
	select {
	case b.changes <- struct{}{}:
		defer func() { <-b.changes }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return b.patiently(context.WithoutCancel(ctx), do)
}

// patiently repeats what found the queue of appends full: unlike a send it may wait, since nobody's reading is held up.
func (b *Broker) patiently(ctx context.Context, do func(context.Context) error) error {
	for try := 0; ; try++ {
		if err := b.check(); err != nil {
			return err
		}
		err := do(ctx)
		if try == busyTries || wire.CodeOf(coded(err)) != wire.CodeBusy {
			return err
		}
		select {
		case <-time.After(busyRetry):
		case <-ctx.Done():
		}
	}
}

// weigh carries out something that would keep a processor or the disk busy, if many asked for it: one at a time, so that
// sends keep the others.
func (b *Broker) weigh(ctx context.Context, do func() error) error {
	if err := b.check(); err != nil {
		return err
	}
	return b.weighAt(ctx, do)
}

// weighAt does so at slaves that do not serve too.
func (b *Broker) weighAt(ctx context.Context, do func() error) error {
	if err := b.ready(); err != nil {
		return err
	}
	select {
	case b.heavy <- struct{}{}:
		defer func() { <-b.heavy }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return do()
}

// refuse returns err for the client, and counts it.
func (b *Broker) refuse(err error) error {
	b.failedBy(err)
	err = coded(err)
	b.metrics.refused(err)
	return err
}

// whoText is a peer in an audit.
func whoText(p *wire.Peer) string {
	if p.App == "" && p.ClientID == "" && p.Addr == "" {
		return "the broker itself"
	}
	return fmt.Sprintf("app=%s client=%s addr=%s", p.App, p.ClientID, p.Addr)
}

const (
	holdsDefault = 20
	holdsMax     = 1000
)

// StoreUsage implements wire.Admin. A slave answers it too: its disk is its own.
func (b *Broker) StoreUsage(ctx context.Context, r *wire.StoreUsageRequest) (*wire.StoreUsageResponse, error) {
	if err := b.may(ctx, meta.ReadStore, "", ""); err != nil {
		return nil, b.refuse(err)
	}
	if b.o.Usage == nil {
		return nil, b.refuse(wire.Errorf(wire.CodeUnknownCommand, "this broker does not look at its disks"))
	}
	asked := &wire.StoreUsageRequest{HoldsMax: min(orDefault(r.HoldsMax, holdsDefault), holdsMax)}
	var response *wire.StoreUsageResponse
	err := b.weighAt(ctx, func() (err error) {
		response, err = b.o.Usage(ctx, asked)
		return err
	})
	if err != nil {
		return nil, b.refuse(err)
	}
	return response, nil
}
