package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/mattn/go-isatty"
)

// The rows of make bench-full measure what a store is after years: a large backlog, many topics, recycled segments, a restart.
// Two cases that are compared run on two brokers that are both up, in pairs, each first in every other pair; what counts is the
// median of the pairs' ratios, with its 95 % interval. An interval that holds the goal decides nothing, and the table says so.

// full is one run of such rows.
type full struct {
	binary, out, data string
	size              fullSize
	lines             []line
	step              func(what string)
}

// fullSize says how much is measured.
type fullSize struct {
	pairs, fewPairs int           // of sends; of what takes longer
	time, warmUp    time.Duration // of one measurement
	backlog         int           // messages
	backlogBody     int           // bytes of each
	topics          []int
	journal         int64 // bytes, for the restart
	restarts        int
	segment         int64         // bytes of a segment where the disk's bytes are counted
	device, pass    time.Duration // one measurement of that, and how often its broker lets go
	metadata        metadataSize
	failOver        failOverSize
	catchUp         catchUpSize
}

// metadataSize is how much a registry node holds, and for how many.
type metadataSize struct {
	topics, apps, subscriptions int
	clients                     int
	rest                        time.Duration // after they have connected
}

var (
	fullReal = fullSize{20, 7, 1200 * time.Millisecond, 300 * time.Millisecond, 10_000_000, 100, []int{1000, 10_000}, 10 << 30, 3, 128 << 20, 8 * time.Second, 4 * time.Second, metadataSize{5000, 2000, 20_000, 10_000, 10 * time.Second},
		failOverSize{3, 3 * time.Second, 1000}, catchUpSize{3, 2 << 30, 3 * time.Second, 512 << 20}}
	fullSmoke = fullSize{1, 1, 150 * time.Millisecond, 50 * time.Millisecond, 20_000, 100, []int{20, 50}, 4 << 20, 1, 1 << 20, 150 * time.Millisecond, 50 * time.Millisecond, metadataSize{50, 20, 200, 20, 50 * time.Millisecond},
		failOverSize{1, time.Second, 100}, catchUpSize{1, 8 << 20, 200 * time.Millisecond, 4 << 20}}
)

// partitionsOfMany is how many partitions each of many topics has.
const partitionsOfMany = 4

var fullRows = []struct {
	name string
	run  func(*full, context.Context) error
}{{"backlog", (*full).backlog}, {"topics", (*full).topics}, {"identity", (*full).identity}, {"registry", (*full).registry}, {"slave", (*full).slave}, {"catch-up", (*full).catchUp},
	{"fail-over", (*full).failOver}}

// line is one figure of the table.
type line struct {
	Row, What string
	Unit      string
	Base, Got float64   // medians of what is compared; Base 0: nothing is
	Samples   []float64 // of the figure: ratios Got/Base, or values
	Low, Mid  float64   // the median with its interval
	High      float64
	Judged    bool // by Goal; else it is for information
	Goal      float64
	AtMost    bool // the goal is a bound from above
}

func newLine(row, what, unit string, samples []float64) line {
	l := line{Row: row, What: what, Unit: unit, Samples: samples}
	l.Low, l.Mid, l.High = interval(samples)
	return l
}

func (l line) atLeast(goal float64) line { l.Judged, l.Goal = true, goal; return l }
func (l line) atMost(goal float64) line  { l.Judged, l.Goal, l.AtMost = true, goal, true; return l }

// interval is the median with its 95 % interval, by the ranks that a coin's tosses would give; of fewer than six samples it is
// all of them.
func interval(samples []float64) (low, mid, high float64) {
	s := slices.Sorted(slices.Values(samples))
	n := len(s)
	if n == 0 {
		return math.NaN(), math.NaN(), math.NaN()
	}
	mid = s[n/2]
	if n%2 == 0 {
		mid = (s[n/2-1] + s[n/2]) / 2
	}
	rank := 0
	if n >= 6 {
		rank = max(int((float64(n)-1.96*math.Sqrt(float64(n)))/2), 0)
	}
	return s[rank], mid, s[n-1-rank]
}

func (l line) verdict() string {
	switch {
	case !l.Judged:
		return ""
	case l.AtMost && l.High <= l.Goal, !l.AtMost && l.Low >= l.Goal:
		return "reached"
	case l.AtMost && l.Low > l.Goal, !l.AtMost && l.High < l.Goal:
		return "missed"
	}
	return "not decided"
}

func runFull(ctx context.Context, binary, out, data, rows string, size fullSize, smoke bool) error {
	if size.pairs < 1 {
		return fmt.Errorf("-repeats is %d: give 1 or more", size.pairs)
	}
	if _, err := os.Stat(binary); err != nil {
		return fmt.Errorf("no binary to measure: %w; run make build first", err)
	}
	var chosen []string
	var known []string
	for _, r := range fullRows {
		known = append(known, r.name)
	}
	if chosen = known; rows != "" {
		chosen = strings.Split(rows, ",")
	}
	for _, name := range chosen {
		if !slices.Contains(known, name) {
			return fmt.Errorf("no row %q: there are %s", name, strings.Join(known, ", "))
		}
	}
	data, err := os.MkdirTemp(data, "jmq-bench-full-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(data)
	if data, err = filepath.EvalSymlinks(data); err != nil {
		return err
	}
	if data, err = filepath.Abs(data); err != nil { // servers and commands run in other folders
		return err
	}
	if binary, err = filepath.Abs(binary); err != nil {
		return err
	}
	begin, quiet, busyBefore := time.Now(), loadAverage(), cpuOfAll()
	f := &full{binary: binary, out: out, data: data, size: size}
	terminal := isatty.IsTerminal(os.Stderr.Fd())
	f.step = func(what string) {
		at := time.Since(begin).Round(time.Second)
		if terminal {
			fmt.Fprintf(os.Stderr, "\r\x1b[K%4v  %s", at, what)
		} else if !smoke {
			fmt.Fprintf(os.Stderr, "%4v  %s\n", at, what)
		}
	}
	for _, r := range fullRows {
		if !slices.Contains(chosen, r.name) {
			continue
		}
		if err := r.run(f, ctx); err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
	}
	if terminal {
		fmt.Fprint(os.Stderr, "\r\x1b[K")
	}
	busy := cpuOfAll() - busyBefore
	var text bytes.Buffer
	fmt.Fprintf(&text, "%s, %d CPUs, load average %.2f at the start; %d pairs of %v; all CPUs were busy %.0f %% of %v\n", begin.Format(time.DateTime), cpus(), quiet,
		size.pairs, size.time, 100*busy.Seconds()/time.Since(begin).Seconds()/float64(cpus()), time.Since(begin).Round(time.Second))
	if quiet > 0.7 {
		fmt.Fprintln(&text, "The machine was NOT quiet at the start: trust ratios only, and those with care.")
	}
	t := table.NewWriter()
	t.SetOutputMirror(&text)
	t.AppendHeader(table.Row{"row", "what", "median", "95 % interval", "n", "goal", "verdict", "of", "to"})
	last := ""
	for _, l := range f.lines {
		if last != "" && last != l.Row {
			t.AppendSeparator()
		}
		last = l.Row
		goal := ""
		if l.Judged {
			goal = map[bool]string{true: "<= ", false: ">= "}[l.AtMost] + figure(l.Goal) + " " + l.Unit
		}
		of, to := "", ""
		if l.Base != 0 {
			of, to = figure(l.Got), figure(l.Base)
		}
		verdict := l.verdict()
		if smoke {
			verdict = ""
		}
		t.AppendRow(table.Row{l.Row, l.What, figure(l.Mid) + " " + l.Unit, figure(l.Low) + " to " + figure(l.High), len(l.Samples), goal, verdict, of, to})
	}
	t.Render()
	if smoke {
		fmt.Fprintln(&text, "A smoke run: it shows that every row runs; its figures mean nothing.")
	}
	fmt.Print(text.String())
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	raw, err := json.MarshalIndent(f.lines, "", "  ")
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(filepath.Join(out, "full.txt"), text.Bytes(), 0o644), os.WriteFile(filepath.Join(out, "full.json"), raw, 0o644),
		plotFull(filepath.Join(out, "full.svg"), f.lines))
}

// figure keeps to three digits or so.
func figure(v float64) string {
	switch a := math.Abs(v); {
	case math.IsNaN(v):
		return "-"
	case a >= 1000:
		return humanize.Comma(int64(math.Round(v)))
	case a >= 100 || v == math.Trunc(v):
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 3, 64)
}

func (f *full) add(l line) { f.lines = append(f.lines, l) }

// bench runs jmq bench with the flags, against a server or, with nil, one of its own.
func (f *full) bench(ctx context.Context, s *server, command string, flags ...string) (result, error) {
	args := append([]string{"bench", command, "--json", "--quiet", "--data", filepath.Join(f.data, "own")}, flags...)
	if s != nil {
		args = append(args, "--address", s.wire, "--pid", strconv.Itoa(s.cmd.Process.Pid))
	}
	ctx, cancel := context.WithTimeout(ctx, 15*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, f.binary, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return result{}, fmt.Errorf("jmq %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	var got result
	if err := json.Unmarshal(stdout.Bytes(), &got); err != nil {
		return result{}, fmt.Errorf("read the output of jmq bench: %w", err)
	}
	return got, nil
}

func (f *full) timed(flags ...string) []string {
	return append([]string{"--time", f.size.time.String(), "--warm-up", f.size.warmUp.String()}, flags...)
}

// settled is timed for what takes longer until it is even: buffers that fill.
func (f *full) settled(flags ...string) []string {
	return append([]string{"--time", (2 * f.size.time).String(), "--warm-up", (4 * f.size.warmUp).String()}, flags...)
}

// measured is one side of a pair.
type measured func() (float64, error)

// pairs measures both sides n times, each first in every other pair, and returns got/base of each pair.
func (f *full) pairs(what string, n int, base, got measured) (l line, err error) {
	var ratios, bases, gots []float64
	for i := range n {
		f.step(fmt.Sprintf("%s: pair %d of %d", what, i+1, n))
		var b, g float64
		if i%2 == 0 {
			if b, err = base(); err == nil {
				g, err = got()
			}
		} else if g, err = got(); err == nil {
			b, err = base()
		}
		if err != nil {
			return l, err
		}
		if b == 0 {
			return l, fmt.Errorf("%s: nothing was measured", what)
		}
		bases, gots, ratios = append(bases, b), append(gots, g), append(ratios, g/b)
	}
	l = newLine("", what, "x", ratios)
	_, l.Base, _ = interval(bases)
	_, l.Got, _ = interval(gots)
	return l, nil
}

// rate returns a side that produces, and adds up what that cost the server's processor.
func (f *full) rate(ctx context.Context, s *server, cost *cost, command string, flags ...string) measured {
	return func() (float64, error) {
		r, err := f.bench(ctx, s, command, flags...)
		if err == nil {
			*cost = append(*cost, r.CPUUsPerMessage)
		}
		return r.MessagesPerSec, err
	}
}

// cost is CPU microseconds a message, one value a measurement.
type cost []float64

func (f *full) addCost(row, what string, got, base cost) {
	ratios := make([]float64, min(len(got), len(base)))
	for i := range ratios {
		ratios[i] = got[i] / max(base[i], 0.001)
	}
	l := newLine(row, what, "x", ratios)
	_, l.Got, _ = interval(got)
	_, l.Base, _ = interval(base)
	f.add(l)
}

// startServer starts a broker on a new folder.
func (f *full) startServer(ctx context.Context, name string, flags ...string) (*server, error) {
	s, err := newServer(f.binary, f.data, name, flags...)
	if err == nil {
		_, err = s.start(ctx)
	}
	return s, err
}

// backlog: producing beside a large backlog, its memory; sends that do not wait, parallel consumption, and what recycled
// segments cost the disk.
func (f *full) backlog(ctx context.Context) error {
	const row = "backlog"
	full, err := f.startServer(ctx, "backlog")
	if err != nil {
		return err
	}
	defer full.drop()
	plain, err := f.startServer(ctx, "plain")
	if err != nil {
		return err
	}
	defer plain.drop()
	n := humanize.Comma(int64(f.size.backlog))
	f.step(fmt.Sprintf("%s messages of %d bytes as a backlog", n, f.size.backlogBody))
	filled, err := f.bench(ctx, full, "fill", "--messages", strconv.Itoa(f.size.backlog), "--size", strconv.Itoa(f.size.backlogBody), "--batch", "1000", "--producers", "8")
	if err != nil {
		return err
	}
	f.add(newLine(row, fmt.Sprintf("filling: %s messages of %d bytes, 8 producers, batches of 1,000", n, f.size.backlogBody), "messages/s", []float64{filled.MessagesPerSec}))
	var fullCost, plainCost cost
	l, err := f.pairs("64x1 with a backlog of "+n+" messages, to without", f.size.pairs,
		f.rate(ctx, plain, &plainCost, "produce", f.timed()...), f.rate(ctx, full, &fullCost, "produce", f.timed()...))
	if err != nil {
		return err
	}
	l.Row = row
	f.add(l.atLeast(0.95))
	f.addCost(row, "the same, broker CPU us a message", fullCost, plainCost)
	now, peak, err := full.rss()
	if err != nil {
		return err
	}
	f.add(newLine(row, "resident memory of the broker with the backlog, at most", "MiB", []float64{float64(peak) / (1 << 20)}).atMost(300))
	f.add(newLine(row, "the same, at the end", "MiB", []float64{float64(now) / (1 << 20)}))
	full.drop()

	var none cost
	l, err = f.pairs("8 producers that do not wait for answers, to 8x100", f.size.fewPairs,
		f.rate(ctx, plain, &none, "produce", f.settled("--producers", "8", "--batch", "100")...),
		f.rate(ctx, plain, &none, "produce", f.settled("--producers", "8", "--async")...))
	if err != nil {
		return err
	}
	l.Row = row
	f.add(l.atLeast(0.8))
	plain.drop()

	consume := func(flags ...string) measured {
		return func() (float64, error) {
			r, err := f.bench(ctx, nil, "consume", f.timed(flags...)...)
			return r.MessagesPerSec, err
		}
	}
	if l, err = f.pairs("consuming in parallel, to in order", f.size.fewPairs, consume(), consume("--parallel")); err != nil {
		return err
	}
	l.Row = row
	f.add(l.atLeast(0.7))
	return f.device(ctx, row)
}

// device measures what the disk is given to write for each byte of a body, on recycled segments and on new ones: the counter of the
// whole disk, since that of a process counts whole folios of the page cache. So others' writes count too. What the broker says
// that it wrote, in pages, stands beside it: the rest is the file system's own journal, which is about 0.01, and those others. Where it is
// more, the machine was not left alone.
func (f *full) device(ctx context.Context, row string) error {
	const body, repeats = 1024, 3
	if _, err := diskWritten(f.data); err != nil { // no disk of its own, such as memory or an overlay
		f.add(newLine(row, "device bytes: not measured, "+err.Error(), "x", nil))
		return nil
	}
	segment := strconv.FormatInt(f.size.segment, 10)
	keep := 8 * f.size.segment
	// measure takes all for each byte of a body; of the disk without the zeroes that prepare segments.
	type given struct{ disk, zeroes, records, pages, derived, rest float64 }
	measure := func(s *server) (g given, err error) {
		var before, after [5]float64
		read := func(into *[5]float64) error {
			for i, name := range []string{"jmq_journal_filled_bytes_total", "jmq_journal_written_bytes_total", "jmq_journal_page_bytes_total",
				"jmq_index_written_bytes_total", "jmq_checkpoint_written_bytes_total"} {
				v, err := s.metric(ctx, name)
				if err != nil {
					return err
				}
				into[i] = v
			}
			return nil
		}
		err1 := read(&before)
		diskBefore, err2 := diskWritten(s.dir)
		r, err3 := f.bench(ctx, s, "produce", "--time", f.size.device.String(), "--warm-up", "0s")
		diskAfter, err4 := diskWritten(s.dir)
		err5 := read(&after)
		payload := r.Messages * body
		of := func(i int) float64 { return (after[i] - before[i]) / payload }
		g.zeroes, g.records, g.pages, g.derived = of(0), of(1), of(2), of(3)+of(4)
		g.disk = float64(diskAfter-diskBefore)/payload - g.zeroes
		g.rest = g.disk - g.pages - g.derived
		return g, errors.Join(err1, err2, err3, err4, err5)
	}
	// So often that what goes between two passes is a segment or two, which are recycled.
	recycled, err := f.startServer(ctx, "recycled", "--broker.journal.segmentBytesMax", segment, "--broker.retention.bytes", strconv.FormatInt(keep, 10),
		"--broker.retention.every", f.size.pass.String(), "--broker.journal.verifyBytesPerSecond", "0")
	if err != nil {
		return err
	}
	defer recycled.drop()
	f.step("filling until segments are recycled")
	if _, err := f.bench(ctx, recycled, "fill", "--messages", strconv.FormatInt(keep*3/2/body, 10), "--batch", "100", "--producers", "1", "--nobody"); err != nil {
		return err
	}
	before, err := recycled.metric(ctx, "jmq_journal_recycled_total")
	if err != nil {
		return err
	}
	fresh, err := f.startServer(ctx, "fresh", "--broker.journal.segmentBytesMax", segment, "--broker.journal.verifyBytesPerSecond", "0")
	if err != nil {
		return err
	}
	defer fresh.drop()
	var ofRecycled, ofFresh []given
	for i := range repeats {
		f.step(fmt.Sprintf("device bytes on recycled segments: %d of %d", i+1, repeats))
		r, err := measure(recycled)
		if err != nil {
			return err
		}
		f.step(fmt.Sprintf("device bytes on new segments: %d of %d", i+1, repeats))
		n, err := measure(fresh)
		if err != nil {
			return err
		}
		ofRecycled, ofFresh = append(ofRecycled, r), append(ofFresh, n)
	}
	after, err := recycled.metric(ctx, "jmq_journal_recycled_total")
	if err != nil {
		return err
	}
	each := func(of []given, field func(given) float64) (samples []float64) {
		for _, g := range of {
			samples = append(samples, field(g))
		}
		return samples
	}
	for _, c := range []struct {
		segments string
		of       []given
	}{{"recycled", ofRecycled}, {"new", ofFresh}} {
		l := newLine(row, "device bytes for each byte of a body, 64x1, "+c.segments+" segments", "x", each(c.of, func(g given) float64 { return g.disk }))
		if c.segments == "recycled" {
			l = l.atMost(1.3)
		}
		f.add(l)
		f.add(newLine(row, "of that, pages that commits wrote", "x", each(c.of, func(g given) float64 { return g.pages })))
		f.add(newLine(row, "in them, records of the journal", "x", each(c.of, func(g given) float64 { return g.records })))
		f.add(newLine(row, "of that, index and checkpoints", "x", each(c.of, func(g given) float64 { return g.derived })))
		f.add(newLine(row, "of that, the file system's and others' writes", "x", each(c.of, func(g given) float64 { return g.rest })))
		f.add(newLine(row, "beside it, zeroes that prepare segments", "x", each(c.of, func(g given) float64 { return g.zeroes })))
	}
	f.add(newLine(row, "segments recycled meanwhile", "segments", []float64{after - before}))
	return nil
}

// topics: producing to many topics, the files that takes, and a restart with many partitions and a long journal.
func (f *full) topics(ctx context.Context) error {
	const row = "topics"
	partitions := strconv.Itoa(partitionsOfMany)
	for i, n := range f.size.topics {
		many, err := f.startServer(ctx, fmt.Sprintf("topics-%d", n))
		if err != nil {
			return err
		}
		defer many.drop()
		one, err := f.startServer(ctx, fmt.Sprintf("one-%d", n))
		if err != nil {
			return err
		}
		defer one.drop()
		count := humanize.Comma(int64(n))
		f.step("making " + count + " topics")
		all := []string{"--topics", strconv.Itoa(n), "--partitions", partitions}
		if _, err := f.bench(ctx, many, "fill", append(all, "--messages", strconv.Itoa(4*n))...); err != nil {
			return err
		}
		for _, load := range []struct {
			name  string
			flags []string
		}{{"64x1", nil}, {"8x100", []string{"--producers", "8", "--batch", "100"}}} {
			var ofOne, ofMany cost
			l, err := f.pairs(fmt.Sprintf("%s to %s topics of %d partitions, to one topic", load.name, count, partitionsOfMany), f.size.pairs,
				f.rate(ctx, one, &ofOne, "produce", f.timed(append(load.flags, "--partitions", partitions)...)...),
				f.rate(ctx, many, &ofMany, "produce", f.timed(append(load.flags, all...)...)...))
			if err != nil {
				return err
			}
			l.Row = row
			f.add(l.atLeast(0.9))
			f.addCost(row, "the same, broker CPU us a message", ofMany, ofOne)
		}
		one.drop()
		open, err := many.openIn("index")
		if err != nil {
			return err
		}
		_, peak, err := many.rss()
		if err != nil {
			return err
		}
		f.add(newLine(row, "index files open with "+count+" topics", "files", []float64{float64(open)}).atMost(2000))
		f.add(newLine(row, "resident memory with "+count+" topics, at most", "MiB", []float64{float64(peak) / (1 << 20)}).atMost(300))
		if i < len(f.size.topics)-1 {
			many.drop()
			continue
		}
		if err := f.restart(ctx, row, many, n, all); err != nil {
			return err
		}
	}
	return nil
}

// restart kills the broker while it takes sends, and measures until it serves again.
func (f *full) restart(ctx context.Context, row string, s *server, topics int, flags []string) error {
	const body = 1024
	have, _, err := s.folder("journal")
	if err != nil {
		return err
	}
	if missing := f.size.journal - have; missing > 0 {
		f.step(fmt.Sprintf("filling the journal to %s", humanize.IBytes(uint64(f.size.journal))))
		fill := append([]string{"--messages", strconv.FormatInt(missing/body, 10), "--batch", "100", "--producers", "8"}, flags...)
		if _, err := f.bench(ctx, s, "fill", fill...); err != nil {
			return err
		}
	}
	var took []float64
	for i := range f.size.restarts {
		f.step(fmt.Sprintf("kill and restart %d of %d", i+1, f.size.restarts))
		loading, stop := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = f.bench(loading, s, "produce", append([]string{"--time", "1h", "--warm-up", "0s"}, flags...)...) // it is killed with its broker
		}()
		time.Sleep(f.size.time + 2*time.Second*time.Duration(min(topics/1000, 1)))
		s.kill()
		stop()
		<-ended
		d, err := s.start(ctx)
		if err != nil {
			return err
		}
		took = append(took, d.Seconds())
	}
	size, files, err := s.folder("journal")
	if err != nil {
		return err
	}
	_, indexFiles, err := s.folder("index")
	if err != nil {
		return err
	}
	f.add(newLine(row, fmt.Sprintf("restart after a kill under load, %s of journal in %d files, %s partitions, %d index files", humanize.IBytes(uint64(size)), files,
		humanize.Comma(int64(topics*partitionsOfMany)), indexFiles), "s", took).atMost(2))
	return nil
}
