package check

import (
	"bufio"
	"bytes"
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
	return NewWriter(f), nil
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
	in   *bufio.Scanner
	line int
}

// NewReader reads from r.
func NewReader(r io.Reader) *Reader {
	in := bufio.NewScanner(r)
	in.Buffer(make([]byte, 0, 64<<10), lineBytesMax)
	return &Reader{in: in}
}

// Next returns the next event, io.EOF after the last, and a *LineError for a line that cannot be one. Empty lines are
// passed over. After a LineError reading can go on with the next line.
func (r *Reader) Next() (Event, error) {
	for r.in.Scan() {
		r.line++
		line := bytes.TrimSpace(r.in.Bytes())
		if len(line) == 0 {
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
		if err := e.Validate(); err != nil {
			return Event{}, &LineError{Line: r.line, Err: err}
		}
		return e, nil
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

// CheckFiles is Check of the files named.
func CheckFiles(names ...string) (*Report, error) {
	readers := make([]io.Reader, 0, len(names))
	for _, name := range names {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		readers = append(readers, f)
	}
	return Check(readers...)
}
