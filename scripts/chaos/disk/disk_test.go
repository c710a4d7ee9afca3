package disk

import (
	"bytes"
	"errors"
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/jmqio/jmq/scripts/testenv"
)

var seedFlag = flag.Uint64("seed", 0, "the one seed to run; 0: another each time")

func TestMain(m *testing.M) {
	ServeIfAsked()
	goleak.VerifyTestMain(m)
}

func newRNG(t *testing.T) *rand.Rand {
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-seed=%d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

// What was flushed is there after a loss of power; of the rest each block is as some write left it, or as it was.
func TestMedium(t *testing.T) {
	rng := newRNG(t)
	const blocks = 16
	m := newMedium(blocks * blockBytes)
	var durable [blocks]byte
	possible := [blocks][]byte{}
	for i := range possible {
		possible[i] = []byte{0}
	}
	for step := range 2000 {
		switch k := rng.IntN(20); {
		case k < 15:
			i, n, v := rng.IntN(blocks), 1+rng.IntN(3), byte(rng.IntN(256))
			n = min(n, blocks-i)
			if _, errno := m.writeAt(bytes.Repeat([]byte{v}, n*blockBytes), int64(i)*blockBytes); errno != 0 {
				t.Fatal(errno)
			}
			for ; n > 0; n-- {
				possible[i+n-1] = append(possible[i+n-1], v)
			}
		case k < 18:
			if errno := m.flush(); errno != 0 {
				t.Fatal(errno)
			}
			for i, p := range possible {
				durable[i] = p[len(p)-1]
				possible[i] = []byte{durable[i]}
			}
		default:
			m.powerOff(rng)
			if _, errno := m.readAt(make([]byte, 1), 0); errno == 0 {
				t.Fatal("read without power")
			}
			if errno := m.flush(); errno == 0 {
				t.Fatal("flushed without power")
			}
			m.powerOn()
		}
		all := make([]byte, blocks*blockBytes)
		if n, errno := m.readAt(all, 0); errno != 0 || n != len(all) {
			t.Fatal(n, errno)
		}
		for i := range possible {
			b := all[i*blockBytes : (i+1)*blockBytes]
			if !bytes.Equal(b, bytes.Repeat(b[:1], blockBytes)) {
				t.Fatalf("step %d: block %d is torn", step, i)
			}
			if !bytes.Contains(possible[i], b[:1]) {
				t.Fatalf("step %d: block %d has %d, which was not one of %v since the last flush", step, i, b[0], possible[i])
			}
			possible[i] = append(possible[i], b[0]) // the last one is what is there now
		}
	}
	if m.mu.lost == 0 {
		t.Error("nothing was lost")
	}
	if _, errno := m.writeAt([]byte("xy"), 3*blockBytes-1); errno != 0 {
		t.Fatal(errno)
	}
	two := make([]byte, 2)
	if _, errno := m.readAt(two, 3*blockBytes-1); errno != 0 || string(two) != "xy" {
		t.Errorf("across blocks: %q, %v", two, errno)
	}
	m.fails.Store(true)
	if _, errno := m.writeAt([]byte("x"), 0); errno != unix.EIO {
		t.Errorf("a disk that fails: %v", errno)
	}
}

// A file system keeps what was synced through losses of power, whatever it is on; a full one takes nothing more until it has room.
func TestDisk(t *testing.T) {
	for _, o := range []Options{{}, {XFS: true}, {Volatile: true}} {
		name := map[bool]string{true: "xfs", false: "ext4"}[o.XFS] + map[bool]string{true: ", volatile"}[o.Volatile]
		t.Run(name, func(t *testing.T) {
			rng := newRNG(t)
			o.Mount = filepath.Join(t.TempDir(), "disk")
			done := make(chan error)
			go func() {
				runtime.LockOSThread() // and it ends with the goroutine
				err := OwnMounts()
				if err == nil {
					err = useDisk(o, rng)
				}
				done <- err
			}()
			err := <-done
			if errors.Is(err, ErrMissing) {
				testenv.Missing(t, "chaos", err)
			}
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

func useDisk(o Options, rng *rand.Rand) (err error) {
	d, err := New(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	file := filepath.Join(o.Mount, "file")
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { f.Close() }()
	synced := 0
	for range 5 {
		if _, err := f.Write(make([]byte, 5000)); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
		synced += 5000
		if _, err := f.Write(make([]byte, 7000)); err != nil {
			return err
		}
		if err := d.PowerOff(rng); err != nil {
			return err
		}
		if f.Sync() == nil {
			return errors.New("a sync without power was ok")
		}
		f.Close()
		if err := d.PowerOn(); err != nil {
			return err
		}
		info, err := os.Stat(file)
		if err != nil || info.Size() < int64(synced) {
			return errors.Join(errors.New("what was synced is gone"), err)
		}
		if f, err = os.OpenFile(file, os.O_WRONLY, 0); err != nil {
			return err
		}
		if _, err := f.Seek(int64(synced), 0); err != nil {
			return err
		}
	}
	if err := d.Fill(0); err != nil {
		return err
	}
	if _, err := f.Write(make([]byte, 1<<20)); !errors.Is(err, unix.ENOSPC) {
		return errors.Join(errors.New("a full disk took a write"), err)
	}
	if err := d.Free(); err != nil {
		return err
	}
	if _, err := f.Write(make([]byte, 1<<20)); err != nil {
		return err
	}
	if o.Volatile {
		err := d.Slow(50 * time.Millisecond)
		begun := time.Now()
		if err := errors.Join(err, f.Sync()); err != nil {
			return err
		}
		if took := time.Since(begun); took < 50*time.Millisecond {
			return errors.New("a slow disk was fast")
		}
		if err := errors.Join(d.Slow(0), d.Fail(true)); err != nil {
			return err
		}
		if _, err := f.Write(make([]byte, 4096)); err == nil && f.Sync() == nil {
			return errors.New("a broken disk took a write")
		}
		f.Close()
		return errors.Join(d.Fail(false), d.PowerOn())
	}
	return nil
}
