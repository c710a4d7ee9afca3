package ports

import (
	"net"
	"testing"
)

// An address is nobody else's until it is given back, though nobody listens there; one where somebody listens is not given.
func TestTake(t *testing.T) {
	seen := map[string]bool{}
	var give []func()
	for range 3 * block { // so more than one block
		a, release, err := Take()
		if err != nil {
			t.Fatal(err)
		}
		if seen[a] {
			t.Fatalf("%s was given twice", a)
		}
		seen[a] = true
		give = append(give, release)
	}
	give[0]()
	give[0]() // which does nothing
	a, release, err := Take()
	for err == nil && !seen[a] { // what is left of the last block comes first
		a, release, err = Take()
	}
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", a)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	release()
	for range 2 * block {
		if b, _, err := Take(); err != nil || b == a {
			t.Fatalf("%s, %v: somebody listens at %s", b, err, a)
		}
	}
}
