package wire

import (
	"errors"

	"google.golang.org/protobuf/encoding/protowire"
)

// The headers of Produce, Fetch and Ack are coded by hand, because they are coded for each request. They read and write
// what the generated ...Header messages do, and a test holds them to that, except that names are judged while they are
// read, numbers that the plain structs hold in fewer bits are refused when they do not fit, and repeated fields have limits.

const (
	fetchPartitionsMax = 1024
	ackItemsMax        = BatchMessagesMax
	namesMax           = 4096
)

// Wire types, as they stand in a tag's low three bits.
const (
	varField = uint64(protowire.VarintType)
	lenField = uint64(protowire.BytesType)
)

// Names turns the names in headers into strings without allocating for a name that was seen before, and judges the new
// ones. It belongs to one connection; the zero value is ready. Not safe for concurrent use.
type Names struct{ topics, groups map[string]string }

func (n *Names) topic(b []byte) (string, error) { return internName(&n.topics, b, CheckTopic) }
func (n *Names) group(b []byte) (string, error) { return internName(&n.groups, b, CheckGroup) }

func internName(m *map[string]string, b []byte, check func(string) error) (string, error) {
	if s, ok := (*m)[string(b)]; ok {
		return s, nil
	}
	if len(b) > NameBytesMax {
		b = b[:NameBytesMax+1] // enough for the error, whatever was sent
	}
	s := string(b)
	if err := check(s); err != nil {
		return "", err
	}
	if *m == nil || len(*m) >= namesMax {
		*m = make(map[string]string)
	}
	(*m)[s] = s
	return s, nil
}

func asCodeError(err error) (*CodeError, bool) { return errors.AsType[*CodeError](err) }

func appendUint(b []byte, n protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), v)
}

func appendBool(b []byte, n protowire.Number, v bool) []byte {
	if !v {
		return b
	}
	return appendUint(b, n, 1)
}

// appendPacked appends numbers as one field, without allocating.
func appendPacked[T ~uint16 | ~uint32 | ~uint64](b []byte, n protowire.Number, list []T) []byte {
	if len(list) == 0 {
		return b
	}
	size := 0
	for _, v := range list {
		size += protowire.SizeVarint(uint64(v))
	}
	b = protowire.AppendTag(b, n, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(size))
	for _, v := range list {
		b = protowire.AppendVarint(b, uint64(v))
	}
	return b
}

func appendText(b []byte, n protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, n, protowire.BytesType), s)
}

var errHeader = Errorf(CodeMalformed, "the header is not a protobuf message")

// takeField splits the first field from b: tag is its number times 8 plus its wire type; v holds a varint, s the content of
// a field with a length. What has another type has its tag only: no header uses one, so it is skipped as unknown.
func takeField(b []byte) (tag, v uint64, s, rest []byte, err error) {
	n, t, k := protowire.ConsumeTag(b)
	if k < 0 || n > protowire.MaxValidNumber {
		return 0, 0, nil, nil, errHeader
	}
	b = b[k:]
	switch t {
	case protowire.VarintType:
		v, k = protowire.ConsumeVarint(b)
	case protowire.BytesType:
		s, k = protowire.ConsumeBytes(b)
	default:
		k = protowire.ConsumeFieldValue(n, t, b)
	}
	if k < 0 {
		return 0, 0, nil, nil, errHeader
	}
	return uint64(n)<<3 | uint64(t), v, s, b[k:], nil
}

// takePacked gives each number of a packed field to add, until that returns an error.
func takePacked(s []byte, add func(uint64) error) error {
	for len(s) > 0 {
		v, k := protowire.ConsumeVarint(s)
		if k < 0 {
			return errHeader
		}
		s = s[k:]
		if err := add(v); err != nil {
			return err
		}
	}
	return nil
}

// takePartition judges a partition number.
func takePartition(v uint64) (uint16, error) {
	if uint32(v) >= PartitionsMax {
		return 0, Errorf(CodeInvalid, "partition %d, at most %d are possible", uint32(v), PartitionsMax-1)
	}
	return uint16(v), nil
}

// AppendProduceRequest appends the header of r; the payload is r.Batch.
func AppendProduceRequest(b []byte, r *ProduceRequest) []byte {
	b = appendText(b, 1, r.Topic)
	b = appendUint(b, 2, uint64(r.Partition))
	b = appendUint(b, 3, r.RouteVersion)
	b = appendUint(b, 4, uint64(r.TimeoutMs))
	return appendUint(b, 5, r.TopicID)
}

// ParseProduceRequest reads a header into r, all but r.Batch. r.Topic lies in header.
func ParseProduceRequest(r *ProduceRequest, header []byte) error {
	*r = ProduceRequest{}
	var topic []byte
	var partition uint64
	for b := header; len(b) > 0; {
		tag, v, s, rest, err := takeField(b)
		if err != nil {
			return err
		}
		b = rest
		switch tag {
		case 1<<3 | lenField:
			topic = s
		case 2<<3 | varField:
			partition = v
		case 3<<3 | varField:
			r.RouteVersion = v
		case 4<<3 | varField:
			r.TimeoutMs = uint32(v)
		case 5<<3 | varField:
			r.TopicID = v
		}
	}
	r.Topic = aliasString(topic[:min(len(topic), NameBytesMax+1)]) // enough for the error, whatever was sent
	err := CheckTopic(r.Topic)
	if err == nil {
		r.Partition, err = takePartition(partition)
	}
	return err
}

// AppendProduceResponse appends the header of r.
func AppendProduceResponse(b []byte, r *ProduceResponse) []byte {
	b = appendUint(b, 1, r.FirstIndex)
	b = appendUint(b, 2, uint64(r.StoredNs))
	b = appendUint(b, 3, r.RouteVersion)
	return appendUint(b, 4, r.TopicID)
}

// ParseProduceResponse reads a header into r.
func ParseProduceResponse(r *ProduceResponse, header []byte) error {
	*r = ProduceResponse{}
	for b := header; len(b) > 0; {
		tag, v, _, rest, err := takeField(b)
		if err != nil {
			return err
		}
		b = rest
		switch tag {
		case 1<<3 | varField:
			r.FirstIndex = v
		case 2<<3 | varField:
			r.StoredNs = int64(v)
		case 3<<3 | varField:
			r.RouteVersion = v
		case 4<<3 | varField:
			r.TopicID = v
		}
	}
	return nil
}

// AppendFetchRequest appends the header of r.
func AppendFetchRequest(b []byte, r *FetchRequest) []byte {
	b = appendText(b, 1, r.Topic)
	b = appendText(b, 2, r.Group)
	b = appendUint(b, 3, uint64(r.Member))
	b = appendUint(b, 4, uint64(r.MessagesMax))
	b = appendUint(b, 5, uint64(r.BytesMax))
	b = appendUint(b, 6, uint64(r.WaitMs))
	b = appendUint(b, 7, r.RouteVersion)
	b = appendPacked(b, 8, r.Partitions)
	b = appendBool(b, 9, r.Reconcile)
	b = appendPacked(b, 10, r.Held)
	b = appendUint(b, 11, r.Round)
	return appendBool(b, 12, r.Leave)
}

// ParseFetchRequest reads a header into r, whose Partitions and Held are used again.
func ParseFetchRequest(r *FetchRequest, header []byte, names *Names) error {
	*r = FetchRequest{Partitions: r.Partitions[:0], Held: r.Held[:0]}
	var topic, group []byte
	add := func(v uint64) error {
		p, err := takePartition(v)
		if err == nil && len(r.Partitions) == fetchPartitionsMax {
			err = Errorf(CodeInvalid, "fetch of over %d partitions", fetchPartitionsMax)
		}
		r.Partitions = append(r.Partitions, uint32(p))
		return err
	}
	hold := func(v uint64) error {
		if len(r.Held) == FetchHeldMax {
			return Errorf(CodeInvalid, "fetch with over %d leases held", FetchHeldMax)
		}
		r.Held = append(r.Held, v)
		return nil
	}
	for b := header; len(b) > 0; {
		tag, v, s, rest, err := takeField(b)
		if err != nil {
			return err
		}
		b = rest
		switch tag {
		case 1<<3 | lenField:
			topic = s
		case 2<<3 | lenField:
			group = s
		case 3<<3 | varField:
			r.Member = uint32(v)
		case 4<<3 | varField:
			r.MessagesMax = uint32(v)
		case 5<<3 | varField:
			r.BytesMax = uint32(v)
		case 6<<3 | varField:
			r.WaitMs = uint32(v)
		case 7<<3 | varField:
			r.RouteVersion = v
		case 8<<3 | varField:
			err = add(v)
		case 8<<3 | lenField:
			err = takePacked(s, add)
		case 9<<3 | varField:
			r.Reconcile = v != 0
		case 10<<3 | varField:
			err = hold(v)
		case 10<<3 | lenField:
			err = takePacked(s, hold)
		case 11<<3 | varField:
			r.Round = v
		case 12<<3 | varField:
			r.Leave = v != 0
		}
		if err != nil {
			return err
		}
	}
	var err error
	if r.Topic, err = names.topic(topic); err == nil {
		r.Group, err = names.group(group)
	}
	return err
}

// AppendFetchResponse appends the header of r; the payload is r.Batches.
func AppendFetchResponse(b []byte, r *FetchResponse) []byte {
	b = appendUint(b, 1, r.Lease)
	b = appendUint(b, 2, uint64(r.Partition))
	b = appendUint(b, 3, r.From)
	b = appendUint(b, 4, r.To)
	b = appendUint(b, 5, uint64(r.LeaseMs))
	b = appendUint(b, 6, r.Epoch)
	b = appendUint(b, 7, uint64(r.Attempt))
	return appendUint(b, 8, uint64(r.Gap))
}

// ParseFetchResponse reads a header into r, all but r.Batches.
func ParseFetchResponse(r *FetchResponse, header []byte) error {
	*r = FetchResponse{}
	var partition uint64
	for b := header; len(b) > 0; {
		tag, v, _, rest, err := takeField(b)
		if err != nil {
			return err
		}
		b = rest
		switch tag {
		case 1<<3 | varField:
			r.Lease = v
		case 2<<3 | varField:
			partition = v
		case 3<<3 | varField:
			r.From = v
		case 4<<3 | varField:
			r.To = v
		case 5<<3 | varField:
			r.LeaseMs = uint32(v)
		case 6<<3 | varField:
			r.Epoch = v
		case 7<<3 | varField:
			r.Attempt = uint32(v)
		case 8<<3 | varField:
			r.Gap = GapReason(v)
		}
	}
	var err error
	r.Partition, err = takePartition(partition)
	return err
}

// AppendAckRequest appends the header of r.
func AppendAckRequest(b []byte, r *AckRequest) []byte {
	b = appendText(b, 1, r.Topic)
	b = appendText(b, 2, r.Group)
	b = appendUint(b, 3, uint64(r.Member))
	for i := range r.Items {
		item := &r.Items[i]
		b = protowire.AppendTag(b, 4, protowire.BytesType)
		b = append(b, 0)
		begin := len(b)
		b = appendUint(b, 1, uint64(item.Partition))
		b = appendUint(b, 2, item.Lease)
		b = appendUint(b, 3, item.From)
		b = appendUint(b, 4, item.To)
		b = appendUint(b, 5, uint64(item.Outcome))
		b[begin-1] = byte(len(b) - begin) // at most 40: one byte of length
	}
	return b
}

// ParseAckRequest reads a header into r, whose Items are used again.
func ParseAckRequest(r *AckRequest, header []byte, names *Names) error {
	*r = AckRequest{Items: r.Items[:0]}
	var topic, group []byte
	for b := header; len(b) > 0; {
		tag, v, s, rest, err := takeField(b)
		if err != nil {
			return err
		}
		b = rest
		switch tag {
		case 1<<3 | lenField:
			topic = s
		case 2<<3 | lenField:
			group = s
		case 3<<3 | varField:
			r.Member = uint32(v)
		case 4<<3 | lenField:
			if len(r.Items) == ackItemsMax {
				return Errorf(CodeInvalid, "ack of over %d items", ackItemsMax)
			}
			r.Items = append(r.Items, AckRange{})
			if err := parseAckItem(&r.Items[len(r.Items)-1], s); err != nil {
				return err
			}
		}
	}
	var err error
	if r.Topic, err = names.topic(topic); err == nil {
		r.Group, err = names.group(group)
	}
	return err
}

func parseAckItem(item *AckRange, b []byte) error {
	var partition, outcome uint64
	for len(b) > 0 {
		tag, v, _, rest, err := takeField(b)
		if err != nil {
			return err
		}
		b = rest
		switch tag {
		case 1<<3 | varField:
			partition = v
		case 2<<3 | varField:
			item.Lease = v
		case 3<<3 | varField:
			item.From = v
		case 4<<3 | varField:
			item.To = v
		case 5<<3 | varField:
			outcome = v
		}
	}
	if uint32(outcome) > uint32(Expired) {
		return Errorf(CodeInvalid, "unknown outcome %d", uint32(outcome))
	}
	item.Outcome = Outcome(outcome)
	var err error
	item.Partition, err = takePartition(partition)
	return err
}

// AppendAckResponse appends the header of r.
func AppendAckResponse(b []byte, r *AckResponse) []byte { return appendPacked(b, 1, r.Codes) }

// ParseAckResponse reads a header into r, whose Codes are used again.
func ParseAckResponse(r *AckResponse, header []byte) error {
	r.Codes = r.Codes[:0]
	add := func(v uint64) error {
		if uint32(v) > 1<<16-1 {
			return Errorf(CodeInvalid, "code %d", uint32(v))
		}
		if len(r.Codes) == ackItemsMax {
			return Errorf(CodeInvalid, "over %d codes", ackItemsMax)
		}
		r.Codes = append(r.Codes, Code(v))
		return nil
	}
	for b := header; len(b) > 0; {
		tag, v, s, rest, err := takeField(b)
		if err != nil {
			return err
		}
		b = rest
		switch tag {
		case 1<<3 | varField:
			err = add(v)
		case 1<<3 | lenField:
			err = takePacked(s, add)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
