package wire

import (
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Buffers lends byte slices to the connections of one owner, a listener or a client, so that an idle connection holds
// none. The zero value is ready; it is safe for concurrent use.
//
// Slices of at most 64 KiB, all that most connections ever need, are lent to whoever asks and are not counted. Larger ones,
// for large frames half read and for answers that wait, are one budget of all connections together: nobody waits for
// it, since who waits would hold what others wait for. What it does not give is refused to the one that asks: see Conn.
type Buffers struct {
	// BytesMax bounds what is lent in slices of more than 64 KiB. 0: no bound. It is set before the first use.
	BytesMax int64

	pools [bufferClasses]sync.Pool // of *byte: the first of a slice of 4 KiB << class

	// 0 <= lent, and lent <= BytesMax if there is a bound. Pooled slices, which the garbage collector may have, are not in it.
	lent          atomic.Int64
	framesRefused atomic.Uint64
	queuesRefused atomic.Uint64
}

// BuffersMetrics counts what is lent in slices of more than 64 KiB.
type BuffersMetrics struct {
	Bytes         int64  // lent now
	FramesRefused uint64 // frames that were answered CodeBusy, or ended their connection, for want of memory to read them
	QueuesRefused uint64 // answers that ended their connection, and requests not begun, for want of memory to queue them
}

// Metrics returns the counts until now.
func (p *Buffers) Metrics() BuffersMetrics {
	return BuffersMetrics{p.lent.Load(), p.framesRefused.Load(), p.queuesRefused.Load()}
}

// tight says that more than three quarters of the budget are lent.
func (p *Buffers) tight() bool { return p.BytesMax > 0 && p.lent.Load() > p.BytesMax/4*3 }

// reserve counts n bytes as lent, if that many are left.
func (p *Buffers) reserve(n int) bool {
	for {
		lent := p.lent.Load()
		if p.BytesMax > 0 && lent+int64(n) > p.BytesMax {
			return false
		}
		if p.lent.CompareAndSwap(lent, lent+int64(n)) {
			return true
		}
	}
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

// take lends an empty slice with room for n bytes or more; nil when the budget does not have them, which is only for n over
// readBytes. Whoever takes a slice gives it back, or what gives it gets less for ever.
func (p *Buffers) take(n int) []byte {
	class := bufferClass(n)
	if n > readBytes {
		size := n
		if class < bufferClasses {
			size = bufferBytesMin << class
		}
		if !p.reserve(size) {
			return nil
		}
	}
	if class >= bufferClasses {
		return make([]byte, 0, n)
	}
	if first, ok := p.pools[class].Get().(*byte); ok {
		return unsafe.Slice(first, bufferBytesMin<<class)[:0]
	}
	return make([]byte, 0, bufferBytesMin<<class)
}

// give takes b back. Slices that take did not make have at most readBytes, and are left to the garbage collector.
func (p *Buffers) give(b []byte) {
	if cap(b) > readBytes {
		if lent := p.lent.Add(-int64(cap(b))); lent < 0 {
			panic(fmt.Sprintf("wire: %d bytes were given back that were not lent: %d are", cap(b), lent))
		}
	}
	if class := bufferClass(cap(b)); cap(b) > 0 && class < bufferClasses && cap(b) == bufferBytesMin<<class {
		p.pools[class].Put(unsafe.SliceData(b))
	}
}

// extend returns b with room for n bytes more, moved to a larger slice if need be; nil when the budget has none, and b is
// as it was.
func (p *Buffers) extend(b []byte, n int) []byte {
	if cap(b)-len(b) >= n {
		return b
	}
	larger := p.take(max(len(b)+n, 2*cap(b)))
	if larger == nil {
		return nil
	}
	larger = append(larger, b...)
	p.give(b)
	return larger
}
