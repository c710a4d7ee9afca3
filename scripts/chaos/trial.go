package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/client/admin"
	"github.com/jmqio/jmq/scripts/chaos/disk"
	"github.com/jmqio/jmq/scripts/chaos/netns"
	"github.com/jmqio/jmq/scripts/localcluster"
	"github.com/jmqio/jmq/server/servertest/check"
)

const (
	// recoverWithin is the promise of liveness: so long after all is healed everything goes on.
	recoverWithin = 30 * time.Second
	segmentBytes  = 1 << 20
)

// shape of a cluster.
type shape struct {
	groups, slaves int
	auto           bool
}

// trial is a cluster under load, for a few schedules one after the other: what they saw is one history. Its methods belong to one goroutine,
// but for event and problem.
type trial struct {
	c   *campaign
	k   *kind
	dir string
	shape
	*localcluster.Cluster
	groups  []string
	fixed   string // the broker group of the fault that is under way; "": each choice is another
	admin   *client.Client
	network *netns.Network        // nil: all are on the loopback
	disks   map[string]*disk.Disk // of brokers; nil: folders of this machine's
	off     map[string]bool       // brokers whose disks have no power, or are broken
	boots   int                   // losses of power
	rng     *rand.Rand            // of the schedule that is under way

	producers        []*producer
	senders, working sync.WaitGroup
	stopConsuming    context.CancelFunc
	clients          []*client.Client
	workers          []*worker
	stewards         []*steward
	registers        map[string]register      // as they were at rest
	work             bool                     // workers are to run
	oks, got         map[string]*atomic.Int64 // by topic

	past     past                   // what is known of the history that was judged, and let go
	base     map[string]check.Usage // what processes had at rest at first
	based    int64
	happened []string // faults of the schedule
	times    int      // that the fault which is under way really happened
	count    int      // all of them, of the schedule
	recovery time.Duration
	told     check.Figures // what rows before this one told of the history
	report   string        // what is wrong with it

	mu struct {
		sync.Mutex
		events   []check.Event
		problems []string
	}
}

func (t *trial) event(events ...check.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.events = append(t.mu.events, events...)
	for i := range events {
		switch e := &events[i]; {
		case e.Op == check.OpSend && e.Result == check.OK && t.oks[e.Topic] != nil:
			t.oks[e.Topic].Add(1)
		case e.Op == check.OpRecv && t.got[e.Topic] != nil:
			t.got[e.Topic].Add(1)
		}
	}
}

// problem is what should not be, and is no matter of the history.
func (t *trial) problem(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.problems = append(t.mu.problems, fmt.Sprintf(format, args...))
}

// begin starts a cluster and the load on it. What of it was started ends with end, also after an error.
func (c *campaign) begin(ctx context.Context, k *kind, s shape, dir string) (*trial, error) {
	t := &trial{c: c, k: k, shape: s, dir: dir, oks: map[string]*atomic.Int64{}, got: map[string]*atomic.Int64{}, rng: rand.New(rand.NewPCG(1, 1))}
	for _, topic := range topics {
		t.oks[topic], t.got[topic] = &atomic.Int64{}, &atomic.Int64{}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return t, err
	}
	o := localcluster.Options{
		Dir: dir, Binary: c.binary, Brokers: s.groups, Slaves: s.slaves, Segment: segmentBytes, Attached: true, SQLite: true,
		Broker: map[string]any{
			"replication": map[string]any{"joinAfter": "300ms", "compareEvery": "5s"},
			"dispatch":    map[string]any{"ackTimeout": ackTimeout.String(), "disconnectGrace": "100ms"},
			"store":       map[string]any{"checkpointEvery": "1s", "checkpointBytes": 1 << 20},
		},
	}
	if c.planted != "" {
		o.Env = []string{"JMQ_TEST_PLANTED=" + c.planted}
	}
	var err error
	if k.soak {
		o.SQLite, o.Registries = false, 2
	}
	if k.apart {
		err = t.connect(&o)
	}
	if k.disk != nil && err == nil {
		err = t.equip(&o)
	}
	if err != nil {
		return t, err
	}
	if t.Cluster, err = localcluster.Open(o); err != nil {
		return t, err
	}
	t.groups = t.Groups()
	if err := t.Up(ctx); err != nil {
		return t, err
	}
	return t, t.load(ctx)
}

// connect makes a host for each node of a cluster, and one for the clients.
func (t *trial) connect(o *localcluster.Options) (err error) {
	if t.network, err = netns.New(append(localcluster.Names(*o), clientsHost)...); err != nil {
		return err
	}
	o.Host, o.Dial = t.network.Address, t.network.Dial
	o.Enter = func(node string) error { return t.network.Enter(cmp.Or(node, clientsHost)) }
	return nil
}

// equip gives each broker a disk of its own, and a boot id.
func (t *trial) equip(o *localcluster.Options) error {
	t.disks, t.off = map[string]*disk.Disk{}, map[string]bool{}
	folder := func(node string) string { return filepath.Join(t.dir, "disks", node) }
	for _, name := range localcluster.Names(*o) {
		if err := t.boot(name); err != nil {
			return err
		}
		if strings.HasPrefix(name, "r") {
			continue
		}
		d := *t.k.disk
		if t.k.soak {
			d = soakDisks[name[1]-'1']
		}
		d.Mount = folder(name)
		var err error
		if t.disks[name], err = disk.New(d); err != nil {
			return err
		}
	}
	o.Data = folder
	o.Broker["retention"] = map[string]any{"every": "500ms"}
	before := o.Enter
	o.Enter = func(node string) error {
		if before != nil {
			if err := before(node); err != nil {
				return err
			}
		}
		if node == "" {
			return nil
		}
		return errors.Join(disk.OwnMounts(), disk.Boot(t.bootFile(node)))
	}
	return nil
}

func (t *trial) bootFile(node string) string { return filepath.Join(t.dir, node+".boot") }

// boot gives a node another boot id: what its machine had in memory is gone.
func (t *trial) boot(node string) error {
	t.boots++
	return os.WriteFile(t.bootFile(node), fmt.Appendf(nil, "00000000-0000-4000-8000-%012d\n", t.boots), 0o644)
}

// load makes topics, and joins.
func (t *trial) load(ctx context.Context) error {
	all := strings.Join(t.groups, ",")
	commands := []string{"app create " + app}
	for _, topic := range topics {
		commands = append(commands, fmt.Sprintf("topic create %s --partitions %d --broker-groups %s", topic, partitions, all),
			"topic grant "+topic+" --app "+app+" --produce --consume")
	}
	commands[3] += " --durability replicated"
	if t.k.soak { // old messages go, so that disks and memory are as full in the end as soon after the beginning
		commands[1] += " --retention-bytes 8MiB"
		commands[3] += " --retention-bytes 8MiB"
	}
	if t.auto {
		for _, g := range t.groups {
			commands = append(commands, "broker-group alter "+g+" --mode auto")
		}
	}
	if t.k.soak {
		commands = append(commands, stewardCommands(all)...)
	}
	commands = append(commands, "credential create --app "+app+" --out "+filepath.Join(t.dir, "app.credential"))
	for _, line := range commands {
		if err := t.Jmq(ctx, strings.Fields(line)...); err != nil {
			return err
		}
	}
	if !t.k.soak { // which looks after its first window
		if err := t.well(ctx); err != nil {
			return err
		}
		t.rest(ctx)
	}
	if err := t.join(ctx); err != nil {
		return err
	}
	// A broker that starts again has its copy of the metadata first, which is written once a second: until it hears the registry it would refuse
	// a credential that is younger.
	pause(ctx, 1200*time.Millisecond)
	return t.well(ctx)
}

// join makes clients, and begins to consume.
func (t *trial) join(ctx context.Context) (err error) {
	if t.admin, err = t.dialAs(ctx, "operator", t.AdminFile(), t.Addresses("registry")); err != nil { // brokers may hang
		return err
	}
	if err := admin.New(t.admin).InForce(ctx, 0); err != nil {
		return err
	}
	var consuming context.Context
	consuming, t.stopConsuming = context.WithCancel(context.Background())
	first := len(t.producers) == 0
	for n, topic := range topics {
		for i := range 2 {
			proc := topic + "-" + strconv.Itoa(i)
			cl, err := t.dial(proc)
			if err != nil {
				return err
			}
			p, err := cl.Producer(topic, client.Timeout(2*time.Second))
			if err != nil {
				return err
			}
			if first {
				t.producers = append(t.producers, &producer{witness: t, groups: t.groups, topic: topic, proc: proc, keys: i * 2})
			}
			t.producers[2*n+i].p = p
		}
		for i := range 2 {
			proc := fmt.Sprintf("%s-consumer-%d", topic, i)
			cl, err := t.dial(proc)
			if err != nil {
				return err
			}
			k, err := newConsumer(t, cl, t.groups, topic, proc)
			if err != nil {
				return err
			}
			if err := k.k.Subscribe(ctx); err != nil {
				return err
			}
			t.working.Go(func() { k.run(consuming) })
		}
		if first && t.k.workers {
			for _, what := range []string{produces, consumes} {
				t.workers = append(t.workers, &worker{t: t, what: what, topic: topic})
			}
		}
	}
	if t.k.soak {
		return t.joinStewards(ctx)
	}
	return nil
}

// leave ends the clients. What they had under way is answered, or given up.
func (t *trial) leave() {
	if t.stopConsuming != nil {
		t.stopConsuming()
	}
	t.working.Wait()
	for _, w := range t.workers {
		w.stop()
	}
	for _, cl := range t.clients {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		_ = cl.Close(ctx)
		cancel()
	}
	t.clients = nil
}

func (t *trial) dial(proc string) (*client.Client, error) {
	return t.dialAs(context.Background(), proc, filepath.Join(t.dir, "app.credential"), t.Addresses(""))
}

// dialAs connects a client, which has no more registry nodes than those of only, if there are any.
func (t *trial) dialAs(ctx context.Context, proc, credential string, addresses []string, only ...*localcluster.Node) (*client.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, recoverWithin)
	defer cancel()
	options := []client.Option{client.WithApp(app), client.WithCredentialsFile(credential)}
	if t.network != nil {
		options = append(options, client.WithDialer(func(ctx context.Context, address string) (net.Conn, error) {
			if len(only) > 0 && slices.ContainsFunc(t.Of("registry"), func(n *localcluster.Node) bool { return n.Wire == address && !slices.Contains(only, n) }) {
				return nil, errors.New("it is of another registry node")
			}
			return t.network.Dial(ctx, clientsHost, address)
		}))
	}
	cl, err := client.Dial(ctx, strings.Join(addresses, ","), options...)
	if err == nil {
		t.clients = append(t.clients, cl)
	} else {
		err = fmt.Errorf("%s: %w", proc, err)
	}
	return cl, err
}

// send has the producers send, and the workers work, until the returned function is called, which waits for them.
func (t *trial) send() (stop func(), err error) {
	ctx, cancel := context.WithCancel(context.Background())
	for _, p := range t.producers {
		p.rng = rand.New(rand.NewPCG(t.rng.Uint64(), 2))
		t.senders.Go(func() { p.run(ctx) })
	}
	t.work = true
	return func() {
		cancel()
		t.senders.Wait()
		t.work = false
		for _, w := range t.workers {
			w.stop()
		}
	}, t.beginWorkers()
}

// node is what a broker says of itself.
type node struct {
	*localcluster.Node
	role              string
	inSync            int
	serving, refused  bool
	failed, full      bool
	end, committed    uint64
	epoch             uint64
	segments, runs    int
	damage            string // what it found wrong with its copy
	connectedMetadata bool
}

// look asks a broker, and notes it if it serves as master. One that does not answer has no role.
func (t *trial) look(ctx context.Context, b *localcluster.Node) node {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	n := node{Node: b}
	call := now()
	for line := range strings.Lines(b.Metrics(ctx)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		v, err := strconv.ParseFloat(value, 64)
		if !ok || err != nil {
			continue
		}
		switch {
		case v == 1 && strings.HasPrefix(name, `jmq_replica_role{`):
			n.role = strings.TrimSuffix(strings.TrimPrefix(name, `jmq_replica_role{role="`), `"}`)
		case name == "jmq_replica_in_sync":
			n.inSync = int(v)
		case name == "jmq_replica_serving":
			n.serving = v == 1
		case name == "jmq_replica_refused":
			n.refused = v == 1
		case name == "jmq_store_failed":
			n.failed = v == 1
		case name == `jmq_store_state{state="refusing"}`:
			n.full = v == 1
		case name == "jmq_journal_segments":
			n.segments = int(v)
		case name == "jmq_index_runs":
			n.runs = int(v)
		case name == "jmq_metadata_connected":
			n.connectedMetadata = v == 1
		case name == "jmq_replica_term":
			n.epoch |= uint64(v) << 32
		case name == "jmq_replica_start":
			n.epoch |= uint64(v)
		case name == `jmq_replica_position_bytes{what="end"}`:
			n.end = uint64(v)
		case name == `jmq_replica_position_bytes{what="committed"}`:
			n.committed = uint64(v)
		case v > 0 && (name == "jmq_journal_holes" || name == "jmq_lost_messages_total" || name == "jmq_panics_total"):
			n.damage = strings.TrimSpace(line)
		}
	}
	if n.role == "master" {
		t.event(check.Event{Op: check.OpMaster, Proc: b.Name, BrokerGroup: b.Group, Epoch: n.epoch, Call: call, Return: now()})
	}
	return n
}

// of returns the brokers of a broker group.
func (t *trial) of(group string) []*localcluster.Node {
	return slices.DeleteFunc(t.Of("broker"), func(n *localcluster.Node) bool { return n.Group != group })
}

// group chooses a broker group.
func (t *trial) group() string {
	if t.fixed != "" {
		return t.fixed
	}
	return t.groups[t.rng.IntN(len(t.groups))]
}

// master waits for the one of a broker group.
func (t *trial) master(ctx context.Context, group string) (*localcluster.Node, error) {
	var master *localcluster.Node
	err := t.await(ctx, group+" has a master", func() bool {
		for _, b := range t.of(group) {
			if t.look(ctx, b).role == "master" {
				master = b
				return true
			}
		}
		return false
	})
	return master, err
}

// slave is one that is not the master.
func (t *trial) slave(ctx context.Context, group string) (*localcluster.Node, error) {
	m, err := t.master(ctx, group)
	if err != nil {
		return nil, err
	}
	others := slices.DeleteFunc(t.of(group), func(n *localcluster.Node) bool { return n == m })
	if len(others) == 0 {
		return nil, fmt.Errorf("%s has no slave", group)
	}
	return others[t.rng.IntN(len(others))], nil
}

// lateError says what did not come about in time: the promise of liveness is broken.
type lateError struct{ what string }

func (e *lateError) Error() string { return fmt.Sprintf("not within %v: %s", recoverWithin, e.what) }

// await waits until good.
func (t *trial) await(ctx context.Context, what string, good func() bool) error {
	late := time.NewTimer(recoverWithin)
	defer late.Stop()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for !good() {
		select {
		case <-look.C:
		case <-late.C:
			return &lateError{what + "; " + t.state(ctx)}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// state of all brokers, for people.
func (t *trial) state(ctx context.Context) string {
	var all []string
	for _, b := range t.Of("broker") {
		n := t.look(ctx, b)
		all = append(all, fmt.Sprintf("%s %q, %d in sync, end %d, committed %d", b.Name, n.role, n.inSync, n.end, n.committed))
	}
	return strings.Join(all, "; ")
}

// goesOn waits until n more sends to each topic were ok, and so many messages came.
func (t *trial) goesOn(ctx context.Context, what string, n int64, topics ...string) error {
	was, had := map[string]int64{}, map[string]int64{}
	for _, topic := range topics {
		was[topic], had[topic] = t.oks[topic].Load(), t.got[topic].Load()
	}
	return t.await(ctx, what, func() bool {
		return !slices.ContainsFunc(topics, func(topic string) bool {
			return t.oks[topic].Load() < was[topic]+n || t.got[topic].Load() < had[topic]+n
		})
	})
}

// well waits until every broker group has a master with all slaves in sync.
func (t *trial) well(ctx context.Context) error {
	return t.await(ctx, "all broker groups have a master and all slaves in sync", func() bool {
		for _, g := range t.groups {
			masters, slaves := 0, 0
			for _, b := range t.of(g) {
				switch n := t.look(ctx, b); {
				case n.role == "master" && n.inSync == t.slaves:
					masters++
				case n.role == "slave" && !n.serving:
					slaves++
				}
			}
			if masters != 1 || slaves != t.slaves {
				return false
			}
		}
		return true
	})
}

// run carries out the schedule of a seed, and says what it showed.
func (t *trial) run(ctx context.Context, seed uint64) (row, error) {
	t.rng = rand.New(rand.NewPCG(seed, t.k.number()))
	t.happened, t.count, t.recovery = nil, 0, 0
	stop, err := t.send()
	if err == nil {
		err = t.goesOn(ctx, "all is well", 3, topics...)
	}
	for range 1 + t.rng.IntN(3) {
		if err != nil {
			break
		}
		err = t.carryOut(ctx, &t.k.faults[t.rng.IntN(len(t.k.faults))])
	}
	stop()
	if err == nil {
		err = t.drain(ctx)
	}
	return t.outcome(seed, err)
}

// outcome is the row of a schedule that ended with err. What was not well in time is something that it showed.
func (t *trial) outcome(seed uint64, err error) (row, error) {
	if late, ok := errors.AsType[*lateError](err); ok {
		t.problem("%v", late)
		err = nil
	}
	if err != nil {
		return row{}, err
	}
	return t.row(seed), nil
}

// carryOut lets a fault happen, heals it, and waits until all is well.
func (t *trial) carryOut(ctx context.Context, f *fault) error {
	t.happened, t.times = append(t.happened, f.name), 1
	e := check.Event{Op: check.OpRestart, Proc: "cluster", Reason: f.name, Call: now()}
	err := f.do(ctx, t)
	if err == nil {
		t.count += t.times
	}
	healed := time.Now()
	err = errors.Join(err, t.heal(ctx))
	if err == nil {
		err = t.goesOn(ctx, "sends after: "+f.name, 3, topics...)
	}
	if err == nil {
		t.recovery = max(t.recovery, time.Since(healed))
		err = t.well(ctx)
	}
	if err == nil {
		err = t.goesOn(ctx, "sends with all slaves in sync after: "+f.name, 3, topics...)
	}
	e.Return = now()
	if !f.clients { // else the brokers were well all the time, and explain nothing
		t.event(e)
	}
	if f.away != "" {
		t.event(check.Event{Op: check.OpAway, Proc: "slaves", Reason: f.away, Call: e.Call, Return: e.Return})
	}
	return err
}

// heal ends every fault.
func (t *trial) heal(ctx context.Context) error {
	var errs []error
	if t.network != nil {
		t.network.Heal()
	}
	for _, n := range t.Nodes {
		n.Resume()
	}
	if t.Database != nil {
		if !t.Database.Runs() {
			if err := t.Database.Start(ctx); err != nil {
				return err
			}
		}
		t.Database.Resume()
	}
	for _, n := range t.Nodes {
		if d := t.disks[n.Name]; d != nil {
			errs = append(errs, d.Slow(0))
			if t.off[n.Name] {
				n.Kill()
				if err := errors.Join(d.Fail(false), d.PowerOn()); err != nil {
					return err
				}
				delete(t.off, n.Name)
			}
			errs = append(errs, d.Free())
		}
		errs = append(errs, n.Begin())
	}
	return errors.Join(append(errs, t.beginWorkers())...)
}

// drain waits until the group has all that was sent.
func (t *trial) drain(ctx context.Context) error {
	err := t.await(ctx, "all is consumed", func() bool {
		for _, topic := range topics {
			asking, cancel := context.WithTimeout(ctx, 5*time.Second)
			lags, err := t.admin.GroupLag(asking, topic, app)
			cancel()
			if err != nil || len(lags) < partitions*len(t.groups) || slices.ContainsFunc(lags, func(l client.PartitionLag) bool { return l.Lag > 0 }) {
				return false
			}
		}
		return true
	})
	if err != nil {
		return err
	}
	for _, topic := range topics {
		t.event(check.Event{Op: check.OpDrain, Topic: topic, Group: app, Call: now()})
		e := check.Event{Op: check.OpOffset, Topic: topic, Group: app, Call: now()}
		asking, cancel := context.WithTimeout(ctx, 5*time.Second)
		lags, err := t.admin.GroupLag(asking, topic, app)
		cancel()
		if err != nil {
			t.problem("group lag: %v", err)
		}
		e.Return = now()
		for _, l := range lags {
			e.Partition = t.partition(l.BrokerGroup, l.Partition)
			if l.Consumed == 0 { // else it is not told which
				e.Op, e.Index, e.To, e.Pending = check.OpOffset, l.AckOffset, 0, 0
				t.event(e)
			}
			e.Op, e.Index, e.To, e.Pending = check.OpBalance, l.First, l.End, l.Lag
			t.event(e)
		}
	}
	for _, b := range t.Of("broker") {
		if n := t.look(ctx, b); n.damage != "" || n.refused {
			t.problem("%s: %s, refused %v", b.Name, n.damage, n.refused)
		}
	}
	return nil
}

// end stops the load and the cluster.
func (t *trial) end() error {
	if t.network != nil {
		t.network.Heal()
	}
	t.leave()
	if t.Cluster == nil {
		return nil
	}
	if t.Database != nil && t.Database.Runs() {
		t.Database.Resume()
	}
	for _, n := range t.Nodes {
		n.Resume()
	}
	return t.Down()
}

// close ends what the cluster stood on. Disks are looked at before.
func (t *trial) close() error {
	if t.network != nil {
		t.network.Close()
	}
	var errs []error
	for _, d := range t.disks {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}
