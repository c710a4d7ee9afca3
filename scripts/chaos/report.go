package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The report is docs/reliability.md: what lies between these lines, and the plots beside it, are made from files of lines. All else is written by hand.
const (
	reportFile  = "docs/reliability.md"
	reportBegin = "<!-- Written by go run ./scripts/chaos report FILE..., to the line that ends it. -->"
	reportEnd   = "<!-- End of what it writes. -->"
)

// reported is what files of lines have of one code.
type reported struct {
	digest string
	commit string // of the last line
	rows   []row
	given  []given
	others int // lines of other code, which do not count
}

// given is what one decoder was given by scripts/mutations.sh.
type given struct {
	decoder          string // package and target
	mutations, taken int
	found            int // runs that failed
}

var mutationColumns = []string{"code", "package", "target", "seed", "mutations", "taken", "found", "seconds"}

func reportCommand(args []string) int {
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		fmt.Fprintln(os.Stderr, "usage: chaos report FILE...\nFILE has lines of chaos run -resume FILE or of scripts/mutations.sh N FILE; those of the code of the last line count.")
		return exitBad
	}
	if err := report(".", args); err != nil {
		fmt.Fprintln(os.Stderr, "chaos report:", err)
		return exitBad
	}
	return exitClean
}

// report writes docs below dir anew.
func report(dir string, names []string) error {
	r, err := readReported(names)
	if err != nil {
		return err
	}
	name := filepath.Join(dir, reportFile)
	b, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(b), reportBegin+"\n")
	_, after, closed := strings.Cut(rest, reportEnd)
	if !ok || !closed {
		return fmt.Errorf("%s has not the lines %q and %q, between which the report is", name, reportBegin, reportEnd)
	}
	var text strings.Builder
	text.WriteString(before + reportBegin + "\n\n")
	r.print(&text)
	plots := map[string]string{}
	if len(r.rows) > 0 {
		plots["recovery.svg"], plots["outcomes.svg"] = plotRecovery(r.totals()), plotOutcomes(r.totals())
		text.WriteString("![How long it took until all was well again](recovery.svg)\n\n![What became of sends](outcomes.svg)\n\n")
	}
	if len(r.given) > 0 {
		plots["mutations.svg"] = plotMutations(r.given)
		text.WriteString("![Mutations of each decoder](mutations.svg)\n\n")
	}
	text.WriteString(reportEnd + after)
	for plot, svg := range plots {
		if err := os.WriteFile(filepath.Join(filepath.Dir(name), plot), []byte(svg), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(name, []byte(text.String()), 0o644)
}

// readReported reads files of both sorts. Lines of schedules count that are of the same code as the last one of the last file, those of mutations that are of
// the same as the last one of their package.
func readReported(names []string) (*reported, error) {
	r := &reported{}
	var all []row
	var mutations [][]string
	for _, name := range names {
		lines, err := readMutations(name)
		if err == nil {
			mutations = append(mutations, lines...)
			continue
		}
		if !errors.Is(err, errNotMutations) {
			return nil, err
		}
		rows, err := readRows(name)
		if err != nil {
			return nil, err
		}
		if all = append(all, rows...); len(rows) > 0 {
			r.digest = rows[len(rows)-1].Digest
		}
	}
	if len(all) == 0 && len(mutations) == 0 {
		return nil, errors.New("there are no lines")
	}
	for _, line := range all {
		if line.Digest != r.digest {
			r.others++
			continue
		}
		r.commit = line.Commit
		r.rows = append(r.rows, line)
	}
	at, codes := map[string]int{}, map[string]string{}
	for _, f := range mutations {
		codes[f[1]] = f[0]
	}
	for _, f := range mutations {
		if f[0] != codes[f[1]] {
			r.others++
			continue
		}
		decoder := strings.TrimPrefix(f[1], "./") + " " + strings.TrimPrefix(f[2], "Fuzz")
		i, ok := at[decoder]
		if !ok {
			i, r.given = len(r.given), append(r.given, given{decoder: decoder})
			at[decoder] = i
		}
		g := &r.given[i]
		for k, n := range []*int{&g.mutations, &g.taken, &g.found} {
			v, err := strconv.Atoi(f[4+k])
			if err != nil || v < 0 {
				return nil, fmt.Errorf("%s of %s is %q", mutationColumns[4+k], decoder, f[4+k])
			}
			*n += v
		}
	}
	slices.SortFunc(r.given, func(a, b given) int { return strings.Compare(a.decoder, b.decoder) })
	return r, nil
}

var errNotMutations = errors.New("is not a file of mutations")

func readMutations(name string) ([][]string, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(string(b), strings.Join(mutationColumns, ",")+"\n") {
		return nil, errNotMutations
	}
	in := csv.NewReader(strings.NewReader(string(b)))
	in.FieldsPerRecord = len(mutationColumns)
	lines, err := in.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return lines[1:], nil
}

// totals of all kinds in the order of the goals, and of all together as the last.
func (r *reported) totals() []total {
	list := totals(r.rows)
	for i := range list {
		slices.Sort(list[i].recoveries)
	}
	place := func(t total) int {
		return slices.IndexFunc(goals, func(g goal) bool { return g.kind == t.kind })
	}
	slices.SortStableFunc(list[:len(list)-1], func(a, b total) int { return place(a) - place(b) })
	return list
}

// quantile of sorted times, at least that share of them: the nearest rank.
func quantile(sorted []time.Duration, percent int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(0, (len(sorted)*percent+99)/100-1)]
}

// grouped writes a number with its thousands apart.
func grouped(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func (r *reported) print(w io.Writer) {
	if r.digest != "" {
		fmt.Fprintf(w, "Of the code %s, at commit %s: ", r.digest, r.commit)
	}
	fmt.Fprintf(w, "%s schedules", grouped(len(r.rows)))
	if r.others > 0 {
		fmt.Fprintf(w, ". %s lines are of other code, and do not count", grouped(r.others))
	}
	fmt.Fprint(w, ".\n\n")
	if len(r.rows) > 0 {
		r.printTable(w)
	}
	if len(r.given) > 0 {
		r.printMutations(w)
	}
}

func (r *reported) printTable(w io.Writer) {
	fmt.Fprintln(w, "| kind | schedules | counted | for a release | ops | ok | unknown | failed | lost | phantom | duplicate | unexplained | reordered | other | recovery p50 | p99 | most |")
	fmt.Fprintln(w, "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
	list := r.totals()
	for i := range list {
		t := &list[i]
		counted, needed := "", ""
		if g, ok := goalOf(t.kind); ok {
			counted = fmt.Sprintf("%s %s", grouped(t.Count), g.what)
			switch {
			case g.release > 0 && g.schedules:
				needed = fmt.Sprintf("%s of %s schedules", grouped(g.done(t)), grouped(g.release))
			case g.release > 0:
				needed = fmt.Sprintf("%s of %s", grouped(g.done(t)), grouped(g.release))
			}
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s |", t.kind, grouped(t.schedules), counted, needed)
		for _, n := range t.numbers() {
			fmt.Fprintf(w, " %s |", grouped(*n))
		}
		if t.recoveries[len(t.recoveries)-1] == 0 { // nobody measured it
			fmt.Fprintln(w, " | | |")
			continue
		}
		for _, percent := range []int{50, 99, 100} {
			fmt.Fprintf(w, " %v |", quantile(t.recoveries, percent).Round(time.Millisecond))
		}
		fmt.Fprintln(w)
	}
	var missing []string
	for _, g := range goals {
		if g.release > 0 && !slices.ContainsFunc(list, func(t total) bool { return t.kind == g.kind }) && (g.kind != "mutations" || len(r.given) == 0) {
			missing = append(missing, g.kind)
		}
	}
	if len(missing) > 0 {
		fmt.Fprintf(w, "\nNot run: %s.\n", strings.Join(missing, ", "))
	}
	fmt.Fprintln(w)
}

func (r *reported) printMutations(w io.Writer) {
	least, sum, found := r.given[0], 0, 0
	for _, g := range r.given {
		sum += g.mutations
		found += g.found
		if g.mutations < least.mutations {
			least = g
		}
	}
	fmt.Fprintf(w, "%d decoders were given %s mutations, each at least %s (%s)", len(r.given), grouped(sum), grouped(least.mutations), least.decoder)
	if g, ok := goalOf("mutations"); ok {
		fmt.Fprintf(w, " of %s for a release", grouped(g.release))
	}
	fmt.Fprintf(w, "; in %d runs one found something.\n\n", found)
}
