package broker

import (
	"context"
	"errors"
	"time"

	"github.com/jmqio/jmq/server/dispatch"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/replica"
	"github.com/jmqio/jmq/server/side"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/wire"
)

var (
	errUnknown = journal.ErrUnknown
	errFailed  = journal.ErrFailed
)

// codes says what an error from below is for a client: the first row that matches. Where there is a text the client gets
// that: the cause names files of this machine, and is in the log.
var codes = []struct {
	err   error
	code  wire.Code
	after time.Duration
	text  string
}{
	{store.ErrOneCopy, wire.CodeUnknown, 0, "it is stored, and no slave was found to have it: it may be lost with this machine"},
	{journal.ErrUnknown, wire.CodeUnknown, 0, "a write or sync failed: it may be stored"},
	{journal.ErrNotReplicated, wire.CodeNotReplicated, 0, "no slave is in sync, and the topic is a replicated one: nothing was written"},
	{journal.ErrFollows, wire.CodeNotMaster, 0, "this broker is a slave"},
	{journal.ErrFenced, wire.CodeNotMaster, handRetry, "another broker is the master now"},
	{replica.ErrNotMaster, wire.CodeNotMaster, handRetry, "this broker hands over to another one, or is not the master any more"},
	{replica.ErrFenced, wire.CodeNotMaster, handRetry, "another broker is the master now"},
	{journal.ErrFailed, wire.CodeFailed, 0, failedText},
	{side.ErrFailed, wire.CodeUnknown, 0, "a write or sync of the side file failed: it may be stored"},
	{side.ErrFull, wire.CodeNoSpace, 0, "no more acks can be kept for the master: the side file is as large as it may become"},
	{journal.ErrBusy, wire.CodeBusy, busyRetry, "too much waits for the disk"},
	{journal.ErrNoSpace, wire.CodeNoSpace, 0, "no space is left on the disk"},
	{journal.ErrClosed, wire.CodeStopping, 0, "the broker is being stopped"},
	{store.ErrNoPartition, wire.CodeTopicNotFound, 0, "the topic was deleted meanwhile"}, // partitions are judged before
	{store.ErrTrimmed, wire.CodeOutOfRange, 0, ""},
	{store.ErrBeyond, wire.CodeOutOfRange, 0, ""},
	{store.ErrBatch, wire.CodeMalformed, 0, ""},
	{store.ErrTopicExists, wire.CodeTopicExists, 0, ""},
	{store.ErrTopic, wire.CodeInvalid, 0, ""},
	{store.ErrDamaged, wire.CodeBusy, repairRetry, "what is stored there cannot be read"}, // a repair ends it
	{dispatch.ErrBusy, wire.CodeBusy, waitersRetry, "too many fetches wait"},
	{dispatch.ErrFull, wire.CodeBusy, waitersRetry, "too many leases last"},
	{dispatch.ErrNoGroup, wire.CodeGroupNotFound, 0, ""},
	{dispatch.ErrCancelled, wire.CodeTimeout, 0, "the wait was ended"},
	{dispatch.ErrReplaced, wire.CodeTimeout, 0, "the member has fetched anew since"},
	{context.DeadlineExceeded, wire.CodeTimeout, 0, ""},
	{context.Canceled, wire.CodeTimeout, 0, ""},
}

// handRetry is when a broker that was the master until now is asked again: it says who is then.
const handRetry = 20 * time.Millisecond

const failedText = "the store stopped after a failed write or sync"

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
			if c.text == "" {
				c.text = err.Error()
			}
			return &wire.CodeError{Code: c.code, Message: c.text, RetryAfter: c.after}
		}
	}
	return &wire.CodeError{Code: wire.CodeInternal, Message: err.Error()}
}
