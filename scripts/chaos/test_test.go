package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// What a schedule that is a test says becomes a row; a test that fails, says nothing or hangs is a violation too, and what it wrote is kept. A
// campaign that was stopped goes on with the rest, and one with another seed with other schedules.
func TestTests(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "script")
	k := &kind{name: "clones", test: &test{layer: "memory", pkg: ".", name: "TestIt", long: "LONG=1", within: time.Minute}}
	file := filepath.Join(dir, "rows.csv")
	seed := `for a; do case $a in -seed=*) seed=${a#-seed=};; esac; done; `
	tell := `echo "campaign: {\"seed\":$seed,\"ops\":5,\"count\":${LONG:-0}$more}"`
	newCampaign := func(n int, body string) *campaign {
		if err := os.WriteFile(script, []byte("#!/bin/sh\n"+seed+body+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		again := filepath.Join(dir, "binary") // it is removed at the end
		if err := os.Link(script, again); err != nil {
			t.Fatal(err)
		}
		return &campaign{n: n, seed: 3, file: file, dir: filepath.Join(dir, "work"), kinds: []*kind{k}, out: new(bytes.Buffer), tests: map[string]string{".": again}}
	}
	t.Chdir("../..") // of the digest

	c := newCampaign(2, tell)
	if err := c.run(t.Context()); err != nil || len(c.rows) != 2 || len(c.failed) > 0 || c.rows[0].Ops != 5 || c.rows[1].Seed != 4 || c.rows[1].Count != 1 || c.rows[0].Layer != "memory" {
		t.Fatalf("%+v, %v, %v\n%s", c.rows, c.failed, err, c.out)
	}
	c = newCampaign(4, tell)
	c.stopping.Store(true)
	if err := c.run(t.Context()); !errors.Is(err, errStopped) || len(c.rows) != 2 {
		t.Errorf("stopped: %+v, %v", c.rows, err)
	}
	os.Remove(filepath.Join(dir, "binary"))
	if rows, err := readRows(file); err != nil || len(rows) != 2 {
		t.Fatalf("%+v, %v", rows, err)
	}
	for n, bad := range []string{
		"more=',\"lost\":1'; " + tell, tell + "; exit 1", "exit 0", "echo oops; exit 2", tell + "; " + tell, "seed=0; " + tell,
	} {
		c := newCampaign(3+n, bad)
		if err := c.run(t.Context()); err != nil || len(c.rows) != 3+n || len(c.failed) != 1+n {
			t.Fatalf("%q: %+v, %v, %v\n%s", bad, c.rows, c.failed, err, c.out)
		}
		if r := c.rows[2+n]; r.Violations() != 1 || r.Seed != uint64(5+n) {
			t.Errorf("%q: %+v", bad, r)
		}
		if _, err := os.Stat(filepath.Join(c.dir, fmt.Sprint("failed-clones-", 5+n), "output")); err != nil {
			t.Errorf("%q: %v", bad, err)
		}
	}
	// The small version: shorter, and of no line in the file.
	c = newCampaign(1, tell)
	c.short, c.file = true, filepath.Join(dir, "short.csv")
	if err := c.run(t.Context()); err != nil || len(c.rows) != 1 || c.rows[0].Count != 0 || !strings.Contains(c.out.(*bytes.Buffer).String(), "clones") {
		t.Errorf("%+v, %v", c.rows, err)
	}
	if _, err := os.Stat(c.file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a line of a short schedule: %v", err)
	}
}
