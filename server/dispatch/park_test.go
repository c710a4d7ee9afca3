package dispatch

import (
	"errors"
	"testing"
	"time"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/store"
)

// At a commit nobody looks at fetches that wait for other partitions: there may be tens of thousands, and every send would
// wait for that.
func TestCommitLeavesOthersAlone(t *testing.T) {
	s := &fakeSource{ends: map[uint16]index.Index{}, progress: map[offset.GroupID]map[uint16]offset.Progress{1: {}}}
	d := New(Options{Source: s, Boot: 1})
	defer d.Close()
	defer d.Stop(errors.New("over"))
	key := Queue{Group: 1, Topic: topic}
	told := make(chan *Fetch, 1)
	park := func(only ...uint16) *Fetch {
		f := &Fetch{Queue: key, Partitions: 70, Client: Client{ID: "a"}, Max: 1, Only: only, Wait: time.Hour, Waiter: waiterFunc(func(f *Fetch) { told <- f })}
		if err := d.Park(f); !errors.Is(err, ErrParked) {
			t.Fatal(err)
		}
		return f
	}
	commit := func(p uint16) {
		d.Commit(store.Partition{Topic: store.TopicID(topic.ID), Incarnation: topic.Incarnation, Partition: p}, 1)
	}
	f := park(0, 65, 65, 0)

	q := d.mu.queues[key]
	q.parked.head = &Fetch{} // whoever looks at it fails: it has no member
	commit(1)
	commit(64)
	q.parked.head = f
	if len(told) > 0 {
		t.Fatal("a fetch got what it does not accept")
	}

	commit(65)
	if got := <-told; got != f || f.Err != nil || f.Lease.Partition != 65 {
		t.Fatalf("got %+v, %v", f.Lease, f.Err)
	}
	for p, n := range q.parkedFor {
		if n != 0 {
			t.Errorf("%d fetches are counted as waiting for partition %d", n, p)
		}
	}
}

type waiterFunc func(*Fetch)

func (w waiterFunc) Granted(f *Fetch) { w(f) }
