package disk

import (
	"context"
	"fmt"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// imageName is the one file that a medium is served as.
const imageName = "disk"

// image serves a medium as a file. It has no state of its own.
type image struct {
	fs.Inode
	m *medium
}

func (i *image) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode, out.Size = syscall.S_IFREG|0o600, uint64(i.m.bytes)
	return 0
}

func (i *image) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, fuse.FOPEN_DIRECT_IO, 0
}

func (i *image) Read(_ context.Context, _ fs.FileHandle, p []byte, at int64) (fuse.ReadResult, syscall.Errno) {
	n, errno := i.m.readAt(p, at)
	return fuse.ReadResultData(p[:n]), errno
}

func (i *image) Write(_ context.Context, _ fs.FileHandle, p []byte, at int64) (uint32, syscall.Errno) {
	n, errno := i.m.writeAt(p, at)
	return uint32(n), errno
}

func (i *image) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno { return i.m.flush() }

type folder struct {
	fs.Inode
	m *medium
}

func (f *folder) OnAdd(ctx context.Context) {
	f.AddChild(imageName, f.NewPersistentInode(ctx, &image{m: f.m}, fs.StableAttr{Mode: syscall.S_IFREG, Ino: 2}), false)
}

// serve makes the medium the file imageName in dir.
func (m *medium) serve(dir string) (*fuse.Server, error) {
	s, err := fs.Mount(dir, &folder{m: m}, &fs.Options{MountOptions: fuse.MountOptions{DirectMountStrict: true, MaxWrite: 1 << 20, FsName: "jmq-chaos", Name: "jmq"}})
	if err != nil {
		return nil, fmt.Errorf("%w: FUSE: %w", ErrMissing, err)
	}
	return s, nil
}
