package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/spf13/cobra"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/store/local"
)

func journalRepairCommand() *cobra.Command {
	var folders stoppedFolder
	var sure confirmation
	var dryRun, quiet bool
	var output string
	cmd := &cobra.Command{
		Use: "repair FOLDER", Short: "Bring a damaged journal into a state that the broker starts with", Args: cobra.ExactArgs(1),
		Long: `Bring the journal in a data folder into a state that the broker starts with. Nothing that can be read is changed or removed: damaged headers
and the file STORE are made again, damaged bytes are set aside (damaged/FROM-TO.bad) and marked as lost, and where segments are missing their range is marked
as lost too, which the broker does not do by itself. Consumers skip what is lost and are told.

Look first with --dry-run, and keep a copy of the folder. The broker of the folder must be stopped. After Ctrl-C start it again: it goes on
where it was.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, release, err := folders.open(args[0])
			if err != nil {
				return err
			}
			defer release()
			return repairJournal(cmd, args[0], dir, &sure, dryRun, quiet, output)
		},
	}
	folders.flags(cmd.Flags())
	sure.flag(cmd)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only say what would be done")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "no progress")
	outputFlag(cmd, &output)
	return cmd
}

// repairResult is the stable form of a repair.
type repairResult struct {
	Folder   string      `json:"folder"`
	DryRun   bool        `json:"dryRun"`
	Headers  []string    `json:"headers"` // files whose header was made again
	Lost     []lostRange `json:"lost"`    // damaged bytes, set aside
	Missing  []lostRange `json:"missing"` // what no segment was there for
	SetAside string      `json:"setAside,omitempty"`
	End      uint64      `json:"end"`
	Identity bool        `json:"identity"` // the file STORE was missing or damaged, and made again from what the segments say
}

func repairJournal(cmd *cobra.Command, folder, dir string, sure *confirmation, dryRun, quiet bool, output string) error {
	id, reached, err := local.Known(vfs.Default, folder)
	identity := err == nil && id == nil || errors.Is(err, local.ErrIdentity)
	if identity {
		var store [16]byte
		if store, err = journal.StoreOf(vfs.Default, dir); err == nil {
			id = &store
			reached, err = local.Reached(vfs.Default, folder, store)
		}
	}
	if err != nil {
		return err
	}
	repair := func(dry bool) (journal.RepairReport, error) {
		bar := newProgress(cmd.ErrOrStderr(), "repair", true, quiet)
		defer bar.close()
		type answer struct {
			report journal.RepairReport
			err    error
		}
		done := make(chan answer, 1)
		go func() { // Ctrl-C leaves it behind: it can be interrupted anywhere
			r, err := journal.Repair(vfs.Default, dir, journal.RepairOptions{StoreID: id, End: reached, DryRun: dry, Progress: bar.set})
			done <- answer{r, err}
		}()
		select {
		case a := <-done:
			return a.report, a.err
		case <-cmd.Context().Done():
			return journal.RepairReport{}, &codedError{exitInterrupted, errors.New("stopped before the end; start it again: it goes on where it was")}
		}
	}
	report, err := repair(true)
	if err != nil {
		return err
	}
	if !dryRun && (identity || !report.Nothing()) {
		if !sure.yes && isTerminal(cmd.InOrStdin()) { // what it means, before the question
			if err := printRepair(cmd.ErrOrStderr(), "table", repairOf(dir, identity, true, report)); err != nil {
				return err
			}
		}
		if err := sure.ask(cmd, "repair "+absolute(dir)); err != nil {
			return err
		}
		if report, err = repair(false); err != nil {
			return err
		}
		if identity {
			if err := local.Identify(vfs.Default, folder, *id); err != nil {
				return err
			}
		}
	}
	return printRepair(cmd.OutOrStdout(), output, repairOf(dir, identity, dryRun, report))
}

func repairOf(dir string, identity, dryRun bool, r journal.RepairReport) repairResult {
	i := repairResult{absolute(dir), dryRun, []string{}, lostRanges(r.Lost), lostRanges(r.Missing), "", uint64(r.End), identity}
	for _, h := range r.Headers {
		i.Headers = append(i.Headers, filepath.Base(h))
	}
	if r.SetAside != "" {
		i.SetAside = filepath.Base(r.SetAside)
	}
	return i
}

func printRepair(w io.Writer, output string, r repairResult) error {
	l := listing{header: []string{"what", "where", "bytes"}, data: r, empty: "nothing to repair: the broker starts with it as it is"}
	add := func(what, where string, bytes any) { l.rows = append(l.rows, []any{what, where, bytes}) }
	if r.Identity {
		add("identity made again", "STORE", "")
	}
	for _, h := range r.Headers {
		add("header made again", h, "")
	}
	for _, h := range r.Lost {
		add("damaged, set aside", fmt.Sprintf("[%d, %d)", h.From, h.To), h.To-h.From)
	}
	for _, h := range r.Missing {
		add("missing, marked as lost", fmt.Sprintf("[%d, %d)", h.From, h.To), h.To-h.From)
	}
	if r.SetAside != "" {
		add("empty file, set aside", r.SetAside, "")
	}
	if err := printListing(w, output, l); err != nil || output != "table" || len(l.rows) == 0 {
		return err
	}
	next := "\nDone. Start the broker: it says what was lost, and jmq store usage too.\n"
	if r.DryRun {
		next = "\nA dry run: nothing was changed. Without --dry-run this is done.\n"
	}
	_, err := io.WriteString(w, next)
	return err
}
