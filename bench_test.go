package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/servertest"
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
		"--topics":         func(o *benchOptions) { o.topics = 30_000 },
		"--messages":       func(o *benchOptions) { o.messages = -1 },
		"--async":          func(o *benchOptions) { o.async, o.batch = true, 2 },
		"--batch x --size": func(o *benchOptions) { o.batch, o.size = 1000, 1<<20 },
	} {
		o := good
		spoil(&o)
		if err := o.validate(); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%s spoilt: got %v", flag, err)
		}
	}
}

// TestBenchTopics shows that a run with many topics makes each, and sends to every one; that producers who do not wait send what
// they count; and that a fill stores what it was asked for, for a group.
func TestBenchTopics(t *testing.T) {
	server := servertest.Start(t)
	sh := shell{t, server.Address()}
	var filled, async benchResult
	out := sh.ok("", "bench fill --topics 7 --partitions 2 --messages 300 --batch 10 --producers 3 --size 10 -q --json")
	if err := json.Unmarshal([]byte(out), &filled); err != nil || filled.Messages < 300 {
		t.Errorf("fill: %v %s", err, out)
	}
	stored := uint64(0)
	for i := range 7 {
		name := benchTopic
		if i > 0 {
			name = fmt.Sprintf("%s-%d", benchTopic, i)
		}
		for p := range 2 {
			out := sh.ok("", fmt.Sprintf("msg get %s %d 0 -n 1000 -o name", name, p))
			stored += uint64(strings.Count(out, "\n"))
		}
	}
	if want := uint64(filled.Messages) + 7; stored != want { // one to each before
		t.Errorf("%d messages are stored, want %d", stored, want)
	}
	lag := func() uint64 { // of the backlog's group: all that its topic holds
		var groups []groupInfo
		out := sh.ok("", "group ls -o json")
		if err := json.Unmarshal([]byte(out), &groups); err != nil || len(groups) != 1 || groups[0].Topic != benchTopic || groups[0].Group != benchGroup {
			t.Fatalf("the group of the backlog: %v %s", err, out)
		}
		return groups[0].Lag
	}
	before := lag()
	out = sh.ok("", "bench produce --async --partitions 2 --producers 2 --size 10 --time 1s --warm-up 0s -q --json")
	if err := json.Unmarshal([]byte(out), &async); err != nil || async.Messages < 1 || uint64(async.Messages) > lag()-before {
		t.Errorf("async: %d more are stored, %v %s", lag()-before, err, out)
	}
}

// TestLimitSlave shows that the slave of the limit program has, byte by byte, what was answered; and that nothing is answered without it.
func TestLimitSlave(t *testing.T) {
	dir := t.TempDir()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	followed := make(chan error, 1)
	go func() { followed <- serveLimitSlave(ctx, ln, filepath.Join(dir, "slave")) }()
	s, err := newLimitServer(filepath.Join(dir, "master"), ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	add := func(text string) error {
		done := make(chan error, 1)
		a := &journal.Append{Entries: []journal.Entry{{Kind: journal.KindMessages, Payload: []byte(text)}}, Done: func(_ *journal.Append, err error) { done <- err }}
		if err := s.journal.Append(a); err != nil {
			return err
		}
		s.journal.Kick()
		return <-done
	}
	for range 10 {
		if err := add("a message that both have"); err != nil {
			t.Fatal(err)
		}
	}
	var want [1 << 16]byte
	n, err := s.journal.ReadRaw(0, want[:])
	got, readErr := os.ReadFile(filepath.Join(dir, "slave", "log"))
	if err = errors.Join(err, readErr); err != nil || len(got) == 0 || !bytes.HasPrefix(want[:n], got) || !bytes.Contains(got, []byte("both have")) {
		t.Errorf("the slave has %d bytes, not the first of the master's %d (%v)", len(got), n, err)
	}
	cancel()
	if err := <-followed; err != nil {
		t.Error(err)
	}
	if err := add("a message that only the master has"); !errors.Is(err, journal.ErrUnknown) {
		t.Errorf("answered %v without the slave", err)
	}
	_ = s.journal.Close() // it has stopped
	s.slave.close()
}

// TestFollowLimitFails shows that a consumer of the limit program that cannot go on fails the run: it must not look like a
// slow one.
func TestFollowLimitFails(t *testing.T) {
	g := followLimit(t.Context(), freePort(t), 1)
	for g.err() == nil && t.Context().Err() == nil {
		runtime.Gosched()
	}
	if err := g.stop(); err == nil || !strings.Contains(err.Error(), "connect to the limit server") {
		t.Errorf("got %v", err)
	}
}
