package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// benchDisk measures what the disk alone can do: one writer that writes the bytes of all producers at once, into blocks
// that were written before, and syncs; no network.
func benchDisk(ctx context.Context, o benchOptions) (benchResult, error) {
	const fileBytes = 256 << 20
	fs := vfs.Default
	name := filepath.Join(o.data, "disk")
	f, err := fs.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return benchResult{}, fmt.Errorf("create %s: %w", name, err)
	}
	defer f.Close()
	zero := make([]byte, 1<<20)
	for at := int64(0); at < fileBytes; at += int64(len(zero)) {
		if _, err := f.WriteAt(zero, at); err != nil {
			return benchResult{}, fmt.Errorf("fill %s: %w", name, err)
		}
	}
	if err := f.Sync(); err != nil {
		return benchResult{}, fmt.Errorf("sync %s: %w", name, err)
	}
	buf := make([]byte, o.producers*o.batch*o.size)
	if len(buf) > fileBytes {
		return benchResult{}, fmt.Errorf("%d producers x %d messages x %d bytes are more than the %d MiB of the test file: use fewer", o.producers, o.batch, o.size, fileBytes>>20)
	}
	for i := range buf {
		buf[i] = byte(rand.Uint32())
	}
	var at int64
	r, err := load{workers: 1, warmUp: o.warmUp, duration: o.duration, progress: o.progress}.run(ctx, func(int) call {
		return func(context.Context) (int, error) {
			if at+int64(len(buf)) > fileBytes {
				at = 0
			}
			if _, err := f.WriteAt(buf, at); err != nil {
				return 0, err
			}
			at += int64(len(buf))
			if err := f.SyncData(); err != nil {
				return 0, err
			}
			return o.producers * o.batch, nil
		}
	}, func(bool) {})
	if err != nil {
		return benchResult{}, err
	}
	return o.result("disk", r, serverUse{syncs: r.latency.TotalCount()}), nil
}
