package wire

import (
	"testing"

	"google.golang.org/protobuf/proto"
)

// TestPullHeaders holds the headers of a pull that are coded by hand to the generated ones.
func TestPullHeaders(t *testing.T) {
	for _, v := range []uint64{0, 1, 127, 128, 1<<32 | 5, 1<<64 - 1} {
		want := &PullRequest{Session: v, Epoch: v + 1, Acked: v + 2, Synced: v + 3, Window: uint32(v), BytesMax: uint32(v + 1)}
		b, err := proto.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		got := new(PullRequest)
		if err := parsePullRequest(append(b, 0x78, 1), got); err != nil || !proto.Equal(got, want) { // with a field of a later version
			t.Errorf("%v: %v, %v", want, got, err)
		}
		for i := range b {
			got := new(PullRequest)
			err := parsePullRequest(b[:i], got)
			if (err == nil) != (proto.Unmarshal(b[:i], new(PullRequest)) == nil) {
				t.Errorf("%v cut at %d: %v", want, i, err)
			}
		}
		answer := &PullResponse{Epoch: v, From: v + 1, Committed: v + 2, Begin: v + 3, InSync: v%2 == 1, Transfer: []string{"", "other"}[v%2]}
		read := new(PullResponse)
		if err := proto.Unmarshal(appendPullResponse(nil, answer), read); err != nil || !proto.Equal(read, answer) {
			t.Errorf("%v: %v, %v", answer, read, err)
		}
	}
}
