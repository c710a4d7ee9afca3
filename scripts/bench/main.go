// Command bench runs the disk, limit and broker benchmarks of one jmq binary interleaved, three times, and prints a table of
// medians with the broker's share of the limit. `make bench` runs it.
//
// Absolute figures of a shared machine wander; ratios of medians from one interleaved run are what it is for. It says
// whether the machine was quiet at the start and what other processes used meanwhile.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/schollz/progressbar/v3"
)

// result is the part of `jmq bench --json` that the table shows.
type result struct {
	System          string  `json:"system"`
	MessagesPerSec  float64 `json:"messagesPerSecond"`
	BytesPerSec     float64 `json:"bytesPerSecond"`
	P50Us           float64 `json:"p50Us"`
	P99Us           float64 `json:"p99Us"`
	SyncsPerSec     float64 `json:"syncsPerSecond"`
	CPUUsPerMessage float64 `json:"cpuUsPerMessage"`
	RSSPeakBytes    float64 `json:"rssPeakBytes"`
	Messages        float64 `json:"messages"`
	WriteBytes      float64 `json:"writeBytes"` // to the disk
}

type row struct {
	name             string
	producers, batch int
	endToEnd         bool
	slave            bool // what a slave costs
}

var rows = []row{
	{"1x1", 1, 1, false, false}, {"8x1", 8, 1, false, false}, {"64x1", 64, 1, false, false}, {"8x100", 8, 100, false, false}, {"consume+ack 64x1", 64, 1, true, false},
	{"slave 64x1", 64, 1, false, true}, {"slave 256x1", 256, 1, false, true},
}

// withSlave is the end of the names of systems that have one.
const withSlave = "+slave"

func main() {
	binary := flag.String("jmq", "./jmq", "the binary to measure")
	out := flag.String("out", ".bin/bench", "folder for results.json and the table")
	repeats := flag.Int("repeats", 3, "interleaved repeats; with -full: pairs")
	duration := flag.Duration("time", 3*time.Second, "measured time of one run")
	warmUp := flag.Duration("warm-up", time.Second, "load before measuring")
	only := flag.String("rows", "", "only these rows, by comma: 1x1,64x1")
	data := flag.String("data", "", "folder on the disk to measure (default: temporary)")
	inFull := flag.Bool("full", false, "the rows of make bench-full instead: backlog, topics, identity, registry, slave, catch-up, fail-over")
	smoke := flag.Bool("smoke", false, "one short round of every row: shows that it runs, measures nothing")
	flag.Parse()
	if *smoke {
		*repeats, *duration, *warmUp = 1, 300*time.Millisecond, 100*time.Millisecond
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *inFull {
		size := fullReal
		if *smoke {
			size = fullSmoke
		}
		flag.Visit(func(f *flag.Flag) { // what was said wins
			switch f.Name {
			case "repeats":
				size.pairs, size.fewPairs = *repeats, *repeats
			case "time":
				size.time = *duration
			case "warm-up":
				size.warmUp = *warmUp
			}
		})
		if err := runFull(ctx, *binary, *out, *data, *only, size, *smoke); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	if err := run(ctx, *binary, *out, *data, *only, *repeats, *duration, *warmUp, *smoke); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, binary, out, data, only string, repeats int, duration, warmUp time.Duration, smoke bool) error {
	if repeats < 1 {
		return fmt.Errorf("-repeats is %d: give 1 or more", repeats)
	}
	if _, err := os.Stat(binary); err != nil {
		return fmt.Errorf("no binary to measure: %w; run make build first", err)
	}
	chosen := rows
	if only != "" {
		chosen = nil
		for _, name := range strings.Split(only, ",") {
			i := slices.IndexFunc(rows, func(r row) bool { return r.name == name })
			if i < 0 {
				var known []string
				for _, r := range rows {
					known = append(known, r.name)
				}
				return fmt.Errorf("no row %q: there are %s", name, strings.Join(known, ", "))
			}
			chosen = append(chosen, rows[i])
		}
	}
	quiet := loadAverage()
	busyBefore, begin := cpuOfAll(), time.Now()
	results := map[string]map[string][]result{} // row, system
	total := 0
	for _, r := range chosen {
		total += repeats * len(r.systems())
	}
	bar := progressbar.NewOptions(total, progressbar.OptionSetWriter(os.Stderr), progressbar.OptionShowCount(), progressbar.OptionSetDescription("bench"), progressbar.OptionClearOnFinish())
	for range repeats {
		for _, r := range chosen {
			for _, system := range r.systems() {
				got, err := measure(ctx, binary, system, r, data, duration, warmUp)
				if err != nil {
					return fmt.Errorf("%s %s: %w", system, r.name, err)
				}
				if results[r.name] == nil {
					results[r.name] = map[string][]result{}
				}
				results[r.name][system] = append(results[r.name][system], got)
				_ = bar.Add(1) // a bar that cannot be drawn is no reason to stop
			}
		}
	}
	_ = bar.Finish()
	busy := cpuOfAll() - busyBefore

	var text bytes.Buffer
	fmt.Fprintf(&text, "%s, %d CPUs, load average %.2f at the start; medians of %d interleaved runs of %v, 1 KiB bodies; all CPUs were busy %.0f %% of the time\n",
		begin.Format(time.DateTime), cpus(), quiet, repeats, duration, 100*busy.Seconds()/time.Since(begin).Seconds()/float64(cpus()))
	if quiet > 0.7 {
		fmt.Fprintf(&text, "The machine was NOT quiet at the start: trust ratios only, and those with care.\n")
	}
	t := table.NewWriter()
	t.SetOutputMirror(&text)
	t.AppendHeader(table.Row{"producers x batch", "system", "messages/s", "MB/s", "p50 us", "p99 us", "syncs/s", "CPU us/msg", "peak RSS MiB", "% of limit", "limit % of disk"})
	var goals []string
	for _, r := range chosen {
		limit := median(results[r.name]["limit"])
		for _, system := range r.systems() {
			m := median(results[r.name][system])
			ofLimit, ofDisk := "", ""
			if system != "limit" && system != "disk" && limit.MessagesPerSec > 0 {
				ofLimit = fmt.Sprintf("%.0f", 100*m.MessagesPerSec/limit.MessagesPerSec)
			}
			if system == "limit" && len(results[r.name]["disk"]) > 0 {
				ofDisk = fmt.Sprintf("%.0f", 100*m.MessagesPerSec/median(results[r.name]["disk"]).MessagesPerSec)
			}
			t.AppendRow(table.Row{r.name, system, fmt.Sprintf("%.0f", m.MessagesPerSec), fmt.Sprintf("%.1f", m.BytesPerSec/1e6),
				m.P50Us, m.P99Us, fmt.Sprintf("%.0f", m.SyncsPerSec), fmt.Sprintf("%.1f", m.CPUUsPerMessage), fmt.Sprintf("%.0f", m.RSSPeakBytes/(1<<20)), ofLimit, ofDisk})
		}
		t.AppendSeparator()
		goals = append(goals, goalsOf(r, results[r.name])...)
	}
	t.Render()
	if smoke {
		fmt.Fprintln(&text, "A smoke run: it shows that every row runs; its figures mean nothing.")
		goals = nil
	}
	for _, g := range goals {
		fmt.Fprintln(&text, g)
	}
	fmt.Print(text.String())
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(out, "table.txt"), text.Bytes(), 0o644); err != nil {
		return err
	}
	raw, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(out, "results.json"), raw, 0o644); err != nil {
		return err
	}
	return plot(filepath.Join(out, "throughput.svg"), chosen, results)
}

func (r row) systems() []string {
	switch {
	case r.endToEnd:
		return []string{"limit", "broker"}
	case r.slave:
		return []string{"limit", "limit" + withSlave, "broker", "broker" + withSlave}
	}
	return []string{"disk", "limit", "broker"}
}

// goalsOf says which goals of the spine a row holds, as the median over the repeats of the ratio within one repeat.
func goalsOf(r row, got map[string][]result) []string {
	var lines []string
	say := func(what string, ratios []float64, holds func(float64) bool, goal string) {
		slices.Sort(ratios)
		if len(ratios) == 0 {
			return
		}
		mid, verdict := ratios[len(ratios)/2], "missed"
		if holds(mid) {
			verdict = "reached"
		}
		lines = append(lines, fmt.Sprintf("%-9s %s %s: %.2f (%.2f to %.2f), goal %s", verdict, r.name, what, mid, ratios[0], ratios[len(ratios)-1], goal))
	}
	ratios := func(a, b string, of func(result) float64) []float64 {
		var rs []float64
		for i := range min(len(got[a]), len(got[b])) {
			if d := of(got[b][i]); d > 0 {
				rs = append(rs, of(got[a][i])/d)
			}
		}
		return rs
	}
	rate := func(x result) float64 { return x.MessagesPerSec }
	p99 := func(x result) float64 { return x.P99Us }
	atLeast := func(g float64) func(float64) bool { return func(v float64) bool { return v >= g } }
	if r.slave {
		// Each to itself alone first: what the slave takes of it.
		share := func(system string) []float64 { return ratios(system+withSlave, system, rate) }
		broker, limit := share("broker"), share("limit")
		var of []float64
		for i := range min(len(broker), len(limit)) {
			of = append(of, broker[i]/limit[i])
		}
		say("with a slave / alone, broker to limit", of, atLeast(0.97), ">= 0.97")
	}
	switch r.name {
	case "1x1":
		say("limit/disk messages/s", ratios("limit", "disk", rate), atLeast(0.55), ">= 0.55")
	case "64x1":
		say("broker/limit messages/s", ratios("broker", "limit", rate), atLeast(0.75), ">= 0.75")
		say("broker/limit p99", ratios("broker", "limit", p99), func(v float64) bool { return v <= 1.5 }, "<= 1.5")
		say("limit/disk messages/s", ratios("limit", "disk", rate), atLeast(0.20), ">= 0.20")
	}
	return lines
}

func measure(ctx context.Context, binary, system string, r row, data string, duration, warmUp time.Duration) (result, error) {
	alone, slave := strings.CutSuffix(system, withSlave)
	command := map[string]string{"disk": "disk", "limit": "limit", "broker": "produce"}[alone]
	args := []string{"bench", command, "--json", "--producers", strconv.Itoa(r.producers), "--batch", strconv.Itoa(r.batch),
		"--size", "1024", "--time", duration.String(), "--warm-up", warmUp.String()}
	if data != "" {
		args = append(args, "--data", data)
	}
	if slave {
		args = append(args, "--slave")
	}
	if r.endToEnd {
		if system == "broker" {
			args[1] = "e2e"
		} else {
			args = append(args, "--consume")
		}
	}
	ctx, cancel := context.WithTimeout(ctx, duration+warmUp+60*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return result{}, fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr.String()))
	}
	var got result
	if err := json.Unmarshal(stdout.Bytes(), &got); err != nil {
		return result{}, fmt.Errorf("read its output: %w", err)
	}
	return got, nil
}

// median takes each figure's own median.
func median(rs []result) result {
	pick := func(of func(result) float64) float64 {
		var v []float64
		for _, r := range rs {
			v = append(v, of(r))
		}
		slices.Sort(v)
		if len(v) == 0 {
			return 0
		}
		return v[len(v)/2]
	}
	return result{
		MessagesPerSec: pick(func(r result) float64 { return r.MessagesPerSec }), BytesPerSec: pick(func(r result) float64 { return r.BytesPerSec }),
		P50Us: pick(func(r result) float64 { return r.P50Us }), P99Us: pick(func(r result) float64 { return r.P99Us }),
		SyncsPerSec: pick(func(r result) float64 { return r.SyncsPerSec }), CPUUsPerMessage: pick(func(r result) float64 { return r.CPUUsPerMessage }),
		RSSPeakBytes: pick(func(r result) float64 { return r.RSSPeakBytes }),
	}
}
