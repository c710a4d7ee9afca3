package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
)

// The folder's line tells the most that was ever seen, and more than the limit is wrong: one byte decides.
func TestRetainJudge(t *testing.T) {
	folder := t.TempDir()
	if err := os.MkdirAll(filepath.Join(folder, "journal"), 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(folder, "journal", "segment")
	r := &retain{limit: 1000, padding: 1}
	once, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		size  int
		line  string
		wrong int
	}{{900, "folder 900 of 1000\n", 0}, {1000, "folder 1000 of 1000\n", 0}, {10, "folder 1000 of 1000\n", 0}, {1001, "folder 1001 of 1000\n", 1}, {0, "folder 1001 of 1000\n", 1}} {
		if err := os.WriteFile(file, make([]byte, c.size), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := r.watch(once, folder); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		wrong := r.judge(&out, 1)
		if out.String() != c.line || len(wrong) != c.wrong {
			t.Errorf("%d bytes: got %q and %q, want %q and %d", c.size, out.String(), wrong, c.line, c.wrong)
		}
	}
	if n, err := folderBytes(filepath.Join(folder, "none")); n != 0 || err != nil {
		t.Errorf("a folder that is not there yet: %d, %v", n, err)
	}
}
