package replica

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"reflect"
	"slices"
	"testing"

	"github.com/jmqio/jmq/server/servertest/mutate"
)

// FuzzState reads any bytes as the file REPLICA: errors say what they are, and what is taken is written as a file that says the same.
func FuzzState(f *testing.F) {
	fs := mutate.NewDisk()
	path := fs.PathJoin("/d", stateName)
	var x slots
	if err := x.write(fs, "/d", State{Boot: "b", Machine: "m", Seen: 3}); err != nil {
		f.Fatal(err)
	}
	good := bytes.Clone(fs.Bytes(path))
	text := bytes.TrimRight(good[:len(good)/2], "\x00")
	refused := func(t testing.TB, err error) {
		if !errors.Is(err, ErrState) && !errors.Is(err, ErrStateVersion) {
			t.Fatal(err)
		}
	}
	check := func(t testing.TB, b []byte) bool {
		fs.Put(path, b)
		s, at, err := readState(fs, path)
		if err != nil {
			refused(t, err)
			return false
		}
		if err := at.write(fs, "/d", s); err != nil {
			t.Fatal(err)
		}
		again, _, err := readState(fs, path)
		if err != nil || !reflect.DeepEqual(again, s) {
			t.Fatalf("%+v became %+v, %v", s, again, err)
		}
		return true
	}
	f.Add(good)
	f.Add(text)
	f.Add([]byte{})
	// Mutated are the texts of the two slots, with a zero in between, or that of a file of version 1.
	seal := func(b []byte) {
		a, z, _ := bytes.Cut(b, []byte{0})
		for _, text := range [][]byte{a, z} {
			if n := len(text) - 9; n > 0 {
				copy(text[n:], fmt.Sprintf("%08x\n", crc32.Checksum(text[:n], castagnoli)))
			}
		}
	}
	one := bytes.Replace(text, []byte("jmq replica 2 1"), []byte("jmq replica 1"), 1)
	seal(one)
	newer := bytes.Replace(text, []byte("jmq replica 2 1"), []byte("jmq replica 2 2"), 1)
	seal(newer)
	mutate.Run(f, mutate.Decoder{Seeds: [][]byte{slices.Concat(text, []byte{0}, newer), slices.Concat(text, []byte{0}), one}, Seal: seal, Slowness: 4, Check: func(t testing.TB, b []byte) bool {
		a, z, two := bytes.Cut(b, []byte{0})
		if !two {
			return check(t, b)
		}
		s, at, err := chooseState(string(a), string(z), path)
		if err != nil {
			refused(t, err)
			return false
		}
		again, err := encodeState(s, at.number+1)
		if err != nil {
			t.Fatal(err)
		}
		got, to, err := chooseState(string(again), string(a), path)
		if err != nil || at.number < math.MaxUint64 && to.number != at.number+1 || !reflect.DeepEqual(got, s) {
			t.Fatalf("%+v became %+v, %v", s, got, err)
		}
		return true
	}})
	f.Fuzz(func(t *testing.T, b []byte) { check(t, b) })
}
