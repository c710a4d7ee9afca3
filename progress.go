package main

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/schollz/progressbar/v3"
)

// progress shows on stderr how far a long command is: after 2 s, a bar on a terminal, else a line every 10 s. The
// owner calls set as it likes, from any goroutine, and close at the end.
type progress struct {
	w      io.Writer
	what   string
	bytes  bool
	quiet  bool
	isTerm bool
	now    func() time.Time

	mu    sync.Mutex
	bar   *progressbar.ProgressBar // nil: nothing shown yet, or no terminal
	start time.Time
	shown time.Time
}

const (
	progressAfter = 2 * time.Second
	progressEvery = 10 * time.Second
	barEvery      = 100 * time.Millisecond
)

func newProgress(w io.Writer, what string, bytes, quiet bool) *progress {
	now := time.Now()
	return &progress{w: w, what: what, bytes: bytes, quiet: quiet, isTerm: isTerminal(w), now: time.Now, start: now, shown: now}
}

// set says that done of total is reached; total below 0: not known.
func (p *progress) set(done, total int64) {
	if p.quiet {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	if now.Sub(p.start) < progressAfter {
		return
	}
	if !p.isTerm {
		if now.Sub(p.shown) >= progressEvery {
			p.shown = now
			fmt.Fprintln(p.w, p.line(now, done, total))
		}
		return
	}
	if p.bar == nil {
		p.bar = progressbar.NewOptions64(total,
			progressbar.OptionSetWriter(p.w), progressbar.OptionSetDescription(p.what), progressbar.OptionShowBytes(p.bytes),
			progressbar.OptionShowCount(), progressbar.OptionShowIts(), progressbar.OptionSetItsString("msg"),
			progressbar.OptionSetPredictTime(true), progressbar.OptionThrottle(barEvery), progressbar.OptionClearOnFinish())
	}
	if total > 0 && p.bar.GetMax64() != total {
		p.bar.ChangeMax64(total)
	}
	_ = p.bar.Set64(done) // a bar that cannot be drawn must not end the work
}

func (p *progress) line(now time.Time, done, total int64) string {
	count := func(n int64) string {
		if p.bytes {
			return humanize.IBytes(uint64(n))
		}
		return humanize.Comma(n)
	}
	elapsed := now.Sub(p.start)
	rate := float64(done) / elapsed.Seconds()
	s := fmt.Sprintf("%s: %s", p.what, count(done))
	if total > 0 {
		s += fmt.Sprintf(" of %s (%d %%)", count(total), done*100/total)
	}
	s += fmt.Sprintf(", %s/s", count(int64(rate)))
	if total > 0 && rate > 0 {
		left := time.Duration(float64(total-done) / rate * float64(time.Second))
		s += fmt.Sprintf(", %s left", left.Round(time.Second))
	}
	return s
}

func (p *progress) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar != nil {
		_ = p.bar.Finish()
		p.bar = nil
	}
}
