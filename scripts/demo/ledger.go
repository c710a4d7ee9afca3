package main

import (
	"fmt"
	"sync"
)

// ledger keeps what one group received and acknowledged, and judges it at the end. Safe for concurrent use by the
// group's members.
//
// A delivery of an order that the group received before is a duplicate. It is explained when its cause is known:
//
//   - the same stored message (partition and index) again, and no earlier delivery of it had been acknowledged with ok
//     before this one came: the ack was lost with a killed broker, or its answer was, or the lease ended;
//   - another stored message with the same order: the producer had to send that order more than once, because the
//     outcome of an attempt was unknown.
//
// Everything else is unexplained: above all a message that comes again after its ack was answered ok.
type ledger struct {
	group string

	mu struct {
		sync.Mutex
		first      map[int]order     // received orders by number
		last       map[string]int    // customer: the order number received last for the first time
		locations  map[location]bool // every stored message that was delivered: true when an ack of it was answered ok
		deliveries int
		disordered int
		duplicates []duplicate
		foreign    int // received what was never sent
	}
	sent map[int]order // read only
}

type location struct {
	partition uint16
	index     uint64
}

type duplicate struct {
	number int
	reason string // empty: unexplained
	resent bool   // another stored message: explained if the producer says that it repeated the send
}

func newLedger(group string, sent map[int]order) *ledger {
	l := &ledger{group: group, sent: sent}
	l.mu.first = map[int]order{}
	l.mu.last = map[string]int{}
	l.mu.locations = map[location]bool{}
	return l
}

// received notes a delivery; members call it before they ack. It says whether the order came for the first time.
func (l *ledger) received(at location, o order) (first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.deliveries++
	if l.sent[o.Number] != o {
		l.mu.foreign++
		return false
	}
	acked, known := l.mu.locations[at]
	_, again := l.mu.first[o.Number]
	switch {
	case again && known && !acked:
		l.mu.duplicates = append(l.mu.duplicates, duplicate{number: o.Number, reason: "its ack was not answered ok"})
	case again && known:
		l.mu.duplicates = append(l.mu.duplicates, duplicate{number: o.Number})
	case again:
		l.mu.duplicates = append(l.mu.duplicates, duplicate{number: o.Number, resent: true})
	default:
		l.mu.first[o.Number] = o
		if o.Number < l.mu.last[o.Customer] {
			l.mu.disordered++
		}
		l.mu.last[o.Customer] = max(l.mu.last[o.Customer], o.Number)
	}
	l.mu.locations[at] = acked
	return !again
}

// acked notes that an ack was answered ok.
func (l *ledger) acked(at location) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.locations[at] = true
}

// verdict is a group's line.
type verdict struct {
	group                    string
	sent, received           int
	lost, disordered         int
	duplicates, explained    int
	customers                int
	cents                    int64
	wantCustomers, foreign   int
	wantCents                int64
	reasons                  map[string]int // of explained duplicates
	firstLost, unexplainedAt int            // an order number each, 0: none
}

// judge compares with what was sent. repeated holds the orders that the producer had to send more than once.
func (l *ledger) judge(want sums, acknowledged int, repeated map[int]bool) verdict {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := verdict{
		group: l.group, sent: acknowledged, received: len(l.mu.first), disordered: l.mu.disordered,
		duplicates: len(l.mu.duplicates), wantCustomers: want.customers, wantCents: want.cents, foreign: l.mu.foreign,
		reasons: map[string]int{},
	}
	customers := map[string]bool{}
	for _, o := range l.mu.first {
		customers[o.Customer] = true
		v.cents += o.Cents
	}
	v.customers = len(customers)
	for n := range l.sent {
		if _, ok := l.mu.first[n]; !ok {
			v.lost++
			if v.firstLost == 0 || n < v.firstLost {
				v.firstLost = n
			}
		}
	}
	for _, d := range l.mu.duplicates {
		reason := d.reason
		if d.resent && repeated[d.number] {
			reason = "its send was repeated after an unknown outcome"
		}
		if reason == "" {
			v.unexplainedAt = d.number
			continue
		}
		v.explained++
		v.reasons[reason]++
	}
	return v
}

func (v verdict) String() string {
	return fmt.Sprintf("%s sent %d received %d lost %d disordered %d duplicates %d explained %d customers %d amount %s",
		v.group, v.sent, v.received, v.lost, v.disordered, v.duplicates, v.explained, v.customers, dollars(v.cents))
}

// wrong says what must not be, one line each.
func (v verdict) wrong() []string {
	var w []string
	bad := func(format string, args ...any) { w = append(w, v.group+": "+fmt.Sprintf(format, args...)) }
	if v.lost > 0 {
		bad("%d orders were lost, the first of them order %d", v.lost, v.firstLost)
	}
	if v.disordered > 0 {
		bad("%d orders came out of their customer's order", v.disordered)
	}
	if n := v.duplicates - v.explained; n > 0 {
		bad("%d duplicates have no cause that is known, among them order %d", n, v.unexplainedAt)
	}
	if v.foreign > 0 {
		bad("%d messages are not what was sent", v.foreign)
	}
	if v.customers != v.wantCustomers || v.cents != v.wantCents {
		bad("the sums differ from the log's: %d customers and %s, not %d and %s", v.customers, dollars(v.cents), v.wantCustomers, dollars(v.wantCents))
	}
	return w
}
