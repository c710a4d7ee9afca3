package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

func randomString(r *rand.Rand, most int) string {
	b := make([]byte, r.IntN(most+1))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return string(b)
}

func randomMessage(r *rand.Rand) Message {
	m := Message{
		Key: randomString(r, 30), OrderKey: randomString(r, 20), TraceContext: randomString(r, 200),
		Flag: uint16(r.Uint32()), Priority: uint8(r.IntN(10)), BornNs: r.Int64(),
		Body: []byte(strings.Repeat("order ", r.IntN(50)) + randomString(r, 40)),
	}
	m.KeyHash = HashKey(m.OrderKey)
	binary.LittleEndian.PutUint64(m.ID[:], r.Uint64())
	if r.IntN(2) == 0 {
		m.Tag = "tag" + randomString(r, 100)
	}
	for i := range r.IntN(4) {
		m.Headers = append(m.Headers, Header{string(rune('a'+i)) + randomString(r, 10), randomString(r, 300)})
	}
	return m
}

func randomMessages(r *rand.Rand) []Message {
	msgs := make([]Message, 1+r.IntN(20))
	for i := range msgs {
		msgs[i] = randomMessage(r)
	}
	return msgs
}

// decode is what a consumer does with a batch.
func decode(c *Codec, b Batch) ([]Message, error) {
	raw, err := c.Messages(b, nil)
	if err != nil {
		return nil, err
	}
	var msgs []Message
	it := IterateMessages(b, raw)
	for it.Next() {
		msgs = append(msgs, it.View.Message())
	}
	return msgs, it.Err()
}

func sameMessages(got, want []Message) bool {
	if len(got) != len(want) {
		return false
	}
	for i := range got {
		g, w := got[i], want[i]
		if !bytes.Equal(g.Body, w.Body) {
			return false
		}
		g.Body, w.Body = nil, nil
		if !reflect.DeepEqual(g, w) {
			return false
		}
	}
	return true
}

// TestBatchRoundTrip encodes random messages with each compression and reads them back equal, in place behind a prefix
// and before another batch, with the broker's fields written in between.
func TestBatchRoundTrip(t *testing.T) {
	r := newRand(t)
	var c Codec
	for range 60 {
		for compression := CompressionNone; compression <= CompressionSnappy; compression++ {
			msgs := randomMessages(r)
			b, err := c.AppendBatch([]byte("prefix"), [16]byte{1}, 77, compression, msgs)
			if err != nil {
				t.Fatal(err)
			}
			b, err = AppendBatch(b, [16]byte{2}, 99, []Message{{Body: []byte("second")}})
			if err != nil {
				t.Fatal(err)
			}
			first, rest, err := SplitBatch(b[len("prefix"):])
			if err != nil {
				t.Fatal(err)
			}
			for i := 6; i < 40; i++ {
				first[i] = 0xee // whatever the producer left there
			}
			first.SetBroker(BrokerFields{1, 2, 3, 4, 5, 6})
			if err := first.Verify(); err != nil {
				t.Fatal(err)
			}
			if first.Namespace() != 1 || first.Partition() != 2 || first.Topic() != 3 || first.Incarnation() != 4 ||
				first.FirstIndex() != 5 || first.StoredNs() != 6 || first.Producer() != [16]byte{1} || first.Sequence() != 77 {
				t.Fatalf("fields are wrong: %x", first[:BatchHeaderBytes])
			}
			infos, err := first.MessageInfos(nil)
			if err != nil || len(infos) != len(msgs) {
				t.Fatalf("%d infos of %d messages: %v", len(infos), len(msgs), err)
			}
			sum := 0
			for i, info := range infos {
				sum += int(info.Size)
				if first.Compression() == CompressionNone && info.TagHash != HashTag(msgs[i].Tag) {
					t.Fatalf("message %d has tag hash %x, want %x", i, info.TagHash, HashTag(msgs[i].Tag))
				}
			}
			if sum > first.RawSize() || sum <= first.RawSize()-len(msgs) {
				t.Fatalf("sizes add up to %d of %d", sum, first.RawSize())
			}
			got, err := decode(&c, first)
			if err != nil {
				t.Fatal(err)
			}
			if !sameMessages(got, msgs) {
				t.Fatalf("%v: got %+v, want %+v", compression, got, msgs)
			}
			second, err := ParseBatch(rest)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := decode(&c, second); err != nil || string(got[0].Body) != "second" || second.Sequence() != 99 {
				t.Fatalf("second batch: %+v, %v", got, err)
			}
		}
	}
}

// TestBatchCompresses shows that compression is used where it helps, and left out where it does not.
func TestBatchCompresses(t *testing.T) {
	r := newRand(t)
	var c Codec
	for compression := CompressionZstd; compression <= CompressionSnappy; compression++ {
		b, err := c.AppendBatch(nil, [16]byte{}, 0, compression, []Message{{Body: bytes.Repeat([]byte("order 17 "), 1000)}})
		if err != nil || Batch(b).Compression() != compression || len(b) > 2000 {
			t.Errorf("%v: %d bytes, %v: %v", compression, len(b), Batch(b).Compression(), err)
		}
		noise := make([]byte, 500)
		for i := range noise {
			noise[i] = byte(r.Uint32())
		}
		b, err = c.AppendBatch(nil, [16]byte{}, 0, compression, []Message{{
			ID: [16]byte(noise), BornNs: r.Int64(), Flag: 0xabcd, Key: string(noise[20:50]), OrderKey: "k", Tag: "t", TraceContext: string(noise[50:90]), Body: noise[90:],
		}})
		if err != nil || Batch(b).Compression() != CompressionNone {
			t.Errorf("%v of noise: %v: %v", compression, Batch(b).Compression(), err)
		}
	}
}

// TestBatchLimits shows each limit at its last allowed and its first refused value.
func TestBatchLimits(t *testing.T) {
	many := make([]Message, BatchMessagesMax+1)
	headers := func(n int) (h Headers) {
		for i := range n {
			h = append(h, Header{Key: "h" + string(rune('A'+i))})
		}
		return h
	}
	s := strings.Repeat
	for _, c := range []struct {
		name string
		msgs []Message
		code Code
	}{
		{"no message", nil, CodeInvalid},
		{"most messages", many[:BatchMessagesMax], CodeOK},
		{"a message too many", many, CodeInvalid},
		{"largest body", []Message{{Body: make([]byte, BodyBytesMax)}}, CodeOK},
		{"body too large", []Message{{Body: make([]byte, BodyBytesMax+1)}}, CodeTooLarge},
		{"batch too large", []Message{{Body: make([]byte, BodyBytesMax)}, {Body: make([]byte, 64<<10)}}, CodeTooLarge},
		{"longest business id", []Message{{Key: s("k", 255)}}, CodeOK},
		{"business id too long", []Message{{Key: s("k", 256)}}, CodeInvalid},
		{"longest order key", []Message{{OrderKey: s("k", 255)}}, CodeOK},
		{"order key too long", []Message{{OrderKey: s("k", 256)}}, CodeInvalid},
		{"longest tag", []Message{{Tag: s("k", 255)}}, CodeOK},
		{"tag too long", []Message{{Tag: s("k", 256)}}, CodeInvalid},
		{"longest trace context", []Message{{TraceContext: s("k", 1024)}}, CodeOK},
		{"trace context too long", []Message{{TraceContext: s("k", 1025)}}, CodeInvalid},
		{"highest priority", []Message{{Priority: 9}}, CodeOK},
		{"priority too high", []Message{{Priority: 10}}, CodeInvalid},
		{"most headers", []Message{{Headers: headers(HeadersMax)}}, CodeOK},
		{"a header too many", []Message{{Headers: headers(HeadersMax), Tag: "t"}}, CodeInvalid},
		{"header without key", []Message{{Headers: Headers{{"", "v"}}}}, CodeInvalid},
		{"header key too long", []Message{{Headers: Headers{{s("k", 256), "v"}}}}, CodeInvalid},
		{"longest header value", []Message{{Headers: Headers{{"k", s("v", 16<<10)}}}}, CodeOK},
		{"header value too long", []Message{{Headers: Headers{{"k", s("v", 16<<10+1)}}}}, CodeInvalid},
		{"header twice", []Message{{Headers: Headers{{"k", "1"}, {"k", "2"}}}}, CodeInvalid},
		{"reserved header", []Message{{Headers: Headers{{"jmq.tag", "1"}}}}, CodeInvalid},
	} {
		b, err := AppendBatch([]byte("x"), [16]byte{}, 0, c.msgs)
		if got := CodeOf(err); got != c.code {
			t.Errorf("%s: got %v (%v), want %v", c.name, got, err, c.code)
			continue
		}
		if err != nil {
			if string(b) != "x" {
				t.Errorf("%s: dst is changed", c.name)
			}
			continue
		}
		batch, err := ParseBatch(b[1:])
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if _, err := batch.MessageInfos(nil); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// TestBatchRefused spoils one field at a time; the reader must name a code, not panic, and not accept.
func TestBatchRefused(t *testing.T) {
	good, err := AppendBatch(nil, [16]byte{9}, 1, []Message{{Key: "k", Tag: "t", Body: []byte("body"), Headers: Headers{{"a", "b"}}}, {Body: []byte("2")}})
	if err != nil {
		t.Fatal(err)
	}
	le := binary.LittleEndian
	// message returns a batch like b with one message, which has these attributes and that after its fixed part.
	message := func(b []byte, attributes byte, rest string) []byte {
		b = append(b[:BatchHeaderBytes+messageBytesMin], rest...)
		b[BatchHeaderBytes+31] = attributes
		raw := uint32(len(b) - BatchHeaderBytes)
		le.PutUint32(b, uint32(len(b)))
		le.PutUint16(b[46:], 1)
		le.PutUint32(b[72:], raw)
		le.PutUint32(b[BatchHeaderBytes:], raw)
		return b
	}
	for _, c := range []struct {
		name  string
		spoil func(b []byte) []byte
		code  Code
	}{
		{"untouched", func(b []byte) []byte { return b }, CodeOK},
		{"empty", func(b []byte) []byte { return nil }, CodeMalformed},
		{"header cut", func(b []byte) []byte { return b[:75] }, CodeMalformed},
		{"messages cut", func(b []byte) []byte { return b[:len(b)-1] }, CodeMalformed},
		{"byte behind", func(b []byte) []byte { return append(b, 0) }, CodeMalformed},
		{"length 0", func(b []byte) []byte { le.PutUint32(b, 0); return b }, CodeMalformed},
		{"length 75", func(b []byte) []byte { le.PutUint32(b, 75); return b }, CodeMalformed},
		{"length 2^31", func(b []byte) []byte { le.PutUint32(b, 1<<31); return b }, CodeTooLarge},
		{"length -1", func(b []byte) []byte { le.PutUint32(b, 1<<32-1); return b }, CodeTooLarge},
		{"version 1", func(b []byte) []byte { b[4] = 1; return b }, CodeUnsupportedVersion},
		{"reserved", func(b []byte) []byte { b[5] = 1; return b }, CodeInvalid},
		{"flags", func(b []byte) []byte { b[45] = 1; return b }, CodeInvalid},
		{"compression 4", func(b []byte) []byte { b[44] = 4; return b }, CodeInvalid},
		{"count 0", func(b []byte) []byte { le.PutUint16(b[46:], 0); return b }, CodeInvalid},
		{"count 1001", func(b []byte) []byte { le.PutUint16(b[46:], 1001); return b }, CodeInvalid},
		{"count 3", func(b []byte) []byte { le.PutUint16(b[46:], 3); return b }, CodeMalformed},
		{"count 1", func(b []byte) []byte { le.PutUint16(b[46:], 1); return b }, CodeMalformed},
		{"raw size off by one", func(b []byte) []byte { le.PutUint32(b[72:], le.Uint32(b[72:])+1); return b }, CodeMalformed},
		{"raw size -1", func(b []byte) []byte { le.PutUint32(b[72:], 1<<32-1); return b }, CodeTooLarge},
		{"message length 0", func(b []byte) []byte { le.PutUint32(b[76:], 0); return b }, CodeMalformed},
		{"message length 31", func(b []byte) []byte { le.PutUint32(b[76:], 31); return b }, CodeMalformed},
		{"message length -1", func(b []byte) []byte { le.PutUint32(b[76:], 1<<32-1); return b }, CodeMalformed},
		{"priority 10", func(b []byte) []byte { b[76+30] = 10; return b }, CodeInvalid},
		{"unknown attribute", func(b []byte) []byte { b[76+31] |= 0x40; return b }, CodeInvalid},
		{"the last attribute", func(b []byte) []byte { b[76+31] |= 0x80; return b }, CodeInvalid},
		{"light queues", func(b []byte) []byte { return message(b, hasLightQueues, "\x01\x07\x01q") }, CodeInvalid},
		{"key over the end", func(b []byte) []byte { b[76+36] = 0x7f; return b }, CodeMalformed},
		{"tag hash cut", func(b []byte) []byte { return message(b, hasTag, "123") }, CodeMalformed},
		{"key hash cut", func(b []byte) []byte { return message(b, hasOrderKey, "1234567") }, CodeMalformed},
		{"order key cut", func(b []byte) []byte { return message(b, hasOrderKey, "12345678") }, CodeMalformed},
		{"order key empty", func(b []byte) []byte { return message(b, hasOrderKey, "12345678\x00") }, CodeMalformed},
		{"order key", func(b []byte) []byte { return message(b, hasOrderKey, "12345678\x01k") }, CodeOK},
		{"business id empty", func(b []byte) []byte { return message(b, hasBusinessID, "\x00") }, CodeMalformed},
		{"trace context empty", func(b []byte) []byte { return message(b, hasTraceContext, "\x00") }, CodeMalformed},
		{"light queues 0", func(b []byte) []byte { return message(b, hasLightQueues, "\x00") }, CodeMalformed},
		{"headers 0", func(b []byte) []byte { return message(b, hasHeaders, "\x00") }, CodeMalformed},
		{"headers 65", func(b []byte) []byte { return message(b, hasHeaders, "\x41") }, CodeMalformed},
		{"body too large", func(b []byte) []byte { return message(b, 0, string(make([]byte, BodyBytesMax+1))) }, CodeTooLarge},
	} {
		b := c.spoil(bytes.Clone(good))
		batch, err := ParseBatch(b)
		if err == nil {
			_, err = batch.MessageInfos(nil)
		}
		if got := CodeOf(err); got != c.code {
			t.Errorf("%s: got %v (%v), want %v", c.name, got, err, c.code)
		}
	}
	// Each flipped byte from the checksum on must be seen by Verify or before.
	for i := 40; i < len(good); i++ {
		b := bytes.Clone(good)
		b[i] ^= 0x10
		batch, err := ParseBatch(b)
		if err == nil {
			err = batch.Verify()
		}
		if err == nil {
			t.Errorf("byte %d flipped, and nobody saw it", i)
		}
	}
}

// TestDecompressionBounded gives compressed bytes that are larger, smaller and other than the batch says: nothing
// beyond the size in the header is taken.
func TestDecompressionBounded(t *testing.T) {
	var c Codec
	for compression := CompressionZstd; compression <= CompressionSnappy; compression++ {
		bomb, err := c.AppendBatch(nil, [16]byte{}, 0, compression, []Message{{Body: make([]byte, BodyBytesMax)}})
		if err != nil {
			t.Fatal(err)
		}
		for _, raw := range []uint32{100, 1 << 20, BodyBytesMax + 1000} {
			b := Batch(bytes.Clone(bomb))
			binary.LittleEndian.PutUint32(b[72:], raw)
			if _, err := ParseBatch(b); err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, 0, raw)
			c.Messages(bomb, nil) // what the codec keeps
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := c.Messages(b, buf)
			runtime.ReadMemStats(&after)
			if took := after.TotalAlloc - before.TotalAlloc; took > 1<<20 {
				t.Errorf("%v, size %d: took %d bytes", compression, raw, took)
			}
			if got := CodeOf(err); got != CodeCorrupt {
				t.Errorf("%v, size %d: got %v (%v), want corrupt", compression, raw, got, err)
			}
		}
		b := Batch(bytes.Clone(bomb))
		for i := BatchHeaderBytes; i < len(b); i++ {
			b[i] = 0xa5
		}
		if _, err := c.Messages(b, nil); CodeOf(err) != CodeCorrupt {
			t.Errorf("%v of noise: %v", compression, err)
		}
	}
}

// TestZstdWindow shows the largest window that a zstd frame may declare, however little is in it.
func TestZstdWindow(t *testing.T) {
	var c Codec
	raw := make([]byte, 1000)
	for window, want := range map[int]Code{4 << 20: CodeOK, 8 << 20: CodeCorrupt} {
		var frame bytes.Buffer
		e, err := zstd.NewWriter(&frame, zstd.WithWindowSize(window))
		if err != nil {
			t.Fatal(err)
		}
		_, err1 := e.Write(raw)
		err2 := e.Flush() // the size is not known then, so the frame declares its window
		if err := errors.Join(err1, err2, e.Close()); err != nil {
			t.Fatal(err)
		}
		b := append(appendBatchHeader(nil, [16]byte{}, 0, 1), frame.Bytes()...)
		sealBatch(b, CompressionZstd, len(raw))
		if got, err := c.Messages(b, nil); CodeOf(err) != want || err == nil && !bytes.Equal(got, raw) {
			t.Errorf("window of %d: %v, want %v", window, err, want)
		}
	}
}

// TestHeaders shows order and replacement.
func TestHeaders(t *testing.T) {
	var h Headers
	h.Set("b", "1")
	h.Set("a", "2")
	h.Set("b", "3")
	if want := (Headers{{"b", "3"}, {"a", "2"}}); !reflect.DeepEqual(h, want) {
		t.Fatalf("got %v, want %v", h, want)
	}
	if v, ok := h.Get("a"); v != "2" || !ok {
		t.Fatalf("got %q %v", v, ok)
	}
	if _, ok := h.Get("c"); ok {
		t.Fatal("c is there")
	}
}

// TestNames judges names at and around each rule, for each kind.
func TestNames(t *testing.T) {
	s := strings.Repeat
	for _, c := range []struct {
		name              string
		topic, app, group bool
	}{
		{"", false, false, false},
		{"a", true, true, true},
		{s("n", 255), true, true, true},
		{s("n", 256), false, false, false},
		{"Az09_-", true, true, true},
		{"a.b", true, false, true},
		{"a.b.c", true, false, false},
		{".", false, false, false},
		{"..", false, false, false},
		{"...", true, false, false},
		{".a", true, false, false},
		{"a.", true, false, false},
		{"a/b", false, false, false},
		{"../a", false, false, false},
		{"a\x00", false, false, false},
		{"a b", false, false, false},
		{"a\n", false, false, false},
		{"订单", false, false, false},
		{"a\xff", false, false, false},
	} {
		for what, err := range map[string]error{"topic": CheckTopic(c.name), "app": CheckApp(c.name), "group": CheckGroup(c.name)} {
			want := map[string]bool{"topic": c.topic, "app": c.app, "group": c.group}[what]
			if (err == nil) != want {
				t.Errorf("%s %q: %v, want ok=%v", what, c.name, err, want)
			}
			if err != nil {
				wantCode(t, err, CodeInvalid)
			}
		}
	}
}

func BenchmarkAppendBatch(b *testing.B) {
	for _, n := range []int{1, 100} {
		b.Run(map[int]string{1: "1", 100: "100"}[n], func(b *testing.B) {
			msgs := make([]Message, n)
			for i := range msgs {
				msgs[i] = Message{Key: "order-000001", OrderKey: "customer-17", Body: make([]byte, 1024)}
			}
			var buf []byte
			b.ReportAllocs()
			for b.Loop() {
				buf, _ = AppendBatch(buf[:0], [16]byte{}, 0, msgs)
			}
		})
	}
}

func BenchmarkMessageInfos(b *testing.B) {
	msgs := make([]Message, 100)
	for i := range msgs {
		msgs[i] = Message{Key: "order-000001", OrderKey: "customer-17", Body: make([]byte, 1024)}
	}
	buf, _ := AppendBatch(nil, [16]byte{}, 0, msgs)
	var infos []MessageInfo
	b.ReportAllocs()
	for b.Loop() {
		batch, err := ParseBatch(buf)
		if err != nil {
			b.Fatal(err)
		}
		infos, _ = batch.MessageInfos(infos[:0])
	}
}
