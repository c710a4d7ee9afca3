package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/spf13/cobra"

	"github.com/jmqio/jmq/server/journal"
)

// asideInfo is the stable form of a journal.Aside.
type asideInfo struct {
	Name   string      `json:"name"`
	From   uint64      `json:"from"`
	To     uint64      `json:"to"`
	Epoch  string      `json:"epoch"` // of the last record
	Bytes  int64       `json:"bytes"`
	Resent *resentInfo `json:"resent,omitempty"`
}

type resentInfo struct {
	Done    bool   `json:"done"`
	Next    uint64 `json:"next"`
	Sent    int64  `json:"sent"`    // messages
	Skipped int64  `json:"skipped"` // messages
	Why     string `json:"why,omitempty"`
}

func asidesOf(asides []journal.Aside) []asideInfo {
	infos := []asideInfo{}
	for _, a := range asides {
		i := asideInfo{a.Name, uint64(a.From), uint64(a.To), a.Epoch.String(), a.Bytes, nil}
		if r := a.Resent; r != nil {
			i.Resent = &resentInfo{r.Done, uint64(r.Next), r.Sent, r.Skipped, r.Why}
		}
		infos = append(infos, i)
	}
	return infos
}

// settled says whether nothing more is to be done with its messages.
func (i *asideInfo) settled() bool { return i.Resent != nil && i.Resent.Done }

func (i *asideInfo) messages() string {
	r := i.Resent
	switch {
	case r == nil:
		return "nothing yet"
	case !r.Done:
		return fmt.Sprintf("%d sent again, up to %d", r.Sent, r.Next)
	}
	s := fmt.Sprintf("%d sent again", r.Sent)
	if r.Skipped > 0 {
		s += fmt.Sprintf(", %d not", r.Skipped)
	}
	if r.Why != "" {
		s += ": " + r.Why
	}
	return s
}

// isAside says whether path is a file, which can only be one that was set aside.
func isAside(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

func journalAsideCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "aside", Short: "See, or remove, ends of a broker's journal that were set aside",
		Long: `See, or remove, ends of a broker's journal that were set aside. When a broker returns that has records which the broker group's master has not,
they are cut off and kept in files, which jmq journal dump reads. Where some may have been acknowledged, as after a promotion by force, their
messages are sent again. The files stay until they are removed here, while the broker is stopped.`,
	}
	cmd.AddCommand(journalAsideListCommand(), journalAsideRemoveCommand())
	return cmd
}

func journalAsideListCommand() *cobra.Command {
	var folders stoppedFolder
	var output string
	cmd := &cobra.Command{
		Use: "ls FOLDER", Short: "List what was set aside, and what became of its messages, while the broker runs too", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := folders.find(args[0])
			if err != nil {
				return err
			}
			asides, err := journal.ListAside(vfs.Default, dir)
			if err != nil {
				return err
			}
			infos := asidesOf(asides)
			l := listing{header: []string{"name", "from", "to", "epoch", "size", "messages"}, data: infos, empty: "nothing was set aside"}
			for _, i := range infos {
				l.rows = append(l.rows, []any{i.Name, i.From, i.To, i.Epoch, formatSize(i.Bytes), i.messages()})
			}
			return printListing(cmd.OutOrStdout(), output, l)
		},
	}
	folders.flags(cmd.Flags())
	outputFlag(cmd, &output)
	return cmd
}

func journalAsideRemoveCommand() *cobra.Command {
	folders := stoppedFolder{instead: "wait: while it runs it may send their messages again (jmq journal aside ls says how far it is)"}
	var sure confirmation
	var all bool
	cmd := &cobra.Command{
		Use: "rm FOLDER [NAME...]", Short: "Remove what was set aside", Args: cobra.MinimumNArgs(1),
		Long: `Remove files that were set aside, by the names that jmq journal aside ls says, or all whose messages were dealt with (--all). A file whose messages were not
all dealt with goes only when it is named: they are lost with it.`,
		Example: "  jmq journal aside rm ./jmq-data --all",
		RunE: func(cmd *cobra.Command, args []string) error {
			names := args[1:]
			if all == (len(names) > 0) {
				return usagef("give names, or --all for those whose messages were dealt with")
			}
			dir, release, err := folders.open(args[0])
			if err != nil {
				return err
			}
			defer release()
			asides, err := journal.ListAside(vfs.Default, dir)
			if err != nil {
				return err
			}
			infos := asidesOf(asides)
			var unsettled []string
			for _, n := range names {
				at := slices.IndexFunc(infos, func(i asideInfo) bool { return i.Name == filepath.Base(n) })
				if at < 0 {
					return &codedError{exitNotFound, fmt.Errorf("%s was not set aside in %s; see jmq journal aside ls", n, args[0])}
				}
				if !infos[at].settled() {
					unsettled = append(unsettled, infos[at].Name)
				}
			}
			if all {
				for _, i := range infos {
					if i.settled() {
						names = append(names, i.Name)
					}
				}
			}
			if len(names) == 0 {
				fmt.Fprintln(cmd.OutOrStdout(), "nothing to remove")
				return nil
			}
			what := "remove " + counted(len(names), "file") + " for good"
			if len(unsettled) > 0 {
				what += ", with messages that are nowhere else and were not all sent again: " + strings.Join(unsettled, ", ")
			}
			if err := sure.ask(cmd, what); err != nil {
				return err
			}
			var errs []error
			for _, n := range names {
				if err := journal.RemoveAside(vfs.Default, dir, filepath.Base(n)); err != nil {
					errs = append(errs, err)
					continue
				}
				fmt.Fprintln(cmd.OutOrStdout(), "removed", filepath.Base(n))
			}
			return errors.Join(errs...)
		},
	}
	folders.flags(cmd.Flags())
	sure.flag(cmd)
	cmd.Flags().BoolVar(&all, "all", false, "all whose messages were dealt with")
	return cmd
}
