package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/jmqio/jmq/server/servertest/mutate"
)

// FuzzDocuments reads any bytes as a file for jmq apply: an error is one line.
func FuzzDocuments(f *testing.F) {
	seeds := [][]byte{
		[]byte("kind: topic\nname: orders\nspec:\n  partitions: 4\n  brokerGroups: [g]\n---\nkind: app\nname: pay\n"),
		[]byte(`[{"kind":"topic","name":"orders","revision":3,"spec":{"partitions":4}}]`),
		[]byte("- kind: topic\n  name: a\n  spec: &s {partitions: 1}\n- kind: topic\n  name: b\n  spec: *s\n"),
		[]byte("a: &a [*a]\n"),
	}
	mutate.Fuzz(f, mutate.Decoder{Seeds: seeds, Slowness: 20, Check: func(t testing.TB, b []byte) bool {
		docs, err := readDocuments(bytes.NewReader(b), "-")
		if err != nil && strings.Contains(oneLine(err), "\n") {
			t.Fatalf("%q", err)
		}
		return err == nil && len(docs) > 0
	}})
}

// FuzzUnits reads any text as what people write for durations, sizes and moments: a size is not negative, a moment is one that can be stored.
func FuzzUnits(f *testing.F) {
	seeds := [][]byte{[]byte("7d12h"), []byte("1.5w"), []byte("10GiB"), []byte("500MB"), []byte("2026-02-25T09:30:00Z"), []byte("15m ago"), []byte("-3d"), {}}
	now := time.Unix(1_790_000_000, 0)
	mutate.Fuzz(f, mutate.Decoder{Seeds: seeds, Slowness: 4, Check: func(t testing.TB, b []byte) bool {
		text := string(b)
		_, derr := parseDuration(text)
		n, serr := parseSize(text)
		if serr == nil && n < 0 {
			t.Fatalf("%q is a size of %d", text, n)
		}
		m, merr := parseMoment(text, now)
		if merr == nil && time.Unix(0, m.UnixNano()).Unix() != m.Unix() {
			t.Fatalf("%q is %v", text, m)
		}
		return derr == nil || serr == nil || merr == nil
	}})
}
