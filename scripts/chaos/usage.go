package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jmqio/jmq/scripts/localcluster"
	"github.com/jmqio/jmq/server/servertest/check"
)

// What a process at rest has at one time and not at another: connections of the registry to its database, and of nodes to each other, whoever looks at it. A
// leak grows beyond.
const (
	restGoroutines = 8
	restOpen       = 8
	restRuns       = 24 // files of runs that were merged, which the two checkpoints before may name
)

// rest waits until every process has no more than it had when it was at rest first, and no folder has what is left over, and notes it. The clients are gone.
func (t *trial) rest(ctx context.Context) {
	var found map[string]check.Usage
	var wrong []string
	fits := func() bool {
		found, wrong = t.usages(ctx)
		for proc, u := range found {
			if first, ok := t.base[proc]; ok {
				for _, more := range u.Beyond(first) {
					wrong = append(wrong, proc+" has "+more)
				}
			}
		}
		return len(wrong) == 0
	}
	err := t.await(ctx, "at rest nothing is left over", fits)
	if ctx.Err() != nil {
		return
	}
	at := now()
	if t.base == nil {
		t.base, t.based = map[string]check.Usage{}, at
	}
	for proc, u := range found {
		if _, ok := t.base[proc]; !ok { // to what it has come back, what comes and goes by itself aside, is told once
			t.base[proc] = check.Usage{Goroutines: u.Goroutines + restGoroutines, Open: u.Open + restOpen, RSS: u.RSS}
			base := t.base[proc]
			t.event(check.Event{Op: check.OpUsage, Proc: proc, Usage: &base, Call: at})
			continue
		}
		t.event(check.Event{Op: check.OpUsage, Proc: proc, Usage: &u, Call: at})
	}
	if err != nil {
		slices.Sort(wrong)
		t.problem("at rest, after %v: %s", recoverWithin, strings.Join(wrong, "; "))
	}
}

// usages measures all processes. A broker has more to do as a master, so it is called by its role; of several slaves the most counts.
func (t *trial) usages(ctx context.Context) (found map[string]check.Usage, wrong []string) {
	found = map[string]check.Usage{}
	for _, n := range t.Nodes {
		u, err := usageOf(ctx, n)
		if err != nil {
			wrong = append(wrong, err.Error())
			continue
		}
		proc := n.Name
		if n.Role == "broker" {
			state := t.look(ctx, n)
			proc = state.role + " of " + n.Group
			for _, name := range leftOver(n.DataFolder(), state) {
				wrong = append(wrong, n.Name+" has "+name)
			}
		}
		was := found[proc]
		found[proc] = check.Usage{Goroutines: max(u.Goroutines, was.Goroutines), Open: max(u.Open, was.Open), RSS: max(u.RSS, was.RSS)}
	}
	own, err := check.Own()
	if err != nil {
		wrong = append(wrong, err.Error())
	}
	own.RSS = 0 // it has the history
	found["clients"] = own
	return found, wrong
}

// usageOf measures a node, after it has collected its garbage.
func usageOf(ctx context.Context, n *localcluster.Node) (check.Usage, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	n.Ask(ctx, "/debug/pprof/heap?gc=1")
	u, err := check.Of(n.PID())
	if err == nil && n.Role == "broker" {
		files, bad := dataFiles(n.PID(), n.DataFolder())
		u.Open, err = u.Open-files, bad
	}
	for line := range strings.Lines(n.Metrics(ctx)) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), " "); name == "go_goroutines" {
			v, bad := strconv.ParseFloat(value, 64)
			if bad != nil {
				return u, bad
			}
			u.Goroutines = int(v)
		}
	}
	if err == nil && u.Goroutines == 0 {
		err = fmt.Errorf("%s does not say what it has", n.Name)
	}
	return u, err
}

// dataFiles counts the files in folder that a process has open, each once: as many as the folder has they may be. One that was deleted is none.
func dataFiles(pid int, folder string) (int, error) {
	fds := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	list, err := os.ReadDir(fds)
	if err != nil {
		return 0, err
	}
	files := map[string]bool{}
	for _, fd := range list {
		name, err := os.Readlink(filepath.Join(fds, fd.Name()))
		if err == nil && strings.HasPrefix(name, folder+"/") && !strings.HasSuffix(name, " (deleted)") {
			files[name] = true
		}
	}
	return len(files), nil
}

// temporary are names of files that are being made, or that a broker could not use.
var temporary = regexp.MustCompile(`\.(new|filling|part|tmp|bad)$`)

// leftOver names what is in the folder of a broker at rest and belongs to nothing.
func leftOver(folder string, n node) (names []string) {
	segments, runs := 0, 0
	err := fs.WalkDir(os.DirFS(folder), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == "lost+found":
			return fs.SkipDir
		case d.IsDir():
		case temporary.MatchString(name):
			names = append(names, name)
		case filepath.Dir(name) == "journal" && filepath.Ext(name) == ".journal" && name[len("journal/")] <= '9':
			segments++
		case filepath.Ext(name) == ".index":
			runs++
		}
		return nil
	})
	if err != nil {
		names = append(names, err.Error())
	}
	if segments != n.segments {
		names = append(names, fmt.Sprintf("%d files of segments, and %d segments", segments, n.segments))
	}
	if runs > n.runs+restRuns {
		names = append(names, fmt.Sprintf("%d files of runs, and %d runs", runs, n.runs))
	}
	return names
}
