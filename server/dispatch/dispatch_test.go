package dispatch

import (
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/servertest/script"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/wire"
)

func TestMain(m *testing.M) {
	flag.Parse()
	goleak.VerifyTestMain(m)
}

var topic = offset.Topic{ID: 7, Incarnation: 1}

// fakeSource is a Source whose groups all are at the begin, unless said otherwise.
type fakeSource struct {
	mu       sync.Mutex
	ends     map[uint16]index.Index
	progress map[offset.GroupID]map[uint16]offset.Progress
	policy   offset.Policy
	moves    uint32 // raise the generation of all partitions
	err      error
}

func (s *fakeSource) End(p store.Partition) (index.Index, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ends[p.Partition], s.err
}

func (s *fakeSource) Progress(g offset.GroupID, _ offset.Topic, p uint16) (offset.Progress, uint32, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g > 9 {
		return offset.Progress{}, 0, false
	}
	at := s.progress[g][p]
	return at.Clone(), 1 + s.moves, true
}

func (s *fakeSource) Policy(g offset.GroupID, _ offset.Topic) (offset.Policy, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.policy, g <= 9
}

func (s *fakeSource) Names(q Queue) (topic, group string) {
	return "orders", fmt.Sprint("group ", q.Group)
}

func (s *fakeSource) commit(d *Dispatcher, p uint16, end index.Index) {
	s.mu.Lock()
	s.ends[p] = end
	s.mu.Unlock()
	d.Commit(store.Partition{Topic: store.TopicID(topic.ID), Incarnation: topic.Incarnation, Partition: p}, end)
}

// stage runs a script's commands on one dispatcher.
type stage struct {
	d          *Dispatcher
	s          *fakeSource
	partitions int
	names      map[string]*namedFetch
	mu         sync.Mutex
	events     []string // by waiters
	fetches    int
}

type namedFetch struct {
	Fetch
	stage *stage
	name  string
}

func (f *namedFetch) Granted(*Fetch) {
	f.stage.mu.Lock()
	defer f.stage.mu.Unlock()
	f.stage.events = append(f.stage.events, fmt.Sprintf("%s: %s", f.name, f.outcome(f.Err)))
}

func (f *namedFetch) outcome(err error) string {
	if err != nil {
		return strings.TrimPrefix(err.Error(), "dispatch: ")
	}
	l := f.Lease
	s := fmt.Sprintf("lease %d partition %d %v", l.ID&(1<<leaseNumberBits-1), l.Partition, l.Range)
	if l.Attempt > 1 {
		s += fmt.Sprint(" attempt ", l.Attempt)
	}
	return s
}

func (st *stage) run(c script.Command) string {
	out := st.do(c)
	synctest.Wait()
	st.mu.Lock()
	defer st.mu.Unlock()
	if out != "" {
		out += "\n"
	}
	for _, e := range st.events {
		out += e + "\n"
	}
	st.events = nil
	return out
}

func (st *stage) do(c script.Command) string {
	d := st.d
	q := Queue{Group: offset.GroupID(c.Int("group", 1)), Topic: topic}
	client := Client{ID: c.Str("client", "a")}
	p := uint16(c.Int("partition", 0))
	switch c.Name {
	case "new": // partitions=2 waiters=100 each=100 grace=10s
		if d != nil { // a restart
			d.Close()
		}
		st.partitions = c.Int("partitions", 2)
		st.d = New(Options{Source: st.s, Boot: 1, WaitersMax: c.Int("waiters", 100), ClientWaitersMax: c.Int("each", 100), Grace: c.Duration(c.Str("grace", "10s"))})
	case "grow":
		st.partitions = c.Int("partitions", 2)
	case "offset": // group=1 partition=0 ack=3 consumed=5..7 expired=8..9
		pr := offset.Progress{Ack: index.Index(c.Int("ack", 0))}
		if c.Args["expired"] != "" { // expired=4..6 once
			from, to := c.Span("expired")
			pr.Expire(offset.Range{From: index.Index(from), To: index.Index(to)}, 1)
		}
		if c.Args["consumed"] != "" {
			from, to := c.Span("consumed")
			pr.Consumed.Add(offset.Range{From: index.Index(from), To: index.Index(to)})
		}
		if st.s.progress[q.Group] == nil {
			st.s.progress[q.Group] = map[uint16]offset.Progress{}
		}
		st.s.progress[q.Group][p] = pr
	case "commit": // partition=0 end=5
		st.s.commit(d, p, index.Index(c.Int("end", 0)))
	case "fetch", "poll", "leave": // client=a member=1 max=10 wait=5s only=0,1 round=1, held=1,2 or held= reconciles; poll does not wait, leave gives nothing
		st.fetches++
		f := &namedFetch{stage: st, name: c.Str("name", fmt.Sprintf("fetch %d", st.fetches))}
		f.Fetch = Fetch{Queue: q, Partitions: st.partitions, Client: client, Member: uint32(c.Int("member", 0)), Max: uint32(c.Int("max", 10)), Wait: c.Duration(c.Str("wait", "5s")), Waiter: f,
			Round: uint64(c.Int("round", 0))}
		_, f.Reconcile = c.Args["held"]
		for _, o := range strings.FieldsFunc(c.Args["held"], func(r rune) bool { return r == ',' }) {
			n, err := strconv.ParseUint(o, 10, 40)
			if err != nil {
				c.Fatalf("%v", err)
			}
			f.Held = append(f.Held, d.mu.first|n)
		}
		for _, o := range strings.FieldsFunc(c.Args["only"], func(r rune) bool { return r == ',' }) {
			n, err := strconv.ParseUint(o, 10, 16)
			if err != nil {
				c.Fatalf("%v", err)
			}
			f.Only = append(f.Only, uint16(n))
		}
		st.names[f.name] = f
		var err error
		switch c.Name {
		case "poll":
			err = d.Take(&f.Fetch)
		case "leave":
			err = d.Leave(&f.Fetch)
		default:
			err = d.Park(&f.Fetch)
		}
		return f.name + ": " + f.outcome(err)
	case "cancel":
		d.Cancel(&st.names[strings.Join(c.Words, " ")].Fetch)
	case "ack", "release", "skip": // client=a member=0 lease=1 partition=0 index=3..5
		from, to := c.Span("index")
		lease := uint64(c.Int("lease", 0))
		if c.Args["boot"] == "" {
			lease |= d.mu.first
		}
		item := wire.AckRange{Partition: p, Lease: lease, From: from, To: to, Outcome: wire.Acked}
		switch c.Name {
		case "release":
			item.Outcome = wire.Released
		case "skip":
			item.Outcome = wire.Skipped
		}
		codes, ticket, err := d.Ack(q, st.partitions, client, uint32(c.Int("member", 0)), []wire.AckRange{item}, nil)
		if err != nil {
			return err.Error()
		}
		if ticket > 0 {
			return fmt.Sprintf("%v when batch %d is committed", codes[0], ticket)
		}
		return codes[0].String()
	case "ends":
		ends, number := d.TakeEnds(nil)
		if number == 0 {
			return "none"
		}
		var out []string
		for _, e := range offset.MergeEnds(ends) {
			out = append(out, fmt.Sprintf("batch %d: group %d partition %d generation %d outcome %d %v", number, e.Group, e.Partition, e.Generation, e.Outcome, e.Range))
		}
		return strings.Join(out, "\n")
	case "putback":
		ends, _ := d.TakeEnds(nil)
		d.PutBack(ends)
	case "shrink": // name=... to=3
		f := st.names[strings.Join(c.Words, " ")]
		d.Shrink(q, &f.Lease, index.Index(c.Int("to", 0)))
	case "giveback": // name=... pause=5s
		f := st.names[strings.Join(c.Words, " ")]
		d.GiveBack(q, &f.Lease, c.Duration(c.Str("pause", "0s")))
	case "policy": // parallel=1 window=10; no parallel: exclusive. "reload" makes it count.
		st.s.mu.Lock()
		st.s.policy = offset.Policy{Parallel: c.Int("parallel", 0) > 0, Window: uint32(c.Int("window", 0))}
		st.s.mu.Unlock()
	case "move": // the group stands by offset from here on; "reload" makes it count
		st.s.mu.Lock()
		st.s.moves++
		st.s.mu.Unlock()
	case "reload":
		d.Reload(q)
	case "forget":
		d.Forget(q)
	case "forgettopic":
		d.ForgetTopic(topic)
	case "pause", "resume":
		d.SetPaused(topic, c.Name == "pause")
	case "gap": // partition=0 index=3..5: is skipped, whoever has it
		from, to := c.Span("index")
		messages, ticket := d.Skip(q, p, offset.Range{From: index.Index(from), To: index.Index(to)}, wire.Skipped)
		return fmt.Sprintf("%d messages in batch %d", messages, ticket)
	case "extend": // client=a member=0 partition=0 lease=1 by=10m
		names := []LeaseName{{p, d.mu.first | uint64(c.Int("lease", 0))}}
		return d.Extend(q, client, uint32(c.Int("member", 0)), names, c.Duration(c.Str("by", "5m")), nil)[0].String()
	case "expiries":
		expiries := d.TakeExpiries()
		if c.Args["back"] != "" {
			d.PutBackExpiries(expiries)
		}
		var out []string
		for _, e := range expiries {
			out = append(out, fmt.Sprintf("group %d partition %d generation %d: %d leases of %v", e.Group, e.Partition, e.Generation, e.Count, e.Ranges))
		}
		return strings.Join(out, "\n")
	case "use":
		u := d.Use(q)
		out := fmt.Sprintf("%d members, %d fetches wait, %d messages in %d leases", u.Members, u.Waiting, u.Leased, u.Leases)
		if !u.LastFetch.IsZero() {
			out += fmt.Sprint(", last fetch ", time.Since(u.LastFetch), " ago")
		}
		return out
	case "revoke": // client=a, with leases=1 those too
		d.Revoke(q, client, errors.New("revoked"), c.Int("leases", 0) > 0)
	case "attach":
		d.Attach(client)
	case "detach":
		d.Detach(client)
	case "advance":
		time.Sleep(c.Duration(c.Words[0]))
	case "held":
		var out []string
		for _, h := range d.Held(q) {
			out = append(out, fmt.Sprintf("partition %d: %d messages with %s#%d", h.Partition, h.Left, h.Client, h.Member))
		}
		return strings.Join(out, "\n")
	case "metrics":
		m := d.Metrics()
		out := fmt.Sprintf("leases %d held %d waiting %d refused %d", m.Leases, m.Leased, m.Waiting, m.Refused)
		for w, n := range m.Ended {
			if n > 0 {
				out += fmt.Sprintf(" %v %d", Why(w), n)
			}
		}
		return out
	case "kept": // what is remembered of clients, for leaks
		d.mu.Lock()
		defer d.mu.Unlock()
		members := 0
		for _, c := range d.mu.clients {
			members += len(c.members)
		}
		return fmt.Sprintf("%d clients %d members %d alarms", len(d.mu.clients), members, len(d.mu.alarms.heap))
	case "fail":
		st.s.err = errors.New("the disk is gone")
	case "heal":
		st.s.err = nil
	case "stop":
		d.Stop(errors.New("stopped"))
	default:
		c.Fatalf("unknown command %q", c.Name)
	}
	return ""
}

// TestScripts runs testdata/*.txt, each in its own bubble of time.
func TestScripts(t *testing.T) {
	script.Each(t, func(t *testing.T, file string) {
		synctest.Test(t, func(t *testing.T) {
			st := &stage{s: &fakeSource{ends: map[uint16]index.Index{}, progress: map[offset.GroupID]map[uint16]offset.Progress{}}, names: map[string]*namedFetch{}}
			script.Run(t, file, st.run)
			st.d.Stop(errors.New("end of script"))
			st.d.Close()
		})
	})
}
