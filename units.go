package main

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
)

// What people write and read: durations with days and weeks, sizes with units, moments.

var durationUnits = map[string]time.Duration{"d": 24 * time.Hour, "w": 7 * 24 * time.Hour}

var longUnits = regexp.MustCompile(`([0-9]+(?:\.[0-9]+)?)([dw])`)

// parseDuration is time.ParseDuration with days (d) and weeks (w), each of 24 hours.
func parseDuration(text string) (time.Duration, error) {
	plain := longUnits.ReplaceAllStringFunc(text, func(part string) string {
		n, _ := strconv.ParseFloat(part[:len(part)-1], 64) // the expression lets nothing else through
		return strconv.FormatFloat(n*durationUnits[part[len(part)-1:]].Hours(), 'f', -1, 64) + "h"
	})
	d, err := time.ParseDuration(plain)
	if err != nil {
		return 0, fmt.Errorf("%q is no duration; give a number with its unit, such as 90s, 12h, 7d or 2w", text)
	}
	return d, nil
}

// formatDuration is short: the two largest units.
func formatDuration(d time.Duration) string {
	day := durationUnits["d"]
	if d >= 10*time.Second {
		d = d.Round(time.Second)
	}
	switch {
	case d < 0:
		return "-" + formatDuration(-d)
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Minute:
		return d.String()
	case d < time.Hour:
		if d%time.Minute == 0 {
			return fmt.Sprintf("%dm", d/time.Minute)
		}
		return d.String()
	}
	text := ""
	if d >= day {
		text = fmt.Sprintf("%dd", d/day)
		d %= day
	}
	if h := d / time.Hour; h > 0 {
		text += fmt.Sprintf("%dh", h)
	}
	if m := (d % time.Hour) / time.Minute; m > 0 && !strings.Contains(text, "d") {
		text += fmt.Sprintf("%dm", m)
	}
	return text
}

// parseSize reads 500MB, 10GiB, 1048576.
func parseSize(text string) (int64, error) {
	n, err := humanize.ParseBytes(text)
	if err != nil || n > math.MaxInt64 {
		return 0, fmt.Errorf("%q is no size; give a number with its unit, such as 500MiB or 10GiB", text)
	}
	return int64(n), nil
}

func formatSize(n int64) string {
	if n < 0 {
		return "-" + humanize.IBytes(uint64(-n))
	}
	return humanize.IBytes(uint64(n))
}

// timeLayouts are how a moment may be written; without a zone it is that of this machine.
var timeLayouts = []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04:05", "2006-01-02 15:04", time.DateOnly}

var errMoment = errors.New("give a date with its time, such as 2026-02-25T09:30:00Z or '2026-02-25 09:30', or how long ago, such as 15m or 2d")

// parseMoment reads a date, or how long before now.
func parseMoment(text string, now time.Time) (time.Time, error) {
	for _, layout := range timeLayouts {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return checkMoment(text, t)
		}
	}
	ago, err := parseDuration(strings.TrimSpace(strings.TrimSuffix(text, "ago")))
	if err != nil || ago < 0 {
		return time.Time{}, fmt.Errorf("%q is no time; %w", text, errMoment)
	}
	return checkMoment(text, now.Add(-ago))
}

// checkMoment keeps to what nanoseconds since 1970 can say.
func checkMoment(text string, t time.Time) (time.Time, error) {
	if t.Year() < 1970 || t.Year() > 2261 {
		return t, fmt.Errorf("%q is not between the years 1970 and 2261", text)
	}
	return t, nil
}

// momentOf is a date of the wire, whose zero is none.
func momentOf(ns int64) *time.Time {
	if ns == 0 {
		return nil
	}
	t := time.Unix(0, ns)
	return &t
}

// ago says how long before now a moment was, for tables.
func ago(ns int64, now time.Time) string {
	if ns == 0 {
		return "-"
	}
	d := now.Sub(time.Unix(0, ns))
	if d < 0 {
		return "in " + formatDuration(-d)
	}
	if d < time.Second {
		return "now"
	}
	return formatDuration(d) + " ago"
}

// counted is "1 message", "2 messages".
func counted[N int | int64 | uint32 | uint64](n N, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}
