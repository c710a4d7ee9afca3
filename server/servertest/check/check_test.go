package check

import (
	"flag"
	"fmt"
	"slices"
	"strings"
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

// Two leases of a partition at once, of different messages, and one whose holder comes to its handler when its time is over.
func TestOneLease(t *testing.T) {
	recv := func(proc string, lease, index uint64, call, deadline int64) Event {
		return Event{Op: OpRecv, Proc: proc, Topic: "t", Group: "g", ID: fmt.Sprint("id-", index), Hash: "h", Index: index, Lease: lease, Epoch: 1, Call: call, Deadline: deadline}
	}
	ack := func(proc string, lease, index uint64, call int64) Event {
		return Event{Op: OpAck, Proc: proc, Topic: "t", Group: "g", Index: index, Lease: lease, Call: call, Return: call + 1, Result: OK}
	}
	var sends []Event
	for i := range uint64(3) {
		sends = append(sends, Event{Op: OpSend, Proc: "p", Topic: "t", ID: fmt.Sprint("id-", i), Hash: "h", Index: i, Call: int64(i) + 1, Return: int64(i) + 1, Result: OK})
	}
	for _, c := range []struct {
		name   string
		events []Event
		want   []string
	}{
		{"one after the other", []Event{recv("a", 1, 0, 10, 1000), ack("a", 1, 0, 15), recv("b", 2, 1, 20, 1000), ack("b", 2, 1, 25)}, nil},
		{"both at once", []Event{recv("a", 1, 0, 10, 1000), recv("b", 2, 1, 20, 1000), ack("a", 1, 0, 22), ack("b", 2, 1, 25)}, []string{"C7", "C10"}},
		{"the first has more", []Event{recv("a", 1, 0, 10, 1000), ack("a", 1, 0, 15), recv("b", 2, 2, 20, 1000), recv("a", 1, 1, 21, 1000), ack("a", 1, 1, 22), ack("b", 2, 2, 25)}, []string{"C7", "C10"}},
		{"its time is over", []Event{recv("a", 1, 0, 10, 18), recv("b", 2, 0, 20, 1000), ack("b", 2, 0, 25)}, nil},
		{"its time was over when it began", []Event{recv("a", 1, 0, 40, 18), recv("b", 2, 0, 20, 1000), ack("b", 2, 0, 25)}, nil},
		{"passes over one", []Event{recv("a", 1, 0, 10, 1000), recv("a", 1, 2, 11, 1000), ack("a", 1, 0, 15), ack("a", 1, 2, 16)}, []string{"C7"}},
		{"one was filtered", []Event{recv("a", 1, 0, 10, 1000), recv("a", 1, 2, 11, 1000), ack("a", 1, 0, 15), ack("a", 1, 2, 16),
			{Op: OpSkip, Topic: "t", Group: "g", Index: 1, To: 2, Reason: "filtered", Call: 12}}, nil},
		{"parallel", []Event{{Op: OpSubscribe, Topic: "t", Group: "g", Reason: Parallel, Call: 1}, recv("a", 1, 0, 10, 1000), recv("b", 2, 1, 20, 1000), ack("a", 1, 0, 22), ack("b", 2, 1, 25)}, nil},
	} {
		if got, report := judge(slices.Concat(sends, c.events)); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v\n%s", c.name, got, c.want, report)
		}
	}
}

// What is stored is what was acked, was skipped or is pending, exactly, unless an ack is of unknown outcome that nobody saw.
func TestBalance(t *testing.T) {
	var sends []Event
	for i := range uint64(4) {
		id := fmt.Sprint("id-", i)
		sends = append(sends, Event{Op: OpSend, Proc: "p", Topic: "t", ID: id, Hash: "h", Index: i, Call: int64(i) + 1, Return: int64(i) + 1, Result: OK},
			Event{Op: OpRecv, Proc: "a", Topic: "t", Group: "g", ID: id, Hash: "h", Index: i, Lease: 1, Call: int64(i) + 10})
	}
	about := func(op Op, from, to uint64, call int64) Event {
		e := Event{Op: op, Topic: "t", Group: "g", Index: from, To: to, Call: call}
		if op == OpAck {
			e.Proc, e.Lease, e.Return, e.Result = "a", 1, call+1, OK
		}
		return e
	}
	unknown := about(OpAck, 3, 4, 24)
	unknown.Result = Unknown
	before, after := about(OpOffset, 4, 0, 40), about(OpOffset, 3, 0, 60)
	maybe := about(OpReset, 1, 0, 30)
	maybe.Result, maybe.Return = Unknown, 35
	for _, c := range []struct {
		name        string
		events      []Event
		least, most uint64 // pending
	}{
		{"nothing acked", nil, 4, 4},
		{"all acked", []Event{about(OpAck, 0, 4, 20)}, 0, 0},
		{"a hole", []Event{about(OpAck, 0, 1, 20), about(OpAck, 2, 4, 22)}, 1, 1},
		{"one unknown", []Event{about(OpAck, 0, 3, 20), unknown}, 0, 1},
		{"one unknown, seen to have ended", []Event{about(OpAck, 0, 3, 20), unknown, before}, 0, 0},
		{"one unknown, seen not to have ended", []Event{about(OpAck, 0, 3, 20), unknown, after}, 1, 1},
		{"acked later", []Event{about(OpAck, 0, 4, 70)}, 4, 4},
		{"moved back", []Event{about(OpAck, 0, 4, 20), about(OpReset, 1, 0, 30)}, 3, 3},
		{"moved on", []Event{about(OpReset, 3, 0, 30)}, 1, 1},
		{"moved back, and acked again", []Event{about(OpAck, 0, 4, 20), about(OpReset, 1, 0, 30), about(OpAck, 2, 4, 35)}, 1, 1},
		{"maybe moved back", []Event{about(OpAck, 0, 4, 20), maybe}, 0, 4},
		{"filtered", []Event{about(OpAck, 0, 3, 20), about(OpSkip, 3, 4, 25)}, 0, 0},
	} {
		for n := range uint64(6) {
			b := about(OpBalance, 0, 4, 50)
			b.Return, b.Pending = 51, n
			got, report := judge(slices.Concat(sends, c.events, []Event{b}))
			if good := !slices.Contains(got, "C8"); good != (c.least <= n && n <= c.most) {
				t.Errorf("%s, %d pending: %v\n%s", c.name, n, got, report)
			}
		}
	}
}

// No send is ok in a lower term than one before it, nor in a lower epoch than somebody served in before it, in a broker group.
func TestFenced(t *testing.T) {
	const term = 1 << 32
	history := func(first, second uint64, others ...Event) []Event {
		events := others
		for i, epoch := range []uint64{first, second} {
			e := Event{Op: OpSend, Proc: "p", Topic: "t", ID: fmt.Sprint("id-", i), Hash: "h", Partition: uint16(i), Call: int64(10*i) + 10, Return: int64(10*i) + 11, Result: OK}
			events = append(events, e)
			e.Op, e.Call, e.Return, e.Result, e.Epoch, e.BrokerGroup = OpScan, 100, 0, "", epoch, "bg"
			events = append(events, e)
		}
		return events
	}
	master := func(proc, brokerGroup string, epoch uint64, at int64) Event {
		return Event{Op: OpMaster, Proc: proc, BrokerGroup: brokerGroup, Epoch: epoch, Call: at - 1, Return: at}
	}
	for _, c := range []struct {
		name   string
		events []Event
		bad    bool
	}{
		{"a term after another", history(1*term+1, 2*term+1), false},
		{"a lower term", history(2*term+1, 1*term+1), true},
		{"served in", history(term+1, term+2, master("b1", "bg", term+1, 5), master("b1", "bg", term+2, 15)), false},
		{"served in a higher epoch before", history(term+1, term+1, master("b1", "bg", term+2, 15)), true},
		{"served in a higher epoch meanwhile", history(term+1, term+1, master("b1", "bg", term+2, 20)), false},
		{"in another broker group", history(term+1, term+1, master("b1", "other", term+2, 15)), false},
		{"two in one epoch", history(term+1, term+1, master("b1", "bg", term+1, 5), master("b2", "bg", term+1, 9)), true},
		{"one epoch in two broker groups", history(term+1, term+1, master("b1", "bg", term+1, 5), master("b2", "other", term+1, 9)), false},
	} {
		got, report := judge(c.events)
		if slices.Contains(got, "C9") != c.bad {
			t.Errorf("%s: %v\n%s", c.name, got, report)
		}
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

// What an outage explains is that of its broker group and its time: an acked message that a slave gives again, and one that comes again before it was
// acked.
func TestOutageIsLocal(t *testing.T) {
	send := Event{Op: OpSend, Proc: "p", Topic: "t", ID: "id", Hash: "h", Call: 1, Return: 2, Result: OK}
	scan := Event{Op: OpScan, Proc: "b", BrokerGroup: "one", Topic: "t", ID: "id", Hash: "h", Epoch: 1, Call: 100}
	first := Event{Op: OpRecv, Proc: "c", Topic: "t", Group: "g", ID: "id", Hash: "h", Lease: 1, Epoch: 1, Call: 10}
	ack := Event{Op: OpAck, Proc: "c", Topic: "t", Group: "g", Lease: 1, Call: 11, Return: 12, Result: OK}
	again := first
	again.Lease, again.Epoch, again.Call = sideLease|2, 1, 20
	same := first
	same.Lease, same.Call = 2, 20
	outage := func(op Op, brokerGroup string, call, ret int64) Event {
		return Event{Op: op, Proc: "s", BrokerGroup: brokerGroup, Call: call, Return: ret, Reason: AwayUnmerged + ", " + AwayBehind}
	}
	for _, c := range []struct {
		name   string
		events []Event
		want   []string
	}{
		{"away, any", []Event{first, ack, again, outage(OpAway, "", 5, 30)}, nil},
		{"away", []Event{first, ack, again, outage(OpAway, "one", 5, 30)}, nil},
		{"away before", []Event{first, ack, again, outage(OpAway, "one", 5, 15)}, []string{"C3", "C6"}},
		{"away later", []Event{first, ack, again, outage(OpAway, "one", 25, 30)}, []string{"C3", "C6"}},
		{"another is away", []Event{first, ack, again, outage(OpAway, "two", 5, 30)}, []string{"C3", "C6"}},
		{"restart, any", []Event{first, same, outage(OpRestart, "", 15, 16)}, nil},
		{"restart", []Event{first, same, outage(OpRestart, "one", 15, 16)}, nil},
		{"another restarts", []Event{first, same, outage(OpRestart, "two", 15, 16)}, []string{"C3", "C10"}},
	} {
		if got, report := judge(append([]Event{send, scan}, c.events...)); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v\n%s", c.name, got, c.want, report)
		}
	}
}

// What a slave gave in its master's epoch came before what the master gave later, though the slave's lease has the higher number.
func TestLeasesOfSlaves(t *testing.T) {
	give := func(lease uint64, at int64) []Event {
		return []Event{
			{Op: OpRecv, Proc: "c", Topic: "t", Group: "g", ID: "id", Hash: "h", Lease: lease, Epoch: 1, Call: at, Deadline: at + 50},
			{Op: OpAck, Proc: "c", Topic: "t", Group: "g", Lease: lease, Call: at + 1, Return: at + 2, Result: OK},
		}
	}
	sent := []Event{
		{Op: OpSend, Proc: "p", Topic: "t", ID: "id", Hash: "h", Call: 1, Return: 2, Result: OK},
		{Op: OpAway, Proc: "s", Reason: AwayUnmerged, Call: 5, Return: 25},
	}
	reset := []Event{{Op: OpReset, Topic: "t", Group: "g", Index: 0, Call: 30, Return: 31}}
	for _, last := range []uint64{2, sideLease | 2} { // of the master, or of the slave, which has counted anew
		history := slices.Concat(sent, give(sideLease|9, 10), reset, give(last, 40))
		if r := checkEvents(t, history); !r.OK() || r.Duplicates[ReasonReset] != 1 {
			t.Errorf("lease %d after a reset:\n%v", last, r)
		}
		if got, report := judge(slices.Concat(sent, give(sideLease|9, 10), give(last, 40))); !slices.Contains(got, "C3") {
			t.Errorf("lease %d without one: %v\n%s", last, got, report)
		}
	}
}

// An ack that a slave took by itself counts at the master when the broker group is well again, at the latest; not if the group was moved meanwhile.
func TestMergedInTime(t *testing.T) {
	const side = sideLease | 1
	events := []Event{
		{Op: OpSend, Proc: "p", Topic: "t", ID: "id", Hash: "h", Call: 1, Return: 2, Result: OK},
		{Op: OpRecv, Proc: "c", Topic: "t", Group: "g", ID: "id", Hash: "h", Lease: side, Epoch: 1, Call: 20},
		{Op: OpAck, Proc: "c", Topic: "t", Group: "g", Lease: side, Call: 21, Return: 22, Result: OK},
		{Op: OpAway, Proc: "s", Reason: AwayUnmerged, Call: 10, Return: 40},
	}
	look := func(index uint64, call int64) Event {
		return Event{Op: OpOffset, Topic: "t", Group: "g", Index: index, Call: call, Return: call + 1}
	}
	for _, c := range []struct {
		name string
		more []Event
		ok   bool
	}{
		{"at once", []Event{look(0, 15), look(1, 23), look(1, 50)}, true},
		{"late", []Event{look(0, 15), look(0, 23), look(1, 50)}, true},
		{"never", []Event{look(0, 15), look(0, 50)}, false},
		{"and back", []Event{look(1, 25), look(0, 30)}, false},
		{"moved meanwhile", []Event{{Op: OpReset, Topic: "t", Group: "g", Index: 0, Call: 15, Return: 16}, look(0, 50)}, true},
	} {
		r := checkEvents(t, append(slices.Clone(events), c.more...))
		if ok := r.Check("C10").Violations == 0; ok != c.ok || !ok != (r.Check("C6").Violations > 0) || r.Check("C10").Note != "" {
			t.Errorf("%s:\n%v", c.name, r)
		}
	}
}

// What is derived from a journal, the index and where groups stand, is the same at all copies, each for itself.
func TestCopiesOfWhatIsDerived(t *testing.T) {
	of := func(proc, topic string, partition uint16, group, hash string) Event {
		return Event{Op: OpCopy, Proc: proc, BrokerGroup: "b1", Topic: topic, Partition: partition, Group: group, Index: 0, To: 100, Hash: hash, Call: 1}
	}
	good := []Event{
		of("b1", "", 0, "", "journal"), of("b1-s1", "", 0, "", "journal"),
		of("b1", "orders", 0, "", "index 0"), of("b1-s1", "orders", 0, "", "index 0"),
		of("b1", "orders", 1, "", "index 1"), of("b1-s1", "orders", 1, "", "index 1"),
		of("b1", "orders", 1, "pay", "group"), of("b1-s1", "orders", 1, "pay", "group"),
	}
	if r := checkEvents(t, good); !r.OK() || r.Copies != len(good) {
		t.Fatalf("%d copies:\n%s", r.Copies, r)
	}
	for i, what := range map[int]string{1: "records [0, 100)", 3: "index of orders/0", 5: "index of orders/1", 7: "group pay at orders/1"} {
		events := slices.Clone(good)
		events[i].Hash += "x"
		if c := checkEvents(t, events).Check("C4"); c.Violations != 1 || !strings.Contains(c.Offenders[0], what) || !c.Subjects[0].Concerns(&events[i]) {
			t.Errorf("copy %d: %+v", i, c)
		}
	}
}

// A write that was to change one version has found it, if it was ok; one of unknown outcome may have found another, and has changed nothing then.
func TestExpectedVersions(t *testing.T) {
	write := func(call int64, hash string, expect, version uint64, result Result) Event {
		return Event{Op: OpWrite, Proc: "p", Key: "r", Hash: hash, Expect: expect, Version: version, Call: call, Return: call + 5, Result: result}
	}
	read := func(call int64, hash string, version uint64) Event {
		return Event{Op: OpRead, Proc: "p", Key: "r", Hash: hash, Version: version, Call: call, Return: call + 1}
	}
	first := write(1, "a", 0, 7, OK)
	for _, c := range []struct {
		name   string
		events []Event
		good   bool
	}{
		{"one after the other", []Event{write(10, "b", 7, 9, OK), write(20, "c", 9, 12, OK), read(30, "c", 12)}, true},
		{"two change the same version", []Event{write(10, "b", 7, 9, OK), write(11, "c", 7, 10, OK)}, false},
		{"a version that was changed before", []Event{write(10, "b", 7, 9, OK), write(20, "c", 7, 12, OK)}, false},
		{"a version that never was", []Event{write(10, "b", 8, 9, OK)}, false},
		{"unknown, and it was", []Event{write(10, "b", 7, 0, Unknown), read(20, "b", 9), write(30, "c", 9, 10, OK)}, true},
		{"unknown, and it was not", []Event{write(10, "b", 7, 0, Unknown), write(20, "c", 7, 10, OK), read(30, "c", 10)}, true},
		{"unknown, and it was too late", []Event{write(10, "b", 7, 0, Unknown), write(20, "c", 7, 10, OK), read(30, "b", 11)}, false},
		{"unknown, and what follows tells its version", []Event{write(10, "b", 7, 0, Unknown), write(20, "c", 9, 12, OK), read(30, "c", 12)}, true},
		{"unknown, and both were", []Event{write(10, "b", 7, 0, Unknown), read(20, "b", 9), write(30, "c", 7, 12, OK)}, false},
	} {
		if got := checkEvents(t, append([]Event{first}, c.events...)); (got.Check("C10").Violations == 0) != c.good {
			t.Errorf("%s:\n%s", c.name, got)
		}
	}
}

// A group that a person may have moved may stand anywhere from then on, or from any later moment on, but was moved once.
func TestUnknownReset(t *testing.T) {
	at := func(op Op, index uint64, call int64, result Result) Event {
		return Event{Op: op, Topic: "t", Group: "g", Index: index, Call: call, Return: call + 1, Result: result}
	}
	events := []Event{at(OpReset, 40, 1, OK), at(OpOffset, 40, 10, ""), at(OpReset, 20, 20, Unknown), at(OpOffset, 40, 30, "")}
	if r := checkEvents(t, events); !r.OK() {
		t.Errorf("it was not moved:\n%s", r)
	}
	// Late, perhaps, but once.
	if events = append(events, at(OpReset, 50, 40, OK), at(OpOffset, 35, 50, "")); !checkEvents(t, events).OK() {
		t.Errorf("it was moved late:\n%s", checkEvents(t, events))
	}
	events = append(events, at(OpOffset, 50, 60, ""))
	if r := checkEvents(t, events); r.Check("C10").Violations == 0 {
		t.Errorf("it was moved twice:\n%s", r)
	}
}
