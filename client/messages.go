package client

import (
	"context"
	"errors"
	"iter"

	"github.com/jmqio/jmq/wire"
)

// Messages receives messages in a loop of the caller's:
//
//	for d, err := range c.Messages(ctx) {
//		if err != nil {
//			return err
//		}
//		...
//		err = d.Ack(ctx)
//	}
//
// It fetches leases of Batch messages, one after the other. A delivery is the caller's from its turn on: who does not Ack or
// Release it has it until its lease ends, and what follows it in its partition comes only then. What was fetched and had no turn when the loop ends
// is given back. The loop ends when ctx does; with an error, when going on cannot help (there is no such topic, or the client
// is closed). Connections and brokers that come back are used again.
func (c *Consumer) Messages(ctx context.Context) iter.Seq2[*Delivery, error] {
	return func(yield func(*Delivery, error) bool) {
		for pause := retryMin; ctx.Err() == nil; {
			ds, err := c.Fetch(ctx, c.o.batch)
			switch {
			case err == nil:
				pause = retryMin
				if !c.each(ctx, ds, yield) {
					return
				}
			case ctx.Err() != nil:
				return
			case wire.Traits[codeOf(err)].Retry == wire.RetryNever || errors.Is(err, ErrClosed):
				yield(nil, err)
				return
			default:
				c.c.cluster.pause(ctx, pause)
				pause = min(2*pause, c.o.backoffMax)
			}
		}
	}
}

// each gives deliveries of one lease to yield, and back what it does not come to. false: no more are wanted.
func (c *Consumer) each(ctx context.Context, ds []*Delivery, yield func(*Delivery, error) bool) bool {
	given := 0
	defer func() { // also when the loop's body panics
		if given < len(ds) {
			release, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
			defer cancel()
			// What does not get there is given back with the next connection.
			c.end(release, opRelease, wire.Released, ds[given:])
		}
	}()
	for given < len(ds) && ctx.Err() == nil && !c.Paused() && !ds[given].term.over() {
		given++
		if !yield(ds[given-1], nil) {
			return false
		}
	}
	return true
}
