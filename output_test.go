package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jmqio/jmq/wire"

	"go.yaml.in/yaml/v3"
)

// One result in all forms; names and order of JSON and YAML are a promise.
func TestOutputForms(t *testing.T) {
	type item struct {
		Name string `json:"name"`
		Size int    `json:"sizeBytes"`
	}
	l := listing{
		header: []string{"name", "size"}, rows: [][]any{{"a,b", 1}, {"c", 20}},
		data: []item{{"a,b", 1}, {"c", 20}}, empty: "nothing",
	}
	want := map[string]string{
		"table": "NAME  SIZE\na,b      1\nc       20\n",
		"json":  "[\n  {\n    \"name\": \"a,b\",\n    \"sizeBytes\": 1\n  },\n  {\n    \"name\": \"c\",\n    \"sizeBytes\": 20\n  }\n]\n",
		"yaml":  "- name: a,b\n  sizeBytes: 1\n- name: c\n  sizeBytes: 20\n",
		"csv":   "name,size\n\"a,b\",1\nc,20\n",
		"name":  "a,b\nc\n",
	}
	for _, form := range outputs {
		var b bytes.Buffer
		if err := printListing(&b, form, l); err != nil {
			t.Fatal(err)
		}
		if b.String() != want[form] {
			t.Errorf("%s: got\n%s\nwant\n%s", form, b.String(), want[form])
		}
	}
	var b bytes.Buffer
	if err := printListing(&b, "table", listing{header: l.header, empty: "nothing"}); err != nil || b.String() != "nothing\n" {
		t.Errorf("empty table: %q, %v", b.String(), err)
	}
}

// Exit codes are a promise to scripts.
func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("x"), 1},
		{usagef("x"), 2},
		{fmt.Errorf("wrapped: %w", usagef("x")), 2},
		{wire.Errorf(wire.CodeTopicNotFound, "x"), 3},
		{fmt.Errorf("wrapped: %w", wire.Errorf(wire.CodeGroupNotFound, "x")), 3},
		{wire.Errorf(wire.CodeTimeout, "x"), 5},
		{context.DeadlineExceeded, 5},
		{wire.Errorf(wire.CodeInvalid, "x"), 2},
		{wire.Errorf(wire.CodeBusy, "x"), 1},
	} {
		if got := exitCode(c.err); got != c.want {
			t.Errorf("exitCode(%v) = %d, want %d", c.err, got, c.want)
		}
	}
}

// A wrong command line is one line and exit code 2, at every level, and says what is known.
func TestUsageErrors(t *testing.T) {
	for _, c := range []struct{ line, says string }{
		{"prodce", "did you mean produce; see jmq --help"},
		{"nothing", `unknown command "nothing" for "jmq"; see jmq --help`},
		{"topic", "needs one of: alter, create, delete, describe, grant, ls, pause, resume, revoke"},
		{"topic drop", `does not know "drop"; it knows: alter, create`},
		{"version extra", "usage: jmq version"},
		{"version -o xml", "give one of: table, json, yaml, csv, name"},
		{"version --frob", "unknown flag: --frob; see jmq version --help"},
		{"config check --broker.store.checkpointEvery 5", "--broker.store.checkpointEvery"},
		{"consume orders", "-g"},
		{"produce", "usage: jmq produce TOPIC"},
		{"run", "name a role: registry, broker"},
	} {
		var out, errs bytes.Buffer
		code := execute(context.Background(), strings.Fields(c.line), strings.NewReader(""), &out, &errs)
		if code != exitUsage || !strings.Contains(errs.String(), c.says) || strings.Count(errs.String(), "\n") != 1 || out.Len() > 0 {
			t.Errorf("jmq %s: exit %d, stdout %q, stderr %q, want exit 2 and one line with %q", c.line, code, out.String(), errs.String(), c.says)
		}
	}
}

func TestVersionAndCompletion(t *testing.T) {
	for line, says := range map[string]string{
		"version -o json": `"version": `, "version": "VERSION", "--help": "jmq dev", "completion bash": "__start_jmq",
		"config ls -o name": "broker.journal.segmentBytesMax\n", "__complete version -o ": "yaml\n",
	} {
		var out, errs bytes.Buffer
		args := strings.Fields(line)
		if strings.HasSuffix(line, " ") {
			args = append(args, "")
		}
		if code := execute(context.Background(), args, nil, &out, &errs); code != exitOK || !strings.Contains(out.String(), says) {
			t.Errorf("jmq %s: exit %d, %q %q, want %q", line, code, out.String(), errs.String(), says)
		}
	}
}

// Without a terminal a long command writes one line every 10 s and nothing in its first ones; with -q nothing.
func TestProgressLines(t *testing.T) {
	for _, quiet := range []bool{false, true} {
		var b bytes.Buffer
		now := time.Now()
		p := newProgress(&b, "reading", false, quiet)
		p.start, p.shown, p.now = now, now, func() time.Time { return now }
		for range 250 { // 25 s
			now = now.Add(100 * time.Millisecond)
			p.set(int64(now.Sub(p.start)/time.Millisecond), 50_000)
		}
		p.close()
		want := "reading: 10,000 of 50,000 (20 %), 1,000/s, 40s left\nreading: 20,000 of 50,000 (40 %), 1,000/s, 30s left\n"
		if quiet {
			want = ""
		}
		if b.String() != want {
			t.Errorf("quiet %v: %q, want %q", quiet, b.String(), want)
		}
	}
}

// A journal whose begin is not there is whole in itself, and says what is missing.
func TestVerifyLateBegin(t *testing.T) {
	for begin, want := range map[uint64]bool{0: false, 4096: true} {
		var b strings.Builder
		if err := printVerify(&b, "table", verifyResult{Segments: 1, Begin: begin, End: 8192}); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(b.String(), "nothing below 4096 is there"); got != want {
			t.Errorf("begin %d: %s", begin, b.String())
		}
	}
}

func TestYAMLText(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"current: x\nadresses: [y]", `line 2: unknown field "adresses"`},
		{"contexts: 5", "line 1: 5 is not of the kind that belongs there"},
		{"\x01", "control characters are not allowed"},
	} {
		d := yaml.NewDecoder(strings.NewReader(c.in))
		d.KnownFields(true)
		if got := yamlText(d.Decode(new(contextsFile))); got != c.want {
			t.Errorf("%q: %q, want %q", c.in, got, c.want)
		}
	}
}
