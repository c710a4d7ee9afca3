package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/server/store/local"
)

func indexCommand() *cobra.Command {
	index := &cobra.Command{Use: "index", Short: "Make a stopped broker's index again"}
	index.AddCommand(indexRebuildCommand())
	return index
}

// rebuildResult is the stable form of what a rebuild made.
type rebuildResult struct {
	Folder     string  `json:"folder"`
	Topics     int     `json:"topics"`
	Partitions int     `json:"partitions"`
	Messages   uint64  `json:"messages"` // that are kept
	Files      int     `json:"files"`
	Bytes      int64   `json:"bytes"`
	Seconds    float64 `json:"seconds"`
}

func indexRebuildCommand() *cobra.Command {
	var folders stoppedFolder
	var index, output string
	var quiet bool
	cmd := &cobra.Command{
		Use: "rebuild FOLDER", Short: "Make the index of a stopped broker's folder again, from its journal", Args: cobra.ExactArgs(1),
		Long: `Make the index of a data folder again, from its journal. The index is derived: nothing is lost by it, and a broker does the same by itself
with a part of the index that is damaged or missing. The broker of the folder must be stopped.

The files of before stay beside the index's folder, under its name with ".before", until the new ones are whole. After Ctrl-C start it again, or
the broker: both go on by themselves.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			journal, release, err := folders.open(args[0])
			if err != nil {
				return err
			}
			if index == "" {
				index = filepath.Join(args[0], "index")
			}
			before, err := setIndexAside(index)
			release() // the store takes the lock itself
			if err != nil {
				return fmt.Errorf("%w; start it again, or the broker: what is missing of the index is made again", err)
			}
			return rebuildIndex(cmd, args[0], journal, index, before, output, quiet)
		},
	}
	folders.flags(cmd.Flags())
	cmd.Flags().StringVar(&index, "index", "", "the index's folder, where broker.index.folder names one (default: index in FOLDER)")
	outputFlag(cmd, &output)
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "no progress")
	return cmd
}

// setIndexAside moves the files of an index to a folder beside it, whose name it returns.
func setIndexAside(index string) (before string, err error) {
	before = filepath.Clean(index) + ".before"
	files, err := os.ReadDir(index)
	if errors.Is(err, os.ErrNotExist) {
		return before, nil
	}
	if err == nil {
		err = os.MkdirAll(before, 0o755)
	}
	if err != nil {
		return "", fmt.Errorf("set the index aside: %w", err)
	}
	for _, f := range files {
		if !f.Type().IsRegular() {
			continue
		}
		if err := os.Rename(filepath.Join(index, f.Name()), filepath.Join(before, f.Name())); err != nil {
			return "", fmt.Errorf("set the index aside: %w", err)
		}
	}
	return before, nil
}

func rebuildIndex(cmd *cobra.Command, folder, journal, index, before, output string, quiet bool) error {
	begin := time.Now()
	bar := newProgress(cmd.ErrOrStderr(), "rebuild", true, quiet)
	defer bar.close()
	type answer struct {
		result rebuildResult
		err    error
	}
	done := make(chan answer, 1)
	go func() { // Ctrl-C leaves it behind: ending in the middle is a kill, which stores survive
		r := rebuildResult{Folder: absolute(index)}
		s, err := local.Open(local.Options{
			Dir: folder, JournalDir: journal, IndexDir: index, Tables: []store.Table{offset.NewTable()}, Progress: bar.set,
			SegmentBytesMax: segmentBytes(journal),
		})
		if err == nil {
			err = errors.Join(count(s, &r), s.Close())
		}
		done <- answer{r, err}
	}()
	var a answer
	select {
	case a = <-done:
	case <-cmd.Context().Done():
		return &codedError{exitInterrupted, errors.New("stopped before the end; start it again, or the broker: both go on by themselves")}
	}
	bar.close()
	if a.err != nil {
		return fmt.Errorf("rebuild the index: %w; the files of before are in %s", a.err, before)
	}
	r := a.result
	files, err := os.ReadDir(index)
	if err != nil {
		return err
	}
	for _, f := range files {
		if info, err := f.Info(); err == nil && f.Type().IsRegular() {
			r.Files++
			r.Bytes += info.Size()
		}
	}
	if err := os.RemoveAll(before); err != nil {
		return fmt.Errorf("the index is made, but what was before stays in %s: %w", before, err)
	}
	r.Seconds = time.Since(begin).Seconds()
	size := any(r.Bytes)
	if output == "table" {
		size = formatSize(r.Bytes)
	}
	return printListing(cmd.OutOrStdout(), output, listing{
		header: []string{"folder", "topics", "partitions", "messages", "files", "bytes", "seconds"},
		rows:   [][]any{{r.Folder, r.Topics, r.Partitions, r.Messages, r.Files, size, fmt.Sprintf("%.1f", r.Seconds)}},
		data:   r,
	})
}

// segmentBytes is the size of the largest segment of a journal, so that the store that is opened here makes no larger ones than its
// broker; 0: there is none.
func segmentBytes(journal string) int64 {
	names, err := filepath.Glob(filepath.Join(journal, "*.journal"))
	if err != nil {
		return 0 // what it costs is a segment of the usual size
	}
	most := int64(0)
	for _, name := range names {
		if info, err := os.Stat(name); err == nil {
			most = max(most, info.Size()&^4095)
		}
	}
	return most
}

// count says what the store keeps.
func count(s *local.Store, r *rebuildResult) error {
	for _, t := range s.Topics() {
		r.Topics++
		for p := range t.Partitions {
			first, end, err := s.Bounds(store.Partition{Topic: t.ID, Incarnation: t.Incarnation, Partition: uint16(p)})
			if err != nil {
				return err
			}
			r.Partitions++
			r.Messages += uint64(end - first)
		}
	}
	return nil
}
