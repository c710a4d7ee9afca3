package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/schollz/progressbar/v3"
)

// show draws how far the run is on stderr until ctx ends: a bar, or a line every 10 s where there is no terminal.
func (r *run) show(ctx context.Context) {
	total := int64(len(r.orders) * (1 + len(groups)))
	done := func() int64 { return r.acknowledged.Load() + r.received.Load() }
	terminal := isatty.IsTerminal(os.Stderr.Fd())
	every := 10 * time.Second
	if terminal {
		every = 100 * time.Millisecond
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	var bar *progressbar.ProgressBar
	if terminal {
		bar = progressbar.NewOptions64(total, progressbar.OptionSetWriter(os.Stderr), progressbar.OptionShowCount(), progressbar.OptionShowIts(),
			progressbar.OptionSetItsString("orders"), progressbar.OptionSetPredictTime(true), progressbar.OptionClearOnFinish())
		defer bar.Finish()
	}
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		n := done()
		what := fmt.Sprintf("sent %d, killed %d", r.acknowledged.Load(), r.restarts.Load())
		if bar != nil {
			bar.Describe(what)
			_ = bar.Set64(n) // a bar that cannot be drawn must not end the demo
			continue
		}
		elapsed := time.Since(r.begun)
		rate := float64(n) / elapsed.Seconds()
		fmt.Fprintf(os.Stderr, "%s, %d of %d (%d %%), %.0f/s, %v left\n", what, n, total, n*100/total, rate,
			time.Duration(float64(total-n)/max(rate, 1)*float64(time.Second)).Round(time.Second))
	}
}

func sortedKeys(m map[string]int) []string { return slices.Sorted(maps.Keys(m)) }
