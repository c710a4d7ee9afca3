package check

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// offendersMax is how many violations of a check are told in words; all are counted.
const offendersMax = 5

// Reason names why something came twice.
type Reason string

const (
	ReasonAckUnknown      Reason = "ack unknown"           // the ack of the earlier delivery may not have arrived
	ReasonLeaseExpired    Reason = "lease expired"         // the earlier lease ran out
	ReasonConsumerDied    Reason = "consumer died"         // who held the lease died or lost its connection
	ReasonBrokerRestarted Reason = "broker restarted"      // leases are in memory
	ReasonReleased        Reason = "released"              // its consumer gave it back
	ReasonReset           Reason = "offset reset"          // a person asked for it
	ReasonAckAtSlave      Reason = "ack at a slave"        // the master did not have it yet
	ReasonSlaveBehind     Reason = "slave behind"          // it did not have what the master took, or the other way round
	ReasonSendRepeated    Reason = "send unknown repeated" // the log has another copy: an attempt of unknown outcome was repeated
)

// Reasons is all of them, in the order of a report.
var Reasons = []Reason{ReasonAckUnknown, ReasonLeaseExpired, ReasonConsumerDied, ReasonBrokerRestarted, ReasonReleased, ReasonReset, ReasonAckAtSlave, ReasonSlaveBehind, ReasonSendRepeated}

// Result of one check.
type CheckResult struct {
	Name       string // C1 to C11
	Title      string
	Checked    int    // facts looked at; 0: the history has none
	What       string // what the facts are
	Violations int
	Offenders  []string  // the first ones
	Subjects   []Subject // what each of them is about
	Note       string
}

func (r *CheckResult) violate(about Subject, format string, args ...any) {
	r.Violations++
	if len(r.Offenders) < offendersMax {
		r.Offenders = append(r.Offenders, fmt.Sprintf(format, args...))
		r.Subjects = append(r.Subjects, about)
	}
}

func (r *CheckResult) note(format string, args ...any) {
	if r.Note != "" {
		r.Note += ", "
	}
	r.Note += fmt.Sprintf(format, args...)
}

// Status is "ok", "VIOLATED" or "nothing to check".
func (r *CheckResult) Status() string {
	switch {
	case r.Violations > 0:
		return "VIOLATED"
	case r.Checked == 0:
		return "nothing to check"
	}
	return "ok"
}

// Report is what a history shows.
type Report struct {
	Events, Messages, Deliveries    int
	SentOK, SentFailed, SentUnknown int
	Restarts                        int
	LogCopies                       int            // further copies in the log, explained
	Duplicates                      map[Reason]int // further deliveries by reason; each is counted once, under its first one
	Unexplained                     int
	Ops                             int            // sends and acks
	Copies                          int            // ranges of copies of a journal that were compared, in C4
	Checks                          []*CheckResult // C1 to C11
}

// OK says whether nothing was violated.
func (r *Report) OK() bool {
	return !slices.ContainsFunc(r.Checks, func(c *CheckResult) bool { return c.Violations > 0 })
}

// Check returns the result of one, by its name.
func (r *Report) Check(name string) *CheckResult {
	for _, c := range r.Checks {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// Unchecked names those checks, of the named ones, that found nothing to look at.
func (r *Report) Unchecked(names ...string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { c := r.Check(name); return c != nil && c.Checked > 0 })
}

// Violated names the checks that found something.
func (r *Report) Violated() []string {
	var names []string
	for _, c := range r.Checks {
		if c.Violations > 0 {
			names = append(names, c.Name)
		}
	}
	return names
}

// Err is nil, or tells all violations: for tests.
func (r *Report) Err() error {
	if r.OK() {
		return nil
	}
	return errors.New("history violates " + strings.Join(r.Violated(), ", ") + "\n" + r.String())
}

// Summary is one line of figures. The first ones are those of a line of a campaign; ops are sends and acks, the next three are of messages
// sent. Those after duplicate must be 0.
func (r *Report) Summary() string {
	duplicate := r.LogCopies
	for _, n := range r.Duplicates {
		duplicate += n
	}
	n := func(name string) int { return r.Check(name).Violations }
	return fmt.Sprintf("ops %d ok %d unknown %d failed %d duplicate %d lost %d phantom %d unexplained %d reordered %d indexes %d acks %d skipped %d unbalanced %d unfenced %d nonlinear %d leaked %d",
		r.Ops, r.SentOK, r.SentUnknown, r.SentFailed, duplicate, n("C1"), n("C2"), n("C3"), n("C5"), n("C4"), n("C6"), n("C7"), n("C8"), n("C9"), n("C10"), n("C11"))
}

func (r *Report) String() string {
	var b strings.Builder
	r.Print(&b)
	return b.String()
}

// Print writes one line a check, with the first offenders below it.
func (r *Report) Print(w io.Writer) { r.print(w, true) }

// PrintTable writes one line a check.
func (r *Report) PrintTable(w io.Writer) { r.print(w, false) }

func (r *Report) print(w io.Writer, offenders bool) {
	fmt.Fprintf(w, "history: %d events, %d messages (%d ok, %d failed, %d unknown), %d deliveries, %d restarts\n",
		r.Events, r.Messages, r.SentOK, r.SentFailed, r.SentUnknown, r.Deliveries, r.Restarts)
	for _, c := range r.Checks {
		fmt.Fprintf(w, "%-3s %-22s %-16s %8d %s", c.Name, c.Title, c.Status(), c.Checked, c.What)
		if c.Violations > 0 {
			fmt.Fprintf(w, ", %d violations", c.Violations)
		}
		if c.Note != "" {
			fmt.Fprintf(w, "; %s", c.Note)
		}
		fmt.Fprintln(w)
		if !offenders {
			continue
		}
		for _, o := range c.Offenders {
			fmt.Fprintf(w, "     - %s\n", o)
		}
		if more := c.Violations - len(c.Offenders); more > 0 {
			fmt.Fprintf(w, "     - and %d more\n", more)
		}
	}
}
