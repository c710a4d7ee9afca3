package testenv

import (
	"fmt"
	"os"
	"syscall"
	"testing"
)

// Disk mounts a disk of its own of so many bytes, which lie in memory, and returns its folder. Without the right to mount the test is skipped, or fails
// where it is Required ("disk"). It is unmounted when the test ends, or, where the process is killed, by the next that uses this package.
func Disk(t testing.TB, bytes int64) string {
	t.Helper()
	dir, err := temporaryDir()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // what stays is a folder
	if err := syscall.Mount("jmq-test", dir, "tmpfs", 0, fmt.Sprintf("size=%d", bytes)); err != nil {
		Missing(t, "disk", fmt.Errorf("a small disk cannot be mounted: %w", err))
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil { // whoever has still a file open there
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}
