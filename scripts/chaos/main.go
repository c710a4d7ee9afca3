// Command chaos is the campaign that shows that nothing is lost.
//
//	go run ./scripts/chaos check FILE...
//
// judges a history, given as one or more files that are taken together (server/servertest/check/FORMAT.md).
//
//	go run ./scripts/chaos run [-n N] [-faults kill,pause,...] [-seed N] [-resume FILE]
//
// runs schedules of faults on clusters of real processes, under load whose history is judged, and those that are tests.
//
//	go run ./scripts/chaos report FILE...
//
// makes the table and the plots of docs/reliability.md from lines of run -resume FILE and of scripts/mutations.sh.
//
//	go run ./scripts/chaos digest
//
// prints the hash of the code that these are about: lines of the same one count together.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/jmqio/jmq/scripts/chaos/disk"
)

// How the program ends.
const (
	exitClean    = 0
	exitViolated = 1 // a promise was broken
	exitBad      = 2 // what was asked makes no sense, or could not be done
)

// commands take the arguments after their name, and return how the program ends.
var commands = map[string]func(args []string) int{
	"check":  checkCommand,
	"digest": digestCommand,
	"report": reportCommand,
	"run":    runCommand,
	"work":   workCommand, // of those that run begins
}

func main() {
	disk.ServeIfAsked()
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: chaos check FILE... | chaos run [flags] | chaos report FILE... | chaos digest [PACKAGE...]")
		os.Exit(exitBad)
	}
	os.Exit(commands[os.Args[1]](os.Args[2:]))
}

// digestCommand prints what lines of a campaign are of now; of packages that are named, one a line, what their mutations are of.
func digestCommand(packages []string) int {
	ctx := context.Background()
	if len(packages) == 0 {
		_, sum, err := digest(ctx, ".")
		if err != nil {
			fmt.Fprintln(os.Stderr, "chaos digest:", err)
			return exitBad
		}
		fmt.Println(sum)
		return exitClean
	}
	for _, name := range packages {
		sum, err := packageDigest(ctx, ".", name)
		if err != nil {
			fmt.Fprintln(os.Stderr, "chaos digest:", err)
			return exitBad
		}
		fmt.Println(name, sum)
	}
	return exitClean
}
