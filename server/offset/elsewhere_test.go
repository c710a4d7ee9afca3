package offset

import (
	"bytes"
	"testing"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/wire"
)

// TestClone: a copy has what the table has, and what is noted in it is in it alone.
func TestClone(t *testing.T) {
	table := goldenTable()
	before := table.Snapshot(nil)
	c, err := table.Clone()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(c.Snapshot(nil), before) {
		t.Fatal("the copy is another")
	}
	note := func(generation uint32, r Range) {
		t.Helper()
		ends := []End{{Group: 2, Topic: orders, Partition: 7, Generation: generation, Outcome: wire.Acked, Range: r}}
		if err := c.NoteRecord(journal.Record{Kind: journal.KindEnd, Payload: AppendEnds(nil, ends)}); err != nil {
			t.Fatal(err)
		}
	}
	_, at, _ := table.Progress(2, orders, 7)
	note(at, Range{1 << 34, 1<<34 + 2})
	note(at-1, Range{1<<34 + 4, 1<<34 + 5}) // older: it does not count
	note(at+3, Range{1<<34 + 6, 1<<34 + 7}) // behind a reset that is not known
	if err := c.NoteRecord(journal.Record{Kind: journal.KindLeaseExpiry, Payload: AppendExpiries(nil, []Expiry{
		{Group: 2, Topic: orders, Partition: 7, Generation: at, Count: 9, Ranges: Ranges{{1<<34 + 9, 1<<34 + 10}}}})}); err != nil {
		t.Fatal(err)
	}
	p, generation, _ := c.Progress(2, orders, 7)
	if got := p.Consumed.String(); got != "[17179869184,17179869186) [17179869190,17179869191)" || generation != at {
		t.Errorf("%v generation %d", p, generation)
	}
	if n, _ := p.Expired.At(1<<34 + 9); n != 9 {
		t.Errorf("%v", p)
	}
	// Kinds that say nothing of messages, and groups that are not there, change nothing; bytes that are no record are told.
	was := c.Snapshot(nil)
	if err := c.NoteRecord(journal.Record{Kind: journal.KindMessages}); err != nil || !bytes.Equal(c.Snapshot(nil), was) {
		t.Error(err)
	}
	if n := c.Note([]End{{Group: 99, Topic: orders, Range: Range{0, 1}}}, nil, 0); n != 0 {
		t.Errorf("%d messages of a group that is not there", n)
	}
	for _, k := range []journal.Kind{journal.KindEnd, journal.KindLeaseExpiry} {
		if err := c.NoteRecord(journal.Record{Kind: k, Payload: []byte{1, 9}}); err == nil {
			t.Errorf("%v: no error", k)
		}
	}
	if !bytes.Equal(table.Snapshot(nil), before) {
		t.Error("the table itself changed")
	}
}
