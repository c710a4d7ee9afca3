package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// trees are what a campaign is about: while they are unchanged its lines count together.
var trees = []string{"server", "wire", "client"}

// digest is a hash of the product's code in trees, without tests, as it lies in root now; and the commit, with a + when something was changed since.
func digest(ctx context.Context, root string) (commit, sum string, err error) {
	git := func(args ...string) ([]byte, error) {
		cmd := exec.CommandContext(ctx, "git", args...)
		cmd.Dir = root
		return cmd.Output()
	}
	head, err := git("rev-parse", "--short=10", "HEAD")
	if err != nil {
		return "", "", fmt.Errorf("git rev-parse: %w", err)
	}
	commit = strings.TrimSpace(string(head))
	changed, err := git("status", "--porcelain")
	if err != nil {
		return "", "", fmt.Errorf("git status: %w", err)
	}
	if len(changed) > 0 {
		commit += "+"
	}
	list, err := git(append([]string{"ls-files", "-z", "-co", "--exclude-standard", "--"}, trees...)...)
	if err != nil {
		return "", "", fmt.Errorf("git ls-files: %w", err)
	}
	sum, err = hashFiles(root, strings.Split(string(bytes.TrimRight(list, "\x00")), "\x00"))
	return commit, sum, err
}

// packageDigest is a hash of what of the product a package is made of: its own code and that of what it imports.
func packageDigest(ctx context.Context, root, name string) (string, error) {
	cmd := exec.CommandContext(ctx, cmp.Or(os.Getenv("GO"), "go"), "list", "-deps", "-f", "{{if .Module}}{{if .Module.Main}}{{$p := .Dir}}{{range .GoFiles}}{{$p}}/{{.}}\n{{end}}{{range .EmbedFiles}}{{$p}}/{{.}}\n{{end}}{{end}}{{end}}", name)
	cmd.Dir = root
	var said bytes.Buffer
	cmd.Stderr = &said
	list, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go list %s: %w: %s", name, err, bytes.TrimSpace(said.Bytes()))
	}
	absolute, err := filepath.Abs(root)
	if err != nil {
		return "", err
	}
	var names []string
	for file := range strings.FieldsSeq(string(list)) {
		relative, err := filepath.Rel(absolute, file)
		if err != nil {
			return "", err
		}
		names = append(names, filepath.ToSlash(relative))
	}
	return hashFiles(root, names)
}

// hashFiles is a hash of files, by their names.
func hashFiles(root string, names []string) (string, error) {
	slices.Sort(names)
	all := sha256.New()
	for _, name := range names {
		if !ofProduct(name) {
			continue
		}
		b, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) {
			continue // deleted, and not committed
		}
		if err != nil {
			return "", err
		}
		fmt.Fprintf(all, "%s %d\n", name, len(b))
		all.Write(b)
	}
	return hex.EncodeToString(all.Sum(nil)[:6]), nil
}

// ofProduct says whether a file is compiled into it.
func ofProduct(name string) bool {
	if !strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, ".sql") || strings.HasSuffix(name, "_test.go") {
		return false
	}
	for _, part := range strings.Split(filepath.Dir(name), "/") {
		if part == "testdata" || strings.HasSuffix(part, "test") {
			return false
		}
	}
	return !strings.HasPrefix(name, "server/servertest/")
}
