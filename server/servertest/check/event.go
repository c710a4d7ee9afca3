package check

import (
	"errors"
	"fmt"
)

// Op is what an event tells.
type Op string

const (
	// OpHistory begins a file: Version is that of the format. A file without it has the version of the day.
	OpHistory Op = "history"
	// OpSend is one call of Send for one message. Result empty: it was begun and its process died, which counts as
	// unknown; an event with the same id and call replaces it. Partition and Index are the receipt's, when ok.
	OpSend Op = "send"
	// OpRecv is one message given to a group's consumer: before its handler runs, and written before it is acknowledged.
	OpRecv Op = "recv"
	// OpAck is one ack of [Index, To) (To 0: one message) by the member that holds the lease. Result empty: begun only.
	OpAck Op = "ack"
	// OpRelease is a range given back by its consumer.
	OpRelease Op = "release"
	// OpExpire is a lease that the broker is known to have ended.
	OpExpire Op = "expire"
	// OpDie is the death, or the lost connection, of the consumer process Proc.
	OpDie Op = "die"
	// OpRestart is a broker that was away from Call (killed) to Return (serving again): of BrokerGroup, if that is told.
	OpRestart Op = "restart"
	// OpScan is one message of a raw scan of replica Proc. The events of one scan stand in the history in their order.
	OpScan Op = "scan"
	// OpScanned ends a scan of one partition that covered [Index, To).
	OpScanned Op = "scanned"
	// OpOffset is an observed ack state: everything below Index and in Ranges is consumed.
	OpOffset Op = "offset"
	// OpSubscribe says that Group begins at Index of the partition; without it a group begins at 0. Reason Parallel: any number of its leases
	// may live at once.
	OpSubscribe Op = "subscribe"
	// OpReset says that a person set Group's offset to Index. Result Unknown: maybe not, or to another index.
	OpReset Op = "reset"
	// OpLost says that the bytes of messages [Index, To) were damaged on the disk: they may be lost, others may not.
	OpLost Op = "lost"
	// OpGap says that Proc was told that [Index, To) will never come; Reason ReasonDamaged: because it was damaged. With Group it
	// is a consumer, without it is a raw scan, in whose order the event stands.
	OpGap Op = "gap"
	// OpAway says that from Call to Return (0: for ever) slave Proc, of BrokerGroup if that is told, may have given messages and taken acks by itself. Reason is what that explains:
	// AwayUnmerged, AwayBehind or both ("unmerged, behind"); nothing else does, not even a restart.
	OpAway Op = "away"
	// OpCopy says that Proc's copy of the journal has records in [Index, To), and that Hash is their checksum. With Topic it is the copy of the index of
	// a partition, with Group too that of where the group stands.
	OpCopy Op = "copy"
	// OpSkip says that [Index, To) ended for Group without being given to it: it is filtered, or has expired. Reason says which.
	OpSkip Op = "skip"
	// OpBalance is what the broker says at rest: the partition holds [Index, To), and Pending of them have not ended for Group.
	OpBalance Op = "balance"
	// OpMaster says that broker Proc served as master of BrokerGroup in Epoch, at some moment between Call and Return.
	OpMaster Op = "master"
	// OpWrite sets register Key, a topic's settings for example, to the value whose checksum is Hash. Version is what it has from then
	// on, when ok and told. OpRead finds Hash and Version there; an empty Hash: nothing. What was not written by anybody is no register.
	OpWrite Op = "write"
	OpRead  Op = "read"
	// OpUsage is what process Proc had taken from the system at Call. The first one of a Proc is what the later ones must come back to.
	OpUsage Op = "usage"
	// OpDrain says that Group had nothing more to get from Topic at Call: what was sent before and is ok was given to it.
	OpDrain Op = "drain"
)

// FormatVersion is that of FORMAT.md, which has the same in tables.
const FormatVersion = 1

// ReasonDamaged is an OpGap's reason that needs an OpLost.
const ReasonDamaged = "damaged"

// Parallel is the reason of an OpSubscribe.
const Parallel = "parallel"

// Reasons of OpAway.
const (
	AwayUnmerged = "unmerged" // its acks did not reach a master until Return
	AwayBehind   = "behind"   // it did not have what a master took meanwhile
)

// sideLease is set in the leases that a slave gives.
const sideLease = 1 << 63

// Result is how a send or an ack ended.
type Result string

const (
	OK      Result = "ok"
	Failed  Result = "failed"
	Unknown Result = "unknown"
)

// Event is one line of a history. Times are unix nanoseconds of one clock. Fields that an op does not need are left out.
type Event struct {
	Proc      string `json:"proc,omitempty"` // who: the producer, the consumer process, the replica scanned
	Op        Op     `json:"op"`
	Topic     string `json:"topic,omitempty"`
	Partition uint16 `json:"partition,omitempty"`
	// BrokerGroup, of a scan, a copy or a master: whose journal it is, and so whose epochs. Empty: there is only one. Of a restart or a time away: whose
	// partitions alone it explains; a partition's broker group is that of its scans.
	BrokerGroup string `json:"brokerGroup,omitempty"`
	Group       string `json:"group,omitempty"`
	Key         string `json:"key,omitempty"` // order key; of a write or read: the register
	ID          string `json:"id,omitempty"`
	// Seq counts the messages that Proc sent one after the other; 0: it promises no order.
	Seq   uint64 `json:"seq,omitempty"`
	Index uint64 `json:"index,omitempty"`
	To    uint64 `json:"to,omitempty"`    // the range is [Index, To)
	Epoch uint64 `json:"epoch,omitempty"` // of the record (scan) or of the lease (recv)
	Call  int64  `json:"call"`
	// Return is 0 for what has no duration.
	Return int64  `json:"return,omitempty"`
	Result Result `json:"result,omitempty"`
	// Unknown counts the attempts of a send whose outcome stayed unknown: each may have left a copy. -1: their number is
	// not known.
	Unknown int    `json:"unknown,omitempty"`
	Hash    string `json:"hash,omitempty"`  // of the body
	Lease   uint64 `json:"lease,omitempty"` // those of a master ascend within its epoch as they are given
	Member  uint32 `json:"member,omitempty"`
	// Granted, of a recv: when its lease was given, not later than the broker gave it; 0: not known, when its first message came.
	Granted int64 `json:"granted,omitempty"`
	// Deadline, of a recv: when its lease ends by itself, not later than the broker ends it; 0: not known. Without epochs it also
	// orders the leases of a message.
	Deadline int64       `json:"deadline,omitempty"`
	Ranges   [][2]uint64 `json:"ranges,omitempty"` // offset: consumed [from, to) above Index, ascending
	Pending  uint64      `json:"pending,omitempty"`
	Version  uint64      `json:"version,omitempty"`
	// Expect, of a write: it was to change that version, and no other. 0: any.
	Expect uint64 `json:"expect,omitempty"`
	Usage  *Usage `json:"usage,omitempty"`
	Reason string `json:"reason,omitempty"` // free text: the code of a failed ack, how a consumer died
}

// Validate says what makes e unusable, if anything. It looks at one event only.
func (e *Event) Validate() error {
	var errs []error
	need := func(ok bool, what string) {
		if !ok {
			errs = append(errs, fmt.Errorf("%s needs %s", e.Op, what))
		}
	}
	switch e.Op {
	case OpHistory:
		if e.Version != FormatVersion {
			errs = append(errs, fmt.Errorf("the history has format version %d, not %d", e.Version, FormatVersion))
		}
	case OpSend:
		need(e.Proc != "", "proc")
		need(e.Topic != "", "topic")
		need(e.ID != "", "id")
		need(e.Hash != "", "hash")
	case OpRecv:
		need(e.Proc != "", "proc")
		need(e.Topic != "", "topic")
		need(e.Group != "", "group")
		need(e.ID != "", "id")
		need(e.Hash != "", "hash")
		need(e.Lease != 0, "lease")
	case OpAck, OpRelease, OpExpire:
		need(e.Topic != "", "topic")
		need(e.Group != "", "group")
		need(e.Lease != 0, "lease")
		need(e.Proc != "" || e.Op == OpExpire, "proc")
	case OpScan:
		need(e.Proc != "", "proc")
		need(e.Topic != "", "topic")
		need(e.ID != "", "id")
		need(e.Hash != "", "hash")
	case OpScanned:
		need(e.Proc != "", "proc")
		need(e.Topic != "", "topic")
	case OpOffset, OpSubscribe, OpReset, OpDrain, OpBalance:
		need(e.Topic != "", "topic")
		need(e.Group != "", "group")
	case OpLost, OpGap, OpSkip:
		need(e.Topic != "", "topic")
		need(e.To > e.Index, "a range")
		need(e.Op != OpGap || e.Proc != "", "proc")
		need(e.Op != OpSkip || e.Group != "", "group")
	case OpMaster:
		need(e.Proc != "", "proc")
		need(e.Epoch != 0, "epoch")
		need(e.Return != 0, "return")
	case OpWrite, OpRead:
		need(e.Proc != "", "proc")
		need(e.Key != "", "key")
		need(e.Op == OpRead || e.Hash != "", "hash")
		need(e.Op == OpWrite || e.Return != 0, "return")
	case OpUsage:
		need(e.Proc != "", "proc")
		need(e.Usage != nil, "usage")
	case OpDie, OpAway:
		need(e.Proc != "", "proc")
	case OpCopy:
		need(e.Proc != "", "proc")
		need(e.To > e.Index, "a range")
		need(e.Hash != "", "hash")
	case OpRestart:
		need(e.Return != 0, "return")
	default:
		errs = append(errs, fmt.Errorf("op %q is not one", e.Op))
	}
	switch e.Result {
	case OK, Failed, Unknown:
		if e.Op != OpSend && e.Op != OpAck && e.Op != OpReset && e.Op != OpWrite {
			errs = append(errs, fmt.Errorf("%s has no result", e.Op))
		}
		need(e.Return != 0, "return with a result")
	case "":
	default:
		errs = append(errs, fmt.Errorf("result %q is not one", e.Result))
	}
	if e.Return != 0 && e.Return < e.Call {
		errs = append(errs, fmt.Errorf("return %d is before call %d", e.Return, e.Call))
	}
	if e.To != 0 && e.To < e.Index {
		errs = append(errs, fmt.Errorf("range [%d, %d) is backwards", e.Index, e.To))
	}
	at := e.Index
	for _, r := range e.Ranges {
		if r[0] < at || r[1] <= r[0] {
			errs = append(errs, fmt.Errorf("ranges %v above %d are not ascending", e.Ranges, e.Index))
			break
		}
		at = r[1]
	}
	return errors.Join(errs...)
}

// end is the index after the last one of the event's range.
func (e *Event) end() uint64 {
	if e.To == 0 {
		return e.Index + 1
	}
	return e.To
}
