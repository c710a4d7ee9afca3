package main

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/jmqio/jmq/client"
)

// retain is what RETAIN=1 adds to the demo: the broker has small segments and a limit for its folder that is a part of what
// is sent, and the folder's size is measured all the time.
type retain struct {
	segment int64 // bytes of a segment
	limit   int64 // broker.store.bytesMax
	padding int   // bytes added to each order, so that all of them are several times the limit

	most     atomic.Int64 // seen of the folder
	measured atomic.Int64 // how often
}

const (
	retainEvery   = 20 * time.Millisecond // a pass of the broker's retention
	headerPadding = "padding"
)

func newRetain(small bool) *retain {
	if small {
		return &retain{segment: 256 << 10, limit: 12 << 20, padding: 4 << 10}
	}
	return &retain{segment: 512 << 10, limit: 32 << 20, padding: 1 << 10}
}

// flags are the broker's.
func (r *retain) flags() []string {
	return []string{
		"--broker.journal.segmentBytesMax", strconv.FormatInt(r.segment, 10),
		"--broker.store.bytesMax", strconv.FormatInt(r.limit, 10),
		"--broker.store.checkpointBytes", strconv.FormatInt(r.segment, 10),
		"--broker.retention.every", retainEvery.String(),
	}
}

// pad is a header that nobody reads.
func (r *retain) pad() client.Header {
	return client.Header{Key: headerPadding, Value: strings.Repeat(".", r.padding)}
}

// watch measures the folder until ctx ends.
func (r *retain) watch(ctx context.Context, folder string) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		n, err := folderBytes(folder)
		if err != nil {
			return fmt.Errorf("measure the folder: %w", err)
		}
		r.most.Store(max(r.most.Load(), n))
		r.measured.Add(1)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// folderBytes is what all files of a folder take together; one that goes meanwhile counts nothing.
func folderBytes(folder string) (int64, error) {
	sum := int64(0)
	err := filepath.WalkDir(folder, func(_ string, d fs.DirEntry, err error) error {
		var info fs.FileInfo
		if err == nil && d.Type().IsRegular() {
			if info, err = d.Info(); err == nil {
				sum += info.Size()
			}
		}
		if os.IsNotExist(err) {
			return nil
		}
		return err
	})
	return sum, err
}

// judge prints the folder's line to out, and returns what is wrong.
func (r *retain) judge(out io.Writer, sent int) []string {
	fmt.Fprintf(out, "folder %d of %d\n", r.most.Load(), r.limit)
	bodies := int64(sent) * int64(r.padding)
	fmt.Fprintf(os.Stderr, "over %s were sent through a folder that may hold %s; it was measured %d times, most was %s\n",
		humanize.IBytes(uint64(bodies)), humanize.IBytes(uint64(r.limit)), r.measured.Load(), humanize.IBytes(uint64(r.most.Load())))
	if r.most.Load() > r.limit {
		return []string{fmt.Sprintf("the folder held %d bytes, its limit is %d", r.most.Load(), r.limit)}
	}
	return nil
}
