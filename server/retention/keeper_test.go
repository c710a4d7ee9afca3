package retention

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal/journaltest"
	"github.com/jmqio/jmq/server/store"
)

const day = 24 * time.Hour

// minute lets a pass go by.
func (b *bench) minute() { time.Sleep(time.Minute) }

// Messages go when they are too old, not before their slowest group has consumed them; then the segments go.
func TestAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1000)
		b.o.Age = time.Hour
		topic := b.store.create("orders", 2, store.Settings{})
		b.groups.set(topic, "pay", time.Now(), 20, 5)
		b.start()
		defer b.keeper.Close()
		for i := range 20 {
			b.store.produce(topic, i%2, 200, time.Now())
		}
		time.Sleep(59 * time.Minute)
		b.want(topic, 0, 0)
		time.Sleep(2 * time.Minute)
		b.want(topic, 10, 5)
		if m := b.keeper.Metrics(); m.TrimmedAge != 15 || m.Reclaimed != 2000 || m.Errors != 0 {
			t.Errorf("%+v", m)
		}
		b.groups.set(topic, "pay", time.Now(), 20, 20)
		b.minute()
		b.want(topic, 10, 10)
		if n := b.store.trims; n != 3 {
			t.Errorf("%d trims, want 3: nothing is done twice", n)
		}
	})
}

// A topic keeps what its size allows, and of that what its slowest group has not consumed.
func TestSize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1000)
		b.o.Bytes = 1000
		small := b.store.create("small", 2, store.Settings{})
		large := b.store.create("large", 1, store.Settings{RetentionBytes: 5000})
		all := b.store.create("all", 1, store.Settings{RetentionBytes: -1})
		b.groups.set(large, "slow", time.Now(), 40)
		b.start()
		defer b.keeper.Close()
		for i := range 100 {
			b.store.produce(small, i%2, 100, time.Now())
			b.store.produce(large, 0, 100, time.Now())
			b.store.produce(all, 0, 100, time.Now())
		}
		b.minute()
		b.want(small, 45, 45)
		b.want(large, 40)
		b.want(all, 0)
		b.groups.set(large, "slow", time.Now(), 100)
		b.minute()
		b.want(large, 50)
		if m := b.keeper.Metrics(); m.TrimmedSize != 140 {
			t.Errorf("%+v", m)
		}
	})
}

// A group that was not seen for long is told once and then ignored, but not right after a start, not while its topic is paused, and
// not any more when it comes back.
func TestAbandonedGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1000)
		b.o.Age, b.o.AbandonedAfter, b.o.Every = time.Hour, 20*day, 30*time.Second
		topic := b.store.create("orders", 1, store.Settings{PauseConsume: true})
		b.groups.set(topic, "gone", time.Now(), 3)
		b.groups.set(topic, "busy", time.Now(), 8)
		for range 10 {
			b.store.produce(topic, 0, 100, time.Now())
		}
		time.Sleep(21 * day)
		b.groups.set(topic, "busy", time.Now(), 8)
		b.start()
		defer b.keeper.Close()
		time.Sleep(2 * time.Hour)
		b.want(topic, 3) // paused: it counts
		if m := b.keeper.Metrics(); m.Abandoned != 0 {
			t.Errorf("%+v", m)
		}
		b.store.alter("orders", store.Settings{})
		b.minute()
		b.want(topic, 8)
		if m := b.keeper.Metrics(); m.Abandoned != 1 || b.logs.with("WARN", "a group was not seen for long", "group=gone") != 1 {
			t.Errorf("%+v; log:\n%s", m, &b.logs)
		}
		if key := topicKey(&topic); !b.keeper.Abandoned(1, key) || b.keeper.Abandoned(2, key) {
			t.Error("group 1 alone is abandoned")
		}
		b.groups.set(topic, "gone", time.Now(), 3)
		time.Sleep(time.Hour)
		if m := b.keeper.Metrics(); m.Abandoned != 0 || b.logs.with("a group was not seen for long: ") != 1 || b.logs.with("keeps messages from going again") != 1 {
			t.Errorf("%+v; log:\n%s", m, &b.logs)
		}
	})
	synctest.Test(t, func(t *testing.T) { // right after a start
		b := newBench(t, 1000)
		b.o.Age, b.o.AbandonedAfter = time.Hour, 2*day
		topic := b.store.create("orders", 1, store.Settings{})
		b.groups.set(topic, "late", time.Now(), 0)
		b.store.produce(topic, 0, 100, time.Now())
		time.Sleep(3 * day)
		b.start()
		defer b.keeper.Close()
		time.Sleep(settle - time.Minute)
		b.want(topic, 0)
		b.minute()
		b.minute()
		b.want(topic, 1)
	})
}

// TestMovedMeanwhile: a group that is moved back, or made, after a pass has looked at where groups stand keeps what it has not consumed; where messages go
// that are not consumed, they go all the same.
func TestMovedMeanwhile(t *testing.T) {
	for _, c := range []struct {
		name  string
		want  index.Index
		first []index.Index // where the group stands before; nil: it is not there
		s     store.Settings
	}{
		{"moved", 2, []index.Index{8}, store.Settings{}},
		{"made", 2, nil, store.Settings{}},
		{"discarded", 10, []index.Index{8}, store.Settings{DiscardUnconsumed: true}},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, 1000)
			b.o.Age = time.Hour
			topic := b.store.create("orders", 1, c.s)
			if c.first != nil {
				b.groups.set(topic, "pay", time.Now(), c.first...)
			}
			b.o.Settled = func(f func()) {
				b.groups.set(topic, "pay", b.now(), 2)
				f()
			}
			for range 10 {
				b.store.produce(topic, 0, 100, time.Now())
			}
			time.Sleep(2 * time.Hour)
			b.start()
			defer b.keeper.Close()
			b.minute()
			b.want(topic, c.want)
		})
	}
}

// A clock that jumps by 10 years, ahead or behind, makes nothing go by age for a day of uptime and no group abandoned for 30, over
// restarts too; when it is set right again meanwhile, nothing ever went.
func TestClockJumps(t *testing.T) {
	const years = 10 * 365 * day
	for name, jump := range map[string]time.Duration{"ahead": years, "behind": -years} {
		for _, running := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 1000)
				b.o.Age, b.o.AbandonedAfter, b.o.Every = 7*day, 30*day, 5*time.Minute
				topic := b.store.create("orders", 1, store.Settings{})
				b.groups.set(topic, "pay", time.Now(), 50)
				b.groups.set(topic, "slow", time.Now(), 10)
				for range 100 {
					b.store.produce(topic, 0, 100, time.Now())
				}
				b.start()
				time.Sleep(2 * time.Hour)
				if m := b.keeper.Metrics(); m.Jumps != 0 || m.Suspended != 0 {
					t.Errorf("before the jump: %+v", m)
				}
				if running {
					b.jump(jump)
				} else {
					b.keeper.Close()
					b.jump(jump)
					b.start()
				}
				time.Sleep(6 * time.Minute)
				b.want(topic, 0)
				if m := b.keeper.Metrics(); m.Jumps != 1 || m.Suspended < SuspendFor-time.Hour || b.logs.with("WARN", "nothing goes by age") != 1 {
					t.Errorf("%s, running %v: %+v; log:\n%s", name, running, m, &b.logs)
				}
				// New messages have the new clock's times, so nothing of the store tells of the jump at the next start.
				b.store.produce(topic, 0, 100, b.now())
				time.Sleep(12 * time.Hour)
				b.keeper.Close()
				b.start()
				time.Sleep(11 * time.Hour)
				b.want(topic, 0)
				if m := b.keeper.Metrics(); m.Suspended == 0 || m.Abandoned != 0 {
					t.Errorf("%s, running %v: a restart ended the suspension: %+v", name, running, m)
				}
				if running {
					b.jump(-jump) // set right: that is a jump too
					time.Sleep(2 * day)
					b.want(topic, 0)
					if m := b.keeper.Metrics(); m.Suspended != 0 {
						t.Errorf("%+v", m)
					}
				} else {
					time.Sleep(3 * time.Hour)
					if m := b.keeper.Metrics(); m.Suspended != 0 || b.logs.with("messages go by age again") != 1 {
						t.Errorf("%s, a day later: %+v; log:\n%s", name, m, &b.logs)
					}
					if jump > 0 { // it goes by age now, as far as each group has consumed it
						b.want(topic, 10)
						time.Sleep(30 * day)
						b.want(topic, 101)
					} else {
						b.want(topic, 0)
					}
				}
				b.keeper.Close()
			})
		}
	}
}

// A clock that is slewed slowly never adds up to a jump; one that is set an hour and more at once is one.
func TestClock(t *testing.T) {
	var c clock
	wall, up := time.Unix(1_790_000_000, 0), time.Duration(0)
	c.start(wall, wall.UnixNano()-int64(20*day), 0)
	for range 1000 {
		up, wall = up+time.Hour, wall.Add(time.Hour+30*time.Second)
		if c.tick(wall, up) {
			t.Fatalf("a slewed clock jumped after %v", up)
		}
	}
	for range 3 {
		wall, up = wall.Add(30*time.Minute), up+time.Second
		if c.tick(wall, up) {
			return // small steps add up within a day
		}
	}
	t.Error("an hour and a half in three steps is no jump")
}

// Without a state file, or with one that was damaged, the clock is compared with the newest message.
func TestStateFile(t *testing.T) {
	fs := vfs.NewMem()
	if s, err := readState(fs, "/state"); s != nil || err != nil {
		t.Errorf("none: %v, %v", s, err)
	}
	want := state{Version: 1, Wall: 1_790_000_000_000_000_000, SinceJump: int64(time.Hour)}
	if err := writeState(fs, "/state", want); err != nil {
		t.Fatal(err)
	}
	if s, err := readState(fs, "/state"); err != nil || *s != want {
		t.Fatalf("%+v, %v", s, err)
	}
	f, err := fs.OpenReadWrite("/state", vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, info.Size())
	if _, err := f.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	for i := range b {
		bad := []byte{b[i] ^ 1}
		if _, err := f.WriteAt(bad, int64(i)); err != nil {
			t.Fatal(err)
		}
		if s, err := readState(fs, "/state"); err == nil {
			t.Errorf("byte %d flipped: %+v, want an error", i, s)
		}
		if _, err := f.WriteAt([]byte{b[i]}, int64(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// At the early mark what every group consumed goes, the oldest first over all topics, until the mark is left; not what a group
// still has to consume, nor what no group consumes.
func TestEarlyDelete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1000<<20)
		b.o.BytesMax = 100_000 << 20
		old := b.store.create("old", 1, store.Settings{})
		fresh := b.store.create("fresh", 1, store.Settings{})
		b.groups.set(old, "a", time.Now(), 400)
		b.groups.set(fresh, "a", time.Now(), 400)
		b.start()
		defer b.keeper.Close()
		for i := range 78 { // 78 segments, one a minute
			topic := old
			if i >= 40 {
				topic = fresh
			}
			for range 10 {
				b.store.produce(topic, 0, 100<<20, time.Now())
			}
			b.minute()
		}
		b.want(old, 0)
		b.want(fresh, 0)
		if m := b.keeper.Metrics(); m.Level != Warn || m.Limited != 79_000<<20 {
			t.Fatalf("%+v", m)
		}
		for range 10 {
			b.store.produce(fresh, 0, 100<<20, time.Now())
		}
		b.minute()
		m := b.keeper.Metrics()
		if m.Level != Warn || m.Limited > 78_000<<20 || m.Limited < 70_000<<20 || m.TrimmedEarly == 0 {
			t.Errorf("%+v; log:\n%s", m, &b.logs)
		}
		if first := b.firsts(old)[0]; first < 20 || first > 100 {
			t.Errorf("the older topic begins at %d", first)
		}
		b.want(fresh, 0)
		if b.told() != "" {
			t.Errorf("sends were refused: %s", b.told())
		}
	})
}

// What holds the oldest segment cannot go: nothing else is deleted for it, sends are refused at the mark, and taken again when the
// group has caught up.
func TestRefuseAndRecover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1000<<20)
		b.o.BytesMax = 100_000 << 20
		topic := b.store.create("orders", 2, store.Settings{})
		free := b.store.create("logs", 1, store.Settings{})
		b.groups.set(topic, "slow", time.Now(), 0, 0)
		b.start()
		defer b.keeper.Close()
		for i := 0; b.told() == ""; i++ {
			if i > 100 {
				t.Fatal("sends are never refused")
			}
			for n := range 10 {
				b.store.produce(topic, n%2, 90<<20, time.Now())
			}
			b.store.produce(free, 0, 100<<20, time.Now())
			b.minute()
		}
		if got := b.told(); got != "false broker.store.bytesMax is 90 % full" || b.keeper.Refusing() == "" {
			t.Errorf("told %q, refusing %q", got, b.keeper.Refusing())
		}
		b.want(topic, 0, 0)
		b.want(free, 0)
		if n := b.logs.with("the store is refusing"); n != 1 {
			t.Errorf("%d lines; log:\n%s", n, &b.logs)
		}
		b.groups.set(topic, "slow", time.Now(), 100, 0)
		b.minute()
		if m := b.keeper.Metrics(); m.Level != Refuse || m.TrimmedEarly == 0 {
			t.Errorf("half of it consumed: %+v", m)
		}
		b.groups.set(topic, "slow", time.Now(), 100, 100)
		b.minute()
		if got := b.told(); !strings.HasSuffix(got, "; true ") || b.keeper.Refusing() != "" {
			t.Errorf("told %q after it was consumed: %+v", got, b.keeper.Metrics())
		}
		b.want(free, 0) // no group consumes it: age and size alone may take it
	})
}

// A clock that was set back stops no early deletion.
func TestEarlyDeleteClockBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1000<<20)
		b.o.BytesMax = 100_000 << 20
		topic := b.store.create("orders", 1, store.Settings{})
		b.groups.set(topic, "pay", time.Now(), 1000)
		b.start()
		defer b.keeper.Close()
		time.Sleep(time.Hour)
		b.jump(-10 * 365 * day)
		for range 2000 {
			b.store.produce(topic, 0, 100<<20, time.Now())
			time.Sleep(time.Second)
			_, end, _ := b.store.Bounds(partitionOf(&topic, 0))
			b.groups.set(topic, "pay", time.Now(), end)
		}
		if m := b.keeper.Metrics(); m.Level > Warn || m.TrimmedEarly == 0 || m.Limited < 50_000<<20 || b.told() != "" {
			t.Errorf("%+v; told %q; log:\n%s", m, b.told(), &b.logs)
		}
	})
}

// The disks' marks: full, free again, and not to be read, which is told once and is never full.
func TestDisks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1000)
		full := func(percent uint64) {
			b.fs.change(func(f *fakeFS) {
				f.disk, f.err = vfs.DiskUsage{TotalBytes: 2000 << 30, UsedBytes: percent << 30, AvailBytes: (100 - percent) << 30}, nil
			})
		}
		full(76)
		b.start()
		defer b.keeper.Close()
		if m := b.keeper.Metrics(); m.Level != Warn || len(m.Disks) != 2 || m.Disks[0].Free != 24<<30 || m.Disks[0].Total != 100<<30 {
			t.Errorf("at the start: %+v", m)
		}
		full(91)
		b.minute()
		if got := b.told(); got != "false the disk of the journal is 91 % full" {
			t.Errorf("told %q", got)
		}
		b.fs.change(func(f *fakeFS) { f.err = errBroken })
		b.minute()
		if m := b.keeper.Metrics(); m.Level != OK || m.Disks[0].Total != 0 || m.Disks[0].Error != "broken" || b.logs.with("WARN", "cannot be read", "err=broken") != 2 {
			t.Errorf("%+v; log:\n%s", m, &b.logs)
		}
		if got := b.told(); !strings.HasSuffix(got, "; true ") {
			t.Errorf("told %q", got)
		}
		full(10)
		b.minute()
		if n := b.logs.with("INFO", "can be read again"); n != 2 {
			t.Errorf("log:\n%s", &b.logs)
		}
		// The store's own figures, the same.
		full(95)
		b.minute()
		full(10)
		b.minute()
		if n := b.logs.with("the store is"); n != 5 {
			t.Errorf("%d changes of level, want 5; log:\n%s", n, &b.logs)
		}
	})
}

// A folder that is not there any more is told, refuses sends, and is well again when it is back.
func TestFolderGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1000)
		b.start()
		defer b.keeper.Close()
		b.fs.change(func(f *fakeFS) { f.gone = "/data/journal" })
		b.minute()
		if got := b.told(); got != "false the folder of the journal is gone" || b.keeper.Gone() == "" || !b.keeper.Metrics().Gone || b.logs.with("ERROR") != 1 {
			t.Errorf("told %q, gone %q; log:\n%s", got, b.keeper.Gone(), &b.logs)
		}
		b.fs.change(func(f *fakeFS) { f.gone = "" })
		b.minute()
		if got := b.told(); !strings.HasSuffix(got, "; true ") || b.keeper.Gone() != "" {
			t.Errorf("told %q", got)
		}
	})
}

// A store that cannot say what it takes is a warning, and its errors are told once.
func TestStoreErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1000)
		b.o.BytesMax = 100_000
		b.store.err = errBroken
		b.start()
		defer b.keeper.Close()
		time.Sleep(time.Hour)
		if b.told() != "" || b.keeper.Metrics().Level != OK || b.logs.with("WARN", "broker.store.bytesMax is not watched") != 1 {
			t.Errorf("told %q; log:\n%s", b.told(), &b.logs)
		}
	})
}

// Options that cannot be are refused.
func TestOptions(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"no store":     func(o *Options) { o.Store = nil },
		"age below 0":  func(o *Options) { o.Age = -1 },
		"marks fall":   func(o *Options) { o.WarnPercent, o.EarlyDeletePercent = 90, 80 },
		"mark too far": func(o *Options) { o.RefusePercent = 101 },
	} {
		o := newBench(t, 1000).o
		change(&o)
		if _, err := Start(o); err == nil {
			t.Errorf("%s: started", name)
		}
	}
}

// TestStateNotWritten: a write that fails leaves nothing beside the file.
func TestStateNotWritten(t *testing.T) {
	for _, call := range []journaltest.Call{journaltest.Write, journaltest.Sync, journaltest.Rename} {
		fs := journaltest.New(nil)
		fs.SetBefore(func(op journaltest.Op) journaltest.Fault {
			if op.Call == call {
				return journaltest.Fault{Err: journaltest.ErrInjected}
			}
			return journaltest.Fault{}
		})
		err := writeState(fs, "/state", state{Version: 1, Wall: 1})
		left, listErr := fs.List("/")
		if err == nil || listErr != nil || len(left) > 0 {
			t.Errorf("%v fails: %v; %v is left, %v", call, err, left, listErr)
		}
	}
}
