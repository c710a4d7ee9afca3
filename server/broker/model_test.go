package broker

import (
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal/journaltest"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/wire"
)

// TestModel drives a broker on a real store in memory through random sends, fetches, acks, releases, time, lost connections,
// clean restarts and power losses, and compares it with a model that is told only what clients are told.
//
//   - What was answered ok is there after a restart: messages, groups and acks. An ack offset never moves back.
//   - A message that was acked with ok is not given again, to the same group, ever.
//   - Every duplicate has its reason: its lease had ended (released, ack timeout, connection gone, restart) before it was
//     given again. While a lease lasts its messages are nobody else's.
//   - A group that was removed begins anew. One that was moved stands where it was said, after a restart too; what was leased then has ended, and no ack of it counts.
//   - At the end, after a drain, each group acked each message that was answered ok, and no index twice.
func TestModel(t *testing.T) {
	checkInBubbles(t, runModel)
}

// checkInBubbles is rapid.Check of what runs in a bubble of time.
func checkInBubbles(t *testing.T, run func(*testing.T, *rapid.T) error) {
	rapid.Check(t, func(r *rapid.T) {
		var stopped any // rapid ends a run by a panic when there is nothing left to draw, which must not cross the bubble
		var failure error
		synctest.Test(t, func(t *testing.T) {
			defer func() {
				if stopped = recover(); stopped != nil && fmt.Sprintf("%T", stopped) != "rapid.invalidData" {
					failure, stopped = fmt.Errorf("panic: %v\n%s", stopped, debug.Stack()), nil
				}
			}()
			failure = run(t, r)
		})
		if stopped != nil {
			panic(stopped)
		}
		if failure != nil {
			r.Fatal(failure)
		}
	})
}

const (
	modelPartitions = 2
	modelClients    = 2
)

// modelLease is a lease as a client knows it.
type modelLease struct {
	fetched
	client int
	group  int
	given  time.Time
	until  time.Time
	open   offset.Ranges // neither acked nor released
	over   bool          // the client knows that it ended: all of it was acked or released, or the broker restarted
}

// modelGroup is what is known about a group.
type modelGroup struct {
	name  string
	acked [modelPartitions]offset.Ranges // with ok
	sent  [modelPartitions]offset.Ranges // asked for, whatever the answer
}

type model struct {
	*world
	r       *rapid.T
	groups  []*modelGroup
	leases  []*modelLease
	stored  [modelPartitions]index.Index // after the last message answered ok
	conns   [modelClients]int
	peers   [modelClients]*wire.Peer
	goneAt  [modelClients]time.Time
	offsets map[string]index.Index

	generations map[string]uint32
}

func runModel(t *testing.T, r *rapid.T) error {
	m := &model{world: &world{t: t, fs: journaltest.New(nil)}, r: r, offsets: map[string]index.Index{}, generations: map[string]uint32{}}
	m.open()
	defer func() { m.close() }()
	m.topic("orders", modelPartitions)
	for range rapid.IntRange(5, 40).Draw(r, "steps") {
		op := rapid.SampledFrom([]string{"send", "send", "subscribe", "fetch", "fetch", "fetch", "ack", "ack", "ack", "ack", "wait", "connect", "restart", "power", "hold", "seek", "seek", "remove"}).Draw(r, "op")
		if err := m.step(op); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
		synctest.Wait()
		if err := m.lag(); err != nil {
			return fmt.Errorf("after %s: %w", op, err)
		}
	}
	return m.drain()
}

func (m *model) int(name string, from, to int) int { return rapid.IntRange(from, to).Draw(m.r, name) }

func (m *model) step(op string) error {
	switch op {
	case "send":
		p := uint16(m.int("partition", 0, modelPartitions-1))
		n := m.int("messages", 1, 8)
		first, err := m.produce("orders", p, batch(m.t, n, 20))
		if err != nil {
			return err
		}
		if end := index.Index(first) + index.Index(n); end < m.stored[p] || index.Index(first) != m.stored[p] {
			return fmt.Errorf("index %d of partition %d, %d messages were answered before", first, p, m.stored[p])
		}
		m.stored[p] = index.Index(first) + index.Index(n)
	case "subscribe":
		if len(m.groups) < 2 {
			g := &modelGroup{name: fmt.Sprint("g", len(m.groups))}
			m.groups = append(m.groups, g)
			m.subscribe("orders", g.name, wire.StartBeginning)
		}
	case "fetch":
		if len(m.groups) == 0 {
			return nil
		}
		g, c := m.int("group", 0, len(m.groups)-1), m.int("client", 0, modelClients-1)
		f := m.fetch(client(c), wire.FetchRequest{Topic: "orders", Group: m.groups[g].name, Member: 1, MessagesMax: uint32(m.int("max", 1, 6)), WaitMs: uint32(m.int("wait", 0, 1) * 500)})
		return m.given(g, c, f)
	case "ack":
		l := m.lease()
		if l == nil {
			return nil
		}
		from := index.Index(l.From) + index.Index(m.int("from", 0, int(l.To-l.From)-1))
		to := from + index.Index(m.int("length", 1, int(index.Index(l.To)-from)))
		return m.ack(l, offset.Range{From: from, To: to}, rapid.SampledFrom([]wire.Outcome{wire.Acked, wire.Acked, wire.Skipped, wire.Released}).Draw(m.r, "outcome"))
	case "wait":
		time.Sleep(time.Duration(m.int("seconds", 1, 200)) * time.Second)
	case "connect":
		c := m.int("client", 0, modelClients-1)
		if m.conns[c] == 0 {
			m.conns[c]++
			m.peers[c] = &wire.Peer{ClientID: client(c)}
			if err := m.broker.Attach(m.peers[c]); err != nil {
				return err
			}
			m.goneAt[c] = time.Time{}
		} else {
			m.conns[c]--
			m.broker.Detach(m.peers[c])
			m.goneAt[c] = time.Now()
		}
	case "restart":
		m.close()
		m.open()
		m.restarted()
	case "power":
		m.crash(m.int("percent", 0, 100), uint64(m.int("crash", 0, 1<<20)))
		m.restarted()
	case "seek":
		if len(m.groups) == 0 {
			return nil
		}
		return m.seek(m.int("group", 0, len(m.groups)-1), uint32(m.int("partition", 0, modelPartitions-1)), uint64(m.int("index", 0, 40)), m.int("dry", 0, 2) == 0)
	case "remove":
		if len(m.groups) == 0 {
			return nil
		}
		return m.remove(m.int("group", 0, len(m.groups)-1))
	case "hold":
		// Power is lost while acks are on their way to the disk: they are answered ok or not at all, and what was ok stays.
		l := m.lease()
		if l == nil || l.over {
			return nil
		}
		m.gate.shut()
		g := m.groups[l.group]
		g.sent[l.Partition].Add(offset.Range{From: index.Index(l.From), To: index.Index(l.To)})
		r := ackAll(l.fetched)
		r.Group, r.Member = g.name, 1
		a := m.startAck(client(l.client), r)
		synctest.Wait()
		disk := m.fs.Crash(m.int("percent", 0, 100), rand.New(rand.NewPCG(uint64(m.int("crash", 0, 1<<20)), 0)))
		early := len(a) > 0 // it had nothing to wait for: refused, or ended before
		m.gate.open()
		if got := <-a; early && got.err == nil && got.codes[0] == wire.CodeOK {
			return fmt.Errorf("ack of [%d,%d) was ok while the sync was held back", l.From, l.To)
		}
		m.close()
		m.fs = journaltest.New(disk)
		m.open()
		m.restarted()
	}
	return nil
}

// seek moves a group in a partition, or only asks where it would go.
func (m *model) seek(group int, p uint32, to uint64, dry bool) error {
	g := m.groups[group]
	r, err := m.broker.SeekGroup(as("x"), &wire.SeekGroupRequest{Topic: "orders", Group: g.name, To: uint32(wire.SeekIndex), Index: to, Partitions: []uint32{p}, DryRun: dry})
	if err != nil {
		return err
	}
	key, row := fmt.Sprint(g.name, p), r.Partitions[0]
	if want := min(to, uint64(m.stored[p])); row.To != want || row.Cut != (want != to) || index.Index(row.From) != m.offsets[key] || row.Generation != m.generations[key]+1 {
		return fmt.Errorf("to %d of %d: %v; offset %d, generation %d", to, m.stored[p], row, m.offsets[key], m.generations[key])
	}
	if dry {
		return nil
	}
	below := offset.Ranges(nil)
	below.Add(offset.Range{To: index.Index(row.To)})
	g.acked[p], g.sent[p] = below, append(offset.Ranges(nil), below...)
	m.offsets[key], m.generations[key] = index.Index(row.To), row.Generation
	for _, l := range m.leases {
		if l.group == group && uint32(l.Partition) == p {
			l.over = true
		}
	}
	return nil
}

// remove takes a group off the topic and lets it be born there again, at the beginning.
func (m *model) remove(group int) error {
	g := m.groups[group]
	if _, err := m.broker.RemoveGroup(as("x"), &wire.RemoveGroupRequest{Topic: "orders", Group: g.name, Force: true}); err != nil {
		return err
	}
	m.subscribe("orders", g.name, wire.StartBeginning)
	*g = modelGroup{name: g.name}
	for p := range modelPartitions {
		key := fmt.Sprint(g.name, p)
		m.offsets[key] = 0
		m.generations[key]++ // at least
	}
	for _, l := range m.leases {
		if l.group == group {
			l.over = true
		}
	}
	return nil
}

func client(c int) string { return fmt.Sprint("c", c) }

// lease draws one of the last leases.
func (m *model) lease() *modelLease {
	if len(m.leases) == 0 {
		return nil
	}
	return m.leases[max(0, len(m.leases)-1-m.int("lease", 0, 3))]
}

func (m *model) restarted() {
	for _, l := range m.leases {
		l.over = true
	}
	m.conns = [modelClients]int{}
	m.goneAt = [modelClients]time.Time{}
}

// lasts reports whether the lease must be in force; mayLast, whether it may: at the moment of a deadline both are right, and
// a client that was gone already when it took the lease may have been forgotten, so that only the ack timeout counts.
func (m *model) lasts(l *modelLease) bool {
	gone := m.goneAt[l.client]
	return !l.over && time.Now().Before(l.until) && (gone.IsZero() || time.Since(gone) < 10*time.Second)
}

func (m *model) mayLast(l *modelLease) bool {
	gone := m.goneAt[l.client]
	return !l.over && !time.Now().After(l.until) && (gone.IsZero() || time.Since(gone) <= 10*time.Second || !l.given.Before(gone))
}

func (m *model) given(group, c int, f fetched) error {
	if f.err != nil {
		return f.err
	}
	if f.Lease == 0 {
		return nil
	}
	if err := f.check(); err != nil {
		return err
	}
	got := offset.Range{From: index.Index(f.From), To: index.Index(f.To)}
	g := m.groups[group]
	if n := g.acked[f.Partition].Count(got); n > 0 {
		return fmt.Errorf("%v of partition %d was given to %s, of which %v was acked with ok", got, f.Partition, g.name, g.acked[f.Partition])
	}
	if got.To > m.stored[f.Partition] {
		return fmt.Errorf("%v of partition %d was given, %d are stored", got, f.Partition, m.stored[f.Partition])
	}
	for _, l := range m.leases {
		if l.group == group && l.Partition == f.Partition && m.lasts(l) {
			return fmt.Errorf("partition %d was given to %s while the lease of [%d,%d) lasts", f.Partition, g.name, l.From, l.To)
		}
	}
	m.leases = append(m.leases, &modelLease{fetched: f, client: c, group: group, given: time.Now(), until: time.Now().Add(5 * time.Minute), open: offset.Ranges{got}})
	return nil
}

func (m *model) ack(l *modelLease, r offset.Range, outcome wire.Outcome) error {
	g := m.groups[l.group]
	known := g.acked[l.Partition].Count(r) == r.Len()
	if outcome != wire.Released {
		g.sent[l.Partition].Add(r)
	}
	a := <-m.startAck(client(l.client), wire.AckRequest{Topic: "orders", Group: g.name, Member: 1,
		Items: []wire.AckRange{{Partition: l.Partition, Lease: l.Lease, From: uint64(r.From), To: uint64(r.To), Outcome: outcome}}})
	if a.err != nil {
		return a.err
	}
	lasts, mayLast := m.lasts(l), m.mayLast(l)
	switch code := a.codes[0]; {
	case code == wire.CodeAlreadyEnded:
		// Also right when an earlier ack's answer was lost by a crash, though the ack was not.
		if g.sent[l.Partition].Count(r) != r.Len() {
			return fmt.Errorf("ack of %v: %v, but nobody had acked all of it", r, code)
		}
		g.acked[l.Partition].Add(r)
	case code == wire.CodeOK && mayLast:
		if known {
			return fmt.Errorf("ack of %v: ok, but all of it was acked before", r)
		}
		if outcome != wire.Released {
			g.acked[l.Partition].Add(r)
		}
		l.open.Remove(r)
		if len(l.open) == 0 {
			l.over = true
		}
	case (code == wire.CodeLeaseExpired || code == wire.CodeLeaseUnknown) && !lasts && !known:
		l.over = true
	default:
		return fmt.Errorf("ack of %v of partition %d, outcome %d: %v; the lease lasts: %v, may last: %v, acked %v", r, l.Partition, outcome, code, lasts, mayLast, g.acked[l.Partition])
	}
	return nil
}

// lag compares what the broker says about the groups with what clients were told.
func (m *model) lag() error {
	for _, g := range m.groups {
		r, err := m.broker.GroupLag(as("x"), &wire.GroupLagRequest{Topic: "orders", Group: g.name})
		if err != nil {
			return err
		}
		for p, row := range r.Partitions {
			key := fmt.Sprint(g.name, p)
			at := index.Index(row.AckOffset)
			if at < m.offsets[key] {
				return fmt.Errorf("the ack offset of %s in partition %d moved back from %d to %d", g.name, p, m.offsets[key], at)
			}
			if m.offsets[key] = at; row.Generation < m.generations[key] {
				return fmt.Errorf("%v, it had generation %d", row, m.generations[key])
			}
			m.generations[key] = row.Generation
			progress, _, ok := m.world.offsets.Progress(groupID(m.world, g.name), offset.Topic{ID: 1, Incarnation: 1}, uint16(p))
			if !ok || index.Index(row.End) != m.stored[p] || row.Lag != row.End-row.AckOffset-row.Consumed {
				return fmt.Errorf("%v, stored %d", row, m.stored[p])
			}
			for _, a := range g.acked[p] {
				if progress.Count(a) != a.Len() {
					return fmt.Errorf("%v of partition %d was acked by %s with ok, the table has %v", a, p, g.name, progress)
				}
			}
			if n := progress.Count(offset.Range{To: m.stored[p]}); n > g.sent[p].Len() {
				return fmt.Errorf("%v of %s in partition %d, acked was %v", progress, g.name, p, g.sent[p])
			}
		}
	}
	return nil
}

func groupID(w *world, name string) offset.GroupID {
	id, _ := w.offsets.Group(0, name)
	return id
}

// drain lets all leases end and one member consume what is left.
func (m *model) drain() error {
	time.Sleep(6 * time.Minute)
	for i, g := range m.groups {
		for {
			f := m.fetch("last", wire.FetchRequest{Topic: "orders", Group: g.name, Member: 1, MessagesMax: 100})
			if f.err == nil && f.Lease == 0 {
				break
			}
			if err := m.given(i, 0, f); err != nil {
				return err
			}
			m.leases[len(m.leases)-1].over = true
			r := ackAll(f)
			r.Group, r.Member = g.name, 1
			g.sent[f.Partition].Add(offset.Range{From: index.Index(f.From), To: index.Index(f.To)})
			if a := <-m.startAck("last", r); a.err != nil || a.codes[0] != wire.CodeOK {
				return fmt.Errorf("drain: ack of [%d,%d): %v", f.From, f.To, a)
			}
		}
	}
	synctest.Wait()
	if err := m.lag(); err != nil {
		return err
	}
	for _, g := range m.groups {
		for p := range m.stored {
			if at := m.offsets[fmt.Sprint(g.name, p)]; at != m.stored[p] {
				return fmt.Errorf("drained, but %s stands at %d of %d in partition %d", g.name, at, m.stored[p], p)
			}
		}
	}
	return nil
}
