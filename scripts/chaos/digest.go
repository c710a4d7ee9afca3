package main

import (
	"bytes"
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
	names := strings.Split(string(bytes.TrimRight(list, "\x00")), "\x00")
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
			return "", "", err
		}
		fmt.Fprintf(all, "%s %d\n", name, len(b))
		all.Write(b)
	}
	return commit, hex.EncodeToString(all.Sum(nil)[:6]), nil
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
