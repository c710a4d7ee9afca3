package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jmqio/jmq/server/servertest/ports"
)

// These tests run the binary as users do: processes, signals, exit codes, and what is pasted.

var built struct {
	sync.Once
	path string
	err  error
}

// jmqBinary builds jmq once for all tests.
func jmqBinary(t *testing.T) string {
	t.Helper()
	built.Do(func() {
		dir, err := os.MkdirTemp("", "jmq-test-")
		if err != nil {
			built.err = err
			return
		}
		built.path = filepath.Join(dir, "jmq")
		if out, err := exec.Command("go", "build", "-o", built.path, ".").CombinedOutput(); err != nil {
			built.err = fmt.Errorf("%w: %s", err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.path
}

// environment is this process's without what would configure a broker.
func environment(more ...string) []string {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "JMQ_") {
			env = append(env, e)
		}
	}
	// How full the machine's disk is shall not matter.
	for _, mark := range []string{"WARN", "EARLYDELETE", "REFUSE"} {
		env = append(env, "JMQ_BROKER_DISK_"+mark+"PERCENT=100")
	}
	return append(env, more...)
}

// finished runs the binary to its end.
func finished(t *testing.T, stdin string, env []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	cmd := exec.Command(jmqBinary(t), args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env, cmd.Dir = strings.NewReader(stdin), &out, &errs, environment(env...), t.TempDir()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() }).Stop()
	if err := cmd.Wait(); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			t.Fatal(err)
		}
		code = exit.ExitCode()
	}
	return code, out.String(), errs.String()
}

// daemon is a server process.
type daemon struct {
	t      *testing.T
	cmd    *exec.Cmd
	lines  chan string // of its stdout; closed at its end
	stderr bytes.Buffer
	ended  bool
}

func startDaemon(t *testing.T, args ...string) *daemon {
	t.Helper()
	d := &daemon{t: t, cmd: exec.Command(jmqBinary(t), args...), lines: make(chan string, 1000)}
	d.cmd.Env, d.cmd.Dir, d.cmd.Stderr = environment(), t.TempDir(), &d.stderr
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { // ends with the process
		defer close(d.lines)
		in := bufio.NewScanner(out)
		for in.Scan() {
			d.lines <- in.Text()
		}
	}()
	t.Cleanup(func() {
		if !d.ended {
			d.signal(syscall.SIGKILL)
		}
	})
	return d
}

// signal sends s, waits for the end and returns the exit code, -1 for a signal's.
func (d *daemon) signal(s syscall.Signal) int {
	d.t.Helper()
	d.ended = true
	_ = d.cmd.Process.Signal(s)
	defer time.AfterFunc(30*time.Second, func() { _ = d.cmd.Process.Kill() }).Stop()
	for range d.lines { // to its end, as Wait wants it
	}
	_ = d.cmd.Wait() // the exit code says it
	return d.cmd.ProcessState.ExitCode()
}

// until reads lines up to one that contains text.
func (d *daemon) until(text string) []string {
	d.t.Helper()
	var seen []string
	timeout := time.After(20 * time.Second)
	for {
		select {
		case line, ok := <-d.lines:
			if !ok {
				d.ended = true
				_ = d.cmd.Wait()
				d.t.Fatalf("ended before %q: stdout %q, stderr %s", text, seen, d.stderr.String())
			}
			seen = append(seen, line)
			if strings.Contains(line, text) {
				return seen
			}
		case <-timeout:
			d.t.Fatalf("no %q in %q; stderr %s", text, seen, d.stderr.String())
		}
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	address, release, err := ports.Take()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return address
}

// after returns what stands behind a word at the beginning of a line.
func after(t *testing.T, lines []string, word string) string {
	t.Helper()
	for _, l := range lines {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(l), word+" "); ok {
			return strings.TrimSpace(rest)
		}
	}
	t.Fatalf("no line begins with %q: %q", word, lines)
	return ""
}

// jmq dev is ready in under 2 s, says where everything is, and what it tells people to paste works as it stands, from any
// folder, also where the paths have blanks; Ctrl-C stops it with exit code 0 and the data is there at the next start.
func TestDevAndPastedPair(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "jmq data's")
	jmqBinary(t) // not to be measured below
	args := []string{"dev", "--data", folder, "--node.wire.listen", "127.0.0.1:0", "--node.admin.listen", "127.0.0.1:0"}
	begun := time.Now()
	d := startDaemon(t, args...)
	lines := d.until("Ctrl-C")
	if took := time.Since(begun); took > 2*time.Second {
		t.Errorf("ready after %v, want under 2 s", took)
	}
	if got := after(t, lines, "data"); got != folder {
		t.Errorf("data in %q, want %q", got, folder)
	}
	if _, err := os.Stat(after(t, lines, "log")); err != nil {
		t.Errorf("log: %v", err)
	}
	admin, _, _ := strings.Cut(after(t, lines, "admin"), " ")
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for _, path := range []string{"/readyz", "/healthz", "/metrics"} {
		r, err := client.Get(admin + path)
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		if r.StatusCode != 200 {
			t.Errorf("%s%s: %s", admin, path, r.Status)
		}
	}
	var pasted []string
	for _, l := range lines {
		if strings.Contains(l, " produce ") || strings.Contains(l, " consume ") {
			pasted = append(pasted, strings.TrimSpace(l))
		}
	}
	if len(pasted) != 2 {
		t.Fatalf("to paste: %q", pasted)
	}
	paste := func(command string) string {
		t.Helper()
		cmd := exec.Command("sh", "-c", command)
		cmd.Env, cmd.Dir = environment(), t.TempDir()
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", command, err, out)
		}
		return string(out)
	}
	for range 2 { // again and again
		if out := paste(pasted[0]); out != "sent 1 to orders\n" {
			t.Errorf("%s: %q", pasted[0], out)
		}
		if out := paste(pasted[1]); out != "hello\n" {
			t.Errorf("%s: %q", pasted[1], out)
		}
	}
	if code := d.signal(os.Interrupt.(syscall.Signal)); code != 0 || d.stderr.Len() > 0 {
		t.Errorf("after Ctrl-C: exit %d, stderr %s", code, d.stderr.String())
	}
	d = startDaemon(t, args...)
	address := after(t, d.until("Ctrl-C"), "wire")
	if code, out, errs := finished(t, "", nil, "consume", "orders", "-g", "again", "--from-beginning", "-n", "2", "-a", address); code != 0 || out != "hello\nhello\n" {
		t.Errorf("after a new start: exit %d, %q, %s", code, out, errs)
	}
}

// A broker that is killed with SIGKILL has everything that it acknowledged, serves in under 2 s, and the group goes on
// where it stood: twice, the second time in the middle of a stream of sends.
func TestKillAndRestart(t *testing.T) {
	jmqBinary(t) // not to be measured below
	folder, address, admin := t.TempDir(), freePort(t), freePort(t)
	args := []string{"run", "broker", "--data", folder, "--node.wire.listen", address, "--node.admin.listen", admin}
	up := func() *daemon {
		t.Helper()
		begun := time.Now()
		d := startDaemon(t, args...)
		// The client waits for the broker, so the first command also measures the start.
		for {
			code, _, errs := finished(t, "", nil, "topic", "create", "orders", "-p", "1", "-a", address)
			if code == 0 {
				break
			}
			if time.Since(begun) > 10*time.Second {
				t.Fatalf("not up: %s%s", errs, d.stderr.String())
			}
		}
		if took := time.Since(begun); took > 2*time.Second {
			t.Errorf("serving after %v, want under 2 s", took)
		}
		return d
	}
	d := up()
	if code, out, errs := finished(t, "a\nb\nc\n", nil, "produce", "orders", "-a", address); code != 0 || out != "sent 3 to orders\n" {
		t.Fatalf("produce: exit %d %q %s", code, out, errs)
	}
	if full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0); err == nil { // where there is such a device
		if code, _, errs := finished(t, "", nil, "topic", "create", "full", "-a", address); code != 0 {
			t.Fatal(errs)
		}
		var errs strings.Builder
		c := exec.Command(jmqBinary(t), "produce", "full", "-a", address, "-o", "json", "x")
		c.Stdout, c.Stderr = full, &errs
		if err := c.Run(); err == nil || strings.Count(errs.String(), "\n") != 1 || !strings.Contains(errs.String(), "no space left") {
			t.Errorf("receipts to a full disk: %v, %q", err, errs.String())
		}
		full.Close()
	}
	if code, out, errs := finished(t, "", nil, "consume", "orders", "-g", "pay", "--from-beginning", "-n", "2", "-a", address); code != 0 || out != "a\nb\n" {
		t.Fatalf("consume: exit %d %q %s", code, out, errs)
	}
	if code := d.signal(syscall.SIGKILL); code != -1 {
		t.Fatalf("killed with exit %d", code)
	}
	d = up()
	if code, out, errs := finished(t, "", nil, "consume", "orders", "-g", "pay", "-n", "1", "-a", address); code != 0 || out != "c\n" {
		t.Errorf("after the kill: exit %d %q %s", code, out, errs)
	}

	// A producer that is in the middle of its lines when the broker is killed goes on when it is back.
	producer := exec.Command(jmqBinary(t), "produce", "orders", "-a", address, "--timeout", "20s")
	producer.Env, producer.Dir = environment(), t.TempDir()
	stdin, err := producer.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	producer.Stdout, producer.Stderr = &out, &errs
	if err := producer.Start(); err != nil {
		t.Fatal(err)
	}
	const total = 3000
	var sent strings.Builder
	for i := range total {
		if i == total/2 {
			// It must be connected, and have sent some: else it would find no broker and say so.
			for deadline := time.Now().Add(20 * time.Second); ; {
				_, out, _ := finished(t, "", nil, "group", "lag", "orders", "pay", "-o", "csv", "-a", address)
				if !strings.Contains(out, "\npay,0,0,") {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("nothing was sent: %s", errs.String())
				}
			}
			d.signal(syscall.SIGKILL)
			d = up()
		}
		line := fmt.Sprintf("order %d\n", i)
		sent.WriteString(line)
		if _, err := stdin.Write([]byte(line)); err != nil {
			t.Fatalf("line %d: %v; %v: %s", i, err, producer.Wait(), errs.String())
		}
	}
	stdin.Close()
	if err := producer.Wait(); err != nil {
		t.Fatalf("producer over a kill: %v: %s", err, errs.String())
	}
	code, got, failure := finished(t, "", nil, "consume", "orders", "-g", "pay", "--timeout", "1s", "-a", address)
	if code != exitTimeout {
		t.Fatalf("consume to the end: exit %d %s", code, failure)
	}
	// A send whose answer was lost with the broker may be there twice: nothing may be missing, and first copies are in order.
	seen, first := map[string]bool{}, strings.Builder{}
	for line := range strings.Lines(got) {
		if !seen[line] {
			seen[line] = true
			first.WriteString(line)
		}
	}
	if first.String() != sent.String() {
		t.Errorf("%d of %d lines came back, or in another order", len(seen), total)
	}
	if code := d.signal(syscall.SIGTERM); code != 0 {
		t.Errorf("SIGTERM: exit %d", code)
	}
	if code, out, errs := finished(t, "", nil, "journal", "verify", folder); code != 0 || !strings.Contains(out, "whole, to the last byte") {
		t.Errorf("verify: exit %d %s%s", code, out, errs)
	}
}

// What a server cannot start with is one line with the next step, and exit code 1, or 2 when it is the configuration.
func TestServerCannotStart(t *testing.T) {
	folder := t.TempDir()
	d := startDaemon(t, "dev", "--data", folder, "--node.wire.listen", "127.0.0.1:0", "--node.admin.listen", "127.0.0.1:0")
	address := after(t, d.until("Ctrl-C"), "wire")
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	newer := t.TempDir()
	if err := os.WriteFile(filepath.Join(newer, "STORE"), []byte("jmq store\nversion 99\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	free := []string{"--node.wire.listen", "127.0.0.1:0", "--node.admin.listen", "127.0.0.1:0"}
	with := func(args ...string) []string { return append(args, free...) }
	for _, c := range []struct {
		name string
		code int
		says []string
		env  []string
		args []string
	}{
		{"the folder is in use", 1, []string{folder, "in use", "process " + fmt.Sprint(d.cmd.Process.Pid), "--data"}, nil, with("--data", folder)},
		{"the folder and the port are in use", 1, []string{folder, "in use", "--data"}, nil, []string{"--data", folder, "--node.wire.listen", address, "--node.admin.listen", "127.0.0.1:0"}},
		{"the port is in use", 1, []string{address, "port is in use", "--node.wire.listen"}, nil, []string{"--data", t.TempDir(), "--node.wire.listen", address, "--node.admin.listen", "127.0.0.1:0"}},
		{"a file for a folder", 1, []string{file, "--data"}, nil, with("--data", file)},
		{"nowhere", 1, []string{"/proc/jmq", "--data"}, nil, with("--data", "/proc/jmq")},
		{"a newer version", 1, []string{newer, "version 99"}, nil, with("--data", newer)},
		{"an unknown variable", 2, []string{"JMQ_BROKER_DATTA", "did you mean JMQ_BROKER_DATA?"}, []string{"JMQ_BROKER_DATTA=x"}, with()},
		{"a wrong variable", 2, []string{"JMQ_BROKER_JOURNAL_SEGMENTBYTESMAX", "whole number"}, []string{"JMQ_BROKER_JOURNAL_SEGMENTBYTESMAX=1.5"}, with()},
		{"a wrong flag", 2, []string{"--broker.journal.segmentBytesMax", "multiple of 4096"}, nil, with("--broker.journal.segmentBytesMax", "100000")},
		{"not loopback", 2, []string{"node.wire.listen", "loopback"}, nil, []string{"--node.wire.listen", "0.0.0.0:0"}},
		{"a missing file", 2, []string{"/no/jmq.yaml", "--config"}, nil, with("--config", "/no/jmq.yaml")},
	} {
		for _, command := range [][]string{{"dev"}, {"run", "broker"}} {
			code, out, errs := finished(t, "", c.env, append(command, c.args...)...)
			// jmq run logs to stderr before the line; the last one is the error.
			lines := strings.Split(strings.TrimSpace(errs), "\n")
			last := lines[len(lines)-1]
			if code != c.code || !strings.HasPrefix(last, "jmq: ") || out != "" || command[0] == "dev" && len(lines) != 1 {
				t.Errorf("%s, %v: exit %d, stdout %q, stderr %q; want exit %d and one line", c.name, command, code, out, errs, c.code)
			}
			for _, s := range c.says {
				if !strings.Contains(last, s) {
					t.Errorf("%s, %v: %q does not say %q", c.name, command, last, s)
				}
			}
		}
	}
	if code, out, errs := finished(t, "", nil, "produce", "orders", "x", "-a", address); code != 0 {
		t.Errorf("the first one noticed: exit %d %s%s", code, out, errs)
	}
}

// consume acknowledges after it printed: a message whose line nobody could read comes again.
func TestConsumeAcksAfterPrinting(t *testing.T) {
	d := startDaemon(t, "dev", "--data", t.TempDir(), "--node.wire.listen", "127.0.0.1:0", "--node.admin.listen", "127.0.0.1:0", "--broker.dispatch.disconnectGrace", "0s")
	address := after(t, d.until("Ctrl-C"), "wire")
	if code, _, errs := finished(t, "", nil, "produce", "orders", "-a", address, "--order-key", "k", strings.Repeat("x", 100_000)); code != 0 {
		t.Fatal(errs)
	}
	consume := exec.Command(jmqBinary(t), "consume", "orders", "-g", "pay", "--from-beginning", "-n", "1", "-a", address)
	consume.Env, consume.Dir = environment(), t.TempDir()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	consume.Stdout = w
	if err := consume.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	// The pipe is full after 64 KiB, so the rest of the line cannot be printed; then nobody reads any more.
	if _, err := r.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	r.Close()
	if err := consume.Wait(); err == nil {
		t.Fatal("consume could print into a closed pipe")
	}
	if code, out, errs := finished(t, "", nil, "consume", "orders", "-g", "pay", "-n", "1", "--timeout", "10s", "-a", address); code != 0 || len(out) != 100_001 {
		t.Errorf("it did not come again: exit %d, %d bytes, %s", code, len(out), errs)
	}
}
