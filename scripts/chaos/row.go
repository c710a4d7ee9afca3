package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jmqio/jmq/server/servertest/check"
)

// row is what one schedule showed: a line of the file of a campaign.
type row struct {
	Commit string
	// Digest is that of server, wire and client: lines of one digest count together.
	Digest string
	Layer  string
	Kind   string // with the seed it names the schedule
	check.Figures
}

var columns = []string{
	"commit", "digest", "seed", "layer", "kind", "faults", "ops", "ok", "unknown", "failed", "lost", "phantom", "duplicate", "unexplained", "reordered", "other", "recovery_ms", "count",
}

func (r *row) numbers() []*int {
	return []*int{&r.Ops, &r.OK, &r.Unknown, &r.Failed, &r.Lost, &r.Phantom, &r.Duplicate, &r.Unexplained, &r.Reordered, &r.Other}
}

func (r *row) fields() []string {
	f := []string{r.Commit, r.Digest, strconv.FormatUint(r.Seed, 10), r.Layer, r.Kind, r.Faults}
	for _, n := range r.numbers() {
		f = append(f, strconv.Itoa(*n))
	}
	return append(f, strconv.FormatInt(r.Recovery.Milliseconds(), 10), strconv.Itoa(r.Count))
}

func parseRow(f []string) (row, error) {
	if len(f) != len(columns) {
		return row{}, fmt.Errorf("%d columns, not %d", len(f), len(columns))
	}
	r := row{Commit: f[0], Digest: f[1], Layer: f[3], Kind: f[4]}
	r.Faults = f[5]
	var err error
	errs := make([]error, 0, len(columns))
	r.Seed, err = strconv.ParseUint(f[2], 10, 64)
	errs = append(errs, err)
	rest := f[6:]
	for i, n := range r.numbers() {
		*n, err = strconv.Atoi(rest[i])
		errs = append(errs, err)
	}
	rest = rest[len(r.numbers()):]
	ms, err := strconv.ParseInt(rest[0], 10, 64)
	errs = append(errs, err)
	r.Recovery = time.Duration(ms) * time.Millisecond
	r.Count, err = strconv.Atoi(rest[1])
	return r, errors.Join(append(errs, err)...)
}

// readRows reads the file of a campaign; one that is not there has none. A last line without its end, of a campaign that was killed, is cut off.
func readRows(name string) ([]row, error) {
	b, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(b) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	whole := strings.LastIndexByte(string(b), '\n') + 1
	if whole < len(b) {
		if err := os.Truncate(name, int64(whole)); err != nil {
			return nil, err
		}
	}
	in := csv.NewReader(strings.NewReader(string(b[:whole])))
	in.FieldsPerRecord = -1
	var rows []row
	for line := 1; ; line++ {
		f, err := in.Read()
		if err == io.EOF {
			return rows, nil
		}
		if err == nil && line == 1 {
			if !slices.Equal(f, columns) {
				return nil, fmt.Errorf("%s: is not the file of a campaign: it begins with %q", name, f)
			}
			continue
		}
		var r row
		if err == nil {
			r, err = parseRow(f)
		}
		if err != nil {
			return nil, fmt.Errorf("%s line %d: %w", name, line, err)
		}
		rows = append(rows, r)
	}
}

// appendRows writes rows to the end of the file; "": nowhere.
func appendRows(name string, rows ...row) error {
	if name == "" || len(rows) == 0 {
		return nil
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	var text strings.Builder
	out := csv.NewWriter(&text)
	if at, err := f.Seek(0, io.SeekEnd); err == nil && at == 0 {
		_ = out.Write(columns) // into memory
	}
	for i := range rows {
		_ = out.Write(rows[i].fields())
	}
	out.Flush()
	_, err = f.WriteString(text.String())
	return errors.Join(err, f.Sync())
}

// total is what the rows of one kind showed together.
type total struct {
	kind      string
	schedules int
	happened  int // of them, in which what is counted happened at all
	row
	recoveries []time.Duration
}

// totals of all kinds, and of all together as the last, which counts nothing.
func totals(rows []row) []total {
	byKind := map[string]*total{}
	all := &total{kind: "all"}
	for i := range rows {
		r := &rows[i]
		of := byKind[r.Kind]
		if of == nil {
			of = &total{kind: r.Kind}
			byKind[r.Kind] = of
		}
		of.Count += r.Count
		if r.Count > 0 {
			of.happened++
		}
		for _, t := range []*total{of, all} {
			t.schedules++
			for k, n := range r.numbers() {
				*t.numbers()[k] += *n
			}
			t.recoveries = append(t.recoveries, r.Recovery)
		}
	}
	var list []total
	for _, t := range byKind {
		list = append(list, *t)
	}
	slices.SortFunc(list, func(a, b total) int { return strings.Compare(a.kind, b.kind) })
	return append(list, *all)
}

func printTotals(w io.Writer, list []total) {
	fmt.Fprintf(w, "%-14s %9s %9s %9s %8s %7s %5s %8s %10s %12s %10s %6s  %-20s %s\n",
		"faults", "schedules", "ops", "ok", "unknown", "failed", "lost", "phantom", "duplicate", "unexplained", "reordered", "other", "recovery p50, most", "count")
	for _, t := range list {
		slices.Sort(t.recoveries)
		var half, most time.Duration
		if n := len(t.recoveries); n > 0 {
			half, most = t.recoveries[n/2], t.recoveries[n-1]
		}
		fmt.Fprintf(w, "%-14s %9d %9d %9d %8d %7d %5d %8d %10d %12d %10d %6d  %-20s %s\n",
			t.kind, t.schedules, t.Ops, t.OK, t.Unknown, t.Failed, t.Lost, t.Phantom, t.Duplicate, t.Unexplained, t.Reordered, t.Other,
			fmt.Sprintf("%v, %v", half.Round(time.Millisecond), most.Round(time.Millisecond)), t.reached())
	}
}
