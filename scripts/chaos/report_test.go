package main

import (
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jmqio/jmq/server/servertest/check"
)

// What lies between the two lines is made anew from the lines of one code, of both sorts of files; what a person wrote around it stays; and
// the plots are well formed.
func TestReport(t *testing.T) {
	dir := t.TempDir()
	docs, lines, mutations := filepath.Join(dir, "docs"), filepath.Join(dir, "rows.csv"), filepath.Join(dir, "mutations.csv")
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	read := func(name string) string {
		t.Helper()
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	var rows []row
	for seed := range 100 {
		rows = append(rows, row{Commit: "c0ffee", Digest: "new", Kind: "kill", Figures: check.Figures{Seed: uint64(seed), Ops: 30, OK: 10, Unknown: 1, Count: 3,
			Recovery: time.Duration(seed+1) * 10 * time.Millisecond}})
	}
	rows = append(rows,
		row{Commit: "c0ffee", Digest: "old", Kind: "pause", Figures: check.Figures{Lost: 9}},
		row{Commit: "c0ffee", Digest: "new", Kind: "partition", Figures: check.Figures{Ops: 5, OK: 1000, Failed: 2, Lost: 1, Phantom: 2, Duplicate: 3, Unexplained: 4, Reordered: 5, Other: 6}})
	if err := appendRows(lines, rows...); err != nil {
		t.Fatal(err)
	}
	write(mutations, strings.Join(mutationColumns, ",")+`
new,./wire,FuzzFrame,1,1000000,30,0,0.5
old,./wire,FuzzFrame,2,7,7,7,0.5
new,./server/side,FuzzFile,1,2000,5,1,0.5
new,./wire,FuzzFrame,2,500000,20,0,0.5
`)
	write(filepath.Join(dir, reportFile), "# Before\n"+reportBegin+"\nold figures\n"+reportEnd+"\nafter <&>\n")
	if err := report(dir, []string{lines, mutations}); err != nil {
		t.Fatal(err)
	}
	got := read(filepath.Join(dir, reportFile))
	for _, want := range []string{
		"# Before\n" + reportBegin + "\n\nOf the code new, at commit c0ffee: 101 schedules. 2 lines are of other code, and do not count.\n\n",
		"| kill | 100 | 300 kill -9 cycles | 300 of 1,000 | 3,000 | 1,000 | 100 | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 500ms | 990ms | 1s |\n",
		"| partition | 1 | 0 partitions | 0 of 500 schedules | 5 | 1,000 | 0 | 2 | 1 | 2 | 3 | 4 | 5 | 6 | | | |\n",
		"| all | 101 |  |  | 3,005 | 2,000 | 100 | 2 | 1 | 2 | 3 | 4 | 5 | 6 | 500ms | 990ms | 1s |\n",
		"\nNot run: slave, power-ext4,",
		"2 decoders were given 1,502,000 mutations, each at least 2,000 (server/side File) of 1,000,000,000 for a release; in 1 runs one found something.\n",
		"](recovery.svg)", "](outcomes.svg)", "](mutations.svg)\n\n" + reportEnd + "\nafter <&>\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
	if strings.Contains(got, "old figures") || strings.Contains(got, "pause") {
		t.Errorf("what was is still there:\n%s", got)
	}
	for plot, marks := range map[string]int{"recovery.svg": 100, "outcomes.svg": 2, "mutations.svg": 2} {
		text := read(filepath.Join(docs, plot))
		for d := xml.NewDecoder(strings.NewReader(text)); ; {
			if _, err := d.Token(); err == io.EOF {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", plot, err)
			}
		}
		of := map[string]string{"recovery.svg": `stroke-opacity`, "outcomes.svg": "operations</title>", "mutations.svg": "were taken</title>"}[plot]
		if n := strings.Count(text, of); n != marks {
			t.Errorf("%s has %d of %q, want %d", plot, n, of, marks)
		}
	}
	// Again it is the same, also when only one sort of file is given in between.
	if err := report(dir, []string{mutations}); err != nil {
		t.Fatal(err)
	}
	if text := read(filepath.Join(dir, reportFile)); strings.Contains(text, "kill") || !strings.Contains(text, "2 decoders") {
		t.Errorf("of mutations alone:\n%s", text)
	}
	if err := report(dir, []string{lines, mutations}); err != nil {
		t.Fatal(err)
	}
	if again := read(filepath.Join(dir, reportFile)); again != got {
		t.Errorf("again:\n%s", again)
	}
	// Nothing is written where nothing can be said.
	empty := filepath.Join(dir, "empty.csv")
	write(empty, "")
	for _, bad := range [][]string{{filepath.Join(dir, "none.csv")}, {empty}, {filepath.Join(dir, reportFile)}} {
		if err := report(dir, bad); err == nil {
			t.Errorf("%v: taken", bad)
		}
	}
	write(filepath.Join(dir, reportFile), "# No lines\n")
	if err := report(dir, []string{lines}); err == nil || read(filepath.Join(dir, reportFile)) != "# No lines\n" {
		t.Errorf("without the two lines: %v", err)
	}
}

// Some times of which a share of at least p lies at or below: the nearest rank.
func TestQuantile(t *testing.T) {
	var times []time.Duration
	if got := quantile(times, 99); got != 0 {
		t.Errorf("of none: %v", got)
	}
	for i := range 200 {
		times = append(times, time.Duration(i+1))
	}
	for percent, want := range map[int]time.Duration{0: 1, 50: 100, 99: 198, 100: 200} {
		if got := quantile(times, percent); got != want {
			t.Errorf("%d %%: %d, want %d", percent, got, want)
		}
	}
	if got := quantile(times[:1], 99); got != 1 {
		t.Errorf("of one: %v", got)
	}
}
