package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/jmqio/jmq/server/servertest/check"
)

func checkCommand(args []string) int { return checkFiles(os.Stdout, os.Stderr, args) }

// checkFiles judges a history: its report goes to out, what is wrong with the input to bad.
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
	r.Print(out)
	if !r.OK() {
		return exitViolated
	}
	return exitClean
}
