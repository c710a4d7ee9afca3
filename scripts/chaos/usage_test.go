package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// What a broker at rest has in its folder and does not need is found.
func TestLeftOver(t *testing.T) {
	folder := t.TempDir()
	write := func(name string) {
		t.Helper()
		file := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{
		"STORE", "LOCK", "checkpoint-00000000000000000008.ckpt", "journal/00000000000000000000.journal", "journal/00000000000001048576.journal", "journal/spare-000001.journal",
		"journal/reserve.journal", "journal/epochs", "index/run-00000000000000000000-00000000000000000008.index", "lost+found/file.new",
	} {
		write(name)
	}
	n := node{segments: 2, runs: 1}
	if names := leftOver(folder, n); names != nil {
		t.Fatalf("a good folder has %q", names)
	}
	for _, name := range []string{"checkpoint-00000000000000000016.ckpt.new", "journal/spare-000002.filling", "journal/damaged/1-2.part"} {
		write(name)
		if names := leftOver(folder, n); !slices.Equal(names, []string{name}) {
			t.Errorf("with %s: %q", name, names)
		}
		if err := os.Remove(filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range []node{{segments: 1, runs: 1}, {segments: 2, runs: 1 - restRuns - 1}, {segments: 3, runs: 1}} {
		if names := leftOver(folder, n); len(names) != 1 {
			t.Errorf("for one with %d segments and %d runs: %q", n.segments, n.runs, names)
		}
	}
}

// A file that a process has open and is not there any more is a leak, as one that it has open twice.
func TestDataFiles(t *testing.T) {
	folder := t.TempDir()
	count := func(want int) {
		t.Helper()
		if n, err := dataFiles(os.Getpid(), folder); err != nil || n != want {
			t.Errorf("%d files, %v, want %d", n, err, want)
		}
	}
	open := func(name string) {
		t.Helper()
		f, err := os.OpenFile(filepath.Join(folder, name), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
	}
	count(0)
	open("a")
	open("b")
	count(2)
	open("a")
	count(2)
	if err := os.Remove(filepath.Join(folder, "b")); err != nil {
		t.Fatal(err)
	}
	count(1)
}
