package journal

import "fmt"

// Kind says what a record is. The numbers are the format's and are never used again; a kind gets its payload's layout
// in FORMAT.md when it is first written. 0 is never a kind. The journal itself writes KindNoop, KindEpoch and KindLost and looks
// into no payload.
type Kind uint8

const (
	KindNoop           Kind = 1 // carries the durable end and nothing else
	KindEpoch          Kind = 2 // the first record of an epoch
	KindMessages       Kind = 3 // a message batch, wire/batch.go
	KindDelayed        Kind = 4
	KindDelayedCancel  Kind = 5
	KindTxPrepare      Kind = 6
	KindTxMessages     Kind = 7
	KindTxCommit       Kind = 8
	KindTxRollback     Kind = 9
	KindEnd            Kind = 10 // messages that ended for groups, server/offset
	KindLeaseExpiry    Kind = 11
	KindOffsetReset    Kind = 12 // where groups stand from here on; also the birth of a group, server/offset
	KindRetryHandoff   Kind = 13
	KindRetryEnd       Kind = 14
	KindTopic          Kind = 15 // a topic is made or changed, server/store
	KindCarriedForward Kind = 16 // a record that was written before, and whose segment goes
	KindLost           Kind = 17 // stands where records were damaged; written by the journal
)

var kindNames = [...]string{
	KindNoop: "noop", KindEpoch: "epoch", KindMessages: "messages", KindDelayed: "delayed",
	KindDelayedCancel: "delayedCancel", KindTxPrepare: "txPrepare", KindTxMessages: "txMessages",
	KindTxCommit: "txCommit", KindTxRollback: "txRollback", KindEnd: "end", KindLeaseExpiry: "leaseExpiry",
	KindOffsetReset: "offsetReset", KindRetryHandoff: "retryHandoff", KindRetryEnd: "retryEnd", KindTopic: "topic",
	KindCarriedForward: "carriedForward", KindLost: "lost",
}

func (k Kind) String() string {
	if int(k) < len(kindNames) && kindNames[k] != "" {
		return kindNames[k]
	}
	return fmt.Sprintf("kind%d", uint8(k))
}
