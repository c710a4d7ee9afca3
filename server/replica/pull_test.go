package replica

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/jmqio/jmq/server/servertest/mutate"
	"github.com/jmqio/jmq/wire"
)

// TestPullHeaders holds the headers that are coded by hand to the generated ones, both ways.
func TestPullHeaders(t *testing.T) {
	for _, v := range []uint64{0, 1, 127, 128, 1<<32 | 5, 1<<64 - 1} {
		var r wire.PullRequest
		if err := proto.Unmarshal(appendPull(nil, v, v+1, v+2, v+3, uint32(v)), &r); err != nil {
			t.Fatal(err)
		}
		if r.Session != v || r.Epoch != v+1 || r.Acked != v+2 || r.Synced != v+3 || r.Window != uint32(v) {
			t.Errorf("%d: request %v", v, &r)
		}
		m := &wire.PullResponse{Epoch: v, From: v + 1, Committed: v + 2, Begin: v + 3, InSync: v%2 == 1, Transfer: "other"}
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		b = append(b, 0x78, 1) // a field of a later version
		a, err := parsePulled(b)
		if err != nil || a.epoch != v || a.from != v+1 || a.committed != v+2 || a.begin != v+3 || a.inSync != m.InSync || string(a.transfer) != "other" {
			t.Errorf("%d: answer %+v, %v", v, a, err)
		}
	}
}

// FuzzPulled: any bytes are an answer to a pull or not, as the generated code says.
func FuzzPulled(f *testing.F) {
	b, _ := proto.Marshal(&wire.PullResponse{Epoch: 1, From: 2, Committed: 3, Begin: 4, InSync: true, Transfer: "b"})
	mutate.Fuzz(f, mutate.Decoder{Seeds: [][]byte{b, {0xff}}, Check: func(t testing.TB, b []byte) bool {
		a, err := parsePulled(b)
		var m wire.PullResponse
		if merr := proto.Unmarshal(b, &m); merr != nil && err == nil && !strings.Contains(merr.Error(), "UTF-8") {
			t.Errorf("%x: %+v, generated %v", b, a, merr)
		} else if merr == nil && err != nil {
			t.Errorf("%x: %v, generated %v", b, err, &m)
		} else if merr == nil && (a.epoch != m.Epoch || a.from != m.From || a.committed != m.Committed || a.begin != m.Begin || string(a.transfer) != m.Transfer) {
			t.Errorf("%x: %+v, generated %v", b, a, &m)
		}
		return err == nil
	}})
}
