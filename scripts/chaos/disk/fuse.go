package disk

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
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

// serving marks a process that is to serve a medium of so many bytes on descriptor 3. It is told what to do by lines, and answers each with one.
const serving = "CHAOS_SERVE"

// ServeIfAsked is what programs that make volatile disks call first: a disk is served by a process of its own, which outlives who uses it until its
// file system is unmounted, and stands in no mount namespace that has it. One that served itself, killed, would wait for ever for its own answers: the
// kernel unmounts before it closes the descriptor.
func ServeIfAsked() {
	bytes, err := strconv.ParseInt(os.Getenv(serving), 10, 64)
	if err != nil {
		return
	}
	signal.Ignore(os.Interrupt, syscall.SIGTERM) // they are for who uses it
	m := newMedium(bytes)
	s, err := fs.Mount("/dev/fd/3", &folder{m: m}, &fs.Options{MountOptions: fuse.MountOptions{MaxWrite: 1 << 20}})
	if err != nil {
		fmt.Fprintln(os.Stderr, "serve a disk:", err)
		os.Exit(1)
	}
	go func() { // ends with the process
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); fmt.Println("done") {
			var what string
			var n int64
			_, _ = fmt.Sscan(lines.Text(), &what, &n) // our own
			switch what {
			case "off":
				m.powerOff(rand.New(rand.NewPCG(uint64(n), 1)))
			case "on":
				m.powerOn()
			case "slow":
				m.slow.Store(n)
			case "fail":
				m.fails.Store(n != 0)
			}
		}
		// Who uses it has ended, and what it had mounted is being unmounted. What takes longer than that is left without a disk.
		m.slow.Store(0)
		time.Sleep(10 * time.Second)
		os.Exit(0)
	}()
	s.Wait() // for the end of the mount
	os.Exit(0)
}

// server is the process that serves a medium.
type server struct {
	cmd  *exec.Cmd
	tell io.WriteCloser
	says *bufio.Reader
}

// serve has a medium be the file imageName in dir, of the calling thread's mount namespace.
func serve(dir string, bytes int64) (*server, error) {
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: FUSE: %w", ErrMissing, err)
	}
	defer f.Close() // the process has it
	if err := unix.Mount("jmq-chaos", dir, "fuse.jmq", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", f.Fd())); err != nil {
		return nil, fmt.Errorf("%w: FUSE: %w", ErrMissing, err)
	}
	s := &server{cmd: exec.Command("/proc/self/exe")}
	s.cmd.Env, s.cmd.ExtraFiles, s.cmd.Stderr = append(os.Environ(), fmt.Sprintf("%s=%d", serving, bytes)), []*os.File{f}, os.Stderr
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if s.tell, err = s.cmd.StdinPipe(); err == nil {
		var out io.Reader
		if out, err = s.cmd.StdoutPipe(); err == nil {
			s.says = bufio.NewReader(out)
			err = onThread(func() error { return errors.Join(leave(), s.cmd.Start()) })
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("serve a disk: %w", err), unix.Unmount(dir, 0))
	}
	return s, nil
}

// onThread calls f on a thread of its own, which ends with it.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		done <- f()
	}()
	return <-done
}

// leave moves the calling thread to the mount namespace that was before ours, where no disk of ours is mounted.
func leave() error {
	f := before.Load()
	if f == nil {
		return errors.New("a volatile disk needs a mount namespace of its own: EnterMounts")
	}
	return errors.Join(unix.Unshare(unix.CLONE_FS), unix.Setns(int(f.Fd()), unix.CLONE_NEWNS))
}

// do has the medium do something, and returns when it is done.
func (s *server) do(what string, n int64) error {
	if _, err := fmt.Fprintln(s.tell, what, n); err != nil {
		return err
	}
	_, err := s.says.ReadString('\n')
	return err
}

// close waits for the end of the process; the medium is unmounted.
func (s *server) close() error {
	return errors.Join(s.tell.Close(), s.cmd.Wait())
}
