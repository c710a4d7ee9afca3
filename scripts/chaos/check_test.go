package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const cleanHistory = `{"op":"history","version":1,"call":0}
{"op":"send","proc":"p","topic":"t","id":"a","hash":"h","index":0,"call":1,"return":2,"result":"ok"}
{"op":"send","proc":"p","topic":"t","id":"b","hash":"h","index":1,"call":3,"return":4,"result":"ok"}
{"op":"recv","proc":"c","topic":"t","group":"g","id":"a","hash":"h","index":0,"lease":1,"call":5}
{"op":"recv","proc":"c","topic":"t","group":"g","id":"b","hash":"h","index":1,"lease":1,"call":6}
{"op":"ack","proc":"c","topic":"t","group":"g","index":0,"to":2,"lease":1,"call":7,"return":8,"result":"ok"}
{"op":"drain","topic":"t","group":"g","call":9}
`

// What a history shows decides how the command ends; a violation names its rule and the lines that it is about.
func TestCheckFiles(t *testing.T) {
	for _, c := range []struct {
		name, history string
		end           int
		out, bad      []string // patterns
	}{
		{"clean", cleanHistory, exitClean, []string{`^ops 3 ok 2 unknown 0 failed 0 duplicate 0 lost 0 phantom 0 unexplained 0 reordered 0 .*leaked 0\n`, `C1 +no loss +ok`}, nil},
		{"one not received", strings.ReplaceAll(cleanHistory, `"recv","proc":"c","topic":"t","group":"g","id":"b"`, `"recv","proc":"c","topic":"t","group":"g2","id":"b"`), exitViolated,
			[]string{`^ops 3 ok 2 .* lost 1 `, `\nC1 no loss: b, ok at t/0 index 1.*\n    FILE:3: .*"id":"b".*\n    FILE:5: .*"id":"b"`, `C1 +no loss +VIOLATED`}, nil},
		{"bad", cleanHistory + `{"op":"sing","call":1}`, exitBad, nil, []string{`FILE: line 8: op "sing" is not one`}},
		{"torn", cleanHistory + `{"op":"send","proc":"p`, exitBad, nil, []string{`FILE: line 8: `}},
		{"other version", strings.Replace(cleanHistory, `"version":1`, `"version":9`, 1), exitBad, nil, []string{`FILE: line 1: .*format version 9, not 1`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "history.jsonl")
			if err := os.WriteFile(file, []byte(c.history), 0o644); err != nil {
				t.Fatal(err)
			}
			var out, bad bytes.Buffer
			if end := checkFiles(&out, &bad, []string{file}); end != c.end {
				t.Errorf("ends with %d, want %d", end, c.end)
			}
			for what, patterns := range map[*bytes.Buffer][]string{&out: c.out, &bad: c.bad} {
				text := strings.ReplaceAll(what.String(), file, "FILE")
				if len(patterns) == 0 && text != "" {
					t.Errorf("%s", text)
				}
				for _, p := range patterns {
					if !regexp.MustCompile(p).MatchString(text) {
						t.Errorf("%q is not in\n%s", p, text)
					}
				}
			}
		})
	}
	for _, names := range [][]string{nil, {"-h"}, {filepath.Join(t.TempDir(), "none")}} {
		var out, bad bytes.Buffer
		if end := checkFiles(&out, &bad, names); end != exitBad || out.Len() > 0 || bad.Len() == 0 {
			t.Errorf("%q ends with %d, %s%s", names, end, &out, &bad)
		}
	}
}
