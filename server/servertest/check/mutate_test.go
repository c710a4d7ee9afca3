package check

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// facts that a mutation needs to be one that matters: which messages are ok, received, scanned.
type historyFacts struct {
	events   []Event
	ok       map[string]Event  // id -> its only send event
	received map[string]int    // id -> receptions
	last     map[uint16]uint64 // the highest index scanned
}

func factsOf(events []Event) *historyFacts {
	f := &historyFacts{events: events, ok: map[string]Event{}, received: map[string]int{}, last: map[uint16]uint64{}}
	sends := map[string]int{}
	for _, e := range events {
		switch e.Op {
		case OpSend:
			if e.Result != "" {
				sends[e.ID]++
			}
			if e.Result == OK && e.Unknown == 0 {
				f.ok[e.ID] = e
			}
		case OpRecv:
			f.received[e.ID]++
		case OpScan:
			f.last[e.Partition] = max(f.last[e.Partition], e.Index)
		}
	}
	for id, n := range sends {
		if n > 1 {
			delete(f.ok, id)
		}
	}
	return f
}

// plain says whether e is a send, reception or reading of a message that was stored and read without trouble.
func (f *historyFacts) plain(e *Event) bool {
	_, ok := f.ok[e.ID]
	return ok && f.received[e.ID] > 0 && e.Result != ""
}

func (f *historyFacts) plainRead(e *Event) bool {
	_, ok := f.ok[e.ID]
	return ok
}

// once is a message that each group received once.
func (f *historyFacts) once(e *Event) bool { return f.plainRead(e) && f.received[e.ID] == 2 }

// of chooses the events of an op that are ok.
func (f *historyFacts) of(op Op, fits func(e *Event) bool) int {
	n := 0
	for i := range f.events {
		if e := &f.events[i]; e.Op == op && fits(e) {
			n++
		}
	}
	return n
}

// endsOK: the last message of a partition is one that was ok.
func (f *historyFacts) endsOK(partition uint16) bool {
	return f.of(OpSend, func(e *Event) bool { return e.Result == OK && e.Partition == partition && e.Index == f.last[partition] }) > 0
}

func (f *historyFacts) ackedOnce(e *Event) bool {
	return e.Result == OK && f.of(OpAck, func(o *Event) bool {
		return o.Result != Failed && o.Lease != e.Lease && o.Group == e.Group && o.Partition == e.Partition && o.Index < e.To && e.Index < o.To
	}) == 0
}

// ackedEarly: once only, and another lease was given soon after it; neither holder died, and no broker restarted meanwhile.
func (f *historyFacts) ackedEarly(e *Event) bool {
	return f.ackedOnce(e) && f.of(OpRecv, func(o *Event) bool {
		return o.Group == e.Group && o.Partition == e.Partition && o.Lease > e.Lease && o.Index >= e.To && o.Call > e.Return && o.Call < e.Return+leaseTime/4
	}) > 0 && f.of(OpRecv, func(o *Event) bool { return o.Lease == e.Lease && o.Deadline < e.Call+leaseTime/2 }) == 0 &&
		f.of(OpDie, func(o *Event) bool { return o.Call > e.Call-leaseTime && o.Call < e.Return+leaseTime }) == 0 &&
		f.of(OpRestart, func(o *Event) bool { return o.Return > e.Call-leaseTime && o.Call < e.Return+leaseTime }) == 0
}

// drained: what is said when nothing is left, so that no outcome is unknown.
func (f *historyFacts) drained(e *Event) bool {
	return f.of(OpDrain, func(o *Event) bool { return o.Group == e.Group && o.Call <= e.Call }) > 0
}

func (f *historyFacts) masterTwice(e *Event) bool {
	return f.of(OpMaster, func(o *Event) bool { return o.Epoch == e.Epoch }) > 1
}

func (f *historyFacts) okAfter(t int64) bool {
	return f.of(OpSend, func(e *Event) bool { return f.plain(e) && e.Result == OK && e.Call > t }) > 0
}

// readAfter: a write whose value was read.
func (f *historyFacts) readAfter(e *Event) bool {
	return e.Result == OK && f.of(OpRead, func(o *Event) bool { return o.Hash == e.Hash }) > 0
}

func (f *historyFacts) lastUsage(e *Event) bool {
	return f.of(OpUsage, func(o *Event) bool { return o.Call > e.Call }) == 0
}

// mutation is a single change to one event of a good history.
type mutation struct {
	name string
	op   Op
	// fits chooses events; nil: all of the op.
	fits func(f *historyFacts, e *Event) bool
	// change changes the event; all is the whole history, for borrowing. nil with drop or twice.
	change func(e *Event, rng *rand.Rand)
	drop   bool
	twice  bool
	by     []string // one of these checks must say so; "invalid": the event is refused
}

var mutations = []mutation{
	// A send.
	{name: "send id", op: OpSend, fits: (*historyFacts).plain, change: func(e *Event, _ *rand.Rand) { e.ID += "x" }, by: []string{"C2", "C4"}},
	{name: "send hash", op: OpSend, fits: (*historyFacts).plain, change: func(e *Event, _ *rand.Rand) { e.Hash += "x" }, by: []string{"C2"}},
	{name: "send key", op: OpSend, fits: (*historyFacts).plain, change: func(e *Event, _ *rand.Rand) { e.Key += "x" }, by: []string{"C2"}},
	{name: "send seq", op: OpSend, fits: (*historyFacts).plain, change: func(e *Event, _ *rand.Rand) { e.Seq++ }, by: []string{"C2"}},
	{name: "send topic", op: OpSend, fits: (*historyFacts).plain, change: func(e *Event, _ *rand.Rand) { e.Topic += "x" }, by: []string{"C2"}},
	{name: "send partition", op: OpSend, fits: (*historyFacts).plain, change: func(e *Event, _ *rand.Rand) { e.Partition = (e.Partition + 1) % modelPartitions }, by: []string{"C1", "C3", "C4", "C5"}},
	{name: "send index", op: OpSend, fits: (*historyFacts).plain, change: func(e *Event, _ *rand.Rand) { e.Index++ }, by: []string{"C1", "C4"}},
	{name: "send index far beyond", op: OpSend, fits: (*historyFacts).plain, change: func(e *Event, _ *rand.Rand) { e.Index = 1 << 62 }, by: []string{"C1"}},
	{name: "send result failed", op: OpSend, fits: (*historyFacts).plain, change: func(e *Event, _ *rand.Rand) { e.Result, e.Partition, e.Index = Failed, 0, 0 }, by: []string{"C2"}},
	{name: "send result ok", op: OpSend, fits: func(_ *historyFacts, e *Event) bool { return e.Result == Failed }, change: func(e *Event, _ *rand.Rand) { e.Result, e.Index = OK, 1<<40 }, by: []string{"C1"}},
	{name: "send result nonsense", op: OpSend, change: func(e *Event, _ *rand.Rand) { e.Result = "fine" }, by: []string{"invalid"}},
	{name: "send call too late", op: OpSend, fits: (*historyFacts).plain, change: func(e *Event, _ *rand.Rand) { e.Call, e.Return = 1<<60, 1<<60+1 }, by: []string{"C2"}},
	{name: "send return before call", op: OpSend, fits: (*historyFacts).plain, change: func(e *Event, _ *rand.Rand) { e.Return = e.Call - 1 }, by: []string{"invalid"}},
	{name: "send proc", op: OpSend, fits: (*historyFacts).plain, change: func(e *Event, _ *rand.Rand) { e.Proc = "" }, by: []string{"invalid"}},
	{name: "send lost", op: OpSend, fits: (*historyFacts).plain, drop: true, by: []string{"C2"}},
	// A reception.
	{name: "recv id", op: OpRecv, fits: (*historyFacts).plainRead, change: func(e *Event, _ *rand.Rand) { e.ID += "x" }, by: []string{"C2"}},
	{name: "recv hash", op: OpRecv, fits: (*historyFacts).plainRead, change: func(e *Event, _ *rand.Rand) { e.Hash += "x" }, by: []string{"C2"}},
	{name: "recv key", op: OpRecv, fits: (*historyFacts).plainRead, change: func(e *Event, _ *rand.Rand) { e.Key = "" }, by: []string{"C2"}},
	{name: "recv seq", op: OpRecv, fits: (*historyFacts).plainRead, change: func(e *Event, _ *rand.Rand) { e.Seq-- }, by: []string{"C2"}},
	{name: "recv topic", op: OpRecv, fits: (*historyFacts).once, change: func(e *Event, _ *rand.Rand) { e.Topic += "x" }, by: []string{"C1", "C2"}},
	{name: "recv group", op: OpRecv, fits: (*historyFacts).once, change: func(e *Event, _ *rand.Rand) { e.Group += "x" }, by: []string{"C1"}},
	{name: "recv partition", op: OpRecv, fits: (*historyFacts).plainRead, change: func(e *Event, _ *rand.Rand) { e.Partition = (e.Partition + 1) % modelPartitions }, by: []string{"C3", "C4"}},
	{name: "recv index", op: OpRecv, fits: (*historyFacts).plainRead, change: func(e *Event, _ *rand.Rand) { e.Index++ }, by: []string{"C3", "C4"}},
	{name: "recv index beyond the end", op: OpRecv, fits: (*historyFacts).plainRead, change: func(e *Event, _ *rand.Rand) { e.Index = 1 << 50 }, by: []string{"C3", "C4"}},
	{name: "recv epoch", op: OpRecv, fits: func(f *historyFacts, e *Event) bool { return e.Epoch > 1 }, change: func(e *Event, _ *rand.Rand) { e.Epoch = 0 }, by: []string{"C4"}},
	{name: "recv lease", op: OpRecv, fits: (*historyFacts).once, change: func(e *Event, _ *rand.Rand) { e.Lease += 1 << 40 }, by: []string{"C6"}},
	{name: "recv member", op: OpRecv, fits: (*historyFacts).once, change: func(e *Event, _ *rand.Rand) { e.Member += 100 }, by: []string{"C6"}},
	{name: "recv proc", op: OpRecv, fits: (*historyFacts).once, change: func(e *Event, _ *rand.Rand) { e.Proc += "x" }, by: []string{"C6"}},
	{name: "recv before the send", op: OpRecv, fits: (*historyFacts).plainRead, change: func(e *Event, _ *rand.Rand) { e.Call = 1 }, by: []string{"C2"}},
	{name: "recv lost", op: OpRecv, fits: (*historyFacts).once, drop: true, by: []string{"C1"}},
	{name: "recv twice", op: OpRecv, fits: (*historyFacts).once, twice: true, by: []string{"C3"}},
	// An ack.
	{name: "ack index", op: OpAck, fits: ackedOK, change: func(e *Event, _ *rand.Rand) { e.Index, e.To = e.Index+1000, e.To+1000 }, by: []string{"C6"}},
	{name: "ack to", op: OpAck, fits: ackedOK, change: func(e *Event, _ *rand.Rand) { e.To += 1000 }, by: []string{"C6"}},
	{name: "ack of everything", op: OpAck, fits: ackedOK, change: func(e *Event, _ *rand.Rand) { e.To = 1 << 63 }, by: []string{"C6"}},
	{name: "ack backwards", op: OpAck, fits: func(f *historyFacts, e *Event) bool { return e.Index > 2 }, change: func(e *Event, _ *rand.Rand) { e.To = 1 }, by: []string{"invalid"}},
	{name: "ack lease", op: OpAck, fits: ackedOK, change: func(e *Event, _ *rand.Rand) { e.Lease += 1 << 40 }, by: []string{"C6"}},
	{name: "ack member", op: OpAck, fits: ackedOK, change: func(e *Event, _ *rand.Rand) { e.Member += 100 }, by: []string{"C6"}},
	{name: "ack proc", op: OpAck, fits: ackedOK, change: func(e *Event, _ *rand.Rand) { e.Proc += "x" }, by: []string{"C6"}},
	{name: "ack group", op: OpAck, fits: ackedOK, change: func(e *Event, _ *rand.Rand) { e.Group += "x" }, by: []string{"C6"}},
	{name: "ack topic", op: OpAck, fits: ackedOK, change: func(e *Event, _ *rand.Rand) { e.Topic += "x" }, by: []string{"C6"}},
	{name: "ack partition", op: OpAck, fits: ackedOK, change: func(e *Event, _ *rand.Rand) { e.Partition += 50 }, by: []string{"C6"}},
	{name: "ack before the reception", op: OpAck, fits: ackedOK, change: func(e *Event, _ *rand.Rand) { e.Call, e.Return = 1, 2 }, by: []string{"C6"}},
	// A raw scan.
	{name: "scan id", op: OpScan, fits: (*historyFacts).plainRead, change: func(e *Event, _ *rand.Rand) { e.ID += "x" }, by: []string{"C2"}},
	{name: "scan hash", op: OpScan, fits: (*historyFacts).plainRead, change: func(e *Event, _ *rand.Rand) { e.Hash += "x" }, by: []string{"C2"}},
	{name: "scan key", op: OpScan, fits: (*historyFacts).plainRead, change: func(e *Event, _ *rand.Rand) { e.Key += "x" }, by: []string{"C2"}},
	{name: "scan seq", op: OpScan, fits: (*historyFacts).plainRead, change: func(e *Event, _ *rand.Rand) { e.Seq += 7 }, by: []string{"C2"}},
	{name: "scan index", op: OpScan, fits: (*historyFacts).plainRead, change: func(e *Event, _ *rand.Rand) { e.Index++ }, by: []string{"C4"}},
	{name: "scan partition", op: OpScan, fits: (*historyFacts).plainRead, change: func(e *Event, _ *rand.Rand) { e.Partition += 50 }, by: []string{"C1", "C4"}},
	{name: "scan topic", op: OpScan, fits: (*historyFacts).plainRead, change: func(e *Event, _ *rand.Rand) { e.Topic += "x" }, by: []string{"C1", "C2"}},
	{name: "scan proc", op: OpScan, fits: (*historyFacts).plainRead, change: func(e *Event, _ *rand.Rand) { e.Proc = "slave" }, by: []string{"C1", "C4"}},
	{name: "scan epoch goes back", op: OpScan, fits: func(f *historyFacts, e *Event) bool { return e.Index < f.last[e.Partition] }, change: func(e *Event, _ *rand.Rand) { e.Epoch = 1 << 40 }, by: []string{"C4"}},
	{name: "scan lost", op: OpScan, fits: (*historyFacts).plainRead, drop: true, by: []string{"C1", "C4"}},
	{name: "scan twice", op: OpScan, fits: (*historyFacts).plainRead, twice: true, by: []string{"C4"}},
	{name: "scan end", op: OpScanned, fits: func(_ *historyFacts, e *Event) bool { return e.To > 0 }, change: func(e *Event, _ *rand.Rand) { e.To++ }, by: []string{"C4"}},
	{name: "scan begin", op: OpScanned, fits: func(_ *historyFacts, e *Event) bool { return e.To > 1 }, change: func(e *Event, _ *rand.Rand) { e.Index++ }, by: []string{"C4"}},
	// An observed ack state.
	{name: "offset ahead", op: OpOffset, change: func(e *Event, _ *rand.Rand) { e.Index, e.Ranges = e.Index+500, nil }, by: []string{"C6"}},
	{name: "offset back", op: OpOffset, fits: func(_ *historyFacts, e *Event) bool { return e.Index > 3 && e.Ranges == nil }, change: func(e *Event, _ *rand.Rand) { e.Index -= 2 }, by: []string{"C6"}},
	{name: "offset range invented", op: OpOffset, change: func(e *Event, _ *rand.Rand) {
		e.Ranges = append(slices.Clone(e.Ranges), [2]uint64{e.Index + 900, e.Index + 901})
	}, by: []string{"C6"}},
	{name: "offset range lost", op: OpOffset, fits: func(_ *historyFacts, e *Event) bool { return len(e.Ranges) > 0 }, change: func(e *Event, _ *rand.Rand) { e.Ranges = nil }, by: []string{"C6"}},
	{name: "offset ranges not ascending", op: OpOffset, fits: func(_ *historyFacts, e *Event) bool { return e.Index > 0 }, change: func(e *Event, _ *rand.Rand) { e.Ranges = [][2]uint64{{0, 1}} }, by: []string{"invalid"}},
	{name: "offset of another group", op: OpOffset, fits: func(_ *historyFacts, e *Event) bool { return e.Index > 0 }, change: func(e *Event, _ *rand.Rand) { e.Group += "x" }, by: []string{"C6"}},
	// What is known at rest.
	{name: "balance pending", op: OpBalance, fits: (*historyFacts).drained, change: func(e *Event, _ *rand.Rand) { e.Pending++ }, by: []string{"C8"}},
	{name: "balance end beyond", op: OpBalance, fits: (*historyFacts).drained, change: func(e *Event, _ *rand.Rand) { e.To++ }, by: []string{"C8"}},
	{name: "balance end far beyond", op: OpBalance, change: func(e *Event, _ *rand.Rand) { e.To = 1 << 63 }, by: []string{"C8"}},
	{name: "balance end before", op: OpBalance, fits: func(f *historyFacts, e *Event) bool { return f.endsOK(e.Partition) }, change: func(e *Event, _ *rand.Rand) { e.To-- }, by: []string{"C8"}},
	{name: "acked by nobody", op: OpAck, fits: (*historyFacts).ackedOnce, drop: true, by: []string{"C8"}},
	{name: "acked when others had passed it", op: OpAck, fits: (*historyFacts).ackedEarly, change: func(e *Event, _ *rand.Rand) { e.Call, e.Return = 1<<60, 1<<60+1 }, by: []string{"C7"}},
	{name: "held while others had the next", op: OpAck, fits: (*historyFacts).ackedEarly, change: func(e *Event, _ *rand.Rand) { e.Call, e.Return = e.Call+leaseTime/2, e.Return+leaseTime/2 }, by: []string{"C10"}},
	{name: "copy hash", op: OpCopy, change: func(e *Event, _ *rand.Rand) { e.Hash += "x" }, by: []string{"C4"}},
	{name: "master elsewhere", op: OpMaster, fits: (*historyFacts).masterTwice, change: func(e *Event, _ *rand.Rand) { e.Proc = "other" }, by: []string{"C9"}},
	{name: "master in a later epoch", op: OpMaster, fits: func(f *historyFacts, e *Event) bool { return f.okAfter(e.Return) }, change: func(e *Event, _ *rand.Rand) { e.Epoch += 9 }, by: []string{"C9"}},
	{name: "read value", op: OpRead, change: func(e *Event, _ *rand.Rand) { e.Hash = "other" }, by: []string{"C10"}},
	{name: "read version", op: OpRead, fits: func(_ *historyFacts, e *Event) bool { return e.Version > 0 }, change: func(e *Event, _ *rand.Rand) { e.Version++ }, by: []string{"C10"}},
	{name: "read nothing", op: OpRead, fits: func(_ *historyFacts, e *Event) bool { return e.Version > 0 }, change: func(e *Event, _ *rand.Rand) { e.Version, e.Hash = 0, "" }, by: []string{"C10"}},
	{name: "write lost", op: OpWrite, fits: (*historyFacts).readAfter, drop: true, by: []string{"C10"}},
	{name: "write refused", op: OpWrite, fits: (*historyFacts).readAfter, change: func(e *Event, _ *rand.Rand) { e.Result = Failed }, by: []string{"C10"}},
	{name: "write version", op: OpWrite, fits: (*historyFacts).readAfter, change: func(e *Event, _ *rand.Rand) { e.Version += 1 << 20 }, by: []string{"C10"}},
	{name: "write after it was read", op: OpWrite, fits: (*historyFacts).readAfter, change: func(e *Event, _ *rand.Rand) { e.Call, e.Return = 1<<60, 1<<60+1 }, by: []string{"C10"}},
	{name: "write without value", op: OpWrite, change: func(e *Event, _ *rand.Rand) { e.Hash = "" }, by: []string{"invalid"}},
	{name: "goroutines kept", op: OpUsage, fits: (*historyFacts).lastUsage, change: func(e *Event, _ *rand.Rand) { e.Usage = &Usage{Goroutines: e.Usage.Goroutines + 1} }, by: []string{"C11"}},
	{name: "open files kept", op: OpUsage, fits: (*historyFacts).lastUsage, change: func(e *Event, _ *rand.Rand) { e.Usage = &Usage{Open: e.Usage.Open + 1} }, by: []string{"C11"}},
	{name: "files kept", op: OpUsage, fits: (*historyFacts).lastUsage, change: func(e *Event, _ *rand.Rand) { e.Usage = &Usage{Files: e.Usage.Files + 1} }, by: []string{"C11"}},
	{name: "memory kept", op: OpUsage, fits: (*historyFacts).lastUsage, change: func(e *Event, _ *rand.Rand) { e.Usage = &Usage{RSS: 2*e.Usage.RSS + rssSlack} }, by: []string{"C11"}},
	// Others.
	{name: "unknown op", op: OpRecv, change: func(e *Event, _ *rand.Rand) { e.Op = "receive" }, by: []string{"invalid"}},
	{name: "recv without lease", op: OpRecv, change: func(e *Event, _ *rand.Rand) { e.Lease = 0 }, by: []string{"invalid"}},
	{name: "result of a recv", op: OpRecv, change: func(e *Event, _ *rand.Rand) { e.Result, e.Return = OK, e.Call }, by: []string{"invalid"}},
	{name: "drain too late", op: OpDrain, change: func(e *Event, _ *rand.Rand) { e.Group = "nobody" }, by: []string{"C1"}},
}

func ackedOK(_ *historyFacts, e *Event) bool { return e.Result == OK }

// Every class of a single wrong field in a good history is caught, whichever event it hits.
func TestMutationsAreCaught(t *testing.T) {
	seed := uint64(3)
	if *seedFlag != 0 {
		seed = *seedFlag
	}
	good := runModel(seed, noBug, 1200)
	if err := checkEvents(t, good).Err(); err != nil {
		t.Fatal(err)
	}
	f := factsOf(good)
	rng := rand.New(rand.NewPCG(seed, 2))
	for _, m := range mutations {
		t.Run(m.name, func(t *testing.T) {
			var places []int
			for i := range good {
				if good[i].Op == m.op && (m.fits == nil || m.fits(f, &good[i])) {
					places = append(places, i)
				}
			}
			if len(places) == 0 {
				t.Fatal("the history has no event that fits")
			}
			for range 3 {
				at := places[rng.IntN(len(places))]
				events := slices.Clone(good)
				switch {
				case m.drop:
					// With its begin, if it has one: the checker would take it as unknown.
					was := events[at]
					events = slices.DeleteFunc(events, func(e Event) bool {
						return e.Op == was.Op && e.ID == was.ID && e.Call == was.Call && e.Proc == was.Proc && e.Key == was.Key
					})
				case m.twice:
					again := events[at]
					again.Call++
					events = slices.Insert(events, at+1, again)
				default:
					was := events[at]
					m.change(&events[at], rng)
					if was.Op == OpSend || was.Op == OpAck || was.Op == OpWrite { // its begin is another event, and would say the truth
						changed := events[at]
						events = slices.DeleteFunc(events, func(e Event) bool {
							return e.Op == was.Op && e.Result == "" && changed.Result != "" && e.ID == was.ID && e.Call == was.Call && e.Proc == was.Proc && e.Lease == was.Lease
						})
					}
				}
				caught, report := judge(events)
				if !slices.ContainsFunc(m.by, func(by string) bool { return slices.Contains(caught, by) }) {
					t.Fatalf("-seed=%d: not caught by %v but by %v, at event %+v\n%s", seed, m.by, caught, good[at], report)
				}
			}
		})
	}
}

// judge names the checks that a history violates, or "invalid".
func judge(events []Event) ([]string, string) {
	c := NewChecker()
	for _, e := range events {
		if err := c.Add(e); err != nil {
			return []string{"invalid"}, fmt.Sprint(err)
		}
	}
	r := c.Report()
	return r.Violated(), r.String()
}

// A report tells the first offenders, counts the others, and says where nothing was looked at.
func TestReport(t *testing.T) {
	r := checkEvents(t, nil)
	if !r.OK() || r.Err() != nil || strings.Count(r.String(), "nothing to check") != len(r.Checks) {
		t.Errorf("of an empty history:\n%s", r)
	}
	var events []Event
	for i := range 8 {
		events = append(events, Event{Op: OpRecv, Proc: "c", Topic: "t", Group: "g", ID: fmt.Sprint("never-", i), Hash: "h", Lease: 1, Index: uint64(i), Call: 5})
	}
	r = checkEvents(t, events)
	if c := r.Check("C2"); c.Violations != 8 || len(c.Offenders) != offendersMax || !strings.Contains(r.String(), "never-0") || !strings.Contains(r.String(), "and 3 more") {
		t.Errorf("of eight phantoms:\n%s", r)
	}
	if err := r.Err(); err == nil || !strings.Contains(err.Error(), "violates C2") {
		t.Errorf("%v", err)
	}
	if r.Check("C12") != nil || !slices.Equal(r.Unchecked("C2", "C9", "C12"), []string{"C9", "C12"}) {
		t.Error("a check C12, or one that did not look")
	}
}
