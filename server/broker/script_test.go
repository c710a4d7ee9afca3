package broker

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

// script is a file of steps: command lines, "----", what they print, an empty line. Lines with # are kept as they are.
// A command line is a word and arguments, name=value or plain words.
//
//	# a lease for each
//	fetch client=a max=2
//	----
//	lease 1 partition 0 [0,2)
func runScript(t *testing.T, file string, run func(c command) string) {
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
			said.WriteString(run(parseCommand(t, fmt.Sprintf("%s:%d", file, n+1), line)))
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

func scripts(t *testing.T, run func(t *testing.T, file string)) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scripts", err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) { run(t, f) })
	}
}

type command struct {
	t     *testing.T
	where string
	name  string
	args  map[string]string
	words []string
}

func parseCommand(t *testing.T, where, line string) command {
	f := strings.Fields(line)
	c := command{t: t, where: where, name: f[0], args: map[string]string{}}
	for _, a := range f[1:] {
		if k, v, ok := strings.Cut(a, "="); ok {
			c.args[k] = v
		} else {
			c.words = append(c.words, a)
		}
	}
	return c
}

func (c command) fatal(format string, args ...any) {
	c.t.Helper()
	c.t.Fatalf("%s: %s", c.where, fmt.Sprintf(format, args...))
}

func (c command) str(name, zero string) string {
	if v, ok := c.args[name]; ok {
		return v
	}
	return zero
}

func (c command) int(name string, zero int) int {
	v, ok := c.args[name]
	if !ok {
		return zero
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		c.fatal("%s=%s: %v", name, v, err)
	}
	return n
}

// span reads a range written as 3..7 or as one number.
func (c command) span(name string) (from, to uint64) {
	lo, hi, two := strings.Cut(c.args[name], "..")
	a, err := strconv.ParseUint(lo, 10, 64)
	if err != nil {
		c.fatal("%s=%s: %v", name, c.args[name], err)
	}
	if !two {
		return a, a + 1
	}
	b, err := strconv.ParseUint(hi, 10, 64)
	if err != nil {
		c.fatal("%s=%s: %v", name, c.args[name], err)
	}
	return a, b
}

func (c command) duration(v string) time.Duration {
	d, err := time.ParseDuration(v)
	if err != nil {
		c.fatal("%v", err)
	}
	return d
}
