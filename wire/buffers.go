package wire

import (
	"math/bits"
	"sync"
	"unsafe"
)

// Buffers lends byte slices to the connections of one owner, a listener or a client, so that an idle connection holds
// none. The zero value is ready; it is safe for concurrent use.
type Buffers struct {
	pools [bufferClasses]sync.Pool // of *byte: the first of a slice of 4 KiB << class
}

const (
	bufferBytesMin = 4 << 10
	bufferClasses  = 13 // up to 16 MiB, above ReplyBytesMax
)

// bufferClass returns the smallest class that holds n bytes; bufferClasses or more when none does.
func bufferClass(n int) int {
	if n <= bufferBytesMin {
		return 0
	}
	return bits.Len(uint(n-1)) - bits.Len(uint(bufferBytesMin)) + 1
}

// take lends an empty slice with room for n bytes or more.
func (p *Buffers) take(n int) []byte {
	class := bufferClass(n)
	if class >= bufferClasses {
		return make([]byte, 0, n)
	}
	if first, ok := p.pools[class].Get().(*byte); ok {
		return unsafe.Slice(first, bufferBytesMin<<class)[:0]
	}
	return make([]byte, 0, bufferBytesMin<<class)
}

// give takes b back; slices that take did not make are left to the garbage collector.
func (p *Buffers) give(b []byte) {
	if class := bufferClass(cap(b)); cap(b) > 0 && class < bufferClasses && cap(b) == bufferBytesMin<<class {
		p.pools[class].Put(unsafe.SliceData(b))
	}
}

// extend returns b with room for n bytes more, moved to a larger slice if need be.
func (p *Buffers) extend(b []byte, n int) []byte {
	if cap(b)-len(b) >= n {
		return b
	}
	larger := append(p.take(max(len(b)+n, 2*cap(b))), b...)
	p.give(b)
	return larger
}
