// Package mutate gives decoders what is nearly right: inputs made from valid ones with bits, bytes and lengths changed, with parts cut out,
// added, repeated and put elsewhere. It stands beside native fuzzing: it is deterministic, has no other process to talk to, and so gives a decoder of
// a small format a million inputs a second.
//
//	func FuzzEnds(f *testing.F) {
//		mutate.Fuzz(f, mutate.Decoder{Seeds: [][]byte{good}, Check: func(t testing.TB, b []byte) bool { ... }})
//	}
//
// is a native target and, whenever it is not being fuzzed, JMQ_TEST_MUTATIONS mutations (20,000 unless set), from JMQ_TEST_SEED (drawn unless set).
// What is found is kept in testdata/fuzz, where both kinds of fuzzing find it again.
package mutate

import (
	"crypto/sha256"
	"encoding/binary"
	"flag"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/metrics"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Decoder is what reads bytes that others wrote.
type Decoder struct {
	// Seeds are valid inputs, and some that are not; at least one.
	Seeds [][]byte
	// Check gives b to the decoder, fails t when its contract is broken, and says whether the decoder took b. Panics are failures too. It may not keep b; it may change it.
	Check func(t testing.TB, b []byte) bool
	// Seal makes checksums right after a mutation, in place, so that half of the inputs come past them. Nil: there are none.
	Seal func(b []byte)
	// AllocMost is how many bytes of memory one input may cost. 0: 1 MiB.
	AllocMost uint64
	// Slowness divides the number of mutations, for what takes many microseconds. 0: 1.
	Slowness int
}

const (
	countUsual = 20_000
	allocUsual = 1 << 20
	blockMost  = 256  // inputs between two looks at what was allocated
	poolMost   = 512  // inputs that others are made from
	roomLeast  = 1024 // bytes that an input may grow to, unless its seeds are longer
)

// Fuzz is all of a fuzz target that takes bytes: seeds, mutations, native fuzzing.
func Fuzz(f *testing.F, d Decoder) {
	for _, s := range d.Seeds {
		f.Add(s)
	}
	Run(f, d)
	f.Fuzz(func(t *testing.T, b []byte) { d.Check(t, b) })
}

// Run runs the mutations alone, for targets that have more arguments. It does nothing while a target is being fuzzed.
func Run(f *testing.F, d Decoder) {
	if fuzzing := flag.Lookup("test.fuzz"); fuzzing != nil && fuzzing.Value.String() != "" {
		return
	}
	n, err := number("JMQ_TEST_MUTATIONS", countUsual)
	if err != nil {
		f.Fatal(err)
	}
	seed, err := number("JMQ_TEST_SEED", uint64(time.Now().UnixNano()))
	if err != nil {
		f.Fatal(err)
	}
	if d.Slowness > 1 {
		n = (n + uint64(d.Slowness) - 1) / uint64(d.Slowness)
	}
	kept, err := keptOf(filepath.Join("testdata", "fuzz", f.Name()))
	if err != nil {
		f.Fatal(err)
	}
	d.Seeds = append(d.Seeds[:len(d.Seeds):len(d.Seeds)], kept...)
	if testing.Short() {
		n = min(n, 1000)
	}
	l := newLoop(f, d, seed)
	l.found = func(b []byte) {
		name, err := keep(filepath.Join("testdata", "fuzz", f.Name()), b)
		fmt.Fprintf(os.Stderr, "%s: JMQ_TEST_SEED=%d: the contract is broken by %d bytes, kept in %s (%v)\n%x\n", f.Name(), seed, len(b), name, err, b)
	}
	begun := time.Now()
	l.run(n)
	f.Logf("%s: %d mutations, %d taken, seed %d, %.2f s", f.Name(), l.given, l.taken, seed, time.Since(begun).Seconds())
}

// number is an environment variable, or unset.
func number(name string, unset uint64) (uint64, error) {
	s := os.Getenv(name)
	if s == "" {
		return unset, nil
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return n, nil
}

// loop is one run of mutations.
type loop struct {
	t     testing.TB
	d     Decoder
	seed  uint64
	found func(b []byte) // gets the input that broke the contract

	pool         [][]byte // seeds, then mutations that were taken
	fresh        [][]byte // taken in this block: to the pool when it ends
	room         int
	buf          []byte
	given, taken uint64
	sample       []metrics.Sample
}

func newLoop(t testing.TB, d Decoder, seed uint64) *loop {
	if d.AllocMost == 0 {
		d.AllocMost = allocUsual
	}
	l := &loop{t: t, d: d, seed: seed, found: func([]byte) {}, room: roomLeast, sample: []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}}
	for _, s := range d.Seeds {
		l.pool = append(l.pool, s)
		l.room = max(l.room, 2*len(s))
	}
	if len(l.pool) == 0 {
		l.pool = [][]byte{{}}
	}
	l.buf = make([]byte, 0, l.room)
	return l
}

// run gives n inputs, in blocks. A block depends on the pool and its own number only, so it can be repeated.
func (l *loop) run(n uint64) {
	size := uint64(blockMost)
	for block := uint64(0); l.given < n; block++ {
		inputs := min(size, n-l.given)
		before := l.allocated()
		l.fresh = l.fresh[:0]
		taken := l.block(block, inputs, false)
		if l.allocated()-before > l.d.AllocMost {
			if l.fresh = l.fresh[:0]; size > 1 {
				l.block(block, inputs, true) // which of them was it?
				size = max(1, size/4)
			} else {
				l.block(block, inputs, true)
			}
		}
		l.given += inputs
		l.taken += taken
		l.learn(block)
	}
}

// learn puts what a block had taken into the pool, in the place of what was learnt before when that is full. Seeds stay.
func (l *loop) learn(block uint64) {
	learnt := poolMost - len(l.d.Seeds)
	for i, b := range l.fresh {
		if len(l.pool) < poolMost {
			l.pool = append(l.pool, b)
		} else if learnt > 0 {
			l.pool[len(l.d.Seeds)+int(block*31+uint64(i))%learnt] = b
		}
	}
}

func (l *loop) allocated() uint64 {
	metrics.Read(l.sample)
	return l.sample[0].Value.Uint64()
}

// block gives the inputs of a block, each measured if that was asked for, and says how many were taken.
func (l *loop) block(block, inputs uint64, measure bool) (taken uint64) {
	rng := rng{rand.NewPCG(l.seed, block)}
	var last []byte // what Check was given, which may have been changed since
	done := false
	defer func() {
		if !done { // a panic, or t.FailNow
			l.found(last)
		}
	}()
	failed := l.t.Failed()
	for range inputs {
		last = l.mutation(&rng)
		if l.d.Seal != nil && rng.below(2) == 0 {
			l.d.Seal(last)
		}
		took := false
		if measure {
			copied := append([]byte(nil), last...)
			cost := uint64(math.MaxUint64)
			for range 3 { // others may allocate beside it
				copy(last, copied)
				before := l.allocated()
				took = l.d.Check(l.t, last)
				cost = min(cost, l.allocated()-before)
				if cost <= l.d.AllocMost {
					break
				}
			}
			last = copied
			if cost > l.d.AllocMost {
				l.t.Fatalf("an input of %d bytes costs %d bytes of memory, of %d", len(last), cost, l.d.AllocMost)
			}
		} else {
			took = l.d.Check(l.t, last)
		}
		if !failed && l.t.Failed() {
			l.t.FailNow() // by Errorf
		}
		if took {
			taken++
			if len(l.fresh) < 4 {
				l.fresh = append(l.fresh, append([]byte(nil), last...))
			}
		}
	}
	done = true
	return taken
}

// edges are numbers at which lengths and counts go wrong.
var edges = [...]uint64{
	0, 1, 2, 3, 7, 8, 15, 16, 31, 32, 63, 64, 127, 128, 129, 255, 256, 257, 1<<14 - 1, 1 << 14, 1<<15 - 1, 1 << 15, 1<<16 - 1, 1 << 16, 1<<20 - 1, 1 << 20,
	1<<24 - 1, 1 << 24, 1<<31 - 1, 1 << 31, 1<<32 - 1, 1 << 32, 1 << 40, 1<<63 - 1, 1 << 63, 1<<64 - 8, 1<<64 - 2, 1<<64 - 1,
}

// texts are numbers and signs at which readers of text go wrong.
var texts = [...]string{
	"0", "-1", "00", "+1", "1e9", "0x7f", "65536", "4294967296", "9223372036854775807", "9223372036854775808", "18446744073709551615", "18446744073709551616",
	"99999999999999999999999", "\x00", "\n", "\r\n", " ", "\t", "\"", "'", "\\", ":", ",", "=", "{", "}", "[", "]", "[[[[[[[[", "null", "true", "\xff", "\xc3\x28", "\u2028", "%", "#", "&a", "*a", "!!", "---\n",
}

// rng is the source of one block.
type rng struct{ *rand.PCG }

func (r *rng) below(n int) int {
	hi, _ := bits.Mul64(r.Uint64(), uint64(n))
	return int(hi)
}

// mutation is the next input, in a buffer that the one after it uses again.
func (l *loop) mutation(r *rng) []byte {
	b := append(l.buf[:0], l.pool[r.below(len(l.pool))]...)
	for n := 1 + bits.TrailingZeros64(r.Uint64()|1<<5); n > 0; n-- {
		b = l.mutate(b, r)
	}
	return b
}

func (l *loop) mutate(b []byte, r *rng) []byte {
	if len(b) == 0 {
		return append(b, byte(r.Uint64()))
	}
	x := r.Uint64()
	i := r.below(len(b))
	switch x % 18 {
	case 0, 1, 2:
		b[i] ^= 1 << (x >> 61)
	case 3, 4:
		b[i] = byte(x >> 56)
	case 5:
		b[i] += 1 - byte(x>>63)*2
	case 6:
		b[i] = byte(edges[r.below(len(edges))])
	case 7, 8, 9: // a length: an edge, or what is there, near it
		v := edges[r.below(len(edges))]
		switch x >> 61 {
		case 0:
			v = uint64(len(b))
		case 1:
			v = uint64(len(b) - i)
		case 2:
			v = uint64(len(b)-i) - 4
		}
		v += uint64((x>>40)%3) - 1
		var f [8]byte
		if x>>39&1 == 0 {
			binary.LittleEndian.PutUint64(f[:], v)
		} else {
			binary.BigEndian.PutUint64(f[:], v)
		}
		width := 1 << (1 + (x>>32)%3)
		if x>>39&1 == 0 {
			copy(b[i:], f[:width])
		} else {
			copy(b[i:], f[8-width:])
		}
	case 10: // a varint in the place of a byte, in its shortest form or in a longer one
		var f [binary.MaxVarintLen64 + 1]byte
		n := binary.PutUvarint(f[:], edges[r.below(len(edges))])
		if x>>63 == 1 {
			f[n-1] |= 0x80
			f[n] = 0
			n++
		}
		b = l.replace(b, i, i+1, f[:n])
	case 11:
		b = b[:i]
	case 12: // cut out
		b = append(b[:i], b[i+r.below(min(len(b)-i, 32)+1):]...)
	case 13: // extend
		var f [16]byte
		binary.LittleEndian.PutUint64(f[:], x)
		binary.LittleEndian.PutUint64(f[8:], r.Uint64()&-(x>>62&1))
		b = l.replace(b, len(b), len(b), f[:1+r.below(16)])
	case 14: // the head of this and the tail of another
		o := l.pool[r.below(len(l.pool))]
		if len(o) > 0 {
			at := r.below(len(o))
			if x>>63 == 0 {
				at = min(i, len(o)-1)
			}
			b = l.replace(b, i, len(b), o[at:])
		}
	case 15: // a part twice
		var f [64]byte
		n := copy(f[:1+r.below(len(f))], b[i:])
		b = l.replace(b, i, i, f[:n])
	case 16: // a part elsewhere
		j := r.below(len(b))
		copy(b[j:], b[i:i+1+r.below(min(len(b)-i, 64))])
	case 17:
		s := texts[r.below(len(texts))]
		b = l.replace(b, i, i+int(x>>63), []byte(s))
	}
	return b
}

// replace puts with, which is no part of b, in the place of b[from:to], if there is room.
func (l *loop) replace(b []byte, from, to int, with []byte) []byte {
	if len(b)-(to-from)+len(with) > l.room {
		return b
	}
	n := len(b)
	size := n - (to - from) + len(with)
	b = b[:max(n, size)]
	copy(b[from+len(with):], b[to:n])
	copy(b[from:], with)
	return b[:size]
}

const corpusHead = "go test fuzz v1\n"

// keep writes b as a corpus of native fuzzing.
func keep(dir string, b []byte) (name string, err error) {
	sum := sha256.Sum256(b)
	name = filepath.Join(dir, fmt.Sprintf("%x", sum[:8]))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return name, err
	}
	return name, os.WriteFile(name, fmt.Appendf(nil, "%s[]byte(%q)\n", corpusHead, b), 0o644)
}

// keptOf reads a corpus of native fuzzing whose inputs are one []byte; those of other arguments are not for mutations.
func keptOf(dir string) (list [][]byte, err error) {
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		body, ok := strings.CutPrefix(string(text), corpusHead)
		body, is := strings.CutPrefix(strings.TrimSuffix(body, "\n"), "[]byte(")
		if !ok || !is || strings.Contains(body, "\n") {
			continue
		}
		s, err := strconv.Unquote(strings.TrimSuffix(body, ")"))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		list = append(list, []byte(s))
	}
	return list, nil
}
