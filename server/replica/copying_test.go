package replica

import (
	"testing"
	"time"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/term"
)

// TestCopying: a slave that makes a full copy is never in sync, nothing is committed or copied by what it acks, and when the copy is in its place it joins
// as any other.
func TestCopying(t *testing.T) {
	now := time.Unix(1000, 0)
	epoch := journal.MakeEpoch(1, 1)
	own := History{Epochs: []journal.EpochStart{{Epoch: epoch}}, End: 8}
	b := term.Member{Broker: "b", Boot: "1", Store: "old"}
	l := NewLeader(LeaderOptions{Self: term.Member{Broker: "a", Boot: "1", Store: "a"}, Epoch: epoch, Begins: 8, Auto: true, Now: now,
		Row: &term.Row{Term: 1, Set: []term.Member{b}}}) // the registry may hold what it had
	follow := func(copying bool) {
		t.Helper()
		h := Hello{Member: term.Member{Broker: "b", Boot: "1", Store: "new"}, Copying: copying, History: own}
		w, err := l.Welcome(now, h, own)
		if err == nil {
			h.Session = w.Session
			_, err = l.Welcome(now, h, own)
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Ack(now, w.Session, epoch, 8, 8); err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Millisecond)
		l.Tick(now)
	}
	follow(true)
	if l.InSync() || l.Copied() != 0 || l.Committed() != 0 {
		t.Errorf("by the acks of a copy: in sync %v, copied %d, committed %d", l.InSync(), l.Copied(), l.Committed())
	}
	follow(false)
	if !l.InSync() || l.Copied() != 8 || l.Committed() != 8 {
		t.Errorf("when it is whole: in sync %v, copied %d, committed %d", l.InSync(), l.Copied(), l.Committed())
	}
	follow(true)
	if l.InSync() || l.Slaves(now)[0].Join != 0 {
		t.Error("it is in sync, or will be, and makes a full copy again")
	}
	// It left soon after it had joined, so it has to be in step for twice as long; what is left of that is said.
	wait := 2 * Timing{}.withDefaults().JoinAfter
	follow(false)
	for joins := wait; joins > 0; joins -= time.Second {
		if got := l.Slaves(now)[0].Join; l.InSync() || got != joins {
			t.Fatalf("it joins in %v, want %v; in sync %v", got, joins, l.InSync())
		}
		for range 4 {
			now = now.Add(250 * time.Millisecond)
			if _, err := l.Ack(now, l.lost, epoch, 8, 8); err != nil {
				t.Fatal(err)
			}
			l.Tick(now)
		}
	}
	if !l.InSync() || l.Slaves(now)[0].Join != 0 {
		t.Error("it is not in sync when its time has come")
	}
}
