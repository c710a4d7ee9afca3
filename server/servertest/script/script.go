// Package script runs tests that are written as a file of steps: command lines, "----", what they print, an empty line.
// Lines that begin with # are kept as they are. A command line is a word and arguments, name=value or plain words.
//
//	# a lease for each
//	fetch client=a max=2
//	----
//	lease 1 partition 0 [0,2)
//
// With the flag -rewrite what is printed now is written into the files.
package script

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

var rewrite = flag.Bool("rewrite", false, "write what the scripts print into them")

// Each runs a subtest for each file testdata/*.txt of the package that is tested.
func Each(t *testing.T, run func(t *testing.T, file string)) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scripts", err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) { run(t, f) })
	}
}

// Run runs one file: do is called for each command line, and returns what it prints, whole lines.
func Run(t *testing.T, file string, do func(c Command) string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	var said strings.Builder // by the commands of this step
	skipping := false
	for n, line := range strings.Split(strings.TrimRight(string(text), "\n"), "\n") {
		switch {
		case skipping && line != "":
		case line == "----":
			out.WriteString("----\n" + said.String())
			said.Reset()
			skipping = true
		case line == "" || strings.HasPrefix(line, "#"):
			skipping = false
			out.WriteString(line + "\n")
		default:
			out.WriteString(line + "\n")
			said.WriteString(do(parse(t, fmt.Sprintf("%s:%d", file, n+1), line)))
		}
	}
	if *rewrite {
		if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	got := strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || got[i] != want[i] {
			t.Fatalf("%s:%d differs; from there on got\n%s\nwant\n%s", file, i+1, strings.Join(got[min(i, len(got)):], "\n"), strings.Join(want[min(i, len(want)):], "\n"))
		}
	}
}

// Command is a command line.
type Command struct {
	T     *testing.T
	Name  string
	Args  map[string]string
	Words []string // the arguments without =

	where string // file:line
}

func parse(t *testing.T, where, line string) Command {
	f := strings.Fields(line)
	c := Command{T: t, where: where, Name: f[0], Args: map[string]string{}}
	for _, a := range f[1:] {
		if k, v, ok := strings.Cut(a, "="); ok {
			c.Args[k] = v
		} else {
			c.Words = append(c.Words, a)
		}
	}
	return c
}

// Fatalf ends the test, naming the line.
func (c Command) Fatalf(format string, args ...any) {
	c.T.Helper()
	c.T.Fatalf("%s: %s", c.where, fmt.Sprintf(format, args...))
}

// Str is an argument, or zero where it is not given.
func (c Command) Str(name, zero string) string {
	if v, ok := c.Args[name]; ok {
		return v
	}
	return zero
}

// Int is an argument, or zero where it is not given.
func (c Command) Int(name string, zero int) int {
	v, ok := c.Args[name]
	if !ok {
		return zero
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		c.Fatalf("%s=%s: %v", name, v, err)
	}
	return n
}

// Span reads a range [from, to), written as 3..7 or as one number.
func (c Command) Span(name string) (from, to uint64) {
	lo, hi, two := strings.Cut(c.Args[name], "..")
	a, err := strconv.ParseUint(lo, 10, 64)
	if err != nil {
		c.Fatalf("%s=%s: %v", name, c.Args[name], err)
	}
	if !two {
		return a, a + 1
	}
	b, err := strconv.ParseUint(hi, 10, 64)
	if err != nil {
		c.Fatalf("%s=%s: %v", name, c.Args[name], err)
	}
	return a, b
}

// Duration reads a word or an argument such as 5s.
func (c Command) Duration(v string) time.Duration {
	d, err := time.ParseDuration(v)
	if err != nil {
		c.Fatalf("%v", err)
	}
	return d
}
