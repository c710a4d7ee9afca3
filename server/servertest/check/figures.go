package check

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// Figures are what one schedule of a campaign showed: the numbers of a line of its file.
type Figures struct {
	Seed   uint64 `json:"seed"`
	Faults string `json:"faults"` // what happened, in order
	// Ops are sends and acks. The next three are of sends.
	Ops         int           `json:"ops"`
	OK          int           `json:"ok"`
	Unknown     int           `json:"unknown"`
	Failed      int           `json:"failed"`
	Lost        int           `json:"lost"`        // violations of C1
	Phantom     int           `json:"phantom"`     // violations of C2
	Duplicate   int           `json:"duplicate"`   // further copies and deliveries that have a reason
	Unexplained int           `json:"unexplained"` // and those that have none
	Reordered   int           `json:"reordered"`   // violations of C5
	Other       int           `json:"other"`       // violations of other checks, unexpected errors, what was not well in time
	Recovery    time.Duration `json:"recovery"`    // the longest, until all was well again; in ns
	// Count is how often happened what schedules of its kind are counted by: power losses, crash clones, injected errors, simulated hours, ...
	Count int `json:"count"`
}

// Figures of a history; which schedule it is of, its recovery and its count are for the caller to say.
func (r *Report) Figures() Figures {
	f := Figures{Ops: r.Ops, OK: r.SentOK, Unknown: r.SentUnknown, Failed: r.SentFailed, Duplicate: r.LogCopies, Unexplained: r.Unexplained}
	for _, n := range r.Duplicates {
		f.Duplicate += n
	}
	for _, c := range r.Checks {
		switch c.Name {
		case "C1":
			f.Lost = c.Violations
		case "C2":
			f.Phantom = c.Violations
		case "C3": // those without a reason are counted as such
			f.Other += max(0, c.Violations-r.Unexplained)
		case "C5":
			f.Reordered = c.Violations
		default:
			f.Other += c.Violations
		}
	}
	return f
}

// Violations counts what must not be.
func (f *Figures) Violations() int {
	return f.Lost + f.Phantom + f.Unexplained + f.Reordered + f.Other
}

// figuresMark begins the line by which a test tells its figures.
const figuresMark = "campaign: "

// Print writes the line by which a test that is a schedule of a campaign tells its figures, once, to its standard output.
func (f *Figures) Print(w io.Writer) error {
	b, err := json.Marshal(f)
	if err != nil {
		panic(err) // numbers and a string
	}
	_, err = fmt.Fprintf(w, "%s%s\n", figuresMark, b)
	return err
}

// FindFigures finds the one line of Print in the output of a test.
func FindFigures(output []byte) (Figures, error) {
	var f Figures
	found := 0
	for line := range bytes.Lines(output) {
		if text, ok := bytes.CutPrefix(line, []byte(figuresMark)); ok {
			found++
			d := json.NewDecoder(bytes.NewReader(text))
			d.DisallowUnknownFields()
			if err := d.Decode(&f); err != nil {
				return f, fmt.Errorf("check: %q: %w", line, err)
			}
		}
	}
	if found != 1 {
		return f, fmt.Errorf("check: %d lines begin with %q, want one", found, figuresMark)
	}
	return f, nil
}
