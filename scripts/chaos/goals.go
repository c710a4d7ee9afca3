package main

import "fmt"

// goal is how much of a kind a release needs.
type goal struct {
	kind string
	what string // a line's count is of these
	// schedules: not they are needed, but so many schedules in which some happened.
	schedules bool
	release   int // 0: no number is needed
}

var goals = []goal{
	{kind: "kill", what: "kill -9 cycles", release: 1000},
	{kind: "pause", what: "pauses"},
	{kind: "clients", what: "times that clients are killed or paused"},
	{kind: "slave", what: "slave losses", schedules: true, release: 300},
	{kind: "partition", what: "partitions", schedules: true, release: 500},
	{kind: "power-ext4", what: "power losses", release: 500},
	{kind: "power-xfs", what: "power losses", release: 500},
	{kind: "power-cache", what: "power losses", release: 500},
	{kind: "disk-full", what: "full disks", release: 100},
	{kind: "disk-slow", what: "slow disks"},
	{kind: "disk-error", what: "failing disks"},
	{kind: "two-masters", what: "masters that know nothing of the next one", schedules: true, release: 300},
	{kind: "clones", what: "crash clones", release: 100_000},
	{kind: "errors", what: "injected errors"},
	{kind: "broker", what: "power losses, kills, errors, full disks and stops"},
	{kind: "sim", what: "simulated hours", release: 24 * 1000},
	{kind: "soak", what: "seconds of mixed faults", release: 2 * 60 * 60},
	{kind: "mutations", what: "mutations of each decoder", release: 1_000_000_000},
}

// goalOf returns what is needed of a kind.
func goalOf(kind string) (goal, bool) {
	for _, g := range goals {
		if g.kind == kind {
			return g, true
		}
	}
	return goal{}, false
}

// done is how much of the goal t has.
func (g *goal) done(t *total) int {
	if g.schedules {
		return t.happened
	}
	return t.Count
}

// reached says in words how much there is of what t is counted by, and is needed.
func (t *total) reached() string {
	g, ok := goalOf(t.kind)
	if !ok {
		return ""
	}
	s := fmt.Sprintf("%d %s", t.Count, g.what)
	switch {
	case g.release == 0:
		return s
	case g.schedules:
		return fmt.Sprintf("%d of %d schedules for a release, with %s", g.done(t), g.release, s)
	}
	return fmt.Sprintf("%d of %d %s for a release", g.done(t), g.release, g.what)
}
