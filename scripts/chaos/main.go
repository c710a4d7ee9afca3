// Command chaos is the campaign that shows that nothing is lost.
//
//	go run ./scripts/chaos check FILE...
//
// judges a history, given as one or more files that are taken together (server/servertest/check/FORMAT.md).
package main

import (
	"fmt"
	"os"
)

// How the program ends.
const (
	exitClean    = 0
	exitViolated = 1 // a promise was broken
	exitBad      = 2 // what was asked makes no sense, or could not be done
)

// commands take the arguments after their name, and return how the program ends.
var commands = map[string]func(args []string) int{
	"check": checkCommand,
}

func main() {
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: chaos check FILE...")
		os.Exit(exitBad)
	}
	os.Exit(commands[os.Args[1]](os.Args[2:]))
}
