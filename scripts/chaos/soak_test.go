package main

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jmqio/jmq/server/servertest/check"
)

// windowOf is the history of n messages of one partition from an index on, sent, received and acked, and of the rest after them.
func windowOf(first, n uint64, at int64) (events []check.Event) {
	for i := first; i < first+n; i++ {
		t := at + int64(i)*10
		id, lease := fmt.Sprint("m", i), i+1
		events = append(events,
			check.Event{Op: check.OpSend, Proc: "p", Topic: normal, ID: id, Hash: "h", Seq: i + 1, Index: i, Call: t, Return: t + 1, Result: check.OK},
			check.Event{Op: check.OpRecv, Proc: "c", Topic: normal, Group: app, ID: id, Hash: "h", Seq: i + 1, Index: i, Epoch: 1, Lease: lease, Call: t + 2},
			check.Event{Op: check.OpAck, Proc: "c", Topic: normal, Group: app, Index: i, To: i + 1, Lease: lease, Call: t + 3, Return: t + 4, Result: check.OK})
	}
	rest := at + int64(first+n)*10
	return append(events,
		check.Event{Op: check.OpDrain, Topic: normal, Group: app, Call: rest},
		check.Event{Op: check.OpOffset, Topic: normal, Group: app, Index: first + n, Call: rest, Return: rest},
		check.Event{Op: check.OpBalance, Topic: normal, Group: app, Index: first, To: first + n, Call: rest, Return: rest})
}

// scanOf is a reading of the disk in the end.
func scanOf(first, end uint64) (events []check.Event) {
	for i := first; i < end; i++ {
		events = append(events, check.Event{Op: check.OpScan, Proc: "b1", Topic: normal, ID: fmt.Sprint("m", i), Hash: "h", Seq: i + 1, Index: i, Epoch: 1, Call: 1 << 40})
	}
	return append(events, check.Event{Op: check.OpScanned, Proc: "b1", Topic: normal, Index: first, To: end, Call: 1 << 40})
}

// A history that is judged window by window, and let go in between, is as good as one that is judged as a whole: what is wrong between windows is found, as
// what is wrong in one.
func TestWindows(t *testing.T) {
	lateSend := check.Event{Op: check.OpSend, Proc: "q", Topic: normal, ID: "late", Hash: "h", Call: 5, Return: 6, Result: check.Unknown, Unknown: 1}
	for _, c := range []struct {
		name   string
		change func(windows [][]check.Event)
		bad    string // in the report; "": nothing
	}{
		{"good", func([][]check.Event) {}, ""},
		{"a message of unknown outcome comes later", func(w [][]check.Event) {
			w[0] = append(w[0], lateSend)
			for i := range w[2] {
				if e := &w[2][i]; e.ID == "m25" && e.Op == check.OpSend {
					*e = check.Event{Op: check.OpDie, Proc: "nobody", Call: 1}
				} else if e.ID == "m25" {
					e.ID, e.Seq = "late", 0
				}
			}
			w[3][25].ID, w[3][25].Seq = "late", 0
		}, ""},
		{"a message comes that nobody sent", func(w [][]check.Event) { w[2][1].ID = "late" }, "C2"},
		{"what was consumed in a window before comes again", func(w [][]check.Event) {
			again := w[0][1]
			again.Call, again.Lease = w[2][0].Call, 1000
			w[2] = append(w[2], again)
		}, "C2"},
		{"an index is used again", func(w [][]check.Event) { w[1][0].Index, w[1][1].Index = 3, 3 }, "was another message"},
		{"a message is lost", func(w [][]check.Event) { w[1] = slices.Delete(w[1], 4, 5) }, "C1"},
		{"an older message changes on the disk", func(w [][]check.Event) { w[3][2].Hash = "other" }, "was another message"},
		{"older messages have other places on the disk", func(w [][]check.Event) { w[3][2].Index, w[3][3].Index = 3, 2 }, "was another message"},
		{"the disk has lost all since the window before", func(w [][]check.Event) { w[3] = scanOf(0, 15) }, "was consumed to 30"},
		{"the disk has not the last message", func(w [][]check.Event) { w[3] = scanOf(0, 39) }, "C1"},
		{"what was trimmed is not there", func(w [][]check.Event) { w[3] = scanOf(25, 40) }, ""},
		{"a master of before the window", func(w [][]check.Event) {
			w[0] = append(w[0], check.Event{Op: check.OpMaster, Proc: "b1", BrokerGroup: "b1", Epoch: 7, Call: 1, Return: 2})
			w[2] = append(w[2], check.Event{Op: check.OpMaster, Proc: "b2", BrokerGroup: "b1", Epoch: 7, Call: 400, Return: 500})
		}, "C9"},
		{"settings that were changed in the window before are changed again", func(w [][]check.Event) {
			w[1] = append(w[1], check.Event{Op: check.OpWrite, Proc: "s", Key: "settings-1", Hash: "new", Expect: 5, Version: 9, Call: 300, Return: 301, Result: check.OK})
		}, "C10"},
		{"settings are changed in one window after the other", func(w [][]check.Event) {
			w[1] = append(w[1], check.Event{Op: check.OpWrite, Proc: "s", Key: "settings-1", Hash: "new", Expect: 7, Version: 9, Call: 1 << 62, Return: 1<<62 + 1, Result: check.OK})
		}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			windows := [][]check.Event{windowOf(0, 10, 1000), windowOf(10, 10, 1000), windowOf(20, 10, 1000), scanOf(0, 40)}
			last := windowOf(30, 10, 1000)
			c.change(windows)
			tr := &trial{k: &kinds[0], c: &campaign{}, oks: map[string]*atomic.Int64{}, registers: map[string]register{}}
			var r row
			for _, w := range windows[:3] {
				tr.event(w...)
				tr.judge(&r)
				tr.registers["settings-1"] = register{"old", 7}
				tr.forget()
				delete(tr.registers, "settings-1") // what is known now is another matter
			}
			if n := len(tr.mu.events); n > 6 {
				t.Errorf("%d events are kept", n)
			}
			tr.event(last...)
			tr.judge(&r)
			tr.event(windows[3]...)
			tr.judge(&r)
			if bad := r.Violations() > 0; bad != (c.bad != "") || !strings.Contains(tr.report, c.bad) {
				t.Errorf("%+v\n%s", r, tr.report)
			}
			if c.bad == "" && c.name == "good" && (r.OK != 40 || r.Ops != 80) {
				t.Errorf("%+v", r)
			}
		})
	}
}
