package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// benchOptions say what one run of a benchmark does.
type benchOptions struct {
	producers, batch, size int
	topics                 int  // of produce and fill: the producers send to one after the other
	messages               int  // of fill
	nobody                 bool // fill: no group is there
	async                  bool // produce: without waiting for answers
	parallel               bool // consume: several consumers at a time in one partition
	consumers              int  // of e2e, consume, and limit with consume
	consume                bool // limit: a consumer follows the journal
	slave                  bool // with a slave that has what is answered
	partitions             int
	warmUp, duration       time.Duration
	data                   string // folder for the run, removed afterwards
	place                         // of a broker that runs already; without an address: one of our own
	pid                    int    // of the broker at address, if it is to be measured too; 0: no
	connections            int
	json                   bool
	quiet                  bool
	progress               *progress
}

// benchResult is one line of the benchmark's output; the JSON form is what scripts/bench reads.
type benchResult struct {
	System          string  `json:"system"` // disk, limit, broker
	Producers       int     `json:"producers"`
	Batch           int     `json:"batch"`
	Size            int     `json:"size"`
	Consumers       int     `json:"consumers"`
	Seconds         float64 `json:"seconds"`
	Messages        int64   `json:"messages"`
	MessagesPerSec  float64 `json:"messagesPerSecond"`
	BytesPerSec     float64 `json:"bytesPerSecond"`
	P50Us           int64   `json:"p50Us"`
	P99Us           int64   `json:"p99Us"`
	P999Us          int64   `json:"p999Us"`
	MaxUs           int64   `json:"maxUs"`
	SyncsPerSec     float64 `json:"syncsPerSecond"`
	CPUUsPerMessage float64 `json:"cpuUsPerMessage"` // of the server's process; 0: no server of our own
	ClientCPUUs     float64 `json:"clientCpuUsPerMessage"`
	RSSPeakBytes    int64   `json:"rssPeakBytes"`
	WriteBytes      int64   `json:"writeBytes,omitempty"`
	// Latency counts the calls by how long they took: those of a bucket took less than its LessUs and not less than half of it.
	Latency []latencyBucket `json:"latency,omitempty"`
}

type latencyBucket struct {
	LessUs int64 `json:"lessUs"`
	Calls  int64 `json:"calls"`
}

// latencyBuckets doubles the width from bucket to bucket and leaves empty ones out.
func latencyBuckets(h *hdrhistogram.Histogram) []latencyBucket {
	var buckets []latencyBucket
	for _, bar := range h.Distribution() {
		if bar.Count == 0 {
			continue
		}
		less := int64(1) << bits.Len64(uint64(bar.From))
		if n := len(buckets); n == 0 || buckets[n-1].LessUs != less {
			buckets = append(buckets, latencyBucket{LessUs: less})
		}
		buckets[len(buckets)-1].Calls += bar.Count
	}
	return buckets
}

// serverUse is what the measured part cost the server.
type serverUse struct {
	syncs     int64
	cpu       time.Duration
	clientCPU time.Duration
	rssPeak   int64
	writes    int64
	consumed  int64
	consuming bool
}

// result of a run. Where messages were consumed, those are what counts.
func (o benchOptions) result(system string, r loadResult, use serverUse) benchResult {
	sec := r.elapsed.Seconds()
	if use.consuming {
		r.messages = use.consumed
	}
	b := benchResult{
		System: system, Producers: o.producers, Batch: o.batch, Size: o.size, Consumers: o.consumers,
		Seconds: sec, Messages: r.messages,
		MessagesPerSec: float64(r.messages) / sec, BytesPerSec: float64(r.messages) * float64(o.size) / sec,
		P50Us: r.latency.ValueAtQuantile(50), P99Us: r.latency.ValueAtQuantile(99),
		P999Us: r.latency.ValueAtQuantile(99.9), MaxUs: r.latency.Max(),
		SyncsPerSec: float64(use.syncs) / sec, RSSPeakBytes: use.rssPeak, WriteBytes: use.writes,
	}
	b.Latency = latencyBuckets(r.latency)
	if r.messages > 0 {
		b.CPUUsPerMessage = float64(use.cpu.Microseconds()) / float64(r.messages)
		b.ClientCPUUs = float64(use.clientCPU.Microseconds()) / float64(r.messages)
	}
	return b
}

func (b benchResult) print(w io.Writer, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(b)
	}
	line := fmt.Sprintf("%-7s %dx%d %d B: %.0f messages/s, %.1f MB/s, p50 %d us, p99 %d us, p99.9 %d us, max %d us",
		b.System, b.Producers, b.Batch, b.Size, b.MessagesPerSec, b.BytesPerSec/1e6, b.P50Us, b.P99Us, b.P999Us, b.MaxUs)
	// What is not known of a server that is not our own is left out.
	if b.SyncsPerSec > 0 {
		line += fmt.Sprintf(", %.0f syncs/s", b.SyncsPerSec)
	}
	if b.RSSPeakBytes > 0 {
		line += fmt.Sprintf(", %.2f us CPU a message, peak RSS %.1f MiB", b.CPUUsPerMessage, float64(b.RSSPeakBytes)/(1<<20))
	}
	if _, err := fmt.Fprintln(w, line); err != nil {
		return err
	}
	const width = 50 // characters of the longest bar
	most := int64(1)
	for _, l := range b.Latency {
		most = max(most, l.Calls)
	}
	for _, l := range b.Latency {
		if _, err := fmt.Fprintf(w, "  < %8v %9d calls %s\n", time.Duration(l.LessUs)*time.Microsecond, l.Calls, strings.Repeat("#", int((l.Calls*width+most-1)/most))); err != nil {
			return err
		}
	}
	return nil
}

func benchCommand() *cobra.Command {
	var o benchOptions
	bench := &cobra.Command{
		Use:   "bench",
		Short: "Measure this machine, the bare append path, and a broker",
		Long: `Measure this machine, the bare append path, and a broker.

disk     one writer, write + fdatasync of all producers' bytes, no network
limit    TCP on loopback, frames, one journal, group commit, nothing else: the ceiling of this machine
produce  producers through the SDK against a broker
fill     a backlog: so many messages that a group has still to consume
consume  consumers draining a backlog, with acks
e2e      producers and consumers together

Every send is on disk before it is answered. Without --address a server is started for the run on an empty folder
and removed afterwards, and its CPU and memory are measured too.`,
	}
	f := bench.PersistentFlags()
	f.IntVarP(&o.producers, "producers", "p", 64, "producers, each with one send in flight")
	f.IntVarP(&o.batch, "batch", "b", 1, "messages in a send")
	f.IntVarP(&o.size, "size", "s", 1024, "bytes in a message's body")
	f.IntVarP(&o.consumers, "consumers", "c", 4, "consumers (consume, e2e)")
	f.IntVar(&o.partitions, "partitions", 8, "partitions of the topic")
	f.IntVar(&o.connections, "connections", 2, "TCP connections shared by all producers")
	f.DurationVar(&o.duration, "time", 5*time.Second, "how long to measure")
	f.DurationVar(&o.warmUp, "warm-up", time.Second, "how long to load before measuring")
	f.StringVar(&o.data, "data", "", "folder on the disk to measure (default: a temporary folder)")
	o.place.flags(f)
	f.Lookup("address").Usage = "a running broker (produce, consume, e2e)"
	f.IntVar(&o.pid, "pid", 0, "process of the broker at --address on this machine, to measure its CPU, memory and writes too")
	f.BoolVar(&o.json, "json", false, "print one line of JSON")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "show no progress")
	add := func(name, short string, run func(context.Context, benchOptions) (benchResult, error)) {
		bench.AddCommand(&cobra.Command{
			Use: name, Short: short, Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error { return runBench(cmd, o, run) }, // o as the flags set it
		})
	}
	add("disk", "One writer, write + fdatasync, no network", benchDisk)
	add("limit", "TCP, frames, one journal, group commit, nothing else", benchLimit)
	add("produce", "Producers through the SDK", benchProduce)
	add("fill", "Store messages that a group has still to consume", benchFill)
	add("consume", "Consumers draining a backlog", benchConsume)
	add("e2e", "Producers and consumers together", benchEndToEnd)
	flagsOf := func(name string) *pflag.FlagSet {
		c, _, _ := bench.Find([]string{name}) // it was just added
		return c.Flags()
	}
	for _, name := range []string{"produce", "fill"} {
		flagsOf(name).IntVar(&o.topics, "topics", 1, "topics, each with --partitions, that producers send to one after the other")
	}
	flagsOf("produce").BoolVar(&o.async, "async", false, "producers do not wait for answers, only for room in their buffers; latencies are those of the calls")
	flagsOf("fill").BoolVar(&o.nobody, "nobody", false, "no group has to consume them")
	flagsOf("fill").IntVar(&o.messages, "messages", 1_000_000, "how many messages to store at least")
	flagsOf("consume").BoolVar(&o.parallel, "parallel", false, "several consumers at a time in one partition")
	limit, _, _ := bench.Find([]string{"limit"})
	limit.Flags().BoolVar(&o.consume, "consume", false, "with a consumer that follows and acks")
	for _, name := range []string{"produce", "consume", "e2e"} {
		flagsOf(name).BoolVar(&o.slave, "slave", false, "with a slave that is in sync: every answer is on two machines")
	}
	limit.Flags().BoolVar(&o.slave, "slave", false, "with a second server that is pushed what is written, in parallel to write and sync, and writes it without a sync before it is answered")
	bench.AddCommand(benchServeLimitCommand(), benchServeBrokerCommand())
	return bench
}

func runBench(cmd *cobra.Command, o benchOptions, run func(context.Context, benchOptions) (benchResult, error)) error {
	if err := o.validate(); err != nil {
		return err
	}
	parent := o.data
	if parent != "" {
		if err := os.MkdirAll(parent, 0o755); err != nil {
			return fmt.Errorf("make the folder of the benchmark: %w", err)
		}
	}
	dir, err := os.MkdirTemp(parent, "jmq-bench-")
	if err != nil {
		return fmt.Errorf("make the folder of the benchmark: %w", err)
	}
	defer os.RemoveAll(dir)
	o.data = dir
	o.progress = newProgress(cmd.ErrOrStderr(), "messages", false, o.quiet)
	r, err := run(cmd.Context(), o)
	o.progress.close()
	if err != nil {
		return err
	}
	return r.print(cmd.OutOrStdout(), o.json)
}

func (o benchOptions) validate() error {
	var errs []error
	bound := func(flag string, v, from, to int) {
		if v < from || v > to {
			errs = append(errs, fmt.Errorf("--%s is %d: give %d to %d", flag, v, from, to))
		}
	}
	bound("producers", o.producers, 1, 10_000)
	bound("batch", o.batch, 1, 1000)
	bound("size", o.size, 1, 4<<20)
	bound("consumers", o.consumers, 1, 1000)
	bound("partitions", o.partitions, 1, 4096)
	bound("topics", o.topics, 0, 25_000)
	bound("messages", o.messages, 0, 1<<40)
	if o.async && o.batch > 1 {
		errs = append(errs, errors.New("--async sends one message a call: leave --batch out"))
	}
	bound("connections", o.connections, 1, 256)
	if o.duration < 100*time.Millisecond || o.duration > time.Hour {
		errs = append(errs, fmt.Errorf("--time is %v: give 100ms to 1h", o.duration))
	}
	if o.warmUp < 0 || o.warmUp > time.Hour {
		errs = append(errs, fmt.Errorf("--warm-up is %v: give 0 to 1h", o.warmUp))
	}
	if o.batch*o.size > 4<<20 {
		errs = append(errs, fmt.Errorf("--batch x --size is %d bytes: a batch holds at most %d", o.batch*o.size, 4<<20))
	}
	if len(errs) > 0 {
		return usageError(errors.Join(errs...))
	}
	return nil
}
