//go:build unix && (!linux || race)

package wire

import "syscall"

func readSocket(fd uintptr, b []byte) (int, error)  { return syscall.Read(int(fd), b) }
func writeSocket(fd uintptr, b []byte) (int, error) { return syscall.Write(int(fd), b) }
