package wire

import (
	"errors"
	"fmt"
	"time"
)

// Code is the result of a request. Numbers are never used again.
type Code uint16

const (
	CodeOK Code = 0

	// The request itself is wrong.
	CodeMalformed          Code = 1 // the frame or its header cannot be read
	CodeUnsupportedVersion Code = 2
	CodeUnknownCommand     Code = 3
	CodeHelloFirst         Code = 4 // a request before the hello
	CodeTooLarge           Code = 5
	CodeInvalid            Code = 6 // readable, but a field has a value that it may not have
	CodeCorrupt            Code = 7 // a checksum of the batch is wrong

	// What it names is not there.
	CodeTopicNotFound     Code = 20
	CodePartitionNotFound Code = 21
	CodeGroupNotFound     Code = 22 // subscribe first
	CodeTopicExists       Code = 23

	// The lease does not allow it.
	CodeLeaseExpired Code = 30 // it was given, and ended; the messages come again
	CodeLeaseForeign Code = 31 // another member holds it
	CodeLeaseUnknown Code = 32 // never given by this broker, or given before it restarted
	CodeAlreadyEnded Code = 33 // an ack repeated: harmless
	CodeOutOfRange   Code = 34 // outside the lease, or beyond the end

	// The broker cannot now.
	CodeBusy         Code = 50 // queues are full
	CodeStopping     Code = 51
	CodeFailed       Code = 52 // the journal took a failed write or sync and stopped
	CodeUnknown      Code = 53 // the outcome is not known: it may be stored
	CodeTooMany      Code = 54 // connections
	CodeNoSpace      Code = 55
	CodeInternal     Code = 56 // a defect of ours; nothing was stored
	CodeTimeout      Code = 57 // nothing was done within the time asked for
	CodeDisconnected Code = 58 // client side only: the connection ended before the request was sent
	CodeClosed       Code = 59 // client side only: the client was closed
	CodePaused       Code = 60 // an operator paused the topic
	CodeMembers      Code = 61 // the group has members

	// Who of the broker group does it.
	// CodeNotMaster: this broker is not the master, or not the slave that serves now; Nodes: the master's addresses, if it is known. RetryAfter: it
	// becomes the master, or hands over, and is to be asked again soon.
	CodeNotMaster     Code = 62
	CodeNotReplicated Code = 63 // a replicated topic, and no slave is in sync: nothing was written
	CodeReadOnly      Code = 64 // the broker group takes no sends
	CodeStaleTerm     Code = 65 // between brokers: the asked one has met a higher term, or the session is not the current one

	// Who asks, and whom.
	CodeUnauthenticated Code = 70 // no identity, or one that is not good any more
	CodeForbidden       Code = 71 // known, but may not
	CodeLimited         Code = 72 // above a limit; RetryAfter says when it is worth trying again
	CodeRoleElsewhere   Code = 73 // this node does not run the role: Nodes do

	// Metadata.
	CodeConflict     Code = 80 // it was changed meanwhile: read it again
	CodeNotFound     Code = 81 // no such object
	CodeExists       Code = 82
	CodeMetadataAway Code = 83 // the database cannot be reached, or may not be trusted: nothing was changed; messages go on
	CodeInUse        Code = 84 // other objects name it
)

// Retry says what a client does with a code.
type Retry uint8

const (
	RetryNever     Retry = iota
	RetryHere            // after RetryAfter or a back-off, at the same broker
	RetryElsewhere       // at another broker group of the topic
)

// Trait is what a code means for a client: the one table.
type Trait struct {
	Name     string
	Retry    Retry
	Survives bool // the connection goes on
	Remedy   string
}

// Traits has a row for each code.
var Traits = map[Code]Trait{
	CodeOK:                 {"ok", RetryNever, true, ""},
	CodeMalformed:          {"malformed", RetryNever, false, "one of the two is not jmq, or of a broken version"},
	CodeUnsupportedVersion: {"unsupported-version", RetryNever, false, "use an SDK of the broker's version"},
	CodeUnknownCommand:     {"unknown-command", RetryNever, true, "use an SDK not newer than the broker"},
	CodeHelloFirst:         {"hello-first", RetryNever, false, "send the hello as the first frame"},
	CodeTooLarge:           {"too-large", RetryNever, true, "send or ask for less"},
	CodeInvalid:            {"invalid", RetryNever, true, "correct the value that the message names"},
	CodeCorrupt:            {"corrupt", RetryHere, true, "send it again"},
	CodeTopicNotFound:      {"topic-not-found", RetryNever, true, "see jmq topic ls, or create it: jmq topic create NAME"},
	CodePartitionNotFound:  {"partition-not-found", RetryHere, true, "take one that the topic has"},
	CodeGroupNotFound:      {"group-not-found", RetryHere, true, "subscribe the group first"},
	CodeTopicExists:        {"topic-exists", RetryNever, true, "choose another name, or use the topic as it is"},
	CodeLeaseExpired:       {"lease-expired", RetryNever, true, "the messages are delivered again; raise the ack timeout if handlers need longer"},
	CodeLeaseForeign:       {"lease-foreign", RetryNever, true, "only the member that fetched a message may ack it"},
	CodeLeaseUnknown:       {"lease-unknown", RetryNever, true, "the broker restarted meanwhile; the messages are delivered again"},
	CodeAlreadyEnded:       {"already-ended", RetryNever, true, "nothing to do"},
	CodeOutOfRange:         {"out-of-range", RetryNever, true, "ack only what the lease covers"},
	CodeBusy:               {"busy", RetryHere, true, "try again after a moment"},
	CodeStopping:           {"stopping", RetryElsewhere, true, "try again when it is back"},
	CodeFailed:             {"failed", RetryElsewhere, true, "see the broker's log; restart it after the disk is repaired"},
	CodeUnknown:            {"unknown", RetryElsewhere, true, "it may be stored: send it again with the same id"},
	CodeTooMany:            {"too-many-connections", RetryElsewhere, false, "use fewer connections, or raise node.listener.connectionsMax"},
	CodeNoSpace:            {"no-space", RetryElsewhere, true, "free the broker's disk: jmq store usage says what takes it and how"},
	CodeInternal:           {"internal", RetryNever, true, "report it, with the broker's log"},
	CodeTimeout:            {"timeout", RetryElsewhere, true, "raise the timeout, or see why the broker is slow"},
	CodeDisconnected:       {"disconnected", RetryElsewhere, false, "see whether the broker runs and can be reached"},
	CodeClosed:             {"closed", RetryNever, false, "dial again"},
	CodePaused:             {"paused", RetryHere, true, "wait, or end the pause: jmq topic resume NAME"},
	CodeMembers:            {"group-has-members", RetryNever, true, "stop its consumers first, or force it"},
	CodeNotMaster:          {"not-master", RetryElsewhere, true, "ask the master of the broker group, or another broker group: jmq broker-group status"},
	CodeNotReplicated:      {"not-replicated", RetryElsewhere, true, "send to another broker group; see why no slave is in sync: jmq broker-group status"},
	CodeReadOnly:           {"read-only", RetryElsewhere, true, "send to another broker group, or make this one active: jmq broker-group activate"},
	CodeStaleTerm:          {"stale-term", RetryNever, true, "nothing to do: the brokers agree anew by themselves"},
	CodeUnauthenticated:    {"unauthenticated", RetryNever, false, "see the credential: its id, its secret, whether it expired or was revoked"},
	CodeForbidden:          {"forbidden", RetryNever, true, "ask an owner for the right: jmq topic grant, jmq group, jmq user"},
	CodeLimited:            {"limited", RetryHere, true, "wait as long as the answer says, send less, or have the limit raised"},
	CodeRoleElsewhere:      {"role-elsewhere", RetryNever, true, "ask one of the nodes that the message names"},
	CodeConflict:           {"conflict", RetryNever, true, "read it again, and repeat the change on what it is now"},
	CodeNotFound:           {"not-found", RetryNever, true, "see the list for its name"},
	CodeExists:             {"exists", RetryNever, true, "choose another name, or change what is there"},
	CodeMetadataAway:       {"metadata-away", RetryHere, true, "see the registry's log and its database; messages go on meanwhile"},
	CodeInUse:              {"in-use", RetryNever, true, "change what the message names first"},
}

func (c Code) String() string {
	if t, ok := Traits[c]; ok {
		return t.Name
	}
	return fmt.Sprintf("code-%d", uint16(c))
}

// CodeError is an error with a code. Op says what was tried, Message with which values.
type CodeError struct {
	Code       Code
	Message    string
	RetryAfter time.Duration // 0: the client's own back-off
	Nodes      []string      // with CodeRoleElsewhere: addresses of those who run the role
}

func (e *CodeError) Error() string {
	s := e.Code.String()
	if e.Message != "" {
		s += ": " + e.Message
	}
	if r := Traits[e.Code].Remedy; r != "" {
		s += " (" + r + ")"
	}
	return s
}

// Errorf returns a *CodeError.
func Errorf(c Code, format string, args ...any) *CodeError {
	return &CodeError{Code: c, Message: fmt.Sprintf(format, args...)}
}

// unsureRetry is when a refusal is asked again that newer metadata may lift.
const unsureRetry = 100 * time.Millisecond

// Unsure is what a node answers instead of a refusal while it does not know whether its metadata is the newest: whoever is refused by what is
// known there may have been let in since.
func Unsure(refusal error) *CodeError {
	text := refusal.Error()
	if e, ok := errors.AsType[*CodeError](refusal); ok {
		text = fmt.Sprintf("%v: %s", e.Code, e.Message)
	}
	e := Errorf(CodeMetadataAway, "the registry is not heard here just now, and what is known would refuse it (%s)", text)
	e.RetryAfter = unsureRetry
	return e
}

// CodeOf returns the code that err carries: CodeOK for nil, CodeInternal for an error without one.
func CodeOf(err error) Code {
	if err == nil {
		return CodeOK
	}
	if e, ok := errors.AsType[*CodeError](err); ok {
		return e.Code
	}
	return CodeInternal
}
