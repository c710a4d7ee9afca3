package replica

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/wire"
)

// log answers what masters and slaves are asked alike: reading of records, by observers too, and checksums.
type log struct {
	j       *journal.Journal
	store   [16]byte
	commits commits
}

// commits tells who waits that more is committed.
type commits struct {
	mu      sync.Mutex
	changed chan struct{} // nil: nobody waits
}

// told wakes all who wait. It costs next to nothing when nobody does.
func (c *commits) told() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
}

func (c *commits) next() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.changed == nil {
		c.changed = make(chan struct{})
	}
	return c.changed
}

// readRecords reads whole records into *buf, at least one however large, and returns how many bytes they are; 0: nothing is written there
// yet. *buf is grown where it must be.
func readRecords(j *journal.Journal, from journal.Position, bytes int, buf *[]byte) (int, error) {
	b := *buf
	n, err := j.ReadRaw(from, b[:min(len(b), max(bytes, recordBytesMin))])
	if err == nil && n == 0 && from < j.End() {
		b = make([]byte, answerBytesMax)
		if n, err = j.ReadRaw(from, b); n > len(*buf) {
			*buf = b // large records come in rows
		} else {
			copy(*buf, b[:n])
		}
	}
	return n, err
}

// recordBytesMin is enough for a header.
const recordBytesMin = 4096

func (l *log) readLog(ctx context.Context, r *wire.ReadLogRequest) (*wire.ReadLogResponse, []byte, error) {
	from := journal.Position(r.From)
	wait := time.NewTimer(time.Duration(r.WaitMs) * time.Millisecond)
	defer wait.Stop()
	for {
		more := l.commits.next() // before looking
		begin, committed, end := l.j.Begin(), l.j.Committed(), l.j.End()
		a := &wire.ReadLogResponse{Epoch: uint64(l.j.Epoch()), From: uint64(max(from, begin)), Committed: uint64(committed), Begin: uint64(begin), End: uint64(end),
			Store: hex.EncodeToString(l.store[:])}
		limit := end
		if r.Committed {
			limit = committed
		}
		if from > end {
			return nil, nil, wire.Errorf(wire.CodeInvalid, "position %d is beyond the journal's end, %d", from, end)
		}
		if r.To > 0 {
			limit = min(limit, journal.Position(r.To))
		}
		if at := max(from, begin); at < limit {
			b, err := l.records(at, limit, int(r.BytesMax))
			return a, b, err
		}
		if !r.Committed || r.WaitMs == 0 || r.To > 0 && uint64(limit) == r.To {
			return a, nil, nil
		}
		select {
		case <-more:
		case <-wait.C:
			return a, nil, nil
		case <-ctx.Done():
			return nil, nil, wire.Errorf(wire.CodeStopping, "the wait ended")
		}
	}
}

// records returns the whole records that lie in [from, limit), as many as bytes hold, but at least one.
func (l *log) records(from, limit journal.Position, bytes int) ([]byte, error) {
	buf := make([]byte, min(journal.Position(bytes), limit-from))
	n, err := readRecords(l.j, from, len(buf), &buf)
	if err != nil {
		return nil, codedAt(from, err)
	}
	if journal.Position(n) > limit-from {
		n = 0 // limit lies within the first one
	}
	return buf[:n], nil
}

func (l *log) sums(r *wire.LogSumsRequest) (*wire.LogSumsResponse, error) {
	if end := l.j.Committed(); journal.Position(r.From) > end || journal.Position(r.To) > end {
		return nil, wire.Errorf(wire.CodeInvalid, "checksums of positions %d to %d, but %d is committed", r.From, r.To, end)
	}
	sums, err := l.j.Sums(journal.Position(r.From), journal.Position(r.To), int64(min(r.Every, math.MaxInt64)))
	if err != nil && len(sums) == 0 {
		return nil, codedAt(journal.Position(r.From), err)
	}
	a := &wire.LogSumsResponse{From: r.From, To: r.To}
	for _, s := range sums {
		a.Sums = append(a.Sums, s.Sum)
		a.Ends = append(a.Ends, uint64(s.End))
	}
	return a, nil
}

// codedAt is coded for who asked for records from a position on, which must be where one begins.
func codedAt(from journal.Position, err error) error {
	if e, ok := errors.AsType[*journal.CorruptError](err); ok && e.Position == from || errors.Is(err, journal.ErrTooLarge) {
		return wire.Errorf(wire.CodeInvalid, "position %d lies inside a record, or the record there is damaged: ask from where a record begins, as an answer before ended", from)
	}
	return coded(err)
}

// coded is an error of a journal for another broker.
func coded(err error) error {
	var code *wire.CodeError
	switch {
	case errors.As(err, &code):
		return err
	case errors.Is(err, journal.ErrTrimmed), errors.Is(err, journal.ErrBeyond):
		return wire.Errorf(wire.CodeInvalid, "%v", err)
	case errors.Is(err, journal.ErrClosed):
		return wire.Errorf(wire.CodeStopping, "%v", err)
	}
	return wire.Errorf(wire.CodeFailed, "%v", err)
}

// storeID reads a store id as it is told between brokers.
func storeID(s string) (id [16]byte, err error) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(id) {
		return id, fmt.Errorf("replica: %q is no store id", s)
	}
	copy(id[:], b)
	return id, nil
}
