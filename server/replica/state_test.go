package replica

import (
	"errors"
	"reflect"
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
	for n := range int32(12) {
		mem := vfs.NewCrashableMem()
		want := openState(t, mem, "m").Get()
		toggle := errorfs.Toggle{Injector: errorfs.OnIndex(n)}
		toggle.On()
		f := &StateFile{fs: errorfs.Wrap(mem, &toggle)}
		f.mu.state = want
		err := f.Update(func(s *State) { s.Seen = 9 })
		got := openState(t, mem.CrashClone(vfs.CrashCloneCfg{}), "m").Get()
		if got.Seen != 0 && got.Seen != 9 || err == nil && got.Seen != 9 || got.Boot != want.Boot {
			t.Errorf("operation %d failed (%v): %+v", n, err, got)
		}
		if err != nil && (f.Get().Seen != 0 || f.Update(func(*State) {}) == nil) {
			t.Errorf("operation %d failed: %+v, and the file goes on", n, f.Get())
		}
	}
}

// TestStateDamaged: a flipped bit anywhere, a file that is cut off, or one of a newer version is an error: never a forgotten promise.
func TestStateDamaged(t *testing.T) {
	fs := vfs.NewMem()
	openState(t, fs, "m")
	good, err := readFile(fs, stateName)
	if err != nil {
		t.Fatal(err)
	}
	try := func(b []byte) error {
		fs := vfs.NewMem()
		f, err := fs.Create(stateName, vfs.WriteCategoryUnspecified)
		if err == nil {
			_, err = f.WriteAt(append([]byte(nil), b...), 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		_, err = OpenState(fs, "", "m")
		return err
	}
	for i := range good {
		bad := append([]byte(nil), good...)
		bad[i] ^= 0x10
		if err := try(bad); !errors.Is(err, ErrState) {
			t.Errorf("byte %d of %q: %v", i, good, err)
		}
		if err := try(good[:i]); i < len(good)-1 && !errors.Is(err, ErrState) {
			t.Errorf("%d bytes of %q: %v", i, good, err)
		}
	}
	if err := try(good); err != nil {
		t.Error(err)
	}
}
