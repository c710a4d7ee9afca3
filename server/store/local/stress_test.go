package local

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/store"
)

// TestEverythingAtOnce appends, reads, seeks, writes checkpoints and repairs index files at the same time, while power losses
// are taken from the side: each clone has what was answered before it, and the store itself never answers wrong.
func TestEverythingAtOnce(t *testing.T) {
	r := random(t)
	fs := vfs.NewCrashableMem()
	o := options(fs)
	o.SegmentBytesMax = 64 << 10
	o.IndexFilesOpenMax = 2
	o.Tables = []store.Table{&counter{}}
	s := mustOpen(t, o)
	topic := mustTopic(t, s, "orders", 4)
	var ends [4]atomic.Uint64 // answered
	stop := make(chan struct{})
	rounds := 6
	if raceEnabled {
		rounds = 3
	}
	var wg sync.WaitGroup
	until := func(f func()) {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					f()
				}
			}
		})
	}
	var mine func() // partition 0's appender, in this goroutine: it sets the pace
	for n := range 4 {
		p := partitionOfTopic(topic, n)
		add := func() {
			end := ends[n].Load()
			var list []string
			for i := range end%7 + 1 {
				list = append(list, fmt.Sprint(end+i))
			}
			got := appendWait(s, p, batchOf(t, list...))
			if got.err != nil || got.first != index.Index(end) {
				t.Errorf("partition %d: %+v, want index %d", n, got, end)
				return
			}
			ends[n].Add(uint64(len(list)))
		}
		if n == 0 {
			mine = add
		} else {
			until(add)
		}
		rng := rand.New(rand.NewPCG(uint64(r.Int63()), uint64(n)))
		until(func() {
			answered := ends[n].Load()
			if answered == 0 {
				return
			}
			from := index.Index(rng.Uint64N(answered))
			b, next, err := s.Read(p, from, from+50, 4000, nil)
			if errors.Is(err, store.ErrDamaged) {
				return // until it is repaired
			}
			if err != nil || next <= from {
				t.Errorf("partition %d from %d of %d: next %d, %v", n, from, answered, next, err)
				return
			}
			list := split(t, b)
			for i, body := range list {
				if want := fmt.Sprint(int(next) - len(list) + i); body != want {
					t.Errorf("partition %d: message %s is %q", n, want, body)
					return
				}
			}
		})
	}
	number, numbers := uint32(0), atomic.Uint32{} // end records
	until(func() {
		end := make(chan error, 1)
		err := s.AppendRecord(journal.KindEnd, binary.LittleEndian.AppendUint32(nil, number), func(err error) { end <- err })
		switch {
		case errors.Is(err, journal.ErrBusy):
			err = s.WaitRoom(t.Context())
		case err == nil:
			if err = <-end; err == nil {
				number++
				numbers.Store(number)
			}
		}
		if err != nil {
			t.Error(err)
		}
	})
	until(func() {
		if err := s.Checkpoint(); err != nil && !strings.Contains(err.Error(), ".index") {
			t.Errorf("checkpoint: %v", err)
		}
	})
	until(func() {
		for n := range 4 {
			if i, err := s.Seek(partitionOfTopic(topic, n), time.Now().Add(-time.Second).UnixNano()); err != nil && !errors.Is(err, store.ErrDamaged) || uint64(i) > ends[n].Load()+7 {
				t.Errorf("seek: %d, %v", i, err)
			}
		}
	})
	rng := rand.New(rand.NewPCG(uint64(r.Int63()), 9))
	for round := range rounds {
		for range 40 {
			mine()
		}
		if t.Failed() {
			break
		}
		if round%2 == 1 {
			if runs := s.index.Runs(); len(runs) > 0 {
				s.background.repair(runs[r.Intn(len(runs))]) // a sound one: it must come out the same
			}
		}
		var before [4]uint64
		for n := range before {
			before[n] = ends[n].Load()
		}
		least := numbers.Load()
		clone := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50 * (round % 3), RNG: rng})
		co := options(clone)
		table := &counter{}
		co.Tables = []store.Table{table}
		c := mustOpen(t, co)
		if n := table.seen.Load(); n < least || n != table.next.Load() {
			t.Fatalf("round %d: %d end records up to number %d, %d were answered", round, n, table.next.Load(), least)
		}
		for n, least := range before {
			p := partitionOfTopic(topic, n)
			_, end, err := c.Bounds(p)
			if err != nil || uint64(end) < least {
				t.Fatalf("round %d: partition %d ends at %d, %v, %d were answered", round, n, end, err, least)
			}
			list, _ := bodies(t, c, p, 0, end)
			for i, body := range list {
				if body != fmt.Sprint(i) {
					t.Fatalf("round %d: partition %d: message %d is %q", round, n, i, body)
				}
			}
		}
		mustClose(t, c)
	}
	close(stop)
	wg.Wait()
	for n := range 4 {
		if first, end, err := s.Bounds(partitionOfTopic(topic, n)); first != 0 || uint64(end) != ends[n].Load() || err != nil {
			t.Fatalf("partition %d: [%d, %d), %v, want %d", n, first, end, err, ends[n].Load())
		}
	}
	mustClose(t, s)
	t.Logf("%d messages, %d checkpoints, %d repairs", ends[0].Load()+ends[1].Load()+ends[2].Load()+ends[3].Load(), s.Metrics().Checkpoints, s.Metrics().Repairs)
}
