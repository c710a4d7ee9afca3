package check

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// The line of a test is found among what else it writes, and there must be one.
func TestFigures(t *testing.T) {
	want := Figures{Seed: 7, Faults: "a \"b\"; c\n", Ops: 1, OK: 2, Unknown: 3, Failed: 4, Lost: 5, Phantom: 6, Duplicate: 7, Unexplained: 8, Reordered: 9, Other: 10, Recovery: time.Second, Count: 11}
	var out bytes.Buffer
	out.WriteString("=== RUN   TestIt\n")
	if err := want.Print(&out); err != nil {
		t.Fatal(err)
	}
	out.WriteString("PASS\n")
	if got, err := FindFigures(out.Bytes()); err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
	if n := want.Violations(); n != 5+6+8+9+10 {
		t.Errorf("%d violations", n)
	}
	for _, bad := range []string{"", "PASS\n", strings.Repeat(figuresMark+"{}\n", 2), figuresMark + "{\"no\":1}\n", figuresMark + "{\n"} {
		if got, err := FindFigures([]byte(bad)); err == nil {
			t.Errorf("taken: %q as %+v", bad, got)
		}
	}
}

// Each violation of a report is in one of the figures, and only once.
func TestReportFigures(t *testing.T) {
	r := NewChecker().Report()
	for i, c := range r.Checks {
		c.Violations = 1 << i
	}
	r.Unexplained = 1 // C3 counts it too
	f := r.Figures()
	if want := 1<<len(r.Checks) - 1; f.Violations() != want || f.Lost != 1 || f.Phantom != 2 || f.Unexplained != 1 || f.Reordered != 16 {
		t.Errorf("%+v: %d violations, want %d", f, f.Violations(), want)
	}
}
