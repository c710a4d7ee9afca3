// Package disk makes file systems on disks whose power can fail, that can be full, slow or broken.
//
//	Plain     ext4 or xfs on a loop device over memory. A loss of power stops the file system without flushing its journal (the "going down" ioctl):
//	          what it had not given to the disk is gone.
//	Volatile  ext4 on a loop device over a file that a process serves by FUSE: a disk with a cache. A loss of power also takes what was
//	          not flushed, any part of it.
//
// It takes root. EnterMounts gives the process a mount namespace of its own first: then nothing is left of all this when it ends, however it does.
package disk

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrMissing: this machine, or this user, cannot have such disks; the text says what is missing.
var ErrMissing = errors.New("disk: no disks of our own here")

// Options of a disk.
type Options struct {
	Mount    string // folder at which the file system is
	XFS      bool   // else ext4
	Volatile bool
	Bytes    int64 // 0: 96 MiB; xfs has at least 320
}

// Disk is for use by one goroutine.
type Disk struct {
	o      Options
	memory *os.File // of a plain disk
	server *server  // of a volatile one
	served string   // folder in which it is a file

	loop    *os.File // its device; nil: none
	mounted bool
}

// New makes a disk with an empty file system, mounted.
func New(o Options) (*Disk, error) {
	if o.Bytes == 0 {
		o.Bytes = 96 << 20
	}
	if o.XFS {
		o.Bytes = max(o.Bytes, 320<<20)
	}
	d := &Disk{o: o}
	err := d.make()
	if err == nil {
		err = d.attach()
	}
	if err == nil {
		err = d.format()
	}
	if err == nil {
		err = d.mount()
	}
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// make makes what the loop device is over.
func (d *Disk) make() error {
	if err := os.MkdirAll(d.o.Mount, 0o700); err != nil {
		return err
	}
	if !d.o.Volatile {
		fd, err := unix.MemfdCreate("jmq-chaos", unix.MFD_CLOEXEC)
		if err != nil {
			return fmt.Errorf("%w: memfd: %w", ErrMissing, err)
		}
		d.memory = os.NewFile(uintptr(fd), "memory")
		return d.memory.Truncate(d.o.Bytes)
	}
	served := d.o.Mount + ".fuse"
	if err := os.MkdirAll(served, 0o700); err != nil {
		return err
	}
	var err error
	if d.server, err = serve(served, d.o.Bytes); err == nil {
		d.served = served
	}
	return err
}

// attach gives it a loop device. Another process may take the one that is free: then it is tried again.
func (d *Disk) attach() error {
	backing := d.memory
	if d.server != nil {
		f, err := os.OpenFile(filepath.Join(d.served, imageName), os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer f.Close() // the device holds it
		backing = f
	}
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrMissing, err)
	}
	defer control.Close()
	for try := 0; ; try++ {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return fmt.Errorf("%w: a free loop device: %w", ErrMissing, err)
		}
		f, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDWR, 0)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrMissing, err)
		}
		c := unix.LoopConfig{Fd: uint32(backing.Fd()), Size: blockBytes, Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}}
		err = unix.IoctlLoopConfigure(int(f.Fd()), &c)
		runtime.KeepAlive(backing)
		if err == nil {
			d.loop = f
			return nil
		}
		f.Close()
		if try == 20 || !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("configure /dev/loop%d: %w", n, err)
		}
	}
}

// detach takes the loop device away, and with it what the system remembers of it.
func (d *Disk) detach() error {
	if d.loop == nil {
		return nil
	}
	_ = unix.IoctlSetInt(int(d.loop.Fd()), unix.LOOP_CLR_FD, 0) // it goes with the last who has it open in any case
	err := d.loop.Close()
	d.loop = nil
	return err
}

func (d *Disk) format() error {
	args := []string{"mkfs.ext4", "-q", "-F", "-b", "4096", "-m", "0", "-E", "nodiscard", "-J", "size=4", d.loop.Name()}
	if d.o.XFS {
		args = []string{"mkfs.xfs", "-q", "-f", "-K", d.loop.Name()}
	}
	return run(args...)
}

func (d *Disk) mount() error {
	fs := "ext4"
	if d.o.XFS {
		fs = "xfs"
	}
	if err := unix.Mount(d.loop.Name(), d.o.Mount, fs, 0, ""); err != nil {
		if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EPERM) {
			return fmt.Errorf("%w: mount %s: %w", ErrMissing, fs, err)
		}
		return fmt.Errorf("mount %s at %s: %w", fs, d.o.Mount, err)
	}
	d.mounted = true
	return nil
}

// unmount waits for who still has it open, a process that was killed a moment ago, and until the file system is really gone: namespaces of ended
// processes are taken away later.
func (d *Disk) unmount() error {
	for try := 0; d.mounted; try++ {
		err := unix.Unmount(d.o.Mount, 0)
		switch {
		case err == nil:
			d.mounted = false
		case !errors.Is(err, unix.EBUSY) || try == 200:
			return fmt.Errorf("unmount %s: %w", d.o.Mount, err)
		default:
			time.Sleep(10 * time.Millisecond)
		}
	}
	for try := 0; d.loop != nil; try++ {
		f, err := os.OpenFile(d.loop.Name(), os.O_RDONLY|unix.O_EXCL, 0) // no file system has it any more
		if err == nil {
			return f.Close()
		}
		if !errors.Is(err, unix.EBUSY) || try == 1000 {
			return fmt.Errorf("after the end of %s: %w", d.o.Mount, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
	return nil
}

// PowerOff takes its power. From now on nothing reaches it, and who uses it gets errors.
func (d *Disk) PowerOff(rng *rand.Rand) error {
	if d.server != nil {
		return d.server.do("off", rng.Int64())
	}
	f, err := os.Open(d.o.Mount)
	if err != nil {
		return err
	}
	defer f.Close()
	// XFS_IOC_GOINGDOWN, which ext4 knows too; the journal is not flushed.
	const goingDown, noLogFlush = 0x8004587d, 2
	how := uint32(noLogFlush)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), goingDown, uintptr(unsafe.Pointer(&how))); errno != 0 {
		return fmt.Errorf("stop the file system at %s: %w", d.o.Mount, errno)
	}
	return nil
}

// PowerOn brings it back, with what it kept. Nobody may use it any more from before.
func (d *Disk) PowerOn() error {
	if err := errors.Join(d.unmount(), d.detach()); err != nil {
		return err
	}
	if d.server != nil {
		if err := d.server.do("on", 0); err != nil {
			return err
		}
	}
	if err := d.attach(); err != nil {
		return err
	}
	return d.mount()
}

// Slow has each flush of a volatile disk take so long; 0: as ever.
func (d *Disk) Slow(by time.Duration) error {
	if d.server == nil {
		return nil
	}
	return d.server.do("slow", int64(by))
}

// Fail has writes to a volatile disk end with an error, or not any more. Its file system may have given up then: PowerOn mends that.
func (d *Disk) Fail(fails bool) error {
	if d.server == nil {
		return nil
	}
	return d.server.do("fail", map[bool]int64{true: 1}[fails])
}

// ballast takes the room.
const ballast = "ballast"

// Fill leaves so many bytes of room.
func (d *Disk) Fill(leave int64) error {
	f, err := os.Create(filepath.Join(d.o.Mount, ballast))
	if err != nil {
		return err
	}
	defer f.Close()
	var size int64
	for part := int64(1); ; {
		var room unix.Statfs_t
		if err := unix.Statfs(d.o.Mount, &room); err != nil {
			return err
		}
		more := (int64(room.Bfree)*room.Bsize - leave) / part / blockBytes * blockBytes
		if more <= 0 {
			return nil
		}
		switch err := unix.Fallocate(int(f.Fd()), 0, size, more); {
		case err == nil:
			size += more
		case errors.Is(err, unix.ENOSPC): // the file system wants some for itself
			part *= 2
		default:
			return fmt.Errorf("fill %s: %w", d.o.Mount, err)
		}
	}
}

// Free ends Fill.
func (d *Disk) Free() error {
	err := os.Remove(filepath.Join(d.o.Mount, ballast))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// Close unmounts it and forgets it.
func (d *Disk) Close() error {
	errs := []error{d.unmount(), d.detach()}
	if d.memory != nil {
		errs = append(errs, d.memory.Close())
		d.memory = nil
	}
	if d.served != "" {
		errs = append(errs, unix.Unmount(d.served, 0), d.server.close(), os.Remove(d.served))
		d.served = ""
	}
	return errors.Join(errs...)
}

// run runs a program that may be where a user's PATH does not look.
func run(args ...string) error {
	for _, dir := range []string{"", "/sbin/", "/usr/sbin/"} {
		path, err := exec.LookPath(dir + args[0])
		if err != nil {
			continue
		}
		if out, err := exec.Command(path, args[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
		}
		return nil
	}
	return fmt.Errorf("%w: no %s", ErrMissing, args[0])
}

// entered marks a process that EnterMounts has begun again: its pid, and the descriptor of the mount namespace before.
const entered = "CHAOS_MOUNTS"

// before is the mount namespace of the process when none of our own was there yet; nil: none is.
var before atomic.Pointer[os.File]

// EnterMounts has the whole process begin again in a mount namespace of its own, unless it did already. Nothing that was done before lasts, so it is
// called first.
func EnterMounts() error {
	var pid, fd int
	if _, err := fmt.Sscanf(os.Getenv(entered), "%d %d", &pid, &fd); err == nil && pid == os.Getpid() {
		unix.CloseOnExec(fd)
		before.Store(os.NewFile(uintptr(fd), "mounts"))
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := OwnMounts(); err != nil {
		return err
	}
	fd, err = unix.Dup(int(before.Load().Fd())) // which stays open
	if err != nil {
		return err
	}
	// The process goes on as this thread alone.
	return unix.Exec(self, os.Args, append(os.Environ(), fmt.Sprintf("%s=%d %d", entered, os.Getpid(), fd)))
}

// OwnMounts gives the calling thread, which must be locked and end with what it does, a mount namespace of its own. Threads that do so from there
// see what is mounted there later, and others see nothing of theirs.
func OwnMounts() error {
	if before.Load() == nil {
		f, err := os.Open("/proc/thread-self/ns/mnt")
		if err != nil {
			return err
		}
		if !before.CompareAndSwap(nil, f) {
			f.Close()
		}
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("%w: unshare: %w", ErrMissing, err)
	}
	return errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""), unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""))
}

// Boot has file, whose content is a boot id, stand for the system's own, in the mount namespace of the calling thread: so processes there see a loss of power.
func Boot(file string) error {
	return unix.Mount(file, "/proc/sys/kernel/random/boot_id", "", unix.MS_BIND, "")
}
