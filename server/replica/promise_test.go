package replica_test

import (
	"errors"
	"testing"

	"github.com/jmqio/jmq/server/replica"
	"github.com/jmqio/jmq/server/replica/replicatest"
	"github.com/jmqio/jmq/server/term"
)

// TestPromiseWhileOpening: a term that was met before the master was there to hear of it ends its opening; it answers nothing in the lower term.
func TestPromiseWhileOpening(t *testing.T) {
	inGroup(t, func(t *testing.T, g *replicatest.Group) {
		a := g.Nodes["a"]
		node := a.Node()
		must(t, node.State.Update(func(s *replica.State) { s.Seen = 5 }))
		row := term.Row{Term: 1, Master: node.Self, Change: 1, Generation: replicatest.Generation}
		if err := a.Lead(t.Context(), row); !errors.Is(err, replica.ErrFenced) {
			t.Errorf("a master of term 1 opened after term 5 was met: %v", err)
		}
	}, "a")
}
