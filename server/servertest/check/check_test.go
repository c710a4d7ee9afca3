package check

import (
	"flag"
	"slices"
	"testing"
)

var seedFlag = flag.Uint64("seed", 0, "the one seed to run; 0: several")

func seeds(n uint64) []uint64 {
	if *seedFlag != 0 {
		return []uint64{*seedFlag}
	}
	s := make([]uint64, n)
	for i := range s {
		s[i] = uint64(i) + 1
	}
	return s
}

func checkEvents(t *testing.T, events []Event) *Report {
	t.Helper()
	c := NewChecker()
	for _, e := range events {
		if err := c.Add(e); err != nil {
			t.Fatalf("event %+v: %v", e, err)
		}
	}
	return c.Report()
}

// A correct broker passes, whatever the schedule, and every check has something to look at.
func TestModelPasses(t *testing.T) {
	total := map[Reason]int{}
	for _, seed := range seeds(12) {
		r := checkEvents(t, runModel(seed, noBug, 3000))
		if err := r.Err(); err != nil {
			t.Fatalf("-seed=%d: %v", seed, err)
		}
		for _, c := range r.Checks {
			if c.Checked == 0 {
				t.Errorf("-seed=%d: %s had nothing to check", seed, c.Name)
			}
		}
		for reason, n := range r.Duplicates {
			total[reason] += n
		}
		if r.Unexplained != 0 {
			t.Errorf("-seed=%d: %d unexplained", seed, r.Unexplained)
		}
		if seed == 1 {
			t.Log("\n" + r.String())
		}
	}
	if *seedFlag != 0 {
		return
	}
	for _, reason := range []Reason{ReasonAckUnknown, ReasonLeaseExpired, ReasonConsumerDied, ReasonBrokerRestarted, ReasonReleased, ReasonSendRepeated} {
		if total[reason] == 0 {
			t.Errorf("no duplicate of reason %q in all runs: the model does not show it", reason)
		}
	}
	t.Log(total)
}

// The order in which files are merged does not matter, but for the scans.
func TestMergeOrderDoesNotMatter(t *testing.T) {
	events := runModel(7, noBug, 1500)
	var scans, rest []Event
	for _, e := range events {
		if e.Op == OpScan || e.Op == OpScanned {
			scans = append(scans, e)
		} else {
			rest = append(rest, e)
		}
	}
	slices.Reverse(rest)
	r := checkEvents(t, append(scans, rest...))
	if err := r.Err(); err != nil {
		t.Fatal(err)
	}
}

// A lease that was on its way when the broker restarted reaches its holder after the next lease of the same message reached
// another: nothing is wrong, and the ack of the next one stands.
func TestLateLease(t *testing.T) {
	recv := Event{Op: OpRecv, Proc: "late", Topic: "t", Group: "g", ID: "id", Hash: "h", Lease: 1, Epoch: 1, Call: 50, Deadline: 1050}
	next := recv
	next.Proc, next.Lease, next.Epoch, next.Call, next.Deadline = "next", 2, 2, 40, 1040
	events := []Event{
		{Op: OpSend, Proc: "p", Topic: "t", ID: "id", Hash: "h", Call: 1, Return: 2, Result: OK},
		{Op: OpRestart, Call: 10, Return: 30},
		next, recv,
		{Op: OpAck, Proc: "next", Topic: "t", Group: "g", Lease: 2, Call: 60, Return: 61, Result: OK},
	}
	r := checkEvents(t, events)
	if err := r.Err(); err != nil || r.Duplicates[ReasonBrokerRestarted] != 1 {
		t.Errorf("%v, duplicates %v", err, r.Duplicates)
	}
	for i := range events { // in one epoch it would be wrong
		if events[i].Epoch != 0 {
			events[i].Epoch = 1
		}
	}
	if r := checkEvents(t, events); r.OK() {
		t.Errorf("in one epoch:\n%v", r)
	}
}

// A lease whose holder lost its connection before its handler began, and whose message another had by then: that is the reason,
// though the first of the two came last.
func TestLateHandler(t *testing.T) {
	late := Event{Op: OpRecv, Proc: "late", Topic: "t", Group: "g", ID: "id", Hash: "h", Lease: 1, Epoch: 1, Call: 60, Granted: 10, Deadline: 1070}
	next := Event{Op: OpRecv, Proc: "next", Topic: "t", Group: "g", ID: "id", Hash: "h", Lease: 2, Epoch: 1, Call: 50, Granted: 15, Deadline: 1040}
	events := []Event{
		{Op: OpSend, Proc: "p", Topic: "t", ID: "id", Hash: "h", Call: 1, Return: 2, Result: OK},
		{Op: OpDie, Proc: "late", Call: 40},
		next,
		{Op: OpAck, Proc: "next", Topic: "t", Group: "g", Lease: 2, Call: 52, Return: 55, Result: OK},
		late,
	}
	r := checkEvents(t, events)
	if err := r.Err(); err != nil || r.Duplicates[ReasonConsumerDied] != 1 {
		t.Errorf("%v, duplicates %v", err, r.Duplicates)
	}
	events[1].Call = 5 // before the lease was given
	if r := checkEvents(t, events); !slices.Equal(r.Violated(), []string{"C3", "C10"}) {
		t.Errorf("with an earlier loss:\n%v", r)
	}
}

// An ack whose first attempt broke, repeated when the next holder of the message has acked it, is told that the message has
// ended; its SDK says ok. Without that other ack it would have been taken from somebody who had lost the lease.
func TestAckRepeatedLate(t *testing.T) {
	events := []Event{
		{Op: OpSend, Proc: "p", Topic: "t", ID: "id", Hash: "h", Call: 1, Return: 2, Result: OK},
		{Op: OpRecv, Proc: "late", Topic: "t", Group: "g", ID: "id", Hash: "h", Lease: 1, Epoch: 1, Call: 5},
		{Op: OpRestart, Call: 10, Return: 30},
		{Op: OpRecv, Proc: "next", Topic: "t", Group: "g", ID: "id", Hash: "h", Lease: 2, Epoch: 2, Call: 40},
		{Op: OpAck, Proc: "late", Topic: "t", Group: "g", Lease: 1, Call: 50, Return: 70, Result: OK},
		{Op: OpAck, Proc: "next", Topic: "t", Group: "g", Lease: 2, Call: 60, Return: 61, Result: OK},
	}
	if err := checkEvents(t, events).Err(); err != nil {
		t.Error(err)
	}
	if r := checkEvents(t, events[:5]); !slices.Equal(r.Violated(), []string{"C6"}) {
		t.Errorf("without the other ack:\n%v", r)
	}
}
