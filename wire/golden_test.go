package wire

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files instead of comparing")

// golden compares got with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := "testdata/" + name
	if *rewrite {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (-rewrite, then read the diff). Got:\n%s", path, got)
	}
}

// constants returns the constants of a type in a file of this package, by name.
func constants(t *testing.T, file, typeName string) (names []string, values []uint64) {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if id, ok := v.Type.(*ast.Ident); ok && id.Name == typeName {
			value, err := strconv.ParseUint(v.Values[0].(*ast.BasicLit).Value, 0, 64)
			if err != nil {
				t.Fatal(err)
			}
			names, values = append(names, v.Names[0].Name), append(values, value)
		}
		return true
	})
	if len(names) == 0 {
		t.Fatalf("%s has no constants of %s", file, typeName)
	}
	return names, values
}

// TestNumbers holds the numbers of the protocol: a change of the golden file means that older peers misunderstand. Every
// code has a row in Traits, and no number is there twice.
func TestNumbers(t *testing.T) {
	var b strings.Builder
	for _, c := range []struct{ file, typeName string }{
		{"command.go", "Command"}, {"command.go", "Outcome"}, {"frame.go", "FrameKind"}, {"batch.go", "Compression"}, {"code.go", "Code"},
	} {
		names, values := constants(t, c.file, c.typeName)
		seen := map[uint64]string{}
		for i, name := range names {
			if other, ok := seen[values[i]]; ok {
				t.Errorf("%s and %s are both %d", other, name, values[i])
			}
			seen[values[i]] = name
			fmt.Fprintf(&b, "%-12s %3d %s", c.typeName, values[i], name)
			if c.typeName == "Code" {
				trait, ok := Traits[Code(values[i])]
				if !ok || trait.Name == "" || (trait.Remedy == "") != (values[i] == 0) {
					t.Errorf("%s has no full row in Traits", name)
				}
				fmt.Fprintf(&b, " = %s, retry %s, survives %v", trait.Name, map[Retry]string{RetryNever: "never", RetryHere: "here", RetryElsewhere: "elsewhere"}[trait.Retry], trait.Survives)
				if values[i] >= countedCodes {
					t.Errorf("%s is beyond the codes that are counted", name)
				}
			}
			if c.typeName == "Command" && values[i] >= countedCommands {
				t.Errorf("%s is beyond the commands that are counted", name)
			}
			if c.typeName == "Command" {
				if _, ok := commandNames[Command(values[i])]; !ok {
					t.Errorf("%s has no name", name)
				}
				fmt.Fprintf(&b, " = %v", Command(values[i]))
			}
			b.WriteByte('\n')
		}
		if c.typeName == "Code" && len(Traits) != len(names) {
			t.Errorf("Traits has %d rows for %d codes", len(Traits), len(names))
		}
	}
	golden(t, "numbers.golden", b.String())
	if got := Code(999).String(); got != "code-999" {
		t.Errorf("unknown code is %q", got)
	}
}

// exampleFrame is the worked example of FORMAT.md: a produce request with a batch of two messages.
func exampleFrame(t *testing.T) []byte {
	batch, err := AppendBatch(nil, [16]byte{0xaa, 0xbb}, 7, []Message{
		{
			ID: [16]byte{1, 2, 3}, Key: "order-1", OrderKey: "cust-9", Tag: "paid", TraceContext: "00-ab-cd-01",
			Headers: Headers{{"city", "sh"}}, Body: []byte("{}"), Flag: 5, Priority: 3, BornNs: 1_700_000_000_000_000_000,
		},
		{ID: [16]byte{1, 2, 4}},
	})
	if err != nil {
		t.Fatal(err)
	}
	header := AppendProduceRequest(nil, &ProduceRequest{Topic: "orders", Partition: 3, RouteVersion: 300, TimeoutMs: 3000})
	return AppendFrame(nil, Frame{Kind: KindRequest, Command: CommandProduce, Request: 42, Header: header, Payload: batch})
}

// explain writes the fields of the example beside their bytes.
func explain(t *testing.T, frame []byte) string {
	var b strings.Builder
	at := 0
	row := func(n int, what string, args ...any) {
		piece := frame[at : at+n]
		for from := 0; from < len(piece); from += 16 {
			if from > 0 {
				what = ""
			}
			line := fmt.Sprintf("%4d  %-47s  %s", at+from, hexBytes(piece[from:min(from+16, len(piece))]), fmt.Sprintf(what, args...))
			b.WriteString(strings.TrimRight(line, " ") + "\n")
			args = nil
		}
		at += n
	}
	part := func(what string) { fmt.Fprintf(&b, "\n%s\n", what) }
	f, size, e := ParseFrame(frame, len(frame))
	if e != nil || size != len(frame) {
		t.Fatal(e)
	}
	part("frame")
	row(4, "length %d", size-4)
	row(1, "version 1")
	row(1, "kind %v", f.Kind)
	row(2, "command %d, produce", f.Command)
	row(8, "request %d", f.Request)
	row(4, "header length %d", len(f.Header))
	part("header, ProduceRequestHeader")
	row(2+6, "topic orders")
	row(2, "partition 3")
	row(3, "route version 300")
	row(3, "timeout 3000 ms")
	batch, err := ParseBatch(f.Payload)
	if err != nil {
		t.Fatal(err)
	}
	part("payload, a batch")
	row(4, "length %d", len(batch))
	row(1, "version 2")
	row(1, "reserved")
	row(2, "partition, the broker's from here on")
	row(4, "namespace")
	row(4, "incarnation")
	row(8, "topic id")
	row(8, "first index")
	row(8, "stored")
	row(4, "crc32c of what follows, the SDK's from here on")
	row(1, "compression %v", batch.Compression())
	row(1, "flags")
	row(2, "count %d", batch.Count())
	row(16, "producer")
	row(8, "sequence %d", batch.Sequence())
	row(4, "raw size %d", batch.RawSize())
	var c Codec
	raw, err := c.Messages(batch, nil)
	if err != nil {
		t.Fatal(err)
	}
	it := IterateMessages(batch, raw)
	for it.Next() {
		v := it.View
		part(fmt.Sprintf("message %d", it.Slot()))
		row(4, "length %d", v.Size())
		row(16, "id")
		row(8, "born %d", v.BornNs())
		row(2, "flag %d", v.Flag())
		row(1, "priority %d", v.Priority())
		row(1, "attributes %d", v.attributes())
		if v.TagHash() != 0 {
			row(4, "hash of the tag %q", v.Tag())
		}
		if v.KeyHash() != 0 {
			row(8, "hash of the order key %q", v.OrderKey)
		}
		if len(v.Key) > 0 {
			row(1+len(v.Key), "business id %q", v.Key)
		}
		if len(v.OrderKey) > 0 {
			row(1+len(v.OrderKey), "order key %q", v.OrderKey)
		}
		if len(v.TraceContext) > 0 {
			row(1+len(v.TraceContext), "trace context %q", v.TraceContext)
		}
		if v.hasHeaders() {
			row(1, "headers %d", v.headerCount)
		}
		for key, value := range v.Headers() {
			row(2+len(key)+len(value), "%q = %q", key, value)
		}
		if len(v.Body) > 0 {
			row(len(v.Body), "body")
		}
	}
	if it.Err() != nil || at != len(frame) {
		t.Fatalf("explained %d of %d bytes: %v", at, len(frame), it.Err())
	}
	return b.String()[1:]
}

func hexBytes(b []byte) string {
	var s []string
	for _, x := range b {
		s = append(s, fmt.Sprintf("%02x", x))
	}
	return strings.Join(s, " ")
}

// TestFormat holds FORMAT.md to what the code writes, and the code to what it wrote before: the golden frame, kept as hex,
// is read, explained, and compared with the text.
func TestFormat(t *testing.T) {
	golden(t, "produce.golden", hex.Dump(exampleFrame(t)))
	kept, err := os.ReadFile("testdata/produce.golden")
	if err != nil {
		t.Fatal(err)
	}
	var frame []byte
	for _, line := range strings.Split(strings.TrimSpace(string(kept)), "\n") {
		piece, err := hex.DecodeString(strings.ReplaceAll(line[10:58], " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		frame = append(frame, piece...)
	}
	text := explain(t, frame)
	format, err := os.ReadFile("FORMAT.md")
	if err != nil {
		t.Fatal(err)
	}
	begin, end := bytes.Index(format, []byte("<!-- example -->\n```\n")), bytes.LastIndex(format, []byte("```\n<!-- end -->"))
	if begin < 0 || end < begin {
		t.Fatal("FORMAT.md has no example")
	}
	begin += len("<!-- example -->\n```\n")
	if *rewrite {
		if err := os.WriteFile("FORMAT.md", append(append(bytes.Clone(format[:begin]), text...), format[end:]...), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(format[begin:end]) != text {
		t.Errorf("the example of FORMAT.md differs (-rewrite, then read the diff). Got:\n%s", text)
	}
	// And the whole of what was kept can still be read.
	f, _, e := ParseFrame(frame, len(frame))
	if e != nil {
		t.Fatal(e)
	}
	var r ProduceRequest
	if err := ParseProduceRequest(&r, f.Header); err != nil || r.Topic != "orders" || r.Partition != 3 || r.RouteVersion != 300 || r.TimeoutMs != 3000 {
		t.Fatalf("%+v, %v", r, err)
	}
	batch, err := ParseBatch(f.Payload)
	if err != nil {
		t.Fatal(err)
	}
	if err := batch.Verify(); err != nil {
		t.Fatal(err)
	}
}
