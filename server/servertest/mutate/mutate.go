// Package mutate gives decoders what is nearly right: inputs made from valid ones with bits, bytes and lengths changed, with parts cut out,
// added, repeated and put elsewhere. It stands beside native fuzzing: it is deterministic, has no other process to talk to, and so gives a decoder of
// a small format a million inputs a second.
//
//	func FuzzEnds(f *testing.F) {
//		mutate.Fuzz(f, mutate.Decoder{Seeds: [][]byte{good}, Check: func(t testing.TB, b []byte) bool { ... }})
//	}
//
// is a native target and, whenever it is not being fuzzed, JMQ_TEST_MUTATIONS mutations (20,000 or fewer unless set), from JMQ_TEST_SEED (drawn unless set).
// What is found is kept in testdata/fuzz, where both kinds of fuzzing find it again; by Run in testdata/mutations, for native fuzzing has other arguments.
package mutate

import (
	"crypto/sha256"
	"encoding/binary"
	"flag"
	"fmt"
	"math"
	"math/bits"
	"os"
	"path/filepath"
	"runtime/debug"
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
	// AllocMost is how many bytes of memory one input may cost. 0: 128 KiB.
	AllocMost uint64
	// Slowness divides the usual number of mutations, for what takes many microseconds. 0: 1.
	Slowness int
}

const (
	countUsual = 20_000
	allocUsual = 128 << 10
	chunkMost  = 256  // inputs after which the pool changes, and at most between two looks at what was allocated
	quietMost  = 64   // looks that saw little, after which they become rarer again
	poolMost   = 512  // inputs that others are made from
	freshMost  = 4    // of a chunk, that go into the pool
	roomLeast  = 1024 // bytes that an input may grow to, unless its seeds are longer
	gcPercent  = 800  // a heap of a few hundred KB would be collected all the time
)

// Fuzz is all of a fuzz target that takes bytes: seeds, mutations, native fuzzing.
func Fuzz(f *testing.F, d Decoder) {
	for _, s := range d.Seeds {
		f.Add(s)
	}
	run(f, d, filepath.Join("testdata", "fuzz", f.Name()))
	f.Fuzz(func(t *testing.T, b []byte) { d.Check(t, b) })
}

// Run runs the mutations alone, for targets that have more arguments. It does nothing while a target is being fuzzed.
func Run(f *testing.F, d Decoder) { run(f, d, filepath.Join("testdata", "mutations", f.Name())) }

func run(f *testing.F, d Decoder, dir string) {
	if fuzzing := flag.Lookup("test.fuzz"); fuzzing != nil && fuzzing.Value.String() != "" {
		return
	}
	usual := uint64(countUsual / max(1, d.Slowness))
	if testing.Short() {
		usual = min(usual, 1000)
	}
	n, err := number("JMQ_TEST_MUTATIONS", usual)
	if err != nil {
		f.Fatal(err)
	}
	seed, err := number("JMQ_TEST_SEED", uint64(time.Now().UnixNano()))
	if err != nil {
		f.Fatal(err)
	}
	kept, err := keptOf(dir)
	if err != nil {
		f.Fatal(err)
	}
	d.Seeds = append(d.Seeds[:len(d.Seeds):len(d.Seeds)], kept...)
	defer debug.SetGCPercent(debug.SetGCPercent(gcPercent))
	l := newLoop(f, d, seed)
	l.found = func(b []byte) {
		name, err := keep(dir, b)
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

// judged notes that a check failed: testing.TB.Failed takes a lock, and is asked after each input.
type judged struct {
	testing.TB
	failed bool
}

func (j *judged) Error(args ...any) { j.Helper(); j.failed = true; j.TB.Error(args...) }
func (j *judged) Errorf(format string, args ...any) {
	j.Helper()
	j.failed = true
	j.TB.Errorf(format, args...)
}
func (j *judged) Fail() { j.failed = true; j.TB.Fail() }

// loop is one run of mutations. It takes no memory for an input.
type loop struct {
	t     judged
	d     Decoder
	seed  uint64
	found func(b []byte) // gets the input that broke the contract

	pool         [][]byte // seeds, then mutations that were taken
	fresh        [freshMost][]byte
	learnt       int // of fresh, in this chunk: to the pool when it ends
	room         int
	buf          []byte
	size         uint64 // inputs between two looks at what was allocated
	quiet        int    // looks since that was too much
	given, taken uint64
	sample       []metrics.Sample
}

func newLoop(t testing.TB, d Decoder, seed uint64) *loop {
	if d.AllocMost == 0 {
		d.AllocMost = allocUsual
	}
	l := &loop{t: judged{TB: t}, d: d, seed: seed, found: func([]byte) {}, room: roomLeast, size: chunkMost, sample: []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}}
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

// run gives n inputs, in chunks. A chunk's inputs depend on its number and on what the chunks before it had taken, so a seed gives the same ones again.
func (l *loop) run(n uint64) {
	for chunk := uint64(0); l.given < n; chunk++ {
		r := rngOf(l.seed, chunk)
		l.learnt = 0
		for left := min(chunkMost, n-l.given); left > 0; {
			inputs := min(l.size, left)
			begun := r
			before := l.allocated()
			l.taken += l.inputs(&r, inputs)
			if l.allocated()-before > l.d.AllocMost {
				l.measured(begun, inputs) // is it one of them?
				l.size = max(1, l.size/4)
				l.quiet = 0
			} else if l.quiet++; l.quiet == quietMost {
				l.size = min(chunkMost, l.size*2)
				l.quiet = 0
			}
			left -= inputs
			l.given += inputs
		}
		l.learn(chunk)
	}
}

// learn puts what a chunk had taken into the pool, in the place of what was learnt before when that is full. Seeds stay.
func (l *loop) learn(chunk uint64) {
	seeds := max(1, len(l.d.Seeds))
	for i, b := range l.fresh[:l.learnt] {
		if len(l.pool) < poolMost {
			l.pool = append(l.pool, append(make([]byte, 0, 2*len(b)), b...))
		} else if most := poolMost - seeds; most > 0 {
			at := seeds + int((chunk*31+uint64(i))%uint64(most))
			l.pool[at] = append(l.pool[at][:0], b...)
		}
	}
}

func (l *loop) allocated() uint64 {
	metrics.Read(l.sample)
	return l.sample[0].Value.Uint64()
}

// inputs gives so many inputs, and says how many were taken.
func (l *loop) inputs(r *rng, n uint64) (taken uint64) {
	var last rng // where the last input begins: Check may have changed it since
	done := false
	defer func() {
		if !done { // a panic, or t.FailNow
			l.found(l.input(&last))
		}
	}()
	for range n {
		last = *r
		took := l.d.Check(&l.t, l.input(r))
		if l.t.failed {
			l.t.FailNow() // by Errorf
		}
		if took {
			taken++
			if l.learnt < freshMost {
				again := last
				l.fresh[l.learnt] = append(l.fresh[l.learnt][:0], l.input(&again)...)
				l.learnt++
			}
		}
	}
	done = true
	return taken
}

// measured gives inputs again, and fails if one of them costs more memory than it may.
func (l *loop) measured(r rng, n uint64) {
	for range n {
		begun, cost := r, uint64(math.MaxUint64)
		for range 10 { // others may allocate beside it, and with -race a pool forgets one in four
			r = begun
			b := l.input(&r)
			before := l.allocated()
			l.d.Check(&l.t, b)
			if cost = min(cost, l.allocated()-before); cost <= l.d.AllocMost {
				break
			}
		}
		if cost > l.d.AllocMost {
			b := l.input(&begun)
			l.found(b)
			l.t.Fatalf("an input of %d bytes costs %d bytes of memory, of %d", len(b), cost, l.d.AllocMost)
		}
	}
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

// rng is wyrand, the source of a chunk. One that is copied gives the same again.
type rng struct{ state uint64 }

func rngOf(seed, chunk uint64) rng {
	r := rng{seed}
	return rng{r.Uint64() ^ chunk*0x9e3779b97f4a7c15}
}

func (r *rng) Uint64() uint64 {
	r.state += 0xa0761d6478bd642f
	hi, lo := bits.Mul64(r.state, r.state^0xe7037ed1a0b428db)
	return hi ^ lo
}

func (r *rng) below(n int) int {
	hi, _ := bits.Mul64(r.Uint64(), uint64(n))
	return int(hi)
}

// input is the next input, in a buffer that the one after it uses again.
func (l *loop) input(r *rng) []byte {
	b := append(l.buf[:0], l.pool[r.below(len(l.pool))]...)
	x := r.Uint64()
	for n := 1 + bits.TrailingZeros64(x|1<<5); n > 0; n-- {
		b = l.mutate(b, r)
	}
	if l.d.Seal != nil && x>>63 == 0 {
		l.d.Seal(b)
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

// keptOf reads a corpus of native fuzzing whose inputs are one []byte.
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
