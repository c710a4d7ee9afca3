package main

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// A chart has a line for each thing, and values on a logarithmic scale from left to right.
type chart struct {
	title       string
	least, most float64
	body        strings.Builder
	lines       int
	tick        func(v float64) string
}

const (
	chartLeft, chartTop, chartWidth, chartLine = 250, 44, 620, 26
	chartRight                                 = 130
)

var escapeSVG = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

// x is where a value lies; what is below the least lies on it.
func (c *chart) x(v float64) float64 {
	return chartLeft + chartWidth*math.Log(max(v, c.least)/c.least)/math.Log(max(c.most/c.least, 10))
}

// line begins the next one, and returns where it begins from above.
func (c *chart) line(name, note string) (y int) {
	y = chartTop + c.lines*chartLine
	c.lines++
	fmt.Fprintf(&c.body, `<text x="%d" y="%d" text-anchor="end">%s</text><text x="%d" y="%d" fill="#555">%s</text>`+"\n",
		chartLeft-8, y+17, escapeSVG.Replace(name), chartLeft+chartWidth+10, y+17, escapeSVG.Replace(note))
	return y
}

// bar draws a value from the left on.
func (c *chart) bar(y, height int, v float64, colour, title string) {
	fmt.Fprintf(&c.body, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"><title>%s</title></rect>`+"\n",
		chartLeft, y, c.x(v)-chartLeft, height, colour, escapeSVG.Replace(title))
}

// svg is the whole, with a grid of powers of ten.
func (c *chart) svg() string {
	height := chartTop + c.lines*chartLine
	var grid strings.Builder
	for v := c.least; v <= c.most*1.0001 || v == c.least; v *= 10 {
		fmt.Fprintf(&grid, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="#ddd"/><text x="%.1f" y="%d" text-anchor="middle" fill="#555">%s</text>`+"\n",
			c.x(v), c.x(v), chartTop, height, c.x(v), height+16, c.tick(v))
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">
<rect width="100%%" height="100%%" fill="white"/>
<text x="%d" y="24" font-size="14">%s</text>
%s%s</svg>
`, chartLeft+chartWidth+chartRight, height+28, chartLeft, escapeSVG.Replace(c.title), grid.String(), c.body.String())
}

// above is the power of ten that is not less.
func above(v float64) float64 { return math.Pow(10, math.Ceil(math.Log10(max(v, 1)))) }

func tickCount(v float64) string { return grouped(int(math.Round(v))) }

// plotRecovery shows each schedule's longest recovery as a mark; the long ones are the median and p99.
func plotRecovery(list []total) string {
	c := &chart{title: "until all was well again: each schedule, median and p99", least: 0.001, most: 0.01,
		tick: func(v float64) string { return time.Duration(math.Round(v*1e3) * 1e6).String() }}
	for _, t := range list {
		if n := len(t.recoveries); n > 0 {
			c.most = max(c.most, above(t.recoveries[n-1].Seconds()*1000)/1000)
		}
	}
	for _, t := range list[:len(list)-1] {
		if t.recoveries[len(t.recoveries)-1] == 0 {
			continue // nobody measured it
		}
		half, most := quantile(t.recoveries, 50), quantile(t.recoveries, 99)
		y := c.line(t.kind, fmt.Sprintf("%v, %v", half.Round(time.Millisecond), most.Round(time.Millisecond)))
		for _, d := range t.recoveries {
			fmt.Fprintf(&c.body, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="#3b82c4" stroke-opacity="0.35" stroke-width="2"/>`+"\n", c.x(d.Seconds()), c.x(d.Seconds()), y+8, y+18)
		}
		for _, d := range []time.Duration{half, most} {
			fmt.Fprintf(&c.body, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="#d9662b" stroke-width="2"/>`+"\n", c.x(d.Seconds()), c.x(d.Seconds()), y+3, y+23)
		}
	}
	return c.svg()
}

// plotOutcomes shows how many operations there were, and what became of sends.
func plotOutcomes(list []total) string {
	c := &chart{title: "operations (grey), sends that were ok (green), unknown (yellow), failed (red)", least: 1, most: 10, tick: tickCount}
	for _, t := range list {
		c.most = max(c.most, above(float64(t.Ops)))
	}
	for _, t := range list[:len(list)-1] {
		sends := max(t.OK+t.Unknown+t.Failed, 1)
		y := c.line(t.kind, fmt.Sprintf("ok %.2f %%", 100*float64(t.OK)/float64(sends)))
		for i, b := range []struct {
			n            int
			what, colour string
		}{{t.Ops, "operations", "#9aa5b1"}, {t.OK, "ok", "#3f9b5b"}, {t.Unknown, "unknown", "#d9a62b"}, {t.Failed, "failed", "#c43b3b"}} {
			if b.n > 0 {
				c.bar(y+3+5*i, 4, max(float64(b.n), 1.1), b.colour, fmt.Sprintf("%s: %s %s", t.kind, grouped(b.n), b.what))
			}
		}
	}
	return c.svg()
}

// plotMutations shows how many each decoder was given; red is one in which something was found.
func plotMutations(list []given) string {
	c := &chart{title: "mutations of each decoder; the line is what a release needs", least: 1000, most: 10_000, tick: tickCount}
	g, _ := goalOf("mutations")
	for _, d := range list {
		c.most = max(c.most, above(float64(max(d.mutations, g.release))))
	}
	for _, d := range list {
		colour := "#3f9b5b"
		if d.found > 0 {
			colour = "#c43b3b"
		}
		c.bar(c.line(d.decoder, grouped(d.mutations))+6, 14, float64(d.mutations), colour, fmt.Sprintf("%s: %s, of which %s were taken", d.decoder, grouped(d.mutations), grouped(d.taken)))
	}
	if x := c.x(float64(g.release)); g.release > 0 {
		fmt.Fprintf(&c.body, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="black" stroke-dasharray="4 3"/>`+"\n", x, x, chartTop, chartTop+c.lines*chartLine)
	}
	return c.svg()
}
