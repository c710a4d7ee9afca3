package journal

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"
)

var (
	seedFlag    = flag.Uint64("seed", 0, "seed of the random tests; 0 draws one")
	rewriteFlag = flag.Bool("rewrite", false, "write the golden files anew")
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newRand returns the test's random numbers and prints their seed.
func newRand(t testing.TB) *rand.Rand {
	s := *seedFlag
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("-seed=%d", s)
	return rand.New(rand.NewPCG(s, 1))
}

// sample says which cases of a campaign are run: all, or with -race each step-th from one on that is drawn.
func sample(t testing.TB, step int) (from, by int) {
	if !raceEnabled {
		return 0, 1
	}
	return newRand(t).IntN(step), step
}

// campaign is by how much the crash and fault tests are larger than in an ordinary run: JMQ_TEST_CAMPAIGN.
func campaign() int {
	n, _ := strconv.Atoi(os.Getenv("JMQ_TEST_CAMPAIGN"))
	return max(n, 1)
}

// golden compares got with testdata/name, or writes it with -rewrite.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *rewriteFlag {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (go test -rewrite writes it anew); got:\n%s\nwant:\n%s", path, got, want)
	}
}

const testDir = "/data/journal"

var testStore = [16]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}

func testOptions(fsys vfs.FS) Options {
	return Options{
		FS: fsys, Dir: testDir, StoreID: testStore, Term: 1, SegmentBytesMax: segmentBytesFloor,
		IdleAfter: time.Hour, // no no-ops of its own in between
	}
}

// payload makes the payload of message n: its number, and bytes that depend on it.
func payload(n uint64, size int) []byte {
	b := make([]byte, max(size, 8))
	binary.LittleEndian.PutUint64(b, n)
	for i := 8; i < len(b); i++ {
		b[i] = byte(n*31+uint64(i)*7) | 1 // never 0, which a cut file reads as
	}
	return b
}

// number checks a payload and returns its number.
func number(b []byte) (uint64, error) {
	if len(b) < 8 {
		return 0, fmt.Errorf("payload of %d bytes", len(b))
	}
	n := binary.LittleEndian.Uint64(b)
	if string(b) != string(payload(n, len(b))) {
		return 0, fmt.Errorf("payload of message %d is not what was sent", n)
	}
	return n, nil
}

var blank = make([]byte, 1<<20)

// messages collects numbers of message records, which must come one after the other.
type messages struct {
	first, next uint64
	some        bool
	gaps        bool     // messages may be missing where there are records of KindLost
	lost        bool     // one was seen since the last message
	records     []Record // payloads blank
}

func (m *messages) add(r Record) error {
	if n := len(m.records); n > 0 && m.records[n-1].End() > r.Position {
		return fmt.Errorf("record at %d follows one that ends at %d", r.Position, m.records[n-1].End())
	}
	if r.Kind == KindMessages {
		n, err := number(r.Payload)
		if err != nil {
			return err
		}
		if !m.some {
			m.first, m.next, m.some = n, n, true
		}
		if n != m.next && !(n > m.next && m.gaps && m.lost) {
			return fmt.Errorf("message %d at %d, want %d", n, r.Position, m.next)
		}
		m.next, m.lost = n+1, false
	}
	m.lost = m.lost || r.Kind == KindLost
	r.Payload = blank[:len(r.Payload)]
	m.records = append(m.records, r)
	return nil
}

// sender appends numbered messages and keeps what became of them.
type sender struct {
	j     *Journal
	next  uint64        // of the next message
	acked atomic.Uint64 // messages below are acknowledged
	begun atomic.Uint64 // messages below were given to Append
	// outcome of those that were not acknowledged
	unknown, failed []uint64
}

// send appends messages of these sizes as one append and waits for it, leading the commit. Unless the error wraps
// ErrUnknown or ErrFailed from Done, the messages count as not sent, and their numbers are used again.
func (s *sender) send(sizes ...int) error {
	done, err := s.queue(sizes...)
	if err != nil {
		return err
	}
	if !s.j.TryLead() {
		s.j.Kick()
	}
	return <-done
}

func (s *sender) queue(sizes ...int) (<-chan error, error) {
	done := make(chan error, 1)
	first := s.next
	a := &Append{Stored: int64(first), Done: func(a *Append, err error) {
		n := first + uint64(len(a.Entries))
		switch {
		case err == nil:
			s.acked.Store(n)
		case errors.Is(err, ErrUnknown):
			for ; first < n; first++ {
				s.unknown = append(s.unknown, first)
			}
		default:
			for ; first < n; first++ {
				s.failed = append(s.failed, first)
			}
		}
		done <- err
	}}
	for i, size := range sizes {
		a.Entries = append(a.Entries, Entry{Kind: KindMessages, Payload: payload(first+uint64(i), size)})
	}
	s.begun.Store(first + uint64(len(sizes)))
	for {
		err := s.j.Append(a)
		if err == nil {
			break
		}
		if errors.Is(err, ErrBusy) {
			err = s.j.WaitRoom(context.Background())
		}
		if err != nil {
			s.begun.Store(first)
			return nil, err
		}
	}
	s.next += uint64(len(sizes))
	return done, nil
}

// mustSend fails the test when it cannot send.
func (s *sender) mustSend(t testing.TB, sizes ...int) {
	t.Helper()
	if err := s.send(sizes...); err != nil {
		t.Fatal(err)
	}
}

func mustOpen(t testing.TB, o Options) *Journal {
	t.Helper()
	j, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func mustClose(t testing.TB, j *Journal) {
	t.Helper()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}

// readAll reads the journal from a position on with a Reader.
func readAll(j *Journal, from Position) (messages, error) {
	var m messages
	r := j.NewReader(from)
	defer r.Close()
	for {
		rec, err := r.Next()
		if err == io.EOF {
			return m, nil
		}
		if err != nil {
			return m, err
		}
		if err := m.add(rec); err != nil {
			return m, err
		}
	}
}

// reopen opens the journal and returns it with the messages that recovery showed.
func reopen(o Options) (*Journal, messages, error) {
	var m messages
	o.Recovered = m.add
	j, err := Open(o)
	return j, m, err
}

// newRandQuiet returns random numbers whose seed follows from the place in the test.
func newRandQuiet(n uint64) *rand.Rand { return rand.New(rand.NewPCG(n, 3)) }
