package retention

import (
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/journal/journaltest"
	"github.com/jmqio/jmq/server/servertest/mutate"
)

// FuzzState reads any bytes as the file RETENTION: what is taken is written as a file that says the same.
func FuzzState(f *testing.F) {
	fs, name := vfs.NewMem(), "/RETENTION"
	if err := writeState(fs, name, state{Wall: 1790000000000000000, SinceJump: 7}); err != nil {
		f.Fatal(err)
	}
	good, err := journaltest.ReadFile(fs, name)
	if err != nil {
		f.Fatal(err)
	}
	seal := func(b []byte) {
		if n := len(b) - 9; n >= 0 {
			copy(b[n:], sumLine(b[:n]))
		}
	}
	mutate.Fuzz(f, mutate.Decoder{Seeds: [][]byte{good, {}}, Seal: seal, Slowness: 4, Check: func(t testing.TB, b []byte) bool {
		file, err := fs.Create(name, vfs.WriteCategoryUnspecified)
		if err == nil && len(b) > 0 {
			_, err = file.WriteAt(b, 0)
		}
		if err := errors.Join(err, file.Close()); err != nil {
			t.Fatal(err)
		}
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
