package journal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"reflect"
	"testing"

	"github.com/jmqio/jmq/server/servertest/mutate"
)

// onDisk is a file that is made anew for each input.
type onDisk struct {
	fs   *mutate.Disk
	path string
}

func newOnDisk(name string) onDisk {
	d := mutate.NewDisk()
	return onDisk{d, d.PathJoin(testDir, name)}
}

func (d *onDisk) put(b []byte) { d.fs.Put(d.path, b) }

// bytes are those of the file as it is now.
func (d *onDisk) bytes() []byte { return bytes.Clone(d.fs.Bytes(d.path)) }

// typed fails unless err is of those that say what a file is.
func typed(t testing.TB, err error) {
	if !errors.As(err, new(*VersionError)) && !errors.As(err, new(*ForeignError)) {
		t.Fatal(err)
	}
}

func sumAt(b []byte, at int) {
	if len(b) >= at+4 {
		binary.LittleEndian.PutUint32(b[at:], crc32.Checksum(b[:at], crcTable))
	}
}

// FuzzHeader reads any bytes as a segment's first block: what is taken is written as a block that says the same.
func FuzzHeader(f *testing.F) {
	h := header{flags: 1, store: testStore, base: 800, previous: 400, durable: 720, capacity: 4096, created: 5}
	good := make([]byte, headerBlockBytes)
	h.encode(good)
	old := bytes.Clone(good)
	old[headerAtVersion]++
	seal := func(b []byte) {
		for _, at := range []int{0, headerCopyBytes} {
			if len(b) > at {
				sumAt(b[at:], headerAtCRC)
			}
		}
	}
	again := make([]byte, headerBlockBytes)
	mutate.Fuzz(f, mutate.Decoder{Seeds: [][]byte{good, good[:headerCopyBytes], old, {}}, Seal: seal, Slowness: 4, Check: func(t testing.TB, b []byte) bool {
		h, err := decodeHeader(b)
		if err != nil && !errors.Is(err, errHeaderCopy) {
			if !errors.Is(err, errHeader) && !errors.As(err, new(*VersionError)) {
				t.Fatal(err)
			}
			return false
		}
		h.encode(again)
		if got, err := decodeHeader(again); err != nil || got != h {
			t.Fatalf("%+v became %+v, %v", h, got, err)
		}
		return true
	}})
}

// FuzzCutMark reads any bytes as the mark of a cut.
func FuzzCutMark(f *testing.F) {
	d := newOnDisk(cutName)
	good := make([]byte, cutMarkBytes)
	copy(good, cutMagic)
	binary.LittleEndian.PutUint32(good[8:], cutVersion)
	copy(good[16:], testStore[:])
	binary.LittleEndian.PutUint64(good[32:], 800)
	sumAt(good, cutAtCRC)
	mutate.Fuzz(f, mutate.Decoder{Seeds: [][]byte{good, {}}, Seal: func(b []byte) { sumAt(b, cutAtCRC) }, Slowness: 4, Check: func(t testing.TB, b []byte) bool {
		d.put(b)
		pos, err := readCutMark(d.fs, d.path, &testStore)
		if err != nil && !isUnreadable(err) {
			typed(t, err)
		}
		return err == nil && pos != nil
	}})
}

// FuzzEndsFile reads any bytes as the ends file.
func FuzzEndsFile(f *testing.F) {
	d := newOnDisk(endsName)
	file, err := openEnds(d.fs, testDir, testStore, Ends{}, 0, false)
	if err != nil {
		f.Fatal(err)
	}
	for i := range Position(2) {
		if err := file.write(Ends{Synced: 800 * i, Committed: 720 * i, Epoch: MakeEpoch(1, 2)}); err != nil {
			f.Fatal(err)
		}
	}
	if err := file.file.Close(); err != nil {
		f.Fatal(err)
	}
	good := d.bytes()
	seal := func(b []byte) {
		for _, at := range []int{0, endsSlotBytes} {
			if len(b) > at {
				sumAt(b[at:], endsAtCRC)
			}
		}
	}
	mutate.Fuzz(f, mutate.Decoder{Seeds: [][]byte{good, good[:endsBytes], {}}, Seal: seal, Slowness: 10, Check: func(t testing.TB, b []byte) bool {
		d.put(b)
		_, _, ok, err := readEnds(d.fs, testDir, &testStore)
		if err != nil {
			typed(t, err)
		}
		return ok
	}})
}

// FuzzEpochs reads any bytes as the list of epochs: what is taken is written as a file that says the same, and memory goes by what is there.
func FuzzEpochs(f *testing.F) {
	d := newOnDisk(epochsName)
	if err := writeHistory(d.fs, testDir, testStore, []EpochStart{{MakeEpoch(1, 1), 0, false}, {MakeEpoch(2, 1), 800, true}}); err != nil {
		f.Fatal(err)
	}
	good := d.bytes()
	seal := func(b []byte) { sumAt(b, len(b)-4) }
	mutate.Fuzz(f, mutate.Decoder{Seeds: [][]byte{good, {}}, Seal: func(b []byte) {
		if len(b) >= epochsHeadBytes+4 {
			seal(b)
		}
	}, Slowness: 4, AllocMost: 64 << 10, Check: func(t testing.TB, b []byte) bool {
		d.put(b)
		h, ok, err := readHistory(d.fs, testDir, &testStore)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return false
		}
		if err := writeHistory(d.fs, testDir, testStore, h); err != nil {
			t.Fatal(err)
		}
		again, ok, err := readHistory(d.fs, testDir, &testStore)
		if !ok || err != nil || !reflect.DeepEqual(h, again) {
			t.Fatalf("%v became %v, %v", h, again, err)
		}
		return true
	}})
}

// FuzzResent reads any bytes as the note of what became of messages that were set aside.
func FuzzResent(f *testing.F) {
	d := newOnDisk("x.sent")
	good := []byte(resentFirst + `{"sent":3}` + "\n")
	good = fmt.Appendf(good, "%08x\n", crc32.Checksum(good, crcTable))
	seal := func(b []byte) {
		if n := len(b) - 9; n > 0 {
			copy(b[n:], fmt.Sprintf("%08x\n", crc32.Checksum(b[:n], crcTable)))
		}
	}
	mutate.Fuzz(f, mutate.Decoder{Seeds: [][]byte{good, []byte(resentFirst), {}}, Seal: seal, Slowness: 4, Check: func(t testing.TB, b []byte) bool {
		d.put(b)
		return readResent(d.fs, d.path) != nil
	}})
}

// FuzzFooterHeader reads any bytes as the head of a segment's footer.
func FuzzFooterHeader(f *testing.F) {
	good := make([]byte, footerHeaderBytes)
	copy(good, footerMagic)
	binary.LittleEndian.PutUint32(good[8:], footerVersion)
	binary.LittleEndian.PutUint64(good[16:], 800)
	sumAt(good, 28)
	mutate.Fuzz(f, mutate.Decoder{Seeds: [][]byte{good, {}}, Seal: func(b []byte) { sumAt(b, 28) }, Check: func(t testing.TB, b []byte) bool {
		length, _, ok, err := readFooterHeader(bytes.NewReader(b), 0, 800)
		if err != nil || length > footerBytesMax {
			t.Fatalf("%d bytes, %v", length, err)
		}
		return ok
	}})
}
