package check

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jmqio/jmq/server/servertest/mutate"
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

// A file says which format it has; one of another is refused, with its line.
func TestFormatVersion(t *testing.T) {
	name := filepath.Join(t.TempDir(), "history")
	for range 2 { // the second time it is appended to
		h, err := Create(name)
		if err == nil {
			err = errors.Join(h.Write(Event{Op: OpDie, Proc: "x", Call: 1}), h.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(name)
	if want := `{"op":"history","call":0,"version":1}` + "\n" + strings.Repeat(`{"proc":"x","op":"die","call":1}`+"\n", 2); err != nil || string(b) != want {
		t.Errorf("%s, %v, want %s", b, err, want)
	}
	if r, err := CheckFiles(name); err != nil || r.Events != 2 {
		t.Errorf("%v, %v", r, err)
	}
	for _, s := range []string{`{"op":"history","version":2,"call":0}`, `{ "op":"history","version":2,"call":0}`, `{"op":"history"}`} {
		var e *LineError
		if _, err := Check(strings.NewReader("\n" + s)); !errors.As(err, &e) || e.Line != 2 || !strings.Contains(err.Error(), "format version") {
			t.Errorf("%s: %v", s, err)
		}
	}
}

// What is kept is found again by the lines that a violation is about.
func TestFindConcerned(t *testing.T) {
	folder := t.TempDir()
	events := runModel(5, noBug, 800)
	at := slices.IndexFunc(events, func(e Event) bool { return e.Op == OpRecv && e.Index > 3 })
	was := events[at]
	changed := slices.Clone(events)
	changed[at].Hash += "x"
	name, err := Keep(folder, "test", changed)
	if err != nil {
		t.Fatal(err)
	}
	r, err := CheckFiles(name)
	if err != nil || !slices.Equal(r.Violated(), []string{"C2"}) {
		t.Fatalf("%v, %v", r, err)
	}
	found, err := FindConcerned(r, name)
	if err != nil || len(found["C2"]) != 1 {
		t.Fatalf("%v, %v", found, err)
	}
	ops, line := map[Op]bool{}, false
	for _, l := range found["C2"][0] {
		ops[l.Op] = true
		line = line || l.Line == at+2 && reflect.DeepEqual(l.Event, changed[at]) // below the first line
		if l.ID != was.ID {
			t.Errorf("line %d is about another message: %+v", l.Line, l.Event)
		}
	}
	if !line || !ops[OpSend] || !ops[OpRecv] || !ops[OpScan] {
		t.Errorf("%+v", found["C2"][0])
	}
}

// Every op of the model is found by each kind of subject that is about it, and by no other's.
func TestConcerns(t *testing.T) {
	send := Event{Op: OpSend, Topic: "t", Partition: 1, Index: 4, ID: "a", Result: OK}
	failed := Event{Op: OpSend, Topic: "t", Partition: 1, Index: 4, ID: "b", Result: Failed}
	ack := Event{Op: OpAck, Topic: "t", Partition: 1, Group: "g", Index: 2, To: 6}
	offset := Event{Op: OpOffset, Topic: "t", Partition: 1, Group: "g", Index: 9}
	write := Event{Op: OpWrite, Key: "k"}
	copied := Event{Op: OpCopy, Proc: "n", Index: 0, To: 9}
	used := Event{Op: OpUsage, Proc: "n"}
	all := []Event{send, failed, ack, offset, write, copied, used}
	for _, c := range []struct {
		about Subject
		want  []Event
	}{
		{Subject{IDs: []string{"a"}}, []Event{send}},
		{Subject{Topic: "t", Partition: 1, Group: "g", From: 4, To: 5}, []Event{send, ack}},
		{Subject{Topic: "t", Partition: 1, Group: "g", From: 4, To: 5, Op: OpOffset}, []Event{send, ack, offset}},
		{Subject{Topic: "t", Partition: 1, Group: "other", From: 4, To: 5}, []Event{send}},
		{Subject{Topic: "t", Partition: 2, From: 4, To: 5}, nil},
		{Subject{Topic: "t", Partition: 1, From: 6, To: 9}, nil},
		{Subject{Key: "k"}, []Event{write}},
		{Subject{Op: OpCopy, From: 8, To: 20}, []Event{copied}},
		{Subject{Op: OpCopy, From: 9, To: 20}, nil},
		{Subject{Op: OpUsage, Proc: "n"}, []Event{used}},
		{Subject{Op: OpUsage, Proc: "m"}, nil},
		{Subject{}, nil},
	} {
		var got []Event
		for _, e := range all {
			if c.about.Concerns(&e) {
				got = append(got, e)
			}
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%+v: %+v, want %+v", c.about, got, c.want)
		}
	}
}

// Whatever line takes apart, encoding/json takes for the same; and it takes what writers write.
func TestLine(t *testing.T) {
	quick := 0
	for _, e := range runModel(5, noBug, 800) {
		b, err := json.Marshal(&e)
		if err != nil {
			t.Fatal(err)
		}
		if sameLine(t, b) {
			quick++
		} else if e.Ranges == nil && e.Usage == nil {
			t.Errorf("%s is not taken apart", b)
		}
	}
	if quick < 500 {
		t.Errorf("%d lines only", quick)
	}
	for _, s := range []string{
		``, `{`, `{}`, `{"`, `{"op"`, `{"op"}`, `{"op":}`, `{"op":"`, `{"op":"die"`, `{"op":"die",`, `{"op":"die",}`, `{"op":"die"}}`, `{"op":"die""call":1}`,
		`{"call":}`, `{"call":-}`, `{"call":-1}`, `{"call":01}`, `{"call":0}`, `{"call":-0}`, `{"call":1.5}`, `{"call":1e3}`, `{"call":9223372036854775807}`,
		`{"call":9223372036854775808}`, `{"call":-9223372036854775808}`, `{"index":18446744073709551615}`, `{"index":9999999999999999999}`, `{"index":-1}`, `{"index":-0}`,
		`{"partition":65535}`, `{"partition":65536}`, `{"member":4294967296}`, `{"unknown":-1}`, `{"op":1}`, `{"index":"1"}`, `{"OP":"die"}`, `{"colour":"red"}`,
		`{"proc":"a\"b"}`, `{"proc":"a\u0041"}`, "{\"proc\":\"a\tb\"}", "{\"proc\":\"\xff\"}", `{"proc":"ü"}`, `{ "op":"die"}`, `{"op":"die"} `, `{"op":"die","op":"send"}`,
		`{"call":1,"call":2}`, `{"call":1x}`, `{"call":1 }`, `["op"]`, `{"ranges":[[1,2]]}`, `{"op":null}`,
	} {
		sameLine(t, []byte(s))
	}
}

// sameLine says whether b was taken apart.
func sameLine(t testing.TB, b []byte) bool {
	var got, want Event
	if !got.line(b, map[string]string{}) {
		return false
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&want); err != nil || dec.InputOffset() != int64(len(b)) || !reflect.DeepEqual(got, want) {
		t.Errorf("%s: %+v, want %+v, %v", b, got, want, err)
	}
	return true
}

// FuzzLine is TestLine of any bytes.
func FuzzLine(f *testing.F) {
	seeds := [][]byte{[]byte(`{"op":"send","proc":"p","topic":"t","id":"i","hash":"h","index":3,"call":1,"return":2,"result":"ok"}`)}
	mutate.Fuzz(f, mutate.Decoder{Seeds: seeds, Check: func(t testing.TB, b []byte) bool { return sameLine(t, b) }})
}

// FORMAT.md names every field, and its examples are events.
func TestFormat(t *testing.T) {
	b, err := os.ReadFile("FORMAT.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, typ := range []reflect.Type{reflect.TypeFor[Event](), reflect.TypeFor[Usage]()} {
		for i := range typ.NumField() {
			name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			if !bytes.Contains(b, []byte("`"+name+"`")) {
				t.Errorf("it does not name %s", name)
			}
		}
	}
	var lines []string
	for l := range strings.Lines(string(b)) {
		if strings.HasPrefix(l, "    {") {
			lines = append(lines, l)
		}
	}
	if r, err := Check(strings.NewReader(strings.Join(lines, ""))); err != nil || r.Ops != 2 {
		t.Errorf("%v, %v", r, err)
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
	seed := []byte(`{"op":"send","proc":"p","topic":"t","id":"i","hash":"h","index":3,"call":1,"return":2,"result":"ok"}` + "\n" +
		`{"op":"recv","proc":"c","topic":"t","group":"g","id":"i","hash":"h","index":3,"lease":1,"call":3}` + "\n" +
		`{"op":"ack","proc":"c","topic":"t","group":"g","index":3,"to":9,"lease":1,"call":3,"return":4,"result":"ok"}` + "\n" +
		`{"op":"offset","topic":"t","group":"g","index":4,"ranges":[[6,7],[9,18446744073709551615]],"call":5}` + "\n")
	mutate.Fuzz(f, mutate.Decoder{Seeds: [][]byte{seed}, Slowness: 20, Check: func(t testing.TB, b []byte) bool {
		r, err := Check(bytes.NewReader(b))
		if err == nil {
			_ = r.String()
		}
		return err == nil
	}})
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
