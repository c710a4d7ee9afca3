package replica

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/jmqio/jmq/wire"
)

// One pull goes with each commit, so its two headers are coded by hand to the protobuf form of wire.PullRequest and wire.PullResponse.

func appendPull(b []byte, session, epoch, acked, synced uint64, window uint32) []byte {
	b = appendUint(b, 1, session)
	b = appendUint(b, 2, epoch)
	b = appendUint(b, 3, acked)
	b = appendUint(b, 4, synced)
	return appendUint(b, 5, uint64(window))
}

func appendUint(b []byte, field protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
}

// pulled is the head of an answer to a pull.
type pulled struct {
	epoch, from, committed, begin uint64
	inSync                        bool
	transfer                      []byte // in the frame
}

func parsePulled(b []byte) (a pulled, err error) {
	for len(b) > 0 {
		field, kind, n := protowire.ConsumeTag(b)
		if n < 0 || field > protowire.MaxValidNumber {
			return a, errPulled
		}
		b = b[n:]
		switch {
		case field <= 5 && kind == protowire.VarintType:
			v, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return a, errPulled
			}
			b = b[n:]
			switch field {
			case 1:
				a.epoch = v
			case 2:
				a.from = v
			case 3:
				a.committed = v
			case 4:
				a.begin = v
			case 5:
				a.inSync = v != 0
			}
		case field == 6 && kind == protowire.BytesType:
			v, n := protowire.ConsumeBytes(b)
			if n < 0 {
				return a, errPulled
			}
			a.transfer, b = v, b[n:]
		default: // of a later version
			n := protowire.ConsumeFieldValue(field, kind, b)
			if n < 0 {
				return a, errPulled
			}
			b = b[n:]
		}
	}
	return a, nil
}

var errPulled = wire.Errorf(wire.CodeMalformed, "the answer to a pull cannot be read")
