package main

import (
	"testing"

	"github.com/jmqio/jmq/server/servertest/check"
)

// An index that says something else of one message than that of another copy is found, wherever it is; what one of them has not any more, or not
// yet, is none of it.
func TestCompareDerived(t *testing.T) {
	entries := func(from, n int) (list []entry) {
		for i := range n {
			list = append(list, entry{position: 8, epoch: 1, stored: int64(from + i)})
		}
		return list
	}
	for changed := -1; changed < 240; changed += 30 {
		copies := map[string]derivedCopy{"b1": {10, entries(10, 250)}, "b1-s1": {20, entries(20, 230)}}
		if changed >= 0 {
			copies["b1"].entries[10+changed].stored++
		}
		tr := &trial{}
		tr.compareDerived("b1", derivedCopies{{normal, 3}: copies})
		k := check.NewChecker()
		for _, e := range tr.mu.events {
			if err := k.Add(e); err != nil {
				t.Fatal(err)
			}
		}
		r := k.Report()
		if want := changed >= 0 && changed < 230; r.Copies != 6 || (r.Check("C4").Violations == 1) != want {
			t.Errorf("entry %d changed: %d copies\n%s", changed, r.Copies, r)
		}
	}
}
