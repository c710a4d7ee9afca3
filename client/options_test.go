package client

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParseAddresses(t *testing.T) {
	for _, c := range []struct {
		in   string
		want []string
	}{
		{"", []string{"127.0.0.1:50088"}},
		{"localhost", []string{"localhost:50088"}},
		{"jmq://10.0.0.1", []string{"10.0.0.1:50088"}},
		{"jmq://10.0.0.1:1,10.0.0.2:2/", []string{"10.0.0.1:1", "10.0.0.2:2"}},
		{"a,b:9", []string{"a:50088", "b:9"}},
		{"[::1]:9", []string{"[::1]:9"}},
		{"[::1]", []string{"[::1]:50088"}},
		{"::1", []string{"[::1]:50088"}},
	} {
		if got, err := parseAddresses(c.in); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%q: %v, %v, want %v", c.in, got, err, c.want)
		}
	}
	for _, in := range []string{"http://a", "jmq://", "a:0", "a:65536", "a:x", ":50088", "a,,b", "a b", "user@a", "a/b/c", "a:b:c"} {
		if got, err := parseAddresses(in); err == nil {
			t.Errorf("%q is taken as %v", in, got)
		}
	}
}

// Everything that is wrong is told at once, and nothing is dialled.
func TestOptionsAreJudgedTogether(t *testing.T) {
	_, err := Dial(context.Background(), "http://x", WithConns(0), WithApp("a.b"), WithDialTimeout(0), WithLogger(nil), WithDialer(nil))
	if err == nil {
		t.Fatal("taken")
	}
	for _, want := range []string{`scheme "http"`, "WithConns", "app name", "WithDialTimeout", "WithLogger", "WithDialer"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
	b := newFakeBroker()
	c, _ := start(t, b, false)
	_, err = c.Producer("a/b", Timeout(0), MergeAfter(-1), Compress(9, 0), Compress(Zstd, -1), Buffer(0, 0))
	for _, want := range []string{"topic name", "Timeout", "MergeAfter", "unknown compression", "from", "Buffer: messages", "Buffer: bytes"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
	_, err = c.Consumer("", Group("a..b"), Concurrency(0), Batch(1001), BatchBytes(0), PollWait(time.Minute), AckAfter(0), StopTimeout(0), Backoff(2, 1), Start(7), Parallel(-1), OnGap(nil), ExtendLeases(0))
	for _, want := range []string{"topic name", "group", "Concurrency", "Batch:", "BatchBytes", "PollWait", "AckAfter", "StopTimeout", "Backoff", "Start", "Window", "OnGap", "ExtendLeases"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
	k, err := c.Consumer("t")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.Fetch(context.Background(), 0, Wait(-1)); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "Wait") {
		t.Errorf("Fetch of 0: %v", err)
	}
}

// A consumer without a group says how to give it one.
func TestConsumerNeedsGroup(t *testing.T) {
	b := newFakeBroker()
	s := newFakeServer(b, false)
	defer s.close()
	c, err := Dial(context.Background(), "x", WithDialer(s.dial))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	if _, err := c.Consumer("t"); err == nil || !strings.Contains(err.Error(), "Group(name)") {
		t.Errorf("%v", err)
	}
}

// The hash of order keys is part of the protocol: these values never change. XXH64 of "" is ef46db3751d8e999, of "a"
// d24ec4f1a98c6e5b, of "abc" 44bc2cf5ad770999 (the reference implementation's test vectors, seed 0).
func TestKeyPartition(t *testing.T) {
	for _, c := range []struct {
		key  string
		n    int
		want uint16
	}{{"", 65536, 0xe999}, {"a", 65536, 0x6e5b}, {"abc", 65536, 0x0999}, {"a", 8, 3}, {"abc", 10, 0x44bc2cf5ad770999 % 10}, {"abc", 1, 0}} {
		if got := KeyPartition(c.key, c.n); got != c.want {
			t.Errorf("%q of %d: %d, want %d", c.key, c.n, got, c.want)
		}
	}
}
