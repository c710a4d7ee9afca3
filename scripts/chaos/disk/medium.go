package disk

import (
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// blockBytes is what a medium writes whole or not at all.
	blockBytes = 4096
	// cachedMax bounds the blocks that a medium has in its cache; it flushes when there are more.
	cachedMax = 32 << 10
)

type block [blockBytes]byte

// medium is a disk with a cache that forgets: what was written is read again at once, and is there after a loss of power if it was flushed, or by
// luck. Safe for concurrent use.
type medium struct {
	bytes int64
	slow  atomic.Int64 // how long each flush takes, in ns; writes take none of it
	fails atomic.Bool  // writes and flushes end with an error

	mu struct {
		sync.Mutex
		off     bool
		now     map[int64]*block // blocks are not changed, but replaced
		durable map[int64]*block
		cached  []write // in their order
		lost    int     // writes that losses of power have taken, in all
	}
}

type write struct {
	at int64
	b  *block
}

func newMedium(bytes int64) *medium {
	m := &medium{bytes: bytes / blockBytes * blockBytes}
	m.mu.now, m.mu.durable = map[int64]*block{}, map[int64]*block{}
	return m
}

func (m *medium) readAt(p []byte, at int64) (int, syscall.Errno) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.off {
		return 0, syscall.EIO
	}
	if at >= m.bytes {
		return 0, 0
	}
	p = p[:min(int64(len(p)), m.bytes-at)]
	for done := 0; done < len(p); {
		in := (at + int64(done)) % blockBytes
		if b := m.mu.now[(at+int64(done))/blockBytes]; b != nil {
			done += copy(p[done:], b[in:])
		} else {
			n := min(len(p)-done, int(blockBytes-in))
			clear(p[done : done+n])
			done += n
		}
	}
	return len(p), 0
}

func (m *medium) writeAt(p []byte, at int64) (int, syscall.Errno) {
	if m.fails.Load() {
		return 0, syscall.EIO
	}
	if at+int64(len(p)) > m.bytes {
		return 0, syscall.ENOSPC
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.off {
		return 0, syscall.EIO
	}
	for done := 0; done < len(p); {
		number, in := (at+int64(done))/blockBytes, (at+int64(done))%blockBytes
		b := &block{}
		if old := m.mu.now[number]; old != nil {
			*b = *old
		}
		done += copy(b[in:], p[done:])
		m.mu.now[number] = b
		m.mu.cached = append(m.mu.cached, write{number, b})
	}
	if len(m.mu.cached) > cachedMax {
		m.settle()
	}
	return len(p), 0
}

// flush makes durable what was written.
func (m *medium) flush() syscall.Errno {
	if d := m.slow.Load(); d > 0 {
		time.Sleep(time.Duration(d))
	}
	if m.fails.Load() {
		return syscall.EIO
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.off {
		return syscall.EIO
	}
	m.settle()
	return 0
}

// settle makes the cache durable. mu is held.
func (m *medium) settle() {
	for _, w := range m.mu.cached {
		m.mu.durable[w.at] = w.b
	}
	m.mu.cached = nil
}

// powerOff takes the power: of what is in the cache each block is lost or not, by a chance that is drawn too. Nothing is read or written until powerOn.
func (m *medium) powerOff(rng *rand.Rand) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.off {
		return
	}
	m.mu.off = true
	kept := []float64{0, 0.1, 0.5, 0.9}[rng.IntN(4)]
	for _, w := range m.mu.cached {
		if rng.Float64() < kept {
			m.mu.durable[w.at] = w.b
		} else {
			m.mu.lost++
		}
	}
	m.mu.cached = nil
	m.mu.now = maps.Clone(m.mu.durable)
}

func (m *medium) powerOn() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.off = false
}
