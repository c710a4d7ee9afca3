package replica

import (
	"testing"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/term"
)

// What the registry said of the granted term counts also when it is away the next moment: a master whose disk lost messages that were acknowledged does
// not open because the registry was silent just then.
func TestToldWhileAway(t *testing.T) {
	self, other := term.Member{Broker: "a", Boot: "boot-a", Store: "store-a"}, term.Member{Broker: "b", Boot: "boot-b", Store: "store-b"}
	h := History{Epochs: []journal.EpochStart{{Epoch: journal.MakeEpoch(1, 3)}}, End: 400}
	k := Known{
		Self: self, State: State{Seen: 1, Granted: 1, Grant: self}, History: h, Committed: 400, Others: []string{"b"},
		Met: []Met{{Member: other, Seen: 1, History: h, Committed: 400}},
	}
	row := term.Row{Term: 1, Master: self, Set: []term.Member{other}}
	for _, heard := range []*term.Row{&row, nil} {
		k.Row = heard
		for _, c := range []struct {
			name  string
			told  journal.Position
			start uint32
			leads bool
		}{
			{"nothing is told", 0, 0, true},
			{"all is there", 400, 3, true},
			{"more was acknowledged", 401, 3, false},
			{"it opened again", 400, 4, false},
		} {
			k.Told, k.Start = c.told, c.start
			if d := Decide(k); (d.Act == ActLead) != c.leads {
				t.Errorf("%s, registry heard %v: %v, %s", c.name, heard != nil, d.Act, d.Why)
			}
		}
	}
}
