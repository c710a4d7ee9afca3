package broker

import (
	"context"
	"errors"
	"time"

	"github.com/jmqio/jmq/server/dispatch"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/wire"
)

var (
	errUnknown = journal.ErrUnknown
	errFailed  = journal.ErrFailed
)

// codes says what an error from below is for a client: the first row that matches.
var codes = []struct {
	err   error
	code  wire.Code
	after time.Duration
}{
	{journal.ErrUnknown, wire.CodeUnknown, 0},
	{journal.ErrFailed, wire.CodeFailed, 0},
	{journal.ErrBusy, wire.CodeBusy, busyRetry},
	{journal.ErrNoSpace, wire.CodeNoSpace, 0},
	{journal.ErrClosed, wire.CodeStopping, 0},
	{store.ErrNoPartition, wire.CodePartitionNotFound, 0},
	{store.ErrTrimmed, wire.CodeOutOfRange, 0},
	{store.ErrBeyond, wire.CodeOutOfRange, 0},
	{store.ErrBatch, wire.CodeMalformed, 0},
	{store.ErrTopicExists, wire.CodeTopicExists, 0},
	{store.ErrTopic, wire.CodeInvalid, 0},
	{store.ErrDamaged, wire.CodeBusy, readPause}, // the partition is left alone for so long; a repair ends it
	{dispatch.ErrBusy, wire.CodeBusy, waitersRetry},
	{dispatch.ErrNoGroup, wire.CodeGroupNotFound, 0},
	{dispatch.ErrCancelled, wire.CodeTimeout, 0},
	{context.DeadlineExceeded, wire.CodeTimeout, 0},
	{context.Canceled, wire.CodeTimeout, 0},
}

// coded returns err as a *wire.CodeError.
func coded(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*wire.CodeError](err); ok {
		return err
	}
	for _, c := range codes {
		if errors.Is(err, c.err) {
			return &wire.CodeError{Code: c.code, Message: err.Error(), RetryAfter: c.after}
		}
	}
	return &wire.CodeError{Code: wire.CodeInternal, Message: err.Error()}
}
