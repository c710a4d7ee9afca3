package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/journal/journaltest"
)

// stream is all that a journal holds, as it would be copied.
type stream struct {
	store   [16]byte
	raw     []byte
	records []Record // payloads lie in raw
}

func streamOf(t testing.TB, j *Journal) stream {
	s := stream{store: j.opts.StoreID}
	buf := make([]byte, 1<<20)
	for pos := j.Begin(); ; {
		n, err := j.ReadRaw(pos, buf)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			break
		}
		s.raw = append(s.raw, buf[:n]...)
		pos += Position(n)
	}
	for off := 0; off < len(s.raw); {
		r := fields(s.raw[off:][:recordHeaderBytes])
		n := int(uint32(s.raw[off]) | uint32(s.raw[off+1])<<8 | uint32(s.raw[off+2])<<16 | uint32(s.raw[off+3])<<24)
		r.Payload = s.raw[off+recordHeaderBytes : off+n]
		s.records = append(s.records, r)
		off += align8(n)
	}
	return s
}

func (s *stream) end() Position { return Position(len(s.raw)) }

// twoMasters returns what two masters hold, each in more than one segment: the same up to a position, and then each its own.
func twoMasters(t testing.TB, rng *rand.Rand) (a, b stream, common Position) {
	disk := vfs.NewCrashableMem()
	s := sender{}
	for life := range int64(3) {
		s.j = mustOpen(t, testOptions(disk))
		for n := 0; n < 12 || s.j.End() < Position((life+1)*segmentBytesFloor*2/5); n++ {
			s.mustSend(t, 8+rng.IntN(100)+rng.IntN(2)*rng.IntN(9000), 20)
		}
		mustClose(t, s.j)
	}
	o := testOptions(disk)
	o.Follow = true
	s.j = mustOpen(t, o)
	a = streamOf(t, s.j)
	mustClose(t, s.j)
	common = a.records[len(a.records)*3/5].Position
	o.StoreID, o.Dir = [16]byte{7}, "/data/second"
	j := mustOpen(t, o)
	if err := feed(j, &a, 0, common); err != nil {
		t.Fatal(err)
	}
	if err := j.Lead(MakeEpoch(2, 9), false, nil); err != nil {
		t.Fatal(err)
	}
	s.j = j
	for range 15 {
		s.mustSend(t, 8+rng.IntN(9000))
	}
	b = streamOf(t, j)
	mustClose(t, j)
	return a, b, common
}

// feed copies [from, to) of s to j.
func feed(j *Journal, s *stream, from, to Position) error {
	b := bytes.Clone(s.raw[from:to])
	for {
		err := j.CopyRecords(from, b, s.store)
		if !errors.Is(err, ErrBusy) {
			return err
		}
		if err := j.WaitRoom(context.Background()); err != nil {
			return err
		}
	}
}

// followed is what a journal that follows may be found to hold: a prefix of records that ends within [least, most], from begin or before on.
type followed struct {
	begin, least, most Position
	committed          Position // it was told of no more
	records            []Record
	forced             bool // or whatever else behind the last of records
}

// check opens what is there.
func (f followed) check(disk vfs.FS, o Options) error {
	o.FS = disk
	report, err := VerifyOf(disk, o.Dir, &o.StoreID, 0, nil)
	if err == nil && report.Damage != nil {
		err = report.Damage
	}
	if err != nil && f.least > 0 {
		return fmt.Errorf("verify: %w", err)
	}
	var shown Position
	o.Recovered = func(r Record) error { shown = r.End(); return nil }
	j, err := Open(o)
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer j.Close()
	if end := j.End(); end < f.least || end > f.most || j.Begin() > f.begin || j.Synced() != end {
		return fmt.Errorf("holds [%d, %d), synced %d, want [<=%d, %d..%d)", j.Begin(), end, j.Synced(), f.begin, f.least, f.most)
	}
	if c := j.Committed(); c > f.committed && c > j.Begin() || shown > c {
		return fmt.Errorf("committed %d, shown up to %d, it was told of %d", c, shown, f.committed)
	}
	if h := j.Holes(); len(h) > 0 {
		return fmt.Errorf("holes %v", h)
	}
	return f.compare(j)
}

// compare reads all that j holds.
func (f followed) compare(j *Journal) error {
	buf := make([]byte, 1<<20)
	var at []Record
	i := 0
	for pos := j.Begin(); pos < j.End(); {
		n, err := j.ReadRaw(pos, buf)
		if err != nil || n == 0 {
			return fmt.Errorf("read at %d of %d: %d, %w", pos, j.End(), n, err)
		}
		for off := 0; off < n; {
			length, _ := recordLength(buf[off:], pos, 1<<20)
			r := fields(buf[off : off+length])
			at = append(at, Record{Epoch: r.Epoch, Position: pos})
			for i < len(f.records) && f.records[i].Position < pos {
				i++
			}
			if i == len(f.records) {
				if !f.forced {
					return fmt.Errorf("%v at %d, where nothing was copied", r.Kind, pos)
				}
			} else if w := f.records[i]; w.Position != pos || w.Kind != r.Kind || w.Flags != r.Flags || w.Epoch != r.Epoch || w.Stored != r.Stored || !bytes.Equal(w.Payload, r.Payload) {
				return fmt.Errorf("at %d: %v of %v, want %v of %v at %d", pos, r.Kind, r.Epoch, w.Kind, w.Epoch, w.Position)
			}
			off += align8(length)
			pos += Position(align8(length))
		}
	}
	// The history is that of the records.
	var want epochs
	for _, r := range at {
		want.add(r)
	}
	got := j.History()
	for i := range got {
		got[i].Forced = false
		if i == 0 && len(want) > 0 {
			got[0].Position = max(got[0].Position, want[0].Position)
		}
	}
	if len(want) == 0 && len(got) == 1 && got[0].Epoch == j.Epoch() {
		return nil // no record is left, and the epoch of what was trimmed is known
	}
	if !slices.Equal(got, []EpochStart(want)) {
		return fmt.Errorf("history %v, want %v", got, want)
	}
	return nil
}

// followLife is a life of a journal that follows two masters one after the other, and leads in the end.
type followLife struct {
	t      testing.TB
	a, b   stream
	common Position
	mu     sync.Mutex
	now    followed
}

func (l *followLife) set(change func(f *followed)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(&l.now)
}

func (l *followLife) get() followed {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now
}

// copy copies s up to a position, in pieces, with a Sync and a committed position now and then; and closes and opens in the middle if reopen says
// so. It returns the journal as it is then.
func (l *followLife) copy(j *Journal, s *stream, to Position, rng *rand.Rand, reopen bool) (*Journal, error) {
	l.set(func(f *followed) { f.records = s.records })
	pieces := 0
	for pos := j.Written(); pos < to; {
		end := pos
		for n := 1 + rng.IntN(6); n > 0 && end < to; n-- {
			i, _ := slices.BinarySearchFunc(s.records, end, func(r Record, p Position) int { return int(int64(r.Position) - int64(p)) })
			end = s.records[i].End()
		}
		l.set(func(f *followed) { f.most = end })
		if err := feed(j, s, pos, end); err != nil {
			return j, err
		}
		pos = end
		switch rng.IntN(5) {
		case 0:
			if err := j.Sync(); err != nil {
				return j, err
			}
			l.set(func(f *followed) { f.least = pos })
		case 1:
			to := min(pos, l.common)
			l.set(func(f *followed) { f.committed = max(f.committed, to) })
			j.SetCommitted(to)
		case 2:
			list := *j.list.Load()
			if len(list) < 2 || list[1].base > j.Committed() || rng.IntN(2) == 0 {
				break
			}
			l.set(func(f *followed) { f.begin = list[1].base })
			if err := j.Trim(list[1].base); err != nil {
				return j, err
			}
		}
		if pieces++; reopen && pieces == 8 {
			err := j.Close()
			if err == nil {
				l.set(func(f *followed) { f.least = pos })
			}
			next, oerr := Open(j.opts)
			if err != nil || oerr != nil {
				if next != nil {
					j = next
				}
				return j, errors.Join(err, oerr)
			}
			j = next
		}
	}
	return j, nil
}

// run lives until something fails.
func (l *followLife) run(o Options, seed uint64) (err error) {
	rng := rand.New(rand.NewPCG(seed, 5))
	j, err := Open(o)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := j.Close(); err == nil {
			err = cerr
		}
	}()
	if j, err = l.copy(j, &l.a, l.a.end(), rng, true); err != nil {
		return err
	}
	// Whether the cut was begun is not known when it fails.
	l.set(func(f *followed) { f.least = min(f.least, l.common) })
	if _, err := j.CutTo(l.common); err != nil {
		return err
	}
	l.set(func(f *followed) { f.least, f.most = l.common, l.common })
	if j, err = l.copy(j, &l.b, l.b.end(), rng, false); err != nil {
		return err
	}
	if list := *j.list.Load(); len(list) > 1 { // all but one may have been trimmed on the way
		begin := list[1].base
		l.set(func(f *followed) { f.begin = begin })
		if err := j.Trim(begin); err != nil {
			return err
		}
	}
	l.set(func(f *followed) { f.most, f.forced, f.committed = 1<<62, true, 1<<62 })
	if err := j.Lead(MakeEpoch(3, 1), true, nil); err != nil {
		return err
	}
	l.set(func(f *followed) { f.least = j.Synced() })
	for range 3 {
		done := make(chan error, 1)
		a := &Append{Entries: []Entry{{Kind: KindMessages, Payload: payload(1, 3000)}}, Done: func(_ *Append, err error) { done <- err }}
		for {
			err := j.Append(a)
			if errors.Is(err, ErrBusy) {
				err = j.WaitRoom(context.Background())
			} else if err == nil {
				break
			}
			if err != nil {
				return err
			}
		}
		j.Kick()
		if err := <-done; err != nil {
			return err
		}
		l.set(func(f *followed) { f.least = j.Synced() })
	}
	return nil
}

// TestFollowCrash: whatever the moment of a crash, a journal that follows holds a prefix of what was copied, with all that was synced, and
// says nothing was damaged. Of some it also crashes the recovery, after each of its operations.
func TestFollowCrash(t *testing.T) {
	eachDirs(t, func(t *testing.T, eager bool) {
		for range campaign() {
			rng := newRand(t)
			l := &followLife{t: t}
			l.a, l.b, l.common = twoMasters(t, rng)
			fs := journaltest.New(nil)
			if eager {
				fs.EagerDirs()
			}
			every, nested := 1, 29
			if raceEnabled {
				every, nested = 23, 31
			}
			ops, checked := 0, 0
			o := followOptions(fs)
			fs.SetAfter(func(op journaltest.Op) {
				ops++
				if ops%every != 0 || t.Failed() {
					return
				}
				f := l.get()
				for _, percent := range []int{0, 50, 100} {
					disk := fs.Crash(percent, rng)
					checked++
					if checked%nested == 0 {
						crashRecovery(t, disk.CrashClone(vfs.CrashCloneCfg{}), o, f, rng)
					}
					if err := f.check(disk, o); err != nil {
						t.Errorf("crash with %d %% of the unsynced after operation %d, %v: %v", percent, ops, op, err)
						return
					}
				}
			})
			if err := l.run(o, rng.Uint64()); err != nil {
				t.Fatal(err)
			}
			fs.SetAfter(nil)
			t.Logf("%d operations, %d crashes", ops, checked)
		}
	})
}

func crashRecovery(t *testing.T, disk *vfs.MemFS, o Options, f followed, rng *rand.Rand) {
	inner := journaltest.New(disk)
	inner.SetAfter(func(op journaltest.Op) {
		if t.Failed() {
			return
		}
		for _, percent := range []int{0, 50, 100} {
			if err := f.check(inner.Crash(percent, rng), o); err != nil {
				t.Errorf("crash (%d %%) of the recovery after %v: %v", percent, op, err)
				return
			}
		}
	})
	o.FS = inner
	j, err := Open(o)
	inner.SetAfter(nil)
	if err != nil {
		t.Errorf("recovery: %v", err)
		return
	}
	_ = j.Close()
}

// TestFollowFaults injects one fault at each call of a life, of each kind. Whatever failed, the next process finds a prefix of what was copied
// with all that was synced, and so does one after a power loss that follows at once.
func TestFollowFaults(t *testing.T) {
	rng := newRand(t)
	l := &followLife{t: t}
	l.a, l.b, l.common = twoMasters(t, rng)
	seed := rng.Uint64()
	for _, kind := range faultKinds {
		t.Run(kind.name, func(t *testing.T) {
			injected := 0
			from, step := rng.IntN(7), 7
			if raceEnabled {
				from, step = rng.IntN(61), 61
			}
			for k := 1 + from; ; k += step {
				fs := journaltest.New(nil)
				l.now = followed{}
				var mu sync.Mutex
				calls, hit := 0, journaltest.Op{}
				fs.SetBefore(func(op journaltest.Op) journaltest.Fault {
					mu.Lock()
					defer mu.Unlock()
					if kind.calls != nil && !slices.Contains(kind.calls, op.Call) {
						return journaltest.Fault{}
					}
					if calls++; calls == k {
						hit = op
						return kind.fault
					}
					return journaltest.Fault{}
				})
				o := followOptions(fs)
				err := l.run(o, seed)
				fs.SetBefore(nil)
				if hit.N == 0 {
					if err != nil {
						t.Fatal(err)
					}
					break
				}
				injected++
				f := l.get()
				for _, percent := range []int{0, 50} {
					if err := f.check(fs.Crash(percent, newRandQuiet(uint64(k))), o); err != nil {
						t.Fatalf("call %d, %v (%v): power loss with %d %%: %v\n%s", k, hit, err, percent, err, dump(fs))
					}
				}
				if err := f.check(fs, o); err != nil {
					t.Fatalf("call %d, %v: next life: %v", k, hit, err)
				}
			}
			if injected < 2 && !raceEnabled {
				t.Errorf("only %d faults were injected", injected)
			}
			t.Logf("%d faults", injected)
		})
	}
}
