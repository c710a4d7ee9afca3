package mutate

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"math"
	"os"
	"strings"
	"testing"
)

// broken is a testing.TB whose failure can be looked at.
type broken struct {
	testing.TB
	said   string
	failed bool
}

var errFailed = errors.New("failed")

func (b *broken) Helper()  {}
func (b *broken) FailNow() { b.failed = true; panic(errFailed) }
func (b *broken) Errorf(format string, args ...any) {
	b.failed = true
	b.said = fmt.Sprintf(format, args...)
}
func (b *broken) Fatalf(format string, args ...any) {
	b.Errorf(format, args...)
	b.FailNow()
}

// find runs n mutations of a decoder, and returns the input that broke its contract, or nil.
func find(d Decoder, seed, n uint64) (found []byte, l *loop, said string) {
	t := &broken{}
	l = newLoop(t, d, seed)
	l.found = func(b []byte) { found = bytes.Clone(b) }
	defer func() { recover(); said = t.said }()
	l.run(n)
	return found, l, t.said
}

// lengths is a decoder of length-prefixed parts behind a checksum; with a bug, if it has a name.
func lengths(bug string) Decoder {
	d := Decoder{
		Seal: func(b []byte) {
			if len(b) >= 4 {
				binary.LittleEndian.PutUint32(b, crc32.ChecksumIEEE(b[4:]))
			}
		},
		Check: func(t testing.TB, b []byte) bool {
			if len(b) < 4 || crc32.ChecksumIEEE(b[4:]) != binary.LittleEndian.Uint32(b) {
				return false
			}
			for rest := b[4:]; len(rest) > 0; {
				n, w := binary.Uvarint(rest)
				if w <= 0 {
					return false
				}
				rest = rest[w:]
				if bug == "sum" && uint64(w)+n > uint64(len(b)) || bug != "sum" && n > uint64(len(rest)) {
					if bug == "memory" && n < 1<<32 {
						_ = append([]byte(nil), make([]byte, n)...)
					}
					return false
				}
				if bug == "errorf" && n == 7 {
					t.Errorf("seven")
				}
				rest = rest[n:] // with the bug "sum": beyond its end
			}
			return true
		},
	}
	for _, parts := range []string{"", "\x01a", "\x03abc\x00\x05order"} {
		b := append(make([]byte, 4), parts...)
		d.Seal(b)
		d.Seeds = append(d.Seeds, b)
	}
	return d
}

// TestFinds shows that panics, memory and failures are found behind a checksum, with the input that shows them, and that a sound decoder passes.
func TestFinds(t *testing.T) {
	for _, bug := range []string{"sum", "memory", "errorf"} {
		found, _, said := find(lengths(bug), 1, 200_000)
		if found == nil {
			t.Errorf("%s: not found", bug)
			continue
		}
		if bug == "memory" && !strings.Contains(said, "bytes of memory") {
			t.Errorf("memory: %q", said)
		}
		if bug == "errorf" && said != "seven" {
			t.Errorf("errorf: %q", said)
		}
	}
	found, l, said := find(lengths(""), 1, 100_000)
	if found != nil || said != "" || l.given != 100_000 {
		t.Errorf("sound: %x, %q, %d given", found, said, l.given)
	}
	if l.taken < 1000 || len(l.pool) < 100 {
		t.Errorf("only %d of %d are taken, and the pool has %d", l.taken, l.given, len(l.pool))
	}
	if l, _, _ := find(Decoder{Check: lengths("").Check}, 1, 1000); l != nil {
		t.Errorf("without seeds: %x", l)
	}
}

// TestSame shows that a seed gives the same inputs each time, and another one others, and that none is longer than allowed.
func TestSame(t *testing.T) {
	sum := func(seed uint64) uint64 {
		h := fnv.New64()
		d := lengths("")
		d.AllocMost = math.MaxUint64 // nothing is given twice
		check := d.Check
		d.Check = func(t testing.TB, b []byte) bool {
			if len(b) > roomLeast {
				t.Fatalf("%d bytes", len(b))
			}
			fmt.Fprintf(h, "%x\n", b)
			return check(t, b)
		}
		if found, _, said := find(d, seed, 20_000); found != nil {
			t.Fatal(said)
		}
		return h.Sum64()
	}
	if first, again := sum(1), sum(1); first != again || first == sum(2) {
		t.Error("seeds and inputs do not go together")
	}
}

// TestKept shows that what is found is kept as native fuzzing keeps it, and is read again.
func TestKept(t *testing.T) {
	dir := t.TempDir()
	want := []byte("\x00\xff\"`\n order ü")
	if _, err := keep(dir, want); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/two", []byte(corpusHead+"uint8(1)\n[]byte(\"x\")\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := keptOf(dir)
	if err != nil || len(got) != 1 || !bytes.Equal(got[0], want) {
		t.Fatalf("%q, %v", got, err)
	}
}

// FuzzParts is what targets look like.
func FuzzParts(f *testing.F) { Fuzz(f, lengths("")) }

func BenchmarkMutation(b *testing.B) {
	d := lengths("")
	l := newLoop(b, d, 1)
	b.ReportAllocs()
	b.ResetTimer()
	l.run(uint64(b.N))
}
