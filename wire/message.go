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

	messageBytesMin = 32
	lightQueuesMax  = 16
)

// Attributes of a message: what it has behind its fixed part. None of these is empty where it is there.
const (
	hasTag      = 1 << iota // its hash; the text is a header
	hasOrderKey             // its hash, and the key
	hasBusinessID
	hasTraceContext
	hasLightQueues
	hasHeaders
	knownAttributes = 1<<iota - 1
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
	size := messageBytesMin + len(m.Body)
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
		if f.n > 0 {
			size += uvarintBytes(f.n) + f.n
		}
	}
	if m.OrderKey != "" {
		size += 8 // its hash
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
		size += 4 + uvarintBytes(len(headerTag)) + len(headerTag) + uvarintBytes(len(m.Tag)) + len(m.Tag)
	}
	if n > HeadersMax {
		return 0, Errorf(CodeInvalid, "message %d: %d headers, at most %d are allowed", slot, n, HeadersMax)
	}
	if n > 0 {
		size += uvarintBytes(n)
	}
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

// attributes says what the encoded message has.
func (m *Message) attributes() (a byte) {
	if m.Tag != "" {
		a |= hasTag | hasHeaders
	}
	if m.OrderKey != "" {
		a |= hasOrderKey
	}
	if m.Key != "" {
		a |= hasBusinessID
	}
	if m.TraceContext != "" {
		a |= hasTraceContext
	}
	if len(m.Headers) > 0 {
		a |= hasHeaders
	}
	return a
}

// append writes the message, whose encoded size check returned.
func (m *Message) append(b []byte, size int) []byte {
	le := binary.LittleEndian
	b = le.AppendUint32(b, uint32(size))
	b = append(b, m.ID[:]...)
	b = le.AppendUint64(b, uint64(m.BornNs))
	b = le.AppendUint16(b, m.Flag)
	attributes := m.attributes()
	b = append(b, m.Priority, attributes)
	if attributes&hasTag != 0 {
		b = le.AppendUint32(b, HashTag(m.Tag))
	}
	if attributes&hasOrderKey != 0 {
		b = le.AppendUint64(b, HashKey(m.OrderKey))
	}
	if attributes&hasBusinessID != 0 {
		b = appendString(b, m.Key)
	}
	if attributes&hasOrderKey != 0 {
		b = appendString(b, m.OrderKey)
	}
	if attributes&hasTraceContext != 0 {
		b = appendString(b, m.TraceContext)
	}
	if attributes&hasHeaders == 0 {
		return append(b, m.Body...)
	}
	n := len(m.Headers)
	if attributes&hasTag != 0 {
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
	keyHash      uint64
	tagHash      uint32
}

func (v *MessageView) ID() [16]byte      { return [16]byte(v.raw[4:20]) }
func (v *MessageView) BornNs() int64     { return int64(binary.LittleEndian.Uint64(v.raw[20:])) }
func (v *MessageView) Flag() uint16      { return binary.LittleEndian.Uint16(v.raw[28:]) }
func (v *MessageView) Priority() uint8   { return v.raw[30] }
func (v *MessageView) attributes() uint8 { return v.raw[31] }
func (v *MessageView) KeyHash() uint64   { return v.keyHash }
func (v *MessageView) TagHash() uint32   { return v.tagHash }
func (v *MessageView) Size() int         { return len(v.raw) }
func (v *MessageView) hasHeaders() bool  { return v.headerCount > 0 }
func (v *MessageView) hasUnknownUse() bool {
	return v.attributes()&^(knownAttributes&^hasLightQueues) != 0
}

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
	if v.Priority() > 9 {
		return nil, Errorf(CodeInvalid, "message %d: priority %d, 0 to 9 are allowed", slot, v.Priority())
	}
	f, attributes := v.raw[messageBytesMin:], v.attributes()
	v.Key, v.OrderKey, v.TraceContext, v.headers = nil, nil, nil, nil
	v.headerCount, v.keyHash, v.tagHash = 0, 0, 0
	if attributes&knownAttributes != 0 {
		var what string
		if f, what = v.parseVariable(f, attributes); what != "" {
			return bad(what)
		}
	}
	if v.Body = f; len(f) > BodyBytesMax {
		return nil, Errorf(CodeTooLarge, "message %d: body of %d bytes, at most %d are allowed", slot, len(f), BodyBytesMax)
	}
	return rest, nil
}

// parseVariable reads from f what comes before the body, and returns the body, or what is wrong.
func (v *MessageView) parseVariable(f []byte, attributes uint8) (body []byte, wrong string) {
	var ok bool
	if attributes&hasTag != 0 {
		if len(f) < 4 {
			return nil, "tag hash is cut off"
		}
		v.tagHash, f = binary.LittleEndian.Uint32(f), f[4:]
	}
	if attributes&hasOrderKey != 0 {
		if len(f) < 8 {
			return nil, "hash of the order key is cut off"
		}
		v.keyHash, f = binary.LittleEndian.Uint64(f), f[8:]
	}
	if attributes&hasBusinessID != 0 {
		if v.Key, f, ok = takeBytes(f); !ok || len(v.Key) == 0 || len(v.Key) > NameBytesMax {
			return nil, "business id is cut off, empty or too long"
		}
	}
	if attributes&hasOrderKey != 0 {
		if v.OrderKey, f, ok = takeBytes(f); !ok || len(v.OrderKey) == 0 || len(v.OrderKey) > NameBytesMax {
			return nil, "order key is cut off, empty or too long"
		}
	}
	if attributes&hasTraceContext != 0 {
		if v.TraceContext, f, ok = takeBytes(f); !ok || len(v.TraceContext) == 0 || len(v.TraceContext) > TraceContextBytesMax {
			return nil, "trace context is cut off, empty or too long"
		}
	}
	if attributes&hasLightQueues != 0 {
		n, k := binary.Uvarint(f)
		if k <= 0 || n == 0 || n > lightQueuesMax {
			return nil, "list of light queues is wrong"
		}
		f = f[k:]
		for range n {
			if _, k = binary.Uvarint(f); k <= 0 {
				return nil, "list of light queues is wrong"
			}
			var name []byte
			if name, f, ok = takeBytes(f[k:]); !ok || len(name) > NameBytesMax {
				return nil, "list of light queues is wrong"
			}
		}
	}
	if attributes&hasHeaders == 0 {
		return f, ""
	}
	n, k := binary.Uvarint(f)
	if k <= 0 || n == 0 || n > HeadersMax {
		return nil, "count of headers is wrong"
	}
	f = f[k:]
	v.headers, v.headerCount = f, int(n)
	for range v.headerCount {
		var key, value []byte
		if key, f, ok = takeBytes(f); !ok || len(key) == 0 || len(key) > NameBytesMax {
			return nil, "header key is cut off, empty or too long"
		}
		if value, f, ok = takeBytes(f); !ok || len(value) > HeaderValueBytesMax {
			return nil, "header value is cut off or too long"
		}
	}
	return f, ""
}
