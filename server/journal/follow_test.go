package journal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

var otherStore = [16]byte{9, 9, 9}

// followOptions are those of a journal that follows one with testOptions.
func followOptions(fsys vfs.FS) Options {
	o := testOptions(fsys)
	o.StoreID, o.Follow, o.Dir = otherStore, true, "/data/slave"
	return o
}

// copyAll copies what master has written to slave, n bytes at once.
func copyAll(master, slave *Journal, n int) error {
	buf := make([]byte, n)
	for {
		from := slave.Written()
		got, err := master.ReadRaw(from, buf)
		if err != nil || got == 0 {
			return err
		}
		for {
			err = slave.CopyRecords(from, buf[:got], master.opts.StoreID)
			if !errors.Is(err, ErrBusy) {
				break
			}
			if err := slave.WaitRoom(context.Background()); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
	}
}

// replicaStub is a Replica that does as told.
type replicaStub struct {
	written func(from Position, b []byte)
	wait    func(end Position) error
	inSync  bool
	copied  Position
}

func (r *replicaStub) Written(from Position, b []byte) {
	if r.written != nil {
		r.written(from, b)
	}
}

func (r *replicaStub) Wait(end Position) error {
	if r.wait != nil {
		return r.wait(end)
	}
	return nil
}
func (r *replicaStub) InSync() bool     { return r.inSync }
func (r *replicaStub) Copied() Position { return r.copied }

// TestFollowAndLead: a journal copies another one, shows what is committed and no more, reopens with all that was synced, leads, and
// takes appends that are committed when its Replica says so.
func TestFollowAndLead(t *testing.T) {
	disk := vfs.NewCrashableMem()
	s := sender{j: mustOpen(t, testOptions(disk))}
	master := s.j
	for range 60 {
		s.mustSend(t, 3000, 50)
	}
	var told []Position
	o := followOptions(disk)
	o.OnCommitted = func(p Position) { told = append(told, p) }
	slave := mustOpen(t, o)
	if err := slave.Append(&Append{Entries: []Entry{{Kind: KindMessages}}}); !errors.Is(err, ErrFollows) {
		t.Errorf("append to a journal that follows: %v", err)
	}
	if _, err := readAll(slave, 0); err != nil {
		t.Fatal(err)
	}
	if err := copyAll(master, slave, 10000); err != nil {
		t.Fatal(err)
	}
	if m, err := readAll(slave, 0); err != nil || m.some {
		t.Fatalf("%d messages are read before anything is committed: %v", m.next, err)
	}
	m, err := readAll(master, 0)
	if err != nil {
		t.Fatal(err)
	}
	half := m.records[len(m.records)/2]
	slave.SetCommitted(half.Position + 8) // within a record: its begin
	if got := slave.Committed(); got != half.Position || len(told) != 1 || told[0] != got {
		t.Errorf("committed %d, told %d, want %d", got, told, half.Position)
	}
	if m, err := readAll(slave, 0); err != nil || len(m.records) == 0 || m.records[len(m.records)-1].End() != half.Position {
		t.Errorf("read %d records: %v", len(m.records), err)
	}
	slave.SetCommitted(1 << 60)
	if slave.Committed() != master.End() || slave.Written() != master.End() || slave.Synced() >= master.End() {
		t.Errorf("committed %d, written %d, synced %d, want the end %d", slave.Committed(), slave.Written(), slave.Synced(), master.End())
	}
	if err := slave.Sync(); err != nil || slave.Synced() != master.End() {
		t.Errorf("sync: %v, synced %d", err, slave.Synced())
	}
	mustClose(t, slave)
	slave, m, err = reopen(o)
	if err != nil || m.next != s.next || slave.Committed() != master.End() {
		t.Fatalf("reopened with %d messages, committed %d: %v", m.next, slave.Committed(), err)
	}
	if got, want := fmt.Sprint(slave.History()), fmt.Sprint(master.History()); got != want {
		t.Errorf("history %v, want %v", got, want)
	}
	mustClose(t, master)

	end := slave.End()
	r := &replicaStub{}
	var offered []byte
	r.written = func(from Position, b []byte) {
		if from != end+Position(len(offered)) {
			t.Errorf("offered from %d, want %d", from, end+Position(len(offered)))
		}
		offered = append(offered, b...)
	}
	if err := slave.Lead(MakeEpoch(1, 1), false, r); !errors.Is(err, ErrTerm) {
		t.Errorf("lead in an old epoch: %v", err)
	}
	if err := slave.Lead(MakeEpoch(2, 1), true, r); err != nil {
		t.Fatal(err)
	}
	if slave.Committed() != end || slave.Synced() != end+40 || len(offered) != 40 {
		t.Errorf("committed %d, synced %d, want %d and 40 more; %d bytes offered", slave.Committed(), slave.Synced(), end, len(offered))
	}
	slave.SetCommitted(slave.Synced())
	if slave.Committed() != end+40 {
		t.Errorf("committed %d", slave.Committed())
	}
	h := slave.History()
	if last := h[len(h)-1]; last != (EpochStart{MakeEpoch(2, 1), end, true}) {
		t.Errorf("history ends with %v", last)
	}
	s.j = slave
	r.wait = func(at Position) error {
		if slave.Synced() != at || slave.Committed() == at {
			t.Errorf("waits for %d, synced %d, committed %d", at, slave.Synced(), slave.Committed())
		}
		return nil
	}
	s.mustSend(t, 100)
	if slave.Committed() != slave.Synced() {
		t.Errorf("committed %d, synced %d", slave.Committed(), slave.Synced())
	}
	a := &Append{Replicated: true, Entries: []Entry{{Kind: KindMessages, Payload: payload(s.next, 10)}}}
	if err := slave.Append(a); !errors.Is(err, ErrNotReplicated) {
		t.Errorf("replicated append without a replica: %v", err)
	}
	r.inSync = true
	for _, short := range []bool{true, false} {
		done := make(chan error, 1)
		a.Done = func(_ *Append, err error) { done <- err }
		if err := slave.Append(a); err != nil {
			t.Fatal(err)
		}
		if !short {
			r.copied = slave.End()
		}
		slave.Kick()
		if err := <-done; err != nil || a.Short != short {
			t.Errorf("replicated append: %v, short %v, want %v", err, a.Short, short)
		}
	}
	cause := errors.New("another is named")
	r.wait = func(Position) error { return cause }
	if err := s.send(10); !errors.Is(err, ErrUnknown) || !errors.Is(err, ErrFenced) || !errors.Is(err, cause) || errors.Is(err, ErrFailed) {
		t.Errorf("append of one that is fenced: %v", err)
	}
	if err := s.send(10); !errors.Is(err, ErrFenced) || errors.Is(err, ErrUnknown) {
		t.Errorf("append after that: %v", err)
	}
	if err := slave.Close(); !errors.Is(err, ErrFenced) {
		t.Errorf("close: %v", err)
	}
}

// TestCutTo: what is beyond a cut is set aside, can be dumped, and is gone for good; the journal follows another one from there on.
func TestCutTo(t *testing.T) {
	disk := vfs.NewCrashableMem()
	s := sender{j: mustOpen(t, testOptions(disk))}
	for range 60 {
		s.mustSend(t, 3000, 50)
	}
	slave := mustOpen(t, followOptions(disk))
	if err := copyAll(s.j, slave, 10000); err != nil {
		t.Fatal(err)
	}
	m, err := readAll(s.j, 0)
	if err != nil {
		t.Fatal(err)
	}
	cut := m.records[20]
	slave.SetCommitted(cut.Position)
	reader := slave.NewReader(0)
	defer reader.Close()
	end := slave.End()
	if _, err := slave.CutTo(cut.Position + 8); err == nil {
		t.Error("cut in the middle of a record")
	}
	path, err := slave.CutTo(cut.Position)
	if err != nil {
		t.Fatal(err)
	}
	if slave.End() != cut.Position || slave.Synced() != cut.Position || slave.Committed() != cut.Position {
		t.Errorf("end %d, synced %d, committed %d, want %d", slave.End(), slave.Synced(), slave.Committed(), cut.Position)
	}
	n := 20
	if err := Dump(disk, path, 0, func(r Record) error {
		if want := m.records[n]; r.Position != want.Position || r.Kind != want.Kind || r.Stored != want.Stored {
			return fmt.Errorf("record %d set aside is %+v, want %+v", n, r, want)
		}
		n++
		return nil
	}); err != nil || n != len(m.records) {
		t.Errorf("%d records of %d are set aside: %v", n, len(m.records), err)
	}
	if a := slave.SetAside(); len(a) != 1 || a[0].From != cut.Position || a[0].To != end || a[0].Epoch != MakeEpoch(1, 1) {
		t.Errorf("set aside: %+v", a)
	}
	if err := s.j.Truncate(cut.Position); err != nil {
		t.Fatal(err)
	}
	s.next = 20 - 1
	s.mustSend(t, 4000)
	if err := copyAll(s.j, slave, 10000); err != nil {
		t.Fatal(err)
	}
	slave.SetCommitted(slave.End())
	got := 0
	for {
		if _, err := reader.Next(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		got++
	}
	if got != 22 {
		t.Errorf("the reader got %d records, want 22", got)
	}
	if got, want := fmt.Sprint(slave.History()), fmt.Sprint(s.j.History()); got != want {
		t.Errorf("history %v, want %v", got, want)
	}
	mustClose(t, slave)
	slave = mustOpen(t, followOptions(disk))
	if got, want := fmt.Sprint(slave.History()), fmt.Sprint(s.j.History()); got != want {
		t.Errorf("history after reopening %v, want %v", got, want)
	}
	if len(slave.SetAside()) != 1 || slave.End() != s.j.End() {
		t.Errorf("reopened: end %d, want %d, aside %v", slave.End(), s.j.End(), slave.SetAside())
	}
	mustClose(t, slave)
	mustClose(t, s.j)
}

// TestResent: what became of what was set aside is kept, a damaged note is as none, and both files go together.
func TestResent(t *testing.T) {
	disk := vfs.NewCrashableMem()
	o := followOptions(disk)
	s := sender{j: mustOpen(t, testOptions(disk))}
	s.mustSend(t, 300, 50)
	slave := mustOpen(t, o)
	if err := copyAll(s.j, slave, 10000); err != nil {
		t.Fatal(err)
	}
	if _, err := slave.CutTo(0); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s.j)
	look := func(fsys vfs.FS) Aside {
		t.Helper()
		list, err := ListAside(fsys, o.Dir)
		if err != nil || len(list) != 1 {
			t.Fatalf("%v, %v", list, err)
		}
		return list[0]
	}
	a := look(disk)
	if a.Resent != nil {
		t.Errorf("noted is %+v", a.Resent)
	}
	want := Resent{Next: 64, Done: true, Sent: 2, Skipped: 1, Why: "why"}
	for _, r := range []Resent{{Next: 32}, want} {
		if err := NoteResent(disk, o.Dir, a.Name, r); err != nil {
			t.Fatal(err)
		}
	}
	if r := look(disk.CrashClone(vfs.CrashCloneCfg{})).Resent; r == nil || *r != want {
		t.Errorf("after a crash %+v, want %+v", r, want)
	}
	f, err := disk.OpenReadWrite(resentPath(disk, o.Dir, a.Name), vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("x"), int64(len(resentFirst)+3)); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if r := look(disk).Resent; r != nil {
		t.Errorf("damaged, it says %+v", r)
	}
	if err := RemoveAside(disk, o.Dir, a.Name); err != nil {
		t.Fatal(err)
	}
	if names, err := disk.List(disk.PathJoin(o.Dir, divergedDir)); err != nil || len(names) != 0 {
		t.Errorf("left are %v, %v", names, err)
	}
	mustClose(t, slave)
}
