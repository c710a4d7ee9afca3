package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/jmqio/jmq/server/servertest/check"
)

func checkCommand(args []string) int { return checkFiles(os.Stdout, os.Stderr, args) }

// checkFiles judges a history. To out goes one line of figures, then each violation with its rule and the lines that it is about, then a line
// for each rule; to bad what is wrong with the input.
func checkFiles(out, bad io.Writer, names []string) int {
	if len(names) == 0 || strings.HasPrefix(names[0], "-") {
		fmt.Fprintln(bad, "usage: chaos check FILE...")
		return exitBad
	}
	r, err := check.CheckFiles(names...)
	if err != nil {
		fmt.Fprintf(bad, "chaos check: %v\n", err)
		return exitBad
	}
	fmt.Fprintln(out, r.Summary())
	if r.OK() {
		r.Print(out)
		return exitClean
	}
	lines, err := check.FindConcerned(r, names...)
	if err != nil {
		fmt.Fprintf(bad, "chaos check: %v\n", err)
		return exitBad
	}
	for _, c := range r.Checks {
		for i, text := range c.Offenders {
			fmt.Fprintf(out, "%s %s: %s\n", c.Name, c.Title, text)
			for _, l := range lines[c.Name][i] {
				event, err := json.Marshal(&l.Event)
				if err != nil {
					panic(err) // it was read
				}
				fmt.Fprintf(out, "    %s:%d: %s\n", l.File, l.Line, event)
			}
		}
		if more := c.Violations - len(c.Offenders); more > 0 {
			fmt.Fprintf(out, "%s %s: and %d more\n", c.Name, c.Title, more)
		}
	}
	r.PrintTable(out)
	return exitViolated
}
