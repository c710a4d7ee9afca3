package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jmqio/jmq/server/servertest/ports"
)

// server is a broker of the benchmark's own, on a folder and ports that stay the same over its lives. It belongs to the
// goroutine that calls it.
type server struct {
	binary, dir string
	wire, admin string
	roles       []string // empty: broker
	flags       []string
	cmd         *exec.Cmd
	stderr      bytes.Buffer
	ended       chan struct{}
}

const serverReadyWithin = 2 * time.Minute

func newServer(binary, parent, name string, flags ...string) (*server, error) {
	s := &server{dir: filepath.Join(parent, name), flags: flags}
	var err error
	if s.binary, err = filepath.Abs(binary); err == nil {
		if s.wire, _, err = ports.Take(); err == nil { // to the end of the process
			s.admin, _, err = ports.Take()
		}
	}
	return s, err
}

// start returns how long it took until the broker served.
func (s *server) start(ctx context.Context) (time.Duration, error) {
	roles := s.roles
	if len(roles) == 0 {
		roles = []string{"broker"}
	}
	args := append(append([]string{"run"}, roles...), "--data", s.dir, "--node.wire.listen", s.wire, "--node.admin.listen", s.admin, "--log.level", "warn")
	args = append(args, s.flags...)
	s.cmd = exec.Command(s.binary, args...)
	s.cmd.Stderr = &s.stderr
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for the benchmark, which then stops it
	s.cmd.Dir = filepath.Dir(s.dir)                         // so that no jmq.yaml of the caller is read
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "JMQ_") {
			s.cmd.Env = append(s.cmd.Env, e)
		}
	}
	begin := time.Now()
	if err := s.cmd.Start(); err != nil {
		return 0, err
	}
	s.ended = make(chan struct{})
	go func() { // ends with the process; kill and stop wait for it
		_ = s.cmd.Wait() // how it ended is seen by who waits for it
		close(s.ended)
	}()
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		if r, err := client.Get("http://" + s.admin + "/readyz"); err == nil {
			r.Body.Close()
			if r.StatusCode == http.StatusOK {
				return time.Since(begin), nil
			}
		}
		select {
		case <-s.ended:
			return 0, fmt.Errorf("the broker ended at its start: %s", strings.TrimSpace(s.stderr.String()))
		case <-ctx.Done():
			s.kill()
			return 0, ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
		if time.Since(begin) > serverReadyWithin {
			s.kill()
			return 0, fmt.Errorf("the broker was not ready within %v: %s", serverReadyWithin, strings.TrimSpace(s.stderr.String()))
		}
	}
}

// kill is SIGKILL.
func (s *server) kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill() // it may have ended, and is waited for in any case
	<-s.ended
	s.cmd = nil
}

// drop kills the server and removes its folder.
func (s *server) drop() {
	s.kill()
	_ = os.RemoveAll(s.dir) // the folder above goes at the end too
}

// proc reads the number behind key in /proc/PID/file.
func (s *server) proc(file, key string) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", s.cmd.Process.Pid, file))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, key); ok {
			return strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
		}
	}
	return 0, fmt.Errorf("no %s in /proc/%d/%s", key, s.cmd.Process.Pid, file)
}

// rss is the resident memory in bytes: now, and the most that it ever was.
func (s *server) rss() (now, peak int64, err error) {
	if now, err = s.proc("status", "VmRSS:"); err == nil {
		peak, err = s.proc("status", "VmHWM:")
	}
	return now << 10, peak << 10, err
}

// metric reads one metric without labels from the admin port.
func (s *server) metric(ctx context.Context, name string) (float64, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.admin+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(v), 64)
		}
	}
	return 0, fmt.Errorf("no metric %s", name)
}

// diskWritten is what the disk of a folder was given to write since it was there, by anybody.
func diskWritten(folder string) (int64, error) {
	info, err := os.Stat(folder)
	if err != nil {
		return 0, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, errors.New("no device number of " + folder)
	}
	dev := uint64(stat.Dev) // as the kernel puts the two together
	major, minor := dev>>8&0xfff|dev>>32&^0xfff, dev&0xff|dev>>12&^0xff
	b, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/stat", major, minor))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(b))
	if len(fields) < 7 {
		return 0, fmt.Errorf("the statistics of the disk of %s have %d fields", folder, len(fields))
	}
	sectors, err := strconv.ParseInt(fields[6], 10, 64)
	return sectors * 512, err
}

// openIn counts the files that the process has open below a part of its folder.
func (s *server) openIn(part string) (int, error) {
	folder := fmt.Sprintf("/proc/%d/fd", s.cmd.Process.Pid)
	entries, err := os.ReadDir(folder)
	if err != nil {
		return 0, err
	}
	n := 0
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join(folder, e.Name()))
		if err == nil && strings.HasPrefix(target, filepath.Join(s.dir, part)+"/") {
			n++
		}
	}
	return n, nil
}

// folder counts the bytes and the files below a part of the data folder.
func (s *server) folder(part string) (size int64, files int, err error) {
	err = filepath.WalkDir(filepath.Join(s.dir, part), func(_ string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			info, err := d.Info()
			if err == nil {
				size += info.Size()
				files++
			}
			return ignoreGone(err)
		}
		return ignoreGone(err)
	})
	return size, files, err
}

func ignoreGone(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
