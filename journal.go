package main

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/jmqio/jmq/server"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/store/local"
)

func journalCommand() *cobra.Command {
	var output string
	var quiet bool
	folders := stoppedFolder{instead: "verify a copy of the folder"}
	verify := &cobra.Command{
		Use: "verify FOLDER", Short: "Read a journal from end to end and say what is in it, and whether it is whole", Args: cobra.ExactArgs(1),
		Long: `Read the journal in a data folder from its first byte to its last, and say what was checked. It changes nothing; the broker of the
folder must be stopped. Exit code 1 when there is damage.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return verifyJournal(cmd, &folders, args[0], output, quiet)
		},
	}
	outputFlag(verify, &output)
	folders.flags(verify.Flags())
	verify.Flags().BoolVarP(&quiet, "quiet", "q", false, "no progress")
	j := &cobra.Command{Use: "journal", Short: "Look into a stopped broker's journal"}
	j.AddCommand(verify, journalDumpCommand(), journalRepairCommand(), journalAsideCommand())
	return j
}

// verifyResult is the stable form of a journal.Report.
type verifyResult struct {
	Folder       string       `json:"folder"`
	Whole        bool         `json:"whole"`
	StoreID      string       `json:"storeId"`
	Segments     int          `json:"segments"`
	Spares       int          `json:"spares"`
	Records      int64        `json:"records"`
	Bytes        int64        `json:"bytes"`
	Kinds        []kindResult `json:"kinds"`
	Epochs       []string     `json:"epochs"`
	Begin        uint64       `json:"begin"`
	End          uint64       `json:"end"`
	Proven       uint64       `json:"proven"`
	TornBytes    int64        `json:"tornBytes"`
	TornSegments int          `json:"tornSegments"`
	Damage       string       `json:"damage,omitempty"`
	Damaged      []lostRange  `json:"damaged"` // cannot be read
	Headers      int          `json:"headers"` // segments whose header is damaged
	Refused      bool         `json:"refused"` // the broker does not start with it as it is; else it sees to the damage itself
	Holes        []lostRange  `json:"holes"`   // were lost to damage before
	Ends         *endsResult  `json:"ends,omitempty"`
	SetAside     []asideInfo  `json:"setAside"`
}

// endsResult is the stable form of what a copy's file of ends says.
type endsResult struct {
	Synced    uint64 `json:"synced"`
	Committed uint64 `json:"committed"`
	Epoch     string `json:"epoch"`
}

type lostRange struct {
	From uint64 `json:"from"`
	To   uint64 `json:"to"`
}

func lostRanges(holes []journal.Hole) []lostRange {
	r := []lostRange{}
	for _, h := range holes {
		r = append(r, lostRange{uint64(h.From), uint64(h.To)})
	}
	return r
}

func rangeTexts(ranges []lostRange) []string {
	var s []string
	for _, r := range ranges {
		s = append(s, fmt.Sprintf("[%d, %d)", r.From, r.To))
	}
	return s
}

type kindResult struct {
	Kind    string `json:"kind"`
	Records int64  `json:"records"`
	Bytes   int64  `json:"bytes"`
}

func verifyJournal(cmd *cobra.Command, folders *stoppedFolder, folder, output string, quiet bool) error {
	dir, release, err := folders.open(folder)
	if err != nil {
		return err
	}
	defer release()
	id, reached, err := local.Known(vfs.Default, folder)
	if errors.Is(err, local.ErrIdentity) {
		return fmt.Errorf("damaged: %w; keep a copy of the folder, and see jmq journal repair %s --dry-run", err, folder)
	}
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	bar := newProgress(cmd.ErrOrStderr(), "verify", true, quiet)
	defer bar.close()
	type answer struct {
		report journal.Report
		err    error
	}
	done := make(chan answer, 1)
	go func() { // reads only, so Ctrl-C may leave it behind
		r, err := journal.VerifyOf(vfs.Default, dir, id, 0, bar.set)
		done <- answer{r, err}
	}()
	var a answer
	select {
	case a = <-done:
	case <-ctx.Done():
		return errors.New("stopped before the end; nothing was changed, start it again to read from the beginning")
	}
	bar.close()
	if a.err != nil {
		return a.err
	}
	v := resultOf(absolute(dir), a.report)
	if uint64(reached) > v.End && v.Damage == "" {
		v.Whole, v.Refused = false, true
		v.Damage = fmt.Sprintf("the journal ends at %d, but a checkpoint says that everything below %d was on disk: the last segments are missing", v.End, reached)
	}
	if v.Segments == 0 && v.Damage == "" {
		return &codedError{exitNotFound, fmt.Errorf("%s has no segments: nothing to verify", v.Folder)}
	}
	if output != "table" || a.report.StoreID != [16]byte{} { // else nothing was read, and the error says why
		if err := printVerify(cmd.OutOrStdout(), output, v); err != nil {
			return err
		}
	}
	if v.Refused {
		return fmt.Errorf("damaged: %s; keep a copy of the folder, bring back what is missing or see jmq journal repair %s --dry-run", v.Damage, folder)
	}
	if !v.Whole {
		return fmt.Errorf("damaged: %s; keep a copy of the folder before anything else", v.Damage)
	}
	return nil
}

// stoppedFolder is the data folder of a stopped broker, as a command names it.
type stoppedFolder struct {
	journal string
	instead string // what else can be done while the broker runs; "": nothing
}

func (s *stoppedFolder) flags(f *pflag.FlagSet) {
	f.StringVar(&s.journal, "journal", "", "the journal's folder, where broker.journal.folder names one (default: journal in FOLDER)")
}

// find returns the journal's folder, whoever has it open.
func (s *stoppedFolder) find(folder string) (journal string, err error) {
	journal = s.journal
	if journal == "" {
		journal = filepath.Join(folder, "journal")
	}
	return journal, checkVerifiable(folder, journal)
}

// open returns the journal's folder, and keeps brokers away until release is called.
func (s *stoppedFolder) open(folder string) (journal string, release func(), err error) {
	if journal, err = s.find(folder); err != nil {
		return "", nil, err
	}
	next := "stop its broker first"
	if s.instead != "" {
		next += ", or " + s.instead
	}
	lock, err := lockStopped(folder, next)
	if err != nil {
		return "", nil, err
	}
	return journal, func() {
		if lock != nil {
			_ = lock.Close() // it goes with the process at the latest
		}
	}, nil
}

// checkVerifiable says what is wrong with the folder before anything is read.
func checkVerifiable(folder, dir string) error {
	info, err := os.Stat(folder)
	if err == nil && !info.IsDir() {
		return usagef("%s is a file; give the data folder of a broker", folder)
	}
	if err == nil {
		_, err = os.Stat(dir)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return &codedError{exitNotFound, fmt.Errorf("%s has no journal; give the data folder of a broker, such as ./jmq-data, and --journal where broker.journal.folder names one", folder)}
	}
	return err
}

// lockStopped makes sure that no broker has the folder open, and keeps it so until the lock is closed. On media that
// cannot be written there is no lock, and none is needed. next is what to do when one has it open.
func lockStopped(folder, next string) (io.Closer, error) {
	real, err := filepath.EvalSymlinks(absolute(folder))
	if err != nil {
		return nil, err
	}
	name := filepath.Join(real, "LOCK")
	if _, err := os.Stat(name); err != nil {
		return nil, nil // never opened by a broker: a copy of the journal alone
	}
	lock, err := vfs.Default.Lock(name)
	switch {
	case err == nil:
		return lock, nil
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return nil, nil
	}
	return nil, &server.StartError{What: "data folder " + real, Err: local.ErrInUse, Next: next}
}

func resultOf(dir string, r journal.Report) verifyResult {
	v := verifyResult{
		Folder: dir, Whole: r.Damage == nil, StoreID: hex.EncodeToString(r.StoreID[:]), Segments: r.Segments, Spares: r.Spares,
		Bytes: r.Bytes, Begin: uint64(r.Begin), End: uint64(r.End), Proven: uint64(r.Proven),
		TornBytes: r.TornBytes, TornSegments: r.TornSegments, Kinds: []kindResult{}, Epochs: []string{},
		Damaged: lostRanges(r.Damaged), Holes: lostRanges(r.Holes), Headers: r.Headers, Refused: r.Refused,
	}
	kinds := make([]journal.Kind, 0, len(r.Records))
	for k := range r.Records {
		kinds = append(kinds, k)
	}
	slices.Sort(kinds)
	for _, k := range kinds {
		c := r.Records[k]
		v.Records += c.Records
		v.Kinds = append(v.Kinds, kindResult{k.String(), c.Records, c.Bytes})
	}
	for _, e := range r.Epochs {
		v.Epochs = append(v.Epochs, fmt.Sprintf("%v from %d", e.Epoch, e.Position))
	}
	if r.Damage != nil {
		v.Damage = r.Damage.Error()
	}
	if e := r.Ends; e != nil {
		v.Ends = &endsResult{uint64(e.Synced), uint64(e.Committed), e.Epoch.String()}
	}
	v.SetAside = asidesOf(r.SetAside)
	return v
}

func printVerify(w io.Writer, output string, v verifyResult) error {
	l := listing{header: []string{"kind", "records", "bytes"}, data: v}
	for _, k := range v.Kinds {
		l.rows = append(l.rows, []any{k.Kind, k.Records, k.Bytes})
	}
	if output != "table" {
		return printListing(w, output, l)
	}
	var b strings.Builder
	line := func(what, format string, args ...any) {
		fmt.Fprintf(&b, "%-10s"+format+"\n", append([]any{what}, args...)...)
	}
	line("journal", "%s of store %s", v.Folder, v.StoreID)
	line("checked", "%s (header, name, store, and that each begins where the one before ends), %s records with %s", counted(v.Segments, "segment"), humanize.Comma(v.Records), humanize.IBytes(uint64(v.Bytes)))
	line("", "of each record: checksum, position, epoch, and the durable end that it claims")
	line("positions", "[%d, %d), known to be on disk below %d", v.Begin, v.End, v.Proven)
	if v.Begin > 0 {
		line("", "nothing below %d is there: segments were trimmed or removed", v.Begin)
	}
	line("epochs", "%d: %s", len(v.Epochs), shorten(v.Epochs))
	if v.Ends != nil {
		line("copy", "its file of ends says: synced below %d, committed below %d, epoch %s", v.Ends.Synced, v.Ends.Committed, v.Ends.Epoch)
	}
	line("spares", "%d prepared files", v.Spares)
	if len(v.SetAside) > 0 {
		line("set aside", "%s that another copy has not: see jmq journal aside ls", counted(len(v.SetAside), "end"))
	}
	if len(v.Holes) > 0 {
		line("lost", "lost to damage before, and known to be: %s: %s", counted(len(v.Holes), "range"), shorten(rangeTexts(v.Holes)))
	}
	switch {
	case len(v.Damaged) > 0:
		line("result", "DAMAGED: %s cannot be read, everything else can: %s", counted(len(v.Damaged), "range"), shorten(rangeTexts(v.Damaged)))
		if !v.Refused {
			line("", "the next start sets their bytes aside, marks their messages as lost, and serves the rest")
		}
	case v.Headers > 0 && !v.Refused:
		line("result", "DAMAGED: the headers of %s, which the next start makes again; every record can be read", counted(v.Headers, "segment"))
	case v.Damage != "":
		line("result", "DAMAGED; whole below position %d", v.End)
	case v.TornBytes > 0 || v.TornSegments > 0:
		line("result", "whole; after its end there is a torn tail of %s and %s, which the next start cuts (a kill leaves that)", counted(v.TornBytes, "byte"), counted(v.TornSegments, "segment"))
	default:
		line("result", "whole, to the last byte")
	}
	if v.Refused {
		line("", "the broker does not start with it as it is")
	}
	b.WriteString("\n")
	if _, err := io.WriteString(w, b.String()); err != nil {
		return err
	}
	return printListing(w, output, l)
}

// shorten names the first and the last of many.
func shorten(s []string) string {
	const shown = 6
	if len(s) <= shown {
		return strings.Join(s, ", ")
	}
	return strings.Join(s[:shown/2], ", ") + ", ..., " + strings.Join(s[len(s)-shown/2:], ", ")
}
