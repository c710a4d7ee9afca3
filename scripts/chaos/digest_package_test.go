package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestPackageDigest: lines of mutations count on while the package and what it imports are unchanged.
func TestPackageDigest(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		name = filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module example.com/m\n\ngo 1.26\n")
	write("a/a.go", "package a\n\nimport _ \"example.com/m/b\"\n")
	write("b/b.go", "package b\n")
	write("c/c.go", "package c\n")
	sum := func() string {
		t.Helper()
		s, err := packageDigest(t.Context(), root, "./a")
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	was := sum()
	write("a/a_test.go", "package a\n")
	write("c/c.go", "package c\n\nvar C int\n")
	if now := sum(); now != was {
		t.Error("a test, and a package that is not imported, count")
	}
	write("b/b.go", "package b\n\nvar B int\n")
	if now := sum(); now == was {
		t.Error("a package that is imported does not count")
	}
	if _, err := packageDigest(t.Context(), root, "./none"); err == nil {
		t.Error("a package that is not there has a digest")
	}
}
