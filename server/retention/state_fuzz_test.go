package retention

import (
	"bytes"
	"testing"

	"github.com/jmqio/jmq/server/servertest/mutate"
)

// FuzzState reads any bytes as the file RETENTION: what is taken is written as a file that says the same.
func FuzzState(f *testing.F) {
	fs, name := mutate.NewDisk(), "/RETENTION"
	if err := writeState(fs, name, state{Wall: 1790000000000000000, SinceJump: 7}); err != nil {
		f.Fatal(err)
	}
	good := bytes.Clone(fs.Bytes(name))
	seal := func(b []byte) {
		if n := len(b) - 9; n >= 0 {
			copy(b[n:], sumLine(b[:n]))
		}
	}
	mutate.Fuzz(f, mutate.Decoder{Seeds: [][]byte{good, {}}, Seal: seal, Slowness: 4, Check: func(t testing.TB, b []byte) bool {
		fs.Put(name, b)
		s, err := readState(fs, name)
		if err != nil {
			return false
		}
		if err := writeState(fs, name, *s); err != nil {
			t.Fatal(err)
		}
		if again, err := readState(fs, name); err != nil || *again != *s {
			t.Fatalf("%+v became %+v, %v", s, again, err)
		}
		return true
	}})
}
