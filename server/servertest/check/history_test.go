package check

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
)

// What is written is read again, from as many goroutines as like; and the check of the file is that of the events.
func TestWriteAndRead(t *testing.T) {
	events := runModel(5, noBug, 800)
	name := filepath.Join(t.TempDir(), "history")
	h, err := Create(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Write(events...); err != nil {
		t.Fatal(err)
	}
	if err := h.Flush(); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r := NewReader(f)
	for i, want := range events {
		got, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("event %d: %+v, want %+v", i, got, want)
		}
	}
	if _, err := r.Next(); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
	// A second process appends to a file of its own; both are checked together.
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 500 {
				if err := h.Write(Event{Op: OpDie, Proc: "x", Call: 1}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for range 2 {
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.Write(Event{Op: OpDie, Proc: "x"}); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	other := filepath.Join(t.TempDir(), "other")
	if err := os.WriteFile(other, []byte("\n  \n"+`{"op":"die","proc":"y","call":7}`+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	report, err := CheckFiles(name, other)
	if err != nil {
		t.Fatal(err)
	}
	if err := report.Err(); err != nil {
		t.Fatal(err)
	}
	if want := len(events) + 8*500 + 1; report.Events != want {
		t.Errorf("%d events, want %d", report.Events, want)
	}
	if _, err := CheckFiles(name, filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}

// A line that is no event is named, and reading can go on behind it.
func TestBadLines(t *testing.T) {
	good := `{"op":"die","proc":"x","call":1}`
	for name, bad := range map[string]string{
		"torn":           `{"op":"send","proc":"p","top`,
		"not an object":  `17`,
		"text":           `level=info msg="hello"`,
		"wrong type":     `{"op":"die","proc":5,"call":1}`,
		"negative index": `{"op":"scan","proc":"p","topic":"t","id":"i","hash":"h","index":-1,"call":1}`,
		"unknown field":  `{"op":"die","proc":"x","call":1,"colour":"red"}`,
		"unknown op":     `{"op":"sing","call":1}`,
		"no op":          `{}`,
		"two in a line":  good + good,
		"missing field":  `{"op":"recv","proc":"p","topic":"t","group":"g","id":"i","lease":1,"call":1}`,
		"binary":         "\x00\x01\xff",
	} {
		r := NewReader(strings.NewReader(good + "\n\n" + bad + "\n" + good + "\n"))
		if _, err := r.Next(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		_, err := r.Next()
		var e *LineError
		if !errors.As(err, &e) || e.Line != 3 || !strings.Contains(err.Error(), "line 3") {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := r.Next(); err != nil {
			t.Errorf("%s: after it: %v", name, err)
		}
		if _, err := Check(strings.NewReader(good), strings.NewReader(bad)); !errors.As(err, &e) || !strings.Contains(err.Error(), "history 1") {
			t.Errorf("%s: Check: %v", name, err)
		}
	}
	if _, err := NewReader(io.MultiReader(strings.NewReader(good+"\n"), endless{})).Next(); err != nil {
		t.Error(err)
	}
	r := NewReader(endless{})
	if _, err := r.Next(); err == nil || !strings.Contains(err.Error(), "line 1") {
		t.Errorf("a file without lines: %v", err)
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 'x'
	}
	return len(b), nil
}

// The first error of a writer stays, and an event that nobody could use is not written.
func TestWriterErrors(t *testing.T) {
	var b bytes.Buffer
	h := NewWriter(&b)
	if err := h.Write(Event{Op: "sing"}); err == nil || b.Len() != 0 {
		t.Errorf("%v, %q", err, b.String())
	}
	full := NewWriter(fullDisk{})
	if err := full.Write(Event{Op: OpDie, Proc: "x"}); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := full.Flush(); !errors.Is(err, errFull) {
			t.Errorf("%v", err)
		}
	}
	if err := full.Write(Event{Op: OpDie, Proc: "x"}); !errors.Is(err, errFull) {
		t.Errorf("%v", err)
	}
	if err := full.Close(); !errors.Is(err, errFull) {
		t.Errorf("%v", err)
	}
}

var errFull = errors.New("disk full")

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errFull }

// FuzzReader: no bytes make the reader or the checker panic.
func FuzzReader(f *testing.F) {
	f.Add([]byte(`{"op":"send","proc":"p","topic":"t","id":"i","hash":"h","index":3,"call":1,"return":2,"result":"ok"}` + "\n" +
		`{"op":"recv","proc":"c","topic":"t","group":"g","id":"i","hash":"h","index":3,"lease":1,"call":3}` + "\n" +
		`{"op":"ack","proc":"c","topic":"t","group":"g","index":3,"to":9,"lease":1,"call":3,"return":4,"result":"ok"}` + "\n" +
		`{"op":"offset","topic":"t","group":"g","index":4,"ranges":[[6,7],[9,18446744073709551615]],"call":5}` + "\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := Check(bytes.NewReader(b)); err == nil {
			_ = r.String()
		}
	})
}

// BenchmarkCheck is a history of 100,000 messages, each received by two groups, acked and scanned.
func BenchmarkCheck(b *testing.B) {
	var events []Event
	const n = 100_000
	at := int64(0)
	tick := func() int64 { at++; return at }
	for i := range uint64(n) {
		id := "id-" + string(rune('a'+i%26)) + strings.Repeat("x", int(i%3)) + itoa(i)
		events = append(events, Event{Op: OpSend, Proc: "p", Topic: "t", Key: "k" + itoa(i%1000), ID: id, Seq: i + 1, Index: i, Hash: "h", Call: tick(), Return: tick(), Result: OK})
		for g, group := range []string{"a", "b"} {
			events = append(events,
				Event{Op: OpRecv, Proc: group, Topic: "t", Group: group, Key: "k" + itoa(i%1000), ID: id, Seq: i + 1, Index: i, Hash: "h", Lease: i*2 + uint64(g) + 1, Call: tick()},
				Event{Op: OpAck, Proc: group, Topic: "t", Group: group, Index: i, Lease: i*2 + uint64(g) + 1, Call: tick(), Return: tick(), Result: OK})
		}
	}
	for i := range uint64(n) {
		e := events[i*5]
		events = append(events, Event{Op: OpScan, Proc: "m", Topic: "t", Key: e.Key, ID: e.ID, Seq: e.Seq, Index: i, Hash: "h", Call: at})
	}
	events = append(events, Event{Op: OpScanned, Proc: "m", Topic: "t", To: n, Call: at}, Event{Op: OpOffset, Topic: "t", Group: "a", Index: n, Call: tick()},
		Event{Op: OpDrain, Topic: "t", Group: "a", Call: at}, Event{Op: OpDrain, Topic: "t", Group: "b", Call: at})
	b.ReportAllocs()
	for b.Loop() {
		c := NewChecker()
		for _, e := range events {
			if err := c.Add(e); err != nil {
				b.Fatal(err)
			}
		}
		if err := c.Report().Err(); err != nil {
			b.Fatal(err)
		}
	}
}

func itoa(i uint64) string {
	if i < 10 {
		return string(rune('0' + i))
	}
	return itoa(i/10) + string(rune('0'+i%10))
}
