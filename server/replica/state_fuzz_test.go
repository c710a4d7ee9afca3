package replica

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/journal/journaltest"
	"github.com/jmqio/jmq/server/servertest/mutate"
)

// FuzzState reads any bytes as the file REPLICA: errors say what they are, and what is taken is written as a file that says the same.
func FuzzState(f *testing.F) {
	fs := vfs.NewMem()
	if err := fs.MkdirAll("/d", 0o755); err != nil {
		f.Fatal(err)
	}
	path := fs.PathJoin("/d", stateName)
	var x slots
	if err := x.write(fs, "/d", State{Boot: "b", Machine: "m", Seen: 3}); err != nil {
		f.Fatal(err)
	}
	good, err := journaltest.ReadFile(fs, path)
	if err != nil {
		f.Fatal(err)
	}
	seal := func(b []byte) {
		for _, part := range [][]byte{b[:len(b)/2], b[len(b)/2:]} {
			text := bytes.TrimRight(part, "\x00")
			if n := len(text) - 9; n > 0 {
				copy(text[n:], fmt.Sprintf("%08x\n", crc32.Checksum(text[:n], castagnoli)))
			}
		}
	}
	mutate.Fuzz(f, mutate.Decoder{Seeds: [][]byte{good, {}, bytes.TrimRight(good[:len(good)/2], "\x00")}, Seal: seal, Slowness: 20, Check: func(t testing.TB, b []byte) bool {
		journaltest.WriteFile(fs, path, b)
		s, at, err := readState(fs, path)
		if err != nil {
			if !errors.Is(err, ErrState) && !errors.Is(err, ErrStateVersion) {
				t.Fatal(err)
			}
			return false
		}
		if err := at.write(fs, "/d", s); err != nil {
			t.Fatal(err)
		}
		again, _, err := readState(fs, path)
		if err != nil || fmt.Sprintf("%+v", again) != fmt.Sprintf("%+v", s) {
			t.Fatalf("%+v became %+v, %v", s, again, err)
		}
		return true
	}})
}
