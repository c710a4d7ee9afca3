package replicatest

import (
	"errors"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// ErrDead is what a disk says whose process was killed.
var ErrDead = errors.New("replicatest: the process of this disk is dead")

// Disk is a crashable file system in memory whose syncs can be made slow, or fail.
type Disk struct {
	vfs.FS
	mem *vfs.MemFS

	slow   atomic.Int64
	writes atomic.Int64 // how much longer each takes
	fail   atomic.Bool
	dead   atomic.Bool
}

// NewDisk returns an empty disk.
func NewDisk() *Disk { return diskOf(vfs.NewCrashableMem()) }

func diskOf(mem *vfs.MemFS) *Disk {
	mem.TestingSetDiskUsage(vfs.DiskUsage{TotalBytes: 1 << 40, AvailBytes: 1 << 40})
	return &Disk{FS: mem, mem: mem}
}

// Slow makes every sync of a segment take so much longer.
func (d *Disk) Slow(by time.Duration) { d.slow.Store(int64(by)) }

// SlowWrites makes every write to a segment take so much longer.
func (d *Disk) SlowWrites(by time.Duration) { d.writes.Store(int64(by)) }

// FailSyncs makes every sync of a file fail.
func (d *Disk) FailSyncs(fail bool) { d.fail.Store(fail) }

// Crash ends the disk for who has it open, and returns what is left: percent of what was not synced, block by block.
func (d *Disk) Crash(percent int, rng *rand.Rand) *Disk {
	d.dead.Store(true)
	return diskOf(d.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng}))
}

// Image returns a copy of the disk as it is.
func (d *Disk) Image() *Disk {
	return diskOf(d.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))}))
}

func (d *Disk) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return d.file(name)(d.FS.Create(name, c))
}

func (d *Disk) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return d.file(name)(d.FS.OpenReadWrite(name, c, opts...))
}

func (d *Disk) OpenDir(name string) (vfs.File, error) { return d.file(name)(d.FS.OpenDir(name)) }

func (d *Disk) Rename(from, to string) error {
	if d.dead.Load() {
		return ErrDead
	}
	return d.FS.Rename(from, to)
}

func (d *Disk) Remove(name string) error {
	if d.dead.Load() {
		return ErrDead
	}
	return d.FS.Remove(name)
}

func (d *Disk) file(name string) func(vfs.File, error) (vfs.File, error) {
	return func(f vfs.File, err error) (vfs.File, error) {
		if err != nil {
			return nil, err
		}
		if d.dead.Load() {
			_ = f.Close()
			return nil, ErrDead
		}
		return &file{f, d, strings.HasSuffix(name, ".journal") || strings.HasSuffix(name, ".filling")}, nil
	}
}

type file struct {
	vfs.File
	disk    *Disk
	segment bool
}

func (f *file) WriteAt(b []byte, off int64) (int, error) {
	if f.segment {
		time.Sleep(time.Duration(f.disk.writes.Load()))
	}
	if f.disk.dead.Load() {
		return 0, ErrDead
	}
	return f.File.WriteAt(b, off)
}

func (f *file) sync(do func() error) error {
	if f.segment {
		time.Sleep(time.Duration(f.disk.slow.Load()))
	}
	switch {
	case f.disk.dead.Load():
		return ErrDead
	case f.disk.fail.Load():
		return errors.New("replicatest: the sync failed")
	}
	return do()
}

func (f *file) Sync() error     { return f.sync(f.File.Sync) }
func (f *file) SyncData() error { return f.sync(f.File.SyncData) }
