// Command jmq is the whole message broker in one binary: its servers (jmq dev, jmq run) and the clients for people and
// scripts. This package reads flags, environment and file, and nothing below it does.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/wire"
)

// Exit codes of every command.
const (
	exitOK       = 0
	exitError    = 1
	exitUsage    = 2
	exitNotFound = 3
	exitDenied   = 4
	exitTimeout  = 5

	exitInterrupted = 130 // by Ctrl-C, where that was not the usual end
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second Ctrl-C ends the process at once
	os.Exit(execute(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// execute runs one command line and returns the exit code. It is main without the process, for tests.
func execute(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := rootCommand(stdin, stdout, stderr)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	if _, ours := errors.AsType[*codedError](err); !ours && strings.HasPrefix(err.Error(), "unknown command") { // cobra's
		err = usagef("%s; see jmq --help", strings.TrimSpace(err.Error()))
	}
	for _, e := range splitErrors(err) {
		fmt.Fprintln(stderr, "jmq:", oneLine(e))
	}
	return exitCode(err)
}

func rootCommand(stdin io.Reader, stdout, stderr io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:   "jmq",
		Short: "A message broker for orders and payments",
		Long: `jmq is a message broker for orders and payments: what it has acknowledged is on disk.

Start with: jmq dev`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetIn(stdin) // before the completion command is made: it keeps the output that it finds
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.AddCommand(
		devCommand(), runCommand(),
		produceCommand(), consumeCommand(), topicCommand(), groupCommand(), msgCommand(), storeCommand(),
		journalCommand(), indexCommand(), migrateCommand(), benchCommand(), configCommand(), versionCommand(),
		contextCommand(), loginCommand(), whoamiCommand(), credentialCommand(), brokerCommand(), registryCommand(), auditCommand(),
		getCommand(), applyCommand(), deleteCommand(),
	)
	for _, k := range kindTable {
		c := k.command()
		if k.kind == meta.KindBrokerGroup {
			c.AddCommand(brokerGroupCommands()...)
		}
		root.AddCommand(c)
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if e, ok := errors.AsType[*pflag.NotExistError](err); ok && len(e.GetSpecifiedName()) == 1 && strings.Contains("0123456789", e.GetSpecifiedName()) {
			err = fmt.Errorf("-%s is neither a flag nor a place: those are numbers from 0 on", e.GetSpecifiedShortnames())
		}
		return usageError(fmt.Errorf("%w; see %s --help", err, cmd.CommandPath()))
	})
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	for _, c := range root.Commands() {
		strict(c)
	}
	return root
}

// strict makes wrong arguments usage errors, everywhere below c, and a group of commands without a verb too.
func strict(c *cobra.Command) {
	if c.Name() == "help" {
		return
	}
	if check := c.Args; check != nil {
		c.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return usageError(fmt.Errorf("%w; usage: %s", err, cmd.UseLine()))
			}
			return nil
		}
	}
	if c.HasSubCommands() && !c.Runnable() {
		c.Args = cobra.ArbitraryArgs
		c.RunE = func(cmd *cobra.Command, args []string) error {
			var verbs []string
			for _, sub := range cmd.Commands() {
				if sub.IsAvailableCommand() {
					verbs = append(verbs, sub.Name())
				}
			}
			known := strings.Join(verbs, ", ")
			if len(args) > 0 {
				return usageError(fmt.Errorf("%s does not know %q; it knows: %s", cmd.CommandPath(), args[0], known))
			}
			return usageError(fmt.Errorf("%s needs one of: %s", cmd.CommandPath(), known))
		}
	}
	for _, sub := range c.Commands() {
		strict(sub)
	}
}

// codedError carries the exit code of an error.
type codedError struct {
	code int
	err  error
}

func (e *codedError) Error() string { return e.err.Error() }
func (e *codedError) Unwrap() []error {
	return splitErrors(e.err) // a joined error is printed one line a part
}

func usageError(err error) error { return &codedError{exitUsage, err} }

func usagef(format string, args ...any) error { return usageError(fmt.Errorf(format, args...)) }

// exitCode finds the code that err stands for.
func exitCode(err error) int {
	if err == nil {
		return exitOK
	}
	if coded, ok := errors.AsType[*codedError](err); ok {
		return coded.code
	}
	code := wire.CodeOf(err)
	if failed, ok := errors.AsType[*client.Error](err); ok {
		code = failed.Code
	}
	switch code {
	case wire.CodeTopicNotFound, wire.CodePartitionNotFound, wire.CodeGroupNotFound, wire.CodeNotFound:
		return exitNotFound
	case wire.CodeUnauthenticated, wire.CodeForbidden:
		return exitDenied
	case wire.CodeTimeout:
		return exitTimeout
	case wire.CodeInvalid, wire.CodeTooLarge:
		return exitUsage
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return exitTimeout
	}
	return exitError
}

// oneLine keeps an error to one line of the terminal.
func oneLine(err error) string {
	s := strings.TrimSpace(err.Error())
	s = strings.ReplaceAll(s, "\n\nDid you mean this?\n\t", "; did you mean ")
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\t' || r == '\r' }), "; ")
}
