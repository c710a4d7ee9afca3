package check

import (
	"slices"
	"testing"
)

// What was damaged may be missing, to whoever is told so; what was not may not, and nobody may say that it is.
func TestLost(t *testing.T) {
	base := []Event{
		{Op: OpSend, Proc: "p", Topic: "t", ID: "a", Hash: "h", Index: 0, Call: 1, Return: 2, Result: OK},
		{Op: OpSend, Proc: "p", Topic: "t", ID: "b", Hash: "h", Index: 1, Call: 3, Return: 4, Result: OK},
		{Op: OpSend, Proc: "p", Topic: "t", ID: "c", Hash: "h", Index: 2, Call: 5, Return: 6, Result: OK},
		{Op: OpRecv, Proc: "m", Topic: "t", Group: "g", ID: "a", Hash: "h", Lease: 1, Index: 0, Call: 10},
		{Op: OpRecv, Proc: "m", Topic: "t", Group: "g", ID: "c", Hash: "h", Lease: 2, Index: 2, Call: 12},
		{Op: OpAck, Proc: "m", Topic: "t", Group: "g", Lease: 1, Index: 0, Call: 11, Return: 12, Result: OK},
		{Op: OpAck, Proc: "m", Topic: "t", Group: "g", Lease: 2, Index: 2, Call: 13, Return: 14, Result: OK},
		{Op: OpOffset, Topic: "t", Group: "g", Index: 3, Call: 15, Return: 16},
		{Op: OpDrain, Topic: "t", Group: "g", Call: 20},
		{Op: OpScan, Proc: "disk", Topic: "t", ID: "a", Hash: "h", Index: 0, Call: 20},
	}
	end := []Event{
		{Op: OpScan, Proc: "disk", Topic: "t", ID: "c", Hash: "h", Index: 2, Call: 20},
		{Op: OpScanned, Proc: "disk", Topic: "t", Index: 0, To: 3, Call: 20},
	}
	lost := Event{Op: OpLost, Topic: "t", Index: 1, To: 2, Call: 9}
	told := Event{Op: OpGap, Proc: "m", Topic: "t", Group: "g", Index: 1, To: 2, Reason: ReasonDamaged, Call: 11}
	seen := Event{Op: OpGap, Proc: "disk", Topic: "t", Index: 1, To: 2, Reason: ReasonDamaged, Call: 20}
	more := told
	more.To = 3
	trimmed, gone := told, seen
	trimmed.Reason, gone.Reason = "trimmed", "trimmed"
	for _, c := range []struct {
		name   string
		events []Event
		want   []string
	}{
		{"as it must be", []Event{lost, told, seen}, nil},
		{"the answer that told it was lost too", []Event{lost, seen}, nil},
		{"not damaged", []Event{told, seen}, []string{"C1"}},
		{"trimmed before it was given", []Event{trimmed, gone}, []string{"C1"}},
		{"more is told than is damaged", []Event{lost, more, seen}, []string{"C1"}},
		{"the scan does not tell it", []Event{lost, told}, []string{"C4"}},
		{"nothing is told at all", nil, []string{"C1", "C4", "C6", "C7", "C10"}},
	} {
		if got, report := judge(slices.Concat(base, c.events, end)); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v\n%s", c.name, got, c.want, report)
		}
	}
	for _, e := range []Event{{Op: OpLost, Topic: "t", Index: 1, To: 1}, {Op: OpGap, Proc: "m", Topic: "t"}, {Op: OpGap, Topic: "t", To: 1}, {Op: OpLost, To: 1}} {
		if e.Validate() == nil {
			t.Errorf("%+v is valid", e)
		}
	}
}
