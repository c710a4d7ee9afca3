package term

import (
	"errors"
	"reflect"
	"testing"
)

func member(broker, boot, store string) Member {
	return Member{Broker: broker, Boot: boot, Store: store}
}

var (
	a = member("a", "b1", "s1")
	b = member("b", "b2", "s2")
	c = member("c", "b3", "s3")
)

func row() Row {
	return Row{Term: 3, Master: a, Set: []Member{b, c}, Change: 7, Generation: 1, Start: 2}
}

// TestRegister: the first that may be master is named in term 1; a member with another boot or store is dropped; whoever was in a term that the
// metadata does not know makes everything wait.
func TestRegister(t *testing.T) {
	for _, x := range []struct {
		what string
		row  Row
		rep  Report
		may  bool
		want Row
		err  error
	}{
		{"the first", Row{}, Report{Member: a}, true, Row{Term: 1, Master: a, Change: 1, Generation: 1}, nil},
		{"a slave comes first", Row{}, Report{Member: a}, false, Row{}, nil},
		{"it was in a term", Row{}, Report{Member: a, Seen: 2}, true, Row{}, ErrNotReady},
		{"its journal was in a term", Row{}, Report{Member: a, LastTerm: 2}, true, Row{}, ErrNotReady},
		{"nothing new", row(), Report{Member: b}, true, row(), nil},
		{"another boot", row(), Report{Member: member("b", "b9", "s2")}, true, Row{Term: 3, Master: a, Set: []Member{c}, Change: 8, Generation: 1, Start: 2}, nil},
		{"another store", row(), Report{Member: member("c", "b3", "s9")}, true, Row{Term: 3, Master: a, Set: []Member{b}, Change: 8, Generation: 1, Start: 2}, nil},
		{"another generation", Row{Term: 3, Master: a}, Report{Member: b}, true, Row{Term: 3, Master: a}, ErrNotReady},
	} {
		got, err := x.row.Register(x.rep, x.may, 1)
		if !reflect.DeepEqual(got, x.want) || !errors.Is(err, x.err) {
			t.Errorf("%s: %+v, %v, want %+v, %v", x.what, got, err, x.want, x.err)
		}
	}
}

// TestCompare: only an ask of the named master, in the term, that compared with the row as it is, changes it; each change raises Change.
func TestCompare(t *testing.T) {
	ask := Ask{Master: a, Term: 3, Start: 4, Change: 7}
	with := func(change func(*Ask)) Ask { x := ask; change(&x); return x }
	for _, x := range []struct {
		what string
		ask  Ask
		want Row
		err  error
	}{
		{"the same set", with(func(x *Ask) { x.Set = []Member{c, b} }), Row{Term: 3, Master: a, Set: []Member{b, c}, Change: 8, Generation: 1, Start: 4}, nil},
		{"one leaves", with(func(x *Ask) { x.Set = []Member{c} }), Row{Term: 3, Master: a, Set: []Member{c}, Change: 8, Generation: 1, Start: 4}, nil},
		{"an older row", with(func(x *Ask) { x.Change = 6 }), row(), ErrStale},
		{"an older term", with(func(x *Ask) { x.Term = 2 }), row(), ErrStale},
		{"another broker", with(func(x *Ask) { x.Master = b }), row(), ErrStale},
		{"another store", with(func(x *Ask) { x.Master.Store = "s9" }), row(), ErrAsk},
		{"itself in the set", with(func(x *Ask) { x.Set = []Member{a} }), row(), ErrAsk},
		{"one twice", with(func(x *Ask) { x.Set = []Member{b, member("b", "x", "y")} }), row(), ErrAsk},
		{"hand over", with(func(x *Ask) { x.Set, x.To = []Member{b, c}, "c" }), Row{Term: 6, Master: c, Set: []Member{b}, Change: 8, Generation: 1}, nil},
		{"hand over to one outside", with(func(x *Ask) { x.Set, x.To = []Member{b}, "c" }), row(), ErrAsk},
		{"a new store", with(func(x *Ask) { x.Master.Store, x.Copied, x.Seen = "s9", true, 8 }), Row{Term: 9, Master: member("a", "b1", "s9"), Set: []Member{b, c}, Change: 8, Generation: 1, Fence: true}, nil},
	} {
		before := row()
		got, err := before.Compare(x.ask, 5, 1)
		if !reflect.DeepEqual(got, x.want) || !errors.Is(err, x.err) {
			t.Errorf("%s: %+v, %v, want %+v, %v", x.what, got, err, x.want, x.err)
		}
		if !reflect.DeepEqual(before, row()) {
			t.Errorf("%s: the row that was is another now: %+v", x.what, before)
		}
	}
	if _, err := row().Compare(ask, 0, 2); !errors.Is(err, ErrNotReady) {
		t.Errorf("in another generation: %v", err)
	}
}

// TestPromote: only a member, of its boot and store, that is complete as far as is known; of these the most complete one.
func TestPromote(t *testing.T) {
	rep := func(m Member, end uint64) Report {
		return Report{Member: m, LastTerm: 3, LastStart: 2, End: end, Seen: 3}
	}
	for _, x := range []struct {
		what    string
		reports []Report
		known   uint64
		want    string // "": nobody
	}{
		{"the longest", []Report{rep(b, 10), rep(c, 12)}, 10, "c"},
		{"the later epoch", []Report{{Member: b, LastTerm: 3, LastStart: 3, End: 5}, rep(c, 12)}, 0, "b"},
		{"another boot", []Report{rep(member("b", "b9", "s2"), 12)}, 0, ""},
		{"another store", []Report{rep(member("b", "b2", "s9"), 12)}, 0, ""},
		{"not a member", []Report{rep(member("d", "b2", "s2"), 12)}, 0, ""},
		{"it refuses", []Report{{Member: b, Refused: true}}, 0, ""},
		{"an older image", []Report{rep(b, 10)}, 11, ""},
		{"the master itself", []Report{rep(a, 10)}, 0, ""},
	} {
		got, err := row().Promote(x.reports, x.known, 1)
		if x.want == "" {
			if !errors.Is(err, ErrNoCandidate) || !reflect.DeepEqual(got, row()) {
				t.Errorf("%s: %+v, %v", x.what, got, err)
			}
			continue
		}
		if err != nil || got.Master.Broker != x.want || got.Term != 4 || len(got.Set) != 1 || got.Change != 8 || got.Forced {
			t.Errorf("%s: %+v, %v", x.what, got, err)
		}
	}
}

// TestForce: the term is higher than any that was met, the set is empty, and what may be lost is told.
func TestForce(t *testing.T) {
	to := Report{Member: c, LastTerm: 3, LastStart: 1, End: 10, Seen: 3}
	others := []Report{{Member: a, LastTerm: 3, LastStart: 2, End: 15, Committed: 12, Seen: 8}, {Member: b, LastTerm: 3, LastStart: 1, End: 10}}
	got, err := row().Force(c, append(others, to), 1)
	if want := (Row{Term: 9, Master: c, Forced: true, Change: 8, Generation: 1}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	want := []Loss{{Broker: "a", Beyond: 5, Acked: true, Diverged: true}, {Broker: "d", Unasked: true}}
	if got := Losses(to, others, []string{"d"}, 10); !reflect.DeepEqual(got, want) {
		t.Errorf("losses %+v, want %+v", got, want)
	}
	if got := Losses(others[0], []Report{to, others[1]}, nil, 15); got != nil {
		t.Errorf("losses of the most complete: %+v", got)
	}
}

// TestRefill: nothing before all have reported or are said to be gone; then the master of the highest term, or the most complete broker in a new
// term that it must fence; the set is empty.
func TestRefill(t *testing.T) {
	group := []string{"a", "b", "c"}
	reports := map[string]Report{"a": {Member: a, LastTerm: 5, LastStart: 1, End: 9, Seen: 5}, "b": {Member: b, LastTerm: 5, LastStart: 2, End: 7, Seen: 6}}
	if _, err := row().Refill(group, reports, nil, 2); !errors.Is(err, ErrNotReady) {
		t.Errorf("c has not reported: %v", err)
	}
	got, err := row().Refill(group, reports, []string{"c"}, 2)
	if want := (Row{Term: 7, Master: b, Change: 8 + generationStep, Generation: 2, Fence: true}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	reports["c"] = Report{Member: c, Master: true, Term: 6, Seen: 6}
	got, err = row().Refill(group, reports, nil, 2)
	if want := (Row{Term: 6, Master: c, Change: 8 + generationStep, Generation: 2}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
}

// TestConfirm: a master of a higher term is entered; a higher term that is nobody's makes the named master's term higher still.
func TestConfirm(t *testing.T) {
	got, changed := row().Confirm(Report{Member: b, Master: true, Term: 5, Seen: 5}, nil, 1)
	if want := (Row{Term: 5, Master: b, Change: 8, Generation: 1}); !changed || !reflect.DeepEqual(got, want) {
		t.Errorf("%v %+v, want %+v", changed, got, want)
	}
	again := member("a", "b8", "s1")
	got, changed = row().Confirm(Report{Member: b, Seen: 5}, []Report{{Member: again, LastTerm: 3, Seen: 3}}, 1)
	if want := (Row{Term: 6, Master: again, Set: []Member{b, c}, Change: 8, Generation: 1}); !changed || !reflect.DeepEqual(got, want) {
		t.Errorf("%v %+v, want %+v", changed, got, want)
	}
	// It has not opened in its term, and in another boot: what it was named for may be lost, and the grant goes on saying so.
	got, changed = row().Confirm(Report{Member: again, LastTerm: 2, Seen: 5}, nil, 1)
	if !changed || got.Master != a {
		t.Errorf("%v %+v", changed, got)
	}
	if got, changed = row().Confirm(Report{Member: b, Seen: 3}, nil, 1); changed || !reflect.DeepEqual(got, row()) {
		t.Errorf("%v %+v", changed, got)
	}
}

// TestLeap: a term that cannot have been met is not believed, so that there is always one to come.
func TestLeap(t *testing.T) {
	for _, x := range []struct{ met, want uint32 }{{0, 4}, {9, 10}, {3 + Leap, 4 + Leap}, {4 + Leap, 4}, {1<<32 - 1, 4}} {
		if got := row().grant(b, nil, x.met, false).Term; got != x.want {
			t.Errorf("with term %d met: %d, want %d", x.met, got, x.want)
		}
	}
}
