package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// load is a closed loop: each worker sends, waits for the answer, sends again. What began before the warm-up ended is
// not counted.
type load struct {
	workers  int
	warmUp   time.Duration
	duration time.Duration
	progress *progress // nil: none
}

// loadResult is what the workers did between the end of the warm-up and the end of the load.
type loadResult struct {
	messages int64
	latency  *hdrhistogram.Histogram // microseconds, one value a call
	elapsed  time.Duration
}

// call sends something once and returns how many messages that was.
type call func(ctx context.Context) (messages int, err error)

// latencyMaxUs bounds the histograms: a call slower than a minute counts as a minute.
const latencyMaxUs = 60_000_000

func newLatency() *hdrhistogram.Histogram { return hdrhistogram.New(1, latencyMaxUs, 3) }

func recordLatency(h *hdrhistogram.Histogram, d time.Duration) {
	_ = h.RecordValue(min(max(d.Microseconds(), 1), latencyMaxUs)) // in bounds by min and max
}

// run runs workers until the time is over and calls measured when the counted part begins and when it ends. The first
// error of a worker ends the load and is returned.
func (l load) run(ctx context.Context, worker func(i int) call, measured func(begin bool)) (loadResult, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	type part struct {
		all      atomic.Int64 // messages, the warm-up's too
		messages int64
		latency  *hdrhistogram.Histogram
	}
	parts := make([]part, l.workers)
	begin := time.Now()
	from := begin.Add(l.warmUp)
	to := from.Add(l.duration)
	var wg sync.WaitGroup
	for i := range parts {
		parts[i].latency = newLatency()
		send := worker(i)
		wg.Go(func() {
			p := &parts[i]
			for ctx.Err() == nil {
				start := time.Now()
				if start.After(to) {
					return
				}
				n, err := send(ctx)
				if err != nil {
					if ctx.Err() == nil || !errors.Is(err, context.Canceled) {
						cancel(fmt.Errorf("producer %d: %w", i, err))
					}
					return
				}
				end := time.Now()
				p.all.Add(int64(n))
				if start.After(from) && end.Before(to) {
					p.messages += int64(n)
					recordLatency(p.latency, end.Sub(start))
				}
			}
		})
	}
	wg.Go(func() {
		for _, at := range []struct {
			time  time.Time
			begin bool
		}{{from, true}, {to, false}} {
			for at.time.After(time.Now()) {
				select {
				case <-time.After(min(barEvery, time.Until(at.time))):
				case <-ctx.Done():
					return
				}
				if l.progress != nil {
					var all int64
					for i := range parts {
						all += parts[i].all.Load()
					}
					l.progress.set(all, int64(float64(all)*to.Sub(begin).Seconds()/time.Since(begin).Seconds()))
				}
			}
			measured(at.begin)
		}
	})
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return loadResult{}, err
	}
	r := loadResult{latency: newLatency(), elapsed: l.duration}
	for i := range parts {
		r.messages += parts[i].messages
		r.latency.Merge(parts[i].latency)
	}
	return r, nil
}
