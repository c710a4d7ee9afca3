package check

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
)

// Usage is what a process has taken from the system. 0: not measured.
type Usage struct {
	Goroutines int   `json:"goroutines,omitempty"`
	Open       int   `json:"open,omitempty"`  // file descriptors
	Files      int   `json:"files,omitempty"` // in its folders
	RSS        int64 `json:"rss,omitempty"`   // bytes
}

// Own measures this process, after what it does not need was given back, and counts the files of folders.
func Own(folders ...string) (Usage, error) {
	debug.FreeOSMemory()
	u, err := Of(os.Getpid(), folders...)
	u.Goroutines = runtime.NumGoroutine()
	return u, err
}

// Of measures another process.
func Of(pid int, folders ...string) (u Usage, err error) {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	open, err := os.ReadDir(filepath.Join(proc, "fd"))
	if err != nil {
		return u, err
	}
	u.Open = len(open)
	statm, err := os.ReadFile(filepath.Join(proc, "statm"))
	if err != nil {
		return u, err
	}
	fields := bytes.Fields(statm)
	if len(fields) < 2 {
		return u, fmt.Errorf("%s/statm is %q", proc, statm)
	}
	pages, err := strconv.ParseInt(string(fields[1]), 10, 64)
	if err != nil {
		return u, fmt.Errorf("%s/statm: %w", proc, err)
	}
	u.RSS = pages * int64(os.Getpagesize())
	for _, f := range folders {
		if err := filepath.WalkDir(f, func(_ string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				u.Files++
			}
			return err
		}); err != nil {
			return u, err
		}
	}
	return u, nil
}

type usage struct {
	Usage
	call int64
}

// What a process may keep: the memory of a runtime is never given back to the last page.
const (
	rssPercent = 5
	rssSlack   = 32 << 20
)

// noLeak is C11: a process comes back to what it had at first.
func (c *Checker) noLeak() *CheckResult {
	out := &CheckResult{Name: "C11", Title: "no leak", What: "usages"}
	procs := make([]uint32, 0, len(c.usages))
	for p := range c.usages {
		procs = append(procs, p)
	}
	slices.SortFunc(procs, func(a, b uint32) int { return bytes.Compare([]byte(c.names.name(a)), []byte(c.names.name(b))) })
	for _, p := range procs {
		all := slices.Clone(c.usages[p])
		slices.SortStableFunc(all, func(a, b usage) int { return int(min(max(a.call-b.call, -1), 1)) })
		first := all[0]
		for _, u := range all[1:] {
			out.Checked++
			for _, more := range u.Beyond(first.Usage) {
				out.violate(Subject{Op: OpUsage, Proc: c.names.name(p)}, "%s has %s, from %d to %d", c.names.name(p), more, first.call, u.call)
			}
		}
	}
	return out
}

// Beyond says what of a process is more than it may keep of what it had first.
func (u Usage) Beyond(first Usage) (all []string) {
	tell := func(what string, was, is, most int64) {
		if was != 0 && is > most {
			all = append(all, fmt.Sprintf("%d %s instead of %d", is, what, was))
		}
	}
	tell("goroutines", int64(first.Goroutines), int64(u.Goroutines), int64(first.Goroutines))
	tell("open files", int64(first.Open), int64(u.Open), int64(first.Open))
	tell("files", int64(first.Files), int64(u.Files), int64(first.Files))
	tell("bytes of memory", first.RSS, u.RSS, first.RSS+first.RSS/100*rssPercent+rssSlack)
	return all
}
