package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// process is a server under measurement: a child of the benchmark, so that its CPU and memory are its own.
type process struct {
	cmd     *exec.Cmd
	address string
	stderr  bytes.Buffer
	done    chan struct{} // closed when the child has ended
	err     error         // how; after done
}

// startProcess starts this binary with args and waits for a line "listening ADDRESS" on its standard output.
func startProcess(ctx context.Context, args ...string) (*process, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find own binary: %w", err)
	}
	p := &process{cmd: exec.Command(exe, args...), done: make(chan struct{})}
	p.cmd.Stderr = &p.stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", strings.Join(args, " "), err)
	}
	ready := make(chan string, 1)
	go func() { // ends with the child's standard output, before done is answered
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if a, ok := strings.CutPrefix(lines.Text(), "listening "); ok {
				select {
				case ready <- a:
				default:
				}
			}
		}
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	select {
	case p.address = <-ready:
		return p, nil
	case <-p.done:
		return nil, fmt.Errorf("server under measurement ended (%v): %s", p.err, strings.TrimSpace(p.stderr.String()))
	case <-ctx.Done():
		p.kill()
		return nil, ctx.Err()
	case <-time.After(30 * time.Second):
		p.kill()
		return nil, fmt.Errorf("server under measurement was not ready in 30 s: %s", strings.TrimSpace(p.stderr.String()))
	}
}

// stop asks the child to end and waits, at most 10 s, then kills it.
func (p *process) stop() error {
	_ = p.cmd.Process.Signal(os.Interrupt) // an ended child is what we want
	select {
	case <-p.done:
		if exit, ok := errors.AsType[*exec.ExitError](p.err); ok && exit.ExitCode() != 130 {
			return fmt.Errorf("server under measurement: %w: %s", p.err, strings.TrimSpace(p.stderr.String()))
		}
		return nil
	case <-time.After(10 * time.Second):
		p.kill()
		return errors.New("server under measurement did not stop within 10 s and was killed")
	}
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill() // an ended child is what we want
	<-p.done
}

// usage is what a process has used up to now.
type usage struct {
	cpu      time.Duration // user and system
	rssPeak  int64         // bytes
	ioWrites int64         // bytes sent to the storage layer
}

// clockTick is USER_HZ, 100 on every Linux that Go runs on.
const clockTick = 10 * time.Millisecond

func readUsage(pid int) (usage, error) {
	var u usage
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return u, err
	}
	_, rest, ok := bytes.Cut(stat, []byte(") "))
	fields := strings.Fields(string(rest))
	if !ok || len(fields) < 14 {
		return u, fmt.Errorf("read /proc/%d/stat: %d fields", pid, len(fields))
	}
	for _, f := range fields[11:13] {
		ticks, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return u, fmt.Errorf("read /proc/%d/stat: %w", pid, err)
		}
		u.cpu += time.Duration(ticks) * clockTick
	}
	u.rssPeak = procField(pid, "status", "VmHWM:") << 10
	u.ioWrites = procField(pid, "io", "write_bytes:")
	return u, nil
}

// procField returns the number after key in /proc/PID/FILE, 0 where it cannot be read.
func procField(pid int, file, key string) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, key); ok {
			n, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return n
		}
	}
	return 0
}

// meter measures a server between the two calls of mark.
type meter struct {
	pid      int
	syncs    func() (int64, error)
	consumed func() int64 // nil: nobody consumes

	begin, end struct {
		usage
		client          usage
		syncs, consumed int64
	}
	err error
}

// mark is called when the counted part begins and when it ends.
func (m *meter) mark(begin bool) {
	at := &m.end
	if begin {
		at = &m.begin
	}
	if m.consumed != nil {
		at.consumed = m.consumed()
	}
	var err1, err2, err3 error
	if m.pid != 0 {
		at.usage, err1 = readUsage(m.pid)
	}
	at.syncs, err2 = m.syncs()
	at.client, err3 = readUsage(os.Getpid())
	m.err = errors.Join(m.err, err1, err2, err3)
}

// use returns what was used; call it when both marks are made.
func (m *meter) use() (serverUse, error) {
	if m.err != nil {
		return serverUse{}, fmt.Errorf("measure the server: %w", m.err)
	}
	return serverUse{
		syncs: m.end.syncs - m.begin.syncs, cpu: m.end.cpu - m.begin.cpu, clientCPU: m.end.client.cpu - m.begin.client.cpu, rssPeak: m.end.rssPeak,
		writes: m.end.ioWrites - m.begin.ioWrites, consumed: m.end.consumed - m.begin.consumed, consuming: m.consumed != nil,
	}, nil
}
