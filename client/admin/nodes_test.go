package admin

import "testing"

// A database that is older than what a node knows is told by that node; one that has gone does not count.
func TestAhead(t *testing.T) {
	for _, c := range []struct {
		node Node
		want bool
	}{
		{Node{Generation: 2, MetadataVersion: 7}, false},
		{Node{Generation: 1, MetadataVersion: 9}, false},
		{Node{Generation: 2, MetadataVersion: 8}, true},
		{Node{Generation: 3, MetadataVersion: 1}, true},
		{Node{Generation: 3, MetadataVersion: 1, Away: true}, false},
	} {
		all := Nodes{Generation: 2, Version: 7, Nodes: []Node{{Generation: 2, MetadataVersion: 7}, c.node}}
		if n := all.Ahead(); (n != nil) != c.want || n != nil && n.Generation != c.node.Generation {
			t.Errorf("%+v: %+v, want one: %v", c.node, n, c.want)
		}
	}
}
