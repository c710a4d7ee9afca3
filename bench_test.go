package main

import (
	"net"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// TestLatencyBuckets shows that each call is in the one bucket that its time belongs to.
func TestLatencyBuckets(t *testing.T) {
	h := newLatency()
	for _, us := range []time.Duration{0, 1, 2, 3, 100, 127, 128, 1000, 1000} {
		recordLatency(h, us*time.Microsecond)
	}
	recordLatency(h, time.Hour)
	got := latencyBuckets(h)
	want := []latencyBucket{{2, 2}, {4, 2}, {128, 2}, {256, 1}, {1024, 2}, {1 << 26, 1}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := latencyBuckets(hdrhistogram.New(1, 10, 3)); got != nil {
		t.Errorf("an empty histogram has buckets %v", got)
	}
}

// TestBenchFlags shows that a wrong flag is named, before anything is started.
func TestBenchFlags(t *testing.T) {
	good := benchOptions{producers: 1, batch: 1, size: 1, consumers: 1, partitions: 1, connections: 1, duration: time.Second}
	if err := good.validate(); err != nil {
		t.Fatalf("good options: %v", err)
	}
	for flag, spoil := range map[string]func(*benchOptions){
		"--producers":      func(o *benchOptions) { o.producers = 0 },
		"--batch":          func(o *benchOptions) { o.batch = 1001 },
		"--size":           func(o *benchOptions) { o.size = -1 },
		"--consumers":      func(o *benchOptions) { o.consumers = 0 },
		"--partitions":     func(o *benchOptions) { o.partitions = 5000 },
		"--connections":    func(o *benchOptions) { o.connections = 0 },
		"--time":           func(o *benchOptions) { o.duration = 0 },
		"--warm-up":        func(o *benchOptions) { o.warmUp = -1 },
		"--batch x --size": func(o *benchOptions) { o.batch, o.size = 1000, 1<<20 },
	} {
		o := good
		spoil(&o)
		if err := o.validate(); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%s spoilt: got %v", flag, err)
		}
	}
}

// TestFollowLimitFails shows that a consumer of the limit program that cannot go on fails the run: it must not look like a
// slow one.
func TestFollowLimitFails(t *testing.T) {
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	g := followLimit(t.Context(), gone.Addr().String(), 1)
	for g.err() == nil && t.Context().Err() == nil {
		runtime.Gosched()
	}
	if err := g.stop(); err == nil || !strings.Contains(err.Error(), "connect to the limit server") {
		t.Errorf("got %v", err)
	}
}
