package journal

import (
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/journal/journaltest"
)

// control appends one control record and waits for it.
func control(j *Journal, size int) error {
	done := make(chan error, 1)
	err := j.Append(&Append{Control: true, Entries: []Entry{{Kind: KindEnd, Payload: make([]byte, size)}}, Done: func(_ *Append, err error) { done <- err }})
	if err != nil {
		return err
	}
	j.Kick()
	return <-done
}

// TestStartInReserve: a life that begins on a full disk behind a segment that is full to the end goes on in the reserve.
func TestStartInReserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := journaltest.New(nil)
		j := mustOpen(t, testOptions(fs))
		synctest.Wait()
		fs.SetLimit(fs.Used())
		s := sender{j: j}
		for n := 4000; n >= 0; { // larger ones first, then what still fits
			if err := s.send(n); errors.Is(err, ErrBusy) {
				synctest.Wait()
			} else if err != nil {
				n -= 8
			}
		}
		disk := fs.Crash(0, nil)
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		full := journaltest.New(disk)
		full.SetBefore(func(op journaltest.Op) journaltest.Fault {
			if op.Call == journaltest.Create {
				return journaltest.Fault{Err: syscall.ENOSPC}
			}
			return journaltest.Fault{}
		})
		next := mustOpen(t, testOptions(full))
		if m := next.Metrics(); !m.ReserveInUse {
			t.Errorf("%+v", m)
		}
		if err := control(next, 8); err != nil {
			t.Error(err)
		}
		full.SetBefore(nil)
		if err := next.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestLastBytes: control records never take the last bytes of the reserve, so that no-ops go on, and lives that begin on the full disk, as
// many as there is room for epochs.
func TestLastBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := journaltest.New(nil)
		j := mustOpen(t, testOptions(fs))
		synctest.Wait()
		fs.SetLimit(fs.Used())
		var err error
		for n := 4000; n >= 0; { // larger ones first, then what still fits
			if err = control(j, n); errors.Is(err, ErrBusy) { // another segment is tried for
				synctest.Wait()
			} else if err != nil {
				n -= 8
			}
		}
		if !errors.Is(err, ErrNoSpace) {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		noop := &Append{Control: true, Entries: []Entry{{Kind: KindNoop}}, Done: func(_ *Append, err error) { done <- err }}
		if err := j.Append(noop); err != nil {
			t.Fatalf("a no-op: %v", err)
		}
		j.Kick()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		for range 10 {
			if err := j.Close(); err != nil {
				t.Fatal(err)
			}
			j = mustOpen(t, testOptions(fs))
			synctest.Wait()
			err := control(j, 8)
			for ; errors.Is(err, ErrBusy); err = control(j, 8) {
				synctest.Wait()
			}
			if !errors.Is(err, ErrNoSpace) {
				t.Fatalf("a control record in the next life: %v, want ErrNoSpace", err)
			}
		}
		fs.SetLimit(0)
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestReserve: on a full disk ordinary appends are refused, control ones go on in the reserve, and in it only; it is told once. When there is space
// again the reserve is made first, then a segment, and ordinary appends go on by themselves. All of it is there in the next life.
func TestReserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := journaltest.New(nil)
		j := mustOpen(t, testOptions(fs))
		synctest.Wait()
		if b := j.Bytes(); b.Reserve != segmentBytesFloor || b.Spares != segmentBytesFloor || b.Segments != segmentBytesFloor || b.Total() != 3*segmentBytesFloor {
			t.Errorf("bytes %+v", b)
		}
		fs.SetLimit(fs.Used())
		s := sender{j: j}
		var err error
		for err == nil {
			err = s.send(5000)
		}
		if !errors.Is(err, ErrNoSpace) || j.Metrics().ReserveInUse {
			t.Fatalf("append: %v, want ErrNoSpace; %+v", err, j.Metrics())
		}
		n := 0
		var disk *vfs.MemFS
		for ; ; n++ {
			if n == 10 {
				disk = fs.Crash(0, nil)
			}
			if err = control(j, 1000); err != nil {
				break
			}
			if err := s.send(5000); !errors.Is(err, ErrNoSpace) {
				t.Fatalf("append after %d control records: %v, want ErrNoSpace", n, err)
			}
			if err := j.WaitRoom(t.Context()); !errors.Is(err, ErrNoSpace) {
				t.Fatalf("WaitRoom after %d control records: %v, want ErrNoSpace", n, err)
			}
		}
		if !errors.Is(err, ErrNoSpace) || n < 55 {
			t.Errorf("after %d control records: %v, want ErrNoSpace when the reserve is full", n, err)
		}
		// In the reserve, what would fit is refused too if it is not control.
		if err := s.send(8); !errors.Is(err, ErrNoSpace) {
			t.Errorf("a small append in the reserve: %v", err)
		}
		if m := j.Metrics(); !m.ReserveInUse || j.Bytes().Reserve != 0 || j.Err() != nil {
			t.Errorf("%+v, %v", m, j.Err())
		}
		// A life that begins on the full disk knows that it goes on in the reserve.
		full := journaltest.New(disk)
		full.SetBefore(func(op journaltest.Op) journaltest.Fault {
			if op.Call == journaltest.Create {
				return journaltest.Fault{Err: syscall.ENOSPC}
			}
			return journaltest.Fault{}
		})
		next := mustOpen(t, testOptions(full))
		synctest.Wait()
		again := sender{j: next, next: s.next}
		if err := again.send(8); !errors.Is(err, ErrNoSpace) {
			t.Errorf("in the next life: %v, want ErrNoSpace", err)
		}
		if err := control(next, 8); err != nil {
			t.Errorf("control in the next life: %v", err)
		}
		full.SetBefore(nil)
		time.Sleep(2 * time.Second)
		again.mustSend(t, 5000)
		mustClose(t, next)

		fs.TakeOps()
		fs.SetLimit(0)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		var made []string
		for _, op := range fs.TakeOps() {
			if op.Call == journaltest.Rename {
				made = append(made, fs.PathBase(op.To))
			}
		}
		if len(made) < 2 || made[0] != reserveName || !strings.HasPrefix(made[1], sparePrefix) {
			t.Errorf("made %v, want the reserve first", made)
		}
		if j.Metrics().ReserveInUse {
			t.Error("the reserve is still in use")
		}
		s.mustSend(t, 5000)
		if err := control(j, 100); err != nil {
			t.Error(err)
		}
		mustClose(t, j)
		if err := (bounds{least: s.next, most: s.next}).check(fs.Crash(0, nil)); err != nil {
			t.Error(err)
		}
	})
}

// TestNoSpaceAtEachStep runs out of space at each call with which segments are prepared, for a while: no append fails but with
// ErrNoSpace, control ones go on once the reserve was made, and when there is space all go on without being told to.
func TestNoSpaceAtEachStep(t *testing.T) {
	steps := 0
	from, by := sample(t, 4)
	for k := 1 + from; ; k += by {
		hit := false
		synctest.Test(t, func(t *testing.T) {
			fs := journaltest.New(nil)
			j := mustOpen(t, testOptions(fs))
			synctest.Wait() // the reserve is there
			calls, full := 0, false
			fs.SetBefore(func(op journaltest.Op) journaltest.Fault {
				prepares := strings.HasSuffix(op.Path, fillingSuffix) && op.Call != journaltest.Remove
				if prepares {
					calls++
					full = full || calls == k
				}
				if !full || !prepares {
					return journaltest.Fault{}
				}
				hit = true
				return journaltest.Fault{Err: syscall.ENOSPC}
			})
			s := sender{j: j}
			refused, late := 0, false
			for round := range 60 {
				synctest.Wait()
				late = late || round == 30 && !hit
				if err := s.send(5000); errors.Is(err, ErrNoSpace) {
					refused++
				} else if err != nil {
					t.Fatalf("step %d: %v", k, err)
				}
				if err := control(j, 200); err != nil && !(errors.Is(err, ErrBusy) && !hit) {
					t.Fatalf("step %d: control: %v", k, err)
				}
			}
			if hit && !late && refused == 0 {
				t.Errorf("step %d: nothing was refused", k)
			}
			fs.SetBefore(nil)
			time.Sleep(3 * time.Second)
			for range 20 {
				synctest.Wait()
				s.mustSend(t, 5000)
			}
			if m := j.Metrics(); m.ReserveInUse || j.Bytes().Reserve == 0 {
				t.Errorf("step %d: %+v, %+v", k, m, j.Bytes())
			}
			mustClose(t, j)
			if err := (bounds{least: s.next, most: s.next}).check(fs.Crash(0, nil)); err != nil {
				t.Error(err)
			}
		})
		if !hit || t.Failed() {
			break
		}
		steps++
	}
	if steps < 8/by {
		t.Errorf("only %d steps", steps)
	}
	t.Logf("%d steps", steps)
}

// TestNoReserve: with none, control appends are refused as others are.
func TestNoReserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := journaltest.New(nil)
		o := testOptions(fs)
		o.ReserveBytes = -1
		j := mustOpen(t, o)
		synctest.Wait()
		fs.SetLimit(fs.Used())
		s := sender{j: j}
		for s.send(5000) == nil {
		}
		for range 10 {
			if err := control(j, 1000); err != nil {
				if !errors.Is(err, ErrNoSpace) {
					t.Error(err)
				}
				break
			}
		}
		if err := control(j, 6000); !errors.Is(err, ErrNoSpace) {
			t.Errorf("control: %v, want ErrNoSpace", err)
		}
		mustClose(t, j)
		names, _ := fs.List(testDir)
		if slices.Contains(names, reserveName) {
			t.Error("there is a reserve")
		}
	})
}

// TestReadOnly: a read-only file system is named as such, at Open; while the journal is open it is a lack of segments, then a failed write.
func TestReadOnly(t *testing.T) {
	fs := journaltest.New(nil)
	readOnly := func(op journaltest.Op) journaltest.Fault {
		if op.Changes() && op.Call != journaltest.SyncDir || op.Call == journaltest.OpenRW {
			return journaltest.Fault{Err: syscall.EROFS}
		}
		return journaltest.Fault{}
	}
	fs.SetBefore(readOnly)
	if _, err := Open(testOptions(fs)); !errors.Is(err, syscall.EROFS) || !strings.Contains(err.Error(), "read-only file system") {
		t.Errorf("new: %v", err)
	}
	fs.SetBefore(nil)
	s := sender{j: mustOpen(t, testOptions(fs))}
	s.mustSend(t, 100)
	mustClose(t, s.j)
	fs.SetBefore(func(op journaltest.Op) journaltest.Fault {
		if op.Call == journaltest.Mkdir { // it is there
			return journaltest.Fault{}
		}
		return readOnly(op)
	})
	_, err := Open(testOptions(fs))
	if !errors.Is(err, syscall.EROFS) || !strings.Contains(err.Error(), testDir+" lies on a read-only file system") {
		t.Errorf("open: %v", err)
	}
	fs.SetBefore(nil)
	s.j = mustOpen(t, testOptions(fs))
	fs.SetBefore(readOnly)
	if err := s.send(100); !errors.Is(err, ErrUnknown) || !errors.Is(err, syscall.EROFS) {
		t.Errorf("append: %v", err)
	}
	_ = s.j.Close()
}

// TestGatheredInReserve: what BeforeCommit adds and is refused for lack of a segment is asked for again by itself, when the reserve may be used.
func TestGatheredInReserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := journaltest.New(nil)
		o := testOptions(fs)
		waiting, answered := 0, 0
		var j *Journal
		o.BeforeCommit = func() {
			if waiting == 0 {
				return
			}
			a := &Append{Urgent: true, Control: true, Entries: []Entry{{Kind: KindEnd, Payload: make([]byte, 60_000)}}, Done: func(_ *Append, err error) {
				if err == nil {
					answered++
				}
			}}
			if j.Append(a) == nil {
				waiting--
			}
		}
		j = mustOpen(t, o)
		synctest.Wait()
		fs.SetLimit(1)
		s := sender{j: j}
		for j.Metrics().Spares > 0 { // the segment is new then: that no other can be made is not known before one is needed
			s.mustSend(t, 2000)
			synctest.Wait()
		}
		waiting = 1
		j.Kick()
		synctest.Wait()
		if waiting > 0 || answered != 1 || !j.Metrics().ReserveInUse {
			t.Errorf("%d are waiting, %d were answered; %+v", waiting, answered, j.Metrics())
		}
		fs.SetLimit(0)
		mustClose(t, j)
	})
}
