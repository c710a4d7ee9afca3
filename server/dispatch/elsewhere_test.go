package dispatch

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/wire"
)

const elsewherePartitions = 2

// TestElsewhere lets members fetch and ack at a slave's dispatcher, and then ships all to a master's, which has given some messages by then, twice:
// what ended has ended there, a lease that was taken in is its member's until it ends, nobody else gets its messages, and
// every invariant holds. What was not taken in was with somebody else.
func TestElsewhere(t *testing.T) {
	rapid.Check(t, runElsewhere)
}

func runElsewhere(r *rapid.T) {
	policy := offset.Policy{Parallel: rapid.Bool().Draw(r, "parallel"), Window: 30}
	s := &fakeSource{ends: map[uint16]index.Index{0: 40, 1: 40}, policy: policy}
	q := Queue{Group: 1, Topic: topic}
	slave, master := New(Options{Source: s, Elsewhere: true}), New(Options{Source: s, Boot: 1})
	defer slave.Close()
	defer master.Close()
	check := func(d *Dispatcher, after string) {
		if err := d.invariants(); err != nil {
			r.Fatalf("after %s: %v", after, err)
		}
	}
	type held struct {
		client Client
		Lease
	}
	use := func(d *Dispatcher, steps int) (leases []held) {
		for range steps {
			c := Client{ID: fmt.Sprint("c", rapid.IntRange(0, 2).Draw(r, "client"))}
			switch rapid.IntRange(0, 2).Draw(r, "step") {
			case 0:
				f := &Fetch{Queue: q, Partitions: elsewherePartitions, Client: c, Max: rapid.Uint32Range(1, 9).Draw(r, "max")}
				if err := d.Take(f); err == nil {
					leases = append(leases, held{c, f.Lease})
				} else if !errors.Is(err, ErrNone) {
					r.Fatal(err)
				}
			default:
				if len(leases) == 0 {
					continue
				}
				l := leases[rapid.IntRange(0, len(leases)-1).Draw(r, "lease")]
				from := index.Index(rapid.Uint64Range(uint64(l.From), uint64(l.To)-1).Draw(r, "from"))
				to := index.Index(rapid.Uint64Range(uint64(from)+1, uint64(l.To)).Draw(r, "to"))
				outcome := rapid.SampledFrom([]wire.Outcome{wire.Acked, wire.Acked, wire.Released}).Draw(r, "outcome")
				items := []wire.AckRange{{Partition: l.Partition, Lease: l.ID, From: uint64(from), To: uint64(to), Outcome: outcome}}
				if _, _, err := d.Ack(q, elsewherePartitions, l.client, 0, items, nil); err != nil {
					r.Fatal(err)
				}
			}
			check(d, "a step")
		}
		return leases
	}
	use(slave, 30)
	use(master, rapid.SampledFrom([]int{0, 0, 4}).Draw(r, "master's steps"))
	ends, _ := slave.TakeEnds(nil)
	shipped := slave.Ship()
	taken := map[uint64]bool{}
	for round := range 2 {
		for i := range ends {
			messages, _, _, known, err := master.Merge(q, elsewherePartitions, &ends[i])
			if err != nil || !known || round == 1 && messages != 0 {
				r.Fatalf("merge %d of %+v: %d messages, known %v, %v", round, ends[i], messages, known, err)
			}
			check(master, "a merge")
		}
		for i := range shipped {
			l := &shipped[i]
			if l.ID&elsewhereBit == 0 {
				r.Fatalf("lease %x", l.ID)
			}
			ok, err := master.TakeIn(l, elsewherePartitions)
			if err != nil || round == 1 && ok != taken[l.ID] {
				r.Fatalf("round %d: lease %+v: %v %v, before %v", round, l, ok, err, taken[l.ID])
			}
			taken[l.ID] = ok
			check(master, "taking a lease in")
		}
	}
	// What is not in a lease can be taken, in leases that overlap none that was taken in.
	given := map[uint16]*offset.Ranges{0: {}, 1: {}}
	for i := range shipped {
		if l := &shipped[i]; taken[l.ID] {
			for _, part := range openOf(l, slave) {
				given[l.Partition].Add(part)
			}
		}
	}
	for {
		f := &Fetch{Queue: q, Partitions: elsewherePartitions, Client: Client{ID: "new"}, Max: 7}
		if err := master.Take(f); err != nil {
			break
		}
		if n := given[f.Lease.Partition].Count(f.Lease.Range); n != 0 {
			r.Fatalf("lease of %v of partition %d, %v are with members of the slave's leases", f.Lease.Range, f.Lease.Partition, *given[f.Lease.Partition])
		}
		check(master, "a fetch")
	}
	for i := range shipped {
		l := &shipped[i]
		if !taken[l.ID] {
			continue
		}
		for _, part := range openOf(l, slave) {
			item := []wire.AckRange{{Partition: l.Partition, Lease: l.ID, From: uint64(part.From), To: uint64(part.To), Outcome: wire.Acked}}
			codes, _, err := master.Ack(q, elsewherePartitions, l.Client, l.Member, item, nil)
			if err != nil || codes[0] != wire.CodeOK && codes[0] != wire.CodeAlreadyEnded { // a member of the master's may have acked it before
				r.Fatalf("ack of %v with a lease that was taken in, %+v: %v %v", part, l, codes, err)
			}
			check(master, "an ack")
		}
	}
	for _, d := range []*Dispatcher{slave, master} {
		d.Restart()
		check(d, "a restart")
		if n := d.Metrics().Leased; n != 0 {
			r.Fatalf("%d leases last", n)
		}
	}
}

// openOf is what of a shipped lease neither ended nor was released.
func openOf(s *Shipped, at *Dispatcher) (open []offset.Range) {
	at.mu.Lock()
	defer at.mu.Unlock()
	p := at.mu.queues[s.Queue].partitions[s.Partition]
	for i := s.From; i < s.To; i++ {
		if one := (offset.Range{From: i, To: i + 1}); p.progress.Count(one) == 0 && s.Released.Count(one) == 0 {
			open = append(open, one)
		}
	}
	return open
}

// TestTakeInRefuses gives a master leases that cannot be: each is refused, and nothing changes.
func TestTakeInRefuses(t *testing.T) {
	s := &fakeSource{ends: map[uint16]index.Index{0: 10}}
	d := New(Options{Source: s, Boot: 1, LeasesMax: 1})
	defer d.Close()
	good := Shipped{Queue: Queue{Group: 1, Topic: topic}, Client: Client{ID: "a"}, Generation: 1, ID: elsewhereBit | 7, Range: offset.Range{From: 2, To: 5}, Attempt: 1, Left: time.Minute}
	for name, change := range map[string]func(*Shipped){
		"a master's id":      func(s *Shipped) { s.ID = 7 },
		"empty":              func(s *Shipped) { s.To = s.From },
		"backwards":          func(s *Shipped) { s.To = s.From - 1 },
		"beyond the end":     func(s *Shipped) { s.To = 11 },
		"another generation": func(s *Shipped) { s.Generation++ },
		"no such partition":  func(s *Shipped) { s.Partition = 9 },
		"attempt 0":          func(s *Shipped) { s.Attempt = 0 },
	} {
		bad := good
		change(&bad)
		if ok, err := d.TakeIn(&bad, 1); ok || err != nil {
			t.Errorf("%s: %v %v", name, ok, err)
		}
	}
	if ok, err := d.TakeIn(&good, 1); !ok || err != nil {
		t.Fatalf("%v %v", ok, err)
	}
	more := good
	more.ID++
	if ok, _ := d.TakeIn(&more, 1); ok {
		t.Error("a lease too many was taken in")
	}
	if err := d.invariants(); err != nil {
		t.Error(err)
	}
}

// TestAckBeforeTakeIn: an ack of a slave's lease that comes to the master before the lease does is to be repeated, as long as it is not known what
// slaves gave.
func TestAckBeforeTakeIn(t *testing.T) {
	s := &fakeSource{ends: map[uint16]index.Index{0: 40, 1: 40}, policy: offset.Policy{}}
	q := Queue{Group: 1, Topic: topic}
	d := New(Options{Source: s, Boot: 1})
	defer d.Close()
	ack := func(id uint64, want wire.Code) {
		t.Helper()
		codes, _, err := d.Ack(q, elsewherePartitions, Client{ID: "c"}, 0, []wire.AckRange{{Lease: id, From: 0, To: 3, Outcome: wire.Acked}}, nil)
		if err != nil || codes[0] != want {
			t.Errorf("lease %x: %v, %v, want %v", id, codes, err, want)
		}
	}
	d.Hold()
	ack(elsewhereBit|7, wire.CodeNotMaster)
	ack(7, wire.CodeLeaseUnknown)
	d.Release()
	ack(elsewhereBit|7, wire.CodeLeaseUnknown)
}
