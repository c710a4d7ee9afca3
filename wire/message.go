package wire

import (
	"encoding/binary"
	"iter"
	"unsafe"

	"github.com/cespare/xxhash/v2"
)

// Message is one message, as a producer gives it and a consumer gets it.
type Message struct {
	ID           [16]byte // a ULID, made by the SDK before sending
	Key          string   // business id: for finding the message
	OrderKey     string   // what must stay in order; empty: nothing
	KeyHash      uint64   // of OrderKey, see HashKey; set when decoded, computed when encoded
	Tag          string   // what consumers may filter by; empty: none
	Headers      Headers
	TraceContext string // W3C trace context, as the SDK wrote it
	Body         []byte
	Flag         uint16 // the user's
	Priority     uint8  // 0..9
	BornNs       int64  // unix nanoseconds at the producer
}

// Header is one of a message's headers. Keys beginning with "jmq." are the SDK's own.
type Header struct{ Key, Value string }

// Headers keep their order; a key is there once.
type Headers []Header

// Get returns the value of key and whether it is there.
func (h Headers) Get(key string) (string, bool) {
	for i := range h {
		if h[i].Key == key {
			return h[i].Value, true
		}
	}
	return "", false
}

// Set gives key a value, in its old place or at the end.
func (h *Headers) Set(key, value string) {
	for i := range *h {
		if (*h)[i].Key == key {
			(*h)[i].Value = value
			return
		}
	}
	*h = append(*h, Header{key, value})
}

const (
	// headerReserved begins the keys that users may not set.
	headerReserved = "jmq."
	// headerTag carries the tag's text: the layout has its hash only. It is the first header when there is a tag, and is
	// shown as Message.Tag, not among the Headers.
	headerTag = headerReserved + "tag"

	messageFixedBytes = 48
	messageBytesMin   = messageFixedBytes + 5 // five empty fields of variable length
	lightQueuesMax    = 16
)

// HashKey returns the hash of an order key as messages carry it: 0 for no key.
func HashKey(orderKey string) uint64 {
	if orderKey == "" {
		return 0
	}
	return xxhash.Sum64String(orderKey)
}

// HashTag returns the hash of a filter tag as messages and index carry it: 0 for no tag, and for no other.
func HashTag(tag string) uint32 {
	if tag == "" {
		return 0
	}
	if h := uint32(xxhash.Sum64String(tag)); h != 0 {
		return h
	}
	return 1
}

// Check judges what the message holds, as encoding it does.
func (m *Message) Check() error {
	_, err := m.check(0)
	return err
}

// check judges what a message may hold, and returns its encoded size.
func (m *Message) check(slot int) (int, error) {
	if len(m.Body) > BodyBytesMax {
		return 0, Errorf(CodeTooLarge, "message %d: body of %d bytes, at most %d are allowed", slot, len(m.Body), BodyBytesMax)
	}
	size := messageFixedBytes + len(m.Body)
	for _, f := range [...]struct {
		what string
		n    int
		max  int
	}{
		{"business id", len(m.Key), NameBytesMax},
		{"order key", len(m.OrderKey), NameBytesMax},
		{"trace context", len(m.TraceContext), TraceContextBytesMax},
	} {
		if f.n > f.max {
			return 0, Errorf(CodeInvalid, "message %d: %s of %d bytes, at most %d are allowed", slot, f.what, f.n, f.max)
		}
		size += uvarintBytes(f.n) + f.n
	}
	if m.Priority > 9 {
		return 0, Errorf(CodeInvalid, "message %d: priority %d, 0 to 9 are allowed", slot, m.Priority)
	}
	n := len(m.Headers)
	if m.Tag != "" {
		if len(m.Tag) > NameBytesMax {
			return 0, Errorf(CodeInvalid, "message %d: tag of %d bytes, at most %d are allowed", slot, len(m.Tag), NameBytesMax)
		}
		n++
		size += uvarintBytes(len(headerTag)) + len(headerTag) + uvarintBytes(len(m.Tag)) + len(m.Tag)
	}
	if n > HeadersMax {
		return 0, Errorf(CodeInvalid, "message %d: %d headers, at most %d are allowed", slot, n, HeadersMax)
	}
	size += 1 + uvarintBytes(n) // no light queues, the headers' count
	for i := range m.Headers {
		h := &m.Headers[i]
		switch {
		case h.Key == "" || len(h.Key) > NameBytesMax:
			return 0, Errorf(CodeInvalid, "message %d: header key of %d bytes, 1 to %d are allowed", slot, len(h.Key), NameBytesMax)
		case len(h.Key) >= len(headerReserved) && h.Key[:len(headerReserved)] == headerReserved:
			return 0, Errorf(CodeInvalid, "message %d: header %q: keys beginning with %q are reserved", slot, h.Key, headerReserved)
		case len(h.Value) > HeaderValueBytesMax:
			return 0, Errorf(CodeInvalid, "message %d: header %q has %d bytes, at most %d are allowed", slot, h.Key, len(h.Value), HeaderValueBytesMax)
		}
		for j := range i {
			if m.Headers[j].Key == h.Key {
				return 0, Errorf(CodeInvalid, "message %d: header %q is there twice", slot, h.Key)
			}
		}
		size += uvarintBytes(len(h.Key)) + len(h.Key) + uvarintBytes(len(h.Value)) + len(h.Value)
	}
	return size, nil
}

// append writes the message, whose encoded size check returned.
func (m *Message) append(b []byte, size int) []byte {
	le := binary.LittleEndian
	b = le.AppendUint32(b, uint32(size))
	b = append(b, m.ID[:]...)
	b = le.AppendUint64(b, HashKey(m.OrderKey))
	b = le.AppendUint64(b, uint64(m.BornNs))
	b = le.AppendUint16(b, m.Flag)
	b = append(b, m.Priority, 0)
	b = le.AppendUint32(b, HashTag(m.Tag))
	b = le.AppendUint32(b, uint32(len(m.Body)))
	b = appendString(b, m.Key)
	b = appendString(b, m.OrderKey)
	b = appendString(b, m.TraceContext)
	b = append(b, 0)
	n := len(m.Headers)
	if m.Tag != "" {
		b = binary.AppendUvarint(b, uint64(n+1))
		b = appendString(b, headerTag)
		b = appendString(b, m.Tag)
	} else {
		b = binary.AppendUvarint(b, uint64(n))
	}
	for i := range m.Headers {
		b = appendString(b, m.Headers[i].Key)
		b = appendString(b, m.Headers[i].Value)
	}
	return append(b, m.Body...)
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func uvarintBytes(n int) int {
	size := 1
	for ; n >= 0x80; n >>= 7 {
		size++
	}
	return size
}

// MessageView is an encoded message read in place: its slices alias the bytes of the batch.
type MessageView struct {
	raw          []byte
	Key          []byte
	OrderKey     []byte
	TraceContext []byte
	Body         []byte
	headers      []byte // each key and value with its length before it
	headerCount  int
	lightQueues  int
}

func (v *MessageView) ID() [16]byte        { return [16]byte(v.raw[4:20]) }
func (v *MessageView) KeyHash() uint64     { return binary.LittleEndian.Uint64(v.raw[20:]) }
func (v *MessageView) BornNs() int64       { return int64(binary.LittleEndian.Uint64(v.raw[28:])) }
func (v *MessageView) Flag() uint16        { return binary.LittleEndian.Uint16(v.raw[36:]) }
func (v *MessageView) Priority() uint8     { return v.raw[38] }
func (v *MessageView) TagHash() uint32     { return binary.LittleEndian.Uint32(v.raw[40:]) }
func (v *MessageView) Size() int           { return len(v.raw) }
func (v *MessageView) attributes() uint8   { return v.raw[39] }
func (v *MessageView) hasHeaders() bool    { return v.headerCount > 0 }
func (v *MessageView) bodyLength() uint32  { return binary.LittleEndian.Uint32(v.raw[44:]) }
func (v *MessageView) hasUnknownUse() bool { return v.attributes() != 0 || v.lightQueues != 0 }

// Headers gives the headers in order, the SDK's own among them.
func (v *MessageView) Headers() iter.Seq2[[]byte, []byte] {
	return func(yield func(k, value []byte) bool) {
		rest := v.headers
		for range v.headerCount {
			var k, value []byte
			k, rest, _ = takeBytes(rest) // the lengths were judged by parse
			value, rest, _ = takeBytes(rest)
			if !yield(k, value) {
				return
			}
		}
	}
}

// Tag returns the filter tag, nil when there is none.
func (v *MessageView) Tag() []byte {
	for k, value := range v.Headers() {
		if string(k) == headerTag {
			return value
		}
	}
	return nil
}

// Message returns the message in memory of its own.
func (v *MessageView) Message() Message {
	var own MessageView
	if _, err := own.parse(append([]byte(nil), v.raw...), 0); err != nil {
		panic(err) // v was parsed from the same bytes, which someone changed meanwhile
	}
	return own.Alias()
}

// Alias returns the message without copying: its strings and body are the batch's bytes, which must not change as long as
// anything of the message is in use.
func (v *MessageView) Alias() Message {
	m := Message{
		ID: v.ID(), Key: aliasString(v.Key), OrderKey: aliasString(v.OrderKey), KeyHash: v.KeyHash(),
		TraceContext: aliasString(v.TraceContext), Body: v.Body, Flag: v.Flag(), Priority: v.Priority(), BornNs: v.BornNs(),
	}
	if !v.hasHeaders() {
		return m
	}
	m.Headers = make(Headers, 0, v.headerCount)
	for k, value := range v.Headers() {
		if string(k) == headerTag {
			m.Tag = aliasString(value)
			continue
		}
		m.Headers = append(m.Headers, Header{aliasString(k), aliasString(value)})
	}
	if len(m.Headers) == 0 {
		m.Headers = nil
	}
	return m
}

func aliasString(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	return unsafe.String(&b[0], len(b))
}

// takeBytes splits a field with a uvarint length before it from b.
func takeBytes(b []byte) (field, rest []byte, ok bool) {
	if len(b) > 0 && b[0] < 0x80 { // nearly always
		n := int(b[0])
		if n > len(b)-1 {
			return nil, nil, false
		}
		return b[1 : 1+n : 1+n], b[1+n:], true
	}
	n, k := binary.Uvarint(b)
	if k <= 0 || n > uint64(len(b)-k) {
		return nil, nil, false
	}
	b = b[k:]
	return b[:n:n], b[n:], true
}

// parse reads the message at the beginning of b and returns what follows it. Everything is judged: after nil the
// accessors cannot fail.
func (v *MessageView) parse(b []byte, slot int) (rest []byte, err error) {
	bad := func(what string) ([]byte, error) {
		return nil, Errorf(CodeMalformed, "message %d: %s", slot, what)
	}
	if len(b) < messageBytesMin {
		return bad("cut off")
	}
	length := binary.LittleEndian.Uint32(b)
	if length < messageBytesMin || uint64(length) > uint64(len(b)) {
		return bad("length is wrong")
	}
	rest = b[length:]
	v.raw = b[:length:length]
	body := v.bodyLength()
	if body > BodyBytesMax {
		return nil, Errorf(CodeTooLarge, "message %d: body of %d bytes, at most %d are allowed", slot, body, BodyBytesMax)
	}
	if uint64(body) > uint64(length-messageBytesMin) {
		return bad("body is longer than the message")
	}
	if v.Priority() > 9 {
		return nil, Errorf(CodeInvalid, "message %d: priority %d, 0 to 9 are allowed", slot, v.Priority())
	}
	v.Body = v.raw[length-body:]
	f := v.raw[messageFixedBytes : length-body]
	var ok bool
	if v.Key, f, ok = takeBytes(f); !ok || len(v.Key) > NameBytesMax {
		return bad("business id is cut off or too long")
	}
	if v.OrderKey, f, ok = takeBytes(f); !ok || len(v.OrderKey) > NameBytesMax {
		return bad("order key is cut off or too long")
	}
	if v.TraceContext, f, ok = takeBytes(f); !ok || len(v.TraceContext) > TraceContextBytesMax {
		return bad("trace context is cut off or too long")
	}
	n, k := binary.Uvarint(f)
	if k <= 0 || n > lightQueuesMax {
		return bad("list of light queues is wrong")
	}
	f, v.lightQueues = f[k:], int(n)
	for range v.lightQueues {
		if _, k = binary.Uvarint(f); k <= 0 {
			return bad("list of light queues is wrong")
		}
		var name []byte
		if name, f, ok = takeBytes(f[k:]); !ok || len(name) > NameBytesMax {
			return bad("list of light queues is wrong")
		}
	}
	if n, k = binary.Uvarint(f); k <= 0 || n > HeadersMax {
		return bad("count of headers is wrong")
	}
	v.headers, v.headerCount = f[k:], int(n)
	f = v.headers
	for range v.headerCount {
		var key, value []byte
		if key, f, ok = takeBytes(f); !ok || len(key) == 0 || len(key) > NameBytesMax {
			return bad("header key is cut off, empty or too long")
		}
		if value, f, ok = takeBytes(f); !ok || len(value) > HeaderValueBytesMax {
			return bad("header value is cut off or too long")
		}
	}
	if len(f) != 0 {
		return bad("bytes between headers and body")
	}
	return rest, nil
}
