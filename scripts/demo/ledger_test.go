package main

import (
	"strings"
	"testing"
)

func testOrders() (map[int]order, sums) {
	list := []order{{2, "00001", "1997-01-01", 1, 1177}, {3, "00001", "1997-01-02", 1, 100}, {4, "00002", "1997-01-01", 2, 23}}
	sent := map[int]order{}
	for _, o := range list {
		sent[o.Number] = o
	}
	return sent, sumOrders(list)
}

// The judge must find each fault by itself, and find none where there is none: one row a history.
func TestLedgerJudges(t *testing.T) {
	sent, want := testOrders()
	at := func(index uint64) location { return location{1, index} }
	type l = *ledger
	for _, c := range []struct {
		name     string
		history  func(l l)
		repeated map[int]bool
		line     string
		wrong    string
	}{
		{"all in order", func(l l) {
			l.received(at(0), sent[2])
			l.acked(at(0))
			l.received(at(1), sent[3])
			l.received(at(2), sent[4])
		}, nil, "pay sent 3 received 3 lost 0 disordered 0 duplicates 0 explained 0 customers 2 amount 13.00", ""},
		{"another customer's order in between", func(l l) {
			l.received(at(2), sent[4])
			l.received(at(0), sent[2])
			l.received(at(1), sent[3])
		}, nil, "pay sent 3 received 3 lost 0 disordered 0 duplicates 0 explained 0 customers 2 amount 13.00", ""},
		{"lost", func(l l) {
			l.received(at(0), sent[2])
			l.received(at(1), sent[3])
		}, nil, "pay sent 3 received 2 lost 1 disordered 0 duplicates 0 explained 0 customers 1 amount 12.77", "1 orders were lost, the first of them order 4"},
		{"disordered", func(l l) {
			l.received(at(1), sent[3])
			l.received(at(0), sent[2])
			l.received(at(2), sent[4])
		}, nil, "pay sent 3 received 3 lost 0 disordered 1 duplicates 0 explained 0 customers 2 amount 13.00", "out of their customer's order"},
		{"again, its ack unanswered", func(l l) {
			l.received(at(0), sent[2])
			l.received(at(1), sent[3])
			l.received(at(0), sent[2])
			l.received(at(2), sent[4])
		}, nil, "pay sent 3 received 3 lost 0 disordered 0 duplicates 1 explained 1 customers 2 amount 13.00", ""},
		{"again after its ack was ok", func(l l) {
			l.received(at(0), sent[2])
			l.acked(at(0))
			l.received(at(0), sent[2])
			l.received(at(1), sent[3])
			l.received(at(2), sent[4])
		}, nil, "pay sent 3 received 3 lost 0 disordered 0 duplicates 1 explained 0 customers 2 amount 13.00", "no cause that is known, among them order 2"},
		{"stored twice, the send was repeated", func(l l) {
			l.received(at(0), sent[2])
			l.acked(at(0))
			l.received(at(1), sent[2])
			l.received(at(2), sent[3])
			l.received(at(3), sent[4])
		}, map[int]bool{2: true}, "pay sent 3 received 3 lost 0 disordered 0 duplicates 1 explained 1 customers 2 amount 13.00", ""},
		{"stored twice by itself", func(l l) {
			l.received(at(0), sent[2])
			l.acked(at(0))
			l.received(at(1), sent[2])
			l.received(at(2), sent[3])
			l.received(at(3), sent[4])
		}, map[int]bool{3: true}, "pay sent 3 received 3 lost 0 disordered 0 duplicates 1 explained 0 customers 2 amount 13.00", "no cause that is known"},
		{"changed on the way", func(l l) {
			l.received(at(0), sent[2])
			l.received(at(1), sent[3])
			changed := sent[4]
			changed.Cents++
			l.received(at(2), changed)
		}, nil, "pay sent 3 received 2 lost 1 disordered 0 duplicates 0 explained 0 customers 1 amount 12.77", "1 messages are not what was sent"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLedger("pay", sent)
			c.history(l)
			v := l.judge(want, len(sent), c.repeated)
			if v.String() != c.line {
				t.Errorf("got  %s\nwant %s", v, c.line)
			}
			wrong := strings.Join(v.wrong(), "; ")
			if (c.wrong == "") != (wrong == "") || !strings.Contains(wrong, c.wrong) {
				t.Errorf("wrong: %q, want %q", wrong, c.wrong)
			}
		})
	}
}
