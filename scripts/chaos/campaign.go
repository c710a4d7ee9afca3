package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jmqio/jmq/scripts/chaos/disk"
	"github.com/jmqio/jmq/scripts/chaos/netns"
	"github.com/jmqio/jmq/scripts/testenv"
)

// lifeSchedules is how many schedules a cluster sees, one after the other, before its disks are looked at.
const lifeSchedules = 8

// campaign is a run of schedules.
type campaign struct {
	n       int           // schedules in all
	seed    uint64        // of the first
	soak    time.Duration // of mixed faults; those that the file has of it are part of it
	short   bool          // the small version, of the first schedules of every kind
	file    string        // of rows; "": none
	binary  string
	planted string // a bug that a program built with the tag planted is to have
	dir     string // of clusters
	require bool   // what is missing here is an error
	kinds   []*kind
	tests   map[string]string // what was built of them, by package
	// stopping: no schedule begins any more.
	stopping atomic.Bool

	commit, digest string
	rows           []row // of this digest: those of the file and of this run
	failed         []string
	out            io.Writer
}

const usage = `usage: chaos run [flags]

Runs schedules of faults on clusters of real processes, with producers and consumers whose history is checked; and those that are
tests: of clusters in simulated time, and of the store with its power lost, or with an error, at each call.

`

func campaignOf(args []string) (*campaign, error) {
	c := &campaign{out: os.Stdout}
	f := flag.NewFlagSet("chaos", flag.ContinueOnError)
	f.Usage = func() {
		fmt.Fprint(f.Output(), usage)
		f.PrintDefaults()
	}
	var faults, resume string
	f.IntVar(&c.n, "n", 0, "how many schedules in all, of each kind as many as of the others; 0: the small version, two of each kind")
	f.DurationVar(&c.soak, "duration", 12*time.Minute, "how long soak lasts, with what the file has of it; it is left out unless -faults names it")
	f.Uint64Var(&c.seed, "seed", 1, "of the first schedule of each kind; the next has the next one")
	f.StringVar(&faults, "faults", "", "kinds of faults, with commas; empty: all of "+kindNames())
	f.StringVar(&resume, "resume", "", "file of rows: what it has of this code is not run again, and what is run is added")
	f.StringVar(&c.binary, "jmq", "./jmq", "the program")
	f.StringVar(&c.planted, "planted", "", "bug that a -jmq built with the tag planted is to have: the campaign must find it")
	f.StringVar(&c.dir, "dir", ".bin/campaign", "folder of clusters; what fails is kept there")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("unknown argument %q", f.Arg(0))
	}
	if faults == "" {
		faults = kindNames()
	}
	var unknown string
	if c.kinds, unknown = kindsOf(faults); unknown != "" || len(c.kinds) == 0 {
		return nil, fmt.Errorf("there is no kind of faults %q: they are %s, soak; power, and disk, are all whose names begin so", unknown, kindNames())
	}
	if c.n < 0 {
		return nil, fmt.Errorf("-n is %d", c.n)
	}
	if c.short = c.n == 0; c.short {
		c.n = 2 * len(c.kinds)
	}
	c.require = testenv.Required("chaos")
	c.file = resume
	var err error
	if c.binary, err = filepath.Abs(c.binary); err != nil {
		return nil, err
	}
	c.dir, err = filepath.Abs(c.dir)
	return c, err
}

func kindNames() string {
	var names []string
	for i := range kinds {
		if !kinds[i].soak {
			names = append(names, kinds[i].name)
		}
	}
	return strings.Join(names, ", ")
}

func runCommand(args []string) int {
	c, err := campaignOf(args)
	if errors.Is(err, flag.ErrHelp) {
		return exitClean
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos run:", err)
		return exitBad
	}
	if slices.ContainsFunc(c.kinds, func(k *kind) bool { return k.disk != nil }) {
		if err := disk.EnterMounts(); err != nil && (c.require || !missing(err)) { // what is missing is told by the disks
			fmt.Fprintln(os.Stderr, "chaos run:", err)
			return exitBad
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() { // ends with the program
		<-signals
		fmt.Fprintln(os.Stderr, "chaos run: ends after this schedule; once more ends at once, and what this cluster showed is run again")
		c.stopping.Store(true)
		<-signals
		cancel()
	}()
	if err = c.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "chaos run:", err)
	}
	switch {
	case len(c.failed) > 0:
		return exitViolated
	case err != nil:
		return exitBad
	}
	return exitClean
}

func (c *campaign) run(ctx context.Context) (err error) {
	if c.commit, c.digest, err = digest(ctx, "."); err != nil {
		return err
	}
	done := map[string]bool{}
	if c.file != "" {
		rows, err := readRows(c.file)
		if err != nil {
			return err
		}
		for _, r := range rows {
			if r.Digest == c.digest {
				c.rows = append(c.rows, r)
				done[fmt.Sprint(r.Kind, " ", r.Seed)] = true
				if r.Violations() > 0 {
					c.failed = append(c.failed, fmt.Sprintf("in %s: %s, seed %d", c.file, r.Kind, r.Seed))
				}
			}
		}
	}
	if err := c.sweep(); err != nil {
		return err
	}
	// Seeds of each kind that are to be run; lives of clusters take turns among the kinds.
	left := make([][]uint64, len(c.kinds))
	for i, k := range c.kinds {
		share := (c.n + len(c.kinds) - 1 - i) / len(c.kinds)
		switch {
		case k.soak:
			share = 0
		case c.short && k.test != nil:
			share = 1
		}
		for s := range uint64(share) {
			if !done[fmt.Sprint(k.name, " ", c.seed+s)] {
				left[i] = append(left[i], c.seed+s)
			}
		}
	}
	defer func() {
		for _, binary := range c.tests {
			err = errors.Join(err, os.Remove(binary))
		}
	}()
	for more := true; more && err == nil; {
		more = false
		for i, k := range c.kinds {
			if len(left[i]) == 0 || ctx.Err() != nil || c.stopping.Load() {
				continue
			}
			n := 1
			if k.test != nil {
				err = c.test(ctx, k, left[i][0])
			} else {
				// Seeds of one life follow each other: the shape of the cluster is that of the first of them all.
				for n < len(left[i]) && left[i][n]/lifeSchedules == left[i][0]/lifeSchedules {
					n++
				}
				n, err = c.life(ctx, k, left[i][:n])
			}
			if !c.require && missing(err) {
				fmt.Fprintf(c.out, "%s: left out: %v\n", k.name, err)
				n, err = len(left[i]), nil
			}
			if err != nil {
				break
			}
			left[i], more = left[i][n:], true
		}
	}
	for _, k := range c.kinds {
		if !k.soak || err != nil || ctx.Err() != nil || c.stopping.Load() {
			continue
		}
		if err = c.soakOn(ctx, k); !c.require && missing(err) {
			fmt.Fprintf(c.out, "%s: left out: %v\n", k.name, err)
			err = nil
		}
	}
	fmt.Fprintf(c.out, "\ncode %s, commit %s\n", c.digest, c.commit)
	printTotals(c.out, totals(c.rows))
	for _, f := range c.failed {
		fmt.Fprintln(c.out, "FAILED:", f)
	}
	missed := 0
	for _, seeds := range left {
		missed += len(seeds)
	}
	switch {
	case err != nil && ctx.Err() == nil:
		return err
	case missed > 0 && c.file != "":
		return fmt.Errorf("%w: %d schedules are left: the same call goes on with them", errStopped, missed)
	case missed > 0:
		return fmt.Errorf("%w: %d schedules are left", errStopped, missed)
	}
	return nil
}

// errStopped: not all that was asked for was run.
var errStopped = errors.New("stopped")

// missing says whether err is of what this machine does not have.
func missing(err error) bool {
	return errors.Is(err, netns.ErrMissing) || errors.Is(err, disk.ErrMissing) || errors.Is(err, testenv.ErrMissing)
}

// shapeOf is that of the cluster on which a seed runs.
func (k *kind) shapeOf(seed uint64) shape {
	shapes := k.shapes
	if shapes == nil {
		shapes = anyShape
	}
	rng := rand.New(rand.NewPCG(seed/lifeSchedules, k.number()))
	return shapes[rng.IntN(len(shapes))]
}

// life runs schedules on one cluster, looks at its disks, and adds their rows. It returns how many they were: it ends when one has shown something, or the
// campaign is to stop.
func (c *campaign) life(ctx context.Context, k *kind, seeds []uint64) (n int, err error) {
	s := k.shapeOf(seeds[0])
	dir := c.folder(k, seeds[0])
	begun := time.Now()
	t, err := c.begin(ctx, k, s, dir)
	if err != nil {
		return 0, c.notBegun(t, err)
	}
	c.up(t, begun)
	var rows []row
	for _, seed := range seeds {
		if c.stopping.Load() && len(rows) > 0 {
			break
		}
		begun := time.Now()
		var r row
		if r, err = t.run(ctx, seed); err != nil {
			break
		}
		rows = append(rows, r)
		c.tell(&r, time.Since(begun))
		if r.Violations() > 0 {
			break
		}
	}
	return len(rows), c.finish(ctx, t, seeds[min(len(rows), len(seeds)-1)], rows, err)
}

// notBegun ends a cluster that did not begin.
func (c *campaign) notBegun(t *trial, err error) error {
	stop := errors.Join(t.end(), t.close())
	if missing(err) {
		return errors.Join(err, os.RemoveAll(t.dir))
	}
	return errors.Join(fmt.Errorf("start a cluster for %s: %w; see %s", t.k.name, err, t.dir), stop)
}

func (c *campaign) up(t *trial, begun time.Time) {
	fmt.Fprintf(c.out, "%s: %d broker groups of 1+%d%s, up in %.1f s\n", t.k.name, t.shape.groups, t.slaves, map[bool]string{true: ", auto"}[t.auto], time.Since(begun).Seconds())
}

func (c *campaign) tell(r *row, took time.Duration) {
	fmt.Fprintf(c.out, "%-12s seed %-5d %4.1f s  ok %d, unknown %d, failed %d, again %d, recovery %v, count %d: %s\n",
		r.Kind, r.Seed, took.Seconds(), r.OK, r.Unknown, r.Failed, r.Duplicate, r.Recovery.Round(time.Millisecond), r.Count, short(r.Faults))
}

// short cuts off what is too much for a line that people read; the file has all.
func short(faults string) string {
	const most = 300
	if len(faults) <= most {
		return faults
	}
	return faults[:strings.LastIndexByte(faults[:most], ' ')] + " ..."
}

// finish ends a cluster, looks at its disks, and adds rows of it, the last of which is told what they show. seed is of what was under way when err came.
func (c *campaign) finish(ctx context.Context, t *trial, seed uint64, rows []row, err error) error {
	k, dir := t.k, t.dir
	begun := time.Now()
	well := err == nil && (len(rows) == 0 || rows[len(rows)-1].Violations() == 0)
	if well {
		if late := t.same(ctx); late != nil {
			t.problem("%v", late)
		} else if !k.soak { // which has done it
			t.leave()
			t.rest(ctx)
		}
	}
	if stop := t.end(); stop != nil && err == nil {
		t.problem("stop: %v", stop)
	}
	if len(rows) > 0 && ctx.Err() == nil {
		t.autopsy()
		t.judge(&rows[len(rows)-1])
	}
	if err == nil {
		err = context.Cause(ctx) // nobody has looked at the disks
	}
	err = errors.Join(err, t.keepDisks(), t.close())
	if err != nil {
		return fmt.Errorf("%s, seed %d: %w; see %s", k.name, seed, err, dir)
	}
	if t.report == "" {
		fmt.Fprintf(c.out, "%s: stopped and looked at in %.1f s\n", k.name, time.Since(begun).Seconds())
		c.rows = append(c.rows, rows...)
		return errors.Join(appendRows(c.file, rows...), os.RemoveAll(dir))
	}
	c.rows = append(c.rows, rows...)
	return errors.Join(appendRows(c.file, rows...), t.keep(), c.fail(&rows[len(rows)-1], dir, t.report))
}

// fail notes that a schedule showed something, and keeps its folder.
func (c *campaign) fail(r *row, dir, report string) error {
	kept := filepath.Join(c.dir, fmt.Sprintf("failed-%s-%d", r.Kind, r.Seed))
	what := fmt.Sprintf("%s, seed %d: %s; kept in %s", r.Kind, r.Seed, r.Faults, kept)
	c.failed = append(c.failed, what)
	fmt.Fprintf(c.out, "FAILED: %s\n%s\n", what, report)
	return errors.Join(os.RemoveAll(kept), os.Rename(dir, kept))
}

// folder is that of a cluster or test while it runs.
func (c *campaign) folder(k *kind, seed uint64) string {
	return filepath.Join(c.dir, fmt.Sprintf("%s%d-%s-%d", workPrefix, os.Getpid(), k.name, seed))
}

// workPrefix begins the names of clusters' folders, before the pid of who uses them.
const workPrefix = "work-"

// sweep makes the folder of clusters, and removes those whose process ended without doing it.
func (c *campaign) sweep() error {
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return err
	}
	left, err := filepath.Glob(filepath.Join(c.dir, workPrefix+"*"))
	if err != nil {
		return err
	}
	for _, dir := range left {
		var pid int
		if _, err := fmt.Sscanf(filepath.Base(dir), workPrefix+"%d-", &pid); err == nil && pid > 1 && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			if err := os.RemoveAll(dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// emptyFolder removes what is in a folder, which may be where a disk is.
func emptyFolder(dir string) error {
	list, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range list {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}
