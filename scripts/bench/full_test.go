package main

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The interval of a median is that of the binomial ranks, and of few samples all of them; a goal within it decides nothing.
func TestIntervalAndVerdict(t *testing.T) {
	var twenty []float64
	for i := range 20 {
		twenty = append(twenty, float64(20-i)) // 20 ... 1
	}
	if low, mid, high := interval(twenty); low != 6 || mid != 10.5 || high != 15 {
		t.Errorf("20 samples: %v %v %v", low, mid, high)
	}
	if low, mid, high := interval([]float64{3, 1, 2}); low != 1 || mid != 2 || high != 3 {
		t.Errorf("3 samples: %v %v %v", low, mid, high)
	}
	if _, mid, _ := interval(nil); !math.IsNaN(mid) {
		t.Errorf("no samples: %v", mid)
	}
	for _, c := range []struct {
		l    line
		want string
	}{
		{newLine("", "", "", []float64{0.95, 1}).atLeast(0.95), "reached"}, {newLine("", "", "", []float64{0.94, 1}).atLeast(0.95), "not decided"},
		{newLine("", "", "", []float64{0.9, 0.94}).atLeast(0.95), "missed"}, {newLine("", "", "", []float64{299, 300}).atMost(300), "reached"},
		{newLine("", "", "", []float64{299, 301}).atMost(300), "not decided"}, {newLine("", "", "", []float64{301}).atMost(300), "missed"},
		{newLine("", "", "", []float64{0, 0}).atMost(0), "reached"}, {newLine("", "", "", []float64{0, 1}).atMost(0), "not decided"}, {newLine("", "", "", []float64{1}).atMost(0), "missed"},
		{newLine("", "", "", []float64{1}), ""}, {newLine("", "", "", nil).atLeast(1), "not decided"},
	} {
		if got := c.l.verdict(); got != c.want {
			t.Errorf("%v, goal %v: %s, want %s", c.l.Samples, c.l.Goal, got, c.want)
		}
	}
}

// Both sides of a pair are measured equally often, each first in every other one, and the ratio is that of the pair.
func TestPairs(t *testing.T) {
	f := &full{step: func(string) {}}
	var order []string
	side := func(name string, values ...float64) measured {
		return func() (float64, error) {
			order = append(order, name)
			v := values[0]
			values = values[1:]
			return v, nil
		}
	}
	l, err := f.pairs("x", 3, side("base", 10, 20, 40), side("got", 5, 20, 10))
	if err != nil || strings.Join(order, " ") != "base got got base base got" || !slices.Equal(l.Samples, []float64{0.5, 1, 0.25}) || l.Mid != 0.5 || l.Base != 20 || l.Got != 10 {
		t.Errorf("%v %v %+v", err, order, l)
	}
	bad := errors.New("bad")
	if _, err := f.pairs("x", 1, side("base", 1), func() (float64, error) { return 0, bad }); !errors.Is(err, bad) {
		t.Errorf("a failed side: %v", err)
	}
	if _, err := f.pairs("x", 1, side("base", 0), side("got", 1)); err == nil {
		t.Error("nothing was measured, and that is a ratio")
	}
}

// The plot is a whole SVG file, whatever the figures are.
func TestPlotFull(t *testing.T) {
	file := filepath.Join(t.TempDir(), "full.svg")
	lines := []line{
		newLine("a", "more & <better>", "x", []float64{0.5, 1, 2}).atLeast(0.9), newLine("a", "less", "s", []float64{0}).atMost(2),
		newLine("a", "nothing", "x", nil).atLeast(1), newLine("a", "none", "sends", []float64{0, 3}).atMost(0), newLine("a", "no goal", "x", []float64{1}),
	}
	if err := plotFull(file, lines); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(file)
	s := string(b)
	if err != nil || !strings.Contains(s, "more &amp; &lt;better&gt;") || strings.Contains(s, "no goal") || strings.Contains(s, "NaN") || strings.Contains(s, "Inf") || !strings.HasSuffix(s, "</svg>\n") {
		t.Errorf("%v\n%s", err, s)
	}
}
