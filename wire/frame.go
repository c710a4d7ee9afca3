package wire

import (
	"encoding/binary"
	"strconv"
	"strings"
	"time"
)

const (
	// FrameVersion is the version of the frame's form, and of the protocol that hello agrees on.
	FrameVersion = 1

	frameHeadBytes = 20
	frameLengthMin = frameHeadBytes - 4 // of the length field, which counts what follows it
	// frameSkipMax: a frame too large is skipped, and the connection goes on, up to this size; beyond it the length is not
	// one that a jmq client writes.
	frameSkipMax  = 64 << 20
	errorBytesMax = 1 << 10 // of an error's message
	errorNodesMax = 16
)

// FrameKind says who speaks. Numbers are never used again.
type FrameKind uint8

const (
	KindRequest  FrameKind = 1
	KindResponse FrameKind = 2
	KindPush     FrameKind = 3 // from the server, without a request
	KindError    FrameKind = 4 // the response of a request that failed; request 0: the connection's end and why
)

func (k FrameKind) String() string {
	switch k {
	case KindRequest:
		return "request"
	case KindResponse:
		return "response"
	case KindPush:
		return "push"
	case KindError:
		return "error"
	}
	return "kind-" + strconv.Itoa(int(k))
}

// Frame is one frame as read. Header and Payload alias the connection's buffer: they are valid only during the call that
// they are given to.
type Frame struct {
	Kind    FrameKind
	Command Command
	Request uint64 // the requester's number; 0 in pushes
	Header  []byte
	Payload []byte
}

// appendFrameHead writes everything before the header.
func appendFrameHead(b []byte, kind FrameKind, command Command, request uint64, headerBytes, payloadBytes int) []byte {
	le := binary.LittleEndian
	b = le.AppendUint32(b, uint32(frameLengthMin+headerBytes+payloadBytes))
	b = append(b, FrameVersion, byte(kind))
	b = le.AppendUint16(b, uint16(command))
	b = le.AppendUint64(b, request)
	return le.AppendUint32(b, uint32(headerBytes))
}

// AppendFrame appends a whole frame to b.
func AppendFrame(b []byte, f Frame) []byte {
	b = appendFrameHead(b, f.Kind, f.Command, f.Request, len(f.Header), len(f.Payload))
	return append(append(b, f.Header...), f.Payload...)
}

// ParseFrame reads the frame at the beginning of b. size is what it takes in all, 0 while that is not known; the frame is
// there when size <= len(b), and f is filled then. What can be judged is judged before the whole frame came, so nobody
// takes memory for a frame that will be refused. An error is CodeMalformed or CodeUnsupportedVersion, after which nothing
// that follows can be read; or CodeTooLarge when the frame has more than bytesMax, where size (when not 0) says what to
// skip and f.Request whom to answer.
func ParseFrame(b []byte, bytesMax int) (f Frame, size int, err *CodeError) {
	if len(b) < 4 {
		return f, 0, nil
	}
	length := int64(binary.LittleEndian.Uint32(b))
	if length < frameLengthMin {
		return f, 0, Errorf(CodeMalformed, "frame length %d, at least %d follow it", length, frameLengthMin)
	}
	if length+4 > frameSkipMax && length+4 > int64(bytesMax) {
		return f, 0, Errorf(CodeMalformed, "frame of %d bytes, at most %d are allowed", length+4, bytesMax)
	}
	if len(b) > 4 && b[4] != FrameVersion {
		return f, 0, Errorf(CodeUnsupportedVersion, "frame version %d, %d is known", b[4], FrameVersion)
	}
	if len(b) < frameHeadBytes {
		return f, 0, nil
	}
	f.Kind = FrameKind(b[5])
	f.Command = Command(binary.LittleEndian.Uint16(b[6:]))
	f.Request = binary.LittleEndian.Uint64(b[8:])
	headerBytes := int64(binary.LittleEndian.Uint32(b[16:]))
	size = 4 + int(length)
	if headerBytes > length-frameLengthMin {
		return f, 0, Errorf(CodeMalformed, "frame header of %d bytes in a frame of %d", headerBytes, size)
	}
	if f.Kind < KindRequest || f.Kind > KindError {
		return f, 0, Errorf(CodeMalformed, "unknown frame kind %d", uint8(f.Kind))
	}
	if size > bytesMax {
		return f, size, Errorf(CodeTooLarge, "frame of %d bytes, at most %d are allowed", size, bytesMax)
	}
	if len(b) >= size {
		h := frameHeadBytes + int(headerBytes)
		f.Header = b[frameHeadBytes:h:h]
		f.Payload = b[h:size:size]
	}
	return f, size, nil
}

// AppendError appends the header of an error frame for err.
func AppendError(b []byte, err error) []byte {
	var message string
	var after time.Duration
	var nodes []string
	if e, ok := asCodeError(err); ok {
		message, after, nodes = e.Message, e.RetryAfter, e.Nodes[:min(len(e.Nodes), errorNodesMax)]
	} else if err != nil {
		message = err.Error()
	}
	if len(message) > errorBytesMax {
		message = message[:errorBytesMax]
	}
	b = appendUint(b, 1, uint64(CodeOf(err)))
	b = appendText(b, 2, strings.ToValidUTF8(message, "?"))
	if after > 0 {
		b = appendUint(b, 3, uint64(max(1, after.Milliseconds())))
	}
	for _, n := range nodes {
		b = appendText(b, 4, strings.ToValidUTF8(n[:min(len(n), NameBytesMax)], "?"))
	}
	return b
}

// ParseError reads the header of an error frame. It never returns nil.
func ParseError(b []byte) *CodeError {
	e := &CodeError{}
	for len(b) > 0 {
		tag, v, s, rest, err := takeField(b)
		if err != nil {
			return Errorf(CodeMalformed, "the peer's error cannot be read")
		}
		b = rest
		switch tag {
		case 1<<3 | varField:
			e.Code = Code(min(v, 1<<16-1))
		case 2<<3 | lenField:
			e.Message = string(s)
		case 3<<3 | varField:
			e.RetryAfter = time.Duration(uint32(v)) * time.Millisecond
		case 4<<3 | lenField:
			if len(e.Nodes) < errorNodesMax && len(s) > 0 && len(s) <= NameBytesMax {
				e.Nodes = append(e.Nodes, string(s))
			}
		}
	}
	if e.Code == CodeOK {
		return Errorf(CodeMalformed, "the peer's error has no code")
	}
	return e
}
