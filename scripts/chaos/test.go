package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jmqio/jmq/server/servertest/check"
)

// test is a schedule that is a test of a package: its flag -seed says which, and it tells what it showed by check.Figures.
type test struct {
	layer string
	pkg   string // its folder
	name  string
	// long is what its environment has, and short in the small version: there schedules are shorter, and the file gets no line of them.
	long, short string
	within      time.Duration // else it hangs
}

// reportBytesMax is how much of a failed test's output is shown; all of it is kept.
const reportBytesMax = 16 << 10

// test runs the schedule of a seed, and adds its row.
func (c *campaign) test(ctx context.Context, k *kind, seed uint64) error {
	dir := c.folder(k, seed)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	binary, err := c.build(ctx, k.test.pkg)
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	begun := time.Now()
	out, failure, err := k.test.run(ctx, binary, dir, seed, c.environment(k.test))
	if err != nil || ctx.Err() != nil {
		return errors.Join(err, context.Cause(ctx), os.RemoveAll(dir))
	}
	r := row{Commit: c.commit, Digest: c.digest, Layer: k.test.layer, Kind: k.name}
	if r.Figures, err = check.FindFigures(out); err != nil {
		failure = cmp.Or(failure, err)
	}
	if r.Seed != seed && failure == nil {
		failure = fmt.Errorf("it ran seed %d", r.Seed)
	}
	r.Seed = seed
	if failure != nil && r.Violations() == 0 {
		r.Other++
	}
	c.rows = append(c.rows, r)
	file := c.file
	if c.short && k.test.long != "" {
		file = ""
	}
	if err := appendRows(file, r); err != nil {
		return err
	}
	c.tell(&r, time.Since(begun))
	if r.Violations() == 0 {
		return os.RemoveAll(dir)
	}
	if failure == nil {
		failure = errors.New("it passed")
	}
	return c.fail(&r, dir, fmt.Sprintf("%v\n%s", failure, out[max(0, len(out)-reportBytesMax):]))
}

// environment of a test.
func (c *campaign) environment(t *test) []string {
	env := []string{t.long}
	if c.short {
		env[0] = t.short
	}
	if c.planted != "" {
		env = append(env, "JMQ_TEST_PLANTED="+c.planted)
	}
	return env
}

// run runs it once, and returns what it wrote, which is in dir too, and why it failed.
func (t *test) run(ctx context.Context, binary, dir string, seed uint64, env []string) (out []byte, failure, err error) {
	name := filepath.Join(dir, "output")
	f, err := os.Create(name)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	cmd := exec.CommandContext(ctx, binary, "-test.run=^"+t.name+"$", "-test.count=1", "-test.v", "-test.timeout="+t.within.String(), "-seed="+strconv.FormatUint(seed, 10))
	cmd.Dir, cmd.Stdout, cmd.Stderr = t.pkg, f, f
	cmd.Env = append(os.Environ(), append(env, "TMPDIR="+dir, "JMQ_TEST_HISTORY="+dir)...)
	// A Ctrl-C is not for it; and it ends with this process, by a signal that is bound to the thread which started it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	failure = cmd.Run()
	if exit := (*exec.ExitError)(nil); failure != nil && !errors.As(failure, &exit) {
		return nil, nil, failure
	}
	out, err = os.ReadFile(name)
	return out, failure, err
}

// build returns the tests of a package, which are built once.
func (c *campaign) build(ctx context.Context, pkg string) (string, error) {
	if binary := c.tests[pkg]; binary != "" {
		return binary, nil
	}
	binary := filepath.Join(c.dir, fmt.Sprintf("%s%d-%s.test", workPrefix, os.Getpid(), strings.ReplaceAll(pkg, "/", "-")))
	args := []string{"test", "-c", "-o", binary}
	if c.planted != "" {
		args = append(args, "-tags", "planted")
	}
	cmd := exec.CommandContext(ctx, cmp.Or(os.Getenv("GO"), "go"), append(args, "./"+pkg)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("build the tests of %s: %w\n%s", pkg, err, &out)
	}
	if c.tests == nil {
		c.tests = map[string]string{}
	}
	c.tests[pkg] = binary
	return binary, nil
}
