package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/server/meta"
)

// What clients notice when a master dies, is silent or hands over, and when a slave is silent: three broker groups of a master and a slave.

// failOverSize says how often, and how long.
type failOverSize struct {
	rounds  int // of each
	silent  time.Duration
	backlog int // messages
}

const (
	topicLoad    = "load"    // on all broker groups
	topicBacklog = "backlog" // on the first alone
	topicNarrow  = "narrow"  // on the first alone
	bodyBytes    = 1024
)

// site is a registry and broker groups of a master and perhaps a slave, each a process. Whoever made it calls drop.
type site struct {
	f        *full
	registry *server
	groups   []*brokerGroup
}

// brokerGroup: its members change places. An empty slot is a slave that was not started yet.
type brokerGroup struct {
	name    string
	members [2]*server
}

// joinAfter is that of the brokers here: a slave is in sync as soon as it keeps up.
const joinAfter = 100 * time.Millisecond

// inSyncWithin is enough for what catch-up copies even at the least rate that a master gives.
const inSyncWithin = 5 * time.Minute

// newSite starts a registry that knows the objects, and the masters.
func (f *full) newSite(ctx context.Context, name string, objects []*meta.Object, groups ...string) (*site, error) {
	r, err := newServer(f.binary, f.data, name+"-registry")
	if err != nil {
		return nil, err
	}
	r.roles = []string{"registry"}
	s := &site{f: f, registry: r}
	if err := fillMetadata(ctx, r.dir, objects); err != nil {
		return nil, err
	}
	if _, err := r.start(ctx); err != nil {
		return nil, err
	}
	for _, g := range groups {
		s.groups = append(s.groups, &brokerGroup{name: g})
	}
	if err := s.startAll(ctx, 0); err != nil {
		s.drop()
		return nil, err
	}
	return s, nil
}

// startAll starts a new member of each broker group: 0 is a master, 1 a slave.
func (s *site) startAll(ctx context.Context, i int) error {
	var wg sync.WaitGroup
	errs := make([]error, len(s.groups))
	for k, g := range s.groups {
		wg.Go(func() { errs[k] = s.startNew(ctx, g, i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (s *site) startNew(ctx context.Context, g *brokerGroup, i int) error {
	name := g.name + "-" + strconv.Itoa(i+1)
	m, err := newServer(s.f.binary, s.f.data, name, "--node.name", name, "--node.registry.addresses", s.registry.wire, "--broker.brokerGroup", g.name,
		"--broker.replication.joinAfter", joinAfter.String(), "--broker.slave="+strconv.FormatBool(i > 0))
	if err != nil {
		return err
	}
	g.members[i] = m
	_, err = m.start(ctx)
	return err
}

func (s *site) drop() {
	for _, g := range s.groups {
		for _, m := range g.members {
			if m != nil {
				m.drop()
			}
		}
	}
	s.registry.drop()
}

// dial returns a client of the site, for one purpose.
func (s *site) dial(ctx context.Context, app string) (*client.Client, error) {
	all := []string{s.registry.wire}
	for _, g := range s.groups {
		all = append(all, g.members[0].wire)
	}
	return client.Dial(ctx, strings.Join(all, ","), client.WithApp(app), client.WithConns(2))
}

// inSync waits until the broker group has a master with a slave in sync, and returns both.
func (g *brokerGroup) inSync(ctx context.Context) (master, slave *server, err error) {
	ctx, cancel := context.WithTimeout(ctx, inSyncWithin)
	defer cancel()
	for {
		for i, m := range g.members {
			if m == nil || m.cmd == nil {
				continue
			}
			if n, err := m.metric(ctx, "jmq_replica_in_sync"); err == nil && n > 0 {
				return m, g.members[1-i], nil
			}
		}
		select {
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("broker group %s has no slave in sync: %w", g.name, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (s *server) signal(sig syscall.Signal) error { return s.cmd.Process.Signal(sig) }

// paced sends at a steady rate with so many producers at a time, and keeps what became of each send. It stops when ctx ends.
type paced struct {
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu struct {
		sync.Mutex
		sends []send
	}
}

// send is what became of one.
type send struct {
	begin, end  time.Time
	brokerGroup string
	unknown     int // attempts whose outcome stayed unknown
	err         error
}

// pace begins to send with n producers, each once in every; 0: as fast as it goes.
func pace(ctx context.Context, c *client.Client, topic string, n int, every time.Duration) (*paced, error) {
	p := &paced{}
	producer, err := c.Producer(topic)
	if err != nil {
		return nil, err
	}
	p.ctx, p.cancel = context.WithCancel(ctx)
	begin := time.Now()
	for i := range n {
		p.wg.Go(func() {
			m := &client.Message{Body: make([]byte, bodyBytes)}
			next := begin.Add(every * time.Duration(i) / time.Duration(n))
			for p.ctx.Err() == nil {
				if d := time.Until(next); d > 0 {
					select {
					case <-time.After(d):
					case <-p.ctx.Done():
						return
					}
				}
				next = next.Add(every)
				one := send{begin: time.Now()}
				if next.Before(one.begin) {
					next = one.begin // what was not sent in time is not made up for
				}
				var r client.Receipt
				r, one.err = producer.Send(context.WithoutCancel(ctx), m)
				one.end, one.brokerGroup, one.unknown = time.Now(), r.BrokerGroup, r.Unknown
				p.mu.Lock()
				p.mu.sends = append(p.mu.sends, one)
				p.mu.Unlock()
			}
		})
	}
	return p, nil
}

// stop ends it, and returns the sends in the order of their ends.
func (p *paced) stop() []send {
	p.cancel()
	p.wg.Wait()
	return p.mu.sends
}

// since returns the sends that have ended since then.
func (p *paced) since(t time.Time) []send {
	p.mu.Lock()
	defer p.mu.Unlock()
	var some []send
	for _, s := range p.mu.sends {
		if !s.end.Before(t) {
			some = append(some, s)
		}
	}
	return some
}

// outcome adds up sends.
type outcome struct {
	errors, unknown float64
	slowest         float64 // ms
	first           error
}

func judged(sends []send) (o outcome) {
	for _, s := range sends {
		if s.err != nil {
			o.errors++
			if o.first == nil {
				o.first = s.err
			}
		}
		if s.unknown != 0 || errors.Is(s.err, client.ErrUnknown) {
			o.unknown++
		}
		o.slowest = max(o.slowest, milliseconds(s.end.Sub(s.begin)))
	}
	return o
}

// longestGap is the longest time between two sends in a row that a broker group took.
func longestGap(sends []send, brokerGroup string) time.Duration {
	var gap time.Duration
	var last time.Time
	for _, s := range sends {
		if s.err != nil || s.brokerGroup != brokerGroup {
			continue
		}
		if !last.IsZero() {
			gap = max(gap, s.end.Sub(last))
		}
		last = s.end
	}
	return gap
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// stalls watches how long this machine lets a process wait that wants to run: it is told beside what took longest.
type stalls struct {
	stop chan struct{}
	done chan struct{}
	most atomic.Int64
}

func watchStalls() *stalls {
	const every = time.Millisecond
	w := &stalls{stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(w.done)
		for {
			begin := time.Now()
			select {
			case <-w.stop:
				return
			case <-time.After(every):
			}
			if late := time.Since(begin) - every; int64(late) > w.most.Load() {
				w.most.Store(int64(late))
			}
		}
	}()
	return w
}

func (w *stalls) take() float64 { return milliseconds(time.Duration(w.most.Swap(0))) }

func (w *stalls) end() {
	close(w.stop)
	<-w.done
}

// event is one kind of what goes wrong, and what its rounds brought.
type event struct {
	name                             string
	errors, unknown, slowest, stalls []float64
}

func (e *event) add(o outcome, stall float64) {
	e.errors, e.unknown = append(e.errors, o.errors), append(e.unknown, o.unknown)
	e.slowest, e.stalls = append(e.slowest, o.slowest), append(e.stalls, stall)
}

func (f *full) addEvent(row string, e *event, slowest float64, unknownToo bool) {
	f.add(newLine(row, e.name+": sends that returned an error", "sends", e.errors).atMost(0))
	l := newLine(row, "the same, sends with an attempt whose outcome is unknown", "sends", e.unknown)
	if unknownToo {
		l = l.atMost(0)
	}
	f.add(l)
	l = newLine(row, "the same, slowest send", "ms", e.slowest)
	if slowest > 0 {
		l = l.atMost(slowest)
	}
	f.add(l)
	f.add(newLine(row, "the same, longest that the machine let a process wait meanwhile", "ms", e.stalls))
}

// failOver: what clients notice.
func (f *full) failOver(ctx context.Context) error {
	const row = "fail-over"
	size := f.size.failOver
	groups := []string{"b1", "b2", "b3"}
	objects := []*meta.Object{
		object(meta.KindBrokerGroup, "b1", &meta.BrokerGroup{}), object(meta.KindBrokerGroup, "b2", &meta.BrokerGroup{}),
		object(meta.KindBrokerGroup, "b3", &meta.BrokerGroup{Mode: meta.BrokerGroupAuto}),
		object(meta.KindTopic, topicLoad, &meta.Topic{Partitions: 4, BrokerGroups: groups}),
		object(meta.KindTopic, topicBacklog, &meta.Topic{Partitions: 4, BrokerGroups: groups[:1]}),
		object(meta.KindTopic, topicNarrow, &meta.Topic{Partitions: 4, BrokerGroups: groups[:1]}),
	}
	f.step("three broker groups of a master and a slave")
	s, err := f.newSite(ctx, row, objects, groups...)
	if err != nil {
		return err
	}
	defer s.drop()
	if err := s.startAll(ctx, 1); err != nil {
		return err
	}
	for _, g := range s.groups {
		if _, _, err := g.inSync(ctx); err != nil {
			return err
		}
	}
	c, err := s.dial(ctx, "bench")
	if err != nil {
		return err
	}
	defer c.Close(context.WithoutCancel(ctx))
	w := watchStalls()
	defer w.end()
	load, err := pace(ctx, c, topicLoad, 24, 20*time.Millisecond)
	if err != nil {
		return err
	}
	defer load.stop()
	time.Sleep(f.size.time) // clients have met all brokers
	fixed, auto := s.groups[0], s.groups[2]

	// during does what is measured, and adds up the sends from its begin until a little after it.
	during := func(e *event, do func() error) error {
		w.take()
		begin := time.Now()
		if err := do(); err != nil {
			return err
		}
		time.Sleep(500 * time.Millisecond)
		o := judged(load.since(begin))
		if o.first != nil {
			f.step(fmt.Sprintf("%s: %v", e.name, o.first))
		}
		e.add(o, w.take())
		return ctx.Err()
	}

	killed := &event{name: "a master is killed"}
	var read, began []float64
	for i := range size.rounds {
		f.step(fmt.Sprintf("%s: %d of %d", killed.name, i+1, size.rounds))
		master, slave, err := fixed.inSync(ctx)
		if err != nil {
			return err
		}
		first, all, err := s.backlogAtSlave(ctx, fmt.Sprintf("reader%d", i), size.backlog, func(read func() error) error {
			if err := slave.hears(ctx, master); err != nil {
				return err
			}
			return during(killed, func() error { master.kill(); return read() })
		})
		if err != nil {
			return err
		}
		began, read = append(began, milliseconds(first)/1000), append(read, milliseconds(all)/1000)
		if _, err := master.start(ctx); err != nil {
			return err
		}
	}
	f.addEvent(row, killed, 500, false)
	f.add(newLine(row, fmt.Sprintf("the same, until the %d messages that only it had are read at its slave", size.backlog), "s", read).atMost(3))
	f.add(newLine(row, "of that, until the first", "s", began))

	stopped := &event{name: fmt.Sprintf("a master is stopped for %v, and goes on", size.silent)}
	for i := range size.rounds {
		f.step(fmt.Sprintf("%s: %d of %d", stopped.name, i+1, size.rounds))
		master, _, err := fixed.inSync(ctx)
		if err != nil {
			return err
		}
		if err := during(stopped, func() error { return master.pause(size.silent) }); err != nil {
			return err
		}
	}
	f.addEvent(row, stopped, 1500, false)

	handed := &event{name: "a master hands over as planned"}
	var pause []float64
	for i := range 2 * size.rounds { // there and back
		f.step(fmt.Sprintf("%s: %d of %d", handed.name, i+1, 2*size.rounds))
		if _, _, err := fixed.inSync(ctx); err != nil {
			return err
		}
		begin := time.Now().Add(-200 * time.Millisecond) // it took sends then
		err := during(handed, func() error {
			if err := s.command(ctx, "broker-group", "transfer", fixed.name); err != nil {
				return err
			}
			_, err := load.firstOf(ctx, fixed.name, time.Now())
			return err
		})
		if err != nil {
			return err
		}
		pause = append(pause, milliseconds(longestGap(load.since(begin), fixed.name)))
	}
	f.addEvent(row, handed, 0, false)
	f.add(newLine(row, "the same, longest time in which its broker group took nothing", "ms", pause).atMost(500))

	dead := &event{name: "a master of an auto broker group is killed"}
	var serving []float64
	for i := range size.rounds {
		f.step(fmt.Sprintf("%s: %d of %d", dead.name, i+1, size.rounds))
		master, _, err := auto.inSync(ctx)
		if err != nil {
			return err
		}
		var took time.Duration
		err = during(dead, func() error {
			master.kill()
			death := time.Now()
			took, err = load.firstOf(ctx, auto.name, death)
			return err
		})
		if err != nil {
			return err
		}
		serving = append(serving, took.Seconds())
		if _, err := master.start(ctx); err != nil {
			return err
		}
	}
	f.addEvent(row, dead, 500, false)
	f.add(newLine(row, "the same, until the new master takes a send", "s", serving).atMost(5))
	load.stop()

	silent := &event{name: fmt.Sprintf("the only slave is stopped for %v under 64 producers, and goes on", size.silent)}
	for i := range size.rounds {
		f.step(fmt.Sprintf("%s: %d of %d", silent.name, i+1, size.rounds))
		_, slave, err := fixed.inSync(ctx)
		if err != nil {
			return err
		}
		full, err := pace(ctx, c, topicNarrow, 64, 0)
		if err != nil {
			return err
		}
		time.Sleep(f.size.warmUp)
		w.take()
		err = slave.pause(size.silent)
		time.Sleep(f.size.warmUp)
		silent.add(judged(full.stop()), w.take())
		if err != nil {
			return err
		}
	}
	f.addEvent(row, silent, 1500, true)
	return nil
}

// hears waits until a slave knows that all is committed that its master has committed now: it gives out nothing else.
func (s *server) hears(ctx context.Context, master *server) error {
	const committed = `jmq_replica_position_bytes{what="committed"}`
	want, err := master.metric(ctx, committed)
	if err != nil {
		return err
	}
	for limit := time.Now().Add(10 * time.Second); time.Now().Before(limit); time.Sleep(5 * time.Millisecond) {
		if has, err := s.metric(ctx, committed); err != nil || has >= want {
			return err
		}
	}
	return errors.New("the slave does not hear what its master has committed")
}

// pause stops the process for a while.
func (s *server) pause(d time.Duration) error {
	if err := s.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	time.Sleep(d)
	return s.signal(syscall.SIGCONT)
}

// command runs a command of an operator.
func (s *site) command(ctx context.Context, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.f.binary, append(args, "--address", s.registry.wire)...)
	cmd.Dir = s.f.data
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("jmq %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// firstOf waits until a broker group has taken a send that began after then.
func (p *paced) firstOf(ctx context.Context, brokerGroup string, then time.Time) (time.Duration, error) {
	for limit := then.Add(time.Minute); time.Now().Before(limit); {
		for _, s := range p.since(then) {
			if s.err == nil && s.brokerGroup == brokerGroup && s.begin.After(then) {
				return s.end.Sub(then), nil
			}
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
	return 0, fmt.Errorf("broker group %s took nothing within a minute after its master's death", brokerGroup)
}

// backlogAtSlave fills the topic that only the first broker group has, for a group of its own that has had a message before, and measures from when
// kill is called until the group's consumer has the first, and all. kill calls read after the death.
func (s *site) backlogAtSlave(ctx context.Context, app string, n int, kill func(read func() error) error) (first, all time.Duration, err error) {
	c, err := s.dial(ctx, app)
	if err != nil {
		return 0, 0, err
	}
	defer c.Close(context.WithoutCancel(ctx))
	consumer, err := c.Consumer(topicBacklog, client.Group(app), client.Batch(100), client.Concurrency(4))
	if err == nil {
		err = consumer.Subscribe(ctx)
	}
	if err != nil {
		return 0, 0, err
	}
	p, err := c.Producer(topicBacklog)
	if err != nil {
		return 0, 0, err
	}
	var messages []*client.Message
	for range n {
		messages = append(messages, &client.Message{Body: make([]byte, bodyBytes)})
	}
	const batch = 100
	for at := 0; at < n; at += batch {
		if _, err := p.SendBatch(ctx, messages[at:min(at+batch, n)]); err != nil {
			return 0, 0, err
		}
	}
	err = kill(func() error {
		begin := time.Now()
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		var got atomic.Int64
		var firstAt atomic.Int64
		err := consumer.Run(ctx, func(context.Context, *client.Delivery) error {
			switch got.Add(1) {
			case 1:
				firstAt.Store(int64(time.Since(begin)))
			case int64(n):
				all = time.Since(begin)
				cancel()
			}
			return nil
		})
		first = time.Duration(firstAt.Load())
		if got.Load() < int64(n) {
			return errors.Join(fmt.Errorf("%d of %d messages of the backlog were read at the slave", got.Load(), n), err)
		}
		return nil
	})
	return first, all, err
}
