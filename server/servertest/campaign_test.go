package servertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/server"
	"github.com/jmqio/jmq/server/journal/journaltest"
	"github.com/jmqio/jmq/server/servertest/check"
	"github.com/jmqio/jmq/wire"
)

// A campaign is a whole broker on a disk in memory, producers and two groups of consumers that reach it through the SDK and
// TCP, and cycles: under load the power is lost, the process is killed, a sync fails, or the broker is stopped, and then it is
// started again; now and then the power is lost once more while it recovers. Consumers die, are slow, give back. After
// each lost power a copy of what is left is examined by the engine alone. In the end everything is drained, read again by a
// new group, stopped and examined. What everybody saw is a history, which the checker judges.
//
// The seed decides about what is sent and about the faults; how goroutines take turns it does not.

const (
	topicName  = "orders"
	ackTimeout = time.Second
	pollWait   = 100 * time.Millisecond
	fetchGroup = "fetch"
	runGroup   = "run"
	auditGroup = "audit"
	stuckAfter = 3*ackTimeout + time.Second // without a delivery, what a group has not got does not come
	storeMost  = 10 * time.Second           // without a message stored, none is any more
)

// fault is how a cycle ends.
type fault int

const (
	powerLost  fault = iota // everything but what was synced
	powerTorn               // and some of what was not
	killed                  // the process only
	syncFailed              // the broker must stop by itself; then it is killed
	erred                   // a call of the disk fails; then the process is killed, or the power is lost
	stopped                 // in order; sometimes the power is lost meanwhile
	diskFull                // for a while; the broker goes on when it no longer is
	damaged                 // stopped in order, and then bytes change
	faults
)

var everyFault = []fault{powerLost, powerTorn, killed, syncFailed, erred, stopped, diskFull}

func (f fault) String() string {
	return [...]string{"power lost", "power lost, torn", "killed", "sync failed", "error", "stopped", "disk full", "damaged"}[f]
}

type campaign struct {
	t          testing.TB
	o          options
	config     server.Config
	partitions int
	bulk       bool // large batches of small messages
	rng        struct {
		sync.Mutex
		*rand.Rand
	}
	network *network
	codec   wire.Codec
	admin   *client.Client

	disk    *disk
	running *running

	acknowledged, received atomic.Int64
	full                   atomic.Int64 // sends that were told that the disk is full
	calm                   atomic.Bool  // nobody dies, is slow or gives back any more
	aborted                context.Context

	history struct {
		sync.Mutex
		events []check.Event
	}
	problems struct {
		sync.Mutex
		list []string
	}
	did   [faults]int
	depth depth
	// again counts the power losses during recovery.
	again int
}

// options of a campaign.
type options struct {
	seed   uint64
	cycles int
	// most is how long cycles may take together; at least three are run. 0: as long as they take.
	most time.Duration
	// faults are what happens, each as often as the others; nil: all.
	faults []fault
	// work is how many messages are stored in a cycle besides the usual 30 to 330, so that little is explained by a restart.
	work         int
	segmentBytes int64 // of the journal; 0: 64 to 256 KiB
	// noCheckpoints: but for those of brokers that stop in order.
	noCheckpoints bool
	// depth: everything that a store does with years of data happens too, see depth.
	depth bool
	// damage says what damaged hits; 0: messages, the index or a checkpoint, and the broker looks for damage itself.
	damage damageOf
	idle   time.Duration // without a message stored, none is any more; 0: storeMost
}

type damageOf int

// messagesOnly: nobody looks for damage; who reads a message meets with it.
const messagesOnly damageOf = 1

// running is a broker.
type running struct {
	s     *server.Server
	stop  context.CancelFunc
	ended chan error
}

// verdict is what a campaign found.
type verdict struct {
	report   *check.Report
	refused  error    // a broker did not start on its own disk, or stores nothing any more
	stuck    bool     // a group did not get to the end
	problems []string // other things that no client may see
	summary  string
	did      string // how often each fault happened
	cycles   int
	history  []check.Event
}

// found names everything that is not as it must be.
func (v *verdict) found() []string {
	names := v.report.Violated()
	if v.refused != nil {
		names = append(names, "start")
	}
	if v.stuck {
		names = append(names, "drain")
	}
	if len(v.problems) > 0 {
		names = append(names, "errors")
	}
	return names
}

func (v *verdict) String() string {
	var b strings.Builder
	b.WriteString(v.summary + "\n")
	if v.refused != nil {
		fmt.Fprintf(&b, "given up: %v\n", v.refused)
	}
	if v.stuck {
		b.WriteString("a group did not get to the end\n")
	}
	for i, p := range v.problems {
		if i == 5 {
			fmt.Fprintf(&b, "and %d more\n", len(v.problems)-i)
			break
		}
		b.WriteString(p + "\n")
	}
	b.WriteString(v.report.String())
	return b.String()
}

// errRefused wraps why a broker, or the engine, did not open a disk, or why it is of no use to go on with it.
var errRefused = errors.New("refused")

// runCampaign runs a campaign and judges it. It fails the test only for what is the test's own fault.
func runCampaign(t testing.TB, o options) *verdict {
	t.Helper()
	c := &campaign{t: t, o: o, network: newNetwork()}
	c.rng.Rand = rand.New(rand.NewPCG(o.seed, 11))
	c.config = server.DefaultConfig()
	b := &c.config.Broker
	b.Data = "/data"
	c.config.Node.Wire.Listen, c.config.Node.Admin.Listen = "127.0.0.1:0", "127.0.0.1:0"
	b.Journal.SegmentBytesMax = int64(64<<10) << c.intn(3)
	if o.segmentBytes > 0 {
		b.Journal.SegmentBytesMax = o.segmentBytes
	}
	b.Store.CheckpointEvery, b.Store.CheckpointBytes = 100*time.Millisecond, 64<<10
	if c.intn(3) == 0 || o.noCheckpoints {
		b.Store.CheckpointEvery, b.Store.CheckpointBytes = time.Hour, 1<<30
	}
	b.Dispatch.AckTimeout, b.Dispatch.DisconnectGrace = ackTimeout, time.Duration(c.intn(3))*50*time.Millisecond
	c.config.Node.StopTimeout = 500 * time.Millisecond
	if os.Getenv("JMQ_TEST_LOG") != "" {
		c.config.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	c.partitions, c.bulk = 1+c.intn(4), c.intn(4) == 0
	if o.depth {
		c.deepen()
	}
	eager := c.intn(4) == 0
	c.disk = newDisk(nil, c.fork(), eager)

	began := time.Now()
	v := &verdict{}
	first := c.usage()
	if err := c.run(v); err != nil {
		if !errors.Is(err, errRefused) {
			t.Fatalf("-seed=%d: %v", o.seed, err)
		}
		v.refused = err
	}
	// What was just closed may take a moment to be gone.
	var still atomic.Int64
	patient(time.Second, &still, func() bool {
		u, err := check.Own()
		return err != nil || u.Goroutines <= first.Goroutines && u.Open <= first.Open
	})
	c.usage()
	k := check.NewChecker()
	for _, e := range c.history.events {
		if err := k.Add(e); err != nil {
			t.Fatalf("-seed=%d: event %+v: %v", o.seed, e, err)
		}
	}
	v.report, v.problems = k.Report(), c.problems.list
	v.summary = fmt.Sprintf("-seed=%d: %v; %d partitions, bulk %v, segments of %d KiB, checkpoints every %v, eager names %v, grace %v;", o.seed,
		time.Since(began).Round(time.Millisecond), c.partitions, c.bulk, b.Journal.SegmentBytesMax>>10, b.Store.CheckpointEvery, eager, b.Dispatch.DisconnectGrace)
	for f, n := range c.did {
		if v.cycles += n; n > 0 {
			v.did += fmt.Sprintf("%v %d, ", fault(f), n)
		}
	}
	v.did += fmt.Sprintf("again in recovery %d", c.again)
	v.summary += fmt.Sprintf(" %s%v", v.did, &c.depth)
	v.history = c.history.events
	return v
}

// usage notes what this process has. What the history itself takes, and the disks in memory, is no leak.
func (c *campaign) usage() check.Usage {
	u, err := check.Own()
	if err != nil {
		c.t.Fatal(err)
	}
	u.RSS = 0
	c.event(check.Event{Op: check.OpUsage, Proc: "campaign", Usage: &u, Call: now()})
	return u
}

func (c *campaign) intn(n int) int {
	c.rng.Lock()
	defer c.rng.Unlock()
	return c.rng.IntN(n)
}

// fork returns a source of its own for one goroutine.
func (c *campaign) fork() *rand.Rand {
	c.rng.Lock()
	defer c.rng.Unlock()
	return rand.New(rand.NewPCG(c.rng.Uint64(), 12))
}

func (c *campaign) event(events ...check.Event) {
	c.history.Lock()
	defer c.history.Unlock()
	c.history.events = append(c.history.events, events...)
}

func (c *campaign) problem(format string, args ...any) {
	c.problems.Lock()
	defer c.problems.Unlock()
	c.problems.list = append(c.problems.list, fmt.Sprintf(format, args...))
}

// run is the campaign. Its goroutines have ended when it returns.
func (c *campaign) run(v *verdict) error {
	if err := c.start(); err != nil {
		return err
	}
	var abort context.CancelFunc
	c.aborted, abort = context.WithCancel(context.Background())
	defer abort()
	defer func() {
		if c.running != nil {
			c.disk.now(plan{fate: killProcess})
			c.end()
		}
	}()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	adminLine := c.network.line()
	defer adminLine.hangUp()
	senders, lines := make([]*client.Client, 2), make([]*line, 2)
	for i := range senders {
		l := c.network.line()
		lines[i] = l
		cl, err := client.Dial(ctx, "127.0.0.1:1", client.WithApp("shop"), client.WithDialer(l.dial))
		if err != nil {
			return err
		}
		defer l.hangUp()
		defer closeNow(cl)
		defer context.AfterFunc(c.aborted, func() { closeNow(cl) })()
		senders[i] = cl
	}
	var err error
	if c.admin, err = client.Dial(ctx, "127.0.0.1:1", client.WithApp("admin"), client.WithDialer(adminLine.dial), client.WithConns(1)); err != nil {
		return err
	}
	defer closeNow(c.admin)
	if err := c.admin.CreateTopic(ctx, topicName, c.partitions); err != nil {
		return err
	}
	for _, g := range []string{fetchGroup, runGroup} {
		if _, err := c.subscribe(ctx, topicName, g); err != nil {
			return err
		}
	}

	sending, stopSending := context.WithCancel(ctx)
	consuming, stopConsuming := context.WithCancel(ctx)
	var sends, consumers sync.WaitGroup
	defer func() { // for what returns early
		abort()
		stopSending()
		stopConsuming()
		sends.Wait()
		consumers.Wait()
	}()
	calm := patience{timeout: 3 * time.Second, repeat: true}
	hasty := patience{timeout: 100 * time.Millisecond, hurry: 10}
	for _, p := range []*producer{
		c.producer(senders[0], "keyed-0", 3, calm),
		c.producer(senders[0], "keyed-1", 5, hasty),
		c.producer(senders[1], "free-0", 0, calm, client.MergeAfter(1)),
		c.producer(senders[1], "free-1", 0, hasty),
	} {
		sends.Go(func() { p.run(sending) })
	}
	batches := c.producer(senders[1], "batch-0", 4, patience{timeout: 2 * time.Second}, client.Compress(client.Zstd, 1000))
	batches.small = c.bulk
	sends.Go(func() { batches.runBatches(sending) })
	async := c.producer(senders[0], "async-0", 2, calm, client.Buffer(100, 64<<10)) // so that its batches fit into small segments
	sends.Go(func() { async.runAsync(sending) })
	for n := range 3 {
		consumers.Go(func() { c.slot(consuming, fetchGroup, n, (*member).fetch) })
	}
	for n := range 2 {
		consumers.Go(func() { c.slot(consuming, runGroup, n, (*member).receive) })
	}
	consumers.Go(func() { c.observe(consuming, topicName) })
	if c.o.depth {
		stop, err := c.goDeep(ctx, consuming, sending, &sends, &consumers)
		defer stop()
		if err != nil {
			return err
		}
	}
	sends.Go(func() { c.cut(sending, lines) })

	faults := c.o.faults
	if faults == nil {
		faults = everyFault
	}
	began := time.Now()
	var deck []int
	for n := range c.o.cycles {
		if n >= 3 && c.o.most > 0 && time.Since(began) > c.o.most {
			break
		}
		if len(deck) == 0 {
			deck = c.fork().Perm(len(faults))
		}
		f := faults[deck[0]]
		deck = deck[1:]
		if err := c.work(30 + c.intn(300) + c.o.work); err != nil {
			return err
		}
		if err := c.cycle(f); err != nil {
			return fmt.Errorf("cycle %d, %v: %w", n, f, err)
		}
		c.did[f]++
	}
	if err := c.work(300); err != nil {
		return err
	}
	stopSending()
	sends.Wait()
	c.calm.Store(true)
	v.stuck = !c.drain(ctx, topicName, fetchGroup, runGroup)
	if c.o.depth && !v.stuck {
		v.stuck = !c.drainDepth(ctx, &consumers, consuming)
	}
	stopConsuming()
	consumers.Wait()
	if !v.stuck {
		for _, topic := range c.topics() {
			if err := c.audit(ctx, topic); err != nil {
				c.problem("audit of %s: %v", topic, err)
			}
		}
	}
	if err := c.stop(); err != nil {
		return err
	}
	c.disk.now(plan{fate: losePower})
	if err := c.autopsy(c.disk.lost()); err != nil {
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	return nil
}

// subscribe gives the admin's client a consumer whose group begins at the beginning.
func (c *campaign) subscribe(ctx context.Context, topic, group string) (*client.Consumer, error) {
	m := &member{c: c, proc: group}
	k, err := c.admin.Consumer(topic, client.Group(group), client.Start(client.FromBeginning), client.OnGap(m.gap), client.PollWait(pollWait))
	if err == nil {
		err = k.Subscribe(ctx)
	}
	return k, err
}

func closeNow(cl *client.Client) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = cl.Close(ctx) // nothing is under way, or the campaign has failed already
}

// start starts a broker on the disk.
func (c *campaign) start() error {
	config := c.config
	config.FS = c.disk.fs
	s, err := server.New(config)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	r := &running{s: s, stop: stop, ended: make(chan error, 1)}
	go func() { r.ended <- s.Run(ctx) }()
	select {
	case <-s.Ready():
	case err := <-r.ended:
		stop()
		if err == nil {
			err = errors.New("ended at once")
		}
		return fmt.Errorf("%w: %w", errRefused, err)
	case <-time.After(within):
		stop()
		return fmt.Errorf("the broker was not ready within %v", within)
	}
	c.running = r
	c.network.set(s.WireAddress())
	return nil
}

// end stops the broker, whatever has become of it, and waits for it. It returns what Run did.
func (c *campaign) end() error {
	r := c.running
	c.running = nil
	c.network.set("")
	r.stop()
	select {
	case err := <-r.ended:
		return err
	case <-time.After(within):
		panic(fmt.Sprintf("the broker has not ended within %v", within))
	}
}

// stop stops it in order.
func (c *campaign) stop() error {
	if err := c.end(); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	return nil
}

// patient calls done about every millisecond until it is true, and returns false when seen, which it looks at too, has not
// changed for most. What passes between two calls counts for little more than that: a machine that stood still has not shown
// that nothing comes.
func patient(most time.Duration, seen *atomic.Int64, done func() bool) bool {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	was, idle, last := seen.Load(), time.Duration(0), time.Now()
	for !done() {
		if now := seen.Load(); now != was {
			was, idle = now, 0
		}
		idle += min(time.Since(last), 20*time.Millisecond)
		last = time.Now()
		if idle > most {
			return false
		}
		<-tick.C
	}
	return true
}

// work waits until so many more messages were stored. After a problem there is nothing to wait for.
func (c *campaign) work(n int) error {
	want := c.acknowledged.Load() + int64(n)
	done := func() bool { return c.acknowledged.Load() >= want || c.troubled() }
	if most := cmp.Or(c.o.idle, storeMost); !patient(most, &c.acknowledged, done) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		u, err := c.admin.StoreUsage(ctx, 5)
		return fmt.Errorf("%w: nothing was stored for %v; the store is %+v, %v", errRefused, most, u, err)
	}
	if c.troubled() {
		return fmt.Errorf("%w: a client met with an error", errRefused)
	}
	return nil
}

func (c *campaign) troubled() bool {
	c.problems.Lock()
	defer c.problems.Unlock()
	return len(c.problems.list) > 0
}

// cycle lets a fault happen and the broker come back.
func (c *campaign) cycle(f fault) error {
	e := check.Event{Op: check.OpRestart, Proc: "broker", Reason: f.String(), Call: now()}
	switch f {
	case diskFull:
		return c.fill()
	case stopped:
		if c.intn(3) == 0 {
			c.disk.arm(plan{fate: losePower, skip: c.intn(20), after: c.intn(2) == 0, percent: c.intn(2) * c.intn(100)})
		}
		err := c.stop()
		c.disk.disarm()
		if err != nil && c.disk.lost() == nil {
			return err
		}
	case damaged:
		if err := c.stop(); err != nil {
			return err
		}
		if err := c.damage(); err != nil {
			return err
		}
	case syncFailed:
		if err := c.failSync(); err != nil {
			return err
		}
	case erred:
		c.err()
	default:
		p := plan{fate: losePower, skip: c.intn(4), after: c.intn(2) == 0}
		switch f {
		case powerTorn:
			p.percent = 1 + c.intn(99)
		case killed:
			p.fate = killProcess
		}
		// Most moments are within a commit; but a new segment or checkpoint has its own.
		p.call = []journaltest.Call{journaltest.SyncData, journaltest.SyncData, journaltest.Write, "", journaltest.Rename, journaltest.SyncDir}[c.intn(6)]
		if f == powerTorn && c.intn(2) == 0 {
			p.call, p.path, p.lenMin, p.after = journaltest.Write, ".journal", 3*4096, true // of several blocks, and not synced yet
		}
		c.die(p, c.intn(2) == 0)
	}
	for {
		if left := c.disk.lost(); left != nil {
			if err := c.autopsy(left); err != nil {
				return fmt.Errorf("%w: %w", errRefused, err)
			}
			c.disk = newDisk(left, c.fork(), c.disk.eager)
		} else {
			c.disk.revive()
		}
		c.disk.arm(plan{fate: losePower, skip: c.intn(120), after: c.intn(2) == 0, percent: c.intn(2) * c.intn(100)})
		err := c.start()
		c.disk.disarm()
		if c.disk.lost() == nil {
			if err != nil {
				return err
			}
			break
		}
		c.again++
		if err == nil {
			_ = c.end() // without its disk it has much to say
		}
	}
	e.Return = now()
	c.event(e)
	return nil
}

// die carries out p, with the broker as it is, and waits until it has ended. The network goes with it, unless it is said to
// last: then clients hear of the failing disk for a moment.
func (c *campaign) die(p plan, lasting bool) {
	done := c.disk.arm(p)
	late := time.NewTimer(300 * time.Millisecond)
	defer late.Stop()
	select {
	case <-done:
	case <-late.C: // there was no such call
		c.disk.now(p)
	}
	if lasting {
		c.linger()
	}
	c.network.set("")
	c.network.cut()
	_ = c.end() // without its disk it has much to say
}

// linger gives clients the time to hear of a failure.
func (c *campaign) linger() {
	pause(context.Background(), time.Duration(c.intn(150))*time.Millisecond)
}

// failSync lets a sync of the journal fail. The broker must answer nobody from then on that something is stored, though its
// disk works again; then its process is killed, and the next one finds what the failed sync has left to be seen.
func (c *campaign) failSync() error {
	done := c.disk.arm(plan{call: journaltest.SyncData, path: ".journal", skip: c.intn(4), fate: failSync})
	late := time.NewTimer(within)
	defer late.Stop()
	select {
	case <-done:
	case <-late.C:
		return fmt.Errorf("the journal is not synced within %v", within)
	}
	c.linger()
	c.disk.now(plan{fate: killProcess})
	c.network.cut()
	_ = c.end() // it says that a sync failed
	return nil
}

// err lets a call fail: any that changes something, or a read. Whether the broker goes on or stops, what it says is true; after a moment it is killed, or
// loses its power.
func (c *campaign) err() {
	p := plan{fate: failCall, skip: c.intn(60), fault: []journaltest.Fault{
		{Err: syscall.EIO}, {Err: syscall.EIO, After: true}, {Err: syscall.ENOSPC}, {Err: syscall.EIO, Short: 100}, {Err: syscall.EIO, LoseBlocks: true}, {Err: syscall.EINTR, LoseBlocks: true},
	}[c.intn(6)]}
	switch {
	case p.fault.LoseBlocks:
		p.call = journaltest.SyncData
	case p.fault.Short > 0:
		p.call = journaltest.Write
	case c.intn(4) == 0:
		p.call = journaltest.Read
	}
	done := c.disk.arm(p)
	late := time.NewTimer(300 * time.Millisecond)
	defer late.Stop()
	select {
	case <-done:
		c.linger()
	case <-late.C: // there were not so many such calls
		c.disk.disarm()
	}
	c.die(plan{fate: []fate{losePower, killProcess}[c.intn(2)], percent: c.intn(2) * c.intn(100)}, false)
}

// fill lets the disk be full for a while. Sends fail, reads and acks may; nobody has to do anything for it to be over.
func (c *campaign) fill() error {
	want := c.full.Load() + 1 + int64(c.intn(20))
	c.disk.fs.SetLimit(c.disk.fs.Used() + int64(c.intn(64<<10)))
	for late := time.Now().Add(500 * time.Millisecond); c.full.Load() < want && time.Now().Before(late); {
		pause(context.Background(), 5*time.Millisecond)
	}
	c.disk.fs.SetLimit(0)
	return nil
}

// observe looks where the groups stand, as an administrator sees it, until ctx ends.
func (c *campaign) observe(ctx context.Context, topic string) {
	for ctx.Err() == nil {
		e := check.Event{Op: check.OpOffset, Topic: topic, Call: now()}
		lags, err := c.admin.GroupLag(ctx, topic, "")
		e.Return = now()
		if err != nil {
			if ctx.Err() == nil && !c.excused(err) {
				c.problem("group lag: %v", err)
			}
			continue
		}
		for _, l := range lags {
			if l.Consumed == 0 { // else it is not told which
				e.Group, e.Partition, e.Index = l.Group, l.Partition, l.AckOffset
				c.event(e)
			}
		}
		pause(ctx, 10*time.Millisecond)
	}
}

// cut breaks the producers' connections now and then, until ctx ends.
func (c *campaign) cut(ctx context.Context, lines []*line) {
	for ctx.Err() == nil {
		pause(ctx, time.Duration(50+c.intn(200))*time.Millisecond)
		lines[c.intn(len(lines))].cut()
	}
}

// drain waits until the groups of a topic have everything. It returns false when nothing has come for long and they have not.
func (c *campaign) drain(ctx context.Context, topic string, groups ...string) bool {
	most := stuckAfter
	if c.o.depth && c.o.damage != messagesOnly {
		most += readPause
	}
	drained := patient(most, &c.received, func() bool {
		lags, err := c.admin.GroupLag(ctx, topic, "")
		return err == nil && !slices.ContainsFunc(lags, func(l client.PartitionLag) bool { return l.Lag > 0 })
	})
	for _, g := range groups {
		c.event(check.Event{Op: check.OpDrain, Topic: topic, Group: g, Call: now()})
	}
	e := check.Event{Op: check.OpBalance, Topic: topic, Call: now()}
	lags, err := c.admin.GroupLag(ctx, topic, "")
	e.Return = now()
	if err != nil {
		c.problem("group lag: %v", err)
	}
	for _, l := range lags {
		if slices.Contains(groups, l.Group) {
			e.Group, e.Partition, e.Index, e.To, e.Pending = l.Group, l.Partition, l.First, l.End, l.Lag
			c.event(e)
		}
	}
	return drained
}

// audit reads a topic as a new group, in the way of consumers.
func (c *campaign) audit(ctx context.Context, topic string) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	m := &member{c: c, proc: auditGroup}
	var gaps []client.Gap
	k, err := c.admin.Consumer(topic, client.Group(auditGroup), client.Start(client.FromBeginning), client.OnGap(func(g client.Gap) {
		gaps = append(gaps, g)
		m.gap(g)
	}))
	if err == nil {
		m.consumer = k
		err = k.Subscribe(ctx)
	}
	if err != nil {
		return err
	}
	lags, err := c.admin.GroupLag(ctx, topic, auditGroup)
	if err != nil {
		return err
	}
	at := now()
	for _, l := range lags {
		first := l.AckOffset
		for next := first; next < l.End; {
			gaps = gaps[:0]
			ds, err := k.Fetch(ctx, 500, client.FromPartition(l.Partition))
			if err != nil && !(c.o.depth && errors.Is(err, client.ErrBusy)) {
				return err
			}
			for _, g := range gaps {
				switch {
				case g.Partition != l.Partition:
				case g.Reason == client.GapTrimmed && next == first: // by a pass of retention that did not know the group yet
					first, next = g.To, g.To
				default:
					c.event(check.Event{Op: check.OpGap, Proc: auditGroup, Topic: topic, Partition: g.Partition, Index: g.From, To: g.To, Reason: g.Reason.String(), Call: at})
					next = g.To
				}
			}
			if len(ds) == 0 {
				continue
			}
			came := time.Now()
			for _, d := range ds {
				m.received(d, came)
				c.event(check.Event{
					Op: check.OpScan, Proc: auditGroup, Topic: topic, Partition: l.Partition, Index: d.Index, ID: d.ID, Key: d.OrderKey, Seq: seqOf(d.Headers),
					Hash: hash(d.Body), Call: at,
				})
				next = d.Index + 1
			}
			m.ack(ds)
		}
		c.event(check.Event{Op: check.OpSubscribe, Topic: topic, Group: auditGroup, Partition: l.Partition, Index: first, Call: at})
		c.event(check.Event{Op: check.OpScanned, Proc: auditGroup, Topic: topic, Partition: l.Partition, Index: first, To: l.End, Call: at})
	}
	c.event(check.Event{Op: check.OpDrain, Topic: topic, Group: auditGroup, Call: now()})
	return nil
}

// keep writes the history where it can be looked at, and returns its name.
func (v *verdict) keep() string {
	name, err := check.Keep(check.Kept(), "campaign", v.history)
	if err != nil {
		return err.Error()
	}
	return name
}

// cyclesEach is how long a campaign of a longer test is: each scan reads everything again.
const cyclesEach = 50

// figures counts cycles.
func (v *verdict) figures(seed uint64) *check.Figures {
	f := v.report.Figures()
	f.Seed, f.Faults, f.Count = seed, v.did, v.cycles
	f.Other += len(v.problems)
	if v.refused != nil {
		f.Other++
	}
	if v.stuck {
		f.Other++
	}
	return &f
}

// TestCampaign runs a campaign for some seconds, or longer ones, and finds nothing.
func TestCampaign(t *testing.T) {
	campaigns(t, options{seed: newSeed(), cycles: 30, most: 6 * time.Second})
}

// campaigns runs a campaign, or with JMQ_TEST_CYCLES several of so many cycles together. Nothing may be found, and every check must
// have had something to check.
func campaigns(t *testing.T, o options) {
	left := o.cycles
	if n, asked := cyclesAsked(t); asked {
		left, o.most = n, 0
	}
	told := 0 // a schedule of scripts/chaos is one
	for ; left > 0; left, o.seed = left-o.cycles, o.seed+1 {
		o.cycles = min(left, cyclesEach)
		v := runCampaign(t, o)
		if told == 0 {
			if err := v.figures(o.seed).Print(os.Stdout); err != nil {
				t.Error(err)
			}
		}
		told++
		if found := v.found(); len(found) > 0 {
			t.Fatalf("found %v; the history is in %s\n%v", found, v.keep(), v)
		}
		t.Logf("\n%v", v)
		must := []string{"C1", "C2", "C3", "C4", "C5", "C6", "C7", "C8", "C10", "C11"}
		if !o.depth {
			must = append(must, "C9")
		}
		if none := v.report.Unchecked(must...); len(none) > 0 {
			t.Errorf("%v had nothing to check", none)
		}
	}
}

// cyclesAsked is JMQ_TEST_CYCLES, if it is set.
func cyclesAsked(t *testing.T) (n int, asked bool) {
	s := os.Getenv("JMQ_TEST_CYCLES")
	if s == "" {
		return 0, false
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("JMQ_TEST_CYCLES: %v", err)
	}
	return n, true
}
