package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jmqio/jmq/wire"
)

// Outcome is what is known of a send.
type Outcome uint8

const (
	// Failed: the message is not in the log and never will be.
	Failed Outcome = iota
	// Unknown: it may be stored, or may yet be. Send it again with the same Message.ID to be sure that it is.
	Unknown
)

func (o Outcome) String() string {
	if o == Unknown {
		return "unknown"
	}
	return "failed"
}

// What errors.Is finds in an *Error. The first two are the outcomes of a send: exactly one of them holds for an error
// of Send or SendBatch. The others say what the matter was.
var (
	ErrFailed  = errors.New("client: not stored, and never will be")
	ErrUnknown = errors.New("client: outcome unknown: it may be stored")

	ErrInvalid      = errors.New("client: a value that may not be")
	ErrTooLarge     = errors.New("client: too large")
	ErrNotFound     = errors.New("client: no such topic, partition, group or object")
	ErrExists       = errors.New("client: it exists already, or with another shape")
	ErrLeaseExpired = errors.New("client: the lease ran out; the message comes again")
	ErrLeaseForeign = errors.New("client: another member holds the lease")
	ErrLeaseUnknown = errors.New("client: the broker restarted since; the message comes again")
	ErrAlreadyEnded = errors.New("client: the message was acknowledged before")
	ErrMembers      = errors.New("client: the group has members")
	ErrBusy         = errors.New("client: queues are full")
	ErrPaused       = errors.New("client: an operator paused the topic")
	ErrStopping     = errors.New("client: the broker is being stopped")
	ErrBroken       = errors.New("client: the broker's disk failed")
	ErrDiskFull     = errors.New("client: the broker's disk is full")
	ErrTimeout      = errors.New("client: timed out")
	ErrDisconnected = errors.New("client: no connection to the broker")
	ErrClosed       = errors.New("client: closed")
	ErrUnsupported  = errors.New("client: not spoken by this broker")
	ErrCorrupt      = errors.New("client: a checksum is wrong")
	ErrInternal     = errors.New("client: the broker has a defect")

	ErrUnauthenticated = errors.New("client: no identity, or one that is not good any more")
	ErrForbidden       = errors.New("client: not allowed")
	ErrLimited         = errors.New("client: above a limit")
	ErrRoleElsewhere   = errors.New("client: another node has this role")
	ErrConflict        = errors.New("client: it was changed meanwhile")
	ErrInUse           = errors.New("client: other objects name it")
	ErrMetadataAway    = errors.New("client: the metadata cannot be changed now")

	ErrNotMaster     = errors.New("client: the broker group has no master now, or another one")
	ErrNotReplicated = errors.New("client: no slave is in sync, and the topic wants two copies")
	ErrReadOnly      = errors.New("client: the broker group takes no messages")
)

// sentinels has what errors.Is answers for each code.
var sentinels = map[wire.Code]error{
	wire.CodeMalformed: ErrUnsupported, wire.CodeUnsupportedVersion: ErrUnsupported, wire.CodeUnknownCommand: ErrUnsupported,
	wire.CodeHelloFirst: ErrUnsupported, wire.CodeTooLarge: ErrTooLarge, wire.CodeInvalid: ErrInvalid, wire.CodeCorrupt: ErrCorrupt,
	wire.CodeTopicNotFound: ErrNotFound, wire.CodePartitionNotFound: ErrNotFound, wire.CodeGroupNotFound: ErrNotFound,
	wire.CodeTopicExists: ErrExists, wire.CodeLeaseExpired: ErrLeaseExpired, wire.CodeLeaseForeign: ErrLeaseForeign,
	wire.CodeLeaseUnknown: ErrLeaseUnknown, wire.CodeAlreadyEnded: ErrAlreadyEnded, wire.CodeOutOfRange: ErrInvalid,
	wire.CodeBusy: ErrBusy, wire.CodeStopping: ErrStopping, wire.CodeFailed: ErrBroken, wire.CodeTooMany: ErrBusy,
	wire.CodeNoSpace: ErrDiskFull, wire.CodeInternal: ErrInternal, wire.CodeTimeout: ErrTimeout,
	wire.CodeDisconnected: ErrDisconnected, wire.CodeClosed: ErrClosed, wire.CodePaused: ErrPaused, wire.CodeMembers: ErrMembers,
	wire.CodeUnauthenticated: ErrUnauthenticated, wire.CodeForbidden: ErrForbidden, wire.CodeLimited: ErrLimited,
	wire.CodeRoleElsewhere: ErrRoleElsewhere, wire.CodeConflict: ErrConflict, wire.CodeNotFound: ErrNotFound, wire.CodeExists: ErrExists,
	wire.CodeInUse: ErrInUse, wire.CodeMetadataAway: ErrMetadataAway, wire.CodeNotMaster: ErrNotMaster, wire.CodeStaleTerm: ErrNotMaster,
	wire.CodeNotReplicated: ErrNotReplicated, wire.CodeReadOnly: ErrReadOnly,
}

// Error is what every call of this package returns when a broker, or the way to it, is the matter.
type Error struct {
	Code       wire.Code // wire.Traits has its meaning and the remedy
	Op         string    // "send", "fetch", "ack", "subscribe", ...
	Topic      string
	Partition  int           // -1: none in particular
	Broker     string        // address of the broker asked last; empty: none was
	Outcome    Outcome       // of a send
	Attempts   int           // of a send: how often a broker was asked
	RetryAfter time.Duration // what the broker asked for; 0: nothing
	Err        error         // the cause: a *wire.CodeError, or the context's error
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	if e.Topic != "" {
		b.WriteString(" " + e.Topic)
		if e.Partition >= 0 {
			fmt.Fprintf(&b, "/%d", e.Partition)
		}
	}
	if e.Broker != "" {
		b.WriteString(" at " + e.Broker)
	}
	if e.Outcome == Unknown && e.Code != wire.CodeUnknown {
		b.WriteString(": outcome unknown")
	}
	if e.Attempts > 1 {
		fmt.Fprintf(&b, " after %d attempts", e.Attempts)
	}
	fmt.Fprintf(&b, ": %v", e.Err)
	if e.Code == wire.CodeLimited && e.RetryAfter > 0 {
		fmt.Fprintf(&b, "; there is room in %v", e.RetryAfter)
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }

// Is maps outcome and code to the package's errors.
func (e *Error) Is(target error) bool {
	switch target {
	case ErrUnknown:
		return e.Outcome == Unknown
	case ErrFailed:
		return e.Op == opSend && e.Outcome == Failed
	case ErrTimeout:
		return e.Code == wire.CodeTimeout && !errors.Is(e.Err, context.Canceled)
	}
	return sentinels[e.Code] == target
}

// Names of calls in errors.
const (
	opDial      = "dial"
	opSend      = "send"
	opFetch     = "fetch"
	opAck       = "ack"
	opRelease   = "release"
	opSubscribe = "subscribe"
	opRoute     = "route"
	opExtend    = "extend"
	opCreate    = "create topic"
	opAlter     = "alter topic"
	opDelete    = "delete topic"
	opDescribe  = "describe topic"
	opList      = "list topics"
	opLag       = "group lag"
	opGroups    = "list groups"
	opSeek      = "seek"
	opPolicy    = "alter group"
	opRemove    = "remove group"
	opPeek      = "peek"
	opUsage     = "store usage"
)

// newError makes an *Error of err, which is, or wraps, a *wire.CodeError or a context's error.
func newError(op, topic string, partition int, broker string, err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	e := &Error{Op: op, Topic: topic, Partition: partition, Broker: broker, Err: err, Code: codeOf(err)}
	if c, ok := errors.AsType[*wire.CodeError](err); ok {
		e.RetryAfter = c.RetryAfter
	}
	if e.Code == wire.CodeUnknown {
		e.Outcome = Unknown
	}
	return e
}

// codeOf is wire.CodeOf, which also knows contexts.
func codeOf(err error) wire.Code {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return wire.CodeTimeout
	}
	return wire.CodeOf(err)
}

// BatchError is the error of a SendBatch that did not store everything. Errors has one element a message, in order, nil
// where it is stored.
type BatchError struct {
	Errors []error
}

func (e *BatchError) Error() string {
	failed, unknown := 0, 0
	var first error
	for _, err := range e.Errors {
		switch {
		case err == nil:
			continue
		case errors.Is(err, ErrUnknown):
			unknown++
		default:
			failed++
		}
		if first == nil {
			first = err
		}
	}
	return fmt.Sprintf("of %d messages %d failed and %d are unknown; the first: %v", len(e.Errors), failed, unknown, first)
}

// Unwrap returns the errors that are there.
func (e *BatchError) Unwrap() []error {
	var errs []error
	for _, err := range e.Errors {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}
