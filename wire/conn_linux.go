//go:build linux && !race

package wire

import (
	"syscall"
	"unsafe"
)

// A socket does not block, so the scheduler is not told of these calls. Else each of them, in a process that has nothing else to do
// just now, as a client that waits for a commit, wakes the runtime's monitor thread: a fifth of such a process's CPU.

func readSocket(fd uintptr, b []byte) (int, error) {
	n, _, e := syscall.RawSyscall(syscall.SYS_READ, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	if e != 0 {
		return 0, e
	}
	return int(n), nil
}

func writeSocket(fd uintptr, b []byte) (int, error) {
	n, _, e := syscall.RawSyscall(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	if e != 0 {
		return 0, e
	}
	return int(n), nil
}
