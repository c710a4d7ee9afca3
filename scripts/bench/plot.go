package main

import (
	"fmt"
	"math"
	"os"
	"strings"
)

// plot draws messages per second of each row and system as bars on a logarithmic scale, as an SVG file.
func plot(name string, chosen []row, results map[string]map[string][]result) error {
	const left, top, height, bar, gap = 70, 40, 260, 26, 36
	colours := map[string]string{"disk": "#9aa5b1", "limit": "#3b82c4", "broker": "#d9662b", "limit" + withSlave: "#93bfe2", "broker" + withSlave: "#edb48f"}
	most := 10.0
	for _, systems := range results {
		for _, rs := range systems {
			most = max(most, median(rs).MessagesPerSec)
		}
	}
	const least = 100.0
	scale := func(v float64) float64 {
		return height * math.Log10(max(v, least)/least) / math.Log10(max(most, least*10)/least)
	}
	var bars strings.Builder
	x := left + gap/2
	for _, r := range chosen {
		start := x
		for _, system := range r.systems() {
			v := median(results[r.name][system]).MessagesPerSec
			h := scale(v)
			fmt.Fprintf(&bars, `<rect x="%d" y="%.1f" width="%d" height="%.1f" fill="%s"><title>%s %s: %.0f messages/s</title></rect>`+"\n", x, top+height-h, bar-3, h, colours[system], r.name, system, v)
			x += bar
		}
		fmt.Fprintf(&bars, `<text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", (start+x)/2, top+height+18, r.name)
		x += gap
	}
	var lines strings.Builder
	for v := least; v <= most; v *= 10 {
		y := top + height - scale(v)
		fmt.Fprintf(&lines, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%.0f</text>`+"\n", left, x, y, y, left-6, y+4, v)
	}
	legend := ""
	for i, system := range []string{"disk", "limit", "broker", "limit" + withSlave, "broker" + withSlave} {
		legend += fmt.Sprintf(`<rect x="%d" y="12" width="12" height="12" fill="%s"/><text x="%d" y="22">%s</text>`+"\n", left+i*90, colours[system], left+i*90+17, system)
	}
	svg := fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">
<rect width="100%%" height="100%%" fill="white"/>
<text x="%d" y="22" text-anchor="end">messages/s, 1 KiB, logarithmic</text>
%s%s%s</svg>
`, x+10, top+height+34, x, legend, lines.String(), bars.String())
	return os.WriteFile(name, []byte(svg), 0o644)
}

// plotFull draws each figure with a goal as a bar: how far it is from its goal, which is the line at 1; above it is good. The
// thin line is the interval.
func plotFull(name string, lines []line) error {
	const left, top, row, width = 520, 40, 26, 420
	most := 2.0
	var goals []line
	for _, l := range lines {
		if l.Judged && len(l.Samples) > 0 {
			goals = append(goals, l)
		}
	}
	share := func(l line, v float64) float64 {
		switch {
		case l.AtMost && l.Goal == 0: // there is to be none
			return map[bool]float64{true: 1}[v == 0]
		case l.AtMost:
			return l.Goal / max(v, l.Goal/100)
		}
		return v / l.Goal
	}
	x := func(v float64) float64 { return left + width*min(v, most)/most }
	colours := map[string]string{"reached": "#3f9b5b", "missed": "#c43b3b", "not decided": "#d9a62b"}
	escape := strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")
	var bars strings.Builder
	for i, l := range goals {
		y := top + i*row
		fmt.Fprintf(&bars, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", left-8, y+15, escape.Replace(l.What))
		fmt.Fprintf(&bars, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"><title>%s %s, %s</title></rect>`+"\n",
			left, y+3, x(share(l, l.Mid))-left, row-10, colours[l.verdict()], figure(l.Mid), l.Unit, l.verdict())
		fmt.Fprintf(&bars, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="#333"/>`+"\n", x(share(l, l.Low)), x(share(l, l.High)), y+11, y+11)
		fmt.Fprintf(&bars, `<text x="%d" y="%d">%s %s</text>`+"\n", left+width+10, y+15, figure(l.Mid), l.Unit)
	}
	height := top + len(goals)*row + 20
	svg := fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">
<rect width="100%%" height="100%%" fill="white"/>
<text x="%d" y="22">share of the goal; the line is the goal, beyond it is good</text>
%s<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="black" stroke-dasharray="4 3"/>
</svg>
`, left+width+140, height, left, bars.String(), x(1), x(1), top-6, height-14)
	return os.WriteFile(name, []byte(svg), 0o644)
}
