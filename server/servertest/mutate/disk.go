package mutate

import (
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Disk is the least file system that a decoder of files needs: names and bytes, whose memory the next input uses again. Folders are there when they are
// asked for, syncs do nothing, and what a decoder of files has no use for panics. Safe for concurrent use.
type Disk struct {
	vfs.FS // nil
	mu     sync.Mutex
	files  map[string]*content
	spare  []*content
}

type content struct {
	disk *Disk
	b    []byte
}

// NewDisk returns an empty one.
func NewDisk() *Disk { return &Disk{files: map[string]*content{}} }

// Put makes a file of b, which is copied, in the place of any other.
func (d *Disk) Put(name string, b []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.createLocked(name)
	c.b = append(c.b, b...)
}

// Bytes are a file's until it is changed; nil if there is none.
func (d *Disk) Bytes(name string) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c := d.files[name]; c != nil {
		return c.b
	}
	return nil
}

// Clear removes all files. None of them may be open.
func (d *Disk) Clear() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name := range d.files {
		d.removeLocked(name)
	}
}

func (d *Disk) createLocked(name string) *content {
	d.removeLocked(name)
	c := &content{disk: d}
	if n := len(d.spare); n > 0 {
		c, d.spare = d.spare[n-1], d.spare[:n-1]
		c.b = c.b[:0]
	}
	d.files[name] = c
	return c
}

func (d *Disk) removeLocked(name string) {
	if c := d.files[name]; c != nil {
		d.spare = append(d.spare, c)
		delete(d.files, name)
	}
}

func notThere(op, name string) error { return &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist} }

func (d *Disk) Create(name string, _ vfs.DiskWriteCategory) (vfs.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return &file{c: d.createLocked(name), name: name}, nil
}

func (d *Disk) Open(name string, _ ...vfs.OpenOption) (vfs.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.files[name]
	if c == nil {
		return nil, notThere("open", name)
	}
	return &file{c: c, name: name}, nil
}

func (d *Disk) OpenReadWrite(name string, _ vfs.DiskWriteCategory, _ ...vfs.OpenOption) (vfs.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.files[name]
	if c == nil {
		c = d.createLocked(name)
	}
	return &file{c: c, name: name}, nil
}

func (d *Disk) OpenDir(name string) (vfs.File, error) { return &file{name: name}, nil }

func (d *Disk) Remove(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.files[name] == nil {
		return notThere("remove", name)
	}
	d.removeLocked(name)
	return nil
}

func (d *Disk) Rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.files[from]
	if c == nil {
		return notThere("rename", from)
	}
	delete(d.files, from)
	d.removeLocked(to)
	d.files[to] = c
	return nil
}

func (d *Disk) MkdirAll(string, fs.FileMode) error { return nil }

func (d *Disk) List(dir string) (names []string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name := range d.files {
		if below, ok := strings.CutPrefix(name, strings.TrimSuffix(dir, "/")+"/"); ok {
			below, _, _ = strings.Cut(below, "/")
			names = append(names, below)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

func (d *Disk) Stat(name string) (vfs.FileInfo, error) {
	f, err := d.Open(name)
	if err != nil {
		return nil, notThere("stat", name)
	}
	return f.Stat()
}

func (d *Disk) Lock(string) (io.Closer, error)                   { return &file{}, nil }
func (d *Disk) GetDiskUsage(string) (u vfs.DiskUsage, err error) { return u, nil }
func (d *Disk) PathBase(name string) string                      { return path.Base(name) }
func (d *Disk) PathJoin(part ...string) string                   { return path.Join(part...) }
func (d *Disk) PathDir(name string) string                       { return path.Dir(name) }
func (d *Disk) Unwrap() vfs.FS                                   { return nil }

// file is one that is open; without content a folder or a lock.
type file struct {
	c    *content
	name string
	at   int64
}

func (f *file) ReadAt(b []byte, at int64) (int, error) {
	f.c.disk.mu.Lock()
	defer f.c.disk.mu.Unlock()
	if at >= int64(len(f.c.b)) {
		return 0, io.EOF
	}
	n := copy(b, f.c.b[at:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (f *file) WriteAt(b []byte, at int64) (int, error) {
	f.c.disk.mu.Lock()
	defer f.c.disk.mu.Unlock()
	if end := int(at) + len(b); end > len(f.c.b) {
		was := len(f.c.b)
		f.c.b = slices.Grow(f.c.b, end-was)[:end]
		clear(f.c.b[was:]) // used before
	}
	return copy(f.c.b[at:], b), nil
}

func (f *file) Read(b []byte) (int, error) {
	n, err := f.ReadAt(b, f.at)
	f.at += int64(n)
	if n > 0 {
		err = nil
	}
	return n, err
}

func (f *file) Write(b []byte) (int, error) {
	n, err := f.WriteAt(b, f.at)
	f.at += int64(n)
	return n, err
}

func (f *file) Stat() (vfs.FileInfo, error) {
	f.c.disk.mu.Lock()
	defer f.c.disk.mu.Unlock()
	return &info{f.name, int64(len(f.c.b))}, nil
}

func (f *file) Close() error                      { return nil }
func (f *file) Sync() error                       { return nil }
func (f *file) SyncData() error                   { return nil }
func (f *file) SyncTo(int64) (bool, error)        { return true, nil }
func (f *file) Preallocate(off, n int64) error    { return nil }
func (f *file) Prefetch(off int64, n int64) error { return nil }
func (f *file) Fd() uintptr                       { return vfs.InvalidFd }

type info struct {
	name string
	size int64
}

func (i *info) Name() string               { return path.Base(i.name) }
func (i *info) Size() int64                { return i.size }
func (i *info) Mode() fs.FileMode          { return 0o644 }
func (i *info) ModTime() time.Time         { return time.Time{} }
func (i *info) IsDir() bool                { return false }
func (i *info) Sys() any                   { return nil }
func (i *info) DeviceID() (d vfs.DeviceID) { return d }
