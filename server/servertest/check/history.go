package check

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// ErrClosed: the history was closed.
var ErrClosed = errors.New("check: history is closed")

// Writer writes a history. Safe for concurrent use; each event is one line, whole.
type Writer struct {
	mu struct {
		sync.Mutex
		out    *bufio.Writer
		err    error // the first one; it stays
		closed bool
	}
	under io.Writer
}

// NewWriter writes to w. Close syncs and closes w if it can.
func NewWriter(w io.Writer) *Writer {
	h := &Writer{under: w}
	h.mu.out = bufio.NewWriterSize(w, 64<<10)
	return h
}

// Create makes the file name, or appends to it.
func Create(name string) (*Writer, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	h := NewWriter(f)
	info, err := f.Stat()
	if err == nil && info.Size() == 0 {
		err = h.Write(Event{Op: OpHistory, Version: FormatVersion})
	}
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

// Write adds events. An invalid event is refused: it would make the history useless.
func (h *Writer) Write(events ...Event) error {
	var lines []byte
	for i := range events {
		if err := events[i].Validate(); err != nil {
			return fmt.Errorf("check: event %+v: %w", events[i], err)
		}
		line, err := json.Marshal(&events[i])
		if err != nil {
			return fmt.Errorf("check: event %+v: %w", events[i], err)
		}
		lines = append(append(lines, line...), '\n')
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mu.closed {
		return ErrClosed
	}
	// Whole lines reach the file, so that a kill between two writes leaves no torn one.
	if h.mu.err == nil && h.mu.out.Available() < len(lines) {
		h.mu.err = h.mu.out.Flush()
	}
	if h.mu.err == nil {
		_, h.mu.err = h.mu.out.Write(lines)
	}
	return h.mu.err
}

// Flush hands everything to the operating system. A process that may be killed calls it before the step that must not
// be forgotten: before a send, and before the ack of what it received.
func (h *Writer) Flush() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mu.err == nil && !h.mu.closed {
		h.mu.err = h.mu.out.Flush()
	}
	return h.mu.err
}

// Close flushes, syncs and closes. The second Close does nothing.
func (h *Writer) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mu.closed {
		return h.mu.err
	}
	h.mu.closed = true
	errs := []error{h.mu.err}
	if h.mu.err == nil {
		errs = append(errs, h.mu.out.Flush())
	}
	if s, ok := h.under.(interface{ Sync() error }); ok {
		errs = append(errs, s.Sync())
	}
	if c, ok := h.under.(io.Closer); ok {
		errs = append(errs, c.Close())
	}
	h.mu.err = errors.Join(errs...)
	return h.mu.err
}

// LineError is a line that is not an event.
type LineError struct {
	Line int // from 1
	Err  error
}

func (e *LineError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }
func (e *LineError) Unwrap() error { return e.Err }

// lineBytesMax bounds a line: an event is far smaller, and a foreign file may have no line at all.
const lineBytesMax = 1 << 20

// Reader reads a history.
type Reader struct {
	in    *bufio.Scanner
	line  int
	known map[string]string
}

// NewReader reads from r.
func NewReader(r io.Reader) *Reader {
	in := bufio.NewScanner(r)
	in.Buffer(nil, lineBytesMax)
	return &Reader{in: in, known: map[string]string{}}
}

// Keep writes a history to a new file in folder, and returns its name.
func Keep(folder, what string, events []Event) (name string, err error) {
	f, err := os.CreateTemp(folder, "jmq-"+what+"-*.jsonl")
	if err != nil {
		return "", err
	}
	name = f.Name()
	h := NewWriter(f)
	err = h.Write(Event{Op: OpHistory, Version: FormatVersion})
	for i := range events {
		if err != nil {
			break
		}
		err = h.Write(events[i])
	}
	return name, errors.Join(err, h.Close())
}

// Kept is the folder of JMQ_TEST_HISTORY, in which tests keep the histories of runs that failed, or the one for temporary files.
func Kept() string { return cmp.Or(os.Getenv("JMQ_TEST_HISTORY"), os.TempDir()) }

// Line is the number of the line of the last event, from 1.
func (r *Reader) Line() int { return r.line }

// Next returns the next event, io.EOF after the last, and a *LineError for a line that cannot be one. Empty lines are
// passed over. After a LineError reading can go on with the next line.
func (r *Reader) Next() (Event, error) {
	for r.in.Scan() {
		r.line++
		line := bytes.TrimSpace(r.in.Bytes())
		if len(line) == 0 {
			continue
		}
		if e := (Event{}); e.line(line, r.known) {
			switch err := e.Validate(); {
			case err != nil:
				return Event{}, &LineError{Line: r.line, Err: err}
			case e.Op != OpHistory:
				return e, nil
			}
			continue
		}
		var e Event
		dec := json.NewDecoder(bytes.NewReader(line))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&e); err != nil {
			return Event{}, &LineError{Line: r.line, Err: err}
		}
		if dec.InputOffset() != int64(len(line)) {
			return Event{}, &LineError{Line: r.line, Err: errors.New("more than one value")}
		}
		switch err := e.Validate(); {
		case err != nil:
			return Event{}, &LineError{Line: r.line, Err: err}
		case e.Op != OpHistory:
			return e, nil
		}
	}
	if err := r.in.Err(); err != nil {
		return Event{}, &LineError{Line: r.line + 1, Err: err}
	}
	return Event{}, io.EOF
}

// Check reads whole histories, of any number of processes, and checks them as one. The error is of reading; what the
// history violates is in the report.
func Check(histories ...io.Reader) (*Report, error) {
	c := NewChecker()
	for i, h := range histories {
		r := NewReader(h)
		for {
			e, err := r.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				return nil, fmt.Errorf("history %d: %w", i, err)
			}
			if err := c.Add(e); err != nil {
				return nil, fmt.Errorf("history %d: %w", i, &LineError{Line: r.line, Err: err})
			}
		}
	}
	return c.Report(), nil
}

// CheckFiles is Check of the files named. A *LineError is wrapped with the name of its file.
func CheckFiles(names ...string) (*Report, error) {
	c := NewChecker()
	for _, name := range names {
		if err := each(name, func(_ int, e *Event) error { return c.Add(*e) }); err != nil {
			return nil, err
		}
	}
	return c.Report(), nil
}

func each(name string, do func(line int, e *Event) error) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	r := NewReader(f)
	for {
		e, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err == nil {
			if err = do(r.line, &e); err != nil {
				err = &LineError{Line: r.line, Err: err}
			}
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
}

// Concerned is what of a history a violation is about.
type Concerned struct {
	File string
	Line int
	Event
}

// ConcernedMost is how many lines are found for a violation.
const ConcernedMost = 20

// FindConcerned reads the files again, and finds the lines that the violations of a report are about, by check and offender.
func FindConcerned(r *Report, names ...string) (map[string][][]Concerned, error) {
	found := map[string][][]Concerned{}
	for _, c := range r.Checks {
		found[c.Name] = make([][]Concerned, len(c.Subjects))
	}
	for _, name := range names {
		err := each(name, func(line int, e *Event) error {
			for _, c := range r.Checks {
				for i := range c.Subjects {
					if lines := &found[c.Name][i]; len(*lines) < ConcernedMost && c.Subjects[i].Concerns(e) {
						*lines = append(*lines, Concerned{name, line, *e})
					}
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}
