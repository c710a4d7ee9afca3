package client

import (
	"encoding/binary"
	"hash/crc32"
	"strings"
	"testing"

	"github.com/jmqio/jmq/server/servertest/mutate"
	"github.com/jmqio/jmq/wire"
	"google.golang.org/protobuf/proto"
)

// FuzzRouteCache reads any bytes as a cache of routes: what is taken is written as a file that says the same.
func FuzzRouteCache(f *testing.F) {
	var scope cacheScope
	scope[3] = 7
	view, err := proto.Marshal(&wire.TopicView{})
	if err != nil {
		f.Fatal(err)
	}
	good, err := encodeRoutes(scope, &wire.WatchRoutesResponse{Generation: 3}, [][]byte{view})
	if err != nil {
		f.Fatal(err)
	}
	seal := func(b []byte) {
		if len(b) >= cacheHead {
			binary.LittleEndian.PutUint64(b[16:], uint64(len(b)-cacheHead))
			binary.LittleEndian.PutUint32(b[12:], crc32.Checksum(b[16:], castagnoli))
		}
	}
	mutate.Fuzz(f, mutate.Decoder{Seeds: [][]byte{good, {}}, Seal: seal, Slowness: 4, Check: func(t testing.TB, b []byte) bool {
		r, err := decodeRoutes(scope, b)
		if err != nil {
			return false
		}
		again, err := encodeRoutes(scope, r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := decodeRoutes(scope, again); err != nil || !proto.Equal(got, r) {
			t.Fatalf("%v became %v, %v", r, got, err)
		}
		return true
	}})
}

// FuzzCredentials reads any bytes as a file of a credential: an error says nothing of what was read.
func FuzzCredentials(f *testing.F) {
	seeds := [][]byte{[]byte("id: c1\nsecret: \"hunter2hunter2\"\n"), []byte("# x\n\nid: c1\n secret:hunter2hunter2"), {}}
	mutate.Fuzz(f, mutate.Decoder{Seeds: seeds, Check: func(t testing.TB, b []byte) bool {
		c, err := parseCredentials(b)
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Fatalf("it tells: %v", err)
		}
		if err == nil && (c.ID == "" || c.Secret == "") {
			t.Fatalf("%q has an id of %d bytes", b, len(c.ID))
		}
		return err == nil
	}})
}

// FuzzAddresses reads any text as addresses: what is taken is taken again as it was written.
func FuzzAddresses(f *testing.F) {
	seeds := [][]byte{[]byte("127.0.0.1:50088"), []byte("a:1,b,[::1]:5"), []byte("jmq.example.com"), {}}
	mutate.Fuzz(f, mutate.Decoder{Seeds: seeds, Check: func(t testing.TB, b []byte) bool {
		list, err := parseAddresses(string(b))
		if err != nil {
			return false
		}
		again, err := parseAddresses(strings.Join(list, ","))
		if err != nil || strings.Join(again, ",") != strings.Join(list, ",") {
			t.Fatalf("%q became %q, then %q, %v", b, list, again, err)
		}
		return true
	}})
}
