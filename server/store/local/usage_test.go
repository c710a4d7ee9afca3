package local

import (
	"strings"
	"testing"

	"github.com/jmqio/jmq/server/journal/journaltest"
)

// What was carried forward lies behind later messages of its partition: the hold is the message that lies in the oldest segment, not
// the partition's first.
func TestHoldBehindCarried(t *testing.T) {
	s := mustOpen(t, options(journaltest.New(nil)))
	var l life
	if err := l.open(s); err != nil {
		t.Fatal(err)
	}
	full := func(fill func() error) {
		t.Helper()
		for segments := s.Metrics().Journal.Segments; s.Metrics().Journal.Segments == segments; {
			if err := fill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	noise := func() error { return l.send(t, s, l.noise) }
	if err := l.send(t, s, l.keep); err != nil {
		t.Fatal(err)
	}
	full(noise)
	full(func() error { return appendWait(s, l.keep, batchOf(t, strings.Repeat("k", noiseBytes))).err })
	full(noise)
	_, end, err := s.Bounds(l.noise)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Trim(l.noise, end); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Reclaim(t.Context()); err != nil || n == 0 {
		t.Fatalf("freed %d bytes: %v", n, err)
	}
	u, err := s.Usage(10)
	if err != nil {
		t.Fatal(err)
	}
	if len(u.Holds) != 1 || u.Holds[0].Partition != l.keep || u.Holds[0].First != 1 {
		t.Fatalf("holds %+v, want message 1 of %v", u.Holds, l.keep)
	}
	if all := int64(u.End - u.Begin); u.Holds[0].Bytes < all*2/3 {
		t.Errorf("without the hold %d bytes could go, of %d that are kept: it is not the oldest message", u.Holds[0].Bytes, all)
	}
}
