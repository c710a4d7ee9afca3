// Package journaltest is what tests of files on a crashable disk share: one file system in memory that fails as told.
//
// FS wraps Pebble's MemFS, which models what was synced and what was not, and adds what that lacks:
//   - an error at any call, before the effect or after it, and a write of which only a part was done;
//   - a failed sync that loses the blocks: readers go on seeing them, a later sync of the file succeeds without them, and
//     a power loss shows that they never were on disk (what ext4, XFS and Btrfs do);
//   - no space beyond a number of bytes;
//   - directory changes that are durable at once, besides MemFS's, which are not until the directory is synced;
//   - a hook after each call, for a crash there, and the list of all calls that changed something.
//
// It is for tests only. Files are written with WriteAt (MemFS's Write inverts its argument under -race).
package journaltest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Call names a method of vfs.FS or vfs.File.
type Call string

const (
	Create   Call = "create"
	Open     Call = "open"
	OpenRW   Call = "openRW"
	OpenDir  Call = "openDir"
	Remove   Call = "remove"
	Rename   Call = "rename"
	Link     Call = "link"
	Mkdir    Call = "mkdir"
	List     Call = "list"
	Stat     Call = "stat"
	Lock     Call = "lock"
	Read     Call = "read"
	Write    Call = "write"
	Sync     Call = "sync"
	SyncData Call = "syncData"
	SyncDir  Call = "syncDir"
)

// Op is one call.
type Op struct {
	N      int // counted from 1 over all calls
	Call   Call
	Path   string
	To     string // of a rename or link
	Offset int64  // of a read or write
	Len    int
	Zeroes bool // of a write: only zeroes
}

// Changes reports whether the call changes what is on disk or will be.
func (o Op) Changes() bool {
	switch o.Call {
	case Create, Remove, Rename, Link, Mkdir, Write, Sync, SyncData, SyncDir:
		return true
	}
	return false
}

func (o Op) String() string {
	s := fmt.Sprintf("%s %s", o.Call, o.Path)
	switch o.Call {
	case Rename, Link:
		s += " " + o.To
	case Read, Write:
		s += fmt.Sprintf(" [%d,%d)", o.Offset, o.Offset+int64(o.Len))
		if o.Zeroes {
			s += " zeroes"
		}
	}
	return s
}

// Fault is what to do to a call. The zero Fault is nothing.
type Fault struct {
	Err error
	// After: the call is done, then Err is returned. Else it is not done.
	After bool
	// Short is how many bytes of a write are done before Err; a nil Err makes it a short write without an error.
	Short int
	// LoseBlocks, of a Sync or SyncData: what was not synced of the file never reaches the disk, while readers go on seeing it.
	LoseBlocks bool
}

func (f Fault) none() bool { return f.Err == nil && f.Short == 0 }

// ErrInjected is an error for faults.
var ErrInjected = errors.New("injected fault")

// FS is the file system. All calls are in one order; the hooks see that order and may call nothing of the FS but
// Crash.
type FS struct {
	// Before decides about each call; nil lets all pass. Set it while nobody uses the FS, or with SetBefore.
	before func(Op) Fault
	after  func(Op)
	eager  bool

	mem  *vfs.MemFS
	disk atomic.Pointer[vfs.MemFS] // what a power loss leaves, once a sync has lost blocks; nil before

	mu struct {
		sync.Mutex
		n     int
		ops   []Op
		nodes map[string]*node
		limit int64
		used  int64
	}
}

type node struct {
	path string // "" when removed
	size int64
}

var _ vfs.FS = (*FS)(nil)

// New returns an FS on mem, which must be crashable; nil is an empty one.
func New(mem *vfs.MemFS) *FS {
	if mem == nil {
		mem = vfs.NewCrashableMem()
	}
	f := &FS{mem: mem}
	f.mu.nodes = map[string]*node{}
	return f
}

// EagerDirs makes changes of names durable at once.
func (f *FS) EagerDirs() *FS { f.eager = true; return f }

// SetBefore sets the hook that decides about each call, nil for none.
func (f *FS) SetBefore(hook func(Op) Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before = hook
}

// SetAfter sets the hook that is called after each call that was done and has changed something.
func (f *FS) SetAfter(hook func(Op)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.after = hook
}

// SetLimit sets how many bytes all files may have together, 0 for any number. Only files made or opened for writing through
// this FS are counted.
func (f *FS) SetLimit(bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.limit = bytes
}

// Used is how many bytes the files have.
func (f *FS) Used() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.used
}

// Calls is the number of calls so far.
func (f *FS) Calls() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.n
}

// TakeOps returns the calls that changed something since the last TakeOps.
func (f *FS) TakeOps() []Op {
	f.mu.Lock()
	defer f.mu.Unlock()
	ops := f.mu.ops
	f.mu.ops = nil
	return ops
}

// Crash returns what a power loss at this moment leaves: percent of what was not synced, block by block, and of names.
func (f *FS) Crash(percent int, rng *rand.Rand) *vfs.MemFS {
	mem := f.disk.Load()
	if mem == nil {
		mem = f.mem
	}
	return mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
}

// Mem is the file system below, as readers see it.
func (f *FS) Mem() *vfs.MemFS { return f.mem }

// call runs do as the hooks say. f.mu is held meanwhile.
func (f *FS) call(op Op, do func(op Op) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.n++
	op.N = f.mu.n
	var fault Fault
	if f.before != nil {
		fault = f.before(op)
	}
	fail := func(err error) error {
		if err == nil {
			return nil
		}
		return &os.PathError{Op: string(op.Call), Path: op.Path, Err: err}
	}
	if !fault.none() && !fault.After {
		if fault.Short > 0 && op.Call == Write {
			op.Len = min(fault.Short, op.Len)
			if err := do(op); err != nil {
				return err
			}
			f.done(op)
			return fail(fault.Err)
		}
		if fault.LoseBlocks {
			f.loseBlocks(op.Path)
		}
		return fail(fault.Err)
	}
	if err := do(op); err != nil {
		return err
	}
	f.done(op)
	return fail(fault.Err)
}

func (f *FS) done(op Op) {
	if op.Changes() {
		f.mu.ops = append(f.mu.ops, op)
		if f.after != nil {
			f.after(op)
		}
	}
}

// loseBlocks parts the disk from what readers see: the file's content there is what was synced.
func (f *FS) loseBlocks(path string) {
	src := f.disk.Load()
	if src == nil {
		src = f.mem
	}
	synced := src.CrashClone(vfs.CrashCloneCfg{})
	disk := src.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
	now, err := ReadFile(disk, path)
	if err != nil {
		panic(err)
	}
	was, err := ReadFile(synced, path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		panic(err)
	}
	clear(now)
	copy(now, was)
	WriteFile(disk, path, now)
	f.disk.Store(disk)
}

// both runs do on what readers see and, once they differ, on the disk.
func (f *FS) both(do func(mem *vfs.MemFS) error) error {
	err := do(f.mem)
	if disk := f.disk.Load(); disk != nil && err == nil {
		if err := do(disk); err != nil {
			panic(fmt.Sprintf("disk and what readers see differ in names: %v", err))
		}
	}
	return err
}

// names makes changes of names in path's directory durable, if they are to be.
func (f *FS) names(path string) error {
	if !f.eager {
		return nil
	}
	return f.both(func(mem *vfs.MemFS) error { return syncDir(mem, mem.PathDir(path)) })
}

func syncDir(mem *vfs.MemFS, dir string) error {
	d, err := mem.OpenDir(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// node returns the node of path; a new one has the file's size.
func (f *FS) node(path string) *node {
	n := f.mu.nodes[path]
	if n == nil {
		n = &node{path: path}
		if info, err := f.mem.Stat(path); err == nil && !info.IsDir() {
			n.size = info.Size()
		}
		f.mu.used += n.size
		f.mu.nodes[path] = n
	}
	return n
}

func (f *FS) forget(path string) {
	if n := f.mu.nodes[path]; n != nil {
		f.mu.used -= n.size
		n.path = ""
		delete(f.mu.nodes, path)
	}
}

// Create implements vfs.FS.
func (f *FS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	var file vfs.File
	var n *node
	err := f.call(Op{Call: Create, Path: name}, func(Op) (err error) {
		if file, err = f.mem.Create(name, c); err != nil {
			return err
		}
		f.forget(name)
		n = f.node(name)
		if disk := f.disk.Load(); disk != nil {
			d, err := disk.Create(name, c)
			if err != nil {
				return err
			}
			_ = d.Close()
		}
		return f.names(name)
	})
	return f.file(file, n, err)
}

// file returns the wrapped file, or closes it if the call failed.
func (f *FS) file(file vfs.File, n *node, err error) (vfs.File, error) {
	if err != nil {
		if file != nil {
			_ = file.Close()
		}
		return nil, err
	}
	return &wrapped{File: file, fs: f, node: n}, nil
}

// Open implements vfs.FS.
func (f *FS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	var file vfs.File
	var n *node
	err := f.call(Op{Call: Open, Path: name}, func(Op) (err error) {
		if file, err = f.mem.Open(name); err == nil {
			n = f.node(name)
		}
		return err
	})
	return f.file(file, n, err)
}

// OpenReadWrite implements vfs.FS. A file that it makes is a Create in the list of calls.
func (f *FS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	if _, err := f.mem.Stat(name); errors.Is(err, fs.ErrNotExist) {
		return f.Create(name, c)
	}
	var file vfs.File
	var n *node
	err := f.call(Op{Call: OpenRW, Path: name}, func(Op) (err error) {
		if file, err = f.mem.OpenReadWrite(name, c); err == nil {
			n = f.node(name)
		}
		return err
	})
	return f.file(file, n, err)
}

// OpenDir implements vfs.FS.
func (f *FS) OpenDir(name string) (vfs.File, error) {
	var file vfs.File
	err := f.call(Op{Call: OpenDir, Path: name}, func(Op) (err error) {
		file, err = f.mem.OpenDir(name)
		return err
	})
	if err != nil {
		if file != nil {
			_ = file.Close()
		}
		return nil, err
	}
	return &wrapped{File: file, fs: f, node: &node{path: name}, dir: true}, nil
}

// Remove implements vfs.FS.
func (f *FS) Remove(name string) error {
	return f.call(Op{Call: Remove, Path: name}, func(Op) error {
		if err := f.both(func(mem *vfs.MemFS) error { return mem.Remove(name) }); err != nil {
			return err
		}
		f.forget(name)
		return f.names(name)
	})
}

// RemoveAll implements vfs.FS; it is not for files that are open.
func (f *FS) RemoveAll(name string) error {
	return f.call(Op{Call: Remove, Path: name}, func(Op) error {
		return f.both(func(mem *vfs.MemFS) error { return mem.RemoveAll(name) })
	})
}

// Rename implements vfs.FS.
func (f *FS) Rename(from, to string) error {
	return f.call(Op{Call: Rename, Path: from, To: to}, func(Op) error {
		n := f.node(from)
		if err := f.both(func(mem *vfs.MemFS) error { return mem.Rename(from, to) }); err != nil {
			return err
		}
		if from != to {
			f.forget(to)
			delete(f.mu.nodes, from)
			n.path = to
			f.mu.nodes[to] = n
		}
		return f.names(to)
	})
}

// Link implements vfs.FS.
func (f *FS) Link(from, to string) error {
	return f.call(Op{Call: Link, Path: from, To: to}, func(Op) error {
		if err := f.both(func(mem *vfs.MemFS) error { return mem.Link(from, to) }); err != nil {
			return err
		}
		return f.names(to)
	})
}

// ReuseForWrite implements vfs.FS.
func (f *FS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := f.Rename(from, to); err != nil {
		return nil, err
	}
	return f.OpenReadWrite(to, c)
}

// MkdirAll implements vfs.FS.
func (f *FS) MkdirAll(dir string, perm os.FileMode) error {
	return f.call(Op{Call: Mkdir, Path: dir}, func(Op) error {
		if err := f.both(func(mem *vfs.MemFS) error { return mem.MkdirAll(dir, perm) }); err != nil {
			return err
		}
		return f.names(dir)
	})
}

// Lock implements vfs.FS.
func (f *FS) Lock(name string) (io.Closer, error) {
	var lock io.Closer
	err := f.call(Op{Call: Lock, Path: name}, func(Op) (err error) {
		lock, err = f.mem.Lock(name)
		return err
	})
	if err != nil {
		if lock != nil {
			_ = lock.Close()
		}
		return nil, err
	}
	return lock, nil
}

// List implements vfs.FS.
func (f *FS) List(dir string) (names []string, err error) {
	err = f.call(Op{Call: List, Path: dir}, func(Op) (err error) {
		names, err = f.mem.List(dir)
		return err
	})
	return names, err
}

// Stat implements vfs.FS.
func (f *FS) Stat(name string) (info vfs.FileInfo, err error) {
	err = f.call(Op{Call: Stat, Path: name}, func(Op) (err error) {
		info, err = f.mem.Stat(name)
		return err
	})
	return info, err
}

// PathBase implements vfs.FS.
func (f *FS) PathBase(path string) string { return f.mem.PathBase(path) }

// PathJoin implements vfs.FS.
func (f *FS) PathJoin(elem ...string) string { return f.mem.PathJoin(elem...) }

// PathDir implements vfs.FS.
func (f *FS) PathDir(path string) string { return f.mem.PathDir(path) }

// GetDiskUsage implements vfs.FS: from the limit, if there is one.
func (f *FS) GetDiskUsage(path string) (vfs.DiskUsage, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.limit == 0 {
		return f.mem.GetDiskUsage(path)
	}
	total, used := uint64(f.mu.limit), uint64(f.mu.used)
	return vfs.DiskUsage{TotalBytes: total, UsedBytes: used, AvailBytes: total - min(used, total)}, nil
}

// Unwrap implements vfs.FS.
func (f *FS) Unwrap() vfs.FS { return f.mem }

type wrapped struct {
	vfs.File
	fs   *FS
	node *node
	dir  bool
	pos  int64
}

func (w *wrapped) path() string {
	w.fs.mu.Lock()
	defer w.fs.mu.Unlock()
	return w.node.path
}

func (w *wrapped) ReadAt(b []byte, off int64) (n int, err error) {
	err = w.fs.call(Op{Call: Read, Path: w.path(), Offset: off, Len: len(b)}, func(Op) error {
		var e error
		n, e = w.File.ReadAt(b, off)
		if e == io.EOF {
			return nil
		}
		return e
	})
	if err == nil && n < len(b) {
		err = io.EOF
	}
	return n, err
}

func (w *wrapped) Read(b []byte) (n int, err error) {
	n, err = w.ReadAt(b, w.pos)
	w.pos += int64(n)
	if n > 0 && err == io.EOF {
		err = nil
	}
	return n, err
}

func (w *wrapped) Write(b []byte) (int, error) {
	n, err := w.WriteAt(b, w.pos)
	w.pos += int64(n)
	return n, err
}

func (w *wrapped) WriteAt(b []byte, off int64) (n int, err error) {
	op := Op{Call: Write, Path: w.path(), Offset: off, Len: len(b), Zeroes: zero(b)}
	err = w.fs.call(op, func(op Op) error {
		f := w.fs
		grow := max(0, off+int64(op.Len)-w.node.size)
		if f.mu.limit > 0 && grow > 0 && f.mu.used+grow > f.mu.limit {
			return &os.PathError{Op: "write", Path: op.Path, Err: syscall.ENOSPC}
		}
		if n, err = w.File.WriteAt(b[:op.Len], off); err != nil {
			return err
		}
		if w.node.path == "" {
			return nil
		}
		w.node.size += grow
		f.mu.used += grow
		return w.onDisk(func(d vfs.File) error {
			_, err := d.WriteAt(b[:op.Len], off)
			return err
		})
	})
	return n, err
}

// onDisk runs do on the file of the disk, once that differs from what readers see.
func (w *wrapped) onDisk(do func(vfs.File) error) error {
	disk := w.fs.disk.Load()
	if disk == nil || w.node.path == "" {
		return nil
	}
	var d vfs.File
	var err error
	if w.dir {
		d, err = disk.OpenDir(w.node.path)
	} else {
		d, err = disk.OpenReadWrite(w.node.path, vfs.WriteCategoryUnspecified)
	}
	if err != nil {
		return err
	}
	defer d.Close()
	return do(d)
}

func (w *wrapped) Sync() error     { return w.sync(Sync) }
func (w *wrapped) SyncData() error { return w.sync(SyncData) }

func (w *wrapped) sync(c Call) error {
	if w.dir {
		c = SyncDir
	}
	return w.fs.call(Op{Call: c, Path: w.path()}, func(Op) error {
		if w.fs.disk.Load() != nil {
			return w.onDisk(vfs.File.Sync)
		}
		return w.File.Sync()
	})
}

func (w *wrapped) SyncTo(int64) (bool, error) { panic("SyncTo promises nothing") }

func zero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return len(b) > 0
}

// ReadFile returns the file's bytes.
func ReadFile(fsys vfs.FS, path string) ([]byte, error) {
	f, err := fsys.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	b := make([]byte, info.Size())
	if _, err := f.ReadAt(b, 0); err != nil && err != io.EOF {
		return nil, err
	}
	return b, nil
}

// WriteFile makes the file anew with these bytes, synced, and its name too. It panics when that fails.
func WriteFile(mem vfs.FS, path string, b []byte) {
	f, err := mem.Create(path, vfs.WriteCategoryUnspecified)
	if err == nil && len(b) > 0 {
		_, err = f.WriteAt(b, 0)
	}
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = f.Close()
	}
	var d vfs.File
	if err == nil {
		d, err = mem.OpenDir(mem.PathDir(path))
	}
	if err == nil {
		err = d.Sync()
		_ = d.Close()
	}
	if err != nil {
		panic(err)
	}
}

// Files returns the bytes of all files in dir and below, by the path from there. Of a store that is open, a file that goes or gets another
// name meanwhile may be left out.
func Files(fsys vfs.FS, dir string) map[string][]byte {
	names, err := fsys.List(dir)
	if err != nil {
		panic(err)
	}
	files := map[string][]byte{}
	for _, name := range names {
		path := fsys.PathJoin(dir, name)
		info, err := fsys.Stat(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			panic(err)
		}
		if info.IsDir() {
			for below, b := range Files(fsys, path) {
				files[name+"/"+below] = b
			}
			continue
		}
		b, err := ReadFile(fsys, path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			panic(err)
		}
		files[name] = b
	}
	return files
}

// Disk returns a crashable file system with these files in dir, all synced.
func Disk(dir string, files map[string][]byte) *vfs.MemFS {
	mem := vfs.NewCrashableMem()
	if err := mem.MkdirAll(dir, 0o755); err != nil {
		panic(err)
	}
	for d := dir; ; d = mem.PathDir(d) {
		if err := syncDir(mem, mem.PathDir(d)); err != nil {
			panic(err)
		}
		if mem.PathDir(d) == d {
			break
		}
	}
	for name, b := range files {
		if below := mem.PathDir(mem.PathJoin(dir, name)); below != dir {
			if err := mem.MkdirAll(below, 0o755); err != nil {
				panic(err)
			}
			if err := syncDir(mem, dir); err != nil {
				panic(err)
			}
		}
		WriteFile(mem, mem.PathJoin(dir, name), b)
	}
	return mem
}
