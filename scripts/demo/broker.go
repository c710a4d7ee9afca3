package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/jmqio/jmq/server/servertest/ports"
)

// broker is a jmq process of the demo's own: always the same folder and ports, one life after the other. It belongs to
// the goroutine that calls it.
type broker struct {
	binary, dir string // dir: the demo's folder; data lies in dir/data
	wire, admin string
	flags       []string // more than folder and ports
	log         *os.File

	cmd   *exec.Cmd
	ended chan error
}

const (
	readyWithin = 30 * time.Second
	stopWithin  = 30 * time.Second
)

func newBroker(binary, dir string) (*broker, error) {
	binary, err := filepath.Abs(binary)
	if err != nil {
		return nil, err
	}
	log, err := os.OpenFile(filepath.Join(dir, "broker.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	b := &broker{binary: binary, dir: dir, log: log}
	if b.wire, _, err = ports.Take(); err == nil { // to the end of the process
		b.admin, _, err = ports.Take()
	}
	if err != nil {
		log.Close()
		return nil, err
	}
	return b, nil
}

func (b *broker) data() string { return filepath.Join(b.dir, "data") }

// start begins a life and returns when the broker serves.
func (b *broker) start(ctx context.Context) error {
	args := []string{"run", "broker", "--broker.data", b.data(), "--node.wire.listen", b.wire, "--node.admin.listen", b.admin}
	b.cmd = exec.Command(b.binary, append(args, b.flags...)...)
	b.cmd.Dir = b.dir // so that no jmq.yaml of the caller is read
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "JMQ_") {
			b.cmd.Env = append(b.cmd.Env, e)
		}
	}
	b.cmd.Stdout, b.cmd.Stderr = b.log, b.log
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for the demo, which then stops the broker
	if err := b.cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", b.binary, err)
	}
	b.ended = make(chan error, 1)
	go func() { b.ended <- b.cmd.Wait() }() // ends with the process; kill and stop wait for it

	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.NewTimer(readyWithin)
	defer deadline.Stop()
	for {
		select {
		case err := <-b.ended:
			b.cmd = nil
			return fmt.Errorf("the broker ended at its start (%v); see %s", err, b.log.Name())
		case <-deadline.C:
			b.kill()
			return fmt.Errorf("the broker was not ready within %v; see %s", readyWithin, b.log.Name())
		case <-ctx.Done():
			b.kill()
			return context.Cause(ctx)
		case <-tick.C:
			if b.ready() {
				return nil
			}
		}
	}
}

func (b *broker) ready() bool {
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Get("http://" + b.admin + "/readyz")
	if err != nil {
		return false
	}
	r.Body.Close()
	return r.StatusCode == http.StatusOK
}

// kill is SIGKILL: no chance to write anything.
func (b *broker) kill() {
	if b.cmd == nil {
		return
	}
	_ = b.cmd.Process.Kill() // it may have ended by itself, and is waited for in any case
	<-b.ended
	b.cmd = nil
}

// stop asks the broker to end and waits.
func (b *broker) stop() error {
	if b.cmd == nil {
		return nil
	}
	_ = b.cmd.Process.Signal(syscall.SIGTERM) // as in kill
	select {
	case err := <-b.ended:
		b.cmd = nil
		if err != nil {
			return fmt.Errorf("the broker's last stop: %w; see %s", err, b.log.Name())
		}
		return nil
	case <-time.After(stopWithin):
		b.kill()
		return errors.New("the broker did not stop when asked; see " + b.log.Name())
	}
}

func (b *broker) close() {
	b.kill()
	b.log.Close()
}
