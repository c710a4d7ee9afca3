package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/server/servertest/check"
)

// What a worker does.
const (
	produces = "produces"
	consumes = "consumes"
)

// job is what a worker is told.
type job struct {
	What       string
	Topic      string
	Proc       string
	Keys       int
	Seed       uint64
	Groups     []string // broker groups, in the order in which their partitions are counted
	Addresses  []string
	Credential string
}

// workCommand produces or consumes until its input ends. What it does and sees it writes as a history to its output, before it goes on: so that what it
// had written when it is killed is all that it did. What should not be goes to its errors, a line each.
func workCommand(args []string) int {
	var j job
	if len(args) != 1 || json.Unmarshal([]byte(args[0]), &j) != nil {
		fmt.Fprintln(os.Stderr, "chaos work is for chaos run to call")
		return exitBad
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // ends with the process
		_, _ = io.Copy(io.Discard, os.Stdin) // until its end, however that comes
		cancel()
	}()
	if err := j.do(ctx, teller{check.NewWriter(struct{ io.Writer }{os.Stdout})}); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", j.Proc, err)
		return exitViolated
	}
	return exitClean
}

func (j *job) do(ctx context.Context, w teller) error {
	dialing, cancel := context.WithTimeout(ctx, recoverWithin)
	defer cancel()
	cl, err := client.Dial(dialing, strings.Join(j.Addresses, ","), client.WithApp(app), client.WithCredentialsFile(j.Credential))
	if err != nil {
		if ctx.Err() != nil {
			return nil // it is to end before it began
		}
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = cl.Close(closing)
	}()
	if j.What == consumes {
		c, err := newConsumer(w, cl, j.Groups, j.Topic, j.Proc)
		if err != nil {
			return err
		}
		c.work = 60 * time.Millisecond // it is to be killed in the middle of it
		c.run(ctx)
		return w.Close()
	}
	p, err := cl.Producer(j.Topic, client.Timeout(2*time.Second))
	if err != nil {
		return err
	}
	(&producer{witness: w, groups: j.Groups, p: p, rng: rand.New(rand.NewPCG(j.Seed, 3)), topic: j.Topic, proc: j.Proc, keys: j.Keys, mortal: true}).run(ctx)
	return w.Close()
}

// teller writes what a worker does and sees.
type teller struct{ *check.Writer }

func (w teller) event(events ...check.Event) {
	if err := errors.Join(w.Write(events...), w.Flush()); err != nil {
		panic(err) // nobody hears it any more
	}
}

func (w teller) problem(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// worker is a process that produces or consumes, again and again. Its methods belong to the trial's goroutine.
type worker struct {
	t           *trial
	what, topic string

	lives int
	proc  string // of this life
	cmd   *exec.Cmd
	input io.Closer
	ended chan struct{} // all that it said was heard; nil: it does not run
	// killed: that it ended is what was wanted. Written before the signal, and read after its end.
	killed bool
}

// begin starts it unless it runs.
func (w *worker) begin() error {
	if w.ended != nil {
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	w.lives++
	w.proc = fmt.Sprintf("%s-%s-%d", w.topic, w.what, w.lives)
	j := job{
		What: w.what, Topic: w.topic, Proc: w.proc, Keys: w.lives % 3, Seed: w.t.rng.Uint64(), Groups: w.t.groups,
		Addresses: w.t.Addresses(""), Credential: filepath.Join(w.t.dir, "app.credential"),
	}
	told, err := json.Marshal(j)
	if err != nil {
		return err
	}
	cmd := exec.Command(self, "work", string(told))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	input, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	says, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	wrong, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	started, ended := make(chan error), make(chan struct{})
	go func() { // ends with the process
		// The signal at our end is bound to the thread that started it: that thread stays while the process runs.
		runtime.LockOSThread()
		defer close(ended)
		var err error
		if w.t.network == nil {
			defer runtime.UnlockOSThread()
		} else {
			err = w.t.network.Enter(clientsHost)
		}
		if err == nil {
			err = cmd.Start()
		}
		started <- err
		if err != nil {
			return
		}
		complained := make(chan string)
		go func() { // ends with the process
			var said []string
			for lines := bufio.NewScanner(wrong); lines.Scan(); {
				said = append(said, lines.Text())
			}
			complained <- strings.Join(said, "; ")
		}()
		torn := w.hear(says)
		said := <-complained
		err = cmd.Wait()
		if why := cmp.Or(said, fmt.Sprint(cmp.Or(err, torn))); said != "" || !w.killed && (err != nil || torn != nil) {
			w.t.problem("%s: %s", w.proc, why)
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start %s: %w", w.proc, err)
	}
	w.cmd, w.input, w.ended, w.killed = cmd, input, ended, false
	return nil
}

// hear takes the history that it writes. A last line may be torn, if it was killed.
func (w *worker) hear(says io.Reader) error {
	for r := check.NewReader(says); ; {
		e, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			_, _ = io.Copy(io.Discard, says)
			return err
		}
		w.t.event(e)
	}
}

func (w *worker) signal(s syscall.Signal) {
	if w.ended != nil {
		_ = w.cmd.Process.Signal(s) // it may have ended
	}
}

func (w *worker) pause()  { w.signal(syscall.SIGSTOP) }
func (w *worker) resume() { w.signal(syscall.SIGCONT) }

// kill is SIGKILL, and the wait for its end.
func (w *worker) kill() {
	if w.ended != nil {
		w.killed = true
		w.end(func() { w.signal(syscall.SIGKILL) })
	}
}

// stop has it end what it is at.
func (w *worker) stop() {
	if w.ended != nil {
		w.resume()
		w.end(func() {})
	}
}

// end notes its death before that can be seen.
func (w *worker) end(how func()) {
	w.t.event(check.Event{Op: check.OpDie, Proc: w.proc, Call: now()})
	how()
	_ = w.input.Close() // it may have ended
	<-w.ended
	w.ended = nil
}

// beginWorkers starts those that do not run, and has those go on that were paused.
func (t *trial) beginWorkers() error {
	var errs []error
	for _, w := range t.workers {
		w.resume()
		if t.work {
			errs = append(errs, w.begin())
		}
	}
	return errors.Join(errs...)
}

// worker chooses one that produces or consumes.
func (t *trial) worker(what string) *worker {
	var list []*worker
	for _, w := range t.workers {
		if w.what == what {
			list = append(list, w)
		}
	}
	return list[t.rng.IntN(len(list))]
}

// killWorkers kills a worker of each of whats, and all of them start again; so many times.
func (t *trial) killWorkers(ctx context.Context, times int, whats ...string) error {
	for n := range times {
		t.times = n + 1
		t.hold(ctx, 50, 800)
		for _, what := range whats {
			t.worker(what).kill()
		}
		t.hold(ctx, 0, 600)
		if err := t.beginWorkers(); err != nil {
			return err
		}
	}
	return nil
}
