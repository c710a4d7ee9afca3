package wire

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/jmqio/jmq/server/servertest/mutate"
)

// headerCase holds one hand-coded header against its generated twin.
type headerCase struct {
	name string
	// parse reads b by hand; generated returns what the twin would have to be for the result.
	parse func(b []byte) (append func([]byte) []byte, generated proto.Message, err error)
	twin  func() proto.Message
	// narrow says that the twin holds values that the plain struct refuses.
	narrow func(proto.Message) bool
	random func(r *rand.Rand) proto.Message
}

func randomUint(r *rand.Rand) uint64 { return r.Uint64() >> r.IntN(64) }

func randomName(r *rand.Rand) string {
	return strings.Repeat(string(rune('a'+r.IntN(26))), 1+r.IntN(NameBytesMax))
}

func u32s[T ~uint16 | ~uint32](in []T) (out []uint32) {
	for _, v := range in {
		out = append(out, uint32(v))
	}
	return out
}

var headerCases = []headerCase{
	{
		"ProduceRequest",
		func(b []byte) (func([]byte) []byte, proto.Message, error) {
			var r ProduceRequest
			err := ParseProduceRequest(&r, b)
			return func(b []byte) []byte { return AppendProduceRequest(b, &r) },
				&ProduceRequestHeader{Topic: r.Topic, Partition: uint32(r.Partition), RouteVersion: r.RouteVersion, TimeoutMs: r.TimeoutMs, TopicId: r.TopicID}, err
		},
		func() proto.Message { return new(ProduceRequestHeader) },
		func(m proto.Message) bool {
			h := m.(*ProduceRequestHeader)
			return h.Partition >= PartitionsMax || CheckTopic(h.Topic) != nil
		},
		func(r *rand.Rand) proto.Message {
			return &ProduceRequestHeader{Topic: randomName(r), Partition: uint32(r.IntN(PartitionsMax)), RouteVersion: randomUint(r), TimeoutMs: uint32(randomUint(r)), TopicId: randomUint(r)}
		},
	},
	{
		"ProduceResponse",
		func(b []byte) (func([]byte) []byte, proto.Message, error) {
			var r ProduceResponse
			err := ParseProduceResponse(&r, b)
			return func(b []byte) []byte { return AppendProduceResponse(b, &r) }, &ProduceResponseHeader{FirstIndex: r.FirstIndex, StoredNs: r.StoredNs, RouteVersion: r.RouteVersion, TopicId: r.TopicID}, err
		},
		func() proto.Message { return new(ProduceResponseHeader) },
		func(proto.Message) bool { return false },
		func(r *rand.Rand) proto.Message {
			return &ProduceResponseHeader{FirstIndex: randomUint(r), StoredNs: int64(r.Uint64()), RouteVersion: randomUint(r), TopicId: randomUint(r)}
		},
	},
	{
		"FetchRequest",
		func(b []byte) (func([]byte) []byte, proto.Message, error) {
			var r FetchRequest
			err := ParseFetchRequest(&r, b, new(Names))
			return func(b []byte) []byte { return AppendFetchRequest(b, &r) }, &FetchRequestHeader{Topic: r.Topic, Group: r.Group, Member: r.Member,
				MessagesMax: r.MessagesMax, BytesMax: r.BytesMax, WaitMs: r.WaitMs, RouteVersion: r.RouteVersion, Partitions: r.Partitions,
				Reconcile: r.Reconcile, Held: r.Held, Round: r.Round, Leave: r.Leave}, err
		},
		func() proto.Message { return new(FetchRequestHeader) },
		func(m proto.Message) bool {
			h := m.(*FetchRequestHeader)
			for _, p := range h.Partitions {
				if p >= PartitionsMax {
					return true
				}
			}
			return len(h.Partitions) > fetchPartitionsMax || len(h.Held) > FetchHeldMax || CheckTopic(h.Topic) != nil || CheckGroup(h.Group) != nil
		},
		func(r *rand.Rand) proto.Message {
			h := &FetchRequestHeader{Topic: randomName(r), Group: randomName(r), Member: uint32(randomUint(r)), MessagesMax: uint32(randomUint(r)),
				BytesMax: uint32(randomUint(r)), WaitMs: uint32(randomUint(r)), RouteVersion: randomUint(r), Reconcile: r.IntN(2) == 1, Round: randomUint(r), Leave: r.IntN(2) == 1}
			for range r.IntN(5) {
				h.Partitions = append(h.Partitions, uint32(r.IntN(PartitionsMax)))
			}
			for range r.IntN(5) {
				h.Held = append(h.Held, randomUint(r))
			}
			return h
		},
	},
	{
		"FetchResponse",
		func(b []byte) (func([]byte) []byte, proto.Message, error) {
			var r FetchResponse
			err := ParseFetchResponse(&r, b)
			return func(b []byte) []byte { return AppendFetchResponse(b, &r) },
				&FetchResponseHeader{Lease: r.Lease, Partition: uint32(r.Partition), From: r.From, To: r.To, LeaseMs: r.LeaseMs, Epoch: r.Epoch, Attempt: r.Attempt, Gap: uint32(r.Gap)}, err
		},
		func() proto.Message { return new(FetchResponseHeader) },
		func(m proto.Message) bool { return m.(*FetchResponseHeader).Partition >= PartitionsMax },
		func(r *rand.Rand) proto.Message {
			return &FetchResponseHeader{Lease: randomUint(r), Partition: uint32(r.IntN(PartitionsMax)), From: randomUint(r), To: randomUint(r), LeaseMs: uint32(randomUint(r)), Epoch: randomUint(r), Attempt: uint32(randomUint(r)), Gap: uint32(randomUint(r))}
		},
	},
	{
		"AckRequest",
		func(b []byte) (func([]byte) []byte, proto.Message, error) {
			var r AckRequest
			err := ParseAckRequest(&r, b, new(Names))
			m := &AckRequestHeader{Topic: r.Topic, Group: r.Group, Member: r.Member}
			for _, i := range r.Items {
				m.Items = append(m.Items, &AckItem{Partition: uint32(i.Partition), Lease: i.Lease, From: i.From, To: i.To, Outcome: uint32(i.Outcome)})
			}
			return func(b []byte) []byte { return AppendAckRequest(b, &r) }, m, err
		},
		func() proto.Message { return new(AckRequestHeader) },
		func(m proto.Message) bool {
			h := m.(*AckRequestHeader)
			for _, i := range h.Items {
				if i.Partition >= PartitionsMax || i.Outcome > uint32(Expired) {
					return true
				}
			}
			return len(h.Items) > ackItemsMax || CheckTopic(h.Topic) != nil || CheckGroup(h.Group) != nil
		},
		func(r *rand.Rand) proto.Message {
			h := &AckRequestHeader{Topic: randomName(r), Group: randomName(r), Member: uint32(randomUint(r))}
			for range r.IntN(5) {
				h.Items = append(h.Items, &AckItem{Partition: uint32(r.IntN(PartitionsMax)), Lease: randomUint(r), From: randomUint(r), To: randomUint(r), Outcome: uint32(r.IntN(7))})
			}
			return h
		},
	},
	{
		"AckResponse",
		func(b []byte) (func([]byte) []byte, proto.Message, error) {
			var r AckResponse
			err := ParseAckResponse(&r, b)
			return func(b []byte) []byte { return AppendAckResponse(b, &r) }, &AckResponseHeader{Codes: u32s(r.Codes)}, err
		},
		func() proto.Message { return new(AckResponseHeader) },
		func(m proto.Message) bool {
			h := m.(*AckResponseHeader)
			for _, c := range h.Codes {
				if c > math.MaxUint16 {
					return true
				}
			}
			return len(h.Codes) > ackItemsMax
		},
		func(r *rand.Rand) proto.Message {
			h := new(AckResponseHeader)
			for range r.IntN(5) {
				h.Codes = append(h.Codes, uint32(r.IntN(1<<16)))
			}
			return h
		},
	},
}

// agree holds the two readings of b together, and what is written from them. It says whether b was read by hand.
func (c *headerCase) agree(t testing.TB, b []byte) bool {
	write, got, err := c.parse(b)
	want := c.twin()
	wantErr := proto.Unmarshal(b, want)
	switch {
	case err != nil && wantErr != nil:
		return false
	case err != nil:
		if code := CodeOf(err); !c.narrow(want) || code != CodeInvalid {
			t.Fatalf("%s %x: by hand %v, generated fine: %v", c.name, b, err, want)
		}
		return false
	case wantErr != nil:
		// A name that a later one replaced is judged by the generated code only.
		if !strings.Contains(wantErr.Error(), "UTF-8") {
			t.Fatalf("%s %x: by hand fine, generated %v", c.name, b, wantErr)
		}
		return true
	}
	want.ProtoReflect().SetUnknown(nil)
	clearUnknown(want)
	if !proto.Equal(got, want) {
		t.Fatalf("%s %x: by hand %v, generated %v", c.name, b, got, want)
	}
	wantBytes, err := proto.MarshalOptions{Deterministic: true}.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	if gotBytes := write([]byte("x")); !bytes.Equal(gotBytes[1:], wantBytes) {
		t.Fatalf("%s: written by hand %x, generated %x", c.name, gotBytes[1:], wantBytes)
	}
	return true
}

func clearUnknown(m proto.Message) {
	if h, ok := m.(*AckRequestHeader); ok {
		for _, i := range h.Items {
			i.ProtoReflect().SetUnknown(nil)
		}
	}
}

// TestHeadersAgree reads and writes random headers both ways: as the generated code writes them, with unknown fields of
// every type in between, with fields twice, unpacked, and cut off at every byte.
func TestHeadersAgree(t *testing.T) {
	r := newRand(t)
	for i := range headerCases {
		c := &headerCases[i]
		for range 60 {
			b, err := proto.Marshal(c.random(r))
			if err != nil {
				t.Fatal(err)
			}
			c.agree(t, b)
			more := protowire.AppendVarint(protowire.AppendTag(bytes.Clone(b), 1000, protowire.VarintType), r.Uint64())
			more = protowire.AppendBytes(protowire.AppendTag(more, 77, protowire.BytesType), []byte("unknown"))
			more = protowire.AppendFixed32(protowire.AppendTag(more, 2, protowire.Fixed32Type), 1)
			more = protowire.AppendFixed64(protowire.AppendTag(more, 3, protowire.Fixed64Type), 1)
			more = protowire.AppendGroup(protowire.AppendTag(more, 78, protowire.StartGroupType), 78, []byte{8, 1})
			second, err := proto.Marshal(c.random(r))
			if err != nil {
				t.Fatal(err)
			}
			c.agree(t, append(more, second...))
			for n := range b {
				c.agree(t, b[:n])
			}
		}
		for _, b := range [][]byte{
			{0xff}, {0x08}, {0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f}, {0x0a, 0x80}, {0x00, 0x01}, {0x08, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1},
			{0x40, 5, 0x40, 6}, {0x48, 2, 0x60, 0x80, 1}, {0x50, 5, 0x52, 2, 6, 7}, {0x52, 1, 0x80}, {0x08, 5, 0x08, 6}, {0x22, 2, 0x08, 0x80}, {0x0b}, {0x0c},
		} {
			c.agree(t, b)
		}
	}
}

// TestHeaderBounds shows what by hand is refused though protobuf would take it.
func TestHeaderBounds(t *testing.T) {
	long := func(n int) string { return strings.Repeat("n", n) }
	produce := func(topic string, partition uint32) error {
		b, err := proto.Marshal(&ProduceRequestHeader{Topic: topic, Partition: partition})
		if err != nil {
			return nil
		}
		return ParseProduceRequest(new(ProduceRequest), b)
	}
	ack := func(items int, outcome uint32) error {
		h := &AckRequestHeader{Topic: "t", Group: "g"}
		for range items {
			h.Items = append(h.Items, &AckItem{Outcome: outcome})
		}
		b, _ := proto.Marshal(h)
		return ParseAckRequest(new(AckRequest), b, new(Names))
	}
	fetch := func(partitions, held int) error {
		b, _ := proto.Marshal(&FetchRequestHeader{Topic: "t", Group: "g", Partitions: make([]uint32, partitions), Held: make([]uint64, held)})
		return ParseFetchRequest(new(FetchRequest), b, new(Names))
	}
	for name, c := range map[string]struct {
		err  error
		code Code
	}{
		"longest topic":     {produce(long(255), 65535), CodeOK},
		"topic too long":    {produce(long(256), 0), CodeInvalid},
		"topic of 64 KiB":   {produce(long(64<<10), 0), CodeInvalid},
		"no topic":          {produce("", 0), CodeInvalid},
		"topic with slash":  {produce("a/b", 0), CodeInvalid},
		"partition 65536":   {produce("t", 65536), CodeInvalid},
		"most acks":         {ack(1000, 6), CodeOK},
		"an ack too many":   {ack(1001, 1), CodeInvalid},
		"unknown outcome":   {ack(1, 7), CodeInvalid},
		"most partitions":   {fetch(1024, 0), CodeOK},
		"partition to many": {fetch(1025, 0), CodeInvalid},
		"most leases held":  {fetch(0, 1000), CodeOK},
		"a lease too many":  {fetch(0, 1001), CodeInvalid},
	} {
		if got := CodeOf(c.err); got != c.code {
			t.Errorf("%s: got %v (%v), want %v", name, got, c.err, c.code)
		}
		if c.err != nil && len(c.err.Error()) > 1000 {
			t.Errorf("%s: an error of %d bytes", name, len(c.err.Error()))
		}
	}
}

// TestNamesBound shows that names are kept once and not without end.
func TestNamesBound(t *testing.T) {
	var n Names
	for i := range 3 * namesMax {
		name := []byte("topic-" + string(rune('a'+i%26)) + strings.Repeat("x", i%200) + string(rune('a'+i/26%26)) + string(rune('a'+i/676%26)))
		got, err := n.topic(name)
		if err != nil || got != string(name) {
			t.Fatalf("%q: %q %v", name, got, err)
		}
		if len(n.topics) > namesMax {
			t.Fatalf("%d names are kept", len(n.topics))
		}
	}
}

// TestHeadersDoNotAllocate holds the hot path to no allocation for names seen before.
func TestHeadersDoNotAllocate(t *testing.T) {
	var names Names
	buf := make([]byte, 0, 256)
	produce, fetch, ack := &ProduceRequest{Topic: "orders", Partition: 3}, &FetchRequest{Topic: "orders", Group: "pay", Partitions: []uint32{1, 2}, Reconcile: true, Held: []uint64{1 << 41, 3}}, &AckRequest{Topic: "orders", Group: "pay", Items: make([]AckRange, 3)}
	var p ProduceRequest
	var f FetchRequest
	var a AckRequest
	var err error
	if n := testing.AllocsPerRun(100, func() {
		err = errors.Join(err,
			ParseProduceRequest(&p, AppendProduceRequest(buf, produce)),
			ParseFetchRequest(&f, AppendFetchRequest(buf, fetch), &names),
			ParseAckRequest(&a, AppendAckRequest(buf, ack), &names))
	}); n != 0 || err != nil {
		t.Fatalf("%v allocations, %v", n, err)
	}
	if p.Topic != "orders" || !reflect.DeepEqual(f.Partitions, fetch.Partitions) || !reflect.DeepEqual(f.Held, fetch.Held) || len(a.Items) != 3 {
		t.Fatalf("%+v %+v %+v", p, f, a)
	}
}

// FuzzHeaders holds the hand-written readers to the generated ones on any bytes.
func FuzzHeaders(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 1))
	var seeds [][]byte // the header's number first
	for i := range headerCases {
		for range 3 {
			b, err := proto.Marshal(headerCases[i].random(r))
			if err != nil {
				f.Fatal(err)
			}
			f.Add(uint8(i), b)
			seeds = append(seeds, append([]byte{byte(i)}, b...))
		}
	}
	f.Add(uint8(0), []byte{0x0b, 0x08, 1, 0x0c})
	mutate.Run(f, mutate.Decoder{Seeds: seeds, Slowness: 4, Check: func(t testing.TB, b []byte) bool {
		return len(b) > 0 && headerCases[int(b[0])%len(headerCases)].agree(t, b[1:])
	}})
	f.Fuzz(func(t *testing.T, i uint8, b []byte) {
		headerCases[int(i)%len(headerCases)].agree(t, b)
	})
}

func BenchmarkProduceHeader(b *testing.B) {
	var p ProduceRequest
	h := AppendProduceRequest(nil, &ProduceRequest{Topic: "orders", Partition: 3, RouteVersion: 17, TimeoutMs: 3000, TopicID: 12})
	b.ReportAllocs()
	for b.Loop() {
		if err := ParseProduceRequest(&p, h); err != nil {
			b.Fatal(err)
		}
	}
}
