package wire

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/jmqio/jmq/server/servertest/mutate"
)

// TestParseFrame judges heads at and around each bound, and shows that a verdict needs no more bytes than those judged.
func TestParseFrame(t *testing.T) {
	head := func(length uint32, version, kind byte, header uint32) []byte {
		b := binary.LittleEndian.AppendUint32(nil, length)
		b = append(b, version, kind, 10, 0, 7, 0, 0, 0, 0, 0, 0, 0)
		return binary.LittleEndian.AppendUint32(b, header)
	}
	for _, c := range []struct {
		name string
		b    []byte
		size int
		code Code
	}{
		{"nothing", nil, 0, CodeOK},
		{"three bytes", []byte{0, 0, 0}, 0, CodeOK},
		{"smallest", head(16, 1, 1, 0), 20, CodeOK},
		{"length 15", head(15, 1, 1, 0)[:4], 0, CodeMalformed},
		{"length 0", head(0, 1, 1, 0)[:4], 0, CodeMalformed},
		{"length at the bound", head(996, 1, 1, 0), 1000, CodeOK},
		{"length over the bound", head(997, 1, 1, 0), 1001, CodeTooLarge},
		{"the same, head not whole", head(997, 1, 1, 0)[:19], 0, CodeOK},
		{"length that nobody writes", head(64<<20-3, 1, 1, 0)[:4], 0, CodeMalformed},
		{"length 2^31", head(1<<31, 1, 1, 0)[:4], 0, CodeMalformed},
		{"length -1", head(1<<32-1, 1, 1, 0)[:4], 0, CodeMalformed},
		{"version 0", head(16, 0, 1, 0)[:5], 0, CodeUnsupportedVersion},
		{"version 2", head(16, 2, 1, 0)[:5], 0, CodeUnsupportedVersion},
		{"kind 0", head(16, 1, 0, 0), 0, CodeMalformed},
		{"kind 5", head(16, 1, 5, 0), 0, CodeMalformed},
		{"header as long as the frame", head(26, 1, 1, 10), 30, CodeOK},
		{"header longer than the frame", head(26, 1, 1, 11), 0, CodeMalformed},
		{"header -1", head(26, 1, 1, 1<<32-1), 0, CodeMalformed},
	} {
		f, size, err := ParseFrame(c.b, 1000)
		code := CodeOK
		if err != nil {
			code = err.Code
		}
		if code != c.code || size != c.size {
			t.Errorf("%s: size %d %v, want %d %v", c.name, size, err, c.size, c.code)
		}
		if size > 0 && (f.Request != 7 || f.Command != CommandProduce) {
			t.Errorf("%s: %+v", c.name, f)
		}
	}
}

// TestErrorHeader shows what becomes of errors on their way, with and without a code.
func TestErrorHeader(t *testing.T) {
	for _, c := range []struct {
		in   error
		want CodeError
	}{
		{&CodeError{Code: CodeBusy, Message: "m", RetryAfter: 3 * time.Second}, CodeError{Code: CodeBusy, Message: "m", RetryAfter: 3 * time.Second}},
		{&CodeError{Code: CodeBusy, Message: "m", RetryAfter: time.Microsecond}, CodeError{Code: CodeBusy, Message: "m", RetryAfter: time.Millisecond}},
		{fmt.Errorf("wrapped: %w", Errorf(CodeNoSpace, "full")), CodeError{Code: CodeNoSpace, Message: "full", RetryAfter: 0}},
		{errors.New("plain"), CodeError{Code: CodeInternal, Message: "plain", RetryAfter: 0}},
		{Errorf(CodeInvalid, "bytes \xff"), CodeError{Code: CodeInvalid, Message: "bytes ?", RetryAfter: 0}},
		{Errorf(CodeInvalid, "%s", strings.Repeat("订", 2000)), CodeError{Code: CodeInvalid, Message: strings.Repeat("订", 341) + "?", RetryAfter: 0}},
		{&CodeError{Code: 60_000}, CodeError{Code: 60_000}},
	} {
		if got := ParseError(AppendError(nil, c.in)); !reflect.DeepEqual(*got, c.want) {
			t.Errorf("%v: got %#v, want %#v", c.in, *got, c.want)
		}
	}
	for _, b := range [][]byte{nil, {0xff}, {0x08, 0}} {
		if got := ParseError(b); got.Code != CodeMalformed {
			t.Errorf("%x: %v", b, got)
		}
	}
}

// readFrames is what a peer sees of the bytes b that come in pieces: the frames, and why it ended.
func readFrames(b []byte, pieces []byte) (frames []Frame, err error) {
	near, far := net.Pipe()
	c := NewConn(far, ConnOptions{FrameBytesMax: 4096, Handler: func(_ *Conn, f Frame) {
		f.Header, f.Payload = bytes.Clone(f.Header), bytes.Clone(f.Payload)
		frames = append(frames, f)
	}})
	go io.Copy(io.Discard, near)
	go func() {
		for len(b) > 0 {
			n := len(b)
			if len(pieces) > 0 {
				n = min(n, 1+int(pieces[0]))
				pieces = pieces[1:]
			}
			if _, err := near.Write(b[:n]); err != nil {
				return
			}
			b = b[n:]
		}
		near.Close()
	}()
	err = c.Serve()
	near.Close()
	return frames, err
}

// FuzzFrame reads any bytes, in any pieces, through a connection: the frames are those that ParseFrame finds in the whole,
// they are written back as the same bytes, and what is wrong ends the connection with the same code.
func FuzzFrame(f *testing.F) {
	ping := slices.Clip(AppendFrame(nil, Frame{Kind: KindRequest, Command: CommandPing, Request: 1}))
	f.Add(ping, []byte{0, 1, 2})
	push := AppendFrame(ping, Frame{Kind: KindPush, Command: 9, Header: []byte("header"), Payload: bytes.Repeat([]byte("p"), 300)})
	refused := AppendFrame(nil, Frame{Kind: KindError, Header: AppendError(nil, Errorf(CodeTooMany, "x"))})
	f.Add(AppendFrame(slices.Clip(push), Frame{Kind: KindPush, Payload: make([]byte, 3000)}), []byte{19, 255, 200})
	f.Add(AppendFrame(ping, Frame{Kind: KindRequest, Payload: make([]byte, 5000)}), []byte{})
	f.Add(refused, []byte{})
	f.Add([]byte("GET / HTTP/1.1\r\n"), []byte{3})
	conn, buffers := new(mutate.Conn), new(Buffers)
	check := func(t testing.TB, b, pieces []byte) bool {
		var want []Frame
		var wantErr *CodeError
		rest := b
		for {
			var g Frame
			var size int
			g, size, wantErr = ParseFrame(rest, 4096)
			if wantErr != nil || size == 0 || size > len(rest) {
				break
			}
			if back := AppendFrame(nil, g); !bytes.Equal(back, rest[:size]) {
				t.Fatalf("read %x, written %x", rest[:size], back)
			}
			rest = rest[size:]
			if g.Kind == KindError && g.Request == 0 {
				wantErr = ParseError(g.Header)
				break
			}
			if g.Kind == KindRequest || g.Kind == KindPush {
				want = append(want, g)
			}
		}
		var got []Frame
		conn.Say(b, pieces)
		c := NewConn(conn, ConnOptions{FrameBytesMax: 4096, Buffers: buffers, Handler: func(_ *Conn, f Frame) {
			f.Header, f.Payload = bytes.Clone(f.Header), bytes.Clone(f.Payload)
			got = append(got, f)
		}})
		err := c.Serve()
		if len(got) != len(want) {
			t.Fatalf("%d frames, want %d", len(got), len(want))
		}
		for i := range got {
			if !bytes.Equal(AppendFrame(nil, got[i]), AppendFrame(nil, want[i])) {
				t.Fatalf("frame %d: got %+v, want %+v", i, got[i], want[i])
			}
		}
		switch e, _ := asCodeError(err); {
		case wantErr != nil:
			if e == nil || e.Code != wantErr.Code {
				t.Fatalf("ended by %v, want %v", err, wantErr)
			}
		case len(rest) == 0:
			if err != io.EOF {
				t.Fatalf("ended by %v, want EOF", err)
			}
		case !errors.Is(err, io.ErrUnexpectedEOF):
			t.Fatalf("ended by %v, want an unexpected EOF", err)
		}
		return len(got) > 0
	}
	pieced := func(b []byte, pieces ...byte) []byte { return slices.Concat([]byte{byte(len(pieces))}, pieces, b) }
	mutate.Run(f, mutate.Decoder{Seeds: [][]byte{pieced(ping, 0, 1, 2), pieced(push, 19, 255, 200), pieced(push), pieced(refused, 1)}, Slowness: 4, Check: func(t testing.TB, b []byte) bool {
		if len(b) == 0 {
			return false
		}
		n := min(int(b[0]), len(b)-1)
		return check(t, b[1+n:], b[1:1+n])
	}})
	f.Fuzz(func(t *testing.T, b, pieces []byte) { check(t, b, pieces) })
}

// TestFramePieces is FuzzFrame's check for a stream of valid frames of all sizes, cut at random.
func TestFramePieces(t *testing.T) {
	r := newRand(t)
	for range 50 {
		var b []byte
		n := r.IntN(30)
		for i := range n {
			b = AppendFrame(b, Frame{Kind: KindRequest, Command: CommandFetch, Request: uint64(i), Header: make([]byte, r.IntN(50)), Payload: bytes.Repeat([]byte{byte(i)}, r.IntN(4000))})
		}
		pieces := make([]byte, r.IntN(400))
		for i := range pieces {
			pieces[i] = byte(r.Uint32())
		}
		frames, err := readFrames(b, pieces)
		if len(frames) != n || err != io.EOF {
			t.Fatalf("%d frames of %d, %v", len(frames), n, err)
		}
		for i, f := range frames {
			if f.Request != uint64(i) || bytes.Count(f.Payload, []byte{byte(i)}) != len(f.Payload) {
				t.Fatalf("frame %d: %+v", i, f)
			}
		}
	}
}

// FuzzBatch reads any bytes as a batch: nothing panics, nothing more than the header says is decompressed, and messages that
// are accepted can be sent again.
func FuzzBatch(f *testing.F) {
	r := newRand(f)
	var c Codec
	var seeds [][]byte
	for compression := CompressionNone; compression <= CompressionSnappy; compression++ {
		b, err := c.AppendBatch(nil, [16]byte{1}, 2, compression, []Message{randomMessage(r), {Body: bytes.Repeat([]byte("order "), 100), Tag: "t"}})
		if err != nil {
			f.Fatal(err)
		}
		seeds = append(seeds, b)
	}
	// What a batch says that it takes is made before it is read: at most 8 MiB, or the Codec's next size above.
	mutate.Fuzz(f, mutate.Decoder{Seeds: seeds, AllocMost: 2*BatchBytesMax + 1<<20, Slowness: 4, Check: func(t testing.TB, b []byte) bool {
		batch, err := ParseBatch(b)
		if err != nil {
			if _, ok := asCodeError(err); !ok {
				t.Fatalf("%v has no code", err)
			}
			return false
		}
		infos, infoErr := batch.MessageInfos(nil)
		raw, err := c.Messages(batch, nil)
		if err != nil {
			wantCode(t, err, CodeCorrupt)
			return false
		}
		if len(raw) != batch.RawSize() {
			t.Fatalf("%d bytes decompressed, the header says %d", len(raw), batch.RawSize())
		}
		msgs, err := decode(&c, batch)
		if batch.Compression() == CompressionNone && (err == nil) != (infoErr == nil) && CodeOf(infoErr) != CodeInvalid {
			t.Fatalf("infos %v, messages %v", infoErr, err)
		}
		if err != nil {
			return false
		}
		if len(msgs) != batch.Count() || (infoErr == nil && len(infos) != batch.Count()) {
			t.Fatalf("%d messages and %d infos of %d", len(msgs), len(infos), batch.Count())
		}
		again, err := AppendBatch(nil, batch.Producer(), batch.Sequence(), msgs)
		if err != nil {
			wantCode(t, err, CodeInvalid) // a header twice, or one that is reserved
			return true
		}
		if got, err := decode(&c, Batch(again)); err != nil || len(got) != len(msgs) {
			t.Fatalf("sent again: %v", err)
		}
		return true
	}})
}

// FuzzParseFrame reads any bytes as frames, without a connection: what is taken is written as the same bytes, and what is wrong has a code.
func FuzzParseFrame(f *testing.F) {
	ping := AppendFrame(nil, Frame{Kind: KindRequest, Command: CommandPing, Request: 1})
	push := AppendFrame(ping, Frame{Kind: KindPush, Command: 9, Header: []byte("header"), Payload: bytes.Repeat([]byte("p"), 300)})
	mutate.Fuzz(f, mutate.Decoder{Seeds: [][]byte{ping, push, AppendFrame(nil, Frame{Kind: KindError, Header: AppendError(nil, Errorf(CodeTooMany, "x"))})}, Check: func(t testing.TB, b []byte) bool {
		taken := false
		for rest := b; ; taken = true {
			g, size, err := ParseFrame(rest, 4096)
			if err != nil && err.Code == CodeOK {
				t.Fatalf("%v has no code", err)
			}
			if err != nil || size == 0 || size > len(rest) {
				return taken
			}
			if len(g.Header)+len(g.Payload) > size {
				t.Fatalf("%d and %d bytes of %d", len(g.Header), len(g.Payload), size)
			}
			if back := AppendFrame(nil, g); !bytes.Equal(back, rest[:size]) {
				t.Fatalf("read %x, written %x", rest[:size], back)
			}
			rest = rest[size:]
		}
	}})
}

// FuzzPull holds the readers and writers by hand of the headers of replication to the generated ones.
func FuzzPull(f *testing.F) {
	good, err := proto.Marshal(&PullRequest{Session: 1, Epoch: 2, Acked: 300, Synced: 4, Window: 5, BytesMax: 1 << 20})
	if err != nil {
		f.Fatal(err)
	}
	answer := appendPullResponse(nil, &PullResponse{Epoch: 1, From: 2, Committed: 3, Begin: 4, InSync: true, Transfer: "b"})
	mutate.Fuzz(f, mutate.Decoder{Seeds: [][]byte{good, answer, {0xff}}, Check: func(t testing.TB, b []byte) bool {
		var got, want PullRequest
		err := parsePullRequest(b, &got)
		wantErr := proto.Unmarshal(b, &want)
		want.ProtoReflect().SetUnknown(nil)
		if (err == nil) != (wantErr == nil) || err == nil && !proto.Equal(&got, &want) {
			t.Fatalf("%x: by hand %v, %v, generated %v, %v", b, &got, err, &want, wantErr)
		}
		var m, again PullResponse
		if proto.Unmarshal(b, &m) == nil {
			m.ProtoReflect().SetUnknown(nil)
			if err := proto.Unmarshal(appendPullResponse(nil, &m), &again); err != nil || !proto.Equal(&m, &again) {
				t.Fatalf("%v became %v, %v", &m, &again, err)
			}
		}
		return err == nil
	}})
}

// TestPeersError shows that an error without a request ends the connection with its code, and what requests in flight
// learn.
func TestPeersError(t *testing.T) {
	near, far := net.Pipe()
	c := serve(t, NewConn(far, ConnOptions{}))
	results := make(chan error, 2)
	for _, command := range []Command{CommandHello, CommandProduce} {
		if _, err := c.Start(command, nil, nil, func(_ Frame, err error) { results <- fmt.Errorf("%d: %w", command, err) }); err != nil {
			t.Fatal(err)
		}
	}
	c.Flush()
	if _, err := io.ReadFull(near, make([]byte, 40)); err != nil {
		t.Fatal(err)
	}
	if err := c.Written(context.Background()); err != nil {
		t.Fatal(err)
	}
	if _, err := near.Write(AppendFrame(nil, Frame{Kind: KindError, Header: AppendError(nil, Errorf(CodeTooMany, "full"))})); err != nil {
		t.Fatal(err)
	}
	<-c.Closed()
	wantCode(t, c.Err(), CodeTooMany)
	for range 2 {
		err := <-results
		want := CodeUnknown
		if strings.HasPrefix(err.Error(), "1:") {
			want = CodeTooMany
		}
		wantCode(t, err, want)
	}
	near.Close()
}
