package wire

import (
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

const (
	// ReplicationBytesMax bounds the records, or bytes of a seed, in one answer between brokers.
	ReplicationBytesMax = 4 << 20
	// SumsMax bounds the checksums of one answer of LogSums.
	SumsMax = 4096
	// EpochsMax bounds the epochs that a broker tells of its journal.
	EpochsMax     = 65536
	sideLeasesMax = 65536
)

// replicationBytes is how many bytes an answer may have when n were asked for; 0: as many as may be.
func replicationBytes(n uint32) uint32 {
	if n == 0 || n > ReplicationBytesMax {
		return ReplicationBytesMax
	}
	return n
}

func checkMemberOf(brokerGroup, broker string) error {
	if err := checkName("broker group", brokerGroup, true); err != nil {
		return err
	}
	return checkName("broker", broker, true)
}

func checkChangeReplication(r *ChangeReplicationRequest) error {
	if len(r.Ask) > SpecBytesMax {
		return Errorf(CodeInvalid, "a change of replication of %d bytes, at most %d are allowed", len(r.Ask), SpecBytesMax)
	}
	return checkName("broker group", r.BrokerGroup, true)
}

func checkBrokerGroup(r *BrokerGroupRequest) error {
	switch r.Action {
	case "status":
	case "promote", "transfer", "drain", "activate":
		if err := checkName("broker group", r.BrokerGroup, true); err != nil {
			return err
		}
	default:
		return Errorf(CodeInvalid, "action %q of a broker group: status, promote, transfer, drain and activate are known", r.Action)
	}
	if len(r.Off) > heartbeatTextsMax {
		return Errorf(CodeInvalid, "%d brokers are said to be off, at most %d are possible", len(r.Off), heartbeatTextsMax)
	}
	return checkTexts(ReasonBytesMax, "broker", r.Broker, "reason", r.Reason)
}

func checkFollow(r *FollowRequest) error {
	if err := checkMemberOf(r.BrokerGroup, r.Broker); err != nil {
		return err
	}
	if len(r.History) > EpochsMax {
		return Errorf(CodeInvalid, "%d epochs, at most %d are possible", len(r.History), EpochsMax)
	}
	return checkTexts(NameBytesMax, "store", r.Store, "boot", r.Boot)
}

func checkMeet(r *MeetRequest) error { return checkMemberOf(r.BrokerGroup, r.Broker) }

func checkReadLog(r *ReadLogRequest) error {
	r.BytesMax = replicationBytes(r.BytesMax)
	r.WaitMs = min(r.WaitMs, WatchWaitMsMax)
	return checkText("observer", r.Observer, NameBytesMax)
}

func checkLogSums(r *LogSumsRequest) error {
	switch {
	case r.To < r.From:
		return Errorf(CodeInvalid, "checksums of positions %d to %d", r.From, r.To)
	case r.Every == 0 || (r.To-r.From)/r.Every >= SumsMax:
		return Errorf(CodeInvalid, "more than %d checksums are asked for at once", SumsMax)
	}
	return nil
}

func checkMergeSide(r *MergeSideRequest) error {
	if len(r.Leases) > sideLeasesMax {
		return Errorf(CodeInvalid, "%d leases, at most %d are possible", len(r.Leases), sideLeasesMax)
	}
	return checkMemberOf(r.BrokerGroup, r.Broker)
}

func checkResend(r *ResendRequest) error {
	if err := CheckTopic(r.Topic); err != nil {
		return err
	}
	if r.Partition > math.MaxUint16 {
		return Errorf(CodeInvalid, "partition %d, at most %d is possible", r.Partition, math.MaxUint16)
	}
	return checkMemberOf(r.BrokerGroup, r.Broker)
}

func checkTakeOver(r *TakeOverRequest) error {
	if len(r.Row) > SpecBytesMax {
		return Errorf(CodeInvalid, "a row of %d bytes, at most %d are allowed", len(r.Row), SpecBytesMax)
	}
	return checkName("broker group", r.BrokerGroup, true)
}

// pull begins a request that waits for records. Its answer is written at once, for a commit waits for it. Both headers are coded by hand: one of
// each goes with every commit.
func (s *Session) pull(c *call, f Frame) error {
	r := new(PullRequest)
	if err := parsePullRequest(f.Header, r); err != nil {
		return err
	}
	r.BytesMax = replicationBytes(r.BytesMax)
	s.h.services.Replication.Pull(s.ctx, r, func(m *PullResponse, records []byte, err error) {
		if !c.claim() {
			return
		}
		if err != nil {
			c.fail(err, false)
			s.conn.Flush()
			return
		}
		s.conn.Reply(c.request, c.command, appendPullResponse(c.scratch[:0], m), records)
		s.conn.Flush()
		c.end(false)
	})
	return nil
}

func parsePullRequest(b []byte, r *PullRequest) error {
	for len(b) > 0 {
		field, kind, n := protowire.ConsumeTag(b)
		if n < 0 || field > protowire.MaxValidNumber {
			return errHeader
		}
		b = b[n:]
		if kind != protowire.VarintType || field > 6 { // of a later version
			if n = protowire.ConsumeFieldValue(field, kind, b); n < 0 {
				return errHeader
			}
			b = b[n:]
			continue
		}
		v, n := protowire.ConsumeVarint(b)
		if n < 0 {
			return errHeader
		}
		b = b[n:]
		switch field {
		case 1:
			r.Session = v
		case 2:
			r.Epoch = v
		case 3:
			r.Acked = v
		case 4:
			r.Synced = v
		case 5:
			r.Window = uint32(v)
		case 6:
			r.BytesMax = uint32(v)
		}
	}
	return nil
}

func appendPullResponse(b []byte, m *PullResponse) []byte {
	for field, v := range [...]uint64{1: m.Epoch, 2: m.From, 3: m.Committed, 4: m.Begin} {
		if v != 0 {
			b = protowire.AppendVarint(protowire.AppendTag(b, protowire.Number(field), protowire.VarintType), v)
		}
	}
	if m.InSync {
		b = protowire.AppendVarint(protowire.AppendTag(b, 5, protowire.VarintType), 1)
	}
	if m.Transfer != "" {
		b = protowire.AppendString(protowire.AppendTag(b, 6, protowire.BytesType), m.Transfer)
	}
	return b
}
