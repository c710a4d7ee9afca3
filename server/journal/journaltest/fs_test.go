package journaltest

import (
	"errors"
	"io"
	"io/fs"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

func write(t *testing.T, f vfs.File, off int64, s string) {
	t.Helper()
	if _, err := f.WriteAt([]byte(s), off); err != nil {
		t.Fatal(err)
	}
}

func create(t *testing.T, f *FS, name string) vfs.File {
	t.Helper()
	file, err := f.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return file
}

func content(t *testing.T, fsys vfs.FS, name string) string {
	t.Helper()
	b, err := ReadFile(fsys, name)
	if errors.Is(err, fs.ErrNotExist) {
		return "none"
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestFaults: a call fails before it is done, after it, or when a part of it is done; the list has what was done.
func TestFaults(t *testing.T) {
	f := New(nil)
	var fault Fault
	f.SetBefore(func(op Op) Fault {
		if op.Call == Read || op.Call == Open || op.Call == Stat {
			return Fault{}
		}
		return fault
	})
	for _, c := range []struct {
		fault Fault
		n     int
		want  string
	}{
		{Fault{}, 3, "abc"},
		{Fault{Err: syscall.EIO}, 0, ""},
		{Fault{Err: syscall.EIO, After: true}, 3, "abc"},
		{Fault{Err: syscall.ENOSPC, Short: 2}, 2, "ab"},
		{Fault{Short: 2}, 2, "ab"},
	} {
		fault = Fault{}
		file := create(t, f, "/a")
		f.TakeOps()
		fault = c.fault
		n, err := file.WriteAt([]byte("abc"), 0)
		if n != c.n || !errors.Is(err, c.fault.Err) || (c.fault.Err == nil) != (err == nil) {
			t.Errorf("%+v: wrote %d, %v", c.fault, n, err)
		}
		if got := content(t, f, "/a"); got != c.want {
			t.Errorf("%+v: content %q, want %q", c.fault, got, c.want)
		}
		if ops := f.TakeOps(); (len(ops) == 1) != (c.want != "") {
			t.Errorf("%+v: operations %v", c.fault, ops)
		}
	}
	fault = Fault{Err: ErrInjected}
	if err := f.Rename("/a", "/b"); !errors.Is(err, ErrInjected) || !strings.Contains(err.Error(), "/a") {
		t.Errorf("rename: %v", err)
	}
	if _, err := f.Create("/c", vfs.WriteCategoryUnspecified); !errors.Is(err, ErrInjected) {
		t.Errorf("create: %v", err)
	}
	if got := content(t, f, "/c"); got != "none" {
		t.Errorf("a file was made all the same: %q", got)
	}
}

// TestLoseBlocks: after a failed sync that loses its blocks readers see them, the next sync succeeds, and a power loss shows that
// they are gone; what is written after is not.
func TestLoseBlocks(t *testing.T) {
	f := New(nil)
	file := create(t, f, "/a")
	dir, err := f.OpenDir("/")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	write(t, file, 0, "synced")
	if err := errors.Join(file.Sync(), dir.Sync()); err != nil {
		t.Fatal(err)
	}
	write(t, file, 0, "lost..")
	f.SetBefore(func(op Op) Fault { return Fault{Err: syscall.EIO, LoseBlocks: true} })
	if err := file.SyncData(); !errors.Is(err, syscall.EIO) {
		t.Fatalf("sync: %v", err)
	}
	f.SetBefore(nil)
	if err := f.Rename("/a", "/b"); err != nil {
		t.Fatal(err)
	}
	write(t, file, 6, "more")
	if err := errors.Join(file.SyncData(), dir.Sync()); err != nil {
		t.Fatal(err)
	}
	if got := content(t, f, "/b"); got != "lost..more" {
		t.Errorf("readers see %q", got)
	}
	disk := f.Crash(0, nil)
	if got := content(t, disk, "/b") + content(t, disk, "/a"); got != "syncedmorenone" {
		t.Errorf("on disk is %q", got)
	}
	write(t, file, 0, "again.")
	if err := file.SyncData(); err != nil {
		t.Fatal(err)
	}
	if got := content(t, f.Crash(0, nil), "/b"); got != "again.more" {
		t.Errorf("written again, on disk is %q", got)
	}
}

// TestLimit: files do not grow beyond the limit, and a removed file gives its bytes back.
func TestLimit(t *testing.T) {
	f := New(nil)
	a, b := create(t, f, "/a"), create(t, f, "/b")
	write(t, a, 0, "12345678")
	f.SetLimit(10)
	write(t, b, 0, "12")
	if _, err := b.WriteAt([]byte("3"), 2); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("beyond the limit: %v", err)
	}
	write(t, a, 0, "overwrit")
	if err := f.Remove("/a"); err != nil {
		t.Fatal(err)
	}
	write(t, b, 2, "345678")
	if u, err := f.GetDiskUsage("/"); err != nil || u.TotalBytes != 10 || u.AvailBytes != 2 || f.Used() != 8 {
		t.Errorf("usage %+v, %v, used %d", u, err, f.Used())
	}
}

// TestDirs: a name is lost with the power unless its directory was synced, or directories are eager.
func TestDirs(t *testing.T) {
	for _, eager := range []bool{false, true} {
		f := New(nil)
		if eager {
			f.EagerDirs()
		}
		var after []string
		f.SetAfter(func(op Op) { after = append(after, op.String()) })
		file := create(t, f, "/a")
		write(t, file, 0, "abc")
		if err := errors.Join(file.Sync(), f.Rename("/a", "/b")); err != nil {
			t.Fatal(err)
		}
		want := map[bool]string{false: "none", true: "abc"}[eager]
		if got := content(t, f.Crash(0, nil), "/b"); got != want {
			t.Errorf("eager %v: %q, want %q", eager, got, want)
		}
		if err := f.Remove("/b"); err != nil {
			t.Fatal(err)
		}
		if got := content(t, f.Crash(0, nil), "/b"); got != "none" {
			t.Errorf("eager %v: removed, but %q", eager, got)
		}
		if got := strings.Join(after, "; "); got != "create /a; write /a [0,3); sync /a; rename /a /b; remove /b" {
			t.Errorf("hook saw %s", got)
		}
	}
}

// TestReads: reading at the end, in sequence, and opening what is not there behave as on a disk.
func TestReads(t *testing.T) {
	f := New(Disk("/d", map[string][]byte{"x": []byte("hello")}))
	file, err := f.Open("/d/x")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if b, err := io.ReadAll(file); err != nil || string(b) != "hello" {
		t.Errorf("read %q, %v", b, err)
	}
	if n, err := file.ReadAt(make([]byte, 10), 3); n != 2 || err != io.EOF {
		t.Errorf("read at 3: %d, %v", n, err)
	}
	if _, err := f.Open("/d/y"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("open: %v", err)
	}
	if got := Files(f, "/d"); len(got) != 1 || string(got["x"]) != "hello" {
		t.Errorf("files %q", got)
	}
}
