package offset

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"

	"github.com/jmqio/jmq/server/index"
)

// reader takes values off the front of b. After the first thing that cannot be read err is set, and everything read is 0.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: "+format, append([]any{ErrCorrupt}, args...)...)
		r.b = nil
	}
}

func (r *reader) byte() byte {
	if len(r.b) == 0 {
		r.fail("ends too early")
		return 0
	}
	v := r.b[0]
	r.b = r.b[1:]
	return v
}

func (r *reader) uvarint() uint64 {
	// Nearly all values are below 128.
	if len(r.b) > 0 && r.b[0] < 0x80 {
		v := r.b[0]
		r.b = r.b[1:]
		return uint64(v)
	}
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail("a varint is cut or too long")
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.fail("a varint is cut or too long")
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) uint(what string, upTo uint64) uint64 {
	v := r.uvarint()
	if v > upTo {
		r.fail("%s is %d, at most %d is possible", what, v, upTo)
		return 0
	}
	return v
}

func (r *reader) uint32(what string) uint32 { return uint32(r.uint(what, math.MaxUint32)) }
func (r *reader) partition() uint16         { return uint16(r.uint("partition", partitionsMax-1)) }
func (r *reader) index() index.Index        { return index.Index(r.uvarint()) }

// count reads how many elements follow, each of which takes at least size bytes: so a wrong count costs no memory.
func (r *reader) count(what string, size int) int {
	v := r.uvarint()
	if v > uint64(len(r.b)/size) {
		r.fail("%d %s in %d bytes", v, what, len(r.b))
		return 0
	}
	return int(v)
}

func (r *reader) string(what string, upTo int) string {
	n := r.uint("length of "+what, uint64(upTo))
	if n > uint64(len(r.b)) {
		r.fail("%s of %d bytes in %d", what, n, len(r.b))
		return ""
	}
	v := string(r.b[:n])
	r.b = r.b[n:]
	return v
}

// add returns a+b, which must not pass 2^64.
func (r *reader) add(a index.Index, b uint64) index.Index {
	sum, carry := bits.Add64(uint64(a), b, 0)
	if carry != 0 {
		r.fail("an index is beyond 2^64")
		return 0
	}
	return index.Index(sum)
}

func (r *reader) version(what string, newest byte) {
	if v := r.byte(); r.err == nil && v != newest {
		r.err = fmt.Errorf("%w: %s has version %d, this is for %d", ErrVersion, what, v, newest)
		r.b = nil
	}
}

// end returns the error of the whole: bytes that are left over are one.
func (r *reader) end() error {
	if r.err == nil && len(r.b) > 0 {
		r.fail("%d bytes are left over", len(r.b))
	}
	return r.err
}

func appendString(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// appendRanges appends how many ranges s has and each as the gap behind the one before, from last on, and its length.
func appendRanges(b []byte, last index.Index, s Ranges) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	for _, r := range s {
		b = binary.AppendUvarint(b, uint64(r.From-last))
		b = binary.AppendUvarint(b, r.Len())
		last = r.To
	}
	return b
}

// ranges reads what appendRanges wrote. A set is in one form only: but for the first no gap is 0.
func (r *reader) ranges(what string, last index.Index) Ranges {
	n := r.count(what, 2)
	if n == 0 {
		return nil
	}
	s := make(Ranges, 0, n)
	for i := range n {
		gap := r.uvarint()
		x := Range{From: r.add(last, gap)}
		x.To = r.add(x.From, r.uvarint())
		if r.err == nil && (x.Len() == 0 || i > 0 && gap == 0) {
			r.fail("%s: an empty one at %d, or two that touch", what, x.From)
		}
		if r.err != nil {
			return nil
		}
		last = x.To
		s = append(s, x)
	}
	return s
}
