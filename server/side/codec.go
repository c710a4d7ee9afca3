package side

import (
	"encoding/binary"
	"fmt"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/offset"
)

// The kinds of parts. The numbers are the format's and never used again.
const (
	kindEnds     = 1
	kindExpiries = 2
	// kindHandOffs is kept for failed messages that were handed to the retry manager while the master was away. Nothing writes it yet, and a
	// reader refuses it: what it would say must not be passed over.
	kindHandOffs = 3
)

// entriesMax bounds the ends, or expiries, of one part.
const entriesMax = 1024

// A part is entries of one kind:
//
//	kind u8 | length uvarint | length bytes of: size uvarint | payload of the journal's record | position, epoch uvarint for each entry

// appendParts appends e to b, in parts. cut is called after each.
func appendParts(b []byte, e *Entries, cut func(b []byte) []byte) []byte {
	var ends []offset.End
	for rest := e.Ends; len(rest) > 0; {
		n := min(len(rest), entriesMax)
		ends = ends[:0]
		for i := range rest[:n] {
			ends = append(ends, rest[i].End)
		}
		payload := offset.AppendEnds(nil, ends)
		b = cut(appendPart(b, kindEnds, payload, n, func(i int) Record { return rest[i].Last }))
		rest = rest[n:]
	}
	var expiries []offset.Expiry
	for rest := e.Expiries; len(rest) > 0; {
		n := min(len(rest), entriesMax)
		expiries = expiries[:0]
		for i := range rest[:n] {
			expiries = append(expiries, rest[i].Expiry)
		}
		payload := offset.AppendExpiries(nil, expiries)
		b = cut(appendPart(b, kindExpiries, payload, n, func(i int) Record { return rest[i].Last }))
		rest = rest[n:]
	}
	return b
}

func appendPart(b []byte, kind byte, payload []byte, n int, last func(i int) Record) []byte {
	part := binary.AppendUvarint(nil, uint64(len(payload)))
	part = append(part, payload...)
	for i := range n {
		r := last(i)
		part = binary.AppendUvarint(part, uint64(r.Position))
		part = binary.AppendUvarint(part, uint64(r.Epoch))
	}
	b = append(b, kind)
	b = binary.AppendUvarint(b, uint64(len(part)))
	return append(b, part...)
}

// Decode reads parts, one behind the other. An error: nothing of b is to be believed.
func Decode(b []byte) (Entries, error) {
	var e Entries
	for len(b) > 0 {
		kind := b[0]
		part, rest, ok := cutBytes(b[1:])
		if !ok {
			return Entries{}, fmt.Errorf("%w: a part is cut", ErrCorrupt)
		}
		b = rest
		payload, lasts, ok := cutBytes(part)
		if !ok {
			return Entries{}, fmt.Errorf("%w: a part's record is cut", ErrCorrupt)
		}
		var err error
		switch kind {
		case kindEnds:
			var ends []offset.End
			if ends, err = offset.DecodeEnds(nil, payload); err == nil {
				for i := range ends {
					var r Record
					if r, lasts, ok = cutRecord(lasts); !ok {
						break
					}
					e.Ends = append(e.Ends, End{ends[i], r})
				}
			}
		case kindExpiries:
			var expiries []offset.Expiry
			if expiries, err = offset.DecodeExpiries(payload); err == nil {
				for i := range expiries {
					var r Record
					if r, lasts, ok = cutRecord(lasts); !ok {
						break
					}
					e.Expiries = append(e.Expiries, Expiry{expiries[i], r})
				}
			}
		default:
			return Entries{}, fmt.Errorf("%w: a part of kind %d", ErrVersion, kind)
		}
		if err != nil {
			return Entries{}, fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		if !ok || len(lasts) != 0 {
			return Entries{}, fmt.Errorf("%w: a part has not one record for each entry", ErrCorrupt)
		}
	}
	return e, nil
}

// cutBytes cuts a length and so many bytes off b.
func cutBytes(b []byte) (part, rest []byte, ok bool) {
	n, k := binary.Uvarint(b)
	if k <= 0 || n > uint64(len(b)-k) {
		return nil, nil, false
	}
	return b[k : k+int(n)], b[k+int(n):], true
}

func cutRecord(b []byte) (r Record, rest []byte, ok bool) {
	position, k := binary.Uvarint(b)
	if k <= 0 {
		return r, nil, false
	}
	epoch, m := binary.Uvarint(b[k:])
	if m <= 0 {
		return r, nil, false
	}
	return Record{journal.Position(position), journal.Epoch(epoch)}, b[k+m:], true
}
