package replica

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/jmqio/jmq/server/journal"
)

// TestCommon compares Common with what a comparison of every position says, for journals that grew from each other, were cut and trimmed.
func TestCommon(t *testing.T) {
	seed := oneSeed(t)
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for range 20000 {
		var epochs [2][]journal.Epoch // of each position
		for i := range 2 {
			if i == 1 {
				epochs[1] = slices.Clone(epochs[0][:r.IntN(len(epochs[0])+1)])
			}
			e := journal.Epoch(1)
			if n := len(epochs[i]); n > 0 {
				e = epochs[i][n-1]
			}
			for range r.IntN(8) {
				if r.IntN(3) == 0 {
					e += journal.Epoch(1 + r.IntN(2))
				}
				epochs[i] = append(epochs[i], e+journal.Epoch(i*r.IntN(2)*100))
				e = epochs[i][len(epochs[i])-1]
			}
		}
		var h [2]History
		for i := range 2 {
			h[i] = historyBy(epochs[i], r.IntN(len(epochs[i])+1))
			if err := h[i].Check(); err != nil {
				t.Fatalf("%v: %v", h[i], err)
			}
		}
		got, ok := Common(h[0], h[1])
		want := max(h[0].Begin, h[1].Begin)
		first := want
		for want < min(h[0].End, h[1].End) && epochs[0][want] == epochs[1][want] {
			want++
		}
		wantOK := h[0].Begin == h[1].Begin || want > first
		for i := range 2 { // the empty journal of a full copy begins at a record of the other one
			if e, o := h[i], h[1-i]; e.Begin == e.End {
				wantOK = wantOK || o.Begin < e.Begin && e.Begin <= o.End
			}
		}
		if got != want || ok != wantOK {
			t.Fatalf("seed %d: %v and %v: common %d %v, want %d %v", seed, h[0], h[1], got, ok, want, wantOK)
		}
	}
}

func historyBy(epochs []journal.Epoch, begin int) History {
	h := History{Begin: journal.Position(begin), End: journal.Position(len(epochs))}
	for i, e := range epochs {
		if i == 0 || e != epochs[i-1] {
			h.Epochs = append(h.Epochs, journal.EpochStart{Epoch: e, Position: journal.Position(i)})
		}
	}
	for len(h.Epochs) > 1 && int(h.Epochs[1].Position) <= begin {
		h.Epochs = h.Epochs[1:]
	}
	if h.Begin == h.End {
		h.Epochs = nil
	}
	return h
}

// TestHistoryCheck: what contradicts itself is an error, whatever comes from a peer.
func TestHistoryCheck(t *testing.T) {
	e := func(epoch, position int) journal.EpochStart {
		return journal.EpochStart{Epoch: journal.Epoch(epoch), Position: journal.Position(position)}
	}
	for _, h := range []History{
		{Begin: 5, End: 4},
		{End: 4},
		{Epochs: []journal.EpochStart{e(1, 0)}},
		{Epochs: []journal.EpochStart{e(1, 1)}, End: 4},
		{Epochs: []journal.EpochStart{e(1, 0), e(1, 2)}, End: 4},
		{Epochs: []journal.EpochStart{e(2, 0), e(1, 2)}, End: 4},
		{Epochs: []journal.EpochStart{e(1, 0), e(2, 4)}, End: 4},
		{Epochs: []journal.EpochStart{e(1, 0), e(2, 2)}, Begin: 2, End: 4},
		{Epochs: []journal.EpochStart{e(1, 0), e(2, 2), e(3, 2)}, End: 4},
	} {
		if err := h.Check(); !errors.Is(err, ErrHistory) {
			t.Errorf("%+v: %v", h, err)
		}
	}
}
