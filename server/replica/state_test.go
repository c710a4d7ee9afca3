package replica

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/jmqio/jmq/server/term"
)

func openState(t *testing.T, fs vfs.FS, machine string) *StateFile {
	t.Helper()
	f, err := OpenState(fs, "", machine)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestStateBoot: a boot stays through kills and clean stops, and ends with a power loss, a failed sync, and where the system's boot is not known.
func TestStateBoot(t *testing.T) {
	fs := vfs.NewMem()
	boot := openState(t, fs, "m1").Get().Boot
	if s := openState(t, fs, "m1").Get(); s.Boot != boot || s.Clean {
		t.Errorf("killed: boot %s, want %s, clean %v", s.Boot, boot, s.Clean)
	}
	f := openState(t, fs, "m1")
	if err := f.CleanStop(); err != nil {
		t.Fatal(err)
	}
	if s := openState(t, fs, "m2").Get(); s.Boot != boot || s.Clean || s.Machine != "m2" {
		t.Errorf("stopped cleanly: %+v, want boot %s", s, boot)
	}
	s := openState(t, fs, "m3").Get()
	if s.Boot == boot {
		t.Errorf("power loss: boot %s is still the same", s.Boot)
	}
	if next := openState(t, fs, "").Get().Boot; next == s.Boot || next == openState(t, fs, "").Get().Boot {
		t.Errorf("no machine is known, and boot %s stays", next)
	}
	f = openState(t, fs, "m3")
	boot = f.Get().Boot
	if next, err := f.NewBoot(); err != nil || next == boot || openState(t, fs, "m3").Get().Boot != next {
		t.Errorf("failed sync: boot %s after %s, %v", next, boot, err)
	}
}

// TestStateDurable: after each Update that returned nil the state is on the disk, whatever the power takes; before, it is the old one or the new one.
func TestStateDurable(t *testing.T) {
	fs := vfs.NewCrashableMem()
	f := openState(t, fs, "m")
	for i := range uint32(20) {
		err := f.Update(func(s *State) {
			s.Seen, s.Set, s.SetTerm = i, []term.Member{{Broker: "b", Boot: "x", Store: "y"}}, i
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := openState(t, fs.CrashClone(vfs.CrashCloneCfg{}), "m").Get(); !reflect.DeepEqual(got, f.Get()) {
			t.Fatalf("after a crash %+v, want %+v", got, f.Get())
		}
	}
	big := strings.Repeat("x", 2*stateSlot) // in place of a set that needs more room
	for _, c := range []struct {
		what string
		do   func(*State)
	}{{"in place", func(s *State) { s.Seen = 9 }}, {"made anew", func(s *State) { s.Seen, s.Grant.Broker = 9, big }}} {
		for n := range int32(14) {
			mem := vfs.NewCrashableMem()
			want := openState(t, mem, "m").Get()
			toggle := errorfs.Toggle{Injector: errorfs.OnIndex(n)}
			f := openState(t, errorfs.Wrap(mem, &toggle), "m")
			toggle.On()
			err := f.Update(c.do)
			for _, percent := range []int{0, 50, 100} {
				disk := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(uint64(n), 1))})
				got := openState(t, disk, "m").Get()
				if got.Seen != 0 && got.Seen != 9 || err == nil && got.Seen != 9 || got.Boot != want.Boot {
					t.Errorf("%s, operation %d failed (%v): %+v", c.what, n, err, got)
				}
			}
			if err != nil && (f.Get().Seen != 0 || f.Update(func(*State) {}) == nil) {
				t.Errorf("%s, operation %d failed: %+v, and the file goes on", c.what, n, f.Get())
			}
		}
	}
}

// TestStateInPlace: a change makes no file and makes none longer, so that it can be made on a disk that is full; but where the room is too small, and from
// a file of the version before.
func TestStateInPlace(t *testing.T) {
	mem := vfs.NewMem()
	body := `{"boot":"b","machine":"m","seen":7}`
	old := "jmq replica 1\n" + body + "\n"
	writeFile(t, mem, fmt.Appendf([]byte(old), "%08x\n", crc32.Checksum([]byte(old), castagnoli)))
	f := openState(t, mem, "m")
	if s := f.Get(); s.Seen != 7 || s.Boot != "b" {
		t.Errorf("of version 1: %+v", s)
	}
	full := errorfs.InjectorFunc(func(op errorfs.Op) error {
		switch op.Kind {
		case errorfs.OpCreate, errorfs.OpRename, errorfs.OpOpenDir:
			return syscall.ENOSPC
		case errorfs.OpFileWriteAt:
			if op.Offset >= 2*stateSlot {
				return syscall.ENOSPC
			}
		}
		return nil
	})
	f = openState(t, errorfs.Wrap(mem, full), "m") // which writes too
	for i := range uint32(3) {
		if err := f.Update(func(s *State) { s.Seen = 8 + i }); err != nil {
			t.Fatal(err)
		}
	}
	if s := openState(t, mem, "m").Get(); s.Seen != 10 {
		t.Errorf("%+v", s)
	}
	if err := f.Update(func(s *State) { s.Grant.Broker = strings.Repeat("x", stateSlot) }); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a larger state: %v", err)
	}
}

func writeFile(t *testing.T, fs vfs.FS, b []byte) {
	t.Helper()
	f, err := fs.Create(stateName, vfs.WriteCategoryUnspecified)
	if err == nil {
		_, err = f.WriteAt(bytes.Clone(b), 0)
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestNewBoot: where it cannot be written that the broker is another boot, others are told so as long as it lives, and it begins nothing any more.
func TestNewBoot(t *testing.T) {
	mem := vfs.NewCrashableMem()
	was := openState(t, mem, "m").Get()
	toggle := errorfs.Toggle{Injector: errorfs.ErrInjected}
	f := openState(t, errorfs.Wrap(mem, &toggle), "m")
	toggle.On()
	boot, err := f.NewBoot()
	if got := f.Get().Boot; err == nil || f.Err() == nil || got == was.Boot || got != boot {
		t.Errorf("boot %q after %q, %v, %v", got, was.Boot, err, f.Err())
	}
}

// TestStateDamaged: one slot that is damaged loses nothing. Both, a file that is cut off, or one of a newer version are an error: never a forgotten promise.
func TestStateDamaged(t *testing.T) {
	fs := vfs.NewMem()
	f := openState(t, fs, "m")
	if err := f.Update(func(s *State) { s.Seen = 5 }); err != nil {
		t.Fatal(err)
	}
	good, err := readFile(fs, stateName)
	if err != nil {
		t.Fatal(err)
	}
	try := func(b []byte) (State, error) {
		fs := vfs.NewMem()
		writeFile(t, fs, b)
		f, err := OpenState(fs, "", "m")
		if err != nil {
			return State{}, err
		}
		return f.Get(), nil
	}
	used := bytes.IndexByte(good, 0)
	for i := range used {
		for slot := range 2 {
			bad := bytes.Clone(good)
			bad[slot*stateSlot+i] ^= 0x10
			if s, err := try(bad); err != nil || s.Seen != 5 {
				t.Fatalf("byte %d of slot %d: %v, %+v", i, slot, err, s)
			}
			bad[(1-slot)*stateSlot+i/2] ^= 0x10
			if _, err := try(bad); !errors.Is(err, ErrState) {
				t.Fatalf("byte %d of slot %d, and one of the other: %v", i, slot, err)
			}
		}
	}
	for n := 0; n < len(good); n += 1 + n/40 {
		if _, err := try(good[:n]); !errors.Is(err, ErrState) {
			t.Errorf("%d bytes of %d: %v", n, len(good), err)
		}
	}
	newer := fmt.Sprintf("jmq replica %d 4\n{}\n", stateVersion+1)
	b := bytes.Clone(good)
	clear(b[copy(b, fmt.Sprintf("%s%08x\n", newer, crc32.Checksum([]byte(newer), castagnoli))):stateSlot])
	if _, err := try(b); !errors.Is(err, ErrStateVersion) {
		t.Errorf("of a newer version: %v", err)
	}
}
